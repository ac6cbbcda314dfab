"""Decoupled-DiLoCo: answers, merges and their weights, and learners that go.

Through the script's own functions, on servers in this process (`harness`). The inner
optimizer is plain SGD here, whose numbers can be followed by hand. A push is a round of
a learner; its pull gives it what was merged since its last.
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
from harness import STREAMS, Run, rounds, tf
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import streams
from test_conformance import NUM_PS

FOLDER = "Decoupled-DiLoCo"
TWO = ["--window=2", "--quorum=2"]
GONE = 1000.0  # seconds that nobody has heard of a learner


def sgd(args, x, m, v, t, g):
    """An inner optimizer in the place of `adamw`."""
    return x - args.learning_rate * g, m, v, t


def mean(d, a):
    """The weighted mean, in the place of `rules.radial_directional`."""
    return np.average(d, axis=0, weights=a)


@pytest.fixture(autouse=True)
def sgd_inside(monkeypatch) -> types.ModuleType:
    """Decoupled-DiLoCo with plain SGD inside."""
    module = harness.instead.get(FOLDER) or launch.load(FOLDER)
    monkeypatch.setattr(module, "adamw", sgd)
    monkeypatch.setitem(harness.instead, FOLDER, module)
    # On a busy machine a push of a test may take longer than the 10 s of a run.
    monkeypatch.setattr("cluster.syncer.GONE", GONE / 2)
    return module


class Unequal(Run):
    """A run whose learners have flags of their own."""

    def __init__(self, *flags: str, own: list, **options: object) -> None:
        self.own = own
        super().__init__(FOLDER, *flags, **options)

    def args(self, index: int) -> types.SimpleNamespace:
        shared, self.flags = self.flags, [*self.flags, *self.own[index]]
        try:
            return super().args(index)
        finally:
            self.flags = shared


def merged(run: Run, turns: str) -> list:
    """Learners make a round each, in turn; returns w after each merge."""
    found, step = [], run.chief.step()
    for k in turns:
        push = run.workers["ABCD".index(k)].push()
        assert push.became == rounds.APPLIED
        if push.step > step + len(found):
            found.append(push.center)
        assert push.step == run.chief.step() == step + len(found)
    return found


def near(found: list, expected: list) -> None:
    expected = [np.full(len(w), e) for w, e in zip(found, expected, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def put(run: Run, **values: object) -> None:
    """Sets what the syncer has on ps 0."""
    with run.chief.graph.as_default():
        for name, value in values.items():
            run.chief.session.run(run.chief.temporary(name).assign(value).op)


def begin_again(learner: harness.Worker) -> None:
    """Loses what is the learner's own, as its process does that ends."""
    with learner.graph.as_default():
        learner.session.run(tf.local_variables_initializer())


def of_syncer(run: Run, name: str) -> np.ndarray:
    """Returns what the syncer has."""
    return run.chief.session.run(run.chief.temporary(name))


# --- Traces, by hand --------------------------------------------------------------

ROUND = 1.0241  # of DiLoCo, two workers, from 0


@NUM_PS
def test_trace_of_a_learner_that_is_twice_as_fast(num_ps: int) -> None:
    """a = (2, 1); then B is gone, and K is what is there; then it is back."""
    options = dict(own=[["--window=2"], ["--window=1"]], num_ps=num_ps)
    with Unequal("--quorum=2", start=[0.0] * 3, **options) as run:
        found = merged(run, "AAB")
        put(run, heard=of_syncer(run, "heard") - [0, GONE])
        found += merged(run, "AA")
        back = run.workers[1].push()  # a round that brings B what it has missed
        assert back.step == 2 and run.workers[1].own("steps").tolist() == [1]
        found += merged(run, "AA")
        table = run.counters()
    near(found, [0.5674666667, 1.18468784, 1.966444417])
    assert table["updates"] == [2, 1] and table["rounds"] == [6, 2]


