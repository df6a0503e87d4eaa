"""Every refusal is counted under its reason where it is answered: sends each, and reads the counter before and after."""
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from abuse import MODEL, ask, data_dir, open_servers, raw, run, serve, serving

ONCE = {"prompt": "Once", "max_tokens": 4}
seen = set()                                            # reasons that some test provoked


def counts(server, key=None):
    m = {}
    for line in ask(server, "GET", "/metrics", headers={"x-api-key": key} if key else None).body.decode().splitlines():
        if line.startswith("tern_refused_total{"):
            m[line.split('"')[1]] = int(line.split()[-1])
    return m


class counted:
    """The block adds exactly n to the counter of the reason, and nothing to the others."""

    def __init__(self, server, reason, n=1, key=None):
        self.server, self.reason, self.n, self.key = server, reason, n, key

    def __enter__(self):
        self.before = counts(self.server, self.key)

    def __exit__(self, kind, *_):
        if kind:
            return
        after = counts(self.server, self.key)
        grown = {r: after[r] - self.before[r] for r in after if after[r] != self.before[r]}
        assert grown == {self.reason: self.n}, f"{self.reason}: {grown}"
        seen.add(self.reason)


def check(a, status, code):
    assert (a.status, a.code) == (status, code), (a.status, a.body[:300])
    assert a.headers["X-Correlation-Id"] == a.json["error"]["correlation_id"]


def check_raw(server, data, status, code):
    got = raw(server, data)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), got
    assert json.loads(body)["error"]["code"] == code and b"x-correlation-id: " in head.lower(), got


