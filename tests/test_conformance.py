"""Every asynchronous scheme against its paper's rule, push by push.

Through the scripts' own graph functions, on servers in this process (`harness`). The
traces are numbers; the property tests compare with the rules written again (`rules`).
"""

from __future__ import annotations

import itertools
import threading
import time
import types

import harness
import launch
import numpy as np
import pytest
import rules
from harness import STREAMS, Run, schedule_s
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

ASYNCHRONOUS = {
    "HogWild": ["--learning_rate=0.1"],
    "Dynamic-SGD": ["--learning_rate=0.1"],
    "DOWNPOUR-Easy": ["--learning_rate=0.1", "--window=2", "--server_learning_rate=1"],
    "DOWNPOUR": ["--learning_rate=0.1", "--window=2", "--server_learning_rate=1"],
    "AGN": ["--learning_rate=0.1", "--window=2"],
    "AEASGD": ["--learning_rate=0.1", "--window=2", "--beta=0.5"],
    "AEAMSGD": ["--learning_rate=0.1", "--window=2", "--beta=0.5", "--momentum=0.9"],
}
WINDOWED = [f for f, flags in ASYNCHRONOUS.items() if "--window=2" in flags]
ELASTIC = ["AEASGD", "AEAMSGD"]
NUM_PS = pytest.mark.parametrize("num_ps", [1, 2])
IN_TURN = [0, 0, 1, 1]  # A pulls and pushes, B pulls and pushes


def streams(*of: object) -> list:
    """Returns endless mini-batches, one iterator per worker, for a rule."""
    return [itertools.cycle(np.asarray(s, float)) for s in of]


def same(played: list, expected: list, tolerance: float = 1e-6) -> None:
    """Asserts that staleness and center agree after every push."""
    assert len(played) == len(expected)
    for (staleness, center), (rule_staleness, w) in zip(played, expected, strict=True):
        assert staleness == rule_staleness
        np.testing.assert_allclose(
            center, np.broadcast_to(w, center.shape), rtol=tolerance, atol=tolerance
        )


# --- Traces: two workers, by hand ---------------------------------------------

TRACES = {
    "HogWild": [0.1, 0.6, 0.89, 1.53, 1.541, 1.888],
    "Dynamic-SGD": [0.1, 0.35, 0.495, 0.8275, 0.85275, 1.061375],
    "DOWNPOUR-Easy": [1.0, 1.9470234337, 2.1095337814, 2.6448934384],
    "AGN": [0.195, 0.77, 0.946475, 1.448325],
}


@NUM_PS
@pytest.mark.parametrize("folder", TRACES)
def test_trace_on_schedule_s(folder: str, num_ps: int) -> None:
    """A is fresh at first; then every push meets one other: staleness 0, 1, 1, .."""
    trace = TRACES[folder]
    with Run(folder, *ASYNCHRONOUS[folder], start=[0.0] * 3, num_ps=num_ps) as run:
        played = run.play(schedule_s(len(trace)))
    same(played, list(zip([0] + [1] * len(trace), trace, strict=False)))


