"""Keras' LSTM cell, unrolled: which of three channels is the largest over time."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

STEPS, UNITS = 8, 16
SHAPES = [(3, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,), (UNITS, 3), (3,)]


def load(name, workers):
    x = np.random.default_rng(0).normal(size=(500, STEPS, 3)).astype(np.float32)
    return x, x.sum(1).argmax(1).astype(np.int32)


def loss(weights, x, labels):
    *of_cell, w, b = weights
    with tf.Graph().as_default():  # for its layers: its own values are never used
        cell = tf.keras.layers.LSTMCell(UNITS)
        cell.build((None, 3))
    # Of a dropout that it does not have: the cell's only state beside its weights.
    seeds = [tf.zeros(seed.shape, seed.dtype) for seed in cell.non_trainable_variables]
    states = [tf.zeros([tf.shape(x)[0], UNITS])] * 2
    for now in tf.unstack(x, STEPS, axis=1):
        (last, states), _ = cell.stateless_call(of_cell, seeds, now, states)
    return parts.accuracy(last @ w + b, labels)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
