"""Rounds with the neighbours that are there, and their average. Scripts call it.

begin  as with a ps, which here is the chief: it has the counters and w, from which
       every replica begins; nobody waits for the others
loss   of a worker: the others go on without it, and with it when it comes back. Of the
       chief: a worker that has trained begins again, from the w that it restores
end    a worker that is done can be asked for its replica until the chief has saved w

The rounds are called in a session of their own that knows those who are there, and is
opened anew when they change. The session of the run knows the chief only.
"""

import contextlib
import logging
import threading
import time

import numpy as np

from cluster import addresses, checkpoint, link, task
from cluster import tensorflow_v1 as tf
from cluster.addresses import CLOSED
from cluster.gossip import name_of
from cluster.link import GONE
from cluster.rounds import OVER

LOOK = 1  # seconds between two looks who is there
LONG = 3  # seconds after which a call may be waiting for a worker that is gone


class Neighbours:
    """Who is there; the rounds of a call with them. Chief: the average of all replicas.

    `distance` is how far apart they were at the last look while all were training.
    """

    def __init__(self, training, replica, center):
        """`training` is the run.Run; `center` is where the chief puts the average w."""
        self.training, self.replica, self.args = training, replica, training.args
        self.hosts, self.chief = self.args.worker_hosts, training.chief
        # An active worker calls its neighbours, and the chief reads all replicas.
        self.wanted = range(1, len(self.hosts)) if self.chief else replica.near
        self.session, self.opened, self.due = None, (None, {}), 0.0
        # {worker: its process} who is there; of these, who does not answer; whose
        # replica was found.
        self.known, self.silent, self.there, self.distance = {}, [], set(), 0.0
        # Not the local variables: the replica is one, and is kept.
        self.graph = tf.get_default_graph()
        self.input = checkpoint.begin_operations()[1:]
        self.mean = tf.placeholder(tf.float32, center.shape)
        self.put = center.assign(self.mean, read_value=False)
        training.extra = self.end

    # --- Who is there ---------------------------------------------------------

    def _who(self):
        """Returns {worker: its process} of those who are wanted and there."""
        with contextlib.suppress(tf.errors.OpError):  # the chief may be silent
            workers = self.training.link.read()["workers"]
            found = {k: workers[str(k)] for k in self.wanted if str(k) in workers}
            why = {k: addresses.silence(self.hosts[k]) for k in found}
            self.known = {
                k: worker["process"]
                for k, worker in found.items()
                if worker["silent"] < GONE and why[k] != CLOSED
            }
            self.silent = [
                f"worker {k}: {why[k]} at {self.hosts[k]}" for k in self.known if why[k]
            ]
        return self.known

    def _look(self, session, now):
        """Has a session of the rounds with the workers `now`; chooses among them.

        A worker that has only begun to start has none, and is not chosen yet.
        """
        if (session, now) == self.opened and now.keys() == self.there:
            return
        # Also to ask somebody again: TensorFlow ends a process that calls a function
        # once more in a session in which the first call had failed.
        logging.info("there are %s", now)
        self._close()
        self.session = self._apart(lambda: self._open(now), now)
        self.opened = session, now
        self.there = set(self._apart(lambda: self._replicas(now), now))
        near = [name_of(k) for k in sorted(self.there) if k in self.replica.near]
        chosen = {self.replica.chosen: near or [name_of(self.replica.me)]}
        self.session.run(self.replica.choose_among, chosen)

    def _open(self, now):
        tasks = sorted({0, self.replica.me, *now})
        filters = [addresses.device("worker", k) for k in tasks]
        config = tf.ConfigProto(device_filters=filters)
        session = tf.Session(self.training.server.target, self.graph, config)
        checkpoint.begin(session, self.input)  # mini-batches begin anew
        return session

    def _close(self):
        """Gives up the session of the rounds, and what is left of its calls."""
        if self.session:  # it may wait for a neighbour that is silent
            threading.Thread(target=self.session.close, daemon=True).start()
        self.session, self.opened, self.there = None, (None, {}), set()

    def _replicas(self, asked):
        """Returns {worker: x [P]} of those asked who have one."""
        found = {}
        for k in asked:
            with contextlib.suppress(tf.errors.OpError):
                found[k] = self.session.run(self.replica.everybody[k])
        return found

    def _apart(self, work, needed):
        """Returns what `work()` returns, in a thread that is left behind if it hangs.

        A remote call cannot be cancelled. Raises an error of TensorFlow's if one of
        those `needed` is gone. Ends the program if one lives, and does not answer.
        """
        made = []

        def act():
            try:
                made.append((work(), None))
            except Exception as error:
                made.append((None, error))

        thread = threading.Thread(target=act, daemon=True)

        def missing():
            thread.join(1)
            if thread.is_alive() and needed.keys() - self._who().keys():
                raise tf.errors.UnavailableError(None, None, "one does not answer")
            # Who sends heartbeats and does not answer may be behind a firewall.
            return self.silent[0] if thread.is_alive() and self.silent else ""

        thread.start()
        thread.join(LONG)
        while thread.is_alive():
            link.wait(missing, self.args, max(self.args.patience, 2 * GONE))
        ((value, error),) = made
        if error:
            raise error
        return value

    # --- Training -------------------------------------------------------------

    def make(self, session, left):
        """Makes a call as rounds.Calls does, with the neighbours that are there.

        Of a call in which one is lost only the losses are; then the chief has its
        counts. Raises an error of TensorFlow's if the chief is lost. Chief: once a
        second it averages the replicas.
        """
        calls, now = self.training.calls, self.opened[1]
        look = time.monotonic() > self.due or self.opened[0] is not session
        if look:
            now = self._who()
        for again in (self._who, dict, None):
            try:
                if look:
                    self._look(session, now)
                made = self._apart(lambda: calls.make(self.session, left), now)
                break
            except tf.errors.OpError as error:
                lost = task.is_lost(error) or "RemoteCall" in error.message
                if not again or not lost:
                    raise
                logging.info("a call failed: %s", error.message)
                session.run(self.training.stats.step)  # or is it the chief?
                self._close()
                now, look = again(), True  # at last nobody
        if look:
            self.due = time.monotonic() + LOOK
            if self.chief:
                with contextlib.suppress(tf.errors.OpError):  # one is lost just now
                    apart = self._average(session)
                    # After the last update averages go on for a moment.
                    if made[1][-1, 2] != OVER or not self.distance:
                        self.distance = apart
                    self.training.draw("consensus_distance", self.distance)
        return made

    def _average(self, session):
        """chief: w := (1/N) ∑ x_k over all who are there, to be tested and saved.

        Returns their consensus distance, √((1/N) ∑ |x_k − w|²).
        """
        found = self._apart(lambda: self._replicas(self.there), self.opened[1])
        replicas = np.array([session.run(self.replica.x), *found.values()])
        mean = replicas.mean(axis=0, dtype=np.float64)
        session.run(self.put, {self.mean: mean})
        return float(np.sqrt(((replicas - mean) ** 2).sum(axis=1).mean()))

    def end(self, session):
        """Chief: averages the replicas, which nobody changes any more.

        Returns what is added to result.json.
        """
        for _ in range(2):
            with contextlib.suppress(tf.errors.OpError):  # one is lost just now
                self._look(session, self._who())
                self._average(session)
                break
        self.training.checkpoints.step = None  # this w is in no checkpoint
        return {"consensus_distance": self.distance}
