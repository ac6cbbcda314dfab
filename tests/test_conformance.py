"""Every asynchronous scheme against its paper's rule, push by push.

Through the scripts' own functions, on servers in this process (`harness`). The traces
are numbers; the property tests compare with the rules written again (`rules`).
"""

from __future__ import annotations

import itertools
import re
import threading
import time
import types

import harness
import launch
import numpy as np
import pytest
import rules
from harness import (
    ASYNCHRONOUS,
    SCHEMES,
    STREAMS,
    Run,
    checkpoint,
    in_turn,
    rounds,
    schedule_s,
    stats,
    tf,
)
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from rules import streams

WINDOWED = [f for f, flags in ASYNCHRONOUS.items() if "--window=2" in flags]
ELASTIC = ["AEASGD", "AEAMSGD"]
UNCOUNTED = ["Distributed-Setup"]  # its one worker is never stale
PLAIN = [
    "Distributed-Setup",
    "HogWild",
    "Stale-Synchronous-Parallel",
    "Gradient-Compression",
    "Multiple-GPUs-Single-Machine",
]
# What is right with the pieces of two is with one; each scheme runs with one.
NUM_PS = pytest.mark.parametrize("num_ps", launch.some([2], [1]))


def same(played: list, expected: list, tolerance: float = 1e-6, scale: float = 1):
    """Asserts that every push was applied, and its number, staleness and center."""
    assert len(played) == len(expected)
    for number, (push, (staleness, w)) in enumerate(zip(played, expected, strict=True)):
        assert push[:3] == (number + 1, staleness, rounds.APPLIED)
        w = np.broadcast_to(w, push.center.shape) / scale
        near = np.allclose(push.center / scale, w, tolerance, tolerance)
        wrong = f"w is {push.center / scale}, and {w} by the paper's rule"
        assert near, f"after update {number + 1} {wrong}"


# --- Traces: two workers, by hand ---------------------------------------------

TRACES = {
    **dict.fromkeys(PLAIN, [0.1, 0.6, 0.89, 1.53, 1.541, 1.888]),
    "Dynamic-SGD": [0.1, 0.35, 0.495, 0.8275, 0.85275, 1.061375],
    # B's first, at λ g² = 0.04 · 25 = 1, is what a fresh gradient would be: −4.9.
    "DC-ASGD": [0.1, 0.59, 0.8635164, 1.4595633232],
    "DOWNPOUR-Easy": [1.0, 1.9470234337, 2.1095337814, 2.6448934384],
    "AGN": [0.195, 0.77, 0.946475, 1.448325],
}


@NUM_PS
@pytest.mark.parametrize("folder", TRACES)
def test_trace_on_schedule_s(folder: str, num_ps: int) -> None:
    """A is fresh at first; then every push meets one other: staleness 0, 1, 1, .."""
    trace = TRACES[folder]
    stale = [0] + [folder not in UNCOUNTED] * (len(trace) - 1)
    with Run(folder, start=[0.0] * 3, num_ps=num_ps) as run:
        played = run.play(schedule_s(len(trace)))
    same(played, list(zip(stale, trace, strict=True)))


