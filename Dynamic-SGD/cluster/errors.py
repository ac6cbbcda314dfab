"""An error that ends a task: where it comes from, and would it come again?

`task` calls it. Python and the building of a graph raise an error again at every start.
What others cause may be over at the next start: they are the other tasks of the run and
the network.
"""

import re
import sys

import cluster
from cluster import tensorflow_v1 as tf


def is_of_others(error):
    """Says whether another start may help."""
    kinds = [ConnectionError, TimeoutError]
    if "tensorflow" in sys.modules:
        kinds += [
            tf.errors.UnavailableError,
            tf.errors.DeadlineExceededError,
            tf.errors.CancelledError,
            tf.errors.AbortedError,
            tf.errors.FailedPreconditionError,  # a new ps has no variables
            tf.errors.InternalError,  # of gRPC, or of an all-reduce
            tf.errors.UnknownError,  # of gRPC: it cannot serve at the port
        ]
        # A new ps has no queues, either. This error has files that are missing, too.
        if isinstance(error, tf.errors.NotFoundError):
            return bool(re.search("Resource .* does not exist", str(error)))
    return isinstance(error, tuple(kinds))


def explain(error):
    """Returns (sentence, exit status); the status is for one that is not of others.

    Of an error in a call the sentence says where its operation was built, if TensorFlow
    has named that.
    """
    sentence, status = cluster.explain(error)
    if "tensorflow" not in sys.modules or not isinstance(error, tf.errors.OpError):
        return sentence, status
    found = re.search(r"\{\{node ([^}]+)\}\}", str(error))
    try:
        operation = tf.get_default_graph().get_operation_by_name(found[1])
    except (KeyError, ValueError, TypeError):  # no such operation, or none is named
        return sentence, status
    # What went wrong stands after this line if the message is a long one.
    text = str(error).rpartition(f"Node: '{found[1]}'\n")[2].splitlines()[0]
    return f"{cluster.place(operation.traceback)}{type(error).__name__}: {text}", status
