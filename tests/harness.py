"""A cluster in this process, and the functions of the scripts themselves on it.

One graph and one session per worker, each built by a script's own `graph`, under the
device setter of its `main`. The learning problem is one where every
number can be followed by hand: loss := ½ |w − c|², so that the gradient is w − c; the
mini-batch c comes from a stream per worker.
"""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Callable, Sequence

import launch
import numpy as np

WORKERS = 4  # tasks of a cluster; a run may use fewer
STREAMS = ((1.0, 3.0), (5.0, 7.0))  # of worker A and worker B
_clusters: dict[int, tuple] = {}
_runs = itertools.count()


def servers(tf: types.ModuleType, num_ps: int) -> tuple:
    """Returns the ClusterSpec and the workers' targets; started on first use."""
    if num_ps not in _clusters:
        base = launch.free_ports(num_ps + WORKERS)
        hosts = [f"localhost:{base + i}" for i in range(num_ps + WORKERS)]
        spec = tf.train.ClusterSpec({"ps": hosts[:num_ps], "worker": hosts[num_ps:]})
        tasks = [("ps", i) for i in range(num_ps)]
        tasks += [("worker", i) for i in range(WORKERS)]
        started = [
            tf.train.Server(spec, job_name=job, task_index=i) for job, i in tasks
        ]
        targets = [server.target for server in started[num_ps:]]
        _clusters[num_ps] = spec, targets, started
    return _clusters[num_ps][:2]


class Counted:
    """The global step, which remembers the tensor that a graph reads it by."""

    def __init__(self, variable: object) -> None:
        self.variable = variable
        self.seen = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.variable, name)

    def read_value(self) -> object:
        self.seen = self.variable.read_value()
        return self.seen


class Pulled:
    """The center variable, which remembers the tensor that a graph pulls it by."""

    def __init__(self, variable: object) -> None:
        self.variable = variable
        self.tensor = None

    def __iter__(self) -> object:
        return iter(self.variable)

    def as_tensor(self) -> object:
        self.tensor = self.variable.as_tensor()
        return self.tensor


class Worker:
    """One worker's graph and session. `pull` and `round` may be apart: schedule S."""

    def __init__(self, run: Run, index: int) -> None:
        self.run, tf = run, run.tf
        spec, targets = servers(tf, run.num_ps)
        self.device = f"/job:worker/task:{index}"
        self.passes: list[tuple[np.ndarray, np.ndarray]] = []
        self.graph = tf.Graph()
        setter = tf.train.replica_device_setter(cluster=spec, worker_device=self.device)
        with self.graph.as_default(), self.graph.container(run.name), tf.device(setter):
            start, batch, loss, initializer, feed = run.problem(self, index)
            center = Pulled(launch.center_variable(tf, start, run.num_ps))
            step = Counted(tf.train.get_or_create_global_step())
            self.train, _ = run.graph(run.args(index), center, step, batch, loss)
            self.pulled, self.seen = center.tensor, step.seen
            self.center = center.variable.as_tensor()
            with tf.device(self.device):
                self.local = {v.op.name: v.value() for v in tf.local_variables()}
            initial = tf.global_variables_initializer()
            local = tf.group(tf.local_variables_initializer(), initializer)
            self.variables = {
                v.op.name: v for v in tf.global_variables() + tf.local_variables()
            }
        filters = ["/job:ps", self.device]
        config = tf.ConfigProto(device_filters=filters)
        self.session = tf.Session(targets[index], graph=self.graph, config=config)
        if index == 0:
            self.session.run(initial)
        self.session.run(local, feed)
        self.held = None
        self.one_round = self.session.make_callable(self.train)

    def pull(self) -> None:
        """Takes what the next round will see."""
        self.held = self.session.run([self.pulled, self.seen])

    def round(self) -> int:
        """Runs one round, at the pull if there was one; returns its staleness."""
        if self.held is None:
            return int(self.one_round()["counts"][1])
        feed = dict(zip((self.pulled, self.seen), self.held, strict=True))
        self.held = None
        return int(self.session.run(self.train, feed)["counts"][1])

    def now(self) -> np.ndarray:
        """Returns the center variable."""
        return self.session.run(self.center)

    def own(self, name: str) -> np.ndarray:
        """Returns a local variable."""
        return self.session.run(self.local[name])

    def partitions(self) -> list:
        """Returns the nodes of a round as TensorFlow placed them, one list a device."""
        tf = self.run.tf
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        self.session.run(self.train, options=options, run_metadata=metadata)
        return [list(graph.node) for graph in metadata.partition_graphs]


