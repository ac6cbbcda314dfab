"""tools/lab.py: each exercise, answered right and wrong; mistakes; Ctrl-C."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forkserver
import lab
import launch
import psutil
import pytest
from lab_exercises import EXERCISES, Outcome, Try
from tree import REPO, run

TOOL = REPO / "tools" / "lab.py"
NUMBERS = range(1, len(EXERCISES) + 1)
# Of each exercise: a right prediction, a wrong one, a solution, one that is none.
ANSWERS = {
    1: ("c", "b", "NUM_PS=4", "NUM_PS=1"),
    2: ("3", "1", "NUM_WORKERS=2", "--batch_size 32"),
    3: ("4", "2", "STRAGGLER", "4"),
    4: ("b", "a", "--replicas_to_aggregate 2", "--seed 0"),
    5: ("c", "a", "--replicas_to_aggregate 3", "--seed 0"),
    6: ("4", "20", "--staleness 100", "--seed 0"),
    7: ("c", "b", "--window 200", "--seed 0"),
    8: ("c", "a", "--beta 0.9", "--seed 0"),
    9: ("b", "a", "28,860", "38480"),
    10: ("20", "2", "--window 100", "--seed 0"),
    11: ("c", "a", "--save_seconds 0.1", "--seed 0"),
    12: ("c", "a", "--learning_rate 0.1", "--seed 0"),
}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """lab.py takes the signals of its process, which here is the test's."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.long
@pytest.mark.parametrize("number", NUMBERS)
def test_an_exercise_answered_right_and_wrong(
    number: int, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Runs are made once. In place of a wrong solution's run the first one counts."""
    if launch.FORKS:
        monkeypatch.setattr(lab.Plain, "popen", forkserver.Forked)
        monkeypatch.setenv("OPEN_PORTS", "1")  # a fork cannot go into a network
    made: list[tuple[Try, Outcome]] = []
    perform = lab.perform

    def make(one: Try, *rest: object) -> Outcome:
        made.append((one, perform(one, *rest)))
        return made[-1][1]

    def again(one: Try, *_: object) -> Outcome:
        like = (one.folder, one.workers)
        return next(o for t, o in made if (t.folder, t.workers) == like)

    right, wrong, solution, none = ANSWERS[number]
    straggler = random.Random(number).randrange(4)
    solution = solution.replace("STRAGGLER", str(straggler))
    for perform_, prediction, answer, words in (
        (make, right, solution, (": right.", "Solved. ")),
        (again, wrong, none, (": wrong.", "Not yet. ")),
    ):
        monkeypatch.setattr(lab, "perform", perform_)
        random.seed(number)  # exercise 3 hides the straggler
        flags = ["--answer", prediction, "--solve", answer, "--logdir", str(tmp_path)]
        assert lab.main([str(number), *flags]) == 0
        said = capsys.readouterr().out
        for word in words:
            assert word in said, said
    if number == 3:  # as a reader finds it
        rounds = made[-1][1].rounds
        assert rounds.index(min(rounds)) == straggler
    assert not [p for p in psutil.process_iter(["cmdline"]) if held(p, tmp_path)]


def held(process: psutil.Process, logdir: Path) -> bool:
    """Says whether a process is a task of a run, or its launcher."""
    return any(str(logdir) in word for word in process.info["cmdline"] or [])


# --- Without a run -------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("number", NUMBERS)
def test_the_texts(number: int) -> None:
    texts, one = lab.TEXTS[number - 1], EXERCISES[number - 1]
    assert texts.question[-1].endswith("?") and texts.minutes in (2, 3)
    assert len(texts.choices) == (0 if one.near else 3)
    assert texts.folder == one.runs[-1].folder
    sentences = re.findall(r"[.?!](?=\s)", re.sub(r"\d\.\d", "", texts.why))
    assert len(sentences) == 3, texts.why
    page = (REPO / "docs" / "lab.md").read_text()
    assert f"| {number}. {texts.title} | {texts.minutes} |" in page


@pytest.mark.quick
def test_the_list_needs_no_environment() -> None:
    done = run("bash", "run.sh", "--lab")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^ *\d+  \d min  ", done.stdout, re.M)) == 12
    plain = run(sys.executable, "-S", TOOL)
    assert plain.stdout == done.stdout


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["13"], "there is no exercise 13, only 1 to 12"),
        (["0"], "there is no exercise 0, only 1 to 12"),
        (["HogWild"], "there is no exercise HogWild, only 1 to 12"),
        (["--answer", "a"], "name an exercise, 1 to 12"),
        (["1", "--answer", "d"], "'d' is none of a, b, c"),
        (["2", "--answer", "many"], "'many' is not a number"),
        (["2", "--answer", "nan"], "'nan' is not a number"),
        (["1"], "there is no answer: type one, or give it by --answer"),
        (["1", "--answr", "a"], "unrecognized arguments: --answr a"),
        (["12", "--solve", "--steps 9"], "--steps stays as it is in this exercise"),
        (["12", "--solve", "--logdir=x"], "--logdir=x stays as it is in this exercise"),
        (["12", "--solve", "slower"], "slower is no flag: a flag begins with --"),
        (["12", "--solve", "'"], "a quotation mark is missing"),
        (
            ["4", "--solve", "NUM_WORKERS=1"],
            "NUM_WORKERS=1 is no flag, and this exercise asks for one",
        ),
        (
            ["1", "--solve", "NUM_PS=40"],
            "NUM_PS=40: only NUM_PS and NUM_WORKERS, of 1 to 9, can be set",
        ),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str) -> None:
    done = run(sys.executable, "-S", TOOL, *words, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (2, f"lab.py: {sentence}\n")


@pytest.mark.quick
def test_a_closed_stdin_and_a_narrow_terminal() -> None:
    script = f'"{sys.executable}" -S "{TOOL}" 5 <&-'
    done = run("bash", "-c", script, env={**os.environ, "COLUMNS": "60"})
    assert done.returncode == 2 and "there is no answer" in done.stderr
    assert 50 < max(map(len, done.stdout.splitlines())) < 60


@pytest.mark.quick
def test_a_mistake_that_is_typed_can_be_mended_and_ctrl_c_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", TOOL, "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdin.write("some\n")
        process.stdin.flush()
        for line in process.stdout:
            if line == "'some' is not a number.\n":
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


# --- Runs that do not end well -------------------------------------------------------


def test_ctrl_c_in_a_run_ends_everything(tmp_path: Path) -> None:
    """Also a worker that is frozen at this moment."""
    logdir = tmp_path / "runs"
    command = ["bash", "run.sh", "--lab", "4", "--answer", "b", "--logdir", str(logdir)]
    with subprocess.Popen(
        command,
        cwd=REPO,
        env=launch.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stdout:
            if "lab: freezes worker 1" in line:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(40) == 130
    assert not [p for p in psutil.process_iter(["cmdline"]) if held(p, logdir)]
    assert (logdir / "1").is_dir() and not (logdir / "2").exists()


def test_flags_that_the_example_refuses(tmp_path: Path, monkeypatch, capsys) -> None:
    """The sentence of the example is shown, and it is no solution."""
    monkeypatch.setattr(lab.Lab, "predict", lambda _: None)
    words = ["12", "--solve", "--rate 1", "--logdir", str(tmp_path)]
    assert lab.main(words) == 0
    said = capsys.readouterr().out
    assert "unrecognized arguments: --rate 1" in said
    assert "Not yet. The run ended with status 2, see above" in said
