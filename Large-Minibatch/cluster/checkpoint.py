"""Checkpoints: a saver that says what is wrong with one. `protocol` calls it."""

from cluster import tensorflow_v1 as tf
from cluster.exits import fail


def saver(close=(), alive=lambda session: False, fill=None, **options):
    """Returns a saver that runs the operations `close` before it restores anything.

    It restores nothing when the model is `alive` on the ps: nothing was lost then.
    `fill(saver, session, path)` restores the variables, as `tf.train.Saver.restore`
    does; `options` are those of `tf.train.Saver`.
    """

    class Saver(tf.train.Saver):
        """What cannot be restored ends the program; what cannot be saved does not."""

        complained = False
        last = None, None  # the global step and the path of the last checkpoint

        def restore(self, session, path):
            if alive(session):
                return
            session.run(close)
            self.last = None, None
            try:
                self._check_shapes(tf.train.load_checkpoint(path))
                (fill or tf.train.Saver.restore)(self, session, path)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                raise  # the ps may come back
            except (tf.errors.OpError, ValueError) as error:
                reason = str(error).rpartition("Original error:")[2].strip()
                fail(f"cannot resume from {path}: {reason.splitlines()[0]}", 1)

        @staticmethod
        def _check_shapes(reader):
            # Where a variable is one piece TensorFlow takes another shape for it.
            found = reader.get_variable_to_shape_map()
            for variable in tf.global_variables():
                name, shape = variable.op.name, variable.shape
                if not shape.is_compatible_with(found.get(name, shape)):
                    raise ValueError(f"{name} is {found[name]} there, {shape} here")

        def save(self, session, path, global_step=None, **rest):
            if global_step is not None and self.last[0] == global_step:
                return self.last[1]  # the session's hook saves what the chief has saved
            try:
                saved = super().save(session, path, global_step, **rest)
                self.complained, self.last = False, (global_step, saved)
                return saved
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                raise
            except (tf.errors.OpError, ValueError, OSError) as error:
                if not self.complained:
                    lines = str(error).splitlines()
                    # TensorFlow's own has the path and the reason after a traceback.
                    reason = [line for line in lines if line.startswith("/")] or lines
                    print(f"cannot save: {reason[0]}; training goes on")
                self.complained = True

    return Saver(**options)
