"""Schemas, grammars, patterns and tools that would take all memory and time: each is the matter of its own request."""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from abuse import JSON, LONG, ROOT, ask, complete, run, serve


def levels(key, n, name="x"):
    """Level i refers to level i - 1 twice: 2^n references in a few KB."""
    defs = {f"l{i}": {key: [{"$ref": f"#/$defs/l{i - 1}"}] * 2} for i in range(1, n + 1)}
    return {"$ref": f"#/$defs/l{n}", "$defs": {"l0": {"title": name, "type": "object"}, **defs}}


def tools(schema):
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}


def chat(server, **fields):
    return ask(server, "POST", "/v1/chat/completions",
               {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, **fields})


def metric(server, name):
    text = ask(server, "GET", "/metrics").body.decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def wait_for(what, check, seconds=300):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.02)


def bombs():
    """What, the fields of a chat request, and words of the refusal."""
    yield "allOf", {"guided_json": levels("allOf", 40)}, "compiling the JSON schema takes more than"
    yield "itself", {"guided_json": {"type": "object", "anyOf": [{"$ref": "#"}, {"type": "string"}]}}, "nested more than"
    yield "oneOf", {"guided_json": levels("oneOf", 40)}, "oneOf"
    yield "enum", {"guided_json": {"enum": [f"v{i}" for i in range(90_000)]}}, "more than 400000 states"
    yield "products", {"guided_json": {"allOf": [{"type": "string"}] + [{"pattern": f"^((b*a){{{n}}})*b*$"} for n in (7, 11, 13, 17, 19)]}}, "more than"
    yield "repeats", {"guided_regex": "(((a{1000}){1000}){1000}){1000}"}, "nothing matches"
    yield "subsets", {"guided_regex": "[^a]{0,100000}" * 500}, "compiling the regular expression takes more than"
    yield "options", {"grammar": "root ::= " + '"a"? ' * 30_000}, "compiling the grammar takes more than"
    yield "450 KB", {"grammar": "root ::= a0\n" + "".join(f'a{i} ::= "x" | b{i} a{i + 1}\n' for i in range(16_000)) + "c ::= ("}, "line 16002, column 8"


def test_each_bomb_is_refused_by_the_name_of_its_limit():
    s = serve()
    for what, fields, words in bombs():
        a = chat(s, **fields)
        assert a.status == 400 and a.code == "invalid_request" and words in a.json["error"]["message"], (what, a.status, a.body[:500])
    assert complete(s, grammar='root ::= "a" | "b"', max_tokens=2).json["choices"][0]["text"] in ("a", "b")
    assert metric(s, "tern_grammar_jobs") == 0 and 0 < metric(s, "tern_grammar_bytes") < 64 << 20


def test_tools_are_refused_by_the_name_of_their_limit():
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([sys.executable, os.path.join(ROOT, "tests/scripted.py"), d + "/scripted", "hermes", "harmony"], check=True)
        s = serve(model=d + "/scripted-hermes")
        a = chat(s, **tools(levels("allOf", 40)))
        assert a.status == 400 and "compiling the tool definitions takes more than" in a.json["error"]["message"], a.body


def test_small_grammars_are_answered_beside_bombs():
    s = serve()
    statuses, done = [], threading.Event()
    n = 40 if LONG else 6

    def send_bombs(i):                                   # again and again: there are bombs however slow the small ones are
        while not done.is_set():
            statuses.append(chat(s, guided_json=levels("allOf", 40, f"bomb {i} {len(statuses)}")).status)

    threads = [threading.Thread(target=send_bombs, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    wait_for("a bomb", lambda: metric(s, "tern_grammar_jobs") > 0)
    for i in range(8):
        assert ask(s, "GET", "/health").status == 200
        a = complete(s, guided_choice=[f"yes {i}", f"no {i}"], max_tokens=16)
        assert a.status == 200 and a.json["choices"][0]["text"] in (f"yes {i}", f"no {i}"), a.body
    done.set()
    for t in threads:
        t.join()
    assert len(statuses) >= n and set(statuses) <= {400, 429} and 400 in statuses, statuses


def leave_bombs(s, n):
    """Sends n bombs and leaves once the server has them."""
    connections = []
    for i in range(n):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        body = {"prompt": "a", "max_tokens": 2, "guided_json": levels("allOf", 40, f"left {i}")}
        c.request("POST", "/v1/completions", json.dumps(body), JSON)
        connections.append(c)
    wait_for("the bombs to arrive", lambda: metric(s, "tern_grammar_jobs") > 0)
    for c in connections:
        c.close()


def test_a_client_that_leaves_stops_its_compilation():
    s = serve()
    leave_bombs(s, 8)
    wait_for("all jobs to end", lambda: metric(s, "tern_grammar_jobs") == 0)
    counts = [metric(s, f"tern_grammars_{how}_total") for how in ("cancelled", "refused", "compiled")]
    assert counts[0] > 0 and sum(counts) <= 8 and counts[2] == 0, counts       # some had not come that far
    assert complete(s, grammar='root ::= "a"', max_tokens=2).json["choices"][0]["text"] == "a"


def test_a_bomb_does_not_keep_the_server_from_ending():
    s = serve()
    answers = []
    t = threading.Thread(target=lambda: answers.append(chat(s, guided_json=levels("allOf", 40)).status))
    t.start()
    wait_for("a compilation", lambda: metric(s, "tern_grammar_jobs") > 0)
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(timeout=300) == 0
    t.join()
    assert answers in ([400], [503]), answers


run(globals())
