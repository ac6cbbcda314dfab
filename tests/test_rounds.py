"""Many rounds in one call, the counters of ps 0, and runs that begin again.

On a cluster in this process (`harness`): two workers whose calls run at the same time,
a session that goes away, a restore, and what TensorFlow sends for a call.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time

import harness
import launch
import numpy as np
import pytest
import rules
from harness import (
    ASYNCHRONOUS,
    SCHEMES,
    STREAMS,
    SYNCHRONOUS,
    Run,
    in_turn,
    rounds,
    tf,
)
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(120)

# What is right with the pieces of two is with one; each scheme runs with one.
NUM_PS = pytest.mark.parametrize("num_ps", launch.some([2], [1]))
ONE_OF_EACH = pytest.mark.parametrize("folder", ["HogWild", "AEASGD", "SAGN"])
COUNTED = [f for f in ASYNCHRONOUS if f != "Distributed-Setup"]
BATCH = 32  # examples of a mini-batch, by the flags; the counters believe them


def window_of(folder: str) -> int:
    """Returns the mini-batches of a round, by the flags of the harness."""
    return 2 if "--window=2" in SCHEMES[folder] else 1


def wire_of(folder: str) -> int:
    """Returns the bytes of an element in a push, by the flags of the harness."""
    return 8 if folder == "Gradient-Compression" else 4  # there with its place


def centers_by_rule(folder: str, count: int, start: np.ndarray) -> list:
    """Returns what one worker with A's stream makes of the center, round by round."""
    a = [itertools.cycle(np.asarray(STREAMS[0]))]
    schedule = harness.parse(in_turn(count, "A"))
    if folder in SYNCHRONOUS:
        if folder == "SAGN":
            return rules.sagn(a, start, count, 2, 0.1, 0.1)
        return rules.synchronous_sgd(a, start, count, 0.1)
    if folder in ("AEASGD", "AEAMSGD"):
        delta = 0.9 if folder == "AEAMSGD" else 0.0
        out, _ = rules.elastic(schedule, a, start, 2, 0.1, 0.5, delta)
    elif folder == "DOWNPOUR-Easy":
        out = rules.downpour_easy(schedule, a, start, 2, 0.1, 1.0)
    elif folder == "DOWNPOUR":
        out = rules.downpour(schedule, a, start, 2, 0.1, 1.0)
    elif folder == "Async-DiLoCo":
        inner = [rules.adamw(0.1, 0.5)]
        out = rules.async_diloco(schedule, a, start, [2], inner, 0.7, 0.9, 1)
    elif folder == "Decoupled-DiLoCo":  # alone, T = 1
        inner = [rules.adamw(0.1, 0.5)]
        out = rules.async_diloco(schedule, a, start, [1], inner, 0.7, 0.9, 1)
    elif folder == "FedBuff":
        out = rules.fedbuff(schedule, a, start, 2, 0.1, 1, 1, rules.s_of("constant"))
    elif folder == "AGN":
        out = rules.agn(schedule, a, start, 2, 0.1)
    else:
        out = rules.hogwild(schedule, a, start, 0.1)
    return [w for _, w in out]


# --- One worker: many rounds are the rule, round by round ---------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("count", "num_ps"), [(3, 2), pytest.param(10, 1, marks=launch.if_thorough)]
)
@pytest.mark.parametrize("folder", SCHEMES)
def test_one_worker_in_calls_is_its_rule(folder: str, count: int, num_ps: int) -> None:
    """As the rounds are one by one: their mini-batches, losses, numbers, and w.

    The last update falls in the middle of a call; the rest of it changes nothing.
    """
    start, steps = np.array([0.5, -1.0, 2.0]), 2 * count + 2
    expected = centers_by_rule(folder, steps, start)
    options = dict(start=start, streams=STREAMS[:1], num_ps=num_ps, rounds=count)
    near = dict(rtol=1e-4, atol=1e-5)
    # The traces have no weight decay, so that they can be followed by hand.
    decay = ["--weight_decay=0.5"] if "--weight_decay=0" in SCHEMES[folder] else []
    with Run(folder, f"--steps={steps}", *decay, **options) as run:
        pushes = []
        for _ in range(2):
            pushes += run.chief.call()
            np.testing.assert_allclose(
                run.chief.now(), expected[len(pushes) - 1], **near
            )
        pushes += [run.chief.push()]
        np.testing.assert_allclose(run.chief.now(), expected[len(pushes) - 1], **near)
        last = run.chief.call()
        # A pull sees this worker's last update: nobody came between.
        assert [push[:3] for push in [*pushes, last[0]]] == [
            (1 + i, 0, rounds.APPLIED) for i in range(steps)
        ]
        assert [push.became for push in last[1:]] == [rounds.OVER] * (count - 1)
        np.testing.assert_allclose(run.chief.now(), expected[-1], **near)
        table, summary = run.counters(), run.summary()
        assert run.chief.step() == summary["global_steps"] == steps
    assert table["rounds"] == table["updates"] == [steps]
    assert table["examples"] == [steps * BATCH * window_of(folder)]
    assert table["pulled"] == [steps * 3 * 4]
    assert table["pushed"] == [steps * 3 * wire_of(folder)]


