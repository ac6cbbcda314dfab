"""Before a worker joins a run, and after its last update. `run` calls it.

begin  the worker waits for the ps and for the chief, and compares what it thinks the
       run is with what the others think
end    every worker reports; the chief collects the reports, but does not wait for a
       worker that has long been silent; when it has saved everything it dismisses all.
       Without a chief there is no result, and every task ends as a failure

All of it goes through a session of its own. Its small graph has the variables of the
incarnation and nothing else. So it works even when a ps has lost its part of the model.
"""

import os
import socket
import time

import numpy as np

from cluster import addresses, heartbeat, ports
from cluster import tensorflow_v1 as tf
from cluster.heartbeat import GONE
from cluster.incarnation import Incarnation, difference, fingerprint
from cluster.patience import ANSWER, wait
from cluster.stats import Stats
from cluster.task import fail

LEAVING = 5  # seconds that the chief waits at the very end for the others to leave


class Rendezvous:
    """What a worker and the rest of the run tell each other."""

    def __init__(self, args, target, config, elements, thread):
        """`target` and `config` are a session's, `elements` is the size of the model.

        `thread` is the class of the thread that sends the heartbeats.
        """
        self.args, self.target, self.me = args, target, args.task_index
        self.config = tf.ConfigProto(operation_timeout_in_ms=1000 * ANSWER)
        self.config.MergeFrom(config)
        self.fingerprint = fingerprint(args, elements)
        self.host, self.process = socket.gethostname(), os.getpid()
        self.serving = addresses.serving(args)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.state = state = Incarnation(args)
            self.number, owners = state.number.value(), state.owners.value()
            self.others = [state.fingerprint.value(), owners, state.silence()]
            self.heartbeat = thread(args, self.session, state)
            away = [heartbeat.over(task).enqueue(True) for task in self.serving]
            self.reason, self.away = state.reason.value(), away
            with tf.device(state.device):
                self.saved = state.saved.value(), state.has_joined()
                self.reports = state.reports.value(), state.silence(), owners
                self.joined = state.joined.value()

    def session(self):
        """Returns a session for the small graph; none of its calls takes over 5 s."""
        return tf.Session(self.target, self.graph, self.config)

    def make_checks(self, checks):
        """Builds the checks of a scheme, to be made with the heartbeat.

        `check(stats)` builds one: it returns an operation, tensors, and a function of
        what they say, which returns why this worker cannot go on, or "".
        """
        with self.graph.as_default():
            stats = Stats(self.args, self.state) if checks else None
            self.heartbeat.checks = [check(stats) for check in checks]

    def tell(self, session, variable, value, worker=None):
        """Sets a variable, or the entry of a worker in it.

        The value is part of the graph, so that nobody has to fetch it from here.
        """
        with self.graph.as_default(), tf.device(variable.device):
            place = variable if worker is None else variable[worker]
            assign = place.assign(tf.constant(value, variable.dtype))
        session.run(assign.op)

    # --- Begin ----------------------------------------------------------------

    def name(self):
        """Returns the name of this process among all that ever were this worker."""
        return f"{self.host} {self.process}"

    def wait_for_ps(self, patience, args=None):
        """Returns when every task that serves answers, as only a task does.

        `args` are as in `wait`.
        """

        def silent():
            return [t for t, host in self.serving.items() if not ports.speaks(host)]

        def what():
            job, index = task = [*silent(), next(iter(self.serving))][0]
            host = self.serving[task]
            if not ports.is_known(host):
                return f"{job} {index}: nobody knows the name in {host}"
            return f"{job} {index}: nothing answers at {host}"

        wait(lambda: not silent(), what, patience, args=args)

    def wait_for_chief(self, patience):
        """Returns when the chief has initialised or restored all, on every ps."""
        chief = heartbeat.chief(self.args)
        wait(self.is_open, lambda: chief, patience, args=self.args)

    def is_open(self):
        """Says whether an incarnation is open."""
        try:
            with self.session() as session:
                return session.run(self.number) > 0
        except tf.errors.OpError:
            return False  # nobody is there, or nothing is there yet

    def compare(self):
        """Ends the program if the run is another one, or has this worker already."""
        until = time.monotonic() + GONE
        while self.is_open():
            try:
                with self.session() as session:
                    theirs, owners, silence = session.run(self.others)
            except tf.errors.OpError:
                continue  # it has stopped answering just now, or is a new process
            different = difference(self.fingerprint, theirs.decode())
            if different:
                job, _ = next(iter(self.serving))
                fail(f"this task is not of the run that {job} 0 serves: {different}")
            host, _, process = owners[self.me].decode().partition(" ")
            # On one host the port was free, so that the process before is gone.
            if host in ("", self.host) or silence[self.me] > GONE:
                return
            if time.monotonic() > until:
                me = self.args.task_index
                fail(f"worker {me} is there already: process {process} on {host}")
            time.sleep(1)

    # --- End ------------------------------------------------------------------

    def report(self, session, loss):
        """Tells the chief the mean loss of this worker's rounds."""
        self.tell(session, self.state.reports, loss, self.me)

    def collect(self, session, check=lambda: None):
        """Chief: returns {worker: its mean loss}, None for a worker that is not there.

        It calls `check()` all the while, which may raise an error if a ps was lost.
        """
        began, gone = time.monotonic(), set()
        while True:
            check()
            losses, silence, owners = session.run(self.reports)
            waited = time.monotonic() - began
            missing = set(np.flatnonzero(np.isnan(losses)).tolist()) - gone
            for worker in sorted(missing):
                if min(silence[worker], waited) > GONE:
                    # One that was refused, or not started, has never been there.
                    what = "is gone" if owners[worker] else "has not joined"
                    print(f"worker {worker} {what}: the run ends without it")
                    gone.add(worker)
            if not missing - gone:
                break
            time.sleep(0.05)
        return {k: None if k in gone else loss for k, loss in enumerate(losses)}

    def dismiss(self, session, workers):
        """Chief: says that all is saved, and waits until these workers have left."""
        self.tell(session, self.state.saved, True)
        self.tell(session, self.state.joined, 0, self.me)
        for _ in range(20 * LEAVING):
            if not np.any(session.run(self.joined)[workers]):
                break
            time.sleep(0.05)

    def is_dismissed(self, session):
        """Worker: says whether the run is over, once the chief has saved the result.

        It is not if the chief has restored an older model meanwhile. A chief that is
        gone is noticed by the heartbeat.
        """
        saved = False
        while not saved:
            saved, joined = session.run(self.saved)
            if not (saved or joined):
                return False
            time.sleep(0 if saved else 0.1)
        self.tell(session, self.state.joined, 0, self.me)
        return True

    def send_ps_away(self):
        """Chief: tells every task that serves that the run is over."""
        with self.session() as session:
            session.run(self.away)

    def has_failed(self):
        """Says whether a worker has told why the run has failed."""
        with self.session() as session:
            return bool(session.run(self.reason))

    def fail(self, reason):
        """Tells the others why the run has failed."""
        with self.session() as session:
            self.tell(session, self.state.reason, reason)
