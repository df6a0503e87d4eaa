#!/usr/bin/env python3
"""Records what coding agents send. usage: tests/agents/record.py URL FOLDER [TEXT=NAME ...]

A proxy between agents and the server at URL: it prints its own address. The first part of a path is the agent's name and is not
passed on. On SIGTERM it writes FOLDER/AGENT.json: the requests of each agent in their order, every field and every tool, without
what belongs to one machine or one run (ids, times, paths: TEXT is replaced by NAME) and with long texts cut. Headers are left
out, except those that say how a body is meant: no key is recorded."""
import http.client, http.server, json, os, re, signal, sys, threading, urllib.parse

KEEP = ("accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta")
TEXT = 80                        # characters that are kept of a text
CHANGES = [
    (r"\b\d{10,13}\b(?!-)(?<!-\d{12})", "0"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "00000000-0000-0000-0000-000000000000"),
    (r"\b[0-9a-f]{32,64}\b", "0" * 32),
    (r"\b((?:call|resp|msg|fc|rs|toolu|ses|prt)_)(?=[0-9A-Za-z]*[0-9])[0-9A-Za-z-]{8,}", r"\1ID"),
    (r"\b\d{4}-\d\d-\d\d(T[0-9:.]+Z?)?", "2026-01-01"),
    (r"(?:/[\w.@-]+){2,}", "/PATH"),
    (r"\bChunk ID: \w+", "Chunk ID: 0"),
    (r"\bWall time: [0-9.]+", "Wall time: 0"),
    (r"\b(cch|cc_version)=[0-9A-Za-z.]+", r"\1=0"),
]
requests, places, lock = {}, [], threading.Lock()


def clean_text(text, most=TEXT):
    for a, b in places:
        text = text.replace(a, b)
    for pattern, to in CHANGES:
        text = re.sub(pattern, to, text)
    return text if len(text) <= most else text[:most] + "\u2026"


def clean(value, key=""):
    """A body with the same fields; tools keep their schemas, and of their descriptions the beginning."""
    if isinstance(value, dict):
        return {k: clean(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [clean(v, key) for v in value]
    if not isinstance(value, str):
        return 0 if type(value) is int and value > 1 << 40 else value      # a time in milliseconds
    if value[:1] == "{" and value[-1:] == "}":             # JSON as a text: arguments of a call, metadata
        try:
            return json.dumps(clean(json.loads(value)))
        except ValueError:
            pass
    if key in ("pattern", "$schema", "type", "role", "name", "format", "const"):
        return value
    return clean_text(value, TEXT // 2 if key == "description" else TEXT)


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self):
        agent, _, path = self.path.lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.command == "POST":
            kept = {k: self.headers[k] for k in KEEP if k in self.headers}
            with lock:
                requests.setdefault(agent, []).append({"path": "/" + path, "headers": kept, "body": clean(json.loads(body))})
        to = http.client.HTTPConnection(server.hostname, server.port, timeout=120)
        to.request(self.command, "/" + path, body, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")})
        a = to.getresponse()
        self.send_response(a.status)
        for k, v in a.getheaders():
            if k.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(k, v)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while self.command != "HEAD" and (part := a.read1(65536)):
            self.wfile.write(part)
            self.wfile.flush()

    do_GET = do_POST = do_HEAD = do_DELETE = pass_on

    def log_message(self, *_):
        pass


def write(*_):
    os.makedirs(sys.argv[2], exist_ok=True)
    for agent, list_ in requests.items():
        with open(f"{sys.argv[2]}/{agent}.json", "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in list_) + "\n]\n")
    os._exit(0)


server = urllib.parse.urlsplit(sys.argv[1])
places = [a.rsplit("=", 1) for a in sys.argv[3:]]
proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
signal.signal(signal.SIGTERM, write)
print(f"http://127.0.0.1:{proxy.server_address[1]}", flush=True)
proxy.serve_forever()
