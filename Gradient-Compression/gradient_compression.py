"""Gradient-Compression: pushes are compressed; the part left out joins the next push.

    ps      holds the center variable w, reads each message and applies it
    worker  pulls w, computes a gradient, adds what it has not sent yet, compresses the
            sum and pushes it

        g := ∇ loss(w_seen; mini-batch)                     (worker)
        u ← m u + g,  p := e + u                            (worker; u is g if m = 0)
        s := C(p): k of P elements, or signs, or bytes      (worker)
        e ← p − s                                           (worker: error feedback)
        u ← 0 where s is not 0                              (worker)
        w ← w − η s                                         (ps)

Differs from HogWild: a worker pushes C(p), one message to each ps. It keeps what C left
out in e. With all P elements and m = 0 the scheme is HogWild.
Paper: Aji & Heafield 2017, arXiv 1704.05021 (topk); Lin et al., Deep Gradient
Compression, 2018, arXiv 1712.01887 (m, warm-up); Karimireddy et al. 2019, arXiv
1901.09847 (sign, after Seide et al. 2014 and Bernstein et al. 2018).
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import board, compression, flags, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Gradient-Compression", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--method", choices=compression.METHODS, default="topk", help="C, what is sent")
    add("--keep", type=flags.share, default=0.01, help="k / P, of topk and random_k")
    add("--error_feedback", choices=("on", "off"), default="on", help="off: e stays 0")
    add(
        "--momentum", type=flags.fraction, default=0.0, help="m, of momentum correction"
    )
    add("--warmup", type=flags.natural, default=0, help="rounds until k / P is --keep")
    args = flags.parse(parser, argv)
    sparse = args.method in compression.SPARSE
    if args.momentum and not (sparse and args.error_feedback == "on"):
        task.fail("--momentum needs topk or random_k, and --error_feedback on")
    if args.warmup and not sparse:
        task.fail(f"--warmup {args.warmup}: --method {args.method} sends all elements")
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what a worker keeps: e [P] and u [P], and t, the rounds it has made."""
    scope = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    with tf.device(f"/job:worker/task:{stats.me}"):
        zeros = tf.zeros([sum(w.shape.num_elements() for w in center)])
        start = {"error": zeros, "momentum": zeros, "rounds": tf.zeros([], tf.int64)}
        return [tf.get_variable(n, initializer=v, **scope) for n, v in start.items()]


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

    # u ← m u + g,  p := e + u,  s := C(p)   (worker; s as whoever reads it will)
    with tf.name_scope("compress"):
        with tf.control_dependencies(last.local):
            e, u, t = (variable.read_value() for variable in shared)
        u = args.momentum * u + gradient
        p = e + u
        messages, s = compression.encode(p, center, args, t)

    # e ← p − s,  u ← 0 where s is not   (worker)
    with tf.name_scope("feedback"):
        left = p - s if args.error_feedback == "on" else e
        u = tf.where_v2(tf.equal(s, 0), u, 0.0)
        pairs = zip(shared, (left, u, t + 1), strict=True)
        local = [variable.assign(new, read_value=False) for variable, new in pairs]

    # C(p)   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.send(messages, center)
        counted = stats.count(pushed, args.batch_size, pulled, seen)

    # w ← w − η s   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, message):
            s = compression.decode(message, w, args)
            return w.assign_sub(args.learning_rate * s, read_value=False)

        update = rounds.update(center, pushed, counted.applied, rule)
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
