"""A loss whose weights come one unit after the other. Sharded-Data-Parallel calls it.

A problem cuts its vector of weights by one `tf.split`. A unit is some of the pieces,
about a layer. Loss and gradient are built for weights that are not there; then each
unit is fetched where it is needed, and put in:

    forward   a unit is fetched after all operations that needed the unit before it
    backward  it is fetched again, when the gradient from above is there; its own
              gradient is reduced as soon as it is complete

TensorFlow frees a tensor after its last use, so that no unit is held in between.
"""

import collections

from cluster import tensorflow_v1 as tf
from cluster.ring import behind, layers

MOST = 64  # a unit has at least this part of the vector: a bias goes with a matrix

Unit = collections.namedtuple("Unit", "begin size")


def units(learning):
    """Returns the units into which the loss of a Problem cuts its vector."""
    size = learning.start.shape.num_elements()
    with tf.name_scope("units"):
        vector = tf.placeholder(tf.float32, [size])
        pieces = layers(learning.loss(vector, learning.batch()), vector)
    found, begin, end = [], 0, 0
    for piece in pieces:
        end += piece.shape.num_elements()
        if end == size or MOST * (end - begin) >= size:
            found.append(Unit(begin, end - begin))
            begin = end
    return found


class Plan:
    """A loss that is built for weights that are not there.

    `pieces` are those of each unit, end to end. `needs` is {tensor's ref: units}, of
    pieces and of views: what follows from pieces and constants alone, as a matrix does.
    """

    def __init__(self, loss, batch, units, held):
        """`loss(vector, batch)` is a scalar; `held` is what this worker has of w."""
        graph = tf.get_default_graph()
        start = len(graph.get_operations())
        with tf.name_scope("plan") as scope:
            # The sleep of a slow worker takes its first number, and nobody any other.
            vector = tf.placeholder_with_default(held, [None])
            vector.set_shape([sum(unit.size for unit in units)])
            self.value = tf.identity(loss(vector, batch))
        self.operations = graph.get_operations()[start:]
        self.waits = [op for user in vector.consumers() for op in user.control_inputs]
        self.pieces, self.needs, end = [[] for _ in units], {}, 0
        for piece in layers(self.value, vector):
            number = [unit.begin + unit.size > end for unit in units].index(True)
            self.pieces[number].append(piece)
            self.needs[piece.ref()] = {number}
            end += piece.shape.num_elements()
        for op in self.operations:
            needs = [self.needs.get(tensor.ref(), set()) for tensor in op.inputs]
            known = all(t.ref() in self.needs or not t.op.inputs for t in op.inputs)
            if any(needs) and known and not op.control_inputs:
                needs = set().union(*needs)
                self.needs |= {output.ref(): needs for output in op.outputs}
        views = [ref.deref() for ref in self.needs]
        self.names = {tensor.name.removeprefix(scope): tensor for tensor in views}

    def units_of(self, op):
        """Returns the numbers of the units that an operation needs, in order."""
        return sorted({n for t in op.inputs for n in self.needs.get(t.ref(), ())})

    def put(self, number, weights):
        """Puts in the weights [size] of a unit."""
        end = 0
        for piece in self.pieces[number]:
            begin, end = end, end + piece.shape.num_elements()
            replace({piece.ref(): weights[begin:end]}, piece.consumers())


def replace(new, operations):
    """Gives operations other inputs; `new` is {tensor's ref: another tensor}."""
    for op in operations:
        for index, tensor in enumerate(op.inputs):
            if tensor.ref() in new:
                op._update_input(index, new[tensor.ref()])


def read(tensors):
    """Returns an operation [one] that reads tensors, to be waited for; [] of none.

    A control edge alone would not do. For oneDNN TensorFlow makes one operation of a
    Conv2D and its BiasAdd, or of a Pad and its Conv2D, if nobody else reads what the
    first makes. Where the second needs weights that wait for the first, the one would
    wait for itself: the call never ends. An Assert is not optimized away.
    """
    if not tensors:
        return []
    return [tf.raw_ops.Assert(condition=tf.constant(True), data=tensors)]


def value_and_gradients(loss, batch, units, held, weights, reduce):
    """Returns the loss, and what `reduce` made of each unit's gradient, in order.

    `held` is what this worker has of w. `weights(number)` builds a unit's weights
    [size] from it; `reduce` takes a gradient [size].
    """
    graph = tf.get_default_graph()
    # Only the views of the second plan are used: the backward pass has its own.
    forward, second = (Plan(loss, batch, units, held) for _ in range(2))
    start = len(graph.get_operations())
    found = tf.gradients(forward.value, [p for some in forward.pieces for p in some])
    for k, one in enumerate(found):
        if one is not None:
            one = tf.convert_to_tensor(one)
            # A view that is a gradient gets an operation that takes it.
            found[k] = tf.identity(one) if one.ref() in forward.needs else one
    backward = graph.get_operations()[start:]
    needed = behind([t.op for t in [forward.value, *found] if t is not None], True)
    own = {t.ref(): second.names.get(name, t) for name, t in forward.names.items()}
    replace(own, backward)
    each = iter(found)
    gradients = [[(piece, next(each)) for piece in some] for some in forward.pieces]

    users, newest, reduced, todo = collections.defaultdict(list), None, {}, {*backward}
    for op in [*forward.operations, *backward]:
        plan = second if op in todo else forward
        view = any(output.ref() in plan.needs for output in op.outputs)
        used = op in needed and (not view or op is forward.value.op)
        for number in plan.units_of(op) if used else ():
            if (plan, number) not in users:
                # Backward it waits for all other inputs of its first operation, too.
                others = [t for t in op.inputs if t.ref() not in plan.needs]
                before = [*users[newest], *(others if plan is second else ())]
                before = read([*before, *reduced.values()])
                with tf.control_dependencies([*forward.waits, *before]):
                    plan.put(number, weights(number))
                newest = plan, number
            users[plan, number] += op.outputs
        todo.discard(op)
        for number, pairs in enumerate(gradients if plan is second else ()):
            some = [g.op for _, g in pairs if g is not None]
            if number not in reduced and some and todo.isdisjoint(some):
                reduced[number] = reduce(joined(pairs))
    for number, pairs in enumerate(gradients):  # without a gradient
        if number not in reduced:
            reduced[number] = reduce(joined(pairs))
    return forward.value, [reduced[number] for number in range(len(units))]


def joined(pairs):
    """Returns the gradient of a unit, from its pieces and theirs; None is 0."""
    found = [tf.zeros(piece.shape) if g is None else g for piece, g in pairs]
    return found[0] if len(found) == 1 else tf.concat(found, axis=0)
