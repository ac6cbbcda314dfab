"""The cost model: formulas by hand, the simulation beside them, and its use.

No cluster is started here. That the model says what real runs do is shown by
benchmarks/predictions.py, which takes half an hour of a quiet machine.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tree

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "benchmarks"))
cost_model, predictions, runs, star = map(
    importlib.import_module, ("cost_model", "predictions", "runs", "star")
)
cost = cost_model.cost
pytestmark = pytest.mark.quick

FIELDS = [field.name for field in dataclasses.fields(cost.Costs)]
NOTHING = {name: 0.0 for name in FIELDS if name not in ("flight", "turn", "cores")}
FREE = cost.Costs(**NOTHING)
# Four workers, M = 400,000 bytes: 32 ms on a cable of 100 Mbit/s.
BASE = dict(workers=4, parameters=100_000, gradient=0.05, bandwidth=1e8)


def setup(scheme: str, costs: object = FREE, **changes: object) -> object:
    """Returns a Setup that differs from BASE by the changes."""
    return cost.Setup(scheme, **{**BASE, **changes, "costs": costs})


# What each formula gives, computed by hand, in updates a second.
BY_HAND = {
    # R = 50 + 2 · 32 ms
    "one worker": (setup("HogWild", workers=1), 1 / 0.114),
    # 1 / (8 M / b); 4 / 0.114 = 35.1 would be more
    "the cable is full": (setup("HogWild"), 31.25),
    "two ps": (setup("HogWild", ps=2), 4 / 0.114),
    # 1 + 1.5 / n round trips: n = 10 of 10 ms, n = 3 of 100 ms
    "calls of ten": (
        setup("HogWild", dataclasses.replace(FREE, call=1.5), workers=1, latency=0.005),
        # 0.124 is too long for ten to a call: three
        1 / (0.114 + 0.010 + 0.010 * 1.5 / 3),
    ),
    "calls of one": (
        setup("HogWild", dataclasses.replace(FREE, call=1.5), workers=1, latency=0.1),
        1 / (0.114 + 0.2 + 0.2 * 1.5),
    ),
    # A look of 3.4 · 10 ms after nine calls of one round of 0.124 s: 1.116 s
    "looks": (
        setup("HogWild", dataclasses.replace(FREE, look=3.4), workers=1, latency=0.005),
        1 / (0.124 * (1 + 0.034 / (3 * 3 * 0.124))),
    ),
    # Three of 114 ms, one of 150 ms more
    "a straggler": (
        setup("HogWild", straggler=4.0, bandwidth=1e9),
        3 / 0.0564 + 1 / 0.2064,
    ),
    # The push has 1,000 of the 100,000 elements, each with its place: 8,000 bytes
    "a short push": (
        setup("Gradient-Compression", workers=1),
        1 / (0.05 + 0.032 + 0.00064),
    ),
    # R = 16 · 50 + 32 ms: the push goes up meanwhile
    "a window": (setup("AEASGD", workers=1, window=16), 1 / 0.832),
    "the bound": (
        setup("Stale-Synchronous-Parallel", straggler=4.0, bandwidth=1e9),
        4 / 0.2064,
    ),
    # 4 · 32 + 50 + 4 · 32 ms
    "all wait": (setup("Synchronous-SGD"), 1 / 0.306),
    # The slowest pushes alone: 128 + 200 + 32 ms
    "all wait for one": (setup("Synchronous-SGD", straggler=4.0), 1 / 0.360),
    # 128 + 50 + 3 · 32 ms
    "a backup worker": (
        setup("Synchronous-SGD", straggler=4.0, replicas=3),
        1 / 0.274,
    ),
    # 50 ms + 6 steps of 5 ms and a quarter of 32 ms
    "a ring": (
        setup("Ring-All-Reduce", latency=0.005),
        # an agreement of 6 · 5 ms after seven rounds of 0.128 s
        1 / (0.128 + 0.03 / 7),
    ),
    "a ring of one": (setup("Ring-All-Reduce", workers=1, latency=1.0), 20.0),
    # 8 · 50 + 6 · 8 ms
    "local steps": (setup("Local-SGD", window=8), 1 / 0.448),
    # All rounds need 2 ms of the one core that all share, with 4 of a worker's
    "the cores": (
        setup(
            "HogWild",
            dataclasses.replace(FREE, worker=0.020, ps=0.005, cores=1),
            bandwidth=1e12,
        ),
        1 / 0.025,
    ),
    # 1 ms of each of four workers in each of six steps, on two cores
    "a ring on two cores": (
        setup("Ring-All-Reduce", dataclasses.replace(FREE, step=0.001, cores=2)),
        1 / (0.05 + 6 * (0.008 + 0.002) + 6 * 0.002 / 9),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_formula_by_hand(name: str) -> None:
    some, updates = BY_HAND[name]
    assert cost.formula(some).updates == pytest.approx(updates, rel=1e-4)


def test_staleness_waits_and_bytes_by_hand() -> None:
    # Nothing lies between a push and the next pull: τ = N − 1.
    known = cost.formula(setup("HogWild", parameters=1000))
    assert known.staleness == pytest.approx(3.0) and known.most == 3
    # D is a pull and a push of 32 ms in a round of 16 · 50 + 32 ms.
    known = cost.formula(setup("AEASGD", bandwidth=1e8, workers=2))
    assert known.staleness == pytest.approx(1 * 0.064 / 0.832)
    assert known.examples == pytest.approx(2 / 0.832 * 16 * 32)
    known = cost.formula(setup("Stale-Synchronous-Parallel", staleness=2))
    assert known.most == (2 * 2 + 1) * 3
    # The last worker's gradient takes 200 ms, the others' 50.
    for scheme in ("Synchronous-SGD", "Ring-All-Reduce", "Stale-Synchronous-Parallel"):
        known = cost.formula(setup(scheme, straggler=4.0, parameters=1000))
        assert known.waits == pytest.approx([0.15, 0.15, 0.15, 0.0])
    assert cost.formula(setup("HogWild", straggler=4.0)).waits == [0.0] * 4
    # The cable of each of two ps has half of 35.1 · 400,000 bytes a second.
    known = cost.formula(setup("HogWild", ps=2))
    assert known.busiest == pytest.approx(4 / 0.114 * 200_000)
    assert known.full == pytest.approx(2 / 0.032 * 0.114)
    # 2 (N − 1) / N M of each worker of a ring.
    known = cost.formula(setup("Ring-All-Reduce"))
    assert known.busiest == pytest.approx(known.updates * 1.5 * 400_000)


# --- Simulation -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", cost.SCHEMES + cost.MORE)
@pytest.mark.parametrize(("latency", "straggler"), [(0.0, 1.0), (0.01, 3.0)])
def test_simulated_as_by_formula(scheme: str, latency: float, straggler: float) -> None:
    """Where nothing stands in a queue, the two are one."""
    some = setup(
        scheme,
        cost.Costs(),
        parameters=1000,
        latency=latency,
        straggler=straggler,
        window=4,
    )
    known, (run, _) = cost.formula(some), cost.simulate(some, 30.0)
    # Workers look at different moments, and at a barrier each of them delays all.
    near = 0.1 if scheme == "Synchronous-SGD" and latency else 0.05
    assert run.updates == pytest.approx(known.updates, rel=near)
    assert run.examples == pytest.approx(known.examples, rel=near)
    assert run.busiest == pytest.approx(known.busiest, rel=near)
    assert max(run.waits) == pytest.approx(max(known.waits), abs=0.02)


@pytest.mark.parametrize("scheme", ["HogWild", "AEASGD"])
def test_as_many_are_under_way_as_little_s_law_says(scheme: str) -> None:
    """Little 1961: others' pushes within D, so that the mean is (N − 1) D / R."""
    some = setup(scheme, workers=4, window=4, spread=0.8, bandwidth=1e9, latency=0.02)
    known, (run, _) = cost.formula(some), cost.simulate(some, 300.0)
    assert run.staleness == pytest.approx(known.staleness, rel=0.08)


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_bound_on_staleness_holds(bound: int, spread: float) -> None:
    some = dict(staleness=bound, spread=spread, straggler=2.0, parameters=1000)
    simulation = cost.Simulation(setup("Stale-Synchronous-Parallel", **some), seed=1)
    for second in range(1, 30):
        simulation.run(float(second))
        assert max(simulation.clocks) - min(simulation.clocks) <= bound + 1
    stale = [one for *_, one in simulation.pushes]
    assert len(stale) > 100 and max(stale) <= (2 * bound + 1) * 3
    if spread:  # it is reached nearly, so that it says something
        assert max(stale) >= bound + 3


