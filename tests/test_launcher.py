"""What launch.py starts, starts again and ends: with a stand-in for a script.

The stand-in is a Python that imports nothing: it sleeps, ends or is killed, as the
variable of its task says: worker_1="exit 138,sleep 1" fails at its first start only.
"""

from __future__ import annotations

import os
import pathlib
import signal

import psutil
import pytest
from launch import Launch, copy_of, run_sh, wait_until

# In the ordinary way: a process without TensorFlow is not worth a fork.
pytestmark = [pytest.mark.quick, pytest.mark.starts, pytest.mark.timeout(60)]

STAND_IN = """
import os, signal, sys, time

if "--check" in sys.argv:
    sys.exit()
after = dict(zip(sys.argv, sys.argv[1:]))
task = after["--job_name"] + "_" + after["--task_index"]


def note(name):
    os.makedirs(after["--logdir"], exist_ok=True)
    with open(os.path.join(after["--logdir"], name), "a+") as file:
        file.write(task + "\\n")
        file.seek(0)
        return file.read().split().count(task)


def told(number, frame):
    note("told")
    os._exit(128 + number)


signal.signal(signal.SIGTERM, told)
starts = note("started")
print("is there", flush=True)
acts = os.environ.get(task, "sleep 60").split(",")
verb, number = acts[min(starts, len(acts)) - 1].split()
if verb == "kill":
    os.kill(os.getpid(), int(number))
elif verb == "exit":
    sys.exit(int(number))
time.sleep(float(number))
"""


# TERM for the launcher from its own child: the check, as it begins or as it ends, or
# each task as it begins.
UNLUCKY = """
import os, signal, sys, time

moment = os.environ["MOMENT"]
if (moment == "the tasks begin") != ("--check" in sys.argv):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(0 if moment == "the check ends" else 30)
"""


def started(tmp_path: pathlib.Path, **acts: str) -> Launch:
    """Starts run.sh of HogWild with the stand-in: one ps and two workers."""
    copy = copy_of("HogWild", tmp_path)
    (copy / "hogwild.py").write_text(STAND_IN)
    return run_sh(copy, LOGDIR=str(tmp_path / "logdir"), **acts)


def noted(tmp_path: pathlib.Path, name: str) -> list[str]:
    """Returns which tasks have `started`, or were `told` to end, in this order."""
    path = tmp_path / "logdir" / name
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize(
    ("act", "restarts", "starts", "status"),
    [
        ("exit 1", 3, 1, 1),  # a user's mistake, which would be made again
        ("exit 2", 3, 1, 2),
        ("exit 3", 0, 1, 3),
        ("exit 138", 2, 3, 138),
        ("kill 9", 0, 1, 137),
        ("kill 9", 1, 2, 137),
        ("kill 11", 0, 1, 139),
    ],
)
def test_a_task_that_fails(act, restarts, starts, status, tmp_path) -> None:
    """It is started again as often as it may be; then its status ends the run."""
    wanted = dict(worker_1=act, MAX_RESTARTS=str(restarts))
    with started(tmp_path, **wanted) as run:
        assert run.wait(20) == status, run.output
        run.nothing_left()
    assert noted(tmp_path, "started").count("worker_1") == starts
    said = [line for line in run.lines if line.startswith("run.sh: worker 1 ended")]
    assert len(said) == starts and said[-1] == run.lines[-1], run.output
    assert all(f" with status {status}; " in line for line in said), said
    for number, line in enumerate(said[:-1], 1):
        assert line.endswith(f"; restart {number} of {restarts}")


def test_a_run_goes_well_with_a_task_that_was_started_again(tmp_path) -> None:
    acts = dict(worker_1="exit 138,exit 0", worker_0="sleep 1", ps_0="sleep 1")
    with started(tmp_path, **acts, MAX_RESTARTS="1") as run:
        assert run.wait(20) == 0, run.output
    assert sorted(noted(tmp_path, "started")) == [
        *("ps_0", "worker_0", "worker_1", "worker_1")
    ]
    assert not noted(tmp_path, "told")


def test_a_task_is_not_a_process_that_psutil_remembers(tmp_path) -> None:
    """A process that psutil remembers may have ended, and another have its number."""
    with started(tmp_path) as run:
        wait_until(lambda: run.output.count("is there") == 3, 10)
        found = {process.pid: process for process in psutil.process_iter()}
        assert len(run.tasks()) == 3
        assert not any(process is found[process.pid] for process in run.tasks())


@pytest.mark.parametrize(
    ("cause", "status", "said"),
    [
        ("limit", 124, "run.sh: no end after TIMEOUT=1 s"),
        ("TERM", 143, "run.sh: SIGTERM ended the run"),
    ],
)
def test_whatever_ends_a_run_ends_every_task(cause, status, said, tmp_path) -> None:
    """The workers before the ps, on which the chief still saves."""
    with started(tmp_path, TIMEOUT="1" if cause == "limit" else "60") as run:
        wait_until(lambda: run.output.count("is there") == 3, 10)
        if cause == "TERM":
            run.process.send_signal(signal.SIGTERM)
        assert run.wait(20) == status, run.output
        run.nothing_left()
    assert run.lines[-1].startswith(said), run.output
    *workers, ps = noted(tmp_path, "told")
    assert (sorted(workers), ps) == (["worker_0", "worker_1"], "ps_0")
    labels = [x.partition("is there")[0] for x in run.lines if "is there" in x]
    assert sorted(labels) == ["[ps 0] ", "[worker 0] ", "[worker 1] "]


@pytest.mark.parametrize(
    "moment", ["the check begins", "the check ends", "the tasks begin"]
)
def test_a_signal_while_processes_are_started(moment, tmp_path) -> None:
    """It ends the start at once, and every process that was started."""
    copy = copy_of("HogWild", tmp_path)
    (copy / "hogwild.py").write_text(UNLUCKY)
    with run_sh(copy, LOGDIR=str(tmp_path / "logdir"), MOMENT=moment) as run:
        assert run.wait(20) == 143, run.output
        run.nothing_left()
    assert run.lines[-1] == "run.sh: SIGTERM ended the run", run.output


def test_ctrl_c_during_the_check(tmp_path) -> None:
    """It reaches all processes of a terminal; one sentence is said."""
    copy = copy_of("HogWild", tmp_path)
    script = "import time\n\nprint('is there', flush=True)\ntime.sleep(30)\n"
    (copy / "hogwild.py").write_text(script)
    with run_sh(copy, LOGDIR=str(tmp_path / "logdir")) as run:
        wait_until(lambda: "is there" in run.output, 20)
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait(20) == 130, run.output
        run.nothing_left()
    assert run.lines[1:] == ["is there", "run.sh: Ctrl-C ended the run"], run.output


FOLLOWS = """
import os, sys, time

while "--check" not in sys.argv and os.getppid() == int(os.environ["LAUNCHED_BY"]):
    time.sleep(0.01)
"""


def test_tasks_whose_launcher_dies_while_they_are_loaded(tmp_path) -> None:
    """They follow it, though they were no tasks yet when it was killed."""
    copy = copy_of("HogWild", tmp_path)
    script = copy / "hogwild.py"
    script.write_text(FOLLOWS + script.read_text())
    with run_sh(copy, "--patience", "1000", LOGDIR=str(tmp_path / "logdir")) as run:
        wait_until(lambda: len(run.tasks()) == 3, 20)
        run.process.kill()
        run.process.wait()
        wait_until(lambda: not run.tasks(), 20)
    assert not (tmp_path / "logdir" / "ps-0.log").exists()
