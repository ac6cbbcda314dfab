"""What a run costs beside its arithmetic: the start, the end, a step, a round.

    start    seconds from `bash run.sh` to the first update, over what
             `python -c 'import tensorflow'` costs as many processes at once;
             seconds from the last update to the exit of run.sh
    speed    steps/s of HogWild by workers and ps, of one process without a cluster,
             and of the same model under ParameterServerStrategy
    windows  examples/s of every windowed scheme with one worker, over one process
             without a cluster; the time of a round, over HogWild's step and T local
             steps

Everything is measured in turn, several rounds of it, so that a slow minute of the
machine falls on all alike; ratios are taken within a round, and of all numbers the
median is shown. Writes overhead.json and overhead.md. A round that was finished is
kept there: the next start goes on after it.

    python benchmarks/overhead.py                          all parts, 3 rounds
    python benchmarks/overhead.py --only start --rounds 5
    python benchmarks/overhead.py --write-readme           pastes, measures nothing
"""

import contextlib
import json
import statistics
import sys
import time
from collections import namedtuple

import runs

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

# A measurement: its key in the JSON, the parts that need it, a guess of its seconds,
# and the function that makes it.
Job = namedtuple("Job", "key parts cost make")


def imports(count):
    """Returns the seconds in which `count` processes at once import TensorFlow."""
    command = [runs.PYTHON, "-c", "import tensorflow"]
    quiet = {"stdout": runs.subprocess.DEVNULL, "stderr": runs.subprocess.DEVNULL}
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
    """Returns the examples that have a communication window."""
    return [name for name in runs.examples() if "--window" in runs.flags_of(name)]


