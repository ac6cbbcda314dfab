"""Writes a data set as sharded TFRecords with an index, once, before any training.

    python prepare.py digits records/digits            8x8 digits, scaled to 28x28
    python prepare.py mnist records/mnist              or fashion_mnist, or FILE.npz
    python prepare.py photos/ records/photos --size 64     photos/CLASS/*.png, *.jpg

A file of records appears under its name when it is complete, index.json after all of
them. Interrupted, the same command goes on with the first file that is missing. What is
complete is never written again. The same command writes the same bytes everywhere.
"""

import fcntl
import json
import os
import sys
import time

import numpy as np

import pipeline
import records
import sources
from cluster import exits, flags
from cluster import tensorflow_v1 as tf

PLAN = "plan.json"  # what is being written; gone when it is complete


def write(source, folder, shards=8, validation=0.1, say=print):
    """Writes the records of a Source into a folder; returns their Index.

    `validation` is the share of the training images held out to choose the best weights
    by, `say` is told how far it is. Raises ValueError if the folder has something else.
    """
    function, rows = source.splits["train"]
    # The writers of digits come in order: a fixed shuffle, then every shards-th row.
    order = np.random.default_rng(0).permutation(rows)
    held = round(validation * rows)
    if not held:
        raise ValueError(f"of {rows} training images none is held out for validation")
    if rows - held < shards:
        raise ValueError(f"{rows - held} training images for {shards} files of records")
    parts = {
        "train": (function, order[held:], shards),
        "validation": (function, order[:held], 1),
        "test": (source.splits["test"][0], np.arange(source.splits["test"][1]), 1),
    }
    about = source._asdict() | {"splits": {n: len(p[1]) for n, p in parts.items()}}
    about |= {"shape": list(source.shape), "version": records.VERSION, "shards": shards}
    with _Folder(folder, about):
        total, done, began, files = sum(about["splits"].values()), 0, time.time(), {}
        for split, (function, chosen, number) in parts.items():
            files[split] = []
            for shard in range(number if len(chosen) else 0):
                name = f"{split}-{shard:05d}-of-{number:05d}.tfrecord"
                mine = chosen[shard::number]
                path = os.path.join(folder, name)
                if not os.path.exists(path):
                    _write_file(path, function, mine)
                files[split].append(_entry(path, len(mine)))
                done += len(mine)
                rate = done / max(time.time() - began, 1e-6)
                left = (total - done) / rate
                say(f"{done}/{total} images  {rate:.0f} images/s  {left:.0f} s left")
        about["splits"] = files
        path = os.path.join(folder, records.INDEX)
        with open(path + ".part", "w") as file:
            json.dump(about, file, indent=1)
        os.replace(path + ".part", path)
        os.remove(os.path.join(folder, PLAN))
    return records.read_index(folder)


def _write_file(path, function, chosen):
    with tf.io.TFRecordWriter(path + ".part") as writer:
        for row in chosen:
            writer.write(records.example(*function(row), int(row)))
    os.replace(path + ".part", path)


def _entry(path, examples):
    size, digest = os.path.getsize(path), records.checksum(path)
    name = os.path.basename(path)
    return {"file": name, "examples": examples, "bytes": size, "sha256": digest}


class _Folder:
    """A folder that this process alone writes `about` into, or a ValueError."""

    def __init__(self, folder, about):
        plan = os.path.join(folder, PLAN)
        if records.are_there(folder):
            raise ValueError(f"{folder} has records already; they stay as they are")
        if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(plan):
            raise ValueError(f"{folder} is not empty, and has no records")
        os.makedirs(folder, exist_ok=True)
        self.file = open(plan, "a+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def __exit__(self, *_):
        self.file.close()


class For:
    """The data of a task, as `cluster.flags.data` asks a problem for it."""

    def __init__(self, args):
        self.args = args

    def load(self, name, workers):
        """Returns the Index of --data, its files checked; notes its checksum in args.

        What is not records yet becomes some, in LOGDIR/records; with --check it is only
        looked at. Raises ValueError with what is wrong.
        """
        args, folder = self.args, name
        if os.path.exists(os.path.join(name, PLAN)):
            raise ValueError("not all is written: prepare.py, called again, goes on")
        if not records.are_there(name):
            folder = os.path.join(args.logdir, "records")
            if args.check and not records.are_there(folder):
                return sources.check(name)
            os.makedirs(args.logdir, exist_ok=True)
            # Of several tasks of a machine one writes; the others wait for it.
            with open(folder + ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not records.are_there(folder):
                    write(sources.source_of(name), folder, say=lambda text: None)
                    print(f"prepared {name} as records in {folder}")
        index = records.read_index(folder)
        records.check(index, self._mine(index, workers))
        args.data_checksum = index.checksum
        return index

    def _mine(self, index, workers):
        """Returns the files that this task reads: all with --check."""
        args, splits = self.args, index.splits
        if args.check:
            return [entry for files in splits.values() for entry in files]
        if args.job_name == "evaluator":
            return splits["test"]
        own, left, size = pipeline.share(splits["train"], args.task_index, workers)
        if not size:
            images = records.count(splits["train"])
            raise ValueError(f"{images} training images for {workers} workers")
        held = splits["validation"] + splits["test"]
        return own + left + held * (args.task_index == 0)


def main():
    parser = flags.strict(__doc__)
    add = parser.add_argument
    add("source", help="digits, mnist, fashion_mnist, FILE.npz, or a folder of classes")
    add("folder", help="where the records go: a new folder")
    add("--size", type=flags.positive_int, help="scale all images to SIZE x SIZE")
    add("--shards", type=flags.positive_int, default=8, help="files of training images")
    add("--validation", type=flags.fraction, default=0.1, help="share of the training")
    add("--test", type=flags.fraction, default=0.2, help="share of a folder's images")
    args = parser.parse_args()
    records.quiet()
    last = [0.0]

    def say(text):
        if sys.stderr.isatty():
            print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
        elif time.time() - last[0] > 2:
            last[0] = time.time()
            print(text, file=sys.stderr, flush=True)

    try:
        source = sources.source_of(args.source, args.size, args.test)
        index = write(source, args.folder, args.shards, args.validation, say)
    except ValueError as error:
        exits.fail(f"{args.source}: {error}")
    except (OSError, tf.errors.OpError) as error:
        exits.fail(f"{args.folder}: {str(error).splitlines()[0]}", 1)
    except KeyboardInterrupt:
        exits.fail("interrupted; the same command goes on", 130)
    counts = ", ".join(f"{records.count(f)} {s}" for s, f in index.splits.items())
    shape = "x".join(map(str, index.shape))
    print(f"{args.folder}: {counts} images {shape} of {len(index.classes)} classes")


if __name__ == "__main__":
    main()
