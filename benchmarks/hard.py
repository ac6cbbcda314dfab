"""The claims that the digits cannot decide, on a problem that is harder: MNIST-1D.

    models   logistic regression, a perceptron, a convolutional network: one process
    window   DOWNPOUR-Easy, AGN and AEASGD: accuracy against T, as many gradients each
    pool     DiLoCo: four workers, and workers that leave between its rounds
    local    Local-SGD: accuracy against T
    bytes    Gradient-Compression: whole gradients, 1 % of the elements, signs, bytes
    bound    Stale-Synchronous-Parallel: accuracy against s, with one straggler
    delay    eight workers: HogWild, and with the delay compensated

All but `models` train the convolutional network of problems/convolution.py, which is
put at the end of problem.py in a copy of the example's folder. hard_data.py makes the
data. A gradient is made to take longer by --slow_workers, as claims.py says.

Writes two figures, and hard.json, in which finished runs are kept; the next start
repeats none whose example is unchanged.

    python benchmarks/hard.py                        everything
    python benchmarks/hard.py --seeds 1              a fifth of the time, no bands
    python benchmarks/hard.py --draw                 draws what is kept, no more
    python benchmarks/hard.py --quick                a test of the script
"""

import claims
import figures
import hard_data
import peers
import runs
from claims import Run, accuracy, percent

SEEDS = 5
MODELS = runs.HERE / "problems"
DATA = "mnist-1d.npz"  # what it is called in the copy
GRADIENTS, WORKERS, SECONDS = 4096, 4, 0.01
WINDOWS, LOCAL, BOUNDS = (1, 16, 64), (1, 8, 32), (0, 1, 4)
# What is closer counts as equal: about two standard errors of the difference of two
# accuracies near 90 %, each of 1,000 test signals, 2 sqrt(2 · 0.9 · 0.1 / 1000).
MARGIN = 0.03

# Part models: the file, its learning rate, and the accuracy in Greydanus and Kobak's
# table 1, after longer training by Adam.
ALONE = {
    "logistic regression": ("logistic", 0.1, 0.32),
    "perceptron": ("perceptron", 0.1, 0.68),
    "convolutional network": ("convolution", 0.3, 0.94),
}
EASY, AGN, AEASGD = "DOWNPOUR-Easy, Adagrad on the ps", "AGN", "AEASGD"
SLOW = "one is always slow"
HOGWILD, DC = "HogWild", "DC-ASGD, adaptive, λ₀ = 2"
METHODS = {  # part bytes: method and share of the elements
    "top 1 %": ["--method", "topk", "--keep", 0.01],
    "signs": ["--method", "sign"],
    "bytes": ["--method", "int8"],
}
# Part pool: the workers, one number after the other.
POOLS = {label: peers.POOLS[label] for label in ("four", "fewer and fewer")}
TITLES = {
    "models": "One process",
    "window": "Window",
    "pool": "DiLoCo",
    "local": "Local-SGD",
    "bytes": "Compression",
    "bound": "Bounded staleness",
    "delay": f"{2 * WORKERS} workers",
}


# --- The runs -----------------------------------------------------------------


def with_model(name):
    """Returns the files for a copy of an example, for one model and the data."""
    return {"problem.py": MODELS / f"{name}.py", DATA: hard_data.FILE}


