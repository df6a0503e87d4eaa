"""A served gang of two: the same greedy text as one process; members that are killed or stopped while it is idle, before an answer has sent
anything and in the middle of a stream; what /status and /metrics say of them."""
import json, os, signal, subprocess, sys, threading, time, urllib.request

URL, LOCAL, PID = os.environ["TERN_URL"], os.environ["TERN_URL_LOCAL"], int(os.environ["TERN_PID"])
WHAT = os.environ.get("TERN_GANG", "gang")
MPI = WHAT == "gang over mpi"
LONG = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
failed = False


def say(good, what, found=""):
    global failed
    failed |= not good
    print(f"ok {WHAT}: {what}" if good else f"not ok {WHAT}: {what}: {str(found)[:500]}", flush=True)


def wait_for(fn, seconds=120):
    end = time.time() + seconds
    while time.time() < end:
        try:
            if fn():
                return True
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.02)
    return False


def get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as f:
        return f.read().decode()


def model():
    return json.loads(get("/status"))["models"][0]


def pids():
    """Of the members, the leader first."""
    return [m["pid"] for m in model()["gang"]["members"]]


def post(base, body, timeout=180):
    r = urllib.request.Request(base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(r, timeout=timeout) as f:
            return f.status, json.load(f)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def ask(base, prompt, n=48):
    return post(base, {"model": "tales", "prompt": prompt, "max_tokens": n, "temperature": 0})


def text(reply):
    return reply[1]["choices"][0]["text"] if reply[0] == 200 else reply


def is_back(old):
    get("/ready")
    return not set(pids()) & set(old)


def are_gone(old):
    return not any(os.path.exists(f"/proc/{p}") for p in old)


def start(body):
    """The request in a thread: the list gets its reply."""
    got = []
    t = threading.Thread(target=lambda: got.append(post(URL, body)))
    t.start()
    return t, got


prompts = ["Once upon a time", "The little frog", "Tom and Lily went to the park because", "It was raining. " * 20]
gang = model()["gang"]
members = gang["members"]
say(gang["tp"] == 2 and gang["pp"] == 1 and [m["rank"] for m in members] == [0, 1], "/status names its members", gang)
say(all(m["pid"] != PID and os.path.exists(f"/proc/{m['pid']}") and m["host"] and "cpu" in m["device"] and m["layers"] == [0, 12] and
        m["weight_bytes"] > 0 and m["kv_bytes"] > 0 for m in members) and abs(sum(m["share"] for m in members) - 1) < 0.01,
    "with host, process, device, layers, share and memory", members)
for p in prompts if not MPI else prompts[:1]:
    a, b = ask(URL, p), ask(LOCAL, p)
    say(a[0] == 200 and text(a) == text(b), f"the same greedy text for {p[:20]!r}", (a, b))
# An answer may come before the counters of the worker are copied.
say(wait_for(lambda: 0 < model()["gang"]["comm_share"] <= 1), "/status has the share of communication", model()["gang"])
m = get("/metrics")
say('tern_gang_members{model="tales"} 2' in m and 'tern_gang_member_bytes{model="tales",rank="1"}' in m and 'tern_gang_comm_share{model="tales"}' in m,
    "/metrics has members, their memory and communication", [l for l in m.splitlines() if "gang" in l])

want = text(post(LOCAL, LONG))
for sig, name in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")):
    # An answer that has sent nothing is made again on the next gang.
    old, retried = pids(), model()["worker"]["retried"]
    t, got = start(LONG)
    say(wait_for(lambda: model()["running"] == 1), "a request runs")
    os.kill(old[1], sig)
    t.join()
    say(got and text(got[0]) == want, f"a request whose member is {name} before its first byte is answered by the next gang", got)
    say(model()["worker"]["retried"] == retried + 1 and not set(pids()) & set(old), "the whole gang is another one", model())
    say(wait_for(lambda: are_gone(old), 30), "and nothing of the first is left", old)

# While nothing runs, too. Not more deaths than these: the fifth in a minute opens the breaker.
if not MPI:
    old = pids()
    os.kill(old[1], signal.SIGKILL)
    say(wait_for(lambda: is_back(old)) and wait_for(lambda: are_gone(old), 30), "an idle gang starts again after a member was killed", old)

# In the middle of a stream: it ends with a typed error, and the next request is served.
old = pids()
r = urllib.request.Request(URL + "/v1/completions", json.dumps({**LONG, "stream": True}).encode(), {"Content-Type": "application/json"})
error, n = None, 0
with urllib.request.urlopen(r, timeout=120) as f:
    for line in f:
        if not line.startswith(b"data: ") or b"[DONE]" in line:
            continue
        j = json.loads(line[6:])
        if "error" in j:
            error = j["error"]
            break
        n += 1
        if n == 3:
            os.kill(old[not MPI], signal.SIGKILL)  # in an MPI job the leader: the others go with it
say(error is not None and error["code"] == "worker_lost" and (MPI or "gang has ended: member 1" in error["message"]),
    "a stream ends with a typed error", error)
say(wait_for(lambda: is_back(old)) and wait_for(lambda: are_gone(old), 30), "and the gang starts again, as a whole", old)
say(wait_for(lambda: ask(URL, prompts[1])[0] == 200), "the next request is answered")
a, b = ask(URL, prompts[1]), ask(LOCAL, prompts[1])
say(text(a) == text(b), "as before", (a, b))
w = model()["worker"]
say(w["restarts"] == (3 if MPI else 4) and sum(w["deaths"].values()) == w["restarts"], "/status counts starts and deaths", w)
shown = subprocess.run([os.environ["TERN"], "cluster", "status", "--url", URL], capture_output=True, text=True)
say(shown.returncode == 0 and f" {pids()[1]} " in shown.stdout and "2 members, tp 2, pp 1" in shown.stdout, "tern cluster status lists the members", shown)
sys.exit(failed)
