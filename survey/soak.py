"""Soak: many short runs at random, each of which has to end well.

    python survey/soak.py                       1,000 runs
    python survey/soak.py --runs 20 --seed 7    the first twenty that seed 7 draws
    python survey/soak.py --seed 7 --first 12 --runs 1      the thirteenth alone

A run has a scheme of any family, ps, workers, flags, a straggler, and a fault: a task
is killed, stopped for 1 to 30 s or told to end and started again, the whole run is told
to end and begun again, or a host is cut off for 1 to 30 s. All is drawn from the seed,
which is printed. Most runs are by run.sh, some by hand with each task on a host of its
own, some by an engine. A run is as it should be if it ends by itself with status 0, all
updates, counters that are exact, no traceback and no process left.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
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

TIMEOUT = 240  # seconds of a run
FAULTS = ("none", "none", "none", "kill", "kill", "kill", "stop", "stop", "term", "end")
WAYS = {"run.sh": 25, "hosts": 3, "MPI": 1, "Slurm": 1, "Several-Hosts": 1}
# Schemes that an engine or hosts are tried with: what differs there is no scheme's.
OUTSIDE = ("HogWild", "AEASGD", "Synchronous-SGD", "Ring-All-Reduce", "Local-SGD")
FAMILIES = ("ps", "peers", "gossip", "client", "table", "program")
SLOWEST = 20  # seconds that the sleeps of a worker may take together
LOCK = threading.Lock()  # a machine has one Slurm


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
    way: str = "run.sh"
    seconds: float = 0  # of a stop or a cut


OWN = {  # flags that one scheme has
    "staleness": ["0", "1", "4"],
    "variance": ["constant", "adaptive"],
    "method": ["topk", "random_k", "sign", "int8"],
    "stage": ["0", "1", "2", "3"],
    "graph": ["ring", "exponential", "complete"],
    "issync": ["0", "1"],
}
WEIGHTS = ["constant", "polynomial", "hinge"]  # FedBuff's --staleness


@functools.cache
def flags_of(folder: str) -> frozenset[str]:
    """Returns the names of the flags that an example's own code adds."""
    code = (launch.REPO / folder).glob("**/*.py")
    return frozenset(re.findall(r'"--(\w+)"', "".join(p.read_text() for p in code)))


def draw(seed: int, number: int) -> Case:
    """Returns run `number` of those that a seed stands for."""
    rng = random.Random(f"{seed} {number}")
    (way,) = rng.choices([*WAYS], [*WAYS.values()])
    everything = [f for family in FAMILIES for f in registry.folders(family)]
    folder = rng.choice(everything if way == "run.sh" else OUTSIDE)
    family = registry.of(folder).family
    # Distributed-Setup is one worker's.
    workers = 1 if folder == "Distributed-Setup" else rng.randint(1, 4)
    workers = 2 if way != "run.sh" else workers
    ps = 0 if family in ("peers", "gossip") else rng.randint(1, 3)
    known = flags_of(folder)
    steps = rng.choice([1, 2, 3, 5, 17, 40, 101, 300])
    window = rng.choice([1, 2, 5, 16]) if "window" in known else 1
    flags = ["--steps", str(steps)]
    # Micro-batches of a pipeline divide a mini-batch.
    flags += ["--batch_size", rng.choice(["8", "32"] + ["1"] * (family != "client"))]
    flags += ["--window", str(window)] if "window" in known else []
    if "replicas_to_aggregate" in known and family == "ps":
        flags += ["--replicas_to_aggregate", str(rng.randint(1, workers))]
    if "fragments" in known:
        two = window >= 5 and rng.random() < 0.3 and window % 2 == 0
        flags += ["--fragments", "2" if two else "1"]
        # An exchange of Decoupled-DiLoCo divides a window.
        odd = window % 2 and folder == "Decoupled-DiLoCo"
        flags += ["--overlap", "1"] if odd else []
    for name, values in OWN.items():
        if name in known:
            weights = folder == "FedBuff" and name == "staleness"
            flags += [f"--{name}", rng.choice(WEIGHTS if weights else values)]
    sleeps = ["0", "0", "0.001"] + ["0.02"] * (0.02 * steps * window <= SLOWEST)
    if rng.random() < 0.5:
        slow = ",".join(rng.choice(sleeps) for _ in range(workers))
        # A stage of a pipeline cannot be made slow, and says so.
        flags += ["--slow_workers", slow] if folder != "Model-Parallelism" else []
    flags += ["--save_seconds", rng.choice(["0.3", "1", "30"])]
    job = rng.choice(["ps", "worker"]) if ps else "worker"
    victim = job, rng.randrange(ps if job == "ps" else workers)
    fault, after = rng.choice(FAULTS), rng.uniform(0, 8)
    if way != "run.sh":
        fault = "cut" if way == "hosts" else "none"
        flags[1] = "300"  # so that the cut meets it
        flags += ["--slow_workers", str(0.03 / window)]
    seconds = round(rng.uniform(1, 30), 1) if fault in ("stop", "cut") else 0
    return Case(folder, ps, workers, tuple(flags), fault, victim, after, way, seconds)


