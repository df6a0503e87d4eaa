"""Recorded answers of the routes that have no page of their own: chat, completions, infill, rerank, embeddings. The events in their
order and every field are compared with tests/golden/api; log probabilities, scores and vectors are only counted."""
from client import main
from golden import check_golden

MODEL = "scripted-hermes"
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
             "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}},
         {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}}]


def chat(script, **fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": f"play {script}"}], **fields}


def complete(script, **fields):
    return {"model": MODEL, "prompt": f"<|play {script}|>", "max_tokens": 50, **fields}


def test_chat():
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    check_golden("chat-body", CHAT, chat("hello"))
    check_golden("chat-stream", CHAT, chat("hello", stream=True))
    check_golden("chat-usage", CHAT, chat("hello", **usage))
    check_golden("chat-calls-body", CHAT, chat("call", tools=TOOLS))
    check_golden("chat-calls-stream", CHAT, chat("call", tools=TOOLS, **usage))
    check_golden("chat-two-calls", CHAT, chat("two", tools=TOOLS, **usage))
    check_golden("chat-logprobs-body", CHAT, chat("hello", logprobs=True, top_logprobs=1))
    check_golden("chat-logprobs-stream", CHAT, chat("hello", logprobs=True, top_logprobs=1, stream=True))
    check_golden("chat-cut", CHAT, chat("hello", max_tokens=2, **usage))
    check_golden("chat-stop", CHAT, chat("hello", stop=[", "], stream=True))
    check_golden("chat-error", CHAT, chat("hello", temperature=9))


def test_chat_with_channels():
    """The other form of thinking and calls: harmony's channels."""
    check_golden("chat-channels", CHAT, {**chat("call", tools=TOOLS, stream=True), "model": "scripted-harmony"})


def test_completions():
    check_golden("completions-body", COMPLETE, complete("hello"))
    check_golden("completions-stream", COMPLETE, complete("hello", stream=True, stream_options={"include_usage": True}))
    check_golden("completions-logprobs", COMPLETE, complete("hello", logprobs=1))
    check_golden("completions-echo", COMPLETE, complete("hello", echo=True))
    check_golden("completions-prompts", COMPLETE, {**complete("hello"), "prompt": ["<|play hello|>", "x"]})


def test_infill():
    body = {"model": MODEL, "input_prefix": "a = ", "input_suffix": "\nb = 2\n", "n_predict": 8}
    check_golden("infill-body", "/infill", body)
    check_golden("infill-stream", "/infill", {**body, "stream": True})
    check_golden("infill-error", "/infill", {**body, "model": "tern-tales"})


def test_rerank():
    body = {"model": "rerank-text", "query": "the dog", "documents": ["the cat", "the dog", "a house"]}
    check_golden("rerank-body", "/v1/rerank", {**body, "top_n": 2, "return_documents": True})
    check_golden("rerank-error", "/v1/rerank", {**body, "documents": []})


def test_embeddings():
    check_golden("embeddings-body", "/v1/embeddings", {"model": "tern-tales", "input": ["a frog", "a bird"]})
    check_golden("embeddings-base64", "/v1/embeddings", {"model": "tern-tales", "input": "a frog", "encoding_format": "base64"})
    check_golden("embeddings-error", "/v1/embeddings", {"model": "tern-tales", "input": []})


if __name__ == "__main__":
    main()
