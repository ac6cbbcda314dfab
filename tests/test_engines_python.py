"""Spark, TensorFlowOnSpark and Ray: what they share, real runs, and killed tasks.

What every engine must do is in test_engines.py.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import types

import launch
import pytest
import tasks
import test_engines as common

ENGINES = launch.REPO / "Engines"
STARTED = ["Spark", "TensorFlowOnSpark", "Ray"]  # by a program in Python


class Anything(types.ModuleType):
    """Stands in for pyspark, of which only names are needed here."""

    __path__ = []

    def __getattr__(self, name):
        return object


@pytest.fixture
def sweep(monkeypatch):
    """Returns Engines/Spark/sweep.py, imported without Spark."""
    for name in ("pyspark", "pyspark.sql", "pyspark.sql.functions"):
        monkeypatch.setitem(sys.modules, name, Anything(name))
    monkeypatch.syspath_prepend(str(ENGINES / "Spark"))
    return importlib.import_module("sweep")


# --- tasks.py -----------------------------------------------------------------


def test_ports_that_are_held_differ():
    with tasks.held_port() as first, tasks.held_port() as second:
        assert first != second
        with socket.socket() as taken, pytest.raises(OSError):
            taken.bind(("", first))
    with socket.socket() as taken:
        taken.bind(("", first))


def test_tf_config_of_a_task():
    config = json.loads(tasks.tf_config(["a:1", "b:2", "c:3"], 1, 2))
    assert config == {
        "cluster": {"ps": ["a:1"], "worker": ["b:2", "c:3"]},
        "task": {"type": "worker", "index": 1},
    }
    alone = json.loads(tasks.tf_config(["a:1"], 0, 0))
    assert alone["cluster"] == {"worker": ["a:1"]}
    assert [tasks.name_of(k, 1) for k in range(3)] == [
        "ps 0",
        "worker 0",
        "worker 1",
    ]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("print('a'); print('why')", 0, None),
        ("print('why'); exit(2)", 2, "Ended"),
        ("print('why'); exit(138)", 138, "Again"),
        ("print('why', flush=True); import os; os.kill(os.getpid(), 9)", 137, "Again"),
    ],
)
def test_a_script_and_how_it_ends(code, status, kind, capsys):
    command = [sys.executable, "-c", code]
    assert tasks.run(command, {}, str) == (status, "why")
    if kind is None:
        tasks.run_task("ps 0", command)
        assert capsys.readouterr().out == "[ps 0] a\n[ps 0] why\n"
        return
    with pytest.raises(tasks.Ended) as error:
        tasks.run_task("worker 1", command, "{}")
    assert type(error.value).__name__ == kind and error.value.status == status
    assert error.value.sentence == f"worker 1 ended with status {status}: why"


def test_a_script_ends_with_its_task(tmp_path):
    """Also if the task's process is killed with signal 9."""
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()))"
    code += "; time.sleep(60)"
    task = f"import tasks; tasks.run([{sys.executable!r}, '-c', {code!r}], {{}}, print)"
    env = {**os.environ, "PYTHONPATH": str(ENGINES)}
    process = subprocess.Popen([sys.executable, "-c", task], env=env)
    end = time.monotonic() + 30
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.kill()
    process.wait()
    while not launch.is_gone(int(pid.read_text())):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_check_says_what_the_script_says():
    python, script = sys.executable, str(launch.REPO / "HogWild" / "hogwild.py")
    assert tasks.check(python, script, [], 1, 2) == (0, "")
    status, sentence = tasks.check(python, script, ["--stepz=3"], 1, 2)
    assert (status, sentence) == (
        2,
        "hogwild.py: unrecognized arguments: --stepz=3",
    )


# --- Spark's parallel experiments ---------------------------------------------


def test_a_grid_has_every_combination(sweep):
    assert sweep.experiments.grid({"a": [1, 2], "b": ["x"]}) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x"},
    ]


