"""Durable requests between gateways: a job is accepted when JetStream has written it, any gateway runs it, and it has exactly one answer
after kill -9 of a gateway, a worker or the NATS server, and after a pause of NATS. usage: durable.py FOLDER [test_name ...]"""
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import broker
import fleet
from broker import Client, Nats
from durablejobs import TENANT, Submitter, check_once, durable, job, refusal, wait_job
from fakes import Fake, error
from fleet import Gateway, Worker, check, completion, metric, wait_for

folder = sys.argv[1]
started = []


class Cluster:
    """Workers and gateways over one NATS server."""

    def __init__(self, name, workers=2, gateways=2, **nats):
        self.nats = Nats(folder, f"{name}-nats", **nats).start().wait_ready()
        started.append(self.nats)
        self.workers = [Worker(folder, f"{name}-worker{i}", "--nats", self.nats.url).start() for i in range(workers)]
        self.gateways = [Gateway(folder, f"{name}-gateway{i}", "--nats", self.nats.url).start() for i in range(gateways)]
        started.extend(self.workers + self.gateways)
        for g in self.gateways:
            g.wait_workers(workers)
        assert broker.wait_streams(self.nats), "no streams"
        for g in self.gateways:
            assert wait_for(lambda: g.status()["durable"]["connected"]), "no JetStream"

    def stop(self):
        for p in self.gateways + self.workers:
            p.stop(5)
        self.nats.stop()


