"""A table whose rows come and go: ids of any kind, in parts on the ps. Scripts call it.

The hash of an id says on which ps it is. There a hash table has, for each id seen:

    slot     where its row is among the `rows` of that ps; −1 if it has none
    count    how often it was asked for before it had one
    seen     the global step at which it was last asked for

Whoever looks up, pushes, forgets or saves holds the lock of that ps, and all that is
needed is there by then. A slot gets a new generation with each id; a push that was
computed for the id before is left out.

A worker may be killed between any two operations. A slot is taken, and its row drawn,
before an id has it; it is free again after no id has it. What a worker that dies took
and gave to none is found when rows are next forgotten.
"""

import collections
import contextlib
import glob
import os

import numpy as np

from cluster import rounds
from cluster import tensorflow_v1 as tf

# What a lookup asks for, a list with an entry a ps each: `ids` [n_k] and `times`, how
# often each is meant, there; `turns` int32 [n_k] say which of the ids asked for.
Asked = collections.namedtuple("Asked", "ids times turns")

# Where the rows were that a pull read, on that ps: int64 [n_k] each. Slot −1: nowhere.
Found = collections.namedtuple("Found", "slots generations")

# What is counted on each ps: rows given to an id, rows taken away, gradients of rows
# that were taken away meanwhile, and lookups that found no free slot.
EVENTS = ("rows_admitted", "rows_expired", "rows_late", "rows_refused")
NOBODY = np.array([-1, 0, 0], np.int64)  # slot, count, seen of an id that is unknown


def hashed(ids):
    """Returns a hash of each id, int64: of its text, so the same for 7 and "7"."""
    text = ids if ids.dtype == tf.string else tf.as_string(ids)
    return tf.strings.to_hash_bucket_fast(text, 2**63 - 1)


