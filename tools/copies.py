"""Checks, and repairs, the deliberate duplication between the example folders.

    python tools/copies.py              check; status 1 and the findings if it fails
    python tools/copies.py --write      copy the shared parts from the reference into
                                        every folder and regenerate the README diffs

`Distributed-Setup` is the reference. `problem.py` and `cluster.py` are the same bytes
in every folder, and so is `run.sh` below its marker. A script is divided by banners;
the sections whose banner says `[algorithm]` are the scheme's own, all others are the
reference's. There is no list of exclusions: an idea is marked where it stands.
"""

import argparse
import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

REFERENCE = "Distributed-Setup"
# One process has no cluster: it may lack sections and be short. The only exception.
SINGLE_PROCESS = "Non-Distributed-Setup"
# Each example and the one that it is one idea away from, which stands before it.
Lineage = dict[str, str | None]
LINEAGE: Lineage = {
    "Non-Distributed-Setup": None,
    "Distributed-Setup": "Non-Distributed-Setup",
    "HogWild": "Distributed-Setup",
    "Dynamic-SGD": "HogWild",
    "DOWNPOUR-Easy": "HogWild",
    "DOWNPOUR": "DOWNPOUR-Easy",
    "AGN": "DOWNPOUR-Easy",
    "AEASGD": "DOWNPOUR-Easy",
    "AEAMSGD": "AEASGD",
    "Synchronous-SGD": "HogWild",
    "Synchronous-SGD-different-learning-rates": "Synchronous-SGD",
    "SAGN": "Synchronous-SGD",
    "Multiple-GPUs-Single-Machine": "HogWild",
}

WHOLE = ("problem.py", "cluster.py")
MARKER = "# --- identical in every example below this line ---\n"
BANNER = re.compile(r"( *)# --- (\S.*?) (\[algorithm\] )?-{3,}\n")
HEADER = re.compile(r"#.*|(SCRIPT|NUM_PS|NUM_WORKERS)=\S+( +#.*)?|")
TASK_ENV = re.compile(r"^task_env\(\) \{.*\n(?:(?: .*)?\n)*\}\n", re.M)
BLOCK = re.compile(r"(?<=<!-- diff:begin -->\n).*?(?=<!-- diff:end -->)", re.S)
ROW = re.compile(r"^\| *\[([^\]]+)\]\(([^)]+?)/?\)", re.M)
MODULES = {*sys.stdlib_module_names, "numpy", "tensorflow", "cluster", "problem"}
BANNED = ("pkill", "noqa", "parse_known_args", "tf.contrib", "_collections")
LINES, SHARE, IDEAS = range(90, 171), 0.5, 3
HINT = (
    f"If the change is meant for all: edit {REFERENCE} and run `python tools/copies.py "
    "--write`. If it is this scheme's idea: move it into an [algorithm] section."
)


class Part(NamedTuple):
    """A piece of a file: its title, whether it is the scheme's own, and its place."""

    title: str
    own: bool
    line: int
    text: str


def script_of(folder: str) -> str:
    """Returns the name of a folder's script: the folder's name in snake case."""
    return folder.lower().replace("-", "_") + ".py"


def original_of(folder: str, name: str) -> str:
    """Returns the name in the reference folder of an example's file."""
    return script_of(REFERENCE) if name == script_of(folder) else name


def read(path: Path) -> str:
    """Returns a file's exact text, or nothing if there is no such file."""
    return path.read_bytes().decode() if path.is_file() else ""


def split(name: str, text: str) -> list[Part]:
    """Divides a file into its parts; what precedes the first banner is its own."""
    if name in WHOLE:
        return [Part("the file", False, 1, text)]
    lines = text.splitlines(keepends=True)
    if name == "run.sh":
        cuts = [i for i, line in enumerate(lines) if line == MARKER][:1]
    else:
        cuts = [i for i, line in enumerate(lines) if BANNER.fullmatch(line)]
    parts = [Part("", True, 1, "".join(lines[: cuts[0] if cuts else len(lines)]))]
    for start, end in zip(cuts, [*cuts[1:], len(lines)], strict=bool(cuts)):
        banner = BANNER.fullmatch(lines[start])
        title, own = (banner[2], bool(banner[3])) if banner else ("the tail", False)
        parts.append(Part(title, own, start + 1, "".join(lines[start:end])))
    return parts


def same(part: Part, other: Part) -> bool:
    """Blank lines at the end belong to what follows, and the formatter keeps them."""
    return part.text.rstrip("\n") == other.text.rstrip("\n")


