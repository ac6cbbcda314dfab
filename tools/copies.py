"""Checks, and repairs, the deliberate duplication between the example folders.

    python tools/copies.py              check; status 1 and the findings if it fails
    python tools/copies.py --write      copy the shared parts from their originals into
                                        every folder, regenerate what READMEs show
    python tools/copies.py --lines      print how many lines each folder has

`problem.py`, `datasets.py`, and `run.sh` below its marker are the same bytes in every
folder, and so is every module of `cluster/` wherever a folder has it; a folder has
those that its scripts import, directly or not, and no others. A script is divided by
banners; the sections whose banner says `[algorithm]` are the scheme's own, all others
are those of its family's reference. A `problem.py` with such a section is one of its
own, and has the other sections of the usual one. Which folders there are, and of which
family, says registry.py. In a folder without a family that has a problem.py, that file
and the modules are copies, script and run.sh are its own. There is no list of
exclusions: an idea is marked where it stands.
"""

import argparse
import ast
import difflib
import functools
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import registry
from registry import script_of

# Where to edit what all folders share. A module that it does not need itself has its
# original in the first folder that does.
REFERENCE = registry.FAMILIES["ps"].reference
Examples = list[registry.Example]

DATASETS = "datasets.py"  # of a problem.py that is not a folder's own
MARKER = "# --- identical in every example below this line ---\n"
BANNER = re.compile(r"( *)# --- (\S.*?) (\[algorithm\] )?-{3,}\n")
# Of run.sh: variables, of which LAUNCH names a launcher that is the folder's own.
HEADER = re.compile(r"#.*|(SCRIPT|NUM_PS|NUM_WORKERS|PEERS|LAUNCH)=\S+( +#.*)?")
DIFF = re.compile(r"(?<=<!-- diff:begin -->\n).*?(?=<!-- diff:end -->)", re.S)
CALLED = re.compile(r"\bcluster/(\w+)\.py\b")  # in run.sh
PACKAGES = {*sys.stdlib_module_names, "numpy", "tensorflow"}
BANNED = ("pkill", "noqa", "parse_known_args", "tf.contrib", "_collections")
MOST, SHARE, IDEAS = 190, 0.5, 3
HINT = (
    "If the change is meant for all: edit the original (`there`) and run `python "
    "tools/copies.py --write`. If it is this scheme's idea: move it into an "
    "[algorithm] section."
)


class Part(NamedTuple):
    """A piece of a file: its title, whether it is the scheme's own, and its place."""

    title: str
    own: bool
    line: int
    text: str


class Plan(NamedTuple):
    """Which modules of `cluster/` a folder needs, and where a module's original is."""

    needs: dict[str, set[str]]
    originals: dict[str, str]


def sharing(root: Path, examples: Examples) -> Examples:
    """Returns the examples that have copies, those without a family too."""
    marks = ("problem.py", "cluster")
    others = {path.parent.name for mark in marks for path in root.glob(f"*/{mark}")}
    return [e for e in examples if e.family or e.folder in others]


def read(path: Path) -> str:
    """Returns a file's exact text, or nothing if there is no such file."""
    return path.read_bytes().decode() if path.is_file() else ""


# --- What is to be the same as what -------------------------------------------


@functools.cache
def parsed(text: str) -> ast.Module:
    """Returns a source as Python reads it."""
    return ast.parse(text)


