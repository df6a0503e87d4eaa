"""Streams of a protocol compared with recorded ones (tests/golden/api), with ids, times and numbers that differ from run to run
replaced. TERN_UPDATE_GOLDEN=1 records them again: look at the difference before it is committed."""
import os
import re

from client import ask

FOLDER = os.path.join(os.path.dirname(__file__), "..", "golden", "api")
CHANGES = [
    (r"\b(resp|msg|rs|fc|call|chatcmpl|cmpl|req|rerank)([_-])[0-9A-Za-z]{24}", r"\1\2ID"),
    (r'"(created_at|completed_at|created)":\d+', r'"\1":0'),
    (r'"(created_at|modified_at|expires_at)":"[^"]*"', r'"\1":"TIME"'),
    (r'"(total_duration|load_duration|prompt_eval_duration|eval_duration)":\d+', r'"\1":0'),
    (r'"(prompt_ms|predicted_ms|prompt_per_token_ms|predicted_per_token_ms|prompt_per_second|predicted_per_second)":[0-9.e+-]+', r'"\1":0'),
    (r'"(cached_tokens|cache_read_input_tokens|cache_n|tokens_cached)":\d+', r'"\1":0'),
    (r'"input_tokens":\d+', '"input_tokens":0'),          # Anthropic's is without the cached ones
    (r'"prompt_n":\d+', '"prompt_n":0'),
    (r'"signature":"[0-9a-f]+"', '"signature":"SIGNATURE"'),
    (r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"FP"'),
    (r'"(logprob|relevance_score)":-?[0-9.e+-]+', r'"\1":"NUMBER"'),
    (r'":-?[0-9.]+e-[0-9]+\}', '":"NUMBER"}'),              # top_logprobs of a completion
    (r'"token_logprobs":\[([^\]]*)\]', lambda m: f'"token_logprobs":["{m[1].count(",") + 1} NUMBERS"]'),
    (r'"embedding":\[([^\]]*)\]', lambda m: f'"embedding":["{m[1].count(",") + 1} NUMBERS"]'),
    (r'"embedding":"([0-9A-Za-z+/=]*)"', lambda m: f'"embedding":"{len(m[1])} CHARACTERS"'),
    (r'"(queue_ms|prefill_ms|decode_ms)":[0-9.e+-]+', r'"\1":0'),
]


def normal(text):
    for pattern, to in CHANGES:
        text = re.sub(pattern, to, text)
    return text


def check_golden(name, path, body, headers=None):
    a = ask("POST", path, body, headers)
    check_text(name, f"{a.status} {a.headers['content-type']}\n{normal(a.body.decode())}")


def check_text(name, got):
    if not got.endswith("\n"):
        got += "\n"
    file = os.path.join(FOLDER, name + ".txt")
    if os.environ.get("TERN_UPDATE_GOLDEN"):
        open(file, "w").write(got)
    want = open(file).read()
    for i, (w, g) in enumerate(zip(want.splitlines(), got.splitlines())):
        assert w == g, f"{name} line {i + 1}: {g} instead of {w}"
    assert want == got, f"{name}: {len(got)} bytes instead of {len(want)}"
