"""Partitioned-Embedding: a large table on the ps, of which only used rows are sent.

    ps      holds a slice of the table w: row i is on ps i mod K, or rows are in order
    worker  names the rows that its mini-batch touches, pulls them, pushes a gradient

        rows := the rows that the mini-batch names, each once  (worker → ps)
        g := ∇ ∑ loss(w_seen[rows]; rating)                    (worker)
        w[rows] ← w[rows] − η g                                (ps, row by row, no lock)

Differs from HogWild: gradients are sparse, as in HogWild's paper, and w is so large
that no task ever holds, sends or saves all of it.
Paper: Niu, Recht, Ré, Wright, HOGWILD!, 2011, arXiv 1106.5730, Algorithm 1, with the
matrix completion of its section 2; Li et al., Parameter Server, OSDI 2014.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import board, flags, memory, rounds, run, tables, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    what = f"{problem.DRAWN}, FILE.npz, or MovieLens' FILE.csv, .dat or .data"
    data = ["--ratings", "--data"], problem.DRAWN, what
    parser = flags.parser("Partitioned-Embedding", __doc__, data)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--rank", type=flags.positive_int, default=8, help="d, numbers in a row of w")
    add("--strategy", choices=tables.STRATEGIES, default="mod", help="where a row is")
    add("--l2", type=flags.fraction, default=0.0, help="λ, pulls touched rows to zero")
    add("--start", type=flags.positive, default=0.3, help="deviation of w at the start")
    add("--users", type=flags.positive_int, help="rows of users, if not those named")
    add("--items", type=flags.positive_int, help="rows of items, if not those named")
    add("--draw", type=flags.positive_int, default=500000, help="ratings to draw")
    add("--noise", type=flags.fraction, default=0.1, help="deviation of a drawn rating")
    add("--skew", type=flags.fraction, default=0.5, help="how uneven popularity is")
    parser.set_defaults(batch_size=1000, learning_rate=0.1)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, table, stats, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `table` has w in slices, `batch()` is a fresh
    mini-batch, `loss(rows [B, 2, d], batch)` its mean loss.
    """
    # w_seen[rows] := w[rows]   (worker → ps: numbers of rows; ps → worker: these rows)
    with tf.name_scope("pull"):
        inputs = batch()
        named, where = tf.unique(tf.reshape(inputs[0], [-1]))
        asked = table.ask(named)
        pulled = table.pull(asked, after=last.update)
        seen = stats.read_step(after=last.update[:1])

    # g := ∇ ∑ loss(w_seen[rows]; rating)   (worker)
    with tf.name_scope("gradient"):
        rows = tf.reshape(tf.gather(pulled, where), [args.batch_size, 2, args.rank])
        value = loss(rows, inputs)
        gradient = rounds.gradient(args.batch_size * value, pulled)

    # g   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = table.push(gradient, asked)
        sent = table.sent(named)
        counted = stats.count(pushed, args.batch_size, pulled, seen, sent)

    # w[rows] ← w[rows] − η g   (ps: each for the rows of its slice)
    with tf.name_scope("update"):

        def rule(w, g):
            return tf.raw_ops.ResourceScatterSub(
                resource=w.handle,
                indices=g.indices,
                updates=args.learning_rate * g.values,
            )

        update = rounds.update(table.slices, pushed, counted.applied, rule)
    return rounds.Round(value, counted, update)


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    # A ps needs its rows twice, while it draws or saves them.
    data = task.begin(
        args, problem.Ratings(args, lambda rows: memory.fit(args, rows, 8 * args.rank))
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
        learning = problem.build(data, args, me, workers)
        table = tables.Table(args, learning.start.shape[0])  # one slice on each ps
        stats = Stats(args)
        loss, batch = slow.slowed(learning.loss, args), rounds.in_turn(learning.batch)
        calls = rounds.Calls(lambda last: graph(args, table, stats, batch, loss, last))
        test, saver = learning.test(table.lookup), tables.Saver(table)
    training = run.Run(args, server, learning, stats, calls, test, saver)
    training.extra = lambda session: table.traffic(stats.summary(session))

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
