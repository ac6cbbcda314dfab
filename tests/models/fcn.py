"""A fully convolutional network with group normalization: which pixels are inside."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

SHAPES = [(3, 3, 1, 8), (8,), (3, 3, 8, 8), (2, 2, 8, 8), (1, 1, 8, 2), (2,)]


def load(name, workers):
    """Images 8 x 8 with a bright square of 4 x 4."""
    rng = np.random.default_rng(0)
    images, masks = rng.normal(0.0, 0.3, (300, 8, 8, 1)), np.zeros((300, 8, 8), int)
    for mask, (down, right) in zip(masks, rng.integers(0, 5, (300, 2)), strict=True):
        mask[down : down + 4, right : right + 4] = 1
    return (images + masks[..., None]).astype(np.float32), masks.astype(np.int32)


def normed(x, groups=2):
    pieces = tf.reshape(x, [tf.shape(x)[0], -1, groups, x.shape[-1] // groups])
    mean, variance = tf.nn.moments(pieces, [1, 3], keepdims=True)
    pieces = (pieces - mean) * tf.math.rsqrt(variance + 1e-5)
    return tf.reshape(pieces, tf.shape(x))


def loss(weights, images, masks):
    k1, scale, k2, up, k3, b3 = weights
    x = tf.nn.conv2d(images, k1, 1, "SAME")
    x = tf.nn.relu(normed(x) * (1.0 + scale))
    x = tf.nn.relu(tf.nn.conv2d(x, k2, 2, "SAME"))
    shape = [tf.shape(images)[0], 8, 8, 8]
    x = tf.nn.relu(tf.nn.conv2d_transpose(x, up, shape, 2))
    return parts.accuracy(tf.nn.conv2d(x, k3, 1, "SAME") + b3, masks)


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
