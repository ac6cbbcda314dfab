"""Bad clocks and names: what a run does with a wrong time, and with odd host names.

    python tests/names.py                         all of them
    python tests/names.py --only late,HogWild     some
    python tests/names.py --write benchmarks/results/names.md

HogWild has one ps and two workers, Ring-All-Reduce two workers. A wrong clock is that
of libfaketime (package `faketime` of Debian), for Python and for TensorFlow's C++ too.
Only the time of day is wrong: a monotonic clock stays right, as on a real machine. For
names all tasks are in one network of their own with a hosts file of its own, which
takes Linux and root.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import glob
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import hosts
import launch
import strangers
from launch import registry

FOLDERS = ("HogWild", "Ring-All-Reduce")
LIBRARY = "/usr/lib/*/faketime/libfaketimeMT.so.1"
HOUR, LATE, TIMEOUT = 3600, 20, 300
FLAGS = ["--steps", "1000", "--slow_workers", "0.01", "--save_seconds", "2"]
FLAGS += ["--patience", "30"]
# libfaketime 0.9.10 fails in the sleep that Python 3.11 makes, which is to a moment.
SLEEP = """
import select, time

def sleep(seconds):
    select.select([], [], [], seconds)

time.sleep = sleep
"""
Case = collections.namedtuple("Case", "kind folder who")
# Whatever it says, a run must end with one of these.
ENDS = {0, 138}


class Space(contextlib.ExitStack):
    """A network of its own that has only a loopback, and a hosts file of its own."""

    def __enter__(self) -> Space:
        self.name = f"guide-{os.getpid()}-{id(self)}"
        hosts.ip(f"netns add {self.name}")
        self.callback(hosts.ip, f"netns delete {self.name}")
        hosts.ip(f"-n {self.name} link set lo up")
        self.file = pathlib.Path("/etc/netns", self.name, "hosts")
        self.file.parent.mkdir(parents=True)
        self.callback(shutil.rmtree, self.file.parent)
        self.inside = ["ip", "netns", "exec", self.name]
        return self

    def tell(self, known: dict[str, list[str]]) -> None:
        """Writes which addresses each name has, in place, as the file is mounted."""
        lines = [f"{a} {name}\n" for name, each in known.items() for a in each]
        self.file.write_text("".join(lines))

    def drop(self, address: str) -> None:
        """Drops every packet to an address, without a word."""
        for words in (
            "table inet wall",
            "chain inet wall input { type filter hook input priority 0; }",
            f"rule inet wall input ip daddr {address} drop",
        ):
            subprocess.run([*self.inside, "nft", f"add {words}"], check=True)

    def until_closed(self, act) -> None:
        """Calls `act(stopped)` in a thread that ends before this does."""
        stopped = threading.Event()
        thread = threading.Thread(target=act, args=(stopped,), daemon=True)
        thread.start()
        self.callback(thread.join)
        self.callback(stopped.set)


def names_of(folder: str) -> list[str]:
    """Returns the tasks of a run, the one that serves first."""
    ps = ["ps-0"] if folder in registry.folders("ps") else []
    return [*ps, "worker-0", "worker-1"]


# --- Names ------------------------------------------------------------------------


def two_addresses(space: Space, known: dict, who: str) -> None:
    """its name has two addresses, and both lead to it"""
    known[who] = ["127.0.0.1", "127.0.0.2"]
    space.tell(known)


def one_of_two(space: Space, known: dict, who: str) -> None:
    """its name has two addresses, and nobody answers at the first one"""
    space.drop("127.0.0.9")
    known[who] = ["127.0.0.9", "127.0.0.1"]
    space.tell(known)


def in_turn(space: Space, known: dict, who: str) -> None:
    """its name has now one, now the other of two addresses, each for 3 s"""

    def turn(stopped: threading.Event) -> None:
        for address in itertools.cycle(["127.0.0.2", "127.0.0.1"]):
            space.tell({**known, who: [address]})
            if stopped.wait(3):
                return

    space.tell(known)
    space.until_closed(turn)


def late(space: Space, known: dict, who: str) -> None:
    """nobody knows its name until 20 s after the start of all tasks"""

    def tell(stopped: threading.Event) -> None:
        stopped.wait(LATE)
        space.tell(known)

    space.tell({name: each for name, each in known.items() if name != who})
    space.until_closed(tell)


def never(space: Space, known: dict, who: str) -> None:
    """nobody ever knows its name"""
    space.tell({name: each for name, each in known.items() if name != who})


def only_ipv6(space: Space, known: dict, who: str) -> None:
    """there is no IPv4, every name has an address of IPv6"""
    hosts.ip(f"-n {space.name} address delete 127.0.0.1/8 dev lo")
    known.update(dict.fromkeys(known, ["::1"]))
    space.tell(known)


def written_ipv6(space: Space, known: dict, who: str) -> None:
    """there is no IPv4, and the host flags have `[::1]:2222`"""
    only_ipv6(space, known, who)


def both_kinds(space: Space, known: dict, who: str) -> None:
    """its name has an address of IPv6, and one of IPv4"""
    known[who] = ["::1", "127.0.0.1"]
    space.tell(known)


def with_names(case: Case, where: pathlib.Path) -> strangers.Found:
    """Makes a run in a network where a name is odd."""
    names, script = names_of(case.folder), registry.script_of(case.folder)
    copy, logdir = launch.copy_of(case.folder, where), where / "logdir"
    known = {name: ["127.0.0.1"] for name in names}
    flags = [*FLAGS, "--logdir", str(logdir)]
    flags += ["--patience", "5"] if case.kind is never else []
    for job in ("ps", "worker"):
        there = [
            f"{'[::1]' if case.kind is written_ipv6 else name}:{2222 + k}"
            for k, name in enumerate(names)
            if name.startswith(job)
        ]
        flags += [f"--{job}_hosts={','.join(there)}"] if there else []
    with Space() as space:
        case.kind(space, known, case.who)
        tasks = {}
        for name in names:
            job, _, index = name.partition("-")
            words = [f"--task_index={index}"]
            words += [f"--job_name={job}"] if "ps-0" in names else []
            command = [*space.inside, sys.executable, str(copy / script)]
            task = launch.Launch([*command, *flags, *words], copy)
            tasks[name] = space.enter_context(task)
        return ended(tasks, logdir)


# --- Clocks -----------------------------------------------------------------------


def ahead(file: pathlib.Path) -> None:
    """its clock is an hour ahead"""
    file.write_text(f"+{HOUR}\n")


def behind(file: pathlib.Path) -> None:
    """its clock is an hour behind"""
    file.write_text(f"-{HOUR}\n")


def jumps_ahead(file: pathlib.Path) -> None:
    """its clock jumps an hour ahead in mid-run"""
    ahead(file)


def jumps_back(file: pathlib.Path) -> None:
    """its clock jumps an hour back in mid-run"""
    behind(file)


def with_clock(case: Case, where: pathlib.Path, library: str) -> strangers.Found:
    """Makes a run in which one task has a wrong clock."""
    clock, logdir = where / "clock", where / "logdir"
    clock.write_text("+0\n")
    at_once = case.kind in (ahead, behind)
    if at_once:
        case.kind(clock)
    (where / "python").mkdir()
    (where / "python" / "sitecustomize.py").write_text(SLEEP)
    wrong = dict(
        PYTHONPATH=str(where / "python"),
        LD_PRELOAD=library,
        FAKETIME_TIMESTAMP_FILE=str(clock),
        FAKETIME_NO_CACHE="1",
        DONT_FAKE_MONOTONIC="1",
        FAKETIME_DISABLE_SHM="1",
    )
    ps = case.folder in registry.folders("ps")
    of = launch.ByHand if ps else launch.WorkersByHand
    flags = [*FLAGS, "--logdir", str(logdir)]
    with of(launch.copy_of(case.folder, where), *flags) as run:
        tasks = {}
        for name in names_of(case.folder):
            job, _, index = name.partition("-")
            env = wrong if name == case.who else {}
            words = [job, int(index)] if ps else [int(index)]
            tasks[name] = run.start(*words, **env)
        if not at_once:
            for worker in ("worker-0", "worker-1"):
                tasks[worker].wait_for("  loss ", 200)
            case.kind(clock)
        found = ended(tasks, logdir)
    result = launch.result_if_there(logdir)
    if result and not 0 < result["seconds"] < TIMEOUT:
        said = f"result.json has `seconds` {result['seconds']:.0f}"
        found = found._replace(said=[*found.said, said])
    return found


# --- The table --------------------------------------------------------------------


def ended(tasks: dict, logdir: pathlib.Path) -> strangers.Found:
    """Waits for the end of all tasks; returns what became of them."""
    statuses, until = {}, time.monotonic() + TIMEOUT
    for name, task in tasks.items():
        try:
            statuses[name] = task.wait(max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            statuses[name] = None
    wrong = []
    if statuses["worker-0"] == 0:
        wrong = launch.wrong_stats(launch.result_if_there(logdir))
    lines = [f"[{n.replace('-', ' ')}] {x}" for n, t in tasks.items() for x in t.lines]
    return strangers.Found(statuses, strangers.said_by(lines), wrong, lines)


CLOCKS, JUMPS = (ahead, behind), (jumps_ahead, jumps_back)
NAMES = (two_addresses, both_kinds, one_of_two, in_turn, late, never)
ALL_NAMES = (only_ipv6, written_ipv6)
# What may fail: it says why, with status 138, and another start may help.
MAY_FAIL = (*JUMPS, never, in_turn, one_of_two)


def cases() -> list[Case]:
    """Returns which clock or name is bad, in which scheme, and whose."""
    found = []
    for folder in FOLDERS:
        names = names_of(folder)
        found += [Case(kind, folder, "all") for kind in ALL_NAMES]
        found += [Case(kind, folder, who) for kind in CLOCKS for who in names]
        found += [Case(kind, folder, names[0]) for kind in JUMPS]
        served = [names[0], "worker-1"]
        found += [Case(kind, folder, who) for kind in NAMES for who in served]
    return found


def verdict(case: Case, found: strangers.Found) -> list[str]:
    """Returns what is wrong with what became of a run."""
    wrong, statuses = list(found.wrong), set(found.statuses.values())
    if any("Traceback" in line for line in found.lines):
        wrong.append("a traceback")
    if None in statuses:
        wrong.append(f"no end in {TIMEOUT} s")
    if statuses - (ENDS if case.kind in MAY_FAIL else {0}):
        wrong.append(f"statuses {found.statuses}")
    return wrong


def tried(case: Case, library: str) -> tuple[Case, strangers.Found, list[str]]:
    """Makes a run; returns it with what is wrong in it."""
    with tempfile.TemporaryDirectory(prefix="names-") as name:
        where = pathlib.Path(name)
        try:
            if case.kind in CLOCKS + JUMPS:
                found = with_clock(case, where, library)
            else:
                found = with_names(case, where)
            return case, found, verdict(case, found)
        except Exception as error:
            found = strangers.Found({}, [], [], str(error).splitlines())
            return case, found, [f"{type(error).__name__}: {error}"[:300]]


def table(done: dict) -> str:
    """Returns the runs as Markdown, a row a case."""
    rows = ["| clock or name | of whom | scheme | what becomes of the run |"]
    rows.append("|---|---|---|---|")
    for case, (found, wrong) in done.items():
        what, text = " ".join(case.kind.__doc__.split()), strangers.got(found, wrong)
        rows.append(f"| {what} | {case.who} | {case.folder} | {text} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Makes the runs, prints the table; status 1 if one did not as it must."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="words of cases, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--write", type=pathlib.Path, help="where the table goes")
    parser.add_argument("--libfaketime", help=f"default: {LIBRARY}")
    args = parser.parse_args()
    library = args.libfaketime or next(iter(glob.glob(LIBRARY)), "")
    if not os.path.exists(library):
        parser.error("a wrong clock takes libfaketime (package faketime of Debian)")
    if hosts.missing():
        parser.error(hosts.missing())
    words = [word for word in args.only.split(",") if word]
    chosen = [
        c
        for c in cases()
        if all(w in (c.kind.__name__, c.folder, c.who) for w in words)
    ]
    head = (
        f"`.venv/bin/python tests/names.py`, 2 cores, {datetime.date.today()}, "
        f"commit {strangers.commit()}.\n\n"
    )
    done = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = pool.map(lambda case: tried(case, library), chosen)
        for case, found, wrong in runs:
            done[case] = found, wrong
            print(
                f"{len(done)}/{len(chosen)} {case.kind.__name__} {case.folder} "
                f"{case.who}: {'; '.join(wrong) or 'holds'}, "
                f"{list(found.statuses.values())} {found.said[:3]}",
                flush=True,
            )
            if wrong:
                print("  " + "\n  ".join(found.lines[-25:]), flush=True)
            if args.write:  # also if somebody ends this before its end
                args.write.write_text(head + table(done))
    print(table(done))
    return int(any(wrong for _, wrong in done.values()))


if __name__ == "__main__":
    sys.exit(main())
