"""Non-Distributed-Setup: the model of all examples, trained in one process.

        g := ∇ loss(w; mini-batch)
        w ← w − η g

w is the flat vector of all parameters, called the center variable from the next
folder on, where it lives on another process.
Paper: Robbins, Monro, A Stochastic Approximation Method, 1951.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import flags, rounds, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.training import Training, counted
import contract
import problem

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    return flags.parse(flags.parser("Non-Distributed-Setup", __doc__), argv)


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, center, global_step, batch, loss, last):
    """Returns one round: a gradient and its update, which come after the `last` ones.

    `batch()` is a fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    with tf.control_dependencies(last.update):
        weights = center.read_value()

    # g := ∇ loss(w; mini-batch)
    with tf.name_scope("gradient"):
        value = loss(weights, batch())
        gradient = rounds.gradient(value, weights)

    # w ← w − η g
    with tf.name_scope("update"):
        update = center.assign_sub(args.learning_rate * gradient, read_value=False)
        with tf.control_dependencies([update]):
            step = tf.identity(global_step.assign_add(1))
    return rounds.Round(value, counted(step), [step])


# --- Training ----------------------------------------------------------------


def main():
    args = parse_args()
    data = task.begin(args, problem)

    learning = contract.build(problem, data, args)
    center = tf.get_variable("center", initializer=learning.start)
    global_step = tf.train.get_or_create_global_step()
    batch = rounds.in_turn(learning.batch)
    calls = rounds.Calls(
        lambda last: graph(args, center, global_step, batch, learning.loss, last)
    )
    test = learning.test(center.read_value())
    training = Training(args, learning, calls, test)

    # Begin: w is initialised, or restored from the last checkpoint in LOGDIR.
    with training:
        # Loop: a call is up to ten rounds.
        while training.left > 0:
            losses, counts = calls.make(training.session, training.left)
            training.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: w is tested, and result.json written.
        training.end()


if __name__ == "__main__":
    task.run(main)
