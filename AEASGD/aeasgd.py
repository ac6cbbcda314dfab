"""AEASGD: each worker has its own weights, which stay near the shared ones.

    ps      holds the center variable w, adds each pushed elastic difference to it
    worker  keeps its own weights x, and exchanges E with the ps every T steps

        E := α (x − w)                                   (worker: pull, α := β / N)
        w ← w + E                                        (ps: update)
        x ← x − E − η ∇ loss(x; a fresh mini-batch)      (worker)
        T − 1 times: x ← x − η ∇ loss(x; a fresh mini-batch)

Differs from DOWNPOUR-Easy: a worker pushes the elastic difference E. It keeps its own
weights for the whole run, and no pull overwrites them.
Paper: Zhang, Choromanska, LeCun, Deep learning with Elastic Averaging SGD, NIPS 2015,
arXiv 1412.6651, Algorithm 1.
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


def parse_args(argv=None):
    parser = flags.parser("AEASGD", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--window", type=flags.positive_int, default=16, help="T, local steps per push")
    add("--beta", type=flags.fraction, default=0.9, help="β; moving rate α = β / N")
    parser.set_defaults(learning_rate=0.4, steps=1000)
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def state(args, center, stats):
    """Returns what the rounds share: x, this worker's own, never saved or shared."""
    scope = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    with tf.device(f"/job:worker/task:{stats.me}"):
        # x starts as w, and no pull overwrites it.
        return tf.get_variable("x", initializer=rounds.pull(center), **scope)


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
    with tf.name_scope("pull"):
        # Not before the local steps: E was pushed before them.
        after = [[update, *last.local] for update in last.update]
        pulled = rounds.pull(center, after)
        seen = stats.read_step(after[:1])

    # E := α (x − w)   (worker)
    with tf.name_scope("elastic"):
        with tf.control_dependencies(last.local):
            before = shared.read_value()
        elastic = args.beta / len(args.worker_hosts) * (before - pulled)

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, exchanged, _):
        # g := ∇ loss(x; a fresh mini-batch), at the x before the exchange   (worker)
        value = loss(local, batch())
        gradient = rounds.gradient(value, local)
        # x ← x − E − η g, and from the second step on without E
        local = local - exchanged - args.learning_rate * gradient
        return i + 1, local, rounds.zeros(exchanged), value

    with tf.name_scope("gradient"):
        # Not before w is here: the loop would draw its mini-batches too early.
        with tf.control_dependencies([pulled]):
            zero = tf.constant(0)
        begin = zero, before, elastic, 0.0
        _, after, _, value = tf.while_loop(
            lambda i, *_: i < args.window, local_step, begin, parallel_iterations=1
        )
        x = shared.assign(after, read_value=False)

    # E   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(elastic, center)
        counted = stats.count(pushed, args.window * args.batch_size, pulled, seen)

    # w ← w + E   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, elastic):
            return w.assign_add(elastic, read_value=False)

        update = rounds.update(center, pushed, counted.applied, rule)
    return rounds.Round(value, counted, update, local=[x])


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
