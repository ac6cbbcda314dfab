"""Draws what every task of an example does when, from a run of it.

    python tools/timeline.py                      every folder's own picture
    python tools/timeline.py HogWild AGN          these
    python tools/timeline.py HogWild --out FILE.svg --trace FILE.json
    python tools/timeline.py "AGN --window 8" HogWild --out FILE.svg   both, in one

All runs have one setting, so that pictures can be compared: one ps if the scheme has
any, three workers, a gradient of 30 ms, worker 2 twice as slow, half a second. The file
of --trace is for chrome://tracing and ui.perfetto.dev. `--recordings DIR` keeps what
was traced, and takes what is there instead of a run. A picture that is not what the
counters of the run say is refused.

The example runs by its own launcher and script; timeline_recorder.py stands in between,
and has TensorFlow trace the calls of a few seconds. All tasks are on this machine and
have its one clock, so that there is nothing to align.

What the trace costs, by `--cost`, which traces every other call only: a round of
HogWild in this setting takes 2.5 to 4.8 % longer, medians of three workers, one of
Ring-All-Reduce no longer (-2.7 to -2.4 %); one of HogWild without a sleep, of 2.5 ms,
44 to 60 % (2 cores with other work, 2026-11-24). So only a few seconds of a run are
traced, and a run without this tool has nothing of it.
"""

import argparse
import collections
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import registry
import timeline_bars
import timeline_picture

ROOT = Path(__file__).resolve().parents[1]
RECORDER = Path(__file__).with_name("timeline_recorder.py")
FAMILIES = (
    "ps",
    "table",
    "dynamic",
    "hybrid",
    "peers",
    "gossip",
    "client",
)  # whose rounds it can read
WORKERS = 3
SETTING = ["--steps", "1000000"]
SLOW = ["--slow_workers", "0.03,0.03,0.06"]
SECONDS = 3.0  # that are traced
SHOWN = 500.0  # milliseconds that are drawn
LONG = ("gradient", "mini-batch", "forward", "backward", "wait")  # not messages
PATIENCE = 240  # seconds until a run has to be recorded
ASSIGNMENT = re.compile(r"^(NUM_PS|SCRIPT|PEERS|LAUNCH)=(\S+)", re.M)

# A page says above a picture what it is of: flags; what there is to see; milliseconds.
PICTURE = re.compile(
    r"<!-- timeline(?P<flags>[^;]*); (?P<told>[^;]*?)(?:; (?P<shown>\d+) ms)? -->\n"
    r"!\[[^\]]*\]\((?P<file>[\w-]+\.svg)\)"
)
Picture = collections.namedtuple("Picture", "folder file flags told shown")


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"timeline.py: {sentence}", file=sys.stderr)
    raise SystemExit(status)


# --- A run ------------------------------------------------------------------------


def record(folder, flags, seconds=SECONDS, alternate=False):
    """Runs an example until its workers have traced so long; returns the recording.

    If they `alternate`, every other call is made without a trace.
    """
    example = registry.of(folder)
    header = dict(ASSIGNMENT.findall((ROOT / folder / "run.sh").read_text()))
    peers = header.get("PEERS", "")
    callers = 1 if example.family == "client" else WORKERS
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        own = {
            "TIMELINE_FOLDER": str(ROOT / folder),
            "TIMELINE_SCRIPT": registry.script_of(folder),
            "TIMELINE_RECORDING": directory,
            "SCRIPT": str(RECORDER),
            "NUM_PS": "0" if peers else re.sub(r"\D", "", header.get("NUM_PS", "1")),
            "NUM_WORKERS": str(WORKERS),
            "PEERS": peers,
            "LOGDIR": str(at / "logdir"),
            # A gradient that sleeps is to take no thread from the messages.
            "TF_NUM_INTEROP_THREADS": "8",
        }
        launcher = ROOT / folder / header.get("LAUNCH", "launch.py")
        # The workers of one client run no Python that could sleep for a gradient.
        slow = [] if example.family == "client" else SLOW
        command = [sys.executable, "-B", str(launcher), *SETTING, *slow, *flags]
        with open(at / "output", "w") as output:
            run = subprocess.Popen(
                command, env={**os.environ, **own}, stdout=output, stderr=output
            )
        try:
            return _recorded(run, at, callers, seconds, alternate)
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait()