@pytest.mark.parametrize("folder", ["HogWild", "AEAMSGD", "Synchronous-SGD"])
def test_a_pull_waits_for_its_own_update_on_every_ps(folder, monkeypatch) -> None:
    """Also where an update takes longer on one ps than on the other."""
    update = rounds.update

    def slow(variables, pushed, applied, rule):
        def slow_rule(variable, piece):
            if variable.device.endswith("task:1"):
                slept = tf.py_func(lambda: time.sleep(0.05), [], [])
                with tf.control_dependencies([slept]):
                    piece = piece.read_value() if hasattr(piece, "handle") else piece
                    return rule(variable, tf.identity(piece))
            return rule(variable, piece)

        if hasattr(pushed[0], "assign"):  # the sums of a barrier are not delayed
            slow_rule = rule
        return update(variables, pushed, applied, slow_rule)

    monkeypatch.setattr(rounds, "update", slow)
    start = np.zeros(4)
    options = dict(start=start, streams=STREAMS[:1], num_ps=2, rounds=4)
    with Run(folder, **options) as run:
        run.chief.call()
        expected = centers_by_rule(folder, 4, start)[-1]
        np.testing.assert_allclose(run.chief.now(), expected, rtol=1e-5, atol=1e-6)


# --- Workers at once: the counters against what the workers were told ---------


def assert_counters(run: Run, made: list[list], steps: int) -> None:
    """Asserts that the counters say what each worker was told of its rounds."""
    folder, table, summary = run.folder, run.counters(), run.summary()
    applied = [[p for p in mine if p.became == rounds.APPLIED] for mine in made]
    late = [[p for p in mine if p.became == rounds.LATE] for mine in made]
    counts = [len(a) + len(b) for a, b in zip(applied, late, strict=True)]
    size, sent = 4 * len(run.start), wire_of(folder) * len(run.start)
    assert run.chief.step() == summary["global_steps"] == sum(table["updates"]) == steps
    assert table["rounds"] == counts
    assert table["dropped"] == [len(mine) for mine in late]
    assert table["examples"] == [n * BATCH * window_of(folder) for n in counts]
    assert table["pulled"] == [n * size for n in counts]
    assert table["pushed"] == [n * sent for n in counts]
    told = [p.staleness for p in itertools.chain(*applied)]
    assert table["staleness"] == [sum(p.staleness for p in mine) for mine in applied]
    assert summary["max_staleness"] == max(told)
    assert summary["mean_staleness"] == pytest.approx(sum(told) / steps)
    assert summary["rounds_per_worker"] == dict(enumerate(counts))
    assert summary["bytes_pulled"] == sum(counts) * size
    assert summary["bytes_pushed"] == sum(counts) * sent
    assert summary["gradients_dropped"] == sum(map(len, late))
    assert min(told) >= 0 and summary["seconds"] > 0
    numbers = sorted(p.step for p in itertools.chain(*applied))
    if run.asynchronous:
        assert numbers == list(range(1, steps + 1))
        assert table["updates"] == counts and not any(late)
        for mine in applied if folder != "Distributed-Setup" else []:
            for before, push in itertools.pairwise(mine):
                seen = push.step - 1 - push.staleness
                assert seen >= before.step  # a pull sees this worker's last update
    else:
        per_step = run.workers[0].run.args(0).replicas_to_aggregate
        assert numbers == [t + 1 for t in range(steps) for _ in range(per_step)]
        assert sum(counts) == per_step * steps + summary["gradients_dropped"]
        for mine in applied:  # at most one place in a step
            assert len({p.step for p in mine}) == len(mine)


def ones(index, usual):
    """A loss whose gradient is one, wherever w is: every order gives the same w."""
    return lambda w, c: tf.reduce_sum(w + 0 * c)


