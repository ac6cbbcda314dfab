"""Enough workers for a step, or the run says who is missing. `barrier` calls it.

A step takes the gradients of N workers. While fewer live, none is ever complete. One
that was killed may be started again, and then the others go on; but not for ever does
anybody wait for it, no more than for a ps.
"""

import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.lobby import GONE
from cluster.watch import STARTING


class Quorum:
    """How long ago ps 0 heard of each worker, and what follows from it.

    `judge(*values)` of `tensors` is the reason why this worker cannot go on, or "".
    """

    def __init__(self, args, kept, size):
        """`size` workers have to live, `kept` are the Books of the run."""
        self.size, self.patience, self.said = size, args.patience, False
        self.began = time.monotonic()
        run = kept.incarnation
        with tf.device(kept.device):
            heard, number = run.beats[0].read_value(), run.number.read_value()
            came = heard > 0
            # Who has not come yet is as old as the incarnation, once that is open.
            opened = 1e-6 * tf.cast(number, tf.float64)
            silence = tf.timestamp() - tf.maximum(heard, opened)
            waits = (number > 0) & (kept.step.read_value() < kept.steps)
            self.tensors = [tf.where(waits, silence, tf.zeros_like(silence)), came]

    def judge(self, silence, came):
        """Says after 10 s for whom it waits; returns a sentence after `patience`.

        `silence` [workers] are seconds, `came` [workers] says who was ever there: a
        worker that is not may take ten times as long, as for every start. Who was
        started again because it had waited waits as long as before.
        """
        spare = len(silence) - self.size
        missing = np.flatnonzero(silence > GONE)
        if len(missing) <= spare:
            self.said = False
            return ""
        who = ", ".join(map(str, missing))
        limit = np.where(came, self.patience, STARTING * self.patience)
        waited = np.minimum(silence, time.monotonic() - self.began)
        if np.sum(waited > limit) > spare:
            return (
                f"no sign of life in {min(silence[missing]):.0f} s from worker {who}: "
                f"a step takes the gradients of {self.size} workers"
            )
        if not self.said:
            print(
                f"still waiting for worker {who}: "
                f"a step takes the gradients of {self.size} workers",
                flush=True,
            )
        self.said = True
        return ""
