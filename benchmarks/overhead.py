"""The overhead of a run: the start, the end, a step, a round.

    start    seconds from `bash run.sh` to the first update, over what
             `python -c 'import tensorflow'` costs as many processes at once;
             seconds from the last update to the exit of run.sh
    speed    steps/s of HogWild by workers and ps, of one process without a cluster,
             and of the same model under ParameterServerStrategy
    windows  examples/s of every windowed scheme with one worker, over one process
             without a cluster; the time of a round, over HogWild's step and T local
             steps
    before   four schemes with 1, 2 and 4 workers, and how soon a run goes on whose
             task is killed, each in turn with the same at an older commit: --before

Everything is measured in turn, several rounds of it, so that a slow minute of the
machine falls on all alike; ratios are taken within a round, and of all numbers the
median is shown. Writes overhead.json and overhead.md, or before-COMMIT.json and .md if
that is the only part. A round that was finished is kept there: the next start goes on
after it.

    python benchmarks/overhead.py --only start,speed,windows --rounds 3
    python benchmarks/overhead.py --only before --before 06d2f2e
    python benchmarks/overhead.py --quick                  a test of the script
    python benchmarks/overhead.py --write-readme           pastes, measures nothing
"""

import contextlib
import functools
import pathlib
import subprocess
import tempfile
import time

import runs
from runs import Job, middle, ratios, series, spread

PARTS = ("start", "speed", "windows", "before")
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
COMPARED = {  # with the older commit: steps of a run
    "HogWild": 6000,
    "Synchronous-SGD": 2000,
    "AEASGD": 1000,
    "Ring-All-Reduce": 2000,
}
KILLED = (  # scheme, the task that is killed, whose next line of progress is awaited
    ("HogWild", "ps 1", "worker"),
    ("HogWild", "worker 0", "worker 0"),
    ("HogWild", "worker 1", "worker 1"),
    ("Synchronous-SGD", "ps 1", "worker"),
    ("Synchronous-SGD", "worker 1", "worker 1"),
    ("Ring-All-Reduce", "worker 1", "worker"),
)
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


def pairs():
    """Returns the runs of part before: (label, scheme, workers)."""
    return [
        (f"{scheme}, {runs.workers(workers)}", scheme, workers)
        for scheme in COMPARED
        for workers in (1, 2, 4)
    ]


