"""One client's work does not stop another's: lists of texts, long prompts."""
import json
import select
import socket
import threading
import time

from abuse import LONG, ask, complete, run, serve, serving


class Load:
    """n clients that send completions one after the other, until stopped; done: how many were answered."""

    def __init__(self, server, n, **fields):
        self.server, self.fields = server, fields
        self.done, self.failed, self.stopped = 0, [], threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work) for _ in range(n)]
        for t in self.threads:
            t.start()

    def work(self):
        while not self.stopped.is_set():
            a = complete(self.server, **self.fields)
            with self.lock:
                if a.status == 200:
                    self.done += 1
                else:
                    self.failed.append((a.status, a.body))

    def stop(self):
        self.stopped.set()
        for t in self.threads:
            t.join()
        assert not self.failed, self.failed[0]


def test_a_list_of_texts_waits_in_the_queue_once():
    s = serve("--max-seqs", "2", "--ctx", "512", "--max-requests", "32")
    load = Load(s, 12, max_tokens=24, ignore_eos=True)
    try:
        while load.done < 12:
            time.sleep(0.01)
        for _ in range(3 if LONG else 1):
            # It waits for the 12 that came before, then has one of the two places; the other one serves them meanwhile.
            # tests/test_engine_queue.c and tests/test_sim.c count the rounds.
            a = ask(s, "POST", "/v1/embeddings", {"input": [f"text number {i}" for i in range(192)]}, timeout=300)
            assert a.status == 200 and len(a.json["data"]) == 192, (a.status, a.body[:300])
            assert load.done > 12 and not load.failed, load.failed
    finally:
        load.stop()


def test_a_list_of_texts_is_one_request_of_the_queue():
    s = serve("--max-seqs", "1", "--ctx", "512", "--max-requests", "3")
    a = ask(s, "POST", "/v1/embeddings", {"input": ["a few words"] * 150})
    assert a.status == 200 and len(a.json["data"]) == 150, (a.status, a.body[:300])
    load = Load(s, 2, max_tokens=4)                       # two more beside it are admitted all the time
    try:
        for _ in range(3):
            a = ask(s, "POST", "/v1/embeddings", {"input": ["a few words"] * 100})
            assert a.status == 200, (a.status, a.body[:300])
    finally:
        load.stop()


def first_of(server, body):
    """Sends a streamed completion and returns its connection, after the head."""
    c = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    data = json.dumps({"stream": True, "temperature": 0, **body}).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return c


def test_a_short_prompt_does_not_wait_for_a_long_one():
    """Five short ones are answered while a long one is computed: in one of twenty tries, as the client may be stalled longer than that."""
    s = serve("--max-seqs", "4", "--ctx", "8192", "--kv-tokens", "8192")
    n = 3000 if "asan" in serving.BUILD else 8000
    for attempt in range(20):
        ids = [(7 * i + 11 * attempt) % 900 + 20 for i in range(n)]     # no prefix of it is cached
        long = first_of(s, {"prompt": ids, "max_tokens": 1})
        while ask(s, "GET", "/status").json["queue"]["running"] == 0 and not select.select([long], [], [], 0)[0]:
            time.sleep(0.002)
        for _ in range(5):
            assert complete(s, max_tokens=1).status == 200
        long.setblocking(False)
        try:
            early = long.recv(65536)
        except BlockingIOError:
            early = b""
        long.settimeout(300)
        got = early
        while b"[DONE]" not in got:
            part = long.recv(65536)
            assert part, got
            got += part
        long.close()
        if b'"text"' not in early:
            return
    raise AssertionError("the long prompt was computed before five short ones were answered")


run(globals())
