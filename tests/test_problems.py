"""The code of docs/problem.md: other models and optimizers, under the schemes.

Every ```python block is put at the end of problem.py, every ```diff block is applied to
HogWild's script; nothing is tried that the page does not print.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import launch
import numpy as np
import pytest
from harness import SCHEMES, Run, behind, in_turn, rounds, tf
from launch import REPO, copy_of, result, run_sh

PAGE = (REPO / "docs" / "problem.md").read_text()
DIGITS = (launch.REFERENCE / "problem.py").read_text()
# The same network as the page's convolutional one, without Keras.
CONVOLUTION = """
def shapes_of(data):
    classes = int(data.y_train.max()) + 1
    return [(3, 3, 1, 8), (8,), (6 * 6 * 8, classes), (classes,)]

def model(parameters, images, training=False):
    w1, b1, w2, b2 = parameters
    images = tf.reshape(images, [-1, 8, 8, 1])
    maps = tf.nn.relu(tf.nn.conv2d(images, w1, 1, "VALID") + b1)
    return tf.reshape(maps, [-1, 6 * 6 * 8]) @ w2 + b2
"""


def code(section: str, kind: str = "python") -> list[str]:
    """Returns the blocks of one kind in a section of the page."""
    (text,) = re.findall(rf"^## {section}.*?\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.S | re.M)


PERCEPTRON, KERAS_CONVOLUTION, RECURRENT = code("A Keras model")
KERAS_CONVOLUTION = PERCEPTRON + KERAS_CONVOLUTION
RECURRENT = PERCEPTRON + RECURRENT
(INITIAL,) = code("Initial values")
(WORDS,) = code("A lookup table")
(GROUPS,) = code("Parameter groups")
(DROPOUT,) = code("Dropout")
(PARTS,) = code("A test set")
(EXPORT,) = code("Read the trained parameters")
(ADAM,) = code("Adam", "diff")
(SCHEDULE,) = code("A learning rate", "diff")
(AHEAD,) = code("A pull during", "diff")


@functools.cache
def problem_of(more: str) -> types.ModuleType:
    """Returns problem.py with more behind it, as a module."""
    module = types.ModuleType("problem")
    exec(compile(DIGITS + more, "problem.py", "exec"), module.__dict__)
    return module


def learning_of(more: str) -> object:
    """Returns what a Run of the harness calls for a worker's problem."""
    module = problem_of(more)
    data = module.load("digits")

    def build(_: object, index: int) -> tuple:
        learning = module.build(data, 16, 0, index, 2)
        return learning.start, learning.batch, learning.loss, *learning[5:]

    return build


def pushes(folder: str, more: str) -> list:
    """Returns what becomes of three pushes of two workers."""
    with Run(folder, problem=learning_of(more)) as run:
        if run.asynchronous:
            return run.play(in_turn(3))
        return [
            push
            for _ in range(2)
            for push in run.play("pull A, pull B, push A, push B")
        ]


@pytest.mark.parametrize(
    "folder", launch.some(["HogWild", "AEASGD", "DOWNPOUR", "SAGN"], SCHEMES)
)
def test_a_keras_network_takes_the_same_steps(folder: str) -> None:
    pairs = [(KERAS_CONVOLUTION, CONVOLUTION)]
    if folder == "HogWild" or launch.THOROUGH:
        pairs.append((PERCEPTRON, ""))
    for keras, plain in pairs:
        ours, expected = pushes(folder, keras), pushes(folder, plain)
        assert len(ours) == len(expected) > 2
        for push, other in zip(ours, expected, strict=True):
            assert push[:3] == other[:3]
            assert push.loss == pytest.approx(other.loss, rel=1e-4)
            # Rounding: Adagrad's first step takes a sign, also of what is nearly 0.
            off = np.abs(push.center - other.center).mean()
            assert off < 1e-4 * np.abs(push.center).mean()
        moved = np.abs(ours[-1].center - ours[0].center).mean()
        assert moved > 1e-3 * np.abs(ours[0].center).mean()


