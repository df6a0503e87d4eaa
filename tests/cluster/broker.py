"""A nats-server for tests, with its store in a folder, and a client of a few lines that speaks its protocol."""
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time

from fleet import TERN, free_port, wait_for

NATS = shutil.which("nats-server") or ("/usr/sbin/nats-server" if os.path.exists("/usr/sbin/nats-server") else None)


def is_there():
    return bool(NATS) and os.path.exists(os.path.join(os.path.dirname(TERN), "tern-nats.so"))


class Nats:
    """Restarts keep the port and the store."""

    def __init__(self, folder, name="nats", address="127.0.0.1", host=None, config=None):
        self.folder, self.name, self.address, self.host, self.port, self.p, self.config = folder, name, address, host, free_port(), None, config

    @property
    def url(self):
        return f"nats://{self.address}:{self.port}"

    def start(self):
        command = [NATS, "-js", "-a", self.address, "-p", str(self.port), "-sd", os.path.join(self.folder, self.name)]
        if self.config:
            path = os.path.join(self.folder, self.name + ".conf")
            with open(path, "w") as f:
                f.write(self.config)
            command += ["-c", path]
        if self.host:
            command = ["ip", "netns", "exec", self.host, *command]
        self.p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(os.path.join(self.folder, self.name + ".log"), "a"))
        return self

    def wait_ready(self):
        assert wait_for(lambda: Client(self).close() or True, 60), "nats-server does not start"
        return self

    def signal(self, sig):
        self.p.send_signal(sig)

    def stop(self, *_):
        """kill -9: nothing is flushed."""
        if self.p and self.p.poll() is None:
            self.p.send_signal(signal.SIGCONT)
            self.p.kill()
            self.p.wait()


class Client:
    def __init__(self, nats):
        self.s = socket.create_connection((nats.address, nats.port), 20)
        self.s.settimeout(20)
        self.f = self.s.makefile("rb")
        self.inbox, self.n = "_INBOX." + secrets.token_hex(8), 0
        if not self.f.readline().startswith(b"INFO"):
            raise OSError("no NATS")
        self.s.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n')
        while (line := self.f.readline()) != b"PONG\r\n":
            if not line:
                raise OSError("NATS closed the connection")
        self.s.sendall(f"SUB {self.inbox}.* 1\r\n".encode())

    def close(self):
        self.f.close()
        self.s.close()

    def request(self, subject, data=b""):
        self.n += 1
        reply = f"{self.inbox}.{self.n}"
        self.s.sendall(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")
        while True:
            line = self.f.readline()
            if not line:
                raise OSError("NATS closed the connection")
            words = line.decode().split()
            if words[0] == "PING":
                self.s.sendall(b"PONG\r\n")
            if words[0] not in ("MSG", "HMSG"):
                continue
            body = self.f.read(int(words[-1]) + 2)[:-2]
            if words[0] == "HMSG":
                if b"503" in body[:40]:
                    raise OSError("no responders")
                body = body[int(words[-2]):]
            if words[1] == reply:
                return body

    def js(self, api, **body):
        return json.loads(self.request("$JS.API." + api, json.dumps(body).encode() if body else b""))

    def subjects(self, stream):
        """{subject: messages} of a stream."""
        return self.js(f"STREAM.INFO.{stream}", subjects_filter=">")["state"].get("subjects") or {}

    def n_messages(self, stream):
        return self.js(f"STREAM.INFO.{stream}")["state"]["messages"]


def tenant_token(name):
    """Of a subject, as in docs/protocol.md: FNV-1a of 64 bits, twice."""
    out = ""
    for h in (0xCBF29CE484222325, 0x84222325CBF29CE4):
        for c in name.encode():
            h = (h ^ c) * 0x100000001B3 & (1 << 64) - 1
        out += f"{h:016x}"
    return out


def wait_streams(nats, seconds=60):
    """Until a gateway has made the streams."""
    def there():
        c = Client(nats)
        try:
            return c.n_messages("tern-jobs") >= 0 and c.n_messages("tern-answers") >= 0
        finally:
            c.close()
    return wait_for(there, seconds)
