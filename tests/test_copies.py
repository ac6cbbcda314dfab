"""The copies between the folders, what each folder has, and the map of `cluster/`."""

import ast
import itertools
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import copies
import launch
import pytest
import registry
from tree import LEFT_BEHIND, REPO, edit, files, run, short

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
# One folder of each family: tools/copies.py looks at all of a family in the same way.
LAST = {registry.of(folder).family: folder for folder in EXAMPLES}

# The pages that have a generated table of all examples or engines, by its name.
INDEXES = {
    "index": "README.md",
    "details": "docs/which-example.md",
    "engines": "docs/clusters.md",
}

pytestmark = pytest.mark.quick


def planted(root: Path) -> Path:
    """Returns a copy of what tools/copies.py looks at, in a directory of its own."""
    leave = shutil.ignore_patterns(*LEFT_BEHIND)
    for example in registry.EXAMPLES:
        shutil.copytree(REPO / example.folder, root / example.folder, ignore=leave)
    for page in INDEXES.values():
        (root / page).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / page, root / page)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a copy that a test may change."""
    return planted(tmp_path / "tree")


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the findings in a copy that nobody has changed."""
    return copies.check(planted(tmp_path_factory.mktemp("before") / "tree"))[0]


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


@pytest.mark.parametrize("folder", launch.some([*LAST.values()], EXAMPLES))
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
        (dict(group="Talk"), "README.md: what is generated in it is not up to date"),
        (dict(mode="no"), "which-example.md: what is generated in it is not up to"),
        (dict(pushed="no"), "which-example.md: what is generated in it is not up to"),
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
    shutil.copy(tree / "SAGN" / "cluster" / "sync.py", hogwild / "cluster")
    (hogwild / "cluster" / "notes.txt").write_text("")
    assert added(tree, before) == [
        "HogWild/cluster/notes.txt: not a module",
        "HogWild/cluster/sync.py: nothing in HogWild imports it",
    ]
    script = hogwild / "hogwild.py"
    edit(script, "from cluster.stats import Stats\n", "")
    script.write_text(script.read_text() + "\nfrom cluster import sync\n")
    found = added(tree, before)
    assert "HogWild/cluster/sync.py: nothing in HogWild imports it" not in found
    (hogwild / "cluster" / "sync.py").unlink()
    assert "HogWild/cluster/sync.py: missing" in added(tree, before)
    assert "HogWild/cluster/stats.py: missing" not in added(tree, before)  # run's
    (hogwild / "cluster" / "addresses.py").unlink()  # which only flags.py imports
    assert "HogWild/cluster/addresses.py: missing" in added(tree, before)


def test_a_folder_without_a_family_is_checked(tree: Path, before: list[str]) -> None:
    """It has a script and a launcher of its own, and modules that are copies."""
    folders = [name for name in COPIED if name not in EXAMPLES]
    assert folders
    for folder in folders:
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
                [*of_folder.glob("problem.py"), *of_folder.glob("datasets.py")],
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
        line = "import cluster.task\n"
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
        ("problem.py", "from cluster import stats", "imports cluster.stats, which"),
        ("problem.py", "from cluster.task import fail", "imports cluster.task, "),
        ("problem.py", "import sklearn", "imports sklearn, which it may not"),
        ("datasets.py", "import problem", "imports problem, which it may not"),
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
        ("SCRIPT=${SCRIPT:-other.py}\n", "does not say SCRIPT=hogwild.py"),
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
    usual = "SCRIPT=${SCRIPT:-hogwild.py}\n"
    edit(tree / "HogWild" / "run.sh", usual, header)
    assert finding in "\n".join(added(tree, before))


def test_a_header_may_name_a_launcher_of_its_own(tree: Path, before: list[str]) -> None:
    named = "LAUNCH=launcher.py # kills tasks\n"
    edit(tree / "HogWild" / "run.sh", copies.MARKER, named + copies.MARKER)
    assert added(tree, before) == []
    function = "look() { # ten times a second\n  date\n}\n"
    edit(tree / "HogWild" / "run.sh", copies.MARKER, function + copies.MARKER)
    assert "not allowed in the header: look() {" in "\n".join(added(tree, before))


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
        for file in ("problem.py", copies.DATASETS):
            (root / folder / file).write_text("import numpy\n")
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
    (root / "docs").mkdir()
    for name, page in INDEXES.items():
        text = f"<!-- {name}:begin -->\n<!-- {name}:end -->\n"
        (root / page).write_text(text)
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
    first, row = index.partition("<!-- index:end -->")[0].splitlines()[-3:-1]
    assert row == "| **Nobody waits** | [HogWild](HogWild/): a toy. |"
    assert first.startswith("| **Start here** | ") and first.count(": a toy.<br>[") == 1
    table = (small / "docs" / "which-example.md").read_text()
    row = table.partition("<!-- details:end -->")[0].splitlines()[-2]
    paper = "[Niu et al. 2011](https://arxiv.org/abs/1106.5730)"
    link, changed = "[HogWild](../HogWild/)", "+1 −1 from Distributed-Setup"
    assert row == f"| {link} | async | gradient | {changed} | {paper} |"


