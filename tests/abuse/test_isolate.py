"""Attacks on one model of a server with --isolate: its file changes while it is mapped, its process dies or stands still in
the middle of a stream, its file or its folder is a bomb. Each time the stream of the other model goes on with the right text,
/status says why the model failed or that it is back, and no process, descriptor or shared memory is left."""
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

from abuse import JSON, MODEL, ask, complete, open_servers, run, serving
from gguf import Gguf

work = tempfile.mkdtemp(prefix="tern-isolate-")
STREAM = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}


def until(what, check, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = check()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for: {what}: {got}")


class Stream:
    """The events of one completion, read as they come."""

    def __init__(self, server, model):
        self.c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        self.c.request("POST", "/v1/completions", json.dumps({**STREAM, "model": model}), JSON)
        self.r = self.c.getresponse()
        assert self.r.status == 200, self.r.read()

    def event(self):
        """The next one; None at the end."""
        for line in self.r:
            if line.startswith(b"data: "):
                return None if line == b"data: [DONE]\n" else json.loads(line[6:])
        return {"error": {"code": "cut off"}}

    def rest(self):
        """The text that is left, and the code of the error that ends it."""
        text = ""
        while (e := self.event()) is not None:
            if "error" in e:
                self.c.close()
                return text, e["error"]["code"]
            text += "".join(ch["text"] for ch in e["choices"])
        self.c.close()
        return text, None


class Calm(threading.Thread):
    """Streams the other model again and again until it is told to stop, and keeps every text."""

    def __init__(self, server):
        super().__init__()
        self.server, self.ends, self.stop = server, [], False
        self.start()

    def run(self):
        while not self.stop:
            try:
                self.ends.append(Stream(self.server, "calm").rest())
            except Exception as e:                       # a result that the test refuses
                self.ends.append((f"{type(e).__name__}: {e}", "broken"))


class Attack:
    """A server of the model `calm`, and of the models in a folder, each in a process of its own. Inside the block `calm` is
    streamed without a break."""

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(dir=work)
        shutil.copyfile(MODEL, os.path.join(self.folder, "calm.gguf"))
        self.server = serving.Server([serving.TERN, "serve", "--models-dir", self.folder, "--isolate", "-t", "1", "-c", "512", "--kv-tokens",
                                      "2048", "--log-level", "error", *flags], ready="/health")
        open_servers.append(self.server)
        assert ask(self.server, "POST", "/models/load", {"model": "calm"}).status == 200
        self.right = Stream(self.server, "calm").rest()
        assert self.right[1] is None and len(self.right[0]) > 400, self.right

    def path(self, name):
        return os.path.join(self.folder, name)

    def copy(self, name):
        shutil.copyfile(MODEL, self.path(name + ".part"))
        os.rename(self.path(name + ".part"), self.path(name))
        return self.path(name)

    def __enter__(self):
        self.calm = Calm(self.server)
        until("a first stream of calm", lambda: self.calm.ends)
        return self

    def __exit__(self, kind, *_):
        n = len(self.calm.ends)
        try:
            if kind is None:
                until("a stream of calm after the attack", lambda: len(self.calm.ends) > n)
        finally:
            self.calm.stop = True
            self.calm.join()
        if kind is None:
            assert set(self.calm.ends) == {self.right}, self.calm.ends

    def model(self, name):
        return next(m for m in ask(self.server, "GET", "/status").json["models"] if m["id"] == name)

    def load(self, name):
        return ask(self.server, "POST", "/models/load", {"model": name})

    def rescan(self):
        assert ask(self.server, "GET", "/models?reload=1").status == 200

    def look(self):
        """Processes, descriptors and shared memory of the server, but for connections of clients."""
        pid = self.server.process.pid
        tcp = {x.split()[9] for x in open(f"/proc/{pid}/net/tcp")}
        fds = []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                kind, _, number = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")
            except OSError:                              # closed meanwhile
                continue
            if kind != "socket" or number[:-1] not in tcp:
                fds.append(kind)
        kids = open(f"/proc/{pid}/task/{pid}/children").read().split()
        maps = [x.split()[-1] for x in open(f"/proc/{pid}/maps") if "memfd:" in x]
        return sorted(fds), len(kids), sorted(maps)

    def left(self):
        """The same when it does not change any more."""
        seen = [self.look() for _ in range(5)]
        while any(x != seen[-1] for x in seen[-5:]):
            time.sleep(0.1)
            seen.append(self.look())
        return seen[-1]

    def check_left(self, before):
        until(f"nothing left but {before}", lambda: self.look() == before)


def unload(x, name):
    pid = x.model(name)["pid"]
    a = ask(x.server, "POST", "/models/unload", {"model": name})
    assert a.status == 200, a.body
    assert not pid or not os.path.exists(f"/proc/{pid}"), pid


def test_a_file_that_changes_while_it_is_mapped():
    x = Attack()
    x.copy("prey.gguf")
    x.rescan()
    right = Stream(x.server, "prey").rest()
    assert right == x.right, right
    unload(x, "prey")
    before = x.left()
    for change in ("truncate", "overwrite"):
        with x:
            path = x.copy("prey.gguf")                   # another file: what failed before may be loaded again
            s = Stream(x.server, "prey")
            assert "error" not in s.event()
            if change == "truncate":
                os.truncate(path, 1 << 20)
            else:
                with open(path, "r+b") as f:
                    f.seek(1 << 20)
                    f.write(os.urandom(4 << 20))
            # It may end before the change reaches it. Files are looked at while their model works.
            assert s.rest()[1] in ("model_damaged", "worker_lost", None)
            m = until("a failure", lambda: m if (m := x.model("prey"))["state"] == "failed" else again(x))
            assert "prey.gguf: " in m["error"] and "/./" not in m["error"] and m["error"].count("model 'prey'") == 1, m
        unload(x, "prey")
        x.check_left(before)
    x.copy("prey.gguf")
    assert Stream(x.server, "prey").rest() == right      # it is back


def again(x):
    a = complete(x.server, model="prey", max_tokens=200, ignore_eos=True)
    assert a.status == 200 or a.code in ("model_damaged", "worker_lost", "model_load_failed"), (a.status, a.body)


def test_a_process_that_dies_or_stands_still_in_a_stream():
    x = Attack()
    x.copy("prey.gguf")
    x.rescan()
    assert Stream(x.server, "prey").rest() == x.right
    before = x.left()
    # AddressSanitizer ends a process at SIGSEGV with exit code 1.
    fault = "failed" if "asan" in serving.BUILD else "fault"
    for sig, reason in ((signal.SIGABRT, "aborted"), (signal.SIGSEGV, fault), (signal.SIGKILL, "killed"), (signal.SIGSTOP, "hung")):
        with x:
            was = until("a ready model", lambda: (m := x.model("prey"))["state"] == "ready" and m)
            streams = [Stream(x.server, "prey") for _ in range(4)]
            for s in streams:
                assert "error" not in s.event()
            os.kill(was["pid"], sig)
            assert {s.rest()[1] for s in streams} <= {"worker_lost", None}
            m = until("another process", lambda: (m := x.model("prey"))["state"] == "ready" and m["pid"] not in (None, was["pid"]) and m)
            assert m["worker"]["deaths"][reason] == was["worker"]["deaths"][reason] + 1, m
            assert not os.path.exists(f"/proc/{was['pid']}")
        assert Stream(x.server, "prey").rest() == x.right
        x.check_left(before)


def damaged():
    """Name, bytes of a GGUF file, words of the error."""
    g = Gguf(MODEL)
    g.set_type("blk.0.attn_norm.weight", 8)
    yield "vector", g.data, "attn_norm"
    for name, at in (("tensors", 8), ("keys", 16)):
        for n in (1 << 20, 1 << 40, (1 << 64) - 1):
            g = Gguf(MODEL)
            struct.pack_into("<Q", g.data, at, n)
            yield f"{name}-{n}", g.data, ""
    g = Gguf(MODEL)
    struct.pack_into("<Q", g.data, 24, 1 << 62)          # the length of the first key
    yield "text", g.data, ""
    g = Gguf(MODEL)
    at, dims = g.entries["token_embd.weight"][:2]
    for n in (1 << 31, 1 << 62):
        struct.pack_into("<Q", g.data, at - 8 * len(dims), n)
        yield f"dims-{n}", bytes(g.data), ""
    whole = Gguf(MODEL)
    for n in (0, 3, 20, 100, whole.at // 2, whole.start, whole.start + 1000, len(whole.data) - 1):
        yield f"cut-{n}", whole.data[:n], ""


def refuse_all(x, names):
    """None of them loads; the reason is in /status. Twice: the second time nothing new is left."""
    before = None
    for _ in range(2):
        for name in names:
            a = x.load(name)
            assert a.status >= 400 and a.code, (name, a.status, a.body)
            m = x.model(name)
            assert m["state"] == "failed" and m["error"] and not m.get("pid"), m
        if before is None:
            before = x.left()
    x.check_left(before)
    assert before[1] == 1, before                        # the process of calm


def test_damaged_files():
    x = Attack()
    files = list(damaged())
    for name, data, _ in files:
        with open(x.path(name + ".gguf"), "wb") as f:
            f.write(data)
    x.rescan()
    listed = {m["id"] for m in ask(x.server, "GET", "/status").json["models"]}
    with x:
        refuse_all(x, [name for name, _, _ in files if name in listed])
        for name, _, words in files:
            assert name not in listed or words in x.model(name)["error"], x.model(name)
    assert {"vector", "text", f"keys-{1 << 40}"} <= listed, listed


def make_folder(x, name):
    subprocess.run([serving.TERN, "convert", MODEL, x.path(name)], check=True, capture_output=True)
    return x.path(name)


def tokenizer_bombs():
    yield "deep", b"[" * 5_000_000
    yield "wide", b'{"model":{"type":"BPE","vocab":{' + b",".join(b'"%d":%d' % (i, i) for i in range(3_000_000)) + b"}}}"
    yield "merges", json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a" * 1000, "a" * 1000]] * 20_000}}).encode()
    yield "ids", json.dumps({"model": {"type": "BPE", "vocab": {"a": (1 << 62), "b": -1}, "merges": []}}).encode()
    yield "pattern", json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
                                 "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "((a{1000}){1000}){1000}"},
                                                   "behavior": "Isolated"}}).encode()


