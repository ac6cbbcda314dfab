"""The figures of the notebooks. What they show is computed there, not here.

The colours are those of Okabe and Ito, which people of every colour vision tell apart
(Color Universal Design, 2008); what two colours say is said by a mark or a word too.
"""

import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, VERMILION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
SKY, PURPLE, DARK, GREY = "#56B4E9", "#CC79A7", "#444444", "#999999"
WORKERS = [BLUE, ORANGE, VERMILION]


def figure(rows=1, columns=1, size=(8, 3.4), **options):
    """Returns a new figure and its axes, without frames on the right and at the top."""
    made, axes = plt.subplots(
        rows, columns, figsize=size, layout="constrained", **options
    )
    for ax in np.atleast_1d(axes).flat:
        ax.spines[["top", "right"]].set_visible(False)
    return made, axes


def box(ax, x, y, width, height, color):
    """Draws the frame of a task."""
    frame = plt.Rectangle((x, y), width, height, fc="white", ec=color, lw=2)
    ax.add_patch(frame)


def arrow(ax, start, end, color):
    """Draws an arrow between two points."""
    look = {"arrowstyle": "-|>", "color": color, "lw": 2}
    ax.annotate("", end, start, arrowprops=look)


def two_clients(seen):
    """Two clients with a graph each, and the variable that both find on the ps."""
    _, ax = figure(size=(7, 3))
    boxes = {
        "worker 0": (0.0, 0.0, "own graph, own session", BLUE),
        "worker 1": (2.4, 0.0, "own graph, own session", VERMILION),
        "ps": (1.2, 1.5, f"variable w = {seen:.0f}", DARK),
    }
    for name, (x, y, text, color) in boxes.items():
        box(ax, x, y, 1.6, 0.8, color)
        ax.text(x + 0.8, y + 0.52, name, ha="center", weight="bold", color=color)
        ax.text(x + 0.8, y + 0.2, text, ha="center")
    arrow(ax, (0.8, 0.82), (1.6, 1.48), BLUE)
    arrow(ax, (3.2, 0.82), (2.4, 1.48), VERMILION)
    ax.text(0.85, 1.1, "add 1, read 1", ha="right", color=BLUE)
    ax.text(3.15, 1.1, "add 1, read 2", ha="left", color=VERMILION)
    ax.set(xlim=(-0.1, 4.1), ylim=(-0.1, 2.4))
    ax.set_axis_off()
    plt.show()


def first_window(history):
    """The two tasks after the pull, after three local steps, and after the push.

    `history` has (move, local c, center c) for each move.
    """
    moments = [(0, "1. pull", "down"), (3, "2. local steps", ""), (4, "3. push", "up")]
    _, axes = figure(1, 3, size=(9, 2.6))
    for ax, (moment, title, way) in zip(axes, moments, strict=True):
        _, local, center = history[moment]
        rows = [(1.3, "ps", "center", center, DARK)]
        rows += [(0.0, "worker", "local", local, BLUE)]
        for y, task, kind, c, color in rows:
            box(ax, 0, y, 3, 0.7, color)
            ax.text(0.15, y + 0.35, task, va="center", weight="bold", color=color)
            ax.text(2.85, y + 0.35, f"{kind} c = {c:.1f}", va="center", ha="right")
        if way:
            low, high = (1.5, 0.72), (1.5, 1.28)
            arrow(ax, *((low, high) if way == "up" else (high, low)), BLUE)
            words = "sum −244" if way == "up" else "center values"
            ax.text(1.65, 1.0, words, va="center", fontsize=9)
        ax.set_title(title, fontsize=11)
        ax.set(xlim=(-0.1, 3.1), ylim=(-0.1, 2.1))
        ax.set_axis_off()
    plt.show()


def windows(moves, curves, center):
    """The copies and the center after each move; a push is a grey bar.

    `curves` has a list of numbers for each copy, `center` the center's; both are as
    long as `moves`.
    """
    _, ax = figure()
    x = range(len(moves))
    ax.step(x, center, where="post", color=DARK, label="center c (ps)", lw=5)
    looks = [("o-", BLUE), ("s--", VERMILION)]
    for (name, values), (mark, color) in zip(curves.items(), looks, strict=False):
        ax.plot(x, values, mark, color=color, label=name, ms=5)
    for i, move in enumerate(moves):
        if move.startswith("push"):
            ax.axvline(i, color="0.88", lw=9, zorder=0)
    ax.set(xlabel="move (grey: a push)", ylabel="c = a + b", ylim=(-4, 104))
    ax.set_xticks(x, moves, rotation=90, fontsize=8)
    ax.legend(frameon=False)
    plt.show()


def kilobytes(rules):
    """What each ps holds under each rule: {title: [{variable: bytes} for each ps]}."""
    colors = {"table": BLUE, "w1": ORANGE, "w2": VERMILION}
    _, axes = figure(1, len(rules), size=(9, 3), sharey=True)
    for ax, (title, tasks) in zip(axes, rules.items(), strict=True):
        for task, variables in enumerate(tasks):
            bottom = 0
            for name, size in variables.items():
                color = colors.get(name.split("/")[0], GREY)
                ax.bar(task, size / 1000, 0.65, bottom / 1000, color=color)
                bottom += size
            ax.text(task, bottom / 1000 + 1.5, f"{bottom / 1000:.1f}", ha="center")
        ax.set_title(title, fontsize=11)
        ax.set_xticks(range(len(tasks)), [f"ps {task}" for task in range(len(tasks))])
    axes[0].set(ylabel="kilobytes", ylim=(0, 112))
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in [*colors.values(), GREY]]
    axes[-1].legend(handles, [*colors, "b1, b2"], frameon=False, ncols=2)
    plt.show()


