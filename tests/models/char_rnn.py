"""A recurrent network, unrolled, that predicts the next character of a sentence."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

TEXT = "the quick brown fox jumps over the lazy dog. "
LETTERS, STEPS, UNITS = sorted(set(TEXT)), 8, 32
COUNT = len(LETTERS)
SHAPES = [(COUNT, UNITS), (UNITS, UNITS), (UNITS,), (UNITS, COUNT), (COUNT,)]


def load(name, workers):
    codes = np.array([LETTERS.index(letter) for letter in TEXT * 2])
    first = np.random.default_rng(0).integers(0, len(TEXT), (400, 1))
    windows = codes[first + np.arange(STEPS + 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:]


def loss(weights, letters, following):
    table, w_state, b_state, w, b = weights
    state, states = tf.zeros([tf.shape(letters)[0], UNITS]), []
    for now in tf.unstack(tf.gather(table, letters) * 5.0, STEPS, axis=1):
        state = tf.tanh(now + state @ w_state + b_state)
        states.append(state)
    return parts.accuracy(tf.tensordot(tf.stack(states, 1), w, 1) + b, following)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
