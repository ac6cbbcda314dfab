"""The twelve exercises of lab.py: their texts, their runs, what to look at.

What is right comes from the counters of the runs: `see` of an exercise returns what
they say, beside numbers or a picture, and `judge` of a task says whether a run solves
it. Times count only where a worker is frozen for seconds, and where rates are compared.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PARAMETERS = 4810  # numbers in the model of all examples
STALENESS = re.compile(r"\[(worker \d+)\] step +(\d+)/.*  staleness ([\d.]+)")
PIECE = re.compile(r"center/part_\d+ +(\d+)")
FROZEN = 4  # seconds of a freeze
GOES_ON = 20  # updates in it, of those who do not wait: two lines, at a rate of 16/s
# Seconds of a gradient, of three workers.
EVEN = "--slow_workers 0.03"
UNEVEN = "--slow_workers 0.06,0.06,0.12"
ROWS = 16  # of a picture of a run
BAR = 40  # characters of the longest bar
# What a run takes from the environment, and a run of an exercise does not.
SETTINGS = ("NUM_PS", "NUM_WORKERS", "PEERS", "BASE_PORT", "TIMEOUT", "MAX_RESTARTS")
SETTINGS += ("DRY_RUN", "LAUNCH", "KILL", "LOGDIR", "TF_CONFIG")


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
    acts: tuple[Act, ...] = ()


class Outcome(NamedTuple):
    """What a run has done."""

    status: int
    result: dict  # result.json, {} if there is none
    steps: list  # (seconds, worker, global step) of each line with a step
    acts: list  # (seconds, global step) of each Act, and of the end of a freeze
    said: list  # its lines
    logdir: Path

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
    def lost(self):
        """Returns how many updates a kill has undone."""
        return self.acts[0][1] - self.result["resumed_from"]

    @property
    def meanwhile(self):
        """Returns how many updates were made while a task was frozen."""
        frozen, *thawed = [step for _, step in self.acts]
        return (thawed[0] if thawed else self.result["global_steps"]) - frozen


class Task(NamedTuple):
    """The second part of an exercise: what is typed, and what judges it.

    `judge(outcome, text, before)` returns whether it is solved, and what the run says.
    """

    prompt: str
    example: str  # a solution
    judge: Callable[[Outcome, str, Outcome], tuple[bool, str]]
    run: Try | None = None  # with the flags that are typed
    fixed: bool = False  # as it is: what is typed are no flags
    before: Callable[[], Try] | None = None  # a run that comes before the question
    show: Callable[[Outcome], str] | None = None  # what is shown of that


class Texts(NamedTuple):
    """The texts of an exercise, see lab.txt; each is a list of paragraphs."""

    title: str
    minutes: int
    question: list[str]
    choices: list[str]
    why: list[str]
    task: list[str]


class Exercise(NamedTuple):
    """One exercise; `see(outcomes)` returns what the runs say, and a picture."""

    runs: tuple[Try, ...]
    see: Callable[[list[Outcome]], tuple[str | float, str]]
    task: Task
    near: float = 0  # a number so near is right

    @property
    def folder(self):
        """Returns the folder of the scheme that the exercise is about."""
        return self.runs[-1].folder


TITLE = re.compile(r"^# (\d+)\. (.*) \((\d+) minutes\)$", re.M)


def texts():
    """Returns the Texts of all exercises, in the order of their numbers."""
    _, *found = TITLE.split(Path(__file__).with_name("lab.txt").read_text("utf-8"))
    every = []
    for title, minutes, text in zip(found[1::4], found[2::4], found[3::4], strict=True):
        question, why, task = re.split(r"^## (?:Why|Now you)$", text, flags=re.M)
        parts = [
            [
                " ".join(p.split())
                for p in re.split(r"\n\n|^(?=- )", part.strip(), flags=re.M)
            ]
            for part in (question, why, task)
        ]
        asked = [p for p in parts[0] if p and not p.startswith("- ")]
        choices = [p[2:] for p in parts[0] if p.startswith("- ")]
        every.append(Texts(title, int(minutes), asked, choices, *parts[1:]))
    return every


# --- Pictures in characters --------------------------------------------------------


def bars(rows, unit=""):
    """Returns a bar for each (label, number)."""
    wide = max(len(label) for label, _ in rows)
    most = max(number for _, number in rows) or 1
    return "\n".join(
        f"{label:{wide}}  {'#' * round(BAR * number / most)} {number:,.4g}{unit}"
        if number < 10_000
        else f"{label:{wide}}  {'#' * round(BAR * number / most)} {number:,.0f}{unit}"
        for label, number in rows
    )


def by_worker(numbers, unit=""):
    """Returns a bar for each worker."""
    return bars([(f"worker {k}", n) for k, n in enumerate(numbers)], unit)


def progress(outcome):
    """Returns how many updates the run had made after each second, or some seconds."""
    begin = outcome.steps[0][0]
    points = [(t - begin, step) for t, _, step in outcome.steps]
    every = 1 + int(points[-1][0] / ROWS)
    rows = []
    for second in range(0, int(points[-1][0]) + every + 1, every):
        before = [step for t, step in points if t <= second]
        rows.append((f"{second:2} s", before[-1]))
    return bars(rows, " updates")


# --- What to look at ---------------------------------------------------------------


def stalest(outcome):
    """Returns each worker's mean staleness in the second half of a run."""
    half = outcome.result["global_steps"] / 2
    found = {}
    for line in outcome.said:
        if one := STALENESS.search(line):
            worker, step, value = one[1], int(one[2]), float(one[3])
            if step > half:
                found.setdefault(worker, []).append(value)
    return [sum(v) / len(v) for _, v in sorted(found.items())]