def test_a_backup_worker_hides_a_straggler() -> None:
    slow = dict(straggler=4.0, parameters=1000)
    all_, _ = cost.simulate(setup("Synchronous-SGD", **slow))
    most, _ = cost.simulate(setup("Synchronous-SGD", replicas=3, **slow))
    assert all_.updates == pytest.approx(5, rel=0.03)
    assert most.updates == pytest.approx(20, rel=0.03)
    assert most.examples == pytest.approx(20 * 3 * 32, rel=0.03)
    assert max(all_.waits) == pytest.approx(0.15, abs=0.005)
    assert max(most.waits) < 0.005 and most.staleness == all_.staleness == 0


RANDOM = [
    dict(scheme=scheme, workers=n, ps=s, spread=spread, latency=latency, straggler=2.0)
    for scheme in cost.SCHEMES + cost.MORE
    for n, s, spread, latency in ((1, 1, 0.0, 0.0), (5, 2, 0.7, 0.01), (9, 1, 0.0, 0.0))
]


@pytest.mark.parametrize("some", RANDOM, ids=str)
def test_what_holds_in_every_simulation(some: dict) -> None:
    chosen = cost.Setup(**some, parameters=200_000, bandwidth=1e8, window=3)
    # Long enough for one update more, where a run is cut, to be less than 3 %
    run, bars = cost.simulate(chosen, 30.0)
    assert run == cost.simulate(chosen, 30.0)[0], "the same seed, another run"
    # Nobody does two things at a time, and time does not go back.
    for worker in range(chosen.workers):
        mine = [bar for bar in bars if bar.worker == worker]
        assert mine
        for before, after in zip(mine, mine[1:], strict=False):
            assert before.start < before.end <= after.start + 1e-9
    # A cable carries no more than it can.
    assert run.busiest <= 1.03 * chosen.bandwidth / 8
    # Only a barrier is faster than its formula, where pulls and pushes overlap.
    if some["scheme"] != "Synchronous-SGD" and not some["spread"]:
        assert run.updates <= 1.03 * cost.formula(chosen).updates
    quick = dataclasses.replace(chosen, bandwidth=1e9)
    assert cost.simulate(quick, 30.0)[0].updates > 0.97 * run.updates


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (dict(scheme="Hogwild"), "'Hogwild' is not one of HogWild,"),
        (dict(workers=0), "workers is at least 1"),
        (dict(latency=-1.0), "latency is at least 0"),
        (dict(bandwidth=0.0), "bandwidth, straggler and keep"),
        (dict(keep=2.0), "bandwidth, straggler and keep"),
        (dict(replicas=5), "replicas is from 1 to the number of workers"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        cost.Setup(**wrong)


# --- Commands -------------------------------------------------------------------------


def test_the_command_prints_one_table() -> None:
    flags = ["--scheme", "all", "--workers", "3"]
    done = tree.run(sys.executable, "benchmarks/cost_model.py", *flags)
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.partition("\n\n")[0].splitlines()
    assert header.split() == list(cost_model.HEADER)
    rates = {name: float(rate) for name, rate, *_ in map(str.split, rows)}
    assert list(rates) == [*cost.SCHEMES]
    for scheme, rate in rates.items():
        known = cost.formula(cost.Setup(scheme, workers=3))
        assert rate == pytest.approx(known.updates, abs=0.05)
    assert len({len(line) for line in [header, *rows]}) == 1


def test_hosts_take_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as ended:
        star.check()
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "takes Linux and root" in said and said.count("\n") == 1


# --- Predictions ----------------------------------------------------------------------


TRUE = cost.Costs(
    **{name: (k + 1) * 1e-4 for k, name in enumerate(FIELDS) if "_byte" not in name}
    | {name: (k + 1) * 1e-10 for k, name in enumerate(FIELDS) if "_byte" in name}
    | dict(call=1.2, look=3.4, turn=1.7, flight=3e5, cores=os.cpu_count())
)


def made_up(cell: object, costs: object, **more: float) -> dict:
    """Returns what a run of a cell would measure if the model were right."""
    some = predictions.setup_of(cell, costs, predictions.FEW)
    core = {name: predictions.core_of(some, name) for name in ("worker0", "ps0")}
    known = dict(updates=cost.formula(some).updates, core=core)
    return {**known, "staleness": 1.0, "most": 2, **more}


def test_the_calibration_finds_the_costs() -> None:
    measured = {
        predictions.name_of(cell): made_up(cell, TRUE)
        for cell, _ in predictions.CALIBRATION.values()
    }
    found = predictions.costs_of(measured)
    for name in predictions.CALIBRATION:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02), (
            name
        )
    # What was not measured stays as it is.
    assert predictions.costs_of({}) == cost.Costs(cores=os.cpu_count())


