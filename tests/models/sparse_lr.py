"""Sparse logistic regression, the problem of the HogWild! paper: rows of w alone."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

FEATURES = 40


def load(name, workers):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, FEATURES, (1000, 6))
    signs = rng.normal(size=FEATURES)[ids].sum(1) > 0
    return ids.astype(np.int32), signs.astype(np.float32)


def loss(weights, ids, labels):
    logits = tf.reduce_sum(tf.gather(weights, ids), axis=1)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.equal(logits > 0, labels > 0.5)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))


def build(data, *details):
    """No part of the vector is cut off: its only use is the gather."""
    return parts.problem(data, None, loss, "accuracy", *details)._replace(
        start=np.zeros(FEATURES, np.float32)
    )
