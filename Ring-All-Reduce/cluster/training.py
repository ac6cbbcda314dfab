"""Training in one process: from a checkpoint or anew, to the result. Scripts call it.

TensorFlow's MonitoredSession asks a Training for a session, and for another one when it
has lost that. A training is complete when all updates are made and the result is
written, and only then does its program end with status 0.
"""

import contextlib
import glob
import math
import os
import time

from cluster import report, task
from cluster import tensorflow_v1 as tf
from cluster.task import AGAIN, Failure, fail

NAME = "model.ckpt"  # of a checkpoint, as TensorFlow's own hook has it
KEPT = 5  # checkpoints in LOGDIR


class Training:
    """What is around the rounds; a context for the whole program.

    `step` is for `MonitoredSession.run_step_fn`, until `over` is true.
    """

    Report = report.Report

    def __init__(self, args, learning, calls, test, saver=None):
        """`learning` is what problem.build made, `calls` are the rounds.Calls.

        `test` are the tensors (loss, metric) on the test set, and what they are fed.
        `saver` has the methods `save` and `restore` of a tf.train.Saver. Which files
        are restored and removed is decided here.
        """
        self.args, self.calls, self.chief = args, calls, args.task_index == 0
        self.report = self.Report(args, learning.metric, test)
        self.left, self.over = args.steps, False  # updates left to make; all is done
        self.session = None
        self.global_step = tf.train.get_or_create_global_step()
        self.saver = saver or tf.train.Saver()
        self.initializer = tf.global_variables_initializer()
        # What the input may look up, then the input.
        own = tf.local_variables_initializer(), tf.tables_initializer()
        self.input, self.feed = [own, learning.initializer], learning.feed
        self.saved = None, -math.inf  # global step and time of the last save
        self.complained = False

    def __enter__(self):
        if self.args.check:
            task.end_check()
        if self.chief:
            report.print_placement()
            task.before_the_end(self._save_before_the_end)
        task.doing(None)
        return self

    def __exit__(self, kind, error, _):
        """Ends the program unless all is done.

        MonitoredSession takes OutOfRangeError and StopIteration for a good end.
        """
        if kind is None and not self.over:
            fail("the run ended before its last update, or without its result", AGAIN)

    # --- Begin ----------------------------------------------------------------

    def create_session(self):
        """Returns a session in which training can begin or go on."""
        self.session = session = self.open_session()
        self.left = self.args.steps - int(session.run(self.global_step))
        return session

    def open_session(self):
        """Returns a session whose variables and input are initialised."""
        session = tf.Session()
        step = self.restore(session)
        if step and self.chief:
            print(f"resumes from global step {step}")
        self.begun = step
        self.begin_input(session)
        return session

    def begin_input(self, session):
        """Initialises what is this process's own, and starts its input."""
        for operations in self.input:
            session.run(operations, self.feed)

    def restore(self, session):
        """Restores the last checkpoint, or initialises; returns the global step."""
        found = checkpoints(self.args.logdir)
        if not found:
            listed = os.path.join(self.args.logdir, "checkpoint")
            if os.path.exists(listed):  # to begin anew would overwrite what is there
                fail(
                    f"cannot resume from {self.args.logdir}: {listed} cannot be read", 1
                )
            session.run(self.initializer)
            return 0
        path = found[-1]
        try:
            _check_shapes(tf.train.load_checkpoint(path))
            self.saver.restore(session, path)
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            raise  # the ps may come back
        except (tf.errors.OpError, ValueError) as error:
            reason = str(error).rpartition("Original error:")[2].strip()
            fail(f"cannot resume from {path}: {reason.splitlines()[0]}", 1)
        step = int(session.run(self.global_step))
        self.saved = step, time.monotonic()
        return step

    # --- Training -------------------------------------------------------------

    def step(self, step_context):
        """Makes about a second of rounds, and what is due after them."""
        self.train(step_context.session)

    def train(self, session):
        """Makes rounds; then draws, saves, and ends the training when all are made."""
        try:
            self.left = self.calls.make(session, self.left, self.report)
        except tf.errors.OutOfRangeError as error:
            text = "the input has come to an end: batch() of problem.py has to repeat"
            raise Failure(text) from error
        if self.left <= 0:
            self.end(session)
        elif self.chief:
            self.report.draw(session)
            if time.monotonic() > self.saved[1] + self.args.save_seconds:
                self.save(session)

    def stop(self):
        """Ends the run early, for all workers, as if its last update were made.

        A script calls it between two steps; who waits for whom does not matter. The
        result is written, and the status is 0. Started again, the run goes on.
        """
        self.left = 0

    def draw(self, name, value):
        """Adds a point to TensorBoard's curve `name`, at the global step of now."""
        self.report.curves.add(self.args.steps - self.left, {name: value})

    def end(self, session):
        """Ends the training: all updates are made."""
        self.save_and_write(session)
        self.over = True

    def save_and_write(self, session):
        """Saves the model, and writes the result."""
        self.save(session)
        self.report.write(session, self.summary(session))

    def summary(self, session):
        """Returns what result.json says of the training: here of one process."""
        step, times = int(session.run(self.global_step)), self.report.times
        seconds = max(times[1] - times[0], 1e-6) if times else 0.0
        rate = (step - self.begun) / seconds if seconds else 0.0
        return {
            "global_steps": step,
            "resumed_from": self.begun,
            "examples": step * self.args.batch_size,
            "seconds": seconds,
            "seconds_to_all_started": 0.0,
            "examples_per_second": rate * self.args.batch_size,
            "steps_per_second": rate,
            "rounds_per_worker": {0: step},
            "gradients_dropped": 0,
            "bytes_pushed": 0,
            "bytes_pulled": 0,
            "mean_staleness": 0.0,
            "max_staleness": 0,
        }

    # --- Checkpoints ----------------------------------------------------------

    def save(self, session):
        """Saves the model. If that cannot be done it says so, and training goes on."""
        step = int(session.run(self.global_step))
        if step == self.saved[0]:
            return
        path = os.path.join(self.args.logdir, f"{NAME}-{step}")
        try:
            self.saver.save(session, path, write_meta_graph=False, write_state=False)
            keep(path, KEPT)
            self.saved, self.complained = (step, time.monotonic()), False
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            raise
        except (tf.errors.OpError, ValueError, OSError) as error:
            self.saved = None, time.monotonic()
            if not self.complained:
                lines = str(error).splitlines()
                # TensorFlow's own has the path and the reason after a traceback.
                reason = [line for line in lines if line.startswith("/")] or lines
                print(f"cannot save: {reason[0]}; training goes on")
            self.complained = True

    def _save_before_the_end(self):
        """Saves when this task is told to end, in the time that it has for that."""
        session = self.session
        # The ps may be ending, too, or the session be closed already.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            if session is not None and self.may_save(session):
                self.save(session)
                print(f"told to end: saved at global step {self.saved[0]}")

    def may_save(self, session):
        """Says whether what the variables hold is worth a checkpoint."""
        return True


