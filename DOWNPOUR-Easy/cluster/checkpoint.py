"""Checkpoints in LOGDIR, and what is in none: it begins with each session."""

import math
import os
import time

from cluster import tensorflow_v1 as tf
from cluster.task import Failure, first_line, is_lost

NAME = "model.ckpt"  # of a checkpoint, as TensorFlow's own hook has it


class Checkpoints:
    """The checkpoints of a run; the chief alone writes them.

    `step` is that of the last one, `due` when the next is to be, by time.monotonic().
    """

    def __init__(self, args, saver=None):
        """`saver` has `save`, `restore`, `recover_last_checkpoints` of a Saver."""
        # A folder can be moved, or be a copy of another, whose files are not its own.
        self.args, self.saver = args, saver or tf.train.Saver(save_relative_paths=True)
        self.global_step = tf.train.get_or_create_global_step()
        self.step, self.due = None, -math.inf

    def restore(self, session, initializer):
        """Restores the last checkpoint, or initialises; returns the global step."""
        logdir = self.args.logdir
        state = tf.train.get_checkpoint_state(logdir)
        if not state:
            path = os.path.join(logdir, "checkpoint")
            if os.path.exists(path):  # to begin anew would overwrite what is there
                raise Failure(f"cannot resume from {logdir}: {path} cannot be read")
            session.run(initializer)
            return 0
        path = state.model_checkpoint_path
        try:
            self.saver.restore(session, path)
        except (tf.errors.OpError, ValueError) as error:
            if is_lost(error):
                raise
            why = first_line(str(error).rpartition("RestoreV2'\n")[2])  # after the node
            raise Failure(f"cannot resume from {path}: {why}") from error
        self.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        self.step = self.step_of(session)
        self.due = time.monotonic() + self.args.save_seconds
        return self.step

    def step_of(self, session):
        """Returns the global step of the model in a session."""
        return int(session.run(self.global_step))

    def save(self, session):
        """Saves the model, if it is not the one that was saved last."""
        step = self.step_of(session)
        if step != self.step:
            path = os.path.join(self.args.logdir, NAME)
            self.saver.save(session, path, step, write_meta_graph=False)
            self.step, self.due = step, time.monotonic() + self.args.save_seconds


def begin_operations():
    """Returns the operations that begin what is this process's own, in their order."""
    # Local variables and lookup tables come before the input, which may look up.
    tables = tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)
    inputs = [one for one in tables if one.type == "MakeIterator"]
    others = [one for one in tables if one not in inputs]
    return [tf.local_variables_initializer(), others, inputs]


def begin(session, operations):
    """Begins what is this process's own, in a new session."""
    for some in operations:
        session.run(some)
    tf.train.start_queue_runners(session, tf.train.Coordinator())
