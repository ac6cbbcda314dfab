"""Where more workers begin to pay: time to an accuracy, and the formula.

Parts, chosen by --only:

    cores   a residual network on the digits, whose gradient takes a core 0.1 s or more;
            each worker has one core: 1 worker against 2
    sleep   the perceptron of the examples; a sleep takes the place of a gradient, as an
            accelerator would: 1, 2, 4 and 8 workers
    point   2 workers, sleeps from 0.2 to 20 ms: on each side of where it begins to pay

Synchronous-SGD divides a mini-batch of 128 among its workers: an update is the same
whatever their number. HogWild's workers have a mini-batch of 64 or 32 each, and an
update for each. In both, all runs of a part use as many images.

    speedup over one process   S(N) = N t / (t + c(N))
    it pays if                 S(N) > 1, which is t > c(N) / (N − 1)

t are the seconds of a gradient of one worker's mini-batch, c(N) what else a round takes
with N workers: messages, updates, waiting. The time to an accuracy is that of worker 0,
from the moment at which all have warmed up, to the pull of parameters that reach 99 %
of the final accuracy of one process.

    python benchmarks/pays.py
    python benchmarks/pays.py --only point --seeds 5
    python benchmarks/pays.py --quick
"""

import collections
import functools
import importlib
import math
import sys
import types

import emulated
import figures
import numpy as np
import runs

PARTS = ("cores", "sleep", "point")
SEEDS = 3  # of each run
ALONE, ASYNC, SYNC = "Non-Distributed-Setup", "HogWild", "Synchronous-SGD"
SAID = {ALONE: "one process", ASYNC: "HogWild", SYNC: "Synchronous-SGD"}
COPIES = 50  # of the weights in a run, at equal numbers of images
SMOOTH = 3  # copies whose accuracies are averaged: one is off by some images
OF_FINAL = 0.99
SLEEPS = (0.0002, 0.001, 0.002, 0.005, 0.02)  # seconds of part point
PAIR = 2  # its workers
POINT = 4.0  # seconds of a run of it
IMAGES = 128 * 150  # of a run of the other parts: 13 times the digits
NETWORK = """

CHANNELS, BLOCKS, SIDE = 64, 2, 16


def shapes_of(data):
    classes = int(data.y_train.max()) + 1
    block = [(3, 3, CHANNELS, CHANNELS), (CHANNELS,)] * 2
    first = [(3, 3, 1, CHANNELS), (CHANNELS,)]
    last = [(SIDE * SIDE // 4 * CHANNELS, classes), (classes,)]
    return first + BLOCKS * block + last


def convolution(maps, weights, bias):
    return tf.nn.conv2d(maps, weights, 1, "SAME") + bias


def model(parameters, images, training=False):
    first, bias, *blocks, last, last_bias = parameters
    # Each pixel becomes four: more to compute with as many weights.
    images = tf.repeat(tf.repeat(tf.reshape(images, [-1, 8, 8, 1]), 2, 1), 2, 2)
    maps = tf.nn.relu(convolution(images, first, bias))
    for i in range(0, len(blocks), 4):
        w1, b1, w2, b2 = blocks[i : i + 4]
        inner = tf.nn.relu(convolution(maps, w1, b1))
        maps = tf.nn.relu(maps + convolution(inner, w2, b2))
    maps = tf.nn.avg_pool2d(maps, 2, 2, "VALID")
    return tf.reshape(maps, [-1, SIDE * SIDE // 4 * CHANNELS]) @ last + last_bias
"""
# A run: `batch` of a worker, `updates` of all, seconds of sleep, cores to stay on.
Run = collections.namedtuple("Run", "part folder workers batch updates rate sleep")


# --- The plan ---------------------------------------------------------------------


