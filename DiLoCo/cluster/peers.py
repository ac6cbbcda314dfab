"""A run of workers without a ps, as one of them sees it. Scripts of peers call it.

begin  the chief restores or initialises, and opens an incarnation; when all workers
       have joined it, the weights of the chief are broadcast to all
loss   a ring cannot go on without one of its workers, so that all end; when they are
       started again they go on from the last checkpoint
end    all compare their weights bit by bit and report to the chief, which saves, writes
       the result, dismisses the others, and is the last to leave
"""

import contextlib
import logging
import time

import numpy as np

from cluster import heartbeat, ports, run
from cluster import tensorflow_v1 as tf
from cluster.heartbeat import EVERY
from cluster.patience import STARTING, wait
from cluster.ring import ConsistencyCheck
from cluster.task import end_now

REPLACED = " replaced"  # in the place of a process whose successor is there


class Run(run.Run):
    """A worker among its peers."""

    @staticmethod
    def heartbeat(*details):
        """Returns the thread that sends the heartbeats, and looks who is lost."""
        return FailureDetector(*details)

    def __init__(self, args, target, config, stats, ring, learning, calls, test):
        """`ring` is the Ring of all workers, the rest is as in run.Run."""
        super().__init__(args, target, config, stats, learning, calls, test)
        self.detector = self.rendezvous.heartbeat
        self.detector.lost = self.leave
        own = [variable.ref() for variable in stats.of_chief()]
        shared = [v for v in tf.global_variables() if v.ref() not in own]
        self.broadcast = ring.broadcast(shared, self.chief)
        self.check = ConsistencyCheck(ring, shared)
        # A variable of a worker's own may begin from the weights.
        self.own = tf.local_variables_initializer()
        state = stats.incarnation
        with tf.device(state.device):
            missing = tf.not_equal(state.joined.value(), state.number.value())
            self.missing = tf.where(missing)[:, 0]

    # --- Begin ----------------------------------------------------------------

    def __enter__(self):
        super().__enter__()
        if not self.chief:
            again = f"{self.where(0)} to begin again, with this worker"
            wait(self._is_free, lambda: again, STARTING * self.args.patience)
        return self

    def _is_free(self):
        """Says whether no other process has been this worker in this incarnation.

        If one has, it tells the chief, from whom all others hear that it is lost.
        """
        with contextlib.suppress(tf.errors.OpError), self.rendezvous.session() as told:
            self.rendezvous.compare()  # so that the other process is gone
            owners = self.rendezvous.state.owners
            if not told.run(self.rendezvous.others)[1][self.args.task_index]:
                return self.rendezvous.is_open()
            self.rendezvous.tell(told, owners, REPLACED, self.args.task_index)
        return False

    def where(self, worker):
        """Returns a worker and its address, for a sentence."""
        return f"worker {worker} at {self.args.worker_hosts[worker]}"

    def prepare(self, session):
        """Chief: restores or initialises, opens an incarnation; others: initialise."""
        if self.chief:
            super().prepare(session)
        else:
            session.run(self.initializer)

    def open_session(self):
        """Returns a session that has joined the run, with the weights of the chief."""
        session = super().open_session()
        wait(
            lambda: not len(session.run(self.missing)),
            lambda: self.where([*session.run(self.missing), 0][0]),
            STARTING * self.args.patience,
        )
        self.detector.complete = True
        # It has joined, but its name may not be known yet on this worker's host.
        wait(
            lambda: not self.detector.unreached_peers(),
            lambda: self.where([*self.detector.unreached_peers(), 0][0]),
            STARTING * self.args.patience,
        )
        session.run(self.broadcast)
        session.run(self.own)
        return session

    # --- Loss -----------------------------------------------------------------

    @contextlib.contextmanager
    def recovering(self):
        """Ends the program at a loss: there is no session in which a ring goes on."""
        try:
            yield
        except tf.errors.OpError as error:
            if not self.is_lost(error):
                raise
            logging.info("the ring is broken: %s", error)
            self.leave()

    def leave(self, gone=None):
        """Ends the program, and says why: `gone` is the lost worker, if it is known."""
        hosts = self.args.worker_hosts
        for _ in range(20 if gone is None else 0):
            # For a moment also the port of a process that was killed answers.
            silent = [k for k, host in enumerate(hosts) if not ports.answers(host)]
            gone = silent[0] if silent else gone
            time.sleep(0 if silent else 0.05)
        # A session would wait for a chief that has just left for the same reason.
        if gone != 0 and ports.answers(hosts[0]):
            with contextlib.suppress(tf.errors.OpError):
                with self.rendezvous.session() as told:
                    reason = told.run(self.rendezvous.reason)
                if reason:
                    end_now(reason.decode(), 1)
        who = "a worker" if gone is None else self.where(gone)
        self.give_up(
            f"lost {who}, and a ring cannot go on without it: started again, all go on "
            "from the last checkpoint"
        )

    def give_up(self, sentence):
        """Ends the program: another start may help."""
        end_now(sentence)

    # --- End ------------------------------------------------------------------

    def stop(self):
        """Ends the run early: all workers agree on it before their next call."""
        self.calls.stop = True

    def end(self, session):
        """Compares the weights with those of all others, and ends as every run does."""
        self.check.make(session)
        self.detector.complete = False  # a worker that is silent now has left
        super().end(session)


class FailureDetector(heartbeat.Heartbeat):
    """Looks every two seconds which worker is lost, also while a call waits for it.

    The call may wait for ever: a lost worker that is started again answers at the same
    address, and knows nothing of the call. `lost(worker)` is called from this thread,
    once all workers have joined: the ring is `complete`.
    """

    complete, lost = False, None

    def __init__(self, args, session, state):
        super().__init__(args, session, state)
        hosts, me = args.worker_hosts, args.task_index
        # From whom this worker fetches: the one before it. The chief fetches reports.
        self.dialled = {k: hosts[k] for k in range(len(hosts)) if not me or k == me - 1}
        self.signs = state.silence(), state.owners.value()

    def all_answer(self):
        """Says whether the chief answers; finds out whether it is lost."""
        answers = super().all_answer()
        if not answers and ports.refuses(self.args.worker_hosts[0]):
            self.renewed()
        return answers

    def renewed(self):
        """The chief is lost, or is a new process."""
        if self.complete:
            self.lost(0)

    def unreached_peers(self):
        """Returns the workers from whom this one fetches and whom it cannot reach."""
        missed = ports.unreachable(self.dialled.values())
        return [k for k, host in self.dialled.items() if host in missed]

    def look(self, session):
        """Looks whether a worker was replaced, lost, silent, or cannot be reached."""
        self.missed = self.unreached_peers()
        super().look(session)
        silence, owners = session.run(self.signs)
        if not self.complete:
            return
        late = [k for k in self.missed if silence[k] > 1.5 * EVERY]
        for worker in [*np.flatnonzero(owners == REPLACED.encode()), *late]:
            if self.complete:
                self.lost(int(worker))
        # Only the chief: it would take a worker that ends first for the lost one.
        quiet = int(np.argmax(silence))
        if not self.args.task_index and silence[quiet] > self.args.patience:
            where = f"worker {quiet} at {self.args.worker_hosts[quiet]}"
            self.end(f"no answer in {silence[quiet]:.0f} s from {where}")

    def cannot_reach(self, session):
        """Returns {(who, task, address)}, also those from whom this worker fetches."""
        me = "worker", self.args.task_index
        found = {(me, ("worker", k), self.dialled[k]) for k in self.missed}
        return super().cannot_reach(session) | (found if self.complete else set())
