"""Faults: what becomes of a run whose task is killed, stopped, cut off, out of disk.

    python survey/faults.py                     the matrix, see `matrix`
    python survey/faults.py --quick             four cells, as the tests do
    python survey/faults.py --only HogWild,kill
    python survey/faults.py --missing           those that are not in the table yet
    python survey/faults.py --all               the whole product, of every folder

A cell is a scheme, a task, a fault, a moment, and whether a task may be started again:
by run.sh, or by hand, each task then on a host of its own. Schemes with a ps have two
ps and two workers, those without one three workers, whose runs are made with
--min_workers, too ("members"). A cell holds if the run ends in
time, with the right status and one reason, with counters that are exact, an accuracy as
undisturbed, no process left, and no line printed again and again. What became of each
is kept in benchmarks/results/faults.json, of which the table faults.md is made; so the
matrix can be run in parts.

Under run.sh a task is a fork of a process that has imported TensorFlow, as in the
tests, and begins as late as if it imported it: that leaves the CPU to more cells at
once. With THOROUGH=1 each is a new process.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import hosts
import launch
import moved
import psutil
from launch import registry

TASKS = (("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1))
FAULTS = ("kill", "term", "stop-10", "stop-60")  # SIGSTOP; seconds later SIGCONT
MOMENTS = ("start", "middle", "save", "end")
CUTS = ("kill", "cut-10", "cut")  # by hand: for ten seconds, or for good
# Of these every combination is tried, and what is started by hand.
FULL = ("HogWild", "Synchronous-SGD")
FULL_PEERS = ("Ring-All-Reduce",)
BY_HAND = (*FULL, "Ring-All-Reduce", "DiLoCo", "Gossip-SGD")
MEMBERS = ("Ring-All-Reduce", "Local-SGD", "DiLoCo")  # also with --min_workers
PATIENCE = 20  # seconds, --patience of a cell
TIMEOUT = 180  # seconds for a cell
IMPORT_SECONDS = 3  # of TensorFlow, in each task of a cell

Cell = collections.namedtuple(
    "Cell", "folder job index fault moment restarts way", defaults=["run.sh"]
)


def has_ps(folder: str) -> bool:
    """Says whether the scheme has a ps; if not its workers are peers."""
    return registry.of(folder).family == "ps"


def tasks_of(folder: str) -> list[tuple[str, int]]:
    """Returns the tasks of a scheme to which something is done."""
    return [task for task in TASKS if task[0] == "worker" or has_ps(folder)]


def product(folder: str) -> list[Cell]:
    """Returns every combination under run.sh."""
    everything = itertools.product(tasks_of(folder), FAULTS, MOMENTS, (True, False))
    return [Cell(folder, *task, *rest) for task, *rest in everything]


def pairs(cell: Cell) -> set[tuple]:
    """Returns the pairs of values that a cell has: task, fault, moment, restarts."""
    values = enumerate((cell[1:3], cell.fault, cell.moment, cell.restarts))
    return set(itertools.combinations(values, 2))


def covering(folder: str) -> list[Cell]:
    """Returns cells in which every two values meet, other cells in every folder."""
    rest = product(folder)
    random.Random(folder).shuffle(rest)
    open_pairs, chosen = set().union(*map(pairs, rest)), []
    while open_pairs:
        best = max(rest, key=lambda cell: len(pairs(cell) & open_pairs))
        chosen.append(best)
        open_pairs -= pairs(best)
    return chosen


def by_hand(folder: str) -> list[Cell]:
    """Returns cells whose tasks are started one by one, each on a host of its own."""
    kinds = [("kill", True), ("kill", False), ("cut-10", False), ("cut", False)]
    return [
        Cell(folder, *task, fault, "middle", again, "hand")
        for task, (fault, again) in itertools.product(tasks_of(folder), kinds)
    ]


def members(folder: str) -> list[Cell]:
    """Returns cells with --min_workers: who is lost may be missed, and comes back."""
    everything = itertools.product(tasks_of(folder), FAULTS, ("middle", "end"))
    return [Cell(folder, *task, *rest, True, "members") for task, *rest in everything]


def matrix(folders: list[str]) -> list[Cell]:
    """Returns what is tried: all of two schemes, every pair of values of the others.

    The code that a fault meets is the same bytes in every folder; what a scheme adds
    is its state and its barrier.
    """
    chosen = []
    for folder in folders:
        chosen.append(Cell(folder, "disk", 0, "full", "middle", False))
        full = folder in (*FULL, *FULL_PEERS)
        chosen += product(folder) if full else covering(folder)
        chosen += by_hand(folder) if folder in BY_HAND else []
        chosen += members(folder) if folder in MEMBERS else []
    return chosen


def tried_folders() -> list[str]:
    """Returns the folders with a ps and those of peers, where several workers train."""
    families = map(registry.folders, ("ps", "peers", "gossip"))
    return [f for f in itertools.chain(*families) if f != "Distributed-Setup"]


def quick() -> list[Cell]:
    """Returns cells that no other test has: who stands still, a ps lost at the end."""
    return [
        Cell("HogWild", "worker", 1, "stop-10", "middle", True),
        Cell("HogWild", "ps", 1, "stop-10", "middle", False),
        Cell("Synchronous-SGD", "worker", 0, "stop-10", "middle", True),
        Cell("Synchronous-SGD", "ps", 0, "kill", "end", True),
    ]


# --- The run of a cell --------------------------------------------------------


def run(cell: Cell, where: pathlib.Path) -> dict:
    """Makes the run of a cell; returns what became of it, see `verdict`."""
    copy, logdir = launch.copy_of(cell.folder, where), where / "logdir"
    flags = ["--save_seconds", "1", "--patience", str(PATIENCE)]
    if "--window" in (copy / registry.script_of(cell.folder)).read_text():
        flags += ["--window", "2"]
    if cell.way == "members":
        flags += ["--min_workers", "1"]
    began = time.monotonic()
    if cell.way == "hand" and not has_ps(cell.folder):
        found = peers_one_by_one(cell, copy, logdir, flags)
    elif cell.way == "hand":
        found = one_by_one(cell, copy, logdir, flags)
    elif cell.fault == "full":
        found = on_a_full_disk(copy, logdir, flags)
    else:
        found = under_run_sh(cell, copy, logdir, flags)
    return dict(
        cell=cell,
        seconds=time.monotonic() - began,
        result=launch.result_if_there(logdir),
        **found,
    )


def under_run_sh(
    cell: Cell, copy: pathlib.Path, logdir: pathlib.Path, flags: list[str]
) -> dict:
    """Returns dict(struck, status, lines); `struck`: the task was still there."""
    # Who waits for a task that stands still for 60 s waits PATIENCE at each start.
    restarts = 3 if cell.fault == "stop-60" else 2
    environment = dict(
        **{"NUM_PS": "2"} if has_ps(cell.folder) else {"NUM_WORKERS": "3"},
        LOGDIR=str(logdir),
        TIMEOUT=str(TIMEOUT),
        MAX_RESTARTS=str(restarts if cell.restarts else 0),
        IMPORT_SECONDS=str(IMPORT_SECONDS),
    )
    flags = [*flags, "--steps", "500", "--slow_workers", "0.01"]
    with launch.run_sh(copy, *flags, **environment) as running:
        struck = strike(running, cell, logdir)
        status = running.wait(TIMEOUT + 30)
        running.nothing_left()
        return dict(struck=struck, status=status, lines=list(running.lines))


def strike(running: launch.Launch, cell: Cell, logdir: pathlib.Path) -> bool:
    """Waits for the moment and does it; says whether the task was still there."""
    marks = {
        "start": "[ps 0] ps 0 of 2 serves" if has_ps(cell.folder) else "[worker 0] var",
        "middle": "  loss ",
        "save": "  loss ",
        "end": "step 500/500",
    }
    if cell.folder == "Fault-Tolerance":  # its last line is this one
        marks["end"] = "step 49"
    running.wait_for(marks[cell.moment], 90)
    try:
        task = running.task(cell.job, cell.index)
        if cell.moment == "save":
            wait_for_a_save(logdir)
        task.send_signal(
            {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(
                cell.fault, signal.SIGSTOP
            )
        )
    except (AssertionError, psutil.NoSuchProcess):
        return False
    if cell.fault.startswith("stop"):
        seconds = int(cell.fault.partition("-")[2])
        timer = threading.Timer(seconds, wake, [task])
        timer.daemon = True
        timer.start()
    return True


def wake(task: psutil.Process) -> None:
    """Lets a task go on that stood still, unless run.sh has ended it meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        task.send_signal(signal.SIGCONT)


