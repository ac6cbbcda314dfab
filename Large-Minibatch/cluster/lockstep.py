"""Rounds that all workers make together, and their books. Scripts of peers call it.

No worker can be ahead of another: every round ends in an all-reduce. So the chief knows
what all have done, and keeps the books of all without a message; and all must make
calls of equally many rounds, about which they agree by an all-reduce too.
"""

import time

import numpy as np

from cluster import rounds, watch
from cluster import tensorflow_v1 as tf
from cluster.incarnation import Incarnation, temporary
from cluster.ring import traffic
from cluster.rows import APPLIED, COLUMNS, EXTREMES, LEAST, Entry, size

SIZES = (1, 10)  # rounds of a call: each size is a graph that all have to prepare
MOST = 50  # calls between two agreements


class Books:
    """The global step on every worker; on the chief a row of the books for each."""

    def __init__(self, args):
        self.me, self.workers = args.task_index, len(args.worker_hosts)
        self.chief, self.steps = self.me == 0, args.steps
        self.incarnation = Incarnation(args)
        self.device = self.incarnation.device
        self.step = tf.train.get_or_create_global_step()
        if not self.chief:
            return
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
        tables = (self.table, self.extremes, self.begun)
        self.all = [table.read_value() for table in tables]

    def of_chief(self):
        """Returns the variables that the chief alone has."""
        return [self.table, self.extremes] if self.chief else []

    def prepare(self):
        """Chief: returns the operations that make the restored books fit this run."""
        rows = tf.maximum(self.workers - tf.shape(self.table.read_value())[0], 0)
        table = tf.pad(self.table.read_value(), [[0, rows], [0, 0]])
        most = tf.pad(self.extremes.read_value(), [[0, rows], [0, 0]])
        times = tf.fill([tf.shape(most)[0], 2], tf.constant(LEAST, tf.float64))
        most = tf.concat([times, most[:, 2:]], 1)
        return [
            self.table.assign(table, read_value=False),
            self.extremes.assign(most, read_value=False),
            self.begun.assign(table, read_value=False),
            self.step.assign(tf.reduce_sum(table[:, 0]), read_value=False),
        ]

    def read_step(self, after=()):
        """Returns the count of updates, int64, as a round finds it."""
        with tf.control_dependencies(tf.nest.flatten(after)):
            return self.step.read_value()

    def enter(self, reduced, examples):
        """Numbers the update and enters the round of every worker; returns its Entry.

        `reduced` is the tensor that this round has all-reduced, `examples` how many
        each worker used: a number, or a scalar of the graph. An update is counted once,
        in the row of the chief.
        """
        with tf.control_dependencies([reduced]):
            number = self.step.read_value()
        with tf.control_dependencies([number]):
            done = [self.step.assign_add(1, read_value=False)]
            if self.chief:
                done += self._write(size(reduced), examples)
        with tf.control_dependencies(done):
            packed = tf.stack([number + 1, tf.zeros_like(number), APPLIED])
        return Entry(number, tf.zeros_like(number), tf.constant(True), packed)

    def _write(self, bytes_, examples):
        every = np.zeros([self.workers, len(COLUMNS)], np.int64)
        every[0, COLUMNS.index("updates")] = 1
        every[:, COLUMNS.index("rounds")] = 1
        # To the byte in the sum of all rows.
        ends = np.arange(self.workers + 1) * traffic(bytes_, self.workers)
        for name in ("pushed", "pulled"):
            every[:, COLUMNS.index(name)] = np.diff(np.floor(ends + 0.5))
        used = np.zeros(len(COLUMNS), np.int64)
        used[COLUMNS.index("examples")] = 1
        now = tf.timestamp()
        most = tf.stack([-now, now, tf.zeros_like(now)])
        index = list(range(self.workers))
        return [
            tf.raw_ops.ResourceScatterAdd(
                resource=self.table.handle,
                indices=index,
                updates=every + used * tf.cast(examples, tf.int64),
            ),
            tf.raw_ops.ResourceScatterMax(
                resource=self.extremes.handle,
                indices=index,
                updates=tf.tile(most[None], [self.workers, 1]),
            ),
        ]


class Calls(rounds.Calls):
    """Calls of as many rounds as all workers agree on."""

    def __init__(self, one_round, peers, sizes=SIZES):
        """`one_round(last)` builds a round after the `last`; `peers` is their Ring."""
        super().__init__(one_round, sizes)
        self.mine = tf.placeholder(tf.float32, [1])
        self.agreed = peers.mean(self.mine)

    def make(self, session, report):
        """Makes calls of one size, for about as long as the hooks can be left alone.

        Everything in it follows from what all workers have in common: the seconds of a
        round, averaged over them, and how many updates are left.
        """
        try:
            (pace,) = session.run(self.agreed, {self.mine: [self.seconds]})
            self.seconds = float(pace)
            size = self.size(report.left)
            fit = int(rounds.LOOK / (size * self.seconds))
            count = max(1, min(fit, report.left // size, MOST))
            call = session.make_callable(self.fetches[size])
            for _ in range(count):
                began = time.monotonic()
                losses, entries, _ = call()
                self.seconds = (time.monotonic() - began) / size
                report.rounds(losses, entries)
        except watch.lost() as error:
            report.lost = error
