"""Soak: many short runs at random, each of which has to end well.

    python tests/soak.py                       1,000 runs, three at once
    python tests/soak.py --runs 20 --seed 7    the first twenty that seed 7 draws
    python tests/soak.py --seed 7 --first 12 --runs 1      the thirteenth alone

A run has a scheme, ps, workers, a window, a straggler and now and then a task that is
killed or stopped, all drawn from the seed, which is printed. It is as it should be if
it ends by itself with status 0, counters that are exact, no traceback and no process
left.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import pathlib
import random
import signal
import sys
import tempfile
import time

import launch
import psutil
from launch import registry

TIMEOUT = 120  # seconds of a run
FAULTS = ("none", "none", "kill", "kill", "stop")


@dataclasses.dataclass(frozen=True)
class Case:
    """One run: what is started, and what happens to it `after` seconds."""

    folder: str
    ps: int
    workers: int
    flags: tuple[str, ...]
    fault: str
    victim: tuple[str, int]
    after: float


OWN = {  # flags that one scheme has
    "staleness": ["0", "1", "4"],
    "variance": ["constant", "adaptive"],
    "method": ["topk", "random_k", "sign", "int8"],
}


def draw(seed: int, number: int) -> Case:
    """Returns run `number` of those that a seed stands for."""
    rng = random.Random(f"{seed} {number}")
    folder = rng.choice(registry.folders("ps"))
    # Distributed-Setup is one worker's.
    workers = 1 if folder == "Distributed-Setup" else rng.randint(1, 4)
    ps = rng.randint(1, 2)
    args = launch.defaults_of(folder)
    flags = ["--steps", str(rng.choice([1, 2, 3, 5, 17, 40, 101, 300]))]
    flags += ["--batch_size", str(rng.choice([1, 8, 32]))]
    if hasattr(args, "window"):
        flags += ["--window", str(rng.choice([1, 2, 5, 16]))]
    if hasattr(args, "replicas_to_aggregate"):
        flags += ["--replicas_to_aggregate", str(rng.randint(1, workers))]
    for name, values in OWN.items():
        if hasattr(args, name):
            flags += [f"--{name}", rng.choice(values)]
    if rng.random() < 0.5:
        slow = [rng.choice(["0", "0", "0.001", "0.02"]) for _ in range(workers)]
        flags += ["--slow_workers", ",".join(slow)]
    flags += ["--save_seconds", rng.choice(["0.3", "1", "30"])]
    job = rng.choice(["ps", "worker"])
    victim = job, rng.randrange(ps if job == "ps" else workers)
    fault, after = rng.choice(FAULTS), rng.uniform(0, 6)
    return Case(folder, ps, workers, tuple(flags), fault, victim, after)


def run(case: Case, where: pathlib.Path) -> list[str]:
    """Makes the run; returns what is wrong with it and, if anything is, its output."""
    copy, logdir = launch.copy_of(case.folder, where), where / "logdir"
    environment = dict(
        NUM_PS=str(case.ps),
        NUM_WORKERS=str(case.workers),
        LOGDIR=str(logdir),
        TIMEOUT=str(TIMEOUT),
        MAX_RESTARTS="3",
    )
    with launch.run_sh(copy, *case.flags, **environment) as running:
        if case.fault != "none":
            running.wait_for("logdir")
            time.sleep(case.after)
            try:
                task = running.task(*case.victim)
            except AssertionError:
                pass  # it has not started yet, or has left
            else:
                strike(task, case.fault)
        status = running.wait(TIMEOUT + 30)
        left = running.tasks()
    wrong = [] if status == 0 else [f"status {status}"]
    wrong += ["a task is left"] if left else []
    wrong += ["a traceback"] if "Traceback" in running.output else []
    for log in logdir.glob("*.log"):
        if "Traceback (most recent call last)" in log.read_text(errors="replace"):
            wrong.append(f"a traceback in {log.name}")
    if status == 0:
        wrong += launch.wrong_stats(launch.result_if_there(logdir))
    return [*wrong, running.output] if wrong else []


def strike(task: object, fault: str) -> None:
    """Kills a task, or stops it for three seconds."""
    try:
        task.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "stop":
            time.sleep(3)
            task.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        pass


def tried(seed: int, number: int) -> tuple[int, Case, list[str]]:
    """Makes a run of a seed; an error of the tool itself is something wrong too."""
    case = draw(seed, number)
    try:
        with tempfile.TemporaryDirectory() as where:
            return number, case, run(case, pathlib.Path(where))
    except Exception as error:
        return number, case, [f"{type(error).__name__}: {error}"]


def main() -> int:
    """Makes the runs; prints each that is wrong; status 1 if there was one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--jobs", type=int, default=3, help="runs at once")
    args = parser.parse_args()
    print(f"seed {args.seed}: {args.runs} runs", flush=True)
    began, failed = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        numbers = range(args.first, args.first + args.runs)
        runs = [pool.submit(tried, args.seed, number) for number in numbers]
        for done, future in enumerate(concurrent.futures.as_completed(runs), 1):
            number, case, wrong = future.result()
            if wrong:
                failed += 1
                print(f"run {number}: {case}\n  " + "\n  ".join(wrong), flush=True)
            if done % 10 == 0 or done == args.runs:
                spent = time.monotonic() - began
                left = spent / done * (args.runs - done)
                print(
                    f"{done}/{args.runs}  {failed} wrong  {60 * done / spent:.1f} a"
                    f" minute  {left / 60:.0f} min left",
                    flush=True,
                )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
