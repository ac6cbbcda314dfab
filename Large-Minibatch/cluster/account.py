"""The books as a dict for result.json. `protocol` and scripts call it."""

from cluster.rows import COLUMNS


def account(table, extremes, begun):
    """Returns the books as a dict for result.json, from what `Books.all` is at the end.

    Rates are of the incarnation that ended well, all else is since global step 0.
    """
    sums, before = (
        dict(zip(COLUMNS, rows.sum(axis=0).tolist(), strict=True))
        for rows in (table, begun)
    )
    rounds = table[:, COLUMNS.index("rounds")]
    first, last = -extremes[:, 0], extremes[:, 1]
    there = last > 0  # who made an update in this incarnation
    seconds = max(last.max() - first[there].min(), 1e-6) if there.any() else 0.0
    late = first[there].max() - first[there].min() if there.any() else 0.0
    made = {name: sums[name] - before[name] for name in ("updates", "examples")}
    return {
        "global_steps": sums["updates"],
        "resumed_from": before["updates"],
        "examples": sums["examples"],
        "seconds": seconds,
        "seconds_to_all_started": late,
        "examples_per_second": _rate(made["examples"], seconds),
        "steps_per_second": _rate(made["updates"], seconds),
        "rounds_per_worker": dict(enumerate(rounds.tolist())),
        "gradients_dropped": sums["dropped"],
        "bytes_pushed": sums["pushed"],
        "bytes_pulled": sums["pulled"],
        "mean_staleness": sums["staleness"] / max(1, sums["updates"]),
        "max_staleness": int(extremes[:, 2].max()),
    }


def _rate(count, seconds):
    return count / seconds if seconds else 0.0


def of_one_process(step, begun, times, batch_size):
    """Returns what `account` does for a process without ps.

    `times` are those of the first and the last update, in seconds, if there was one.
    """
    seconds = max(times[1] - times[0], 1e-6) if times else 0.0
    rate = _rate(step - begun, seconds)
    return {
        "global_steps": step,
        "resumed_from": begun,
        "examples": step * batch_size,
        "seconds": seconds,
        "seconds_to_all_started": 0.0,
        "examples_per_second": rate * batch_size,
        "steps_per_second": rate,
        "rounds_per_worker": {0: step},
        "gradients_dropped": 0,
        "bytes_pushed": 0,
        "bytes_pulled": 0,
        "mean_staleness": 0.0,
        "max_staleness": 0,
    }