@NUM_PS
@pytest.mark.parametrize(
    ("flags", "turns", "trace"),
    [
        ([], "AABB" * 3, [ROUND, 2.22599993, 3.4067844547]),
        (["--overlap=1"], "AB" * 8, [ROUND, 1.9894847, 3.0082477649]),
        (["--overlap=1", "--mix=0.5"], "AB" * 8, [ROUND, 1.97087135, 2.7424132342]),
    ],
)
def test_trace_of_equal_learners(flags, turns, trace, num_ps: int) -> None:
    """K = N: the numbers of DiLoCo, and those of its overlap."""
    with Run(FOLDER, *TWO, *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        near(merged(run, turns), trace)


@pytest.mark.quick
def test_trace_of_a_learner_that_misses_a_merge() -> None:
    """d_B = −1.0574, from the w of now; from B's own start it would be −2.0815."""
    with Run(FOLDER, *TWO) as run:
        b = run.workers[1]
        found = merged(run, "AAB")
        b.pull()
        missed = {**b.held}
        found += merged(run, "BAA")
        for _ in range(2):
            b.held = {**missed}
            found += merged(run, "B")
        # Two merges were made, of which B knows none.
        assert b.own("seen") == 0 and b.own("steps").tolist() == [4]
    near(found, [ROUND, 2.4848879767])


@NUM_PS
def test_a_pull_has_every_merge_that_it_counts(num_ps: int, monkeypatch) -> None:
    """A's merge is made while B pulls, before B has read t on ps 0."""
    begun, goes = threading.Event(), threading.Event()
    read_step = harness.stats.Stats.read_step

    def hold():
        begun.set()
        goes.wait(harness.LIMIT)

    def late(stats, after=()):
        if stats.me == 1:
            with tf.device(stats.device), tf.control_dependencies([*after]):
                after = [tf.py_func(hold, [], [])]
        return read_step(stats, after)

    monkeypatch.setattr(harness.stats.Stats, "read_step", late)
    with Run(FOLDER, start=[0.0] * 3, num_ps=num_ps) as run:
        a, b = run.workers
        round_of_b = threading.Thread(target=b.push)
        round_of_b.start()
        assert begun.wait(harness.LIMIT)
        time.sleep(0.3)  # a w that does not wait for t is read meanwhile
        made = a.push()
        goes.set()
        round_of_b.join()
        assert made.step == b.own("seen") == 1
        x = made.center + 0.1 * (5.0 - made.center)
        np.testing.assert_allclose(b.own("x"), x, rtol=1e-6)


# --- The parts --------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("d", "a", "expected"),
    [
        ([[3, 0], [0, 4]], [1, 1], [2.4748737342, 2.4748737342]),
        ([[3, 0], [0, 4]], [4, 1], [3.1044560005, 0.7761140001]),
        ([[3, 0], [7, 7], [0, 4]], [4, 0, 1], [3.1044560005, 0.7761140001]),
        ([[3, -4]], [7], [3, -4]),
        ([[3, -4], [6, -8]], [1, 3], [5.25, -7]),  # parallel: the weighted mean
        ([[3, 0], [0, 0]], [1, 1], [1.5, 0]),
        ([[3, 0], [-5, 0]], [1, 1], [-1, 0]),  # directions that cancel
    ],
)
def test_the_mean_length_in_the_mean_direction(sgd_inside, d, a, expected) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        for average, wanted in (("rda", expected), ("mean", mean(d, a))):
            args = types.SimpleNamespace(average=average)
            found = sgd_inside.average(args, np.float32(d), np.float32(a))
            np.testing.assert_allclose(session.run(found), wanted, rtol=1e-6)
    known = [one for one, k in zip(np.array(d, float), a, strict=True) if k]
    found = rules.radial_directional(known, [k for k in a if k])
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize(("step", "seconds"), [(1.0, 0.8), (0.3, 0.0), (2.0, 2.4)])
def test_the_grace_is_a_part_of_what_is_left_of_o_steps(
    sgd_inside, step, seconds
) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        args, some = types.SimpleNamespace(grace=0.8, overlap=2), tf.constant(0.5)
        found = session.run(sgd_inside.grace(args, tf.constant(step), some, some))
    assert found == pytest.approx(seconds)


@pytest.mark.quick
def test_the_weight_of_an_answer_is_tokens_squared_by_steps() -> None:
    """256 tokens in 8 steps; 64 in 2, of 32 each, and of 64 in one."""
    own = [["--window=8"], ["--window=2"], ["--window=1", "--batch_size=64"]]
    with Unequal("--quorum=4", own=own + [[]], streams=[[1.0]] * 4) as run:
        assert merged(run, "AAAAAAAABBC") == []
        assert of_syncer(run, "weights").tolist() == [8192, 2048, 4096, 0]


