"""What a worker prints of its rounds, the end, divergence; how many make a call.

The clock here only moves when a test moves it, and most sessions are not one.
"""

from __future__ import annotations

import argparse
import re
import time

import harness
import launch
import numpy as np
import pytest
import registry

from cluster import report, rounds, task

pytestmark = pytest.mark.quick


class Clock:
    """Stands for `time.time` and `time.monotonic`."""

    def __init__(self, monkeypatch, folder):
        """`folder` is where a report of this test writes its curves."""
        self.now, self.folder = 1000.0, folder
        for name in ("time", "monotonic"):
            monkeypatch.setattr(time, name, lambda: self.now)


class Said:
    """A report, and the lines that it printed: (time, global step, text)."""

    def __init__(self, clock, capsys, steps=10**6, **flags):
        flags = {"task_index": 0, "lines": 10, **flags}
        flags.update(steps=steps, learning_rate=0.1, logdir=str(clock.folder))
        self.args = argparse.Namespace(**flags)
        self.report = report.Report(self.args, "accuracy", (None, None))
        self.clock, self.capsys, self.lines = clock, capsys, []

    def rounds(self, *counts, losses=None, seconds=0.0):
        """Reports a call's rounds, `seconds` later; returns the updates left."""
        self.clock.now += seconds
        losses = np.ones(len(counts)) if losses is None else np.asarray(losses)
        counts = np.asarray(counts)
        left = rounds.updates_left(losses, counts, self.args)  # as rounds.Calls does
        self.report.rounds(losses, counts)
        for line in self.capsys.readouterr().out.splitlines():
            step = int(re.match(r"step +(\d+)/", line)[1])
            self.lines.append((self.clock.now - 1000, step, line))
        return left


@pytest.fixture
def clock(monkeypatch, tmp_path):
    return Clock(monkeypatch, tmp_path)


# --- Lines --------------------------------------------------------------------


def test_a_line_every_10_seconds_at_least(clock, capsys):
    said = Said(clock, capsys)
    for step in range(1, 600):
        said.rounds([step, 0, rounds.APPLIED], seconds=0.1)
    gaps = np.diff([0.1, *(at for at, *_ in said.lines)])
    assert gaps.tolist() == pytest.approx([10] * 5, abs=0.25)
    assert "  10 steps/s  " in said.lines[-1][-1]


def test_a_line_every_tenth_of_the_way(clock, capsys):
    said = Said(clock, capsys, steps=1000)
    for step in range(1, 1001):
        said.rounds([step, 2, rounds.APPLIED], losses=[0.5], seconds=0.001)
    assert [step for _, step, _ in said.lines] == list(range(100, 1001, 100))
    assert "loss 0.5000  staleness 2.0  " in said.lines[-1][-1]


def test_a_round_of_a_minute_has_a_line_of_its_own(clock, capsys):
    """The first says at once that training goes on; there is no rate yet."""
    said = Said(clock, capsys, steps=100)
    for step in range(1, 5):
        said.rounds([step, 0, rounds.APPLIED], seconds=60)
    assert [step for _, step, _ in said.lines] == [2, 3, 4]
    assert "  0 steps/s  5760 s left" in said.lines[-1][-1]


def test_only_the_chief_says_what_is_left(clock, capsys):
    said = Said(clock, capsys, steps=10, task_index=1)
    for step in range(1, 11):
        said.rounds([step, 0, rounds.APPLIED], seconds=1)
    assert said.lines and not any("left" in text for *_, text in said.lines)


def test_the_first_line_does_not_say_what_is_left(clock, capsys):
    """TensorFlow prepares the calls before it, so its rate is too low."""
    said = Said(clock, capsys, steps=1000)
    for step in (1, 102, 602):
        said.rounds([step, 0, rounds.APPLIED], seconds=2)
    texts = [text for *_, text in said.lines]
    assert ["left" in text for text in texts] == [False, True], texts
    assert texts[-1].endswith("  250 steps/s  2 s left")


def test_lines_of_one_call_have_a_rate_that_can_be(clock, capsys):
    """All rounds of a call come back at once, also where two lines are due."""
    said = Said(clock, capsys, steps=20)
    for first in (1, 11):
        steps = range(first, first + 10)
        said.rounds(*[[step, 0, rounds.APPLIED] for step in steps], seconds=1)
    assert said.lines[-1][1] == 20
    for *_, text in said.lines:
        assert int(re.search(r"(\d+) steps/s", text)[1]) <= 20, text


def test_no_line_has_a_step_after_the_last(clock, capsys):
    """What comes too late in the call of the last update has a number of its own."""
    said = Said(clock, capsys, steps=20)
    said.rounds([1, 0, rounds.APPLIED])
    said.rounds([20, 0, rounds.APPLIED], [21, 0, rounds.OVER], seconds=1)
    assert [step for _, step, _ in said.lines] == [20]


# --- What became of a push ----------------------------------------------------


def test_what_counts_as_a_round(clock, capsys):
    """A dropped gradient is one; what was pushed after the last update is not."""
    said = Said(clock, capsys, steps=10)
    nan = float("nan")
    assert said.rounds([4, 0, rounds.APPLIED], losses=[1.0]) == 6
    assert said.rounds([5, 0, rounds.LATE], losses=[3.0]) == 5
    last = [10, 3, rounds.APPLIED], [11, 0, rounds.OVER]
    assert said.rounds(*last, losses=[5, nan]) == 0
    assert (said.report.loss_sum, said.report.rounds_made) == (9.0, 3)


