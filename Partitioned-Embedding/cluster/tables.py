"""A table of rows in slices on the ps: pull and push of those touched. Scripts call it.

A row's number says on which ps it is, by one of two strategies of the field, for R rows
on K ps (those of `tf.nn.embedding_lookup`):

    mod    row i is row i div K of slice i mod K: neighbours are on different ps
    div    the first rows are in slice 0, and so on: neighbours are together
"""

import collections

import numpy as np

from cluster import rounds
from cluster import tensorflow_v1 as tf

STRATEGIES = ("mod", "div")

# What a pull asks for, a list with an entry a ps each: `places` int32 [n_k] are rows of
# its slice, there; `turns` int32 [n_k] say which of the rows asked for these are.
Asked = collections.namedtuple("Asked", "places turns")


def size_of(slice_, rows, slices):
    """Returns how many rows a slice has: the first R mod K of them have one more."""
    return rows // slices + (slice_ < rows % slices)


def locate(ids, rows, slices, strategy):
    """Returns slice and place in it of each id: arrays or tensors, of ids' dtype."""
    if strategy == "mod":
        return ids % slices, ids // slices
    least, more = rows // slices, rows % slices
    long = more * (least + 1)  # rows in the slices that have one more
    short = ids >= long
    where = tf.where_v2 if tf.is_tensor(ids) else np.where
    slice_ = where(short, (ids - long) // max(least, 1) + more, ids // (least + 1))
    place = where(short, (ids - long) % max(least, 1), ids % (least + 1))
    return slice_, place


def ids_of(slice_, rows, slices, strategy):
    """Returns the ids of the rows of a slice, int64: the inverse of `locate`."""
    count = size_of(slice_, rows, slices)
    if strategy == "mod":
        return slice_ + slices * np.arange(count)
    return slice_ * (rows // slices) + min(slice_, rows % slices) + np.arange(count)


class Table:
    """w [R, d] float32, a slice on each ps: built by every worker alike."""

    def __init__(self, args, rows):
        """`args` has ps_hosts, strategy, rank d, seed and start, its deviation."""
        self.rows, self.dimensions = rows, args.rank
        self.strategy, self.count = args.strategy, len(args.ps_hosts)

        def normal(shape, dtype, partition_info):
            key = [args.seed, partition_info.var_offset[0]]
            return args.start * tf.random.stateless_normal(shape, key, dtype=dtype)

        self.slices = list(
            tf.get_variable(
                "table",
                [rows, args.rank],
                initializer=normal,
                partitioner=tf.fixed_size_partitioner(self.count),
            )
        )
        # How the rows lie, for whoever restores: the strategy, and the slices.
        layout = [STRATEGIES.index(args.strategy), self.count]
        self.layout = tf.get_variable(
            "layout", initializer=np.array(layout), trainable=False
        )

    def ask(self, rows):
        """Sends the numbers of rows, int32 [n], each to its ps; returns the Asked."""
        slice_, place = locate(rows, self.rows, self.count, self.strategy)
        turns = tf.dynamic_partition(tf.range(tf.size(rows)), slice_, self.count)
        places = tf.dynamic_partition(place, slice_, self.count)
        return Asked(rounds.send(places, self.slices), turns)

    def pull(self, asked, after=()):
        """Returns the rows asked for [n, d], on this worker.

        `after` has what the read of each slice waits for.
        """
        pulled = []
        for k, variable in enumerate(self.slices):
            wait = tf.nest.flatten(after[k : k + 1])
            with tf.device(variable.device), tf.control_dependencies(wait):
                pulled.append(tf.gather(variable, asked.places[k]))
        rows = tf.dynamic_stitch(asked.turns, pulled)
        return tf.reshape(rows, [-1, self.dimensions])

    def push(self, gradient, asked):
        """Returns the IndexedSlices of a gradient of pulled rows [n, d], on each ps.

        The numbers of the rows are there since the pull.
        """
        mine = [tf.gather(gradient, turns) for turns in asked.turns]
        sent = rounds.send(mine, self.slices)
        return [*map(tf.IndexedSlices, sent, asked.places)]

    def lookup(self, ids):
        """Returns the rows of any ids: float32 [*ids.shape, d]."""
        rows, where = tf.unique(tf.reshape(ids, [-1]))
        pulled = tf.gather(self.pull(self.ask(rows)), where)
        return tf.reshape(pulled, [*ids.shape, self.dimensions])

    def sent(self, rows):
        """Returns the bytes that a round pushes and pulls for n rows: int64 [2].

        Up: a number of 4 bytes and a gradient for each; down: each row.
        """
        row = 4 * self.dimensions
        return tf.size(rows, out_type=tf.int64) * np.array([4 + row, row])

    def traffic(self, summary):
        """Returns, for result.json, the bytes of a step beside those of a dense one."""
        both = summary["bytes_pushed"] + summary["bytes_pulled"]
        return {
            "bytes_per_step": both / max(1, summary["global_steps"]),
            "dense_bytes_per_step": 2 * 4 * self.rows * self.dimensions,
        }


class Saver:
    """Saves and restores a table: every ps writes and reads its own slice.

    It restores what any number of ps has saved, by either strategy. All ps must see
    the same directory.
    """

    def __init__(self, table):
        """`table` is the Table of the graph, which has all its variables now."""
        self.table = table
        slices = {id(variable) for variable in table.slices}
        rest = [v for v in tf.global_variables() if id(v) not in slices]
        self.same = tf.train.Saver(sharded=True, save_relative_paths=True)
        self.others = tf.train.Saver([v for v in rest if v is not table.layout])
        self.save = self.same.save
        self.recover_last_checkpoints = self.same.recover_last_checkpoints
        self.begin = [v.initializer for v in [*table.slices, table.layout]]
        self.path, self.spec = (tf.placeholder(tf.string, s) for s in ([], [1]))
        self.turns, self.places = (tf.placeholder(tf.int32, [None]) for _ in range(2))
        self.deals = [self._deal(variable) for variable in table.slices]

    def _deal(self, variable):
        """Returns what puts rows of one old slice, `turns`, to their new `places`."""
        with tf.device(variable.device):
            (old,) = tf.raw_ops.RestoreV2(
                prefix=self.path,
                tensor_names=["table"],
                shape_and_slices=self.spec,
                dtypes=[tf.float32],
            )
            return tf.raw_ops.ResourceScatterUpdate(
                resource=variable.handle,
                indices=self.places,
                updates=tf.gather(old, self.turns),
            )

    def restore(self, session, path):
        """Restores a checkpoint; raises ValueError if its table is another one."""
        table = self.table
        reader = tf.train.load_checkpoint(path)
        strategy, count = reader.get_tensor("layout").tolist()
        strategy, wanted = STRATEGIES[strategy], [table.rows, table.dimensions]
        found = reader.get_variable_to_shape_map().get("table")
        if found != wanted:
            raise ValueError(f"table is {found} there, {wanted} here")
        if (strategy, count) == (table.strategy, table.count):
            return self.same.restore(session, path)
        print(f"deals the table anew: it was on {count} ps, by {strategy}")
        session.run(self.begin)
        self.others.restore(session, path)
        first = 0
        for old in range(count):
            ids = ids_of(old, table.rows, count, strategy)
            now, place = locate(ids, table.rows, table.count, table.strategy)
            text = f"{table.rows} {table.dimensions} {first},{len(ids)}:-"
            for k, deal in enumerate(self.deals):
                (mine,) = np.nonzero(now == k)
                fed = {self.path: path, self.spec: [text]}
                fed |= {self.turns: mine, self.places: place[mine]}
                session.run(deal, fed)
            first += len(ids)
