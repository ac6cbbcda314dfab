"""Dense weights by all-reduce, rows on the ps: against the rule, and as processes."""

from __future__ import annotations

import importlib
import itertools
import threading
import time
import types

import harness
import launch
import numpy as np
import pytest
import rules
from harness import STREAMS, rounds, stats, tf
from launch import copy_of, result, run_sh, saved_step, wait_until
from test_around import script_of

FOLDER = "Hybrid-Embedding"
dynamic, hybrid, ring = (
    importlib.import_module(f"cluster.{name}") for name in ("dynamic", "hybrid", "ring")
)
pytestmark = pytest.mark.timeout(180)  # a deadlock hangs
FLAGS = ["--learning_rate=0.1", "--row_learning_rate=0.1", "--optimizer=sgd"]
FLAGS += ["--start=0", "--admit=1", "--expire=0", "--rank=1", "--batch_size=2"]
FLAGS += ["--capacity=20", "--sweep=1"]
U, V = 7, 9  # ids

# D.1 of the reference: w and rows after each update.
TRACES = {
    "one id, s = 0": (0, (U, U), [0.3, 0.71, 0.797], [{U: 0.6}, {U: 1.42}, {U: 1.594}]),
    "one id, s = 1": (1, (U, U), [0.3, 0.77, 0.933], [{U: 0.6}, {U: 1.54}, {U: 1.866}]),
    "two ids, s = 1": (
        *(1, (U, V), [0.3, 0.77, 0.963]),
        [{U: 0.1, V: 0.5}, {U: 0.37, V: 1.17}, {U: 0.383, V: 1.543}],
    ),
}
_clusters: dict[tuple, tuple] = {}


def cluster(num_ps: int, workers: int) -> tuple:
    """Returns hosts of ps and workers, ClusterSpec, targets; started on first use."""
    if (num_ps, workers) not in _clusters:
        base = launch.free_ports(num_ps + workers)
        hosts = [f"localhost:{base + i}" for i in range(num_ps + workers)]
        ps, others = hosts[:num_ps], hosts[num_ps:]
        spec = tf.train.ClusterSpec({"ps": ps, "worker": others})
        started = []
        tasks = [("ps", k) for k in range(num_ps)]
        tasks += [("worker", k) for k in range(workers)]
        for job, k in tasks:
            args = types.SimpleNamespace(
                job_name=job, task_index=k, ps_hosts=ps, one_client=False
            )
            config = hybrid.config(args)
            config.inter_op_parallelism_threads = 16
            server = tf.train.Server(spec, job_name=job, task_index=k, config=config)
            started.append(server)
        targets = [server.target for server in started[num_ps:]]
        _clusters[num_ps, workers] = ps, others, spec, targets, started
    return _clusters[num_ps, workers][:4]


class Order:
    """Lets all workers look up for a round before anybody pushes, s rounds before.

    And nobody looks up for a round before all pushes have arrived that it should see.
    """

    def __init__(self, workers, updates, staleness):
        self.updates, self.staleness, self.changed = (
            updates,
            staleness,
            threading.Lock(),
        )
        self.looked, self.drawn, self.done = [[0] * workers for _ in range(3)]
        self.arrived = lambda: 0

    @staticmethod
    def wait(test):
        end = time.monotonic() + 20
        while not test():
            assert time.monotonic() < end, "it does not go on"
            time.sleep(0.005)

    def draw(self, k):
        """Worker k wants to look up for its next round."""
        self.drawn[k] += 1
        needed = (self.drawn[k] - 1 - self.staleness) * len(self.looked)
        self.wait(lambda: self.arrived() >= needed)

    def look(self, k):
        """Worker k has looked up."""
        self.looked[k] += 1

    def push(self, k):
        """Worker k wants to compute its gradient, and push it."""
        self.done[k] += 1
        needed = min(self.done[k] + self.staleness, self.updates)
        self.wait(lambda: min(self.looked) >= needed)


