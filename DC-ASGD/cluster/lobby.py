"""Before a worker joins a run: it waits for the ps and the chief. `protocol` calls it.

All of it is done from a small graph of its own, with the variables of the incarnation
and nothing else, so that it can be done again and again.
"""

import os
import socket
import time

from cluster import addresses, fingerprint, ports, watch
from cluster import tensorflow_v1 as tf
from cluster.exits import fail
from cluster.incarnation import Incarnation, silence

GONE = 10  # seconds without a sign of life after which nobody waits for a worker


class Lobby:
    """A worker's view of the run from outside; `heart` is its sign of life."""

    def __init__(self, args, target, config, said):
        """`target` and `config` are a session's, `said` is this task's fingerprint."""
        self.args, self.target, self.config, self.said = args, target, config, said
        self.host, self.process = socket.gethostname(), os.getpid()
        me = args.task_index
        self.graph = tf.Graph()
        with self.graph.as_default():
            run = Incarnation(args)
            self.number = [run.number.value(), *[beats.value() for beats in run.beats]]
            quiet = silence(run.beats[0])[me]
            self.about = [run.fingerprint.value(), run.owners[me], quiet]
            beats, reason = run.beat(), run.reason.value()
        self.serving = addresses.serving(args)
        self.heart = watch.Heart(
            self.graph, target, config, beats, reason, self.serving, args.patience
        )

    def also(self, operations, judges):
        """What the heart does beside its beats: as `Incarnation` has it, of any graph.

        Only a part of that graph is taken: a session of all of it takes half a second
        to begin, while training has just begun.
        """
        if not operations:
            return
        wanted = tf.nest.flatten([operations, [tensors for tensors, _ in judges]])
        names = [getattr(item, "op", item).name for item in wanted]
        whole = wanted[0].graph.as_graph_def()
        part = tf.Graph()
        with part.as_default():
            few = tf.graph_util.extract_sub_graph(whole, names)
            tf.import_graph_def(few, name="")

        def find(items):
            return [part.as_graph_element(item.name) for item in items]

        judges = [(find(tensors), judge) for tensors, judge in judges]
        self.heart.also = part, find(operations), judges

    def name(self):
        """Returns what this process is called among all that ever were this worker."""
        return f"{self.host} {self.process}"

    def _session(self):
        return tf.Session(self.target, self.graph, watch.in_time(self.config))

    def wait_for_ps(self, patience):
        """Returns when every ps accepts connections, or whoever else serves."""
        tasks, hosts = list(self.serving), list(self.serving.values())

        def what():
            number = watch.silent_ps(hosts) or 0
            (job, index), host = tasks[number], hosts[number]
            if not ports.is_known(host):
                return f"{job} {index}: nobody knows the name in {host}"
            return f"{job} {index}: nothing answers at {host}"

        watch.wait(lambda: watch.silent_ps(hosts) is None, what, patience)

    def wait_for_chief(self, patience):
        """Returns when the chief has initialised or restored all, on every ps."""
        chief = f"the chief, worker 0 at {self.args.worker_hosts[0]}"
        watch.wait(self.is_open, lambda: chief, patience)

    def is_open(self):
        """Says whether an incarnation is open, with every ps in it."""
        try:
            with self._session() as session:
                return session.run(self.number)[0] > 0
        except tf.errors.OpError:
            return False  # nobody is there, or nothing is there yet

    def compare(self):
        """Ends the program if the run is another one, or has this worker already."""
        until = time.monotonic() + GONE
        while self.is_open():
            with self._session() as session:
                theirs, owner, quiet = session.run(self.about)
            different = fingerprint.difference(self.said, theirs.decode())
            if different:
                job, _ = next(iter(self.serving))
                fail(f"this task is not of the run that {job} 0 serves: {different}")
            host, _, process = owner.decode().partition(" ")
            # On one host the port was free, so that the one before is gone.
            if host in ("", self.host) or quiet > GONE:
                return
            if time.monotonic() > until:
                me = self.args.task_index
                fail(f"worker {me} is there already: process {process} on {host}")
            time.sleep(1)
