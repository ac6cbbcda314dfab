"""ps 0 numbers the updates, and counts what every worker does. Scripts call it.

It does so under one lock, so that the counters are exact even after a crash. When the
update is applied is up to the scheme.
"""

import contextlib
import math

import numpy as np

from cluster import addresses
from cluster import tensorflow_v1 as tf
from cluster.rounds import APPLIED, OVER, Counted

# Counters, a row for each worker. The updates of all workers are the global step.
COUNTERS = ("updates", "rounds", "dropped", "staleness", "examples", "pushed", "pulled")
UNKNOWN = -1e300  # stands for a time that is not known
ROOM = 1000  # rows: how many workers a run may ever have


class Stats:
    """The global step and the counters: variables on ps 0, and what a round does.

    A scheme may add to `on_begin`, operations of a worker before its first round in a
    session, and to `looks`, functions of a worker's Link that return one of Beat.looks.
    """

    def __init__(self, args):
        self.me, self.workers = args.task_index, len(args.worker_hosts)
        self.device = addresses.home(args)  # ps 0, or the chief if there is no ps
        self.unsaved, self.on_begin, self.looks = [], [], []
        options = dict(trainable=False, use_resource=True)
        zeros = tf.zeros([ROOM, len(COUNTERS)], tf.int64)
        with tf.device(self.device):
            self.step = tf.train.get_or_create_global_step()
            self.counters = tf.Variable(zeros, name="counters", **options)
            self.stalest = tf.Variable(zeros[:, 0], name="stalest", **options)
            # −time of each worker's first update, time of its last: the largest.
            nothing = tf.fill([ROOM, 2], tf.constant(UNKNOWN, tf.float64))
            self.times = self.temporary("times", nothing)
            # No update is made after so many. It begins with --steps.
            self.limit = self.temporary("limit", tf.constant(args.steps, tf.int64))
            # The counters when the ps began.
            self.begun = tf.Variable(zeros, name="begun", collections=[], **options)
            self.lock = tf.raw_ops.MutexV2(container="", shared_name="stats")

    def temporary(self, name, initial):
        """Returns a variable, where it is built, that begins anew with the ps."""
        options = dict(name=name, use_resource=True, collections=[])
        self.unsaved.append(tf.Variable(initial, trainable=False, **options))
        return self.unsaved[-1]

    def open(self):
        """Chief: returns what begins this life of the ps, and then training."""
        with tf.device(self.device):
            # A checkpoint reads its variables one after the other while training goes
            # on: the counters are one variable, and say what is right.
            counters = self.counters.read_value()
            step = self.step.assign(tf.reduce_sum(counters[:, 0]), read_value=False)
            ready = [step, *(variable.initializer for variable in self.unsaved)]
            with tf.control_dependencies(ready):  # so all is ready once this is
                return self.begun.assign(counters, read_value=False)

    def stop(self):
        """Returns the operation after which no update is made but the next one.

        The step that is open may have gradients of others, who wait for its end.
        """
        with self.locked() as done:
            last = tf.minimum(self.limit.read_value(), self.step.read_value() + 1)
            done.append(self.limit.assign(last, read_value=False))
        return self.unlocked

    def read_step(self, after=()):
        """Returns the count of updates, int64 on ps 0, as a pull finds it."""
        with tf.device(self.device):
            with tf.control_dependencies(tf.nest.flatten(after)):
                return self.step.read_value()

    @contextlib.contextmanager
    def locked(self, after=()):
        """Holds the lock for what is built inside, on ps 0, once `after` is done.

        Yields the list of the operations after which `self.unlocked` gives it back.
        """
        done = []
        with tf.device(self.device):
            with tf.control_dependencies(after):
                lock = tf.raw_ops.MutexLock(mutex=self.lock)
            with tf.control_dependencies([lock]):
                yield done
            with tf.control_dependencies(done):
                self.unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def counted(self, number, staleness, applied, became):
        """Returns the Counted of a push, all of it after the lock is given back."""
        with tf.device(self.device), tf.control_dependencies([self.unlocked]):
            packed = tf.stack([number + 1, staleness, tf.cast(became, tf.int64)])
            # What waits for the answer comes after the count: update and next pull.
            applied = tf.identity(applied)
        return Counted(number, staleness, applied, packed)

    def count(self, pushed, examples, pulled, seen=None, sent=None, per=1):
        """Numbers an update that is applied as it comes; returns its Counted.

        `pushed` are the pieces on the ps, `pulled` what this worker got, `examples` how
        many it used; `seen` counts the versions at its pull, of which `per` updates
        make one; `sent` are the bytes of both, int64 [2], if these tensors do not say.
        """
        with tf.device(self.device):
            up = [size(tensor) for tensor in pushed] if sent is None else []
            # Who has the lock waits for nobody: all of this is here before. The first
            # size and the sum are no conditions of the lock: TensorFlow replaces these
            # operations in the graph, and drops what waits for them.
            after = [x for x in (pushed[0], *up[1:], seen, sent) if tf.is_tensor(x)]
            if sent is None:
                sent = sum(up), size(*tf.nest.flatten(pulled))
        with self.locked(after) as done:
            number = self.step.read_value()
            applied = number < self.limit.read_value()
            # staleness := updates applied between pull and push
            version = number // per if per > 1 else number
            staleness = tf.zeros_like(number) if seen is None else version - seen
            row = self.row(updates=1, rounds=1) + self.row(examples=1) * examples
            row += self.row(pushed=1) * sent[0] + self.row(pulled=1) * sent[1]
            row += self.row(staleness=1) * staleness
            done += self.add(row, applied, applied, staleness)
            one = tf.cast(applied, tf.int64)
            done.append(self.step.assign_add(one, read_value=False))
            became = tf.where(applied, APPLIED, OVER)
        return self.counted(number, staleness, applied, became)

    def add(self, row, counts, applied, staleness):
        """Adds a row to this worker's if it `counts`, time, staleness if `applied`."""
        now, one = tf.timestamp(), tf.cast(applied, tf.int64)
        times = tf.stack([-now, now]) + tf.cast(1 - one, tf.float64) * UNKNOWN
        row = row * tf.cast(counts, tf.int64)
        return [
            self.scatter("Add", self.counters, self.me, row),
            self.scatter("Max", self.stalest, self.me, one * staleness),
            self.scatter("Max", self.times, self.me, times),
        ]

    @staticmethod
    def scatter(how, table, index, rows):
        """Returns the operation that adds rows to a table, or takes the Max."""
        scatter = getattr(tf.raw_ops, f"ResourceScatter{how}")
        return scatter(resource=table.handle, indices=index, updates=rows)

    @staticmethod
    def row(**counts):
        """Returns a row of the counters, int64, with these counts and zeros."""
        return np.array([counts.get(name, 0) for name in COUNTERS], np.int64)

    def summary(self, session):
        """Chief: returns what result.json says; rates are of this life of the ps."""
        tables = (self.counters, self.begun, self.times, self.stalest)
        counters, begun, times, stalest = session.run(tables)
        made = dict(zip(COUNTERS, counters.sum(axis=0).tolist(), strict=True))
        before = dict(zip(COUNTERS, begun.sum(axis=0).tolist(), strict=True))
        rounds = counters[:, COUNTERS.index("rounds")]
        ever = max(self.workers, *(1 + np.flatnonzero(rounds)))
        first, last = times[times[:, 1] > 0].T  # of who made an update
        seconds = max(last.max() + first.max(), 1e-6) if len(last) else math.inf
        updates, examples = (made[k] - before[k] for k in ("updates", "examples"))
        return {
            "global_steps": made["updates"],
            "resumed_from": before["updates"],
            "examples": made["examples"],
            "seconds": seconds if len(last) else 0.0,
            "seconds_to_all_started": float(np.ptp(first)) if len(last) else 0.0,
            "examples_per_second": examples / seconds,
            "steps_per_second": updates / seconds,
            "rounds_per_worker": dict(enumerate(rounds[:ever].tolist())),
            "gradients_dropped": made["dropped"],
            "bytes_pushed": made["pushed"],
            "bytes_pulled": made["pulled"],
            "mean_staleness": made["staleness"] / max(1, made["updates"]),
            "max_staleness": int(stalest.max()),
        }


def size(*tensors):
    """Returns the bytes of these tensors; a scalar tensor if a shape is not known."""
    found = 0
    for tensor in tensors:
        elements = tensor.shape.num_elements()
        if elements is None:
            with tf.device(tensor.device):
                elements = tf.size(tensor, out_type=tf.int64)
        found += elements * tensor.dtype.size
    return found
