"""A hub on this machine that speaks the protocol of huggingface.co: the list of a model's files, HEAD and GET of
files with redirects of large ones to another host (another port), ETag, Range, tokens - and the failures that a
network has: cut connections, busy servers, wrong bytes, servers without ranges."""
import hashlib
import http.server
import json
import random
import socketserver
import threading
import time
import urllib.parse


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, commit="a" * 40, large=1000):
        self.files, self.commit, self.large = files, commit, large
        self.more = []      # entries of the list that are no files

    def is_large(self, name):
        return len(self.files[name]) >= self.large

    def sum(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if self.is_large(name) else git_sha1(data)


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass                # a client that was killed


class Hub:
    def __init__(self):
        self.repos = {}
        self.lock = threading.Lock()
        self.main = Server(("127.0.0.1", 0), self.handler(True))
        self.cdn = Server(("127.0.0.1", 0), self.handler(False))
        for s in (self.main, self.cdn):
            threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = "http://127.0.0.1:%d" % self.main.server_port
        self.cdn_url = "http://127.0.0.1:%d" % self.cdn.server_port
        self.reset()

    def reset(self):
        self.log = []       # (host, method, path, range, authorization)
        self.blobs = True   # the list has sizes and checksums
        self.token = None   # needed by the hub
        self.cut = 0        # connections that end after a few bytes
        self.busy = []      # (status, Retry-After) of the next requests
        self.ranges = True
        self.wrong = set()  # names whose bytes are not those of their checksum
        self.pause = 0      # seconds between pieces of 32 KB
        self.expire = 0     # requests to the other host that are refused with 403
        self.claim = {}     # name: size in the list
        self.served = 0     # bytes of files
        self.random = random.Random(7)

    def handler(hub, is_main):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def log_message(self, *args):
                pass

            def reply(self, status, headers=(), body=b""):
                self.send_response(status)
                for k, v in headers:
                    self.send_header(k, v)
                if not any(k == "Content-Length" for k, v in headers):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_HEAD(self):
                self.answer()

            def do_GET(self):
                self.answer()

            def answer(self):
                url = urllib.parse.urlsplit(self.path)
                path = urllib.parse.unquote(url.path)
                auth = self.headers.get("Authorization")
                with hub.lock:
                    hub.log.append(("hub" if is_main else "cdn", self.command, path, self.headers.get("Range"), auth))
                    busy = hub.busy.pop(0) if hub.busy else None
                if busy:
                    return self.reply(busy[0], [("Retry-After", busy[1])] if busy[1] else [])
                if is_main and hub.token and auth != "Bearer " + hub.token:
                    return self.reply(401, [("X-Error-Message", "Invalid username or password.")])
                if is_main and path.startswith("/api/models/"):
                    return self.list(path[len("/api/models/"):], url.query)
                if is_main and "/resolve/" in path:
                    return self.file(*path[1:].split("/resolve/", 1))
                if not is_main:
                    return self.cdn(path)
                self.reply(404)

            def list(self, rest, query):
                name, _, rev = rest.partition("/revision/")
                repo = hub.repos.get(name)
                if not repo or rev not in ("main", "v1", "refs/pr/1", repo.commit):
                    return self.reply(404, [("X-Error-Message", "Repository not found")])
                files = []
                for f in repo.files:
                    entry = {"rfilename": f}
                    if hub.blobs and "blobs=true" in query:
                        size = hub.claim.get(f, len(repo.files[f]))
                        entry["size"] = size
                        entry["blobId"] = git_sha1(repo.files[f])
                        if repo.is_large(f):
                            entry["lfs"] = {"sha256": repo.sum(f), "size": size, "pointerSize": 134}
                    files.append(entry)
                body = json.dumps({"id": name, "sha": repo.commit, "siblings": files + repo.more}).encode()
                self.reply(200, [("Content-Type", "application/json")], body)

            def file(self, name, rest):
                repo = hub.repos.get(name)
                rev, _, f = rest.partition("/")
                if not repo or f not in repo.files:
                    return self.reply(404, [("X-Error-Message", "Entry not found")])
                size = hub.claim.get(f, len(repo.files[f]))
                head = [("X-Repo-Commit", repo.commit)]
                if repo.is_large(f):
                    head += [("X-Linked-Etag", '"%s"' % repo.sum(f)), ("X-Linked-Size", str(size)),
                             ("Location", "%s/%s/%s?signature=abc" % (hub.cdn_url, name, urllib.parse.quote(f)))]
                    return self.reply(302, head)
                self.bytes(repo.files[f], f, head + [("ETag", '"%s"' % repo.sum(f))])

            def cdn(self, path):
                org, name, f = path[1:].split("/", 2)
                with hub.lock:
                    expired = hub.expire > 0
                    hub.expire -= expired
                if expired:
                    return self.reply(403)
                self.bytes(hub.repos[org + "/" + name].files[f], f, [("ETag", '"abc"')])

            def bytes(self, data, name, head):
                first, last, status = 0, len(data) - 1, 200
                want = self.headers.get("Range")
                if want and hub.ranges:
                    first, _, end = want[len("bytes="):].partition("-")
                    first, last, status = int(first), min(int(end or last), last), 206
                    head = head + [("Content-Range", "bytes %d-%d/%d" % (first, last, len(data)))]
                if name in hub.wrong:
                    data = bytes([data[0] ^ 1]) + data[1:]
                body = data[first:last + 1]
                self.send_response(status)
                for k, v in head:
                    self.send_header(k, v)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                with hub.lock:
                    cut = hub.cut > 0
                    hub.cut -= cut
                    stop = hub.random.randrange(len(body)) if cut and body else len(body)
                for i in range(0, stop, 32768):
                    piece = body[i:min(i + 32768, stop)]
                    self.wfile.write(piece)
                    with hub.lock:
                        hub.served += len(piece)
                    if hub.pause:
                        time.sleep(hub.pause)
                if cut:
                    self.close_connection = True

        return Handler

    def gets(self, host="cdn"):
        with self.lock:
            return [x for x in self.log if x[0] == host and x[1] == "GET" and "/api/" not in x[2]]
