"""What DiLoCo gains by computing during an exchange: seconds of a round, 100 Mbit/s.

Two workers, each on a host of its own with a cable (star.py), train 1,000,000
parameters. A worker makes T inner steps in a round, and with --overlap o of them while
the exchange is under way. The same rounds, with gradients that sleep for SLEEPS
seconds: of the longer ones a window takes more time than an exchange, of the shorter
ones less.

The seconds of T steps, C, are those of a round over a cable without a limit, where the
exchange takes next to nothing; those of an exchange, X, follow from its bytes. Then

    expected   C − o C / T + max(o C / T, X)

A round is timed from the chief's line at 40 % of the steps to its last. Writes
exchange.svg and exchange.json. Needs Linux and root.

    sudo .venv/bin/python benchmarks/exchange.py
    sudo .venv/bin/python benchmarks/exchange.py --rounds 1
"""

import contextlib
import json

import figures
import predictions
import runs
import star

BITS, WORKERS, WINDOW, STEPS = 100e6, 2, 24, 12
SLEEPS = {0.02: (0, 6, 12, 18), 0.004: (0, 12, 23)}  # seconds: overlaps o
FREE = "no limit"
EXCHANGE = 8 * 4 * predictions.LARGE / BITS  # seconds: two workers send w once each


def key_of(sleep, overlap, cable="100 Mbit/s"):
    """Returns the name of a measurement in the JSON."""
    return f"{1000 * sleep:g} ms, o = {overlap}, {cable}"


def measure(sleep, overlap, bits, steps, timeout):
    """Returns the seconds of a round."""
    key = key_of(sleep, overlap, FREE if bits is None else "100 Mbit/s")
    names = [f"worker{k}" for k in range(WORKERS)]
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(star.Star(names, bits))
        example = predictions.example("DiLoCo", predictions.LARGE)
        script, flags = stack.enter_context(example)
        words = [*flags, "--window", WINDOW, "--steps", steps]
        words += ["--overlap", overlap, "--slow_workers", sleep]
        tasks = predictions.begin(stack, hosts, script, names, words)
        lines = runs.Lines(tasks["worker0"][0].stdout)
        predictions.watch(tasks, timeout, key)
        lines.join(5)
    (began, first), (ended, last) = predictions.steady(lines.lines, steps, key)
    return {"round": (ended - began) / (last - first)}


def jobs_of(args):
    """Returns the measurements of a round."""
    jobs, steps = [], 5 if args.quick else STEPS
    for sleep, overlaps in SLEEPS.items():
        cells = [(0, None, FREE), *((o, BITS, "100 Mbit/s") for o in overlaps)]
        for o, bits, cable in cells:
            jobs.append(
                runs.Job(
                    key_of(sleep, o, cable),
                    {"exchange"},
                    8 + STEPS * (WINDOW * (sleep + 0.007) + 0.3),
                    lambda a=(sleep, o, bits): measure(*a, steps, args.timeout),
                )
            )
    return jobs[:2] if args.quick else jobs


def kept():
    """Returns the rounds in results/, none if there are none."""
    path = runs.RESULTS / "exchange.json"
    return json.loads(path.read_text())["rounds"] if path.exists() else []


def middle(rounds, *cell):
    """Returns the median seconds of a round, None if it was not measured."""
    return runs.middle(runs.series(rounds, key_of(*cell), "round"))


def expected(rounds, sleep, overlap):
    """Returns the expected seconds of a round, None without the cable of no limit."""
    computing = middle(rounds, sleep, 0, FREE)
    if computing is None:
        return None
    during = overlap * computing / WINDOW
    return computing - during + max(during, EXCHANGE)


def claims_of(rounds):
    """Yields (claim, source, seen, holds): a round is the maximum and not the sum."""
    for sleep, what in zip(SLEEPS, ("the window", "the exchange"), strict=True):
        most, computing = max(SLEEPS[sleep]), middle(rounds, sleep, 0, FREE)
        seconds = middle(rounds, sleep, most)
        if seconds and computing:
            total = computing + EXCHANGE
            longer = expected(rounds, sleep, most)
            seen = f"{seconds:.2f} s; longer {longer:.2f}, sum {total:.2f}"
            claim = f"with overlap a round takes the longer: {what}"
            yield claim, "Douillard et al. 2025", seen, seconds < (longer + total) / 2


def markdown(rounds):
    """Returns the table."""
    rows = []
    for sleep, overlaps in SLEEPS.items():
        computing = middle(rounds, sleep, 0, FREE)
        for o in overlaps:
            times = runs.series(rounds, key_of(sleep, o), "round")
            wanted = expected(rounds, sleep, o)
            shown = "-" if wanted is None else f"{wanted:.2f}"
            window = "-" if computing is None else f"{computing:.2f}"
            rows.append([window, o, runs.spread(times, 2), shown])
    header = ["T steps alone take, s", "o", "s of a round", "expected"]
    text = runs.count_of(rounds) + "\n### A round over 100 Mbit/s\n\n"
    text += figures.shown("seconds of a round against overlap", "exchange") + "\n"
    text += runs.table(header, rows, left=2)
    return text + (
        f"\nDiLoCo, N = {WORKERS}, T = {WINDOW}, {predictions.LARGE:,} parameters: an "
        f"exchange takes at least {EXCHANGE:.2f} s.\n"
    )


def draw(rounds, out):
    """Draws the seconds of a round against o, and what is expected."""
    figure, axes = figures.pyplot().subplots(figsize=(7.6, 2.7), layout="constrained")
    for sleep, color, mark in zip(
        SLEEPS, (figures.BLUE, figures.VERMILION), "os", strict=True
    ):
        computing = middle(rounds, sleep, 0, FREE)
        if computing is None:
            continue
        name = f"T steps take {computing:.2f} s"
        for o in SLEEPS[sleep]:
            times = runs.series(rounds, key_of(sleep, o), "round")
            there = [seconds for seconds in times if seconds]
            axes.plot([o] * len(there), there, mark, color=color, alpha=0.7)
        axes.plot([], [], mark, color=color, label=name)
        every = range(WINDOW)
        line = [expected(rounds, sleep, o) for o in every]
        axes.plot(every, line, color=color, lw=1.2)
    axes.plot([], [], color=figures.DARK, lw=1.2, label="expected")
    axes.axhline(EXCHANGE, color=figures.GREY, lw=0.8, ls=":")
    axes.text(0, EXCHANGE, "the exchange alone", color=figures.GREY, va="bottom")
    axes.set_xlabel(f"o, of T = {WINDOW} steps made during the exchange")
    axes.set_ylabel("seconds of a round")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figures.save(figure, out / "exchange")


def code():
    """Returns what the results depend on."""
    settings = [BITS, WINDOW, STEPS, list(SLEEPS)]
    return {"DiLoCo": runs.fingerprint("DiLoCo"), "settings": settings}


def main():
    parser = runs.measuring_parser(__doc__)
    with runs.finished(parser.parse_args()) as args:
        star.check()
        rounds, progress = runs.in_rounds(jobs_of(args), args, "exchange", code())
        draw(rounds, args.out)
        runs.publish(args, "exchange", markdown(rounds), root=True)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
