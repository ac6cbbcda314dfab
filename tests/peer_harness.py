"""Workers without a ps in this process, and the functions of their scripts on them.

As in `harness`, whose learning problem this is: loss := ½ |w − c|², with a stream of
mini-batches c for each worker. A round is one all-reduce, so all make it at once, each
in a thread of its own.
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
from harness import STREAMS, Push, rounds, tf

checkpoint, lockstep, ring, sharded = (
    importlib.import_module(f"cluster.{name}")
    for name in ("checkpoint", "lockstep", "ring", "sharded")
)

SCHEMES = {  # folder: the flags of the hand-computed traces
    "Ring-All-Reduce": [],
    "Large-Minibatch": ["--warmup_steps=2"],
    "Local-SGD": ["--window=2"],
    "DiLoCo": ["--window=2", "--weight_decay=0"],
    "Sharded-Data-Parallel": [],
}
LIMIT = 60  # seconds until a call that hangs is an error

instead: dict[str, types.ModuleType] = {}  # scripts that stand for others
_runs = itertools.count(1)


class Peer:
    """One worker's graph and session."""

    def __init__(self, run: Peers, index: int) -> None:
        self.run, self.index = run, index
        hosts, targets = harness.peers(len(run.streams), ring.Ring.config)
        self.graph = tf.Graph()
        device = tf.device(f"/job:worker/task:{index}")
        with self.graph.as_default(), self.graph.container(run.name), device:
            task = [f"--task_index={index}", f"--worker_hosts={','.join(hosts)}"]
            self.args = args = run.module.parse_args([*task, *run.flags])
            start, batch, loss = harness.Run.quadratic(run, self, index)
            self.ring = run.module.Ring(args)
            learning = types.SimpleNamespace(start=start, batch=batch, loss=loss)
            self.center = center = self.ring.center(learning)
            self.stats = run.module.Stats(args)
            shared = run.module.state(args, center, self.stats)
            batch = rounds.in_turn(batch)
            self.calls = lockstep.Calls(
                lambda last: run.module.graph(
                    args, center, self.stats, self.ring, shared, batch, loss, last
                ),
                self.ring,
                sorted({1, run.rounds}),
            )
            # As in `cluster/peers.py`.
            stats = self.stats
            of_chief = {v.ref() for v in (stats.step, stats.counters, stats.stalest)}
            shared = [v for v in tf.global_variables() if v.ref() not in of_chief]
            shared.append(stats.number)
            self.broadcast = self.ring.broadcast(shared, index == 0)
            self.check = ring.ConsistencyCheck(self.ring, shared)
            self.extra = run.extra(self) if run.extra else None
            # Where nobody has all of w, it is read from workers who are between rounds.
            self.whole = getattr(center, "part", center)
            if getattr(center, "shards", None):
                self.whole = None
            self.meet = self.ring.sum(tf.zeros([1]))
            self.open = stats.open()
            begin = checkpoint.begin_operations()
            mine = shared[:-1] if index else tf.global_variables()
            initial = tf.variables_initializer(mine)
            self.local = tf.local_variables_initializer()
            self.variables = {
                v.op.name: v for v in tf.global_variables() + tf.local_variables()
            }
        config = ring.Ring.config(index)
        config.operation_timeout_in_ms = 1000 * LIMIT
        launch.without_optimizer(config)
        self.target = targets[index]
        self.session = tf.Session(self.target, graph=self.graph, config=config)
        self.session.run(initial)
        if index == 0:
            self.session.run(self.open)
        for operations in begin:
            self.session.run(operations)

    passes: Sequence = ()

    def call(self, count: int = 1) -> list[Push]:
        """Makes the rounds of one call; only the last knows the center variable."""
        losses, counts, _ = self.session.run(self.calls.fetches[count])
        assert (losses.shape, losses.dtype) == ((count,), np.float32)
        if self.whole is None:
            self.session.run(self.meet)
        made = zip(counts.tolist(), losses.tolist(), strict=True)
        pushes = [Push(*counted, loss, None) for counted, loss in made]
        return [*pushes[:-1], pushes[-1]._replace(center=self.now())]

    def now(self) -> np.ndarray:
        """Returns this worker's center variable."""
        if self.whole is None:
            saver = sharded.Saver(None, self.center, self.target)
            return saver.run("", saver.whole["center"])
        return self.session.run(self.whole)

    def own(self, name: str) -> np.ndarray:
        """Returns a variable of this worker."""
        return self.session.run(self.variables[name])

    def set(self, name: str, value: object) -> None:
        """Changes a variable of this worker."""
        variable = self.variables[name]
        self.session.run(variable.initializer, {variable.initial_value: value})


class Peers:
    """The workers of one scheme; the arguments are those of `harness.Run`.

    `extra(peer)` builds more into each worker's graph, kept as `peer.extra`.
    """

    watch = False

    def __init__(
        self,
        folder: str,
        *flags: str,
        start: Sequence[float] = (0.0,),
        streams: Sequence = STREAMS,
        rounds: int = 1,
        extra: Callable | None = None,
    ) -> None:
        self.module = instead.get(folder) or launch.load(folder)
        self.flags = ["--learning_rate=0.1", *SCHEMES[folder], *flags]
        harness.built.add(folder)
        self.start, self.streams = np.asarray(start, np.float32), streams
        self.rounds, self.extra, number = rounds, extra, next(_runs)
        self.name = f"peers{number}"
        # The servers outlive a run, and would take its keys for those of the last one.
        group, ring.GROUP = ring.GROUP, number
        try:
            self.workers = [Peer(self, k) for k in range(len(streams))]
        finally:
            ring.GROUP = group
        self.chief = self.workers[0]

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            with contextlib.suppress(tf.errors.OpError):
                worker.session.close()

    def loss(self, index: int, usual: Callable) -> Callable:
        """Returns the loss of a worker: the usual one."""
        return usual

    def at_once(self, work: Callable) -> list:
        """Returns what `work(peer)` returns of each worker, all at the same time."""
        return harness.at_once(self.workers, work)

    def trace(self, updates: int) -> np.ndarray:
        """Returns the center after each call, of as many rounds as the run has.

        Asserts that all workers were told the right numbers and have the same bits.
        """
        found = []
        for t in range(updates):
            made = self.at_once(lambda peer: peer.call(self.rounds))
            for pushes in made:
                steps = [self.rounds * t + i + 1 for i in range(self.rounds)]
                assert [push.step for push in pushes] == steps
                assert {push.became for push in pushes} == {rounds.APPLIED}
                assert not any(push.staleness for push in pushes)
                assert pushes[-1].center.tobytes() == made[0][-1].center.tobytes()
            found.append(made[0][-1].center)
        return np.array(found)

    def summary(self) -> dict:
        """Returns the counters as they go into result.json."""
        return self.chief.stats.summary(self.chief.session)