def test_random_search(sweep):
    search = sweep.experiments.random_search
    space = {"rate": [0.001, 1.0], "batch": [8, 512], "shift": [-1.0, 1.0]}
    space["kind"] = ["x", "y", "z"]
    drawn = search(space, 200)
    assert drawn == search(space, 200) != search(space, 200, seed=1)
    assert len(drawn) == 200
    for one in drawn:
        assert 0.001 <= one["rate"] <= 1 and -1 <= one["shift"] <= 1
        assert 8 <= one["batch"] <= 512 and isinstance(one["batch"], int)
    # Evenly by magnitude: as many below the geometric mean as above it.
    below = sum(one["rate"] < 0.0316 for one in drawn)
    assert 70 < below < 130
    assert {one["kind"] for one in drawn} == {"x", "y", "z"}
    assert len(search({"n": [1, 3]}, 9)) == 3  # there are no more different ones


def test_values_of_a_word(sweep):
    assert sweep.values_of("a=1,2.5,x") == ("a", [1, 2.5, "x"])
    for word in ("a", "a=", "=1", "a=1,,2"):
        with pytest.raises(ValueError, match="is not flag=value,value"):
            sweep.values_of(word)


def test_a_function_in_a_process_of_its_own(sweep):
    call = sweep.experiments.in_a_process

    state = []  # of this process

    def noting(x):
        state.append(x)
        return x + len(state)

    assert [call(noting, {"x": 1}) for _ in range(2)] == [2, 2] and state == []

    def failing():
        raise ValueError("no such thing")

    with pytest.raises(RuntimeError, match="^no such thing$"):
        call(failing, {})
    with pytest.raises(RuntimeError, match="^its process ended with status 7$"):
        call(lambda: os._exit(7), {})


def test_names_that_do_not_fit(sweep):
    for space, why in (
        ({}, "no runs"),
        ({"a": []}, "no runs"),
        ({"z": [1]}, "has no z"),
    ):
        with pytest.raises(ValueError, match=why):
            sweep.experiments.launch(None, lambda a: a, space)


def test_the_picture(sweep, tmp_path):
    """Of runs of two flags, one of which failed."""
    rows = [
        {"rate": 10.0**-k, "kind": "xy"[k % 2], "good": 1 - k / 10} for k in range(8)
    ]
    rows.append({"rate": 5.0, "kind": "x", "good": None})
    sweep.plot.runs(rows, ["rate", "kind"], "good", str(tmp_path / "runs.svg"))
    picture = (tmp_path / "runs.svg").read_text()
    assert "9 runs, 1 failed" in picture


# --- What is not as it should be ----------------------------------------------


@pytest.mark.parametrize(
    ("engine", "version"),
    [("Spark", '"11.0.2"'), ("Spark", "none"), ("TensorFlowOnSpark", '"1.8.0_292"')],
)
def test_an_old_java(engine, version, tmp_path):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version {version}' >&2\n")
    java.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = common.run_sh(engine, "HogWild", PATH=path, JAVA_HOME="")
    common.one_sentence(done, 3, engine, "install Java 17 or newer")


def test_packages_that_cannot_be_installed(tmp_path):
    for name in ("HogWild", "Distributed-Setup"):
        leave = shutil.ignore_patterns("logdir", "__pycache__")
        shutil.copytree(launch.REPO / name, tmp_path / name, ignore=leave)
    (tmp_path / "Engines" / "Ray").mkdir(parents=True)
    for name in ("common.sh", "Ray/run.sh", "Ray/requirements.txt"):
        shutil.copy(ENGINES / name, tmp_path / "Engines" / name)
    env = launch.environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    env["PIP_CONFIG_FILE"] = os.devnull
    command = ["bash", tmp_path / "Engines" / "Ray" / "run.sh", "HogWild"]
    done = common.tree.run(*command, env=env)
    common.one_sentence(done, 3, "Ray's packages could not be installed")


