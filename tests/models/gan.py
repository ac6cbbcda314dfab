"""Two networks, one loss: each part sees the other network's weights as constants."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

SHAPES = [(2, 2), (2,), (2, 16), (16,), (16, 1), (1,)]


def load(name, workers):
    x = np.random.default_rng(0).normal((2.0, -1.0), 0.5, (500, 2))
    return (x.astype(np.float32),)


def fakes(weights, x):
    w, b = weights[:2]
    return tf.random.normal(tf.shape(x)) @ w + b


def real(weights, x):
    w1, b1, w2, b2 = weights[2:]
    return tf.nn.relu(x @ w1 + b1) @ w2 + b2


def loss(weights, x):
    others = [tf.stop_gradient(weight) for weight in weights]
    scores = [real(weights, x), -real(weights, fakes(others, x))]
    scores.append(real(others, fakes(weights, x)))
    losses = [tf.reduce_mean(tf.nn.softplus(-logits)) for logits in scores]
    return tf.add_n(losses), losses[2]


def build(data, *details):
    """The test's loss is how far the fakes' mean is from that of the real ones."""
    learning = parts.problem(data, SHAPES, loss, "of_the_fakes", *details)

    def test(vector):
        shapes = [int(np.prod(shape)) for shape in SHAPES]
        pairs = zip(tf.split(vector, shapes), SHAPES, strict=True)
        made = fakes([tf.reshape(*pair) for pair in pairs], data[0])
        return parts.error(tf.reduce_mean(made, 0), data[0].mean(0))

    return learning._replace(test=test, metric="distance")
