"""Ports and addresses: is one free, does one answer, has one moved? Many call it."""

import concurrent.futures
import contextlib
import functools
import os
import socket
import threading
import time

# What a client of HTTP/2 says first: its preface, and settings that change nothing.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4"  # the kind of a frame, its fourth byte


def is_free(port):
    """Says whether a server could listen on the port."""
    with socket.socket() as probe:
        # As gRPC binds: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def answers(address, seconds=5):
    """Says whether a task listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except OSError:
        return False
    return True


def speaks(address):
    """Says whether gRPC answers at host:port: it does not in a task that is stopped.

    Nor does another program: a server of HTTP/2 begins with a frame of its settings.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 5) as connection:
            connection.sendall(GREETING)
            return connection.recv(9)[3:4] == SETTINGS
    except OSError:
        return False


def refuses(address):
    """Says whether the host is there, and nothing listens at this port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def unreachable(hosts, test=None):
    """Returns the addresses of which `test(address)` fails, all tried at the same time.

    By default it asks whether anything accepts a connection there.
    """
    test = test or functools.partial(answers, seconds=2)
    with concurrent.futures.ThreadPoolExecutor(len(hosts) or 1) as pool:
        found = pool.map(test, hosts)
        return {a for a, there in zip(hosts, found, strict=True) if not there}


def is_known(address):
    """Says whether the name in host:port means something on this machine."""
    host, _, port = address.rpartition(":")
    try:
        return bool(socket.getaddrinfo(host.strip("[]"), int(port)))
    except OSError:
        return False


class Names(threading.Thread):
    """Looks now and then whether a task has moved to another address behind its name.

    If so it closes this process's connections to the old one. gRPC keeps a connection
    until it is told that the other end is gone, and nobody tells if a machine is lost;
    when it has none it asks for the name again, though not twice in 30 seconds.
    """

    def __init__(self, hosts, every):
        """`hosts` are the host:port of others; it looks `every` so many seconds."""
        super().__init__(daemon=True)
        self.hosts, self.every, self.known = hosts, every, {}

    def run(self):
        while True:
            for address in self.hosts:
                host, _, port = address.rpartition(":")
                try:
                    found = socket.getaddrinfo(host.strip("[]"), int(port))
                except OSError:
                    continue  # unknown for the moment
                now = {item[4][:2] for item in found}
                left = self.known.get(address, now) - now
                if left:
                    _close(left)
                self.known[address] = now
            time.sleep(self.every)


def _close(peers):
    """Closes the connections of this process to these (address, port)."""
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError, ValueError):  # no socket, or without a peer
            one = socket.socket(fileno=int(number))
            try:
                host, port = one.getpeername()[:2]
                # An IPv4 address is usually written as an IPv6 one: ::ffff:1.2.3.4
                if (host.removeprefix("::ffff:"), port) in peers:
                    one.shutdown(socket.SHUT_RDWR)
            finally:
                one.detach()  # it stays open: it is gRPC's
