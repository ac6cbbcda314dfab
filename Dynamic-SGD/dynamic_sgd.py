"""Dynamic-SGD: a gradient that arrives late gets a smaller learning rate.

    ps      holds the center variable w, counts updates, scales each pushed gradient
    worker  pulls w, computes a gradient on a mini-batch of its data, pushes it

        g := ∇ loss(w_seen; mini-batch)     (worker, at the w that it pulled)
        τ := updates applied to w between this pull and this push      (ps 0)
        w ← w − η / (τ + 1) · g             (ps, at the w of the moment of the push)

Differs from HogWild: the ps divides the learning rate of an update by its staleness τ
plus 1. Only the ps knows τ exactly.
Paper: Jiang, Cui, Zhang, Yu, Heterogeneity-aware Distributed Parameter Servers, SIGMOD
2017. The rule for each push is as in Zhang, Gupta, Lian, Liu, 2015, arXiv 1511.05950.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import board, flags, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Dynamic-SGD", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    parser.set_defaults(learning_rate=0.4)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share beside the center variable: here nothing."""


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
    with tf.name_scope("pull"):
        pulled = rounds.pull(center, after=last.update)
        seen = stats.read_step(after=last.update[:1])

    # g := ∇ loss(w_seen; mini-batch)   (worker)
    with tf.name_scope("gradient"):
        value = loss(pulled, batch())
        gradient = rounds.gradient(value, pulled)

    # g   (worker → ps, where ps 0 gives the update its number)
    # τ := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(gradient, center)
        counted = stats.count(pushed, args.batch_size, pulled, seen)

    # w ← w − η / (τ + 1) · g   (ps: each for its piece of w)
    with tf.name_scope("update"):
        with tf.device(stats.device):
            rate = args.learning_rate / tf.cast(counted.staleness + 1, tf.float32)

        def rule(w, g):
            return w.assign_sub(rate * g, read_value=False)

        update = rounds.update(center, pushed, counted.applied, rule)
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
