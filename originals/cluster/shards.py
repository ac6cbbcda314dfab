"""Vectors of which each worker has a part. Sharded-Data-Parallel's script calls it.

A unit of n numbers is cut into N parts of n / N, rounded up; part k is worker k's. The
last parts are filled up with zeros. A worker's shard has its part of every unit, one
behind the other. Two halves of an all-reduce go from a vector to the parts and back:

    reduce-scatter  every worker has a vector, and gets its part of the mean
    all-gather      every worker has its part, and gets the vector

Each sends N − 1 parts from every worker. Sources: Thakur, Rabenseifner, Gropp,
Optimization of collective communication operations in MPICH, 2005; Rajbhandari et al.,
ZeRO, 2020, arXiv 1910.02054, section 7.
"""

import collections

from cluster import ring
from cluster import tensorflow_v1 as tf
from cluster.units import Unit, units

# `size` numbers of a vector from `begin` on; in its worker's shard they begin `at`.
Slice = collections.namedtuple("Slice", "begin at size")


def filled(vector, size):
    """Returns a vector with zeros behind it, so that it has `size` numbers."""
    more = size - vector.shape.num_elements()
    return tf.pad(vector, [[0, more]]) if more else vector


class Ring(ring.Ring):
    """All workers of a run; the center variable is whole on each, or in parts."""

    def __init__(self, args):
        super().__init__(args)
        self.me, self.stage = args.task_index, args.stage
        self.held, self.sent = None, 0

    def center(self, learning):
        """Returns the Center, as --stage wants it."""
        self.held = Center(self, learning)
        return self.held

    def reduce_scatter(self, vector):
        """Returns this worker's part of the mean of a vector [n] over all workers.

        CollectiveReduceScatterV2 is for GPUs only. So each worker sends each other one
        its part, and adds up what comes, in the order of the workers. TensorFlow makes
        this exchange only in a call with a gather or an all-reduce, which a round has.
        """
        if self.workers == 1:
            return tf.identity(vector)
        size = vector.shape.num_elements()
        part = -(-size // self.workers)
        rows = tf.reshape(filled(vector, part * self.workers), [self.workers, part])
        self.sent += 4 * part * (self.workers - 1)
        with tf.device(self.device):
            rows = tf.raw_ops.CollectiveAllToAllV2(
                input=rows,
                group_size=self.workers,
                group_key=ring.GROUP,
                instance_key=next(self.keys),
                ordering_token=[],
                communication_hint="ring",
            )
        return tf.reduce_sum(rows, axis=0) / self.workers

    def all_gather(self, part, size):
        """Returns the vector [size] of which every worker gives its part."""
        if self.workers == 1:
            return tf.identity(part)
        whole = part.shape.num_elements() * self.workers
        self.sent += 4 * (whole - part.shape.num_elements())
        with tf.device(self.device):
            vector = tf.raw_ops.CollectiveGather(
                input=part,
                group_size=self.workers,
                group_key=ring.GROUP,
                instance_key=next(self.keys),
                shape=[whole],
                communication_hint="ring",
            )
        return vector[:size]

    def all_sent(self):
        """Returns the bytes of all parts sent by what was built since last asked.

        That is a round's; None if it has no parts.
        """
        sent, self.sent = self.sent, 0
        return sent if self.stage else None


class Center:
    """The center variable: `whole` on every worker, or None, and `part`, its shard.

    Without stages `part` is the whole, too.
    """

    def __init__(self, ring, learning):
        self.ring, self.stage, start = ring, ring.stage, learning.start
        self.size = start.shape.num_elements()
        self.units = units(learning) if self.stage > 1 else [Unit(0, self.size)]
        self.workers = ring.workers if self.stage else 1
        self.parts = [-(-unit.size // self.workers) for unit in self.units]
        self.whole, self.shards, self.fed = None, {}, None
        if self.stage < 3:
            self.whole = tf.get_variable("center", initializer=start)
            start = self.whole.read_value()
        if not self.stage:
            self.part = self.whole
        elif self.stage < 3:
            self.part = self._own("part", self._mine(start))
        else:
            self.part = self.shards["center"] = self._own("center", self._mine(start))

    @staticmethod
    def _own(name, start):
        # Of this worker: nobody is sent it, and nobody compares it with another's.
        own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        return tf.get_variable(name, initializer=start, **own)

    def shard(self, name):
        """Returns a variable of zeros, as long as `part`; all are saved together."""
        zeros = tf.zeros(self.part.shape)
        if not self.stage:
            return tf.get_variable(name, initializer=zeros, trainable=False)
        self.shards[name] = self._own(name, zeros)
        return self.shards[name]

    def slices(self, worker):
        """Returns the Slices of the center variable that a worker has, in order."""
        found, at = [], 0
        for unit, part in zip(self.units, self.parts, strict=True):
            end = unit.begin + unit.size
            begin = min(unit.begin + worker * part, end)
            found.append(Slice(begin, at, min(part, end - begin)))
            at += part
        return found

    def _mine(self, vector):
        pieces = zip(self.slices(self.ring.me), self.parts, strict=True)
        mine = [
            filled(vector[one.begin : one.begin + one.size], part)
            for one, part in pieces
        ]
        return mine[0] if len(mine) == 1 else tf.concat(mine, axis=0)

    def read(self):
        """Returns what this worker holds of w: all of it, or its shard."""
        return self.part.read_value() if self.whole is None else self.whole.read_value()

    def weights(self, held, number):
        """Returns the weights [size] of a unit, from what this worker or all hold."""
        unit = self.units[number]
        if self.whole is not None:
            return held[unit.begin : unit.begin + unit.size]
        return self._gather(held, number)

    def _gather(self, shard, number):
        at, part = sum(self.parts[:number]), self.parts[number]
        size = self.units[number].size
        return self.ring.all_gather(shard[at : at + part], size)

    def gather(self, after):
        """Returns the operations by which all get all of w, unit by unit.

        They come after those in `after`, which they are if nobody holds all of w.
        """
        if self.whole is None or not self.stage:
            return after
        for number, unit in enumerate(self.units):
            with tf.control_dependencies(after):
                vector = self._gather(self.part.read_value(), number)
                place = self.whole
                if unit.size < self.size:
                    place = place[unit.begin : unit.begin + unit.size]
                after = [place.assign(vector).op]
        return after

    def read_value(self):
        """Returns all of w, for the test; it is fed if no worker has it."""
        if self.whole is not None:
            return self.whole.read_value()
        self.fed = tf.placeholder(tf.float32, [self.size])
        return self.fed