def test_jobs():
    c = Cluster("jobs")
    a, b = c.gateways
    body = durable("Once upon a time there was a frog", 12)
    want = json.loads(c.workers[0].wait_ready().ask("POST", "/v1/completions", {**body, "durable": False})[1])["choices"][0]["text"]
    status, text, headers = a.ask("POST", "/v1/completions", body)
    got = json.loads(text)
    ids = [got["id"]]
    check("a durable request is accepted with 202 and its place", status == 202 and headers.get("location") == f"/v1/jobs/{got['id']}" and got["status"] == "queued", (status, text))
    done = wait_job(b, got["id"])
    check("the other gateway has its answer", done["status"] == "completed" and done["response"]["body"]["choices"][0]["text"] == want, done)
    check("with the fields of the server's own jobs", done["object"] == "job" and done["endpoint"] == "/v1/completions" and done["error"] is None
          and done["ended_at"] >= done["created_at"] and done["response"]["request_id"] == done["id"], done)

    key = {"Idempotency-Key": "order-17"}
    first = json.loads(a.ask("POST", "/v1/chat/completions", {**fleet.chat("Hi", 4), "durable": True}, key)[1])["id"]
    second = json.loads(b.ask("POST", "/v1/chat/completions", {**fleet.chat("Hi", 4), "durable": True}, key)[1])["id"]
    wait_job(a, first)
    third = json.loads(b.ask("POST", "/v1/chat/completions", {**fleet.chat("Hi", 4), "durable": True}, key)[1])
    check("the same key is the same job at both gateways, queued and answered", first == second == third["id"] and third["status"] == "completed", (first, second, third))
    ids.append(first)

    status, text, _ = a.ask("POST", "/v1/completions", {**body, "stream": True})
    check("a durable request cannot stream", status == 400 and json.loads(text)["error"]["param"] == "stream", (status, text))
    status, text, _ = a.ask("POST", "/v1/completions", body, {"Idempotency-Key": "x" * 256})
    check("a key that is too long", status == 400, (status, text))
    for path in ("/v1/jobs/job_000000000000000000000000", "/v1/jobs/nothing", "/v1/jobs/..%2f", "/v1/jobs/job_00000000000000000000000%2a", "/v1/jobs/" + "x" * 300):
        status, text, _ = a.get(path)
        check(f"no such job: {path[:40]}", status == 404 and json.loads(text)["error"]["code"] == "not_found", (status, text))
    check("a path that is none", a.ask("POST", "/v1/jobs", {})[0] == 404)
    wrong = json.loads(a.ask("POST", "/v1/completions", {"prompt": 7, "durable": True})[1])["id"]
    done = wait_job(b, wrong)
    check("an error of the request is its answer", done["status"] == "failed" and done["response"]["status_code"] == 400, done)
    ids.append(wrong)

    big = a.ask("POST", "/v1/completions", durable("x" * (1 << 20)))
    check("a request larger than a message is refused, 413", big[0] == 413 and json.loads(big[1])["error"]["code"] == "request_too_large", big[:2])

    before = a.status()["bodies"]
    long = {"filler": "x" * 800000, **body}
    check("a durable request of several pieces is accepted", (r := a.ask("POST", "/v1/completions", long))[0] == 202, r)
    after = a.status()["bodies"]
    check("each byte of its body is looked at once, when it is accepted and when it runs, and few in one turn", after["bytes"] - before["bytes"] <= 2 * len(json.dumps(long)) + 1000
          and after["pieces"] - before["pieces"] >= 4 and after["most_bytes"] <= 256 << 10, (before, after))
    ids.append(json.loads(r[1])["id"])
    check("and answered", wait_job(b, ids[-1])["response"]["body"]["choices"][0]["text"] == want, job(b, ids[-1]))

    more = [json.loads(g.ask("POST", "/v1/completions", durable(f"Number {i}", 1 + i))[1])["id"] for i, g in enumerate([a, b] * 4)]
    ids += more
    check("many jobs over both gateways", all(wait_job(g, i)["status"] == "completed" for i, g in zip(more, [b, a] * 4)))
    listed = [j["id"] for j in json.loads(b.get("/v1/jobs?limit=100")[1])["data"]]
    check("a list has all of them, the latest first", sorted(listed) == sorted(ids) and (times := [i[:13] for i in listed if i in more]) == sorted(times, reverse=True), listed)
    page = json.loads(b.get("/v1/jobs?limit=3")[1])
    rest = json.loads(b.get(f"/v1/jobs?limit=100&after={page['last_id']}")[1])
    check("page by page", page["has_more"] and not rest["has_more"] and [j["id"] for j in page["data"] + rest["data"]] == listed, (page, rest))
    check("a wrong limit", a.get("/v1/jobs?limit=0")[0] == 400 and a.get("/v1/jobs?after=x")[0] == 400)

    status, text, _ = b.ask("POST", f"/v1/jobs/{ids[0]}/cancel", {})
    check("a job with an answer cannot be cancelled, 409", status == 409 and json.loads(text)["error"]["code"] == "conflict", (status, text))
    for w in c.workers:
        w.kill()
    check("without workers", wait_for(lambda: a.get("/ready")[0] == 503 and b.get("/ready")[0] == 503))
    status, text, _ = a.ask("POST", "/v1/completions", body)
    held = json.loads(text)["id"]
    check("without a worker a job is accepted and waits", status == 202 and job(b, held)["status"] == "queued", (status, text))
    gone = json.loads(a.ask("POST", "/v1/completions", body)[1])["id"]
    status, text, _ = b.ask("POST", f"/v1/jobs/{gone}/cancel", {})
    check("a job that waits is cancelled at the other gateway", status == 200 and json.loads(text)["status"] == "cancelled", (status, text))
    c.workers[0].start()
    check("and runs when a worker is there", wait_job(a, held)["status"] == "completed", job(a, held))
    check("the cancelled one did not run", job(a, gone)["status"] == "cancelled" and job(a, gone)["error"]["code"] == "cancelled", job(a, gone))
    check_once(c.nats, "jobs", ids + [held, gone])
    st, m = a.status()["durable"], a.get("/metrics")[1]
    check("/status and /metrics count them", st["accepted"] >= 8 and metric(m, "tern_gateway_jobs_total") > 0, st)
    c.stop()


