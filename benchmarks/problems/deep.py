"""A deep perceptron of 21 MB, to put at the end of an example's problem.py."""

from cluster import tensorflow_v1 as tf

LAYERS, UNITS = 6, 1024  # hidden layers, and units of each


def shapes_of(data):
    """Returns the shapes of the parameters, in the order `model` takes them."""
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    widths = [features, *[UNITS] * LAYERS, classes]
    shapes = []
    for inputs, units in zip(widths, widths[1:], strict=False):
        shapes += [(inputs, units), (units,)]
    return shapes


def model(parameters, images, training=False):
    """Returns the logits [n, classes], float32, of images float32 [n, features]."""
    *layers, w, b = parameters
    hidden = images
    for weights, bias in zip(layers[::2], layers[1::2], strict=True):
        hidden = tf.nn.relu(hidden @ weights + bias)
    return hidden @ w + b
