"""A convolution over words, as Kim's text CNN: which of four phrases a text has."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

WORDS, CLASSES = 50, 4
SHAPES = [(WORDS, 16), (3, 16, 32), (32,), (32, CLASSES), (CLASSES,)]


def load(name, workers):
    rng = np.random.default_rng(0)
    texts, labels = rng.integers(20, WORDS, (500, 12)), rng.integers(0, CLASSES, 500)
    for text, label in zip(texts, labels, strict=True):
        place = rng.integers(0, 9)
        text[place : place + 3] = np.arange(3) + 3 * label
    return texts.astype(np.int32), labels.astype(np.int32)


def loss(weights, texts, labels):
    table, filters, bias, w, b = weights
    words = tf.nn.embedding_lookup(table, texts) * 7.0
    maps = tf.nn.relu(tf.nn.conv1d(words, filters, 1, "VALID") + bias)
    return parts.accuracy(tf.reduce_max(maps, axis=1) @ w + b, labels)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
