"""Free ports of this host; does an address answer? run.sh and others call it.

python cluster/ports.py 3          prints three free ports
python cluster/ports.py 3 2222     prints 2222 2223 2224, or says which is in use
python cluster/ports.py up [3]     first, in a network of its own: switches loopback on
"""

import random
import socket
import struct
import sys

# Below the range from which the system picks ports for connections.
DRAWN = range(15000, 32000)
# What a client of HTTP/2 says first: its preface, and settings that change nothing.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


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
    """Says whether gRPC answers at host:port: it does not in a task that is stopped."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 5) as connection:
            connection.sendall(GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False


def is_known(address):
    """Says whether the name in host:port means something on this machine."""
    host, _, port = address.rpartition(":")
    try:
        return bool(socket.getaddrinfo(host.strip("[]"), int(port)))
    except OSError:
        return False


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


def loopback_up():
    """Linux: switches the loopback interface on. Raises OSError if it cannot."""
    import fcntl

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
        if arguments:
            print(*free_ports(*map(int, arguments)))
    except ValueError as error:
        print(f"run.sh: {error}", file=sys.stderr)
        sys.exit(2)
