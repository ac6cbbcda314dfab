"""The notebooks of Basics-Tutorial: what is committed, and that all of it still runs.

Each notebook runs top to bottom in a copy outside the repository, the code of its
folded solution after it; the three-kernel exercise runs as three kernels at once.
Afterwards no process, open port or file may be left.
"""

import contextlib
import copy
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import launch
import nbformat
import notebooks
import psutil
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
        if cell.execution_count is None:
            found.append(f"{cell.id}: never run")
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
    """Links lead to a notebook that exists or to the folder of an example."""
    text = "\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text.replace("\n", " "))
    named = 0
    for link in links:
        target = (path.parent / link).resolve()
        if link.endswith(".ipynb"):
            assert target.is_file(), link
        else:
            assert target.parent == ROOT and target.name in EXAMPLES, link
            named += 1
    assert named, "no link to the example that uses the idea"


def test_all_are_in_the_readme():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = [line for line in readme.splitlines() if line.startswith("|")]
    linked = re.findall(r"\]\(([^)]+\.ipynb)\)", "\n".join(table))
    assert len(NAMES) == 13
    assert sorted(linked) == sorted(NAMES)


def test_one_exercise_runs_in_three_kernels():
    assert sorted(len(group) for group in GROUPS) == 10 * [1] + [3]
    assert sorted(path for group in GROUPS for path in group) == PATHS


def add_output(text, name="stdout"):
    def change(notebook):
        cell = next(c for c in notebook.cells if c.cell_type == "code")
        cell.outputs.append(nbformat.v4.new_output("stream", name=name, text=text))

    return change


def no_prose(notebook):
    notebook.cells[:] = [c for c in notebook.cells if c.cell_type == "code"] + [
        notebook.cells[-1]
    ]


def set_first(**values):
    return lambda notebook: notebook.cells[0].update(values)


def never_run(notebook):
    for cell in notebook.cells:
        cell.execution_count = None


CHANGES = {
    "notebooks.py": lambda n: n.cells[1].update(source=n.cells[1].source + " "),
    "size": add_output("x" * KILOBYTES * 1000),
    "noise": add_output("I0000 00:00 computation_placer"),
    "path": add_output("saved in /tmp/model"),
    "error": add_output("something", name="stderr"),
    "no prose before it": no_prose,
    "exercise": lambda notebook: notebook.cells.pop(),
    "id": set_first(id="0a1b2c3d"),
    ": metadata": set_first(metadata=nbformat.from_dict({"scrolled": True})),
    "metadata": lambda notebook: notebook.metadata.update(widgets={}),
    "never run": never_run,
    "not run top to bottom": lambda n: n.cells[2].update(execution_count=7),
}


@pytest.mark.parametrize("finding", CHANGES)
def test_findings_can_be_found(finding):
    notebook = copy.deepcopy(read(PATHS[0]))
    assert findings(notebook) == []
    CHANGES[finding](notebook)
    assert any(found.endswith(finding) for found in findings(notebook))


class Watch:
    """Notes every process below this one, and every port it listens on."""

    def __init__(self):
        self.before = set(psutil.Process().children(recursive=True))
        self.processes, self.ports = set(), set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        this = psutil.Process()
        while not self.stop.wait(0.1):
            for process in set(this.children(recursive=True)) - self.before:
                self.processes.add(process)
                with contextlib.suppress(psutil.Error):
                    self.ports |= listened_on(process)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def left(self):
        end = time.monotonic() + 5
        while any(map(runs, self.processes)) and time.monotonic() < end:
            time.sleep(0.05)
        alive = [process for process in self.processes if runs(process)]
        # A child that has just been forked still has the servers of this process.
        ports = self.ports - listened_on(psutil.Process())
        return alive, [port for port in ports if listens(port)]


def test_what_is_left_is_noticed():
    with Watch() as watch:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
        while not watch.processes:
            time.sleep(0.05)
    assert watch.left() == ([psutil.Process(child.pid)], [])
    child.communicate(b"\n")
    assert watch.left() == ([], [])


def runs(process):
    """Says whether a process is there, and is not another one of its number.

    Linux uses the numbers of ended processes again. psutil.wait_procs fails where a
    thread has such a number now.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def listened_on(process):
    """Returns the ports on which a process listens."""
    sockets = process.net_connections(kind="tcp")
    return {s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN}


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def files(folder):
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def kernels_at_home(tmp_path, monkeypatch):
    """What kernels write beside their notebooks goes here; both must end up empty."""
    homes = [tmp_path / "temporary", tmp_path / "runtime"]
    for variable, home in zip(["TMPDIR", "JUPYTER_RUNTIME_DIR"], homes, strict=True):
        home.mkdir()
        monkeypatch.setenv(variable, str(home))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # A proxy that does not answer, as in an office without a rule for localhost.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    return homes


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
@pytest.mark.timeout(600)  # number 8 waits for TensorFlow's thirty seconds, and more
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

    with Watch() as watch:
        results = notebooks.run(paths)

    assert len(results) == len(group)
    for notebook in results:
        assert all(c.execution_count for c in notebook.cells if c.cell_type == "code")
    assert len(watch.processes) >= len(group) and watch.ports
    assert watch.left() == ([], [])
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
    with Watch() as watch, pytest.raises(error):
        notebooks.run([path], seconds=seconds)
    assert watch.processes and watch.left() == ([], [])


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
    (folder / "rendezvous.json").write_text(
        json.dumps({"jobs": {"ps": [], "worker": []}, "pid": dead.pid})
    )
    with (
        Watch() as watch,
        pytest.raises(CellExecutionError, match="gave up waiting for an invitation"),
    ):
        notebooks.run([folder / name])
    assert watch.left() == ([], [])
