"""Bytes per second between a worker and its ps, with a center variable of 100 MB.

The digits' perceptron is so small that a round is all messages; here it is all bytes.
HogWild's own graph and rounds.py are what is measured, with a loss that costs next to
nothing, ½ |w|², between processes of this machine, on 1 and on 2 ps. A ps has one piece
of the center variable, as in HogWild; the rows of four pieces on one ps show what more
pieces would change:

    pull     the center variable, from the ps to the worker
    push     a vector of the worker's, from there to the ps
    concat   of the pulled pieces into one vector, alone, on the worker
    split    of a vector into the pieces to be pushed, alone, on the worker
    update   of the center variable by what was pushed, alone, on the ps
    round    HogWild's round, ten to a call: pull, gradient, push, update

Beside them, before and after, the same number of bytes through a plain TCP connection
over the loopback device, without TensorFlow; and `copy`, from one place in memory to
another.

    python benchmarks/bandwidth.py
    python benchmarks/bandwidth.py --elements 1000000 --rounds 1
"""

import argparse
import contextlib
import importlib
import json
import os
import socket
import statistics
import sys
import time

import numpy as np
import runs

# Row: the number of ps, and of pieces of the center variable on each.
CASES = {"1 ps": (1, 1), "1 ps, four pieces": (1, 4), "2 ps": (2, 1)}
REPEATS = 7  # of each measurement; the first one warms up and does not count
PARTS = ("pull", "push", "concat", "split", "update", "round")


# --- A plain connection -------------------------------------------------------


def receive(port, size, times):
    """Reads `size` bytes from a connection `times` times, and answers each with one."""
    data = memoryview(bytearray(size))
    with socket.create_connection(("localhost", port)) as connection:
        for _ in range(times):
            read = 0
            while read < size:
                read += connection.recv_into(data[read:])
            connection.sendall(b"1")


