"""The synchronous schemes: exact to their rules, synchronous in fact, and they end.

The graphs are those of the scripts, driven on an in-process cluster: a round is one
session.run per worker, made in the order that a test wants.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import rules_sync as rules
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import center_variable, copy_of, free_ports, load, result, run_sh

pytestmark = pytest.mark.timeout(120)  # a wrong synchronous cluster hangs

SSGD = "Synchronous-SGD"
RATES = "Synchronous-SGD-different-learning-rates"
SAGN = "SAGN"
SYNCHRONOUS = (SSGD, RATES, SAGN)
A, B = [1.0, 3.0], [5.0, 7.0]  # the mini-batches of algorithms.md's problem Q


@pytest.fixture(scope="module")
def tf():
    """TensorFlow as the examples see it."""
    load(SSGD)
    from cluster import tf

    return tf


class Cluster:
    """Servers of one ps job and some workers in this process."""

    def __init__(self, tf, num_ps: int, workers: int) -> None:
        # A round that waits for its token holds a thread of its server.
        config = tf.ConfigProto(inter_op_parallelism_threads=16)
        base = free_ports(num_ps + workers)
        hosts = [f"localhost:{base + i}" for i in range(num_ps + workers)]
        self.spec = tf.train.ClusterSpec(
            {"ps": hosts[:num_ps], "worker": hosts[num_ps:]}
        )
        self.servers = {
            (job, i): tf.train.Server(self.spec, job, i, config=config)
            for job, count in (("ps", num_ps), ("worker", workers))
            for i in range(count)
        }


class Run:
    """Workers of one scheme on a problem; `round(k)` is what worker k does once."""

    def __init__(self, tf, name, streams, num_ps=1, gates=(), loss=None, **flags):
        self.tf, self.module, self.threads = tf, load(name), []
        count = len(streams)
        flags = {
            "learning_rate": 0.1,
            "steps": 1000,
            "replicas_to_aggregate": count,
            "worker_hosts": [""] * count,
            **flags,
        }
        self.cluster = Cluster(tf, num_ps, count)
        self.sessions, self.trains, hooks = [], [], []
        for k, stream in enumerate(streams):
            device = f"/job:worker/task:{k}"
            setter = tf.train.replica_device_setter(
                cluster=self.cluster.spec, worker_device=device
            )
            gate = dict(gates).get(k)
            with tf.Graph().as_default() as graph, tf.device(setter):
                args = SimpleNamespace(task_index=k, **flags)
                start = tf.zeros([2]) if loss is None else loss.start()
                center = center_variable(tf, start, num_ps)
                global_step = tf.train.get_or_create_global_step()
                if loss is None:
                    data = tf.data.Dataset.from_tensor_slices(np.float32(stream))
                    batch = tf.data.make_one_shot_iterator(data.repeat()).get_next

                    def value(w, c, gate=gate):
                        if gate is not None:
                            wait = tf.py_func(lambda _: gate.wait(60), [w[0]], tf.bool)
                            with tf.control_dependencies([wait]):
                                w = tf.identity(w)
                        return tf.reduce_sum(0.5 * (w - c) ** 2)

                else:
                    batch, value = (lambda stream=stream: stream), loss
                train, mine = self.module.graph(args, center, global_step, batch, value)
                local = tf.local_variables_initializer()
                everything = tf.global_variables_initializer()
                read = center.as_tensor()
                graph_step = global_step
            target = self.cluster.servers["worker", k].target
            options = tf.ConfigProto(device_filters=["/job:ps", device])
            session = tf.Session(target, graph, options)
            if k == 0:
                session.run(everything)
                self.read, self.step = read, graph_step
            session.run(local)
            self.sessions.append(session)
            self.trains.append(train)
            hooks.append(mine)
        self.coord = tf.train.Coordinator()
        with self.sessions[0].graph.as_default():
            self.runners = tf.train.start_queue_runners(self.sessions[0], self.coord)
        for session, mine in zip(self.sessions, hooks, strict=True):
            for hook in mine:
                hook.after_create_session(session, self.coord)

    def round(self, k: int) -> int:
        """Worker k makes one round; returns the step it reports."""
        return int(self.sessions[k].run(self.trains[k])["counts"][0])

    def later(self, k: int) -> threading.Thread:
        """Worker k begins a round in a thread of its own."""

        def work():
            with contextlib.suppress(self.tf.errors.OpError):
                self.round(k)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def steps(self) -> int:
        return int(self.sessions[0].run(self.step))

    def w(self, step: int) -> np.ndarray:
        """Returns the center variable once `step` updates have been applied."""
        until = time.monotonic() + 30
        while self.steps() < step:
            assert time.monotonic() < until, f"{self.steps()} updates, wanted {step}"
            time.sleep(0.002)
        assert self.steps() == step
        return self.sessions[0].run(self.read)

    def trace(self, updates: int, order=None) -> list[float]:
        """Every worker makes a round for each update, in the order given."""
        found = []
        for t in range(updates):
            for k in order(t) if order else range(len(self.sessions)):
                assert self.round(k) == t + 1
            w = self.w(t + 1)
            assert np.all(w == w[0])
            found.append(float(w[0]))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.coord.request_stop()
        for session in self.sessions:
            session.close()


# --- Exact --------------------------------------------------------------------


@pytest.mark.parametrize("num_ps", [1, 2])
def test_trace_of_synchronous_sgd(tf, num_ps):
    with Run(tf, SSGD, [A, B], num_ps) as run:
        found = run.trace(4)
    np.testing.assert_allclose(found, [0.3, 0.77, 0.993, 1.3937], atol=1e-6)
    np.testing.assert_allclose(found, rules.synchronous_sgd([A, B], 4, 0.1), atol=1e-6)


@pytest.mark.parametrize("num_ps", [1, 2])
def test_trace_of_different_learning_rates(tf, num_ps):
    with Run(tf, RATES, [A, B], num_ps, learning_rates=[0.1, 0.02]) as run:
        found = run.trace(3)
    np.testing.assert_allclose(found, [0.2, 0.616, 0.74208], atol=1e-6)
    exact = rules.rate_per_worker([A, B], 3, [0.1, 0.02])
    np.testing.assert_allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize("num_ps", [1, 2])
def test_trace_of_sagn(tf, num_ps):
    with Run(tf, SAGN, [A, B], num_ps, window=2, server_learning_rate=0.1) as run:
        found = run.trace(2)
    np.testing.assert_allclose(found, [0.385, 0.733425], atol=1e-6)
    # One forward pass for the whole window would give 0.3 and 0.57.
    np.testing.assert_allclose(found, rules.sagn([A, B], 2, 2, 0.1, 0.1), atol=1e-6)


@settings(max_examples=8, deadline=None)
@given(
    workers=st.integers(1, 4),
    num_ps=st.integers(1, 2),
    window=st.integers(1, 5),
    eta=st.floats(0.01, 0.4),
    eta_s=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**16),
)
def test_any_order_of_arrival_gives_the_rule(
    tf, workers, num_ps, window, eta, eta_s, seed
):
    random = np.random.default_rng(seed)
    streams = random.uniform(-5, 5, (workers, 3)).tolist()
    flags = {"window": window, "learning_rate": eta, "server_learning_rate": eta_s}

    def order(_):
        return random.permutation(workers)

    with Run(tf, SAGN, streams, num_ps, **flags) as run:
        found = run.trace(4, order)
    np.testing.assert_allclose(
        found, rules.sagn(streams, 4, window, eta, eta_s), rtol=1e-4, atol=1e-5
    )


def test_sagn_at_eta_times_window_is_local_sgd(tf):
    with Run(tf, SAGN, [A, B], window=3, server_learning_rate=0.1 * 3) as run:
        found = run.trace(4)
    np.testing.assert_allclose(found, rules.local_sgd([A, B], 4, 3, 0.1), atol=1e-6)


def test_sagn_with_window_one_is_synchronous_sgd(tf):
    with Run(tf, SAGN, [A, B], window=1, server_learning_rate=0.1) as run:
        found = run.trace(4)
    np.testing.assert_allclose(found, [0.3, 0.77, 0.993, 1.3937], atol=1e-6)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_one_worker_is_sequential_sgd(tf, name):
    flags = {"window": 1, "server_learning_rate": 0.1, "learning_rates": [0.1]}
    with Run(tf, name, [A], **flags) as run:
        found = run.trace(4)
    np.testing.assert_allclose(found, [0.1, 0.39, 0.451, 0.7059], atol=1e-6)


def test_equal_rates_are_synchronous_sgd_with_the_mean(tf):
    with Run(tf, RATES, [A, B], learning_rates=[0.05, 0.05]) as run:
        found = run.trace(4)
    np.testing.assert_allclose(found, [0.3, 0.77, 0.993, 1.3937], atol=1e-6)


def test_workers_with_batch_b_are_one_worker_with_batch_n_times_b(tf):
    import problem

    data = problem.load("digits")
    shapes = problem.shapes(data)

    class Loss:
        def start(self):
            return problem.initial(shapes, 0)

        def __call__(self, w, rows):
            return problem.loss(w, (data.x_train[rows], data.y_train[rows]), shapes)

    rows, weights = np.arange(96).reshape(3, 32), []
    for streams in (list(rows), [rows.ravel()]):
        with Run(tf, SSGD, streams, loss=Loss()) as run:
            for t in range(5):
                for k in range(len(streams)):
                    run.round(k)
                w = run.w(t + 1)
            weights.append(w)
    assert np.abs(weights[0] - weights[1]).max() < 1e-5
    assert np.abs(weights[0]).max() > 0.1


def test_trace_of_tensorflows_own_optimizer(tf):
    """What the field knows gives the same numbers, with no tokens handed out first."""
    cluster = Cluster(tf, 1, 2)
    sessions, trains, inits = [], [], []
    for k in range(2):
        with tf.Graph().as_default() as graph:
            built = field(tf, cluster, k, aggregate=2, workers=2)
        target = cluster.servers["worker", k].target
        sessions.append(tf.Session(target, graph))
        trains.append(built.train)
        inits.append(built)
    start(sessions, inits)
    found = []
    for t in range(4):
        waiting = [
            later(sessions[k], trains[k], {inits[k].c: [A, B][k][t % 2]})
            for k in (0, 1)
        ]
        for thread in waiting:
            thread.join(30)
        found.append(float(sessions[0].run(inits[0].w)))
    np.testing.assert_allclose(found, [0.3, 0.77, 0.993, 1.3937], atol=1e-6)


def field(tf, cluster, k, aggregate, workers):
    """tf.train.SyncReplicasOptimizer on problem Q, for worker k."""
    setter = tf.train.replica_device_setter(
        cluster=cluster.spec, worker_device=f"/job:worker/task:{k}"
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
        w=w, c=c, step=step, train=train, first=first, local=local, optimizer=optimizer
    )


def start(sessions, built):
    sessions[0].run(built[0].first)
    for session, mine in zip(sessions, built, strict=True):
        session.run(mine.local)
        session.run(mine.optimizer.local_step_init_op)
    sessions[0].run(built[0].optimizer.chief_init_op)
    with sessions[0].graph.as_default():
        built[0].optimizer.get_chief_queue_runner().create_threads(
            sessions[0], daemon=True, start=True
        )


def later(session, train, feed):
    thread = threading.Thread(target=session.run, args=[train, feed], daemon=True)
    thread.start()
    return thread


# --- Synchronous --------------------------------------------------------------


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_nobody_fills_the_slot_of_a_delayed_worker(tf, name):
    gate = threading.Event()
    flags = {"window": 1, "server_learning_rate": 0.1, "learning_rates": [0.05, 0.05]}
    with Run(tf, name, [A, B], gates={1: gate}.items(), **flags) as run:
        slow = run.later(1)
        assert run.round(0) == 1
        second = run.later(0)
        time.sleep(1)
        assert second.is_alive() and run.steps() == 0
        gate.set()
        slow.join(30)
        assert float(run.w(1)[0]) == pytest.approx(0.3, abs=1e-6)
        second.join(30)
        run.round(1)
        assert float(run.w(2)[0]) == pytest.approx(0.77, abs=1e-6)


def test_a_late_gradient_is_dropped_and_nobody_fills_two_slots(tf):
    """Three workers, two gradients per update; the third is late by two steps."""
    gate = threading.Event()
    with Run(
        tf, SSGD, [A, B, [100.0]], gates={2: gate}.items(), replicas_to_aggregate=2
    ) as run:
        late = run.later(2)
        assert run.round(0) == 1
        again = run.later(0)
        time.sleep(0.5)
        assert again.is_alive() and run.steps() == 0  # it has its slot, and waits
        assert run.round(1) == 1
        again.join(30)  # a gradient of step 1 now
        exact = rules.synchronous_sgd([A, B], 2, 0.1)
        assert float(run.w(1)[0]) == pytest.approx(exact[0], abs=1e-6)
        assert late.is_alive()
        assert run.round(1) == 2
        assert float(run.w(2)[0]) == pytest.approx(exact[1], abs=1e-6)
        gate.set()
        late.join(30)  # a gradient of step 0, at w = 0, towards 100
        time.sleep(0.2)
        assert run.steps() == 2
        assert float(run.w(2)[0]) == pytest.approx(exact[1], abs=1e-6)
        # It has three tokens by now, and takes them as one: the newest.
        assert run.round(2) == 3
        again = run.later(2)
        time.sleep(0.5)
        assert again.is_alive() and run.steps() == 2


def test_a_backup_worker_that_is_always_late_does_not_count(tf):
    gate = threading.Event()
    with Run(tf, SSGD, [A, B], gates={1: gate}.items(), replicas_to_aggregate=1) as run:
        late = run.later(1)
        found = []
        for t in range(4):
            assert run.round(0) == t + 1
            found.append(float(run.w(t + 1)[0]))
        gate.set()
        late.join(30)
        assert run.steps() == 4
    np.testing.assert_allclose(found, [0.1, 0.39, 0.451, 0.7059], atol=1e-6)


def test_tensorflows_own_optimizer_lets_one_worker_fill_two_slots(tf):
    """Why the example has a queue per worker: with one for all, this happens."""
    cluster = Cluster(tf, 1, 3)
    sessions, built = [], []
    for k in range(3):
        with tf.Graph().as_default() as graph:
            built.append(field(tf, cluster, k, aggregate=2, workers=3))
        sessions.append(tf.Session(cluster.servers["worker", k].target, graph))
    start(sessions, built)
    waiting = [
        later(sessions[k], built[k].train, {built[k].c: c}) for k, c in ((0, 1), (1, 5))
    ]
    for thread in waiting:
        thread.join(30)
    assert float(sessions[0].run(built[0].w)) == pytest.approx(0.3)
    for c in (3, 3):  # worker 0 alone, twice, with the token that worker 2 left
        thread = later(sessions[0], built[0].train, {built[0].c: c})
        thread.join(30)
    assert sessions[0].run(built[0].step) == 2
    assert float(sessions[0].run(built[0].w)) == pytest.approx(0.57)


# --- It ends ------------------------------------------------------------------


def test_the_last_update_ends_the_thread_and_every_round(tf):
    with Run(tf, SSGD, [A, B], steps=3) as run:
        run.trace(3)
        for k in (0, 1):
            with pytest.raises(tf.errors.OutOfRangeError):
                run.round(k)
        for thread in run.runners:
            if "close_on_stop" not in thread.name:
                thread.join(10)
                assert not thread.is_alive()
        assert run.steps() == 3 and not run.coord.should_stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_real_processes_end_at_uneven_speed(name, tmp_path):
    """Two ps, a backup worker, a straggler, and a number of steps that is prime."""
    folder, logdir = copy_of(name, tmp_path), tmp_path / "log"
    words = ["--steps", "67", "--replicas_to_aggregate", "2", "--logdir", str(logdir)]
    slow = ["--slow_workers", "0,0,0.2"]
    with run_sh(folder, *words, *slow, NUM_WORKERS="3", NUM_PS="2") as run:
        run.wait_for("test accuracy")
        last = time.monotonic()
        assert run.wait() == 0, run.output
        # 1 to 3 s on a machine of its own; TensorFlow's grace for a thread is 120 s.
        assert time.monotonic() - last < 60
        run.nothing_left()
    found = result(logdir)
    assert found["global_steps"] == 67
    rounds = sum(found["rounds_per_worker"].values())
    assert found["gradients_dropped"] == rounds - 2 * 67 >= 1
    assert found["max_staleness"] == 0
    logs = [path.read_text() for path in logdir.glob("*.log")]
    assert "Traceback" not in "".join([run.output, *logs])
