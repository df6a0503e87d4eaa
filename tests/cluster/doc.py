"""docs/cluster.md, "Two machines in ten minutes", word by word: its commands are read from the page and run in two network namespaces with
the addresses of the page. Needs root and ip netns; else skipped. A block of commands begins with its machine: "# machine a". A line that
begins with "tern serve" or "tern gateway" goes on in the background; every other one must succeed. ssh and scp, which no namespace has a server for,
are scripts that go to the other namespace. usage: doc.py FOLDER"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet
from fleet import check, wait_for

folder = sys.argv[1]
SECTION = "## Two machines in ten minutes"
tag = f"t{os.getpid() % 10000}"
ADDRESS = {"a": "10.0.0.1", "b": "10.0.0.2"}
machines, running = {}, []


def ip(*args, check_rc=True):
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=check_rc)


def make_machines():
    for m in ADDRESS:
        ip("netns", "add", f"{tag}{m}")
        machines[m] = f"{tag}{m}"
    ip("link", "add", "eth0", "netns", machines["a"], "type", "veth", "peer", "name", "eth0", "netns", machines["b"])
    for m, address in ADDRESS.items():
        ip("-n", machines[m], "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", machines[m], "link", "set", "eth0", "up")
        ip("-n", machines[m], "link", "set", "lo", "up")


def script(name, text):
    path = os.path.join(folder, "bin", name)
    open(path, "w").write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def make_homes():
    """Each machine has a folder with the model, and tern, ssh and scp in its path."""
    os.makedirs(os.path.join(folder, "bin"))
    for m in ADDRESS:
        os.makedirs(home(m))
        os.symlink(os.path.abspath(fleet.MODEL), os.path.join(home(m), "model.gguf"))
    os.symlink(os.path.abspath(fleet.TERN), os.path.join(folder, "bin", "tern"))
    where = "".join(f"{ADDRESS[m]}) ns={machines[m]} home={home(m)} ;;\n" for m in ADDRESS)
    script("ssh", f'while [ "$1" = -o ]; do shift 2; done\nhost=$1; shift\ncase $host in\n{where}*) exit 255 ;;\nesac\n'
                  'cd "$home" && exec ip netns exec "$ns" sh -c "$*"\n')
    script("scp", f'for last; do :; done\ncase ${{last%:}} in\n{where}*) exit 255 ;;\nesac\n'
                  'while [ $# -gt 1 ]; do cp "$1" "$home/"; shift; done\n')


def home(m):
    return os.path.join(os.path.abspath(folder), m)


def blocks(page):
    """(machine, lines) of every block of the section; a line that ends with a backslash goes on."""
    part = page[page.index(SECTION) + len(SECTION):]
    part = part[:part.index("\n## ")]
    for text in re.findall(r"(?:^    .*\n)+", part, re.M):
        lines = re.sub(r"\\\n", "", re.sub(r"^    ", "", text, flags=re.M)).splitlines()
        m = re.match(r"# machine ([ab])\b", lines[0])
        if m:
            yield m.group(1), [l for l in lines[1:] if l.strip()]
        else:
            check(f"a block of the page names its machine", False, lines[0])


def shell(m, lines, **more):
    env = {**fleet.ENV, "PATH": os.path.join(os.path.abspath(folder), "bin") + ":" + os.environ["PATH"]}
    return subprocess.Popen(["ip", "netns", "exec", machines[m], "bash", "-c", "\n".join(lines)], cwd=home(m), env=env,
                            start_new_session=True, **more)


def run_lines(m, lines):
    """Settings of the shell come first, as in a terminal; replies are returned."""
    said = [l for l in lines if l.startswith("export ")]
    replies = []
    for line in lines:
        if line.startswith("export "):
            continue
        if re.match(r"tern (serve|gateway)\b", line):
            log = open(os.path.join(folder, f"{len(running)}-{line.split()[1]}.log"), "w")
            running.append((shell(m, [*said, "exec " + line], stdout=log, stderr=log), line))
            address = re.search(r"--host (\S+)", line).group(1), re.search(r"--port (\d+)", line).group(1)
            ready = ["curl", "-sf", "-o", "/dev/null", f"http://{address[0]}:{address[1]}/ready"]
            good = wait_for(lambda: subprocess.run(["ip", "netns", "exec", machines[m], *ready]).returncode == 0)
            check(f"machine {m}: {line.split('#')[0].strip()[:90]}", good and running[-1][0].poll() is None)
            if "gateway" in line:  # it is ready with one worker; people type slower than it finds the other
                wait_for(lambda: [w["state"] for w in status()["workers"]] == ["ready", "ready"])
            continue
        p = shell(m, [*said, line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = p.communicate(timeout=180)
        check(f"machine {m}: {line.split('#')[0].strip()[:90]}", p.returncode == 0, err)
        replies.append(out)
    return replies


def end(p):
    if p.poll() is None:
        os.killpg(p.pid, signal.SIGTERM)
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()


def clean():
    for p, _ in reversed(running):
        end(p)
    for name in machines.values():
        ip("netns", "del", name, check_rc=False)


def answer_survives():
    """Kills machine b's worker, and then a's, while the answer of the gateway streams: as the page says, it goes on."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True})
    line = f"curl -sN http://10.0.0.1:9000/v1/completions -H \"Authorization: Bearer $(cat keys.txt)\" -d '{body}'"
    p = shell("a", [line], stdout=subprocess.PIPE, text=True)
    seen = 0
    for reply in p.stdout:
        seen += reply.startswith("data: ")
        if seen == 5:
            break
    busy = next(w["url"] for w in status()["workers"] if w["in_flight"])
    victim = next(p for p, l in running if l.startswith("tern serve") and busy[len("http://"):].split(":")[0] in l)
    os.killpg(victim.pid, signal.SIGKILL)
    rest = p.stdout.read()
    p.wait()
    return "[DONE]" in rest and '"error"' not in rest, rest[-300:]


def status():
    line = 'curl -s http://10.0.0.1:9000/status -H "Authorization: Bearer $(cat keys.txt)"'
    return json.loads(shell("a", [line], stdout=subprocess.PIPE, text=True).communicate(timeout=120)[0])


if os.geteuid() != 0 or not shutil.which("curl"):
    print("skip docs/cluster.md in network namespaces: root and curl are needed")
    sys.exit(0)
try:
    try:
        make_machines()
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"skip docs/cluster.md in network namespaces: {str(getattr(e, 'stderr', e)).strip()[:200]}")
        sys.exit(0)
    make_homes()
    replies = []
    for machine, lines in blocks(open("docs/cluster.md").read()):
        if any("--tp " in l for l in lines):
            good, found = answer_survives()
            check("a worker is killed while an answer streams: the answer goes on", good, found)
            while running:
                end(running.pop()[0])
        replies.append(run_lines(machine, lines))
    said = [r for one in replies for r in one if r.strip()]
    chats = [json.loads(r) for r in said if '"choices"' in r]
    check("the page's requests are answered", len(chats) >= 2 and all(c["choices"][0]["message"]["content"] for c in chats), said)
    states = [json.loads(r) for r in said if '"workers"' in r]
    check("its status has both workers, ready", len(states) == 1 and [w["state"] for w in states[0]["workers"]] == ["ready", "ready"], said)
    check("its gang has a member on each machine", any("2 members, tp 2" in r for r in said), said)
finally:
    clean()
    fleet.print_logs(folder)
sys.exit(fleet.failed)
