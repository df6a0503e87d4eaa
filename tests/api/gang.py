"""A served gang of two: the same greedy text as one process, members killed when idle and in the middle of an answer."""
import json, os, signal, sys, time, urllib.request

URL, LOCAL, PID = os.environ["TERN_URL"], os.environ["TERN_URL_LOCAL"], int(os.environ["TERN_PID"])
failed = False


def say(good, what):
    global failed
    failed |= not good
    print(("ok " if good else "not ok ") + "gang: " + what, flush=True)


def post(base, body, timeout=120):
    r = urllib.request.Request(base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(r, timeout=timeout) as f:
            return f.status, json.load(f)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def members():
    pids = set()
    for t in os.listdir(f"/proc/{PID}/task"):
        pids |= set(map(int, open(f"/proc/{PID}/task/{t}/children").read().split()))
    return [p for p in pids if "member" in open(f"/proc/{p}/cmdline").read().split("\0")]


def ask(base, prompt, n=48):
    return post(base, {"model": "tales", "prompt": prompt, "max_tokens": n, "temperature": 0})


def wait_back(old):
    for _ in range(600):
        try:
            new = members()
            if new and not set(new) & set(old):
                urllib.request.urlopen(URL + "/ready", timeout=2)
                return new
        except Exception:
            pass
        time.sleep(0.1)
    return []


prompts = ["Once upon a time", "The little frog", "Tom and Lily went to the park because", "It was raining. " * 20]
say(len(members()) == 1, "one member beside the leader")
for p in prompts:
    a, b = ask(URL, p), ask(LOCAL, p)
    say(a[0] == 200 and a[1]["choices"][0]["text"] == b[1]["choices"][0]["text"], f"the same greedy text for {p[:20]!r}")

# A member that is killed while nothing runs: the gang starts again by itself, before the next request.
old = members()
os.kill(old[0], signal.SIGKILL)
new = wait_back(old)
say(bool(new), "an idle gang starts again after a member was killed")
a, b = ask(URL, prompts[0]), ask(LOCAL, prompts[0])
say(a[0] == 200 and a[1]["choices"][0]["text"] == b[1]["choices"][0]["text"], "and answers as before")

# In the middle of a stream: the stream ends with a typed error, and the next request is served.
old = members()
body = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "stream": True, "ignore_eos": True}
r = urllib.request.Request(URL + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
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
            os.kill(old[0], signal.SIGKILL)
say(error is not None and "gang has ended" in error["message"], f"a stream ends with a typed error: {error}")
say(bool(wait_back(old)), "and the gang starts again")
code, j = 0, None
for _ in range(100):
    code, j = ask(URL, prompts[1])
    if code == 200:
        break
    time.sleep(0.2)
say(code == 200 and j["choices"][0]["text"] == ask(LOCAL, prompts[1])[1]["choices"][0]["text"], "the next request is answered")
sys.exit(failed)
