"""Decoupled-DiLoCo: learners train on; the ps merges what K of them have, in turn.

    ps      holds the center variable w and a momentum u: together they are the syncer
    worker  is a learner: it takes inner steps on its own x, and never waits for another

        x ← AdamW(x; ∇ loss(x; a fresh mini-batch))   (worker; steps ← steps + 1)
        x[f]                                          (worker: its answer to merge t,
                                                       f = t mod F, every T / F steps)
        d_k := w[f] − x_k[f],  a_k := tokens² / steps   (ps, of all that have answered
        Δ := (∑ a ‖d‖ / ∑ a) φ(∑ a φ(d) / ∑ a)         when K have, and a grace is over)
        u[f] ← μ u[f] + Δ,  w[f] ← w[f] − η_o (Δ + μ u[f])   (ps)
        x[f] ← α x[f] + (1 − α) w[f],  steps[f] ← 0   (worker, when it sees the merge)

Differs from Async-DiLoCo: one outer step is for several learners, and of a fragment. A
learner keeps its x, and goes on while a merge is under way.
Paper: Douillard et al., Decoupled DiLoCo for Resilient Distributed Pre-training, 2026,
arXiv 2604.21428, after descriptions by others: see README.md. φ(v) := v / ‖v‖.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import atomic, board, flags, rounds, run, syncer, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Decoupled-DiLoCo", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add, ways = parser.add_argument, ("rda", "mean")
    add("--window", type=flags.positive_int, default=24, help="T, steps of a fragment")
    add("--fragments", type=flags.positive_int, default=4, help="F, pieces of w")
    add("--quorum", type=flags.positive_int, default=1, help="K, answers to a merge")
    add("--overlap", type=flags.natural, default=2, help="o, steps during an exchange")
    add("--grace", type=flags.not_negative, default=0.8, help="γ, wait of o steps, ≤ 1")
    add("--mix", type=flags.fraction, default=0.0, help="α, part of x that stays")
    add("--average", choices=ways, default=ways[0], help="how answers become one")
    add("--weight_decay", type=flags.fraction, default=0.1, help="λ, decay of AdamW")
    add("--outer_learning_rate", type=flags.positive, default=0.7, help="η_o, outer η")
    add("--momentum", type=flags.fraction, default=0.9, help="μ, outer momentum")
    parser.set_defaults(steps=320, learning_rate=0.001)
    args = flags.parse(parser, argv)
    if args.quorum > len(args.worker_hosts):
        task.fail(f"--quorum {args.quorum}: there are {len(args.worker_hosts)} workers")
    if args.window % (args.fragments * max(1, args.overlap)):
        task.fail(f"--window {args.window}: not a multiple of --fragments × --overlap")
    if args.grace > 1:
        task.fail(f"--grace {args.grace}: it is a part of --overlap, at most 1")
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns x, m, v, t and counts of this learner; on each ps u; the syncer."""
    own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    with tf.device(f"/job:worker/task:{stats.me}"):
        x = rounds.pull(center)
        start = dict(x=x, m=tf.zeros(x.shape), v=tf.zeros(x.shape), t=0.0)
        # Merges that it has seen: before the first it has to get all fragments.
        start |= dict(seen=tf.constant(-args.fragments, tf.int64))
        start |= dict(answered=tf.constant(-1, tf.int64))
        start |= dict(since=0, steps=tf.zeros([args.fragments], tf.int32))
        mine = [tf.get_variable(k, initializer=v, **own) for k, v in start.items()]
    outer = atomic.beside(center, "outer", rows=1)
    return mine, outer, syncer.Syncer(args, center, stats, grace)


def adamw(args, x, m, v, t, g):
    """Returns x, m, v and t after a step. Loshchilov, Hutter, arXiv 1711.05101."""
    t, b_1, b_2, epsilon = t + 1, 0.9, 0.95, 1e-8
    m = b_1 * m + (1 - b_1) * g
    v = b_2 * v + (1 - b_2) * g * g
    move = m / (1 - b_1**t) / (tf.sqrt(v / (1 - b_2**t)) + epsilon)
    return x - args.learning_rate * (move + args.weight_decay * x), m, v, t


def grace(args, step, quorum, sync):
    """Returns γ max(0, o step − quorum − sync), seconds that a merge waits for more.

    `step` is what an inner step takes, `quorum` the time from the first answer to the
    K-th, `sync` what a merge takes: so a learner has w when it has made o steps.
    """
    return args.grace * tf.maximum(args.overlap * step - quorum - sync, 0.0)


