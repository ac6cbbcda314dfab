"""What a round costs over a slow network, in round-trip times of the link.

The ps are on one side of a link and the workers on the other: two network namespaces
of this machine, between which delay.py holds every packet for 25 or 50 ms. A round
cannot take less than one round trip: the vector down, what is pushed up. Beside it the
same with one round to a call.

    HogWild           1 worker: rounds are one after the other
    AEASGD            1 worker, T = 16
    Synchronous-SGD   2 workers, both behind the link: an update is a round of each

A round is timed from the second line that the chief prints to its last, so that what
comes between the calls is in it: lines, evaluation, checkpoints. `the calls alone` has
only the calls. The round trip is measured in the same minute, as the time in which a
connection is refused. Needs Linux and root.

    sudo .venv/bin/python benchmarks/link.py
    sudo .venv/bin/python benchmarks/link.py --delays 25 --rounds 1
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import delay
import runs

SCHEMES = {"HogWild": 1, "AEASGD": 1, "Synchronous-SGD": 2}  # and their workers
PS, WORKERS = ("ps", "10.99.0.1"), ("workers", "10.99.0.2")  # side, address
PORT = 2222  # of the ps; the namespaces are new, so that all ports are free

# How rounds are put into calls: as the example does it, ten to a call however long they
# take, one to a call. (label, the sizes of a call, its seconds), "-": as it is.
CALLS = (
    ("as it is", "-", "-"),
    ("10 to a call", "1,10", "1e9"),
    ("1 to a call", "1", "-"),
)

# What runs instead of the script: it changes two numbers, times every call, and then
# runs the script.
WRAPPER = """
import runpy, sys, time
script, sizes, seconds = sys.argv[1:4]
sys.argv[:4] = [script]
sys.path.insert(0, script.rpartition("/")[0])
from cluster import rounds
if sizes != "-":
    rounds.Calls.__init__.__defaults__ = (tuple(map(int, sizes.split(","))),)
if seconds != "-":
    rounds.CALL = float(seconds)
if "worker" in sys.argv:
    path = sys.argv[sys.argv.index("--logdir") + 1] + "/calls-"
    path += sys.argv[sys.argv.index("--task_index") + 1]
    call = rounds.Calls.call
    def timed(self, session, size):
        began = time.monotonic()
        result = call(self, session, size)
        with open(path, "a") as file:
            print(size, time.monotonic() - began, file=file)
        return result
    rounds.Calls.call = timed
runpy.run_path(script, run_name="__main__")
"""


class Link:
    """Two namespaces with a slow wire between them, until the `with` ends."""

    def __init__(self, seconds):
        """`seconds` one way."""
        self.seconds = seconds
        self.stack, self.wire = contextlib.ExitStack(), None
        self.names = {side: f"link-{os.getpid()}-{side}" for side, _ in (PS, WORKERS)}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for name in self.names.values():
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            command = [runs.PYTHON, runs.HERE / "delay.py", *self.names.values()]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.wire = stack.enter_context(
                runs.process([*command, self.seconds], text=True, **pipes)
            )
            if not self.wire.stdout.readline():
                reason = self.wire.stderr.read().strip().splitlines()[-1]
                runs.fail(f"the link cannot be made: {reason}", 3)
            for (side, address), (_, peer) in ((PS, WORKERS), (WORKERS, PS)):
                inside = ["-n", self.names[side]]
                ip(*inside, "link", "set", "lo", "up")
                ip(*inside, "addr", "add", address, "peer", peer, "dev", delay.DEVICE)
                ip(*inside, "link", "set", delay.DEVICE, "up")
                # It decides how fast the segments of a message follow each other. This
                # one every Linux has; over a link that loses nothing it is as the usual
                # one, and bbr, which some have, would keep them apart.
                file = "/proc/sys/net/ipv4/tcp_congestion_control"
                ip("netns", "exec", self.names[side], "sh", "-c", f"echo reno >{file}")
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def inside(self, side):
        """Returns how a command begins that runs on one side."""
        return ["ip", "netns", "exec", self.names[side]]

    def round_trip(self):
        """Returns the seconds of a round trip, the least of five."""
        refused = (
            "import socket, time\n"
            "began = time.perf_counter()\n"
            f"socket.socket().connect_ex(({PS[1]!r}, 9))\n"
            "print(time.perf_counter() - began)\n"
        )
        command = [*self.inside("workers"), runs.PYTHON, "-c", refused]
        return min(float(subprocess.check_output(command, text=True)) for _ in range(5))


def ip(*arguments):
    """Runs the `ip` command; what it says against it ends the program."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        runs.fail(f"ip {' '.join(arguments)}: {done.stderr.strip()}", 3)


