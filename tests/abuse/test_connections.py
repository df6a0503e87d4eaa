"""The limit of connections means what it says, and fits the limit of open files."""
import http.client
import os
import resource
import socket
import subprocess
import time

from abuse import LONG, MODEL, ask, complete, run, serve, serving


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=300)


def keep(server):
    """An idle keep-alive connection."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    c.request("GET", "/health")
    c.getresponse().read()
    return c


def busy(server):
    """A connection in the middle of a request."""
    s = connect(server)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    return s


def wait_open(server, n):
    """Until the server has read the first bytes of all n connections: /status counts itself as well."""
    for _ in range(2000):
        if ask(server, "GET", "/metrics").status == 503:
            return
    raise AssertionError(f"{n} connections do not fill the server")


def test_idle_connections_make_room():
    s = serve("--max-connections", 8)
    clients = [keep(s) for _ in range(500 if LONG else 50)]
    for _ in range(20):
        assert complete(s).status == 200
    m = s.metrics()
    assert m["tern_connections_refused_total"] == 0 and m["tern_connections_closed_idle_total"] >= 42, m
    clients[-1].close()


def test_a_full_server_refuses_and_answers_health_checks():
    s = serve("--max-connections", 8, "--body-timeout", "60s")
    clients = [busy(s) for _ in range(8)]
    wait_open(s, 8)
    for i in range(20):
        a = ask(s, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 4}, {"X-Correlation-Id": f"c-{i}"})
        assert (a.status, a.code) == (503, "too_many_connections"), (a.status, a.body)
        assert a.headers["Retry-After"] and a.headers["X-Correlation-Id"] == f"c-{i}" == a.json["error"]["correlation_id"]
        for path in ("/health", "/ready", "/ready?model=tern-tales"):
            assert ask(s, "GET", path).status == 200, path
    silent = [connect(s) for _ in range(500 if LONG else 100)]
    assert ask(s, "GET", "/health").status == 200
    for c in clients + silent:
        c.close()
    while ask(s, "GET", "/metrics").status != 200:       # the server has yet to see that they left
        time.sleep(0.01)
    m = s.metrics()
    assert m['tern_refused_total{reason="too_many_connections"}'] >= 20, m
    assert complete(s).status == 200


def test_refused_uploads_take_no_slots():
    s = serve("--max-connections", 16, "--max-body", "1M")
    idle = keep(s)
    lingering = []
    for _ in range(200 if LONG else 40):                 # each is answered, and its client neither sends the body nor leaves
        c = connect(s)
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n{")
        assert c.recv(12) == b"HTTP/1.1 413"
        lingering.append(c)
    assert s.metrics()["tern_connections_closed_idle_total"] == 0
    idle.request("GET", "/health")                       # on the connection of before
    assert idle.getresponse().status == 200
    for c in lingering:
        c.close()


def test_the_oldest_connection_may_be_the_last_to_linger():
    s = serve("--max-connections", 16, "--max-body", "1M")
    upload = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n{"
    oldest = connect(s)
    oldest.sendall(upload[:10])                          # in the middle of a head: neither idle nor lingering
    lingering = [connect(s) for _ in range(12)]          # more than half of the slots
    for c in lingering:
        c.sendall(upload)
        assert c.recv(12) == b"HTTP/1.1 413"
    oldest.sendall(upload[10:])
    assert oldest.recv(12) == b"HTTP/1.1 413"
    assert ask(s, "GET", "/health").status == 200
    for c in lingering + [oldest]:
        c.close()


def test_the_limit_of_open_files_is_raised_and_fitted():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = serving.Server(["prlimit", "--nofile=64:200", serving.TERN, "serve", "-m", MODEL, "--log-level", "warn"])
    try:
        limits = open(f"/proc/{server.process.pid}/limits").read()
        assert "Max open files            200 " in limits, limits
        j = ask(server, "GET", "/status").json
        fits = j["connections"]["max"]
        assert 64 < fits < 136 and j["limits"]["max_connections"] == fits and j["settings"]["max-connections"]["value"] == 1024, j["limits"]
        assert "room for" in server.log_tail() and "ulimit -n" in server.log_tail(), server.log_tail()
        clients = [busy(server) for _ in range(fits)]
        wait_open(server, fits)
        assert ask(server, "GET", "/health").status == 200
        assert "accept:" not in server.log_tail(), server.log_tail()     # never out of descriptors
        for c in clients:
            c.close()
    finally:
        assert server.stop() == 0
    out = subprocess.run(["prlimit", "--nofile=64:64", serving.TERN, "serve", "-m", MODEL, "--port", "0"], capture_output=True,
                         text=True, timeout=300)
    assert out.returncode == 2 and "ulimit -n" in out.stderr, out.stderr


def test_a_server_without_descriptors_goes_on_when_it_has_some():
    s = serve("--max-connections", 100)
    pid = s.process.pid
    idle = keep(s)
    n = len(os.listdir(f"/proc/{pid}/fd"))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (n, hard))
    clients = [busy(s) for _ in range(10)]               # in the backlog, but for the one that takes the place of `idle`
    assert idle.sock.recv(1) == b""
    for c in clients:
        c.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert complete(s).status == 200
    assert 1 <= s.log_tail(100000).count("accept:") < 50


run(globals())
