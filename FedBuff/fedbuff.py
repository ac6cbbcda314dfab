"""FedBuff: the ps applies the mean of K pushes, in which late ones weigh less.

    ps      holds the center variable w and a buffer D, the weighted sum of some pushes
    worker  pulls w, takes T local steps from it, pushes how far it has moved

        x ← x − η ∇ loss(x; a fresh mini-batch)       (worker, T times from x = w)
        d := w − x                                    (worker: push)
        τ := versions of w between pull and push      (ps 0)
        D ← D + s(τ) d                                (ps)
        at every K-th push:  w ← w − η_s D / K,  D ← 0   (ps: a new version)

Differs from Dynamic-SGD: a push is the movement of T steps, and w moves once for K of
them. τ counts these moves. With --average_models it is FedAsync, in which every push
is the weights x: w ← (1 − a) w + a x, a := α s(τ).
Papers: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, 2022,
arXiv 2106.06639; Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019, arXiv
1903.03934.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import atomic, board, flags, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import problem
import skew
import skew as contract  # contract.py, with the rows dealt out by --skew
import slow

# --- Flags [algorithm] -------------------------------------------------------

DECAY = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}  # a, of the papers


def parse_args(argv=None):
    parser = flags.parser("FedBuff", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    skew.add_flag(parser)
    add = parser.add_argument
    add("--window", type=flags.positive_int, default=10, help="T, local steps per push")
    add("--buffer", type=flags.positive_int, help="K, pushes that move w once (2)")
    add("--server_learning_rate", type=flags.positive, default=1.0, help="η_s, on a ps")
    add("--staleness", choices=tuple(DECAY), default="polynomial", help="form of s(τ)")
    add("--decay", type=flags.not_negative, help="a of s(τ) (the papers' if not given)")
    add("--tolerance", type=flags.natural, default=4, help="b, where a hinge begins")
    add("--average_models", action="store_true", help="FedAsync: push x, not d")
    add("--alpha", type=flags.share, default=0.6, help="α of FedAsync")
    parser.set_defaults(steps=800)
    args = flags.parse(parser, argv)
    if args.average_models and args.buffer:
        task.fail("--buffer: --average_models applies each push as it comes")
    args.buffer = args.buffer or (1 if args.average_models else 2)
    args.decay = DECAY[args.staleness] if args.decay is None else args.decay
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share beside w: on each ps D, and the count of pushes."""
    return atomic.beside(center, "buffer", rows=1), atomic.pushes(center, stats)


def weight(args, tau):
    """Returns s(τ), a float scalar: how much a push counts that is τ versions old."""
    if args.staleness == "polynomial":
        return (1 + tau) ** -args.decay
    if args.staleness == "hinge":
        return 1 / (args.decay * tf.maximum(tau - args.tolerance, 0) + 1)
    return tf.ones_like(tau)


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    buffer, pushes = shared

    # w_seen := w   (ps → worker; its version ⌊pushes / K⌋ stays on ps 0)
    with tf.name_scope("pull"):
        pulled = rounds.pull(center, after=last.update)
        seen = stats.read_step(after=last.update[:1])
        with tf.device(stats.device):
            seen = seen // args.buffer

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, x, _):
        # g := ∇ loss(x; a fresh mini-batch)   (worker)
        value = loss(x, batch())
        gradient = rounds.gradient(value, x)
        # x ← x − η g
        return i + 1, x - args.learning_rate * gradient, value

    with tf.name_scope("gradient"):
        # Not before w is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies([pulled]):
            zero = tf.constant(0)
        begin = zero, pulled, 0.0
        _, x, value = tf.while_loop(
            lambda i, *_: i < args.window, local_step, begin, parallel_iterations=1
        )

    # d := w_seen − x, or x   (worker → ps, where ps 0 gives the push its number)
    # τ := the version of that number − that of the pull
    with tf.name_scope("push"):
        pushed = rounds.push(x if args.average_models else pulled - x, center)
        examples = args.window * args.batch_size
        counted = stats.count(pushed, examples, pulled, seen, per=args.buffer)

    # D ← D + s(τ) d;  at every K-th push:  w ← w − η_s D / K,  D ← 0   (ps)
    with tf.name_scope("update"):
        with tf.device(stats.device):
            s = weight(args, tf.cast(counted.staleness, tf.float32))

        def rule(w, d, s):
            total = buffer[w.device].read_value() + s * d
            full = tf.equal(pushes[w.device].assign_add(1) % args.buffer, 0)
            full = tf.cast(full, tf.float32)
            move = args.server_learning_rate / args.buffer * full * total[0]
            return [
                w.assign_sub(move, read_value=False),
                buffer[w.device].assign((1 - full) * total, read_value=False),
            ]

        def average(w, x, s):
            # a := α s(τ),  w ← (1 − a) w + a x, at the w of now
            move = args.alpha * s * (w.read_value() - x)
            return [w.assign_sub(move, read_value=False)]

        chosen = average if args.average_models else rule
        update = atomic.update(center, pushed, counted.applied, chosen, s)
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
