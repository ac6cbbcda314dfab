"""What the pages say: headings, links, words, papers, and the messages of a run."""

import argparse
import ast
import functools
import re
import sys
from collections import Counter
from pathlib import Path

import copies
import pytest
import registry
from tree import REPO, files, run, short

EXAMPLES = registry.folders()
PAGES = files(".md")
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|Users|work|opt|mnt|srv)/\w")
pytestmark = pytest.mark.quick
UNFINISHED = re.compile("TO" + r"DO\b|FIX" + r"ME\b|\bXX" + r"X\b")

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


def house_format(folder: str, text: str, pin: str) -> list[str]:
    """Returns what is wrong with the README of an example."""
    found = []
    have = re.findall(r"^## (.*?) *$", prose(text), re.M)
    if have != headings(folder):
        found.append(f"H2s are {have}")
    yours = text.partition("\n## Make it yours\n")[2].partition("\n## ")[0]
    if "8-HogWild-in-Forty-Lines.ipynb" not in yours:
        found.append("does not say why `cluster/` is there")
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
    pointer = "../Basics-Tutorial/8-HogWild-in-Forty-Lines.ipynb"
    good = good.replace("## Make it yours\n", f"## Make it yours\n{pointer}\n")
    assert house_format(folder, good, "2.21.0") == []
    assert house_format(folder, good.replace(pointer, ""), "2.21.0")
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


# What the runtime around the schemes was once called, and the modules that it had. One
# letter of each is in brackets, so that this list does not find itself.
GONE = "|".join(
    [
        r"\b(?:[l]obby|[r]ollcall|[l]ookouts?|[g]athering)\b",
        r"(?<!import )\b[s]trangers?\b(?!\.|:)",  # a tool here has this name
        r"\b[h]earts?\b(?! of)|\b[w]atch\.(?:py|[H]eart|wait|lost)|[s]igns? of life",
        r"\b[s](?:ee|ees|een|eeing|aw) (?:\w+ ){1,3}off\b|\b[s](?:ee|een) off\b",
        r"\b[s]en[dt]s? (?:\w+ ){0,3}home\b|\b[p]arting\b|\b[b]ye\b",
        r"\b(?:[m]eeting|gu[e]sts?|[s]eats?)\b",
        r"\b[k]nock(?:s|ed|ing)?\b|\b[e]xtremes\b|\b[b]ooks\b|\bthe [c]ompany\b",
        r"\b[k]ept\.(?:enter|read_step|temporary|device|me|of|incarnation|prepare)\b",
        r"\b[n]otes\.(?:look|loss|lost|draw|write)|\b[n]otes = report",
        r"(?:args|center|table), [k]ept[,)]",
        r"\b[r]un\.account\b|\b[e]ntry\.(?:applied|packed|number|staleness)\b",
        r"who[e]ver reaches this machine",
        # Modules, in a name with a dot.
        r"\b(?:[a]like|[b]ooks|[p]rotocol|[l]obby|[r]ows|[u]nroll|[s]traggler)\.py\b",
        r"\b(?:[b]ooks|[p]rotocol|[l]obby|[e]xits|[m]eeting|[c]ompany|[l]ookout)\.[A-Za-z]",
        r"\b[a]like\.(?:broadcast|differ|check)",
    ]
)
GLOSSARY = REPO / "docs" / "glossary.md"


def gone(path: Path, text: str) -> list[str]:
    """Returns the words of before in a file, each with its line.

    The glossary may have them in the last column of a table with "was called".
    """
    if path == GLOSSARY:
        head, called, table = text.partition("| was called |")
        text = head + called + re.sub(r"[^|\n]*\|$", "|", table, flags=re.M)
    text = re.sub(r'"image/png": "[^"]*"', "", text)
    return [
        f"{number}: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in re.finditer(GONE, line, re.I)
    ]


@pytest.mark.parametrize("path", TEXTS, ids=short)
def test_no_word_of_before(path: Path) -> None:
    assert gone(path, path.read_text()) == []


def no_modules(text: str) -> set[str]:
    """Returns the modules of cluster/ that a text names and that there are not."""
    there = {path.stem for path in (REPO / copies.ORIGINALS / "cluster").glob("*.py")}
    return {*re.findall(r"\bcluster/(\w+)\.py\b", text)} - there


