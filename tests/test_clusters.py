"""clusters.py: its plan, flags, the time to a loss, the table and the heat map.

Runs are made up, and no cluster is started.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import sys
import time
import types
from pathlib import Path

import launch
import numpy as np
import pytest
from harness import tf
from launch import REPO

pytestmark = pytest.mark.quick
sys.path.insert(0, str(REPO / "benchmarks"))
clusters, emulated, runs = map(
    importlib.import_module, ("clusters", "emulated", "runs")
)
BACKUP = "Synchronous-SGD, a backup worker"


def test_it_takes_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["clusters.py", "--quick"])
    with pytest.raises(SystemExit) as ended:
        clusters.main()
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "takes Linux and root" in said and said.count("\n") == 1


# --- The plan ---------------------------------------------------------------------


def test_the_cells() -> None:
    planned = clusters.plan(seeds=2)
    keys = [clusters.key_of(*one) for one in planned]
    assert len(planned) == len(set(keys)) == 2 * 11 * 4
    assert {seed for *_, seed in planned[:44]} == {0}  # an early end leaves a table
    assert {name for _, name, _ in clusters.plan(["fast", "sites"])} == {
        "fast",
        "sites",
    }
    assert len(clusters.plan(quick=True)) == 2
    args = argparse.Namespace(limit=clusters.LIMIT, seeds=1, quick=False)
    args.only = list(clusters.CLUSTERS)
    jobs = clusters.jobs_of(args)
    assert sum(job.cost for job in jobs) <= 45 * 60
    assert all(job.key == key for job, key in zip(jobs, keys, strict=False))


@pytest.mark.parametrize("label", clusters.SCHEMES)
def test_every_flag_is_one_of_its_example(label: str) -> None:
    scheme = clusters.SCHEMES[label]
    general = (REPO / scheme.folder / "cluster" / "flags.py").read_text()
    known = set(re.findall(r'"(--\w+)"', general)) | runs.flags_of(scheme.folder)
    flags = clusters.flags_of(scheme, 1)
    used = {flag for flag in flags if str(flag).startswith("--")}
    assert {"--seed", "--data", "--learning_rate"} < used <= known
    assert ("--window" in used) == (scheme.window > 1)
    # A scheme has a ps if its script knows one.
    script = REPO / scheme.folder / runs.registry.script_of(scheme.folder)
    assert scheme.ps == ("replica_device_setter" in script.read_text())
    if " T = " in label:
        assert label.endswith(f"T = {scheme.window}")


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
    # Copies are of the begin of a window: `every` and `warm` are multiples of it.
    for label, scheme in clusters.SCHEMES.items():
        found = options(label, "fast", 0)
        assert found["elements"] == 100_000
        assert found["every"] % scheme.window == found["warm"] % scheme.window == 0
        assert bool(found["every"]) == (scheme.folder != "AEASGD")
    # The three that make a step may wait for the fourth, but it not for them.
    assert [options(BACKUP, "fast", k)["warm"] for k in range(4)] == [20, 20, 20, 1]


# --- The copies -------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["HogWild", "AEASGD"])
def test_the_model_has_as_many_parameters(folder: str) -> None:
    """And what AEASGD pulls is copied, by worker 0 only; see the next test."""
    launch.reference()
    problem = types.ModuleType("problem")
    text = (launch.REFERENCE / "problem.py").read_text()
    rounds = importlib.import_module("cluster.rounds")
    plain, words = rounds.pull, sys.argv
    sys.argv = ["aeasgd.py", "--job_name", "worker", "--task_index", "1"]
    try:
        exec(text + clusters.model_of(folder), problem.__dict__)
        assert rounds.pull is plain
    finally:
        sys.argv, rounds.pull = words, plain
    x = np.zeros([20, 40], np.float32)
    data = types.SimpleNamespace(x_train=x, y_train=np.arange(20) % 10)
    shapes = problem.shapes_of(data)
    assert sum(int(np.prod(shape)) for shape in shapes) == clusters.SIZE


def test_what_aeasgd_pulls_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.reference()
    rounds = importlib.import_module("cluster.rounds")
    monkeypatch.setattr(rounds, "pull", rounds.pull)  # put back at the end
    monkeypatch.setattr(sys, "argv", ["aeasgd.py", "--task_index", "0"])
    monkeypatch.setenv("EMULATED", json.dumps({"folder": str(tmp_path)}))
    exec(clusters.PULLED, {"np": np, "tf": tf})
    with tf.Graph().as_default(), tf.Session() as session:
        center = [tf.get_variable("center", initializer=np.arange(6000.0))]
        session.run(tf.global_variables_initializer())
        pulled = session.run(rounds.pull(center))
    assert np.array_equal(pulled, np.arange(6000.0))
    (copy,) = tmp_path.glob("weights-*.npy")
    assert np.array_equal(np.load(copy), np.arange(float(clusters.SIZE)))


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
    late = dict(seconds=None, accuracy=0.61, gradients=480, rate=4.0)
    for seed in range(3):
        found[clusters.key_of("Ring-All-Reduce", "sites", seed)] = late
        found[clusters.key_of("Gossip-SGD", "fast", seed)] = {"diverged": True}
    found[clusters.key_of(BACKUP, "sites", 0)] = late
    found[clusters.key_of("DiLoCo, T = 25", "cables", 1)] = late
    found[clusters.key_of("DiLoCo, T = 25", "cables", 2)] = late
    found[clusters.key_of("AEASGD, T = 16", "fast", 0)] = {"diverged": True}
    text = clusters.markdown(found)
    assert (
        "| HogWild | **8 (7 to 9)** | **28 (27 to 29)** | **48 (47 to 49)** | " in text
    )
    (ring, made) = re.findall(r"\| Ring-All-Reduce .*", text)
    assert ring.endswith("| > 120 (61 %) |") and made.endswith("| 480 (4/s) |")
    assert re.search(r"\| Gossip-SGD \| diverged \| 31 \(30 to 32\)", text)
    assert re.search(r"\| Gossip-SGD \| - \| 1,500 \(60/s\)", text)
    # One of three seeds is above the limit: the median is not, and the range says so.
    assert re.search(rf"\| {BACKUP} .* \| 94 \(93 to > 120\) \|\n", text)
    assert "| AEASGD, T = 16 | 16 (15 to diverged) |" in text
    # Two of three: the accuracy is that of these.
    assert re.search(r"\| DiLoCo, T = 25 .* \| > 120 \(61 %\) \| 75 \(", text)
    assert "Median of 3 seeds, the fastest and the slowest in brackets." in text
    assert text.count("**") == 2 * 4
    assert "their accuracy is in brackets" in text
    clusters.draw(found, tmp_path)
    picture = (tmp_path / "clusters.svg").read_text()
    assert picture.count(", the first") == 4
    for word in ("> 120 (61 %)", "8 s, the first", "diverged", "two sites, 100 ms"):
        assert word.replace(">", "&gt;") in picture


def test_brackets_are_explained_only_where_there_are_some(tmp_path: Path) -> None:
    found = made_up(3)
    late = dict(seconds=None, accuracy=0.61, gradients=480, rate=4.0)
    found[clusters.key_of("HogWild", "fast", 0)] = late
    assert "accuracy" not in clusters.markdown(found)
    clusters.draw(found, tmp_path)
    assert "accuracy" not in (tmp_path / "clusters.svg").read_text()


def test_a_few_results(tmp_path: Path) -> None:
    text = clusters.markdown({})
    assert "| HogWild | - | - | - | - |" in text
    clusters.draw({}, tmp_path)
    found = made_up(1)
    key = clusters.key_of("HogWild", "fast", 0)
    text = clusters.markdown({key: found[key]})
    assert "| HogWild | **7** | - | - | - |" in text and "One seed." in text
    assert "accuracy" not in text
    clusters.draw({key: found[key]}, tmp_path)
    assert "7 s, the first" in (tmp_path / "clusters.svg").read_text()
    assert clusters.seconds_of([{"diverged": True}]) == math.inf
    assert clusters.seconds_of([]) is None
