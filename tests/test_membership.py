"""Workers without a ps that come and go: who is there, and what the others do."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import signal
import socket
import threading
import time
import types

import launch
import peer_harness
import pytest
from launch import copy_of, result, run_sh

FOLDER = "DiLoCo"
T, BATCH = 10, 32
# A round takes a tenth of a second, and is in the checkpoint three times a second.
FLAGS = [f"--window={T}", "--slow_workers=0.01", "--save_seconds=0.3"]
LATER = 1.0  # seconds, in place of the 5 of a run


@pytest.fixture
def membership(monkeypatch) -> types.ModuleType:
    module = importlib.import_module("cluster.membership")
    monkeypatch.setattr(module, "LATER", LATER)
    return module


def flags_of(count: int, least: int) -> list[argparse.Namespace]:
    """Returns the flags of each worker."""
    base = launch.free_ports(count)
    hosts = ",".join(f"localhost:{base + k}" for k in range(count))
    flags = [f"--worker_hosts={hosts}", "--patience=3"]
    every = [
        launch.load(FOLDER).parse_args([f"--task_index={k}", *flags])
        for k in range(count)
    ]
    for args in every:
        args.min_workers = least  # also more than there are
    return every


class Call(threading.Thread):
    """A worker, or the chief, that finds out who is there."""

    def __init__(self, membership, args) -> None:
        super().__init__(daemon=True)
        self.membership, self.args, self.said = membership, args, None
        self.start()

    def run(self) -> None:
        chief = self.args.task_index == 0
        call = self.membership.welcome if chief else self.membership.announce
        with contextlib.suppress(SystemExit):
            self.said = call(self.args)

    def there(self) -> list[int] | None:
        """Returns whom it was told, None if it was told nothing."""
        self.join(20)
        assert not self.is_alive()
        return self.said


def test_all_are_there_at_once(membership, monkeypatch) -> None:
    """Nobody waits for one more when there is none."""
    monkeypatch.setattr(membership, "LATER", 1000)
    calls = [Call(membership, args) for args in reversed(flags_of(3, 1))]
    assert [call.there() for call in calls] == 3 * [[0, 1, 2]]


@pytest.mark.parametrize(
    ("least", "those"), [(1, [0]), (2, [0, 3]), (2, [0, 1, 3]), (9, [0, 1, 2, 3])]
)
def test_some_are_there(least, those, membership, monkeypatch) -> None:
    """More than there are places is all of them, and then nobody waits for more."""
    complete, every = len(those) == 4, flags_of(4, least)
    monkeypatch.setattr(membership, "LATER", 1000 if complete else LATER)
    began = time.monotonic()
    calls = [Call(membership, every[k]) for k in those]
    assert [call.there() for call in calls] == len(those) * [those]
    assert complete or time.monotonic() - began > LATER


def test_too_few(membership, monkeypatch, capsys) -> None:
    left = []
    monkeypatch.setattr(membership, "STARTING", 1)

    def end(status):
        left.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    call = Call(membership, flags_of(4, 3)[0])
    assert call.there() is None and left == [138]
    said = capsys.readouterr().err
    assert said.endswith(": no answer in 3 s from 2 more of 4 workers\n")


def test_a_worker_that_leaves_again_and_nonsense(membership) -> None:
    """They are no members: one that closed, and some who say nonsense."""
    every = flags_of(4, 2)
    chief = Call(membership, every[0])
    port = int(every[0].address.rpartition(":")[2])
    time.sleep(0.3)
    with contextlib.ExitStack() as stack:

        def come(text: bytes) -> socket.socket:
            line = stack.enter_context(socket.create_connection(("localhost", port)))
            assert line.makefile("rb").readline() == membership.HELLO
            line.sendall(text)
            return line

        come(b"1\n").close()
        for text in (b"two\n", b"0\n", b"4\n", b"-1\n", b"\xff\xff\n"):
            come(text)
        worker = Call(membership, every[3])
        assert chief.there() == worker.there() == [0, 3]


def test_an_address_of_ipv6(membership) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    every = flags_of(2, 2)
    hosts = [host.replace("localhost", "[::1]") for host in every[0].worker_hosts]
    for args in every:
        args.worker_hosts, args.address = hosts, hosts[args.task_index]
    calls = [Call(membership, args) for args in every]
    assert [call.there() for call in calls] == [[0, 1], [0, 1]]


# --- Processes ---------------------------------------------------------------------


def parts(chief: launch.Launch, all_: list[int]) -> list[tuple[int, list[int]]]:
    """Returns (first global step, who was there) for each start of a run."""
    found, there = [], all_
    for line in chief.lines:
        if line.startswith("goes on with workers "):
            there = [int(k) for k in line.split("workers ")[1].split(", ")]
        if line.startswith("variable "):
            found.append((0, there))
            there = all_
        if line.startswith("resumes from global step "):
            found[-1] = int(line.split()[-1]), found[-1][1]
    return found


def check(done: dict, began: list[tuple[int, list[int]]]) -> None:
    """Asserts that the counters are those of such a run, to the example."""
    ends = [step for step, _ in began[1:]] + [done["flags"]["steps"]]
    made = [(end - step, there) for (step, there), end in zip(began, ends, strict=True)]
    assert all(count >= 0 for count, _ in made)
    rounds = sum(count * len(there) for count, there in made)
    assert done["global_steps"] == done["flags"]["steps"]
    assert done["examples"] == rounds * T * BATCH
    assert sum(done["rounds_per_worker"].values()) == rounds
    assert done["resumed_from"] == began[-1][0]
    assert done["workers"] == len(began[-1][1])
    assert done["test_accuracy"] > 0.9


def trains(task: launch.Launch) -> None:
    """Returns when a task has printed one more line of its training."""
    before, end = task.output.count("  loss "), time.monotonic() + 60
    while task.output.count("  loss ") == before:
        assert time.monotonic() < end and task.process.poll() is None, task.output
        time.sleep(0.05)


@pytest.mark.long
def test_workers_come_and_go(tmp_path) -> None:
    """Two begin, one joins, one is killed, one is told to end; the chief goes on."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    flags = [*FLAGS, "--steps=300", "--min_workers=1", "--logdir", str(logdir)]
    with launch.WorkersByHand(copy, *flags, workers=3) as hand:
        chief, second = hand.start(0), hand.start(1)
        chief.wait_for("  loss ")
        third = hand.start(2)
        third.wait_for("  loss ")
        second.process.kill()
        for task in (chief, third):
            task.wait_for("lost worker ")
            task.wait_for("goes on with workers 0, 2")
        # Who notices it first begins anew, and may then be what the other one has lost.
        where = f"lost worker 1 at {hand.workers[1]}"
        assert where in chief.output + third.output
        trains(third)
        cause = time.monotonic()
        third.process.send_signal(signal.SIGTERM)
        assert third.wait(30) == 143, third.output
        assert time.monotonic() - cause < 10
        assert chief.wait(120) == 0, chief.output
    began = parts(chief, [0, 1, 2])
    check(result(logdir), began)
    # On a slow machine somebody may be late, and join in a part of its own.
    seen = [there for _, there in began]
    assert seen[0] != [0, 1, 2] and seen[-1] == [0]
    assert seen.index([0, 1, 2]) < seen.index([0, 2])
    # Who joins, or is told to end, does so after a round, and nothing is lost.
    left = re.findall(
        r"^workers come or go at global step (\d+): begins", chief.output, re.M
    )
    assert len(left) >= 2 and {int(step) for step in left} <= {at for at, _ in began}
    output = "".join(task.output for task in hand.started)
    assert "Traceback" not in output
    for log in logdir.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name