def test_which_directions_of_a_cable_are_in_use() -> None:
    bits, looks = 80.0, [(0.0, 0, 0)]  # 10 bytes a second
    # Seconds, and bytes each way in them: both, one that brings, one that takes, none.
    for seconds, brought, taken in ((2, 20, 12), (1, 9, 4), (3, 0, 30), (4, 16, 0)):
        when, received, sent = looks[-1]
        looks.append((when + seconds, received + brought, sent + taken))
    assert predictions.in_use(looks, bits) == [0.4, 0.4, 0.2]
    assert predictions.in_use(looks[:1], bits) is None
    # This process is on no host with a cable, and one that has ended is on none.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in os.getpid(), ended.pid:
        assert predictions.carried(pid) is None


def test_why_a_cell_is_far_off() -> None:
    cell = next(c for c in predictions.cells() if "100 Mbit/s" in c and c.ps == 1)
    name = predictions.name_of(cell)
    point = predictions.Point(cell, name, None, {"in_use": [0.01, 0.46, 0.53]}, 1.0)
    assert "For 46 % of the time" in predictions.explained(point)
    assert "for 53 % in both" in predictions.explained(point)


def test_tables_and_figure(tmp_path: Path) -> None:
    costs, measured = cost.Costs(cores=2), {}
    for number, cell in enumerate(predictions.cells()[:14]):
        run, _ = cost.simulate(predictions.setup_of(cell, costs))
        rate = run.updates / (2.0 if number == 5 else 1.1)
        name = predictions.name_of(cell)
        measured[name] = dict(updates=rate, staleness=1.0, most=2)
    text = predictions.write_results(tmp_path, measured, costs)
    assert (
        "Cells, one run each: 14. Median error 10 %; off by more than 40 %: 1.\n"
        in text
    )
    far = predictions.name_of(predictions.cells()[5])
    assert f"| {far} | - | +100 % |" in text
    assert "| Ring-All-Reduce | 2 | 55 % | +100 % |" in text
    cells = (tmp_path / "predictions-cells.md").read_text()
    assert all(f"| {name} | " in cells for name in measured)
    drawn = (tmp_path / "predictions.svg").read_text()
    assert "±15 %" in drawn and "measured updates/s" in drawn
    assert predictions.write_results(tmp_path, {}, costs) == "no cell was measured\n"


def test_the_middle_of_three_rounds() -> None:
    rounds = [{"a": dict(updates=x)} for x in (3.0, 1.0, 2.0)]
    assert predictions.middles(rounds) == {"a": dict(updates=2.0)}


def test_the_example_of_the_page_is_what_the_command_prints() -> None:
    page = (REPO / "docs" / "which-example.md").read_text()
    (flags,) = re.findall(r"benchmarks/cost_model\.py (--.*?)```", page, re.S)
    flags = flags.replace("\\\n", " ")
    (shown,) = re.findall(r"```text\n(scheme .*?)```", page, re.S)
    command = [sys.executable, "benchmarks/cost_model.py", *flags.split()]
    assert tree.run(*command).stdout == shown
