"""A mistake in the user's own files: Python's traceback, or what is missing.

Also what --check finds of them before a run, in every family; and which errors are of
others, so that another start may help.
"""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
import re
import socket

import launch
import pytest
from launch import copy_of, run_sh, run_task, tree, tried

tf = launch.load("HogWild").tf
task = importlib.import_module("cluster.task")
# A loss that adds what does not fit.
WRONG = """

def wrong(*_):
    return tf.zeros([3]) + tf.zeros([4])


"""
IN_PROBLEM = """_build = build


def build(*arguments):
    return _build(*arguments)._replace(loss=wrong)
"""
# Labels that the model has no outputs for; TensorFlow finds that out in a call.
OUTSIDE = """

_loss = loss


def loss(vector, batch, shapes, training=False):
    return _loss(vector, (batch[0], batch[1] + 100), shapes, training)
"""


def line_of(path: pathlib.Path, text: str) -> int:
    """Returns the number of the line of a file that has a text."""
    (found,) = (n for n, x in enumerate(path.read_text().split("\n"), 1) if text in x)
    return found


def spoiled(folder: str, where: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Returns a copy with a loss that does not fit, and what has to be said of it."""
    copy = copy_of(folder, where)
    path = copy / "problem.py"
    path.write_text(path.read_text() + WRONG + IN_PROBLEM)
    line = line_of(path, "tf.zeros([3]) + tf.zeros([4])")
    return copy, f'problem.py", line {line}, in wrong'


def one_traceback(run: launch.Launch, said: str) -> None:
    """Asserts that a bug is on the screen once, as Python shows it."""
    assert run.output.count("Traceback") == run.output.count(said) == 1, run.output


def one_sentence(run: launch.Launch, said: str) -> None:
    """Asserts that a process said this, and nothing else but what takes its time."""
    before = "still ", "run.sh: checks the"
    lines = [x for x in run.lines if not any(word in x for word in before)]
    assert len(lines) == 1 and said in lines[0], run.output


# --- --check ------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["Non-Distributed-Setup", "Model-Parallelism"])
def test_a_problem_is_tried_without_a_cluster(folder: str, tmp_path) -> None:
    """It is good; then it is not, and nothing is left behind."""
    copy = copy_of(folder, tmp_path)
    before = tree(copy)
    done = tried(copy)
    assert done.returncode == 0 and "problem.py is good: " in done.stdout, done.stderr
    assert tree(copy) == before
    copy, said = spoiled("HogWild", tmp_path / "spoiled")
    done = tried(copy)
    assert done.returncode == 1 and done.stderr.count(said) == 1, done.stderr
    assert "ValueError: Dimensions must be equal, but are 3 and 4" in done.stderr


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_check_starts_no_server(job: str, tmp_path: pathlib.Path) -> None:
    """The ports of the run are another program's, and the logdir is not made."""
    copy, logdir = copy_of("HogWild", tmp_path), tmp_path / "logdir"
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        hosts = [f"localhost:{server.getsockname()[1]}" for server in (one, other)]
        flags = [f"--job_name={job}", "--task_index=0", f"--ps_hosts={hosts[0]}"]
        flags += [f"--worker_hosts={hosts[1]}", f"--logdir={logdir}", "--check"]
        with run_task(copy, *flags) as run:
            assert run.wait() == 0, run.output
    assert not run.output and not logdir.exists()


@pytest.mark.starts
def test_the_launcher_s_own_check_needs_no_tensorflow(tmp_path: pathlib.Path) -> None:
    """Nobody waits for it before a run, nor is told of it."""
    # Read by every Python that starts: who imports TensorFlow says so.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def said(event, names):\n"
        "    if event == 'import' and names[0].startswith('tensorflow'):\n"
        "        print('TENSORFLOW', flush=True)\n"
        "sys.addaudithook(said)\n"
    )
    copy = copy_of("HogWild", tmp_path)
    env = {"PYTHONPATH": str(tmp_path), "LOGDIR": str(tmp_path / "logdir")}
    with run_sh(copy, "--steps", "20", **env) as run:
        assert run.wait() == 0, run.output
    found = [x for x in run.lines if "TENSORFLOW" in x]
    assert found and all(x.startswith("[") for x in found), run.output
    assert "--check" not in run.output


# A model that keeps something from one round to the next, at the place of `{where}`.
KEEPS = """_build = build


def build(*arguments):
    learning = _build(*arguments)
    kept = tf.Variable(0.0, trainable=False, name="kept")

    def batch():
        if "{where}" == "batch":
            with tf.control_dependencies([tf.assign(kept, 2.0)]):
                return tf.nest.map_structure(tf.identity, learning.batch())
        return learning.batch()

    def loss(vector, batch):
        more = kept
        if "{where}" == "loss":
            more = kept.assign_add(1.0)
        return learning.loss(vector, batch) + more

    def test(vector):
        loss, metric = learning.test(vector)
        return loss, tf.metrics.mean(metric)[1]

    return learning._replace(batch=batch, loss=loss, test=test)
"""


@pytest.mark.parametrize("where", ["batch", "loss", ""])
def test_a_model_that_keeps_something_is_refused(where: str, tmp_path) -> None:
    """But not what is only read, nor what a metric of the test adds up."""
    copy = copy_of("HogWild" if where != "loss" else "Ring-All-Reduce", tmp_path)
    path = copy / "problem.py"
    path.write_text(path.read_text() + KEEPS.format(where=where))
    done = tried(copy)
    assert done.returncode == (1 if where else 0), done.stderr
    assert f"problem.py: {where}() makes or changes " * bool(where) in done.stderr