def wait_for_a_save(logdir: pathlib.Path, seconds: float = 30) -> None:
    """Returns when TensorFlow is writing a checkpoint: its data, not yet its index."""
    end, before = time.monotonic() + seconds, set(os.listdir(logdir))
    while time.monotonic() < end:
        now = set(os.listdir(logdir))
        if any("ckpt" in new for new in now - before):
            return
        before = now
    raise TimeoutError(f"nothing is saved in {logdir}")


# A disk of 9 MB is filled when the first checkpoint lies there, and emptied after the
# run; then the next run takes up what the disk holds.
FULL_DISK = """
mount -t tmpfs -o size=9m tmpfs "$LOGDIR"
bash run.sh --steps 1500 --slow_workers 0.002 --save_seconds 0.5 "$@" &
run=$!
for ((wait = 0; wait < 900; wait++)); do
  ! grep -qs 'ckpt-[1-9]' "$LOGDIR/checkpoint" || break
  sleep 0.1
done
cat /dev/zero >"$LOGDIR/fill" 2>/dev/null
status=0
wait $run || status=$?
echo "first status $status"
rm "$LOGDIR/fill"
ls "$LOGDIR"
bash run.sh --steps 1600 "$@"
status=$?
cp "$LOGDIR/result.json" "$KEEP"
exit $status
"""


