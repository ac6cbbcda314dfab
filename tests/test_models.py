"""Problems that people bring: which train, and what is said of those that do not.

Each test runs a real command, in a copy of a folder whose problem.py is LINE, or LINE
with a few words replaced.
"""

from __future__ import annotations

import pathlib
import re

import launch
import pytest
import registry
from launch import copy_of, result, run_sh, run_task, tried
from tree import REPO

LINE = '''
"""y = 2 a - b + c/2, three weights, no bias; the last 100 rows are for the test."""

import collections
import numpy as np
from cluster import tensorflow_v1 as tf

Problem = collections.namedtuple("Problem", "start batch loss test metric")

def load(name, workers):
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    return x, (x @ [2.0, -1.0, 0.5]).astype(np.float32)

def build(data, batch_size, seed, worker=0, workers=1):
    x, y = data
    rows = tf.data.Dataset.from_tensor_slices((x[:300], y[:300])).repeat()
    iterator = tf.data.make_initializable_iterator(rows.batch(batch_size))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    start = tf.zeros([3])
    def batch():
        return iterator.get_next()
    def error(w, x, y):
        return tf.reduce_mean((tf.squeeze(x @ w[:3, None], 1) - y) ** 2)
    def loss(w, batch):
        inputs, outputs = batch
        return error(w, inputs, outputs)
    def test(w):
        left = error(w, x[300:], y[300:])
        return left, 1.0 - left / np.var(y[300:])
    return Problem(start, batch, loss, test, "r_squared")
'''


def with_problem(folder: str, where: pathlib.Path, *edits: tuple) -> pathlib.Path:
    """Returns a copy of a folder whose problem.py is LINE after these edits."""
    text = LINE
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    copy = copy_of(folder, where)
    (copy / "problem.py").write_text(text)
    return copy


# --- A mistake names its field --------------------------------------------------

ONE = "Non-Distributed-Setup"
MISTAKES = {
    "start, 2-d": (("zeros([3])", "zeros([3, 1])"),),
    "start, float64": (("zeros([3])", "zeros([3], tf.float64)"),),
    "batch, NumPy": (("iterator.get_next()", "x[:32], y[:32]"),),
    "loss, vector": (("return error(w, inputs, outputs)", "return w"),),
    "loss, number": (("return error(w, inputs, outputs)", "return 1.0"),),
    "loss, constant": (("return error(w,", "return error(tf.stop_gradient(w),"),),
    "loss, makes a weight": (
        ("return error(w, inputs, outputs)", "return error(w * v(), inputs, outputs)"),
        ("    def loss(", "    v = lambda: tf.get_variable('v', [3])\n    def loss("),
    ),
    "build, makes a weight": (("tf.zeros([3])", "tf.get_variable('v', [3]) * 0"),),
}
SAID = {
    "start, 2-d": "start must be float32 [P]; it is float32 (3, 1)",
    "start, float64": "start must be float32 [P]; it is float64 (3,)",
    "batch, NumPy": "batch() must return tensors: an array is the same in every round",
    "loss, vector": "loss() must give one number, a scalar: tf.gradients would add the",
    "loss, number": "loss() must give one number, a scalar: tf.gradients would add the",
    "loss, constant": "loss() does not depend on the vector: there is nothing to train",
    "loss, makes a weight": "loss() makes or changes v: what is trained, or kept for",
    "build, makes a weight": "build() makes or changes v: what is trained, or kept ",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_check_names_the_field(mistake: str, tmp_path: pathlib.Path) -> None:
    copy = with_problem(ONE, tmp_path, *MISTAKES[mistake])
    done = tried(copy)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "problem.py" in line]
    assert f"problem.py: {SAID[mistake]}" in line


def test_a_start_names_the_field_too(tmp_path: pathlib.Path) -> None:
    """On a cluster, and without --check."""
    copy = with_problem("HogWild", tmp_path, *MISTAKES["build, makes a weight"])
    with run_sh(copy, "--steps=9") as run:
        assert run.wait() == 1, run.output
        run.nothing_left()
    assert f"problem.py: {SAID['build, makes a weight']}" in run.output


def test_what_fits(tmp_path: pathlib.Path) -> None:
    """A start of numbers, a dict of metrics, a part that is meant not to be trained."""
    copy = with_problem(
        ONE,
        tmp_path,
        ("tf.zeros([3])", "np.zeros(5, np.float32)"),
        ("w[:3, None]", "tf.stack([w[0], w[2], w[4]])[:, None]"),
        (
            "return left, 1.0 - left / np.var(y[300:])",
            "return left, {'mse': left, 'same': left}",
        ),
    )
    logdir = tmp_path / "logdir"
    with run_task(copy, "--steps=400", f"--logdir={logdir}") as run:
        assert run.wait() == 0, run.output
    done = result(logdir)
    assert done["test_mse"] == done["test_same"] < 1e-4
    assert re.search(r"test mse 0\.0000, same 0\.0000 after 400 ", run.output)


