"""A cluster in this process, and the functions of the scripts themselves on it.

One graph and one session per worker, built by a script's own `state` and `graph` under
the device setter of its `main`, and started as `cluster/run.py` does. The learning
problem is one where every number can be followed by hand: loss := ½ |w − c|², so that
the gradient is w − c; the mini-batch c comes from a stream per worker.

What happens is written as text: "pull A, pull B, push A" holds what A and B pulled, and
makes A's round with it. A push without a pull before it is a whole round. A run of one
round a call can hold its pulls; one of many has the graph as a script's `main` has it.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence

import launch
import numpy as np

# With it come the modules of cluster/ and problem.py, the same in every folder.
tf = launch.load("Distributed-Setup").tf
checkpoint, rounds, stats, task = (
    importlib.import_module(f"cluster.{name}")
    for name in ("checkpoint", "rounds", "stats", "task")
)
rounds.CHEAP = float("inf")  # a test has its rounds on a slow machine, too

WORKERS = 4  # tasks of a cluster; a run may use fewer
STREAMS = ((1.0, 3.0), (5.0, 7.0))  # of worker A and worker B
ASYNCHRONOUS = {  # folder: the flags of the hand-computed traces
    "Distributed-Setup": [],
    "HogWild": [],
    "Fault-Tolerance": [],
    "Multiple-GPUs-Single-Machine": ["--device=cpu:0"],
    "Dynamic-SGD": [],
    "Stale-Synchronous-Parallel": [],
    "DC-ASGD": ["--variance=constant", "--strength=0.04"],
    "Gradient-Compression": ["--method=topk", "--keep=1"],  # nothing is left out
    "DOWNPOUR-Easy": ["--window=2", "--server_learning_rate=1"],
    "DOWNPOUR": ["--window=2", "--server_learning_rate=1"],
    "AGN": ["--window=2"],
    "Async-DiLoCo": ["--window=2", "--weight_decay=0"],
    "Decoupled-DiLoCo": ["--window=1", "--fragments=1", "--overlap=0"]
    + ["--weight_decay=0"],
    "AEASGD": ["--window=2", "--beta=0.5"],
    "AEAMSGD": ["--window=2", "--beta=0.5", "--momentum=0.9"],
    "FedBuff": ["--window=2", "--buffer=1"],
}
SYNCHRONOUS = {
    "Synchronous-SGD": [],
    "Synchronous-SGD-different-learning-rates": [],
    "SAGN": ["--window=2", "--server_learning_rate=0.1"],
}
SCHEMES = {**ASYNCHRONOUS, **SYNCHRONOUS}
LIMIT = 20  # seconds until a call that hangs is an error

instead: dict[str, types.ModuleType] = {}  # scripts that stand for others: mutations.py
built: set[str] = set()  # the schemes of which a test has built graphs; see conftest.py
_clusters: dict[int, tuple] = {}
_peers: dict[tuple, tuple] = {}
_runs = itertools.count()

# What became of a push: global step after it, staleness, one of the four constants of
# `rounds`, the training loss, and the center variable afterwards.
Push = collections.namedtuple("Push", "step staleness became loss center")


def servers(num_ps: int) -> tuple:
    """Returns ClusterSpec, addresses and workers' targets; started on first use."""
    if num_ps not in _clusters:
        base = launch.free_ports(num_ps + WORKERS)
        hosts = [f"localhost:{base + i}" for i in range(num_ps + WORKERS)]
        spec = tf.train.ClusterSpec({"ps": hosts[:num_ps], "worker": hosts[num_ps:]})
        # Tests make rounds wait in Python, each in a thread of its server. The second
        # CPU device stands for a GPU.
        config = tf.ConfigProto(
            inter_op_parallelism_threads=16, device_count={"CPU": 2}
        )
        started = [
            tf.train.Server(spec, job_name=job, task_index=i, config=config)
            for job, count in (("ps", num_ps), ("worker", WORKERS))
            for i in range(count)
        ]
        targets = [server.target for server in started[num_ps:]]
        _clusters[num_ps] = spec, hosts, targets, started
    return _clusters[num_ps][:3]


def servers_of(num_ps: int) -> list:
    """Returns the servers of such a cluster, ps first."""
    return _clusters[num_ps][3]


