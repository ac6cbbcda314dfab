"""Workers that die at random and come back: what is left of their work.

A worker lives for a random time, LIFE seconds on average, and is then killed with
signal 9. The launcher starts its process again, which waits until the worker has been
away for DOWN seconds. A gradient is a sleep of STEP seconds, so that LIFE is 200 steps,
DOWN 50, and a run 600. In all schemes the same workers die at the same moments.

    goodput    examples that count at the end, against those that the workers would
               have used if nobody had died or waited
    accuracy   of that center variable, on the test set

In a ring the examples are those of the center variable in the last checkpoint. Of
Decoupled-DiLoCo they are those of the steps in all answers that were merged, a fragment
counted as its part of w; the center variable is that of the ps, which never dies. The
chief saves every SAVE seconds. The clock starts with the first checkpoint. Processes
are forks of one that has imported TensorFlow; each waits IMPORT seconds first, and one
that begins again is a new fork, too. So two cores can be some machines. Several runs
are made at once.

Writes chaos.svg, and chaos.json, in which finished runs are kept.

    python benchmarks/chaos.py
    python benchmarks/chaos.py --seeds 1 --only 2,4
    python benchmarks/chaos.py --quick
"""

import collections
import concurrent.futures
import contextlib
import functools
import importlib
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import threading
import time

import figures
import pays
import runs

STEP, LIFE, DOWN, SECONDS = 0.16, 32.0, 8.0, 96.0  # seconds; of a run, the last
IMPORT, SAVE = 1.0, 1.0
BATCH = 32  # of an example's script
PARAMETERS = 4810
EXAMPLES = 4  # the column of the counters, see COUNTERS in cluster/stats.py
COUNTS, SEEDS = (2, 4, 8), 5
AT_ONCE = 24  # workers of all runs that are made at the same time
NOBODY = "nobody dies: DiLoCo"

Scheme = collections.namedtuple("Scheme", "folder flags ps", defaults=[0])
INNER = ["--window", 24, "--learning_rate", 0.001]
LEARNER = "Decoupled-DiLoCo"


def learners(quorum):
    """Returns the Scheme of Decoupled-DiLoCo with a quorum, None: all workers."""
    return lambda workers: Scheme(LEARNER, [*INNER, "--quorum", quorum or workers], 1)


SCHEMES = {
    NOBODY: Scheme("DiLoCo", INNER),
    "Ring-All-Reduce": Scheme("Ring-All-Reduce", ["--learning_rate", 0.2]),
    "DiLoCo": Scheme("DiLoCo", INNER),
    "DiLoCo, --min_workers 1": Scheme("DiLoCo", [*INNER, "--min_workers", 1]),
    f"{LEARNER}, K = 1": learners(1),
    f"{LEARNER}, K = 2": learners(2),
    f"{LEARNER}, K = N": learners(None),
}
# For the end of problem.py: a worker that has died stays away; one that begins again,
# or is not of the ring that is there, is a new fork; a call is one round, so that
# processes start with little computing; and a ring waits 1 s for late workers, not 5.
# A merge adds the steps in its answers, whose weights are steps × (a mini-batch)².
AWAY = """

import os
import pathlib
import sys
import time

from cluster import rounds, run, task

given = dict(zip(sys.argv, sys.argv[1:]))
if given.get("--job_name") == "worker":
    note = pathlib.Path(os.environ["CHAOS"], "away-" + given["--task_index"])
    if note.exists():
        time.sleep(max(0.0, float(note.read_text()) - time.monotonic()))


def begin_again(args, reason):
    print(f"{reason}: begins again", flush=True)
    os._exit(task.AGAIN)


task.begin_again = begin_again
run.fail = lambda sentence, *_: begin_again(None, sentence)
rounds.Calls.__init__.__defaults__ = ((1,),)
modules = os.listdir(os.path.dirname(rounds.__file__))
if "lockstep.py" in modules:
    from cluster import lockstep, membership

    lockstep.Calls.__init__.__defaults__ = ((1,),)
    membership.LATER = 1
if "syncer.py" in modules:
    from cluster import syncer
    from cluster import tensorflow_v1 as tf

    class Syncer(syncer.Syncer):
        def __init__(self, args, center, stats, grace):
            super().__init__(args, center, stats, grace)
            kind = dict(trainable=False, use_resource=True, collections=[])
            with tf.device(stats.device):
                self.kept = tf.get_variable("kept", initializer=0.0, **kind)
            stats.unsaved.append(self.kept)

        def merge(self, counted, pushed, rule):
            done = super().merge(counted, pushed, rule)
            with tf.device(self.stats.device), tf.control_dependencies(done):
                steps = tf.reduce_sum(self.open) / self.args.batch_size**2
                steps *= tf.cast(counted.applied, tf.float32) / self.args.fragments
                return [*done, self.kept.assign_add(steps, read_value=False)]

    syncer.Syncer = Syncer
"""


