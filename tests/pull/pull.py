"""tern pull, list, show and rm against tests/pull/hub.py. Prints lines "ok NAME" and "not ok NAME: why"."""
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
from hub import Hub, Repo, git_sha1

TERN, ROOT = os.environ["TERN"], os.getcwd()
TMP = tempfile.mkdtemp(dir=os.environ.get("TMP"))
MODEL = open("models/tern-tales.gguf", "rb").read()
rng = random.Random(11)
hub = Hub()
failed = 0


def env(cache, **more):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TERN_M", "TERN_C")) and "proxy" not in k}
    return {**keep, "HF_HUB_CACHE": cache, "HF_ENDPOINT": hub.url, "HOME": TMP, **more}


def start(cache, *args, **more):
    return subprocess.Popen([TERN, *args], env=env(cache, **more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def tern(cache, *args, **more):
    p = start(cache, *args, **more)
    out, err = p.communicate(timeout=300)
    return p.returncode, out.decode(), err.decode()


def pull(cache, name, *args, **more):
    return tern(cache, "pull", name, "--retry-ms", "20", *args, **more)


def names(cache):
    code, out, err = tern(cache, "list", "--json")
    assert code == 0, err
    return [m["name"] for m in json.loads(out)["models"] if m["source"] == "cache"]


def files(cache):
    found = []
    for d, _, fs in os.walk(cache):
        found += [os.path.relpath(os.path.join(d, f), cache) for f in fs]
    return sorted(f for f in found if not f.startswith(".locks"))


def test(fn):
    global failed
    name = fn.__name__.replace("_", " ")
    cache = tempfile.mkdtemp(dir=TMP)
    hub.reset()
    hub.repos.clear()
    try:
        fn(cache)
        print("ok pull:", name, flush=True)
    except Exception as e:  # any failure of the test is one
        import traceback
        failed = 1
        tail = traceback.format_exc().strip().splitlines()
        print("not ok pull: %s: %s: %s | %s" % (name, type(e).__name__, str(e)[:600].replace("\n", " / "), tail[-3:-1]), flush=True)
    shutil.rmtree(cache, ignore_errors=True)


def some_bytes(n):
    return rng.randbytes(n)


def gguf_repo():
    return Repo({"README.md": b"---\nlicense: mit\n---\n", "m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": some_bytes(5000),
                 "mmproj-f16.gguf": some_bytes(2000), "config.json": b"{}"})


@test
def of_several_files_the_Q4_K_M_one_comes_and_the_others_are_named(cache):
    hub.repos["org/m"] = gguf_repo()
    code, out, err = pull(cache, "hf:org/m")
    assert code == 0, err
    repo = cache + "/models--org--m"
    sum = hashlib.sha256(MODEL).hexdigest()
    path = repo + "/snapshots/" + "a" * 40 + "/m-Q4_K_M.gguf"
    assert out.strip() == path, out
    assert os.readlink(path) == "../../blobs/" + sum and open(path, "rb").read() == MODEL
    assert open(repo + "/refs/main").read() == "a" * 40
    assert "m-Q8_0.gguf" in err and "mmproj" not in err, err
    assert not [f for f in files(cache) if "part" in f], files(cache)
    assert names(cache) == ["hf:org/m:m-Q4_K_M.gguf"]
    n = len(hub.gets())
    code, again, err = pull(cache, "hf:org/m")
    assert code == 0 and again == out and len(hub.gets()) == n, err


@test
def a_folder_gets_weights_configuration_and_tokenizer_only(cache):
    want = {"config.json": b'{"model_type": "x"}', "generation_config.json": b"{}", "tokenizer.json": b'{"a":1}',
            "tokenizer_config.json": b"{} ", "model-00001-of-00002.safetensors": some_bytes(3000),
            "model-00002-of-00002.safetensors": some_bytes(4000), "model.safetensors.index.json": b"{}\n",
            "1_Pooling/config.json": b"{}  "}
    other = {"README.md": b"#", "pytorch_model.bin": some_bytes(3000), "onnx/model.onnx": some_bytes(2000), "a.pt": b"1",
             "image.png": b"2", "original/consolidated.safetensors": b"3", "consolidated.safetensors": b"4", ".gitattributes": b"5"}
    hub.repos["org/f"] = Repo({**other, **want})
    for blobs in (True, False):             # with sizes and checksums in the list, and by HEAD
        hub.blobs = blobs
        shutil.rmtree(cache)
        code, out, err = pull(cache, "hf:org/f", "--range", "4096")
        assert code == 0, err
        dir = out.strip()
        got = sorted(os.path.relpath(os.path.join(d, f), dir) for d, _, fs in os.walk(dir) for f in fs)
        assert [f for f in got if "SHA256SUMS" not in f] == sorted(want), got
        for f in want:
            assert open(dir + "/" + f, "rb").read() == want[f], f
    assert any(x[1] == "HEAD" for x in hub.log)
    assert names(cache) == ["hf:org/f"]


@test
def a_choice_is_asked_for_with_a_list(cache):
    hub.repos["org/m"] = Repo({"a.gguf": some_bytes(2000), "b.gguf": some_bytes(3000)})
    code, out, err = pull(cache, "hf:org/m")
    assert code == 2 and "a.gguf" in err and "b.gguf" in err and files(cache) == [], err
    code, out, err = pull(cache, "hf:org/m:c.gguf")
    assert code == 1 and "c.gguf" in err and "a.gguf" in err, err
    hub.repos["org/n"] = Repo({"pytorch_model.bin": some_bytes(2000)})
    code, out, err = pull(cache, "hf:org/n")
    assert code == 1 and "safetensors" in err, err


@test
def a_file_is_chosen_by_its_path_or_a_word_with_all_its_parts(cache):
    parts = {"Q8_0/x-Q8_0-0000%d-of-00003.gguf" % i: some_bytes(5000 + i) for i in (1, 2, 3)}
    hub.repos["org/m"] = Repo({"x-Q4_K_M.gguf": some_bytes(3000), "x-Q4_K_S.gguf": some_bytes(3000), **parts})
    code, out, err = pull(cache, "hf:org/m@v1:q8_0")
    assert code == 0 and out.strip().endswith("/Q8_0/x-Q8_0-00001-of-00003.gguf"), err
    for f in parts:
        assert open(os.path.dirname(os.path.dirname(out.strip())) + "/" + f, "rb").read() == parts[f]
    assert os.path.exists(cache + "/models--org--m/refs/v1")
    code, out, err = pull(cache, "hf:org/m:x-Q4_K_S.gguf")
    assert code == 0 and out.strip().endswith("/x-Q4_K_S.gguf"), err
    assert names(cache) == ["hf:org/m:Q8_0/x-Q8_0-00001-of-00003.gguf", "hf:org/m:x-Q4_K_S.gguf"], names(cache)


@test
def interrupted_at_20_random_points_it_goes_on_and_ends_with_the_right_bytes(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    hub.pause = 0.004
    record = cache + "/models--org--m/blobs/" + hashlib.sha256(MODEL).hexdigest() + ".tern-part.ranges"

    def have():
        data = open(record, "rb").read() if os.path.exists(record) else b""
        return sum(int.from_bytes(data[i:i + 8], "little") for i in range(32, len(data), 8))

    last = 0
    for i in range(20):
        stop = hub.served + rng.randrange(len(MODEL) // 25)
        p = start(cache, "pull", "hf:org/m", "--range", "512K", "--connections", "4", "-q")
        while p.poll() is None and hub.served < stop:
            time.sleep(0.002)
        assert p.poll() is None, "it ended before it was interrupted: %s" % p.stderr.read()
        p.send_signal((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[i % 3])
        p.communicate(timeout=60)
        assert have() >= last, "bytes were lost: %d after %d" % (have(), last)
        last = have()
        assert names(cache) == []
        assert not os.path.exists(cache + "/models--org--m/refs/main")
    assert 0 < last < len(MODEL), last
    hub.pause = 0
    code, out, err = pull(cache, "hf:org/m", "--json")
    assert code == 0, err
    done = json.loads(out.strip().splitlines()[-1])
    assert done["downloaded"] == len(MODEL) - last, (done, last)
    assert open(done["path"], "rb").read() == MODEL
    assert not [f for f in files(cache) if "part" in f]


@test
def cut_connections_are_made_again(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    hub.cut = 25
    code, out, err = pull(cache, "hf:org/m", "--range", "1M")
    assert code == 0 and hub.cut == 0, err
    assert open(out.strip(), "rb").read() == MODEL and "trying again" in err


@test
def wrong_bytes_are_refused_and_removed(cache):
    for name, data in (("m.gguf", MODEL), ("config.json", b"{}")):
        hub.repos["org/m"] = Repo({name: data, "model.safetensors": some_bytes(2000), "config.json": b"{}"} if name != "m.gguf" else {name: data})
        hub.wrong = {name}
        code, out, err = pull(cache, "hf:org/m")
        assert code == 1 and name in err and ("SHA-256" if name == "m.gguf" else "SHA-1") in err, err
        sum = hub.repos["org/m"].sum(name)
        assert not [f for f in files(cache) if "snapshots" in f or "refs" in f or sum in f], files(cache)
        assert names(cache) == []
    hub.wrong = set()
    assert pull(cache, "hf:org/m")[0] == 0


@test
def a_damaged_part_of_an_earlier_download_is_downloaded_anew(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    hub.pause = 0.01
    p = start(cache, "pull", "hf:org/m", "--range", "512K")
    while hub.served < len(MODEL) // 3:
        time.sleep(0.002)
    p.kill()
    p.communicate()
    hub.pause = 0
    part = cache + "/models--org--m/blobs/" + hashlib.sha256(MODEL).hexdigest() + ".tern-part"
    with open(part, "r+b") as f:
        f.write(b"damage")
    code, out, err = pull(cache, "hf:org/m")
    assert code == 0 and "anew" in err and open(out.strip(), "rb").read() == MODEL, err


@test
def a_damaged_record_is_not_believed(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    blobs = cache + "/models--org--m/blobs/"
    for record in (b"", b"x" * 50, b"tern-ranges 1\n\0\0" + b"\xff" * 400):
        os.makedirs(blobs, exist_ok=True)
        part = blobs + hashlib.sha256(MODEL).hexdigest() + ".tern-part"
        open(part, "wb").write(b"0" * len(MODEL))
        open(part + ".ranges", "wb").write(record)
        code, out, err = pull(cache, "hf:org/m")
        assert code == 0 and open(out.strip(), "rb").read() == MODEL, err
        shutil.rmtree(cache + "/models--org--m")


@test
def two_pulls_at_once_do_not_disturb_each_other(cache):
    hub.repos["org/m"] = Repo({"a-Q4_K_M.gguf": MODEL, "config.json": b"{}"})
    hub.pause = 0.002
    both = [start(cache, "pull", "hf:org/m", "--json", "--range", "512K") for _ in range(2)]
    ends = [p.communicate(timeout=300) for p in both]
    assert [p.returncode for p in both] == [0, 0], ends
    done = [json.loads(out.decode().strip().splitlines()[-1]) for out, err in ends]
    assert sum(d["downloaded"] for d in done) == len(MODEL), done
    assert open(done[0]["path"], "rb").read() == MODEL
    assert not [f for f in files(cache) if "part" in f]


@test
def one_that_is_killed_leaves_its_part_to_the_other_that_waits(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    hub.pause = 0.01
    first = start(cache, "pull", "hf:org/m", "--range", "512K", "--connections", "2")
    while hub.served < len(MODEL) // 8:
        time.sleep(0.002)
    second = start(cache, "pull", "hf:org/m", "--json")
    for line in second.stdout:
        if b"another program" in line:
            break
    hub.pause = 0
    first.kill()
    first.communicate()
    out, err = second.communicate(timeout=300)
    done = json.loads(out.decode().strip().splitlines()[-1])
    assert second.returncode == 0 and 0 < done["downloaded"] < len(MODEL), (done, err)
    assert open(done["path"], "rb").read() == MODEL


@test
def nothing_half_written_is_ever_listed(cache):
    parts = {"x-0000%d-of-00004.gguf" % i: some_bytes(400000) for i in (1, 2, 3, 4)}
    hub.repos["org/m"] = Repo(parts)
    hub.repos["org/f"] = Repo({"config.json": b"{}", "tokenizer.json": b"{}", "model-00001-of-00002.safetensors": some_bytes(300000),
                               "model-00002-of-00002.safetensors": some_bytes(300000)})
    hub.pause = 0.02
    pulls = [start(cache, "pull", name, "--connections", "1", "--range", "64K") for name in ("hf:org/m", "hf:org/f")]
    looks = 0
    while any(p.poll() is None for p in pulls):
        for d in [cache + "/models--org--" + x + "/snapshots" for x in "mf"]:
            for s in os.listdir(d) if os.path.exists(d) else []:
                if not s.startswith("."):
                    links = [os.path.join(a, f) for a, _, fs in os.walk(d + "/" + s) for f in fs]
                    assert all(os.path.exists(x) for x in links) and len(links) >= 4, links
        code, out, err = tern(cache, "list", "--json")
        for m in json.loads(out)["models"]:
            if m["source"] == "cache":
                assert m["bytes"] >= 600000, m
        looks += 1
    for p in pulls:
        assert p.wait() == 0, p.stderr.read()
    assert looks > 1 and names(cache) == ["hf:org/f", "hf:org/m:x-00001-of-00004.gguf"], (looks, names(cache))
    # what other programs leave is judged in the same way
    os.unlink(cache + "/models--org--m/snapshots/" + "a" * 40 + "/x-00003-of-00004.gguf")
    blob = os.path.realpath(cache + "/models--org--f/snapshots/" + "a" * 40 + "/model-00002-of-00002.safetensors")
    os.unlink(blob)
    assert names(cache) == []


@test
def the_token_goes_to_the_hub_and_to_nobody_else(cache):
    hub.repos["org/m"] = Repo({"m.gguf": some_bytes(50000)})
    hub.token = "hf_secret"
    code, out, err = pull(cache, "hf:org/m")
    assert code == 1 and "401" in err and "HF_TOKEN" in err and files(cache) == [], err
    code, out, err = pull(cache, "hf:org/m", HF_TOKEN="hf_wrong")
    assert code == 1 and "401" in err and "hf_wrong" not in err, err
    hub.log.clear()
    hub.expire = 1                          # a signed address that has expired is asked for again
    code, out, err = pull(cache, "hf:org/m", HF_TOKEN="hf_secret")
    assert code == 0, err
    assert all(x[4] == "Bearer hf_secret" for x in hub.log if x[0] == "hub")
    assert hub.gets("cdn") and all(x[4] is None for x in hub.log if x[0] == "cdn"), hub.log
    shutil.rmtree(cache)
    os.makedirs(TMP + "/.cache/huggingface")
    open(TMP + "/.cache/huggingface/token", "w").write("hf_secret\n")
    assert pull(cache, "hf:org/m")[0] == 0  # the file that Hugging Face's login writes
    code, out, err = pull(cache, "hf:org/m", HF_TOKEN="a\r\nHost: b")
    assert code == 2 and "HF_TOKEN" in err, err
    shutil.rmtree(TMP + "/.cache/huggingface")


@test
def a_busy_hub_is_asked_again_after_the_time_that_it_names(cache):
    hub.repos["org/m"] = Repo({"m.gguf": some_bytes(50000)})
    hub.busy = [(429, "1"), (503, None), (500, None)]
    begin = time.monotonic()
    code, out, err = pull(cache, "hf:org/m")
    assert code == 0 and hub.busy == [] and time.monotonic() - begin >= 1, err
    shutil.rmtree(cache)
    hub.busy = [(503, None)] * 20
    code, out, err = pull(cache, "hf:org/m", "--retries", "2")
    assert code == 1 and "503" in err and len(hub.busy) == 17, (err, hub.busy)


@test
def a_server_without_ranges_is_enough(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    hub.ranges = False
    hub.cut = 2
    code, out, err = pull(cache, "hf:org/m", "--range", "1M")
    assert code == 0 and open(out.strip(), "rb").read() == MODEL, err


@test
def a_full_disk_is_noticed_before_the_first_byte(cache):
    hub.repos["org/m"] = Repo({"m.gguf": some_bytes(50000)})
    hub.claim["m.gguf"] = 10 ** 15
    for blobs in (True, False):
        hub.blobs = blobs
        code, out, err = pull(cache, "hf:org/m")
        assert code == 1 and "GB free" in err and hub.gets() == [] and files(cache) == [], err
    hub.claim["m.gguf"] = 40000             # and a size that is not true is refused
    code, out, err = pull(cache, "hf:org/m")
    assert code == 1 and names(cache) == [] and "m.gguf" in err, err


@test
def names_that_would_leave_the_cache_are_not_written(cache):
    repo = Repo({"m.gguf": some_bytes(2000)})
    repo.more = [{"rfilename": x, "size": 1, "blobId": "b" * 40} for x in ("../../../evil.gguf", "/etc/evil", "a/../../b", "x\0y", "")]
    repo.more += [{"rfilename": 7}, 5, None, {}]
    hub.repos["org/m"] = repo
    assert pull(cache, "hf:org/m")[0] == 0
    assert not [f for f in files(TMP) if "evil" in f]
    for commit in ("../../..", "A" * 39, "", "z" * 40):
        repo.commit = commit
        code, out, err = pull(cache, "hf:org/m")
        assert code == 1 and "sha" in err, err
    for bad in ("hf:../x", "hf:org/..", "hf:org/m@../../x", "hf:org/m:../x", "hf:org/m:/etc/passwd", "hf:", "hf:a/b/c", "hf:org/m:", "hf:" + "a" * 2000):
        assert pull(cache, bad)[0] == 2, bad


@test
def exit_codes_and_messages(cache):
    hub.repos["org/m"] = Repo({"m.gguf": some_bytes(2000)})
    code, out, err = pull(cache, "hf:org/none")
    assert code == 1 and "org/none" in err, err
    code, out, err = pull(cache, "hf:org/m@nope")
    assert code == 1, err
    code, out, err = tern(cache, "pull")
    assert code == 2, err
    code, out, err = tern(cache, "pull", "hf:org/m", HF_ENDPOINT="ftp://x")
    assert code == 2 and "HF_ENDPOINT" in err, err
    code, out, err = pull(cache, "hf:org/m", HF_ENDPOINT="http://127.0.0.1:1")
    assert code == 3 and "onnect" in err, err
    code, out, err = tern(cache, "pull", "hf:org/m", TERN_PULL_LIB=TMP + "/none.so")
    assert code == 1 and "libcurl4-openssl-dev" in err, err
    assert files(cache) == []


@test
def events_are_lines_of_JSON(cache):
    hub.repos["org/m"] = gguf_repo()
    code, out, err = pull(cache, "hf:org/m", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [e["event"] for e in events if e["event"] in ("plan", "file", "done")] == ["plan", "file", "done"], out
    assert events[-1]["bytes"] == len(MODEL) and os.path.exists(events[-1]["path"])
    code, out, err = pull(cache, "hf:org/none", "--json")
    assert code == 1 and json.loads(out.splitlines()[-1])["event"] == "error", out


@test
def rm_removes_a_model_and_keeps_what_others_use(cache):
    shared = some_bytes(4000)
    hub.repos["org/m"] = Repo({"a.gguf": shared, "b.gguf": some_bytes(5000)}, commit="a" * 40)
    assert pull(cache, "hf:org/m@v1:a.gguf")[0] == 0 and pull(cache, "hf:org/m@v1:b.gguf")[0] == 0
    hub.repos["org/m"] = Repo({"a.gguf": shared}, commit="c" * 40)
    assert pull(cache, "hf:org/m")[0] == 0
    repo = cache + "/models--org--m/"
    assert names(cache) == ["hf:org/m:a.gguf", "hf:org/m@v1:a.gguf", "hf:org/m@v1:b.gguf"], names(cache)
    assert len(os.listdir(repo + "blobs")) == 2
    code, out, err = tern(cache, "rm", "hf:org/m@v1:b.gguf")
    assert code == 0 and len(os.listdir(repo + "blobs")) == 1, err
    code, out, err = tern(cache, "rm", "hf:org/m@v1")
    assert code == 0 and names(cache) == ["hf:org/m:a.gguf"] and os.listdir(repo + "blobs"), err
    assert os.listdir(repo + "refs") == ["main"] and os.listdir(repo + "snapshots") == ["c" * 40]
    code, out, err = tern(cache, "rm", "org/m", "--yes")
    assert code == 0 and not os.path.exists(repo) and names(cache) == [], err
    assert tern(cache, "rm", "hf:org/m")[0] == 1
    assert tern(cache, "rm", "hf:../x")[0] == 2 and tern(cache, "rm", ROOT)[0] == 2 and tern(cache, "rm")[0] == 2


@test
def a_pull_writes_a_manifest_that_verify_checks(cache):
    data = {f: open("tests/golden/hf/qwen2/" + f, "rb").read() for f in os.listdir("tests/golden/hf/qwen2")}
    hub.repos["org/m"] = Repo({"Q8/m-Q8_0.gguf": MODEL, "m-Q4_0.gguf": MODEL + b"x"})
    code, out, err = pull(cache, "hf:org/m:Q8_0")
    assert code == 0, err
    lines = open(out.strip() + ".sha256").read().splitlines()
    assert hashlib.sha256(MODEL).hexdigest() + "  m-Q8_0.gguf" in lines, lines
    assert tern(cache, "verify", "hf:org/m:Q8_0", "--verify-manifest", "require")[0] == 0
    hub.repos["org/f"] = Repo(data)
    code, out, err = pull(cache, "hf:org/f")
    assert code == 0, err
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out.strip()).returncode == 0
    assert tern(cache, "verify", "hf:org/f", "--verify-manifest", "require")[0] == 0
    blob = os.path.realpath(out.strip() + "/model.safetensors")
    with open(blob, "r+b") as f:
        f.seek(os.path.getsize(blob) - 1)
        f.write(b"\x7f")
    code, out, err = tern(cache, "verify", "hf:org/f")
    assert code == 1 and "model.safetensors" in out + err, (out, err)
    assert names(cache) == ["hf:org/f", "hf:org/m:Q8/m-Q8_0.gguf"]
    assert tern(cache, "rm", "hf:org/m", "-y")[0] == 0 and tern(cache, "rm", "hf:org/f", "-y")[0] == 0
    assert files(cache) == [], files(cache)


@test
def rm_does_not_disturb_a_download(cache):
    hub.repos["org/m"] = Repo({"m.gguf": MODEL})
    hub.pause = 0.01
    p = start(cache, "pull", "hf:org/m", "--connections", "2")
    while hub.served == 0:
        time.sleep(0.002)
    code, out, err = tern(cache, "rm", "hf:org/m", "-y")
    assert code == 1 and "download" in err, err
    hub.pause = 0
    assert p.wait(timeout=300) == 0


@test
def a_model_that_was_pulled_runs_by_its_name(cache):
    hub.repos["Org/Tales"] = Repo({"tales-Q8_0.gguf": MODEL})
    hub.repos["Other/Tales"] = Repo({"tales-Q8_0.gguf": MODEL})
    assert pull(cache, "hf:Org/Tales")[0] == 0
    want = tern(cache, "run", ROOT + "/models/tern-tales.gguf", "Tell me a story.", "-n", "8", "--temp", "0", "-q")
    assert want[0] == 0 and want[1], want
    for name in ("hf:Org/Tales", "hf:Org/Tales@main", "hf:Org/Tales@aaaaaaa", "hf:Org/Tales:Q8_0", "hf:Org/Tales:tales-Q8_0.gguf",
                 "Org/Tales", "Tales", "tales", "tern-tales"):
        got = tern(cache, "run", name, "Tell me a story.", "-n", "8", "--temp", "0", "-q")
        assert got[:2] == want[:2], (name, got)
    code, out, err = tern(cache, "show", "Tales")
    assert code == 0 and "llama" in out and "Q8_0" in out and "context" in out, (out, err)
    assert tern(cache, "rm", "Tales", "-y")[0] == 0 and names(cache) == []
    assert pull(cache, "hf:Org/Tales")[0] == 0 and pull(cache, "hf:Other/Tales")[0] == 0
    code, out, err = tern(cache, "run", "Tales", "hi")
    assert code == 2 and "several" in err, err


shutil.rmtree(TMP, ignore_errors=True)
sys.exit(failed)
