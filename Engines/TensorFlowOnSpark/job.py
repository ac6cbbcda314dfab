"""Starts the script of an example with TensorFlowOnSpark, InputMode.TENSORFLOW.

    spark-submit --master spark://host:7077 --conf spark.executor.cores=1 \\
        --conf spark.cores.max=3 --conf spark.dynamicAllocation.enabled=false \\
        --py-files ../tasks.py,../Spark/driver.py,adapter.py job.py \\
        --num_ps 1 --num_workers 2 HogWild/hogwild.py --logdir /shared/run

TensorFlowOnSpark needs an executor with one slot for each task, and decides which task
each executor is. The script reads its data itself. Arguments after its name go to it.
"""

import argparse
import logging
import re
import sys

import adapter
import driver
import tasks
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster


def parse_args(argv=None):
    """Returns the flags; `options` are the script's own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num_ps", type=int, default=1, help="executors that hold the parameters")
    add("--num_workers", type=int, default=2, help="executors that compute")
    add("--python", default=sys.executable, help="the script's, with TensorFlow")
    add("--wait", type=int, default=60, help="seconds for the executors to come")
    add("script", help="of an example; a path on the executors")
    add("options", nargs=argparse.REMAINDER, help="the script's own")
    args = parser.parse_args(argv)
    if args.num_ps < 0 or args.num_workers < 1:
        parser.error("--num_ps must be 0 or more, --num_workers 1 or more")
    return args


def main():
    args = parse_args()
    status, sentence = tasks.check(
        args.python, args.script, args.options, args.num_ps, args.num_workers
    )
    if status:
        tasks.fail(sentence, status)
    # It turns INFO on, and of a task that fails it logs the whole of Java's trace.
    logging.getLogger().setLevel(logging.CRITICAL)
    context = SparkSession.builder.getOrCreate().sparkContext
    count = args.num_ps + args.num_workers
    driver.wait_for_slots(context, count, args.wait)
    try:
        cluster = TFCluster.run(
            context,
            adapter.map_fun,
            [args.python, args.script, *args.options],
            num_executors=count,
            num_ps=args.num_ps,
            input_mode=TFCluster.InputMode.TENSORFLOW,
            master_node="chief",
            release_port=False,
        )
        cluster.shutdown()
    except (Exception, SystemExit):  # its own way to say that a task has failed
        if "error" not in TFCluster.tf_status:
            raise
    error = TFCluster.tf_status.get("error")
    if error:
        said = re.findall(r"\('(\w+ \d+ ended with status (\d+).*?)', \d+\)", error)
        sentence, status = said[-1] if said else (error.splitlines()[0], 1)
        tasks.fail(sentence, int(status))


if __name__ == "__main__":
    main()
