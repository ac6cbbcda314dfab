"""Non-Distributed-Setup: the learning problem in one process.

        g := ∇ loss(w; mini-batch)
        w ← w − η g

w is the flat vector of all parameters, called the center variable from the next
folder on, where it lives on another process.
Paper: Robbins, Monro, A Stochastic Approximation Method, 1951.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import functools

import cluster
import problem
from cluster import tf  # tensorflow.compat.v1, imported when it is first used

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    return cluster.parse(cluster.parser(__doc__), argv)


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, center, global_step, batch, loss):
    """Returns the tensors of one round: compute a gradient, apply it.

    `batch()` is a fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    weights = center.read_value()

    # g := ∇ loss(w; mini-batch)
    value = loss(weights, batch())
    (gradient,) = tf.gradients(value, weights)

    # w ← w − η g
    number = cluster.next_update(global_step, args.steps, after=[gradient])
    with tf.control_dependencies([number]):
        push = center.assign_sub(args.learning_rate * gradient, read_value=False)
    return {"loss": value, "counts": [number + 1], "push": push}


# --- Training [algorithm] ----------------------------------------------------


def main():
    args = parse_args()
    cluster.begin(args, problem.check)

    data = problem.load(args.data)
    shapes = problem.shapes(data)
    start = problem.initial(shapes, args.seed)
    center = tf.get_variable("center", initializer=start)
    global_step = tf.train.get_or_create_global_step()
    batches, feed = problem.batches(data, args.batch_size, args.seed)
    loss = functools.partial(problem.loss, shapes=shapes)
    train = graph(args, center, global_step, batches.get_next, loss)
    evaluation = problem.evaluation(center.read_value(), data, shapes)

    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(tf.local_variables_initializer(), batches.initializer),
        local_init_feed_dict=feed,
    )
    log = cluster.Log(args, start.shape.num_elements(), evaluation)
    cluster.print_placement()
    options = dict(
        scaffold=scaffold,
        checkpoint_dir=args.logdir,
        save_checkpoint_steps=max(1, args.steps // 10),
    )
    with tf.train.MonitoredTrainingSession(**options) as session:

        def rounds(step_context):
            """A few rounds, each one bare call: the hooks look in between."""
            one_round = step_context.session.make_callable(train)
            with cluster.bare_calls():
                for _ in range(cluster.HOOKS_EVERY):
                    if log.round(one_round()) >= args.steps:
                        break

        while session.run(global_step) < args.steps:
            session.run_step_fn(rounds)
            log.draw(session)
        log.write_result(session, {0: log.report()})


if __name__ == "__main__":
    cluster.run(main)
