"""Rows that come and go: what the ids of a drawn click log need, and what they cost.

Parts, chosen by --only:

    days     Dynamic-Embedding on a log of 60 days, with one ps and one worker: the AUC
             of each day before it is learned, and how many rows there are then. Every
             id is kept; or rows expire; or ids are hashed into as many rows
    rates    the dense learning rate, with four workers: Hybrid-Embedding, and
             Dynamic-Embedding, in which every worker pushes at that rate; beside one
             worker whose mini-batch is that of all four, which is synchronous training
    size     a table of 10,000,000 rows of 16: see large_table.py
    lost     two workers that update one row at the same time: see large_table.py

All runs of one seed come before those of the next. A log is drawn anew for each seed.

    python benchmarks/embeddings.py
    python benchmarks/embeddings.py --only rates --seeds 1
    python benchmarks/embeddings.py --quick
"""

import functools
import json
import statistics

import figures
import numpy as np
import runs

NAME = "embeddings"
PARTS = ("days", "rates", "size", "lost")
DYNAMIC, HYBRID = "Dynamic-Embedding", "Hybrid-Embedding"
SEEDS, ROUNDS = 5, 2  # of days and rates; of size and lost

# The log, as Dynamic-Embedding draws it; a worker's mini-batch has BATCH impressions.
DAYS, IMPRESSIONS, BATCH = 60, 3000, 100
PER_DAY = IMPRESSIONS // BATCH  # steps of one worker
SETTLED = 20  # the day from which on the AUC of a run is averaged
RANK = 8

# Arms of part days: F, days until a row expires (0: never), rows to hash into (0: none)
KEPT, WEEK = "every id is kept", "expiry after 7 days"
ADMITTED, SAME_MB = "F = 2, expiry after 7 days", "hashed into 11,700 rows"
ARMS = {
    KEPT: (1, 0, 0),
    "expiry after 15 days": (1, 15, 0),
    WEEK: (1, 7, 0),
    "expiry after 3 days": (1, 3, 0),
    ADMITTED: (2, 7, 0),
    "hashed into 1,400 rows": (1, 0, 1400),
    SAME_MB: (1, 0, 11700),
}
# Put into the script: the worker tests on each day before it trains on it.
PLACE = "    training.extra = table.summary\n"
BY_DAYS = """
    import json

    hashed, per_day, n = {hashed}, {per_day}, len(data.test_clicks)
    make, days = calls.make, []
    if hashed:
        import numpy

        numbers = numpy.random.default_rng(0).integers(hashed, size=10**6)
        for array in (data.ids, data.test_ids):
            array[:] = numbers[array]
    last = data.test_ids.copy(), data.test_clicks.copy()

    def by_days(session, left):
        day, at = divmod(args.steps - left, per_day)
        if not at:
            today = slice(n * day, n * (day + 1))
            data.test_ids[:], data.test_clicks[:] = data.ids[today], data.clicks[today]
            days.append([float(session.run(test[1]["AUC"])), table.summary(session)])
            data.test_ids[:], data.test_clicks[:] = last
            with open(args.logdir + "/days.json", "w") as file:
                json.dump(days, file)
        return make(session, min(left, per_day - at))

    calls.make = by_days
"""

# Part rates: name, folder, workers, mini-batch, updates of w per round of all workers.
WORKERS, RATES = 4, (1, 2, 4, 8)
SYNC, HYBRID_4 = "synchronous", "Hybrid-Embedding, s = 4"
SCHEMES = {
    SYNC: (DYNAMIC, 1, WORKERS * BATCH, 1, []),
    HYBRID_4: (HYBRID, WORKERS, BATCH, 1, ["--staleness", 4]),
    DYNAMIC: (DYNAMIC, WORKERS, BATCH, WORKERS, ["--slow_workers", 0.02]),
}

CLOSE = 0.005  # AUC or loss: less than that is no difference here

