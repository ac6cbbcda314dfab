"""What the models of this folder share: a Problem whose data are NumPy arrays.

test_kinds.py puts this file beside a model, which takes the place of problem.py.
"""

import collections

import numpy as np

from cluster import tensorflow_v1 as tf

Problem = collections.namedtuple("Problem", "start batch loss test metric")


def problem(data, shapes, loss, metric, batch_size, seed, worker, workers):
    """Returns the `Problem` of one worker. Every fifth row of the data is for the test.

    `loss(weights, *rows)` returns the loss and the metric. `weights` have the shapes,
    or are the vector as it is.
    """
    held = np.arange(len(data[0])) % 5 == 0
    train = tuple(part[~held][worker::workers] for part in data)
    rows = tf.data.Dataset.from_tensor_slices(train)
    rows = rows.shuffle(len(train[0]), seed=seed + worker).repeat().batch(batch_size)
    options = tf.data.Options()
    options.autotune.enabled = False  # the end of a session would wait for its thread
    iterator = tf.data.make_initializable_iterator(rows.with_options(options))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)

    def both(vector, batch):
        if not shapes:
            return loss(vector, *batch)
        sizes = [int(np.prod(shape)) for shape in shapes]
        pairs = zip(tf.split(vector, sizes), shapes, strict=True)
        return loss([tf.reshape(*pair) for pair in pairs], *batch)

    return Problem(
        start=shapes and start(shapes, seed),
        batch=iterator.get_next,
        loss=lambda vector, batch: both(vector, batch)[0],
        test=lambda vector: both(vector, [part[held] for part in data]),
        metric=metric,
    )


def start(shapes, seed):
    """Returns a vector [P]: zeros for what has one axis, else normal numbers."""
    rng = np.random.default_rng(seed)
    pieces = [
        rng.normal(size=shape) * (len(shape) > 1) / np.prod(shape[:-1]) ** 0.5
        for shape in shapes
    ]
    return np.concatenate([piece.ravel() for piece in pieces]).astype(np.float32)


def accuracy(logits, labels):
    """Returns the mean cross-entropy and the accuracy of logits [..., classes]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits
    )
    right = tf.equal(tf.argmax(logits, -1), tf.cast(labels, tf.int64))
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))


def error(found, wanted):
    """Returns the mean squared error, and its root."""
    squared = tf.reduce_mean((found - wanted) ** 2)
    return squared, tf.sqrt(squared)
