"""One client that builds and runs the graph of all workers. Scripts call it.

A group is the workers whose work is one update: all of them, or each alone.
"""

import concurrent.futures
import copy
import functools
import time

import numpy as np

from cluster import rounds, stats
from cluster import tensorflow_v1 as tf


def count(counters, group, pushed, examples, pulled, seen=None):
    """Numbers the update of a group, as `Stats.count` does; returns its Counted.

    The update is the first worker's; each has its round, its examples and its bytes.
    """
    first = copy.copy(counters)
    first.me = group[0]
    counted = first.count(pushed, examples, pulled, seen)
    if len(group) == 1:
        return counted
    moved = dict(pushed=stats.size(*pushed), pulled=stats.size(pulled))
    row = first.row(rounds=1, examples=examples, **moved)
    rows = np.tile(row, [len(group) - 1, 1])
    with tf.device(counters.device), tf.control_dependencies([counted.packed]):
        rows = rows * tf.cast(counted.applied, tf.int64)
        others = first.scatter("Add", counters.counters, group[1:], rows)
        with tf.control_dependencies([others]):
            packed, applied = map(tf.identity, (counted.packed, counted.applied))
    return counted._replace(packed=packed, applied=applied)


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

    def make(self, session, left):
        """Makes one call, or of several groups all calls of about a second.

        Returns losses and counts as rounds.Calls does, by their global step. What a
        thread raises is raised here, when the others have ended, too.
        """
        if len(self.groups) == 1:
            return self.groups[0].make(session, left)
        until = time.monotonic() + rounds.CALL

        def work(calls):
            made = [calls.make(session, left)]
            while time.monotonic() < until and rounds.OVER not in made[-1][1][:, 2]:
                made.append(calls.make(session, left))
            return made

        with concurrent.futures.ThreadPoolExecutor(len(self.groups)) as pool:
            found = [one for made in pool.map(work, self.groups) for one in made]
        losses, counts = map(np.concatenate, zip(*found, strict=True))
        order = np.argsort(counts[:, 0], kind="stable")
        return losses[order], counts[order]


def graph_size(session):
    """Returns, for result.json, how large the graph of a session is."""
    graph = session.graph.as_graph_def()
    return {"graph_nodes": len(graph.node), "graph_bytes": graph.ByteSize()}


def bytes_of(tensors, examples):
    """Returns the bytes of a mini-batch in messages; its tensors are [examples, ..]."""
    each = [t.shape[1:].num_elements() * t.dtype.size for t in tf.nest.flatten(tensors)]
    return examples * sum(each)
