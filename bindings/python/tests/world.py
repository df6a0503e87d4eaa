"""What the tests share: the model that ships, and counting of descriptors and threads."""
import os
import time
from pathlib import Path

import tern

ROOT = Path(os.environ.get("TERN_ROOT", Path(__file__).resolve().parents[3]))
MODEL = str(ROOT / "models/tern-tales.gguf")
SMALL = {"threads": 1, "context": 512, "kv_tokens": 4096}
LIMIT = 120  # seconds for what must happen
GREEDY = {"temperature": 0, "raw": True}


def open_model(**options):
    return tern.Model(MODEL, **{**SMALL, **options})


def n_fds():
    return len(os.listdir("/proc/self/fd"))


def wait_until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)
