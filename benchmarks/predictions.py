"""The cost model against real runs: predicted and measured updates per second.

Each task has a host of its own, with a cable (star.py). A few runs without a limit on
the cables say what a round costs in seconds of a core, and what a slow network adds:
the calibration. With these numbers cost_model.py predicts the rates of all cells, and
then each cell is run. No cell is part of the calibration.

A gradient sleeps 50 ms, in schemes with a window 5 ms, so that two cores can be many
machines (--slow_workers). A straggler sleeps four times as long. With 1,000,000
parameters the mini-batch is one example, so that little is computed.

Writes predictions-cells.md, predictions.svg, and two files of raw numbers,
predictions-calibration.json and predictions.json. Needs Linux and root.

    sudo .venv/bin/python benchmarks/predictions.py
    sudo .venv/bin/python benchmarks/predictions.py --quick
"""

import collections
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import figures
import numpy as np
import psutil
import runs
import star
from cost_model import cost  # the model, which lies in Basics-Tutorial

# Bits a second of a cable, and seconds from host to host, one way.
LINKS = {
    "1 Gbit/s": (1e9, 0.0),
    "100 Mbit/s": (1e8, 0.0),
    "20 ms": (None, 0.010),  # of a round trip
    "100 ms": (None, 0.050),
    "no limit": (None, 0.0),
}
FASTEST = 1e10  # bits/s that the model takes for cables without a limit
HIDDEN = {4810: 64, 999_985: 13_333}  # units of the perceptron, by its parameters
SMALL, LARGE = HIDDEN
GRADIENT, LOCAL_STEP, STRAGGLER, WINDOW = 0.05, 0.005, 4.0, 16
SECONDS = 10.0  # that a run trains, if the prediction is right
FEWEST = 12  # updates of a run
PORT = 2222
EVERY = 0.2  # seconds between two looks at the tasks, and at the cable of ps 0
BUSY = 0.5  # of what a cable carries in that time: then the direction is in use
OFF, CLOSE = 0.40, 0.15  # errors: to be explained, and the goal of the median

Cell = collections.namedtuple(
    "Cell", "scheme workers ps parameters link straggler backup", defaults=[False] * 2
)

IN_STEP = (
    "The workers pull together, and then push together. For {one} of the time the "
    "cable of ps 0 carried in one direction only, for {both} in both. The model has "
    "both in use."
)
# A sentence for each cell whose prediction is off by more than 40 %, by its name.
EXPLAINED = {
    "Synchronous-SGD, 2 workers, 2 ps, P = 4,810, 20 ms": (
        "With a second ps, an update needs five more messages between the two ps, one "
        "after the other: the number of the step, whether a gradient counts, that it "
        "was added, that all are there, that w has changed. The model has none of "
        "them. They are 50 of the 66 ms by which a round is longer."
    ),
    "HogWild, 4 workers, 1 ps, P = 999,985, 100 Mbit/s": IN_STEP,
    "AEASGD, 4 workers, 1 ps, P = 999,985, 100 Mbit/s": IN_STEP,
    "Stale-Synchronous-Parallel, 4 workers, 1 ps, P = 999,985, 100 Mbit/s": IN_STEP,
    "HogWild, 4 workers, 2 ps, P = 999,985, 100 Mbit/s": IN_STEP,
    "Ring-All-Reduce, 2 workers, P = 999,985, 20 ms": (
        "All messages over a delay go through one process, the router of star.py. It "
        "computes for 42 of the 127 ms of this round, which the model does not have: "
        "with 4,810 parameters, where the router computes for 0.7 ms, a round takes "
        "85 ms."
    ),
}


