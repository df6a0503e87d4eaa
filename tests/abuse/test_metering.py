"""Everything that computes counts against the rate, the concurrency and the bytes of its tenant, and each refusal under its reason."""
import http.client
import json
import os
import socket
import tempfile
import time

from abuse import JSON, ask, data_dir, raw, run, serve

PATHS = ["/tokenize", "/detokenize", "/v1/embeddings", "/v1/classify", "/classify", "/v1/completions", "/v1/chat/completions",
         "/execute", "/v2/execute"]


def serve_keys(lines, *flags):
    """A server with these keys and that of an admin."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("\n".join([*lines, "sk-admin name=admin admin"]) + "\n")
        f.flush()
        os.chmod(f.name, 0o600)
        return serve("--api-key-file", f.name, *flags)


def key(name):
    return {"Authorization": f"Bearer sk-{name}"}


def counter(server, begin):
    """The value of the series whose line begins so."""
    for line in ask(server, "GET", "/metrics", headers=key("admin")).body.decode().splitlines():
        if line.startswith(begin):
            return float(line.split()[-1])
    raise AssertionError(f"no counter {begin}")


def refused(server, reason):
    return counter(server, f'tern_refused_total{{reason="{reason}"}}')


def assert_refused(server, answer, code):
    """The answer is a 429 of this code, with Retry-After."""
    assert (answer.status, answer.code) == (429, code), (answer.status, answer.body)
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json["error"]["type"] == "rate_limit_error"


def test_every_path_that_computes_counts_against_the_rate():
    s = serve_keys([f"sk-{i} name=t{i} rate=1/min" for i in range(len(PATHS))])
    for i, path in enumerate(PATHS):
        body = {"content": "a", "tokens": [1], "input": "a", "prompt": "a", "max_tokens": 1,
                "messages": [{"role": "user", "content": "a"}]}
        assert ask(s, "POST", path, body, key(i)).status in (200, 400), path
        assert_refused(s, ask(s, "POST", path, body, key(i)), "rate_limited")
        assert refused(s, "rate_limited") == i + 1
    assert ask(s, "GET", "/v1/models", headers=key(0)).status == 200
    assert ask(s, "POST", "/cancel", {"id": "none"}, key(0)).status == 404


def test_tokenize_counts_against_the_concurrency():
    s = serve_keys(["sk-one name=one concurrency=1"])
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
    c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}),
              {**JSON, **key("one")})
    c.getresponse().readline()
    assert_refused(s, ask(s, "POST", "/tokenize", {"content": "a"}, key("one")), "concurrency_limit")
    assert refused(s, "concurrency_limit") == 1
    c.sock.close()
    for _ in range(6000):
        if ask(s, "POST", "/tokenize", {"content": "a"}, key("one")).status == 200:
            return
        time.sleep(0.01)
    raise AssertionError("the place was not given back")


def begin_upload(server, name, n, sent, path="/tokenize"):
    """A request whose body has n bytes, of which `sent` are sent."""
    c = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-{name}\r\nContent-Length: {n}\r\n\r\n".encode())
    c.sendall(b" " * sent)
    return c


def tokenize(server, n, name):
    return ask(server, "POST", "/tokenize", b'{"content":"a"}' + b" " * (n - 15), key(name))


def test_bodies_in_flight_count_against_the_bytes_of_their_tenant():
    s = serve_keys(["sk-a name=a", "sk-b name=b"], "--max-tenant-bodies", "1M")
    c = begin_upload(s, "a", 900_000, 10)                 # the length counts, not what has come of it
    for _ in range(6000):
        a = tokenize(s, 200_000, "a")
        if a.status != 200:
            break
        time.sleep(0.01)
    assert_refused(s, a, "body_bytes_limit")
    assert "1048576" in a.json["error"]["message"]
    assert_refused(s, tokenize(s, 150_000, "a"), "body_bytes_limit")
    assert refused(s, "body_bytes_limit") == 2
    assert tokenize(s, 1000, "a").status == 200          # there is room for a small one,
    assert tokenize(s, 900_000, "b").status == 200       # and for those of others
    c.close()
    for _ in range(6000):
        if tokenize(s, 900_000, "a").status == 200:
            return
        time.sleep(0.01)
    raise AssertionError("the bytes were not given back")


def test_many_refused_bodies_of_a_tenant_are_held_before_the_answer():
    """Each is answered in the end, and other tenants wait for nothing."""
    s = serve_keys(["sk-a name=a", "sk-b name=b"], "--max-tenant-bodies", "1M")
    begun = begin_upload(s, "a", 900_000, 10)
    for _ in range(6000):
        if tokenize(s, 200_000, "a").status == 429:
            break
        time.sleep(0.01)
    for _ in range(200):                                  # until there are enough in one second
        uploads = [begin_upload(s, "a", 200_000, 0) for _ in range(50)]
        assert tokenize(s, 900_000, "b").status == 200
        for c in uploads:
            assert c.recv(65536).startswith(b"HTTP/1.1 429 ")
            c.close()
        if counter(s, "tern_bodies_held_total ") > 0:
            break
    else:
        raise AssertionError("none was held")
    begun.close()


def test_a_chunked_body_is_counted_as_it_comes():
    s = serve_keys(["sk-a name=a"], "--max-tenant-bodies", "1M")
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-a\r\nTransfer-Encoding: chunked\r\n\r\n"
    got = raw(s, head + b"80000\r\n" + b" " * 0x80000 + b"\r\n80001\r\n" + b" " * 0x80001 + b"\r\n0\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 429 ") and b"body_bytes_limit" in got and b"Retry-After" in got, got[:600]
    assert refused(s, "body_bytes_limit") == 1


def test_a_large_body_is_not_read_where_the_headers_say_enough():
    s = serve_keys(["sk-a name=a rate=1/min", "sk-b name=b"], "--max-bodies", "8M")
    assert ask(s, "POST", "/tokenize", {"content": "a"}, key("a")).status == 200

    def answer(name, path="/tokenize", n=3_000_000):      # no byte of the body is sent
        c = begin_upload(s, name, n, 0, path)
        got = b""
        while part := c.recv(65536):
            got += part
        return got
    got = answer("a")
    assert got.startswith(b"HTTP/1.1 429 ") and b"rate_limited" in got and b"Connection: close" in got, got[:600]
    assert answer("none").startswith(b"HTTP/1.1 401 ")
    assert answer("b", n=5_000_000).startswith(b"HTTP/1.1 429 ")      # more than half of max-bodies
    assert answer("b", "/nothing").startswith(b"HTTP/1.1 404 ")
    assert answer("b", "/health").startswith(b"HTTP/1.1 405 ")
    assert answer("b", "/cancel").startswith(b"HTTP/1.1 413 ")
    assert refused(s, "rate_limited") == 1 and refused(s, "body_bytes_limit") == 1 and refused(s, "unauthorized") == 1
    kept = [begin_upload(s, "b", 3_000_000, 0), begin_upload(s, "admin", 3_000_000, 0)]
    for _ in range(6000):
        got = answer("admin")
        if b"too_many_bodies" in got:
            break
        time.sleep(0.01)
    assert got.startswith(b"HTTP/1.1 503 ") and b"too_many_bodies" in got, got[:600]
    for c in kept:
        c.close()


def test_a_full_queue_refuses_at_once():
    """The last byte of six bodies is sent at the same time: one body is read, one waits. A client that is stalled meanwhile tries again."""
    s = serve_keys(["sk-a name=a"], "--request-queue", "2")
    body = b'{"prompt":[' + b"1, " * 300_000 + b"1]}"
    got = []
    while len({x[0] for x in got}) < 2 and len(got) < 6 * 50:
        opened = []
        for _ in range(6):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
            c.request("POST", "/v1/completions", body[:-1], {**JSON, **key("a"), "Content-Length": str(len(body))})
            opened.append(c)
        for c in opened:
            c.send(body[-1:])
        got += [(r.status, json.loads(r.read())["error"]["code"], r.headers["Retry-After"]) for r in (c.getresponse() for c in opened)]
    assert set(got) == {(400, "context_length_exceeded", None), (429, "queue_full", "1")}, got
    assert refused(s, "queue_full") == sum(x[0] == 429 for x in got)


def test_unknown_fields_are_logged_once():
    os.environ["TERN_SERVE_LOG"] = "debug"
    try:
        s = serve()
    finally:
        del os.environ["TERN_SERVE_LOG"]
    for _ in range(3):
        a = ask(s, "POST", "/tokenize", {"content": "a", "x_thing": 1, "y_thing": 2})
        assert a.status == 200 and a.headers["x-tern-ignored-fields"] == "x_thing, y_thing"
    log = s.log_tail(100_000)
    assert log.count("'x_thing'") == 1 and log.count("'y_thing'") == 1, log


def test_paths_that_are_not_metered_take_small_bodies_only():
    """They are parsed by the event loop, and whoever is at a limit may still cancel."""
    s = serve_keys(["sk-one name=one rate=1/min"])
    paths = ["/cancel", "/v1/requests/x/cancel", "/api/show", "/api/copy", "/models/load", "/models/unload", "/api/v1/models/load",
             "/api/v1/models/unload", "/v1/batches", "/v1/batches/x/cancel", "/v1/jobs/x/cancel", "/sleep", "/wake_up",
             "/v1/responses/x/cancel"]
    for i, path in enumerate(paths):
        a = ask(s, "POST", path, b'{"id":"x","a":[%s1]}' % (b"1," * 8192), key("admin"))
        assert a.status == 413 and b"takes no large body" in a.body, (path, a.body)
        assert refused(s, "request_too_large") == i + 1
        assert ask(s, "POST", path, b"[" * 10_000, key("one")).status in (200, 400, 401, 404), path


def start_batch(server, name, n, **body):
    """The id of a batch of n lines."""
    lines = "".join(json.dumps({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions",
                                "body": {"prompt": f"Once {i}", **body}}) + "\n" for i in range(n))
    form = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"{more}\r\n\r\n{v}\r\n' for k, more, v in (
        ("purpose", "", "batch"), ("file", '; filename="a.jsonl"', lines)))
    a = ask(server, "POST", "/v1/files", form + "--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x", **key(name)})
    a = ask(server, "POST", "/v1/batches", {"input_file_id": a.json["id"], "endpoint": "/v1/completions",
                                            "completion_window": "24h"}, key(name))
    return a.json["id"]


def batch(server, name, id):
    return ask(server, "GET", f"/v1/batches/{id}", headers=key(name)).json


def jobs(server):
    return ask(server, "GET", "/status", headers=key("admin")).json["jobs"]


def test_lines_of_a_batch_wait_for_the_concurrency_of_their_tenant():
    """One place of two is left to live requests."""
    with data_dir() as d:
        s = serve_keys(["sk-one name=one concurrency=2"], "--data-dir", d)
        id = start_batch(s, "one", 6, max_tokens=200, ignore_eos=True)
        most = 0
        while (b := batch(s, "one", id))["status"] not in ("completed", "failed"):
            most = max(most, jobs(s)["lines_running"])
            assert ask(s, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, key("one")).status == 200
        assert most <= 1, most
        assert (b["status"], b["request_counts"]) == ("completed", {"total": 6, "completed": 6, "failed": 0}), b


def test_lines_of_a_batch_wait_for_the_rate_of_their_tenant():
    """Two a minute, of which one is left to live requests: lines that have to wait neither fail nor are lost."""
    with data_dir() as d:
        begin = time.monotonic()
        s = serve_keys(["sk-one name=one rate=2/min", "sk-two name=two"], "--data-dir", d)
        id = start_batch(s, "one", 30, max_tokens=1)
        while not batch(s, "one", id)["request_counts"]["completed"]:
            time.sleep(0.02)
        assert ask(s, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, key("one")).status == 200
        other = start_batch(s, "two", 30, max_tokens=1)      # another tenant goes on
        while batch(s, "two", other)["status"] != "completed":
            time.sleep(0.02)
        n = batch(s, "one", id)["request_counts"]
        assert 1 <= n["completed"] <= 1 + (time.monotonic() - begin) / 30 and n["failed"] == 0, n
        assert refused(s, "rate_limited") == 0
        ask(s, "POST", f"/v1/batches/{id}/cancel", b"", key("one"))


def test_durable_requests_wait_for_the_concurrency_of_their_tenant():
    """Those of another tenant do not wait for them, however many there are before."""
    with data_dir() as d:
        s = serve_keys(["sk-one name=one concurrency=2", "sk-two name=two"], "--data-dir", d)
        ids = []
        for i in range(60):                              # more than the server has in memory at a time
            a = ask(s, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "durable": True}, key("one"))
            assert a.status == 202, a.body
            ids.append(a.json["id"])
        assert jobs(s)["durable_running"] <= 1
        a = ask(s, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "durable": True}, key("two"))
        while ask(s, "GET", a.headers["Location"], headers=key("two")).json["status"] == "queued":
            assert jobs(s)["durable_running"] <= 2
        queued = ask(s, "GET", "/v1/jobs?limit=100", headers=key("one")).json["data"]
        assert sum(j["status"] == "queued" for j in queued) > 10, len(queued)
        for j in ids:
            ask(s, "POST", f"/v1/jobs/{j}/cancel", b"", key("one"))


run(globals())
