"""What TensorFlowOnSpark calls on each executor: it starts the script of an example.

job.py sends it to the executors, with ../tasks.py.
"""

import tasks


def map_fun(command, context):
    """Runs the script with the TF_CONFIG that TensorFlowOnSpark has made.

    It makes one if the cluster has a chief: job.py calls it with master_node="chief".
    `context` is a TFNodeContext; with release_port=False it holds this task's port
    until it is told that the script comes now. Raises tasks.Ended or tasks.Again if
    the script ends with a status other than 0.
    """
    tasks.end_with_parent()  # a ps is in a process that Spark does not know
    index = context.task_index + (context.job_name == "worker")  # behind the chief
    name = f"{'ps' if context.job_name == 'ps' else 'worker'} {index}"
    context.release_port()
    tasks.run_task(name, command)