def _recorded(run, at, callers, seconds, alternate):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and run.poll() is None:
        time.sleep(0.1)
        ready = len(list(at.glob("ready-*"))) == callers
        if ready and not (at / "window").exists():
            begin = time.time() + 0.5
            (at / "new").write_text(json.dumps([begin, begin + seconds, alternate]))
            (at / "new").rename(at / "window")
        files = sorted(at.glob("worker-*.json"))
        if len(files) == callers:
            return [json.loads(file.read_text()) for file in files]
    lines = (at / "output").read_text().splitlines()[-5:]
    fail("\n".join(["the run was not recorded; it said last:", *lines]), 1)


def timeline_of(named, recordings):
    """Returns (folder, flags, its Timeline) of `HogWild` or of `AGN --window 8`."""
    folder, *flags = shlex.split(named)
    path = recordings and recordings / (re.sub(r"\W+", "-", named) + ".json")
    if path and path.exists():
        recording = json.loads(path.read_text())
    else:
        recording = record(folder, flags)
        if path:
            recordings.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(recording, separators=(",", ":")))
    family, alone = registry.of(folder).family, "--asynchronous" in flags
    # FedBuff has a buffer of two, if not told otherwise.
    buffers = 2 if folder == "FedBuff" and "--average_models" not in flags else 1
    numbers = dict(bound=("--staleness", None), buffer=("--buffer", buffers))
    for name, (flag, usual) in numbers.items():
        number = flags[flags.index(flag) + 1] if flag in flags else ""
        numbers[name] = int(number) if number.isdigit() else usual
    found = timeline_bars.timeline(recording, family, WORKERS, alone, **numbers)
    return folder, flags, found


def print_cost(named):
    """Prints how much longer a call takes when it is traced, worker by worker."""
    folder, *flags = shlex.split(named)
    for worker in record(folder, flags, seconds=20, alternate=True):
        times = {True: [], False: []}
        for call in worker["calls"]:
            length = (call["ended"] - call["began"]) / len(call["counts"])
            times[bool(call["operations"])].append(length / 1000)
        on, off = (statistics.median(times[traced]) for traced in (True, False))
        print(
            f"worker {worker['worker']}: {len(worker['calls'])} calls, a round takes "
            f"{off:.2f} ms, traced {on:.2f} ms: {100 * (on / off - 1):+.1f} %"
        )


# --- Chrome's trace events ----------------------------------------------------------


