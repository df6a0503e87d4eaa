"""A gateway with a static list of workers. usage: static.py FOLDER"""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet
from fleet import Events, Gateway, Process, Stream, Worker, chat, check, completion, metric

folder = sys.argv[1]
KEYS = os.path.join(folder, "keys")
with open(KEYS, "w") as f:
    f.write("sk-admin name=boss admin\nsk-user name=alice priority=5\n")

# With one token per step a text does not depend on what else is computed: every difference is a mistake.
workers = [Worker(folder, f"worker{i}", "--max-batch", "1").start() for i in range(3)]
gw = Gateway(folder, "gateway", "--peers", ",".join(w.url for w in workers)).start()
started = list(workers) + [gw]
LONG = "Once upon a time there was a little frog who wanted to see the whole wide world, and so"


def texts(server, path, body):
    s, t, _ = server.ask("POST", path, body)
    c = json.loads(t)["choices"][0] if s == 200 else {}
    return s, c.get("text") or (c.get("message") or {}).get("content")


def stream_of(gateway):
    """The worker that a stream of the gateway runs on."""
    for _ in range(6000):
        busy = [w for w in gateway.status()["workers"] if w["in_flight"] > 0]
        if busy:
            return next(w for w in workers if w.url == busy[0]["url"])
        time.sleep(0.01)
    return None


def test_same_answers():
    for path, body in (("/v1/completions", completion(LONG)), ("/v1/chat/completions", chat("Tell me a story.")),
                       ("/v1/completions", completion(LONG, temperature=1, seed=7, logprobs=1))):
        direct, over = texts(workers[0], path, body), texts(gw, path, body)
        check(f"{path} has the same answer over the gateway", direct[0] == 200 and direct == over, (direct, over))
    direct, over = texts(workers[0], "/v1/completions", completion(LONG)), texts(gw, "/v1/completions", {"filler": "[\"" * 1000000, **completion(LONG)})
    check("a body that is looked at in pieces has the same answer", direct == over, (direct, over))
    s = Stream(gw, "/v1/completions", completion(LONG)).rest()
    check("a stream has the same text", s.text == texts(workers[0], "/v1/completions", completion(LONG))[1] and s.done, s.text)
    check("ids of tokens do not reach the client", b": ids" not in s.raw, s.raw[-300:])
    check("all chunks have one id", len(s.ids) == 1, s.ids)


