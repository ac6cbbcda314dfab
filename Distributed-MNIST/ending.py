"""When a run ends: after so many updates or epochs, or early. The script calls it."""

import pipeline
from cluster import books, exits, rows, watch
from cluster import tensorflow_v1 as tf
from records import count


def check(args):
    """Returns args, --replicas_to_aggregate set; ends the program if that is wrong."""
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        exits.fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    return args


def steps_of(args, index):
    """Returns the updates that --epochs over the training images take."""
    examples = count(index.splits["train"])
    each = args.replicas_to_aggregate if args.issync else 1
    return max(1, round(args.epochs * examples / (args.batch_size * each)))


class Books(books.Books):
    """Books whose last update the chief can move forward: a number on ps 0.

    ps 0 compares each push with it under the lock, so that the count stays exact.
    """

    def __init__(self, args):
        self.args = args
        super().__init__(args)
        with tf.device(self.device):
            first = tf.constant(args.steps, tf.int64)
            self.limit = self.temporary("limit", first)
            self.now = self.limit.read_value()
            column = self.table.read_value()[:, rows.COLUMNS.index("examples")]
            # Without a checkpoint the books have no rows yet.
            column = tf.concat([column, tf.zeros([self.workers], tf.int64)], axis=0)
            self.position = column[self.me]  # examples of this worker that counted
        with self.locked([]) as (_, done):
            # The step that is open may have gradients of others, who wait for its end.
            last = tf.minimum(self.limit.read_value(), self.step.read_value() + 1)
            done.append(self.limit.assign(last, read_value=False))
        self.stop = self.unlocked

    @property
    def steps(self):
        """The number of updates after which none is applied, as ps 0 has it now."""
        return self.limit.read_value()

    @steps.setter
    def steps(self, _):
        pass  # it is in `limit`

    def look(self, session, notes):
        """Takes over the limit as ps 0 has it, if there is an answer."""
        pipeline.check(notes.lost)
        try:
            self.args.steps = int(session.run(self.now))
        except watch.lost() as error:
            notes.lost = error
