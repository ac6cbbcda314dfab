"""Training without a ps: rates beside a ps and one process, and the papers' claims.

    rate     Ring-All-Reduce, MultiWorkerMirroredStrategy, Horovod, Synchronous-SGD,
             In-Graph-Replication and one process with the whole batch, in turn: steps/s
             of the digits' perceptron
    large    the same with a center variable of 100 MB: bytes/s too
    local    Local-SGD: accuracy against T, with shards alike and sorted by label
    outer    DiLoCo: test loss with and without its outer optimizer
    pool     DiLoCo: test loss when workers come and go between its rounds
    bytes    DiLoCo and Ring-All-Reduce: accuracy against what was sent
    slow     Gossip-SGD, Ring-All-Reduce and HogWild: examples/s with one straggler
    batch    Large-Minibatch: accuracy after as many epochs at k times the batch, and
             test loss by epoch; the rate fixed, times k, and with a warm-up

Writes a figure for each part but rate and large, peers.json with the rounds of these,
and peers-runs.json, in which finished runs are kept.

    python benchmarks/peers.py                       everything
    python benchmarks/peers.py --only rate,large
    python benchmarks/peers.py --quick               a test of the script

Horovod is measured if its environment is made (`bash Horovod/run.sh`).
"""

import contextlib
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import claims
import figures
import large
import runs
from claims import Run

RATES = ("rate", "large")
CLAIMS = ("local", "outer", "pool", "bytes", "batch", "slow")
RING, MIRRORED, LOCAL = "Ring-All-Reduce", "MultiWorkerMirrored", "Local-SGD"
LARGE = "Large-Minibatch"
SYNC, IN_GRAPH, HOROVOD = "Synchronous-SGD", "In-Graph-Replication", "Horovod"
STRATEGIES = "TensorFlow-2"  # the folder that MIRRORED is in
OF_HOROVOD = {  # and what is in its environment
    HOROVOD: {},
    "Horovod, without fusion": {"HOROVOD_FUSION_THRESHOLD": 0},
    "Horovod, a cycle of 0.1 ms": {"HOROVOD_CYCLE_TIME": 0.1},
}
LABELS = (RING, MIRRORED, *OF_HOROVOD, SYNC, IN_GRAPH, "one process")
VENV = pathlib.Path(os.environ.get("HOROVOD_VENV", runs.REPO / HOROVOD / ".venv"))
WORKERS = 2  # of the rates; the claims have 4
HIDDEN = 333_333  # units, for 25,000,000 numbers: 100 MB
ELEMENTS = 75 * HIDDEN + 10
DONE = re.compile(r"after \d+ steps in [\d.]+ s \((\d+(?:\.\d+)?) steps/s\)")

STEPS = 1024  # local steps of each worker, of part local
WINDOWS = (1, 8, 32, 128)
SIMULATED = {"shards alike": (0.968, 0.967, 0.961, 0.965)}
SIMULATED["shards by label"] = (0.962, 0.956, 0.903, 0.821)
INNER = 500  # local steps of each worker, of part outer
OUTER_WINDOWS = (25, 50, 100)
# η_o and μ; loss and accuracy of the same in a simulation, by window.
OUTER = {
    "averaging, η_o = 1, μ = 0": ((1, 0), (0.176, 0.175, 0.175)),
    "Nesterov, η_o = 0.7, μ = 0.9": ((0.7, 0.9), (0.047, 0.076, 0.094)),
    "Nesterov, η_o = 0.7, μ = 0.5": ((0.7, 0.5), (0.126, 0.128, 0.132)),
}
# Workers of part pool, one number after the other, each for as many rounds.
POOLS = {
    "one": (1,),
    "four": (4,),
    "four, begun four times": (4, 4, 4, 4),
    "more and more": (1, 2, 3, 4),
    "fewer and fewer": (4, 3, 2, 1),
    "four, then one": (4, 4, 1, 1),
    "one, then four": (1, 1, 4, 4),
}
POOL_WINDOW = 25
LONG = 5000  # local steps of each worker, of part bytes
EACH = 500  # mini-batches of each worker on average, of part slow
SLOW = 0.1  # seconds that the straggler's gradients take longer; the others' take 0.01
AMONG = {  # who waits for whom: label, folder, flags, updates for a batch of each
    RING: (RING, [], 1),
    "HogWild": ("HogWild", [], 4),
    "Gossip-SGD, ring": ("Gossip-SGD", ["--graph", "ring"], 4),
    "Gossip-SGD, complete": ("Gossip-SGD", ["--graph", "complete"], 4),
}

