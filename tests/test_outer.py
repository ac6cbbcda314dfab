"""Async-DiLoCo: the outer optimizer on the ps, push by push, and windows by speed.

Through the script's own functions, on servers in this process (`harness`). The inner
optimizer is plain SGD here, whose numbers can be followed by hand; rounds of AdamW are
in test_rounds.py.
"""

from __future__ import annotations

import types

import harness
import launch
import numpy as np
import pytest
import rules
from harness import STREAMS, Run, in_turn, rounds, schedule_s, tf
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import streams
from test_conformance import NUM_PS, TRACES, cases, same

FOLDER = "Async-DiLoCo"
FOUR = schedule_s(4)
STALE = [0, 1, 1, 1]


def sgd(args, x, m, v, t, g):
    """An inner optimizer in the place of `adamw`."""
    return x - args.learning_rate * g, m, v, t


@pytest.fixture(autouse=True)
def sgd_inside(monkeypatch) -> types.ModuleType:
    """Async-DiLoCo with plain SGD inside."""
    module = harness.instead.get(FOLDER) or launch.load(FOLDER)
    monkeypatch.setattr(module, "adamw", sgd)
    monkeypatch.setitem(harness.instead, FOLDER, module)
    return module


def by_rule(schedule, windows=(2, 2), eta=0.1, start=0.0, of=STREAMS, **outer) -> list:
    """Returns (staleness, center) after each push."""
    inner = [lambda x, g: x - eta * g] * len(of)
    parsed = harness.parse(schedule)
    return rules.async_diloco(parsed, streams(*of), start, windows, inner, **outer)


# --- Traces, by hand --------------------------------------------------------------

ROUND = 1.0241  # of DiLoCo, two workers, from 0


@NUM_PS
@pytest.mark.parametrize(
    ("flags", "trace"),
    [
        ([], [0.1365, ROUND, 1.15152275, 2.33814819]),
        (["--delay=2"], [0.1365, ROUND, 1.15152275, 2.33814819]),
        (["--spread=0.25"], [0.1365, 0.902825, 1.15152275, 2.1385996866]),
        (["--outer=nesterov"], [0.5187, 2.26933, 3.50802151, 5.395272568]),
        (["--delay=1"], [0.5187, 2.26933, 3.50802151, 5.395272568]),
    ],
)
def test_trace_of_the_outer_optimizer(flags: list, trace: list, num_ps: int) -> None:
    """T = 2, d = −0.39, −1.15, ..; with N = 2 the second push has 0.9 · 0.77 too."""
    with Run(FOLDER, *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        same(run.play(FOUR), list(zip(STALE, trace, strict=True)))


@pytest.mark.quick
def test_trace_of_windows_by_speed() -> None:
    """B is twice as fast as A: T = 4 for B, 2 for A; d = −0.39, −2.0815, .."""
    with Run(FOLDER, "--adaptive_window", "--window=4", start=[0.0] * 3) as run:
        with run.chief.graph.as_default():
            set_speeds = run.chief.temporary("speeds").assign([1.0, 2.0]).op
        made = []
        for verb, k in harness.parse(FOUR):
            run.chief.session.run(set_speeds)
            if verb == "pull":
                run.workers[k].pull()
            else:
                made.append(run.workers[k].push())
        examples = run.counters()["examples"]
    trace = [0.1365, 1.6435475, 1.77097025, 3.5946498448]
    same(made, list(zip(STALE, trace, strict=True)))
    assert examples == [2 * 2 * 32, 2 * 4 * 32]


# --- Identities -------------------------------------------------------------------


@pytest.mark.quick
def test_n_pushes_from_one_w_are_a_round_of_diloco() -> None:
    """Whoever comes last; and the next N pushes are the next round, with its m."""
    expected = rules.diloco(
        streams(*STREAMS), np.zeros(1), 3, 2, [lambda x, g: x - 0.1 * g] * 2, 0.7, 0.9
    )
    with Run(FOLDER) as run:
        turns = "push B, push A", "push A, push B", "push B, push A"
        for turn, w in zip(turns, expected, strict=True):
            *_, last = run.play(f"pull A, pull B, {turn}")
            np.testing.assert_allclose(last.center, w, rtol=1e-5)
    assert expected[0] == pytest.approx(ROUND)


@pytest.mark.parametrize(
    "flags",
    [
        ["--outer=sgd", "--outer_learning_rate=1"],
        ["--momentum=0", "--outer_learning_rate=2"],
        ["--momentum=0", "--outer_learning_rate=6", "--delay=6"],
    ],
)
def test_without_momentum_a_window_of_one_is_hogwild(flags: list) -> None:
    """A push is η g; delayed Nesterov divides it by N."""
    with Run(FOLDER, "--window=1", *flags) as run:
        played = run.play(schedule_s(6))
    stale = [0, 1, 1, 1, 1, 1]
    same(played, list(zip(stale, TRACES["HogWild"], strict=True)))


@given(
    case=cases(),
    beta=st.sampled_from([0.0, 0.5, 0.9]),
    delay=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.4, 1.0]),
)
@settings(max_examples=launch.thorough(3, 30), deadline=None)
def test_any_run_is_algorithm_3(case, beta: float, delay: int, share: float) -> None:
    spread = share / delay if delay > 1 else 0.0
    outer = dict(epsilon=case.gamma, beta=beta, n=delay, c=spread)
    windows = [case.window] * len(case.streams)
    start = np.array(case.start)
    expected = by_rule(case.schedule, windows, case.eta, start, case.streams, **outer)
    flags = [f"--window={case.window}", f"--learning_rate={case.eta}"]
    flags += [f"--outer_learning_rate={case.gamma}", f"--momentum={beta}"]
    flags += [f"--delay={delay}", f"--spread={spread}"]
    options = dict(start=case.start, streams=case.streams, num_ps=case.num_ps)
    # hypothesis calls this function often, and a fixture once.
    with Run(FOLDER, *flags, **options) as run:
        scale = max([10.0, *(float(np.abs(w).max()) for _, w in expected)])
        same(run.play(case.schedule), expected, 2e-5, scale)


