"""Horovod: the same learning with Horovod's optimizer, started by its horovodrun.

    worker  holds the layers w, as every other worker does; is called a rank here

        g_k := ∇ loss(w; mini-batch of worker k)      (worker)
        mean := (1/N) ∑ g_k                           (all: Horovod, around a ring)
        w ← w − η mean                                (worker, the same on every one)

The update is that of Ring-All-Reduce. What a user adds to a script of one process is
marked "Horovod:" below.
Paper: Sergeev, Del Balso, Horovod, 2018, arXiv 1802.05799.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import os

import numpy as np

import problem
from cluster import account, checkpoint, exits, flags, report, rows, start
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

CALLS = 100  # updates in a row, before hooks have a look: a checkpoint, Ctrl-C

# --- Graph -------------------------------------------------------------------


def training(args, hvd, layers, loss):
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


# --- Workers -----------------------------------------------------------------


def main():
    args = flags.parse(flags.parser("Horovod", __doc__))
    me = args.task_index = int(os.environ.get("HOROVOD_RANK", 0))
    start.begin(args, problem, name=f"worker-{me}")

    # Horovod: horovodrun has put into the environment who this is and where all are.
    import horovod.tensorflow as hvd

    hvd.init()
    workers, chief = hvd.size(), hvd.rank() == 0
    args.worker_hosts = [f"rank {k}" for k in range(workers)]  # for result.json

    # Horovod: worker k of N has every N-th row, from row k on.
    data = flags.data(problem, args, workers)
    learning = problem.build(data, args.batch_size, args.seed, me, workers)
    layers = [
        tf.get_variable(f"layer_{i}", initializer=piece)
        for i, piece in enumerate(
            problem.parameters(learning.start, problem.shapes_of(data))
        )
    ]
    w = tf.concat([tf.reshape(layer, [-1]) for layer in layers], axis=0)
    loss = learning.loss(w, learning.batch())
    step = tf.train.get_or_create_global_step()
    train, broadcast = training(args, hvd, layers, loss)
    notes = report.Report(args, learning.metric, learning.test(w))

    # Horovod: one worker saves, or all would write the same files.
    options = dict(
        scaffold=tf.train.Scaffold(
            local_init_op=learning.initializer,
            local_init_feed_dict=learning.feed,
            saver=checkpoint.saver(),
        ),
        checkpoint_dir=args.logdir if chief else None,
        save_checkpoint_secs=args.save_seconds,
        save_graph_def=False,
        log_step_count_steps=None,
    )
    with tf.train.MonitoredTrainingSession(**options) as session:

        def make_steps(step_context):
            first = args.steps - notes.left + 1
            for made in range(first, min(first + CALLS, args.steps + 1)):
                value, _ = step_context.session.run([loss, train])
                notes.rounds(np.array([value]), np.array([[made, 0, rows.APPLIED]]))

        session.run_step_fn(lambda step_context: step_context.session.run(broadcast))
        begun = notes.look(session.run(step))
        if begun and chief:
            print(f"resumes from global step {begun}")
        while notes.look(session.run(step)) < args.steps:
            session.run_step_fn(make_steps)
            notes.draw(session)

        # Horovod: all have the same weights, so that one tests them for all.
        if chief:
            batch = args.batch_size * workers
            kept = account.of_one_process(args.steps, begun, notes.times, batch)
            sent = 2 * (workers - 1) * 4 * w.shape.num_elements()  # an update, by all
            kept.update(
                rounds_per_worker=dict.fromkeys(range(workers), args.steps),
                bytes_pushed=sent * args.steps,
                bytes_pulled=sent * args.steps,
            )
            notes.write(session, kept)


if __name__ == "__main__":
    exits.run(main)