def draw(ids, columns, seed):
    """Returns uniform numbers [n, columns], mean 0 and variance 1, the same each time.

    They are hashes of (id, column, seed), by the finalizer of splitmix64 (Steele, Lea,
    Flood 2014): whoever asks first, on however many ps, an id begins with one row.
    """

    def number(value):
        return tf.constant(value % 2**64, tf.uint64)

    column = np.arange(columns, dtype=np.uint64)
    z = tf.cast(hashed(ids), tf.uint64)[:, None] * number(columns) + column
    z = z * number(0x9E3779B97F4A7C15) + number(seed * 0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        shifted = tf.bitwise.right_shift(z, number(shift))
        z = tf.bitwise.bitwise_xor(z, shifted) * number(factor)
    return tf.cast((tf.cast(z, tf.float64) / 2.0**63 - 1) * 3**0.5, tf.float32)


def row_bytes(rank):
    """Returns the bytes of memory that a row of `rank` numbers needs, about.

    Row and sums are 8 d bytes, its place 16, a whole number as id 80. While a run
    begins TensorFlow copies what it then changes: measured were 12 d + 160.
    """
    return 12 * rank + 160


def marked(table, mask):
    """Returns the elements, or rows, of a tensor where a bool tensor [n] says so."""
    return tf.gather(table, tf.where(mask)[:, 0])


class Part:
    """What one ps has of a table; all of it is built on that ps."""

    def __init__(self, args, k, kind):
        """`args` has ps_hosts, capacity, rank d, seed, start and first_sum."""
        self.args, self.kind, self.device = args, kind, f"/job:ps/task:{k}"
        self.size = -(-args.capacity // len(args.ps_hosts))  # slots

        def variable(name, value):
            options = dict(name=f"{name}_{k}", trainable=False, use_resource=True)
            return tf.Variable(value, **options)

        with tf.device(self.device):
            self.index = tf.raw_ops.MutableHashTableOfTensorsV2(
                key_dtype=kind,
                value_dtype=tf.int64,
                value_shape=[len(NOBODY)],
                shared_name=f"index_{k}",
            )
            self.mutex = tf.raw_ops.MutexV2(container="", shared_name=f"rows_{k}")
            # The rows, and of each number the sum of its squared gradients.
            shape = [self.size, args.rank]
            self.rows = variable("rows", tf.zeros(shape))
            self.sums = variable("sums", tf.zeros(shape))
            none = tf.zeros([self.size], tf.int64)
            self.generations = variable("generations", none)
            # How many of the free slots are taken, and then these; −1: no more.
            order = tf.range(-1, self.size, dtype=tf.int64)
            self.free = variable("free", tf.maximum(order, 0))
            self.events = variable("events", tf.zeros([len(EVENTS)], tf.int64))
        self.variables = [self.rows, self.sums, self.generations]
        self.variables += [self.free, self.events]

    @contextlib.contextmanager
    def locked(self, after=()):
        """Holds the lock for what is built inside, on this ps, once `after` is done.

        Yields the list of the operations after which `self.unlocked` gives it back.
        """
        done = []
        with tf.device(self.device):
            with tf.control_dependencies(after):
                lock = tf.raw_ops.MutexLock(mutex=self.mutex)
            with tf.control_dependencies([lock]):
                yield done
            with tf.control_dependencies(done):
                self.unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def then(self, tensors):
        """Returns the tensors as they are once the lock is given back."""
        with tf.device(self.device), tf.control_dependencies([self.unlocked]):
            return [tf.identity(tensor) for tensor in tensors]

    def count(self, **events):
        """Returns the operation that adds to the counters, bool tensors [n] each."""
        some = [events.get(name, ()) for name in EVENTS]
        made = [tf.reduce_sum(tf.cast(one, tf.int64)) for one in some]
        return self.events.assign_add(tf.stack(made), read_value=False)

    def entries(self, ids):
        """Returns slot, count and seen of ids, int64 [n] each."""
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self.index, keys=ids, default_value=NOBODY
        )
        return tf.unstack(tf.reshape(found, [-1, len(NOBODY)]), axis=1)

    def read(self, slots):
        """Returns the rows in these slots [n, d], and zeros for slot −1."""
        rows = tf.gather(self.rows, tf.maximum(slots, 0))
        return tf.where_v2(slots[:, None] >= 0, rows, 0.0)

    def insert(self, ids, *entries):
        """Returns the operation that writes slot, count and seen of ids."""
        values = tf.stack(entries, axis=1)
        return tf.raw_ops.LookupTableInsertV2(
            table_handle=self.index, keys=ids, values=values
        )

    def take(self, wants):
        """Returns a slot for each that `wants` one, and the operation that takes them.

        −1 is for those that want none, and for whom none is left.
        """
        taken = tf.gather(self.free, 0)
        turn = taken + tf.cumsum(tf.cast(wants, tf.int64))
        gets = wants & (turn <= self.size)
        slots = tf.gather(self.free, tf.where_v2(gets, turn, 0))
        slots = tf.where_v2(gets, slots, tf.constant(-1, tf.int64))
        new = taken + tf.reduce_sum(tf.cast(slots >= 0, tf.int64))
        update = tf.raw_ops.ResourceScatterUpdate
        return slots, update(resource=self.free.handle, indices=0, updates=new)

    def find(self, ids, times, step, admission, after):
        """Looks ids up, and gives rows to those to be admitted; returns (Found, rows).

        `admission(has, count, times)` returns the new counts, and who is to have a row;
        `has` says who has one.
        """
        with self.locked([ids, times, step, *after]) as done:
            slots, count, _ = self.entries(ids)
            count, admitted = admission(slots >= 0, count, tf.cast(times, tf.int64))
            wants = admitted & (slots < 0)
            given, taken = self.take(wants)
            new = given >= 0
            slots, at = tf.where_v2(new, given, slots), marked(given, new)
            with tf.control_dependencies([taken]):
                start = draw(marked(ids, new), self.args.rank, self.args.seed)
                drawn = self.put(at, self.args.start * start)
            seen = tf.fill(tf.shape(slots), step)
            with tf.control_dependencies(drawn):
                done.append(self.insert(ids, slots, count, seen))
                rows = self.read(slots)
                generations = tf.gather(self.generations, tf.maximum(slots, 0))
            done.append(self.count(rows_admitted=new, rows_refused=wants & ~new))
            done += [rows, generations]
        slots, generations, rows = self.then([slots, generations, rows])
        return Found(slots, generations), rows

    def put(self, slots, rows, sums=None):
        """Returns the operations that begin the life of rows in these slots."""
        if sums is None:
            sums = tf.fill(tf.shape(rows), self.args.first_sum)
        update = tf.raw_ops.ResourceScatterUpdate
        one = tf.ones_like(slots)
        next_ = tf.raw_ops.ResourceScatterAdd(
            resource=self.generations.handle, indices=slots, updates=one
        )
        pairs = (self.rows, rows), (self.sums, sums)
        put = [update(resource=v.handle, indices=slots, updates=x) for v, x in pairs]
        return [next_, *put]

    def look(self, ids):
        """Returns the rows of ids [n, d], zeros for who has none; changes nothing."""
        with self.locked([ids]) as done:
            slots, _, _ = self.entries(ids)
            done.append(self.read(slots))
        return self.then(done)[0]

    def update(self, found, gradients, applied, rule, after):
        """Applies `rule(part, slots, gradients)` to rows that are still of their ids.

        Returns what comes after it, an operation on this ps.
        """
        with tf.device(self.device):
            applied = tf.identity(applied)
        with self.locked([gradients, applied, *after]) as done:
            slots = found.slots
            now = tf.gather(self.generations, tf.maximum(slots, 0))
            mine = (slots >= 0) & applied
            same = tf.equal(now, found.generations)
            fits = mine & same
            done.append(rule(self, marked(slots, fits), marked(gradients, fits)))
            done.append(self.count(rows_late=mine & ~same))
        return self.unlocked

    def forget(self, due, step, gone, after):
        """Forgets, if it is `due`, the ids of which `gone(seen, step)` says so."""
        with tf.device(self.device):
            due, step = tf.identity(due), tf.identity(step)

        def forget():
            with self.locked([step]) as done:
                ids, entries = self.export()
                slots, _, seen = tf.unstack(entries, axis=1)
                out = gone(seen, step)
                lost, kept = (marked(slots, x & (slots >= 0)) for x in (out, ~out))
                removed = tf.raw_ops.LookupTableRemoveV2(
                    table_handle=self.index, keys=marked(ids, out)
                )
                with tf.control_dependencies([removed]):
                    ended = tf.raw_ops.ResourceScatterAdd(
                        resource=self.generations.handle,
                        indices=lost,
                        updates=tf.ones_like(lost),
                    )
                    one = tf.ones_like(kept)
                    used = tf.scatter_nd(kept[:, None], one, [self.size])
                with tf.control_dependencies([ended]):
                    free = tf.concat([[0], tf.where(tf.equal(used, 0))[:, 0]], 0)
                    rest = [[0, self.size + 1 - tf.size(free)]]
                    full = tf.pad(free, rest, constant_values=-1)
                    done.append(self.free.assign(full, read_value=False))
                done.append(self.count(rows_expired=out & (slots >= 0)))
            return self.unlocked

        with tf.device(self.device), tf.control_dependencies(after):
            return rounds.only_if(tf.identity(due), forget)

    def export(self):
        """Returns all ids, and slot, count and seen of each: int64 [n, 3]."""
        ids, entries = tf.raw_ops.LookupTableExportV2(
            table_handle=self.index, Tkeys=self.kind, Tvalues=tf.int64
        )
        return ids, tf.reshape(entries, [-1, len(NOBODY)])


class Table:
    """e: a row of d numbers for each id that has one; built by every worker alike."""

    def __init__(self, args, kind):
        """`kind` is that of the ids, tf.int64 or tf.string; for `args` see Part."""
        self.args, self.kind, self.count = args, kind, len(args.ps_hosts)
        self.parts = [Part(args, k, kind) for k in range(self.count)]
        self.rows = [part.rows for part in self.parts]
        known = []
        for part in self.parts:
            with part.locked() as done:
                ids, entries = part.export()
                have = tf.reduce_sum(tf.cast(entries[:, 0] >= 0, tf.int64))
                sums = [tf.size(ids, out_type=tf.int64), have]
                done.append(tf.concat([sums, part.events], 0))
            known += part.then(done)
        self.known = tf.add_n(known)

    def ask(self, ids, times=None):
        """Sends ids [n], each once, to their ps, and how often each; returns Asked."""
        part = tf.cast(hashed(ids) % self.count, tf.int32)

        def deal(tensor):
            return tf.dynamic_partition(tensor, part, self.count)

        sent = [rounds.send(deal(x), self.rows) for x in (ids, times) if x is not None]
        return Asked(sent[0], sent[-1], deal(tf.range(tf.size(ids))))

    def pull(self, asked, step, admission, after=()):
        """Returns the rows of the ids asked for [n, d], here, and a Found of each ps.

        `step` is the global step on ps 0; `after` has what each ps waits for. For
        `admission` see Part.find.
        """
        found, pulled = [], []
        for k, part in enumerate(self.parts):
            with tf.device(part.device):
                here = tf.identity(step)  # from ps 0, a number
            waits = tf.nest.flatten(after[k : k + 1])
            ids, times = asked.ids[k], asked.times[k]
            where, rows = part.find(ids, times, here, admission, waits)
            found.append(where)
            pulled.append(rows)
        return self.join(asked, pulled), found

    def join(self, asked, pulled):
        """Returns the rows from each ps in the order in which they were asked for."""
        rows = tf.dynamic_stitch(asked.turns, pulled)
        return tf.reshape(rows, [-1, self.args.rank])

    def push(self, gradient, asked):
        """Returns the parts of a gradient of pulled rows [n, d], each on its ps."""
        mine = [tf.gather(gradient, turns) for turns in asked.turns]
        return rounds.send(mine, self.rows)

    def update(self, found, pushed, applied, rule, after=()):
        """Updates rows, see Part.update; returns what comes after it on each ps."""
        every = zip(self.parts, found, pushed, strict=True)
        return [
            part.update(*one, applied, rule, tf.nest.flatten(after[k : k + 1]))
            for k, (part, *one) in enumerate(every)
        ]

    def forget(self, due, step, gone, after):
        """Forgets ids, see Part.forget; returns what comes after it on each ps."""
        every = zip(self.parts, after, strict=True)
        return [part.forget(due, step, gone, [last]) for part, last in every]

    def lookup(self, ids):
        """Returns the rows of any ids [*ids.shape, d], zeros for those without one.

        It admits none, and counts none.
        """
        each, where = tf.unique(tf.reshape(ids, [-1]))
        asked = self.ask(each)
        pulled = [p.look(mine) for p, mine in zip(self.parts, asked.ids, strict=True)]
        return tf.gather(self.join(asked, pulled), tf.reshape(where, tf.shape(ids)))

    def sent(self, ids):
        """Returns the bytes that a round pushes and pulls for ids [n]: int64 [2].

        Up: an id, its number of times and a gradient for each; down: each row.
        """
        row, number = 4 * self.args.rank, tf.size(ids, out_type=tf.int64)
        names = 8 * number
        if self.kind == tf.string:
            names = tf.reduce_sum(tf.cast(tf.strings.length(ids), tf.int64))
        return tf.stack([names + number * (4 + row), number * row])

    def summary(self, session):
        """Returns, for result.json, how many ids and rows there are, and were."""
        names = "ids", "rows", *EVENTS
        return dict(zip(names, session.run(self.known).tolist(), strict=True))


class Saver:
    """Saves and restores a table; every ps writes and reads its own part.

    A part is a checkpoint of its own, PATH.rows-K: ids, entries (slot: which of the
    rows), rows, sums, events, and how many parts there are. Any number of ps restores
    what any number has saved. All must see the same directory.
    """

    def __init__(self, table):
        """`table` is the Table of the graph, which has all its variables now."""
        self.table = table
        mine = {id(v) for part in table.parts for v in part.variables}
        rest = [v for v in tf.global_variables() if id(v) not in mine]
        self.others = tf.train.Saver(rest, sharded=True, save_relative_paths=True)
        self.recover_last_checkpoints = self.others.recover_last_checkpoints
        self.begin = [v.initializer for part in table.parts for v in part.variables]
        self.path = tf.placeholder(tf.string, [])
        self.saved = [self._save(part, k) for k, part in enumerate(table.parts)]
        self.dealt = [self._deal(part, k) for k, part in enumerate(table.parts)]

    def _save(self, part, k):
        """Returns the operation that writes a part, as it is at one moment."""
        with part.locked() as done:
            ids, entries = part.export()
            has = entries[:, 0] >= 0
            at = marked(entries[:, 0], has)
            turn = tf.cumsum(tf.cast(has, tf.int64)) - 1
            slots = tf.where_v2(has, turn, tf.constant(-1, tf.int64))
            tensors = {
                "ids": ids,
                "entries": tf.concat([slots[:, None], entries[:, 1:]], 1),
                "rows": tf.gather(part.rows, at),
                "sums": tf.gather(part.sums, at),
                "events": part.events.read_value(),
                "parts": tf.constant(self.table.count),
            }
            done += tensors.values()
        with tf.device(part.device):
            return tf.raw_ops.SaveV2(
                prefix=tf.strings.join([self.path, f".rows-{k}"]),
                tensor_names=[*tensors],
                shape_and_slices=[""] * len(tensors),
                tensors=part.then(tensors.values()),
            )

    def _deal(self, part, k):
        """Returns what gives a part its rows of an old part, which is at `path`."""
        kinds = dict(ids=part.kind, entries=tf.int64, rows=tf.float32, sums=tf.float32)
        kinds["events"] = tf.int64
        with part.locked() as done:
            ids, entries, rows, sums, events = tf.raw_ops.RestoreV2(
                prefix=self.path,
                tensor_names=[*kinds],
                shape_and_slices=[""] * len(kinds),
                dtypes=[*kinds.values()],
            )
            mine = tf.equal(hashed(ids) % self.table.count, k)
            ids, entries = marked(ids, mine), marked(entries, mine)
            old, count, seen = tf.unstack(tf.reshape(entries, [-1, 3]), axis=1)
            has = old >= 0
            slots, taken = part.take(has)
            full = f"--capacity {part.args.capacity} is too small for the rows there"
            fits = tf.debugging.Assert(tf.reduce_all((slots >= 0) | ~has), [full])
            with tf.control_dependencies([fits, taken]):
                at = marked(old, has)
                some = tf.gather(rows, at), tf.gather(sums, at)
                done += part.put(marked(slots, has), *some)
            done.append(part.insert(ids, slots, count, seen))
            if k == 0:  # a sum over all ps
                done.append(part.events.assign_add(events, read_value=False))
        return part.unlocked

    def save(self, session, path, step, **options):
        """Saves a checkpoint: its rows before it, so that nobody finds it without."""
        session.run(self.saved, {self.path: f"{path}-{step}"})
        self.others.save(session, path, step, **options)
        for file in glob.glob(f"{glob.escape(path)}-*.rows-*"):
            if not os.path.exists(f"{file.rpartition('.rows-')[0]}.index"):
                os.remove(file)  # TensorFlow keeps the last five

    def restore(self, session, path):
        """Restores a checkpoint; raises ValueError if its rows are others."""
        if not os.path.exists(f"{path}.rows-0.index"):
            raise ValueError("it has no rows")
        first = tf.train.load_checkpoint(f"{path}.rows-0")
        found, d = first.get_variable_to_shape_map()["rows"][1], self.table.args.rank
        if found != d:
            raise ValueError(f"its rows have {found} numbers, not {d}")
        session.run(self.begin)
        self.others.restore(session, path)
        for k in range(first.get_tensor("parts")):
            session.run(self.dealt, {self.path: f"{path}.rows-{k}"})
