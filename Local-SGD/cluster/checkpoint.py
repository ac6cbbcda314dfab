"""Checkpoints in LOGDIR: restored and saved. `run` and `training` call it."""

import math
import os
import time

from cluster import tensorflow_v1 as tf
from cluster.task import fail

NAME = "model.ckpt"  # of a checkpoint, as TensorFlow's own hook has it


class Checkpoints:
    """The checkpoints of a run; the chief alone writes them.

    `step` and `time` are those of the last one.
    """

    def __init__(self, args, saver=None):
        """`saver` has `save`, `restore`, `recover_last_checkpoints` of a Saver."""
        # A folder can be moved, or be a copy of another, whose files are not its own.
        self.args, self.saver = args, saver or tf.train.Saver(save_relative_paths=True)
        self.global_step = tf.train.get_or_create_global_step()
        self.step, self.time, self.complained = None, -math.inf, False

    def restore(self, session, initializer):
        """Restores the last checkpoint, or initialises; returns the global step."""
        logdir, state = self.args.logdir, listed(self.args.logdir)
        if not state:
            path = os.path.join(logdir, "checkpoint")
            if os.path.exists(path):  # to begin anew would overwrite what is there
                fail(f"cannot resume from {logdir}: {path} cannot be read", 1)
            session.run(initializer)
            return 0
        path = state.model_checkpoint_path
        try:
            self.saver.restore(session, path)
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            raise  # the ps may come back
        except (tf.errors.OpError, ValueError) as error:
            reason = str(error).rpartition("Original error:")[2].strip()
            fail(f"cannot resume from {path}: {reason.splitlines()[0]}", 1)
        self.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        self.step, self.time = self.step_of(session), time.monotonic()
        return self.step

    def step_of(self, session):
        """Returns the global step of the model in a session."""
        return int(session.run(self.global_step))

    def are_due(self):
        """Says whether --save_seconds have gone by since the last one."""
        return time.monotonic() > self.time + self.args.save_seconds

    def save(self, session):
        """Saves the model. If that cannot be done it says so, and training goes on."""
        step, path = self.step_of(session), os.path.join(self.args.logdir, NAME)
        if step == self.step:
            return
        try:
            self.saver.save(session, path, step, write_meta_graph=False)
            self.step, self.complained = step, False
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            raise
        except (tf.errors.OpError, ValueError, OSError) as error:
            lines = str(error).splitlines()
            # TensorFlow's own has the path and the reason after a traceback.
            reason = [line for line in lines if line.startswith("/")] or lines
            if not self.complained:
                print(f"cannot save: {reason[0]}; training goes on")
            self.step, self.complained = None, True
        self.time = time.monotonic()


def listed(folder):
    """Returns TensorFlow's list of a folder's checkpoints, None if it has none.

    Of what it lists only the names count: the folder may be a copy of another, whose
    files are not its own.
    """
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # an empty file
        return None
    if state:
        paths = [state.model_checkpoint_path, *state.all_model_checkpoint_paths]
        last, *kept = [os.path.join(folder, os.path.basename(path)) for path in paths]
        state.model_checkpoint_path, state.all_model_checkpoint_paths[:] = last, kept
    return state
