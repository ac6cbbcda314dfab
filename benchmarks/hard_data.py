"""Makes the data set MNIST-1D, a small problem that is hard for a simple model.

    python benchmarks/hard_data.py        prints where the file is

4,000 signals to train with and 1,000 to test with, of ten classes. A signal has 40
values, and is a pattern of twelve values at a random place, scaled, tilted and with
noise. The package mnist1d makes them from a fixed seed, without a network.

Source: Greydanus and Kobak, Scaling down deep learning, 2020, arXiv 2011.14439.
"""

import hashlib
import io
import os

import numpy as np
import runs

PACKAGE = "mnist1d==0.0.2.post1"
FILE = runs.HERE / "data" / "mnist-1d.npz"
# SHA-256 of the file.
CHECKSUM = "6520ac010141243d9d9244ff979772eae56e2757e70ef131f2b75d0b80051490"


def arrays():
    """Returns the data as problem.py reads it: x float32 [n, 40], y int32 [n].

    Ends the program with one sentence if the package is not there.
    """
    try:
        from mnist1d import get_dataset_args
        from mnist1d.data import make_dataset
    except ModuleNotFoundError as error:
        runs.fail(f"no module {error.name}: pip install {PACKAGE}")
    made = make_dataset(get_dataset_args())  # with the seed 42
    return {
        "x_train": made["x"].astype(np.float32),
        "y_train": made["y"].astype(np.int32),
        "x_test": made["x_test"].astype(np.float32),
        "y_test": made["y_test"].astype(np.int32),
    }


def checksum(content):
    """Returns the SHA-256 of bytes, as text."""
    return hashlib.sha256(content).hexdigest()


def file(path=FILE):
    """Returns the path of the .npz, which is made if it is not there.

    Ends the program with one sentence if the bytes are not those of CHECKSUM.
    """
    if path.exists() and checksum(path.read_bytes()) == CHECKSUM:
        return path
    stream = io.BytesIO()
    np.savez(stream, **arrays())
    content = stream.getvalue()
    if checksum(content) != CHECKSUM:
        runs.fail(f"the data differ from those of {PACKAGE} and NumPy 2.4", 1)
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, path)
    return path


if __name__ == "__main__":
    print(file())