@pytest.mark.parametrize("page", [p for p in TEXTS if p.suffix != ".py"], ids=short)
def test_the_modules_that_are_named_are_there(page: Path) -> None:
    assert no_modules(page.read_text()) == set()


def test_a_module_that_is_not_there_is_found() -> None:
    assert no_modules("`cluster/run.py` and cluster/ran.py") == {"ran"}


def test_words_of_before_can_be_found() -> None:
    page = REPO / "README.md"
    for text in (
        "the lo" + "bby",
        "a si" + "gn of life",
        "se" + "nds them all home",
        "se" + "es the ps off",
        "no St" + "ranger",
        "bo" + "oks.py",
        "ke" + "pt.enter(",
    ):
        assert len(gone(page, text)) == 1, text
    for text in ("all alike", "the heart of it", "is kept until", "rows", "from home"):
        assert gone(page, text) == [], text
    row = "| term | was called |\n|---|---|\n| rendezvous | lo" + "bby |\n"
    assert gone(GLOSSARY, row) == []
    assert gone(GLOSSARY, row + "The lo" + "bby |x\n") and gone(page, row)


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
    pages = (REPO / folder / "README.md", REPO / "docs" / "flags.md")
    text = "".join(page.read_text() for page in pages)
    assert {flag for flag in flags if not re.search(rf"{flag}\b", text)} == set()


# --- The root page ------------------------------------------------------------

HEAD = 60  # lines before the list of examples, at most


def first_screen(text: str) -> list[str]:
    """Returns what the root page lacks before its list of examples."""
    head, mark, _ = text.partition("<!-- index:begin -->")
    found = [] if mark else ["no list of examples"]
    lines = head.splitlines()
    if len(lines) > HEAD:
        found.append(f"{len(lines)} lines before the list, at most {HEAD}")
    for wanted in ("tensorflow.compat.v1", "bash run.sh", "staleness", "Python 3.10"):
        if wanted not in head:
            found.append(f"does not say {wanted}")
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", head)
    if len(pictures) != 1 or len(pictures[0][0]) < 40:
        found.append("wanted: one picture, with a text for who does not see it")
    return found


def test_the_first_screen() -> None:
    assert first_screen((REPO / "README.md").read_text()) == []


def test_the_first_screen_can_fail() -> None:
    page = (REPO / "README.md").read_text()
    longer = page.replace("## Start\n", "## Start\n" + "\n" * HEAD)
    assert "lines before the list" in first_screen(longer)[0]
    assert first_screen(page.replace("tensorflow.compat.v1", "tensorflow"))
    assert first_screen(page.replace("![", "["))
    assert first_screen(page.replace("index:begin", "index"))


def test_what_the_root_page_shows_is_a_run_of_the_example() -> None:
    """Its lines have the form of those in the example's page, number by number."""
    shown, known = map(lines_of_a_run, ("README.md", "HogWild/README.md"))
    forms = {form(line) for line in known}
    assert len(shown) == 8
    assert [line for line in shown if form(line) not in forms] == []


def lines_of_a_run(page: str) -> list[str]:
    """Returns what tasks print on a page; a line that is broken there is one line."""
    text = re.sub(r"\n {11}(?=\()", " ", (REPO / page).read_text())
    return re.findall(r"^\[(?:ps|worker) \d\] .*", text, re.M)


def form(line: str) -> str:
    """Returns a line of a run with every number, and the spaces before it, as one #."""
    return re.sub(r" *[\d.]*\d", "#", line)


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


def unique(templates: list[Template]) -> list[Template]:
    """Returns each template once: most scripts have the same texts."""
    return [list(parts) for parts in dict.fromkeys(map(tuple, templates))]


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
PRINTED = unique(
    [
        *templates_of_bash((REPO / copies.ORIGINALS / "run.sh").read_text()),
        *(
            x
            for path in sorted({*copies.sources(REPO).values()})
            if copies.SHARED.search(path)
            for x in templates_of_python((REPO / path).read_text())
        ),
        *(x for f in WHOLE for x in templates_of_bash((f / "run.sh").read_text())),
        *(x for f in SCRIPTS for x in templates_of_python(f.read_text())),
        *(
            x
            for folder in WHOLE
            for path in folder.glob("*.py")
            for x in templates_of_python(path.read_text())
        ),
        *templates_of_python((REPO / "TensorFlow-2" / "coordinator.py").read_text()),
    ]
)
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
