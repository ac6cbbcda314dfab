"""FedBuff and FedAsync: the buffer on the ps, push by push; workers with skewed data.

Through the scripts' own functions, on servers in this process (`harness`).
"""

from __future__ import annotations

import threading
import time
import types

import harness
import launch
import numpy as np
import pytest
import rules
from harness import STREAMS, Run, in_turn, rounds, schedule_s, tf
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import streams
from test_conformance import NUM_PS, TRACES, cases, same

FOLDER = "FedBuff"
FOUR = schedule_s(4)
# A pulls right after its first push, and finds the w that it had found before.
AAB = ["push A, pull A", "push A, pull A", "push B, pull B"] * 2
AAB = ", ".join(["pull A, pull B", *AAB])

# --- Traces, by hand --------------------------------------------------------------


@NUM_PS
@pytest.mark.parametrize(
    ("schedule", "flags", "stale", "trace"),
    [
        (
            FOUR,
            ["--buffer=2", "--staleness=constant"],
            [0, 0, 1, 0],
            [0, 0.77, 0.77, 1.46685],
        ),
        (FOUR, ["--buffer=2"], [0, 0, 1, 0], [0, 0.77, 0.77, 1.4097358223]),
        (
            FOUR,
            [],
            [0, 1, 1, 1],
            [0.39, 1.2031727984, 1.4265478305, 2.0780740164],
        ),
        (
            AAB,
            ["--buffer=2"],
            [0, 0, 1, 0, 0, 1],
            [0, 0.39, 0.39, 0.9545363992, 0.9545363992, 1.4392435342],
        ),
    ],
)
def test_trace_of_the_buffer(schedule, flags, stale, trace, num_ps: int) -> None:
    """T = 2, s(1) = 1/√2: the staleness counts full buffers, not pushes."""
    with Run(FOLDER, *flags, start=[0.0] * 3, num_ps=num_ps) as run:
        same(run.play(schedule), list(zip(stale, trace, strict=True)))
        assert run.counters()["staleness"] == [
            sum(stale[i] for i, k in enumerate(pushes(schedule)) if k == worker)
            for worker in range(2)
        ]


def pushes(schedule: str) -> list[int]:
    """Returns the worker of each push of a schedule."""
    return [k for verb, k in harness.parse(schedule) if verb == "push"]


ASYNC = "--average_models"


