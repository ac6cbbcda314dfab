"""The overhead of a run: the start, the end, a step, a round.

    start    seconds from `bash run.sh` to the first update, over what
             `python -c 'import tensorflow'` costs as many processes at once;
             seconds from the last update to the exit of run.sh
    speed    steps/s of HogWild by workers and ps, of one process without a cluster,
             and of the same model under ParameterServerStrategy
    windows  examples/s of every windowed scheme with one worker, over one process
             without a cluster; the time of a round

Everything is measured in turn, several rounds of it, so that a slow minute of the
machine falls on all alike; ratios are taken within a round, and of all numbers the
median is shown. A round that was finished is kept in overhead.json: the next start goes
on after it.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --only start --rounds 1
    python benchmarks/overhead.py --quick                  a test of the script
"""

import contextlib
import subprocess
import time

import runs
from runs import Job, middle, ratios, series, spread

PARTS = ("start", "speed", "windows")
CLUSTERS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4))  # (ps, workers)
# ClusterCoordinator as one writes it, with the flat vector of these examples, and with
# twenty steps in a scheduled function besides: (key, label, flags of coordinator.py).
THEIRS = (
    ("variables", "ClusterCoordinator", []),
    ("flat", "the same, one flat vector", ["--form", "flat"]),
    (
        "packed",
        "the same, 20 steps a call",
        ["--form", "flat", "--steps_per_call", 20],
    ),
)
STARTS = ((1, 2), (1, 4))  # the clusters whose start is compared with imports
WINDOW = 16
ALONE = "Non-Distributed-Setup"
START = 7  # about the seconds that a run takes beside its steps, and another a task


def imports(count):
    """Returns the seconds in which `count` processes at once import TensorFlow."""
    command = [runs.PYTHON, "-c", "import tensorflow"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(runs.process(command, env=runs.environment(), **quiet))
            for _ in range(count)
        ]
        for child in children:
            if child.wait(180):
                raise runs.Unfinished(f"import tensorflow: status {child.returncode}")
    return {"seconds": time.monotonic() - began}


def windowed():
    """Returns the examples that have a ps and a communication window."""
    there = [name for name in runs.registry.folders("ps") if name in runs.examples()]
    return [name for name in there if "--window" in runs.flags_of(name)]


