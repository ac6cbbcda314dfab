"""How workers without a ps end: all alike, all reported, all saved. `meeting` calls it.

Nobody leaves before the chief has saved; the chief leaves when the others know that.
"""

import contextlib
import math
import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster import watch
from cluster.incarnation import silence, temporary
from cluster.lobby import GONE

LEAVING = 5  # seconds that the chief waits at the very end for the others to leave


def gone(addresses):
    """Returns the index of a worker that does not answer any more, None if all do.

    For a moment also the port of a process that was killed does.
    """
    for _ in range(20):
        worker = watch.silent_ps(addresses)
        if worker is not None:
            return worker
        time.sleep(0.05)
    return None


class Parting:
    """The end of a run, in variables on the chief; `losses` are the reports."""

    def __init__(self, args, run, check):
        """`run` is the Incarnation, `check` compares the weights of all."""
        me, self.check, self.losses = args.task_index, check, {}
        self.chief = me == 0
        with tf.device(run.device):
            self.loss = tf.placeholder(tf.float64, [])
            self.report = run.reports[me].assign(self.loss).op
            self.reports, self.quiet = run.reports.value(), silence(run.beats[0])
            saved = temporary("saved", tf.constant(False))
            self.saved, self.say_saved = saved.value(), saved.assign(True).op

    def hand_in(self, session, report):
        """Compares the weights, and tells the chief this worker's mean loss."""
        self.check.make(session)
        session.run(self.report, {self.loss: report.mean_loss()})

    def collect(self, session):
        """Chief: waits for the report of every worker that is still there."""
        began, gone = time.monotonic(), set()
        while True:
            losses, quiet = session.run([self.reports, self.quiet])
            missing = set(np.flatnonzero(np.isnan(losses)).tolist()) - gone
            waited = time.monotonic() - began
            for worker in sorted(missing):
                if min(quiet[worker], waited) > GONE:
                    print(f"worker {worker} is gone: the run ends without it")
                    gone.add(worker)
            if not missing - gone:
                break
            time.sleep(0.05)
        self.losses = {k: None if k in gone else loss for k, loss in enumerate(losses)}

    def part(self, session):
        """Returns when this worker may leave; it then takes its report back."""
        bye = {self.loss: math.nan}
        if not self.chief:
            while not session.run(self.saved):
                time.sleep(0.1)
            with contextlib.suppress(tf.errors.OpError):
                session.run(self.report, bye)
            return
        session.run(self.say_saved)
        session.run(self.report, bye)
        for _ in range(20 * LEAVING):
            if np.isnan(session.run(self.reports)).all():
                break
            time.sleep(0.05)
