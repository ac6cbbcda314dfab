"""DiLoCo: Local-SGD with AdamW on each worker, momentum on the mean change of weights.

    worker  takes T inner steps on its own weights x; then all workers take one outer
            step, by the mean of what they have moved

        x ← AdamW(x; ∇ loss(x; a fresh mini-batch))   (worker, T times from x = w)
        Δ := (1/N) ∑ (w − x_k)                        (all workers, in 2 (N − 1) steps)
        u ← μ u + Δ,  w ← w − η_o (Δ + μ u),  x ← w   (worker, the same on every one)

Differs from Local-SGD: an outer optimizer takes the mean movement as its gradient.
Paper: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language
Models, 2023, arXiv 2311.08105, Algorithm 1. With --fragments the workers exchange w
piece by piece, with --overlap while they go on: x ← α x + (1 − α) w, o steps after Δ
was sent. Douillard et al., Streaming DiLoCo, 2025, arXiv 2501.18512.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import (
    flags,
    fragments,
    lockstep,
    membership,
    peers,
    rounds,
    run,
    task,
)
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.lockstep import Stats
from cluster.ring import Ring
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("DiLoCo", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    slow.add_flag(parser)
    membership.add_flag(parser)
    add = parser.add_argument
    add("--window", type=flags.positive_int, default=50, help="T, inner steps a round")
    add("--weight_decay", type=flags.fraction, default=0.1, help="λ, decay of AdamW")
    add("--outer_learning_rate", type=flags.positive, default=0.7, help="η_o, outer η")
    add("--momentum", type=flags.fraction, default=0.9, help="μ, outer momentum")
    add(
        "--fragments", type=flags.positive_int, default=1, help="F, pieces of the model"
    )
    add("--overlap", type=flags.natural, default=0, help="o, steps during an exchange")
    add("--mix", type=flags.fraction, help="α, part of x that stays (0.5 if o > 0)")
    parser.set_defaults(steps=40, learning_rate=0.001)
    args = flags.parse(parser, argv)
    if args.window % args.fragments:
        task.fail(f"--window {args.window}: not a multiple of --fragments")
    if args.overlap >= args.window // args.fragments:
        task.fail(f"--overlap {args.overlap}: two fragments would be on their way")
    args.mix = (0.5 if args.overlap else 0.0) if args.mix is None else args.mix
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns this worker's own x, m, v, t, never saved, and u, on all the same."""
    own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    zeros = tf.zeros(center.shape)
    start = dict(x=center.read_value(), m=zeros, v=zeros, t=0.0)
    mine = [tf.get_variable(k, initializer=v, **own) for k, v in start.items()]
    return mine, tf.get_variable("u", initializer=zeros, trainable=False)


def adamw(args, x, m, v, t, g):
    """Returns x, m, v and t after a step. Loshchilov, Hutter, arXiv 1711.05101."""
    t, b_1, b_2, epsilon = t + 1, 0.9, 0.95, 1e-8
    m = b_1 * m + (1 - b_1) * g
    v = b_2 * v + (1 - b_2) * g * g
    move = m / (1 - b_1**t) / (tf.sqrt(v / (1 - b_2**t)) + epsilon)
    return x - args.learning_rate * (move + args.weight_decay * x), m, v, t


def graph(args, center, stats, ring, shared, batch, loss, last):
    """Builds one round, from read to update, that begins after the `last` one.

    `stats` are the counters on the chief, `ring` is that of all workers, `shared` is
    what `state` returned, `batch()` a fresh mini-batch, `loss(w, batch)` its scalar
    loss at w [P].
    """
    mine, momentum = shared
    after = [*last.update, *last.local]
    pieces = fragments.Fragments(center.shape.num_elements(), args.fragments)

    # w, u   (on this worker, as on all), x, m, v, t   (its own), f := whose turn it is
    with tf.name_scope("read"), tf.control_dependencies(after):
        weights, u = center.read_value(), momentum.read_value()
        x, *slots = [variable.read_value() for variable in mine]
        f = pieces.turn(stats.read_step())

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def inner_step(i, x, m, v, t, _):
        # g := ∇ loss(x; a fresh mini-batch)   (worker)
        value = loss(x, batch())
        gradient = rounds.gradient(value, x)
        # x ← AdamW(x; g)
        return i + 1, *adamw(args, x, m, v, t, gradient), value

    def inner_steps(count, *begin):
        # Not before x is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies(begin[:1]):
            zero = tf.constant(0)
        return tf.while_loop(
            lambda i, *_: i < count, inner_step, (zero, *begin), parallel_iterations=1
        )[1:]

    with tf.name_scope("gradient"):
        # T / F, of which o are made while the fragment before is on its way.
        steps = args.window // args.fragments - args.overlap
        if args.overlap:  # t is 0: nothing is on its way yet
            steps += tf.where(tf.equal(slots[-1], 0), args.overlap, 0)
        x, *slots, value = inner_steps(steps, x, *slots, 0.0)

    # Δ := (1/N) ∑ (w − x_k), all of fragment f   (worker → worker → ...)
    with tf.name_scope("all_reduce"):
        delta = ring.mean(pieces.get(weights, f) - pieces.get(x, f))
        counted = stats.count(delta, (steps + args.overlap) * args.batch_size)

    # o steps more, while Δ is on its way   (worker)
    if args.overlap:
        with tf.name_scope("overlap"):
            x, *slots, value = inner_steps(args.overlap, x, *slots, value)

    # u ← μ u + Δ,  w ← w − η_o (Δ + μ u),  x ← w + α (x − w), of fragment f   (worker)
    with tf.name_scope("update"):
        new = args.momentum * pieces.get(u, f) + delta
        move = args.outer_learning_rate * (delta + args.momentum * new)
        moved = pieces.get(weights, f) - move
        update = [
            momentum.assign(pieces.put(u, f, new), read_value=False),
            center.assign(pieces.put(weights, f, moved), read_value=False),
        ]
        mixed = moved + args.mix * (pieces.get(x, f) - moved)
        pairs = zip(mine, [pieces.put(x, f, mixed), *slots], strict=True)
        local = [variable.assign(value, read_value=False) for variable, value in pairs]
    return rounds.Round(value, counted, [*update, counted.packed], local)


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
