"""A stub server for tests of `tern load`; every token is "x". Prints its port.

usage: load_stub.py KIND
KIND: good, refuse (every second request is answered 429), cut (every second stream is truncated)"""
import http.server
import itertools
import json
import sys
import time

kind = sys.argv[1]
cancelled = set()
count = itertools.count()


class Stub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        half = len(data) // 2                            # two chunks: an event may arrive in pieces
        for part in data[:half], data[half:]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()

    def do_GET(self):
        self.reply(200, {"data": [{"id": "stub"}]})

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.reply(200, {"tokens": ask["content"].split() * 2})
        if self.path.endswith("/cancel"):
            cancelled.add(self.path.split("/")[-2])
            return self.reply(200, {})
        odd = next(count) % 2
        if kind == "refuse" and odd:
            return self.reply(429, {"error": {"code": "queue_full", "message": "full"}})
        n = ask["max_tokens"]
        words = sum(len(m["content"].split()) for m in ask["messages"]) if "messages" in ask else len(ask["prompt"])
        usage = {"prompt_tokens": words, "completion_tokens": n}
        if not ask.get("stream"):
            return self.reply(200, {"choices": [{"message": {"content": "x" * n}}], "usage": usage})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(n):
            if self.headers["X-Correlation-Id"] in cancelled:
                usage["completion_tokens"] = i
                break
            if kind == "cut" and odd and i == n // 2:
                self.close_connection = True
                return
            self.event(json.dumps({"choices": [{"delta": {"content": "x"}, "text": "x"}]}))
            time.sleep(0.002)
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass                                         # the client disconnected


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(("127.0.0.1", 0), Stub)
print(server.server_address[1], flush=True)
server.serve_forever()
