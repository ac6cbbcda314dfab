"""What the tasks of a run agree on, in variables on ps 0. `rendezvous` calls it.

In a run without a ps these variables are on the chief.

A run has incarnations: the first start, and one more after each restore of a
checkpoint. What the ps hold beside the model (sums, clocks, tokens) is `temporary`: it
belongs to one incarnation. The chief closes the old incarnation before it restores, and
opens the next one when everything is in place. A worker joins after that. The push of
a worker that has not joined is not applied.
"""

import json
import math
import os
import sys
import zlib

import cluster
from cluster import addresses
from cluster import tensorflow_v1 as tf

# Flags that may differ from task to task: who it is, where it writes, how it waits.
OWN = ("job_name", "task_index", "address", "logdir", "check", "save_seconds")
OWN += ("patience", "slow_workers", "device")
SCRIPT = ""  # in place of the script's name, which is nobody else's matter
RESULTS = ("data_checksum", "model")  # what flags and code have made
STILL = 10  # seconds without a heartbeat of anybody


def temporary(name, initial, shape=None):
    """Returns a variable, where it is built, that an incarnation begins with `initial`.

    It is neither trained nor saved.
    """
    return tf.Variable(
        initial,
        shape=shape,
        trainable=False,
        name=name,
        use_resource=True,
        collections=["incarnation"],
    )


def unreachable(task, tasks):
    """Returns the variable on a task: which tasks it cannot reach, bool [tasks].

    Only that task writes it, and it belongs to no incarnation.
    """
    with tf.device(addresses.device(task)):
        return tf.Variable(
            [False] * tasks,
            name="unreachable_{}_{}".format(*task),
            trainable=False,
            use_resource=True,
            collections=[],
        )


class Incarnation:
    """The number of the incarnation, who has joined it, and what all must agree on.

    It can be built again in another graph: variables of one name are one variable.
    """

    def __init__(self, args):
        self.me, self.workers = args.task_index, addresses.clients(args)
        tasks = list(addresses.serving(args))
        self.device = addresses.device(tasks[0])
        none = tf.fill([self.workers], "")
        with tf.device(self.device):
            self.number = temporary("incarnation", tf.zeros([], tf.int64))  # 0: closed
            self.joined = temporary("joined", tf.zeros([self.workers], tf.int64))
            self.owners = temporary("owners", none)  # the process of each worker
            self.fingerprint = temporary("fingerprint", tf.constant(""))
            # The mean training loss of each worker, NaN until it has reported that.
            nothing = tf.fill([self.workers], tf.constant(math.nan, tf.float64))
            self.reports = temporary("reports", nothing)
            self.saved = temporary("saved", tf.constant(False))  # the run is over
            self.reason = temporary("reason", tf.constant(""))  # why the run failed
            # When ps 0 heard of each worker, seconds by its clock.
            zeros = tf.zeros([self.workers], tf.float64)
            self.heartbeats = temporary("heartbeats", zeros)
        count = len(addresses.everybody(args))
        others = [task for task in tasks if task != ("worker", 0)]
        self.unreachable = {task: unreachable(task, count) for task in others}
        # Operations of the scheme: of the chief when it opens an incarnation, of a
        # worker when it joins. And what builds a check for the heartbeat's graph.
        self.on_open, self.on_join, self.checks = [], [], []

    def close(self):
        """Chief: returns the operation that ends an incarnation, on every ps."""
        return tf.group(
            [variable.initializer for variable in tf.get_collection("incarnation")]
        )

    def open(self, fingerprint, ready):
        """Chief: returns the operation that begins one, after those in `ready`."""
        with tf.device(self.device), tf.control_dependencies(ready):
            said = self.fingerprint.assign(fingerprint, read_value=False)
            with tf.control_dependencies([said]):
                number = tf.cast(1e6 * tf.timestamp(), tf.int64)
                return self.number.assign(number, read_value=False)

    def join(self, process):
        """Returns the operations by which this worker takes part in an incarnation.

        `process` is the name of this process among all that ever were this worker.
        """
        with tf.device(self.device):
            joined = self.joined[self.me].assign(self.number.read_value())
            owner = self.owners[self.me].assign(process)
            return [joined.op, owner.op, self.beat(), *self.on_join]

    def has_joined(self):
        """Returns whether this worker's pushes count, bool on ps 0."""
        number = self.number.read_value()
        return tf.equal(tf.gather(self.joined, self.me), number) & (number > 0)

    def beat(self):
        """Returns the operation that is this worker's heartbeat.

        If none came from anybody for STILL seconds, ps 0 stood still or its clock
        jumped. Then the times that it noted say nothing, and every worker that was
        ever heard of counts as heard of now.
        """
        with tf.device(self.device):
            now, heard = tf.timestamp(), self.heartbeats.read_value()
            since = now - tf.reduce_max(heard)

            def again():
                fresh = tf.where(heard > 0, tf.fill([self.workers], now), heard)
                return self.heartbeats.assign(fresh, read_value=False)

            jumped = (since < -1) | (since > STILL)
            moved = tf.cond(jumped, again, tf.no_op)
        with tf.device(self.device), tf.control_dependencies([moved]):
            return tf.raw_ops.ResourceScatterUpdate(
                resource=self.heartbeats.handle, indices=self.me, updates=now
            )

    def silence(self):
        """Returns for how long ps 0 has not heard of each worker, seconds [workers].

        A worker that has not joined yet counts as silent since the incarnation began.
        While none is open nobody counts as silent.
        """
        with tf.device(self.device):
            number = self.number.read_value()
            opened = 1e-6 * tf.cast(number, tf.float64)
            beats = self.heartbeats.read_value()
            heard = tf.where(beats > 0, beats, tf.fill([self.workers], opened))
            silence = tf.timestamp() - heard
            return tf.where(tf.equal(number, 0), tf.zeros_like(silence), silence)


