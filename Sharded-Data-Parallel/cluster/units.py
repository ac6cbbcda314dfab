"""A loss whose weights come one unit after the other. Sharded-Data-Parallel calls it.

A problem cuts its vector of weights into pieces; a unit is some, about a layer. `Plan`
is the loss and its gradient, never run; `Copy` copies it with other weights in it:

    forward   a unit is fetched after all operations that needed the unit before it
    backward  it is fetched again, when the gradient from above is there; its own
              gradient is reduced as soon as it is complete

TensorFlow frees a tensor after its last use, so that no unit is held in between.
"""

import collections

from cluster import tensorflow_v1 as tf

MOST = 64  # a unit has at least this part of the vector: a bias goes with a matrix

Unit = collections.namedtuple("Unit", "begin size")


def units(learning):
    """Returns the units into which the loss of a Problem cuts its vector."""
    size = learning.start.shape.num_elements()
    tf.train.get_or_create_global_step()  # the loss may read it
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
        if not self._find(self.vector, size):
            self.cuts = {self.vector.ref(): Unit(0, size)}

    def _find(self, tensor, size):
        """Finds the pieces that are cut from `tensor`; says whether it is only cut."""
        for op in tensor.consumers():
            if op.type == "Identity":
                self.waits += op.control_inputs
                cut = self._find(op.outputs[0], size)
            elif op.type in ("Split", "SplitV"):
                sizes = [piece.shape.num_elements() for piece in op.outputs]
                for k, piece in enumerate(op.outputs):
                    cut = self.cuts[piece.ref()] = Unit(sum(sizes[:k]), sizes[k])
            else:
                cut = op.type == "StridedSlice" and _cut(op, size)
                if cut:
                    self.cuts[op.outputs[0].ref()] = cut
            if not cut:
                return False
        return True

    def add_gradients(self):
        """Builds `gradients`: {ref of a piece: its gradient or None}."""
        found = tf.gradients(self.value, [ref.deref() for ref in self.cuts])
        found = [g if g is None else tf.convert_to_tensor(g) for g in found]
        self.gradients = dict(zip(self.cuts, found, strict=True))
        operations = tf.get_default_graph().get_operations()
        self.backward = operations[self.before + len(self.forward) :]


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


def _read(tensors):
    """Returns an operation [one] that reads tensors, to be waited for; [] of none.

    A control edge alone would not do. For oneDNN TensorFlow makes one operation of a
    Conv2D and its BiasAdd, or of a Pad and its Conv2D, if nobody else reads what the
    first makes. Where the second needs weights that wait for the first, the one would
    wait for itself: the call never ends. An Assert is not optimized away.
    """
    if not tensors:
        return []
    return [tf.raw_ops.Assert(condition=tf.constant(True), data=tensors)]


def value_and_gradients(loss, batch, units, weights, reduce):
    """Returns the loss, and what `reduce` made of each unit's gradient, in order.

    `weights(number)` builds a unit's weights [size]; `reduce` takes a gradient [size].
    """
    with tf.name_scope("plan"):
        plan = Plan(loss, batch, sum(unit.size for unit in units))
        plan.add_gradients()
    return Copy(plan, units, weights, reduce).make()


