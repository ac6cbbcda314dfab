"""One client, a split model, a split table: against their rules, and as processes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import harness
import launch
import numpy as np
import pytest
import rules
import test_inputs
from harness import STREAMS, rounds, servers, stats, tf
from launch import REPO, copy_of, result, run_sh, saved_step, wait_until

IN_GRAPH, SPLIT, TABLE = (
    "In-Graph-Replication",
    "Model-Parallelism",
    "Partitioned-Embedding",
)
tables = importlib.import_module("cluster.tables")
timeline = importlib.import_module("cluster.timeline")
PLACED = tf.RunOptions(output_partition_graphs=True)


def problem_of(folder: str) -> types.ModuleType:
    """Imports the problem.py of a folder that has one of its own."""
    path = REPO / folder / "problem.py"
    spec = importlib.util.spec_from_file_location(f"problem_of_{folder}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script_of(folder: str) -> types.ModuleType:
    """Imports a script, with the problem.py of its folder."""
    module = launch.load(folder)
    module.problem = problem_of(folder)
    return module


def args_of(module, *flags: str, num_ps: int = 1, workers: int = 2, me: int = 0):
    """Returns the checked flags of a worker on the servers of the harness."""
    _, hosts, _ = servers(num_ps)
    ps, others = hosts[:num_ps], hosts[num_ps:][:workers]
    cluster = [f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(others)}"]
    task = ["--job_name=worker", f"--task_index={me}"]
    return module.parse_args([*task, *cluster, "--learning_rate=0.1", *flags])


@contextlib.contextmanager
def graph_of(num_ps: int, me: int = 0, name: str | None = None) -> Iterator:
    """A graph under the setter of a script's `main`, in a container of its own."""
    spec, _, _ = servers(num_ps)
    setter = tf.train.replica_device_setter(
        cluster=spec, worker_device=f"/job:worker/task:{me}"
    )
    graph = tf.Graph()
    name = name or f"around{next(harness._runs)}"
    with graph.as_default(), graph.container(name), tf.device(setter):
        yield graph


def began(session, counters) -> None:
    """Initialises all and begins, as the chief does."""
    with session.graph.as_default():
        operations = [tf.global_variables_initializer(), counters.open()]
    for operation in operations:
        session.run(operation)


# --- In-Graph-Replication -----------------------------------------------------


class Shard:
    """Problem Q of one worker, as `problem.build` returns one."""

    def __init__(self, stream: tuple) -> None:
        dataset = tf.data.Dataset.from_tensor_slices(np.float32(stream)[:, None])
        self.iterator = tf.data.make_initializable_iterator(dataset.repeat())
        self.start, self.batch = tf.zeros([3]), self.iterator.get_next

    @staticmethod
    def loss(w, c):
        return tf.reduce_sum(0.5 * (w - c) ** 2)


@contextlib.contextmanager
def in_graph(*flags: str, num_ps: int = 1, workers: int = 2) -> Iterator:
    """Yields the session, the towers.Calls, the center, and the counters."""
    module = launch.load(IN_GRAPH)
    args = args_of(module, *flags, num_ps=num_ps, workers=workers)
    with graph_of(num_ps) as graph:
        shards = [Shard(stream) for stream in STREAMS[:workers]]
        batches = [rounds.in_turn(shard.batch) for shard in shards]
        center = module.variables(args, shards[0])
        counters = stats.Stats(args)
        calls = module.towers.Calls(
            lambda group, last: module.graph(
                args, center, counters, group, batches, shards[0], last
            ),
            module.groups(args),
        )
        now = rounds.pull(center)
        first = [shard.iterator.initializer for shard in shards]
        limit = tf.ConfigProto(operation_timeout_in_ms=20000)
        with tf.Session(servers(num_ps)[2][0], graph=graph, config=limit) as session:
            session.run(first)
            began(session, counters)
            yield session, calls, now, counters