# Part size
ROWS, WIDE = 10**7, 16
# Bytes beside the numbers of a row: generation and list of free slots; an entry of the
# hash table id → slot; an entry of a hash table that has the row itself.
SLOT, ENTRY, NODE = 16, 80, 80
SIZES = {
    "dynamic": "Dynamic-Embedding",
    "partitioned": "Partitioned-Embedding",
    "hash": "MutableHashTable alone",
    "keras": "Keras, one process",
}
LOSES = {
    "hash": "MutableHashTable: insert the rows that were pulled, less the gradient",
    "hash-again": "MutableHashTable: find the rows again on the ps, and insert these",
    "dynamic": "Dynamic-Embedding",
}
UPDATES = 3000  # of each of two workers


# --- The measurements ---------------------------------------------------------------


def by_day(args, arm, seed):
    """Returns AUC, ids and rows by day of an arm: lists with an entry a day."""
    admit, expire, hashed = ARMS[arm]
    days = 4 if args.quick else DAYS
    flags = ["--days", days, "--admit", admit, "--expire", expire * PER_DAY]
    flags += ["--steps", (days - 1) * PER_DAY, "--seed", seed, "--save_seconds", 3600]
    text = BY_DAYS.format(hashed=hashed, per_day=PER_DAY)

    def logs(logdir):
        return {"by_day": json.loads((logdir / "days.json").read_text())}

    result = runs.run_example(
        DYNAMIC, flags, 1, 1, args.timeout, (PLACE, PLACE + text), logs=logs
    )
    areas, tables = zip(*result["by_day"], strict=True)
    return {
        "AUC": [*areas, result["test_AUC"]],  # the last day is the run's own test
        "ids": [*(table["ids"] for table in tables), result["ids"]],
        "rows": [*(table["rows"] for table in tables), result["rows"]],
    }


def at_rate(args, scheme, rate, seed):
    """Returns the test AUC of a scheme at a dense learning rate."""
    folder, workers, batch, updates, more = SCHEMES[scheme]
    days = 4 if args.quick else DAYS
    rounds = (days - 1) * IMPRESSIONS // (WORKERS * BATCH)
    flags = ["--days", days, "--batch_size", batch, "--steps", rounds * updates, *more]
    flags += ["--admit", 1, "--expire", 0, "--learning_rate", rate, "--seed", seed]
    result = runs.run_example(
        folder, [*flags, "--save_seconds", 3600], 1, workers, args.timeout
    )
    if "diverged" in result:
        return result
    names = "test_AUC", "test_loss", "test_calibration", "mean_staleness"
    return {name: result[name] for name in names}


def of_size(args, kind, _):
    """Returns what large_table.py says of a table."""
    rows = 100_000 if args.quick else ROWS
    few = ["--batch", 1000, "--calls", 5] if args.quick else []
    flags = map(str, [kind, "--rows", rows, *few])
    found = runs.run_script("large_table.py", *flags, timeout=args.timeout)
    return {"rows": rows, **found}


def losing(args, kind, _):
    """Returns how many updates of two workers are in a row."""
    flags = [kind, "--rows", 100, "--updates", 50 if args.quick else UPDATES]
    return runs.run_script("large_table.py", *map(str, flags), timeout=args.timeout)


def plan():
    """Yields (part, what is measured, a guess of its seconds, function, how often)."""
    for arm in ARMS:
        yield "days", (arm,), 14, by_day, SEEDS
    for rate in RATES:
        for scheme, (_, workers, *_) in SCHEMES.items():
            yield "rates", (scheme, rate), 8 + 4 * workers, at_rate, SEEDS
    for part, kinds, cost, make in (
        ("size", SIZES, 60, of_size),
        ("lost", LOSES, 15, losing),
    ):
        for kind in kinds:
            yield part, (kind,), cost, make, ROUNDS


def key(part, *what):
    """Returns the name of a measurement in the JSON."""
    return ", ".join(map(str, [part, *what]))


