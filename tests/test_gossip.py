"""Replicas that are averaged in pairs: exact to the rule, no deadlock, and they end.

The graphs are those of the script, on servers in this process (`gossip_harness`);
losses and endings are tried on real processes, in copies outside the repository.
"""

from __future__ import annotations

import collections
import itertools
import math
import signal
import threading
import time
import types

import launch
import numpy as np
import pytest
import registry
import rules
from gossip_harness import FOLDER, Gossip, gossip, parse
from harness import STREAMS, rounds, tf
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import copy_of, result, run_sh
from rules import streams

pytestmark = pytest.mark.timeout(180)  # a deadlock hangs

S = "pull A, pull B, push A B, pull A, push B, pull B, push A B, pull A, push B"
TRACE = [[0.1, 0], [0.1, 0.5], [0.59, 0.3], [0.59, 0.95], [0.811, 0.77]]
START = [0.5, -1.0, 2.0]
FOUR = ((1.0, 3.0), (5.0, 7.0), (-2.0, 4.0), (9.0, -6.0))


def test_every_folder_is_here() -> None:
    assert registry.folders("gossip") == [FOLDER]


# --- The graph -------------------------------------------------------------------


@pytest.mark.parametrize("graph", gossip.GRAPHS)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 33])
def test_a_graph_joins_the_halves(graph: str, workers: int) -> None:
    """Both ends know of an edge, it is between the halves, and all are connected."""
    near = [gossip.neighbours(graph, workers, k) for k in range(workers)]
    for k, others in enumerate(near):
        assert others == sorted(set(others)) and k not in others
        assert all(k in near[j] and (j - k) % 2 == 1 for j in others)
    reached = {0}
    for _ in range(workers):
        reached |= {j for k in reached for j in near[k]}
    assert reached == set(range(workers))
    most = max(map(len, near))
    if graph == "ring":
        assert most <= 2
    elif graph == "exponential" and workers > 2:
        assert most <= 2 * (1 + math.log2(workers - 1))
    elif workers > 1:
        assert most == (workers + 1) // 2


def test_graphs_by_hand() -> None:
    def near(graph, workers):
        return [gossip.neighbours(graph, workers, k) for k in range(workers)]

    assert near("ring", 4) == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert near("ring", 5) == [[1], [0, 2], [1, 3], [2, 4], [3]]
    assert near("complete", 4) == near("ring", 4)
    # Hops 1, 3, 5 and 9; 1 + 16 would be once around.
    assert near("exponential", 16)[0] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert near("exponential", 32)[2] == [1, 3, 5, 7, 11, 17, 19, 25, 29, 31]


def test_every_neighbour_is_as_likely() -> None:
    with Gossip("--graph=complete", streams=[[0.0]] * 5) as run:
        chief = run.chief
        drawn = [chief.session.run(chief.draw).decode() for _ in range(200)]
        found = collections.Counter(drawn)
        assert set(found) == {gossip.name_of(1), gossip.name_of(3)}
        assert min(found.values()) > 60
        assert [worker.replica.near for worker in run.workers[1::2]] == [[], []]


# --- Exact ------------------------------------------------------------------------


def test_trace() -> None:
    with Gossip() as run:
        made = run.play(parse(S + ", push A B"))
    np.testing.assert_allclose([push.center[:, 0] for push in made], TRACE, atol=1e-6)
    assert [push.staleness for push in made] == [0, 1, 1, 1, 1]
    assert [push.step for push in made] == [1, 2, 3, 4, 5]
    assert {push.became for push in made} == {rounds.APPLIED}


@st.composite
def cases(draw: st.DrawFn) -> types.SimpleNamespace:
    """Draws a run: 1 to 5 workers, a graph, a schedule that interleaves rounds."""
    workers, size = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    graph = draw(st.sampled_from(gossip.GRAPHS))
    batch = st.lists(st.integers(-8, 8).map(float), min_size=size, max_size=size)
    stream = st.lists(batch, min_size=1, max_size=4)
    pulled, schedule = set(), []
    turns = st.lists(st.integers(0, workers - 1), min_size=4, max_size=16)
    for k in [*draw(turns), *range(workers)]:
        near = [] if k % 2 else gossip.neighbours(graph, workers, k)
        if k in pulled:
            j = draw(st.sampled_from(near)) if near else None
            schedule.append(("push", k, j))
        else:
            schedule.append(("pull", k, None))
        pulled ^= {k}
    return types.SimpleNamespace(
        streams=draw(st.lists(stream, min_size=workers, max_size=workers)),
        start=draw(batch),
        graph=graph,
        schedule=schedule,
        eta=draw(st.sampled_from([0.01, 0.1, 0.3])),
    )


