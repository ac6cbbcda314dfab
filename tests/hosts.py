"""Hosts of this machine whose cables can be pulled: network namespaces round a router.

Needs Linux and root; `missing` says whether they can be had.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

import launch


def missing() -> str:
    """Returns why there are no such hosts here, "" if they can be had."""
    return (
        "hosts take root" if os.geteuid() else launch.without(["ip", "netns", "list"])
    )


class Hosts(contextlib.ExitStack):
    """One host for each name; `inside[name]` is the command that runs something on it.

    Every host reaches every other at its `address[name]`, until its cable is cut.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        of = {name: f"guide-{os.getpid()}-{id(self)}-{name}" for name in names}
        self.router = f"guide-{os.getpid()}-{id(self)}-router"
        self.of = of
        self.inside = {name: ["ip", "netns", "exec", of[name]] for name in names}
        self.address = {name: f"10.98.{k}.2" for k, name in enumerate(names, 1)}

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
        return self

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
