"""What people would choose instead: the schemes beside PyTorch, Ray, Horovod and tf.

    nobody waits  HogWild, tf's ClusterCoordinator, a parameter server over
                  torch.distributed.rpc, Ray's asynchronous parameter server
    all wait      Ring-All-Reduce, Synchronous-SGD, PyTorch's DistributedDataParallel
                  over gloo, tf's MultiWorkerMirroredStrategy, Horovod

Each trains the digits' perceptron with mini-batches of 32, and the same model with
25 million parameters and mini-batches of one, in turn. The programs of PyTorch and Ray
are in choices/. They have the same data, model, start and rate as problem.py.

The rate is of all workers, for those that wait in updates. It is counted between two
lines `step n/N` that a run prints: the first one a second after all workers had begun,
and the last. ClusterCoordinator prints no lines; its program begins to count after as
many steps as a second has. A run whose model has not learned gives no result.

    python benchmarks/choices.py --environments ENVS     makes them, then measures
    python benchmarks/choices.py --only hogwild,ring --quick

PyTorch and Ray come from choices-requirements.txt into ENVS/pytorch, which takes some
minutes and 1.3 GB, and Horovod into ENVS/horovod, where it is compiled. Without the
flag they are made in a folder that is thrown away. While they run, anyone who reaches a
port of PyTorch or Ray reaches the run. The schemes have a network of their own.
"""

import collections
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import time

import large
import numpy as np
import psutil
import runs

from coordinator import problem

PROGRAMS = runs.HERE / "choices"
REQUIREMENTS = runs.HERE / "choices-requirements.txt"
CLOCK = re.compile(r" at (\d+\.\d+) s$")
ACCURACY = re.compile(r'test[ _]accuracy"?:? (\d\.\d+)')
LEARNED = 0.9  # test accuracy on the digits, at least
LINES = 20  # of a run of choices/; the examples have ten
WARM_UP, LEAST = 1.0, 2.0  # seconds before the window, and of the window at least

# Units of the hidden layer, examples of a mini-batch, learning rate.
Work = collections.namedtuple("Work", "hidden batch_size learning_rate")
WORKS = {
    "digits": Work(64, 32, 0.1),
    "vector": Work(333_333, 1, 1e-6),  # nearly nothing is computed
}

# A row of the tables: who it is, do all wait, numbers of workers, steps/s on 2 cores
# with two workers (a guess, by which the number of steps is chosen), how it starts:
# start(work, workers, steps, place) returns a command and its environment.
Choice = collections.namedtuple("Choice", "label waits workers guess start")
# Where a run finds what it needs: its own folder, its data, the environments.
Place = collections.namedtuple("Place", "folder data args stack")


# --- How each is started ------------------------------------------------------


def flags_of(work, steps, data):
    """Returns the flags that all but torchrun have."""
    flags = ["--data", data, "--batch_size", work.batch_size, "--steps", steps]
    return [*flags, "--learning_rate", work.learning_rate]


def example(folder, *program):
    """Returns the start of an example: `bash run.sh` of its folder."""

    def start(work, workers, steps, place):
        units = place.folder / "units.py"
        units.write_text(f"HIDDEN = {work.hidden}\n")
        changed = runs.variant(runs.REPO / folder, None, {"problem.py": units})
        source = place.stack.enter_context(changed)
        flags = [*flags_of(work, steps, place.data), "--save_seconds", 3600]
        command = ["bash", source / "run.sh", *program, *flags]
        logdir = dict(LOGDIR=place.folder / "logdir", NUM_WORKERS=workers)
        horovod = {"HOROVOD_VENV": place.args.horovod} if folder == HOROVOD else {}
        return command, runs.environment(**logdir, **horovod)

    return start


