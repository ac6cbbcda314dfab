"""The learning problem: ratings, explained by a row of numbers for each user and item.

Matrix factorization: the guess for user u and item i is μ + w_u · w_i, where μ is the
mean rating. The file to replace with a problem of your own. A script calls:

    ratings = Ratings(args)                                 from the flags
    data = ratings.load(name, workers)                      before anything starts
    learning = build(data, args, worker, workers)           in the worker's graph

`load` raises ValueError with a sentence for whoever gave the name. The schemes see one
table of rows, those of the users first, then those of the items; `loss` gets only the
rows that a mini-batch names.
"""

import collections
import os

import numpy as np

from cluster import tensorflow_v1 as tf

DRAWN = "drawn"  # the name of the ratings that are made here
SIZES = 10000, 2000  # users and items of drawn ratings
TEST = 20000  # most ratings of the test set: one in ten
SEPARATORS = {".csv": ",", ".dat": "::", ".data": None}  # of MovieLens' files

# x int32 [n, 2]: rows of the table, a user's and an item's; y float32 [n]: ratings.
# `rows` are those of the whole table, `mean` is μ.
Data = collections.namedtuple("Data", "x_train y_train x_test y_test rows mean")
Problem = collections.namedtuple(
    "Problem",
    [
        "start",  # the shape of the table w [rows, d], a tf.TensorSpec
        "batch",  # batch() returns (x [B, 2], y [B]) of this worker's next mini-batch
        "loss",  # loss(w[x] [B, 2, d], batch) is the scalar that is minimized
        "test",  # test(lookup) returns the scalars (loss, metric) on the test set
        "metric",  # what the metric is called: rmse
    ],
)


# --- Data ---------------------------------------------------------------------