@pytest.mark.long
@launch.if_engines
@pytest.mark.parametrize("engine", launch.some(["Spark", "Ray"], STARTED))
def test_fewer_slots_than_tasks(engine, tmp_path):
    """Counted first: Spark would wait for ever and say nothing."""
    common.need(engine)
    done = common.run_sh(engine, LOGDIR=str(tmp_path / "run"), SLOTS="2", WAIT="20")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [x for x in done.stderr.splitlines() if "3 tasks" in x]
    assert " 2" in line.partition(";")[2] + line.partition(", and")[2]
    assert "Traceback" not in done.stdout + done.stderr


# --- Real runs ----------------------------------------------------------------


def finished(engine, tmp_path, *arguments, **env):
    """Returns what a rehearsal that went well has printed, and its result.json."""
    common.need(engine)
    logdir = tmp_path / "run"
    with common.Rehearsal(engine, logdir, *arguments, **env) as run:
        assert run.wait(800) == 0, run.output
        assert not run.tasks()
    return run.lines, launch.result(logdir)


@launch.if_engines
def test_a_sweep_of_spark(tmp_path):
    """One run of three fails: it is reported, the best of the others is on top."""
    grid = "learning_rate=0.001,0.1,-1"
    lines, result = finished(
        "Spark", tmp_path, "--steps", "100", GRID=grid, NUM_WORKERS="1"
    )
    assert [row["learning_rate"] for row in result["runs"]] == [0.1, 0.001, -1.0]
    assert result["best"] == result["runs"][0] and result["best"]["failed"] == ""
    assert "'-1' is not a number above 0" in result["runs"][2]["failed"]
    assert lines[-1] == "best of 3 runs (1 failed): --learning_rate 0.1"
    assert sum(line.startswith("run ") for line in lines) == 3
    assert (tmp_path / "run" / "runs.png").exists()
    kept = launch.result(tmp_path / "run" / "learning_rate=0.1")
    assert kept["test_accuracy"] == result["best"]["test_accuracy"]


@launch.if_thorough
@common.here("Spark")
def test_a_sweep_that_cannot_be(tmp_path):
    env = {"GRID": "learning_rte=0.1", "LOGDIR": str(tmp_path / "run")}
    done = common.run_sh("Spark", **env)
    assert done.returncode == 2, done.stderr
    assert "unrecognized arguments: --learning_rte=0.1" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@launch.if_thorough
@pytest.mark.parametrize(
    ("engine", "env"),
    [
        ("Spark", {"SPARK_WORKERS": "2"}),
        ("Spark", {"SPARK_WORKERS": "2", "GRID": "batch_size=16,32"}),
        ("Ray", {"RAYLETS": "3"}),
    ],
)
def test_on_a_cluster(engine, env, tmp_path):
    """Of several daemons: a master and workers, or raylets."""
    finished(engine, tmp_path, "--steps", "100", **env)


@launch.if_thorough
def test_spark_feeds(tmp_path):
    _, result = finished(
        "TensorFlowOnSpark", tmp_path, "--steps", "100", INPUT_MODE="SPARK"
    )
    rates = result["examples_per_second"]
    ways = ["memory", "spark, 1 a row", "spark, 32 a row", "memory, again"]
    assert list(rates) == ways
    assert rates["spark, 1 a row"] < rates["memory, again"]


@launch.if_thorough
@pytest.mark.parametrize("engine", [*STARTED, "MPI", "Slurm"])
def test_a_killed_task_ends_the_run(engine, tmp_path):
    common.need(engine)
    run = common.killed(engine, tmp_path)
    assert run.status == 137, run.output
    assert not (run.logdir / "result.json").exists()
    if engine in STARTED:
        assert "worker 1 ended with status 137" in run.output
        assert "Traceback" not in run.output


@launch.if_thorough
@pytest.mark.parametrize("engine", [*STARTED, "Slurm", "Several-Hosts"])
def test_a_killed_task_comes_back(engine, tmp_path):
    """Spark and Slurm start all tasks again, the others the one that was killed."""
    common.need(engine)
    run = common.killed(engine, tmp_path, MAX_RESTARTS="1")
    assert run.status == 0, run.output
    assert launch.result(run.logdir)["global_steps"] == 1000
    all_again = engine in ("Spark", "Slurm")
    assert ("resumes from global step" in run.output) == all_again
