"""Hosts as network namespaces on one machine, joined by a bridge: workers on two hosts, the gateway on a third, a link that goes down and
comes back. Needs root and ip netns; else skipped. usage: hosts.py FOLDER"""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet
from fleet import Gateway, Stream, Worker, check, completion, wait_for

folder = sys.argv[1]
tag = f"t{os.getpid() % 10000}"
NET = f"10.{77 + os.getpid() % 100}.{os.getpid() % 250}"
LONG = "Once upon a time there was a little frog who wanted to see the whole wide world, and so"
hosts, started = [], []


def ip(*args, check_rc=True):
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=check_rc)


def add_host(i):
    name = f"{tag}h{i}"
    ip("netns", "add", name)
    hosts.append(name)
    ip("link", "add", f"{tag}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
    ip("link", "set", f"{tag}v{i}", "master", f"{tag}br")
    ip("link", "set", f"{tag}v{i}", "up")
    ip("-n", name, "addr", "add", f"{NET}.{i + 2}/24", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    ip("-n", name, "link", "set", "lo", "up")
    return name, f"{NET}.{i + 2}"


def set_link(i, up):
    ip("link", "set", f"{tag}v{i}", "up" if up else "down")


def clean():
    for p in reversed(started):
        p.stop(5)
    for h in hosts:
        ip("netns", "del", h, check_rc=False)
    ip("link", "del", f"{tag}br", check_rc=False)


if os.geteuid() != 0:
    print("skip hosts as network namespaces: root is needed")
    sys.exit(0)
try:
    try:
        ip("link", "add", f"{tag}br", "type", "bridge")
        ip("addr", "add", f"{NET}.1/24", "dev", f"{tag}br")
        ip("link", "set", f"{tag}br", "up")
        made = [add_host(i) for i in range(3)]
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"skip hosts as network namespaces: {str(getattr(e, 'stderr', e)).strip()[:200]}")
        sys.exit(0)
    workers = [Worker(folder, f"host{i}", "--max-batch", "1", "--cluster-key", "k", "--allow-open", host=made[i][0], address=made[i][1]).start() for i in range(2)]
    gw = Gateway(folder, "gateway", "--cluster-key", "k", "--allow-open", "--peers", ",".join(w.url for w in workers), host=made[2][0], address=made[2][1]).start()
    started.extend([*workers, gw])
    for w in workers:
        w.wait_ready()
    gw.wait_workers(2)
    body = completion(LONG, 300)
    want = json.loads(workers[0].ask("POST", "/v1/completions", body)[1])["choices"][0]["text"]
    for _ in range(2):
        s = Stream(gw, "/v1/completions", body)
        for _ in range(6):
            s.next()
        busy = next(w for w in gw.status()["workers"] if w["in_flight"])
        i = next(k for k, w in enumerate(workers) if w.url == busy["url"])
        set_link(i, False)
        check("a host whose link is down is failed", wait_for(lambda: gw.worker(workers[i].url)["state"] == "failed"))
        s.rest()
        check("its stream continues on the other host, with the same text", s.error is None and s.text == want, (s.error, s.text))
        check("new requests go there", gw.ask("POST", "/v1/completions", completion("Hi", 2))[0] == 200)
        set_link(i, True)
        check("and it is ready again when the link is", wait_for(lambda: gw.worker(workers[i].url)["state"] == "ready", 60))
    # One model over two hosts, whose link goes down in the middle of a step and comes back.
    for w in [*workers, gw]:
        w.stop(5)
    gang = Worker(folder, "gang", "--max-batch", "1", "--tp", "2", "--hosts", f"{made[0][1]},{made[1][0]}", "--agent", "ip netns exec %h",
                  "--remote-tern", os.path.abspath(fleet.TERN), "--step-timeout", "2s", "--allow-open", host=made[0][0], address=made[0][1]).start()
    started.append(gang)
    gang.wait_ready()
    want = json.loads(gang.ask("POST", "/v1/completions", body)[1])["choices"][0]["text"]
    members = gang.status()["models"][0]["gang"]["members"]
    check("a gang has a member on each host", len(members) == 2 and gang.status()["models"][0]["gang"]["transport"] == "tcp", members)
    s = Stream(gang, "/v1/completions", body)
    s.next()
    set_link(1, False)
    s.rest()
    check("a stream whose gang lost a host ends with a typed error", (s.error or {}).get("code") == "worker_lost", s.error)
    set_link(1, True)
    check("the gang starts again when the host is back", wait_for(lambda: gang.get("/ready", timeout=5)[0] == 200 and
          not {m["pid"] for m in gang.status()["models"][0]["gang"]["members"]} & {m["pid"] for m in members}, 150))
    check("and answers as before", json.loads(gang.ask("POST", "/v1/completions", body)[1])["choices"][0]["text"] == want)
    check("nothing of the first gang is left", wait_for(lambda: not any(os.path.exists(f"/proc/{m['pid']}") for m in members), 60), members)
finally:
    clean()
    fleet.print_logs(folder)
sys.exit(fleet.failed)
