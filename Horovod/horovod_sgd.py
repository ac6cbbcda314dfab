"""Horovod: the same learning with Horovod's optimizer, started by its horovodrun.

    worker  holds a copy of the layers w, as all workers do; Horovod calls it a rank

        g_k := ∇ loss(w; mini-batch of worker k)      (worker)
        mean := (1/N) ∑ g_k                           (Horovod, around a ring)
        w ← w − η mean                                (worker, the same on every one)

The update is that of Ring-All-Reduce. The comments "Horovod:" below mark what a user
adds to a script for one process.
Paper: Sergeev, Del Balso, Horovod, 2018, arXiv 1802.05799.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import os

import numpy as np

from cluster import flags, rounds, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.training import Training
import contract
import problem

CALLS = 10  # updates in a row, before a look at log, curves and checkpoint

# --- Graph -------------------------------------------------------------------


def updates(args, hvd, layers, loss):
    """Returns the operation that makes an update, and the one before the first update.

    `layers` are the variables, and `loss` [] is of this worker's next mini-batch.
    """
    optimizer = tf.train.GradientDescentOptimizer(args.learning_rate)

    # Horovod: (1/N) ∑ g_k in place of g_k, for each layer as soon as it is there.
    optimizer = hvd.DistributedOptimizer(optimizer)

    # w ← w − η mean
    train = optimizer.minimize(loss, tf.train.get_global_step(), layers)

    # Horovod: all begin with what rank 0 has, which may come from a checkpoint.
    return train, hvd.broadcast_global_variables(0)


# --- Training ----------------------------------------------------------------


class Calls:
    """Updates in a row; each of them is made by all workers together."""

    def __init__(self, args, loss, train):
        self.steps, self.fetches, self.begun = args.steps, (loss, train), False

    def make(self, session, left):
        """Makes updates; returns losses [n] and counts [n, 3] as rounds.Calls does.

        All workers make equally many, so that all see a loss that diverged. The first
        time it is one, so that the clock of a rate starts there.
        """
        first, losses = self.steps - left + 1, []
        for _ in range(min(CALLS if self.begun else 1, left)):
            losses.append(session.run(self.fetches)[0])
        self.begun = True
        counts = [[first + i, 0, rounds.APPLIED] for i in range(len(losses))]
        return np.array(losses), np.array(counts)


# --- Workers -----------------------------------------------------------------


def main():
    args = flags.parse(flags.parser("Horovod", __doc__))
    # Horovod: horovodrun has put into the environment who this is and where all are.
    me = args.task_index = int(os.environ.get("HOROVOD_RANK", 0))
    workers = int(os.environ.get("HOROVOD_SIZE", 1))
    args.worker_hosts = [f"rank {k}" for k in range(workers)]  # for result.json
    data = task.begin(args, problem)

    import horovod.tensorflow as hvd

    hvd.init()

    # Horovod: worker k of N has every N-th row, from row k on.
    learning = contract.build(problem, data, args, me, workers)
    layers = [
        tf.get_variable(f"layer_{i}", initializer=piece)
        for i, piece in enumerate(
            problem.parameters(learning.start, problem.shapes_of(data))
        )
    ]
    w = tf.concat([tf.reshape(layer, [-1]) for layer in layers], axis=0)
    loss = learning.loss(w, learning.batch())
    global_step = tf.train.get_or_create_global_step()
    train, broadcast = updates(args, hvd, layers, loss)

    calls = Calls(args, loss, train)
    # Horovod: worker 0 saves and writes, or all would write the same.
    training = Training(args, learning, calls, learning.test(w))
    with training:
        training.session.run(broadcast)
        training.left = args.steps - int(training.session.run(global_step))
        while training.left > 0:
            try:
                losses, counts = calls.make(training.session, training.left)
            except tf.errors.OpError as error:  # a rank is lost: none can go on
                task.fail(task.first_line(error), task.AGAIN)
            training.log(losses, counts)  # a line, a checkpoint, when they are due
        sent = 2 * (workers - 1) * 4 * w.shape.num_elements() * args.steps
        training.extra = {"bytes_pushed": sent, "bytes_pulled": sent}
        training.end()


if __name__ == "__main__":
    task.run(main)