def test_kills():
    """kill -9 of each part right after jobs were accepted, and while they run; a pause of NATS."""
    c = Cluster("kills")
    s = Submitter(c.gateways, "kills")
    n = 0

    def accept(k, tokens=12):
        nonlocal n
        good = all([s.submit(i, tokens) for i in range(n, n + k)])
        n += k
        return good

    accept(6, 150)
    c.gateways[0].kill()
    check("a gateway is killed right after it accepted jobs", True)
    c.gateways[0].start()
    accept(4, 150)
    c.workers[0].kill()
    accept(2)
    c.workers[0].start()

    accept(6, 100)
    c.nats.stop()
    status, text, headers = c.gateways[1].ask("POST", "/v1/completions", durable("Hi"), {"Idempotency-Key": "away"})
    check("without NATS a durable request is refused, 503 with Retry-After", status == 503 and refusal(status, text, headers) is None, (status, text, headers))
    status, text, headers = c.gateways[1].get("/v1/jobs/" + s.ids[0])
    check("and so is a question about one", status == 503 and refusal(status, text, headers) is None, (status, text))
    check("other requests go on", c.gateways[1].ask("POST", "/v1/completions", completion("Hi", 2))[0] == 200)
    c.nats.start().wait_ready()
    accept(4)
    check("after its restart NATS has what was accepted, and more is accepted", len(s.ids) == n, (len(s.ids), n))

    accept(4, 150)
    flow = s.flow(range(n, n + 6), 0.3, 60)
    n += 6
    c.nats.signal(signal.SIGSTOP)
    t0 = time.time()
    status, text, headers = c.gateways[0].ask("POST", "/v1/completions", durable("Hi"), {"Idempotency-Key": "stopped"})
    check("while NATS stands still a durable request is refused in time", status == 503 and refusal(status, text, headers) is None, (status, text))
    check("other requests go on meanwhile", c.gateways[0].ask("POST", "/v1/completions", completion("Hi", 2))[0] == 200)
    time.sleep(max(0, 5.5 - (time.time() - t0)))
    c.nats.signal(signal.SIGCONT)
    flow.join()
    # The refused ones may have been in the buffers of a connection: the key finds the job, or writes it now.
    for key in ("away", "stopped"):
        wait_for(lambda: c.gateways[1].ask("POST", "/v1/completions", durable("Hi"), {"Idempotency-Key": key})[0] == 202, 60)
        status, text, _ = c.gateways[1].ask("POST", "/v1/completions", durable("Hi"), {"Idempotency-Key": key})
        check("the key of a refused request is one job, whether it was written or not", status == 202, (status, text))
        s.ids[key] = json.loads(text)["id"]

    accept(4, 150)
    c.gateways[1].p.terminate()
    check("a gateway that is told to end gives its jobs back", c.gateways[1].p.wait(60) == 0)
    s.check("kills", n + 2)
    check_once(c.nats, "kills", s.ids.values())
    c.stop()


def poison_reply(body):
    """Of a worker that drops the connection of a request, says that its model died with it, or answers with too much."""
    if body["prompt"] == "crash":
        return error(503, "worker_lost")
    return (200, b'{"text":"' + b"x" * (2 << 20) + b'"}') if body["prompt"] == "big" else None


def record(id, body=b"{}", v=1, kind="job", tenant="default", **more):
    head = {"v": v, "kind": kind, "id": id, "tenant": tenant, "endpoint": "/v1/completions", "created": int(time.time()), "bytes": len(body), **more}
    return json.dumps({k: x for k, x in head.items() if x is not None}).encode() + b"\n" + body


