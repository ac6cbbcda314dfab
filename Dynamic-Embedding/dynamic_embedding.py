"""Dynamic-Embedding: a table on the ps in which rows come, and those not used go.

    ps      holds the dense weights w in slices; and for each id whose hash is its own
            how often and when it was asked for, and a row e[i] once that was F times
    worker  names the ids of its mini-batch, pulls w and these rows, pushes gradients

        count[i] += times i is in the mini-batch, seen[i] ← t  (ps)
        if i has no row and count[i] ≥ F:  e[i] := draw(i)     (ps, under its lock)
        g_w, g := ∇ loss(w, e; mini-batch)                     (worker; no row: 0)
        w ← w − η g_w;   e[i] ← e[i] − η_e g[i] / √∑ g[i]²     (ps)
        if t − seen[i] ≥ E:  forget i, its count and its row   (ps, now and then)

Differs from Partitioned-Embedding: nobody knows the ids beforehand, and the table stays
as small as what is in use.
Paper: Liu et al., Monolith: Real Time Recommendation System With Collisionless
Embedding Table, ORSUM at RecSys 2022, arXiv 2209.07663, section 2.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import board, dynamic, flags, memory, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    what = f"{problem.DRAWN}, FILE.npz, MovieLens' or Criteo's files"
    data = ["--data"], problem.DRAWN, what
    parser = flags.parser("Dynamic-Embedding", __doc__, data)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    problem.add_flags(parser)
    add = parser.add_argument
    add("--rank", type=flags.positive_int, default=8, help="d, numbers in a row e[i]")
    add(
        "--admit", type=flags.positive_int, default=2, help="F, times until i has a row"
    )
    add("--expire", type=flags.natural, default=200, help="E, steps; 0: rows stay")
    add("--sweep", type=flags.positive_int, default=20, help="steps from look to look")
    add("--capacity", type=flags.positive_int, default=100000, help="most rows of all")
    add("--optimizer", choices=("adagrad", "sgd"), default="adagrad", help="of a row")
    add("--row_learning_rate", type=flags.positive, default=0.05, help="η_e, of rows")
    add("--first_sum", type=flags.positive, default=0.1, help="∑ g[i]² at the start")
    add(
        "--start", type=flags.not_negative, default=0.01, help="deviation of e[i] drawn"
    )
    parser.set_defaults(batch_size=100, steps=1770)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(stats):
    """Returns what hands out the numbers of the log's mini-batches, each once."""
    made = tf.reduce_sum(stats.counters.read_value()[:, 0])  # also after a restart
    with tf.device(stats.device):
        next_ = stats.temporary("next", made)
    return lambda: tf.raw_ops.ResourceCountUpTo(
        resource=next_.handle, limit=2**62, T=tf.int64
    )


def graph(args, center, table, stats, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `center` is w, `table` has e, `batch()` is a fresh
    mini-batch, `loss((w, rows [B, fields, d]), batch)` its mean loss.
    """

    # count[i] += times, until i has a row;   i gets one if count[i] ≥ F   (ps)
    def admission(has, count, times):
        count = tf.where_v2(has, count, tf.minimum(count + times, args.admit))
        return count, count >= args.admit

    # seen[i] ← t;   e_seen[i] := e[i], or 0 if i has no row   (ps → worker)
    with tf.name_scope("pull"):
        inputs = batch()
        ids, where, times = tf.unique_with_counts(tf.reshape(inputs[0], [-1]))
        t = stats.read_step(after=last.update[:1])
        asked = table.ask(ids, times)
        pulled, found = table.pull(asked, t, admission, after=last.update)
        weights = rounds.pull(center, after=last.update)

    # g_w := ∇ loss(w_seen, e_seen; mini-batch);   g := ∇ ∑ loss   (worker)
    with tf.name_scope("gradient"):
        rows = tf.gather(pulled, tf.reshape(where, tf.shape(inputs[0])))
        value = loss((weights, rows), inputs)
        g_w = rounds.gradient(value, weights)
        g = args.batch_size * rounds.gradient(value, pulled)

    # g_w, g   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − t: updates applied between pull and push
    with tf.name_scope("push"):
        pushed, dense = table.push(g, asked), rounds.push(g_w, center)
        sent = table.sent(ids) + 2 * [4 * weights.shape.num_elements()]
        after = [*dense, *pushed]
        counted = stats.count(after, args.batch_size, pulled, t, sent)

    # w ← w − η g_w   (ps: each for its piece of w)
    # e[i] ← e[i] − η_e g[i] / √∑ g[i]²   (ps: if the row is still that of i)
    with tf.name_scope("update"):

        def dense_rule(w, g):
            return w.assign_sub(args.learning_rate * g, read_value=False)

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

        applied, number = counted.applied, counted.number
        update = rounds.update(center, dense, applied, dense_rule)
        update = table.update(found, pushed, applied, rule, after=update)

    # forget i, its count and its row if t − seen[i] ≥ E   (ps: each its own)
    with tf.name_scope("forget"):

        def gone(seen, t):
            return t - seen >= args.expire

        if args.expire:
            due = applied & tf.equal(number % args.sweep, args.sweep - 1)
            update = table.forget(due, number, gone, after=update)
    return rounds.Round(value, counted, update)


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
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me)
    if args.job_name == "ps":
        board.serve(server, args)  # until the chief says that the run is over
        return memory.say()

    # Placement: every worker builds the same graph (between-graph replication). The
    # setter puts variables on the ps, in turn, and all the rest on this worker.
    setter = tf.train.replica_device_setter(cluster=spec, worker_device=args.device)
    with tf.device(setter):
        learning = problem.build(data, args)
        pieces = tf.fixed_size_partitioner(len(args.ps_hosts))  # one on each ps
        center = tf.get_variable(
            "center", initializer=learning.start, partitioner=pieces
        )
        table = dynamic.Table(args, learning.kind)  # a part on each ps
        stats = Stats(args)
        number, loss = state(stats), slow.slowed(learning.loss, args)
        batch = rounds.in_turn(lambda: learning.batch(number()))
        calls = rounds.Calls(
            lambda last: graph(args, center, table, stats, batch, loss, last)
        )
        test = learning.test(center.as_tensor(), table.lookup)
        saver = dynamic.Saver(table)
    training = run.Run(args, server, learning, stats, calls, test, saver)
    training.extra = table.summary

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
    memory.say()


if __name__ == "__main__":
    task.run(main)
