"""Checks, and repairs, the deliberate duplication between the example folders.

    python tools/copies.py              says where the folders are not as they should be
    python tools/copies.py --write      makes them so, and renews the pages (pages.py)

A folder has the files that its scripts and its run.sh need, directly or not, of those
in originals/, and no others: the same bytes. A script has the sections of its family's
reference, a run.sh with a shared section has that of originals/run.sh. Only a section
whose line of dashes says `[algorithm]` is a scheme's own (sections.py); a `problem.py`
that has one has the other sections of the usual one. Which folders there are, and of
which family, says registry.py. There is no list of exclusions: an idea is marked where
it stands.
"""

import argparse
import ast
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pages
import registry
from registry import script_of
from sections import read, split

ORIGINALS = "originals"  # where to edit what folders share
# Copies as a whole, as all of cluster/ is.
WHOLE = ("problem.py", "datasets.py", "contract.py", "slow.py", "launch.py")
SHARED = re.compile(rf"\b(cluster/\w+\.py|{'|'.join(map(re.escape, WHOLE))})\b")
PACKAGES = {*sys.stdlib_module_names, "numpy", "tensorflow"}
# Of a run.sh: variables, of which LAUNCH names a launcher that is the folder's own.
HEADER = re.compile(r"#.*|(SCRIPT|NUM_PS|NUM_WORKERS|PEERS|LAUNCH)=\S+( +#.*)?")
IDEAS = 3  # sections of a script that may be its own
ATTRIBUTES = ".gitattributes"
HIDDEN = "linguist-generated linguist-vendored"
HINT = """What all share: edit the original, then run `python tools/copies.py --write`.
What is a scheme's own belongs into a section that says [algorithm]."""


# --- What is a copy of what ---------------------------------------------------


@functools.cache
def imports(text: str) -> list[tuple[int, str]]:
    """Returns (line, dotted name) for all that a source imports."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = ""
            if isinstance(node, ast.ImportFrom):
                above = f"{'.' * node.level}{node.module or ''}."
            found += [(node.lineno, above + alias.name) for alias in node.names]
    return found


def uses(name: str, text: str) -> set[str]:
    """Returns the shared files that a file calls or imports."""
    found = set(SHARED.findall(text))
    if name != "run.sh":
        modules = [module.split(".") for _, module in imports(text)]
        paths = {f"{'/'.join(m[:size])}.py" for m in modules for size in (1, 2)}
        found = {path for path in paths if SHARED.fullmatch(path)}
    if any(name.startswith("cluster/") for name in found):
        found.add("cluster/__init__.py")
    return found


def whole(name: str, text: str) -> bool:
    """Says whether a folder's file is one of those that are copies as a whole."""
    if name == "problem.py" and any(part.own for part in split(text)[1:]):
        return False
    return name in WHOLE or name.startswith("cluster/")


def titles(text: str) -> list[str]:
    """Returns the titles of a text's sections."""
    return [part.title for part in split(text)[1:]]


def as_copy(name: str, text: str, original: str) -> str:
    """Returns what a file should be: its own parts, and the others of its original.

    A text that does not have the original's sections is returned as it is: somebody has
    to say which is which.
    """
    if whole(name, text):
        return original or text
    if titles(text) != titles(original):
        return text
    new = ""
    for mine, its in zip(split(text), split(original), strict=True):
        # Blank lines at the end belong to what follows, and the formatter keeps them.
        end = mine.text[len(mine.text.rstrip("\n")) :]
        new += mine.text if mine.own else its.text.rstrip("\n") + end
    return new


def given(root: Path, example: registry.Example) -> dict[str, str]:
    """Returns the originals of what a folder has because of its family, by file.

    Below its variables, a run.sh with a shared section is a copy in any folder.
    """
    found = {}
    if example.family in registry.FAMILIES:
        family = registry.FAMILIES[example.family]
        script = f"{family.reference}/{script_of(family.reference)}"
        found[script_of(example.folder)] = script
        found["problem.py"] = f"{family.problem}/problem.py"
    if found or titles(read(root / example.folder / "run.sh")):
        found["run.sh"] = f"{ORIGINALS}/run.sh"
    return found


def needed(root: Path, example: registry.Example) -> set[str]:
    """Returns the shared files that an example needs."""
    folder, originals, found = root / example.folder, given(root, example), set()
    waiting = {path.name for path in folder.glob("*.py")} - {*WHOLE} | {"run.sh"}
    while waiting:
        name = waiting.pop()
        text = read((root / ORIGINALS if SHARED.fullmatch(name) else folder) / name)
        if name in originals:
            text = as_copy(name, read(folder / name), read(root / originals[name]))
        new = uses(name, text) - found
        found |= new
        waiting |= new
    return found


