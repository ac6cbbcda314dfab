"""Gradient-Compression: what is sent, what is kept, and the bytes of both.

On a cluster in this process (`harness`); the messages are looked at where they arrive.
"""

from __future__ import annotations

import itertools
import types

import harness
import numpy as np
import pytest
import rules
from harness import Run, in_turn, rounds, schedule_s, tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launch import some, thorough
from rules import streams

pytestmark = pytest.mark.timeout(120)

FOLDER = "Gradient-Compression"
# What is right with the pieces of two is with one; each scheme runs with one.
NUM_PS = pytest.mark.parametrize("num_ps", some([2], [1]))


def constant(index, usual):
    """A loss whose gradient is the mini-batch, wherever w is."""
    return lambda w, c: tf.reduce_sum(w * c)


# --- Traces, by hand ----------------------------------------------------------


@NUM_PS
def test_trace_of_top_one(num_ps: int) -> None:
    """The third element is small, and is sent when enough of it has been kept."""
    options = dict(streams=[[[5, 1, 2]], [[1, 4, 2]]], loss=constant, num_ps=num_ps)
    flags = ["--keep=0.34", "--learning_rate=0.05"]
    with Run(FOLDER, *flags, start=[0.0] * 3, **options) as run:
        found = [push.center for push in run.play(in_turn(6))][1::2]
        errors = [worker.own("error") for worker in run.workers]
    trace = [[-0.25, -0.2, 0], [-0.5, -0.4, 0], [-0.5, -0.4, -0.6]]
    np.testing.assert_allclose(found, trace, atol=1e-6)
    np.testing.assert_allclose(errors, [[5, 3, 0], [3, 4, 0]], atol=1e-6)


def trace(flags: list, stream: list, **options) -> list:
    """Returns w after each of three rounds of one worker with constant gradients."""
    with Run(
        FOLDER, *flags, start=[0.0] * len(stream), streams=[[stream]], loss=constant
    ) as run:
        return [push.center for push in run.play(in_turn(3, "A"))]


