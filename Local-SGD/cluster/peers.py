"""A run of workers without a ps: together they begin, train, and end. Scripts call it.

begin  the chief initialises or restores; when all are there it broadcasts its weights
loss   a ring cannot go on without one of its workers. So all begin again, as the same
       processes: they wait for the lost one, and go on from the last checkpoint
end    all compare their weights bit by bit; then it is as with a ps. The chief is the
       ps here: it has the board, and counts the updates
"""

import contextlib
import logging
import threading
import time

from cluster import addresses, board, link, task
from cluster import tensorflow_v1 as tf
from cluster.link import EVERY
from cluster.ring import ConsistencyCheck


def serve(server, args):
    """Chief: keeps the board, in a thread."""
    if args.task_index == 0:
        keep = threading.Thread(target=board.serve, args=(server, args), daemon=True)
        keep.start()


class Peers:
    """All workers of a run, as one of them sees them."""

    def __init__(self, training, ring, calls):
        """`training` is the run.Run, `ring` the Ring of all, `calls` lockstep.Calls."""
        self.training, self.calls, self.args = training, calls, training.args
        self.chief, self.hosts = training.chief, training.args.worker_hosts
        stats = training.stats
        of_chief = {v.ref() for v in (stats.step, stats.counters, stats.stalest)}
        shared = [v for v in tf.global_variables() if v.ref() not in of_chief]
        shared.append(stats.number)
        self.broadcast = ring.broadcast(shared, self.chief)
        self.check = ConsistencyCheck(ring, shared)
        # A variable of a worker's own may begin from the weights.
        self.own = tf.local_variables_initializer()
        self.whole = False  # all are there, and nobody may be missing
        self.goes, self.gone = False, threading.Event()  # this worker, told by TERM
        training.beat.looks.append(self._look)
        if self.args.min_workers and not self.chief:
            task.last_acts.append(self._go)

    def begin(self):
        """Returns when all workers are there, with the weights of the chief."""
        link.wait(self._missing, self.args, link.starting(self.args))
        self.whole = True
        threading.Thread(target=self._watch, daemon=True).start()
        with self.together():
            self.training.session.run(self.broadcast)
            self.training.session.run(self.own)

    def _missing(self):
        """Returns which worker is not there; begins again if one was started again."""
        with contextlib.suppress(tf.errors.OpError):
            found, message = self.training.link.read(), self.training.message
            chief = found["workers"].get("0", {"process": None})["process"]
            mine = message.setdefault("chief", chief)
            if chief != mine or self.chief and found["replaced"]:
                self.again("a worker was started again")
            for k, host in enumerate(() if found["replaced"] else self.hosts):
                silent = found["workers"].get(str(k), {"silent": 1})["silent"]
                if silent or addresses.silence(host):
                    return self._where(k)
            if not found["replaced"]:  # else the chief is a new process soon
                return ""
        return self._where(0)

    def _where(self, worker):
        return f"worker {worker} at {self.hosts[worker]}"

    def _watch(self):
        """Looks every two seconds whether a worker is gone: a call may wait for it."""
        while True:
            time.sleep(EVERY)
            for worker in self._closed() if self.whole else ():
                self._lost(worker)

    def _closed(self):
        silent = enumerate(map(addresses.silence, self.hosts))
        return [worker for worker, why in silent if why == addresses.CLOSED]

    def _look(self, board):
        """Looks at the board, with each heartbeat, whether somebody is another one."""
        self.calls.wish = self.goes or self.chief and board["wanted"]
        if self.whole and str(self.args.task_index) not in board["workers"]:
            self._lost(0)
        if self.whole and board["replaced"]:
            self._lost(None)
        quiet = [k for k, worker in board["workers"].items() if not worker["left"]]
        for worker in quiet if self.whole else ():
            silent = board["workers"][worker]["silent"]
            if silent > self.args.patience:
                return f"no answer in {silent} s from {self._where(int(worker))}"
        return None

    def _lost(self, worker):
        """Begins again without a worker, or with its next process."""
        if self.whole:
            self.whole = False
            who = "a worker" if worker is None else self._where(worker)
            self.again(f"lost {who}, and a ring cannot go on without it")

    def again(self, reason):
        """Begins again as the same process; or ends it, if this worker goes."""
        if self.goes:
            self.gone.set()  # the end itself is the signal's
            threading.Event().wait()
        task.begin_again(self.args, reason)

    @contextlib.contextmanager
    def together(self):
        """Begins again, as all others do, if a worker is lost inside."""
        try:
            yield
        except tf.errors.OpError as error:
            # Vectors of different shapes would meet again.
            same = isinstance(error, tf.errors.InvalidArgumentError)
            if same or not ("Collective" in error.message or task.is_lost(error)):
                raise
            logging.info("the ring is broken: %s", error)
            # For a moment the port of one that was killed still answers.
            time.sleep(0.5)
            self._lost(*self._closed()[:1] or [None])
            threading.Event().wait()  # another thread begins again

    def log(self, losses, counts):
        """Notes the rounds of a call, as run.Run.log; workers may come or go."""
        self.training.log(losses, counts)
        self.training.left = min(self.training.left, self.calls.left)
        if self.calls.changes and not self.calls.planned and self.training.left > 0:
            self.check.make(self.training.session)
            self.whole = False
            if self.chief:
                self.training.checkpoints.save(self.training.session)
            step = self.args.steps - self.training.left
            self.again(f"workers come or go at global step {step}")

    def _go(self):
        self.goes = self.calls.wish = True
        self.gone.wait()

    def end(self):
        """Compares the weights with those of all others, and ends as every run does."""
        with self.together():
            self.check.make(self.training.session)
        self.whole = False  # a worker that is silent now has left
        self.training.end()
