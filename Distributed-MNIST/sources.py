"""Where images come from: a data set of problem.py, or a folder of images by class.

prepare.py calls it. Data that cannot be used raises ValueError, with the sentence that
the user sees.
"""

import collections
import glob
import hashlib
import os

import numpy as np

from cluster import tensorflow_v1 as tf
import problem

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")

# Where images come from: `name`, the `classes`, the `shape` [height, width, channels],
# `size` and `channels` as `decode` takes them, `key` for what else decides the bytes;
# `splits` has for train and test the function that returns (image uint8, class) of a
# row, and the number of rows.
Source = collections.namedtuple("Source", "name classes shape size channels key splits")


def check(name):
    """Raises ValueError if a data set cannot be used, as far as a glance can tell."""
    if os.path.isdir(name):
        _files_of(name)
    else:
        _arrays_of(name)


def source_of(name, size=None, channels=0, test=0.2):
    """Returns the Source of a data set; raises ValueError with what is wrong with it.

    `size` is the height and width to which images are scaled: without it they stay as
    they are, but for the digits. Of a folder's images, `test` is the share held out,
    and `channels` is 1 (gray), 3 (RGB), or 0: as it is in the files.
    """
    if os.path.isdir(name):
        return _of_folder(name, size, channels, test)
    classes, arrays = _arrays_of(name)
    size = 28 if name == "digits" and size is None else size
    splits, digest = {}, hashlib.sha256()
    for split, (images, labels) in arrays.items():
        images = _scaled(images, size or images.shape[1])
        splits[split] = _rows(images, labels)
        digest.update(images.tobytes() + labels.tobytes())
    name, key = os.path.basename(name), digest.hexdigest()
    shape = images.shape[1:]
    return Source(name, classes, shape, size, shape[-1], key, splits)


def _rows(images, labels):
    return lambda row: (images[row], int(labels[row])), len(labels)


def _arrays_of(name):
    """Returns the classes, and by split images [n, side, side, channels], labels."""
    data = problem.load(name)
    features = data.x_train.shape[1]
    for channels in (1, 3):
        side = round((features / channels) ** 0.5)
        if side * side * channels == features:
            break
    else:
        raise ValueError(f"images of {features} numbers are no squares, gray or RGB")
    arrays = {"train": (data.x_train, data.y_train), "test": (data.x_test, data.y_test)}
    for split, (x, y) in arrays.items():
        if x.min() < 0 or x.max() > 1:
            raise ValueError("pixels must be uint8, or reach from 0 to 1")
        arrays[split] = x.reshape(-1, side, side, channels), y
    return [str(number) for number in range(int(data.y_train.max()) + 1)], arrays


def _scaled(images, size):
    """Returns images uint8 [n, size, size, channels] of such from 0 to 1, float32."""
    if images.shape[1] != size:
        with tf.Graph().as_default(), tf.Session() as session:
            batch = tf.placeholder(tf.float32, [None, *images.shape[1:]])
            scaled = _resize(batch, size)
            pieces = np.split(images, range(1000, len(images), 1000))
            images = np.concatenate([session.run(scaled, {batch: p}) for p in pieces])
    return np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8)


def _resize(images, size):
    """Returns float32 images [n, h, w, c] as [n, size, size, c], smoothly."""
    sides = tf.cast(tf.shape(images)[1:3], tf.float32)
    return tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=[size, size],
        scale=size / sides,
        translation=[0.0, 0.0],
        kernel_type="triangle",
    )


def _files_of(folder):
    """Returns the classes of a folder, and (path, class) of all its images."""
    classes = sorted(e.name for e in os.scandir(folder) if e.is_dir())
    if len(classes) < 2:
        raise ValueError("wanted a folder of images for each of at least two classes")
    files = []
    for number, name in enumerate(classes):
        there = sorted(glob.glob(os.path.join(glob.escape(folder), name, "*")))
        there = [path for path in there if path.lower().endswith(SUFFIXES)]
        if not there:
            raise ValueError(f"the class {name} has no images ({' '.join(SUFFIXES)})")
        files += [(path, number) for path in there]
    return classes, files


def _of_folder(folder, size, channels, test):
    """Returns the Source of FOLDER/CLASS/IMAGE, whose images are read one by one."""
    classes, files = _files_of(folder)
    files = [files[row] for row in np.random.default_rng(0).permutation(len(files))]
    read = _Reader(size, channels)
    read.shape = shape = read(files[0][0]).shape

    def part(chosen):
        return lambda row: (read(chosen[row][0]), chosen[row][1]), len(chosen)

    held = max(1, round(test * len(files)))
    digest = hashlib.sha256()
    for path, _ in files:
        about = f"{os.path.relpath(path, folder)} {os.path.getsize(path)}"
        digest.update(about.encode())
    splits = {"train": part(files[held:]), "test": part(files[:held])}
    name = os.path.basename(os.path.abspath(folder))
    key = digest.hexdigest()
    return Source(name, classes, shape, size, channels, key, splits)


def decode(file, size, channels):
    """Returns the bytes of an image file as uint8 [height, width, channels].

    With a `size` it is scaled to size x size, with `channels` it gets 1 (gray) or 3
    (RGB). prepare.py reads images so, and an exported model has it as a signature.
    """
    image = tf.io.decode_image(file, channels, expand_animations=False)
    image.set_shape([None, None, None])
    if size:
        scaled = tf.round(_resize(tf.cast(image, tf.float32)[None], size)[0])
        image = tf.cast(tf.clip_by_value(scaled, 0, 255), tf.uint8)
    return image


class _Reader:
    """Reads an image file as uint8 [height, width, channels], all of one shape."""

    def __init__(self, size, channels):
        self.shape, self.graph = None, tf.Graph()
        with self.graph.as_default():
            self.bytes = tf.placeholder(tf.string, [])
            self.image = decode(self.bytes, size, channels)
        self.session = tf.Session(graph=self.graph)

    def __call__(self, path):
        try:
            with open(path, "rb") as file:
                image = self.session.run(self.image, {self.bytes: file.read()})
        except (tf.errors.OpError, OSError):
            raise ValueError(f"{path} is not an image that can be read") from None
        if self.shape not in (None, image.shape):
            here, there = ("x".join(map(str, s)) for s in (image.shape, self.shape))
            raise ValueError(
                f"{path} is {here}, the others {there}: "
                "see --size and --channels of prepare.py"
            )
        return image
