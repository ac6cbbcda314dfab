"""parameter_server_strategy: the same learning by ParameterServerStrategy.

    ps        holds a piece of w; ps 0 counts the updates
    worker k  pulls w, computes a gradient on its mini-batch, pushes it
    worker 0  is the coordinator too: it runs the loop, hands every step to the worker
              that is free first, and joins them about once a second

        g := ∇ loss(w_seen; mini-batch)     (worker, at the w it pulled)
        w ← w − η g                         (ps, whatever w is when it arrives)

The high-level way of TensorFlow 2, with a training loop of one's own. The update is
HogWild's; one client orders all steps, where HogWild has a client per worker. Usually
the coordinator is a task of its own. Here it shares the process of worker 0, so that
HogWild's flags, TF_CONFIG and run.sh start it.
Run: bash run.sh
"""

import time

from cluster import board, flags, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
import problem
from coordinator import ROOM, Checkpoints, Log, begin, ends_all, print_placement

THREADS = 8  # of a server, for operations that run at the same time
JOIN = 1.0  # about so many seconds are from one join to the next


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = flags.parser("parameter_server_strategy", __doc__)
    flags.add_cluster_flags(parser)
    add = parser.add_argument
    add("--steps_per_call", type=flags.positive_int, default=1, help="of a function")
    parser.set_defaults(one_client=True)  # all tasks but worker 0 only serve
    args = flags.parse(parser, argv)
    return args


def connect(args, spec):
    """Returns the strategy and the coordinator of a cluster that is there."""
    import tensorflow as tf2

    def pieces(shape, dtype, **_):  # w in even pieces, one on each ps; counters whole
        count = len(args.ps_hosts) if dtype.is_floating else 1
        return [count] + [1] * (len(shape) - 1)

    distribute = tf2.distribute
    resolver = distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = distribute.ParameterServerStrategy(resolver, variable_partitioner=pieces)
    return strategy, distribute.coordinator.ClusterCoordinator(strategy)


def variables(args, strategy, shapes):
    """Returns w, and the updates by worker and by staleness: what is on the ps."""
    with strategy.scope():
        center = tf.Variable(problem.initial(shapes, args.seed), name="center")
        none = tf.zeros([2, ROOM], tf.int64)
        return center, tf.Variable(none, name="counters")  # on ps 0: it is next


def batches(args, data):
    """Returns the mini-batches of the worker that calls it, as `problem.batches` does.

    Worker k of N trains on rows k, k + N, k + 2N ...
    """
    import tensorflow as tf2

    k = tf2.distribute.coordinator.experimental_get_current_worker_index()
    workers = len(args.worker_hosts)
    dataset = tf.data.Dataset.from_tensor_slices((data.x_train, data.y_train))
    dataset = dataset.shard(workers, k)
    rows = -(-len(data.y_train) // workers)  # of the largest shard
    dataset = dataset.shuffle(rows, seed=args.seed + k).repeat()
    dataset = dataset.batch(args.batch_size).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False  # see problem.py
    return dataset.with_options(options)


def training(args, shared, shapes):
    """Returns train(iterator, n), which a worker runs: n steps, and their mean loss.

    `shared` is what `variables` returned.
    """
    import tensorflow as tf2

    center, counters = shared

    def count(row, entry):
        place = tf.stack([tf.constant(row, tf.int64), tf.minimum(entry, ROOM - 1)])
        counters.scatter_nd_add([place], tf.ones([1], tf.int64))

    def one_step(batch):
        # w_seen := w   (ps → worker; seen := updates applied to it, stays on ps 0)
        with tf.device(counters.device):
            seen = tf.reduce_sum(counters.read_value()[0])
        w = tf.convert_to_tensor(center)
        # g := ∇ loss(w_seen; mini-batch)   (worker)
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = problem.loss(w, batch, shapes, training=True)
        gradient = tape.gradient(value, w)
        # w ← w − η g   (worker → ps: each its piece)
        center.assign_sub(args.learning_rate * gradient)
        # staleness := updates applied between pull and push   (on ps 0). The count is
        # read after it was raised, so that it may have what others add in between.
        with tf.control_dependencies([gradient]):
            index = tf2.distribute.coordinator.experimental_get_current_worker_index()
            k = tf.identity(index)
        with tf.device(counters.device):
            count(0, k)
            count(1, tf.reduce_sum(counters.read_value()[0]) - 1 - seen)
        return value

    @tf.function
    def train(iterator, count):
        return tf.add_n([one_step(next(iterator)) for _ in range(count)]) / count

    return train


def coordinate(args, data, spec):
    """Trains; returns when all updates are made and the result is written."""
    strategy, coordinator = connect(args, spec)
    shapes = problem.shapes_of(data)
    shared = variables(args, strategy, shapes)
    print_placement(shared)
    checkpoints = Checkpoints(args, shared)
    checkpoints.restore()
    iterator = iter(coordinator.create_per_worker_dataset(lambda: batches(args, data)))
    train = training(args, shared, shapes)

    def test(w):
        batch = data.x_test, data.y_test
        return problem.loss(w, batch, shapes), problem.accuracy(w, batch, shapes)

    log = Log(args, shared, test)
    step, calls = log.begun, 1
    while step < args.steps:
        began, left = time.monotonic(), args.steps - step
        for _ in range(calls):
            count = min(args.steps_per_call, left)
            if count:
                last = coordinator.schedule(train, args=(iterator, count))
            left -= count
        coordinator.join()  # what a lost worker was to do another one does
        step = log.joined(float(coordinator.fetch(last)))
        checkpoints.save_if_due()
        fit = calls * JOIN / (time.monotonic() - began)
        calls = max(1, min(int(fit), 10 * calls))
    checkpoints.save()
    log.end()


def main():
    args = parse_args()
    data = task.begin(args, problem)
    # From here on only the ps are needed: who does without a worker is TensorFlow.
    args.one_client = False
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    # A step waits in several threads at once: with one core there would be too few.
    config = tf.ConfigProto(inter_op_parallelism_threads=THREADS)
    server = tf.train.Server(spec, args.job_name, args.task_index, config=config)
    if data is None:  # a ps, or a worker that is not the coordinator
        return board.serve(server, args)
    tf.enable_eager_execution()
    # The servers of TensorFlow would serve for ever: at the end they are sent away.
    with ends_all(args, server):
        begin(args, server)
        coordinate(args, data, spec)


if __name__ == "__main__":
    task.run(main)
