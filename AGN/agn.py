"""AGN: accumulated gradient normalization, the mean of a window instead of its sum.

    ps      holds the center variable w, adds what is pushed to it
    worker  pulls w, takes T steps of plain SGD from it, pushes the mean of gradients

        local ← w                                                 (worker: pull)
        T times: g := ∇ loss(local; a fresh mini-batch)           (worker)
                 local ← local − η g,  total ← total + g          (worker)
        w ← w − η total / T                                       (ps: update)

Differs from DOWNPOUR-Easy: a push is as large as one gradient whatever T is and
plain SGD on the ps can take it. (With Adagrad there, mean and sum would be the same.)
Paper: Hermans, Spanakis, Möckel, Accumulated Gradient Normalization, ACML 2017,
arXiv 1710.02368, the algorithm of the worker.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import problem
from cluster import (
    books,
    exits,
    flags,
    protocol,
    report,
    rounds,
    serve,
    start,
    straggler,
)
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("AGN", __doc__)
    flags.add_cluster_flags(parser)
    add = parser.add_argument
    add("--window", type=flags.positive_int, default=5, help="T, local steps")
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, kept):
    """Returns what the rounds share beside the center variable: here nothing."""


def graph(args, center, kept, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `kept` are the books on ps 0, `shared` is what `state` returned, `batch()` a fresh
    mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
    with tf.name_scope("pull"):
        pulled = rounds.pull(center, after=last.update)
        seen = kept.read_step(after=last.update[:1])

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, total, _):
        # g := ∇ loss(local; a fresh mini-batch)   (worker)
        value = loss(local, batch())
        (gradient,) = tf.gradients(value, local)
        # local ← local − η g,  total ← total + g
        local = local - args.learning_rate * gradient
        return i + 1, local, total + gradient, value

    with tf.name_scope("gradient"):
        # Not before w is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies([pulled]):
            zero = tf.constant(0)
        begin = zero, pulled, tf.zeros_like(pulled), 0.0
        _, _, total, value = tf.while_loop(
            lambda i, *_: i < args.window, local_step, begin, parallel_iterations=1
        )

    # m := total / T   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(total / args.window, center)
        entry = kept.enter(pushed, args.window * args.batch_size, pulled, seen)

    # w ← w − η m   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, mean):
            return w.assign_sub(args.learning_rate * mean, read_value=False)

        update = rounds.update(center, pushed, entry.applied, rule)
    return rounds.Round(value, entry, update)


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    start.begin(args, problem, name=f"{args.job_name}-{me}")
    data = flags.data(problem, args, workers) if args.job_name == "worker" else None

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me)
    if args.job_name == "ps":
        return serve.serve(server, args)

    # Placement: every worker builds the same graph (between-graph replication). The
    # setter puts variables on the ps, in turn, and all the rest on this worker.
    device = f"/job:worker/task:{me}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=device)):
        learning = problem.build(data, args.batch_size, args.seed, me, workers)
        pieces = tf.fixed_size_partitioner(len(args.ps_hosts))  # one on each ps
        center = tf.get_variable(
            "center", initializer=learning.start, partitioner=pieces
        )
        kept = books.Books(args)
        shared = state(args, center, kept)
        loss = straggler.slowed(learning.loss, args)
        batch = rounds.in_turn(learning.batch)
        calls = rounds.Calls(
            lambda last: graph(args, center, kept, shared, batch, loss, last)
        )
        test = learning.test(center.as_tensor())

    # Session: it waits for the tasks that pass its filters, not for other workers.
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    elements = learning.start.shape.num_elements()
    run = protocol.Protocol(args, server.target, config, kept, elements)
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

        # Result: what the books say and what the center variable is worth.
        if run.chief:
            notes.write(session, run.account(session))


if __name__ == "__main__":
    exits.run(main)
