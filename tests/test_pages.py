"""What the pages say: headings, links, words, papers, and the messages of a run."""

import argparse
import itertools
import re
import sys
from collections import Counter
from pathlib import Path

import copies
import pytest
import reading
import registry
from tree import REPO, files, run, short

EXAMPLES = registry.folders()
PAGES = files(".md")
pytestmark = pytest.mark.quick

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
        "Differences from the paper",
        "Make it yours",
        "Reference",
    ]


@pytest.mark.parametrize("folder", EXAMPLES)
def test_house_format(folder: str) -> None:
    text = (REPO / folder / "README.md").read_text()
    assert re.match(rf"# {re.escape(folder)}\b", text)
    assert re.findall(r"^## (.*?) *$", prose(text), re.M) == headings(folder)


def test_the_version_on_the_pages_is_the_one_that_is_pinned() -> None:
    pins = (REPO / "requirements.txt").read_text()
    pin = re.search(r"^tensorflow==((\d+\.\d+)\S+)$", pins, re.M)
    for page in PAGES:
        if page.parent.parent != REPO / "Engines":  # which need what theirs needs
            text = page.read_text()
            quoted = {*re.findall(r"install [^`\n]*tensorflow==([\d.]+\*?)", text)}
            assert quoted <= {pin[1], f"{pin[2]}.*"}, page
    for name in ("README.md", "docs/folder.md", "docs/clusters.md"):
        assert f"tensorflow=={pin[2]}.*" in (REPO / name).read_text()


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
        elif target.suffix == ".html":
            continue  # what follows # says what it shows, see test_play.py
        elif anchor and anchor not in anchors(target.read_text()):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


TEXTS = files(".md", ".py", ".sh", ".sbatch", ".ipynb", ".toml", ".txt", ".yaml")
TEXTS.append(REPO / ".ci" / "run")
MODULES = {path.stem for path in (REPO / copies.ORIGINALS / "cluster").glob("*.py")}


def test_no_path_of_a_machine_nothing_unfinished_and_no_lost_module() -> None:
    machine = re.compile(r"(?<![\w.~])/(?:home|root|Users|work|opt|mnt|srv)/\w")
    unfinished = re.compile("TO" + r"DO\b|FIX" + r"ME\b|\bXX" + r"X\b")
    for path in TEXTS:
        text = re.sub(r'"image/png": "[^"]*"', "", path.read_text())  # any letters
        assert not machine.search(text), path
        assert not unfinished.search(text), path
        if path.suffix != ".py":
            named = {*re.findall(r"\bcluster/(\w+)\.py\b", text)}
            assert named <= MODULES, path


@pytest.mark.parametrize("folder", [*EXAMPLES, "Horovod"])
def test_every_flag_is_explained(folder: str) -> None:
    known = {"Horovod": "horovod_sgd.py"}  # what its run.sh starts
    script = known.get(folder) or registry.script_of(folder)
    done = run(sys.executable, REPO / folder / script, "--help")
    assert done.returncode == 0, done.stderr
    flags = set(re.findall(r"^  (?:-\w, )?(--\w+)", done.stdout, re.M)) - {"--help"}
    assert {"--steps", "--learning_rate"} <= flags
    pages = (REPO / folder / "README.md", REPO / "docs" / "flags.md")
    text = "".join(page.read_text() for page in pages)
    assert {flag for flag in flags if not re.search(rf"{flag}\b", text)} == set()


def test_the_first_screen() -> None:
    """What the root page says before its list of examples."""
    head, mark, _ = (REPO / "README.md").read_text().partition("<!-- index:begin -->")
    assert mark and len(head.splitlines()) <= 70
    for wanted in ("tensorflow.compat.v1", "bash run.sh", "staleness", "Python 3.10"):
        assert wanted in head
    alternatives = re.findall(r"!\[([^\]]*)\]\([^)]+\)", head)
    assert len(alternatives) == 2 and min(map(len, alternatives)) >= 40


# --- Messages -----------------------------------------------------------------


def programs() -> str:
    """Returns the text of all programs, broken texts and lines put together."""
    paths = [path for path in files(".py", ".sh") if short(path)[:5] != "tests"]
    paths.append(Path(argparse.__file__))
    text = "".join(path.read_text() for path in paths)
    return re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", text))


