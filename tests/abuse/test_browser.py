"""What browsers send for pages of strangers. tests/page/hostile.test.mjs does the same in Chromium."""
import http.client
import json
import os
import socket
import tempfile

from abuse import ask, complete, raw, run, serve

BODY = {"prompt": "Once", "max_tokens": 4}


def counters(server, *reasons):
    m = server.metrics()
    return [m[f'tern_refused_total{{reason="{r}"}}'] for r in reasons]


def submitted(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("tern_requests_submitted_total"))


def post(server, **headers):
    return ask(server, "POST", "/v1/completions", BODY, {k.replace("_", "-"): v for k, v in headers.items()})


def test_a_rebound_name_is_refused_on_every_method_and_path():
    s = serve()
    host = {"Host": f"evil.test:{s.port}"}
    before, work = counters(s, "host_not_allowed")[0], submitted(s)
    cases = [("GET", "/"), ("GET", "/health"), ("HEAD", "/ready"), ("GET", "/v1/models"), ("GET", "/status"), ("GET", "/metrics"), ("GET", "/nowhere"), ("HEAD", "/status"),
             ("OPTIONS", "/v1/completions"), ("POST", "/v1/completions"), ("POST", "/tokenize"), ("POST", "/cancel"), ("DELETE", "/")]
    for method, path in cases:
        a = ask(s, method, path, BODY if method == "POST" else None, {**host, "Origin": f"http://evil.test:{s.port}"})
        assert a.status == 403, (method, path, a.status)
        if method != "HEAD":
            assert a.code == "host_not_allowed" and "--allowed-hosts" in a.json["error"]["message"], a.body
    assert counters(s, "host_not_allowed")[0] == before + len(cases) and submitted(s) == work
    for path in ("/health", "/ready"):                   # pages of others may ask whether a server lives, by its own name
        assert ask(s, "GET", path, headers={"Origin": "http://evil.test"}).status == 200, path


def test_names_of_this_machine_are_accepted():
    s = serve()
    for host in ("localhost", f"localhost:{s.port}", "LOCALHOST.:1", "app.localhost", "127.0.0.1", "127.8.8.8:7", f"[::1]:{s.port}"):
        assert ask(s, "GET", "/v1/models", headers={"Host": host}).status == 200, host
    for host in ("", "localhost.evil.test", "127.0.0.1.evil.test", "[::1", "::1", "2130706433", "10.0.0.1", "a" * 5000):
        a = ask(s, "GET", "/v1/models", headers={"Host": host, "Sec-Fetch-Site": "same-origin"})
        assert a.status in (400, 403), (host, a.status)


