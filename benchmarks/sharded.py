"""Sharded-Data-Parallel: memory of a worker, bytes and seconds of a step, by --stage.

The model is a perceptron of five hidden layers with 25,000,000 weights, so that a
vector of all is 100 MB. Whole runs by run.sh, of 1, 2 and 4 workers in each stage:

    memory   what a worker has resident at most, from its first line on, above that of
             the same run with a model of 17,000 weights
    bytes    what went through the loopback device of the run's own network, per step
    rate     steps per second, as a ratio within the round
    limit    a model of 100,000,000 weights, and a limit of 4.6 GB for the data of each
             process (RLIMIT_DATA): a run of one worker, and of four in stage 3

    python benchmarks/sharded.py
    python benchmarks/sharded.py --only memory
    python benchmarks/sharded.py --quick

Memory and bytes are the same on a busy machine, rates are not.
"""

import contextlib
import json
import pathlib
import re
import resource
import shutil
import tempfile
import time

import figures
import runs

FOLDER = "Sharded-Data-Parallel"
STAGES, WORKERS = range(4), (1, 2, 4)
WIDTH, SMALL = 2490, 56  # units of a hidden layer: of the model, and of next to none
STEPS, BATCH = 8, 8
# Freed memory goes back to the system at once, so that what is resident is in use.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": 2**20, "MALLOC_TRIM_THRESHOLD_": 2**20}
MALLOC["MALLOC_MMAP_MAX_"] = 2**16  # as many as usual
PARTS = ("memory", "limit")
LARGE, LIMIT = 4980, 4_600_000_000  # units and bytes of part limit
LIMITED = {"1 worker, stage 0": (0, 1), "4 workers, stage 3": (3, 4)}
STEP = re.compile(r"\[worker (\d+)\] step +(\d+)/")


def parameters(width):
    """Returns how many weights the model has."""
    widths = [64, *[width] * 5, 10]
    return sum((a + 1) * b for a, b in zip(widths, widths[1:], strict=False))


CHANGES = (  # of problem.py
    ("HIDDEN = 64 ", "HIDDEN = {} "),
    (
        "    return [(features, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]\n",
        "    widths = [features, *[HIDDEN] * 5, classes]\n"
        "    pairs = zip(widths, widths[1:], strict=False)\n"
        "    return [shape for a, b in pairs for shape in ((a, b), (b,))]\n",
    ),
    (
        "    w1, b1, w2, b2 = parameters\n"
        "    return tf.nn.relu(images @ w1 + b1) @ w2 + b2\n",
        "    *hidden, w, b = parameters\n"
        "    for first, second in zip(hidden[::2], hidden[1::2], strict=True):\n"
        "        images = tf.nn.relu(images @ first + second)\n"
        "    return images @ w + b\n",
    ),
)


