"""Stale-Synchronous-Parallel: nobody is more than s rounds ahead of the slowest.

    ps      holds the center variable w, applies what is pushed to it; ps 0 has the
            clocks c, the rounds that each worker has completed
    worker  waits until it may begin, pulls w, computes a gradient, pushes it

        wait until c_k − min c ≤ s                  (worker k, on ps 0)
        g := ∇ loss(w_seen; mini-batch)             (worker)
        w ← w − η g                                 (ps, whatever w is when it arrives)
        c_k ← c_k + 1                               (ps 0, when w has moved everywhere)

Differs from HogWild: a worker that is s rounds ahead of the slowest waits for it. With
s = 0 the workers go in step, with s without end it is HogWild.
Paper: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server, NIPS 2013, section 2.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

import problem
from cluster import (
    books,
    clocks,
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
    parser = flags.parser("Stale-Synchronous-Parallel", __doc__)
    flags.add_cluster_flags(parser)
    parser.add_argument("--staleness", type=flags.natural, default=4, help="s, rounds")
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, kept):
    """Returns what the rounds share beside the center variable: the clocks, on ps 0."""
    return clocks.Clocks(args, kept)


def graph(args, center, kept, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `kept` are the books on ps 0, `shared` is what `state` returned, `batch()` a fresh
    mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # wait until c_k − min c ≤ s   (on ps 0)
    with tf.name_scope("wait"):
        begun = shared.wait(after=last.update)

    # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
    with tf.name_scope("pull"):
        pulled = rounds.pull(center, after=[begun for _ in center])
        seen = kept.read_step(after=[begun])

    # g := ∇ loss(w_seen; mini-batch)   (worker)
    with tf.name_scope("gradient"):
        value = loss(pulled, batch())
        (gradient,) = tf.gradients(value, pulled)

    # g   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(gradient, center)
        entry = kept.enter(pushed, args.batch_size, pulled, seen)

    # w ← w − η g   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, g):
            return w.assign_sub(args.learning_rate * g, read_value=False)

        update = rounds.update(center, pushed, entry.applied, rule)

    # c_k ← c_k + 1   (ps 0, and who may go on now is woken)
    with tf.name_scope("clock"):
        ticked = shared.tick(update, entry.applied)
    return rounds.Round(value, entry, [ticked])


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
