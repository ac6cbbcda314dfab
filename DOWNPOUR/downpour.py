"""DOWNPOUR: DOWNPOUR-Easy with Adagrad, or another optimizer, on the worker too.

    ps      holds the center variable w and Adagrad's accumulator s
    worker  pulls w, takes T steps of its own optimizer, pushes the sum of gradients

        local ← w                                                 (worker: pull)
        T times: g := ∇ loss(local; a fresh mini-batch)           (worker)
                 a ← a + g²,  local ← local − η g / √a            (worker, by element)
                 total ← total + g                                (worker)
        s ← s + total²,  w ← w − γ total / √s                     (ps: update)

Differs from DOWNPOUR-Easy: the local steps are those of an optimizer of tf.train. The
variables of this optimizer (its slots, as a) belong to the worker. They are never
pushed, saved or shared.
Paper: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.1,
with n_push = n_fetch = T. The client of its appendix is that of DOWNPOUR-Easy.
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
    parser = flags.parser("DOWNPOUR", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--window", type=flags.positive_int, default=5, help="T, local steps per push")
    add("--server_learning_rate", type=flags.positive, default=0.05, help="γ, on a ps")
    return flags.parse(parser, argv)


# --- Graph [algorithm] -------------------------------------------------------


def own(create, **options):
    """Makes a variable this worker's own: never pushed, saved or shared."""
    options.update(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    return create(**options)


def state(args, center, stats):
    """Returns what the rounds share: Adagrad on each ps; here a copy, an optimizer."""
    with tf.variable_creator_scope(own), tf.device(f"/job:worker/task:{stats.me}"):
        copy = tf.get_variable("local", initializer=tf.zeros_like(rounds.pull(center)))
    optimizer = tf.train.AdagradOptimizer(args.learning_rate)
    adagrad = {
        # The paper's s starts at 0; without use_locking two updates could mix.
        piece.device: tf.train.AdagradOptimizer(
            args.server_learning_rate, initial_accumulator_value=1e-20, use_locking=True
        )
        for piece in center
    }
    return copy, optimizer, adagrad


def graph(args, center, stats, shared, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `stats` are the counters on ps 0, `shared` is what `state` returned, `batch()` a
    fresh mini-batch, `loss(w, batch)` its scalar loss at w [P].
    """
    copy, optimizer, adagrad = shared

    # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
    with tf.name_scope("pull"):
        pulled = rounds.pull(center, after=last.update)
        seen = stats.read_step(after=last.update[:1])

    # Batch and loss are built in the loop's body: every step has its own mini-batch and
    # its own forward pass. One forward pass for all would give T equal gradients.
    def local_step(i, local, total, _):
        # g := ∇ loss(local; a fresh mini-batch)   (worker)
        value = loss(local, batch())
        gradient = rounds.gradient(value, local)
        # a ← a + g²,  local ← local − η g / √a,  total ← total + g
        step = optimizer.apply_gradients([(gradient, copy)])
        with tf.control_dependencies([step]):
            return i + 1, copy.read_value(), total + gradient, value

    # The optimizer's slots are made as the copy is: this worker's own.
    own_slots = tf.variable_creator_scope(own), tf.device(copy.device)
    with tf.name_scope("gradient"), own_slots[0], own_slots[1]:
        # Nor does the loop begin before w is here: it would draw its batches too early.
        with tf.control_dependencies([pulled, *last.local]):
            local = copy.assign(pulled).read_value()
            zero = tf.constant(0)
        begin = zero, local, rounds.zeros(pulled), 0.0
        _, after, total, value = tf.while_loop(
            lambda i, *_: i < args.window, local_step, begin, parallel_iterations=1
        )

    # total   (worker → ps, where ps 0 gives the update its number)
    # staleness := that number − seen: updates applied between pull and push
    with tf.name_scope("push"):
        pushed = rounds.push(total, center)
        counted = stats.count(pushed, args.window * args.batch_size, pulled, seen)

    # s ← s + total²,  w ← w − γ total / √s   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, total):
            return adagrad[w.device].apply_gradients([(total, w)])

        update = rounds.update(center, pushed, counted.applied, rule)
    return rounds.Round(value, counted, update, local=[after])


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
