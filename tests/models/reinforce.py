"""A policy gradient: a tf.py_func of the vector plays, and the loss learns from it."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

PLACES, GAMES = 5, 64
SHAPES = [(PLACES, 2)]


def load(name, workers):
    return (np.arange(1000, dtype=np.int64),)  # what the games' dice are seeded with


def play(table, seeds):
    """Plays games of eight steps: one that does not end at the right costs 1."""
    rng = np.random.default_rng(seeds)
    places, seen = np.full(GAMES, PLACES // 2), []
    costs = np.zeros(GAMES, np.float32)
    for _ in range(8):
        right = 1.0 / (1.0 + np.exp(table[places, 0] - table[places, 1]))
        moves = (rng.random(GAMES) < right).astype(np.int32)
        seen.append((places.astype(np.int32), moves))
        places = np.clip(places + 2 * moves - 1, 0, PLACES - 1)
        costs += places < PLACES - 1
    return *np.array(seen, np.int32).swapaxes(0, 1), costs


def loss(weights, seeds):
    (table,) = weights
    types = tf.int32, tf.int32, tf.float32
    places, moves, costs = tf.py_func(play, [table, seeds], types)
    places, moves = tf.reshape(places, [8, GAMES]), tf.reshape(moves, [8, GAMES])
    logits = tf.gather(table, places)
    taken = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=moves, logits=logits)
    mean = tf.reduce_mean(costs)
    learned = tf.reduce_mean(tf.reduce_sum(taken, 0) * (costs - mean))
    return learned + tf.stop_gradient(mean - learned), mean


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "cost", *details)
