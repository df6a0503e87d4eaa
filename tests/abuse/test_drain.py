"""Shutting down is visible: the server answers questions about its state, and refuses work with a reason."""
import http.client
import json
import signal
import time

from abuse import ask, complete, run, serve

LONG = {"prompt": "Once upon a time", "n": 16, "max_tokens": 4000, "ignore_eos": True, "stream": True}


class Stream:
    """A streamed answer that runs until it is cancelled."""

    def __init__(self, server, name):
        self.c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        self.c.request("POST", "/v1/completions", json.dumps(LONG), {"X-Correlation-Id": name})
        self.r = self.c.getresponse()
        assert self.r.status == 200
        self.r.readline()

    def rest(self):
        out = self.r.read()
        self.c.close()
        return out


def test_a_draining_server_says_so_and_refuses_work():
    s = serve("--max-seqs", 1, "--drain-timeout", "60s")
    idle = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
    idle.request("GET", "/health")
    idle.getresponse().read()
    stream = Stream(s, "long")
    s.process.send_signal(signal.SIGTERM)
    assert idle.sock.recv(1) == b""                                                  # idle connections are closed first
    assert ask(s, "GET", "/health").status == 200
    for path in ("/ready", "/ready?model=tern-tales"):
        a = ask(s, "GET", path)
        assert a.status == 503 and a.json["reason"] == "shutting_down", (path, a.status, a.body)
    assert ask(s, "GET", "/metrics").status == 200
    a = ask(s, "GET", "/status")
    assert a.status == 200 and a.json["state"] == "draining" and len(a.json["calls"]) == 1, a.body
    for path, body in (("/v1/completions", {"prompt": "Once"}), ("/v1/chat/completions", {"messages": []}),
                       ("/v1/embeddings", {"input": "x"}), ("/execute", {"prompt": "Once"})):
        a = ask(s, "POST", path, body, {"X-Correlation-Id": "late"})
        assert (a.status, a.code) == (503, "shutting_down"), (path, a.status, a.body)
        assert a.headers["Connection"] == "close" and int(a.headers["Retry-After"]) >= 1, a.headers.items()
        assert a.headers["X-Correlation-Id"] == "late" == a.json["error"]["correlation_id"]
    a = ask(s, "GET", "/models/sse")                                                 # would last until its client leaves
    assert (a.status, a.code) == (503, "shutting_down"), a.body
    m = s.metrics()
    assert m['tern_refused_total{reason="shutting_down"}'] == 5 and m["tern_ready"] == 0
    assert m["tern_graceful_shutdown_duration_ms"] > 0
    a = ask(s, "POST", "/cancel", {"id": "long"})
    assert a.status == 200 and a.json["cancelled"], a.body
    stream.rest()
    assert s.process.wait(60) == 0


def test_a_second_signal_ends_the_streams():
    s = serve("--max-seqs", 1, "--drain-timeout", "60s")
    stream = Stream(s, "long")
    s.process.send_signal(signal.SIGTERM)
    while ask(s, "GET", "/ready").status != 503:                                     # until the first signal has arrived
        time.sleep(0.01)
    s.process.send_signal(signal.SIGTERM)
    stream.rest()
    assert s.process.wait(60) == 0


def test_an_idle_server_ends_at_once():
    s = serve()
    assert complete(s).status == 200
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(60) == 0


run(globals())