# The losses of a tutorial: a collection has them all.
COLLECTED = """

def loss(vector, batch, shapes, training=False):
    images, labels = batch
    tf.add_to_collection("losses", 0.01 * tf.nn.l2_loss(vector))
    logits = model(parameters(vector, shapes), images, training)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    tf.add_to_collection("losses", tf.reduce_mean(each))
    return tf.add_n({losses})
"""


@pytest.mark.parametrize("folder", ["Sharded-Data-Parallel", "DOWNPOUR"])
def test_a_round_finds_its_own_losses_in_a_collection(folder: str, tmp_path) -> None:
    found = []
    for losses in ('tf.get_collection("losses")', 'tf.get_collection("losses")[-2:]'):
        copy = copy_of(folder, tmp_path / str(len(found)))
        with (copy / "problem.py").open("a") as file:
            file.write(COLLECTED.format(losses=losses))
        logdir = tmp_path / f"logdir-{len(found)}"
        flags = ["--steps=12", f"--logdir={logdir}"]
        with run_sh(copy, *flags, NUM_WORKERS="1") as run:
            assert run.wait() == 0, run.output
        found.append(launch.result(logdir)["loss_per_worker"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)  # sums of other calls


# --- A run --------------------------------------------------------------------


def test_an_error_in_building_the_graph(tmp_path: pathlib.Path) -> None:
    """No server has to be waited for, and no manager may start it again."""
    copy, said = spoiled("HogWild", tmp_path)
    with run_sh(copy, MAX_RESTARTS="3", NUM_WORKERS="1") as run:
        assert run.wait() == 1, run.output
    one_traceback(run, said)
    assert "restart" not in run.output


def test_an_error_in_a_call(tmp_path: pathlib.Path) -> None:
    """The place is where the operation was built that has failed."""
    copy = copy_of("Non-Distributed-Setup", tmp_path)
    path = copy / "problem.py"
    path.write_text(path.read_text() + OUTSIDE)
    with run_task(copy, f"--logdir={tmp_path / 'logdir'}") as run:
        assert run.wait() == 1, run.output
    assert re.search("InvalidArgumentError: .*\n", run.output), run.output
    assert "label value" in run.output


@pytest.mark.quick
@pytest.mark.parametrize(
    ("error", "others"),
    [
        (ValueError("x"), False),
        (TypeError("x"), False),
        (KeyError("x"), False),
        (MemoryError(), False),
        (FileNotFoundError(2, "No such file"), False),
        (tf.errors.UnavailableError(None, None, "x"), True),
        (tf.errors.AbortedError(None, None, "x"), True),
        (tf.errors.DeadlineExceededError(None, None, "x"), True),
        (tf.errors.CancelledError(None, None, "x"), True),
        (tf.errors.FailedPreconditionError(None, None, "x"), False),
        (tf.errors.UnknownError(None, None, "ValueError: of a py_func"), False),
        (tf.errors.InternalError(None, None, "x"), False),
        (tf.errors.NotFoundError(None, None, "x.png; No such file"), False),
        (tf.errors.InvalidArgumentError(None, None, "x"), False),
        (tf.errors.OutOfRangeError(None, None, "x"), False),
        (tf.errors.ResourceExhaustedError(None, None, "x"), False),
        (tf.errors.DataLossError(None, None, "x"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_others_cause_may_be_over_at_another_start(
    error: Exception, others: bool, monkeypatch, capsys
) -> None:
    def main() -> None:
        raise error

    def ends(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", ends)
    logging.getLogger().addHandler(handler := logging.NullHandler())
    try:
        with pytest.raises(SystemExit) as end:
            task.run(main)
    finally:
        logging.getLogger().removeHandler(handler)
    assert end.value.code == (task.AGAIN if others else 1)
    said = capsys.readouterr().err
    assert type(error).__name__ in said
    assert ("Traceback" in said) != others


@pytest.mark.quick
def test_the_sentence_has_the_reason_and_not_the_line_above_it(capsys) -> None:
    text = "Graph execution error:\n\nFrom /job:worker/task:0:\nrefused by p:2"
    assert task.said(tf.errors.UnavailableError(None, None, text))[1] == task.AGAIN
    assert "UnavailableError: refused by p:2\n" in capsys.readouterr().err


# --- Imports ------------------------------------------------------------------

# What is done to a folder, and what has to be said of it.
BROKEN = {
    "a package": (
        "import no_such_thing\n",
        "ModuleNotFoundError: ",
    ),
    "a name": ("x = no_such_name\n", "NameError: name 'no_such_name' is not"),
    "syntax": ("x = = 1\n", "SyntaxError: invalid syntax"),
    "no problem.py": (None, "ModuleNotFoundError: No module named 'problem'"),
}


@pytest.mark.starts
@pytest.mark.parametrize("folder", ["HogWild", "Non-Distributed-Setup"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_script_that_cannot_be_imported(
    how: str, folder: str, tmp_path: pathlib.Path
) -> None:
    """By hand and by run.sh: Python's traceback, once."""
    copy, (change, said) = copy_of(folder, tmp_path), BROKEN[how]
    path = copy / "problem.py"
    if change is None:
        path.unlink()
    else:
        path.write_text(change + path.read_text())
    for start in (run_task, run_sh):
        with start(copy) as run:
            assert run.wait(60) == 1, run.output
        one_traceback(run, said)
    assert not (copy / "logdir").exists()