class Run:
    """Workers of one scheme that meet at one center variable.

    `flags` are the script's own. `streams[k]` has worker k's mini-batches, over and
    over: numbers, or vectors as long as `start`. `watch` records every forward pass.
    """

    def __init__(
        self,
        folder: str | types.ModuleType,
        *flags: str,
        start: Sequence[float] = (0.0,),
        streams: Sequence = STREAMS,
        num_ps: int = 1,
        problem: Callable | None = None,
        graph: Callable | None = None,
        watch: bool = False,
    ) -> None:
        self.module = launch.load(folder) if isinstance(folder, str) else folder
        self.tf = self.module.tf
        self.flags, self.num_ps, self.num_workers = flags, num_ps, len(streams)
        self.start = np.asarray(start, np.float32)
        self.streams, self.watch = streams, watch
        self.problem = problem or self.quadratic
        self.graph = graph or self.module.graph
        self.name = f"run{next(_runs)}"
        self.workers = [Worker(self, k) for k in range(len(streams))]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.session.close()

    def args(self, index: int) -> types.SimpleNamespace:
        """Returns the checked flags, as the script reads them."""
        base = launch.free_ports(self.num_ps + self.num_workers)
        hosts = [f"localhost:{base + i}" for i in range(self.num_ps + self.num_workers)]
        ps, workers = hosts[: self.num_ps], hosts[self.num_ps :]
        cluster = [f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(workers)}"]
        task = ["--job_name=worker", f"--task_index={index}"]
        return self.module.parse_args([*task, *cluster, *self.flags])

    def quadratic(self, worker: Worker, index: int) -> tuple:
        """Returns problem Q for a worker, in as many coordinates as `start` has."""
        tf = self.tf
        stream = np.asarray(self.streams[index], np.float32)
        if stream.ndim == 1:
            stream = np.repeat(stream[:, None], len(self.start), axis=1)
        dataset = tf.data.Dataset.from_tensor_slices(stream).repeat()
        iterator = tf.data.make_initializable_iterator(dataset)

        def record(w, c):
            worker.passes.append((w.copy(), c.copy()))

        def loss(w, c):
            after = [tf.py_func(record, [w, c], [])] if self.watch else []
            with tf.control_dependencies(after):
                return tf.reduce_sum(0.5 * (w - c) ** 2)

        start = tf.constant(self.start)
        return start, iterator.get_next, loss, iterator.initializer, {}

    def play(self, schedule: Sequence[int]) -> list[tuple[int, np.ndarray]]:
        """Runs a schedule: a worker's odd entries are pulls, its even ones rounds.

        Returns the staleness of each round and the center variable after it.
        """
        out = []
        for k in schedule:
            worker = self.workers[k]
            if worker.held is None:
                worker.pull()
            else:
                out.append((worker.round(), worker.now()))
        return out

    def at_once(self, rounds: int) -> None:
        """Runs so many rounds of every worker, all at the same time."""
        threads = [
            threading.Thread(target=lambda w=w: [w.round() for _ in range(rounds)])
            for w in self.workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def schedule_s(rounds: int) -> list[int]:
    """Returns schedule S: A pulls, B pulls, then A round and pull, B round and pull."""
    return [0, 1, *itertools.islice(itertools.cycle([0, 0, 1, 1]), 2 * rounds - 1)]
