"""Non-Distributed-Setup: the learning problem in one process.

        g := ∇ loss(w; mini-batch)
        w ← w − η g

w is the flat vector of all parameters, called the center variable from the next
folder on, where it lives on another process.
Paper: Robbins, Monro, A Stochastic Approximation Method, 1951.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import problem
from cluster import account, books, checkpoint, exits, flags, report, rounds, start
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

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
        (gradient,) = tf.gradients(value, weights)

    # w ← w − η g
    with tf.name_scope("update"):
        update = center.assign_sub(args.learning_rate * gradient, read_value=False)
        with tf.control_dependencies([update]):
            number = tf.identity(global_step.assign_add(1))
    return rounds.Round(value, books.entry_of_one_process(number), [number])


# --- Training ----------------------------------------------------------------


def main():
    args = parse_args()
    start.begin(args, problem)
    data = flags.data(problem, args)

    learning = problem.build(data, args.batch_size, args.seed)
    center = tf.get_variable("center", initializer=learning.start)
    global_step = tf.train.get_or_create_global_step()
    batch = rounds.in_turn(learning.batch)
    calls = rounds.Calls(
        lambda last: graph(args, center, global_step, batch, learning.loss, last)
    )
    test = learning.test(center.read_value())

    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(tf.local_variables_initializer(), learning.initializer),
        local_init_feed_dict=learning.feed,
        saver=checkpoint.saver(),
    )
    notes = report.Report(args, learning.metric, test)
    options = dict(
        scaffold=scaffold,
        checkpoint_dir=args.logdir,
        save_checkpoint_secs=args.save_seconds,
        save_graph_def=False,  # as text it takes half a second; this file makes it
        log_step_count_steps=None,
    )
    report.print_placement()
    with tf.train.MonitoredTrainingSession(**options) as session:

        def make_rounds(step_context):
            calls.make(step_context.session, notes)

        begun = notes.look(session.run(global_step))
        if begun:
            print(f"resumes from global step {begun}")
        while notes.look(session.run(global_step)) < args.steps:
            session.run_step_fn(make_rounds)
            notes.draw(session)

        step = int(session.run(global_step))
        notes.write(
            session, account.of_one_process(step, begun, notes.times, args.batch_size)
        )


if __name__ == "__main__":
    exits.run(main)