def pieces(outcome):
    """Returns how many parameters each ps holds, by the table that the run prints."""
    return [int(one[1]) for line in outcome.said if (one := PIECE.search(line))]


def sent(outcome):
    """Returns the bytes that a worker sends for one update."""
    result = outcome.result
    return result["bytes_pushed"] / sum(outcome.rounds)


def see_kept(outcomes):
    """1: what is left when the only worker has been killed."""
    (one,) = outcomes
    at, restored = one.acts[0][1], one.result["resumed_from"]
    first = next(line for line in one.said if "goes on with" in line or restored)
    kept = "c" if "goes on with the model on the ps" in first else "b"
    told = f"The worker was killed at update {at}. The new one says:\n\n    {first}"
    return kept, f"{progress(one)}\n\n{told}"


def judge_pieces(outcome, *_):
    """1: no ps has more than 1,300 numbers."""
    parts = pieces(outcome)
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
    return Try("HogWild", f"--steps 300 --slow_workers {','.join(speeds)}", 4)


def show_result(outcome):
    """3: what result.json says, without the flags."""
    kept = {k: v for k, v in outcome.result.items() if k != "flags"}
    return json.dumps(kept, indent=2)


def judge_straggler(_, text, outcome):
    """3: which worker was slow."""
    slow = outcome.result["flags"]["slow_workers"]
    which = slow.index(max(slow))
    rounds = outcome.rounds[which]
    said = f"Worker {which} is the straggler: it made {rounds} of the 300 rounds."
    return text.removeprefix("worker").strip() == str(which), said


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
    """6: how many rounds the fastest is ahead."""
    rounds = outcomes[0].rounds
    return max(rounds) - min(rounds), by_worker(rounds, " rounds")


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


def show_rate(outcome):
    """7: the rate of one process."""
    return f"One process: {outcome.result['examples_per_second']:,.0f} examples/s."


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
    rows = [(f"worker {k}, its own weights", n) for k, n in enumerate(own)]
    rows.append(("center variable", one.result["test_loss"]))
    behind = one.result["test_loss"] > 2 * min(own)
    said = f"Test accuracy of the center variable: {one.accuracy:.2f}"
    return "c" if behind else "a", f"{bars(rows, ' loss')}\n\n{said}"


