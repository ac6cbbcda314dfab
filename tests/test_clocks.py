"""Stale-Synchronous-Parallel: who may begin a round, who waits, and who is let go.

On a cluster in this process (`harness`); a time that is written down, not measured.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import random
import threading
import time
import types
from collections.abc import Callable

import harness
import numpy as np
import pytest
import rules
from harness import STREAMS, Run, in_turn, rounds, tf
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import load, some, thorough

clocks, link = (importlib.import_module(f"cluster.{n}") for n in ("clocks", "link"))

pytestmark = pytest.mark.timeout(120)

SSP = "Stale-Synchronous-Parallel"
# What is right with the pieces of two is with one; each scheme runs with one.
NUM_PS = pytest.mark.parametrize("num_ps", some([2], [1]))


class Beginner:
    """A worker that pulls in a thread of its own, and may have to wait on the ps."""

    def __init__(self, run: Run, k: int) -> None:
        self.run, self.k, self.thread = run, k, None
        with run.chief.graph.as_default():
            self.waiting = run.chief.temporary("waiting").value()

    def begins(self) -> bool:
        """Says whether it has begun a round; else it waits, and the ps knows of it."""
        if not self.thread:
            self.thread = threading.Thread(target=self._pull, daemon=True)
            self.thread.start()
        until = time.monotonic() + harness.LIMIT
        while self.thread.is_alive():
            if self.run.chief.session.run(self.waiting)[self.k]:
                return False
            assert time.monotonic() < until
            time.sleep(0.002)
        self.thread = None
        return True

    def _pull(self) -> None:
        with contextlib.suppress(tf.errors.CancelledError, RuntimeError):  # at the end
            self.run.workers[self.k].pull()

    def push(self) -> harness.Push:
        """Makes the round that it has begun, or one for which it need not wait."""
        assert self.thread is None
        return self.run.workers[self.k].push()


def beginners(run: Run) -> list[Beginner]:
    """Returns one for each worker."""
    return [Beginner(run, k) for k in range(len(run.workers))]


def starts(run: Run, durations: list[int], until: int) -> list[list[int]]:
    """Returns when each worker began its rounds, which take so long, up to a time.

    Who is done at a time pushes first; then everybody who is free tries to begin.
    """
    began = [[] for _ in durations]
    ends: list[int | None] = [None] * len(durations)
    workers = beginners(run)
    for now in range(until):
        for k, worker in enumerate(workers):
            if ends[k] == now:
                assert worker.push().became == rounds.APPLIED
                ends[k] = None
        for k, worker in enumerate(workers):
            if ends[k] is None and worker.begins():
                began[k].append(now)
                ends[k] = now + durations[k]
    return began


# --- Who may begin ------------------------------------------------------------


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        (0, [0, 3, 6, 9]),
        (1, [0, 1, 3, 6, 9]),
        (2, [0, 1, 2, 3, 6, 9]),
        (10, list(range(10))),
    ],
)
def test_trace_of_starts(staleness: int, expected: list[int]) -> None:
    """A takes 1 unit a round, B takes 3: by hand."""
    with Run(SSP, f"--staleness={staleness}") as run:
        found = starts(run, [1, 3], 10)
    assert found == [expected, [0, 3, 6, 9]]
    assert found == rules.bounded_starts([1, 3], staleness, 10)


@settings(max_examples=thorough(3, 15))
@given(
    durations=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    staleness=st.integers(0, 3),
    num_ps=st.integers(1, 2),
)
def test_starts_of_any_workers(durations, staleness, num_ps) -> None:
    options = dict(streams=[[1.0, 3.0]] * len(durations), num_ps=num_ps)
    with Run(SSP, f"--staleness={staleness}", **options, start=[0.0] * 2) as run:
        found = starts(run, durations, 8)
    assert found == rules.bounded_starts(durations, staleness, 8)


@pytest.mark.parametrize("staleness", [0, 2])
def test_s_more_rounds_than_the_slowest_and_no_more(staleness: int) -> None:
    """B holds its pull: A makes s + 1 rounds. One more for each that B completes."""
    with Run(SSP, f"--staleness={staleness}") as run:
        a, b = beginners(run)
        assert b.begins()
        made = [a.push() for _ in range(staleness + 1)]
        assert [push.became for push in made] == [rounds.APPLIED] * (staleness + 1)
        assert not a.begins()
        late = b.push()
        assert late.staleness == staleness + 1
        assert a.begins()
        a.push()
        assert not a.begins()


# --- Both ends of the bound ---------------------------------------------------


@NUM_PS
def test_without_staleness_it_is_bulk_synchronous(num_ps: int) -> None:
    """s = 0: every gradient of a round at the same w; N times their mean."""
    schedule = ", ".join(["pull B, pull A, push A, push B"] * 4)
    with Run(SSP, "--staleness=0", num_ps=num_ps, start=[0.0] * 3) as run:
        centers = [push.center for push in run.play(schedule)][1::2]
    batches = [itertools.cycle(stream) for stream in STREAMS]
    expected = rules.synchronous_sgd(batches, np.zeros(3), 4, 2 * 0.1)
    np.testing.assert_allclose(centers, expected, atol=1e-6)
    with Run("Synchronous-SGD", "--learning_rate=0.2", num_ps=num_ps) as run:
        other = [push.center for push in run.play(schedule)][1::2]
    np.testing.assert_allclose(np.array(centers)[:, :1], other, atol=1e-6)


def test_without_a_bound_it_is_hogwild() -> None:
    """Bit by bit, and A never waits while B computes."""
    schedule = "pull B, " + in_turn(30, "A") + ", push B, " + in_turn(6)
    centers = []
    for folder, flags in ((SSP, ["--staleness=1000000"]), ("HogWild", [])):
        with Run(folder, *flags, start=[0.5, -2.0]) as run:
            made = run.play(schedule)
        assert made[30].staleness == 30
        centers.append([push.center for push in made])
    np.testing.assert_array_equal(*centers)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_staleness_of_a_gradient_is_bounded_too(staleness: int) -> None:
    """By (2 s + 1)(N − 1); three workers at once, four rounds to a call."""
    begun, most, lock = [0, 0, 0], [0], threading.Lock()

    def jitter(index):
        with lock:
            begun[index] += 1
            most[0] = max(most[0], begun[index] - min(begun))
        time.sleep(random.random() * 0.004 * (1 + 2 * index))

    def jittery(index, usual):
        def loss(w, c):
            slept = tf.py_func(lambda _: jitter(index), [w], [])
            with tf.control_dependencies([slept]):
                return usual(tf.identity(w), c)

        return loss

    flags = [f"--staleness={staleness}", "--steps=150"]
    options = dict(streams=[*STREAMS, [2.0]], rounds=4, loss=jittery)
    with Run(SSP, *flags, **options, start=[0.0, 1.0]) as run:
        made = run.at_once(lambda worker: worker.to_the_end([1, 4]))
        table = run.counters()
    told = [push for push in itertools.chain(*made) if push.became == rounds.APPLIED]
    assert sorted(push.step for push in told) == list(range(1, 151))
    assert max(push.staleness for push in told) <= (2 * staleness + 1) * 2
    # Nobody was ever further ahead; those of the last call that came to nothing aside.
    assert max(table["updates"]) - min(table["updates"]) <= staleness + 1
    assert 1 <= most[0] <= staleness + 5


# --- Waiting ends -------------------------------------------------------------


def looker(run: Run, by: int) -> Callable:
    """Returns what worker `by` does with each heartbeat, a function of the board."""
    worker = run.workers[by]
    _, _, targets = harness.servers(run.num_ps)
    line = link.Link(run.args(by), types.SimpleNamespace(target=targets[by]))
    with line.graph.as_default(), line.graph.container(run.name):
        (make,) = worker.stats.looks
        return make(line)


def board(*silent: int) -> dict:
    """Returns a board that has the workers, and for how long each is silent."""
    return {"workers": {str(k): {"silent": s} for k, s in enumerate(silent)}}


@NUM_PS
def test_who_waits_is_woken_by_the_push_that_lets_it_go(num_ps: int) -> None:
    with Run(SSP, "--staleness=1", num_ps=num_ps, start=[0.0, 0.0]) as run:
        a, b = beginners(run)
        a.push(), a.push()
        assert not a.begins()
        assert b.push().became == rounds.APPLIED
        assert a.begins()
        assert a.push()[:3] == (4, 0, rounds.APPLIED)


def test_a_worker_that_dies_releases_the_others() -> None:
    """Once it has long been silent; when it is back it is as far as the slowest."""
    with Run(SSP, "--staleness=0", streams=[*STREAMS, [2.0]]) as run:
        a, b, c = beginners(run)
        a.push(), c.push()
        assert not a.begins()
        looker(run, by=2)(board(0, 0, 0))  # nobody has been silent for long
        assert not a.begins()
        for k in 0, 2:
            looker(run, by=k)(board(0, 100, 0))
        assert a.begins()
        assert a.push().became == rounds.APPLIED
        assert not a.begins()  # for C, which lives
        c.push()
        assert a.begins() and c.begins()
        a.push(), c.push()
        assert a.begins() and b.begins() and c.begins()
        a.push(), c.push()
        assert not a.begins() and not c.begins()  # for B, which is one of them again
        b.push()
        assert a.begins() and c.begins()


@pytest.mark.parametrize("heard", ["by its push", "by a heartbeat"])
def test_a_worker_that_was_silent_need_not_catch_up(heard: str) -> None:
    """It was stopped for a while; it is the slowest then."""
    with Run(SSP, "--staleness=0") as run:
        a, b = beginners(run)
        assert b.begins()
        looker(run, by=0)(board(0, 100))
        assert [a.push().became for _ in range(7)] == [rounds.APPLIED] * 7
        if heard == "by a heartbeat":
            looker(run, by=1)(board(0, 0))
            assert a.begins()
            a.push()
            assert not a.begins()  # B is at 7
        late = b.push()
        assert late.became == rounds.APPLIED and late.staleness >= 7
        if heard == "by its push":
            assert b.begins() is False  # it is at 8, and A at 7
        assert a.begins()


def test_who_is_not_on_the_board_is_waited_for_a_while(monkeypatch) -> None:
    """It has not come yet, or has not told a new ps that it is there."""
    with Run(SSP, "--staleness=1", joins=[0]) as run:
        a, _ = beginners(run)
        look = looker(run, by=0)
        look(board(0))
        a.push(), a.push()
        assert not a.begins()
        monkeypatch.setattr(clocks, "GONE", 0.1)
        time.sleep(0.2)
        look(board(0, 0))
        look(board(0))  # again, from now on
        assert not a.begins()
        time.sleep(0.2)
        look(board(0))
        assert a.begins()


def test_the_next_start_of_a_worker_that_waited() -> None:
    """Its call is gone with it; that it waits, and a token, are still known."""
    with Run(SSP, "--staleness=1") as run:
        a, b = beginners(run)
        a.push(), a.push()
        assert run.workers[0].waits()  # and the call is cut short
        b.push()  # which leaves a token for nobody
        assert a.push().became == rounds.APPLIED
        assert not a.begins()
        b.push()
        assert a.begins()


def test_the_last_update_releases_who_waits() -> None:
    """Also one that no clock would let go."""
    with Run(SSP, "--staleness=0", "--steps=2", streams=[*STREAMS, [2.0]]) as run:
        a, b, c = beginners(run)
        a.push()
        assert not a.begins()
        assert b.push()[:3] == (2, 0, rounds.APPLIED)
        assert a.begins()
        assert a.push().became == c.push().became == rounds.OVER
        assert b.begins()


def test_a_round_that_was_not_applied_does_not_count() -> None:
    module, ticks = load(SSP), []

    def graph(args, center, stats, shared, *rest):
        ticks.append([shared.tick([], tf.constant(yes)) for yes in (False, True)])
        return module.graph(args, center, stats, shared, *rest)

    with Run(SSP, graph=graph) as run:
        clocks = run.chief.temporary("clocks").value()
        for tick, expected in zip(ticks[0], (0, 1), strict=True):
            run.chief.session.run(tick)
            assert run.chief.session.run(clocks).tolist() == [expected, 0]
