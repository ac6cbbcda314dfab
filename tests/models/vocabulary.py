"""Words that a lookup table numbers: the mean of their vectors says the class."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

WORDS = "red green blue cat dog bird one two three".split()
SHAPES = [(len(WORDS), 8), (8, 3), (3,)]


def load(name, workers):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (500, 1))
    places = 3 * labels + rng.integers(0, 3, (500, 4))
    return np.array(WORDS)[places], labels[:, 0].astype(np.int32)


def build(data, *details):
    pairs = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(len(WORDS)))
    table = tf.lookup.StaticHashTable(pairs, default_value=-1)

    def loss(weights, texts, labels):
        words, w, b = weights
        rows = tf.gather(words, table.lookup(tf.convert_to_tensor(texts))) * 3.0
        return parts.accuracy(tf.reduce_mean(rows, 1) @ w + b, labels)

    return parts.problem(data, SHAPES, loss, "accuracy", *details)
