"""Limits on what one request may ask for."""
from abuse import ask, complete, run, serve


def test_a_body_above_the_limit_is_refused_by_size():
    s = serve("--max-body", "64KiB")
    a = ask(s, "POST", "/v1/completions", b'{"prompt": "' + b"a" * 100_000 + b'"}')
    assert (a.status, a.code) == (413, "request_too_large"), (a.status, a.body)
    assert complete(s).status == 200


run(globals())
