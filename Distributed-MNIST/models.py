"""The model: a convolutional network, or layers of Keras. Replace it with your own.

Both are a `Network`: variables with names, and functions of their values. So the
program decides on which ps a variable is, and how it is updated.
"""

import collections
import functools

import numpy as np

from cluster import flags
from cluster import tensorflow_v1 as tf
from cluster.task import fail

Network = collections.namedtuple(
    "Network",
    [
        "names",  # of the variables, as they appear in checkpoints
        "start",  # start(i) is the first value of variable i, a tensor, float32
        "shapes",  # of the variables
        "logits",  # logits(values, images) [n, classes] of images [n, h, w, c], 0..255
        "loss",  # loss(values, images, labels), the scalar that training makes small
    ],
)


def add_flags(parser):
    """Adds the flags of the model."""
    add = parser.add_argument
    add("--model", choices=("conv", "keras"), default="conv", help="see models.py")
    add("--hidden_units", type=flags.positive_int, default=128, help="units of dense1")


def build(args, index):
    """Returns the Network that --model names, for the images of a records.Index.

    Ends the program if it is not one for these images.
    """
    about = tuple(index.shape), len(index.classes), args.hidden_units, args.seed
    try:
        return _made(args.model, *about)
    except ValueError as error:
        fail(f"--model {args.model}: {str(error).splitlines()[0]}")


@functools.cache  # made again, Keras' layers without a name would get other names
def _made(kind, *about):
    return {"conv": conv, "keras": keras}[kind](*about)


def loss(logits, labels):
    """Returns the mean cross-entropy (nats, scalar) of logits [n, classes]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits
    )
    return tf.reduce_mean(losses)


def conv(shape, classes, hidden, seed):
    """Two convolutions, each pooled, then two dense layers (LeCun et al. 1998)."""
    height, width, channels = shape
    if min(height, width) < 4:
        raise ValueError(f"images of {height}x{width} are too small to be pooled twice")
    flat = (height // 4) * (width // 4) * 32
    layers = {
        "conv1": (5, 5, channels, 16),
        "conv2": (5, 5, 16, 32),
        "dense1": (flat, hidden),
        "dense2": (hidden, classes),
    }
    names, shapes = [], []
    for layer, kernel in layers.items():
        names += [f"{layer}/kernel", f"{layer}/bias"]
        shapes += [kernel, kernel[-1:]]

    def start(i):
        # He's normal weights, zero biases: He et al. 2015, arXiv 1502.01852, eq. 10.
        if len(shapes[i]) == 1:
            return tf.zeros(shapes[i])
        normal = tf.random.stateless_normal(shapes[i], seed=[seed, i])
        return normal * (2.0 / np.prod(shapes[i][:-1])) ** 0.5

    def logits(values, images):
        kernels, biases = values[::2], values[1::2]
        x = images / 255.0
        for kernel, bias in zip(kernels[:2], biases[:2], strict=True):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + bias)
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.nn.relu(tf.reshape(x, [-1, flat]) @ kernels[2] + biases[2])
        return x @ kernels[3] + biases[3]

    def loss_of(values, images, labels):
        return loss(logits(values, images), labels)

    return Network(names, start, shapes, logits, loss_of)


def layers_of_keras(shape, classes, hidden):
    """Returns the Keras model that --model keras trains: layers, no compile, no fit."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 5, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 5, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(hidden, activation="relu", name="dense1"),
            layers.Dense(classes, name="dense2"),
        ]
    )


def keras(shape, classes, hidden, seed):
    """A Keras 3 model, whose own variables stay in a graph that is then forgotten.

    `stateless_call` computes the model with values that are given: those that were
    pulled from the ps. Layers that draw random numbers get a new seed in each step, and
    what layers add to the loss is part of it. Raises ValueError for other state.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        tf.keras.utils.set_random_seed(seed)
        model = layers_of_keras(shape, classes, hidden)
        for variable in model.non_trainable_variables:
            if "int" not in variable.dtype:  # the seed of random numbers
                raise ValueError(
                    f"{variable.path} is not trained, and has no place on the ps: "
                    "leave BatchNormalization and frozen layers out"
                )
        # Its weights are numbers only when a session has run their initializers.
        variables = [variable.value for variable in model.trainable_variables]
        session.run([variable.initializer for variable in variables])
        first = session.run(variables)
        paths = [variable.path for variable in model.trainable_variables]
        names = [path.removeprefix(model.name + "/") for path in paths]

    def call(values, images, training):
        seeds = [
            tf.random.uniform(variable.shape, maxval=2**31 - 1, dtype=variable.dtype)
            for variable in model.non_trainable_variables
        ]
        outputs, _, losses = model.stateless_call(
            values, seeds, images, training=training, return_losses=True
        )
        return outputs, sum(losses)

    def logits(values, images):
        return call(values, images, training=False)[0]

    def loss_of(values, images, labels):
        outputs, more = call(values, images, training=True)
        return loss(outputs, labels) + more

    shapes = [value.shape for value in first]
    return Network(names, lambda i: tf.constant(first[i]), shapes, logits, loss_of)
