"""The input: a worker's mini-batches out of records, by tf.data. The script calls it.

Each worker reads its own files of records. If the number of files is not a multiple of
the number of workers, all workers share the files that are left, record by record. So
in an epoch exactly one worker sees each example, once. Every epoch asserts the count.

The order depends only on seed, worker and epoch. Hence `position`: ps 0 counts how many
examples were in a worker's pushes. A worker that comes back asks for this number, and
goes on after it, in the middle of its epoch.
"""

import os

from cluster import flags
from cluster import tensorflow_v1 as tf
from cluster.stats import COUNTERS
from records import count, parse

AT_ONCE = 500  # held-out images of a batch


def add_flags(parser):
    """Adds the flags of the input."""
    add = parser.add_argument
    on = dict(type=int, choices=(0, 1))
    add("--augment", **on, default=1, help="1: turn and move the training images")
    add("--shuffle", type=flags.positive_int, default=10000, help="images to draw from")
    add("--readers", type=flags.positive_int, default=4, help="files read at once")


def share(files, worker, workers):
    """Returns what a worker reads of the files: (its own, those of all, how many).

    Worker k of N has files k, k + N, .. as long as all N have one; of the examples in
    the files that are left it takes k, k + N, ... `how many` counts its examples.
    """
    whole = len(files) - len(files) % workers
    own, left = files[worker:whole:workers], files[whole:]
    return own, left, count(own) + len(range(worker, count(left), workers))


def _read(index, files, readers=1, seed=None):
    """Returns the records of files as a dataset, `readers` files at a time."""
    paths = [os.path.join(index.folder, entry["file"]) for entry in files]
    paths = tf.constant(paths, tf.string, [len(paths)])
    paths = tf.data.Dataset.from_tensor_slices(paths)
    if seed is not None:
        paths = paths.shuffle(max(1, len(files)), seed)
    return paths.interleave(
        tf.data.TFRecordDataset,
        cycle_length=readers,
        block_length=16,
        num_parallel_calls=readers,
        deterministic=True,
    )


def _unconverted(function):
    """Returns what a dataset may call as it is.

    AutoGraph would write it to a file in the system's temporary directory, and a
    process that is killed leaves that there.
    """
    return tf.autograph.experimental.do_not_convert(function)


def epoch(index, worker, workers, number, args):
    """Returns a worker's records of epoch `number` (int64), each exactly once."""
    files = index.splits["train"]
    own, left, size = share(files, worker, workers)
    seed = number * 2**20 + args.seed * 2**10 + worker
    records = _read(index, own, args.readers, seed)
    if left:
        records = records.concatenate(_read(index, left).shard(workers, worker))
    # An epoch that ends early, or late, ends the program.
    records = records.apply(tf.data.experimental.assert_cardinality(size))
    return records.shuffle(
        min(size, args.shuffle), seed=seed, reshuffle_each_iteration=False
    )


def augment(images, seed):
    """Returns images, float32 0 to 255, each turned up to 10° and moved up to 2 pixels.

    `seed` [2] decides all: the same batch is augmented in the same way again.
    """
    n, (height, width) = tf.shape(images)[0], images.shape[1:3]
    turn, right, down = tf.unstack(tf.random.stateless_uniform([3, n], seed, -1.0, 1.0))
    cos, sin = tf.cos(turn * 0.17), tf.sin(turn * 0.17)
    # Where a pixel (x, y) of the result comes from: turned about the middle, moved.
    x, y = (width - 1) / 2, (height - 1) / 2
    rows = [cos, -sin, x - cos * x + sin * y + 2 * right]
    rows += [sin, cos, y - sin * x - cos * y + 2 * down]
    zeros = tf.zeros([n])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(images, tf.float32),
        transforms=tf.stack([*rows, zeros, zeros], axis=1),
        output_shape=[height, width],
        fill_value=0.0,
        interpolation="BILINEAR",
    )


def batches(index, args, worker, workers, position):
    """Returns what draws a worker's next mini-batch, from `position` on, for ever.

    `position` (int64 scalar tensor) counts the examples of this worker that are done
    with. A batch is images float32 [batch_size, h, w, c] from 0 to 255, labels int32
    and rows int64 [batch_size]; it may hold the end of an epoch and the next one's
    beginning.
    """
    _, _, size = share(index.splits["train"], worker, workers)
    first, done = position // size, position % size

    def records_of(number):
        begun = tf.where(tf.equal(number, first), done, tf.zeros_like(done))
        return epoch(index, worker, workers, number, args).skip(begun)

    def finish(number, records):
        images, labels, rows = parse(index, records)
        if args.augment:
            images = augment(images, tf.stack([number + args.seed, worker]))
        return tf.cast(images, tf.float32), labels, rows

    every = tf.data.Dataset.range(first, tf.int64.max)
    stream = every.flat_map(_unconverted(records_of))
    stream = stream.batch(args.batch_size, drop_remainder=True)
    stream = stream.enumerate(position // args.batch_size)
    stream = stream.map(
        _unconverted(finish), num_parallel_calls=args.readers, deterministic=True
    )
    iterator = tf.data.make_initializable_iterator(_plain(stream.prefetch(4)))
    # The run starts the input with the tables, once per session.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next


def position(stats):
    """Returns how many examples of this worker have counted, an int64 scalar."""
    with tf.device(stats.device):
        return stats.counters[stats.me, COUNTERS.index("examples")]


def say_position(position, index, worker, workers):
    """Says where a worker goes on, if that is not the beginning."""
    _, _, size = share(index.splits["train"], worker, workers)
    number, done = divmod(int(position), size)
    if position:
        where = f"{done} of its {size} images done"
        print(f"goes on in epoch {number + 1}, {where}")


def held_out(index, split, batch_size=AT_ONCE):
    """Returns an iterator over a split in order; its last batch may be short."""
    records = _read(index, index.splits[split]).batch(batch_size)
    return tf.data.make_initializable_iterator(
        _plain(records.map(_unconverted(lambda batch: parse(index, batch))).prefetch(1))
    )


def _plain(dataset):
    # The end of a session would wait for the tuner's thread, for up to ten seconds.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
