"""A large table of rows, on two ps or in one process: rates, memory, and expiry.

    dynamic      rows that come and go, by cluster/dynamic.py of Dynamic-Embedding
    partitioned  a row for each number, by cluster/tables.py of Partitioned-Embedding
    hash         tf.lookup.experimental.MutableHashTable alone: a worker finds rows, and
                 inserts them again, less the gradient
    hash-again   the same, but a push finds the rows again, on the ps
    keras        tf.keras.layers.Embedding, in this process

A ps is a process of its own, and this one is the worker. Prints one JSON object: rows/s
that are pulled, and pulled and pushed, in calls of so many distinct rows; the memory of
all ps, or of this process for keras, before there are rows and with them; for `dynamic`
also the seconds of an expiry that finds nothing, and of one that takes every other row.

With --updates two more processes are workers, who each add 1 to the same row so often,
at the same time. Printed is how many of these updates are in the row.

    python benchmarks/large_table.py dynamic --rows 1000000
    python benchmarks/large_table.py hash --updates 300
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import types

import numpy as np
import psutil
import runs

sys.path.insert(0, str(runs.REPO / "originals"))
tf = importlib.import_module("cluster.tensorflow_v1")
dynamic, launch, tables = map(
    importlib.import_module, ("cluster.dynamic", "launch", "cluster.tables")
)

KINDS = ("dynamic", "partitioned", "hash", "hash-again", "keras")
RANK, PS, RATE = 16, 2, 0.01
FILL = 100_000  # ids of a call that fills the table
ROW = 7  # that two workers update
AGE = 100  # steps after which a row expires


# --- Tables, each with the operations of a call -----------------------------------


class Dynamic:
    """`pulled` are rows of `ids`, and `rounds` what pulls and pushes them."""

    def __init__(self, args, ids, hosts):
        room = args.rows + 2000 + args.rows // 100  # no ps has exactly half of all ids
        args = types.SimpleNamespace(
            ps_hosts=hosts, capacity=room, rank=RANK, seed=0, start=0.01, first_sum=0.1
        )
        table = dynamic.Table(args, tf.int64)
        with tf.device("/job:ps/task:0"):
            self.step = tf.placeholder_with_default(tf.constant(0, tf.int64), [])
        asked = table.ask(ids, tf.ones_like(ids, tf.int32))
        self.pulled, found = table.pull(asked, self.step, self.admission)
        pushed = table.push(RATE * self.pulled, asked)

        def sgd(part, slots, g):
            scatter = tf.raw_ops.ResourceScatterSub
            return scatter(resource=part.rows.handle, indices=slots, updates=g)

        def adagrad(part, slots, g):
            return tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=part.rows.handle,
                accum=part.sums.handle,
                lr=RATE,
                epsilon=0.0,
                grad=g,
                indices=slots,
            )

        def update(rule, values=pushed):
            return table.update(found, values, tf.constant(True), rule)

        self.rounds = {"SGD": update(sgd), "Adagrad": update(adagrad)}
        self.add_one = update(sgd, [-tf.ones_like(values) for values in pushed])
        due = tf.placeholder_with_default(True, [])
        nothing = [tf.no_op()] * PS
        self.forget = table.forget(due, self.step, self.gone, nothing)
        self.known = table.known

    @staticmethod
    def admission(has, count, times):
        """Admits every id."""
        return count + times, tf.ones_like(has)

    @staticmethod
    def gone(seen, step):
        """Says which ids expire."""
        return step - seen >= AGE


class Partitioned:
    """The same for a table in slices."""

    def __init__(self, args, ids, hosts):
        args_ = types.SimpleNamespace(
            ps_hosts=hosts, strategy="mod", rank=RANK, seed=0, start=0.01
        )
        table = tables.Table(args_, args.rows)
        asked = table.ask(tf.cast(ids, tf.int32))
        self.pulled = table.pull(asked)
        pushed = table.push(RATE * self.pulled, asked)
        update = [
            tf.raw_ops.ResourceScatterSub(
                resource=w.handle, indices=g.indices, updates=g.values
            )
            for w, g in zip(table.slices, pushed, strict=True)
        ]
        self.rounds = {"SGD": update}


class Hash:
    """The same for a hash table on each ps that has the rows themselves."""

    def __init__(self, args, ids, hosts):
        part = tf.cast(ids % PS, tf.int32)
        mine = tf.dynamic_partition(ids, part, PS)
        turns = tf.dynamic_partition(tf.range(tf.size(ids)), part, PS)
        pulled, places = [], []
        for k in range(PS):
            with tf.device(f"/job:ps/task:{k}"):
                table = tf.lookup.experimental.MutableHashTable(
                    tf.int64, tf.float32, tf.zeros([RANK]), name=f"table_{k}"
                )
                here = tf.identity(mine[k])
                pulled.append(table.lookup(here))
                places.append((table, here))
        self.pulled = tf.reshape(tf.dynamic_stitch(turns, pulled), [-1, RANK])

        def update(gradient):
            done, again = [], args.kind == "hash-again"
            for k, (table, here) in enumerate(places):
                pushed = tf.gather(
                    gradient if again else self.pulled - gradient, turns[k]
                )
                with tf.device(f"/job:ps/task:{k}"):
                    new = tf.identity(pushed)
                    if again:
                        with tf.control_dependencies([new]):
                            new = table.lookup(here) - new
                    done.append(table.insert(here, new))
            return done

        self.rounds = {"SGD": update(RATE * self.pulled)}
        self.add_one = update(-tf.ones_like(self.pulled))


# --- Processes ----------------------------------------------------------------------


def serve(args):
    """A ps: serves until its parent ends it, or is gone."""
    tf.train.Server(
        tf.train.ClusterSpec(args.cluster), job_name="ps", task_index=args.task_index
    )
    while os.getppid() == args.parent:
        time.sleep(0.2)


def child(args, *more):
    """Returns the context of a child process of this program."""
    command = [runs.PYTHON, __file__, args.kind, "--rows", args.rows]
    command += ["--cluster", json.dumps(args.cluster), "--parent", os.getpid()]
    env = {**os.environ, **launch.MALLOC}  # as every task of an example has it
    pipes = dict(env=env, stdout=subprocess.PIPE, text=True)
    return runs.process([*command, *more], **pipes)


def graph(args):
    """Returns what a worker has: a session, ids that are fed, the table and so on."""
    spec, me = tf.train.ClusterSpec(args.cluster), f"/job:worker/task:{args.task_index}"
    server = tf.train.Server(spec, job_name="worker", task_index=args.task_index)
    setter = tf.train.replica_device_setter(cluster=spec, worker_device=me)
    kinds = dict(zip(KINDS, (Dynamic, Partitioned, Hash, Hash), strict=False))
    with tf.device(setter):
        with tf.device(me):
            ids = tf.placeholder(tf.int64, [None])
        table = kinds[args.kind](args, ids, args.cluster["ps"])
        ready = tf.get_variable("ready", initializer=0, use_resource=True)
        more = dict(ready=ready, another=ready.assign_add(1), nothing=tf.no_op())
        more["begin"] = tf.global_variables_initializer()
    config = tf.ConfigProto(device_filters=["/job:ps", me])
    session = tf.Session(server.target, config=config)
    return types.SimpleNamespace(session=session, ids=ids, table=table, **more)


# --- What is measured ---------------------------------------------------------------


def resident(processes):
    """Returns the bytes that processes have resident."""
    return sum(psutil.Process(one.pid).memory_info().rss for one in processes)


def peak(process):
    """Returns the most bytes that a process has had resident."""
    return runs.peak(pathlib.Path("/proc", str(process.pid)))


def timed(args, call):
    """Returns rows/s of calls with distinct ids that are drawn; the first are left out.

    The distinct ids are `calls` times as many, each in one call.
    """
    random = np.random.default_rng(0)
    ids = random.choice(args.rows, (args.calls + 3) * args.batch, replace=False)
    ids = np.split(ids.astype(np.int64), args.calls + 3)
    for one in ids[:3]:
        call(one)
    began = time.monotonic()
    for one in ids[3:]:
        call(one)
    return args.calls * args.batch / (time.monotonic() - began)


def rates(args, session, ids, table):
    """Returns the rows/s of each kind of call."""

    def by(fetches):
        call = session.make_callable(fetches, feed_list=[ids])
        return timed(args, call)

    found = {"pulled": by(table.pulled)}
    found |= {rule: by(done) for rule, done in table.rounds.items()}
    return {f"rows/s, {name}": rate for name, rate in found.items()}


def on_ps(args, stack):
    """Returns what is measured of a table on ps."""
    args.cluster = cluster_of(1)
    more = [("--job_name", "ps", "--task_index", k) for k in range(PS)]
    servers = [stack.enter_context(child(args, *one)) for one in more]
    worker = graph(args)
    session, ids, table = worker.session, worker.ids, worker.table
    session.run(worker.nothing)  # returns when all are there
    before = resident(servers)
    session.run(worker.begin)
    found, began = {}, time.monotonic()
    found["empty"] = resident(servers)
    if args.kind != "partitioned":
        # Every other call is of an early step, so that half of the rows can expire.
        done = table.rounds["SGD"]
        for number, first in enumerate(range(0, args.rows, FILL)):
            fed = {ids: np.arange(first, min(first + FILL, args.rows))}
            if args.kind == "dynamic":
                fed[table.step] = AGE * (number % 2)
            session.run(done, fed)
        found["seconds to fill"] = time.monotonic() - began
    found |= {"before": before, "with rows": resident(servers)}
    if args.kind == "dynamic":
        for name, step in (("nothing", AGE - 1), ("half", 2 * AGE - 1)):
            began = time.monotonic()
            session.run(table.forget, {table.step: step})
            found[f"seconds, {name} expires"] = time.monotonic() - began
            found[f"rows, {name} expired"] = int(session.run(table.known)[1])
        for first in range(0, args.rows, FILL):  # all are there again
            fed = {ids: np.arange(first, min(first + FILL, args.rows))}
            session.run(table.rounds["SGD"], fed)
    found |= rates(args, session, ids, table)
    return found | {"at most": sum(peak(one) for one in servers)}


def in_keras(args):
    """Returns what is measured of an embedding in one process."""
    import tensorflow

    keras, me = tensorflow.keras, [psutil.Process()]
    one = tensorflow.constant([0])
    keras.layers.Embedding(2, RANK)(one)
    before = resident(me)
    layer = keras.layers.Embedding(args.rows, RANK)
    layer(one)
    found = {"before": before, "with rows": resident(me)}
    signature = [tensorflow.TensorSpec([None], tensorflow.int64)]
    pull = tensorflow.function(layer, input_signature=signature)
    found["rows/s, pulled"] = timed(args, lambda ids: pull(ids).numpy())
    for optimizer in (keras.optimizers.SGD(RATE), keras.optimizers.Adagrad(RATE)):
        optimizer.build(layer.trainable_variables)

        @tensorflow.function(input_signature=signature)
        def step(ids, optimizer=optimizer):
            with tensorflow.GradientTape() as tape:
                rows = layer(ids)
                loss = 0.5 * tensorflow.reduce_sum(rows**2)
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(
                zip(gradients, layer.trainable_variables, strict=True)
            )

        found[f"rows/s, {type(optimizer).__name__}"] = timed(args, step)
    return found | {"with sums": resident(me), "at most": peak(me[0])}


def lose(args, stack):
    """Returns how many updates of two workers are in one row, and of how many."""
    args.cluster = cluster_of(3)
    tasks = [("ps", k) for k in range(PS)] + [("worker", 1), ("worker", 2)]
    more = [("--job_name", job, "--task_index", k) for job, k in tasks]
    more = [(*one, "--updates", args.updates) for one in more]
    for one in more[:PS]:
        stack.enter_context(child(args, *one))
    worker = graph(args)
    worker.session.run(worker.begin)

    def now():
        return worker.session.run(worker.table.pulled, {worker.ids: [ROW]})[0, 0]

    begin = now()
    workers = [stack.enter_context(child(args, *one)) for one in more[PS:]]
    if any(one.wait() for one in workers):
        runs.fail("a worker has failed", 1)
    return {"updates": 2 * args.updates, "kept": round(float(now() - begin))}


def add(args):
    """A worker that adds 1 to a row so often."""
    worker = graph(args)
    add_one = worker.table.add_one
    call = worker.session.make_callable(add_one, feed_list=[worker.ids])
    call([ROW + 1])  # TensorFlow prepares what is called first
    worker.session.run(worker.another)
    while worker.session.run(worker.ready) < 2:
        time.sleep(0.001)
    for _ in range(args.updates):
        call([ROW])


def cluster_of(workers):
    """Returns the addresses of the ps, and of so many workers."""
    ports = [f"localhost:{port}" for port in runs.free_ports(PS + workers)]
    return {"ps": ports[:PS], "worker": ports[PS:]}


def main():
    parser = runs.Parser(__doc__)
    parser.add_argument("kind", choices=KINDS)
    for name, default in (("rows", 10**7), ("batch", 10_000), ("calls", 50)):
        parser.add_argument(f"--{name}", type=runs.positive_int, default=default)
    parser.add_argument("--updates", type=runs.positive_int)
    for name, kind in dict(cluster=json.loads, parent=int, task_index=int).items():
        parser.add_argument(f"--{name}", type=kind, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--job_name", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job_name:
        return serve(args) if args.job_name == "ps" else add(args)
    with contextlib.ExitStack() as stack:
        if args.updates:
            found = lose(args, stack)
        else:
            found = in_keras(args) if args.kind == "keras" else on_ps(args, stack)
    print(json.dumps(found))


if __name__ == "__main__":
    runs.ends_cleanly(main)
