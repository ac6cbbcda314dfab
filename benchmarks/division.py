"""How to divide the work: rates and bytes of ps, one client, split model and table.

Parts, chosen by --only:

    rates        steps/s and examples/s of the same perceptron in one process, at a ps,
                 under a barrier, by one client; bytes and messages of a step
    collisions   Partitioned-Embedding: rmse against workers and popularity, that is
                 against how often two workers touch one row (Hogwild!'s claim)
    pipeline     Model-Parallelism: the bubble against the number of micro-batches

Bytes on the wire are what the loopback device has sent, in a run of many steps less a
run of few; so the machine has to be alone, and the ports are open meanwhile. Messages
are the RecvTensor calls in TensorFlow's log, counted the same way.

    python benchmarks/division.py
    python benchmarks/division.py --only collisions --rounds 1
"""

import argparse
import functools
import importlib
import json
import sys

import figures
import numpy as np
import psutil
import runs

PARTS = ("rates", "collisions", "pipeline")
P, F, B = 4810, 64, 32  # parameters, numbers of an image, mini-batch
INPUT = B * (4 * F + 4)  # bytes of a mini-batch: images and labels
SPLIT = 2 * 4 * 128 * 256 + 4 * 128  # activations, gradients, labels: B = 128, a = 256
# Folder, flags, ps, workers, and the bytes of a step by its formula (None: as counted).
RATES = {
    "one process": ("Non-Distributed-Setup", [], None, None, 0),
    "HogWild": ("HogWild", [], 1, 2, 2 * 4 * P),
    "Synchronous-SGD": ("Synchronous-SGD", [], 1, 2, 2 * 2 * 4 * P),
    "In-Graph-Replication": ("In-Graph-Replication", [], 1, 2, 2 * 2 * 4 * P + INPUT),
    "In-Graph-Replication, async": (
        "In-Graph-Replication",
        ["--asynchronous"],
        1,
        2,
        2 * 4 * P + INPUT / 2,
    ),
    "Model-Parallelism": ("Model-Parallelism", [], 1, 2, SPLIT),
    "Partitioned-Embedding": ("Partitioned-Embedding", [], 2, 2, None),
}
WORKERS, SKEWS = (1, 2, 4, 8), (0.0, 0.5, 0.9)
MICRO_BATCHES = (1, 2, 4, 8, 16)
# Has TensorFlow log every message between tasks.
LOG = {"TF_CPP_MIN_LOG_LEVEL": 0, "TF_CPP_VMODULE": "grpc_state=3,grpc_remote_worker=3"}


# --- Jobs ---------------------------------------------------------------------


def sent():
    """Returns the bytes that the loopback device has sent so far."""
    devices = psutil.net_io_counters(pernic=True)
    return devices["lo" if "lo" in devices else "lo0"].bytes_sent


def rate(args, folder, flags, ps, workers, formula):
    """Returns the rates of a run, and the bytes of a step: on the wire, by formula."""
    many, few = (120, 60) if args.quick else (4000, 1000)
    seen = []
    for steps in (few, many):
        before = sent()
        result = runs.run_example(
            folder,
            [*flags, "--steps", steps, "--save_seconds", 1000],
            ps,
            workers,
            args.timeout,
            variables={"OPEN_PORTS": 1},
        )
        seen.append(sent() - before)
    formula = result.get("bytes_per_step") if formula is None else formula
    counted = []
    for steps in (30, 60) if args.quick else (100, 400):
        logged = runs.run_example(
            folder,
            [*flags, "--steps", steps, "--save_seconds", 1000],
            ps,
            workers,
            args.timeout,
            variables=LOG,
            logs=calls,
        )
        counted.append((steps, logged["calls"]))
    (a, first), (b, second) = counted
    return {
        **{key: result[key] for key in ("steps_per_second", "examples_per_second")},
        "wire": (seen[1] - seen[0]) / (many - few),
        "messages": (second - first) / (b - a),
        "formula": formula,
        "graph_nodes": result.get("graph_nodes"),
    }


def calls(logdir):
    """Returns how many tensors all tasks of a run have asked others for."""
    logs = [path.read_text(errors="replace") for path in logdir.glob("*.log")]
    return {"calls": sum(text.count("RecvTensorAsync req:") for text in logs)}


def collide(args, workers, skew):
    """Returns rmse and staleness of a table after the same number of ratings."""
    flags = ["--skew", skew, "--steps", 200 if args.quick else 10000]
    flags += ["--batch_size", 200, "--learning_rate", 0.05, "--save_seconds", 1000]
    result = runs.run_example("Partitioned-Embedding", flags, 2, workers, args.timeout)
    return {
        "rmse": result.get("test_rmse"),
        "staleness": result.get("mean_staleness"),
        "rate": result.get("steps_per_second"),
    }


def bubble(args, micro_batches):
    """Returns what the pipeline's trace says, and its units."""
    flags = ["--micro_batches", micro_batches, "--steps", 4 if args.quick else 30]
    flags += ["--batch_size", 256 if args.quick else 8192]

    def units(logdir):
        return {"units": json.loads((logdir / "timeline.json").read_text())}

    result = runs.run_example(
        "Model-Parallelism", flags, 1, 2, args.timeout, logs=units
    )
    keys = ("bubble", "bubble_of_equal_units", "seconds_per_mini_batch", "units")
    return {key: result[key] for key in keys}


