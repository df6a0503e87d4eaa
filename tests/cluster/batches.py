"""Files and batches between gateways: kept by JetStream, run by one gateway at a time, each line answered exactly once after kill -9 of the
gateway that runs the batch, a worker or the NATS server. usage: batches.py FOLDER [test_name ...]"""
import http.client
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import broker
import fleet
from broker import Client, Nats, tenant_token
from fakes import Fake, error
from fleet import Gateway, Worker, check, completion, metric, wait_for

folder = sys.argv[1]
started = []
DEFAULT = tenant_token("default")


def echo(body):
    """What a worker of these tests answers: the prompt again, or an error."""
    if body["prompt"] == "bad":
        return error(400, "invalid_request")
    return 200, json.dumps({"object": "text_completion", "choices": [{"text": body["prompt"]}]}).encode()


def line(i, prompt=None, **more):
    return {"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": completion(prompt or f"p{i}", 4, **more)}


def jsonl(lines):
    return "".join(json.dumps(x) + "\n" for x in lines).encode()


def upload(g, data, purpose="batch", name="in.jsonl", headers=None, more=()):
    boundary = "----x7"
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in ([("purpose", purpose)] if purpose else []) + list(more)]
    parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + data + b"\r\n" + f"--{boundary}--\r\n".encode())
    return g.ask("POST", "/v1/files", b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={boundary}", **(headers or {})})


def file_id(g, data, **kw):
    status, text, _ = upload(g, data, **kw)
    assert status == 200, (status, text)
    return json.loads(text)["id"]


def post(g, file, window="24h", endpoint="/v1/completions", headers=None, **more):
    return g.ask("POST", "/v1/batches", {"input_file_id": file, "endpoint": endpoint, "completion_window": window, **more}, headers)


def begin(g, lines, **kw):
    status, text, _ = post(g, file_id(g, jsonl(lines)), **kw)
    assert status == 200, (status, text)
    return json.loads(text)["id"]


def batch(g, id):
    return json.loads(g.get(f"/v1/batches/{id}")[1])


def wait_batch(g, id, seconds=120, of=("completed", "failed", "expired", "cancelled")):
    wait_for(lambda: batch(g, id)["status"] in of, seconds)
    return batch(g, id)


def content(g, id):
    """The raw bytes."""
    c = g.connect()
    c.request("GET", f"/v1/files/{id}/content")
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def rows(g, id):
    return [json.loads(x) for x in content(g, id)[1].splitlines()] if id else []


def code(reply):
    try:
        return reply[0], json.loads(reply[1])["error"]["code"]
    except (ValueError, KeyError):
        return reply


def refused(reply):
    """Is it the typed error of a store that is away?"""
    return code(reply) == (503, "store_unavailable") and int(reply[2].get("retry-after", 0)) >= 1


class Cluster:
    """Two gateways before workers of this process, over one NATS server."""

    def __init__(self, name, *more, answer=echo, workers=1, key=None):
        self.nats = Nats(folder, f"{name}-nats").start().wait_ready()
        self.workers = [Fake(answer) for _ in range(workers)]
        self.gateways = [Gateway(folder, f"{name}-gateway{i}", "--nats", self.nats.url, "--peers", ",".join(w.url for w in self.workers), *more).start() for i in range(2)]
        started.extend([self.nats, *self.workers, *self.gateways])
        for g in self.gateways:
            if key:
                g.status = lambda g=g: json.loads(g.get("/status", key)[1])
            g.wait_workers(workers)
            assert wait_for(lambda: g.status()["store"]["connected"], 60), "no JetStream"

    def stop(self):
        for p in self.gateways + self.workers:
            p.stop(5)
        self.nats.stop()



def check_rest(nats, what):
    """No answers of lines, and no pieces of files without a record are left."""
    c = Client(nats)
    try:
        check(f"{what}: answers of lines are removed", wait_for(lambda: c.n_messages("tern-lines") == 0, 30), c.subjects("tern-lines"))
        records = {s.split(".")[4] for s in c.subjects("tern-records")}
        pieces = {s.split(".")[2] for s in c.subjects("tern-files")}
        check(f"{what}: every piece is of a file", pieces <= records, pieces - records)
    finally:
        c.close()


def check_answers(g, what, done, n, text=lambda i: f"p{i}"):
    out = rows(g, done["output_file_id"])
    check(f"{what}: every line has one answer, in the order of the input", [r["custom_id"] for r in out] == [f"c{i}" for i in range(n)]
          and done["request_counts"] == {"total": n, "completed": n, "failed": 0} and done["error_file_id"] is None, (done, [r["custom_id"] for r in out][:5], len(out)))
    if text:
        check(f"{what}: each its own", all(r["response"]["body"]["choices"][0]["text"] == text(i) and r["response"]["status_code"] == 200 and r["error"] is None for i, r in enumerate(out)), out[:2])
    check(f"{what}: ids of results are different", len({r["id"] for r in out}) == n)


def test_files():
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as f:
        f.write("sk-a name=alice\nsk-b name=bob\n")
    alice, bob = {"Authorization": "Bearer sk-a"}, {"Authorization": "Bearer sk-b"}
    c = Cluster("files", "--api-key-file", keys, "--max-file", "4M", "--tenant-files", "5M", "--cluster-key", "k", key=alice)
    a, b = c.gateways
    get = lambda g, path, who=alice: g.get(path, who)
    small = json.loads(upload(a, b"hello\n", headers=alice, name="../x/a.jsonl", more=[("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600")])[1])
    check("an upload has the fields of the server's own", small["object"] == "file" and small["bytes"] == 6 and small["filename"] == "a.jsonl" and small["purpose"] == "batch"
          and small["expires_at"] == small["created_at"] + 3600 and small["status"] == "processed", small)
    check("the other gateway has it", json.loads(get(b, f"/v1/files/{small['id']}")[1]) == small)
    data = os.urandom(100000) * 13
    big = json.loads(upload(b, data, headers=alice)[1])
    conn = a.connect()
    conn.request("GET", f"/v1/files/{big['id']}/content", headers=alice)
    got = conn.getresponse().read()
    check("a content of several pieces is the bytes of the upload", got == data, len(got))
    conn.close()
    conn = a.connect()
    conn.request("GET", f"/v1/files/{big['id']}/content", headers=alice)
    conn.getresponse().read(10)
    conn.close()
    check("a client that leaves a download ends it", wait_for(lambda: a.get("/health")[0] == 200))
    check("files belong to their tenant", code(get(a, f"/v1/files/{small['id']}", bob)) == (404, "not_found") and json.loads(get(a, "/v1/files", bob)[1])["data"] == [])
    check("without a key", code(upload(a, b"x"))[0] == 401)
    listed = json.loads(get(b, "/v1/files")[1])
    check("a list has the latest first", [f["id"] for f in listed["data"]] == [big["id"], small["id"]] and listed["first_id"] == big["id"] and not listed["has_more"], listed)
    page = json.loads(get(a, "/v1/files?limit=1&order=asc")[1])
    rest = json.loads(get(a, f"/v1/files?order=asc&after={small['id']}")[1])
    check("and pages in both directions", page["has_more"] and [f["id"] for f in page["data"] + rest["data"]] == [small["id"], big["id"]], (page, rest))
    check("of a purpose", json.loads(get(a, "/v1/files?purpose=batch_output")[1])["data"] == [])
    for what, reply, want in (
            ("a wrong limit", get(a, "/v1/files?limit=0"), 400), ("an id that is none", get(a, "/v1/files?after=x"), 400), ("no such file", get(a, "/v1/files/file-000000000000000000000000"), 404),
            ("a path out of the store", get(a, "/v1/files/..%2f"), 404), ("a subject", get(a, "/v1/files/file-*"), 404), ("content of no file", get(a, "/v1/files/x/content"), 404),
            ("no purpose", upload(a, b"x", purpose=None, headers=alice), 400), ("another purpose", upload(a, b"x", purpose="assistants", headers=alice), 400),
            ("no form", a.ask("POST", "/v1/files", b"x", {**alice, "Content-Type": "text/plain"}), 400), ("a form that is cut", a.ask("POST", "/v1/files", b"------x7\r\n", {**alice, "Content-Type": "multipart/form-data; boundary=----x7"}), 400),
            ("a file above max-file", upload(a, b"x" * (5 << 20), headers=alice), 413), ("more than tenant-files", upload(a, b"x" * (4 << 20), headers=alice), 429),
            ("another method", a.ask("PUT", f"/v1/files/{big['id']}", b"x", alice), 405)):
        check(f"{what}: {want}", reply[0] == want and json.loads(reply[1])["error"]["message"], reply)
    gone = a.ask("DELETE", f"/v1/files/{big['id']}", headers=alice)
    check("a file is removed everywhere", gone[0] == 200 and json.loads(gone[1]) == {"id": big["id"], "object": "file", "deleted": True} and get(b, f"/v1/files/{big['id']}")[0] == 404
          and get(b, f"/v1/files/{big['id']}/content")[0] == 404 and a.ask("DELETE", f"/v1/files/{big['id']}", headers=alice)[0] == 404, gone)
    check_rest(c.nats, "files")
    nc = Client(c.nats)
    token = tenant_token("alice")
    for i, bad in enumerate((b"nonsense", b'{"v":2}', b'{"v":1,"kind":"file"}', json.dumps({"v": 1, "kind": "file", "id": "file-" + "0" * 24}).encode())):
        nc.request(f"tern.records.file.{token}.file-{i:024d}", bad)
        check(f"a foreign record {i} is an error, and lists go on", get(a, f"/v1/files/file-{i:024d}")[0] == 500 and get(a, "/v1/files")[0] == 200, get(a, f"/v1/files/file-{i:024d}"))
    nc.request(f"tern.files.{small['id']}.0", b"hell")
    check("a piece that is cut is an error", get(a, f"/v1/files/{small['id']}/content")[0] == 500, get(a, f"/v1/files/{small['id']}/content"))
    nc.close()
    c.nats.stop()
    check("without NATS uploads are refused", wait_for(lambda: refused(upload(a, b"x", headers=alice))), upload(a, b"x", headers=alice))
    check("and questions", refused(get(a, "/v1/files")) and refused(get(b, "/v1/batches")) and refused(a.ask("DELETE", f"/v1/files/{small['id']}", headers=alice)), get(a, "/v1/files"))
    check("other requests go on", a.ask("POST", "/v1/completions", completion("x", 4), alice)[0] == 200)
    c.nats.start().wait_ready()
    check("NATS is back", wait_for(lambda: get(a, f"/v1/files/{small['id']}")[0] == 200))
    c.stop()


def test_batches():
    gate = threading.Event()
    gate.set()

    def answer(body):
        gate.wait(60)
        return echo(body)
    c = Cluster("batches", "--max-batch-lines", "40", "--tenant-batches", "3", answer=answer)
    a, b = c.gateways
    lines = [line(i) for i in range(30)]
    status, text, _ = post(a, file_id(b, jsonl(lines)), metadata={"for": "tests"})
    made = json.loads(text)
    check("a batch has the fields of the server's own", status == 200 and made["object"] == "batch" and made["status"] == "validating" and made["endpoint"] == "/v1/completions"
          and made["expires_at"] == made["created_at"] + 86400 and made["metadata"] == {"for": "tests"} and made["request_counts"]["total"] == 0 and made["errors"] is None, made)
    done = wait_batch(b, made["id"])
    check("the other gateway sees its end", done["status"] == "completed" and done["in_progress_at"] and done["finalizing_at"] and done["completed_at"], done)
    check_answers(b, "a batch", done, 30)
    check("each line was run once", sorted(x["prompt"] for x in c.workers[0].seen) == sorted(f"p{i}" for i in range(30)), len(c.workers[0].seen))
    out = json.loads(b.get(f"/v1/files/{done['output_file_id']}")[1])
    check("its output is a file", out["purpose"] == "batch_output" and out["filename"] == f"{made['id']}_output.jsonl" and out["bytes"] > 0, out)

    mixed = begin(a, [line(0), line(1, "bad"), line(2)])
    done = wait_batch(a, mixed)
    good, bad = rows(a, done["output_file_id"]), rows(a, done["error_file_id"])
    check("answers that are no 200 are in the error file", [r["custom_id"] for r in good] == ["c0", "c2"] and [r["custom_id"] for r in bad] == ["c1"] and bad[0]["response"]["status_code"] == 400
          and done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}, (done, bad))

    for what, data, want in (("no JSON", b"{\n" + jsonl([line(1)]), ("invalid_json_line", 1)), ("a double custom_id", jsonl([line(1), line(1)]), ("duplicate_custom_id", 2)),
                             ("another url", jsonl([{**line(1), "url": "/v1/embeddings"}]), ("invalid_url", 1)), ("a stream", jsonl([line(1, stream=True)]), ("invalid_request", 1)),
                             ("nothing", b"\n\n", ("empty_file", None)), ("too many lines", jsonl([line(i) for i in range(41)]), ("too_many_lines", 41))):
        done = wait_batch(b, json.loads(post(a, file_id(a, data))[1])["id"])
        first = done["errors"]["data"][0] if done["errors"] else {}
        check(f"a file with {what} fails with its line", done["status"] == "failed" and done["failed_at"] and (first.get("code"), first.get("line")) == want and first["message"], done)
    many = wait_batch(a, json.loads(post(a, file_id(a, b"x\n" * 300))[1])["id"])
    check("100 errors are kept", len(many["errors"]["data"]) == 100, len(many["errors"]["data"]))
    some = file_id(a, jsonl([line(0)]))
    for what, reply, want in (("no such file", post(a, "file-000000000000000000000000"), 404), ("an endpoint that is none", post(a, some, endpoint="/v1/x"), 400), ("a wrong window", post(a, some, "24"), 400),
                              ("the results of a batch", post(a, out["id"]), 400), ("no JSON", a.ask("POST", "/v1/batches", "{"), 400), ("no such batch", a.get("/v1/batches/batch_000000000000000000000000"), 404),
                              ("cancel of no batch", a.ask("POST", "/v1/batches/x/cancel", {}), 404), ("cancel of one that has ended", a.ask("POST", f"/v1/batches/{mixed}/cancel", {}), 409)):
        check(f"{what}: {want}", reply[0] == want and json.loads(reply[1])["error"]["message"], reply)

    gate.clear()
    held = [begin(a, [line(i) for i in range(20)]) for _ in range(3)]
    file = batch(a, held[0])["input_file_id"]
    check("batches run", wait_for(lambda: all(batch(b, i)["status"] == "in_progress" for i in held)))
    check("a fourth one is above the tenant's limit, 429", code(post(b, some))[0] == 429, post(b, some))
    check("the input of a batch that runs is not removed, 409", code(b.ask("DELETE", f"/v1/files/{file}"))[0] == 409)
    status, text, _ = b.ask("POST", f"/v1/batches/{held[0]}/cancel", {})
    check("a batch is cancelled at the other gateway", status == 200 and json.loads(text)["status"] == "cancelling" and json.loads(text)["cancelling_at"], (status, text))
    done = wait_batch(b, held[0])
    bad = rows(b, done["error_file_id"])
    check("lines without an answer are in the error file", done["status"] == "cancelled" and done["cancelled_at"] and [r["custom_id"] for r in bad] == [f"c{i}" for i in range(20)]
          and {r["error"]["code"] for r in bad} == {"batch_cancelled"}, (done, bad[:2]))
    check("its input can be removed then", b.ask("DELETE", f"/v1/files/{file}")[0] == 200)
    gate.set()
    check("the others go on", all(wait_batch(b, i)["status"] == "completed" for i in held[1:]))

    gate.clear()
    late = begin(a, [line(i) for i in range(5)], window="3s")
    done = wait_batch(b, late)
    check("a batch that reaches the end of its window is expired", done["status"] == "expired" and done["expired_at"] and {r["error"]["code"] for r in rows(b, done["error_file_id"])} == {"batch_expired"}, done)
    n = len(c.workers[0].seen) + 8
    whole = begin(a, [line(i) for i in range(40)])
    check("lines run beside each other, the first ones first", wait_for(lambda: len(c.workers[0].seen) == n) and a.status()["store"]["running"] == 8
          and sorted(x["prompt"] for x in c.workers[0].seen[-8:]) == [f"p{i}" for i in range(8)], (a.status()["store"], c.workers[0].seen[-8:]))
    b.ask("POST", f"/v1/batches/{whole}/cancel", {})
    check("a cancel stops lines that run, and no other begins", wait_batch(b, whole)["status"] == "cancelled" and wait_for(lambda: a.status()["store"]["running"] == 0) and len(c.workers[0].seen) == n,
          (a.status()["store"], n, len(c.workers[0].seen)))
    gate.set()
    listed = json.loads(a.get("/v1/batches?limit=2")[1])
    rest = json.loads(b.get(f"/v1/batches?limit=100&after={listed['last_id']}")[1])
    ids = [x["id"] for x in listed["data"] + rest["data"]]
    check("a list has all of them, the latest first", listed["has_more"] and len(listed["data"]) == 2 and ids[:2] == [whole, late] and ids == sorted(ids, reverse=True) and {made["id"], mixed, *held} <= set(ids), ids)
    check_rest(c.nats, "batches")

    gate.clear()
    moved = begin(a, [line(i) for i in range(12)])
    check("one gateway runs it", wait_for(lambda: a.status()["store"]["running"] > 0))
    a.stop(30)
    check("a gateway that ends gives its batch away", wait_for(lambda: b.status()["store"]["batches"] == 1) and b.status()["store"]["batches_taken_over"] == 1, b.status()["store"])
    gate.set()
    check_answers(b, "a batch that moved", wait_batch(b, moved), 12)
    m = b.get("/metrics")[1]
    check("/metrics count lines", metric(m, "tern_gateway_lines_total") >= 12 and metric(m, "tern_gateway_batches_total") >= 1, b.status()["store"])
    check("other requests while lines run: the gateway lives", b.get("/health")[0] == 200)
    c.stop()