# --- A run ------------------------------------------------------------------------


def deaths(workers, seed, seconds=SECONDS):
    """Returns [(seconds from the begin, worker)] of all deaths in a run, sorted."""
    found = []
    for worker in range(workers):
        draw, now = random.Random(f"{seed}, {worker}"), 0.0
        while (now := now + draw.expovariate(1 / LIFE)) < seconds:
            found.append((now, worker))
            now += DOWN
    return sorted(found)


# One test or one line at a time: a test is silent, and stderr is of the whole process.
SPEAKING = threading.Lock()
STOPPED = threading.Event()  # set: no run goes on


@functools.cache
def tensorflow():
    """Returns TensorFlow, and the function that tests a vector of weights."""
    runs.forked()  # silences stderr, too
    test = pays.tester("")
    return importlib.import_module("cluster.tensorflow_v1"), test


def saved(logdir):
    """Returns (examples so far, weights) of the last checkpoint, None without one."""
    tf, _ = tensorflow()
    path = tf.train.latest_checkpoint(str(logdir))
    with contextlib.suppress(tf.errors.OpError, ValueError):  # it is being replaced
        reader = tf.train.load_checkpoint(path) if path else None
        if reader:
            counted = reader.get_tensor("counters")[:, EXAMPLES].sum()
            return int(counted), reader.get_tensor("center")
    return None


def on_the_ps(logdir):
    """Returns (examples merged so far, weights) of the ps, None if there is no ps.

    The chief may be away, and save nothing.
    """
    process = runs.tasks(logdir).get("ps 0")
    if not process:
        return None
    tf, _ = tensorflow()
    words = (process / "cmdline").read_text().split("\0")
    target = "grpc://" + words[words.index("--ps_hosts") + 1]
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        read = dict(use_resource=True, trainable=False)
        kept = tf.get_variable("kept", [], **read)
        center = tf.get_variable("center/part_0", [PARAMETERS], **read)
        filters = tf.ConfigProto(device_filters=["/job:ps/task:0"])
        with tf.Session(target, config=filters) as session:
            steps, weights = session.run([kept, center])
    return BATCH * float(steps), weights


def strike(logdir, notes, worker):
    """Kills a worker, which is then away for DOWN seconds."""
    (notes / f"away-{worker}").write_text(str(time.monotonic() + DOWN))
    process = runs.tasks(logdir).get(f"worker {worker}")
    if process:  # else it is just beginning again, and is away, too
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)


def measure(label, workers, seed, args):
    """Makes a run of a scheme; returns its goodput, its accuracy and its deaths."""
    scheme, seconds = scheme_of(label, workers), args.seconds
    struck = [] if label == NOBODY else deaths(workers, seed, seconds)
    due = list(struck)
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
        more, notes = pathlib.Path(parent, "more.py"), pathlib.Path(parent, "notes")
        more.write_text(AWAY)
        notes.mkdir()
        logdir = pathlib.Path(parent, "logdir")
        source = runs.REPO / scheme.folder
        copy = stack.enter_context(runs.variant(source, None, {"problem.py": more}))
        env = runs.environment(
            LOGDIR=logdir,
            CHAOS=notes,
            IMPORT_SECONDS=IMPORT,
            NUM_WORKERS=workers,
            MAX_RESTARTS=10**6,
            OPEN_PORTS=1,  # in a network of its own, tasks would be no forks
            **({"NUM_PS": scheme.ps} if scheme.ps else {}),
        )
        flags = [*scheme.flags, "--steps", 10**6, "--seed", seed]
        flags += ["--slow_workers", STEP, "--save_seconds", SAVE]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        command = ["bash", copy / "run.sh", *flags]
        with runs.process(
            command, runs.forkserver.Forked, env=env, cwd=copy, **pipes
        ) as child:
            lines, limit = runs.Lines(child.stdout), time.monotonic() + args.timeout
            first, begin = None, None
            while begin is None or time.monotonic() < begin + seconds:
                if child.poll() is not None or not begin and time.monotonic() > limit:
                    text = "\n".join(line for _, line in lines.lines[-20:])
                    raise runs.Unfinished(f"{key_of(label, workers, seed)}:\n{text}")
                if begin is None and (first := saved(logdir)):
                    first, begin = on_the_ps(logdir) or first, time.monotonic()
                while begin and due and time.monotonic() > begin + due[0][0]:
                    strike(logdir, notes, due.pop(0)[1])
                if STOPPED.wait(0.05):
                    raise runs.Unfinished("interrupted")
            last = on_the_ps(logdir)
        last, (_, test) = last or saved(logdir), tensorflow()
        with SPEAKING:
            loss, accuracy = test(last[1])
    made = (last[0] - first[0]) / BATCH
    return {
        "goodput": made / (workers * seconds / STEP),
        "test_accuracy": accuracy,
        "test_loss": loss,
        "deaths": len(struck),
    }


