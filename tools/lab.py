"""Twelve exercises: predict what a run will do, see what it does, then solve a task.

    bash run.sh --lab                      list them
    bash run.sh --lab N                    do one
    bash run.sh --lab N --answer X         with the prediction X, without a question
                        --solve "FLAGS"    and with a solution of the second part
                        --watch            and with the page of --watch for each run

lab.txt has the texts, lab_exercises.py the runs, and what is to be seen in them. Each
run is that of an example, started by lab_launcher.py as the folder's run.sh would start
it. The exit status is 0, be the prediction right or wrong.
"""

from __future__ import annotations  # the list is for any Python 3

import argparse
import collections
import contextlib
import functools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import registry
from lab_exercises import EXERCISES, WIDTH, Outcome

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = Path(__file__).with_name("lab_launcher.py")
LETTERS = "abcdef"  # of choices
TIMEOUT = 150  # seconds of a run, which takes about ten
STEP = re.compile(r"\[worker \d+\] step +(\d+)/")
PROCESS = re.compile(r"run\.sh: (\w+ \d+) is process (\d+)")
# What a reader of an exercise need not see of a run.
QUIET = re.compile(
    r"is process|serves at|^\[worker 0\] (variable|\S+ +\d+ +\S)|(curves|result):"
)
LOGDIR = re.compile(r", logdir .*")  # of a run; said at the end, once
SETTING = re.compile(r"(NUM_PS|NUM_WORKERS)=([1-9])")
# What a run would take from the environment, beside `environment_of`.
UNSET = "BASE_PORT", "DRY_RUN", "LAUNCH", "KILL", "TF_CONFIG"
HEAD = re.compile(r"^# \d+\. (.*) \((\S+), (\d+) minutes\)$", re.M)


# No choices: the answer is a number. The example is a solution.
Texts = collections.namedtuple(
    "Texts", "title folder minutes question choices why task prompt example"
)


def texts():
    """Returns the Texts of all exercises in lab.txt, in the order of their numbers."""
    _, *found = HEAD.split(Path(__file__).with_name("lab.txt").read_text("utf-8"))
    every = []
    for i in range(0, len(found), 4):
        title, folder, minutes, text = found[i : i + 4]
        asked, _, why, typed, task = re.split(r"^## (.*)$", text, flags=re.M)
        asked = re.split(r"\n\n|\n(?=- )", asked.strip())
        question = [p for p in asked if not p.startswith("- ")]
        choices = [p[2:] for p in asked if p.startswith("- ")]
        rest = question, choices, why, task, *typed.split(": ", 1)
        every.append(Texts(title, folder, int(minutes), *rest))
    return every


TEXTS = texts()


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"lab.py: {sentence}", file=sys.stderr)
    raise SystemExit(status)


def say(text="", first="", indent=""):
    """Prints a paragraph; its first line begins with `first`, the others `indent`."""
    text = first + " ".join(text.split())
    print(textwrap.fill(text, WIDTH, subsequent_indent=indent), flush=True)


# --- Signals and questions ---------------------------------------------------------


class Signals:
    """What tells this program to end. It ends at once only where it may: `check`."""

    def __init__(self):
        self.told, self.asks = [], False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: self.tell(number))

    def tell(self, number):
        """Notes a signal."""
        self.told.append(number)
        if self.asks:
            self.check()

    def check(self):
        """Raises SystemExit if a signal has come."""
        if self.told:
            print()
            raise SystemExit(128 + self.told[0])

    def ask(self, prompt):
        """Returns the line that is typed, None at the end of the input."""
        print(prompt, end=" ", flush=True)
        self.asks = True
        try:
            self.check()
            line = sys.stdin.readline()
        finally:
            self.asks = False
        if not sys.stdin.isatty():
            print(line.strip())
        return line.strip() if line else None


def prediction(choices, text):
    """Returns the letter or number that a text is; raises ValueError: a sentence."""
    text, letters = text.strip().lower(), LETTERS[: len(choices)]
    if choices:
        if text in [*letters]:
            return text
        raise ValueError(f"{text!r} is none of {', '.join(letters)}")
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise ValueError(f"{text!r} is not a number")