def sources(root: Path) -> dict[str, str]:
    """Returns the original of each file that has one, by path.

    It is "" for a file that should not be there: nothing in its folder needs it.
    """
    found = {}
    for example in [e for e in registry.EXAMPLES if (root / e.folder).is_dir()]:
        folder = root / example.folder
        paths = [folder / name for name in WHOLE] + sorted(folder.glob("cluster/**/*"))
        have = {
            path.relative_to(folder).as_posix()
            for path in paths
            if path.is_file() and "__pycache__" not in path.parts
        }
        try:
            needs = needed(root, example)
        except SyntaxError:  # which is a finding of its own; nothing is to be removed
            needs = have
        for name in sorted(have | needs):
            there = f"{ORIGINALS}/{name}" if name in needs else ""
            found[f"{example.folder}/{name}"] = there
        found |= {f"{example.folder}/{x}": y for x, y in given(root, example).items()}
    return found


def expected(root: Path) -> dict[str, str]:
    """Returns what each file should be that is a copy or lists them; "" is no file."""
    originals = sources(root)
    found, shown = {}, f" {HIDDEN}".replace(" ", " -")
    # An example's name begins with a capital letter, as that of tests/ does not.
    rows = [f"[A-Z]*/{name} {HIDDEN}" for name in ("cluster/*.py", *WHOLE)]
    for path, there in sorted(originals.items()):
        name, text = path.partition("/")[2], read(root / path)
        found[path] = there and as_copy(name, text, read(root / there))
        if SHARED.fullmatch(name) and (path == there or not whole(name, text)):
            rows.append(path + shown)
    head, mark, _ = read(root / ATTRIBUTES).partition("# Generated.\n")
    return {**found, ATTRIBUTES: head + mark + "\n".join([*rows, ""])}


# --- What is wrong ------------------------------------------------------------


def compare(path: str, text: str, there: str, original: str) -> list[str]:
    """Returns what is wrong with a copy, given what is in it and in its original."""
    name = path.partition("/")[2]
    if not text:
        return [f"{path}: missing, the original is {there}"]
    if not original:
        return [f"{path}: its original is not there: {there}"]
    if not whole(name, text) and titles(text) != titles(original):
        return [f"{path}: its sections are {titles(text)}, wanted {titles(original)}"]
    pairs = itertools.zip_longest(
        text.split("\n"), as_copy(name, text, original).split("\n"), fillvalue=""
    )
    for at, (here, wanted) in enumerate(pairs, 1):
        if here != wanted:
            part = [part.title for part in split(text) if part.line <= at][-1]
            return [
                f"{path}:{at}: {part or 'the file'} differs from that of {there}\n"
                f"    here:  {here}\n    there: {wanted}"
            ]
    return []


def registered(root: Path) -> Iterator[str]:
    """Yields the differences between the folders of a tree and the registry."""
    marks, names = ("run.sh", "cluster", "problem.py"), set()
    for example in registry.EXAMPLES:
        if not (root / example.folder).is_dir():
            yield f"{example.folder}/: in the registry, not there"
        if example.folder in names:
            yield f"{example.folder}/: twice in the registry"
        if example.family not in (None, *registry.FAMILIES):
            yield f"{example.folder}/: there is no family {example.family}"
        names.add(example.folder)
    there = {path.parent.name for mark in marks for path in root.glob(f"*/{mark}")}
    for folder in sorted(there - names - {ORIGINALS}):
        yield f"{folder}/: not in the registry"


def check_script(example: registry.Example, text: str) -> Iterator[str]:
    """Yields what is wrong with a script beside its shared sections."""
    where = f"{example.folder}/{script_of(example.folder)}"
    tree, parts = ast.parse(text), split(text)
    docstring = ast.get_docstring(tree) or ""
    if not docstring or any(n.lineno < parts[1].line for n in tree.body[1:]):
        yield f"{where}: only the docstring may stand before the first section"
    first = f"{example.folder}: {example.sentence}"
    if docstring.split("\n")[0] != first:
        yield f"{where}: its first line is not the registry's: {first}"
    ideas = sum(part.own for part in parts[1:])
    if ideas > IDEAS:
        yield f"{where}: {ideas} sections say [algorithm], at most {IDEAS} may"


