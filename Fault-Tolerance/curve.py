"""Draws what a run of this folder lost and how it came back, into LOGDIR/curve.png.

    python curve.py                 the newest run in logdir/
    python curve.py LOGDIR

Training loss, test accuracy and global step against time. The chief has written them as
events. A dashed line stands where run.sh has killed a task. A grey gap stands where
there are no points, because the ps or the chief was gone.
"""

import glob
import itertools
import os
import sys

WHAT = {"training_loss": "training loss", "test_accuracy": "test accuracy"}
GONE = {  # what stands in the gap after such a task was killed
    "ps": "no ps, then\nback to the\ncheckpoint",
    "worker": "no chief\nthat draws,\nothers train",
}


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"curve.py: {sentence}", file=sys.stderr)
    raise SystemExit(status)


def read(logdir):
    """Returns the points of each start of the chief, in order.

    A point is (second since the epoch, global step, {name: value}). Every start of the
    chief has a file of events.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from cluster import tensorflow_v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    starts = []
    for path in glob.glob(glob.escape(logdir) + "/events.out.tfevents.*"):
        points = []
        for event in tf.train.summary_iterator(path):
            values = {v.tag: v.simple_value for v in event.summary.value}
            if values.keys() & WHAT.keys():
                points.append((event.wall_time, event.step, values))
        if points:
            starts.append(sorted(points, key=lambda point: point[0]))
    return sorted(starts, key=lambda points: points[0][0])


def killed(logdir):
    """Returns (second, task) for each task that run.sh has killed."""
    try:
        with open(os.path.join(logdir, "killed")) as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:
        return []
    return [(float(second), f"{job} {index}") for second, job, index in rows]


def outages(starts, marks):
    """Returns (from, to, job) of each gap after a ps or the chief was killed.

    Points come about once a second, and one may be written just after the kill: the gap
    is the longest time between two points that begins at most 2 s after it.
    """
    seconds = sorted(point[0] for points in starts for point in points)
    found = []
    for second, task in marks:
        gaps = [
            (b - a, a, b)
            for a, b in itertools.pairwise(seconds)
            if b > second and a < second + 2
        ]
        if gaps and (task.startswith("ps ") or task == "worker 0"):
            found.append((*max(gaps)[1:], task.split()[0]))
    return found


def draw(starts, marks, path):
    """Writes the picture of `starts` (see `read`) and `marks` (see `killed`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    zero = starts[0][0][0]
    gaps = outages(starts, marks)
    names = [*WHAT, "global step"]
    figure, axes = pyplot.subplots(len(names), 1, sharex=True, figsize=(8, 7))
    for axis, name in zip(axes, names, strict=True):
        points = [
            (second - zero, values[name] if name in WHAT else step)
            for second, step, values in itertools.chain(*starts)
            if name in values or name not in WHAT
        ]

        def part(point):  # the line breaks where a gap ends
            return sum(end - zero <= point[0] for _, end, _ in gaps)

        for _, line in itertools.groupby(points, part):
            axis.plot(*zip(*line, strict=True), marker=".", color="#0072b2")
        axis.set_ylabel(WHAT.get(name, name))
        axis.grid(alpha=0.3)
        for begin, end, _ in gaps:
            axis.axvspan(begin - zero, end - zero, color="#e0e0e0")
        for second, _ in marks:
            axis.axvline(second - zero, color="#d55e00", linestyle="--")
    axes[0].set_yscale("log")
    top = axes[0].get_xaxis_transform()
    for second, task in marks:
        who = "chief" if task == "worker 0" else task
        where = dict(color="#d55e00", ha="center", transform=top)
        axes[0].text(second - zero, 1.03, f"{who} killed", **where)
    for begin, end, job in gaps:
        where = dict(ha="center", va="top", transform=axes[1].get_xaxis_transform())
        where["bbox"] = dict(color="#e0e0e0", pad=1)  # on top of the dashed line
        axes[1].text((begin + end) / 2 - zero, 0.5, GONE[job], fontsize=9, **where)
    axes[-1].set_xlabel("seconds since the first point")
    figure.tight_layout()
    figure.savefig(path, dpi=200)


def main():
    """Draws the run that the command line names, or the newest."""
    found = sorted(glob.glob("logdir/*"), key=os.path.getmtime)
    if len(sys.argv) > 2 or not (sys.argv[1:] or found):
        fail("name the LOGDIR of a run: python curve.py LOGDIR")
    logdir = sys.argv[1] if sys.argv[1:] else found[-1]
    try:
        starts = read(logdir)
    except ImportError as error:
        fail(f"{error}: use the Python that run.sh uses", 3)
    if not starts:
        fail(f"{logdir} has no curve: is it the LOGDIR of a run?")
    path = os.path.join(logdir, "curve.png")
    try:
        draw(starts, killed(logdir), path)
    except ImportError as error:
        fail(f"{error}: {sys.executable} -m pip install -r requirements.txt", 3)
    except OSError as error:
        fail(f"{path}: {error.strerror}", 1)
    print(path)


if __name__ == "__main__":
    main()
