"""Every shell command of every page, executed exactly as it is printed.

A ```bash block runs line by line in a copy of the repository, in the page's folder. A
command that stands in a sentence or a table, as `bash run.sh --list`, runs too, unless
it has dots for what the reader puts in. What needs another machine is a ```text block;
the commands of a cluster's tasks are checked in such a block too.

The lines are as printed. What stands behind a few names is not (`BEHIND`): the copy's
`.venv/bin/python` is this Python and shortens what takes long, and what would download
packages or open a page in a browser only looks whether its files are there. `python`
and `python3` are those of a system: they have no packages, unless the page has said
`pip install` before. Two ways:

    check    a script gets --check, so that its flags and data are looked at; in a run
             of several tasks once. A script without that flag prints its --help.
    run      a script makes STEPS steps; a benchmark is its --quick. Commands of
             several terminals run at once, at the ports that are printed, in a network
             of their own. THOROUGH=1 runs every block, otherwise one of each kind runs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import launch
import psutil
import pytest
import registry
import test_engines
from launch import REPO

STEPS = 60
LEAVE = (".git", ".venv*", "logdir", "__pycache__", ".*_cache", "node_modules")
SECONDS = {"check": 250, "run": 3000}  # until a block that hangs is ended
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.S | re.M)
TEXT = re.compile(r"^```text\n(.*?)^```", re.S | re.M)
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(
    r"((\w+=('[^']*'|\S*) +)*(bash|sudo|pip|python3?|jupyter|tensorboard|\S+/python) \S"
    r"|for \w+ in .*; do )"
)
PAGES = sorted(
    path.relative_to(REPO)
    for path in REPO.rglob("*.md")
    if not {".venv", "logdir", "node_modules", ".pytest_cache"} & {*path.parts}
)
SCRIPTS = [registry.script_of(folder) for folder in registry.folders()]
SCRIPTS += ["horovod_sgd.py", "parameter_server_strategy.py"]
SCRIPTS += ["multi_worker_mirrored.py", "mirrored.py", "towers.py"]
GROWS = "CONTRIBUTING.md"  # whose commands and diffs make a folder, one after the other
# What git ignores, and the notebooks, whose outputs a command stores again.
MAY_CHANGE = re.compile(
    r"(.*/)?((\.venv|\.ruff_cache|\.pytest_cache|\.hypothesis|logdir)/|\.venv\.lock$)"
    r"|Basics-Tutorial/.*\.ipynb$|benchmarks/data/"
)
# Blocks that run in every test run, the others with THOROUGH=1: (page, number).
RUN = {("docs/folder.md", 0), ("Non-Distributed-Setup/README.md", 1)}

# Blocks that show the newest run of another: its first line is run before them.
SHOWS = {("Fault-Tolerance/README.md", 1): 0}

PYTHON = """#!/usr/bin/env bash
# @python@, but that what takes long is shortened.
export PYTHONDONTWRITEBYTECODE=1
case "${1-} ${2-}" in
  "-m pip") shift 2; exec pip "$@" ;;
  "-m venv") @venv@ ;;
  "-m pytest") shift 2; @pytest@ ;;
  "-m tensorboard.main") exit 0 ;;
  "-m jupyter") shift 2; exec jupyter "$@" ;;
  "-B "*launch*.py) # run.sh: what it starts is to be this program, too
    me=$(cd "${0%/*}" && pwd)/${0##*/}
    exec @python@ -B -c @starts@ "$me" "${@:2}" ;;
  "-B "*watch.py | "-B "*lab.py) exec @python@ "$2" --help ;; # it would last
esac
case ${1##*/} in
  @scripts@) @scheme@ ;;
  watch.py) [ ! -f "$2" ] || exec @python@ "$1" --help ;;
  copies.py | registry.py | setup.py | ports.py | -*) exec @python@ "$@" ;;
  cost_model.py | hard_data.py) exec @python@ "$@" ;;
  curve.py | timeline.py | notebooks.py | test_*.py) @curve@ ;;
