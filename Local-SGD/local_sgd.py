"""Local-SGD: each worker trains alone for T steps, then all average their weights.

    worker  takes T steps of SGD from w on its own mini-batches; then all workers
            average what they have

        g := ∇ loss(local; a fresh mini-batch), local ← local − η g   (worker, T times)
        w ← (1/N) ∑ local_k                           (all workers, in 2 (N − 1) steps)

Differs from Ring-All-Reduce: the workers average their weights after T steps, not their
gradients in every step.
Paper: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019, arXiv
1805.09767, Algorithm 1. With --local_after it is the post-local SGD of Lin, Stich,
Patel, Jaggi, Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020, arXiv 1808.07217.
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
    parser = flags.parser("Local-SGD", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    slow.add_flag(parser)
    membership.add_flag(parser)
    add = parser.add_argument
    add("--window", type=flags.positive_int, default=8, help="T, local steps a round")
    add(
        "--local_after",
        type=flags.natural,
        default=0,
        help="global step from which on a round has T local steps; before that, one",
    )
    parser.set_defaults(steps=500)
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
        early = stats.read_step() < args.local_after
        window = tf.where(early, 1, args.window)

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, _):
        # g := ∇ loss(local; a fresh mini-batch)   (worker)
        value = loss(local, batch())
        gradient = rounds.gradient(value, local)
        # local ← local − η g
        return i + 1, local - args.learning_rate * gradient, value

    with tf.name_scope("gradient"):
        # Not before w is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies([weights]):
            zero = tf.constant(0)
        begin = zero, weights, 0.0
        _, local, value = tf.while_loop(
            lambda i, *_: i < window, local_step, begin, parallel_iterations=1
        )

    # mean := (1/N) ∑ local_k   (worker → worker → ..., until every one has it)
    with tf.name_scope("all_reduce"):
        mean = ring.mean(local)
        counted = stats.count(mean, window * args.batch_size)

    # w ← mean   (worker: the same on every one)
    with tf.name_scope("update"):
        update = center.assign(mean, read_value=False)
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
