"""What a long run found, as one line of JSON: its checks and figures, the settings in effect, the machine and the commit.

A run calls check() for everything that must hold, which prints "ok NAME" or "not ok NAME: reason", and write() at its end. Lines
are appended to the file that --out names; a folder stands for <cpu>-soak.jsonl in it. Without --out nothing is written."""
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import serving  # noqa: E402


def take_flag(argv, name, otherwise=None):
    """Removes `name VALUE` from argv; returns the value."""
    if name not in argv:
        return otherwise
    i = argv.index(name)
    if i + 1 >= len(argv):
        serving.die(f"{name} needs a value")
    value = argv[i + 1]
    del argv[i:i + 2]
    return value


class Record:
    """argv: the words of the command line without its name; --out FILE is removed from it."""

    def __init__(self, argv):
        self.out = take_flag(argv, "--out")
        self.run = " ".join([os.path.join("tests/soak", os.path.basename(sys.argv[0])), *argv])
        self.begin, self.load_before = time.monotonic(), serving.load_average()
        self.failed, self.checks, self.figures, self.settings = False, [], {}, []

    def check(self, good, name, why=""):
        self.failed |= not good
        line = f"ok {name}" if good else f"not ok {name}: {why}" if why != "" else f"not ok {name}"
        self.checks.append(line)
        print(line, flush=True)

    def figure(self, name, value):
        self.figures[name] = value

    def note_settings(self, server):
        """The settings of the models that are loaded now; once is enough."""
        self.settings = self.settings or serving.effective(server)

    def write(self):
        """Appends the line, if one is wanted. Returns the exit code of the run."""
        if self.out:
            path = self.out
            if os.path.isdir(path):
                path = os.path.join(path, f"{serving.cpu_slug()}-soak.jsonl")
            line = {"run": self.run, "held": not self.failed, "seconds": round(time.monotonic() - self.begin, 1), "checks": self.checks,
                    "figures": self.figures, "settings": self.settings, "machine": serving.manifest(self.load_before)}
            with open(path, "a") as f:
                f.write(json.dumps(line, ensure_ascii=False) + "\n")
        return 1 if self.failed else 0
