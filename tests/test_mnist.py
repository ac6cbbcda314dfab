"""Distributed-MNIST: records, input, placement, the update push by push, whole runs.

The graphs are built by the program's own functions on an in-process cluster
(`harness`), and compared with their formulas in NumPy.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import pathlib
import re
import runpy
import shutil
import signal
import struct
import sys
import threading

import harness
import launch
import numpy as np
import pytest
import tree
from harness import rounds, tf
from launch import REPO, copy_of, result, run_sh, saved_step, wait_until

FOLDER = "Distributed-MNIST"
sys.path.append(str(REPO / FOLDER))  # behind: its cluster/ is that of the others
program = launch.load(FOLDER)
sync = importlib.import_module("cluster.sync")
evaluate, models, optimizers, pictures, pipeline, placement = map(
    importlib.import_module,
    ("evaluate", "models", "optimizers", "pictures", "pipeline", "placement"),
)
prepare, records, sources, supply = map(
    importlib.import_module, ("prepare", "records", "sources", "supply")
)


def args_of(*flags: str, index: int = 0, num_ps: int = 1, workers: int = 2):
    """Returns the program's checked flags for a worker."""
    ps = [f"p:{1 + i}" for i in range(num_ps)]
    others = [f"a:{1 + i}" for i in range(workers)]
    return program.parse_args(
        [
            "--job_name=worker",
            f"--task_index={index}",
            f"--ps_hosts={','.join(ps)}",
            f"--worker_hosts={','.join(others)}",
            *flags,
        ]
    )


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> records.Index:
    """The digits as records, in five files: they divide by no number of workers."""
    folder = tmp_path_factory.mktemp("records") / "digits"
    return prepare.write(sources.source_of("digits"), str(folder), 5, say=lambda _: 0)


def files_of(folder: str | pathlib.Path) -> dict[str, bytes]:
    """Returns the content of a folder's files."""
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


# --- Records ------------------------------------------------------------------


def test_records_hold_the_images(digits) -> None:
    """Each image once, under its row; train and validation share none."""
    _, arrays = sources._arrays_of("digits")
    assert digits.shape == [28, 28, 1] and len(digits.classes) == 10
    sizes = {split: records.count(files) for split, files in digits.splits.items()}
    assert sizes == {"train": 1293, "validation": 144, "test": 360}
    seen = {}
    with tf.Graph().as_default(), tf.Session() as session:
        for split in digits.splits:
            iterator = pipeline.held_out(digits, split)
            batch = iterator.get_next()
            session.run(iterator.initializer)
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while True:
                    for image, label, row in zip(*session.run(batch), strict=True):
                        source = "test" if split == "test" else "train"
                        assert seen.setdefault((source, int(row)), image) is image
                        assert label == arrays[source][1][row]
    assert len(seen) == 1797
    for (source, row), image in itertools.islice(seen.items(), 50):
        original = sources._scaled(arrays[source][0][row : row + 1], 28)[0]
        np.testing.assert_array_equal(image, original)


