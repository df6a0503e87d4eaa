"""The second turn of a chat computes only its new tokens, with attention, recurrent state, or both; usage says so."""
from client import ask, main

BLOCK = 16
SYSTEM = {"role": "system", "content": "You are the guard of a long wall and speak of it in short words."}
# The models have random weights: the grammar keeps their answers to letters, of which each is a token, now and when they come back.
LETTERS = "root ::= [a-z]{40}"


def chat(model, messages, **more):
    a = ask("POST", "/v1/chat/completions", {"model": model, "messages": messages, "grammar": LETTERS, "max_tokens": 60, "temperature": 0, **more})
    assert a.status == 200, a.body
    usage = a.json["usage"]
    return a.json["choices"][0]["message"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def user(text):
    return {"role": "user", "content": text}


def hold_two_turns(model, name, opening):
    """Returns the tokens of the prompts and the cached ones. name: makes the conversation a new one. opening: tokens that open an
    answer and that the history does not have."""
    talk = [SYSTEM, user(f"I am {name}, and I ask how long the wall is, and how old, and who built it.")]
    answer, n_first, cached = chat(model, talk)
    assert len(answer["content"]) == 40, answer
    first_cached = cached
    more = talk + [{"role": "assistant", "content": answer["content"]}, user("And how high is it?")]
    _, n_second, cached = chat(model, more)
    # The answer is computed again only where its tokens stand behind others.
    known = n_first - opening if opening else n_first + 40
    assert known - BLOCK < cached <= known, (model, n_first, n_second, cached)
    # An edit of the last message, and one of the first.
    more[-1] = user("Is it high?")
    _, _, cached = chat(model, more)
    border = n_second - opening - len(".user\nAnd how high is it?.\n.assistant\n")
    assert border - BLOCK < cached <= border + BLOCK, (model, border, cached)
    more[1] = user(f"{name} am I.")
    _, _, cached = chat(model, more)
    system = len(".system\n.\n.user\n") + len(SYSTEM["content"])
    assert system - 2 * BLOCK < cached <= system + BLOCK, (model, system, cached)
    return first_cached


def test_the_second_turn_computes_only_its_new_tokens():
    for model, opening in (("recurrent", 0), ("hybrid", 0), ("hybrid-think", len(".\n\n.\n\n"))):
        assert hold_two_turns(model, "Ada", opening) == 0
        # Another conversation has the system message in common.
        assert hold_two_turns(model, "Bert", opening) > 0


def test_messages_and_responses_say_what_was_cached():
    text = "Tell me what you see from the wall today, from the first tower to the last, and who walks below."
    for model in ("recurrent", "hybrid"):
        body = {"model": model, "max_tokens": 20, "temperature": 0, "messages": [user("messages: " + text)]}
        first = ask("POST", "/v1/messages", body).json["usage"]
        again = ask("POST", "/v1/messages", body).json["usage"]
        n = first["input_tokens"] + first.get("cache_read_input_tokens", 0)
        assert again["input_tokens"] + again["cache_read_input_tokens"] == n, (first, again)
        assert again["cache_read_input_tokens"] > n - 3 * BLOCK, (model, first, again)
        body = {"model": model, "max_output_tokens": 20, "temperature": 0, "input": "responses: " + text, "store": False}
        ask("POST", "/v1/responses", body)
        usage = ask("POST", "/v1/responses", body).json["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] - 3 * BLOCK, (model, usage)


if __name__ == "__main__":
    main()
