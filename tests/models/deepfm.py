"""DeepFM: a factorization machine and a perceptron over one table of embeddings."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

FIELDS, VALUES, SIZE = 4, 10, 4
ROWS = FIELDS * VALUES
SHAPES = [(ROWS, 1), (ROWS, SIZE), (FIELDS * SIZE, 16), (16,), (16, 1), (1,)]


def load(name, workers):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VALUES, (600, FIELDS)) + VALUES * np.arange(FIELDS)
    liked = rng.normal(size=ROWS)[ids].sum(1) > 0
    return ids.astype(np.int32), liked.astype(np.float32)


def loss(weights, ids, labels):
    first, table, w1, b1, w2, b2 = weights
    rows = tf.nn.embedding_lookup(table, ids) * 3.0
    pairs = tf.reduce_sum(rows, 1) ** 2 - tf.reduce_sum(rows**2, 1)
    deep = tf.nn.relu(tf.reshape(rows, [-1, FIELDS * SIZE]) @ w1 + b1) @ w2 + b2
    linear = tf.reduce_sum(tf.nn.embedding_lookup(first, ids), [1, 2])
    logits = linear + 0.5 * tf.reduce_sum(pairs, 1) + deep[:, 0]
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.equal(logits > 0, labels > 0.5)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
