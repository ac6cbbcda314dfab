"""A slow wire: two network namespaces, and what one sends the other gets later.

A network device of the kind TUN gives its packets to a process. This process has one
in either namespace, and holds every packet for so many seconds before it passes it on;
there is no limit on how many are on their way, nor, without BITS, on how many a second
it takes. link.py starts it, as root.

    python benchmarks/delay.py NAMESPACE NAMESPACE SECONDS [BITS PER SECOND]
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import selectors
import struct
import sys
import time

DEVICE = "delay"  # the name of the network device in both namespaces
TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET = 65536  # bytes, the largest there can be


def device(namespace):
    """Makes the device in a namespace; returns the descriptor of its packets."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"no way into namespace {namespace}")
    packets = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    wanted = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(packets, TUNSETIFF, wanted)
    return packets


def carry(one, other, seconds, bits=None):
    """Passes packets on between two devices, `seconds` after they came; never ends.

    With `bits` a packet occupies its direction of the wire for 8 len(packet) / bits
    seconds, and those behind it wait. None is ever dropped for that.
    """
    free = {one: 0.0, other: 0.0}  # when the wire towards each takes the next packet
    selector = selectors.DefaultSelector()
    selector.register(one, selectors.EVENT_READ, other)
    selector.register(other, selectors.EVENT_READ, one)
    waiting, count = [], itertools.count()  # a heap: due, number, to whom, packet
    while True:
        pause = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(pause):
            packet, now = os.read(key.fd, PACKET), time.monotonic()
            if bits:
                free[key.data] = max(free[key.data], now) + 8 * len(packet) / bits
                now = free[key.data]
            heapq.heappush(waiting, (now + seconds, next(count), key.data, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, receiver, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # it is down: a packet that is lost
                os.write(receiver, packet)


if __name__ == "__main__":
    devices = [device(namespace) for namespace in sys.argv[1:3]]
    print("both are there", flush=True)
    carry(*devices, *map(float, sys.argv[3:5]))
