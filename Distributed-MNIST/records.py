"""Records of images, which prepare.py writes and all tasks read, and their index.

A folder of records has files of TFRecords, and index.json with sizes and checksums.
"""

import collections
import hashlib
import json
import os
import struct
import sys

from cluster import tensorflow_v1 as tf

INDEX = "index.json"
VERSION = 1
IMAGE, LABEL, NUMBER = "image", "label", "number"  # what a record has, see `example`

# What index.json says. `shape` is [height, width, channels], `size` and `channels` are
# those of `sources.decode`, `splits` has the list of files of train, validation and
# test: {"file", "examples", "bytes", "sha256"}.
Index = collections.namedtuple(
    "Index", "folder name classes shape size channels splits checksum"
)


def example(image, label, number):
    """Returns one record: uint8 [height, width, channels] as bytes, class, row."""
    integers = {LABEL: label, NUMBER: number}
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for name, value in integers.items()
    }
    raw = tf.train.BytesList(value=[image.tobytes()])
    feature[IMAGE] = tf.train.Feature(bytes_list=raw)
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString()


def checksum(path):
    """Returns the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def number_of_records(path):
    """Returns how many records a file has.

    Raises ValueError where the length of one leads past the end of the file, for which
    TensorFlow would ask for as much memory as it claims. Before each record stand its
    length (uint64) and a checksum (4 bytes), behind it another checksum
    (TensorFlow, record_writer.h).
    """
    number, position, size = 0, 0, os.path.getsize(path)
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            head = file.read(8).ljust(8, b"\xff")
            position += 8 + 4 + struct.unpack("<Q", head)[0] + 4
            number += 1
    if position != size:
        name = os.path.basename(path)
        raise ValueError(f"record {number} of {name} ends outside the file")
    return number


def are_there(folder):
    """Says whether a folder has records, all that prepare.py was to write."""
    return os.path.isfile(os.path.join(folder, INDEX))


def read_index(folder):
    """Returns the Index of a folder of records; raises ValueError if it is none."""
    path = os.path.join(folder, INDEX)
    try:
        with open(path, "rb") as file:
            text = file.read()
        whole = json.loads(text)
        if whole["version"] != VERSION:
            raise ValueError(f"{INDEX} is of version {whole['version']}, not {VERSION}")
        whole = {"size": None, "channels": whole["shape"][-1]} | whole  # were not kept
        found = [whole[name] for name in Index._fields[1:-1]]
        for files in whole["splits"].values():
            for entry in files:
                (entry[name] for name in ("file", "examples", "bytes", "sha256"))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError):
        raise ValueError(f"{INDEX} is not what prepare.py writes") from None
    except OSError as error:
        raise ValueError(f"{INDEX}: {error.strerror}") from None
    return Index(folder, *found, hashlib.sha256(text).hexdigest()[:12])


def check(index, files):
    """Raises ValueError unless all these files are what the index says they are."""
    for entry in files:
        path = os.path.join(index.folder, entry["file"])
        if not os.path.isfile(path):
            raise ValueError(f"{entry['file']} is missing in {index.folder}")
        size = os.path.getsize(path)
        if size != entry["bytes"]:
            raise ValueError(
                f"{entry['file']} has {size} bytes, {entry['bytes']} were written"
            )
        if checksum(path) != entry["sha256"]:
            raise ValueError(f"{entry['file']} has another checksum than in {INDEX}")
        number = number_of_records(path)
        if number != entry["examples"]:
            raise ValueError(
                f"{entry['file']} has {number} records, not {entry['examples']}"
            )


def count(files):
    """Returns how many examples are in these files."""
    return sum(entry["examples"] for entry in files)


def parse(index, records):
    """Returns a batch of records as images uint8 [n, h, w, c], labels and rows [n]."""
    scalar = tf.FixedLenFeature([], tf.int64)
    features = {IMAGE: tf.FixedLenFeature([], tf.string), LABEL: scalar, NUMBER: scalar}
    columns = tf.io.parse_example(records, features)
    images = tf.reshape(tf.io.decode_raw(columns[IMAGE], tf.uint8), [-1, *index.shape])
    return images, tf.cast(columns[LABEL], tf.int32), columns[NUMBER]


def quiet():
    """Sends what TensorFlow's C++ writes to descriptor 2 nowhere; sys.stderr stays."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
