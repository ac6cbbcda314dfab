"""A picture of many runs: what each flag did to the result. sweep.py draws it."""

import matplotlib

matplotlib.use("Agg")  # into a file
import matplotlib.pyplot as plt

RUN, TOP, LOST = "#4878a8", "#d1495b", "#808080"
SIDE_BY_SIDE = 6


def runs(rows, names, best, path):
    """Draws `rows` (dicts, the best first) into a file, a panel for each name.

    A dot is a run, the ringed one the best; a cross below is a run that failed. Up to
    six values stand side by side; more are on an axis, by magnitude if they span a lot.
    """
    good = [row for row in rows if row[best] is not None]
    bad = [row for row in rows if row[best] is None]
    width = max(4.0, 3.2 * len(names))
    figure, panels = plt.subplots(
        1, len(names), figsize=(width, 3.4), sharey=True, squeeze=False
    )
    floor = min((row[best] for row in good), default=0.0)
    span = max((row[best] for row in good), default=1.0) - floor or 0.01
    below = floor - 0.12 * span
    for panel, name in zip(panels[0], names, strict=True):
        place = _scale(panel, [row[name] for row in rows])
        for x in sorted({place(row[name]) for row in good}):
            ys = [row[best] for row in good if place(row[name]) == x]
            panel.plot([x, x], [min(ys), max(ys)], color=RUN, alpha=0.3, zorder=1)
        panel.scatter(
            [place(row[name]) for row in good],
            [row[best] for row in good],
            color=RUN,
            s=26,
            alpha=0.8,
            zorder=2,
        )
        panel.scatter(
            [place(row[name]) for row in bad],
            [below] * len(bad),
            color=LOST,
            marker="x",
            zorder=2,
        )
        for row in good[:1]:
            panel.scatter(
                place(row[name]), row[best], s=110, edgecolors=TOP, color="none"
            )
        panel.set_xlabel(name)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel(best.replace("_", " "))
    title = f"{len(rows)} runs"
    title += f", {len(bad)} failed (crosses)" if bad else ""
    title += f", best {good[0][best]:.4f} (ringed)" if good else ""
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=240)
    plt.close(figure)


def _scale(panel, values):
    """Sets a panel's horizontal axis; returns where on it a value is."""
    numbers = all(isinstance(value, (int, float)) for value in values)
    distinct = sorted(set(values))
    if not numbers or len(distinct) <= SIDE_BY_SIDE:
        labels = [f"{value:g}" if numbers else value for value in distinct]
        panel.set_xticks(range(len(distinct)), labels)
        panel.set_xlim(-0.5, len(distinct) - 0.5)
        return distinct.index
    if distinct[0] > 0 and distinct[-1] > 5 * distinct[0]:
        panel.set_xscale("log")
    return float