def on_a_full_disk(
    copy: pathlib.Path, logdir: pathlib.Path, flags: list[str] = ()
) -> dict:
    """Returns dict(struck, status, lines); the last result is kept in `logdir`."""
    disk = logdir.parent / "disk"
    disk.mkdir()
    logdir.mkdir()
    command = [*launch.OWN_MOUNTS, "bash", "-c", FULL_DISK, "run", *flags]
    environment = dict(
        LOGDIR=str(disk),
        KEEP=str(logdir),
        TIMEOUT=str(TIMEOUT),
        MAX_RESTARTS="0",  # one folder has another default
    )
    with launch.Launch(command, copy, where=copy, **environment) as running:
        status = running.wait(2 * TIMEOUT)
        running.nothing_left()
        return dict(struck=True, status=status, lines=list(running.lines))


def one_by_one(
    cell: Cell, copy: pathlib.Path, logdir: pathlib.Path, flags: list[str]
) -> dict:
    """Returns dict(struck, status, lines); `status` has one for each task, ps first.

    None is the status of a task that was killed, or of a ps that still served.
    """
    tasks = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    script, began = str(copy / registry.script_of(copy.name)), []
    flags = [*flags, "--steps", "500", "--slow_workers", "0.05"]
    flags += ["--logdir", str(logdir)]
    with hosts.Hosts(*(f"{job}{k}" for job, k in tasks)) as net:
        for job in ("ps", "worker"):
            there = [f"{net.address[f'{job}{k}']}:2222" for k in (0, 1)]
            flags.append(f"--{job}_hosts={','.join(there)}")

        def start(job, k):
            command = [*net.inside[f"{job}{k}"], sys.executable, script, *flags]
            command += ["--job_name", job, "--task_index", str(k)]
            began.append(net.enter_context(launch.Launch(command, copy)))
            return began[-1]

        running = {task: start(*task) for task in tasks}
        for task in tasks[2:]:
            running[task].wait_for("  loss ")
        struck = (cell.job, cell.index)
        if cell.fault == "kill":
            running[struck].process.kill()
            running[struck].process.wait()
            if cell.restarts:
                running[struck] = start(*struck)
        else:
            net.cut(cell.job + str(cell.index))
            if cell.fault == "cut-10":
                time.sleep(10)
                net.mend(cell.job + str(cell.index))
        end = time.monotonic() + TIMEOUT
        for task in reversed(tasks):  # the ps are dismissed by the chief
            limit = end - time.monotonic() if task[0] == "worker" else 15
            try:
                running[task].wait(max(limit, 1))
            except subprocess.TimeoutExpired:
                pass
        status = [running[task].process.poll() for task in tasks]
        if cell.fault == "kill" and not cell.restarts:
            status[tasks.index(struck)] = None
        lines = [line for task in began for line in task.lines]
    return dict(struck=True, status=status, lines=lines)


