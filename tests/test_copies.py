"""The copies between the folders, what the pages show, and the map of `cluster/`."""

import ast
import graphlib
import re
import shutil
import sys
from pathlib import Path

import copies
import pytest
import registry
from sections import read
from tree import LEFT_BEHIND, REPO, edit, files, run, short

EXAMPLES = registry.folders()
SOURCES = copies.sources(REPO)
COPIES = {path: there for path, there in SOURCES.items() if there not in ("", path)}
WHOLE = {p for p in COPIES if copies.whole(p.partition("/")[2], read(REPO / p))}

PAGES = ("README.md", "docs/which-example.md", "docs/clusters.md", ".gitattributes")

pytestmark = pytest.mark.quick


def tool(root: Path, *options: str, name: str = "copies") -> str:
    """Runs the tool of a tree; returns its findings, nothing if all is in sync."""
    done = run(sys.executable, "-B", root / "tools" / f"{name}.py", *options)
    assert "Traceback" not in done.stderr
    assert done.returncode == bool(done.stderr), done.stderr
    return done.stderr


# --- This tree ----------------------------------------------------------------


def test_copies_are_in_sync() -> None:
    assert tool(REPO) == tool(REPO, name="pages") == ""
    assert {path.partition("/")[0] for path in COPIES} >= {*EXAMPLES}


def test_every_file_is_checked(tmp_path: Path) -> None:
    """Each file that has an original, in one folder of each family and of no family."""
    every = [example.folder for example in registry.EXAMPLES]
    leave = shutil.ignore_patterns(*LEFT_BEHIND, "*.svg", "*.png", "*.ipynb")
    for folder in [*every, copies.ORIGINALS, "tools", "docs"]:
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=leave)
    for page in PAGES:
        shutil.copy(REPO / page, tmp_path / page)
    assert tool(tmp_path) == ""
    last = {registry.of(path.partition("/")[0]).family: path for path in COPIES}
    folders = {path.partition("/")[0] for path in last.values()}
    paths = [path for path in COPIES if path.partition("/")[0] in folders]
    for path in paths:
        # Where the shared part of a problem.py of one's own is, if it is one.
        text, end = read(tmp_path / path), "\n# --- Model "
        at = text.find(end) if path not in WHOLE and end in text else len(text)
        (tmp_path / path).write_text(f"{text[:at]}# one line more\n{text[at:]}")
    found = tool(tmp_path)
    assert [path for path in paths if f"{path}:" not in found] == []
    (tmp_path / "Novel" / "cluster").mkdir(parents=True)
    assert "copies: Novel/: not in the registry\n" in tool(tmp_path)
    for page in PAGES:
        (tmp_path / page).unlink()
    found = tool(tmp_path, "--write")
    assert "README.md: wanted once, on lines of their own: " in found


def test_an_empty_tree_fails(tmp_path: Path) -> None:
    found = tool(REPO, "--root", str(tmp_path))
    for example in registry.EXAMPLES:
        assert f"{example.folder}/: in the registry, not there\n" in found


def test_registry() -> None:
    known: list[str] = []
    for example in registry.EXAMPLES:
        assert registry.of(example.folder) is example
        assert example.sentence.isascii()  # --list prints to any terminal
        assert len(example.folder + example.sentence) <= 83
        assert example.group in registry.GROUPS
        assert example.parent is None or example.parent in known
        known += [example.folder] if example.family else []
    for name, family in registry.FAMILIES.items():
        assert registry.of(family.reference).family == name
        assert (REPO / family.problem / "problem.py").exists()
    assert registry.script_of("DOWNPOUR-Easy") == "downpour_easy.py"
    grouped = [e for _, members in registry.by_group() for e in members]
    assert grouped == registry.EXAMPLES


# --- A toy tree, with a registry of its own ------------------------------------

TOYS = "Non-Distributed-Setup", "Distributed-Setup", "HogWild", "Horovod"
HOGWILD = "HogWild/hogwild.py"
REGISTRY = f"""
EXAMPLES = [e._replace(sentence="a toy.") for e in EXAMPLES if e.folder in {TOYS}]
FAMILIES = {{name: FAMILIES[name] for name in ("single", "ps")}}
"""


