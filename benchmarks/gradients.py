"""Gradients that are timed, and that may be a sleep: for a copy of an example.

emulated.py puts this file beside problem.py of the copy, and there at its end

    import gradients

    build = gradients.noted(build)

Each gradient of a worker then writes down when it began. What else it does is in the
environment, in EMULATED, as JSON:

    folder    where the times are written: times-K of worker K, float64, in seconds of
              the monotonic clock: of the first gradient, then of each after the warm
    warm      the first gradients of each worker are zero, and the parameters stay as
              they are, while TensorFlow prepares its graphs; then all workers go on at
              the same moment
    seconds   of sleep in a gradient: an accelerator leaves the CPU as idle
    elements  P, the numbers of the center variable; None: those of the model. More are
              pulled and pushed as the others are, but the model does not use them
    every     gradients between two copies that worker 0 writes, to weights-TIME, of the
              weights that it has pulled; 0: none
    cores     of the machine, on one of which worker K computes; 0: on all
"""

import itertools
import json
import os
import pathlib
import struct
import sys
import time

import numpy as np

from cluster import tensorflow_v1 as tf

OPTIONS = json.loads(os.environ["EMULATED"])
FOLDER = pathlib.Path(OPTIONS["folder"])
# Seconds, so that the next call is of one round: of three, no graph is prepared yet.
WAIT = 3.5


def stay_on_a_core(words):
    """Keeps a worker, which has these words on its command line, on one core.

    TensorFlow makes as many threads as there are cores for it, when a server begins: so
    this has to be earlier. A ps may be anywhere.
    """
    after = dict(itertools.pairwise(words))
    if OPTIONS["cores"] and after.get("--job_name", "worker") == "worker":
        core = int(after.get("--task_index", 0)) % OPTIONS["cores"]
        os.sched_setaffinity(0, {core})


class Notes:
    """What one worker does in each gradient; called in the order of its gradients."""

    def __init__(self, worker, workers):
        self.workers, self.count = workers, 0
        self.here = FOLDER / f"ready-{worker}"
        self.times = open(FOLDER / f"times-{worker}", "ab", buffering=0)

    def __call__(self, weights):
        """Returns what the loss is multiplied by: 0 while this worker warms up."""
        now = time.monotonic()
        self.count += 1
        if self.count == 1 or self.count > OPTIONS["warm"]:
            self.times.write(struct.pack("d", now))
        if self.count <= OPTIONS["warm"]:
            time.sleep(OPTIONS["seconds"])
            if self.count == OPTIONS["warm"]:
                time.sleep(WAIT)
                self.here.touch()
                while len(list(FOLDER.glob("ready-*"))) < self.workers:
                    time.sleep(0.01)
            return np.float32(0)
        made = self.count - OPTIONS["warm"] - 1
        if len(weights) > 1 and made % OPTIONS["every"] == 0:
            np.save(FOLDER / f"weights-{now:.6f}", weights)
        time.sleep(OPTIONS["seconds"])
        return np.float32(1)


def noted(build):
    """Returns the `build` of a problem.py, with gradients that are noted."""

    def build_noted(data, batch_size, seed, worker=0, workers=1):
        learning = build(data, batch_size, seed, worker, workers)
        size = learning.start.shape.num_elements()
        more = (OPTIONS["elements"] or size) - size
        notes = Notes(worker, workers)
        copies = OPTIONS["every"] and worker == 0

        def loss(vector, batch):
            # Between pull and push, as rounds.slowed has it.
            seen = vector[:size] if copies else vector[:1]
            factor = tf.stop_gradient(tf.py_func(notes, [seen], tf.float32))
            factor.set_shape([])
            with tf.control_dependencies([factor]):
                return factor * learning.loss(vector[:size], batch)

        def test(vector):
            return learning.test(vector[:size])

        start = tf.concat([learning.start, tf.zeros([more])], axis=0)
        return learning._replace(start=start, loss=loss, test=test)

    return build_noted


stay_on_a_core(sys.argv)
