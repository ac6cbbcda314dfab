"""The tasks of a barrier stage to TF_CONFIG, then the script of an example.

barrier.py sends it to the executors, with ../tasks.py.
"""

import os

import tasks
from pyspark import BarrierTaskContext, SparkFiles


def run_task_of_stage(num_ps, python, script, options):
    """Runs the script as the task that this process is; the first `num_ps` are ps.

    Each task tells all others where it serves: the name under which Spark knows its
    executor, and a port that it holds until all have one. Raises tasks.Ended or
    tasks.Again if the script ends with a status other than 0.
    """
    context = BarrierTaskContext.get()
    index = context.partitionId()
    host = context.getTaskInfos()[index].address.rpartition(":")[0]
    with tasks.held_port() as port:
        addresses = context.allGather(f"{host}:{port}")
    there = script if os.path.exists(script) else SparkFiles.get(script)
    tasks.run_task(
        tasks.name_of(index, num_ps),
        [python, there, *options],
        tasks.tf_config(addresses, num_ps, index),
    )
