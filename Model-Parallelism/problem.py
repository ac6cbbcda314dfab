"""The learning problem: handwritten digits and a perceptron that can be cut in stages.

The file to replace with a problem of your own. A script calls two functions:

    data = load(name, workers)                              before anything starts
    learning = build(data, batch_size, seed, worker, workers)    in the client's graph

`load` raises ValueError with a sentence for whoever gave the name. `build` returns a
`Problem`; its fields say what each thing must be. The model is a list of layers, so
that a script can put some of them here and some there.
"""

import collections
import importlib.util
import os

import numpy as np

from cluster import tensorflow_v1 as tf

WIDTH = 256  # units of a hidden layer
DEPTH = 4  # layers with weights, the last one included

Data = collections.namedtuple("Data", "x_train y_train x_test y_test")


# --- Data ---------------------------------------------------------------------


def load(name, workers=1):
    """Returns the data set as `Data`: x float32 [n, features], y int32 [n].

    `name` is digits, or what datasets.py has: mnist, fashion_mnist, a .npz file. Raises
    ValueError if that cannot be used, or has fewer training rows than workers.
    """
    if name == "digits":
        data = Data(**digits())
    else:
        import datasets  # beside this file; the digits need none of it

        data = Data(**datasets.load(name))
    if len(data.y_train) < workers:
        raise ValueError(f"{len(data.y_train)} training rows for {workers} workers")
    return data


# --- Model [algorithm] --------------------------------------------------------


def layers_of(data):
    """Returns the layers: DEPTH matrices with biases, all but the last rectified."""
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    widths = [features, *[WIDTH] * (DEPTH - 1), classes]
    return [
        layer(a, b, last=number == DEPTH - 1)
        for number, (a, b) in enumerate(zip(widths, widths[1:], strict=False))
    ]


def layer(inputs, outputs, last):
    """Returns one fully connected Layer."""

    def apply(vector, x):
        w, b = tf.split(vector, [inputs * outputs, outputs])
        y = x @ tf.reshape(w, [inputs, outputs]) + b
        return y if last else tf.nn.relu(y)

    return Layer(inputs * outputs + outputs, outputs, apply)


def initial(layers, features, seed):
    """Returns the flat start vector [P], float32: He's normal weights, zero biases.

    Source: He et al. 2015, arXiv 1502.01852, equation 10.
    """
    pieces = []
    for number, (size, outputs, _) in enumerate(layers):
        weights = size - outputs
        normal = tf.random.stateless_normal([weights], seed=[seed, number])
        pieces += [normal * (2.0 * outputs / weights) ** 0.5, tf.zeros([outputs])]
    return tf.concat(pieces, axis=0)


def model(layers, vector, images):
    """Returns the logits [n, classes] of images [n, features], not cut."""
    x, pieces = images, tf.split(vector, [each.size for each in layers])
    for each, piece in zip(layers, pieces, strict=True):
        x = each.apply(piece, x)
    return x


def cost(logits, labels):
    """Returns the mean cross-entropy (nats, scalar) of logits [n, classes]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits
    )
    return tf.reduce_mean(losses)


def accuracy(logits, labels):
    """Returns the share (scalar, 0 to 1) that logits [n, classes] get right."""
    right = tf.equal(tf.argmax(logits, 1), tf.cast(labels, tf.int64))
    return tf.reduce_mean(tf.cast(right, tf.float32))


# --- Problem [algorithm] ------------------------------------------------------

Problem = collections.namedtuple(
    "Problem",
    [
        "start",  # the flat start vector [P], float32
        "layers",  # a list of Layer
        "cost",  # cost(output of the last layer, labels): a scalar, the mean
        "batch",  # batch() returns (images, labels) of the next mini-batch
        "loss",  # loss(vector, batch): the same of the whole model, not cut
        "test",  # test(vector) returns the scalars (loss, metric) on the test set
        "metric",  # what the metric is called: accuracy
    ],
)
# `size` numbers of the start vector; apply(these, input [n, a]) is the output [n, b],
# b its `outputs`.
Layer = collections.namedtuple("Layer", "size outputs apply")


def build(data, batch_size, seed, worker=0, workers=1):
    """Returns the `Problem` of one worker, in the graph that is being built."""
    layers = layers_of(data)

    def test_of(vector):
        labels = outside(data.y_test)
        logits = model(layers, vector, outside(data.x_test))
        return cost(logits, labels), accuracy(logits, labels)

    return Problem(
        start=initial(layers, data.x_train.shape[1], seed),
        layers=layers,
        cost=cost,
        batch=batches(data, batch_size, seed, worker, workers),
        loss=lambda vector, batch: cost(model(layers, vector, batch[0]), batch[1]),
        test=test_of,
        metric="accuracy",
    )


# --- Batches ------------------------------------------------------------------


def batches(data, batch_size, seed, worker=0, workers=1):
    """Returns the function that returns the next mini-batch of one worker.

    Worker k of N trains on rows k, k + N, k + 2N ...: the shards are disjoint and
    complete. A batch is x float32 [batch_size, features], y int32 [batch_size].
    """
    x, y = data.x_train[worker::workers], data.y_train[worker::workers]
    warn(data, y, worker)
    dataset = tf.data.Dataset.from_tensor_slices((outside(x), outside(y)))
    dataset = dataset.shuffle(len(y), seed=seed + worker).repeat()
    dataset = dataset.batch(batch_size).prefetch(2)
    # The end of a session would wait for the tuner's thread, which sleeps up to 10 s.
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = tf.data.make_initializable_iterator(dataset.with_options(options))
    # The run starts the input with the tables, once per session.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next


def outside(array):
    """Returns an array as a tensor, which is not a constant: the graph stays small."""
    tensor = tf.numpy_function(lambda: array, [], array.dtype)
    tensor.set_shape(array.shape)
    return tensor


def warn(data, labels, worker):
    """Prints what training can stand, and what is seldom meant."""
    if len(lost := np.setdiff1d(data.y_train, labels)):
        print(f"worker {worker}: none of its {len(labels)} rows is of class {lost[0]}")
    if worker == 0 and data.x_train.min() >= 0 and 128 <= data.x_train.max() <= 255:
        print(f"x_train reaches {data.x_train.max():g}: divide pixels by 255")


def digits():
    """Returns sklearn.datasets.load_digits as arrays, shuffled, 360 to test with."""
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ValueError("they are in scikit-learn: pip install scikit-learn")
    path = os.path.dirname(package.origin) + "/datasets/data/digits.csv.gz"
    table = np.random.default_rng(0).permutation(np.loadtxt(path, delimiter=","))
    x, y = table[:, :-1].astype(np.float32) / 16, table[:, -1].astype(np.int32)
    return dict(x_train=x[360:], y_train=y[360:], x_test=x[:360], y_test=y[:360])