# Of part batch: k, the examples of a batch for k = 1, rows of the training set.
TIMES, EXAMPLES, ROWS, EPOCHS, WARM, SEEDS = (1, 2, 4, 8, 16, 32), 32, 1437, 30, 5, 3
# Flags by label; accuracies in a simulation of one process, the middle of three seeds.
FIXED, LINEAR, WARMED = "rate fixed", "rate × k", f"rate × k, warm-up of {WARM} epochs"
SCALED = {
    FIXED: (0.972, 0.967, 0.967, 0.942, 0.911, 0.817),
    LINEAR: (0.972, 0.969, 0.972, 0.975, 0.964, 0.097),
    WARMED: (0.972, 0.969, 0.972, 0.975, 0.972, 0.092),
}

# Worker k has the k-th part of the rows, sorted by label.
LOAD = "    me, workers = args.task_index, len(args.worker_hosts)\n"
BY_LABEL = (
    LOAD,
    LOAD + "    order = data.y_train.argsort(kind='stable')\n"
    "    order = order[: len(order) // workers * workers]\n"
    "    order = order.reshape(workers, -1).T.ravel()\n"
    "    x, y = data.x_train[order], data.y_train[order]\n"
    "    data = data._replace(x_train=x, y_train=y)\n",
)


# --- Rates ---------------------------------------------------------------------


@contextlib.contextmanager
def model_of(part):
    """Gives what `runs.variant` adds to an example for a part's model, and its flags.

    Part large has ELEMENTS parameters and a few rows of data, so that nearly nothing is
    computed.
    """
    if part == "rate":
        yield None, []
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        where = pathlib.Path(folder)
        units = where / "units.py"
        units.write_text(f"HIDDEN = {HIDDEN}\n")
        flags = ["--data", large.rows_of(where), "--learning_rate", 1e-6]
        yield {"problem.py": units}, [*flags, "--save_seconds", 3600]


def mirrored(folder, flags, timeout):
    """Runs multi_worker_mirrored.py of a folder on two workers; returns its rate."""
    hosts = ",".join(f"localhost:{port}" for port in runs.free_ports(WORKERS))
    script = folder / "multi_worker_mirrored.py"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with contextlib.ExitStack() as stack:
        logdir = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
        env = runs.environment(CUDA_VISIBLE_DEVICES="", PYTHONDONTWRITEBYTECODE=1)
        tasks = []
        for k in range(WORKERS):
            who = ["--task_index", k, "--worker_hosts", hosts, "--logdir", logdir]
            command = [runs.PYTHON, script, *who, *flags]
            tasks.append(stack.enter_context(runs.process(command, env=env, **pipes)))
        try:
            texts = [task.communicate(timeout=timeout)[0] for task in tasks]
        except subprocess.TimeoutExpired:
            raise runs.too_slow(script.name, timeout) from None
    found = DONE.search(texts[0])
    if any(task.returncode for task in tasks) or not found:
        raise runs.Unfinished(f"{script.name}:\n{texts[0][-2000:]}")
    return {"steps_per_second": float(found[1])}


