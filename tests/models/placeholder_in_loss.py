"""Does not fit: a placeholder that a program feeds in each step."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf


def load(name, workers):
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    return x, (x @ [2.0, -1.0, 0.5]).astype(np.float32)


def build(data, *details):
    scale = tf.placeholder(tf.float32, [], "scale")

    def loss(weights, x, y):
        return parts.error(scale * tf.linalg.matvec(x, weights[0]), y)

    return parts.problem(data, [(3,)], loss, "rmse", *details)
