"""What coding agents really send (tests/golden/agents, recorded by tests/agents/run with TERN_RECORD=1), replayed: nothing is
refused, and the events come in the recorded order (tests/golden/api/agent-*.txt). models/tern-tools.gguf, a real small model, calls
their tools by itself. The agents themselves: make agents."""
import glob
import json
import os
import re

from client import ask, main
from golden import check_text

RECORDED = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "..", "golden", "agents", "*.json")))
AGENTS = {os.path.basename(f)[:-5]: json.load(open(f)) for f in RECORDED}


def replay(request, model, **fields):
    return ask("POST", request["path"], {**request["body"], "model": model, **fields}, request["headers"])


def kind(data):
    """What an event says: its type, and for a chunk of a chat the members of its delta or what else it has."""
    if data == "[DONE]":
        return data
    event = json.loads(data)
    if "type" in event:
        inner = event.get("item") or event.get("content_block") or event.get("delta")
        return event["type"] + (f" {inner['type']}" if isinstance(inner, dict) and "type" in inner else "")
    if not event["choices"]:
        return "usage"
    choice = event["choices"][0]
    said = [k for k, v in choice["delta"].items() if v is not None]
    if choice["finish_reason"]:
        said.append(f"finish={choice['finish_reason']}")
    return "chunk " + "+".join(said)


def sequence(text):
    """The events in their order; equal ones behind each other are written once."""
    out = []
    for data in re.findall(r"^data: (.*)$", text, re.M):
        k = kind(data)
        if not out or out[-1] != k:
            out.append(k)
    return out


def test_every_agent_is_recorded():
    assert sorted(AGENTS) == ["claude", "codex", "opencode", "qwen"], sorted(AGENTS)
    for name, requests in AGENTS.items():
        assert len(requests) >= 2, name
        assert any(r["body"].get("tools") for r in requests), name
        text = json.dumps(requests)
        assert not re.search(r"/tmp/|/home/|/root/|authorization|x-api-key|Bearer", text), f"{name}: something of one machine"


def test_recorded_requests_get_the_recorded_events():
    for name, requests in AGENTS.items():
        lines = []
        for r in requests:
            a = replay(r, "scripted-agent")
            assert a.status == 200, f"{name}: {a.status} {a.body[:300]}"
            ignored = a.headers["x-tern-ignored-fields"]
            lines += [f"POST {r['path']}", f"{a.status} {a.headers['content-type']}", f"ignored: {ignored}"]
            lines += ["  " + s for s in sequence(a.body.decode())]
        check_text(f"agent-{name}", "\n".join(lines))


def texts_of(value):
    """The texts inside of an event, in order."""
    if isinstance(value, dict):
        for k, v in value.items():
            if isinstance(v, str) and k in ("partial_json", "delta", "arguments", "text", "content"):
                yield v
            yield from texts_of(v)
    elif isinstance(value, list):
        for v in value:
            yield from texts_of(v)


def said(answer):
    """All texts of a stream, joined: an event may end anywhere in a word."""
    lines = [l[6:] for l in answer.body.decode().splitlines() if l.startswith("data: {")]
    return "".join(t for l in lines for t in texts_of(json.loads(l)))


def test_the_first_answer_calls_the_shell_and_the_last_one_ends():
    for name, requests in AGENTS.items():
        first = next(r for r in requests if r["body"].get("tools"))
        call, end = said(replay(first, "scripted-agent")), said(replay(requests[-1], "scripted-agent"))
        assert "written by the agent" in call, f"{name}: {call[-600:]}"
        assert "written by the agent" not in end and "The file" in end and " is written." in end, f"{name}: {end[-600:]}"


def test_the_same_requests_without_a_stream():
    for name, requests in AGENTS.items():
        for r in requests:
            body = {k: v for k, v in r["body"].items() if k != "stream_options"}
            a = replay({**r, "body": body}, "scripted-agent", stream=False)
            assert a.status == 200 and a.json.get("error") is None, f"{name}: {a.status} {a.body[:300]}"


def test_nothing_is_refused_with_another_template():
    for name, requests in AGENTS.items():
        for r in requests:
            a = replay(r, "scripted-hermes")
            assert a.status == 200 and b'"error":{' not in a.body, f"{name}: {a.status} {a.body[:300]}"


SHELLS = ("exec_command", "Bash", "bash", "run_shell_command")


def schema_of(tool):
    return tool.get("input_schema") or tool.get("parameters") or tool["function"]["parameters"]


def shell_only(tools):
    """The agent's own shell tool with what it requires, and an end to its texts: the model would tell a story in them."""
    tool = next(json.loads(json.dumps(t)) for t in tools if (t.get("name") or t.get("function", {}).get("name")) in SHELLS)
    schema = schema_of(tool)
    schema["properties"] = {k: {**v, "maxLength": 20} if v["type"] == "string" else v
                            for k, v in schema["properties"].items() if k in schema["required"]}
    schema["additionalProperties"] = False
    return tool


