"""Vectors of which each worker has a part. Sharded-Data-Parallel's script calls it.

A unit of n numbers is cut into N parts of n / N, rounded up; part k is worker k's. The
last parts are filled up with zeros. A worker's shard has its part of every unit, one
behind the other. Two halves of an all-reduce go from a vector to the parts and back:

    reduce-scatter  every worker has a vector, and gets its part of the mean
    all-gather      every worker has its part, and gets the vector

Each sends N − 1 parts from every worker. Source: Thakur, Rabenseifner, Gropp,
Optimization of collective communication operations in MPICH, 2005.
"""

from cluster import ring, units
from cluster import tensorflow_v1 as tf


class Ring(ring.Ring):
    """All workers of a run. Their center variable is whole on each, or in parts."""

    def __init__(self, args):
        super().__init__(args)
        self.args, self.held = args, None

    def center(self, learning):
        """Returns the Center, as --stage wants it."""
        self.held = Center(self.args, self, learning)
        return self.held


def rows(vector, count):
    """Returns the parts of a vector, [count, part], filled up with zeros."""
    more = -vector.shape.num_elements() % count
    return tf.reshape(tf.pad(vector, [[0, more]]) if more else vector, [count, -1])


class Center:
    """The center variable w; a worker has `part` of it: its shard, all in stage 0."""

    def __init__(self, args, ring, learning):
        self.stage, self.ring, self.bytes = args.stage, ring, 0
        self.workers = ring.workers if self.stage else 1
        self.plan = units.Plan(learning, cut=self.stage > 1)
        self.units, self.size = self.plan.units, sum(self.plan.units)
        self.parts = [-(-size // self.workers) for size in self.units]
        # TensorFlow has the workers in the order of their names: 0, 1, 10, 2.
        self.order = sorted(range(self.workers), key=str)
        self.fed, self.shards = tf.placeholder(tf.float32, [self.size]), {}
        start = self.shard_of(learning.start, args.task_index if self.stage else 0)
        self.part = self._part("center", start)

    def _part(self, name, start):
        if not self.stage:
            return tf.get_variable(name, initializer=start)
        # Of this worker: nobody is sent it, and nobody compares it with another's.
        own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        self.shards[name] = tf.get_variable(name, initializer=start, **own)
        return self.shards[name]

    def shard(self, name):
        """Returns a variable of zeros, as long as `part`."""
        return self._part(name, tf.zeros(self.part.shape))

    def shard_of(self, vector, worker):
        """Returns a worker's shard of a vector [P]."""
        parts, at = tf.split(vector, self.units), self.order.index(worker)
        return tf.concat([rows(part, self.workers)[at] for part in parts], axis=0)

    def joined(self, shards):
        """Returns the vector [P], from the shards of all workers."""
        stack = tf.stack([shards[worker] for worker in self.order])
        pieces = tf.split(stack, self.parts, axis=1)
        sizes = zip(pieces, self.units, strict=True)
        return tf.concat([tf.reshape(p, [-1])[:size] for p, size in sizes], axis=0)

    def read_value(self):
        """Returns all of w, for the test; it is fed if it is in parts."""
        return self.fed if self.stage else self.part.read_value()

    def read(self):
        """Returns what this worker holds of w in a round: all units, or its shard."""
        held = self.part.read_value()
        every = range(len(self.units) if self.stage in (1, 2) else 0)
        return [self._all_gather(held, unit) for unit in every] or [held]

    def gradients(self, held, batch):
        """Returns the loss, and this worker's part of each unit's mean gradient."""

        def weights(unit):  # in stage 3 `held`, which `read` returned, is a shard
            return self._all_gather(*held, unit) if self.stage == 3 else held[unit]

        return self.plan.build(held, batch, weights, self._reduce)

    def _all_gather(self, shard, unit):
        """Returns a unit, of which every worker's shard has a part."""
        begin, end = sum(self.parts[:unit]), sum(self.parts[: unit + 1])
        part = shard[begin:end]
        if self.workers > 1:
            shape = [self.workers * self.parts[unit]]
            part = self._made(tf.raw_ops.CollectiveGather, part, shape=shape)
        return part[: self.units[unit]]

    def _reduce(self, vector):
        """Returns this worker's part of the mean of a vector: a reduce-scatter.

        CollectiveReduceScatterV2 is for GPUs only. So each worker sends each other one
        its part, and adds up what comes, in the order of the workers. TensorFlow makes
        this exchange only in a call with a gather or an all-reduce, which a round has.
        """
        if self.workers == 1:
            return self.ring.mean(vector)
        exchange = tf.raw_ops.CollectiveAllToAllV2
        found = self._made(exchange, rows(vector, self.workers), ordering_token=[])
        return tf.reduce_sum(found, axis=0) / self.workers

    def _made(self, operation, tensor, **options):
        """Returns what all workers make of their tensors; each sends N − 1 parts."""
        self.bytes += 4 * tensor.shape[-1] * (self.workers - 1)
        options |= dict(group_size=self.workers, group_key=ring.GROUP)
        options |= dict(instance_key=next(self.ring.keys), communication_hint="ring")
        with tf.device(self.ring.device), tf.control_dependencies(self.ring.after):
            return operation(input=tensor, **options)

    def sent(self):
        """Returns the bytes of what was built since last asked; None in stage 0."""
        sent, self.bytes = self.bytes, 0
        return sent if self.stage else None
