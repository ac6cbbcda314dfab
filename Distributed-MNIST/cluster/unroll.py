"""From the third on, a call's rounds are copies of the second. `rounds` calls it.

Python takes about a tenth of a millisecond for each operation that it builds, and ten
rounds have a thousand or two: copied inside TensorFlow they take a tenth of that. And
the copies share their constants, a fifth of what ps 0 does in a synchronous round.
"""

import re

from cluster import tensorflow_v1 as tf


def scope(number):
    """Returns the name scope of a round."""
    return f"round_{number}"


def rounds(one_round, first, count):
    """Returns `count` rounds, `one_round(last)` each, the first after `first`.

    What one_round builds must lie in the name scope that it is called in, and must
    depend on nothing of a call but the round before: then the third is the second with
    other names. Rounds that draw random numbers are built one by one, because a copy
    would draw the numbers of its original; and so are those that talk to other workers
    under a key, because a copy would have the key of its original.
    """
    built, graph = [], tf.get_default_graph()
    while len(built) < count:
        with tf.name_scope(scope(len(built))):
            last = built[-1] if built else first
            built.append(one_round(last))
        if len(built) == 2 < count:
            whole = graph.as_graph_def()
            around = graph.get_name_scope()  # of all rounds, if there is one
            head = f"{around}/{scope(1)}/".lstrip("/")
            second = [n for n in whole.node if n.name.startswith(head)]
            if not _is_one_of_a_kind(second, whole.library):
                _copy(graph, second, count)
                built += [_named(graph, built[1], n) for n in range(2, count)]
    return built


def _is_one_of_a_kind(nodes, library):
    # Whatever draws has a seed, and a collective operation a key.
    inside = [node for function in library.function for node in function.node_def]
    every = [node.attr for node in [*nodes, *inside]]
    return any("seed2" in attr or "instance_key" in attr for attr in every)


def _renamed(name, number, kept=()):
    # As the second round has round 0 and 1 in its names, a copy has number - 1, number.
    if name.partition(":")[0] in kept:
        return name
    shift = {scope(0): scope(number - 1), scope(1): scope(number)}
    return re.sub(r"round_[01](?=/)", lambda match: shift[match[0]], name)


def _after(node, constants):
    """Returns a node's control inputs, and those of the constants that it takes."""
    after = [name for name in node.input if name.startswith("^")]
    for name in node.input:
        after += constants.get(name.lstrip("^"), ())
    return [name for name in dict.fromkeys(after) if name[1:] not in constants]


def _constants(second):
    """Returns {name: control inputs} of the constants that the copies share.

    One that is built under a lock, or in a branch, waits there to say what was known
    before. In the copies it waits for nothing, and who takes it waits instead.
    """
    constants = {}
    # In a loop with a frame of its own, or where branches meet, it is not the same.
    apart = [node for node in second if node.op in ("Enter", "Merge")]
    if any(node.op == "Enter" for node in apart):
        return constants
    met = {name for node in apart for name in node.input}
    for node in second:
        if node.op == "Const" and node.name not in met:
            constants[node.name] = _after(node, constants)
    return constants


def _copy(graph, second, count):
    """Adds rounds 2 to count - 1 to the graph, in one import."""
    copies, outside, constants = tf.GraphDef(), {}, _constants(second)
    # A variable that the first round made, as an optimizer does, is that of all rounds.
    made = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
    kept = {op.name for op in made}
    for number in range(2, count):
        for original in second:
            shared = original.name in constants
            if shared and number > 2:
                continue
            node = copies.node.add()
            node.CopyFrom(original)
            node.name = _renamed(node.name, number)
            values = [name for name in original.input if not name.startswith("^")]
            after = [] if shared else _after(original, constants)
            node.input[:] = [
                _renamed(name, 2 if name in constants else number, kept)
                for name in values + after
            ]
            node.attr.pop("_class", None)  # every node has its device already
    own = {node.name for node in copies.node}
    for node in copies.node:
        for name in node.input:
            at = name.lstrip("^").partition(":")[0]
            if at not in own and name not in outside:
                outside[name] = _tensor(graph, name)
    with tf.device(None):  # as the nodes say
        tf.import_graph_def(copies, outside, name="")


def _tensor(graph, name):
    # A control input is mapped by a tensor too, which an assignment does not have.
    if not name.startswith("^"):
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    operation = graph.get_operation_by_name(name[1:])
    with tf.device(operation.device), tf.control_dependencies([operation]):
        return operation.outputs[0] if operation.outputs else tf.zeros([])


def _named(graph, second, number):
    """Returns the Round of a copy: what has the second one's names, renamed."""

    def find(item):
        name = _renamed(item.name, number)
        try:
            return graph.as_graph_element(name)
        except KeyError:  # a constant, of which there is one
            return graph.as_graph_element(_renamed(item.name, 2))

    return tf.nest.map_structure(find, second)
