"""A long run: two hours of training in which something happens every minute.

    sudo .venv/bin/python survey/long_run.py --write benchmarks/results/long_run.md
    sudo .venv/bin/python survey/long_run.py --minutes 5 --only HogWild

HogWild (two ps, two workers) and Ring-All-Reduce (three workers) train side by side,
each task on a host of its own. Once a minute one task of each is killed, stands still
or is cut off for 1 to 25 s, one after the other, so that each fault meets each task. A
task that ends with another status than 0, 1 and 2 is started again, as a cluster
manager does it. When the time is over, all tasks are told to end, and start once more
for the last 300 updates, so that the run ends by itself.

It holds if every task ends with 0, the counters are exact, no task printed a traceback,
each task's memory grew by less than 5 % in the second half of the time, and the test
accuracy is within 2 points of a run with as many updates that nothing happened to.
Memory is the resident set of a task, read every 10 s. Hosts take Linux and root.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import datetime
import itertools
import json
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

sys.path.insert(0, str(launch.REPO / "benchmarks"))
import figures

TASKS = {
    "HogWild": ("ps-0", "ps-1", "worker-0", "worker-1"),
    "Ring-All-Reduce": ("worker-0", "worker-1", "worker-2"),
}
FAULTS = ("kill", "stop", "cut")
EVERY, SAMPLE = 60, 10  # seconds between two faults, and between two looks at memory
LAST = 300  # updates after the time is over
FLAGS = ["--slow_workers", "0.05", "--save_seconds", "10", "--patience", "60"]
GROWTH, POINTS = 0.05, 0.02  # of memory in the second half, of test accuracy


@dataclasses.dataclass
class Found:
    """What became of one long run."""

    folder: str
    seconds: float = 0
    faults: list[tuple[float, str, str, float]] = dataclasses.field(
        default_factory=list
    )  # (seconds since the start, what, whom, for how long)
    memory: dict[str, list[tuple[float, float]]] = dataclasses.field(
        default_factory=dict
    )  # of each task: (seconds since the start, MiB)
    starts: dict[str, int] = dataclasses.field(default_factory=dict)
    statuses: dict[str, int | None] = dataclasses.field(default_factory=dict)
    result: dict | None = None
    undisturbed: dict | None = None
    tracebacks: int = 0


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


def train(folder: str, minutes: float, where: pathlib.Path) -> Found:
    """Makes the long run of a scheme, and then the one that nothing happens to."""
    copy, logdir = launch.copy_of(folder, where), where / "logdir"
    found = Found(folder, memory={name: [] for name in TASKS[folder]})
    pairs = itertools.cycle(itertools.product(FAULTS, TASKS[folder]))
    draw = random.Random(f"long run of {folder}")
    with hosts.Hosts(*TASKS[folder]) as net:
        run = Run(net, copy, logdir)
        run.start(10**9)
        chief = run.tasks["worker-0"]
        moved.wait_for(lambda: any("  loss " in x for x in moved.lines_of(chief)), 200)
        began = due = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            strikes = []
            while (now := time.monotonic() - began) < 60 * minutes:
                look(run, now, found)
                if now > due - began + EVERY and now < 60 * (minutes - 1):
                    due += EVERY
                    fault, name = next(pairs)
                    seconds = 0.0 if fault == "kill" else draw.uniform(1, 25)
                    found.faults.append((now, fault, name, seconds))
                    strikes.append(pool.submit(run.strike, name, fault, seconds))
                    say(folder, now, found, chief)
                time.sleep(SAMPLE)
            for strike in strikes:
                strike.result()
        first = list(run.tasks.values())
        for name in run.names:
            run.tasks[name].over = True
            run.signal(name, signal.SIGTERM)
        run.join(120)
        steps = launch.saved_step(logdir) + LAST
        run.start(steps)
        found.statuses = run.join(300)
        found.seconds = time.monotonic() - began
        tasks = [*first, *run.tasks.values()]
        for task in tasks:
            task.over = True
        lines = [line for task in tasks for line in moved.lines_of(task)]
        found.starts = {
            name: len(task.launches)
            for name, task in zip(run.names, first, strict=True)
        }
    found.tracebacks = sum("Traceback" in line for line in lines)
    found.result = launch.result_if_there(logdir)
    found.undisturbed = undisturbed(copy, folder, steps, where / "undisturbed")
    return found


def look(run: Run, now: float, found: Found) -> None:
    """Notes the memory of every task."""
    for name in run.names:
        try:
            process = psutil.Process(run.tasks[name].launches[-1].process.pid)
            found.memory[name].append((now, process.memory_info().rss / 2**20))
        except psutil.NoSuchProcess:
            pass  # just killed


def say(folder: str, now: float, found: Found, chief: moved.Task) -> None:
    """Prints the fault that comes, and how far the run is."""
    _, fault, name, seconds = found.faults[-1]
    last = [line for line in moved.lines_of(chief) if "  loss " in line][-1]
    step = last.split()[1].partition("/")[0]
    what = f"{fault} {name} {seconds:.0f} s"
    print(f"{now / 60:5.1f} min  {folder}: step {step}; {what}", flush=True)


def undisturbed(
    copy: pathlib.Path, folder: str, steps: int, logdir: pathlib.Path
) -> dict | None:
    """Returns the result of as many updates that nothing happens to, by run.sh."""
    count = collections.Counter(name.partition("-")[0] for name in TASKS[folder])
    knobs = dict(LOGDIR=str(logdir), NUM_WORKERS=str(count["worker"]), TIMEOUT="3600")
    knobs |= {"NUM_PS": str(count["ps"])} if count["ps"] else {}
    with launch.run_sh(copy, "--steps", str(steps), **knobs) as running:
        running.wait(3600)
    return launch.result_if_there(logdir)


def growth(samples: list[tuple[float, float]]) -> float:
    """Returns by what part a task's memory grew, third quarter to last quarter.

    Between two starts of its process memory climbs to its level within seconds, so
    that medians of many samples are compared.
    """
    end = samples[-1][0]
    third = [mib for at, mib in samples if 0.5 * end <= at < 0.75 * end]
    last = [mib for at, mib in samples if 0.75 * end <= at]
    return statistics.median(last) / statistics.median(third) - 1


def verdict(found: Found) -> list[str]:
    """Returns what is wrong with a long run."""
    wrong = []
    if set(found.statuses.values()) != {0}:
        wrong.append(f"statuses {found.statuses}")
    wrong += launch.wrong_stats(found.result)
    wrong += [f"{found.tracebacks} tracebacks"] if found.tracebacks else []
    for name, samples in found.memory.items():
        if growth(samples) > GROWTH:
            wrong.append(f"the memory of {name} grew by {growth(samples):.1%}")
    if found.result and found.undisturbed:
        lost = found.undisturbed["test_accuracy"] - found.result["test_accuracy"]
        wrong += [f"{lost:.4f} less accuracy"] if lost > POINTS else []
    else:
        wrong.append("no result to compare with")
    return wrong


def table(done: list[Found], minutes: float) -> str:
    """Returns the runs as Markdown."""
    lines = [
        f"`sudo .venv/bin/python survey/long_run.py --minutes {minutes:g}`, "
        f"2 cores with other work, {datetime.date.today()}, "
        f"commit {launch.commit()}.\n",
        "| | " + " | ".join(found.folder for found in done) + " |",
        "|---" * (len(done) + 1) + "|",
    ]

    def row(what: str, of) -> None:
        lines.append(f"| {what} | " + " | ".join(of(found) for found in done) + " |")

    def faults(found: Found) -> str:
        counts = collections.Counter(fault for _, fault, *_ in found.faults)
        return ", ".join(f"{counts[fault]} {fault}s" for fault in FAULTS)

    def usual(samples: list[tuple[float, float]]) -> str:
        """Returns the median of the memory in the second half of the time, in MiB."""
        half = [mib for at, mib in samples if at > samples[-1][0] / 2]
        return f"{statistics.median(half):.0f}"

    def accuracy(result: dict | None) -> str:
        return f"{result['test_accuracy']:.4f}" if result else "–"

    row("minutes", lambda f: f"{f.seconds / 60:.0f}")
    row("faults", faults)
    row("starts of a process", lambda f: f"{sum(f.starts.values())}")
    row("updates", lambda f: f"{f.result['global_steps']:,}" if f.result else "–")
    row("counters", lambda f: "; ".join(launch.wrong_stats(f.result)) or "exact")
    row("test accuracy", lambda f: accuracy(f.result))
    row("the same without a fault", lambda f: accuracy(f.undisturbed))
    row(
        "memory of each task, MiB (growth in the second half)",
        lambda f: ", ".join(
            f"{name} {usual(samples)} ({growth(samples):+.1%})"
            for name, samples in f.memory.items()
        ),
    )
    row("what is wrong", lambda f: "; ".join(verdict(f)) or "nothing")
    return "\n".join(lines) + "\n"


def draw(done: list[Found], path: pathlib.Path) -> None:
    """Draws the memory of every task against time, and a tick for each fault."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(len(done), 1, figsize=(9, 3.2 * len(done)), sharex=True)
    for ax, found in zip([axes] if len(done) == 1 else axes, done, strict=True):
        for name, samples in found.memory.items():
            times, mib = zip(*samples, strict=True)
            ax.plot([t / 60 for t in times], mib, label=name, linewidth=1)
        for at, *_ in found.faults:
            ax.axvline(at / 60, ymax=0.04, color=figures.DARK, linewidth=1)
        ax.set(title=found.folder, ylabel="MiB", ylim=(0, None))
        ax.legend(loc="lower right", ncols=4)
    ax.set_xlabel("minutes; a tick at the bottom is a fault")
    figure.tight_layout()
    figures.save(figure, path)


def main() -> int:
    """Makes the runs side by side; status 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--only", choices=TASKS, help="one scheme")
    parser.add_argument("--write", type=pathlib.Path, help="where the table goes")
    args = parser.parse_args()
    if reason := hosts.missing():
        parser.error(reason)
    moved.RESTARTS = 10**6
    folders = [args.only] if args.only else [*TASKS]
    print(f"{args.minutes:g} minutes, and some for the run without a fault", flush=True)
    with tempfile.TemporaryDirectory() as where:
        with concurrent.futures.ThreadPoolExecutor(len(folders)) as pool:
            runs = [
                pool.submit(train, f, args.minutes, pathlib.Path(where, f))
                for f in folders
            ]
            done = [run.result() for run in runs]
    text = table(done, args.minutes)
    print(text)
    if args.write:
        picture = f"\n![memory of each task against time]({args.write.stem}.svg)\n"
        args.write.write_text(text + picture)
        kept = [dataclasses.asdict(found) for found in done]
        args.write.with_suffix(".json").write_text(json.dumps(kept) + "\n")
        draw(done, args.write)
    return int(any(verdict(found) for found in done))


if __name__ == "__main__":
    sys.exit(main())
