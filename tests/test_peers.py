"""The schemes without a ps: exact to their rules, equal on all workers, and they end.

The graphs are those of the scripts, on servers in this process (`peer_harness`);
endings are tried on real processes, in copies outside the repository.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import signal
import sys
import threading
import time
import types

import harness
import launch
import numpy as np
import peer_harness
import pytest
import registry
import rules
from harness import STREAMS, behind, tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launch import copy_of, load, result, run_sh, saved_step, wait_until
from peer_harness import SCHEMES, Peers
from rules import streams

pytestmark = pytest.mark.timeout(180)  # a wrong ring hangs

RING = "Ring-All-Reduce"
FAILURE = harness.task.Failure
TRACE = [0.3, 0.77, 0.993, 1.3937]  # of Synchronous-SGD, by hand
ENDLESS = ["--steps", "10000000"]
WITHIN = 15  # seconds from the cause to the end


def test_every_folder_is_here() -> None:
    assert list(SCHEMES) == registry.folders("peers")


# --- The ring ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "elements"), [(1, 3), (2, 1), (3, 6), (3, 1000), (4, 3), (2, 2_200_001)]
)
def test_the_ring_sums_exactly(workers: int, elements: int) -> None:
    """Also fewer elements than workers, and so many that there are several rings."""
    ramp = 1 + np.arange(elements) % 1000
    vectors = [10.0**k * ramp for k in range(workers)]

    def extra(peer):
        ring = peer.ring
        with tf.device(ring.device):
            mine = 10.0**peer.index * tf.cast(1 + tf.range(elements) % 1000, tf.float32)
        return [ring.sum(mine), ring.mean(workers * mine), ring.largest(mine)]

    with Peers(RING, streams=[[0.0]] * workers, extra=extra) as run:
        found = run.at_once(lambda peer: [peer.session.run(x) for x in peer.extra])
    for total, mean, largest in found:
        np.testing.assert_array_equal(total, sum(vectors))
        np.testing.assert_array_equal(mean, sum(vectors))
        np.testing.assert_array_equal(largest, vectors[-1])


def test_all_get_the_same_bits() -> None:
    """Of numbers whose sum depends on the order: some workers' order, but one."""
    values = np.random.default_rng(0).normal(size=(3, 5000)).astype(np.float32)
    values *= 10.0 ** np.arange(3)[:, None]

    def extra(peer):
        return peer.ring.mean(tf.constant(values[peer.index]))

    with Peers(RING, streams=[[0.0]] * 3, extra=extra) as run:
        found = run.at_once(lambda peer: peer.session.run(peer.extra))
    assert len({mean.tobytes() for mean in found}) == 1
    np.testing.assert_allclose(found[0], values.astype(float).mean(0), rtol=1e-4)
    orders = {
        np.float32(sum(values[list(p)])).tobytes() for p in ((0, 1, 2), (2, 1, 0))
    }
    assert len(orders) == 2  # else this would show nothing


def deep(w, x):
    """A loss of 30 weights in four layers, the third of which it does not need."""
    a, b, _, d = tf.split(w, [12, 8, 6, 4])
    hidden = tf.nn.tanh(x @ tf.reshape(a, [3, 4]))
    return tf.reduce_mean(
        (tf.nn.tanh(hidden @ tf.reshape(b, [4, 2])) @ d[:2, None]) ** 2
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("bytes_", "sizes", "loss"),
    [
        (4 << 20, [30], deep),
        (24, [12, 8, 10], deep),
        (1, [12, 8, 6, 4], deep),
        (1, [30], lambda w, x: deep(w, x) + tf.nn.l2_loss(w)),
        (1, [30], lambda w, x: tf.reduce_sum(w[:3] * x**3)),
    ],
    ids=["short", "two layers in one", "each layer", "also the whole", "slices"],
)
def test_buckets_are_the_gradient(bytes_, sizes, loss, monkeypatch) -> None:
    """Each once and in its place, on a slow worker as on others."""
    monkeypatch.setattr(peer_harness.ring, "BUCKET", bytes_)
    args = launch.defaults_of(RING)
    args.slow_workers = [0.001]
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.identity(tf.constant(rng.normal(size=30), tf.float32))
        x = tf.constant(rng.normal(size=(5, 3)), tf.float32)
        value = launch.load(RING).slow.slowed(loss, args)(w, x)
        buckets = peer_harness.ring.Ring.gradients(value, w)
        assert [bucket.shape.num_elements() for bucket in buckets] == sizes
        whole = tf.gradients(loss(w, x), w)[0]
        found, wanted = session.run([tf.concat(buckets, axis=0), whole])
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.quick
def test_a_loss_without_a_gradient_is_a_mistake() -> None:
    with tf.Graph().as_default():
        w = tf.identity(tf.ones([30]))
        value = tf.cast(tf.argmax(tf.split(w, 2)[0]), tf.float32)
        with pytest.raises(FAILURE, match="does not depend on the vector"):
            peer_harness.ring.Ring.gradients(value, w)


@pytest.mark.parametrize("name", ["center", "global_step"])
def test_weights_that_differ_in_one_bit_are_found(name: str) -> None:
    with Peers(RING, start=[1.0] * 5, streams=[[0.0]] * 3) as run:
        run.at_once(lambda peer: peer.check.make(peer.session))
        value = run.chief.own(name)
        if name == "center":
            value[3] = np.nextafter(value[3], np.float32(2))
        else:
            value += 1
        run.workers[2].set(name, value)

        def fails(peer):
            with pytest.raises(FAILURE, match=f"^{name} is not the same on all"):
                peer.check.make(peer.session)

        run.at_once(fails)


def test_all_get_the_weights_that_the_chief_has_restored() -> None:
    with Peers(RING, start=[1.0] * 3, streams=[[0.0]] * 3) as run:
        run.chief.set("center", [0.1, -2.0, 3e20])
        run.chief.set("number", 2**40 + 1)
        run.at_once(lambda peer: peer.session.run(peer.broadcast))
        for peer in run.workers:
            np.testing.assert_array_equal(peer.now(), np.float32([0.1, -2.0, 3e20]))
            assert peer.own("number") == 2**40 + 1


