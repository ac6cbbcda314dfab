"""How far a ps goes: examples/s of 1 to 24 workers whose gradient is a sleep of 50 ms.

The sleep stands for an accelerator: while that computes, the CPU has nothing to do. So
two cores can be 24 workers. Parts, chosen by --only:

    rates   HogWild, Synchronous-SGD, AEASGD with one ps, and Ring-All-Reduce, for 4,810
            and 1,000,000 parameters
    ps      the same with two and four ps: HogWild
    start   HogWild with 1, 8 and 24 workers, as processes of their own: seconds of the
            start and of the end, and memory

Of each run the time is measured in which all workers make rounds, from a second after
they have begun together. In the parts but `start` a task is a fork of a process that
has imported TensorFlow; `start` says whether that changes the rate.

    perfect line   N / (0.05 s + what else a round takes with one worker)
    full           the smallest N that makes less than 80 % of it

Beside what was measured stands what the cost model says (Basics-Tutorial/cost.py, with
the costs of a processor that predictions.py has found): for these cores, which all
tasks share, and for up to 1,024 workers on hosts of their own.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --rounds 3        with the spread
    python benchmarks/scaling.py --quick
"""

import collections
import dataclasses
import functools
import math

import cost_model
import emulated
import figures
import numpy as np
import psutil
import runs

SECONDS, BATCH = 0.05, 32  # of a gradient, examples in it
WORKERS, FEWER, STARTS = (1, 2, 4, 8, 16, 24), (1, 8, 16, 24), (1, 8, 24)
SMALL, LARGE = 4810, 1_000_000  # parameters
FULL = 0.8  # of the perfect line
CABLE = 1e10  # bits/s that the model takes for each host, and for this one
ON_TO = 1024  # workers of the model
PARTS = ("rates", "ps", "start")
TIME = 8.0  # seconds of a run
MANY, LEAST = 900, 60  # rounds of a run if P is large, see `rounds_of`
# A scheme: its folder, T, flags, and how many rounds make an update: 1, or None for N.
Scheme = collections.namedtuple("Scheme", "folder window flags rounds")
SCHEMES = {
    "HogWild": Scheme("HogWild", 1, [], 1),
    "Synchronous-SGD": Scheme("Synchronous-SGD", 1, [], None),
    "AEASGD, T = 4": Scheme("AEASGD", 4, ["--window", 4], 1),
    "Ring-All-Reduce": Scheme("Ring-All-Reduce", 1, [], None),
}
WARM = 12  # rounds of a worker before the common start
Cell = collections.namedtuple("Cell", "part scheme elements ps workers")


# --- The plan ---------------------------------------------------------------------


def plan(only, quick=False):
    """Returns the cells of the chosen parts."""
    sizes = SMALL, LARGE
    cells = []
    for scheme in SCHEMES:
        ps = 0 if scheme == "Ring-All-Reduce" else 1
        cells += [Cell("rates", scheme, p, ps, n) for p in sizes for n in WORKERS]
    cells += [
        Cell("ps", "HogWild", p, ps, n) for p in sizes for ps in (2, 4) for n in FEWER
    ]
    cells += [Cell("start", "HogWild", SMALL, 1, n) for n in STARTS]
    cells = [cell for cell in cells if cell.part in only]
    if quick:
        # No ps, one, and tasks that are no forks.
        few = ("HogWild", 2, "rates"), ("Ring-All-Reduce", 2, "rates")
        few += (("HogWild", 1, "start"),)
        cells = [c for c in cells if (c.scheme, c.workers, c.part) in few]
        cells = [c for c in cells if c.elements == SMALL or c.ps]
    return cells


def key(cell):
    """Returns the name of a cell in the JSON."""
    ps = f"{cell.ps} ps, " if cell.ps else ""
    text = f"{cell.scheme}, P {cell.elements}, {ps}{runs.workers(cell.workers)}"
    return text + ", processes" * (cell.part == "start")


