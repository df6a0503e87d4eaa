"""Invalid bodies and invalid HTTP: status, error object, and a server that continues."""
import json
import socket
import time

from client import MESSAGES, URL, ask, chat, complete, main, raw

ENVELOPE = {"message", "type", "param", "code", "correlation_id"}


def check(a, status, code, param=None):
    assert a.status == status, (a.status, a.body)
    assert set(a.error) - {"tern_code"} == ENVELOPE, a.error
    assert a.error["code"] == code and a.error["param"] == param and a.error["message"], a.error
    assert a.headers["x-request-id"] == a.error["correlation_id"]


def test_wrong_types_in_every_field():
    wrong = {"temperature": "x", "top_p": [], "top_k": 1.5, "min_p": {}, "typical_p": "x",
             "repetition_penalty": "x", "repeat_last_n": "x", "frequency_penalty": 3,
             "presence_penalty": True, "logit_bias": [], "seed": "x", "n": 0, "stop": 7, "stream": 1,
             "stream_options": 1, "max_tokens": 0, "max_completion_tokens": "x",
             "min_tokens": -1, "logprobs": "x", "ignore_eos": "x", "priority": "x", "timeout": 0, "model": 1,
             "messages": "x", "response_format": "json", "tools": "x", "tool_choice": "required",
             "grammar": "x", "chat_template_kwargs": 1, "enable_thinking": "x", "documents": 1}
    for field, value in wrong.items():
        check(chat(**{field: value}), 400, "invalid_request", field)
        if field != "messages":
            assert chat(**{field: None, "max_tokens": 1}).status == 200, field
    check(chat(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": 1}]), 400,
          "invalid_request", "messages[1].content")
    check(complete(prompt=[1, "x"]), 400, "invalid_request", "prompt[1]")


def test_a_json_error_has_its_position():
    for body, where in ((b'{"messages": [\n  {]}', "line 2"), (b"", "empty"), (b"[1]", "object"),
                        (b"nul", "line 1"), (b'{"a":"\xff"}', "line 1"), (b'{"a":"\\u0000"}', "byte"),
                        (b'{"a":1\x00}', "line 1")):
        a = ask("POST", "/v1/chat/completions", body)
        check(a, 400, "invalid_request")
        assert where in a.error["message"], a.error["message"]
    check(ask("POST", "/v1/chat/completions", b"[" * 100000), 400, "invalid_request")
    check(ask("POST", "/v1/chat/completions", b'{"a":' * 5000 + b"1" + b"}" * 5000), 400, "invalid_request")


def test_context_errors_have_the_limit():
    a = complete(prompt="bird " * 5000)
    check(a, 400, "context_length_exceeded", "prompt")
    assert "4096" in a.error["message"]
    check(chat(model="gpt-4"), 404, "model_not_found", "model")


def test_deadlines_in_the_past_are_not_queued():
    check(chat({"X-Deadline": "2001-01-01T00:00:00Z"}), 504, "deadline_exceeded")
    check(chat({"X-Deadline": str(int(time.time() * 1000) - 1)}), 504, "deadline_exceeded")
    check(chat(deadline_ms=-5), 504, "deadline_exceeded")
    check(chat(deadline_ms=5), 504, "deadline_exceeded")   # nearer than 10 ms
    check(chat({"X-Deadline": "tomorrow"}), 400, "invalid_request", "X-Deadline")


def test_paths_and_methods():
    assert ask("GET", "/v1/chat/completions").status == 405
    assert ask("POST", "/v1/models", {}).status == 405
    assert ask("GET", "/nowhere").status == 404
    assert ask("DELETE", "/v1/models").status in (404, 405)


def test_a_body_of_64_mib_is_rejected():
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67108864\r\n\r\n"
    status, got = raw(head + b"x" * 100000)
    assert status == 413, got[:300]
    assert b'"request_too_large"' in got


def test_invalid_http_is_answered_or_closed():
    for data in (b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 1000, b"GET\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n",
                 b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200000 + b"\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"):
        status, got = raw(data, close_write=True)
        assert status is None or 400 <= status < 600, (data[:60], got[:200])
        assert not got.endswith(b"(timeout)"), data[:60]
    assert ask("GET", "/health").status == 200


def test_keep_alive_and_pipelining():
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2, "stream": True}).encode()
    one = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    status, got = raw(one + one + last)
    assert status == 200 and got.count(b"HTTP/1.1 200") == 3 and got.count(b"[DONE]") == 2, got[-500:]


def test_half_open_connections_do_not_block_others():
    socks = [socket.create_connection((URL.hostname, URL.port)) for _ in range(50)]
    for s in socks:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    assert chat(max_tokens=2).status == 200
    for s in socks:
        s.close()


if __name__ == "__main__":
    main()
