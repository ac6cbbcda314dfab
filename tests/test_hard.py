"""MNIST-1D: its data, its models, the plan of benchmarks/hard.py, and its tables.

No task is started: what the script measures takes an hour.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tree
from harness import tf
from launch import REFERENCE, REPO

pytestmark = pytest.mark.quick

sys.path.insert(0, str(REPO / "benchmarks"))
claims, hard, hard_data, runs = map(
    importlib.import_module, ("claims", "hard", "hard_data", "runs")
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file with the data, made here."""
    return hard_data.file(tmp_path_factory.mktemp("data") / "mnist-1d.npz")


# --- Data ---------------------------------------------------------------------


def test_the_data_are_always_the_same(data: Path) -> None:
    assert hard_data.checksum(data.read_bytes()) == hard_data.CHECKSUM
    with np.load(data) as file:
        shapes = {key: (file[key].dtype, file[key].shape) for key in file.files}
        assert [*np.bincount(file["y_train"])] == pytest.approx([400] * 10, abs=25)
    assert shapes == {
        "x_train": (np.float32, (4000, 40)),
        "y_train": (np.int32, (4000,)),
        "x_test": (np.float32, (1000, 40)),
        "y_test": (np.int32, (1000,)),
    }


def test_damaged_data_are_made_again(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "mnist-1d.npz"
    path.parent.mkdir()
    path.write_bytes(data.read_bytes()[:-1])
    assert hard_data.file(path).read_bytes() == data.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_package_is_one_sentence() -> None:
    code = "import sys, hard_data; sys.modules['mnist1d'] = None; hard_data.arrays()"
    done = tree.run(sys.executable, "-c", code, cwd=REPO / "benchmarks")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.endswith(f"no module mnist1d: pip install {hard_data.PACKAGE}\n")
    assert done.stderr.count("\n") == 1


# --- Models -------------------------------------------------------------------


def problem_of(name: str) -> types.ModuleType:
    """Returns the digits' problem.py with a file of benchmarks/problems behind it."""
    module = types.ModuleType("problem")
    texts = [REFERENCE / "problem.py", hard.MODELS / f"{name}.py"]
    code = "".join(path.read_text() for path in texts)
    exec(compile(code, "problem.py", "exec"), module.__dict__)
    return module


def trained(name: str, data: Path, rate: float, steps: int = 400) -> tuple[int, float]:
    """Returns the number of parameters, and the test accuracy after these steps."""
    module = problem_of(name)
    with tf.Graph().as_default(), tf.Session() as session:
        learning = module.build(module.load(str(data)), 32, 0)
        w = tf.get_variable("center", initializer=learning.start)
        loss = learning.loss(w, learning.batch())
        step = w.assign_sub(rate * tf.gradients(loss, w)[0])
        _, accuracy = learning.test(w)
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())
        for _ in range(steps):
            session.run(step.op)
        return w.shape.num_elements(), float(session.run(accuracy))


def test_a_better_model_learns_more(data: Path) -> None:
    """In the order of the published accuracies, and none of them at chance."""
    found = [trained(name, data, rate) for name, rate, _ in hard.ALONE.values()]
    sizes, accuracies = zip(*found, strict=True)
    assert sizes == (410, 5110, 5210)
    logistic, perceptron, convolution = accuracies
    assert 0.2 < logistic < perceptron - 0.05 < convolution - 0.1


def test_the_page_shows_the_models() -> None:
    page = (REPO / "docs" / "problem.md").read_text()
    for name in ("perceptron", "convolution"):
        model = (hard.MODELS / f"{name}.py").read_text()
        assert f"```python\n{model}```\n" in page


# --- The plan -----------------------------------------------------------------


@pytest.fixture
def planned(data: Path, monkeypatch: pytest.MonkeyPatch) -> list:
    """Returns the runs of one seed, with the data that were made here."""
    monkeypatch.setattr(hard_data, "FILE", data)
    return hard.plan()


