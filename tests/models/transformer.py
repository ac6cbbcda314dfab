"""One block of a decoder, with attention to what came before: it counts in threes."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

WORDS, LENGTH, SIZE = 10, 8, 16
SHAPES = [(WORDS, SIZE), (LENGTH, SIZE), (SIZE, 3 * SIZE), (SIZE, SIZE), (SIZE,)]
SHAPES += [(SIZE, 32), (32,), (32, SIZE), (SIZE, WORDS)]


def load(name, workers):
    first = np.random.default_rng(0).integers(0, WORDS, (300, 1))
    texts = ((first + 3 * np.arange(LENGTH + 1)) % WORDS).astype(np.int32)
    return texts[:, :-1], texts[:, 1:]


def normed(x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5)


def loss(weights, texts, following):
    table, places, w_qkv, w_out, scale, w1, b1, w2, w = weights
    x = tf.gather(table, texts) * SIZE**0.5 + places
    query, key, value = tf.split(tf.tensordot(normed(x), w_qkv, 1), 3, axis=-1)
    scores = tf.matmul(query, key, transpose_b=True) / SIZE**0.5
    seen = tf.linalg.band_part(tf.ones([LENGTH, LENGTH]), -1, 0)
    mixed = tf.matmul(tf.nn.softmax(scores - 1e9 * (1.0 - seen)), value)
    x += tf.tensordot(mixed, w_out, 1)
    hidden = tf.nn.relu(tf.tensordot(normed(x) * (1.0 + scale), w1, 1) + b1)
    x += tf.tensordot(hidden, w2, 1)
    return parts.accuracy(tf.tensordot(normed(x), w, 1), following)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
