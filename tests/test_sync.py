"""The synchronous schemes: exact to their rules, synchronous in fact, and they end.

The graphs are those of the scripts, driven on an in-process cluster (`harness`): a pull
takes the worker's token, a push makes its round.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import threading
import time
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


def streams(*of: object) -> list:
    """Returns endless mini-batches, one iterator per worker, for a rule."""
    return [itertools.cycle(np.asarray(s, float)) for s in of]


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

            return (
                problem.initial(shapes, 0),
                lambda: split[index],
                loss,
                tf.no_op(),
                {},
            )

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


@NUM_PS
@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_who_has_not_joined_takes_no_place(folder, num_ps):
    """One gradient would be enough for an update; after a restart B has not joined."""
    flags, options = [*PARENT[folder], "--replicas_to_aggregate=1"], dict(num_ps=num_ps)
    with Run(folder, *flags, start=[0.0, 0.0], **options) as run:
        run.close()
        run.open()
        run.join(0)
        (push,) = run.play("push B")
        assert push.became == rounds.NOT_JOINED
        assert run.chief.step() == 0 and not run.chief.now().any()
        (push,) = run.play("push A")
        assert push[:3] == (1, 0, rounds.APPLIED)


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
        (counted,) = a.session.run(a.calls.fetch(1)[1], a.held)
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


heartbeat, incarnation, rendezvous = (
    importlib.import_module(f"cluster.{name}")
    for name in ("heartbeat", "incarnation", "rendezvous")
)


def rendezvous_of(run: Run) -> object:
    """Returns the chief's Rendezvous, built among the variables of this run."""
    args, target = run.args(0), harness.servers(run.num_ps)[2][0]
    filters = tf.ConfigProto(device_filters=["/job:ps", run.chief.device])
    thread = heartbeat.Heartbeat
    one = rendezvous.Rendezvous(args, target, filters, len(run.start), thread)
    one.graph = tf.Graph()
    with one.graph.as_default(), one.graph.container(run.name):
        one.state = incarnation.Incarnation(args)
        one.heartbeat = thread(args, one.session, one.state)
        one.make_checks(run.chief.stats.incarnation.checks)
    return one


@pytest.mark.parametrize("folder", [*SYNCHRONOUS, "Stale-Synchronous-Parallel"])
def test_the_checks_of_a_heartbeat_have_a_small_graph(folder) -> None:
    """All rounds are left out; what is done and said there is the same."""
    with Run(folder, num_ps=2, rounds=4) as run:
        a, one = run.chief, rendezvous_of(run)
        checks = one.heartbeat.checks
        assert len(checks) == len(a.checks) == len(a.stats.incarnation.checks) == 1
        few, all_ = len(one.graph.get_operations()), len(a.graph.get_operations())
        assert 0 < few < all_ / 3, (few, all_)
        with one.session() as session:
            ((operation, tensors, verdict),) = checks
            session.run(operation)
            assert bool(verdict) == (folder in SYNCHRONOUS)
            if verdict:
                assert verdict(*session.run(tensors)) == ""
                run.chief.forget(100)
                found, expected = session.run(tensors), a.beside.run(a.checks[0][1])
                np.testing.assert_allclose(found[0], expected[0], atol=5)
                assert found[0][0] > 90


@pytest.mark.parametrize("error", ["UnavailableError", "DeadlineExceededError"])
def test_a_worker_that_is_cut_off_as_it_joins_asks_again(error, monkeypatch) -> None:
    """It is no error of its own that ps 0, which has just answered, does not now."""
    run_session, asked = tf.Session.run, []

    def run_if_there(session, fetches, *more):
        if fetches is one.others:
            asked.append(1)
            if len(asked) < 3:
                raise getattr(tf.errors, error)(None, None, "no answer in 5 s")
        return run_session(session, fetches, *more)

    args, target = launch.defaults_of(SSGD), harness.servers(1)[2][0]
    filters = tf.ConfigProto(device_filters=["/job:ps"])
    one = rendezvous.Rendezvous(args, target, filters, 1, heartbeat.Heartbeat)
    with one.graph.as_default(), one.session() as session:
        session.run(one.state.close())
        session.run(one.state.open(one.fingerprint, []))
    monkeypatch.setattr(tf.Session, "run", run_if_there)
    one.compare()
    assert len(asked) == 3