def test_the_messages_of_the_page_are_printed() -> None:
    """Some words in a row of each are a program's; a value may be between others."""
    page, text = (REPO / "docs" / "troubleshooting.md").read_text(), programs()
    rows = re.findall(r"^\| `(.+?)`(?: \((.*?)\))? \|", page, re.M)
    for message in [one for one, remark in rows if "TensorFlow's" not in remark]:
        words = message.split(" ")
        spans = itertools.combinations(range(len(words) + 1), 2)
        known = (span for a, b in spans if (span := " ".join(words[a:b])) in text)
        assert max(map(len, known), default=0) >= 9, message


# --- References ---------------------------------------------------------------


def entries() -> dict[str, dict[str, str]]:
    """Returns the fields of each entry of docs/references.bib."""
    text = (REPO / "docs" / "references.bib").read_text()
    found = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", text, re.S | re.M)
    assert len(found) == text.count("@") == len(dict(found))
    return {key: dict(re.findall(r"(\w+) += \{(.*)\},", body)) for key, body in found}


def links(text: str) -> set[str]:
    """Returns the arXiv numbers and DOIs that a text links to."""
    return set(re.findall(r"(?:arxiv\.org/abs|doi\.org)/([^)\s]+)", text))


@pytest.mark.parametrize("example", registry.EXAMPLES, ids=lambda e: e.folder)
def test_every_paper_can_be_cited(example: registry.Example) -> None:
    ours = [
        fields
        for fields in entries().values()
        if example.folder in re.split(", *", fields.get("keywords", ""))
    ]
    for fields in ours:
        assert fields["author"] and fields["title"] and fields["year"].isdigit()
    there = {
        fields[name] for fields in ours for name in ("eprint", "doi") if name in fields
    }
    assert links(example.paper) <= there, "add it to docs/references.bib"
    named = re.match(r"\[?([A-Z]\w+).* (\d{4})", example.paper)
    if named:
        first = [(f["author"].split(",")[0], f["year"]) for f in ours]
        assert named.groups() in first, "add it to docs/references.bib"
    page = (REPO / example.folder / "README.md").read_text()
    cited = links(page.partition("## Reference")[2])
    every = {f.get(name) for f in entries().values() for name in ("eprint", "doi")}
    assert cited <= every, "add it to docs/references.bib"


def test_citation() -> None:
    text = (REPO / "CITATION.cff").read_text()
    for field in ("cff-version", "message", "title", "authors", "date-released"):
        assert re.search(rf"^{field}:", text, re.M), field
    assert "docs/references.bib" in text


# --- The path of a reader -----------------------------------------------------


def test_the_path_leads_through_every_page_and_notebook() -> None:
    """From each to the next and back; test_copies sees that the lines are renewed."""
    for stops in (reading.notebooks(REPO), reading.examples()):
        assert len(stops) > 10
        for stop, after in itertools.pairwise(stops):
            texts = [(REPO / file).read_text() for file in (stop.file, after.file)]
            assert f"next: {reading.link(after, stop.file)}" in texts[0]
            assert f"before: {reading.link(stop, after.file)}" in texts[1]
            assert f"**Next:** {reading.link(after, stop.file)}" in texts[0]


def test_a_page_without_a_place_gets_the_lines_once() -> None:
    one = reading.Stop("A/README.md", "A/", "A", "the first.")
    two = reading.Stop("B/README.md", "B/", "B", "the second.")
    page = "# A: a page\n\n" + "word " * 1100 + "\n"
    made = reading.on_page(page, one.file, None, two)
    assert made.startswith(
        "# A: a page\n\n<!-- path:begin -->\n*10 minutes · next: [B]"
    )
    assert made.endswith("\n**Next:** [B](../B/): the second.\n<!-- next:end -->\n")
    assert reading.without(made) == page
    assert reading.on_page(made, one.file, None, two) == made
    assert "before: [A](../A/)*" in reading.on_page("# B\n\nb\n", two.file, one, None)
    assert [reading.minutes(n) for n in (1, 1000, 1001)] == [5, 5, 10]
