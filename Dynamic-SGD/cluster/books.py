"""ps 0 numbers the updates and keeps the books of every worker. Scripts call it.

A push is numbered and entered under one lock, so that the books are exact whoever dies.
The lock covers number and entry only; when the update is applied is up to the scheme.
"""

import contextlib
import copy

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.incarnation import Incarnation, temporary
from cluster.rows import (
    APPLIED,
    COLUMNS,
    EXTREMES,
    LEAST,
    OVER,
    STRANGER,
    Entry,
    size,
)


class Books:
    """The global step and the books: variables on ps 0, and what a round does."""

    def __init__(self, args):
        self.steps, self.me = args.steps, args.task_index
        self.chief, self.workers = self.me == 0, len(args.worker_hosts)
        self.incarnation = Incarnation(args)
        self.device = self.incarnation.device  # of ps 0; without ps, of the chief
        with tf.device(self.device):
            self.step = tf.train.get_or_create_global_step()
            # The hook that saves would read it by a condition on the worker, and wait
            # for two answers of ps 0 instead of one.
            tf.add_to_collection("global_step_read_op_cache", self.step.read_value())
        with tf.device(self.device):
            # The number of rows is open: a run may be resumed with other workers.
            rows = tf.zeros([0, len(COLUMNS)], tf.int64)
            most = tf.zeros([0, len(EXTREMES)], tf.float64)
            self.table, self.extremes = (
                tf.Variable(
                    empty,
                    shape=[None, empty.shape[1]],
                    trainable=False,
                    name=name,
                    use_resource=True,
                )
                for name, empty in (("books", rows), ("extremes", most))
            )
            # The books when this incarnation began.
            self.begun = temporary("begun", rows, [None, len(COLUMNS)])
            self.lock = tf.raw_ops.MutexV2(container="", shared_name="books")
            tables = (self.table, self.extremes, self.begun)
            self.all = [table.read_value() for table in tables]

    def temporary(self, name, initial):
        """Returns a variable, where it is built, that an incarnation begins anew."""
        return temporary(name, initial)

    def prepare(self):
        """Chief: returns the operations that make the restored books fit this run."""
        with tf.device(self.device):
            rows = tf.maximum(self.workers - tf.shape(self.table.read_value())[0], 0)
            table = tf.pad(self.table.read_value(), [[0, rows], [0, 0]])
            most = tf.pad(self.extremes.read_value(), [[0, rows], [0, 0]])
            times = tf.fill([tf.shape(most)[0], 2], tf.constant(LEAST, tf.float64))
            return [
                self.table.assign(table, read_value=False),
                self.extremes.assign(
                    tf.concat([times, most[:, 2:]], 1), read_value=False
                ),
                self.begun.assign(table, read_value=False),
                # A checkpoint reads its variables one after the other while training
                # goes on: the books are one variable, and say what is right.
                self.step.assign(tf.reduce_sum(table[:, 0]), read_value=False),
            ]

    def of(self, workers):
        """Returns these books as several workers write in them, for one update of all.

        It is the first one's update; each has its round, examples and bytes.
        """
        these = copy.copy(self)
        these.me = workers[0] if len(workers) == 1 else np.array(workers)
        return these

    def _each(self, row, update):
        """Returns what is added to the row of each worker that writes: see `of`."""
        if not np.ndim(self.me):
            return row, update
        others = np.ones([len(self.me), len(COLUMNS)], np.int64)
        others[1:, COLUMNS.index("updates")] = 0
        return row * others, tf.broadcast_to(update, [len(self.me), len(EXTREMES)])

    def read_step(self, after=()):
        """Returns the count of updates, int64 on ps 0, as a pull finds it."""
        with tf.device(self.device):
            with tf.control_dependencies(tf.nest.flatten(after)):
                return self.step.read_value()

    @contextlib.contextmanager
    def locked(self, after):
        """Once `after` is done, what is built inside runs on ps 0 with the lock held.

        Yields (whether this worker has joined, the list of what has to be done before
        the lock is given back). `self.unlocked` is the operation that gives it back.
        """
        with tf.device(self.device), tf.control_dependencies(after):
            lock = tf.raw_ops.MutexLock(mutex=self.lock)
            with tf.control_dependencies([lock]):
                done = []
                yield self.incarnation.has_joined(), done
            with tf.control_dependencies(done):
                self.unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    @staticmethod
    def row(**entries):
        """Returns a row of the books, int64, with these entries and zeros.

        A constant: with ten rounds in a graph, what need not be computed is left out.
        """
        return np.array([entries.get(name, 0) for name in COLUMNS], np.int64)

    def write(self, row, mark, applied, staleness):
        """Returns the operations that add to this worker's row, inside `locked`.

        `row` is added where `mark` holds; time and staleness are noted if `applied`.
        """
        now = tf.timestamp()
        most = tf.stack([-now, now, tf.cast(staleness, tf.float64)])
        least = tf.constant([LEAST, LEAST, 0.0], tf.float64)
        row, most = self._each(row, tf.where(applied, most, least))
        return [
            tf.raw_ops.ResourceScatterAdd(
                resource=self.table.handle,
                indices=self.me,
                updates=row * tf.cast(mark, tf.int64),
            ),
            tf.raw_ops.ResourceScatterMax(
                resource=self.extremes.handle,
                indices=self.me,
                updates=most,
            ),
        ]

    def entry(self, number, staleness, applied, what):
        """Returns the Entry of a push, all of it after the lock is given back."""
        with tf.device(self.device), tf.control_dependencies([self.unlocked]):
            packed = tf.stack([number + 1, staleness, tf.cast(what, tf.int64)])
            # What waits for the answer comes after the count: update and next pull.
            applied = tf.identity(applied)
        return Entry(number, staleness, applied, packed)

    def enter(self, pushed, examples, pulled, seen=None, sent=None):
        """Numbers an update that is applied as it comes; returns its Entry.

        `pushed` are the pieces that arrived on the ps, `pulled` what this worker got,
        `examples` how many it used; `seen` the count of updates at its pull; `sent` the
        bytes pushed and pulled, int64 [2], where the shapes do not say.
        """
        after = [pushed[0]] if seen is None else [pushed[0], seen]
        with tf.device(self.device):
            if sent is None:
                sent = size(*pushed), size(*tf.nest.flatten(pulled))
            up, down = sent[0], sent[1]
        # Who has the lock does not wait for another ps.
        after += [count for count in (up, down) if tf.is_tensor(count)]
        with self.locked(after) as (joined, done):
            number = self.step.read_value()
            applied = tf.logical_and(joined, number < self.steps)
            # staleness := updates applied between pull and push
            staleness = tf.zeros_like(number) if seen is None else number - seen
            row = self.row(updates=1, rounds=1, examples=examples)
            row += self.row(pushed=1) * up + self.row(pulled=1) * down
            row += self.row(staleness=1) * staleness
            done += self.write(row, applied, applied, staleness)
            one = tf.cast(applied, tf.int64)
            done.append(self.step.assign_add(one, read_value=False))
            what = tf.where(applied, APPLIED, tf.where(joined, OVER, STRANGER))
        return self.entry(number, staleness, applied, what)


def entry_of_one_process(step):
    """Returns the Entry of an update after which the global step is `step`."""
    packed = tf.stack([step, tf.zeros_like(step), tf.ones_like(step) * APPLIED])
    return Entry(step - 1, tf.zeros_like(step), tf.constant(True), packed)
