"""A server whose replies are wrong, for the client of the operator's commands. The first part of the path
of the URL says how: /cut, /text, /html, /big, /escape, /types, /slow, /deep, /refuse. Prints its port."""
import json
import socket
import sys
import threading


def reply(status, body, kind="application/json", extra=""):
    return (f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n").encode() + body


EVIL = "\x1b]0;owned\x07\x1b[2Jm\u009b31mx\nY"
STATUS = {"version": EVIL, "state": EVIL, "models": [{"id": EVIL, "state": "ready", "expires_ms": 1e300, "error": EVIL,
          "memory": {"total": -1}, "devices": [{"name": EVIL}, {"name": 3}]}, 7, None], "calls": [{"id": EVIL}],
          "requests": {"rejected": {EVIL: 3}}, "settings": {EVIL: {"value": EVIL, "effective": [EVIL], "from": EVIL}},
          "data": [{"id": EVIL, "aliases": [EVIL, 1], "status": {"value": EVIL * 50}}], "uptime_s": 1e308, "pid": "x"}


def answer(kind, c):
    if kind == "cut":
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    elif kind == "text":
        c.sendall(b"SSH-2.0-OpenSSH_9\r\n")
    elif kind == "html":
        c.sendall(reply("200 OK", b"<html>hello</html>", "text/html"))
    elif kind == "big":
        c.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            for _ in range(200):
                c.sendall(b"[" * (1 << 20))
        except OSError:
            pass
    elif kind == "escape":
        c.sendall(reply("200 OK", json.dumps(STATUS).encode()))
    elif kind == "types":
        c.sendall(reply("200 OK", b'{"models":{},"data":3,"status":[],"settings":"x","cancelled":{}}'))
    elif kind == "deep":
        c.sendall(reply("200 OK", b'{"models":' + b"[" * 100000 + b"]" * 100000 + b"}"))
    elif kind == "refuse":
        c.sendall(reply("403 Forbidden", json.dumps({"error": {"message": EVIL + "no" * 2000}}).encode()))
    elif kind == "slow":
        threading.Event().wait(600)


def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        more = c.recv(65536)
        if not more:
            return
        head += more
    try:
        answer(head.split(b"/")[1].split(b" ")[0].decode(), c)
    finally:
        c.close()


s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(64)
print(s.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
