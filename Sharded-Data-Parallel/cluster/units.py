"""A loss whose weights come one unit after the other. `shards` calls it.

A problem cuts its vector of weights by one `tf.split`. A unit is some of the pieces,
about a layer. Loss and gradient are planned once, for weights that are not there. The
plan is a list of layers, forward and then backward: what needs a unit, and all that
follows until another unit is needed. In a round one layer after the other is built:

    its unit is fetched when the layer before needs its own no more
    the gradient of a unit is reduced as soon as it is complete

TensorFlow frees a tensor after its last use, so that no unit is held in between.
"""

import collections

from cluster import ring
from cluster import tensorflow_v1 as tf

MOST = 64  # a unit has at least this part of the vector: a bias goes with a matrix

# The units that a layer needs, its operations, and those of them that use the units.
Layer = collections.namedtuple("Layer", "units operations users")


class Plan:
    """The loss of a Problem and its gradient, in layers.

    `units` are the sizes of the units, `groups` their pieces, each with its gradient.
    """

    def __init__(self, learning, cut):
        """All is one unit if the vector of a Problem is not to be `cut`."""
        graph, size = tf.get_default_graph(), learning.start.shape.num_elements()
        with tf.name_scope("plan"):
            self.vector = tf.placeholder(tf.float32, [size])
            self.batch = learning.batch()
            start = len(graph.get_operations())
            self.value = tf.identity(learning.loss(self.vector, self.batch))
            pieces = ring.layers(self.value, self.vector)
            found = tf.gradients(self.value, pieces, unconnected_gradients="zero")
            found = [tf.identity(tf.convert_to_tensor(one)) for one in found]
        self.units, self.groups, self.needs = [0], [[]], {}
        for piece, gradient in zip(pieces, found, strict=True):
            if cut and MOST * self.units[-1] >= size:
                self.units.append(0)
                self.groups.append([])
            self.needs[piece.ref()] = {len(self.units) - 1}
            self.units[-1] += piece.shape.num_elements()
            self.groups[-1].append((piece, gradient))
        self.layers, self.views = [Layer(set(), [], [])], {}
        self.ends = {one.op for one in (self.value, *found)}
        needed = ring.behind(self.ends, waits=True) - {piece.op for piece in pieces}
        for op in graph.get_operations()[start:]:
            if op in needed:
                self._add(op)

    def _add(self, op):
        """Adds an operation to the layers; or to `views`, which are {view: units}.

        A view follows from pieces and constants alone, as a matrix does. It is built
        for each layer that needs it: else it would be held from the first to the last.
        """
        units = set().union(*(self.needs.get(t.ref(), ()) for t in op.inputs))
        bound = op in self.ends or op.control_inputs or op.op_def.is_stateful
        if not bound and all(tensor.ref() in self.needs for tensor in op.inputs):
            self.needs |= {tensor.ref(): units for tensor in op.outputs}
            self.views |= {op: units} if units else {}  # a constant is there
            return
        if not units <= self.layers[-1].units:
            self.layers.append(Layer(units, [], []))
        self.layers[-1].operations.append(op)
        self.layers[-1].users.extend([op] if units else [])

    def build(self, held, batch, weights, reduce):
        """Returns the loss, and what `reduce` made of each unit's gradient, in order.

        `held` is what this worker has of w. `weights(unit)` builds the weights [size]
        of a unit; `reduce` takes a gradient [size].
        """
        known, reduced, before = {self.vector.ref(): held[0]}, {}, []
        both = self.batch, batch
        note(known, *(tf.nest.flatten(one, expand_composites=True) for one in both))
        for layer in self.layers:
            with tf.control_dependencies([read([*before, *reduced.values()])]):
                for unit in sorted(layer.units):
                    pieces = [piece for piece, _ in self.groups[unit]]
                    sizes = [piece.shape.num_elements() for piece in pieces]
                    note(known, pieces, tf.split(weights(unit), sizes))
            views = [op for op, units in self.views.items() if units <= layer.units]
            build([*views, *layer.operations], known)
            before = [tensor for op in layer.users for tensor in known[op].outputs]
            for unit, pairs in enumerate(self.groups):
                found = [known.get(gradient.ref()) for _, gradient in pairs]
                if unit not in reduced and all(one is not None for one in found):
                    reduced[unit] = reduce(tf.concat(found, axis=0))
        return known[self.value.ref()], [reduced[unit] for unit in sorted(reduced)]


def note(known, planned, built):
    """Notes in `known` what is built in the place of planned tensors."""
    known |= zip([tensor.ref() for tensor in planned], built, strict=True)


def build(operations, known):
    """Builds planned operations. `known` has what stands for them, and for refs."""
    definition = tf.GraphDef(versions=tf.get_default_graph().graph_def_versions)
    names, inputs, before = {op.name: op for op in operations}, {}, []
    for op in operations:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        node.attr.pop("_class", None)  # its device says where it is
        node.input[:] = [x for x in node.input if x[0] != "^" or x[1:] in names]
        waits = [other for other in op.control_inputs if other.name not in names]
        before += [known.get(other, other) for other in waits]
        others = [tensor for tensor in op.inputs if tensor.op.name not in names]
        inputs |= {tensor.name: known.get(tensor.ref(), tensor) for tensor in others}
    with tf.control_dependencies(before):
        built = tf.import_graph_def(definition, inputs, [*names], name="layer")
    for op, new in zip(operations, built, strict=True):
        known[op] = new
        note(known, op.outputs, new.outputs)


def read(tensors):
    """Returns the operation that reads tensors, to be waited for.

    A control edge alone would not do: oneDNN makes one operation of a Conv2D and its
    BiasAdd, or of a Pad and its Conv2D, if nobody else reads what is between. If the
    second needs weights that wait for the first, this one would wait for itself, for
    ever. An Assert is not optimized away.
    """
    true = tf.constant(True)
    return tf.raw_ops.Assert(condition=true, data=[true, *tensors])
