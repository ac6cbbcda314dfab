"""One client that builds and runs the graph of all workers. Scripts call it.

A group is the workers whose work is one update: all of them, or each alone.
"""

import functools
import threading
import time

from cluster import rounds
from cluster import tensorflow_v1 as tf


class InTurn:
    """A report in which the threads of a client write one after the other."""

    def __init__(self, report):
        self.report, self.lock = report, threading.Lock()

    left = property(lambda self: self.report.left)
    lost = property(
        lambda self: self.report.lost,
        lambda self, error: setattr(self.report, "lost", error),
    )

    def rounds(self, losses, entries):
        """Notes the rounds of a call, as `report.Report.rounds` does."""
        with self.lock:
            return 0 if self.report.lost else self.report.rounds(losses, entries)


def make(calls, session, report):
    """Makes rounds of every group until a look is due: a thread for each, if several.

    `calls` has a `rounds.Calls` for each group; what one raises is raised here.
    """
    if len(calls) == 1:
        return calls[0].make(session, report)
    shared, failed = InTurn(report), []

    def work(one):
        try:
            one.make(session, shared)
        except Exception as error:
            failed.append(error)
            report.left = 0  # so that the others end too

    threads = [threading.Thread(target=work, args=[one]) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def calls(one_round, groups, *more):
    """Returns the `rounds.Calls` of each group: one_round(group, *more, last)."""
    found = []
    for number, group in enumerate(groups):
        with tf.name_scope(f"group_{number}"):
            found.append(rounds.Calls(functools.partial(one_round, group, *more)))
    return found


def batches(args, shards):
    """Returns what draws the next mini-batch of each shard, all on the client.

    --slow_workers delays the one of worker k: the client sleeps before it sends it,
    since a worker that only serves runs no Python.
    """
    found = []
    for k, shard in enumerate(shards):
        seconds = args.slow_workers[k % len(args.slow_workers)]
        batch = rounds.in_turn(shard.batch)
        found.append(functools.partial(_late, batch, seconds) if seconds else batch)
    return found


def _late(batch, seconds):
    tensors = batch()
    first = tf.nest.flatten(tensors)[:1]
    sleep = tf.py_func(lambda _: time.sleep(seconds), first, [])
    with tf.control_dependencies([sleep]):
        return tf.nest.map_structure(tf.identity, tensors)


def inputs(shards):
    """Returns the operation that starts the input of all shards, and what it is fed."""
    feed = {key: value for shard in shards for key, value in shard.feed.items()}
    return tf.group(*[shard.initializer for shard in shards]), feed


def graph_size():
    """Returns, for result.json, how large the graph is that the client has built."""
    graph = tf.get_default_graph().as_graph_def()
    return {"graph_nodes": len(graph.node), "graph_bytes": graph.ByteSize()}


def bytes_of(tensors, examples):
    """Returns the bytes of a mini-batch in messages; its tensors are [examples, ..]."""
    each = [t.shape[1:].num_elements() * t.dtype.size for t in tf.nest.flatten(tensors)]
    return examples * sum(each)
