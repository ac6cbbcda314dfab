"""A round is pull, gradient, push, update; here rounds are made, many to a call.

A `session.run` on a cluster costs messages of its own. So up to ten short rounds are
built into one graph, each pull after this worker's own last update. Scripts call it.
"""

import collections
import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.task import Failure

SIZES = (1, 3, 10)  # rounds of a call: the most that CALL allows
CALL = 1.0  # seconds that a call may take, so that lines and checkpoints are not late
CHEAP = 10.0  # CPU seconds that a call may take to build and prepare

# What became of a push: applied, too late for its step, or after the last update.
APPLIED, LATE, OVER = 1, 0, -1

# What ps 0 says of a push, scalars there: the number of its update, from 0; how many
# updates came between pull and push; whether it is to be applied. `packed` is for the
# worker's log: [global step after it, staleness, what became of it], int64.
Counted = collections.namedtuple("Counted", "number staleness applied packed")

# The tensors of one round: the loss, the Counted of its push, and what this worker's
# next round waits for, on each ps (`update`) and on the worker (`local`).
Round = collections.namedtuple("Round", "loss counted update local", defaults=[()])
FIRST = Round(None, None, (), ())  # what the first round of a call comes after


def read(variables, after=()):
    """Returns the values of variables, each read where it is, `after` something."""
    values = []
    for i, variable in enumerate(variables):
        waits = tf.nest.flatten(after[i : i + 1])
        with tf.device(variable.device), tf.control_dependencies(waits):
            values.append(variable.read_value())
    return values


def pull(center, after=()):
    """Returns the center variable [P] on this worker, one message from each ps."""
    return tf.concat(read(center, after), axis=0)


def push(vector, center):
    """Returns the pieces of a vector [P], each on the ps with its part of `center`."""
    sizes = [piece.shape.num_elements() for piece in center]
    return send(tf.split(vector, sizes), center)


def send(tensors, variables):
    """Returns the tensors, each on the ps that has the variable of the same place."""
    arrived = []
    for tensor, variable in zip(tensors, variables, strict=True):
        with tf.device(variable.device):
            arrived.append(tf.identity(tensor))
    return arrived


def zeros(like):
    """Returns zeros like `like`, made when they are needed: no constant for a round."""
    shape = like.shape.as_list()
    return tf.raw_ops.Empty(shape=shape, dtype=like.dtype.base_dtype, init=True)


def only_if(condition, make):
    """Runs the operation that `make()` returns if `condition` holds, a bool tensor.

    Like tf.cond, but it stays on one device, so that no message between ps is needed:

        condition ─ Switch ┬ yes ─ make() ─ done ┬ Merge ─ returned
                           └ no ─────────────────┘
    """
    no, yes = tf.raw_ops.Switch(data=condition, pred=condition)
    with tf.control_dependencies([tf.identity(yes)]):
        operation = make()
    with tf.control_dependencies([operation]):
        done = tf.identity(yes)
    return tf.raw_ops.Merge(inputs=[no, done]).output


def update(variables, pushed, applied, rule):
    """Applies `rule(variable, piece)` to each pair, on its ps, if it is `applied`.

    The rule returns an operation. Returns what comes after it, a tensor on each ps.
    """
    done = []
    for variable, piece in zip(variables, pushed, strict=True):
        with tf.device(variable.device):
            # One message to that ps, for all that depends on it there.
            condition = tf.identity(applied)
            done.append(only_if(condition, lambda v=variable, p=piece: rule(v, p)))
    return done


def in_turn(batch):
    """Returns `batch`, drawing each mini-batch after the one before it.

    Else what two input pipelines give to a round would not belong together. In a loop
    they are in order anyhow.
    """
    graph, drawn = tf.get_default_graph(), []

    def draw():
        if tf.get_default_graph() is not graph:
            return batch()
        known = set(graph.get_operations())
        with tf.control_dependencies(drawn):
            tensors = batch()
        new = [one for one in graph.get_operations() if one not in known]
        drawn[:] = [one for one in new if one.op_def.is_stateful]
        return tensors

    return draw


def gradient(value, vector):
    """Returns ∇ value(vector), a tensor [P]."""
    (found,) = tf.gradients(value, vector)
    if found is None:
        text = "does not depend on the vector: there is nothing to train"
        raise Failure(f"problem.py: loss() {text}")
    return tf.convert_to_tensor(found)  # of tf.gather it is rows


class Calls:
    """Rounds that are built one after the other, and called together.

    Ten take ten times as long to build, and TensorFlow to prepare, as one: minutes for
    a long recurrent model. Over CHEAP seconds a call is one round, or three.
    """

    def __init__(self, one_round, sizes=SIZES):
        """`one_round(last)` builds a round that comes after the `last` one."""
        self.seconds, began = CALL, time.thread_time()  # of a round; CPU seconds so far
        self.session, self.calls, self.fetches, built = None, {}, {}, [FIRST]
        for size in sizes:
            for number in range(len(built) - 1, size):
                with tf.name_scope(f"round_{number}"):
                    built.append(one_round(built[-1]))
            with tf.name_scope(f"calls_{size}"):
                self.fetches[size] = self._fetch(built[1 : size + 1])
            # TensorFlow prepares a round for about as long as it took to build.
            if 2 * (time.thread_time() - began) * sizes[-1] / size > CHEAP:
                break

    @staticmethod
    def _fetch(built):
        # What a call brings back: [n] losses and [n, 3] counts, in one message each.
        with tf.device(built[0].counted.packed.device):
            counts = tf.stack([one.counted.packed for one in built])
        last = [*built[-1].update, *built[-1].local]
        last = [getattr(item, "op", item) for item in last]
        return [tf.stack([one.loss for one in built]), counts, last]

    def size(self, left):
        """Returns the rounds of the next call, fewer if they are long or the last."""
        fit = [n for n in self.fetches if n <= left and n * self.seconds <= CALL]
        return max(fit, default=1)

    def make(self, session, left):
        """Makes rounds in one call; `left` is how many updates are left to make.

        Returns losses [n] and counts [n, 3] of its n rounds.
        """
        return self.call(session, self.size(left))

    def call(self, session, size):
        """Makes a call of `size` rounds, as `make` does."""
        if session is not self.session:
            self.session = session
            self.calls = {n: session.make_callable(f) for n, f in self.fetches.items()}
        began = time.monotonic()
        losses, counts, _ = self.calls[size]()
        self.seconds = (time.monotonic() - began) / size
        return losses, counts


def updates_left(losses, counts, args):
    """Returns how many updates are left after a call; Failure if a loss diverges."""
    steps, _, became = counts.T
    wrong = np.flatnonzero(~np.isfinite(losses) & (became != OVER))
    if len(wrong):
        loss, step = losses[wrong[0]], steps[wrong[0]]
        text = f"the loss is {loss} at global step {step}: training diverged; try a"
        raise Failure(f"{text} smaller --learning_rate than {args.learning_rate}")
    return 0 if OVER in became else args.steps - int(steps[-1])
