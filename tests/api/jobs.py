"""Files and batches over HTTP, for the tests."""
import json
import uuid

from client import ask


def form(fields, file=None, name="in.jsonl", boundary="b-0-u-n-d"):
    """A multipart/form-data body and its Content-Type."""
    out = b""
    for key, value in fields.items():
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
    if file is not None:
        out += (f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
                f"Content-Type: application/octet-stream\r\n\r\n").encode() + file + b"\r\n"
    return out + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def upload(data, headers=None, **fields):
    body, kind = form({"purpose": "batch", **fields}, data if isinstance(data, bytes) else data.encode())
    return ask("POST", "/v1/files", body, {"Content-Type": kind, **(headers or {})})


def line(i, url="/v1/completions", **body):
    if not body:
        body = {"prompt": f"Once {i}", "max_tokens": 4, "temperature": 0}
    return json.dumps({"custom_id": f"c{i}", "method": "POST", "url": url, "body": body})


def lines(n, **body):
    return "\n".join(line(i, **body) for i in range(n)) + "\n"


def create(file_id, endpoint="/v1/completions", window="24h", headers=None, **more):
    return ask("POST", "/v1/batches", {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window, **more},
               headers)


def content(file_id):
    a = ask("GET", f"/v1/files/{file_id}/content")
    assert a.status == 200, (a.status, a.body)
    return a.body


def results(batch):
    """All lines of both files, by custom_id; each is there once."""
    out = {}
    for key in ("output_file_id", "error_file_id"):
        if batch[key]:
            for text in content(batch[key]).decode().splitlines():
                r = json.loads(text)
                assert r["custom_id"] not in out, f"{r['custom_id']} is answered twice"
                out[r["custom_id"]] = r
    return out


def unique():
    return uuid.uuid4().hex
