"""multi_worker_mirrored: the same learning by MultiWorkerMirroredStrategy.

    worker k   holds a copy of w, computes g_k := ∇ loss(w; mini-batch of worker k)
    all        add up their gradients around the same ring; every copy takes the same
               step, w ← w − η (1/N) ∑ g_k

This uses the high-level API of TensorFlow 2, with a training loop of its own. The
strategy starts the server, keeps the copies and adds up. The weights are those of
Ring-All-Reduce. The strategy reads the list of workers from TF_CONFIG. If that is
missing, this script sets it from the flags.
Run: bash run.sh multi_worker_mirrored.py
"""

import json
import os
import time

from cluster import flags, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
import problem

CALL = 10  # steps of one call, as rounds.Calls has


def parse_args(argv=None):
    """Returns the checked flags, and leaves the cluster in TF_CONFIG."""
    parser = flags.parser("multi_worker_mirrored", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    args = flags.parse(parser, argv)
    config = {
        "cluster": {"worker": args.worker_hosts},
        "task": {"type": "worker", "index": args.task_index},
    }
    os.environ["TF_CONFIG"] = json.dumps(config)
    return args


def batches(data, batch_size, seed, worker, workers):
    """Returns the mini-batches of one worker, those of `problem.batches`, eagerly."""
    x, y = data.x_train[worker::workers], data.y_train[worker::workers]
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.shuffle(len(y), seed=seed + worker).repeat()
    dataset = dataset.batch(batch_size).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False  # see problem.py
    return dataset.with_options(options)


def strategy():
    """Returns the strategy, with TensorFlow's ring; it begins when all are there."""
    import tensorflow as tf2

    distribute = tf2.distribute.experimental
    ring = distribute.CommunicationImplementation.RING
    options = distribute.CommunicationOptions(implementation=ring)
    return tf2.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def training(args, mirrored, center, shapes, dataset):
    """Returns train(n), which makes n steps and returns the loss of the last one."""
    iterator = iter(mirrored.distribute_datasets_from_function(lambda _: dataset))

    def step(batch):
        # g_k := ∇ loss(w; mini-batch of worker k)
        with tf.GradientTape() as tape:
            value = problem.loss(center, batch, shapes)
        gradient = tape.gradient(value, center)
        # w ← w − η (1/N) ∑ g_k
        replica = tf.distribute.get_replica_context()
        mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
        center.assign_sub(args.learning_rate * mean)
        return value

    @tf.function
    def train(count):
        value = mirrored.run(step, [next(iterator)])
        for _ in tf.range(count - 1):
            value = mirrored.run(step, [next(iterator)])
        return value

    return train


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    data = task.begin(args, problem)
    tf.enable_eager_execution()
    mirrored = strategy()
    shapes = problem.shapes_of(data)
    with mirrored.scope():
        center = tf.Variable(problem.initial(shapes, args.seed))
    dataset = batches(data, args.batch_size, args.seed, me, workers)
    train = training(args, mirrored, center, shapes, dataset)
    made, began, every = 0, None, max(CALL, args.steps // 10)
    while made < args.steps:
        count = min(CALL, args.steps - made)
        value = train(tf.constant(count))
        if began is None:  # the first call has traced and placed the graph
            began, first = time.monotonic(), count
        if (made + count) // every > made // every:
            print(f"step {made + count}/{args.steps}  loss {float(value):.4f}")
        made += count
    seconds = max(time.monotonic() - began, 1e-6)
    w = tf.convert_to_tensor(center)
    accuracy = problem.accuracy(w, (data.x_test, data.y_test), shapes)
    print(
        f"test accuracy {float(accuracy):.4f} after {args.steps} steps in "
        f"{seconds:.1f} s ({(made - first) / seconds:.0f} steps/s)"
    )


if __name__ == "__main__":
    task.run(main)