@contextlib.contextmanager
def model(width):
    """Gives a copy of the example whose model has this width."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        copy = pathlib.Path(parent, FOLDER)
        ignored = shutil.ignore_patterns("logdir", "__py*")
        shutil.copytree(runs.REPO / FOLDER, copy, ignore=ignored)
        text = (copy / "problem.py").read_text()
        for old, new in CHANGES:
            if text.count(old) != 1:
                raise runs.Unfinished(f"{FOLDER}/problem.py: {old!r} is not once in it")
            text = text.replace(old, new.format(width))
        (copy / "problem.py").write_text(text)
        yield copy


# --- What a process and its network have used ------------------------------------


def data(path):
    """Returns the bytes of a process that count for RLIMIT_DATA, now."""
    text = (path / "status").read_text()
    return 1024 * int(re.search(r"VmData:\s+(\d+) kB", text)[1])


def forget(path):
    """Has the kernel count the peak of a process from now on."""
    (path / "clear_refs").write_text("5")


def received(path):
    """Returns the bytes that came through the loopback device of a process."""
    text = (path / "net" / "dev").read_text()
    return int(re.search(r"lo: *(\d+)", text)[1])


def watched(copy, stage, workers, steps, timeout, limit=None):
    """Runs the copy; returns peaks by worker, bytes per step, and result.json."""

    def limited():
        if limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="benchmark-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        logdir = pathlib.Path(folder, "logdir")
        env = runs.environment(
            LOGDIR=logdir, TIMEOUT=timeout, NUM_WORKERS=workers, **MALLOC
        )
        flags = ["--stage", stage, "--steps", steps, "--batch_size", BATCH]
        command = ["bash", copy / "run.sh", *flags, "--save_seconds", 3600]
        pipes = dict(stdout=-1, stderr=-2, text=True, preexec_fn=limited)
        child = stack.enter_context(runs.process(command, env=env, **pipes))
        reader, peaks, counts, paths = runs.Lines(child.stdout), {}, [], {}
        seen, most = 0, 0
        while child.poll() is None:
            lines = [line for _, line in reader.lines]
            for line in lines[seen:]:
                match = STEP.match(line)
                if match and not paths:
                    paths = runs.tasks(logdir)
                    for path in paths.values():
                        forget(path)
                if match and match[1] == "0" and "worker 0" in paths:
                    with contextlib.suppress(OSError):
                        counts.append((int(match[2]), received(paths["worker 0"])))
            seen = len(lines)
            for path in runs.tasks(logdir).values() if limit else ():
                with contextlib.suppress(OSError, TypeError):
                    most = max(most, data(path))
            for worker, path in paths.items():
                with contextlib.suppress(OSError, TypeError):
                    peaks[worker] = runs.peak(path)
            time.sleep(0.02)
        reader.join(5)
        text = "\n".join(line for _, line in reader.lines)
        if child.returncode:
            if limit:
                said = [line for line in text.splitlines() if "Error" in line]
                return {"status": child.returncode, "data": most, "said": said[:3]}
            raise runs.Unfinished(f"stage {stage}, {workers} workers:\n{text[-2000:]}")
        result = json.loads((logdir / "result.json").read_text())
    (begin, before), (end, after) = counts[0], counts[-1]
    return {
        "status": 0,
        "data": most,
        "chief": peaks["worker 0"],
        "worker": max(
            peaks[f"worker {k}"] for k in range(min(1, workers - 1), workers)
        ),
        "bytes": (after - before) / max(1, end - begin),
        "counted": result["bytes_pushed"] / result["global_steps"],
        "steps_per_second": result["steps_per_second"],
        "test_accuracy": result["test_accuracy"],
    }


# --- The measurements -------------------------------------------------------------


def jobs_of(args):
    """Returns the measurements of a round."""
    big, small = (600, SMALL) if args.quick else (WIDTH, SMALL)

    def of(width, stage, workers):
        def make():
            with model(width) as copy:
                return watched(copy, stage, workers, STEPS, args.timeout)

        return make

    jobs = []
    for workers in WORKERS[1:2] if args.quick else WORKERS:
        # What there is without a model is the same in all stages.
        for width, stages in ((small, [3]), (big, [3] if args.quick else STAGES)):
            for stage in stages:
                key = f"{workers} of {width}, stage {stage}"
                cost = 20 + 15 * workers
                jobs.append(runs.Job(key, {"memory"}, cost, of(width, stage, workers)))
    return jobs


def limit_jobs(args):
    """Returns the runs with a limit for each process."""

    def of(stage, workers):
        def make():
            width, limit = (600, 2 * LIMIT) if args.quick else (LARGE, LIMIT)
            with model(width) as copy:
                return watched(copy, stage, workers, 2, args.timeout, limit)

        return make

    chosen = [*LIMITED.items()][-1:] if args.quick else LIMITED.items()
    return [runs.Job(label, {"limit"}, 100, of(*what)) for label, what in chosen]


def limit_markdown(rounds):
    """Returns who trains within the limit."""
    rows = []
    for label in LIMITED:
        found = [measured[label] for measured in rounds if label in measured]
        rows.append(
            [
                label,
                ", ".join(str(run["status"]) for run in found) or "-",
                runs.spread([run["data"] / 1e9 for run in found], 2),
            ]
        )
    return (
        runs.count_of(rounds)
        + f"\n### {parameters(LARGE):,} weights, {LIMIT / 1e9:g} GB a process\n\n"
        + runs.table(["", "exit status", "data at most, GB"], rows)
    )


def formula(stage, workers, elements):
    """Returns the bytes of w, of the gradient and of m and v on a worker."""
    w, gradient, state = 4 * elements, 4 * elements, 8 * elements
    state /= workers if stage > 0 else 1
    gradient /= workers if stage > 1 else 1
    w /= workers if stage > 2 else 1
    return w + gradient + state


def markdown(rounds, out, big):
    """Returns the table of the stages, and draws the figure."""
    rows, drawn = [], {}
    elements = parameters(big)
    size = 4 * elements
    for workers in WORKERS:
        empty = f"{workers} of {SMALL}, stage 3"
        base = f"{workers} of {big}, stage 0"
        for stage in STAGES:
            key = f"{workers} of {big}, stage {stage}"

            def above(who, key=key, empty=empty):
                pair = (runs.series(rounds, name, who) for name in (key, empty))
                return [
                    (a - b) / 1e6 if a and b else None
                    for a, b in zip(*pair, strict=True)
                ]

            moved = runs.series(rounds, key, "bytes")
            counted = runs.series(rounds, key, "counted")
            rate = runs.series(rounds, key, "steps_per_second")
            ratio = runs.ratios(rate, runs.series(rounds, base, "steps_per_second"))
            share = workers * size
            drawn[workers, stage] = runs.middle(above("worker"))
            rows.append(
                [
                    f"{workers}, stage {stage}",
                    f"{formula(stage, workers, elements) / 1e6:,.0f}",
                    runs.spread(above("worker")),
                    runs.spread(above("chief")),
                    runs.spread(
                        [x / share if x is not None else x for x in counted], 2
                    ),
                    runs.spread([x / share if x is not None else x for x in moved], 2),
                    runs.spread(ratio, 2),
                ]
            )
    draw(drawn, elements, out / "sharded")
    header = ["workers", "w, gradient, m, v: MB", "resident, MB", "resident, chief"]
    header += ["sent by a worker, in M", "on the wire, in M", "steps/s over stage 0"]
    return (
        runs.count_of(rounds)
        + f"\n### The stages\n\nA model of {elements:,} weights.\n\n"
        + runs.table(header, rows)
        + "\n"
        + figures.shown("Memory of a worker by stage and number of workers", "sharded")
    )


def draw(found, elements, path):
    """Draws resident memory by workers, a line for each stage; formulas are dotted."""
    figure, axes = figures.pyplot().subplots(figsize=(7.6, 4.4), layout="constrained")
    for stage, mark, color in zip(STAGES, figures.MARKS, figures.LINES, strict=False):
        at = [n for n in WORKERS if found.get((n, stage)) is not None]
        axes.plot(
            at,
            [found[n, stage] for n in at],
            marker=mark,
            color=color,
            label=f"stage {stage}, measured",
        )
        ideal = [formula(stage, n, elements) / 1e6 for n in WORKERS]
        axes.plot(WORKERS, ideal, marker=mark, mfc="none", color=color, ls=":")
    axes.plot([], [], color=figures.GREY, ls=":", label="w, gradient, m and v alone")
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKERS, WORKERS)
    axes.set_ylim(0, 1650)
    axes.set_xlabel("workers")
    axes.set_ylabel("resident at most, above an empty model, MB")
    axes.legend(frameon=False, loc="upper center", ncols=2)
    figures.save(figure, path)


def main():
    with runs.finished(runs.measuring_parser(__doc__, PARTS).parse_args()) as args:
        code = {FOLDER: runs.fingerprint(FOLDER), "steps": STEPS}
        if "memory" in args.only:
            rounds, progress = runs.in_rounds(jobs_of(args), args, "sharded", code)
            text = markdown(rounds, args.out, 600 if args.quick else WIDTH)
            runs.publish(args, "sharded", text)
            progress.end()
        if "limit" in args.only:
            jobs = limit_jobs(args)
            rounds, progress = runs.in_rounds(jobs, args, "sharded-limit", code)
            runs.publish(args, "sharded-limit", limit_markdown(rounds))
            progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
