"""Invalid requests over raw sockets: status, error object, and whether the connection is kept.

usage: test_http_bad.py HOST PORT    (or TERN_URL in the environment, as tests/api/run sets it)
Slow headers have a server of their own, whose header timeout is short.
"""
import json
import os
import socket
import sys
from urllib.parse import urlparse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import serving  # noqa: E402

if len(sys.argv) > 2:
    ADDR = (sys.argv[1], int(sys.argv[2]))
else:
    ADDR = (urlparse(os.environ["TERN_URL"]).hostname, urlparse(os.environ["TERN_URL"]).port)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
ENVELOPE = {"message", "type", "param", "code", "correlation_id"}
failed = 0


class Reply:
    def __init__(self, status, headers, body, closed):
        self.status, self.headers, self.body, self.closed = status, headers, body, closed

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:300]!r} closed={self.closed}"


def read_reply(s, is_head=False):
    """Reads one reply; after "Connection: close" waits for the end of the connection."""
    f = s.makefile("rb")
    line = f.readline()
    if not line:
        return None
    headers = {}
    while (h := f.readline()) not in (b"\r\n", b""):
        k, v = h.decode("latin-1").rstrip("\r\n").split(":", 1)
        headers[k.lower()] = v.strip()
    n = 0 if is_head else int(headers.get("content-length", 0))
    body = f.read(n)
    closed = False
    if headers.get("connection", "").lower() == "close":
        try:
            closed = f.read(1) == b""
        except ConnectionResetError:
            closed = True
    return Reply(int(line.split()[1]), headers, body, closed)


def send(data, is_head=False):
    with socket.create_connection(ADDR, timeout=120) as s:
        try:
            s.sendall(data)
        except OSError:
            pass                                         # rejected before everything was sent: the reply can be read
        return read_reply(s, is_head)


def request(method, path, body=b"", *headers):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(body)}"]
    return "\r\n".join(head + list(headers) + ["", ""]).encode() + body


def check(name, reply, status, param=None, words=(), closes=None, code=None):
    global failed
    wrong = []
    if reply is None:
        wrong = ["no reply"]
    else:
        if reply.status not in (status if isinstance(status, tuple) else (status,)):
            wrong.append(f"status {reply.status}, not {status}")
        try:
            e = json.loads(reply.body)["error"]
            if set(e) != ENVELOPE:
                wrong.append(f"keys {sorted(e)}")
            if not e.get("message") or not e.get("type") or not e.get("code") or not e.get("correlation_id"):
                wrong.append(f"empty field in {e}")
            if param is not None and e.get("param") != param:
                wrong.append(f"param {e.get('param')!r}, not {param!r}")
            if code is not None and e.get("code") != code:
                wrong.append(f"code {e.get('code')!r}, not {code!r}")
            wrong += [f"no {w!r} in {e['message']!r}" for w in words if w not in e["message"]]
        except (ValueError, KeyError, TypeError):
            wrong.append(f"no error object: {reply.body[:200]!r}")
        if reply.headers.get("content-type", "").split(";")[0] != "application/json":
            wrong.append(f"content type {reply.headers.get('content-type')!r}")
        if closes is not None and reply.closed != closes:
            wrong.append("the connection is kept" if closes else "the connection is closed")
    failed += bool(wrong)
    print(f"not ok {name}: {'; '.join(wrong)}" if wrong else f"ok {name}", flush=True)


