"""Thirty faults, planted one by one: which level of the tests finds each, how soon?

    python tests/planted.py                          all; about an hour
    python tests/planted.py --areas ring barrier     those of some areas

Each is planted in a clone of this repository: in one file, or in a module of cluster/
and in all its copies, so that it is no difference between copies. Then the quick level
is asked, and if that finds nothing the rest of `bash test.sh`: first the file that
should know, then all. benchmarks/results/planted.md has what was found.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import launch

KNOW = "launcher", "run", "faults", "peers", "sync"
LAUNCHER, RUN, FAULTS, PEERS, SYNC = (f"test_{name}.py" for name in KNOW)
Fault = collections.namedtuple("Fault", "area what path old new knows")
PLANTED = [
    Fault(
        "launcher",
        "the time limit is forgotten",
        "launch.py",
        "        if not over:\n",
        "        if False:\n",
        LAUNCHER,
    ),
    Fault(
        "launcher",
        "a user's mistake is started again",
        "launch.py",
        "if status in (1, 2, ILLEGAL) or task.restarts",
        "if task.restarts",
        LAUNCHER,
    ),
    Fault(
        "launcher",
        "workers are not ended",
        "launch.py",
        '(("worker", 4), ("ps", 2))',
        '(("ps", 2),)',
        LAUNCHER,
    ),
    Fault(
        "launcher",
        "lines do not name the task",
        "launch.py",
        'f"[{self}] "',
        'f"[{self.job}] "',
        LAUNCHER,
    ),
    Fault(
        "exits",
        "a killed task's status is 1",
        "launch.py",
        "        return 128 - code if code < 0 else code\n\n    def why",
        "        return 1 if code < 0 else code\n\n    def why",
        LAUNCHER,
    ),
    Fault(
        "exits",
        "what a lost ps causes counts as a mistake",
        "cluster/errors.py",
        "            tf.errors.UnavailableError,\n",
        "",
        FAULTS,
    ),
    Fault(
        "exits",
        "run.sh ends with 0 whatever became of it",
        "launch.py",
        "    os._exit(status)",
        "    os._exit(0)",
        LAUNCHER,
    ),
    Fault(
        "exits",
        "a task that is told to end ends with 0",
        "cluster/task.py",
        "os._exit(128 + number)",
        "os._exit(0)",
        FAULTS,
    ),
    Fault(
        "recovery",
        "an incarnation stays open while the chief restores",
        "cluster/run.py",
        "        session.run(self.close_state)\n",
        "",
        "test_rounds.py",
    ),
    Fault(
        "recovery",
        "a checkpoint is not restored",
        "cluster/training.py",
        "self.saver.restore(session, path)",
        "session.run(self.initializer)",
        RUN,
    ),
    Fault(
        "recovery",
        "workers go on without a chief",
        "cluster/heartbeat.py",
        "if silence > self.args.patience:",
        "if False:",
        FAULTS,
    ),
    Fault(
        "recovery",
        "what may be half a model is saved",
        "cluster/run.py",
        "return self.is_alive(session) and not self.rendezvous.has_failed()",
        "return True",
        FAULTS,
    ),
    Fault(
        "barrier",
        "one gradient too few",
        "cluster/sync.py",
        "tf.equal(others, self.size - 1)",
        "tf.equal(others, self.size - 2)",
        SYNC,
    ),
    Fault(
        "barrier",
        "a gradient of an older step counts",
        "cluster/sync.py",
        "tf.equal(t, step) & place",
        "place",
        SYNC,
    ),
    Fault(
        "barrier",
        "a sum is not begun anew",
        "cluster/sums.py",
        "mine > last, begin",
        "mine > mine, begin",
        SYNC,
    ),
    Fault(
        "barrier",
        "a clock may be one round behind the bound",
        "cluster/clocks.py",
        "tf.reduce_min(clocks) <= self.bound",
        "tf.reduce_min(clocks) < self.bound",
        "test_clocks.py",
    ),
    Fault(
        "ring",
        "a sum for a mean",
        "cluster/ring.py",
        '"Add", "Div"',
        '"Add"',
        PEERS,
    ),
    Fault(
        "ring",
        "the chief's weights are not those of all",
        "cluster/ring.py",
        "self.sum(value if chief else tf.zeros_like(value))",
        "tf.identity(value)",
        PEERS,
    ),
    Fault(
        "ring",
        "nobody compares the weights at the end",
        "cluster/peers.py",
        "        self.check.make(session)\n",
        "",
        PEERS,
    ),
    Fault(
        "ring",
        "a worker that is started again is not waited for",
        "cluster/peers.py",
        "self.rendezvous.compare()  # so",
        "pass  # so",
        PEERS,
    ),
    Fault(
        "flags",
        "a learning rate of 0",
        "cluster/flags.py",
        'lambda v: 0 < v < math.inf, "a number above 0"',
        'lambda v: 0 <= v < math.inf, "a number above 0"',
        RUN,
    ),
    Fault(
        "flags",
        "a flag may be cut short",
        "cluster/flags.py",
        "allow_abbrev=False",
        "allow_abbrev=True",
        RUN,
    ),
    Fault(
        "flags",
        "tasks with different flags train together",
        "cluster/incarnation.py",
        "        if here != there:",
        "        if False:",
        FAULTS,
    ),
    Fault(
        "checkpoints",
        "only the first and the last",
        "cluster/training.py",
        "self.saved[1] + self.args.save_seconds",
        "1e30",
        RUN,
    ),
    Fault(
        "checkpoints",
        "of another model is taken",
        "cluster/training.py",
        "            _check_shapes(tf.train.load_checkpoint(path))\n",
        "",
        RUN,
    ),
    Fault(
        "checkpoints",
        "those of the run before are never deleted",
        "cluster/training.py",
        "[old for old in checkpoints(folder) if old != path]",
        "[]",
        "test_report.py",
    ),
    Fault(
        "pages",
        "a flag that there is not",
        "HogWild/README.md",
        "bash run.sh --slow_workers 0,0.02",
        "bash run.sh --slow_worker 0,0.02",
        "test_commands.py",
    ),
    Fault(
        "pages",
        "a link to nothing",
        "README.md",
        "(docs/flags.md)",
        "(docs/flag.md)",
        "test_pages.py",
    ),
    Fault(
        "copies",
        "a module is another one in one folder",
        "AGN/cluster/rounds.py",
        "    done = []\n",
        "    done = list()\n",
        "test_copies.py",
    ),
    Fault(
        "copies",
        "a script, but not the difference on its page",
        "AGN/agn.py",
        "m := total / T ",
        "m := sum / T ",
        "test_copies.py",
    ),
]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?", re.MULTILINE)


def plant(fault: Fault, clone: pathlib.Path) -> int:
    """Puts a fault into a clone; returns in how many files."""
    paths = [clone / fault.path]
    if fault.path.startswith("cluster/"):
        paths = sorted(clone.glob(f"*/{fault.path}"))
    texts = {path: path.read_text() for path in paths}
    planted = [path for path in paths if texts[path].count(fault.old) == 1]
    assert planted, f"{fault.path} has not one {fault.old!r}"
    for path in planted:
        path.write_text(texts[path].replace(fault.old, fault.new))
    return len(planted)


def first_failure(clone: pathlib.Path, *arguments: str) -> str:
    """Returns the first test that fails, with its reason; nothing if none does."""
    python = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*python, *arguments], cwd=clone, capture_output=True, text=True
    )
    if "KeyboardInterrupt" in done.stdout:  # which has found nothing
        raise KeyboardInterrupt
    if done.returncode in (0, 5):  # 5: the file has no test of this level
        return ""
    test, why = (*FAILED.findall(done.stdout), (done.stdout[-300:], ""))[0]
    return f"{test.rpartition('/')[2]} {why[:50]}"


def found(fault: Fault, clone: pathlib.Path) -> dict:
    """Returns which level finds a fault, after how many seconds, by which test."""
    plant(fault, clone)
    began = time.monotonic()
    by = first_failure(clone, "-n", "2", "-m", "quick")
    level = "quick"
    if not by:
        level, rest = "bash test.sh", ("-n", "2", "-m", "not quick")
        by = first_failure(clone, *rest, f"tests/{fault.knows}")
        by = by or first_failure(clone, *rest)
    return {
        "area": fault.area,
        "level": level if by else "none",
        "by": by,
        "seconds": round(time.monotonic() - began),
        "date": str(datetime.date.today()),
        "commit": launch.commit(),
    }


def in_words(by: str) -> str:
    """Returns the file and, in words, the test that found a fault, if one did."""
    file, _, name = re.split(r"[\[ ]", by)[0].partition("::")
    return f"`{file}`: {name.removeprefix('test_').replace('_', ' ')}" if by else ""


def keep(what: str, one: dict) -> None:
    """Adds what became of a fault to what is kept, and writes the table."""
    results = launch.REPO / "benchmarks" / "results"
    path = results / "planted.json"
    with launch.locked(results):
        kept = json.loads(path.read_text()) if path.exists() else {}
        kept[what] = one
        path.write_text(json.dumps(kept, indent=1) + "\n")
    levels = collections.Counter(one["level"] for one in kept.values())
    rows = [
        f"| {one['area']} | {what} | {one['level']} | {one['seconds']} | "
        f"{in_words(one['by'])} |\n"
        for what, one in kept.items()
    ]
    when = sorted({f"{one['date']}, {one['commit']}" for one in kept.values()})
    text = (
        f"Faults that were planted one by one, and the level of the tests that found "
        f"each: {', '.join(f'{level} {count}' for level, count in levels.items())}. "
        f"`.venv/bin/python tests/planted.py`, 2 cores, {'; '.join(when)}.\n\n"
        "| area | fault | level | seconds | found by |\n|---|---|---|---|---|\n"
    )
    path.with_suffix(".md").write_text(text + "".join(rows))


def main() -> int:
    """Plants the faults; status 1 if one is found by no level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    areas = list(dict.fromkeys(fault.area for fault in PLANTED))
    parser.add_argument("--areas", nargs="+", choices=areas, default=areas)
    args = parser.parse_args()
    chosen = [fault for fault in PLANTED if fault.area in args.areas]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as where:
        clone = pathlib.Path(where, "guide")
        git = ["git", "-C", str(clone)]
        subprocess.run(["git", "clone", "-q", str(launch.REPO), clone], check=True)
        os.symlink(launch.REPO / ".venv", clone / ".venv")
        for number, fault in enumerate(chosen, 1):
            one = found(fault, clone)
            subprocess.run([*git, "checkout", "-q", "."], check=True)
            keep(fault.what, one)
            missed += not one["by"]
            print(
                f"{number}/{len(chosen)} {fault.area}: {fault.what}: {one['level']}, "
                f"{one['seconds']} s, {one['by']}",
                flush=True,
            )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
