"""Merges of what learners answer, each open for K of them and a grace. Scripts call it.

ps 0 decides, under the lock of the stats. A learner, which is a worker, asks in every
round whether it is to answer. Its answer is a fragment of its weights, in a row of its
own on each ps, and a weight a_k, on ps 0. The first round that ends when an open merge
is due claims it: every ps makes it, and then ps 0 opens the next. So there is no loop
that has to live, and nobody waits for another learner.

A learner that dies in a merge it has claimed keeps nobody: after GONE seconds another
claims it again, and a ps that has made it does not make it twice.
"""

import numpy as np

from cluster import atomic, rounds
from cluster import tensorflow_v1 as tf
from cluster.fragments import Fragments
from cluster.link import GONE
from cluster.rounds import APPLIED, LATE, OVER


class Syncer:
    """On ps 0: the open merge; on each ps: a row for the answer of each learner."""

    def __init__(self, args, center, stats, grace):
        """`grace(args, step, quorum, sync)` are seconds, see the script."""
        self.args, self.center, self.stats, self.grace = args, center, stats, grace
        self.me = np.arange(stats.workers) == stats.me
        self.parts = [Fragments(p.shape[0], args.fragments) for p in center]
        self.made, self.answers = atomic.pushes(center, stats), {}
        for piece, part in zip(center, self.parts, strict=True):
            with tf.device(piece.device):
                rows = tf.zeros([stats.workers, part.size])
                self.answers[piece.device] = stats.temporary("answers", rows)
        with tf.device(stats.device):
            self.weights = stats.temporary("weights", tf.zeros([stats.workers]))
            # When each learner was heard, and how long its last inner step took.
            now = tf.fill([stats.workers], tf.timestamp())
            self.heard = stats.temporary("heard", now)
            self.seconds = stats.temporary("seconds", tf.zeros_like(now))
            # Of the open merge: its first answer, its K-th, its claim, or 0; and how
            # long the last merge took.
            self.moments = stats.temporary("moments", tf.zeros([4], tf.float64))

    def pull(self, x, seen, mix, after):
        """Returns x with the fragments that were merged since `seen`, and what is new.

        x ← mix x + (1 − mix) w of these. Then t, the merges made, and the bytes that
        came, int64 on ps 0; whose turns it was since `seen`, int32 [n].
        """
        t = self.stats.read_step(after=after[:1])

        def turns():
            count = tf.minimum(t - seen, self.args.fragments)
            return tf.cast((t - 1 - tf.range(count)) % self.args.fragments, tf.int32)

        there = []
        for piece in self.center:
            with tf.device(piece.device):
                there.append(turns())
        # w is read after t, on each ps: so it has every merge that t counts.
        read, found = rounds.read(self.center, there), []
        for w, part, turn in zip(read, self.parts, there, strict=True):
            with tf.device(w.device):
                found.append(part.get(w, turn))
        with tf.device(self.stats.device):
            came = self._bytes(tf.minimum(t - seen, self.args.fragments))
        new, pieces = turns(), []
        parts = zip(self.parts, self._split(x), found, strict=True)
        for part, own, w in parts:
            mixed = w + mix * (part.get(own, new) - w)
            pieces.append(part.put(own, new, mixed))
        return tf.concat(pieces, axis=0), t, came, new

    def _split(self, x):
        """Returns the pieces of x [P] as the ps have them."""
        return tf.split(x, [part.elements for part in self.parts])

    def _bytes(self, count):
        """Returns the bytes of so many fragments, int64."""
        return 4 * sum(one.size for one in self.parts) * tf.cast(count, tf.int64)

    def _reached(self, weights, now):
        """Returns if K have answered, or all that are there; if all; the slowest step.

        A learner is there if no more than two of its rounds, and GONE seconds, have
        passed since its last.
        """
        seconds, answered = self.seconds.read_value(), weights > 0
        silent = now - self.heard.read_value()
        there = silent < GONE + 2 * max(1, self.args.overlap) * seconds
        count = tf.reduce_sum(tf.cast(there, tf.int32))
        enough = tf.minimum(self.args.quorum, tf.maximum(count, 1))
        reached = tf.reduce_sum(tf.cast(answered, tf.int32)) >= enough
        slowest = tf.reduce_max(tf.where_v2(there, seconds, tf.zeros_like(seconds)))
        return reached, tf.reduce_all(answered | ~there), slowest

    def ask(self, made, every):
        """Returns t, the open merge; how many rows this learner is to answer, 1 or 0.

        And how many steps are in its fragment: all of them on ps 0. Then [t, rows],
        int64 on this worker. `made` [F + 1] are its inner steps of each fragment, and
        those since the last answer: it answers after `every` of them, and once if K
        have. Not without a step of f.
        """
        with tf.device(self.stats.device):
            made = tf.identity(made)  # one message, also for who waits for it
        with tf.device(self.stats.device), tf.control_dependencies([made]):
            t = self.stats.step.read_value()
            with tf.control_dependencies([t]):  # no answers of the merge before
                weights = self.weights.read_value()
            reached, _, _ = self._reached(weights, tf.timestamp())
            wanted = reached & tf.equal(weights[self.stats.me], 0)
            wanted |= made[-1] >= every
            mine = made[tf.cast(t % self.args.fragments, tf.int32)]
            rows = tf.cast(wanted & (mine > 0), tf.int64)
            told = tf.stack([t, rows])
        return t, rows, mine, tf.identity(told)

    def rows(self, x, told):
        """Returns fragment f of x on each ps, [1 or 0, ..]; `told` is [t, rows]."""
        sent = []
        for part, piece in zip(self.parts, self._split(x), strict=True):
            turn = tf.fill([told[1]], part.turn(told[0]))
            sent.append(part.get(piece, turn))
        return rounds.send(sent, self.center)

    def answer(self, t, count, pushed, weight):
        """Notes an answer to merge t, `count` rows of it; says if it was in time."""
        stats, stored = self.stats, []
        for piece, rows in zip(self.center, pushed, strict=True):
            with tf.device(piece.device):
                mine = tf.fill([tf.shape(rows)[0]], stats.me)
                table = self.answers[piece.device]
                stored.append(stats.scatter("Update", table, mine, rows))
        with stats.locked([*stored, weight]) as done:
            now, weights = tf.timestamp(), self.weights.read_value()
            first, kth, claimed, sync = tf.unstack(self.moments.read_value())
            open_ = tf.equal(t, stats.step.read_value()) & (now - claimed > GONE)
            taken = open_ & (count > 0)
            weights = tf.where_v2(self.me & taken, weight, weights)
            reached, _, _ = self._reached(weights, now)
            first = tf.where_v2(tf.equal(first, 0) & taken, now, first)
            kth = tf.where_v2(tf.equal(kth, 0) & reached, now, kth)
            moments = tf.stack([first, kth, claimed, sync])
            done.append(self.weights.assign(weights, read_value=False))
            done.append(self.moments.assign(moments, read_value=False))
        with tf.device(stats.device), tf.control_dependencies([stats.unlocked]):
            return tf.identity(taken)

    def claim(self, t, count, taken, examples, seconds, pulled):
        """Counts a round that began at t, `seconds` a step; returns its Counted.

        It is `applied` if this learner has to make the open merge: it is due.
        """
        stats, args = self.stats, self.args
        with tf.device(stats.device):
            seconds = tf.identity(seconds)
        with stats.locked([taken, seconds, pulled]) as done:
            now, step = tf.timestamp(), stats.step.read_value()
            staleness = step - t  # merges of others in this round
            self.open, self.claimed = self.weights.read_value(), step
            done.append(stats.scatter("Update", self.heard, stats.me, now))
            with tf.control_dependencies(done[-1:]):
                done.append(stats.scatter("Update", self.seconds, stats.me, seconds))
            with tf.control_dependencies(done[-1:]):
                reached, every, slowest = self._reached(self.open, now)
            first, kth, claimed, sync = tf.unstack(self.moments.read_value())
            due = kth + self.grace(args, slowest, kth - first, sync)
            due = (kth > 0) & reached & (every | (now >= due))
            open_ = step < stats.limit.read_value()
            applied = due & open_ & (now - claimed > GONE)
            claimed = tf.where_v2(applied, now, claimed)
            moments = tf.stack([first, kth, claimed, sync])
            done.append(self.moments.assign(moments, read_value=False))
            late = (count > 0) & ~taken & ~applied
            row = stats.row(rounds=1, examples=examples)
            row += stats.row(dropped=1) * tf.cast(late, tf.int64)
            row += stats.row(pushed=1) * self._bytes(count)
            row += stats.row(pulled=1) * pulled
            done += stats.add(row, open_, open_, staleness)
            became = tf.where(late, LATE, APPLIED)
            became = tf.where(open_, became, OVER)
            number = step - 1 + tf.cast(applied, tf.int64)
        return stats.counted(number, staleness, applied, became)

    def merge(self, counted, pushed, rule):
        """Makes the merge that was claimed, if it was, by `rule(w, part, turn, d, a)`.

        On each ps, d is what each learner has moved, [N, ..], and a its weight [N], or
        0. The rule returns operations. Returns what comes after it, on each ps.
        """
        parts = {p.device: one for p, one in zip(self.center, self.parts, strict=True)}

        def once(w, _, a, t):
            part, made = parts[w.device], self.made[w.device]

            def make():
                turn = part.turn(t)
                # d_k := w − x_k, at the w of now
                d = part.get(w.read_value(), turn) - self.answers[w.device].read_value()
                with tf.control_dependencies(rule(w, part, turn, d, a)):
                    return made.assign_add(1, read_value=False)

            return [rounds.only_if(tf.equal(made.read_value(), t), make)]

        told = self.open, self.claimed
        done = atomic.update(self.center, pushed, counted.applied, once, *told)
        with tf.device(self.stats.device), tf.control_dependencies(done):
            applied = tf.identity(counted.applied)
            done[0] = rounds.only_if(applied, lambda: self._open_next(counted))
        return done

    def _open_next(self, counted):
        """Returns the operation that opens the next merge, if nobody else has."""
        stats = self.stats
        with stats.locked() as done:
            weights, moments = self.weights.read_value(), self.moments.read_value()
            mine = tf.equal(stats.step.read_value(), self.claimed)
            one, zero = tf.cast(mine, tf.int64), tf.zeros([], tf.float64)
            row = stats.row(updates=1) + stats.row(staleness=1) * counted.staleness
            opened = tf.stack([zero, zero, zero, tf.timestamp() - moments[2]])
            opened = tf.where_v2(mine, opened, moments)
            weights *= tf.cast(~mine, tf.float32)
            done.append(self.moments.assign(opened, read_value=False))
            done.append(self.weights.assign(weights, read_value=False))
            with tf.control_dependencies(done):  # `ask` has no lock
                done.append(stats.step.assign_add(one, read_value=False))
                done.append(stats.scatter("Add", stats.counters, stats.me, row * one))
        return stats.unlocked
