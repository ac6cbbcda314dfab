"""ps 0 numbers the updates and keeps the books of every worker. Scripts call it.

A push and its entry are one, under one lock, so that the books are exact whoever dies.
The lock is around the number only: who applies which update when is the scheme's.

A run has incarnations: the first start, and one after each restore. What is kept here
beside the books is `temporary`: it belongs to an incarnation. The chief closes the
old one before it restores, and opens the next one when all is in place; a worker
joins after that. What a worker pushes that has not joined is not applied.
"""

import collections
import contextlib

from cluster import tensorflow_v1 as tf

# Columns of the books, a row a worker. The updates of all rows are the global step.
COLUMNS = ("updates", "rounds", "dropped", "staleness", "examples", "pushed", "pulled")
# The largest of each, a row a worker; the first push is the one of least time.
EXTREMES = ("minus_first", "last", "staleness")
# What became of a push: applied, too late for its step, after the last update, or
# made by a worker that has not joined this incarnation.
APPLIED, LATE, OVER, STRANGER = 1, 0, -1, -2
LEAST = -1e300  # of a time that is not there

# What a push is told by ps 0, scalars there: its number from 0, how many updates came
# between pull and push, whether it is to be applied; `packed` is for the worker's log:
# [step after it, staleness, what became of it], int64.
Entry = collections.namedtuple("Entry", "number staleness applied packed")


def size(*tensors):
    """Returns the bytes that these tensors take in a message, from their shapes."""
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)


class Books:
    """The global step, the books, and who has joined: variables on ps 0."""

    def __init__(self, args):
        self.steps, self.me = args.steps, args.task_index
        self.chief, self.workers = self.me == 0, len(args.worker_hosts)
        self.step = tf.train.get_or_create_global_step()
        self.device = self.step.device
        with tf.device(self.device):
            # Of any number of rows: a run may resume with other workers.
            self.table = self._rows("books", tf.zeros([0, len(COLUMNS)], tf.int64))
            self.extremes = self._rows(
                "extremes", tf.zeros([0, len(EXTREMES)], tf.float64)
            )
            self.incarnation = self.temporary("incarnation", tf.zeros([], tf.int64))
            self.joined = self.temporary("joined", tf.zeros([self.workers], tf.int64))
            self.lock = tf.raw_ops.MutexV2(container="", shared_name="books")
            self.all = [self.table.read_value(), self.extremes.read_value(), self.step]
        self.on_join = []  # operations of the scheme, when a worker joins

    @staticmethod
    def _rows(name, empty):
        columns = empty.shape[1]
        return tf.Variable(
            empty, shape=[None, columns], trainable=False, name=name, use_resource=True
        )

    @staticmethod
    def temporary(name, initial):
        """Returns a variable here that every incarnation begins with `initial`."""
        return tf.Variable(
            initial,
            trainable=False,
            name=name,
            use_resource=True,
            collections=["incarnation"],
        )

    # --- Incarnations ---------------------------------------------------------

    def close(self):
        """Chief: returns the operation that ends an incarnation, on every ps."""
        return tf.group(
            [variable.initializer for variable in tf.get_collection("incarnation")]
        )

    def open(self):
        """Chief: returns the operation that begins an incarnation, once restored."""
        with tf.device(self.device):
            rows = tf.maximum(self.workers - tf.shape(self.table.read_value())[0], 0)
            table = tf.pad(self.table.read_value(), [[0, rows], [0, 0]])
            most = tf.pad(self.extremes.read_value(), [[0, rows], [0, 0]])
            times = tf.fill([tf.shape(most)[0], 2], tf.constant(LEAST, tf.float64))
            filled = [
                self.table.assign(table, read_value=False),
                self.extremes.assign(
                    tf.concat([times, most[:, 2:]], 1), read_value=False
                ),
                # A checkpoint reads its variables one after the other while training
                # goes on: the books are one variable, and say what is right.
                self.step.assign(tf.reduce_sum(table[:, 0]), read_value=False),
            ]
            with tf.control_dependencies(filled):
                number = tf.cast(1e6 * tf.timestamp(), tf.int64)
                return self.incarnation.assign(number, read_value=False)

    def join(self):
        """Returns the operations by which this worker takes part in an incarnation."""
        with tf.device(self.device):
            join = self.joined[self.me].assign(self.incarnation.read_value())
            return [join.op, *self.on_join]

    # --- Rounds ---------------------------------------------------------------

    def read_step(self, after=()):
        """Returns the count of updates, int64 on ps 0, as a pull finds it."""
        with tf.device(self.device), tf.control_dependencies(after):
            return self.step.read_value()

    @contextlib.contextmanager
    def locked(self, after):
        """On ps 0, once `after` is there: what is built inside, nobody interrupts.

        Yields (whether this worker has joined, what has to be done before the lock is
        given back). `self.unlocked` is the operation that gives it back.
        """
        with tf.device(self.device), tf.control_dependencies(after):
            lock = tf.raw_ops.MutexLock(mutex=self.lock)
            with tf.control_dependencies([lock]):
                now = self.incarnation.read_value()
                mine = tf.gather(self.joined, self.me)
                done = []
                yield tf.logical_and(tf.equal(mine, now), now > 0), done
            with tf.control_dependencies(done):
                self.unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    @staticmethod
    def row(**entries):
        """Returns a row of the books, int64, with these entries and zeros."""
        return tf.stack([tf.cast(entries.get(name, 0), tf.int64) for name in COLUMNS])

    def write(self, row, mark, applied, staleness):
        """Returns the operations that add to this worker's row, inside `locked`.

        `row` is added where `mark` holds; time and staleness are noted if `applied`.
        """
        now = tf.timestamp()
        most = tf.stack([-now, now, tf.cast(staleness, tf.float64)])
        least = tf.constant([LEAST, LEAST, 0.0], tf.float64)
        return [
            tf.raw_ops.ResourceScatterAdd(
                resource=self.table.handle,
                indices=self.me,
                updates=row * tf.cast(mark, tf.int64),
            ),
            tf.raw_ops.ResourceScatterMax(
                resource=self.extremes.handle,
                indices=self.me,
                updates=tf.where(applied, most, least),
            ),
        ]

    def entry(self, number, staleness, applied, what):
        """Returns the Entry of a push, all of it after the lock is given back."""
        with tf.device(self.device), tf.control_dependencies([self.unlocked]):
            packed = tf.stack([number + 1, staleness, tf.cast(what, tf.int64)])
            # What waits for the answer comes after the count: update and next pull.
            applied = tf.identity(applied)
        return Entry(number, staleness, applied, packed)

    def enter(self, pushed, examples, pulled, seen=None):
        """Numbers an update that is applied as it comes; returns its Entry.

        `pushed` are the pieces that arrived on the ps, `pulled` what this worker got,
        `examples` how many it went through; `seen` the count of updates at its pull.
        """
        after = [pushed[0]] if seen is None else [pushed[0], seen]
        with self.locked(after) as (joined, done):
            number = self.step.read_value()
            applied = tf.logical_and(joined, number < self.steps)
            # staleness := updates applied between pull and push
            staleness = tf.zeros_like(number) if seen is None else number - seen
            row = self.row(
                updates=1,
                rounds=1,
                staleness=staleness,
                examples=examples,
                pushed=size(*pushed),
                pulled=size(pulled),
            )
            done += self.write(row, applied, applied, staleness)
            one = tf.cast(applied, tf.int64)
            done.append(self.step.assign_add(one, read_value=False))
            what = tf.where(applied, APPLIED, tf.where(joined, OVER, STRANGER))
        return self.entry(number, staleness, applied, what)


