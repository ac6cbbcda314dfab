"""When a run ends: after so many updates or epochs, or early. The script calls it."""

from cluster import flags, stats
from cluster import tensorflow_v1 as tf
from cluster.task import fail
from records import count


def check(args):
    """Returns args, --replicas_to_aggregate set; ends the program if that is wrong."""
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    try:
        args.export = args.export and flags.directory(args.export, "--export")
    except ValueError as error:
        fail(str(error))
    return args


def steps_of(args, index):
    """Returns the updates that --epochs over the training images take."""
    examples = count(index.splits["train"])
    each = args.replicas_to_aggregate if args.issync else 1
    return max(1, round(args.epochs * examples / (args.batch_size * each)))


class Stats(stats.Stats):
    """Stats that also say how far this worker is in its images."""

    def __init__(self, args):
        super().__init__(args)
        with tf.device(self.device):
            self.now = self.limit.read_value()
            column = self.all[0][:, stats.COUNTERS.index("examples")]
            # Without a checkpoint the counters have no rows yet.
            column = tf.concat([column, tf.zeros([self.workers], tf.int64)], axis=0)
            self.position = column[self.me]  # examples of this worker that counted
