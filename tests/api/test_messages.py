"""POST /v1/messages and count_tokens, with the model that plays scripts."""
import json

from client import ask, main
from golden import check_golden

MODEL = "scripted-hermes"
TOOLS = [{"name": "get_weather", "description": "Weather of a city.",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}},
         {"name": "add", "input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}]


def user(text):
    return {"role": "user", "content": text}


def send(path="/v1/messages", headers=None, **fields):
    return ask("POST", path, {"model": MODEL, "max_tokens": 200, **fields}, headers)


def test_recorded_events():
    check_golden("messages-text", "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": [user("play hello")], "stream": True})
    check_golden("messages-thinking", "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": [user("play call")], "tools": TOOLS,
                                                       "stream": True})
    check_golden("messages-calls", "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": [user("play two")], "tools": TOOLS, "stream": True})
    check_golden("messages-body", "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": [user("play call")],
                                                   "tools": TOOLS + [{"type": "web_search_20250305", "name": "web_search"}]})
    check_golden("messages-error", "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": 5}, {"x-request-id": "r1"})
    check_golden("messages-count", "/v1/messages/count_tokens", {"model": MODEL, "messages": [user("play hello")]})
    check_golden("messages-cut", "/v1/messages", {"model": MODEL, "messages": [user("play hello")], "max_tokens": 2, "stream": True})


def test_the_blocks_of_a_conversation_reach_the_template():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "calling"},
                                          {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                                          {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 2}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "R1"},
                                     {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "R2"}], "is_error": True},
                                     {"type": "text", "text": "play hello"}]}]
    a = send(system=[{"type": "text", "text": "SYS"}], messages=messages)
    assert a.status == 200, a.body
    b = ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": [
        {"role": "system", "content": "SYS"}, user("one"),
        {"role": "assistant", "content": "calling", "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}},
            {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{\"a\":2}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "R1"}, {"role": "tool", "tool_call_id": "c2", "content": "Error: R2"}, user("play hello")]})
    u = a.json["usage"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == b.json["usage"]["prompt_tokens"]
    assert a.json["content"] == [{"type": "text", "text": "Hello, world."}] and a.json["stop_reason"] == "end_turn"
    count = send("/v1/messages/count_tokens", system=[{"type": "text", "text": "SYS"}], messages=messages)
    assert count.json == {"input_tokens": b.json["usage"]["prompt_tokens"]}


def test_the_billing_line_is_left_out_so_that_the_cache_works():
    def ask_with(line):
        return send(system=[{"type": "text", "text": line}, {"type": "text", "text": "A long and constant system prompt, always the same. " * 5}],
                    messages=[user("play hello")]).json["usage"]
    ask_with("x-anthropic-billing-header: cc_version=2.1; cch=00000;")
    a = ask_with("x-anthropic-billing-header: cc_version=2.1; cch=12345;")
    assert a["cache_read_input_tokens"] >= 200 and a["input_tokens"] < 64, a
    b = ask_with("another line, that is kept")
    assert b["cache_read_input_tokens"] < 64, b


def test_stop_reasons():
    assert send(model="tern-tales", messages=[user("x")], max_tokens=2).json["stop_reason"] == "max_tokens"
    a = send(messages=[user("play hello")], stop_sequences=["nope", "wor"]).json
    assert (a["stop_reason"], a["stop_sequence"], a["content"][0]["text"]) == ("stop_sequence", "wor", "Hello, ")
    a = send(messages=[user("play two")], tools=TOOLS).json
    assert a["stop_reason"] == "tool_use" and [b["input"] for b in a["content"]] == [{"city": "Bern"}, {"a": 1, "b": 2}]
    a = send(messages=[user("play two")], tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}).json
    assert len(a["content"]) == 1


def test_forced_calls_and_schemas():
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}):
        a = send(messages=[user("x")], tools=TOOLS, tool_choice=choice, max_tokens=400).json
        calls = [b for b in a["content"] if b["type"] == "tool_use"]
        assert a["stop_reason"] == "tool_use" and len(calls) == 1 and isinstance(calls[0]["input"], dict), a
        assert choice["type"] == "any" or calls[0]["name"] == "add"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    a = send(model="tern-tales", messages=[user("x")], output_format={"type": "json_schema", "schema": schema})
    assert set(json.loads(a.json["content"][0]["text"])) == {"n"}


def test_an_assistant_message_at_the_end_is_continued():
    a = send(messages=[user("x"), {"role": "assistant", "content": "play hello"}])
    assert a.status == 200, a.body


def test_errors_have_anthropics_envelope():
    rows = [
        ({"messages": []}, "messages"), ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": 5}]}]}, "messages[0].content[0].input"),
        ({"messages": [user("x")], "system": 5}, "system"), ({"messages": [user("x")], "tools": [{}]}, "tools[0].name"),
        ({"messages": [user("x")], "tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"messages": [user("x")], "stop_sequences": "x"}, "stop_sequences"), ({"messages": [user("x")], "thinking": {"type": "x"}}, "thinking.type"),
        ({"messages": [user("x")], "max_tokens": 0}, "max_tokens"), ({"messages": [user("x")], "mcp_servers": [1]}, "mcp_servers"),
        ({"messages": [user("x")], "temperature": "x"}, "temperature"), ({"messages": [user("long " * 6000)]}, "messages"),
    ]
    for body, param in rows:
        a = send(**body)
        assert a.status == 400 and a.json["type"] == "error", (body, a.body)
        assert a.json["error"]["type"] == "invalid_request_error" and a.json["error"]["param"] == param, (body, a.body)
        assert a.json["request_id"] == a.headers["request-id"]
    a = send(model="none", messages=[user("x")])
    assert a.status == 404 and a.json["error"]["type"] == "not_found_error"
    assert ask("GET", "/v1/messages").json["type"] == "error"


if __name__ == "__main__":
    main()
