"""--slow_workers: machines of different speeds, simulated. An experiment: delete it."""

import time

from cluster import flags
from cluster import tensorflow_v1 as tf


def add_flag(parser):
    """Adds --slow_workers."""
    parser.add_argument(
        "--slow_workers",
        type=seconds,
        default=[0.0],
        help="extra seconds for each gradient, to simulate a slow machine:\none number "
        "for all workers, or one for each, as in 0,0.05",
    )


def seconds(text):
    """Flag type: seconds, separated by commas."""
    return [flags.not_negative(item) for item in text.split(",")]


def late(tensors, args, worker):
    """Returns the tensors, nested or not, by the extra seconds of a worker later."""
    wait = args.slow_workers[worker % len(args.slow_workers)]
    if not wait:
        return tensors
    first = tf.reshape(tf.nest.flatten(tensors)[0], [-1])[0]
    sleep = tf.py_func(lambda _: time.sleep(wait), [first], [])
    with tf.control_dependencies([sleep]):
        return tf.nest.map_structure(tf.identity, tensors)


def slowed(loss, args):
    """Returns `loss`, which this worker computes more slowly.

    The worker sleeps between pull and push, where a slow machine would spend its time.
    """
    return lambda vector, batch: loss(late(vector, args, args.task_index), batch)


def late_batches(batches, args):
    """Returns functions that draw a mini-batch, that of each worker later.

    So does a client that draws for all: a worker that only serves runs no Python.
    """
    return [lambda k=k, b=b: late(b(), args, k) for k, b in enumerate(batches)]
