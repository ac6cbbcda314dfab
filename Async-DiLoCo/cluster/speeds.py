"""How fast each worker computes, which ps 0 knows, and a window by it. Scripts call it.

A speed is of a worker's last window, without the time that it waited for messages.
A worker that has left keeps its speed until the ps begin again.
"""

from cluster import tensorflow_v1 as tf


class Speeds:
    """On ps 0: local steps a second, one number for each worker, 0 before its first."""

    def __init__(self, stats):
        self.stats = stats
        with tf.device(stats.device):
            self.all = stats.temporary("speeds", tf.zeros([stats.workers]))

    def window(self, most, after):
        """Returns this worker's T_k := max(1, ⌊T v_k / max v⌋), int64 on ps 0.

        `most` is T, which T_k is before this worker's first push. Source: Liu et al.,
        2024, arXiv 2401.09135, section on dynamic local updates.
        """
        with tf.device(self.stats.device), tf.control_dependencies(after):
            v = self.all.read_value()
            known, share = v[self.stats.me] > 0, v[self.stats.me] / tf.reduce_max(v)
            steps = tf.cast(most * tf.where_v2(known, share, 1.0), tf.int64)
            return tf.maximum(steps, 1)

    def note(self, steps, seconds, after):
        """Notes this worker's last window; returns what comes after it and `after`."""
        with tf.device(self.stats.device):
            speed = tf.cast(steps, tf.float64) / tf.maximum(seconds, 1e-9)
            row = tf.cast(speed, tf.float32)
            noted = self.stats.scatter("Update", self.all, self.stats.me, row)
            with tf.control_dependencies([noted]):
                return tf.identity(after)
