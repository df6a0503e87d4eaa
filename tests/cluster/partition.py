"""Durable requests over hosts that are network namespaces: NATS on one, a gateway and a worker on each of two others. The link of one goes down
for five seconds, that of NATS, then that of a gateway: no job is lost or doubled. Needs root and ip netns; else skipped.
usage: partition.py FOLDER"""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import broker
import fleet
from broker import Nats
from durablejobs import Submitter, check_once
from fleet import Gateway, Worker, check, wait_for
from netns import Hosts

folder = sys.argv[1]
started, hosts = [], None
SECONDS = 5

if os.geteuid() != 0:
    print("skip partitions between hosts: root is needed")
    sys.exit(0)
if not broker.is_there():
    print("skip partitions between hosts: nats-server or tern-nats.so is missing")
    sys.exit(0)
try:
    try:
        hosts = Hosts(3)
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"skip partitions between hosts: {str(getattr(e, 'stderr', e)).strip()[:200]}")
        sys.exit(0)
    nats = Nats(folder, "nats", address=hosts.address(0), host=hosts.names[0]).start().wait_ready()
    started.append(nats)
    common = ["--nats", nats.url, "--cluster-key", "k", "--allow-open"]
    workers = [Worker(folder, f"worker{i}", *common, host=hosts.names[i], address=hosts.address(i)).start() for i in (1, 2)]
    gateways = [Gateway(folder, f"gateway{i}", *common, host=hosts.names[i], address=hosts.address(i)).start() for i in (1, 2)]
    started.extend(workers + gateways)
    for g in gateways:
        g.wait_workers(2)
    assert broker.wait_streams(nats)
    s = Submitter(gateways, "partition", timeout=8)
    n = 0
    for cut, what in ((0, "NATS"), (2, "a gateway and its worker")):
        flow = s.flow(range(n, n + 12), 0.25, 60)
        n += 12
        time.sleep(0.7)
        hosts.set_link(cut, False)
        t0 = time.time()
        if cut == 0:
            check("a gateway says that NATS is away", wait_for(lambda: gateways[0].status()["durable"]["connected"] is False, 30))
        time.sleep(max(0, SECONDS - (time.time() - t0)))
        hosts.set_link(cut, True)
        flow.join()
        check(f"the link of {what} was down for {SECONDS} s, and requests were accepted in the end", len(s.ids) == n, (len(s.ids), s.bad[:3]))
    s.check("partitions", n)
    check_once(nats, "partitions", s.ids.values())
finally:
    for p in reversed(started):
        p.stop(5)
    if hosts:
        hosts.remove()
    fleet.print_logs(folder)
sys.exit(fleet.failed)