def peers_one_by_one(
    cell: Cell, copy: pathlib.Path, logdir: pathlib.Path, flags: list[str]
) -> dict:
    """The same for three workers without a ps; `status` has one for each of them.

    With restarts whoever ends with another status than 0, 1, 2 is started again.
    """
    names = [f"worker-{k}" for k in range(3)]
    flags = [*flags, "--steps", "500", "--slow_workers", "0.05"]
    flags += ["--logdir", str(logdir)]
    with hosts.Hosts(*names) as net:
        begins = [moved.start(net, copy, flags, names, name) for name in names]
        tasks = [moved.Task(begin) for begin in begins]
        for task in tasks:
            task.over = not cell.restarts
            task.start()
        training = [task for task in tasks[:2]]
        moved.wait_for(
            lambda: all(
                any("  loss " in line for line in moved.lines_of(task))
                for task in training
            ),
            90,
        )
        if cell.fault == "kill":
            tasks[cell.index].launches[-1].process.kill()
        else:
            net.cut(names[cell.index])
            if cell.fault == "cut-10":
                time.sleep(10)
                net.mend(names[cell.index])
        end = time.monotonic() + TIMEOUT
        for task in tasks:
            task.join(max(0, end - time.monotonic()))
        status = [None if task.is_alive() else task.status for task in tasks]
        if cell.fault == "kill" and not cell.restarts:
            status[cell.index] = None
        for task in tasks:
            task.over = True
        lines = [line for task in tasks for line in moved.lines_of(task)]
    return dict(struck=True, status=status, lines=lines)


# --- What is right ------------------------------------------------------------


def has_barrier(folder: str) -> bool:
    """Says whether a step of the scheme needs the gradients of so many workers."""
    if registry.of(folder).family == "peers":
        return True
    return hasattr(launch.defaults_of(folder), "replicas_to_aggregate")


def verdict(found: dict) -> list[str]:
    """Returns what is wrong with what became of a cell, nothing if it holds."""
    cell, lines = found["cell"], found["lines"]
    if cell.way == "hand":
        wrong = (of_hands if has_ps(cell.folder) else of_peers)(found)
    elif cell.fault == "full":
        wrong = of_disks(found)
    else:
        wrong = of_run_sh(found)
    if any("Traceback" in line for line in lines):
        wrong.append("a traceback")
    numbers = re.compile(r"\d+(\.\d+)?")
    again = collections.Counter(
        numbers.sub("N", line)
        for line in lines
        if "  loss " not in line and "still " not in line  # said every 10 s
    )
    wrong += [f"{count} times: {line}" for line, count in again.items() if count > 6]
    return wrong


