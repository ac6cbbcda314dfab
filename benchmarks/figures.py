"""The figures of the benchmarks, as SVG whose texts are texts.

One palette with the notebooks' drawing.py: Okabe and Ito's, which people of every
colour vision tell apart (Color Universal Design, 2008). Nothing is said by colour
alone.
"""

import math

BLUE, ORANGE, VERMILION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
SKY, PURPLE, DARK, GREY = "#56B4E9", "#CC79A7", "#444444", "#999999"
LINES = [VERMILION, ORANGE, PURPLE, BLUE, GREEN, DARK, SKY]
MARKS = "osD^vP*"
CHANCE = 0.1  # of ten digits: what a run that diverged counts as
ONE_DIGIT = 100 / 360  # of those of the test, in %: the smallest error but none


def accuracy(result):
    """Returns the test accuracy of a run, chance for one that diverged."""
    return CHANCE if "diverged" in result else result["test_accuracy"]


def each(result):
    """Returns the runs of a cell: one for each seed."""
    return result.get("each", [result])


def errors(result):
    """Returns the smallest, middle and largest test error of a cell's runs, in %."""
    found = sorted(100 * (1 - accuracy(run)) for run in each(result))
    return found[0], 100 * (1 - accuracy(result)), found[-1]


def limit(workers, alone):
    """Returns the largest stable rate of N workers, where one worker's is `alone`.

    For a quadratic of curvature h and a constant staleness τ, gradient descent is
    stable as long as ηh < 2 sin(π / (2(2τ + 1))); here τ = N − 1, and h follows from
    `alone`.
    Source: Levin and May, A note on difference-delay equations, 1976.
    """
    return alone * math.sin(math.pi / (2 * (2 * (workers - 1) + 1)))


def pyplot():
    """Returns matplotlib's pyplot, drawing to files only."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            # In points: 12 px or more where a page shows 9 inches as 796 px.
            "font.size": 10.5,
            "legend.fontsize": 10,
            "axes.titlesize": 11,
            "svg.fonttype": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": matplotlib.cycler(color=[*LINES, GREY]),
            # The same bytes for the same numbers.
            "svg.hashsalt": "benchmarks",
        }
    )
    return plt


def log_ticks(axes, ticks, side="x"):
    """Makes the x or y axis logarithmic, with these numbers on it in plain figures."""
    axes.set(**{f"{side}scale": "log"})
    labels = [f"{tick:,g}" for tick in ticks]
    axes.set(**{f"{side}ticks": ticks, f"{side}ticklabels": labels})


def save(figure, path):
    """Writes a figure to PATH.svg."""
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    pyplot().close(figure)
    trim(path.with_suffix(".svg"))


def trim(path):
    """Takes the blanks off the ends of an SVG's lines."""
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


def shown(what, name):
    """Returns the markdown of a figure NAME.svg."""
    return f"![{what}]({name}.svg)\n"


def window(found, path, windows, pushed, title):
    """Draws test error against window on logarithmic axes, a line for each scheme.

    `found` is {label: {window: result}}, `pushed` what a run sends at each window, in
    MB. The line goes through the middle seed, the band from the best to the worst.
    """
    figure, axes = pyplot().subplots(figsize=(7.6, 4.8), layout="constrained")
    for (label, row), mark, color in zip(found.items(), MARKS, LINES, strict=False):
        at = [w for w in windows if w in row]
        low, middle, high = zip(*(errors(row[w]) for w in at), strict=True)
        axes.plot(at, middle, marker=mark, color=color, label=label, lw=1.8)
        if high != low:
            axes.fill_between(at, low, high, color=color, alpha=0.18, lw=0)
        for w, error in zip(at, middle, strict=True):
            if "diverged" in row[w]:
                axes.plot(w, error, "x", color=color, ms=13, mew=2)
    axes.axhline(100 * (1 - CHANCE), color=GREY, lw=0.8, ls=":")
    axes.text(windows[0], 93, "chance", color=GREY, va="bottom")
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.set_xticks(
        windows, [f"{w}\n{mb} MB" for w, mb in zip(windows, pushed, strict=True)]
    )
    axes.minorticks_off()
    least = min(errors(cell)[0] for row in found.values() for cell in row.values())
    axes.set_ylim(0.8 * max(least, ONE_DIGIT), 115)
    low, high = axes.get_ylim()
    bottom, _ = axes.get_ylim()
    ticks = [tick for tick in (0.3, 0.5, 1, 2, 3, 5, 10, 20, 50, 90) if tick > bottom]
    axes.set_yticks(ticks, ticks)
    axes.grid(axis="y", color="0.92")
    axes.set_xlabel("communication window T, and what all workers push in the run")
    axes.set_ylabel("test error of the center variable, %")
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(0.02, 0.93), frameon=False)
    save(figure, path)


