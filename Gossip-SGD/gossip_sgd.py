"""Gossip-SGD: without a ps, each worker averages its weights with one random neighbour.

    worker  has a replica x_k of the weights; computes a gradient at x_k, averages x_k
            with the replica x_j of a neighbour, and takes its own step

        g := ∇ loss(x̂; mini-batch), x̂ a copy of x_k    (worker k)
        x_k, x_j ← (x_k + x_j) / 2                      (k and j, while g is computed)
        x_k ← x_k − η g                                 (worker k, wherever x_k is now)

    Neighbours are always a worker with an even number and one with an odd number. The
    even worker starts the average of the second line, the odd worker only answers.
    chief   also numbers the updates, and averages all replicas for test and checkpoint

Differs from HogWild: every worker has a replica, instead of a center variable on a ps.
Paper: Lian, Zhang, Zhang, Liu, Asynchronous Decentralized Parallel Stochastic Gradient
Descent (AD-PSGD), ICML 2018, arXiv 1710.06952, Algorithm 1.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import threading

from cluster import board, flags, gossip, neighbours, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Gossip-SGD", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    slow.add_flag(parser)
    add = parser.add_argument
    add("--graph", choices=gossip.GRAPHS, default="ring", help="who is whose neighbour")
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds work on: the replica x_k, on this worker."""
    return gossip.Replica(args, center)


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from read to update, that begins after the `last` one.

    `stats` are the counters on the chief, `shared` is what `state` returned, `batch()`
    a fresh mini-batch, `loss(x, batch)` its scalar loss at x [P].
    """
    replica = shared

    # x̂ := x_k   (worker k; seen := updates of all so far, stays on the chief)
    with tf.name_scope("read"):
        copy = replica.read(after=last.update)
        seen = stats.read_step(after=last.local)

    # g := ∇ loss(x̂; mini-batch)   (worker k)
    with tf.name_scope("gradient"):
        value = loss(copy, batch())
        gradient = rounds.gradient(value, copy)

    # x_k, x_j ← (x_k + x_j) / 2   (worker k → j → k, meanwhile; if k is even)
    with tf.name_scope("average"):
        averaged = replica.average(copy)

    # The chief gives the update its number, when both are there.
    # staleness := that number − seen: updates of all since this worker's last one
    with tf.name_scope("number"), tf.control_dependencies(averaged):
        ready, sent = tf.identity(gradient), replica.sent()
        counted = stats.count([ready], args.batch_size, (), seen, (sent, sent))

    # x_k ← x_k − η g   (worker k: by now j, or others, may have moved x_k)
    with tf.name_scope("update"):

        def rule(x):
            return x.assign_sub(args.learning_rate * gradient, read_value=False)

        update = replica.update(averaged, counted.applied, rule)
    return rounds.Round(value, counted, update, [counted.packed])


# --- Workers -----------------------------------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    data = task.begin(args, problem)

    # Cluster and server: every worker knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name="worker", task_index=me)
    if me == 0:  # the chief knows who is there, in place of a ps
        keep = threading.Thread(target=board.serve, args=(server, args), daemon=True)
        keep.start()

    # Placement: each worker has its replica, the chief their average and the stats too.
    with tf.device(args.device):
        learning = contract.build(problem, data, args, me, workers)
        with tf.device("/job:worker/task:0"):
            center = tf.get_variable("center", initializer=learning.start)
        stats = Stats(args)
        shared = state(args, center, stats)
        loss, batch = slow.slowed(learning.loss, args), rounds.in_turn(learning.batch)
        calls = rounds.Calls(
            lambda last: graph(args, center, stats, shared, batch, loss, last)
        )
        test = learning.test(center.read_value())
    training = run.Run(args, server, learning, stats, calls, test)
    near = neighbours.Neighbours(training, shared, center)

    # Begin: the chief initialises w, or restores it, and each replica begins there.
    with training:
        # Loop: a call is up to ten rounds, with the neighbours that are there. If the
        # chief is lost in here, all begin again from the last checkpoint.
        while training.left > 0:
            with training.recovering():
                losses, counts = near.make(training.session, training.left)
                training.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: all workers report; the chief averages the replicas, and tests that.
        training.end()


if __name__ == "__main__":
    task.run(main)
