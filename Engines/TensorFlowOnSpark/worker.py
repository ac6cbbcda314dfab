"""What feed.py has each executor do: serve as a ps, or make the steps of a worker.

TensorFlowOnSpark calls `train` in a process of its own. The model is problem.py of the
example's folder.
"""

import importlib
import json
import pathlib
import sys
import time

import numpy as np
import tasks

RATE = 0.1  # η


def problem_of(folder):
    """Returns the module problem.py of an example's folder."""
    sys.path.insert(0, folder)
    return importlib.import_module("problem")


def train(args, context):
    """ps: serves. worker: makes its steps in all three ways and writes its rates."""
    tasks.end_with_parent()  # a process that Spark does not know
    problem = problem_of(args.folder)
    from cluster import tensorflow_v1 as tf

    # context.start_cluster_server() raises with TensorFlow 2, so it is done by hand.
    spec = tf.train.ClusterSpec(context.cluster_spec)
    me = context.task_index
    context.release_port()
    server = tf.train.Server(spec, job_name=context.job_name, task_index=me)
    if context.job_name == "ps":
        return server.join()  # until TensorFlowOnSpark ends this process

    data = problem.load(args.data, args.num_workers)
    device = f"/job:worker/task:{me}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=device)):
        shapes = problem.shapes_of(data)
        center = tf.get_variable("center", initializer=problem.initial(shapes, 0))
        images = tf.placeholder(tf.float32, [None, data.x_train.shape[1]])
        labels = tf.placeholder(tf.int32, [None])
        loss = problem.loss(center.read_value(), (images, labels), shapes)
        # w ← w − η ∇ loss(w; mini-batch)   (ps)
        (gradient,) = tf.gradients(loss, center)
        step = center.assign_sub(RATE * gradient, read_value=False)
        ready = tf.report_uninitialized_variables()
        start = tf.global_variables_initializer()

    manager = tf.train.SessionManager(ready_op=ready, recovery_wait_secs=1)
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    if me == 0:
        session = manager.prepare_session(server.target, start, config=config)
    else:
        session = manager.wait_for_session(server.target, config)
    measured = {}
    feed = context.get_data_feed()
    with session:
        for way, batches in (
            ("memory", from_memory(data, args, me)),
            ("spark, 1 a row", from_spark(feed, args)),
            (f"spark, {args.batch_size} a row", from_spark(feed, args)),
            ("memory, again", from_memory(data, args, me)),
        ):
            times = []
            for x, y in batches:
                value, _ = session.run([loss, step], {images: x, labels: y})
                times.append(time.monotonic())
            # From the end of the first step, which has waited for Spark.
            rate = (len(times) - 1) * args.batch_size / (times[-1] - times[0])
            measured[way] = rate
            file_of(args, me).write_text(json.dumps(measured))
            print(f"[worker {me}] {way}: {rate:.0f} examples/s, loss {value:.4f}")


def from_memory(data, args, me):
    """Yields this worker's mini-batches, from an array of its own process."""
    x, y = shard(data, args, me)
    rows = np.arange(args.batch_size)
    for k in range(steps_of_each(args)):
        now = (rows + k * args.batch_size) % len(x)
        yield x[now], y[now]


def from_spark(feed, args):
    """Yields as many mini-batches, from the rows that come through the queue."""
    for _ in range(steps_of_each(args)):
        taken = []
        while sum(len(y) for _, y in taken) < args.batch_size:
            taken += feed.next_batch(1)
        xs, ys = zip(*taken, strict=True)
        yield np.concatenate(xs), np.concatenate(ys)


def shard(data, args, me):
    """Returns images and labels of one worker: rows k, k + N, k + 2 N ..."""
    return data.x_train[me :: args.num_workers], data.y_train[me :: args.num_workers]


def file_of(args, me):
    """Returns where a worker leaves its rates."""
    return pathlib.Path(args.logdir, f"feed-{me}.json")


def steps_of_each(args):
    """Returns how many mini-batches a worker gets in each way."""
    return max(2, args.steps // args.num_workers)
