"""A loss whose weights come one unit after the other. Sharded-Data-Parallel calls it.

A problem cuts its vector of weights into pieces. A unit is some pieces, one after the
other: about a layer. `Plan` builds the loss and its gradient once, as a plan that is
never run. `value_and_gradients` copies the plan, operation by operation, and puts other
weights into the copy:

    forward   a unit's weights are fetched before the first operation that needs them,
              and not before all operations that needed the unit before it are done
    backward  they are fetched again, once the gradient that comes from above is there;
              a unit's own gradient is reduced when it is complete, and then dropped

TensorFlow frees a tensor after its last use, so that no unit is held in between.
"""

import collections

from cluster import tensorflow_v1 as tf

MOST = 64  # a unit has at least this part of the vector: a bias goes with a matrix

Unit = collections.namedtuple("Unit", "begin size")


def whole(size):
    """Returns the units of a vector [size] that is not cut."""
    return [Unit(0, size)]


def units(learning):
    """Returns the units into which the loss of a Problem cuts its vector."""
    size = learning.start.shape.num_elements()
    with tf.name_scope("units"):
        cuts = Plan(learning.loss, learning.batch(), size).cuts.values()
    found, begin = [], 0
    for end in sorted({cut.begin + cut.size for cut in cuts} | {size}):
        inside = any(cut.begin < end < cut.begin + cut.size for cut in cuts)
        if not inside and (end == size or MOST * (end - begin) >= size):
            found.append(Unit(begin, end - begin))
            begin = end
    return found


class Plan:
    """The operations of a loss, and where it takes which piece of its vector."""

    def __init__(self, loss, batch, size):
        """`loss(vector [size], batch)` is a scalar."""
        graph = tf.get_default_graph()
        self.before = len(graph.get_operations())
        self.vector = tf.placeholder(tf.float32, [size])
        self.value = loss(self.vector, batch)
        self.forward = graph.get_operations()[self.before :]
        self.cuts, self.waits = {}, []  # {tensor's ref: Unit}
        if not self._find(self.vector):
            self.cuts, self.waits = {self.vector.ref(): Unit(0, size)}, []

    def _find(self, tensor):
        """Finds the pieces that are cut from `tensor`; says whether it is only cut."""
        for op in tensor.consumers():
            if op.type == "Identity":
                self.waits += op.control_inputs
                if not self._find(op.outputs[0]):
                    return False
            elif op.type in ("Split", "SplitV"):
                begin = 0
                for piece in op.outputs:
                    size = piece.shape.num_elements()
                    self.cuts[piece.ref()] = Unit(begin, size)
                    begin += size
            elif op.type == "StridedSlice":
                cut = _cut(op, self.vector.shape.num_elements())
                if not cut:
                    return False
                self.cuts[op.outputs[0].ref()] = cut
            else:
                return False
        return True

    def gradients(self):
        """Builds the gradients; returns {ref of a piece: its gradient or None}."""
        pieces = [ref.deref() for ref in self.cuts]
        found = tf.gradients(self.value, pieces)
        found = [g if g is None else tf.convert_to_tensor(g) for g in found]
        operations = tf.get_default_graph().get_operations()
        self.backward = operations[self.before + len(self.forward) :]
        return dict(zip(self.cuts, found, strict=True))


def _cut(op, size):
    """Returns the Unit of a slice vector[a:b] or vector[a], None of any other."""
    begin, end, step = (tf.get_static_value(tensor) for tensor in list(op.inputs)[1:])
    masks = "begin", "end", "ellipsis", "new_axis", "shrink_axis"
    first = {name: op.get_attr(f"{name}_mask") & 1 for name in masks}
    known = begin is not None and end is not None and step is not None
    if not known or step[0] != 1 or first["ellipsis"] or first["new_axis"]:
        return None
    a = 0 if first["begin"] else int(begin[0])
    b = size if first["end"] else int(end[0])
    a, b = (x + size if x < 0 else min(x, size) for x in (a, b))
    b = a + 1 if first["shrink_axis"] else b
    return Unit(a, b - a) if a < b else None


def value_and_gradients(loss, batch, units, weights, reduce):
    """Returns the loss, and what `reduce` made of each unit's gradient, in order.

    `weights(number)` builds the weights [size] of a unit, `reduce(gradient)` takes the
    gradient [size] of one.
    """
    with tf.name_scope("plan"):
        plan = Plan(loss, batch, sum(unit.size for unit in units))
        gradients = plan.gradients()
    return Copy(plan, gradients, units, weights, reduce).make()


