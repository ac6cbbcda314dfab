"""What a user's own problem does wrong, or in its own way, by the real command.

An error is first asked whose it is. The user's own ends the run with status 1, and says
where it is or what TensorFlow says of it; it is never the loss of a ps or of a worker.
"""

from __future__ import annotations

import pathlib

import launch
import pytest
import registry
from launch import copy_of, result, run_sh

# A line through points: y = 2 x + 1.
PROBLEM = """
import collections

from cluster import tensorflow_v1 as tf

Problem = collections.namedtuple("Problem", "start batch loss test metric")


def load(name, workers=1):
    return "points"


def rows(worker):
    return tf.data.Dataset.from_tensor_slices([0.0, 1.0, 2.0, 3.0]).repeat()


def value(w, x, y=None):
    y = 2 * x + 1 if y is None else y
    return tf.reduce_mean((w[0] * x + w[1] - y) ** 2)


loss = value


def build(data, batch_size, seed, worker=0, workers=1):
    iterator = tf.data.make_initializable_iterator(rows(worker).batch(batch_size))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)

    def test(w):
        far = tf.reduce_mean((w - [2.0, 1.0]) ** 2)
        return far, -far

    return Problem(tf.zeros([2]), iterator.get_next, loss, test, "closeness")
"""
BROKEN = """
def broken(x):
    raise RuntimeError("this is broken")

"""
# What is put behind it, and what has to be on the screen.
RUNTIME = {
    "a missing file": (
        "def rows(worker):\n    return tf.data.TextLineDataset('no/such.csv')"
        ".map(tf.strings.to_number)\n",
        "no/such.csv; No such file or directory",
    ),
    "Python in the input": (
        BROKEN + "def rows(worker):\n    return tf.data.Dataset.range(9).repeat()"
        ".map(lambda x: tf.py_func(broken, [x], tf.float32))\n",
        'raise RuntimeError("this is broken")',
    ),
    "Python in the loss": (
        BROKEN + "def loss(w, x):\n"
        "    return value(w, tf.py_func(broken, [x], tf.float32) + x)\n",
        'raise RuntimeError("this is broken")',
    ),
    "a variable without a value": (
        "def rows(worker):\n    global lost\n"
        "    lost = tf.Variable(1.0, trainable=False, collections=[])\n"
        "    return tf.data.Dataset.from_tensors(1.0).repeat()\n"
        "def loss(w, x):\n    return value(w, x) + lost.read_value()\n",
        "Could not find variable",
    ),
    "a table without its file": (
        "def loss(w, x):\n    text = tf.lookup.TextFileInitializer(\n"
        "        'no/such.txt', tf.string, 0, tf.int64, 1)\n"
        "    found = tf.lookup.StaticHashTable(text, -1).lookup(tf.constant('a'))\n"
        "    return value(w, x) + tf.cast(found, tf.float32)\n",
        "no/such.txt; No such file or directory",
    ),
    "values that do not fit": (
        "def loss(w, x):\n"
        "    return value(w, tf.ensure_shape(tf.concat([x, x], 0), [32]))\n",
        "is not compatible with expected shape [32]",
    ),
}
TABLE_IN_LOSS = """
def loss(w, x):
    keys = tf.constant([0, 1, 2, 3], tf.int64)
    pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 3.0, 5.0, 7.0]))
    y = tf.lookup.StaticHashTable(pairs, -1.0).lookup(tf.cast(x, tf.int64))
    return value(w, x, y)
"""
TABLE = """
_build = build


def build(*arguments):
    keys = tf.constant([0, 1, 2, 3], tf.int64)
    pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 3.0, 5.0, 7.0]))
    table = tf.lookup.StaticHashTable(pairs, -1.0)

    def loss(w, x):
        return value(w, x, table.lookup(tf.cast(x, tf.int64)))

    return _build(*arguments)._replace(loss=loss)


def rows(worker):
    keys = tf.constant(["a", "b"])
    pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 3.0]))
    table = tf.lookup.StaticHashTable(pairs, -1.0)
    words = tf.data.Dataset.from_tensor_slices(["a", "b"]).map(table.lookup)
    now = tf.data.Dataset.from_tensor_slices(table.lookup(keys))
    return words.concatenate(now).repeat()
"""
# As TensorFlow's tutorial of cifar10 has it.
COLLECTION = """
def loss(w, x):
    tf.add_to_collection("losses", 0.0 * tf.nn.l2_loss(w))
    tf.add_to_collection("losses", value(w, x))
    return tf.add_n(tf.get_collection("losses"))
"""
# Sparse features: w is only read by rows. And both at once.
SPARSE = """
def loss(w, x):
    row = tf.gather(w, [0, 1])
    tf.add_to_collection("losses", 0.0 * tf.nn.l2_loss(tf.gather(w, [0])))
    tf.add_to_collection("losses", value(row, x))
    return tf.add_n(tf.get_collection("losses"))
"""
STEPS = ["--steps", "30", "--learning_rate", "0.01"]


def copy_with(folder: str, where: pathlib.Path, more: str) -> pathlib.Path:
    """Returns a copy of an example with the problem of a line, and more behind it."""
    copy = copy_of(folder, where)
    (copy / "problem.py").write_text(PROBLEM + "\n\n" + more + "\n")
    return copy


def not_lost(run: launch.Launch) -> None:
    """Asserts that the run has failed for good, and blames nobody else."""
    assert run.wait() == 1, run.output
    run.nothing_left()
    assert "lost" not in run.output and "restart" not in run.output, run.output


# --- An error in a call ----------------------------------------------------------

