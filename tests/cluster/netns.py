"""Hosts as network namespaces on one machine, joined by a bridge. Needs root and ip netns."""
import os
import subprocess


class Hosts:
    """OSError or CalledProcessError: this machine does not allow it."""

    def __init__(self, n):
        self.tag, self.names = f"d{os.getpid() % 10000}", []
        self.net = f"10.{77 + os.getpid() % 100}.{os.getpid() % 250}"
        try:
            self.ip("link", "add", f"{self.tag}br", "type", "bridge")
            self.ip("addr", "add", f"{self.net}.1/24", "dev", f"{self.tag}br")
            self.ip("link", "set", f"{self.tag}br", "up")
            for i in range(n):
                self.add(i)
        except (OSError, subprocess.CalledProcessError):
            self.remove()
            raise

    @staticmethod
    def ip(*args, check=True):
        return subprocess.run(["ip", *args], capture_output=True, text=True, check=check)

    def add(self, i):
        name = f"{self.tag}h{i}"
        self.ip("netns", "add", name)
        self.names.append(name)
        self.ip("link", "add", f"{self.tag}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
        self.ip("link", "set", f"{self.tag}v{i}", "master", f"{self.tag}br")
        self.ip("link", "set", f"{self.tag}v{i}", "up")
        self.ip("-n", name, "addr", "add", f"{self.net}.{i + 2}/24", "dev", "eth0")
        self.ip("-n", name, "link", "set", "eth0", "up")
        self.ip("-n", name, "link", "set", "lo", "up")

    def address(self, i):
        return f"{self.net}.{i + 2}"

    def set_link(self, i, up):
        self.ip("link", "set", f"{self.tag}v{i}", "up" if up else "down")

    def remove(self):
        for name in self.names:
            self.ip("netns", "del", name, check=False)
        self.ip("link", "del", f"{self.tag}br", check=False)
