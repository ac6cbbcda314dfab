"""Training that sends little and waits for nobody: outer optimizers, overlap, buffers.

    outer    Async-DiLoCo with four outer optimizers, and DiLoCo: test loss against
             time, four workers of four speeds
    overlap  DiLoCo --overlap: test loss against o, the steps during an exchange
    buffer   FedBuff --buffer: staleness, accuracy and time against K, on clients that
             are alike and on others

A gradient is made to take longer by --slow_workers, as claims.py says; in part overlap
it is as fast as it is. The sleeps have the ratios of the paper's four machines. In the
parts with a time, worker 0 tests the center variable after each of its calls
(problems/often.py). The time is from its first call to the first of three tests whose
mean loss is at most the target.

Also writes the table of the papers' claims about these schemes, to which chaos.py and
exchange.py belong. Writes a figure for parts outer and buffer, and
low_communication.json, in which finished runs are kept.

    python benchmarks/low_communication.py
    python benchmarks/low_communication.py --only outer
    python benchmarks/low_communication.py --quick
"""

import importlib
import math
import os
import statistics

import chaos
import claims
import exchange
import figures
import pays
import runs
from claims import Run, accuracy, percent

PARTS = ("outer", "overlap", "buffer")
SEEDS, WORKERS, STEPS = 5, 4, 4000  # STEPS: inner steps of all workers
SPEEDS = (0.0058, 0.0075, 0.0151, 0.0333)  # seconds of a gradient of each worker
TARGET = 0.2  # test loss
OFTEN = {"problem.py": runs.HERE / "problems" / "often.py"}

# outer: label: folder and flags
WINDOW = 25
SYNC, NESTEROV = "DiLoCo, all wait", "Nesterov at each push"
DELAYED, PLAIN = "delayed Nesterov", "no momentum"
OUTER = {
    SYNC: ("DiLoCo", []),
    DELAYED: ("Async-DiLoCo", []),
    NESTEROV: ("Async-DiLoCo", ["--outer", "nesterov"]),
    PLAIN: ("Async-DiLoCo", ["--outer", "sgd"]),
}

# overlap: o and α; 20 rounds of 50 steps
ROUND, ROUNDS = 50, 20
OVERLAPS = [(0, 0.0), (5, 0.5), (25, 0.5), (25, 0.0), (45, 0.5)]

# buffer: T of the paper's order; half the sleeps of part outer
LOCAL, BUFFERS = 10, (1, 2, 4, 8)
ALIKE, SKEWED = "alike", "--skew 0.1"


# --- The runs ---------------------------------------------------------------------


