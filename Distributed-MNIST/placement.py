"""Where variables are: --placement round_robin, greedy or partitioned. The script asks.

`tf.train.replica_device_setter` asks a strategy on which ps a new variable goes. Round
robin is its default: it takes the next ps, however large the variable is. Greedy was in
TensorFlow 1's contrib: it takes the ps with the fewest bytes so far. Partitioned cuts
every large variable along its first axis into a piece for each ps.
"""

import collections
import math

from cluster import tensorflow_v1 as tf

KINDS = ("round_robin", "greedy", "partitioned")
LEAST = 1 << 12  # bytes: a variable that is smaller is not worth two messages


class Placement:
    """A `ps_strategy` for replica_device_setter, and the variables that it placed."""

    def __init__(self, kind, num_ps):
        self.kind, self.num_ps = kind, num_ps
        self.bytes, self.made, self.following = [0] * num_ps, 0, collections.deque()

    def __call__(self, operation):
        """Returns the index of the ps for a variable that is being created."""
        shape, kind = operation.get_attr("shape"), operation.get_attr("dtype")
        if any(d.size < 0 for d in shape.dim):
            return 0
        size = math.prod(d.size for d in shape.dim) * tf.as_dtype(kind).size
        if self.following:
            ps = self.following.popleft()
        elif self.kind == "greedy":
            ps = min(range(self.num_ps), key=self.bytes.__getitem__)
        else:
            ps = self.made % self.num_ps
            self.made += 1
        self.bytes[ps] += size
        return ps

    def variables(self, network):
        """Creates the variables of a Network; returns their pieces, and `join`.

        The pieces are a list, each of them on one ps. `join(values)` makes one tensor a
        variable out of a list with the value of each piece.
        """
        cut = tf.min_max_variable_partitioner(self.num_ps, min_slice_size=LEAST)
        partitioner = cut if self.kind == "partitioned" else None
        self.wholes = [
            tf.get_variable(name, initializer=network.start(i), partitioner=partitioner)
            for i, name in enumerate(network.names)
        ]
        groups = [pieces_of(whole) for whole in self.wholes]

        def join(values):
            rest = iter(values)
            parts = [[next(rest) for _ in group] for group in groups]
            return [p[0] if len(p) == 1 else tf.concat(p, axis=0) for p in parts]

        return [piece for group in groups for piece in group], join

    def slots(self, name):
        """Creates a variable of zeros beside each one, cut as it is; returns pieces."""
        made = []
        for whole in self.wholes:
            pieces = pieces_of(whole)
            self.following.extend(task_of(piece) for piece in pieces)
            cut = tf.fixed_size_partitioner(len(pieces))
            slot = tf.get_variable(
                f"{name}/{whole.name.partition(':')[0]}",
                initializer=tf.zeros(whole.shape),
                partitioner=cut if len(pieces) > 1 else None,
                trainable=False,
            )
            made += pieces_of(slot)
        return made

    def print_bytes(self, pieces):
        """Prints how many bytes of the model each ps holds, and so sends in a pull."""
        total = [0] * self.num_ps
        for piece in pieces:
            total[task_of(piece)] += piece.shape.num_elements() * piece.dtype.size
        for ps, size in enumerate(total):
            share = 100 * size / sum(total)
            print(f"ps {ps} holds {size} bytes of the model, {share:.0f} %")


def pieces_of(variable):
    """Returns the pieces of a variable: itself, if it is not partitioned."""
    return [variable] if hasattr(variable, "handle") else list(variable)


def task_of(piece):
    """Returns the index of the ps that a piece is on."""
    return tf.DeviceSpec.from_string(piece.device).task
