"""One client that builds and runs the graph of all workers. Scripts call it.

A group is the workers whose work is one update: all of them, or each alone.
"""

import contextlib
import copy
import functools
import threading
import time

import numpy as np

from cluster import rounds, run, stats
from cluster import tensorflow_v1 as tf


class Run(run.Run):
    """The client's part in a run."""

    def __init__(self, args, target, config, stats, learning, calls, test, measure):
        """`measure(session)` returns what result.json says beside the counters."""
        super().__init__(args, target, config, stats, learning, calls, test)
        self.measure = measure

    def summary(self, session):
        """Returns the counters since step 0, and what was measured at the end."""
        return {**super().summary(session), **self.measure(session)}


# --- Counters -----------------------------------------------------------------


class Stats(stats.Stats):
    """The counters, where one push is that of a group of workers."""

    group = (0,)

    def of(self, group):
        """Returns these counters for the pushes of a group.

        The update is the first worker's; each has its round, examples and bytes.
        """
        these = copy.copy(self)
        these.group, these.me = group, group[0]
        return these

    @contextlib.contextmanager
    def locked(self, after):
        """Holds the lock as any Stats do; what it yields counts for the group."""
        with super().locked(after) as held:
            yield _Locked(self, held)


class _Locked(stats.Locked):
    def __init__(self, stats, held):
        super().__init__(stats, *held.after)
        self.done = held.done

    def add(self, row, counts, applied, staleness):
        super().add(row, counts, applied, staleness)
        others = list(self.stats.group[1:])
        if others:
            same = np.ones([len(others), len(stats.COUNTERS)], np.int64)
            same[:, stats.COUNTERS.index("updates")] = 0
            self.done.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=self.stats.counters.handle,
                    indices=others,
                    updates=same * row * tf.cast(counts, tf.int64),
                )
            )


# --- Rounds -------------------------------------------------------------------


class Calls:
    """The rounds.Calls of each group; several are made at once, a thread for each."""

    def __init__(self, one_round, groups):
        """`one_round(group, last)` builds a group's round after the `last` one."""
        self.groups = []
        for number, group in enumerate(groups):
            with tf.name_scope(f"group_{number}"):
                one = functools.partial(one_round, group)
                self.groups.append(rounds.Calls(one))
        # Threads cannot build one graph: all is built before they begin.
        for calls in self.groups if len(self.groups) > 1 else ():
            for size in calls.sizes:
                calls.fetch(size)

    def make(self, session, left, report):
        """Makes rounds of every group, as rounds.Calls does; returns the updates left.

        What a thread raises is raised here, when the others have ended, too.
        """
        if len(self.groups) == 1:
            return self.groups[0].make(session, left, report)
        shared, found = InTurn(report), []

        def work(calls):
            try:
                found.append(calls.make(session, left, shared))
            except Exception as error:
                shared.failed.append(error)

        threads = [threading.Thread(target=work, args=[one]) for one in self.groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if shared.failed:
            raise shared.failed[0]
        return min(found)


class InTurn:
    """A report in which the threads of a client write one after the other."""

    def __init__(self, report):
        self.report, self.args, self.lock = report, report.args, threading.Lock()
        self.failed = []  # what the threads have raised

    def rounds(self, losses, counts):
        """Notes the rounds of a call; raises what another thread has raised."""
        if self.failed:
            raise self.failed[0]
        with self.lock:
            self.report.rounds(losses, counts)


# --- Input --------------------------------------------------------------------


def merged(shards):
    """Returns the learning problem of the first shard, with the input of all."""
    feed = {key: value for shard in shards for key, value in shard.feed.items()}
    initializer = tf.group(*[shard.initializer for shard in shards])
    return shards[0]._replace(initializer=initializer, feed=feed)


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


# --- Sizes --------------------------------------------------------------------


def graph_size(session):
    """Returns, for result.json, how large the graph of a session is."""
    graph = session.graph.as_graph_def()
    return {"graph_nodes": len(graph.node), "graph_bytes": graph.ByteSize()}


def bytes_of(tensors, examples):
    """Returns the bytes of a mini-batch in messages; its tensors are [examples, ..]."""
    each = [t.shape[1:].num_elements() * t.dtype.size for t in tf.nest.flatten(tensors)]
    return examples * sum(each)