def test_preparing_is_resumed_and_never_repeated(tmp_path) -> None:
    """Interrupted after three files, it goes on; the bytes are those of one go."""
    source, made = sources.source_of("digits"), []
    prepare.write(source, str(tmp_path / "a"), 4, say=lambda _: None)

    def interrupt(text):
        made.append(text)
        if len(made) == 3:
            raise KeyboardInterrupt

    folder = str(tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        prepare.write(source, folder, 4, say=interrupt)
    assert not records.are_there(folder)
    half = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").glob("train*")}
    assert len(half) == 3
    with pytest.raises(ValueError, match="beginning of other records"):
        prepare.write(source, folder, 3, say=lambda _: None)
    prepare.write(source, folder, 4, say=lambda _: None)
    assert all(p.stat().st_mtime_ns == time_ for p, time_ in half.items())
    assert files_of(folder) == files_of(tmp_path / "a")
    with pytest.raises(ValueError, match="has records already"):
        prepare.write(source, folder, 4, say=lambda _: None)
    assert files_of(folder) == files_of(tmp_path / "a")


def write_png(path: pathlib.Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pictures.png(image))


def photos(folder: pathlib.Path, each: int, side: int = 12) -> pathlib.Path:
    """Writes a folder of RGB images by class: red ones and green ones."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("green", "red")):
        for i in range(each):
            image = rng.integers(0, 120, [side, side, 3]).astype(np.uint8)
            image[..., 1 - number] += 120
            write_png(folder / name / f"{i}.png", image)
    return folder


def tell(copy: pathlib.Path, script: str, *arguments: object):
    """Returns a finished script of a copy."""
    command = [sys.executable, copy / script, *arguments]
    return tree.run(*command, cwd=copy, env=launch.environment())


# As a reader puts layers of their own behind models.py, here with a regularizer.
LAYERS = """
def layers_of_keras(shape, classes, hidden):
    layers, decay = tf.keras.layers, tf.keras.regularizers.L2(0.5)
    inner = {}
    last = layers.Dense(classes, kernel_regularizer=decay)
    return tf.keras.Sequential([layers.Input(shape), *inner, layers.Flatten(), last])
"""


def with_layers(inner: str, path: pathlib.Path) -> pathlib.Path:
    """Writes a models.py with these layers."""
    text = (REPO / FOLDER / "models.py").read_text()
    path.write_text(text + LAYERS.format(inner))
    return path


@pytest.mark.long
def test_pictures_of_all_kinds_from_files_to_predictions(tmp_path) -> None:
    """The exported model reads a file of any kind exactly as prepare.py did."""
    copy, folder = copy_of(FOLDER, tmp_path), tmp_path / "photos"
    rng = np.random.default_rng(0)
    for i, name in itertools.product(range(20), ("green", "red")):
        image = rng.integers(0, 120, [12, 12 + i % 2, 3 + i % 3 % 2]).astype(np.uint8)
        image[..., ("red", "green").index(name)] += 120
        write_png(folder / name / f"{i}.png", image)
    write_png(folder / "red" / "gray.png", np.zeros([9, 9, 1], np.uint8))
    with tf.Graph().as_default(), tf.Session() as session:
        jpeg = session.run(tf.io.encode_jpeg(image[..., :3]))
    (folder / "red" / "a.JPG").write_bytes(jpeg)
    out = tmp_path / "records"
    done = tell(copy, "prepare.py", folder, out, "--shards=2")
    assert done.returncode == 2 and "see --size and --channels" in done.stderr
    assert not any(out.iterdir())
    both = "--size=16", "--channels=3"
    done = tell(copy, "prepare.py", folder, out, "--shards=2", *both)
    assert done.returncode == 0 and "images 16x16x3" in done.stdout, done.stderr

    # Dropout has a state that is not trained: seeds.
    with_layers("[layers.Rescaling(1 / 255), layers.Dropout(0.2)]", copy / "models.py")
    logdir, served = tmp_path / "logdir", tmp_path / "served"
    flags = ["--data", str(out), "--model", "keras", "--steps", "20"]
    with run_sh(copy, *flags, "--export", str(served), LOGDIR=str(logdir)) as run:
        assert run.wait(800) == 0, run.output
    done = result(logdir)
    # The cross-entropy of two classes is 0.7 at the start; the decay is about 2.
    # Of 20 steps one worker may have made all; the other one has no loss.
    assert min(filter(None, done["loss_per_worker"].values())) > done["test_loss"] + 0.5
    files = [folder / name for name in ("red/a.JPG", "red/gray.png", "green/4.png")]
    said = tell(copy, "predict.py", served, *files)
    assert said.returncode == 0 and len(said.stdout.splitlines()) == 3, said.stderr
    index = records.read_index(str(out))
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, ["serve"], str(next(served.iterdir())))
        sign = model.signature_def["decode"]
        iterator = pipeline.held_out(index, "train")
        session.run(iterator.initializer)
        images, _, _ = session.run(iterator.get_next())
        name, image = sign.inputs["file"].name, sign.outputs["image"].name
        decoded = {
            session.run(image, {name: path.read_bytes()}).tobytes()
            for path in folder.glob("*/*")
        }
    assert len(images) > 20 and {image.tobytes() for image in images} <= decoded


# --- Input --------------------------------------------------------------------


def stream(index, args, worker: int, workers: int, position: int = 0, count: int = 0):
    """Returns the rows of a worker's first batches, and the images."""
    with tf.Graph().as_default(), tf.Session() as session:
        at = tf.constant(position, tf.int64)
        batch = pipeline.batches(index, args, worker, workers, at)()
        session.run(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS))
        made = [session.run(batch) for _ in range(count)]
    return np.concatenate([b[2] for b in made]), np.concatenate([b[0] for b in made])


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_each_example_exactly_once_in_an_epoch(digits, workers) -> None:
    """Of two epochs; files do not divide, and seven workers are more than files."""
    args = args_of("--batch_size=1", "--augment=0", "--shuffle=300")
    epochs, sizes = [[], []], []
    for worker in range(workers):
        size = pipeline.share(digits.splits["train"], worker, workers)[2]
        sizes.append(size)
        seen, _ = stream(digits, args, worker, workers, 0, 2 * size)
        halves = seen[:size].tolist(), seen[size:].tolist()
        assert sorted(halves[0]) == sorted(halves[1]) and halves[0] != halves[1]
        for epoch, half in zip(epochs, halves, strict=True):
            epoch += half
    sizes = [
        pipeline.share(digits.splits["train"], k, workers)[2] for k in range(workers)
    ]
    assert max(sizes) - min(sizes) <= 6
    assert max(sizes) - min(sizes) <= 6
    everything = sorted(epochs[0])
    assert len(set(everything)) == len(everything) == 1293
    assert sorted(epochs[1]) == everything