def judge_accuracy(outcome, *_):
    """8, 12: the model is good."""
    said = f"The test accuracy is {outcome.accuracy:.2f}"
    return outcome.accuracy > 0.85, f"{said}, and more than 0.85 was asked."


def judge_saved(outcome, *_):
    """12: the model is good, and there are still four workers."""
    good, said = judge_accuracy(outcome)
    workers = outcome.result.get("workers", 4)
    return good and workers == 4, f"{said[:-1]}, with {workers} workers of four."


def see_ring(outcomes):
    """9: where the workers of a ring go on when one of them was killed."""
    (one,) = outcomes
    at, back = one.acts[0][1], one.result["resumed_from"]
    said = f"Killed at update {at}; training went on from update {back}."
    together = len(set(one.rounds)) == 1
    seen = "a" if not together else "b" if back < at / 2 else "c"
    return seen, f"{progress(one)}\n\n{said}\nRounds of each worker: {one.rounds}."


def judge_ring(outcome, text, _):
    """9: what each of four workers sends."""
    each = sent(outcome)
    typed = float(re.sub(r"[^\d.]", "", text) or "nan")
    said = f"The run says {each:,.0f} bytes: six pieces, each a quarter of a gradient."
    return abs(
        typed - each
    ) < 0.02 * each, f"{said} It is never more than two gradients."


def per_gradient(outcome):
    """Returns the bytes that a worker sends for one gradient."""
    window = outcome.result["flags"].get("window", 1)
    return sent(outcome) / window


def see_diloco(outcomes):
    """10: bytes of a gradient in a ring and with a window."""
    ring, diloco = outcomes
    rows = [("Ring-All-Reduce", ring), ("DiLoCo", diloco)]
    each = bars([(k, per_gradient(one)) for k, one in rows], " bytes a gradient")
    right = bars([(k, one.accuracy) for k, one in rows], " test accuracy")
    return per_gradient(ring) / per_gradient(diloco), f"{each}\n\n{right}"


def judge_diloco(outcome, *_):
    """10: few bytes, and a good model."""
    each = per_gradient(outcome)
    said = f"{each:,.0f} bytes a gradient, test accuracy {outcome.accuracy:.2f}."
    return each <= 250 and outcome.accuracy > 0.85, said


def see_lost(outcomes):
    """11: how many updates a killed ps has cost."""
    (one,) = outcomes
    at, back = one.acts[0][1], one.result["resumed_from"]
    part = one.lost / at
    said = f"Killed at update {at}; training went on from update {back}."
    seen = "a" if part < 0.05 else "b" if part < 0.6 else "c"
    return seen, f"{progress(one)}\n\n{said}"


def judge_lost(outcome, *_):
    """11: few updates are lost."""
    return outcome.lost <= 20, f"{outcome.lost} updates were lost, 20 are allowed."


def see_diverged(outcomes):
    """12: one worker learns, four do not."""
    rows = zip(("1 worker", "4 workers"), outcomes, strict=True)
    one, four = (outcome.accuracy for outcome in outcomes)
    picture = bars([(k, outcome.accuracy) for k, outcome in rows], " test accuracy")
    return "c" if four < 0.6 * one else "b" if four < one - 0.05 else "a", picture


# --- The exercises -----------------------------------------------------------------

KILLED = Try(
    "HogWild",
    "--steps 150 --slow_workers 0.06",
    2,
    restarts=1,
    acts=(Act(105, "ps 0"),),
)
FREEZE = Try(
    "Synchronous-SGD",
    "--steps 100 --slow_workers 0.06",
    3,
    acts=(Act(50, "worker 1", FROZEN),),
)
BACKUP = Try("Synchronous-SGD", f"--steps 100 {UNEVEN} --replicas_to_aggregate 2", 3)
BOUND = "--steps 200 --slow_workers 0.03,0.03,0.09 --staleness 4"
BOUND = Try("Stale-Synchronous-Parallel", BOUND, 3)
ELASTIC = Try("AEASGD", "--steps 60 --slow_workers 0.006 --beta 0.002", 2)
LARGE = Try("HogWild", f"--steps 300 {EVEN} --learning_rate 0.8", 4)