class Worker:
    """One worker's graph and session; the loss is ½ (row + w − c)².

    It is the mean of B = 2 of --batch_size, so a row, which is in one of them, has the
    gradient of its own example divided by B; w has that of each.
    """

    def __init__(self, run, k):
        ps, others, spec, targets = cluster(run.num_ps, run.workers)
        task = ["--job_name=worker", f"--task_index={k}", *run.flags]
        task += [f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(others)}"]
        self.args = args = run.module.parse_args(task)
        self.seen, order = [], run.order
        setter = tf.train.replica_device_setter(cluster=spec, worker_device=args.device)
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.container(run.name), tf.device(setter):
            saved = tf.get_variable("center", initializer=tf.zeros([1]))
            self.center = center = hybrid.replica(args, saved)
            self.table = table = dynamic.Table(args, tf.int64)
            self.ring, self.stats = run.module.Ring(args), run.module.Stats(args)
            self.number = run.module.state(args, self.stats)
            usual = table.pull

            def pull(*args, **kwargs):
                pulled, found = usual(*args, **kwargs)

                def looked(rows):
                    if order:
                        order.look(k)
                    return rows

                (same,) = tf.py_func(looked, [pulled], [tf.float32])
                return tf.ensure_shape(same, [None, 1]), found

            table.pull = pull

            def draw():
                if order:
                    order.draw(k)
                i, c = next(run.batches[k])
                return np.array([[i]]), np.float32([c])

            def batch():
                ids, c = tf.py_func(draw, [], [tf.int64, tf.float32])
                return tf.ensure_shape(ids, [1, 1]), tf.ensure_shape(c, [1])

            def loss(weights, batch):
                w, rows = weights

                def compute(w, rows):
                    self.seen.append((float(w[0]), float(rows[0, 0, 0])))
                    if order:
                        order.push(k)

                with tf.control_dependencies([tf.py_func(compute, [w, rows], [])]):
                    e = tf.stop_gradient(rows)
                    e += (rows - e) / args.batch_size
                    return tf.reduce_sum(0.5 * (e[:, 0, 0] + w - batch[1]) ** 2)

            batch = rounds.in_turn(batch)
            halves = hybrid.Halves(args)
            self.calls = hybrid.Calls(
                lambda last: run.module.graph(
                    *(args, center, table, self.stats, self.ring, halves),
                    *(batch, loss, last),
                ),
                self.ring,
                halves,
                sorted({1, run.updates}),
            )
            self.w = center.read_value()
            self.asked = tf.placeholder(tf.int64, [None, 1])
            self.looked = table.lookup(self.asked)
            alike = [center, self.stats.number]
            self.broadcast = self.ring.broadcast(alike, k == 0)
            self.check = ring.ConsistencyCheck(self.ring, alike)
            self.local = tf.local_variables_initializer()
            if k == 0:
                initial, opened = tf.global_variables_initializer(), self.stats.open()
        config = hybrid.config(args)
        config.operation_timeout_in_ms = 30000
        launch.without_optimizer(config)
        self.session = tf.Session(targets[k], graph=self.graph, config=config)
        if k == 0:
            self.session.run(initial)
            self.session.run(opened)
        self.session.run(self.local)

    def call(self, count):
        return self.calls.call(self.session, count)

    def rows(self, *ids):
        return self.session.run(self.looked, {self.asked: np.array(ids)[:, None]})


class Run:
    """Workers of the scheme at one table; `batches[k]` are worker k's (id, c)."""

    def __init__(self, batches, *flags, num_ps=1, updates=3, order=None):
        self.module, self.batches, self.num_ps = script_of(FOLDER), batches, num_ps
        self.workers, self.updates, self.order = len(batches), updates, order
        self.flags = [*FLAGS, *flags]
        number = next(harness._runs)
        self.name = f"hybrid{number}"
        group, ring.GROUP = ring.GROUP, 5000 + number
        try:
            self.all = [Worker(self, k) for k in range(self.workers)]
        finally:
            ring.GROUP = group
        self.chief = self.all[0]
        if order:
            graph = tf.Graph()
            with graph.as_default(), graph.container(self.name):
                with tf.device(self.chief.stats.device):
                    arrived = tf.raw_ops.ReadVariableOp(
                        resource=tf.raw_ops.VarHandleOp(
                            dtype=tf.int64,
                            shape=[],
                            container=self.name,
                            shared_name=self.chief.stats.arrived.op.name,
                        ),
                        dtype=tf.int64,
                    )
            target = cluster(num_ps, self.workers)[3][0]
            config = hybrid.config(self.chief.args)
            looks = tf.Session(target, graph=graph, config=config)
            order.arrived = lambda: looks.run(arrived)

    def at_once(self, work):
        return harness.at_once(self.all, work)


