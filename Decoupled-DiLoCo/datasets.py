"""Data sets beside the digits, and what must hold of them. `problem.load` calls it.

With a problem of your own, delete this file. A mistake raises ValueError with a
sentence for whoever gave the name.
"""

import os

import numpy as np

from cluster import tensorflow_v1 as tf

KEYS = ("x_train", "y_train", "x_test", "y_test")


def load(name):
    """Returns the arrays of KEYS as a dict: x float32 [n, features], y int32 [n].

    `name` is mnist, fashion_mnist, or a .npz file with Keras' keys. Images, which are
    uint8, are scaled by their largest value; other numbers stay what they are. A fixed
    shuffle: of rows that are sorted, or alternate, a worker's could lack a class.
    """
    arrays = _download(name) if name in ("mnist", "fashion_mnist") else _read(name)
    x, y, x_test, y_test = _checked(arrays)
    scale = np.float32(1 / max(1, int(x.max())) if x.dtype == np.uint8 else 1)

    def floats(rows):
        return rows.reshape(len(rows), -1).astype(np.float32) * scale

    mixed = np.random.default_rng(0).permutation(len(y))
    x, y, y_test = x[mixed], y[mixed].astype(np.int32), y_test.astype(np.int32)
    return dict(x_train=floats(x), y_train=y, x_test=floats(x_test), y_test=y_test)


def _download(name):
    """Returns a data set of `tf.keras.datasets`, downloaded on first use."""
    try:
        (x, y), (x_test, y_test) = getattr(tf.keras.datasets, name).load_data()
    except Exception as error:
        raise ValueError(
            f"the download failed ({str(error).splitlines()[0]}); use --data digits, "
            f"or --data FILE.npz with a copy of Keras' {name}.npz"
        ) from error
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}


def _read(name):
    """Returns the arrays of a .npz file."""
    if not name.endswith(".npz"):
        raise ValueError("choose digits, mnist, fashion_mnist or a .npz file")
    if not os.path.isfile(name):
        raise ValueError("no such file")
    try:
        with np.load(name, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:
        raise ValueError(f"not a readable .npz file ({error})") from error


def _checked(arrays):
    """Returns the arrays of KEYS; raises ValueError with what is wrong with them."""

    def wrong(sentence):
        raise ValueError(sentence)

    missing = [key for key in KEYS if key not in arrays]
    if missing:
        wrong(f"has no {missing[0]}; found {', '.join(sorted(arrays)) or 'nothing'}")
    first, classes = arrays["x_train"], len(np.unique(arrays["y_train"]))
    most = np.finfo(np.float32).max
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if not len(x.shape) or not x.size or not y.size:
            wrong(f"x_{part} {x.shape} and y_{part} {y.shape} must not be empty")
        if x.dtype.kind not in "iuf":
            wrong(f"x_{part} must hold numbers, not {x.dtype}")
        if x.shape[1:] != first.shape[1:]:
            wrong(f"x_test images {x.shape[1:]} differ in shape from x_train's")
        if x.dtype != first.dtype:
            wrong(
                f"x_train is {first.dtype}, x_test {x.dtype}: they must be of one type"
            )
        if not -most <= x.min() <= x.max() <= most:  # not a number, too
            place = tuple(np.argwhere(~(np.abs(x) <= most))[0])
            wrong(f"x_{part} must hold finite numbers: row {place[0]} has {x[place]}")
        if y.ndim != 1 or len(x) != len(y):
            wrong(f"y_{part} {y.shape} must be one label for each of {len(x)} images")
        if y.dtype.kind not in "iu":
            wrong(f"y_{part} must hold integers, not {y.dtype}")
        if classes < 2:
            wrong("y_train has one class: there is nothing to learn")
        for label in y[(y < 0) | (y >= classes)][:1]:
            named = f"the {classes} classes of y_train must be numbered 0 to"
            wrong(f"y_{part} has label {label}; {named} {classes - 1}")
    return [arrays[key] for key in KEYS]
