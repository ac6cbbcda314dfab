"""A slow wire: two network namespaces, and what one sends the other gets later.

A network device of the kind TUN gives its packets to a process. This process has one
in either namespace, and holds every packet for so many seconds before it passes it on;
there is no limit on how many are on their way, nor, without BITS, on how many a second
it takes. link.py starts it, as root; star.py has more than two.

    python benchmarks/delay.py NAMESPACE NAMESPACE SECONDS [BITS PER SECOND]
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import selectors
import socket
import struct
import sys
import time

DEVICE = "delay"  # the name of the network device in both namespaces
TUNSETIFF = 0x400454CA  # linux/if_tun.h
SIOCSIFTXQLEN = 0x8943  # linux/sockios.h
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET = 65536  # bytes, the largest there can be
# Packets that may wait for this process. With the usual 500 a vector of 4 MB lost some
# of its packets, and training was five times as slow.
QUEUE = 20_000


def device(namespace):
    """Makes the device in a namespace; returns the descriptor of its packets."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"no way into namespace {namespace}")
    packets = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    wanted = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(packets, TUNSETIFF, wanted)
    longer = struct.pack("16si20x", DEVICE.encode(), QUEUE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFTXQLEN, longer)
    return packets


def carry(one, other, seconds, bits=None):
    """Passes packets on between two devices, `seconds` after they came; never ends."""
    to = {one: other, other: one}
    route(to, lambda sender, _: to[sender], seconds, bits)


def route(devices, receiver, seconds, bits=None):
    """Passes on what each of the devices gets, `seconds` after it came; never ends.

    `receiver(device, packet)` says to which device a packet goes, None: to none. With
    `bits` a packet occupies the wire to its receiver for 8 len(packet) / bits seconds,
    and those behind it wait. None is ever dropped for that.
    """
    free = dict.fromkeys(devices, 0.0)  # when the wire to each takes the next packet
    selector = selectors.DefaultSelector()
    for one in devices:
        selector.register(one, selectors.EVENT_READ)
    waiting, count = [], itertools.count()  # a heap: due, number, to whom, packet
    while True:
        pause = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(pause):
            packet, now = os.read(key.fd, PACKET), time.monotonic()
            other = receiver(key.fd, packet)
            if other is None:
                continue
            if bits:
                free[other] = max(free[other], now) + 8 * len(packet) / bits
                now = free[other]
            heapq.heappush(waiting, (now + seconds, next(count), other, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # it is down: a packet that is lost
                os.write(other, packet)


if __name__ == "__main__":
    devices = [device(namespace) for namespace in sys.argv[1:3]]
    print("both are there", flush=True)
    carry(*devices, *map(float, sys.argv[3:5]))