def check_functions(scripts: dict[str, str]) -> Iterator[str]:
    """Yields each function that another script has with another body.

    `scripts` are their texts by path, of any family. A scheme's own and `main` differ.
    """
    first: dict[str, tuple[str, str]] = {}
    for where, text in scripts.items():
        parts, lines = split(text), text.splitlines()
        for node in ast.parse(text).body:
            own = [part.own for part in parts if part.line <= node.lineno][-1]
            if own or getattr(node, "name", "main") == "main":
                continue
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            there, original = first.setdefault(node.name, (where, source))
            if source != original:
                yield f"{where}:{node.lineno}: {node.name} is not the one of {there}"


def check_imports(folder: Path, name: str, text: str) -> Iterator[str]:
    """Yields what a file imports that is not in its folder, nor in its requirements."""
    declared = re.findall(r"^[\w-]+", read(folder / "requirements.txt"), re.M)
    allowed = PACKAGES | {*declared} | {path.stem for path in folder.glob("*.py")}
    if name in WHOLE or "/" in name:  # which know nothing of a scheme
        allowed = PACKAGES | {"problem" if name == "contract.py" else "datasets"}
    for line, module in imports(text):
        package, _, part = module.partition(".")
        room = package == "cluster" and part != "*" and (part or "/" in name)
        if not room and package not in allowed:
            yield f"{folder.name}/{name}:{line}: imports {module}, which it may not"


def check(root: Path) -> list[str]:
    """Returns where a tree is not as it should be."""
    found, scripts, originals = list(registered(root)), {}, sources(root)
    for path, new in expected(root).items():
        text, there = read(root / path), originals.get(path, path)
        if there == ATTRIBUTES:
            found += [f"{path}: does not list what is a copy"] if text != new else []
        elif there:
            found += compare(path, text, there, read(root / there))
        else:
            found.append(f"{path}: nothing in {path.partition('/')[0]} needs it")
    sharing = {path.partition("/")[0] for path in originals}
    for example in [e for e in registry.EXAMPLES if e.folder in sharing]:
        folder, family = root / example.folder, example.family in registry.FAMILIES
        for line in split(read(folder / "run.sh"))[0].text.splitlines():
            if family and not HEADER.fullmatch(line):
                found.append(f"{folder.name}/run.sh: not allowed in the header: {line}")
        for path in sorted([*folder.glob("*.py"), *folder.glob("cluster/*.py")]):
            name, text = path.relative_to(folder).as_posix(), read(path)
            try:
                found += check_imports(folder, name, text)
                if family and name == script_of(folder.name) and titles(text):
                    found += check_script(example, text)
                if not SHARED.fullmatch(name):
                    scripts[f"{folder.name}/{name}"] = text
            except SyntaxError as error:
                found.append(f"{folder.name}/{name}:{error.lineno}: {error.msg}")
    return found + list(check_functions(scripts))


# --- The command --------------------------------------------------------------


def edited(root: Path) -> set[str]:
    """Returns the files that are not as last committed; none where there is no git."""
    command = ["git", "-C", str(root), "status", "--porcelain", "-z", "-uall"]
    try:
        shown = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return set()
    return {line[3:] for line in shown.stdout.decode().split("\0") if line}


def write(root: Path, force: bool) -> list[str]:
    """Makes a tree as it should be; returns a finding for each file left alone.

    That is one which somebody edited, while its original is as committed: the edit
    would be lost. Only `force` overwrites it.
    """
    found, wanted, originals = [], expected(root), sources(root)
    changed, kept = edited(root), {*wanted.values()}
    for path, new in wanted.items():
        text, there = read(root / path), originals.get(path, path)
        if text == new:
            continue
        mine = path in changed and there not in changed and text not in kept
        if text and mine and not force:
            found.append(
                f"{path}: edited, and {there or 'no other file'} is not; left as it is "
                "(--write --force overwrites it)"
            )
        elif new:
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_bytes(new.encode())
        else:
            (root / path).unlink()
    # Only now every original is where it belongs.
    (root / ATTRIBUTES).write_bytes(expected(root)[ATTRIBUTES].encode())
    return found


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--write", action="store_true", help="repair the tree")
    parser.add_argument("--force", action="store_true", help="even what was edited")
    args = parser.parse_args()
    found = []
    if args.write or args.force:
        found += write(args.root, args.force)
        pages.write(args.root)
    found += [*check(args.root), *pages.check(args.root)]
    for line in found:
        print(f"copies: {line}", file=sys.stderr)
    if found:
        print(HINT, file=sys.stderr)
    else:
        print(f"copies: {len(expected(args.root))} files, and the pages: in sync")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
