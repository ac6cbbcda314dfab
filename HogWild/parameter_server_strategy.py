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
Run: SCRIPT=parameter_server_strategy.py bash run.sh
"""

import contextlib
import time

import numpy as np

import problem
from cluster import addresses, flags, heartbeat, ports, report, rounds, run, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used

ROOM = 1000  # workers, and values of staleness, that are told apart
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
    if any(args.slow_workers):
        task.fail("--slow_workers: a worker runs no Python here that could sleep")
    return args


# --- What the strategy has ----------------------------------------------------


def connect(args, spec):
    """Returns the strategy and the coordinator, once all other tasks are there."""
    import tensorflow as tf2

    others = addresses.serving(args)

    def missing():
        return [one for one, host in others.items() if not ports.answers(host)]

    def what():
        one = [*missing(), *others][0]
        return "{} {}: nothing answers at {}".format(*one, others[one])

    heartbeat.wait(lambda: not missing(), what, heartbeat.STARTING * args.patience)

    def pieces(shape, dtype, **_):  # w in even pieces, one on each ps; counters whole
        return [len(args.ps_hosts) if dtype.is_floating else 1] + [1] * (len(shape) - 1)

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


# --- What the loop of the coordinator needs ------------------------------------


class Checkpoints:
    """What `variables` has, saved in LOGDIR by the coordinator alone, and restored."""

    def __init__(self, args, shared):
        import tensorflow as tf2

        # Without it each ps would write its own files on its own machine.
        here = "/job:chief/replica:0/task:0/device:CPU:0"
        self.options = tf2.train.CheckpointOptions(experimental_io_device=here)
        self.center, self.counters = shared
        self.all = tf2.train.Checkpoint(center=self.center, counters=self.counters)
        self.saved = time.monotonic()
        self.manager = tf2.train.CheckpointManager(
            self.all, args.logdir, max_to_keep=5, checkpoint_name="model.ckpt"
        )

    def restore(self):
        """Returns the global step of the newest checkpoint, 0 if there is none."""
        path = self.manager.latest_checkpoint
        if path:
            try:
                status = self.all.read(path, self.options)
                status.assert_existing_objects_matched()
            except (AssertionError, ValueError, tf.errors.OpError) as error:
                reason = str(error).strip().splitlines()[0]
                task.fail(f"cannot resume from {path}: {reason}", 1)
        return self.step()

    def step(self):
        """Returns the global step: the updates of all workers."""
        return int(self.counters.numpy()[0].sum())

    def save(self):
        """Saves; returns the global step."""
        step = self.step()
        self.manager.save(step, options=self.options)
        self.saved = time.monotonic()
        return step


    def save_before_the_end(self):
        """Saves when this task is told to end; the ps may be ending, too."""
        with contextlib.suppress(tf.errors.OpError):
            print(f"told to end: saved at global step {self.save()}")


class Report(report.Report):
    """What the coordinator prints, draws and writes, tested without a session."""

    def test(self, _):
        return [float(value) for value in self.tensors()]


def counted(args, shared, before, first, times):
    """Returns what result.json says of the run: counters since step 0, and rates.

    `before` is the step that it began with, `first` the one at the first of `times`.
    """
    made, stale = shared[1].numpy()
    step = int(made.sum())
    seconds = max(times[1] - times[0], 1e-6) if times else 0.0
    rate = (step - first) / seconds if seconds else 0.0
    size = 4 * sum(piece.shape.num_elements() for piece in pieces_of(shared[0]))
    return {
        "global_steps": step,
        "resumed_from": before,
        "examples": step * args.batch_size,
        "seconds": seconds,
        "seconds_to_all_started": 0.0,  # the coordinator does not see it
        "examples_per_second": rate * args.batch_size,
        "steps_per_second": rate,
        "rounds_per_worker": dict(enumerate(made[: len(args.worker_hosts)].tolist())),
        "gradients_dropped": 0,
        "bytes_pushed": step * size,
        "bytes_pulled": step * size,
        "mean_staleness": float(stale @ np.arange(ROOM) / max(1, stale.sum())),
        "max_staleness": int(np.flatnonzero(stale).max(initial=0)),
    }


def pieces_of(variable):
    """Returns the variables that a variable of the strategy is on the ps."""
    return getattr(variable, "variables", [variable])


def print_placement(shared):
    """Prints which variable lives on which device."""
    print(f"{'variable':32}{'elements':>10}  device")
    for variable in shared:
        for piece in pieces_of(variable):
            name, size = piece.name.partition(":")[0], piece.shape.num_elements()
            print(f"{name:32}{size:>10}  {piece.device}")


def send_away(args, server):
    """Tells the other tasks that the run is over: by themselves they serve for ever."""
    for one, host in addresses.serving(args).items():
        config = tf.ConfigProto(device_filters=[addresses.device(one)])
        config.operation_timeout_in_ms = 1000 * heartbeat.ANSWER
        with contextlib.suppress(tf.errors.OpError), tf.Graph().as_default():
            told = heartbeat.over(one).enqueue(True)
            if ports.answers(host):
                with tf.Session(server.target, config=config) as session:
                    session.run(told)


# --- Coordinator, worker and ps ---------------------------------------------------


def coordinate(args, data, spec):
    """Trains; returns when all updates are made and the result is written."""
    strategy, coordinator = connect(args, spec)
    shapes = problem.shapes_of(data)
    shared = variables(args, strategy, shapes)
    print_placement(shared)
    checkpoints = Checkpoints(args, shared)
    before = step = checkpoints.restore()
    if before:
        print(f"resumes from global step {before}")
    iterator = iter(coordinator.create_per_worker_dataset(lambda: batches(args, data)))
    train = training(args, shared, shapes)

    def tested():
        w, batch = tf.convert_to_tensor(shared[0]), (data.x_test, data.y_test)
        return problem.loss(w, batch, shapes), problem.accuracy(w, batch, shapes)

    log = Report(args, "accuracy", (tested, None))
    task.before_the_end(checkpoints.save_before_the_end)
    calls, first, table = 1, None, shared[1].numpy()
    while step < args.steps:
        began, left = time.monotonic(), args.steps - step
        for _ in range(calls):
            count = min(args.steps_per_call, left)
            if count:
                last = coordinator.schedule(train, args=(iterator, count))
            left -= count
        coordinator.join()  # the functions of a lost worker are run by another one
        loss, seen, table = float(coordinator.fetch(last)), table, shared[1].numpy()
        step, new = int(table[0].sum()), table[1] - seen[1]
        first = first or step
        if not np.isfinite(loss):
            text = f"the loss is {loss} at global step {step}: training diverged; "
            text += f"a smaller --learning_rate than {args.learning_rate} may hold"
            raise task.Failure(text)
        stale = new @ np.arange(ROOM) / new.sum()
        counts = np.array([[step, stale, rounds.APPLIED]], object)
        log.rounds(np.array([loss]), counts)
        log.draw(None)
        if time.monotonic() > checkpoints.saved + args.save_seconds:
            checkpoints.save()
        fit = calls * JOIN / (time.monotonic() - began)
        calls = max(1, min(int(fit), 10 * calls))
    checkpoints.save()
    log.write(None, counted(args, shared, before, first, log.times))


def main():
    args = parse_args()
    task.begin(args, problem)
    data = task.data(problem, args)
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    # A step waits in several threads at once: with one core there would be too few.
    config = tf.ConfigProto(inter_op_parallelism_threads=THREADS)
    server = tf.train.Server(spec, args.job_name, args.task_index, config=config)
    if data is None:  # a ps, or a worker that is not the coordinator
        return heartbeat.serve(server, args)
    tf.enable_eager_execution()
    try:
        coordinate(args, data, spec)
    except run.lost():  # a ps: the coordinator itself goes on without a lost worker
        text = "lost a ps: another start goes on from the last checkpoint"
        task.fail(text, task.AGAIN)
    except task.Failure:
        send_away(args, server)
        raise
    send_away(args, server)


if __name__ == "__main__":
    task.run(main)