def jobs_of(args):
    """Returns the measurements of the chosen parts, all of a seed before the next."""
    jobs = [
        runs.Job(
            key(part, *what, seed),
            {part},
            cost,
            functools.partial(make, args, *what, seed),
        )
        for seed in range(args.seeds)
        for part, what, cost, make, most in plan()
        if part in args.only and seed < most
    ]
    return runs.one_of_each(jobs, lambda job: min(job.parts)) if args.quick else jobs


# --- Tables -------------------------------------------------------------------------


def of(found, *what):
    """Returns the results of a measurement, {} for a seed without one."""
    every = [found.get(key(*what, seed), {}) for seed in range(SEEDS)]
    return every if any(every) else []


def settled(result):
    """Returns the AUC of a run: the mean of its days from SETTLED on; None if none."""
    days = result.get("AUC", [])
    return statistics.fmean(days[min(SETTLED, len(days) - 1) :]) if days else None


def value(result, name):
    """Returns a number of a run at some rate, None if it diverged or is not there."""
    return result.get(f"test_{name}")


def megabytes(arm, result):
    """Returns MB by day, by formula: rows, sums, and what says where a row is."""
    _, _, hashed = ARMS[arm]
    if hashed:
        return [hashed * 8 * RANK / 1e6 for _ in result["rows"]]
    pairs = zip(result["rows"], result["ids"], strict=True)
    return [(rows * (8 * RANK + SLOT) + ids * ENTRY) / 1e6 for rows, ids in pairs]


def days_table(found):
    """Returns the table of part days."""
    rows = []
    for arm in ARMS:
        results = of(found, "days", arm)
        areas = [*map(settled, results)]
        if not results:
            continue
        there = [result for result in results if result]
        counts = [[r["rows"][: day + 1][-1] for r in there] for day in (SETTLED, DAYS)]
        cells = [f"{runs.middle(count):,.0f}" for count in counts]
        cells.append(f"{runs.middle([megabytes(arm, r)[-1] for r in there]):.2f}")
        below = runs.spread(less(found, "days", (arm,), (KEPT,), settled), 4)
        below = "-" if arm == KEPT else below
        rows.append([arm, runs.spread(areas, 4), below, *cells])
    head = ["", f"AUC, days {SETTLED} to {DAYS - 1}", f"less that of “{KEPT}”"]
    head += [f"rows on day {day}" for day in (SETTLED, DAYS - 1)]
    return runs.table([*head, f"MB on day {DAYS - 1}"], rows)


def rates_tables(found):
    """Returns the tables of part rates: test loss and AUC at each rate."""
    text = ""
    for name in ("loss", "AUC"):
        rows = []
        for scheme in SCHEMES:
            results = [of(found, "rates", scheme, rate) for rate in RATES]
            stale = [one.get("mean_staleness") for each in results for one in each]
            cells = []
            for each in results:
                lost = sum("diverged" in one for one in each)
                values = runs.spread([value(one, name) for one in each], 3)
                cells.append(f"{lost} diverged, {values}" if lost else values)
            if any(results):
                rows.append([scheme, *cells, f"{runs.middle(stale) or 0:.1f}"])
        seeds = [sum(map(bool, of(found, "rates", SYNC, rate))) for rate in RATES]
        pairs = zip(RATES, seeds, strict=True)
        head = [f"η = {rate:g}, {count} seeds" for rate, count in pairs]
        head = [f"test {name}", *head, "staleness"]
        text += runs.table(head, rows) + "\n"
    return text


def bytes_of(kind):
    """Returns the bytes of a row by the formula, as text."""
    return {
        "dynamic": 8 * WIDE + SLOT + ENTRY,
        "partitioned": 4 * WIDE,
        "hash": 4 * WIDE + NODE,
        "keras": f"{4 * WIDE}, {8 * WIDE}",
    }[kind]


