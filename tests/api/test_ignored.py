"""What a protocol has and tern does not use is named in x-tern-ignored-fields, whatever the protocol."""
from client import MESSAGES, ask, main

MODEL = "scripted-hermes"
RESPONSES = {"model": MODEL, "input": "play hello"}
CLAUDE = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "play hello"}]}
OLLAMA = {"model": MODEL, "stream": False, "messages": [{"role": "user", "content": "play hello"}]}
GENERATE = {"model": MODEL, "stream": False, "prompt": "play hello"}
NATIVE = {"model": MODEL, "prompt": "<|play hello|>"}

TABLE = [
    ("/v1/responses", RESPONSES, {"max_tool_calls": 3}, "max_tool_calls"),
    ("/v1/responses", RESPONSES, {"include": ["file_search_call.results"]}, "include"),
    ("/v1/responses", RESPONSES, {"include": ["reasoning.encrypted_content"]}, None),
    ("/v1/responses", RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
    ("/v1/responses", RESPONSES, {"top_logprobs": 2}, "top_logprobs"),
    ("/v1/responses", RESPONSES, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}, None),
    ("/v1/responses", RESPONSES, {"moderation": {"a": 1}}, "moderation"),
    ("/v1/responses", RESPONSES, {"max_tool_calls": None, "moderation": None, "top_logprobs": None, "include": None}, None),
    ("/v1/responses", RESPONSES, {"new_field": 1}, "new_field"),
    ("/v1/messages", CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ("/v1/messages", CLAUDE, {"thinking": {"type": "disabled"}}, None),
    ("/v1/messages", CLAUDE, {"service_tier": "auto"}, "service_tier"),
    ("/v1/messages", CLAUDE, {"context_management": {"edits": []}}, "context_management"),
    ("/v1/messages", CLAUDE, {"metadata": {"user_id": "x"}}, None),
    ("/v1/messages", CLAUDE, {"new_field": 1}, "new_field"),
    ("/api/chat", OLLAMA, {"new_field": 1}, "new_field"),
    ("/api/chat", OLLAMA, {"options": {"num_ctx": 8192, "temperature": 0, "num_predict": 5}}, "options.num_ctx"),
    ("/api/chat", OLLAMA, {"options": {"new_option": 1}}, "options.new_option"),
    ("/api/chat", OLLAMA, {"options": {"temperature": 0, "stop": [], "num_gpu": None}, "keep_alive": "5m", "think": False}, None),
    ("/api/generate", GENERATE, {"context": [1, 2, 3]}, "context"),
    ("/api/generate", GENERATE, {"context": [], "raw": False, "system": "S", "images": [], "template": ""}, None),
    ("/api/embed", {"model": "tern-tales", "input": "a"}, {"truncate": True}, "truncate"),
    ("/api/embed", {"model": "tern-tales", "input": "a"}, {}, None),
    ("/completion", NATIVE, {"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
    ("/completion", NATIVE, {"t_max_prompt_ms": 100}, "t_max_prompt_ms"),
    ("/completion", NATIVE, {"lora": [], "cache_prompt": True, "id_slot": -1, "samplers": ["top_k"], "t_max_predict_ms": 0}, None),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}, {"new_field": 1}, "new_field"),
]


def test_fields_without_effect_are_named():
    wrong = []
    for path, body, more, want in TABLE:
        a = ask("POST", path, {**body, **more})
        assert a.status == 200, (path, more, a.body)
        if a.headers["x-tern-ignored-fields"] != want:
            wrong.append((path, more, a.headers["x-tern-ignored-fields"], want))
    assert not wrong, wrong


def test_the_result_of_a_tool_that_failed_says_so():
    def tokens(result):
        body = {**CLAUDE, "messages": [{"role": "user", "content": "x"},
                                       {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
                                       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **result}]}]}
        a = ask("POST", "/v1/messages/count_tokens", body)
        assert a.status == 200, a.body
        return a.json["input_tokens"]
    assert tokens({"content": "no file", "is_error": True}) == tokens({"content": "Error: no file"})
    assert tokens({"content": "no file", "is_error": False}) == tokens({"content": "no file"}) < tokens({"content": "no file", "is_error": True})


if __name__ == "__main__":
    main()
