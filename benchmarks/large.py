"""Whole runs with a center variable of 100 MB and of 1 GB: rates and memory.

The digits' perceptron with more hidden units, a mini-batch of one example and forty
rows of data: nearly all of a run is to read, send and write the vector. Runs of two
workers, with one ps where the scheme has one, in turn:

    100 MB   HogWild, Synchronous-SGD and Ring-All-Reduce, as they are and with one
             arena; HogWild's model under ClusterCoordinator
    1 GB     the three schemes, with one arena
    usual    the three schemes with 4,810 parameters: what a task needs without a large
             vector

The rate is that of the run: updates over the seconds from the first to the last.
The memory is the most that a task has had resident, with start and checkpoints, less
that of the same task with 4,810 parameters, in multiples of M. M is the size of the
center variable. One arena is MALLOC_ARENA_MAX=1: glibc has eight arenas for each core,
and memory that was freed in one of them is not used by the others.

    python benchmarks/large.py
    python benchmarks/large.py --quick
"""

import contextlib
import functools
import pathlib
import tempfile
import threading

import numpy as np
import runs

RING = "Ring-All-Reduce"
SCHEMES = {"HogWild": 1, "Synchronous-SGD": 1, RING: None}  # name: ps
COORDINATOR = "ClusterCoordinator"
WORKERS = 2
TASKS = ("ps 0", "worker 0", "worker 1")
# Units of the hidden layer, updates of a run, guess of its seconds, environment.
ONE = {"MALLOC_ARENA_MAX": 1}
SIZES = {
    "usual": (64, 200, 5, {}),
    "100 MB": (333_333, 100, 22, {}),
    "100 MB, one arena": (333_333, 100, 22, ONE),
    "1 GB": (3_333_333, 20, 60, ONE),
}
PARTS = ("100 MB", "1 GB")
LOOK = 0.05  # seconds between two looks at the memory of the tasks


def elements(size):
    """Returns the number of parameters."""
    return 75 * SIZES[size][0] + 10


# --- Memory -------------------------------------------------------------------


class Peaks(threading.Thread):
    """Looks at the tasks of a run until `end`; `found` is {task: bytes at most}."""

    def __init__(self, logdir):
        super().__init__(daemon=True)
        self.logdir, self.found = logdir, {}
        self.ended = threading.Event()
        self.start()

    def run(self):
        looks, paths = 0, {}
        while not self.ended.wait(LOOK):
            if looks % 20 == 0:
                paths = runs.tasks(self.logdir)
            looks += 1
            for task, path in paths.items():
                # The kernel keeps the maximum; a task that has ended has none.
                with contextlib.suppress(OSError, TypeError):
                    self.found[task] = runs.peak(path)

    def end(self):
        """Stops looking, and returns what was found."""
        self.ended.set()
        self.join()
        return self.found


# --- Runs ---------------------------------------------------------------------


def rows_of(folder):
    """Writes forty rows of data into a file of the folder, and returns its path."""
    y = np.arange(40) % 10
    x = np.random.default_rng(0).random((40, 64), np.float32)
    path = folder / "rows.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return path


def train(scheme, size, timeout, scale):
    """Runs a scheme; returns its rate and {task: bytes at most}."""
    hidden, steps, _, variables = SIZES[size]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        where = pathlib.Path(folder)
        units = where / "units.py"
        units.write_text(f"HIDDEN = {hidden}\n")
        flags = ["--data", rows_of(where), "--learning_rate", 1e-6, "--batch_size", 1]
        flags += ["--steps", max(10, int(steps * scale)), "--save_seconds", 3600]
        peaks = Peaks(where / "logdir")
        try:
            result = runs.run_example(
                scheme,
                list(map(str, flags)),
                SCHEMES[scheme],
                WORKERS,
                timeout=timeout,
                variables=variables,
                more={"problem.py": units},
                logdir=where / "logdir",
            )
        finally:
            found = peaks.end()
    return {"steps_per_second": result["steps_per_second"], "peaks": found}


def coordinated(timeout, scale):
    """Runs HogWild's model of 100 MB under ClusterCoordinator; returns its rate."""
    hidden, steps, *_ = SIZES["100 MB"]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        flags = ["--data", rows_of(pathlib.Path(folder)), "--hidden", hidden]
        flags += ["--steps", max(10, int(steps * scale)), "--warm_up", 10]
        flags += ["--learning_rate", 1e-6, "--batch_size", 1, "--join_every", 50]
        return runs.run_script("coordinator.py", *flags, timeout=timeout)


