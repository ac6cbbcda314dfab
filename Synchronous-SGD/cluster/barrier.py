"""A step that is open for N gradients and made once. Synchronous scripts call it.

ps 0 decides, under the lock of the books. Step t takes the first N gradients that were
computed for it, at most one from each worker; later ones are dropped. Whoever brings
the last of them makes the update, and then opens step t + 1: every worker gets a token.
So the chief needs no thread for it, and nobody waits for the chief.
"""

import numpy as np

from cluster import rounds, rows
from cluster import tensorflow_v1 as tf
from cluster.incarnation import silence
from cluster.lobby import GONE
from cluster.quorum import Quorum

ROUNDS = rows.COLUMNS.index("rounds")
# What has come of a worker's gradient: nothing yet; it is in the sums; it was the last
# of its step, so that this worker makes the update.
AWAY, ARRIVED, MAKER = 0, 1, 2


class Barrier:
    """On ps 0: who is in the open step, and a queue of tokens for each worker.

    `sums` has a variable for each piece of the center variable, on its ps: the sum of
    the gradients that the open step has taken.
    """

    def __init__(self, args, center, kept):
        self.kept, self.size = kept, args.replicas_to_aggregate
        self.workers = len(args.worker_hosts)
        self.sums = []
        for piece in center:
            with tf.device(piece.device):
                self.sums.append(kept.temporary("sum", tf.zeros(piece.shape)))
        with tf.device(kept.device):
            # What goes into the books once the open step is complete.
            nothing = tf.zeros([self.workers, len(rows.COLUMNS)], tf.int64)
            self.taken = kept.temporary("taken", nothing)
            away = tf.fill([self.workers], tf.constant(AWAY, tf.int64))
            self.arrived = kept.temporary("arrived", away)
            names = [f"tokens_{worker}" for worker in range(self.workers)]
            self.queues = [
                tf.FIFOQueue(-1, tf.int64, [[]], shared_name=name) for name in names
            ]
            self.mine = self.queues[kept.me]
            self.me = np.arange(self.workers) == kept.me
            dead = silence(kept.incarnation.beats[0]) > GONE
        run, quorum = kept.incarnation, Quorum(args, kept, self.size)
        run.judges.append((quorum.tensors, quorum.judge))
        run.on_beat.append(self._begin_again(dead))
        with tf.control_dependencies([self._begin_again(self.me)]):
            # A worker that joins throws its old tokens away and gets one for the open
            # step. In a new incarnation all get one: those who still wait go on, and
            # learn that they have to join.
            with tf.control_dependencies([self.mine.dequeue_many(self.mine.size())]):
                run.on_join.append(self.mine.enqueue(kept.step.read_value()))
        run.on_open += [queue.enqueue(kept.step.read_value()) for queue in self.queues]

    def _begin_again(self, dead):
        """Returns what empties the open step if one of the `dead` left it unfinished.

        `dead` [workers] says whose process is gone. It was killed between the moment in
        which ps 0 took its gradient and the one in which that was added everywhere, or
        while it made the update: without it the step would stay open for ever.
        """
        kept = self.kept
        with kept.locked([]) as (_, done):
            taken = self.taken.read_value()
            added = tf.equal(self.arrived.read_value(), ARRIVED)
            half = (taken[:, ROUNDS] > 0) & ~added
            stuck = tf.reduce_any(dead & half)
            step = kept.step.read_value()
            empty = [
                rounds.only_if(stuck, lambda v=v, w=w: v.assign(w, read_value=False))
                for v, w in (
                    (self.taken, tf.zeros_like(taken)),
                    (self.arrived, [AWAY] * self.workers),
                )
            ]
            done += empty
        for total in self.sums:
            with tf.device(total.device):
                zeros = tf.zeros_like(total)
                empty.append(
                    rounds.only_if(
                        tf.identity(stuck),
                        lambda t=total, z=zeros: t.assign(z, read_value=False),
                    )
                )
        with tf.device(kept.device), tf.control_dependencies(empty):
            return rounds.only_if(tf.identity(stuck), lambda: self._tokens(step))

    def _tokens(self, step):
        return tf.group([queue.enqueue(step) for queue in self.queues])

    def wait(self, after):
        """Returns the step t that this worker computes for, int64 on ps 0.

        The newest of its tokens, as soon as it has one and `after` is done: so a late
        worker skips the steps that were made without it. After the last update nobody
        waits, nor does who has to join first.
        """

        def newest():
            count = tf.maximum(self.mine.size(), 1)
            return tf.reduce_max(self.mine.dequeue_many(count))

        with tf.device(self.kept.device), tf.control_dependencies(after):
            step = self.kept.step.read_value()
            # As the round before found it: nobody is to look again while all wait. If
            # the incarnation has ended since, its successor brings a token.
            joined = self.joined if after else self.kept.incarnation.has_joined()
            waits = joined & (step < self.kept.steps)
            return tf.cond(waits, newest, lambda: step)

    def offer(self, t, pushed, examples, pulled):
        """Offers a gradient that was computed for step t; returns its Entry.

        It is `applied` if step t is open, has a place, and has none of this worker yet.
        """
        kept = self.kept
        with kept.locked([pushed[0], t]) as (joined, done):
            step, taken = kept.step.read_value(), self.taken.read_value()[:, ROUNDS]
            place = tf.reduce_sum(taken) < self.size
            open_ = tf.logical_and(joined, step < kept.steps)
            fits = tf.equal(t, step) & place & tf.equal(taken[kept.me], 0)
            applied, late = open_ & fits, open_ & ~fits
            made = dict(
                rounds=1,
                examples=examples,
                pushed=rows.size(*pushed),
                pulled=rows.size(*tf.nest.flatten(pulled)),
            )
            done += kept.write(kept.row(dropped=1, **made), late, applied, 0)
            done.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=self.taken.handle,
                    indices=kept.me,
                    updates=kept.row(**made) * tf.cast(applied, tf.int64),
                )
            )
            none = tf.zeros_like(t)
            what = tf.where(applied, rows.APPLIED, rows.LATE)
            what = tf.where(joined, tf.where(open_, what, rows.OVER), rows.STRANGER)
        self.joined = joined
        return kept.entry(t, none, applied, what)

    def complete(self, added, applied):
        """Returns whether this gradient, now added on every ps, is the step's last."""
        kept = self.kept
        with kept.locked(added) as (_, done):
            # Not if the step was begun again meanwhile, see `_begin_again`.
            counts = applied & (tf.gather_nd(self.taken, [kept.me, ROUNDS]) > 0)
            # The others, each ARRIVED = 1: nobody is the MAKER while one is missing.
            others = tf.reduce_sum(self.arrived.read_value())
            last = tf.logical_and(counts, tf.equal(others, self.size - 1))
            mark = tf.cast(counts, tf.int64) + tf.cast(last, tf.int64)
            done.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=self.arrived.handle, indices=kept.me, updates=mark
                )
            )
        with tf.device(kept.device), tf.control_dependencies([kept.unlocked]):
            return tf.identity(last)

    def open_next(self, update, last):
        """Returns the operation that closes step t and opens t + 1.

        It runs if this gradient was the `last` one and `update` is applied on every ps.
        """
        kept = self.kept

        def open_():
            with kept.locked(update) as (_, done):
                taken = self.taken.read_value()
                zeros = tf.zeros_like(taken)
                made = self.me[:, None] * kept.row(updates=1)
                with tf.control_dependencies([taken]):
                    done += [
                        tf.raw_ops.ResourceScatterAdd(
                            resource=kept.table.handle,
                            indices=list(range(self.workers)),
                            updates=taken + made,
                        ),
                        self.taken.assign(zeros, read_value=False),
                        self.arrived.assign([AWAY] * self.workers, read_value=False),
                        kept.step.assign_add(1, read_value=False),
                    ]
            with tf.control_dependencies([kept.unlocked]):
                return self._tokens(kept.step.read_value())

        with tf.device(kept.device):
            return [rounds.only_if(last, open_)]
