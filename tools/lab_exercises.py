"""The twelve exercises of lab.py: their runs, and what to look at.

What is right comes from the counters of the runs: `see` of an exercise returns what
they say, and a picture; `judge` returns whether a run solves the task, and what it
says. Times count only where a worker is frozen for seconds, and where rates are
compared. lab.txt has the texts.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from typing import NamedTuple

STALENESS = re.compile(r"\[(worker \d+)\] step .*  staleness ([\d.]+)")
PIECE = re.compile(r"center/part_\d+ +(\d+)")
FROZEN = 4  # seconds of a freeze
GOES_ON = 20  # updates in it, of those who do not wait: two lines, at a rate of 16/s
# Seconds of a gradient, of three workers.
EVEN = "--slow_workers 0.03"
UNEVEN = "--slow_workers 0.06,0.06,0.12"
WIDTH = max(50, min(79, shutil.get_terminal_size().columns - 1))  # of a line
ROWS = 16  # of a picture of a run
BAR = max(10, WIDTH - 43)  # characters of the longest bar; its label and number need 43


class Act(NamedTuple):
    """Freezes a task for some seconds, or kills it (0 s), at a global step."""

    at: int
    task: str
    seconds: float = 0


class Try(NamedTuple):
    """A run of an example."""

    folder: str
    flags: str
    workers: int = 1
    ps: int = 1
    restarts: int = 0  # of a task that was killed
    act: Act | None = None
    free: bool = False  # NUM_PS and NUM_WORKERS may be set
    shown: str = ""  # in place of the flags, if they are the solution


class Outcome(NamedTuple):
    """What a run has done."""

    run: Try
    status: int
    result: dict  # result.json, {} if there is none
    steps: list  # (seconds, global step) of each line with a step
    acts: list  # the global step of its Act, and of the end of a freeze
    said: list  # its lines

    @property
    def trouble(self):
        """Says why nothing can be learned from the run, "" if something can."""
        if self.status:
            return f"The run ended with status {self.status}, see above."
        if self.run.act and not self.acts:
            return "The run was over too soon: nothing was done to it."
        return ""

    @property
    def diverged(self):
        """Says whether the run failed because its numbers are none any more."""
        return any("training diverged" in line for line in self.said)

    @property
    def accuracy(self):
        """Returns the test accuracy; that of guessing, if training diverged."""
        return self.result.get("test_accuracy", 0.1)

    @property
    def rounds(self):
        """Returns the rounds of each worker."""
        return list(self.result["rounds_per_worker"].values())

    @property
    def killed(self):
        """Returns (update at which a task was killed, update from which it goes on)."""
        return self.acts[0], self.result["resumed_from"]

    @property
    def meanwhile(self):
        """Returns how many updates were made while a task was frozen."""
        frozen, *thawed = self.acts
        return (thawed[0] if thawed else self.result["global_steps"]) - frozen

    @property
    def bytes(self):
        """Returns the bytes that a worker sends for one gradient that it computes."""
        window = self.result["flags"].get("window", 1)
        return self.result["bytes_pushed"] / sum(self.rounds) / window


class Exercise(NamedTuple):
    """One exercise: `see(outcomes)`, `judge(outcome, text, before)`."""

    runs: list[Try]
    see: Callable[[list[Outcome]], tuple[str | float, str]]
    judge: Callable[[Outcome, str, Outcome], tuple[bool, str]]
    task: Try | None  # the run with what is typed; None: `judge` gets that before
    before: Callable[[], Try] | None = None  # a run that comes before the task
    show: Callable[[Outcome], str] | None = None  # what is shown of that
    near: float = 0  # a number so near is right


# --- Pictures in characters --------------------------------------------------------


def bars(rows, unit=""):
    """Returns a bar for each (label, number)."""
    wide = max(len(label) for label, _ in rows)
    most = max(number for _, number in rows) or 1
    return "\n".join(
        f"{label:{wide}}  {'#' * round(BAR * number / most)} "
        f"{number:{',.4g' if number < 10_000 else ',.0f'}}{unit}"
        for label, number in rows
    )


def by_worker(numbers, unit=""):
    """Returns a bar for each worker."""
    return bars([(f"worker {k}", n) for k, n in enumerate(numbers)], unit)


def progress(outcome):
    """Returns how many updates the run had made after each second, or some seconds."""
    begin = outcome.steps[0][0]
    points = [(t - begin, step) for t, step in outcome.steps]
    every = 1 + int(points[-1][0] / ROWS)
    rows = []
    for second in range(0, int(points[-1][0]) + every + 1, every):
        before = [step for t, step in points if t <= second]
        rows.append((f"{second:2} s", before[-1]))
    return bars(rows, " updates")


# --- What to look at ---------------------------------------------------------------


def stalest(outcome):
    """Returns each worker's mean staleness in the second half of its lines."""
    found = {}
    for line in outcome.said:
        if one := STALENESS.search(line):
            found.setdefault(one[1], []).append(float(one[2]))
    halves = [v[len(v) // 2 :] for _, v in sorted(found.items())]
    return [sum(v) / len(v) for v in halves]


def back(one):
    """Returns a picture and a sentence of a run in which a task was killed."""
    said = "Killed at update {}; training went on from update {}."
    return f"{progress(one)}\n\n{said.format(*one.killed)}"


def see_kept(outcomes):
    """1: what is left when the only worker has been killed."""
    (one,) = outcomes
    at, restored = one.killed
    kept = [line for line in one.said if "goes on with the model on the ps" in line]
    told = kept[0] if kept else f"[worker 0] resumes from global step {restored}"
    said = f"The worker was killed at update {at}. The new one says:\n\n    {told}"
    seen = "c" if kept else "b" if restored else "a"
    return seen, f"{progress(one)}\n\n{said}"


def judge_pieces(outcome, *_):
    """1: no ps has more than 1,300 numbers."""
    parts = [int(one[1]) for line in outcome.said if (one := PIECE.search(line))]
    said = ", ".join(f"ps {k} {n:,}" for k, n in enumerate(parts))
    return bool(parts) and max(parts) <= 1300, f"Numbers on each ps: {said}."


def see_staleness(outcomes):
    """2: the mean staleness, once all workers have begun."""
    values = stalest(outcomes[0])
    return sum(values) / len(values), by_worker(values)


def judge_staleness(outcome, *_):
    """2: the staleness is about 1."""
    values = stalest(outcome)
    mean = sum(values) / len(values)
    workers = outcome.result["workers"]
    said = f"The mean staleness is {mean:.1f} with {workers} workers."
    return workers > 1 and 0.5 < mean < 1.5, said


def see_slow(outcomes):
    """3: the staleness of the slow worker."""
    values = stalest(outcomes[0])
    rounds = by_worker(outcomes[0].rounds, " rounds")
    return values[2], f"{by_worker(values, ' staleness')}\n\n{rounds}"


def hide_straggler():
    """3: a run in which one of four workers is slow."""
    speeds = ["0.06"] * 4
    speeds[random.randrange(4)] = "0.3"
    shown, flags = "--steps 300 --slow_workers ...", ",".join(speeds)
    return Try("HogWild", shown.replace("...", flags), 4, shown=shown)


def show_result(outcome):
    """3: what result.json says, without the flags."""
    kept = {k: v for k, v in outcome.result.items() if k != "flags"}
    return json.dumps(kept, indent=2)


def judge_straggler(_, text, outcome):
    """3: which worker was slow."""
    slow = outcome.result["flags"]["slow_workers"]
    said = f"The rounds of workers 0 to 3 are {outcome.rounds}."
    return re.sub(r"\D", "", text) == str(slow.index(max(slow))), said


def see_frozen(outcomes):
    """4: whether the others waited."""
    (one,) = outcomes
    rounds, dropped = one.rounds, one.result["gradients_dropped"]
    said = f"Updates in the {FROZEN} s of the freeze: {one.meanwhile}.\n"
    said += f"Rounds of each worker: {rounds}; gradients dropped: {dropped}."
    return "b" if one.meanwhile < GOES_ON else "a", f"{progress(one)}\n\n{said}"


def judge_frozen(outcome, *_):
    """4: the others went on while worker 1 was frozen."""
    made = outcome.meanwhile
    return made >= GOES_ON, f"In the {FROZEN} s of the freeze {made} updates were made."


def see_backup(outcomes):
    """5: how many gradients of the slow worker are dropped."""
    (one,) = outcomes
    dropped = one.result["gradients_dropped"]
    used = 1 - dropped / one.rounds[2]
    rows = [(f"worker {k} computed", n) for k, n in enumerate(one.rounds)]
    picture = bars([*rows, ("dropped", dropped)], " gradients")
    return "a" if used > 0.8 else "b" if used > 0.4 else "c", picture


def judge_backup(outcome, *_):
    """5: no gradient is dropped."""
    dropped = outcome.result["gradients_dropped"]
    return dropped == 0, f"{dropped} gradients were dropped."


def see_ahead(outcomes):
    """6: how many rounds worker 0 is ahead of worker 2."""
    rounds = outcomes[0].rounds
    return rounds[0] - rounds[2], by_worker(rounds, " rounds")


def judge_ahead(outcome, *_):
    """6: the slow worker does not hold up the others."""
    rounds = outcome.rounds
    said = f"The rounds of each worker are {rounds}."
    return min(rounds[:2]) >= 1.5 * rounds[2], said


def see_window(outcomes):
    """7: bytes and loss with and without a window."""
    often, seldom = outcomes
    fewer = often.result["bytes_pushed"] / seldom.result["bytes_pushed"]
    rows = [("T = 1", often), ("T = 50", seldom)]
    pushed = bars([(k, one.result["bytes_pushed"]) for k, one in rows], " bytes")
    loss = bars([(k, one.result["test_loss"]) for k, one in rows], " test loss")
    worse = seldom.result["test_loss"] > 1.3 * often.result["test_loss"]
    seen = "a" if fewer < 2 else "c" if worse else "b"
    return seen, f"{pushed}\n\n{loss}"


def show_rate(one):
    """7, 9: the rate of a run."""
    rate, workers = one.result["examples_per_second"], one.run.workers
    return f"Workers: {workers}; examples a second: {rate:,.0f}."


def judge_faster(outcome, _, before):
    """7: two workers make more examples a second than one process."""
    one, two = (o.result["examples_per_second"] for o in (before, outcome))
    said = f"Two workers: {two:,.0f} examples/s, one process: {one:,.0f}."
    batch = outcome.result["flags"]["batch_size"]
    if batch != 32:
        return False, f"{said} But a mini-batch is to have 32 examples, not {batch}."
    return two > one, said


def see_center(outcomes):
    """8: the center variable beside the workers' own weights."""
    (one,) = outcomes
    own = list(one.result["loss_per_worker"].values())
    rows = [(f"worker {k}'s weights", n) for k, n in enumerate(own)]
    rows.append(("center variable", one.result["test_loss"]))
    behind = one.result["test_loss"] > 2 * min(own)
    said = f"Test accuracy of the center variable: {one.accuracy:.2f}"
    return "c" if behind else "a", f"{bars(rows, ' loss')}\n\n{said}"


def judge_accuracy(outcome, *_):
    """8, 12: the model is good."""
    said = f"The test accuracy is {outcome.accuracy:.2f}, and more than 0.85 was asked."
    return outcome.accuracy > 0.85, said


def see_ring(outcomes):
    """9: where the workers of a ring go on when one of them was killed."""
    (one,) = outcomes
    at, restored = one.killed
    together = len(set(one.rounds)) == 1
    seen = "a" if not together else "b" if restored < at / 2 else "c"
    return seen, f"{back(one)}\nRounds of each worker: {one.rounds}."


def judge_ring(_, text, outcome):
    """9: what each of four workers sends."""
    good = abs(int(re.sub(r"\D", "", text) or 0) - outcome.bytes) < 0.02 * outcome.bytes
    said = "Each worker sends six pieces, each a quarter of a gradient"
    return good, f"{said}: {outcome.bytes:,.0f} bytes." if good else f"{said}."


def see_diloco(outcomes):
    """10: bytes of a gradient in a ring and with a window."""
    ring, diloco = outcomes
    rows = [("Ring-All-Reduce", ring), ("DiLoCo", diloco)]
    each = bars([(k, one.bytes) for k, one in rows], " bytes a gradient")
    right = bars([(k, one.accuracy) for k, one in rows], " test accuracy")
    return ring.bytes / diloco.bytes, f"{each}\n\n{right}"


def judge_diloco(outcome, *_):
    """10: few bytes, and a good model."""
    good, said = judge_accuracy(outcome)
    said = f"{outcome.bytes:,.0f} bytes a gradient, 250 are allowed. {said}"
    return good and outcome.bytes <= 250, said


def see_lost(outcomes):
    """11: how many updates a killed ps has cost."""
    at, restored = outcomes[0].killed
    part = (at - restored) / at
    return "a" if part < 0.05 else "b" if part < 0.6 else "c", back(outcomes[0])


def judge_lost(outcome, *_):
    """11: few updates are lost."""
    at, restored = outcome.killed
    return at - restored <= 20, f"{at - restored} updates were lost, 20 are allowed."


def see_diverged(outcomes):
    """12: one worker learns, four do not."""
    rows = zip(("1 worker", "4 workers"), outcomes, strict=True)
    one, four = (outcome.accuracy for outcome in outcomes)
    picture = bars([(k, outcome.accuracy) for k, outcome in rows], " test accuracy")
    return "c" if four < 0.6 * one else "b" if four < one - 0.05 else "a", picture


# --- The exercises -----------------------------------------------------------------

KEPT = "--steps 300 --slow_workers 0.02"
KEPT = Try("Distributed-Setup", KEPT, restarts=1, act=Act(120, "worker 0"))
EQUAL = Try("HogWild", "--steps 160 --slow_workers 0.1", 4)
SLOW = Try("HogWild", f"--steps 200 {UNEVEN}", 3)
WAIT = "--steps 100 --slow_workers 0.06"
WAIT = Try("Synchronous-SGD", WAIT, 3, act=Act(50, "worker 1", FROZEN))
BACKUP = Try("Synchronous-SGD", f"--steps 100 {UNEVEN} --replicas_to_aggregate 2", 3)
BOUND = "--steps 200 --slow_workers 0.03,0.03,0.09 --staleness 4"
BOUND = Try("Stale-Synchronous-Parallel", BOUND, 3)
OFTEN = Try("DOWNPOUR-Easy", "--steps 400 --window 1", 2)
SELDOM = Try("DOWNPOUR-Easy", "--steps 8 --window 50", 2)
ALONE = Try("Non-Distributed-Setup", "--steps 8000")
ELASTIC = Try("AEASGD", "--steps 60 --slow_workers 0.006 --beta 0.002", 2)
BROKEN = f"--steps 150 {EVEN}"
BROKEN = Try("Ring-All-Reduce", BROKEN, 3, restarts=1, act=Act(60, "worker 1"))
FOUR = Try("Ring-All-Reduce", "--steps 40", 4)
STEPS = Try("Ring-All-Reduce", "--steps 200", 2)
APART = Try("DiLoCo", "--steps 10 --window 20", 2)
LOST = "--steps 150 --slow_workers 0.06"
LOST = Try("HogWild", LOST, 2, restarts=1, act=Act(105, "ps 0"))
LARGE = Try("HogWild", f"--steps 300 {EVEN} --learning_rate 0.8", 4)
ONE = Try("HogWild", "--steps 300 --slow_workers 0.01 --learning_rate 0.8")
EIGHT = Try("DiLoCo", "--steps 8 --window 20", 2)
PARTS = Try("Distributed-Setup", "--steps 40", free=True)
FEWER = Try("HogWild", "--steps 100 --slow_workers 0.1", 4, free=True)

EXERCISES = [
    Exercise([KEPT], see_kept, judge_pieces, PARTS),
    Exercise([EQUAL], see_staleness, judge_staleness, FEWER, near=0.75),
    Exercise(
        [SLOW], see_slow, judge_straggler, None, hide_straggler, show_result, near=1
    ),
    Exercise([WAIT], see_frozen, judge_frozen, WAIT),
    Exercise([BACKUP], see_backup, judge_backup, BACKUP),
    Exercise([BOUND], see_ahead, judge_ahead, BOUND, near=1),
    Exercise(
        [OFTEN, SELDOM],
        see_window,
        judge_faster,
        OFTEN,
        lambda: ALONE,
        show_rate,
    ),
    Exercise([ELASTIC], see_center, judge_accuracy, ELASTIC),
    Exercise([BROKEN], see_ring, judge_ring, None, lambda: FOUR, show_rate),
    Exercise([STEPS, APART], see_diloco, judge_diloco, EIGHT, near=1),
    Exercise([LOST], see_lost, judge_lost, LOST),
    Exercise([ONE, LARGE], see_diverged, judge_accuracy, LARGE),
]
