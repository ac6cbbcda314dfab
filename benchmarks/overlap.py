"""What is gained when the network works while a worker computes.

Every task has a host of its own with a cable of some Gbit/s (star.py), and worker k has
core k. The model is problems/deep.py, of 21 MB, and a mini-batch has 512 rows, so that
a gradient takes about as long as its transport. The same rounds are made in two ways,
in turn:

    ring    Ring-All-Reduce, whose last layers go around the ring while the gradient of
            the layers before them is computed; and with the whole gradient at once
    ahead   HogWild as it is, with cables of 1 Gbit/s; and with the pull of the next
            round during this round's gradient, so that every gradient is staler by one
            round of its own worker; both with ten rounds to a call

A round is timed from the chief's line at 40 % of the steps to its last. overlap.svg is
one round of each ring, as TensorFlow has traced it. Needs Linux and root.

    sudo .venv/bin/python benchmarks/overlap.py
    sudo .venv/bin/python benchmarks/overlap.py --only ring --rounds 1
"""

import contextlib
import json
import re
import statistics
import tempfile
import time
from pathlib import Path

import figures
import predictions
import runs
import star

BATCH, STEPS, RATE = 512, 50, 0.001  # rows, updates of each worker, learning rate
GIGABITS = 0.5, 1.0, 2.0  # of a cable, each way
RING, AHEAD = "Ring-All-Reduce", "HogWild"
PARTS = ["ring", "ahead"]
WHOLE, BUCKETS = "whole gradient", "in buckets"
LATER, SOONER = "after the update", "during the gradient"
MODEL = runs.HERE / "problems" / "deep.py"
# In a copy: one bucket for all.
ONE_BUCKET = "\n\nfrom cluster import ring\n\nring.BUCKET = 1 << 60\n"
# A call of one round would have no next round to pull for.
TEN_TO_A_CALL = "\n\nfrom cluster import rounds\n\nrounds.CALL = 1e9\n"
PAGE = runs.REPO / "docs" / "problem.md"  # has the change of HogWild's script
RECORDER = runs.REPO / "tools" / "timeline_recorder.py"
TRACED = 3.0  # seconds


@contextlib.contextmanager
def hosts_of(ps, workers, bits):
    """Gives a Star and the names of its tasks; worker k computes on core k."""
    names = [f"ps{k}" for k in range(ps)] + [f"worker{k}" for k in range(workers)]
    with star.Star(names, bits) as hosts:
        for k in range(workers):
            inside = hosts.inside[f"worker{k}"]
            hosts.inside[f"worker{k}"] = [*inside, "taskset", "-c", k]
        yield hosts, names


