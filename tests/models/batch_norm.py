"""Does not fit: batch normalization, with moving averages in variables."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

SHAPES = [(10, 16), (16,), (16,), (16, 2), (2,)]


def load(name, workers):
    x = np.random.default_rng(0).normal(3.0, 1.0, (500, 10)).astype(np.float32)
    return x, (x[:, 0] > 3.0).astype(np.int32)


def build(data, *details):
    means = tf.get_variable("moving_mean", initializer=tf.zeros([16]), trainable=False)
    squares = tf.get_variable("moving_var", initializer=tf.ones([16]), trainable=False)

    def loss(weights, x, labels):
        w1, scale, offset, w2, b2 = weights
        x = x @ w1
        mean, variance = means, squares
        if tf.is_tensor(labels):  # of a mini-batch, and not of the test
            mean, variance = tf.nn.moments(x, [0])
            changes = [
                means.assign_add(0.1 * (mean - means)),
                squares.assign_add(0.1 * (variance - squares)),
            ]
            with tf.control_dependencies(changes):
                x = tf.identity(x)
        x = tf.nn.batch_normalization(x, mean, variance, offset, 1.0 + scale, 1e-3)
        return parts.accuracy(tf.nn.relu(x) @ w2 + b2, labels)

    return parts.problem(data, SHAPES, loss, "accuracy", *details)
