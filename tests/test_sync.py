"""The synchronous schemes: exact to their rules, synchronous in fact, and they end.

The graphs are those of the scripts, driven on an in-process cluster (`harness`): a pull
takes the worker's token, a push makes its round.
"""

from __future__ import annotations

import importlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import harness
import launch
import numpy as np
import pytest
import rules
from harness import STREAMS, SYNCHRONOUS, Run, rounds, tf
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import copy_of, load, result, run_sh
from rules import streams

link = importlib.import_module("cluster.link")

pytestmark = pytest.mark.timeout(120)  # a wrong synchronous cluster hangs

FOLDER = SSGD = "Synchronous-SGD"  # of this file, for mutations.py
RATES = "Synchronous-SGD-different-learning-rates"
SAGN = "SAGN"
# What is right with the pieces of two is with one; each scheme runs with one.
NUM_PS = pytest.mark.parametrize("num_ps", launch.some([2], [1]))
TRACE = [0.3, 0.77, 0.993, 1.3937]  # of Synchronous-SGD, by hand
PARENT = {  # flags by which each scheme is Synchronous-SGD
    SSGD: [],
    RATES: ["--learning_rates=0.05,0.05"],
    SAGN: ["--window=1", "--server_learning_rate=0.1"],
}


def trace(run: Run, updates: int, order=None) -> list[np.ndarray]:
    """Every worker makes a round for each update, in the order given.

    Asserts what each of them is told, and that nothing moves before the last one.
    """
    found, workers = [], range(len(run.workers))
    before = run.chief.now()
    for t in range(updates):
        turn = list(order(t) if order else workers)
        for k in turn:
            push = run.workers[k].push()
            assert push[:3] == (t + 1, 0, rounds.APPLIED)
            if k != turn[-1]:
                np.testing.assert_array_equal(push.center, before)
        before = push.center
        found.append(before)
        assert run.chief.step() == t + 1
    return found


def numbers(found: list[np.ndarray]) -> list[float]:
    """Returns the centers as one number each; all their elements are the same."""
    assert all(np.all(w == w[0]) for w in found)
    return [float(w[0]) for w in found]


# --- Exact --------------------------------------------------------------------


