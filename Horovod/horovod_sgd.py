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

from cluster import contract, flags, rounds, task, training
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
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

    def __init__(self, loss, train):
        self.fetches, self.begun = (loss, train), False

    def make(self, session, left, report):
        """Makes updates, and returns how many are left; see rounds.Calls.

        All workers make equally many, so that all see a loss that diverged. The first
        time it is one, so that the clock of a rate starts there.
        """
        first, losses = report.args.steps - left + 1, []
        for _ in range(min(CALLS if self.begun else 1, left)):
            losses.append(session.run(self.fetches)[0])
        self.begun = True
        losses = np.array(losses)
        counts = [[first + i, 0, rounds.APPLIED] for i in range(len(losses))]
        left = rounds.updates_left(losses, np.array(counts), report.args)
        report.rounds(losses, np.array(counts))
        return left


class Training(training.Training):
    """A worker's part. Horovod: one saves and writes, or all would write the same."""

    def __init__(self, broadcast, sent, *everything):
        """`sent` are the bytes that all workers send for one update."""
        super().__init__(*everything)
        self.broadcast, self.sent = broadcast, sent

    def restore(self, session):
        """Chief: restores the last checkpoint. All begin with what the chief has."""
        if self.chief:
            super().restore(session)
        else:
            session.run(self.initializer)
        session.run(self.broadcast)
        return int(session.run(self.global_step))

    def save_and_write(self, session):
        """Chief: saves, and writes the result; all have the same weights."""
        if self.chief:
            super().save_and_write(session)

    def summary(self, session):
        """Returns what one process says, with the work of the others."""
        found, workers = super().summary(session), len(self.args.worker_hosts)
        steps = found["global_steps"]
        found["rounds_per_worker"] = dict.fromkeys(range(workers), steps)
        found["bytes_pushed"] = found["bytes_pulled"] = self.sent * steps
        for name in ("examples", "examples_per_second"):
            found[name] *= workers
        return found


# --- Workers -----------------------------------------------------------------


def main():
    args = flags.parse(flags.parser("Horovod", __doc__))
    me = args.task_index = int(os.environ.get("HOROVOD_RANK", 0))
    task.begin(args, problem)

    # Horovod: horovodrun has put into the environment who this is and where all are.
    import horovod.tensorflow as hvd

    hvd.init()
    workers = hvd.size()
    args.worker_hosts = [f"rank {k}" for k in range(workers)]  # for result.json

    # Horovod: worker k of N has every N-th row, from row k on.
    data = task.data(problem, args)
    learning = contract.build(problem, data, args, me, workers)
    layers = [
        tf.get_variable(f"layer_{i}", initializer=piece)
        for i, piece in enumerate(
            problem.parameters(learning.start, problem.shapes_of(data))
        )
    ]
    w = tf.concat([tf.reshape(layer, [-1]) for layer in layers], axis=0)
    loss = learning.loss(w, learning.batch())
    tf.train.get_or_create_global_step()
    train, broadcast = updates(args, hvd, layers, loss)

    calls, test = Calls(loss, train), learning.test(w)
    sent = 2 * (workers - 1) * 4 * w.shape.num_elements()
    around = Training(broadcast, sent, args, learning, calls, test)
    with around, tf.train.MonitoredSession(session_creator=around) as session:
        while not around.over:
            session.run_step_fn(around.step)


if __name__ == "__main__":
    task.run(main)
