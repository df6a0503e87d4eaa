"""Tools for models whose template has no place for them, and conversations that a strict template refuses as they are."""
import json
import os

from client import ask, main

STRICT = "scripted-strict"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def user(text):
    return {"role": "user", "content": text}


def render(messages, **more):
    a = ask("POST", "/apply-template", {"model": STRICT, "messages": messages, **more})
    assert a.status == 200, a.body
    return a.json["prompt"]


def test_conversations_are_normalized_before_the_template():
    plain = render([user("one"), {"role": "assistant", "content": "two"}, user("play hello")])
    assert plain == "<user>one\n<assistant>two\n<user>play hello\n<|play hello|>"
    assert render([{"role": "system", "content": ""}, user("one"), {"role": "assistant", "content": "two"}, user("play hello")]) == plain
    assert render([user("a"), user("b"), {"role": "assistant", "content": None}, {"role": "assistant", "content": "c"}, user("d")]) == \
        "<user>a\n\nb\n<assistant>c\n<user>d\n<|play nothing|>"
    assert render([{"role": "system", "content": "S"}, user("a"), {"role": "system", "content": "T"}]) == "<user>S\n\nT\n\na\n<|play nothing|>"


def test_the_words_of_a_template_are_in_the_log_and_in_no_answer():
    """What it raises, its name, lines and columns."""
    wrong = [{"role": "assistant", "content": "x"}]
    for path, body in (("/v1/chat/completions", {"messages": wrong}), ("/v1/messages", {"messages": wrong + [user("y")], "max_tokens": 5}),
                       ("/v1/responses", {"input": wrong}), ("/api/chat", {"messages": wrong}), ("/apply-template", {"messages": wrong}),
                       ("/v1/messages/count_tokens", {"messages": wrong + [user("y")]}),
                       ("/v1/chat/completions", {"messages": wrong, "tools": TOOLS})):
        a = ask("POST", path, {"model": STRICT, **body})
        text = a.body.decode()
        assert a.status == 400 and "let user and assistant take turns" in text, (path, text)
        for inner in ("alternate", "line 1", "column", "raise_exception"):
            assert inner not in text, (path, text)
    a = ask("POST", "/v1/chat/completions", {"model": STRICT, "messages": wrong})
    assert a.error["param"] == "messages"
    with open(os.environ["TERN_LOG_FILE"]) as f:
        assert "roles must alternate" in f.read()


def test_tools_are_written_into_the_messages():
    text = render([{"role": "system", "content": "S"}, user("x")], tools=TOOLS)
    assert text.startswith("<user>S\n\nYou can call functions.") and '"name":"get_weather"' in text
    text = render([user("x"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"}])
    assert text == ('<user>x\n<assistant><tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
                    '<user><tool_response>\nsun\n</tool_response>\n<|play nothing|>'), text


def test_calls_of_any_model_are_parsed_streamed_or_not():
    body = {"model": STRICT, "messages": [user("play call")], "tools": TOOLS}
    c = ask("POST", "/v1/chat/completions", body).json["choices"][0]
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, c
    assert c["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    m = ask("POST", "/v1/messages", {"model": STRICT, "max_tokens": 50, "messages": [user("play call")],
                                     "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}]}).json
    assert m["content"][0]["input"] == {"city": "Bern"} and m["stop_reason"] == "tool_use"


def test_a_required_call_comes_from_every_model():
    for model in ("tern-tales", STRICT, "scripted-hermes", "scripted-harmony"):
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            a = ask("POST", "/v1/chat/completions", {"model": model, "messages": [user("Weather?")], "tools": TOOLS, "tool_choice": choice,
                                                     "max_tokens": 400, "parallel_tool_calls": False, "temperature": 0, "reasoning_effort": "low"})
            assert a.status == 200, (model, a.body)
            calls = a.json["choices"][0]["message"].get("tool_calls") or []
            if a.json["choices"][0]["finish_reason"] == "length":
                continue  # a model of noise may reason until the limit
            assert len(calls) == 1 and isinstance(json.loads(calls[0]["function"]["arguments"]), dict), (model, a.body)


def test_a_middle_is_filled_in():
    for path, body, text in (("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 10}, lambda j: j["content"]),
                             ("/v1/completions", {"prompt": "a", "suffix": "b", "max_tokens": 10}, lambda j: j["choices"][0]["text"]),
                             ("/api/generate", {"prompt": "a", "suffix": "b", "stream": False}, lambda j: j["response"])):
        a = ask("POST", path, {"model": "scripted-hermes", **body})
        assert a.status == 200 and text(a.json) == "filled in", (path, a.body)


def test_other_files_of_a_project_come_before_the_middle():
    """Every byte is a token, and so is every special name: the numbers of tokens tell the form of the prompt."""
    files = [{"filename": "src/a.c", "text": "int a;"}, {"text": "<|file_sep|>x"}]
    fill = lambda model, **more: ask("POST", "/infill", {"model": model, "input_prefix": "pp", "input_suffix": "sss", "n_predict": 10, **more}).json
    plain = 3 + len("pp") + len("sss")
    for model, text, extra in (
            ("scripted-hermes", "filled in", len("--- src/a.c\nint a;\n") + len("<|file_sep|>x\n")),
            ("scripted-strict", "from the project", 1 + len("repository\n") + 1 + len("src/a.c\nint a;\n") + 1 + len("\n<|file_sep|>x\n") + 1 + len("current_file\n"))):
        for given, n in (({}, 0), ({"input_extra": []}, 0), ({"input_extra": None}, 0), ({"input_extra": files}, extra)):
            a = fill(model, **given)
            assert a["content"] == text and a["tokens_evaluated"] == plain + n, (model, given, a)
    a = ask("POST", "/infill", {"model": "scripted-strict", "input_prefix": "", "input_extra": [{"filename": "x" * 9000, "text": ""}]})
    assert a.status == 400 and a.error["tern_code"] == "context_exceeded", a.body


if __name__ == "__main__":
    main()
