"""Training without a cluster: begin, log, checkpoint, end. Scripts call it.

In one process, or in several that make every update together: then worker 0 saves.
"""

import contextlib
import time

from cluster import checkpoint, report, task
from cluster import tensorflow_v1 as tf
from cluster.rounds import APPLIED, Counted, updates_left


def counted(step):
    """Returns the Counted of an update of one process; `step` is the one after it."""
    zero = tf.zeros_like(step)
    return Counted(step - 1, zero, True, tf.stack([step, zero, zero + APPLIED]))


class Training:
    """What is around the rounds; a context for the whole training.

    `left` is how many updates are left to make, and `session` where to make them.
    """

    def __init__(self, args, learning, calls, test):
        """`learning` is what problem.build made, `calls` are the rounds.Calls.

        `test` are the tensors (loss, metric) on the test set.
        """
        self.args, self.calls, self.session = args, calls, None
        self.chief = args.task_index == 0
        self.extra = {}  # what is to be added to result.json
        self.times = ()  # of the first and the last call
        self.report = report.Report(args, learning.metric, test)
        self.checkpoints = checkpoint.Checkpoints(args)
        self.initializer = tf.global_variables_initializer()
        self.begin_operations = checkpoint.begin_operations()

    def __enter__(self):
        if self.chief:
            report.print_placement()
        self.session = tf.Session()
        self.begun = self.checkpoints.restore(self.session, self.initializer)
        if self.begun and self.chief:
            print(f"resumes from global step {self.begun}")
        checkpoint.begin(self.session, self.begin_operations)
        self.left = self.args.steps - self.begun
        if self.chief:
            task.last_acts.append(self._save_before_the_end)
        return self

    def __exit__(self, *_):
        pass

    def log(self, losses, counts):
        """Notes the rounds of a call; prints, draws and saves what is due."""
        self.report.rounds(losses, counts)
        self.left = updates_left(losses, counts, self.args)
        self.times = (self.times or (time.time(),))[0], time.time()
        if self.chief:
            self.report.draw_line(self.session)
            if self.left > 0 and time.monotonic() > self.checkpoints.due:
                self.checkpoints.save(self.session)

    def draw(self, name, value):
        """Adds a point to TensorBoard's curve `name`, at the global step of now."""
        self.report.curves.add(self.args.steps - self.left, {name: value})

    def stop(self):
        """Ends the training early, as if its last update were made.

        A script calls it between two calls. The result is written, and the status is 0.
        Started again, the training goes on.
        """
        self.left = 0

    def end(self):
        """Chief: saves the model, and writes the result."""
        if self.chief:
            self.checkpoints.save(self.session)
            self.report.write(self.session, {**self.summary(), **self.extra})

    def _save_before_the_end(self):
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            self.checkpoints.save(self.session)
            print(f"told to end: saved at global step {self.checkpoints.step}")

    def summary(self):
        """Returns what result.json says of the training."""
        step, times = self.checkpoints.step_of(self.session), self.times
        seconds = max(times[1] - times[0], 1e-6) if times else 0.0
        rate = (step - self.begun) / seconds if seconds else 0.0
        workers = len(self.args.worker_hosts)
        examples = workers * self.args.batch_size  # of an update
        return {
            "global_steps": step,
            "resumed_from": self.begun,
            "examples": step * examples,
            "seconds": seconds,
            "seconds_to_all_started": 0.0,
            "examples_per_second": rate * examples,
            "steps_per_second": rate,
            "rounds_per_worker": dict.fromkeys(range(workers), step),
            "gradients_dropped": 0,
            "bytes_pushed": 0,
            "bytes_pulled": 0,
            "mean_staleness": 0.0,
            "max_staleness": 0,
        }
