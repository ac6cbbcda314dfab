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

    `name` is digits, mnist, fashion_mnist, or a .npz file with Keras' keys x_train,
    y_train, x_test, y_test; integer images are scaled by their largest value. Raises
    ValueError if that cannot be used, or has fewer training rows than workers.
    """
    if name == "digits":
        # The file behind sklearn.datasets.load_digits; scikit-learn itself would take
        # a second to import. A fixed shuffle: its writers come in order.
        package = importlib.util.find_spec("sklearn")
        if package is None:
            raise ValueError("they are in scikit-learn: pip install scikit-learn")
        folder = os.path.dirname(package.origin)
        path = os.path.join(folder, "datasets", "data", "digits.csv.gz")
        table = np.loadtxt(path, delimiter=",").astype(np.uint8)
        table = np.random.default_rng(0).permutation(table)
        x, y = table[:, :-1], table[:, -1]
        arrays = {"x_train": x[360:], "y_train": y[360:]}
        arrays.update(x_test=x[:360], y_test=y[:360])
    elif name in ("mnist", "fashion_mnist"):
        arrays = _download(name)
    else:
        arrays = _read(name)
    data = _checked(arrays)
    if len(data.y_train) < workers:
        raise ValueError(f"{len(data.y_train)} training rows for {workers} workers")
    return data


def _download(name):
    """Returns a data set of `tf.keras.datasets`, downloaded on first use."""
    try:
        (x, y), (x_test, y_test) = getattr(tf.keras.datasets, name).load_data()
    except Exception as error:
        raise ValueError(
            f"the download failed ({str(error).splitlines()[0]}); use --data digits, "
            f"or --data FILE.npz with a copy of Keras' {name}.npz"
        ) from error
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}


def _read(name):
    """Returns the arrays of a .npz file."""
    if not name.endswith(".npz"):
        raise ValueError("choose digits, mnist, fashion_mnist or a .npz file")
    if not os.path.isfile(name):
        raise ValueError("no such file")
    try:
        with np.load(name, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:
        raise ValueError(f"not a readable .npz file ({error})") from error


def _checked(arrays):
    """Returns `arrays` as `Data`; raises ValueError with what is wrong with them."""

    def wrong(sentence):
        raise ValueError(sentence)

    missing = [key for key in Data._fields if key not in arrays]
    if missing:
        wrong(f"has no {missing[0]}; found {', '.join(sorted(arrays)) or 'nothing'}")
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if not len(x.shape) or not x.size or not y.size:
            wrong(f"x_{part} {x.shape} and y_{part} {y.shape} must not be empty")
        real = any(np.issubdtype(x.dtype, kind) for kind in (np.integer, np.floating))
        if not real or not np.isfinite(x).all():
            wrong(f"x_{part} must hold finite numbers; it is {x.dtype}")
        if y.ndim != 1 or len(x) != len(y):
            wrong(f"y_{part} {y.shape} must be one label for each of {len(x)} images")
        if not np.issubdtype(y.dtype, np.integer):
            wrong(f"y_{part} must hold integers, not {y.dtype}")
        if x.shape[1:] != arrays["x_train"].shape[1:]:
            wrong(f"x_test images {x.shape[1:]} differ in shape from x_train's")
    classes = len(np.unique(arrays["y_train"]))
    if classes < 2:
        wrong("y_train has one class: there is nothing to learn")
    for part in ("train", "test"):
        outside = [
            int(v) for v in np.unique(arrays[f"y_{part}"]) if not 0 <= v < classes
        ]
        if outside:
            wrong(
                f"y_{part} has label {outside[0]}; the {classes} classes of y_train "
                f"must be numbered 0 to {classes - 1}"
            )
    scale = 1.0
    if np.issubdtype(arrays["x_train"].dtype, np.integer):
        scale = 1.0 / max(1, int(arrays["x_train"].max()))
    x_train, x_test = (
        arrays[key].reshape(len(arrays[key]), -1).astype(np.float32) * np.float32(scale)
        for key in ("x_train", "x_test")
    )
    y_train, y_test = (arrays[key].astype(np.int32) for key in ("y_train", "y_test"))
    return Data(x_train, y_train, x_test, y_test)


def batches(data, batch_size, seed, worker=0, workers=1):
    """Returns the mini-batches of one worker as (iterator, feed).

    Worker k of N trains on rows k, k + N, k + 2N ...: the shards are disjoint and
    complete. `iterator.get_next()` is a batch x float32 [batch_size, features],
    y int32 [batch_size]; every evaluation of it is a fresh one. `feed` is what
    `iterator.initializer` wants to be fed, so that the data is not in the graph.
    """
    x, y = data.x_train[worker::workers], data.y_train[worker::workers]
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