def cells():
    """Returns the cells."""
    found = [
        Cell(scheme, workers, 1, SMALL, link, straggler)
        for workers, link, straggler in (
            (4, "1 Gbit/s", False),
            (4, "1 Gbit/s", True),
            (4, "100 ms", False),
            (8, "20 ms", False),
        )
        for scheme in cost.SCHEMES
    ]
    found.append(Cell(cost.BARRIER, 4, 1, SMALL, "1 Gbit/s", True, True))
    found += [Cell(s, 2, 2, SMALL, "20 ms") for s in ("HogWild", cost.BARRIER)]
    found += [Cell(s, 4, 1, LARGE, "100 Mbit/s") for s in cost.SCHEMES]
    found += [Cell(s, 2, 1, LARGE, "20 ms") for s in cost.SCHEMES]
    few = "HogWild", cost.BARRIER, "Gradient-Compression", "Ring-All-Reduce", "DiLoCo"
    found += [Cell(s, 2, 1, LARGE, "1 Gbit/s") for s in few]
    found += [Cell(s, 4, 2, LARGE, "100 Mbit/s") for s in few[:3]]
    found += [Cell(s, 8, 1, LARGE, "1 Gbit/s") for s in (*few[:2], few[3])]
    return found + [Cell(s, 2, 1, LARGE, "100 ms") for s in ("HogWild", "DiLoCo")]


def name_of(cell):
    """Returns what a cell is called in tables and in the JSON."""
    ps = "" if cell.scheme in cost.PEERS else f", {cell.ps} ps"
    text = f"{cell.scheme}, {runs.workers(cell.workers)}{ps}, P = {cell.parameters:,}"
    text += f", {cell.link}" + ", straggler" * cell.straggler
    return text + ", backup worker" * cell.backup


def setup_of(cell, costs=None, gradient=None):
    """Returns the Setup of a cell; `gradient` None: as long as its scheme's are."""
    bits, seconds = LINKS[cell.link]
    if gradient is None:
        gradient = LOCAL_STEP if cell.scheme in cost.WINDOWS else GRADIENT
    return cost.Setup(
        cell.scheme,
        cell.workers,
        cell.ps,
        cell.parameters,
        gradient,
        straggler=STRAGGLER if cell.straggler else 1.0,
        window=WINDOW,
        batch=32 if cell.parameters == SMALL else 1,
        bandwidth=bits or FASTEST,
        latency=seconds,
        replicas=cell.workers - 1 if cell.backup else None,
        costs=costs or cost.Costs(),
    )


# --- A run ------------------------------------------------------------------------