@NUM_PS
def test_trace_of_dc_asgd_with_adaptive_variance(num_ps: int) -> None:
    """λ₀ = 2, m = 0.95, a mean square for each worker; the last term turns the sign."""
    flags = ["--variance=adaptive", "--strength=2", "--decay=0.95"]
    with Run("DC-ASGD", *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        played = run.play(schedule_s(4))
    trace = [0.1, 0.1527864, 0.3130012, 0.1983166]
    same(played, list(zip([0, 1, 1, 1], trace, strict=True)))


@pytest.mark.parametrize("folder", PLAIN)
def test_trace_in_turn(folder: str) -> None:
    with Run(folder) as run:
        played = run.play(in_turn(4))
    same(played, [(0, w) for w in (0.1, 0.59, 0.831, 1.4479)])
    first = [0.5 * (0 - 1) ** 2, 0.5 * (0.1 - 5) ** 2]
    assert [push.loss for push in played[:2]] == pytest.approx(first)


@pytest.mark.parametrize("folder", sorted(SCHEMES.keys() - {*WINDOWED, "SAGN"}))
def test_the_loss_is_that_of_the_mini_batch_at_the_pull(folder: str) -> None:
    """Those with a window have a check of their own, see `assert_window`."""
    with Run(folder, streams=[[3.0], [5.0]]) as run:
        a, b, again = run.play("push A, push B, push A")
    assert a.loss == pytest.approx(0.5 * (0 - 3) ** 2)
    assert again.loss == pytest.approx(0.5 * (b.center[0] - 3) ** 2)


@NUM_PS
def test_trace_of_downpour(num_ps: int) -> None:
    """Both Adagrads: the rule's numbers, whose server part the trace above fixes."""
    schedule = harness.parse(schedule_s(6))
    expected = rules.downpour(schedule, streams(*STREAMS), 0.0, 2, 0.1, 1.0)
    with Run("DOWNPOUR", start=[0.0] * 3, num_ps=num_ps) as run:
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
    played = []
    with Run(folder, start=[0.0] * 3, num_ps=num_ps) as run:
        for a, b in zip(x_a, x_b, strict=True):
            played += run.play(in_turn(2))
            np.testing.assert_allclose(run.workers[0].own("x"), [a] * 3, rtol=1e-6)
            np.testing.assert_allclose(run.workers[1].own("x"), [b] * 3, rtol=1e-6)
        played += run.play(in_turn(2))
    same(played, [(0, w) for w in center])


# --- A window is a window -----------------------------------------------------


def assert_window(run: Run) -> None:
    """Asserts T forward passes on T batches with T gradients in one round."""
    push = run.workers[0].push()
    passes = run.workers[0].passes
    batches = [float(c[0]) for _, c in passes]
    gradients = [float((w - c)[0]) for w, c in passes]
    assert batches == [1.0, 3.0, 8.0, 2.0]
    assert len(set(gradients)) == 4
    assert push.loss == pytest.approx(0.5 * gradients[-1] ** 2)


WINDOW = dict(streams=[[1.0, 3.0, 8.0, 2.0]], watch=True)


@pytest.mark.quick
@pytest.mark.parametrize("folder", [*WINDOWED, "SAGN"])
def test_a_window_has_its_own_batches_and_forward_passes(folder: str) -> None:
    with Run(folder, "--window=4", **WINDOW) as run:
        assert_window(run)


# --- Identities ---------------------------------------------------------------


def center_after(folder: str, *flags: str, schedule: str, **options: object) -> list:
    """Returns the center after every push."""
    with Run(folder, *flags, **options) as run:
        return [push.center for push in run.play(schedule)]


@pytest.mark.parametrize("folder", [*PLAIN, "Dynamic-SGD", "DC-ASGD", "AGN"])
def test_one_worker_is_plain_sgd(folder: str) -> None:
    flags = ["--window=1"] if folder in WINDOWED else []
    played = center_after(folder, *flags, schedule=in_turn(4, "A"), streams=STREAMS[:1])
    np.testing.assert_allclose(np.ravel(played), [0.1, 0.39, 0.451, 0.7059], atol=1e-6)


def test_a_window_of_one_is_the_parent() -> None:
    """AGN is HogWild; DOWNPOUR-Easy is HogWild with Adagrad on the ps."""
    agn = center_after("AGN", "--window=1", schedule=schedule_s(8))
    np.testing.assert_array_equal(agn, center_after("HogWild", schedule=schedule_s(8)))
    trace = [1.0, 1.9805806757, 2.3457290474, 3.0213534072]
    for folder in ("DOWNPOUR-Easy", "DOWNPOUR"):
        found = center_after(folder, "--window=1", schedule=schedule_s(4))
        np.testing.assert_allclose(np.ravel(found), trace, rtol=1e-6)


def test_agn_is_the_windowed_sum_at_rate_eta_over_window() -> None:
    schedule = schedule_s(8)
    expected = rules.windowed(
        harness.parse(schedule),
        streams(*STREAMS),
        0.0,
        4,
        lambda k, g: 0.1 * g,
        lambda total, tau: 0.1 / 4 * total,
    )
    with Run("AGN", "--window=4") as run:
        same(run.play(schedule), expected)


@pytest.mark.parametrize("workers", [2, 4])
def test_dynamic_sgd_in_steady_state_is_hogwild_at_eta_over_n(workers: int) -> None:
    """Workers in turn: staleness N − 1, and the rate η / N.

    The first pushes, not yet so stale, are of gradients that are zero.
    """
    options = dict(streams=[[0.0, 1.0 + k, 3.0 + k] for k in range(workers)])
    everyone = "ABCD"[:workers]
    pulls = [f"pull {k}" for k in everyone]
    turns = [f"push {k}, pull {k}" for k in everyone * 4]
    options["schedule"] = ", ".join(pulls + turns)
    slow = center_after("Dynamic-SGD", "--learning_rate=0.4", **options)
    rate = f"--learning_rate={0.4 / workers}"
    expected = center_after("HogWild", rate, **options)
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(slow, expected, rtol=1e-6)


@NUM_PS
def test_dc_asgd_without_compensation_is_hogwild(num_ps: int) -> None:
    """λ₀ = 0, bit by bit; and with any λ₀ where nobody came between."""
    options = dict(start=[0.5, -1.0, 3.0], num_ps=num_ps)
    for schedule, strength in ((schedule_s(8), 0), (in_turn(8), 3)):
        plain = center_after("HogWild", schedule=schedule, **options)
        for variance in ("constant", "adaptive"):
            flags = [f"--variance={variance}", f"--strength={strength}"]
            found = center_after("DC-ASGD", *flags, schedule=schedule, **options)
            np.testing.assert_array_equal(found, plain)


def test_dc_asgd_has_the_paper_s_strength() -> None:
    for variance, strength in (("constant", 0.04), ("adaptive", 2.0)):
        with Run("DC-ASGD", streams=STREAMS[:1]) as run:
            run.flags = [f"--variance={variance}"]
            args = run.args(0)
        assert (args.strength, args.decay) == (strength, 0.95)


@pytest.mark.parametrize("folder", ELASTIC)
def test_the_elastic_exchange_conserves_x_plus_center(folder: str) -> None:
    """With gradients of zero: what the center gains the worker loses."""

    def still(index, usual):
        return lambda w, c: 0.0 * tf.reduce_sum(w * c)

    with Run(folder, "--window=3", start=[1.0, 2.0], loss=still) as run:
        for k, worker in enumerate(run.workers):
            x = worker.variables["x"]
            value = np.float32([5.0 + k, -3.0 * k])
            worker.session.run(x.initializer, {x.initial_value: value})
        total = sum(w.own("x") for w in run.workers) + run.chief.now()
        for k in "ABBAB":
            before = run.chief.now()
            run.play(f"pull {k}, push {k}")
            assert np.abs(run.chief.now() - before).max() > 0.01
            now = sum(w.own("x") for w in run.workers) + run.chief.now()
            np.testing.assert_allclose(now, total, rtol=1e-6)


def test_aeamsgd_without_momentum_is_aeasgd() -> None:
    plain = center_after("AEASGD", schedule=in_turn(8))
    still = center_after("AEAMSGD", "--momentum=0", schedule=in_turn(8))
    np.testing.assert_array_equal(plain, still)


@pytest.mark.quick
def test_no_spring_is_independent_sgd() -> None:
    """α = 0: the center never moves, each worker is plain SGD on its own stream."""
    with Run("AEASGD", "--beta=0") as run:
        assert all(push.center == [0] for push in run.play(in_turn(4)))
        for worker, stream in zip(run.workers, STREAMS, strict=True):
            x = 0.0
            for c in stream * 2:
                x -= 0.1 * (x - c)
            assert worker.own("x")[0] == pytest.approx(x, rel=1e-6)


# --- Adagrad on the ps --------------------------------------------------------

DOWNPOURS = pytest.mark.parametrize("folder", ["DOWNPOUR-Easy", "DOWNPOUR"])


@DOWNPOURS
def test_a_small_gradient_makes_as_large_a_first_step(folder: str) -> None:
    """√s is the paper's, with nothing added: the first step has the length γ."""
    small = [[1e-5], [2e-5]]
    flags = ["--window=1", "--server_learning_rate=0.5", "--learning_rate=1e-9"]
    with Run(folder, *flags, streams=small) as run:
        one, two = run.play("pull A, pull B, push A, push B")
    step = 0.5 * (1 + 2 / np.sqrt(1 + 4))
    assert one.center[0] == pytest.approx(0.5, rel=1e-5)
    assert two.center[0] == pytest.approx(step, rel=1e-5)


@pytest.mark.quick
@NUM_PS
@DOWNPOURS
def test_adagrad_is_exact_when_all_push_at_once(folder: str, num_ps: int) -> None:
    """Totals of one from both at once: s is the number of updates, in every element."""
    elements, steps = 100_000, 40

    def ones(index, usual):
        return lambda w, c: tf.reduce_sum(w + 0 * c)

    flags = ["--window=1", f"--steps={steps}"]
    options = dict(start=np.zeros(elements), num_ps=num_ps, loss=ones, rounds=10)
    with Run(folder, *flags, **options) as run:
        run.at_once(harness.Worker.to_the_end)
        sums = run.chief.session.run(list(run.chief.slots.values()))
        center = run.chief.now()
    for s in sums:
        np.testing.assert_array_equal(s, np.full(s.shape, steps))
    w = -np.sum(1 / np.sqrt(np.arange(1, steps + 1)))
    np.testing.assert_allclose(center, np.full(elements, w), rtol=1e-5)


# --- Any rates, windows, workers and schedules --------------------------------


@st.composite
def cases(draw: st.DrawFn) -> types.SimpleNamespace:
    """Draws a run: 1 to 4 workers, vectors of 2, a schedule of pulls and pushes."""
    workers = draw(st.integers(1, harness.WORKERS))
    value = st.integers(-8, 8).map(float)
    batch = st.lists(value, min_size=2, max_size=2)
    stream = st.lists(batch, min_size=1, max_size=5)
    turns = draw(st.lists(st.sampled_from("ABCD"[:workers]), min_size=6, max_size=30))
    words, held = [], set()
    for worker in turns:
        words.append(f"{'push' if worker in held else 'pull'} {worker}")
        held ^= {worker}
    return types.SimpleNamespace(
        streams=draw(st.lists(stream, min_size=workers, max_size=workers)),
        schedule=", ".join(words),
        start=draw(batch),
        eta=draw(st.sampled_from([0.01, 0.05, 0.1, 0.3])),
        strength=draw(st.sampled_from([0.0, 0.02, 0.1])),
        gamma=draw(st.sampled_from([0.05, 0.3, 1.0])),
        beta=draw(st.sampled_from([0.0, 0.3, 0.9])),
        delta=draw(st.sampled_from([0.0, 0.5, 0.9])),
        window=draw(st.integers(1, 4)),
        num_ps=draw(st.integers(1, 2)),
    )


RULES = {
    "HogWild": ([], rules.hogwild, ["eta"]),
    "Stale-Synchronous-Parallel": (["staleness"], rules.hogwild, ["eta"]),
    "Multiple-GPUs-Single-Machine": ([], rules.hogwild, ["eta"]),
    "Dynamic-SGD": ([], rules.dynamic_sgd, ["eta"]),
    "DC-ASGD": (
        ["strength", "decay", "variance"],
        rules.dc_asgd,
        ["eta", "strength", "decay"],
    ),
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
    max_examples=launch.thorough(2, 20),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_any_run_is_the_papers_rule(folder: str, case: types.SimpleNamespace) -> None:
    flags, rule, parameters = RULES[folder]
    case.alpha = case.beta / len(case.streams)
    case.server_learning_rate, case.momentum = case.gamma, case.delta
    case.staleness = len(case.schedule)  # never reached; test_clocks.py has the rest
    case.decay, case.variance = case.delta, "adaptive"
    arguments = [getattr(case, name) for name in parameters]
    schedule, start = harness.parse(case.schedule), np.array(case.start)

    def by_rule(w):
        return rule(schedule, streams(*case.streams), w, *arguments)

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
        same(played, expected, 2e-5, scale)
        if folder in ELASTIC:
            for worker, own in zip(run.workers, x, strict=True):
                np.testing.assert_allclose(
                    worker.own("x") / scale, own / scale, atol=2e-5
                )


# --- Staleness, while it happens ----------------------------------------------

COUNTED = [f for f in ASYNCHRONOUS if f not in UNCOUNTED]


@NUM_PS
@pytest.mark.parametrize("folder", [f for f in COUNTED if f not in ELASTIC])
def test_staleness_is_counted_when_the_gradient_arrives(folder, num_ps) -> None:
    """B computes while A pushes three times: 3, though B's round began before them."""
    computes, go_on = threading.Event(), threading.Event()

    def wait(w):
        computes.set()
        assert go_on.wait(60)
        return w

    def slow(index, usual):
        def slow_loss(w, c):
            with tf.control_dependencies([tf.py_func(wait, [w], tf.float32)]):
                return usual(tf.identity(w), c)

        return slow_loss if index else usual

    with Run(folder, num_ps=num_ps, start=[0.0] * 2, loss=slow) as run:
        a, b = run.workers
        staleness = []
        thread = threading.Thread(target=lambda: staleness.append(b.push().staleness))
        thread.start()
        assert computes.wait(60)
        time.sleep(0.2)  # until the ps has also answered what it has counted
        assert [a.push().staleness for _ in range(3)] == [0, 0, 0]
        go_on.set()
        thread.join()
    assert staleness == [3]


@pytest.mark.quick
@pytest.mark.parametrize("folder", COUNTED)
def test_staleness_runs_to_the_push_not_to_the_pull(folder) -> None:
    """B holds a pull while A makes five: 5, then fresh again."""
    with Run(folder) as run:
        pushes = run.play("pull B, " + in_turn(5, "A") + ", push B, pull B, push B")
    assert [push.staleness for push in pushes] == [0] * 5 + [5, 0]


# --- Locks, one process, placement --------------------------------------------


@NUM_PS
def test_no_update_is_lost_between_two_workers(num_ps: int) -> None:
    """Ones from both at once: the center is exactly −η times the number of updates."""
    steps, elements, eta = 600, 4810, 2.0**-10

    def ones(index, usual):
        return lambda w, c: tf.reduce_sum(w + 0 * c)

    flags = [f"--learning_rate={eta}", f"--steps={steps}"]
    options = dict(start=np.zeros(elements), num_ps=num_ps, loss=ones, rounds=3)
    with Run("HogWild", *flags, **options) as run:
        run.at_once(harness.Worker.to_the_end)
        assert run.chief.step() == steps
        np.testing.assert_array_equal(run.chief.now(), np.full(elements, -eta * steps))


def digits(worker: harness.Worker, index: int) -> tuple:
    """A problem function for `Run`: the guide's own, on its digits."""
    problem = worker.run.module.problem
    data = problem.load("digits")
    built = problem.build(data, 32, 0, index, len(worker.run.streams))
    return built.start, built.batch, built.loss


def alone(problem: tuple, count: int, steps: int, eta: float = 0.1) -> tuple:
    """Returns center and counts of Non-Distributed-Setup, `count` rounds a call."""
    module = launch.load("Non-Distributed-Setup")
    args = launch.defaults_of("Non-Distributed-Setup")
    args.learning_rate, args.steps = eta, 4000
    with tf.Graph().as_default(), tf.Session() as session:
        start, batch, loss = problem()
        drawn = rounds.in_turn(batch)  # as its main does
        center = tf.get_variable("center", initializer=start)
        step = tf.train.get_or_create_global_step()
        calls = rounds.Calls(
            lambda last: module.graph(args, center, step, drawn, loss, last), [1, count]
        )
        for operations in [
            tf.global_variables_initializer(),
            *checkpoint.begin_operations(),
        ]:
            session.run(operations)
        counts = []
        while len(counts) < steps:
            size = count if steps - len(counts) >= count else 1
            losses, found, _ = session.run(calls.fetches[size])
            assert losses.shape == (size,) and np.isfinite(losses).all()
            counts += found.tolist()
        return session.run(center), counts


@pytest.mark.parametrize("count", [2, 10])
def test_one_process_makes_many_updates_a_call(count: int) -> None:
    """Every one at the weights of the one before, with its number."""

    def quadratic():
        dataset = tf.data.Dataset.from_tensor_slices([1.0, 3.0]).repeat()
        iterator = tf.data.make_initializable_iterator(dataset)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)

        def loss(w, c):
            return tf.reduce_sum(0.5 * (w - c) ** 2)

        return tf.zeros([3]), iterator.get_next, loss

    center, counts = alone(quadratic, count, 24)
    schedule = harness.parse(in_turn(24, "A"))
    ((_, expected),) = rules.hogwild(schedule, streams([1, 3]), 0.0, 0.1)[-1:]
    np.testing.assert_allclose(center, [expected] * 3, rtol=1e-5)
    assert counts == [[n + 1, 0, rounds.APPLIED] for n in range(24)]


def test_one_hogwild_worker_goes_the_way_of_one_process() -> None:
    """200 steps on the digits, same seed: the same weights to 1e-5."""
    problem = launch.load("Non-Distributed-Setup").problem

    def own():
        built = problem.build(problem.load("digits"), 32, 0)
        return built.start, built.batch, built.loss

    expected, _ = alone(own, 10, 200)
    with Run("HogWild", streams=[[0.0]], problem=digits, rounds=10) as run:
        for _ in range(20):
            run.chief.call()
        np.testing.assert_allclose(run.chief.now(), expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1


@pytest.mark.quick
@pytest.mark.parametrize("num_ps", [pytest.param(1, marks=launch.if_thorough), 2])
@pytest.mark.parametrize("folder", harness.SCHEMES)
def test_placement(folder: str, num_ps: int) -> None:
    """Shared state on the ps, the rest on its worker, in the graph as it runs."""
    options = dict(streams=[[0.0], [0.0]], problem=digits, num_ps=num_ps)
    with Run(folder, rounds=2, **options) as run:
        worker = run.workers[1]
        partitions = worker.partitions()
        with worker.graph.as_default():
            trainable = {v.op.name for v in tf.trainable_variables()}
            shared = {v.op.name for v in tf.global_variables()}
            own = {v.op.name for v in tf.local_variables()}
            fresh = {v.op.name for v in [*worker.stats.unsaved, worker.stats.begun]}
    pieces = {f"center/part_{i}" for i in range(num_ps)}
    assert trainable == pieces
    # What a checkpoint has: nothing of the ps alone, nothing of a worker
    adagrad = {f"{piece}/Adagrad" for piece in pieces if "DOWNPOUR" in folder}
    of_scheme = "outer" if "DiLoCo" in folder else {"FedBuff": "buffer"}.get(folder)
    beside = {f"{of_scheme}/part_{i}" for i in range(num_ps) if of_scheme}
    assert shared == pieces | adagrad | beside | {"global_step", "counters", "stalest"}
    expected = {
        "DOWNPOUR": {"local", "local/Adagrad"},
        "Async-DiLoCo": {"m", "v", "t"},
        "Decoupled-DiLoCo": {"x", "m", "v", "t", "seen", "since", "steps"},
        "AEASGD": {"x"},
        "AEAMSGD": {"x", "v"},
        "Gradient-Compression": {"error", "momentum", "rounds"},
    }
    assert own == expected.get(folder, set())
    placed = {}
    for node in itertools.chain(*partitions):
        where = node.device.split("/device")[0]
        if node.op == "VarHandleOp":
            placed[node.name] = where
        if node.op in ("MatMul", "IteratorGetNext"):
            assert where.endswith("/job:worker/replica:0/task:1"), node.name
        if node.op in ("MutexV2", "FIFOQueueV2", "ConditionalAccumulator"):
            # The mean of a piece is where the piece is, and so is its lock.
            name = node.attr["shared_name"].s.decode()
            mean = re.fullmatch(r"mean_(\d)", name)
            ps = int(mean[1]) if mean else 0
            if name == "update":
                ps = int(node.name.endswith("_1"))
            assert where.endswith(f"/job:ps/replica:0/task:{ps}"), node.name
    for name, where in placed.items():
        if name in own:
            assert where.endswith("/job:worker/replica:0/task:1"), name
            continue
        number = int(name.split("part_")[1][0]) if "part_" in name else 0
        number = number or int(name in ("mean_square_1", "pushes_1", "answers_1"))
        assert where.endswith(f"/job:ps/replica:0/task:{number}"), name
    assert shared | own <= set(placed) <= shared | own | fresh


@pytest.mark.parametrize("folder", COUNTED)
def test_the_number_waits_for_the_count_at_the_pull(folder, monkeypatch) -> None:
    """A count that comes late is still the one before this worker's own update."""
    read_step = stats.Stats.read_step

    def late(own, after=()):
        with tf.device(own.device), tf.control_dependencies(after):
            slept = tf.py_func(lambda: time.sleep(0.2), [], [])
        return read_step(own, [slept])

    monkeypatch.setattr(stats.Stats, "read_step", late)
    with Run(folder, streams=STREAMS[:1]) as run:
        pushes = [run.chief.push() for _ in range(3)]
    assert [push[:3] for push in pushes] == [(n, 0, rounds.APPLIED) for n in (1, 2, 3)]


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
    flags = ["--window=3", "--server_learning_rate=0.3", "--steps=80"]
    four = [[1.0, 3.0], [5.0, 7.0], [2.0], [6.0]]
    options = dict(streams=four, start=[0.0, 0.0], module=module, rounds=2)
    with Run("DOWNPOUR", *flags, **options) as run:
        run.at_once(harness.Worker.to_the_end)
        assert np.abs(run.chief.now() - 4).max() < 2.5
        for worker in run.workers:
            assert len(worker.local) > 1
            slots = [name for name in worker.local if name != "local"]
            assert all(worker.variables[name].device == worker.device for name in slots)
