"""A graph convolutional network: nodes of three groups, a batch is some of them."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

NODES, FEATURES = 90, 12
SHAPES = [(FEATURES, 16), (16,), (16, 3), (3,)]


def load(name, workers):
    return np.arange(NODES, dtype=np.int32), np.arange(NODES, dtype=np.int32) % 3


def graph():
    """Returns the scaled neighbours [n, n] and the features [n, f] of all nodes."""
    rng = np.random.default_rng(0)
    groups = np.arange(NODES) % 3
    same = groups[:, None] == groups
    edges = rng.random((NODES, NODES)) < np.where(same, 0.2, 0.02)
    edges = edges | edges.T | np.eye(NODES, dtype=bool)
    means = rng.normal(size=(3, FEATURES))
    features = means[groups] + rng.normal(0.0, 1.5, (NODES, FEATURES))
    rows = edges / edges.sum(1, keepdims=True)
    return rows.astype(np.float32), features.astype(np.float32)


def build(data, *details):
    edges, features = graph()

    def loss(weights, nodes, labels):
        w1, b1, w2, b2 = weights
        hidden = tf.nn.relu(edges @ features @ w1 + b1)
        logits = tf.matmul(edges, hidden @ w2) + b2
        return parts.accuracy(tf.gather(logits, nodes), labels)

    return parts.problem(data, SHAPES, loss, "accuracy", *details)
