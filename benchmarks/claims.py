"""The papers' claims on real processes: the schemes' own run.sh, tables and figures.

    window     accuracy against the communication window T at an equal number of
               gradients, a line per scheme, with the bytes that were pushed
    rate       HogWild's accuracy against learning rate and number of workers, with
               the staleness that was measured
    straggler  one worker about four times slower: seconds and dropped gradients of four
               schemes that apply the same number of gradients
    delay      eight workers: accuracy against learning rate, of HogWild and with the
               delay compensated
    bound      Stale-Synchronous-Parallel: seconds until a training loss is reached,
               against s, and how stale the gradients were; workers that stall now and
               then, and one that is always slow
    bytes      Gradient-Compression: accuracy against bytes, of each method, with and
               without error feedback

Workers of different processes on few cores do not run at the same time. So each
gradient is made to take longer by --slow_workers: sleeping workers do run in
parallel, and the staleness comes out as with N machines. The accuracy is that of the
center variable. Training that diverged is drawn as such, at chance.

Writes a figure per part, and claims-runs.json, in which finished runs are kept; the
next start repeats none whose example is unchanged.

    python benchmarks/claims.py                      everything
    python benchmarks/claims.py --only rate
    python benchmarks/claims.py --seeds 1            a quarter of the time, no bands
    python benchmarks/claims.py --draw               draws what is kept, no more
    python benchmarks/claims.py --quick              a test of the script
"""

import json
import math
import statistics
import sys
import tempfile
from collections import Counter, namedtuple

import figures
import runs
from figures import CHANCE, accuracy

PARTS = ("window", "rate", "straggler", "delay", "bound", "bytes")
TRAINS = 0.9  # the accuracy from which on a run counts as one that trains

# window: N = 4; gradients in all, so that steps = GRADIENTS / T is whole
WINDOWS = (1, 4, 16, 64)
GRADIENTS = 4096
WORKERS = 4
GRADIENT_SECONDS = 0.005

# rate
RATES = (0.1, 0.2, 0.4, 0.8, 1.2, 1.6)
COUNTS = (1, 2, 4, 8)
RATE_STEPS = 3000

# straggler: worker 3 of 4
FAST, SLOW = 0.01, 0.04
STRAGGLER_GRADIENTS = 2000

# delay: eight workers
DELAY_RATES = (0.1, 0.2, 0.3, 0.4, 0.6)
DELAY_WORKERS = 8

# bound: s, the last of them no bound; a gradient stalls for STALL with probability ODDS
BOUNDS = (0, 1, 2, 4, 8, 16, 1_000_000)
STALL, ODDS = 10 * FAST, 0.05
BOUND_STEPS = 2000
REACHED, OVER = 0.2, 100  # training loss, a mean over so many updates

# bytes: (label, method, keep or None), each with and without error feedback
METHODS = [
    ("top 10 %", "topk", 0.1),
    ("top 1 %", "topk", 0.01),
    ("top 0.1 %", "topk", 0.001),
    ("random 1 %", "random_k", 0.01),
    ("signs", "sign", None),
    ("bytes", "int8", None),
]
WHOLE = "whole gradients"
BYTES_STEPS = 4000

# What an event simulation of the same model on the same digits gave, with staleness
# N - 1 and atomic pushes: test accuracies, and the largest rate that trains.
SIMULATED_WINDOW = {
    "DOWNPOUR, fixed rate": (0.969, 0.971, 0.214, 0.215),
    "AGN": (0.969, 0.962, 0.943, 0.826),
    "AEASGD": (0.967, 0.968, 0.969, 0.968),
    "AEAMSGD": (0.962, 0.964, 0.967, 0.968),
}
SIMULATED_DELAY = {"HogWild": 0.2, "DC-ASGD, adaptive, λ₀ = 2": 0.3}
SIMULATED_RATE = {1: 0.8, 2: 0.8, 4: 0.4, 8: 0.2}

# A run: what it is called, the example, its flags, its workers, a guess of its
# seconds, and (old, new) where it runs a copy of the script with one text replaced.
# With a tuple of numbers of workers it is begun once for each, see `in_turn`. `more`
# are files for the copy, as `runs.variant` has them.
Run = namedtuple(
    "Run", "part label x folder flags workers cost change more", defaults=[None, None]
)
SEEDS, BAND = 3, 5  # of a cell, and of one of part window, whose lines have a band

# DOWNPOUR with a fixed rate on the ps pushes the sum of a window to plain SGD: that is
# AGN but for the division by T. No example is this, as it does not hold.
SUM = ("rounds.push(total / args.window, center)", "rounds.push(total, center)")

# Each round of a worker with its staleness, loss and time, in LOGDIR; and, in place of
# --slow_workers, which is constant, gradients that stall now and then.
BATCH = "rounds.in_turn(learning.batch)"
BEGIN = f"        loss, batch = slow.slowed(learning.loss, args), {BATCH}\n"
RECORDED = """
        from cluster import report

        usual, path = report.Report.rounds, f"{args.logdir}/rounds-{me}.txt"

        def record(told, losses, counts):
            with open(path, "a") as file:
                for loss_, (step, staleness, became) in zip(losses, counts):
                    if became == 1:
                        now = __import__("time").time()
                        print(now, step, staleness, loss_, file=file)
            usual(told, losses, counts)

        report.Report.rounds = record
"""
STALLING = f"""
        def stall(_):
            random, time = __import__("random"), __import__("time")
            time.sleep({STALL} if random.random() < {ODDS} else {FAST})

        def loss(w, c):
            with tf.control_dependencies([tf.py_func(stall, [w[0]], [])]):
                return learning.loss(tf.identity(w), c)

        batch = {BATCH}
"""