def of_run_sh(found: dict) -> list[str]:
    """The run ends well, or with the status of the task that may not be restarted."""
    cell, status = found["cell"], found["status"]
    # Who is needed, and stands still for longer than --patience, is given up: a ps, the
    # chief, and a worker whose gradients a step waits for.
    needed = (cell.job, cell.index) != ("worker", 1) or has_barrier(cell.folder)
    silent = cell.fault == "stop-60" and needed
    loses = found["struck"] and (silent or not cell.fault.startswith("stop"))
    if status == 0 or cell.restarts or not loses:
        wrong = of_result(found["result"], cell.way == "members")
        return ([f"status {status}"] if status else []) + wrong
    wrong = []
    expected = {"kill": 137, "term": 143}.get(cell.fault, 138)
    if status != expected:
        wrong.append(f"status {status}, not {expected}")
    reasons = [n for n in found["lines"] if n.startswith("run.sh: ") and "see" in n]
    if len(reasons) != 1:
        wrong.append(f"{len(reasons)} reasons")
    return wrong


def of_disks(found: dict) -> list[str]:
    """The run says what it could not write, and the next one goes on."""
    wrong = [f"status {found['status']}"] if found["status"] else []
    if "first status 138" not in found["lines"]:
        wrong.append("not status 138 on a full disk")
    text = "\n".join(found["lines"])
    for words in ("cannot save: ", "the result is not written: "):
        if text.count(words) != 1:
            wrong.append(f"{text.count(words)} times: {words}")
    if not re.search(r"resumes from global step [1-9]", text):
        wrong.append("the last checkpoint is lost")
    return wrong + of_result(found["result"])


def of_hands(found: dict) -> list[str]:
    """Who is lost for good is missed by those who need it; the others end well."""
    cell, (*_, chief, worker) = found["cell"], found["status"]
    lost = cell.fault == "cut" or cell.fault == "kill" and not cell.restarts
    # A ps and the chief are needed by all, worker 1 by the steps of a barrier.
    due = (138, 138) if lost else (0, 0)
    if lost and (cell.job, cell.index) == ("worker", 1):
        due = (138, 138) if has_barrier(cell.folder) else (0, 138)
    wrong = []
    for k, (is_now, shall) in enumerate(zip((chief, worker), due, strict=True)):
        if is_now is not None and is_now != shall or is_now is None and not lost:
            wrong.append(f"worker {k}: status {is_now}, not {shall}")
    if not lost and any(found["status"]):
        wrong.append(f"statuses {found['status']}")
    return wrong + (of_result(found["result"]) if chief == 0 else [])


def of_peers(found: dict) -> list[str]:
    """Without a ps: a ring ends when a worker is lost, replicas that gossip go on."""
    cell, status = found["cell"], found["status"]
    ring = has_barrier(cell.folder)
    if cell.restarts or cell.fault == "cut-10" and not ring:
        due = [{0}] * 3
    elif cell.fault == "cut-10":
        due = [{0, 138}] * 3  # whether somebody misses it within the ten seconds
    else:
        due = [{138} if ring or not cell.index else {0} for _ in range(3)]
        # A chief that is cut off may make all other updates alone before it gives up.
        alone = {0} if cell.fault == "cut" and not (ring or cell.index) else set()
        due[cell.index] = {138, None, *alone}
    wrong = [
        f"worker {k}: status {now}, not {shall}"
        for k, (now, shall) in enumerate(zip(status, due, strict=True))
        if now not in shall
    ]
    if cell.fault == "cut-10" and len(set(status)) > 1:
        wrong.append(f"statuses {status}")
    return wrong + (of_result(found["result"]) if status[0] == 0 else [])


def of_result(result: dict | None, members: bool = False) -> list[str]:
    """Returns what is wrong with the result of a run that ended well.

    Where `members` come and go a round is not of all workers.
    """
    wrong = launch.wrong_stats(result)
    if members:
        wrong = [one for one in wrong if "rounds" not in one]
    if result and result["test_accuracy"] < 0.85:
        wrong.append(f"accuracy {result['test_accuracy']:.3f}")
    return wrong


