"""Hybrid-Embedding: dense weights are synchronous, rows on the ps asynchronous.

    ps      holds rows e[i] that come and go, and knows nothing of the dense weights
    worker  holds a copy of the dense weights w, with the same bits as all others; looks
            rows up early, while s batches before have not been pushed yet

        e_seen := e[ids of batch t]   once the own batch t − 1 − s is applied (worker)
        g_w, g := ∇ loss(w, e_seen; mini-batch)                (worker)
        e[i] ← e[i] − η_e g[i] / √∑ g[i]²                      (ps, at once)
        mean := (1/N) ∑ g_w;   w ← w − η mean                  (all workers, in a ring)

Differs from Dynamic-Embedding: the dense weights are the same on every worker and never
stale; only rows are, of which a batch changes few.
Paper: Lian et al., Persia: An Open, Hybrid System Scaling Deep Learning-based
Recommenders up to 100 Trillion Parameters, KDD 2022, arXiv 2111.05897.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import board, dynamic, flags, hybrid, memory, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.hybrid import Stats
from cluster.ring import Ring
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    what = f"{problem.DRAWN}, FILE.npz, MovieLens' or Criteo's files"
    data = ["--data"], problem.DRAWN, what
    parser = flags.parser("Hybrid-Embedding", __doc__, data)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    problem.add_flags(parser)
    add = parser.add_argument
    add("--staleness", type=flags.natural, default=4, help="s, batches looked up early")
    add("--rank", type=flags.positive_int, default=8, help="d, numbers in a row e[i]")
    add(
        "--admit", type=flags.positive_int, default=2, help="F, times until i has a row"
    )
    add("--expire", type=flags.natural, default=100, help="E, steps; 0: rows stay")
    add("--sweep", type=flags.positive_int, default=20, help="steps from look to look")
    add("--capacity", type=flags.positive_int, default=100000, help="most rows of all")
    add("--optimizer", choices=("adagrad", "sgd"), default="adagrad", help="of a row")
    add("--row_learning_rate", type=flags.positive, default=0.05, help="η_e, of rows")
    add("--first_sum", type=flags.positive, default=0.1, help="∑ g[i]² at the start")
    add(
        "--start", type=flags.not_negative, default=0.01, help="deviation of e[i] drawn"
    )
    parser.set_defaults(batch_size=100, steps=885)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, stats):
    """Returns what gives this worker the numbers of its mini-batches: k, N + k, ..."""
    own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True)
    with tf.device(args.device):
        step = stats.step.read_value()  # also after a restart
        turn = tf.Variable(step, trainable=False, name="turn", **own)

    def number():
        taken = tf.raw_ops.ResourceCountUpTo(
            resource=turn.handle, limit=2**55, T=tf.int64
        )
        return taken * len(args.worker_hosts) + args.task_index

    return number


def graph(args, center, table, stats, ring, halves, batch, loss, last):
    """Builds one round, that begins after the `last` one; its lookup may begin before.

    `stats` are the counters, `center` is w, `table` has e, `ring` is that of all
    workers, `batch()` a fresh mini-batch, `loss((w, rows [B, fields, d]), batch)` its
    mean loss. `halves` hands tensors over from rows to w and back, and has all pushes.
    """

    # count[i] += times, until i has a row;   i gets one if count[i] ≥ F   (ps)
    def admission(has, count, times):
        count = tf.where_v2(has, count, tf.minimum(count + times, args.admit))
        return count, count >= args.admit

    # e_seen := e[ids], once the own push s + 1 before is applied   (ps → worker)
    own = len(halves.pushes) - 1 - args.staleness
    applied, noted = (
        ((), ()) if own < 0 else (halves.pushes[own], halves.staleness[own])
    )
    with tf.name_scope("pull"):
        inputs = batch()
        ids, where, times = tf.unique_with_counts(tf.reshape(inputs[0], [-1]))
        t, seen = stats.look(after=noted)
        asked = table.ask(ids, times)
        pulled, found = table.pull(asked, t, admission, after=applied)
        pulled_here, where, inputs = halves.over([pulled, where, inputs])

    # w   (on this worker)
    with tf.name_scope("read"), tf.control_dependencies(last.update):
        weights = center.read_value()

    # g_w := ∇ loss(w, e_seen; mini-batch);   g := ∇ ∑ loss   (worker)
    with tf.name_scope("gradient"):
        rows = tf.gather(pulled_here, tf.reshape(where, tf.shape(inputs[0])))
        value = loss((weights, rows), inputs)
        g_w = rounds.gradient(value, weights)
        g = args.batch_size * rounds.gradient(value, pulled_here)

    # mean := (1/N) ∑ g_w   (worker → worker → ..., until every one has it)
    # w ← w − η mean   (worker: the same on every one)
    with tf.name_scope("update"):
        g, handed = halves.over(g, to_rows=True)
        mean = ring.mean(g_w)
        counted, numbered = stats.count(mean)
        update = center.assign_sub(args.learning_rate * mean, read_value=False)

    # e[i] ← e[i] − η_e g[i] / √∑ g[i]²   (worker → ps: at once; no worker waits)
    with tf.name_scope("push"):

        def rule(part, slots, g):
            if args.optimizer == "sgd":
                return tf.raw_ops.ResourceScatterSub(
                    resource=part.rows.handle,
                    indices=slots,
                    updates=args.row_learning_rate * g,
                )
            return tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=part.rows.handle,
                accum=part.sums.handle,
                lr=args.row_learning_rate,
                epsilon=0.0,
                grad=g,
                indices=slots,
            )

        push = table.update(found, table.push(g, asked), tf.constant(True), rule)
        sent = table.sent(ids) + 2 * [stats.reduced(g_w)]
        staleness, number = stats.arrive(push, args.batch_size, seen, sent)

    # forget i, its count and its row if t − seen[i] ≥ E   (the chief tells every ps)
    with tf.name_scope("forget"):

        def gone(seen, t):
            return t - seen >= args.expire

        if args.expire and stats.chief:
            due = tf.equal(number % args.sweep, args.sweep - 1)
            push = table.forget(due, number, gone, after=push)
    halves.end(push, staleness)
    return rounds.Round(value, counted, [update, numbered], [*last.local, handed])


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    me = args.task_index
    each = dynamic.row_bytes(args.rank)
    data = task.begin(
        args, problem.Clicks(args, lambda: memory.fit(args, args.capacity, each))
    )

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    config = hybrid.config(args)
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me, config=config)
    if args.job_name == "ps":
        board.serve(server, args)  # until the chief says that the run is over
        return memory.say()

    # Placement: every worker builds the same graph (between-graph replication). The
    # setter puts variables on the ps, in turn, and all the rest on this worker. There
    # is also w, of which ps 0 has a copy for checkpoints.
    setter = tf.train.replica_device_setter(cluster=spec, worker_device=args.device)
    with tf.device(setter):
        learning = problem.build(data, args)
        saved = tf.get_variable("center", initializer=learning.start)
        center = hybrid.replica(args, saved)
        table = dynamic.Table(args, learning.kind)  # a part on each ps
        ring, stats = Ring(args), Stats(args)
        number, loss = state(args, stats), slow.slowed(learning.loss, args)
        batch = rounds.in_turn(lambda: learning.batch(number()))
        halves = hybrid.Halves(args)
        calls = hybrid.Calls(
            lambda last: graph(
                args, center, table, stats, ring, halves, batch, loss, last
            ),
            ring,
            halves,
        )
        test = learning.test(center.read_value(), table.lookup)
        saver = hybrid.Saver(table, saved, center)
        training = run.Run(args, server, learning, stats, calls, test, saver)
        training.extra = table.summary
        group = hybrid.Group(training, ring, calls, center, saver)

    # Begin: the chief initialises all, or restores it, and all get w from it.
    with training:
        group.begin()
        # Loop: a call is up to five rounds. If a task is lost in here, all begin
        # again, and go on with the rows that the ps have.
        while training.left > 0:
            with group.together():
                losses, counts = calls.make(training.session, training.left)
                group.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: all compare and report; the chief tests the model and writes result.json.
        group.end()
    memory.say()


if __name__ == "__main__":
    task.run(main)