def rate(found, path, rates, trains, title):
    """Draws which rates work for how many workers, and the limit of the theory.

    `found` is {workers: {rate: result}}; `trains(result)` says whether a run works.
    """
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.6, 4.0), layout="constrained")
    counts = list(found)
    for y, row in enumerate(found.values()):
        for x, eta in enumerate(rates):
            result = row.get(eta)
            if not result:
                continue
            works = trains(result)
            color = BLUE if works else VERMILION
            cell = plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=color, lw=0)

            axes.add_patch(cell)
            text = "diverged"
            if "diverged" not in result:
                text = f"{100 * accuracy(result):.1f} %"
                text += f"\nstaleness {result['mean_staleness']:.1f}"
            look = dict(ha="center", va="center", color="white", fontsize=10)
            axes.text(x, y - 0.1, text, **look)
    marks = []
    # The rate between the last that works alone and the first that does not.
    alone = found.get(1, {})
    good = [eta for eta in rates if eta in alone and trains(alone[eta])]
    bad = [eta for eta in rates if eta in alone and not trains(alone[eta])]
    if good and bad:
        scale = math.sqrt(max(good) * min(bad))
        logs = [math.log(eta) for eta in rates]
        step = logs[1] - logs[0]

        def place(eta):  # columns are not evenly spaced: between two of them, by log
            value = math.log(eta)
            if value <= logs[0]:
                return max(-0.5, (value - logs[0]) / step)
            right = next(i for i, at in enumerate(logs) if at >= value)
            left = right - 1
            return left + (value - logs[left]) / (logs[right] - logs[left])

        at = [place(limit(n, scale)) for n in counts]
        low = [y + 0.33 for y in range(len(counts))]  # below the numbers
        look = dict(color="white", mec="black", ms=9, ls="none")
        marks = axes.plot(at, low, "^", label="limit of the theory", **look)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=color, lw=0) for color in (BLUE, VERMILION)
    ]
    figure.legend(
        [*handles, *marks],
        ["works", "does not", "limit of the theory, scaled to N = 1"],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    axes.set_xlim(-0.55, len(rates) - 0.45)
    axes.set_ylim(len(counts) - 0.45, -0.55)
    axes.set_xticks(range(len(rates)), [f"{eta:g}" for eta in rates])
    axes.set_yticks(range(len(counts)), counts)
    axes.set_xlabel("learning rate η")
    axes.set_ylabel("workers N")
    axes.set_title(title, loc="left")
    save(figure, path)


def straggler(found, path, percent, title):
    """Draws the seconds of each scheme as bars: who waits, and who does not."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    done = {
        label: result
        for label, row in found.items()
        for result in row.values()
        if "diverged" not in result
    }
    waits = [label.startswith("Synchronous") for label in done]
    colors = [BLUE if wait else ORANGE for wait in waits]
    seconds = [result["seconds"] for result in done.values()]
    bars = axes.barh(range(len(done)), seconds, color=colors, height=0.7)
    texts = [
        f"{r['seconds']:.1f} s, accuracy {percent(r)}"
        + (f", {r['gradients_dropped']} dropped" if r["gradients_dropped"] else "")
        for r in done.values()
    ]
    axes.bar_label(bars, texts, padding=4)
    axes.set_yticks(range(len(done)), [label.replace(", ", ",\n") for label in done])
    axes.set_xlim(0, 1.5 * max(seconds, default=1))  # room for the texts
    axes.invert_yaxis()
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in (BLUE, ORANGE)]
    words = ["synchronous: an update waits", "asynchronous: nobody waits"]
    figure.legend(handles, words, loc="outside lower center", ncols=2, frameon=False)
    axes.set_xlabel("seconds from the first update to the last (less is better)")
    axes.set_title(title, loc="left")
    save(figure, path)