def compare(folder: str, name: str, text: str, reference: str) -> list[str]:
    """Returns a finding for each part of a copy that is not as the reference has it."""
    found, parts, where = [], split(name, text), f"{folder}/{name}"
    originals = {part.title: part for part in split(name, reference)}
    titles = [part.title for part in parts]
    wanted = list(originals)
    if folder == SINGLE_PROCESS and name == script_of(folder):
        wanted = [t for t in wanted if t in titles]
        titles = [p.title for p in parts if not p.own or p.title in originals]
    if titles != wanted:
        found.append(f"{where}: its sections are {titles[1:]}, wanted {wanted[1:]}")
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        # The text of a lost banner would belong to the section above it.
        is_banner = BANNER.fullmatch(line) and len(line) == 80
        if name not in (*WHOLE, "run.sh") and "# ---" in line and not is_banner:
            found.append(f"{where}:{number}: not a banner with dashes to column 79")
    for part in parts:
        original = originals.get(part.title)
        if part.own or not original or same(part, original):
            continue
        mine, its = part.text.split("\n"), original.text.split("\n")
        pairs = zip([*mine, *[""] * len(its)], [*its, *[""] * len(mine)], strict=True)
        at, (a, b) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
        found.append(
            f"{where}:{part.line + at}: {part.title} differs from {REFERENCE}'s\n"
            f"    here:  {a}\n    there: {b}"
        )
    return found


def code(text: str) -> list[tuple[str, str]]:
    """Returns (section, line) for each line of a script below its docstring."""
    return [(p.title, x) for p in split("", text)[1:] for x in p.text.splitlines()]


def check_script(folder: str, text: str, reference: str) -> list[str]:
    """Returns what is wrong with a script beside its shared sections."""
    found, where, parts = [], f"{folder}/{script_of(folder)}", split("", text)
    tree = ast.parse(text)
    head = parts[0].text.count("\n")
    if ast.get_docstring(tree) is None or any(n.lineno <= head for n in tree.body[1:]):
        found.append(f"{where}: only the docstring may stand before the first banner")
    ideas = sum(part.own for part in parts[1:])
    if ideas > IDEAS:
        found.append(f"{where}: {ideas} sections say [algorithm], at most {IDEAS} may")
    size = len(text.splitlines())
    if size > LINES[-1] or (size < LINES[0] and folder != SINGLE_PROCESS):
        found.append(f"{where}: {size} lines, not {LINES[0]} to {LINES[-1]}")
    mine, its = ([line for _, line in code(t)] for t in (text, reference))
    match = difflib.SequenceMatcher(None, its, mine, autojunk=False)
    shared = sum(block.size for block in match.get_matching_blocks())
    if shared < SHARE * len(mine) and folder != SINGLE_PROCESS:
        found.append(f"{where}: {shared} of {len(mine)} lines shared, less than half")
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    for name in sorted({n for n in names if names.count(n) > 1}):
        # The second would replace a shared one, whose body every script has.
        found.append(f"{where}: defines {name} twice")
    return found


def check_code(folder: str, name: str, text: str) -> list[str]:
    """Returns what is wrong with one Python file or launcher of an example."""
    where = f"{folder}/{name}"
    # cluster.py may sleep: it offers to slow a worker down, and it polls a busy ps.
    banned = BANNED if name == "cluster.py" else (*BANNED, "time.sleep(")
    found = [f"{where}: contains {word}" for word in banned if word in text]
    if name == "run.sh":
        head = TASK_ENV.sub("", split(name, text)[0].text, count=1).splitlines()
        for line in head:
            if not HEADER.fullmatch(line):
                found.append(f"{where}: not allowed in the header: {line}")
        if f"SCRIPT={script_of(folder)}" not in head:
            found.append(f"{where}: its header does not say SCRIPT={script_of(folder)}")
        return found
    allowed = MODULES | ({"sklearn"} if name == "problem.py" else set())
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        found += [
            f"{where}:{node.lineno}: imports {n}, which an example may not"
            for n in names
            if n.split(".")[0] not in allowed
        ]
    return found


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


def generated(root: Path, lineage: Lineage) -> tuple[dict[Path, str], list[str]]:
    """Returns each README with its generated pieces renewed, and what it lacks."""
    index = root / "README.md"
    pages, found = {index: read(index)}, []
    for folder, parent in lineage.items():
        page = root / folder / "README.md"
        text = pages[page] = read(page)
        if parent is None:
            if BLOCK.search(text):
                found.append(f"{folder}/README.md: a diff, and there is no parent")
            continue
        scripts = (read(root / name / script_of(name)) for name in (parent, folder))
        count, diff = changes(*scripts)
        block = (
            f"{count} lines, generated from the two scripts.\n\n```diff\n{diff}\n```\n"
        )
        heading = f"## What changes from {parent}\n"
        section = text.partition("\n" + heading)[2].partition("\n## ")[0]
        if len(BLOCK.findall(text)) == len(BLOCK.findall(section)) == 1:
            pages[page] = BLOCK.sub(lambda _, new=block: new, text)
        else:
            found.append(
                f"{folder}/README.md: wanted once, under `{heading.strip()}`, on lines "
                "of their own: <!-- diff:begin --> and <!-- diff:end -->"
            )
        cell = re.compile(rf"(?<=<!-- lines:{folder} -->)[^|\n]*?(?=<!-- /lines -->)")
        pages[index], cells = cell.subn(count, pages[index])
        if cells != 1:
            found.append(
                f"README.md: <!-- lines:{folder} --><!-- /lines --> occurs {cells} "
                "times, wanted once: in the table, where the changed lines are"
            )
    return pages, found