@pytest.mark.parametrize(
    ("page", "old", "new", "finding"),
    [
        ("HogWild/README.md", "+rule", "+role", "HogWild/README.md: what is generated"),
        ("HogWild/README.md", "diff:begin", "diff", "HogWild/README.md: wanted once"),
        ("HogWild/README.md", "from Dist", "from dist", "HogWild/README.md: wanted"),
        ("README.md", "| [HogWild](HogWild/)", "| HogWild", "README.md: what is gener"),
        ("README.md", "a toy.<br>", "a toy<br>", "README.md: what is generated"),
        ("README.md", "index:end", "index", "README.md: wanted once, on lines of"),
        ("README.md", "", "<!-- index:begin -->\n<!-- index:end -->\n", "wanted once"),
        (INDEXES["details"], "| +1 −1 ", "| +1 −2 ", "which-example.md: what is gen"),
        (INDEXES["details"], "details:begin", "details", "which-example.md: wanted"),
        (INDEXES["engines"], "[Spark](", "[spark](", "clusters.md: what is generated"),
        (INDEXES["engines"], "<!-- engines:end -->", "", "clusters.md: wanted once"),
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


@pytest.mark.parametrize(
    "name", ["hogwild.py", "problem.py", "datasets.py", "cluster/low.py"]
)
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


# --- The modules of cluster/ --------------------------------------------------

MODULES = {
    module: copies.read(REPO / folder / "cluster" / f"{module}.py")
    for module, folder in PLAN.originals.items()
}
SHORT = 27  # lines of a run.sh
ROW = re.compile(r"^\| \[?`cluster/(\w+)\.py`", re.M)


def have(folder: str) -> set[str]:
    """Returns the modules that a folder has."""
    names = {path.stem for path in (REPO / folder / "cluster").glob("*.py")}
    return names - {"__init__"}


def to_list(folder: str) -> set[str]:
    """Returns the modules that the map on a folder's page has to list.

    On that of Distributed-Setup it is all that it has; on that of another family's
    reference, what it has beside those; on any other what has its original there.
    """
    family = registry.FAMILIES.get(registry.of(folder).family)
    if folder == copies.REFERENCE:
        return have(folder)
    if family and folder == family.reference:
        return have(folder) - have(copies.REFERENCE)
    return {module for module in have(folder) if PLAN.originals.get(module) == folder}


def map_of(folder: str) -> list[str]:
    """Returns the modules in the tables of a folder's page, in their order."""
    return ROW.findall((REPO / folder / "README.md").read_text())


def unlike(listed: list[str], wanted: set[str]) -> list[str]:
    """Returns what is wrong with the map on a page."""
    found = [f"{name}: {listed.count(name)} rows" for name in sorted({*listed})]
    found = [line for line in found if not line.endswith(": 1 rows")]
    found += [f"{name}: not there" for name in sorted({*listed} - wanted)]
    return found + [f"{name}: not listed" for name in sorted(wanted - {*listed})]


@pytest.mark.parametrize("folder", COPIED)
def test_the_map_is_true(folder: str) -> None:
    assert unlike(map_of(folder), to_list(folder)) == []


def test_the_map_says_what_to_read_first() -> None:
    page = (REPO / copies.REFERENCE / "README.md").read_text()
    first = re.findall(r"^\| `cluster/.*\| (\d) \|$", page, re.M)
    assert sorted(first) in (["1", "2", "3"], ["1", "2", "3", "4"])


def test_a_wrong_map_is_found() -> None:
    page = "| `cluster/a.py` | x |\n| [`cluster/b.py`](cluster/b.py) | y |\n"
    assert ROW.findall(page) == ["a", "b"]
    assert unlike(["a", "b"], {"a", "b"}) == []
    assert unlike(["a", "b"], {"a", "c"}) == ["b: not there", "c: not listed"]
    assert unlike(["a", "a"], {"a"}) == ["a: 2 rows"]
    assert all(
        to_list(folder)
        for folder in (copies.REFERENCE, *PLAN.originals.values())
        if folder in COPIED
    )


# The modules as the pages list them, a caller before what it calls: a later folder's
# stand on those of the folders before it, and all on those of Distributed-Setup.
LATER = [folder for folder in reversed(COPIED) if folder != copies.REFERENCE]
ORDER = [
    module
    for folder in (*LATER, copies.REFERENCE)
    for module in map_of(folder)
    if PLAN.originals.get(module) == folder
]


def house(modules: dict[str, str], order: list[str]) -> list[str]:
    """Returns what is wrong with the modules of `cluster/`, given by name.

    `order` has their names, a caller before what it calls.
    """
    found = []
    for name, text in sorted(modules.items()):
        first, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
        if not re.fullmatch(r"\S+( \S+){3,}[.?]", first) or (rest and rest[0] != "\n"):
            found.append(
                f"{name}: its first line is not a sentence that says what it is"
            )
        below = order[order.index(name) + 1 :] if name in order else []
        for module in sorted(copies.modules_of(text) - set(below)):
            found.append(f"{name}: imports {module}, which is not below it")
    return found


def test_house() -> None:
    assert sorted(ORDER) == sorted(set(MODULES) - {"__init__"})
    assert house(MODULES, ORDER) == []


def test_the_package_says_where_its_map_is() -> None:
    text = ast.get_docstring(ast.parse(MODULES["__init__"]))
    assert "README.md of Distributed-Setup" in text and len(text.splitlines()) <= 3


TOY_HOUSE = {
    "__init__": '"""What the toy is made of."""\n',
    "high": '"""It calls the other one."""\nfrom cluster import low\n',
    "low": '"""It is called by the other.\n\nNo more."""\nimport sys\n',
}


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("low", TOY_HOUSE["low"] + "from cluster import high\n", "low: imports high"),
        ("low", TOY_HOUSE["low"] + "import cluster.low\n", "low: imports low"),
        ("low", TOY_HOUSE["low"] + "from cluster.no import x\n", "low: imports no"),
        ("low", "import sys\n", "low: its first line is not a sentence"),
        ("low", '"""The low."""\n', "low: its first line is not a sentence"),
        ("low", '"""It is called by\nthe other."""\n', "low: its first line is not"),
        ("more", '"""A module that is not listed."""\nimport cluster.low\n', "low, wh"),
    ],
)
def test_house_can_fail(name: str, text: str, finding: str) -> None:
    order = ["high", "low"]
    assert house(TOY_HOUSE, order) == []
    assert finding in "\n".join(house({**TOY_HOUSE, name: text}, order))