def evaluate(more: str, vector: np.ndarray | None = None) -> tuple:
    """Returns loss in training, loss and accuracy of the test, at the start vector."""
    module = problem_of(more)
    data = module.load("digits")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)  # dropout has the same mask in every run
        learning = module.build(data, 64, 0)
        start = learning.start if vector is None else tf.constant(vector)
        tensors = learning.test(start)
        session.run(tf.tables_initializer())
        batch = session.run(learning.batch())
        losses = [
            learning.loss(start, batch),
            module.loss(start, batch, module.shapes_of(data)),
        ]
        return session.run(losses), session.run(tensors)


def test_dropout_is_for_training_only() -> None:
    (with_it, without), tested = evaluate(DROPOUT)
    (usual, same), expected = evaluate("")
    assert usual == same == pytest.approx(without)
    assert with_it != pytest.approx(without, rel=1e-3)
    assert tested == pytest.approx(expected)


def test_a_recurrent_network_has_dropout_and_weight_decay() -> None:
    """The mask is another one in each step; the decay is part of the loss, exactly."""
    quick = RECURRENT.replace("layers.GRU(32)", "layers.Flatten(), layers.Dense(32)")
    (first, second), tested = evaluate(quick)
    assert first != pytest.approx(second, rel=1e-3)
    free = evaluate(quick.replace("L2(0.001)", "L2(0.0)"))[1]
    kernel = start_of(quick)[-330:-10]
    decay = 0.001 * np.sum(kernel**2)
    assert tested[0] - free[0] == pytest.approx(decay, rel=1e-3)
    assert tested[1] == free[1]


def start_of(more: str, seed: int = 0) -> np.ndarray:
    """Returns the vector before training."""
    module = problem_of(more)
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(module.build(module.load("digits"), 64, seed).start)