@contextlib.contextmanager
def example(scheme, parameters):
    """Gives the script of a copy of an example with so many parameters, and flags."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        folder = pathlib.Path(parent, scheme)
        ignored = shutil.ignore_patterns("logdir", "__py*")
        shutil.copytree(runs.REPO / scheme, folder, ignore=ignored)
        flags = ["--save_seconds", 3600, "--logdir", pathlib.Path(parent, "logdir")]
        if parameters != SMALL:
            problem = folder / "problem.py"
            text, line = problem.read_text(), "HIDDEN = 64 "
            if text.count(line) != 1:
                raise runs.Unfinished(f"{scheme}/problem.py: no line HIDDEN = 64")
            problem.write_text(text.replace(line, f"HIDDEN = {HIDDEN[parameters]} "))
            y = np.arange(40) % 10
            x = np.random.default_rng(0).random((40, 64), np.float32)
            rows = pathlib.Path(parent, "rows.npz")
            np.savez(rows, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
            flags += ["--data", rows, "--batch_size", 1, "--learning_rate", 1e-6]
        yield folder / runs.registry.script_of(scheme), flags


def flags_of(setup, steps):
    """Returns the flags of a script that are those of a Setup."""
    sleeps = [f"{setup.sleep(k):g}" for k in range(setup.workers)]
    flags = ["--steps", steps, "--slow_workers", ",".join(sleeps)]
    if setup.scheme in cost.WINDOWS:
        flags += ["--window", setup.window]
    if setup.replicas:
        flags += ["--replicas_to_aggregate", setup.replicas]
    return flags


def train(cell, setup, steps, timeout):
    """Runs a cell; returns what it measured.

    `updates` a second and `core`, the processor seconds of each task for one update,
    are those between the chief's lines from 40 % of the steps on and its last.
    """
    ps = [] if cell.scheme in cost.PEERS else [f"ps{k}" for k in range(cell.ps)]
    workers = [f"worker{k}" for k in range(cell.workers)]
    bits, seconds = LINKS[cell.link]
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(star.Star([*ps, *workers], bits, seconds))
        script, flags = stack.enter_context(example(cell.scheme, cell.parameters))
        words = [*flags, *flags_of(setup, steps)]
        tasks = begin(stack, hosts, script, [*ps, *workers], words)
        lines = runs.Lines(tasks["worker0"][0].stdout)
        cable = []

        def look():
            if ps and bits and (some := carried(tasks["ps0"][0].pid)):
                cable.append((time.monotonic(), *some))

        looks = watch(tasks, timeout, name_of(cell), look)
        lines.join(5)
        folder = pathlib.Path(flags[flags.index("--logdir") + 1])
        result = json.loads((folder / "result.json").read_text())
    (began, first), (ended, last) = steady(lines.lines, steps, name_of(cell))
    times = np.array([when for when, _ in looks])
    core = {}
    for name in tasks:
        spent = [seen.get(name, 0.0) for _, seen in looks]
        used = np.interp([began, ended], times, spent)
        core[name] = float(used[1] - used[0]) / (last - first)
    return {
        "updates": (last - first) / (ended - began),
        "core": core,
        "seconds": ended - began,
        "staleness": result["mean_staleness"],
        "most": result["max_staleness"],
        "dropped": result["gradients_dropped"],
        "late": result["seconds_to_all_started"],
        "in_use": in_use([one for one in cable if began <= one[0] <= ended], bits),
    }


def steady(lines, steps, what):
    """Returns (time, step) of the chief's line at 40 % of the steps, and of its last.

    `lines` are those of runs.Lines. Raises runs.Unfinished if there are no two.
    """
    found = [(when, runs.FINAL.search(line)) for when, line in lines]
    points = [(when, int(match[1])) for when, match in found if match]
    points = [one for one in points if one[1] >= 0.4 * steps]
    if len(points) < 2:
        raise runs.Unfinished(f"{what}: the chief printed too few lines")
    return points[0], points[-1]


def carried(pid):
    """Returns the bytes that the cable of a task's host has brought and taken away.

    `pid` is the task's. None before it is on its host, and after its end.
    """
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, fields = line.partition(":")
            if name.strip() == star.CABLE:
                received, sent = (int(fields.split()[k]) for k in (0, 8))
                return received, sent
    return None


def in_use(cable, bits):
    """Returns the shares of the time in which [none, one, both] directions are in use.

    `cable` is [(time, bytes received, bytes sent)]. A direction is in use between two
    looks if it carries at least BUSY of what `bits` a second allow. None without looks.
    """
    if len(cable) < 2:
        return None
    steps = np.diff(np.array(cable, np.float64), axis=0)
    used = (8 * steps[:, 1:] >= BUSY * bits * steps[:, :1]).sum(axis=1)
    return [float(steps[used == n, 0].sum() / steps[:, 0].sum()) for n in range(3)]


def begin(stack, hosts, script, names, flags, where=None, variables=None):
    """Starts the tasks of an example; returns {name: (process, file of its log)}.

    `names` are ps0, ps1, .. and worker0, worker1, ..; a task is on the host of its
    name, or on the one that `where` has for it. `variables` is {name: {variable:
    value}}, more of its environment. What worker 0 prints goes into a pipe. They end
    with the ExitStack `stack`.
    """
    on = {name: (where or {}).get(name, name) for name in names}
    at = {n: f"{hosts.address[on[n]]}:{PORT + k}" for k, n in enumerate(names)}
    lists = {
        job: ",".join(at[name] for name in names if name.startswith(job))
        for job in ("ps", "worker")
    }
    flags = [*flags, "--worker_hosts", lists["worker"]]
    flags += ["--ps_hosts", lists["ps"]] if lists["ps"] else []
    env = runs.environment(PYTHONDONTWRITEBYTECODE=1, CUDA_VISIBLE_DEVICES="")
    # A gradient that sleeps is to take no thread from the messages.
    env["TF_NUM_INTEROP_THREADS"] = "8"
    tasks = {}
    for name in names:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        who = ["--job_name", name.rstrip("0123456789")] if lists["ps"] else []
        who += ["--task_index", name.lstrip("pswoker")]
        command = [*hosts.inside[on[name]], runs.PYTHON, script, *who, *flags]
        pipes = {"stdout": log, "stderr": log, "text": True}
        if name == "worker0":
            pipes["stdout"] = subprocess.PIPE
        pipes["env"] = {**env, **(variables or {}).get(name, {})}
        task = stack.enter_context(runs.process(command, **pipes))
        tasks[name] = (task, log)
    return tasks


def watch(tasks, timeout, what, over=lambda: False):
    """Waits for the chief's end; returns [(time, {task: its processor seconds})].

    It also ends when `over()` is true, and then the tasks still run. Raises
    runs.Unfinished if a task fails, or if it takes longer than `timeout` seconds.
    """
    looks, end = [], time.monotonic() + timeout
    chief = tasks["worker0"][0]
    known = {name: psutil.Process(task.pid) for name, (task, _) in tasks.items()}
    while chief.poll() is None and not over():
        seen = {}
        for name, process in known.items():
            with contextlib.suppress(psutil.Error):
                seen[name] = sum(process.cpu_times()[:2])
        looks.append((time.monotonic(), seen))
        for name, (task, log) in tasks.items():
            if task.poll():
                log.seek(0)
                raise runs.Unfinished(f"{what}: {name}: {log.read()[-1500:]}")
        if time.monotonic() > end:
            raise runs.too_slow(what, timeout)
        time.sleep(EVERY)
    if chief.returncode:
        log = tasks["worker0"][1]
        log.seek(0)
        raise runs.Unfinished(f"{what}: {log.read()[-1500:]}")
    return looks


# --- Calibration --------------------------------------------------------------------

FEW = 0.001  # seconds that a gradient sleeps there: --slow_workers costs a little, too
ALONE = "HogWild", 1, 1
RING = "Ring-All-Reduce"
RATE = "rate"
# The costs in the order in which they are found, one after the other: the cell that
# says each, and what of it has to be as measured: a task's core seconds, or the rate.
CALIBRATION = {
    "local": (Cell(RING, 1, 1, SMALL, "no limit"), "worker0"),
    "local_byte": (Cell(RING, 1, 1, LARGE, "no limit"), "worker0"),
    "worker": (Cell(*ALONE, SMALL, "no limit"), "worker0"),
    "ps": (Cell(*ALONE, SMALL, "no limit"), "ps0"),
    "worker_byte": (Cell(*ALONE, LARGE, "no limit"), "worker0"),
    "ps_byte": (Cell(*ALONE, LARGE, "no limit"), "ps0"),
    "top_byte": (Cell("Gradient-Compression", 1, 1, LARGE, "no limit"), "worker0"),
    "adam_byte": (Cell("DiLoCo", 1, 1, LARGE, "no limit"), "worker0"),
    "barrier": (Cell(cost.BARRIER, 2, 1, SMALL, "no limit"), "ps0"),
    "barrier_byte": (Cell(cost.BARRIER, 2, 1, LARGE, "no limit"), "ps0"),
    "step": (Cell(RING, 2, 1, SMALL, "no limit"), "worker0"),
    "step_byte": (Cell(RING, 2, 1, LARGE, "no limit"), "worker0"),
    "call": (Cell(*ALONE, SMALL, "100 ms"), RATE),
    "flight": (Cell(*ALONE, LARGE, "20 ms"), RATE),
    "turn": (Cell(RING, 4, 1, SMALL, "20 ms"), RATE),
}
SOLVED = {"call": (0.0, 6.0), "flight": (1e4, 1e9), "turn": (0.0, 8.0)}  # where to look


def core_of(setup, task):
    """Returns the core seconds of a task that the model has for one update."""
    if task == "worker0":
        return setup.of_worker()
    pushes = setup.workers if setup.scheme == cost.BARRIER else 1
    return pushes * setup.of_ps()


def costs_of(measured):
    """Returns the Costs with which the model says what the calibration has measured.

    `measured` is {name of a cell: its result}. A cost whose cell is missing stays.
    """
    costs = cost.Costs(cores=os.cpu_count())
    for _ in range(4):  # a cost that is found later changes those before it a little
        for name, (cell, what) in CALIBRATION.items():
            result = measured.get(name_of(cell))
            if result:
                value = _value(name, cell, what, result, costs)
                costs = dataclasses.replace(costs, **{name: max(0.0, value)})
    return costs


def _value(name, cell, what, result, costs):
    """Returns the value of a cost with which the model says what a run measured."""

    def said(value):
        new = dataclasses.replace(costs, **{name: value})
        setup = setup_of(cell, new, FEW)
        if what == RATE:
            return cost.formula(setup).updates
        return core_of(setup, what)

    if what == RATE:
        return _bisect(said, result["updates"], *SOLVED[name])
    # Core seconds are a straight line in each cost.
    return (result["core"][what] - said(0.0)) / (said(1.0) - said(0.0))


def _bisect(function, wanted, low, high):
    """Returns where a function that rises, or falls, is as wanted, or the nearer end.

    It halves a distance on a scale that suits numbers near 0 and large ones.
    """
    rises = function(high) > function(low)
    for _ in range(60):
        middle = (low * high) ** 0.5 if low > 1 else (low + high) / 2
        if (function(middle) < wanted) == rises:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# --- Jobs ---------------------------------------------------------------------------


def jobs_of(chosen, args, costs=None, gradient=None):
    """Returns the measurements of these cells, with the steps that suit the costs."""
    found = []
    for cell in dict.fromkeys(chosen):
        setup = setup_of(cell, costs, gradient)

        def make(cell=cell, setup=setup):
            seconds = SECONDS / (3 if args.quick else 1)
            rate = cost.simulate(setup)[0].updates
            steps = max(FEWEST, round(rate * seconds))
            return train(cell, setup, steps, args.timeout)

        tasks = cell.workers + cell.ps
        spent = 9 + 1.5 * tasks + SECONDS
        found.append(runs.Job(name_of(cell), {"predictions"}, spent, make))
    return found


# --- Tables and figure ----------------------------------------------------------------

Point = collections.namedtuple("Point", "cell name predicted measured error")


def points_of(measured, costs):
    """Returns the Points of all cells that were measured.

    `predicted` is an Answer of the simulation, `measured` a result, `error` what the
    predicted rate is off by, as a share of the measured one.
    """
    found = []
    for cell in cells():
        result = measured.get(name_of(cell))
        if result:
            predicted = cost.simulate(setup_of(cell, costs))[0]
            error = predicted.updates / result["updates"] - 1
            found.append(Point(cell, name_of(cell), predicted, result, error))
    return found


def median(points):
    """Returns the median of the sizes of the errors."""
    return statistics.median(abs(point.error) for point in points)


def markdown(points, costs):
    """Returns the figure, errors by scheme, and what is far off."""
    off = [point for point in points if abs(point.error) > OFF]
    text = "### Predicted against measured\n\n"
    text += f"Cells, one run each: {len(points)}. Median error "
    text += f"{100 * median(points):.0f} %; off by more than 40 %: {len(off)}.\n\n"
    text += figures.shown("predicted against measured updates/s", "predictions")
    rows = []
    for scheme in cost.SCHEMES:
        some = [point for point in points if point.cell.scheme == scheme]
        if some:
            errors = sorted((point.error for point in some), key=abs)
            rows.append(
                [scheme, len(some), f"{100 * median(some):.0f} %"]
                + [f"{100 * errors[-1]:+.0f} %"]
            )
    header = ["scheme", "cells", "median error", "largest error"]
    text += "\n" + runs.table(header, rows)
    if off:
        text += "\n### Cells that are off by more than 40 %\n\n"
        rows = [
            [point.name, explained(point), f"{100 * point.error:+.0f} %"]
            for point in off
        ]
        text += runs.table(["cell", "why", "error"], rows, left=2)
    text += "\n### What the calibration found\n\n"
    return text + runs.table(["cost", "value"], costs_table(costs))


def explained(point):
    """Returns why a cell is far off, with what its run measured."""
    shares = point.measured.get("in_use") or [math.nan] * 3
    _, one, both = (f"{100 * share:.0f} %" for share in shares)
    return EXPLAINED.get(point.name, "-").format(one=one, both=both)


def costs_table(costs):
    """Returns a row for each cost: what it is, and its value in a unit that suits."""
    rows = []
    for name in CALIBRATION:
        value = getattr(costs, name)
        if name in SOLVED:
            shown = f"{value:,.0f} bytes" if name == "flight" else f"{value:.2f}"
            shown = "no limit" if value == math.inf else shown
        elif name.endswith("_byte"):
            shown = f"{1e9 * value:.2f} ns a byte"
        else:
            shown = f"{1000 * value:.2f} ms"
        rows.append([f"`{name}`", shown])
    return rows


def cells_table(points):
    """Returns every cell."""
    rows = []
    for point in points:
        predicted, measured = point.predicted, point.measured
        rows.append(
            [point.name, f"{predicted.updates:.2f}", f"{measured['updates']:.2f}"]
            + [f"{100 * point.error:+.0f} %", f"{predicted.staleness:.1f}"]
            + [f"{measured['staleness']:.1f}", predicted.most, measured["most"]]
        )
    header = ["", "updates/s predicted", "measured", "error"]
    header += ["staleness predicted", "measured", "most predicted", "measured"]
    return "# Predicted and measured, cell by cell\n\n" + runs.table(header, rows)


def draw(points, out):
    """Draws predicted against measured updates/s, with bands of 15 % and 40 %."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(figsize=(7.6, 6.2), layout="constrained")
    rates = [point.measured["updates"] for point in points]
    rates += [point.predicted.updates for point in points]
    ends = np.array([min(rates) / 1.5, max(rates) * 1.5])
    for share, tone in ((OFF, "0.93"), (CLOSE, "0.83")):
        label = f"±{100 * share:.0f} %"
        low, high = ends * (1 - share), ends * (1 + share)
        axes.fill_between(ends, low, high, color=tone, lw=0, label=label)
    axes.plot(ends, ends, color=figures.GREY, lw=0.8)
    marks = (*figures.MARKS, "X")
    colors = (*figures.LINES, figures.GREY)
    for scheme, mark, color in zip(cost.SCHEMES, marks, colors, strict=True):
        some = [p for p in points if p.cell.scheme == scheme]
        x = [point.measured["updates"] for point in some]
        y = [point.predicted.updates for point in some]
        axes.plot(x, y, mark, color=color, label=scheme, ms=6, mec="white", mew=0.5)
    for side in "xy":
        figures.log_ticks(axes, (1, 10, 100), side)
    axes.set(xlim=ends, ylim=ends)
    axes.set(xlabel="measured updates/s", ylabel="predicted updates/s")
    axes.legend(frameon=False)
    figures.save(figure, out / "predictions")