def test_kills():
    """kill -9 of the gateway that runs the batch, of a worker, and of the NATS server."""
    nats = Nats(folder, "kills-nats").start().wait_ready()
    started.append(nats)
    workers = [Worker(folder, f"kills-worker{i}", "--nats", nats.url).start() for i in range(2)]
    gateways = [Gateway(folder, f"kills-gateway{i}", "--nats", nats.url).start() for i in range(2)]
    started.extend(workers + gateways)
    for g in gateways:
        g.wait_workers(2)
        assert wait_for(lambda: g.status()["store"]["connected"])
    n = int(os.environ.get("TERN_CLUSTER_LINES", 150))
    lines = [line(i, f"Number {i} was", ignore_eos=True) for i in range(n)]
    id = begin(gateways[0], lines)

    def counts(g, least):
        return wait_for(lambda: batch(g, id)["request_counts"]["completed"] >= least, 120)
    check("lines are answered", counts(gateways[1], 1), batch(gateways[1], id))
    gateways[0].kill()
    check("the other gateway takes the batch over", wait_for(lambda: gateways[1].status()["store"]["batches"] == 1), gateways[1].status()["store"])
    gateways[0].start()
    workers[0].kill()
    before = batch(gateways[1], id)["request_counts"]["completed"]
    check("it goes on without one worker", counts(gateways[1], min(before + 5, n)), batch(gateways[1], id))
    workers[0].start()
    nats.stop()
    check("without NATS", wait_for(lambda: refused(gateways[1].get(f"/v1/batches/{id}")), 30), gateways[1].get(f"/v1/batches/{id}"))
    nats.start().wait_ready()
    g = gateways[1]

    def ended():
        try:
            return batch(g, id).get("status") == "completed"
        except (OSError, http.client.HTTPException):
            return False
    wait_for(ended, 180)
    done = batch(g, id)
    check("the batch is completed", done["status"] == "completed", done)
    check_answers(g, "after the kills", done, n, None)
    out = rows(g, done["output_file_id"])
    want = json.loads(workers[1].ask("POST", "/v1/completions", lines[7]["body"])[1])["choices"][0]["text"]
    check("the text is a worker's", out[7]["response"]["body"]["choices"][0]["text"] == want, (out[7], want))
    check_rest(nats, "kills")
    for p in gateways + workers:
        p.stop(5)
    nats.stop()


if not broker.is_there():
    print("skip files and batches between gateways: nats-server or tern-nats.so is missing")
    sys.exit(0)
fleet.run_tests(globals(), started, folder)
