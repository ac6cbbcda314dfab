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
Problem = collections.namedtuple(
    "Problem",
    [
        "start",  # the flat start vector [P], float32
        "layers",  # a list of Layer
        "cost",  # cost(output of the last layer, labels): a scalar, the mean
        "batch",  # batch() returns (images, labels) of the next mini-batch
        "loss",  # loss(vector, batch): the same of the whole model, not cut
        "test",  # test(vector) returns (loss, metric) on the test set, and a feed
        "metric",  # what the metric is called: accuracy
        "initializer",  # the operation that starts the input, once per session
        "feed",  # what `initializer` is fed, so that the data is not in the graph
    ],
)
# `size` numbers of the start vector; apply(these, input [n, a]) is the output [n, b],
# b its `outputs`.
Layer = collections.namedtuple("Layer", "size outputs apply")


def build(data, batch_size, seed, worker=0, workers=1):
    """Returns the `Problem` of one worker, in the graph that is being built."""
    layers = layers_of(data)
    iterator, feed = batches(data, batch_size, seed, worker, workers)

    def test_of(vector):
        images = tf.placeholder(data.x_test.dtype, data.x_test.shape)
        labels = tf.placeholder(data.y_test.dtype, data.y_test.shape)
        logits = model(layers, vector, images)
        tensors = cost(logits, labels), accuracy(logits, labels)
        return tensors, {images: data.x_test, labels: data.y_test}

    return Problem(
        start=initial(layers, data.x_train.shape[1], seed),
        layers=layers,
        cost=cost,
        batch=iterator.get_next,
        loss=lambda vector, batch: cost(model(layers, vector, batch[0]), batch[1]),
        test=test_of,
        metric="accuracy",
        initializer=iterator.initializer,
        feed=feed,
    )


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


def digits():
    """Returns the arrays of 1,797 handwritten digits of 8 x 8 pixels, 360 to test with.

    The file is the one behind sklearn.datasets.load_digits; scikit-learn itself would
    take a second to import. A fixed shuffle: its writers come in order.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ValueError("they are in scikit-learn: pip install scikit-learn")
    folder = os.path.dirname(package.origin)
    path = os.path.join(folder, "datasets", "data", "digits.csv.gz")
    table = np.random.default_rng(0).permutation(np.loadtxt(path, delimiter=","))
    x, y = table[:, :-1].astype(np.float32) / 16, table[:, -1].astype(np.int32)
    return dict(x_train=x[360:], y_train=y[360:], x_test=x[:360], y_test=y[:360])


def batches(data, batch_size, seed, worker=0, workers=1):
    """Returns the mini-batches of one worker as (iterator, feed).

    Worker k of N trains on rows k, k + N, k + 2N ...: the shards are disjoint and
    complete. `iterator.get_next()` is a batch x float32 [batch_size, features],
    y int32 [batch_size]; every evaluation of it is a fresh one. `feed` is what
    `iterator.initializer` wants to be fed, so that the data is not in the graph.
    """
    x, y = data.x_train[worker::workers], data.y_train[worker::workers]
    warn(data, y, worker)
    images = tf.placeholder(x.dtype, x.shape)
    labels = tf.placeholder(y.dtype, y.shape)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(y), seed=seed + worker).repeat()
    dataset = dataset.batch(batch_size).prefetch(2)
    # There is nothing to tune, and the end of a session would wait for the tuner's
    # thread, which sleeps for up to ten seconds.
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    iterator = tf.data.make_initializable_iterator(dataset)
    return iterator, {images: x, labels: y}


def warn(data, labels, worker):
    """Prints what training can stand, and what is seldom meant."""
    lost = np.setdiff1d(data.y_train, labels)
    if len(lost):
        print(f"worker {worker}: none of its {len(labels)} rows is of class {lost[0]}")
    low, high = data.x_train.min(), data.x_train.max()
    if worker == 0 and low >= 0 and 128 <= high <= 255:
        print(
            f"x_train reaches from {low:g} to {high:g}: if it has pixels, divide by 255"
        )


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
