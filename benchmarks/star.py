"""Hosts with a cable each: network namespaces of this machine round a router.

Every host reaches every other, and what one sends another goes through both cables. A
cable has either a rate or a delay:

    rate    bits a second, each way: Linux's tbf (token bucket filter) at both ends
    delay   seconds from host to host, one way: this program is the router, and holds
            every packet, see delay.py

With neither a cable is as fast as the machine. Needs Linux, root, and the commands `ip`
and `tc` of iproute2. predictions.py and clusters.py use it. Alone it prints what a star
really has:

    sudo .venv/bin/python benchmarks/star.py --bits 100e6
    sudo .venv/bin/python benchmarks/star.py --seconds 0.01
"""

import contextlib
import os
import shutil
import subprocess
import sys

import delay
import runs

NETWORK = "10.97"
CABLE = "cable"  # the network device of a host whose cable has a rate
BURST = 1e-3  # seconds of the full rate that a token bucket lets through at once
PACKET = 2000  # bytes that a bucket holds at least: more than one packet
QUEUE = 64 << 20  # bytes that may wait for a cable, so that nothing is dropped
SENT = 20_000_000  # bytes by which a star's rate is measured


def check():
    """Ends the program with a sentence if there can be no such hosts here."""
    if not sys.platform.startswith("linux") or os.geteuid():
        runs.fail("it makes network namespaces, which takes Linux and root", 3)
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    if missing or not os.path.exists("/dev/net/tun"):
        runs.fail("it needs `ip` and `tc` (iproute2), and /dev/net/tun", 3)


class Star:
    """Hosts, until the `with` ends.

    `address[name]` is that of a host, `inside[name]` how a command begins that runs on
    it.
    """

    def __init__(self, names, bits=None, seconds=0.0):
        """`bits` a second of a cable, or `seconds` from host to host, not both."""
        if bits and seconds:
            raise ValueError("a cable has a rate or a delay, not both")
        self.bits, self.seconds, self.stack = bits, seconds, None
        self.spaces = {name: f"star-{os.getpid()}-{name}" for name in names}
        self.inside = {n: ["ip", "netns", "exec", s] for n, s in self.spaces.items()}
        # With delay one network for all; else each host has one with the router.
        form = "{}.0.{}" if seconds else "{}.{}.2"
        self.address = {n: form.format(NETWORK, k) for k, n in enumerate(names, 1)}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for space in self.spaces.values():
                self._space(stack, space)
            (self._delayed if self.seconds else self._limited)(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    @staticmethod
    def _space(stack, space):
        run("ip", "netns", "add", space)
        stack.callback(run, "ip", "netns", "del", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        # See link.py: every Linux has it, and bbr would keep packets apart.
        file = "/proc/sys/net/ipv4/tcp_congestion_control"
        run("ip", "netns", "exec", space, "sh", "-c", f"echo reno >{file}")

    def _limited(self, stack):
        router = f"star-{os.getpid()}-router"
        self._space(stack, router)
        forward = "echo 1 >/proc/sys/net/ipv4/ip_forward"
        run("ip", "netns", "exec", router, "sh", "-c", forward)
        for k, (name, space) in enumerate(self.spaces.items(), 1):
            pair = ["type", "veth", "peer", CABLE, "netns", space]
            run("ip", "link", "add", f"to{k}", "netns", router, *pair)
            here = router, f"to{k}", f"{NETWORK}.{k}.1"
            there = space, CABLE, self.address[name]
            for where, device, address in (here, there):
                run("ip", "-n", where, "addr", "add", f"{address}/24", "dev", device)
                run("ip", "-n", where, "link", "set", device, "up")
                if self.bits:
                    bucket = int(max(self.bits / 8 * BURST, PACKET))
                    rate = ["rate", f"{int(self.bits)}bit", "burst", bucket]
                    add = ["qdisc", "add", "dev", device, "root", "tbf"]
                    run("tc", "-n", where, *add, *rate, "limit", QUEUE)
            route = ["route", "add", "default", "via", f"{NETWORK}.{k}.1"]
            run("ip", "-n", space, *route)

    def _delayed(self, stack):
        command = [runs.PYTHON, __file__, "router", self.seconds]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command += self.spaces.values()
        wire = stack.enter_context(runs.process(command, **pipes))
        if not wire.stdout.readline():
            reason = wire.stderr.read().strip().splitlines()[-1]
            runs.fail(f"the cables cannot be made: {reason}", 3)
        for name, space in self.spaces.items():
            address = f"{self.address[name]}/24"
            run("ip", "-n", space, "addr", "add", address, "dev", delay.DEVICE)
            run("ip", "-n", space, "link", "set", delay.DEVICE, "up")


def run(*command):
    """Runs a command of iproute2; what it says against it ends the program."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        runs.fail(f"{' '.join(map(str, command))}: {done.stderr.strip()}", 3)


def router(seconds, *spaces):
    """Is the router of delayed cables; never ends."""
    devices = [delay.device(space) for space in spaces]
    print("all are there", flush=True)

    def receiver(_, packet):
        # IPv4 only; the last number of the address, from 1, is the host's place.
        known = packet[0] >> 4 == 4 and 1 <= packet[19] <= len(devices)
        return devices[packet[19] - 1] if known else None

    delay.route(devices, receiver, float(seconds))


# --- What a star really has -----------------------------------------------------

RECEIVER = """
import socket
with socket.create_server(("", 9999)) as server:
    print("listens", flush=True)
    while True:
        connection, _ = server.accept()
        while connection.recv(1 << 20):
            pass
        connection.sendall(b"!")
"""
SENDER = """
import socket, sys, time
def send(count):
    with socket.create_connection((sys.argv[1], 9999)) as connection:
        began = time.perf_counter()
        connection.sendall(bytes(count))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return time.perf_counter() - began
print(min(send(1) for _ in range(5)), send(int(sys.argv[2])))
"""


def measure(bits=None, seconds=0.0, sent=SENT):
    """Returns (seconds of a round trip, bits/s) from a host of such a star to another.

    The round trip is the least of five, the rate that of `sent` bytes over one new
    connection of TCP.
    """
    with Star(["one", "other"], bits, seconds) as star:
        listens = [*star.inside["other"], runs.PYTHON, "-c", RECEIVER]
        pipes = {"stdout": subprocess.PIPE, "text": True}
        with runs.process(listens, **pipes) as receiver:
            receiver.stdout.readline()
            command = [*star.inside["one"], runs.PYTHON, "-c", SENDER]
            command += [star.address["other"], str(sent)]
            out = subprocess.check_output(command, text=True, timeout=300)
    trip, took = map(float, out.split())
    return trip, 8 * sent / (took - trip)


def main():
    parser = runs.Parser(__doc__)
    add = parser.add_argument
    add("--bits", type=float, help="bits a second of a cable, each way")
    add("--seconds", type=float, default=0.0, help="from host to host, one way")
    args = parser.parse_args()
    if args.bits and args.seconds:
        runs.fail("--bits and --seconds: a cable has a rate or a delay, not both")
    if (args.bits or 1) <= 0 or args.seconds < 0:
        runs.fail("--bits and --seconds are not below 0")
    check()
    trip, rate = measure(args.bits, args.seconds)
    print(f"a round trip {1000 * trip:.2f} ms, one connection {rate / 1e6:.1f} Mbit/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["router"]:
        router(*sys.argv[2:])
    runs.ends_cleanly(main)