def rate_jobs(args):
    """Returns the jobs of the parts rate and large, `args.scale` of their steps."""

    def example(part, folder, batch, ps=None, workers=None, **variables):
        def make():
            flags = ["--batch_size", batch, "--steps", steps_of(part, args.scale)]
            options = dict(ps=ps, workers=workers, timeout=args.timeout)
            options["variables"] = variables
            with model_of(part) as (more, common):
                flags = [*common, *flags]
                return kept(runs.run_example(folder, flags, more=more, **options))

        return make

    def strategy(part, batch):
        def make():
            flags = ["--batch_size", batch, "--steps", steps_of(part, args.scale)]
            with model_of(part) as (more, common):
                with runs.variant(runs.REPO / STRATEGIES, None, more) as folder:
                    return mirrored(folder, [*common, *flags], args.timeout)

        return make

    jobs = []
    for part, batch in (("rate", 32), ("large", 1)):
        makers = {
            RING: example(part, RING, batch, workers=WORKERS),
            MIRRORED: strategy(part, batch),
            SYNC: example(part, SYNC, batch, 1, WORKERS),
            IN_GRAPH: example(part, IN_GRAPH, batch, 1, WORKERS),
            "one process": example(part, "Non-Distributed-Setup", batch * WORKERS),
        }
        if VENV.joinpath("stamp").exists():
            for label, knobs in OF_HOROVOD.items():
                knobs = {"HOROVOD_VENV": VENV, **knobs}
                makers[label] = example(part, HOROVOD, batch, None, WORKERS, **knobs)
        for label in filter(makers.get, LABELS):
            jobs.append(runs.Job(f"{part}: {label}", (part,), 25, makers[label]))
    return [job for job in jobs if set(job.parts) & set(args.only)]


def steps_of(part, scale):
    """Returns the updates of a run of a part."""
    return max(20, int({"rate": 4000, "large": 60}[part] * scale))


def kept(result):
    """Returns what is kept of a run's result."""
    return {name: result[name] for name in ("steps_per_second", "test_accuracy")}


def rate_text(rounds, part):
    """Returns the markdown of part rate or large."""
    ring = runs.series(rounds, f"{part}: {RING}", "steps_per_second")
    rows = []
    for label in LABELS:
        rates = runs.series(rounds, f"{part}: {label}", "steps_per_second")
        row = [label, runs.spread(rates, 0 if part == "rate" else 2)]
        if part == "large":
            # The vector once to and once from each worker, in both ways of doing it.
            sent = [r and 8 * ELEMENTS * r / 1e9 for r in rates]
            row.append("-" if label == "one process" else runs.spread(sent, 2))
        rows.append([*row, runs.spread(runs.ratios(ring, rates), 2)])
    more = ["GB/s in and out of a worker"] if part == "large" else []
    header = ["", "steps/s", *more, f"{RING} over it"]
    what = f"P = {ELEMENTS:,}, batch 1" if part == "large" else "P = 4,810, batch 32"
    title = "A center variable of 100 MB" if part == "large" else "The perceptron"
    text = f"### {title}, {WORKERS} workers\n\n" + runs.count_of(rounds) + "\n"
    text += runs.table(header, rows)
    return text + f"\n{what} a worker; one process has the batches of all workers.\n"


# --- Claims --------------------------------------------------------------------