FOLDERS = [
    ("HogWild", "a missing file"),
    ("HogWild", "Python in the input"),
    ("HogWild", "a variable without a value"),
    ("HogWild", "a table without its file"),
    ("DOWNPOUR", "Python in the loss"),
    ("Ring-All-Reduce", "a variable without a value"),
    ("Ring-All-Reduce", "Python in the input"),
    ("Gossip-SGD", "a missing file"),
    ("Non-Distributed-Setup", "values that do not fit"),
]


@pytest.mark.parametrize(
    ("folder", "how"),
    launch.some(
        FOLDERS,
        [
            (folder, how)
            for folder in ("HogWild", "DOWNPOUR", "Synchronous-SGD", "Local-SGD")
            for how in RUNTIME
            # In the body of a loop: test_a_table_that_the_loss_makes.
            if folder in ("HogWild", "Synchronous-SGD") or "table" not in how
        ],
    ),
)
def test_an_error_of_the_users_own(
    folder: str, how: str, tmp_path: pathlib.Path
) -> None:
    more, said = RUNTIME[how]
    copy = copy_with(folder, tmp_path, more)
    with run_sh(copy, *STEPS, MAX_RESTARTS="2") as run:
        not_lost(run)
    assert said in run.output


@pytest.mark.parametrize("folder", ["HogWild", "Ring-All-Reduce"])
def test_of_one_worker_alone_ends_all(folder: str, tmp_path: pathlib.Path) -> None:
    """The others hear why: they do not say that it is lost."""
    more, said = RUNTIME["Python in the input"]
    more += "\n\nbad = rows\n\n\ndef rows(worker):\n    "
    more += "good = tf.data.Dataset.from_tensor_slices([0.0, 1.0]).repeat()\n"
    more += "    return bad(worker) if worker else good\n"
    copy = copy_with(folder, tmp_path, more)
    with run_sh(copy, *STEPS, "--slow_workers", "0.1") as run:
        not_lost(run)
    assert said in run.output


# --- A bug in Python ---------------------------------------------------------------

BUGS = {
    "load": ("def load(name, workers=1):\n    return {}['x_train']\n", "KeyError: 'x"),
    "loss": ("def loss(w, x):\n    return no_such_name\n", "NameError: name 'no_such_"),
    "a file in build": (
        "def rows(worker):\n    return open('no/such.bin').read()\n",
        "FileNotFoundError: [Errno 2] No such file or directory: 'no/such.bin'",
    ),
}


@pytest.mark.parametrize("how", BUGS)
def test_a_bug_is_a_traceback_once(how: str, tmp_path: pathlib.Path) -> None:
    more, said = BUGS[how]
    copy = copy_with("HogWild", tmp_path, more)
    line = 1 + (copy / "problem.py").read_text().split("\n").index(more.split("\n")[1])
    with run_sh(copy, *STEPS, MAX_RESTARTS="2", NUM_WORKERS="1") as run:
        not_lost(run)
    assert run.output.count("Traceback") == run.output.count(said) == 1, run.output
    assert f'problem.py", line {line}, in ' in run.output


# --- What is missing ---------------------------------------------------------------


@pytest.mark.starts
# --- What is right, and was not taken ------------------------------------------------


@pytest.mark.parametrize("folder", ["HogWild", "DOWNPOUR", "Ring-All-Reduce"])
def test_tables_are_initialised(folder: str, tmp_path: pathlib.Path) -> None:
    """Tables of the loss, of the input, and one that the input asks when it begins."""
    copy = copy_with(folder, tmp_path, TABLE)
    with run_sh(copy, *STEPS, LOGDIR=str(tmp_path / "logdir")) as run:
        assert run.wait() == 0, run.output
    assert "lost" not in run.output


@pytest.mark.parametrize(("folder", "status"), [("HogWild", 0), ("DOWNPOUR", 1)])
def test_a_table_that_the_loss_makes(
    folder: str, status: int, tmp_path: pathlib.Path
) -> None:
    """In the body of a loop it cannot be initialised."""
    with run_sh(copy_with(folder, tmp_path, TABLE_IN_LOSS), *STEPS) as run:
        assert run.wait() == status, run.output
    assert ("Traceback" in run.output) == bool(status)


ONE_PROBLEM = [
    folder
    for folder in registry.folders()
    if (launch.REPO / folder / "problem.py").read_bytes()
    == (launch.REFERENCE / "problem.py").read_bytes()
    and folder not in ("Horovod", "Fault-Tolerance", "Distributed-MNIST")
]


@pytest.mark.parametrize("folder", ONE_PROBLEM)
def test_every_scheme_takes_a_sparse_gradient_and_a_collection(
    folder: str, tmp_path: pathlib.Path
) -> None:
    """Its graph can be built, also where the loss is called in the body of a loop."""
    copy = copy_with(folder, tmp_path, SPARSE)
    with run_sh(copy, "--check") as run:
        assert run.wait() == 0, run.output


@pytest.mark.parametrize("folder", ["HogWild", "Ring-All-Reduce"])
def test_a_collection_of_losses_is_of_one_call(
    folder: str, tmp_path: pathlib.Path
) -> None:
    """The mean loss is that of a round, and not of all rounds of a call."""
    found = []
    for more in ("", COLLECTION):
        copy = copy_with(folder, tmp_path / str(len(found)), more)
        logdir = tmp_path / "logdir" / str(len(found))
        with run_sh(copy, *STEPS, NUM_WORKERS="1", LOGDIR=str(logdir)) as run:
            assert run.wait() == 0, run.output
        found.append(result(logdir)["loss_per_worker"]["0"])
    assert found[0] == pytest.approx(found[1], rel=0.01)
