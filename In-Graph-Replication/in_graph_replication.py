"""In-Graph-Replication: one program builds one graph that runs on all workers.

    ps        holds the center variable w
    worker 0  is the client: it builds the graph, feeds and runs it, and has a tower
    worker k  only serves: it computes its tower, which the graph has placed on it

        g_k := ∇ loss(w; mini-batch k)      (worker k, on what the client sends it)
        w ← w − η (1/N) ∑ g_k               (ps, when the graph has all N)

Differs from Distributed-Setup: the other workers have no client of their own. An update
waits for all towers, because the graph has edges from all of them to the update. With
--asynchronous each tower makes its own updates, run by a thread of the client.
Paper: Abadi et al., TensorFlow, 2016, arXiv 1603.04467, section 7.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

from cluster import addresses, board, flags, rounds, run, task, towers
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import contract
import problem
import slow

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("In-Graph-Replication", __doc__)
    flags.add_cluster_flags(parser)
    slow.add_flag(parser)
    add = parser.add_argument
    add("--asynchronous", action="store_true", help="each gradient is its own update")
    parser.set_defaults(one_client=True)
    args = flags.parse(parser, argv)
    args.shards = len(args.worker_hosts)  # of the data: one for each tower
    return args


# --- Graph [algorithm] -------------------------------------------------------


def variables(args, learning):
    """Returns the pieces of the center variable, an even one on each ps."""
    pieces = tf.fixed_size_partitioner(len(args.ps_hosts))
    return list(
        tf.get_variable("center", initializer=learning.start, partitioner=pieces)
    )


def groups(args):
    """Returns the towers that make an update together: all, or each alone."""
    everybody = list(range(len(args.worker_hosts)))
    return [[k] for k in everybody] if args.asynchronous else [everybody]


def graph(args, center, stats, group, batches, learning, last):
    """Builds one round of a group of towers that begins after the `last` one.

    `stats` are the counters on ps 0, `batches[k]()` a fresh mini-batch of shard k, on
    the client, `learning.loss(w, batch)` its scalar loss at w [P].
    """
    losses, gradients = [], []
    seen = stats.read_step(after=last.update[:1]) if args.asynchronous else None
    for k in group:
        inputs = batches[k]()
        with tf.device(addresses.device("worker", k)), tf.name_scope(f"tower_{k}"):
            # w   (ps → worker k)
            pulled = rounds.pull(center, after=last.update)

            # g_k := ∇ loss(w; mini-batch k)   (client → worker k: the mini-batch)
            losses.append(learning.loss(pulled, inputs))
            gradients.append(rounds.gradient(losses[-1], pulled))

    # g := (1/N) ∑ g_k   (workers → ps, where ps 0 gives the update its number)
    with tf.name_scope("push"):
        arrived = zip(*[rounds.push(g, center) for g in gradients], strict=True)
        pushed = []
        for variable, pieces in zip(center, arrived, strict=True):
            with tf.device(variable.device):
                pushed.append(tf.add_n(pieces) / len(group))
        counted = towers.count(stats, group, pushed, args.batch_size, pulled, seen)

    # w ← w − η g   (ps: each for its piece of w)
    with tf.name_scope("update"):

        def rule(w, g):
            return w.assign_sub(args.learning_rate * g, read_value=False)

        update = rounds.update(center, pushed, counted.applied, rule)
    return rounds.Round(tf.add_n(losses) / len(group), counted, update)


def measured(args, center, learning):
    """Returns what, given a session, returns what result.json says beside the counters.

    That is what the client has to bear for the other workers.
    """
    sent = towers.bytes_of(learning.batch(), args.batch_size)
    each = sent * (len(args.worker_hosts) - 1) / len(groups(args))
    return lambda session: {
        "input_bytes_per_step": each,
        **towers.graph_size(session),
    }


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
