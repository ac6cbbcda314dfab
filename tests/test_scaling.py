"""scaling.py, pays.py and gradients.py: plans, formulas, tables, times of gradients.

Formulas are compared with numbers computed by hand, tables are of made-up results. No
cluster is started.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import sys
import types
from pathlib import Path

import launch
import numpy as np
import pytest
from harness import tf
from launch import REPO

pytestmark = pytest.mark.quick
sys.path.insert(0, str(REPO / "benchmarks"))
emulated, pays, runs, scaling = map(
    importlib.import_module, ("emulated", "pays", "runs", "scaling")
)


# --- Plans ------------------------------------------------------------------------


def test_every_row_has_one_worker() -> None:
    """From which its perfect line follows."""
    counts = {}
    for cell in scaling.plan(scaling.PARTS):
        row = cell.part, cell.scheme, cell.elements, cell.ps
        counts.setdefault(row, []).append(cell.workers)
    assert all(found.count(1) == 1 for found in counts.values())


def test_the_rounds_of_a_cell() -> None:
    cell = scaling.Cell("rates", "HogWild", scaling.SMALL, 1, 24)
    assert scaling.rounds_of(cell) == 160  # 8 s of 50 ms
    assert scaling.rounds_of(cell._replace(scheme="AEASGD, T = 4")) == 40
    large = cell._replace(elements=scaling.LARGE, workers=8)
    assert scaling.rounds_of(large) == 112  # 900 / 8


def test_the_runs_that_are_compared_use_as_many_images() -> None:
    for part in ("cores", "sleep"):
        planned = pays.plan([part])
        for run in planned:
            each = run.workers if run.folder == pays.SYNC else 1
            assert run.updates * each * run.batch == pays.IMAGES
            # A sleep is for an example: shorter for a smaller mini-batch.
            assert run.sleep == pytest.approx(
                0.2 * run.batch / 128 if part == "sleep" else 0
            )


# --- Formulas ---------------------------------------------------------------------


def test_where_a_ps_is_full() -> None:
    assert scaling.perfect(8, 0.05) == pytest.approx(160)
    assert scaling.full_at({1: 1.0, 16: 0.79, 8: 0.9, 24: 0.5}) == 16
    assert scaling.full_at({1: 1.0, 24: 0.8}) is None


def test_where_workers_pay() -> None:
    assert pays.speedup(2, 0.01, 0.01) == 1
    assert pays.speedup(4, 0.03, 0.01) == pytest.approx(3)
    assert pays.pays_from(2, 0.01) == 0.01
    assert pays.pays_from(5, 0.008) == 0.002
    for n in (2, 4, 8):
        assert pays.speedup(n, pays.pays_from(n, 0.003), 0.003) == pytest.approx(1)
        assert pays.speedup(n, 1.01 * pays.pays_from(n, 0.003), 0.003) > 1
    # Two workers, 100 rounds/s: 20 ms each, of which 15 ms are the gradient.
    assert pays.rest_of(2, 0.015, 100) == pytest.approx(0.005)
    assert pays.crossing([0.004, 0.001], [1.5, 0.5]) == pytest.approx(0.002)
    assert pays.crossing([0.001, 0.004], [1.1, 1.5]) is None


def test_the_time_to_an_accuracy() -> None:
    curve = [(1, 0.5), (2, 0.95), (3, 0.8), (4, 0.9), (5, 0.96), (6, 0.98)]
    # The means of three: 0.75, 0.883, 0.887, 0.947.
    assert pays.seconds_to(curve, 0.88) == 4
    assert pays.seconds_to(curve, 0.9) == 6
    assert pays.seconds_to(curve, 0.97) is None
    assert pays.final(curve) == pytest.approx(0.918)


def test_only_the_time_in_which_all_make_rounds_counts() -> None:
    """Two workers of 10 and 5 rounds/s; the second begins a second later."""
    times = {0: np.r_[0, np.arange(1, 9, 0.1)], 1: np.r_[0, np.arange(2, 7, 0.2)]}
    samples = [
        (t, {"ps": 0.1 * t, "worker": 0.4 * t}, 0.7 * t) for t in (2, 3, 4, 5, 6, 7)
    ]
    begin, end = emulated.window(samples, times)
    assert (begin[0], end[0]) == (3, 6)
    found = scaling.rates(samples, times)
    assert found["rounds_per_second"] == pytest.approx(15, rel=0.03)
    assert found["median"] == pytest.approx(0.1) and found["late"] > 0.19
    assert found["ps_cores"] == pytest.approx(0.1)
    assert found["other_cores"] == pytest.approx(0.2)
    assert found["worker_cpu"] == pytest.approx(0.4 / 15, rel=0.03)
    with pytest.raises(runs.Unfinished, match="too few rounds"):
        emulated.window(samples[:2], times)
    measured = pays.pace(times)
    assert measured["rounds_per_second"] == pytest.approx(15, rel=0.03)
    assert measured["lap"] == pytest.approx(0.1)


# --- Tables -----------------------------------------------------------------------


def cell(workers: int, share: float) -> dict:
    """Returns a made-up result: N workers make this share of N / 60 ms."""
    return {
        "rounds_per_second": share * workers / 0.06,
        "median": 0.06 / share,
        "late": 0.09 / share,
        "ps_cores": 0.6,
        "worker_cores": 1.2,
        "other_cores": 0.1 * share,
        "ps_cpu": 0.002,
        "worker_cpu": 0.004,
        "first": 10.0,
        "all": 12.0,
        "start_cpu": 4.0,
        "end": 1.5,
        "memory": {"worker": [6e8, 2e8], "ps": [5e8, 1e8]},
    }


def test_the_tables_of_scaling(tmp_path: Path) -> None:
    shares = {1: 1.0, 2: 0.99, 4: 0.96, 8: 0.9, 16: 0.75, 24: 0.5}
    measured = {
        scaling.key(one): cell(one.workers, shares[one.workers])
        for one in scaling.plan(scaling.PARTS)
    }
    rounds = [measured, measured]
    text = scaling.markdown(rounds, scaling.PARTS)
    # 24 / 0.06 / 2 rounds/s of 32 examples are 6,400.
    assert re.search(r"\| HogWild, 1 ps \| 533 \(100 %\) .*\| 6,400 \(50 %\) \|", text)
    assert "| HogWild, 4 ps | 533 (100 %) | - | - | 3,840 (90 %) |" in text
    assert "| Ring-All-Reduce | 60 / 90 | " in text
    assert re.search(r"\| HogWild, 2 ps \| 16 \| .* \| 0.60 .*\| 2.00 ", text)
    assert re.search(r"\| 24 \| 10.0 \|.*\| 600 .*\| 200 .*\| 1.00 \|", text)
    scaling.draw(rounds, tmp_path / "scaling")
    assert "<text" in (tmp_path / "scaling.svg").read_text()
    assert "](scaling.svg)" in text
    scaling.draw_model(rounds, tmp_path / "model")
    assert "shared cores" in (tmp_path / "model.svg").read_text()


def test_where_the_model_has_a_ps_full() -> None:
    """A round of one worker: 50 ms, and 10 + 10 ms of CPU. Nothing else costs."""
    nothing = {
        field.name: 0.0 for field in dataclasses.fields(scaling.cost_model.cost.Costs)
    }
    costs = scaling.cost_model.cost.Costs(
        **{**nothing, "flight": math.inf, "cores": None, "ps": 0.01, "worker": 0.01}
    )
    row = "HogWild", 1, 1  # one parameter, so that no bytes count
    assert scaling.modelled(row, 1, costs) == pytest.approx(1 / 0.07)
    # The core of the ps makes 100 rounds/s, 80 % of the line of N = 8.75.
    assert scaling.modelled(row, 64, costs) == pytest.approx(100)
    assert scaling.modelled_full(row, costs, range(1, 100)) == 9
    assert scaling.modelled_full(row, costs, range(1, 9)) is None
    # One core for all: 50 rounds/s.
    shared = dataclasses.replace(costs, cores=1)
    assert scaling.modelled_full(row, shared, scaling.WORKERS) == 8


def test_scaling_without_results(tmp_path: Path) -> None:
    scaling.draw([], tmp_path / "scaling")
    assert not (tmp_path / "scaling.svg").exists()
    one = scaling.key(scaling.plan(["rates"])[5])  # 24 workers, and no line to compare
    text = scaling.markdown([{one: cell(24, 0.5)}], ["rates"])
    assert "| HogWild, 1 ps | - | - | - | - | - | 6,400 |" in text


def test_the_tables_of_pays(tmp_path: Path) -> None:
    """Made-up runs that are as fast as the formula says, with c = 4 ms."""
    found, rest = {}, 0.004
    for seed in range(2):
        for run in pays.plan(pays.PARTS):
            gradient = run.sleep or 0.0023 * run.batch
            alone = run.folder == pays.ALONE
            lap = gradient + (0 if alone else rest)
            rounds, last = run.workers / lap, pays.own_rounds(run) * lap
            curve = [(last * i / 50, min(0.97, 0.2 + 0.02 * i)) for i in range(50)]
            found[pays.key(run, seed)] = dict(
                rounds_per_second=rounds, lap=lap, curve=curve, test_accuracy=0.97
            )
    text = pays.markdown(found, pays.PARTS)
    assert text.startswith("Median of 2 seeds")
    assert "| HogWild, 8 workers of 32 | 54 |" in text
    # S(8) = 8 · 50 / (50 + 4) over one process.
    (row,) = re.findall(r"\| HogWild, 8 workers of 32 .*", text)
    assert row.endswith("| 8.00 | 7.41 |")
    assert "| 20 | 20.00 | 4.00 | 1.67 | 1.67 |" in text
    assert "t = c(2) / (2 − 1) = 4.00 ms by the formula; measured: 3.98 ms" in text
    pays.draw(found, tmp_path / "pays")
    assert "<text" in (tmp_path / "pays.svg").read_text()


# --- Gradients --------------------------------------------------------------------


@pytest.fixture
def gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Returns benchmarks/gradients.py, imported as in a task of worker 3."""
    launch.reference()
    options = dict(emulated.OPTIONS, folder=str(tmp_path), warm=2, seconds=0.001)
    options.update(elements=5000, every=2, cores=2)
    monkeypatch.setenv("EMULATED", json.dumps(options))
    monkeypatch.setattr("os.sched_setaffinity", print)  # not this process
    monkeypatch.setattr(
        sys, "argv", ["x.py", "--job_name", "worker", "--task_index", "3"]
    )
    monkeypatch.delitem(sys.modules, "gradients", raising=False)
    module = importlib.import_module("gradients")
    monkeypatch.setattr(module, "WAIT", 0)
    return module