def test_a_heartbeat_ends_a_worker_when_the_run_has_failed(monkeypatch, capsys):
    """For the reason that another one has given, whatever its rounds wait for."""

    def end(status):
        raise SystemExit(f"status {status}")

    monkeypatch.setattr(os, "_exit", end)
    with Run(SSGD) as run:
        one = rendezvous_of(run)
        with one.session() as session:
            one.tell(session, one.state.reason, "it diverged")
            with pytest.raises(SystemExit, match="^status 1$"):
                one.heartbeat.look(session)
    assert capsys.readouterr().err.endswith(": it diverged\n")


@NUM_PS
@pytest.mark.parametrize("folder", SYNCHRONOUS)
@pytest.mark.parametrize("by", ["its next start", "another one's heartbeat"])
def test_a_worker_killed_in_mid_update_does_not_close_the_step(by, folder, num_ps):
    """Between the moment in which ps 0 takes its gradient and the one of its sum."""
    options = dict(num_ps=num_ps, start=[0.0, 0.0])
    with Run(folder, *PARENT[folder], **options) as run:
        a, b = run.workers
        a.pull()
        # What is said of the push, and nothing after it.
        (counted,) = a.session.run(a.calls.fetch(1)[1], a.held)
        assert counted[2] == rounds.APPLIED
        a.held = {}
        (push,) = run.play("pull B, push B")
        # Both are in, one is missing in the sum: nobody makes the update.
        assert push.became == rounds.APPLIED and run.chief.step() == 0
        assert b.waits() and a.waits()
        b.make_checks()  # A is not dead as long as it is heard of
        assert b.waits() and a.waits()
        if by == "its next start":
            run.join(0)
        else:
            a.forget(100)
            b.make_checks()
        assert run.chief.step() == 0
        # Each computes for step 0 again; their mini-batches are the second ones.
        made = run.play("pull A, pull B, push A, push B")
        assert [push[:3] for push in made] == [(1, 0, rounds.APPLIED)] * 2
        assert run.chief.step() == 1
        np.testing.assert_allclose(made[-1].center, [0.5, 0.5], atol=1e-6)
        # The rounds that were thrown away are not counted.
        assert sum(run.counters()["rounds"]) == 2


def test_a_gradient_that_was_thrown_away_does_not_count_later():
    """It was taken, its worker stood still, the others began again, and it goes on."""
    module, late = launch.load(SSGD), []

    def graph(args, center, stats, shared, *rest):
        made = module.graph(args, center, stats, shared, *rest)
        # What is left of a round.
        late.append((shared.named, shared.complete([], tf.constant(True))))
        return made

    with Run(SSGD, graph=graph) as run:
        a, b = run.workers
        a.pull()
        # What is said of the push, and nothing after it.
        name, last = late[0]
        (counted,), named = a.session.run([a.calls.fetch(1)[1], name], a.held)
        assert counted[2] == rounds.APPLIED
        a.forget(100)
        b.make_checks()
        assert not a.session.run(last, {name: named})
        a.held = {}
        run.play("push B")
        assert b.waits() and run.chief.step() == 0
        (push,) = run.play("push A")
        assert push[:3] == (1, 0, rounds.APPLIED) and run.chief.step() == 1


@pytest.mark.parametrize("folder", SYNCHRONOUS)
def test_a_piece_that_comes_late_is_in_no_sum(folder, monkeypatch):
    """A stands still between its two sends; B and C make two steps without it."""
    module, send, go_on, slow = launch.load(folder), rounds.send, threading.Event(), []

    def wait(piece):
        assert go_on.wait(60)
        return piece

    def send_late(tensors, variables):
        if slow:
            with tf.device("/job:worker/task:0"):
                tensors[1] = tf.py_func(wait, [tensors[1]], tf.float32)
                tensors[1].set_shape([1])
        return send(tensors, variables)

    def graph(args, *rest):
        slow[:] = [True] * (args.task_index == 0)
        return module.graph(args, *rest)

    monkeypatch.setattr(rounds, "send", send_late)
    flags = [*PARENT[folder], "--replicas_to_aggregate=2"]
    flags += ["--learning_rates=0.05,0.05,0.05"] * (folder == RATES)
    options = dict(num_ps=2, start=[0.0, 0.0], streams=[[1.0], [5.0], [7.0]])
    with (
        Run(folder, *flags, graph=graph, **options) as run,
        contextlib.ExitStack() as end,
    ):
        end.callback(go_on.set)
        a, b, _ = run.workers
        thread = threading.Thread(target=a.push)
        thread.start()
        taken = b.temporary("taken")
        while not b.session.run(taken)[0].any():
            time.sleep(0.05)
        a.forget(100)
        b.make_checks()
        (*_, made) = run.play("pull B, push B, pull C, push C")
        # w ← w − 0.1 (w − 6), twice
        np.testing.assert_allclose(made.center, [0.6, 0.6], atol=1e-6)
        run.play("pull B, push B")
        go_on.set()
        thread.join()
        (made,) = run.play("pull C, push C")
        np.testing.assert_allclose(made.center, [1.14, 1.14], atol=1e-6)
        assert run.chief.step() == 2 and run.counters()["rounds"] == [0, 2, 2]