def test_trace_of_signs() -> None:
    found = trace(["--method=sign"], [3, -1])
    expected = [[-0.2, 0.2], [-0.4, 0], [-0.8, 0.4]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Without what was left the second element gets twice its share.
    found = trace(["--method=sign", "--error_feedback=off"], [3, -1])
    np.testing.assert_allclose(found, [[-0.2 * t, 0.2 * t] for t in (1, 2, 3)], 1e-6)


def test_trace_of_momentum_correction() -> None:
    """m = 0.9: what is sent is 2, then 2.9 of the other one, then 5.8."""
    found = trace(["--keep=0.5", "--momentum=0.9"], [2, 1])
    expected = [[-0.2, 0], [-0.2, -0.29], [-0.78, -0.29]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_trace_of_bytes() -> None:
    """p = (254, 3): the level is 2, and 3 is 4, to the even one; then 2 is 2."""
    found = trace(["--method=int8", "--learning_rate=1"], [254, 3])
    np.testing.assert_allclose(found, [[-254, -4], [-508, -6], [-762, -10]], 1e-6)
    assert trace(["--method=int8"], [0, 0])[-1].tolist() == [0, 0]


# --- Identities ---------------------------------------------------------------


@pytest.mark.quick
@NUM_PS
def test_all_elements_are_hogwild(num_ps: int) -> None:
    """Bit by bit, one round a call and many."""
    batches = np.random.default_rng(0).normal(size=(2, 7, 5)).tolist()
    options = dict(start=[0.5, -1.0, 3.0, 0.1, 0.2], streams=batches, num_ps=num_ps)

    def centers(folder: str, *flags: str) -> list:
        with Run(folder, *flags, **options) as run:
            found = [push.center for push in run.play(schedule_s(8))]
        with Run(folder, *flags, rounds=5, **options) as run:
            for worker in [*run.workers] * 2:
                worker.call()
            return [*found, run.chief.now()]

    plain = centers("HogWild")
    for method in ("topk", "random_k"):
        np.testing.assert_array_equal(centers(FOLDER, f"--method={method}"), plain)


@pytest.mark.quick
@pytest.mark.parametrize("rounds_of_a_call", [1, 4])
@pytest.mark.parametrize("method", ["topk", "random_k", "sign", "int8"])
def test_nothing_is_lost(method: str, rounds_of_a_call: int) -> None:
    """What was sent, and what is still kept, is the sum of all gradients."""
    batches = np.random.default_rng(1).normal(size=(2, 8, 6))
    flags = [f"--method={method}", "--keep=0.3", "--learning_rate=0.5"]
    options = dict(start=[0.0] * 6, streams=batches.tolist(), loss=constant)
    with Run(FOLDER, *flags, rounds=rounds_of_a_call, **options) as run:
        for _ in range(8 // rounds_of_a_call):
            for worker in run.workers:
                worker.call()
        kept = sum(worker.own("error") for worker in run.workers)
        assert np.abs(kept).max() > 1e-3
        sent = -run.chief.now() / 0.5
        np.testing.assert_allclose(sent + kept, batches.sum((0, 1)), atol=1e-5)


def test_without_error_feedback_it_is_lost() -> None:
    flags = ["--keep=0.34", "--error_feedback=off"]
    options = dict(start=[0.0] * 3, streams=[[[5, 1, 2]]], loss=constant)
    with Run(FOLDER, *flags, **options) as run:
        made = run.play(in_turn(6, "A"))
        assert run.chief.own("error").tolist() == [0, 0, 0]
    np.testing.assert_allclose(made[-1].center, [-3, 0, 0], atol=1e-6)


# --- Any run ------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> types.SimpleNamespace:
    """Draws a run: a method and its flags, 1 to 3 workers, pulls and pushes."""
    workers, size = draw(st.integers(1, 3)), draw(st.integers(3, 11))
    turns = draw(st.lists(st.sampled_from("ABC"[:workers]), min_size=4, max_size=16))
    words, held = [], set()
    for worker in turns:
        words.append(f"{'push' if worker in held else 'pull'} {worker}")
        held ^= {worker}
    method = draw(st.sampled_from(["topk", "random_k", "sign", "int8"]))
    feedback = draw(st.booleans())
    sparse = method in ("topk", "random_k")
    return types.SimpleNamespace(
        method=method,
        feedback=feedback,
        k=draw(st.integers(1, size)),
        size=size,
        momentum=draw(st.sampled_from([0, 0.5, 0.9])) * (feedback and sparse),
        num_ps=draw(st.integers(1, 3)),
        schedule=", ".join(words),
        batches=np.random.default_rng(draw(st.integers(0, 99))).normal(
            size=(workers, 4, size)
        ),
    )


@settings(max_examples=thorough(6, 60))
@given(case=cases())
def test_any_run_is_the_rule(case: types.SimpleNamespace) -> None:
    flags = [f"--method={case.method}", f"--keep={case.k / case.size}"]
    flags += [f"--error_feedback={'on' if case.feedback else 'off'}"]
    flags += [f"--momentum={case.momentum}"]
    start = np.linspace(-1, 1, case.size)
    options = dict(start=start, num_ps=case.num_ps, streams=case.batches.tolist())
    with Run(FOLDER, *flags, **options) as run:
        played = run.play(case.schedule)
        errors = [worker.own("error") for worker in run.workers]
    centers = [start.astype(np.float32), *(push.center for push in played)]
    moved = iter([a != b for a, b in itertools.pairwise(centers)])

    def compress(k, p):
        if case.method == "random_k":  # which ones, is seen from what has moved
            chosen = next(moved)
            assert chosen.sum() == case.k
            return np.where(chosen, p, 0)
        if case.method == "topk":
            sizes = np.sort(np.abs(p))[::-1]
            # Else a rounding error says which one is the larger.
            assume(case.k == case.size or sizes[case.k - 1] - sizes[case.k] > 1e-4)
            return rules.top(p, case.k)
        if case.method == "sign":
            assume(np.abs(p).min() > 1e-5)
            return rules.signs(p)
        parts = np.abs(p / np.abs(p).max() * 127 % 1 - 0.5)
        assume(parts.min() > 1e-4)
        return rules.in_bytes(p)

    schedule = harness.parse(case.schedule)
    expected, left = rules.compressed(
        schedule,
        streams(*case.batches),
        start,
        0.1,
        compress,
        case.feedback,
        case.momentum,
    )
    for number, (push, (staleness, w)) in enumerate(zip(played, expected, strict=True)):
        assert push[:3] == (number + 1, staleness, rounds.APPLIED)
        np.testing.assert_allclose(push.center, w, atol=1e-5)
    np.testing.assert_allclose(errors, left, atol=2e-5)


# --- On the wire --------------------------------------------------------------

SIZE = 1001  # in pieces of 501 and 500


@NUM_PS
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("topk", [8 * 50] * 2),
        ("random_k", [8 * 50] * 2),
        ("sign", [4 + 126, 2 * 4 + 63 + 63]),
        ("int8", [4 + 1001, 2 * 4 + 1001]),
    ],
)
def test_the_counters_have_the_bytes_of_each_message(method, expected, num_ps):
    """And a message is one tensor to each ps, of no floats."""
    batches = np.random.default_rng(2).normal(size=(1, 4, SIZE)).tolist()
    options = dict(start=np.zeros(SIZE), streams=batches, num_ps=num_ps)
    with Run(FOLDER, f"--method={method}", "--keep=0.05", **options) as run:
        for _ in range(3):
            run.chief.push()
        counters = run.counters()
        found = [node for part in run.chief.partitions() for node in part]
    assert counters["pushed"] == [3 * expected[num_ps - 1]]
    assert counters["pulled"] == [3 * 4 * SIZE]
    crossing = [
        node.attr["T"].type
        for node in found
        if node.op in ("_Send", "_HostSend")
        and "/job:worker" in node.attr["send_device"].s.decode()
        and "/job:ps" in node.attr["recv_device"].s.decode()
    ]
    assert len(crossing) == num_ps, crossing
    assert tf.float32.as_datatype_enum not in crossing


@pytest.mark.quick
def test_warm_up_sends_less_and_less() -> None:
    """The share is keep ** ((t + 1) / (W + 1)) in a worker's round t, then keep."""
    batches = np.random.default_rng(3).normal(size=(2, 4, 1000)).tolist()
    flags = ["--keep=0.001", "--warmup=3"]
    options = dict(start=np.zeros(1000), streams=batches, num_ps=2)
    with Run(FOLDER, *flags, **options) as run:
        pushed = [0]
        for _ in range(6):
            run.chief.push()
            pushed.append(run.counters()["pushed"][0])
        run.workers[1].push()
        assert run.counters()["pushed"][1] == pushed[1]  # its own round 0
    counts = [(b - a) / 8 for a, b in itertools.pairwise(pushed)]
    assert counts == [178, 32, 6, 1, 1, 1]


def test_random_elements_are_others_each_time() -> None:
    """In each round, also of one call, and for each worker; the same again by seed."""
    batches = np.ones((2, 1, 400)).tolist()
    options = dict(start=np.zeros(400), streams=batches, loss=constant, rounds=3)
    flags = ["--method=random_k", "--keep=0.1", "--error_feedback=off"]
    found = []
    for seed in (0, 0, 1):
        with Run(FOLDER, *flags, f"--seed={seed}", **options) as run:
            sets = []
            for worker in [*run.workers] * 2:
                before = run.chief.now()
                worker.call()
                sets.append(before - run.chief.now())
        found.append(sets)
        for one in sets:
            # 3 times 40 of 400: nearly all once, some twice, a few three times.
            assert one.sum() == pytest.approx(0.1 * 120, rel=1e-4)
            assert 90 <= np.count_nonzero(one) < 120
        assert not np.array_equal(sets[0], sets[1])
        assert not np.array_equal(sets[0], sets[2])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert not np.allclose(found[0], found[2])
