"""What the tasks of a run agree on, in variables on the ps. `protocol` calls it.

In a run without ps they are on the chief, and `meeting` calls it.

A run has incarnations: the first start, and one after each restore. What lives on the
ps beside the model is `temporary`: it belongs to an incarnation. The chief closes the
old one before it restores, and opens the next one when all is in place; a worker joins
after that. A push of a worker that has not joined is not applied.
"""

import math

from cluster import addresses
from cluster import tensorflow_v1 as tf


def temporary(name, initial, shape=None):
    """Returns a variable, where it is built, that an incarnation begins with `initial`.

    It is neither trained nor saved.
    """
    return tf.Variable(
        initial,
        shape=shape,
        trainable=False,
        name=name,
        use_resource=True,
        collections=["incarnation"],
    )


def beats(task, workers):
    """Returns the variable on a task with each worker's last sign of life [workers].

    The task is (job, index). It is a time in seconds, float64, by the clock there.
    """
    job, index = task
    name = f"beats_{index}" if job == "ps" else f"beats_{job}_{index}"
    with tf.device(addresses.device(task)):
        return temporary(name, tf.zeros([workers], tf.float64))


def silence(variable):
    """Returns for how many seconds a ps has not heard of each worker, float64."""
    with tf.device(variable.device):
        return tf.timestamp() - variable.read_value()


class Incarnation:
    """The number of the incarnation, who has joined it, and what all must agree on.

    A second one, in a graph of its own, is the same variables: names are what counts.
    """

    def __init__(self, args):
        self.me, self.workers = args.task_index, addresses.clients(args)
        tasks = list(addresses.serving(args))
        self.device = addresses.device(tasks[0])
        none = tf.fill([self.workers], "")
        with tf.device(self.device):
            self.number = temporary("incarnation", tf.zeros([], tf.int64))  # 0: closed
            self.joined = temporary("joined", tf.zeros([self.workers], tf.int64))
            self.owners = temporary("owners", none)  # the process behind a worker
            self.fingerprint = temporary("fingerprint", tf.constant(""))
            # The mean training loss of each worker, NaN until it has handed that in.
            nothing = tf.fill([self.workers], tf.constant(math.nan, tf.float64))
            self.reports = temporary("reports", nothing)
            self.reason = temporary("reason", tf.constant(""))  # why the run failed
        self.beats = [beats(task, self.workers) for task in tasks]
        # Operations of the scheme: of the chief, of a worker that joins, now and then.
        self.on_open, self.on_join, self.on_beat = [], [], []
        # After a beat: (tensors, function of their values: why it cannot go on, or "").
        self.judges = []

    def close(self):
        """Chief: returns the operation that ends an incarnation, on every ps."""
        return tf.group(
            [variable.initializer for variable in tf.get_collection("incarnation")]
        )

    def open(self, fingerprint, ready):
        """Chief: returns the operation that begins one, after those in `ready`."""
        with tf.device(self.device), tf.control_dependencies(ready):
            said = self.fingerprint.assign(fingerprint, read_value=False)
            with tf.control_dependencies([said]):
                number = tf.cast(1e6 * tf.timestamp(), tf.int64)
                return self.number.assign(number, read_value=False)

    def returned(self):
        """Chief: (is it there, what makes it) for the beats of each serving worker.

        One that came back has lost nothing else. A ps has lost its part of the model.
        """
        beats = [b for b in self.beats if "job:worker" in b.device]
        return [(b.is_initialized(), b.initializer) for b in beats]

    def join(self, name):
        """Returns the operations by which this worker takes part in an incarnation.

        `name` is what this process is called, among all that ever were this worker.
        """
        with tf.device(self.device):
            joined = self.joined[self.me].assign(self.number.read_value())
            owner = self.owners[self.me].assign(name)
            # It lives from now on: not dead until its heart's first beat.
            return [joined.op, owner.op, *self.beat(), *self.on_join]

    def has_joined(self):
        """Returns whether this worker's pushes count, bool on ps 0."""
        number = self.number.read_value()
        return tf.equal(tf.gather(self.joined, self.me), number) & (number > 0)

    def beat(self):
        """Returns an operation for each ps: this worker lives."""
        operations = []
        for beats in self.beats:
            with tf.device(beats.device):
                operations.append(
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=beats.handle, indices=self.me, updates=tf.timestamp()
                    )
                )
        return operations