def changed(one, text):
    """Returns a Try, if any, with what is typed; raises ValueError: a sentence."""
    if one is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("a quotation mark is missing") from None
    while words and "=" in words[0] and not words[0].startswith("-"):
        word = words.pop(0)
        found = SETTING.fullmatch(word)
        if not one.free:
            raise ValueError(f"{word} is no flag, and this exercise asks for one")
        if not found:
            raise ValueError(
                f"{word}: only NUM_PS and NUM_WORKERS, of 1 to 9, can be set"
            )
        name = {"NUM_PS": "ps", "NUM_WORKERS": "workers"}[found[1]]
        one = one._replace(**{name: int(found[2])})
    if words and not words[0].startswith("--"):
        raise ValueError(f"{words[0]} is no flag: a flag begins with --")
    for word in words:
        if word.partition("=")[0] in ("--logdir", "--steps", "--help", "--check"):
            raise ValueError(f"{word} stays as it is in this exercise")
    kept = shlex.split(one.flags)  # a name and a value, and so on
    for name in {word.partition("=")[0] for word in words} & {*kept}:
        del kept[kept.index(name) : kept.index(name) + 2]
    return one._replace(flags=shlex.join([*kept, *words]))


# --- A run -------------------------------------------------------------------------


def command_of(one):
    """Returns the command by which a reader starts the same run."""
    words = [f"NUM_PS={one.ps}"] if one.ps > 1 else []
    if one.workers > 1:
        words.append(f"NUM_WORKERS={one.workers}")
    if one.restarts:
        words.append(f"MAX_RESTARTS={one.restarts}")
    return " ".join([*words, f"bash run.sh {one.folder} {one.shown or one.flags}"])