@pytest.mark.parametrize("replicas", [2, 1])
def test_who_waits_for_a_worker_that_is_gone_says_so(replicas, capsys):
    """After 10 s, and ends after --patience; with a backup worker nobody waits."""
    needed = "a step takes the gradients of 2 workers"
    more = [f"--replicas_to_aggregate={replicas}", "--patience=60", "--steps=1"]
    with Run(SSGD, *more) as run:
        a, b = run.workers
        a.forget(1000)
        ((_, tensors, verdict),) = b.checks
        heartbeats, number = map(b.temporary, ("heartbeats", "incarnation"))
        with b.graph.as_default():
            past = tf.placeholder(tf.float64, [])
            heard = heartbeats.assign([tf.timestamp() - past, tf.timestamp()]).op
            began = tf.cast(1e6 * (tf.timestamp() - past), tf.int64)
            opened = number.assign(began).op
            never = heartbeats.assign([0.0, tf.timestamp()]).op

        def said(quiet):
            b.session.run(heard, {past: quiet})
            reason = verdict(*b.beside.run(tensors))
            return reason, capsys.readouterr().out

        # Who was started again because it had waited waits as long as before.
        assert said(70)[0] == ""
        assert said(0) == ("", "")
        verdict.__self__.began -= 1000
        assert said(0) == ("", "")
        assert said(9) == ("", "")
        waits = f"still waiting for worker 0: {needed}"
        for quiet, later, reason, line in [
            (20, 0, "", f"{waits}; 40 s left\n"),
            (40, 0, "", ""),
            (40, 10, "", f"{waits}; 20 s left\n"),  # said again every 10 s
            (70, 10, f"no heartbeat in 70 s from worker 0: {needed}", ""),
            (0, 0, "", ""),
            (20, 0, "", f"{waits}; 40 s left\n"),
        ]:
            verdict.__self__.due -= later
            assert said(quiet) == ((reason, line) if replicas == 2 else ("", ""))
        if replicas == 1:
            return
        # Who never came may take ten times as long.
        late = "no heartbeat in 650 s from worker 0: "
        for ago, reason in (550, ""), (650, late):
            b.session.run(never)
            b.session.run(opened, {past: ago})
            assert verdict(*b.beside.run(tensors))[: len(reason) or 1] == reason


@pytest.mark.parametrize("when", ["after the last update", "before a restore"])
def test_nobody_waits(when):
    with Run(SSGD, "--steps=1", num_ps=1) as run:
        a, b = run.workers
        ((_, tensors, verdict),) = b.checks
        a.forget(100)
        verdict.__self__.began -= 1000
        assert verdict(*b.beside.run(tensors)).startswith("no heartbeat in 1")
        if when == "before a restore":
            a.session.run(a.close)
        else:
            run.play("pull A, pull B, push A, push B")
            a.forget(100)
        assert verdict(*b.beside.run(tensors)) == ""


def test_a_backup_worker_that_is_always_late_does_not_count():
    with Run(SSGD, "--replicas_to_aggregate=1") as run:
        made = run.play("pull B, push A, push A, push A, push A, push B")
    found = [float(push.center[0]) for push in made]
    np.testing.assert_allclose(found, [0.1, 0.39, 0.451, 0.7059, 0.7059], atol=1e-6)
    assert made[-1].became == rounds.LATE


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


@pytest.mark.timeout(300)
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
