"""Models in processes of their own: kill -9, SIGSTOP and abort of a worker under requests, the same text with and
without isolation. Run by tests/cli/isolate.sh against a server of two models with --isolate (TERN_URL), and one
without (TERN_URL_LOCAL)."""
import http.client
import json
import os
import re
import signal
import sys
import threading
import time
from urllib.parse import urlparse

HERE, LOCAL = (urlparse(os.environ[k]) for k in ("TERN_URL", "TERN_URL_LOCAL"))
A, B = "alpha", "beta"


def ask(method, path, body=None, url=HERE, timeout=120):
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)
    c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def complete(model, n=24, url=HERE, **more):
    return ask("POST", "/v1/completions", {"model": model, "prompt": "Once upon a time", "max_tokens": n,
                                           "ignore_eos": True, **more}, url)


def model(name):
    status = json.loads(ask("GET", "/status")[1])
    return next(m for m in status["models"] if m["id"] == name)


def wait_for(what, cond, seconds=120):
    end = time.time() + seconds
    while time.time() < end:
        got = cond()
        if got:
            return got
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def is_ready(name):
    m = model(name)
    return m if m["state"] == "ready" and m["pid"] else None


class Client(threading.Thread):
    """Sends completions until it is told to stop; keeps every result."""

    def __init__(self, name, stream):
        super().__init__()
        self.model, self.stream, self.ends, self.stop = name, stream, [], False
        self.start()

    def run(self):
        while not self.stop:
            try:
                self.ends.append(self.once())
            except Exception as e:  # noqa: a broken connection is a result that the test refuses
                self.ends.append(f"broken: {type(e).__name__} {e}")

    def once(self):
        status, data = complete(self.model, 48, stream=self.stream)
        if status != 200:
            return json.loads(data)["error"]["code"]
        if not self.stream:
            return "ok" if json.loads(data)["usage"]["completion_tokens"] == 48 else "short"
        last = data.strip().split(b"\n\n")[-1]
        if last == b"data: [DONE]":
            return "ok"
        return json.loads(last[6:])["error"]["code"]


def test_the_same_text_in_both():
    for seed in (1, 2, 3):
        texts = []
        for url, name in ((HERE, A), (LOCAL, A)):
            status, data = complete(name, 32, url, seed=seed, temperature=0.9)
            assert status == 200, data
            texts.append(json.loads(data)["choices"][0]["text"])
        assert texts[0] == texts[1], texts


def test_the_template_of_a_model_is_shown_by_both():
    shown = [json.loads(ask("GET", f"/props?model={A}", url=url)[1])["chat_template"] for url in (HERE, LOCAL)]
    assert shown[0] and shown[0] == shown[1], shown
    shown = [json.loads(ask("POST", "/api/show", {"model": A}, url=url)[1]) for url in (HERE, LOCAL)]
    assert shown[0]["template"] and shown[0]["template"] == shown[1]["template"], shown
    assert shown[0]["capabilities"] == shown[1]["capabilities"], shown


def test_each_model_has_a_process():
    pids = [model(A)["pid"], model(B)["pid"]]
    assert len(set(pids)) == 2 and all(p > 0 for p in pids), pids
    for p in pids:
        assert b"worker" in open(f"/proc/{p}/cmdline", "rb").read()
    assert all(b"TERN_API_KEY" not in open(f"/proc/{p}/environ", "rb").read() for p in pids)


def hit(sig, reason, times=2):
    """Signals the worker of A under load; returns nothing, asserts everything."""
    before = model(A)["worker"]
    other = model(B)["pid"]
    clients = [Client(A, i % 2 == 0) for i in range(6)] + [Client(B, True) for _ in range(2)]
    try:
        for i in range(times):
            pid = wait_for("a ready worker", lambda: is_ready(A))["pid"]
            wait_for("calls in it", lambda: model(A)["worker"]["calls"] >= 3)
            os.kill(pid, sig)
            wait_for("another process", lambda: (is_ready(A) or {"pid": pid})["pid"] != pid)
            n = [len(c.ends) for c in clients]
            wait_for("answers of all clients", lambda: all(len(c.ends) > k for c, k in zip(clients, n)))
    finally:
        for c in clients:
            c.stop = True
        for c in clients:
            c.join()
    after = model(A)["worker"]
    assert after["deaths"][reason] - before["deaths"][reason] == times, (before, after)
    assert after["restarts"] - before["restarts"] == times, (before, after)
    ends = [e for c in clients if c.model == A for e in c.ends]
    assert set(ends) <= {"ok", "worker_lost"}, ends
    assert ends.count("ok") > 0
    assert all(e == "ok" for c in clients if c.model == B for e in c.ends), [c.ends for c in clients]
    assert model(B)["pid"] == other
    # What was not streamed had sent no byte, so it was repeated.
    assert all(e == "ok" for c in clients if c.model == A and not c.stream for e in c.ends), [c.ends for c in clients]
    assert after["retried"] > before["retried"]


def test_kill():
    hit(signal.SIGKILL, "killed")


def test_abort():
    hit(signal.SIGABRT, "aborted", 1)


def test_a_stopped_process_is_killed():
    hit(signal.SIGSTOP, "hung", 1)


def series(name):
    """{labels: value} of a metric."""
    rows = [line.rsplit(" ", 1) for line in ask("GET", "/metrics")[1].decode().splitlines() if re.match(name + r"[{ ]", line)]
    return {k[len(name):]: float(v) for k, v in rows}


