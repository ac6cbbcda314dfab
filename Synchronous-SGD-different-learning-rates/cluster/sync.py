"""A step that is open for N gradients and made once. Synchronous scripts call it.

ps 0 decides, under the lock of the stats. Step t takes the first N gradients that were
computed for it, at most one from each worker; later ones are dropped. On each ps an
accumulator has the mean of their pieces. The worker that ps 0 took last makes the
update from it, and then opens step t + 1: every worker gets a token.
"""

import time

import numpy as np

from cluster import addresses, link, rounds, task
from cluster import tensorflow_v1 as tf
from cluster.stats import COUNTERS, Stats, size

ROUNDS = COUNTERS.index("rounds")


class Barrier:
    """On ps 0: who is in the open step, and a queue of tokens for each worker."""

    def __init__(self, args, center, stats):
        self.stats, self.size = stats, args.replicas_to_aggregate
        self.workers = len(args.worker_hosts)
        self.means = []
        for i, piece in enumerate(center):
            with tf.device(piece.device):
                about = dict(shape=piece.shape, shared_name=f"mean_{i}")
                self.means.append(tf.ConditionalAccumulator(tf.float32, **about))
        with tf.device(stats.device):
            # What is counted once the open step is complete.
            self.nothing = tf.zeros([self.workers, len(COUNTERS)], tf.int64)
            self.taken = stats.temporary("taken", self.nothing)
            # The last step that took a gradient of a worker which has begun anew since.
            self.left = stats.temporary("left", tf.constant(-1, tf.int64))
            names = [f"tokens_{worker}" for worker in range(self.workers)]
            self.queues = [
                tf.FIFOQueue(-1, tf.int64, [[]], shared_name=name) for name in names
            ]
            self.mine = self.queues[stats.me]
        stats.on_begin.append(self._begin())
        stats.looks.append(lambda line: Watch(args, line).look)

    def _begin(self):
        """Returns what throws old tokens away, and gives one for the open step."""
        with self.stats.locked() as done:
            step, taken = self.stats.step.read_value(), self.taken.read_value()
            mine, left = taken[self.stats.me, ROUNDS] > 0, self.left.read_value()
            with tf.control_dependencies([step]):
                old = self.mine.dequeue_many(self.mine.size())
            with tf.control_dependencies([old]):
                # Two: a process before this one may still wait for one, on a host that
                # was cut off.
                done.append(self.mine.enqueue_many([tf.stack([step, step])]))
            step = tf.where(mine, step, left)
            done.append(self.left.assign(step, read_value=False))
        return self.stats.unlocked

    def wait(self, after):
        """Returns the step t that this worker computes for, int64 on ps 0.

        The newest of its tokens, as soon as it has one and `after` is done: so a late
        worker skips the steps that were made without it. After the last update nobody
        waits.
        """

        def newest():
            count = tf.maximum(self.mine.size(), 1)
            return tf.reduce_max(self.mine.dequeue_many(count))

        with tf.device(self.stats.device), tf.control_dependencies(after):
            step = self.stats.step.read_value()
            waits = step < self.stats.limit.read_value()
            return tf.cond(waits, newest, lambda: step)

    def offer(self, t, pushed, examples, pulled):
        """Offers a gradient that was computed for step t; returns its Counted.

        It is `applied` if step t is open, has a place, and has none of this worker yet.
        """
        stats = self.stats
        with stats.locked([pushed[0], t]) as done:
            step, taken = stats.step.read_value(), self.taken.read_value()[:, ROUNDS]
            place = tf.reduce_sum(taken) + 1
            open_ = step < stats.limit.read_value()
            fits = tf.equal(t, step) & (place <= self.size)
            applied = open_ & fits & tf.equal(taken[stats.me], 0)
            sent = dict(pushed=size(*pushed), pulled=size(*tf.nest.flatten(pulled)))
            made = dict(rounds=1, examples=examples, **sent)
            done += stats.add(
                stats.row(dropped=1, **made), open_ & ~applied, applied, 0
            )
            row = stats.row(**made) * tf.cast(applied, tf.int64)
            done.append(stats.scatter("Add", self.taken, stats.me, row))
            became = tf.where(applied, rounds.APPLIED, rounds.LATE)
            became = tf.where(open_, became, rounds.OVER)
            # 1 to N, or 0: not taken.
            self.place = tf.where(applied, place, tf.zeros_like(place))
            none = tf.zeros_like(t)
        return stats.counted(t, none, applied, became)

    def update(self, center, pushed, rule):
        """Adds the gradient that was offered last to the mean, if it was taken.

        If it is the N-th, then once all N are there it applies `rule(variable, mean)`
        on each ps, and opens the next step. Returns what comes after it, on ps 0.
        """
        done = []
        for variable, piece, mean in zip(center, pushed, self.means, strict=True):
            with tf.device(variable.device):
                # One message to that ps, for all that depends on it there.
                place = tf.identity(self.place)
                # An accumulator drops what was computed for a step before 0.
                step = tf.where(place > 0, tf.int64.max, tf.constant(-1, tf.int64))
                with tf.control_dependencies([mean.apply_grad(piece, step)]):
                    last = tf.equal(place, self.size)

                def move(variable=variable, mean=mean):
                    return rule(variable, mean.take_grad(self.size))

                done.append(rounds.only_if(last, move))
        with tf.device(self.stats.device), tf.control_dependencies(done):
            last = tf.equal(self.place, self.size)
            return [rounds.only_if(last, self._open_next)]

    def _open_next(self):
        """Returns the operation that closes step t and opens t + 1.

        The step is full until the end of it: see Watch, if the worker dies meanwhile.
        """
        stats, made = self.stats, np.arange(self.workers) == self.stats.me
        with stats.locked() as done:
            step, taken = stats.step.read_value(), self.taken.read_value()
            tokens = [queue.enqueue(step + 1) for queue in self.queues]
            with tf.control_dependencies([taken, *tokens]):
                every, rows = (
                    list(range(self.workers)),
                    made[:, None] * stats.row(updates=1),
                )
                counted = stats.scatter("Add", stats.counters, every, taken + rows)
                opened = stats.step.assign(step + 1, read_value=False)
            with tf.control_dependencies([counted, opened]):
                done.append(self.taken.assign(self.nothing, read_value=False))
        return stats.unlocked