def test_a_request_without_a_host_is_no_browsers():
    s = serve()
    assert b" 200 " in raw(s, b"GET /v1/models HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    assert b" 403 " in raw(s, b"GET /v1/models HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n").split(b"\r\n")[0]
    for header in (b"Origin: http://localhost", b"Sec-Fetch-Site: none"):
        got = raw(s, b"GET /v1/models HTTP/1.0\r\n" + header + b"\r\n\r\n")
        assert b" 403 " in got.split(b"\r\n")[0] and b"host_not_allowed" in got, got


def test_pages_of_other_origins_cause_no_work():
    s = serve()
    own = f"http://127.0.0.1:{s.port}"
    before, work = counters(s, "origin_not_allowed")[0], submitted(s)
    foreign = [{"Origin": "http://evil.test"}, {"Origin": "null"}, {"Origin": f"http://127.0.0.1:{s.port + 1}"}, {"Origin": "file://"},
               {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": own, "Sec_Fetch_Site": "cross-site"}]
    for headers in foreign:
        a = post(s, **headers)
        assert (a.status, a.code) == (403, "origin_not_allowed") and "--cors" in a.json["error"]["message"], (headers, a.body)
        for path in ("/v1/models", "/status", "/metrics"):
            a = ask(s, "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            assert (a.status, a.code) == (403, "origin_not_allowed"), (headers, path, a.status)
    assert counters(s, "origin_not_allowed")[0] == before + 4 * len(foreign) and submitted(s) == work
    assert post(s, Content_Type="text/plain", Origin="http://evil.test").status == 403
    assert post(s, Origin=own, Sec_Fetch_Site="same-origin").status == 200
    assert post(s, Sec_Fetch_Site="none").status == 200
    assert ask(s, "GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200            # a link to our page


def test_cors_opens_the_api_to_pages_but_not_to_rebound_names():
    s = serve("--cors")
    assert post(s, Origin="http://evil.test", Sec_Fetch_Site="cross-site").status == 200
    assert ask(s, "OPTIONS", "/v1/completions", headers={"Origin": "http://a"}).status == 204
    a = post(s, Host=f"evil.test:{s.port}", Origin=f"http://evil.test:{s.port}")
    assert (a.status, a.code) == (403, "host_not_allowed"), a.body


def test_pages_of_listed_origins_may_use_the_api():
    s = serve("--cors-origins", "https://app.example, http://localhost:3000,chrome-extension://abcdef")
    for origin in ("https://app.example", "http://localhost:3000", "HTTPS://APP.example", "chrome-extension://abcdef"):
        a = post(s, Origin=origin, Sec_Fetch_Site="cross-site")
        assert a.status == 200 and a.headers["access-control-allow-origin"] == origin and "Origin" in a.headers["vary"], a.headers
        a = ask(s, "OPTIONS", "/v1/completions", headers={"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key",
                                                          "Access-Control-Request-Private-Network": "true"})
        assert a.status == 204 and a.headers["access-control-allow-origin"] == origin and "POST" in a.headers["access-control-allow-methods"], a.headers
        assert a.headers["access-control-allow-headers"] == "x-api-key" and a.headers["access-control-allow-private-network"] == "true"
        assert "access-control-allow-credentials" not in a.headers
    for origin in ("http://app.example", "https://app.example:444", "https://app.example.evil.test", "https://evil.test", "null", "https://localhost:3000", "*"):
        a = post(s, Origin=origin)
        assert (a.status, a.code) == (403, "origin_not_allowed") and "access-control-allow-origin" not in a.headers, (origin, a.headers)
        a = ask(s, "OPTIONS", "/v1/completions", headers={"Origin": origin})
        assert a.status == 403 and "access-control-allow-origin" not in a.headers and "Origin" in a.headers["vary"], (origin, a.headers)
    a = post(s)                                 # no page: a cache must not give its reply to one
    assert a.status == 200 and "access-control-allow-origin" not in a.headers and "Origin" in a.headers["vary"]
    a = post(s, Host=f"evil.test:{s.port}", Origin="https://app.example")
    assert (a.status, a.code) == (403, "host_not_allowed"), a.body
    assert post(serve("--cors-origins", "*"), Origin="https://evil.test").headers["access-control-allow-origin"] == "*"


def test_listed_hosts_are_accepted():
    s = serve("--allowed-hosts", "proxy.example,*.lan:8123")
    assert complete(s, {"Host": "proxy.example:99"}).status == 200
    assert complete(s, {"Host": "box.lan:8123"}).status == 200
    assert complete(s, {"Host": "box.lan:1"}).status == 403
    assert complete(s, {"Host": "evil.test"}).status == 403
    assert complete(serve("--allowed-hosts", "*"), {"Host": "evil.test"}).status == 200


def test_a_server_with_keys_checks_hosts_only_where_they_are_listed():
    key = {"x-api-key": "sk-1"}
    s = serve("--api-key", "sk-1")
    assert complete(s, {"Host": "gateway.example", **key}).status == 200
    assert complete(s, {"Host": "gateway.example"}).status == 401
    s = serve("--api-key", "sk-1", "--allowed-hosts", "gateway.example")
    assert complete(s, {"Host": "gateway.example", **key}).status == 200
    assert complete(s, {"Host": "evil.test", **key}).status == 403


def test_the_unix_socket_is_exempt():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "s")
        serve("--socket", path)
        c = http.client.HTTPConnection("evil.test")
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.connect(path)
        c.request("POST", "/v1/completions", json.dumps(BODY), {"Origin": "http://evil.test"})
        assert c.getresponse().status == 200
        c.close()


run(globals())
