"""The memory that /status accounts for a model, against what the kernel says it took (/proc/PID/smaps): in the server's process
and in one of its own, for the shipped model and for that of $TERN_BIG_MODEL. Run by tests/cli/memory.sh.

What the model took is what its process has less after POST /sleep, which keeps the process: resident pages of the model's
file, and anonymous memory. Requests fill the KV cache before, so that all of its pages are touched. The prefix cache's tables,
stacks and buffers of requests are not weights, KV or scratch: they are the constant."""
import http.client
import json
import os
import random
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import serving  # noqa: E402

MIB = 1 << 20
SHARE = 0.02
OWN = 3 * MIB                                            # of the process: heap of requests, tables, stacks
CTX, KV_TOKENS = 512, 2048


def ask(server, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    c.close()
    assert r.status == 200, (path, r.status, data)
    return json.loads(data or b"null")


def model_of(server):
    return ask(server, "GET", "/status")["models"][0]


def resident(pid, path):
    """Bytes of the file's pages, and of anonymous memory."""
    file = anonymous = 0
    mapped = False
    for line in open(f"/proc/{pid}/smaps"):
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mapped = line.rstrip("\n").endswith(path)
        elif line.startswith("Rss:") and mapped:
            file += 1024 * int(line.split()[1])
        elif line.startswith("Anonymous:"):
            anonymous += 1024 * int(line.split()[1])
    return file, anonymous


def fill(server):
    """Prompts until every block of the KV cache was used, and one step of the largest size was made."""
    chance = random.Random(1)
    vocab = model_of(server)["vocab"]
    for _ in range(200):
        if model_of(server)["kv"]["free"] <= 1:          # one is never used
            return
        prompt = chance.sample(range(vocab), CTX - 12)
        ask(server, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True})
    raise AssertionError(model_of(server)["kv"])


def measure(path, *flags):
    s = serving.Server([serving.TERN, "serve", "-m", path, "-c", str(CTX), "--kv-tokens", str(KV_TOKENS), "--max-seqs", "4",
                        "--log-level", "warn", *flags])
    try:
        rows = []
        for _ in range(2):                               # and once more, in the same process
            fill(s)
            status = ask(s, "GET", "/status")
            m = status["models"][0]
            pid = m.get("pid") or status["pid"]
            file, anonymous = resident(pid, path)
            ask(s, "POST", "/sleep")
            left, base = resident(pid, path)
            ask(s, "POST", "/wake_up")
            rows.append((m["memory"], file, anonymous - base, left))
        return rows
    finally:
        assert s.stop() == 0


def check(name, rows):
    for memory, file, anonymous, left in rows:
        accounted, has = memory["total"], file + anonymous
        print(f"# {name}: accounted {accounted / MIB:.2f} MiB (weights {memory['weights'] / MIB:.2f}, KV {memory['kv'] / MIB:.2f}, "
              f"scratch {memory['scratch'] / MIB:.2f}), resident {has / MIB:.2f} MiB (file {file / MIB:.2f}, anonymous "
              f"{anonymous / MIB:.2f}), asleep {left / MIB:.2f} of the file", flush=True)
    for memory, file, anonymous, left in rows:
        accounted, has = memory["total"], file + anonymous
        assert has <= accounted * (1 + SHARE) + OWN, f"{has - accounted} bytes more than accounted"
        assert accounted <= has * (1 + SHARE) + OWN, f"{accounted - has} bytes less than accounted"
        assert left == 0, f"{left} bytes of the file are mapped while the model sleeps"


def main():
    bad = 0
    big = os.environ.get("TERN_BIG_MODEL")
    for what, path in (("shipped model", serving.SHIPPED), *((("large model", os.path.realpath(big)),) if big else ())):
        for where, flags in (("in-process", ()), ("isolated", ("--isolate",))):
            name = f"{what}, {where}"
            try:
                check(name, measure(path, *flags))
                print(f"ok memory accounting: {name}", flush=True)
            except Exception as e:
                bad = 1
                print(f"not ok memory accounting: {name}: {type(e).__name__} {str(e)[:600]}", flush=True)
    return bad


sys.exit(main())
