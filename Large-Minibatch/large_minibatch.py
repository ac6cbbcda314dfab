"""Large-Minibatch: N workers use N times the learning rate, after a warm-up.

    worker  as in Ring-All-Reduce; all know the global step t, so all have the same rate

        k := N B / n                                  (batch of all, in batches of n)
        η_t := η (1 + (k − 1) min(1, (t + 1) / W))    (worker: W updates of warm-up)
        w ← w − η_t (1/N) ∑ g_k                       (worker, the same on every one)

Differs from Ring-All-Reduce: the rate is η_t instead of η.
Paper: Goyal, Dollár, Girshick, Noordhuis, Wesolowski, Kyrola, Tulloch, Jia, He,
Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, arXiv 1706.02677,
linear scaling rule and gradual warm-up (sections 2.1 and 2.2).
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
    parser = flags.parser("Large-Minibatch", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    slow.add_flag(parser)
    membership.add_flag(parser)
    add = parser.add_argument
    add("--scaling", choices=["none", "linear"], default="linear", help="of η, with k")
    add("--warmup_steps", type=flags.natural, default=100, help="W, updates until k η")
    add(
        "--reference_batch",
        type=flags.positive_int,
        help="n, examples of the batch that η is for (if not given: one worker's)",
    )
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share beside the center variable: here nothing."""


def rate(args, t):
    """Returns η_t, a scalar, of the update that is made after `t` (scalar) others."""
    if args.scaling == "none":
        return args.learning_rate
    batch = len(args.worker_hosts) * args.batch_size
    k = batch / (args.reference_batch or args.batch_size)
    done = tf.minimum(tf.cast(t + 1, tf.float32) / max(1, args.warmup_steps), 1.0)
    return args.learning_rate * (1.0 + (k - 1.0) * done)


def graph(args, center, stats, ring, shared, batch, loss, last):
    """Builds one round, from read to update, that begins after the `last` one.

    `stats` are the counters on the chief, `ring` is that of all workers, `shared` is
    what `state` returned, `batch()` a fresh mini-batch, `loss(w, batch)` its scalar
    loss at w [P].
    """
    # t, before this round is counted, then w   (on this worker)
    step = stats.read_step(after=last.update)
    with tf.name_scope("read"), tf.control_dependencies([step]):
        weights = center.read_value()

    # g_k := ∇ loss(w; mini-batch of worker k)   (worker: a bucket of layers at a time)
    with tf.name_scope("gradient"):
        value = loss(weights, batch())
        buckets = ring.gradients(value, weights)

    # mean := (1/N) ∑ g_k   (worker → worker → ..., until every one has it)
    with tf.name_scope("all_reduce"):
        mean = tf.concat([ring.mean(bucket) for bucket in buckets], axis=0)
        counted = stats.count(mean, args.batch_size)

    # w ← w − η_t mean   (worker: the same on every one)
    with tf.name_scope("update"):
        update = center.assign_sub(rate(args, step) * mean, read_value=False)
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