# --- The plan ---------------------------------------------------------------------


def scheme_of(label, workers):
    """Returns the Scheme of a row of the table, for so many workers."""
    found = SCHEMES[label]
    return found(workers) if callable(found) else found


def key_of(label, workers, seed):
    """Returns the name of a run in the JSON."""
    return f"{label}, N = {workers}, seed {seed}"


def cells():
    """Returns the cells of the table, (label, N): of examples that are there."""
    there = set(runs.examples())
    return [
        (label, workers)
        for label in SCHEMES
        for workers in COUNTS
        # With two workers K = 2 is K = N.
        if scheme_of(label, workers).folder in there
        and not (label.endswith("K = 2") and workers == 2)
    ]


def plan(args):
    """Returns the runs, (label, N, seed): all of one seed before those of the next."""
    chosen = [cell for cell in cells() if str(cell[1]) in args.only]
    if args.quick:
        chosen = [("DiLoCo, --min_workers 1", 2)]
    return [(*cell, seed) for seed in range(args.seeds) for cell in chosen]


class Room:
    """So many workers at the same time."""

    def __init__(self, workers):
        self.free, self.changed = workers, threading.Condition()

    @contextlib.contextmanager
    def taken(self, workers):
        """Waits for room, and has it while the `with` lasts."""
        with self.changed:
            self.changed.wait_for(lambda: self.free >= workers)
            self.free -= workers
        try:
            yield
        finally:
            with self.changed:
                self.free += workers
                self.changed.notify_all()


def measure_all(planned, args, code):
    """Makes the runs that are not kept; returns {key: result} and the progress."""
    path = args.out / "chaos.json"
    found = {} if args.again else (runs.kept(path, code) or [{}])[0]
    cost = [(args.seconds + 8) * n / AT_ONCE for _, n, _ in planned]
    todo = [key_of(*run) not in found for run in planned]
    progress = runs.Progress(c * t for c, t in zip(cost, todo, strict=True))
    room = Room(AT_ONCE)
    with runs.silence():
        tensorflow()  # before there are threads

    def make(run, seconds):
        key = key_of(*run)
        with room.taken(run[1]):
            try:
                result, said = measure(*run, args), None
            except runs.Unfinished as error:
                result, said = None, str(error)
        with SPEAKING:
            if result:
                found[key] = result
                runs.keep(path, code, [found])
                said = f"{key}: goodput {result['goodput']:.2f}, "
                said += f"accuracy {result['test_accuracy']:.3f}"
            else:
                progress.failed.append(said.splitlines()[0])
            progress.add(said, seconds)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = []
        for run, seconds, new in zip(planned, cost, todo, strict=True):
            if new:
                waiting.append(pool.submit(make, run, seconds))
            else:
                progress.add(key_of(*run))
        try:
            for one in waiting:
                one.result()
        finally:  # also after Ctrl-C
            STOPPED.set()
            pool.shutdown(cancel_futures=True)
    return found, progress


# --- Claims -----------------------------------------------------------------------


def kept():
    """Returns the results in results/, none if there are none."""
    path = runs.RESULTS / "chaos.json"
    return json.loads(path.read_text())["rounds"][0] if path.exists() else {}


def goodput(found, label, workers):
    """Returns the median goodput of a cell, None without one."""
    return runs.middle([one["goodput"] for one in of_seeds(found, label, workers)])


def claims_of(found):
    """Yields (claim, source, seen, holds) of what is left where workers die."""
    source, least, most = "Douillard et al. 2026", min(COUNTS), max(COUNTS)
    learner = f"{LEARNER}, K = 1"
    few, all_wait, one = (
        goodput(found, *cell)
        for cell in (("DiLoCo", least), ("DiLoCo", most), (learner, most))
    )
    if None not in (few, all_wait):
        seen = f"{few:.2f} with {least} workers, {all_wait:.2f} with {most}"
        claim = "where all wait for all, goodput falls as workers are added"
        yield claim, source, seen, all_wait < few / 2
    if None not in (one, all_wait):
        seen = f"{one:.2f} against {all_wait:.2f}"
        claim = f"with a quorum of one it is twice as high or more, N = {most}"
        yield claim, source, seen, one >= 2 * all_wait
    each = [goodput(found, learner, n) for n in COUNTS]
    if None not in each:
        alive = LIFE / (LIFE + DOWN)
        claim = f"and near {alive:g}, the time that workers live, whatever N"
        seen = ", ".join(f"{value:.2f}" for value in each)
        yield claim, "by formula", seen, min(each) > alive - 0.1
    cells = [of_seeds(found, label, most) for label in (learner, NOBODY)]
    if all(cells):
        right = [runs.middle([r["test_accuracy"] for r in some]) for some in cells]
        seen = " against ".join(f"{100 * value:.1f} %" for value in right)
        claim = f"and the accuracy is that of DiLoCo without deaths, N = {most}"
        yield claim, source, seen, right[0] > right[1] - 0.01