def peers(workers: int, config: Callable) -> tuple:
    """Returns addresses and targets of workers without a ps; started on first use.

    `config(k)` is the ConfigProto of worker k.
    """
    if (workers, config) not in _peers:
        base = launch.free_ports(workers)
        hosts = [f"localhost:{base + i}" for i in range(workers)]
        spec = tf.train.ClusterSpec({"worker": hosts})
        started = []
        for k in range(workers):
            own = config(k)
            own.inter_op_parallelism_threads = 16
            server = tf.train.Server(spec, job_name="worker", task_index=k, config=own)
            started.append(server)
        targets = [server.target for server in started]
        _peers[workers, config] = hosts, targets, started
    return _peers[workers, config][:2]


def parse(schedule: str) -> list[tuple[str, int]]:
    """Returns ("pull" or "push", number of the worker) for each word of a schedule."""
    words = [word.split() for word in schedule.split(",")]
    return [(verb, "ABCD".index(worker)) for verb, worker in words]


def schedule_s(pushes: int) -> str:
    """Returns schedule S: both pull, then A pushes and pulls, B pushes and pulls .."""
    workers = itertools.islice(itertools.cycle("AB"), pushes)
    turns = [f"push {k}, pull {k}" for k in workers]
    return ", ".join(["pull A, pull B", *turns])


def in_turn(pushes: int, workers: str = "AB") -> str:
    """Returns a schedule in which each worker's round is over before the next one's."""
    turns = itertools.islice(itertools.cycle(workers), pushes)
    return ", ".join(f"pull {k}, push {k}" for k in turns)


@contextlib.contextmanager
def noted(owner: object, name: str) -> Iterator[list]:
    """Yields a list that meanwhile gets what `owner.name(..)` returns.

    An item for each call: a list of tensors, also where the function returns one.
    """
    original, returned = getattr(owner, name), []

    def note(tensor):
        # Feeding replaces what a tensor says; who only waits for it still waits for all
        # that it is made of. So nobody waits for this one but its copy, as long as
        # nothing is optimized: an optimizer takes them for the same.
        with tf.device(tensor.device), tf.control_dependencies(None):
            returned[-1].append(tf.placeholder_with_default(tensor, tensor.shape))
            return tf.identity(returned[-1][-1])

    def noting(*args, **kwargs):
        made = original(*args, **kwargs)
        returned.append([])
        return list(map(note, made)) if isinstance(made, list) else note(made)

    setattr(owner, name, noting)
    try:
        yield returned
    finally:
        setattr(owner, name, original)