# --- What a model may be ---------------------------------------------------------


PIPED = [ONE, "HogWild", "Ring-All-Reduce", "Gossip-SGD"]
PIPED_TOO = ["DOWNPOUR", "Synchronous-SGD", "Sharded-Data-Parallel"]


@pytest.mark.parametrize("folder", launch.some(PIPED, [*PIPED, *PIPED_TOO]))
def test_two_pipelines_stay_in_step(folder: str, tmp_path: pathlib.Path) -> None:
    """Each row has its number in both: the training loss is their difference."""
    copy = with_problem(
        folder,
        tmp_path,
        (
            "rows = tf.data.Dataset.from_tensor_slices((x[:300], y[:300])).repeat()",
            "numbers = tf.data.Dataset.range(300).repeat().batch(batch_size)",
        ),
        (
            "iterator = tf.data.make_initializable_iterator(rows.batch(batch_size))",
            "two = [tf.data.make_initializable_iterator(numbers) for _ in range(2)]",
        ),
        ("iterator.initializer)", "tf.group([one.initializer for one in two]))"),
        ("return iterator.get_next()", "return [one.get_next() for one in two]"),
        (
            "return error(w, inputs, outputs)",
            "apart = tf.cast(tf.abs(inputs - outputs), tf.float32)\n"
            "        return tf.reduce_mean(apart) + tf.reduce_sum(w * 0)",
        ),
    )
    logdir = tmp_path / "logdir"
    with run_sh(copy, "--steps=300", "--batch_size=7", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    losses = result(logdir).get("loss_per_worker", {})
    assert {*losses.values()} <= {0.0}, losses
    lines = re.findall(r"loss (\d\.\d+) ", run.output)
    assert lines and {*lines} == {"0.0000"}, run.output


# --- A long graph -----------------------------------------------------------------


def test_a_long_graph_is_built_once(tmp_path: pathlib.Path) -> None:
    """Building takes 11 CPU seconds: training goes on with one round a call."""
    copy = with_problem(
        "HogWild",
        tmp_path,
        ("    def loss(w, batch):", "    def loss(w, batch):\n        long()"),
        (
            "    def error(",
            "    def long():\n        import time\n"
            "        end = time.thread_time() + 11\n"
            "        while time.thread_time() < end: pass\n"
            "        print('built', flush=True)\n    def error(",
        ),
    )
    with run_sh(copy, "--steps=100", NUM_WORKERS="1") as run:
        assert run.wait() == 0, run.output
    assert run.lines.count("[worker 0] built") == 1


# --- The loop is the user's --------------------------------------------------------

STOPPED = [ONE, "HogWild", "Synchronous-SGD", "Ring-All-Reduce"]
STOPPED_TOO = [
    "Stale-Synchronous-Parallel",
    "Gossip-SGD",
    "Sharded-Data-Parallel",
    "In-Graph-Replication",
    "Partitioned-Embedding",
]


@pytest.mark.parametrize("folder", launch.some(STOPPED, [*STOPPED, *STOPPED_TOO]))
def test_a_script_may_stop_early(folder: str, tmp_path: pathlib.Path) -> None:
    """The chief stops; nobody waits, the result is written, and the status is 0."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    script = copy / registry.script_of(folder)
    line = re.compile(r"^( +)\w+\.log\(losses, counts\).*\n", re.M)
    stops = r"\g<0>\1if args.task_index == 0:\n\1    training.stop()\n"
    text, count = line.subn(stops, script.read_text())
    assert count == 1
    script.write_text(text)
    with run_sh(copy, "--steps=1000000", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    done = result(logdir)
    assert 0 < done["global_steps"] < 1_000_000
    assert (logdir / "checkpoint").exists()


def test_the_page_that_changes_the_loop(tmp_path: pathlib.Path) -> None:
    """docs/your-own-problem.md: its changes of HogWild's folder, made and run."""
    page = (REPO / "docs" / "your-own-problem.md").read_text()
    copy, logdir = copy_of("HogWild", tmp_path), tmp_path / "logdir"
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)
    changed = [line for line in diff.splitlines() if re.match(r"[-+](?![-+])", line)]
    assert len(changed) <= 50
    patch = launch.subprocess.run(
        ["patch", "-p0"], cwd=copy, input=diff, text=True, capture_output=True
    )
    assert patch.returncode == 0, patch.stdout
    flags = "--steps=100000", "--learning_rate=0.003"
    with run_sh(copy, *flags, LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    done = result(logdir)
    assert done["test_accuracy"] > 0.9 and done["test_top_2"] > done["test_accuracy"]
    assert done["global_steps"] < 100_000
    curves = b"".join(path.read_bytes() for path in logdir.glob("events*"))
    assert b"validation_loss" in curves
