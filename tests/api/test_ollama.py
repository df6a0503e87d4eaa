"""Ollama's API, with the model that plays scripts."""
import json

from client import ask, main
from golden import check_golden

MODEL = "scripted-hermes"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
         {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}}]


def user(text):
    return {"role": "user", "content": text}


def chat(**fields):
    return ask("POST", "/api/chat", {"model": MODEL, "stream": False, **fields})


def lines(a):
    assert a.headers["content-type"] == "application/x-ndjson", a.headers
    return [json.loads(x) for x in a.body.decode().splitlines()]


def test_recorded_lines():
    check_golden("ollama-chat", "/api/chat", {"model": MODEL, "messages": [user("play hello")]})
    check_golden("ollama-calls", "/api/chat", {"model": MODEL, "messages": [user("play call")], "tools": TOOLS})
    check_golden("ollama-generate", "/api/generate", {"model": MODEL + ":latest", "prompt": "play hello"})
    check_golden("ollama-body", "/api/chat", {"model": MODEL, "messages": [user("play two")], "tools": TOOLS, "stream": False})
    check_golden("ollama-error", "/api/chat", {"model": MODEL, "messages": 5})


def test_a_conversation_with_tools_reaches_the_template():
    a = chat(messages=[{"role": "system", "content": "SYS"}, user("one"),
                       {"role": "assistant", "content": "calling", "thinking": "hm", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
                       {"role": "tool", "content": "R1", "tool_name": "add"}, user("play hello")])
    b = ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": [
        {"role": "system", "content": "SYS"}, user("one"),
        {"role": "assistant", "content": "calling", "reasoning_content": "hm", "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]},
        {"role": "tool", "tool_call_id": "call_0", "name": "add", "content": "R1"}, user("play hello")]})
    assert a.status == 200 and a.json["message"]["content"] == "Hello, world.", a.body
    assert a.json["prompt_eval_count"] == b.json["usage"]["prompt_tokens"]


def test_options_format_and_think():
    a = chat(model="tern-tales", messages=[user("x")], options={"num_predict": 3, "temperature": 0, "num_ctx": 2048, "seed": 1}).json
    assert a["done_reason"] == "length" and a["eval_count"] == 3 and a["total_duration"] > 0 and a["done"] is True
    a = chat(messages=[user("play hello")], options={"stop": ["wor"], "num_predict": -1}, think=False).json
    assert a["message"]["content"] == "Hello, " and a["done_reason"] == "stop"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    a = chat(model="tern-tales", messages=[user("x")], format=schema, options={"num_predict": 200}).json
    assert set(json.loads(a["message"]["content"])) == {"n"}
    a = ask("POST", "/api/generate", {"model": "tern-tales", "prompt": "Once", "raw": True, "stream": False, "options": {"num_predict": 4}}).json
    assert a["response"] and a["eval_count"] == 4


def test_a_body_without_messages_loads_the_model():
    a = ask("POST", "/api/chat", {"model": MODEL, "messages": []})
    assert a.json["done_reason"] == "load" and a.json["done"] is True
    a = ask("POST", "/api/generate", {"model": MODEL, "keep_alive": "10m"})
    assert a.json["done_reason"] == "load" and a.json["response"] == ""


def test_lists_of_models():
    tags = ask("GET", "/api/tags").json["models"]
    names = [m["name"] for m in tags]
    assert "tern-tales:latest" in names and all(len(m["digest"]) == 64 for m in tags)
    tales = tags[names.index("tern-tales:latest")]
    assert tales["details"]["format"] == "gguf" and tales["details"]["parameter_size"] == "10.5M" and tales["size"] > 1000000
    ps = ask("GET", "/api/ps").json["models"]
    assert {m["name"] for m in ps} == set(names) and all("expires_at" in m and m["size_vram"] == 0 for m in ps)
    show = ask("POST", "/api/show", {"model": "tern-tales:latest"}).json
    assert show["model_info"]["general.architecture"] == "llama" and show["model_info"]["llama.context_length"] == 4096
    assert show["capabilities"] == ["completion", "tools"] and ask("POST", "/api/show", {"name": MODEL}).json["capabilities"][-1] == "thinking"
    assert tuple(map(int, ask("GET", "/api/version").json["version"].split("."))) >= (0, 6, 4)
    assert ask("HEAD", "/").status == 200


def test_embeddings():
    a = ask("POST", "/api/embed", {"model": "tern-tales", "input": ["a", "b"]}).json
    assert len(a["embeddings"]) == 2 and len(a["embeddings"][0]) > 10 and a["prompt_eval_count"] > 0
    assert 0 < a["load_duration"] < a["total_duration"], a
    b = ask("POST", "/api/embeddings", {"model": "tern-tales", "prompt": "a"}).json
    assert b["embedding"] == a["embeddings"][0]


def test_errors_are_texts():
    rows = [("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
            ("/api/chat", {"model": MODEL, "messages": 5}, "messages"), ("/api/chat", {"model": MODEL, "messages": [user(5)]}, "messages[0].content"),
            ("/api/chat", {"model": MODEL, "messages": [{"role": "king"}]}, "messages[0].role"),
            ("/api/chat", {"model": MODEL, "messages": [user("x")], "format": 5}, "format"),
            ("/api/chat", {"model": MODEL, "messages": [user("x")], "options": 5}, "options"),
            ("/api/chat", {"model": MODEL, "messages": [user("x")], "options": {"temperature": "x"}}, "temperature"),
            ("/api/chat", {"model": MODEL, "messages": [user("x")], "think": 5}, "think"),
            ("/api/chat", {"model": MODEL, "messages": [user("x")], "keep_alive": "x"}, "keep_alive"),
            ("/api/generate", {"model": MODEL, "prompt": "x", "images": ["x"]}, "images"), ("/api/generate", {"model": MODEL, "prompt": 5}, "prompt"),
            ("/api/generate", {"model": "tern-tales", "prompt": "x", "suffix": "y"}, "middle"), ("/api/show", {}, "model"), ("/api/embed", {"model": MODEL}, "input"),
            ("/api/copy", {"source": "tern-tales"}, "destination"), ("/api/copy", {"destination": "b"}, "source"), ("/api/pull", {"model": "x"}, "hf.co/ORG/NAME")]
    for path, body, word in rows:
        a = ask("POST", path, body)
        assert a.status == 400 and set(a.json) == {"error"} and word in a.json["error"], (path, body, a.body)
    for path in ("/api/chat", "/api/show"):
        a = ask("POST", path, {"model": "none", "messages": [user("x")]})
        assert a.status == 404 and "none" in a.json["error"], a.body
    assert isinstance(ask("GET", "/api/nothing").json["error"], str)


def test_a_client_that_looks_for_the_server_gets_ollamas_text():
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        a = ask("GET", "/", headers=accept)
        assert a.status == 200 and a.body == b"Ollama is running" and a.headers["content-type"].startswith("text/plain"), a.body
    a = ask("GET", "/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert a.status == 200 and b"</html>" in a.body and a.headers["vary"] == "Accept"
    assert ask("HEAD", "/").status == 200


if __name__ == "__main__":
    main()
