"""Routes of llama-server, paths without /v1, and paths that there are not."""
import json

from client import MESSAGES, ask, main
from golden import check_golden

MODEL = "scripted-hermes"


def test_recorded_answers():
    check_golden("native-body", "/completion", {"model": MODEL, "prompt": "<|play hello|>", "n_predict": 20, "cache_prompt": True})
    check_golden("native-stream", "/completion", {"model": MODEL, "prompt": "<|play hello|>", "n_predict": -1, "stream": True})


def test_native_completions():
    a = ask("POST", "/completion", {"prompt": "Once upon a time", "n_predict": 5, "temperature": 0}).json
    b = ask("POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}).json
    assert a["content"] == b["choices"][0]["text"] and a["stop_type"] == "limit" and a["tokens_predicted"] == 5
    a = ask("POST", "/completion", {"prompt": "x", "n_predict": "y"})
    assert a.status == 400


def test_tokens_probabilities_and_settings_of_native_completions():
    body = {"model": MODEL, "prompt": "<|play hello|>", "n_predict": 20, "return_tokens": True, "n_probs": 2, "temperature": 0}
    a = ask("POST", "/completion", body).json
    probs = a["completion_probabilities"]
    assert "".join(p["token"] for p in probs) == a["content"] == "Hello, world."
    assert len(a["tokens"]) == a["tokens_predicted"] and [p["id"] for p in probs] == a["tokens"][:len(probs)]
    assert all(len(p["top_logprobs"]) == 2 and p["top_logprobs"][0]["id"] == p["id"] and p["logprob"] <= 0 for p in probs)
    g = a["generation_settings"]
    assert g["n_predict"] == 20 and g["n_probs"] == 2 and g["temperature"] == 0 and g["stop"] == [] and a["stopping_word"] == ""
    chunks = [json.loads(l[6:]) for l in ask("POST", "/completion", {**body, "stream": True}).body.decode().splitlines() if l.startswith("data: ")]
    assert sum((c["tokens"] for c in chunks), []) == a["tokens"]
    assert sum((c["completion_probabilities"] for c in chunks), []) == probs
    plain = ask("POST", "/completion", {"model": MODEL, "prompt": "<|play hello|>"}).json
    assert "tokens" not in plain and "completion_probabilities" not in plain
    a = ask("POST", "/completion", {"model": MODEL, "prompt": "<|play hello|>", "stop": ["never", ", "]}).json
    assert (a["content"], a["stop_type"], a["stopping_word"]) == ("Hello", "word", ", ")
    a = ask("POST", "/completion", {**body, "response_fields": ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing/at/all"]}).json
    assert a == {"content": "Hello, world.", "n_predict": 20, "predicted_n": 4}, a
    assert ask("POST", "/completion", {**body, "response_fields": "content"}).error["param"] == "response_fields"


def test_a_time_limit_ends_an_answer_with_the_text_so_far():
    """After the first whole line: a millisecond is over long before 3,000 tokens."""
    body = {"prompt": "Once upon a time", "n_predict": 3000, "ignore_eos": True, "temperature": 0, "t_max_predict_ms": 1, "logit_bias": {}}
    a = ask("POST", "/completion", body)
    assert a.status == 200, a.body
    assert a.json["stop_type"] == "limit" and "\n" in a.json["content"] and a.json["tokens_predicted"] < 3000, a.body
    a = ask("POST", "/completion", {**body, "n_predict": 5, "t_max_predict_ms": -1}).json
    assert a["tokens_predicted"] == 5
    assert ask("POST", "/completion", {**body, "t_max_predict_ms": "1"}).error["param"] == "t_max_predict_ms"


def test_infill_needs_a_model_with_its_tokens():
    a = ask("POST", "/infill", {"input_prefix": "def f(", "input_suffix": ")", "input_extra": [{"filename": "a", "text": "b"}]})
    assert a.status == 400 and "fill in the middle" in a.error["message"]
    for body, param in (({"input_prefix": 5}, "input_prefix"), ({"input_prefix": "", "input_suffix": 5}, "input_suffix"), ({"input_prefix": "", "input_extra": 5}, "input_extra")):
        a = ask("POST", "/infill", body)
        assert a.status == 400 and a.error["param"] == param, a.body


def test_what_front_ends_ask_first():
    p = ask("GET", "/props").json
    assert p["default_generation_settings"]["n_ctx"] == 4096 and p["total_slots"] == 4 and p["model_alias"] == "tern-tales"
    assert "scripted" in ask("GET", "/props?model=scripted-hermes").json["model_alias"]
    assert ask("GET", "/props?model=none").status == 404
    slots = ask("GET", "/slots").json
    assert len(slots) == 4 and slots[0]["is_processing"] is False
    body = {"model": MODEL, "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "play hello"}]}
    text = ask("POST", "/apply-template", body).json["prompt"]
    assert text == "<system>S\n<user>play hello\n<|play hello|>", text
    n = ask("POST", "/v1/chat/completions/input_tokens", body).json["input_tokens"]
    assert n == ask("POST", "/v1/chat/completions", body).json["usage"]["prompt_tokens"]


def test_paths_work_without_v1():
    assert ask("GET", "/models/tern-tales").json["id"] == "tern-tales"
    for path, body in (("/chat/completions", {"messages": MESSAGES, "max_tokens": 2}), ("/completions", {"prompt": "a", "max_tokens": 2}),
                       ("/embeddings", {"input": "a"}), ("/responses", {"input": "a", "max_output_tokens": 2}),
                       ("/messages", {"messages": MESSAGES, "max_tokens": 2})):
        assert ask("POST", path, body).status == 200, path
    a = ask("POST", "/responses", {"input": "a", "max_output_tokens": 2}).json
    assert ask("GET", f"/responses/{a['id']}").json["id"] == a["id"]
    assert ask("POST", "/messages", {"messages": 5}).json["type"] == "error"


def test_a_path_that_there_is_not_names_the_nearest():
    for path, near in (("/v1/chat/completion", "/v1/chat/completions"), ("/v1/respones", "/v1/responses"), ("/api/chats", "/api/chat"),
                       ("/chat/complete", "/v1/chat/completions"), ("/v1/model", "/v1/models")):
        a = ask("POST", path, {})
        text = a.json["error"] if isinstance(a.json["error"], str) else a.error["message"]
        assert a.status == 404 and text.endswith(f"did you mean {near}?"), (path, text)
    assert ask("GET", "/nowhere/at/all").error["message"] == "route not found"


def test_max_tokens_minus_one_is_no_limit():
    a = ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "play hello"}], "max_tokens": -1})
    assert a.status == 200 and a.json["choices"][0]["finish_reason"] == "stop"
    assert ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": -2}).status == 400


if __name__ == "__main__":
    main()
