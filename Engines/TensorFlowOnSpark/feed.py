"""Trains on what Spark feeds, InputMode.SPARK, and measures what the feeding costs.

    spark-submit ... --py-files ../tasks.py,../Spark/driver.py feed.py --num_ps 1 \\
        --num_workers 2 --logdir /shared/run ../../HogWild --steps 200

One loop, one model, three ways in which a worker comes by the same mini-batches:

    memory           an array in the worker's own process, as the examples have it
    spark, 1 a row   rows of an RDD, an example each: TFNode.DataFeed's usual way
    spark, B a row   rows that hold a whole mini-batch

Every row of the RDD goes through a queue of another process (multiprocessing's manager)
on the executor, put and taken one by one. The folder's problem.py is the model.
"""

import argparse
import json
import logging
import os
import sys
import time

import driver
import numpy as np
import tasks
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster

RATE = 0.1  # η


def parse_args(argv=None):
    """Returns the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num_ps", type=int, default=1, help="executors that hold the parameters")
    add("--num_workers", type=int, default=2, help="executors that compute")
    add("--wait", type=int, default=60, help="seconds for the executors to come")
    add("--logdir", required=True, help="for result.json; all executors see it")
    add("folder", help="of an example, for its problem.py")
    add("--data", default="digits", help="digits, mnist, fashion_mnist or FILE.npz")
    add("--batch_size", type=int, default=32, help="examples per worker")
    add("--steps", type=int, default=1000, help="of all workers, in each of three ways")
    args = parser.parse_args(argv)
    if min(args.num_ps, args.num_workers, args.batch_size, args.steps) < 1:
        tasks.fail("counts must be 1 or more")
    return args


def problem_of(folder):
    """Returns the module problem.py of an example's folder."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import problem

    return problem


# --- On the executors ---------------------------------------------------------


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
    rates = {}
    feed = context.get_data_feed()
    with session:
        for way, batches in (
            ("memory", from_memory(data, args, me)),
            ("spark, 1 a row", from_spark(feed, args)),
            (f"spark, {args.batch_size} a row", from_spark(feed, args)),
        ):
            made = began = 0
            for x, y in batches:
                value, _ = session.run([loss, step], {images: x, labels: y})
                began = began or time.monotonic()  # the first one waits for Spark
                made += 1
            seconds = time.monotonic() - began
            rates[way] = (made - 1) * args.batch_size / seconds
            print(f"[worker {me}] {way}: {rates[way]:.0f} examples/s, loss {value:.4f}")
    with open(os.path.join(args.logdir, f"feed-{me}.json"), "w") as file:
        json.dump(rates, file)


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


def steps_of_each(args):
    """Returns how many mini-batches a worker gets in each way."""
    return max(2, args.steps // args.num_workers)


# --- In the driver ------------------------------------------------------------


def rows(data, args, per_row):
    """Returns a partition of rows for each worker: (x [per_row, features], y)."""
    count = steps_of_each(args) * args.batch_size
    for me in range(args.num_workers):
        x, y = (
            data.x_train[me :: args.num_workers],
            data.y_train[me :: args.num_workers],
        )
        now = np.arange(count).reshape(-1, per_row) % len(x)
        yield [(x[k], y[k]) for k in now]


def main():
    args = parse_args()
    args.folder, args.logdir = map(os.path.abspath, (args.folder, args.logdir))
    try:
        data = problem_of(args.folder).load(args.data, args.num_workers)
    except (ImportError, ValueError) as error:
        tasks.fail(f"--data {args.data}: {error}")
    logging.getLogger().setLevel(logging.ERROR)  # TensorFlowOnSpark turns INFO on
    context = SparkSession.builder.getOrCreate().sparkContext
    count = args.num_ps + args.num_workers
    driver.wait_for_slots(context, count, args.wait)
    cluster = TFCluster.run(
        context,
        train,
        args,
        num_executors=count,
        num_ps=args.num_ps,
        input_mode=TFCluster.InputMode.SPARK,
        release_port=False,
    )
    for per_row in (1, args.batch_size):
        parts = list(rows(data, args, per_row))
        fed = context.parallelize(parts, len(parts)).flatMap(lambda part: part)
        cluster.train(fed, num_epochs=1)
    cluster.shutdown(grace_secs=2)
    total = {}
    for me in range(args.num_workers):
        with open(os.path.join(args.logdir, f"feed-{me}.json")) as file:
            for way, rate in json.load(file).items():
                total[way] = total.get(way, 0) + rate
    with open(os.path.join(args.logdir, "result.json"), "w") as file:
        json.dump({"examples_per_second": total, "flags": vars(args)}, file, indent=2)
    for way, rate in total.items():
        print(f"{way:20} {rate:8.0f} examples/s, all workers")


if __name__ == "__main__":
    main()
