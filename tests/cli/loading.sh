# Progress while a model is loaded: the line of tern run and tern chat on a terminal, and the log of tern serve. The
# program is stopped again and again while it loads, for longer than the time between two signs of progress.
. tests/cli/lib.inc
command -v python3 >/dev/null || { skip "loading: python3 is not installed"; exit 0; }
unset TERN_MODEL TERN_PORT TERN_CONFIG
python3 - "$TERN" models/tern-tales.gguf <<'P' || failed=1
import os, pty, re, select, signal, sys, time
tern, model = sys.argv[1:]
failed = 0
def load_once(argv, pattern, end, pause):
    """Output of argv on a terminal, up to the pattern or to what it prints when the model is loaded."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(argv[0], argv)
    seen = b""
    while not re.search(pattern + b"|" + end, seen):
        time.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(pause)
        while select.select([fd], [], [], 0)[0]:
            try: seen += os.read(fd, 65536)
            except OSError: break
        os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    return seen
def load(name, argv, pattern, end, pause):
    global failed
    for _ in range(40): # a busy machine may run the program for longer than was meant
        seen = load_once(argv, pattern, end, pause)
        if re.search(pattern, seen): break
    found = re.search(pattern, seen)
    print(f"ok {name}" if found else f"not ok {name}: {seen[-400:]!r}")
    failed |= not found
line = rb"loading tern-tales.gguf \(11\.\d MB\): +[1-9]\d? %, \d+\.\d s"
load("run shows the percentage on a terminal", [tern, "run", "-m", model, "-p", "x", "-n", "1"], line, rb"\r {95}\r|[a-z]+ ?\r?\n", 0.35)
load("chat shows the percentage on a terminal", [tern, "chat", "-m", model], line, rb"> ", 0.35)
load("serve logs the percentage", [tern, "serve", "-m", model, "--port", "0", "--threads", "1"], rb"model 'tern-tales' is loading: [1-9]\d? %", rb"ready after", 3.2)
sys.exit(failed)
P
exit $failed