def test_metrics_tell_what_status_tells():
    wait_for("a ready worker", lambda: is_ready(A))
    w = model(A)["worker"]
    deaths, restarts = series("tern_worker_deaths_total"), series("tern_worker_restarts_total")
    for reason, n in w["deaths"].items():
        assert deaths[f'{{model="{A}",reason="{reason}"}}'] == n, (reason, n, deaths)
    assert sum(v for k, v in restarts.items() if f'"{A}"' in k) == w["restarts"] > 0, (restarts, w)
    assert series("tern_restarts_total") == {"": sum(restarts.values())}
    sent, conns = series("tern_worker_requests_total"), series("tern_worker_connections_total")
    assert all(sent[k] > conns[k] > 0 for k in sent), (sent, conns)
    rate = series("tern_worker_connection_reuse_rate")[""]
    assert abs(rate - (1 - sum(conns.values()) / sum(sent.values()))) < 1e-3, (rate, sent, conns)
    checked, hits = series("tern_worker_preflights_total"), series("tern_worker_preflight_hits_total")
    rate = series("tern_preflight_cache_hit_rate")[""]
    assert sum(checked.values()) > 0 and abs(rate - sum(hits.values()) / sum(checked.values())) < 1e-3, (rate, hits, checked)
    assert series("tern_worker_breaker_state")[f'{{model="{B}"}}'] == 0
    assert 0 < series("tern_worker_heartbeat_rtt_seconds")[f'{{model="{B}"}}'] < 60
    assert series("tern_worker_up") == {f'{{model="{A}"}}': 1, f'{{model="{B}"}}': 1}


def test_an_unload_is_no_restart():
    before = model(B)["worker"]
    assert ask("POST", "/models/unload", {"model": B})[0] == 200
    assert ask("POST", "/models/load", {"model": B})[0] == 200
    after = model(B)["worker"]
    assert after["starts"] == before["starts"] + 1 and after["restarts"] == before["restarts"] == 0, (before, after)


def respond(name, text, **more):
    status, body = ask("POST", "/v1/responses", {"model": name, "input": text, "max_output_tokens": 8, "temperature": 0, **more})
    assert status == 200, body
    return json.loads(body)


def by_id(method, id, rest=""):
    status, body = ask(method, "/v1/responses/" + id + rest)
    return status, json.loads(body)


def test_stored_responses_are_found_by_their_ids():
    made = {name: respond(name, "Tell me of " + name) for name in (A, B)}
    for name, r in made.items():
        assert by_id("GET", r["id"]) == (200, r)
        assert json.loads(ask("GET", "/responses/" + r["id"])[1]) == r
        status, items = by_id("GET", r["id"], "/input_items?limit=1&order=asc")
        assert status == 200 and items["data"][0]["content"][0]["text"] == "Tell me of " + name, items
        assert by_id("GET", r["id"], "/input_items?limit=x")[0] == 400
        assert by_id("POST", r["id"], "/cancel") == (200, r)            # it has ended
        local = json.loads(ask("POST", "/v1/responses", {"model": A, "input": "x", "max_output_tokens": 1}, LOCAL)[1])
        assert set(local) == set(r)
    first = made[A]
    second = respond(A, "And then?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["usage"]["input_tokens"] > first["usage"]["input_tokens"], second
    assert by_id("DELETE", first["id"]) == (200, {"id": first["id"], "object": "response.deleted", "deleted": True})
    for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        assert by_id(method, first["id"], rest)[0] == 404, (method, rest)
        assert by_id(method, "resp_unknown", rest)[0] == 404
    assert by_id("GET", second["id"])[0] == 200
    c = http.client.HTTPConnection(HERE.hostname, HERE.port, timeout=120)
    c.request("POST", "/v1/responses", json.dumps({"model": B, "input": "go", "max_output_tokens": 6, "stream": True}))
    text = c.getresponse().read().decode()
    c.close()
    done = json.loads(text.split("event: response.completed\ndata: ")[1].split("\n")[0])["response"] if "response.completed" in text else \
        json.loads(text.split("event: response.incomplete\ndata: ")[1].split("\n")[0])["response"]
    assert by_id("GET", done["id"]) == (200, done)
    assert ask("POST", "/models/unload", {"model": B})[0] == 200        # the store ends with the process
    assert by_id("GET", done["id"])[0] == 404
    assert ask("POST", "/models/load", {"model": B})[0] == 200
    assert by_id("GET", done["id"])[0] == 404


def test_a_response_that_runs_is_cancelled_by_its_id():
    c = http.client.HTTPConnection(HERE.hostname, HERE.port, timeout=120)
    c.request("POST", "/v1/responses", json.dumps({"model": A, "input": "go", "max_output_tokens": 400, "ignore_eos": True, "stream": True}))
    r = c.getresponse()
    line = b""
    while not line.startswith(b"data: "):
        line = r.readline()
    id = json.loads(line[6:])["response"]["id"]
    while b"output_text.delta" not in line:
        line = r.readline()
    status, got = by_id("POST", id, "/cancel")
    assert status == 200 and got["id"] == id and got["status"] in ("cancelled", "incomplete", "completed"), got
    r.read()
    c.close()


def test_no_process_is_left_of_many():
    """Nothing but the two workers: zombies would be children, too."""
    pid = int(os.environ["TERN_PID"])
    kids = open(f"/proc/{pid}/task/{pid}/children").read().split()
    assert sorted(map(int, kids)) == sorted([model(A)["pid"], model(B)["pid"]]), kids


def main():
    bad = 0
    for name, fn in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            fn()
            print("ok", "isolate_" + name[5:], flush=True)
        except Exception as e:
            bad += 1
            print(f"not ok isolate_{name[5:]}: {type(e).__name__} {str(e)[:600]}", flush=True)
    return bad > 0


sys.exit(main())