def names(count):
    """Returns the workers' names, of which the last is slow."""
    return [*(f"worker {k}" for k in range(count - 1)), f"worker {count - 1} (slow)"]


def timelines(notes_of, count, seconds=1.0):
    """Who computes (coloured) and who waits (grey), in the first seconds.

    `notes_of` has, for each title, (worker, start, end, version) of every gradient.
    """
    _, axes = figure(2, 2, size=(9, 4.4), sharex=True, sharey=True)
    for ax, (title, notes) in zip(axes.flat, notes_of.items(), strict=True):
        first = min(start for _, start, _, _ in notes)
        last = max(end for _, _, end, _ in notes)
        for k in range(count):
            ax.barh(k, last - first, color="0.88", height=0.5)
            bars = [(s - first, e - s) for w, s, e, _ in notes if w == k]
            ax.broken_barh(bars, (k - 0.3, 0.6), color=WORKERS[k], edgecolor="white")
        ax.set_title(title, fontsize=11)
        ax.set(xlim=(0, seconds), ylim=(count - 0.4, -0.6))
        ax.set_yticks(range(count), names(count))
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    for ax in axes[1]:
        ax.set_xlabel("seconds (grey: waiting)")
    plt.show()


def staleness(stale):
    """How stale the pushes of each worker were: `stale` has a list for each."""
    _, ax = figure(size=(8, 3))
    top = max(map(max, stale))
    bins = np.arange(top + 2) - 0.5
    look = dict(color=WORKERS, label=names(len(stale)), rwidth=0.8)
    ax.hist(stale, bins, stacked=True, **look)
    ax.set(xlabel="staleness of a push (versions)", ylabel="pushes")
    ax.set_xticks(range(top + 1))
    ax.legend(frameon=False)
    plt.show()


def moments(diary):
    """The five moments of a hook in the order of `diary`, and what each may do."""
    kinds = {
        "begin": ("begin", "may still change the graph", PURPLE),
        "session": ("after_create_session", "a new session, also after a loss", GREEN),
        "before": ("before_run", "may ask for more tensors", BLUE),
        "after": ("after_run", "gets them; may ask to stop", VERMILION),
        "end": ("end", "the session is still open", DARK),
    }
    _, ax = figure(size=(9, 2.9))
    rows = list(kinds)
    for k, kind in enumerate(rows):
        name, text, color = kinds[kind]
        at = [i for i, moment in enumerate(diary) if moment == kind]
        ax.plot(at, [k] * len(at), "o", color=color, ms=8)
        ax.text(-1.2, k - 0.13, name, ha="right", va="center", color=color)
        ax.text(-1.2, k + 0.27, text, ha="right", va="center", fontsize=8)
    runs = [i for i, moment in enumerate(diary) if moment == "before"]
    for number, i in enumerate(runs, 1):
        ax.axvspan(i - 0.4, i + 1.4, color="0.93", zorder=0)
        ax.text(i + 0.5, -0.75, number, ha="center", fontsize=8)
    ax.text(runs[0] - 0.6, -0.75, "run", ha="right", fontsize=8)
    ax.set(xlim=(-0.8, len(diary)), ylim=(len(rows) - 0.4, -1.1))
    ax.set_xlabel("call of the hook, one after the other (grey: a run of the loop)")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    plt.show()


KINDS = {"pull": BLUE, "gradient": SKY, "push": VERMILION, "all-reduce": PURPLE}
KINDS.update({"wait": "0.9", "call": GREY})  # call: what is between the rounds


def in_time(runs, start, seconds):
    """What each worker does, in so many seconds: {title: the bars of a simulation}.

    A bar has worker, kind, start and end.
    """
    workers = {
        title: 1 + max(bar.worker for bar in bars) for title, bars in runs.items()
    }
    size = (9, 0.6 + sum(0.5 + 0.28 * count for count in workers.values()))
    ratios = list(workers.values())
    made, axes = figure(len(runs), size=size, height_ratios=ratios, sharex=True)
    for ax, (title, bars) in zip(np.atleast_1d(axes), runs.items(), strict=True):
        for bar in bars:
            if bar.end > start and bar.start < start + seconds:
                look = {"color": KINDS[bar.kind], "height": 0.72, "lw": 0}
                if bar.kind == "wait":
                    look.update(hatch="////", edgecolor="0.6")
                left = max(bar.start - start, 0)
                right = min(bar.end - start, seconds)
                ax.barh(bar.worker, 1000 * (right - left), left=1000 * left, **look)
        ax.set_title(title, fontsize=10, loc="left")
        ax.set(xlim=(0, 1000 * seconds), ylim=(workers[title] - 0.4, -0.6))
        ax.set_yticks(range(workers[title]))
        ax.set_ylabel("worker")
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    ax.set_xlabel("milliseconds")
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in KINDS.values()]
    handles[list(KINDS).index("wait")].set(hatch="////", edgecolor="0.6")
    made.legend(handles, KINDS, loc="outside lower center", ncols=6, frameon=False)
    plt.show()


def rate_and_limits(counts, simulated, lines, what):
    """Rounds a second against the number of workers, and the lines that limit them.

    `lines` is {label: the values at `counts`}.
    """
    _, ax = figure(size=(7, 3.4))
    for (label, values), mark in zip(lines.items(), ("--", ":", "-."), strict=False):
        ax.plot(counts, values, mark, color=DARK, label=label)
    ax.plot(counts, simulated, "o", color=BLUE, label="simulated")
    top = 1.25 * max(simulated)
    ax.set(xlabel="workers N", ylabel=what, ylim=(0, top))
    ax.legend(frameon=False)
    plt.show()