def local_runs(scale):
    """Returns the runs of part local."""
    found = []
    for label, change in (("shards alike", None), ("shards by label", BY_LABEL)):
        for window in WINDOWS:
            steps = max(1, int(STEPS * scale) // window)
            flags = ["--window", window, "--steps", steps, "--learning_rate", 0.2]
            found.append(Run("local", label, window, LOCAL, flags, 4, 25, change))
    return found


def outer_runs(scale):
    """Returns the runs of part outer."""
    found = []
    for label, ((rate, momentum), _) in OUTER.items():
        for window in OUTER_WINDOWS:
            flags = [
                "--window",
                window,
                "--steps",
                max(1, int(INNER * scale) // window),
            ]
            flags += ["--outer_learning_rate", rate, "--momentum", momentum]
            found.append(Run("outer", label, window, "DiLoCo", flags, 4, 20))
    return found


def pool_runs(scale):
    """Returns the runs of part pool."""
    rounds = max(4, int(INNER * scale) // POOL_WINDOW)
    flags = ["--window", POOL_WINDOW, "--steps", rounds]
    return [
        Run("pool", label, 0, "DiLoCo", flags, workers, 15 * len(workers))
        for label, workers in POOLS.items()
    ]


def bytes_runs(scale):
    """Returns the runs of part bytes: local steps, and how often they are exchanged."""
    long = max(500, int(LONG * scale))
    found = [Run("bytes", f"{RING}, every step", 1, RING, ["--steps", long], 2, 25)]
    for window, fragments in ((100, 1), (500, 1), (500, 5)):
        flags = ["--window", window, "--steps", long * fragments // window]
        flags += ["--fragments", fragments]
        name = f"DiLoCo, T = {window}" + f", F = {fragments}" * (fragments > 1)
        found.append(Run("bytes", name, window, "DiLoCo", flags, 2, 25))
    return found


def slow_runs(scale):
    """Returns the runs of part slow: as many examples each, all workers alike first."""
    found, each = [], max(20, int(EACH * scale))
    for label, (folder, flags, updates) in AMONG.items():
        for last in (0.01, SLOW):
            slow = f"0.01,0.01,0.01,{last}"
            more = [*flags, "--steps", updates * each, "--slow_workers", slow]
            found.append(Run("slow", label, last, folder, more, 4, 60))
    return found


def batch_runs(scale):
    """Returns the runs of part batch: equally many examples, in larger batches.

    Up to four workers have a batch of one process each, then larger ones.
    """
    found = []
    for label in SCALED:
        for k in TIMES:
            workers = min(k, 4)
            epochs, steps = ROWS / (k * EXAMPLES), int(EPOCHS * scale * ROWS)
            flags = ["--steps", max(1, steps // (k * EXAMPLES))]
            flags += ["--batch_size", EXAMPLES * k // workers]
            flags += ["--reference_batch", EXAMPLES]
            flags += ["--scaling", "none" if label == FIXED else "linear"]
            warmup = round(WARM * epochs) if label == WARMED else 0
            flags += ["--warmup_steps", warmup]
            found.append(Run("batch", label, k, LARGE, flags, workers, 16))
    return found


def curve(logdir):
    """Returns {"curve": [[global step, test loss], ..]} of TensorBoard's file."""
    tf = importlib.import_module("tensorflow.compat.v1")
    points = [
        [event.step, value.simple_value]
        for path in sorted(logdir.glob("events.out.tfevents.*"))
        for event in tf.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "test_loss"
    ]
    return {"curve": points}


PLANS = {"local": local_runs, "outer": outer_runs, "pool": pool_runs}
PLANS.update({"bytes": bytes_runs, "batch": batch_runs, "slow": slow_runs})


def plan(parts, scale=1.0):
    """Returns the runs of the parts."""
    found = []
    for part in parts:
        found += claims.seeded(
            PLANS[part](scale), SEEDS if part == "batch" and scale == 1 else 1
        )
    return found


def local_text(found):
    """Returns the markdown of part local."""
    rows = []
    for label, simulated in SIMULATED.items():
        row = found.get(label, {})
        rows.append([label, *(claims.percent(row.get(w)) for w in WINDOWS)])
        rows.append([f"{label}, simulated", *(f"{100 * v:.1f} %" for v in simulated)])
    text = "### Local-SGD: accuracy against T\n\n"
    text += figures.shown("accuracy against T", "peers-local")
    text += "\n" + runs.table(["test accuracy", *(f"T = {w}" for w in WINDOWS)], rows)
    text += f"\nN = 4, {STEPS} local steps of each worker, η = 0.2.\n"
    alike, sorted_ = (found.get(label, {}).get(WINDOWS[-1]) for label in SIMULATED)
    first = found.get("shards alike", {}).get(1)
    holds = None
    if alike and sorted_ and first:
        free = claims.accuracy(alike) > claims.accuracy(first) - 0.01
        holds = free and claims.accuracy(sorted_) < claims.accuracy(alike) - 0.03
    return text + verdict("free with shards alike, costly with sorted ones", holds)


def outer_text(found):
    """Returns the markdown of part outer."""
    rows = []
    for label, (_, simulated) in OUTER.items():
        row = found.get(label, {})
        cells = [row[w]["test_loss"] if w in row else None for w in OUTER_WINDOWS]
        rows.append([label, *("-" if v is None else f"{v:.3f}" for v in cells)])
        rows.append([f"{label}, simulated", *(f"{v:.3f}" for v in simulated)])
    text = "### DiLoCo: what the outer optimizer is worth\n\n"
    text += figures.shown("loss against T", "peers-outer")
    header = ["test loss here, training loss simulated"]
    text += "\n" + runs.table(header + [f"T = {w}" for w in OUTER_WINDOWS], rows)
    text += f"\nN = 4, {INNER} local steps of each worker, AdamW, η = 0.001.\n"
    plain, nesterov = (found.get(label, {}).get(25) for label in list(OUTER)[:2])
    holds = None
    if plain and nesterov:
        holds = nesterov["test_loss"] < plain["test_loss"]
    return text + verdict("outer Nesterov beats averaging (Douillard et al.)", holds)


def pool_text(found):
    """Returns the markdown of part pool."""
    rows, losses = [], {}
    for label, workers in POOLS.items():
        result = found.get(label, {}).get(0)
        losses[label] = result and result["test_loss"]
        cells = [", ".join(map(str, workers)), "-", "-", "-"]
        if result:
            cells[1:] = [f"{result['examples']:,}", f"{losses[label]:.3f}"]
            cells.append(claims.percent(result))
        rows.append([label, *cells])
    text = "### DiLoCo: workers that come and go between rounds\n\n"
    text += figures.shown("test loss and examples", "peers-pool") + "\n"
    header = ["", "workers, in turn", "examples", "test loss", "test accuracy"]
    text += runs.table(header, rows)
    text += f"\nT = {POOL_WINDOW}, {INNER // POOL_WINDOW} rounds, AdamW, η = 0.001.\n"
    alone, *four = (losses[label] for label in list(POOLS)[:3])
    some = [losses[label] for label in list(POOLS)[3:]]
    holds = None
    if alone and all(four) and all(some):
        apart = f"The two runs of four differ by {abs(four[0] - four[1]):.3f}, "
        text += apart + f"those that change by {max(some) - min(some):.3f}.\n"
        holds = max(some) < alone
    claim = "better than one worker, whenever the others are there (Douillard et al.)"
    return text + verdict(claim, holds)


def bytes_text(found):
    """Returns the markdown of part bytes."""
    rows = []
    for label, row in found.items():
        for result in row.values():
            sent, count = result["bytes_pushed"], result["global_steps"]
            peak = sent / count / result["workers"] / 1e3
            cells = [f"{sent / 1e6:.2f}", f"{peak:.1f}", claims.percent(result)]
            rows.append([label, *cells])
    text = "### DiLoCo: accuracy against bytes\n\n"
    text += figures.shown("test error against bytes", "peers-bytes") + "\n"
    header = ["", "MB sent by all", "kB at a time, each", "test accuracy"]
    text += runs.table(header, rows)
    text += f"\nN = 2, {LONG} local steps of each worker.\n"
    flat = {label: result for label, row in found.items() for result in row.values()}
    first, last = flat.get(f"{RING}, every step"), flat.get("DiLoCo, T = 500")
    holds = None
    if first and last:
        holds = last["test_accuracy"] > first["test_accuracy"] - 0.01
    return text + verdict("as accurate with 1/500 of the bytes", holds)


def slow_text(found):
    """Returns the markdown of part slow."""
    rows, kept_ = [], {}
    for label, row in found.items():
        equal, slow = row.get(0.01), row.get(SLOW)
        rates = [r and r["examples_per_second"] for r in (equal, slow)]
        kept_[label] = rates[1] / rates[0] if all(rates) else None
        cells = ["-" if rate is None else f"{rate:.0f}" for rate in rates]
        left = "-" if kept_[label] is None else f"{100 * kept_[label]:.0f} %"
        apart = (slow or {}).get("consensus_distance")
        apart = "-" if apart is None else f"{apart:.3f}"
        rows.append([label, *cells, left, claims.percent(slow), apart])
    header = ["", "examples/s, all alike", "one straggler", "what is left"]
    text = "### Gossip-SGD: one straggler\n\n"
    text += figures.shown("examples/s with and without a straggler", "peers-slow")
    text += "\n"
    text += runs.table([*header, "its test accuracy", "consensus distance"], rows)
    text += f"\nN = 4, {4 * EACH} mini-batches of all, a gradient takes 0.01 s longer,"
    text += f" on the straggler {SLOW} s.\n"
    ring, gossip = kept_.get(RING), kept_.get("Gossip-SGD, ring")
    holds = None if ring is None or gossip is None else gossip > 2 * ring
    return text + verdict(
        "a straggler does not hold up the others (Lian et al.)", holds
    )


def batch_text(found):
    """Returns the markdown of part batch."""
    rows = []
    for label, simulated in SCALED.items():
        row = found.get(label, {})
        rows.append([label, *(claims.percent(row.get(k)) for k in TIMES)])
        rows.append([f"{label}, simulated", *(f"{100 * v:.1f} %" for v in simulated)])
    text = "### Large-Minibatch: the same epochs at k times the batch\n\n"
    text += figures.shown("loss by epoch, and accuracy against k", "peers-batch")
    text += "\n"
    text += runs.table(["test accuracy", *(f"k = {k}" for k in TIMES)], rows)
    text += (
        f"\n{EPOCHS} epochs, η = 0.1 for a batch of {EXAMPLES}; k workers up to four."
    )
    text += claims.seeds_of(found) + "\n"
    accuracy, good, breaks = claims.accuracy, None, None
    fixed, warmed = found.get(FIXED, {}), found.get(WARMED, {})
    if 1 in warmed and 8 in warmed and 8 in fixed:
        least = accuracy(warmed[1]) - 0.01
        good = accuracy(warmed[8]) > least > accuracy(fixed[8])
    if TIMES[-1] in warmed:
        breaks = accuracy(warmed[TIMES[-1]]) < 0.5
    text += verdict(
        "as good at 8 times the batch, and only with 8 times the rate", good
    )
    return text + verdict(f"breaks at k = {TIMES[-1]}, with a warm-up too", breaks)


def batch_figure(found, path):
    """Draws test loss by epoch with a warm-up, and accuracy against k by label."""
    plt = figures.pyplot()
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
    for k, result in found.get(WARMED, {}).items():
        points = [
            [step * k * EXAMPLES / ROWS, y] for step, y in result.get("curve", [])
        ]
        if points:
            left.plot(*zip(*points, strict=True), marker=".", label=f"k = {k}")
    left.set_yscale("log")
    ticks = (0.1, 0.2, 0.5, 1, 2)
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.set_xlabel("epochs")
    left.set_ylabel("test loss")
    left.set_title(WARMED)
    left.legend(frameon=False)
    for number, ((label, row), mark) in enumerate(
        zip(found.items(), "osD", strict=False)
    ):
        # Beside each other, so that equal values do not hide each other.
        at = [k * 2 ** (0.12 * (number - 1)) for k in row]
        values = [100 * claims.accuracy(r) for r in row.values()]
        right.plot(at, values, marker=mark, label=label, ls=("-", "--", ":")[number])
    right.set_xscale("log", base=2)
    right.set_xticks(TIMES, [str(k) for k in TIMES])
    right.set_xlabel(f"k, batches of {EXAMPLES} in an update")
    right.set_ylabel("test accuracy, %")
    right.legend(frameon=False, loc="lower left")
    figures.save(drawing, path)


def points(axes, found, place):
    """Draws a mark for each result, at its `place(result)`: x and y."""
    for (label, row), mark in zip(found.items(), figures.MARKS, strict=False):
        for result in row.values():
            axes.plot(*place(result), mark, label=label, markersize=8)


def pool_figure(found, path):
    """Draws what each pool of workers came to, against the examples that it used."""
    plt = figures.pyplot()
    drawing, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    named = {f"{k}: {', '.join(map(str, POOLS[k]))}": row for k, row in found.items()}
    points(axes, named, lambda result: (result["examples"], result["test_loss"]))
    axes.set_xlabel("examples, in as many rounds")
    axes.set_ylabel("test loss")
    axes.margins(0.1)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figures.save(drawing, path)


def bytes_figure(found, path):
    """Draws test error against what all workers sent, on logarithmic axes."""
    plt = figures.pyplot()
    drawing, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")

    def place(result):
        return result["bytes_pushed"] / 1e6, 100 * (1 - claims.accuracy(result))

    points(axes, found, place)
    figures.log_ticks(axes, (1, 10, 100))
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.set_xlabel("MB sent by all workers")
    axes.set_ylabel("test error, %")
    axes.legend(frameon=False, loc="lower center")
    figures.save(drawing, path)


def slow_figure(found, path):
    """Draws a pair of bars for each scheme: all workers alike, and one straggler."""
    plt = figures.pyplot()
    drawing, axes = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    for shift, (last, label) in enumerate(
        [(0.01, "all alike"), (SLOW, "one straggler")]
    ):
        rates = [
            row.get(last, {}).get("examples_per_second", 0) for row in found.values()
        ]
        places = [place + 0.4 * shift for place in range(len(rates))]
        color = (figures.BLUE, figures.ORANGE)[shift]
        bars = axes.barh(places, rates, 0.4, label=label, color=color)
        axes.bar_label(bars, fmt="{:.0f}", padding=3)
    axes.set_yticks([place + 0.2 for place in range(len(found))], list(found))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("examples/s, of all workers")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    figures.save(drawing, path)


def verdict(claim, holds):
    """Returns the line that says whether a claim is seen here."""
    return f"\n- {claim}: {claims.said(holds)}\n"


def figure(found, path, value, label):
    """Draws a line for each label of a part: a value of its results against T."""
    plt = figures.pyplot()
    drawing, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for (name, row), mark in zip(found.items(), "osD^", strict=False):
        axes.plot(list(row), [value(r) for r in row.values()], marker=mark, label=name)
    axes.set_xscale("log", base=2)
    ticks = sorted({window for row in found.values() for window in row})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("T, local steps between two exchanges")
    axes.set_ylabel(label)
    above = dict(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    axes.legend(frameon=False, **above)
    figures.save(drawing, path)


def write_results(out, rounds, found, quick=False):
    """Draws the figures; returns the tables, of the rates and of the claims."""
    short = "Of few and short runs: a test of the script, not a measurement.\n"
    rates, texts = ([short], [short]) if quick else ([], [])
    for part in RATES:
        if any(key.startswith(part) for measured in rounds for key in measured):
            rates.append(rate_text(rounds, part))
    makers = {"local": local_text, "outer": outer_text, "pool": pool_text}
    makers.update({"bytes": bytes_text, "batch": batch_text, "slow": slow_text})
    texts += [makers[part](results) for part, results in found.items() if results]
    if found.get("local"):
        path = out / "peers-local"
        percent = "test accuracy, %"
        figure(found["local"], path, lambda r: 100 * claims.accuracy(r), percent)
    if found.get("outer"):
        path = out / "peers-outer"
        figure(found["outer"], path, lambda r: r.get("test_loss", 2.3), "test loss")
    others = {"pool": pool_figure, "bytes": bytes_figure}
    others.update({"batch": batch_figure, "slow": slow_figure})
    for part, draw in others.items():
        if found.get(part):
            draw(found[part], out / f"peers-{part}")
    return "\n".join(rates), "\n".join(texts)


# --- The measurement -------------------------------------------------------------


def main():
    parser = runs.measuring_parser(__doc__, (*RATES, *CLAIMS))
    with runs.finished(parser.parse_args()) as args:
        args.scale = 0.05 if args.quick else 1.0
        code = "-".join(runs.fingerprint(folder) for folder in (RING, SYNC))
        if set(RATES) & set(args.only) and not VENV.joinpath("stamp").exists():
            print("without Horovod: `bash Horovod/run.sh` makes it", file=sys.stderr)
        jobs = rate_jobs(args)
        if args.quick:
            jobs = runs.one_of_each(jobs, lambda job: job.parts)
        rounds, progress = runs.in_rounds(jobs, args, "peers", code)
        cache = claims.Cache(args.out / "peers-runs.json", args.again)
        planned = plan([part for part in CLAIMS if part in args.only], args.scale)
        if args.quick:
            planned = runs.one_of_each(planned, lambda run: run.part)
        second = claims.measure(
            planned, cache, args.timeout, ps=None, logs={"batch": curve}
        )
        # Parts measured at another time are shown too.
        found = {
            part: claims.grid(plan([part], args.scale), cache, any_code=True)
            for part in CLAIMS
        }
        rates, texts = write_results(args.out, rounds, found, args.quick)
        runs.publish(args, "peers", rates)
        runs.publish(args, "peers-runs", texts)
        second.failed += progress.failed
        second.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
