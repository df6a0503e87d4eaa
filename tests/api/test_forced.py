"""Forced tool calls with the chat template of every model family (../shared/fixtures/chat), by models with random weights.

Starts its own server, since each template needs a model."""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(HERE, ".."))
TEMPLATES = os.path.join(os.environ.get("TERN_SHARED", os.path.join(ROOT, "..", "shared")), "fixtures", "chat")
NAMES = {"qwen3": "Qwen-Qwen3-0.6B", "qwen2": "Qwen-Qwen2.5-7B-Instruct", "coder": "Qwen3-Coder",
         "hermes": "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "llama31": "meta-llama-Llama-3.1-8B-Instruct",
         "llama32": "meta-llama-Llama-3.2-3B-Instruct", "nemo": "mistralai-Mistral-Nemo-Instruct-2407",
         "small": "Mistral-Small-3.2-24B-Instruct-2506", "deepseek": "deepseek-ai-DeepSeek-V3.1",
         "r1": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "granite": "ibm-granite-granite-3.3-2B-Instruct",
         "r7b": "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "oss": "openai-gpt-oss-120b", "glm": "GLM-4.6",
         "kimi": "Kimi-K2-Instruct"}
if re.search("asan|tsan", os.environ.get("TERN_BUILD", "")):       # fewer similar cases under a sanitizer
    NAMES = {k: v for k, v in NAMES.items() if k in ("qwen3", "qwen2", "coder", "r1", "oss")}
if not os.path.isdir(TEMPLATES):
    print(f"ok skipped: {TEMPLATES} does not exist")
    sys.exit(0)

import scripted  # noqa: E402

folder = tempfile.mkdtemp()
for i, (short, name) in enumerate(NAMES.items()):
    scripted.write_random(f"{folder}/{short}", open(f"{TEMPLATES}/{name}.jinja", encoding="utf-8").read(), seed=i + 1)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
server = subprocess.Popen([os.path.join(ROOT, os.environ.get("TERN_BUILD", "build"), "tern"), "serve", "--host", "127.0.0.1",
                           "--port", str(port), "--ctx", "8192", "--kv-tokens", "16384", "--max-seqs", "8"]
                          + [x for n in NAMES for x in ("-m", f"{folder}/{n}")], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
os.environ["TERN_URL"] = f"http://127.0.0.1:{port}"

from client import Stream, ask, main  # noqa: E402
from test_tools import streamed  # noqa: E402

WEATHER = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                     "unit": {"type": "string", "enum": ["c", "f"]}, "hot": {"type": "boolean"}},
    "required": ["city", "days"], "additionalProperties": False}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
    "required": ["a", "b"], "additionalProperties": False}}}


def body(model, **fields):
    # A template that opens a reasoning block keeps it: the grammar closes it in time for a call.
    return {"model": model, "messages": [{"role": "user", "content": "Weather in Bern?"}], "tools": [WEATHER, ADD],
            "tool_choice": "required", "max_tokens": 350, "seed": 7, **fields}


def check(call, names=("get_weather", "add")):
    assert call["name"] in names, call
    v = json.loads(call["arguments"])
    if call["name"] == "add":
        assert list(v) == ["a", "b"] and isinstance(v["a"], int) and len(v["b"]) <= 2, v
        return
    assert set(v) <= {"city", "days", "unit", "hot"} and isinstance(v["city"], str) and len(v["city"]) <= 12 and 1 <= v["days"] <= 9, v
    assert v.get("unit", "c") in ("c", "f") and isinstance(v.get("hot", True), bool), v


def whole(b):
    a = ask("POST", "/v1/chat/completions", b)
    assert a.status == 200, a.body
    out = []
    for c in a.json["choices"]:
        m = c["message"]
        calls = [{"id": t["id"], "type": t["type"], **t["function"]} for t in m.get("tool_calls", [])]
        out.append((m, calls, c["finish_reason"]))
    return out


def test_every_answer_of_every_template_is_a_call():
    for model in NAMES:
        for m, calls, finish in whole(body(model, n=4)):
            assert finish == "tool_calls" and calls and not m["content"], (model, finish, m)
            assert len({c["id"] for c in calls}) == len(calls), (model, calls)
            for c in calls:
                check(c)


