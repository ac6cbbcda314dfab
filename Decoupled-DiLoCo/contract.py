"""What problem.py gives a run: its Problem, looked through for silent mistakes.

    python contract.py      tries each function of problem.py once, without a cluster

A bug in problem.py is an error of Python's or TensorFlow's own. What is refused here
would train something else than what is written there, and nobody would notice. Delete
this file when your problem is right: then call problem.build.
"""

import os
import re

from cluster import checkpoint, flags, rounds, task
from cluster import tensorflow_v1 as tf
from cluster.task import Failure

# Operations that make or change a variable, in TensorFlow's names.
UPDATES = r"(Sparse)?Apply\w+|Scatter\w*(Add|Sub|Mul|Div|Min|Max|Update)"
CHANGES = re.compile(
    rf"VarHandleOp|VariableV2|Assign\w*|(Resource)?({UPDATES}|StridedSliceAssign)"
)


def build(problem, data, args, worker=0, workers=1):
    """Returns what `problem.build` returns; in it `start` is a tensor float32 [P].

    Raises Failure with a sentence about the first field that is wrong.
    """
    before = len(tf.trainable_variables())
    made = problem.build(data, args.batch_size, args.seed, worker, workers)
    for variable in tf.trainable_variables()[before:]:
        _refuse("build()", variable.op.name)
    start = tf.convert_to_tensor(made.start)
    if start.dtype != tf.float32 or start.shape.rank != 1 or not start.shape[0]:
        found = f"{start.dtype.name} {start.shape}"
        raise Failure(f"problem.py: start must be float32 [P]; it is {found}")

    def batch():
        tensors = _watched("batch()", made.batch)()
        if not all(map(tf.is_tensor, tf.nest.flatten(tensors, expand_composites=True))):
            text = "must return tensors: an array is the same in every round"
            raise Failure(f"problem.py: batch() {text}; not {tensors!r:.60}")
        return tensors

    def loss(vector, batch):
        value = _watched("loss()", made.loss)(vector, batch)
        if not tf.is_tensor(value) or value.shape.rank not in (0, None):
            text = "must give one number, a scalar: tf.gradients would add them up"
            raise Failure(f"problem.py: loss() {text}; it gives {value!r:.80}")
        return value

    return made._replace(start=start, batch=batch, loss=loss)


def _refuse(field, variable):
    text = "what is trained, or kept for the next round, is in the vector `start` alone"
    raise Failure(f"problem.py: {field} makes or changes {variable}: {text}")


def _watched(field, function):
    """Returns a function of problem.py that may neither make nor change a variable.

    The rounds of a call are one graph, in which a round reads a variable before or
    after any other round changes it. On a cluster it lies on ps 0, where all workers
    change it. So the state of an RNN, or a moving average, would be wrong in silence.
    """

    def call(*arguments):
        graph = tf.get_default_graph()
        known = set(graph.get_operations())
        kept = {key: graph.get_collection(key) for key in graph.collections}
        returned = function(*arguments)
        for op in graph.get_operations():
            if op not in known and CHANGES.fullmatch(op.type):
                _refuse(field, op.inputs[0].op.name if op.inputs else op.name)
        # A loss may keep tensors, of regularisation, and add up all that it finds. In
        # the next round they would be wrong.
        for key in graph.collections:
            found, old = graph.get_collection_ref(key), set(map(id, kept.get(key, [])))
            found[:] = [x for x in found if id(x) in old or not tf.is_tensor(x)]
        return returned

    return call


def main():
    """Calls each function of problem.py once, and evaluates what it returns."""
    import problem

    args = flags.parse(flags.parser("contract", __doc__))
    task.redirect(open(os.devnull, "a"))  # what TensorFlow says
    data = problem.load(args.data, 1)
    tf.train.get_or_create_global_step()  # a run has it, and a loss may read it
    made = build(problem, data, args)
    value = made.loss(made.start, made.batch())
    fetches = [value, rounds.gradient(value, made.start), *made.test(made.start)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        checkpoint.begin(session, checkpoint.begin_operations())
        found = session.run(fetches)
    print(f"problem.py is good: a first loss of {found[0]:.4f}")


if __name__ == "__main__":
    task.run(main)
