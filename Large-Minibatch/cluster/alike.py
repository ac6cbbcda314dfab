"""The same weights on every worker: taken over, and compared. `meeting` calls it."""

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.exits import Failure


def shared(own):
    """Returns the global variables of the graph but those in `own`, the chief's."""
    own = [variable.ref() for variable in own]
    return [v for v in tf.global_variables() if v.ref() not in own]


def take_over(peers, variables, chief):
    """Returns the operation by which every worker gets the chief's values.

    `peers` is the Ring: the chief adds its values, the others zeros.
    """
    taken = []
    for variable in variables:
        value = variable.read_value()
        value = peers.sum(value if chief else tf.zeros_like(value))
        taken.append(variable.assign(value, read_value=False))
    return tf.group(taken)


class Check:
    """Whether variables have the same bits on all workers, for 32 bytes a variable."""

    def __init__(self, peers, variables):
        """`peers` is the Ring."""
        self.names, prints = [variable.op.name for variable in variables], []
        for variable in variables:
            octets = tf.bitcast(variable.read_value(), tf.uint8)
            hashed = tf.fingerprint(tf.reshape(octets, [1, -1]))[0]
            prints.append(
                tf.cast(tf.bitcast(tf.reshape(hashed, [2, 4]), tf.int32), tf.int64)
            )
        mine = tf.stack(prints)
        # All are x if the largest x of all workers is minus the largest −x.
        most = peers.largest(tf.stack([mine, -mine]))
        self.differ = tf.reduce_any(tf.not_equal(most[0], -most[1]), axis=1)

    def make(self, session):
        """Raises Failure, on every worker, if a variable is not the same on all."""
        differ = session.run(self.differ)
        if differ.any():
            name = self.names[int(np.argmax(differ))]
            raise Failure(f"{name} is not the same on all workers, bit by bit")
