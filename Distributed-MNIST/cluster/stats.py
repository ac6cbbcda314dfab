"""ps 0 numbers the updates, and counts what every worker does. Scripts call it.

A push is numbered and counted under one lock, so that the counters are exact even after
a crash. The lock covers number and counters only: when the update is applied is up to
the scheme.
"""

import contextlib
import functools

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.incarnation import Incarnation, temporary
from cluster.rounds import APPLIED, NOT_JOINED, OVER, Counted

# Counters, a row for each worker. The updates of all workers are the global step.
COUNTERS = ("updates", "rounds", "dropped", "staleness", "examples", "pushed", "pulled")
# The largest of each, a row for each worker. The time of the first update is negated.
LARGEST = ("minus_first", "last", "staleness")
UNKNOWN = -1e300  # stands for a time that is not known


class Stats:
    """The global step and the counters: variables on ps 0, and what a round does."""

    def __init__(self, args, incarnation=None):
        """`incarnation` is the one that the graph has already, if it has one."""
        self.me, self.workers = args.task_index, len(args.worker_hosts)
        self.incarnation = incarnation or Incarnation(args)
        self.device = self.incarnation.device  # ps 0, or the chief if there is no ps
        with tf.device(self.device):
            self.step = tf.train.get_or_create_global_step()
            self._build()
            self.lock = tf.raw_ops.MutexV2(container="", shared_name="stats")
            # No update is made after so many. It begins with --steps.
            self.limit = self.temporary("limit", tf.constant(args.steps, tf.int64))

    def _build(self):
        # The number of rows is open: a run may be resumed with other workers.
        zeros = tf.zeros([0, len(COUNTERS)], tf.int64)
        least = tf.zeros([0, len(LARGEST)], tf.float64)
        self.counters, self.largest = (
            tf.Variable(
                empty,
                shape=[None, empty.shape[1]],
                trainable=False,
                name=name,
                use_resource=True,
            )
            for name, empty in (("counters", zeros), ("largest", least))
        )
        # The counters when this incarnation began.
        self.begun = temporary("begun", zeros, [None, len(COUNTERS)])
        tables = (self.counters, self.largest, self.begun)
        self.all = [table.read_value() for table in tables]

    def stop(self):
        """Returns the operation after which no update is made but the next one.

        The step that is open may have gradients of others, who wait for its end.
        """
        with self.locked([]) as held:
            last = tf.minimum(held.read(self.limit), held.read(self.step) + 1)
            held.done.append(self.limit.assign(last, read_value=False))
        return self.unlocked

    def temporary(self, name, initial):
        """Returns a variable, where it is built, that an incarnation begins anew."""
        return temporary(name, initial)

    def prepare(self):
        """Chief: returns the operations that make restored counters fit this run."""
        with tf.device(self.device):
            rows = tf.maximum(self.workers - tf.shape(self.all[0])[0], 0)
            counters = tf.pad(self.all[0], [[0, rows], [0, 0]])
            largest = tf.pad(self.all[1], [[0, rows], [0, 0]])
            times = tf.fill([tf.shape(largest)[0], 2], tf.constant(UNKNOWN, tf.float64))
            largest = tf.concat([times, largest[:, 2:]], 1)
            return [
                self.counters.assign(counters, read_value=False),
                self.largest.assign(largest, read_value=False),
                self.begun.assign(counters, read_value=False),
                # A checkpoint reads its variables one after the other while training
                # goes on: the counters are one variable, and say what is right.
                self.step.assign(tf.reduce_sum(counters[:, 0]), read_value=False),
            ]

    def read_step(self, after=()):
        """Returns the count of updates, int64 on ps 0, as a pull finds it."""
        with tf.device(self.device):
            with tf.control_dependencies(tf.nest.flatten(after)):
                return self.step.read_value()

    @contextlib.contextmanager
    def locked(self, after):
        """Once `after` is done, holds the lock for what is built inside, on ps 0.

        Yields the `Locked`. `self.unlocked` is the operation that gives the lock back.
        """
        with tf.device(self.device):
            with tf.control_dependencies(after):
                lock = tf.raw_ops.MutexLock(mutex=self.lock)
            held = Locked(self, lock)
            yield held
            with tf.control_dependencies(held.done):
                self.unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def counted(self, number, staleness, applied, became):
        """Returns the Counted of a push, all of it after the lock is given back."""
        with tf.device(self.device), tf.control_dependencies([self.unlocked]):
            packed = tf.stack([number + 1, staleness, tf.cast(became, tf.int64)])
            # What waits for the answer comes after the count: update and next pull.
            applied = tf.identity(applied)
        return Counted(number, staleness, applied, packed)

    def count(self, pushed, examples, pulled, seen=None, sent=None):
        """Numbers an update that is applied as it comes; returns its Counted.

        `pushed` are the pieces that arrived on the ps, `pulled` what this worker got,
        `examples` how many it used; `seen` the count of updates at its pull; `sent` the
        bytes pushed and pulled, int64 [2], where the shapes do not say.
        """
        after = [pushed[0]] if seen is None else [pushed[0], seen]
        with tf.device(self.device):
            # Whoever has the lock does not wait for another ps. Not for the sum of the
            # sizes: TensorFlow rewrites sums, and forgets who waits for them.
            if sent is None:
                sizes = [_elements(tensor) for tensor in pushed[1:]]
                after += [one for one in sizes if tf.is_tensor(one)]
                sent = size(*pushed), size(*tf.nest.flatten(pulled))
            elif tf.is_tensor(sent):
                after.append(sent)
            up, down = sent[0], sent[1]
        with self.locked(after) as held:
            number, joined = held.read(self.step), held.joined
            applied = tf.logical_and(joined, number < held.read(self.limit))
            # staleness := updates applied between pull and push
            staleness = tf.zeros_like(number) if seen is None else number - seen
            row = self.row(updates=1, rounds=1, examples=examples)
            row += self.row(pushed=1) * up + self.row(pulled=1) * down
            row += self.row(staleness=1) * staleness
            held.add(row, applied, applied, staleness)
            one = tf.cast(applied, tf.int64)
            held.done.append(self.step.assign_add(one, read_value=False))
            became = tf.where(applied, APPLIED, tf.where(joined, OVER, NOT_JOINED))
        return self.counted(number, staleness, applied, became)

    @staticmethod
    def row(**counts):
        """Returns a row of the counters, int64, with these counts and zeros."""
        return np.array([counts.get(name, 0) for name in COUNTERS], np.int64)

    def summary(self, session):
        """Chief: returns the counters as a dict for result.json."""
        return summary(*session.run(self.all))


