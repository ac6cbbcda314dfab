"""State of a scheme on each ps, and updates one after the other. Scripts call it.

An operation that changes one variable is whole by itself. An update that reads some
variables, and then changes several, is not: another push could change them meanwhile.
So each ps has a lock for such updates. Whoever holds it waits for no message.
"""

from cluster import rounds
from cluster import tensorflow_v1 as tf


def beside(center, name, rows):
    """Returns zeros [rows, P], {device: piece}, on each ps those of its piece of w.

    One variable: so a checkpoint has all rows of one moment. It fits any number of ps.
    """
    size = sum(piece.shape.num_elements() for piece in center)
    with tf.device(tf.train.replica_device_setter(len(center))):
        pieces = tf.get_variable(
            name,
            [rows, size],
            initializer=tf.zeros_initializer(),
            partitioner=tf.fixed_size_partitioner(len(center), axis=1),
            trainable=False,
        )
    return {piece.device: piece for piece in pieces}


def pushes(center, stats):
    """Returns a count for each ps, {device: int64 []}: of all updates so far.

    It begins as what the counters have, also after a restore.
    """
    counts = {}
    for piece in center:
        with tf.device(piece.device):
            made = tf.reduce_sum(stats.counters.read_value()[:, 0])
            counts[piece.device] = stats.temporary("pushes", made)
    return counts


def update(variables, pushed, applied, rule, *told):
    """Does what rounds.update does, on each ps for one push after the other.

    `rule(variable, piece, *told)` returns a list of operations. What is `told` are
    scalars on ps 0. All of it is here before the lock is taken.
    """

    def alone(variable, piece):
        here = [tf.identity(one) for one in told]
        mutex = tf.raw_ops.MutexV2(container="", shared_name="update")
        # On another ps than ps 0 `applied` may be here before the piece.
        with tf.control_dependencies([piece, *here]):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            done = rule(variable, piece, *here)
        with tf.control_dependencies(done):
            return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    return rounds.update(variables, pushed, applied, alone)