@functools.cache
def imports(text: str) -> list[tuple[int, str]]:
    """Returns (line, dotted name) for all that a source imports, module by module."""
    found = []
    for node in ast.walk(parsed(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
            if names == ["cluster"]:
                names = [f"cluster.{alias.name}" for alias in node.names]
        found += [(node.lineno, name) for name in names]
    return found


def modules_of(text: str) -> set[str]:
    """Returns the modules of `cluster/` that a Python source imports."""
    names = [name for _, name in imports(text) if name.startswith("cluster.")]
    return {name.split(".")[1] for name in names}


def plan(root: Path, examples: Examples) -> Plan:
    """Finds the modules that each folder needs, from what its scripts import."""
    folders = [e.folder for e in sharing(root, examples)]
    folders.sort(key=lambda folder: folder != REFERENCE)
    have = {
        folder: {path.stem: read(path) for path in (root / folder).glob("cluster/*.py")}
        for folder in folders
    }
    texts: dict[str, str] = {}
    for folder in folders:
        texts = {**have[folder], **texts}
    needs = {}
    for folder in folders:
        try:
            found = {"__init__", *CALLED.findall(read(root / folder / "run.sh"))}
            for path in (root / folder).glob("*.py"):
                found |= modules_of(read(path))
            waiting = list(found)
            while waiting:
                new = modules_of(texts.get(waiting.pop(), "")) - found
                found |= new
                waiting += new
            needs[folder] = found
        except SyntaxError:  # which is a finding of its own; nothing is to be removed
            needs[folder] = set(have[folder])
    originals = {}
    for module in {module for found in needs.values() for module in found}:
        there = [folder for folder in folders if module in have[folder]]
        there.sort(key=lambda folder, module=module: module not in needs[folder])
        originals[module] = there[0] if there else REFERENCE
    return Plan(needs, originals)


def copied(example: registry.Example, plan: Plan) -> dict[str, str]:
    """Returns each file of an example that has an original, and the original's path."""
    family = registry.FAMILIES[example.family or "ps"]
    shared = {"problem.py": f"{family.problem}/problem.py"}
    if family.problem == REFERENCE:
        shared[DATASETS] = f"{REFERENCE}/{DATASETS}"
    if example.family:
        script = script_of(family.reference)
        shared[script_of(example.folder)] = f"{family.reference}/{script}"
        shared["run.sh"] = f"{REFERENCE}/run.sh"
    for module in sorted(plan.needs[example.folder]):
        name = f"cluster/{module}.py"
        shared[name] = f"{plan.originals[module]}/{name}"
    return shared


@functools.cache
def own_problem(text: str) -> bool:
    """Says whether a problem.py is one of its own, by its banners."""
    return any(banner[3] for banner in BANNER.finditer(text))


@functools.cache
def split(name: str, text: str) -> list[Part]:
    """Divides a file into its parts; what precedes the first banner is its own."""
    whole = name == "problem.py" and not own_problem(text)
    if whole or name == DATASETS or name.startswith("cluster/"):
        return [Part("the file", False, 1, text)]
    lines = text.splitlines(keepends=True)
    banners = [BANNER.fullmatch(line) for line in lines]
    if name == "run.sh":
        cuts = [i for i, line in enumerate(lines) if line == MARKER][:1]
    else:
        cuts = [i for i, banner in enumerate(banners) if banner]
    parts = [Part("", True, 1, "".join(lines[: cuts[0] if cuts else len(lines)]))]
    for start, end in zip(cuts, [*cuts[1:], len(lines)], strict=bool(cuts)):
        banner = BANNER.fullmatch(lines[start])
        title, own = (banner[2], bool(banner[3])) if banner else ("the tail", False)
        parts.append(Part(title, own, start + 1, "".join(lines[start:end])))
    return parts


def sections(name: str, text: str, reference: str) -> list[Part]:
    """Divides an original as its copy `text` is divided."""
    if name == "problem.py" and own_problem(text):
        name = ""
    return split(name, reference)


def same(part: Part, other: Part) -> bool:
    """Blank lines at the end belong to what follows, and the formatter keeps them."""
    return part.text.rstrip("\n") == other.text.rstrip("\n")


# --- Checks -------------------------------------------------------------------


def compare(where: str, text: str, there: str, reference: str) -> list[str]:
    """Returns a finding for each part of a copy that is not as its original has it.

    `where` and `there` are the paths of the copy and of its original, `text` and
    `reference` what is in them.
    """
    found = []
    name = where.partition("/")[2]
    parts = split(name, text)
    originals = {part.title: part for part in sections(name, text, reference)}
    titles, wanted = [part.title for part in parts], list(originals)
    if titles != wanted:
        found.append(f"{where}: its sections are {titles[1:]}, wanted {wanted[1:]}")
    for part in parts:
        original = originals.get(part.title)
        if part.own or not original or same(part, original):
            continue
        mine, its = part.text.split("\n"), original.text.split("\n")
        pairs = zip([*mine, *[""] * len(its)], [*its, *[""] * len(mine)], strict=True)
        at, (a, b) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
        found.append(
            f"{where}:{part.line + at}: {part.title} differs from that of {there}\n"
            f"    here:  {a}\n    there: {b}"
        )
    return found


def code(text: str) -> list[tuple[str, str]]:
    """Returns (section, line) for each line of a script below its docstring."""
    return [(p.title, x) for p in split("", text)[1:] for x in p.text.splitlines()]


@functools.cache
def in_common(text: str, reference: str) -> tuple[int, int]:
    """Returns how many lines of a script are those of its reference, and how many."""
    mine, its = ([line for _, line in code(t)] for t in (text, reference))
    match = difflib.SequenceMatcher(None, its, mine, autojunk=False)
    return sum(block.size for block in match.get_matching_blocks()), len(mine)


def check_script(example: registry.Example, text: str, reference: str) -> list[str]:
    """Returns what is wrong with a script beside its shared sections."""
    folder, family = example.folder, registry.FAMILIES[example.family]
    found, where, parts = [], f"{folder}/{script_of(folder)}", split("", text)
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        # The text of a lost banner would belong to the section above it.
        is_banner = BANNER.fullmatch(line) and len(line) == 80
        if "# ---" in line and not is_banner:
            found.append(f"{where}:{number}: not a banner with dashes to column 79")
    tree = parsed(text)
    head = parts[0].text.count("\n")
    docstring = ast.get_docstring(tree)
    if docstring is None or any(n.lineno <= head for n in tree.body[1:]):
        found.append(f"{where}: only the docstring may stand before the first banner")
    first, wanted = (docstring or "").split("\n")[0], f"{folder}: {example.sentence}"
    if first != wanted:
        found.append(f"{where}: its first line is not the registry's: {wanted}")
    # How far it goes from its reference; the marks of a reference itself say where one
    # may go.
    ideas = sum(part.own for part in parts[1:])
    if ideas > IDEAS and folder != family.reference:
        found.append(f"{where}: {ideas} sections say [algorithm], at most {IDEAS} may")
    size = len(text.splitlines())
    if not family.least <= size <= MOST:
        found.append(f"{where}: {size} lines, not {family.least} to {MOST}")
    shared, mine = in_common(text, reference)
    if shared < SHARE * mine:
        found.append(f"{where}: {shared} of {mine} lines shared, less than half")
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    for name in sorted({n for n in names if names.count(n) > 1}):
        # The second would replace a shared one, whose body every script has.
        found.append(f"{where}: defines {name} twice")
    return found


def functions(text: str) -> dict[str, tuple[int, str]]:
    """Returns line and source of each function that is not the scheme's own.

    That is: outside of [algorithm] sections, and not `main`.
    """
    lines = text.splitlines()
    shared = {
        number
        for part in split("", text)
        if not part.own
        for number in range(part.line, part.line + part.text.count("\n"))
    }
    return {
        node.name: (node.lineno, "\n".join(lines[node.lineno - 1 : node.end_lineno]))
        for node in parsed(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        if node.lineno in shared and node.name != "main"
    }


def check_functions(scripts: dict[str, str]) -> list[str]:
    """Returns a finding for each function that another script has with another body.

    `scripts` are their texts by path. This is across families, whose sections differ.
    """
    found = []
    first: dict[str, tuple[str, str]] = {}
    for where, text in scripts.items():
        for name, (line, source) in functions(text).items():
            there, original = first.setdefault(name, (where, source))
            if source != original:
                found.append(f"{where}:{line}: {name} is not the one of {there}")
    return found


def declared(folder: Path) -> set[str]:
    """Returns the packages that a folder's own requirements.txt names, if it has one.

    They are for its own files beside the script: what that imports, every copy needs.
    """
    lines = read(folder / "requirements.txt").splitlines()
    return {re.split(r"[=<>~;\s\[]", line)[0] for line in lines if line[:1] not in "#"}


def check_code(
    where: str, text: str, own: set[str] = frozenset(), beside: set[str] = frozenset()
) -> list[str]:
    """Returns what is wrong with one Python file or launcher of an example.

    `own` are packages that this folder may use, beside those that all may, and `beside`
    the modules of a whole program that lie beside its script.
    """
    folder, _, name = where.partition("/")
    module = name.startswith("cluster/")
    # A module may sleep: one offers to slow a worker down, one polls a busy ps.
    banned = BANNED if module else (*BANNED, "time.sleep(")
    found = [f"{where}: contains {word}" for word in banned if word in text]
    if name == "run.sh":
        head = split(name, text)[0].text.splitlines()
        for line in head:
            if not HEADER.fullmatch(line):
                found.append(f"{where}: not allowed in the header: {line}")
        script = script_of(folder)
        # A folder in which run.sh can start another script, too, has the second form.
        if not {f"SCRIPT={script}", f"SCRIPT=${{SCRIPT:-{script}}}"} & set(head):
            found.append(f"{where}: its header does not say SCRIPT={script}")
        return found
    for line, wanted in imports(text):
        package, _, part = wanted.partition(".")
        allowed = package in PACKAGES
        if package == "cluster":
            allowed = part.isidentifier() or module and not part
        if name in ("problem.py", DATASETS):
            # They are the user's to replace, and know nothing else of this project.
            allowed = package in PACKAGES or wanted == "cluster.tensorflow_v1"
            allowed |= name == "problem.py" and wanted == "datasets"
        elif not module:
            allowed = allowed or wanted == "problem"
            allowed |= package in own and name != script_of(folder)
            allowed |= wanted in beside
        if not allowed:
            found.append(f"{where}:{line}: imports {wanted}, which it may not")
    return found


def check_rooms(root: Path, folder: str, needed: set[str]) -> list[str]:
    """Returns a finding for what is in a folder's `cluster/` and nobody there needs."""
    rooms = root / folder / "cluster"
    found = []
    for path in sorted(rooms.iterdir()) if rooms.is_dir() else []:
        if path.suffix == ".py" and path.stem not in needed:
            found.append(
                f"{folder}/cluster/{path.name}: nothing in {folder} imports it"
            )
        elif path.suffix != ".py" and path.name != "__pycache__":
            found.append(f"{folder}/cluster/{path.name}: not a module")
    return found


def registered(root: Path, examples: Examples) -> list[str]:
    """Returns the differences between folders and registry, and what is wrong in it."""
    marks = ("run.sh", "cluster", "problem.py")
    there = {path.parent.name for mark in marks for path in root.glob(f"*/{mark}")}
    names = [example.folder for example in examples]
    found = [f"{f}/: not in the registry" for f in sorted(there - set(names))]
    found += [
        f"{f}/: in the registry, not there" for f in names if not (root / f).is_dir()
    ]
    found += [f"registry: {f} twice" for f in sorted(set(names)) if names.count(f) > 1]
    known: dict[str, registry.Example] = {}
    for example in examples:
        where, parent = f"registry: {example.folder}", known.get(example.parent)
        if example.group not in registry.GROUPS:
            found.append(f"{where}: there is no group {example.group}")
        if example.family and example.family not in registry.FAMILIES:
            found.append(f"{where}: there is no family {example.family}")
        if example.parent and (parent is None or parent.family is None):
            found.append(f"{where}: no script of {example.parent} stands before it")
        known[example.folder] = example
    whole = [name for name, family in registry.FAMILIES.items() if family.whole]
    orphans = [
        e.folder
        for e in registry.of_family(None, examples)
        if not e.parent and e.family not in whole
    ]
    if len(orphans) > 1:
        found.append(f"registry: {' and '.join(orphans)} have no parent; one may")
    used = {example.family for example in examples}
    for name, family in registry.FAMILIES.items():
        there = family.reference in known and known[family.reference].family == name
        if name in used and not there:
            found.append(f"registry: {family.reference} is not of family {name}")
    return found


def check(root: Path, examples: Examples = registry.EXAMPLES) -> tuple[list[str], str]:
    """Returns the findings in a tree, and one line of what was looked at."""
    found = registered(root, examples)
    rooms = plan(root, examples)
    sections = modules = 0
    scripts: dict[str, str] = {}  # also those that a folder has beside its own
    members = [
        e for e in sharing(root, examples) if e.family in (None, *registry.FAMILIES)
    ]
    for example in [e for e in members if (root / e.folder).is_dir()]:
        folder = example.folder
        shared = copied(example, rooms)
        paths = [*(root / folder).glob("*.py"), *(root / folder).glob("cluster/*.py")]
        names = {path.relative_to(root / folder).as_posix() for path in paths}
        beside = {name[:-3] for name in names if "/" not in name}
        if not example.family or not registry.FAMILIES[example.family].whole:
            beside = set()
        for name in sorted(names | set(shared)):
            where, text = f"{folder}/{name}", read(root / folder / name)
            if not text:
                found.append(f"{where}: missing")
                continue
            try:
                there = shared.get(name, where)
                original = read(root / there)
                if there != where:
                    found += compare(where, text, there, original)
                    parts = [part for part in split(name, text) if not part.own]
                    modules += name.startswith("cluster/")
                    sections += 0 if name.startswith("cluster/") else len(parts)
                if name == script_of(folder):
                    found += check_script(example, text, original)
                if "/" not in name and name not in ("problem.py", DATASETS, "run.sh"):
                    scripts[where] = text
                found += check_code(where, text, declared(root / folder), beside)
            except SyntaxError as error:
                found.append(f"{where}:{error.lineno}: {error.msg}")
        found += check_rooms(root, folder, rooms.needs[folder])
    try:
        found += check_functions(scripts)
    except SyntaxError:
        pass  # a finding already
    pages, lacking = generated(root, examples)
    found += lacking
    for page, text in pages.items():
        if not text:
            found.append(f"{page.relative_to(root)}: missing")
        elif text != read(page):
            found.append(
                f"{page.relative_to(root)}: what is generated in it is not up to date: "
                "run `python tools/copies.py --write`"
            )
    diffs = sum(example.parent is not None for example in members)
    return found, (
        f"{len(members)} examples, {sections} shared sections, {modules} copies of "
        f"modules, {diffs} README diffs"
    )


# --- What READMEs show ---------------------------------------------------------


@functools.cache
def changes(parent: str, child: str) -> tuple[str, str]:
    """Returns the count and the diff of two scripts, its hunks named by section."""
    a, b = code(parent), code(child)
    lines, counts = [], {"+": 0, "−": 0}
    matcher = difflib.SequenceMatcher(
        None, [line for _, line in a], [line for _, line in b], autojunk=False
    )
    for tag, i, j, k, n in matcher.get_opcodes():
        title = None
        marked = [("-", x) for x in a[i:j]] + [("+", x) for x in b[k:n]]
        for sign, (section, line) in marked if tag != "equal" else []:
            if section != title:
                title = section
                lines.append(f"@@ {title} @@")
            lines.append(sign + line)
            counts["−" if sign == "-" else sign] += 1
    return f"+{counts['+']} −{counts['−']}", "\n".join(lines)


def index(examples: Examples) -> str:
    """Returns the list of examples in README.md: a row a group, a line an example."""
    rows = ["| | |", "|---|---|"]
    for group, members in registry.by_group(examples):
        lines = [f"[{e.folder}]({e.folder}/): {e.sentence}" for e in members]
        title = "<br>".join(textwrap.wrap(group, 13))  # so that the column is narrow
        rows.append(f"| **{title}** | {'<br>'.join(lines)} |")
    return "\n".join(["", *rows, "", ""])


def details(examples: Examples, counts: dict[str, str]) -> str:
    """Returns the table of all examples in docs/which-example.md."""
    rows = [
        "| example | sync or async | what is pushed | changed lines | paper |",
        "|---|---|---|---|---|",
    ]
    for e in examples:
        link, changed = f"[{e.folder}](../{e.folder}/)", "–"
        if e.parent:
            changed = f"{counts.get(e.folder, '–')} from {e.parent}"
        rows.append(f"| {link} | {e.mode} | {e.pushed} | {changed} | {e.paper} |")
    return "\n".join(["", *rows, "", ""])


def engines() -> str:
    """Returns the table of the engines in docs/clusters.md."""
    rows = [
        "| engine | what starts the tasks | who restarts them | which command | "
        "tested with |",
        "|---|---|---|---|---|",
    ]
    for e in registry.ENGINES:
        link = f"[{e.name}](../Engines/{e.name}/)"
        rows.append(
            f"| {link} | {e.starts} | {e.restarts} | {e.command} | {e.tested} |"
        )
    return "\n".join(["", *rows, "", ""])


def generated(root: Path, examples: Examples) -> tuple[dict[Path, str], list[str]]:
    """Returns each page with its generated pieces renewed, and what it lacks."""
    pages, found, counts = {}, [], {}
    for example in registry.of_family(None, examples):
        folder, parent = example.folder, example.parent
        page = root / folder / "README.md"
        text = pages[page] = read(page)
        if parent is None:
            if DIFF.search(text):
                found.append(f"{folder}/README.md: a diff, and there is no parent")
            continue
        scripts = (read(root / name / script_of(name)) for name in (parent, folder))
        counts[folder], diff = changes(*scripts)
        block = (
            f"{counts[folder]} lines, generated from the two scripts.\n\n"
            f"```diff\n{diff}\n```\n"
        )
        heading = f"## What changes from {parent}\n"
        section = text.partition("\n" + heading)[2].partition("\n## ")[0]
        if len(DIFF.findall(text)) == len(DIFF.findall(section)) == 1:
            pages[page] = DIFF.sub(lambda _, new=block: new, text)
        else:
            found.append(
                f"{folder}/README.md: wanted once, under `{heading.strip()}`, on lines "
                "of their own: <!-- diff:begin --> and <!-- diff:end -->"
            )
    for name, where, new in (
        ("index", "README.md", index(examples)),
        ("details", "docs/which-example.md", details(examples, counts)),
        ("engines", "docs/clusters.md", engines()),
    ):
        block = re.compile(
            rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.S
        )
        pages[root / where], places = block.subn(
            lambda _, new=new: new, read(root / where)
        )
        if places != 1:
            found.append(
                f"{where}: wanted once, on lines of their own, around a table that is "
                f"generated: <!-- {name}:begin --> and <!-- {name}:end -->"
            )
    return pages, found


def line_counts(root: Path, examples: Examples = registry.EXAMPLES) -> str:
    """Returns a table of how many lines each folder has, and where."""

    def count(paths: list[Path]) -> int:
        return sum(len(read(path).splitlines()) for path in paths)

    heads = ("script", "problem.py", "cluster/", "together", "modules", "more scripts")
    rows = [f"{'':42}" + "".join(f"{head:>14}" for head in heads)]
    for example in registry.of_family(None, examples):
        folder = root / example.folder
        script, problem = folder / script_of(folder.name), folder / "problem.py"
        modules = [p for p in folder.glob("cluster/*.py") if p.name != "__init__.py"]
        own = script, problem, folder / DATASETS
        more = [path for path in folder.glob("*.py") if path not in own]
        sizes = [
            count([script]),
            count(own[1:]),
            count([*folder.glob("cluster/*.py")]),
        ]
        numbers = [*sizes, sum(sizes), len(modules), count(more)]
        rows.append(f"{folder.name:42}" + "".join(f"{n:14}" for n in numbers))
    return "\n".join(rows)


# --- Repairs ------------------------------------------------------------------


def at_head(root: Path, path: str) -> str:
    """Returns a file as last committed, or nothing if it never was."""
    command = ["git", "-C", str(root), "show", f"HEAD:./{path}"]
    try:
        shown = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return shown.stdout.decode() if shown.returncode == 0 else ""


def repaired(root: Path, here: str, there: str, force: bool) -> tuple[str, list[str]]:
    """Returns a copy with the shared parts of its original, and what was left alone.

    A part that was edited in a copy, while the original's is as committed, is the newer
    of the two: it is only overwritten by force.
    """
    found = []
    name = here.partition("/")[2]
    text, reference = read(root / here), read(root / there)
    originals = {part.title: part for part in sections(name, text, reference)}
    new = ""
    for part in split(name, text):
        original = originals.get(part.title, part)
        if part.own or same(part, original):
            new += part.text
            continue
        old, base = (
            {p.title: p.text for p in sections(name, text, at_head(root, path))}.get(
                part.title
            )
            for path in (here, there)
        )
        if part.text and not force and base == original.text and old != part.text:
            found.append(
                f"{here}:{part.line}: {part.title} is newer than the one of {there}, "
                "which is as committed; not overwritten (--write --force does)"
            )
            new += part.text
        else:
            end = part.text[len(part.text.rstrip("\n")) :] if part.text else "\n"
            new += original.text.rstrip("\n") + end
    return new, found


def write(root: Path, force: bool, examples: Examples = registry.EXAMPLES) -> list[str]:
    """Repairs what can be; returns a finding for each copy that it left alone."""
    found = []
    rooms = plan(root, examples)
    members = [e for e in sharing(root, examples) if (root / e.folder).is_dir()]
    for example in members:
        for name, there in copied(example, rooms).items():
            here = f"{example.folder}/{name}"
            # A scheme is nobody's copy: of a script only the shared sections are.
            whole = name in ("problem.py", DATASETS) or name.startswith("cluster/")
            if here == there or not read(root / there):
                continue
            if read(root / here) or whole:
                new, left = repaired(root, here, there, force)
                found += left
                if new != read(root / here):
                    (root / here).parent.mkdir(exist_ok=True)
                    (root / here).write_bytes(new.encode())
    # Only now: a folder that does not need a module may have had the only copy of it.
    for example in members:
        for path in sorted((root / example.folder).glob("cluster/*.py")):
            if path.stem in rooms.needs[example.folder]:
                continue
            here = path.relative_to(root).as_posix()
            kept = {
                read(root / folder / "cluster" / path.name)
                for folder, needed in rooms.needs.items()
                if path.stem in needed
            }
            kept.add(at_head(root, here))
            if force or read(path) in kept:
                path.unlink()
            else:
                found.append(
                    f"{here}: nothing in {example.folder} imports it, and this text is "
                    "nowhere else; not removed (--write --force does)"
                )
    for page, text in generated(root, examples)[0].items():
        if text != read(page):
            page.write_bytes(text.encode())
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--write", action="store_true", help="repair the copies")
    parser.add_argument(
        "--force", action="store_true", help="with --write: all of them"
    )
    parser.add_argument("--lines", action="store_true", help="print lines per folder")
    args = parser.parse_args(argv)
    if args.force and not args.write:
        parser.error("--force goes with --write")
    if not args.root.is_dir():
        parser.error(f"--root {args.root} is not a folder")
    if args.lines:
        print(line_counts(args.root))
        return 0
    left = write(args.root, args.force) if args.write else []
    found, covered = check(args.root)
    for line in [*left, *found]:
        print(f"copies: {line}", file=sys.stderr)
    if any("\n    there: " in line for line in found):
        print(HINT, file=sys.stderr)
    if left or found:
        return 1
    print(f"copies: {covered}: in sync")
    return 0


if __name__ == "__main__":
    sys.exit(main())
