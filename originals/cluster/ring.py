"""What peers add up, around a ring. Scripts of peers, `lockstep`, `peers` call it.

An all-reduce is one operation of TensorFlow on each worker, CollectiveReduce with the
hint `ring`. Worker k cuts its vector into N chunks and talks to two others: it receives
from k − 1 and sends to k + 1.

    N − 1 steps   it adds its own chunk to the one that comes, and sends the sum on:
                  after them each worker has one chunk summed over all
    N − 1 steps   it sends on that chunk, and every one that comes

Each chunk is added up in one order and in one place, so that all workers get the same
bits. A long vector is cut in up to eight parts, each with a ring of its own.

Source: Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, JPDC 69(2), 2009.
"""

import itertools

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.task import Failure

GROUP = 1  # the key of the ring: all workers of a run have the same
CHUNK = 2 << 20  # bytes, at most: while one chunk is added, the next is sent
BUCKET = 4 << 20  # bytes of a gradient that go around as soon as they are there


def traffic(size, workers):
    """Returns the bytes that a worker sends to all-reduce `size` bytes, on average."""
    return 2 * (workers - 1) * size / workers


def rings(size, workers):
    """Returns in how many rings at a time `size` bytes go around, 1 to 8."""
    return int(min(max(size / workers // CHUNK, 1), 8))  # more gain nothing


def behind(operations, waits=False):
    """Returns operations and all whose outputs they need; or for which one waits."""
    found, waiting = set(), [*operations]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
            waiting += op.control_inputs if waits else []
    return found


def layers(value, vector):
    """Returns the pieces into which a `tf.split` of the loss `value` cuts `vector`."""
    needed = behind([value.op])
    users = [op for op in vector.consumers() if op in needed]
    if len(users) == 1 and users[0].type == "Identity":
        return layers(value, users[0].outputs[0])
    if len(users) == 1 and users[0].type in ("Split", "SplitV"):
        return users[0].outputs
    return [vector]


class Ring:
    """All workers of a run, for operations that every one of them makes, in one order.

    They are told apart by keys: the n-th that one worker's graph builds meets the n-th
    of every other's. Each round of a call has keys of its own, see `lockstep`.
    """

    def __init__(self, args):
        self.workers = len(args.worker_hosts)
        self.keys, self.after = itertools.count(1), []
        self.device = f"/job:worker/task:{args.task_index}"

    @staticmethod
    def config(me):
        """Returns what the server and the sessions of worker `me` are configured by."""
        # They see itself and the leader, and wait for no other worker to open.
        filters = [f"/job:worker/task:{index}" for index in sorted({0, me})]
        new = tf.ConfigProto(device_filters=filters)
        new.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
        return new

    def center(self, learning):
        """Returns the center variable of a Problem: all of it on every worker."""
        return tf.get_variable("center", initializer=learning.start)

    @staticmethod
    def gradients(value, vector):
        """Returns ∇ value(vector) in buckets: end to end they are the gradient [P].

        Backpropagation has the gradient of the last layer first. A bucket of a few
        layers can go around the ring while those before it are still computed.
        Source: Li et al., PyTorch Distributed, 2020, arXiv 2006.15704, section 3.2.
        """
        pieces, buckets, size = layers(value, vector), [], BUCKET
        found = tf.gradients(value, pieces)
        if all(gradient is None for gradient in found):
            raise Failure("problem.py: loss() does not depend on the vector")
        for piece, gradient in reversed(list(zip(pieces, found, strict=True))):
            if size >= BUCKET:
                buckets, size = [[], *buckets], 0
            some = tf.zeros_like(piece) if gradient is None else gradient
            buckets[0].insert(0, tf.convert_to_tensor(some))
            size += piece.dtype.size * piece.shape.num_elements()
        return [tf.concat(bucket, axis=0) for bucket in buckets]

    def _reduced(self, tensor, merge, final="Id"):
        size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
        with tf.device(self.device), tf.control_dependencies(self.after):
            if self.workers == 1:
                return tf.identity(tensor)
            return tf.raw_ops.CollectiveReduce(
                input=tensor,
                group_size=self.workers,
                group_key=GROUP,
                instance_key=next(self.keys),
                merge_op=merge,
                final_op=final,
                subdiv_offsets=[0] * rings(size, self.workers),  # 0: in their order
                communication_hint="ring",
            )

    def mean(self, tensor):
        """Returns the mean over all workers, the same bits on each; of floats."""
        return self._reduced(tensor, "Add", "Div")

    def sum(self, tensor):
        """Returns the sum over all workers, the same bits on each."""
        return self._reduced(tensor, "Add")

    def largest(self, tensor):
        """Returns the largest over all workers, element by element."""
        return self._reduced(tensor, "Max")

    def broadcast(self, variables, chief):
        """Returns what gives all the chief's values: it adds them, the others zeros."""
        taken = []
        for variable in variables:
            value = variable.read_value()
            value = self.sum(value if chief else tf.zeros_like(value))
            taken.append(variable.assign(value, read_value=False))
        return tf.group(taken)


class ConsistencyCheck:
    """Whether variables have the same bits on all workers, for 32 bytes a variable."""

    def __init__(self, ring, variables):
        self.names, prints = [variable.op.name for variable in variables], []
        for variable in variables:
            octets = tf.bitcast(variable.read_value(), tf.uint8)
            hashed = tf.fingerprint(tf.reshape(octets, [1, -1]))[0]
            prints.append(
                tf.cast(tf.bitcast(tf.reshape(hashed, [2, 4]), tf.int32), tf.int64)
            )
        mine = tf.stack(prints)
        # All are x if the largest x of all workers is minus the largest −x.
        most = ring.largest(tf.stack([mine, -mine]))
        self.differ = tf.reduce_any(tf.not_equal(most[0], -most[1]), axis=1)

    def make(self, session):
        """Raises Failure, on every worker, if a variable is not the same on all."""
        differ = session.run(self.differ)
        if differ.any():
            name = self.names[int(np.argmax(differ))]
            raise Failure(f"{name} is not the same on all workers, bit by bit")