def events(timeline):
    """Returns the timeline in the Trace Event Format, a dict for JSON.

    A task is a process there, with its bars in one thread; a message is an arrow.
    """
    found, pids = [], {task: n for n, task in enumerate(timeline.tasks)}
    for task, pid in pids.items():
        name = {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": task}}
        order = {"name": "process_sort_index", "ph": "M", "pid": pid}
        found += [name, {**order, "args": {"sort_index": pid}}]
    for bar in timeline.bars:
        one = bar.round
        place = {"pid": pids[bar.task], "tid": int(bar.kind in ("average",))}
        args = {"global step": one.step, "staleness": one.staleness}
        args["applied"] = one.became == timeline_bars.APPLIED
        times = {"ts": 1000 * bar.start, "dur": 1000 * (bar.end - bar.start)}
        found.append({"name": bar.kind, "ph": "X", **place, **times, "args": args})
    for number, m in enumerate(timeline.messages):
        same = {"name": m.kind, "cat": "message", "id": number, "tid": 0}
        args = {"bytes": m.bytes}
        out = {"ph": "s", "pid": pids[m.sender], "ts": 1000 * m.start, "args": args}
        came = {"ph": "f", "bp": "e", "pid": pids[m.to], "ts": 1000 * m.end}
        found += [{**same, **out}, {**same, **came}]
    return {"traceEvents": found, "displayTimeUnit": "ms"}


# --- The command --------------------------------------------------------------------


def window(timeline, shown):
    """Returns the first millisecond of the time in which least was disturbed.

    That is where workers compute or wait most of the time, and where gradients are
    closest to their median, worker by worker: this machine may have other work.
    """
    there = [b for b in timeline.bars if b.kind == "all-reduce"]
    there = [b for b in there if not b.round.lost]
    if there and shown < SHOWN:
        one = min(there, key=lambda bar: bar.end - bar.start)
        return (one.start + one.end - shown) / 2
    if shown < SHOWN and any(b.kind == "reduce-scatter" for b in timeline.bars):
        # Where a round ends and the next begins, after the shortest backward pass.
        ends = [b for b in timeline.bars if b.kind == "update" and not b.round.lost]
        return min(ends, key=lambda bar: _scattered(timeline, bar)).end - 0.75 * shown
    first, last = timeline.begin + 20, timeline.end - shown - 20
    if last < first:
        raise timeline_bars.WrongError("too short a time was traced")
    counted = LONG if shown == SHOWN else LONG[:-1]
    long = [b for b in timeline.bars if b.kind in counted]
    lengths = {}
    for bar in long:
        lengths.setdefault((bar.task, bar.kind), []).append(bar.end - bar.start)
    nominal = {key: statistics.median(found) for key, found in lengths.items()}

    gaps = timeline_bars.lost(timeline.rounds)

    def whole(begin):
        return not any(a < begin + shown and begin < b for a, b in gaps)

    def calm(begin):
        end, total = begin + shown, 0
        for bar in long:
            total += max(0, min(bar.end, end) - max(bar.start, begin))
            if begin < bar.end and bar.start < end and bar.kind != "wait":
                total -= abs(bar.end - bar.start - nominal[bar.task, bar.kind])
        return total

    begins = [n for n in range(int(first), int(last) + 1, 5) if whole(n)]
    if not begins:
        raise timeline_bars.WrongError("TensorFlow has lost messages of the trace")
    return max(begins, key=calm)


def _scattered(timeline, update):
    """Returns the milliseconds from a round's first reduce-scatter to its update."""
    bars = [bar for bar in timeline.bars if bar.round is update.round]
    return update.end - min(b.start for b in bars if b.kind == "reduce-scatter")


def pictures():
    """Returns the Pictures that the pages of the folders show."""
    found = []
    for folder in registry.folders():
        for match in PICTURE.finditer((ROOT / folder / "README.md").read_text()):
            shown = float(match["shown"] or SHOWN)
            flags = match["flags"].strip()
            found.append(Picture(folder, match["file"], flags, match["told"], shown))
    return found


def read_args():
    """Returns the arguments; ends the program with a sentence if they are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schemes", nargs="*", metavar="SCHEME", help="AGN --window 8")
    parser.add_argument("--out", type=Path, help="the picture")
    parser.add_argument("--trace", type=Path, help="the same for Perfetto")
    parser.add_argument("--recordings", type=Path, help="directory of what was traced")
    parser.add_argument("--begin", type=float, help="milliseconds; where it is calm")
    parser.add_argument("--shown", type=float, default=SHOWN, help="milliseconds")
    parser.add_argument("--cost", action="store_true", help="what a trace costs")
    args = parser.parse_args()
    known = [e.folder for e in registry.of_family() if e.family in FAMILIES]
    unknown = [name for name in args.schemes if name.split()[0] not in known]
    if unknown:
        fail(f"{unknown[0]}: not one of {', '.join(known)}")
    if args.trace and len(args.schemes) != 1:
        fail("--trace: name one scheme")
    return args


def main():
    """Draws what the command line names."""
    args = read_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run is ended, too
    if args.cost:
        for named in args.schemes:
            print_cost(named)
        return
    told = {(p.folder, p.flags): p.told for p in reversed(pictures())}
    if args.out or args.trace:
        draw(args, args.out, args.schemes, args.shown, told)
        return
    for p in pictures():
        if p.folder in args.schemes or not args.schemes:
            named, path = f"{p.folder} {p.flags}".strip(), ROOT / p.folder / p.file
            draw(args, path, [named], p.shown, {(p.folder, p.flags): p.told})


def draw(args, path, schemes, shown, told):
    """Draws a picture, and writes the trace, if they have a path."""
    panels = []
    for named in schemes:
        try:
            folder, flags, timeline = timeline_of(named, args.recordings)
            begin = window(timeline, shown) if args.begin is None else args.begin
        except timeline_bars.WrongError as error:
            fail(f"{named}: {error}; no picture is drawn", 1)
        sentence = told.get((folder, " ".join(flags)), "")
        panel = timeline_picture.Panel(folder, flags, sentence, timeline, begin)
        panels.append(panel)
    if path:
        path.write_text(timeline_picture.draw(panels, shown))
        print(path)
    if args.trace:
        args.trace.write_text(json.dumps(events(timeline)) + "\n")
        print(args.trace)


if __name__ == "__main__":
    main()
