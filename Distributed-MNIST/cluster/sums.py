"""The sums of the gradients of an open step, one on each ps. `sync` calls it.

A step that a dead worker left unfinished is begun again: that is another attempt. A sum
is of one attempt, and each piece of a gradient names the attempt for which ps 0 took
it. So a piece that comes late is in no later sum.
"""

from cluster import rounds
from cluster import tensorflow_v1 as tf

REFUSED = 0  # in place of the number of an attempt, which is larger
NONE = 1  # of which a sum is before the first piece


class Sums:
    """For each piece of the center variable: a sum, and of which attempt it is."""

    def __init__(self, center, stats):
        self.sums, self.attempts, self.locks = [], [], []
        for i, piece in enumerate(center):
            with tf.device(piece.device):
                self.sums.append(stats.temporary("sum", tf.zeros(piece.shape)))
                none = tf.constant(NONE, tf.int64)
                self.attempts.append(stats.temporary("attempt", none))
                self.locks.append(tf.raw_ops.MutexV2(shared_name=f"sum_{i}"))

    def add(self, pushed, named, rule):
        """Applies `rule(sum, piece)` on each ps, to a sum of the attempt `named`.

        The first piece of an attempt finds a sum of zeros, and one of an attempt that
        is over changes nothing. `named` is an int64 scalar on ps 0, REFUSED for a
        gradient that does not count. Returns what comes after it, on each ps.
        """
        return self._on_each(self.sums, pushed, named, rule, begins=True)

    def move(self, variables, named, rule):
        """Applies `rule(variable, sum)` on each ps, if the sum is of that attempt.

        Returns what comes after it, on each ps.
        """
        return self._on_each(variables, self.sums, named, rule, begins=False)

    def _on_each(self, variables, pieces, named, rule, begins):
        done = []
        for variable, piece, total, attempt, mutex in zip(
            variables, pieces, self.sums, self.attempts, self.locks, strict=True
        ):
            with tf.device(total.device):
                # One message to that ps, for all that depends on it there.
                mine = tf.identity(named)
                # Not before all is here: nobody waits for a worker with this lock.
                with tf.control_dependencies([mine, *([piece] if begins else [])]):
                    lock = tf.raw_ops.MutexLock(mutex=mutex)
                with tf.control_dependencies([lock]):
                    last = attempt.read_value()

                def begin(total=total, attempt=attempt, mine=mine):
                    sets = total.assign(rounds.zeros(total), read_value=False)
                    return tf.group(sets, attempt.assign(mine, read_value=False))

                begun = [rounds.only_if(mine > last, begin)] if begins else []
                fits = mine >= last if begins else tf.equal(mine, last)
                with tf.control_dependencies(begun):
                    act = rounds.only_if(fits, lambda v=variable, p=piece: rule(v, p))
                with tf.control_dependencies([act]):
                    done.append(tf.raw_ops.ConsumeMutexLock(mutex_lock=lock))
        return done