# --- Any turns, any flags ---------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("fragments", "o", "alpha"), [(1, 0, 0), (3, 0, 0), (2, 1, 0.5), (1, 3, 0.25)]
)
def test_equal_learners_are_streaming_diloco(fragments, o, alpha) -> None:
    """K = N, turn by turn, averaged: DiLoCo with --fragments, --overlap and --mix."""
    start, window = np.array([0.5, -1.0, 2.0, 0.0, 3.0]), 6
    expected = rules.diloco(
        streams(*STREAMS),
        start,
        5,
        window,
        [lambda x, g: x - 0.1 * g] * 2,
        *(0.7, 0.9, fragments, o, alpha),
    )
    flags = [f"--window={window}", f"--fragments={fragments}", "--quorum=2"]
    flags += [f"--overlap={o}", f"--mix={alpha}", "--average=mean"]
    every = window // fragments
    turns = "AB" * 40 if o else ("A" * every + "B" * every) * 5
    with Run(FOLDER, *flags, start=start) as run:
        found = merged(run, turns)[:5]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.quick
def test_without_outer_optimizer_it_is_local_sgd() -> None:
    expected = rules.local_sgd(streams(*STREAMS), np.zeros(1), 3, 2, 0.1)
    flags = ["--outer_learning_rate=1", "--momentum=0"]
    with Run(FOLDER, *TWO, *flags) as run:
        np.testing.assert_allclose(merged(run, "AABB" * 3), expected, rtol=1e-6)


@given(
    turns=st.text("ABC", min_size=8, max_size=40),
    windows=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    sizes=st.permutations([8, 16, 32]),
    k_of_n=st.integers(1, 3),
    shape=st.sampled_from([(1, 0), (2, 0), (3, 0), (1, 1), (2, 2)]),
    alpha=st.sampled_from([0.0, 0.5]),
    way=st.sampled_from(["rda", "mean"]),
    mu=st.sampled_from([0.0, 0.9]),
)
@settings(max_examples=launch.thorough(6, 60), deadline=None)
def test_any_turns_are_the_rule(
    turns, windows, sizes, k_of_n, shape, alpha, way, mu
) -> None:
    """Three learners, some slow, with mini-batches that are not alike."""
    (fragments, o), start = shape, np.array([0.5, -1.0, 2.0, 0.0])
    of = [[[1.0, 5, -2, 0], [3.0, 0, 1, 1]], [[5.0, 7, 0, 2]], [[-4.0, 1, 1, 8]]]
    average = rules.radial_directional if way == "rda" else mean
    windows = [n * max(1, o) for n in windows]
    inner = [lambda x, g: x - 0.1 * g] * 3
    pieces = fragments, o, alpha, average
    rule = rules.decoupled(
        ["ABC".index(k) for k in turns],
        *(streams(*of), start, windows, sizes, inner, 0.5, mu, k_of_n, *pieces),
    )
    flags = [f"--quorum={k_of_n}", f"--fragments={fragments}", f"--overlap={o}"]
    flags += [f"--mix={alpha}", f"--average={way}", f"--momentum={mu}", "--grace=0"]
    own = [
        [f"--window={n * fragments}", f"--batch_size={size}"]
        for n, size in zip(windows, sizes, strict=True)
    ]
    flags += ["--outer_learning_rate=0.5"]
    # hypothesis calls this function often, and a fixture once.
    with Unequal(*flags, own=own, start=start, streams=of) as run:
        for k, expected in zip(turns, rule, strict=True):
            push = run.workers["ABC".index(k)].push()
            np.testing.assert_allclose(push.center, expected, rtol=1e-4, atol=1e-4)


# --- Grace, and who is gone -------------------------------------------------------


@pytest.mark.parametrize(("quorum", "sync"), [(0.0, 0.0), (300.0, 100.0)])
def test_a_merge_waits_for_a_grace(quorum: float, sync: float) -> None:
    """800 s if B's steps take 1,000; less what the quorum and the last merge took."""
    with Run(FOLDER, "--window=1", "--overlap=1") as run:
        merged(run, "AB")
        put(run, seconds=[0, 1000.0])
        assert merged(run, "A") == []
        _, kth, *_ = of_syncer(run, "moments")
        grace = 0.8 * (1000 - quorum - sync)
        for since, merges in ((grace - 60, 0), (grace + 1, 1)):
            put(run, moments=[kth - since - quorum, kth - since, 0.0, sync])
            assert len(merged(run, "A")) == merges
        first, kth, claimed, sync = of_syncer(run, "moments")
        assert first == kth == claimed == 0 and 0 < sync < 20