def train(link, scheme, calls, steps, timeout):
    """Trains over the link; returns result.json, and what the clock said.

    `calls` is one of CALLS. Added: `round`, seconds of a round from the second line
    that is printed to the last, and `in_a_call`, seconds of a round in the calls of
    most rounds.
    """
    script = str(runs.REPO / scheme / runs.registry.script_of(scheme))
    command = [runs.PYTHON, "-c", WRAPPER, script, *calls[1:]]
    count = SCHEMES[scheme]
    worker_hosts = ",".join(f"{WORKERS[1]}:{PORT + i}" for i in range(count))
    logdir = tempfile.mkdtemp(prefix="benchmark-")
    command += ["--ps_hosts", f"{PS[1]}:{PORT}", "--worker_hosts", worker_hosts]
    command += ["--steps", steps, "--logdir", logdir]
    env = runs.environment(PYTHONDONTWRITEBYTECODE=1, CUDA_VISIBLE_DEVICES="")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    end = time.monotonic() + timeout
    tasks = [("ps", 0), *(("workers", index) for index in range(count))]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, logdir, ignore_errors=True)
        children = []
        for side, index in tasks:
            who = ["--job_name", side.removesuffix("s") if side != "ps" else side]
            who += ["--task_index", index]
            task = [*link.inside(side), *command, *who]
            children.append(stack.enter_context(runs.process(task, env=env, **pipes)))
        lines = [runs.Lines(child.stdout) for child in children][1]
        # The chief, worker 0, leaves last.
        while children[1].poll() is None:
            failed = [child for child in children if child.poll()]
            if failed or link.wire.poll() is not None:
                reason = (failed or [link.wire])[0].stderr.read()[-2000:]
                raise runs.Unfinished(f"{scheme} over the link: {reason}")
            if time.monotonic() > end:
                raise runs.too_slow(f"{scheme} over the link", timeout)
            time.sleep(0.1)
        if children[1].returncode:
            reason = children[1].stderr.read()[-2000:]
            raise runs.Unfinished(f"{scheme} over the link: {reason}")
        lines.join(5)
        result = json.loads(pathlib.Path(logdir, "result.json").read_text())
        result["round"] = of_lines(lines.lines)
        result["in_a_call"] = of_calls(pathlib.Path(logdir, "calls-0"))
    return result


def of_lines(lines):
    """Returns the seconds of a step between the first two lines of a log and its last.

    The first call of each size takes seconds: the graph has to be sent to the ps.
    """
    found = [(when, runs.FINAL.search(line)) for when, line in lines]
    points = [(when, int(match[1])) for when, match in found if match][1:]
    if len(points) < 2:
        raise runs.Unfinished("the chief printed too few lines to measure by")
    (began, first), (ended, last) = points[0], points[-1]
    return (ended - began) / (last - first)


def of_calls(path):
    """Returns the median seconds of a round in the calls of most rounds."""
    found = {}
    for line in path.read_text().splitlines():
        size, seconds = line.split()
        found.setdefault(int(size), []).append(float(seconds))
    return statistics.median(found[max(found)]) / max(found)


def measure(milliseconds, scheme, calls, steps, timeout):
    """Returns the seconds of a round over a link, and those of a round trip."""
    with Link(milliseconds / 1000) as link:
        trip = link.round_trip()
        result = train(link, scheme, calls, steps, timeout)
    return {
        "trips": result["round"] / trip,
        "in_a_call": result["in_a_call"] / trip,
        "round_trip": trip,
        "test_accuracy": result["test_accuracy"],
    }


def key_of(scheme, milliseconds, label):
    """Returns what a measurement is called in the JSON."""
    return f"{scheme}, {milliseconds} ms, {label}"


def jobs_of(args):
    """Returns the measurements of a round."""
    found = []
    for milliseconds in args.delays:
        for scheme in SCHEMES:
            for calls in CALLS:
                label = calls[0]
                many = label in ("as it is", "10 to a call")
                steps = 50 if args.quick else 200 if many else 100
                trips = 1.6 if many else 3.6
                cost = 18 + steps * trips * 2 * milliseconds / 1000
                found.append(
                    runs.Job(
                        key_of(scheme, milliseconds, label),
                        {"link"},
                        cost,
                        functools.partial(
                            measure, milliseconds, scheme, calls, steps, args.timeout
                        ),
                    )
                )
    return found


def markdown(rounds, delays):
    """Returns the round-trip times of a round."""
    labels = [label for label, *_ in CALLS]
    header = list(labels)
    header.insert(header.index("10 to a call") + 1, "the calls alone")
    rows = []
    for milliseconds in delays:
        trips = [
            trip
            for scheme in SCHEMES
            for label in labels
            for trip in runs.series(
                rounds, key_of(scheme, milliseconds, label), "round_trip"
            )
            if trip
        ]
        shown = f"{1000 * runs.middle(trips):.0f} ms" if trips else "-"
        for scheme, workers in SCHEMES.items():
            cells = []
            for label in labels:
                key = key_of(scheme, milliseconds, label)
                alone = runs.series(rounds, key, "in_a_call")
                cells.append(runs.spread(runs.series(rounds, key, "trips"), 2))
                if label == "10 to a call":
                    cells.append(runs.spread(alone, 2))
            rows.append([f"{scheme}, N = {workers}", shown, *cells])
    return runs.count_of(rounds) + (
        "\n### Round-trip times that a round takes\n\n"
        + runs.table(["rounds", "round trip", *header], rows)
        + "\n"
    )


def delays(text):
    """Flag type: whole milliseconds, separated by commas."""
    return [runs.positive_int(item) for item in text.split(",")]


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.measuring_parser(__doc__, rounds=2)
    add = parser.add_argument
    add("--delays", type=delays, default=[25, 50], help="ms each way (25,50)")
    return parser.parse_args(argv)


def main():
    with runs.finished(parse_args()) as args:
        if not sys.platform.startswith("linux") or os.geteuid():
            runs.fail("it makes network namespaces, which takes Linux and root", 3)
        if not shutil.which("ip") or not os.path.exists("/dev/net/tun"):
            runs.fail("it needs the command `ip` (iproute2) and /dev/net/tun", 3)
        if args.quick:
            args.delays = [5]
        code = {name: runs.fingerprint(name) for name in SCHEMES}
        jobs = jobs_of(args)[1:2] if args.quick else jobs_of(args)
        rounds, progress = runs.in_rounds(jobs, args, "link", code)
        text = markdown(rounds, args.delays)
        runs.publish(args, "link", text, root=True)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
