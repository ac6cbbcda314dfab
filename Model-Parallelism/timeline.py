"""Draws what each stage of the pipeline did when, into LOGDIR/timeline.png.

    python timeline.py                 the newest run in logdir/
    python timeline.py LOGDIR

It reads LOGDIR/timeline.json, which the client writes at the end of a run. The file has
the forwards and backwards of one mini-batch, each with the number of its micro-batch.
"""

import glob
import json
import os
import sys

COLORS = {"forward": "#56b4e9", "backward": "#e69f00"}


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"timeline.py: {sentence}", file=sys.stderr)
    raise SystemExit(status)


def draw(units, path):
    """Writes the picture of units, dicts as cluster/timeline.py has them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    stages = 1 + max(unit["stage"] for unit in units)
    micro_batches = 1 + max(unit["micro_batch"] for unit in units)
    end = max(unit["end"] for unit in units)
    busy = sum(unit["end"] - unit["start"] for unit in units)
    figure, axis = pyplot.subplots(figsize=(9, 1.1 + 0.7 * stages))
    for unit in units:
        length = unit["end"] - unit["start"]
        axis.barh(
            unit["stage"],
            1000 * length,
            left=1000 * unit["start"],
            height=0.8,
            color=COLORS[unit["kind"]],
            edgecolor="white",
        )
        if length > end / 60:
            middle = 500 * (unit["start"] + unit["end"]), unit["stage"]
            axis.text(*middle, unit["micro_batch"], ha="center", va="center")
    axis.set_yticks(range(stages), [f"stage {s}" for s in range(stages)])
    axis.invert_yaxis()
    axis.set_xlim(0, 1000 * end)
    axis.set_xlabel("ms")
    for kind, color in COLORS.items():
        axis.bar(0, 0, color=color, label=kind)
    equal = (stages - 1) / (micro_batches + stages - 1)
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axis.set_title(
        f"S = {stages}, M = {micro_batches}: bubble {1 - busy / (stages * end):.2f}, "
        f"of equal units {equal:.2f}"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=240)
    pyplot.close(figure)


def main():
    """Draws the run that the command line names, or the newest."""
    found = sorted(glob.glob("logdir/*"), key=os.path.getmtime)
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        fail("usage: python timeline.py [LOGDIR]")
    if not sys.argv[1:] and not found:
        fail("no run in logdir/: name its LOGDIR")
    logdir = sys.argv[1] if sys.argv[1:] else found[-1]
    try:
        with open(os.path.join(logdir, "timeline.json")) as file:
            units = json.load(file)
    except (OSError, ValueError):
        fail(f"{logdir} has no timeline.json: a run writes it when it ends well")
    path = os.path.join(logdir, "timeline.png")
    try:
        draw(units, path)
    except ImportError:
        fail("no matplotlib: pip install -r requirements.txt", 3)
    print(path)


if __name__ == "__main__":
    main()
