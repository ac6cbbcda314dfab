"""A penalty that grows with the global step, as the annealing of a VAE does."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf


def load(name, workers):
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    return x, (x @ [2.0, -1.0, 0.5]).astype(np.float32)


def loss(weights, x, y):
    share = tf.minimum(tf.cast(tf.train.get_global_step(), tf.float32) / 100, 1.0)
    squared, root = parts.error(tf.linalg.matvec(x, weights[0]), y)
    return squared + 0.01 * share * tf.nn.l2_loss(weights[0]), root


def build(data, *details):
    return parts.problem(data, [(3,)], loss, "rmse", *details)
