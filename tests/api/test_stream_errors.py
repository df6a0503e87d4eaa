"""An error inside a stream that has begun: what each protocol sends at its end, compared with what was recorded."""
import http.client
import json
import re

from client import MESSAGES, URL, ask, main
from golden import check_text, normal

LONG = {"model": "tern-tales", "stream": True, "ignore_eos": True, "temperature": 0}
STREAMS = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3800}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 3800}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 3800}),
    ("/v1/responses", {"input": "a story", "max_output_tokens": 3800}),
    ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 3800}}),
    ("/completion", {"prompt": "Once", "n_predict": 3800}),
]


def cancelled(path, body):
    """The lines from the first one that has an error, of a stream that is cancelled after its first line."""
    c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=300)
    name = "stream-error" + path.replace("/", "-")
    c.request("POST", path, json.dumps({**LONG, **body}), {"Content-Type": "application/json", "X-Correlation-Id": name})
    r = c.getresponse()
    assert r.status == 200
    r.readline()
    a = ask("POST", f"/v1/requests/{name}/cancel", {})
    assert a.status == 200 and a.json["cancelled"] is True, a.body
    lines = r.read().decode().splitlines()
    c.close()
    at = next(i for i, line in enumerate(lines) if '"error":{' in line or '"error":"' in line or line == "event: error")
    return lines[at:]


def test_the_end_of_a_cancelled_stream():
    got = ""
    for path, body in STREAMS:
        got += f"{path}\n"
        for line in cancelled(path, body):
            line = re.sub(r'"sequence_number":\d+', '"sequence_number":0', normal(line))
            got += re.sub(r'"output":\[.*?\],"instructions"', '"output":[],"instructions"', line) + "\n"
    check_text("stream-errors", got)


if __name__ == "__main__":
    main()
