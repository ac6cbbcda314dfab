"""DOWNPOUR-Easy: local SGD for a window of T steps, then one push of the sum.

    ps      holds the center variable w and Adagrad's accumulator s
    worker  pulls w, takes T steps of plain SGD from it, pushes the sum of gradients

        local ← w                                                 (worker: pull)
        T times: g := ∇ loss(local; a fresh mini-batch)           (worker)
                 local ← local − η g,  total ← total + g          (worker)
        s ← s + total²,  w ← w − γ total / √s, by element         (ps: push)

Differs from HogWild: T gradients for each round trip instead of one, each at weights
that the ones before it have moved; Adagrad on the ps bears so large a push.
Paper: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.1 and
the client of its appendix, with n_push = n_fetch = T.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import functools

import cluster
import problem
from cluster import tf  # tensorflow.compat.v1, imported when it is first used

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = cluster.parser(__doc__)
    cluster.add_cluster_flags(parser)
    add = parser.add_argument
    add("--window", type=cluster.positive_int, default=5, help="T, local steps")
    add("--server_learning_rate", type=cluster.positive, default=0.05, help="γ")
    return cluster.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, center, global_step, batch, loss):
    """Returns the tensors of one round, and the hooks its session needs.

    `batch()` is a fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    pulled = center.as_tensor()
    with tf.device(global_step.device):
        seen = global_step.read_value()

    # The loop builds batch and loss in its body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, total, _):
        # g := ∇ loss(local; a fresh mini-batch)   (worker)
        value = loss(local, batch())
        (gradient,) = tf.gradients(value, local)
        # local ← local − η g,  total ← total + g
        local = local - args.learning_rate * gradient
        return i + 1, local, total + gradient, value

    start = 0, pulled, tf.zeros_like(pulled), 0.0
    _, _, total, value = tf.while_loop(
        lambda i, *_: i < args.window, local_step, start, parallel_iterations=1
    )

    # staleness := updates applied between pull and push   (ps 0 counts)
    pushed = cluster.send(total, center)
    number = cluster.next_update(global_step, args.steps, after=[pushed[0], seen])
    with tf.device(global_step.device):
        counts = tf.stack([number + 1, number - seen])  # one tensor, one message

    # s ← s + total²,  w ← w − γ total / √s   (ps; the paper's s starts at 0)
    adagrad = tf.train.AdagradOptimizer(
        args.server_learning_rate, initial_accumulator_value=1e-20, use_locking=True
    )
    push = []
    for piece, g in zip(center, pushed, strict=True):
        with tf.device(piece.device), tf.control_dependencies([number]):
            push.append(adagrad.apply_gradients([(g, piece)]))
    return {"loss": value, "counts": counts, "push": push}, []


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    cluster.begin(args, problem.check)

    # Every task knows every address and serves its own part over gRPC.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    data = problem.load(args.data) if args.job_name == "worker" else None
    server = tf.train.Server(spec, job_name=args.job_name, task_index=args.task_index)
    if args.job_name == "ps":
        return cluster.serve(server, args)

    # Between-graph replication: every worker builds the same graph. The setter puts
    # variables on the ps, in turn, and all the rest on this worker.
    me, workers = args.task_index, len(args.worker_hosts)
    device = f"/job:worker/task:{me}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=device)):
        shapes = problem.shapes(data)
        start = problem.initial(shapes, args.seed)
        pieces = tf.fixed_size_partitioner(len(args.ps_hosts))  # one on each ps
        center = tf.get_variable("center", initializer=start, partitioner=pieces)
        global_step = tf.train.get_or_create_global_step()
        batches, feed = problem.batches(data, args.batch_size, args.seed, me, workers)
        loss = cluster.slowed(functools.partial(problem.loss, shapes=shapes), args)
        train, hooks = graph(args, center, global_step, batches.get_next, loss)
        evaluation = problem.evaluation(center.as_tensor(), data, shapes)

    # A session waits for the tasks that pass its filters, not for other workers. The
    # saver is not sharded: the chief writes all, and no directory need be shared.
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    protocol = cluster.Protocol(args, server.target, config)
    scaffold = tf.train.Scaffold(
        ready_for_local_init_op=protocol.ready(),
        local_init_op=tf.group(tf.local_variables_initializer(), batches.initializer),
        local_init_feed_dict=feed,
        saver=tf.train.Saver(),
    )
    log = cluster.Log(args, start.shape.num_elements(), evaluation)
    options = dict(
        master=server.target,
        is_chief=me == 0,
        config=config,
        scaffold=scaffold,
        hooks=[protocol.hook(), *hooks],
        checkpoint_dir=args.logdir,
        save_checkpoint_steps=max(1, args.steps // 10),
        stop_grace_period_secs=1,
    )
    with protocol, tf.train.MonitoredTrainingSession(**options) as session:

        def rounds(step_context):
            """A few rounds, each one bare call: the hooks look in between."""
            one_round = step_context.session.make_callable(train)
            with cluster.bare_calls():
                for _ in range(cluster.HOOKS_EVERY):
                    if log.round(one_round()) >= args.steps:
                        break

        while not protocol.finished(session, log):
            session.run_step_fn(rounds)
            log.draw(session)
        log.write_result(session, protocol.reports)


if __name__ == "__main__":
    cluster.run(main)
