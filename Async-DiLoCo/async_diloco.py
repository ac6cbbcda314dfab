"""Async-DiLoCo: DiLoCo, but nobody waits: the ps adds momentum once in N pushes.

    ps      holds the center variable w, a momentum m, the sum D of the last pushes
    worker  pulls w, takes T inner steps from it, pushes how far it has moved

        x ← AdamW(x; ∇ loss(x; a fresh mini-batch))   (worker, T times from x = w)
        d := w − x                                    (worker: push)
        D ← D + d,  t ← t + 1                         (ps)
        t mod N = 0:  m ← β m + D / N,  D ← 0         (ps)
        w ← w − ε (s β m + d / N)                     (ps; s = 1 − c N + c if
                                                       t mod N = 0, else s = c)

Differs from DOWNPOUR-Easy: the worker has AdamW, and the ps a momentum in place of
Adagrad. With a step of m at each push w would move N times as far as with DiLoCo.
Paper: Liu et al., Asynchronous Local-SGD Training for Language Modeling, 2024, arXiv
2401.09135, Algorithm 3; --adaptive_window is its dynamic local updates.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import atomic, board, flags, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.speeds import Speeds
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Async-DiLoCo", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add, outer = parser.add_argument, ("delayed_nesterov", "nesterov", "sgd")
    add("--window", type=flags.positive_int, default=50, help="T, inner steps per push")
    add("--adaptive_window", action="store_true", help="T_k by the speed of worker k")
    add("--weight_decay", type=flags.fraction, default=0.1, help="λ, decay of AdamW")
    add("--outer", choices=outer, default=outer[0], help="the optimizer on the ps")
    add("--outer_learning_rate", type=flags.positive, default=0.7, help="ε, on the ps")
    add("--momentum", type=flags.fraction, default=0.9, help="β, unless --outer sgd")
    add("--delay", type=flags.positive_int, help="N, pushes per step of the momentum")
    add("--spread", type=flags.fraction, default=0.0, help="c, of m in a push, ≤ 1/N")
    parser.set_defaults(steps=80, learning_rate=0.001)
    args = flags.parse(parser, argv)
    delayed, sgd = args.outer == outer[0], args.outer == outer[2]
    if not delayed and (args.delay or args.spread):
        task.fail(f"--outer {args.outer}: it has no --delay and no --spread")
    # Nesterov at each push is the same with N = 1, plain SGD without momentum, too.
    args.delay = args.delay or (len(args.worker_hosts) if delayed else 1)
    args.momentum = 0.0 if sgd else args.momentum
    if args.spread * args.delay > 1:
        task.fail(f"--spread {args.spread}: at most 1 / --delay, which is {args.delay}")
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns m, v, t of this worker's AdamW; on each ps D and m, and t; all speeds."""
    own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    with tf.device(f"/job:worker/task:{stats.me}"):
        zeros = tf.zeros([sum(piece.shape.num_elements() for piece in center)])
        start = dict(m=zeros, v=zeros, t=0.0)
        mine = [tf.get_variable(k, initializer=v, **own) for k, v in start.items()]
    outer, pushes = atomic.beside(center, "outer", rows=2), atomic.pushes(center, stats)
    return mine, outer, pushes, Speeds(stats)


def adamw(args, x, m, v, t, g):
    """Returns x, m, v and t after a step. Loshchilov, Hutter, arXiv 1711.05101."""
    t, b_1, b_2, epsilon = t + 1, 0.9, 0.95, 1e-8
    m = b_1 * m + (1 - b_1) * g
    v = b_2 * v + (1 - b_2) * g * g
    move = m / (1 - b_1**t) / (tf.sqrt(v / (1 - b_2**t)) + epsilon)
    return x - args.learning_rate * (move + args.weight_decay * x), m, v, t


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    mine, outer, pushes, speeds = shared

    # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
    with tf.name_scope("pull"):
        pulled = rounds.pull(center, after=last.update)
        seen = stats.read_step(after=last.update[:1])
        window = args.window
        if args.adaptive_window:
            # T_k := max(1, ⌊T v_k / max v⌋), v := steps a second   (ps 0 → worker)
            window = speeds.window(args.window, after=last.update[:1])
        with tf.device(stats.device):
            examples = window * args.batch_size

    # m, v, t   (of this worker, from its last window)
    with tf.name_scope("read"), tf.control_dependencies(last.local):
        slots = [variable.read_value() for variable in mine]

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def inner_step(i, x, m, v, t, _):
        # g := ∇ loss(x; a fresh mini-batch)   (worker)
        value = loss(x, batch())
        gradient = rounds.gradient(value, x)
        # x ← AdamW(x; g)
        return i + 1, *adamw(args, x, m, v, t, gradient), value

    with tf.name_scope("gradient"):
        # Not before w is here: the loop would draw its mini-batches too early.
        steps = tf.cast(window, tf.int32)
        with tf.control_dependencies([pulled, steps]):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            zero = tf.constant(0)
        begin = zero, pulled, *slots, 0.0
        _, x, *slots, value = tf.while_loop(
            lambda i, *_: i < steps, inner_step, begin, parallel_iterations=1
        )
        with tf.control_dependencies([x]):
            seconds = tf.timestamp() - began  # without any waiting

    # d := w_seen − x   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(pulled - x, center)
        counted = stats.count(pushed, examples, pulled, seen)

    # D ← D + d,  t ← t + 1;   t mod N = 0:  m ← β m + D / N,  D ← 0   (ps)
    # w ← w − ε (s β m + d / N);   t mod N = 0:  s := 1 − c N + c,  else s := c
    with tf.name_scope("update"):

        def rule(w, d):
            n, c, beta = args.delay, args.spread, args.momentum
            total, m = tf.unstack(outer[w.device].read_value())
            total, t = total + d, pushes[w.device].assign_add(1)
            full = tf.equal(t % n, 0)
            m = tf.where_v2(full, beta * m + total / n, m)
            share = tf.where_v2(full, 1 - c * n + c, c)
            move = args.outer_learning_rate * (share * beta * m + d / n)
            new = tf.stack([total * tf.cast(~full, tf.float32), m])
            return [
                w.assign_sub(move, read_value=False),
                outer[w.device].assign(new, read_value=False),
            ]

        update = atomic.update(center, pushed, counted.applied, rule)
        if args.adaptive_window:  # v_k := T_k / seconds   (worker → ps 0)
            update[0] = speeds.note(window, seconds, after=update[0])

    local = [v.assign(s, read_value=False) for v, s in zip(mine, slots, strict=True)]
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
