"""Checkpoints: a saver that says what is wrong with one. `protocol` calls it."""

from cluster import tensorflow_v1 as tf
from cluster.exits import fail


def saver(close=()):
    """Returns a saver that runs the operations `close` before it restores anything."""

    class Saver(tf.train.Saver):
        """A restore that fails is one sentence, unless a ps is to blame."""

        def restore(self, session, path):
            session.run(close)
            try:
                super().restore(session, path)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                raise  # the ps may come back
            except (tf.errors.OpError, ValueError) as error:
                reason = str(error).rpartition("Original error:")[2].strip()
                fail(f"cannot resume from {path}: {reason.splitlines()[0]}", 1)

    return Saver()
