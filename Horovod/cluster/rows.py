"""What the books are made of: names and numbers that several modules share."""

import collections

from cluster import tensorflow_v1 as tf

# Columns of the books, a row a worker. The updates of all rows are the global step.
COLUMNS = ("updates", "rounds", "dropped", "staleness", "examples", "pushed", "pulled")
# The largest of each, a row a worker: the time of the first push is negated for that.
EXTREMES = ("minus_first", "last", "staleness")
LEAST = -1e300  # stands for a time that is not known

# What became of a push: applied, too late for its step, after the last update, or
# made by a worker that has not joined this incarnation.
APPLIED, LATE, OVER, STRANGER = 1, 0, -1, -2

# What a push is told by ps 0, scalars there: its number from 0, how many updates came
# between pull and push, whether it is to be applied; `packed` is for the worker's log:
# [step after it, staleness, what became of it], int64.
Entry = collections.namedtuple("Entry", "number staleness applied packed")


def size(*tensors):
    """Returns the bytes that these tensors take in a message, from their shapes.

    A number; an int64 scalar, counted where they are, if a shape is not known before.
    """
    return sum(_elements(tensor) * tensor.dtype.size for tensor in tensors)


def _elements(tensor):
    if tensor.shape.is_fully_defined():
        return tensor.shape.num_elements()
    with tf.device(tensor.device):
        return tf.size(tensor, out_type=tf.int64)
