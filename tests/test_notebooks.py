"""The notebooks of Basics-Tutorial: what is committed, and that all of it still runs.

Each notebook runs top to bottom in a copy outside the repository, the code of its
folded solution after it; the three-kernel exercise runs as three kernels at once.
Afterwards no process, open port or file may be left.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import launch
import matrix
import nbformat
import notebooks
import pytest
import registry
from nbclient.exceptions import CellExecutionError, CellTimeoutError

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "Basics-Tutorial"
PATHS = notebooks.find()
NAMES = [path.relative_to(FOLDER).as_posix() for path in PATHS]
GROUPS = notebooks.groups(PATHS)
EXAMPLES = registry.folders()
KILOBYTES = 300
NOISE = re.compile(
    r"tensorflow/(core|compiler|stream_executor|python)|cuda|oneDNN|cpu_feature_guard"
    r"|WARNING|^[IWE]0000|AVX|Traceback",
    re.IGNORECASE | re.MULTILINE,
)
MACHINE = re.compile(r"/(home|work|root|tmp|usr|var|opt|Users|private)\b")


def read(path):
    return nbformat.read(path, as_version=4)


def texts(cell):
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        for kind, data in output.get("data", {}).items():
            if not kind.startswith("image/"):
                yield str(data)


def solutions(notebook):
    folded = re.findall(
        r"<details><summary>Solution</summary>(.*?)</details>",
        notebook.cells[-1].source,
        re.DOTALL,
    )
    return [re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in folded]


def findings(notebook):
    """Everything that is wrong with a notebook as it is stored."""
    cells, found = notebook.cells, []
    metadata = dict(notebook.metadata)
    if metadata.pop("made_from", None) != notebooks.digest(notebook):
        found.append("outputs of something else: python tools/notebooks.py")
    if metadata != notebooks.METADATA:
        found.append("metadata")
    if len(nbformat.writes(notebook)) > KILOBYTES * 1000:
        found.append("size")
    if "## Exercise" not in cells[-1].source or len(solutions(notebook)) != 1:
        found.append("exercise")
    elif not solutions(notebook)[0]:
        found.append("solution without code")
    for before, cell in zip([None, *cells], cells, strict=False):
        if not re.fullmatch(r"[a-z]+(-[a-z]+)*", cell.id):
            found.append(f"{cell.id}: id")
        if cell.metadata:
            found.append(f"{cell.id}: metadata")
        if MACHINE.search(cell.source):
            found.append(f"{cell.id}: path")
        if cell.cell_type != "code":
            continue
        if before is None or before.cell_type != "markdown":
            found.append(f"{cell.id}: no prose before it")
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append(f"{cell.id}: error")
        for text in texts(cell):
            if NOISE.search(text):
                found.append(f"{cell.id}: noise")
            if MACHINE.search(text):
                found.append(f"{cell.id}: path")
    counts = [cell.execution_count for cell in cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        found.append("not run top to bottom")
    return found


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_stored(path):
    assert findings(read(path)) == []


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_links(path):
    """They lead to notebooks, and one at least to the folder of an example."""
    text = " ".join(c.source for c in read(path).cells if c.cell_type == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text.replace("\n", " "))
    targets = [(path.parent / link).resolve() for link in links]
    folders = [target for target in targets if not target.suffix]
    assert all(target.exists() for target in targets), links
    assert folders and {folder.name for folder in folders} <= {*EXAMPLES}


def test_all_are_in_the_readme():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\|.*", readme, re.M))
    assert sorted(re.findall(r"\]\(([^)]+\.ipynb)\)", rows)) == sorted(NAMES)


def files(folder):
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def kernels_at_home(tmp_path, monkeypatch):
    """What kernels write beside their notebooks goes here; no process may be left."""
    homes = [tmp_path / "temporary", tmp_path / "runtime"]
    for variable, home in zip(["TMPDIR", "JUPYTER_RUNTIME_DIR"], homes, strict=True):
        home.mkdir()
        monkeypatch.setenv(variable, str(home))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # A proxy that does not answer, as in an office without a rule for localhost.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    yield homes
    launch.wait_until(lambda: not matrix.processes(str(tmp_path)), 5)


def test_hogwild_has_forty_lines():
    """Of code; the notebook counts them, and so does this."""
    cells = read(FOLDER / "8-HogWild-in-Forty-Lines.ipynb").cells
    (program,) = [c.source for c in cells if c.source.startswith("def hogwild(")]
    lines = [line.strip() for line in program.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    assert len(code) <= 40
    (said,) = [t for c in cells for t in texts(c) if t.endswith(" lines\n")]
    assert said == f"{len(code)} lines\n"


@pytest.mark.long
@launch.if_engines  # its outputs are those of its cells, see `findings`
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].stem)
def test_runs(group, tmp_path, kernels_at_home):
    folder = tmp_path / "copy"
    shutil.copytree(FOLDER, folder)
    paths = [folder / path.relative_to(FOLDER) for path in group]
    for path in paths:
        notebook = read(path)
        for code in solutions(notebook)[0]:
            notebook.cells.append(nbformat.v4.new_code_cell(code))
        nbformat.write(notebook, path)
    before = files(folder)

    results = notebooks.run(paths)
    assert len(results) == len(group)
    for notebook in results:
        assert all(c.execution_count for c in notebook.cells if c.cell_type == "code")
    assert files(folder) == before
    assert [files(home) for home in kernels_at_home] == [[], []]


@pytest.mark.parametrize(
    "code, seconds, error",
    [
        ("assert 1 + 1 == 3", 60, CellExecutionError),
        ("while True:\n    pass", 5, CellTimeoutError),
    ],
    ids=["wrong", "endless"],
)
def test_a_bad_notebook_fails(code, seconds, error, tmp_path, kernels_at_home):
    path = tmp_path / "bad.ipynb"
    cells = [nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(error):
        notebooks.run([path], seconds=seconds)


def test_waiting_ends(tmp_path, kernels_at_home):
    """Worker 1 alone gives up, and is not misled by the file of a dead worker 0."""
    name = "4b-Local-then-Global-Variables-Worker1.ipynb"
    notebook = read(FOLDER / "Multiple-Workers" / name)
    for cell in notebook.cells:
        cell.source = cell.source.replace("seconds=300", "seconds=2")
    folder = tmp_path / "Multiple-Workers"
    folder.mkdir()
    shutil.copy(FOLDER / "beginning.py", tmp_path)
    nbformat.write(notebook, folder / name)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = {"jobs": {"ps": [], "worker": []}, "pid": dead.pid}
    (folder / "rendezvous.json").write_text(json.dumps(left))
    with pytest.raises(CellExecutionError, match="gave up waiting for an invitation"):
        notebooks.run([folder / name])
