"""Layers in bfloat16, over a vector that stays float32."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

SHAPES = [(10, 32), (32,), (32, 4), (4,)]


def load(name, workers):
    x = np.random.default_rng(0).normal(size=(500, 10)).astype(np.float32)
    return x, (2 * (x[:, 0] > 0) + (x[:, 1] > 0)).astype(np.int32)


def loss(weights, x, labels):
    w1, b1, w2, b2 = [tf.cast(weight, tf.bfloat16) for weight in weights]
    hidden = tf.nn.relu(tf.cast(x, tf.bfloat16) @ w1 + b1)
    return parts.accuracy(tf.cast(hidden @ w2 + b2, tf.float32), labels)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
