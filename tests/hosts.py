"""Hosts of this machine whose cables can be pulled: network namespaces round a router.

A host has a name that all of them know, and may move to another address. Needs Linux
and root; `missing` says whether they can be had.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess

import launch


def missing() -> str:
    """Returns why there are no such hosts here, "" if they can be had."""
    if os.geteuid():
        return "hosts take root"
    rules = ["sh", "-c", "nft list ruleset"]
    return launch.without(["ip", "netns", "list"]) or launch.without(rules)


class Hosts(contextlib.ExitStack):
    """One host for each name; `inside[name]` is the command that runs something on it.

    Every host reaches every other at its `address[name]`, until its cable is cut, and
    by its name, which stands in a hosts file of its own.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        of = {name: f"guide-{os.getpid()}-{id(self)}-{name}" for name in names}
        self.router = f"guide-{os.getpid()}-{id(self)}-router"
        self.of = of
        self.inside = {name: ["ip", "netns", "exec", of[name]] for name in names}
        self.address = {name: f"10.98.{k}.2" for k, name in enumerate(names, 1)}
        # What `ip netns exec` puts in the place of /etc/hosts.
        self.files = [pathlib.Path("/etc/netns", of[name], "hosts") for name in names]

    def __enter__(self) -> Hosts:
        for space in [self.router, *self.of.values()]:
            ip(f"netns add {space}")
            self.callback(ip, f"netns delete {space}")
        forward = "echo 1 >/proc/sys/net/ipv4/ip_forward"
        command = ["ip", "netns", "exec", self.router, "sh", "-c", forward]
        subprocess.run(command, check=True)
        for k, (name, space) in enumerate(self.of.items(), 1):
            ip(f"link add to{k} netns {self.router} type veth peer cable netns {space}")
            ip(f"-n {self.router} address add 10.98.{k}.1/24 dev to{k}")
            ip(f"-n {self.router} link set to{k} up")
            ip(f"-n {space} link set lo up")
            ip(f"-n {space} address add {self.address[name]}/24 dev cable")
            ip(f"-n {space} link set cable up")
            ip(f"-n {space} route add default via 10.98.{k}.1")
        for file in self.files:
            file.parent.mkdir(parents=True)
            self.callback(shutil.rmtree, file.parent)
        self._tell()
        return self

    def _tell(self) -> None:
        lines = ["127.0.0.1 localhost"]
        lines += [f"{address} {name}" for name, address in self.address.items()]
        for file in self.files:
            file.write_text("\n".join(lines) + "\n")  # in place: it is mounted

    def move(self, name: str) -> None:
        """Gives a host another address behind its name; to the old one all is lost."""
        old, space = self.address[name], self.of[name]
        self.address[name] = f"{old.rpartition('.')[0]}.{int(old[-1]) + 1}"
        ip(f"-n {self.router} rule add from all to {old} blackhole")
        ip(f"-n {space} address delete {old}/24 dev cable")
        ip(f"-n {space} address add {self.address[name]}/24 dev cable")
        ip(f"-n {space} route add default via {old.rpartition('.')[0]}.1")
        self._tell()

    def wall(self, name: str, port: int, other: str) -> None:
        """Drops what begins a connection from `other` to a port of a host."""
        for words in (
            "table inet wall",
            "chain inet wall input { type filter hook input priority 0; }",
            f"rule inet wall input ip saddr {self.address[other]} tcp dport {port} "
            "tcp flags & (syn | ack) == syn drop",
        ):
            command = [*self.inside[name], "nft", f"add {words}"]
            subprocess.run(command, check=True)

    def cut(self, name: str, other: str | None = None) -> None:
        """Drops all packets of a host, or those to and from another, without a word."""
        self._rules("add", name, other)

    def mend(self, name: str, other: str | None = None) -> None:
        """Lets them through again."""
        self._rules("delete", name, other)

    def _rules(self, what: str, name: str, other: str | None) -> None:
        one = self.address[name]
        peer = self.address[other] if other else "all"
        for words in (f"from {one} to {peer}", f"from {peer} to {one}"):
            ip(f"-n {self.router} rule {what} {words} blackhole")


def ip(words: str) -> None:
    """Runs `ip`; its own message is on stderr if it refuses."""
    subprocess.run(["ip", *words.split()], check=True)