# --- What else the ps keeps -------------------------------------------------------


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_checkpoint_has_the_sum_the_momentum_and_the_count(num_ps, tmp_path) -> None:
    """Saved in the middle of N pushes, with m and D; taken up by other ps, too."""
    options, before, after = dict(start=[0.0] * 4), in_turn(7), in_turn(5, "BA")
    outer = dict(epsilon=0.7, beta=0.9, n=3)
    expected = by_rule(f"{before}, {after}", **outer)[7:]
    flags = ["--delay=3"]
    with Run(FOLDER, *flags, **options) as run:
        run.play(before)
        path = run.chief.saver.save(run.chief.session, str(tmp_path / "model"))
        run.play(in_turn(1))
    # Worker A has had four mini-batches twice over, B three.
    again = dict(streams=[STREAMS[0], STREAMS[1]], num_ps=num_ps, restore=path)
    with Run(FOLDER, *flags, **options, **again) as run:
        made = run.play(after)
    for push, (_, w) in zip(made, expected, strict=True):
        np.testing.assert_allclose(push.center, [w] * 4, rtol=1e-5)


@NUM_PS
def test_no_push_is_lost_between_two_workers(num_ps: int) -> None:
    """Steps of one from both at once: w, m and D are what one after the other makes."""
    elements, steps, n = 50_000, 42, 4

    def ones(index, usual):
        return lambda w, c: tf.reduce_sum(w + 0 * c)

    flags = ["--window=1", f"--steps={steps}", f"--delay={n}", "--learning_rate=1"]
    options = dict(start=np.zeros(elements), num_ps=num_ps, loss=ones, rounds=3)
    with Run(FOLDER, *flags, **options) as run:
        run.at_once(harness.Worker.to_the_end)
        center = run.chief.now()
        names = [f"outer/part_{i}" for i in range(num_ps)]
        parts = [run.chief.variables[name].read_value() for name in names]
        total, m = np.concatenate(run.chief.session.run(parts), axis=1)
    w, momentum = 0.0, 0.0
    for t in range(1, steps + 1):
        momentum = 0.9 * momentum + 1 if t % n == 0 else momentum
        w -= 0.7 * ((0.9 * momentum if t % n == 0 else 0) + 1 / n)
    np.testing.assert_allclose(center, np.full(elements, w), rtol=1e-5)
    np.testing.assert_allclose(m, np.full(elements, momentum), rtol=1e-5)
    np.testing.assert_array_equal(total, np.full(elements, steps % n))


# --- Windows by speed -------------------------------------------------------------


def test_a_slow_worker_takes_fewer_steps(monkeypatch) -> None:
    """11 and 25 s a step: T = 5, and ⌊5 · 11 / 25⌋ = 2 from the second window on.

    By a clock that only steps and messages move. What a worker waits is not its speed.
    """
    now, pull = [0.0], rounds.pull

    def later(seconds):
        def move(x):
            now[0] += seconds
            return x

        return move

    def by_clock():
        return tf.py_func(lambda: np.float64(now[0]), [], tf.float64)

    def late(center, after):
        pulled = pull(center, after)
        moved = tf.py_func(later(100.0), [pulled], tf.float32)
        return tf.ensure_shape(moved, pulled.shape)

    def slow(index, usual):
        def loss(w, c):
            moved = tf.py_func(later((11.0, 25.0)[index]), [w], tf.float32)
            with tf.control_dependencies([moved]):
                return usual(tf.identity(w), c)

        return loss

    monkeypatch.setattr(tf, "timestamp", by_clock)
    monkeypatch.setattr(rounds, "pull", late)
    with Run(FOLDER, "--adaptive_window", "--window=5", loss=slow) as run:
        a, b = run.workers
        taken = []
        for worker in (a, b, a, b, b, a):
            before = sum(run.counters()["examples"])
            assert worker.push().became == rounds.APPLIED
            taken.append((sum(run.counters()["examples"]) - before) // 32)
        speeds = run.chief.session.run(run.chief.temporary("speeds"))
    assert taken == [5, 5, 5, 2, 2, 5]
    np.testing.assert_allclose(speeds, [1 / 11, 1 / 25], rtol=1e-6)


@pytest.mark.quick
def test_no_window_is_empty() -> None:
    """A worker that is a hundred times slower makes one step."""
    with Run(FOLDER, "--adaptive_window", "--window=5") as run:
        with run.chief.graph.as_default():
            set_speeds = run.chief.temporary("speeds").assign([1.0, 100.0]).op
        run.chief.session.run(set_speeds)
        run.chief.push()
        assert run.counters()["examples"] == [32, 0]
