"""HTTP clients for the tests: http.client for valid requests, raw sockets for invalid ones."""
import http.client
import json
import os
import re
import socket
import sys
import time
import traceback
from urllib.parse import urlparse

URL = urlparse(os.environ["TERN_URL"])
MESSAGES = [{"role": "user", "content": "Tell me a story about a bird."}]
LONG = {"temperature": 0, "ignore_eos": True, "max_tokens": 3800}


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def ask(method, path, body=None, headers=None, timeout=300):
    c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=timeout)
    data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
    r = c.getresponse()
    a = Answer(r.status, r.headers, r.read())
    c.close()
    return a


def chat(headers=None, **fields):
    return ask("POST", "/v1/chat/completions", {"messages": MESSAGES, **fields}, headers)


def complete(headers=None, **fields):
    return ask("POST", "/v1/completions", {"prompt": "Once upon a time", **fields}, headers)


class Stream:
    """A streamed answer, event by event."""

    def __init__(self, path, body, headers=None):
        self.c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=300)
        self.c.request("POST", path, json.dumps({**body, "stream": True}),
                       {"Content-Type": "application/json", **(headers or {})})
        self.r = self.c.getresponse()
        self.done = False

    def __iter__(self):
        for line in self.r:
            line = line.rstrip(b"\n")
            if not line.startswith(b"data: "):
                assert line == b"" or line.startswith(b":"), line
                continue
            if line == b"data: [DONE]":
                self.done = True
                continue
            assert not self.done, "an event after [DONE]"
            yield json.loads(line[6:])

    def close(self):
        """Closes the connection without reading the rest, like a client that is killed."""
        if self.c.sock:
            self.c.sock.close()
        self.r.close()
        self.c.close()


def stream_chat(headers=None, **fields):
    return Stream("/v1/chat/completions", {"messages": MESSAGES, **fields}, headers)


def raw(data, timeout=120, close_write=False):
    """Sends the bytes and reads until the server closes; returns the first status and all bytes."""
    s = socket.create_connection((URL.hostname, URL.port), timeout=timeout)
    got = b""
    try:
        s.sendall(data)
        if close_write:
            s.shutdown(socket.SHUT_WR)
        while True:
            part = s.recv(65536)
            if not part:
                break
            got += part
    except (ConnectionResetError, BrokenPipeError):
        pass
    except socket.timeout:
        got += b"(timeout)"
    s.close()
    m = re.match(rb"HTTP/1\.[01] (\d+)", got)
    return (int(m.group(1)) if m else None), got


def metrics():
    """/metrics as {'name{labels}': value}"""
    out = {}
    for line in ask("GET", "/metrics").body.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            out[name] = float(value)
    return out


def metric(name):
    return sum(v for k, v in metrics().items() if k == name or k.startswith(name + "{"))


def wait_for(what, check, seconds=60):
    """Waits until check() is true; `what` is for the message."""
    end = time.time() + seconds
    while time.time() < end:
        if check():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def main():
    """Runs every test_* function of the calling file; its name is the name of the test."""
    failed = False
    for name, fn in list(vars(sys.modules["__main__"]).items()):
        if not name.startswith("test_"):
            continue
        try:
            fn()
            print("ok", name[5:], flush=True)
        except Exception as e:
            failed = True
            print(f"not ok {name[5:]}: {type(e).__name__} {e}", flush=True)
            traceback.print_exc()
    sys.exit(failed)
