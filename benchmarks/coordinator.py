"""HogWild's problem under tf.distribute.ParameterServerStrategy, for comparison.

    coordinator  schedules steps, several in flight per worker, and joins at intervals
    worker       reads its own data set, pulls, computes a gradient, pushes
    ps           holds the parameters

The same digits, perceptron, batch and plain SGD as HogWild's, with the single client
of TensorFlow 2's strategy instead of a client per worker. Prints one JSON object:
steps_per_second, test_accuracy and what was run. In its favour: the first steps, in
which the function is traced on every worker, are not in the rate, no loss is
fetched, and nothing is saved or evaluated meanwhile, all of which HogWild does.

    python benchmarks/coordinator.py --steps 4000
"""

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import runs

# The examples' own data. It does not import TensorFlow before it is used.
sys.path.insert(0, str(runs.REPO / "HogWild"))
problem = importlib.import_module("problem")

FORMS = ("variables", "flat")


def serve(tf, args):
    """A ps or worker: serves until the coordinator, its parent, ends it."""
    spec = tf.train.ClusterSpec(json.loads(args.cluster))
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=args.inter_op_parallelism_threads
    )
    tf.distribute.Server(
        spec,
        job_name=args.job_name,
        task_index=args.task_index,
        protocol="grpc",
        config=config,
    )
    while os.getppid() == args.parent:  # not for ever, should the parent be killed
        time.sleep(0.5)


def model(strategy, tf, form, shapes):
    """Returns (variables, a function that gives the four parameters from values).

    `variables`: one variable per parameter, as one writes it. `flat`: one vector, as
    the examples of this repository have it, so that a step moves one tensor each way.
    """
    pieces = []
    for number, shape in enumerate(shapes):
        if len(shape) == 1:
            pieces.append(np.zeros(shape, np.float32))
        else:
            normal = tf.random.stateless_normal(shape, seed=[0, number]).numpy()
            pieces.append(normal * np.float32((2.0 / shape[0]) ** 0.5))
    with strategy.scope():
        if form == "variables":
            return [tf.Variable(piece) for piece in pieces], lambda values: values
        flat = tf.Variable(np.concatenate([piece.ravel() for piece in pieces]))
    sizes = [piece.size for piece in pieces]

    def cut(values):
        parts = tf.split(values[0], sizes)
        return [tf.reshape(p, s) for p, s in zip(parts, shapes, strict=True)]

    return [flat], cut


def coordinate(tf, args, cluster):
    """Trains through ClusterCoordinator; returns what was measured."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    x_train, y_train, x_test, y_test = problem.load(args.data)
    hidden = args.hidden
    shapes = [(64, hidden), (hidden,), (hidden, 10), (10,)]
    variables, cut = model(strategy, tf, args.form, shapes)
    with strategy.scope():
        # What HogWild has too, and stops by: the number of updates applied.
        global_step = tf.Variable(0, dtype=tf.int64)

    def loss(values, images, labels):
        w1, b1, w2, b2 = cut(values)
        logits = tf.nn.relu(images @ w1 + b1) @ w2 + b2
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )

    def dataset():
        # Every worker calls this once and shuffles in its own order. In HogWild/
        # parameter_server_strategy.py it takes a shard of its own.
        rows = tf.data.Dataset.from_tensor_slices((x_train, y_train))
        return rows.shuffle(len(y_train)).repeat().batch(args.batch_size).prefetch(2)

    batches = iter(
        coordinator.create_per_worker_dataset(tf.function(dataset, autograph=False))
    )

    def one_step(iterator):
        images, labels = next(iterator)
        values = [variable.read_value() for variable in variables]
        with tf.GradientTape() as tape:
            tape.watch(values)
            value = loss(values, images, labels)
        gradients = tape.gradient(value, values)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(args.learning_rate * gradient, read_value=False)
        global_step.assign_add(1, read_value=False)

    @tf.function
    def step(iterator):
        if args.steps_per_call == 1:
            one_step(iterator)
        else:
            for _ in tf.range(args.steps_per_call):
                one_step(iterator)

    def train(steps):
        # Between two joins all calls are queued at once: each worker takes the next
        # as soon as it is free.
        done = 0
        while done < steps:
            calls = max(1, min(args.join_every, steps - done) // args.steps_per_call)
            for _ in range(calls):
                coordinator.schedule(step, args=(batches,))
            coordinator.join()
            done += calls * args.steps_per_call
        return done

    train(args.warm_up)
    start = time.perf_counter()
    steps = train(args.steps)
    seconds = time.perf_counter() - start
    w1, b1, w2, b2 = (np.asarray(v) for v in cut([v.read_value() for v in variables]))
    guess = np.argmax(np.maximum(x_test @ w1 + b1, 0) @ w2 + b2, axis=1)
    return {
        "scheme": f"ClusterCoordinator, {args.form}",
        "workers": args.workers,
        "ps": 1,
        "steps_per_call": args.steps_per_call,
        "global_steps": int(global_step.numpy()),
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "test_accuracy": float(np.mean(guess == y_test)),
    }


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.Parser(__doc__)
    add = parser.add_argument
    add("--form", choices=FORMS, default="variables", help="of the parameters")
    add("--workers", type=runs.positive_int, default=2)
    add("--steps", type=runs.positive_int, default=4000)
    add(
        "--warm_up",
        type=runs.positive_int,
        default=200,
        help="steps before the clock starts",
    )
    add("--data", default="digits", help="as the examples take it")
    add("--hidden", type=runs.positive_int, default=64, help="units")
    add("--batch_size", type=runs.positive_int, default=32)
    add("--learning_rate", type=float, default=0.1)
    add(
        "--join_every",
        type=runs.positive_int,
        default=400,
        help="steps between two joins",
    )
    add(
        "--steps_per_call",
        type=runs.positive_int,
        default=1,
        help="steps in a scheduled function",
    )
    add(
        "--inter_op_parallelism_threads",
        type=runs.positive_int,
        default=4,
        help="per server",
    )
    for name in ("--job_name", "--cluster"):
        add(name, help=argparse.SUPPRESS)
    for name in ("--task_index", "--parent"):
        add(name, type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main():
    args = parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["no_grpc_proxy"] = "localhost"
    servers = []
    if args.job_name is None:
        free = runs.free_ports(1 + args.workers)
        hosts = [f"localhost:{port}" for port in free]
        cluster = {"ps": hosts[:1], "worker": hosts[1:]}
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                command = [sys.executable, str(pathlib.Path(__file__).resolve())]
                command += ["--job_name", job, "--task_index", str(index)]
                command += ["--cluster", json.dumps(cluster)]
                command += ["--parent", str(os.getpid())]
                threads = str(args.inter_op_parallelism_threads)
                command += ["--inter_op_parallelism_threads", threads]
                # What the servers say is TensorFlow's own start-up noise.
                servers.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )
                )
    try:
        import tensorflow as tf  # after the servers, which import it meanwhile

        if args.job_name is not None:
            return serve(tf, args)
        # AutoGraph writes what it generates into files, and `os._exit` leaves them.
        with tempfile.TemporaryDirectory() as tempfile.tempdir:
            print(json.dumps(coordinate(tf, args, cluster)), flush=True)
    finally:
        for server in servers:
            server.kill()
        for server in servers:
            server.wait()
    # The coordinator's threads wait for servers that are gone: no orderly end.
    os._exit(0)


if __name__ == "__main__":
    main()