def outer_runs(scale):
    """Returns the runs of part outer."""
    sleeps, found = ",".join(map(str, SPEEDS)), []
    for label, (folder, more) in OUTER.items():
        pushes = max(8, int(STEPS * scale) // WINDOW)
        steps = pushes // WORKERS if folder == "DiLoCo" else pushes
        flags = ["--window", WINDOW, "--steps", steps, *more, "--slow_workers", sleeps]
        cost = 40 if folder == "DiLoCo" else 17
        found.append(Run("outer", label, 0, folder, flags, WORKERS, cost, None, OFTEN))
    return found


def overlap_runs(scale):
    """Returns the runs of part overlap."""
    found, steps = [], max(2, int(ROUNDS * scale))
    for o, mix in OVERLAPS:
        flags = ["--window", ROUND, "--steps", steps, "--overlap", o, "--mix", mix]
        found.append(Run("overlap", "DiLoCo", (o, mix), "DiLoCo", flags, WORKERS, 8))
    return found


def buffer_runs(scale):
    """Returns the runs of part buffer."""
    sleeps, found = ",".join(f"{seconds / 2:g}" for seconds in SPEEDS), []
    for label, more in ((ALIKE, []), (SKEWED, SKEWED.split())):
        for size in BUFFERS:
            flags = ["--window", LOCAL, "--steps", max(16, int(STEPS * scale) // LOCAL)]
            flags += ["--buffer", size, *more, "--slow_workers", sleeps]
            run = Run("buffer", label, size, "FedBuff", flags, WORKERS, 11, None, OFTEN)
            found.append(run)
    return found


PLANS = {"outer": outer_runs, "overlap": overlap_runs, "buffer": buffer_runs}


def plan(parts=PARTS, scale=1.0, seeds=1):
    """Returns the runs of the parts: all of one seed before those of the next."""
    found = [run for part in parts for run in PLANS[part](scale)]
    return claims.seeded(found, seeds)


def losses(logdir):
    """Returns [(seconds since the chief's first call, test loss)] of a run."""
    began = min(path.stat().st_mtime for path in logdir.glob("model.ckpt-*.index"))
    with runs.silence():
        tf = importlib.import_module("tensorflow.compat.v1")
        return [
            (event.wall_time - began, value.simple_value)
            for path in sorted(logdir.glob("events.out.tfevents.*"))
            for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value
            if value.tag == "test_loss"
        ]


def reached(logdir):
    """Returns the seconds of a run to the target."""
    points = [(when, -loss) for when, loss in losses(logdir)]
    return {"seconds_to_loss": pays.seconds_to(points, -TARGET)}


def curve(logdir):
    """Returns the same, and the curve: its seconds and its test losses."""
    columns = zip(*losses(logdir), strict=True)
    shown = [[round(number, 4) for number in column] for column in columns]
    return {"curve": shown, **reached(logdir)}


# --- Tables -----------------------------------------------------------------------


def field(result, name, digits):
    """Returns the median of a field over the seeds as a cell, smallest and largest."""
    values = [run.get(name) for run in figures.each(result)]
    return runs.spread(values, digits)


def accuracies(result):
    """Returns the middle test accuracy of a cell, worst and best in brackets."""
    if not result:
        return "-"
    low, middle, high = figures.errors(result)
    text = f"{100 - middle:.1f} %"
    return text + f" ({100 - high:.1f} to {100 - low:.1f})" * (low < high)


def loss_of(result):
    """Returns the median test loss of a cell."""
    return statistics.median(run["test_loss"] for run in figures.each(result))


def to_target(result):
    """Returns the seconds to the target as a cell: never, if most are not there."""
    times = sorted(map(claims.seconds_to_loss, figures.each(result)))
    if times[len(times) // 2] == math.inf:
        return "never"
    last = "never" if times[-1] == math.inf else f"{times[-1]:.1f}"
    middle = f"{times[len(times) // 2]:.1f}"
    return middle + f" ({times[0]:.1f} to {last})" * (len(times) > 1)


def median_to_target(result):
    """Returns the same in a sentence, without smallest and largest."""
    text = to_target(result).partition(" (")[0]
    return text if text == "never" else f"{text} s"


def seeds_of(found):
    """Returns the sentence that says how many seeds a cell has."""
    counts = {len(figures.each(r)) for row in found.values() for r in row.values()}
    if counts <= {1}:
        return "One seed."
    number = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"Middle of {number} seeds (smallest to largest)."


def outer_text(found):
    """Returns the markdown of part outer."""
    rows = []
    for label in OUTER:
        if result := found.get(label, {}).get(0):
            cells = [accuracies(result), f"{loss_of(result):.3f}"]
            cells += [to_target(result), field(result, "seconds", 1)]
            rows.append([label, *cells])
    header = ["", "test accuracy", "test loss", f"s to a loss of {TARGET:g}"]
    text = "### Outer optimizers\n\n"
    text += figures.shown("test loss against time", "low-communication-outer") + "\n"
    text += runs.table([*header, "s in all"], rows)
    return text + (
        f"\nN = {WORKERS}, T = {WINDOW}, {STEPS:,} inner steps in all; ε = η_o = 0.7, "
        f"momentum 0.9. {seeds_of(found)}\n"
    )


def overlap_text(found):
    """Returns the markdown of part overlap."""
    rows = []
    for o, mix in OVERLAPS:
        if result := found.get("DiLoCo", {}).get((o, mix)):
            cells = [accuracies(result), field(result, "test_loss", 3)]
            rows.append([o, mix if o else "-", *cells])
    text = "### Loss against overlap\n\n"
    header = ["o", "α", "test accuracy", "test loss"]
    text += runs.table(header, rows, left=2)
    return text + (
        f"\nN = {WORKERS}, {ROUNDS} rounds of T = {ROUND} steps, η = 0.001. "
        f"{seeds_of(found)}\n"
    )


def buffer_text(found):
    """Returns the markdown of part buffer."""
    rows = []
    for size in BUFFERS:
        alike, skewed = (found.get(label, {}).get(size) for label in (ALIKE, SKEWED))
        stale = [run["mean_staleness"] for run in figures.each(alike or {"each": []})]
        row = [size, f"{runs.middle(stale):.2f}" if stale else "-"]
        for result in (alike, skewed):
            row += [accuracies(result), to_target(result) if result else "-"]
        rows.append(row)
    header = ["K", "mean τ", "accuracy, alike", "s to the loss"]
    header += [f"accuracy, {SKEWED}", "s to the loss"]
    text = "### Buffers\n\n"
    text += figures.shown("test error and time against K", "low-communication-buffer")
    text += "\n" + runs.table(header, rows)
    return text + (
        f"\nN = {WORKERS}, T = {LOCAL}, {STEPS:,} local steps in all, η = 0.1, "
        f"η_s = 1; the loss is {TARGET:g}. {seeds_of(found)}\n"
    )


TEXTS = {"outer": outer_text, "overlap": overlap_text, "buffer": buffer_text}


# --- The claims -------------------------------------------------------------------


def outer_claims(found):
    """Yields the claims about the outer optimizer: (claim, source, seen, holds)."""
    rows = {label: found.get(label, {}).get(0) for label in OUTER}
    if not all(rows.values()):
        return
    sync, delayed, nesterov, plain = (rows[k] for k in (SYNC, DELAYED, NESTEROV, PLAIN))
    source = "Liu et al. 2024"
    seen = f"{percent(nesterov)} against {percent(sync)}"
    holds = accuracy(nesterov) < accuracy(sync) - 0.03
    yield "momentum at each push does harm, at DiLoCo's rates", source, seen, holds
    seen = f"{percent(delayed)} against {percent(sync)}"
    holds = accuracy(delayed) > accuracy(sync) - 0.01
    yield "delayed Nesterov is as accurate as DiLoCo", source, seen, holds
    times = [
        statistics.median(map(claims.seconds_to_loss, figures.each(r)))
        for r in (delayed, sync)
    ]
    seen = f"{median_to_target(delayed)} against {median_to_target(sync)}"
    holds = times[0] < times[1]
    yield (
        f"and reaches a loss of {TARGET:g} sooner, with four speeds",
        source,
        seen,
        holds,
    )
    seen = f"{percent(delayed)} against {percent(plain)}"
    holds = accuracy(delayed) > accuracy(plain) + 0.01
    yield "and is more accurate than no momentum", source, seen, holds
    losses = [loss_of(result) for result in (delayed, plain)]
    seen = "{:.3f} against {:.3f}".format(*losses)
    yield "and has a lower test loss", source, seen, losses[0] < losses[1] - 0.01


def overlap_claims(found):
    """Yields the claims about overlap, of loss and of time."""
    row = found.get("DiLoCo", {})
    ends = [row.get((o, 0.5 if o else 0.0)) for o in (25, 0)]
    if all(ends):
        seen = " against ".join(f"{loss_of(end):.3f}" for end in ends)
        holds = loss_of(ends[0]) <= loss_of(ends[1]) + 0.01
        claim = "half a window of overlap costs no test loss"
        yield claim, "Douillard et al. 2025", seen, holds
    yield from exchange.claims_of(exchange.kept())


def buffer_claims(found):
    """Yields the claims about buffers."""
    row = found.get(ALIKE, {})
    if all(size in row for size in BUFFERS):
        means = [row[size]["mean_staleness"] for size in BUFFERS]
        wanted = [(WORKERS - 1) / size for size in BUFFERS]
        holds = all(abs(a / b - 1) < 0.15 for a, b in zip(means, wanted, strict=True))
        seen, numbers = (", ".join(f"{x:.2f}" for x in xs) for xs in (means, wanted))
        claim = f"the mean staleness is (N − 1)/K: {numbers}"
        yield claim, "by counting", seen, holds
        times = [claims.seconds_to_loss(row[size]) for size in (2, 1)]
        seen = f"{median_to_target(row[2])} against {median_to_target(row[1])}"
        claim = "a buffer of two reaches a loss sooner than none"
        yield claim, "Nguyen et al. 2022", seen, times[0] < times[1]


CLAIMS = {"outer": outer_claims, "overlap": overlap_claims, "buffer": buffer_claims}


def claims_text(found):
    """Returns the table of the claims and what is seen of them."""
    rows = [one for part in PARTS for one in CLAIMS[part](found.get(part, {}))]
    rows += chaos.claims_of(chaos.kept())
    rows = [[*row[:-1], claims.said(row[-1])] for row in rows]
    text = "### Claims about low communication\n\n"
    text += runs.table(["claim", "source", "seen here", "holds"], rows, left=4)
    return text + (
        "\nSeconds of a round are of exchange.py, goodput is of chaos.py: their tables "
        "have their commits.\n"
    )


# --- Figures ----------------------------------------------------------------------


def outer_figure(found, path):
    """Draws test loss against time, a line for each seed."""
    figure, axes = figures.pyplot().subplots(figsize=(7.6, 3.0), layout="constrained")
    for (label, row), color in zip(found.items(), figures.LINES, strict=False):
        each = figures.each(row[0])
        for number, run in enumerate(each):  # from the worst accuracy to the best
            middle = number == len(each) // 2
            look = dict(lw=2) if middle else dict(lw=0.8, alpha=0.5)
            xs, ys = run.get("curve") or ([], [])
            axes.plot(xs, ys, color=color, label=label if middle else None, **look)
    axes.axhline(TARGET, color=figures.GREY, lw=0.8, ls=":")
    figures.log_ticks(axes, (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50), "y")
    axes.minorticks_off()
    axes.set_xlabel("seconds since the first call of worker 0")
    axes.set_ylabel("test loss of the center variable")
    axes.set_title("Four workers of four speeds, a line for each seed")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figures.save(figure, path)


def buffer_figure(found, path):
    """Draws test error, and seconds to the target, against K."""
    plt = figures.pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.9), layout="constrained")
    for (label, row), color, mark in zip(
        found.items(), (figures.BLUE, figures.VERMILION), "os", strict=False
    ):
        low, middle, high = zip(*(figures.errors(r) for r in row.values()), strict=True)
        left.plot(list(row), middle, mark + "-", color=color, label=label)
        left.fill_between(list(row), low, high, color=color, alpha=0.18, lw=0)
        for size, result in row.items():
            times = [run.get("seconds_to_loss") for run in figures.each(result)]
            there = [seconds for seconds in times if seconds]
            x = size * (1.04 if label == SKEWED else 0.96)
            right.plot([x] * len(there), there, mark, color=color, alpha=0.7)
    for axes, what in (
        (left, "test error, %"),
        (right, f"seconds to a loss of {TARGET}"),
    ):
        figures.log_ticks(axes, BUFFERS)
        axes.minorticks_off()
        axes.set_xlabel("K, pushes that move w once")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
    left.set_title("middle seed, from best to worst")
    right.set_title("a mark for each seed that gets there")
    left.legend(frameon=False, loc="upper left")
    figures.save(figure, path)


FIGURES = {"outer": outer_figure, "buffer": buffer_figure}


def write_results(out, found, quick=False):
    """Draws the figures of the parts that have results; returns the tables."""
    short = "Of few and short runs: a test of the script, not a measurement.\n"
    texts = [short] if quick else []
    for part, results in found.items():
        if results:
            texts.append(TEXTS[part](results))
            if part in FIGURES:
                FIGURES[part](results, out / f"low-communication-{part}")
    return "\n".join([*texts, claims_text(found)])


# --- The measurement --------------------------------------------------------------


def main():
    parser = runs.measuring_parser(__doc__, PARTS, rounds=None)
    add = parser.add_argument
    add("--seeds", type=runs.positive_int, help=f"of a cell ({SEEDS}; --quick: 1)")
    add("--draw", action="store_true", help="only draw what is kept, of any code")
    with runs.finished(parser.parse_args()) as args:
        args.seeds = args.seeds or (1 if args.quick else SEEDS)
        # Tasks are forks, which start in a second. In a network of their own they would
        # be none.
        runs.STARTS.forks, os.environ["OPEN_PORTS"] = True, "1"
        short = 0.05 if args.quick else 1.0, args.seeds
        cache = claims.Cache(args.out / "low_communication.json", args.again)
        progress = None
        if not args.draw:
            planned = plan(args.only, *short)
            if args.quick:
                planned = runs.one_of_each(planned, lambda run: run.part)
            logs = {"outer": curve, "buffer": reached}
            progress = claims.measure(planned, cache, args.timeout, ps=None, logs=logs)
        # Parts measured at another time are shown too.
        found = {part: claims.grid(plan([part], *short), cache, True) for part in PARTS}
        runs.publish(
            args, "low_communication", write_results(args.out, found, args.quick)
        )
        if progress:
            progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