def calls_of(answer):
    """The names and arguments of the calls in a whole answer of any of the protocols."""
    if "choices" in answer:
        return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer["choices"][0]["message"].get("tool_calls") or []]
    if "output" in answer:
        return [(o["name"], json.loads(o["arguments"])) for o in answer["output"] if o["type"] == "function_call"]
    return [(b["name"], b["input"]) for b in answer["content"] if b["type"] == "tool_use"]


def test_a_real_model_can_be_made_to_call_the_shell():
    """The model that ships knows no tools: they are written into its messages, and a grammar holds the call."""
    for name, requests in AGENTS.items():
        first = next(r for r in requests if r["body"].get("tools"))
        tool = shell_only(first["body"]["tools"])
        body = {k: v for k, v in first["body"].items() if k not in ("stream_options", "max_tokens", "max_output_tokens")}
        if first["path"].startswith("/v1/messages"):
            more = {"max_tokens": 500, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        else:
            limit = "max_output_tokens" if first["path"] == "/v1/responses" else "max_tokens"
            more = {limit: 500, "tool_choice": "required", "parallel_tool_calls": False}
        a = replay({**first, "body": body}, "tern-tales", stream=False, tools=[tool], **more)
        assert a.status == 200, f"{name}: {a.status} {a.body[:300]}"
        calls = calls_of(a.json)
        assert len(calls) == 1, f"{name}: {a.body[:600]}"
        assert calls[0][0] in SHELLS and set(calls[0][1]) == set(schema_of(tool)["required"]), f"{name}: {calls}"


COMMAND = 'echo "it is $((6 * 7))" | tee -a some_new/made.txt'
CALLS = {"codex": ("exec_command", "cmd"), "claude": ("Bash", "command"), "qwen": ("run_shell_command", "command"), "opencode": ("bash", "command")}


def asking(value, text):
    """The same body with another request of the user. opencode puts it in quotes."""
    if isinstance(value, dict):
        return {k: asking(v, text) for k, v in value.items()}
    if isinstance(value, list):
        return [asking(v, text) for v in value]
    if value == '"Write the file."':
        return '"' + text.replace('"', '\\"') + '"'
    return text if value == "Write the file." else value


def test_a_real_small_model_calls_the_shell_by_itself():
    """models/tern-tools.gguf, a model of 7 M parameters: nothing is forced, the tools are those of the agent."""
    for name, requests in AGENTS.items():
        first = next(r for r in requests if r["body"].get("tools"))
        body = asking({k: v for k, v in first["body"].items() if k != "stream_options"}, f"Run the shell command: {COMMAND}")
        assert body != first["body"] and body.get("tool_choice", "auto") == "auto"
        a = replay({**first, "body": body}, "tern-tools", stream=False)
        tool, argument = CALLS[name]
        assert a.status == 200 and calls_of(a.json) == [(tool, {argument: COMMAND})], f"{name}: {a.status} {a.body[:600]}"
        call = said(replay({**first, "body": body}, "tern-tools", stream=True))
        assert json.dumps(COMMAND)[1:-1] in call, f"{name}: {call[-600:]}"


RESULTS = {                                                # as the agents send them; the recorded ones are cut
    "codex": "Chunk ID: 61873c\nWall time: 0.0000 seconds\nProcess exited with code 0\nOriginal token count: 3\nOutput:\nit is 42\n",
    "claude": "it is 42",
    "qwen": f"Command: {COMMAND}\nDirectory: (root)\nOutput: it is 42\nError: (none)\nExit Code: 0\nSignal: 0\nProcess Group PGID: 14100",
    "opencode": "it is 42\n",
}


def with_result(body, text):
    """The last item of a conversation, the result of a call, with another text."""
    items = body.get("messages") or body["input"]
    last = items[-1]
    if "output" in last:
        last["output"] = text
    elif isinstance(last["content"], str):
        last["content"] = text
    else:
        part = last["content"][0]
        part["content" if part["type"] == "tool_result" else "text"] = text
    return body


def test_a_real_small_model_answers_by_the_result():
    for name, requests in AGENTS.items():
        body = asking({k: v for k, v in requests[-1]["body"].items() if k != "stream_options"}, f"Run the shell command: {COMMAND}")
        a = replay({**requests[-1], "body": with_result(body, RESULTS[name])}, "tern-tools", stream=False)
        assert a.status == 200 and not calls_of(a.json), f"{name}: {a.status} {a.body[:600]}"
        assert "Done: it is 42" in list(texts_of(a.json)), f"{name}: {a.body[:600]}"


def test_a_real_small_model_does_not_call_a_tool_without_a_need():
    for name, requests in AGENTS.items():
        first = next(r for r in requests if r["body"].get("tools"))
        body = asking({k: v for k, v in first["body"].items() if k != "stream_options"}, "Who are you?")
        a = replay({**first, "body": body}, "tern-tools", stream=False)
        assert a.status == 200 and not calls_of(a.json) and "tern-tools" in "".join(texts_of(a.json)), f"{name}: {a.status} {a.body[:600]}"


if __name__ == "__main__":
    main()
