"""GET /ready: of all models, of any, of one."""
import os
import tempfile
import time

from abuse import MODEL, ask, complete, open_servers, run, serving


def serve_two(*flags):
    """A server of a good model and of one that cannot be loaded; returns when both are settled."""
    d = tempfile.mkdtemp()
    bad = os.path.join(d, "bad model+.gguf")
    with open(bad, "wb") as f:
        f.write(b"GGUF")
    s = serving.Server([serving.TERN, "serve", "-m", MODEL, "-m", bad, "--log-level", "error", *flags], ready="/health")
    open_servers.append(s)
    while any(m["state"] == "loading" for m in ask(s, "GET", "/status").json["models"]):
        time.sleep(0.02)
    os.unlink(bad)
    os.rmdir(d)
    return s


def check_each(s):
    a = ask(s, "GET", "/ready?model=tern-tales")
    assert (a.status, a.json) == (200, {"status": "ready", "model": "tern-tales"}), a.body
    for name in ("bad%20model%2B", "bad+model%2b"):
        a = ask(s, "GET", f"/ready?x=1&model={name}")
        assert a.status == 503 and a.json["reason"] == "model_load_failed" and a.json["model"] == "bad model+", (name, a.body)
    for name in ("", "nothing", "tern-tale", "tern-tales2", "%", "%zz", "tern-tales%00"):
        a = ask(s, "GET", f"/ready?model={name}")
        assert (a.status, a.code) == (404, "model_not_found"), (name, a.status, a.body)
    assert complete(s, model="tern-tales").status == 200


def test_a_failed_model_makes_the_server_unready_and_not_the_others():
    s = serve_two()
    a = ask(s, "GET", "/ready")
    assert a.status == 503 and a.json["reason"] == "model_load_failed", a.body
    assert a.json["models"] == {"loaded": 1, "failed": 1, "total": 2}, a.body
    check_each(s)


def test_with_any_a_server_is_ready_that_has_a_ready_model():
    s = serve_two("--ready", "any")
    a = ask(s, "GET", "/ready")
    assert (a.status, a.json) == (200, {"status": "ready", "models": {"loaded": 1, "failed": 1, "total": 2}}), a.body
    assert s.metrics()["tern_ready"] == 1
    check_each(s)


run(globals())
