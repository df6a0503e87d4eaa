#!/usr/bin/env python3
"""Measures tern-tools through the API. usage: measure.py URL MODEL [COUNT] [--agents] [--template]

Sends held-out conversations to /v1/chat/completions with tool_choice auto and counts the answers that are exactly right. With
--template it compares the prompt that the server renders with the one of the training data, too."""
import collections, json, random, sys, urllib.request
import data

url, model = sys.argv[1:3]
count = int(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3].isdigit() else 300


def ask(path, body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=300))


rng, right, total = random.Random(4321), collections.Counter(), collections.Counter()
for i in range(count):
    c = data.conversation(rng, True, 26, list(data.AGENTS)[i % 4] if "--agents" in sys.argv else None)
    body = {"model": model, "messages": data.messages(c), "tool_choice": "auto", "max_tokens": 300}
    if c["tools"]:
        body["tools"] = [data.function_of(t) for t in c["tools"]]
    else:
        del body["tool_choice"]
    if "--template" in sys.argv:
        got = ask("/apply-template", body)["prompt"]
        if got != data.render(c)[0]:
            print(f"the prompt differs:\n{got!r}\n{data.render(c)[0]!r}")
    a = ask("/v1/chat/completions", body)["choices"][0]
    calls = [(k["function"]["name"], json.loads(k["function"]["arguments"])) for k in a["message"].get("tool_calls") or []]
    wanted = c["answer"]
    ok = a["message"]["content"] == wanted and not calls if isinstance(wanted, str) else calls == [(wanted[0], wanted[1])]
    kind = "after a result" if c["call"] else "no call" if isinstance(wanted, str) else f"call, {c['kind']}" if c["kind"] in ("shell", "write", "by name") else "call, other kinds"
    total[kind] += 1
    right[kind] += ok
    if not ok and total[kind] - right[kind] <= 3:
        print(f"wrong: {c['request']!r}\n  wanted {wanted!r}\n  said   {a['message']['content']!r} {calls!r} {a['finish_reason']}")
print("; ".join(f"{k} {right[k]}/{total[k]}" for k in sorted(total)) + f"; all {sum(right.values()) / sum(total.values()):.4f}")
