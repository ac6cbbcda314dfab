"""Writes a data set as sharded TFRecords with an index, once, before any training.

    python prepare.py digits records/digits            8x8 digits, scaled to 28x28
    python prepare.py mnist records/mnist              or fashion_mnist, or FILE.npz
    python prepare.py photos/ records/photos --size 64 --channels 3
                                                       photos/CLASS/*.png, *.jpg

A file of records gets its name when it is complete, and index.json is written last. If
the command was interrupted, the same command goes on with the first missing file. It
never writes a complete file again. The same command writes the same bytes everywhere.
An image that cannot be used ends the command, and then no records are left behind.
"""

import fcntl
import json
import os
import sys
import time

import numpy as np

from cluster import flags
from cluster import tensorflow_v1 as tf
from cluster.task import fail
import records
import sources

PLAN = "plan.json"  # what is being written; gone when it is complete


def write(source, folder, shards=8, validation=0.1, say=print):
    """Writes the records of a Source into a folder; returns their Index.

    `validation` is the share of the training images held out to choose the best weights
    by, `say` is told how far it is. Raises ValueError if the folder has something else.
    """
    parts = _parts(source, shards, validation)
    about = source._asdict() | {"splits": {n: len(p[1]) for n, p in parts.items()}}
    about |= {"shape": list(source.shape), "version": records.VERSION, "shards": shards}
    with _Folder(folder, about):
        total, done, began, files = sum(about["splits"].values()), 0, time.time(), {}

        def tell(done):
            rate = max(done, 1) / max(time.time() - began, 1e-6)
            left = (total - done) / rate
            say(f"{done}/{total} images  {rate:.0f} images/s  {left:.0f} s left")

        for split, (function, chosen, number) in parts.items():
            files[split] = []
            for shard in range(number if len(chosen) else 0):
                name = f"{split}-{shard:05d}-of-{number:05d}.tfrecord"
                mine = chosen[shard::number]
                path = os.path.join(folder, name)
                if not os.path.exists(path):
                    _write_file(path, function, mine, lambda row, d=done: tell(d + row))
                files[split].append(_entry(path, len(mine)))
                done += len(mine)
                tell(done)
        about["splits"] = files
        path = os.path.join(folder, records.INDEX)
        with open(path + ".part", "w") as file:
            json.dump(about, file, indent=1)
        os.replace(path + ".part", path)
        os.remove(os.path.join(folder, PLAN))
    return records.read_index(folder)


def planned(source, shards=8, validation=0.1):
    """Returns the Index of records that are not written: for a graph, not for a run."""
    splits = {
        split: [
            {"file": f"{split} {shard}", "examples": len(chosen[shard::number])}
            for shard in range(number if len(chosen) else 0)
        ]
        for split, (_, chosen, number) in _parts(source, shards, validation).items()
    }
    about = source._asdict() | {"shape": list(source.shape), "splits": splits}
    del about["key"]
    return records.Index(folder="", checksum="", **about)


def _parts(source, shards, validation):
    """Returns {split: (function of a row, rows, number of files)}."""
    function, rows = source.splits["train"]
    # The writers of digits come in order: a fixed shuffle, then every shards-th row.
    order = np.random.default_rng(0).permutation(rows)
    held = round(validation * rows)
    if not held:
        raise ValueError(f"of {rows} training images none is held out for validation")
    if rows - held < shards:
        raise ValueError(f"{rows - held} training images for {shards} files of records")
    return {
        "train": (function, order[held:], shards),
        "validation": (function, order[:held], 1),
        "test": (source.splits["test"][0], np.arange(source.splits["test"][1]), 1),
    }


def _write_file(path, function, chosen, tell):
    with tf.io.TFRecordWriter(path + ".part") as writer:
        for number, row in enumerate(chosen, 1):
            writer.write(records.example(*function(row), int(row)))
            if number % 1000 == 0:
                tell(number)
    os.replace(path + ".part", path)


def _entry(path, examples):
    size, digest = os.path.getsize(path), records.checksum(path)
    name = os.path.basename(path)
    return {"file": name, "examples": examples, "bytes": size, "sha256": digest}


def lock(file, how):
    """Locks an open file; returns False where the file system has no locks.

    Raises BlockingIOError if another process has locked it.
    """
    try:
        fcntl.flock(file, how)
        return True
    except BlockingIOError:
        raise
    except OSError:
        return False


class _Folder:
    """A folder that this process alone writes `about` into, or a ValueError."""

    def __init__(self, folder, about):
        self.folder, plan = folder, os.path.join(folder, PLAN)
        if records.are_there(folder):
            raise ValueError(f"{folder} has records already; they stay as they are")
        if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(plan):
            raise ValueError(f"{folder} is not empty, and has no records")
        os.makedirs(folder, exist_ok=True)
        self.file = open(plan, "a+")
        try:
            lock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another process is writing there") from None
        self.file.seek(0)
        begun, wanted = self.file.read(), json.dumps(about, sort_keys=True)
        if begun not in ("", wanted):
            raise ValueError(f"{folder} has the beginning of other records: remove it")
        if not begun:
            self.file.write(wanted)
            self.file.flush()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is ValueError:  # no command can go on from here
            for name in os.listdir(self.folder):
                if name == PLAN or name.endswith((".tfrecord", ".tfrecord.part")):
                    os.remove(os.path.join(self.folder, name))
        self.file.close()


def seldom(say, seconds=5):
    """Returns a function that passes a text on to `say` every so many seconds."""
    last = [time.time()]

    def maybe(text):
        if time.time() - last[0] > seconds:
            last[0] = time.time()
            say(text)

    return maybe


def main():
    parser = flags.strict(__doc__)
    add = parser.add_argument
    add("source", help="digits, mnist, fashion_mnist, FILE.npz, or a folder of classes")
    add("folder", help="where the records go: a new folder")
    add("--size", type=flags.positive_int, help="scale all images to SIZE x SIZE")
    add("--channels", type=int, choices=(1, 3), default=0, help="1: gray, 3: RGB")
    add("--shards", type=flags.positive_int, default=8, help="files of training images")
    add("--validation", type=flags.fraction, default=0.1, help="share of the training")
    add("--test", type=flags.fraction, default=0.2, help="share of a folder's images")
    args = parser.parse_args()
    records.quiet()

    def draw(text):
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)

    def line(text):
        print(text, file=sys.stderr, flush=True)

    say = draw if sys.stderr.isatty() else seldom(line)
    try:
        about = args.source, args.size, args.channels, args.test
        source = sources.source_of(*about)
        index = write(source, args.folder, args.shards, args.validation, say)
        if say is draw:
            draw("")
    except ValueError as error:
        fail(f"{args.source}: {error}")
    except (OSError, tf.errors.OpError) as error:
        fail(f"{args.folder}: {str(error).splitlines()[0]}", 1)
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on", 130)
    counts = ", ".join(f"{records.count(f)} {s}" for s, f in index.splits.items())
    shape = "x".join(map(str, index.shape))
    print(f"{args.folder}: {counts} images {shape} of {len(index.classes)} classes")


if __name__ == "__main__":
    main()