def rounds_of(cell, seconds=TIME):
    """Returns how many rounds each worker makes, beside those before the start.

    As many as the perfect line has in this time. Where a message is long the line is
    not reached, and the run would take minutes: there, about MANY of all workers.
    """
    window = SCHEMES[cell.scheme].window
    count = math.ceil(seconds / (SECONDS * window))
    if cell.elements == LARGE:
        count = min(count, max(LEAST, MANY // cell.workers))
    return count


def cost(cell):
    """Returns a guess of the seconds of a cell."""
    start = 1.5 if cell.part != "start" else 4
    return 14 + start * cell.workers


# --- The measurements -------------------------------------------------------------


def measure(cell, args):
    """Returns what a run says: rates, latency, CPU, memory, start and end."""
    scheme = SCHEMES[cell.scheme]
    count = WARM + rounds_of(cell, 3 if args.quick else TIME)
    steps = count * cell.workers if scheme.rounds else count
    steps = math.ceil(steps / 10) * 10  # a line is printed at the last one, for `end`
    result = emulated.run(
        scheme.folder,
        # With a small rate nothing diverges, however stale a gradient is.
        [*scheme.flags, "--steps", steps, "--learning_rate", 0.001],
        cell.ps or None,
        cell.workers,
        args.timeout,
        dict(seconds=SECONDS, elements=cell.elements, warm=WARM * scheme.window),
        forks=cell.part != "start",
        watch=True,
    )
    times, watch = result["times"], result["watch"]
    first = [each[0] - result["began"] for each in times.values()]
    return {
        **rates(watch.samples, times, scheme.window),
        "first": min(first),
        "all": max(first),
        "end": result["end"],
        "start_cpu": watch.samples[0][1]["worker"] / cell.workers,
        "memory": watch.memory,
    }


def rates(samples, times, window=1):
    """Returns rates, latency (s) and seconds of CPU, while all workers make rounds.

    `samples` are those of an emulated.Watch, `times` {worker: its times}.
    """
    begin, end = emulated.window(samples, times)
    seconds = end[0] - begin[0]
    rounds, laps = 0, []
    for each in times.values():
        begun = each[1::window]
        lap = np.diff(begun)
        inside = (begun[1:] > begin[0]) & (begun[1:] <= end[0])
        rounds += int(inside.sum())
        laps.extend(lap[inside])
    used = {job: end[1][job] - begin[1][job] for job in begin[1]}
    return {
        "seconds": seconds,
        "rounds_per_second": rounds / seconds,
        "median": float(np.median(laps)),
        "late": float(np.percentile(laps, 99)),
        "ps_cores": used["ps"] / seconds,
        "worker_cores": used["worker"] / seconds,
        "other_cores": (end[2] - begin[2] - sum(used.values())) / seconds,
        "ps_cpu": used["ps"] / rounds,  # seconds of all ps for one round
        "worker_cpu": used["worker"] / rounds,  # of its worker
    }


def jobs_of(args):
    """Returns the measurements of the chosen parts."""
    return [
        runs.Job(
            key(cell), {cell.part}, cost(cell), functools.partial(measure, cell, args)
        )
        for cell in plan(args.only, args.quick)
    ]


# --- What follows from them -------------------------------------------------------


def perfect(workers, alone):
    """Returns the rounds/s of N workers if nothing took longer than with one.

    `alone` are the seconds of a round of one worker: the sleep and all that is beside.
    """
    return workers / alone


def full_at(shares):
    """Returns the smallest N below FULL of the perfect line, None if there is none.

    `shares` is {N: measured rate over perfect rate}.
    """
    below = [n for n, share in sorted(shares.items()) if share < FULL]
    return below[0] if below else None


def modelled(row, workers, costs):
    """Returns the rounds/s of N workers by the formulas of the cost model.

    `row` is (scheme, P, ps); tasks share `costs.cores`, or have one each if it is None.
    """
    scheme, elements, ps = row
    setup = cost_model.cost.Setup(
        SCHEMES[scheme].folder,
        workers=workers,
        ps=max(1, ps),
        parameters=elements,
        gradient=SECONDS,
        window=SCHEMES[scheme].window,
        bandwidth=CABLE,
        costs=costs,
    )
    return cost_model.cost.formula(setup).rounds


def modelled_full(row, costs, counts):
    """Returns the first of these N at which the model has a row full, None: nowhere."""
    alone = 1 / modelled(row, 1, costs)
    below = (n for n in counts if modelled(row, n, costs) < FULL * perfect(n, alone))
    return next(below, None)


def rows_of(rounds):
    """Returns {(scheme, P, ps): {N: key}} of what was measured with forks."""
    found = {}
    for cell in plan(PARTS):
        if cell.part != "start" and any(key(cell) in measured for measured in rounds):
            row = found.setdefault((cell.scheme, cell.elements, cell.ps), {})
            row[cell.workers] = key(cell)
    return found


def shares_of(rounds, row):
    """Returns {N: [the share of the perfect line in each round]}.

    `row` is {N: key}. The line is that of the same round, where that has one worker.
    """
    alone = runs.series(rounds, row.get(1, ""), "median")
    found = {}
    for n, name in row.items():
        rate = runs.series(rounds, name, "rounds_per_second")
        line = [value and perfect(n, value) for value in alone]
        found[n] = runs.ratios(rate, line)
    return found


# --- Tables and figure ------------------------------------------------------------


def label(scheme, ps):
    """Returns the name of a row; `ps` is 0 in a ring."""
    return f"{scheme}, {ps} ps" if ps else scheme


def cell_of(rounds, name, field, digits=0, scale=1.0):
    """Returns a number of a cell, with its spread."""
    values = runs.series(rounds, name, field)
    return runs.spread([v if v is None else scale * v for v in values], digits)


def rate_table(rounds, elements, rows):
    """Returns examples/s, and the share of the perfect line, by N."""
    lines = []
    for (scheme, p, ps), row in rows.items():
        if p != elements:
            continue
        window, cells = SCHEMES[scheme].window, []
        shares = shares_of(rounds, row)
        for n in WORKERS:
            text = "-"
            if n in row:
                text = cell_of(
                    rounds, row[n], "rounds_per_second", 0, BATCH * window
                ).partition(" (")[0]
                share = runs.middle(shares[n])
                text += f" ({100 * share:.0f} %)" if share else ""
            cells.append(text)
        lines.append([label(scheme, ps), *cells])
    head = ["examples/s (share of the perfect line)"]
    return runs.table([*head, *(f"N = {n}" for n in WORKERS)], lines)


def late_table(rounds, elements, rows):
    """Returns the seconds of a round by N: median and 99th percentile."""
    lines = []
    for (scheme, p, ps), row in rows.items():
        if p == elements:
            cells = []
            for n in WORKERS:
                pair = [
                    runs.middle(runs.series(rounds, row.get(n, ""), field))
                    for field in ("median", "late")
                ]
                there = None not in pair
                text = " / ".join(f"{1000 * v:,.0f}" for v in pair) if there else "-"
                cells.append(text)
            lines.append([label(scheme, ps), *cells])
    head = ["ms of a round, median / 99 %"]
    return runs.table([*head, *(f"N = {n}" for n in WORKERS)], lines)


def full_table(rounds, elements, rows):
    """Returns where each row is full, and whose CPU that is."""
    cores, lines = psutil.cpu_count(), []
    costs = cost_model.calibrated()
    shared = dataclasses.replace(costs, cores=cores)
    for (scheme, p, ps), row in rows.items():
        if p != elements:
            continue
        here = modelled_full((scheme, p, ps), shared, sorted(row))
        apart = modelled_full((scheme, p, ps), costs, range(1, ON_TO + 1))
        shares = {n: runs.middle(v) for n, v in shares_of(rounds, row).items()}
        shares = {n: share for n, share in shares.items() if share is not None}
        most = max(row)
        lines.append(
            [label(scheme, ps), full_at(shares) or f"above {most}"]
            + [here or f"above {most}", apart or f"above {ON_TO:,}"]
            + [cell_of(rounds, row[most], "ps_cores", 2) if ps else "-"]
            + [cell_of(rounds, row[most], "worker_cores", 2)]
            + [cell_of(rounds, row[most], "ps_cpu", 2, 1000) if ps else "-"]
            + [cell_of(rounds, row[most], "worker_cpu", 2, 1000)]
        )
    head = ["", "full at N =", f"the model, {cores} cores", "the model, own hosts"]
    head += ["cores: ps", "cores: workers", "ms of CPU a round: ps", "ms: worker"]
    return runs.table(head, lines)


def start_table(rounds):
    """Returns seconds of start and end, and memory, of processes of their own."""
    lines = []
    for cell in plan(["start"]):
        name, fork = key(cell), key(cell._replace(part="rates"))
        if not any(name in measured for measured in rounds):
            continue

        def memory(job, kind, name=name):
            found = runs.series(rounds, name, "memory")
            return runs.spread([m and m[job][kind] / 1e6 for m in found])

        compared = runs.ratios(
            runs.series(rounds, name, "rounds_per_second"),
            runs.series(rounds, fork, "rounds_per_second"),
        )
        numbers = [cell_of(rounds, name, field, 1) for field in FIELDS]
        lines.append(
            [cell.workers, *numbers]
            + [memory("worker", 0), memory("worker", 1), memory("ps", 0)]
            + [memory("ps", 1), runs.spread(compared, 2)]
        )
    head = ["N", "first gradient, s", "all have begun, s", "CPU of a worker, s"]
    head += ["last update to exit, s", "worker: RSS, MB", "PSS, MB", "ps: RSS", "PSS"]
    return runs.table([*head, "rate over that of forks"], lines)


FIELDS = ("first", "all", "start_cpu", "end")


def markdown(rounds, only):
    """Returns the tables of the parts that were measured."""
    text, rows = runs.count_of(rounds), rows_of(rounds)
    for elements in (SMALL, LARGE):
        if not any(p == elements for _, p, _ in rows):
            continue
        text += f"\n### {elements:,} parameters, a gradient of 50 ms\n\n"
        text += rate_table(rounds, elements, rows)
        text += "\n" + late_table(rounds, elements, rows)
        text += "\nAt the largest N:\n\n" + full_table(rounds, elements, rows)
    if rows:
        text += "\n### Examples/s against the number of workers\n\n"
        text += figures.shown("Examples/s against the number of workers", NAME)
        text += "\n" + figures.shown(
            "The cost model on to 1,024 workers", f"{NAME}-model"
        )
        text += "\n" + others(rounds)
    if "start" in only:
        text += "\n### Start, end and memory of HogWild, one ps\n\n"
        text += start_table(rounds)
    return text


def others(rounds):
    """Returns the sentence that says how much of the machine other programs had."""
    found = [
        result["other_cores"] for measured in rounds for result in measured.values()
    ]
    middle, most = runs.middle(found), max(found)
    return f"Other programs used {middle:.2f} cores meanwhile, {most:.2f} at most.\n"


NAME = "scaling"


def draw(rounds, path):
    """Draws examples/s against N, a panel for each P, and where each row is full."""
    rows = rows_of(rounds)
    if not rows:
        return
    plt = figures.pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    names = sorted({(scheme, ps) for scheme, _, ps in rows})
    dots = "osD^vP*X<>"
    looks = {
        name: dict(marker=mark, color=f"C{number}")
        for number, (name, mark) in enumerate(zip(names, dots, strict=False))
    }
    for axes, elements in zip(panels, (SMALL, LARGE), strict=True):
        ideal = [n / SECONDS * BATCH for n in WORKERS]
        axes.plot(WORKERS, ideal, color=figures.GREY, ls=":", label="N / 50 ms")
        for (scheme, p, ps), row in rows.items():
            if p != elements:
                continue
            scale = BATCH * SCHEMES[scheme].window
            rate = {
                n: runs.middle(runs.series(rounds, name, "rounds_per_second"))
                for n, name in row.items()
            }
            rate = {n: scale * value for n, value in rate.items() if value}
            look = looks[scheme, ps]
            axes.plot(*zip(*rate.items(), strict=True), label=label(scheme, ps), **look)
            shares = {n: runs.middle(v) for n, v in shares_of(rounds, row).items()}
            full = full_at({n: v for n, v in shares.items() if v is not None})
            if full in rate:
                ring = dict(mfc="none", mec=look["color"], ms=14, ls="none")
                axes.plot(full, rate[full], "o", **ring)
        axes.set_title(f"P = {elements:,}", loc="left")
        axes.set_xticks(WORKERS, WORKERS)
        axes.set_xlabel("workers N")
        axes.set_ylim(0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    panels[0].set_ylabel("examples/s")
    panels[0].plot([], [], "o", mfc="none", mec=figures.DARK, ms=14, label="full")
    handles, words = panels[0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=4, frameon=False)
    figures.save(figure, path)


def draw_model(rounds, path):
    """Draws the model on to ON_TO workers, a panel for each P, and what was measured.

    Solid lines are of hosts of their own, dashed ones of tasks that share these cores.
    """
    rows = rows_of(rounds)
    if not rows:
        return
    plt = figures.pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    costs = cost_model.calibrated()
    shared = dataclasses.replace(costs, cores=psutil.cpu_count())
    names = sorted({(scheme, ps) for scheme, _, ps in rows})
    counts = 2 ** np.arange(math.log2(ON_TO) + 1).astype(int)
    for axes, elements in zip(panels, (SMALL, LARGE), strict=True):
        axes.plot(counts, counts / SECONDS * BATCH, color=figures.GREY, ls=":")
        for row, found in rows.items():
            scheme, p, ps = row
            if p != elements:
                continue
            color = f"C{names.index((scheme, ps))}"
            scale = BATCH * SCHEMES[scheme].window
            for model, line, known in ((costs, "-", counts), (shared, "--", WORKERS)):
                rate = [scale * modelled(row, int(n), model) for n in known]
                said = label(scheme, ps) if line == "-" else None
                axes.plot(known, rate, line, color=color, marker="", label=said)
            for n, name in found.items():
                rate = runs.middle(runs.series(rounds, name, "rounds_per_second"))
                if rate:
                    axes.plot(n, scale * rate, "o", color=color, ms=4)
        axes.set_title(f"P = {elements:,}", loc="left")
        axes.set_xscale("log", base=2)
        figures.log_ticks(axes, (1000, 10_000, 100_000), "y")
        axes.set_xticks(counts[::2], [f"{n:,}" for n in counts[::2]])
        axes.set_xlabel("workers N")
    panels[0].set_ylabel("examples/s")
    panels[0].plot([], [], "--", color=figures.DARK, marker="", label="shared cores")
    panels[0].plot([], [], "o", color=figures.DARK, ms=4, label="measured")
    handles, words = panels[0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=4, frameon=False)
    figures.save(figure, path)


def main():
    with runs.finished(runs.measuring_parser(__doc__, PARTS, 1).parse_args()) as args:
        code = emulated.code({scheme.folder for scheme in SCHEMES.values()})
        rounds, progress = runs.in_rounds(jobs_of(args), args, NAME, code)
        draw(rounds, args.out / NAME)
        draw_model(rounds, args.out / f"{NAME}-model")
        runs.publish(args, NAME, markdown(rounds, args.only))
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
