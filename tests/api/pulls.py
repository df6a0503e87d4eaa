"""Ollama's /api/pull, /api/delete and /api/copy against a hub on this machine (tests/pull/hub.py), and what /api/tags tells of models that
are not loaded. Starts its servers itself."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.getcwd()
sys.path.insert(0, os.path.join(ROOT, "tests", "pull"))
sys.path.insert(0, os.path.join(ROOT, "tests", "api"))
from hub import Hub, Repo

os.environ.setdefault("TERN_URL", "http://127.0.0.1:1")
from golden import check_text

TERN, TMP = os.environ["TERN"], tempfile.mkdtemp(dir=os.environ.get("TMP"))
MODEL = open("models/tern-tales.gguf", "rb").read()
KEYS = os.path.join(TMP, "keys")
open(KEYS, "w").write("user-key name=user\nadmin-key name=boss admin\n")
os.chmod(KEYS, 0o600)
hub = Hub()


class Server:
    def __init__(self, *args, **env):
        self.cache = tempfile.mkdtemp(dir=TMP)
        self.log = os.path.join(self.cache, "log")
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TERN_")) and "proxy" not in k}
        for k in ("TERN_PULL_LIB",):
            if k in os.environ:
                keep[k] = os.environ[k]
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.p = subprocess.Popen([TERN, "serve", "-m", "models/tern-tales.gguf", "--port", str(self.port), "--ctx", "512", "-t", "1", *args],
                                  env={**keep, "HF_HUB_CACHE": self.cache + "/hub", "HF_ENDPOINT": hub.url, "HOME": self.cache, **env},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.log, "w"))
        self.wait(lambda: self.ask("GET", "/ready").status == 200, "the server starts")

    def wait(self, check, what, seconds=120):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if check():
                    return
            except OSError:
                assert self.p.poll() is None, open(self.log).read()[-2000:]
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s: {what}; {open(self.log).read()[-1000:]}")

    def ask(self, method, path, body=None, key=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request(method, path, None if body is None else json.dumps(body),
                  {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})})
        r = c.getresponse()
        r.body = r.read()
        c.close()
        return r

    def pull(self, name, key=None, **more):
        return self.ask("POST", "/api/pull", {"model": name, **more}, key)

    def names(self):
        return [m["name"] for m in json.loads(self.ask("GET", "/api/tags").body)["models"]]

    def children(self):
        out = []
        for d in os.listdir("/proc"):
            try:
                if d.isdigit() and open(f"/proc/{d}/stat").read().rsplit(")", 1)[1].split()[1] == str(self.p.pid):
                    out.append(open(f"/proc/{d}/cmdline").read().split("\0"))
            except (OSError, IndexError):
                pass
        return [c for c in out if "pull" in c]

    def close(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait(timeout=120) == 0, open(self.log).read()[-2000:]


def lines(r):
    assert r.status == 200 and r.headers["content-type"] == "application/x-ndjson", (r.status, r.body)
    return [json.loads(x) for x in r.body.decode().splitlines()]


def last_of_each(events):
    """Progress comes when it comes: of each file the last line stays."""
    out = []
    for e in events:
        if out and e.get("digest") and out[-1].get("digest") == e["digest"]:
            out.pop()
        out.append(e)
    return out


def test_a_model_is_pulled_in_ollamas_words_and_runs(s):
    hub.repos["Org/Tales-GGUF"] = Repo({"README.md": b"x", "tales-Q8_0.gguf": MODEL, "tales-Q2_K.gguf": b"x" * 3000})
    r = s.pull("hf.co/Org/Tales-GGUF:Q8_0")
    events = lines(r)
    grew = [e["completed"] for e in events if "completed" in e]
    assert grew == sorted(grew) and grew[-1] == len(MODEL) and all(e["total"] == len(MODEL) for e in events if "total" in e), events
    text = "".join(json.dumps(e, separators=(",", ":")) + "\n" for e in last_of_each(events))
    check_text("ollama-pull", f"{r.status} {r.headers['content-type']}\n{text}")
    assert "hf.co/Org/Tales-GGUF:Q8_0" in s.names(), s.names()
    want = json.loads(s.ask("POST", "/api/generate", {"model": "tern-tales", "prompt": "Once", "stream": False, "options": {"temperature": 0, "num_predict": 6}}).body)
    for name in ("hf.co/Org/Tales-GGUF:Q8_0", "hf:Org/Tales-GGUF:Q8_0", "huggingface.co/Org/Tales-GGUF:Q8_0"):
        got = json.loads(s.ask("POST", "/api/generate", {"model": name, "prompt": "Once", "stream": False, "options": {"temperature": 0, "num_predict": 6}}).body)
        assert got.get("response") == want["response"], got
    n = len(hub.gets())
    again = lines(s.pull("hf:Org/Tales-GGUF:Q8_0"))     # everything is here: nothing is downloaded, and no second model is listed
    assert [e["status"] for e in again] == ["pulling manifest", "success"] and len(hub.gets()) == n, again
    assert s.names().count("hf.co/Org/Tales-GGUF:Q8_0") == 1
    r = s.pull("hf.co/Org/Tales-GGUF:Q8_0", stream=False)
    check_text("ollama-pull-body", f"{r.status} {r.headers['content-type']}\n{r.body.decode()}")


def test_errors_of_a_pull(s):
    r = s.pull("hf.co/Org/None")
    events = lines(r)
    assert events[0] == {"status": "pulling manifest"} and set(events[-1]) == {"error"} and "Org/None" in events[-1]["error"], events
    r = s.pull("hf.co/Org/None", stream=False)
    assert r.status == 404 and "Org/None" in json.loads(r.body)["error"], r.body
    check_text("ollama-pull-error", f"{r.status} {r.headers['content-type']}\n" + re.sub(r"127.0.0.1:\d+", "HUB", r.body.decode()))
    for body, word in (({}, "model"), ({"model": 5}, "model"), ({"model": ""}, "model"), ({"model": "llama3"}, "hf.co/ORG/NAME"),
                       ({"model": "hf.co/../x"}, "hf:ORG/NAME"), ({"model": "hf:a/b/c"}, "hf:ORG/NAME"), ({"model": "hf:org/m:../x"}, "inside"),
                       ({"model": "hf:"}, "hf"), ({"model": "hf:a/b", "stream": 5}, "stream"), ({"model": "hf:" + "a" * 3000}, "name")):
        r = s.ask("POST", "/api/pull", body)
        assert r.status == 400 and set(json.loads(r.body)) == {"error"} and word in json.loads(r.body)["error"], (body, r.status, r.body)
    r = s.ask("POST", "/api/pull", {"name": "tern-tales:latest", "stream": False})  # it is here, and no hub has it
    assert r.status == 200 and json.loads(r.body) == {"status": "success"}, r.body
    assert [e["status"] for e in lines(s.pull("tern-tales"))] == ["pulling manifest", "success"]
    assert s.ask("GET", "/api/pull").status == 405


class Slow:
    """A pull that is read line by line."""

    def __init__(self, s, name):
        self.c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        self.c.request("POST", "/api/pull", json.dumps({"model": name}))
        self.r = self.c.getresponse()

    def line(self):
        return json.loads(self.r.readline() or b"null")

    def until_progress(self):
        while True:
            e = self.line()
            assert e and "error" not in e, e
            if "completed" in e:
                return e

    def close(self):
        self.c.sock.shutdown(socket.SHUT_RDWR) if self.c.sock else None
        self.r.close()
        self.c.close()


def test_a_pull_is_shared_and_ends_with_its_last_client(s):
    hub.repos["Org/Big"] = Repo({"big.gguf": MODEL})
    hub.pause = 0.05
    a = Slow(s, "hf.co/Org/Big")
    a.until_progress()
    b = Slow(s, "hf:Org/Big")
    b.until_progress()
    assert len(s.children()) == 1, s.children()
    b.close()
    a.until_progress()              # the other goes on
    a.close()
    s.wait(lambda: not s.children(), "the process of the pull ends")
    assert "hf.co/Org/Big:latest" not in s.names()
    served = hub.served
    hub.pause = 0
    events = lines(s.pull("hf.co/Org/Big"))  # goes on where it was
    assert events[-1] == {"status": "success"} and hub.served - served < len(MODEL), (served, hub.served)
    assert "hf.co/Org/Big:latest" in s.names()


def test_pulls_at_once_are_bounded(s):
    hub.pause = 0.05
    slow = []
    for i in range(4):
        hub.repos[f"Org/M{i}"] = Repo({"m.gguf": MODEL})
        slow.append(Slow(s, f"hf.co/Org/M{i}"))
        slow[-1].until_progress()
    hub.repos["Org/M4"] = Repo({"m.gguf": MODEL})
    r = s.pull("hf.co/Org/M4")
    assert r.status == 429 and "at most 4" in json.loads(r.body)["error"], r.body
    for x in slow:
        x.close()
    s.wait(lambda: not s.children(), "the processes end")
    hub.pause = 0


def test_a_client_of_one_body_that_leaves_ends_its_pull(s):
    hub.repos["Org/Gone"] = Repo({"m.gguf": MODEL})
    hub.pause = 0.05
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
    c.request("POST", "/api/pull", json.dumps({"model": "hf.co/Org/Gone", "stream": False}))
    s.wait(lambda: s.children(), "the pull begins")
    c.close()
    s.wait(lambda: not s.children(), "the process of the pull ends")
    hub.pause = 0


def test_copies_are_names_and_list_like_models(s):
    copy = lambda a, b: s.ask("POST", "/api/copy", {"source": a, "destination": b})
    assert copy("tern-tales", "story").status == 200 and copy("tern-tales:latest", "other/story:latest").status == 200
    assert {"story:latest", "other/story:latest", "tern-tales:latest"} <= set(s.names()), s.names()
    r = s.ask("POST", "/api/generate", {"model": "story", "prompt": "Once", "stream": False, "options": {"num_predict": 2}})
    assert r.status == 200, r.body
    assert s.ask("POST", "/api/show", {"model": "other/story"}).status == 200
    assert copy("none", "x").status == 404 and "none" in json.loads(copy("none", "x").body)["error"]
    for a, b, word in (("tern-tales", "tern-tales", "already"), ("tern-tales", "", "destination"), ("", "x", "source"), ("tern-tales", "a\nb", "control"),
                       ("tern-tales", "x" * 600, "UTF-8"), ("tern-tales", ":latest", "empty"), ("tern-tales", "a\0b", "NUL")):
        r = copy(a, b)
        assert r.status == 400 and word in json.loads(r.body)["error"], (a, b, r.body)
    assert copy("tern-tales", "story").status == 200        # again
    assert s.ask("DELETE", "/api/delete", {"model": "story:latest"}).status == 200
    assert s.ask("DELETE", "/api/delete", {"name": "other/story"}).status == 200
    assert set(s.names()) & {"story:latest", "other/story:latest"} == set() and "tern-tales:latest" in s.names()
    assert s.ask("DELETE", "/api/delete", {"model": "story"}).status == 404
    for i in range(1024):
        assert copy("tern-tales", f"n{i}").status == 200
    r = copy("tern-tales", "one-more")
    assert r.status == 400 and "1024" in json.loads(r.body)["error"]
    for i in range(1024):
        assert s.ask("DELETE", "/api/delete", {"model": f"n{i}"}).status == 200
    assert copy("tern-tales", "one-more").status == 200 and s.ask("DELETE", "/api/delete", {"model": "one-more"}).status == 200


def test_a_pulled_model_is_deleted_and_others_are_not(s):
    hub.repos["Org/Del"] = Repo({"d-Q8_0.gguf": MODEL})
    assert s.pull("hf.co/Org/Del", stream=False).status == 200
    name = "hf.co/Org/Del"
    assert s.ask("POST", "/api/generate", {"model": name, "prompt": "x", "stream": False, "options": {"num_predict": 1}}).status == 200
    assert s.ask("POST", "/api/copy", {"source": name, "destination": "mine"}).status == 200
    r = s.ask("DELETE", "/api/delete", {"model": name})
    assert r.status == 200 and r.body == b"", r.body
    assert not os.path.exists(s.cache + "/hub/models--Org--Del") and not {name + ":latest", "mine:latest"} & set(s.names()), s.names()
    r = s.ask("POST", "/api/generate", {"model": name, "prompt": "x"})
    assert r.status == 404, r.body
    s.ask("GET", "/models?reload=1")                        # a rescan does not bring it back
    assert name + ":latest" not in s.names()
    assert s.ask("DELETE", "/api/delete", {"model": name}).status == 404
    assert s.pull(name, stream=False).status == 200 and name + ":latest" in s.names()
    r = s.ask("POST", "/api/generate", {"model": name, "prompt": "x", "stream": False, "options": {"num_predict": 1}})
    assert r.status == 200, r.body
    hub.repos["Org/Del"] = Repo({"d-Q8_0.gguf": MODEL + b"\0" * 32}, commit="b" * 40)     # another commit has the name now
    assert s.pull(name, stream=False).status == 200 and s.names().count(name + ":latest") == 1, s.names()
    assert s.ask("DELETE", "/api/delete", {"model": name}).status == 200 and name + ":latest" not in s.names()
    r = s.ask("DELETE", "/api/delete", {"model": "tern-tales"})
    assert r.status == 400 and "tern-tales" in json.loads(r.body)["error"] and os.path.exists("models/tern-tales.gguf"), r.body
    assert s.ask("POST", "/api/generate", {"model": "tern-tales", "prompt": "x", "stream": False, "options": {"num_predict": 1}}).status == 200
    r = s.ask("DELETE", "/api/delete", {"model": "nothing"})
    assert r.status == 404 and "nothing" in json.loads(r.body)["error"]
    assert s.ask("DELETE", "/api/delete", {}).status == 400 and s.ask("DELETE", "/api/delete").status == 400


def test_models_that_are_not_loaded_tell_what_their_files_say(s):
    dir = tempfile.mkdtemp(dir=TMP)
    shutil.copy("models/tern-tales.gguf", dir + "/cold.gguf")
    shutil.copytree("tests/golden/hf/qwen2", dir + "/folder", ignore=shutil.ignore_patterns("golden*"))
    shutil.copytree("tests/golden/onnx/embed", dir + "/graph")
    open(dir + "/broken.gguf", "wb").write(MODEL[:5000])
    for isolate in (False, True):
        t = Server("--models-dir", dir, *(["--isolate"] if isolate else []))
        all = {m["name"]: m for m in json.loads(t.ask("GET", "/api/tags").body)["models"]}
        show = lambda name: json.loads(t.ask("POST", "/api/show", {"model": name}).body)
        warm, cold = all["tern-tales:latest"], all["cold:latest"]
        assert cold["size"] == len(MODEL) and all["broken:latest"]["size"] == 5000, all
        assert all["folder:latest"]["size"] == os.path.getsize(dir + "/folder/model.safetensors"), all
        if isolate:                                     # the server itself opens none of their files
            assert cold["details"]["family"] == "" and show("cold")["model_info"] == {}, cold
        else:
            assert cold["details"] == warm["details"] and cold["details"]["parameter_size"] == "10.5M", cold
            assert all["folder:latest"]["details"]["family"] == "qwen2" and all["folder:latest"]["details"]["quantization_level"] in ("F32", "BF16", "F16"), all
            assert all["graph:latest"]["size"] > 0 and all["graph:latest"]["details"]["format"] == "onnx" and all["graph:latest"]["details"]["family"] == "onnx", all
            assert all["broken:latest"]["details"]["family"] == "", all
            info, want = show("cold")["model_info"], show("tern-tales")["model_info"]
            assert info["general.parameter_count"] == want["general.parameter_count"] and info["llama.embedding_length"] == want["llama.embedding_length"], info
            assert info["llama.context_length"] >= 512 and show("cold")["capabilities"] == ["completion", "tools"], info
            os.truncate(dir + "/cold.gguf", 4000)       # replaced files are read again
            again = {m["name"]: m for m in json.loads(t.ask("GET", "/api/tags").body)["models"]}
            assert again["cold:latest"]["details"]["family"] == "" and again["cold:latest"]["size"] == 4000, again
            shutil.copy("models/tern-tales.gguf", dir + "/cold.gguf")
        states = {m["id"]: m["status"]["value"] for m in json.loads(t.ask("GET", "/models").body)["data"]}
        assert states["cold"] == states["folder"] == states["broken"] == "unloaded", states
        t.close()


def test_a_server_that_ends_stops_its_pulls(s):
    hub.repos["Org/End"] = Repo({"m.gguf": MODEL})
    hub.pause = 0.05
    t = Server()
    x = Slow(t, "hf.co/Org/End")
    x.until_progress()
    t.p.send_signal(signal.SIGTERM)
    rest = [json.loads(l) for l in x.r.read().splitlines()]
    assert "shutting down" in rest[-1]["error"], rest
    assert t.p.wait(timeout=120) == 0
    hub.pause = 0


def test_keys_and_processes_of_their_own(s):
    hub.repos["Org/Key"] = Repo({"k-Q8_0.gguf": MODEL})
    t = Server("--api-key-file", KEYS, "--isolate")
    for key, status in ((None, 401), ("user-key", 401), ("admin-key", 200)):
        assert t.pull("hf.co/Org/Key", key, stream=False).status == status, key
        r = t.ask("POST", "/api/copy", {"source": "tern-tales", "destination": "c"}, key)
        assert r.status == status, (key, r.body)
    r = t.ask("POST", "/api/generate", {"model": "hf.co/Org/Key", "prompt": "x", "stream": False, "options": {"num_predict": 1}}, "user-key")
    assert r.status == 200, r.body      # by a key that may not pull
    for key, status in ((None, 401), ("user-key", 401), ("admin-key", 200)):
        assert t.ask("DELETE", "/api/delete", {"model": "hf.co/Org/Key"}, key).status == status, key
    assert not os.path.exists(t.cache + "/hub/models--Org--Key")
    t.close()


def main():
    failed = False
    s = Server()
    for name, fn in list(globals().items()):
        if not name.startswith("test_") or (len(sys.argv) > 1 and sys.argv[1] not in name):
            continue
        hub.reset()
        try:
            fn(s)
            print("ok pulls:", name[5:].replace("_", " "), flush=True)
        except Exception as e:
            failed = True
            print(f"not ok pulls: {name[5:]}: {type(e).__name__} {e}", flush=True)
            traceback.print_exc()
    s.close()
    sys.exit(failed)


main()