def jobs_of(args):
    """Returns the measurements of the chosen parts."""
    jobs = []
    if "rates" in args.only:
        for name, what in [*RATES.items()][1:2] if args.quick else RATES.items():
            make = functools.partial(rate, args, *what)
            jobs.append(runs.Job(name, {"rates"}, 30, make))
    if "collisions" in args.only:
        for skew in SKEWS[:1] if args.quick else SKEWS:
            for workers in WORKERS[:1] if args.quick else WORKERS:
                make = functools.partial(collide, args, workers, skew)
                jobs.append(runs.Job(f"{workers}, {skew}", {"collisions"}, 40, make))
    if "pipeline" in args.only:
        for count in MICRO_BATCHES[1:2] if args.quick else MICRO_BATCHES:
            make = functools.partial(bubble, args, count)
            jobs.append(runs.Job(f"M {count}", {"pipeline"}, 25, make))
    return jobs


# --- Sparsity -----------------------------------------------------------------


def sparsity(skew, batch=200):
    """Returns how sparse drawn ratings are: (Δ, ρ, overlap), each from 0 to 1.

    Δ and ρ as the paper's section 3 has them: the share of ratings that the most
    popular row is in, and the largest share that has a row in common with some rating.
    overlap: the share of a mini-batch's rows that another mini-batch has too.
    """
    sys.path.insert(0, str(runs.REPO / "Partitioned-Embedding"))
    problem = importlib.import_module("problem")
    flags = dict(users=None, items=None, draw=500000, rank=1, noise=0.0, seed=0)
    flags.update(skew=skew, batch_size=batch, data=problem.DRAWN)
    data = problem.Ratings(argparse.Namespace(**flags)).load(problem.DRAWN)
    rows = data.x_train
    counts = np.bincount(rows.ravel(), minlength=data.rows)
    share = counts / len(rows)
    named = 1 - (1 - share) ** batch  # the probability that a mini-batch names a row
    rho = (counts[rows].sum(1) - 1).max() / len(rows)
    return share.max(), rho, (named**2).sum() / named.sum()


# --- Tables and figures -------------------------------------------------------


def markdown(rounds, only):
    """Returns the tables of the parts that were measured."""

    def cell(key, field, digits=0, scale=1):
        values = [
            v if v is None else scale * v for v in runs.series(rounds, key, field)
        ]
        return runs.spread(values, digits)

    def error(key):
        made = [measured[key]["rmse"] for measured in rounds if key in measured]
        return "diverges" if None in made else cell(key, "rmse", 4)

    text = runs.count_of(rounds)
    if "rates" in only:
        rows = [
            [name, cell(name, "steps_per_second"), cell(name, "examples_per_second")]
            + [cell(name, "formula"), cell(name, "wire"), cell(name, "messages", 1)]
            + [cell(name, "graph_nodes")]
            for name in RATES
        ]
        head = ["", "steps/s", "examples/s", "bytes by formula", "on the wire"]
        head += ["messages", "nodes of the client's graph"]
        text += "\n### Rates and bytes of a step\n\n" + runs.table(head, rows)
    if "collisions" in only:
        head = ["skew", "Δ", "ρ", "overlap"] + [runs.workers(n) for n in WORKERS]
        rows = [
            [skew, *[f"{value:.4f}" for value in sparsity(skew)]]
            + [error(f"{n}, {skew}") for n in WORKERS]
            for skew in SKEWS
        ]
        text += "\n### rmse against collisions (noise 0.1)\n\n" + runs.table(head, rows)
    if "pipeline" in only:
        rows = [
            [m, cell(f"M {m}", "bubble", 2), f"{1 / (m + 1):.2f}"]
            + [cell(f"M {m}", "seconds_per_mini_batch", 1, 1000)]
            for m in MICRO_BATCHES
        ]
        head = ["micro-batches", "bubble", "(S − 1) / (M + S − 1)", "ms"]
        text += "\n### Two stages\n\n" + runs.table(head, rows)
        text += "\n" + figures.shown("the bubble against M", "division-bubble")
        what = "what two stages do when, M = 4"
        text += "\n" + figures.shown(what, "division-timeline")
    return text


def draw(rounds, only, out):
    """Draws the bubble against M and the timeline of four micro-batches."""
    if "pipeline" not in only:
        return
    plt = figures.pyplot()
    measured = {
        m: runs.middle(runs.series(rounds, f"M {m}", "bubble")) for m in MICRO_BATCHES
    }
    there = {m: value for m, value in measured.items() if value is not None}
    figure, axis = plt.subplots(figsize=(6, 4))
    axis.plot(there.keys(), there.values(), "o-", label="measured", color="#0072b2")
    formula = [1 / (m + 1) for m in MICRO_BATCHES]
    axis.plot(
        MICRO_BATCHES, formula, "--", label="(S − 1) / (M + S − 1)", color="#d55e00"
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks(MICRO_BATCHES, map(str, MICRO_BATCHES))
    axis.set_ylim(0, 1)
    axis.set_xlabel("micro-batches M, two stages")
    axis.set_ylabel("bubble: share of the time with nothing to do")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figures.save(figure, out / "division-bubble")
    units = next((one["M 4"]["units"] for one in rounds if one.get("M 4")), None)
    if units:
        sys.path.insert(0, str(runs.REPO / "Model-Parallelism"))
        timeline = importlib.import_module("timeline")
        path = out / "division-timeline.svg"
        timeline.draw(units, path)
        figures.trim(path)


def main():
    with runs.finished(runs.measuring_parser(__doc__, PARTS).parse_args()) as args:
        folders = {what[0] for what in RATES.values()}
        code = {folder: runs.fingerprint(folder) for folder in sorted(folders)}
        rounds, progress = runs.in_rounds(jobs_of(args), args, "division", code)
        draw(rounds, args.only, args.out)
        runs.publish(args, "division", markdown(rounds, args.only))
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
