"""A step that is open for N gradients and made once. Synchronous scripts call it.

ps 0 decides, under the lock of the books. Step t takes the first N gradients that were
computed for it, one of a worker; what comes later is dropped. Whoever brings the last
of them makes the update, and then opens step t + 1: every worker gets a token. So
nobody is asked, and no thread of the chief's has to live.
"""

from cluster import books, rounds
from cluster import tensorflow_v1 as tf

ROUNDS = books.COLUMNS.index("rounds")


class Barrier:
    """On ps 0: who is in the open step, and a queue of tokens for each worker."""

    def __init__(self, args, kept):
        self.kept, self.size = kept, args.replicas_to_aggregate
        self.workers = len(args.worker_hosts)
        with tf.device(kept.device):
            # The rows that the books get when the open step is made.
            rows = tf.zeros([self.workers, len(books.COLUMNS)], tf.int64)
            self.taken = kept.temporary("taken", rows)
            self.arrived = kept.temporary("arrived", tf.zeros([], tf.int64))
            names = [f"tokens_{worker}" for worker in range(self.workers)]
            self.queues = [
                tf.FIFOQueue(-1, tf.int64, [[]], shared_name=name) for name in names
            ]
            self.mine = self.queues[kept.me]
            # Who joins forgets its old tokens, and begins with the step that is open.
            # The chief wakes all the others, who then find that they have to join too.
            with tf.control_dependencies([self.mine.dequeue_many(self.mine.size())]):
                step = kept.step.read_value()
            woken = self.queues if kept.chief else [self.mine]
            kept.on_join += [queue.enqueue(step) for queue in woken]

    def wait(self, after):
        """Returns the step t that this worker computes for, int64 on ps 0.

        That is its newest token, once it has one and `after` is done: a worker that was
        late skips what was made without it. After the last update nobody waits.
        """

        def newest():
            return tf.reduce_max(
                self.mine.dequeue_many(tf.maximum(self.mine.size(), 1))
            )

        with tf.device(self.kept.device), tf.control_dependencies(after):
            step = self.kept.step.read_value()
            return tf.cond(step < self.kept.steps, newest, lambda: step)

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
                pushed=books.size(*pushed),
                pulled=books.size(pulled),
            )
            done += kept.write(kept.row(dropped=1, **made), late, applied, 0)
            done.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=self.taken.handle,
                    indices=kept.me,
                    updates=kept.row(**made) * tf.cast(applied, tf.int64),
                )
            )
            what = tf.where(applied, books.APPLIED, books.LATE)
            what = tf.where(joined, tf.where(open_, what, books.OVER), books.STRANGER)
        return kept.entry(t, tf.zeros_like(t), applied, what)

    def complete(self, added, applied):
        """Returns whether this gradient, now added on every ps, is the step's last."""
        with self.kept.locked(added) as (joined, done):
            counts = tf.logical_and(joined, applied)
            arrived = self.arrived.read_value() + tf.cast(counts, tf.int64)
            done.append(self.arrived.assign(arrived, read_value=False))
            last = tf.logical_and(counts, tf.equal(arrived, self.size))
        with tf.device(self.kept.device):
            with tf.control_dependencies([self.kept.unlocked]):
                return tf.identity(last)

    def open_next(self, update, last):
        """Returns the operation that closes step t and opens t + 1, by its `last`.

        `update` has been applied on every ps; the books get the step's rows.
        """
        kept = self.kept

        def open_():
            with kept.locked(update) as (_, done):
                taken = self.taken.read_value()
                zeros = tf.zeros_like(taken)
                made = tf.one_hot(kept.me, self.workers, dtype=tf.int64)[:, None]
                with tf.control_dependencies([taken]):
                    done += [
                        tf.raw_ops.ResourceScatterAdd(
                            resource=kept.table.handle,
                            indices=tf.range(self.workers),
                            updates=taken + tf.concat([made, zeros[:, 1:]], axis=1),
                        ),
                        self.taken.assign(zeros, read_value=False),
                        self.arrived.assign(0, read_value=False),
                        kept.step.assign_add(1, read_value=False),
                    ]
            with tf.control_dependencies([kept.unlocked]):
                step = kept.step.read_value()
                return tf.group([queue.enqueue(step) for queue in self.queues])

        with tf.device(kept.device):
            return [rounds.only_if(last, open_)]
