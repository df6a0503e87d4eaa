"""A model that fails while it serves: its requests get a typed error, others go on, and it is opened again."""
import os
import shutil
import tempfile
import time

from abuse import MODEL, ask, complete, run, serve


def model_status(server, name):
    return next(m for m in ask(server, "GET", "/status").json["models"] if m["id"] == name)


def until(what, tries=600):
    for _ in range(tries):
        if what():
            return True
        time.sleep(0.1)
    return False


def test_a_model_whose_file_is_truncated_fails_alone_and_comes_back():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "other.gguf")
        shutil.copy(MODEL, path)
        s = serve("-m", path, "--ctx", "512")
        assert complete(s, model="other").status == 200
        os.truncate(path, os.path.getsize(path) // 2)
        answers = []
        assert until(lambda: answers.append(complete(s, model="other")) or answers[-1].status != 200)
        assert answers[-1].status == 500 and answers[-1].code == "model_damaged", (answers[-1].status, answers[-1].body)
        assert complete(s, model="tern-tales").status == 200
        assert until(lambda: model_status(s, "other")["state"] == "failed")
        assert "other" in model_status(s, "other")["error"]
        assert ask(s, "GET", "/ready").status == 503 and ask(s, "GET", "/health").status == 200
        a = complete(s, model="other")
        assert a.status in (500, 503) and a.code in ("model_damaged", "model_load_failed", "model_loading"), a.body
        whole = os.path.join(d, "whole")
        shutil.copy(MODEL, whole)
        os.replace(whole, path)                           # the file is mended: the model is opened again
        assert until(lambda: complete(s, model="other").status == 200), model_status(s, "other")
        assert ask(s, "GET", "/ready").status == 200
        assert complete(s, model="tern-tales").status == 200


run(globals())
