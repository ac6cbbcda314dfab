"""DC-ASGD: a first-order term repairs what the gradient missed meanwhile.

    ps      holds the center variable w, and what each worker has pulled of it: w_seen
    worker  pulls w, computes a gradient on its mini-batch, pushes it

        g := ∇ loss(w_seen; mini-batch)                    (worker k)
        MS_k ← m MS_k + (1 − m) g ⊙ g                      (ps, if λ is adaptive)
        λ := λ₀  or, adaptive,  λ₀ / √(MS_k + ε)           (ps)
        w ← w − η (g + λ g ⊙ g ⊙ (w − w_seen))             (ps, whatever w is by then)

Differs from HogWild: what others have done to w since the pull is in the gradient, to
first order, with λ g ⊙ g in the place of the Hessian.
Paper: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, Asynchronous Stochastic Gradient Descent
with Delay Compensation, ICML 2017, arXiv 1609.08326, Algorithms 1 and 2.
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

STRENGTH = {"constant": 0.04, "adaptive": 2.0}  # λ₀ of the paper


def parse_args(argv=None):
    parser = flags.parser("DC-ASGD", __doc__)
    flags.add_cluster_flags(parser)
    add = parser.add_argument
    add("--variance", choices=tuple(STRENGTH), default="adaptive", help="control: λ")
    add("--strength", type=flags.not_negative, help="λ₀ (None: as in the paper)")
    add("--decay", type=flags.fraction, default=0.95, help="m, of the mean square")
    parser.set_defaults(learning_rate=0.2)
    args = flags.parse(parser, argv)
    if args.strength is None:
        args.strength = STRENGTH[args.variance]
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, kept):
    """Returns what the rounds share: each worker's mean square MS_k, on each ps."""
    squares = {}
    for piece in center if args.variance == "adaptive" else []:
        with tf.device(piece.device):
            zeros = tf.zeros([len(args.worker_hosts), *piece.shape])
            squares[piece.device] = kept.temporary("mean_square", zeros)
    return squares


def graph(args, center, kept, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `kept` are the books on ps 0, `shared` is what `state` returned, `batch()` a fresh
    mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # w_seen := w   (ps → worker; it stays on the ps too, as does the count seen)
    with tf.name_scope("pull"):
        held = rounds.read(center, after=last.update)
        w_seen = {w.device: piece for w, piece in zip(center, held, strict=True)}
        pulled = tf.concat(held, axis=0)
        seen = kept.read_step(after=last.update[:1])

    # g := ∇ loss(w_seen; mini-batch)   (worker)
    with tf.name_scope("gradient"):
        value = loss(pulled, batch())
        (gradient,) = tf.gradients(value, pulled)

    # g   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(gradient, center)
        entry = kept.enter(pushed, args.batch_size, pulled, seen)

    # λ := λ₀ / √(MS_k + ε),  MS_k ← m MS_k + (1 − m) g ⊙ g before   (ps)
    def variance(w, g):
        if args.variance == "constant":
            return args.strength
        squares = shared[w.device]
        now = args.decay * tf.gather(squares, kept.me) + (1 - args.decay) * g * g
        with tf.control_dependencies([squares[kept.me].assign(now).op]):
            return args.strength / tf.sqrt(now + 1e-7)

    # w ← w − η (g + λ g ⊙ g ⊙ (w − w_seen))   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, g):
            missed = variance(w, g) * g * g * (w.read_value() - w_seen[w.device])
            return w.assign_sub(args.learning_rate * (g + missed), read_value=False)

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