def test_streamed_calls_are_equal_byte_for_byte():
    for model in NAMES:
        for seed in (1, 2):
            b = body(model, seed=seed)
            _, calls, finish = whole(b)[0]
            _, parts, end = streamed(b)
            assert (finish, end) == ("tool_calls", "tool_calls"), (model, finish, end)
            assert [(c["name"], c["arguments"]) for c in calls] == [(c["name"], c["arguments"]) for c in parts], (model, calls, parts)


def test_json_arguments_are_streamed_in_pieces():
    for model in NAMES:
        seen = []
        for ev in Stream("/v1/chat/completions", body(model, parallel_tool_calls=False)):
            for c in ev["choices"]:
                seen += c["delta"].get("tool_calls", [])
        assert seen[0]["function"] == {"name": seen[0]["function"]["name"], "arguments": ""} and seen[0]["id"], seen[0]
        assert all(set(t) == {"index", "function"} and t["index"] == 0 for t in seen[1:]), seen
        assert len(seen) > 5 or model in ("coder", "glm"), (model, seen)


def test_a_named_function_is_called_once():
    for model in NAMES:
        for m, calls, finish in whole(body(model, n=3, tool_choice={"type": "function", "function": {"name": "add"}})):
            assert finish == "tool_calls" and [c["name"] for c in calls] == ["add"], (model, finish, calls)
            check(calls[0])


def test_parallel_calls_can_be_forbidden():
    for model in NAMES:
        for m, calls, finish in whole(body(model, n=4, parallel_tool_calls=False)):
            assert len(calls) == 1 and finish == "tool_calls", (model, calls)


def test_reasoning_precedes_the_call_where_the_template_begins_it():
    m, calls, finish = whole(body("r1", chat_template_kwargs={"enable_thinking": True}))[0]
    assert m["reasoning_content"] and calls and finish == "tool_calls"
    for model, off in (("qwen3", {"enable_thinking": False}), ("r1", {"chat_template_kwargs": {"enable_thinking": False}})):
        for m, calls, finish in whole(body(model, n=4, **off)):
            assert not m.get("reasoning_content") and calls, (model, m)


def test_a_schema_applies_after_reasoning():
    fields = {"tools": None, "tool_choice": None, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": ADD["function"]["parameters"]}}}
    for model, more in (("r1", {"chat_template_kwargs": {"enable_thinking": True}}), ("r1", {}), ("oss", {}), ("qwen3", {})):
        a = ask("POST", "/v1/chat/completions", {k: v for k, v in body(model, **fields, **more).items() if v is not None})
        m = a.json["choices"][0]["message"]
        assert list(json.loads(m["content"])) == ["a", "b"], (model, m)
        assert bool(more) <= bool(m.get("reasoning_content")), (model, m)


def test_too_few_tokens_end_with_length():
    for model in NAMES:
        m, calls, finish = whole(body(model, max_tokens=12))[0]
        assert finish == "length", (model, finish, calls)


def test_auto_allows_text_and_none_forbids_calls():
    for choice in ("auto", "none"):
        m, calls, finish = whole(body("qwen2", tool_choice=choice, max_tokens=60))[0]
        assert m["content"] or finish, m
    a = ask("POST", "/v1/chat/completions", body("qwen2", tool_choice="auto", tools=[ADD], max_tokens=20))
    assert a.status == 200


def test_unsupported_tools_are_named_in_the_error():
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}}
    strict = {"type": "function", "function": {**bad["function"], "strict": True}}
    named = {"type": "function", "function": {"name": "nope"}}
    for fields, words in (({"tool_choice": named}, ("nope",)), ({"tools": [bad]}, ("bad", "'not'", "#/properties/x")),
                          ({"tools": [strict], "tool_choice": "auto"}, ("bad", "'not'")),
                          ({"response_format": {"type": "json_object"}}, ("response_format", "tool call")),
                          ({"grammar": "root ::= \"x\""}, ("grammar", "tool call")), ({"tools": None}, ("no tools",))):
        a = ask("POST", "/v1/chat/completions", body("qwen2", **fields))
        assert a.status == 400 and a.error["param"] in ("tools", "tool_choice"), (fields, a.body)
        assert all(w in a.error["message"] for w in words), (words, a.error)
    a = ask("POST", "/v1/chat/completions", body("qwen2", tools=[bad], tool_choice="auto", max_tokens=5))
    assert a.status == 200, a.body


if __name__ == "__main__":
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(os.environ["TERN_URL"] + "/ready", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        main()
    finally:
        server.terminate()
        server.wait()
        subprocess.run(["rm", "-rf", folder], check=True)