def test_after_a_loss_the_clock_of_a_rate_starts_anew(clock, capsys):
    said = Said(clock, capsys, steps=1000)
    for step in (390, 401, 30, 101):
        if step == 30:
            said.report.due_step = None  # as run.Run.recovering does
        said.rounds([step, 0, rounds.APPLIED], seconds=0.5)
    assert [step for _, step, _ in said.lines] == [401, 101]
    assert all("-" not in text for *_, text in said.lines)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number(loss, clock, capsys):
    said = Said(clock, capsys)
    with pytest.raises(task.Failure, match=f"the loss is {loss} at global step 2"):
        said.rounds([1, 0, rounds.APPLIED], [2, 0, rounds.APPLIED], losses=[1, loss])


@pytest.mark.parametrize("folder", registry.folders("ps"))
def test_each_scheme_notices_that_it_diverges(folder):
    """On the digits, with the script's own rounds; for the status see test_run.py."""
    module = launch.load(folder)
    data = module.problem.load("digits", 1)

    def problem(worker, index):
        made = module.problem.build(data, 8, 0)
        return made.start, made.batch, made.loss

    rate = "--learning_rate=1e30"
    with harness.Run(folder, rate, streams=[(0.0,)], problem=problem) as run:
        args, chief = run.args(0), run.chief
        with pytest.raises(task.Failure, match="training diverged"):
            for _ in range(5):
                made = chief.calls.make(chief.session, args.steps)
                assert rounds.updates_left(*made, args) > 0


def test_one_process_numbers_its_rounds_in_order():
    """No ps numbers them: each has the global step after its own update."""
    script, tf = launch.load("Non-Distributed-Setup"), harness.tf
    with tf.Graph().as_default(), tf.Session() as session:
        center = tf.get_variable("center", initializer=tf.zeros([4]))
        global_step = tf.train.get_or_create_global_step()
        args = argparse.Namespace(learning_rate=0.1)
        made = rounds.Calls(
            lambda last: script.graph(
                args,
                center,
                global_step,
                lambda: tf.ones([4]),
                lambda w, c: tf.reduce_sum(0.5 * (w - c) ** 2),
                last,
            )
        )
        session.run(tf.global_variables_initializer())
        for call in range(50):
            losses, counts, _ = session.run(made.fetches[10])
            steps = np.arange(10 * call + 1, 10 * call + 11)
            assert counts[:, 0].tolist() == steps.tolist()
            # Each at the weights that the one before it has left: w = 1 - 0.9 ** step.
            assert losses == pytest.approx(2 * 0.81 ** (steps - 1), rel=1e-2, abs=1e-9)


# --- Calls --------------------------------------------------------------------


class Session:
    """Makes calls that take `seconds` a round, and counts the rounds of each."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.calls = clock, seconds, []

    def make_callable(self, fetch):
        size = int(fetch[1].shape[0])

        def call():
            self.clock.now += size * self.seconds
            self.calls.append(size)
            return np.ones(size), np.ones((size, 3), int), None

        return call


def one_round(last):
    tf = harness.tf
    step = tf.zeros([], tf.int64)
    counted = rounds.Counted(step, step, step, tf.stack([step, step, step]))
    return rounds.Round(tf.zeros([]), counted, [tf.no_op()])


@pytest.fixture
def calls():
    with harness.tf.Graph().as_default():
        yield rounds.Calls(one_round)


def compute(seconds):
    """Keeps a core busy."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.001, 10), (0.09, 10), (0.3, 3), (0.7, 1), (3.0, 1)]
)
def test_a_call_is_never_much_longer_than_a_second(seconds, size, clock, calls):
    """So that log and Ctrl-C are near. A longer round is alone in its call."""
    session = Session(clock, seconds)
    for _ in range(20):
        losses, counts = calls.make(session, 10**6)
        assert len(losses) == len(counts) == session.calls[-1]
    assert session.calls == [1, *[size] * 19]


@pytest.mark.parametrize(
    ("wait", "sizes"), [(time.sleep, [1, 3, 10]), (compute, [1])], ids=["others", "it"]
)
def test_rounds_that_take_long_to_build_are_alone_in_a_call(wait, sizes, monkeypatch):
    """Long is what this task computes, and not how long others have its core."""
    monkeypatch.setattr(rounds, "CHEAP", 0.5)

    def slowly(last):
        wait(0.06)
        return one_round(last)

    with harness.tf.Graph().as_default():
        assert [*rounds.Calls(slowly).fetches] == sizes


def test_rounds_that_become_longer_are_fewer_to_a_call(clock, calls):
    session = Session(clock, 0.001)
    for session.seconds in (0.001, 0.001, 0.4, 0.4, 0.4):
        calls.make(session, 10**6)
    assert session.calls == [1, 10, 10, 1, 1]


@pytest.mark.parametrize("steps", [1, 7, 10, 25])
def test_the_end_is_not_passed(steps, clock, calls):
    session, left = Session(clock, 0.001), steps
    while left:
        left -= len(calls.make(session, left)[0])
    assert sum(session.calls) == steps