def registry(root: Path, lineage: Lineage) -> list[str]:
    """Returns the differences between folders, LINEAGE and the table of README.md."""
    folders = {
        p.parent.name for f in ("run.sh", "cluster.py") for p in root.glob(f"*/{f}")
    }
    rows = {r for r, link in ROW.findall(read(root / "README.md")) if r == link}
    # Other tables may begin with a link to a folder that is no example.
    rows = {r for r in rows if r in folders | set(lineage) or not (root / r).is_dir()}
    found = [f"{f}/: not registered in LINEAGE" for f in sorted(folders - set(lineage))]
    found += [f"{f}/: in LINEAGE, not there" for f in lineage if f not in folders]
    found += [
        f"README.md: the table has no row for {f}" for f in lineage if f not in rows
    ]
    found += [f"README.md: {r} is no example" for r in sorted(rows - set(lineage))]
    known: list[str] = []
    for folder, parent in lineage.items():
        if parent is not None and parent not in known:
            found.append(f"LINEAGE: {parent}, the parent of {folder}, is not before it")
        known.append(folder)
    if [f for f, parent in lineage.items() if parent is None] != [SINGLE_PROCESS]:
        found.append(f"LINEAGE: only {SINGLE_PROCESS} has no parent")
    return found


def check(root: Path, lineage: Lineage = LINEAGE) -> tuple[list[str], str]:
    """Returns the findings in a tree, and one line of what was looked at."""
    found = registry(root, lineage)
    scripts = sections = 0
    for folder in [f for f in lineage if (root / f).is_dir()]:
        for name in (script_of(folder), *WHOLE, "run.sh"):
            text = read(root / folder / name)
            reference = read(root / REFERENCE / original_of(folder, name))
            if not text:
                found.append(f"{folder}/{name}: missing")
                continue
            try:
                found += compare(folder, name, text, reference)
                if folder != REFERENCE:
                    sections += sum(not part.own for part in split(name, text))
                if name == script_of(folder):
                    scripts += 1
                    found += check_script(folder, text, reference)
            except SyntaxError as error:
                found.append(f"{folder}/{name}:{error.lineno}: {error.msg}")
        for path in [*sorted((root / folder).glob("*.py")), root / folder / "run.sh"]:
            try:
                found += check_code(folder, path.name, read(path)) if read(path) else []
            except SyntaxError as error:
                found.append(f"{folder}/{path.name}:{error.lineno}: {error.msg}")
    pages, lacking = generated(root, lineage)
    found += lacking
    for page, text in pages.items():
        if not text:
            found.append(f"{page.relative_to(root)}: missing")
        elif text != read(page):
            found.append(
                f"{page.relative_to(root)}: what is generated in it is not up to date: "
                "run `python tools/copies.py --write`"
            )
    diffs = sum(parent is not None for parent in lineage.values())
    covered = f"{scripts} scripts, {sections} shared sections, {diffs} README diffs"
    return found, covered


def at_head(root: Path, path: str) -> str:
    """Returns a file as last committed, or nothing if it never was."""
    command = ["git", "-C", str(root), "show", f"HEAD:./{path}"]
    try:
        shown = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return shown.stdout.decode() if shown.returncode == 0 else ""


def write(root: Path, force: bool, lineage: Lineage = LINEAGE) -> list[str]:
    """Repairs what can be; returns a finding for each copy that it left alone.

    A part that was edited in a copy, while the reference's is as committed, is the
    newer of the two: it is only overwritten by force.
    """
    found = []
    for folder in [f for f in lineage if f != REFERENCE and (root / f).is_dir()]:
        for name in (script_of(folder), *WHOLE, "run.sh"):
            here, there = f"{folder}/{name}", f"{REFERENCE}/{original_of(folder, name)}"
            text, reference = read(root / here), read(root / there)
            if not reference or (not text and name not in WHOLE):
                continue
            originals = {part.title: part for part in split(name, reference)}
            new = ""
            for part in split(name, text):
                original = originals.get(part.title, part)
                if part.own or not text or same(part, original):
                    new += part.text if text else original.text
                    continue
                old, base = (
                    {p.title: p.text for p in split(name, at_head(root, path))}.get(
                        part.title
                    )
                    for path in (here, there)
                )
                if not force and base == original.text and old != part.text:
                    found.append(
                        f"{here}:{part.line}: {part.title} is newer than the one of "
                        f"{REFERENCE}, which is as committed; not overwritten "
                        "(--write --force does)"
                    )
                    new += part.text
                else:
                    end = part.text[len(part.text.rstrip("\n")) :]
                    new += original.text.rstrip("\n") + end
            if new != text:
                (root / here).write_bytes(new.encode())
    for page, text in generated(root, lineage)[0].items():
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
    args = parser.parse_args(argv)
    if args.force and not args.write:
        parser.error("--force goes with --write")
    if not args.root.is_dir():
        parser.error(f"--root {args.root} is not a folder")
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