def plan(scale=1.0, seeds=1):
    """Returns the runs of all parts, all runs of one seed before those of the next."""
    found = []

    def add(part, label, x, folder, steps, flags, cost, workers=WORKERS, model=None):
        common = ["--data", DATA, "--steps", max(1, int(steps * scale))]
        more = with_model(model or "convolution")
        words = [*common, *flags]
        run = Run(part, label, x, folder, words, workers, cost, None, more)
        found.append(run)

    sleep = ["--slow_workers", SECONDS]
    for label, (model, rate, _) in ALONE.items():
        flags = ["--learning_rate", rate]
        folder = "Non-Distributed-Setup"
        add("models", label, 0, folder, GRADIENTS, flags, 10, 1, model)
    adagrad = ["--learning_rate", 0.1, "--server_learning_rate", 0.05]
    for label, folder, flags in (
        (EASY, "DOWNPOUR-Easy", adagrad),
        (AGN, "AGN", ["--learning_rate", 0.1]),
        (AEASGD, "AEASGD", ["--learning_rate", 0.3, "--beta", 0.9]),
    ):
        for window in WINDOWS:
            words = [*flags, "--window", window, *sleep]
            add("window", label, window, folder, GRADIENTS // window, words, 20)
    for label, workers in POOLS.items():
        flags = ["--window", peers.POOL_WINDOW, "--learning_rate", 0.003]
        rounds = GRADIENTS // WORKERS // peers.POOL_WINDOW // 4 * 4
        add("pool", label, 0, "DiLoCo", rounds, flags, 12 * len(workers), workers)
    for window in LOCAL:
        flags = ["--window", window, "--learning_rate", 0.3]
        steps = GRADIENTS // WORKERS // window
        add("local", "shards alike", window, "Local-SGD", steps, flags, 15)
    general = ["--learning_rate", 0.1, *sleep]
    add("bytes", claims.WHOLE, "on", "HogWild", GRADIENTS, general, 20)
    for label, flags in METHODS.items():
        words = [*general, *flags]
        add("bytes", label, "on", "Gradient-Compression", GRADIENTS, words, 20)
    slow = ["--learning_rate", 0.1, "--slow_workers"]
    slow += [f"{SECONDS},{SECONDS},{SECONDS},{4 * SECONDS}"]
    for bound in BOUNDS:
        words = [*slow, "--staleness", bound]
        folder = "Stale-Synchronous-Parallel"
        add("bound", SLOW, bound, folder, GRADIENTS // 2, words, 30)
    many = ["--learning_rate", 0.1, "--slow_workers", 2 * SECONDS]
    add("delay", HOGWILD, 0.1, "HogWild", GRADIENTS, many, 25, 2 * WORKERS)
    words = [*many, "--variance", "adaptive"]
    add("delay", DC, 0.1, "DC-ASGD", GRADIENTS, words, 25, 2 * WORKERS)
    return claims.seeded(found, seeds)


def results_of(planned, cache, any_code=False):
    """Returns {part: {label: {x: result}}} of the runs that are done."""
    return {
        part: claims.grid([r for r in planned if r.part == part], cache, any_code)
        for part in TITLES
    }


def on_digits():
    """Returns the results that claims.py and peers.py have kept, as `results_of`."""
    found = {}
    for part in TITLES:
        source = peers if part in ("pool", "local") else claims
        if part in source.PLANS:
            planned = claims.seeded(source.PLANS[part](1.0), SEEDS)
            cache = claims.Cache(runs.RESULTS / f"{source.__name__}-runs.json")
            found[part] = claims.grid(planned, cache, any_code=True)
    return found


# --- The claims ---------------------------------------------------------------


def as_good():
    """Yields (claim, cell, other): the cell is as accurate as the other, or better.

    A cell is (part, label, x).
    """
    for label, name in ((EASY, "DOWNPOUR-Easy"), (AGN, AGN), (AEASGD, AEASGD)):
        for window in WINDOWS[1:]:
            first = "window", label, WINDOWS[0]
            claim = f"{name} keeps its accuracy at T = {window}"
            yield claim, ("window", label, window), first
    whole, some = (("pool", label, 0) for label in POOLS)
    yield "DiLoCo loses nothing when workers leave", some, whole
    for window in LOCAL[1:]:
        claim = f"Local-SGD keeps its accuracy at T = {window}"
        first = "local", "shards alike", LOCAL[0]
        yield claim, ("local", "shards alike", window), first
    for label in METHODS:
        claim = f"{label}, with error feedback: the accuracy of whole gradients"
        yield claim, ("bytes", label, "on"), ("bytes", claims.WHOLE, "on")
    for bound in BOUNDS[1:]:
        claim = f"staleness costs no accuracy, s = {bound} against s = 0"
        yield claim, ("bound", SLOW, bound), ("bound", SLOW, BOUNDS[0])


def better():
    """Yields (claim, cell, other): the cell is more accurate than the other."""
    claim = f"AGN is ahead of AEASGD at T = {WINDOWS[-1]}"
    yield claim, ("window", AGN, WINDOWS[-1]), ("window", AEASGD, WINDOWS[-1])
    claim = f"DC-ASGD is ahead of HogWild, N = {2 * WORKERS}"
    yield claim, ("delay", DC, 0.1), ("delay", HOGWILD, 0.1)


def answer(found, cells, least):
    """Returns (seen, holds): the first cell is ahead of the other by `least` or more.

    `holds` is None if one of the two was not measured.
    """
    pair = [found.get(part, {}).get(label, {}).get(x) for part, label, x in cells]
    seen = " against ".join(map(percent, pair))
    if not all(pair):
        return seen, None
    ahead = round(accuracy(pair[0]) - accuracy(pair[1]), 6)  # they are float32
    return seen, ahead >= least


def answers(found, digits):
    """Yields (claim, on the digits, here), the two as `answer` returns them."""
    for kind, least in ((as_good, -MARGIN), (better, MARGIN)):
        for claim, *cells in kind():
            yield claim, answer(digits, cells, least), answer(found, cells, least)


def claims_text(found, digits):
    """Returns the table of the claims, on the digits and here."""
    rows, changed = [], 0
    for claim, (old, held), (seen, holds) in answers(found, digits):
        verdict = "-"
        if None not in (held, holds):
            changed += held != holds
            verdict = "**another**" if held != holds else "the same"
        row = [claim, old, claims.said(held), seen, claims.said(holds), verdict]
        rows.append(row)
    header = ["claim", "digits", "holds", "MNIST-1D", "holds", "answer"]
    text = "### The same claims, on MNIST-1D\n\n"
    text += runs.table(header, rows, left=len(header))
    text += f"\nAnother answer than with the digits: {changed} of {len(rows)}. "
    return text + (
        f"As good is what is at most\n{100 * MARGIN:g} % lower, and ahead what is at "
        f"least {100 * MARGIN:g} % higher. The digits' numbers are those of\n"
        "claims.py and peers.py.\n"
    )


# --- Tables and figures -------------------------------------------------------


def named(part, label, x):
    """Returns how a cell is called in the table and the figure."""
    if part == "window":
        return f"{label.partition(',')[0]}, T = {x}"
    if part == "local":
        return f"T = {x}"
    if part == "bound":
        return f"s = {x}"
    if part == "pool":
        return f"{label}: {', '.join(map(str, POOLS[label]))}"
    return label


def cells_of(found):
    """Yields (part, name, result) of the cells, in their order."""
    for part, rows in found.items():
        for label, row in rows.items():
            for x, result in row.items():
                yield part, named(part, label, x), result


def cells_text(found):
    """Returns the table of all cells."""
    rows, counts = [], set()
    for part, name, result in cells_of(found):
        # Nothing is late in one process, or where all wait for all.
        late = part in ("window", "bytes", "bound", "delay")
        stale, pushed = result.get("mean_staleness"), result.get("bytes_pushed")
        cells = ["-", "-", "-", "-"]
        if "each" in result:
            low, _, high = figures.errors(result)
            cells[0] = f"{100 - high:.1f} to {100 - low:.1f}"
        if late and stale is not None:
            cells[1] = f"{stale:.1f}"
        if pushed:
            cells[2] = f"{pushed / 1e6:.2f}"
        if part == "models":
            cells[3] = f"{100 * ALONE[name][2]:.0f} %"
        rows.append([TITLES[part], name, percent(result), *cells])
        counts.add(len(figures.each(result)))
    header = ["", "", "test accuracy", "from worst to best", "mean staleness"]
    header += ["MB pushed", "published"]
    text = "### Every cell\n\n" + figures.shown("accuracy of each cell", "hard-cells")
    text += "\n" + runs.table(header, rows, left=2)
    least, most = min(counts), max(counts)
    seeds = f"{least}" if least == most else f"{least} to {most}"
    middle = "One seed." if most == 1 else f"The middle of {seeds} seeds."
    return text + (
        f"\n{GRADIENTS} gradients of 32 signals in a cell, of all workers together; "
        f"{GRADIENTS // 2} in bounded staleness.\nFour workers, where no other number "
        f"is said. {middle}\n"
    )


def window_text(found):
    """Returns the markdown of the figure of part window."""
    text = "### Accuracy against window, on MNIST-1D\n\n"
    return text + figures.shown("test error against window", "hard-window")


def window_figure(found, path):
    """Draws test error against window, the bytes below it."""
    pushed = [claims.megabytes(found, window) for window in WINDOWS]
    title = f"MNIST-1D: {WORKERS} workers, {GRADIENTS} gradients at every window"
    figures.window(found, path, WINDOWS, pushed, title)


def cells_figure(found, path):
    """Draws the accuracy of each cell: its middle seed, and a line over all seeds."""
    plt = figures.pyplot()
    cells = list(cells_of(found))
    size = 7.6, 1 + 0.27 * len(cells)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    parts = list(dict.fromkeys(part for part, *_ in cells))
    for y, (part, _, result) in enumerate(cells):
        number = parts.index(part)
        color, mark = figures.LINES[number], figures.MARKS[number]
        low, _, high = figures.errors(result)
        axes.plot([100 - high, 100 - low], [y, y], color=color, lw=4, alpha=0.35)
        axes.plot(100 * accuracy(result), y, mark, color=color, ms=7)
        axes.annotate(
            percent(result),
            (100 - low, y),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
        )
        if number % 2:
            axes.axhspan(y - 0.5, y + 0.5, color="0.95", lw=0, zorder=0)
    names = [f"{TITLES[part]}: {name}" for part, name, _ in cells]
    axes.set_yticks(range(len(cells)), names)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlim(0, 112)  # room for the numbers
    axes.set_xticks(range(0, 101, 20))
    axes.axvline(100 * figures.CHANCE, color=figures.GREY, lw=0.8, ls=":")
    axes.set_xlabel("test accuracy, %")
    axes.set_title("MNIST-1D: middle seed, worst to best; dotted: chance")
    figures.save(figure, path)


def write_results(out, found, digits, quick=False):
    """Draws the figures; returns the tables.

    `found` and `digits` are {part: {label: {x: result}}}.
    """
    texts = []
    if quick:
        texts = ["Of few and short runs: a test of the script, not a measurement.\n"]
    texts.append(claims_text(found, digits))
    if any(found.values()):
        texts.append(cells_text(found))
        cells_figure(found, out / "hard-cells")
    if found.get("window"):
        texts.append(window_text(found["window"]))
        window_figure(found["window"], out / "hard-window")
    return "\n".join(texts)


# --- The measurement ----------------------------------------------------------


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.measuring_parser(__doc__, rounds=None)
    add = parser.add_argument
    add("--seeds", type=runs.positive_int, help=f"of a cell ({SEEDS}; --quick: 1)")
    add("--draw", action="store_true", help="only draw what is kept, of any code")
    args = parser.parse_args(argv)
    args.seeds = args.seeds or (1 if args.quick else SEEDS)
    return args


def main():
    with runs.finished(parse_args()) as args:
        planned = plan(0.05 if args.quick else 1.0, args.seeds)
        if args.quick:
            planned = runs.one_of_each(planned, lambda run: run.part)
        cache = claims.Cache(args.out / "hard.json", args.again)
        progress = None
        if not args.draw:
            hard_data.file()
            progress = claims.measure(planned, cache, args.timeout, ps=None, logs={})
        found = results_of(planned, cache, any_code=args.draw)
        text = write_results(args.out, found, on_digits(), args.quick)
        runs.publish(args, "hard", text)
        if progress:
            progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
