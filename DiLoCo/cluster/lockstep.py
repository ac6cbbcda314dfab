"""Rounds that all workers make together, and their stats. Scripts of peers call it.

No worker can be ahead of another: every round ends in an all-reduce. So the chief knows
what all have done, and counts for all without a message. And all must make calls of
equally many rounds, about which they agree by an all-reduce too.
"""

import itertools

import numpy as np

from cluster import rounds
from cluster import stats as base
from cluster import tensorflow_v1 as tf
from cluster.incarnation import Incarnation
from cluster.ring import traffic
from cluster.rounds import APPLIED
from cluster.stats import COUNTERS, Counted

SIZES = (1, 10)  # rounds of a call: each size is a graph that all have to prepare
MOST = 50  # calls between two agreements
KEYS = 2**20  # more than the operations of a round: see ring.Ring


class Stats(base.Stats):
    """The global step on every worker; on the chief a row of counters for each."""

    def __init__(self, args):
        self.me, self.workers = args.task_index, len(args.worker_hosts)
        self.chief = self.me == 0
        self.incarnation = Incarnation(args)
        self.device = f"/job:worker/task:{self.me}"
        self.step = tf.train.get_or_create_global_step()
        if self.chief:
            self._build()

    def of_chief(self):
        """Returns the variables that the chief alone has."""
        return [self.counters, self.largest] if self.chief else []

    def prepare(self):
        """Chief: returns the operations that make restored counters fit this run."""
        return super().prepare() if self.chief else []

    def count(self, reduced, examples, sent=None):
        """Numbers the update and counts the round of every worker; returns its Counted.

        `reduced` is the tensor that this round has all-reduced, `examples` how many
        each worker used: a number, or a scalar of the graph; `sent` the bytes that each
        sends, if not those of this all-reduce. An update is counted once, in the row of
        the chief.
        """
        with tf.control_dependencies([reduced]):
            number = self.step.read_value()
        with tf.control_dependencies([number]):
            done = [self.step.assign_add(1, read_value=False)]
            if self.chief:
                if sent is None:
                    sent = traffic(base.size(reduced), self.workers)
                done += self._count(sent, examples)
        with tf.control_dependencies(done):
            packed = tf.stack([number + 1, tf.zeros_like(number), APPLIED])
        return Counted(number, tf.zeros_like(number), tf.constant(True), packed)

    def _count(self, sent, examples):
        every = np.zeros([self.workers, len(COUNTERS)], np.int64)
        every[0, COUNTERS.index("updates")] = 1
        every[:, COUNTERS.index("rounds")] = 1
        # To the byte in the sum of all rows.
        ends = np.arange(self.workers + 1) * sent
        for name in ("pushed", "pulled"):
            every[:, COUNTERS.index(name)] = np.diff(np.floor(ends + 0.5))
        used = self.row(examples=1)
        now = tf.timestamp()
        most = tf.stack([-now, now, tf.zeros_like(now)])
        index = list(range(self.workers))
        return [
            tf.raw_ops.ResourceScatterAdd(
                resource=self.counters.handle,
                indices=index,
                updates=every + used * tf.cast(examples, tf.int64),
            ),
            tf.raw_ops.ResourceScatterMax(
                resource=self.largest.handle,
                indices=index,
                updates=tf.tile(most[None], [self.workers, 1]),
            ),
        ]


class Calls(rounds.Calls):
    """Calls of as many rounds as all workers agree on."""

    def __init__(self, one_round, ring, sizes=SIZES):
        """`one_round(last)` builds a round after the `last`; `ring` is the Ring."""
        numbers = itertools.count(1)

        def round_with_keys(last):
            # The same keys on every worker, whenever it builds the round. And one round
            # after the other: the gradient of a linear loss does not wait for weights.
            usual, ring.keys = ring.keys, itertools.count(next(numbers) * KEYS)
            with tf.control_dependencies(tf.nest.flatten(last.update)):
                made = one_round(last)
            ring.keys = usual
            return made

        super().__init__(round_with_keys, sizes)
        self.stop = False  # whether this worker wants to end the training
        self.mine = tf.placeholder(tf.float32, [4])
        self.agreed = ring.mean(self.mine)

    def make(self, session, left, report):
        """Makes calls of one size, for about a second; returns the updates left.

        Everything in it follows from what all workers have in common: the seconds of a
        round and of building one, averaged over them, and how many updates are `left`.
        """
        if left <= 0:  # resumed after the last update, which all know
            return left
        mine = [self.seconds, self.cost, self.trained, self.stop]
        agreed = session.run(self.agreed, {self.mine: mine})
        self.seconds, self.cost, self.trained, stop = agreed.tolist()
        if stop:
            return 0
        size = self.size(left)
        fit = int(rounds.LOOK / (size * self.seconds))
        call = self.prepare(session, size)
        for _ in range(max(1, min(fit, left // size, MOST))):
            losses, counts, _ = self.timed(call, size)
            left = rounds.updates_left(losses, counts, report.args)
            report.rounds(losses, counts)
        return left
