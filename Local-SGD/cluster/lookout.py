"""Which worker of a ring is lost? Everybody looks every 2 s. `meeting` calls it.

A call that waits for a lost worker may wait for ever: when that is started again it
answers at the same address, and knows nothing of the call. So a thread beside it looks
at the signs of life, at who answers where the workers were, and at what the next
process of a worker says.
"""

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster import watch
from cluster.incarnation import silence

REPLACED = " replaced"  # instead of the name of a process whose successor is there


class Lookout:
    """What the workers of a ring, and their successors, leave on the chief."""

    def __init__(self, run, me, addresses):
        """`run` is the Incarnation, `me` this worker, `addresses` are all workers'."""
        self.owner, self.addresses = run.owners[me], addresses
        self.replace = run.owners[me].assign(REPLACED).op
        replaced = tf.where(tf.equal(run.owners.value(), REPLACED))[:, 0]
        self.signs = silence(run.beats[0]), replaced
        self.look = self._at_chief if me else self._at_workers

    def is_replaced(self, session):
        """Says whether this worker was another process; if so, the chief is told."""
        if session.run(self.owner):
            session.run(self.replace)
            return True
        return False

    def _at_workers(self, session):
        """chief: returns (who is lost or None, who is silent longest, seconds)."""
        quiet, replaced = session.run(self.signs)
        silent = int(np.argmax(quiet))
        if len(replaced):
            return int(replaced[0]), silent, quiet[silent]
        late = quiet[silent] > 1.5 * watch.BEAT
        return watch.silent_ps(self.addresses) if late else None, silent, quiet[silent]

    def _at_chief(self, session):
        """worker: the same. For how long the chief is silent, its heart knows."""
        try:
            session.run(self.owner)
        except watch.silent():
            pass
        except tf.errors.OpError:
            return 0, 0, 0.0  # it answers, but is not the one that this worker joined
        return None, 0, 0.0
