"""`tensorflow.compat.v1`, imported quietly and when it is first used, by everybody.

    from cluster import tensorflow_v1 as tf

The import takes seconds, so that flags and data are checked before it. compat.v1 in
graph mode is the TensorFlow API in which every worker is a client of its own; resource
variables stay on.
"""

import functools
import gc
import importlib
import sys
import typing

if typing.TYPE_CHECKING:  # for editors
    from tensorflow.compat.v1 import *


@functools.cache
def _module():
    # A third of the import is Keras, which TensorFlow can do without. It is hidden
    # meanwhile; `tf.keras` loads it when somebody uses it. A fifth of the rest is
    # garbage collection, which finds nothing: modules stay.
    hidden = "keras" not in sys.modules
    if hidden:
        sys.modules["keras"] = None
    gc.disable()
    try:
        module = importlib.import_module("tensorflow.compat.v1")
    finally:
        gc.freeze()
        gc.enable()
        if hidden:
            del sys.modules["keras"]
    module.disable_eager_execution()
    return module


def __getattr__(name):
    if name.startswith("__"):  # of this module, asked by Python itself
        raise AttributeError(name)
    return getattr(_module(), name)