def test_the_plan(planned: list) -> None:
    """As many gradients in each cell, half of them in bounded staleness."""
    five = hard.plan(seeds=hard.SEEDS)
    assert len({claims.Cache.key(run) for run in five}) == len(five)
    assert five[: len(planned)] == planned  # an early end leaves a whole table
    for run in planned:
        steps = run.flags[run.flags.index("--steps") + 1]
        window = dict(zip(run.flags, run.flags[1:], strict=False)).get("--window", 1)
        each = hard.WORKERS if run.part in ("pool", "local") else 1
        share = 2 if run.part == "bound" else 1
        assert steps * window * each * share == pytest.approx(hard.GRADIENTS, rel=0.03)


def test_a_copy_has_the_model_and_the_data(planned: list, data: Path) -> None:
    run = planned[-1]
    digits = (REPO / run.folder / "problem.py").read_text()
    with runs.variant(REPO / run.folder, None, run.more) as copy:
        model = (hard.MODELS / "convolution.py").read_text()
        assert (copy / "problem.py").read_text() == digits + model
        assert (copy / hard.DATA).read_bytes() == data.read_bytes()
    assert (REPO / run.folder / "problem.py").read_text() == digits
    assert not (REPO / run.folder / hard.DATA).exists()


def test_a_result_is_of_its_model(planned: list, tmp_path: Path) -> None:
    logistic, perceptron, *_ = planned
    assert logistic.folder == perceptron.folder
    cache = claims.Cache(tmp_path / "hard.json")
    cache.put(logistic, {"test_accuracy": 0.3})
    assert cache.get(logistic) == {"test_accuracy": 0.3}
    assert cache.get(perceptron) is None and cache.kept(perceptron) is None
    changed = tmp_path / "logistic.py"
    changed.write_text(logistic.more["problem.py"].read_text() + "CHANGED = 1\n")
    more = {**logistic.more, "problem.py": changed}
    assert cache.get(logistic._replace(more=more)) is None


# --- Tables -------------------------------------------------------------------


def made_up(planned: list, accuracy: float) -> dict:
    """Returns results of all runs, all with this accuracy."""
    found = {part: {} for part in hard.TITLES}
    for run in planned:
        more = {"mean_staleness": 2.5, "bytes_pushed": 3_000_000}
        row = found[run.part].setdefault(run.label, {})
        row[run.x] = {"test_accuracy": accuracy, **more}
    return found


def test_tables_and_figures(planned: list, tmp_path: Path) -> None:
    found, digits = made_up(planned, 0.9), made_up(planned, 0.98)
    found["window"][hard.AGN][64] = {"test_accuracy": 0.25}
    each = [{"test_accuracy": x} for x in (0.5, 0.7, 0.8)]
    found["local"]["shards alike"][32] = {**each[1], "each": each}
    found["bound"][hard.SLOW][4] = {"diverged": True}
    text = hard.write_results(tmp_path, found, digits)
    same = "98.0 % against 98.0 % | yes | 90.0 % against 90.0 % | yes | the same |"
    assert f"| AGN keeps its accuracy at T = 16 | {same}" in text
    assert "25.0 % against 90.0 % | **no** | **another** |" in text
    assert "s = 0 | 98.0 % against 98.0 % | yes | diverged against" in text
    assert "| Local-SGD | T = 32 | 70.0 % | 50.0 to 80.0 | - | - | - |" in text
    assert "The middle of 1 to 3 seeds." in text
    for name in ("cells", "window"):
        assert f"](hard-{name}.svg)" in text
        assert "<text" in (tmp_path / f"hard-{name}.svg").read_text()


def test_nothing_measured(tmp_path: Path) -> None:
    text = hard.write_results(tmp_path, {part: {} for part in hard.TITLES}, {})
    assert "| - against - | - | - against - | - | - |" in text
    assert [*tmp_path.iterdir()] == []
