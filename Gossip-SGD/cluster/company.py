"""Who is there to talk to, and calls of rounds with those. Scripts call it.

A round talks to a neighbour, which may have died or have come back. So the rounds are
called in a session of their own that knows those who are there, and is opened anew when
they change. The session with hooks knows the chief only, and outlives that.
"""

import contextlib
import logging
import threading
import time

import numpy as np

from cluster import ports, rounds, watch
from cluster import tensorflow_v1 as tf
from cluster.exits import Failure
from cluster.gossip import name_of
from cluster.incarnation import silence
from cluster.lobby import GONE

TRIES = 5  # calls in a row that may fail
LONG = 3  # seconds after which a call may be waiting for somebody who is gone


class _Notes:
    """What calls tell a report, until they are given up."""

    def __init__(self, report):
        self.report, self.left, self.lost, self.heard = report, report.left, None, True

    def rounds(self, losses, entries):
        self.left = self.report.rounds(losses, entries) if self.heard else 0
        return self.left


class Calls(rounds.Calls):
    """Calls of rounds; on the chief, after them, the average of all replicas."""

    def __init__(self, one_round, args, target, learning, center, kept, replica):
        """`one_round(last)` builds a round after the `last`; `target` is a session's.

        `learning` is what problem.build made, with the input pipeline; `center` is
        where the chief puts the average w [P].
        """
        super().__init__(one_round)
        self.args, self.target, self.replica = args, target, replica
        self.input = learning.initializer, learning.feed
        self.failed = 0  # calls in a row
        self.graph, self.chief = tf.get_default_graph(), kept.chief
        self.session, self.there, self.distance = None, {}, 0.0
        self.expected = {}  # who was there when the calls began
        # With whom this worker has to do: the chief reads from all.
        every = range(len(args.worker_hosts))
        self.wanted = [k for k in every if self.chief or k in replica.near]
        run = kept.incarnation
        with tf.device(kept.device):
            joined = tf.equal(run.joined.value(), run.number.value())
            lives = joined & (silence(run.beats[0]) < GONE)
            self.look = lives, run.owners.value()
        self.mean = tf.placeholder(tf.float32, center.shape)
        self.put = center.assign(self.mean, read_value=False)

    def close(self, seconds=0):
        """Gives up the session of the rounds; waits at most so long for its end."""
        old, self.session, self.there = self.session, None, {}

        def end():
            with contextlib.suppress(tf.errors.OpError):
                old.close()

        # It waits for a call that a silent neighbour has not answered.
        if old is not None:
            ending = threading.Thread(target=end, daemon=True)
            ending.start()
            ending.join(seconds)

    def _who(self, session):
        """Returns {worker: its process} of those who are wanted and there."""
        lives, owners = session.run(self.look)
        hosts, me = self.args.worker_hosts, self.replica.me
        return {
            k: owners[k]
            for k in self.wanted
            if k == me or (lives[k] and ports.answers(hosts[k]))
        }

    def _meet(self, now):
        """Opens the session of the rounds anew unless `now` the same are there."""
        if self.session is not None and now == self.there:
            return
        logging.info("there are %s, there were %s", now, self.there)
        self.close()
        tasks = sorted({0, self.replica.me, *now})
        filters = [f"/job:worker/task:{k}" for k in tasks]
        config = tf.ConfigProto(device_filters=filters)
        self.session = tf.Session(self.target, self.graph, config)
        self.session.run(*self.input)  # a session's own; mini-batches begin anew
        # One that has only begun to start has no replica yet.
        self.there = {k: now[k] for k in sorted(now) if self._replica_of(k) is not None}
        names = [name_of(k) for k in self.there if k in self.replica.near]
        chosen = {self.replica.chosen: names or [name_of(self.replica.me)]}
        self.session.run(self.replica.choose_among, chosen)

    def _replica_of(self, worker):
        """Returns x [P] of a worker, None if it is not to be had."""
        try:
            x, alike = self.session.run(self.replica.everybody[worker])
            return x if alike else None
        except tf.errors.OpError as error:
            logging.info("no replica of worker %d: %s", worker, error.message)

    def _apart(self, session, work):
        """Returns what `work()` returns, in a thread that is left behind if it hangs.

        A remote call cannot be cancelled: not if who is called has stopped, and not
        always if it has died. Raises an error of TensorFlow's if somebody is gone.
        """
        made, began = [], time.monotonic()

        def run():
            try:
                made.append((work(), None))
            except Exception as error:
                made.append((None, error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(1)
            if thread.is_alive() and time.monotonic() - began > LONG:
                gone = {*self.expected} - {*self._who(session)}
                if gone:
                    said = f"worker {min(gone)} does not answer"
                    raise tf.errors.UnavailableError(None, None, said)
        ((value, error),) = made
        if error:
            raise error
        return value

    def _rounds(self, now, notes):
        self._meet(now)
        super().make(self.session, notes)

    def make(self, session, report):
        """Makes rounds for about a second, as rounds.Calls does, with who is there."""
        try:
            self.expected, notes = self._who(session), _Notes(report)
            try:
                self._apart(session, lambda: self._rounds(self.expected, notes))
                error = notes.lost
            except tf.errors.OpError as other:
                error = other
            # It is a neighbour, who is missed from now on. Or it is the chief, of
            # which the session with hooks finds out by itself.
            notes.heard, self.failed = False, self.failed + 1 if error else 0
            if error:
                logging.info("a call failed: %s", error.message)
                self.close()
            if self.failed > TRIES:
                raise Failure(f"rounds fail: {error.message.splitlines()[0]}")
            if self.chief and not error:
                apart = self.gather(session)
                # After the last update averages go on for a moment.
                if report.left > 0 or not self.distance:
                    self.distance = apart
                if report.point:
                    report.point[1]["consensus distance"] = self.distance
        except watch.lost() as error:
            report.lost = error
            self.close()

    def gather(self, session):
        """chief: w := (1/N) ∑ x_k over all who are there, to be tested and saved.

        Returns their consensus distance, √((1/N) ∑ |x_k − w|²).
        """
        self.expected = now = self._who(session)

        def look():
            self._meet(now)
            return [self._replica_of(k) for k in self.there]

        try:
            found = self._apart(session, look)
        except tf.errors.OpError as error:
            logging.info("no look at the replicas: %s", error.message)
            self.close()
            found = []
        replicas = np.array([x for x in found if x is not None])
        if not len(replicas):
            return self.distance
        mean = replicas.mean(axis=0, dtype=np.float64)
        session.run(self.put, {self.mean: mean})
        return float(np.sqrt(((replicas - mean) ** 2).sum(axis=1).mean()))
