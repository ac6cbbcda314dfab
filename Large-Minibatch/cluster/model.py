"""The model on the ps: initialised, restored, or found alive. `protocol` calls it."""

import contextlib
import os

from cluster import addresses, start, watch
from cluster import tensorflow_v1 as tf

NAME = "model.ckpt"  # of a checkpoint, as MonitoredTrainingSession has it


class Model:
    """Chief: what it does with the variables of the graph that is being built."""

    def __init__(self, args, kept, saver):
        """`kept` are the Books of the run, `saver(close, alive)` makes the saver."""
        self.args, self.books, self.graph = args, kept, tf.get_default_graph()
        self.close = kept.incarnation.close()
        self.uninitialised = tf.report_uninitialized_variables(tf.global_variables())
        self.initializer = tf.global_variables_initializer()
        self.saver = saver(self.close, self.alive)

    def alive(self, session):
        """Says whether a whole model, and an open incarnation, are on the ps."""
        try:
            number = session.run(self.books.incarnation.number)
            return number > 0 and not len(session.run(self.uninitialised))
        except tf.errors.FailedPreconditionError:
            return False

    def initialise(self, session):
        """Without a checkpoint: start weights, unless a model is there."""
        if not self.alive(session):
            session.run(self.close)
            session.run(self.initializer)

    def save(self, session, step):
        """Saves the model at this global step; returns the path, None if it cannot."""
        path = os.path.join(self.args.logdir, NAME)
        return self.saver.save(session, path, step, write_meta_graph=False)

    def save_before_the_end(self, target, config):
        """Saves what is on the ps when this task is told to end, if all is well there.

        `target` and `config` are a session's.
        """

        def save():
            if watch.silent_ps(addresses.serving(self.args).values()) is not None:
                return
            limited = watch.in_time(config)
            with (
                contextlib.suppress(tf.errors.OpError),  # the ps may be ending too
                tf.Session(target, self.graph, limited) as session,
            ):
                failed = session.run(self.books.incarnation.reason)
                if failed or not self.alive(session):
                    return
                step = session.run(self.books.step)
                if self.save(session, step):
                    print(f"told to end: saved at global step {step}")

        start.before_the_end(save)
