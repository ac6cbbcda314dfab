"""`tensorflow.compat.v1`, imported quietly and when it is first used, by everybody.

    from cluster import tensorflow_v1 as tf

The import takes seconds, so that flags and data are checked before it. compat.v1 in
graph mode is the TensorFlow API in which every worker is a client of its own; resource
variables stay on.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import sys
import typing

if typing.TYPE_CHECKING:  # for editors
    from tensorflow.compat.v1 import *


@functools.cache
def _module():
    # A third of the import is Keras, a tenth of the rest SciPy and h5py, for an older
    # Keras within. TensorFlow can do without: they are hidden meanwhile, and loaded
    # when somebody uses them. A fifth is garbage collection, which finds nothing:
    # modules stay.
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
    _keep_freed_memory()
    return module


# Two settings of glibc, the C library: it takes no block by mmap, and gives no memory
# back. A user's own variable wins. Numbers of mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD.
MALLOC = {"MALLOC_MMAP_MAX_": (-4, 0), "MALLOC_TRIM_THRESHOLD_": (-1, -1)}


def _keep_freed_memory():
    """Has glibc keep freed memory, so that the next message finds it again.

    gRPC allocates what it receives. By default glibc gives large blocks back to the
    kernel, which then clears the pages of a vector of 100 MB anew in each round.
    """
    with contextlib.suppress(AttributeError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for name in MALLOC.keys() - os.environ.keys():
            mallopt(*MALLOC[name])


def remove_generated_files():
    """Removes the files of code that AutoGraph has generated in this process.

    TensorFlow removes them itself, but not when a process ends by `os._exit`.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file"):
            with contextlib.suppress(OSError):
                os.remove(module.__file__)


def __getattr__(name):
    if name.startswith("__"):  # of this module, asked by Python itself
        raise AttributeError(name)
    return getattr(_module(), name)
