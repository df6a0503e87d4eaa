"""Output constrained by a grammar or a schema: every field name, streams, choices, token limits, errors."""
import json
import re
import threading

from client import ask, chat, complete, main, stream_chat

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 1, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
HOT = {"temperature": 1.5, "max_tokens": 200}


def schema(s, **more):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": s}}, **more}


def person(text):
    v = json.loads(text)
    assert list(v) == ["name", "age"] and len(v["name"]) <= 12 and 1 <= v["age"] <= 99, text
    return v


def text_of(events):
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


def test_json_schemas_and_json_objects():
    for seed in range(6):
        a = chat(seed=seed, **schema(PERSON, **HOT)).json
        person(a["choices"][0]["message"]["content"])
        assert a["choices"][0]["finish_reason"] == "stop"
    for seed in range(4):
        a = chat(seed=seed, response_format={"type": "json_object"}, **HOT).json
        assert isinstance(json.loads(a["choices"][0]["message"]["content"]), dict)


def test_every_field_name_of_a_grammar():
    for fields, pattern in (({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
                            ({"guided_grammar": "root ::= [a-c]{3}"}, "[a-c]{3}"),
                            ({"guided_regex": "\\d{4}-[xy]+!"}, r"\d{4}-[xy]+!"),
                            ({"guided_choice": ["red", "blue"]}, "red|blue"),
                            ({"guided_json": {"const": [1, "a"]}}, r'\[1,"a"\]'),
                            ({"json_schema": {"type": "boolean"}}, "true|false"),
                            ({"structured_outputs": {"regex": "[ab]{5}"}}, "[ab]{5}")):
        a = complete(**fields, **HOT)
        assert a.status == 200, a.body
        assert re.fullmatch(pattern, a.json["choices"][0]["text"]), (fields, a.json)


def test_streams_and_choices():
    events = list(stream_chat(seed=3, **schema(PERSON, **HOT)))
    person(text_of(events))
    a = chat(n=4, seed=3, **schema(PERSON, **HOT)).json
    assert len({c["message"]["content"] for c in a["choices"]}) > 1
    for c in a["choices"]:
        person(c["message"]["content"])


def test_grammars_with_other_settings():
    a = chat(logprobs=True, top_logprobs=2, guided_choice=["alpha", "beta"], **HOT).json["choices"][0]
    assert a["message"]["content"] in ("alpha", "beta") and a["logprobs"]["content"]
    a = chat(grammar="root ::= [a-z]{50}", stop=["a", "e", "i", "o", "u"], **HOT).json["choices"][0]
    assert a["finish_reason"] == "stop" and not set(a["message"]["content"]) & set("aeiou")
    a = chat(grammar="root ::= [a-z]*", min_tokens=20, **HOT).json
    assert a["usage"]["completion_tokens"] >= 20
    a = chat(**schema(PERSON, temperature=0, max_tokens=100)).json["choices"][0]
    person(a["message"]["content"])


def test_json_is_closed_before_the_token_limit():
    a = chat(**schema(PERSON, temperature=1.5, max_tokens=3)).json["choices"][0]
    assert a["finish_reason"] == "length"
    for n in range(24, 40, 3):
        person(chat(**schema(PERSON, temperature=1.5, max_tokens=n, seed=n)).json["choices"][0]["message"]["content"])


def test_errors_name_the_field_and_the_position():
    where = "response_format.json_schema.schema"
    for fields, param, words in (
            ({"grammar": "root ::= x"}, "grammar", ("line 1, column 10", "'x'")),
            ({"grammar": "root ::= root \"a\" | \"b\""}, "grammar", ("left recursion", "'root'")),
            ({"guided_regex": "(?!a)b"}, "guided_regex", ("column 1", "lookahead")),
            (schema({"type": "object", "properties": {"a": {"not": {}}}}), where, ("'not'", "#/properties/a")),
            (schema({"type": "array", "contains": {}}), where, ("'contains'", "#")),
            (schema({"$ref": "#/nope"}), where, ("$ref", "#/nope")),
            (schema({"type": "integer", "minimum": 5, "maximum": 4}), where, ("nothing matches",)),
            ({"guided_choice": []}, "guided_choice", ("list of strings",)),
            ({"response_format": {"type": "xml"}}, "response_format.type", ("json_schema",))):
        a = chat(**fields)
        assert a.status == 400 and a.error["param"] == param, (fields, a.body)
        assert all(w in a.error["message"] for w in words), (words, a.error["message"])


def levels(n, name):
    """A schema that takes all steps a grammar may take: level i refers to level i - 1 twice."""
    defs = {f"l{i}": {"allOf": [{"$ref": f"#/$defs/l{i - 1}"}] * 2} for i in range(1, n + 1)}
    return {"$ref": f"#/$defs/l{n}", "$defs": {"l0": {"title": name, "type": "object"}, **defs}}


def test_slow_grammars_do_not_delay_others():
    """Eight of them end at their limit, one after the other; small ones, a stream and /health pass them by."""
    ended = []

    def ask_slow(i):
        a = chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": levels(40, f"slow {i}")}}, max_tokens=1)
        ended.append(("slow", a))

    threads = [threading.Thread(target=ask_slow, args=(i,)) for i in range(8)]
    story = stream_chat(ignore_eos=True, max_tokens=400)
    events = iter(story)
    for t in threads:
        t.start()
    for i in range(5):
        assert ask("GET", "/health").status == 200
        assert next(events, None) is not None
        a = chat(guided_choice=[f"x{i}", f"y{i}"], max_tokens=3)
        assert a.status == 200 and a.json["choices"][0]["message"]["content"] in (f"x{i}", f"y{i}"), a.body
        ended.append(("small", a))
    story.close()
    for t in threads:
        t.join()
    slow = [a for kind, a in ended if kind == "slow"]
    assert len(slow) == 8 and all(a.status == 400 and "steps, which is the limit" in a.error["message"] for a in slow), ended
    assert ended[-1][0] == "slow", [kind for kind, a in ended]      # no small one had to wait for all of them


if __name__ == "__main__":
    main()
