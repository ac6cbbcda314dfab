"""A model cut into stages, one on each worker. Scripts call it."""

import contextlib
import os

import numpy as np

from cluster import addresses, task, timeline, towers
from cluster import tensorflow_v1 as tf


def checked(args, layers):
    """Returns the flags; ends the program if there can be no such stages."""
    workers = len(args.worker_hosts)
    args.stages = args.stages or min(workers, layers)
    if args.stages > workers:
        task.fail(f"--stages {args.stages}: there are {workers} workers, one a stage")
    if args.stages > layers:
        task.fail(f"--stages {args.stages}: the model has {layers} layers to cut")
    if args.batch_size % args.micro_batches:
        task.fail(
            f"--micro_batches {args.micro_batches} does not divide --batch_size "
            f"{args.batch_size}"
        )
    return args


def cut(args, layers):
    """Returns the layers of each stage, as evenly as they can be cut by number."""
    ends = [s * len(layers) // args.stages for s in range(args.stages + 1)]
    return [layers[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def size(stage):
    """Returns how many weights the layers of a stage have."""
    return sum(layer.size for layer in stage)


def on(s):
    """Puts what is built inside on the worker of stage s."""
    return tf.device(addresses.device("worker", s))


def variables(args, learning):
    """Returns the weights of each stage, flat, on its worker."""
    sizes = [size(stage) for stage in cut(args, learning.layers)]
    pieces = tf.split(learning.start, sizes)
    for s, piece in enumerate(pieces):
        with on(s):
            pieces[s] = tf.get_variable(f"center_{s}", initializer=piece)
    return pieces


@contextlib.contextmanager
def unit(kind, s, m, busy):
    """Puts what is built inside on stage s, after what it is `busy[s]` with.

    `kind` is forward or backward, m the micro-batch; for `timeline`.
    """
    scope = tf.name_scope(f"{kind}_{s}_{m}")
    with on(s), scope, tf.control_dependencies(busy[s]):
        yield


def arrived(x):
    """Returns what comes from another stage, once it is here.

    A copy, by an operation that TensorFlow does not optimize away: timeline sees it.
    """
    return tf.raw_ops.Snapshot(input=x, name="arrived")


def apply(stage, weights, x):
    """Returns the output of a stage's layers for its input x [n, a]."""
    pieces = tf.split(weights, [layer.size for layer in stage])
    for layer, piece in zip(stage, pieces, strict=True):
        x = layer.apply(piece, x)
    return x


def mean(gradients):
    """Returns the mean of the gradients that each stage has, there."""
    means = []
    for s, parts in enumerate(gradients):
        with on(s):
            means.append(tf.add_n(parts) / len(parts))
    return means


def meet(device, tensors):
    """Returns a tensor on a device that is there once all of these are."""
    with tf.device(device), tf.control_dependencies(tensors):
        return tf.zeros([0])


def sent(args, layers):
    """Returns the bytes of the activations of a mini-batch, and of their gradients."""
    widths = [stage[-1].outputs for stage in cut(args, layers)[:-1]]
    both = 4 * args.batch_size * sum(widths)
    return np.array([both, both])


def told(args, session, units, learning):
    """Returns what result.json says beside the counters, and writes timeline.json.

    `units` are a trace of the session. The bubble is the share of the stages' time in
    which they had nothing to do; GPipe has (S − 1) / (M + S − 1) for it, for units of
    equal time.
    """
    timeline.write(units, os.path.join(args.logdir, "timeline.json"))
    s, m = args.stages, args.micro_batches
    return {
        "bubble": timeline.bubble(units),
        "bubble_of_equal_units": (s - 1) / (m + s - 1),
        "seconds_per_mini_batch": timeline.span(units),
        "activation_bytes_per_step": int(sent(args, learning.layers).sum()),
        "weight_bytes_per_step": 2 * 4 * size(learning.layers) * s,
        **towers.graph_size(session),
    }