@pytest.mark.parametrize("position", [32, 5 * 32 * 40])
def test_a_worker_goes_on_where_the_counters_say(digits, position) -> None:
    """In mid-epoch or epochs later: the same rows, augmented in the same way."""
    args = args_of("--batch_size=32", "--shuffle=200")
    whole, images = stream(digits, args, 1, 2, 0, position // 32 + 4)
    rest, again = stream(digits, args, 1, 2, position, 4)
    assert rest.tolist() == whole[position:].tolist()
    np.testing.assert_array_equal(again, images[position:])


@pytest.mark.parametrize("change", [-1, 1])
def test_an_epoch_of_another_length_is_an_error(digits, change) -> None:
    """The index says how many there are; the end of every epoch asserts it."""
    first, *others = digits.splits["train"]
    changed = {**first, "examples": first["examples"] + change}
    wrong = digits._replace(splits={**digits.splits, "train": [changed, *others]})
    args = args_of("--batch_size=1", "--augment=0")
    words = f"expected to contain {1293 + change} elements"
    with pytest.raises(tf.errors.FailedPreconditionError, match=words):
        stream(wrong, args, 0, 1, 0, 1294)


def test_augmented_images_stay_what_they_are(digits) -> None:
    """Turned and moved a little, each in its own way; without the flag untouched."""
    plain = stream(digits, args_of("--augment=0"), 0, 1, 0, 2)
    moved = stream(digits, args_of("--augment=1"), 0, 1, 0, 2)
    assert plain[0].tolist() == moved[0].tolist()
    for a, b in zip(plain[1], moved[1], strict=True):
        assert not np.array_equal(a, b)
        assert abs(a.mean() - b.mean()) < 0.25 * a.mean()
    assert moved[1].min() >= 0 and moved[1].max() <= 255.01


# --- Placement ----------------------------------------------------------------


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("kind", placement.KINDS)
def test_placement(kind, num_ps, capsys) -> None:
    hosts = {"ps": [f"a:{i + 1}" for i in range(num_ps)], "worker": ["b:1"]}
    place = placement.Placement(kind, num_ps)
    setter = tf.train.replica_device_setter(
        cluster=tf.train.ClusterSpec(hosts),
        worker_device="/job:worker/task:0",
        ps_strategy=place,
    )
    model = models.conv([28, 28, 1], 10, 128, 0)
    with tf.Graph().as_default(), tf.device(setter):
        pieces, join = place.variables(model)
        slots = place.slots("momentum")
        whole = join([piece.value() for piece in pieces])
    assert len(whole) == len(model.shapes)
    tasks = [placement.task_of(piece) for piece in pieces]
    assert tasks[0] == 0, "ps 0 numbers a push when the first piece is there"
    assert [s.device for s in slots] == [p.device for p in pieces]
    place.print_bytes(pieces)
    held = [int(n) for n in re.findall(r"holds (\d+) bytes", capsys.readouterr().out)]
    total = 4 * sum(int(np.prod(shape)) for shape in model.shapes)
    assert sum(held) == total and len(held) == num_ps
    dense = 4 * 7 * 7 * 32 * 128
    if kind == "partitioned":
        assert max(held) < 1.1 * total / num_ps + 4096
    elif kind == "round_robin":
        assert tasks == [i % num_ps for i in range(8)]
    else:
        assert num_ps == 1 or max(held) < dense + total / 20


# --- The update, push by push -------------------------------------------------


class Worker:
    """A worker of the program's own graph, on named variables and a loss of choice."""

    def __init__(self, run: Run, index: int) -> None:
        spec, _, targets = harness.servers(run.num_ps)
        args = args_of(*run.flags, index=index, num_ps=run.num_ps, workers=run.workers)
        args.steps, self.graph = run.steps, tf.Graph()
        device = f"/job:worker/task:{index}"
        place = placement.Placement(args.placement, run.num_ps)
        setter = tf.train.replica_device_setter(
            cluster=spec, worker_device=device, ps_strategy=place
        )
        with self.graph.as_default(), self.graph.container(run.name), tf.device(setter):
            center, join = place.variables(run.model)
            move = optimizers.of(args, place)
            self.stats = stats = harness.stats.Stats(args)
            step = sync.Barrier(args, center, stats) if args.issync else None
            data = tf.data.Dataset.from_tensor_slices(run.streams[index]).repeat()
            iterator = tf.data.make_initializable_iterator(data)

            def loss(pieces, batch):
                return run.loss(join(pieces), batch)

            parts = args, center, stats, step, move, iterator.get_next, loss
            self.calls = rounds.Calls(lambda last: program.graph(*parts, last), (1,))
            self.center = join(rounds.read(center))
            first = [tf.global_variables_initializer(), stats.open()]
            self.stop = stats.stop()
        config = tf.ConfigProto(
            device_filters=["/job:ps", device], operation_timeout_in_ms=20000
        )
        self.session = tf.Session(targets[index], graph=self.graph, config=config)
        if index == 0:
            for operation in first:
                self.session.run(operation)
        self.session.run(iterator.initializer)
        self.session.run(stats.on_begin)

    def push(self) -> list[int]:
        """Makes a round; returns [step after it, staleness, what became of it]."""
        return self.session.run(self.calls.fetches[1])[1][0].tolist()

    def now(self) -> list[np.ndarray]:
        """Returns the variables."""
        return self.session.run(self.center)


class Run:
    """Workers of the program that train one model at once or in turn."""

    numbers = itertools.count()

    def __init__(self, *flags, model, loss, streams, num_ps=1, steps=1000) -> None:
        self.flags, self.model, self.loss, self.num_ps = flags, model, loss, num_ps
        self.streams, self.workers, self.steps = streams, len(streams), steps
        self.name = f"mnist{next(self.numbers)}"
        self.made = [Worker(self, k) for k in range(self.workers)]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.made:
            worker.session.close()

    def at_once(self, pushes: int) -> list[list[int]]:
        """Has every worker make so many rounds, all at the same time."""
        said, threads = [], []
        for worker in self.made:

            def push(worker=worker):
                said.extend(worker.push() for _ in range(pushes))

            threads.append(threading.Thread(target=push))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert len(said) == pushes * self.workers
        return said


START = [np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 2.0]]), np.array([0.25, -1.0])]
QUADRATIC = models.Network(
    ["a/kernel", "a/bias"],
    lambda i: tf.constant(START[i], tf.float32),
    [w.shape for w in START],
    None,
    None,
)


