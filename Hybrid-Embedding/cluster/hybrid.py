"""Workers with all of w, and ps with rows: who counts, and who begins. Scripts call it.

begin  when all workers are there, they get w from the chief, who has it from ps 0
loss   a ring cannot go on without one of its workers. So all workers begin again, as
       the same processes, with the w that the chief has, and the rows as they are now.
       If the chief is lost, w is that of the last checkpoint; if a ps is, all is
end    all compare their w bit by bit; then it is as with a ps

Who trains with whom is on the board of ps 0: each worker's name there ends with that of
the chief's process.
"""

import contextlib
import threading
import time

import numpy as np

from cluster import addresses, dynamic, link, lockstep, task
from cluster import tensorflow_v1 as tf
from cluster.ring import ConsistencyCheck, Ring, traffic
from cluster.rounds import APPLIED, Counted
from cluster.stats import size

SIZES = (1, 5)  # rounds of a call; ten of two halves take too long to build
OF = " of "  # between a worker's process and that of the chief


def config(args):
    """Returns what this task's server is configured by: workers see all ps, too."""
    if args.job_name == "ps":
        return tf.ConfigProto()
    new = Ring.config(args.task_index)
    new.device_filters.extend(addresses.servers(args))
    return new


def replica(args, saved):
    """Returns w [P] on this worker, a local variable that begins as `saved` on ps 0."""
    own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    with tf.device(args.device):
        return tf.get_variable("replica", initializer=saved.read_value(), **own)


class Stats(lockstep.Stats):
    """The chief numbers the updates of w; each push of rows is counted on ps 0."""

    def __init__(self, args):
        with tf.device(args.device):  # what all workers have alike is on each
            super().__init__(args)
            with tf.device(self.device):
                self.arrived = self.temporary("arrived", tf.constant(0, tf.int64))

    def look(self, after=()):
        """Returns, on ps 0, the global step and how many pushes have arrived, int64."""
        with tf.device(self.device), tf.control_dependencies(tf.nest.flatten(after)):
            return self.step.read_value(), self.arrived.read_value()

    def arrive(self, after, examples, seen, sent):
        """Counts a push of rows once `after` is done, on ps 0.

        Returns its staleness, and how many updates of w were counted before it.

        `seen` pushes had arrived at the lookup; `sent` are bytes up and down, int64.
        """
        with self.locked([*after, seen, sent]) as done:
            staleness = self.arrived.read_value() - seen
            number = self.step.read_value()
            # The chief's push stands for the update that all make together.
            row = self.row(rounds=1, examples=examples, updates=int(self.chief))
            row = row + self.row(pushed=1) * sent[0] + self.row(pulled=1) * sent[1]
            row += self.row(staleness=1) * staleness
            done += self.add(row, True, True, staleness)
            with tf.control_dependencies([staleness, number]):
                done.append(self.arrived.assign_add(1, read_value=False))
                if self.chief:
                    done.append(self.step.assign_add(1, read_value=False))
        with tf.device(self.device), tf.control_dependencies([self.unlocked]):
            return tf.identity(staleness), tf.identity(number)

    def reduced(self, tensor):
        """Returns the bytes that this worker sends to all-reduce a tensor, int."""
        # To the byte in the sum of all workers.
        each = traffic(size(tensor), self.workers)
        first, last = np.floor([self.me * each + 0.5, (self.me + 1) * each + 0.5])
        return int(last - first)

    def count(self, reduced):
        """Numbers an update of w, on this worker, once `reduced` is there.

        Returns its Counted, without a staleness, and what the next round waits for.
        """
        number = self.read_step(after=[reduced])
        with tf.control_dependencies([number]):
            next_ = self.number.assign_add(1, read_value=False)
        none = tf.zeros_like(number)
        packed = tf.stack([number + 1, none, APPLIED])
        return Counted(number, none, tf.constant(True), packed), next_

    def summary(self, session):
        """Chief: returns what result.json says; staleness is that of a push of rows."""
        found = super().summary(session)
        pushes = max(1, sum(found["rounds_per_worker"].values()))
        found["mean_staleness"] *= found["global_steps"] / pushes
        return found


class Halves:
    """A round in two halves, which two calls make at once: one of rows, one of w.

    Operations on a ps and an all-reduce may not be in one call: an all-reduce gives the
    calls of all workers one number, and by this number a ps tells them apart.
    """

    def __init__(self, args):
        # Of each round: the last operations of its push, a list with a ps each; the
        # staleness of it; what the half of rows hands over.
        self.device = args.device
        self.pushes, self.staleness, self.handed = [], [], []

    def over(self, tensors, to_rows=False):
        """Returns tensors of one half, nested or not, in the other half."""
        flat = tf.nest.flatten(tensors)
        with tf.device(self.device):
            queue = tf.FIFOQueue(1, [tensor.dtype for tensor in flat])
            put, got = queue.enqueue(flat), queue.dequeue()
        got = got if isinstance(got, list) else [got]
        for mine, theirs in zip(got, flat, strict=True):
            mine.set_shape(theirs.shape)
        if not to_rows:
            self.handed.append(put)
            return tf.nest.pack_sequence_as(tensors, got)
        return tf.nest.pack_sequence_as(tensors, got), put

    def end(self, push, staleness):
        """Notes the push of a round."""
        self.pushes.append(push)
        self.staleness.append(staleness)

    def fetches(self, size):
        """Returns what a call of so many rounds fetches of the half of rows."""
        done = [*self.handed[:size], *tf.nest.flatten(self.pushes[:size])]
        return [tf.stack(self.staleness[:size]), [getattr(x, "op", x) for x in done]]


