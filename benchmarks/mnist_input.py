"""What Distributed-MNIST's input can deliver, and whether training waits for it.

    python benchmarks/mnist_input.py                     1 GB of records in 16 files
    python benchmarks/mnist_input.py --quick             a test of the script

Images per second of the input alone (parsed, shuffled, in batches): with files read in
parallel, with one reader, with augmentation, and the same bytes from memory by NumPy.
Then a worker's gradients of the convolutional network on that input, with TensorFlow's
own trace of every step: how long a step takes, and how much of it `IteratorGetNext`,
the wait for the next batch, does. The records are made once, and kept with --folder.
"""

import argparse
import contextlib
import importlib
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import runs

FOLDER = Path(__file__).resolve().parents[1] / "Distributed-MNIST"
sys.path.insert(0, str(FOLDER))
SIDE, CLASSES = 28, 10


def generated(gigabytes: float, folder: str):
    """Returns the Index of random images in 16 files, made if they are not there."""
    import prepare
    import records
    import sources

    if records.are_there(folder):
        return records.read_index(folder)
    images = np.random.default_rng(0).integers(0, 256, [1000, SIDE, SIDE, 1], np.uint8)
    rows = max(4000, int(gigabytes * 1e9 / (SIDE * SIDE + 70)))

    def row(number):
        return images[number % 1000], number % CLASSES

    splits = {"train": (row, rows), "test": (row, 100)}
    names = [str(number) for number in range(CLASSES)]
    shape, about = images.shape[1:], f"{gigabytes} GB"
    source = sources.Source("generated", names, shape, None, shape[-1], about, splits)
    last = [0.0]

    def say(text):
        if time.time() - last[0] > 5:
            last[0] = time.time()
            print(f"making records: {text}", file=sys.stderr)

    return prepare.write(source, folder, 16, 0.001, say)


def flags_of(**changes) -> argparse.Namespace:
    """Returns the flags of the input, as pipeline.py reads them."""
    usual = dict(batch_size=32, seed=0, augment=0, shuffle=10000, readers=4)
    return argparse.Namespace(**{**usual, **changes})


def rate_of_input(index, seconds: float, **changes) -> float:
    """Returns images per second of the input alone, after its first batches."""
    from cluster import tensorflow_v1 as tf
    import pipeline

    args = flags_of(**changes)
    with tf.Graph().as_default(), tf.Session() as session:
        position = tf.constant(0, tf.int64)
        images, _, _ = pipeline.batches(index, args, 0, 1, position)()
        session.run(tf.tables_initializer())
        draw = session.make_callable(images.op)
        for _ in range(20):
            draw()
        began, made = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            draw()
            made += args.batch_size
        return made / (time.monotonic() - began)


def rate_of_memory(seconds: float, rows: int) -> float:
    """Returns images per second of NumPy that draws batches from an array."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, [min(rows, 200000), SIDE, SIDE, 1], np.uint8)
    began, made = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        images[rng.integers(0, len(images), 32)].astype(np.float32)
        made += 32
    return made / (time.monotonic() - began)


def waits(index, steps: int) -> tuple[float, float]:
    """Returns median milliseconds of a training step, and of its wait for the input."""
    from cluster import tensorflow_v1 as tf
    import models
    import pipeline

    with tf.Graph().as_default(), tf.Session() as session:
        begin = tf.constant(0, tf.int64)
        images, labels, _ = pipeline.batches(index, flags_of(augment=1), 0, 1, begin)()
        model = models.conv([SIDE, SIDE, 1], CLASSES, 128, 0)
        weights = [tf.Variable(model.start(i)) for i in range(len(model.names))]
        loss = model.loss(weights, images, labels)
        train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        whole, waited = [], []
        for step in range(steps + 10):
            metadata = tf.RunMetadata()
            session.run(train, options=options, run_metadata=metadata)
            nodes = [n for d in metadata.step_stats.dev_stats for n in d.node_stats]
            begin = min(n.all_start_micros for n in nodes)
            end = max(n.all_start_micros + n.all_end_rel_micros for n in nodes)
            draws = [n for n in nodes if n.node_name.startswith("IteratorGetNext")]
            if step >= 10:
                whole.append((end - begin) / 1000)
                waited.append(sum(n.all_end_rel_micros for n in draws) / 1000)
        return float(np.median(whole)), float(np.median(waited))


def main() -> None:
    """Writes a table in Markdown, and prints it."""
    parser = runs.measuring_parser(__doc__ or "", rounds=None)
    parser.add_argument("--folder", help="of the records (none: they are thrown away)")
    with runs.finished(parser.parse_args()) as args, contextlib.ExitStack() as stack:
        importlib.import_module("records").quiet()
        folder = args.folder or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="benchmark-")
        )
        gigabytes, seconds, steps = (0.01, 0.5, 5) if args.quick else (1.0, 10.0, 200)
        index = generated(gigabytes, folder)
        text = measured(index, seconds, steps)
        runs.publish(args, "mnist_input", text)


def measured(index, seconds: float, steps: int) -> str:
    """Returns the table of the input, and the sentence of the waiting."""
    files = index.splits["train"]
    count = sum(entry["examples"] for entry in files)
    size = sum(entry["bytes"] for entry in files) / 1e9
    rows = [
        [name, f"{rate_of_input(index, seconds, **changes):,.0f}"]
        for name, changes in (
            ("4 readers, the default", {}),
            ("1 reader", {"readers": 1}),
            ("4 readers, augmented", {"augment": 1}),
        )
    ]
    memory = rate_of_memory(seconds, count)
    rows.append(["NumPy, from memory, not parsed", f"{memory:,.0f}"])
    step, wait = waits(index, steps)
    return (
        "### Images per second of the input\n\n"
        f"{count:,} images of {SIDE}x{SIDE}, {size:.2f} GB in {len(files)} files.\n\n"
        + runs.table(["input", "images/s"], rows)
        + f"\nA training step takes {step:.2f} ms, of which it waits {wait:.3f} ms "
        f"({100 * wait / step:.1f} %) for its batch of 32 (medians of {steps}, "
        "augmented).\n"
    )


if __name__ == "__main__":
    runs.ends_cleanly(main)