def size_tables(found):
    """Returns the tables of part size."""
    rows, expiry = [], ""
    for kind, name in SIZES.items():
        results = of(found, "size", kind)
        if not results:
            continue

        def values(field, results=results):
            return [one.get(field) for one in results]

        def each(field, values=values):
            pairs = zip(values(field), values("before"), values("rows"), strict=True)
            return runs.spread([(a - b) / n if a else None for a, b, n in pairs])

        rates = [
            runs.spread([x and x / 1000 for x in values(f"rows/s, {how}")])
            for how in ("pulled", "SGD", "Adagrad")
        ]
        rows.append([name, *rates, bytes_of(kind), each("with rows"), each("at most")])
        if kind == "dynamic":
            lines = [
                [what, runs.spread(values(field), 2)]
                for what, field in (
                    (
                        "to give a row to each id, in calls of 100,000",
                        "seconds to fill",
                    ),
                    ("an expiry that finds nothing", "seconds, nothing expires"),
                    ("an expiry that takes every other row", "seconds, half expires"),
                )
            ]
            expiry = "\n### The cost of expiry\n\n" + runs.table(["", "seconds"], lines)
    head = ["", "1,000 rows/s, pulled", "and pushed, SGD", "and pushed, Adagrad"]
    head += ["bytes by formula", "measured", "at most"]
    return f"\n### {ROWS:,} rows of {WIDE}\n\n" + runs.table(head, rows) + expiry


def lost_table(found):
    """Returns the table of part lost."""
    rows = []
    for kind, name in LOSES.items():
        results = of(found, "lost", kind)
        if results:
            kept = runs.spread([one.get("kept") for one in results])
            made = runs.middle([one.get("updates") for one in results])
            rows.append([name, f"{made:,.0f}", kept])
    return runs.table(["", "updates", "of these in the row"], rows)


def less(found, part, one, other, get):
    """Returns `get` of one measurement less that of another, for each seed of both."""
    pairs = zip(of(found, part, *one), of(found, part, *other), strict=False)
    pairs = [(get(a), get(b)) for a, b in pairs]
    return [a - b for a, b in pairs if a is not None and b is not None]


def claims_table(found):
    """Returns the papers' claims beside what was seen, those that can be answered."""
    rows = []

    def add(claim, source, holds, seen):
        rows.append([claim, source, seen, "yes" if holds else "**no**"])

    expired = less(found, "days", (WEEK,), (KEPT,), settled)
    if expired:
        off = max(map(abs, expired))
        counts = [one["rows"] for one in of(found, "days", WEEK) if one]
        first, last = (runs.middle([c[day] for c in counts]) for day in (SETTLED, -1))
        seen = f"{WEEK}: AUC differs by {off:.4f} at most; {first:,.0f} rows on day "
        seen += f"{SETTLED}, {last:,.0f} on day {DAYS - 1}"
        claim = "with expiry the table stays small, at the same AUC"
        add(claim, "Liu et al. 2022", off < CLOSE and last < 1.2 * first, seen)
    hashed = less(found, "days", (SAME_MB,), (ADMITTED,), settled)
    if hashed:
        seen = f"{SAME_MB}: AUC {runs.spread(hashed, 4)}, beside “{ADMITTED}”"
        claim = "hashing into the same memory is worse"
        add(claim, "Liu et al. 2022", max(hashed) < 0, seen)
    for scheme, name in (HYBRID_4, "AUC"), (DYNAMIC, "loss"):
        get = functools.partial(value, name=name)
        each = [
            runs.middle(less(found, "rates", (scheme, rate), (SYNC, rate), get))
            for rate in RATES
        ]
        if None in each:
            continue
        pairs = zip(each, RATES, strict=True)
        seen = f"{name} " + ", ".join(
            f"{round(x, 3) + 0:+.3f} at η = {rate}" for x, rate in pairs
        )
        if scheme == DYNAMIC:
            claim, holds = "asynchronous training is worse", max(each) > CLOSE
        else:
            claim, holds = "hybrid training has the same AUC", min(each) > -CLOSE
        add(f"{claim}; beside synchronous", "Lian et al. 2022", holds, seen)
    return runs.table(["claim", "source", "seen here", "holds"], rows, 4)