def banner(title: str) -> str:
    return f"# --- {title} ".ljust(79, "-") + "\n"


def section(title: str, body: str) -> str:
    return f"\n{banner(title)}\n{body}\n"


@pytest.fixture(scope="session")
def in_sync(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a committed tree of four toy examples, one of them without a family."""
    root = tmp_path_factory.mktemp("toys")
    (root / "tools").mkdir()
    (root / "docs").mkdir()
    names = ("copies.py", "lab.txt", "pages.py", "reading.py", "sections.py")
    for name in names:
        shutil.copy(REPO / "tools" / name, root / "tools")
    text = (REPO / "tools" / "registry.py").read_text() + REGISTRY
    (root / "tools" / "registry.py").write_text(text)
    texts = {
        "problem.py": "import datasets\n",
        "datasets.py": "import numpy\n",
        "cluster/__init__.py": '"""Rooms."""\n',
        "cluster/high.py": "from cluster import low\n",
        "cluster/low.py": "import sys\n",
    }
    for name, text in {**texts, "run.sh": f"SCRIPT=a\n{banner('below')}exit\n"}.items():
        (root / copies.ORIGINALS / name).parent.mkdir(parents=True, exist_ok=True)
        (root / copies.ORIGINALS / name).write_text(text)
    for folder in TOYS:
        parent = registry.of(folder).parent
        script = f'"""{folder}: a toy."""\n'
        script += section("Imports", "import problem\nfrom cluster import high")
        script += section("Graph [algorithm]", f"rule = {folder!r}")
        script += section("Worker", "def work():\n    return 1\n")
        texts[registry.script_of(folder)] = script
        texts["run.sh"] = f"SCRIPT={folder}\n{banner('below')}exit\n"
        texts["README.md"] = f"# {folder}\n" + (
            f"\n## What changes from {parent}\n\nWords.\n\n<!-- diff:begin -->\n"
            "<!-- diff:end -->\n\n## Reference\n"
        ) * bool(parent)
        for name, text in texts.items():
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_text(text)
        del texts[registry.script_of(folder)]
    (root / "Horovod" / "run.sh").write_text("exit  # as it likes\n")
    (root / ".gitattributes").write_text("* text=auto\n# Generated.\n")
    for name, page in zip(("index", "details", "engines"), PAGES, strict=False):
        (root / page).write_text(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n")
    assert tool(root, "--write") == tool(root) == ""
    git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    run("git", "init", "-q", root)
    run(*git, "add", ".")
    assert run(*git, "commit", "-qm", "toys").returncode == 0
    return root


@pytest.fixture
def toys(in_sync: Path, tmp_path: Path) -> Path:
    """Returns such a tree that a test may change."""
    return shutil.copytree(in_sync, tmp_path / "toys", symlinks=True)


WORKER, PAGE = banner("Worker"), "HogWild/README.md"
BLOCK = "<!-- index:begin -->\n<!-- index:end -->\n"
TWICE = "\nEXAMPLES += EXAMPLES[:1]\nFAMILIES = {n"


# fmt: off
@pytest.mark.parametrize(
    ("path", "old", "new", "finding"),
    [
        # A registry that does not fit the folders.
        ("tools/registry.py", "\nFAMILIES = {n", TWICE, "twice in the registry"),
        ("tools/registry.py", '("single", ', '("ps", ', "there is no family single"),
        ("tools/registry.py", "'HogWild', ", "", "HogWild/: not in the registry"),
        ("tools/registry.py", '"a toy."', '"toy."', "its first line is not the regi"),
        # A script that is more than its idea.
        (HOGWILD, "return 1", "return 2", f"{HOGWILD}:15: Worker differs from that of"),
        (HOGWILD, WORKER, banner("Others"), "sections are ['Imports', 'Graph', 'Othe"),

        (HOGWILD, "\n# ---", "\nimport os\n# ---", "only the docstring may stand"),
        (HOGWILD, "rule", "rule =", f"{HOGWILD}:10: invalid syntax"),
        # What cannot be copied with the folder.
        (HOGWILD, "rule", "import yaml\nrule", "imports yaml, which it may not"),
        (HOGWILD, "rule", "from cluster import *\nrule", "imports cluster.*, which"),
        (HOGWILD, "rule", "from . import problem\nrule", "imports ..problem, which"),
        (HOGWILD, "rule", "import cluster.no\nrule", "HogWild/cluster/no.py: missing"),
        ("HogWild/cluster/low.py", "sys", "problem", "low.py:1: imports problem, "),
        ("HogWild/problem.py", "datasets", "hogwild", "problem.py:1: imports hogwild"),
        ("HogWild/run.sh", "SCRIPT=", "ls\nSCRIPT=", "run.sh: not allowed in the"),
        ("HogWild/run.sh", "exit", "exit 1", "HogWild/run.sh:3: below differs from"),
        # In a folder without a family, too, but for its script and launcher.
        ("Horovod/horovod.py", "rule", "import no\nrule", "imports no, which it may"),
        ("Horovod/problem.py", "", "x", "Horovod/problem.py:1: the file differs from"),
        ("Horovod/cluster/low.py", "", "x", "low.py:1: the file differs from that of"),
        # A page that is not up to date, or has no place for what is generated.
        (PAGE, "+rule", "+role", f"{PAGE}: what is generated in it is not up to date"),
        (PAGE, "diff:begin", "diff", f"{PAGE}: wanted once, under `## What changes f"),

        ("README.md", "| [HogWild](HogWild/)", "| HogWild", "README.md: what is gene"),
        ("README.md", "", BLOCK, "README.md: wanted once, on lines of their own: <!--"),
        ("docs/which-example.md", "| +1 −1 ", "| +1 −2 ", "example.md: what is gene"),
        ("docs/clusters.md", "[Spark](", "[spark](", "clusters.md: what is generated"),
        (".gitattributes", "linguist-g", "linguist", ".gitattributes: does not list"),
    ],
)
# fmt: on
def test_what_is_not_in_sync_is_found(
    path: str, old: str, new: str, finding: str, toys: Path
) -> None:
    edit(toys / path, old, new)
    assert finding in tool(toys)


def test_a_whole_program_may_have_files_beside_its_script(toys: Path) -> None:
    """And packages that it declares; each imports what a folder then has to have."""
    (toys / "Horovod" / "beside.py").write_text(
        "import yaml\nfrom cluster.low import x\n"
    )
    edit(toys / "Horovod" / "horovod.py", "rule", "import beside\nrule")
    edit(toys / "Horovod" / "horovod.py", "import high", "import low")
    (toys / "Horovod" / "requirements.txt").write_text("\n# One.\nyaml==1\n")
    assert tool(toys).splitlines()[:-2] == [
        "copies: Horovod/cluster/high.py: nothing in Horovod needs it"
    ]


def test_a_run_sh_brings_what_it_calls(toys: Path) -> None:
    (toys / "Horovod" / "run.sh").write_text('python "$here/cluster/new.py" 3\n')
    (toys / copies.ORIGINALS / "cluster" / "new.py").write_text("import os\n")
    assert "Horovod/cluster/new.py: missing" in tool(toys)
    assert tool(toys, "--write") == ""
    assert (toys / "Horovod" / "cluster" / "new.py").exists()
    assert not (toys / "HogWild" / "cluster" / "new.py").exists()
    edit(toys / "Horovod" / "run.sh", "python", f"{banner('below')}python")
    assert "Horovod/run.sh:2: below differs" in tool(toys)  # it says that it is a copy


def test_only_three_sections_are_a_schemes_own(toys: Path) -> None:
    more = "".join(section(title, "") for title in ("One", "Two"))
    for toy in toys.glob("*/*.py"):
        if banner("Worker") in toy.read_text():
            edit(toy, "\n" + banner("Worker"), more + "\n" + banner("Worker"))
    titles = ("Imports", "Worker", "One", "Two")
    for number, title in enumerate(titles, 2):
        edit(toys / HOGWILD, banner(title), banner(f"{title} [algorithm]"))
        found = f"{HOGWILD}: {number} sections say [algorithm], at most 3 may"
        assert (found in tool(toys)) == (number > 3)


def test_functions_of_one_name_have_one_body(toys: Path) -> None:
    single = toys / "Non-Distributed-Setup" / "non_distributed_setup.py"
    edit(single, "return 1", "return 2")
    found = f"{HOGWILD}:14: work is not the one of Non-Distributed-Setup/"
    assert found in tool(toys)
    edit(single, "def work", "def main")
    assert "work is not the one" not in tool(toys)
    edit(single, "rule", "def work(x):\n    return x\n\n\nrule")
    assert "work is not the one" not in tool(toys)


def test_what_is_generated(toys: Path) -> None:
    page = (toys / "HogWild" / "README.md").read_text()
    assert (
        "Words.\n\n<!-- diff:begin -->\n+1 −1 lines, generated from the two scripts.\n"
        "\n```diff\n@@ Graph @@\n-rule = 'Distributed-Setup'\n+rule = 'HogWild'\n```\n"
        "<!-- diff:end -->\n\n## Reference\n" in page
    )
    table = (toys / "README.md").read_text()
    assert "\n| **Nobody waits** | [HogWild](HogWild/): a toy. |\n" in table
    table = (toys / "docs" / "which-example.md").read_text()
    paper = "[Niu et al. 2011](https://arxiv.org/abs/1106.5730)"
    link, changed = "[HogWild](../HogWild/)", "+1 −1 from Distributed-Setup"
    assert f"\n| {link} | async | gradient | {changed} | {paper} |\n" in table
    assert "Engines/Kubernetes/" in (toys / "docs" / "clusters.md").read_text()


def test_write_spreads_a_change_of_an_original(toys: Path) -> None:
    """In one go: a module that a shared section now needs comes with it."""
    originals, others = toys / copies.ORIGINALS, toys / "HogWild"
    reference = toys / "Distributed-Setup" / "distributed_setup.py"
    edit(reference, "import high", "import high, new")
    edit(originals / "run.sh", "exit\n", "exit 0\n")
    (originals / "cluster" / "new.py").write_text("import os\n")
    (others / "cluster" / "high.py").unlink()
    assert (
        "\n    here:  from cluster import high\n    there: from cluster import high, n"
        in tool(toys)
    )
    assert tool(toys, "--write") == ""
    assert "rule = 'HogWild'" in (others / "hogwild.py").read_text()
    assert (others / "run.sh").read_text().endswith("exit 0\n")
    assert {p.parts[-3] for p in toys.glob("*/cluster/new.py")} == {
        copies.ORIGINALS,
        *TOYS[1:3],
    }
    assert (others / "cluster" / "high.py").exists()
    assert "*/cluster/*.py linguist-gen" in (toys / ".gitattributes").read_text()


@pytest.mark.parametrize(
    "name", ["hogwild.py", "problem.py", "run.sh", "cluster/low.py", "cluster/more.py"]
)
def test_write_does_not_lose_what_somebody_wrote(name: str, toys: Path) -> None:
    path = toys / "HogWild" / name
    path.write_text(read(path) + "x = 3\n")
    found = tool(toys, "--write")
    assert f"copies: HogWild/{name}: edited, and " in found
    assert "x = 3" in path.read_text()
    assert tool(toys, "--write", "--force") == ""
    assert "x = 3" not in read(path)


def test_write_leaves_what_it_cannot_repair(toys: Path) -> None:
    """A lost section, a mistake in a script, an original that is not there."""
    edit(toys / HOGWILD, banner("Graph [algorithm]"), "")
    edit(toys / "Horovod" / "horovod.py", "rule =", "rule = =")
    (toys / copies.ORIGINALS / "problem.py").unlink()
    paths = [toys / HOGWILD, *toys.glob("Horovod/**/*.py"), *toys.glob("*/problem.py")]
    before = [read(path) for path in paths]
    found = tool(toys, "--write", "--force")
    assert f"{HOGWILD}: its sections are " in found
    assert "Horovod/horovod.py:10: " in found
    assert "HogWild/problem.py: its original is not there: originals/" in found
    assert [read(path) for path in paths] == before


def test_write_takes_what_is_not_needed(toys: Path) -> None:
    """As committed it can be had again; what is nowhere else stays."""
    for toy in toys.glob("*/*.py"):
        toy.write_text(toy.read_text().replace("import high", "import low"))
    (toys / "HogWild" / "cluster" / "notes.txt").write_text("mine\n")
    found = tool(toys, "--write")
    assert not list(toys.glob("[A-Z]*/cluster/high.py"))
    assert len(list(toys.glob("[A-Z]*/cluster/low.py"))) == len(TOYS)
    assert "cluster/notes.txt: edited, and no other file is" in found


def test_lines_are_counted() -> None:
    done = run(sys.executable, "tools/pages.py", "--lines")
    rows = {x.split()[0]: x.split()[1:] for x in done.stdout.splitlines()[1:]}
    assert (done.returncode, list(rows)) == (0, EXAMPLES)
    script = (REPO / "HogWild" / "hogwild.py").read_text()
    assert int(rows["HogWild"][0]) == len(script.splitlines())
    assert all(sum(map(int, row[:3])) == int(row[3]) for row in rows.values())


# --- The modules of cluster/ --------------------------------------------------

MODULES = {path.stem: path for path in (REPO / copies.ORIGINALS).glob("cluster/*.py")}
del MODULES["__init__"]
REFERENCE = registry.FAMILIES["ps"].reference
ROW = re.compile(r"^\| \[?`cluster/(\w+)\.py`", re.M)
MAP = (REPO / "docs" / "folder.md").read_text()


def have(folder: str) -> set[str]:
    """Returns the modules that a folder has."""
    return {path.stem for path in (REPO / folder).glob("cluster/*.py")} - {"__init__"}


@pytest.mark.parametrize("folder", EXAMPLES)
def test_the_map_is_true(folder: str) -> None:
    """A page lists no module that is not there, and none that every folder may have."""
    rows = ROW.findall((REPO / folder / "README.md").read_text())
    assert len(rows) == len({*rows}) and {*rows} <= have(folder) - {*ROW.findall(MAP)}


def test_each_module_is_on_a_map() -> None:
    """Those of the reference are in docs/folder.md, the others on a folder's page."""
    rows = ROW.findall(MAP)
    assert len(rows) == len({*rows}) and {*rows} == have(REFERENCE)
    pages = [(REPO / folder / "README.md").read_text() for folder in EXAMPLES]
    listed = {name for page in [MAP, *pages] for name in ROW.findall(page)}
    assert listed >= {*MODULES}


def test_imports_of_modules_run_one_way() -> None:
    """No module needs one that needs it, directly or not."""
    calls = {}
    for name, path in MODULES.items():
        body = ast.parse(read(path)).body  # not what a function imports when it runs
        own = [n for n in body if getattr(n, "module", None) == "cluster"]
        calls[name] = {alias.name for node in own for alias in node.names}
        whole = [getattr(n, "module", None) or "" for n in body]
        calls[name] |= {m.partition(".")[2] for m in whole if m.startswith("cluster.")}
    assert {*graphlib.TopologicalSorter(calls).static_order()} >= {*MODULES}


def test_copies_are_marked_for_a_hosting_site() -> None:
    names = [short(path) for path in files("")]
    mark = "linguist-generated"
    done = run("git", "check-attr", "--stdin", mark, input="\n".join(names))
    rows = (line.split(f": {mark}: ") for line in done.stdout.splitlines())
    assert {name for name, value in rows if value == "set"} == WHOLE