def loopback(size, times):
    """Returns the seconds in which `size` bytes go through a loopback connection."""
    with socket.create_server(("localhost", 0)) as server:
        command = [runs.PYTHON, __file__, "--receive", server.getsockname()[1]]
        with runs.process([*command, "--elements", size // 4, "--repeats", times]):
            server.settimeout(60)
            connection, _ = server.accept()
            data = bytes(size)
            with connection:
                return middle(
                    lambda: connection.sendall(data) or connection.recv(1), times
                )


def middle(once, times):
    """Returns the median of the seconds that `once()` takes, without the first time."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:] or seconds)


# --- A ps and a worker --------------------------------------------------------


def hogwild():
    """Returns HogWild's script and TensorFlow as modules."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", no_grpc_proxy="localhost")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(runs.REPO / "HogWild"))
    modules = map(importlib.import_module, ("hogwild", "cluster.tensorflow_v1"))
    return tuple(modules)


def arguments(script, hosts, steps=10**9):
    """Returns the flags of HogWild's worker 0; the last host is the worker's."""
    cluster = ["--ps_hosts", ",".join(hosts[:-1]), "--worker_hosts", hosts[-1]]
    who = ["--job_name", "worker", "--task_index", "0"]
    return script.parse_args([*who, *cluster, "--steps", str(steps)])


def server_of(tf, hosts, job, index):
    """Returns a server of the cluster, and the cluster."""
    spec = tf.train.ClusterSpec({"ps": hosts[:-1], "worker": hosts[-1:]})
    return tf.train.Server(spec, job_name=job, task_index=index), spec


def serve(args):
    """A ps: serves until the worker, its parent, has ended."""
    _, tf = hogwild()
    server = server_of(tf, args.hosts.split(","), "ps", args.serve)
    while os.getppid() == args.parent:
        time.sleep(0.2)
    del server


def graphs(tf, script, args, spec, elements, pieces=1):
    """Returns {part: what to run}, the rounds of a call, and what has to run before."""
    rounds = script.rounds
    device = "/job:worker/task:0"
    setter = tf.train.replica_device_setter(cluster=spec, worker_device=device)
    with tf.device(setter):
        count = pieces * len(args.ps_hosts)
        center = tf.get_variable(
            "center",
            initializer=tf.ones([elements]),
            partitioner=tf.fixed_size_partitioner(count),
        )
        stats = script.Stats(args)
        calls = rounds.Calls(
            lambda last: script.graph(
                args,
                center,
                stats,
                None,
                lambda: (),
                lambda w, _: tf.nn.l2_loss(w),
                last,
            )
        )
        many = max(calls.fetches)
        parts = {"pull": rounds.pull(center), "round": calls.fetches[many]}
        # Of the worker's own, so that nothing is sent.
        own = dict(trainable=False, collections=["own"], use_resource=True)
        with tf.device(device):
            vector = tf.Variable(tf.ones([elements]), name="vector", **own)
            here = [
                tf.Variable(tf.ones(piece.shape), name="piece", **own).read_value()
                for piece in center
            ]
            parts["concat"] = tf.concat(here, axis=0)
            parts["split"] = tf.split(
                vector.read_value(), [piece.shape.num_elements() for piece in center]
            )
        parts["push"] = rounds.push(vector.read_value(), center)
        # What a ps does with a push, of what it has already. It is read there: a value
        # that is read on the worker would go there, and back.
        there = []
        for piece in center:
            with tf.device(piece.device):
                there.append(tf.Variable(tf.ones(piece.shape), name="there", **own))
        with tf.device(stats.device):
            applied = tf.constant(True)
        parts["update"] = rounds.update(
            center,
            rounds.read(there),
            applied,
            lambda w, g: w.assign_sub(1e-9 * g, read_value=False),
        )
        first = [
            [tf.global_variables_initializer()],
            [tf.variables_initializer(tf.get_collection("own"))],
            [stats.open()],
        ]
    return parts, many, first


def measure(args):
    """Returns the seconds of every part with so many ps."""
    script, tf = hogwild()
    hosts = [f"localhost:{port}" for port in runs.free_ports(args.ps + 1)]
    size = 4 * args.elements
    with contextlib.ExitStack() as stack:
        for index in range(args.ps):
            command = [runs.PYTHON, __file__, "--serve", index, "--parent", os.getpid()]
            stack.enter_context(runs.process([*command, "--hosts", ",".join(hosts)]))
        server, spec = server_of(tf, hosts, "worker", 0)
        flags = arguments(script, hosts)
        parts, many, first = graphs(tf, script, flags, spec, args.elements, args.pieces)
        source, target = np.ones([2, args.elements], np.float32)
        found = {"copy": middle(lambda: np.copyto(target, source), args.repeats)}
        found["tcp before"] = loopback(size, args.repeats)
        with tf.Session(server.target) as session:
            for step in first:
                session.run(step)
            for part in PARTS:
                targets = tf.nest.flatten(parts[part])
                run = session.make_callable([one.op for one in map(as_op, targets)])
                times = max(3, args.repeats // 2) if part == "round" else args.repeats
                found[part] = middle(run, times)
        found["round"] /= many
        found["tcp after"] = loopback(size, args.repeats)
    found["tcp"] = (found["tcp before"] + found["tcp after"]) / 2
    found["bytes"] = size
    return found


def as_op(thing):
    """Returns something with `op`, of a tensor or an operation."""
    return thing if hasattr(thing, "op") else argparse.Namespace(op=thing)


# --- The table ----------------------------------------------------------------


def markdown(rounds):
    """Returns bandwidth.md: the rates, over that of a plain connection."""
    rows = []
    for key in CASES:
        size = runs.series(rounds, key, "bytes")
        plain = runs.series(rounds, key, "tcp")

        def rate(part, key=key, size=size):
            return runs.ratios(size, runs.series(rounds, key, part))

        rows.append([f"{key}: plain connection", gigabytes(rate("tcp")), "1.00"])
        rows[-1].append(runs.spread([1000 * s if s else None for s in plain]))
        for part in ("copy", *PARTS):
            seconds = runs.series(rounds, key, part)
            sends = part in ("copy", "pull", "push")
            rows.append(
                [
                    f"{key}: {part}",
                    gigabytes(rate(part)) if sends else "",
                    runs.spread(runs.ratios(plain, seconds), 2) if sends else "",
                    runs.spread([1000 * s if s else None for s in seconds]),
                ]
            )
    sizes = {s for key in CASES for s in runs.series(rounds, key, "bytes") if s}
    text = ", ".join(f"{size / 1e6:g} MB" for size in sorted(sizes)) or "-"
    return (
        runs.count_of(rounds)
        + f"\n### A center variable of {text}\n\n"
        + runs.table(["", "GB/s", "over a plain connection", "ms"], rows)
    )


def gigabytes(rates):
    """Returns bytes per second as a cell, in GB/s."""
    return runs.spread([rate / 1e9 if rate else None for rate in rates], 2)


# --- The measurement ----------------------------------------------------------


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.measuring_parser(__doc__)
    add = parser.add_argument
    add(
        "--elements",
        type=runs.positive_int,
        default=25_000_000,
        help="floats of the center variable (25000000: 100 MB)",
    )
    add("--repeats", type=runs.positive_int, default=REPEATS, help="of each part")
    # A task of the measurement: this script, started by itself.
    for name in ("--ps", "--pieces", "--receive", "--serve", "--parent"):
        add(name, type=int, help=argparse.SUPPRESS)
    add("--hosts", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main():
    args = parse_args()
    if args.receive is not None:
        return receive(args.receive, 4 * args.elements, args.repeats)
    if args.serve is not None:
        return serve(args)
    if args.ps is not None:
        return print(json.dumps(measure(args)))
    with runs.finished(args):
        if args.write_readme:
            return runs.write_readme(args.out)
        if args.quick:
            args.elements, args.repeats = 100_000, 3

        def job(ps, pieces):
            flags = ["--ps", ps, "--pieces", pieces]
            flags += ["--elements", args.elements, "--repeats", args.repeats]
            return lambda: runs.run_script("bandwidth.py", *flags, timeout=args.timeout)

        cost = 12 + args.elements * args.repeats / 3e6
        jobs = [
            runs.Job(key, {"bandwidth"}, cost, job(*case))
            for key, case in CASES.items()
        ]
        code = {"HogWild": runs.fingerprint("HogWild"), "elements": args.elements}
        rounds, progress = runs.in_rounds(jobs, args, "bandwidth", code)
        text = markdown(rounds)
        runs.write(args.out / "bandwidth.md", text)
        print(text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
