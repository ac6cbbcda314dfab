"""DC-ASGD: the ps corrects each gradient for the updates made since its pull.

    ps      holds the center variable w, and the w_seen that each worker has pulled
    worker  pulls w, computes a gradient on a mini-batch of its data, pushes it

        g := ∇ loss(w_seen; mini-batch)                    (worker k)
        MS_k ← m MS_k + (1 − m) g ⊙ g                      (ps, if λ is adaptive)
        λ := λ₀  or, adaptive,  λ₀ / √(MS_k + ε)           (ps)
        w ← w − η (g + λ g ⊙ g ⊙ (w − w_seen))             (ps, at the w of that moment)

Differs from HogWild: the ps adds to each gradient how it changes, to first order, on
the way from w_seen to w. It uses λ g ⊙ g in place of the Hessian.
Paper: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, Asynchronous Stochastic Gradient Descent
with Delay Compensation, ICML 2017, arXiv 1609.08326, Algorithms 1 and 2.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import board, flags, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------

STRENGTH = {"constant": 0.04, "adaptive": 2.0}  # λ₀ of the paper


def parse_args(argv=None):
    parser = flags.parser("DC-ASGD", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--variance", choices=tuple(STRENGTH), default="adaptive", help="control: λ")
    add("--strength", type=flags.not_negative, help="λ₀ (the paper's if not given)")
    add("--decay", type=flags.fraction, default=0.95, help="m, decay of mean square")
    parser.set_defaults(learning_rate=0.2)
    args = flags.parse(parser, argv)
    if args.strength is None:
        args.strength = STRENGTH[args.variance]
    return args


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share: each worker's mean square MS_k, on each ps."""
    squares = {}
    for piece in center if args.variance == "adaptive" else []:
        with tf.device(piece.device):
            zeros = tf.zeros([len(args.worker_hosts), *piece.shape])
            squares[piece.device] = stats.temporary("mean_square", zeros)
    return squares


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # w_seen := w   (ps → worker; it stays on the ps too, as does the count seen)
    with tf.name_scope("pull"):
        held = rounds.read(center, after=last.update)
        w_seen = {w.device: piece for w, piece in zip(center, held, strict=True)}
        pulled = tf.concat(held, axis=0)
        seen = stats.read_step(after=last.update[:1])

    # g := ∇ loss(w_seen; mini-batch)   (worker)
    with tf.name_scope("gradient"):
        value = loss(pulled, batch())
        gradient = rounds.gradient(value, pulled)

    # g   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(gradient, center)
        counted = stats.count(pushed, args.batch_size, pulled, seen)

    # λ := λ₀ / √(MS_k + ε),  MS_k ← m MS_k + (1 − m) g ⊙ g before   (ps)
    def variance(w, g):
        if args.variance == "constant":
            return args.strength
        squares = shared[w.device]
        now = args.decay * tf.gather(squares, stats.me) + (1 - args.decay) * g * g
        with tf.control_dependencies([squares[stats.me].assign(now).op]):
            return args.strength / tf.sqrt(now + 1e-7)

    # w ← w − η (g + λ g ⊙ g ⊙ (w − w_seen))   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, g):
            missed = variance(w, g) * g * g * (w.read_value() - w_seen[w.device])
            return w.assign_sub(args.learning_rate * (g + missed), read_value=False)

        update = rounds.update(center, pushed, counted.applied, rule)
    return rounds.Round(value, counted, update)


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
