"""Faults: what happens to a run when a task is killed, told to end, or stopped.

    python tests/faults.py                     all of it, about half a minute a cell
    python tests/faults.py --quick             four cells, as the tests do
    python tests/faults.py --only HogWild,kill
    python tests/faults.py --missing           those that are not in the table yet

A cell is a scheme, a task, a fault, a moment, and whether run.sh may restart a task. It
holds if the run ends in time, with the right status and one reason, with books that
are exact, an accuracy as undisturbed, no process left, and no line printed again and
again. What became of each is kept in benchmarks/results/faults.json, of which the table
faults.md is made; so the matrix can be run in parts.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import itertools
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time

import launch
from launch import registry

TASKS = (("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1))
FAULTS = ("kill", "term", "stop")  # stop: SIGSTOP, and SIGCONT ten seconds later
MOMENTS = ("start", "middle", "end")
STOPPED = 10  # seconds
TIMEOUT = 120  # seconds for a cell

Cell = collections.namedtuple("Cell", "folder job index fault moment restarts")


def cells(folders: list[str]) -> list[Cell]:
    """Returns the matrix for these folders."""
    product = itertools.product(folders, TASKS, FAULTS, MOMENTS, (True, False))
    return [
        Cell(f, *task, fault, moment, again)
        for f, task, fault, moment, again in product
    ]


def quick() -> list[Cell]:
    """Returns cells that no other test has: who stands still, a ps lost at the end."""
    return [
        Cell("HogWild", "worker", 1, "stop", "middle", True),
        Cell("HogWild", "ps", 1, "stop", "middle", False),
        Cell("Synchronous-SGD", "worker", 0, "stop", "middle", True),
        Cell("Synchronous-SGD", "ps", 0, "kill", "end", True),
    ]


def run(cell: Cell, where: pathlib.Path) -> dict:
    """Makes the run of a cell; returns what became of it, see `verdict`."""
    copy = launch.copy_of(cell.folder, where)
    logdir = where / "logdir"
    flags = ["--steps", "500", "--slow_workers", "0.01", "--save_seconds", "1"]
    flags += ["--patience", "20"]
    if "--window" in (copy / registry.script_of(cell.folder)).read_text():
        flags += ["--window", "2"]
    environment = dict(
        NUM_PS="2",
        LOGDIR=str(logdir),
        TIMEOUT=str(TIMEOUT),
        MAX_RESTARTS="2" if cell.restarts else "0",
    )
    began = time.monotonic()
    with launch.run_sh(copy, *flags, **environment) as running:
        struck = strike(running, cell)
        status = running.wait(TIMEOUT + 30)
        running.nothing_left()
        lines = list(running.lines)
    return dict(
        cell=cell,
        struck=struck,
        status=status,
        seconds=time.monotonic() - began,
        lines=lines,
        result=launch.result(logdir) if (logdir / "result.json").exists() else None,
    )


def strike(running: launch.Launch, cell: Cell) -> bool:
    """Waits for the moment and does it; says whether the task was still there."""
    marks = {
        "start": "[ps 0] ps 0 of 2 serves",
        "middle": "  loss ",
        "end": "step 500/500",
    }
    running.wait_for(marks[cell.moment], 90)
    try:
        task = running.task(cell.job, cell.index)
    except AssertionError:
        return False
    if cell.fault == "stop":
        task.send_signal(signal.SIGSTOP)
        timer = threading.Timer(STOPPED, task.send_signal, [signal.SIGCONT])
        timer.daemon = True
        timer.start()
    else:
        task.send_signal(signal.SIGKILL if cell.fault == "kill" else signal.SIGTERM)
    return True


def verdict(found: dict) -> list[str]:
    """Returns what is wrong with what became of a cell, nothing if it holds."""
    cell, status, lines = found["cell"], found["status"], found["lines"]
    wrong = []
    dies = found["struck"] and cell.fault != "stop"
    ends_well = not dies or cell.restarts or status == 0
    if ends_well:
        if status != 0:
            wrong.append(f"status {status}")
        wrong += of_result(found["result"])
    else:
        expected = 137 if cell.fault == "kill" else 143
        if status != expected:
            wrong.append(f"status {status}, not {expected}")
        if sum(line.startswith("run.sh: ") and "see" in line for line in lines) != 1:
            wrong.append("not one reason")
    if any("Traceback" in line for line in lines):
        wrong.append("a traceback")
    numbers = re.compile(r"\d+(\.\d+)?")
    again = collections.Counter(
        numbers.sub("N", line) for line in lines if "  loss " not in line
    )
    wrong += [f"{count} times: {line}" for line, count in again.items() if count > 6]
    return wrong


def of_result(result: dict | None) -> list[str]:
    """Returns what is wrong with the result of a run that ended well."""
    if result is None:
        return ["no result.json"]
    wrong = launch.wrong_books(result)
    if result["test_accuracy"] < 0.85:
        wrong.append(f"accuracy {result['test_accuracy']:.3f}")
    return wrong


def table(kept: dict) -> str:
    """Returns the matrix as Markdown, of what `main` keeps of the cells."""
    folders = [
        f for f in registry.folders() if any(k.startswith(f"{f} ") for k in kept)
    ]
    heads = ["task", "fault", "moment", "restarts", *folders]
    lines = [heads, ["---"] * len(heads)]
    for task, fault, moment, again in itertools.product(
        TASKS, FAULTS, MOMENTS, (True, False)
    ):
        row = [f"{task[0]} {task[1]}", fault, moment, "yes" if again else "no"]
        for folder in folders:
            one = kept.get(name(Cell(folder, *task, fault, moment, again)))
            holds = "–" if one is None else "; ".join(one["wrong"]) or "holds"
            status = "" if one is None else f", {one['status']}, {one['seconds']:.0f} s"
            row.append(holds + status)
        if any(entry != "–" for entry in row[4:]):
            lines.append(row)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def name(cell: Cell) -> str:
    """Returns what a cell is called on the command line and in the file."""
    return " ".join(map(str, cell[:-1])) + (" restarts" if cell.restarts else " final")


def write(kept: dict, folder: pathlib.Path) -> None:
    """Writes what became of the cells, and the table of it."""
    head = (
        "What `run.sh` made of a run in which a task was killed, told to end or "
        "stopped for 10 s: whether the cell holds, the status, the seconds.\n"
        "A cell is one run of 500 updates with 2 ps and 2 workers; 137 and 143 are the "
        "statuses of a task that may not be restarted.\n\n"
        f"`python tests/faults.py`, {max(one['date'] for one in kept.values())}, 2 "
        f"cores, TensorFlow 2.21: {len(kept)} cells.\n\n"
    )
    for path, text in (
        (folder / "faults.json", json.dumps(kept, indent=1, sort_keys=True) + "\n"),
        (folder / "faults.md", head + table(kept)),
    ):
        part = path.with_suffix(".part")
        part.write_text(text)
        os.replace(part, path)


def main() -> int:
    """Runs the matrix and writes it down; status 1 if a cell does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four cells")
    parser.add_argument("--only", default="", help="words of a cell's name, by comma")
    parser.add_argument("--missing", action="store_true", help="cells without a result")
    args = parser.parse_args()
    target = launch.REPO / "benchmarks" / "results"
    target.mkdir(exist_ok=True)
    path = target / "faults.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    folders = [f for f in registry.folders("ps") if f != "Distributed-Setup"]
    chosen = quick() if args.quick else cells(folders)
    words = [word for word in args.only.split(",") if word]
    chosen = [c for c in chosen if all(w in name(c).split() for w in words)]
    if args.missing:
        chosen = [c for c in chosen if name(c) not in kept]
    failed, began = 0, time.monotonic()
    for number, cell in enumerate(chosen, 1):
        with tempfile.TemporaryDirectory() as where:
            found = run(cell, pathlib.Path(where))
        wrong = verdict(found)
        failed += bool(wrong)
        kept[name(cell)] = {
            "wrong": wrong,
            "status": found["status"],
            "seconds": round(found["seconds"]),
            "date": str(datetime.date.today()),
        }
        write(kept, target)
        left = (time.monotonic() - began) / number * (len(chosen) - number)
        holds = "; ".join(wrong) or "holds"
        print(f"{number}/{len(chosen)} {name(cell)}: {holds}; {left:.0f} s left")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