def test_initial_values_of_keras() -> None:
    """Scales begin at one; every worker has the same values, another seed others."""
    scaled = RECURRENT.replace("layers.Dropout(0.2)", "layers.LayerNormalization()")
    start, again, other = (start_of(scaled + INITIAL, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(start, again)
    assert np.abs(start - other).max() > 0.01
    scale, shift, kernel, bias = np.split(start[-64 - 330 :], [32, 64, 384])
    assert (scale == 1).all() and not shift.any() and not bias.any()
    limit = np.sqrt(6 / (32 + 10))  # Glorot and Bengio 2010, equation 16
    assert 0.9 * limit < np.abs(kernel).max() <= limit


def test_labels_from_a_table() -> None:
    module = problem_of(WORDS)
    data = module.load("digits")
    with tf.Graph().as_default(), tf.Session() as session:
        learning, plain = module.build(data, 64, 0), module._with_numbers(data, 64, 0)
        session.run(tf.tables_initializer())
        found = [session.run(each.batch()) for each in (learning, plain)]
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_parameter_groups() -> None:
    """The values are the same; the gradient of each is multiplied by its number."""
    module = problem_of(GROUPS)
    data = module.load("digits")
    shapes = module.shapes_of(data)
    batch = tuple(part[:32] for part in (data.x_train, data.y_train))
    with tf.Graph().as_default(), tf.Session() as session:
        vector = module.initial(shapes, 0)
        found = []
        for grouped in (module, problem_of("")):
            value = grouped.loss(vector, batch, shapes)
            gradient = grouped.parameters(tf.gradients(value, vector)[0], shapes)
            found.append(session.run([value, *gradient]))
    (value, *ours), (expected, *plain) = found
    assert value == pytest.approx(expected, rel=1e-5)
    for rate, one, other in zip(module.RATES, ours, plain, strict=True):
        np.testing.assert_allclose(one, rate * other, 1e-3, 1e-7)


def test_parts_of_a_test_set() -> None:
    assert evaluate(PARTS)[1] == pytest.approx(evaluate("")[1], rel=1e-5)


# --- Optimizers ---------------------------------------------------------------


def changed(diff: str, tmp_path: Path) -> types.ModuleType:
    """Returns HogWild's script after a diff, each line of which is there once."""
    text = (REPO / "HogWild" / "hogwild.py").read_text()
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.M):
        old, new = (re.sub(r"^[-+]", "", part, flags=re.M) for part in (old, new))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "hogwild.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("hogwild", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BATCHES = (1.0, 3.0, 2.0)  # of one worker, over and over


def adam_of(batches: list[float]) -> list[float]:
    """Returns w after each step on ½ (w − c)², from 0 with the rate 0.1.

    Kingma and Ba 2015, Algorithm 1, in the form that ends its section 2.
    """
    w = m = v = 0.0
    found = []
    for t, c in enumerate(batches, 1):
        g = w - c
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w -= rate * m / (np.sqrt(v) + 1e-8)
        found.append(w)
    return found


def centers(diff: str, num_ps: int, tmp_path: Path) -> tuple[list, np.ndarray]:
    """Returns the center after each of five rounds, and after ten in one call."""
    module = changed(diff, tmp_path)
    run = functools.partial(Run, "HogWild", module=module, streams=(BATCHES,))
    with run(start=[0.0] * 3, num_ps=num_ps) as one:
        found = [push.center for push in one.play(in_turn(5, "A"))]
    with run(start=[0.0] * 3, num_ps=num_ps, rounds=10) as ten:
        assert [push.step for push in ten.workers[0].call()] == list(range(1, 11))
        return found, ten.workers[0].now()


@pytest.mark.parametrize("num_ps", [1, 2])
def test_adam(num_ps: int, tmp_path: Path) -> None:
    ten = adam_of([BATCHES[number % 3] for number in range(10)])
    expected = [[w] * 3 for w in ten]
    found, last = centers(ADAM, num_ps, tmp_path)
    np.testing.assert_allclose(found, expected[:5], 1e-4)
    np.testing.assert_allclose(last, expected[-1], 1e-4)


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_falling_rate(num_ps: int, tmp_path: Path) -> None:
    w, expected = 0.0, []
    for number in range(10):
        w -= 0.1 * 0.5 ** (number / 2) * (w - BATCHES[number % 3])
        expected.append([w] * 3)
    found, last = centers(SCHEDULE.replace("/ 1000", "/ 2"), num_ps, tmp_path)
    np.testing.assert_allclose(found, expected[:5], 1e-5)
    np.testing.assert_allclose(last, expected[-1], 1e-5)


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_pull_during_the_gradient(num_ps: int, tmp_path: Path) -> None:
    """Every gradient is applied once, at most one update late, which no pull awaits."""
    module = changed(AHEAD, tmp_path)
    run = functools.partial(Run, "HogWild", module=module, streams=(BATCHES,))
    with run(start=[0.0] * 3, num_ps=num_ps, rounds=10, watch=True) as ten:
        worker = ten.workers[0]
        made = [worker.call() for _ in range(2)]
        assert [push.step for call in made for push in call] == list(range(1, 21))
        assert {push.staleness for call in made for push in call} <= {0, 1}
        # w := −η ∑ (w_seen − c), whatever each round has seen
        gradients = [w - c for w, c in worker.passes]
        assert len(gradients) == 20
        np.testing.assert_allclose(worker.now(), -0.1 * np.sum(gradients, 0), 1e-5)
        for number in range(1, 10):
            reads = operations(worker, f"round_{number}/pull/.*ReadVariableOp")
            needed = {op.name for op in behind(reads)}
            updates = [
                {op.name for op in operations(worker, f"round_{n}/update/Assign")}
                for n in range(number)
            ]
            assert not updates[-1] & needed
            assert all(update and update <= needed for update in updates[:-1])


def operations(worker: object, name: str) -> list:
    """Returns the operations of a worker whose names begin so."""
    return [op for op in worker.graph.get_operations() if re.match(name, op.name)]


def losses_of(one_round: object) -> object:
    """Returns a tensor with the losses of ten rounds of a call."""

    def counted_round(last: object) -> object:
        loss, update = one_round(last)
        zero = tf.zeros([], tf.int64)
        packed = tf.zeros([3], tf.int64)
        counted = rounds.Counted(zero, zero, tf.constant(True), packed)
        return rounds.Round(loss, counted, update)

    return rounds.Calls(counted_round, (10,)).fetches[10][0]


def test_variables_of_the_first_round_are_those_of_all() -> None:
    """Adam makes its powers of β in the first round, and no others later."""

    def one_round(last: object) -> tuple:
        with tf.control_dependencies(tf.nest.flatten(last.update)):
            pulled = w.read_value()
        with tf.name_scope("update"):
            update = rounds.only_if(
                tf.reduce_all(pulled < 9),
                lambda: adam.apply_gradients([(pulled - 3.0, w)]),
            )
        return pulled[0], [update]

    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("center", initializer=[0.0], use_resource=True)
        adam = tf.train.AdamOptimizer(0.1)
        losses = losses_of(one_round)
        session.run(tf.global_variables_initializer())
        found = session.run(losses)
    np.testing.assert_allclose(found, [0.0, *adam_of([3.0] * 9)], 1e-4, 1e-6)


def test_a_branch_is_taken_in_its_round_and_in_no_other() -> None:
    """The rounds after it see what it has done; who waits for it waits for its turn."""

    def one_round(last: object) -> tuple:
        with tf.control_dependencies(tf.nest.flatten(last.update)):
            number = turn.assign_add(1)
        with tf.control_dependencies([number]):
            waited = tf.constant(0.0)
        sets = [
            rounds.only_if(tf.equal(number, at), lambda value=value: w.assign(value).op)
            for at, value in ((4, 5.0), (7, 6.0))
        ]
        with tf.control_dependencies(sets):
            found = w.read_value() + waited
        return found, [found]

    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("center", initializer=0.0, use_resource=True)
        turn = tf.get_variable("turn", initializer=0, use_resource=True)
        losses = losses_of(one_round)
        session.run(tf.global_variables_initializer())
        found = session.run(losses)
    assert found.tolist() == [0, 0, 0, 5, 5, 5, 6, 6, 6, 6]


# --- A real run ---------------------------------------------------------------


@pytest.mark.parametrize(
    "folder", launch.some(["HogWild"], ["HogWild", "DOWNPOUR", "Synchronous-SGD"])
)
def test_the_page_s_recurrent_network_is_trained(folder: str, tmp_path: Path) -> None:
    """With Keras' initial values, and labels from a table."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    (copy / "problem.py").write_text(DIGITS + RECURRENT + INITIAL + WORDS)
    flags = ["--steps", "60", "--learning_rate", "0.2", "--logdir", str(logdir)]
    with run_sh(copy, *flags) as run:
        assert run.wait(800) == 0, run.output
    assert result(logdir)["test_accuracy"] > 0.2, run.output


def test_the_page_s_model_is_trained_read_back_and_exported(tmp_path: Path) -> None:
    """HogWild with the Keras perceptron on 2 ps, then the page's export."""
    copy = copy_of("HogWild", tmp_path)
    (copy / "problem.py").write_text(DIGITS + PERCEPTRON)
    logdir = copy / "logdir" / "mine"
    with run_sh(copy, "--steps", "600", LOGDIR=str(logdir), NUM_PS="2") as run:
        assert run.wait() == 0, run.output
    done = result(logdir)
    assert done["test_accuracy"] > 0.85, done
    (copy / "export.py").write_text(EXPORT + USE)
    said = subprocess.run(
        [sys.executable, "export.py"],
        cwd=copy,
        env=launch.environment(CUDA_VISIBLE_DEVICES="-1"),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert said.returncode == 0, said.stderr
    assert float(said.stdout.split()[-1]) == pytest.approx(done["test_accuracy"])


USE = """
import sklearn.datasets

digits = sklearn.datasets.load_digits()
table = np.column_stack([digits.data, digits.target]).astype(np.uint8)
rows = np.random.default_rng(0).permutation(table)[:360]
x, y = rows[:, :-1].astype(np.float32) / np.float32(16), rows[:, -1]
exported = tf.saved_model.load("logdir/mine/exported")  # kept while it serves
served = exported.serve(x)
print(float((served.numpy().argmax(1) == y).mean()))
"""