class Worker:
    """One worker's graph and session, not yet joined."""

    def __init__(self, run: Run, index: int) -> None:
        self.run, self.index = run, index
        spec, _, targets = servers(run.num_ps)
        self.device = f"/job:worker/task:{index}"
        self.passes: list[tuple[np.ndarray, np.ndarray]] = []
        self.graph = tf.Graph()
        setter = tf.train.replica_device_setter(cluster=spec, worker_device=self.device)
        with self.graph.as_default(), self.graph.container(run.name), tf.device(setter):
            start, batch, loss = run.problem(self, index)
            args, batch = run.args(index), rounds.in_turn(batch)
            pieces = tf.fixed_size_partitioner(run.num_ps)
            center = tf.get_variable("center", initializer=start, partitioner=pieces)
            self.stats = stats.Stats(args)
            shared = run.module.state(args, center, self.stats)
            # What a round's pull is: the pieces, and what they are counted by.
            count = (self.stats, "read_step") if run.asynchronous else (shared, "wait")
            sources = [(rounds, "read"), count] if run.rounds == 1 else []
            with contextlib.ExitStack() as stack:
                found = [stack.enter_context(noted(*source)) for source in sources]
                self.calls = rounds.Calls(
                    lambda last: run.graph(
                        args, center, self.stats, shared, batch, loss, last
                    ),
                    sorted({1, run.rounds}),
                )
            self.pulls = [t for tensors in found if tensors for t in tensors[0]]
            self.center = center.as_tensor()
            with tf.device(self.device):
                self.local = {v.op.name: v.value() for v in tf.local_variables()}
            self.variables = {
                v.op.name: v for v in tf.global_variables() + tf.local_variables()
            }
            self.slots = {
                name: v.value()
                for name, v in self.variables.items()
                if name.endswith("/Adagrad") and name not in self.local
            }
            self.join, begin = self.stats.on_begin, checkpoint.begin_operations()
            if index == 0:  # what only the chief does
                self.open = self.stats.open()
                self.saver = tf.train.Saver()
                self.initial = tf.global_variables_initializer()
        config = tf.ConfigProto(
            device_filters=["/job:ps", self.device],
            operation_timeout_in_ms=1000 * LIMIT,
        )
        launch.without_optimizer(config)
        if self.pulls:
            rewriter = config.graph_options.rewrite_options
            rewriter.dependency_optimization = rewriter.OFF  # see `noted`
        self.session = tf.Session(targets[index], graph=self.graph, config=config)
        if index == 0:
            self.session.run(self.initial)
        for operations in begin:
            self.session.run(operations)
        self.held: dict = {}
        fetches = [*self.calls.fetches.items()]
        # The loss of a round is one number, which no other value of it may stand for.
        losses = [fetch[0] for _, fetch in fetches]
        assert {(x.dtype, x.shape.rank) for x in losses} == {(tf.float32, 1)}
        self.call_of = {n: self.session.make_callable(fetch) for n, fetch in fetches}

    def pull(self) -> None:
        """Takes what the next push will see."""
        assert self.pulls, "only a run of one round a call can hold a pull"
        self.held = dict(zip(self.pulls, self.session.run(self.pulls), strict=True))

    def push(self) -> Push:
        """Makes one round, at the pull if there was one."""
        held, self.held = self.held, {}
        fetch = self.calls.fetches[1]
        losses, counts, _ = self.session.run(fetch, held) if held else self.call_of[1]()
        return Push(*counts[0].tolist(), float(losses[0]), self.now())

    def call(self, count: int | None = None) -> list[Push]:
        """Makes the rounds of one call; no push knows the center variable."""
        losses, counts, _ = self.call_of[count or self.run.rounds]()
        made = zip(counts.tolist(), losses.tolist(), strict=True)
        return [Push(*counted, loss, None) for counted, loss in made]

    def to_the_end(self, counts: Sequence[int] | None = None) -> list[Push]:
        """Makes calls, of so many rounds in turn, until nothing is applied any more."""
        made = []
        for count in itertools.cycle(counts or [self.run.rounds]):
            made += self.call(count)
            if made[-1].became not in (rounds.APPLIED, rounds.LATE):
                return made
            assert len(made) < 100 * self.run.args(self.index).steps, "it does not end"
        raise AssertionError("no counts")

    def waits(self, seconds: float = 0.3) -> bool:
        """Says whether a pull finds no token for so long; it takes none then."""
        limit = tf.RunOptions(timeout_in_ms=int(1000 * seconds))
        try:
            pulled = self.session.run(self.pulls, options=limit)
        except tf.errors.DeadlineExceededError:
            return True
        self.held = dict(zip(self.pulls, pulled, strict=True))
        return False

    def temporary(self, name: str) -> tf.Variable:
        """Returns a variable that is not saved, by its name."""
        return {v.op.name: v for v in [*self.stats.unsaved, self.stats.begun]}[name]

    def now(self) -> np.ndarray:
        """Returns the center variable."""
        return self.session.run(self.center)

    def step(self) -> int:
        """Returns the global step."""
        return int(self.session.run(self.stats.step))

    def own(self, name: str) -> np.ndarray:
        """Returns a local variable."""
        return self.session.run(self.local[name])

    def partitions(self, count: int = 1) -> list:
        """Returns the nodes of a call as TensorFlow placed them, one list a device."""
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        self.session.run(self.calls.fetches[count], None, options, metadata)
        return [list(graph.node) for graph in metadata.partition_graphs]


def at_once(workers: Sequence, work: Callable) -> list:
    """Returns what `work(worker)` returns of each worker, all at the same time."""
    results, failed = [None] * len(workers), []

    def one(k):
        try:
            results[k] = work(workers[k])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=[k]) for k in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return results


def behind(fetches: list) -> set:
    """Returns the operations that are needed for what a call fetches."""
    found, waiting = set(), [getattr(x, "op", x) for x in tf.nest.flatten(fetches)]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [*(x.op for x in op.inputs), *op.control_inputs]
    return found


