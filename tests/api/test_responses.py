"""POST /v1/responses and the stored answers, with the model that plays scripts."""
import json
import time

from client import Stream, ask, main
from golden import check_golden

MODEL = "scripted-hermes"
TOOLS = [{"type": "function", "name": "get_weather", "description": "Weather of a city.", "strict": False,
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}},
         {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}]


def respond(headers=None, **fields):
    return ask("POST", "/v1/responses", {"model": MODEL, **fields}, headers)


def test_recorded_events():
    check_golden("responses-text", "/v1/responses", {"model": MODEL, "input": "play hello", "stream": True})
    check_golden("responses-calls", "/v1/responses", {"model": MODEL, "input": "play two", "tools": TOOLS, "stream": True})
    check_golden("responses-reasoning", "/v1/responses", {"model": MODEL, "input": "play call", "tools": TOOLS, "stream": True,
                                                          "include": ["reasoning.encrypted_content"]})
    check_golden("responses-summary", "/v1/responses", {"model": MODEL, "input": "play call", "tools": TOOLS, "stream": True,
                                                        "reasoning": {"effort": "low", "summary": "auto"}})
    check_golden("responses-incomplete", "/v1/responses", {"model": MODEL, "input": "play hello", "stream": True, "max_output_tokens": 2})
    check_golden("responses-empty", "/v1/responses", {"model": MODEL, "input": "nothing", "stream": True})
    check_golden("responses-body", "/v1/responses", {
        "model": MODEL, "input": "play call", "tools": TOOLS + [{"type": "web_search"}, {"type": "namespace", "tools": []}],
        "instructions": "Be brief.", "metadata": {"k": "v"}, "max_output_tokens": 100, "prompt_cache_key": "p", "store": False,
        "parallel_tool_calls": False, "temperature": 0.5, "top_p": 0.9, "user": "me", "client_metadata": {"x": "y"}})


def test_sequence_numbers_have_no_gap_and_every_event_names_its_type():
    n = 0
    name = None
    a = ask("POST", "/v1/responses", {"model": MODEL, "input": "play call", "tools": TOOLS, "stream": True})
    for line in a.body.decode().splitlines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            e = json.loads(line[6:])
            assert e["type"] == name and e["sequence_number"] == n, (e, name, n)
            n += 1
    assert n > 10 and name == "response.completed"


