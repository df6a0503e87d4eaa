"""Support of the abuse tests: servers with given flags, clients that misbehave, and "ok"/"not ok" lines.

A test is a function test_NAME() in a file tests/abuse/test_*.py that ends with run(globals()). It starts the servers it needs
with serve(), on loopback. Each case shows that something a client, a file or an operator does stays the matter of one request:
others are answered meanwhile, and the server answers afterwards. Counts are bounded; $TERN_ABUSE=long (make soak) raises them.
Tests assert orders, counts and answers, never times or shares of a processor."""
import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
import tempfile
import traceback

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import serving  # noqa: E402

LONG = os.environ.get("TERN_ABUSE") == "long"
MODEL = serving.SHIPPED
JSON = {"Content-Type": "application/json"}
open_servers, open_folders = [], []


def serve(*flags, model=MODEL):
    """A tern server with these flags. It is stopped after the test, and must end with exit code 0."""
    s = serving.tern_serve(model, *flags)
    open_servers.append(s)
    return s


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]


def ask(server, method, path, body=None, headers=None, timeout=300):
    """One request on a connection of its own. body: bytes, text, or anything that becomes JSON."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    try:
        c.request(method, path, data, {**(JSON if data else {}), **(headers or {})})
        r = c.getresponse()
        return Answer(r.status, r.headers, r.read())
    finally:
        c.close()


def complete(server, headers=None, **fields):
    return ask(server, "POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **fields},
               headers)


@contextlib.contextmanager
def data_dir():
    """A folder for servers to write to: it is removed after they have stopped, which is after the test."""
    d = tempfile.mkdtemp()
    open_folders.append(d)
    yield d


def raw(server, data, timeout=300):
    """Sends bytes and returns everything that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as s:
        s.sendall(data)
        out = b""
        while True:
            part = s.recv(65536)
            if not part:
                return out
            out += part


def run(names):
    """Runs every test_* of a file. A file exits with 1 if a test failed."""
    failed = False
    for name, test in list(names.items()):
        if not name.startswith("test_") or not callable(test):
            continue
        try:
            test()
            for s in open_servers:
                log = s.log_tail(4000)
                code = s.stop()
                assert code == 0, f"the server exited with {code}:\n{log}"
            print(f"ok {name[5:]}", flush=True)
        except BaseException as e:                       # also SystemExit of a server that did not start
            failed = True
            print(f"not ok {name[5:]}: {type(e).__name__} {str(e)[:600]}", flush=True)
            traceback.print_exc(file=sys.stdout)
            for s in open_servers:
                if s.process.poll() is None:
                    print(s.log_tail(1500))
                    s.process.kill()
                    s.process.wait()
        open_servers.clear()
        for d in open_folders:
            shutil.rmtree(d)
        open_folders.clear()
    sys.exit(1 if failed else 0)
