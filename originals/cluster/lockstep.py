"""Rounds that all workers make together, and their stats. Scripts of peers call it.

Every round ends in an all-reduce. So the chief counts for all without a message. And
all must make calls of equally many rounds: they agree on it by an all-reduce.
"""

import itertools

import numpy as np

from cluster import rounds, stats
from cluster import tensorflow_v1 as tf
from cluster.ring import traffic
from cluster.rounds import APPLIED, CALL
from cluster.stats import COUNTERS, Counted

SIZES = (1, 10)  # rounds of a call: each size is a graph that all have to prepare
MOST = 50  # calls between two agreements, which are about a second apart
KEYS = 2**20  # more than the operations of a round: see ring.Ring


class Stats(stats.Stats):
    """The global step and the counters on the chief; every worker has the step, too."""

    def __init__(self, args):
        super().__init__(args)
        self.chief = self.me == 0
        own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True)
        start = self.step.read_value()
        self.number = tf.Variable(start, trainable=False, name="number", **own)
        if not self.chief:  # a loss that reads the chief's would end the chief's call
            tf.get_collection_ref(tf.GraphKeys.GLOBAL_STEP)[:] = [self.number]

    def read_step(self, after=()):
        """Returns the count of updates, int64 on this worker."""
        with tf.control_dependencies(tf.nest.flatten(after)):
            return self.number.read_value()

    def count(self, reduced, examples, sent=None):
        """Numbers the update and counts the round of every worker; returns its Counted.

        `reduced` is what this round has all-reduced, `examples` how many each worker
        used, `sent` the bytes that each sends, if not those of this all-reduce.
        """
        number = self.read_step(after=[reduced])
        with tf.control_dependencies([number]):
            done = [self.number.assign_add(1, read_value=False)]
            if self.chief:
                sent = sent or traffic(stats.size(reduced), self.workers)
                done += self._count(sent, examples)
        with tf.control_dependencies(done):
            packed = tf.stack([number + 1, tf.zeros_like(number), APPLIED])
        return Counted(number, tf.zeros_like(number), tf.constant(True), packed)

    def _count(self, sent, examples):
        every = np.zeros([self.workers, len(COUNTERS)], np.int64)
        every[0, COUNTERS.index("updates")] = 1  # counted once
        every[:, COUNTERS.index("rounds")] = 1
        ends = np.floor(np.arange(self.workers + 1) * sent + 0.5)  # to the byte in all
        for name in ("pushed", "pulled"):
            every[:, COUNTERS.index(name)] = np.diff(ends)
        rows, now = list(range(self.workers)), tf.timestamp()
        every = every + self.row(examples=1) * tf.cast(examples, tf.int64)
        times = tf.tile(tf.stack([[-now, now]]), [self.workers, 1])
        return [
            self.step.assign_add(1, read_value=False),
            self.scatter("Add", self.counters, rows, every),
            self.scatter("Max", self.times, rows, times),
        ]


class Calls:
    """Calls of as many rounds as all workers agree on.

    `left` is how many updates are left as all see it. `changes`: workers come or go.
    """

    def __init__(self, one_round, ring, sizes=SIZES):
        """`one_round(last)` builds a round after the `last`; `ring` is the Ring."""
        numbers = itertools.count(1)

        def round_with_keys(last):
            # The same keys on every worker, whatever it builds beside. And no sum
            # before the last round is over: not all gradients wait for weights.
            usual = ring.keys, ring.after
            ring.keys, ring.after = itertools.count(next(numbers) * KEYS), last.update
            made = one_round(last)
            ring.keys, ring.after = usual
            return made

        self.rounds = rounds.Calls(round_with_keys, sizes)
        self.fetches = self.rounds.fetches
        self.mine = tf.placeholder(tf.float64, [4])
        self.agreed = ring.largest(self.mine)
        self.size, self.planned, self.left = 1, 0, None
        self.stops, self.wish, self.changes = False, False, False

    def make(self, session, left):
        """Makes one call, as rounds.Calls does; its size follows from what all know."""
        # Fewer than they were: somebody has called training.stop().
        self.stops = self.stops or self.left is not None and left < self.left
        if not self.planned:
            self._agree(session, 1 if self.stops else left)
        self.planned -= 1
        self.left -= self.size
        return self.rounds.call(session, self.size)

    def _agree(self, session, left):
        """Agrees with all others on the size and the number of the next calls."""
        mine = [self.rounds.seconds, -max(self.fetches), -left, self.wish]
        seconds, *most = session.run(self.agreed, {self.mine: mine}).tolist()
        built, self.left, self.changes = -int(most[0]), -int(most[1]), most[2] > 0
        least = min(built, self.left)
        fit = [n for n in self.fetches if n <= least and n * seconds <= CALL]
        self.size = max(fit, default=1)
        planned = min(int(1 / (self.size * seconds)), self.left // self.size, MOST)
        self.planned = max(1, planned)