def test_the_items_of_a_conversation_reach_the_template():
    a = respond(instructions="SYS", input=[
        {"role": "developer", "content": "DEV"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "calling", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{\"a\": 2}"},
        {"type": "function_call_output", "call_id": "c1", "output": "R1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "R2"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "user", "content": "play hello"}])
    assert a.status == 200, a.body
    # the same conversation as a chat has the same number of tokens
    b = ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": [
        {"role": "system", "content": "SYS"}, {"role": "developer", "content": "DEV"}, {"role": "user", "content": "one two"},
        {"role": "assistant", "content": "calling", "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
            {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "R1"}, {"role": "tool", "tool_call_id": "c2", "content": "R2"},
        {"role": "user", "content": "play hello"}]})
    assert b.status == 200, b.body
    assert a.json["usage"]["input_tokens"] == b.json["usage"]["prompt_tokens"]
    assert a.json["output"][0]["content"][0]["text"] == "Hello, world."


def test_previous_response_id_continues_the_conversation():
    first = respond(input="play call", tools=TOOLS).json
    call = first["output"][-1]
    assert call["type"] == "function_call" and first["store"] is True
    again = respond(previous_response_id=first["id"], tools=TOOLS, instructions="NEW",
                    input=[{"type": "function_call_output", "call_id": call["call_id"], "output": "play hello"}])
    assert again.status == 200, again.body
    assert again.json["output"][0]["content"][0]["text"] == "Hello, world."
    assert again.json["previous_response_id"] == first["id"]
    whole = respond(tools=TOOLS, instructions="NEW", store=False, input=[
        {"role": "user", "content": "play call"}, *first["output"],
        {"type": "function_call_output", "call_id": call["call_id"], "output": "play hello"}])
    assert whole.json["usage"]["input_tokens"] == again.json["usage"]["input_tokens"]
    # references to stored items, as @ai-sdk/openai sends them
    refs = respond(tools=TOOLS, instructions="NEW", input=[
        {"role": "user", "content": "play call"}, *[{"type": "item_reference", "id": o["id"]} for o in first["output"]],
        {"type": "function_call_output", "call_id": call["call_id"], "output": "play hello"}])
    assert refs.json["usage"]["input_tokens"] == again.json["usage"]["input_tokens"]


def test_stored_answers_by_id():
    made = respond(input=[{"role": "user", "content": "a"}, {"role": "user", "content": "play hello"}]).json
    path = f"/v1/responses/{made['id']}"
    got = ask("GET", path)
    assert got.status == 200 and got.json == made
    items = ask("GET", path + "/input_items?order=asc&limit=1").json
    assert items["object"] == "list" and items["has_more"] is True and items["data"][0]["content"] == "a"
    rest = ask("GET", path + f"/input_items?order=asc&after={items['last_id']}").json
    assert [x["content"] for x in rest["data"]] == ["play hello"] and rest["has_more"] is False
    assert ask("POST", path + "/cancel").json == made
    gone = ask("DELETE", path).json
    assert gone == {"id": made["id"], "object": "response.deleted", "deleted": True}
    for a in (ask("GET", path), ask("DELETE", path), ask("GET", path + "/input_items"), ask("POST", path + "/cancel")):
        assert a.status == 404 and a.error["code"] == "not_found" and made["id"] in a.error["message"]
    a = respond(input="play hello", previous_response_id=made["id"])
    assert a.status == 400 and a.error["param"] == "previous_response_id"
    unstored = respond(input="play hello", store=False).json
    assert unstored["store"] is False and ask("GET", f"/v1/responses/{unstored['id']}").status == 404


def test_a_running_response_is_cancelled_by_its_id():
    s = Stream("/v1/responses", {"model": "tern-tales", "input": "Tell a story.", "max_output_tokens": 3800, "ignore_eos": True})
    events = iter(s.r)
    for line in events:
        if line.startswith(b"data: "):
            made = json.loads(line[6:])["response"]["id"]
            break
    a = ask("POST", f"/v1/responses/{made}/cancel")
    assert a.status == 200 and a.json["status"] == "cancelled", a.body
    last = [json.loads(x[6:]) for x in events if x.startswith(b"data: ")][-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "cancelled"
    s.close()


def test_a_cancelled_response_is_stored_with_the_time_of_its_end():
    s = Stream("/v1/responses", {"model": "tern-tales", "input": "a story", "max_output_tokens": 3800, "ignore_eos": True, "temperature": 0})
    events = (json.loads(x[6:]) for x in s.r if x.startswith(b"data: "))
    made = next(events)["response"]
    while time.time() < made["created_at"] + 2:
        time.sleep(0.05)
    ask("POST", f"/v1/responses/{made['id']}/cancel", {})
    last = list(events)[-1]["response"]
    s.close()
    stored = ask("GET", f"/v1/responses/{made['id']}").json
    assert stored == last, stored
    if last["status"] == "cancelled":  # a very fast machine is done before
        assert stored["completed_at"] >= made["created_at"] + 2, stored
        assert stored["output"] and stored["output"][0]["content"][0]["text"]


def test_calls_of_tools_that_are_no_functions_are_read_as_calls():
    a = respond(input=[
        {"role": "user", "content": "x"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c2", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "c2", "output": "files"},
        {"role": "user", "content": "play hello"}])
    assert a.status == 200, a.body
    b = ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": "{\"input\":\"*** Begin\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "name": "apply_patch", "content": "done"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c2", "type": "function", "function": {"name": "local_shell", "arguments": "{\"type\":\"exec\",\"command\":[\"ls\"],\"env\":{}}"}}]},
        {"role": "tool", "tool_call_id": "c2", "name": "local_shell", "content": "files"},
        {"role": "user", "content": "play hello"}]})
    assert a.json["usage"]["input_tokens"] == b.json["usage"]["prompt_tokens"], (a.body, b.body)
    for item, param in (({"type": "custom_tool_call", "call_id": "1", "name": "f", "input": {}}, "input[0].input"),
                        ({"type": "local_shell_call", "call_id": "1", "action": "ls"}, "input[0].action"),
                        ({"type": "custom_tool_call_output", "output": "x"}, "input[0].call_id"),
                        ({"type": "local_shell_call_output", "output": "x"}, "input[0].id")):
        a = respond(input=[item])
        assert a.status == 400 and a.error["param"] == param, (item, a.body)


def test_schemas_and_forced_calls():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    a = respond(model="tern-tales", input="x", text={"format": {"type": "json_schema", "name": "s", "schema": schema}}, max_output_tokens=200)
    assert a.status == 200 and set(json.loads(a.json["output"][0]["content"][0]["text"])) == {"n"}
    for choice in ("required", {"type": "function", "name": "add"},
                   {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}):
        a = respond(input="x", tools=TOOLS, tool_choice=choice, max_output_tokens=300, parallel_tool_calls=False)
        assert a.status == 200, a.body
        calls = [o for o in a.json["output"] if o["type"] == "function_call"]
        assert len(calls) == 1 and (choice == "required" or calls[0]["name"] == "add"), a.body


def test_a_probe_without_input_works():
    for body in ({"input": "", "max_output_tokens": 1}, {"input": [], "max_output_tokens": 1}, {"max_output_tokens": 1}):
        a = respond(model="tern-tales", **body)
        assert a.status == 200 and a.json["usage"]["output_tokens"] == 1, a.body


def test_bad_bodies_name_the_field():
    rows = [
        ({"input": 5}, "input"), ({"input": [5]}, "input[0]"), ({"input": [{"type": "nope"}]}, "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"), ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": 5}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0]"),
        ({"input": "x", "instructions": 5}, "instructions"), ({"input": "x", "tools": 5}, "tools"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"), ({"input": "x", "tools": [{}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": 1}]}, "tools[0].parameters"),
        ({"input": "x", "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"), ({"input": "x", "store": 1}, "store"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "x", "include": "x"}, "include"), ({"input": "x", "reasoning": 5}, "reasoning"),
        ({"input": "x", "background": True}, "background"), ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "truncation": "auto"}, "truncation"), ({"input": "x", "previous_response_id": "resp_no"}, "previous_response_id"),
        ({"input": "x", "temperature": 9}, "temperature"), ({"input": "long " * 6000}, "input"),
    ]
    for body, param in rows:
        a = respond(**body)
        assert a.status == 400 and a.error["param"] == param, (body, a.body)


def test_models_are_also_in_the_form_of_codex():
    a = ask("GET", "/v1/models").json
    assert [m["slug"] for m in a["models"]] == [m["id"] for m in a["data"]]


if __name__ == "__main__":
    main()