class Copy:
    """A copy of a plan, with other weights in it."""

    def __init__(self, plan, gradients, units, weights, reduce):
        self.plan, self.gradients = plan, gradients
        self.units, self.weights, self.reduce = units, weights, reduce
        self.copies = {}  # {operation: copy}; of a view {(operation, backward): copy}
        self.fetched, self.newest = {}, None  # {(unit, backward): its weights}
        self.users = collections.defaultdict(list)  # copies that need these weights
        self.reduced, self.waits = {}, []
        self._sort()

    def _sort(self):
        """Finds what depends on the weights, and on nothing else: the views."""
        ours = set(self.plan.cuts)  # refs of tensors
        self.depends, self.views = set(), {}  # a view's value: the units it needs
        for op in [*self.plan.forward, *self.plan.backward]:
            if not any(tensor.ref() in ours for tensor in op.inputs):
                continue
            if all(map(self._is_view, op.inputs)):
                self.views[op] = set().union(*map(self._needs, op.inputs))
            self.depends.add(op)
            ours |= {output.ref() for output in op.outputs}

    def _is_view(self, tensor):
        is_constant = tensor.op not in self.depends and not tensor.op.inputs
        return bool(self._needs(tensor)) or is_constant

    def _needs(self, tensor):
        """Returns the units that a piece, or a view of one, is made of."""
        cut = self.plan.cuts.get(tensor.ref())
        return {self._unit_of(cut)} if cut else self.views.get(tensor.op, set())

    def _unit_of(self, cut):
        ends = [unit.begin + unit.size > cut.begin for unit in self.units]
        return ends.index(True)

    def make(self):
        """Returns the loss and the reduced gradients."""
        needed = self._needed()
        views = [op for op in self.plan.waits if op in self.views]
        self.waits = [self._view(op, False) for op in views]
        for op in self.plan.forward:
            if op in needed:
                self._copy(op, False)
        value = self._tensor(self.plan.value, False)
        complete = self._complete()
        for op in self.plan.backward:
            if op in needed:
                self._copy(op, True)
            for number in complete.pop(op, []):
                self._reduce(number)
        for number in range(len(self.units)):  # without a gradient, or of constants
            if number not in self.reduced:
                self._reduce(number)
        return value, [self.reduced[number] for number in range(len(self.units))]

    def _needed(self):
        """Returns the operations behind loss and gradients that are not views."""
        ends = [self.plan.value, *self.gradients.values()]
        waiting = [tensor.op for tensor in ends if tensor is not None]
        found = set()
        while waiting:
            op = waiting.pop()
            if op in self.depends and op not in found:
                found.add(op)
                waiting += [tensor.op for tensor in op.inputs] + op.control_inputs
        return found - self.views.keys()

    def _complete(self):
        """Returns {operation: units whose gradient is complete when it is copied}."""
        at = {op: place for place, op in enumerate(self.plan.backward)}
        last = {}
        for ref, gradient in self.gradients.items():
            if gradient is not None and gradient.op in at:
                number = self._unit_of(self.plan.cuts[ref])
                last[number] = max(last.get(number, -1), at[gradient.op])
        found = collections.defaultdict(list)
        for number, place in last.items():
            found[self.plan.backward[place]].append(number)
        return found

    def _copy(self, op, backward):
        """Copies an operation; its weights are fetched as late as can be."""
        others = [t for t in op.inputs if not self._needs(t)]
        wait = [self._tensor(t, backward) for t in others] if backward else []
        inputs = [self._tensor(tensor, backward, wait) for tensor in op.inputs]
        copy = self.copies[op] = self._created(op, inputs)
        for number in set().union(*map(self._needs, op.inputs)):
            self.users[number, backward].append(copy)

    def _created(self, op, inputs):
        others = [other for other in op.control_inputs if other not in self.views]
        before = [self.copies.get(other, other) for other in others]
        attributes = {k: v for k, v in op.node_def.attr.items() if k != "_class"}
        types = [output.dtype for output in op.outputs]
        name = op.name.rpartition("/")[2]
        with tf.control_dependencies(before):
            return tf.get_default_graph().create_op(
                op.type, inputs, types, attrs=attributes, name=name
            )

    def _tensor(self, tensor, backward, wait=()):
        """Returns the copy of a tensor, or the tensor if it needs no weights."""
        cut, op = self.plan.cuts.get(tensor.ref()), tensor.op
        if cut:
            number = self._unit_of(cut)
            unit = self._unit(number, backward, wait)
            begin = cut.begin - self.units[number].begin
            with tf.control_dependencies([] if backward else self.waits):
                return tf.reshape(unit[begin : begin + cut.size], tensor.shape)
        copy = self._view(op, backward, wait) if op in self.views else None
        copy = copy or self.copies.get(op, op)
        return copy.outputs[tensor.value_index]

    def _view(self, op, backward, wait=()):
        """Returns the copy of a view, which forward and backward have each."""
        if (op, backward) not in self.copies:
            inputs = [self._tensor(tensor, backward, wait) for tensor in op.inputs]
            self.copies[op, backward] = self._created(op, inputs)
        return self.copies[op, backward]

    def _unit(self, number, backward, wait):
        """Returns the weights of a unit, which the first call fetches."""
        key = number, backward
        if key not in self.fetched:
            before = [*wait, *self.users[self.newest], *self.reduced.values()]
            with tf.control_dependencies(before):
                self.fetched[key] = self.weights(number)
            self.newest = key
        return self.fetched[key]

    def _reduce(self, number):
        """Reduces the gradient of a unit, which is put together from its pieces."""
        begin, size = self.units[number]
        parts, at = [], begin
        for ref in sorted(self.gradients, key=lambda ref: self.plan.cuts[ref]):
            cut, gradient = self.plan.cuts[ref], self.gradients[ref]
            if gradient is not None and self._unit_of(cut) == number:
                parts += [tf.zeros([cut.begin - at])] * (cut.begin > at)
                parts.append(tf.reshape(self._tensor(gradient, True), [cut.size]))
                at = cut.begin + cut.size
        parts += [tf.zeros([begin + size - at])] * (begin + size > at)
        gradient = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        self.reduced[number] = self.reduce(gradient)