def test_bad():
    """A job that ends every worker, and messages in the streams that no gateway wrote."""
    nats = Nats(folder, "bad-nats").start().wait_ready()
    worker = Fake(poison_reply)
    g = Gateway(folder, "bad-gateway", "--nats", nats.url, "--peers", worker.url).start()
    started.extend([nats, worker, g])
    g.wait_workers(1)
    assert broker.wait_streams(nats)
    status, text, _ = g.ask("POST", "/v1/completions", durable("poison"))
    poison = json.loads(text)["id"]
    check("the job of a worker that dies is accepted", status == 202, (status, text))
    crash, big = (json.loads(g.ask("POST", "/v1/completions", durable(what))[1])["id"] for what in ("crash", "big"))

    c = Client(nats)
    good = "job_00000000000000000000000"
    bad = {"an empty message": b"", "no line of JSON": b"nonsense", "a list": b"[]\n", "no version": record(good + "a", v=None),
           "a body that was cut": record(good + "a", b"{}" * 9)[:-3], "a body that is longer": record(good + "a") + b" ",
           "another id": record(good + "Z"), "another tenant": record(good + "a", tenant="alice"), "an answer": record(good + "a", kind="answer", ended=1, status=200, error=""),
           "a text as time": record(good + "a", created="now"), "a path that is none": record(good + "a", endpoint="x"), "bytes": bytes(range(256)) * 8}
    ids = {}
    for i, (name, data) in enumerate(bad.items()):
        ids[name] = good + chr(ord("b") + i)
        if name != "another id":
            data = data.replace((good + "a").encode(), ids[name].encode())
        r = json.loads(c.request(f"tern.jobs.{TENANT}.{ids[name]}", data))
        assert "seq" in r, r
    later = good + "x"
    c.request(f"tern.jobs.{TENANT}.{later}", record(later, v=2))
    old = good + "y"
    c.request(f"tern.jobs.{TENANT}.{old}", record(old, created=int(time.time()) - 100000))
    c.request("tern.jobs.x.y", b"hello")
    c.request(f"tern.jobs.{TENANT}.job_1", b"hello")
    for name, id in ids.items():
        done = wait_job(g, id)
        check(f"a job that is {name} has a typed error as its answer", done["status"] == "failed" and done["error"]["code"] == "job_unreadable" and done["error"]["message"], done)
    done = wait_job(g, old)
    check("a job of the day before yesterday is expired", done["error"]["code"] == "job_expired", done)

    stored = {"nonsense": b"nonsense", "of a later version": record(good + "1", v=9, kind="answer"), "of another job": record(good + "Z", kind="answer", ended=1, status=200, error=""),
              "cut": record(good + "1", b"{}" * 9, kind="answer", ended=1, status=200, error="")[:-2], "without a status": record(good + "1", kind="answer", ended=1, status=0, error="")}
    for i, (name, data) in enumerate(stored.items()):
        id = good + str(i)
        c.request(f"tern.answers.{TENANT}.{id}", data.replace((good + "1").encode(), id.encode()) if name != "of another job" else data)
        status, text, _ = g.get(f"/v1/jobs/{id}")
        check(f"a stored answer that is {name} is an error, 500", status == 500 and json.loads(text)["error"]["code"] == "job_unreadable", (status, text))
    raw = good + "7"
    c.request(f"tern.answers.{TENANT}.{raw}", record(raw, b'{"a": ', kind="answer", ended=1, status=200, error=""))
    check("a stored body that is no JSON is a text", job(g, raw)["response"]["body"] == '{"a":', job(g, raw))
    check("a list leaves out what cannot be read", g.get("/v1/jobs?limit=100")[0] == 200)

    done = wait_job(g, later)
    check("a job of a later version waits for a later gateway, then has an error", done["error"]["code"] == "job_unreadable" and "version" in done["error"]["message"], done)
    for id, what in ((poison, "its workers"), (crash, "the processes of its model")):
        done = wait_job(g, id)
        check(f"a job that ends {what} has an error after some deliveries", done["status"] == "failed" and done["error"]["code"] == "job_failed" and done["response"] is None, done)
    done = wait_job(g, big)
    check("an answer that is larger than a message is an error", done["status"] == "failed" and done["error"]["code"] == "answer_too_large", done)
    seen = sorted(b["prompt"] for b in worker.seen)
    check("each delivery is one attempt", seen == ["big"] + ["crash"] * 8 + ["poison"] * 8, seen)
    check("the worker is not asked to store it", not any(b["durable"] for b in worker.seen))
    check("the queue is empty: foreign messages were removed", wait_for(lambda: c.n_messages("tern-jobs") == 0), c.subjects("tern-jobs"))
    check("the gateway lives", g.get("/health")[0] == 200)
    c.close()
    g.stop()
    nats.stop()


def test_full():
    """Streams that an operator has made are used as they are; a full queue refuses."""
    nats = Nats(folder, "full-nats").start().wait_ready()
    started.append(nats)
    c = Client(nats)
    made = c.js("STREAM.CREATE.tern-jobs", name="tern-jobs", subjects=["tern.jobs.*.*"], retention="workqueue", max_msgs=3, discard="new", storage="file")
    assert "error" not in made, made
    worker = Fake(lambda _: (200, b'{"id": "a"}'))
    worker.awake.clear()
    g = Gateway(folder, "full-gateway", "--nats", nats.url, "--peers", worker.url).start()
    started.extend([worker, g])
    assert broker.wait_streams(nats)
    assert wait_for(lambda: g.status()["durable"]["connected"])
    got = [g.ask("POST", "/v1/completions", durable(f"{i}")) for i in range(4)]
    check("a queue that is full refuses with 429 and Retry-After", [r[0] for r in got] == [202, 202, 202, 429] and refusal(*got[3]) is None, got[3])
    check("/status says how many wait", wait_for(lambda: g.status()["durable"]["queued"] == 3), g.status()["durable"])
    first = json.loads(got[0][1])["id"]
    check("after a cancel there is room", g.ask("POST", f"/v1/jobs/{first}/cancel", {})[0] == 200 and (last := g.ask("POST", "/v1/completions", durable("4")))[0] == 202)
    gone = c.js("CONSUMER.DELETE.tern-jobs.tern-gateways")
    worker.awake.set()
    jobs = [wait_job(g, json.loads(r[1])["id"]) for r in (got[1], got[2], last)]
    check("a consumer that somebody removed is made again", gone.get("success") and all(j["status"] == "completed" for j in jobs), (gone, jobs))
    c.close()
    g.stop()
    nats.stop()


if not broker.is_there():
    print("skip durable requests between gateways: nats-server or tern-nats.so is missing")
    sys.exit(0)
fleet.run_tests(globals(), started, folder)
