"""A model that needs more memory than there is: refused with the numbers, before it is loaded."""
import subprocess

from abuse import MODEL, ask, complete, run, serve
from serving import TERN


def mem_total_kb():
    for line in open("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1])


def refused(*flags):
    """The message of a server that ends because its only model is refused."""
    p = subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0", *flags], capture_output=True, text=True, timeout=300)
    assert p.returncode == 1, (p.returncode, p.stderr[-500:])
    return p.stderr


def test_a_kv_cache_larger_than_the_memory_is_refused_with_the_numbers():
    s = serve("--ctx", "512", "--kv-tokens", "16384")
    m = ask(s, "GET", "/status").json["models"][0]
    per_token = m["memory"]["kv"] / 16384
    tokens = min(int(2 * mem_total_kb() * 1024 / per_token), 128 << 20)
    if tokens * per_token < 1.5 * mem_total_kb() * 1024:
        return                                            # no cache that tern allows is larger than this machine
    out = refused("--ctx", "512", "--kv-tokens", str(tokens))
    assert "MiB" in out and "kv-tokens" in out and "is" in out, out


def test_a_limit_that_is_given_counts_instead():
    out = refused("--memory-limit", "1M")
    assert "memory-limit is 1.0 MiB" in out, out
    s = serve("--memory-limit", "none", "--ctx", "512")
    assert complete(s).status == 200


run(globals())
