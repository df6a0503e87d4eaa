"""Shared by the server benchmarks and the soak test: start a server, wait until it is ready, query it, load it, stop it."""
import csv
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("TERN_BUILD", "build")
TERN = os.path.abspath(os.path.join(ROOT, BUILD, "tern"))
SHIPPED = os.path.join(ROOT, "models", "tern-tales.gguf")


def die(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")


def say(text=""):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def kill_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)           # PR_SET_PDEATHSIG: no server outlives its benchmark


class Server:
    """A server process on a free loopback port. --host and --port are appended to argv; `ready` is the path that answers 200
    when the server is ready."""

    def __init__(self, argv, ready="/ready", env=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.NamedTemporaryFile(prefix="serve-", suffix=".log", delete=False)
        start = time.monotonic()
        self.process = subprocess.Popen(
            [*argv, "--host", "127.0.0.1", "--port", str(self.port)], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, env={**os.environ, **(env or {})}, preexec_fn=kill_with_parent)
        while True:
            try:
                if self.get(ready)[0] == 200:
                    break
            except OSError:
                pass
            if self.process.poll() is not None:
                die(f"{' '.join(argv)} exited with code {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() - start > 300:
                self.stop()
                die(f"{' '.join(argv)} is not ready after 300 s")
            time.sleep(0.004)
        self.ready_s = time.monotonic() - start

    def log_tail(self, n=2000):
        with open(self.log.name, errors="replace") as f:
            return f.read()[-n:]

    def get(self, path, timeout=30):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read()
        except http.client.HTTPException as e:
            raise OSError(str(e)) from e
        finally:
            c.close()

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        out = {}
        for line in self.get("/metrics")[1].decode().splitlines():
            m = re.match(r"([A-Za-z_:][\w:]*(?:\{.*\})?)\s+(\S+)", line)
            if m:
                out[m[1]] = float(m[2])
        return out

    def memory(self):
        """Megabytes of resident memory: now, peak, and the anonymous part."""
        text = open(f"/proc/{self.process.pid}/status").read()
        return {name: int(re.search(rf"{key}:\s+(\d+)", text)[1]) / 1024
                for name, key in (("rss", "VmRSS"), ("peak", "VmHWM"), ("anon", "RssAnon"))}

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, timeout=60):
        """Sends SIGTERM; returns the exit code, or None if the process had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.log.close()
        os.unlink(self.log.name)
        return code


def tern_serve(model, *flags):
    if not os.access(TERN, os.X_OK):
        die(f"{TERN} is missing; run 'make'")
    return Server([TERN, "serve", "-m", model, "--log-level", os.environ.get("TERN_SERVE_LOG", "warn"), *map(str, flags)])


def load_command(url, *flags):
    return [TERN, "load", url, "--quiet", "--json", "-", *map(str, flags)]


def load(url, *flags, errors=0.0):
    """Runs tern load and returns its report. A larger error rate than `errors` ends the program."""
    p = subprocess.run(load_command(url, "--max-error-rate", errors, *flags), capture_output=True, text=True)
    if p.returncode not in (0, 1) or not p.stdout:
        die(f"tern load {' '.join(map(str, flags))}: {p.stderr.strip()}")
    r = json.loads(p.stdout)
    if p.returncode == 1:
        die(f"tern load {' '.join(map(str, flags))}: {r['failed']} requests failed: {r['errors']}")
    return r


# ---- numbers ----

def series(metrics, name, part=""):
    """The sum of all series of a name whose labels contain `part`; None: there is none."""
    found = [v for k, v in metrics.items() if k.split("{")[0] == name and part in k]
    return sum(found) if found else None


def histogram(after, before, name):
    """[(upper bound, count)]: the increase of a Prometheus histogram, summed over its labels."""
    gained = {}
    for key, v in after.items():
        m = re.match(re.escape(name) + r'_bucket\{.*?le="([^"]+)"', key)
        if m:
            le = float("inf") if m[1] == "+Inf" else float(m[1])
            gained[le] = gained.get(le, 0) + v - before.get(key, 0)
    out, last = [], 0
    for le in sorted(gained):
        out.append((le, gained[le] - last))
        last = gained[le]
    return out


def histogram_quantile(buckets, q):
    """Interpolates linearly within a bucket, as Prometheus does; None: the histogram is empty."""
    total = sum(n for _, n in buckets)
    if not total:
        return None
    seen, low = 0, 0.0
    for le, n in buckets:
        if seen + n >= q * total and n:
            return low if le == float("inf") else low + (le - low) * (q * total - seen) / n
        seen, low = seen + n, le
    return low


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    i = int(at)
    return values[i] if i + 1 >= len(values) else values[i] + (values[i + 1] - values[i]) * (at - i)


# ---- models, the machine, results ----

def model(preset, kind):
    """Path of a synthetic model in TERN_BENCH_MODELS; written if it does not exist."""
    folder = os.environ.get("TERN_BENCH_MODELS", os.path.join(ROOT, BUILD, "bench-models"))
    path = os.path.join(folder, f"{preset}-{kind}.gguf")
    if not os.path.exists(path):
        synth = os.path.join(ROOT, BUILD, "tools", "synth")
        if not os.access(synth, os.X_OK):
            die(f"{synth} is missing; run 'make tools'")
        os.makedirs(folder, exist_ok=True)
        say(f"making {preset} {kind}")
        subprocess.run([synth, preset, kind, path], check=True, stdout=subprocess.DEVNULL)
    return path


def read_whole(path):
    """Reads a file into the page cache."""
    with open(path, "rb", buffering=0) as f:
        while f.read(1 << 22):
            pass


def drop_cache(path):
    """Asks the kernel to drop a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def cores():
    out = subprocess.run(["lscpu", "-p=Core,Socket"], capture_output=True, text=True).stdout
    return len({line for line in out.splitlines() if not line.startswith("#")})


def cpu_name():
    out = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    return re.search(r"^Model name:\s*(.*)$", out, re.M)[1]


def cpu_slug():
    """The CPU as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\([a-z]*\)", "", cpu_name().lower())).strip("-")


def result_path(name, slug=None):
    """Below bench/results, without an ending. slug: the machine, if it is not the CPU."""
    folder = os.environ.get("TERN_BENCH_RESULTS", os.path.join(ROOT, "bench", "results"))
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"{slug or cpu_slug()}-{name}")


def gpu_names():
    """Name, memory and driver of each GPU of this machine; empty without nvidia-smi."""
    try:
        p = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
                           capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in p.stdout.splitlines() if line.strip()] if p.returncode == 0 else []


def manifest(load_before, peer=None):
    git = lambda *a: subprocess.run(["git", "-C", ROOT, *a], capture_output=True, text=True)  # noqa: E731
    sha = git("rev-parse", "--short", "HEAD").stdout.strip() or "unknown"
    changed = ", with local changes" if git("diff", "--quiet", "HEAD").returncode else ""
    memory = int(re.search(r"MemTotal:\s+(\d+)", open("/proc/meminfo").read())[1]) / 1048576
    lines = [f"Model name: {cpu_name()}", f"CPU(s): {os.cpu_count()}", f"Physical cores: {cores()}",
             f"Memory: {memory:.1f} GiB", f"Kernel: {os.uname().sysname} {os.uname().release}", f"tern: {sha}{changed}"]
    lines += [f"GPU: {g}" for g in gpu_names()]
    if peer:
        lines.append(f"llama.cpp: {peer}")
    return lines + [f"Load before: {load_before}", time.strftime("Date: %Y-%m-%d", time.gmtime())]


def load_average():
    return " ".join(open("/proc/loadavg").read().split()[:3])


def write_csv(path, head, rows):
    with open(path, "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(head)
        w.writerows(rows)


def table(head, rows):
    """A table of Markdown; the first column is left-aligned."""
    text = ["| " + " | ".join(map(str, r)) + " |" for r in (head, *rows)]
    text.insert(1, "|---|" + "---:|" * (len(head) - 1))
    return "\n".join(text)


def write_page(name, title, intro, head, rows, settings, load_before, verdict, peer=None, slug=None):
    """Writes bench/results/<cpu>-NAME.{csv,md}: the table, what was found, the settings, the machine and the commit. Returns the
    path of the page."""
    out = result_path(name, slug)
    write_csv(out + ".csv", head, rows)
    lines = [f"# {title}", "", intro, "", table(head, rows), ""]
    lines += [*(f"- {v}" for v in verdict), ""] if verdict else []
    lines += ["Settings:", "", *(f"- {s}" for s in settings), "", "The machine and the program:", "",
              *(f"- {line}" for line in manifest(load_before, peer))]
    with open(out + ".md", "w") as f:
        f.write("\n".join(lines) + "\n")
    return out + ".md"


def effective(server):
    """'NAME: knob value, …' of every loaded model: the settings that a server really uses, from /status."""
    models = json.loads(server.get("/status")[1])["models"]
    return [f"{m['id']}: " + ", ".join(f"{k} {v}" for k, v in m["effective"].items()) for m in models if m.get("effective")]


def number(v, digits=1):
    return "-" if v is None else f"{v:.{digits}f}"


median = statistics.median
