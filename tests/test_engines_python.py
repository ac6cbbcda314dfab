"""Spark, TensorFlowOnSpark and Ray: what their programs share, and real runs of each.

What every engine must do is in test_engines.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import types

import launch
import pytest
import test_engines as common

ENGINES = launch.REPO / "Engines"
STARTED = ["Spark", "TensorFlowOnSpark", "Ray"]  # by a program in Python


@pytest.fixture
def modules(monkeypatch):
    """Returns the modules of Engines/Spark, imported without Spark."""
    pyspark = types.ModuleType("pyspark")
    pyspark.AccumulatorParam, pyspark.InheritableThread = object, None
    names = {"pyspark": pyspark}
    for name in ("pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types"):
        names[name] = types.ModuleType(name)
    sql = names["pyspark.sql"]
    sql.SparkSession = None
    sql.functions, sql.types = (
        names["pyspark.sql.functions"],
        names["pyspark.sql.types"],
    )
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, name, module)
    ours = ("tasks", "driver", "experiments", "plot", "sweep")
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(ENGINES / "Spark"))
    monkeypatch.syspath_prepend(str(ENGINES))
    import sweep

    yield types.SimpleNamespace(sweep=sweep, **{n: sys.modules[n] for n in ours[:-1]})
    for name in ours:
        sys.modules.pop(name, None)


# --- tasks.py -----------------------------------------------------------------


def test_ports_that_are_held_differ(modules):
    held = modules.tasks.held_port
    with held() as first, held() as second:
        assert first != second
        with pytest.raises(OSError), launch_socket(first):
            pass
    with launch_socket(first):
        pass


def launch_socket(port):
    """Returns a socket that is bound to a port of this machine."""
    import socket

    taken = socket.socket()
    try:
        taken.bind(("", port))
    except OSError:
        taken.close()
        raise
    return taken


def test_tf_config_of_a_task(modules):
    config = json.loads(modules.tasks.tf_config(["a:1", "b:2", "c:3"], 1, 2))
    assert config == {
        "cluster": {"ps": ["a:1"], "worker": ["b:2", "c:3"]},
        "task": {"type": "worker", "index": 1},
    }
    alone = json.loads(modules.tasks.tf_config(["a:1"], 0, 0))
    assert alone["cluster"] == {"worker": ["a:1"]}
    assert [modules.tasks.name_of(k, 1) for k in range(3)] == [
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
def test_a_script_and_how_it_ends(code, status, kind, modules, capsys):
    command = [sys.executable, "-c", code]
    assert modules.tasks.run(command, {}, str) == (status, "why")
    if kind is None:
        modules.tasks.run_task("ps 0", command)
        assert capsys.readouterr().out == "[ps 0] a\n[ps 0] why\n"
        return
    with pytest.raises(modules.tasks.Ended) as error:
        modules.tasks.run_task("worker 1", command, "{}")
    assert type(error.value).__name__ == kind and error.value.status == status
    assert error.value.sentence == f"worker 1 ended with status {status}: why"


def test_a_script_ends_with_its_task(tmp_path, modules):
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


def test_check_says_what_the_script_says(modules):
    python, script = sys.executable, str(launch.REPO / "HogWild" / "hogwild.py")
    assert modules.tasks.check(python, script, [], 1, 2) == (0, "")
    status, sentence = modules.tasks.check(python, script, ["--stepz=3"], 1, 2)
    assert (status, sentence) == (
        2,
        "hogwild.py: unrecognized arguments: --stepz=3",
    )


# --- Spark's parallel experiments ---------------------------------------------


def test_a_grid_has_every_combination(modules):
    assert modules.experiments.grid({"a": [1, 2], "b": ["x"]}) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x"},
    ]


def test_random_search(modules):
    search = modules.experiments.random_search
    space = {
        "rate": [0.001, 1.0],
        "batch": [8, 512],
        "shift": [-1.0, 1.0],
        "kind": "xyz",
    }
    drawn = search({**space, "kind": ["x", "y", "z"]}, 200)
    assert drawn == search({**space, "kind": ["x", "y", "z"]}, 200)
    assert drawn != search({**space, "kind": ["x", "y", "z"]}, 200, seed=1)
    assert len(drawn) == 200
    for one in drawn:
        assert 0.001 <= one["rate"] <= 1 and -1 <= one["shift"] <= 1
        assert 8 <= one["batch"] <= 512 and isinstance(one["batch"], int)
    # Evenly by magnitude: as many below the geometric mean as above it.
    below = sum(one["rate"] < 0.0316 for one in drawn)
    assert 70 < below < 130
    assert {one["kind"] for one in drawn} == {"x", "y", "z"}
    assert len(search({"n": [1, 3]}, 9)) == 3  # there are no more different ones


def test_values_of_a_word(modules):
    assert modules.sweep.values_of("a=1,2.5,x") == ("a", [1, 2.5, "x"])
    for word in ("a", "a=", "=1", "a=1,,2"):
        with pytest.raises(ValueError, match="is not flag=value,value"):
            modules.sweep.values_of(word)


state = []  # of this process: a function in a process of its own does not change it


def test_a_function_in_a_process_of_its_own(modules):
    call = modules.experiments.in_a_process

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


def test_names_that_do_not_fit(modules):
    for space, why in (
        ({}, "no runs"),
        ({"a": []}, "no runs"),
        ({"z": [1]}, "has no z"),
    ):
        with pytest.raises(ValueError, match=why):
            modules.experiments.launch(None, lambda a: a, space)


def test_the_picture(modules, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(modules.plot.plt, "close", kept.append)
    rows = [
        {"rate": 10.0**-k, "kind": "xy"[k % 2], "good": 1 - k / 10} for k in range(8)
    ]
    rows.append({"rate": 5.0, "kind": "x", "good": None})
    modules.plot.runs(rows, ["rate", "kind"], "good", str(tmp_path / "runs.png"))
    assert (tmp_path / "runs.png").read_bytes()[1:4] == b"PNG"
    first, second = kept[0].axes
    assert first.get_xscale() == "log" and second.get_xscale() == "linear"
    assert [label.get_text() for label in second.get_xticklabels()] == ["x", "y"]
    assert "9 runs, 1 failed" in kept[0].get_suptitle()
    dots = [len(c.get_offsets()) for c in first.collections]
    assert dots == [8, 1, 1]  # the runs, the one that failed, the ring


# --- What is not as it should be ----------------------------------------------


@pytest.mark.parametrize("engine", ["Spark", "TensorFlowOnSpark"])
@pytest.mark.parametrize("version", ['"11.0.2"', '"1.8.0_292"', "none"])
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
    command = ["bash", str(tmp_path / "Engines" / "Ray" / "run.sh"), "HogWild"]
    env = launch.environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    env["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    common.one_sentence(done, 3, "Ray's packages could not be installed")


def missing(engine):
    """Skips a test if an engine cannot be had here, and says why."""
    if common.MISSING[engine]:
        pytest.skip(common.MISSING[engine])


@pytest.mark.long
@launch.if_engines
@pytest.mark.parametrize("engine", STARTED)
def test_fewer_slots_than_tasks(engine, tmp_path):
    """Counted first: Spark would wait for ever and say nothing."""
    missing(engine)
    if engine == "TensorFlowOnSpark" and not launch.THOROUGH:
        pytest.skip("THOROUGH=1 tries it")
    done = common.run_sh(engine, LOGDIR=str(tmp_path / "run"), SLOTS="2", WAIT="20")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [x for x in done.stderr.splitlines() if "3 tasks" in x]
    assert " 2" in line.partition(";")[2] + line.partition(", and")[2]
    assert "Traceback" not in done.stdout + done.stderr


# --- Real runs ----------------------------------------------------------------


def finished(engine, tmp_path, *arguments, **env):
    """Returns what a rehearsal that went well has printed, and its result.json."""
    missing(engine)
    logdir = tmp_path / "run"
    with common.Rehearsal(engine, logdir, *arguments, **env) as run:
        assert run.wait(280) == 0, run.output
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


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("learning_rate", "'learning_rate' is not flag=value,value"),
        ("learning_rte=0.1", "unrecognized arguments: --learning_rte=0.1"),
    ],
)
@launch.if_thorough
def test_a_sweep_that_cannot_be(grid, words, tmp_path):
    missing("Spark")
    done = common.run_sh("Spark", GRID=grid, LOGDIR=str(tmp_path / "run"))
    assert done.returncode == 2 and words in done.stderr, done.stderr
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
@pytest.mark.parametrize("engine", STARTED)
def test_a_killed_task_ends_the_run(engine, tmp_path):
    missing(engine)
    run = common.killed(engine, tmp_path)
    assert run.status == 137, run.output
    assert "worker 1 ended with status 137" in run.output
    assert "Traceback" not in run.output


@launch.if_thorough
@pytest.mark.parametrize("engine", STARTED)
def test_a_killed_task_comes_back(engine, tmp_path):
    """Spark starts all tasks again, the others the one that was killed."""
    missing(engine)
    run = common.killed(engine, tmp_path, MAX_RESTARTS="1")
    assert run.status == 0, run.output
    assert launch.result(run.logdir)["global_steps"] == 1000
    assert ("resumes from global step" in run.output) == (engine == "Spark")
