"""When a run ends: after so many updates or epochs, or early. The script calls it."""

import contextlib

from cluster import stats
from cluster import tensorflow_v1 as tf
from cluster.task import fail
from records import count


def check(args):
    """Returns args, --replicas_to_aggregate set; ends the program if that is wrong."""
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    return args


def steps_of(args, index):
    """Returns the updates that --epochs over the training images take."""
    examples = count(index.splits["train"])
    each = args.replicas_to_aggregate if args.issync else 1
    return max(1, round(args.epochs * examples / (args.batch_size * each)))


class Stats(stats.Stats):
    """Stats with a limit of steps that the chief can lower: a number on ps 0.

    ps 0 compares each push with it under the lock, so that the count stays exact.
    """

    held = None  # the Locked while something is built inside `locked`

    def __init__(self, args):
        super().__init__(args)
        with tf.device(self.device):
            first = tf.constant(args.steps, tf.int64)
            self.limit = self.temporary("limit", first)
            self.now = self.limit.read_value()
            column = self.all[0][:, stats.COUNTERS.index("examples")]
            # Without a checkpoint the counters have no rows yet.
            column = tf.concat([column, tf.zeros([self.workers], tf.int64)], axis=0)
            self.position = column[self.me]  # examples of this worker that counted
        with self.locked([]) as held:
            # The step that is open may have gradients of others, who wait for its end.
            last = tf.minimum(held.read(self.limit), held.read(self.step) + 1)
            held.done.append(self.limit.assign(last, read_value=False))
        self.stop = self.unlocked

    @contextlib.contextmanager
    def locked(self, after):
        with super().locked(after) as self.held:
            yield self.held
        self.held = None

    @property
    def steps(self):
        """The number of updates after which none is applied, as ps 0 has it now.

        Read under the lock by what is built inside `locked`.
        """
        return self.held.read(self.limit) if self.held else self.limit.read_value()

    @steps.setter
    def steps(self, _):
        pass  # it is in `limit`