def quadratic(values, batch):
    """loss := ½ ∑ |w − c|² over all variables, so that a gradient is w − c."""
    return sum(tf.reduce_sum(0.5 * (w - batch) ** 2) for w in values)


class Rule:
    """The update in NumPy, float64, by the formulas of the script's docstring."""

    def __init__(self, args) -> None:
        self.args, self.w, self.t = args, [w.copy() for w in START], 0
        self.m, self.v = ([np.zeros(w.shape) for w in START] for _ in "mv")

    def gradient(self, c: float) -> list[np.ndarray]:
        """Returns the gradient at the weights as they are, clipped."""
        g = [w - c for w in self.w]
        norm = np.sqrt(sum((x**2).sum() for x in g))
        clip = self.args.clip_norm
        return [x * min(1, clip / norm) for x in g] if clip else g

    def apply(self, g: list[np.ndarray]) -> None:
        """Moves the weights by a gradient."""
        args = self.args
        rate = args.learning_rate * args.decay_rate ** (self.t / args.decay_steps)
        self.t += 1
        b1, b2 = args.momentum, 0.999
        for i, x in enumerate(g):
            if args.optimizer == "momentum":
                self.m[i] = b1 * self.m[i] + x
                self.w[i] -= rate * self.m[i]
                continue
            self.m[i] = b1 * self.m[i] + (1 - b1) * x
            self.v[i] = b2 * self.v[i] + (1 - b2) * x**2
            m, v = self.m[i] / (1 - b1**self.t), self.v[i] / (1 - b2**self.t)
            self.w[i] -= rate * m / (np.sqrt(v) + 1e-8)


@pytest.mark.parametrize(
    "num_ps, flags",
    [
        (2, ["--optimizer=momentum", "--placement=partitioned", "--clip_norm=2"]),
        (1, ["--optimizer=adam", "--placement=greedy"]),
        (2, ["--optimizer=adam", "--placement=round_robin", "--momentum=0.5"]),
    ],
    ids=["partitioned", "greedy", "round_robin"],
)
def test_asynchronous_pushes_are_the_rule(num_ps, flags, monkeypatch) -> None:
    """Two workers in turn, each at the weights that the other has left."""
    monkeypatch.setattr(placement, "LEAST", 4)  # that small variables are cut too
    flags = [*flags, "--learning_rate=0.1", "--decay_steps=3", "--decay_rate=0.7"]
    streams = [np.float32([1, 3]), np.float32([5, 7])]
    with Run(
        *flags, model=QUADRATIC, loss=quadratic, streams=streams, num_ps=num_ps
    ) as run:
        rule = Rule(args_of(*flags))
        for t, k in enumerate([0, 1, 0, 0, 1, 1, 0]):
            batches = [1.0, 3.0], [5.0, 7.0]
            count = [0, 1, 0, 0, 1, 1, 0][:t].count(k)
            rule.apply(rule.gradient(batches[k][count % 2]))
            assert run.made[k].push() == [t + 1, 0, rounds.APPLIED]
            for mine, wanted in zip(run.made[0].now(), rule.w, strict=True):
                np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer, num_ps", [("momentum", 1), ("adam", 2)])
def test_synchronous_steps_are_the_mean_of_all(optimizer, num_ps) -> None:
    flags = ["--issync=1", f"--optimizer={optimizer}", "--learning_rate=0.1"]
    streams = [np.float32([1, 3]), np.float32([5, 7]), np.float32([-2, 0])]
    with Run(
        *flags, model=QUADRATIC, loss=quadratic, streams=streams, num_ps=num_ps
    ) as run:
        rule = Rule(args_of(*flags, workers=3))
        for t in range(4):
            g = [rule.gradient(float(s[t % 2])) for s in streams]
            rule.apply([np.mean(parts, axis=0) for parts in zip(*g, strict=True)])
            said = run.at_once(1)
            assert [what for _, _, what in said] == [rounds.APPLIED] * 3
            for mine, wanted in zip(run.made[0].now(), rule.w, strict=True):
                np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_no_update_is_lost_when_all_push_at_once(optimizer) -> None:
    """Each holds its variable's lock; of Momentum's every one moves w by the rate."""
    elements, pushes = 300_000, 40
    start, shapes = (lambda i: tf.zeros([elements])), [(elements,)]
    model = models.Network(["w"], start, shapes, None, None)
    flags = [f"--optimizer={optimizer}", "--momentum=0", "--decay_rate=1"]
    flags += ["--clip_norm=0", "--learning_rate=0.5"]
    streams = [np.zeros([2], np.float32)] * 3
    with Run(
        *flags, model=model, loss=lambda w, _: tf.reduce_sum(w[0]), streams=streams
    ) as run:
        run.at_once(pushes)
        (w,) = run.made[0].now()
    np.testing.assert_allclose(w, np.full(elements, w[0]), rtol=1e-4)
    if optimizer == "momentum":  # Adam's correction depends on who comes first
        assert w[0] == pytest.approx(-0.5 * 3 * pushes, rel=1e-4)