class Run:
    """Workers of one scheme that meet at one center variable.

    `flags` are the script's own, after those of the traces. `streams[k]` has worker k's
    mini-batches, over and over: numbers, or vectors as long as `start`. `rounds` are
    those of a call. `loss(k, usual)` returns the loss function that worker k has
    instead of the usual one. `watch` records every forward pass.
    """

    def __init__(
        self,
        folder: str,
        *flags: str,
        start: Sequence[float] = (0.0,),
        streams: Sequence = STREAMS,
        num_ps: int = 1,
        rounds: int = 1,
        loss: Callable | None = None,
        problem: Callable | None = None,
        graph: Callable | None = None,
        module: types.ModuleType | None = None,
        watch: bool = False,
        joins: Sequence[int] | None = None,
        restore: str | None = None,
    ) -> None:
        self.module = module or instead.get(folder) or launch.load(folder)
        self.folder, self.asynchronous = folder, folder in ASYNCHRONOUS
        built.add(folder)
        self.flags = ["--learning_rate=0.1", *SCHEMES[folder], *flags]
        self.num_ps, self.rounds, self.streams = num_ps, rounds, streams
        self.start, self.watch = np.asarray(start, np.float32), watch
        self.loss = loss or (lambda index, usual: usual)
        self.problem = problem or self.quadratic
        self.graph = graph or self.module.graph
        self.name = f"run{next(_runs)}"
        self.workers = [Worker(self, k) for k in range(len(streams))]
        self.chief = self.workers[0]
        if restore:
            self.restore(restore)
        else:
            self.open()
        for k in range(len(streams)) if joins is None else joins:
            self.join(k)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.session.close()

    def open(self) -> None:
        """The chief begins the training; no worker has begun its part of it yet."""
        self.chief.session.run(self.chief.open)

    def join(self, k: int) -> None:
        """Worker k begins its part, as in each session."""
        self.workers[k].session.run(self.workers[k].join)

    def restore(self, path: str) -> None:
        """The chief restores a checkpoint, as it does into ps that have not trained."""
        self.chief.saver.restore(self.chief.session, path)
        self.open()

    def args(self, index: int) -> types.SimpleNamespace:
        """Returns the checked flags, as the script reads them."""
        _, hosts, _ = servers(self.num_ps)
        ps, workers = hosts[: self.num_ps], hosts[self.num_ps :][: len(self.streams)]
        cluster = [f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(workers)}"]
        task = ["--job_name=worker", f"--task_index={index}"]
        return self.module.parse_args([*task, *cluster, *self.flags])

    def quadratic(self, worker: Worker, index: int) -> tuple:
        """Returns problem Q for a worker, in as many coordinates as `start` has."""
        stream = np.asarray(self.streams[index], np.float32)
        if stream.ndim == 1:
            stream = np.repeat(stream[:, None], len(self.start), axis=1)
        dataset = tf.data.Dataset.from_tensor_slices(stream).repeat()
        iterator = tf.data.make_initializable_iterator(dataset)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)

        def record(w, c):
            worker.passes.append((w.copy(), c.copy()))

        def loss(w, c):
            after = [tf.py_func(record, [w, c], [])] if self.watch else []
            with tf.control_dependencies(after):
                # A mini-batch has no gradient: it cannot stand where w belongs.
                return tf.reduce_sum(0.5 * (w - tf.stop_gradient(c)) ** 2)

        start, loss = tf.constant(self.start), self.loss(index, loss)
        return start, iterator.get_next, loss

    def play(self, schedule: str) -> list[Push]:
        """Runs a schedule; returns what became of each push."""
        made = []
        for verb, k in parse(schedule):
            if verb == "pull":
                self.workers[k].pull()
            else:
                made.append(self.workers[k].push())
        return made

    def at_once(self, work: Callable) -> list:
        """Returns what `work(worker)` returns of each worker, all at the same time."""
        return at_once(self.workers, work)

    def summary(self) -> dict:
        """Returns the counters as they go into result.json."""
        return self.chief.stats.summary(self.chief.session)

    def counters(self) -> dict[str, list[int]]:
        """Returns the columns of the counters, an element for each worker there was."""
        table = self.chief.session.run(self.chief.stats.counters)
        used = 1 + np.flatnonzero(table.any(axis=1))
        table = table[: max([len(self.workers), *used])]
        return {name: table[:, i].tolist() for i, name in enumerate(stats.COUNTERS)}
