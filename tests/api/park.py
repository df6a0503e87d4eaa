"""Models that leave and come back, from outside. Parked KV blocks: a prompt, its model unloaded or put to sleep, the same prompt again is read from the cache and
answered with the same text; also after a restart of the server, and with models in processes of their own. Starts its
servers itself; run by tests/cli/park.sh."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TERN = os.environ["TERN"]
PROMPT = "Once upon a time there was a little bird who lived in a tall tree near the sea. " * 6


servers = []


class Server:
    def __init__(self, top, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", dir=top, suffix=".log", delete=False)
        self.proc = subprocess.Popen([TERN, "serve", "--models-dir", f"{top}/models", "--port", "0", "-t", "1", "-c", "1024",
                                      "--kv-tokens", "4096", *flags], stdout=subprocess.DEVNULL, stderr=self.log)
        servers.append(self.proc)
        self.port = int(self.wait_log(r"listens on http://[^:]*:(\d+)").group(1))

    def text(self):
        return open(self.log.name).read()

    def wait_log(self, pattern):
        for _ in range(1200):
            m = re.search(pattern, self.text())
            if m:
                return m
            assert self.proc.poll() is None, self.text()
            time.sleep(0.05)
        raise AssertionError(f"no {pattern} in: {self.text()}")

    def ask(self, method, path, body=None, headers={}):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **headers})
        r = c.getresponse()
        data = json.loads(r.read() or b"null")
        c.close()
        assert r.status == 200, (path, r.status, data)
        return data

    def complete(self):
        r = self.ask("POST", "/v1/completions", {"model": "ada", "prompt": PROMPT, "max_tokens": 12, "temperature": 0,
                                                 "ignore_eos": True})
        return r["usage"]["prompt_tokens_details"]["cached_tokens"], r["choices"][0]["text"]

    def status(self):
        s = self.ask("GET", "/status")
        return s, s["models"][0]

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        assert self.proc.wait(60) == 0, self.text()


def unload(s):
    s.ask("POST", "/models/unload", {"model": "ada"})


def in_memory(top):
    s = Server(top, "--park", "memory")
    cached, text = s.complete()
    assert cached == 0
    for leave in (unload, lambda s: s.ask("POST", "/sleep"), unload):
        leave(s)
        status, m = s.status()
        assert status["memory"]["parked"] > 0 and m["kv_parked"] > 4, (status["memory"], m)
        again, same = s.complete()
        assert again > 64 and same == text, (again, same, text)
        status, m = s.status()
        assert status["memory"]["parked"] == 0 and m["kv_restored"] > 4, (status["memory"], m)
    assert status["settings"]["park"]["value"] == "memory"
    s.stop()


def off_by_default(top):
    s = Server(top)
    s.complete()
    unload(s)
    assert s.complete()[0] == 0
    assert s.status()[0]["memory"]["parked"] == 0
    s.stop()


def files_of(top):
    return [f"{top}/parked/{f}" for f in os.listdir(f"{top}/parked")]


def in_files(top, *flags):
    flags = ("--park", "file", "--park-dir", f"{top}/parked", *flags)
    s = Server(top, *flags)
    cached, text = s.complete()
    assert cached == 0
    unload(s)
    again, same = s.complete()
    assert again > 64 and same == text, (again, same, text)
    s.stop()
    assert len(files_of(top)) == 1, files_of(top)
    assert all(os.stat(f).st_mode & 0o777 == 0o600 and os.stat(f).st_size > 10000 for f in files_of(top))
    s = Server(top, *flags)
    again, same = s.complete()
    assert again > 64 and same == text, (again, same, text)
    assert s.status()[1]["kv_restored"] > 4
    s.stop()
    for f in files_of(top):
        with open(f, "r+b") as out:
            out.write(b"nonsense")
    s = Server(top, *flags)
    again, same = s.complete()
    assert again == 0 and same == text, (again, same, text)
    assert "ignored" in s.text(), s.text()
    unload(s)
    assert s.complete()[0] > 64  # the damaged file was replaced
    s.stop()
    shutil.rmtree(f"{top}/parked")


def isolated_in_files(top):
    in_files(top, "--isolate")


def isolated_in_memory(top):
    s = Server(top, "--park", "memory", "--isolate")
    cached, text = s.complete()
    pid = s.status()[1]["pid"]
    for _ in range(2):
        s.ask("POST", "/sleep")
        status, m = s.status()
        assert status["memory"]["parked"] > 0 and m["kv_parked"] > 4, (status["memory"], m)
        again, same = s.complete()
        assert again > 64 and same == text, (again, same, text)
        status, m = s.status()
        assert status["memory"]["parked"] == 0 and m["pid"] == pid, (status["memory"], m)
    unload(s)  # the process ends, and its memory with it
    assert s.complete()[0] == 0
    s.stop()


def isolated_within_limit(top):
    """What a process that sleeps has parked counts for the limit, and goes where a model needs the room."""
    for name in ("bob", "cleo"):
        shutil.copy("models/tern-tales.gguf", f"{top}/models/{name}.gguf")
    flags = ("--park", "memory", "--isolate")
    s = Server(top, *flags)
    s.complete()
    need = s.status()[1]["planned_bytes"]
    s.ask("POST", "/sleep")
    parked = s.status()[0]["memory"]["parked"]
    assert need > 0 and parked > 0, (need, parked)
    s.stop()
    s = Server(top, *flags, "--memory-limit", str(2 * need + parked // 2))
    text = s.complete()[1]
    s.ask("POST", "/sleep")
    pid = s.status()[1]["pid"]
    assert s.status()[0]["memory"]["parked"] == parked
    s.ask("POST", "/models/load", {"model": "bob"})
    status, ada = s.status()
    assert status["memory"]["parked"] == parked and ada["pid"] == pid, (status["memory"], ada)
    s.ask("POST", "/models/load", {"model": "cleo"})
    status, ada = s.status()
    assert [m["state"] for m in status["models"]] == ["sleeping", "ready", "ready"], status["models"]
    assert status["memory"]["parked"] == 0 and ada["pid"] is None and not os.path.exists(f"/proc/{pid}"), (status["memory"], ada)
    for name in ("bob", "cleo"):
        s.ask("POST", "/models/unload", {"model": name})
    assert s.complete() == (0, text)
    s.stop()


def rss(pid):
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1))


def sleeping(top, *flags):
    """A model that sleeps gives its memory back, and keeps its process."""
    s = Server(top, *flags)
    text = s.complete()[1]
    status, m = s.status()
    pid = m.get("pid", status["pid"])
    weights = m["memory"]["weights"]
    for _ in range(3):
        full = rss(pid)
        s.ask("POST", "/sleep")
        status, m = s.status()
        assert m["state"] == "sleeping" and m["planned_bytes"] == 0 and m["kv"]["idle"] == m["kv"]["total"] == 0, m
        assert s.ask("GET", "/is_sleeping")["is_sleeping"]
        assert rss(pid) < full - weights / 2, (rss(pid), full, weights)
        s.ask("POST", "/wake_up")
        status, m = s.status()
        assert m["state"] == "ready" and m.get("pid", status["pid"]) == pid, m
        assert s.complete()[1] == text
    assert "worker" not in m or (m["worker"]["starts"], m["worker"]["restarts"]) == (1, 0), m["worker"]
    return s, pid, text


def ends(pid):
    for _ in range(1200):
        if not os.path.exists(f"/proc/{pid}"):
            return True
        time.sleep(0.05)
    return False


def isolated_sleeping(top):
    s, pid, text = sleeping(top, "--isolate")
    s.ask("POST", "/sleep")
    os.kill(pid, signal.SIGKILL)  # while it sleeps: the next request gets another process
    assert ends(pid)
    assert s.complete()[1] == text
    pid = s.status()[1]["pid"]
    s.ask("POST", "/sleep")
    os.replace(shutil.copy(f"{top}/models/ada.gguf", f"{top}/new"), f"{top}/models/ada.gguf")
    assert s.complete()[1] == text  # its sandbox knows the old file only, if the kernel has Landlock
    s.ask("POST", "/sleep")
    pid = s.status()[1]["pid"]
    unload(s)  # what sleeps can be unloaded; its process has ended by then
    assert not os.path.exists(f"/proc/{pid}")
    assert s.status()[1]["state"] == "unloaded"
    assert s.complete()[1] == text
    pid = s.status()[1]["pid"]
    s.ask("POST", "/sleep")
    assert s.status()[1]["pid"] == pid
    s.stop()
    assert ends(pid)


def local_sleeping(top):
    sleeping(top)[0].stop()


def keep_alive(top, *flags):
    """Of a request to a model that is ready, wherever it runs."""
    s = Server(top, *flags)
    body = {"model": "ada", "prompt": "Once", "max_tokens": 2}
    s.ask("POST", "/v1/completions", body)
    for more, least, most in (({}, 200e3, 300e3), ({"keep_alive": "10m"}, 500e3, 600e3), ({"ttl": 40}, 20e3, 40e3),
                              ({"keep_alive": -1}, -1, -1), ({"ttl": 1e3}, 900e3, 1000e3), ({"x": {"ttl": 1}}, 200e3, 300e3)):
        s.ask("POST", "/v1/completions", {**body, **more})
        assert least <= s.status()[1]["expires_ms"] <= most, (more, s.status()[1]["expires_ms"])
    s.ask("POST", "/v1/completions", {**body, "keep_alive": 0})
    for _ in range(1200):
        if s.status()[1]["state"] == "unloaded":
            break
        time.sleep(0.05)
    assert s.status()[1]["state"] == "unloaded", s.status()[1]
    s.stop()


def isolated_keep_alive(top):
    keep_alive(top, "--isolate")


def tiers(top):
    """The state that is shown, and a hint in a header of a request to another model."""
    shutil.copy("models/tern-tales.gguf", f"{top}/models/bob.gguf")
    fd = os.open(f"{top}/models/bob.gguf", os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    s = Server(top)
    s.ask("POST", "/v1/completions", {"model": "ada", "prompt": "Once", "max_tokens": 2}, {"X-Tern-Hint": "nobody, bob"})
    for _ in range(1200):
        ada, bob = s.ask("GET", "/status")["models"]
        if bob["tier"] == "cached" and ada["tier"] == "warm":
            break
        time.sleep(0.05)
    assert (ada["tier"], bob["tier"], bob["state"]) == ("warm", "cached", "unloaded"), (ada, bob)
    assert bob["cached"] >= 0.9, bob
    assert [m["status"]["tier"] for m in s.ask("GET", "/models")["data"]] == ["warm", "cached"]
    s.stop()


def priority(top):
    """With room for two, the one of lower priority goes, though the other one was used longer ago."""
    for name in ("bob", "cleo"):
        shutil.copy("models/tern-tales.gguf", f"{top}/models/{name}.gguf")
    with open(f"{top}/tern.yaml", "w") as f:
        f.write("models:\n  - path: ada.gguf\n    priority: 5\n  - path: bob.gguf\n    priority: -5\n  - path: cleo.gguf\n    priority: 5\n")
    s = Server(top, "--models-max", "2", "--config", f"{top}/tern.yaml")
    for name in ("ada", "bob", "cleo"):
        s.ask("POST", "/v1/completions", {"model": name, "prompt": "Once", "max_tokens": 2})
    states = {m["id"]: (m["priority"], m["state"]) for m in s.ask("GET", "/status")["models"]}
    assert states == {"ada": (5, "ready"), "bob": (-5, "unloaded"), "cleo": (5, "ready")}, states
    s.stop()


def wrong_settings(top):
    r = subprocess.run([TERN, "serve", "--models-dir", f"{top}/models", "--port", "0", "--park", "file"], capture_output=True,
                       text=True, timeout=60)
    assert r.returncode == 2 and "park-dir" in r.stderr, (r.returncode, r.stderr)


def main():
    bad = 0
    for case in (in_memory, off_by_default, in_files, isolated_in_files, isolated_in_memory, isolated_within_limit, local_sleeping, isolated_sleeping, keep_alive, isolated_keep_alive, tiers, priority, wrong_settings):
        top = tempfile.mkdtemp()
        try:
            os.mkdir(f"{top}/models")
            shutil.copy("models/tern-tales.gguf", f"{top}/models/ada.gguf")
            case(top)
            print("ok park:", case.__name__.replace("_", " "), flush=True)
        except Exception as e:  # noqa: every failure is reported, and the next case runs
            bad = 1
            print(f"not ok park: {case.__name__}: {type(e).__name__}: {str(e)[-2000:]}".replace("\n", " | "), flush=True)
        finally:
            for p in servers:
                p.kill()  # one that has ended is left alone
                p.wait()
            servers.clear()
            shutil.rmtree(top)
    sys.exit(bad)


main()
