"""Horovod: its launcher with a stand-in for Horovod, and real runs if it is here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import launch
import numpy as np
import psutil
import pytest
import tree
from launch import HOROVOD, Launch

pytestmark = pytest.mark.timeout(900)

# Why the real Horovod cannot be had here, "" if it can; conftest.py says it at the end.
MISSING = launch.horovod()
real = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")

# What run.sh may count on; compilers are not among them.
BASE = """bash basename cat chmod date dirname env flock getconf grep id mkdir rm sed
sleep tail tr uname unshare"""


def run_sh(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Returns the finished process of run.sh."""
    command = ["bash", HOROVOD / "run.sh", *arguments]
    return tree.run(*command, env=launch.environment(**env), timeout=800)


def one_sentence(done: subprocess.CompletedProcess, status: int, *words: str) -> None:
    """Asserts that a process ended with this status and one line that says why."""
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


# --- Without Horovod ----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--stepz", "3"], {}, ["unrecognized arguments: --stepz 3"]),
        (["--data", "no.npz"], {}, ["--data no.npz: no such file"]),
        ([], {"NUM_WORKERS": "x"}, ["NUM_WORKERS=x is not a whole number"]),
        ([], {"NUM_PS": "1"}, ["NUM_PS=1: there is no ps"]),
        ([], {"BASE_PORT": "2222"}, ["BASE_PORT=2222"]),
        ([], {"TIMEOUT": "0"}, ["TIMEOUT=0"]),
        ([], {"PYTHON": "no-python"}, ["PYTHON=no-python: no such command"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_use(arguments, env, words, tmp_path):
    """It is found before minutes are spent on an environment."""
    places = {"LOGDIR": str(tmp_path / "run"), "HOROVOD_VENV": str(tmp_path / "venv")}
    one_sentence(run_sh(*arguments, **places, **env), 2, *words)
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler(tmp_path):
    """One sentence that says what to install and status 3, and nothing is made."""
    names = tmp_path / "bin"
    names.mkdir()
    for name in BASE.split():
        if shutil.which(name):
            (names / name).symlink_to(shutil.which(name))
    env = {"PATH": str(names), "HOROVOD_VENV": str(tmp_path / "venv"), "CXX": "g++"}
    done = run_sh(LOGDIR=str(tmp_path / "run"), **env)
    one_sentence(done, 3, "is missing: cmake, make, g++; install", "sudo apt install")
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


# Stands in for a Python and what is installed in its environment; without NumPy, so
# that flags are checked with the one of the environment. `pip` and `horovodrun` beside
# it say what those do.
FAKE = """#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
case "$1 ${2:-}" in
  "-V ") echo "Python 3.12.1" ;;
  "-c import numpy"*) exit 1 ;;
  "-m venv") rm -rf "$4" && mkdir -p "$4/bin" && cp "$here"/* "$4/bin/" ;;
  "-m pip") echo "$*" >>"$(dirname "$here")/called"; source "$here/pip" ;;
esac
"""
SLOW = 'echo "  Downloading tensorflow-2.18.1.whl (615.3 MB)"; sleep 0.5\n'
SLOW += 'echo "  [ 42%] Building CXX object x.o"; sleep 0.5\n'


class FakeHorovod:
    """A Python to build from whose Horovod is a few lines of shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, folder / "bin"
        self.names.mkdir()
        self.write("python", FAKE)
        self.write("pip", "true\n")
        self.write("horovodrun", 'echo "[1]<stdout>:learns"\n')
        for tool in ("cmake", "make", "g++"):
            self.write(tool, "exit 0\n")
        self.venv = folder / "venv"

    def write(self, name: str, text: str) -> None:
        """Says what a program is, also in an environment that is made already."""
        for path in (self.names, self.folder / "venv" / "bin"):
            if path.exists():
                (path / name).write_text(text)
                (path / name).chmod(0o755)

    def start(self, *arguments: str, tee: bool = False, **env: str) -> Launch:
        """Starts run.sh with it, the ports open: no network can be tried here."""
        path = f"{self.names}{os.pathsep}{os.environ['PATH']}"
        given = {"PYTHON": str(self.names / "python"), "HOROVOD_VENV": str(self.venv)}
        given.update(PATH=path, LOGDIR=str(self.folder / "run"), OPEN_PORTS="1", **env)
        command = ["bash", str(HOROVOD / "run.sh"), *arguments]
        if tee:
            pipe = '"$@" 2>&1 | tee "$0"'
            command = ["bash", "-c", pipe, self.folder / "out", *command]
        return Launch(command, self.folder, **given)


@pytest.fixture
def fake(tmp_path: Path) -> FakeHorovod:
    return FakeHorovod(tmp_path)


def test_the_environment_is_made_once_and_says_so(fake):
    fake.write("pip", SLOW)
    with fake.start() as run:
        assert run.wait(60) == 0, run.output
    assert "once: about 5 min on 2 cores" in run.output
    for text in ("downloads tensorflow 2.18.1.whl, 615.3 MB", "compiles Horovod, 40 %"):
        assert f" s  {text}" in run.output
    assert run.lines[-1] == "[worker 1] learns"
    called = (fake.venv / "called").read_text()
    assert (
        "--no-cache-dir --no-build-isolation" in called and "horovod==0.28.1" in called
    )
    # PIP_USER=1, or a target in pip.conf, does not put it elsewhere.
    assert called.count(f"--no-user --target= --prefix={fake.venv} --root=/") == 2
    with fake.start() as run:
        assert run.wait(60) == 0 and "once" not in run.output, run.output
    # Of another version: it is made again.
    (fake.venv / "stamp").write_text("Python 3.12.1\ntensorflow==2.18.0\n")
    with fake.start() as run:
        assert run.wait(60) == 0 and "once" in run.output, run.output


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "TERM")]
)
def test_an_environment_that_is_interrupted_is_no_environment(number, word, fake):
    fake.write("pip", SLOW + "sleep 60\n")
    with fake.start() as run:
        run.wait_for("40 %")
        os.kill(run.process.pid, number)
        assert run.wait(30) == 128 + number, run.output
        run.nothing_left()
    assert run.lines[-1] == f"run.sh: {word} ended the start"
    assert not (fake.venv / "stamp").exists() and not (fake.folder / "run").exists()
    fake.write("pip", "true\n")
    with fake.start() as run:
        assert run.wait(60) == 0 and "once" in run.output, run.output
    assert (fake.venv / "stamp").exists()


# Its compiler ends only if somebody ends it.
COMPILES = """(echo $BASHPID >"$LOG"; while :; do sleep 0.1; done) &
for i in {10..99}; do echo "  [ $i%] Building CXX object x.o"; sleep 0.2; done
"""


@pytest.mark.parametrize(("number", "whom"), [(2, "all"), (15, "tee")])
def test_a_pipeline_that_is_told_to_end_compiles_no_more(number, whom, fake):
    """`bash run.sh | tee log`: the screen may be gone before the launcher knows."""
    fake.write("pip", COMPILES)
    compiler = fake.folder / "compiler"
    with fake.start(tee=True, LOG=str(compiler)) as run:
        run.wait_for("compiles")
        if whom == "tee":
            children = psutil.Process(run.process.pid).children()
            next(p for p in children if p.name() == "tee").send_signal(number)
        else:
            os.killpg(run.process.pid, number)
        process = int(compiler.read_text())
        try:
            launch.wait_until(lambda: launch.is_gone(process), 20)
        finally:
            if not launch.is_gone(process):
                os.killpg(os.getpgid(process), signal.SIGKILL)
    assert not (fake.venv / "stamp").exists()


def test_a_dry_run_prints_the_command_and_makes_nothing(fake):
    with fake.start("--steps", "3", DRY_RUN="1") as run:
        assert run.wait(60) == 0, run.output
    (line,) = run.lines
    assert line.startswith(f"{fake.venv}/bin/horovodrun -np 2 --gloo "), line
    assert line.rstrip().endswith("--steps 3")
    assert [path.name for path in fake.folder.iterdir()] == ["bin"]


def test_packages_that_cannot_be_installed(fake):
    fake.write("pip", "echo no route; exit 1\n")
    with fake.start() as run:
        assert run.wait(60) == 3, run.output
    assert run.lines[-1].endswith(f"see the end of {fake.venv}.setup")
    assert not (fake.venv / "stamp").exists()


# horovodrun says a traceback, and at its end who was the first to fail.
FAILS = """echo "[0]<stderr>:horovod_sgd.py: a sentence" >&2
echo "Traceback (most recent call last):" >&2
printf 'Process name: 1\\nExit code: %s\\n\\n' CODE >&2
exit 1
"""


@pytest.mark.parametrize(("code", "status"), [("2", 2), ("138", 138), ("-9", 137)])
def test_the_status_is_that_of_the_first_worker_that_failed(code, status, fake):
    fake.write("horovodrun", FAILS.replace("CODE", code))
    with fake.start(MAX_RESTARTS="1") as run:
        assert run.wait(60) == status, run.output
    tried = 1 if status == 2 else 2
    assert run.output.count("[worker 0] horovod_sgd.py: a sentence") == tried
    assert run.output.count("restart 1 of 1 of all") == tried - 1
    assert f"worker 1 ended with status {status}; see" in run.lines[-1]
    assert "Traceback" not in run.output
    assert "Traceback" in (fake.folder / "run" / "horovodrun.log").read_text()


def test_no_end(fake):
    fake.write("horovodrun", "exec sleep 60\n")
    with fake.start(TIMEOUT="1") as run:
        assert run.wait(60) == 124, run.output
        run.nothing_left()
    assert run.lines[-1] == "run.sh: no end after TIMEOUT=1 s"


@pytest.mark.quick
def test_the_commands_have_launchers_that_engines_do_not_start():
    done = tree.run("bash", "Engines/MPI/run.sh", "Horovod")
    assert done.returncode == 2 and 'no example "Horovod"' in done.stderr


# --- With Horovod -------------------------------------------------------------

ROWS, FEATURES, CLASSES, HIDDEN, RATE = 24, 5, 3, 64, 0.5


def arrays() -> dict[str, np.ndarray]:
    """Returns a data set of which every worker's mini-batch is its whole shard."""
    rng = np.random.default_rng(1)
    x = rng.random((ROWS, FEATURES), np.float32)
    y = np.arange(ROWS) % CLASSES
    return dict(x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])


def perceptron(w: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Returns the gradient of the mean cross-entropy at the four layers, by hand."""
    w1, b1, w2, b2 = w
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    error = (share - np.eye(CLASSES)[y]) / len(y)
    back = (error @ w2.T) * (hidden > 0)
    return [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


def layers_of(logdir: Path, step: int) -> list[np.ndarray]:
    """Returns the four layers of a checkpoint, float64."""
    from harness import tf

    reader = tf.train.load_checkpoint(str(logdir / f"model.ckpt-{step}"))
    return [reader.get_tensor(f"layer_{i}").astype(np.float64) for i in range(4)]


def first_layers() -> list[np.ndarray]:
    """Returns the four layers before training, float64."""
    launch.reference()
    from harness import tf

    problem = importlib.import_module("problem")
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    with tf.Graph().as_default(), tf.Session() as session:
        layers = problem.parameters(problem.initial(shapes, seed=0), shapes)
        return [layer.astype(np.float64) for layer in session.run(layers)]


def started(logdir: Path, *flags: str, **env: str) -> Launch:
    """Starts run.sh; the run's processes are known by its log directory."""
    command = ["bash", str(HOROVOD / "run.sh"), "--logdir", str(logdir), *flags]
    return Launch(command, logdir, HOROVOD, **env)


def trained(tmp_path: Path, steps: list[int], *flags: str, **env: str) -> list[str]:
    """Runs once for each of the `steps`, going on; returns the lines of all."""
    lines = []
    for until in steps:
        with started(tmp_path / "run", "--steps", str(until), *flags, **env) as run:
            assert run.wait(800) == 0, run.output
            run.nothing_left()
        lines += run.lines
    return lines


@real
@pytest.mark.parametrize(
    ("workers", "env"),
    [
        (2, {}),
        pytest.param(3, {}, marks=launch.if_thorough),
    ],
)
def test_it_is_synchronous_sgd_with_the_mean_gradient(workers, env, tmp_path):
    """As NumPy's; resumed in between, when only worker 0 has the weights."""
    data = arrays()
    np.savez(tmp_path / "rows.npz", **data)
    flags = ["--data", str(tmp_path / "rows.npz"), "--learning_rate", str(RATE)]
    flags += ["--batch_size", str(ROWS // workers)]
    lines = trained(tmp_path, [4, 9], *flags, NUM_WORKERS=str(workers), **env)
    assert "[worker 0] resumes from global step 4" in lines
    w = first_layers()
    shards = [(data["x_train"][k::workers], data["y_train"][k::workers]) for k in
              range(workers)]  # fmt: skip
    for step in range(1, 10):
        gradients = [perceptron(w, *shard) for shard in shards]
        w = [x - RATE * sum(g) / workers for x, *g in zip(w, *gradients, strict=True)]
        if step in (4, 9):
            for mine, its in zip(w, layers_of(tmp_path / "run", step), strict=True):
                np.testing.assert_allclose(its, mine, rtol=0, atol=1e-6)
    result = launch.result(tmp_path / "run")
    parameters = sum(layer.size for layer in w)
    assert result["workers"] == workers and result["global_steps"] == 9
    assert result["examples"] == 9 * ROWS
    assert result["bytes_pushed"] == 9 * 2 * (workers - 1) * 4 * parameters


@real
@launch.if_thorough
def test_it_learns_the_digits(tmp_path):
    lines = trained(tmp_path, [4000])
    assert "Traceback" not in "".join(lines)
    assert launch.result(tmp_path / "run")["test_accuracy"] > 0.95


@real
@launch.if_thorough
def test_training_that_diverges_ends_with_a_sentence(tmp_path):
    done = run_sh("--learning_rate", "1e38", LOGDIR=str(tmp_path / "run"))
    assert done.returncode == 1 and "training diverged" in done.stdout


@real
@launch.if_thorough
def test_interrupted(tmp_path):
    with started(tmp_path / "run", "--steps", "1000000") as run:
        run.wait_for("  loss ")
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.wait(30) == 128 + signal.SIGTERM, run.output
        run.nothing_left()


@real
@launch.if_thorough
def test_a_killed_worker_and_a_restart_of_all(tmp_path):
    logdir, flags = tmp_path / "run", ["--steps", "1500", "--save_seconds", "1"]
    with started(logdir, *flags, MAX_RESTARTS="1") as run:
        run.wait_for("step  601/")
        words = [(p, " ".join(p.info["cmdline"])) for p in run.tasks()]
        scripts = [
            p for p, text in words if re.match(r"\S*python\S* \S*_sgd\.py", text)
        ]
        assert len(scripts) == 2, words
        scripts[-1].kill()
        assert run.wait(120) == 0, run.output
        run.nothing_left()
    assert "restart 1 of 1 of all" in run.output
    assert re.search(r"resumes from global step [1-9]", run.output)
    assert launch.result(logdir)["global_steps"] == 1500