def equality(issync: int, steps: int = 5) -> tuple[float, float]:
    """Returns how far 2 workers are from 1 with both batches, and how far that went."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, [2 * steps, 8, 28, 28, 1]).astype(np.float32)
    labels = rng.integers(0, 10, [2 * steps, 8]).astype(np.int32)
    model = models.conv([28, 28, 1], 10, 16, 0)

    def loss(values, batch):
        return models.loss(model.logits(values, batch[0]), batch[1])

    pairs = images.reshape(steps, 16, 28, 28, 1), labels.reshape(steps, 16)
    flags = [f"--issync={issync}", "--learning_rate=0.02", "--clip_norm=0"]
    with Run(*flags, model=model, loss=loss, streams=[pairs]) as run:
        first = run.made[0].now()
        for _ in range(steps):
            run.made[0].push()
        one = run.made[0].now()
    halves = [(images[k::2], labels[k::2]) for k in range(2)]
    with Run(*flags, model=model, loss=loss, streams=halves) as run:
        for _ in range(steps):
            run.at_once(1)
        two = run.made[0].now()

    def far(a, b):
        return max(float(abs(x - y).max()) for x, y in zip(a, b, strict=True))

    return far(one, two), far(first, one)


def test_synchronous_workers_equal_one_with_the_whole_batch() -> None:
    """--issync 1 to 1e-5; --issync 0 makes twice the updates, and is elsewhere."""
    difference, moved = equality(issync=1)
    assert difference < 1e-5 < 1e-3 < moved
    difference, _ = equality(issync=0)
    assert difference > 1e-3


@pytest.mark.parametrize("issync", [0, 1])
def test_an_early_end_is_exact(issync) -> None:
    """The chief moves the last update forward; later pushes are not applied."""
    streams = [np.float32([1]), np.float32([5])]
    with Run(
        f"--issync={issync}", model=QUADRATIC, loss=quadratic, streams=streams
    ) as run:
        chief, other = run.made
        run.at_once(2)
        step = chief.session.run(chief.stats.step)
        chief.session.run(chief.stop)
        assert chief.session.run(chief.stats.limit) == step + 1
        said = run.at_once(1)
        applied = [what for _, _, what in said].count(rounds.APPLIED)
        assert applied == (2 if issync else 1)
        weights = chief.now()
        assert [w.push()[2] for w in run.made] == [rounds.OVER] * 2
        assert chief.session.run(chief.stats.step) == step + 1
        for a, b in zip(weights, other.now(), strict=True):
            np.testing.assert_array_equal(a, b)


# --- Models, pictures, export -------------------------------------------------


def test_keras_layers_are_the_network() -> None:
    """With the same weights the same logits; the graph has no variable of Keras'."""
    shape, rng = [28, 28, 1], np.random.default_rng(0)
    images = rng.uniform(0, 255, [3, *shape])
    ours, theirs = models.conv(shape, 10, 16, 0), models.keras(shape, 10, 16, 0)
    assert [tuple(s) for s in theirs.shapes] == [tuple(s) for s in ours.shapes]
    assert theirs.names == ours.names
    with tf.Graph().as_default(), tf.Session() as session:
        values = [theirs.start(i) for i in range(len(theirs.names))]
        x = tf.constant(images, tf.float32)
        a, b = session.run([ours.logits(values, x), theirs.logits(values, x)])
        gradients = tf.gradients(theirs.logits(values, x), values)
        assert all(g is not None for g in gradients)
        assert not tf.global_variables()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_keras_layers_with_averages_are_refused(tmp_path) -> None:
    """GroupNormalization keeps none: its weights move as all others do."""

    def model_with(normalize):
        path = with_layers(f"[layers.Conv2D(4, 3), {normalize}]", tmp_path / "mine.py")
        return runpy.run_path(path)["keras"]([8, 8, 1], 10, 16, 0)

    with pytest.raises(ValueError, match="moving_mean is not trained"):
        model_with("layers.BatchNormalization()")
    model = model_with("layers.GroupNormalization(2)")
    with tf.Graph().as_default(), tf.Session() as session:
        values = [model.start(i) for i in range(len(model.names))]
        images = np.random.default_rng(0).uniform(0, 255, [3, 8, 8, 1])
        logits = model.logits(values, tf.constant(images, tf.float32))
        moved = session.run(tf.gradients(tf.reduce_sum(logits[:, 0]), values))
    assert len(moved) == 6 and all(np.any(g) for g in moved[2:])


