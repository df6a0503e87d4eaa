"""ONNX models: embeddings, classes, pairs of texts, and errors."""
import json
import os

from client import ask, main

GOLD = json.load(open(os.path.join(os.path.dirname(__file__), "../golden/onnx/expected.json")))


def embed(**fields):
    return ask("POST", "/v1/embeddings", {"model": "embed", **fields})


def classify(path="/v1/classify", **fields):
    return ask("POST", path, {"model": "classify", **fields})


def near(a, b, eps=2e-6):
    return len(a) == len(b) and all(abs(x - y) < eps for x, y in zip(a, b))


def test_models_and_status_show_the_task():
    tasks = {m["id"]: m["meta"]["task"] for m in ask("GET", "/v1/models").json["data"]}
    assert tasks["embed"] == "embed" and tasks["classify"] == "classify" and tasks["tern-tales"] == "generate"
    status = {m["id"]: m for m in ask("GET", "/status").json["models"]}
    assert status["classify"]["task"] == "classify" and status["classify"]["arch"] == "onnx"
    assert status["embed"]["parameters"] == 6290 and status["embed"]["context"] == 40


def test_embeddings_of_ids_are_the_golden_ones():
    a = embed(input=GOLD["texts"]).json
    assert [d["index"] for d in a["data"]] == [0, 1, 2]
    assert all(near(d["embedding"], g) for d, g in zip(a["data"], GOLD["embeddings"]))
    assert a["usage"]["prompt_tokens"] == sum(map(len, GOLD["texts"]))


def test_embeddings_of_texts():
    a = embed(input="the dog").json["data"][0]["embedding"]
    assert near(a, GOLD["embeddings"][1])
    many = embed(input=["the dog"] * 100 + ["a cat"]).json["data"]
    assert len(many) == 101 and near(many[99]["embedding"], a) and not near(many[100]["embedding"], a)


def test_classes_have_the_fields_of_vllm():
    for path in ("/v1/classify", "/classify"):
        a = classify(path, input=["the dog", "a cat"]).json
        assert a["object"] == "list" and a["model"] == "classify" and a["id"].startswith("classify-") and a["created"] > 0
        d = a["data"][0]
        assert d["index"] == 0 and d["num_classes"] == 3 and d["label"] == "bad" and abs(sum(d["probs"]) - 1) < 1e-5
        assert near(d["probs"], [0.584460, 0.405140, 0.010400])
        assert a["usage"] == {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0}


def test_a_pair_is_one_input():
    one = classify(input=[["a cat", "the dog"]]).json
    assert len(one["data"]) == 1 and one["usage"]["prompt_tokens"] == 7
    ids = classify(input=[[2, 5, 7, 3, 6, 8, 3]]).json                  # the same tokens with one token type
    assert not near(one["data"][0]["probs"], ids["data"][0]["probs"])


def test_errors_name_the_field():
    assert classify(input=[["a", "b"], ["c"]]).error["param"] == "input[1]"
    assert classify().error["param"] == "input"
    assert classify(input=3).status == 400
    assert classify(input="").status == 200                             # [CLS] [SEP] is a valid input
    assert classify(input=[64]).error["param"] == "input[0]"
    a = ask("POST", "/v1/classify", {"model": "tern-tales", "input": "x"})
    assert a.status == 400 and "generate" in a.error["message"] and a.error["param"] == "model"
    a = ask("POST", "/v1/embeddings", {"model": "classify", "input": "x"})
    assert a.status == 400 and "/v1/classify" in a.error["message"]
    a = ask("POST", "/v1/completions", {"model": "embed", "prompt": "x"})
    assert a.status == 400 and "generates no text" in a.error["message"]
    a = embed(input="a " * 60)
    assert a.status == 400 and a.error["code"] == "context_length_exceeded"


def test_deadlines_and_priorities_apply():
    a = ask("POST", "/v1/classify", {"model": "classify", "input": "x"}, {"X-Deadline": "1000"})
    assert a.status in (408, 504) or a.error["code"]
    assert ask("POST", "/v1/classify", {"model": "classify", "input": "x"}, {"X-Priority": "batch"}).status == 200


if __name__ == "__main__":
    main()