class Ratings:
    """Where the ratings come from: drawn from a known model, or from a file.

    Drawn: the true row of a user or an item is `rank` numbers, a function of its
    number, so that there is no second table; a rating is 3 + u · i + noise, and u · i
    has variance 1. So the rmse of no guess is below `noise`. Row number j of n is drawn
    with a probability that falls as (j + 1) ** -skew.
    """

    FLAG = "--ratings"  # what names them, for a sentence

    def __init__(self, args, fits=lambda rows: None):
        """`args` are the flags; `fits(rows)` raises ValueError for too large a table.

        --users and --items that are not given are those of a file, or SIZES.
        """
        self.users, self.items, self.count = args.users, args.items, args.draw
        self.rank, self.noise, self.skew = args.rank, args.noise, args.skew
        self.seed, self.batch, self.fits = args.seed, args.batch_size, fits
        if args.data == DRAWN:
            self.users, self.items = self.users or SIZES[0], self.items or SIZES[1]

    def load(self, name, workers=1):
        """Returns the `Data` of `drawn` ratings or of a file; raises ValueError."""
        if name == DRAWN:
            user, item, rating = self.draw()
            users, items = self.users, self.items
        else:
            user, item, rating = _read(name)
            users = _number_of(user, self.users, "user", "--users")
            items = _number_of(item, self.items, "item", "--items")
            mixed = np.random.default_rng(0).permutation(len(user))
            user, item, rating = user[mixed], item[mixed], rating[mixed]
        if users + items >= 2**31:
            raise ValueError(f"{users} users and {items} items: at most 2**31 - 1 rows")
        self.fits(users + items)
        rows = np.stack([user, item + users], 1).astype(np.int32)
        test = min(TEST, len(rows) // 10)
        least = self.batch * workers
        if not test or len(rows) - test < least:
            raise ValueError(
                f"{len(rows) - test} ratings to train with, and {workers} workers with "
                f"--batch_size {self.batch} need {least}"
            )
        rating = rating.astype(np.float32)
        return Data(
            rows[test:],
            rating[test:],
            rows[:test],
            rating[:test],
            users + items,
            float(rating[test:].mean()),
        )

    def draw(self):
        """Returns users, items and ratings [count], drawn from the known model."""
        random = np.random.default_rng(self.seed)
        sizes = self.users, self.items
        user, item = (self._rows(random.random(self.count), n) for n in sizes)
        truth = self.true_rows(user, 0) * self.true_rows(item, 1)
        noise = self.noise * random.standard_normal(self.count)
        return user, item, 3 + truth.sum(1) * self.rank**-0.5 + noise

    def _rows(self, uniform, n):
        """Returns row numbers below n for uniform numbers in [0, 1), by the skew."""
        # The inverse of the distribution with density x ** -skew from 1 to n + 1.
        power = 1 - self.skew
        x = (n + 1.0) ** uniform
        if power:
            x = (1 + uniform * ((n + 1.0) ** power - 1)) ** (1 / power)
        return np.minimum(x, n).astype(np.int64) - 1

    def true_rows(self, numbers, kind):
        """Returns the true rows [n, rank] of users (kind 0) or items (1): variance 1.

        A hash of (number, column, kind, seed), by the finalizer of splitmix64 (Steele,
        Lea, Flood 2014), read as a uniform number from -√3 to √3.
        """
        with np.errstate(over="ignore"):
            z = np.asarray(numbers, np.uint64)[:, None] * np.uint64(self.rank)
            z = z + np.arange(self.rank, dtype=np.uint64)
            z = (2 * z + np.uint64(kind)) * np.uint64(0x9E3779B97F4A7C15)
            z ^= np.uint64(self.seed) * np.uint64(0xD1B54A32D192ED03)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
            z ^= z >> np.uint64(31)
        return (z / 2.0**63 - 1) * 3**0.5


def _number_of(ids, given, what, flag):
    """Returns how many rows a file's ids need; raises ValueError if one is outside."""
    number = int(ids.max()) + 1 if given is None else given
    wrong = np.flatnonzero((ids < 0) | (ids >= number))
    if len(wrong):
        outside = f"rating {wrong[0]} is of {what} {ids[wrong[0]]}"
        raise ValueError(f"{outside}, which is not in 0..{number - 1} ({flag})")
    return number


def _read(name):
    """Returns users, items int64 and ratings float64 [n] of a file."""
    ending = os.path.splitext(name)[1]
    if ending not in (".npz", *SEPARATORS):
        raise ValueError(
            f"choose {DRAWN}, a .npz file, or MovieLens' .csv, .dat, .data"
        )
    if not os.path.isfile(name):
        raise ValueError("no such file")
    if ending == ".npz":
        return _read_npz(name)
    return _read_text(name, SEPARATORS[ending])


def _read_npz(name):
    """Returns the arrays `user`, `item`, `rating`; ids are row numbers from 0."""
    try:
        with np.load(name, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:
        raise ValueError(f"not a readable .npz file ({error})") from error
    for key in ("user", "item", "rating"):
        if key not in arrays:
            raise ValueError(f"has no {key}; found {', '.join(arrays) or 'nothing'}")
        if arrays[key].ndim != 1 or len(arrays[key]) != len(arrays["user"]):
            raise ValueError(f"{key} {arrays[key].shape} must be one for each rating")
        kind = np.number if key == "rating" else np.integer
        if not np.issubdtype(arrays[key].dtype, kind):
            raise ValueError(f"{key} must hold numbers, not {arrays[key].dtype}")
    user, item = (arrays[key].astype(np.int64) for key in ("user", "item"))
    return user, item, _finite(arrays["rating"].astype(float), "rating {}")


def _read_text(name, separator):
    """Returns what MovieLens' files have: user, item, rating[, time], a line each.

    Their ids are names: they become row numbers in the order of the ids.
    """
    columns = []
    with open(name, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            fields = line.strip().split(separator)
            if number == 1 and not fields[0].isdigit():
                continue  # the names of the columns
            try:
                columns.append((int(fields[0]), int(fields[1]), float(fields[2])))
            except (ValueError, IndexError):
                raise ValueError(
                    f"line {number} is not user, item, rating: {line.strip()[:60]!r}"
                ) from None
    if not columns:
        raise ValueError("has no ratings")
    user, item, rating = zip(*columns, strict=True)
    user, item = (np.unique(ids, return_inverse=True)[1] for ids in (user, item))
    return user, item, _finite(np.array(rating), "rating {}")


def _finite(values, what):
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(f"{what.format(wrong[0])} is {values[wrong[0]]}")
    if not len(values):
        raise ValueError("has no ratings")
    return values


def batches(data, batch_size, seed, worker=0, workers=1):
    """Returns the function that returns the next mini-batch of one worker.

    Worker k of N has ratings k, k + N, k + 2N ..., in another order in each epoch; what
    is left of an epoch when the last whole mini-batch is drawn is not used in it.
    """
    x, y = data.x_train[worker::workers], data.y_train[worker::workers]
    whole = len(y) // batch_size * batch_size
    ids, values = outside(x), outside(y)

    def epoch(number):
        key = tf.stack([tf.constant(seed + worker, tf.int64), number])
        order = tf.argsort(tf.random.stateless_uniform([len(y)], key))[:whole]
        order = tf.reshape(order, [-1, batch_size])
        return tf.data.Dataset.from_tensor_slices(order)

    # As it is: AutoGraph would write a file, which who is killed leaves behind.
    unconverted = tf.autograph.experimental.do_not_convert
    dataset = tf.data.Dataset.range(2**62).flat_map(unconverted(epoch))
    dataset = dataset.map(
        unconverted(lambda rows: (tf.gather(ids, rows), tf.gather(values, rows)))
    )
    options = tf.data.Options()  # see the other folders' problem.py
    options.autotune.enabled = False
    iterator = tf.data.make_initializable_iterator(
        dataset.prefetch(2).with_options(options)
    )
    # The run starts the input with the tables, once per session.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next


def outside(array):
    """Returns an array as a tensor, which is not a constant: the graph stays small."""
    tensor = tf.numpy_function(lambda: array, [], array.dtype)
    tensor.set_shape(array.shape)
    return tensor


# --- Model --------------------------------------------------------------------


def build(data, args, worker=0, workers=1):
    """Returns the `Problem` of one worker, in the graph that is being built."""
    batch = batches(data, args.batch_size, args.seed, worker, workers)

    def loss(rows, batch):
        # mean of ½ (μ + w_u · w_i − r)² + λ/2 (|w_u|² + |w_i|²)
        squares = 0.5 * _error(rows, batch, data.mean) ** 2
        return tf.reduce_mean(squares + args.l2 / 2 * tf.reduce_sum(rows**2, [1, 2]))

    def test(lookup):
        ids, values = outside(data.x_test), outside(data.y_test)
        error = _error(lookup(ids), (ids, values), data.mean)
        mean = tf.reduce_mean(error**2)
        return 0.5 * mean, tf.sqrt(mean)

    start = tf.TensorSpec([data.rows, args.rank])
    return Problem(start, batch, loss, test, "rmse")


def _error(rows, batch, mean):
    """Returns μ + w_u · w_i − r [B] for rows [B, 2, d]."""
    return mean + tf.reduce_sum(rows[:, 0] * rows[:, 1], axis=1) - batch[1]