@given(case=cases())
@settings(max_examples=launch.thorough(4, 60))
def test_any_schedule_is_the_rule(case: types.SimpleNamespace) -> None:
    start = [case.start] * len(case.streams)
    expected = rules.gossip(case.schedule, streams(*case.streams), start, case.eta)
    flags = [f"--learning_rate={case.eta}", f"--graph={case.graph}"]
    with Gossip(*flags, start=case.start, streams=case.streams) as run:
        made = run.play(case.schedule)
    assert [push.staleness for push in made] == [tau for tau, _ in expected]
    for push, (_, x) in zip(made, expected, strict=True):
        np.testing.assert_allclose(push.center, x, rtol=2e-5, atol=2e-4)


@pytest.mark.quick
def test_many_rounds_in_a_call_are_as_many_calls() -> None:
    with Gossip(start=START, rounds=3) as run:
        for k in (0, 1, 1, 0):
            made = run.workers[k].call(3)
            # Nobody comes between, so each round has seen the one before it.
            assert [push[1:3] for push in made] == [(0, rounds.APPLIED)] * 3
        found = run.now()
    turns = itertools.chain.from_iterable([[k] * 3 for k in (0, 1, 1, 0)])
    words = [(v, k, None if k else 1) for k in turns for v in ("pull", "push")]
    x = rules.gossip(words, streams(*STREAMS), [START] * 2, 0.1)[-1][1]
    np.testing.assert_allclose(found, x, rtol=1e-5)


# --- Identities ---------------------------------------------------------------------


@pytest.mark.quick
def test_one_worker_is_plain_sgd() -> None:
    with Gossip(start=START, streams=STREAMS[:1], rounds=2) as run:
        found = [run.chief.call(2) and run.now()[0] for _ in range(2)]
        assert run.summary()["bytes_pushed"] == 0
    expected = rules.synchronous_sgd(streams(STREAMS[0]), np.array(START), 4, 0.1)
    np.testing.assert_allclose(found, expected[1::2], rtol=1e-6)


def test_full_averaging_on_the_complete_graph_is_all_reduce() -> None:
    """In pairs, in the order of a butterfly: after it all have the mean of all."""
    everybody = [(0, 1), (2, 3), (0, 3), (2, 1)]
    with Gossip("--graph=complete", start=START, streams=FOUR) as run:
        found = []
        for _ in range(3):
            run.play([(verb, k, None) for verb in ("pull", "push") for k in range(4)])
            for a, j in everybody:
                assert j in run.workers[a].replica.near
                run.workers[a].average(j)
            found.append(run.now())
    expected = rules.synchronous_sgd(streams(*FOUR), np.array(START), 3, 0.1)
    for replicas, w in zip(found, expected, strict=True):
        np.testing.assert_allclose(replicas, [w] * 4, rtol=1e-5)


@pytest.mark.parametrize("graph", gossip.GRAPHS)
def test_an_exchange_keeps_the_mean(graph: str) -> None:
    """So that in step the mean of all is all-reduce, whoever averages with whom."""
    with Gossip(f"--graph={graph}", start=START, streams=FOUR) as run:
        for turn in range(3):
            pairs = [(k, None if k % 2 else (k + 1 + 2 * turn) % 4) for k in range(4)]
            run.play([("pull", k, None) for k in range(4)])
            run.play([("push", *pair) for pair in pairs])
        mean = run.now().mean(axis=0)
    w = rules.synchronous_sgd(streams(*FOUR), np.array(START), 3, 0.1)[-1]
    np.testing.assert_allclose(mean, w, rtol=1e-5)


# --- All at once: no deadlock, nothing lost, exact counters ------------------------


def constant(index, usual):
    """A loss whose gradient is −1 everywhere."""
    return lambda x, c: -tf.reduce_sum(x) + 0 * tf.reduce_sum(c)