def test_pictures() -> None:
    """A right guess, a wrong one and none have three colours; the surest is seen."""
    counts = np.array([[30, 0, 0], [1, 1234, 2], [0, 0, 0]])
    drawn, cell = pictures.confusion(counts), pictures.CELL
    assert drawn.shape == (4 * cell, 4 * cell, 3)
    right, none, wrong = (
        tuple(drawn[(true + 1) * cell + 1, (guess + 1) * cell + 1])
        for true, guess in ((0, 0), (0, 1), (1, 0))
    )
    assert len({right, none, wrong}) == 3
    images = [np.full([4, 4, 1], value, np.uint8) for value in (10, 20)]
    mistakes = [(1, 0, 0.9, images[0]), (1, 0, 0.5, images[1])]
    found = evaluate.Found(0.0, 0.9, counts, mistakes)
    grid = pictures.mistakes(found, [4, 4, 1])
    assert grid.shape == (16, 16, 1) and (grid[6:10, 1:5] == 10).all()
    with tf.Graph().as_default(), tf.Session() as session:
        again = session.run(tf.io.decode_png(pictures.png(grid)))
    np.testing.assert_array_equal(again, grid)


# --- What is wrong is one sentence --------------------------------------------


def said(capsys, end) -> str:
    """Returns the one line on stderr of a program that ended with status 2."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2 and len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


def spoil(how: str, folder: pathlib.Path, name: str) -> None:
    """Does something to one file of records, or to index.json."""
    shard, index = folder / name, folder / "index.json"
    content, text = bytearray(shard.read_bytes()), index.read_text()
    if how == "missing":
        shard.unlink()
    elif how == "truncated":
        shard.write_bytes(content[:-100])
    elif how == "flipped":
        content[5000] ^= 1
        shard.write_bytes(content)
    elif how == "too long":  # and the checksum fits
        old = hashlib.sha256(content).hexdigest()
        content[:8] = struct.pack("<Q", 1 << 40)
        shard.write_bytes(content)
        index.write_text(text.replace(old, hashlib.sha256(content).hexdigest()))
    elif how == "half":
        index.rename(folder / "plan.json")
    elif how == "version":
        index.write_text(text.replace('"version": 1', '"version": 7'))
    else:
        index.write_text(how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "{} is missing"),
        ("truncated", "bytes, "),
        ("flipped", "another checksum than in index.json"),
        ("too long", "record 1 of {} ends outside the file"),
        ("half", "not all is written"),
        ("version", "of version 7, not 1"),
        ("{", "index.json is not what prepare.py writes"),
        ("{}", "index.json is not what prepare.py writes"),
    ],
)
def test_bad_records(how, words, digits, tmp_path, capsys) -> None:
    folder, name = tmp_path / "records", "train-00001-of-00005.tfrecord"
    shutil.copytree(digits.folder, folder)
    spoil(how, folder, name)
    before = files_of(folder)
    args = args_of("--check", f"--data={folder}", f"--logdir={tmp_path / 'l'}")
    with pytest.raises(SystemExit) as end:
        supply.load(args)
    line = said(capsys, end)
    assert words.format(name) in line and f"--data {folder}: " in line
    assert files_of(folder) == before and not (tmp_path / "l").exists()


def npz(path: pathlib.Path, images: np.ndarray) -> pathlib.Path:
    """Writes a .npz file of these images of two classes."""
    labels = np.arange(len(images)) % 2
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


def refused(words: str, *arguments: object) -> None:
    """Asserts that prepare.py ends with status 2 and these words in its last line."""
    done = tell(REPO / FOLDER, "prepare.py", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_bad_sources_and_targets(tmp_path) -> None:
    out, full, red = tmp_path / "out", tmp_path / "full", tmp_path / "photos" / "red"
    choices = "choose digits, mnist, fashion_mnist or a .npz file"
    refused(choices, tmp_path / "nothing", out)
    odd = npz(tmp_path / "odd.npz", np.zeros([9, 5]))
    refused("images of 5 numbers are no squares", odd, out)
    far = npz(tmp_path / "far.npz", np.full([9, 4], -3.0))
    refused("reach from 0 to 1", far, out)
    good = photos(red.parent, 10)
    refused("training images for 40 files", good, out, "--shards=40")
    refused("none is held out for validation", good, out, "--validation=0")
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    refused("is not empty, and has no records", good, full)
    assert files_of(full) == {"mine.txt": b"mine"}
    (red / "3.png").write_bytes(b"\x89PNG nothing")
    refused("3.png is not an image that can be read", good, out)
    for path in red.iterdir():
        path.unlink()
    refused("the class red has no images", good, out)
    red.rmdir()
    refused("at least two classes", good, out)
    assert not out.exists() or not any(out.iterdir())


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--replicas_to_aggregate=3"], "there are 2 workers"),
        (["--optimizer=sgd"], "invalid choice: 'sgd'"),
        (["--train_steps=0"], "--train_steps: '0' is not a whole number"),
        (["--momentum=1"], "--momentum: '1' is not"),
        (["--hidden=5"], "unrecognized arguments: --hidden=5"),
    ],
)
def test_bad_flags(flags, words, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        args_of(*flags)
    assert words in said(capsys, end)


def test_more_workers_than_images(tmp_path, capsys) -> None:
    few = sources.source_of(str(photos(tmp_path / "p", 2)))
    prepare.write(few, str(tmp_path / "r"), 1, 0.4, lambda _: None)
    flags = f"--data={tmp_path / 'r'}", f"--logdir={tmp_path}"
    args = args_of(*flags, index=3, workers=4)
    with pytest.raises(SystemExit) as end:
        supply.load(args)
    assert "training images for 4 workers" in said(capsys, end)


def test_published_names_of_flags() -> None:
    args = args_of("--train_steps=7", "--data_dir=mnist", "--issync=1")
    assert (args.steps, args.data, args.issync) == (7, "mnist", 1)


def test_evaluator_in_tf_config(monkeypatch, capsys) -> None:
    """It has no address; an example without an evaluator says so."""
    cluster = {"ps": ["p:1"], "chief": ["a:1"], "worker": ["b:1"]}
    for listed in ({}, {"evaluator": ["e:1"]}):
        task = {"type": "evaluator", "index": 0}
        text = json.dumps({"cluster": {**cluster, **listed}, "task": task})
        monkeypatch.setenv("TF_CONFIG", text)
        args = program.parse_args([])
        assert args.job_name == "evaluator" and args.address is None
        assert args.worker_hosts == ["a:1", "b:1"]
        with pytest.raises(SystemExit) as end:
            launch.load("HogWild").parse_args([])
        assert "no task of type evaluator" in said(capsys, end)


# --- Whole runs ---------------------------------------------------------------


@pytest.mark.long
def test_the_run_of_the_readme(tmp_path) -> None:
    """Half of its epochs; THOROUGH=1 makes them all."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    before = launch.tree(copy)
    steps, least = (808, 0.98) if launch.THOROUGH else (404, 0.96)
    flags = [] if launch.THOROUGH else [f"--steps={steps}"]
    with run_sh(copy, *flags, LOGDIR=str(logdir)) as run:
        assert run.wait(800) == 0, run.output
        run.nothing_left()
    assert "Traceback" not in run.output
    done = result(logdir)
    assert done["test_accuracy"] >= least and done["global_steps"] == steps
    assert launch.wrong_stats(done) == []
    evaluation = json.loads((logdir / "evaluator" / "evaluation.json").read_text())
    assert evaluation["global_step"] == steps
    assert evaluation["test_accuracy"] == pytest.approx(done["test_accuracy"])
    confusion = np.array(evaluation["confusion"])
    assert confusion.sum() == 360
    assert np.trace(confusion) == round(360 * done["test_accuracy"])
    assert run.output.count("[evaluator 0] evaluator: test accuracy") >= 2
    (export_,) = (logdir / "export").iterdir()
    assert export_.name == str(done["best"]["global_step"])
    image = next(logdir.glob("example-*.png"))
    label = image.stem.partition("-")[2]
    assert re.fullmatch(rf".*example-{label}\.png: {label} \([\d.]+\)", run.lines[-1])

    # predict.py alone, in an empty folder, and what TensorFlow itself loads.
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(copy / "predict.py", alone)
    _, arrays = sources._arrays_of("digits")
    pixels = sources._scaled(arrays["test"][0], 28)
    np.savez(alone / "test.npz", x_test=pixels[..., 0], y_test=arrays["test"][1])
    np.savez(alone / "images.npz", images=pixels[:3])
    np.savez(alone / "wide.npz", images=pixels[:, :20])

    out = tell(alone, "predict.py", logdir / "export", "test.npz", "images.npz")
    accuracy = float(re.search(r"accuracy ([\d.]+) of 360", out.stdout)[1])
    assert accuracy >= least - 0.01 and out.returncode == 0, out.stderr
    assert out.stdout.count("images.npz[") == 3
    for arguments, words in (
        ([alone, image], "has no exported model"),
        ([logdir / "export", "none.png"], "no such file"),
        ([logdir / "export", "predict.py"], "is not an image that can be read"),
        ([logdir / "export", "wide.npz"], "the model takes uint8 n x 28x28x1"),
    ):
        out = tell(alone, "predict.py", *arguments)
        assert out.returncode == 2 and words in out.stderr, out.stderr
        assert len(out.stderr.splitlines()) == 1
    again = tell(copy, "export.py", logdir, logdir / "export")
    assert again.returncode == 2 and "exists; it stays as it is" in again.stderr
    assert launch.tree(copy) == before


