"""OpenAI's files and batches, and requests with "durable": true."""
import http.client
import json
import os
import re
import threading
import time

from client import LONG, MESSAGES, URL, ask, chat, complete, main, metric, raw, stream_chat, wait_for
from jobs import content, create, form, line, lines, results, unique, upload

ENDED = ("completed", "failed", "expired", "cancelled")


def get(batch_id):
    a = ask("GET", f"/v1/batches/{batch_id}")
    assert a.status == 200, (a.status, a.body)
    return a.json


def wait_end(batch_id, seconds=120):
    wait_for(f"the end of {batch_id}", lambda: get(batch_id)["status"] in ENDED, seconds)
    return get(batch_id)


# ---- files ----

def test_a_file_comes_back_as_it_was():
    data = os.urandom(300_000) + b"\r\n--b-0-u-n\r\n--" + os.urandom(1000)
    a = upload(data)
    assert a.status == 200, a.body
    f = a.json
    assert f["object"] == "file" and f["bytes"] == len(data) and f["purpose"] == "batch" and f["filename"] == "in.jsonl"
    assert f["id"].startswith("file-") and f["expires_at"] > f["created_at"]
    assert ask("GET", f"/v1/files/{f['id']}").json == f
    assert content(f["id"]) == data
    d = ask("DELETE", f"/v1/files/{f['id']}")
    assert d.status == 200 and d.json == {"id": f["id"], "object": "file", "deleted": True}
    assert ask("GET", f"/v1/files/{f['id']}").status == 404
    assert ask("GET", f"/v1/files/{f['id']}/content").status == 404
    assert ask("DELETE", f"/v1/files/{f['id']}").error["code"] == "not_found"


def test_a_chunked_upload_of_many_megabytes_stays_out_of_memory():
    def rss():
        return int(open(f"/proc/{os.environ['TERN_PID']}/statm").read().split()[1]) * 4096
    build = os.environ.get("TERN_BUILD", "")
    size = 1 << 20 if "hard" in build else 64 << 20    # hard mode reads a few bytes at a time
    body, kind = form({"purpose": "batch"}, b"x" * size)
    before = rss()
    c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=120)
    peak = []
    parts = (body[i:i + (1 << 20)] for i in range(0, len(body), 1 << 20))
    c.request("POST", "/v1/files", (peak.append(rss()) or p for p in parts), {"Content-Type": kind}, encode_chunked=True)
    a = json.loads(c.getresponse().read())
    c.close()
    assert a["bytes"] == size, a
    if not re.search("asan|tsan", build):  # sanitizers keep freed memory
        assert max(peak) - before < 24 << 20, (max(peak) - before) >> 20
    assert len(content(a["id"])) == size
    ask("DELETE", f"/v1/files/{a['id']}")


def test_lists_of_files_have_pages():
    ids = [upload(f"{i}\n").json["id"] for i in range(3)]
    page = ask("GET", "/v1/files?limit=2").json
    assert [f["id"] for f in page["data"]] == [ids[2], ids[1]] and page["has_more"] is True, page
    assert page["last_id"] == ids[1]
    rest = ask("GET", f"/v1/files?limit=100&after={ids[1]}").json
    assert rest["data"][0]["id"] == ids[0]
    assert ask("GET", "/v1/files?purpose=other").json["data"] == []
    oldest = ask("GET", "/v1/files?order=asc&limit=10000").json["data"]
    assert [f["id"] for f in oldest][-3:] == ids
    for bad in ("limit=0", "limit=x", "order=up", "after=file-none"):
        assert ask("GET", f"/v1/files?{bad}").status == 400, bad
    for i in ids:
        ask("DELETE", f"/v1/files/{i}")