def jobs_of(parts, scale=1.0):
    """Returns the measurements of one round, each needed by one of the parts."""

    def steps(number):
        return ["--steps", max(20, int(number * scale) // 10 * 10)]

    def hogwild(ps, workers):
        return lambda: runs.run_example("HogWild", steps(6000), ps, workers)

    def scheme(name):
        flags = [*steps(2000), "--window", WINDOW]
        return lambda: runs.run_example(name, flags, 1, 1)

    def coordinator(flags):
        return lambda: runs.run_script(
            "coordinator.py", *flags, *steps(4000), timeout=240
        )

    jobs = [Job("imports 3", {"start"}, 12, lambda: imports(3))]
    jobs += [Job("imports 5", {"start"}, 20, lambda: imports(5))]
    jobs += [
        Job(
            ALONE,
            {"speed", "windows"},
            10,
            lambda: runs.run_example(ALONE, steps(6000)),
        )
    ]
    for ps, workers in CLUSTERS:
        needed = {"speed"} | ({"start"} if (ps, workers) in STARTS else set())
        needed |= {"windows"} if (ps, workers) == (1, 1) else set()
        key = f"HogWild {ps} ps {workers} workers"
        jobs.append(Job(key, needed, 12 + 3 * workers, hogwild(ps, workers)))
    for form, _, flags in THEIRS:
        key = f"ClusterCoordinator {form}"
        jobs.append(Job(key, {"speed"}, 25, coordinator(flags)))
    local = ["local_steps.py", "--window", WINDOW, *(["--rounds", 50] * (scale < 1))]
    jobs.append(Job("local steps", {"windows"}, 10, lambda: runs.run_script(*local)))
    for name in windowed():
        jobs.append(Job(f"window {name}", {"windows"}, 15, scheme(name)))
    return [job for job in jobs if job.parts & set(parts)]


# --- The table ----------------------------------------------------------------


def series(rounds, key, field):
    """Returns the values of a field of a measurement, None in rounds without it."""
    return [measured.get(key, {}).get(field) for measured in rounds]


def middle(values):
    """Returns the median of the values that are there, or None."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def ratio(top, bottom):
    """Returns the median of the ratios taken round by round, or None."""
    pairs = zip(top, bottom, strict=True)
    return middle([a / b if a and b else None for a, b in pairs])


def spread(values, digits=0):
    """Returns `median (smallest to largest)` as text, `-` if nothing is there."""
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    text = f"{middle(there):,.{digits}f}"
    if len(there) > 1:
        text += f" ({min(there):,.{digits}f} to {max(there):,.{digits}f})"
    return text


def verdict(value, goal, least):
    """Returns the cells of a ratio: its value, the goal, whether it is reached."""
    if value is None:
        return ["-", "", ""]
    sign = "at least" if least else "at most"
    reached = value >= goal if least else value <= goal
    return [f"{value:.2f}", f"{sign} {goal:g}", "yes" if reached else "**no**"]


def start_table(rounds):
    """Returns the markdown of part start."""
    rows = []
    for ps, workers in STARTS:
        key, count = f"HogWild {ps} ps {workers} workers", ps + workers
        first = series(rounds, key, "first_step")
        alone = series(rounds, f"imports {count}", "seconds")
        rows.append(
            [f"first update, {ps} ps, {workers} workers", spread(first, 1)]
            + [f"{count} imports: {spread(alone, 1)}"]
            + verdict(ratio(first, alone), 1.5, False)
        )
        end = series(rounds, key, "end")
        rows.append(
            [f"last update to exit, {ps} ps, {workers} workers", spread(end, 1), ""]
            + verdict(middle(end), 3, False)
        )
    header = ["from `bash run.sh`", "seconds", "beside it, seconds"]
    text = "### Start and end\n\n" + runs.table(
        [*header, "ratio, or seconds", "goal", "reached"], rows
    )
    return text + (
        "\nA ratio below 1 is possible: `cluster.py` hides Keras and rests the garbage "
        "collector\nwhile it imports TensorFlow.\n"
    )


def speed_table(rounds):
    """Returns the markdown of part speed."""
    alone = series(rounds, ALONE, "steps_per_second")
    rows = [["one process, no cluster", spread(alone), "1.00", ""]]
    lines = [
        (f"HogWild {p} ps {w} workers", f"HogWild, {p} ps, {w} workers")
        for p, w in CLUSTERS
    ]
    lines += [
        (f"ClusterCoordinator {form}", f"{label}, 1 ps, 2 workers")
        for form, label, _ in THEIRS
    ]
    for key, label in lines:
        speed = series(rounds, key, "steps_per_second")
        accuracy = middle(series(rounds, key, "test_accuracy"))
        share = ratio(speed, alone)
        rows.append(
            [
                label,
                spread(speed),
                f"{share:.2f}" if share else "-",
                f"{accuracy:.3f}" if accuracy else "-",
            ]
        )
    accuracy = middle(series(rounds, ALONE, "test_accuracy"))
    rows[0][-1] = f"{accuracy:.3f}" if accuracy else "-"
    text = "### Speed\n\n" + runs.table(
        ["", "steps/s, all workers", "over one process", "test accuracy"], rows
    )
    ours = series(rounds, "HogWild 1 ps 2 workers", "steps_per_second")
    rows = []
    for form, label, _ in THEIRS:
        theirs = series(rounds, f"ClusterCoordinator {form}", "steps_per_second")
        rows.append(
            [f"HogWild over {label}, 1 ps, 2 workers"]
            + verdict(ratio(ours, theirs), 2, True)
        )
    return text + "\n" + runs.table(["", "ratio", "goal", "reached"], rows)


def windows_table(rounds):
    """Returns the markdown of part windows."""
    alone = series(rounds, ALONE, "examples_per_second")
    local = series(rounds, "local steps", "seconds_per_step")
    step = series(rounds, "HogWild 1 ps 1 workers", "steps_per_second")
    bound = [
        1 / s + WINDOW * t if s and t else None
        for s, t in zip(step, local, strict=True)
    ]
    keys = sorted({key for r in rounds for key in r if key.startswith("window ")})
    rows = []
    for key in keys:
        examples = series(rounds, key, "examples_per_second")
        rate = series(rounds, key, "steps_per_second")
        took = [1 / r if r else None for r in rate]
        rows.append(
            [key.removeprefix("window "), spread(examples)]
            + verdict(ratio(examples, alone), 0.8, True)
            + [spread([1000 * t if t else None for t in took], 2)]
            + verdict(ratio(took, bound), 1.3, False)
        )
    header = ["", "examples/s", "over one process", "goal", "reached"]
    header += ["round, ms", "over its parts", "goal", "reached"]
    text = f"### Windows, T = {WINDOW}, one worker\n\n"
    text += runs.table(header, rows) if rows else "No windowed scheme.\n"

    def ms(values):
        return spread([1000 * v if v else None for v in values], 2)

    steps = [1 / s if s else None for s in step]
    return text + (
        f"\nOne process without a cluster: {spread(alone)} examples/s. The parts of a "
        f"round, in ms: a\nstep of HogWild with one worker, {ms(steps)}, and {WINDOW} "
        f"local steps of {ms(local)} each,\nmeasured alone in one `session.run`.\n"
    )


TABLES = {"start": start_table, "speed": speed_table, "windows": windows_table}


def markdown(rounds, parts):
    """Returns overhead.md: the tables of the parts that were measured."""
    count = f"{len(rounds)} round{'s' * (len(rounds) != 1)}"
    texts = [TABLES[part](rounds) for part in parts]
    return f"Median of {count}, smallest and largest in brackets.\n\n" + "\n".join(
        texts
    )


# --- The measurement ----------------------------------------------------------


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.Parser(__doc__)
    add = parser.add_argument
    add("--only", type=runs.parts_of(PARTS), default=PARTS, help=",".join(PARTS))
    add("--rounds", type=runs.positive_int, default=3)
    add("--out", type=runs.output_folder, default=str(runs.RESULTS), help="folder")
    add("--again", action="store_true", help="forget the rounds that are in --out")
    add("--quick", action="store_true", help="a few steps each: a test of the script")
    add("--write-readme", action="store_true", help="only paste the tables")
    return parser.parse_args(argv)


def code():
    """Returns what the kept rounds belong to: the code of every example."""
    return {name: runs.fingerprint(name) for name in runs.examples()}


def kept(path, now, again):
    """Returns the rounds in overhead.json, none if they are of other code."""
    if again or not path.exists():
        return []
    old = json.loads(path.read_text())
    if old["code"] != now:
        print("the examples changed: measured afresh", file=sys.stderr)
        return []
    return old["rounds"]


def main():
    args = parse_args()
    if args.write_readme:
        return runs.write_readme(args.out)
    name = "overhead-quick" if args.quick else "overhead"
    path = args.out / f"{name}.json"
    now = code()
    rounds = kept(path, now, args.again)
    jobs = jobs_of(args.only, 0.02 if args.quick else 1.0)
    rounds += [{} for _ in range(args.rounds - len(rounds))]
    progress = runs.Progress(
        0 if job.key in rounds[number] else job.cost
        for number in range(args.rounds)
        for job in jobs
    )
    for number in range(args.rounds):
        for job in jobs:
            seconds = None
            if job.key not in rounds[number]:
                began = time.monotonic()
                rounds[number][job.key] = job.make()
                seconds = time.monotonic() - began
                runs.write_json(path, {"code": now, "rounds": rounds})
            progress.add(f"round {number + 1}: {job.key}", seconds)
    # Parts measured at another time are shown too.
    parts = [p for p in PARTS if all(j.key in rounds[0] for j in jobs_of([p]))]
    text = markdown(rounds, parts)
    runs.write(args.out / f"{name}.md", text)
    print(text)


if __name__ == "__main__":
    runs.ends_cleanly(main)