def checkpoints(folder):
    """Returns the paths of the checkpoints in a folder, the one to restore last.

    Of what `checkpoint` lists only the names count: a folder can be moved, or be a copy
    of another, whose files are not its own. [] if there is no list that can be read.
    """
    state = None
    with contextlib.suppress(ValueError):  # an empty one
        state = tf.train.get_checkpoint_state(folder)
    if state is None:
        return []
    last = state.model_checkpoint_path
    paths = [p for p in state.all_model_checkpoint_paths if p != last] + [last]
    return [os.path.join(folder, os.path.basename(path)) for path in paths]


def keep(path, most):
    """Lists a checkpoint that was just written as the last one of its folder.

    Removes the oldest of those listed if there are more than `most`.
    """
    folder = os.path.dirname(path)
    paths = [old for old in checkpoints(folder) if old != path] + [path]
    names = [os.path.basename(kept) for kept in paths[-most:]]
    tf.train.update_checkpoint_state(folder, names[-1], names)
    for old in paths[:-most]:
        for file in glob.glob(f"{glob.escape(old)}.*"):
            with contextlib.suppress(OSError):
                os.remove(file)


def _check_shapes(reader):
    """Raises ValueError if a checkpoint lacks a variable, or has another shape of it.

    Where a variable is one piece TensorFlow takes another shape for it. Where it is in
    pieces, or is not there, TensorFlow's first line does not name it.
    """
    found = reader.get_variable_to_shape_map()
    for variable in tf.global_variables():
        name, shape = variable.op.name, variable.shape
        whole = variable.to_proto().save_slice_info_def
        if whole.full_name:
            name, shape = whole.full_name, tf.TensorShape(whole.full_shape)
        there = found.get(name)
        if there is None or not shape.is_compatible_with(there):
            text = "not" if there is None else there
            raise ValueError(f"{name} is {text} there, {shape.as_list()} here")
