"""An error that ends a task: what it says, and whether another start may help.

`task` and `run` call it. What an error says is not enough where a variable without a
value may be the user's own, or that of a new ps: there `run` asks whether one was lost.
"""

import re
import sys
import traceback

import cluster
from cluster import tensorflow_v1 as tf

# Operations that wait for another worker, and a server at whose port another one is.
OTHERS = re.compile("Collective|RemoteCall|Horovod[A-Z]|not start gRPC server")


def is_of_others(error):
    """Says whether another start may help: the network or another task has failed.

    A connection was lost, a call was cut short, a ps does not know the session.
    """
    if "tensorflow" not in sys.modules or not isinstance(error, tf.errors.OpError):
        return isinstance(error, (ConnectionError, TimeoutError))
    kinds = (
        tf.errors.UnavailableError,
        tf.errors.DeadlineExceededError,
        tf.errors.CancelledError,
        tf.errors.AbortedError,
    )
    # All get that one, and each time, if their vectors differ in shape.
    shape = isinstance(error, tf.errors.InvalidArgumentError)
    return isinstance(error, kinds) or bool(OTHERS.search(_own(error))) and not shape


def _own(error):
    """Returns the message of an error without the older warnings behind it."""
    return (error.message or "").partition("Recent warning and error")[0].strip()


def reason(error):
    """Returns what an error of TensorFlow's says, and where its operation was built.

    Without what TensorFlow adds: how the graph was built, the task, gRPC's own words.
    """
    text = _own(error)
    node = re.search(r"\{\{node ([^}]+)\}\}", text)
    frames = traceback.extract_tb(error.__traceback__)
    try:
        op = error.op or tf.get_default_graph().get_operation_by_name(node[1])
        frames = op.traceback
    except (KeyError, ValueError, TypeError):  # no such operation, or none is named
        pass
    text = text.partition("\nAdditional GRPC")[0]
    text = re.sub(r"(?s)\A.*\nNode: '[^'\n]*'\n", "", text)
    text = re.sub(r"(?m)^(=+|([A-Z_]+: )?From /job:\S+)\n", "", text)
    return f"{cluster.place(frames)}{type(error).__name__}: {text}"