def killed(scheme, task, awaited, root, timeout):
    """Returns the seconds from the end of a killed task to the next line of progress.

    Of 2 ps and 2 workers, or 2 peers, one is killed with -9 when a checkpoint lies
    there, and run.sh starts it again. A worker prints a line a second.
    """
    ps = {"NUM_PS": 2} if scheme in runs.registry.folders("ps") else {}
    job, index = task.split()
    steps = 1500 if scheme == "HogWild" else 600  # some 15 s: nobody waits for another
    flags = ["--steps", steps, "--slow_workers", 0.02, "--save_seconds", 1]
    with contextlib.ExitStack() as stack:
        logdir = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
        knobs = dict(LOGDIR=logdir, MAX_RESTARTS=1, NUM_WORKERS=2, TIMEOUT=timeout)
        child = stack.enter_context(
            runs.process(
                ["bash", root / scheme / "run.sh", *flags],
                env=runs.environment(**knobs, **ps),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        reader = runs.Lines(child.stdout)
        while not list(pathlib.Path(logdir).glob("model.ckpt-[1-9]*.index")):
            if child.poll() is not None:
                raise runs.Unfinished(f"{scheme}: status {child.returncode}")
            time.sleep(0.02)
        words = f"{root / scheme}/.*--job_name {job} --task_index {index}"
        if not ps:
            words = f"{root / scheme}/.*--task_index {index}"
        subprocess.run(["pkill", "-KILL", "-f", words], check=True)
        if child.wait(timeout):
            raise runs.Unfinished(f"{scheme}, {task} killed: {child.returncode}")
        reader.join(5)
        ended = min(when for when, line in reader.lines if "status 137" in line)
        return {
            "again": next(
                when - ended
                for when, line in reader.lines
                if when > ended and f"[{awaited}" in line and "  loss " in line
            )
        }


def jobs_of(parts, scale=1.0, before=None, timeout=runs.TIMEOUT):
    """Returns the measurements of one round, each needed by one of the parts.

    `scale` makes the runs shorter, `before` is the folder of the older commit; without
    it there are no runs of part before.
    """

    def steps(number):
        return max(20, int(number * scale) // 10 * 10)

    def example(scheme, flags, ps=None, workers=None, root=runs.REPO):
        flags = {**flags, "--steps": steps(flags["--steps"])}
        flat = [item for pair in flags.items() for item in pair]
        return lambda: runs.run_example(
            scheme, flat, ps, workers, timeout=timeout, root=root
        )

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
    local = ["local_steps.py", "--window", WINDOW, *(["--rounds", 50] * (scale < 1))]
    jobs.append(
        Job("local steps", {"windows"}, cost(4), lambda: runs.run_script(*local))
    )
    for name in windowed():
        make = example(name, {"--steps": 2000, "--window": WINDOW}, 1, 1)
        jobs.append(Job(f"window {name}", {"windows"}, cost(9), make))
    roots = {"now": runs.REPO, "before": before} if before else {}
    # A test of the script needs no more than one of each kind.
    some = slice(None, None, 10 if scale < 1 else 1)
    for label, scheme, workers in pairs()[some]:
        ps = 1 if scheme in runs.registry.folders("ps") else None
        for when, root in roots.items():
            make = example(scheme, {"--steps": COMPARED[scheme]}, ps, workers, root)
            needs = cost(6, (ps or 0) + workers)
            jobs.append(Job(f"{when} {label}", {"before"}, needs, make))
    for scheme, task, awaited in KILLED[some]:
        for when, root in roots.items():
            make = functools.partial(killed, scheme, task, awaited, root, timeout)
            key = f"{when} {scheme}, {task} killed"
            jobs.append(Job(key, {"before"}, cost(14, 4), make))
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
            + [number(middle(ratios(examples, alone)))]
            + [spread([1000 * t if t else None for t in took], 2)]
            + [number(middle(ratios(took, bound)))]
        )
    header = ["", "examples/s", "over one process", "round, ms", "over its parts"]
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


def before_table(rounds):
    """Returns the markdown of part before."""
    rows = []
    for label, *_ in pairs():
        keys = f"before {label}", f"now {label}"
        speeds = [series(rounds, key, "steps_per_second") for key in keys]
        row = [label, *map(spread, speeds), spread(ratios(speeds[1], speeds[0]), 2)]
        for field in ("first_step", "end"):
            row += [spread(series(rounds, key, field), 1) for key in keys]
        rows.append(row)
    header = ["", "steps/s before", "now", "ratio", "first update before, s", "now, s"]
    header += ["last update to exit before, s", "now, s"]
    text = "### Before and now\n\n" + runs.table(header, rows)
    rows = [
        [f"{scheme}, {task}"]
        + [
            spread(series(rounds, f"{when} {scheme}, {task} killed", "again"), 1)
            for when in ("before", "now")
        ]
        for scheme, task, _ in KILLED
    ]
    header = ["killed", "next line of progress before, s", "now, s"]
    return text + "\n" + runs.table(header, rows)


TABLES = {
    "start": start_table,
    "speed": speed_table,
    "windows": windows_table,
    "before": before_table,
}


def markdown(rounds, parts):
    """Returns overhead.md: the tables of the parts that were measured."""
    return "\n".join([runs.count_of(rounds), *(TABLES[part](rounds) for part in parts)])


# --- The measurement ----------------------------------------------------------


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.measuring_parser(__doc__, PARTS)
    parser.add_argument("--before", metavar="REV", help="the commit of part before")
    args = parser.parse_args(argv)
    if "before" in args.only and not args.before:
        if args.only is not PARTS and not args.write_readme:
            parser.error("--only before needs --before REV, a commit to compare with")
        args.only = tuple(part for part in args.only if part != "before")
    return args


def code():
    """Returns what the kept rounds belong to: the code of every example."""
    return {name: runs.fingerprint(name) for name in runs.examples()}


def measured(rounds):
    """Returns the parts of which there is something to show."""
    there = {key for one in rounds for key in one}
    found = [part for part in PARTS[:3] if there & {j.key for j in jobs_of([part])}]
    return found + ["before"] * any(key.startswith("before ") for key in there)


def main():
    with runs.finished(parse_args()) as args, contextlib.ExitStack() as stack:
        if args.write_readme:
            return runs.write_readme(args.out)
        before = None
        if "before" in args.only:
            before = stack.enter_context(runs.checkout(args.before))
        scale = 0.02 if args.quick else 1.0
        jobs = jobs_of(args.only, scale, before, args.timeout)
        alone = [*args.only] == ["before"]
        name = f"before-{args.before}" if alone else "overhead"
        rounds, progress = runs.in_rounds(jobs, args, name, code())
        # Parts measured at another time are shown too.
        text = markdown(rounds, measured(rounds))
        runs.write(args.out / f"{name}.md", text)
        print(text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
