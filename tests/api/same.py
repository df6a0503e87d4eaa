"""The same prompt, seed and settings give the same tokens, whatever way they take: over HTTP to a model in the server's process
and to one in a process of its own, whole and as a stream, and from the command line; greedy and sampled, chat and completions,
with and without a grammar. Starts its servers itself; run by tests/cli/same.sh."""
import http.client
import itertools
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import serving  # noqa: E402

FLAGS = ["-m", serving.SHIPPED, "-c", "512", "-t", "1"]
GRAMMAR = 'root ::= ("the " | "a " | "one ")? [a-z]{3,12} (" " [a-z]{2,9}){4,14} "."'
N = 40


def ask(server, path, body):
    """Text, number of tokens and finish reason."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    c.close()
    assert r.status == 200, (path, body, data)
    if not body["stream"]:
        replies = [json.loads(data)]
    else:
        lines = [x[6:] for x in data.decode().split("\n\n") if x.startswith("data: ")]
        assert lines.pop() == "[DONE]", data
        replies = [json.loads(x) for x in lines]
    text, finish, usage = "", None, None
    for reply in replies:
        usage = reply.get("usage") or usage
        for ch in reply["choices"]:
            finish = ch["finish_reason"] or finish
            text += (ch.get("message") or ch.get("delta") or ch).get("text" if "text" in ch else "content") or ""
    # Another way through the kernels sums in another order: no prompt may come from the cache.
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0, usage
    return text, usage["completion_tokens"], finish


def run_command(chat, prompt, settings, grammar_file):
    flags = [f"--{k}={v}" for k, v in (("temp", settings["temperature"]), ("top-k", settings["top_k"]), ("top-p", settings["top_p"]),
                                       ("min-p", settings["min_p"]), ("seed", settings["seed"]))]
    flags += [] if chat else ["--raw"]
    flags += ["--grammar", grammar_file] if grammar_file else []
    p = subprocess.run([serving.TERN, "run", *FLAGS, "-n", str(N), "--json", "-q", "-p", prompt, *flags], capture_output=True, text=True,
                       timeout=300)
    assert p.returncode == 0, p.stderr
    r = json.loads(p.stdout)
    return r["text"], len(r["ids"]), r["finish"]


def compare(servers, chat, temperature, seed, grammar_file):
    # Fewer tokens than a block of the cache, so that no way finds what another has left there.
    prompt = f"Tom saw {seed}" if chat else "Once upon a time"
    settings = {"temperature": temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": seed}
    body = {"max_tokens": N, **settings, **({"grammar": GRAMMAR} if grammar_file else {})}
    if chat:
        path, body = "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}
    else:
        path, body = "/v1/completions", {**body, "prompt": prompt}
    got = {}
    for name, server in servers.items():
        for stream in (False, True):
            more = {"stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
            got[f"{name}{', stream' if stream else ''}"] = ask(server, path, {**body, **more})
    got["command line"] = run_command(chat, prompt, settings, grammar_file)
    assert len(set(got.values())) == 1, got
    text, n, finish = got["command line"]
    assert n > 3 and text.strip(), got
    return text


def main():
    bad = 0
    servers = {name: serving.Server([serving.TERN, "serve", *FLAGS, "--log-level", "warn", *flags])
               for name, flags in (("in-process", []), ("isolated", ["--isolate"]))}
    with tempfile.NamedTemporaryFile("w", suffix=".gbnf") as f:
        f.write(GRAMMAR)
        f.flush()
        for chat, grammar in itertools.product((False, True), (None, f.name)):
            what = f"{'chat' if chat else 'completions'}{' with a grammar' if grammar else ''}"
            try:
                compare(servers, chat, 0, 1, grammar)
                texts = {compare(servers, chat, 0.9, seed, grammar) for seed in (2, 3, 4)}
                assert len(texts) > 1, texts             # the seed has an effect
                print("ok same tokens:", what, flush=True)
            except Exception as e:
                bad = 1
                print(f"not ok same tokens: {what}: {type(e).__name__} {str(e)[:1500]}", flush=True)
    for s in servers.values():
        if s.stop() != 0:
            bad = 1
            print("not ok same tokens: a server did not end as it should", flush=True)
    return bad


sys.exit(main())
