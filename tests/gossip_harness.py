"""Workers that average in pairs, in this process, on the functions of their script.

As in `harness`, whose learning problem this is: loss := ½ |x − c|², with a stream of
mini-batches c for each worker. A schedule is text too, with a neighbour where an active
worker pushes: "pull A, pull B, push A B, push B".
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import types
from collections.abc import Callable, Sequence

import harness
import launch
import numpy as np
from harness import STREAMS, Push, checkpoint, rounds, stats, tf

gossip = importlib.import_module("cluster.gossip")

FOLDER = "Gossip-SGD"
LIMIT = 60  # seconds until a call that hangs is an error

instead: dict[str, types.ModuleType] = {}  # what stands for the script or for gossip
_runs = itertools.count(1)


def plain(_: int) -> tf.ConfigProto:
    """Returns the configuration of every server: it need not know of the others."""
    return tf.ConfigProto()


def parse(schedule: str) -> list[tuple[str, int, int | None]]:
    """Returns (verb, worker, neighbour or None) for each word of a schedule."""
    words = [word.split() for word in schedule.split(",")]
    found = [(verb, *("ABCDE".index(w) for w in who)) for verb, *who in words]
    return [(*word, None)[:3] for word in found]


class Gossiper:
    """One worker's graph and session. The arguments of a run are those of `Gossip`."""

    passes: Sequence = ()

    def __init__(self, run: Gossip, index: int) -> None:
        self.run, self.index = run, index
        workers = len(run.streams)
        hosts, targets = harness.peers(workers, plain)
        device = tf.device(f"/job:worker/task:{index}")
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.container(run.name), device:
            task = [f"--task_index={index}", f"--worker_hosts={','.join(hosts)}"]
            self.args = args = run.module.parse_args([*task, *run.flags])
            start, batch, loss = harness.Run.quadratic(run, self, index)
            with tf.device("/job:worker/task:0"):
                center = tf.get_variable("center", initializer=start)
            self.stats = stats.Stats(args)
            self.replica = replica = run.module.state(args, center, self.stats)
            batch = rounds.in_turn(batch)
            # What a test may say: what was read when, and the neighbour.
            count = self.stats, "read_step"
            sources = [(replica, "read"), count, (replica, "choose")]
            with contextlib.ExitStack() as stack:
                held = sources if run.rounds == 1 else []
                found = [stack.enter_context(harness.noted(*one)) for one in held]
                self.calls = rounds.Calls(
                    lambda last: run.module.graph(
                        args, center, self.stats, replica, batch, loss, last
                    ),
                    sorted({1, run.rounds}),
                )
            of_each = [tensors[0] if tensors else [] for tensors in found]
            self.pulls, self.choice = sum(of_each[:2], []), sum(of_each[2:], [])
            with harness.noted(replica, "choose") as found:
                self.exchange = replica.average(replica.read())
                self.partner = found[0] if found else []
            self.draw = replica.choose()
            begin, initial = (
                checkpoint.begin_operations(),
                tf.global_variables_initializer(),
            )
            opened = self.stats.open()
        config = tf.ConfigProto(operation_timeout_in_ms=1000 * LIMIT)
        launch.without_optimizer(config)
        if self.pulls:
            rewriter = config.graph_options.rewrite_options
            rewriter.dependency_optimization = rewriter.OFF  # see harness.noted
        self.session = tf.Session(targets[index], graph=self.graph, config=config)
        if index == 0:
            self.session.run(initial)
            self.session.run(opened)
        for operations in begin:
            self.session.run(operations)
        names = [gossip.name_of(k) for k in replica.near or [index]]
        self.session.run(replica.choose_among, {replica.chosen: names})
        self.held: dict = {}

    def pull(self) -> None:
        """Takes what the next push will see."""
        assert self.pulls, "only a run of one round a call can hold a pull"
        self.held = dict(zip(self.pulls, self.session.run(self.pulls), strict=True))

    def push(self, neighbour: int | None = None) -> Push:
        """Makes one round, at the pull if there was one, with this neighbour.

        Without one an active worker averages with itself, which changes nothing.
        """
        held, self.held = self.held, {}
        name = gossip.name_of(self.index if neighbour is None else neighbour)
        held.update(dict.fromkeys(self.choice, name))
        losses, counts, _ = self.session.run(self.calls.fetches[1], held)
        return Push(*counts[0].tolist(), float(losses[0]), self.run.now())

    def average(self, neighbour: int) -> None:
        """Makes an exchange, and nothing else."""
        names = dict.fromkeys(self.partner, gossip.name_of(neighbour))
        self.session.run(self.exchange, names)

    def call(self, count: int) -> list[Push]:
        """Makes the rounds of one call; no push knows the replicas."""
        losses, counts, _ = self.session.run(self.calls.fetches[count])
        made = zip(counts.tolist(), losses.tolist(), strict=True)
        return [Push(*counted, loss, None) for counted, loss in made]


class Gossip:
    """The workers of a run; the arguments are those of `harness.Run`."""

    watch = False

    def __init__(
        self,
        *flags: str,
        start: Sequence[float] = (0.0,),
        streams: Sequence = STREAMS,
        rounds: int = 1,
        loss: Callable | None = None,
    ) -> None:
        self.module = instead.get(FOLDER) or launch.load(FOLDER)
        self.module.gossip = instead.get("gossip", gossip)
        harness.built.add(FOLDER)
        self.flags = ["--learning_rate=0.1", *flags]
        self.start, self.streams = np.asarray(start, np.float32), streams
        self.rounds, self.name = rounds, f"gossip{next(_runs)}"
        self.loss = loss or (lambda index, usual: usual)
        self.workers = [Gossiper(self, k) for k in range(len(streams))]
        self.chief = self.workers[0]

    def __enter__(self) -> Gossip:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.session.close()

    at_once = harness.Run.at_once

    def play(self, schedule: Sequence[tuple[str, int, int | None]]) -> list[Push]:
        """Runs what `parse` returns; returns what became of each push."""
        made = []
        for verb, k, j in schedule:
            if verb == "pull":
                self.workers[k].pull()
            else:
                made.append(self.workers[k].push(j))
        return made

    def now(self) -> np.ndarray:
        """Returns all replicas, [N, P]."""
        return np.array([w.session.run(w.replica.x) for w in self.workers])

    def summary(self) -> dict:
        """Returns the counters as they go into result.json."""
        return self.chief.stats.summary(self.chief.session)
