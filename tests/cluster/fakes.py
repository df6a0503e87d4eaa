"""Workers for tests that answer what a test wants: HTTP servers of a few lines that a gateway takes for workers."""
import http.server
import json
import socket
import threading


class Fake:
    """post(body) → (status, bytes), or None: the connection is closed. While `awake` is not set, nothing is answered."""

    def __init__(self, post):
        fake = self
        self.post, self.seen, self.awake = post, [], threading.Event()
        self.awake.set()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body):
                fake.awake.wait()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.reply(200, json.dumps({"v": 1, "instance": "fake-1", "version": "0", "draining": False, "store": False, "devices": [], "models": [
                    {"model": {"id": "m", "aliases": [], "status": {"value": "loaded"}}, "running": 0, "waiting": 0, "kv_free": 1}]}).encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.seen.append(body)
                r = fake.post(body)
                if r:
                    self.reply(*r)
                else:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self, *_):
        self.awake.set()
        self.server.shutdown()
        self.server.server_close()


def error(status, code):
    return status, json.dumps({"error": {"message": code, "type": "server_error", "param": None, "code": code}}).encode()