def environment_of(one, logdir):
    """Returns the settings of a run, as the folder's run.sh would set them."""
    family = registry.of(one.folder).family
    return {
        "SCRIPT": registry.script_of(one.folder),
        "PEERS": "yes" if family == "peers" else "",
        "NUM_PS": "0" if family in ("peers", "single") else str(one.ps),
        "NUM_WORKERS": str(one.workers),
        "MAX_RESTARTS": str(one.restarts),
        "TIMEOUT": str(TIMEOUT),
        "LOGDIR": str(logdir),
        "LAB_FOLDER": str(ROOT / one.folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Plain:
    """A process of the launcher, and the lines that it prints."""

    popen = subprocess.Popen

    def __init__(self, one, logdir):
        self.process = self.popen(
            [sys.executable, str(LAUNCHER), *shlex.split(one.flags)],
            env={**os.environ, **environment_of(one, logdir)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # of Ctrl-C it hears by `end`, once
        )
        self.said = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.rstrip("\n")))
            if not QUIET.search(line):
                print(f"  {LOGDIR.sub('', line.rstrip())}", flush=True)

    def lines(self):
        """Returns (when, line) for each line so far."""
        return list(self.said)

    def status(self):
        """Returns the exit status, None while the run lasts."""
        if self.process.poll() is None or self.reader.is_alive():
            return None
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def end(self):
        """Ends the run, if it has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)  # the launcher ends within 10
            self.process.kill()
        self.reader.join(5)


class Watched:
    """The same run with the page of watch.py."""

    def __init__(self, one, logdir, signals):
        import watch

        os.environ.update(environment_of(one, logdir))
        self.signals = signals
        self.run = watch.Run(one.folder, shlex.split(one.flags))
        self.run.command[2] = str(LAUNCHER)
        self.server = watch.serve(0, self.run.events, self.run)
        self.run.start(signals)
        self.begin = time.monotonic()

    def lines(self):
        """Returns (when, line) for each line so far."""
        events = [json.loads(text) for text in self.run.events.since(0)[1]]
        return [(self.begin + e["t"], e["x"]) for e in events if e["k"] == "line"]

    def status(self):
        """Returns the exit status, None while the run lasts."""
        return self.run.status if self.run.over.is_set() else None

    def end(self):
        """Ends the run, if it has not ended; then waits for the reader's Enter."""
        if self.run.over.is_set() and not self.signals.told:
            self.signals.ask("Enter closes the page.")
        self.run.end(signal.SIGINT)
        self.server.shutdown()


def tell(pid, number):
    """Sends a signal to a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def perform(one, logdir, signals, watch=False):
    """Makes a run, and does to its tasks what it says; returns its Outcome."""
    say()
    print(f"$ {command_of(one)}", flush=True)
    run = Watched(one, logdir, signals) if watch else Plain(one, logdir)
    processes, steps, acts, seen = {}, [], [], 0
    act, frozen, begin = one.act, None, time.monotonic()
    try:
        while True:
            status, lines = run.status(), run.lines()
            for when, line in lines[seen:]:
                if found := PROCESS.search(line):
                    processes[found[1]] = int(found[2])
                if found := STEP.search(line):
                    steps.append((when - begin, int(found[1])))
            seen = len(lines)
            if status is not None:
                break
            now = time.monotonic() - begin
            step = max((step for _, step in steps), default=0)
            if act and step >= act.at:
                pid, until = processes[act.task], now + act.seconds
                if act.seconds:
                    frozen = pid
                    said = f"freezes {act.task} for {act.seconds} s"
                else:
                    said = f"kills {act.task}"
                print(f"  lab: {said}", flush=True)
                tell(pid, signal.SIGSTOP if frozen else signal.SIGKILL)
                acts.append(step)
                act = None
            if frozen and now >= until:
                tell(frozen, signal.SIGCONT)
                acts.append(step)
                frozen = None
            signals.check()
            time.sleep(0.02)
    finally:
        if frozen:
            tell(frozen, signal.SIGCONT)
        run.end()
    result = {}
    with contextlib.suppress(OSError, ValueError):
        result = json.loads((logdir / "result.json").read_text())
    said = [line for _, line in run.lines()]
    return Outcome(one, status, result, steps, acts, said)


# --- An exercise -------------------------------------------------------------------


class Lab:
    """One exercise that is being done."""

    def __init__(self, args, signals):
        self.exercise, self.texts = EXERCISES[args.number - 1], TEXTS[args.number - 1]
        self.args, self.signals, self.logdirs = args, signals, []
        began = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.name = f"{began}-lab-{args.number}-{os.getpid()}"

    def make(self, one):
        """Makes a run, in the folder's logdir or in --logdir; returns its Outcome."""
        number = len(self.logdirs) + 1
        logdir = ROOT / one.folder / "logdir" / f"{self.name}-{number}"
        if self.args.logdir:
            logdir = Path(self.args.logdir).absolute() / str(number)
        self.logdirs.append(logdir)
        return perform(one, logdir, self.signals, self.args.watch)

    def must(self, one):
        """Makes a run which has to end well, or to diverge."""
        outcome = self.make(one)
        if outcome.trouble and not outcome.diverged:
            fail(outcome.trouble, outcome.status or 1)
        return outcome

    def answer(self, prompt, given, check):
        """Returns the text that is given, or one that is typed and that `check` takes.

        None is the end of the input.
        """
        if given is not None:
            print(f"{prompt} {given}")
            return given
        while (text := self.signals.ask(prompt)) is not None:
            try:
                check(text)
                return text
            except ValueError as mistake:
                say(f"{mistake}.")
        print()
        return None

    def predict(self):
        """The first part: a prediction, the runs, and what has happened."""
        texts = self.texts
        print(f"Lab {self.args.number} of {len(TEXTS)}: {texts.title}\n")
        for paragraph in texts.question:
            say(paragraph)
            print()
        for number, choice in enumerate(texts.choices):
            say(choice, f"  {LETTERS[number]}  ", " " * 5)
        print("\n" * bool(texts.choices), end="")
        what = ", ".join(LETTERS[: len(texts.choices)]) or "a number"
        read = functools.partial(prediction, texts.choices)
        prompt = f"Your prediction ({what}):"
        if (text := self.answer(prompt, self.args.answer, read)) is None:
            fail("there is no answer: type one, or give it by --answer")
        outcomes = [self.must(one) for one in self.exercise.runs]
        seen, picture = self.exercise.see(outcomes)
        print(f"\nWhat happened\n\n{textwrap.indent(picture, '  ')}\n")
        print(f"{verdict(read(text), seen, self.exercise.near)}\n")
        say(f"Why. {texts.why}")

    def solve(self):
        """The second part: a task whose verdict comes from a run."""
        exercise, given, before = self.exercise, self.args.solve, None
        print()
        say(f"Now you. {self.texts.task}")
        if given is None and self.args.answer is not None:
            print('\nAnswer it by --solve "...", or leave out --answer.')
            return
        if exercise.before:
            before = self.must(exercise.before())
            print(f"\n{exercise.show(before)}")
        print()
        check = functools.partial(changed, exercise.task)
        while text := self.answer(f"{self.texts.prompt}:", given, check):
            outcome = before
            if exercise.task:
                outcome = self.make(check(text))
                print()
            good, said = False, outcome.trouble
            if not said:
                good, said = exercise.judge(outcome, text, before)
            say(f"{'Solved' if good else 'Not yet'}. {said}")
            if good or given is not None:
                return
            say("Try again; an empty line shows a solution.")
            print()
        say(f"A solution: {self.texts.example}.")


def verdict(given, seen, near):
    """Returns the sentence that compares a prediction with what was seen."""
    if isinstance(seen, str):
        right = given == seen
    else:
        right = abs(given - seen) <= near
        given, seen = f"{given:g}", f"{seen:.3g}"
    return f"You said {given}, the run says {seen}: {'right' if right else 'wrong'}."


# --- The command -------------------------------------------------------------------


def listing():
    """Returns the list of the exercises, with minutes."""
    rows = ["bash run.sh --lab N: a prediction, a run, and a task", ""]
    for number, text in enumerate(TEXTS, 1):
        rows.append(f"{number:3}  {text.minutes} min  {text.title} ({text.folder})")
    minutes = sum(text.minutes for text in TEXTS)
    rows.append(f"\nTogether {minutes} minutes. docs/lab.md is the page for teachers.")
    return "\n".join(rows)


def read_args(argv):
    """Returns the arguments; ends the program if they cannot be used."""
    parser = argparse.ArgumentParser(
        prog="bash run.sh --lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = fail  # in one sentence
    parser.add_argument("number", nargs="?", metavar="N", help="which exercise")
    parser.add_argument("--answer", metavar="X", help="the prediction")
    parser.add_argument("--solve", metavar="TEXT", help="the solution")
    parser.add_argument("--logdir", metavar="DIR", help="where the runs are kept")
    parser.add_argument("--watch", action="store_true", help="with a page for each run")
    # What a solution begins with is no flag of this program.
    text = "\0".join(argv).replace("--solve\0", "--solve=")
    args = parser.parse_args(text.split("\0") if argv else [])
    if args.number is None:
        if argv:
            fail(f"name an exercise, 1 to {len(EXERCISES)}")
        return args
    if not args.number.isdecimal() or not 0 < int(args.number) <= len(EXERCISES):
        fail(f"there is no exercise {args.number}, only 1 to {len(EXERCISES)}")
    args.number = int(args.number)
    try:
        if args.answer is not None:
            prediction(TEXTS[args.number - 1].choices, args.answer)
        if args.solve is not None:
            changed(EXERCISES[args.number - 1].task, args.solve)
    except ValueError as mistake:
        fail(mistake)
    return args


def main(argv=None):
    """Runs the command line; returns the exit status."""
    args = read_args(sys.argv[1:] if argv is None else argv)
    if args.number is None:
        print(listing())
        return 0
    sys.stdin = sys.stdin or open(os.devnull)  # it was closed
    for name in UNSET:
        os.environ.pop(name, None)
    signals = Signals()
    lab = Lab(args, signals)
    lab.predict()
    lab.solve()
    signals.check()
    print("\nThe runs are in")
    for logdir in lab.logdirs:
        print(f"  {os.path.relpath(logdir)}")
    print(f"Read more: {lab.texts.folder}/README.md")
    return 0


if __name__ == "__main__":
    # A screen that is gone ends this program, and then the launcher, which hears of it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
