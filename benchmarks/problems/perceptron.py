"""A perceptron with one hidden layer, to put at the end of an example's problem.py."""

from cluster import tensorflow_v1 as tf

HIDDEN = 100  # units of the hidden layer


def shapes_of(data):
    """Returns the shapes of the parameters, in the order `model` takes them."""
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    return [(features, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]


def model(parameters, images, training=False):
    """Returns the logits [n, classes], float32, of images float32 [n, features]."""
    w1, b1, w2, b2 = parameters
    return tf.nn.relu(images @ w1 + b1) @ w2 + b2
