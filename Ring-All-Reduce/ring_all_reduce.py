"""Ring-All-Reduce: without a ps, the workers sum their gradients in a ring.

    worker  holds a copy of the center variable w, with the same bits as all others;
            sends pieces of its gradient to the next worker around a ring

        g_k := ∇ loss(w; mini-batch of worker k)      (worker)
        mean := (1/N) ∑ g_k                           (all workers, in 2 (N − 1) steps)
        w ← w − η mean                                (worker, the same on every one)

Differs from Synchronous-SGD: the update is the same, but there is no ps.
Paper: Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, JPDC 69(2), 2009; in deep learning: Gibiansky 2017, and Horovod, Sergeev,
Del Balso 2018, arXiv 1802.05799.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import flags, lockstep, membership, peers, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.lockstep import Stats
from cluster.ring import Ring
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Ring-All-Reduce", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    slow.add_flag(parser)
    membership.add_flag(parser)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share beside the center variable: here nothing."""


def graph(args, center, stats, ring, shared, batch, loss, last):
    """Builds one round, from read to update, that begins after the `last` one.

    `stats` are the counters on the chief, `ring` is that of all workers, `shared` is
    what `state` returned, `batch()` a fresh mini-batch, `loss(w, batch)` its scalar
    loss at w [P].
    """
    # w   (on this worker)
    with tf.name_scope("read"), tf.control_dependencies(last.update):
        weights = center.read_value()

    # g_k := ∇ loss(w; mini-batch of worker k)   (worker: a bucket of layers at a time)
    with tf.name_scope("gradient"):
        value = loss(weights, batch())
        buckets = ring.gradients(value, weights)

    # mean := (1/N) ∑ g_k   (worker → worker → ..., until every one has it)
    with tf.name_scope("all_reduce"):
        mean = tf.concat([ring.mean(bucket) for bucket in buckets], axis=0)
        counted = stats.count(mean, args.batch_size)

    # w ← w − η mean   (worker: the same on every one)
    with tf.name_scope("update"):
        update = center.assign_sub(args.learning_rate * mean, read_value=False)
    return rounds.Round(value, counted, [update, counted.packed])


# --- Workers -----------------------------------------------------------------


def main():
    args = parse_args()
    data = task.begin(args, problem)
    membership.gather(args)
    me, workers = args.task_index, len(args.worker_hosts)

    # Cluster and server: every worker knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"worker": args.worker_hosts})
    config = Ring.config(me)
    server = tf.train.Server(spec, job_name="worker", task_index=me, config=config)
    peers.serve(server, args)  # the chief knows who is there, in place of a ps

    # Placement: every worker has the whole model, and builds the same graph as others.
    with tf.device(args.device):
        learning = contract.build(problem, data, args, me, workers)
        ring = Ring(args)
        stats, center = Stats(args), ring.center(learning)
        shared = state(args, center, stats)
        loss, batch = slow.slowed(learning.loss, args), rounds.in_turn(learning.batch)
        calls = lockstep.Calls(
            lambda last: graph(args, center, stats, ring, shared, batch, loss, last),
            ring,
        )
        test = learning.test(center.read_value())
        training = run.Run(args, server, learning, stats, calls, test)
        group = peers.Peers(training, ring, calls)

    # Begin: the chief initialises w, or restores it, and all get it from there.
    with training:
        group.begin()
        # Loop: a call is up to ten rounds. If a worker is lost in here, all begin
        # again, and go on from the last checkpoint.
        while training.left > 0:
            with group.together():
                losses, counts = calls.make(training.session, training.left)
                group.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: all compare and report; the chief tests w and writes result.json.
        group.end()


if __name__ == "__main__":
    task.run(main)