def post(server, body=ONCE, path="/v1/completions", **headers):
    return ask(server, "POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})


def test_requests_that_are_wrong():
    s = serve("--max-body", "64KiB", "--max-header", "4KiB", "-c", 256)
    with counted(s, "host_not_allowed"):
        check(post(s, Host="evil.test"), 403, "host_not_allowed")
    with counted(s, "origin_not_allowed"):
        check(post(s, Origin="http://evil.test"), 403, "origin_not_allowed")
    with counted(s, "invalid_request", 3):
        check(post(s, b"{"), 400, "invalid_request")
        check(post(s, {"prompt": 5}), 400, "invalid_request")
        check_raw(s, b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_request")
    with counted(s, "not_found"):
        check(ask(s, "GET", "/nowhere"), 404, "not_found")
    with counted(s, "method_not_allowed"):
        check(ask(s, "DELETE", "/v1/completions"), 405, "method_not_allowed")
    with counted(s, "model_not_found", 2):
        check(post(s, {**ONCE, "model": "other"}), 404, "model_not_found")
        check(ask(s, "GET", "/v1/models/other"), 404, "model_not_found")
    with counted(s, "context_exceeded"):
        check(post(s, {"prompt": "Once " * 1000}), 400, "context_length_exceeded")
    with counted(s, "request_too_large"):
        check(post(s, b" " * 70_000), 413, "request_too_large")
    with counted(s, "headers_too_large", 2):
        check_raw(s, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000 + b"\r\n\r\n", 431, "headers_too_large")
        check_raw(s, b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n", 414, "headers_too_large")
    with counted(s, "deadline_exceeded"):
        check(post(s, X_Deadline="1000"), 504, "deadline_exceeded")


def test_a_request_that_comes_too_slowly():
    s = serve("--header-timeout", "2s", "-c", 256)
    before = counts(s)["request_timeout"]
    check_raw(s, b"GET / HTTP/1.1\r\n", 408, "request_timeout")
    assert counts(s)["request_timeout"] == before + 1
    seen.add("request_timeout")


def test_keys_and_limits_of_a_tenant():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("sk-adm name=root admin\nsk-one name=one rate=1/min\nsk-two name=two concurrency=1\n")
        f.flush()
        s = serve_as("sk-adm", "--api-key-file", f.name)
    with counted(s, "unauthorized", 3, "sk-adm"):
        check(post(s), 401, "unauthorized")
        check(post(s, x_api_key="sk-wrong"), 401, "unauthorized")
        check(ask(s, "GET", "/status", headers={"x-api-key": "sk-one"}), 401, "unauthorized")
    assert post(s, x_api_key="sk-one").status == 200
    with counted(s, "rate_limited", 1, "sk-adm"):
        check(post(s, x_api_key="sk-one"), 429, "rate_limited")
    stream = hold(s, "sk-two")
    with counted(s, "concurrency_limit", 1, "sk-adm"):
        check(post(s, x_api_key="sk-two"), 429, "concurrency_limit")
    stream.close()


def serve_as(key, *flags):
    s = serving.Server([serving.TERN, "serve", "-m", MODEL, "--log-level", "warn", *flags], ready="/ready")
    open_servers.append(s)
    return s


def hold(server, key=""):
    """A stream that runs until its connection is closed."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    c.request("POST", "/v1/completions", json.dumps({**ONCE, "n": 16, "max_tokens": 4000, "ignore_eos": True, "stream": True}),
              {"x-api-key": key})
    r = c.getresponse()
    assert r.status == 200, r.read()
    r.readline()
    return c


def test_a_full_queue_and_full_memory():
    s = serve("--max-seqs", 1, "--max-requests", 16)
    stream = hold(s)
    with counted(s, "queue_full"):
        check(post(s), 429, "queue_full")
    stream.close()
    s = serve("-c", 4096, "--kv-tokens", 4096, "--kv-overcommit", 1)
    with counted(s, "memory_admission"):
        check(post(s, {"prompt": [5] * 2500, "n": 2}), 429, "memory_admission")      # the second has no room beside the first


def upload(server, n):
    """A connection that has announced a body of n bytes and sent one of them."""
    c = socket.create_connection(("127.0.0.1", server.port))
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{" % n)
    return c


def test_too_many_connections():
    s = serve("--max-connections", 2, "--body-timeout", "60s")
    before = counts(s)["too_many_connections"]
    clients = [upload(s, 100) for _ in range(2)]
    refused = 0
    while refused < 3:                                   # until the server has read the first bytes of both, and then
        a = post(s)
        if a.status != 200:
            check(a, 503, "too_many_connections")
            refused += 1
    for c in clients:
        c.close()
    while (a := ask(s, "GET", "/metrics")).status != 200:
        check(a, 503, "too_many_connections")
        refused += 1
    assert counts(s)["too_many_connections"] == before + refused
    seen.add("too_many_connections")


def test_too_many_bytes_of_bodies():
    for reason, status, flags in (("too_many_bodies", 503, ()), ("body_bytes_limit", 429, ("--max-tenant-bodies", "1M"))):
        s = serve("--max-bodies", "2M", "--body-timeout", "60s", *flags)
        clients = [upload(s, 900_000) for _ in range(2 if status == 503 else 1)]
        while ask(s, "GET", "/status").json["connections"]["open"] < len(clients) + 1:
            time.sleep(0.01)
        before = counts(s)[reason]
        refused = 0
        while refused < 2:                               # until the server has read their heads, and then
            a = post(s, b" " * 900_000)
            if a.status != 400:                          # an empty body
                check(a, status, reason)
                refused += 1
        assert counts(s)[reason] == before + refused
        seen.add(reason)
        for c in clients:
            c.close()


def test_too_many_who_watch_the_models():
    s = serve("--max-watchers", "1")
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
    c.request("GET", "/models/sse")
    assert c.getresponse().readline().startswith(b"data: ")
    with counted(s, "too_many_watchers"):
        check(ask(s, "GET", "/models/sse"), 503, "too_many_watchers")
    c.close()


def test_too_many_who_watch_the_models_with_one_key():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("sk-adm name=root admin\nsk-one name=one\nsk-two name=two\n")
        f.flush()
        s = serve_as("sk-adm", "--api-key-file", f.name, "--max-watchers", "2")

    def watch(key):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        c.request("GET", "/models/sse", headers={"x-api-key": key})
        assert c.getresponse().readline().startswith(b"data: ")
        return c

    one = watch("sk-one")
    with counted(s, "watchers_limit", 1, "sk-adm"):
        check(ask(s, "GET", "/models/sse", headers={"x-api-key": "sk-one"}), 429, "watchers_limit")
    two = watch("sk-two")                                # the other half is for others
    with counted(s, "too_many_watchers", 1, "sk-adm"):
        check(ask(s, "GET", "/models/sse", headers={"x-api-key": "sk-adm"}), 503, "too_many_watchers")
    one.close()
    two.close()


def test_a_model_that_loads():
    """Models are loaded one after the other: with enough of them, even a slow client asks for the last one early."""
    for n in (12, 24, 48, 96):
        models = [x for i in range(n) for x in ("-m", MODEL, "-a", f"m{i}")]
        s = serving.Server([serving.TERN, "serve", *models, "-c", "256", "--log-level", "warn"], ready="/health")
        open_servers.append(s)
        before = counts(s)["model_loading"]
        a = post(s, {**ONCE, "model": f"m{n - 1}"})
        if a.status == 503:
            break
    check(a, 503, "model_loading")
    assert counts(s)["model_loading"] == before + 1
    seen.add("model_loading")


def test_a_model_that_failed():
    with data_dir() as d:
        bad = os.path.join(d, "bad.gguf")
        with open(bad, "wb") as f:
            f.write(b"GGUF")
        s = serve_as("", "-m", bad, "--ready", "any")
        while ask(s, "GET", "/ready?model=bad").json["status"] == "loading":
            time.sleep(0.02)
    with counted(s, "model_failed"):
        check(post(s, {**ONCE, "model": "bad"}), 500, "model_load_failed")


def test_a_model_that_is_damaged():
    with data_dir() as d:
        path = os.path.join(d, "other.gguf")
        shutil.copy(MODEL, path)
        s = serve("-m", path)
        os.truncate(path, os.path.getsize(path) // 2)
        while post(s, {**ONCE, "model": "other"}).status == 200:
            time.sleep(0.01)
        while ask(s, "GET", "/ready?model=other").status == 200:
            time.sleep(0.01)
        with counted(s, "model_damaged"):
            check(post(s, {**ONCE, "model": "other"}), 500, "model_damaged")


def test_draining():
    s = serve("--max-seqs", 1)
    stream = hold(s)
    s.process.send_signal(signal.SIGTERM)
    while ask(s, "GET", "/ready").status != 503:         # until the signal has arrived
        time.sleep(0.01)
    with counted(s, "shutting_down"):
        check(post(s), 503, "shutting_down")
    stream.close()
    assert s.process.wait(60) == 0


def upload_file(server, data):
    parts = b"".join(b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % p for p in (
        (b"purpose", b"", b"batch"), (b"file", b'; filename="a.jsonl"', data)))
    return ask(server, "POST", "/v1/files", parts + b"--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"})


def test_jobs_that_cannot_be_stored():
    job = {**ONCE, "durable": True}
    with data_dir() as d:
        s = serve("--data-dir", d)
        path = "/v1/jobs/" + post(s, job).json["id"]
        while ask(s, "GET", path).json["status"] != "completed":
            time.sleep(0.02)
        with counted(s, "conflict"):
            check(post(s, b"", path + "/cancel"), 409, "conflict")
        other = serve("--data-dir", d)
        with counted(other, "store_unavailable"):
            check(post(other, job), 503, "store_unavailable")
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))    # no file may grow beyond this: a full disk
        with counted(s, "disk_full"):
            check(upload_file(s, b"{}\n" * 50_000), 507, "disk_full")
        assert post(s).status == 200


def test_jobs_in_a_folder_that_cannot_be_written():
    """Root without its right to write everywhere is refused as any other user is."""
    drop = ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"] if os.geteuid() == 0 else []
    with data_dir() as d:
        s = serving.Server([*drop, serving.TERN, "serve", "-m", MODEL, "--log-level", "warn", "--data-dir", d + "/jobs"])
        open_servers.append(s)
        os.chmod(d, 0o555)                               # a server does not start with such a folder
        with counted(s, "read_only"):
            check(post(s, {**ONCE, "durable": True}), 503, "read_only")
        os.chmod(d, 0o755)


def test_a_process_that_dies_with_its_request():
    """The request is given to the next process once; it is killed, too, as are later ones."""
    s = serve("--isolate")
    model = lambda: ask(s, "GET", "/status").json["models"][0]  # noqa: E731
    with counted(s, "worker_lost"), ThreadPoolExecutor() as threads:
        answer = threads.submit(post, s, {**ONCE, "n": 16, "max_tokens": 4000, "ignore_eos": True})
        killed = {None}
        while not answer.done():
            m = model()
            if m["state"] == "ready" and m["pid"] not in killed and ask(s, "GET", "/status").json["calls"]:
                os.kill(m["pid"], signal.SIGKILL)
                killed.add(m["pid"])
            time.sleep(0.02)
        check(answer.result(), 503, "worker_lost")


def test_every_reason_was_seen():
    """But for out_of_memory, which needs a failed allocation (tests/fault), failures of devices, and other: codes that the list
    lacks."""
    s = serve()
    assert set(counts(s)) - seen == {"out_of_memory", "device_failed", "device_oom", "other"}, set(counts(s)) - seen
    assert counts(s)["other"] == 0


run(globals())
