"""Model-Parallelism: layers on different workers, micro-batches in a pipeline.

    worker s  holds w_s, the weights of its layers, and computes nothing but them
    worker 0  is the client, too: it builds the graph of all, feeds it and runs it
    ps        numbers the updates and keeps the books; no weight is there

        h_0 := a micro-batch,  h_s+1 := f_s(w_s, h_s)       (worker s, to s + 1)
        δ_s := ∂ loss / ∂ h_s from δ_s+1                    (worker s, to s − 1)
        w_s ← w_s − η (1/M) ∑ ∂ loss / ∂ w_s over M micro-batches     (worker s)

Differs from In-Graph-Replication: workers have different layers of one model, not all
of it; activations are on the wire, not weights.
Paper: Huang et al., GPipe, 2019, arXiv 1811.06965, section 2.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

import functools

import problem
from cluster import (
    books,
    exits,
    flags,
    protocol,
    report,
    rounds,
    serve,
    stages,
    start,
    timeline,
    towers,
)
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Model-Parallelism", __doc__)
    flags.add_cluster_flags(parser)
    add = parser.add_argument
    add("--stages", type=flags.positive_int, help="S, if not one on every worker")
    add("--micro_batches", type=flags.positive_int, default=4, help="M")
    parser.set_defaults(one_client=True, shards=1, batch_size=128, steps=2000)
    return stages.checked(flags.parse(parser, argv), problem.DEPTH)


# --- Graph [algorithm] -------------------------------------------------------


def variables(args, learning):
    """Returns the weights w_s of each stage, flat, on its worker."""
    return stages.variables(args, learning)


def groups(args):
    """Returns what makes an update together: all stages, in the books of the client."""
    return [[0]]


def pipeline(args, center, learning, batch, after=()):
    """Returns the losses of the M micro-batches, and each stage's mean gradient.

    A stage makes all forwards, then all backwards, one after the other.
    """
    layers = stages.cut(args, learning.layers)
    images, labels = (tf.split(part, args.micro_batches) for part in batch)
    w = stages.pull(center, after)
    busy, sent = [[weights] for weights in w], [images, *[[] for _ in layers]]
    h, gradients = ([[] for _ in layers] for _ in range(2))
    delta = [None] * args.micro_batches

    # h_s+1 := f_s(w_s, h_s)   (worker s; after the last stage it is the loss)
    for s, stage in enumerate(layers):
        for m in range(args.micro_batches):
            with stages.unit("forward", s, m, busy):
                h[s].append(stages.arrived(sent[s][m]))
                out = stages.apply(stage, w[s], h[s][m])
                out = out if stage is not layers[-1] else learning.cost(out, labels[m])
            sent[s + 1].append(out)
            busy[s] = [out]

    # δ_s := ∂ loss / ∂ h_s from δ_s+1,  g_s := the mean of ∂ loss / ∂ w_s
    for s in reversed(range(len(layers))):
        for m in reversed(range(args.micro_batches)):
            with stages.unit("backward", s, m, busy):
                given = None if delta[m] is None else stages.arrived(delta[m])
                g, delta[m] = tf.gradients(sent[s + 1][m], [w[s], h[s][m]], given)
            gradients[s].append(g)
            busy[s] = [g, delta[m]] if s else [g]
    return sent[-1], stages.mean(gradients)


def graph(args, center, kept, group, batches, learning, last):
    """Builds one round of the whole pipeline that begins after the `last` one.

    `kept` are the books on ps 0, `batches[0]()` a fresh mini-batch, on the client.
    """
    losses, gradients = pipeline(args, center, learning, batches[0](), last.update)

    # all stages are through   (workers → ps 0, which gives the update its number)
    with tf.name_scope("push"):
        over = stages.meet(kept.device, gradients)
        sent = stages.sent(args, learning.layers)
        entry = kept.enter([over], args.batch_size, over, sent=sent)

    # w_s ← w_s − η g_s   (worker s)
    with tf.name_scope("update"):

        def rule(w, g):
            return w.assign_sub(args.learning_rate * g, read_value=False)

        update = rounds.update(center, gradients, entry.applied, rule)
    return rounds.Round(tf.add_n(losses) / args.micro_batches, entry, update)


def measured(args, center, learning):
    """Returns what measures, in a session, what the stages do when; see stages."""
    work = pipeline(args, center, learning, learning.batch())
    return lambda session: stages.told(args, timeline.trace(session, work), learning)


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    client = args.job_name == "worker" and args.task_index == 0
    start.begin(args, problem, name=f"{args.job_name}-{args.task_index}")
    data = flags.data(problem, args, args.shards) if client else None

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=args.task_index)
    if not client:
        return serve.serve(server, args)

    # Placement: the client builds the graph of all. The setter puts variables on the
    # ps, in turn, and all that has no device of its own on the client.
    device = "/job:worker/task:0"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=device)):
        shards = [
            problem.build(data, args.batch_size, args.seed, k, args.shards)
            for k in range(args.shards)
        ]
        batches = towers.batches(args, shards)
        center = variables(args, shards[0])
        kept = books.Books(args)
        one = functools.partial(graph, args, center, kept)  # round, of a group
        calls = towers.calls(one, groups(args), batches, shards[0])
        test = shards[0].test(rounds.pull(center))
        measure = measured(args, center, shards[0])

    # Session: it waits for all tasks, since its graph is on all of them.
    config = tf.ConfigProto()
    elements = sum(piece.shape.num_elements() for piece in center)
    run = protocol.Protocol(args, server.target, config, kept, elements)
    notes = report.Report(args, shards[0].metric, test)
    options = dict(
        master=server.target,
        config=config,
        scaffold=run.scaffold(*towers.inputs(shards)),
        hooks=[run.hook()],
        checkpoint_dir=args.logdir,
        save_checkpoint_secs=args.save_seconds,
        save_graph_def=False,  # as text it takes half a second; this file makes it
        log_step_count_steps=None,
    )
    report.print_placement()
    with run, tf.train.MonitoredTrainingSession(**options) as session:

        def make_rounds(step_context):
            towers.make(calls, step_context.session, notes)

        # Loop: about a second of rounds in bare calls, then the hooks have a look.
        while not run.finished(session, notes):
            session.run_step_fn(make_rounds)
            notes.draw(session)

        # Result: what the books say and what the center variable is worth.
        notes.write(session, {**run.account(session), **measure(session)})


if __name__ == "__main__":
    exits.run(main)
