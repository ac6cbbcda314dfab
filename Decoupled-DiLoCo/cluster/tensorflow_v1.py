"""`tensorflow.compat.v1`, imported quietly and when it is first used, by everybody.

The import takes seconds, so that flags and data are checked before it. compat.v1 in
graph mode is the TensorFlow API in which every worker is a client of its own; resource
variables stay on.
"""

import functools
import gc
import importlib
import sys


@functools.cache
def _module():
    # Of 4.5 s of CPU time Keras and what it imports are 1.7, garbage collection, which
    # finds nothing, 0.8. TensorFlow can do without: it loads them when they are used.
    hidden = {"keras", "scipy", "h5py"} - sys.modules.keys()
    sys.modules |= dict.fromkeys(hidden)
    gc.disable()
    try:
        module = importlib.import_module("tensorflow.compat.v1")
    finally:
        gc.freeze()
        gc.enable()
        for name in hidden:
            del sys.modules[name]
    module.disable_eager_execution()
    return module


def __getattr__(name):
    if name.startswith("__"):  # of this module, asked by Python itself
        raise AttributeError(name)
    return getattr(_module(), name)
