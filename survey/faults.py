"""Faults: what becomes of a run whose task is killed, stopped, cut off, out of disk.

    python survey/faults.py                     the matrix, see `matrix`
    python survey/faults.py --quick             four cells, as the tests do
    python survey/faults.py --only HogWild,kill
    python survey/faults.py --log FILE          without the cells that FILE names

A cell is a scheme, a task, a fault, a moment, and whether a task may be started again:
by run.sh, or by hand, each task then on a host of its own. Schemes with a ps have two
ps and two workers, those without one three workers, whose runs are made with
--min_workers, too ("members"). A cell holds if the run ends in time, with the right
status, with counters that are exact, an accuracy as undisturbed, and no process left.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import os
import pathlib
import random
import re
import signal
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
# Of these every combination is tried, and what is started by hand.
FULL = ("HogWild", "Synchronous-SGD", "Ring-All-Reduce")
BY_HAND = (*FULL, "Gossip-SGD")
MEMBERS = ("DiLoCo",)  # also with --min_workers
# With its usual rate the momentum overshoots on windows of two steps.
SLOWLY = ["--outer_learning_rate", "0.2"]
FLAGS = {"Async-DiLoCo": SLOWLY, "Decoupled-DiLoCo": ["--fragments", "1", *SLOWLY]}
PATIENCE = 20  # seconds, --patience of a cell
TIMEOUT = 180  # seconds for a cell

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


def square(folder: str) -> list[Cell]:
    """Returns cells in which every task meets every fault, and that every moment."""
    return [
        Cell(folder, *task, fault, MOMENTS[(i + k) % 4], (i // 2 + k) % 2 == 0)
        for k, task in enumerate(tasks_of(folder))
        for i, fault in enumerate(FAULTS)
    ]


def cells_by_hand(folder: str) -> list[Cell]:
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


def matrix() -> list[Cell]:
    """Returns all cells of one scheme a family, some of the others.

    The code that a fault meets is the same bytes in every folder; what a scheme adds
    is its state and its barrier.
    """
    chosen = []
    for folder in tried_folders():
        chosen += product(folder) if folder in FULL else square(folder)
        chosen += cells_by_hand(folder) if folder in BY_HAND else []
        chosen += members(folder) if folder in MEMBERS else []
    return [*chosen, Cell("HogWild", "disk", 0, "full", "middle", False)]


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
        flags += ["--window", "2", *FLAGS.get(cell.folder, [])]
    if cell.way == "members":
        flags += ["--min_workers", "1"]
    if cell.way == "hand":
        found = by_hand(cell, copy, logdir, flags)
    elif cell.fault == "full":
        found = on_a_full_disk(copy, logdir, flags)
    else:
        found = under_run_sh(cell, copy, logdir, flags)
    return dict(cell=cell, result=launch.result_if_there(logdir), **found)


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


def by_hand(
    cell: Cell, copy: pathlib.Path, logdir: pathlib.Path, flags: list[str]
) -> dict:
    """Returns dict(struck, status, lines); `status` has one for each worker.

    None is the status of who was killed or does not end. With restarts whoever ends
    with another status than 0, 1, 2 is started again.
    """
    names = ["worker-0", "worker-1"]
    names = ["ps-0", "ps-1", *names] if has_ps(copy.name) else [*names, "worker-2"]
    flags = [*flags, "--steps", "500", "--slow_workers", "0.05"]
    flags += ["--logdir", str(logdir)]
    struck = f"{cell.job}-{cell.index}"
    with hosts.Hosts(*names) as net:
        tasks = {}
        for name in names:
            tasks[name] = moved.Task(moved.start(net, copy, flags, names, name))
            tasks[name].over = not cell.restarts
            tasks[name].start()
        for name in ("worker-0", "worker-1"):
            moved.wait_for_line(tasks[name], "  loss ")
        if cell.fault == "kill":
            tasks[struck].launches[-1].process.kill()
        else:
            net.cut(struck)
            if cell.fault == "cut-10":
                time.sleep(10)
                net.mend(struck)
        workers = [name for name in names if name.startswith("worker")]
        end = time.monotonic() + TIMEOUT
        for name in workers:
            tasks[name].join(max(0, end - time.monotonic()))
        status = {n: None if tasks[n].is_alive() else tasks[n].status for n in workers}
        if cell.fault == "kill" and not cell.restarts:
            status[struck] = None
        for task in tasks.values():
            task.over = True
        lines = [line for task in tasks.values() for line in moved.lines_of(task)]
    return dict(struck=True, status=[status[n] for n in workers], lines=lines)


# --- What is right ------------------------------------------------------------


def has_barrier(folder: str) -> bool:
    """Says whether a step of the scheme needs the gradients of so many workers."""
    if registry.of(folder).family == "peers":
        return True
    return hasattr(launch.defaults_of(folder), "replicas_to_aggregate")


def verdict(found: dict) -> list[str]:
    """Returns what is wrong with what became of a cell, nothing if it holds."""
    cell = found["cell"]
    if cell.fault == "full":
        return of_disks(found)
    wrong = (of_hands if cell.way == "hand" else of_run_sh)(found)
    if any("Traceback" in line for line in found["lines"]):
        wrong.append("a traceback")
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
    expected = {"kill": 137, "term": 143}.get(cell.fault, 138)
    return [f"status {status}, not {expected}"] if status != expected else []


def of_disks(found: dict) -> list[str]:
    """The run ends in a traceback, and the next one goes on."""
    wrong = [f"status {found['status']}"] if found["status"] else []
    if "first status 1" not in found["lines"]:
        wrong.append("not status 1 on a full disk")
    text = "\n".join(found["lines"])
    if not re.search(r"resumes from global step [1-9]", text):
        wrong.append("the last checkpoint is lost")
    return wrong + of_result(found["result"])


def of_hands(found: dict) -> list[str]:
    """Who is lost for good is missed by those who need it; the others end well."""
    wrong = [
        f"worker {k}: status {now}, not {shall}"
        for k, (now, shall) in enumerate(
            zip(found["status"], due(found["cell"]), strict=True)
        )
        if now not in shall
    ]
    return wrong + (of_result(found["result"]) if found["status"][0] == 0 else [])


def due(cell: Cell) -> list[set]:
    """Returns the statuses that each worker of a cell by hand may end with."""
    barrier, ps = has_barrier(cell.folder), has_ps(cell.folder)
    count = 2 if ps else 3
    lost = cell.fault == "cut" or cell.fault == "kill" and not cell.restarts
    if not lost and cell.fault == "cut-10" and barrier and not ps:
        return [{0, 138}] * count  # whether somebody misses it within the ten seconds
    if not lost:
        return [{0}] * count
    # A ps and the chief are needed by all, another worker by the steps of a barrier.
    needed = barrier or (cell.job, cell.index) in (("ps", 0), ("ps", 1), ("worker", 0))
    found = [{138} if needed else {0} for _ in range(count)]
    if cell.job == "worker":
        # A chief that is cut off may make all other updates alone before it gives up.
        alone = (
            {0} if cell.fault == "cut" and not (ps or barrier or cell.index) else set()
        )
        found[cell.index] = {138, None, *alone}
    return found


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


# --- Each cell, one after the other ---------------------------------------------


def name(cell: Cell) -> str:
    """Returns what a cell is called on the command line."""
    words = " ".join(map(str, cell[:-2])) + (" restarts" if cell.restarts else " final")
    return words + (f" {cell.way}" if cell.way != "run.sh" else "")


def tried(cell: Cell) -> tuple[Cell, list[str]]:
    """Returns a cell and what is wrong with it, and then its last lines."""
    with tempfile.TemporaryDirectory() as where:
        try:
            found = run(cell, pathlib.Path(where))
            wrong, lines = verdict(found), found["lines"]
        except Exception as error:  # the cell does not hold; the others are tried
            wrong, lines = [f"{type(error).__name__}: {error}"], []
    return cell, ["; ".join(wrong), *lines[-60:]] if wrong else []


def main() -> int:
    """Runs the matrix; prints a line a cell; status 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four cells")
    parser.add_argument("--only", default="", help="words of a cell's name, by comma")
    parser.add_argument("--jobs", type=int, default=6, help="cells at once")
    parser.add_argument(
        "--log",
        type=pathlib.Path,
        help="goes on after the cells that it names; adds those that hold",
    )
    args = parser.parse_args()
    words = [word for word in args.only.split(",") if word]
    chosen = quick() if args.quick else matrix()
    chosen = [c for c in chosen if all(w in name(c).split() for w in words)]
    if args.log and args.log.exists():
        held = set(args.log.read_text().splitlines())
        chosen = [c for c in chosen if name(c) not in held]
    if hosts.missing() and any(c.way == "hand" for c in chosen):
        parser.error(f"cells by hand need hosts: {hosts.missing()}; --only leaves out")
    random.Random(0).shuffle(chosen)  # beside one that stands still another computes
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(tried, cell) for cell in chosen]
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            cell, wrong = future.result()
            failed += bool(wrong)
            holds = "\n  ".join(wrong) or "holds"
            print(f"{number}/{len(chosen)} {name(cell)}: {holds}", flush=True)
            if args.log and not wrong:
                with args.log.open("a") as file:
                    file.write(f"{name(cell)}\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
