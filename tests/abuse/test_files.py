"""Model files that are damaged, change while they are served, or are no files: the matter of one model."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time

from abuse import MODEL, ROOT, ask, complete, open_servers, run, serving
from gguf import Gguf

work = tempfile.mkdtemp(prefix="tern-files-")


def copy_model(name):
    path = os.path.join(work, name)
    shutil.copyfile(MODEL, path)
    return path


def serve_beside(path, *flags):
    """A server of the shipped model and of `path`, when both are loaded or failed."""
    s = serving.Server([serving.TERN, "serve", "-m", MODEL, "-m", path, "--log-level", "error", *flags], ready="/health")
    open_servers.append(s)
    while any(m["state"] in ("loading", "cold") for m in ask(s, "GET", "/status").json["models"]):
        time.sleep(0.02)
    return s


def model_of(server, name):
    return next(m for m in ask(server, "GET", "/status").json["models"] if m["id"] == name)


def await_failure(server, name):
    """Asks until the model has failed; the files of a model are looked at once a second. Returns the last answer."""
    for _ in range(2000):
        a = complete(server, model=name)
        if a.status != 200:
            return a
        time.sleep(0.02)
    raise AssertionError("the model goes on serving")


def await_state(server, name, state):
    for _ in range(2000):
        m = model_of(server, name)
        if m["state"] == state:
            return m
        time.sleep(0.02)
    raise AssertionError(m)


def others_serve(server):
    assert complete(server, model="tern-tales").status == 200
    assert ask(server, "GET", "/ready?model=tern-tales").status == 200


def test_a_vector_of_a_quantized_type_fails_its_model_only():
    g = Gguf(MODEL)
    g.set_type("blk.0.attn_norm.weight", 8)
    s = serve_beside(g.save(work, "vector.gguf"))
    m = model_of(s, "vector")
    assert m["state"] == "failed", m
    assert "blk.0.attn_norm.weight is Q8_0, expected F32" in m["error"], m["error"]
    others_serve(s)


def test_a_nan_refuses_its_model_by_tensor_and_row():
    g = Gguf(MODEL)
    row = 256 // 32 * 34
    g.write_at("token_embd.weight", 17 * row, struct.pack("<H", 0x7e00))
    path = g.save(work, "nan.gguf")
    s = serve_beside(path)
    m = model_of(s, "nan")
    assert m["state"] == "failed", m
    assert "token_embd.weight has a NaN or an infinite number in row 17" in m["error"], m["error"]
    others_serve(s)
    p = subprocess.run([serving.TERN, "verify", path], capture_output=True, text=True)
    assert p.returncode == 1 and "in row 17" in p.stdout and "1 of " in p.stderr, p


def test_a_nan_in_a_large_model_is_found_after_it_was_loaded():
    folder = os.path.join(work, "large")
    subprocess.run([serving.TERN, "convert", MODEL, folder, "--type", "F32"], check=True, capture_output=True)
    with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        name, t = next((n, t) for n, t in head.items() if n.endswith("embed_tokens.weight"))
        row = t["shape"][0] - 1
        f.seek(f.tell() + t["data_offsets"][1] - 4)
        f.write(struct.pack("<f", float("nan")))
    s = serve_beside(folder)
    a = await_failure(s, "large")
    assert (a.status, a.code) == (500, "model_damaged"), (a.status, a.body)
    assert f"{name} has a NaN or an infinite number in row {row};" in await_state(s, "large", "failed")["error"]
    others_serve(s)


def test_a_nan_that_is_allowed_ends_the_requests_that_meet_it():
    g = Gguf(MODEL)
    for row in range(4096):
        g.write_at("token_embd.weight", row * 256 // 32 * 34, struct.pack("<H", 0x7e00))
    s = serve_beside(g.save(work, "allowed.gguf"), "--allow-nan", "--warm=false")
    assert model_of(s, "allowed")["state"] == "ready", model_of(s, "allowed")
    a = complete(s, model="allowed")
    assert (a.status, a.code) == (500, "model_damaged"), (a.status, a.body)
    others_serve(s)


def test_a_file_that_is_truncated_fails_its_model_only():
    path = copy_model("cut.gguf")
    s = serve_beside(path)
    assert complete(s, model="cut").status == 200
    os.truncate(path, 1 << 20)
    a = await_failure(s, "cut")
    assert (a.status, a.code) == (500, "model_damaged"), (a.status, a.body)
    assert "cut.gguf: " in await_state(s, "cut", "failed")["error"]
    assert "cut.gguf: " in s.log_tail()
    others_serve(s)


def test_a_file_that_is_written_to_fails_its_model_only():
    path = copy_model("written.gguf")
    s = serve_beside(path)
    assert complete(s, model="written").status == 200
    time.sleep(0.05)
    with open(path, "r+b") as f:
        f.seek(5 << 20)
        f.write(bytes(4096))
    a = await_failure(s, "written")
    assert (a.status, a.code) == (500, "model_damaged"), (a.status, a.body)
    assert "written.gguf: " in await_state(s, "written", "failed")["error"]
    others_serve(s)


def test_a_file_that_is_replaced_by_rename_serves_on():
    path = copy_model("renamed.gguf")
    s = serve_beside(path)
    before = complete(s, model="renamed").json["choices"][0]["text"]
    with open(path + ".new", "wb") as f:
        f.write(b"GGUF")
    os.rename(path + ".new", path)
    for _ in range(15):
        a = complete(s, model="renamed")
        assert a.status == 200 and a.json["choices"][0]["text"] == before, a.body
        time.sleep(0.1)


def refuses(argv, *words):
    p = subprocess.run([serving.TERN, *argv], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert p.returncode == 1 or p.returncode == 2, (argv, p.returncode, p.stderr)
    for w in words:
        assert w in p.stderr, (argv, w, p.stderr)


def test_pipes_and_devices_are_no_input():
    fifo = os.path.join(work, "fifo")
    os.mkfifo(fifo)
    folder = os.path.join(work, "folder")
    os.mkdir(folder)
    os.mkfifo(os.path.join(folder, "config.json"))
    os.mkfifo(os.path.join(folder, "model.safetensors"))
    refuses(["run", "-m", fifo, "-p", "x"], "fifo: is a FIFO")
    refuses(["inspect", "/dev/zero"], "is a character device")
    refuses(["inspect", folder], "is a FIFO")
    refuses(["run", "-m", MODEL, "-p", "x", "--chat-template", fifo], "is a FIFO")
    refuses(["run", "-m", MODEL, "-p", "x", "--grammar", fifo], "is a FIFO")
    refuses(["serve", "-m", MODEL, "--port", "0", "--config", fifo], "is a FIFO")
    refuses(["serve", "-m", MODEL, "--port", "0", "--api-key-file", fifo], "is a FIFO")
    refuses(["serve", "-m", MODEL, "--port", "0", "--tls-cert", fifo, "--tls-key", fifo], "is a FIFO")


def test_outputs_replace_regular_files_only():
    fifo, link, target = (os.path.join(work, n) for n in ("out.fifo", "out.link", "target"))
    os.mkfifo(fifo)
    with open(target, "w") as f:
        f.write("precious")
    os.symlink(target, link)
    golden = os.path.join(ROOT, "tests/golden/hf/qwen2")
    text = os.path.join(work, "text.txt")
    with open(text, "w") as f:
        f.write("Once upon a time there was a frog. " * 200)
    lines = os.path.join(work, "lines.jsonl")
    with open(lines, "w") as f:
        f.write(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}) + "\n")
    for out, what in ((fifo, "is a FIFO"), (link, "is a symbolic link")):
        refuses(["convert", golden, out], what)
        refuses(["quantize", MODEL, out, "--type", "Q4_0", "--requantize"], what)
        refuses(["imatrix", "-m", MODEL, "-f", text, "-o", out, "--chunks", "1"], what)
        refuses(["batch", lines, out, "-m", MODEL], what)
    refuses(["batch", lines, "/dev/full", "-m", MODEL], "is a character device")
    folder = os.path.join(work, "hf")
    os.mkdir(folder)
    os.symlink(target, os.path.join(folder, "model.safetensors"))
    refuses(["convert", MODEL, folder], "is a symbolic link")
    assert os.readlink(link) == target and open(target).read() == "precious"
    assert sorted(n for n in os.listdir(work) if ".part-" in n) == []


try:
    run(globals())
finally:
    shutil.rmtree(work, ignore_errors=True)
