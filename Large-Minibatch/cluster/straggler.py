"""--slow_workers: makes a worker a straggler, for experiments. Scripts call it.

In a program of your own delete it, and the one line that calls it.
"""

import time

from cluster import tensorflow_v1 as tf


def slowed(loss, args):
    """Returns `loss`, made slower by --slow_workers.

    The sleep is between pull and push, where a slow machine would spend its time.
    """
    seconds = args.slow_workers[args.task_index % len(args.slow_workers)]
    if not seconds:
        return loss

    def slow_loss(vector, batch):
        sleep = tf.py_func(lambda _: time.sleep(seconds), [vector[0]], [])
        with tf.control_dependencies([sleep]):
            return loss(tf.nest.map_structure(tf.identity, vector), batch)

    return slow_loss
