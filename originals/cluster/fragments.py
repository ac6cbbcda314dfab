"""A vector in pieces of one size, of which each has its turn. Scripts call it.

The last piece is filled up with zeros, which stay zeros.
"""

from cluster import tensorflow_v1 as tf


class Fragments:
    """Vectors [P] as `count` pieces, each of P / count elements, rounded up."""

    def __init__(self, elements, count):
        """`elements` is P."""
        self.elements, self.count = elements, count
        self.size = -(-elements // count)

    def _rows(self, vector):
        more = self.size * self.count - self.elements
        return tf.reshape(tf.pad(vector, [[0, more]]), [self.count, self.size])

    def turn(self, step):
        """Returns whose turn it is at a global step: int32, from 0."""
        return tf.cast(step % self.count, tf.int32)

    def get(self, vector, number):
        """Returns piece `number` of a vector [P], int32, or some [n]."""
        return tf.gather(self._rows(vector), number)

    def put(self, vector, number, piece):
        """Returns the vector [P] with this piece in it, or with some [n, ..]."""
        where, pieces = tf.reshape(number, [-1, 1]), tf.reshape(piece, [-1, self.size])
        rows = tf.tensor_scatter_nd_update(self._rows(vector), where, pieces)
        return tf.reshape(rows, [-1])[: self.elements]