def bodies():
    for name, body, words in (
            ("empty", b"", ()),
            ("not json", b"hello", ("line 1",)),
            ("truncated", b'{"messages": [', ("line 1",)),
            ("trailing comma", b'{\n"messages": [],\n}', ("line 3",)),
            ("two values", b'{} {}', ("line 1",)),
            ("an array", b"[]", ()),
            ("a number", b"1", ()),
            ("invalid utf-8", b'{"messages": "\xff\xfe"}', ("line 1",)),
            ("lone surrogate", b'{"messages": "\\ud800"}', ("line 1",)),
            ("nul in a string", b'{"messages": "\\u0000"}', ()),
            ("nul byte", b'{"messages":\x00 1}', ("line 1",)),
            ("duplicate key", b'{"messages": [], "messages": []}', ()),
            ("a huge number", b'{"messages": 1' + b"0" * 400 + b"}", ()),
            ("deep arrays", b"[" * 100000, ()),
            ("deep objects", b'{"a":' * 100000, ()),
            ("deep but complete", b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}", ())):
        for path in (CHAT, TEXT):
            check(f"{path} {name}", send(request("POST", path, body)), 400, words=words, closes=False)
    for path in (CHAT, TEXT, "/tokenize", "/detokenize"):
        check(f"{path} 64 MiB", send(request("POST", path, b" " * (64 << 20))), 413, closes=True)


def http():
    p, h = b"POST /v1/completions HTTP/1.1\r\n", b"Host: localhost\r\n"
    c = p + h + b"Transfer-Encoding: chunked\r\n\r\n"
    for name, data, status in (
            ("huge request line", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n" + h + b"\r\n", 414),
            ("huge header", b"GET / HTTP/1.1\r\n" + h + b"X: " + b"a" * 100000 + b"\r\n\r\n", 431),
            ("many headers", b"GET / HTTP/1.1\r\n" + h + b"X: a\r\n" * 1000 + b"\r\n", 431),
            ("no host", b"GET /health HTTP/1.1\r\n\r\n", 400),
            ("bare line feeds", b"GET /health HTTP/1.1\nHost: localhost\n\n", 400),
            ("folded header", b"GET /health HTTP/1.1\r\n" + h + b"X: a\r\n b\r\n\r\n", 400),
            ("nul in a header", b"GET /health HTTP/1.1\r\n" + h + b"X: \0\r\n\r\n", 400),
            ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
            ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            ("both lengths", p + h + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
            ("two lengths", p + h + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
            ("negative length", p + h + b"Content-Length: -2\r\n\r\n{}", 400),
            ("length not a number", p + h + b"Content-Length: two\r\n\r\n{}", 400),
            ("length beyond 64 bits", p + h + b"Content-Length: 99999999999999999999999\r\n\r\n{}", 413),
            ("unknown transfer coding", p + h + b"Transfer-Encoding: gzip\r\n\r\n", 501),
            ("unknown expectation", p + h + b"Expect: tea\r\nContent-Length: 2\r\n\r\n{}", 417),
            ("chunk size not a number", c + b"xyz\r\n", 400),
            ("negative chunk", c + b"-1\r\n", 400),
            ("huge chunk", c + b"ffffffff\r\n", 413),
            ("chunk beyond 64 bits", c + b"fffffffffffffffffffff\r\n", (400, 413)),
            ("chunk longer than its size", c + b"1\r\n{}\r\n0\r\n\r\n", 400),
            ("endless extension", c + b"1;" + b"a" * 100000, 400),
            ("endless trailers", c + b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 50000, (400, 431)),
            ("nul in the path", b"GET /%00 HTTP/1.1\r\n" + h + b"\r\n", 400)):
        check(name, send(data), status, closes=True)
    if "hard" in os.environ.get("TERN_BUILD", ""):      # 64 MiB, byte by byte, take minutes
        return
    mib = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    check("chunks sum up to 64 MiB", send(c + mib * 64), 413, closes=True)


def paths():
    for method, path, allow in (("GET", CHAT, "POST"), ("GET", TEXT, "POST"),
                                ("DELETE", "/v1/models", "GET"), ("POST", "/health", "GET"),
                                ("PUT", "/tokenize", "POST"), ("PATCH", "/status", "GET"),
                                ("BREW", "/v1/models", "GET")):
        r = send(request(method, path))
        check(f"{method} {path}", r, 405, closes=False)
        check_allow(f"{method} {path}: allow header", r, allow)
    for path in ("/nowhere", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "//v1/models",
                 "/../etc/passwd", "/%2e%2e/etc/passwd", "/V1/models", "/a%20b"):
        check(f"GET {path}", send(request("GET", path)), 404, closes=False)
    check("GET of an unknown model", send(request("GET", "/v1/models/nobody")), 404,
          code="model_not_found", closes=False)
    check("cancel of an unknown id", send(request("POST", "/v1/requests/nobody/cancel")), 404, closes=False)


def check_allow(name, r, allow):
    global failed
    got = [] if r is None else [w.strip() for w in r.headers.get("allow", "").split(",")]
    if allow in got:
        print(f"ok {name}")
    else:
        failed += 1
        print(f"not ok {name}: Allow is {got}")


def fields():
    number, whole, flag = ["x", [], {}, True], ["x", [], {}, 1.5, True], ["x", 1, [], {}]
    both = {"temperature": number + [-1], "top_p": number + [1.1, -0.1], "top_k": whole,
            "min_p": number + [2], "frequency_penalty": number + [3],
            "presence_penalty": number + [-3], "repetition_penalty": number + [-1],
            "seed": ["x", [], {}, 1.5], "n": whole + [0, -1, 100000], "max_tokens": whole + [-2],
            "min_tokens": whole + [-1], "stop": [7, {}, [7], True, ["a", 1]], "stream": flag,
            "ignore_eos": flag, "stream_options": ["x", 1, [], {"include_usage": "x"}],
            "logit_bias": ["x", 1, [1], {"x": 1}, {"1": "x"}], "model": [1, [], {}, True]}
    chat = {**both, "messages": ["x", 1, {}, None, [], [1], [{}], [{"role": 1, "content": "a"}],
                                 [{"role": "nobody", "content": "a"}], [{"role": "user", "content": 1}],
                                 [{"role": "user"}],
                                 [{"role": "user", "content": [{"type": "image_url"}]}]],
            "logprobs": flag, "top_logprobs": whole + [-1, 1000], "max_completion_tokens": whole + [-2]}
    text = {**both, "prompt": [1, {}, True, None, [[]], [1, "x"], ["x", 1], [-1], [10 ** 9], [1.5],
                               [None]],
            "logprobs": ["x", [], {}, 1.5, -1, 1000], "echo": flag}
    for path, base, table in ((CHAT, {"messages": MESSAGES}, chat), (TEXT, {"prompt": "hi"}, text)):
        for field, values in table.items():
            for v in values:
                r = send(request("POST", path, {**base, "max_tokens": 1, field: v}))
                check(f"{path} {field}={json.dumps(v)}", r, 400, closes=False)
                if r and r.status == 400:
                    named = json.loads(r.body)["error"]["param"]
                    if not (named or "").startswith(field):
                        check(f"{path} {field}={json.dumps(v)}: param", r, 400, param=field)
        check(f"{path} unknown model", send(request("POST", path, {**base, "model": "nobody"})), 404,
              param="model")


def one_connection():
    """A connection that is kept after an error carries the next request."""
    with socket.create_connection(ADDR, timeout=120) as s:
        for i, data in enumerate((request("POST", CHAT, b"{"), request("GET", "/nowhere"),
                                  request("GET", CHAT), request("POST", TEXT, {"prompt": 1}))):
            s.sendall(data)
            check(f"kept connection, request {i + 1}", read_reply(s), (400, 404, 405), closes=False)
    with socket.create_connection(ADDR, timeout=120) as s:
        s.sendall(request("POST", CHAT, b"{") + request("GET", "/nowhere") + b"nonsense\r\n\r\n")
        f = b""
        while piece := s.recv(65536):
            f += piece
        ok = [f.count(b"HTTP/1.1 400"), f.count(b"HTTP/1.1 404")] == [2, 1]
        print("ok pipelined errors" if ok else f"not ok pipelined errors: {f[:600]!r}")


def slow():
    server = serving.tern_serve(serving.SHIPPED, "--header-timeout", "500ms")
    for name, data in (("headers", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"),
                       ("request line", b"GET /hea")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as s:
            s.sendall(data)
            check(f"slow {name}", read_reply(s), 408, closes=True)
    code = server.stop()
    print("ok the server with a short header timeout ends" if code == 0 else f"not ok the server with a short header timeout: exit code {code}")


def main():
    for part in (bodies, http, paths, fields, one_connection, slow):
        part()
    r = send(request("GET", "/health"))
    print("ok the server still answers" if r and r.status == 200 else f"not ok the server still answers: {r}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
