"""Rounds with the neighbours that are there, and their average. Scripts call it.

begin  as with a ps, which here is the chief: it has the counters and w, from which
       every replica begins; nobody waits for the others
loss   of a worker: the others go on without it, and with it when it comes back. Of the
       chief: all wait for it, and begin again from the w that it restores
end    a worker that is done reports, and can be asked for its replica until the chief
       has averaged all replicas and saved that

A round talks to a neighbour, which may have died or have come back. So the rounds are
called in a session of their own that knows those who are there, and is opened anew when
they change. The session of the run knows the chief only, and outlives that.
"""

import contextlib
import logging
import threading
import time

import numpy as np

from cluster import heartbeat, ports, rounds, run
from cluster import tensorflow_v1 as tf
from cluster.gossip import name_of, partners
from cluster.heartbeat import EVERY, GONE

TRIES = 5  # calls in a row that may fail
LONG = 3  # seconds after which a call may be waiting for a worker that is gone


def fetched_from(args):
    """Returns the numbers of the workers from which this one fetches something."""
    others = set(range(len(args.worker_hosts))) - {args.task_index}
    near = partners(args.graph, len(args.worker_hosts), args.task_index)
    return sorted(near if args.task_index else others)


class _Heard:
    """What calls tell a report, until they are given up."""

    def __init__(self, report):
        self.report, self.args, self.listening = report, report.args, True

    def rounds(self, losses, counts):
        if self.listening:
            self.report.rounds(losses, counts)


class Calls(rounds.Calls):
    """Calls of rounds; on the chief, after them, the average of all replicas."""

    def __init__(self, one_round, args, target, learning, center, stats, replica):
        """`one_round(last)` builds a round after the `last`; `target` is a session's.

        `learning` is what problem.build made, with the input pipeline; `center` is
        where the chief puts the average w [P].
        """
        super().__init__(one_round)
        self.args, self.target, self.replica = args, target, replica
        self.input = learning.initializer, learning.feed
        self.failed = 0  # calls in a row
        self.graph, self.chief = tf.get_default_graph(), not args.task_index
        self.session, self.there, self.distance = None, {}, 0.0
        self.expected = {}  # who was there when the calls began
        self.wanted = fetched_from(args)
        state = stats.incarnation
        with tf.device(stats.device):
            joined = tf.equal(state.joined.value(), state.number.value())
            self.look = joined, state.silence(), state.owners.value()
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
        joined, silence, owners = session.run(self.look)
        hosts, me = self.args.worker_hosts, self.replica.me
        there = [k for k in self.wanted if joined[k] and silence[k] < GONE]
        missed = ports.unreachable([hosts[k] for k in there])
        found = [me, *(k for k in there if hosts[k] not in missed)]
        return {k: owners[k] for k in found}

    def _open(self, now):
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
        tf.train.start_queue_runners(self.session, tf.train.Coordinator())
        # One that has only begun to start has no replica yet.
        self.there = {k: now[k] for k in sorted(now) if self._replica_of(k) is not None}
        names = [name_of(k) for k in self.there if k in self.replica.near]
        chosen = {self.replica.chosen: names or [name_of(self.replica.me)]}
        self.session.run(self.replica.choose_among, chosen)

    def _replica_of(self, worker):
        """Returns x [P] of a worker, None if it is not to be had."""
        try:
            x, same = self.session.run(self.replica.everybody[worker])
            return x if same else None
        except tf.errors.OpError as error:
            logging.info("no replica of worker %d: %s", worker, error.message)

    def _apart(self, session, work):
        """Returns what `work()` returns, in a thread that is left behind if it hangs.

        A remote call cannot be cancelled: not if who is called has stopped, and not
        always if it has died. Raises an error of TensorFlow's if a worker is gone.
        """
        made, began = [], time.monotonic()

        def act():
            try:
                made.append((work(), None))
            except Exception as error:
                made.append((None, error))

        thread = threading.Thread(target=act, daemon=True)
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

    def _rounds(self, now, left, heard):
        self._open(now)
        return super().make(self.session, left, heard)

    def make(self, session, left, report):
        """Makes rounds for about a second, as rounds.Calls does, with who is there."""
        self.expected, heard = self._who(session), _Heard(report)
        try:
            left = self._apart(
                session, lambda: self._rounds(self.expected, left, heard)
            )
            self.failed = 0
        except tf.errors.OutOfRangeError:
            raise
        except tf.errors.OpError as error:
            # A neighbour was lost, and is missed from now on. Or it is the chief, which
            # the session of the run finds out now; or the chief has restored the model.
            heard.listening, self.failed = False, self.failed + 1
            logging.info("a call failed: %s", error.message)
            self.close()
            joined, *_ = session.run(self.look)
            if self.failed > TRIES or not joined[self.replica.me]:
                self.failed = 0
                raise
            return left
        if self.chief:
            apart = self.gather(session)
            # After the last update averages go on for a moment.
            if left > 0 or not self.distance:
                self.distance = apart
            if report.point:
                report.point[1]["consensus distance"] = self.distance
        return left

    def gather(self, session):
        """chief: w := (1/N) ∑ x_k over all who are there, to be tested and saved.

        Returns their consensus distance, √((1/N) ∑ |x_k − w|²).
        """
        self.expected = now = self._who(session)

        def look():
            self._open(now)
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


class Heartbeat(heartbeat.Heartbeat):
    """Says, too, which of the workers that live this one cannot reach."""

    def __init__(self, args, session, state):
        super().__init__(args, session, state)
        self.me, workers = args.task_index, enumerate(args.worker_hosts)
        self.dialled = {k: host for k, host in workers if k in fetched_from(args)}
        self.silence = state.silence()

    def cannot_reach(self, session):
        """Returns {(who, task, address)}: who cannot fetch what that task sends."""
        silence = session.run(self.silence)
        missed = ports.unreachable(self.dialled.values())
        # A worker that was killed sends no new heartbeat.
        return super().cannot_reach(session) | {
            (("worker", self.me), ("worker", k), host)
            for k, host in self.dialled.items()
            if host in missed and silence[k] < 1.5 * EVERY
        }


class Run(run.Run):
    """A worker's part in a run of replicas."""

    heartbeat = Heartbeat

    def save_and_write(self, session):
        """Chief: averages the replicas, which nobody changes any more, and saves."""
        self.calls.gather(session)
        super().save_and_write(session)

    def summary(self, session):
        """Chief: returns the counters, and how far apart the replicas were."""
        found = super().summary(session)
        return {**found, "consensus_distance": self.calls.distance}

    def __exit__(self, kind, error, traceback):
        """Ends the session of the rounds, too."""
        self.calls.close(seconds=2)
        super().__exit__(kind, error, traceback)