def streams(*ids):
    """Returns the workers' (id, c), over and over."""
    return [
        zip(itertools.repeat(i), itertools.cycle(c), strict=False)
        for i, c in zip(ids, STREAMS, strict=True)
    ]


@pytest.mark.parametrize("num_ps", launch.some([1], [2]))
@pytest.mark.parametrize("which", TRACES)
def test_trace_of_a_hybrid(which, num_ps) -> None:
    s, ids, ws, es = TRACES[which]
    by_rule = list(rules.hybrid(streams(*ids), 3, 0.1, 0.1, s))
    for (w, rows), wanted, wanted_rows in zip(by_rule, ws, es, strict=True):
        assert w == pytest.approx(wanted) and rows == pytest.approx(wanted_rows)
    order = Order(2, 3, s)
    run = Run(streams(*ids), f"--staleness={s}", num_ps=num_ps, order=order)
    made = run.at_once(lambda worker: worker.call(3))
    for k, worker in enumerate(run.all):
        counts = made[k][1]
        assert counts[:, 0].tolist() == [1, 2, 3]
        assert (counts[:, 2] == rounds.APPLIED).all()
        # What each saw: w of the update before, rows of s updates before that.
        seen_w, seen_e = zip(*worker.seen, strict=True)
        np.testing.assert_allclose(seen_w, [0, *ws[:2]], atol=1e-6)
        rows = [{}, *es][: 3 - s]
        rows = [{}] * s + rows
        np.testing.assert_allclose(
            seen_e, [e.get(ids[k], 0.0) for e in rows], atol=1e-6
        )
        np.testing.assert_allclose(worker.session.run(worker.w), ws[2:], atol=1e-6)
    found = run.chief.rows(U, V)[:, 0, 0]
    np.testing.assert_allclose(found, [es[2].get(i, 0) for i in (U, V)], atol=1e-6)
    # Each push counts: 20 bytes of a row up, 4 down, and the ring's 4 each way.
    table = run.chief.session.run(run.chief.stats.counters)[:2]
    have = dict(zip(stats.COUNTERS, table.T.tolist(), strict=True))
    assert have["updates"] == [3, 0]
    assert (have["rounds"], have["examples"]) == ([3, 3], [6, 6])
    assert have["pushed"] == [(8 + 4 + 4 + 4) * 3] * 2
    assert have["pulled"] == [(4 + 4) * 3] * 2
    run.at_once(lambda worker: worker.check.make(worker.session))


def test_one_worker_is_sgd() -> None:
    """s = 0: each lookup sees the push before, also across calls."""
    run = Run(
        [zip(itertools.cycle([U, V, U]), itertools.cycle([1.0, 5.0, -2.0, 4.0]))],
        "--staleness=0",
    )
    w, e = 0.0, {U: 0.0, V: 0.0}
    for i, c in zip([U, V, U] * 3, [1.0, 5.0, -2.0, 4.0] * 3, strict=False):
        g = e[i] + w - c
        w, e[i] = w - 0.1 * g, e[i] - 0.1 * g
    for count in (3, 1, 1, 1, 3):
        run.chief.call(count)
    np.testing.assert_allclose(run.chief.session.run(run.chief.w), [w], atol=1e-5)
    np.testing.assert_allclose(run.chief.rows(U, V)[:, 0, 0], [e[U], e[V]], atol=1e-5)
    assert run.chief.stats.summary(run.chief.session)["max_staleness"] == 0


