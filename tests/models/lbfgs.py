"""L-BFGS, some of its steps on each mini-batch: a round goes to what they found.

The scheme makes w ← w - η g, and g := w - (what L-BFGS finds from w). Its memory is of
one round.
"""

import numpy as np
import parts
from scipy import optimize

from cluster import tensorflow_v1 as tf


def load(name, workers):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5)) * [1.0, 3.0, 0.3, 1.0, 10.0]
    return x.astype(np.float32), (x @ rng.normal(size=5)).astype(np.float32)


def found(w, x, y):
    """Returns where five steps of L-BFGS come from w [P]."""

    def error(w):
        left = x @ w - y
        return left @ left / len(y), 2 * x.T @ left / len(y)

    options = {"maxiter": 5}
    done = optimize.minimize(error, w, jac=True, method="L-BFGS-B", options=options)
    return done.x.astype(np.float32)


def build(data, *details):
    def loss(weights, x, y):
        w = weights[0]
        end = tf.py_func(found, [w, x, y], tf.float32)
        way = 0.5 * tf.reduce_sum((w - tf.ensure_shape(end, w.shape)) ** 2)
        squared, root = parts.error(tf.linalg.matvec(x, w), y)
        return way + tf.stop_gradient(squared - way), root

    return parts.problem(data, [(5,)], loss, "rmse", *details)