def markdown(found):
    """Returns the tables of the parts that were measured."""
    there = {name.partition(",")[0] for name in found}
    text = "Median, smallest and largest in brackets.\n"
    text += "\n### The claims\n\n" + claims_table(found)
    if "days" in there:
        text += "\n### AUC by day\n\n" + days_table(found) + "\n"
        text += figures.shown("AUC, rows and MB by day", f"{NAME}-days")
    if "rates" in there:
        text += "\n### The dense learning rate\n\n" + rates_tables(found)
        text += figures.shown("loss and AUC against the learning rate", f"{NAME}-rates")
    text += size_tables(found) if "size" in there else ""
    if "lost" in there:
        text += "\n### Two workers, one row\n\n" + lost_table(found)
    return text


# --- Figures ------------------------------------------------------------------------


def draw_days(found, path):
    """Draws AUC, rows and MB by day, means over the seeds."""
    plt = figures.pyplot()
    figure, axes = plt.subplot_mosaic(
        [["AUC", "AUC"], ["rows", "MB"]], figsize=(9, 6.8), layout="constrained"
    )
    for number, arm in enumerate(ARMS):
        results = [one for one in of(found, "days", arm) if one]
        if not results:
            continue
        look = dict(color=f"C{number}", ls="--" if ARMS[arm][2] else "-", lw=1.6)
        areas = np.mean([one["AUC"] for one in results], 0)
        # The mean of five days: a day is few impressions.
        width = min(5, len(areas))
        smooth = np.convolve(areas, np.ones(width) / width, "valid")
        at = np.arange(len(smooth)) + width // 2
        axes["AUC"].plot(at, smooth, label=arm, **look)
        axes["rows"].plot(np.mean([one["rows"] for one in results], 0) / 1000, **look)
        axes["MB"].plot(np.mean([megabytes(arm, one) for one in results], 0), **look)
    axes["AUC"].set(ylabel="AUC before training on the day", xlabel="day")
    axes["rows"].set(ylabel="rows, in thousands", xlabel="day", ylim=0)
    axes["MB"].set(ylabel="MB", xlabel="day", ylim=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figures.save(figure, path)


def draw_rates(found, path):
    """Draws loss and AUC against the dense rate, the middle seed and the range."""
    plt = figures.pyplot()
    figure, both = plt.subplots(1, 2, figsize=(9, 4.0), layout="constrained")
    for axes, name in zip(both, ("loss", "AUC"), strict=True):
        for scheme, mark, color in zip(SCHEMES, "so^", "C3 C4 C0".split(), strict=True):
            cells = {}
            for rate in RATES:
                results = of(found, "rates", scheme, rate)
                values = [value(one, name) for one in results if value(one, name)]
                if values:
                    cells[rate] = min(values), runs.middle(values), max(values)
            if cells:
                low, middle, high = zip(*cells.values(), strict=True)
                label = None if name == "AUC" else scheme
                axes.plot([*cells], middle, mark + "-", color=color, label=label)
                axes.fill_between([*cells], low, high, color=color, alpha=0.15, lw=0)
        figures.log_ticks(axes, [*RATES])
        axes.minorticks_off()
        axes.set(xlabel="learning rate of the dense weights, η", ylabel=f"test {name}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figures.save(figure, path)


def main():
    parser = runs.measuring_parser(__doc__, PARTS, rounds=None)
    add = parser.add_argument
    add("--seeds", type=runs.positive_int, help=f"at most ({SEEDS}; --quick: 1)")
    with runs.finished(parser.parse_args()) as args:
        args.seeds = args.seeds or (1 if args.quick else SEEDS)
        folders = DYNAMIC, HYBRID, "Partitioned-Embedding"
        code = {folder: runs.fingerprint(folder) for folder in folders}
        rounds, progress = runs.in_rounds(jobs_of(args), args, NAME, code)
        found = rounds[0] if rounds else {}
        for part, draw in (("days", draw_days), ("rates", draw_rates)):
            if any(name.startswith(part) for name in found):
                draw(found, args.out / f"{NAME}-{part}")
        runs.publish(args, NAME, markdown(found))
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