def coordinator(work, workers, steps, place):
    """Starts coordinator.py, which has HogWild's model under ClusterCoordinator."""
    flags = [*flags_of(work, steps, place.data), "--workers", workers]
    flags += ["--hidden", work.hidden, "--warm_up", max(1, steps // place.args.seconds)]
    flags += ["--join_every", max(1, steps // 4)]
    return [runs.PYTHON, runs.HERE / "coordinator.py", *flags], runs.environment()


def pytorch(program):
    """Returns the start of a program of choices/.

    A process has one thread for an operation: on two cores two threads were slower.
    """

    def start(work, workers, steps, place):
        command = [place.args.pytorch]
        if program == "ddp.py":
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", workers]
        command += [PROGRAMS / program, *flags_of(work, steps, place.data)]
        command += ["--hidden", work.hidden, "--workers", workers]
        # All on this machine, as with the schemes. Ray would make its actors nice, and
        # report to its makers.
        own = dict(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1)
        own |= dict(RAY_worker_niceness=0, RAY_USAGE_STATS_ENABLED=0)
        # Or Ray writes a token into the home directory.
        own |= dict(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        own |= dict(PYTHONDONTWRITEBYTECODE=1, CUDA_VISIBLE_DEVICES="")
        own |= dict(TMPDIR=place.folder, RAY_TMPDIR=place.folder)
        # What the schemes have, of launch.py: without it 100 MB take longer.
        own |= dict(MALLOC_MMAP_MAX_=0, MALLOC_TRIM_THRESHOLD_=-1)
        return command, runs.environment(**own)

    return start


HOGWILD, RING, SYNC = "HogWild", "Ring-All-Reduce", "Synchronous-SGD"
STRATEGIES, HOROVOD = "TensorFlow-2", "Horovod"
FOLDERS = HOGWILD, RING, SYNC, STRATEGIES, HOROVOD
CHOICES = {
    "hogwild": Choice(HOGWILD, False, (2, 4), (1100, 8), example(HOGWILD)),
    "coordinator": Choice("ClusterCoordinator", False, (2,), (450, 8), coordinator),
    "rpc": Choice(
        "torch.distributed.rpc", False, (2, 4), (1500, 10), pytorch("rpc.py")
    ),
    "ray": Choice("Ray", False, (2, 4), (450, 15), pytorch("ray_ps.py")),
    "ring": Choice(RING, True, (2, 4), (500, 4), example(RING)),
    "synchronous": Choice(SYNC, True, (2,), (500, 4), example(SYNC)),
    "ddp": Choice("PyTorch DDP, gloo", True, (2, 4), (600, 12), pytorch("ddp.py")),
    "mirrored": Choice(
        "MultiWorkerMirroredStrategy",
        True,
        (2,),
        (500, 10),
        example(STRATEGIES, "multi_worker_mirrored.py"),
    ),
    "horovod": Choice(HOROVOD, True, (2,), (220, 10), example(HOROVOD)),
}
OURS = {False: "hogwild", True: "ring"}  # what a table compares with
IN_PYTORCH = {"rpc", "ray", "ddp"}


# --- Environments -------------------------------------------------------------


def make_pytorch(folder):
    """Returns the interpreter that has PyTorch and Ray; makes its environment once.

    It is whole if a stamp, written last, has the version and the requirements.
    """
    folder.mkdir(exist_ok=True)
    python, stamp = folder / "bin" / "python", folder / "stamp"
    wanted = f"Python {platform.python_version()}\n{REQUIREMENTS.read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installs PyTorch and Ray into {folder}, some minutes", file=sys.stderr)
    install = ["-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    log = folder / "pip.log"
    for command in (
        [sys.executable, "-m", "venv", "--clear", folder],
        [python, *install, "--log", log, "--requirement", REQUIREMENTS],
    ):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with runs.process(command, **pipes) as child:
            text, _ = child.communicate()
        if child.returncode:
            last = (text.strip() or "no reason given").splitlines()[-1]
            raise runs.Unfinished(f"PyTorch and Ray cannot be installed: {last}")
    runs.write(stamp, wanted)
    return python


def make_horovod(folder):
    """Returns the folder of Horovod's environment; makes it once, as its run.sh does.

    None if something is missing that it is compiled with; a sentence says what.
    """
    env = runs.environment(HOROVOD_VENV=folder)
    script = 'source "$1"; is_made || make_environment'
    command = ["bash", "-euc", script, "-", runs.REPO / HOROVOD / "environment.sh"]
    with runs.process(command, env=env, stdout=sys.stderr) as child:
        child.wait()
    if child.returncode:
        print("choices.py: without Horovod, see above", file=sys.stderr)
        return None
    return folder


# --- A run --------------------------------------------------------------------


@contextlib.contextmanager
def nothing_left():
    """Ends every process that was started inside, also those that left their group.

    On Linux who loses its parent becomes a child of this process: Ray's are many.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        until = time.monotonic() + 10
        while left := psutil.Process().children(recursive=True):
            for one in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(left, 1)
            if time.monotonic() > until:
                break


def rate_of(lines, warm_up, least, result=None):
    """Returns the steps/s between two lines `step n/N` of [(time, line)].

    The first is `warm_up` seconds after all workers had begun, the last is the end. In
    result.json is when they began; else they began with the first line. Raises
    Unfinished if there are fewer than `least` seconds between the two.
    """
    found = []
    for when, line in lines:
        if match := runs.FINAL.search(line):
            clock = CLOCK.search(line)  # a program's own is exact on a busy machine
            when = float(clock[1]) if clock else when
            found.append((when, int(match[1]), int(match[2])))
    found.sort()
    ends = [when for when, step, steps in found if step == steps]
    if not ends:
        raise runs.Unfinished("no line of the last step")
    begin, end = found[0][0], ends[0]
    if result:
        begin = end - result["seconds"] + result.get("seconds_to_all_started", 0)
    window = [(when, n) for when, n, _ in found if begin + warm_up <= when <= end]
    (first, before), (last, after) = (window or [(end, 0)])[0], (end, found[0][2])
    if last - first <= least:
        text = f"timed for {last - first:.1f} s only; a fast machine needs more:"
        raise runs.Unfinished(f"{text} --seconds")
    return (after - before) / (last - first)


def measure(name, kind, workers, args):
    """Runs a choice; returns its rate, its test accuracy and the seconds of the run."""
    choice, work = CHOICES[name], WORKS[kind]
    # With four workers on two cores those that wait make half the updates.
    guess = choice.guess[kind == "vector"] * (2 / workers if choice.waits else 1)
    # A multiple of the lines that a run prints, or the last step may have none.
    steps = LINES * max(1, round(guess * args.seconds * args.scale / LINES))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
        folder = pathlib.Path(folder)
        data = large.rows_of(folder) if kind == "vector" else digits(folder)
        place = Place(folder, data, args, stack)
        command, env = choice.start(work, workers, steps, place)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        stack.enter_context(nothing_left())
        began = time.monotonic()
        child = stack.enter_context(runs.process(command, env=env, **pipes))
        reader = runs.Lines(child.stdout)
        try:
            child.wait(args.timeout)
        except subprocess.TimeoutExpired:
            raise runs.too_slow(name, args.timeout) from None
        seconds = time.monotonic() - began
        reader.join(5)
        text = "".join(f"{when - began:7.2f}  {line}\n" for when, line in reader.lines)
        if args.logs:
            runs.write(args.logs / f"{name}-{kind}-{workers}-{args.number}.log", text)
            args.number += 1
        if child.returncode:
            status = f"{name}, {kind}: status {child.returncode}"
            raise runs.Unfinished(f"{status}\n{text[-2000:]}")
        path = folder / "logdir" / "result.json"
        result = json.loads(path.read_text()) if path.exists() else None
        if name == "coordinator":
            rate = json.loads(reader.lines[-1][1])["steps_per_second"]
        else:
            rate = rate_of(reader.lines, *args.window, result)
    accuracy = float(ACCURACY.findall(text)[-1])
    if kind == "digits" and accuracy < args.learned:
        raise runs.Unfinished(f"{name}: test accuracy {accuracy}: it has not learned")
    return {
        "steps_per_second": rate,
        "test_accuracy": accuracy,
        "steps": steps,
        "seconds": seconds,
    }


def digits(folder):
    """Writes the digits into a file of the folder, and returns its path."""
    path = folder / "digits.npz"
    np.savez(path, **problem.load("digits")._asdict())
    return path


def jobs_of(args):
    """Returns the jobs of a round: each choice once with each work and number."""
    jobs = []
    for kind in WORKS:
        for name in args.only:
            if name == "horovod" and not args.horovod:
                continue
            for workers in CHOICES[name].workers[: 1 if args.quick else None]:
                make = functools.partial(measure, name, kind, workers, args)
                cost = (args.seconds + 7) * args.scale
                jobs.append(
                    runs.Job(key(kind, name, workers), (name,), max(cost, 8), make)
                )
    return jobs


def key(kind, name, workers):
    """Returns what a measurement is called in the JSON."""
    return f"{kind}: {CHOICES[name].label}, {runs.workers(workers)}"


# --- Tables -------------------------------------------------------------------


def markdown(rounds, versions):
    """Returns the two tables: those that do not wait, and those that do."""
    texts = []
    for waits, title in ((False, "Nobody waits"), (True, "All wait for each other")):
        what = "updates/s" if waits else "steps/s of all workers"
        ours = CHOICES[OURS[waits]].label
        header = [""]
        for work in WORKS.values():
            header += [f"{what}, {75 * work.hidden + 10:,} numbers", f"{ours} over it"]
        rows = []
        for name, choice in CHOICES.items():
            if choice.waits != waits:
                continue
            for workers in choice.workers:
                rows.append(row(rounds, name, workers, OURS[waits]))
        texts.append(f"### {title}\n\n" + runs.table(header, rows))
    found = [
        result["test_accuracy"]
        for measured in rounds
        for name, result in measured.items()
        if name.startswith("digits")
    ]
    said = f"Median of up to {len(rounds)} rounds, smallest and largest in brackets. "
    said += "A rate without brackets is of one round.\n"
    said += f"\nWith {versions}.\n"
    if found:
        low, high = min(found), max(found)
        said += f"Test accuracy on the digits was {low:.3f} to {high:.3f}.\n"
    return said + "\n" + "\n".join(texts)


def row(rounds, name, workers, ours):
    """Returns the cells of a row."""
    cells = [f"{CHOICES[name].label}, {runs.workers(workers)}"]
    for kind in WORKS:
        rates, of_ours = (
            runs.series(rounds, key(kind, one, workers), "steps_per_second")
            for one in (name, ours)
        )
        ratio = runs.spread(runs.ratios(of_ours, rates), 2)
        cells += [runs.spread(rates, 0 if kind == "digits" else 2), ratio]
    return cells


def versions_of():
    """Returns a sentence's part with the versions and the machine."""
    found = f"Python {platform.python_version()}"
    for pip, path in (
        ("tensorflow", runs.REPO / "requirements.txt"),
        ("torch", REQUIREMENTS),
        ("ray", REQUIREMENTS),
        ("horovod", runs.REPO / HOROVOD / "requirements.txt"),
    ):
        number = re.search(rf"^{pip}==([\d.]+)", path.read_text(), re.M)[1]
        found += f", {pip} {number}"
    return f"{found}, on {os.cpu_count()} cores"


# --- The measurement ----------------------------------------------------------


def main():
    parser = runs.measuring_parser(__doc__, tuple(CHOICES))
    add, folder = parser.add_argument, runs.output_folder
    add("--environments", type=folder, help="of PyTorch, Ray, Horovod; made if missing")
    add("--seconds", type=runs.positive_int, default=7, help="of a run, about")
    add("--logs", type=folder, help="folder for what each run prints")
    with (
        runs.finished(parser.parse_args()) as args,
        contextlib.ExitStack() as stack,
        nothing_left(),
    ):
        runs.STARTS.forks = False  # `nothing_left` would end what forks them
        args.number, args.learned, args.scale = 0, LEARNED, 1.0
        args.window = WARM_UP, LEAST
        if args.quick:
            args.learned, args.scale, args.window = 0.0, 0.05, (0.0, 0.0)
            WORKS["vector"] = WORKS["vector"]._replace(hidden=3_333)
        if args.environments is None:
            made = tempfile.TemporaryDirectory(prefix="benchmark-")
            args.environments = pathlib.Path(stack.enter_context(made))
        args.pytorch = args.horovod = None
        if IN_PYTORCH & set(args.only):
            args.pytorch = make_pytorch(args.environments / "pytorch")
        if "horovod" in args.only:
            there = os.environ.get("HOROVOD_VENV", args.environments / "horovod")
            args.horovod = make_horovod(pathlib.Path(there))
        folders = *FOLDERS, "benchmarks/choices"
        code = {folder: runs.fingerprint(folder) for folder in folders}
        rounds, progress = runs.in_rounds(jobs_of(args), args, "choices", code)
        text = markdown(rounds, versions_of())
        runs.publish(args, "choices", text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
