"""SAGN: synchronous accumulated gradient normalization, AGN's window under a barrier.

    ps      holds the center variable w, collects N pushes of a step, drops late ones
    worker  waits for its token of step t, pulls w, pushes the mean of T gradients

        g := ∇ loss(local; a fresh mini-batch), local ← local − η g   (worker, T times)
        w ← w − η_s (1/N) ∑ (1/T) ∑ g                 (ps, of the first N of step t)

Differs from Synchronous-SGD: a push is the mean of the gradients of AGN's window.
Paper: none; Stich, Local SGD Converges Fast, 2019, arXiv 1805.09767, Algorithm 1.
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
    add("--replicas_to_aggregate", type=cluster.positive_int, help="N (None: all)")
    add("--window", type=cluster.positive_int, default=5, help="T, local steps a round")
    add("--server_learning_rate", type=cluster.positive, default=0.5, help="η_s")
    args = cluster.parse(parser, argv)
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        cluster.fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    return args


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, center, global_step, batch, loss):
    """Returns the tensors of one round, and the hooks its session needs.

    `batch()` is a fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # t := my newest token   (ps 0: a queue per worker, nobody takes two of a step)
    with tf.device(global_step.device):
        names = [f"tokens_{worker}" for worker in range(len(args.worker_hosts))]
        queues = [tf.FIFOQueue(-1, tf.int64, [[]], shared_name=name) for name in names]
        mine = queues[args.task_index]
        t = tf.reduce_max(mine.dequeue_many(tf.maximum(mine.size(), 1)))
        first = mine.enqueue(global_step.read_value())
        counts = [t + 1]
    with tf.control_dependencies([t]):
        # Not as_tensor(): that is a read of its own, which would not wait.
        pulled = tf.concat([piece.read_value() for piece in center], axis=0)

    # Batch and loss are built in the loop's body: every step has a fresh one of each.
    def local_step(i, local, total, _):
        # g := ∇ loss(local; a fresh mini-batch), local ← local − η g   (worker)
        value = loss(local, batch())
        (gradient,) = tf.gradients(value, local)
        local = local - args.learning_rate * gradient
        return i + 1, local, total + gradient, value

    start = 0, pulled, tf.zeros_like(pulled), 0.0
    _, _, total, value = tf.while_loop(
        lambda i, *_: i < args.window, local_step, start, parallel_iterations=1
    )

    # w ← w − η_s (1/N) ∑ total_k / T   (ps: of the first N of step t)
    push, update = [], []
    for piece, g in zip(center, cluster.send(total / args.window, center), strict=True):
        with tf.device(piece.device):
            sum_k = tf.ConditionalAccumulator(tf.float32, piece.shape, piece.op.name)
            push.append(sum_k.apply_grad(g, local_step=t))
            with tf.control_dependencies([sum_k.set_global_step(global_step)]):
                mean = sum_k.take_grad(args.replicas_to_aggregate)
            move = args.server_learning_rate * mean
            update.append(piece.assign_sub(move, read_value=False))

    # Chief: a thread makes the updates and opens step after step. OutOfRangeError after
    # the last: the thread closes the queues, which ends the rounds of the workers.
    if args.task_index == 0:
        with tf.device(global_step.device):
            opened = tf.get_local_variable("opened", initializer=global_step + 1)
            with tf.control_dependencies(update):
                made = global_step.assign_add(1, read_value=False)
            step = cluster.next_update(opened, args.steps, after=[made])
            tokens = tf.group([queue.enqueue(step) for queue in queues])
            close = tf.group([queue.close() for queue in queues])
        ends = tf.errors.OutOfRangeError, tf.errors.CancelledError
        runner = tf.train.QueueRunner(mine, [tokens], close, None, ends)
        tf.train.add_queue_runner(runner)
    # A worker that starts, also after a crash, joins in the step that it finds.
    join = tf.train.SessionRunHook()
    join.after_create_session = lambda session, coord: session.run(first)
    return {"loss": value, "counts": counts, "push": push}, [join]


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
