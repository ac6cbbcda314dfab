"""The learning problem: who will click? A log in which users and items come and go.

DeepFM: each id, of a user, an item or whatever a field of the log names, has a row of
numbers; pairs of rows are multiplied, and a perceptron looks at all of them together.
The file to replace with a problem of your own. A script calls:

    add_flags(parser)
    clicks = Clicks(args)                                   from the flags
    data = clicks.load(name, workers)                       before anything starts
    learning = build(data, args)                            in the worker's graph

`load` raises ValueError with a sentence for whoever gave the name. The schemes see ids
of any kind, whole numbers or texts, and a flat vector w of all other weights.
"""

import collections
import os

import numpy as np

from cluster import flags
from cluster import tensorflow_v1 as tf

DRAWN = "drawn"  # the name of the log that is made here
SEPARATORS = {".csv": ",", ".dat": "::", ".data": None}  # of MovieLens' files
CRITEO = (".txt", ".tsv")  # label, 13 numbers and 26 names, with tabs between
FIELDS = "user, item, rating, time", "label, 13 numbers, 26 names"
LIKED = 4  # stars from which on a rating of MovieLens is a click
FACTORS = 4  # numbers of the hidden model by which clicks are drawn

# ids int64 or bytes [n, fields], in the order of time; clicks float32 [n], 0 or 1.
# `ctr` is the share of clicks in what is to be trained.
Data = collections.namedtuple("Data", "ids clicks test_ids test_clicks ctr")
Problem = collections.namedtuple(
    "Problem",
    [
        "start",  # the dense weights w [P] at the start, float32
        "kind",  # of the ids: tf.int64 or tf.string
        "fields",  # how many ids an impression has
        "batch",  # batch(n) returns (ids [B, fields], clicks [B]), the n-th mini-batch
        "loss",  # loss((w, rows [B, fields, d]), batch) is the scalar that is minimized
        "test",  # test(w, lookup) returns (loss, {name: metric}) on the test set
        "metric",  # None: `test` names its metrics
    ],
)


# --- Data ---------------------------------------------------------------------


def add_flags(parser):
    """Adds the flags of the log that is drawn, and of the model."""
    add = parser.add_argument
    add("--days", type=flags.positive_int, default=60, help="drawn, the last to test")
    add("--impressions", type=flags.positive_int, default=3000, help="drawn in a day")
    add("--users", type=flags.positive_int, default=500, help="who come every day")
    add("--born", type=flags.positive_int, default=40, help="new items in a day")
    add("--life", type=flags.positive_int, default=15, help="days of an item")
    add(
        "--once",
        type=flags.fraction,
        default=0.3,
        help="share of impressions by users who come only once",
    )
    add("--skew", type=flags.fraction, default=0.5, help="how uneven popularity is")
    add("--hidden", type=flags.positive_int, default=16, help="units of the perceptron")


class Clicks:
    """Where the log comes from: drawn from a hidden model, or from a file."""

    def __init__(self, args, fits=lambda: None):
        """`args` are the flags; `fits()` raises ValueError for too large a table."""
        self.args, self.fits = args, fits

    def load(self, name, workers=1):
        """Returns the `Data` of the `drawn` log or of a file; raises ValueError."""
        self.fits()
        if name == DRAWN:
            ids, clicks = self.draw()
            test = self.args.impressions
        else:
            ids, clicks = _read(name)
            test = len(clicks) // 10
        train, least = len(clicks) - test, self.args.batch_size * workers
        if not test or train < least:
            raise ValueError(
                f"{train} impressions to train with, and {workers} workers with "
                f"--batch_size {self.args.batch_size} need {least}"
            )
        clicks = clicks.astype(np.float32)
        ctr = float(clicks[:train].mean())
        if not 0 < ctr < 1 or not 0 < clicks[train:].mean() < 1:
            raise ValueError("all impressions are clicks, or none is")
        return Data(ids[:train], clicks[:train], ids[train:], clicks[train:], ctr)

    def draw(self):
        """Returns ids int64 [n, 2], of users (even) and items (odd), and clicks [n].

        On each day `born` items come, which live for `life` days. `once` of all
        impressions are of users who come once. A click has the probability
        σ(−1 + b_u + b_i + u · i), for numbers b and vectors u, i of the hidden model.
        """
        args, random = self.args, np.random.default_rng(self.args.seed)
        n = args.days * args.impressions
        day = np.repeat(np.arange(args.days), args.impressions)
        user = self._uneven(random.random(n), args.users)
        once = random.random(n) < args.once
        user[once] = args.users + np.arange(once.sum())
        # Those that live on a day: the newest, number 0, is seen most often.
        age = self._uneven(random.random(n), args.born * args.life)
        item = (day + args.life) * args.born - 1 - age
        hidden = []
        for count in (args.users + once.sum(), (args.days + args.life) * args.born):
            hidden.append(random.normal(0, 1, (count, 1 + FACTORS)))
        u, i = hidden[0][user], hidden[1][item]
        logit = -1 + 0.7 * (u[:, 0] + i[:, 0]) + 0.4 * (u[:, 1:] * i[:, 1:]).sum(1)
        clicks = random.random(n) < 1 / (1 + np.exp(-logit))
        return np.stack([2 * user, 2 * item + 1], 1), clicks

    def _uneven(self, uniform, n):
        """Returns numbers below n; j is drawn as often as (j + 1) ** -skew says."""
        power = 1 - self.args.skew
        x = (1 + uniform * ((n + 1.0) ** power - 1)) ** (1 / power)
        return np.minimum(x, n).astype(np.int64) - 1


