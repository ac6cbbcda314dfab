"""Synchronous-SGD: the ps waits for N gradients and applies their mean.

    ps      holds the center variable w, takes N gradients for a step, drops late ones
    worker  waits for its token of step t, pulls w, pushes its gradient for step t

        g_k := ∇ loss(w; mini-batch of worker k)      (worker)
        w ← w − η (1/N) ∑ g_k                         (ps, of the first N of step t)

Differs from HogWild: an update is the mean of N gradients, all computed at the same w.
A gradient that comes too late is dropped.
Paper: Chen, Pan, Monga, Bengio, Jozefowicz, Revisiting Distributed Synchronous SGD,
2016, arXiv 1604.00981, Algorithms 3 and 4. Workers beyond N are backup workers.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import board, flags, rounds, run, sync, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Synchronous-SGD", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--replicas_to_aggregate", type=flags.positive_int, help="N, all if not given")
    args = flags.parse(parser, argv)
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        task.fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share: the barrier on ps 0, with a mean on each ps."""
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

    # g_k := ∇ loss(w; mini-batch of worker k)   (worker)
    with tf.name_scope("gradient"):
        value = loss(pulled, batch())
        gradient = rounds.gradient(value, pulled)

    # g_k   (worker → ps, where ps 0 takes the first N of step t)
    with tf.name_scope("push"):
        pushed = rounds.push(gradient, center)
        counted = step.offer(t, pushed, args.batch_size, pulled)

    # w ← w − η mean   (ps: each for its piece, once it has the mean of all N)
    with tf.name_scope("update"):

        def rule(w, mean):
            return w.assign_sub(args.learning_rate * mean, read_value=False)

        update = step.update(center, pushed, rule)
    return rounds.Round(value, counted, update)


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    data = task.begin(args, problem)

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me)
    if args.job_name == "ps":
        return board.serve(server, args)  # until the chief says that the run is over

    # Placement: every worker builds the same graph (between-graph replication). The
    # setter puts variables on the ps, in turn, and all the rest on this worker.
    setter = tf.train.replica_device_setter(cluster=spec, worker_device=args.device)
    with tf.device(setter):
        learning = contract.build(problem, data, args, me, workers)
        pieces = tf.fixed_size_partitioner(len(args.ps_hosts))  # one on each ps
        center = tf.get_variable(
            "center", initializer=learning.start, partitioner=pieces
        )
        stats = Stats(args)
        shared = state(args, center, stats)
        loss, batch = slow.slowed(learning.loss, args), rounds.in_turn(learning.batch)
        calls = rounds.Calls(
            lambda last: graph(args, center, stats, shared, batch, loss, last)
        )
        test = learning.test(center.as_tensor())
    training = run.Run(args, server, learning, stats, calls, test)

    # Begin: the chief initialises w, or restores it; the others wait for that.
    with training:
        # Loop: a call is up to ten rounds. If a ps is lost in here, all go on from the
        # last checkpoint.
        while training.left > 0:
            with training.recovering():
                losses, counts = calls.make(training.session, training.left)
                training.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: all workers report; the chief tests w and writes result.json.
        training.end()


if __name__ == "__main__":
    task.run(main)
