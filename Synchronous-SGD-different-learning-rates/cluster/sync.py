"""A step that is open for N gradients and made once. Synchronous scripts call it.

ps 0 decides, under the lock of the stats. Step t takes the first N gradients that were
computed for it, at most one from each worker; later ones are dropped. The worker that
brings the last of them makes the update, and then opens step t + 1: every worker gets a
token. So the chief needs no thread for it, and nobody waits for the chief.
"""

import numpy as np

from cluster import rounds
from cluster import tensorflow_v1 as tf
from cluster.heartbeat import GONE
from cluster.quorum import Quorum
from cluster.stats import COUNTERS, size
from cluster.sums import REFUSED, Sums

ROUNDS = COUNTERS.index("rounds")
# What has come of a worker's gradient: nothing yet; it is in the sums; it was the last
# of its step, so that this worker makes the update.
AWAY, ARRIVED, MAKER = 0, 1, 2


class Barrier:
    """On ps 0: who is in the open step, and a queue of tokens for each worker.

    `sums` are the sums of the gradients that the open step has taken. `attempt` is the
    number of the attempt to make it, larger than any before.
    """

    def __init__(self, args, center, stats):
        self.stats, self.size = stats, args.replicas_to_aggregate
        self.workers = len(args.worker_hosts)
        self.sums = Sums(center, stats)
        with tf.device(stats.device):
            # What is counted once the open step is complete.
            nothing = tf.zeros([self.workers, len(COUNTERS)], tf.int64)
            self.taken = stats.temporary("taken", nothing)
            # It begins with the time, in microseconds, in each incarnation.
            now = tf.cast(1e6 * tf.timestamp(), tf.int64)
            self.attempt = stats.temporary("open_attempt", now)
            away = tf.fill([self.workers], tf.constant(AWAY, tf.int64))
            self.arrived = stats.temporary("arrived", away)
            names = [f"tokens_{worker}" for worker in range(self.workers)]
            self.queues = [
                tf.FIFOQueue(-1, tf.int64, [[]], shared_name=name) for name in names
            ]
            self.mine = self.queues[stats.me]
            self.me = np.arange(self.workers) == stats.me
        state = stats.incarnation
        state.checks.append(lambda stats: check(args, center, stats))
        with tf.control_dependencies([self.begin_again(self.me)]):
            # A worker that joins throws its old tokens away and gets one for the open
            # step. In a new incarnation all get one: those who still wait go on, and
            # learn that they have to join.
            with tf.control_dependencies([self.mine.dequeue_many(self.mine.size())]):
                state.on_join.append(self.mine.enqueue(stats.step.read_value()))
        state.on_open += [q.enqueue(stats.step.read_value()) for q in self.queues]

    def begin_again(self, dead):
        """Returns what empties the open step if one of the `dead` left it unfinished.

        `dead` [workers] says whose process is gone. It was killed between the moment in
        which ps 0 took its gradient and the one in which that was added everywhere, or
        while it made the update: without it the step would stay open for ever.
        """
        stats = self.stats
        with stats.locked([]) as held:
            taken, arrived = held.read(self.taken), held.read(self.arrived)
            half = (taken[:, ROUNDS] > 0) & tf.not_equal(arrived, ARRIVED)
            stuck = tf.reduce_any(dead & half)
            step = held.read(stats.step)
            held.done.append(rounds.only_if(stuck, self._another_attempt))
        with tf.device(stats.device), tf.control_dependencies([stats.unlocked]):
            return rounds.only_if(tf.identity(stuck), lambda: self._tokens(step))

    def _another_attempt(self):
        """Returns what empties the step; each sum begins with its next piece."""
        return tf.group(
            self.taken.assign(tf.zeros(self.taken.shape, tf.int64), read_value=False),
            self.arrived.assign([AWAY] * self.workers, read_value=False),
            self.attempt.assign_add(1, read_value=False),
        )

    def _tokens(self, step):
        return tf.group([queue.enqueue(step) for queue in self.queues])

    def wait(self, after):
        """Returns the step t that this worker computes for, int64 on ps 0.

        The newest of its tokens, as soon as it has one and `after` is done: so a late
        worker skips the steps that were made without it. After the last update nobody
        waits, nor does a worker that has to join first.
        """

        def newest():
            count = tf.maximum(self.mine.size(), 1)
            return tf.reduce_max(self.mine.dequeue_many(count))

        with tf.device(self.stats.device), tf.control_dependencies(after):
            step = self.stats.step.read_value()
            # As the round before found it: nobody is to look again while all wait. If
            # the incarnation has ended since, its successor brings a token.
            joined = self.joined if after else self.stats.incarnation.has_joined()
            waits = joined & (step < self.stats.limit.read_value())
            return tf.cond(waits, newest, lambda: step)

    def offer(self, t, pushed, examples, pulled):
        """Offers a gradient that was computed for step t; returns its Counted.

        It is `applied` if step t is open, has a place, and has none of this worker yet.
        """
        stats = self.stats
        with stats.locked([pushed[0], t]) as held:
            step, taken = held.read(stats.step), held.read(self.taken)[:, ROUNDS]
            place = tf.reduce_sum(taken) < self.size
            open_ = tf.logical_and(held.joined, step < held.read(stats.limit))
            fits = tf.equal(t, step) & place & tf.equal(taken[stats.me], 0)
            applied, late = open_ & fits, open_ & ~fits
            made = dict(
                rounds=1,
                examples=examples,
                pushed=size(*pushed),
                pulled=size(*tf.nest.flatten(pulled)),
            )
            held.add(stats.row(dropped=1, **made), late, applied, 0)
            held.done.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=self.taken.handle,
                    indices=stats.me,
                    updates=stats.row(**made) * tf.cast(applied, tf.int64),
                )
            )
            became = tf.where(applied, rounds.APPLIED, rounds.LATE)
            became = tf.where(open_, became, rounds.OVER)
            became = tf.where(held.joined, became, rounds.NOT_JOINED)
            staleness = tf.zeros_like(t)
            self.named = held.read(self.attempt)
        self.joined = held.joined
        return stats.counted(t, staleness, applied, became)

    def add(self, pushed, applied, rule):
        """Applies `rule(sum, piece)` on each ps if the gradient is `applied`.

        Returns what comes after it, on each ps.
        """
        return self.sums.add(pushed, self._named(applied), rule)

    def move(self, variables, applied, rule):
        """Applies `rule(variable, sum)` on each ps if the gradient was the last one.

        Returns what comes after it, on each ps.
        """
        return self.sums.move(variables, self._named(applied), rule)

    def _named(self, applied):
        with tf.device(self.stats.device):
            return tf.where(applied, self.named, REFUSED)

    def complete(self, added, applied):
        """Returns whether this gradient, now added on every ps, is the step's last."""
        stats = self.stats
        with stats.locked(added) as held:
            # Not if the step was begun again meanwhile, see `begin_again`.
            counts = applied & tf.equal(self.named, held.read(self.attempt))
            # The others, each ARRIVED = 1: nobody is the MAKER while one is missing.
            others = tf.reduce_sum(held.read(self.arrived))
            last = tf.logical_and(counts, tf.equal(others, self.size - 1))
            mark = tf.cast(counts, tf.int64) + tf.cast(last, tf.int64)
            held.done.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=self.arrived.handle, indices=stats.me, updates=mark
                )
            )
        with tf.device(stats.device), tf.control_dependencies([stats.unlocked]):
            return tf.identity(last)

    def open_next(self, update, last):
        """Returns the operation that closes step t and opens t + 1.

        It runs if this gradient was the `last` one and `update` is applied on every ps.
        """
        stats = self.stats

        def open_():
            with stats.locked(update) as held:
                taken = held.read(self.taken)
                made = self.me[:, None] * stats.row(updates=1)
                with tf.control_dependencies([taken]):
                    held.done += [
                        tf.raw_ops.ResourceScatterAdd(
                            resource=stats.counters.handle,
                            indices=list(range(self.workers)),
                            updates=taken + made,
                        ),
                        self._another_attempt(),
                        stats.step.assign_add(1, read_value=False),
                    ]
            with tf.control_dependencies([stats.unlocked]):
                return self._tokens(stats.step.read_value())

        with tf.device(stats.device):
            return [rounds.only_if(last, open_)]


def check(args, center, stats):
    """Returns what is checked with every heartbeat, see `Rendezvous.make_checks`.

    A step that a dead worker left unfinished is begun again. And while fewer than N
    workers live no step is complete: the quorum says for how long that may be.
    """
    state = stats.incarnation
    barrier = Barrier(args, center, stats)
    begun = barrier.begin_again(state.silence() > GONE)
    with tf.device(stats.device):
        waits = stats.step.read_value() < stats.limit.read_value()
        silence = tf.where(
            waits, state.silence(), tf.zeros([barrier.workers], tf.float64)
        )
        tensors = [silence, state.heartbeats.read_value() > 0]
    return begun, tensors, Quorum(args).check
