"""A variational autoencoder: pictures of 16 pixels that two numbers decide."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

SHAPES = [(16, 32), (32,), (32, 4), (4,), (2, 32), (32,), (32, 16), (16,)]


def load(name, workers):
    rng = np.random.default_rng(0)
    ways = 9.0 * rng.normal(size=(500, 2)) @ rng.normal(size=(2, 16))
    return ((1 / (1 + np.exp(-ways))).astype(np.float32),)


def loss(weights, x):
    w1, b1, w2, b2, w3, b3, w4, b4 = weights
    mean, log_variance = tf.split(tf.nn.relu(x @ w1 + b1) @ w2 + b2, 2, axis=1)
    noise = tf.random.normal(tf.shape(mean))
    code = mean + tf.exp(0.5 * log_variance) * noise
    logits = tf.nn.relu(code @ w3 + b3) @ w4 + b4
    missed = tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=logits)
    apart = 0.5 * (mean**2 + tf.exp(log_variance) - 1.0 - log_variance)
    both = tf.reduce_sum(missed, 1) + tf.reduce_sum(apart, 1)
    return tf.reduce_mean(both) / 16.0, parts.error(tf.sigmoid(logits), x)[1]


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "error", *details)
