"""The event loop only moves bytes: whatever one client sends to be computed, others are answered meanwhile.

Work that takes long is a body of very many numbers, which costs a request thread a tenth of a second and more. Orders are shown with a
list to which every answer appends its name when it arrives."""
import http.client
import json
import os
import signal
import tempfile
import threading
import time

from abuse import JSON, LONG, ask, complete, data_dir, open_servers, run, serve

N = 100 if LONG else 4                                    # heavy requests at a time
KEYS = ("sk-abuser name=abuser", "sk-other name=other", "sk-admin name=admin admin")
ABUSER, OTHER, ADMIN = ({"Authorization": f"Bearer {line.split()[0]}"} for line in KEYS)


def serve_keys(*flags):
    """A server with three tenants."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("\n".join(KEYS) + "\n")
        f.flush()
        os.chmod(f.name, 0o600)
        return serve("--api-key-file", f.name, *flags)


def heavy(numbers=1_000_000 if LONG else 300_000, size=16_000_000 if LONG else 2_000_000):
    """A body of this many JSON values and bytes. No context has room for it."""
    each = max(size // numbers, 2)
    return b'{"prompt":[' + (b"%*d," % (each - 1, 1)) * (numbers - 1) + b"1]}"


class Crowd:
    """Requests on threads of their own; `order` gets the name of each when its answer has come. With `again`, a thread sends its
    request again and again until join(): however slow the client is, the server has such work meanwhile."""

    def __init__(self, server):
        self.server, self.order, self.answers, self.threads, self.done = server, [], [], [], threading.Event()

    def add(self, name, method, path, body, headers=None, again=False):
        def work():
            one()
            while again and not self.done.is_set():
                one()

        def one():
            try:
                a = ask(self.server, method, path, body, headers)
                self.answers.append((a.status, a.code if a.status >= 400 else ""))
            except (OSError, http.client.HTTPException) as e:
                self.answers.append((0, type(e).__name__))
            self.order.append(name)
        t = threading.Thread(target=work)
        t.start()
        self.threads.append(t)

    def join(self):
        self.done.set()
        for t in self.threads:
            t.join(300)
            assert not t.is_alive(), self.order


def calls(server, headers=None):
    return json.loads(ask(server, "GET", "/status", headers=headers).body)["calls"]


def wait_for_calls(server, n, headers=None):
    """Waits until so many calls are with the request threads."""
    for _ in range(30000):
        if sum(c["state"] == "preparing" for c in calls(server, headers)) >= n:
            return
        time.sleep(0.01)
    raise AssertionError("the calls did not arrive")


# A schema of 40 levels, each all of two references to the level below.
BOMB = {"$ref": "#/$defs/l40", "$defs": {"l0": {"type": "string"}, **{
    f"l{i}": {"allOf": [{"$ref": f"#/$defs/l{i - 1}"}, {"$ref": f"#/$defs/l{i - 1}"}]} for i in range(1, 41)}}}


def send_all_kinds(crowd, headers=None):
    """Heavy bodies on every path that computes, texts to tokenize, and schemas that are hard to compile."""
    paths = ["/v1/completions", "/execute", "/v1/embeddings", "/detokenize", "/v1/chat/completions", "/v1/classify"]
    body, text = heavy(), json.dumps({"content": "Once upon a time " * (60_000 if LONG else 20_000)})
    for i in range(N):
        crowd.add("heavy", "POST", paths[i % len(paths)], body, headers, again=True)
    for i in range(N):
        crowd.add("text", "POST", "/tokenize", text, headers)
    for i in range(3):
        crowd.add("bomb", "POST", "/v1/completions", json.dumps({
            "prompt": "a", "max_tokens": 4, "response_format": {"type": "json_schema", "json_schema": {"schema": BOMB}}}), headers)


def test_health_is_answered_while_bodies_are_read():
    s = serve()
    crowd = Crowd(s)
    send_all_kinds(crowd)
    wait_for_calls(s, 2)
    for path in ("/health", "/ready", "/metrics", "/status", "/health", "/v1/models", "/"):
        assert ask(s, "GET", path).status == 200
        crowd.order.append(path)
    assert ask(s, "POST", "/v1/requests/none/cancel", "{}").status == 404
    wait_for_calls(s, 1)                                 # there is heavy work still
    crowd.join()
    # A client that still sends its body 5 s after the refusal is disconnected, which may be before it reads the refusal.
    cut = {(0, "BrokenPipeError"), (0, "ConnectionResetError")}
    allowed = {(400, "context_length_exceeded"), (400, "invalid_request"), (200, ""), (503, "too_many_bodies"), (429, "queue_full")}
    assert set(crowd.answers) <= allowed | cut, set(crowd.answers) - allowed - cut
    assert set(crowd.answers) & allowed, "nobody was answered"
    assert complete(s).status == 200


def test_small_requests_of_another_tenant_do_not_wait_for_heavy_ones():
    s = serve_keys()
    crowd = Crowd(s)
    for i in range(N):
        crowd.add("heavy", "POST", "/v1/completions", heavy(), ABUSER, again=True)
    wait_for_calls(s, 2, ADMIN)
    for i in range(10):
        assert ask(s, "POST", "/tokenize", {"content": "a bird"}, OTHER).status == 200
        assert complete(s, OTHER, max_tokens=2).status == 200
    wait_for_calls(s, 1, ADMIN)                          # there is heavy work still
    crowd.join()


def test_a_stream_of_another_tenant_goes_on():
    s = serve_keys("--ctx", "4096")
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
    c.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "temperature": 0,
                                                     "stream": True}), {**JSON, **OTHER})
    r = c.getresponse()
    crowd = Crowd(s)
    r.readline()
    for i in range(N):
        crowd.add("heavy", "POST", "/v1/completions", heavy(), ABUSER, again=True)
    wait_for_calls(s, 2, ADMIN)
    tokens = 0
    while tokens < 30:
        line = r.readline()
        assert line, "the stream ended"
        tokens += line.startswith(b"data: ")
    wait_for_calls(s, 1, ADMIN)                          # there is heavy work still
    c.sock.close()
    crowd.join()


def serve_with_a_long_queue(*flags):
    """A server whose request threads have eight heavy bodies to parse, again and again until crowd.join()."""
    s = serve(*flags)
    crowd = Crowd(s)
    for i in range(8):
        crowd.add("heavy", "POST", "/v1/completions", heavy(), again=True)
    wait_for_calls(s, 2)
    return s, crowd


def test_a_deadline_that_passes_in_the_queue_ends_the_request():
    s, crowd = serve_with_a_long_queue()
    late = ask(s, "POST", "/v1/completions", heavy(), {"X-Deadline": str(int(time.time() * 1000) + 30)})
    assert (late.status, late.code) == (504, "deadline_exceeded"), late.body
    wait_for_calls(s, 1)                                 # nobody waited for the whole queue
    crowd.join()


def test_a_request_in_the_queue_can_be_cancelled():
    """A client that is stalled between the two may find its request answered, and tries again."""
    s, crowd = serve_with_a_long_queue()
    for i in range(50):
        name = f"victim-{i}"
        crowd.add(name, "POST", "/v1/completions", heavy(), {"X-Correlation-Id": name})
        while name not in crowd.order and not any(c["correlation_id"] == name for c in calls(s)):
            time.sleep(0.01)
        a = ask(s, "POST", f"/v1/requests/{name}/cancel", "{}")
        if a.status == 200:
            break
    assert (a.status, a.json["cancelled"]) == (200, True), a.body
    crowd.join()
    assert crowd.answers.count((499, "cancelled")) == 1, crowd.answers


def test_a_durable_request_is_read_by_the_request_threads():
    """It waits for one of them before it becomes a job: until then it is a request that can be cancelled."""
    with data_dir() as d:
        s, crowd = serve_with_a_long_queue("--data-dir", d)
        durable = heavy()[:-1] + b',"durable":true}'
        for i in range(50):
            name = f"victim-{i}"
            crowd.add(name, "POST", "/completions", durable, {"X-Correlation-Id": name})
            while name not in crowd.order and not any(c["correlation_id"] == name for c in calls(s)):
                time.sleep(0.01)
            a = ask(s, "POST", f"/v1/requests/{name}/cancel", "{}")
            if a.status == 200:
                break
        assert (a.status, a.json["cancelled"]) == (200, True), a.body
        crowd.join()
        assert crowd.answers.count((499, "cancelled")) == 1, crowd.answers
        kept = crowd.answers.count((202, ""))
        assert kept == i and len(ask(s, "GET", "/v1/jobs").json["data"]) == min(kept, 20), (kept, i)
        a = ask(s, "POST", "/completions", heavy(10)[:-1] + b',"durable":true}', {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
        assert a.status == 202 and a.headers.get_all("traceparent") == ["00-" + "a" * 32 + "-" + "b" * 16 + "-01"], a.headers
        while (job := ask(s, "GET", a.headers["Location"]).json)["status"] not in ("completed", "failed"):
            time.sleep(0.02)
        assert "not_found" not in json.dumps(job), job       # a path without /v1 is the same endpoint


def test_a_deadline_that_passes_while_a_template_is_rendered_ends_it():
    """The template takes as many steps as a rendering has, and no time limit but that of the body."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write("{% if messages[0].content == 'loop' %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
                "{% endif %}{{ messages[0].content }}")
        f.flush()
        s = serve("--chat-template", f.name)
        ask_chat = lambda text, **more: ask(s, "POST", "/v1/chat/completions", {  # noqa: E731
            "messages": [{"role": "user", "content": text}], "max_tokens": 1, **more})
        a = ask_chat("loop", deadline_ms=20)
        assert (a.status, a.code) == (504, "deadline_exceeded"), a.body
        assert ask_chat("loop").code == "invalid_request"
        assert ask_chat("Once").status == 200


def test_clients_that_leave_cost_nothing_more():
    s = serve()
    body = heavy()
    for i in range(8):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        c.request("POST", "/v1/completions", body, JSON)
        c.sock.close()
    for i in range(30000):
        if not calls(s):
            break
        time.sleep(0.01)
    assert not calls(s)
    assert complete(s).status == 200


def test_a_second_signal_ends_requests_that_are_being_read():
    s, crowd = serve_with_a_long_queue()
    s.process.send_signal(signal.SIGTERM)
    s.process.send_signal(signal.SIGTERM)
    crowd.done.set()
    assert s.process.wait(300) == 0
    crowd.join()
    assert set(crowd.answers) <= {(503, "shutting_down"), (400, "context_length_exceeded"), (0, "ConnectionResetError"),
                                  (0, "RemoteDisconnected"), (0, "BrokenPipeError"), (0, "ConnectionRefusedError")}, crowd.answers
    open_servers.remove(s)
    s.log.close()
    os.unlink(s.log.name)


run(globals())