class Copy:
    """A copy of a plan, with other weights in it."""

    def __init__(self, plan, units, weights, reduce):
        self.plan, self.gradients = plan, plan.gradients
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
            waits = not self.depends.isdisjoint(op.control_inputs)
            if not waits and not any(tensor.ref() in ours for tensor in op.inputs):
                continue
            if op.type == "Const" or op.inputs and all(map(self._is_view, op.inputs)):
                self.views[op] = set().union(*map(self._needs, op.inputs))
            self.depends.add(op)
            ours |= {output.ref() for output in op.outputs}

    def _is_view(self, tensor):
        is_constant = tensor.op not in self.depends and not tensor.op.inputs
        return tensor.ref() in self.plan.cuts or tensor.op in self.views or is_constant

    def _needs(self, tensor):
        """Returns the units that a piece, or a view of one, is made of."""
        cut = self.plan.cuts.get(tensor.ref())
        return {self._unit_of(cut)} if cut else self.views.get(tensor.op, set())

    def _unit_of(self, cut):
        ends = [unit.begin + unit.size > cut.begin for unit in self.units]
        return ends.index(True)

    def make(self):
        """Returns the loss and the reduced gradients."""
        needed, numbers = self._needed(), range(len(self.units))
        views = [op for op in self.plan.waits if op in self.views]
        self.waits = [self._view(op, False) for op in views]
        for op in self.plan.forward:
            if op in needed:
                self._copy(op, False)
        value = self._tensor(self.plan.value, False)
        for op in self.plan.backward:
            if op in needed:
                self._copy(op, True)
                for number in filter(self._is_complete, numbers):
                    self._reduce(number)
        for number in numbers:  # without a gradient, or with one of constants
            self._reduce(number)
        return value, [self.reduced[number] for number in numbers]

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

    def _of(self, number):
        """Returns [(cut, gradient)] of the pieces of a unit that have a gradient."""
        pairs = [(self.plan.cuts[ref], g) for ref, g in self.gradients.items()]
        found = [(c, g) for c, g in pairs if g is not None]
        found = [(c, g) for c, g in found if self._unit_of(c) == number]
        return sorted(found, key=lambda pair: pair[0])

    def _is_complete(self, number):
        gradients = [gradient.op for _, gradient in self._of(number)]
        return bool(gradients) and all(op in self.copies for op in gradients)

    def _copy(self, op, backward):
        """Copies an operation. Backward, its unit waits for all its other inputs."""
        others = [t for t in op.inputs if not self._needs(t)]
        wait = [self._tensor(t, backward) for t in others] if backward else []
        inputs = [self._tensor(tensor, backward, wait) for tensor in op.inputs]
        copy = self.copies[op] = self._created(op, inputs)
        for number in set().union(*map(self._needs, op.inputs)):
            self.users[number, backward].append(copy)

    def _created(self, op, inputs):
        before = [other for other in op.control_inputs if other not in self.depends]
        copied = [self.copies.get(other) for other in op.control_inputs]
        before += [copy for copy in [*copied, *self.waits] if copy is not None]
        attributes = {k: v for k, v in op.node_def.attr.items() if k != "_class"}
        types = [output.dtype for output in op.outputs]
        name = op.name.rpartition("/")[2]
        create = tf.get_default_graph().create_op
        with tf.control_dependencies([] if op.type == "Const" else before):
            return create(op.type, inputs, types, attrs=attributes, name=name)

    def _tensor(self, tensor, backward, wait=()):
        """Returns the copy of a tensor, or the tensor if it needs no weights."""
        cut, op = self.plan.cuts.get(tensor.ref()), tensor.op
        if cut:
            number = self._unit_of(cut)
            unit = self._unit(number, backward, wait)
            begin = cut.begin - self.units[number].begin
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
            used = [x for op in self.users[self.newest] for x in op.outputs]
            with tf.control_dependencies(_read([*wait, *used, *self.reduced.values()])):
                self.fetched[key] = self.weights(number)
            self.newest = key
        return self.fetched[key]

    def _reduce(self, number):
        """Reduces the gradient of a unit, once; it is put together from its pieces."""
        if number in self.reduced:
            return
        (begin, size), parts, at = self.units[number], [], 0
        found = [(cut, self._tensor(g, True)) for cut, g in self._of(number)]
        places = [(c.begin - begin, tf.reshape(g, [c.size])) for c, g in found]
        for place, flat in places:
            if place < at:  # two pieces overlap
                ends = [[p, size - p - f.shape.num_elements()] for p, f in places]
                padded = [
                    tf.pad(f, [e]) for (_, f), e in zip(places, ends, strict=True)
                ]
                parts, at = [tf.add_n(padded)], size
                break
            parts += [tf.zeros([place - at]), flat] if place > at else [flat]
            at = place + flat.shape.num_elements()
        parts += [tf.zeros([size - at])] if size > at else []
        gradient = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        self.reduced[number] = self.reduce(gradient)
