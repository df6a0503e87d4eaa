"""Tool calls and reasoning, with a model that generates fixed texts (tests/scripted.py)."""
import json

from client import Stream, ask, chat, main

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}}


def play(name, model="scripted-hermes", **fields):
    return {"model": model, "messages": [{"role": "user", "content": "play " + name}], "tools": [WEATHER, ADD], **fields}


def streamed(body):
    """Assembles a stream as client libraries do."""
    m, finish, calls = {"content": "", "reasoning_content": ""}, None, []
    for ev in Stream("/v1/chat/completions", body):
        if not ev["choices"]:
            continue
        c = ev["choices"][0]
        d = c["delta"]
        m["content"] += d.get("content") or ""
        m["reasoning_content"] += d.get("reasoning_content") or ""
        for t in d.get("tool_calls", []):
            if t["index"] == len(calls):
                calls.append({"id": t["id"], "type": t["type"], "name": t["function"]["name"], "arguments": ""})
            calls[t["index"]]["arguments"] += t["function"]["arguments"]
        finish = c["finish_reason"] or finish
    return m, calls, finish


def whole(body):
    c = ask("POST", "/v1/chat/completions", body).json["choices"][0]
    m = c["message"]
    calls = [{"id": t["id"], "type": t["type"], **t["function"]} for t in m.get("tool_calls", [])]
    return {"content": m["content"] or "", "reasoning_content": m.get("reasoning_content", "")}, calls, c["finish_reason"]


def both(body):
    """The reply is equal with and without streaming, except for the ids of calls."""
    a, b = whole(body), streamed(body)
    assert a[0] == b[0] and a[2] == b[2], (a, b)
    assert [(c["name"], c["arguments"]) for c in a[1]] == [(c["name"], c["arguments"]) for c in b[1]], (a, b)
    ids = [c["id"] for c in a[1] + b[1]]
    assert len(set(ids)) == len(ids) and all(i.startswith("call_") for i in ids), ids
    return a


def test_a_tool_call_is_not_text():
    m, calls, finish = both(play("call"))
    assert m == {"content": "Let me look.", "reasoning_content": "I need the weather."}, m
    assert finish == "tool_calls"
    assert calls[0]["type"] == "function" and calls[0]["name"] == "get_weather"
    assert json.loads(calls[0]["arguments"]) == {"city": "Z\u00fcrich", "days": 2}


def test_two_calls_have_different_indexes():
    m, calls, finish = both(play("two"))
    assert m["content"] == "" and finish == "tool_calls"
    assert [c["name"] for c in calls] == ["get_weather", "add"]
    assert json.loads(calls[1]["arguments"]) == {"a": 1, "b": 2}
    m, calls, finish = both(play("two", parallel_tool_calls=False))
    assert [c["name"] for c in calls] == ["get_weather"]


def test_content_is_null_without_text():
    c = ask("POST", "/v1/chat/completions", play("two")).json["choices"][0]
    assert c["message"]["content"] is None


def test_a_malformed_call_is_text():
    m, calls, finish = both(play("broken"))
    assert calls == [] and finish == "stop" and m["content"] == "See <tool_call>{\"name\": oops} sorry", m
    m, calls, finish = both(play("hello"))
    assert m["content"] == "Hello, world." and finish == "stop"


def test_without_tools_calls_are_text():
    body = play("two")
    del body["tools"]
    m, calls, finish = both(body)
    assert calls == [] and finish == "stop" and "<tool_call>" in m["content"]
    m, calls, finish = both(play("two", tool_choice="none"))
    assert calls == []


def test_harmony_channels_are_reasoning_and_calls():
    m, calls, finish = both(play("call", model="scripted-harmony"))
    assert m == {"content": "", "reasoning_content": "I should ask."}, m
    assert finish == "tool_calls" and calls[0]["name"] == "get_weather" and json.loads(calls[0]["arguments"]) == {"city": "Bern"}


def test_calls_and_results_are_rendered_by_the_template():
    messages = [{"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "{\"temp\": 21}"},
                {"role": "user", "content": "play hello"}]
    a = ask("POST", "/v1/chat/completions", {"model": "scripted-hermes", "messages": messages, "tools": [WEATHER]})
    assert a.status == 200 and a.json["choices"][0]["message"]["content"] == "Hello, world.", a.body
    text = "[get_weather]<user>Weather?\n<assistant>(get_weather {\"city\": \"Bern\"})\n<tool>{\"temp\": 21}\n<user>play hello\n<|play hello|>"
    count = ask("POST", "/tokenize", {"model": "scripted-hermes", "content": text}).json["count"]
    assert a.json["usage"]["prompt_tokens"] == count


def test_chat_template_kwargs_reach_the_template():
    few = ask("POST", "/v1/chat/completions", play("hello")).json["usage"]["prompt_tokens"]
    more = ask("POST", "/v1/chat/completions", play("hello", chat_template_kwargs={"effort": "high"})).json["usage"]["prompt_tokens"]
    assert more == few + len("effort high")


def test_continue_final_message():
    body = {"model": "scripted-hermes", "continue_final_message": True, "max_tokens": 3,
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Hel"}]}
    a = ask("POST", "/v1/chat/completions", body)
    assert a.status == 200 and a.json["choices"][0]["message"]["content"] == "lo, world.", a.body
    body["add_generation_prompt"] = True
    assert ask("POST", "/v1/chat/completions", body).status == 400


def test_tool_choice_is_checked():
    for choice, status in (("auto", 200), ("required", 200), ({"type": "function", "function": {"name": "add"}}, 200),
                           ({"type": "function", "function": {"name": "nope"}}, 400), ("x", 400)):
        a = ask("POST", "/v1/chat/completions", play("two", tool_choice=choice))
        assert a.status == status, (choice, a.body)
    a = chat(tools=[WEATHER])
    assert a.status == 200, a.body  # tools are written into the messages of a model without a template


def test_every_token_has_its_log_probability():
    body = play("call", logprobs=True)
    n = len(ask("POST", "/v1/chat/completions", body).json["choices"][0]["logprobs"]["content"])
    seen = 0
    for ev in Stream("/v1/chat/completions", body):
        for c in ev["choices"]:
            seen += len((c["logprobs"] or {"content": []})["content"])
    assert seen == n == 13, (seen, n)


if __name__ == "__main__":
    main()
