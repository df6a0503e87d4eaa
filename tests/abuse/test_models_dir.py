"""A folder of models as checks from outside rely on it: exact forms of the routes that load and unload, with models in this process
and in processes of their own; who may use them; files that come, go, are broken, or lead out of the folder."""
import http.client
import os
import shutil
import tempfile
import threading
import time

from abuse import MODEL, ask, open_servers, run, serving

BOTH = ([], ["--isolate"])


class Folder:
    """A folder with copies of the model, and a server for it."""

    def __init__(self, names, *flags):
        self.top = tempfile.mkdtemp(prefix="tern-models-")
        self.dir = os.path.join(self.top, "models")
        os.mkdir(self.dir)
        for name in names:
            shutil.copy(MODEL, self.path(name))
        self.server = serving.Server([serving.TERN, "serve", "--models-dir", self.dir, "--ctx", "256", "--threads", "1",
                                      "--log-level", "error", *flags], ready="/health")
        open_servers.append(self.server)

    def path(self, name):
        return os.path.join(self.dir, name + ".gguf")

    def ask(self, method, path, body=None, key=None):
        return ask(self.server, method, path, body, {"Authorization": "Bearer " + key} if key else None)

    def load(self, name, key=None):
        return self.ask("POST", "/models/load", {"model": name}, key)

    def unload(self, name, key=None):
        return self.ask("POST", "/models/unload", {"model": name}, key)

    def values(self, query=""):
        return {m["id"]: m["status"]["value"] for m in self.ask("GET", "/models" + query).json["data"]}

    def status(self, name):
        return next((m for m in self.ask("GET", "/status").json["models"] if m["id"] == name), None)

    def complete(self, name):
        return self.ask("POST", "/v1/completions", {"model": name, "prompt": "Once", "max_tokens": 3, "temperature": 0})

    def close(self):
        shutil.rmtree(self.top)


def until(condition):
    """Waits for a condition, for as long as a loaded machine may take."""
    for _ in range(3000):
        if condition():
            return True
        time.sleep(0.02)
    return False


def lives(pid):
    return os.path.exists(f"/proc/{pid}")