# --- What is written down -----------------------------------------------------


def name(cell: Cell) -> str:
    """Returns what a cell is called on the command line and in the file."""
    words = " ".join(map(str, cell[:-2])) + (" restarts" if cell.restarts else " final")
    return words + (f" {cell.way}" if cell.way != "run.sh" else "")


def grid(heads: list[str], rows: list[list[object]]) -> str:
    """Returns a table as Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def entry(kept: dict, cell: Cell) -> str:
    """Returns what a table says of a cell: whether it holds, its status and seconds."""
    one = kept.get(name(cell))
    if one is None:
        return "–"
    status = one["status"]
    if isinstance(status, list):
        status = " ".join("·" if one is None else str(one) for one in status)
    return f"{'; '.join(one['wrong']) or 'holds'}, {status}, {one['seconds']} s"


def tables(kept: dict) -> str:
    """Returns the matrix as Markdown, of what `main` keeps of the cells."""
    folders = [
        f for f in registry.folders() if any(k.startswith(f"{f} ") for k in kept)
    ]
    rows = []
    for folder in folders:
        ours = {k: v for k, v in kept.items() if k.startswith(f"{folder} ")}
        wrong = [f"{k}: {'; '.join(v['wrong'])}" for k, v in ours.items() if v["wrong"]]
        hold, longest = len(ours) - len(wrong), max(v["seconds"] for v in ours.values())
        rows.append([folder, len(ours), hold, f"{longest} s", "<br>".join(wrong)])
    heads = ["folder", "cells", "hold", "longest", "what does not"]
    parts = ["### Every folder\n", grid(heads, rows)]
    parts += full_tables(kept, [f for f in FULL if f in folders])
    parts += full_tables(kept, [f for f in FULL_PEERS if f in folders])
    return "\n".join(parts)


def full_tables(kept: dict, full: list[str]) -> list[str]:
    """Returns the tables of schemes of which every combination is tried."""
    if not full:
        return []
    tasks, parts = tasks_of(full[0]), []
    ways = {"yes": True, "no": False}
    rows = [
        [f"{task[0]} {task[1]}", fault, moment]
        + [
            entry(kept, Cell(folder, *task, fault, moment, again))
            for folder in full
            for again in ways.values()
        ]
        for task, fault, moment in itertools.product(tasks, FAULTS, MOMENTS)
    ]
    heads = [f"{folder}, restarts: {word}" for folder in full for word in ways]
    parts += [f"### All of {' and '.join(full)}, by `run.sh`\n"]
    parts += [grid(["task", "fault", "moment", *heads], rows)]
    rows = [
        [f"{cell.job} {cell.index}", cell.fault, "yes" if cell.restarts else "no"]
        + [entry(kept, cell._replace(folder=folder)) for folder in full]
        for cell in by_hand(full[0])
    ]
    whose = "ps 0, ps 1, worker 0, worker 1" if has_ps(full[0]) else "the workers"
    parts += ["### The same by hand, each task on a host of its own\n"]
    parts += [f"The statuses are those of {whose}; ·: none.\n"]
    parts += [grid(["task", "fault", "started again", *full], rows)]
    return parts


def keep(new: dict, folder: pathlib.Path) -> None:
    """Adds what became of some cells to what is kept; another matrix may do so, too."""
    with launch.locked(folder):
        path = folder / "faults.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        write({**kept, **new}, folder)


def write(kept: dict, folder: pathlib.Path) -> None:
    """Writes what became of the cells, and the tables of it."""
    hold = sum(not one["wrong"] for one in kept.values())
    missing = sum(name(cell) not in kept for cell in matrix(tried_folders()))
    days = sorted({one["date"] for one in kept.values()})
    commits = sorted({one.get("commit", "an older one") for one in kept.values()})
    head = (
        "What became of a run in which a task was killed (kill), told to end (term), "
        "stopped for 10 or 60 s (stop), or cut off from the others (cut), and of one "
        "whose disk was full: whether the cell holds, the status, the seconds.\n"
        "A cell is one run of 500 updates with 2 ps and 2 workers, or with 3 workers "
        f"where there is no ps, and --patience {PATIENCE}; 137, 138 and 143 are the "
        "statuses of a task that may not be "
        "started again. Under run.sh a task is a fork of a process that has imported "
        f"TensorFlow, and begins {IMPORT_SECONDS} s later.\n\n"
        "`.venv/bin/python survey/faults.py`, "
        f"{' to '.join({days[0]: 0, days[-1]: 0})}, 2 cores, "
        f"TensorFlow 2.21, commit {', '.join(commits)}: {len(kept)} cells, "
        f"{hold} hold; {missing} are not run yet (–).\n\n"
    )
    for path, text in (
        (folder / "faults.json", json.dumps(kept, indent=1, sort_keys=True) + "\n"),
        (folder / "faults.md", head + tables(kept)),
    ):
        part = path.with_name(f"{path.name}.part")
        part.write_text(text)
        os.replace(part, path)


def tried(cell: Cell) -> tuple[Cell, dict]:
    """Returns a cell and what is kept of it."""
    with tempfile.TemporaryDirectory() as where:
        try:
            found = run(cell, pathlib.Path(where))
            wrong = verdict(found)
        except Exception as error:  # the cell does not hold; the others are tried
            found = dict(status=None, seconds=0, lines=[])
            wrong = [f"{type(error).__name__}: {error}".splitlines()[0]]
            found["lines"] = str(error).splitlines()
    if wrong:
        text = "\n  ".join([f"{name(cell)}: {wrong}", *found["lines"][-60:]])
        print(text, file=sys.stderr, flush=True)
    return cell, {
        "wrong": wrong,
        "status": found["status"],
        "seconds": round(found["seconds"]),
        "date": str(datetime.date.today()),
        "commit": launch.commit(),
    }


def main() -> int:
    """Runs the matrix and writes it down; status 1 if a cell does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four cells")
    parser.add_argument("--all", action="store_true", help="every combination")
    parser.add_argument("--only", default="", help="words of a cell's name, by comma")
    parser.add_argument("--missing", action="store_true", help="cells without a result")
    parser.add_argument("--jobs", type=int, default=6, help="cells at once")
    args = parser.parse_args()
    launch.FORKS = not launch.THOROUGH
    target = launch.REPO / "benchmarks" / "results"
    path = target / "faults.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    folders = tried_folders()
    chosen = quick() if args.quick else matrix(folders)
    if args.all:
        chosen = [cell for folder in folders for cell in product(folder)]
    words = [word for word in args.only.split(",") if word]
    chosen = [c for c in chosen if all(w in name(c).split() for w in words)]
    if args.missing:
        chosen = [c for c in chosen if name(c) not in kept]
    if hosts.missing() and any(c.way == "hand" for c in chosen):
        parser.error(f"cells by hand need hosts: {hosts.missing()}; --only leaves out")
    random.Random(0).shuffle(chosen)  # beside one that stands still another computes
    failed, began = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(tried, cell) for cell in chosen]
        try:
            for number, future in enumerate(
                concurrent.futures.as_completed(futures), 1
            ):
                cell, one = future.result()
                failed += bool(one["wrong"])
                keep({name(cell): one}, target)
                left = (time.monotonic() - began) / number * (len(chosen) - number)
                holds = "; ".join(one["wrong"]) or "holds"
                print(
                    f"{number}/{len(chosen)} {name(cell)}: {holds}; {left:.0f} s left",
                    flush=True,
                )
        finally:
            pool.shutdown(cancel_futures=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