class Calls(lockstep.Calls):
    """Calls of both halves of some rounds, in two threads."""

    def __init__(self, one_round, ring, halves, sizes=SIZES):
        super().__init__(one_round, ring, sizes)
        self.half = {n: halves.fetches(n) for n in self.fetches}
        self.dense, self.rounds.call = self.rounds.call, self.call

    def call(self, session, size):
        """Makes a call of `size` rounds, as rounds.Calls does."""
        found = []

        def rows():
            try:
                found.append(session.run(self.half[size])[0])
            except tf.errors.OpError as error:
                # The other half would wait for it.
                self.lost(error)

        thread = threading.Thread(target=rows, daemon=True)
        thread.start()
        losses, counts = self.dense(session, size)
        thread.join()
        counts[:, 1] = found[0]
        return losses, counts

    def lost(self, error):
        """Ends the process: a Group has what is better."""
        task.end_now(task.said(error)[0])


class Saver(dynamic.Saver):
    """Saves rows, and the chief's w, which it first writes to ps 0."""

    def __init__(self, table, saved, center):
        super().__init__(table)
        self.note = saved.assign(center.read_value(), read_value=False)

    def save(self, session, path, step, **options):
        session.run(self.note)
        super().save(session, path, step, **options)


class Group:
    """All workers of a run, as one of them sees them."""

    def __init__(self, training, ring, calls, center, saver):
        """`training` is the run.Run, `ring` the Ring of all, `calls` lockstep.Calls."""
        self.training, self.calls, self.args = training, calls, training.args
        self.chief, self.note = training.chief, saver.note
        self.process = training.message["process"]
        alike = [center, training.stats.number]
        self.broadcast = ring.broadcast(alike, self.chief)
        self.check = ConsistencyCheck(ring, alike)
        self.own = tf.local_variables_initializer()
        self.members = {}  # worker: its name on the board, once all are there
        training.beat.looks.append(self._look)
        calls.lost = self.lost

    def begin(self):
        """Returns when all workers are there, with the w of the chief."""
        link.wait(self._missing, self.args, link.starting(self.args))
        with self.together():
            self.training.session.run(self.own)
            self.training.session.run(self.broadcast)

    def _missing(self):
        """Returns which worker is not there with this chief, "" if all are."""
        with contextlib.suppress(tf.errors.OpError):
            found = self.training.link.read()["workers"]
            if "0" not in found:  # a ps 0 that began again has not heard of it yet
                return link.chief(self.args)
            chief = found["0"]["process"]
            mine = self.process + ("" if self.chief else OF + chief)
            if self.training.message["process"] != mine:
                self.training.message["process"] = mine
                self.training.link.tell(**self.training.message)
            for k, host in enumerate(self.args.worker_hosts):
                worker = found.get(str(k), {"process": "", "silent": 1})
                with_it = not k or worker["process"].endswith(OF + chief)
                if not with_it or worker["silent"] or addresses.silence(host):
                    return f"worker {k} at {host}"
            self.members = {k: worker["process"] for k, worker in found.items()}
            return ""
        return link.chief(self.args)

    def _look(self, board):
        """Looks with each heartbeat whether a worker is gone, or is another process."""
        for k, process in [*self.members.items()]:
            worker, host = board["workers"].get(k), self.args.worker_hosts[int(k)]
            # What `_missing` tells may overtake a heartbeat, which names no chief yet.
            if not worker or worker["process"] not in (process, process.split(OF)[0]):
                self.again(f"worker {k} at {host} was started again")
            elif not worker["left"] and addresses.silence(host) == addresses.CLOSED:
                self.again(f"lost worker {k} at {host}")
            elif worker["silent"] > self.args.patience:
                return f"no answer in {worker['silent']} s from worker {k} at {host}"
        return None

    def again(self, reason):
        """Begins again as the same process, if this worker trains with others."""
        if self.members:
            self.members = {}
            limit = tf.RunOptions(timeout_in_ms=2000)
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                if self.chief:  # nobody else does, so that all begin with one w
                    self.training.session.run(self.note, options=limit)
            task.begin_again(self.args, reason)

    @contextlib.contextmanager
    def together(self):
        """Begins again, as all others do, if a task is lost inside."""
        try:
            yield
        except tf.errors.OpError as error:
            if not self._is_lost(error):
                raise
            self.lost(error)

    def _is_lost(self, error):
        """Says whether an error means that a task was lost."""
        # Vectors of different shapes would meet again.
        same = isinstance(error, tf.errors.InvalidArgumentError)
        lost = "Collective" in error.message or task.is_lost(error)
        return not same and (lost or self.training._is_lost(error))

    def lost(self, error):
        """Begins again after an error of a call, from any thread."""
        if not self._is_lost(error):
            sentence, status = task.said(error)
            task.end_now(sentence, status)
        time.sleep(0.5)  # another thread may know better who is lost
        self.again(f"lost a task: {task.first_line(error)}")
        threading.Event().wait()  # another thread begins again

    def log(self, losses, counts):
        """Notes the rounds of a call, as run.Run.log."""
        self.training.log(losses, counts)
        self.training.left = min(self.training.left, self.calls.left)

    def end(self):
        """Compares w with that of all others, and ends as every run does."""
        with self.together():
            self.check.make(self.training.session)
        self.members = {}  # a worker that is silent now has left
        self.training.end()
