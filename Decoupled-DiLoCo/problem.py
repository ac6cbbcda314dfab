"""The learning problem: handwritten digits and a small multilayer perceptron.

The same file in every folder, so that results compare, and the one to replace with a
problem of your own: `load`, `model`, `loss` and `accuracy`. A script calls:

    data = load(name, workers)                              before anything starts
    learning = build(data, batch_size, seed, worker, workers)    in the worker's graph

The schemes see the parameters as one flat vector [P], the center variable.
"""

import collections
import importlib.util
import os

import numpy as np

from cluster import tensorflow_v1 as tf

HIDDEN = 64  # units of the hidden layer

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


# --- Model --------------------------------------------------------------------


def shapes_of(data):
    """Returns the shapes of the parameters, in the order `model` takes them."""
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    return [(features, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]


def model(parameters, images, training=False):
    """Returns the logits of images [n, features]; `training` is for dropout."""
    w1, b1, w2, b2 = parameters
    return tf.nn.relu(images @ w1 + b1) @ w2 + b2


def loss(vector, batch, shapes, training=False):
    """Returns the mean cross-entropy (nats, scalar) of the model on a batch."""
    images, labels = batch
    logits = model(parameters(vector, shapes), images, training)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(each)


def accuracy(vector, batch, shapes):
    """Returns the share of a batch (scalar, 0 to 1) that the model gets right."""
    images, labels = batch
    guess = tf.argmax(model(parameters(vector, shapes), images), 1)
    right = tf.equal(guess, tf.cast(labels, tf.int64))
    return tf.reduce_mean(tf.cast(right, tf.float32))


# --- Problem ------------------------------------------------------------------
# `start` is the flat start vector [P], float32, the same in every worker. batch() gives
# the tensors of this worker's next mini-batch, loss(vector, batch) the float32 scalar
# that is minimized, test(vector) the scalars (loss, metric) of the test set.
Problem = collections.namedtuple("Problem", "start batch loss test metric")


def build(data, batch_size, seed, worker=0, workers=1):
    """Returns the `Problem` of one worker, in the graph that is being built."""
    shapes = shapes_of(data)
    with tf.name_scope("problem"):
        batch = batches(data, batch_size, seed, worker, workers)
        start = initial(shapes, seed)

    def loss_of(vector, batch):
        return loss(vector, batch, shapes, training=True)

    def test_of(vector):
        with tf.name_scope("test"):
            batch = outside(data.x_test), outside(data.y_test)
            return loss(vector, batch, shapes), accuracy(vector, batch, shapes)

    return Problem(start, batch, loss_of, test_of, "accuracy")


def initial(shapes, seed):
    """Returns the flat start vector [P], float32: He's normal weights, zero biases."""
    pieces = []
    for number, shape in enumerate(shapes):
        if len(shape) == 1:
            pieces.append(tf.zeros(shape))
            continue
        # He et al. 2015, arXiv 1502.01852, equation 10
        normal = tf.random.stateless_normal(shape, seed=[seed, number])
        pieces.append(tf.reshape(normal * (2.0 / np.prod(shape[:-1])) ** 0.5, [-1]))
    return tf.concat(pieces, axis=0)


def parameters(vector, shapes):
    """Cuts the flat vector [P] into tensors of the given shapes."""
    pieces = tf.split(vector, [int(np.prod(shape)) for shape in shapes])
    return [tf.reshape(*pair) for pair in zip(pieces, shapes, strict=True)]


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