# --- The runs -----------------------------------------------------------------


def window_lines():
    """Returns the schemes of part window: (label, folder, flags, change)."""
    adagrad = ["--learning_rate", 0.1, "--server_learning_rate", 0.05]
    momentum = ["--learning_rate", 0.05, "--beta", 0.9, "--momentum", 0.9]
    return [
        ("DOWNPOUR, fixed rate", "AGN", ["--learning_rate", 0.1], SUM),
        ("DOWNPOUR-Easy, Adagrad on the ps", "DOWNPOUR-Easy", adagrad, None),
        ("DOWNPOUR, Adagrad on both", "DOWNPOUR", adagrad, None),
        ("AGN", "AGN", ["--learning_rate", 0.1], None),
        ("AEASGD", "AEASGD", ["--learning_rate", 0.4, "--beta", 0.9], None),
        ("AEAMSGD", "AEAMSGD", momentum, None),
        ("SAGN", "SAGN", ["--learning_rate", 0.1], None),
    ]


def window_runs(scale):
    """Returns the runs of part window."""
    found = []
    for label, folder, rates, change in window_lines():
        for window in WINDOWS:
            steps = max(1, int(GRADIENTS * scale) // window)
            if folder == "SAGN":  # whose update is a window of every worker's
                steps = max(1, steps // WORKERS)
                rates = [*rates[:2], "--server_learning_rate", 0.1 * window]
            flags = [*rates, "--window", window, "--steps", steps]
            flags += ["--slow_workers", GRADIENT_SECONDS]
            run = Run("window", label, window, folder, flags, WORKERS, 22, change)
            found.append(run)
    return found


def rate_runs(scale):
    """Returns the runs of part rate.

    A gradient takes longer, the more workers there are, so that the processors of a
    small machine are not what the workers wait for.
    """
    found = []
    for workers in COUNTS:
        for rate in RATES:
            flags = ["--learning_rate", rate, "--steps", int(RATE_STEPS * scale)]
            if workers > 1:
                flags += ["--slow_workers", 0.0025 * workers]
            cost = 12 + 3 * workers
            found.append(Run("rate", workers, rate, "HogWild", flags, workers, cost))
    return found


def straggler_runs(scale):
    """Returns the runs of part straggler.

    The rates are such that each gradient has the same weight: a mean of n gradients
    has n times the rate of one, and Dynamic-SGD divides by the staleness + 1.
    """
    slow = f"{FAST},{FAST},{FAST},{SLOW}"
    schemes = [
        ("Synchronous-SGD, all equally fast", "Synchronous-SGD", [], 4, 0.4, FAST),
        ("Synchronous-SGD", "Synchronous-SGD", [], 4, 0.4, slow),
        (
            "Synchronous-SGD, a backup worker",
            "Synchronous-SGD",
            ["--replicas_to_aggregate", 3],
            3,
            0.3,
            slow,
        ),
        ("HogWild", "HogWild", [], 1, 0.1, slow),
        ("Dynamic-SGD", "Dynamic-SGD", [], 1, 0.4, slow),
    ]
    found = []
    for label, folder, more, gradients, rate, seconds in schemes:
        steps = max(1, int(STRAGGLER_GRADIENTS * scale / gradients))
        flags = [*more, "--learning_rate", rate, "--steps", steps]
        flags += ["--slow_workers", seconds]
        found.append(Run("straggler", label, steps, folder, flags, WORKERS, 30))
    return found


def delay_runs(scale):
    """Returns the runs of part delay."""
    schemes = [
        ("HogWild", "HogWild", []),
        ("DC-ASGD, constant, λ₀ = 0.04", "DC-ASGD", ["--variance", "constant"]),
        ("DC-ASGD, adaptive, λ₀ = 2", "DC-ASGD", ["--variance", "adaptive"]),
        ("DC-ASGD, adaptive, λ₀ = 0.5", "DC-ASGD", ["--strength", 0.5]),
    ]
    found = []
    for label, folder, more in schemes:
        for rate in DELAY_RATES:
            flags = ["--learning_rate", rate, "--steps", int(RATE_STEPS * scale)]
            flags += ["--slow_workers", 0.0025 * DELAY_WORKERS, *more]
            found.append(Run("delay", label, rate, folder, flags, DELAY_WORKERS, 36))
    return found


def bound_runs(scale):
    """Returns the runs of part bound."""
    slow = f"{FAST},{FAST},{FAST},{SLOW}"
    kinds = [
        ("each stalls now and then", [], (BEGIN, STALLING + RECORDED)),
        ("one is always slow", ["--slow_workers", slow], (BEGIN, BEGIN + RECORDED)),
    ]
    found = []
    for label, more, change in kinds:
        for bound in BOUNDS:
            flags = ["--staleness", bound, "--learning_rate", 0.1, *more]
            flags += ["--steps", max(OVER, int(BOUND_STEPS * scale))]
            folder = "Stale-Synchronous-Parallel"
            run = Run("bound", label, bound, folder, flags, WORKERS, 30, change)
            found.append(run)
    return found


def bytes_runs(scale):
    """Returns the runs of part bytes."""
    general = ["--learning_rate", 0.1, "--steps", int(BYTES_STEPS * scale)]
    general += ["--slow_workers", GRADIENT_SECONDS]
    found = [Run("bytes", WHOLE, "on", "HogWild", general, WORKERS, 20)]
    for label, method, keep in METHODS:
        for feedback in ("on", "off"):
            flags = [*general, "--method", method, "--error_feedback", feedback]
            flags += ["--keep", keep] if keep else []
            folder = "Gradient-Compression"
            found.append(Run("bytes", label, feedback, folder, flags, WORKERS, 20))
    return found


PLANS = {
    "window": window_runs,
    "rate": rate_runs,
    "straggler": straggler_runs,
    "delay": delay_runs,
    "bound": bound_runs,
    "bytes": bytes_runs,
}


def rounds_of(logdir):
    """Returns what RECORDED has left: how often each staleness was, and time to a loss.

    The time is from the first update to the first one at which the mean loss of the
    last OVER updates is at most REACHED, None if there is none.
    """
    texts = [path.read_text() for path in logdir.glob("rounds-*.txt")]
    rows = [
        list(map(float, line.split())) for text in texts for line in text.splitlines()
    ]
    rows.sort(key=lambda row: row[1])  # by the number of the update
    times, _, staleness, losses = zip(*rows, strict=True)
    reached = None
    for end in range(OVER, len(rows) + 1):
        if statistics.fmean(losses[end - OVER : end]) <= REACHED:
            reached = max(times[:end]) - min(times)
            break
    counts = Counter(map(int, staleness))
    return {"staleness": sorted(counts.items()), "seconds_to_loss": reached}


def seeded(planned, seeds):
    """Returns the runs once for each seed; seed 0 is that of no flag."""
    more = [
        run._replace(flags=[*run.flags, "--seed", seed])
        for seed in range(1, seeds)
        for run in planned
    ]
    return [*planned, *more]


def plan(parts, scale=1.0, seeds=1):
    """Returns the runs of the parts; those of examples that are not there are left out.

    All runs of one seed come before those of the next: an early end leaves a whole
    table.
    """
    there = set(runs.examples())
    found = []
    for part in parts:
        found += seeded(
            PLANS[part](scale), min(seeds, BAND if part == "window" else SEEDS)
        )
    for folder in sorted({run.folder for run in found} - there):
        print(f"claims.py: no folder {folder}, its runs are left out", file=sys.stderr)
    return [run for run in found if run.folder in there]


def numbers(run):
    """Returns the numbers of workers that a run has, one after the other."""
    return run.workers if isinstance(run.workers, tuple) else (run.workers,)


def in_turn(run, timeout, ps=None, **more):
    """Makes a run, begun anew from its checkpoint for each number of workers.

    Each has an equal share of the global steps, which `--steps` has. Returns the last
    result; the examples in it are those of all.
    """
    place = run.flags.index("--steps") + 1
    with tempfile.TemporaryDirectory(prefix="benchmark-") as logdir:
        for number, workers in enumerate(numbers(run), 1):
            flags = list(run.flags)
            flags[place] = run.flags[place] * number // len(numbers(run))
            options = [flags, ps, workers, timeout, run.change]
            result = runs.run_example(run.folder, *options, logdir=logdir, **more)
    return result


class Cache:
    """The finished runs, by command, in a JSON file."""

    def __init__(self, path, again=False):
        self.path = path
        fresh = again or not path.exists()
        self.runs = {} if fresh else json.loads(path.read_text())

    @staticmethod
    def key(run):
        """Returns the command of a run, which is what it is known by."""
        flags = " ".join(map(str, run.flags))
        changed = f"  # with {' '.join(run.change[1].split())}" if run.change else ""
        workers = ",".join(map(str, numbers(run)))
        files = (run.more or {}).items()
        added = [
            f"{path.name} >> {name}; " for name, path in files if path.name != name
        ]
        command = f"NUM_WORKERS={workers} bash {run.folder}/run.sh {flags}"
        return "".join(added) + command + changed

    @staticmethod
    def code(run):
        """Returns the hash of the code of a run."""
        return runs.fingerprint(run.folder, *([run.more] if run.more else []))

    def get(self, run):
        """Returns the result of a run, None if it is not there or of other code."""
        entry = self.runs.get(self.key(run))
        if entry and entry["code"] == self.code(run):
            return entry["result"]
        return None

    def kept(self, run):
        """Returns the result of a run by whatever code, None if it is not there.

        What stands behind `# with` is code.
        """
        command = self.key(run).partition("# with")
        for key, entry in self.runs.items():
            if key.partition("# with")[:2] == command[:2]:
                return entry["result"]
        return None

    def put(self, run, result):
        """Keeps the result of a run, on disk at once; the command says its flags."""
        result = {name: x for name, x in result.items() if name != "flags"}
        entry = {"code": self.code(run), "measured": runs.now(), "result": result}
        self.runs[self.key(run)] = entry
        runs.write_json(self.path, self.runs)


def measure(planned, cache, timeout, ps=1, logs=None):
    """Makes the runs that are not in the cache, one at a time; returns the progress.

    `ps` None is as many as the example's own run.sh starts. `logs`, by part, reads
    what is in LOGDIR after a run; see runs.run_example.
    """
    logs = {"bound": rounds_of} if logs is None else logs
    progress = runs.Progress([0 if cache.get(run) else run.cost for run in planned])
    for run in planned:

        def text(result, run=run):
            what = "diverged" if "diverged" in result else f"{accuracy(result):.3f}"
            return f"{run.part}: {run.label}, {run.x}: {what}"

        def make(run=run):
            more = {"logs": logs[run.part]} if run.part in logs else {}
            more |= {"more": run.more} if run.more else {}
            if isinstance(run.workers, tuple):
                return in_turn(run, timeout, ps, **more)
            return runs.run_example(
                run.folder, run.flags, ps, run.workers, timeout, run.change, **more
            )

        result = cache.get(run)
        if result is not None:
            progress.add(text(result))
            continue
        result = progress.make(text, make)
        if result is not None:
            cache.put(run, result)
    return progress


# --- Tables -------------------------------------------------------------------


def together(results):
    """Returns what a cell shows of its seeds: the run in the middle by accuracy.

    Of an even number it is the worse of two. Its seconds are the medians of all, where
    all have them. `each` in it are all of them.
    """
    if len(results) == 1:
        return results[0]
    results = sorted(results, key=accuracy)
    cell = {**results[(len(results) - 1) // 2], "each": results}
    for key in ("seconds", "seconds_to_loss"):
        if all(run.get(key) for run in results):
            cell[key] = runs.middle([run[key] for run in results])
    return cell


def grid(planned, cache, any_code=False):
    """Returns {label: {x: result}} of the runs that are done, in their order."""
    found = {}
    for run in planned:
        result = cache.kept(run) if any_code else cache.get(run)
        if result is not None:
            found.setdefault(run.label, {}).setdefault(run.x, []).append(result)
    return {
        label: {x: together(results) for x, results in row.items()}
        for label, row in found.items()
    }


def percent(result):
    """Returns a run's accuracy as a cell."""
    if result is None:
        return "-"
    if "diverged" in result:
        return "diverged"
    return f"{100 * result['test_accuracy']:.1f} %"


def trains(result):
    """Says whether a run came to a useful accuracy."""
    return accuracy(result) >= TRAINS


def megabytes(found, window):
    """Returns what a run pushes at a window as a cell, in MB: the same for all."""
    for row in found.values():
        if "bytes_pushed" in row.get(window, {}):
            return f"{row[window]['bytes_pushed'] / 1e6:.2f}"
    return "-"


def seconds_to_loss(run):
    """Returns the seconds until a run's loss was small, infinity if it never was."""
    return run.get("seconds_to_loss") or math.inf


def timed(result, key):
    """Returns the seconds of a cell as text: the median, smallest and largest."""
    return runs.spread([run.get(key) for run in figures.each(result)], 1)


def seeds_of(found, seconds=False):
    """Returns the sentence that says how many seeds a cell has, if not one."""
    counts = {len(figures.each(r)) for row in found.values() for r in row.values()}
    if counts <= {1}:
        return ""
    least, most = min(counts), max(counts)
    number = f"{most}" if least == most else f"{least} to {most}"
    text = f" A cell is the run in the middle of {number} seeds, by accuracy."
    return text + seconds * " Seconds are medians, smallest and largest in brackets."


def window_text(found, name):
    """Returns the markdown of part window."""
    rows = [
        [label, *(percent(row.get(window)) for window in WINDOWS)]
        for label, row in found.items()
    ]
    rows.append(["MB pushed", *(megabytes(found, window) for window in WINDOWS)])
    text = "### Accuracy against window\n\n"
    text += figures.shown("accuracy against window", f"{name}-window") + "\n"
    text += runs.table(["test accuracy", *(f"T = {w}" for w in WINDOWS)], rows)
    text += (
        f"\nN = {WORKERS}, about {GRADIENTS} gradients in every cell, each "
        f"{1000 * GRADIENT_SECONDS:g} ms longer by a sleep."
    )
    seeds = seeds_of(found)
    text += f"{seeds} The band is from best to worst.\n" if seeds else "\n"
    seen = []
    for label in ("AEASGD", "AEAMSGD"):
        row = found.get(label, {})
        ends = [row.get(w) for w in (WINDOWS[0], WINDOWS[-1])]
        if all(end and "diverged" not in end for end in ends):
            share = ends[0]["bytes_pushed"] / ends[1]["bytes_pushed"]
            seen.append(
                f"{label} at T = {WINDOWS[-1]} has {percent(ends[1])} where T = 1 has "
                f"{percent(ends[0])}, with 1/{share:.0f} of the bytes."
            )
    for label, expected in SIMULATED_WINDOW.items():
        for window, value in zip(WINDOWS, expected, strict=True):
            result = found.get(label, {}).get(window)
            if result and trains(result) != (value >= TRAINS):
                seen.append(
                    f"{label} at T = {window}: {percent(result)} here, "
                    f"{100 * value:.1f} % in the simulation."
                )
    return text + sentences(seen)


def largest(row):
    """Returns the largest rate up to which every smaller one trains too, or None."""
    best = None
    for rate in sorted(row):
        if not trains(row[rate]):
            break
        best = rate
    return best


def rate_text(found, name):
    """Returns the markdown of part rate."""
    text = "### Accuracy against learning rate and number of workers\n\n"
    text += figures.shown("accuracy against rate and workers", f"{name}-rate") + "\n"
    rows = []
    for workers, row in found.items():
        cells = []
        for rate in RATES:
            result = row.get(rate)
            stale = "" if not result else result.get("mean_staleness")
            more = f" ({stale:.1f})" if isinstance(stale, float) else ""
            cells.append(percent(result) + more)
        rows.append([f"N = {workers}", *cells])
    text += runs.table(["HogWild", *(f"η = {rate:g}" for rate in RATES)], rows)
    text += (
        f"\n{RATE_STEPS} updates; in brackets the mean staleness."
        f"{seeds_of(found)} The largest rate that still trains\n"
        f"(accuracy of {TRAINS:g} or more, at every smaller rate too):\n\n"
    )
    rows = []
    for workers, row in found.items():
        best = largest(row)
        rows.append([workers, best or "none", SIMULATED_RATE.get(workers, "-")])
    return text + runs.table(["N", "here", "simulated, staleness N − 1"], rows)


def straggler_text(found, name):
    """Returns the markdown of part straggler."""
    text = "### One slow worker of four\n\n"
    text += figures.shown("one slow worker", f"{name}-straggler") + "\n"
    rows = []
    for label, row in found.items():
        (result,) = row.values()
        if "diverged" in result:
            rows.append([label, "diverged", "-", "-", "-", "-"])
            continue
        counts = result["rounds_per_worker"]
        rows.append(
            [
                label,
                timed(result, "seconds"),
                result["global_steps"],
                result["gradients_dropped"],
                " ".join(str(counts[key]) for key in sorted(counts)),
                percent(result),
            ]
        )
    header = ["", "seconds", "updates", "gradients dropped", "rounds of each worker"]
    text += runs.table([*header, "test accuracy"], rows)
    return text + (
        f"\n{STRAGGLER_GRADIENTS} gradients are applied in each run; a gradient takes "
        f"{1000 * FAST:g} ms longer, the slow worker's {1000 * SLOW:g} ms."
        f"{seeds_of(found, seconds=True)}\n"
    )


def delay_text(found, name):
    """Returns the markdown of part delay."""
    text = "### Late gradients, repaired\n\n"
    text += figures.shown("accuracy against rate", f"{name}-delay") + "\n"
    rows = [
        [
            label,
            *(percent(row.get(rate)) for rate in DELAY_RATES),
            largest(row) or "none",
        ]
        for label, row in found.items()
    ]
    header = ["", *(f"η = {rate:g}" for rate in DELAY_RATES), "largest that trains"]
    text += runs.table(header, rows)
    stale = [
        r["mean_staleness"]
        for row in found.values()
        for r in row.values()
        if "mean_staleness" in r
    ]
    mean = f"{statistics.fmean(stale):.1f}" if stale else "-"
    text += (
        f"\nN = {DELAY_WORKERS}, {RATE_STEPS} updates, mean staleness {mean}."
        f"{seeds_of(found)}\n"
    )
    seen = []
    for label, value in SIMULATED_DELAY.items():
        if label in found and largest(found[label]) != value:
            here = largest(found[label]) or "none"
            seen.append(f"{label}: at most {here} here, {value:g} in the simulation.")
    return text + sentences(seen)


def bound_of(s):
    """Returns the bound of the staleness for N = WORKERS, and how s is written."""
    if s == BOUNDS[-1]:
        return None, "none"
    return (2 * s + 1) * (WORKERS - 1), str(s)


def quantile(counts, share):
    """Returns the least staleness that this share of the gradients does not exceed."""
    left = share * sum(number for _, number in counts)
    for staleness, number in counts:
        left -= number
        if left <= 0:
            return staleness
    return None


def bound_text(found, name):
    """Returns the markdown of part bound."""
    text = "### Bounded staleness\n\n"
    text += (
        figures.shown("time and staleness against the bound", f"{name}-bound") + "\n"
    )
    rows = []
    for label, row in found.items():
        for s, result in sorted(row.items()):
            limit, written = bound_of(s)
            if "diverged" in result:
                rows.append([label, written, "diverged", *["-"] * 6])
                continue
            counts = result["staleness"]
            rows.append(
                [
                    label,
                    written,
                    timed(result, "seconds_to_loss"),
                    timed(result, "seconds"),
                    percent(result),
                    *(quantile(counts, share) for share in (0.5, 0.99, 1)),
                    limit or "none",
                ]
            )
    header = ["workers", "s", f"seconds to a loss of {REACHED:g}", "to the end"]
    header += ["test accuracy", "staleness: median", "99 %", "most", "bound"]
    text += runs.table(header, rows)
    return text + (
        f"\nN = {WORKERS}, {BOUND_STEPS} updates. A gradient takes {1000 * FAST:g} ms "
        f"longer; one that stalls,\n{100 * ODDS:g} % of them, of any worker, "
        f"{1000 * STALL:g} ms; those of the worker that is always slow\n"
        f"{1000 * SLOW:g} ms. The loss is the mean of {OVER} updates. "
        f"The bound is (2 s + 1)(N − 1).{seeds_of(found, seconds=True)}\n"
    )


def share_of(result, whole):
    """Returns the bytes pushed for an update, as a share of the whole gradient's."""
    both = "bytes_pushed" in result and whole and "bytes_pushed" in whole
    if not both:
        return None
    per = [r["bytes_pushed"] / r["global_steps"] for r in (result, whole)]
    return per[0] / per[1]


def bytes_text(found, name):
    """Returns the markdown of part bytes."""
    text = "### Fewer bytes\n\n"
    text += figures.shown("accuracy against bytes", f"{name}-bytes") + "\n"
    whole = found.get(WHOLE, {}).get("on")
    rows = []
    for label, row in found.items():
        sizes = [r for r in row.values() if "bytes_pushed" in r]
        pushed = share = "-"
        if sizes:
            pushed = f"{sizes[0]['bytes_pushed'] / sizes[0]['global_steps']:.0f}"
            part = share_of(sizes[0], whole)
            share = "-" if part is None else f"{100 * part:.3g} %"
        rows.append(
            [label, pushed, share, percent(row.get("on")), percent(row.get("off"))]
        )
    header = ["pushed", "bytes of a push", "of the whole", "error feedback", "without"]
    text += runs.table(header, rows)
    return text + (
        f"\nN = {WORKERS}, {BYTES_STEPS} updates at η = 0.1, without momentum. "
        f"What is pulled is whole in every run.{seeds_of(found)}\n"
    )


def sentences(seen):
    """Returns the sentences as a markdown list."""
    return "\n" + "".join(f"- {sentence}\n" for sentence in seen) if seen else ""


TEXTS = {
    "window": window_text,
    "rate": rate_text,
    "straggler": straggler_text,
    "delay": delay_text,
    "bound": bound_text,
    "bytes": bytes_text,
}


# --- The claims, one by one ---------------------------------------------------


def said(holds):
    """Returns a verdict as a cell; None: not measured."""
    return "-" if holds is None else "yes" if holds else "**no**"


def window_claims(found):
    """Yields (claim, who says so, seen, whether it holds) of part window."""

    def values(label, windows=WINDOWS):
        row = found.get(label, {})
        return [row[window] for window in windows if window in row]

    def seen(results, windows=WINDOWS):
        cells = map(percent, results)
        text = ", ".join(cells) or "-"
        return f"{text} at T = {', '.join(map(str, windows))}"

    long = WINDOWS[2:]
    fixed = values("DOWNPOUR, fixed rate", long)
    yield (
        "with a fixed rate on the ps, DOWNPOUR fails at long windows",
        "Zhang et al. 2015",
        seen(fixed, long),
        not any(map(trains, fixed)) if fixed else None,
    )
    adagrad = values("DOWNPOUR-Easy, Adagrad on the ps")
    yield (
        "Adagrad on the ps copes with a window's sum",
        "Dean et al. 2012",
        seen(adagrad),
        all(map(trains, adagrad)) if adagrad else None,
    )
    agn = values("AGN")
    holds = None
    if agn and fixed:
        holds = min(map(accuracy, agn[2:])) > max(map(accuracy, fixed))
    yield (
        "the mean of a window holds where its sum fails",
        "Hermans et al. 2017",
        seen(agn),
        holds,
    )
    for label in ("AEASGD", "AEAMSGD"):
        row = values(label)
        holds = None
        if row:
            holds = accuracy(row[-1]) > accuracy(row[0]) - 0.01 and trains(row[-1])
        yield (
            f"{label} keeps its accuracy at 1/{WINDOWS[-1]} of the bytes",
            "Zhang et al. 2015",
            seen(row),
            holds,
        )
    ends = [values(label, WINDOWS[-1:]) for label in ("AGN", "AEASGD")]
    holds = None
    if all(ends):
        holds = accuracy(ends[0][0]) >= accuracy(ends[1][0])
    yield (
        f"AGN is ahead of AEASGD at T = {WINDOWS[-1]}",
        "Hermans et al. 2017, of time, not of gradients",
        " against ".join(percent(end[0]) for end in ends if end) or "-",
        holds,
    )


def rate_claims(found):
    """Yields the claims of part rate."""
    best = {workers: largest(row) for workers, row in found.items()}
    holds = None
    if len(best) > 1:
        rates = [best[workers] or 0 for workers in sorted(best)]
        holds = rates[-1] < rates[0] and sorted(rates, reverse=True) == rates
    yield (
        "the largest working rate falls as workers are added",
        "stability of delayed SGD",
        ", ".join(f"N = {n}: {rate or 'none'}" for n, rate in best.items()),
        holds,
    )


def straggler_claims(found):
    """Yields the claims of part straggler."""
    done = {label: result for label, row in found.items() for result in row.values()}
    seconds = {
        label: result["seconds"]
        for label, result in done.items()
        if "seconds" in result
    }
    sync = seconds.get("Synchronous-SGD")
    for label, claim, source in (
        (
            "Synchronous-SGD, a backup worker",
            "a backup worker hides a straggler",
            "Chen et al. 2016",
        ),
        ("HogWild", "without a lock nobody waits for it", "Niu et al. 2011"),
        ("Dynamic-SGD", "nor with staleness-scaled updates", "Jiang et al. 2017"),
    ):
        other = seconds.get(label)
        both = sync is not None and other is not None
        text = f"{other:.1f} s against {sync:.1f} s" if both else "-"
        yield claim, source, text, other < 0.7 * sync if both else None


def delay_claims(found):
    """Yields the claims of part delay."""
    best = {label: largest(row) for label, row in found.items()}
    other = {label: rate for label, rate in best.items() if label != "HogWild"}
    holds = None
    if "HogWild" in best and other:
        holds = max(rate or 0 for rate in other.values()) > (best["HogWild"] or 0)
    yield (
        f"with delay compensation a larger rate trains, N = {DELAY_WORKERS}",
        "Zheng et al. 2017",
        "; ".join(f"{label}: {rate or 'none'}" for label, rate in best.items()),
        holds,
    )


def bound_claims(found):
    """Yields the claims of part bound."""
    for label, row in found.items():
        times = {s: row[s].get("seconds_to_loss") for s in sorted(row)}
        there = {s: seconds for s, seconds in times.items() if seconds}
        holds = None
        if len(there) == len(BOUNDS):
            # Each run with some bound is sooner than each run with s = 0 or with none.
            first, *between, last = (
                [seconds_to_loss(run) for run in figures.each(row[s])] for s in there
            )
            holds = min(map(max, between)) < min(first + last)
        shown = ", ".join(f"s = {bound_of(s)[1]}: {t:.1f} s" for s, t in there.items())
        yield (
            f"a loss is reached soonest with a bound between 0 and none; {label}",
            "Ho et al. 2013",
            shown or "-",
            holds,
        )
    for label, claim, faster in (
        ("each stalls now and then", "s = 8 hides stalls that come and go", True),
        ("one is always slow", "no bound hides a worker that is always slow", False),
    ):
        row = found.get(label, {})
        ends = [row.get(s, {}).get("seconds") for s in (0, 8)]
        holds = None
        if all(ends):
            holds = (ends[1] < 0.8 * ends[0]) == faster
        text = (
            f"{ends[1]:.1f} s for all updates, {ends[0]:.1f} s at s = 0"
            if all(ends)
            else "-"
        )
        yield claim, "an event simulation", text, holds
    worst = [
        (max(quantile(run["staleness"], 1) for run in there), bound_of(s)[0])
        for row in found.values()
        for s, result in row.items()
        if bound_of(s)[0]
        and (there := [run for run in figures.each(result) if "staleness" in run])
    ]
    yield (
        "no gradient is staler than (2 s + 1)(N − 1)",
        "by counting",
        ", ".join(f"{a} of {b}" for a, b in worst) or "-",
        all(a <= b for a, b in worst) if worst else None,
    )


def bytes_claims(found):
    """Yields the claims of part bytes."""
    whole = found.get(WHOLE, {}).get("on")
    for label, source in (
        ("top 1 %", "Aji & Heafield 2017"),
        ("top 0.1 %", "Lin et al. 2018"),
        ("signs", "Karimireddy et al. 2019"),
        ("bytes", "–"),
    ):
        row = found.get(label, {})
        kept, lost = row.get("on"), row.get("off")
        keeps = loses = None
        if whole and kept:
            keeps = accuracy(kept) > accuracy(whole) - 0.01
        yield (
            f"{label} with error feedback: the accuracy of whole gradients",
            source,
            f"{percent(kept)} against {percent(whole)}",
            keeps,
        )
        if label == "bytes":
            continue
        if whole and lost:
            loses = accuracy(lost) < accuracy(whole) - 0.01
        yield (
            f"{label} without it: less",
            source,
            f"{percent(lost)} against {percent(whole)}",
            loses,
        )


CLAIMS = {
    "window": window_claims,
    "rate": rate_claims,
    "straggler": straggler_claims,
    "delay": delay_claims,
    "bound": bound_claims,
    "bytes": bytes_claims,
}


def claims_text(found):
    """Returns the table of the claims and what is seen of them."""
    rows = [
        [claim, source, seen, said(holds)]
        for part, results in found.items()
        if results
        for claim, source, seen, holds in CLAIMS[part](results)
    ]
    return "### The claims\n\n" + runs.table(
        ["claim", "source", "seen here", "holds"], rows, left=4
    )


# --- Figures ------------------------------------------------------------------


def window_figure(found, path):
    """Draws test error against window, the bytes below it."""
    pushed = [megabytes(found, window) for window in WINDOWS]
    title = f"{WORKERS} workers, the same number of gradients at every window"
    figures.window(found, path, WINDOWS, pushed, title)


def rate_figure(found, path):
    """Draws which rates work for how many workers."""
    title = f"HogWild: test accuracy after {RATE_STEPS} updates"
    figures.rate(found, path, RATES, trains, title)


def straggler_figure(found, path):
    """Draws the seconds of each scheme."""
    many = f"{STRAGGLER_GRADIENTS:,}"
    title = f"{many} gradients, while one worker of {WORKERS} is four times slower"
    figures.straggler(found, path, percent, title)


def delay_figure(found, path):
    """Draws a line per scheme: accuracy against the learning rate."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    for (label, row), mark in zip(found.items(), "osD^v", strict=False):
        rates = sorted(row)
        values = [100 * accuracy(row[rate]) for rate in rates]
        (line,) = axes.plot(rates, values, marker=mark, label=label)
        for rate in rates:
            if "diverged" in row[rate]:
                axes.plot(rate, 100 * CHANCE, "x", color=line.get_color(), ms=13)
    cross = dict(color=figures.DARK, ms=10, ls="none")
    axes.plot([], [], "x", label="diverged, drawn at chance", **cross)
    axes.axhline(100 * CHANCE, color="grey", lw=0.8, ls=":")
    axes.text(DELAY_RATES[0], 100 * CHANCE + 1, "chance", color="grey", va="bottom")
    axes.set_xticks(DELAY_RATES, [f"{rate:g}" for rate in DELAY_RATES])
    axes.set_xlabel("learning rate η")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(f"{DELAY_WORKERS} workers, {RATE_STEPS} updates")
    axes.set_ylim(0, 103)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figures.save(figure, path)


def bound_figure(found, path):
    """Draws seconds to the loss against s, and staleness beside its bound."""
    plt = figures.pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4.4), layout="constrained")
    names = [bound_of(s)[1] for s in BOUNDS]
    for (label, row), mark, color in zip(
        found.items(), "os", (figures.VERMILION, figures.BLUE), strict=False
    ):
        done = [s for s in BOUNDS if "staleness" in row.get(s, {})]
        timed = [s for s in done if row[s]["seconds_to_loss"]]
        at = [BOUNDS.index(s) for s in timed]
        left.plot(
            at,
            [row[s]["seconds_to_loss"] for s in timed],
            mark + "-",
            label=label,
            color=color,
        )
        for s in done:
            # From the median to the largest, a mark at 99 %.
            counts, x = row[s]["staleness"], BOUNDS.index(s) + 0.12 * "os".index(mark)
            low, high, most = (quantile(counts, share) for share in (0.5, 0.99, 1))
            right.plot([x, x], [low, most], color=color, lw=1.5)
            right.plot(x, high, mark, color=color)
    limits = [bound_of(s)[0] for s in BOUNDS[:-1]]
    look = dict(color=figures.DARK)
    right.plot(range(len(limits)), limits, "_", ms=16, label="bound", **look)
    right.plot([], [], "|-", ms=8, label="from the median to the largest", **look)
    right.plot([], [], "o", label="99 % of the gradients have at most this", **look)
    for axes, title, unit in (
        (left, f"until the training loss is {REACHED:g}", "seconds"),
        (right, f"of the gradients of {WORKERS} workers", "staleness, in updates"),
    ):
        axes.set_xticks(range(len(BOUNDS)), names)
        axes.set_xlabel("s, rounds that a worker may be ahead")
        axes.set_ylabel(unit)
        axes.set_title(title)
    left.set_ylim(bottom=0)
    right.set_yscale("symlog", linthresh=1)
    right.set_ylim(0, 15 * max(limits))  # room for the legend
    right.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
    left.legend(loc="lower left", frameon=False)
    right.legend(loc="upper left", frameon=False)
    figures.save(figure, path)


def bytes_figure(found, path):
    """Draws accuracy against the bytes of a push, full marks with error feedback."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(figsize=(8.2, 4.2), layout="constrained")
    for number, ((label, row), mark) in enumerate(
        zip(found.items(), "*os^Dvp", strict=False)
    ):
        color = f"C{number}"
        axes.plot([], [], mark, color=color, label=label)
        for feedback, result in row.items():
            if "bytes_pushed" not in result:
                continue
            size = result["bytes_pushed"] / result["global_steps"]
            full = color if feedback == "on" else "white"
            axes.plot(size, 100 * accuracy(result), mark, color=color, mfc=full, ms=9)
    axes.plot([], [], "o", color="grey", mfc="white", label="without error feedback")
    figures.log_ticks(axes, (100, 1000, 10000))
    axes.set_xlabel("bytes of a push")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(f"{WORKERS} workers, {BYTES_STEPS} updates")
    figure.legend(loc="outside right center", frameon=False)
    figures.save(figure, path)


FIGURES = {
    "window": window_figure,
    "rate": rate_figure,
    "straggler": straggler_figure,
    "delay": delay_figure,
    "bound": bound_figure,
    "bytes": bytes_figure,
}


def write_results(out, found, name="claims", quick=False):
    """Draws the figures of the parts that have results; returns the tables.

    `found` is {part: {label: {x: result}}}.
    """
    short = "Of few and short runs: a test of the script, not a measurement.\n"
    texts = [short] if quick else []
    texts.append(claims_text(found))
    for part, results in found.items():
        if results:
            texts.append(TEXTS[part](results, name))
            FIGURES[part](results, out / f"{name}-{part}")
    return "\n".join(texts)


# --- The measurement ----------------------------------------------------------


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.measuring_parser(__doc__, PARTS, rounds=None)
    add = parser.add_argument
    add("--seeds", type=runs.positive_int, help="of a cell (5 and 3; --quick: 1)")
    add("--draw", action="store_true", help="only draw what is kept, of any code")
    args = parser.parse_args(argv)
    args.seeds = args.seeds or (1 if args.quick else BAND)
    return args


def show(args, found):
    """Draws the figures, and publishes the tables."""
    text = write_results(args.out, found, quick=args.quick)
    runs.publish(args, "claims", text, "claims-runs")


def main():
    with runs.finished(parse_args()) as args:
        short = 0.05 if args.quick else 1.0, args.seeds
        cache = Cache(args.out / "claims-runs.json", args.again)
        if args.draw:
            found = {
                part: grid(plan([part], *short), cache, any_code=True) for part in PARTS
            }
            return show(args, found)
        planned = plan(args.only, *short)
        if args.quick:
            planned = runs.one_of_each(planned, lambda run: run.part)
            planned = [run._replace(cost=3) for run in planned]
        progress = measure(planned, cache, args.timeout)
        # Parts measured at another time are shown too.
        found = {part: grid(plan([part], *short), cache) for part in PARTS}
        show(args, found)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
