"""Where a run writes: a copy of another run, a moved one, and disks that are odd.

Every test runs real commands, in a copy of an example's folder.
"""

from __future__ import annotations

import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import launch
import pytest
import registry
from launch import Launch, copy_of, result, run_sh, run_task

MNIST = "Distributed-MNIST"
# One of each way to save: a ps, one process, peers, parts of a model on each of them,
# replicas, a table on the ps, a whole program.
SAVERS = ["HogWild", "Non-Distributed-Setup", "Ring-All-Reduce"]
EVERY = [folder for folder in registry.folders() if folder not in ("Horovod", MNIST)]
OLD = range(1, 5)  # global steps of checkpoints that were there before


def bytes_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns every file below a folder, by its name there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def listed(logdir: pathlib.Path) -> list[str]:
    """Returns what the list of checkpoints names, as it is written there."""
    return re.findall(r'"(.*)"', (logdir / "checkpoint").read_text())


def steps(copy: pathlib.Path, logdir: pathlib.Path, count: int, *flags, **env) -> str:
    """Runs run.sh to this global step in this LOGDIR; returns what it printed."""
    command = ["--steps", str(count), "--logdir", str(logdir), *flags]
    with run_sh(copy, *command, **env) as run:
        assert run.wait(800) == 0, run.output
    return run.output


# --- A run that is continued elsewhere ------------------------------------------------


def test_a_copy_of_a_run_leaves_the_run_as_it_is(tmp_path) -> None:
    """What a user types; the copy is so long that it removes its oldest checkpoints."""
    copy, one, two = copy_of("HogWild", tmp_path), tmp_path / "A", tmp_path / "B"
    steps(copy, one, 200)
    shutil.copytree(one, two)
    before = bytes_of(one)
    more = ["--slow_workers", "0.01", "--save_seconds", "0.5"]
    said = steps(copy, two, 1200, *more)
    assert bytes_of(one) == before
    assert "resumes from global step 200" in said
    saved = {path.stem for path in two.glob("model.ckpt-*.index")}
    assert saved == set(listed(two)) and len(saved) <= 5
    # The rates are those of the steps that this run has made.
    done = result(two)
    text = r"after 1200 global steps, 1000 of them in ([\d.]+) s \((\d+) steps/s, "
    seconds, rate = map(float, re.search(text, said).groups())
    assert seconds == pytest.approx(done["seconds"], abs=0.06)
    assert rate == pytest.approx(1000 / done["seconds"], abs=0.6)
    assert done["steps_per_second"] == pytest.approx(1000 / done["seconds"])
    each = done["flags"]["batch_size"]
    assert done["examples_per_second"] == pytest.approx(each * 1000 / done["seconds"])


@pytest.mark.parametrize("folder", launch.some(SAVERS, EVERY))
def test_a_run_goes_on_in_a_copy_and_where_it_was_moved_to(folder, tmp_path) -> None:
    copy, one, two = copy_of(folder, tmp_path), tmp_path / "A", tmp_path / "B"
    steps(copy, one, 20)
    shutil.copytree(one, two)
    before = bytes_of(one)
    said = steps(copy, two, 30)
    assert "resumes from global step 20" in said
    assert bytes_of(one) == before
    assert re.search(r"after 30 global steps, 10 of them in ", said), said
    if launch.THOROUGH or folder == SAVERS[0]:
        moved = one.rename(tmp_path / "C")
        assert "resumes from global step 20" in steps(copy, moved, 30)
        assert result(moved)["global_steps"] == 30


@launch.if_thorough
@pytest.mark.long
def test_a_moved_program_goes_on_and_is_exported(tmp_path) -> None:
    """Distributed-MNIST: also the best weights, and what export.py reads."""
    copy, one, two = copy_of(MNIST, tmp_path), tmp_path / "A", tmp_path / "B"
    steps(copy, one, 20)
    shutil.copytree(one, two)
    before = bytes_of(one)
    said = steps(copy, two, 40)
    assert "resumes from global step 20" in said and bytes_of(one) == before
    assert "evaluator: test accuracy" in said and "at global step 40" in said
    names = listed(two) + listed(two / "best")
    assert not [name for name in names if "/" in name], names
    moved, served = one.rename(tmp_path / "C"), tmp_path / "served"
    exported = subprocess.run(
        [sys.executable, str(copy / "export.py"), str(moved), str(served)],
        env=launch.environment(),
        capture_output=True,
        text=True,
    )
    assert exported.returncode == 0, exported.stderr
    step = json.loads((moved / "best" / "best.json").read_text())["global_step"]
    assert (served / str(step) / "saved_model.pb").exists()


@launch.if_thorough
def test_a_coordinator_goes_on_in_a_copy(tmp_path) -> None:
    """The program of TensorFlow 2 has a list of its own."""
    copy, one, two = copy_of("TensorFlow-2", tmp_path), tmp_path / "A", tmp_path / "B"
    steps(copy, one, 40)
    shutil.copytree(one, two)
    before = bytes_of(one)
    moved = two.rename(tmp_path / "C")
    assert "resumes from global step 40" in steps(copy, moved, 80)
    assert bytes_of(one) == before