@pytest.mark.parametrize("num_ps", [1, 2])
def test_towers_are_the_mean_of_synchronous_sgd(num_ps: int) -> None:
    expected = rules.synchronous_sgd([itertools.cycle(s) for s in STREAMS], 0.0, 7, 0.1)
    with in_graph(num_ps=num_ps) as (session, calls, now, counters):
        found, numbers = [], []
        for count in (1, 1, 1, 1, 3):
            losses, entries = calls.groups[0].call(session, count)
            numbers += entries.tolist()
            found.append(session.run(now))
        table = session.run(counters.counters)[:2]
    wanted = [expected[i] for i in (0, 1, 2, 3, 6)]
    np.testing.assert_allclose(found, np.outer(wanted, np.ones(3)), atol=1e-6)
    assert numbers == [[n, 0, rounds.APPLIED] for n in range(1, 8)]
    assert losses.shape == (3,)
    # Both workers have their rounds counted, the first one the updates.
    have = dict(zip(stats.COUNTERS, table.T.tolist(), strict=True))
    assert have["updates"] == [7, 0] and have["rounds"] == [7, 7]
    assert have["examples"] == [7 * 32] * 2
    assert have["pushed"] == have["pulled"] == [7 * 12] * 2


def test_asynchronous_towers_are_hogwild() -> None:
    schedule = harness.parse(harness.in_turn(6))
    streams = [itertools.cycle(s) for s in STREAMS]
    expected = rules.hogwild(schedule, streams, 0.0, 0.1)
    with in_graph("--asynchronous") as (session, calls, now, counters):
        found = []
        for k in (0, 1) * 3:
            _, entries = calls.groups[k].call(session, 1)
            assert entries[0].tolist() == [len(found) + 1, 0, rounds.APPLIED]
            found.append(session.run(now)[0])
        table = session.run(counters.counters)[:2]
    np.testing.assert_allclose(found, [w for _, w in expected], atol=1e-6)
    assert table[:, 0].tolist() == table[:, 1].tolist() == [3, 3]


def test_a_tower_is_on_its_worker_and_what_is_shared_on_the_ps() -> None:
    with in_graph(num_ps=2) as (session, calls, _, _):
        metadata, fetch = tf.RunMetadata(), calls.groups[0].fetches[1]
        session.run(fetch, options=PLACED, run_metadata=metadata)
    where: dict[str, set[str]] = {}
    for node in itertools.chain(*[g.node for g in metadata.partition_graphs]):
        where.setdefault(node.device.split("/device")[0], set()).add(node.op)
    place = "/job:{}/replica:0/task:{}".format
    for k in (0, 1):
        assert "AssignSubVariableOp" in where[place("ps", k)]
        assert {"Sub", "Sum"} <= where[place("worker", k)]
        assert not any("VariableOp" in op for op in where[place("worker", k)])
    assert "IteratorGetNext" in where[place("worker", 0)]
    assert "IteratorGetNext" not in where[place("worker", 1)]


def test_threads_make_all_updates_and_each_once() -> None:
    with in_graph("--asynchronous", "--steps=200") as (session, calls, _, counters):
        made = []
        while rounds.OVER not in [what for *_, what in made]:
            losses, counts = calls.make(session, 200 - len(made))
            assert len(losses) == len(counts)
            made += counts.tolist()
        table = session.run(counters.counters)[:2]
    applied = [step for step, _, what in made if what == rounds.APPLIED]
    assert applied == [*range(1, 201)]
    assert table[:, 0].sum() == 200 and table[:, 0].min() > 0


# --- Model-Parallelism --------------------------------------------------------


def split_gradient(stages: int, micro_batches: int) -> tuple:
    """Returns (loss, gradient) of the pipeline, of the whole model, and of the rule."""
    module = script_of(SPLIT)
    problem = module.problem
    problem.WIDTH = 12
    flags = [f"--stages={stages}", f"--micro_batches={micro_batches}"]
    args = args_of(module, *flags, "--batch_size=24", workers=4)
    random = np.random.default_rng(stages)
    images = random.random((24, 64), np.float32)
    labels = random.integers(0, 10, 24).astype(np.int32)
    with graph_of(1) as graph:
        data = types.SimpleNamespace(x_train=images, y_train=np.arange(10))
        layers = problem.layers_of(data)
        # Biases that are not zero, and weights that are.
        start = random.normal(0, 0.3, sum(i.size for i in layers)).astype(np.float32)
        learning = types.SimpleNamespace(
            start=tf.constant(start), layers=layers, cost=problem.cost
        )
        center = module.variables(args, learning)
        batch = tf.constant(images), tf.constant(labels)
        losses, gradients = module.pipeline(args, center, learning, batch)
        whole = tf.constant(start)
        loss = problem.cost(problem.model(layers, whole, batch[0]), batch[1])
        (expected,) = tf.gradients(loss, whole)
        fetch = [tf.reduce_mean(losses), tf.concat(gradients, 0)], [loss, expected]
        first = tf.global_variables_initializer()
        assert [piece.device for piece in center] == [
            f"/job:worker/task:{s}" for s in range(stages)
        ]
        with tf.Session(servers(1)[2][0], graph=graph) as session:
            session.run(first)
            piped, unsplit = session.run(fetch)
    weights, at = [], 0
    for layer in layers:
        inputs = layer.size // layer.outputs - 1
        w = start[at : at + inputs * layer.outputs].reshape(inputs, layer.outputs)
        weights.append((w.astype(float), start[at + w.size : at + layer.size]))
        at += layer.size
    value, found = rules.perceptron_gradient(weights, images, labels)
    flat = np.concatenate([x.ravel() for pair in found for x in pair])
    return piped, unsplit, (value, flat)


