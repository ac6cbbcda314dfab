"""Starts the script of an example as the tasks of a barrier stage.

    spark-submit --master spark://host:7077 --py-files ../tasks.py,adapter.py \\
        barrier.py --num_ps 1 --num_workers 2 HogWild/hogwild.py --logdir /shared/run

Spark decides on which machine a task is, and starts all tasks at once or none. The
tasks tell each other their addresses. The ps come first. Arguments after the script's
name go to the script.
"""

import argparse
import re
import sys

import adapter
import driver
import tasks
from pyspark import SparkConf
from pyspark.sql import SparkSession


def parse_args(argv=None):
    """Returns the flags; `options` are the script's own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num_ps", type=int, default=1, help="tasks that hold the parameters")
    add("--num_workers", type=int, default=2, help="tasks that compute")
    add("--max_restarts", type=int, default=0, help="of all tasks, when one dies")
    add("--python", default=sys.executable, help="the script's, with TensorFlow")
    add("--wait", type=int, default=60, help="seconds for the executors to come")
    add("script", help="of an example; a path on the executors, or in an --archives")
    add("options", nargs=argparse.REMAINDER, help="the script's own")
    args = parser.parse_args(argv)
    if args.num_ps < 0 or args.num_workers < 1 or args.max_restarts < 0:
        parser.error("--num_workers must be 1 or more, the other counts 0 or more")
    return args


def main():
    args = parse_args()
    status, sentence = tasks.check(
        args.python, args.script, args.options, args.num_ps, args.num_workers
    )
    if status:
        tasks.fail(sentence, status)
    count = args.num_ps + args.num_workers
    starts = 1 + args.max_restarts
    conf = SparkConf().set("spark.stage.maxConsecutiveAttempts", starts)
    conf.set("spark.task.maxFailures", starts)  # of local mode: local[slots, starts]
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    context = spark.sparkContext
    driver.wait_for_slots(context, count, args.wait)

    given = args.num_ps, args.python, args.script, args.options

    def action(final):
        def task(_):
            try:
                adapter.run_task_of_stage(*given)
            except tasks.Again as ended:
                raise RuntimeError(ended.sentence) from None
            except tasks.Ended as ended:  # returns, or Spark would start it again
                final.add([(ended.status, ended.sentence)])
            return []

        stage = context.parallelize(range(count), count).barrier()
        # Spark starts a barrier stage again only if a shuffle comes behind it.
        stage.mapPartitions(task).repartition(1).count()

    job = driver.Job(context, action)
    for status, sentence in job.news():
        job.cancel()  # the others would wait for this one
        tasks.fail(sentence, status)
    if job.error:
        said = re.findall(r"RuntimeError: (.* with status (\d+).*)", str(job.error))
        sentence, status = said[-1] if said else (driver.first_line(job.error), 1)
        tasks.fail(sentence, int(status))
    spark.stop()


if __name__ == "__main__":
    main()
