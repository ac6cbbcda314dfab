"""A long run: two hours of training in which something happens every minute.

    sudo .venv/bin/python survey/long_run.py
    sudo .venv/bin/python survey/long_run.py --minutes 5 --only HogWild

HogWild (two ps, two workers) and Ring-All-Reduce (three workers) train side by side,
each task on a host of its own. Once a minute one task of each is killed, stands still
or is cut off for 1 to 25 s, one after the other, so that each fault meets each task. A
task that ends with another status than 0, 1 and 2 is started again, as a cluster
manager does it. When the time is over, all tasks are told to end, and start once more
for the last 300 updates, so that the run ends by itself.

It holds if every task ends with 0, the counters are exact, no task printed a traceback,
each task's memory grew by less than 5 % in the second half of the time, and the test
accuracy is at least 0.9.
Memory is the resident set of a task, read every 10 s. Hosts take Linux and root.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import hosts
import launch
import moved
import psutil

TASKS = {
    "HogWild": ("ps-0", "ps-1", "worker-0", "worker-1"),
    "Ring-All-Reduce": ("worker-0", "worker-1", "worker-2"),
}
FAULTS = ("kill", "stop", "cut")
EVERY, SAMPLE = 60, 10  # seconds between two faults, and between two looks at memory
LAST = 300  # updates after the time is over
FLAGS = ["--slow_workers", "0.05", "--save_seconds", "10", "--patience", "60"]
GROWTH, ACCURACY = 0.05, 0.9  # of memory in the second half, of the test


class Run:
    """The tasks of a run, each on its host and started again whenever it is lost."""

    def __init__(self, net: hosts.Hosts, copy: pathlib.Path, logdir: pathlib.Path):
        self.net, self.copy, self.logdir = net, copy, logdir
        self.names = TASKS[copy.name]
        self.tasks: dict[str, moved.Task] = {}

    def start(self, steps: int) -> None:
        """Starts every task, to train until `steps`."""
        flags = ["--steps", str(steps), *FLAGS, "--logdir", str(self.logdir)]
        for name in self.names:
            begin = moved.start(self.net, self.copy, flags, self.names, name)
            self.tasks[name] = task = moved.Task(begin)
            task.start()

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to the newest process of a task."""
        self.tasks[name].launches[-1].process.send_signal(number)

    def strike(self, name: str, fault: str, seconds: float) -> None:
        """Kills a task, or makes it stand still or cuts its host off for a time."""
        if fault == "kill":
            self.signal(name, signal.SIGKILL)
        elif fault == "stop":
            self.signal(name, signal.SIGSTOP)
            time.sleep(seconds)
            self.signal(name, signal.SIGCONT)
        else:
            self.net.cut(name)
            time.sleep(seconds)
            self.net.mend(name)

    def join(self, seconds: float) -> dict[str, int | None]:
        """Returns the statuses once all have ended; None for who has not in time."""
        end = time.monotonic() + seconds
        for task in self.tasks.values():
            task.join(max(0, end - time.monotonic()))
        alive = {name for name, task in self.tasks.items() if task.is_alive()}
        return {
            name: None if name in alive else task.status
            for name, task in self.tasks.items()
        }


def train(folder: str, minutes: float, where: pathlib.Path) -> list[str]:
    """Makes the long run of a scheme; returns what is wrong with it."""
    copy, logdir = launch.copy_of(folder, where), where / "logdir"
    memory: dict[str, list[tuple[float, float]]] = {name: [] for name in TASKS[folder]}
    pairs = itertools.cycle(itertools.product(FAULTS, TASKS[folder]))
    draw = random.Random(f"long run of {folder}")
    with hosts.Hosts(*TASKS[folder]) as net:
        run = Run(net, copy, logdir)
        run.start(10**9)
        moved.wait_for_line(run.tasks["worker-0"], "  loss ", seconds=200)
        began = due = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            strikes = []
            while (now := time.monotonic() - began) < 60 * minutes:
                look(run, now, memory)
                if now > due - began + EVERY and now < 60 * (minutes - 1):
                    due += EVERY
                    fault, name = next(pairs)
                    seconds = 0.0 if fault == "kill" else draw.uniform(1, 25)
                    strikes.append(pool.submit(run.strike, name, fault, seconds))
                    what = f"{folder}: {fault} {name} {seconds:.0f} s"
                    print(f"{now / 60:5.1f} min  {what}", flush=True)
                time.sleep(SAMPLE)
            for strike in strikes:
                strike.result()
        first = list(run.tasks.values())
        for name in run.names:
            run.tasks[name].over = True
            run.signal(name, signal.SIGTERM)
        run.join(120)
        run.start(launch.saved_step(logdir) + LAST)
        statuses = run.join(300)
        tasks = [*first, *run.tasks.values()]
        for task in tasks:
            task.over = True
        lines = [line for task in tasks for line in moved.lines_of(task)]
    result = launch.result_if_there(logdir)
    wrong = launch.wrong_stats(result)
    wrong += [f"statuses {statuses}"] if set(statuses.values()) != {0} else []
    wrong += ["a traceback"] if any("Traceback" in line for line in lines) else []
    for name, samples in memory.items():
        part = growth(samples)
        print(f"{folder} {name}: {samples[-1][1]:.0f} MiB, {part:+.1%}", flush=True)
        wrong += [f"the memory of {name} grew by {part:.1%}"] if part > GROWTH else []
    if result and result["test_accuracy"] < ACCURACY:
        wrong.append(f"accuracy {result['test_accuracy']:.3f}")
    return wrong


def look(run: Run, now: float, memory: dict[str, list[tuple[float, float]]]) -> None:
    """Notes the memory of every task, in MiB."""
    for name in run.names:
        try:
            process = psutil.Process(run.tasks[name].launches[-1].process.pid)
            memory[name].append((now, process.memory_info().rss / 2**20))
        except psutil.NoSuchProcess:
            pass  # just killed


def growth(samples: list[tuple[float, float]]) -> float:
    """Returns by what part a task's memory grew, third quarter to last quarter.

    Between two starts of its process memory climbs to its level within seconds, so
    that medians of many samples are compared.
    """
    end = samples[-1][0]
    third = [mib for at, mib in samples if 0.5 * end <= at < 0.75 * end]
    last = [mib for at, mib in samples if 0.75 * end <= at]
    return statistics.median(last) / statistics.median(third) - 1


def main() -> int:
    """Makes the runs side by side; status 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--only", choices=TASKS, help="one scheme")
    args = parser.parse_args()
    if reason := hosts.missing():
        parser.error(reason)
    moved.RESTARTS = 10**6
    folders = [args.only] if args.only else [*TASKS]
    with tempfile.TemporaryDirectory() as where:
        with concurrent.futures.ThreadPoolExecutor(len(folders)) as pool:
            runs = {
                f: pool.submit(train, f, args.minutes, pathlib.Path(where, f))
                for f in folders
            }
            found = {folder: run.result() for folder, run in runs.items()}
    for folder, wrong in found.items():
        print(f"{folder}: {'; '.join(wrong) or 'holds'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