def test_workers_of_different_speed_agree_on_the_size_of_a_call() -> None:
    """Each has measured another pace; who made fewer rounds would be missed."""

    with Peers(RING, rounds=10) as run:
        for peer, seconds in zip(run.workers, (0.0001, 1.0), strict=True):
            peer.calls.rounds.seconds = seconds

        def make(peer):
            sizes = []
            while sum(sizes) < 100:
                losses, _ = peer.calls.make(peer.session, 100 - sum(sizes))
                sizes.append(len(losses))
            return sizes

        one, other = run.at_once(make)
    assert one == other and sum(one) == 100
    assert one[0] == 1 and 10 in one


# --- Exact ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_trace_of_the_ring(count: int) -> None:
    with Peers(RING, start=[0.0] * 3, rounds=count) as run:
        found = run.trace(4 // count)
    expected = [[w] * 3 for w in TRACE[count - 1 :: count]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@st.composite
def cases(draw: st.DrawFn) -> types.SimpleNamespace:
    """Draws a run: 1 to 4 workers, vectors of 1 to 7, rounds of a call, rates."""
    workers, size = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    batch = st.lists(st.integers(-8, 8).map(float), min_size=size, max_size=size)
    stream = st.lists(batch, min_size=1, max_size=5)
    return types.SimpleNamespace(
        streams=draw(st.lists(stream, min_size=workers, max_size=workers)),
        start=draw(batch),
        rounds=draw(st.integers(1, 4)),
        window=draw(st.integers(1, 4)),
        eta=draw(st.sampled_from([0.01, 0.1, 0.3])),
    )


ANY = settings(max_examples=launch.thorough(3, 30))


@given(case=cases())
@ANY
def test_any_ring_is_synchronous_sgd(case: types.SimpleNamespace) -> None:
    batches, updates = streams(*case.streams), 3 * case.rounds
    expected = rules.synchronous_sgd(batches, np.array(case.start), updates, case.eta)
    options = dict(streams=case.streams, start=case.start, rounds=case.rounds)
    with Peers(RING, f"--learning_rate={case.eta}", **options) as run:
        found = run.trace(3)
        run.at_once(lambda peer: peer.check.make(peer.session))
    expected = expected[case.rounds - 1 :: case.rounds]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-4)


def test_the_ring_is_the_synchronous_scheme_of_the_ps() -> None:
    start = [0.5, -1.0, 2.0]
    with Peers(RING, start=start) as run:
        found = run.trace(4)
    with harness.Run("Synchronous-SGD", start=start) as run:
        expected = [[k.push() for k in run.workers][-1].center for _ in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


LARGE = "Large-Minibatch"


@pytest.mark.parametrize("count", [1, 2])
def test_trace_of_large_minibatch(count: int) -> None:
    """Two workers, rates 0.15, 0.2, 0.2, .. by hand: 0.15 · 3; 0.8 · 0.45 + 0.2 · 5."""
    with Peers(LARGE, start=[0.0] * 3, rounds=count) as run:
        found = run.trace(4 // count)
    expected = [[w] * 3 for w in [0.45, 1.36, 1.688, 2.3504][count - 1 :: count]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@given(case=cases(), warmup=st.integers(0, 5), batch=st.sampled_from([None, 8, 48]))
@ANY
def test_any_large_minibatch_is_the_rule(case, warmup: int, batch: int | None) -> None:
    k = len(case.streams) * 32 / (batch or 32)
    expected = rules.large_minibatch(
        streams(*case.streams), np.array(case.start), 3 * case.rounds, 0.05, warmup, k
    )[case.rounds - 1 :: case.rounds]
    flags = ["--learning_rate=0.05", f"--warmup_steps={warmup}"]
    flags += [f"--reference_batch={batch}"] if batch else []
    options = dict(streams=case.streams, start=case.start, rounds=case.rounds)
    with Peers(LARGE, *flags, **options) as run:
        found = run.trace(3)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(
    ("flags", "workers"), [(["--scaling=none"], 2), ([], 1), (["--warmup_steps=0"], 1)]
)
def test_large_minibatch_is_the_ring(flags: list[str], workers: int) -> None:
    """To the last bit: without scaling, and with one worker."""
    options = dict(start=[0.5, -1.0, 2.0], streams=STREAMS[:workers])
    with Peers(LARGE, *flags, **options) as run:
        found = run.trace(4)
    with Peers(RING, **options) as run:
        np.testing.assert_array_equal(found, run.trace(4))


def test_a_warm_up_counts_updates_since_global_step_0() -> None:
    """Also those before a restart: after 100 of 200 the rate is half way."""
    with Peers(LARGE, "--warmup_steps=200", start=[0.0], streams=[[1.0]] * 3) as run:
        for peer in run.workers:
            peer.set("number", 99)
        pushes = run.at_once(lambda peer: peer.call())
    (w,) = pushes[0][-1].center
    np.testing.assert_allclose(w, 0.1 * (1 + 2 * 100 / 200), rtol=1e-6)


LOCAL, DILOCO = "Local-SGD", "DiLoCo"


@pytest.mark.parametrize("count", [1, 2])
def test_trace_of_local_sgd(count: int) -> None:
    """T = 2, by hand: (0.39, 1.15) → 0.77; (1.0137, 1.7737) → 1.3937."""
    with Peers(LOCAL, start=[0.0] * 3, rounds=count) as run:
        found = run.trace(2 // count)
    expected = [[w] * 3 for w in [0.77, 1.3937][count - 1 :: count]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def sgd(args, x, m, v, t, g):
    """An inner optimizer for DiLoCo, in the place of `adamw`."""
    return x - args.learning_rate * g, m, v, t + 1


@pytest.fixture
def diloco_of_sgd(monkeypatch) -> types.ModuleType:
    """DiLoCo with plain SGD inside."""
    module = load(DILOCO)
    module.adamw = sgd
    monkeypatch.setitem(peer_harness.instead, DILOCO, module)
    return module


@pytest.mark.parametrize("count", [1, 3])
def test_trace_of_diloco_with_sgd_inside(count: int, diloco_of_sgd) -> None:
    """By hand: Δ = −.77, u = −.77, w = 1.463 · .7; and two more."""
    with Peers(DILOCO, start=[0.0] * 3, rounds=count) as run:
        found = run.trace(3 // count)
    expected = [1.0241, 2.22599993, 3.4067844547][count - 1 :: count]
    np.testing.assert_allclose(found, [[w] * 3 for w in expected], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("mix", "trace"),
    [
        ("0", [1.0241, 1.9894847, 3.0082477649]),
        (None, [1.0241, 1.97087135, 2.7424132342]),  # 0.5
    ],
)
def test_trace_of_an_exchange_beside_a_step(mix, trace, count, diloco_of_sgd) -> None:
    """T = 2, o = 1, by hand: A .451 and B 1.535 when w arrives; then half of it stays.

    The first window is the only one of T + o steps.
    """
    flags = ["--overlap=1", *([f"--mix={mix}"] if mix else [])]
    with Peers(DILOCO, *flags, start=[0.0] * 3, rounds=count) as run:
        found, done = run.trace(3 // count), run.summary()
        own = [peer.own("x") for peer in run.workers]
    expected = [[w] * 3 for w in trace[count - 1 :: count]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert done["examples"] == 2 * (3 * 2 + 1) * 32
    if mix == "0":
        np.testing.assert_array_equal(own, [found[-1]] * 2)


def test_workers_go_on_while_they_exchange() -> None:
    """Worker 1 begins when worker 0 has made the steps after its push."""
    ahead = threading.Event()

    class Behind(Peers):
        def loss(self, index, usual):
            made = itertools.count(1)

            def step(w):
                if index:
                    assert ahead.wait(20)
                elif next(made) == 5:  # of 3 + 2
                    ahead.set()
                return w

            def loss(w, c):
                w_late = tf.py_func(step, [w], tf.float32)
                with tf.control_dependencies([w_late]):
                    return usual(tf.identity(w), c)

            return loss

    with Behind(DILOCO, "--window=3", "--overlap=2", start=START) as run:
        assert np.isfinite(run.trace(1)).all()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--overlap=5", "--window=10", "--fragments=2"], "--overlap 5: two fragments"),
        (["--overlap=2", "--window=2"], "--overlap 2: two fragments"),
        (["--mix=1"], "'1' is not a number from 0 up to, not with, 1"),
        (["--window=5", "--fragments=2"], "--window 5: not a multiple"),
    ],
)
def test_a_wrong_flag_of_diloco(flags: list, sentence: str, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        load(DILOCO).parse_args(["--task_index=0", "--worker_hosts=a:1", *flags])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


@pytest.mark.quick
@pytest.mark.parametrize("folder", [DILOCO, "Async-DiLoCo", "Decoupled-DiLoCo"])
def test_two_steps_of_adamw(folder: str) -> None:
    """By hand, with the gradients 1 and 2, η = 0.1 and a weight decay of 0.5.

    m₂ = 0.29, v₂ = 0.2475, and the second move is 0.29 / 0.19 / √(0.2475 / 0.0975).
    """
    adamw, args = load(folder).adamw, launch.defaults_of(folder)
    args.learning_rate, args.weight_decay = 0.1, 0.5
    with tf.Graph().as_default(), tf.Session() as session:
        first = adamw(args, tf.constant(0.0), 0.0, 0.0, 0.0, tf.constant(1.0))
        second = adamw(args, *first, tf.constant(2.0))
        x = session.run([first[0], second[0]])
    assert x == pytest.approx([-0.1, -0.1 - 0.1 * (0.957986 - 0.05)], abs=1e-6)


@pytest.mark.quick
def test_first_round_of_diloco() -> None:
    """AdamW's first step is ± η, so that Δ = −0.1 and w = 0.7 · 1.9 · 0.1."""
    with Peers(DILOCO, "--window=1", start=[0.0] * 2) as run:
        np.testing.assert_allclose(run.trace(1), [[0.133] * 2], rtol=1e-5)


@given(case=cases(), after=st.integers(0, 4))
@ANY
def test_any_local_sgd_is_the_rule(case: types.SimpleNamespace, after: int) -> None:
    batches, updates = streams(*case.streams), 3 * case.rounds
    expected = rules.local_sgd(
        batches, np.array(case.start), updates, case.window, case.eta, after
    )[case.rounds - 1 :: case.rounds]
    flags = [f"--learning_rate={case.eta}", f"--window={case.window}"]
    options = dict(streams=case.streams, start=case.start, rounds=case.rounds)
    with Peers(LOCAL, *flags, f"--local_after={after}", **options) as run:
        found, done = run.trace(3), run.summary()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-4)
    early = min(after, updates)
    steps = early + (updates - early) * case.window
    assert done["examples"] == steps * len(case.streams) * 32


@given(
    case=cases(),
    mu=st.sampled_from([0.0, 0.5, 0.9]),
    eta_o=st.sampled_from([0.3, 0.7, 1.0]),
    decay=st.sampled_from([0.0, 0.1]),
    fragments=st.integers(1, 3),
    overlap=st.integers(0, 2),
    mix=st.sampled_from([0.0, 0.5, 0.9]),
)
@ANY
def test_any_diloco_is_the_rule(
    case, mu, eta_o, decay, fragments, overlap, mix
) -> None:
    """AdamW's first steps are as long for a rounding error as for a gradient."""
    overlap = min(overlap, case.window - 1)
    window, updates = case.window * fragments, 3 * case.rounds
    start = np.array(case.start) + 0.3

    def by_rule(w):
        inner = [rules.adamw(case.eta, decay) for _ in case.streams]
        batches = streams(*case.streams)
        rule = rules.diloco(
            batches, w, updates, window, inner, eta_o, mu, fragments, overlap, mix
        )
        return np.array(rule[case.rounds - 1 :: case.rounds])

    expected = by_rule(start)
    assume(np.abs(by_rule(start + 1e-6) - expected).max() < 1e-4)
    flags = [f"--learning_rate={case.eta}", f"--window={window}", f"--momentum={mu}"]
    flags += [f"--weight_decay={decay}", f"--outer_learning_rate={eta_o}"]
    flags += [f"--fragments={fragments}", f"--overlap={overlap}", f"--mix={mix}"]
    options = dict(streams=case.streams, start=start, rounds=case.rounds)
    with Peers(DILOCO, *flags, **options) as run:
        found = run.trace(3)
        run.at_once(lambda peer: peer.check.make(peer.session))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


SHARDED, STAGES = "Sharded-Data-Parallel", range(4)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("count", [1, 2])
def test_trace_of_sharded_data_parallel(stage: int, count: int) -> None:
    """By hand, two workers, η = 0.1: gradients −3, −4.9; m = −0.3, −0.76; see below.

    v = 0.009, 0.033001. The first step is η, the second 0.1 √0.001999 / 0.19 · 0.76 /
    √0.033001 = 0.0984471.
    """
    flags = [f"--stage={stage}"]
    with Peers(SHARDED, *flags, start=[0.0] * 3, rounds=count) as run:
        found = run.trace(2 // count)
    np.testing.assert_allclose(
        found, [[w] * 3 for w in [0.1, 0.1984471][count - 1 :: count]], atol=1e-6
    )


class Perceptron(Peers):
    """The workers of Sharded-Data-Parallel, with a model that is cut in pieces."""

    SHAPES = ((3, 4), (4,), (4, 2), (2,))
    SIZES = (12, 4, 8, 2)
    EXAMPLES = 4  # of a mini-batch, of three features and a label each

    def __init__(self, stage: int, workers: int, batches: np.ndarray, **options):
        start = np.random.default_rng(0).normal(size=sum(self.SIZES))
        flags = [f"--stage={stage}", "--learning_rate=0.01"]
        streams = [batches[k::workers].reshape(-1, 16) for k in range(workers)]
        super().__init__(SHARDED, *flags, start=start, streams=streams, **options)

    @classmethod
    def cut(cls, w):
        pieces = np.split(w, np.cumsum(cls.SIZES)[:-1])
        a, b, c, d = (x.reshape(s) for x, s in zip(pieces, cls.SHAPES, strict=True))
        return [(a, b), (c, d)]

    def loss(self, index, usual):
        def loss(w, batch):
            rows = tf.reshape(batch, [self.EXAMPLES, 4])
            pieces = zip(tf.split(w, self.SIZES), self.SHAPES, strict=True)
            a, b, c, d = (tf.reshape(*pair) for pair in pieces)
            logits = tf.nn.relu(rows[:, :3] @ a + b) @ c + d
            labels = tf.cast(rows[:, 3], tf.int32)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=labels, logits=logits
            )
            return tf.reduce_mean(each)

        return loss

    @classmethod
    def rule(cls, batches: np.ndarray, workers: int, updates: int) -> np.ndarray:
        """One worker on the joined mini-batches of all: Adam on their mean gradient."""
        joined = iter(batches.reshape(-1, workers * cls.EXAMPLES, 4))

        def gradient(w):
            rows = next(joined)
            found = rules.perceptron_gradient(
                cls.cut(w), rows[:, :3], rows[:, 3].astype(int)
            )[1]
            return np.concatenate([part.ravel() for pair in found for part in pair])

        start = np.random.default_rng(0).normal(size=sum(cls.SIZES))
        start = start.astype(np.float32).astype(float)
        steps = rules.adam(start, gradient, 0.01)
        return np.array([next(steps) for _ in range(updates)])


def mini_batches(workers: int, updates: int) -> np.ndarray:
    """Returns a mini-batch [4, 4] for each update and worker, in this order."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(updates * workers, Perceptron.EXAMPLES, 4))
    rows[..., 3] = rng.integers(2, size=rows.shape[:2])
    return rows.astype(np.float32)


@pytest.mark.parametrize(
    ("stage", "workers"),
    launch.some(
        [(0, 2), (1, 3), (2, 4), (3, 1), (3, 3)],
        [(s, n) for s in STAGES for n in (1, 2, 3, 4)],
    ),
)
def test_sharded_is_one_worker_on_the_joined_batch(stage: int, workers: int) -> None:
    """After 20 steps, to 1e-6: P = 26, and units of 12, 4, 8 and 2 numbers."""
    batches = mini_batches(workers, 20)
    expected = Perceptron.rule(batches, workers, 20)
    with Perceptron(stage, workers, batches, rounds=2) as run:
        found = run.trace(10)
        run.at_once(lambda peer: peer.check.make(peer.session))
    np.testing.assert_allclose(found, expected[1::2], atol=1e-6)


@given(case=cases(), stage=st.sampled_from(STAGES))
@ANY
def test_any_sharded_is_the_rule(case: types.SimpleNamespace, stage: int) -> None:
    """Adam's first steps are as long for a rounding error as for a gradient."""
    start = np.array(case.start) + 0.3

    def by_rule(w):
        rule = rules.sharded(streams(*case.streams), w, 3 * case.rounds, case.eta)
        return np.array(rule[case.rounds - 1 :: case.rounds])

    expected = by_rule(start)
    assume(np.abs(by_rule(start + 1e-6) - expected).max() < 1e-4)
    flags = [f"--learning_rate={case.eta}", f"--stage={stage}"]
    options = dict(streams=case.streams, start=start, rounds=case.rounds)
    with Peers(SHARDED, *flags, **options) as run:
        found = run.trace(3)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_who_holds_what(stage: int) -> None:
    """Of 26 numbers on two workers: all of w, of the gradient, of m and v, or half."""
    with Perceptron(stage, 2, mini_batches(2, 1)) as run:
        peer = run.chief
        made = behind(peer.calls.fetches[1])
        sizes = {name: v.shape.num_elements() for name, v in peer.variables.items()}
        whole = {op.type for op in made for x in op.outputs if x.shape == [26]}
        # A gradient is all there before the first reduce-scatter, or a unit is.
        sent = [op for op in made if op.type == "CollectiveAllToAllV2"]
        before = {
            tuple(x.shape)
            for op in sent
            for way in behind(op.inputs[0])
            for x in way.outputs
            if way.type in ("ConcatV2", "Pad")
        }
        gathers = [op for op in made if op.type == "CollectiveGather"]
    half = 13 if stage else 26
    assert (
        sizes["m"] == sizes["v"] == half and sizes["center"] == [26, 13, 13, 13][stage]
    )
    assert bool(whole) == (stage < 2), whole
    assert len(sent) == [0, 1, 4, 4][stage] and len(gathers) == [0, 1, 4, 5][stage]
    assert ((26,) in before) == (stage == 1)


def test_a_unit_is_gathered_again_for_the_backward_pass_and_dropped_between() -> None:
    """No operation of the backward pass has what was gathered for the forward pass.

    A unit is gathered after the operations that needed the unit before it.
    """
    with Perceptron(3, 2, mini_batches(2, 1)) as run:
        made = behind(run.chief.calls.fetches[1])
    gathers = [op for op in made if op.type == "CollectiveGather"]
    loss = next(op for op in made if op.type.startswith("SparseSoftmax"))
    forward = [op for op in gathers if op in behind([loss])]
    assert (len(forward), len(gathers)) == (4, 5)  # of the matrix whose input has ∇
    for op in forward:
        views, users = [*op.outputs], set()
        while views:
            for user in views.pop().consumers():
                if user in made and user.type in ("Reshape", "StridedSlice"):
                    views += user.outputs
                elif user in made:
                    users.add(user)
        assert users and users <= behind([loss]), users
    order = sorted(forward, key=lambda op: len(behind([op])))
    for before, after in itertools.pairwise(order):
        assert before in behind([after])


def layers(w, x):
    a, b, c, d = tf.split(w, [6, 2, 2, 2])
    return tf.reduce_sum((tf.nn.relu(x @ tf.reshape(a, [3, 2]) + b) * c + d) ** 2)


@tf.custom_gradient
def itself(w):
    return tf.reduce_sum(w**2) / 2, lambda above: w


CUT = {  # losses of twelve weights
    "split": layers,
    "slices": lambda w, x: tf.reduce_sum(w[:3] * x**3) + tf.norm(w[3:] + w[-1]),
    "a piece twice": lambda w, x: (
        tf.reduce_sum(w[:6] ** 3) + tf.reduce_sum(x * w[:6][:3] * w[6])
    ),
    "whole": lambda w, x: tf.reduce_sum((w - 1) ** 2 * x[0, 0]) + tf.norm(w),
    "of weights alone": lambda w, x: tf.nn.l2_loss(w),
    "its gradient is itself": lambda w, x: itself(tf.split(w, 2)[1]),
    "a part unused": lambda w, x: tf.reduce_sum(tf.split(w, 3)[1] * x[0, 1]),
}


@pytest.mark.parametrize("name", CUT)
def test_any_loss_in_units_takes_the_same_steps(name: str) -> None:
    """Stage 0 has no units; also on a worker that sleeps before its forward pass."""
    rng, found = np.random.default_rng(0), []
    batches, start = rng.normal(size=(2, 3, 12)), rng.normal(size=12)

    class Cut(Peers):
        def loss(self, index, usual):
            return lambda w, batch: CUT[name](w, tf.reshape(batch, [4, 3]))

    for flags in (["--stage=0"], ["--stage=3", "--slow_workers=0.001"]):
        with Cut(SHARDED, *flags, start=start, streams=batches.tolist()) as run:
            found.append(run.trace(3))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)


# oneDNN makes one operation of a Conv2D and its BiasAdd, and of a Pad (in the gradient
# of a slice) and the Conv2D after it (in that of a transposed convolution).
CONVOLUTIONS = """

def shapes_of(data):
    return [(3, 3, 1, 8), (8,), (3, 3, 4, 8), (4,), (256, 10), (10,)]


def model(parameters, images, training=False):
    w1, b1, w2, b2, w3, b3 = parameters
    images = tf.reshape(images, [-1, 8, 8, 1])
    maps = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, w1, 1, "SAME"), b1))
    shape = [tf.shape(images)[0], 10, 10, 4]
    maps = tf.nn.conv2d_transpose(maps, w2, shape, 1, "VALID")
    maps = tf.nn.relu(tf.nn.bias_add(tf.slice(maps, [0, 1, 1, 0], [-1, 8, 8, 4]), b2))
    return tf.reshape(maps, [-1, 256]) @ w3 + b3
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_convolutions_take_the_same_steps_in_units(tmp_path) -> None:
    """Stage 0 has no units. What oneDNN fuses must not wait for itself."""
    copy = copy_of(SHARDED, tmp_path)
    with (copy / "problem.py").open("a") as file:
        file.write(CONVOLUTIONS)
    found = []
    for stage in (0, 3, *[2] * launch.THOROUGH):
        logdir = tmp_path / str(stage)
        flags = ["--steps=6", f"--stage={stage}", f"--logdir={logdir}"]
        with run_sh(copy, *flags, TIMEOUT="120") as run:
            assert run.wait() == 0, run.output
        saved = tf.train.load_checkpoint(str(logdir / "model.ckpt-6"))
        found.append(saved.get_tensor("center"))
    np.testing.assert_allclose(found[1:], [found[0]] * len(found[1:]), atol=1e-5)


def test_who_is_told_to_end_has_lost_nobody(tmp_path) -> None:
    """The chief waits for the end of a round, to save. The next run goes on there."""
    copy, logdir = copy_of(SHARDED, tmp_path), tmp_path / "logdir"
    flags = ["--slow_workers=3", "--save_seconds=0.1", f"--logdir={logdir}"]
    with run_sh(copy, *flags) as run:
        wait_until(lambda: saved_step(logdir), 90, run)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 143, run.output
    assert "lost" not in run.output, run.output
    step = saved_step(logdir)
    with run_sh(copy, f"--steps={step + 9}", f"--logdir={logdir}") as run:
        assert run.wait() == 0, run.output
    assert f"after {step + 9} global steps, 9 of them" in run.output


def test_parts_are_saved_whole_and_resumed_by_another_number_and_stage(tmp_path):
    """Three workers in stage 3, two in stage 1, four in stage 2, one in stage 3."""
    sharded = importlib.import_module("cluster.sharded")
    streams = np.tile(mini_batches(1, 8)[:, None], (1, 12, 1, 1))  # alike for each
    path = str(tmp_path / "model")
    for number, (stage, workers) in enumerate([(3, 3), (1, 2), (2, 4), (3, 1)]):
        rows = streams[2 * number : 2 * number + 2, :workers].reshape(-1, 4, 4)
        options = dict(extra=lambda peer: tf.train.Saver())
        with Perceptron(stage, workers, rows, **options) as run:
            chief = run.chief
            saver = sharded.Saver(chief.extra, chief.center, chief.target)
            if number:
                saver.restore(chief.session, f"{path}-{2 * number}")
                chief.session.run(chief.open)
                run.at_once(lambda peer: peer.session.run(peer.broadcast))
                for peer in run.workers:
                    peer.session.run(peer.local)
                saver.restore_parts()
            for _ in range(2):
                pushes = run.at_once(lambda peer: peer.call())
            saver.save(chief.session, path, pushes[0][-1].step)
            found = pushes[0][-1].center
    expected = Perceptron.rule(streams[:, 0], 1, 8)
    np.testing.assert_allclose(found, expected[-1], atol=1e-6)
    saved = tf.train.load_checkpoint(f"{path}-8")
    shapes = saved.get_variable_to_shape_map()
    assert [shapes[name] for name in ("center", "m", "v")] == [[26]] * 3
    np.testing.assert_allclose(saved.get_tensor("center"), found)


@pytest.mark.quick
def test_parts_that_cannot_be_saved_leave_no_folder(tmp_path) -> None:
    """On a full disk each save fails, and would leave one."""
    sharded = importlib.import_module("cluster.sharded")

    class Full:
        def save(self, *_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        center = types.SimpleNamespace(shards={})
        sharded.Saver(Full(), center, "").save(None, str(tmp_path / "model"), 7)
    assert not list(tmp_path.iterdir())


def test_eleven_workers_have_their_places() -> None:
    """Worker 10 is not between 1 and 2: the weights come back where they were."""
    start, sign = np.arange(23.0), (-1.0) ** np.arange(23)
    streams = [[start + (k + 1) * sign] for k in range(11)]
    with Peers(SHARDED, "--stage=3", start=start, streams=streams) as run:
        pushes = run.at_once(lambda peer: peer.call())
    np.testing.assert_allclose(pushes[10][0].center, start + 0.1 * sign, rtol=1e-6)


# --- Identities -------------------------------------------------------------------

START = [0.5, -1.0, 2.0]


def test_a_window_of_one_is_the_ring() -> None:
    with Peers(LOCAL, "--window=1", start=START) as run:
        found = run.trace(4)
    with Peers(RING, start=START) as run:
        np.testing.assert_allclose(found, run.trace(4), rtol=1e-6)


def test_local_sgd_is_sagn_at_server_rate_eta_times_t() -> None:
    with Peers(LOCAL, "--window=4", start=START) as run:
        found = run.trace(3)
    flags = ["--window=4", "--server_learning_rate=0.4"]
    with harness.Run("SAGN", *flags, start=START) as run:
        expected = [[k.push() for k in run.workers][-1].center for _ in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_diloco_without_its_outer_optimizer_is_local_sgd(diloco_of_sgd) -> None:
    flags = ["--outer_learning_rate=1", "--momentum=0"]
    with Peers(DILOCO, *flags, start=START) as run:
        found = run.trace(4)
    with Peers(LOCAL, start=START) as run:
        np.testing.assert_allclose(found, run.trace(4), rtol=1e-5)


@pytest.mark.quick
def test_fragments_have_their_turns_and_one_is_diloco() -> None:
    """Three of five elements: of two each, a message of two, the last of one."""
    options = dict(start=[1.0, -2.0, 3.0, -4.0, 5.0])
    with Peers(DILOCO, "--window=6", "--fragments=3", **options) as run:
        found = [np.array(options["start"], np.float32), *run.trace(4)]
        inner = [rules.adamw(0.1, 0.0) for _ in STREAMS]
        start = np.array(options["start"])
        rule = rules.diloco(streams(*STREAMS), start, 4, 6, inner, 0.7, 0.9, 3)
        np.testing.assert_allclose(found[1:], rule, rtol=1e-4)
        pieces = run.summary()["bytes_pushed"]
        own = [peer.own("x") for peer in run.workers]
    moved = [np.flatnonzero(a != b).tolist() for a, b in itertools.pairwise(found)]
    assert moved == [[0, 1], [2, 3], [4], [0, 1]]
    assert (own[0][2:] != own[1][2:]).all()  # what has not had its turn is one's own
    np.testing.assert_array_equal(own[0][:2], own[1][:2])
    with Peers(DILOCO, "--window=6", **options) as run:
        run.trace(4)
        assert pieces * 5 == run.summary()["bytes_pushed"] * 2
        for peer in run.workers:
            np.testing.assert_array_equal(peer.own("x"), peer.now())


# --- Three rounds -----------------------------------------------------------------


class Layers(Peers):
    """Workers with a model of two layers."""

    def loss(self, index, usual):
        def loss(w, c):
            parts = zip(tf.split(w, [1, 2]), tf.split(c, [1, 2]), strict=True)
            return tf.add_n([usual(*part) for part in parts])

        return loss


def three_rounds(folder: str, count: int = 1, of: type = Peers) -> tuple[list, list]:
    """Returns the center after calls of `count` rounds, and what it is by the rule."""
    batches, w = streams(*STREAMS), np.array(START)
    flags = {
        LOCAL: ["--local_after=1"],
        DILOCO: ["--weight_decay=0.5"],
        SHARDED: ["--stage=1"],
    }
    with of(folder, *flags.get(folder, []), start=START, rounds=count) as run:
        made = [run.at_once(lambda peer: peer.call(count)) for _ in range(3 // count)]
    if folder == RING:
        expected = rules.synchronous_sgd(batches, w, 3, 0.1)
    elif folder == LARGE:
        expected = rules.large_minibatch(batches, w, 3, 0.1, 2, 2)
    elif folder == LOCAL:
        expected = rules.local_sgd(batches, w, 3, 2, 0.1, after=1)
    elif folder == DILOCO:
        inner = [rules.adamw(0.1, 0.5) for _ in STREAMS]
        expected = rules.diloco(batches, w, 3, 2, inner, 0.7, 0.9)
    elif folder == SHARDED:
        expected = rules.sharded(batches, w, 3, 0.1)
    return [pushes[0][-1].center for pushes in made], expected[count - 1 :: count]


@pytest.mark.quick
@pytest.mark.parametrize("folder", [LARGE, LOCAL, DILOCO, SHARDED])
@pytest.mark.parametrize("count", [1, 3])
def test_three_rounds_are_the_rule(folder: str, count: int) -> None:
    found, expected = three_rounds(folder, count)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("folder", [RING, LARGE])
def test_three_rounds_in_buckets_are_the_rule(folder: str, monkeypatch) -> None:
    """A model of two layers, whose gradients go round the ring one after the other."""

    monkeypatch.setattr(peer_harness.ring, "BUCKET", 1)
    found, expected = three_rounds(folder, of=Layers)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- Counters -------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("folder", SCHEMES)
@pytest.mark.parametrize("workers", [1, 3])
def test_counters(folder: str, workers: int) -> None:
    """Exact, and on the chief alone: P = 5, of which no three even pieces are made."""
    with Peers(folder, start=[1.0] * 5, streams=[[0.0]] * workers, rounds=3) as run:
        run.trace(2)
        done, args = run.summary(), run.chief.args
    assert done["global_steps"] == 6 and done["resumed_from"] == 0
    assert done["rounds_per_worker"] == dict.fromkeys(range(workers), 6)
    each = args.batch_size * getattr(args, "window", 1)
    assert done["examples"] == 6 * workers * each
    fragments = getattr(args, "fragments", 1)
    size = 4 * -(-5 // fragments)
    if folder == SHARDED:  # parts of one size, the last ones filled up
        size = 4 * workers * -(-5 // workers)
    assert done["bytes_pushed"] == done["bytes_pulled"] == 6 * 2 * (workers - 1) * size
    assert done["mean_staleness"] == 0 and 0 < done["seconds"] < 100


# --- Wrong flags -----------------------------------------------------------------

TASK = {"type": "worker", "index": 1}


def parse(capsys, monkeypatch, *flags: str, tf_config: dict | None = None):
    """Returns the flags, or the sentence with which they were refused."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if tf_config:
        monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    try:
        return load(RING).parse_args(list(flags))
    except SystemExit as error:
        assert error.code == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "Traceback" not in said
        return said


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--task_index is missing: task_index, worker_hosts are needed together"),
        (["--task_index=0"], "--worker_hosts is missing: task_index, worker_hosts are"),
        (
            ["--worker_hosts=a:1"],
            "--task_index is missing: task_index, worker_hosts are",
        ),
        (["--job_name=ps", "--task_index=0", "--worker_hosts=a:1"], "invalid choice"),
        (
            ["--ps_hosts=b:1", "--worker_hosts=a:1"],
            "unrecognized arguments: --ps_hosts",
        ),
    ],
)
def test_wrong_flags(flags, sentence, capsys, monkeypatch) -> None:
    assert sentence in parse(capsys, monkeypatch, *flags)


def test_tf_config(capsys, monkeypatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    args = parse(capsys, monkeypatch, tf_config={"cluster": cluster, "task": TASK})
    assert (args.task_index, args.worker_hosts) == (2, ["a:1", "b:1", "c:1"])
    assert (args.job_name, args.ps_hosts, args.address) == ("worker", [], "c:1")
    cluster["ps"] = ["d:1"]
    said = parse(capsys, monkeypatch, tf_config={"cluster": cluster, "task": TASK})
    assert "TF_CONFIG must look like" in said


# --- Real processes --------------------------------------------------------------


def check(folder: str, done: dict, workers: int, steps: int) -> None:
    """Asserts that a result's counters are exact."""
    flags = done["flags"]
    assert (done["scheme"], done["global_steps"]) == (folder, steps)
    assert (done["workers"], done["ps"]) == (workers, 0)
    assert set(done["rounds_per_worker"].values()) == {steps}
    each = flags["batch_size"] * flags.get("window", 1)
    assert done["examples"] == steps * workers * each
    assert len(done["loss_per_worker"]) == workers


@pytest.mark.parametrize(
    ("folder", "killed"),
    launch.some([(DILOCO, 1)], [(RING, 1), (RING, 0)]),
)
def test_a_ring_that_breaks_is_closed_again(folder, killed, tmp_path) -> None:
    """Started again, all go on from the checkpoint: exact counters, nothing left."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "a logdir"
    before, window = launch.tree(copy), 5 if folder == DILOCO else 1
    command = ["--steps", "400", "--slow_workers", str(0.01 / window)]
    command += ["--save_seconds", "0.5", *["--window=5"] * (window > 1)]
    with run_sh(copy, *command, LOGDIR=str(logdir), MAX_RESTARTS="1") as run:
        wait_until(lambda: saved_step(logdir) > 0, 90, run)
        run.task("worker", killed).kill()
        run.wait_for(f"worker {killed} ended with status 137; restart 1 of 1")
        # It may be there again before the other one looks which it was.
        run.wait_for(", and a ring cannot go on without it")
        run.wait_for(": begins again")
        assert run.wait() == 0, run.output
        run.nothing_left()
    done = result(logdir)
    resumed = [int(x.split()[-1]) for x in run.lines if "resumes from" in x]
    assert [done["resumed_from"]] == resumed and 0 < resumed[0] < 400
    check(folder, done, 2, 400)
    assert done["test_accuracy"] >= 0.9
    assert launch.tree(copy) == before
    for log in logdir.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name


def test_by_hand_lost_workers(tmp_path) -> None:
    """One is killed, or silent: the others wait for it for --patience, and say so."""
    copy = copy_of(RING, tmp_path)
    flags = [*ENDLESS, "--patience", "4", "--logdir", str(tmp_path / "logdir")]
    for kind, status in ((signal.SIGKILL, 138), (signal.SIGSTOP, 138)):
        with launch.WorkersByHand(copy, *flags, workers=3) as hand:
            tasks = [hand.start(k) for k in range(3)]
            for task in tasks:
                task.wait_for("  loss ")
            cause = time.monotonic()
            tasks[1].process.send_signal(kind)
            for task in (tasks[0], tasks[2]):
                assert task.wait(40) == status, task.output
            assert time.monotonic() - cause < 3 * WITHIN
            where = f"worker 1 at {hand.workers[1]}"
            if kind == signal.SIGKILL:
                said = tasks[0].output + tasks[2].output
                assert f"lost {where}, and a ring cannot go on" in said
                assert f"no answer in 4 s from {where}" in tasks[0].lines[-1]
            else:
                assert f"s from {where}" in tasks[0].lines[-1]
                assert ": no answer in " in tasks[2].lines[-1], tasks[2].output
            tasks[1].process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("killed", [0, 1])
def test_by_hand_one_is_started_again_before_all_are_there(killed, tmp_path) -> None:
    """The board knows two processes of it: the chief begins again, then the others."""
    copy = copy_of(RING, tmp_path)
    flags = ["--steps=20", "--patience=20", f"--logdir={tmp_path / 'logdir'}"]
    with launch.WorkersByHand(copy, *flags, workers=3) as hand:
        tasks = [hand.start(k) for k in range(2)]
        for task in tasks:
            task.wait_for("still waiting for worker 2 at")
        tasks[killed].process.kill()
        tasks[killed].process.wait()
        tasks[killed] = hand.start(killed)
        tasks[killed].wait_for("still waiting for")
        tasks.append(hand.start(2))
        for task in tasks:
            assert task.wait(60) == 0, task.output


@pytest.mark.parametrize(
    ("busy", "back"), launch.some([(0, True), (1, True)], [(0, False), (1, False)])
)
def test_a_worker_that_dies_while_another_is_busy(busy, back, tmp_path) -> None:
    """The other begins again at once, and not when its round of 1,000 s is over.

    Also if the lost one is back so soon that its address has always answered.
    """
    copy, logdir = copy_of(RING, tmp_path), tmp_path / "logdir"
    slow = "1000,0" if busy == 0 else "0,1000"
    flags = [*ENDLESS, "--slow_workers", slow, "--logdir", str(logdir)]
    with launch.WorkersByHand(copy, *flags) as hand:
        tasks = [hand.start(k) for k in range(2)]
        tasks[0].wait_for("variable")
        time.sleep(10)  # both have begun their first round
        dead = tasks[1 - busy].process
        dead.kill()
        dead.wait()
        if back:
            hand.start(1 - busy)
        tasks[busy].wait_for(", and a ring cannot go on without it: begins again", 20)


def test_ctrl_c_busy_port_and_a_ps_that_is_not_wanted(tmp_path) -> None:
    copy = copy_of(RING, tmp_path)
    with run_sh(copy, NUM_PS="1") as run:
        assert run.wait(20) == 2
    assert "unrecognized arguments: --ps_hosts" in run.lines[-1]
    base = launch.free_ports(3)
    with run_sh(copy, *ENDLESS, BASE_PORT=str(base), NUM_WORKERS="3") as run:
        run.wait_for("  loss ")
        with run_sh(copy, BASE_PORT=str(base)) as other:
            assert other.wait(20) == 2
        assert f"port {base} is in use" in other.output
        cause = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.wait(30) == 130, run.output
        assert time.monotonic() - cause < WITHIN
        run.nothing_left()
    assert "Traceback" not in run.output


def test_tf_config_and_another_number_of_workers(tmp_path) -> None:
    """Three by TF_CONFIG, two after them by flags, and one that is of another run."""
    copy, logdir = copy_of(RING, tmp_path), tmp_path / "logdir"
    flags = ["--logdir", str(logdir)]
    with launch.WorkersByHand(copy, *flags, "--steps", "200", workers=3) as hand:
        cluster = {"chief": hand.workers[:1], "worker": hand.workers[1:]}
        tasks = []
        for job, index in (("chief", 0), ("worker", 0), ("worker", 1)):
            task = {"type": job, "index": index}
            config = json.dumps({"cluster": cluster, "task": task})
            tasks.append(launch.run_task(copy, *hand.flags, TF_CONFIG=config))
        hand.started += tasks
        for task in tasks:
            assert task.wait(120) == 0, task.output
    check(RING, result(logdir), 3, 200)
    with launch.WorkersByHand(copy, *flags, "--steps", "300") as hand:
        chief = hand.start(0)
        other = hand.start(1, "--learning_rate=0.2")
        assert other.wait(90) == 2, other.output
        assert "is not of the run that is there: --learning_rate" in other.output
        right = hand.start(1)
        assert right.wait(120) == chief.wait(120) == 0, chief.output
    done = result(logdir)
    assert "resumes from global step 200" in chief.output
    assert done["rounds_per_worker"] == {"0": 300, "1": 300, "2": 200}
    assert done["resumed_from"] == 200 and done["test_accuracy"] > 0.9


@pytest.mark.starts
def test_local_sgd_as_it_comes(tmp_path) -> None:
    """Ends by itself, trains, sends an eighth of what a ring sends for each step."""
    copy, logdir = copy_of(LOCAL, tmp_path), tmp_path / "logdir"
    with run_sh(copy, "--steps", "200", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    done = result(logdir)
    check(LOCAL, done, 2, 200)
    assert done["bytes_pushed"] == 200 * 2 * 4 * 4810
    assert done["test_accuracy"] >= 0.93


def mean_of_two(steps: int) -> list[float]:
    """Returns worker 0's losses of w ← w − η (1/2) ∑ g_k, all in one process."""
    import problem

    data = problem.load("digits", 2)
    with tf.Graph().as_default(), tf.Session() as session:
        parts = [problem.build(data, 32, 0, k, 2) for k in range(2)]
        w = tf.get_variable("w", initializer=parts[0].start)
        losses = [part.loss(w, part.batch()) for part in parts]
        gradients = [tf.gradients(loss, w)[0] for loss in losses]
        with tf.control_dependencies([*losses, *gradients]):
            step = w.assign_sub(0.1 * tf.add_n(gradients) / 2)
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())
        return [float(session.run([losses[0], step])[0]) for _ in range(steps)]


def test_multi_worker_mirrored_makes_the_same_steps(tmp_path) -> None:
    """Its losses are those of the rule on the mini-batches of `problem.py`."""
    copy = copy_of("TensorFlow-2", tmp_path)
    script = copy / "multi_worker_mirrored.py"
    base = launch.free_ports(2)
    hosts = f"--worker_hosts=localhost:{base},localhost:{base + 1}"
    flags = [hosts, "--steps=45", "--logdir", str(tmp_path / "logdir")]
    with contextlib.ExitStack() as stack:
        tasks = []
        for k in range(2):
            command = [sys.executable, str(script), f"--task_index={k}", *flags]
            tasks.append(stack.enter_context(launch.Launch(command, copy)))
        expected = mean_of_two(45)
        for task in tasks:
            assert task.wait(120) == 0, task.output
    lines = [line for line in tasks[0].lines if line.startswith("step ")]
    shown = [f"step {t}/45  loss {expected[t - 1]:.4f}" for t in (10, 20, 30, 40)]
    found, wanted = ([float(x.split()[-1]) for x in text] for text in (lines, shown))
    np.testing.assert_allclose(found, wanted, atol=2e-4)
    assert " after 45 steps in " in tasks[0].lines[-1]


def test_a_failure_of_one_is_told_to_all(tmp_path) -> None:
    copy = copy_of(RING, tmp_path)
    with run_sh(copy, "--learning_rate", "1e30", "--steps", "1000") as run:
        assert run.wait() == 1, run.output
        run.nothing_left()
    assert "training diverged" in run.output and "Traceback" not in run.output