@launch.if_thorough
@pytest.mark.parametrize("folder", peer_harness.SCHEMES)
def test_a_worker_that_run_sh_starts_again_joins_the_others(folder, tmp_path) -> None:
    """Killed in the middle of a run of three; the others have not ended meanwhile."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    command = ["--steps=1500", "--slow_workers=0.02", "--save_seconds=0.5"]
    command += ["--min_workers=2", *["--window=1"] * (folder in (FOLDER, "Local-SGD"))]
    env = dict(NUM_WORKERS="3", MAX_RESTARTS="1", LOGDIR=str(logdir))
    with run_sh(copy, *command, **env) as run:
        run.wait_for("  loss ")
        time.sleep(2)
        run.task("worker", 1).kill()
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "worker 1 ended with status 137; restart 1 of 1" in run.output
    assert "status 138" not in run.output
    done = result(logdir)
    assert done["global_steps"] == 1500 and done["workers"] == 3
    assert 0 < done["resumed_from"] < 1500 and done["test_accuracy"] > 0.9


@launch.if_thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_all_are_told_to_end(number, tmp_path) -> None:
    """By run.sh: nobody begins anew, and the chief saves."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    command = [*FLAGS, "--steps=100000", "--min_workers=1"]
    with run_sh(copy, *command, LOGDIR=str(logdir), NUM_WORKERS="3") as run:
        run.wait_for("  loss ")
        cause = time.monotonic()
        run.process.send_signal(number)
        assert run.wait(30) == 128 + number, run.output
        assert time.monotonic() - cause < 15
        run.nothing_left()
    assert "saved at global step" in run.output
    assert "lost worker" not in run.output and "Traceback" not in run.output
