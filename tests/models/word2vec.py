"""Skip-gram with noise-contrastive estimation: words in pairs, each with the next."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

WORDS, SIZE = 40, 8
SHAPES = [(WORDS, SIZE), (WORDS, SIZE), (WORDS,)]


def load(name, workers):
    words = np.random.default_rng(0).integers(0, WORDS, 600)
    return words.astype(np.int32), ((words + 1) % WORDS).astype(np.int32)[:, None]


def loss(weights, words, contexts):
    table, w, b = weights
    rows = tf.nn.embedding_lookup(table, words) * 6.0
    losses = tf.nn.nce_loss(w, b, contexts, rows, 8, WORDS)
    logits = tf.matmul(rows, w, transpose_b=True) + b
    return tf.reduce_mean(losses), parts.accuracy(logits, contexts[:, 0])[1]


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