def test_tokenizers_that_are_bombs():
    x = Attack()
    bombs = dict(tokenizer_bombs())
    for name, data in bombs.items():
        with open(os.path.join(make_folder(x, name), "tokenizer.json"), "wb") as f:
            f.write(data)
    x.rescan()
    with x:
        refuse_all(x, [name for name in bombs if name != "deep"])
        a = complete(x.server, model="deep")             # no JSON: a model without a tokenizer, which takes token ids
        assert (a.status, a.code) == (400, "invalid_request"), (a.status, a.body)
        unload(x, "deep")


TEMPLATES = {"loops": "{% for a in range(99999999) %}{% for b in range(99999999) %}{{ a * b }}{% endfor %}{% endfor %}",
             "doubles": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
             "times": "{{ 'x' * 1000000000000 }}",
             "itself": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 2) }}{% endmacro %}{{ f(0) }}",
             "nested": "{{ " + "(" * 200_000 + "1" + ")" * 200_000 + " }}",
             "blocks": "{% if 1 %}" * 50_000,
             "long": "{{ 1 }}" * 1_000_000}


def test_templates_that_are_bombs():
    x = Attack()
    for name, text in TEMPLATES.items():
        folder = make_folder(x, name)
        with open(os.path.join(folder, "tokenizer_config.json"), "r+") as f:
            config = json.load(f)
            config["chat_template"] = text
            f.seek(0)
            json.dump(config, f)
            f.truncate()
        if os.path.exists(os.path.join(folder, "chat_template.jinja")):
            os.remove(os.path.join(folder, "chat_template.jinja"))
    x.rescan()
    before = None
    for _ in range(2):
        with x:
            for name in TEMPLATES:
                a = ask(x.server, "POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
                assert a.status == 200 or a.code in ("invalid_request", "model_load_failed"), (name, a.status, a.body[:300])
                m = x.model(name)
                assert m["state"] in ("ready", "failed"), m
                if m["state"] == "ready":                # its template is used for no prompt, and the text goes on
                    assert Stream(x.server, name).rest()[1] is None
                unload(x, name)
        before = before or x.left()
    x.check_left(before)
    assert before[1] == 1, before


try:
    run(globals())
finally:
    shutil.rmtree(work, ignore_errors=True)
