"""The knob test: see knobs.sh. usage: knobs.py TERN FOLDER"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

TERN, TMP = sys.argv[1], sys.argv[2]
MODEL = "models/tern-tales.gguf"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("TERN_")}
failed = 0


def check(name, good, found=""):
    global failed
    print(f"ok {name}" if good else f"not ok {name}: {str(found)[:400]}")
    failed |= not good


def put(name, text):
    path = os.path.join(TMP, name)
    with open(path, "w") as f:
        f.write(text)
    return path


KEYS = put("keys.txt", "sk-knob name=knob admin\n")
TEMPLATE = put("t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}")
KEY_FILE = put("model.key", "00" * 32 + "\n")
PEM = put("x.pem", "-")
FOLDER = os.path.join(TMP, "models")
os.makedirs(FOLDER, exist_ok=True)

# name: (as a user writes it, value, effective). One value: effective is the same.
# SAME: the effective value is the value.
SAME = object()
CASES = {
    "model": (MODEL, [MODEL], SAME),
    "alias": ("knob", ["knob"], SAME),
    "models-dir": (FOLDER, FOLDER, SAME),
    "preload": ("a,b", "a,b", SAME),
    "keep-alive": ("90s", 90, SAME),
    "models-max": ("3", 3, SAME),
    "read-ahead": ("false", False, SAME),
    "residence": ("3s", 3, SAME),
    "patience": ("700ms", 0.7, SAME),
    "isolate": ("true", True, SAME),
    "sandbox": ("false", False, SAME),
    "load-timeout": ("0", 0, "unlimited"),
    "worker-silence": ("20s", 20, SAME),
    "chat-template": (TEMPLATE, TEMPLATE, SAME),
    "rerank": ("generative", "generative", SAME),
    "verify-manifest": ("warn", "warn", SAME),
    "model-key-file": (KEY_FILE, KEY_FILE, SAME),
    "model-key-command": (f"cat {KEY_FILE}", f"cat {KEY_FILE}", SAME),
    "config": (None, None, None),  # names the file itself: seen in each case by file
    "host": ("localhost", "localhost", SAME),
    "port": ("0", 0, "any free port"),
    "socket": (TMP + "/s", TMP + "/s", SAME),
    "tls-cert": (PEM, PEM, SAME),
    "tls-key": (PEM, PEM, SAME),
    "cors": ("true", True, SAME),
    "cors-origins": ("https://knob.example", "https://knob.example", SAME),
    "allowed-hosts": ("knob.example", "knob.example", SAME),
    "max-connections": ("77", 77, SAME),
    "max-body": ("64K", 65536, SAME),
    "max-bodies": ("2M", 2 << 20, SAME),
    "max-header": ("2K", 2048, SAME),
    "max-unread": ("8K", 8192, SAME),
    "header-timeout": ("11s", 11, SAME),
    "body-timeout": ("12s", 12, SAME),
    "idle-timeout": ("13s", 13, SAME),
    "write-timeout": ("14s", 14, SAME),
    "api-key": ("sk-1", "(set)", SAME),
    "api-key-file": (KEYS, KEYS, SAME),
    "allow-open": ("true", True, SAME),
    "rate-per-min": ("6000", 6000, SAME),
    "concurrency": ("9", 9, SAME),
    "max-tenant-bodies": ("1M", 1 << 20, SAME),
    "device": ("cpu", "cpu", SAME),
    "isa": ("ref", "ref", SAME),
    "numa": ("off", "off", SAME),
    "gpu-layers": ("0", 0, 0),
    "vram-only": ("true", None, "refused: device is 'cpu'"),
    "cpu-moe": ("true", True, SAME),
    "n-cpu-moe": ("3", 3, SAME),
    "place": ("exps=cpu", "exps=cpu", SAME),
    "threads": ("1", 1, SAME),
    "tp": ("2", 2, SAME),
    "pp": ("2", 2, SAME),
    "ep": ("true", True, SAME),
    "split": ("3,1", "3,1", SAME),
    "hosts": ("a,b", "a,b", SAME),
    "transport": ("tcp", "tcp", SAME),
    "wire": ("q8", "q8", SAME),
    "devices": ("cpu,cpu", "cpu,cpu", SAME),
    "comm": ("host", "host", SAME),
    "agent": ("rsh %h", "rsh %h", SAME),
    "gang-listen": ("127.0.0.1", "127.0.0.1", SAME),
    "remote-tern": ("/opt/tern", "/opt/tern", SAME),
    "step-timeout": ("30s", 30, SAME),
    "ctx": ("384", 384, SAME),
    "max-seqs": ("3", 3, SAME),
    "max-batch": ("48", 48, SAME),
    "kv-type": ("q8_0", "q8_0", SAME),
    "kv-tokens": ("2K", 2048, SAME),
    "kv-overcommit": ("3.5", 3.5, SAME),
    "max-requests": ("21", 21, SAME),
    "max-queue-tokens": ("4K", 4096, SAME),
    "step-ms": ("70", 70, SAME),
    "stretch": ("1.5", 1.5, SAME),
    "age-ms": ("300", 300, SAME),
    "prefix-cache": ("false", False, SAME),
    "prefix-scope": ("tenant", "tenant", SAME),
    "park": ("memory", "memory", SAME),
    "park-dir": (TMP + "/park", TMP + "/park", SAME),
    "park-limit": ("32M", 32 << 20, SAME),
    "memory-limit": ("8G", 8 << 30, SAME),
    "device-memory-limit": ("cuda=4G,cuda:1=2G", "cuda=4G,cuda:1=2G", SAME),
    "allow-nan": ("true", True, SAME),
    "warm": ("false", False, SAME),
    "max-tokens-default": ("5", 5, SAME),
    "max-choices": ("2", 2, SAME),
    "deadline-ms": ("60000", 60000, SAME),
    "request-threads": ("4", 4, SAME),
    "request-queue": ("99", 99, SAME),
    "max-watchers": ("1", 1, SAME),
    "response-store": ("1M", 1 << 20, SAME),
    "ping-ms": ("2000", 2000, SAME),
    "data-dir": (TMP + "/data", TMP + "/data", SAME),
    "max-file": ("3M", 3 << 20, SAME),
    "max-batch-lines": ("17", 17, SAME),
    "batch-inflight": ("5", 5, SAME),
    "batch-inflight-busy": ("2", 2, SAME),
    "retention": ("90s", 90, SAME),
    "tenant-files": ("5M", 5 << 20, SAME),
    "tenant-batches": ("4", 4, SAME),
    "tenant-jobs": ("1000", 1000, SAME),
    "drain-timeout": ("1500ms", 1.5, SAME),
    "ready": ("any", "any", SAME),
    "watchdog": ("40s", 40, SAME),
    "cluster-key": ("ck", "(set)", SAME),
    "nats": ("nats://127.0.0.1:9", "nats://127.0.0.1:9", SAME),
    "advertise": ("http://knob.example:1", "http://knob.example:1", SAME),
    "peers": ("http://127.0.0.1:1", "http://127.0.0.1:1", SAME),
    "peer-ca": (PEM, PEM, SAME),
    "policy": ("least", "least", SAME),
    "policy-script": (TEMPLATE, TEMPLATE, SAME),
    "heartbeat-ms": ("30", 30, SAME),
    "detect-ms": ("80", 80, SAME),
    "stall-ms": ("500", 500, SAME),
    "replicas-min": ("1", 1, SAME),
    "replicas-max": ("3", 3, SAME),
    "replica-idle": ("30s", 30, SAME),
    "log-level": ("debug", "debug", SAME),
    "log-format": ("json", "json", SAME),
    "access-log": ("false", False, SAME),
    "log-prompts": ("true", True, SAME),
    "metrics-compat": ("vllm", "vllm", SAME),
}
# What another setting requires.
WITH = {"ep": ["--tp", "2"], "split": ["--tp", "2"], "devices": ["--pp", "2"], "tls-cert": ["--tls-key", PEM], "tls-key": ["--tls-cert", PEM], "alias": ["-m", MODEL]}
# Defaults that stand for something else: never 0 and never "auto" as an effective value.
SCALE = ["threads", "ctx", "max-seqs", "max-batch", "kv-tokens", "max-requests", "max-queue-tokens", "memory-limit",
         "max-connections", "max-tenant-bodies", "models-max", "isa", "numa", "kv-type", "rate-per-min", "concurrency"]


def run(*args, env=None):
    return subprocess.run([TERN, *args], capture_output=True, text=True, env={**ENV, **(env or {})}, timeout=300)


def ways(name, text):
    """(source, arguments, environment) of the three ways to set one setting."""
    quoted = text if re.fullmatch(r"[0-9.]+|true|false", text) else json.dumps(text)
    path = put(f"{name}.yaml", f"{name}: {quoted}\n")
    yield "flag", [f"--{name}={text}"], {}
    yield "env", [], {"TERN_" + name.upper().replace("-", "_"): text}
    yield "file", ["--config", path], {}


def show(args, env):
    p = run("config", "show", "--json", *args, env=env)
    return (json.loads(p.stdout) if p.returncode == 0 else {}), p


def check_one(name):
    text, value, effective = CASES[name]
    for source, args, env in ways(name, text):
        j, p = show(args + WITH.get(name, []), env)
        if isinstance(effective, str) and effective.startswith("refused: "):
            check(f"{name} by {source} is refused, exit 2", p.returncode == 2 and effective[9:] in p.stderr, p.stderr)
            continue
        want = {"value": value, "effective": value if effective is SAME else effective, "from": source}
        check(f"{name} by {source}", j.get(name) == want, (j.get(name), p.stderr))


def check_table():
    p = run("config", "defaults", "--json")
    rows = json.loads(p.stdout)
    check("every setting has a case", set(rows) == set(CASES), set(rows) ^ set(CASES))
    check("every row has value, effective and from", all(set(r) == {"value", "effective", "from"} for r in rows.values()), rows)
    bad = [n for n in SCALE if rows[n]["effective"] in (0, -1, "auto", "", None)]
    check("effective values of defaults are not 0 and not auto", not bad, {n: rows[n] for n in bad})
    yaml = run("config", "defaults").stdout
    path = put("all.yaml", yaml)
    p = run("config", "check", "--config", path)
    check("config defaults writes a settings file that is valid", p.returncode == 0, p.stderr)
    full = re.sub(r"^#([a-z-]+: )", r"\1", yaml, flags=re.M)
    path = put("full.yaml", re.sub(r"^(model|alias): .*\n", "", full, flags=re.M).replace("config: \"\"\n", ""))
    p = run("config", "check", "--config", path)
    check("and with every default uncommented", p.returncode == 0, p.stderr)
    j, _ = show(["--config", path], {})
    check("config itself: the file's name", j["config"]["value"] == path and j["config"]["from"] == "flag", j.get("config"))
    j, _ = show([], {"TERN_CONFIG": path})
    check("config by env", j["config"]["value"] == path and j["config"]["from"] == "env", j.get("config"))
    j, _ = show(["--max-batch=7", "--config", put("p.yaml", "max-batch: 9\nmax-seqs: 4\nage-ms: 11\n")], {"TERN_MAX_BATCH": "8", "TERN_MAX_SEQS": "5"})
    check("a flag overrides a variable, a variable the file",
          [(j[n]["value"], j[n]["from"]) for n in ("max-batch", "max-seqs", "age-ms")] == [(7, "flag"), (5, "env"), (11, "file")], j)


# ---- a running server with all of them at once ----

# Not together with the others: TLS would hide the effects, a folder or names that are not there end the start, and
# one process shows its statistics at once.
ALONE = {"config", "tp", "pp", "ep", "split", "devices", "hosts", "agent", "remote-tern", "model-key-command", "tls-cert", "tls-key", "vram-only", "cpu-moe", "n-cpu-moe", "place", "models-dir", "preload", "isolate", "api-key-file", "nats", "park-dir", "host", "socket",
         "peers", "peer-ca", "policy", "policy-script", "heartbeat-ms", "detect-ms", "stall-ms", "replicas-min", "replicas-max", "replica-idle"}


class Server:
    def __init__(self, name, args, env, verb="serve", ready="/ready", key="sk-1"):
        self.key = {"Authorization": "Bearer " + key}
        self.log = os.path.join(TMP, name + ".log")
        self.p = subprocess.Popen([TERN, verb, *args], stdout=subprocess.DEVNULL, stderr=open(self.log, "w"), env={**ENV, **env})
        self.port = 0
        for _ in range(1200):
            m = re.search(r"listens on http://[^/:]*:(\d+)", open(self.log).read())
            self.port = int(m.group(1)) if m else 0
            if self.port and self.get(ready)[0] == 200:
                return
            if self.p.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"not ok the server starts ({name}): {open(self.log).read()[-600:]}")

    def get(self, path, body=None, headers=None, method=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            c.request(method or ("POST" if body is not None else "GET"), path, body, {**self.key, "Host": "localhost", **(headers or {})})
            r = c.getresponse()
            text = r.read().decode("utf-8", "replace")
            return r.status, text, dict((k.lower(), v) for k, v in r.getheaders())
        except (OSError, http.client.HTTPException) as e:
            return 0, str(e), {}
        finally:
            c.close()

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        return self.p.wait(120)


def completion(s, **fields):
    return s.get("/v1/completions", json.dumps({"prompt": "Once", "temperature": 0, **fields}), {"Content-Type": "application/json"})


def check_effects(source, s):
    """Effects that a client can see; each by the name of its setting."""
    status = json.loads(s.get("/status")[1])
    m, e = status["models"][0], status["models"][0]["effective"]
    completion(s, zorkmid=1)  # an unknown field is logged at level debug
    seen = {
        "alias": m["id"] == "knob",
        "ctx": e["ctx"] == 384, "kv-tokens": e["kv-tokens"] == 2048, "max-batch": e["max-batch"] == 48,
        "max-seqs": e["max-seqs"] == 3, "max-requests": e["max-requests"] == 21, "max-queue-tokens": e["max-queue-tokens"] == 4096,
        "kv-overcommit": e["kv-overcommit"] == 3.5, "step-ms": e["step-ms"] == 70, "stretch": e["stretch"] == 1.5,
        "age-ms": e["age-ms"] == 300, "prefix-cache": e["prefix-cache"] is False, "kv-type": m["kv_type"] == "Q8_0",
        "isa, threads": m["device_detail"].startswith("ref") and "1 thread" in m["device_detail"],
        "warm": m["warm_ms"] == 0,
        "rerank": 'no token' in s.get("/v1/rerank", json.dumps({"query": "a", "documents": ["b"]}), {"Content-Type": "application/json"})[1],
        "memory-limit": status["memory"]["limit"] == 8 << 30,
        "device-memory-limit": status["memory"]["device_limits"] == {"cuda": 4 << 30, "cuda:1": 2 << 30},
        "max-connections": status["connections"]["max"] == 77,
        "api-key": s.get("/status", headers={"Authorization": "Bearer no"})[0] == 401,
        "max-body": completion(s, x="y" * 70000)[0] == 413,
        "max-header": s.get("/v1/models", headers={"X-Long": "y" * 3000})[0] == 431,
        "max-choices": completion(s, n=3)[0] == 400,
        "max-tokens-default": '"completion_tokens":5' in completion(s)[1].replace(" ", ""),
        "allowed-hosts": s.get("/v1/models", headers={"Host": "knob.example"})[0] == 200 and s.get("/v1/models", headers={"Host": "other.example"})[0] == 403,
        "cors": "access-control-allow-origin" in s.get("/v1/models", headers={"Origin": "http://other.example"})[2],
        "metrics-compat": "vllm:" in s.get("/metrics")[1] and "llamacpp:" not in s.get("/metrics")[1],
        "log-format, log-level": '"level":"debug"' in open(s.log).read().replace(" ", ""),
        "access-log": '"/v1/completions"' not in open(s.log).read(),
    }
    for name, good in seen.items():
        check(f"effect of {name} by {source}", good, m)


def check_server(source):
    names = [n for n in CASES if n not in ALONE]
    args, env, lines = [], {}, []
    for n in names:
        for way, a, v in ways(n, CASES[n][0]):
            if way == source == "flag":
                args += a
            if way == source == "env":
                env.update(v)
        quoted = CASES[n][0] if re.fullmatch(r"[0-9.]+|true|false", CASES[n][0]) else json.dumps(CASES[n][0])
        lines.append(f"{n}: {quoted}")
    if source == "file":
        args = ["--config", put("server.yaml", "\n".join(lines) + "\n")]
    s = Server(source, args, env)
    try:
        settings = json.loads(s.get("/status")[1])["settings"]
        for n in names:
            _, value, effective = CASES[n]
            want = {"value": value, "effective": value if effective is SAME else effective, "from": source}
            if n == "port":
                want["effective"] = s.port
            check(f"/status: {n} by {source}", settings.get(n) == want, settings.get(n))
        check_effects(source, s)
        url = run("config", "show", "--json", "--url", f"http://127.0.0.1:{s.port}", "--api-key", "sk-1")
        check(f"config show --url has the settings of /status ({source})", url.returncode == 0 and json.loads(url.stdout) == settings, url.stderr)
    finally:
        code = s.stop()
    check(f"the server ends with exit code 0 ({source})", code == 0, code)


def same_value(a, b):
    """Words of the offline value stand for something that depends on the model or on the machine."""
    return a == b or (isinstance(a, str) and not isinstance(b, str))


def check_offline():
    """config show without a server has the effective values of a server with the same settings."""
    for n, args in enumerate((["--max-seqs=1024", "--max-batch=7", "--ctx=100"], ["--ctx=96", "--kv-tokens=64", "--max-requests=3"],
                              ["--max-seqs=2", "--max-batch=300", "--ctx=64", "--max-queue-tokens=99"], [])):
        args = [*args, "-m", MODEL, "--port=0", "--threads=1"]
        offline, _ = show(args, {})
        s = Server(f"offline{n}", args, {})
        online = json.loads(s.get("/status")[1])["settings"]
        s.stop()
        bad = {k: (offline[k], online[k]) for k in online if not same_value(offline[k]["effective"], online[k]["effective"])}
        check(f"config show is what the server has: {' '.join(args)}", len(online) == len(CASES) and not bad, bad)


def upload(s, data):
    body = b"".join(b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % part for part in
                    ((b"purpose", b"", b"batch"), (b"file", b'; filename="a.jsonl"', data))) + b"--x--\r\n"
    code, text, _ = s.get("/v1/files", body, {"Content-Type": "multipart/form-data; boundary=x"})
    return code, json.loads(text)


def post(s, path, **fields):
    code, text, _ = s.get(path, json.dumps(fields), {"Content-Type": "application/json"})
    return code, (json.loads(text) if text[:1] == "{" else text)


def batch_lines(n, tokens):
    one = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": tokens, "ignore_eos": True}}
    return b"".join(json.dumps({"custom_id": str(i), **one}).encode() + b"\n" for i in range(n))


def start_batch(s, n, tokens):
    f = upload(s, batch_lines(n, tokens))[1]
    return post(s, "/v1/batches", input_file_id=f.get("id"), endpoint="/v1/completions", completion_window="24h")


def cached(s):
    """Tokens of a prompt that the second request with it does not compute."""
    fields = {"prompt": "Once upon a time there was a little bird. " * 8, "max_tokens": 1}
    post(s, "/v1/completions", **fields)
    return post(s, "/v1/completions", **fields)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]


def is_refused_batch(s, b):
    """A batch with too many lines is refused at once, or fails when its file has been read."""
    code, j = b
    for _ in range(100):
        if code != 200 or j["status"] == "failed":
            return True
        if j["status"] == "completed":
            return False
        time.sleep(0.1)
        j = json.loads(s.get(f"/v1/batches/{j['id']}")[1])
    return False


def check_small_limits():
    """Limits so small that one request meets them; on a server of its own, because they would disturb the others."""
    s = Server("small", ["-m", MODEL, "--port=0", "--threads=1", "--ctx=512", f"--data-dir={TMP}/small", f"--socket={TMP}/small.sock",
                         "--max-file=8K", "--tenant-files=24K", "--max-batch-lines=40", "--tenant-batches=1", "--tenant-jobs=1",
                         "--batch-inflight=1", "--retention=90s", "--deadline-ms=400", "--response-store=0", "--prefix-cache=false"], {})
    try:
        code, f = upload(s, b"x" * 100)
        check("effect of data-dir", code == 200 and os.path.isdir(TMP + "/small"), f)
        check("effect of retention", f.get("expires_at") == f.get("created_at", 0) + 90, f)
        check("effect of max-file", upload(s, b"x" * 8000)[0] == 200 and upload(s, b"x" * 9000)[0] == 413)
        check("effect of max-batch-lines", is_refused_batch(s, start_batch(s, 41, 1)))
        got = completion(s, max_tokens=490, ignore_eos=True, n=8)
        check("effect of deadline-ms", got[0] in (408, 504) or '"deadline' in got[1], got)
        check("effect of prefix-cache", cached(s) == 0)
        r = post(s, "/v1/responses", input="Once", max_output_tokens=16)[1]
        check("effect of response-store", s.get(f"/v1/responses/{r['id']}")[0] == 404, r)
        first, second = start_batch(s, 30, 400), start_batch(s, 1, 1)
        check("effect of tenant-batches", first[0] == 200 and second[0] == 429, (first, second))
        got = post(s, "/v1/completions", prompt="Once", max_tokens=1, durable=True)
        check("effect of tenant-jobs", got[0] == 429, got)
        post(s, f"/v1/batches/{first[1].get('id')}/cancel")
        codes = [upload(s, b"x" * 8000)[0] for _ in range(4)]
        check("effect of tenant-files", codes[-1] == 429, codes)
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(TMP + "/small.sock")
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            check("effect of socket", b" 200 " in c.recv(4096))
    finally:
        s.stop()
    s = Server("plain", ["-m", MODEL, "--port=0", "--threads=1", "--ctx=512", f"--data-dir={TMP}/plain", f"--models-dir={FOLDER}",
                         f"--api-key-file={KEYS}", "--max-seqs=1", "--max-queue-tokens=40"], {}, key="sk-knob")
    try:
        check("effect of api-key-file", s.get("/status", headers={"Authorization": "Bearer sk-1"})[0] == 401)
        check("a prefix cache has the prompt of an earlier request", cached(s) > 0)
        r = post(s, "/v1/responses", input="Once", max_output_tokens=16)[1]
        check("a response store has an earlier response", s.get(f"/v1/responses/{r['id']}")[0] == 200, r)
        got = []
        ask = lambda: got.append(post(s, "/v1/completions", prompt="Once upon a time " * 12, max_tokens=200, ignore_eos=True)[0])
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check("effect of max-queue-tokens", 429 in got and 200 in got, got)
        shutil.copy(MODEL, FOLDER + "/found.gguf")
        run("models", "reload", "--url", f"http://127.0.0.1:{s.port}", "--api-key", "sk-knob")
        check("effect of models-dir", '"found"' in s.get("/v1/models")[1])
    finally:
        s.stop()
        if os.path.exists(FOLDER + "/found.gguf"):
            os.remove(FOLDER + "/found.gguf")


# Settings that tern serve refuses, because only tern gateway uses them.
GATEWAY = ["peers", "peer-ca", "policy", "policy-script", "heartbeat-ms", "detect-ms", "stall-ms", "replicas-min", "replicas-max", "replica-idle"]


def check_gateway(source):
    """tern gateway with its settings, each by the same source."""
    args, env, lines = [], {}, []
    names = [*GATEWAY[:3], *GATEWAY[4:], "port", "cluster-key", "drain-timeout", "max-body", "max-connections", "api-key", "log-format"]
    for name in names:
        for way, a, v in ways(name, CASES[name][0]):
            args += a if way == source == "flag" else []
            env.update(v if way == source == "env" else {})
        lines.append(f"{name}: {json.dumps(CASES[name][0])}")
    if source == "file":
        args = ["--config", put("gateway.yaml", "\n".join(lines) + "\n")]
    s = Server(f"gateway-{source}", args, env, verb="gateway", ready="/health")
    url = ["--url", f"http://127.0.0.1:{s.port}", "--api-key", "sk-1"]
    try:
        status = json.loads(s.get("/status")[1])
        settings = status["settings"]
        for name in names:
            _, value, effective = CASES[name]
            want = {"value": value, "effective": s.port if name == "port" else value if effective is SAME else effective, "from": source}
            check(f"gateway: {name} by {source}", settings.get(name) == want, settings.get(name))
        check(f"gateway: only its own settings ({source})", "ctx" not in settings and "kv-type" not in settings, list(settings))
        check(f"gateway: effect of policy, peers, api-key by {source}", status["policy"] == "least" and status["workers"][0]["url"] == "http://127.0.0.1:1"
              and s.get("/status", headers={"Authorization": "Bearer no"})[0] == 401, status)
        p = run("config", "show", "--json", *url)
        check(f"gateway: config show --url by {source}", p.returncode == 0 and json.loads(p.stdout) == settings, p.stderr)
        p = run("status", "--json", *url)
        check("gateway: status --json", p.returncode == 0 and json.loads(p.stdout)["role"] == "gateway", p.stderr)
        for verb in ("status", "ps"):
            p = run(verb, *url)
            check(f"gateway: {verb} names tern cluster status", p.returncode == 1 and "tern cluster status" in p.stderr, p.stderr)
    finally:
        code = s.stop()
    check(f"the gateway ends with exit code 0 ({source})", code == 0, code)


def check_roles():
    """A setting of the gateway is refused by tern serve from every source."""
    for name in GATEWAY:
        for source, args, env in ways(name, CASES[name][0]):
            p = run("serve", "-m", MODEL, "--port=0", *args, env=env)
            check(f"serve refuses {name} by {source}", p.returncode == 2 and name in p.stderr and "tern gateway" in p.stderr, p.stderr)


check_table()
check_roles()
check_offline()
check_small_limits()
for one in CASES:
    if one != "config":
        check_one(one)
for source in ("flag", "env", "file"):
    check_server(source)
    check_gateway(source)
print(f"# {len(CASES)} settings")
sys.exit(failed)
