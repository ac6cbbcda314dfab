"""The TensorFlow tutorial's way to write it: the graph keeps the weight decay."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf

SHAPES = [(3, 3, 3, 8), (8,), (3, 3, 8, 8), (8,), (32, 16), (16,), (16, 4), (4,)]


def load(name, workers):
    """Images 8 x 8 of three colours; one quarter is brighter."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(0.0, 0.3, (400, 8, 8, 3)), rng.integers(0, 4, 400)
    for image, label in zip(images, labels, strict=True):
        down, right = 4 * (label // 2), 4 * (label % 2)
        image[down : down + 4, right : right + 4] += 1.0
    return images.astype(np.float32), labels.astype(np.int32)


def decayed(weight):
    tf.add_to_collection("losses", 0.004 * tf.nn.l2_loss(weight))
    return weight


def loss(weights, images, labels):
    k1, b1, k2, b2, w3, b3, w4, b4 = weights
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, k1, 1, "SAME"), b1))
    x = tf.nn.lrn(tf.nn.max_pool2d(x, 2, 2, "SAME"), 4)
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, k2, 1, "SAME"), b2))
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "SAME"), [-1, 32])
    x = tf.nn.relu(x @ decayed(w3) + b3)
    entropy, right = parts.accuracy(x @ decayed(w4) + b4, labels)
    tf.add_to_collection("losses", entropy)
    return tf.add_n(tf.get_collection("losses")), right


def build(data, *details):
    return parts.problem(data, SHAPES, loss, "accuracy", *details)
