"""ps 0 numbers the updates, and counts what every worker does. Scripts call it.

A push is numbered and counted under one lock, so that the counters are exact even after
a crash. The lock covers number and counters only: when the update is applied is up to
the scheme.
"""

import contextlib
import math

import numpy as np

from cluster import addresses
from cluster import tensorflow_v1 as tf
from cluster.rounds import APPLIED, OVER, Counted

# Counters, a row for each worker. The updates of all workers are the global step.
COUNTERS = ("updates", "rounds", "dropped", "staleness", "examples", "pushed", "pulled")
# The largest of each, a row for each worker. The time of the first update is negated.
LARGEST = ("minus_first", "last", "staleness")
UNKNOWN = -1e300  # stands for a time that is not known


class Stats:
    """The global step and the counters: variables on ps 0, and what a round does."""

    def __init__(self, args):
        self.me, self.workers = args.task_index, len(args.worker_hosts)
        self.device = addresses.home(args)  # ps 0, or the chief if there is no ps
        # Variables that are not saved: they begin anew with the ps. What a worker does
        # before its first round in a session; and functions of a worker's Link, which
        # build in its graph, and return what Beat.looks has.
        self.unsaved, self.on_begin, self.looks = [], [], []
        zeros = tf.zeros([0, len(COUNTERS)], tf.int64)
        least = tf.zeros([0, len(LARGEST)], tf.float64)
        with tf.device(self.device):
            self.step = tf.train.get_or_create_global_step()
            # The number of rows is open: a run may be resumed with other workers.
            self.counters = _table("counters", zeros)
            self.largest = _table("largest", least)
            # The counters when the ps began.
            self.begun = _table("begun", zeros, saved=False)
            tables = (self.counters, self.largest, self.begun)
            self.all = [table.read_value() for table in tables]
            self.lock = tf.raw_ops.MutexV2(container="", shared_name="stats")
            # No update is made after so many. It begins with --steps.
            self.limit = self.temporary("limit", tf.constant(args.steps, tf.int64))

    def temporary(self, name, initial):
        """Returns a variable, where it is built, that is not in a checkpoint."""
        options = dict(name=name, use_resource=True, collections=[])
        self.unsaved.append(tf.Variable(initial, trainable=False, **options))
        return self.unsaved[-1]

    @property
    def variables(self):
        """What the ps hold of a run beside the saved variables."""
        return [*self.unsaved, self.begun]

    def open(self):
        """Chief: returns what makes restored counters fit this run; training can begin.

        `begun` comes last: before that some variable is not initialised.
        """
        with tf.device(self.device):
            rows = tf.maximum(self.workers - tf.shape(self.all[0])[0], 0)
            counters = tf.pad(self.all[0], [[0, rows], [0, 0]])
            largest = tf.pad(self.all[1], [[0, rows], [0, 0]])
            times = tf.fill([tf.shape(largest)[0], 2], tf.constant(UNKNOWN, tf.float64))
            largest = tf.concat([times, largest[:, 2:]], 1)
            ready = [
                *(variable.initializer for variable in self.unsaved),
                self.counters.assign(counters, read_value=False),
                self.largest.assign(largest, read_value=False),
                # A checkpoint reads its variables one after the other while training
                # goes on: the counters are one variable, and say what is right.
                self.step.assign(tf.reduce_sum(counters[:, 0]), read_value=False),
            ]
            with tf.control_dependencies(ready):
                return self.begun.assign(counters, read_value=False)

    def stop(self):
        """Returns the operation after which no update is made but the next one.

        The step that is open may have gradients of others, who wait for its end.
        """
        with self.locked([]) as held:
            last = tf.minimum(held.read(self.limit), held.read(self.step) + 1)
            held.done.append(self.limit.assign(last, read_value=False))
        return self.unlocked

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
        after = [one for one in (pushed[0], seen, sent) if tf.is_tensor(one)]
        with tf.device(self.device):
            # Whoever has the lock does not wait for another ps. Not for the sum of the
            # sizes, nor for that of the first piece: TensorFlow rewrites them, and
            # forgets who waits for them.
            if sent is None:
                sizes = [_elements(tensor) for tensor in pushed[1:]]
                after += [one for one in sizes if tf.is_tensor(one)]
                sent = size(*pushed), size(*tf.nest.flatten(pulled))
            up, down = sent[0], sent[1]
        with self.locked(after) as held:
            number = held.read(self.step)
            applied = number < held.read(self.limit)
            # staleness := updates applied between pull and push
            staleness = tf.zeros_like(number) if seen is None else number - seen
            row = self.row(updates=1, rounds=1, examples=examples)
            row += self.row(pushed=1) * up + self.row(pulled=1) * down
            row += self.row(staleness=1) * staleness
            held.add(row, applied, applied, staleness)
            one = tf.cast(applied, tf.int64)
            held.done.append(self.step.assign_add(one, read_value=False))
            became = tf.where(applied, APPLIED, OVER)
        return self.counted(number, staleness, applied, became)

    @staticmethod
    def row(**counts):
        """Returns a row of the counters, int64, with these counts and zeros."""
        return np.array([counts.get(name, 0) for name in COUNTERS], np.int64)

    def summary(self, session):
        """Chief: returns the counters as a dict for result.json.

        Rates are since the ps began or was restored, all else is since global step 0.
        """
        counters, largest, begun = session.run(self.all)
        made = dict(zip(COUNTERS, counters.sum(axis=0).tolist(), strict=True))
        before = dict(zip(COUNTERS, begun.sum(axis=0).tolist(), strict=True))
        rounds = counters[:, COUNTERS.index("rounds")]
        first, last = -largest[:, 0], largest[:, 1]
        first, last = first[last > 0], last[last > 0]  # of who made an update
        seconds = max(last.max() - first.min(), 1e-6) if len(last) else math.inf
        updates, examples = (made[k] - before[k] for k in ("updates", "examples"))
        return {
            "global_steps": made["updates"],
            "resumed_from": before["updates"],
            "examples": made["examples"],
            "seconds": seconds if len(last) else 0.0,
            "seconds_to_all_started": first.max() - first.min() if len(last) else 0.0,
            "examples_per_second": examples / seconds,
            "steps_per_second": updates / seconds,
            "rounds_per_worker": dict(enumerate(rounds.tolist())),
            "gradients_dropped": made["dropped"],
            "bytes_pushed": made["pushed"],
            "bytes_pulled": made["pulled"],
            "mean_staleness": made["staleness"] / max(1, made["updates"]),
            "max_staleness": int(largest[:, 2].max()),
        }


class Locked:
    """What is done while the lock of the stats is held, on ps 0.

    Only what reads waits for the lock itself: all else follows from what was read.
    `done` are the operations after which the lock is given back.
    """

    def __init__(self, stats, lock):
        self.stats, self.after, self.done = stats, [lock], []

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


def _table(name, empty, saved=True):
    """Returns a variable with any number of rows, and now none."""
    return tf.Variable(
        empty,
        shape=[None, empty.shape[1]],
        trainable=False,
        name=name,
        use_resource=True,
        collections=[tf.GraphKeys.GLOBAL_VARIABLES] if saved else [],
    )