@NUM_PS
def test_trace_of_downpour(num_ps: int) -> None:
    """Both Adagrads: the rule's numbers, whose server part the trace above fixes."""
    flags = ASYNCHRONOUS["DOWNPOUR"]
    expected = rules.downpour(schedule_s(6), streams(*STREAMS), 0.0, 2, 0.1, 1.0)
    with Run("DOWNPOUR", *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        same(run.play(schedule_s(6)), expected)


@NUM_PS
@pytest.mark.parametrize(
    ("folder", "x_a", "x_b", "center"),
    [
        (
            "AEASGD",
            [0.39, 0.61815],
            [1.15, 1.8446875],
            [0, 0, 0.0975, 0.360625, 0.42500625, 0.7799265625],
        ),
        (
            "AEAMSGD",
            [0.471, 1.2222561],
            [1.555, 3.82649425],
            [0, 0, 0.11775, 0.4770625, 0.6633608875, 1.4541442375],
        ),
    ],
)
def test_trace_of_elastic_averaging(folder, x_a, x_b, center, num_ps) -> None:
    """Algorithms 1 and 2 to the letter: the gradient is taken before the exchange."""
    flags = ASYNCHRONOUS[folder]
    played = []
    with Run(folder, *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        for a, b in zip(x_a, x_b, strict=True):
            played += run.play(IN_TURN)
            np.testing.assert_allclose(run.workers[0].own("x"), [a] * 3, rtol=1e-6)
            np.testing.assert_allclose(run.workers[1].own("x"), [b] * 3, rtol=1e-6)
        played += run.play(IN_TURN)
    same(played, [(0, w) for w in center])


def test_the_literal_client_of_downpour_differs_from_the_window() -> None:
    """Its first push holds one gradient; with n_push = n_fetch = 1 the two agree."""
    out = rules.dean_client(streams(*STREAMS), 0.0, 2, 2, 0.1, 4)
    np.testing.assert_allclose([g for g, _ in out], [-1, -4.9, -3.31, -10.489])
    np.testing.assert_allclose([w for _, w in out], [0.1, 0.59, 0.921, 1.9699])
    literal = rules.dean_client(streams(*STREAMS), 0.0, 1, 1, 0.1, 4)
    window = rules.downpour_sum(IN_TURN * 4, streams(*STREAMS), 0.0, 1, 0.1)
    np.testing.assert_allclose([w for _, w in literal], [w for _, w in window])


# --- A window is a window -----------------------------------------------------


def assert_window(run: Run) -> None:
    """Asserts T forward passes on T batches with T gradients in one round."""
    run.workers[0].round()
    passes = run.workers[0].passes
    batches = [float(c[0]) for _, c in passes]
    gradients = [float((w - c)[0]) for w, c in passes]
    assert batches == [1.0, 3.0, 8.0, 2.0]
    assert len(set(gradients)) == 4


WINDOW = dict(streams=[[1.0, 3.0, 8.0, 2.0]], watch=True)


@pytest.mark.parametrize("folder", WINDOWED)
def test_a_window_has_its_own_batches_and_forward_passes(folder: str) -> None:
    with Run(folder, *ASYNCHRONOUS[folder], "--window=4", **WINDOW) as run:
        assert_window(run)


@pytest.mark.parametrize("folder", WINDOWED)
def test_a_shared_forward_pass_fails_that_check(folder: str) -> None:
    """The loop with batch and loss built once: T times the gradient at the pull."""
    module = launch.load(folder)

    def frozen(args, center, global_step, batch, loss):
        c = batch()
        value = loss(center.as_tensor(), c)

        def once(w, _):
            return value + 0.0 * module.tf.reduce_sum(w)

        return module.graph(args, center, global_step, lambda: c, once)

    flags = [*ASYNCHRONOUS[folder], "--window=4"]
    with Run(module, *flags, graph=frozen, **WINDOW) as run:
        with pytest.raises(AssertionError):
            assert_window(run)


def test_the_pushed_sum_is_not_window_times_one_gradient() -> None:
    """AGN's first push of worker A is −1.95; a frozen window would push −1."""
    with Run("AGN", *ASYNCHRONOUS["AGN"]) as run:
        ((_, center),) = run.play([0, 0])
    assert center[0] == pytest.approx(0.195)
    assert center[0] != pytest.approx(0.1)


# --- Identities ---------------------------------------------------------------


def center_after(folder: str, *flags: str, schedule: list, **options: object) -> list:
    """Returns the center after every push."""
    with Run(folder, *flags, **options) as run:
        return [center for _, center in run.play(schedule)]


@pytest.mark.parametrize("folder", ["HogWild", "Dynamic-SGD", "AGN"])
def test_one_worker_is_plain_sgd(folder: str) -> None:
    flags = [f for f in ASYNCHRONOUS[folder] if "window" not in f]
    flags += ["--window=1"] if folder in WINDOWED else []
    played = center_after(folder, *flags, schedule=[0] * 8, streams=STREAMS[:1])
    np.testing.assert_allclose(np.ravel(played), [0.1, 0.39, 0.451, 0.7059], atol=1e-6)


def test_a_window_of_one_is_the_parent() -> None:
    """AGN is HogWild; DOWNPOUR-Easy is HogWild with Adagrad on the ps."""
    rate = "--learning_rate=0.1"
    flags = [rate, "--window=1"]
    agn = center_after("AGN", *flags, schedule=schedule_s(8))
    np.testing.assert_array_equal(
        agn, center_after("HogWild", rate, schedule=schedule_s(8))
    )
    easy = center_after(
        "DOWNPOUR-Easy", *flags, "--server_learning_rate=1", schedule=schedule_s(4)
    )
    trace = [1.0, 1.9805806757, 2.3457290474, 3.0213534072]
    np.testing.assert_allclose(np.ravel(easy), trace, rtol=1e-6)
    literal = [*flags, "--server_learning_rate=1"]
    downpour = center_after("DOWNPOUR", *literal, schedule=schedule_s(4))
    np.testing.assert_allclose(np.ravel(downpour), trace, rtol=1e-6)


def test_agn_is_the_windowed_sum_at_rate_eta_over_window() -> None:
    schedule = schedule_s(8)
    expected = rules.windowed(
        schedule,
        streams(*STREAMS),
        0.0,
        4,
        lambda k, g: 0.1 * g,
        lambda total, tau: 0.1 / 4 * total,
    )
    with Run("AGN", "--learning_rate=0.1", "--window=4") as run:
        same(run.play(schedule), expected)


def test_adagrad_on_the_ps_cannot_tell_sum_from_mean() -> None:
    """Why AGN has plain SGD there: DOWNPOUR-Easy pushing the mean moves w the same."""
    flags = ASYNCHRONOUS["DOWNPOUR-Easy"]
    module = launch.load("DOWNPOUR-Easy")
    send = module.cluster.send
    changed = {"send": lambda total, center: send(total / 2, center)}
    module.cluster = types.SimpleNamespace(**{**vars(module.cluster), **changed})
    mean = center_after(module, *flags, schedule=schedule_s(8))
    whole = center_after("DOWNPOUR-Easy", *flags, schedule=schedule_s(8))
    np.testing.assert_allclose(mean, whole, rtol=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
def test_dynamic_sgd_in_steady_state_is_hogwild_at_eta_over_n(workers: int) -> None:
    """Workers in turn: staleness N − 1, and the rate η / N.

    The first pushes, not yet so stale, are of gradients that are zero.
    """
    options = dict(streams=[[0.0, 1.0 + k, 3.0 + k] for k in range(workers)])
    everyone = range(workers)
    schedule = [*everyone, *[k for k in everyone for _ in "ab"] * 4]
    slow = center_after(
        "Dynamic-SGD", "--learning_rate=0.4", schedule=schedule, **options
    )
    rate = f"--learning_rate={0.4 / workers}"
    expected = center_after("HogWild", rate, schedule=schedule, **options)
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(slow, expected, rtol=1e-6)


@pytest.mark.parametrize("folder", ELASTIC)
def test_the_elastic_exchange_conserves_x_plus_center(folder: str) -> None:
    """With gradients of zero: what the center gains the worker loses."""
    flags = [*ASYNCHRONOUS[folder], "--window=3"]

    class Still(Run):
        def quadratic(self, worker, index):
            start, batch, _, *rest = super().quadratic(worker, index)
            tf = self.tf
            return start, batch, lambda w, c: 0.0 * tf.reduce_sum(w * c), *rest

    with Still(folder, *flags, start=[1.0, 2.0]) as run:
        for k, worker in enumerate(run.workers):
            worker.session.run(
                worker.variables["x"].initializer,
                {worker.pulled: [5.0 + k, -3.0 * k]},
            )
        total = sum(w.own("x") for w in run.workers) + run.workers[0].now()
        for k in (0, 1, 1, 0, 1):
            before = run.workers[0].now()
            run.play([k, k])
            assert np.abs(run.workers[0].now() - before).max() > 0.01
            now = sum(w.own("x") for w in run.workers) + run.workers[0].now()
            np.testing.assert_allclose(now, total, rtol=1e-6)


def test_aeamsgd_without_momentum_is_aeasgd() -> None:
    plain = center_after("AEASGD", *ASYNCHRONOUS["AEASGD"], schedule=IN_TURN * 4)
    flags = [*ASYNCHRONOUS["AEAMSGD"], "--momentum=0"]
    np.testing.assert_array_equal(
        plain, center_after("AEAMSGD", *flags, schedule=IN_TURN * 4)
    )


def test_no_spring_is_independent_sgd() -> None:
    """α = 0: the center never moves, each worker is plain SGD on its own stream."""
    with Run("AEASGD", "--learning_rate=0.1", "--window=2", "--beta=0") as run:
        assert all(center == [0] for _, center in run.play(IN_TURN * 2))
        for worker, stream in zip(run.workers, STREAMS, strict=True):
            x = 0.0
            for c in stream * 2:
                x -= 0.1 * (x - c)
            assert worker.own("x")[0] == pytest.approx(x, rel=1e-6)


# --- Any rates, windows, workers and schedules --------------------------------


@st.composite
def cases(draw: st.DrawFn) -> types.SimpleNamespace:
    """Draws a run: 1 to 4 workers, vectors of 2, a schedule of pulls and rounds."""
    workers = draw(st.integers(1, harness.WORKERS))
    value = st.integers(-8, 8).map(float)
    batch = st.lists(value, min_size=2, max_size=2)
    stream = st.lists(batch, min_size=1, max_size=5)
    return types.SimpleNamespace(
        streams=draw(st.lists(stream, min_size=workers, max_size=workers)),
        schedule=draw(
            st.lists(st.integers(0, workers - 1), min_size=6, max_size=30),
        ),
        start=draw(batch),
        eta=draw(st.sampled_from([0.01, 0.05, 0.1, 0.3])),
        gamma=draw(st.sampled_from([0.05, 0.3, 1.0])),
        beta=draw(st.sampled_from([0.0, 0.3, 0.9])),
        delta=draw(st.sampled_from([0.0, 0.5, 0.9])),
        window=draw(st.integers(1, 4)),
        num_ps=draw(st.integers(1, 2)),
    )


RULES = {
    "HogWild": ([], rules.hogwild, ["eta"]),
    "Dynamic-SGD": ([], rules.dynamic_sgd, ["eta"]),
    "DOWNPOUR-Easy": (
        ["window", "server_learning_rate"],
        rules.downpour_easy,
        ["window", "eta", "gamma"],
    ),
    "DOWNPOUR": (
        ["window", "server_learning_rate"],
        rules.downpour,
        ["window", "eta", "gamma"],
    ),
    "AGN": (["window"], rules.agn, ["window", "eta"]),
    "AEASGD": (["window", "beta"], rules.elastic, ["window", "eta", "alpha"]),
    "AEAMSGD": (
        ["window", "beta", "momentum"],
        rules.elastic,
        ["window", "eta", "alpha", "delta"],
    ),
}


@pytest.mark.parametrize("folder", RULES)
@given(case=cases())
@settings(
    max_examples=9,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_any_run_is_the_papers_rule(folder: str, case: types.SimpleNamespace) -> None:
    flags, rule, parameters = RULES[folder]
    case.alpha = case.beta / len(case.streams)
    case.server_learning_rate, case.momentum = case.gamma, case.delta
    arguments = [getattr(case, name) for name in parameters]
    start = np.array(case.start)

    def by_rule(w):
        return rule(case.schedule, streams(*case.streams), w, *arguments)

    expected, nearby = by_rule(start), by_rule(start + 1e-6)
    if folder in ELASTIC:
        (expected, x), (nearby, _) = expected, nearby
    # Adagrad's first step is as large for a rounding error as for a gradient.
    for (_, w), (_, near) in zip(expected, nearby, strict=True):
        assume(np.abs(w - near).max() < 1e-4)
    options = dict(start=case.start, streams=case.streams, num_ps=case.num_ps)
    given_flags = [f"--{name}={getattr(case, name)}" for name in flags]
    with Run(folder, f"--learning_rate={case.eta}", *given_flags, **options) as run:
        played = run.play(case.schedule)
        scale = max([10.0, *(float(np.abs(w).max()) for _, w in expected)])
        same(
            [(s, w / scale) for s, w in played],
            [(s, w / scale) for s, w in expected],
            2e-5,
        )
        if folder in ELASTIC:
            for worker, own in zip(run.workers, x, strict=True):
                np.testing.assert_allclose(
                    worker.own("x") / scale, own / scale, atol=2e-5
                )


# --- Staleness, while it happens ----------------------------------------------


@NUM_PS
@pytest.mark.parametrize("folder", [f for f in ASYNCHRONOUS if f not in ELASTIC])
def test_staleness_is_counted_when_the_gradient_arrives(folder, num_ps) -> None:
    """B computes while A pushes three times: 3, though B's round began before them."""
    computes, go_on = threading.Event(), threading.Event()

    def wait(w):
        computes.set()
        assert go_on.wait(60)
        return w

    class Slow(Run):
        def quadratic(self, worker, index):
            start, batch, loss, *rest = super().quadratic(worker, index)
            tf = self.tf

            def slow_loss(w, c):
                with tf.control_dependencies([tf.py_func(wait, [w], tf.float32)]):
                    return loss(tf.identity(w), c)

            return start, batch, slow_loss if index else loss, *rest

    with Slow(folder, *ASYNCHRONOUS[folder], num_ps=num_ps, start=[0.0] * 2) as run:
        a, b = run.workers
        staleness = []
        thread = threading.Thread(target=lambda: staleness.append(b.round()))
        thread.start()
        assert computes.wait(60)
        time.sleep(0.2)  # until the ps has also answered what it has counted
        assert [a.round() for _ in range(3)] == [0, 0, 0]
        go_on.set()
        thread.join()
    assert staleness == [3]


# --- Locks, one process, placement --------------------------------------------


@NUM_PS
def test_no_update_is_lost_between_two_workers(num_ps: int) -> None:
    """Ones from both at once: the center is exactly −η K N, whoever came first."""
    rounds, elements, eta = 300, 4810, 2.0**-10

    class Ones(Run):
        def quadratic(self, worker, index):
            start, batch, _, *rest = super().quadratic(worker, index)
            return start, batch, lambda w, c: self.tf.reduce_sum(w + 0 * c), *rest

    start = np.zeros(elements)
    with Ones("HogWild", f"--learning_rate={eta}", start=start, num_ps=num_ps) as run:
        run.at_once(rounds)
        center = run.workers[0].now()
        step = run.workers[0].session.run(run.workers[0].seen)
    assert step == 2 * rounds
    np.testing.assert_array_equal(center, np.full(elements, -eta * rounds * 2))


def digits(seed: int) -> object:
    """Returns a problem function for `Run`: the guide's own, on its digits."""

    def problem_of(worker: harness.Worker, index: int) -> tuple:
        problem = worker.run.module.problem
        data = problem.load("digits")
        shapes = problem.shapes(data)
        workers = worker.run.num_workers
        batches, feed = problem.batches(data, 32, seed, index, workers)
        start = problem.initial(shapes, seed)

        def loss(w, batch):
            return problem.loss(w, batch, shapes)

        return start, batches.get_next, loss, batches.initializer, feed

    return problem_of


def test_one_hogwild_worker_goes_the_way_of_one_process() -> None:
    """200 steps on the digits, same seed: the same weights to 1e-5."""
    alone = launch.load("Non-Distributed-Setup")
    tf, problem = alone.tf, alone.problem
    data = problem.load("digits")
    shapes = problem.shapes(data)
    with tf.Graph().as_default(), tf.Session() as session:
        center = tf.get_variable("center", initializer=problem.initial(shapes, 0))
        step = tf.train.get_or_create_global_step()
        batches, feed = problem.batches(data, 32, 0)
        args = types.SimpleNamespace(learning_rate=0.1, steps=4000)

        def loss(w, batch):
            return problem.loss(w, batch, shapes)

        train = alone.graph(args, center, step, batches.get_next, loss)
        session.run([tf.global_variables_initializer(), batches.initializer], feed)
        for _ in range(200):
            session.run(train)
        expected = session.run(center)
    options = dict(streams=[[0.0]], problem=digits(0))
    with Run("HogWild", "--learning_rate=0.1", **options) as run:
        for _ in range(200):
            run.workers[0].round()
        np.testing.assert_allclose(run.workers[0].now(), expected, atol=1e-5)


@NUM_PS
@pytest.mark.parametrize("folder", ASYNCHRONOUS)
def test_placement(folder: str, num_ps: int) -> None:
    """Shared state on the ps, the rest on its worker, in the graph as it runs."""
    options = dict(streams=[[0.0], [0.0]], problem=digits(0), num_ps=num_ps)
    with Run(folder, *ASYNCHRONOUS[folder], **options) as run:
        worker = run.workers[1]
        partitions = worker.partitions()
        with worker.graph.as_default():
            trainable = {v.op.name for v in run.tf.trainable_variables()}
            shared = {v.op.name for v in run.tf.global_variables()}
            own = {v.op.name for v in run.tf.local_variables()}
    pieces = {f"center/part_{i}" for i in range(num_ps)}
    assert trainable == pieces
    assert pieces < shared and "global_step" in shared
    if "DOWNPOUR" in folder:
        assert {f"{piece}/Adagrad" for piece in pieces} < shared
    expected = {
        "DOWNPOUR": {"local", "local/Adagrad"},
        "AEASGD": {"x"},
        "AEAMSGD": {"x", "v"},
    }
    assert own == expected.get(folder, set())
    placed = {}
    for node in itertools.chain(*partitions):
        where = node.device.split("/device")[0]
        if node.op == "VarHandleOp":
            placed[node.name] = where
        if node.op in ("MatMul", "IteratorGetNext"):
            assert where.endswith("/job:worker/replica:0/task:1"), node.name
    for name, where in placed.items():
        if name in own:
            assert where.endswith("/job:worker/replica:0/task:1"), name
        else:
            number = int(name.split("part_")[1][0]) if "part_" in name else 0
            assert where.endswith(f"/job:ps/replica:0/task:{number}"), name
    assert pieces | {"global_step"} | own <= set(placed)


@pytest.mark.parametrize(
    "optimizer",
    ["AdamOptimizer(0.01)", "MomentumOptimizer(0.1, 0.9)", "RMSPropOptimizer(0.01)"],
)
def test_any_optimizer_with_four_workers(optimizer: str) -> None:
    """The one line of DOWNPOUR replaced: its slots are each worker's own."""
    module = launch.load("DOWNPOUR")
    path = launch.REPO / "DOWNPOUR" / "downpour.py"
    line = "optimizer = tf.train.AdagradOptimizer(args.learning_rate)"
    source = path.read_text()
    assert source.count(line) == 1
    source = source.replace(line, f"optimizer = tf.train.{optimizer}")
    exec(compile(source, str(path), "exec"), module.__dict__)
    flags = ["--window=3", "--server_learning_rate=0.3"]
    four = [[1.0, 3.0], [5.0, 7.0], [2.0], [6.0]]
    with Run(module, *flags, streams=four, start=[0.0, 0.0]) as run:
        run.at_once(20)
        assert np.abs(run.workers[0].now() - 4).max() < 2.5
        for worker in run.workers:
            assert len(worker.local) > 1
            slots = [name for name in worker.local if name != "local"]
            assert all(worker.variables[name].device == worker.device for name in slots)