@pytest.mark.parametrize(
    ("folder", "num_ps"),
    launch.some(
        [("HogWild", 1), ("AEASGD", 2), ("Synchronous-SGD", 2)],
        [("HogWild", 2), ("AEASGD", 1), ("Synchronous-SGD", 1)],
    ),
)
def test_counters_of_two_workers_whose_calls_overlap(folder: str, num_ps: int) -> None:
    """103 updates, calls of one and of four rounds: exact to the last one."""
    steps, eta = 103, 2.0**-6
    flags = [f"--learning_rate={eta}", f"--steps={steps}"]
    options = dict(start=[0.0] * 3, rounds=4, num_ps=num_ps, loss=ones)
    with Run(folder, *flags, **options) as run:
        made = run.at_once(lambda w: w.to_the_end([1, 4, 4]))
        assert_counters(run, made, steps)
        if folder != "AEASGD":
            np.testing.assert_array_equal(run.chief.now(), [-eta * steps] * 3)


def test_counters_with_a_backup_worker() -> None:
    """Three workers, two places: what is late is dropped, and counted."""
    steps, eta = 60, 2.0**-6
    flags = [f"--learning_rate={eta}", f"--steps={steps}", "--replicas_to_aggregate=2"]
    # Worker 2's first gradient is of step 0, and comes when step 0 has been left.
    begun, left = threading.Event(), threading.Event()
    passes = [0, 0, 0]

    def meet(index):
        passes[index] += 1
        if index == 2:
            begun.set()
            assert left.wait(harness.LIMIT)
        else:
            assert begun.wait(harness.LIMIT)
            if passes[index] > 1:
                left.set()

    def loss_of(index, usual):
        def loss(w, c):
            # Of w, or all rounds of a call would meet at its start.
            met = tf.py_func(lambda _: meet(index), [w], [])
            with tf.control_dependencies([met]):
                one = tf.ones_like(w)  # the gradient, which has to wait too
            return tf.reduce_sum(w * one + 0 * c)

        return loss

    options = dict(rounds=4, loss=loss_of, streams=[[0.0]] * 3)
    with Run("Synchronous-SGD", *flags, **options) as run:
        made = run.at_once(lambda w: w.to_the_end([1, 4]))
        assert_counters(run, made, steps)
        assert run.chief.now() == [-eta * steps]
        assert run.summary()["gradients_dropped"] > 0


@st.composite
def cases(draw: st.DrawFn) -> dict:
    """Draws the shape of a run: workers, ps, rounds of a call, updates."""
    workers = draw(st.integers(1, harness.WORKERS))
    return dict(
        workers=workers,
        num_ps=draw(st.integers(1, 2)),
        rounds=draw(st.integers(2, 8)),
        steps=draw(st.integers(1, 40)),
        aggregate=draw(st.integers(1, workers)),
    )


# The counters of each scheme are in test_one_worker_in_calls_is_its_rule. A round of a
# learner need not be an update, see test_decoupled.py.
EACH_COUNTS = [f for f in SCHEMES if f != "Decoupled-DiLoCo"]


@pytest.mark.parametrize(
    "folder", launch.some(["HogWild", "AEASGD", "SAGN"], EACH_COUNTS)
)
@given(case=cases())
@settings(max_examples=launch.thorough(2, 10))
def test_counters_of_any_run(folder: str, case: dict) -> None:
    count, aggregate = case.pop("workers"), case.pop("aggregate")
    steps = case.pop("steps")
    flags = [f"--steps={steps}"]
    if folder in SYNCHRONOUS:
        flags.append(f"--replicas_to_aggregate={aggregate}")
    options = dict(start=[0.0, 1.0], streams=[[1.0, 3.0]] * count)
    with Run(folder, *flags, **options, **case) as run:
        made = run.at_once(lambda w: w.to_the_end([1, run.rounds]))
        assert_counters(run, made, steps)
        assert np.isfinite(run.chief.now()).all()


# --- The rounds of a call ------------------------------------------------------


