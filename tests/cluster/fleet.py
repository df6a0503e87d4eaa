"""Workers, gateways and a NATS server for tests of the gateway: processes on loopback ports, or on hosts that are
network namespaces joined by a bridge (hosts.py)."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

TERN = os.path.join(os.environ.get("TERN_BUILD", "build"), "tern")
MODEL = os.environ.get("TERN_CLUSTER_MODEL", "models/tern-tales.gguf")
# Without a home, so that no worker writes into that of whoever runs the tests.
ENV = {k: v for k, v in os.environ.items() if not k.startswith("TERN_") and k not in ("HOME", "XDG_STATE_HOME")}
failed = 0


def check(name, good, found=""):
    global failed
    print(f"ok {name}" if good else f"not ok {name}: {str(found)[:600]}", flush=True)
    failed |= not good
    return good


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(fn, seconds=300):
    """Whether fn() comes true in time; what it cannot ask yet is asked again."""
    end = time.time() + seconds
    while time.time() < end:
        try:
            if fn():
                return True
        except (OSError, ValueError, StopIteration, KeyError):
            pass
        time.sleep(0.02)
    return False


def logged(processes, text):
    """Whether one of the processes has logged the text: a request's line may be written after its reply."""
    return wait_for(lambda: any(text in open(p.log).read() for p in processes))


def print_logs(folder, n=25):
    """The last lines of every process's log, if a check failed or the test itself did."""
    if not failed and not sys.exc_info()[0]:
        return
    for name in sorted(os.listdir(folder)):
        if name.endswith(".log"):
            print(f"---- {name}\n" + "\n".join(open(os.path.join(folder, name)).read().splitlines()[-n:]))


def run_tests(names, started, folder):
    """Runs the functions test_*, or those of them that the command line names, then stops the processes that are left, and exits."""
    chosen = sys.argv[2:]
    try:
        for name, fn in list(names.items()):
            if name.startswith("test_") and (not chosen or name in chosen):
                fn()
    finally:
        for p in reversed(started):
            p.stop(5)
        print_logs(folder)
    sys.exit(failed)


class Process:
    """A tern process that listens; restarts keep the port."""

    def __init__(self, folder, name, args, host=None, address="127.0.0.1"):
        self.folder, self.name, self.args, self.host, self.address = folder, name, args, host, address
        self.port = free_port()
        self.p = None
        self.log = os.path.join(folder, name + ".log")

    @property
    def url(self):
        return f"http://{self.address}:{self.port}"

    def start(self):
        command = [TERN, *self.args, "--host", self.address, "--port", str(self.port)]
        if self.host:
            command = ["ip", "netns", "exec", self.host, *command]
        self.p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(self.log, "a"), env=ENV)
        return self

    def wait_ready(self, seconds=300):
        end = time.time() + seconds
        while time.time() < end:
            if self.p.poll() is not None:
                break
            try:
                if self.get("/ready", timeout=5)[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit(f"not ok {self.name} is ready: {open(self.log).read()[-1500:]}")

    def signal(self, sig):
        self.p.send_signal(sig)

    def kill(self):
        self.p.kill()
        self.p.wait()

    def stop(self, seconds=300):
        if not self.p or self.p.poll() is not None:
            return
        self.p.send_signal(signal.SIGCONT)
        self.p.terminate()
        try:
            self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()

    def connect(self, timeout=300):
        return http.client.HTTPConnection(self.address, self.port, timeout=timeout)

    def get(self, path, headers=None, timeout=300):
        return self.ask("GET", path, None, headers, timeout)

    def ask(self, method, path, body=None, headers=None, timeout=300):
        c = self.connect(timeout)
        try:
            data = None if body is None else body if isinstance(body, (str, bytes)) else json.dumps(body)
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})} if data is not None else headers or {})
            r = c.getresponse()
            return r.status, r.read().decode("utf-8", "replace"), {k.lower(): v for k, v in r.getheaders()}
        finally:
            c.close()

    def status(self):
        return json.loads(self.get("/status")[1])


class Worker(Process):
    def __init__(self, folder, name, *more, **kw):
        super().__init__(folder, name, ["serve", "-m", MODEL, "--threads", "1", "--ctx", "2048", "--max-seqs", "16", "--drain-timeout", "5s", *more], **kw)


class Gateway(Process):
    def __init__(self, folder, name, *more, **kw):
        super().__init__(folder, name, ["gateway", *more], **kw)

    def wait_workers(self, n, seconds=300):
        end = time.time() + seconds
        while time.time() < end and self.p.poll() is None:
            try:
                if sum(w["state"] == "ready" for w in self.status()["workers"]) >= n:
                    return self
            except (OSError, ValueError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        raise SystemExit(f"not ok {self.name} has {n} ready workers: {open(self.log).read()[-1500:]}")

    def worker(self, url):
        return next(w for w in self.status()["workers"] if w["url"] == url)

    def wait_state(self, url, state, seconds=300):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if self.worker(url)["state"] == state:
                    return True
            except (OSError, ValueError, StopIteration):
                pass
            time.sleep(0.01)
        return False


def chat(prompt, max_tokens=32, **more):
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0, **more}


def completion(prompt, max_tokens=32, **more):
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


class Stream:
    """A streamed answer, read event by event. `raw` has every byte of the body."""

    def __init__(self, server, path, body, headers=None, timeout=300):
        self.c = server.connect(timeout)
        self.c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
        self.r = self.c.getresponse()
        self.status = self.r.status
        self.raw, self.events, self.text, self.finish, self.error, self.done, self.ids = b"", [], "", None, None, False, set()

    def next(self):
        """The next event; None: the end."""
        while True:
            line = self.r.readline()
            if not line:
                return None
            self.raw += line
            line = line.strip()
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                self.done = True
                continue
            e = json.loads(line[6:])
            self.events.append(e)
            if "error" in e:
                self.error = e["error"]
                return e
            self.ids.add((e.get("id"), e.get("created")))
            for c in e.get("choices", []):
                self.text += c.get("text") or (c.get("delta") or {}).get("content") or ""
                self.finish = c.get("finish_reason") or self.finish
            return e

    def rest(self):
        while self.next() is not None:
            pass
        self.c.close()
        return self

    def close(self):
        # shutdown, not only close: the response holds a second reference to the socket
        try:
            self.c.sock.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            pass
        self.r.close()
        self.c.close()


class Events(Stream):
    """A stream of any protocol: objects of data lines, or a line each (NDJSON). `events` has them as they are."""

    def next(self):
        while True:
            line = self.r.readline()
            if not line:
                return None
            self.raw += line
            line = line.strip().removeprefix(b"data: ")
            if line.startswith(b"{"):
                e = json.loads(line)
                if e.get("type") != "ping":
                    self.events.append(e)
                    return e


def metric(text, name):
    """The sum over all series of a metric."""
    return sum(float(m.group(1)) for m in re.finditer(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.M))