@pytest.mark.quick
def test_a_merge_does_not_wait_when_all_have_answered() -> None:
    with Run(FOLDER, "--window=1", "--overlap=1") as run:
        assert merged(run, "AB") == []
        put(run, seconds=[0, 1000.0])
        assert merged(run, "A") == []
        put(run, seconds=[1000.0, 0])
        assert len(merged(run, "B")) == 1


def test_a_merge_that_its_learner_left_is_made_by_another() -> None:
    """B has claimed it, and ps 1 has made it: A makes the rest, 10 s later."""
    with Run(FOLDER, *TWO, start=[0.0] * 2, num_ps=2) as run:
        assert merged(run, "AAB") == []
        put(run, weights=[128.0, 64.0], moments=[1.0, 1.0, 2e9 + GONE, 0.0], pushes_1=1)
        a = [run.workers[0].push() for _ in range(2)]
        assert [push[:3] for push in a] == [(0, 0, rounds.APPLIED), (0, 0, rounds.LATE)]
        put(run, moments=[1.0, 1.0, 1.0, 0.0])
        (center,) = merged(run, "A")
        assert center[0] != 0 and center[1] == 0
        assert of_syncer(run, "pushes") == of_syncer(run, "pushes_1") == 1
        assert of_syncer(run, "weights").tolist() == [0, 0]


def test_a_learner_that_comes_back_gets_all_fragments() -> None:
    """Its counts are zero, and nothing of its old weights is in a later merge."""
    flags = ["--window=2", "--fragments=2", "--quorum=1"]
    with Run(FOLDER, *flags, start=[0.0] * 4) as run:
        merged(run, "BBAAA")
        b = run.workers[1]
        begin_again(b)
        before, center = run.counters()["pulled"][1], run.chief.now()
        b.push()
        assert run.counters()["pulled"][1] == before + 4 * 4
        x = center + 0.1 * (5.0 - center)
        np.testing.assert_allclose(b.own("x"), x, rtol=1e-6)
        assert b.own("steps").tolist() == [1, 1]


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_checkpoint_has_the_momentum_and_whose_turn_it_is(num_ps, tmp_path) -> None:
    """Taken up by other ps, too; learners begin with w, and with counts of zero."""
    # Each ps cuts its own piece of w into fragments.
    flags, options = [*TWO, f"--fragments={3 - num_ps}"], dict(start=[0.0] * 4)
    with Run(FOLDER, *flags, **options) as run:
        merged(run, "AB" * 8)
        path = run.chief.saver.save(run.chief.session, str(tmp_path / "model"))
        for learner in run.workers:
            begin_again(learner)
        expected = merged(run, "ABABAB")
    with Run(FOLDER, *flags, **options, num_ps=num_ps, restore=path) as run:
        np.testing.assert_allclose(merged(run, "ABABAB"), expected, rtol=1e-5)


@NUM_PS
@pytest.mark.parametrize("flags", [[], ["--quorum=2"], ["--overlap=2", "--grace=1"]])
def test_counters_of_learners_at_once(flags: list, num_ps: int) -> None:
    """Four of them: each merge is made once, and each round is counted as told."""
    steps = 60
    flags = ["--window=4", "--fragments=2", f"--steps={steps}", *flags]
    options = dict(start=[0.0] * 5, streams=[[1.0, 3.0]] * 4, rounds=3, num_ps=num_ps)
    with Run(FOLDER, *flags, **options) as run:
        made = run.at_once(lambda worker: worker.to_the_end([1, 3]))
        table, count = run.counters(), 2 if "--overlap=2" in flags else 1
        assert run.chief.step() == sum(table["updates"]) == steps
        assert np.isfinite(run.chief.now()).all()
    told = [[p for p in mine if p.became != rounds.OVER] for mine in made]
    assert table["rounds"] == [len(mine) for mine in told]
    assert table["examples"] == [32 * count * n for n in table["rounds"]]
    late = [sum(p.became == rounds.LATE for p in mine) for mine in told]
    assert table["dropped"] == late
    assert max(p.step for p in itertools.chain(*told)) == steps