def test_routes():
    code, text, headers = gw.get("/v1/models")
    data = json.loads(text)["data"]
    check("GET /v1/models lists each model once", code == 200 and [m["id"] for m in data] == ["tern-tales"], text)
    check("GET /models is the same list", json.loads(gw.get("/models")[1])["data"][0]["id"] == "tern-tales")
    check("GET /v1/models/{id}", json.loads(gw.get("/v1/models/tern-tales")[1]).get("id") == "tern-tales")
    check("an unknown model is 404", gw.get("/v1/models/none")[0] == 404)
    check("GET /health and /ready are 200", gw.get("/health")[0] == 200 and gw.get("/ready")[0] == 200)
    w = gw.status()["workers"][0]
    check("/status lists workers with url, state, running, models",
          w["url"] == workers[0].url and w["state"] == "ready" and w["running"] >= 0 and w["models"] == ["tern-tales"], w)
    check("/metrics counts per worker", gw.get("/metrics")[1].count("tern_gateway_worker_up{worker=") == 3)
    code, text, _ = gw.ask("POST", "/tokenize", {"content": "Once upon"})
    check("other routes are forwarded", code == 200 and "tokens" in text, text)
    check("and a path that no worker knows is 404", gw.ask("POST", "/v1/nothing", {})[0] == 404)
    check("the chat page is served", "<html" in gw.get("/", {"Accept": "text/html"})[1].lower())
    check("and Ollama's text to clients that are no browsers", gw.get("/")[:2] == (200, "Ollama is running"), gw.get("/"))
    code, text, headers = gw.ask("POST", "/v1/completions", {"prompt": 5, "max_tokens": 1})
    check("an error of a worker comes as it is", code == 400 and "error" in json.loads(text), text)
    code, text, headers = gw.ask("POST", "/v1/completions", completion("x", 1), {"X-Correlation-Id": "corr-1"})
    check("the correlation id goes over all hops", headers.get("x-correlation-id") == "corr-1" and
          fleet.logged(workers, "corr-1"), headers)
    made = headers.get("traceparent", "")
    check("a trace id is made for a client that sends none, and goes over all hops",
          re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", made) and fleet.logged(workers, made), headers)
    sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    _, _, headers = gw.ask("POST", "/v1/completions", completion("x", 1), {"traceparent": sent})
    check("a client's trace id is kept", headers.get("traceparent") == sent, headers)
    check("a wrong body is refused by the worker", gw.ask("POST", "/v1/completions", "{nonsense")[0] == 400)
    code, text, _ = gw.ask("POST", "/v1/completions", completion("x", 1), {"X-Deadline": "1000"})
    check("a deadline in the past is 504", code == 504, text)


def test_stored_answers():
    code, text, _ = gw.ask("POST", "/v1/responses", {"input": "Hi", "max_output_tokens": 4})
    rid = json.loads(text).get("id", "")
    codes = [gw.ask("POST", "/v1/responses", {"input": f"More {i}", "max_output_tokens": 2, "previous_response_id": rid})[0] for i in range(6)]
    check("a response that continues another goes to the worker that keeps it", code == 200 and codes == [200] * 6, (text[:200], codes))
    codes = [gw.get(f"/v1/responses/{rid}")[0] for _ in range(6)]
    check("and so does GET /v1/responses/{id}", codes == [200] * 6, codes)


def test_kept_connections():
    def count():
        return [w["connections"] for w in gw.status()["workers"]]
    before = count()
    for _ in range(30):
        gw.ask("POST", "/v1/completions", completion("Hi", 1))
    after = count()
    opened, reused = (sum(x[k] for x in after) - sum(x[k] for x in before) for k in ("opened", "reused"))
    # one request after the other: a worker needs at most one new connection, all other requests take a kept one
    check("connections are kept, at most 10 per worker",
          all(x["idle"] <= 10 for x in after) and opened <= len(after) and reused >= 30 - len(after), (before, after))


def test_killed_worker():
    want = texts(workers[0], "/v1/completions", completion(LONG, 200))[1]
    for kind, path, body in (("completion", "/v1/completions", completion(LONG, 200)),
                             ("chat", "/v1/chat/completions", chat("Tell me a long story.", 200)),
                             ("sampled completion", "/v1/completions", completion(LONG, 200, temperature=1, seed=3))):
        want = texts(workers[0], path, body)[1]
        s = Stream(gw, path, {**body, "stream_options": {"include_usage": True}})
        for _ in range(8):
            s.next()
        w = stream_of(gw)
        w.kill()
        s.rest()
        check(f"a {kind} survives kill -9 of its worker with the same text", s.error is None and s.done and s.text == want, (s.error, s.text, want))
        check(f"a {kind} has one id before and after", len(s.ids) == 1, s.ids)
        check(f"usage of a {kind} counts all tokens", s.events[-1].get("usage", {}).get("completion_tokens", 0) > 8, s.events[-1])
        check("the killed worker is failed", gw.wait_state(w.url, "failed"))
        w.start().wait_ready()
        check("and is ready again after a restart", gw.wait_state(w.url, "ready"))
    check("/status counts replays", gw.status()["replays"] >= 3, gw.status()["replays"])


def messages(n):
    return {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": n, "temperature": 0, "model": "tern-tales"}


def responses(n, **more):
    return {"input": "Tell me a long story.", "max_output_tokens": n, "temperature": 0, **more}


def ollama(path, n):
    given = {"messages": [{"role": "user", "content": "Tell me a long story."}]} if path == "/api/chat" else {"prompt": LONG}
    return {"model": "tern-tales", "options": {"num_predict": n, "temperature": 0}, **given}


PROTOCOLS = (("/v1/messages", messages(200)), ("/v1/responses", responses(200)), ("/v1/responses", responses(200, temperature=1, seed=5)),
             ("/api/chat", ollama("/api/chat", 200)), ("/api/generate", ollama("/api/generate", 200)))


def part_of(path, e):
    """The text of an event."""
    if path == "/v1/messages":
        return (e.get("delta") or {}).get("text", "")
    if path == "/v1/responses":
        return e.get("delta", "") if e["type"] == "response.output_text.delta" else ""
    return e["message"]["content"] if path == "/api/chat" else e["response"]


def kinds_of(events):
    """The types of the events, where several deltas in a row are one."""
    kinds = [e.get("type", "line") for e in events]
    return [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]]


def cut_stream(path, body, kill):
    """A stream of the gateway whose worker gets kill(worker) in the middle: (stream, worker)"""
    s = Events(gw, path, body)
    while len([e for e in s.events if part_of(path, e)]) < 8:
        if s.next() is None:
            break
    w = stream_of(gw)
    kill(w)
    s.rest()
    return s, w


def check_cut(name, path, s, want, keeps=True):
    text = "".join(part_of(path, e) for e in s.events)
    check(f"{name} survives with the same text", s.status == 200 and text == "".join(part_of(path, e) for e in want.events), (text, s.raw[-600:]))
    check(f"{name} has the events of a stream that was not cut", kinds_of(s.events) == kinds_of(want.events), (kinds_of(s.events), kinds_of(want.events)))
    check(f"no ids of tokens reach the client of {name}", b": ids" not in s.raw and b"\n\n\n" not in s.raw and not (path.startswith("/api") and b"\n\n" in s.raw))
    if path == "/v1/responses":
        numbers = [e["sequence_number"] for e in s.events]
        check(f"{name}: sequence numbers go on", numbers == list(range(len(numbers))), numbers)
        ids = {e["response"]["id"] for e in s.events if "response" in e} | {e["item_id"] for e in s.events if "item_id" in e} | {e["item"]["id"] for e in s.events if "item" in e}
        check(f"{name}: one id of the response, one of its item", len(ids) == 2, ids)
        last = s.events[-1]["response"]
        check(f"{name}: the last event has the whole text", last["output"][0]["content"][0]["text"] == text and last["usage"]["output_tokens"] > 8, last)
        if keeps:
            check(f"{name}: the answer is stored", gw.get(f"/v1/responses/{last['id']}")[0] == 200)
    if path == "/v1/messages":
        usage = [e["usage"]["output_tokens"] for e in s.events if e["type"] == "message_delta"]
        check(f"{name}: usage counts all tokens", usage == [e["usage"]["output_tokens"] for e in want.events if e["type"] == "message_delta"], usage)
    if path.startswith("/api"):
        check(f"{name}: the last line counts all tokens", s.events[-1].get("done") and s.events[-1]["eval_count"] == want.events[-1]["eval_count"], s.events[-1])


def test_killed_worker_of_other_protocols():
    for path, body in PROTOCOLS:
        want = Events(workers[0], path, body).rest()
        s, w = cut_stream(path, body, lambda w: w.kill())
        check_cut(f"a stream of {path} on a worker that was killed", path, s, want)
        gw.wait_state(w.url, "failed")
        w.start().wait_ready()
        gw.wait_state(w.url, "ready")
    check("all of them were replayed", gw.status()["replays"] >= len(PROTOCOLS), gw.status()["replays"])


def test_killed_worker_without_survivor():
    """The error has the form of the protocol."""
    w = Worker(folder, "lonely", "--max-batch", "1").start().wait_ready()
    g = Gateway(folder, "lonely-gateway", "--peers", w.url).start().wait_workers(1)
    started.extend([w, g])
    for path, body in (PROTOCOLS[0], PROTOCOLS[1], PROTOCOLS[3]):
        s = Events(g, path, body, {"X-Deadline": str(int(time.time() * 1000) + 3000)})
        for _ in range(3):
            s.next()
        w.kill()
        s.rest()
        last = s.events[-1]
        check(f"a stream of {path} without a survivor ends with an error of its protocol",
              last.get("type") == "error" and b"event: error" in s.raw if path.startswith("/v1") else "error" in last, s.raw[-300:])
        w.start().wait_ready()
        g.wait_workers(1)
    g.stop()
    w.stop()


def pids_below(pid):
    """The processes that a process started."""
    found = []
    for t in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{t}/children") as f:
            found += [int(p) for p in f.read().split()]
    return found


def test_isolated_workers():
    """Workers whose models run in processes of their own: the server is killed, or the model's process alone."""
    global gw, workers
    before, pair = (gw, workers), [Worker(folder, f"isolated{i}", "--max-batch", "1", "--isolate").start() for i in range(2)]
    g = Gateway(folder, "isolated-gateway", "--peers", ",".join(w.url for w in pair)).start()
    started.extend(pair + [g])
    for w in pair:
        w.wait_ready()
    g.wait_workers(2)
    gw, workers = g, pair
    try:
        def kill_model(w):
            for p in pids_below(w.p.pid):
                os.kill(p, signal.SIGKILL)

        for what, kill in (("server", lambda w: w.kill()), ("model's process", kill_model)):
            for path, body in (("/v1/completions", completion(LONG, 200)), *PROTOCOLS[:2], PROTOCOLS[3]):
                name = f"a stream of {path} with --isolate whose {what} was killed"
                if path == "/v1/completions":
                    want = texts(pair[0], path, body)[1]
                    s = Stream(gw, path, body)
                    for _ in range(8):
                        s.next()
                    w = stream_of(gw)
                    kill(w)
                    s.rest()
                    check(f"{name} survives with the same text", s.error is None and s.done and s.text == want, (s.error, s.text, want))
                else:
                    want = Events(pair[0], path, body).rest()
                    s, w = cut_stream(path, body, kill)
                    check_cut(name, path, s, want, keeps=False)  # the store is the model process's
                if what == "server":
                    gw.wait_state(w.url, "failed")
                    w.start()
                w.wait_ready()
                gw.wait_state(w.url, "ready")
        check("all of them were replayed", gw.status()["replays"] >= 8, gw.status()["replays"])
    finally:
        gw, workers = before
        for p in [g] + pair:
            p.stop(5)


def test_stored_work():
    """Files, batches and durable requests are one worker's, whichever gateway is asked."""
    def multipart(data):
        return (f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{data}\r\n--b--\r\n',
                {"Content-Type": "multipart/form-data; boundary=b"})

    three = [Worker(folder, f"store{i}", *([] if i == 0 else ["--data-dir", os.path.join(folder, f"data{i}")])) for i in range(3)]
    for w in three:
        w.start()
    pair = [Gateway(folder, f"store-gateway{i}", "--peers", ",".join(w.url for w in (three if i else three[::-1]))).start() for i in range(2)]
    started.extend(three + pair)
    for w in three:
        w.wait_ready()
    for g in pair:
        g.wait_workers(3)
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": completion("Once", 2)})
    body, kind = multipart(line)
    code, text, _ = pair[0].ask("POST", "/v1/files", body, kind)
    file = json.loads(text).get("id", "")
    codes = [g.get(f"/v1/files/{file}")[0] for g in pair for _ in range(3)]
    check("a file that was uploaded over one gateway is found over both", code == 200 and codes == [200] * 6, (code, text, codes))
    code, text, _ = pair[1].ask("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})
    batch = json.loads(text).get("id", "")
    end = time.time() + 120
    while time.time() < end and json.loads(pair[0].get(f"/v1/batches/{batch}")[1]).get("status") not in ("completed", "failed"):
        time.sleep(0.1)
    got = json.loads(pair[0].get(f"/v1/batches/{batch}")[1])
    check("a batch runs, and is followed over the other one", code == 200 and got.get("request_counts") == {"total": 1, "completed": 1, "failed": 0}, (code, text, got))
    ids = {json.loads(pair[i % 2].ask("POST", "/v1/completions", {**completion("Two", 2), "durable": True}, {"Idempotency-Key": "k"})[1]).get("id") for i in range(6)}
    check("a durable request with a key is one job, over both", len(ids) == 1 and None not in ids, ids)
    keeper = min(three[1:], key=lambda w: w.url)
    keeper.kill()
    pair[0].wait_state(keeper.url, "failed")
    code, text, _ = pair[0].ask("POST", "/v1/files", body, kind)
    check("nobody stands in for the worker that stores them", code == 503 and "worker_lost" in text, (code, text))
    keeper.start().wait_ready()
    pair[0].wait_state(keeper.url, "ready")
    check("after its restart all are there", pair[0].get(f"/v1/jobs/{ids.pop()}")[0] == 200 and pair[0].get(f"/v1/files/{file}")[0] == 200)
    for p in pair + three:
        p.stop(5)
    bare = Gateway(folder, "bare-gateway", "--peers", workers[0].url).start().wait_workers(1)
    started.append(bare)
    code, text, _ = bare.ask("POST", "/v1/files", body, kind)
    check("without a store in the fleet they are refused by name", code == 503 and "store_unavailable" in text and "--data-dir" in text, (code, text))
    bare.stop(5)


def test_gangs():
    """Workers whose model is divided between two processes: one member is killed in the middle of a stream."""
    pair = [Worker(folder, f"gang{i}", "--max-batch", "1", "--tp", "2").start() for i in range(2)]
    g = Gateway(folder, "gang-gateway", "--peers", ",".join(w.url for w in pair)).start()
    started.extend(pair + [g])
    for w in pair:
        w.wait_ready()
    g.wait_workers(2)
    body = completion(LONG, 200)
    want = texts(pair[0], "/v1/completions", body)[1]
    s = Stream(g, "/v1/completions", body)
    for _ in range(8):
        s.next()
    busy = [x["url"] for x in g.status()["workers"] if x["in_flight"] > 0]
    w = next(w for w in pair if w.url in busy)
    os.kill(w.status()["models"][0]["gang"]["members"][1]["pid"], signal.SIGKILL)
    s.rest()
    check("a stream whose gang lost a member continues with the same text", s.error is None and s.done and s.text == want, (s.error, s.text, want))
    check("it was replayed", g.status()["replays"] == 1, g.status()["replays"])
    w.wait_ready()
    g.wait_state(w.url, "ready")
    check("the gang starts again and serves", texts(w, "/v1/completions", body)[1] == want)
    check("the gateway shows its members", fleet.wait_for(lambda: "tern-tales: 2 members (tp 2, pp 1) on " in g.worker(w.url)["gang"]), g.worker(w.url))
    p = subprocess.run([fleet.TERN, "cluster", "status", "--url", g.url], capture_output=True, text=True, timeout=60)
    check("tern cluster status, too", p.returncode == 0 and p.stdout.count("  gang tern-tales: 2 members") == 2, p)
    for p in [g] + pair:
        p.stop(5)


def test_many_streams_and_kills():
    prompts = [f"{LONG} number {i} was" for i in range(12)]
    want = [texts(workers[0], "/v1/completions", completion(p, 60))[1] for p in prompts]
    got, wrong, stop = [0], [], threading.Event()

    def client(i):
        k = i
        while not stop.is_set():
            p = k % len(prompts)
            try:
                if k % 3:
                    s = Stream(gw, "/v1/completions", completion(prompts[p], 60)).rest()
                    text, error = s.text, s.error or (None if s.status == 200 and s.done else f"status {s.status}")
                else:
                    code, t, _ = gw.ask("POST", "/v1/completions", completion(prompts[p], 60))
                    text, error = (json.loads(t)["choices"][0]["text"], None) if code == 200 else ("", t)
            except Exception as e:
                text, error = "", repr(e)
            got[0] += 1
            if error or text != want[p]:
                wrong.append((p, error, text))
            k += 5

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for i in range(int(os.environ.get("TERN_CLUSTER_KILLS", "3"))):
        time.sleep(float(os.environ.get("TERN_CLUSTER_PAUSE", "1.5")))
        w = workers[i % 3]
        w.kill()
        gw.wait_state(w.url, "failed")
        w.start().wait_ready()
        gw.wait_state(w.url, "ready")
    stop.set()
    for t in threads:
        t.join()
    check(f"{got[0]} requests beside killed workers: all answered, all texts as from one worker", got[0] > 10 and not wrong, wrong[:3])


def test_stopped_worker():
    body = completion(LONG, 300)
    want = texts(workers[0], "/v1/completions", body)[1]
    s = Stream(gw, "/v1/completions", body)
    for _ in range(8):
        s.next()
    w = stream_of(gw)
    w.signal(signal.SIGSTOP)
    try:
        check("a stopped worker is failed", gw.wait_state(w.url, "failed"))
        check("requests go to the others", texts(gw, "/v1/completions", completion("Hi", 4))[0] == 200)
        s.rest()
        check("its stream continues on another worker", s.error is None and s.text == want, (s.error, s.text))
    finally:
        w.signal(signal.SIGCONT)
    check("it is ready again when it goes on", gw.wait_state(w.url, "ready"))


def test_drain_and_weights():
    w = workers[0]
    gw.ask("POST", "/cluster/drain", {"url": w.url})
    check("a drained worker is draining", gw.worker(w.url)["state"] == "draining")
    before = gw.worker(w.url)["requests"]
    for i in range(6):
        gw.ask("POST", "/v1/completions", completion(f"Number {i}", 1))
    check("and gets no requests", gw.worker(w.url)["requests"] == before)
    gw.ask("POST", "/cluster/drain", {"url": w.url, "drain": False})
    check("it is taken back", gw.wait_state(w.url, "ready"))
    code, text, _ = gw.ask("POST", "/cluster/weights", {"url": w.url, "weight": 2.5})
    check("a weight is set", code == 200 and gw.worker(w.url)["weight"] == 2.5, text)
    check("a wrong weight is 400", gw.ask("POST", "/cluster/weights", {"url": w.url, "weight": -1})[0] == 400)
    check("an unknown worker is 404", gw.ask("POST", "/cluster/drain", {"url": "http://none"})[0] == 404)
    gw.ask("POST", "/cluster/weights", {"url": w.url, "weight": 1})


def test_cancel():
    s = Stream(gw, "/v1/completions", completion(LONG, 1500, ignore_eos=True), {"X-Correlation-Id": "to-cancel"})
    s.next()
    code, text, _ = gw.ask("POST", "/v1/requests/to-cancel/cancel", {})
    check("a cancel goes to the worker of the request", code == 200 and json.loads(text)["cancelled"] is True, text)
    s.rest()
    check("the stream ends as cancelled", s.error is not None and s.error.get("code") == "cancelled", (s.error, s.text[-80:]))
    check("a cancel of an unknown id is 404", gw.ask("POST", "/cancel", {"id": "unknown-id"})[0] == 404)
    s = Stream(gw, "/v1/completions", completion(LONG, 1500, ignore_eos=True))
    s.next()
    w = stream_of(gw)
    s.close()
    for _ in range(500):
        if json.loads(w.get("/status")[1])["calls"] == []:
            break
        time.sleep(0.02)
    check("a client that leaves cancels its request on the worker", json.loads(w.get("/status")[1])["calls"] == [], w.get("/status")[1][:300])


def test_keys():
    w = Worker(folder, "keyed", "--cluster-key", "secret", "--api-key", "sk-direct").start().wait_ready()
    g = Gateway(folder, "keyed-gateway", "--peers", w.url, "--cluster-key", "secret", "--api-key-file", KEYS).start()
    started.extend([w, g])
    g_admin = {"Authorization": "Bearer sk-admin"}
    for _ in range(300):
        try:
            if g.get("/ready")[0] == 200:
                break
        except OSError:
            pass
        time.sleep(0.05)
    check("a gateway with keys refuses a request without one", g.ask("POST", "/v1/completions", completion("x", 1))[0] == 401)
    check("a key of the gateway is enough", g.ask("POST", "/v1/completions", completion("x", 1), {"Authorization": "Bearer sk-user"})[0] == 200)
    check("the worker sees the tenant", fleet.logged([w], "alice"))
    check("/status needs an admin", g.get("/status", {"Authorization": "Bearer sk-user"})[0] in (401, 403) and g.get("/status", g_admin)[0] == 200)
    check("the worker refuses a gateway with another cluster key",
          w.ask("POST", "/v1/completions", completion("x", 1), {"X-Tern-Hop": "1", "X-Tern-Cluster-Key": "wrong"})[0] == 401)
    check("and tern_resume of a client is no gateway's", w.ask("POST", "/v1/completions", {**completion("x", 1), "tern_resume": [1]}, {"Authorization": "Bearer sk-direct"})[0] == 200)
    g.stop()
    w.stop()


def test_resume_field():
    hop = {"X-Tern-Hop": "1", "X-Tern-Resume": "2"}
    for name, body, code in (("no list", completion("x", 4), 400), ("a wrong length", {**completion("x", 4), "tern_resume": [1]}, 400),
                             ("not ids", {**completion("x", 4), "tern_resume": ["a", 2]}, 400),
                             ("ids outside the vocabulary", {**completion("x", 4), "tern_resume": [1, 99999999]}, 400),
                             ("several choices", {**completion("x", 4, n=2), "tern_resume": [1, 2]}, 400),
                             ("more than max_tokens", {**completion("x", 1), "tern_resume": [1, 2]}, 400)):
        got = workers[0].ask("POST", "/v1/completions", body, hop)
        check(f"tern_resume with {name} is {code}", got[0] == code and "error" in got[1], got)
    for name, value in (("X-Tern-Seed", "x"), ("X-Tern-Call", "a b"), ("X-Tern-Resume", "-1"), ("X-Tern-Tenant", "a b")):
        got = workers[0].ask("POST", "/v1/completions", completion("x", 1), {"X-Tern-Hop": "1", name: value})
        check(f"a bad {name} is 400", got[0] == 400 and name in got[1], got)


def test_pages_of_listed_origins():
    g = Gateway(folder, "gateway-cors", "--peers", workers[0].url, "--cors-origins", "https://app.example").start()
    started.append(g)
    g.wait_workers(1)
    page, evil = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
    code, _, h = g.ask("OPTIONS", "/v1/completions", None, {**page, "Access-Control-Request-Headers": "x-api-key"})
    h = {k.lower(): v for k, v in dict(h).items()}
    check("a preflight of a listed origin is answered", code == 204 and h.get("access-control-allow-origin") == page["Origin"] and
          "POST" in h.get("access-control-allow-methods", "") and h.get("access-control-allow-headers") == "x-api-key", (code, h))
    code, _, h = g.ask("POST", "/v1/completions", completion("x", 1), page)
    h = {k.lower(): v for k, v in dict(h).items()}
    check("its requests reach a worker", code == 200 and h.get("access-control-allow-origin") == page["Origin"] and h.get("vary") == "Origin", (code, h))
    check("those of others do not", g.ask("POST", "/v1/completions", completion("x", 1), evil)[0] == 403)
    g.stop()


def test_bad_command_lines():
    for args, want in (([], "no workers"), (["--peers", "nonsense"], "not a URL"), (["--peers", "http://127.0.0.1:1 speed=2"], "only weight=W"),
                       (["--peers", "http://127.0.0.1:1", "--ctx", "5"], "flag of tern serve"), (["--peers", "http://127.0.0.1:1", "--policy", "best"], "policy")):
        p = subprocess.run([fleet.TERN, "gateway", "--port", "0", *args], capture_output=True, text=True, timeout=60)
        check(f"tern gateway {' '.join(args) or 'without workers'}: exit 2", p.returncode == 2 and want in p.stderr, p.stderr)
    p = subprocess.run([fleet.TERN, "gateway", "--help"], capture_output=True, text=True, timeout=60)
    check("tern gateway --help lists its flags", p.returncode == 0 and "--peers" in p.stdout and "--kv-type" not in p.stdout)


def test_no_worker():
    g = Gateway(folder, "alone", "--peers", f"http://127.0.0.1:{fleet.free_port()}").start()
    started.append(g)
    for _ in range(200):
        try:
            if g.get("/health")[0] == 200:
                break
        except OSError:
            time.sleep(0.05)
    check("a gateway without a worker is alive and not ready", g.get("/health")[0] == 200 and g.get("/ready")[0] == 503)
    code, text, headers = g.ask("POST", "/v1/completions", completion("x", 1), {"X-Deadline": str(int(time.time() * 1000) + 300)})
    check("its requests end with a typed error", code in (503, 504) and json.loads(text)["error"]["code"] in ("worker_lost", "deadline_exceeded", "deadline"), text)
    g.stop()


try:
    for w in workers:
        w.wait_ready()
    gw.wait_workers(3)
    chosen = sys.argv[2:]
    for name, fn in list(globals().items()):
        if name.startswith("test_") and (not chosen or name in chosen):
            fn()
    check("all processes still run", all(w.p.poll() is None for w in workers + [gw]))
    gw.stop()
    check("the gateway ends with exit code 0", gw.p.returncode == 0, gw.p.returncode)
finally:
    for p in started:
        p.stop(5)
    fleet.print_logs(folder)
sys.exit(fleet.failed)