@contextlib.contextmanager
def example(folder, more="", diff=""):
    """Gives the folder of an example with the deep model, and flags of its script.

    `more` goes into its problem.py; `diff` is for its script, and has changed lines
    only.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        text = Path(parent, "more.py")
        text.write_text("\n\n" + MODEL.read_text() + more)
        with runs.variant(runs.REPO / folder, None, {"problem.py": text}) as copy:
            script = copy / runs.registry.script_of(folder)
            for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.M):
                old, new = (re.sub("^[-+]", "", t, flags=re.M) for t in (old, new))
                if script.read_text().count(old) != 1:
                    raise runs.Unfinished(f"{script.name} has not once {old!r}")
                script.write_text(script.read_text().replace(old, new))
            flags = ["--batch_size", BATCH, "--learning_rate", RATE]
            flags += ["--save_seconds", 3600, "--logdir", Path(parent, "logdir")]
            yield copy, flags


def measure(folder, ps, workers, gigabits, more, diff, quick, timeout):
    """Returns the seconds of a round of each worker, and the mean staleness."""
    steps = STEPS // (5 if quick else 1) * (workers if ps else 1)
    what = f"{folder}, {runs.workers(workers)}, {gigabits} Gbit/s"
    with contextlib.ExitStack() as stack:
        copy, flags = stack.enter_context(example(folder, more, diff))
        made = stack.enter_context(hosts_of(ps, workers, 1e9 * gigabits))
        script = copy / runs.registry.script_of(folder)
        words = [*flags, "--steps", steps]
        tasks = predictions.begin(stack, made[0], script, made[1], words)
        lines = runs.Lines(tasks["worker0"][0].stdout)
        predictions.watch(tasks, timeout, what)
        lines.join(5)
        logdir = flags[flags.index("--logdir") + 1]
        staleness = json.loads((logdir / "result.json").read_text())["mean_staleness"]
    (began, first), (ended, last) = predictions.steady(lines.lines, steps, what)
    each = workers if ps else 1
    return {"round": each * (ended - began) / (last - first), "staleness": staleness}


def pull_ahead():
    """Returns the diff of HogWild that pulls during the gradient, as a page has it."""
    section = PAGE.read_text().partition("\n## A pull during the gradient\n")[2]
    return re.search(r"^```diff\n(.*?)^```", section, re.S | re.M)[1]


def plan(only):
    """Returns {key: arguments of `measure`} of the chosen parts."""
    found = {}
    for gigabits in GIGABITS:
        if "ring" in only:
            for name, more in ((WHOLE, ONE_BUCKET), (BUCKETS, "")):
                found[f"ring, {gigabits:g}, {name}"] = RING, 0, 2, gigabits, more, ""
        for workers in (1, 2) if "ahead" in only and gigabits == 1 else ():
            for name, diff in ((LATER, ""), (SOONER, pull_ahead())):
                key = f"ahead, {gigabits:g}, {workers}, {name}"
                found[key] = AHEAD, 1, workers, gigabits, TEN_TO_A_CALL, diff
    return found


def jobs_of(args):
    """Returns the measurements of a round."""
    jobs = [
        runs.Job(
            key,
            {key.split(",")[0]},
            35,
            lambda a=a: measure(*a, args.quick, args.timeout),
        )
        for key, a in plan(args.only).items()
    ]
    return runs.one_of_each(jobs, lambda job: min(job.parts)) if args.quick else jobs


# --- One round, as TensorFlow has traced it -----------------------------------------


def recorded(more, timeout=runs.TIMEOUT):
    """Returns what the two workers of a ring have traced, with cables of 1 Gbit/s."""
    with contextlib.ExitStack() as stack:
        copy, flags = stack.enter_context(example(RING, more))
        hosts, names = stack.enter_context(hosts_of(0, 2, 1e9))
        at = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = {
            "TIMELINE_FOLDER": str(copy),
            "TIMELINE_SCRIPT": runs.registry.script_of(RING),
            "TIMELINE_RECORDING": str(at),
        }
        words = ["--job_name", "worker", *flags, "--steps", 10**6]
        variables = dict.fromkeys(names, own)
        tasks = predictions.begin(
            stack, hosts, RECORDER, names, words, variables=variables
        )
        runs.Lines(tasks["worker0"][0].stdout)  # reads them, so that the pipe is empty

        def over():
            if len(list(at.glob("ready-*"))) == 2 and not (at / "window").exists():
                begin = time.time() + 1
                (at / "new").write_text(json.dumps([begin, begin + TRACED, False]))
                (at / "new").rename(at / "window")
            return len(list(at.glob("worker-*.json"))) == 2

        predictions.watch(tasks, timeout, "a recording", over)
        found = [json.loads((at / f"worker-{k}.json").read_text()) for k in (0, 1)]
        for task, _ in tasks.values():
            task.kill()
    return found


def round_of(recording):
    """Returns [(task, kind, start, end)] of a round of median length.

    Times are in milliseconds from its start; kind is forward, backward or all-reduce.
    """
    spans = {}
    for number, call in enumerate(recording[0]["calls"]):
        for place in range(len(call["counts"])):
            found = of_round(recording, number, place)
            if len({task for task, *_ in found}) == 2:
                spans[number, place] = max(end for *_, end in found), found
    middle = statistics.median_low(length for length, _ in spans.values())
    return next(found for length, found in spans.values() if length == middle)


def of_round(recording, number, place):
    """Returns what all workers did in a round of a call, as `round_of` does."""
    found, scope = [], f"round_{place}/"
    for worker in recording:
        if number >= len(worker["calls"]):
            return []
        for task, name, kind, _, start, end in worker["calls"][number]["operations"]:
            if not name.startswith(scope) or end - start < 100:
                continue
            if kind == "CollectiveReduce":
                found.append((task, "all-reduce", start / 1000, end / 1000))
            elif name.startswith(scope + "gradient/"):
                # The buckets are put together from the gradients: backward, too.
                backward = "/gradients" in name or "/concat" in name
                what = "backward" if backward else "forward"
                found.append((task, what, start / 1000, end / 1000))
    begin = min((start for *_, start, _ in found), default=0)
    return [(t, k, start - begin, end - begin) for t, k, start, end in found]


COLORS = {
    "forward": figures.SKY,
    "backward": figures.BLUE,
    "all-reduce": figures.PURPLE,
}


def lanes(bars):
    """Returns the bars (start, end, kind), each with the first lane that is free."""
    free, found = [], []
    for start, end, kind in sorted(bars):
        lane = next((k for k, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        found.append((start, end, kind, lane))
    return found


def draw(rounds, out):
    """Draws overlap.svg: a round of each ring, {name: what round_of returns}."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(
        len(rounds), figsize=(9, 5.4), sharex=True, layout="constrained"
    )
    for axis, (name, found) in zip(axes, rounds.items(), strict=True):
        marks = []
        for row, task in enumerate(sorted({task for task, *_ in found})):
            for kinds, top in ((("forward", "backward"), 0.0), (("all-reduce",), 0.4)):
                mine = [(s, e, k) for t, k, s, e in found if t == task and k in kinds]
                placed = lanes(mine)
                deep = max(lane for *_, lane in placed) + 1
                for start, end, kind, lane in placed:
                    axis.broken_barh(
                        [(start, end - start)],
                        (row + top + 0.36 * lane / deep, 0.33 / deep),
                        color=COLORS[kind],
                        lw=0,
                    )
            marks.append((row + 0.36, task))
        end = max(end for *_, end in found)
        axis.axvline(end, color=figures.DARK, lw=0.8, ls=":")
        axis.set(ylim=(len(marks), -0.1), title=f"{name}: {end:.0f} ms")
        axis.set_yticks(*zip(*marks, strict=True))
        axis.tick_params(axis="y", length=0)
    axes[-1].set_xlabel("milliseconds")
    handles = [plt.Rectangle((0, 0), 1, 1, color=c, lw=0) for c in COLORS.values()]
    names = ["forward pass", "backward pass", "all-reduce"]
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figures.save(figure, out / "overlap")


