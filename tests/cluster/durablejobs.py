"""Clients of durable requests for tests: they repeat each with its key until it is accepted, and check that it has one answer."""
import http.client
import json
import threading
import time

from broker import Client, tenant_token
from fleet import check, completion, wait_for

TENANT = tenant_token("default")


def durable(prompt, n=8, **more):
    return completion(prompt, n, durable=True, **more)


def job(g, id):
    return json.loads(g.get(f"/v1/jobs/{id}")[1])


def ended(g, id):
    return job(g, id)["status"] != "queued"


def wait_job(g, id, seconds=120):
    wait_for(lambda: ended(g, id), seconds)
    return job(g, id)


def refusal(status, text, headers):
    """What is not right about the reply to a request that was not accepted; None: it is typed and says when to come back."""
    try:
        code = json.loads(text)["error"]["code"]
    except (ValueError, KeyError):
        return f"not typed: {status} {text[:200]}"
    ok = (status, code) in ((503, "store_unavailable"), (503, "shutting_down"), (429, "queue_full"))
    return None if ok and int(headers.get("retry-after", 0)) >= 1 else f"{status} {code} {headers.get('retry-after')} {text[:200]}"


def check_once(nats, what, ids):
    """Every id has one answer, nothing else has one, and the queue is empty."""
    c = Client(nats)
    try:
        check(f"{what}: the queue is empty", wait_for(lambda: c.n_messages("tern-jobs") == 0, 60), c.subjects("tern-jobs"))
        got = c.subjects("tern-answers")
    finally:
        c.close()
    want = {f"tern.answers.{TENANT}.{i}": 1 for i in ids}
    check(f"{what}: one answer for each job", got == want, ([k for k in want if got.get(k) != 1], [k for k in got if k not in want], len(want), len(got)))


class Submitter:
    """Sends requests with a key each to whichever gateway answers, until they are accepted."""

    def __init__(self, gateways, name, timeout=30):
        self.gateways, self.name, self.timeout = gateways, name, timeout
        self.ids, self.bad, self.refused, self.lock = {}, [], 0, threading.Lock()

    def submit(self, i, n=12, seconds=120):
        end = time.time() + seconds
        turn = i
        while time.time() < end:
            g = self.gateways[turn % len(self.gateways)]
            turn += 1
            try:
                status, text, headers = g.ask("POST", "/v1/completions", durable(f"Number {i} was", n, ignore_eos=True), {"Idempotency-Key": f"{self.name}-{i}"}, timeout=self.timeout)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            with self.lock:
                if status == 202:
                    self.ids[i] = json.loads(text)["id"]
                    return True
                self.refused += 1
                wrong = refusal(status, text, headers)
                if wrong:
                    self.bad.append(wrong)
            time.sleep(0.1)
        return False

    def flow(self, numbers, pause=0.0, n=12):
        """The requests of these numbers, from a thread."""
        def run():
            for i in numbers:
                self.submit(i, n)
                time.sleep(pause)
        t = threading.Thread(target=run, daemon=True)
        t.start()
        return t

    def check(self, what, n, seconds=90):
        """All were accepted and answered; asks the first gateway."""
        check(f"{what}: all {n} requests were accepted", len(self.ids) == n and len(set(self.ids.values())) == n, (len(self.ids), self.bad[:3]))
        check(f"{what}: errors meanwhile were typed", not self.bad, self.bad[:5])
        g = self.gateways[0]
        late = [i for i in self.ids.values() if not wait_for(lambda: ended(g, i), seconds)]
        check(f"{what}: all are answered", not late, late[:5])
        wrong = [j for j in (job(g, i) for i in self.ids.values()) if j["status"] != "completed"]
        check(f"{what}: by what a worker said", not wrong, wrong[:2])
