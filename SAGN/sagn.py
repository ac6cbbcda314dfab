"""SAGN: AGN, but the ps waits for the workers before each update.

    ps      holds the center variable w, adds up N pushes for a step, drops late ones
    worker  waits for its token of step t, pulls w, pushes the mean of T gradients

        g := ∇ loss(local; a fresh mini-batch), local ← local − η g   (worker, T times)
        w ← w − η_s (1/N) ∑ (1/T) ∑ g                 (ps, of the first N of step t)

Differs from Synchronous-SGD: a push is the mean of the gradients of T local steps.
Paper: none; Stich, Local SGD Converges Fast, 2019, arXiv 1805.09767, Algorithm 1.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import contract, flags, heartbeat, rounds, run, sync, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import problem

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("SAGN", __doc__)
    flags.add_cluster_flags(parser)
    add = parser.add_argument
    add("--replicas_to_aggregate", type=flags.positive_int, help="N, all if not given")
    add("--window", type=flags.positive_int, default=5, help="T, local steps a round")
    add("--server_learning_rate", type=flags.positive, default=0.5, help="η_s on a ps")
    args = flags.parse(parser, argv)
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        task.fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share: the barrier on ps 0, with a sum on each ps."""
    return sync.Barrier(args, center, stats)


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    step = shared

    # t := my newest token   (ps 0), then w   (ps → worker)
    with tf.name_scope("pull"):
        t = step.wait(after=last.update)
        pulled = rounds.pull(center, after=[t] * len(args.ps_hosts))

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, total, _):
        # g := ∇ loss(local; a fresh mini-batch)   (worker)
        value = loss(local, batch())
        gradient = rounds.gradient(value, local)
        # local ← local − η g,  total ← total + g
        local = local - args.learning_rate * gradient
        return i + 1, local, total + gradient, value

    with tf.name_scope("gradient"):
        # Not before w is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies([pulled]):
            zero = tf.constant(0)
        begin = zero, pulled, rounds.zeros(pulled), 0.0
        _, _, total, value = tf.while_loop(
            lambda i, *_: i < args.window, local_step, begin, parallel_iterations=1
        )

    # m_k := total / T   (worker → ps, where ps 0 takes the first N of step t)
    with tf.name_scope("push"):
        pushed = rounds.push(total / args.window, center)
        counted = step.offer(t, pushed, args.window * args.batch_size, pulled)

    with tf.name_scope("update"):
        # sum ← sum + m_k   (ps: each for its piece)
        def add(total, g):
            return total.assign_add(g, read_value=False)

        added = step.add(pushed, counted.applied, add)
        complete = step.complete(added, counted.applied)

        # w ← w − η_s (1/N) sum   (ps, when the sum has all N; the next begins at 0)
        def rule(w, total):
            mean = total.read_value() / args.replicas_to_aggregate
            return w.assign_sub(args.server_learning_rate * mean, read_value=False)

        update = step.move(center, complete, rule)
        opened = step.open_next(update, complete)
    return rounds.Round(value, counted, opened)


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    task.begin(args, problem)
    data = task.data(problem, args)

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me)
    if args.job_name == "ps":
        return heartbeat.serve(server, args)

    # Placement: every worker builds the same graph (between-graph replication). The
    # setter puts variables on the ps, in turn, and all the rest on this worker.
    device = f"/job:worker/task:{me}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=device)):
        learning = contract.build(problem, data, args, me, workers)
        pieces = tf.fixed_size_partitioner(len(args.ps_hosts))  # one on each ps
        center = tf.get_variable(
            "center", initializer=learning.start, partitioner=pieces
        )
        stats = Stats(args)
        shared = state(args, center, stats)
        loss, batch = rounds.slowed(learning.loss, args), rounds.in_turn(learning.batch)
        calls = rounds.Calls(
            lambda last: graph(args, center, stats, shared, batch, loss, last)
        )
        test = learning.test(center.as_tensor())

    # Session: it waits for the tasks that pass its filters, not for other workers.
    # When a ps was lost TensorFlow asks `training` for a new one.
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    training = run.Run(args, server.target, config, stats, learning, calls, test)
    with training, tf.train.MonitoredSession(session_creator=training) as session:
        # Loop: a step is about a second of rounds, then log, curves, checkpoint, end.
        while not training.over:
            session.run_step_fn(training.step)


if __name__ == "__main__":
    task.run(main)
