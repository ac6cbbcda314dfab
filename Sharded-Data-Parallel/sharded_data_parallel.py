"""Sharded-Data-Parallel: each worker keeps a part of weights, gradient and optimizer.

    worker k  holds part k of Adam's m and v; of the mean gradient, with --stage 2; and
              of w itself, with --stage 3, but for the layers that it is busy with

        g_k := ∇ loss(w; mini-batch of worker k)          (worker)
        mean := (1/N) ∑ g_k, part k of it                 (reduce-scatter, N − 1 parts)
        m, v, w ← Adam(m, v, w; mean), part k of each     (worker k)
        w := all parts                                    (all-gather, N − 1 parts)

Differs from Ring-All-Reduce: between the two halves of an all-reduce each worker
updates its part of w, by Adam, and needs no other part of the optimizer's state.
Paper: Rajbhandari, Rasley, Ruwase, He, ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models, 2020, arXiv 1910.02054, sections 5 and 7; stage 3 layer by
layer as in Zhao et al., PyTorch FSDP, 2023, arXiv 2304.11277.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import flags, lockstep, membership, rounds, run, task
from cluster import sharded as peers
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.lockstep import Stats
from cluster.shards import Ring
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Sharded-Data-Parallel", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    slow.add_flag(parser)
    membership.add_flag(parser)
    parts = "in parts: 1 m and v, 2 the gradient too, 3 w too; 0 nothing"
    parser.add_argument("--stage", type=int, choices=range(4), default=3, help=parts)
    parser.set_defaults(learning_rate=0.001)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns Adam's m and v, of this worker's part of w: in stage 0 of all of it."""
    return center.shard("m"), center.shard("v")


def adam(args, w, m, v, t, g):
    """Returns the operation of step t ≥ 1. Kingma, Ba, arXiv 1412.6980, section 2."""
    # m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²
    # w ← w − η √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)
    b_1, b_2, t = 0.9, 0.999, tf.cast(t, tf.float32)
    variables = dict(var=w.handle, m=m.handle, v=v.handle, grad=g)
    rates = dict(lr=args.learning_rate, beta1=b_1, beta2=b_2, epsilon=1e-8)
    powers = dict(beta1_power=b_1**t, beta2_power=b_2**t)
    return tf.raw_ops.ResourceApplyAdam(**variables, **rates, **powers)


def graph(args, center, stats, ring, shared, batch, loss, last):
    """Builds one round, from read to update, that begins after the `last` one.

    `stats` are the counters on the chief, `ring` is that of all workers, `shared` is
    what `state` returned, `batch()` a fresh mini-batch, `loss(w, batch)` its scalar
    loss at w [P].
    """
    # t, before this round is counted; w := all parts   (all-gather; in stage 3 it comes
    #        later, unit by unit, and in stage 0 each worker has it)
    step = stats.read_step(after=last.update)
    with tf.name_scope("read"), tf.control_dependencies([step]):
        held = center.read()

    # g_k := ∇ loss(w; mini-batch of worker k)   (worker: unit by unit from stage 2 on;
    #        in stage 3 all gather a unit of w before its forward and its backward pass)
    # mean := (1/N) ∑ g_k, this worker's part of each unit   (reduce-scatter)
    with tf.name_scope("gradient"):
        # `loss` as `center` has planned it, and as slow.
        value, parts = slow.slowed(center.gradients, args)(held, batch())
        mean = tf.concat(parts, axis=0)

    # m, v, w ← Adam(m, v, w; mean)   (worker k: part k; in stage 0 all of it)
    with tf.name_scope("update"):
        update = adam(args, center.part, *shared, step + 1, mean)
        counted = stats.count(mean, args.batch_size, center.sent())
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
