"""What problem.py gives a run: the fields of its Problem, checked. Scripts call it.

A field that is not as docs/problem.md has it ends the program with one sentence, which
names the field. An error inside a function of problem.py has Python's own traceback.
"""

import contextlib
import io
import re

import numpy as np

import cluster
from cluster import rounds, task
from cluster import tensorflow_v1 as tf
from cluster.task import Failure

FIELDS = ("start", "batch", "loss", "test", "metric", "initializer", "feed")
# Operations that change a variable, in TensorFlow's names: an update, and the rest.
UPDATES = r"(Sparse)?Apply\w+|Scatter\w*(Add|Sub|Mul|Div|Min|Max|Update)"
CHANGES = re.compile(rf"Assign\w*|(Resource)?({UPDATES}|StridedSliceAssign|CountUpTo)")
VARIABLES = "VarHandleOp", "VariableV2"
CALLS = "While", "If", "Case", "StatefulPartitionedCall"  # of a graph with state


def build(problem, data, args, worker=0, workers=1):
    """Returns what `problem.build` returns; in it `start` is a tensor float32 [P].

    Its functions check what they return. With --check they are also called once, and
    evaluated. Raises Failure with a sentence about the first wrong field.
    """
    task.doing("building the graph")
    details = data, args.batch_size, args.seed, worker, workers
    if args.check:
        # What it prints comes from the build below.
        with tf.Graph().as_default(), contextlib.redirect_stdout(io.StringIO()):
            _evaluate(_checked(problem, *details))
    return _checked(problem, *details)


def _wrong(field, sentence, place=""):
    raise Failure(f"{place or 'problem.py: '}{field} {sentence}")


def _checked(problem, *details):
    made, _ = _call("build()", problem.build, *details)
    if not isinstance(made, tuple):
        _wrong("build()", f"must return a Problem, a named tuple; not {made!r:.60}")
    for field in FIELDS:
        if not hasattr(made, field):
            _wrong("build()", f"returns {made!r:.60}, without the field {field!r}")
    if not isinstance(made.metric, str):
        _wrong("metric", f"must be a name, such as accuracy; not {made.metric!r:.60}")
    if made.initializer is None:
        _wrong("initializer", "must be the operation that starts the input; not None")
    drawn, seen, quiet = [], [], bool(details[3])  # worker 0 alone says what is unused

    def batch():
        tensors, drawn[:] = _call("batch()", made.batch)
        leaves = tf.nest.flatten(tensors, expand_composites=True)
        if not leaves or not all(map(tf.is_tensor, leaves)):
            _wrong("batch()", f"must return tensors, not {tensors!r:.60}")
        return tensors

    def loss(vector, batch):
        with _Collections():
            value, operations = _call("loss()", made.loss, vector, batch)
        _scalar("loss()", value)
        if not seen and tf.is_tensor(vector):
            seen.append(True)
            leaves = tf.nest.flatten(batch, expand_composites=True)
            _refuse_changes(vector, [*drawn, *operations], [value, *leaves])
            _say_what_is_not_trained(value, vector, quiet)
        return value

    def test(vector):
        returned, _ = _call("test()", made.test, vector)
        try:
            (loss, metric), feed = returned
        except (TypeError, ValueError):
            _wrong("test()", f"must return (loss, metric), feed; not {returned!r:.60}")
        metrics = metric.values() if isinstance(metric, dict) else [metric]
        for value in (loss, *metrics):
            _scalar("test()", value)
        return (loss, metric), feed

    return made._replace(start=_start(made.start), batch=batch, loss=loss, test=test)


def _start(value):
    try:
        start = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        _wrong("start", f"must be a vector, float32 [P]; not {value!r:.60}")
    if start.dtype != tf.float32 or start.shape.rank != 1 or not start.shape[0]:
        _wrong("start", f"must be float32 [P]; it is {start.dtype.name} {start.shape}")
    return start


def _scalar(field, value):
    shape = value.shape if tf.is_tensor(value) else None
    if shape is None or shape.rank not in (0, None) or not value.dtype.is_floating:
        what = f"{value.dtype.name} {shape}" if shape is not None else f"{value!r:.60}"
        _wrong(field, f"must give one number, a float32 scalar; it gives {what}")


def _call(field, function, *arguments):
    """Returns what a function of problem.py returns, and the operations that it made.

    It may make no weights: only the center variable is trained. What is called in each
    round may make no variable at all: it would make ten.
    """

    def weights():
        return {one.op.name for one in tf.trainable_variables()}

    graph, before = tf.get_default_graph(), weights()
    known = set(graph.get_operations())
    returned = function(*arguments)
    operations = [one for one in graph.get_operations() if one not in known]
    found = sorted(weights() - before)
    if field in ("batch()", "loss()"):
        found += [one.name for one in operations if one.type in VARIABLES]
    if found:
        text = f"makes the variable {found[0]}, which nothing trains: weights are parts"
        _wrong(field, f"{text} of the vector `start`")
    return returned, operations


class _Collections:
    """A context after which the graph's collections have no more tensors than before.

    A loss may keep tensors there, of regularisation, and add up all that it finds. In
    the next call, or outside the loop in whose body it was called, they would be wrong.
    """

    def __enter__(self):
        self.graph = graph = tf.get_default_graph()
        self.kept = {k: graph.get_collection(k) for k in graph.collections}

    def __exit__(self, kind, *_):
        tables = self.graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)
        loop = hasattr(self.graph, "outer_graph")
        if kind is None and loop and self.graph in [t.graph for t in tables]:
            _wrong("loss()", "makes a lookup table in a loop: make it in build()")
        for key in self.graph.collections:
            kept = {id(item) for item in self.kept.get(key, [])}
            found = self.graph.get_collection_ref(key)
            found[:] = [x for x in found if id(x) in kept or not tf.is_tensor(x)]


