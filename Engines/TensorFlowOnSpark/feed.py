"""Trains on what Spark feeds, InputMode.SPARK, and measures what the feeding costs.

    spark-submit ... --py-files ../tasks.py,../Spark/driver.py,worker.py feed.py \\
        --num_ps 1 --num_workers 2 --logdir /shared/run ../../HogWild --steps 200

The loop and the model are the same. A worker gets the same mini-batches in three ways:

    memory           an array in the worker's own process, as the examples have it
    spark, 1 a row   rows of an RDD, an example each: TFNode.DataFeed's usual way
    spark, B a row   rows that hold a whole mini-batch

Every row of the RDD goes through a queue in another process (multiprocessing's manager)
on the executor, one by one. The model is problem.py of the folder.
"""

import argparse
import json
import logging
import os
import pathlib
import time

import driver
import numpy as np
import tasks
import worker
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster

PATIENCE = 600  # seconds for the workers' first steps


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


def rows(data, args, per_row):
    """Returns a partition of rows for each worker: (x [per_row, features], y)."""
    count = worker.steps_of_each(args) * args.batch_size
    for me in range(args.num_workers):
        x, y = (
            data.x_train[me :: args.num_workers],
            data.y_train[me :: args.num_workers],
        )
        now = np.arange(count).reshape(-1, per_row) % len(x)
        yield [(x[k], y[k]) for k in now]


def rates(args):
    """Returns the rates of each worker that has measured any: examples/s by way."""
    files = [worker.file_of(args, me) for me in range(args.num_workers)]
    return [json.loads(path.read_text() or "{}") for path in files if path.exists()]


def wait_for_rates(args, ways):
    """Returns when every worker has measured so many ways."""
    until = time.monotonic() + PATIENCE
    while [len(each) >= ways for each in rates(args)] != [True] * args.num_workers:
        if time.monotonic() > until:
            tasks.fail(f"the workers have made no steps in {PATIENCE} s", 138)
        time.sleep(0.2)


def main():
    args = parse_args()
    args.folder, args.logdir = map(os.path.abspath, (args.folder, args.logdir))
    try:
        data = worker.problem_of(args.folder).load(args.data, args.num_workers)
    except (ImportError, ValueError) as error:
        tasks.fail(f"--data {args.data}: {error}")
    for me in range(args.num_workers):  # of an earlier run
        worker.file_of(args, me).unlink(missing_ok=True)
    logging.getLogger().setLevel(logging.ERROR)  # TensorFlowOnSpark turns INFO on
    context = SparkSession.builder.getOrCreate().sparkContext
    count = args.num_ps + args.num_workers
    driver.wait_for_slots(context, count, args.wait)
    cluster = TFCluster.run(
        context,
        worker.train,
        args,
        num_executors=count,
        num_ps=args.num_ps,
        input_mode=TFCluster.InputMode.SPARK,
        release_port=False,
    )
    try:
        # If Spark began earlier, its rows would be in the queue, and cost nothing.
        wait_for_rates(args, 1)
        for per_row in (1, args.batch_size):
            parts = list(rows(data, args, per_row))
            fed = context.parallelize(parts, len(parts)).flatMap(lambda part: part)
            cluster.train(fed, num_epochs=1)
        wait_for_rates(args, 4)  # or a worker is ended that still reads from memory
        cluster.shutdown(grace_secs=2)
    except Exception as error:  # Java's, with its whole trace
        tasks.fail(driver.first_line(error), 138)
    total = {}
    for each in rates(args):
        for way, rate in each.items():
            total[way] = total.get(way, 0) + rate
    result = json.dumps({"examples_per_second": total, "flags": vars(args)}, indent=2)
    pathlib.Path(args.logdir, "result.json").write_text(result)
    for way, rate in total.items():
        print(f"{way:20} {rate:8.0f} examples/s, all workers")


if __name__ == "__main__":
    main()