@pytest.mark.parametrize("folder", EXAMPLES)
def test_run_sh_is_short(folder: str) -> None:
    lines = (REPO / folder / "run.sh").read_text().splitlines()
    assert 10 < len(lines) <= SHORT


# --- What a hosting site shows ------------------------------------------------

MARKS = ("linguist-generated", "linguist-vendored")
# Every file that is a copy as a whole.
WHOLE = {
    f"{folder}/{name}"
    for folder, names in COPIED.items()
    for name in names
    if not any(
        part.own for part in copies.split(name, copies.read(REPO / folder / name))
    )
}


def marked(root: Path, names: list[str]) -> dict[str, set[str]]:
    """Returns, for each mark, the files of a repository that have it."""
    command = ("git", "check-attr", "-z", "--stdin", *MARKS)
    done = run(*command, cwd=root, input="".join(f"{name}\0" for name in names))
    assert done.returncode == 0, done.stderr
    fields = done.stdout.split("\0")
    rows = zip(fields[::3], fields[1::3], fields[2::3], strict=False)
    found: dict[str, set[str]] = {mark: set() for mark in MARKS}
    for name, mark, value in rows:
        if value == "set":
            found[mark].add(name)
    return found


def everything() -> list[str]:
    """Returns the paths of all files of the repository."""
    return [short(path) for path in files("")]


def test_copies_are_marked_for_a_hosting_site() -> None:
    assert len(WHOLE) > 300 and "HogWild/cluster/run.py" in WHOLE
    assert {"HogWild/problem.py", "HogWild/datasets.py"} <= WHOLE
    assert "HogWild/run.sh" not in WHOLE
    assert marked(REPO, everything()) == dict.fromkeys(MARKS, WHOLE)


def test_a_wrong_mark_is_found(tmp_path: Path) -> None:
    run("git", "init", "-q", tmp_path)
    lines = (REPO / ".gitattributes").read_text().splitlines(keepends=True)
    rules = [n for n, line in enumerate(lines) if "linguist" in line]
    assert len(rules) > 10
    for number in rules:
        less = lines[:number] + lines[number + 1 :]
        (tmp_path / ".gitattributes").write_text("".join(less))
        assert marked(tmp_path, everything()) != dict.fromkeys(MARKS, WHOLE)