def jobs_of(parts, scale=1.0, timeout=runs.TIMEOUT):
    """Returns the measurements of one round, each needed by one of the parts.

    `scale` makes the runs shorter.
    """

    def steps(number):
        return max(20, int(number * scale) // 10 * 10)

    def example(scheme, flags, ps=None, workers=None):
        flags = {**flags, "--steps": steps(flags["--steps"])}
        flat = [item for pair in flags.items() for item in pair]
        return lambda: runs.run_example(scheme, flat, ps, workers, timeout=timeout)

    def coordinator(flags):
        return lambda: runs.run_script(
            "coordinator.py", *flags, "--steps", steps(4000), timeout=timeout
        )

    def cost(seconds, tasks=2):
        return START + tasks + seconds * scale

    jobs = [Job("imports 3", {"start"}, 10, lambda: imports(3))]
    jobs += [Job("imports 5", {"start"}, 16, lambda: imports(5))]
    alone = example(ALONE, {"--steps": 6000})
    jobs += [Job(ALONE, {"speed", "windows"}, cost(3, 1), alone)]
    for ps, workers in CLUSTERS:
        needed = {"speed"} | ({"start"} if (ps, workers) in STARTS else set())
        needed |= {"windows"} if (ps, workers) == (1, 1) else set()
        make = example("HogWild", {"--steps": 6000}, ps, workers)
        key = f"HogWild {ps} ps {workers} workers"
        jobs.append(Job(key, needed, cost(8, ps + workers), make))
    for form, _, flags in THEIRS:
        key = f"ClusterCoordinator {form}"
        jobs.append(Job(key, {"speed"}, cost(14, 4), coordinator(flags)))
    for name in windowed():
        make = example(name, {"--steps": 2000, "--window": WINDOW}, 1, 1)
        jobs.append(Job(f"window {name}", {"windows"}, cost(9), make))
    return [job for job in jobs if job.parts & set(parts)]


# --- The table ----------------------------------------------------------------


def number(value, digits=2):
    """Returns a number as a cell, `-` if it is not there."""
    return "-" if value is None else f"{value:.{digits}f}"


def start_table(rounds):
    """Returns the markdown of part start."""
    rows = []
    for ps, workers in STARTS:
        key, count = f"HogWild {ps} ps {workers} workers", ps + workers
        first = series(rounds, key, "first_step")
        alone = series(rounds, f"imports {count}", "seconds")
        rows.append(
            [f"{ps} ps, {workers} workers", spread(first, 1)]
            + [spread(alone, 1), number(middle(ratios(first, alone)))]
            + [spread(series(rounds, key, "end"), 1)]
        )
    header = ["HogWild", "first update, s", "as many imports, s", "ratio"]
    text = "### Start and end\n\n" + runs.table(
        [*header, "last update to exit, s"], rows
    )
    return text + (
        "\nA ratio below 1 is possible: cluster/tensorflow_v1.py hides Keras and rests "
        "the garbage\ncollector while it imports TensorFlow.\n"
    )


def speed_table(rounds):
    """Returns the markdown of part speed."""
    alone = series(rounds, ALONE, "steps_per_second")
    rows = [["one process, no cluster", spread(alone), "1.00", ""]]
    lines = [
        (f"HogWild {p} ps {w} workers", f"HogWild, {p} ps, {runs.workers(w)}")
        for p, w in CLUSTERS
    ]
    lines += [
        (f"ClusterCoordinator {form}", f"{label}, 1 ps, 2 workers")
        for form, label, _ in THEIRS
    ]
    for key, label in lines:
        speed = series(rounds, key, "steps_per_second")
        accuracy = middle(series(rounds, key, "test_accuracy"))
        share = middle(ratios(speed, alone))
        rows.append(
            [
                label,
                spread(speed),
                number(share),
                number(accuracy, 3),
            ]
        )
    accuracy = middle(series(rounds, ALONE, "test_accuracy"))
    rows[0][-1] = number(accuracy, 3)
    text = "### Speed\n\n" + runs.table(
        ["", "steps/s, all workers", "over one process", "test accuracy"], rows
    )
    ours = series(rounds, "HogWild 1 ps 2 workers", "steps_per_second")
    rows = []
    for form, label, _ in THEIRS:
        theirs = series(rounds, f"ClusterCoordinator {form}", "steps_per_second")
        rows.append([label, spread(ratios(ours, theirs), 2)])
    header = ["1 ps, 2 workers", "HogWild's steps/s over it"]
    return text + "\n" + runs.table(header, rows)


def windows_table(rounds):
    """Returns the markdown of part windows."""
    alone = series(rounds, ALONE, "examples_per_second")
    keys = sorted({key for r in rounds for key in r if key.startswith("window ")})
    rows = []
    for key in keys:
        examples = series(rounds, key, "examples_per_second")
        rate = series(rounds, key, "steps_per_second")
        took = [1 / r if r else None for r in rate]
        rows.append(
            [key.removeprefix("window "), spread(examples)]
            + [number(middle(ratios(examples, alone)))]
            + [spread([1000 * t if t else None for t in took], 2)]
        )
    header = ["", "examples/s", "over one process", "round, ms"]
    text = f"### Windows, T = {WINDOW}, one worker\n\n"
    text += runs.table(header, rows) if rows else "No windowed scheme.\n"

    return f"{text}\nOne process without a cluster: {spread(alone)} examples/s.\n"


TABLES = {
    "start": start_table,
    "speed": speed_table,
    "windows": windows_table,
}


def markdown(rounds, parts):
    """Returns the tables of the parts that were measured."""
    return "\n".join([runs.count_of(rounds), *(TABLES[part](rounds) for part in parts)])


# --- The measurement ----------------------------------------------------------


def code():
    """Returns what the kept rounds belong to: the code of every example."""
    return {name: runs.fingerprint(name) for name in runs.examples()}


def measured(rounds):
    """Returns the parts of which there is something to show."""
    there = {key for one in rounds for key in one}
    return [part for part in PARTS if there & {j.key for j in jobs_of([part])}]


def main():
    with runs.finished(runs.measuring_parser(__doc__, PARTS).parse_args()) as args:
        jobs = jobs_of(args.only, 0.02 if args.quick else 1.0, args.timeout)
        if args.quick:
            jobs = runs.one_of_each(jobs, lambda job: job.key.split()[0])
        rounds, progress = runs.in_rounds(jobs, args, "overhead", code())
        # Parts measured at another time are shown too.
        runs.publish(args, "overhead", markdown(rounds, measured(rounds)))
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