esac
[ -f "$1" ] || { echo "no script $1" >&2; exit 2; }
case $1 in benchmarks/* | */benchmarks/*) exec @python@ "$@" @benchmark@ ;; esac
exec @python@ "$@" @other@
"""
# The system's Python, before anybody has installed a package for it.
SYSTEM = """#!/usr/bin/env bash
export PYTHONDONTWRITEBYTECODE=1
case "${1-} ${2-}" in "-m venv") @venv@ ;; esac
case ${1-} in *watch.py) [ ! -f "$2" ] || exec @python@ -S "$1" --help ;; esac
exec @python@ -S "$@"
"""
# Runs the program that its arguments name, as if the first of them ran it.
STARTS = """import os, runpy, sys
sys.executable, sys.argv = sys.argv[1], sys.argv[2:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
WAYS = {
    "check": dict(
        # The launcher checks once, then starts the tasks: these have been checked.
        scheme='case " $* ${LAUNCHED_BY:+started} " in\n'
        '    *" --check "* | *" --help "*) exec @python@ "$@" ;;\n'
        '    *" started "*) exit 0 ;;\n'
        # As the launcher's own: without the model, which takes TensorFlow seconds.
        '  esac; LAUNCHED_BY=$PPID exec @python@ "$@" --check',
        pytest='for a; do [[ $a != tests/* ]] || [ -f "$a" ] || exit 4; done; exit',
        curve="exec @python@ -c 'import sys; compile(open(sys.argv[1]).read(), "
        '"", "exec")\' "$1"',
        venv='mkdir -p "${@: -1}/bin" && : >"${@: -1}/bin/activate"; exit',
        benchmark="--help",
        other="--help",
    ),
    "run": dict(
        # Who is killed some seconds after the start has to be there until then.
        scheme='case $1 in *fault_tolerance.py) exec @python@ "$@" ;; esac\n'
        '  exec @python@ "$@" --steps @steps@',
        pytest='exec @python@ -m pytest "$@" --collect-only -q -n 0',
        curve='exec @python@ "$@"',
        # Its own jupyter, which stands before the one below, opens no browser, either.
        venv='@python@ "$@" || exit\n'
        '  echo \'jupyter() { [ -f "${@: -1}" ]; }\' >>"${@: -1}/bin/activate"; exit',
        benchmark="--quick",
        other="",
    ),
}
# Of Horovod's own environment, which a copy has not.
HOROVOD = {
    "check": {
        "python": 'LAUNCHED_BY=$PPID exec @python@ "$@" --check',
        "horovodrun": '[ "$1 $3" = "-np --gloo" ] || exit 2; shift 3; exec "$@"',
    },
    "run": {
        "python": 'exec "$HOROVOD_VENV/bin/python" "$@" --steps @steps@',
        "horovodrun": 'exec "$HOROVOD_VENV/bin/horovodrun" "$@"',
    },
}
STANDS_IN = """#!/usr/bin/env bash
# Starts nothing: the files that its arguments name have to be there.
for argument; do
  case $argument in
    *.txt | *.ipynb) [ -f "$argument" ] || { echo "no file $argument" >&2; exit 2; } ;;
  esac
done
"""
BEHIND = {
    "apt": STANDS_IN,
    "pip": STANDS_IN,
    "jupyter": STANDS_IN,
    "tensorboard": STANDS_IN,
    "sudo": '#!/usr/bin/env bash\nexec "$@"\n',
}


def blocks(page: Path) -> list[str]:
    """Returns the shell blocks of a page; those of GROWS have a test of their own."""
    return [] if str(page) == GROWS else BLOCK.findall((REPO / page).read_text())


def tasks(page: Path) -> list[str]:
    """Returns the text blocks of a page that start the tasks of a cluster."""
    found = TEXT.findall((REPO / page).read_text())
    return [text for text in found if re.search(r"^python .*--task_index", text, re.M)]


def inline(page: Path) -> list[str]:
    """Returns the commands in a page's sentences and tables, each once."""
    found = INLINE.findall(FENCED.sub("", (REPO / page).read_text()))
    commands = [text for text in found if COMMAND.match(text) and "..." not in text]
    return list(dict.fromkeys(commands))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the repository."""
    root = tmp_path_factory.mktemp("a copy") / "guide"
    shutil.copytree(REPO, root, ignore=shutil.ignore_patterns(*LEAVE), symlinks=True)
    return root


def executable(path: Path, text: str) -> None:
    """Writes a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def above(page: Path, text: str) -> str:
    """Returns what a page says between the heading above a command and the command."""
    before = (REPO / page).read_text().partition(text)[0]
    return before[before.rfind("\n## ") :] if "\n## " in before else before


def has_packages(page: Path, text: str) -> bool:
    """Says whether a page has told the reader to install packages for `python`.

    The environment that this makes is the page's: another than the root's `.venv`.
    """
    return bool(re.search(r"(?<!python -m )pip install", above(page, text)))


def set_up(copy: Path, way: str, packages: bool = True) -> dict[str, str]:
    """Puts the way's programs behind their names; returns the environment.

    `packages` says whether the Python that is found by its name has some.
    """
    python, system = PYTHON, SYSTEM
    known = {"python": shlex.quote(sys.executable), "steps": str(STEPS)}
    known["starts"] = shlex.quote(STARTS)
    for name, text in {**WAYS[way], "scripts": " | ".join(SCRIPTS), **known}.items():
        python = python.replace(f"@{name}@", text)
        system = system.replace(f"@{name}@", text)
    own, names = copy / ".venv" / "bin", copy.parent / "bin"
    for name in ("python", "python3"):
        executable(own / name, python)
        executable(names / name, python if packages else system)
    executable(own / "tensorboard", STANDS_IN)
    for name, text in BEHIND.items():
        executable(names / name, text)
    for name, text in HOROVOD[way].items():
        for key, value in known.items():
            text = text.replace(f"@{key}@", value)
        path = copy / "Horovod" / ".venv" / "bin" / name
        executable(path, f"#!/usr/bin/env bash\n{text}\n")
    # As if `bash test.sh` had made the environment.
    stamp = 'source tools/setup.sh; for f in requirements requirements-dev; do stamp \
"$f.txt" "$(venv_version)" >".venv/$f.txt.stamp"; done'
    env = launch.environment(PATH=f"{names}{os.pathsep}{os.environ['PATH']}")
    for name in ("PYTHON", "VENV", "NUM_WORKERS", "MAX_RESTARTS", "KILL", "THOROUGH"):
        env.pop(name, None)
    subprocess.run(["bash", "-ec", stamp], cwd=copy, env=env, check=True)
    if way == "check":  # no task serves: no network has to be made for it
        env["OPEN_PORTS"] = env["CHECK"] = "1"
    return env


def where(copy: Path, page: Path, text: str) -> Path:
    """Returns the folder of a command: the page's, the root, or the script's.

    The page's if the first file that is named is there; a table for many machines
    stands in README.md and names a script of one folder.
    """
    here = copy / page.parent
    for word in re.findall(r"[\w./-]+\.(?:sh|py|txt|ipynb)\b", text):
        for folder in (here, copy, *(copy / name for name in registry.folders())):
            if (folder / word).is_file():
                return folder
        raise AssertionError(f"{page}: there is no {word}")
    return here


def terminals(text: str) -> list[str]:
    """Returns what is typed in each terminal: one, or one for each task by hand."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    tasks = [line for line in lines if "--task_index" in line]
    if len(tasks) < 2:
        return ["\n".join(lines)]
    shared = lines[: lines.index(tasks[0])]
    return ["\n".join([*shared, task]) for task in tasks]


def script_of(text: str) -> str:
    """Returns a program that runs each line and says its status at descriptor 3."""
    lines = text.splitlines()
    return "".join(f'{line}\necho "{n} $?" >&3\n' for n, line in enumerate(lines))


def expected(line: str) -> int:
    """Returns the status that a line should end with: what its comment says, or 0."""
    said = re.search(r"#.*with status (\d+)", line)
    return int(said[1]) if said else 0


def left(copy: Path) -> list[str]:
    """Returns the processes that still run something of the copy."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(copy) in words and process.pid != os.getpid():
            found.append(words)
    return found


def execute(copy: Path, page: Path, text: str, way: str, grows: bool = False) -> None:
    """Runs a block or command; asserts every line's status and that nothing is left.

    Files must be as before, unless the tree `grows`.
    """
    env = set_up(copy, way, grows or has_packages(page, text))
    folder, before = copy if grows else where(copy, page, text), launch.tree(copy)
    network = []
    tasks = terminals(text)
    if way == "run" and len(tasks) > 1:
        network = ["unshare", "--net"]
        if os.getuid():
            network = ["unshare", "--user", "--map-root-user", "--net"]
        missing = launch.without(network)
        if missing:
            pytest.skip(f"no network of its own for the printed ports: {missing}")
    # One process starts the terminals, so that they share that network.
    up = [sys.executable, str(REPO / "Engines" / "ports.py"), "up"]
    program = f"{shlex.join(up)} || exit 9\n" if network else ""
    for number, task in enumerate(tasks):
        file = copy.parent / f"terminal-{number}"
        file.write_text(script_of(task))
        said = copy.parent / f"status-{number}"
        said.write_text("")
        program += f"bash {shlex.quote(str(file))} 3>{shlex.quote(str(said))} &\n"
        if way == "check":
            program += "wait\n"
    with subprocess.Popen(
        [*network, "bash", "-c", program + "wait"],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS[way])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    for number, task in enumerate(tasks):
        lines = task.splitlines()
        said = (copy.parent / f"status-{number}").read_text().splitlines()
        statuses = dict(map(int, row.split()) for row in said)
        want = {n: expected(line) for n, line in enumerate(lines)}
        if way == "check":
            want = dict.fromkeys(want, 0)
        assert statuses == want, f"{page}\n{task}\n{output}"
    assert left(copy) == []
    after = launch.tree(copy)
    changed = [n for n in {**before, **after} if before.get(n) != after.get(n)]
    strange = [name for name in changed if not MAY_CHANGE.match(name)]
    assert grows or not strange


def some(page: Path) -> bool:
    """Says whether a page is tried in every test run, the others with THOROUGH=1.

    Those at the top and of docs/, and one folder of each family and of the engines.
    """
    families = [family.reference for family in registry.FAMILIES.values()]
    return str(page.parent) in (".", "docs", "Engines", "Engines/MPI", *families)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[] if some(p) else launch.if_thorough) for p in PAGES],
    ids=str,
)
def test_every_command_can_be_typed(page: Path, copy: Path) -> None:
    """Way `check`: files are there, flags and hosts are accepted, everything ends.

    What many pages have in a sentence, word for word, is tried on the first of them.
    """
    for text in [*blocks(page), *tasks(page)]:
        execute(copy, page, text, "check")
    for text in inline(page):
        first = next(p for p in PAGES if text in inline(p))
        if launch.THOROUGH or page == first or "run.sh" not in text:
            execute(copy, page, text, "check")


BARE = re.compile(
    r"(?:^|&& |\$ ) *(?:\w+=[\w./:]+ +)*(python3? +(?:[\w./-]+\.py\b|-m py).*)", re.M
)
ANY_PYTHON = (
    "tools/copies.py",
    "tools/registry.py",
)  # import nothing that is installed


def bare(page: Path, text: str) -> list[str]:
    """Returns the commands of a page for which the system's Python lacks packages."""
    code = [*re.findall(r"^```.*?^```", text, re.M | re.S)]
    code += INLINE.findall(FENCED.sub("", text))
    found = {match[1] for part in code for match in BARE.finditer(part)}
    found = {one for one in found if one.split()[1] not in ANY_PYTHON}
    return sorted(one for one in found if not has_packages(page, one))


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_command_needs_packages_of_the_system(page: Path) -> None:
    """Also those that are not executed: with dots, or in a ```text block."""
    assert bare(page, (REPO / page).read_text()) == []


BLOCKS = [(page, number) for page in PAGES for number in range(len(blocks(page)))]


@pytest.mark.timeout(SECONDS["run"] + 60)
@pytest.mark.parametrize(
    "page, number",
    [
        pytest.param(
            *block,
            id=f"{block[0]}-{block[1]}",
            marks=[] if (str(block[0]), block[1]) in RUN else launch.if_thorough,
        )
        for block in BLOCKS
    ],
)
def test_block_runs(page: Path, number: int, copy: Path) -> None:
    if "Horovod" in page.parts and launch.horovod():
        pytest.skip(launch.horovod())
    text = blocks(page)[number]
    for name, why in test_engines.MISSING.items():
        if why and (page.parent.name == name or f"Engines/{name}" in text):
            pytest.skip(why)
    if (str(page), number) in SHOWS:
        text = f"{blocks(page)[SHOWS[str(page), number]].splitlines()[0]}\n{text}"
    execute(copy, page, text, "run")


def patch(files: list[Path], diff: str) -> None:
    """Applies a diff as a page prints it: what it takes away is once in the files."""
    hunks = [diff] if re.search("^ ", diff, re.M) else re.findall(PAIR, diff, re.M)
    assert hunks
    for hunk in hunks:
        old = "".join(x[1:] for x in hunk.splitlines(keepends=True) if x[0] in " -")
        new = "".join(x[1:] for x in hunk.splitlines(keepends=True) if x[0] in " +")
        whole = re.compile("^" + re.escape(old), re.M)
        (file,) = [f for f in files if len(whole.findall(f.read_text())) == 1]
        file.write_text(file.read_text().replace(old, new))


PAIR = r"(?:^-.*\n)+(?:^\+.*\n)+"


def test_a_scheme_is_added_as_the_page_says(tmp_path: Path) -> None:
    """CONTRIBUTING.md from top to bottom: afterwards all is in sync, and it runs."""
    copy, new = tmp_path / "guide", "Sign-SGD"
    shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(*LEAVE), symlinks=True)
    page = (REPO / GROWS).read_text()
    fences = re.findall(r"^```(bash|diff)\n(.*?)^```", page, re.S | re.M)
    assert [kind for kind, _ in fences] == ["bash", "diff", "diff", "bash", "bash"]
    for kind, text in fences:
        if kind == "bash":
            execute(copy, Path(GROWS), text, "check", grows=True)
        else:
            of_folder = [p for p in (copy / new).iterdir() if p.is_file()]
            patch([copy / "tools" / "registry.py", *of_folder], text)
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    tool = [sys.executable, "tools/copies.py"]
    done = subprocess.run(tool, cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (copy / new / "README.md").read_text()
    assert "+3 −3 lines" in page and "tf.sign(g)" in page
    assert f"[{new}]({new}/)" in (copy / "README.md").read_text()
    task = ["--job_name=worker", "--task_index=1", "--ps_hosts=a:1"]
    task += ["--worker_hosts=b:1,c:1", "--check"]
    script = [sys.executable, "sign_sgd.py", *task]
    done = subprocess.run(script, cwd=copy / new, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_there_are_blocks() -> None:
    assert len(tasks(Path("README.md"))) == 1
    assert len(BLOCKS) > 25 and sum(len(inline(page)) for page in PAGES) > 20
    assert all(
        (page, number) in {(str(p), n) for p, n in BLOCKS} for page, number in RUN
    )
    for page in PAGES:  # a shell block is ```bash, so that it is found
        fences = re.findall(r"^```(\S+)$", (REPO / page).read_text(), re.M)
        known = {"bash", "text", "diff", "math", "mermaid", "yaml", "python", "bibtex"}
        assert set(fences) <= known | {"json", "dockerfile", "ini"}, page


@pytest.mark.parametrize(
    "text",
    [
        "bash run.sh --stepz 3",
        "bash rum.sh",
        "python hogwilt.py",
        "NUM_PS=x bash run.sh",
        "bash run.sh AGN --window 0",
        "python hogwild.py --job_name ps --task_index 9 --ps_hosts p:1 "
        "--worker_hosts a:1",
        "jupyter lab No.ipynb",
        "bash run.sh   # ends with status 1\nno_such_command",
    ],
)
def test_a_bad_command_is_found(text: str, copy: Path) -> None:
    with pytest.raises(AssertionError):
        execute(copy, Path("README.md"), text, "check")


@pytest.mark.quick
@pytest.mark.parametrize("folder", registry.folders())
def test_a_page_names_only_flags_that_there_are(folder: str) -> None:
    """Also in commands with dots, which are not executed."""
    script = registry.script_of(folder)
    command = [sys.executable, "-B", script, "--help"]
    said = subprocess.check_output(command, cwd=REPO / folder, text=True)
    known = set(re.findall(r"--\w+", said))
    page = (REPO / folder / "README.md").read_text()
    code = [*re.findall(r"^```(?:bash|text)\n.*?^```", page, re.M | re.S)]
    code += INLINE.findall(FENCED.sub("", page))
    begin = rf"^(?:.*[ =])?(?:bash run\.sh|{re.escape(script)})"
    typed = rf"{begin} *([^#|;&`\n]*)"
    commands = [c for part in code for c in re.findall(typed, part, re.M)]
    flags = {flag for command in commands for flag in re.findall(r"--\w+", command)}
    assert len(commands) > 1 and flags <= known


def test_a_status_in_a_comment_is_expected() -> None:
    assert expected("KILL=x bash run.sh  # the run ends, with status 137") == 137
    assert expected("bash run.sh  # 2 workers") == 0


def test_terminals_run_apart() -> None:
    text = "A=1\npython x.py --task_index 0\npython x.py --task_index 1 --b c\n"
    assert terminals(text) == [
        "A=1\npython x.py --task_index 0",
        "A=1\npython x.py --task_index 1 --b c",
    ]
    assert terminals("a \\\n  b\n") == ["a b"]