# --- The page -----------------------------------------------------------------------


def milliseconds(rounds, key):
    """Returns the milliseconds of a round as text, and their values."""
    values = runs.series(rounds, key, "round")
    values = [value and 1000 * value for value in values]
    return runs.spread(values), values


def markdown(rounds):
    """Returns the tables and the figure."""
    text = runs.count_of(rounds)
    header = ["cable", WHOLE, BUCKETS, "times as fast"]
    rows = []
    for gigabits in GIGABITS:
        (whole, slow), (parts, fast) = (
            milliseconds(rounds, f"ring, {gigabits:g}, {n}") for n in (WHOLE, BUCKETS)
        )
        ratio = runs.spread(runs.ratios(slow, fast), 2)
        rows.append([f"{gigabits:g} Gbit/s", whole, parts, ratio])
    text += "\n### Ring-All-Reduce, 2 workers: milliseconds of a round\n\n"
    text += runs.table(header, rows) + "\n"
    text += figures.shown(
        "a round of two workers, with the whole gradient at once and in buckets",
        "overlap",
    )
    header = ["workers", LATER, SOONER, "times as fast", "mean staleness"]
    rows = []
    for n in (1, 2):
        keys = [f"ahead, 1, {n}, {name}" for name in (LATER, SOONER)]
        (later, slow), (sooner, fast) = (milliseconds(rounds, k) for k in keys)
        ratio = runs.spread(runs.ratios(slow, fast), 2)
        stale = [runs.middle(runs.series(rounds, k, "staleness")) for k in keys]
        said = " and ".join("-" if s is None else f"{s:.1f}" for s in stale)
        rows.append([n, later, sooner, ratio, said])
    text += (
        "\n### HogWild, 1 ps, 1 Gbit/s: milliseconds of a round, by when it pulls\n\n"
    )
    return text + runs.table(header, rows)


def code():
    """Returns what the results depend on."""
    more = {"problem.py": MODEL}
    return {name: runs.fingerprint(name, more) for name in (RING, AHEAD)}


def main():
    parser = runs.measuring_parser(__doc__, parts=PARTS)
    with runs.finished(parser.parse_args()) as args:
        star.check()
        rounds, progress = runs.in_rounds(jobs_of(args), args, "overlap", code())
        if "ring" in args.only and not args.quick:
            kinds = ((WHOLE, ONE_BUCKET), (BUCKETS, ""))
            draw({n: round_of(recorded(m, args.timeout)) for n, m in kinds}, args.out)
        text = markdown(rounds)
        runs.publish(args, "overlap", text, root=True)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