def account(now, begun):
    """Returns the books as a dict for result.json.

    `now` and `begun` are what `Books.all` was at the end and when the incarnation that
    ended well began: rates are of that one, all else since global step 0.
    """
    table, extremes, step = now
    sums = dict(zip(COLUMNS, table.sum(axis=0).tolist(), strict=True))
    rounds = table[:, COLUMNS.index("rounds")]
    first, last = -extremes[:, 0], extremes[:, 1]
    there = last > 0  # who made an update in this incarnation
    seconds = max(last.max() - first[there].min(), 1e-6) if there.any() else 0.0
    late = first[there].max() - first[there].min() if there.any() else 0.0
    return {
        "global_steps": int(step),
        "resumed_from": int(begun[2]),
        "examples": sums["examples"],
        "seconds": seconds,
        "seconds_to_all_started": late,
        "examples_per_second": _rate(
            sums["examples"] - begun[0][:, COLUMNS.index("examples")].sum(), seconds
        ),
        "steps_per_second": _rate(step - begun[2], seconds),
        "rounds_per_worker": dict(enumerate(rounds.tolist())),
        "gradients_dropped": sums["dropped"],
        "bytes_pushed": sums["pushed"],
        "bytes_pulled": sums["pulled"],
        "mean_staleness": sums["staleness"] / max(1, sums["updates"]),
        "max_staleness": int(extremes[:, 2].max()),
    }


def _rate(count, seconds):
    return float(count) / seconds if seconds else 0.0


def entry_of_one_process(step):
    """Returns the Entry of an update after which the global step is `step`."""
    packed = tf.stack([step, tf.zeros_like(step), tf.ones_like(step) * APPLIED])
    return Entry(step - 1, tf.zeros_like(step), tf.constant(True), packed)


def of_one_process(step, begun, times, batch_size):
    """Returns what `account` does for a process without ps.

    `times` are those of the first and the last update, in seconds.
    """
    seconds = max(times[1] - times[0], 1e-6)
    rate = (step - begun) / seconds
    return {
        "global_steps": step,
        "resumed_from": begun,
        "examples": step * batch_size,
        "seconds": seconds,
        "seconds_to_all_started": 0.0,
        "examples_per_second": rate * batch_size,
        "steps_per_second": rate,
        "rounds_per_worker": {0: step},
        "gradients_dropped": 0,
        "bytes_pushed": 0,
        "bytes_pulled": 0,
        "mean_staleness": 0.0,
        "max_staleness": 0,
    }
