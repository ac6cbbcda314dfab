"""A convolutional network for signals, to put at the end of an example's problem.py.

Three convolutions, each with a stride of 2, and a layer for the classes. It has the
shape of the network of Greydanus and Kobak, Scaling down deep learning, 2020, arXiv
2011.14439, except for the padding.
"""

from cluster import tensorflow_v1 as tf

CHANNELS = 25  # of each convolution
WIDTHS = (5, 3, 3)  # of each convolution, in values of the signal


def shapes_of(data):
    """Returns the shapes of the parameters, in the order `model` takes them."""
    length, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    shapes, inputs = [], 1
    for width in WIDTHS:
        shapes += [(width, inputs, CHANNELS), (CHANNELS,)]
        length, inputs = -(-length // 2), CHANNELS
    return [*shapes, (length * CHANNELS, classes), (classes,)]


def model(parameters, images, training=False):
    """Returns the logits [n, classes], float32, of signals float32 [n, length]."""
    *convolutions, w, b = parameters
    maps = images[:, :, None]  # [n, length, channels]
    for filters, bias in zip(convolutions[::2], convolutions[1::2], strict=True):
        maps = tf.nn.relu(tf.nn.conv1d(maps, filters, 2, "SAME") + bias)
    return tf.reshape(maps, [-1, w.shape[0]]) @ w + b