def average(args, d, a):
    """Returns one vector of the d_k [N, ..] with the weights a_k [N], of some 0.

    Radial-directional: the mean length, in the mean direction. The mean itself if the
    directions cancel.
    """
    a = a[:, None] / tf.reduce_sum(a)
    mean, length = tf.reduce_sum(a * d, axis=0), tf.norm(d, axis=1, keepdims=True)
    if args.average == "mean":
        return mean
    # Δ := (∑ a ‖d‖) φ(∑ a φ(d)), ∑ a = 1
    direction = tf.reduce_sum(a * tf.math.divide_no_nan(d, length), axis=0)
    norm, radius = tf.norm(direction), tf.reduce_sum(a * length)
    return tf.where_v2(norm > 1e-6, radius * direction / norm, mean)


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    mine, outer, merges = shared

    # x, m, v, t; merges seen, the last one answered; inner steps since then, and those
    # of each fragment since it came   (of this learner)
    with tf.name_scope("read"), tf.control_dependencies(last.local):
        x, *slots, seen, answered, since, steps = [one.read_value() for one in mine]

    # w[f] of the merges since then   (ps → worker)
    with tf.name_scope("pull"):
        # x[f] ← α x[f] + (1 − α) w[f],  steps[f] ← 0
        x, t, new, pulled = merges.pull(x, seen, args.mix, after=last.update)
        seen = tf.identity(t)
        # Who has no answer in the last merge begins its T / F steps anew.
        since = tf.where_v2((tf.size(new) > 0) & (answered < seen - 1), 0, since)
        steps = tf.tensor_scatter_nd_update(steps, new[:, None], tf.zeros_like(new))

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def inner_step(i, x, m, v, t, _):
        # g := ∇ loss(x; a fresh mini-batch)   (worker)
        value = loss(x, batch())
        gradient = rounds.gradient(value, x)
        # x ← AdamW(x; g)
        return i + 1, *adamw(args, x, m, v, t, gradient), value

    with tf.name_scope("gradient"):
        count = max(1, args.overlap)
        # Not before x is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies([x]):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            zero = tf.constant(0)
        begin = zero, x, *slots, 0.0
        _, after, *slots, value = tf.while_loop(
            lambda i, *_: i < count, inner_step, begin, parallel_iterations=1
        )
        with tf.control_dependencies([after]):
            seconds = (tf.timestamp() - began) / count

    # Is a merge to have x[f], of before the o steps, or after one?   (ps 0 → worker)
    with tf.name_scope("ask"):
        answer, ahead = (x, 0) if args.overlap else (after, 1)
        with tf.control_dependencies([answer]):
            every = args.window // args.fragments
            now, rows, made, told = merges.ask(since + ahead, steps + ahead, every)
        since = tf.where_v2(told[1] > 0, count - ahead, since + count)
        answered = tf.where_v2(told[1] > 0, told[0], answered)

    # x[f]   (worker → ps, where ps 0 says whether the merge is due)
    # staleness := merges of others in this round
    with tf.name_scope("push"):
        pushed = merges.rows(answer, told)
        with tf.device(stats.device):
            # a_k := tokens² / steps
            made = tf.cast(made, tf.float32)
            weight = tf.math.divide_no_nan((args.batch_size * made) ** 2, made)
        taken = merges.answer(now, rows, pushed, weight)
        examples = count * args.batch_size
        counted = merges.claim(t, rows, taken, examples, seconds, pulled)

    # u[f] ← μ u[f] + Δ,  w[f] ← w[f] − η_o (Δ + μ u[f])   (ps, if the merge is due)
    with tf.name_scope("update"):

        def rule(w, part, f, d, a):
            delta, u = average(args, d, a), outer[w.device].read_value()[0]
            new = args.momentum * part.get(u, f) + delta
            move = args.outer_learning_rate * (delta + args.momentum * new)
            moved = part.get(w.read_value(), f) - move
            return [
                w.assign(part.put(w.read_value(), f, moved), read_value=False),
                outer[w.device].assign([part.put(u, f, new)], read_value=False),
            ]

        update = merges.merge(counted, pushed, rule)

    values = [after, *slots, seen, answered, since, steps + count]
    local = [v.assign(s, read_value=False) for v, s in zip(mine, values, strict=True)]
    return rounds.Round(value, counted, update, local)


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
