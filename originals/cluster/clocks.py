"""Nobody is more than s rounds ahead of the slowest. Scripts call it.

ps 0 has a clock for each worker: the rounds that it has completed. Under the lock of
the stats it decides who may begin another round. A worker that may not waits on ps 0
for a token in a queue of its own, and asks again when it has one. A worker that
completes a round gives a token to each worker that may go on now. So nobody polls, and
the chief has no part in it.

A worker that was not heard of for a while is away, and nobody waits for it. When it is
back it is as far as the slowest of the others.
"""

import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.link import GONE
from cluster.stats import Stats

AWAY = np.int64(2**63 - 1)  # the clock of a worker that nobody waits for


class Clocks:
    """On ps 0: the clocks, who waits, and a queue of tokens for each worker."""

    def __init__(self, args, stats):
        self.stats, self.bound, workers = stats, args.staleness, stats.workers
        self.me = np.arange(workers) == stats.me
        with tf.device(stats.device):
            self.clocks = stats.temporary("clocks", tf.zeros([workers], tf.int64))
            self.waiting = stats.temporary("waiting", tf.fill([workers], False))
            self.queues = [
                tf.FIFOQueue(-1, tf.bool, [[]], shared_name=f"may_go_{worker}")
                for worker in range(workers)
            ]
        stats.looks.append(lambda link: look(args, link))

    def _now(self, back):
        """Returns the clocks [N], those of who is `back` as far as the slowest."""
        clocks = self.clocks.read_value()
        slowest = tf.reduce_min(clocks)
        slowest = tf.where_v2(tf.equal(slowest, AWAY), np.int64(0), slowest)
        return tf.where_v2(tf.equal(clocks, AWAY) & back, slowest, clocks)

    def _may(self, clocks):
        """Returns who may begin a round, [N]: c − min c ≤ s, or all is done."""
        over = self.stats.step.read_value() >= self.stats.limit.read_value()
        return (clocks - tf.reduce_min(clocks) <= self.bound) | over

    def _set(self, clocks):
        """Returns what sets the clocks, and wakes those who may go on now."""
        waiting = self.waiting.read_value()
        wake = waiting & self._may(clocks)
        return [
            self.clocks.assign(clocks, read_value=False),
            self.waiting.assign(waiting & ~wake, read_value=False),
            *(
                # No token, or one.
                queue.enqueue_many([tf.fill([tf.cast(one, tf.int32)], True)])
                for queue, one in zip(self.queues, tf.unstack(wake), strict=True)
            ),
        ]

    def note(self, back, away):
        """Returns the operation that notes who is `back` and who `away`, [N] each."""
        with self.stats.locked() as done:
            done += self._set(tf.where_v2(away, AWAY, self._now(back)))
        return self.stats.unlocked

    def wait(self, after):
        """Returns a tensor on ps 0 that is there as soon as this worker may begin.

        Not before `after` is done. After the last update nobody waits.
        """

        def ask(_):
            with self.stats.locked() as done:
                clocks = self._now(self.me)
                may = self._may(clocks)[self.stats.me]
                waiting = self.waiting.read_value()
                waiting = (waiting & ~self.me) | (self.me & ~may)
                done += [
                    self.clocks.assign(clocks, read_value=False),
                    self.waiting.assign(waiting, read_value=False),
                ]
            with tf.control_dependencies([self.stats.unlocked]):
                mine = self.queues[self.stats.me]
                token = tf.cond(may, lambda: tf.constant(True), mine.dequeue)
            with tf.control_dependencies([token]):
                return tf.identity(may)

        with tf.device(self.stats.device), tf.control_dependencies(after):
            no = tf.identity(False)
            return tf.while_loop(lambda may: ~may, ask, [no])

    def tick(self, update, applied):
        """Returns the operation that counts a round of this worker as completed.

        It runs after `update`, on every ps; the round counts if it was `applied`.
        """
        with self.stats.locked(update) as done:
            one = tf.cast(self.me & applied, tf.int64)
            done += self._set(self._now(self.me) + one)
        return self.stats.unlocked


def look(args, link):
    """Returns what a worker does with each heartbeat: it notes on ps 0 who is away."""
    absent = {}  # worker: since when it is not on the board
    with link.graph.as_default():
        clocks = Clocks(args, Stats(args))
        away = tf.placeholder(tf.bool, [clocks.stats.workers])
        note = clocks.note(clocks.me | ~away, ~clocks.me & away)

    def look_at(board):
        now, silent = time.monotonic(), []
        for number in range(clocks.stats.workers):
            worker = board["workers"].get(str(number))
            if worker:
                absent.pop(number, None)
            since = now - worker["silent"] if worker else absent.setdefault(number, now)
            silent.append(now - since > GONE)
        link.run(note, {away: silent})

    return look_at
