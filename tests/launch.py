"""Runs an example as a user would: in a copy of its folder, by its run.sh."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence

import psutil
import pytest

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tools"))  # for the tools here that are no tests

import forkserver  # noqa: E402
import registry  # noqa: E402

THOROUGH = bool(os.environ.get("THOROUGH"))
# Tasks are forks, see forkserver.py, and their calls are short; conftest.py says where.
FORKS = False
SIZES = re.compile(r"^SIZES = \(1, (3, )?10\)", re.MULTILINE)  # rounds of a call
REFERENCE = REPO / "Distributed-Setup"
HOROVOD = REPO / "Horovod"
# A command that runs with mounts of its own.
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
LAUNCHERS = ("run.sh", "/launch.py", "/launcher.py")


# A test's graph runs a few times only: TensorFlow's optimizer, and its pass for oneDNN,
# take longer than they save. conftest.py sets this variable to "0" for the tests' own
# process, until that has imported TensorFlow: what a test starts does not inherit it.
ONE_DNN = "TF_ENABLE_ONEDNN_OPTS"


def without_optimizer(config) -> None:
    """Has a session in this process run graphs as they were built.

    `config` is its ConfigProto. With THOROUGH=1 graphs are optimized, as in a task.
    """
    config.graph_options.rewrite_options.disable_meta_optimizer = not THOROUGH


def thorough(usual: int, thorough: int) -> int:
    """Returns how often something is to be tried: THOROUGH=1 tries more."""
    return thorough if THOROUGH else usual


# A limit is for what hangs. With THOROUGH=1 four clusters at once start more slowly.
PATIENT = thorough(1, 5)
if_thorough = pytest.mark.skipif(not THOROUGH, reason="THOROUGH=1 tries it")


def some(those: Sequence, every: Sequence) -> list:
    """Returns the parameters of a test that is made with `those`, or with every one."""
    rest = [one for one in every if one not in those]
    return [*those, *(_param(one) for one in rest)]


def _param(one: object) -> object:
    values = one if isinstance(one, tuple) else (one,)
    return pytest.param(*values, marks=if_thorough)


# An engine's packages and daemons take minutes, and few have them; no change of ours
# breaks a notebook whose outputs are those of its cells.
ENGINES = THOROUGH or bool(os.environ.get("ENGINES"))
if_engines = pytest.mark.skipif(not ENGINES, reason="ENGINES=1 tries it")


def reference() -> None:
    """Makes Distributed-Setup's `cluster` and `problem` the ones that are imported.

    They are byte-identical in every folder, so that one import serves all. A module
    that the reference does not need lies where one does.
    """
    if str(REFERENCE) not in sys.path:
        sys.path.insert(0, str(REFERENCE))
    import cluster

    paths = [str(REPO / name / "cluster") for name in registry.folders()]
    cluster.__path__.extend(path for path in paths if path not in cluster.__path__)


def load(folder: str) -> types.ModuleType:
    """Imports an example's script; its cluster and problem are Distributed-Setup's."""
    reference()
    path = REPO / folder / registry.script_of(folder)
    if str(path.parent) not in sys.path:  # a script may have a file beside it
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(**changes: str) -> dict[str, str]:
    """Returns the environment of a new user, with this Python and the changes."""
    unset = ("PYTHONPATH", "TF_CONFIG", "LOGDIR", "BASE_PORT", "TIMEOUT", "NUM_PS")
    unset += ("OPEN_PORTS", "LAUNCHED_BY", "ALONE", "SCRIPT")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    # Copies share the environment that takes minutes.
    env.setdefault("HOROVOD_VENV", str(HOROVOD / ".venv"))
    # Fault-Tolerance is an example like the others as long as nobody is killed.
    return {**env, "PYTHON": sys.executable, "KILL": "", **changes}


def horovod() -> str:
    """Returns why Horovod cannot be had, "" if it can; THOROUGH=1 compiles it first."""
    env = environment(OPEN_PORTS="1")
    if not THOROUGH and not (pathlib.Path(env["HOROVOD_VENV"]) / "stamp").exists():
        return "it is not compiled: `bash Horovod/run.sh` or THOROUGH=1 does that"
    made = f"source {shlex.quote(str(HOROVOD / 'environment.sh'))}; make_environment"
    done = subprocess.run(["bash", "-euc", made], env=env, stderr=subprocess.PIPE)
    return done.stderr.decode().strip() if done.returncode else ""


def free_ports(count: int) -> int:
    """Returns the first of `count` free ports in a row.

    Below those that run.sh draws from, and every process of pytest-xdist has its own.
    """
    reference()
    from cluster import addresses

    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    first = 10000 + 500 * (number % 10)
    bases = list(range(first, first + 500 - count, count))
    random.shuffle(bases)  # two suites on one machine
    for base in bases:
        if all(map(addresses.is_free, range(base, base + count))):
            return base
    raise RuntimeError("no free ports")


def defaults_of(folder: str, workers: int = 2) -> argparse.Namespace:
    """Returns the flags of an example that is given nothing but its cluster."""
    cluster = []
    if folder in registry.folders("ps"):
        hosts = ",".join(f"a:{1 + worker}" for worker in range(workers))
        cluster = ["--job_name=ps", "--task_index=0", "--ps_hosts=b:1"]
        cluster.append(f"--worker_hosts={hosts}")
    elif registry.of(folder).family in ("peers", "gossip"):
        hosts = ",".join(f"a:{1 + worker}" for worker in range(workers))
        cluster = ["--task_index=0", f"--worker_hosts={hosts}"]
    return load(folder).parse_args(cluster)


def tree(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns the files of a folder outside logdir, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "logdir" not in path.parts
    }


def copy_of(folder: str, where: pathlib.Path) -> pathlib.Path:
    """Copies an example's folder, under a path with a space in it.

    With FORKS a call has three rounds at most, and not ten: to build the graph of ten,
    and to optimize it, takes half the CPU of a run of a hundred steps.
    """
    target = where / "a copy" / folder
    ignore = shutil.ignore_patterns("logdir", "__pycache__", ".venv*")
    shutil.copytree(REPO / folder, target, ignore=ignore)
    if FORKS:
        for name in ("rounds", "lockstep"):
            path = target / "cluster" / f"{name}.py"
            if path.exists():
                text, found = SIZES.subn("SIZES = (1, 3)", path.read_text())
                assert found == 1, path
                path.write_text(text)
    return target


class Launch:
    """A process of an example or of its run.sh, its output read as it comes.

    As a context manager it leaves no process behind, whatever the test did.
    """

    def __init__(
        self,
        command: list[str],
        folder: pathlib.Path,
        where: pathlib.Path | None = None,
        **env: str,
    ) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.cwd = where or folder.parent
        self.env = environment(**env)
        forks = FORKS and forkserver.can_fork(command, self.env)
        self.process = (forkserver.Forked if forks else subprocess.Popen)(
            command,
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.process, *self.tasks()]:
            try:
                process.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                pass
        self.process.wait()

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """Returns the first line that holds `text`; raises if the process ends."""
        end = time.monotonic() + PATIENT * seconds
        while time.monotonic() < end:
            for line in list(self.lines):
                if text in line:
                    return line
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    def wait(self, seconds: float = 150) -> int:
        """Returns the exit status, the output read to its end."""
        status = self.process.wait(PATIENT * seconds)
        self.reader.join(10)
        return status

    def tasks(self) -> list[psutil.Process]:
        """Returns the Python processes that run a script of this folder."""
        found = []
        # psutil remembers processes by their numbers. If a new task has the number of
        # a process that has ended, psutil would refuse to kill the task.
        psutil.process_iter.cache_clear()
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            launcher = any(word.endswith(LAUNCHERS) for word in words)
            ours = any(str(self.folder) in word for word in words[1:])
            if ours and not launcher and words[0] != "bash":
                found.append(process)
        return found

    def task(self, job: str, index: int) -> psutil.Process:
        """Returns the process of one task; a run without ps has one of no name."""
        for process in self.tasks():
            words = " ".join(process.info["cmdline"])
            if f"--job_name {job} --task_index {index}" in words:
                return process
            if self.folder.name in registry.folders("single"):
                return process
        raise AssertionError(f"no {job} {index}")

    def nothing_left(self) -> None:
        """Asserts that no task of this run is there any more."""
        end = time.monotonic() + 2
        while self.tasks() and time.monotonic() < end:
            time.sleep(0.05)
        assert not self.tasks()


def run_sh(folder: pathlib.Path, *arguments: str, **env: str) -> Launch:
    """Starts `bash run.sh` of a copied example, from another directory."""
    return Launch(["bash", str(folder / "run.sh"), *arguments], folder, **env)


def run_task(folder: pathlib.Path, *arguments: str, **env: str) -> Launch:
    """Starts one task of a copied example by hand."""
    script = str(folder / registry.script_of(folder.name))
    return Launch([sys.executable, script, *arguments], folder, **env)


def result_if_there(logdir: pathlib.Path) -> dict | None:
    """Returns result.json, None if there is none."""
    return result(logdir) if (logdir / "result.json").exists() else None


@functools.cache
def commit() -> str:
    """Returns the commit whose code is tried."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    return done.stdout.strip()


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps out whoever else would write the same results there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def saved_step(logdir: pathlib.Path) -> int:
    """Returns the global step that a new run would resume at; 0 if there is none."""
    try:
        first, _ = (logdir / "checkpoint").read_text().split("\n", 1)
    except (FileNotFoundError, ValueError):
        return 0
    return int(first.rpartition("-")[2].strip('"'))