def jobs_of(args):
    """Returns the runs of a round."""
    scale = 0.1 if args.quick else 1.0
    jobs = []
    for size, (_, _, cost, _) in SIZES.items():
        for scheme in SCHEMES:
            parts = {one for one in PARTS if one in size} or set(PARTS)
            make = functools.partial(train, scheme, size, args.timeout, scale)
            jobs.append(runs.Job(f"{size}: {scheme}", parts, cost, make))
        if size == "100 MB":
            key = f"{size}: {COORDINATOR}"
            make = functools.partial(coordinated, args.timeout, scale)
            jobs.append(runs.Job(key, {size}, 20, make))
    if args.quick:
        jobs = [job for job in jobs if job.key.endswith("HogWild")]
    return [job for job in jobs if job.parts & set(args.only)]


# --- The tables ---------------------------------------------------------------


def rates_table(rounds):
    """Returns the table of the rates with 100 MB."""
    rows = []
    for scheme in (*SCHEMES, COORDINATOR):
        now = runs.series(rounds, f"100 MB: {scheme}", "steps_per_second")
        arena = f"100 MB, one arena: {scheme}"
        one = runs.spread(runs.series(rounds, arena, "steps_per_second"), 2)
        rows.append([scheme, runs.spread(now, 2), one])
    ours = runs.series(rounds, "100 MB: HogWild", "steps_per_second")
    theirs = runs.series(rounds, f"100 MB: {COORDINATOR}", "steps_per_second")
    over = runs.spread(runs.ratios(ours, theirs), 2)
    text = runs.table(["2 workers", "steps/s", "with one arena"], rows)
    return text + f"\nHogWild makes {over} times the steps/s of {COORDINATOR}.\n"


def memory(rounds, size, scheme, task):
    """Returns what a task needs more than with 4,810 parameters, in M, by round."""

    def series(size):
        found = runs.series(rounds, f"{size}: {scheme}", "peaks")
        return [(peaks or {}).get(task) for peaks in found]

    pairs = zip(series(size), series("usual"), strict=True)
    unit = 4 * elements(size)  # bytes
    return [(a - b) / unit if a and b else None for a, b in pairs]


def memory_table(rounds):
    """Returns the table of the memory of each task, in multiples of M."""
    rows = []
    for scheme in SCHEMES:
        for task in TASKS:
            cells = [
                runs.spread(memory(rounds, size, scheme, task), 1)
                for size in [*SIZES][1:]
            ]
            if set(cells) != {"-"}:
                name = f"{task}, the chief" if task == "worker 0" else task
                rows.append([f"{scheme}: {name}", *cells])
    header = ["", "100 MB", "100 MB, one arena", "1 GB, one arena"]
    return runs.table(header, rows)


def gigabyte_table(rounds):
    """Returns the table of the rates with 1 GB."""
    rows = []
    for scheme in SCHEMES:
        found = runs.series(rounds, f"1 GB: {scheme}", "steps_per_second")
        all_of = runs.series(rounds, f"1 GB: {scheme}", "peaks")
        most = [max(peaks.values()) / 1e9 if peaks else None for peaks in all_of]
        total = [sum(peaks.values()) / 1e9 if peaks else None for peaks in all_of]
        cells = [runs.spread(found, 2), runs.spread(most, 1), runs.spread(total, 1)]
        rows.append([scheme, *cells])
    return runs.table(["2 workers", "steps/s", "largest task, GB", "all, GB"], rows)


def markdown(rounds):
    """Returns the tables."""
    small, large = elements("100 MB"), elements("1 GB")
    return (
        runs.count_of(rounds)
        + f"\n### 100 MB\n\n{small:,} parameters.\n\n"
        + rates_table(rounds)
        + f"\n### 1 GB\n\n{large:,} parameters.\n\n"
        + gigabyte_table(rounds)
        + "\n### Memory of a task at most, in M\n\n"
        + memory_table(rounds)
    )


def main():
    parser = runs.measuring_parser(__doc__, PARTS)
    with runs.finished(parser.parse_args()) as args:
        if args.quick:
            SIZES.update(
                {size: (3_333, 20, 5, SIZES[size][-1]) for size in [*SIZES][1:]}
            )
        code = {scheme: runs.fingerprint(scheme) for scheme in SCHEMES}
        rounds, progress = runs.in_rounds(jobs_of(args), args, "large", code)
        text = markdown(rounds)
        runs.publish(args, "large", text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
