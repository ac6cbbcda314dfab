"""Ring-All-Reduce: no ps, the workers add up their gradients among themselves.

    worker  holds the center variable w, as every other worker does, bit by bit;
            sends pieces of its gradient to the next worker around a ring

        g_k := ∇ loss(w; mini-batch of worker k)      (worker)
        mean := (1/N) ∑ g_k                           (all, in 2 (N − 1) steps)
        w ← w − η mean                                (worker, the same on every one)

Differs from Synchronous-SGD: the same update, and nobody in the middle.
Paper: Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, JPDC 69(2), 2009; in deep learning: Gibiansky 2017, and Horovod, Sergeev,
Del Balso 2018, arXiv 1802.05799.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import problem
from cluster import (
    exits,
    flags,
    lockstep,
    members,
    report,
    ring,
    rounds,
    start,
    straggler,
)
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Ring-All-Reduce", __doc__)
    flags.add_cluster_flags(parser, jobs=["worker"])
    members.add_flag(parser)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, kept):
    """Returns what the rounds share beside the center variable: here nothing."""


def graph(args, center, kept, peers, shared, batch, loss, last):
    """Builds one round, from read to update, that begins after the `last` one.

    `kept` are the books on the chief, `peers` is the ring of all workers, `shared` is
    what `state` returned, `batch()` a fresh mini-batch, `loss(w, batch)` its scalar
    loss at w [P].
    """
    # w   (on this worker)
    with tf.name_scope("read"), tf.control_dependencies(last.update):
        weights = center.read_value()

    # g_k := ∇ loss(w; mini-batch of worker k)   (worker)
    with tf.name_scope("gradient"):
        value = loss(weights, batch())
        (gradient,) = tf.gradients(value, weights)

    # mean := (1/N) ∑ g_k   (worker → worker → ..., until every one has it)
    with tf.name_scope("all_reduce"):
        mean = peers.mean(gradient)
        entry = kept.enter(mean, args.batch_size)

    # w ← w − η mean   (worker: the same on every one)
    with tf.name_scope("update"):
        update = center.assign_sub(args.learning_rate * mean, read_value=False)
    return rounds.Round(value, entry, [update, entry.packed])


# --- Workers -----------------------------------------------------------------


def main():
    args = parse_args()
    start.begin(args, problem, name=f"{args.job_name}-{args.task_index}")
    members.gather(args)
    me, workers = args.task_index, len(args.worker_hosts)
    data = flags.data(problem, args, workers)

    # Cluster and server: every worker knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"worker": args.worker_hosts})
    config = ring.config(me)
    server = tf.train.Server(spec, job_name="worker", task_index=me, config=config)

    # Placement: every worker has the whole model, and builds the same graph as others.
    with tf.device(f"/job:worker/task:{me}"):
        learning = problem.build(data, args.batch_size, args.seed, me, workers)
        center = tf.get_variable("center", initializer=learning.start)
        kept, peers = lockstep.Books(args), ring.Ring(args)
        shared = state(args, center, kept)
        loss = straggler.slowed(learning.loss, args)
        batch = rounds.in_turn(learning.batch)
        calls = lockstep.Calls(
            lambda last: graph(args, center, kept, peers, shared, batch, loss, last),
            peers,
        )
        test = learning.test(center.read_value())

    # Session: each worker has its own; the chief's restores and saves.
    elements = learning.start.shape.num_elements()
    run = members.Meeting(args, server.target, config, kept, peers, elements)
    notes = report.Report(args, learning.metric, test)
    options = dict(
        master=server.target,
        config=config,
        scaffold=run.scaffold(learning.initializer, learning.feed),
        hooks=[run.hook()],
        checkpoint_dir=args.logdir if run.chief else None,
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