class Watch:
    """Looks with each heartbeat whether the open step can be made."""

    def __init__(self, args, line):
        self.args, self.line = args, line
        self.stuck, self.since = None, time.monotonic()
        self.due = self.since
        with line.graph.as_default():
            stats = Stats(args)
            barrier = Barrier(args, [], stats)
            with tf.device(stats.device):
                held = stats.step, stats.limit, barrier.left, barrier.taken
                self.held = [variable.read_value() for variable in held]

    def look(self, board):
        """Returns a sentence if too few workers live for --patience seconds.

        If one has died after ps 0 took its gradient, and before it had done all with
        it, the chief has all ps begin again: from the last checkpoint.
        """
        args, there = self.args, board["workers"]
        step, limit, left, taken = self.line.run(self.held)
        workers, needed = len(args.worker_hosts), args.replicas_to_aggregate
        lives = [k for k in there if there[k]["silent"] <= link.GONE]
        gone = [k for k in range(workers) if str(k) not in lives]
        dead = left == step or taken[gone, ROUNDS].any()
        full = taken[:, ROUNDS].sum() == needed
        before, self.stuck = self.stuck, step if dead and full else None
        if args.task_index == 0 and before == step == self.stuck:
            print(f"a worker died in the update of global step {step}", flush=True)
            for device in addresses.servers(args):
                link.Link(args, self.line, device).tell(word="again")
        now = time.monotonic()
        if workers - len(gone) >= needed or step >= limit:
            self.since = self.due = now
            return None
        # Whoever never came may take as long as for every start.
        came = all(str(k) in there for k in gone)
        left = args.patience * (1 if came else link.STARTING) - (now - self.since)
        who = ", ".join(map(str, gone))
        text = f"worker {who}: a step takes the gradients of {needed} workers"
        if left < 0:
            return f"no heartbeat in {now - self.since:.0f} s from {text}"
        if now >= self.due:  # every 10 s
            print(f"still waiting for {text}; {left:.0f} s left", flush=True)
            self.due = now + task.SAY
        return None