EXERCISES = [
    Exercise(
        (
            Try(
                "Distributed-Setup",
                "--steps 300 --slow_workers 0.02",
                restarts=1,
                acts=(Act(120, "worker 0"),),
            ),
        ),
        see_kept,
        Task(
            "Your setting, as in NUM_PS=2",
            "NUM_PS=4",
            judge_pieces,
            Try("Distributed-Setup", "--steps 40"),
        ),
    ),
    Exercise(
        (Try("HogWild", "--steps 160 --slow_workers 0.1", 4),),
        see_staleness,
        Task(
            "Your flags",
            "NUM_WORKERS=2",
            judge_staleness,
            Try("HogWild", "--steps 100 --slow_workers 0.1", 4),
        ),
        near=0.75,
    ),
    Exercise(
        (Try("HogWild", f"--steps 200 {UNEVEN}", 3),),
        see_slow,
        Task(
            "The number of the slow worker",
            "the worker with the fewest rounds in rounds_per_worker",
            judge_straggler,
            before=hide_straggler,
            show=show_result,
        ),
        near=1,
    ),
    Exercise(
        (FREEZE,),
        see_frozen,
        Task("Your flag", "--replicas_to_aggregate 2", judge_frozen, FREEZE),
    ),
    Exercise(
        (BACKUP,),
        see_backup,
        Task("Your flag", "--replicas_to_aggregate 3", judge_backup, BACKUP),
    ),
    Exercise(
        (BOUND,),
        see_ahead,
        Task("Your flag", "--staleness 100", judge_ahead, BOUND),
        near=1,
    ),
    Exercise(
        (
            Try("DOWNPOUR-Easy", "--steps 400 --window 1", 2),
            Try("DOWNPOUR-Easy", "--steps 8 --window 50", 2),
        ),
        see_window,
        Task(
            "Your flag",
            "--window 200",
            judge_faster,
            Try("DOWNPOUR-Easy", "--steps 400 --window 1", 2),
            before=lambda: Try("Non-Distributed-Setup", "--steps 8000"),
            show=show_rate,
        ),
    ),
    Exercise(
        (ELASTIC,),
        see_center,
        Task("Your flag", "--beta 0.9", judge_accuracy, ELASTIC),
    ),
    Exercise(
        (
            Try(
                "Ring-All-Reduce",
                f"--steps 150 {EVEN}",
                3,
                restarts=1,
                acts=(Act(60, "worker 1"),),
            ),
        ),
        see_ring,
        Task(
            "Bytes",
            "28860, which is 2 (N − 1) / N times 19,240",
            judge_ring,
            Try("Ring-All-Reduce", "--steps 40", 4),
            fixed=True,
        ),
    ),
    Exercise(
        (
            Try("Ring-All-Reduce", "--steps 200", 2),
            Try("DiLoCo", "--steps 10 --window 20", 2),
        ),
        see_diloco,
        Task(
            "Your flag",
            "--window 100",
            judge_diloco,
            Try("DiLoCo", "--steps 8 --window 20", 2),
        ),
        near=1,
    ),
    Exercise(
        (KILLED,),
        see_lost,
        Task("Your flag", "--save_seconds 0.3", judge_lost, KILLED),
    ),
    Exercise(
        (Try("HogWild", "--steps 300 --slow_workers 0.01 --learning_rate 0.8"), LARGE),
        see_diverged,
        Task("Your flag", "--learning_rate 0.1", judge_saved, LARGE),
    ),
]