def fingerprint(args, elements):
    """Returns what all workers of a run must agree on, as JSON.

    A worker with another window, rule, or list of hosts would train something else or
    wait for ever, and nobody would notice. `elements` is the size of the model; the
    checksum of the data is among the flags, see task.data.
    """
    flags = {name: value for name, value in vars(args).items() if name not in OWN}
    flags["data"] = os.path.basename(args.data)
    about = {"model": elements, "TensorFlow": tf.VERSION, "code": _code()}
    return json.dumps({**flags, **about}, sort_keys=True)


def _code():
    """Returns {file: checksum} for the script, and what it has loaded of its folder."""
    folder = os.path.join(os.path.realpath(cluster.FOLDER), "")
    prefix = os.path.join(os.path.realpath(sys.prefix), "")
    found = {}
    for name, module in list(sys.modules.items()):
        path = os.path.realpath(getattr(module, "__file__", None) or "")
        packages = prefix.startswith(folder) and path.startswith(prefix)
        if path.startswith(folder) and not packages and os.path.isfile(path):
            name = SCRIPT if name == "__main__" else os.path.relpath(path, folder)
            with open(path, "rb") as file:
                found[name] = zlib.crc32(file.read())
    return found


def difference(mine, others):
    """Returns a sentence about the first value in which two fingerprints differ."""
    mine, others = json.loads(mine), json.loads(others)
    if mine.get("scheme") != others.get("scheme"):
        return f"this is {mine['scheme']}, the run is {others['scheme']}"
    code, theirs = mine.pop("code", {}), others.pop("code", {})
    # The user's files before cluster/. One may be loaded by some of the workers only.
    for name in sorted(code, key=lambda name: (os.path.dirname(name), name)):
        if code[name] != theirs.get(name, code[name]):
            file = os.path.basename(sys.argv[0]) if name == SCRIPT else name
            return f"{file} is not the same code here as in the run"
    for name in sorted({*mine, *others}, key=lambda name: (name in RESULTS, name)):
        here, there = mine.get(name), others.get(name)
        if here != there:
            what = {
                "TensorFlow": f"TensorFlow is {here} here, {there} in the run",
                "model": f"the model has {here} parameters here, {there} in the run",
                "data_checksum": f"the data, {mine['data']}, are not the same here as "
                "in the run",
            }
            return what.get(name, f"--{name} is {here} here, {there} in the run")
    return None