@launch.if_thorough
def test_a_variable_that_is_not_there_is_named(tmp_path) -> None:
    """With other flags a program has other variables; here they are Adam's."""
    copy, logdir = copy_of(MNIST, tmp_path), tmp_path / "logdir"
    steps(copy, logdir, 5)
    more = ["--steps", "10", "--logdir", str(logdir), "--optimizer", "adam"]
    with run_sh(copy, *more) as run:
        assert run.wait() == 1, run.output
    said = f"cannot resume from {logdir}/model.ckpt-5: "
    assert re.search(rf"{said}.*Key square/\w+/\w+ not found", run.output), run.output


# --- Where it writes ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gs://bucket/run", "run[1]", "what?", "back\\slash"])
def test_what_can_be_no_logdir(name, tmp_path) -> None:
    """One sentence; nothing is made: by run.sh, its variable, by hand."""
    copy = copy_of("HogWild", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    hosts = ["--ps_hosts=localhost:1", "--worker_hosts=localhost:2"]
    by_hand = ["--job_name=ps", "--task_index=0", *hosts, "--logdir", name]
    for start in (
        lambda: run_sh(copy, f"--logdir={name}"),
        lambda: run_sh(copy, LOGDIR=name),
        lambda: run_task(copy, *by_hand),
    ):
        with start() as run:
            assert run.wait() == 2, run.output
        assert "is not on this machine, or a pattern for TensorFlow" in run.lines[-1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["gs://bucket/model", "model[1]"])
def test_what_can_be_no_export(name, tmp_path) -> None:
    """TensorFlow could not load the one, the other would lie in ./gs:."""
    copy, logdir = copy_of(MNIST, tmp_path), tmp_path / "logdir"
    with run_sh(copy, f"--export={name}", LOGDIR=str(logdir)) as run:
        assert run.wait() == 2, run.output
    assert name in run.lines[-1] and not logdir.exists()


def test_a_logdir_in_the_home(tmp_path) -> None:
    """A shell leaves the ~ behind = as it is; what run.sh and a task make of it."""
    copy, home = copy_of("Non-Distributed-Setup", tmp_path), tmp_path / "home"
    home.mkdir()
    with run_sh(copy, "--steps=20", "--logdir=~/x", HOME=str(home)) as run:
        assert run.wait() == 0, run.output
    assert result(home / "x")["global_steps"] == 20
    with run_task(copy, "--steps=30", "--logdir=~/x", HOME=str(home)) as run:
        assert run.wait() == 0, run.output
    assert result(home / "x")["resumed_from"] == 20
    assert not list(tmp_path.rglob("~"))


def test_a_folder_whose_path_is_a_pattern(tmp_path) -> None:
    """Its own logdir/ is refused; elsewhere it runs, and its code is still compared."""
    copy, logdir = copy_of("HogWild", tmp_path / "g[1]*"), tmp_path / "logdir"
    with run_sh(copy) as run:
        assert run.wait() == 2, run.output
    assert "choose another" in run.lines[-1]
    steps(copy, logdir, 20)
    other = copy_of("HogWild", tmp_path / "g[2]")
    path = other / "cluster" / "report.py"
    path.write_text(path.read_text() + "# other code\n")
    with launch.ByHand(copy, "--steps=2000000", f"--logdir={logdir}") as tasks:
        tasks.start("ps", 0)
        chief = tasks.start("worker", 0)
        chief.wait_for("step ")
        tasks.copy = other
        other_task = tasks.start("worker", 1)
        assert other_task.wait() == 2, other_task.output
        assert "cluster" in other_task.output


# --- A machine without flock ----------------------------------------------------------

# Has the system answer every flock with an error, for this process and all below it: a
# filter of seccomp (linux/seccomp.h, linux/filter.h). Then runs a command.
NO_FLOCK = """
import ctypes, errno, os, struct, sys
number = {"x86_64": 73, "aarch64": 32}[os.uname().machine]
error = getattr(errno, sys.argv[1])
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | error)]
rules += [(6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *r) for r in rules))
program = struct.pack("HP", len(rules), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.machine
@pytest.mark.starts
@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="a filter of Linux's seccomp",
)
@pytest.mark.parametrize("folder", launch.some(["HogWild"], [MNIST]))
def test_without_flock(folder, tmp_path) -> None:
    """It trains."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    command = [sys.executable, "-c", NO_FLOCK, "ENOSYS", "bash", str(copy / "run.sh")]
    command += ["--steps", "20", "--logdir", str(logdir)]
    with Launch(command, copy) as run:
        assert run.wait(800) == 0, run.output
    assert result(logdir)["global_steps"] == 20
    left = [path.name for path in logdir.iterdir() if path.name.startswith("records-")]
    assert not left
