"""Which scheme for which cluster: seconds to a test loss, on MNIST-1D.

Eleven schemes train on four clusters, each of four workers, with one ps where the
scheme has one:

    fast       all are equally fast, cables of 1 Gbit/s
    straggler  the same, but one worker's gradients take four times as long
    cables     all are equally fast, cables of 100 Mbit/s
    sites      two sites with two workers each, and the ps at the first: 100 ms there
               and back, no limit on the bytes

Each task has a host of its own (star.py); those of a site share one. The model is the
convolutional network of problems/convolution.py. It has 5,210 parameters, and the
center variable has 100,000 numbers, so that bytes count: the model does not use the
others (gradients.py). A gradient sleeps 40 ms, so that two cores can be four machines.

The clock starts when all workers are ready. It stops at the copy of the weights that
brings the mean loss of three copies to the target or below it. A copy is what worker 0
has pulled, or, in schemes without a ps, its own weights after a round; in Gossip-SGD
no two workers have the same. A run ends there, or at the limit.

Writes clusters.svg and clusters.json. Needs Linux and root.

    sudo .venv/bin/python benchmarks/clusters.py
    sudo .venv/bin/python benchmarks/clusters.py --seeds 1 --only fast,sites
    sudo .venv/bin/python benchmarks/clusters.py --quick
"""

import collections
import contextlib
import functools
import json
import math
import statistics
import time

import emulated
import figures
import hard
import hard_data
import numpy as np
import pays
import predictions
import runs
import star

WORKERS, SIZE, ELEMENTS = 4, 5210, 100_000  # SIZE: parameters of the network
SLEEP, SLOWER = 0.04, 4  # seconds of a gradient, and of the straggler's: times as long
TARGET = 0.55  # of the test loss; the accuracy is then near 80 %
LIMIT = 120  # seconds from the common start
STEPS = 10**6  # more than are made until then
SEEDS, START = 3, 20  # START: seconds until all workers are ready, a guess
CURVE = 40  # points of a curve that are kept, at most twice as many

Scheme = collections.namedtuple("Scheme", "folder flags window ps", defaults=[1, 1])
# 1 % of the network's parameters; the other numbers have no gradient.
KEEP = 0.01 * SIZE / ELEMENTS
# Learning rates as in hard.py; where the mean of four gradients is one step, as there
# in Local-SGD.
SCHEMES = {
    "HogWild": Scheme("HogWild", ["--learning_rate", 0.1]),
    "Synchronous-SGD": Scheme("Synchronous-SGD", ["--learning_rate", 0.3]),
    "Synchronous-SGD, a backup worker": Scheme(
        "Synchronous-SGD",
        ["--learning_rate", 0.3, "--replicas_to_aggregate", WORKERS - 1],
    ),
    "Stale-Synchronous-Parallel, s = 4": Scheme(
        "Stale-Synchronous-Parallel", ["--learning_rate", 0.1, "--staleness", 4]
    ),
    "Gradient-Compression, top 1 %": Scheme(
        "Gradient-Compression",
        ["--learning_rate", 0.1, "--method", "topk", "--keep", KEEP],
    ),
    "DOWNPOUR-Easy, T = 16": Scheme(
        "DOWNPOUR-Easy",
        ["--learning_rate", 0.1, "--server_learning_rate", 0.05],
        16,
    ),
    "AEASGD, T = 16": Scheme("AEASGD", ["--learning_rate", 0.3, "--beta", 0.9], 16),
    "Ring-All-Reduce": Scheme("Ring-All-Reduce", ["--learning_rate", 0.3], 1, 0),
    "Local-SGD, T = 8": Scheme("Local-SGD", ["--learning_rate", 0.3], 8, 0),
    "DiLoCo, T = 25": Scheme("DiLoCo", ["--learning_rate", 0.003], 25, 0),
    "Gossip-SGD": Scheme("Gossip-SGD", ["--learning_rate", 0.3], 1, 0),
}
# `bits` a second of a cable, `trip` seconds there and back, how many times as long the
# last worker's gradients take, and a guess of the seconds to the target.
Cluster = collections.namedtuple("Cluster", "title bits trip slower guess")
CLUSTERS = {
    "fast": Cluster("fast and alike", 1e9, 0.0, 1, 20),
    "straggler": Cluster("one straggler", 1e9, 0.0, SLOWER, 45),
    "cables": Cluster("100 Mbit/s", 1e8, 0.0, 1, 45),
    "sites": Cluster("two sites, 100 ms", None, 0.1, 1, 50),
}
# For the end of AEASGD's problem.py: its gradients are at weights of the worker's own,
# so what worker 0 pulls is copied where it arrives.
PULLED = f"""

import json
import os
import sys
import time

from cluster import rounds


def copied(center, after=(), plain=rounds.pull):
    pulled = plain(center, after)

    def write(weights):
        folder = json.loads(os.environ["EMULATED"])["folder"]
        np.save(f"{{folder}}/weights-{{time.monotonic():.6f}}", weights)
        return np.float32(0)

    done = tf.py_func(write, [pulled[:{SIZE}]], tf.float32)
    with tf.control_dependencies([done]):
        return tf.identity(pulled)


if sys.argv[sys.argv.index("--task_index") + 1] == "0":
    rounds.pull = copied
"""