def test_gradients_are_noted(gradients: types.ModuleType, tmp_path: Path) -> None:
    """Zero while they warm up, then those of the model, also in the longer vector."""
    sys.path.insert(0, str(launch.REFERENCE))
    import problem

    data = problem.load("digits")
    with tf.Graph().as_default(), tf.Session() as session:
        learning = gradients.noted(problem.build)(data, 8, 0)
        vector = tf.placeholder(tf.float32, [5000])
        images = tf.constant(data.x_train[:8]), tf.constant(data.y_train[:8])
        loss = learning.loss(vector, images)
        (gradient,) = tf.gradients(loss, vector)
        plain = problem.loss(vector[:4810], images, problem.shapes_of(data))
        (wanted,) = tf.gradients(plain, vector)
        start = session.run(learning.start)
        assert start.shape == (5000,) and not start[4810:].any() and start[:64].any()
        fed = {vector: start}
        for _ in range(2):
            assert not session.run(gradient, fed).any()
        for _ in range(3):
            assert np.array_equal(*session.run([gradient, wanted], fed))
        _, accuracy = learning.test(vector)
        assert 0 <= session.run(accuracy, fed) < 0.5
    times = np.fromfile(tmp_path / "times-0")
    assert len(times) == 1 + 3 and (np.diff(times) > 0.0009).all()
    copies = sorted(tmp_path.glob("weights-*.npy"))
    assert len(copies) == 2 and np.array_equal(np.load(copies[0]), start[:4810])


def test_a_copy_has_the_hook(tmp_path: Path) -> None:
    with emulated.prepared("HogWild", "\nMORE = 1\n") as copy:
        text = (copy / "problem.py").read_text()
        assert text.endswith("MORE = 1\n" + emulated.HOOK)
        assert (copy / "gradients.py").is_file() and (copy / "run.sh").is_file()
    assert not copy.exists()