@NUM_PS
@pytest.mark.parametrize(
    ("folder", "flags", "expected"),
    [
        (SSGD, [], TRACE),
        (RATES, ["--learning_rates=0.1,0.02"], [0.2, 0.616, 0.74208]),
        # One forward pass for the whole window would give 0.3 and 0.57.
        (SAGN, ["--window=2", "--server_learning_rate=0.1"], [0.385, 0.733425]),
    ],
)
def test_trace(folder, flags, expected, num_ps):
    with Run(folder, *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        found = numbers(trace(run, len(expected)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@settings(max_examples=launch.thorough(3, 20))
@given(
    workers=st.integers(1, 4),
    num_ps=st.integers(1, 2),
    window=st.integers(1, 5),
    eta=st.floats(0.01, 0.4),
    eta_s=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**16),
)
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_any_order_of_arrival_gives_the_rule(
    folder, workers, num_ps, window, eta, eta_s, seed
):
    random = np.random.default_rng(seed)
    given_streams = random.uniform(-5, 5, (workers, 3, 2)).tolist()
    of = streams(*given_streams)
    flags = [f"--learning_rate={eta}"]
    if folder == SSGD:
        expected = rules.synchronous_sgd(of, np.zeros(2), 4, eta)
    elif folder == RATES:
        rates = [eta / (1 + k) for k in range(workers)]
        expected = rules.rate_per_worker(of, np.zeros(2), 4, rates)
    else:
        flags += [f"--window={window}", f"--server_learning_rate={eta_s}"]
        expected = rules.sagn(of, np.zeros(2), 4, window, eta, eta_s)

    def order(_):
        return random.permutation(workers)

    options = dict(streams=given_streams, start=[0.0, 0.0], num_ps=num_ps)
    with Run(folder, *flags, **options) as run:
        found = trace(run, 4, order)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_sagn_at_eta_times_window_is_local_sgd():
    with Run(SAGN, "--window=3", f"--server_learning_rate={0.1 * 3}") as run:
        found = numbers(trace(run, 4))
    expected = rules.local_sgd(streams(*STREAMS), 0.0, 4, 3, 0.1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_each_scheme_has_flags_that_make_it_synchronous_sgd(folder):
    with Run(folder, *PARENT[folder]) as run:
        np.testing.assert_allclose(numbers(trace(run, 4)), TRACE, atol=1e-6)


@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_one_worker_is_sequential_sgd(folder):
    flags = ["--learning_rates=0.1"] if folder == RATES else PARENT[folder]
    with Run(folder, *flags, streams=STREAMS[:1]) as run:
        found = numbers(trace(run, 4))
    np.testing.assert_allclose(found, [0.1, 0.39, 0.451, 0.7059], atol=1e-6)


def test_workers_with_batch_b_are_one_worker_with_batch_n_times_b():
    problem = load(SSGD).problem
    data = problem.load("digits")
    shapes = problem.shapes_of(data)
    weights = []
    examples = np.arange(96).reshape(3, 32)

    def part_of(split):
        def digits(worker, index):
            def loss(w, mine):
                return problem.loss(w, (data.x_train[mine], data.y_train[mine]), shapes)

            return problem.initial(shapes, 0), lambda: split[index], loss

        return digits

    for split in (list(examples), [examples.ravel()]):
        with Run(SSGD, problem=part_of(split), streams=split) as run:
            weights.append(trace(run, 5)[-1])
    assert np.abs(weights[0] - weights[1]).max() < 1e-5
    assert np.abs(weights[0]).max() > 0.1


# --- What the field's own optimizer does --------------------------------------


class Field:
    """tf.train.SyncReplicasOptimizer on problem Q, as the field uses it."""

    numbers = itertools.count()  # the servers are those of all tests

    def __init__(self, aggregate, workers):
        spec, _, targets = harness.servers(1)
        self.sessions, self.built = [], []
        name = f"field{next(self.numbers)}"
        for k in range(workers):
            with tf.Graph().as_default() as graph, graph.container(name):
                self.built.append(self.build(spec, k, aggregate, workers))
            self.sessions.append(tf.Session(targets[k], graph))
        self.sessions[0].run(self.built[0].first)
        for session, mine in zip(self.sessions, self.built, strict=True):
            session.run(mine.local)
            session.run(mine.optimizer.local_step_init_op)
        chief = self.built[0].optimizer
        self.sessions[0].run(chief.chief_init_op)
        with self.sessions[0].graph.as_default():
            chief.get_chief_queue_runner().create_threads(
                self.sessions[0], daemon=True, start=True
            )

    @staticmethod
    def build(spec, k, aggregate, workers):
        setter = tf.train.replica_device_setter(
            cluster=spec, worker_device=f"/job:worker/task:{k}"
        )
        with tf.device(setter):
            w = tf.get_variable("w", initializer=0.0)
            step = tf.train.get_or_create_global_step()
            c = tf.placeholder(tf.float32, [])
            optimizer = tf.train.SyncReplicasOptimizer(
                tf.train.GradientDescentOptimizer(0.1), aggregate, workers
            )
            train = optimizer.minimize(0.5 * (w - c) ** 2, step)
            optimizer.ready_for_local_init_op.mark_used()  # or TensorFlow complains
            first = tf.global_variables_initializer()
        local = tf.local_variables_initializer()
        return SimpleNamespace(
            w=w,
            c=c,
            step=step,
            train=train,
            first=first,
            local=local,
            optimizer=optimizer,
        )

    def push(self, *pairs, wait=30):
        """Workers k push towards c, all pairs (k, c) at once; returns w after `wait` s.

        Or sooner, if all have a token of the next step by then.
        """
        threads = []
        for k, c in pairs:
            run, feed = self.sessions[k].run, {self.built[k].c: c}
            arguments = [self.built[k].train, feed]
            threads.append(threading.Thread(target=run, args=arguments, daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(wait)
        return float(self.sessions[0].run(self.built[0].w))


def test_trace_of_tensorflows_own_optimizer():
    """What the field knows gives the same numbers, with no tokens handed out first."""
    field = Field(aggregate=2, workers=2)
    a, b = STREAMS
    found = [field.push((0, a[t % 2]), (1, b[t % 2])) for t in range(4)]
    np.testing.assert_allclose(found, TRACE, atol=1e-6)


def test_tensorflows_own_optimizer_lets_one_worker_fill_two_slots():
    """Why the example has a queue per worker: with one for all, this happens."""
    field = Field(aggregate=2, workers=3)
    assert field.push((0, 1), (1, 5)) == pytest.approx(0.3)
    # Worker 0 alone, twice, with the token that worker 2 left.
    field.push((0, 3), wait=2)
    assert field.push((0, 3)) == pytest.approx(0.57)
    assert field.sessions[0].run(field.built[0].step) == 2


# --- Synchronous --------------------------------------------------------------


@NUM_PS
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_nobody_fills_the_slot_of_a_delayed_worker(folder, num_ps):
    options = dict(num_ps=num_ps, start=[0.0, 0.0])
    with Run(folder, *PARENT[folder], **options) as run:
        (push,) = run.play("pull B, pull A, push A")
        assert push[:3] == (1, 0, rounds.APPLIED) and np.all(push.center == 0)
        assert run.workers[0].waits()  # A has had its turn, and gets no second token
        assert run.chief.step() == 0
        (push,) = run.play("push B")
        np.testing.assert_allclose(push.center, [0.3, 0.3], atol=1e-6)
        *_, push = run.play("pull A, pull B, push B, push A")
        np.testing.assert_allclose(push.center, [0.77, 0.77], atol=1e-6)


@pytest.mark.quick
@NUM_PS
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_a_late_gradient_is_dropped_and_nobody_fills_two_slots(folder, num_ps):
    """Three workers, two gradients per update; the third is late by two steps."""
    flags = list(PARENT[folder])
    if folder == RATES:
        flags = ["--learning_rates=0.05,0.05,0.05"]
    options = dict(streams=[*STREAMS, [100.0]], num_ps=num_ps, start=[0.0, 0.0])
    with Run(folder, *flags, "--replicas_to_aggregate=2", **options) as run:
        made = run.play("pull C, push A")
        assert run.workers[0].waits()
        assert run.chief.step() == 0
        made += run.play("push B, push A, push B")
        assert [push[:3] for push in made] == [
            (number, 0, rounds.APPLIED) for number in (1, 1, 2, 2)
        ]
        np.testing.assert_allclose(made[-1].center, [0.77, 0.77], atol=1e-6)
        # A gradient of step 0, at w = 0, towards 100.
        (late,) = run.play("push C")
        assert late[:3] == (1, 0, rounds.LATE) and run.chief.step() == 2
        np.testing.assert_array_equal(late.center, made[-1].center)
        # It has three tokens by now, and takes them as one: the newest.
        (fresh,) = run.play("push C")
        assert fresh[:3] == (3, 0, rounds.APPLIED)
        assert run.workers[2].waits() and run.chief.step() == 2
        table, summary = run.counters(), run.summary()
        assert table["rounds"] == [2, 2, 1] and table["dropped"] == [0, 0, 1]
        assert summary["gradients_dropped"] == 1 and summary["global_steps"] == 2
        run.play("push B")
        # Now the open step's one is counted too, and nothing was lost or doubled.
        assert run.counters()["rounds"] == [2, 3, 2]
        assert sum(run.counters()["updates"]) == 3


@pytest.mark.quick
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_the_same_gradient_twice_fills_one_slot(folder):
    """A token that was used before is of no use, though its step is still open."""
    with Run(folder, *PARENT[folder]) as run:
        worker = run.workers[0]
        worker.pull()
        held = worker.held
        first = worker.push()
        worker.held = held
        again = worker.push()
        assert [first.became, again.became] == [rounds.APPLIED, rounds.LATE]
        assert run.chief.step() == 0 and run.summary()["gradients_dropped"] == 1
        (push,) = run.play("push B")
        # A's second mini-batch was for the push that did not count.
        np.testing.assert_allclose(push.center, [0.3], atol=1e-6)


@pytest.mark.quick
@NUM_PS
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_no_gradient_is_added_while_the_update_is_made(folder, num_ps):
    """The step is still open, and this worker has none in it; its places are taken."""
    flags, options = [*PARENT[folder], "--replicas_to_aggregate=1"], dict(num_ps=num_ps)
    with Run(folder, *flags, start=[0.0, 0.0], **options) as run:
        a = run.workers[0]
        run.play("pull A, pull B")
        # What is said of the push, and nothing after it.
        (counted,) = a.session.run(a.calls.fetches[1][1], a.held)
        a.held = {}
        assert counted[2] == rounds.APPLIED and run.chief.step() == 0
        (push,) = run.play("push B")
        assert push.became == rounds.LATE and run.summary()["gradients_dropped"] == 1
        assert run.chief.step() == 0 and not run.chief.now().any()


def test_a_gradient_of_an_older_step_never_counts():
    """Late by one step, with a free place for its worker in the open one."""
    with Run(SSGD, "--replicas_to_aggregate=1") as run:
        made = run.play("pull B, push A, push B, push A")
    assert [push[:3] for push in made] == [
        (1, 0, rounds.APPLIED),
        (1, 0, rounds.LATE),
        (2, 0, rounds.APPLIED),
    ]
    np.testing.assert_allclose([p.center[0] for p in made], [0.1, 0.1, 0.39], atol=1e-6)


def test_a_backup_worker_that_is_always_late_does_not_count():
    with Run(SSGD, "--replicas_to_aggregate=1") as run:
        made = run.play("pull B, push A, push A, push A, push A, push B")
    found = [float(push.center[0]) for push in made]
    np.testing.assert_allclose(found, [0.1, 0.39, 0.451, 0.7059, 0.7059], atol=1e-6)
    assert made[-1].became == rounds.LATE


# --- Somebody is gone ---------------------------------------------------------


def look_of(run: Run, k: int) -> Callable:
    """Returns what worker k looks at with each heartbeat, among this run's variables.

    It takes the seconds for which workers are silent, None for one that never came.
    """
    line = link.Link(run.args(k), harness.servers_of(run.num_ps)[run.num_ps + k])
    with line.graph.as_default(), line.graph.container(run.name):
        (make,) = run.workers[k].stats.looks
        look = make(line)

    def look_at(*silent):
        there = [(str(i), {"silent": s}) for i, s in enumerate(silent)]
        return look({"workers": {i: w for i, w in there if w["silent"] is not None}})

    return look_at


def told(run: Run) -> list[str]:
    """Returns the words that the ps were told, and have not read."""
    chief = harness.servers_of(run.num_ps)[run.num_ps]
    with tf.Graph().as_default(), tf.Session(chief.target) as session:
        words = []
        for i in range(run.num_ps):
            with tf.device(f"/job:ps/task:{i}"):
                queue = link.inbox()
                texts = session.run(queue.dequeue_many(queue.size()))
            words += [json.loads(text)["word"] for text in texts]
        return words


@NUM_PS
@pytest.mark.parametrize("by", ["its next start", "its silence"])
def test_a_worker_that_died_after_its_gradient_was_taken(by, num_ps, capsys):
    """The step can never be made: all ps are told to begin again."""
    with Run(SSGD, num_ps=num_ps, start=[0.0, 0.0]) as run:
        a, b = run.workers
        look = look_of(run, 0)
        a.pull()
        # What is said of the push, and nothing after it.
        (counted,) = a.session.run(a.calls.fetches[1][1], a.held)
        a.held = {}
        assert counted[2] == rounds.APPLIED
        stuck = threading.Thread(
            target=lambda: pytest.raises(tf.errors.OpError, b.push)
        )
        stuck.start()
        taken = b.temporary("taken")
        while not b.session.run(taken).any(1).all():
            time.sleep(0.05)
        assert run.chief.step() == 0 and not run.chief.now().any()
        # Nobody is dead as long as all are heard of.
        assert [look(0, 0), look(0, 0), told(run)] == [None, None, []]
        if by == "its next start":
            run.join(0)
        silent = 11 * (by == "its silence")
        # It may be about to be made: only the second look counts.
        look(silent, 0)
        assert told(run) == []
        look(silent, 0)
        assert told(run) == ["again"] * num_ps
        assert "died in the update of global step 0" in capsys.readouterr().out
        b.session.close()
        stuck.join()


def test_a_worker_that_died_when_its_gradient_was_added_is_not_missed():
    """Its successor has no second one in the step, and the others make it."""
    with Run(SSGD, num_ps=2, start=[0.0, 0.0]) as run:
        look = look_of(run, 0)
        run.play("push B")
        run.join(1)
        (push,) = run.play("push B")
        assert push.became == rounds.LATE
        look(0, 0), look(0, 0)
        (push,) = run.play("push A")
        np.testing.assert_allclose(push.center, [0.3, 0.3], atol=1e-6)
        look(0, 0)
        assert told(run) == [] and run.counters()["rounds"] == [1, 2]


DIES = """
import os, signal, time
def dies(tensor, args):
    def act(value):
        step, mark = next(rounds_made), os.path.join(args.logdir, "died")
        if args.task_index == 1 and step > 60 and not os.path.exists(mark):
            open(mark, "w").close()
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return value
    with tf.device(args.device):
        other = tf.py_func(act, [tensor], tf.float32)
        other.set_shape(tensor.shape)
        return other
import itertools
rounds_made = itertools.count()
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["between its pieces", "between two parts of w"])
def test_a_run_goes_on_after_a_death_in_mid_step(where, tmp_path):
    """From the last checkpoint; each gradient counts once."""
    folder, logdir = copy_of(SSGD, tmp_path), tmp_path / "log"
    script = folder / "synchronous_sgd.py"
    old, new = {
        "between its pieces": (
            "        counted = step.offer(",
            "        pushed[1] = dies(pushed[1], args)\n        counted = step.offer(",
        ),
        "between two parts of w": (
            "            return w.assign_sub(",
            "            mean = dies(mean, args) if 'task:1' in w.device else mean\n"
            "            return w.assign_sub(",
        ),
    }[where]
    text = script.read_text()
    assert text.count(old) == 1
    script.write_text(
        text.replace(old, new).replace("import problem\n", f"import problem\n{DIES}")
    )
    words = ["--steps=300", "--save_seconds=1", f"--logdir={logdir}"]
    with run_sh(folder, *words, NUM_PS="2", MAX_RESTARTS="1") as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert (logdir / "died").exists() and "died in the update" in run.output
    found = result(logdir)
    made = sum(found["rounds_per_worker"].values())
    assert found["global_steps"] == 300
    assert made == 2 * 300 + found["gradients_dropped"]


@pytest.mark.parametrize("replicas", [2, 1])
def test_who_waits_for_a_worker_that_is_gone_says_so(replicas, capsys):
    """After 10 s, and ends after --patience; with a backup worker nobody waits."""
    needed = "worker 0: a step takes the gradients of 2 workers"
    more = [f"--replicas_to_aggregate={replicas}", "--patience=1", "--steps=1"]
    with Run(SSGD, *more) as run:
        look = look_of(run, 1)
        assert look(10, 0) is None and capsys.readouterr().out == ""
        assert look(11, 0) is None
        waits = f"still waiting for {needed}; 1 s left\n" * (replicas == 2)
        assert capsys.readouterr().out == waits
        time.sleep(1.2)
        assert look(None, 0) is None  # who never came may take ten times as long
        found = f"no heartbeat in 1 s from {needed}" if replicas == 2 else None
        assert look(12, 0) == found
        run.play("pull A, pull B, push A, push B")
        assert look(12, 0) is None  # after the last update


# --- It ends ------------------------------------------------------------------


@NUM_PS
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_after_the_last_update_nobody_waits_and_nothing_changes(folder, num_ps):
    options = dict(num_ps=num_ps, start=[0.0, 0.0])
    with Run(folder, *PARENT[folder], "--steps=3", **options) as run:
        last = trace(run, 3)[-1]
        before = run.counters()
        for _ in range(3):
            for worker in run.workers:
                push = worker.push()
                assert push.became == rounds.OVER
                np.testing.assert_array_equal(push.center, last)
        assert run.chief.step() == 3 and run.counters() == before


@pytest.mark.timeout(900)
def test_real_processes_end_at_uneven_speed(tmp_path):
    """Two ps, a backup worker, a straggler, and a number of steps that is prime."""
    folder, logdir = copy_of(SSGD, tmp_path), tmp_path / "log"
    words = ["--steps", "67", "--replicas_to_aggregate", "2", "--logdir", str(logdir)]
    slow = ["--slow_workers", "0,0,0.2"]
    with run_sh(folder, *words, *slow, NUM_WORKERS="3", NUM_PS="2") as run:
        run.wait_for("test accuracy")
        last = time.monotonic()
        assert run.wait() == 0, run.output
        # 1 to 3 s on a machine of its own.
        assert time.monotonic() - last < 60
        run.nothing_left()
    found = result(logdir)
    assert found["global_steps"] == 67
    rounds = sum(found["rounds_per_worker"].values())
    assert found["gradients_dropped"] == rounds - 2 * 67 >= 1
    assert found["max_staleness"] == 0
    logs = [path.read_text() for path in logdir.glob("*.log")]
    assert "Traceback" not in "".join([run.output, *logs])