@pytest.mark.parametrize("draws", [False, True], ids=["constant", "drawing"])
def test_the_rounds_of_a_call_follow_each_other(draws) -> None:
    """Each sees the one before it, and no two see the same random number."""
    built = []

    def one_round(last):
        built.append(last)
        zero = tf.zeros([], tf.int64)
        with tf.control_dependencies(tf.nest.flatten(last.update)):
            number = count.read_value()
        with tf.control_dependencies([number]):
            update = count.assign_add(1.0, read_value=False)  # has no tensor
        noise = tf.random.uniform([]) if draws else tf.zeros([])
        counted = rounds.Counted(zero, zero, tf.constant(True), tf.zeros([3], tf.int64))
        return rounds.Round(tf.stack([number, noise]), counted, [update])

    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        count = tf.get_variable("count", initializer=0.0)
        calls = rounds.Calls(one_round, (1, 6))
        session.run(tf.global_variables_initializer())
        values, *_ = session.run(calls.fetches[6])
        assert session.run(count) == 6
    assert values[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(built) == 6
    assert len(set(values[:, 1])) == (6 if draws else 1)


# --- Who comes and goes ---------------------------------------------------------


@ONE_OF_EACH
def test_a_worker_whose_session_is_gone_stays_counted(folder: str) -> None:
    """In mid-run: what the ps knows of it stays, and the other one makes the rest."""
    flags = ["--steps=12"]
    if folder == "SAGN":
        flags.append("--replicas_to_aggregate=1")
    with Run(folder, *flags, rounds=3) as run:
        gone = run.workers[1].call() + run.workers[1].call()
        run.workers[1].session.close()
        assert [push.became for push in gone] == [rounds.APPLIED] * 6
        made = run.chief.to_the_end()
        assert_counters(run, [made, gone], 12)
        assert run.counters()["rounds"] == [6, 6]


@ONE_OF_EACH
def test_who_joins_after_the_last_update_is_told_so(folder: str) -> None:
    """It comes late, pushes once, and need not wait for anybody."""
    flags = ["--steps=3"]
    if folder == "SAGN":
        flags.append("--replicas_to_aggregate=1")
    with Run(folder, *flags, joins=[0], rounds=3) as run:
        assert [push.became for push in run.chief.call()] == [rounds.APPLIED] * 3
        run.join(1)
        table, center = run.counters(), run.chief.now()
        assert [push.became for push in run.workers[1].call()] == [rounds.OVER] * 3
        assert run.counters() == table
        np.testing.assert_array_equal(run.chief.now(), center)


# --- Restored -----------------------------------------------------------------


@pytest.mark.parametrize(("workers", "num_ps"), launch.some([(2, 2), (4, 1)], [(1, 1)]))
@pytest.mark.parametrize("folder", ["DOWNPOUR-Easy", "Synchronous-SGD"])
def test_counters_are_restored_for_any_number_of_workers(
    folder, workers, num_ps, tmp_path
) -> None:
    """Two workers' counters and weights, taken up by fewer, as many, or more."""
    path = str(tmp_path / "model")
    with Run(folder, start=[0.0] * 4) as run:
        run.play("push A, push B, push A, push B")
        path = run.chief.saver.save(run.chief.session, path)
        number, saved, center = run.chief.step(), run.counters(), run.chief.now()
        begun = run.summary()
        run.play("push A, push B")
    assert saved["rounds"] == [2, 2]
    again = dict(start=[7.0] * 4, streams=[[1.0, 3.0]] * workers, num_ps=num_ps)
    with Run(folder, **again, restore=path) as run:
        np.testing.assert_array_equal(run.chief.now(), center)
        assert run.chief.step() == number
        known = max(2, workers)
        padding = [0] * (known - 2)
        assert run.counters() == {name: row + padding for name, row in saved.items()}
        pushes = run.play(", ".join(f"push {k}" for k in "ABCD"[:workers]))
        assert [push.became for push in pushes] == [rounds.APPLIED] * workers
        summary = run.summary()
    expected = [2 + (k < workers) for k in range(2)] + [1] * (known - 2)
    assert summary["rounds_per_worker"] == dict(enumerate(expected))
    assert summary["resumed_from"] == number
    assert summary["examples"] == sum(expected) * BATCH * window_of(folder)
    assert summary["bytes_pushed"] == sum(expected) * 16
    assert summary["max_staleness"] == begun["max_staleness"]
    made = workers if folder in ASYNCHRONOUS else 1
    assert summary["global_steps"] == number + made
    # Rates are of this life of the ps alone.
    if workers > 1 and folder in ASYNCHRONOUS:
        rate = made / summary["seconds"]
        assert summary["steps_per_second"] == pytest.approx(rate)
        rate = workers * BATCH * window_of(folder) / summary["seconds"]
        assert summary["examples_per_second"] == pytest.approx(rate)


def test_the_counters_say_which_step_it_is() -> None:
    """A checkpoint that caught the global step a bit later than the counters."""
    with Run("HogWild") as run:
        run.play("push A, push B, push A")
        step = run.chief.stats.step
        with run.chief.graph.as_default():
            later = step.assign(5)
        run.chief.session.run(later)
        run.open()
        assert run.chief.step() == 3
        assert run.chief.push()[:3] == (4, 0, rounds.APPLIED)


def test_a_rate_is_of_this_life_of_the_ps_and_the_greatest_staleness_of_all() -> None:
    """What the chief was away for is no time of training."""
    with Run("HogWild") as run:
        run.play("pull A, push B, push A")
        assert run.summary()["max_staleness"] == 1
        run.open()
        done = run.summary()
        assert done["seconds"] == done["steps_per_second"] == 0.0
        run.play("push A")
        done = run.summary()
        assert done["seconds"] == pytest.approx(1e-6)  # from its only update to itself
        assert done["max_staleness"] == 1


# --- Messages -----------------------------------------------------------------


def messages(worker: harness.Worker, count: int) -> collections.Counter:
    """Returns how many tensors a call of `count` rounds sends from job to job."""
    sent = collections.Counter()

    def job(device):
        return device.split("/")[1].removeprefix("job:")

    for node in itertools.chain(*worker.partitions(count)):
        if node.op in ("_Send", "_HostSend"):
            source = node.attr["send_device"].s.decode()
            target = node.attr["recv_device"].s.decode()
            if source.split("/device")[0] != target.split("/device")[0]:
                sent[job(source), job(target)] += 1
    return sent


@pytest.mark.parametrize(
    "folder",
    launch.some(
        ["HogWild", "Gradient-Compression", "AEASGD", "Synchronous-SGD"],
        ["DC-ASGD", "Stale-Synchronous-Parallel", "SAGN"],
    ),
)
def test_messages_of_a_call(folder: str) -> None:
    """With one ps a round is one tensor each way; a call has one more: all counts.

    An elastic round says besides when its local steps are done, for the next pull.
    """
    more = int(folder == "AEASGD")
    with Run(folder, streams=STREAMS[:1], start=[0.0] * 40, rounds=10) as run:
        for count in (1, 10):
            assert messages(run.chief, count) == {
                ("ps", "worker"): count + 1,
                ("worker", "ps"): count + more * (count - 1),
            }


def constants(graph: tf.Graph, size: int) -> list[str]:
    """Returns the constants of `size` elements in the rounds, also those of loops.

    A node without an input whose value changes: TensorFlow makes it a constant.
    """
    definition = graph.as_graph_def(add_shapes=True)
    loops = [node for f in definition.library.function for node in f.node_def]
    found = []
    for node in [*(n for n in definition.node if "round_" in n.name), *loops]:
        if node.op in ("Const", "Fill", "ZerosLike", "OnesLike"):
            shapes = [*node.attr["_output_shapes"].list.shape]
            shapes.append(node.attr["value"].tensor.tensor_shape)
            if [size] in [[d.size for d in shape.dim] for shape in shapes]:
                found.append(node.name)
    return found


@pytest.mark.quick
@pytest.mark.parametrize("folder", SCHEMES)
def test_a_round_has_no_constant_as_long_as_the_model(folder: str) -> None:
    """Each would stay in memory, once for each round of a call."""
    # A loss whose gradient has none.
    loss = lambda index, usual: lambda w, c: tf.nn.l2_loss(w - c)  # noqa: E731
    with Run(folder, streams=STREAMS[:1], start=[0.0] * 41, loss=loss) as run:
        found = constants(run.chief.graph, 41)
    assert not found


@pytest.mark.quick
def test_zeros_of_tensorflow_are_such_a_constant() -> None:
    for make, count in ((tf.zeros_like, 1), (rounds.zeros, 0)):
        with tf.Graph().as_default() as graph, tf.name_scope("round_0"):
            zeros = make(tf.placeholder(tf.float32, [41]))
            assert len(constants(graph, 41)) == count
            with tf.Session() as session:
                np.testing.assert_array_equal(session.run(zeros), [0.0] * 41)


@pytest.mark.quick
def test_an_update_is_made_only_if_the_push_is_applied() -> None:
    """Calls `rounds.update` with the rule w ← w − g, on a variable of this process."""
    with tf.Graph().as_default():
        w = tf.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        applied = tf.placeholder(tf.bool, [])
        pushed = [tf.constant([0.5, 0.5])]
        done = rounds.update(
            [w], pushed, applied, lambda v, g: v.assign_sub(g, read_value=False)
        )
        with tf.Session() as session:
            session.run(w.initializer)
            for yes, expected in ((False, [1.0, 2.0]), (True, [0.5, 1.5])):
                session.run(done, {applied: yes})
                assert session.run(w).tolist() == expected
