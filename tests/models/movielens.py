"""Matrix factorization: ratings of films by users."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

USERS, FILMS, SIZE = 30, 20, 4
SHAPES = [(USERS, SIZE), (FILMS, SIZE), (USERS, 1), (FILMS, 1), (1,)]


def load(name, workers):
    rng = np.random.default_rng(0)
    users, films = rng.integers(0, USERS, 800), rng.integers(0, FILMS, 800)
    ratings = 3.0 + rng.normal(size=USERS)[users] + rng.normal(size=FILMS)[films]
    return users.astype(np.int32), films.astype(np.int32), ratings.astype(np.float32)


def loss(weights, users, films, ratings):
    table, other, of_user, of_film, mean = weights
    product = tf.gather(table, users) * tf.gather(other, films)
    alone = tf.gather(of_user, users) + tf.gather(of_film, films)
    return parts.error(tf.reduce_sum(product, 1) + alone[:, 0] + mean, ratings)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "rmse", *details)
