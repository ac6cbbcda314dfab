"""Ports and addresses: is one free, does one answer, has one moved? Many call it.

python cluster/ports.py 3          prints three free ports
python cluster/ports.py 3 2222     prints 2222 2223 2224, or says which is in use
python cluster/ports.py up [3]     first, in a network of its own: switches loopback on
"""

import concurrent.futures
import ctypes
import fcntl
import functools
import os
import random
import socket
import struct
import sys
import threading
import time

NEWUSER, NEWNET = 0x10000000, 0x40000000  # linux/sched.h: namespaces of one's own
# Below the range from which the system picks ports for connections.
DRAWN = range(15000, 32000)
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
        try:
            with socket.socket(fileno=os.dup(int(number))) as one:
                host, port = one.getpeername()[:2]
                # An IPv4 address is usually written as an IPv6 one: ::ffff:1.2.3.4
                if (host.removeprefix("::ffff:"), port) in peers:
                    one.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            pass  # no socket, or without a peer


def free_ports(count, base=None):
    """Returns `count` free ports: from `base` on, or any.

    Raises ValueError when one of those that were asked for is taken.
    """
    if base is None:
        found = []
        while len(found) < count:
            port = random.choice(DRAWN)
            if port not in found and is_free(port):
                found.append(port)
        return found
    if not 0 < base <= 65536 - count:
        raise ValueError(
            f"BASE_PORT={base} is not a port with {count - 1} more above it"
        )
    for port in range(base, base + count):
        if not is_free(port):
            raise ValueError(f"BASE_PORT={base}: port {port} is in use")
    return range(base, base + count)


def leave_the_network():
    """Linux: moves this process, and all that it starts, to a network of its own.

    Anyone who can connect to a port of TensorFlow can run code as this user. Returns
    whether the system gives such a network to this user. Some give one in which nothing
    may be switched on, and there is no way back: a child, which goes, tries it first.
    """
    child = os.fork()
    if not child:
        try:
            _leave()
            os._exit(0 if carries() else 1)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        return False
    try:
        _leave()
    except OSError:  # the child's counts still, and this user may have no more
        return False
    return True


def _leave():
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(NEWNET | (NEWUSER if user else 0)):
        raise OSError("no network of its own")
    if user:  # it stays the user that it is
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    loopback_up()


def carries():
    """Says whether localhost carries a connection, as the tasks of one machine need."""
    try:
        with socket.create_server(("localhost", 0)) as server:
            return answers(f"localhost:{server.getsockname()[1]}")
    except OSError:
        return False


def loopback_up():
    """Linux: switches the loopback interface on. Raises OSError if it cannot."""
    set_flags, up_and_running = 0x8914, 0x1 | 0x40  # linux/sockios.h, linux/if.h
    request = struct.pack("16sh14x", b"lo", up_and_running)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, request)


if __name__ == "__main__":
    try:
        arguments = sys.argv[1:]
        if arguments[:1] == ["up"]:
            loopback_up()
            del arguments[0]
            if not carries():
                raise OSError("loopback is on, and carries nothing")
        if arguments:
            print(*free_ports(*map(int, arguments)))
    except ValueError as error:
        print(f"run.sh: {error}", file=sys.stderr)
        sys.exit(2)