def n_children(server):
    return len(open(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read().split())


def test_a_model_is_ready_when_the_load_is_answered_and_gone_when_the_unload_is():
    for flags in BOTH:
        f = Folder(["a", "b"], *flags)
        assert f.values() == {"a": "unloaded", "b": "unloaded"}
        for _ in range(2):
            r = f.load("a")
            assert (r.status, r.json) == (200, {"success": True}), r.body
            assert f.values() == {"a": "loaded", "b": "unloaded"}
            s = f.status("a")
            assert s["id"] == "a" and s["state"] == "ready", s
            pid = s.get("pid", 0)
            assert bool(pid) == bool(flags), s
            assert not flags or lives(pid)
            assert f.load("a").status == 200                                   # is loaded already
            assert f.complete("a").status == 200
            r = f.unload("a")
            assert (r.status, r.json) == (200, {"success": True}), r.body
            assert f.values() == {"a": "unloaded", "b": "unloaded"}
            assert f.status("a")["state"] == "unloaded"
            assert not flags or not lives(pid)
            assert n_children(f.server) == 0
            assert f.unload("a").status == 200                                 # is gone already
        f.close()


def test_an_unknown_model_is_not_found():
    for flags in BOTH:
        f = Folder(["a"], *flags)
        for answer in (f.load("nobody"), f.unload("nobody"), f.complete("nobody"), f.ask("GET", "/v1/models/nobody"),
                       f.ask("POST", "/api/v1/models/load", {"model": "nobody"}),
                       f.ask("POST", "/api/v1/models/unload", {"instance_id": "a@1"}),
                       f.ask("POST", "/sleep?model=nobody"), f.ask("POST", "/wake_up?model=../a"),
                       f.load("../models/a"), f.load("a.gguf"), f.load(f.path("a"))):
            assert (answer.status, answer.code) == (404, "model_not_found"), answer.body
        for body in ("", "{", "[]", "{}", '{"model": 1}', '{"model": null}'):
            assert f.ask("POST", "/models/load", body).status == 400, body
        f.close()


def test_a_broken_file_fails_with_a_reason_and_leaves_nothing_behind():
    for flags in BOTH:
        f = Folder(["good"], *flags)
        for name, data in (("empty", b""), ("text", b"not a model\n" * 9), ("cut", open(MODEL, "rb").read()[:100000])):
            with open(f.path(name), "wb") as out:
                out.write(data)
        f.values("?reload=1")
        fds = []
        for _ in range(3):                                                     # what is opened once stays open
            for name in ("empty", "text", "cut"):
                r = f.load(name)
                assert (r.status, r.code) == (500, "model_load_failed"), r.body
                assert r.json["error"]["message"].count(f"model '{name}'") == 1, r.body
                assert f.values()[name] == "failed"
                s = f.status(name)
                assert s["state"] == "failed" and s["error"] and not s.get("pid"), s
            fds.append(f.server.fds())
        for m in f.ask("GET", "/models").json["data"]:
            assert m["id"] == "good" or (m["status"]["failed"] and m["status"]["exit_code"] == 1 and m["status"]["error"]), m
        assert n_children(f.server) == 0
        assert until(lambda: f.server.fds() <= fds[0]), fds                    # connections close a little later
        assert all(m["planned_bytes"] == 0 for m in f.ask("GET", "/status").json["models"])
        assert f.complete("good").status == 200
        shutil.copy(MODEL, f.path("cut"))                                      # is repaired
        assert f.complete("cut").status == 200
        f.close()


def test_a_loaded_model_whose_file_is_gone_serves_until_it_is_unloaded():
    for flags in BOTH:
        f = Folder(["a", "b"], *flags)
        assert f.load("a").status == 200
        os.unlink(f.path("a"))
        os.unlink(f.path("b"))
        assert f.values("?reload=1") == {"a": "loaded"}
        m = f.ask("GET", "/models").json["data"][0]
        assert m["gone"] is True, m
        assert f.ask("GET", "/v1/models/a").status == 200
        assert f.complete("a").status == 200
        assert f.load("a").status == 200
        assert f.complete("b").status == 404
        assert f.unload("a").status == 200
        assert f.values() == {}
        assert f.complete("a").status == 404 and f.unload("a").status == 404
        shutil.copy(MODEL, f.path("a"))                                        # comes back
        assert f.values("?reload=1") == {"a": "unloaded"}
        assert f.complete("a").status == 200
        # The name is that of another file now: the old one does not stay in memory.
        os.mkdir(os.path.join(f.dir, "a"))
        os.rename(f.path("a"), os.path.join(f.dir, "a", "m.gguf"))
        f.values("?reload=1")
        assert until(lambda: f.values() == {"a": "unloaded"}), f.values()
        assert f.complete("a").status == 200
        f.close()


def test_nothing_outside_the_folder_is_loaded():
    for flags in BOTH:
        f = Folder(["a", "swapped"], *flags)
        secret = os.path.join(f.top, "secret.gguf")
        shutil.copy(MODEL, secret)
        os.symlink(secret, f.path("absolute"))
        os.symlink("../secret.gguf", f.path("relative"))
        os.symlink("a.gguf", f.path("inside"))
        os.mkfifo(f.path("fifo"))
        assert f.values("?reload=1") == {"a": "unloaded", "swapped": "unloaded"}
        assert f.complete("inside").json["model"] == "a"                       # another name of the same model
        for name in ("absolute", "relative", "fifo"):
            assert f.load(name).status == 404
        os.unlink(f.path("swapped"))
        os.symlink(secret, f.path("swapped"))                                  # after it was listed
        r = f.load("swapped")
        assert (r.status, r.code) == (500, "model_load_failed"), r.body
        assert "outside the folder" in r.json["error"]["message"], r.body
        assert f.status("swapped")["state"] == "failed"
        assert f.complete("a").status == 200
        f.close()


def test_names_that_only_a_file_gives_stay_inside_the_folder():
    """A shard that is a hidden link to the outside: no look at the folder finds it, only the reader of the index does."""
    for flags in (*BOTH, ["--isolate", "--no-sandbox"]):
        f = Folder([], *flags)
        secret = os.path.join(f.top, "secret.safetensors")
        header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        with open(secret, "wb") as out:
            out.write(len(header).to_bytes(8, "little") + header + bytes(4))
        for name, shard in (("hidden", ".shard.safetensors"), ("deep", "a/b/c/d/shard.safetensors"), ("up", "../../secret.safetensors"),
                            ("absolute", secret)):
            folder = os.path.join(f.dir, name)
            os.makedirs(os.path.join(folder, "a/b/c/d"))
            shutil.copy(secret, os.path.join(folder, "seen.safetensors"))
            if not shard.startswith((".." , "/")):
                os.symlink(secret, os.path.join(folder, shard))
            with open(os.path.join(folder, "config.json"), "w") as out:
                out.write('{"model_type": "llama"}')
            with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
                out.write('{"weight_map": {"x": "%s"}}' % shard)
        assert set(f.values("?reload=1")) == {"hidden", "deep", "up", "absolute"}
        for name in ("hidden", "deep"):
            r = f.load(name)
            assert r.status == 500 and "leads out of the folder" in r.json["error"]["message"], r.body
            assert "/./." not in r.json["error"]["message"], r.body
        for name in ("up", "absolute"):
            r = f.load(name)
            assert r.status == 500 and "must stay inside the folder" in r.json["error"]["message"], r.body
        f.close()


VERBS = (("POST", "/models/load", {"model": "a"}), ("POST", "/models/unload", {"model": "a"}),
         ("POST", "/api/v1/models/load", {"model": "a"}), ("POST", "/api/v1/models/unload", {"instance_id": "a"}),
         ("POST", "/sleep", None), ("POST", "/sleep?level=1&model=a", None), ("POST", "/wake_up", None),
         ("POST", "/wake_up?tags=weights", None))
LOOKS = (("GET", "/models", None), ("GET", "/models?reload=1", None), ("GET", "/v1/models", None), ("GET", "/api/v1/models", None),
         ("GET", "/is_sleeping", None), ("HEAD", "/models/sse", None))


def test_who_may_load_and_unload():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("user-key name=user\nadmin-key name=admin admin\n")
        keys.flush()
        os.chmod(keys.name, 0o600)
        f = Folder(["a"], "--api-key-file", keys.name)
        for method, path, body in VERBS + LOOKS:
            assert f.ask(method, path, body).status == 401, path
            assert f.ask(method, path, body, "wrong-key").status == 401, path
        for method, path, body in VERBS:
            r = f.ask(method, path, body, "user-key")
            assert r.status == 403 or r.status == 401, (path, r.status)
            assert r.code in ("unauthorized", "forbidden"), r.body
        assert f.ask("GET", "/models", key="user-key").json["data"][0]["status"]["value"] == "unloaded"
        for method, path, body in LOOKS:
            assert f.ask(method, path, body, "user-key").status == 200, path
        for method, path, body in VERBS + LOOKS:
            assert f.ask(method, path, body, "admin-key").status == 200, path
        f.close()


def test_the_number_of_those_who_watch_is_limited():
    f = Folder(["a"], "--max-watchers", "1")
    c = http.client.HTTPConnection("127.0.0.1", f.server.port, timeout=300)
    c.request("GET", "/models/sse")
    r = c.getresponse()
    assert r.status == 200 and r.readline().startswith(b"data: ")
    a = f.ask("GET", "/models/sse")
    assert (a.status, a.code) == (503, "too_many_watchers"), a.body
    assert f.server.metrics()['tern_refused_total{reason="too_many_watchers"}'] == 1
    assert f.ask("HEAD", "/models/sse").status == 503
    c.close()
    assert until(lambda: f.ask("HEAD", "/models/sse").status == 200)
    f.close()


def test_loads_and_unloads_at_the_same_time_all_end():
    for flags in BOTH:
        f = Folder(["a"], *flags)
        bad = []

        def repeat(verb, ok):
            for _ in range(8):
                r = verb("a")
                if r.status not in ok:
                    bad.append(r.body)

        threads = [threading.Thread(target=repeat, args=(f.load, (200, 503))) for _ in range(3)]
        threads += [threading.Thread(target=repeat, args=(f.unload, (200,))) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(300)
        assert not any(t.is_alive() for t in threads), "somebody waits for ever"
        assert not bad, bad
        assert f.unload("a").status == 200
        assert f.status("a")["state"] == "unloaded" and n_children(f.server) == 0
        f.close()


run(globals())
