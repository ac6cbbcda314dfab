"""A vector in fewer bytes: how it is encoded for the wire, and read. Scripts call it.

A message is one tensor to each ps, for its piece of the vector:

    topk, random_k  int32 [2, k_i]: where in the piece, and the bits of the float there
    sign            uint8 [4 + n / 8]: the bits of the scale, then one for each element
    int8            int8 [4 + n]: the bits of the scale, then a byte for each element
"""

import numpy as np

from cluster import tensorflow_v1 as tf

SPARSE = ("topk", "random_k")
METHODS = (*SPARSE, "sign", "int8")
LARGEST = 127  # of an int8
PLACES = np.arange(8, dtype=np.uint8)  # of the bits in a byte


def count(args, elements, t):
    """Returns k_t, of `elements` P: an int, or in warm-up an int32 scalar.

    `t` are the rounds that the worker has made, int64. The share that is sent falls
    from nearly all to --keep in --warmup rounds, by a constant factor each round.
    Source: Lin et al. 2018, section 3.3; their code has the exponent, by epochs.
    """
    if not args.warmup:
        return max(1, round(args.keep * elements))
    part = tf.minimum(1.0, tf.cast((t + 1) / (args.warmup + 1), tf.float32))
    share = tf.cast(args.keep, tf.float32) ** part
    return tf.maximum(1, tf.cast(tf.round(share * elements), tf.int32))


def encode(vector, center, args, t):
    """Returns a message for each piece of `center`, and what they say together.

    `vector` is float32 [P], as is what they say; `t` is as in `count`. Who reads a
    message needs `decode`, and nothing else.
    """
    sizes = [w.shape.num_elements() for w in center]
    if args.method in SPARSE:
        k = count(args, sum(sizes), t)
        messages = _sparse(vector, sizes, _chosen(vector, args, k, t))
    else:
        # The scale is the whole vector's, whatever its pieces are.
        size, sign = tf.abs(vector), args.method == "sign"
        scale = tf.reduce_mean(size) if sign else tf.reduce_max(size) / LARGEST
        messages = []
        for piece in tf.split(vector, sizes):
            body = _signs(piece) if sign else _bytes(piece, scale)
            head = tf.bitcast(scale, body.dtype)
            messages.append(tf.concat([head, body], axis=0))
    said = [decode(m, w, args) for m, w in zip(messages, center, strict=True)]
    return messages, tf.concat(said, axis=0)


def _chosen(vector, args, k, t):
    """Returns the k elements to be sent, in ascending order."""
    score = tf.abs(vector)
    if args.method == "random_k":
        seed = tf.stack([args.seed + (args.task_index << 32), t])
        score = tf.random.stateless_uniform(vector.shape, seed)
    return tf.sort(tf.math.top_k(score, k).indices)


def _sparse(vector, sizes, chosen):
    messages, first = [], 0
    for size in sizes:
        mine = tf.boolean_mask(chosen, (chosen >= first) & (chosen < first + size))
        bits = tf.bitcast(tf.gather(vector, mine), tf.int32)
        messages.append(tf.stack([mine - first, bits]))
        first += size
    return messages


def _signs(piece):
    """Returns eight signs to a byte; a set bit is a minus, so that 0 is positive."""
    padded = tf.pad(piece, [[0, -piece.shape.num_elements() % 8]])
    bits = tf.cast(tf.reshape(padded < 0, [-1, 8]), tf.uint8)
    return tf.reduce_sum(tf.bitwise.left_shift(bits, PLACES), axis=1)


def _bytes(piece, scale):
    return tf.cast(tf.round(tf.math.divide_no_nan(piece, scale)), tf.int8)


def decode(message, piece, args):
    """Returns what a message says, float32 as long as this piece of the center."""
    size = piece.shape.num_elements()
    if args.method in SPARSE:
        where, bits = tf.unstack(message)
        values = tf.bitcast(bits, tf.float32)
        return tf.scatter_nd(where[:, None], values, [size])
    scale, body = tf.bitcast(message[:4], tf.float32), message[4:]
    if args.method == "int8":
        return scale * tf.cast(body, tf.float32)
    bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(body[:, None], PLACES), 1)
    signs = 1.0 - 2.0 * tf.cast(tf.reshape(bits, [-1])[:size], tf.float32)
    return scale * signs