# --- Table and figure -------------------------------------------------------------


def of_seeds(found, label, workers):
    """Returns the results of a cell, of all its seeds."""
    some = (key_of(label, workers, seed) for seed in range(SEEDS))
    return [found[key] for key in some if key in found]


def said(results, most):
    """Returns what a cell says: goodput and accuracy, and its seeds if below `most`."""
    if not results:
        return "-"
    good, right = (
        runs.middle([result[field] for result in results])
        for field in ("goodput", "test_accuracy")
    )
    few = f" (seeds: {len(results)})" * (len(results) < most)
    return f"{good:.2f} / {100 * right:.1f} %{few}"


def markdown(found):
    """Returns the table of goodput and accuracy."""
    most = max(len(of_seeds(found, *cell)) for cell in cells())
    rows = [
        [label, *(said(of_seeds(found, label, n), most) for n in COUNTS)]
        for label in dict.fromkeys(label for label, _ in cells())
    ]
    text = "### Workers that die and come back\n\n"
    text += figures.shown(
        "goodput and test error against the number of workers", "chaos"
    )
    text += "\n" + runs.table(
        ["goodput / test accuracy", *(f"N = {n}" for n in COUNTS)], rows
    )
    return text + (
        f"\nMedian of {most} seeds, or of as many as a cell says. A gradient takes "
        f"{1000 * STEP:g} ms, a run {SECONDS:g} s;\na worker lives {LIFE:g} s on "
        f"average, and is away for {DOWN:g} s. T = 24, AdamW, η = 0.001;\nthe ring has "
        f"SGD, η = 0.2.\n"
    )


def draw(found, out):
    """Draws goodput and test error against the number of workers."""
    plt = figures.pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.7), layout="constrained")
    labels = list(dict.fromkeys(label for label, _ in cells()))
    for number, label in enumerate(labels):
        look = dict(
            color=[*figures.LINES, figures.GREY][number], marker="osD^vP*X"[number]
        )
        at = [n for n in COUNTS if of_seeds(found, label, n)]
        for axes, value in (
            (left, lambda result: result["goodput"]),
            (right, lambda result: 100 * (1 - result["test_accuracy"])),
        ):
            middles = []
            for n in at:
                values = [value(result) for result in of_seeds(found, label, n)]
                middles.append(runs.middle(values))
                x = n * 1.03 ** (number - len(labels) / 2)
                axes.plot([x, x], [min(values), max(values)], color=look["color"], lw=1)
            xs = [n * 1.03 ** (number - len(labels) / 2) for n in at]
            axes.plot(xs, middles, label=label, **look)
    alive = LIFE / (LIFE + DOWN)
    for power, text in ((1, "each that is there"), (None, "all are there")):
        ys = [alive ** (power or n) for n in COUNTS]
        left.plot(COUNTS, ys, ":", color=figures.DARK, lw=1)
        # Where no line of a scheme is.
        left.annotate(text, (5, alive ** (power or 5)), va="bottom", ha="left")
    for axes, what in ((left, "goodput"), (right, "test error, %")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS, [str(n) for n in COUNTS])
        axes.set_xlabel("workers N")
        axes.set_ylabel(what)
    left.set_ylim(0, 1.1)
    ticks = (2, 3, 5, 10, 20, 50, 90)
    right.set_yscale("log")
    right.set_yticks(ticks, [str(tick) for tick in ticks])
    right.minorticks_off()
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    figures.save(figure, out / "chaos")


# --- The measurement --------------------------------------------------------------


def code():
    """Returns what results depend on: the examples, and the settings here."""
    folders = {scheme_of(*cell).folder for cell in cells()}
    settings = [STEP, LIFE, DOWN, SECONDS, IMPORT, SAVE, AWAY]
    return {"settings": settings, **{f: runs.fingerprint(f) for f in sorted(folders)}}


def main():
    parser = runs.measuring_parser(__doc__, tuple(map(str, COUNTS)), rounds=None)
    parser.add_argument("--seeds", type=runs.positive_int, help=f"of a cell ({SEEDS})")
    with runs.finished(parser.parse_args()) as args:
        args.seeds = args.seeds or (1 if args.quick else SEEDS)
        args.seconds = 8.0 if args.quick else SECONDS
        found, progress = measure_all(plan(args), args, code())
        draw(found, args.out)
        runs.publish(args, "chaos", markdown(found))
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
