"""Disconnects, cancels and deadlines in every state of a request; nothing may be left behind."""
import http.client
import json
import os
import random
import threading
import time

from client import LONG, MESSAGES, URL, Stream, ask, chat, main, metric, stream_chat, wait_for


def is_idle():
    return metric("tern_requests_running") == 0 and metric("tern_requests_waiting") == 0


def test_cancel_by_id_ends_a_stream_with_an_error():
    s = stream_chat({"X-Correlation-Id": "to-cancel"}, **LONG)
    events = iter(s)
    for _ in range(5):
        first = next(events)
    a = ask("POST", f"/v1/requests/{first['id']}/cancel")
    assert a.json == {"id": first["id"], "object": "request.cancel", "cancelled": True}, a.json
    rest = list(events)
    assert not s.done and rest[-1]["error"]["code"] == "cancelled"
    assert ask("POST", "/v1/requests/to-cancel/cancel").json["cancelled"] is False
    assert ask("POST", "/v1/requests/nobody/cancel").status == 404


def test_cancel_of_a_reply_without_streaming_is_499():
    got = []
    t = threading.Thread(target=lambda: got.append(chat({"X-Correlation-Id": "whole-1"}, **LONG)))
    t.start()
    wait_for("cancel", lambda: ask("POST", "/v1/requests/whole-1/cancel").status == 200)
    t.join()
    assert got[0].status == 499 and got[0].error["code"] == "cancelled"


def test_deadlines():
    start = time.time()
    a = chat(timeout=0.4, **LONG)
    assert a.status == 504 and a.error["code"] == "deadline_exceeded" and time.time() - start > 0.3
    s = stream_chat({"x-stainless-timeout": "1"}, deadline_ms=50000, **LONG)
    events = list(s)
    assert not s.done and events[-1]["error"]["code"] == "deadline_exceeded"


def test_disconnects_are_detected_while_queued_and_while_running():
    streams = [stream_chat(**LONG) for _ in range(4)]    # as many as --max-seqs
    for s in streams:
        next(iter(s))
    waiting = []
    for _ in range(6):
        c = http.client.HTTPConnection(URL.hostname, URL.port)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, **LONG}))
        waiting.append(c)
    wait_for("six waiting requests", lambda: metric("tern_requests_waiting") >= 6)
    for c in waiting:
        c.close()
    wait_for("an empty queue", lambda: metric("tern_requests_waiting") == 0)
    for s in streams:
        s.close()
    wait_for("no running request", is_idle)


def heavy(i):
    x, y = "abcdefgh"[i % 8], "uvwxyz"[i // 8]
    return f'root ::= ("{x}" | "{y}")* "{x}" ("{x}" | "{y}"){{20}}'


def test_a_grammar_of_a_disconnected_client_is_not_compiled():
    waiting = []
    for i in range(40):
        c = http.client.HTTPConnection(URL.hostname, URL.port)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, "grammar": heavy(i), "max_tokens": 1}),
                  {"X-Correlation-Id": f"heavy-{i}"})
        waiting.append(c)
    cancelled = [ask("POST", f"/v1/requests/heavy-{i}/cancel").json.get("cancelled") for i in (38, 39)]
    if cancelled == [True, True]:                        # unless they were compiled before the cancel
        assert waiting[38].getresponse().status == waiting[39].getresponse().status == 499
    for c in waiting:
        c.close()
    a = chat(guided_choice=["now"], max_tokens=4)
    assert a.status == 200 and a.json["choices"][0]["message"]["content"] == "now"
    wait_for("no grammar at work", lambda: metric("tern_grammar_jobs") == 0)


def test_a_disconnect_ends_all_choices():
    for how in ("leave", "cancel"):
        after = metric("tern_generated_after_cancel_tokens_total")
        s = stream_chat({"X-Correlation-Id": "several"}, n=4, **LONG)
        for ev in s:
            if any(c["index"] == 1 and c["delta"].get("content") for c in ev["choices"]):
                break
        if how == "leave":
            s.close()
        else:
            assert ask("POST", "/v1/requests/several/cancel").json["cancelled"] is True
            assert not s.done
        wait_for("no running request", is_idle)
        assert metric("tern_generated_after_cancel_tokens_total") == after
        s.close()


def one_request(rng):
    kind = rng.choice(["whole", "abort", "leave", "cancel", "deadline", "n", "bad", "grammar"])
    n = rng.randint(1, 60)
    if kind == "whole":
        assert chat(max_tokens=n).status in (200, 429)
    elif kind == "grammar":
        assert chat(max_tokens=n, grammar=f"root ::= [a-z{n}]*").status in (200, 429)
    elif kind == "bad":
        assert chat(max_tokens="x").status == 400
    elif kind == "deadline":
        assert chat(deadline_ms=rng.randint(1, 100), **LONG).status in (504, 429)
    else:
        cid = f"chaos-{rng.getrandbits(60)}"
        s = Stream("/v1/chat/completions", {"messages": MESSAGES, **LONG, "n": 3 if kind == "n" else 1},
                   {"X-Correlation-Id": cid})
        if s.r.status != 200:
            assert s.r.status == 429, s.r.status
            s.close()
            return
        if kind != "abort":
            for i, _ in enumerate(s):
                if i >= n:
                    break
        if kind == "cancel":
            assert ask("POST", f"/v1/requests/{cid}/cancel").status == 200
            for _ in s:
                pass
            assert not s.done
        s.close()


def test_chaos_leaves_nothing_behind():
    total, seed = int(os.environ.get("CHAOS", "400")), int(os.environ.get("CHAOS_SEED", "1"))
    errors = []

    def worker(k):
        rng = random.Random(seed * 1000 + k)
        try:
            for _ in range(total // 8):
                one_request(rng)
        except Exception as e:
            errors.append(repr(e))

    threads = [threading.Thread(target=worker, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[:3]
    wait_for("no running request", is_idle, 5)
    assert metric("tern_generated_after_cancel_tokens_total") == 0
    assert metric("tern_kv_blocks_used") == 0
    assert chat(max_tokens=3).status == 200


if __name__ == "__main__":
    main()
