"""Membership over NATS, two gateways, a policy as a Lua script, and tern cluster. usage: nats.py FOLDER"""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet
from fakes import Fake, error
from fleet import ENV, TERN, Gateway, Stream, Worker, check, completion, free_port, metric, wait_for

folder = sys.argv[1]
LONG = "Once upon a time there was a little frog who wanted to see the whole wide world, and so"
BUILD = os.path.dirname(TERN)
NATS = shutil.which("nats-server") or ("/usr/sbin/nats-server" if os.path.exists("/usr/sbin/nats-server") else None)
started = []


class Nats:
    def __init__(self):
        self.port = free_port()
        self.p = None

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def start(self):
        self.p = subprocess.Popen([NATS, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", os.path.join(folder, "nats")],
                                  stdout=subprocess.DEVNULL, stderr=open(os.path.join(folder, "nats.log"), "a"))
        return self

    def stop(self, *_):
        if self.p and self.p.poll() is None:
            self.p.kill()
            self.p.wait()


def script(name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def states(g):
    return {w["url"]: w["state"] for w in g.status()["workers"]}


def test_membership():
    nats = Nats().start()
    started.append(nats)
    workers = [Worker(folder, f"member{i}", "--max-batch", "1", "--nats", nats.url).start() for i in range(2)]
    started.extend(workers)
    gws = [Gateway(folder, f"gateway{i}", "--nats", nats.url).start() for i in range(2)]
    started.extend(gws)
    for g in gws:
        g.wait_workers(2)
    check("workers register, and both gateways find them", all(set(states(g)) == {w.url for w in workers} for g in gws), [states(g) for g in gws])
    check("/status says that NATS is connected", gws[0].status()["nats"]["connected"] is True)
    body = completion(LONG, 60)
    for w in workers:
        w.wait_ready()
    want = json.loads(workers[0].ask("POST", "/v1/completions", body)[1])["choices"][0]["text"]
    check("both gateways serve", all(json.loads(g.ask("POST", "/v1/completions", body)[1])["choices"][0]["text"] == want for g in gws))

    late = Worker(folder, "late", "--max-batch", "1", "--nats", nats.url).start()
    started.append(late)
    check("a worker that comes later joins", wait_for(lambda: states(gws[0]).get(late.url) == "ready"))
    late.stop()
    check("a worker that leaves is gone", wait_for(lambda: late.url not in states(gws[0]) and late.url not in states(gws[1])))

    gws[1].kill()
    check("the other gateway goes on", json.loads(gws[0].ask("POST", "/v1/completions", body)[1])["choices"][0]["text"] == want)

    s = Stream(gws[0], "/v1/completions", body)
    s.next()
    nats.stop()
    s.rest()
    check("a stream does not notice that NATS is away", s.error is None and s.text == want, (s.error, s.text))
    check("the gateway says so", wait_for(lambda: gws[0].status()["nats"]["connected"] is False))
    check("without NATS it goes on with the workers it knows",
          all(gws[0].ask("POST", "/v1/completions", completion("Hi", 2))[0] == 200 for _ in range(6)), states(gws[0]))
    workers[1].kill()
    check("and notices a death by traffic and heartbeats", wait_for(lambda: states(gws[0]).get(workers[1].url) == "failed"))
    check("requests go on", gws[0].ask("POST", "/v1/completions", completion("Hi", 2))[0] == 200)
    nats.start()
    check("NATS is back", wait_for(lambda: gws[0].status()["nats"]["connected"] is True))
    check("the worker that died meanwhile is gone", wait_for(lambda: workers[1].url not in states(gws[0])))
    check("the one that lives is registered again", wait_for(lambda: states(gws[0]).get(workers[0].url) == "ready"))
    time.sleep(6)  # longer than a lease
    check("and stays, by its lease", states(gws[0]).get(workers[0].url) == "ready", states(gws[0]))
    new = Worker(folder, "new", "--max-batch", "1", "--nats", nats.url).start()
    started.append(new)
    check("a new worker joins after the restart", wait_for(lambda: states(gws[0]).get(new.url) == "ready"))
    new.kill()
    check("a worker that is killed is failed, then gone with its lease", wait_for(lambda: new.url not in states(gws[0])))


def test_silent():
    """A worker stands still with a request, and its lease ends: the request moves to the worker that comes then."""
    nats = Nats().start()
    started.append(nats)
    old = Worker(folder, "silent", "--max-batch", "1", "--nats", nats.url).start()
    g = Gateway(folder, "silent-gateway", "--nats", nats.url).start()
    started.extend([old, g])
    old.wait_ready()
    g.wait_workers(1)
    got = []
    t = threading.Thread(target=lambda: got.append(g.ask("POST", "/v1/completions", completion(LONG, 600, ignore_eos=True))[0]), daemon=True)
    t.start()
    check("the request is on its worker", wait_for(lambda: g.worker(old.url)["in_flight"] == 1))
    old.signal(signal.SIGSTOP)
    check("a worker that is silent is gone with its lease", wait_for(lambda: states(g).get(old.url) == "gone"), states(g))
    new = Worker(folder, "comes", "--max-batch", "1", "--nats", nats.url).start()
    started.append(new)
    t.join(60)
    check("its request moves to a worker that comes later", got == [200], got)
    check("and it is forgotten", wait_for(lambda: old.url not in states(g)), states(g))


def test_refusal():
    """A worker that leaves refuses while the other one is slow: the request waits for that one."""
    leaves, slow = Fake(lambda _: error(503, "shutting_down")), Fake(lambda _: (200, b'{"id": "slow"}'))
    g = Gateway(folder, "refusal-gateway", "--peers", f"{leaves.url},{slow.url}", "--policy", "round-robin").start()
    started.extend([leaves, slow, g])
    g.wait_workers(2)
    for _ in range(5):
        slow.awake.clear()
        g.wait_state(slow.url, "failed")
        n = len(leaves.seen)
        timer = threading.Thread(target=lambda: (wait_for(lambda: len(leaves.seen) > n), slow.awake.set()), daemon=True)
        timer.start()
        status, text, _ = g.ask("POST", "/v1/completions", completion("Hi", 1))
        timer.join()
        if status == 200:
            break
        g.wait_state(slow.url, "ready")
    check("a refusal is not passed on while another worker may only be slow", status == 200 and text == '{"id": "slow"}', (status, text))


def test_script():
    if not os.path.exists(os.path.join(BUILD, "tern-lua.so")):
        print("skip policy script: tern-lua.so is not built")
        return
    workers = [Worker(folder, f"scripted{i}").start() for i in range(2)]
    started.extend(workers)
    for w in workers:
        w.wait_ready()
    peers = ",".join(w.url for w in workers)

    def served(text, name, n=4):
        g = Gateway(folder, name, "--peers", peers, "--policy-script", script(name + ".lua", text)).start()
        started.append(g)
        g.wait_workers(2)
        codes = [g.ask("POST", "/v1/completions", completion(f"Number {i}", 1))[0] for i in range(n)]
        st = g.status()
        g.stop()
        return codes, st["policy_script"], [w["requests"] for w in st["workers"]]

    codes, n, per = served("function place(request, workers) return #workers end", "last")
    check("a script chooses the worker", codes == [200] * 4 and n == {"chosen": 4, "failed": 0} and per == [0, 4], (codes, n, per))
    for name, text in (("loop", "function place() while true do end end"), ("memory", "function place() local t = 'x' while true do t = t .. t end end"),
                       ("error", "function place() error('no') end"), ("index", "function place() return 77 end"),
                       ("io", "function place() return io.open('/etc/passwd') and 1 end"), ("os", "function place() os.exit(1) end"),
                       ("load", "function place() return load('return 1')() end"), ("deep", "function place() return place() + place() end"),
                       ("pcall", "function place() while true do pcall(function() while true do end end) end end"),
                       ("pattern", "function place() return (('a'):rep(32)):find(('a?'):rep(32) .. ('a'):rep(32) .. 'b') end"),
                       ("plain", "function place() local p = '' for i = 1, 40 do p = p .. 'a?' end return ('b'):find(p .. ('x'):match('y')) end"),
                       ("rep", "function place() return #string.rep('', 1 << 62) end"), ("move", "function place() table.move({}, 1, 1 << 60, 2) end"),
                       ("sort", "function place() local t = {} for i = 1, 5000 do t[i] = -i end table.sort(t) return 1 end")):
        codes, n, per = served(text, name, 2)
        check(f"a script that fails ({name}) leaves the choice to the built-in policy, and is counted", codes == [200] * 2 and n == {"chosen": 0, "failed": 2}, (codes, n))
    allowed = """function place(request, workers)
  local t = { 3, 1, 2 }
  table.sort(t, function(a, b) return a < b end)
  assert(table.concat(t, ",") == "1,2,3" and ("a.b"):find(".") == 2 and string.format("%d", 7) == "7" and ("x"):upper() == "X")
  return 1
end"""
    codes, n, per = served(allowed, "allowed", 2)
    check("a script has math, plain text functions and tables", codes == [200] * 2 and n == {"chosen": 2, "failed": 0}, n)
    codes, n, per = served("function place() return nil end", "nil", 2)
    check("nil is no failure", codes == [200] * 2 and n == {"chosen": 0, "failed": 0}, n)
    for name, text, want in (("syntax", "function place(", "syntax"), ("none", "x = 1", "no function place"), ("bytecode", "\x1bLua", "text")):
        p = subprocess.run([TERN, "gateway", "--port", "0", "--peers", peers, "--policy-script", script(name + ".lua", text)], capture_output=True, text=True, timeout=60, env=ENV)
        check(f"a script with {name} is refused at the start, exit 2", p.returncode == 2 and "policy-script" in p.stderr, p.stderr)


def test_cluster_command():
    w = Worker(folder, "commanded").start().wait_ready()
    g = Gateway(folder, "commanded-gateway", "--peers", w.url).start()
    started.extend([w, g])
    g.wait_workers(1)

    def cluster(*args):
        return subprocess.run([TERN, "cluster", *args, "--url", g.url], capture_output=True, text=True, timeout=60, env=ENV)

    p = cluster("status")
    check("tern cluster status lists the workers", p.returncode == 0 and w.url in p.stdout and "ready" in p.stdout, p.stdout + p.stderr)
    p = cluster("status", "--json")
    check("with --json as JSON", p.returncode == 0 and json.loads(p.stdout)["workers"][0]["url"] == w.url, p.stdout)
    p = cluster("drain", w.url)
    check("tern cluster drain", p.returncode == 0 and states(g)[w.url] == "draining", p.stderr)
    p = cluster("undrain", w.url)
    check("tern cluster undrain", p.returncode == 0 and states(g)[w.url] == "ready", p.stderr)
    p = cluster("weights", w.url, "2.5")
    check("tern cluster weights", p.returncode == 0 and g.worker(w.url)["weight"] == 2.5, p.stderr)
    check("a wrong word, exit 2", cluster("drian", w.url).returncode == 2)
    check("a wrong weight, exit 2", cluster("weights", w.url, "-1").returncode == 2)
    check("an unknown worker, exit 1", cluster("drain", "http://none").returncode == 1)
    p = subprocess.run([TERN, "cluster", "status", "--url", w.url], capture_output=True, text=True, timeout=60, env=ENV)
    check("a server that is no gateway is an error", p.returncode != 0 and "no gateway" in p.stderr, p.stderr)


try:
    chosen = sys.argv[2:]
    for name, fn in list(globals().items()):
        if not name.startswith("test_") or (chosen and name not in chosen):
            continue
        if name in ("test_membership", "test_silent") and not (NATS and os.path.exists(os.path.join(BUILD, "tern-nats.so"))):
            print("skip membership over NATS: nats-server or tern-nats.so is missing")
            continue
        fn()
finally:
    for p in reversed(started):
        p.stop(5)
    fleet.print_logs(folder)
sys.exit(fleet.failed)