def write_results(out, measured, costs):
    """Draws the figure and writes the table of all cells; returns the other tables."""
    points = points_of(measured, costs)
    if not points:
        return "no cell was measured\n"
    draw(points, out)
    runs.write(out / "predictions-cells.md", cells_table(points))
    return markdown(points, costs)


def main():
    with runs.finished(runs.measuring_parser(__doc__, rounds=1).parse_args()) as args:
        star.check()
        calibrated, planned = [cell for cell, _ in CALIBRATION.values()], cells()
        if args.quick:
            calibrated, planned = calibrated[2:3], planned[:1]
        code = {scheme: runs.fingerprint(scheme) for scheme in cost.SCHEMES}
        jobs = jobs_of(calibrated, args, cost.Costs(cores=os.cpu_count()), FEW)
        rounds, first = runs.in_rounds(jobs, args, "predictions-calibration", code)
        costs = costs_of(middles(rounds))
        jobs = jobs_of(planned, args, costs)
        rounds, progress = runs.in_rounds(jobs, args, "predictions", code)
        text = write_results(args.out, middles(rounds), costs)
        runs.publish(args, "predictions", text, root=True)
        progress.failed[:0] = first.failed
        progress.end()


def middles(rounds):
    """Returns of each measurement the round whose rate is in the middle."""
    found = {}
    for key in {key for measured in rounds for key in measured}:
        some = [measured[key] for measured in rounds if key in measured]
        found[key] = sorted(some, key=lambda one: one["updates"])[len(some) // 2]
    return found


if __name__ == "__main__":
    runs.ends_cleanly(main)
