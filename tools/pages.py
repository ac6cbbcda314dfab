"""Renews what the pages show of the registry and of the scripts.

    python tools/pages.py               says which pages are not up to date
    python tools/pages.py --write       renews them, as tools/copies.py --write does too
    python tools/pages.py --lines       prints how many lines each folder has

A block between `<!-- diff:begin -->` and `<!-- diff:end -->` on a folder's page is the
difference of its script from its parent's. The others are tables of all examples, in
README.md and docs/which-example.md, of the engines, in docs/clusters.md, and of the
minutes of the notebooks. reading.py writes the path from page to page.
"""

import argparse
import difflib
import functools
import sys
import textwrap
from pathlib import Path

import reading
import registry
from registry import script_of
from sections import read, split

# Lines of a diff that is folded, so that what is below it is found.
LONG = 80


@functools.cache
def changes(parent: str, child: str) -> tuple[str, str]:
    """Returns the count and the diff of two scripts, its hunks named by section."""
    a, b = (
        [(p.title, x) for p in split(text)[1:] for x in p.text.splitlines()]
        for text in (parent, child)
    )
    lines, counts = [], {"+": 0, "-": 0}
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
            counts[sign] += 1
    return f"+{counts['+']} −{counts['-']}", "\n".join(lines)


def folded(sentence: str, code: str) -> str:
    """Returns a sentence and code, which has to be opened if it is long."""
    if code.count("\n") <= LONG:
        return f"{sentence}\n\n{code}"
    summary = f"<summary>{sentence} Open them here.</summary>"
    return f"<details>{summary}\n\n{code}\n</details>\n"


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    """Returns a table in Markdown."""
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join(["", head, rule, *(f"| {' | '.join(r)} |" for r in rows), "", ""])


def index() -> str:
    """Returns the list of examples in README.md: a row a group, a line an example."""
    rows = []
    for group, members in registry.by_group():
        lines = [f"[{e.folder}]({e.folder}/): {e.sentence}" for e in members]
        title = "<br>".join(textwrap.wrap(group, 13))  # so that the column is narrow
        rows.append((f"**{title}**", "<br>".join(lines)))
    return table("| group | example |", rows)


def details(counts: dict[str, str]) -> str:
    """Returns the table of all examples in docs/which-example.md."""
    rows = []
    for e in registry.EXAMPLES:
        changed = f"{counts.get(e.folder)} from {e.parent}" if e.parent else "–"
        rows.append(
            (f"[{e.folder}](../{e.folder}/)", e.mode, e.pushed, changed, e.paper)
        )
    head = "| example | sync or async | what is pushed | changed lines | paper |"
    return table(head, rows)


def engines() -> str:
    """Returns the table of the engines in docs/clusters.md."""
    head = (
        "| engine | what starts the tasks | who restarts them | which command | "
        "tested with |"
    )
    rows = [
        (f"[{e.name}](../Engines/{e.name}/)", e.starts, e.restarts, e.command, e.tested)
        for e in registry.ENGINES
    ]
    return table(head, rows)


def blocks(root: Path) -> dict[str, tuple[str, str, str]]:
    """Returns the generated block of each page: what stands above it, name and text."""
    found, counts = {}, {}
    for e in registry.of_family():
        if e.parent:
            scripts = (read(root / f / script_of(f)) for f in (e.parent, e.folder))
            counts[e.folder], diff = changes(*scripts)
            text = folded(
                f"{counts[e.folder]} lines, generated from the two scripts.",
                f"```diff\n{diff}\n```\n",
            )
            heading = f"\n## What changes from {e.parent}\n"
            found[f"{e.folder}/README.md"] = heading, "diff", text
    if reading.notebooks(root):
        page = f"{reading.NOTEBOOKS}/README.md"
        found[page] = ("", "minutes", reading.table(root))
    return {
        **found,
        "README.md": ("", "index", index()),
        "docs/which-example.md": ("", "details", details(counts)),
        "docs/clusters.md": ("", "engines", engines()),
    }


def expected(root: Path) -> dict[str, str]:
    """Returns what each page should be; "" if it does not have one place for a block.

    That place is between two comments, on lines of their own; on a folder's page it is
    under the heading that names the parent. The lines of the path make their own.
    """
    found = {}
    for page, (heading, name, new) in blocks(root).items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        text = read(root / page)
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        once = text.count(begin) == rest.count(end) == text.count(end) == 1
        under = head[max(head.rfind("\n## "), 0) :]
        placed = once and under.startswith(heading)
        found[page] = head + begin + new + end + tail if placed else ""
    return {**found, **reading.pages(root, found)}


def check(root: Path) -> list[str]:
    """Returns what is wrong with the pages."""
    found = []
    known = blocks(root)
    for page, text in expected(root).items():
        if not text and page in known:
            heading, name, _ = known[page]
            under = f", under `{heading.strip()}`" if heading else ""
            found.append(
                f"{page}: wanted once{under}, on lines of their own: "
                f"<!-- {name}:begin --> and <!-- {name}:end -->"
            )
        elif text != read(root / page):
            found.append(f"{page}: what is generated in it is not up to date: --write")
    return found


def write(root: Path) -> None:
    """Renews the pages that have a place for it."""
    for page, text in expected(root).items():
        if text:
            (root / page).write_bytes(text.encode())


def lines(root: Path) -> str:
    """Returns a table of how many lines each folder has, and where."""
    rows = [f"{'':42}{'script':>10}{'problem':>10}{'runtime':>10}{'together':>10}"]
    for name in registry.folders():
        parts = (
            [script_of(name)],
            ["problem.py", "datasets.py"],
            ["cluster/*.py", "launch.py"],
        )
        paths = [
            [p for glob in part for p in (root / name).glob(glob)] for part in parts
        ]
        sizes = [sum(read(path).count("\n") for path in part) for part in paths]
        rows.append(f"{name:42}" + "".join(f"{n:10}" for n in (*sizes, sum(sizes))))
    return "\n".join(rows)


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--write", action="store_true", help="renew the pages")
    parser.add_argument("--lines", action="store_true", help="print lines per folder")
    args = parser.parse_args()
    if args.lines:
        print(lines(args.root))
        return 0
    if args.write:
        write(args.root)
    found = check(args.root)
    for line in found:
        print(f"pages: {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