@pytest.mark.parametrize(
    ("graph", "workers"), [("ring", 4), ("exponential", 5), ("complete", 4)]
)
def test_soak(graph: str, workers: int) -> None:
    """All make rounds as fast as they can, with random neighbours, to the last update.

    Each update adds η = 1 to each element of one replica, an average keeps the sum: a
    deadlock would hang, and a step between another's read and write would be missing.
    """
    steps = launch.thorough(600, 20000)
    flags = [f"--graph={graph}", f"--steps={steps}", "--learning_rate=1"]
    quiet = [[0.0] * 50]
    options = dict(start=[0.0] * 50, streams=[quiet] * workers, loss=constant)
    with Gossip(*flags, **options, rounds=5) as run:
        all_have_begun = threading.Barrier(workers)

        def work(worker):
            made = worker.call(5)
            all_have_begun.wait(60)
            while made[-1].became == rounds.APPLIED:
                made += worker.call(5)
            return [push.step for push in made if push.became == rounds.APPLIED]

        numbers = run.at_once(work)
        total, done = run.now().sum(axis=0, dtype=float), run.summary()
    assert sorted(itertools.chain(*numbers)) == list(range(1, steps + 1))
    np.testing.assert_allclose(total, steps, rtol=1e-5)
    made = {k: len(mine) for k, mine in enumerate(numbers)}
    assert done["rounds_per_worker"] == made and min(made.values()) > 0
    assert done["global_steps"] == steps and done["examples"] == 32 * steps
    active = sum(made[k] for k in range(0, workers, 2))
    assert done["bytes_pushed"] == done["bytes_pulled"] == active * 200


# --- Real processes -----------------------------------------------------------------


def check(done: dict, workers: int, steps: int) -> None:
    """Asserts that a result's counters are exact, and that it has learnt."""
    assert not launch.wrong_stats(done)
    assert (done["scheme"], done["global_steps"]) == (FOLDER, steps)
    assert (done["workers"], done["ps"]) == (workers, 0)
    made = done["rounds_per_worker"]
    assert len(made) == workers and min(made.values()) > 0
    active = sum(count for k, count in made.items() if int(k) % 2 == 0)
    assert done["bytes_pushed"] == done["bytes_pulled"] == active * 4 * 4810
    assert 0 < done["consensus_distance"] < 1
    assert done["test_accuracy"] > 0.9


def wait_for_step(run, worker: int, step: int) -> None:
    """Returns once a worker has printed a step from there on."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        lines = [x for x in run.lines if x.startswith(f"[worker {worker}] step ")]
        if lines and int(lines[-1].split()[3].split("/")[0]) >= step:
            return
        assert run.process.poll() is None, run.output
        time.sleep(0.05)
    raise AssertionError(run.output)


def struck(tmp_path, index: int, said: str, **options: str) -> tuple[dict, list[str]]:
    """Returns the result of a run whose worker `index` is killed, and its lines.

    It comes back, `said` is said, and nothing is left behind or strange.
    """
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "a logdir"
    before = launch.tree(copy)
    flags = ["--steps=800", "--slow_workers=0.01", "--save_seconds=0.5"]
    flags += ["--graph=complete"]
    with run_sh(copy, *flags, LOGDIR=str(logdir), MAX_RESTARTS="1", **options) as run:
        wait_for_step(run, 1, 160)
        run.task("worker", index).kill()
        run.wait_for(said)
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert launch.tree(copy) == before
    return result(logdir), run.lines


def test_a_worker_dies_and_comes_back(tmp_path) -> None:
    """The others go on meanwhile, and it takes part again."""
    said = "worker 1 ended with status 137; restart 1 of 1"
    done, _ = struck(tmp_path, 1, said, NUM_WORKERS="3")
    assert done["resumed_from"] == 0
    check(done, 3, 800)


@launch.if_thorough
def test_the_chief_dies_and_comes_back(tmp_path) -> None:
    """All begin again from the average that it has saved."""
    done, lines = struck(tmp_path, 0, "lost the chief: begins again")
    resumed = [int(x.split()[-1]) for x in lines if "resumes from" in x]
    assert [done["resumed_from"]] == resumed and 0 < resumed[0] < 800
    check(done, 2, 800)


@launch.if_thorough
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_go_on_without_one(kind, tmp_path) -> None:
    """It is killed, or silent for good: the run ends well, and says so."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    flags = ["--steps=1000", "--slow_workers=0.01", "--patience=10"]
    with launch.WorkersByHand(copy, *flags, f"--logdir={logdir}", workers=3) as hand:
        tasks = [hand.start(k) for k in range(3)]
        for task in tasks:
            task.wait_for("  loss ")
        tasks[1].process.send_signal(kind)
        assert tasks[0].wait(150) == tasks[2].wait(30) == 0, tasks[0].output
    assert "worker 1 is not there: the run ends without it" in tasks[0].output
    done = result(logdir)
    assert not launch.wrong_stats(done)
    losses = done["loss_per_worker"]
    assert [losses[k] is None for k in "012"] == [False, True, False]
