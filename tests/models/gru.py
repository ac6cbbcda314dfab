"""A GRU in a tf.while_loop: which of three channels is the largest over time."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

STEPS, UNITS = 8, 16
SHAPES = [(3 + UNITS, 2 * UNITS), (2 * UNITS,), (3 + UNITS, UNITS), (UNITS,)]
SHAPES += [(UNITS, 3), (3,)]


def load(name, workers):
    x = np.random.default_rng(0).normal(size=(500, STEPS, 3)).astype(np.float32)
    return x, x.sum(1).argmax(1).astype(np.int32)


def loss(weights, x, labels):
    w_gates, b_gates, w_state, b_state, w, b = weights

    def step(t, state):
        now = tf.gather(x, t, axis=1)
        gates = tf.sigmoid(tf.concat([now, state], 1) @ w_gates + b_gates)
        reset, keep = tf.split(gates, 2, axis=1)
        new = tf.tanh(tf.concat([now, reset * state], 1) @ w_state + b_state)
        return t + 1, keep * state + (1.0 - keep) * new

    zeros = tf.zeros([tf.shape(x)[0], UNITS])
    _, last = tf.while_loop(lambda t, _: t < STEPS, step, [0, zeros])
    return parts.accuracy(last @ w + b, labels)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