def test_bad_uploads_are_refused_and_leave_nothing():
    n = len(ask("GET", "/v1/files?limit=10000").json["data"])
    cases = [
        (*form({"purpose": "batch"}), 400, "no part 'file'"),
        (*form({}, b"x"), 400, "no part 'purpose'"),
        (*form({"purpose": "assistants"}, b"x"), 400, "purpose must be"),
        (*form({"purpose": "batch", "expires_after[seconds]": "5"}, b"x"), 400, "3600"),
        (b"{}", "application/json", 400, "multipart/form-data"),
        (b"", "multipart/form-data; boundary=x", 400, "no body"),
        (b"--x\r\nno end", "multipart/form-data; boundary=x", 400, "malformed"),
    ]
    for body, kind, status, said in cases:
        a = ask("POST", "/v1/files", body, {"Content-Type": kind})
        assert a.status == status and said in a.error["message"], (said, a.status, a.body)
    # A client that is killed in the middle of its upload.
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n"
    raw(head + b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc', close_write=True)
    assert len(ask("GET", "/v1/files?limit=10000").json["data"]) == n
    # Too large, by its length, before any byte of it is read.
    status, got = raw(head.replace(b"100000", b"999999999999"))
    assert status == 413, got


def test_a_file_expires_when_asked_to():
    body, kind = form({"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}, b"x")
    f = ask("POST", "/v1/files", body, {"Content-Type": kind}).json
    assert f["expires_at"] == f["created_at"] + 3600
    ask("DELETE", f"/v1/files/{f['id']}")


# ---- batches ----

def test_a_batch_of_completions():
    f = upload(lines(25)).json
    b = create(f["id"], metadata={"who": "me"}).json
    assert b["object"] == "batch" and b["status"] in ("validating", "in_progress") and b["metadata"] == {"who": "me"}, b
    b = wait_end(b["id"])
    assert b["status"] == "completed" and b["request_counts"] == {"total": 25, "completed": 25, "failed": 0}, b
    assert b["error_file_id"] is None and b["completed_at"] >= b["finalizing_at"] >= b["in_progress_at"] >= b["created_at"]
    got = results(b)
    assert sorted(got) == sorted(f"c{i}" for i in range(25))
    alone = complete(prompt="Once 3", max_tokens=4, temperature=0).json
    r = got["c3"]["response"]
    assert r["status_code"] == 200 and r["request_id"] and got["c3"]["error"] is None
    assert r["body"]["choices"][0]["text"] == alone["choices"][0]["text"]
    out = ask("GET", f"/v1/files/{b['output_file_id']}").json
    assert out["purpose"] == "batch_output" and out["filename"].endswith(".jsonl")
    assert ask("DELETE", f"/v1/files/{f['id']}").status == 200


def test_batches_of_chats_and_embeddings():
    chats = "\n".join(line(i, "/v1/chat/completions", messages=MESSAGES, max_tokens=3) for i in range(3))
    texts = "\n".join(line(i, "/v1/embeddings", input=f"text {i}") for i in range(3))
    bc = create(upload(chats).json["id"], "/v1/chat/completions").json
    be = create(upload(texts).json["id"], "/v1/embeddings").json
    got = results(wait_end(bc["id"]))
    assert all(r["response"]["body"]["choices"][0]["message"]["content"] for r in got.values()), got
    got = results(wait_end(be["id"]))
    assert all(len(r["response"]["body"]["data"][0]["embedding"]) > 1 for r in got.values()), got


def test_a_batch_of_responses():
    text = "\n".join(line(i, "/v1/responses", input="Hello", max_output_tokens=16) for i in range(2))
    got = results(wait_end(create(upload(text).json["id"], "/v1/responses").json["id"]))
    assert all(r["response"]["body"]["object"] == "response" for r in got.values()), got


def test_a_line_that_fails_has_its_error_in_the_error_file():
    text = line(0) + "\n" + line(1, prompt="x", temperature=99) + "\n" + line(2, prompt="x", model="nobody", max_tokens=1)
    b = wait_end(create(upload(text).json["id"]).json["id"])
    assert b["status"] == "completed" and b["request_counts"] == {"total": 3, "completed": 1, "failed": 2}, b
    errors = {json.loads(x)["custom_id"]: json.loads(x) for x in content(b["error_file_id"]).decode().splitlines()}
    assert errors["c1"]["response"]["status_code"] == 400
    assert errors["c1"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["c2"]["response"]["status_code"] == 404


def test_a_batch_with_wrong_lines_fails_and_names_them():
    text = line(0) + "\n{\n" + line(0) + "\n" + line(3, "/v1/embeddings", input="x") + "\n"
    b = wait_end(create(upload(text).json["id"]).json["id"])
    assert b["status"] == "failed" and b["output_file_id"] is None and b["failed_at"], b
    assert [(e["line"], e["code"]) for e in b["errors"]["data"]] == \
        [(2, "invalid_json_line"), (3, "duplicate_custom_id"), (4, "invalid_url")], b["errors"]
    b = wait_end(create(upload("").json["id"]).json["id"])
    assert b["errors"]["data"][0]["code"] == "empty_file"


def test_bad_batches_are_refused():
    f = upload(lines(1)).json["id"]
    cases = [
        ({"endpoint": "/v1/completions", "completion_window": "24h"}, 400, "input_file_id"),
        ({"input_file_id": "file-none", "endpoint": "/v1/completions", "completion_window": "24h"}, 404, "no file"),
        ({"input_file_id": f, "endpoint": "/v1/images", "completion_window": "24h"}, 400, "endpoint"),
        ({"input_file_id": f, "endpoint": "/v1/completions", "completion_window": "soon"}, 400, "completion_window"),
        ({"input_file_id": f, "endpoint": "/v1/completions", "completion_window": "31d"}, 400, "completion_window"),
        ({"input_file_id": f, "endpoint": "/v1/completions", "completion_window": "24h", "metadata": [1]}, 400, "metadata"),
        ({"input_file_id": f, "endpoint": "/v1/completions", "completion_window": "24h",
          "metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ([], 400, "object"),
    ]
    for body, status, said in cases:
        a = ask("POST", "/v1/batches", body)
        assert a.status == status and said in a.error["message"], (body, a.body)
    assert ask("POST", "/v1/batches", "{").status == 400
    assert ask("GET", "/v1/batches/batch_none").status == 404
    assert ask("POST", "/v1/batches/batch_none/cancel").status == 404
    assert ask("DELETE", "/v1/batches").status == 405


def test_lists_of_batches_have_pages():
    f = upload(lines(1)).json["id"]
    ids = [create(f).json["id"] for _ in range(3)]
    page = ask("GET", "/v1/batches?limit=2").json
    assert [b["id"] for b in page["data"]] == [ids[2], ids[1]] and page["has_more"] is True
    assert ask("GET", f"/v1/batches?limit=1&after={ids[1]}").json["data"][0]["id"] == ids[0]
    for i in ids:
        wait_end(i)


def test_a_cancelled_batch_keeps_what_it_has():
    text = "\n".join(line(i, prompt="x", **({"max_tokens": 2} if i < 4 else {**LONG, "max_tokens": 2000})) for i in range(40))
    b = create(upload(text).json["id"]).json
    wait_for("some answers", lambda: get(b["id"])["request_counts"]["completed"] >= 1, 120)
    a = ask("POST", f"/v1/batches/{b['id']}/cancel")
    assert a.status == 200 and a.json["status"] in ("cancelling", "cancelled"), a.json
    b = wait_end(b["id"])
    assert b["status"] == "cancelled" and b["cancelled_at"] >= b["cancelling_at"], b
    got = results(b)
    assert len(got) == 40
    cancelled = [r for r in got.values() if r["error"] and r["error"]["code"] == "batch_cancelled"]
    assert cancelled and all(r["response"] is None for r in cancelled)
    assert len(got) - len(cancelled) == b["request_counts"]["completed"] + b["request_counts"]["failed"] >= 1
    wait_for("an idle engine", lambda: metric("tern_requests_running") == 0)


def test_a_batch_expires():
    text = "\n".join(line(i, prompt="x", **{**LONG, "max_tokens": 3000}) for i in range(60))
    b = wait_end(create(upload(text).json["id"], window="1s").json["id"])
    assert b["status"] == "expired" and b["expired_at"], b
    assert sum(1 for r in results(b).values() if r["error"] and r["error"]["code"] == "batch_expired") > 0


def test_live_requests_come_before_lines():
    text = "\n".join(line(i, prompt="x", **{**LONG, "max_tokens": 1500}) for i in range(600))
    b = create(upload(text).json["id"]).json
    wait_for("running lines", lambda: metric("tern_requests_running") >= 1, 120)
    for _ in range(3):    # more than fit at once: those of the batch give their places back
        got = []
        threads = [threading.Thread(target=lambda: got.append(chat(max_tokens=8))) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert [a.status for a in got] == [200] * 6
    assert get(b["id"])["status"] == "in_progress"
    ask("POST", f"/v1/batches/{b['id']}/cancel")
    wait_end(b["id"])


# ---- durable requests ----

def job(job_id):
    return ask("GET", f"/v1/jobs/{job_id}")


def wait_job(job_id):
    wait_for(f"the answer of {job_id}", lambda: job(job_id).json["status"] != "queued", 120)
    return job(job_id).json


def test_a_durable_request_is_answered_later():
    a = complete(durable=True, max_tokens=4, temperature=0)
    assert a.status == 202 and a.json["object"] == "job" and a.headers["Location"] == f"/v1/jobs/{a.json['id']}", a.body
    j = wait_job(a.json["id"])
    assert j["status"] == "completed" and j["response"]["status_code"] == 200, j
    alone = complete(max_tokens=4, temperature=0).json
    assert j["response"]["body"]["choices"][0]["text"] == alone["choices"][0]["text"]
    a = chat(durable=True, max_tokens=2)
    assert wait_job(a.json["id"])["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert a.json["id"] in [x["id"] for x in ask("GET", "/v1/jobs?limit=5").json["data"]]


def test_a_durable_request_with_a_key_is_one_job():
    key = {"Idempotency-Key": unique()}
    ids = {complete(key, durable=True, max_tokens=2).json["id"] for _ in range(5)}
    assert len(ids) == 1
    wait_job(ids.pop())


def test_durable_requests_that_are_wrong():
    assert complete(durable=True, stream=True).status == 400
    assert complete({"Idempotency-Key": "x" * 300}, durable=True).status == 400
    j = wait_job(complete(durable=True, temperature=99).json["id"])
    assert j["status"] == "failed" and j["response"]["status_code"] == 400
    assert job("job_none").status == 404
    assert complete(durable=False, max_tokens=1).status == 200


def test_a_durable_request_can_be_cancelled():
    a = complete(durable=True, **LONG)
    c = ask("POST", f"/v1/jobs/{a.json['id']}/cancel")
    assert c.status == 200 and c.json["status"] == "cancelled", c.body
    assert ask("POST", f"/v1/jobs/{a.json['id']}/cancel").status == 409
    wait_for("an idle engine", lambda: metric("tern_requests_running") == 0)
    assert job(a.json["id"]).json["status"] == "cancelled"


def test_status_and_metrics_have_jobs():
    s = ask("GET", "/status").json["jobs"]
    assert s["folder"] and set(s["batches"]) >= {"completed", "cancelled"} and s["lines_completed"] >= 25, s
    wait_for("counts", lambda: ask("GET", "/status").json["jobs"]["batches"]["completed"] > 0)
    assert metric("tern_jobs_answered_total") > 25 and metric("tern_jobs_commits_total") > 5


if __name__ == "__main__":
    main()
