"""Completions: fields of replies, streams, choices, stop strings, log probabilities, tokens."""
from client import ask, chat, complete, main, stream_chat, Stream


def text_of(events, index=0):
    return "".join(c.get("text") or c.get("delta", {}).get("content") or ""
                   for e in events for c in e["choices"] if c["index"] == index)


def test_models_are_listed():
    a = ask("GET", "/v1/models")
    assert a.status == 200 and a.json["object"] == "list"
    m = a.json["data"][0]
    assert m["id"] == "tern-tales" and m["object"] == "model" and m["owned_by"] == "tern"
    assert m["meta"]["context"] == 4096 and m["meta"]["state"] == "ready"
    assert ask("GET", "/v1/models/tern-tales").json["id"] == "tern-tales"
    assert ask("GET", "/v1/models/no/such").error["code"] == "model_not_found"


def test_chat_has_the_fields_of_the_openai_api():
    a = chat(max_tokens=12, temperature=0).json
    assert a["id"].startswith("chatcmpl-") and a["object"] == "chat.completion" and a["model"] == "tern-tales"
    c = a["choices"][0]
    assert c["message"]["role"] == "assistant" and c["message"]["content"]
    assert c["finish_reason"] in ("stop", "length")
    assert c["logprobs"] is None and a["system_fingerprint"].startswith("fp_")
    u = a["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] and u["completion_tokens"] <= 12


def test_a_stream_equals_the_reply_without_streaming():
    for fields in ({"temperature": 0}, {"seed": 5, "temperature": 1.5}, {"seed": 5, "n": 3}):
        whole = chat(max_tokens=30, **fields).json
        s = stream_chat(max_tokens=30, stream_options={"include_usage": True}, **fields)
        events = list(s)
        assert s.done and s.r.headers["content-type"].startswith("text/event-stream")
        for c in whole["choices"]:
            # With n > 1 the choices share a batch, and its composition may change the last bits of the logits.
            text = text_of(events, c["index"])
            assert text == c["message"]["content"] or (fields.get("n", 1) > 1 and text)
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert events[-1]["choices"] == [] and all(e["usage"] is None for e in events[:-1])
        for k in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert events[-1]["usage"][k] == whole["usage"][k]
        assert len({e["id"] for e in events}) == 1


def test_completions_accept_every_form_of_prompt():
    ids = ask("POST", "/tokenize", {"content": "Once upon a time", "add_special": True}).json["tokens"]
    a = complete(max_tokens=10, temperature=0).json["choices"][0]["text"]
    assert complete(prompt=ids, max_tokens=10, temperature=0).json["choices"][0]["text"] == a
    b = complete(prompt=["Once upon a time", "A fox"], max_tokens=10, temperature=0, n=2).json["choices"]
    assert [c["index"] for c in b] == [0, 1, 2, 3]
    assert b[0]["text"] == b[1]["text"] == a and b[2]["text"] != a
    c = complete(prompt=[ids, ids], max_tokens=10, temperature=0).json["choices"]
    assert [x["text"] for x in c] == [a, a]
    e = complete(max_tokens=10, temperature=0, echo=True).json["choices"][0]["text"]
    assert e == "Once upon a time" + a


def test_stop_strings_are_found_across_token_boundaries():
    text = complete(max_tokens=60, temperature=0).json["choices"][0]["text"]
    for at in range(3, 40, 7):
        stop = text[at:at + 6]
        a = complete(max_tokens=60, temperature=0, stop=[stop]).json["choices"][0]
        assert a["text"] == text[:text.index(stop)] and a["finish_reason"] == "stop", (stop, a)
        s = Stream("/v1/completions",
                   {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "stop": stop})
        assert text_of(list(s)) == a["text"]


def test_logprobs_are_consistent_with_the_text():
    a = chat(max_tokens=15, temperature=0, logprobs=True, top_logprobs=5).json["choices"][0]
    items = a["logprobs"]["content"]
    assert b"".join(bytes(i["bytes"]) for i in items).decode() == a["message"]["content"]
    for i in items:
        assert i["logprob"] <= 0 and len(i["top_logprobs"]) == 5
        assert i["token"] == i["top_logprobs"][0]["token"]
        assert sum(2.718281828 ** t["logprob"] for t in i["top_logprobs"]) < 1.0001
    b = complete(max_tokens=15, temperature=0, logprobs=3).json["choices"][0]
    assert "".join(b["logprobs"]["tokens"]) == b["text"]
    assert all(3 <= len(t) <= 4 for t in b["logprobs"]["top_logprobs"])
    events = list(stream_chat(max_tokens=15, temperature=0, logprobs=True))
    got = [i for e in events for c in e["choices"] for i in (c["logprobs"] or {"content": []})["content"]]
    assert [i["token"] for i in got] == [i["token"] for i in items]


def test_tokenize_and_detokenize_are_inverse():
    for text in ("Once upon a time", "caf\u00e9 \U0001f600\n", ""):
        t = ask("POST", "/tokenize", {"content": text}).json
        assert t["count"] == len(t["tokens"])
        assert ask("POST", "/detokenize", {"tokens": t["tokens"]}).json["content"] == text
    p = ask("POST", "/tokenize", {"text": "a bird", "with_pieces": True}).json["tokens"]
    assert "a bird" in "".join(x["piece"] for x in p)


def test_logit_bias_seed_and_token_limits():
    a = complete(max_tokens=5, temperature=0).json["choices"][0]["text"]
    first = complete(max_tokens=1, temperature=0, logprobs=1).json
    text = "Once upon a time" + first["choices"][0]["text"]
    ids = ask("POST", "/tokenize", {"content": text}).json["tokens"]
    b = complete(max_tokens=5, temperature=0, logit_bias={str(ids[-1]): -100}).json["choices"][0]["text"]
    assert a != b
    same = [complete(max_tokens=20, seed=9).json["choices"][0]["text"] for _ in range(2)]
    assert same[0] == same[1]
    c = complete(max_tokens=7, min_tokens=7, ignore_eos=True).json
    assert c["usage"]["completion_tokens"] == 7 and c["choices"][0]["finish_reason"] == "length"


def test_correlation_ids_and_ignored_fields_are_returned():
    a = chat({"X-Correlation-Id": "my-id-7"}, max_tokens=1, unheard_of=1)
    assert a.headers["x-correlation-id"] == "my-id-7" == a.headers["x-request-id"]
    assert a.headers["x-tern-ignored-fields"] == "unheard_of"
    assert len(chat(max_tokens=1).headers["x-correlation-id"]) >= 8


if __name__ == "__main__":
    main()
