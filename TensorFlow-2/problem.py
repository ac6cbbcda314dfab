"""The learning problem: handwritten digits and a small multilayer perceptron.

The same file in every folder, so that results compare, and the one to replace with a
problem of your own. A script calls two functions:

    data = load(name, workers)                              before anything starts
    learning = build(data, batch_size, seed, worker, workers)    in the worker's graph

`load` raises ValueError with a sentence for whoever gave the name. `build` returns a
`Problem`; its fields say what each thing must be. The schemes see the parameters as one
flat vector, the center variable; `parameters` cuts it into weights and biases.
"""

import collections
import importlib.util
import os

import numpy as np

from cluster import tensorflow_v1 as tf

HIDDEN = 64  # units of the hidden layer

Data = collections.namedtuple("Data", "x_train y_train x_test y_test")
Problem = collections.namedtuple(
    "Problem",
    [
        "start",  # the flat start vector [P], float32: the same in every worker
        "batch",  # batch() returns the tensors of this worker's next mini-batch
        "loss",  # loss(vector, batch) is the scalar that is minimized, float32
        "test",  # test(vector) returns (loss, metric) on the test set, and a feed
        "metric",  # what the metric is called: accuracy
        "initializer",  # the operation that starts the input, once per session
        "feed",  # what `initializer` is fed, so that the data is not in the graph
    ],
)


def build(data, batch_size, seed, worker=0, workers=1):
    """Returns the `Problem` of one worker, in the graph that is being built."""
    shapes = shapes_of(data)
    with tf.name_scope("problem"):
        iterator, feed = batches(data, batch_size, seed, worker, workers)
        start = initial(shapes, seed)

    def loss_of(vector, batch):
        return loss(vector, batch, shapes, training=True)

    def test_of(vector):
        with tf.name_scope("test"):
            images = tf.placeholder(data.x_test.dtype, data.x_test.shape)
            labels = tf.placeholder(data.y_test.dtype, data.y_test.shape)
            batch = images, labels
            tensors = loss(vector, batch, shapes), accuracy(vector, batch, shapes)
        return tensors, {images: data.x_test, labels: data.y_test}

    return Problem(
        start=start,
        batch=iterator.get_next,
        loss=loss_of,
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


# --- Model --------------------------------------------------------------------


def shapes_of(data):
    """Returns the shapes of the parameters, in the order `model` takes them."""
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    return [(features, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]


def model(parameters, images, training=False):
    """Returns the logits [n, classes] of images [n, features].

    `training` is for layers that differ in training, as dropout does; here none.
    """
    w1, b1, w2, b2 = parameters
    return tf.nn.relu(images @ w1 + b1) @ w2 + b2


def initial(shapes, seed):
    """Returns the flat start vector [P], float32: He's normal weights, zero biases.

    The inputs of a unit are all axes of its weights but the last, also of a
    convolution's. Source: He et al. 2015, arXiv 1502.01852, equation 10.
    """
    pieces = []
    for number, shape in enumerate(shapes):
        if len(shape) == 1:
            pieces.append(tf.zeros(shape))
            continue
        normal = tf.random.stateless_normal(shape, seed=[seed, number])
        pieces.append(tf.reshape(normal * (2.0 / np.prod(shape[:-1])) ** 0.5, [-1]))
    return tf.concat(pieces, axis=0)


def parameters(vector, shapes):
    """Cuts the flat vector [P] into tensors of the given shapes."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    pieces = tf.split(vector, sizes)
    return [tf.reshape(*pair) for pair in zip(pieces, shapes, strict=True)]


def loss(vector, batch, shapes, training=False):
    """Returns the mean cross-entropy (nats, scalar) of the model on a batch."""
    images, labels = batch
    logits = model(parameters(vector, shapes), images, training)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits
    )
    return tf.reduce_mean(losses)


def accuracy(vector, batch, shapes):
    """Returns the share of a batch (scalar, 0 to 1) that the model gets right."""
    images, labels = batch
    guess = tf.argmax(model(parameters(vector, shapes), images), 1)
    right = tf.equal(guess, tf.cast(labels, tf.int64))
    return tf.reduce_mean(tf.cast(right, tf.float32))
