"""How a run ends: all report, the chief saves, all leave. `protocol` calls it.

Nobody leaves before the chief has saved: a ps that dies after the last update takes
that with it, and then everybody is needed once more.
"""

import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.incarnation import silence, temporary
from cluster.lobby import GONE

LEAVING = 5  # seconds that the chief waits at the very end for the others to leave


class Parting:
    """The end of a run, in variables on ps 0; in a run without ps, on the chief.

    `losses` is the mean training loss of each worker, None of one that is gone, when
    the chief has collected the reports.
    """

    def __init__(self, args, run):
        """`run` is the Incarnation; the sessions below must be without hooks."""
        me, self.losses = args.task_index, {}
        with tf.device(run.device):
            self.loss = tf.placeholder(tf.float64, [])
            self.report = run.reports[me].assign(self.loss).op
            quiet = [silence(beats) for beats in run.beats]
            # Of every ps, though ps 0 says it all: a worker that has noticed the loss
            # of another waits until the chief has noticed it.
            self.reports = run.reports.value(), *quiet
            saved = temporary("saved", tf.constant(False))
            self.saved = saved.value(), run.has_joined(), self.reports[1][0]
            self.say_saved = saved.assign(True).op
            self.bye = run.joined[me].assign(0).op
            self.here = run.joined.value()

    def hand_in(self, session, loss):
        """Tells the chief the mean loss of this worker's rounds."""
        session.run(self.report, {self.loss: loss})

    def leave(self, session):
        """Says whether it is the end, when the chief has saved, or is gone.

        It is not when the chief has restored an older model meanwhile.
        """
        began = time.monotonic()
        while True:
            saved, joined, quiet = session.run(self.saved)
            if not (saved or joined):
                return False
            if saved or min(quiet, time.monotonic() - began) > GONE:
                break
            time.sleep(0.1)
        session.run(self.bye)
        return True

    def collect(self, session):
        """Chief: waits for the report of every worker that is still there."""
        began, gone = time.monotonic(), set()
        while True:
            losses, silence_of, *_ = session.run(self.reports)
            waited = time.monotonic() - began
            missing = set(np.flatnonzero(np.isnan(losses)).tolist()) - gone
            for worker in sorted(missing):
                if min(silence_of[worker], waited) > GONE:
                    print(f"worker {worker} is gone: the run ends without it")
                    gone.add(worker)
            if not missing - gone:
                break
            time.sleep(0.05)
        self.losses = {k: None if k in gone else loss for k, loss in enumerate(losses)}

    def see_off(self, session):
        """Chief: says that all is saved, and waits until the others have left."""
        session.run([self.say_saved, self.bye])
        there = [loss is not None for loss in self.losses.values()]
        for _ in range(20 * LEAVING):
            if not np.any(session.run(self.here)[there]):
                break
            time.sleep(0.05)