def _read(name):
    """Returns ids [n, fields] and clicks [n] of a file, in the order of time."""
    ending = os.path.splitext(name)[1]
    if ending not in (".npz", *SEPARATORS, *CRITEO):
        known = "MovieLens' .csv, .dat, .data or Criteo's .txt, .tsv"
        raise ValueError(f"choose {DRAWN}, a .npz file, {known}")
    if not os.path.isfile(name):
        raise ValueError("no such file")
    if ending == ".npz":
        return _read_npz(name)
    made, split = [], _criteo if ending in CRITEO else _movielens
    with open(name, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\n").split(SEPARATORS.get(ending, "\t"))
            if number == 1 and not fields[0].isdigit():
                continue  # the names of the columns
            try:
                made.append(split(fields))
            except (ValueError, IndexError):
                what = FIELDS[ending in CRITEO]
                text = f"line {number} is not {what}: {line.strip()[:60]!r}"
                raise ValueError(text) from None
    if not made:
        raise ValueError("has no impressions")
    times, clicks, ids = zip(*made, strict=True)
    order = np.argsort(np.array(times), kind="stable")
    return np.array(ids)[order], np.array(clicks)[order]


def _movielens(fields):
    """Returns time, click and ids of a line of MovieLens' files."""
    user, item, time = int(fields[0]), int(fields[1]), int(fields[3])
    return time, float(fields[2]) >= LIKED, (2 * user, 2 * item + 1)


def _criteo(fields):
    """Returns time, click and ids of a line of Criteo's log, which is in its order.

    A number becomes a name by its logarithm, as the winners of the contest did.
    """
    if len(fields) != 40 or fields[0] not in ("0", "1"):
        raise ValueError
    numbers = [
        str(int(np.log(float(x)) ** 2)) if x and float(x) > 2 else x
        for x in fields[1:14]
    ]
    ids = [f"{k}:{x}".encode() for k, x in enumerate([*numbers, *fields[14:]], 1)]
    return 0, fields[0] == "1", ids


def _read_npz(name):
    """Returns the arrays `ids` [n, fields] and `clicks` [n] of a file."""
    try:
        with np.load(name, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:
        raise ValueError(f"not a readable .npz file ({error})") from error
    for key in ("ids", "clicks"):
        if key not in arrays:
            raise ValueError(f"has no {key}; found {', '.join(arrays) or 'nothing'}")
    ids, clicks = arrays["ids"], arrays["clicks"]
    if ids.ndim != 2 or clicks.shape != ids.shape[:1] or not len(ids):
        raise ValueError(
            f"ids {ids.shape} and clicks {clicks.shape} must be [n, fields] and [n]"
        )
    if ids.dtype.kind == "U":
        ids = np.char.encode(ids)
    if ids.dtype.kind not in "iuS":
        raise ValueError(f"ids must be whole numbers or texts, not {ids.dtype}")
    wrong = np.flatnonzero((clicks != 0) & (clicks != 1))
    if len(wrong):
        raise ValueError(f"click {wrong[0]} is {clicks[wrong[0]]}, not 0 or 1")
    return ids if ids.dtype.kind == "S" else ids.astype(np.int64), clicks


# --- Model --------------------------------------------------------------------


def shapes(args, fields):
    """Returns the shapes of the dense weights: one bias, and a perceptron."""
    return [(1,), (fields * args.rank, args.hidden), (args.hidden,), (args.hidden, 1)]


def logits(w, rows, args):
    """Returns the log-odds of a click [B] for w [P] and rows [B, fields, d].

    The first number of a row is the id's own weight. The others are its factors.
    Source: Guo et al., DeepFM, 2017, arXiv 1703.04247, equations 1 to 4.
    """
    fields = rows.shape[1]
    sizes = [int(np.prod(shape)) for shape in shapes(args, fields)]
    pieces = zip(tf.split(w, sizes), shapes(args, fields), strict=True)
    bias, w1, b1, w2 = (tf.reshape(piece, shape) for piece, shape in pieces)
    first, factors = rows[:, :, 0], rows[:, :, 1:]
    # ∑ over pairs of fields of v_i · v_j = ½ (|∑ v_i|² − ∑ |v_i|²)
    pairs = tf.reduce_sum(factors, 1) ** 2 - tf.reduce_sum(factors**2, 1)
    deep = tf.nn.relu(tf.reshape(rows, [-1, fields * args.rank]) @ w1 + b1) @ w2
    return bias + tf.reduce_sum(first, 1) + 0.5 * tf.reduce_sum(pairs, 1) + deep[:, 0]


def start_of(data, args):
    """Returns the dense weights at the start [P], float32: no pair, and the mean."""
    random = np.random.default_rng(args.seed)
    found = []
    for shape in shapes(args, data.ids.shape[1]):
        scale = (2 / shape[0]) ** 0.5 if len(shape) == 2 else 0
        found.append(random.normal(0, 1, shape).ravel() * scale)
    found[0][0] = np.log(data.ctr / (1 - data.ctr))
    return np.concatenate(found).astype(np.float32)


def auc(clicks, guesses):
    """Returns the share of pairs, a click and none, that are in the right order.

    Exactly, ties count half: by ranks. Both arrays are [n].
    """
    _, which, counts = np.unique(guesses, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[which]
    ones = int(clicks.sum())
    pairs = ones * (len(clicks) - ones)
    return (rank[clicks > 0].sum() - ones * (ones + 1) / 2) / pairs


def build(data, args):
    """Returns the `Problem`, in the graph that is being built.

    The mini-batches of the log have numbers, in the order of time; after the last one
    comes the first again.
    """
    size, kind = args.batch_size, data.ids.dtype.kind
    kind, whole = tf.string if kind == "S" else tf.int64, len(data.clicks) // size

    def at(n):
        where = slice(n % whole * size, (n % whole + 1) * size)
        return data.ids[where], data.clicks[where]

    def batch(n):
        ids, clicks = tf.numpy_function(at, [n], [kind, tf.float32])
        ids.set_shape([size, data.ids.shape[1]])
        clicks.set_shape([size])
        return ids, clicks

    def losses(w, rows, clicks):
        found = logits(w, rows, args)
        cost = tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=found)
        return tf.reduce_mean(cost), tf.sigmoid(found)

    def loss(weights, batch):
        return losses(*weights, batch[1])[0]

    def test(w, lookup):
        ids, clicks = (
            outside(data.test_ids, kind),
            outside(data.test_clicks, tf.float32),
        )
        cost, guesses = losses(w, lookup(ids), clicks)
        area = tf.numpy_function(auc, [clicks, guesses], tf.float64)
        calibration = tf.reduce_mean(guesses) / tf.reduce_mean(clicks)
        return cost, {"AUC": area, "calibration": calibration}

    start = tf.constant(start_of(data, args))
    return Problem(start, kind, data.ids.shape[1], batch, loss, test, None)


def outside(array, kind):
    """Returns an array as a tensor, which is not a constant: the graph stays small."""
    tensor = tf.numpy_function(lambda: array, [], kind)
    tensor.set_shape(array.shape)
    return tensor