@pytest.mark.parametrize(
    ("stages", "micro_batches"), [(1, 1), (1, 4), (2, 1), (2, 4), (3, 8), (4, 3)]
)
def test_the_pipelines_gradient_is_that_of_the_whole_model(stages, micro_batches):
    piped, unsplit, rule = split_gradient(stages, micro_batches)
    for value, gradient in (unsplit, rule):
        assert piped[0] == pytest.approx(value, rel=1e-6)
        np.testing.assert_allclose(piped[1], gradient, atol=1e-6)
    assert np.abs(rule[1]).max() > 0.01


def test_bubble() -> None:
    """S stages, M micro-batches, units of one second: (S − 1) / (M + S − 1)."""
    for s, m in ((1, 3), (2, 1), (2, 4), (4, 8)):
        units = [
            timeline.Unit("forward", i, j, i + j, i + j + 1)
            for i in range(s)
            for j in range(m)
        ]
        assert timeline.span(units) == m + s - 1
        assert timeline.bubble(units) == pytest.approx((s - 1) / (m + s - 1))


def test_the_timeline_is_drawn(tmp_path: Path) -> None:
    command = [sys.executable, REPO / SPLIT / "timeline.py"]
    units = [("forward", 0, 0, 0.0, 0.5), ("backward", 1, 0, 0.5, 1.0)]
    timeline.write([timeline.Unit(*unit) for unit in units], tmp_path / "timeline.json")
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    done = subprocess.run([*command, REPO], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--stages=3"], "--stages 3: there are 2 workers"),
        (["--micro_batches=3"], "--micro_batches 3 does not divide --batch_size 128"),
        (["--stages=0"], "argument --stages: '0' is not"),
    ],
)
def test_stages_that_cannot_be(flags, words, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        args_of(script_of(SPLIT), *flags)
    error = capsys.readouterr().err
    assert end.value.code == 2 and words in error and error.count("\n") == 1


def test_more_stages_than_layers(capsys) -> None:
    hosts = ",".join(f"a:{1 + k}" for k in range(6))
    words = ["--job_name=worker", "--task_index=0", "--ps_hosts=b:1"]
    module = script_of(SPLIT)
    assert module.parse_args([*words, f"--worker_hosts={hosts}"]).stages == 4
    with pytest.raises(SystemExit) as end:
        module.parse_args([*words, f"--worker_hosts={hosts}", "--stages=5"])
    assert end.value.code == 2
    assert "--stages 5: the model has 4 layers to cut" in capsys.readouterr().err


# --- Partitioned-Embedding ----------------------------------------------------

SIZES = [(7, 1), (7, 2), (7, 3), (8, 3), (3, 3), (2, 3), (100, 7)]


@pytest.mark.parametrize("strategy", tables.STRATEGIES)
@pytest.mark.parametrize(("count", "slices"), SIZES)
def test_every_row_has_one_place(count, slices, strategy) -> None:
    ids = np.arange(count)
    slice_, place = tables.locate(ids, count, slices, strategy)
    seen = []
    for k in range(slices):
        mine = tables.ids_of(k, count, slices, strategy)
        assert len(mine) == tables.size_of(k, count, slices)
        assert (slice_[mine] == k).all()
        assert place[mine].tolist() == list(range(len(mine)))
        seen += mine.tolist()
    assert sorted(seen) == ids.tolist()
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = tables.locate(tf.constant(ids, tf.int32), count, slices, strategy)
        for tensor, array in zip(session.run(tensors), (slice_, place), strict=True):
            np.testing.assert_array_equal(tensor, array)


class Embedding:
    """One worker's graph and session of a small table, 5 users and 4 items."""

    users, items, rank, batch = 5, 4, 3, 6

    def __init__(self, name: str, num_ps: int, me: int, strategy: str) -> None:
        module = script_of(TABLE)
        self.args = args_of(
            module,
            f"--rank={self.rank}",
            f"--batch_size={self.batch}",
            f"--strategy={strategy}",
            "--l2=0.01",
            num_ps=num_ps,
            me=me,
        )
        random = np.random.default_rng(me)
        user, item = (random.integers(0, n, (9, self.batch)) for n in (5, 4))
        self.ids = np.stack([user, item + 5], 2).astype(np.int32)
        self.ratings = random.normal(3, 1, (9, self.batch)).astype(np.float32)
        data = types.SimpleNamespace(
            x_train=self.ids[0], y_train=self.ratings[0], rows=9, mean=3.0
        )
        with graph_of(num_ps, me, name) as graph:
            learning = module.problem.build(data, self.args)
            values = self.ids, self.ratings
            drawn = tf.data.Dataset.from_tensor_slices(values).repeat()
            iterator = tf.data.make_initializable_iterator(drawn)
            self.table = tables.Table(self.args, 9)
            self.stats = stats.Stats(self.args)
            batch = rounds.in_turn(iterator.get_next)
            self.fetches = rounds.Calls(
                lambda last: module.graph(
                    self.args, self.table, self.stats, batch, learning.loss, last
                ),
                (1, 2),
            ).fetches
            self.all = self.table.lookup(tf.range(9))
            self.saver = tables.Saver(self.table)
            load = []
            self.given = tf.placeholder(tf.float32, [9, self.rank])
            for k, piece in enumerate(self.table.slices):
                mine = tables.ids_of(k, 9, num_ps, strategy)
                load.append(piece.assign(tf.gather(self.given, mine)).op)
        self.load = load
        filters = ["/job:ps", f"/job:worker/task:{me}"]
        config = tf.ConfigProto(device_filters=filters, operation_timeout_in_ms=20000)
        self.session = tf.Session(servers(num_ps)[2][me], graph=graph, config=config)
        self.session.run(iterator.initializer)

    def begin(self, w: np.ndarray) -> None:
        """As chief: initialises all, and loads the table [9, d]."""
        began(self.session, self.stats)
        self.session.run(self.load, {self.given: w})

    def batches(self) -> Iterator:
        """Returns the mini-batches, over and over, for the rule."""
        return itertools.cycle(zip(self.ids, self.ratings, strict=True))


START = np.random.default_rng(5).normal(0, 0.5, (9, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("num_ps", "strategy"),
    [
        pytest.param(1, "mod", marks=launch.if_thorough),
        pytest.param(1, "div", marks=launch.if_thorough),
        (2, "mod"),
        (2, "div"),
    ],
)
def test_touched_rows_are_as_a_dense_table(num_ps, strategy) -> None:
    """Two workers in turn, rows named twice in a mini-batch among them."""
    name = f"around{next(harness._runs)}"
    two = [Embedding(name, num_ps, me, strategy) for me in (0, 1)]
    two[0].begin(START)
    schedule = harness.parse(harness.in_turn(6))
    streams = [one.batches() for one in two]
    expected = rules.matrix_factorization(
        schedule, streams, START.astype(float), 0.1, 3.0, 0.01
    )
    found, named = [], [[], []]
    for turn in range(6):
        one = two[turn % 2]
        _, entries, _ = one.session.run(one.fetches[1])
        assert entries[0].tolist() == [turn + 1, 0, rounds.APPLIED]
        found.append(one.session.run(one.all))
        named[turn % 2].append(len(np.unique(one.ids[turn // 2])))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Exactly the rows that each mini-batch names are counted, each once.
    table = two[0].session.run(two[0].stats.counters)[:2]
    have = dict(zip(stats.COUNTERS, table.T.tolist(), strict=True))
    assert have["pushed"] == [(4 + 12) * sum(n) for n in named]
    assert have["pulled"] == [12 * sum(n) for n in named]
    traffic = two[0].table.traffic(two[0].stats.summary(two[0].session))
    assert traffic["dense_bytes_per_step"] == 2 * 4 * 9 * 3
    assert traffic["bytes_per_step"] == 28 * sum(map(sum, named)) / 6
    # Two rounds in a call: the second one sees the first one's update.
    w = rules.matrix_factorization(
        [("pull", 0), ("push", 0)] * 2, [streams[0]], expected[-1], 0.1, 3.0, 0.01
    )[-1]
    two[0].session.run(two[0].fetches[2])
    np.testing.assert_allclose(two[0].session.run(two[0].all), w, atol=1e-6)
    for one in two:
        one.session.close()


def test_only_touched_rows_are_on_the_wire() -> None:
    """No tensor of the table's size leaves a ps, not even in the graph as it runs."""
    one = Embedding(f"around{next(harness._runs)}", 2, 0, "mod")
    one.begin(START)
    metadata = tf.RunMetadata()
    one.session.run(one.fetches[1], options=PLACED, run_metadata=metadata)
    one.session.close()
    nodes = list(itertools.chain(*[g.node for g in metadata.partition_graphs]))
    on = {op: {n.device for n in nodes if n.op == op} for op in {n.op for n in nodes}}
    for op in ("ResourceGather", "ResourceScatterSub"):
        assert len(on[op]) == 2 and all("job:ps" in device for device in on[op])
    reads = [n.input[0] for n in nodes if n.op == "ReadVariableOp"]
    assert reads and not any("table" in name for name in reads)


@pytest.mark.parametrize(
    ("old", "new"),
    [((2, "mod"), (1, "div")), ((1, "mod"), (2, "mod")), ((2, "div"), (2, "mod"))],
)
def test_a_table_is_restored_on_another_number_of_ps(old, new, tmp_path, capsys):
    one = Embedding(f"around{next(harness._runs)}", old[0], 0, old[1])
    one.begin(START)
    one.session.run(one.fetches[1])
    kept = one.session.run(
        [one.all, one.stats.step, one.stats.counters, one.stats.stalest]
    )
    path = one.saver.save(one.session, str(tmp_path / "model.ckpt"), 1)
    one.session.close()
    assert len(list(tmp_path.glob("*.data-*"))) == old[0]
    other = Embedding(f"around{next(harness._runs)}", new[0], 0, new[1])
    other.saver.restore(other.session, path)
    found = other.session.run(
        [other.all, other.stats.step, other.stats.counters, other.stats.stalest]
    )
    layout = other.session.run(other.table.layout).tolist()
    # And again, as it lies now.
    capsys.readouterr()
    path = other.saver.save(other.session, str(tmp_path / "again.ckpt"), 2)
    other.session.run(other.load, {other.given: 0 * START})
    other.saver.restore(other.session, path)
    again = other.session.run(other.all)
    other.session.close()
    for a, b in zip(kept, found, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(kept[0], again)
    assert layout == [tables.STRATEGIES.index(new[1]), new[0]]
    assert not capsys.readouterr().out


def test_another_table_is_not_restored(tmp_path) -> None:
    copy, logdir = copy_of(TABLE, tmp_path), tmp_path / "logdir"
    with run_sh(copy, "--steps", "20", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    with run_sh(copy, "--steps", "40", "--rank", "4", LOGDIR=str(logdir)) as run:
        assert run.wait() == 1, run.output
    said = r"cannot resume from .*: table is \[(\d+), 8\] there, \[\1, 4\] here"
    assert re.search(said, run.output) and "Traceback" not in run.output, run.output


def load(data: str, *flags: str, workers: int = 2):
    """Returns what the script's problem loads, for these flags."""
    module = script_of(TABLE)
    args = args_of(module, f"--ratings={data}", "--batch_size=2", *flags)
    fits = importlib.import_module("cluster.memory").fit
    ratings = module.problem.Ratings(args, lambda rows: fits(args, rows, 32))
    return ratings, ratings.load(args.data, workers)


def test_drawn_ratings_are_of_the_known_model() -> None:
    flags = ["--users=300", "--items=50", "--draw=50000", "--noise=0.2"]
    ratings, data = load("drawn", *flags, "--skew=0")
    user, item = data.x_train[:, 0], data.x_train[:, 1] - 300
    assert (
        data.rows == 350 and user.max() == 299 and (item.min(), item.max()) == (0, 49)
    )
    truth = ratings.true_rows(user, 0) * ratings.true_rows(item, 1)
    error = data.y_train - 3 - truth.sum(1) * ratings.rank**-0.5
    assert error.std() == pytest.approx(0.2, rel=0.02) and abs(error.mean()) < 0.01
    assert truth.sum(1).std() * ratings.rank**-0.5 == pytest.approx(1, rel=0.2)
    counts = np.bincount(user, minlength=300)
    assert counts.min() > 0.4 * counts.mean()
    assert len(data.y_test) == 5000
    _, skewed = load("drawn", *flags, "--skew=0.9")
    assert np.bincount(skewed.x_train[:, 0])[0] > 8 * counts.mean()


NPZ = dict(user=[0, 1, 2, 0], item=[3, 1, 0, 1], rating=[3.0, 4.0, 1.0, 2.5])
FAR = {**NPZ, "user": [0, 1, 9, 0]}
CSV = "userId,movieId,rating,timestamp\n" + "".join(
    f"{7 * n % 5 + 1},{100 * (n % 3)},{n % 5 + 0.5},9\n" for n in range(20)
)


def write(path: Path, content) -> str:
    """Writes a file of data; returns its path as a text."""
    if isinstance(content, dict):
        np.savez(path, **{key: np.array(value) for key, value in content.items()})
    else:
        path.write_text(content)
    return str(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.csv", CSV),
        ("r.dat", CSV.split("\n", 1)[1].replace(",", "::")),
        ("r.data", CSV.split("\n", 1)[1].replace(",", "\t")),
    ],
)
def test_movielens_files(name, content, tmp_path) -> None:
    _, data = load(write(tmp_path / name, content))
    assert data.rows == 5 + 3 and len(data.y_train) + len(data.y_test) == 20
    ids = np.concatenate([data.x_train, data.x_test])
    assert sorted(set(ids[:, 0])) == [0, 1, 2, 3, 4]
    assert sorted(set(ids[:, 1])) == [5, 6, 7]


@pytest.mark.parametrize(
    ("name", "content", "flags", "words"),
    [
        ("r.npz", FAR, ["--users=4"], "rating 2 is of user 9, which is not in 0..3"),
        ("r.npz", {**NPZ, "item": [0, -1, 1, 0]}, [], "rating 1 is of item -1"),
        ("r.npz", {**NPZ, "rating": [1, np.nan, 1, 0]}, [], "rating 1 is nan"),
        ("r.npz", {**NPZ, "rating": [1, 2]}, [], "rating (2,) must be one for each"),
        ("r.npz", {**NPZ, "user": [0.5] * 4}, [], "user must hold numbers, not fl"),
        ("r.npz", {"user": [1]}, [], "has no item; found user"),
        ("r.npz", NPZ, [], "need 4"),
        ("r.npz", "nonsense", [], "not a readable .npz file"),
        ("r.csv", CSV + "3,,4.0,9\n", [], "line 22 is not user, item, rating: '3,,4"),
        ("r.csv", CSV + "3,5,,9\n", [], "line 22 is not user, item, rating"),
        ("r.csv", CSV + "3,5\n", [], "line 22 is not"),
        ("r.csv", CSV + "3,5,nan\n", [], "rating 20 is nan"),
        ("r.csv", "userId\n", [], "has no ratings"),
        ("r.txt", CSV, [], "choose drawn, a .npz file, or MovieLens' .csv"),
    ],
)  # fmt: skip
def test_a_rating_file_that_cannot_be_used(name, content, flags, words, tmp_path):
    with pytest.raises(ValueError) as error:
        load(write(tmp_path / name, content), *flags)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("folder", "flag", "rows", "needed"),
    [
        (TABLE, "--users", 2000002000, 1024.0),
        ("Dynamic-Embedding", "--capacity", 2000000000, 1856.0),
    ],
)
def test_a_table_that_does_not_fit(folder, flag, rows, needed, tmp_path) -> None:
    copy = copy_of(folder, tmp_path)
    with run_sh(copy, flag, "2000000000", "--rank", "64") as run:
        assert run.wait() == 2, run.output
    words = f"a table of {rows} x 64 on 2 ps, 2 of them on localhost, needs {needed} GB"
    assert len(run.lines) == 2 and words in run.lines[1], run.output
    assert not (copy / "logdir").exists()


@pytest.mark.parametrize("folder", [IN_GRAPH, SPLIT, TABLE])
def test_every_script_refuses_wrong_flags(folder, capsys, monkeypatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    module = script_of(folder)
    for changes, words in test_inputs.MISTAKES:
        with pytest.raises(SystemExit) as end:
            module.parse_args(test_inputs.flags(changes))
        test_inputs.check(end.value.code, capsys.readouterr().err, words)


# --- As processes -------------------------------------------------------------


KILLED = {  # folder: who is killed, steps (some seconds of them), flags, how good it is
    IN_GRAPH: ("worker", 300, ["--slow_workers", "0.005"], ("test_accuracy", 0.9)),
    SPLIT: ("worker", launch.thorough(1000, 3000), [], ("test_accuracy", 0.9)),
    TABLE: ("ps", 1000, ["--slow_workers", "0.02"], ("test_rmse", -0.5)),
}


@pytest.mark.parametrize(
    "folder", [pytest.param(IN_GRAPH, marks=launch.if_thorough), SPLIT, TABLE]
)
def test_a_run_one_of_whose_tasks_dies_and_comes_back(folder, tmp_path) -> None:
    """All updates are made, the counters account for each, nothing is left."""
    job, steps, flags, (metric, least) = KILLED[folder]
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "a logdir"
    before = launch.tree(copy)
    command = ["--steps", str(steps), "--save_seconds", "0.5", *flags]
    with run_sh(copy, *command, MAX_RESTARTS="1", LOGDIR=str(logdir)) as run:
        wait_until(lambda: saved_step(logdir) > 0, 120, run)
        run.task(job, 1).kill()
        run.wait_for(f"{job} 1 ended with status 137; restart 1 of 1")
        assert run.wait() == 0, run.output
        run.nothing_left()
    strange = launch.strange(run.lines)
    assert not strange, run.output
    done = result(logdir)
    assert (done["scheme"], done["global_steps"]) == (folder, steps)
    assert (done[metric] if least > 0 else -done[metric]) >= least, done
    made = sum(done["rounds_per_worker"].values())
    assert done["examples"] == done["flags"]["batch_size"] * made
    assert made == (2 * steps if folder == IN_GRAPH else steps)
    assert launch.tree(copy) == before


@pytest.mark.parametrize(
    "folder",
    [IN_GRAPH, *(pytest.param(f, marks=launch.if_thorough) for f in (SPLIT, TABLE))],
)
def test_the_first_death_ends_the_run(folder, tmp_path) -> None:
    job, *_ = KILLED[folder]
    copy = copy_of(folder, tmp_path)
    with run_sh(copy, "--steps", "1000000") as run:
        run.wait_for("  loss ")
        cause = time.monotonic()
        run.task(job, 1).kill()
        assert run.wait(30) == 137, run.output
        assert time.monotonic() - cause < 8
        run.nothing_left()


def test_one_client_by_hand_and_by_tf_config(tmp_path) -> None:
    """In several directories; the second run goes on where the first one ended."""
    copy, logdir = copy_of(IN_GRAPH, tmp_path), tmp_path / "logdir"
    with launch.ByHand(copy, "--steps=50", f"--logdir={logdir}") as tasks:
        for task in tasks.start_all():
            assert task.wait(60) == 0, task.output
        hosts = tasks.ps, tasks.workers
    cluster = {"ps": hosts[0], "chief": hosts[1][:1], "worker": hosts[1][1:]}
    runs = []
    try:
        for job in ("ps", "worker", "chief"):
            task = {"type": job, "index": 0}
            config = json.dumps({"cluster": cluster, "task": task})
            words = ["--steps=80", f"--logdir={logdir}"]
            runs.append(launch.run_task(copy, *words, TF_CONFIG=config))
        for run in runs:
            assert run.wait(60) == 0, run.output
    finally:
        for run in runs:
            run.__exit__()
    done = result(logdir)
    assert (done["global_steps"], done["resumed_from"]) == (80, 50)
    assert done["rounds_per_worker"] == {"0": 80, "1": 80}
    assert done["input_bytes_per_step"] == 32 * (64 * 4 + 4)