def _evaluate(made):
    """Calls each function once, and looks at the numbers that it gives."""
    tf.train.get_or_create_global_step()  # a run has it, and a loss may read it
    value = made.loss(made.start, made.batch())
    rounds.gradient(value, made.start)
    (loss, metric), feed = made.test(made.start)
    begin = tf.global_variables_initializer(), tf.local_variables_initializer()
    with tf.Session() as session:
        session.run([*begin, tf.tables_initializer()])
        session.run(made.initializer, made.feed)
        tf.train.start_queue_runners(session, tf.train.Coordinator())
        found = {"loss()": [session.run(value)]}
        found["test()"] = tf.nest.flatten(session.run([loss, metric], feed))
    for field, numbers in found.items():
        for number in numbers:
            if np.ndim(number):
                shape = list(np.shape(number))
                _wrong(field, f"must give one number, a scalar; it gives {shape}")


# --- What a round may not change ------------------------------------------------


def _refuse_changes(vector, made, ends):
    """Raises Failure if a round changes a variable beside the center variable.

    The rounds of a call are one graph, in which a round reads a variable before or
    after any other round changes it. On a cluster it lies on ps 0, where all workers
    change it. So the state of an RNN, or a moving average, would be wrong in silence.
    `made` are the operations of batch() and loss(), `ends` the tensors they returned.
    Not meant are the begin of a variable, and what a streaming metric adds up.
    """
    waiting, found = [*made, *(tensor.op for tensor in ends)], {vector.op}
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    begins = {v.initializer for v in tf.global_variables() + tf.local_variables()}
    metrics = {v.op for v in tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)}
    functions = {}
    if any(op.type in CALLS for op in found):
        library = tf.get_default_graph().as_graph_def().library.function
        functions = {one.signature.name: one.node_def for one in library}
    for op in found - {vector.op} - begins:
        ours = any(tensor.op in metrics for tensor in op.inputs)
        if not ours and _changes(op.node_def, functions):
            inside = op.type in CALLS  # a loop or a branch, which knows no name
            which = "a variable" if inside else f"the variable {op.inputs[0].op.name}"
            _wrong(
                f"the loss or the mini-batch changes {which}:",
                "a round keeps nothing for the next but the weights in the vector",
                cluster.place(op.traceback),
            )


def _changes(node, functions):
    """Says whether a NodeDef, or one in a loop or branch of it, changes a variable."""
    if CHANGES.fullmatch(node.op):
        return True
    called = [value.func.name for value in node.attr.values()] * (node.op in CALLS)
    nodes = [inner for name in called for inner in functions.pop(name, ())]
    return any(_changes(inner, functions) for inner in nodes)


# --- What is not trained ------------------------------------------------------


def _say_what_is_not_trained(value, vector, quiet):
    """Says which elements of a vector [P] have no way into the loss.

    That may be meant: their layer is frozen. Raises Failure if it is all of them.
    """
    used = _used(value, vector)
    if not used.any():
        _wrong("loss()", "does not depend on the vector: there is nothing to train")
    edges = np.flatnonzero(np.diff(used, prepend=True, append=True))
    parts = ", ".join(f"{a}:{b}" for a, b in edges.reshape(-1, 2)[:3].tolist())
    if parts and not quiet:
        rest = " ..." if len(edges) > 6 else ""
        count = f"{np.sum(~used)} of {len(used)} parameters"
        print(f"problem.py: the loss does not train w[{parts}{rest}], {count}")


def _used(value, vector):
    """Returns which elements of a vector [P] have a gradient's way into `value`, [P].

    Only a part that a split or a slice takes is told from the others.
    """
    ways, todo = set(), [value]
    while todo:
        tensor = todo.pop()
        if tensor.ref() not in ways and tensor.op.type != "StopGradient":
            ways.add(tensor.ref())
            todo += tensor.op.inputs
    used, todo = np.zeros(vector.shape.num_elements(), bool), [vector]
    while todo:
        for operation in todo.pop().consumers():
            reached = [output.ref() in ways for output in operation.outputs]
            if operation.type == "Identity":
                todo.append(operation.outputs[0])
            elif operation.type in ("Split", "SplitV"):
                sizes = [output.shape.num_elements() for output in operation.outputs]
                used |= np.repeat(reached, sizes)
            elif operation.type == "StridedSlice":
                used[_slice(operation)] |= any(reached)
            else:
                used |= any(reached)
    return used


def _slice(operation):
    """Returns the part of a vector that a StridedSlice takes, as Python's slice."""
    starts, ends, steps = map(tf.get_static_value, operation.inputs[1:])

    def has(mask, axis):
        return operation.get_attr(f"{mask}_mask") >> axis & 1

    for axis in range(operation.inputs[1].shape[0]):
        if has("new_axis", axis):
            continue
        if has("ellipsis", axis) or starts is None or ends is None:
            break
        first = None if has("begin", axis) else starts[axis]
        if has("shrink_axis", axis):
            return [starts[axis]]
        return slice(first, None if has("end", axis) else ends[axis], steps[axis])
    return slice(None)