def fedasync(*flags: str, **options: object) -> Run:
    """Returns a run of FedAsync, which has no buffer."""
    run = dict(harness.SCHEMES, **{FOLDER: ["--window=2", ASYNC]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "SCHEMES", run)
        return Run(FOLDER, *flags, **options)


@NUM_PS
@pytest.mark.parametrize(
    ("flags", "trace"),
    [
        (["--staleness=constant"], [0.234, 0.7836, 0.661164, 1.3352952]),
        (
            ["--staleness=polynomial"],
            [0.234, 0.6226258869, 0.6043460932, 1.0498152514],
        ),
        (
            ["--staleness=hinge", "--tolerance=0"],
            [0.234, 0.2839636364, 0.3000859835, 0.3589909596],
        ),
    ],
)
def test_trace_of_fedasync(flags: list, trace: list, num_ps: int) -> None:
    """α = 0.6, and a of the papers: w ← (1 − a) w + a x, at the w of now."""
    with fedasync(*flags, start=[0.0] * 3, num_ps=num_ps) as run:
        same(run.play(FOUR), list(zip([0, 1, 1, 1], trace, strict=True)))


# --- Identities -------------------------------------------------------------------


@pytest.mark.quick
def test_a_buffer_of_one_with_the_inverse_of_staleness_is_dynamic_sgd() -> None:
    """T = 1: 1 / (τ + 1), as Dynamic-SGD; and with T = 2 as its rule for a window."""
    trace = TRACES["Dynamic-SGD"]
    with Run(FOLDER, "--window=1", "--decay=1") as run:
        played = run.play(schedule_s(len(trace)))
    same(played, list(zip([0, 1, 1, 1, 1, 1], trace, strict=True)))
    with Run(FOLDER, "--decay=1") as run:
        played = run.play(FOUR)
    same(played, list(zip([0, 1, 1, 1], [0.39, 0.965, 1.12295, 1.606275], strict=True)))


@pytest.mark.quick
@pytest.mark.parametrize("form", ["constant", "polynomial", "hinge"])
def test_a_buffer_of_all_is_local_sgd(form: str) -> None:
    """K = N pushes from one w: 0.77, and the next average."""
    expected = rules.local_sgd(streams(*STREAMS), np.zeros(1), 2, 2, 0.1)
    with Run(FOLDER, "--buffer=2", f"--staleness={form}") as run:
        for w in expected:
            *_, last = run.play("pull A, pull B, push B, push A")
            np.testing.assert_allclose(last.center, w, rtol=1e-6)
    assert expected[0] == pytest.approx(0.77)


@pytest.mark.quick
def test_a_late_hinge_is_constant() -> None:
    """b ≥ N − 1, the largest staleness of workers in turn; of both schemes."""
    for run_of in (fedasync, lambda *flags: Run(FOLDER, *flags)):
        centers = []
        for flags in (["--staleness=hinge", "--tolerance=1"], ["--staleness=constant"]):
            with run_of(*flags) as run:
                centers.append([push.center for push in run.play(schedule_s(6))])
        np.testing.assert_array_equal(*centers)


def test_fedasync_with_alpha_one_forgets_all_others() -> None:
    """A fresh push is the new w."""
    with fedasync("--alpha=1", start=[3.0]) as run:
        *_, last = run.play("push B, pull A, push A")
    with Run(FOLDER, start=[3.0]) as run:
        *_, expected = run.play("push B, pull A, push A")
    np.testing.assert_allclose(last.center, expected.center, rtol=1e-6)


@given(
    case=cases(),
    form=st.sampled_from(["constant", "polynomial", "hinge"]),
    k_of_n=st.integers(1, 5),
    a=st.sampled_from([0.5, 1.0, 10.0]),
    b=st.integers(0, 2),
    average=st.booleans(),
)
@settings(max_examples=launch.thorough(4, 40), deadline=None)
def test_any_run_is_its_algorithm(case, form, k_of_n, a, b, average) -> None:
    schedule, start, s = harness.parse(case.schedule), np.array(case.start), None
    s = rules.s_of(form, a, b)
    some = streams(*case.streams), start, case.window, case.eta
    flags = [f"--window={case.window}", f"--learning_rate={case.eta}"]
    flags += [f"--staleness={form}", f"--decay={a}", f"--tolerance={b}"]
    options = dict(start=case.start, streams=case.streams, num_ps=case.num_ps)
    if average:
        expected = rules.fedasync(schedule, *some, 0.6, s)
        run = fedasync(*flags, **options)
    else:
        expected = rules.fedbuff(schedule, *some, case.gamma, k_of_n, s)
        flags += [f"--buffer={k_of_n}", f"--server_learning_rate={case.gamma}"]
        run = Run(FOLDER, *flags, **options)
    with run:
        scale = max([10.0, *(float(np.abs(w).max()) for _, w in expected)])
        same(run.play(case.schedule), expected, 2e-5, scale)


# --- What else the ps keeps -------------------------------------------------------


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_checkpoint_has_the_buffer_and_its_count(num_ps, tmp_path) -> None:
    """Saved with two pushes of three in the buffer; taken up by other ps, too."""
    options, before, after = dict(start=[0.0] * 4), in_turn(5), in_turn(5, "BA")
    s = rules.s_of("polynomial", 0.5)
    schedule = harness.parse(f"{before}, {after}")
    expected = rules.fedbuff(schedule, streams(*STREAMS), 0.0, 2, 0.1, 1, 3, s)
    with Run(FOLDER, "--buffer=3", **options) as run:
        run.play(before)
        path = run.chief.saver.save(run.chief.session, str(tmp_path / "model"))
        run.play(in_turn(1))
    with Run(FOLDER, "--buffer=3", **options, num_ps=num_ps, restore=path) as run:
        for push, (tau, w) in zip(run.play(after), expected[5:], strict=True):
            assert push.staleness == tau
            np.testing.assert_allclose(push.center, [w] * 4, rtol=1e-5)


@NUM_PS
def test_no_push_is_lost_between_two_workers(num_ps: int) -> None:
    """Steps of one from both at once: w is minus the full buffers, D has the rest."""
    elements, steps, k_of_n = 50_000, 42, 4

    def ones(index, usual):
        return lambda w, c: tf.reduce_sum(w + 0 * c)

    flags = ["--window=1", f"--steps={steps}", f"--buffer={k_of_n}"]
    flags += ["--learning_rate=1", "--staleness=constant"]
    options = dict(start=np.zeros(elements), num_ps=num_ps, loss=ones, rounds=3)
    with Run(FOLDER, *flags, **options) as run:
        made = run.at_once(harness.Worker.to_the_end)
        center, table = run.chief.now(), run.counters()
        names = [f"buffer/part_{i}" for i in range(num_ps)]
        parts = [run.chief.variables[name].read_value() for name in names]
        total = np.concatenate(run.chief.session.run(parts), axis=1)
    np.testing.assert_array_equal(center, np.full(elements, -(steps // k_of_n)))
    np.testing.assert_array_equal(total, np.full([1, elements], steps % k_of_n))
    for worker, mine in enumerate(made):
        told = [push.staleness for push in mine if push.became == rounds.APPLIED]
        assert table["staleness"][worker] == sum(told) and min(told) >= 0


def test_a_push_that_is_not_all_here_keeps_nobody_waiting(monkeypatch) -> None:
    """A's piece for ps 1 is late: B's is applied there meanwhile."""
    send, goes_on = rounds.send, threading.Event()

    def wait(piece):
        assert goes_on.wait(5)
        return piece

    def late(tensors, variables):
        if "worker/task:0" in tensors[1].device:
            with tf.device(tensors[1].device):
                waited = tf.py_func(wait, [tensors[1]], tf.float32)
            tensors = [tensors[0], tf.ensure_shape(waited, tensors[1].shape)]
        return send(tensors, variables)

    monkeypatch.setattr(rounds, "send", late)
    with Run(FOLDER, start=[0.0] * 2, num_ps=2) as run:
        a, b = run.workers
        a.pull()
        b.pull()
        thread = threading.Thread(target=a.push)
        thread.start()
        while not b.step():
            time.sleep(0.01)
        time.sleep(0.2)  # until ps 1 knows that A's push is to be applied
        first = b.push()
        goes_on.set()
        thread.join()
        both = b.now()
    mine = 1.15 / 2**0.5
    np.testing.assert_allclose(first.center, [0.39 + mine, mine], rtol=1e-6)
    np.testing.assert_allclose(both, [0.39 + mine] * 2, rtol=1e-6)


@pytest.mark.parametrize(("workers", "k_of_n"), [(4, 1), (4, 2), (4, 4), (3, 2)])
def test_the_mean_staleness_of_workers_in_turn(workers: int, k_of_n: int) -> None:
    """(N − 1) / K: of N workers who push in turn, each N pushes after its pull."""
    everyone, count = "ABCD"[:workers], 4 * workers * k_of_n
    turns = [f"push {k}, pull {k}" for k in (everyone * count)[: count + workers]]
    pulls = ", ".join(f"pull {k}" for k in everyone)
    options = dict(streams=[[1.0]] * workers)
    with Run(FOLDER, f"--buffer={k_of_n}", **options) as run:
        played = run.play(", ".join([pulls, *turns]))[workers:]
    mean = np.mean([push.staleness for push in played])
    assert mean == pytest.approx((workers - 1) / k_of_n)


# --- Skewed data ------------------------------------------------------------------


def shards(skew: float, workers: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Returns the labels of each worker, of 1,200 rows in 6 classes."""
    labels = np.random.default_rng(5).permutation(np.repeat(np.arange(6), 200))
    order = launch.load(FOLDER).skew.dealt(labels, workers, skew, seed)
    assert sorted(order) == list(range(len(labels)))  # each row once
    return [labels[order][k::workers] for k in range(workers)]


@pytest.mark.quick
def test_the_smaller_the_skew_the_more_classes_a_worker_has() -> None:
    def unlike(skew):
        counts = [np.bincount(mine, minlength=6) / 300 for mine in shards(skew)]
        return np.abs(np.array(counts) - 1 / 6).sum(axis=1).mean()

    assert unlike(1000.0) < 0.15 < 0.5 < unlike(1.0) < unlike(0.05)
    assert {len(mine) for mine in shards(0.05)} == {300}
    for one, again in zip(shards(0.3), shards(0.3), strict=True):
        np.testing.assert_array_equal(one, again)
    assert not np.array_equal(shards(0.3), shards(0.3, seed=1))


@pytest.mark.quick
def test_the_first_class_of_a_worker_is_drawn_by_its_share() -> None:
    """As long as all classes have rows: the Dirichlet distribution itself."""
    labels = np.tile(np.arange(3), 20_000)
    order = launch.load(FOLDER).skew.dealt(labels, 2, 2.0, 7)
    shares = np.random.default_rng(7)
    for c in range(3):  # what is drawn before the shares
        shares.permutation(np.flatnonzero(labels == c))
    shares = shares.dirichlet([2.0] * 3, size=2)
    for k in range(2):
        found = np.bincount(labels[order][k::2][:5000], minlength=3) / 5000
        np.testing.assert_allclose(found, shares[k], atol=0.03)


@pytest.mark.quick
def test_a_run_trains_on_the_rows_that_are_dealt_out() -> None:
    """Beside the flag nothing else changes: without it the rows are those of others."""
    module, given = launch.load(FOLDER), []
    problem = types.SimpleNamespace(build=lambda data, *_: given.append(data) or built)
    built = module.problem.Problem(None, None, None, None, None)
    data = module.problem.load("digits")
    with tf.Graph().as_default():
        built = built._replace(start=tf.zeros([3]))
        for skew in (None, 0.1):
            args = types.SimpleNamespace(skew=skew, seed=3, batch_size=32)
            module.contract.build(problem, data, args, 0, 2)
    assert given[0] is data
    order = module.skew.dealt(data.y_train, 2, 0.1, 3)
    np.testing.assert_array_equal(given[1].y_train, data.y_train[order])
    np.testing.assert_array_equal(given[1].x_train, data.x_train[order])
    assert given[1].x_test is data.x_test
