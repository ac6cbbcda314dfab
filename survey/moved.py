"""A task that comes back at another address: what becomes of its run, and how soon.

    python survey/moved.py                          every task of four schemes, once
    python survey/moved.py --times 20 --jobs 2      twenty times
    python survey/moved.py --only HogWild,worker-0

Every task is on a host of its own and knows the others by name. One is killed with -9
in mid-run, its host gets another address behind the same name, as a pod does, and the
task is started there two seconds later. If its host is `lost`, nobody even tells the
others that their connections to it are closed. Whatever ends with a status above 2 is
started again, as a cluster manager does it. A run holds if every task ends with 0 and
all updates are in result.json, or if it ends with 138 and says why. `next` is the time
from the start of the new process to its first line of progress, or, if it is a ps, to
that of a worker: that is to the next update, or half a second after it. Hosts take
Linux and root.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import hosts
import launch
from launch import registry

FOLDERS = ("HogWild", "Synchronous-SGD", "AEASGD", "Ring-All-Reduce")
# Updates: so many that a worker does not make them alone while another is away.
STEPS = {
    "HogWild": 6000,
    "Synchronous-SGD": 1500,
    "AEASGD": 800,
    "Ring-All-Reduce": 1500,
}
PORT, TIMEOUT, RESTARTS = 2222, 180, 4
Case = collections.namedtuple("Case", "folder victim how")


def cases() -> list[Case]:
    """Returns which task of which scheme is moved: the chief is worker-0."""
    return [
        Case(folder, victim, how)
        for folder in FOLDERS
        for victim in ("worker-0", "worker-1", "ps-0")
        for how in ("killed", "lost")
        if victim != "ps-0" or folder in registry.folders("ps")
    ]


class Task(threading.Thread):
    """One task and whoever starts it again; `status` is that of its last process."""

    def __init__(self, start, delay: float = 0) -> None:
        super().__init__(daemon=True)
        self.begin, self.delay, self.status = start, delay, None
        self.over = False  # nobody is to start it again
        self.launches: list[launch.Launch] = []

    def run(self) -> None:
        """Starts the task until it ends with 0, 1 or 2, or too often."""
        time.sleep(self.delay)
        for _ in range(1 + RESTARTS):
            self.launches.append(self.begin())
            self.status = self.launches[-1].process.wait()
            if 0 <= self.status <= 2 or self.over:
                break
            time.sleep(1)


def start(
    net: hosts.Hosts,
    copy: pathlib.Path,
    flags: list[str],
    names: list[str],
    name: str,
) -> Callable[[], launch.Launch]:
    """Returns what starts a task on its host; `names` are all hosts of the run."""
    job, _, index = name.partition("-")
    words = [*flags, f"--task_index={index}"]
    words += [f"--job_name={job}"] if "ps-0" in names else []
    for one in ("ps", "worker"):
        there = [f"{host}:{PORT}" for host in names if host.startswith(one)]
        words += [f"--{one}_hosts={','.join(there)}"] if there else []
    script = str(copy / registry.script_of(copy.name))
    command = [*net.inside[name], sys.executable, script, *words]
    return lambda: net.enter_context(launch.Launch(command, copy))


def run(case: Case, where: pathlib.Path) -> dict:
    """Makes a run; returns dict(statuses, alive, result, next, lines)."""
    copy, logdir = launch.copy_of(case.folder, where), where / "logdir"
    # A line every hundredth of the way: the first one after the kill comes soon.
    path, ten = copy / "cluster" / "flags.py", "lines=10,"
    assert ten in path.read_text()
    path.write_text(path.read_text().replace(ten, "lines=100,"))
    names = ["worker-0", "worker-1"]
    names += ["ps-0"] if case.folder in registry.folders("ps") else []
    flags = ["--steps", str(STEPS[case.folder]), "--save_seconds", "2"]
    flags += ["--slow_workers", "0.01", "--patience", "60", "--logdir", str(logdir)]
    with hosts.Hosts(*names) as net:

        def starter(name):
            return start(net, copy, flags, names, name)

        tasks = {name: Task(starter(name)) for name in names}
        for task in tasks.values():
            task.start()
        wait_for_line(tasks["worker-0"], "  loss ", count=20)
        old = tasks[case.victim]
        old.over = True
        if case.how == "lost":
            net.cut(case.victim)
        old.launches[-1].process.kill()
        old.join()
        net.move(case.victim)
        tasks[case.victim] = new = Task(starter(case.victim), delay=2)
        new.start()
        watched = [new] if case.victim != "ps-0" else [tasks[w] for w in names[:2]]
        # What is printed before the new process begins is of updates before the kill.
        while new.is_alive() and not new.launches:
            time.sleep(0.01)
        began, soon = time.monotonic(), None
        before = [progress(task) for task in watched]
        while any(t.is_alive() for t in tasks.values()) and past(began) < TIMEOUT:
            if soon is None and [progress(task) for task in watched] != before:
                soon = past(began)
            time.sleep(0.05)
        statuses = {name: tasks[name].status for name in names}
        alive = [name for name in names if tasks[name].is_alive()]
        for task in tasks.values():
            task.over = True
        lines = [f"{n}: {x}" for n in names for x in lines_of(tasks[n])]
    result = launch.result_if_there(logdir)
    return dict(statuses=statuses, alive=alive, result=result, next=soon, lines=lines)


def past(moment: float) -> float:
    """Returns the seconds since a moment of the monotonic clock."""
    return time.monotonic() - moment


def progress(task: Task) -> int:
    """Returns how many lines of progress all processes of a task have printed."""
    return sum("  loss " in line for line in lines_of(task))


def lines_of(task: Task) -> list[str]:
    """Returns what all processes of a task have printed."""
    return [line for one in list(task.launches) for line in list(one.lines)]


def wait_for_line(task: Task, text: str, count: int = 1, seconds: float = 90) -> None:
    """Returns when a task has printed so many lines with a text."""
    end = time.monotonic() + seconds
    while sum(text in line for line in lines_of(task)) < count:
        if time.monotonic() > end:
            raise TimeoutError("the run did not begin")
        time.sleep(0.05)


def verdict(found: dict) -> list[str]:
    """Returns what is wrong with what became of a run."""
    wrong, statuses = [], found["statuses"]
    if found["alive"]:
        wrong.append(f"still there after {TIMEOUT} s: {', '.join(found['alive'])}")
    elif set(statuses.values()) - {0, 138}:
        wrong.append(f"statuses {statuses}")
    if statuses["worker-0"] == 0:
        wrong += launch.wrong_stats(found["result"])
    wrong += ["a traceback"] if any("Traceback" in n for n in found["lines"]) else []
    return wrong


def tried(case: Case) -> tuple[Case, dict, list[str]]:
    """Makes a run; returns it with what is wrong in it."""
    with tempfile.TemporaryDirectory() as where:
        try:
            found = run(case, pathlib.Path(where))
            return case, found, verdict(found)
        except Exception as error:
            found = dict(statuses={}, next=None, lines=[])
            return case, found, [f"{type(error).__name__}: {error}"]


def row(case: Case, runs: list[dict]) -> str:
    """Returns the runs of a case as a row of a table in Markdown."""
    whole = sum(found["statuses"].get("worker-0") == 0 for found in runs)
    wrong = sum(found["wrong"] for found in runs)
    soon = [found["next"] for found in runs if found["next"] is not None]
    spread = "–"
    if soon:
        spread = f"{statistics.median(soon):.1f} ({min(soon):.1f} to {max(soon):.1f})"
    numbers = f"{len(runs)} | {whole} | {len(runs) - whole} | {wrong} | {spread}"
    return f"| {' | '.join(case)} | {numbers} |"


def main() -> int:
    """Makes the runs; prints a line a run, a row a case; 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="runs of each case")
    parser.add_argument("--only", default="", help="folder and task, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    args = parser.parse_args()
    if hosts.missing():
        parser.error(hosts.missing())
    words = [word for word in args.only.split(",") if word]
    chosen = [case for case in cases() if all(word in case for word in words)]
    every, done = chosen * args.times, collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(tried, case) for case in every]
        for number, future in enumerate(concurrent.futures.as_completed(runs), 1):
            case, found, wrong = future.result()
            done[case].append({**found, "wrong": bool(wrong)})
            holds = "; ".join(wrong) or "holds"
            where = f"{number}/{len(every)} {' '.join(case)}"
            soon = "none" if found["next"] is None else f"{found['next']:.1f} s"
            print(f"{where}: {holds}, {found['statuses']}, next {soon}", flush=True)
            if wrong:
                print("  " + "\n  ".join(found["lines"][-40:]), flush=True)
    print("| scheme | task | its host | runs | 0 | 138 | wrong | next, seconds |")
    print("| --- | --- | --- |" + " ---: |" * 5)
    print(*(row(case, done[case]) for case in chosen), sep="\n")
    return int(any(found["wrong"] for runs in done.values() for found in runs))


if __name__ == "__main__":
    sys.exit(main())