def is_gone(pid: int) -> bool:
    """Says whether a process has ended, be it that its parent has not asked yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(
    test: Callable[[], object], seconds: float, run: Launch | None = None
) -> None:
    """Returns once `test()` holds; fails after `seconds`, or once `run` has ended."""
    end = time.monotonic() + PATIENT * seconds
    while not test():
        assert run is None or run.process.poll() is None, run.output
        assert time.monotonic() < end, run.output if run else "too late"
        time.sleep(0.02)


def wrong_stats(result: dict | None) -> list[str]:
    """Returns what is wrong with the counters of a run that ended with status 0.

    Without a result of all updates that status is wrong, whatever else is right.
    """
    if result is None:
        return ["status 0 without result.json"]
    flags, steps = result["flags"], result["global_steps"]
    rounds = sum(result["rounds_per_worker"].values())
    each = flags.get("replicas_to_aggregate", 1)
    each = each if flags.get("issync", True) else 1
    family = registry.of(result["scheme"]).family
    if family in ("peers", "hybrid") or flags.get("asynchronous") is False:
        each = result["workers"]  # every worker makes every round
    wrong = []
    if steps != flags["steps"]:
        wrong.append(f"{steps} steps, not {flags['steps']}")
    if "quorum" in flags:  # a merge takes some rounds of o inner steps
        wrong += [] if rounds >= steps + result["gradients_dropped"] else ["rounds"]
        steps = rounds - result["gradients_dropped"]
        flags = {**flags, "fragments": 1, "window": max(1, flags["overlap"])}
    if rounds != each * steps + result["gradients_dropped"]:
        wrong.append(f"{rounds} rounds, {result['gradients_dropped']} dropped")
    # A round of DiLoCo with --fragments ends when one of them is exchanged.
    steps_alone = flags.get("window", 1) // flags.get("fragments", 1)
    if result["examples"] != flags["batch_size"] * steps_alone * rounds:
        wrong.append(f"{result['examples']} examples")
    return wrong


class ByHand:
    """The tasks of one run, each started by hand; all are ended on every way out."""

    def __init__(
        self, copy: pathlib.Path, *flags: str, num_ps: int = 1, workers: int = 2
    ) -> None:
        base = free_ports(num_ps + workers)
        hosts = [f"localhost:{base + i}" for i in range(num_ps + workers)]
        self.ps, self.workers = hosts[:num_ps], hosts[num_ps:]
        self.copy, self.flags = copy, flags
        self.started: list[Launch] = []

    def start(self, job: str, index: int, *flags: str, **env: str) -> Launch:
        """Starts one task, with flags of its own behind those of all."""
        who = ["--job_name", job, "--task_index", str(index)]
        hosts = [
            f"--ps_hosts={','.join(self.ps)}",
            f"--worker_hosts={','.join(self.workers)}",
        ]
        task = run_task(self.copy, *who, *hosts, *self.flags, *flags, **env)
        self.started.append(task)
        return task

    def start_all(self) -> list[Launch]:
        """Starts every task, the ps first; returns them in that order."""
        ps = [self.start("ps", index) for index in range(len(self.ps))]
        return ps + [self.start("worker", k) for k in range(len(self.workers))]

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self.started:
            task.__exit__()


class WorkersByHand(ByHand):
    """The same for a run without ps: every task is a worker."""

    def __init__(self, copy: pathlib.Path, *flags: str, workers: int = 2) -> None:
        super().__init__(copy, *flags, num_ps=0, workers=workers)

    def start(self, index: int, *flags: str, **env: str) -> Launch:
        """Starts one worker."""
        hosts = f"--worker_hosts={','.join(self.workers)}"
        task = [f"--task_index={index}", hosts, *self.flags, *flags]
        self.started.append(run_task(self.copy, *task, **env))
        return self.started[-1]


def strange(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a run.sh that no task and no launcher says, and tracebacks.

    TensorFlow's own lines go into the tasks' logs.
    """
    said = re.compile(r"(run\.sh: |\[(ps|worker|evaluator) \d+\] )")
    alien = re.compile(r"Traceback|tensorflow/|^\S+ \d+\] [WEF]0")
    return [x for x in lines if not said.match(x) or alien.search(x)]


def result(logdir: pathlib.Path) -> dict:
    """Returns result.json."""
    return json.loads((logdir / "result.json").read_text())


def tried(copy: pathlib.Path) -> subprocess.CompletedProcess:
    """Tries the problem.py of a copy by contract.py, without a cluster."""
    command = [sys.executable, "-B", "contract.py"]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=60)


def without(tool: Sequence[str]) -> str:
    """Returns why a command, before another one, cannot be had here; "" if it can."""
    try:
        done = subprocess.run([*tool, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return f"{tool[0]} is not installed"
    return (done.stderr.strip() or "refused") if done.returncode else ""
