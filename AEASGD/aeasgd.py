"""AEASGD: asynchronous elastic averaging, workers on a spring to the center variable.

    ps      holds the center variable w, which the elastic differences pull along
    worker  keeps its own weights x, and exchanges with w every T steps

        E := α (x − w)                                   (worker: pull, α := β / N)
        w ← w + E                                        (ps: push)
        x ← x − E − η ∇ loss(x; a fresh mini-batch)      (worker)
        T − 1 times: x ← x − η ∇ loss(x; a fresh mini-batch)

Differs from DOWNPOUR-Easy: what is pushed is the elastic difference, and the local
weights live on: a pull never overwrites them.
Paper: Zhang, Choromanska, LeCun, Deep learning with Elastic Averaging SGD, NIPS 2015,
arXiv 1412.6651, Algorithm 1.
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
    add("--window", type=cluster.positive_int, default=16, help="T, local steps")
    add("--beta", type=cluster.fraction, default=0.9, help="β; moving rate α = β / N")
    parser.set_defaults(learning_rate=0.4, steps=1000)
    return cluster.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, center, global_step, batch, loss):
    """Returns the tensors of one round, and the hooks its session needs.

    `batch()` is a fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    pulled = center.as_tensor()
    with tf.device(global_step.device):
        seen = global_step.read_value()

    # x is this worker's own variable: never saved, shared or reset; it starts as w
    with tf.device(pulled.device):
        scope = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        x = tf.get_variable("x", initializer=pulled, **scope)

    # E := α (x − w)   (worker)
    before = x.read_value()
    elastic = args.beta / len(args.worker_hosts) * (before - pulled)

    # The loop builds batch and loss in its body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, elastic, _):
        # g := ∇ loss(x; a fresh mini-batch), at the x before the exchange   (worker)
        value = loss(local, batch())
        (gradient,) = tf.gradients(value, local)
        # x ← x − E − η g, and from the second step on without E
        local = local - elastic - args.learning_rate * gradient
        return i + 1, local, tf.zeros_like(elastic), value

    start = 0, before, elastic, 0.0
    _, after, _, value = tf.while_loop(
        lambda i, *_: i < args.window, local_step, start, parallel_iterations=1
    )

    # staleness := updates applied between pull and push   (ps 0 counts)
    pushed = cluster.send(elastic, center)
    number = cluster.next_update(global_step, args.steps, after=[pushed[0], seen])
    with tf.device(global_step.device):
        counts = tf.stack([number + 1, number - seen])  # one tensor, one message

    # w ← w + E   (ps)
    push = [x.assign(after, read_value=False)]
    for piece, g in zip(center, pushed, strict=True):
        with tf.device(piece.device), tf.control_dependencies([number]):
            push.append(piece.assign_add(g, read_value=False))
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
