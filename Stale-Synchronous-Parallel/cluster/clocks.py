"""Nobody is more than s rounds ahead of the slowest. Scripts call it.

ps 0 has a clock for each worker, the rounds that it has completed, and decides under
the lock of the books who may begin another. Who may not waits on ps 0 for a token in a
queue of its own, and asks again when it has one. Whoever completes a round gives a
token to each that may go on now. So nobody polls, and the chief has no part in it.

A worker that was not heard of for a while is away, and nobody waits for it. When it is
back it is as far as the slowest of the others.
"""

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.lobby import GONE

AWAY = np.int64(2**63 - 1)  # the clock of a worker that nobody waits for


class Clocks:
    """On ps 0: the clocks, who waits, and a queue of tokens for each worker."""

    def __init__(self, args, kept):
        self.kept, self.bound = kept, args.staleness
        workers = len(args.worker_hosts)
        self.me = np.arange(workers) == kept.me
        run = kept.incarnation
        with tf.device(kept.device):
            self.clocks = kept.temporary("clocks", tf.zeros([workers], tf.int64))
            self.waiting = kept.temporary("waiting", tf.fill([workers], False))
            self.queues = [
                tf.FIFOQueue(-1, tf.bool, [[]], shared_name=f"may_go_{worker}")
                for worker in range(workers)
            ]
            # Who has not come yet is as old as the incarnation, once that is open.
            number = run.number.read_value()
            opened = 1e-6 * tf.cast(number, tf.float64)
            heard = tf.maximum(run.beats[0].read_value(), opened)
            lives = self.me | (tf.timestamp() - heard <= GONE) | tf.equal(number, 0)
        run.on_beat.append(self._take_note(lives, ~lives))
        # Those who wait in the incarnation before go on, and learn that they must join.
        run.on_open += [queue.enqueue(True) for queue in self.queues]

    def _now(self, back):
        """Returns the clocks [N], those of who is `back` as far as the slowest."""
        clocks = self.clocks.read_value()
        slowest = tf.reduce_min(clocks)
        slowest = tf.where_v2(tf.equal(slowest, AWAY), np.int64(0), slowest)
        return tf.where_v2(tf.equal(clocks, AWAY) & back, slowest, clocks)

    def _may(self, clocks):
        """Returns who may begin a round, [N]: c − min c ≤ s, or all is done."""
        over = self.kept.step.read_value() >= self.kept.steps
        return (clocks - tf.reduce_min(clocks) <= self.bound) | over

    def _set(self, clocks):
        """Returns the operations that set the clocks and wake who may go on now."""
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

    def _take_note(self, back, away):
        """Returns the operation that notes who is `back` and who `away`, [N] each."""
        with self.kept.locked([]) as (_, done):
            done += self._set(tf.where_v2(away, AWAY, self._now(back)))
        return self.kept.unlocked

    def wait(self, after):
        """Returns a tensor on ps 0 that is there as soon as this worker may begin.

        Not before `after` is done. After the last update nobody waits, nor does who has
        to join first: its clock has not begun, so that nobody is behind it.
        """

        def ask(_):
            with self.kept.locked([]) as (_, done):
                clocks = self._now(self.me)
                may = self._may(clocks)[self.kept.me]
                waiting = (self.waiting.read_value() & ~self.me) | (self.me & ~may)
                done += [
                    self.clocks.assign(clocks, read_value=False),
                    self.waiting.assign(waiting, read_value=False),
                ]
            with tf.control_dependencies([self.kept.unlocked]):
                mine = self.queues[self.kept.me]
                token = tf.cond(may, lambda: tf.constant(True), mine.dequeue)
            with tf.control_dependencies([token]):
                return tf.identity(may)

        with tf.device(self.kept.device), tf.control_dependencies(after):
            no = tf.identity(False)
            return tf.while_loop(lambda may: ~may, ask, [no])

    def tick(self, update, applied):
        """Returns the operation that counts a round of this worker as completed.

        It runs after `update`, on every ps; the round counts if it was `applied`.
        """
        with self.kept.locked(update) as (joined, done):
            one = tf.cast(self.me & joined & applied, tf.int64)
            done += self._set(self._now(self.me) + one)
        return self.kept.unlocked
