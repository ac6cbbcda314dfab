"""clusters.py: its plan, flags, the time to a loss, the table and the heat map.

Runs are made up, and no cluster is started.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from launch import REPO

pytestmark = pytest.mark.quick
sys.path.insert(0, str(REPO / "benchmarks"))
clusters, emulated, runs = map(
    importlib.import_module, ("clusters", "emulated", "runs")
)
BACKUP = "Synchronous-SGD, a backup worker"


# --- The plan ---------------------------------------------------------------------


def test_an_early_end_leaves_a_whole_table() -> None:
    planned = clusters.plan(seeds=2)
    keys = [clusters.key_of(*one) for one in planned]
    assert len(planned) == len(set(keys))
    assert {seed for *_, seed in planned[: len(planned) // 2]} == {0}
    assert len(clusters.plan(quick=True)) == 1


def test_the_hosts() -> None:
    ring, hogwild = (clusters.SCHEMES[s] for s in ("Ring-All-Reduce", "HogWild"))
    hosts, where = clusters.hosts_of(hogwild, clusters.CLUSTERS["cables"])
    assert hosts == ["ps0", "worker0", "worker1", "worker2", "worker3"]
    assert where == {name: name for name in hosts}
    assert clusters.hosts_of(ring, clusters.CLUSTERS["fast"])[0] == hosts[1:]
    hosts, where = clusters.hosts_of(hogwild, clusters.CLUSTERS["sites"])
    assert hosts == ["here", "there"]
    assert [where[n] for n in clusters.names_of(hogwild)] == 3 * hosts[:1] + 2 * [
        "there"
    ]


def test_what_the_gradients_are_told(tmp_path: Path) -> None:
    def options(label: str, name: str, worker: int) -> dict:
        scheme, cluster = clusters.SCHEMES[label], clusters.CLUSTERS[name]
        return clusters.options_of(scheme, cluster, worker, tmp_path)

    for name in clusters.CLUSTERS:
        sleeps = [options("HogWild", name, k)["seconds"] for k in range(4)]
        slow = 0.16 if name == "straggler" else 0.04
        assert sleeps == [0.04, 0.04, 0.04, slow]
    assert set(options("HogWild", "fast", 0)) == {*emulated.OPTIONS, "folder"}

    # The three that make a step may wait for the fourth, but it not for them.
    assert [options(BACKUP, "fast", k)["warm"] for k in range(4)] == [20, 20, 20, 1]


# --- The time to a loss -----------------------------------------------------------


def at(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """Sets the clock of clusters.py."""
    monkeypatch.setattr(time, "monotonic", lambda: now)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of notes, at 1000 s of the clock; all began at 990 s."""
    at(monkeypatch, 1000.0)
    for k in range(clusters.WORKERS):
        np.array([900.0 + k, 990.0 + k / 10, 995.0, 999.0]).tofile(
            tmp_path / f"times-{k}"
        )
    return tmp_path


def test_a_run_ends_at_the_target(notes: Path) -> None:
    """Each copy holds the loss that its test gives."""
    curve = clusters.Curve(notes, lambda weights: (float(weights[0]), 0.8))
    np.save(notes / "weights-989.0.npy", [0.1])  # while all warm up
    for when, loss in ((992, 2.0), (993, 0.6), (994, 0.5), (995, 0.55), (996, 0.1)):
        np.save(notes / f"weights-{when}.0.npy", [loss])
        # The newest is not read: it may not be whole. So 995 is read at 996.
        assert curve.over() == (when == 996)
    assert curve.over()
    # What was tested is not kept.
    assert [path.name for path in notes.glob("weights-*")] == ["weights-996.0.npy"]
    # The means of three are 1.033 and 0.55.
    assert [seconds for seconds, *_ in curve.points] == [2, 3, 4, 5]
    result = curve.result()
    assert result["seconds"] == 5 and result["accuracy"] == pytest.approx(0.8)
    # Four workers' first, and those at 995.
    assert result["gradients"] == 8 and result["rate"] == pytest.approx(8 / 5)
    assert result["curve"][0] == [2.0, 2.0]
    assert json.loads(json.dumps(result)) == result


def test_a_run_ends_at_the_limit(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = clusters.Curve(notes, lambda weights: (1.0, 0.6), limit=60)
    for when in range(991, 1000):
        np.save(notes / f"weights-{when}.0.npy", [0.0])
        assert not curve.over()
    at(monkeypatch, 1050.1)
    assert curve.over()
    result = curve.result()
    assert result["seconds"] is None and result["accuracy"] == pytest.approx(0.6)
    assert result["gradients"] == 12 and result["rate"] == pytest.approx(0.2)


def test_the_clock_starts_when_all_are_there(notes: Path) -> None:
    (notes / "times-3").unlink()
    curve = clusters.Curve(notes, None)
    assert not curve.over() and curve.began is None
    np.array([903.0]).tofile(notes / "times-3")  # it has begun, and warms up
    assert not curve.over() and curve.began is None
    np.array([903.0, 991.0]).tofile(notes / "times-3")
    assert not curve.over() and curve.began == 990


# --- Tables -----------------------------------------------------------------------


def made_up(seeds: int) -> dict:
    """Returns made-up results: the more letters a name has, the longer it takes."""
    found = {}
    for label, name, seed in clusters.plan(seeds=seeds):
        seconds = len(label) + 20.0 * list(clusters.CLUSTERS).index(name) + seed
        result = {"seconds": seconds, "accuracy": 0.8, "gradients": 1500, "rate": 60.0}
        found[clusters.key_of(label, name, seed)] = result
    return found


def test_the_table_and_the_heat_map(tmp_path: Path) -> None:
    found = made_up(3)
    assert "their accuracy is in brackets" not in clusters.markdown(found)
    late = dict(seconds=None, accuracy=0.61, gradients=480, rate=4.0)
    for seed in range(3):
        found[clusters.key_of("Ring-All-Reduce", "sites", seed)] = late
        found[clusters.key_of("Gossip-SGD", "fast", seed)] = {"diverged": True}
    # One of three seeds is above the limit: the median is not, and the range says so.
    found[clusters.key_of(BACKUP, "sites", 0)] = late
    text = clusters.markdown(found)
    assert "| HogWild | **8 (7 to 9)** | **28 (27 to 29)** |" in text
    assert "| > 120 (61 %) |" in text and "| Gossip-SGD | diverged |" in text
    assert re.search(rf"\| {BACKUP} .* \| 94 \(93 to > 120\) \|\n", text)
    assert "their accuracy is in brackets" in text
    clusters.draw(found, tmp_path)
    picture = (tmp_path / "clusters.svg").read_text()
    assert picture.count(", the first") == 4
    assert "&gt; 120 (61 %)" in picture and "8 s, the first" in picture


def test_nothing_measured(tmp_path: Path) -> None:
    clusters.draw({}, tmp_path)
    assert "| HogWild | - | - | - | - |" in clusters.markdown({})
    assert clusters.seconds_of([{"diverged": True}]) == math.inf
    assert clusters.seconds_of([]) is None