class Locked:
    """What is done while the lock of the stats is held, on ps 0.

    Only what reads waits for the lock itself: all else follows from what was read.
    `done` are the operations after which the lock is given back.
    """

    def __init__(self, stats, lock):
        self.stats, self.after, self.done = stats, [lock], []

    @functools.cached_property
    def joined(self):
        """Whether this worker has joined the incarnation, so that its pushes count."""
        with tf.control_dependencies(self.after):
            return self.stats.incarnation.has_joined()

    def read(self, variable):
        """Returns the value of a variable on ps 0."""
        with tf.control_dependencies(self.after):
            return variable.read_value()

    def add(self, row, counts, applied, staleness):
        """Adds `row` to this worker's counters if it `counts`.

        Time and staleness are noted if it was `applied`.
        """
        with tf.control_dependencies(self.after):
            now = tf.timestamp()
        most = tf.stack([-now, now, tf.cast(staleness, tf.float64)])
        least = tf.constant([UNKNOWN, UNKNOWN, 0.0], tf.float64)
        self.done += [
            tf.raw_ops.ResourceScatterAdd(
                resource=self.stats.counters.handle,
                indices=self.stats.me,
                updates=row * tf.cast(counts, tf.int64),
            ),
            tf.raw_ops.ResourceScatterMax(
                resource=self.stats.largest.handle,
                indices=self.stats.me,
                updates=tf.where(applied, most, least),
            ),
        ]


def size(*tensors):
    """Returns the bytes that these tensors take in a message, from their shapes.

    A number; an int64 scalar, counted where they are, if a shape is not known before.
    """
    return sum(_elements(tensor) * tensor.dtype.size for tensor in tensors)


def _elements(tensor):
    if tensor.shape.is_fully_defined():
        return tensor.shape.num_elements()
    with tf.device(tensor.device):
        return tf.size(tensor, out_type=tf.int64)


def summary(counters, largest, begun):
    """Returns the counters as a dict, from what `Stats.all` is at the end.

    Rates are of the incarnation that ended well, all else is since global step 0.
    """
    sums, before = (
        dict(zip(COUNTERS, rows.sum(axis=0).tolist(), strict=True))
        for rows in (counters, begun)
    )
    rounds = counters[:, COUNTERS.index("rounds")]
    first, last = -largest[:, 0], largest[:, 1]
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
        "examples_per_second": made["examples"] / seconds if seconds else 0.0,
        "steps_per_second": made["updates"] / seconds if seconds else 0.0,
        "rounds_per_worker": dict(enumerate(rounds.tolist())),
        "gradients_dropped": sums["dropped"],
        "bytes_pushed": sums["pushed"],
        "bytes_pulled": sums["pulled"],
        "mean_staleness": sums["staleness"] / max(1, sums["updates"]),
        "max_staleness": int(largest[:, 2].max()),
    }