@launch.if_thorough
def test_killed_in_mid_epoch(digits, tmp_path) -> None:
    """All steps are made and counted, and a worker goes on in its epoch."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    flags = ["--issync", "1", "--placement", "greedy", "--optimizer", "adam"]
    flags += ["--learning_rate", "0.002", "--sharded", "1", "--save_seconds", "1"]
    flags += ["--steps", "160", "--slow_workers", "0.02", "--data", digits.folder]
    env = {"NUM_PS": "2", "MAX_RESTARTS": "1", "LOGDIR": str(logdir)}
    with run_sh(copy, *flags, **env) as run:
        run.wait_for("evaluator: test accuracy", 150)
        run.task("evaluator", 0).kill()
        run.wait_for("the evaluator ended with status 137; training goes on")
        wait_until(lambda: saved_step(logdir) >= 20, 100, run)
        run.task("worker", 1).kill()
        run.wait_for("worker 1 ended with status 137; restart 1 of 1")
        line = run.wait_for("[worker 1] goes on in epoch", 100)
        wait_until(lambda: saved_step(logdir) >= 40, 100, run)
        run.task("ps", 1).kill()
        run.wait_for("ps 1 ended with status 137; restart 1 of 1")
        assert run.wait(800) == 0, run.output
        run.nothing_left()
    words = re.search(r"epoch (\d+), (\d+) of its (\d+)", line)
    epoch, seen, size = (int(word) for word in words.groups())
    assert size == pipeline.share(digits.splits["train"], 1, 2)[2]
    seen += (epoch - 1) * size
    assert seen % 32 == 0 and seen >= 32 * 15
    done = result(logdir)
    assert done["global_steps"] == 160 and 0 < done["resumed_from"] < 160
    assert launch.wrong_stats(done) == []
    assert done["test_accuracy"] > 0.85
    assert list(logdir.glob("model.ckpt-160.data-*-of-00002"))


@launch.if_thorough
def test_resumed_on_another_number_of_ps(digits, tmp_path) -> None:
    """Partitioned on 2 ps, then round robin on 1; then there is nothing to do."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    flags = ["--data", digits.folder, "--logdir", str(logdir), "--save_seconds", "1"]
    with run_sh(copy, *flags, "--steps", "60", NUM_PS="2") as run:
        assert run.wait(800) == 0, run.output
    more = [*flags, "--steps", "90", "--placement", "round_robin"]
    with run_sh(copy, *more) as run:
        assert run.wait(800) == 0, run.output
        assert "resumes from global step 60" in run.output
    done = result(logdir)
    assert (done["resumed_from"], done["global_steps"], done["ps"]) == (60, 90, 1)
    assert launch.wrong_stats(done) == []
    with run_sh(copy, *more) as run:
        assert run.wait(800) == 0, run.output
        assert "nothing to do" in run.output
    assert result(logdir) == done


