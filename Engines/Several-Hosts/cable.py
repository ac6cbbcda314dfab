"""A slow cable from a host to the switch: what enters at one end leaves later.

    python cable.py PROCESS DEVICE SECONDS BITS

makes DEVICE in this network namespace and eth0 in that of PROCESS. Both are of the kind
TAP, where a program reads and writes the frames. It passes each frame on SECONDS after
it came, and at most BITS a second each way (0: no limit). Linux's netem would do this
without a program, but not every kernel has it.
"""

import ctypes
import fcntl
import importlib
import os
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
delay = importlib.import_module("delay")  # it carries packets just so

IFF_TAP = 0x0002  # linux/if_tun.h


def device(name):
    """Makes a device in this network namespace; returns a descriptor of its frames."""
    frames = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    wanted = struct.pack("16sH22x", name.encode(), IFF_TAP | delay.IFF_NO_PI)
    fcntl.ioctl(frames, delay.TUNSETIFF, wanted)
    return frames


def main():
    process, name, seconds, bits = sys.argv[1:]
    here = device(name)
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{process}/ns/net") as file:
        if libc.setns(file.fileno(), 0):
            raise OSError(
                ctypes.get_errno(), f"no way into process {process}'s network"
            )
    delay.carry(here, device("eth0"), float(seconds), float(bits) or None)


if __name__ == "__main__":
    main()
