"""A problem of one's own: a linear regression, in the place of an example's problem.py.

test_run.py puts it there. It defines what the docstring of that file asks for, no more.
"""

import collections

import numpy as np

from cluster import tensorflow_v1 as tf

Problem = collections.namedtuple("Problem", "start batch loss test metric")


def load(name, workers):
    """Returns x [400, 3] and y [400], float32; the last 100 rows are for the test."""
    if name != "line":
        raise ValueError("choose line")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    return x, (x @ [2.0, -1.0, 0.5] + 3.0).astype(np.float32)


def build(data, batch_size, seed, worker=0, workers=1):
    """Returns the `Problem` of one worker, in the graph that is being built."""
    x, y = data
    rows = tf.data.Dataset.from_tensor_slices((x[:300], y[:300]))
    rows = rows.shard(workers, worker).shuffle(300, seed=seed).repeat()
    iterator = tf.data.make_initializable_iterator(rows.batch(batch_size))
    # The run starts the input with the tables, once per session.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)

    def error(w, batch):
        inputs, outputs = batch
        return tf.squeeze(inputs @ w[:3, None], 1) + w[3] - outputs

    def loss(w, batch):
        return tf.reduce_mean(error(w, batch) ** 2)

    def test(w):
        left = loss(w, (x[300:], y[300:]))
        return left, 1.0 - left / np.var(y[300:])

    return Problem(tf.zeros([4]), iterator.get_next, loss, test, "r_squared")