def training_runs(part, workers, whole, small, rates, seconds):
    """Returns the runs of a part to an accuracy, one process for each scheme first.

    `whole` is the mini-batch that Synchronous-SGD divides, `small` that of a worker of
    HogWild; `rates` are their learning rates, `seconds` those of sleep for `whole`
    images, less for fewer.
    """
    runs_ = []
    for folder, batch, rate in ((SYNC, whole, rates[0]), (ASYNC, small, rates[1])):

        def run(scheme, n, each, batch=batch, rate=rate):
            sleep = seconds * each / whole
            return Run(part, scheme, n, each, IMAGES // batch, rate, sleep)

        runs_.append(run(ALONE, 1, batch))
        for n in workers:
            each = batch // n if folder == SYNC else batch
            runs_.append(run(folder, n, each))
    return runs_


def plan(only, quick=False):
    """Returns the runs of the chosen parts, for one seed."""
    planned = []
    if "cores" in only:
        planned += training_runs("cores", (1, 2), 128, 64, (0.03, 0.015), 0.0)
    if "sleep" in only:
        planned += training_runs("sleep", (1, 2, 4, 8), 128, 32, (0.4, 0.1), 0.2)
    if "point" in only:
        for sleep in SLEEPS:
            count = math.ceil(POINT / (sleep + 0.001))
            for folder, n in ((ALONE, 1), (ASYNC, PAIR), (SYNC, PAIR)):
                updates = count * n if folder == ASYNC else count
                planned.append(Run("point", folder, n, 32, updates, 0.01, sleep))
    if quick:
        some = [run._replace(updates=run.updates // 10) for run in planned]
        # One process, and the first other run of each part.
        planned = runs.one_of_each(some, lambda run: (run.part, run.folder == ALONE))
    return planned


def key(run, seed):
    """Returns the name of a run in the JSON."""
    text = f"{run.part}, {run.folder}, {runs.workers(run.workers)} of {run.batch}"
    return text + f", {1000 * run.sleep:g} ms, seed {seed}"


def own_rounds(run):
    """Returns how many rounds each worker makes for the updates of the run."""
    return run.updates // run.workers if run.folder == ASYNC else run.updates


def warm_of(run):
    """Returns how many rounds a worker warms up.

    Calls of ten rounds follow on two of one. A call takes a second at most, so where a
    gradient is long it is calls of three.
    """
    return 6 if run.part == "cores" else 12


def cost(run):
    """Returns a guess of the seconds of a run."""
    gradient = run.sleep or 0.0023 * run.batch
    return 12 + 2 * run.workers + (gradient + 0.004) * own_rounds(run)


# --- The measurements -------------------------------------------------------------


@functools.cache
def tester(more, data="digits"):
    """Returns the function that gives test loss and accuracy of a vector of weights."""
    source = runs.REPO / ALONE
    sys.path.insert(0, str(source))
    tf = importlib.import_module("cluster.tensorflow_v1")
    problem = types.ModuleType("problem")
    code = compile((source / "problem.py").read_text() + more, "problem.py", "exec")
    exec(code, problem.__dict__)
    with runs.silence(), tf.Graph().as_default():
        learning = problem.build(problem.load(data), 1, 0)
        vector = tf.placeholder(tf.float32, learning.start.shape)
        tensors = learning.test(vector)
        session = tf.Session()

    def test(weights):
        with runs.silence():
            found = session.run(tensors, {vector: weights})
        return tuple(map(float, found))

    return test


def measure(run, seed, args):
    """Returns pace and round of a run, and its accuracies against time."""
    more = NETWORK if run.part == "cores" else ""
    warm, learns = warm_of(run), run.part != "point"
    every = max(1, own_rounds(run) // COPIES)
    updates = warm * (run.workers if run.folder == ASYNC else 1) + run.updates
    result = emulated.run(
        run.folder,
        ["--steps", updates, "--batch_size", run.batch]
        + ["--learning_rate", run.rate, "--seed", seed],
        None if run.folder == ALONE else 1,
        None if run.folder == ALONE else run.workers,
        args.timeout,
        dict(
            seconds=run.sleep,
            warm=warm,
            every=every if learns else 0,
            cores=2 if run.part == "cores" else 0,
        ),
        more=more,
    )
    times = result["times"]
    begun, found = min(each[1] for each in times.values()), []
    if learns:
        test = tester(more)
        found = [[when - begun, test(one)[1]] for when, one in result["weights"]]
    return {**pace(times), "curve": found, "test_accuracy": result["test_accuracy"]}


def pace(times):
    """Returns rounds/s of all workers, and the median seconds of a round.

    `times` is {worker: its times}. The first second is left out, or half of a short
    run, and the time in which only some workers make rounds.
    """
    begin = max(each[1] for each in times.values())
    end = min(each[-1] for each in times.values())
    begin += min(emulated.SETTLED, (end - begin) / 2)
    laps = []
    for each in times.values():
        inside = (each[2:] > begin) & (each[2:] <= end)
        laps.extend(np.diff(each[1:])[inside])
    rounds, lap = len(laps), float(np.median(laps))
    return {"rounds_per_second": rounds / (end - begin), "lap": lap}


def jobs_of(args):
    """Returns the measurements: all of one seed before those of the next."""
    return [
        runs.Job(
            key(run, seed),
            {run.part},
            cost(run),
            functools.partial(measure, run, seed, args),
        )
        for seed in range(args.seeds)
        for run in plan(args.only, args.quick)
    ]


# --- What follows from them -------------------------------------------------------


def speedup(n, gradient, rest):
    """Returns S(N) = N t / (t + c): how many times as fast as one process they are.

    `gradient` t and `rest` c in seconds.
    """
    return n * gradient / (gradient + rest)


def pays_from(n, rest):
    """Returns the seconds of a gradient above which N workers pay: c / (N − 1)."""
    return rest / (n - 1)


def rest_of(n, gradient, rounds_per_second):
    """Returns c(N), seconds of a round beside the gradient, from a measured rate."""
    return n / rounds_per_second - gradient


def crossing(gradients, speedups):
    """Returns the seconds of a gradient at which the measured speedup passes 1.

    Between two points as a straight line over the logarithm; None without a passage.
    """
    pairs = sorted(zip(gradients, speedups, strict=True))
    for (t, s), (u, v) in zip(pairs, pairs[1:], strict=False):
        if s < 1 <= v:
            return t * (u / t) ** ((1 - s) / (v - s))
    return None


def final(curve):
    """Returns the accuracy at the end of a curve: the mean of its last five points."""
    return float(np.mean([accuracy for _, accuracy in curve[-5:]]))


def seconds_to(curve, accuracy):
    """Returns when SMOOTH points in a row have this accuracy on average, or None.

    `curve` is a list of (seconds, accuracy).
    """
    for i in range(SMOOTH - 1, len(curve)):
        part = curve[i - SMOOTH + 1 : i + 1]
        if np.mean([value for _, value in part]) >= accuracy:
            return curve[i][0]
    return None


# --- Tables and figure ------------------------------------------------------------


def of_seeds(found, run):
    """Returns the results of a run, None for a seed without one."""
    return [found.get(key(run, seed)) for seed in range(seeds_in(found))]


def seeds_in(found):
    """Returns how many seeds there are in the results."""
    return 1 + max((int(name.rpartition(" ")[2]) for name in found), default=-1)


def values(results, get):
    """Returns `get(result)` of each seed, None where there is no result."""
    return [result and get(result) for result in results]


def reached(found, planned):
    """Returns {run: [seconds to the target for each seed]} of a part.

    The target is 99 % of the median final accuracy of one process with that scheme's
    mini-batch.
    """
    times, target = {}, None
    for run in planned:  # one process, then the cluster's runs that belong to it
        results = of_seeds(found, run)
        if run.folder == ALONE:
            ends = runs.middle(values(results, lambda r: final(r["curve"])))
            target = ends and OF_FINAL * ends
        if target is None:
            continue
        times[run] = values(results, lambda r, t=target: seconds_to(r["curve"], t))
    return times


def training_table(found, planned):
    """Returns the rows of a part to an accuracy."""
    rows, times = [], reached(found, planned)
    single = alone = None
    for run in planned:
        results = of_seeds(found, run)
        if not any(results):
            continue
        alone = run if run.folder == ALONE else alone
        single = run if run.workers == 1 else single  # at last the scheme's own
        laps = values(results, lambda r: 1000 * r["lap"])
        rate = values(results, lambda r, b=run.batch: b * r["rounds_per_second"])
        ends = values(results, lambda r: final(r["curve"]))
        mine = times.get(run, [])
        over = [
            runs.spread(runs.ratios(times.get(other, []), mine), 2)
            for other in (single, alone)
        ]
        share = runs.spread([e and 100 * e for e in ends], 1)
        rows.append(
            [f"{SAID[run.folder]}, {runs.workers(run.workers)} of {run.batch}"]
            + [runs.spread(laps), runs.spread(rate), share]
            + [runs.spread(mine, 1), *over]
        )
    head = ["workers and mini-batch of each", "ms of a round", "examples/s"]
    head += ["final accuracy, %", "s to the target"]
    return runs.table([*head, "one worker's over it", "one process's over it"], rows)


def points(found):
    """Returns {folder: {sleep: (seconds of a gradient, speedup, c)}}, medians."""
    out = {ASYNC: {}, SYNC: {}}
    for run in plan(["point"]):
        if run.folder == ALONE:
            single = of_seeds(found, run)
            t = runs.middle(values(single, lambda r: 1 / r["rounds_per_second"]))
            continue
        pairs = runs.ratios(
            values(of_seeds(found, run), lambda r: r["rounds_per_second"]),
            values(single, lambda r: r["rounds_per_second"]),
        )
        s = runs.middle(pairs)
        if s is not None:
            out[run.folder][run.sleep] = t, s, rest_of(PAIR, t, s / t)
    return out


def point_table(found):
    """Returns the speedups of two workers, measured and by the formula."""
    text = ""
    for folder, row in points(found).items():
        if not row:
            continue
        # c of the longest gradient: there the cores have the least to do.
        rest, lines = row[max(row)][2], []
        for sleep, (t, s, c) in row.items():
            lines.append(
                [f"{1000 * sleep:g}", f"{1000 * t:.2f}", f"{1000 * c:.2f}", f"{s:.2f}"]
                + [f"{speedup(PAIR, t, rest):.2f}"]
            )
        head = [f"{folder}: sleep, ms", "t, ms", "c(2), ms", "S(2) measured"]
        passed = crossing(
            [t for t, *_ in row.values()], [s for _, s, _ in row.values()]
        )
        met = f"{1000 * passed:.2f} ms" if passed else "outside of these sleeps"
        text += runs.table([*head, f"2 t / (t + {1000 * rest:.2f} ms)"], lines, 0)
        text += (
            f"\nIt pays from t = c(2) / (2 − 1) = {1000 * pays_from(PAIR, rest):.2f}"
        )
        text += f" ms by the formula; measured: {met}.\n\n"
    return text.rstrip("\n") + "\n"


TITLES = {
    "cores": "One core for each worker",
    "sleep": "A sleep in place of a gradient",
    "point": "Two workers over one process, on each side of the point",
}


def markdown(found, only):
    """Returns the tables of the parts that were measured."""
    count = seeds_in(found)
    text = "Of one seed.\n"
    if count != 1:
        text = f"Median of {count} seeds, smallest and largest in brackets.\n"
    for part in PARTS:
        planned = plan([part])
        if part not in only or not any(k.startswith(part) for k in found):
            continue
        text += f"\n### {TITLES[part]}\n\n"
        text += (
            point_table(found) if part == "point" else training_table(found, planned)
        )
    text += "\n### The speedup of N workers\n\n"
    return text + figures.shown("The speedup of N workers over one process", NAME)


NAME = "pays"


def draw(found, path):
    """Draws the speedup against the seconds of a gradient, and against N."""
    plt = figures.pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
    looks = {ASYNC: (figures.VERMILION, "o"), SYNC: (figures.BLUE, "s")}
    for folder, row in points(found).items():
        if not row:
            continue
        color, mark = looks[folder]
        rest = row[max(row)][2]
        at = np.geomspace(1e-4, 0.05, 100)
        left.plot(1000 * at, speedup(PAIR, at, rest), ":", color=color)
        t, s, _ = zip(*row.values(), strict=True)
        left.plot(1000 * np.array(t), s, mark, color=color, label=SAID[folder])
    left.axhline(1, color=figures.GREY, lw=0.8)
    left.axhline(PAIR, color=figures.GREY, lw=0.8, ls="--")
    figures.log_ticks(left, (0.1, 1, 10))
    left.set_xlabel("ms of a gradient t; dotted: 2 t / (t + c)")
    left.set_ylabel("examples/s of 2 workers over one process")
    left.set_ylim(0)
    counts = (1, 2, 4, 8)
    for part, fill in (("cores", "none"), ("sleep", None)):
        planned = plan([part])
        times, alone = reached(found, planned), None
        for run in planned:
            alone = run if run.folder == ALONE else alone
            over = runs.middle(runs.ratios(times.get(alone, []), times.get(run, [])))
            if run.folder != ALONE and over:
                color, mark = looks[run.folder]
                look = dict(color=color, mfc=fill or color, ls="none", ms=8)
                right.plot(run.workers, over, mark, **look)
    right.plot(counts, counts, color=figures.GREY, ls="--", lw=0.8)
    right.plot([], [], "o", color=figures.DARK, ls="none", label="sleep")
    right.plot([], [], "o", color=figures.DARK, mfc="none", ls="none", label="own core")
    right.set_xscale("log", base=2)
    right.set_yscale("log", base=2)
    right.set_xticks(counts, counts)
    right.set_yticks([0.5, *counts], [0.5, *counts])
    right.set_xlabel("workers N")
    right.set_ylabel("one process's time to the accuracy over theirs")
    right.legend(frameon=False)
    if left.get_legend_handles_labels()[0]:
        left.legend(frameon=False)
    figures.save(figure, path)


def main():
    parser = runs.measuring_parser(__doc__, PARTS, rounds=None)
    parser.add_argument(
        "--seeds", type=runs.positive_int, help=f"of all runs ({SEEDS})"
    )
    with runs.finished(parser.parse_args()) as args:
        args.seeds = args.seeds or (1 if args.quick else SEEDS)
        code = emulated.code({ALONE, ASYNC, SYNC})
        rounds, progress = runs.in_rounds(jobs_of(args), args, NAME, code)
        found = rounds[0] if rounds else {}
        draw(found, args.out / NAME)
        runs.publish(args, NAME, markdown(found, args.only))
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