@launch.if_thorough
def test_early_stopping_and_keras(digits, tmp_path) -> None:
    """A run that does not get better ends long before its steps, exactly."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    flags = ["--data", digits.folder, "--model", "keras", "--early_stopping", "2"]
    flags += ["--learning_rate", "1e-9", "--steps", "1000000", "--issync", "1"]
    with run_sh(copy, *flags, LOGDIR=str(logdir)) as run:
        assert run.wait(800) == 0, run.output
    assert "stops early: no better than at step" in run.output
    done = result(logdir)
    assert done["global_steps"] == done["flags"]["steps"] < 100000
    assert launch.wrong_stats(done) == []


@launch.if_thorough
def test_the_evaluator_ends_with_all_others(digits, tmp_path) -> None:
    copy = copy_of(FOLDER, tmp_path)
    with run_sh(copy, "--data", digits.folder, "--steps", "1000000") as run:
        run.wait_for("evaluator follows", 100)
        run.wait_for("  loss ", 100)
        run.process.send_signal(signal.SIGINT)
        assert run.wait(100) == 130, run.output
        run.nothing_left()


# --- docs/your-own-problem.md -------------------------------------------------

PAGE = (REPO / "docs" / "your-own-problem.md").read_text()
BLOCKS = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE, re.M | re.S)


def test_level_1_is_the_problem_that_is_run_in_every_scheme() -> None:
    """test_run.py runs this file in the place of an example's problem.py."""
    assert BLOCKS[0] == (REPO / "tests" / "line.py").read_text()


@launch.if_thorough
def test_level_2_a_folder_of_images(tmp_path) -> None:
    """The page's commands, one after the other, where the photos are."""
    copy = copy_of(FOLDER, tmp_path)
    photos(copy / "photos", 60)
    commands = BLOCKS[1].replace("../.venv/bin/python", sys.executable)
    command = ["bash", "-ec", commands.split("\n", 1)[1]]
    done = tree.run(*command, cwd=copy, env=launch.environment(), timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("photos/red/0.png: red (")
    assert "2 classes" in done.stdout


def test_level_3_only_cluster(tmp_path) -> None:
    """The page's script beside a copy of cluster/ and run.sh finds the four corners."""
    mine, logdir = tmp_path / "mine", tmp_path / "logdir"
    shutil.copytree(REPO / "HogWild" / "cluster", mine / "cluster")
    shutil.copy(REPO / "HogWild" / "launch.py", mine)
    (mine / "kmeans.py").write_text(BLOCKS[2])
    text = (REPO / "HogWild" / "run.sh").read_text()
    (mine / "run.sh").write_text(text.replace("hogwild.py", "kmeans.py"))
    with run_sh(mine, LOGDIR=str(logdir), NUM_PS="2") as run:
        assert run.wait(800) == 0, run.output
        run.nothing_left()
    done = result(logdir)
    assert done["global_steps"] == 1000
    assert done["test_distortion"] < 2.2  # two coordinates of variance 1


if __name__ == "__main__":
    print("| | largest difference from one worker with the whole batch |\n|---|---|")
    for issync_ in (1, 0):
        apart, far = equality(issync_)
        print(f"| `--issync {issync_}` | {apart:.1e} |")
    print(f"\nThe weights have moved by {far:.1e} at most.")