# --- A run ------------------------------------------------------------------------


def model_of(folder):
    """Returns the Python that is put at the end of problem.py of an example."""
    network = (hard.MODELS / "convolution.py").read_text()
    return "\n\n" + network + (PULLED if folder == "AEASGD" else "")


def names_of(scheme):
    """Returns the names of the tasks of a Scheme."""
    return ["ps0"] * scheme.ps + [f"worker{k}" for k in range(WORKERS)]


def hosts_of(scheme, cluster):
    """Returns (hosts, {task: host}) of a Scheme in a Cluster."""
    names = names_of(scheme)
    if not cluster.trip:
        return names, {name: name for name in names}
    far = {f"worker{k}" for k in range(WORKERS // 2, WORKERS)}
    return ["here", "there"], {n: "there" if n in far else "here" for n in names}


def options_of(scheme, cluster, worker, folder):
    """Returns what gradients.py is told in a worker."""
    # A whole round, so that copies are of its begin. Without windows it is more: calls
    # of one, of three and of ten rounds, whose graphs are prepared then.
    warm = scheme.window if scheme.window > 1 else 20
    # Three make a step without this one. Were they ready before it, it would wait for
    # steps that are not made.
    if "--replicas_to_aggregate" in scheme.flags and worker == WORKERS - 1:
        warm = 1
    slow = cluster.slower if worker == WORKERS - 1 else 1
    return {
        **emulated.OPTIONS,
        "folder": str(folder),
        "warm": warm,
        "seconds": SLEEP * slow,
        "elements": ELEMENTS,
        "every": 0 if scheme.folder == "AEASGD" else scheme.window,
    }


def flags_of(scheme, seed):
    """Returns the flags of a Scheme's script."""
    flags = ["--data", hard_data.FILE, "--steps", STEPS, "--seed", seed]
    flags += ["--save_seconds", 3600, *scheme.flags]
    return flags + (["--window", scheme.window] if scheme.window > 1 else [])


class Curve:
    """Test losses against the time since the common start, while a run goes on."""

    def __init__(self, notes, test, limit=LIMIT):
        """`notes` is the folder of gradients.py, `test(weights)` (loss, accuracy)."""
        self.notes, self.test, self.limit = notes, test, limit
        self.began, self.points = None, []  # (seconds, loss, accuracy)

    def times(self):
        """Returns the times of the gradients of each worker that has begun."""
        found = map(np.fromfile, self.notes.glob("times-*"))
        return [each for each in found if len(each) > 1]

    def over(self):
        """Tests the newest copy; says whether the target or the limit is reached."""
        if self.began is None:
            times = self.times()
            if len(times) < WORKERS:
                return False
            self.began = float(min(each[1] for each in times))
        files = sorted(
            (float(path.stem.removeprefix("weights-")) - self.began, path)
            for path in self.notes.glob("weights-*.npy")
        )
        whole = files[:-1]  # the newest may still be written
        for seconds, path in whole[-1:]:
            if seconds >= 0:
                self.points.append((seconds, *self.test(np.load(path))))
        for _, path in whole:
            path.unlink()
        return bool(self.reached()) or time.monotonic() - self.began > self.limit

    def reached(self):
        """Returns the seconds to the target, None if it is not reached."""
        # pays.py waits for an accuracy: more is better.
        losses = [(seconds, -loss) for seconds, loss, _ in self.points]
        return pays.seconds_to(losses, -TARGET)

    def result(self):
        """Returns what is kept of a run."""
        seconds, last = self.reached(), self.points[-pays.SMOOTH :]
        end = self.began + (seconds or self.limit)
        made = sum(int((each[1:] <= end).sum()) for each in self.times())
        some = self.points[:: max(1, len(self.points) // CURVE)]
        return {
            "seconds": seconds,
            "accuracy": float(np.mean([point[2] for point in last])),
            "gradients": made,
            "rate": made / (seconds or self.limit),
            "curve": [[round(x, 4) for x in point[:2]] for point in some],
        }


def measure(label, name, seed, args):
    """Makes a run of a scheme in a cluster; returns its result."""
    scheme, cluster = SCHEMES[label], CLUSTERS[name]
    hosts, where = hosts_of(scheme, cluster)
    test = pays.tester(model_of(""), str(hard_data.FILE))
    with contextlib.ExitStack() as stack:
        more = model_of(scheme.folder)
        copy = stack.enter_context(emulated.prepared(scheme.folder, more))
        notes = copy.parent / "notes"
        notes.mkdir()
        made = stack.enter_context(star.Star(hosts, cluster.bits, cluster.trip / 2))
        names, variables = names_of(scheme), {}
        for task in names:
            worker = int(task[-1]) if task.startswith("worker") else None
            options = options_of(scheme, cluster, worker, notes)
            variables[task] = {"EMULATED": json.dumps(options)}
        script = copy / runs.registry.script_of(scheme.folder)
        flags = [*flags_of(scheme, seed), "--logdir", copy.parent / "logdir"]
        tasks = predictions.begin(stack, made, script, names, flags, where, variables)
        runs.Lines(tasks["worker0"][0].stdout)  # reads them, so that the pipe is empty
        curve = Curve(notes, test, args.limit)
        key = key_of(label, name, seed)
        try:
            predictions.watch(tasks, args.timeout + args.limit, key, curve.over)
        except runs.Unfinished as error:
            if "training diverged" in str(error):
                return {"diverged": True}
            raise
        for task, _ in tasks.values():
            task.kill()  # nothing of it is needed any more
        if len(curve.points) < pays.SMOOTH:
            raise runs.Unfinished(f"{key}: too few copies of the weights")
        return curve.result()


# --- The plan ---------------------------------------------------------------------


def key_of(label, name, seed):
    """Returns the name of a run in the JSON."""
    return f"{label}, {CLUSTERS[name].title}, seed {seed}"


def plan(only=tuple(CLUSTERS), seeds=1, quick=False):
    """Returns the runs, (label, cluster, seed): all of one seed before the next."""
    cells = [(label, name) for name in only for label in SCHEMES]
    if quick:
        cells = [("HogWild", "fast")]
    return [(*cell, seed) for seed in range(seeds) for cell in cells]


def jobs_of(args):
    """Returns the measurements."""
    return [
        runs.Job(
            key_of(*one),
            {one[1]},
            START + min(args.limit, CLUSTERS[one[1]].guess),
            functools.partial(measure, *one, args),
        )
        for one in plan(args.only, args.seeds, args.quick)
    ]


def code(limit):
    """Returns what results depend on: code, the network, and the settings here."""
    settings = {name: list(map(str, one)) for name, one in SCHEMES.items()}
    settings |= {name: list(map(str, one)) for name, one in CLUSTERS.items()}
    numbers = [ELEMENTS, SLEEP, TARGET, limit]
    network = (hard.MODELS / "convolution.py").read_text()
    folders = {scheme.folder for scheme in SCHEMES.values()}
    return {
        **emulated.code(folders),
        "network": runs.bare(network),
        "settings": [settings, numbers],
    }


# --- Tables and figure ------------------------------------------------------------


def of_seeds(found, label, name):
    """Returns the results of a cell, of all its seeds."""
    some = (key_of(label, name, seed) for seed in range(pays.seeds_in(found)))
    return [found[key] for key in some if key in found]


def seconds_of(results):
    """Returns the median of the seconds to the target, infinity above the limit.

    None without results.
    """
    times = [result.get("seconds") or math.inf for result in results]
    return statistics.median(times) if times else None


def said(results, limit=LIMIT):
    """Returns what a cell says: seconds, or how far the runs came."""
    seconds = seconds_of(results)
    if seconds is None:
        return "-"
    if seconds < math.inf:
        return f"{seconds:.0f}"
    if any("diverged" in result for result in results):
        return "diverged"
    return f"> {limit} ({100 * runs.middle(accuracies(results)):.0f} %)"


def accuracies(results):
    """Returns the accuracies at the end of the runs that did not reach the target."""
    return [
        result["accuracy"]
        for result in results
        if "accuracy" in result and not result["seconds"]
    ]


def fastest(found):
    """Returns {cluster: the scheme that is first at the target, None without one}."""
    first = {}
    for name in CLUSTERS:
        times = {
            label: seconds
            for label in SCHEMES
            if (seconds := seconds_of(of_seeds(found, label, name))) is not None
            and seconds < math.inf
        }
        first[name] = min(times, key=times.get, default=None)
    return first


def spread(results, limit=LIMIT):
    """Returns the seconds of the fastest and the slowest run, " (17 to 19)", or ""."""
    times = [result.get("seconds") or math.inf for result in results]
    if len(times) < 2 or seconds_of(results) == math.inf:
        return ""
    last = f"{max(times):.0f}" if max(times) < math.inf else f"> {limit}"
    if any("diverged" in result for result in results):
        last = "diverged"
    return f" ({min(times):.0f} to {last})"


def missed(found, limit=LIMIT):
    """Says whether some cell has an accuracy in place of its seconds."""
    return any("%" in said(of_seeds(found, *cell), limit) for cell in cells())


def markdown(found, limit=LIMIT):
    """Returns the seconds, the figure, and the gradients until then."""
    count, first = pays.seeds_in(found), fastest(found)
    times, made = [], []
    for label in SCHEMES:
        row = []
        for name in CLUSTERS:
            results = of_seeds(found, label, name)
            text = said(results, limit) + spread(results, limit)
            row.append(f"**{text}**" if first[name] == label else text)
        times.append([label, *row])
        row = []
        for name in CLUSTERS:
            results = [r for r in of_seeds(found, label, name) if "rate" in r]
            gradients, rate = (
                runs.middle([result[field] for result in results])
                for field in ("gradients", "rate")
            )
            row.append(f"{gradients:,.0f} ({rate:.0f}/s)" if results else "-")
        made.append([label, *row])
    header = ["", *(cluster.title for cluster in CLUSTERS.values())]
    seeds = "One seed."
    if count > 1:
        seeds = f"Median of {count} seeds, the fastest and the slowest in brackets."
    text = f"### Seconds to a test loss of {TARGET}\n\n"
    text += figures.shown("seconds to the loss, scheme by cluster", "clusters")
    text += "\n" + runs.table(header, times)
    text += f"\n{seeds} Bold: the first in its cluster.\n"
    if missed(found, limit):
        text += f"Where most runs did not reach the loss in {limit} s, their accuracy "
        text += "is in brackets.\n"
    text += "\n### Gradients until then, of all workers\n\n"
    return text + runs.table(header, made)


def draw(found, out, limit=LIMIT):
    """Draws the heat map: the colour and the text of a cell are its seconds."""
    plt = figures.pyplot()
    colors = plt.get_cmap("cividis_r")
    size = 9, 1.2 + 0.42 * len(SCHEMES)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    first = fastest(found)
    times = [seconds_of(of_seeds(found, *cell)) for cell in cells()]
    low = min([seconds for seconds in times if seconds is not None], default=1)
    for (label, name), seconds in zip(cells(), times, strict=True):
        x, y = list(CLUSTERS).index(name), list(SCHEMES).index(label)
        color = "white"
        if seconds is not None:
            # Logarithmic, from the fastest of all to the limit.
            share = math.log(min(seconds, limit) / min(low, limit))
            color = colors(share / (math.log(limit / min(low, limit)) or 1))
        best = first[name] == label
        box = plt.Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, facecolor=color)
        axes.add_patch(box)
        text = said(of_seeds(found, label, name), limit)
        text += " s" if text.isdigit() else ""
        dark = seconds is not None and np.dot(color[:3], (0.3, 0.59, 0.11)) < 0.45
        axes.text(
            x,
            y,
            f"{text}, the first" if best else text,
            ha="center",
            va="center",
            color="white" if dark else "black",
            weight="bold" if best else "normal",
        )
    axes.set_xlim(-0.5, len(CLUSTERS) - 0.5)
    axes.set_ylim(len(SCHEMES) - 0.5, -0.5)
    axes.set_xticks(range(len(CLUSTERS)), [one.title for one in CLUSTERS.values()])
    axes.set_yticks(range(len(SCHEMES)), list(SCHEMES))
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    label = f"seconds to a test loss of {TARGET}"
    if missed(found, limit):
        label += f"; in brackets the accuracy after {limit} s"
    axes.set_xlabel(label)
    figures.save(figure, out / "clusters")


def cells():
    """Returns the cells of the heat map, (label, cluster)."""
    return [(label, name) for label in SCHEMES for name in CLUSTERS]


def main():
    parser = runs.measuring_parser(__doc__, list(CLUSTERS), rounds=None)
    parser.add_argument("--seeds", type=runs.positive_int, help=f"of a cell ({SEEDS})")
    with runs.finished(parser.parse_args()) as args:
        star.check()
        hard_data.file()
        args.seeds = args.seeds or (1 if args.quick else SEEDS)
        args.limit = 5 if args.quick else LIMIT
        settings = code(args.limit)
        rounds, progress = runs.in_rounds(jobs_of(args), args, "clusters", settings)
        found = rounds[0] if rounds else {}
        text = markdown(found, args.limit)
        draw(found, args.out, args.limit)
        runs.publish(args, "clusters", text, root=True)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
