"""Partitioned-Embedding: a table in slices on the ps, of which only touched rows move.

    ps      holds a slice of the table w: row i is on ps i mod K, or they are in order
    worker  names the rows that its mini-batch touches, pulls them, pushes a gradient

        rows := those that the mini-batch names, each once     (worker → ps)
        g := ∇ ∑ loss(w_seen[rows]; rating)                    (worker)
        w[rows] ← w[rows] − η g                                (ps, row by row, no lock)

Differs from HogWild: gradients are sparse, which is the case that its paper is about,
and w is so large that nobody ever has, moves or saves all of it.
Paper: Niu, Recht, Ré, Wright, HOGWILD!, 2011, arXiv 1106.5730, Algorithm 1, with the
matrix completion of its section 2; Li et al., Parameter Server, OSDI 2014.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import problem
from cluster import (
    books,
    exits,
    flags,
    memory,
    protocol,
    report,
    rounds,
    serve,
    start,
    straggler,
    tables,
)
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    what = f"{problem.DRAWN}, FILE.npz, or MovieLens' FILE.csv, .dat or .data"
    data = ["--ratings", "--data"], problem.DRAWN, what
    parser = flags.parser("Partitioned-Embedding", __doc__, data)
    flags.add_cluster_flags(parser)
    add = parser.add_argument
    add("--rank", type=flags.positive_int, default=8, help="d, numbers in a row of w")
    add("--strategy", choices=tables.STRATEGIES, default="mod", help="where a row is")
    add("--l2", type=flags.fraction, default=0.0, help="λ, pulls touched rows to zero")
    add("--start", type=flags.positive, default=0.3, help="deviation of w at the start")
    add("--users", type=flags.positive_int, help="rows of users, if not those named")
    add("--items", type=flags.positive_int, help="rows of items, if not those named")
    add("--draw", type=flags.positive_int, default=500000, help="ratings to draw")
    add("--noise", type=flags.fraction, default=0.1, help="deviation of a drawn rating")
    add("--skew", type=flags.fraction, default=0.5, help="of how popular a row is")
    parser.set_defaults(batch_size=1000, learning_rate=0.1)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, table, kept, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `kept` are the books on ps 0, `table` has w in slices, `batch()` is a fresh
    mini-batch, `loss(rows [B, 2, d], batch)` its mean loss.
    """
    # w_seen[rows] := w[rows]   (worker → ps: numbers of rows; ps → worker: these rows)
    with tf.name_scope("pull"):
        inputs = batch()
        named, where = tf.unique(tf.reshape(inputs[0], [-1]))
        asked = table.ask(named)
        pulled = table.pull(asked, after=last.update)
        seen = kept.read_step(after=last.update[:1])

    # g := ∇ ∑ loss(w_seen[rows]; rating)   (worker)
    with tf.name_scope("gradient"):
        rows = tf.reshape(tf.gather(pulled, where), [args.batch_size, 2, args.rank])
        value = loss(rows, inputs)
        (gradient,) = tf.gradients(args.batch_size * value, pulled)

    # g   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = table.push(gradient, asked)
        sent = table.sent(named)
        entry = kept.enter(pushed, args.batch_size, pulled, seen, sent)

    # w[rows] ← w[rows] − η g   (ps: each for the rows of its slice)
    with tf.name_scope("update"):

        def rule(w, g):
            return tf.raw_ops.ResourceScatterSub(
                resource=w.handle,
                indices=g.indices,
                updates=args.learning_rate * g.values,
            )

        update = rounds.update(table.slices, pushed, entry.applied, rule)
    return rounds.Round(value, entry, update)


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    ratings = problem.Ratings(args, lambda rows: memory.fit(args, rows))
    start.begin(args, ratings, name=f"{args.job_name}-{me}")
    try:
        data = ratings.load(args.data, workers) if args.job_name == "worker" else None
    except ValueError as error:
        exits.fail(f"--ratings {args.data}: {error}")

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me)
    if args.job_name == "ps":
        serve.serve(server, args)
        return memory.say()

    # Placement: every worker builds the same graph (between-graph replication). The
    # setter puts variables on the ps, in turn, and all the rest on this worker.
    device = f"/job:worker/task:{me}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=device)):
        learning = problem.build(data, args.batch_size, args.seed, args.l2, me, workers)
        table = tables.Table(args, learning.rows)  # one slice on each ps
        kept = books.Books(args)
        loss = straggler.slowed(learning.loss, args)
        batch = rounds.in_turn(learning.batch)
        calls = rounds.Calls(lambda last: graph(args, table, kept, batch, loss, last))
        test = learning.test(table.lookup)

        # Session: it waits for the tasks that pass its filters, not for other workers.
        config = tf.ConfigProto(device_filters=["/job:ps", device])
        elements = learning.rows * args.rank
        run = protocol.Protocol(
            args, server.target, config, kept, elements, table.saver
        )
    notes = report.Report(args, learning.metric, test)
    options = dict(
        master=server.target,
        is_chief=run.chief,
        config=config,
        scaffold=run.scaffold(learning.initializer, learning.feed),
        hooks=[run.hook()],
        checkpoint_dir=args.logdir,
        save_checkpoint_secs=args.save_seconds,
        save_graph_def=False,  # as text it takes half a second; this file makes it
        log_step_count_steps=None,
    )
    if run.chief:
        report.print_placement()
    with run, tf.train.MonitoredTrainingSession(**options) as session:

        def make_rounds(step_context):
            calls.make(step_context.session, notes)

        # Loop: about a second of rounds in bare calls, then the hooks have a look.
        while not run.finished(session, notes):
            session.run_step_fn(make_rounds)
            notes.draw(session)

        # Result: what the books say and what the table is worth.
        memory.say()
        if run.chief:
            account = run.account(session)
            notes.write(session, {**account, **table.traffic(account)})


if __name__ == "__main__":
    exits.run(main)