def run(case: Case, where: pathlib.Path) -> list[str]:
    """Makes the run; returns what is wrong with it and, if anything is, its output."""
    logdir = where / "logdir"
    ways = {"run.sh": by_run_sh, "hosts": on_hosts}
    status, left, output = ways.get(case.way, by_engine)(case, where, logdir)
    wrong = [] if status == 0 else [f"status {status}"]
    wrong += ["a task is left"] if left else []
    wrong += ["a traceback"] if "Traceback" in output else []
    for log in logdir.glob("*.log"):
        if "Traceback (most recent call last)" in log.read_text(errors="replace"):
            wrong.append(f"a traceback in {log.name}")
    if status == 0:
        wrong += launch.wrong_stats(launch.result_if_there(logdir))
    return [*wrong, output] if wrong else []


def by_run_sh(
    case: Case, where: pathlib.Path, logdir: pathlib.Path
) -> tuple[int, bool, str]:
    """Returns (status, is a task left, output) of a run by the example's run.sh."""
    copy, flags = launch.copy_of(case.folder, where), list(case.flags)
    if registry.of(case.folder).family == "program":
        flags += ["--data", records(where)]
    environment = dict(
        NUM_WORKERS=str(case.workers),
        LOGDIR=str(logdir),
        TIMEOUT=str(TIMEOUT),
        MAX_RESTARTS="3",
    )
    environment |= {"NUM_PS": str(case.ps)} if case.ps else {}
    with launch.run_sh(copy, *flags, **environment) as running:
        if case.fault != "none":
            running.wait_for("logdir")
            time.sleep(case.after)
            strike(running, case)
        status = running.wait(TIMEOUT + 30)
        left, output = bool(running.tasks()), running.output
    if case.fault == "end" and status == 143:
        with launch.run_sh(copy, *flags, **environment) as running:
            status = running.wait(TIMEOUT + 30)
            left, output = left or bool(running.tasks()), output + running.output
    return status, left, output


def strike(running: launch.Launch, case: Case) -> None:
    """Kills a task, stops it for some seconds, or tells it or the run to end."""
    if case.fault == "end":
        running.process.send_signal(signal.SIGTERM)
        return
    signals = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
    # AssertionError: it has not started yet, or has left.
    with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
        task = running.task(*case.victim)
        if "--check" in task.cmdline():  # run.sh looks at the flags; no task runs yet
            return
        task.send_signal(signals[case.fault])
        if case.fault == "stop":
            time.sleep(case.seconds)
            task.send_signal(signal.SIGCONT)


def on_hosts(
    case: Case, where: pathlib.Path, logdir: pathlib.Path
) -> tuple[int, bool, str]:
    """The same by hand; whoever ends with another status than 0 is started again."""
    copy = launch.copy_of(case.folder, where)
    names = [f"ps-{k}" for k in range(case.ps)]
    names += [f"worker-{k}" for k in range(case.workers)]
    flags = [*case.flags, "--patience", "90", "--logdir", str(logdir)]
    with hosts.Hosts(*names) as net:
        tasks = {
            name: moved.Task(moved.start(net, copy, flags, names, name))
            for name in names
        }
        for task in tasks.values():
            task.start()
        moved.wait_for_line(tasks["worker-0"], "  loss ", seconds=120)
        name = "-".join(map(str, case.victim))
        net.cut(name)
        time.sleep(case.seconds)
        net.mend(name)
        end = time.monotonic() + TIMEOUT
        for task in tasks.values():
            task.join(max(0, end - time.monotonic()))
        left = any(task.is_alive() for task in tasks.values())
        status = max((task.status or 0 for task in tasks.values()), key=abs)
        for task in tasks.values():
            task.over = True
        lines = [f"{n}: {x}" for n in names for x in moved.lines_of(tasks[n])]
    return status, left, "\n".join(lines)


def by_engine(
    case: Case, where: pathlib.Path, logdir: pathlib.Path
) -> tuple[int, bool, str]:
    """The same by an engine."""
    script = launch.REPO / "Engines" / case.way / "run.sh"
    knobs = dict(LOGDIR=str(logdir), NUM_WORKERS=str(case.workers))
    knobs |= {"NUM_PS": str(case.ps)} if case.ps else {}
    with LOCK if case.way == "Slurm" else contextlib.nullcontext():
        done = subprocess.run(
            ["bash", str(script), case.folder, *case.flags],
            env=launch.environment(**knobs),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    return done.returncode, False, done.stdout


def records(where: pathlib.Path) -> str:
    """Returns a folder with the digits as records, which the program reads."""
    script = launch.REPO / "Distributed-MNIST" / "prepare.py"
    folder = str(where / "records")
    command = [sys.executable, "-B", str(script), "digits", folder]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def tried(seed: int, number: int) -> tuple[int, Case, list[str]]:
    """Makes a run of a seed; an error of the tool itself is something wrong too."""
    case = draw(seed, number)
    try:
        with tempfile.TemporaryDirectory() as where:
            wrong = run(case, pathlib.Path(where))
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    return number, case, wrong


def main() -> int:
    """Makes the runs; prints each that is wrong; status 1 if there was one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--jobs", type=int, default=6, help="runs at once")
    args = parser.parse_args()
    print(f"seed {args.seed}: {args.runs} runs", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        numbers = range(args.first, args.first + args.runs)
        runs = [pool.submit(tried, args.seed, number) for number in numbers]
        for done, future in enumerate(concurrent.futures.as_completed(runs), 1):
            number, case, wrong = future.result()
            failed += bool(wrong)
            text = "\n  ".join(wrong) or "holds"
            print(f"{done}/{args.runs} run {number}: {case}: {text}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