def test_with_a_rate_of_nothing_it_is_partitioned_embedding() -> None:
    run = Run(
        [zip(itertools.cycle([U, V]), itertools.cycle([1.0, 5.0, -2.0]))],
        "--learning_rate=1e-30",
        "--staleness=0",
    )
    e = {U: 0.0, V: 0.0}
    for i, c in zip([U, V] * 2, [1.0, 5.0, -2.0, 1.0], strict=False):
        e[i] -= 0.1 * (e[i] - c)
    for count in (3, 1):
        run.chief.call(count)
    np.testing.assert_allclose(run.chief.rows(U, V)[:, 0, 0], [e[U], e[V]], atol=1e-6)


@pytest.mark.parametrize("s", [0, 1, 2])
def test_who_waits_for_whom(s) -> None:
    """No update of w waits for a push; a lookup waits for the push s + 1 before it."""
    run = Run(streams(U, V), f"--staleness={s}", updates=4)
    graph = run.chief.graph

    def of(n, part, kind):
        """Returns the operations of this kind in a part of round n."""
        scope = f"round_{n}/{part}"
        return [
            op
            for op in graph.get_operations()
            if op.name.startswith(scope) and op.type == kind
        ]

    pushes = [of(m, "push", "ResourceScatterSub")[0] for m in range(4)]
    for n in range(4):
        (moved,) = of(n, "update", "AssignSubVariableOp")
        dense = ring.behind([moved], waits=True)
        assert not any("/job:ps" in op.device for op in dense)
        assert sum(op.type == "CollectiveReduce" for op in dense) == n + 1
        looked = ring.behind(of(n, "pull", "ResourceGather"), waits=True)
        assert not any(op.type == "CollectiveReduce" for op in looked)
        waits = [m for m in range(4) if pushes[m] in looked]
        assert max(waits, default=-1) == max(n - 1 - s, -1)


def test_the_log_is_dealt_to_the_workers() -> None:
    run = Run(streams(U, V))
    numbers = []
    for worker in run.all:
        with worker.graph.as_default():
            number = worker.number()
        numbers.append([int(worker.session.run(number)) for _ in range(3)])
    assert numbers == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    ("now", "reasons"),
    [
        ("b of a", []),
        ("b", []),  # its heartbeat of before it knew the chief came last
        ("c of a", ["worker 1 at h:2 was started again"]),
    ],
)
def test_who_is_another_process(now, reasons, monkeypatch) -> None:
    monkeypatch.setattr(hybrid.addresses, "silence", lambda host: "")
    args, found = types.SimpleNamespace(worker_hosts=["h:1", "h:2"], patience=9), []
    group = types.SimpleNamespace(args=args, members={"0": "a", "1": "b of a"})
    group.again = found.append
    names = zip("01", ("a", now), strict=True)
    board = {k: {"process": name, "left": False, "silent": 0} for k, name in names}
    assert hybrid.Group._look(group, {"workers": board}) is None
    assert found == reasons


# --- As processes ------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_of_which_a_worker_a_ps_and_the_chief_die(tmp_path) -> None:
    """All updates are made, w is the same on all, and each push is counted."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "a logdir"
    before, steps = launch.tree(copy), 400
    command = ["--steps", str(steps), "--save_seconds", "0.5", "--slow_workers", "0.02"]
    with run_sh(copy, *command, MAX_RESTARTS="1", LOGDIR=str(logdir)) as run:
        for job, index, least in (("worker", 1, 30), ("ps", 1, 90), ("worker", 0, 150)):
            wait_until(lambda least=least: saved_step(logdir) > least, 120, run)
            run.task(job, index).kill()
            run.wait_for(f"{job} {index} ended with status 137; restart 1 of 1")
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert not launch.strange(run.lines), run.output
    done = result(logdir)
    assert (done["scheme"], done["global_steps"]) == (FOLDER, steps)
    made = done["rounds_per_worker"]
    assert done["examples"] == done["flags"]["batch_size"] * sum(made.values())
    # Pushes of a call that was lost had no update of w, or the other way round.
    assert all(abs(n - steps) <= 30 for n in made.values()), made
    assert done["rows"] == done["rows_admitted"] - done["rows_expired"]
    assert done["rows_expired"] > 100, done
    assert done["test_AUC"] > 0.55, done
    assert launch.tree(copy) == before
