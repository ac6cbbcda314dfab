"""Model-Parallelism: the layers are spread over the workers, which form a pipeline.

    worker s  holds w_s, the weights of its layers, and computes only these layers
    worker 0  is also the client: it builds the graph of all workers, feeds and runs it
    ps        numbers and counts the updates; it holds no weights

        h_0 := a micro-batch,  h_s+1 := f_s(w_s, h_s)       (worker s, to s + 1)
        δ_s := ∂ loss / ∂ h_s from δ_s+1                    (worker s, to s − 1)
        w_s ← w_s − η (1/M) ∑ ∂ loss / ∂ w_s over M micro-batches     (worker s)

Differs from In-Graph-Replication: each worker has some layers of one model, not all of
it. The network carries activations, not weights.
Paper: Huang et al., GPipe, 2019, arXiv 1811.06965, section 2.
Run: bash run.sh
"""

# --- Imports [algorithm] -----------------------------------------------------

from cluster import board, flags, rounds, run, stages, task, timeline, towers
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Model-Parallelism", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--stages", type=flags.positive_int, help="S, one on every worker if not given")
    add("--micro_batches", type=flags.positive_int, default=4, help="M per mini-batch")
    parser.set_defaults(one_client=True, shards=1, batch_size=128, steps=2000)
    return stages.checked(flags.parse(parser, argv), problem.DEPTH)


# --- Graph [algorithm] -------------------------------------------------------


def variables(args, learning):
    """Returns the weights w_s of each stage, flat, on its worker."""
    return stages.variables(args, learning)


def groups(args):
    """Returns what makes an update together: all stages, counted for the client."""
    return [[0]]


def pipeline(args, center, learning, batch, after=()):
    """Returns the losses of the M micro-batches, and each stage's mean gradient.

    A stage makes all forwards, then all backwards, one after the other.
    """
    layers = stages.cut(args, learning.layers)
    images, labels = (tf.split(part, args.micro_batches) for part in batch)
    w = rounds.read(center, after)  # where they are: no message
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


def graph(args, center, stats, group, batches, learning, last):
    """Builds one round of the whole pipeline that begins after the `last` one.

    `stats` are the counters on ps 0, `batches[0]()` a fresh mini-batch, on the client.
    """
    losses, gradients = pipeline(args, center, learning, batches[0](), last.update)

    # all stages are through   (workers → ps 0, which gives the update its number)
    with tf.name_scope("push"):
        over = stages.meet(stats.device, gradients)
        sent = stages.sent(args, learning.layers)
        counted = stats.count([over], args.batch_size, over, sent=sent)

    # w_s ← w_s − η g_s   (worker s)
    with tf.name_scope("update"):

        def rule(w, g):
            return w.assign_sub(args.learning_rate * g, read_value=False)

        update = rounds.update(center, gradients, counted.applied, rule)
    return rounds.Round(tf.add_n(losses) / args.micro_batches, counted, update)


def measured(args, center, learning):
    """Returns what measures, in a session, what the stages do when; see stages."""
    work = pipeline(args, center, learning, learning.batch())

    def measure(session):
        return stages.told(args, session, timeline.trace(session, work), learning)

    return measure


# --- Worker and ps -----------------------------------------------------------


def main():
    args = parse_args()
    data = task.begin(args, problem)

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=args.task_index)
    if data is None:  # a ps, or a worker that is not the client
        return board.serve(server, args)  # until the client says that the run is over

    # Placement: the client builds the graph of all. The setter puts variables on the
    # ps, in turn, and all that has no device of its own on the client.
    setter = tf.train.replica_device_setter(cluster=spec, worker_device=args.device)
    with tf.device(setter):
        shards = [
            contract.build(problem, data, args, k, args.shards)
            for k in range(args.shards)
        ]
        learning, batches = shards[0], [rounds.in_turn(shard.batch) for shard in shards]
        batches = slow.late_batches(batches, args)
        center = variables(args, learning)
        stats = Stats(args)
        calls = towers.Calls(
            lambda group, last: graph(
                args, center, stats, group, batches, learning, last
            ),
            groups(args),
        )
        test = learning.test(rounds.pull(center))
        measure = measured(args, center, learning)
    training = run.Run(args, server, learning, stats, calls, test)
    training.extra = measure  # of the session, for result.json

    # Begin: the client initialises w, or restores it.
    with training:
        # Loop: a call is up to ten rounds. If a task is lost in here, the run goes on
        # from the last checkpoint.
        while training.left > 0:
            with training.recovering():
                losses, counts = calls.make(training.session, training.left)
                training.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: the client tests w and writes result.json.
        training.end()


if __name__ == "__main__":
    task.run(main)
