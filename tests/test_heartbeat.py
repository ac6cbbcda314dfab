"""Who is alive, and who can be reached: with a clock and ports that a test sets."""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import pathlib
import socket
import threading
import time
import types
from collections.abc import Iterator

import harness
import launch
import numpy as np
import pytest
from harness import tf

from cluster import (
    heartbeat,
    incarnation,
    neighbours,
    patience,
    peers,
    ports,
    report,
    run,
    task,
)

pytestmark = pytest.mark.quick
ONE = (("worker", 0), ("worker", 1), "b:2222")
OTHER = (("ps", 0), ("worker", 1), "b:2222")
HOSTS = ["a:2222", "b:2222", "c:2222"]


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


class Ended(Exception):
    """The program would have ended, with this status."""


@pytest.fixture
def ends(monkeypatch) -> None:
    """Whoever ends the program raises Ended here."""

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)


@pytest.fixture
def logdir(ends, tmp_path) -> pathlib.Path:
    return tmp_path


def test_who_cannot_be_reached_is_said_once_and_not_for_ever(clock, capsys) -> None:
    ended = []
    unreached = heartbeat.Unreached(10, ended.append)
    for _ in range(5):
        unreached.note({ONE})
        clock.now += heartbeat.EVERY
    said = capsys.readouterr().out
    assert said.count("worker 0 cannot reach worker 1 at b:2222: ") == 1
    assert said.count("\n") == 1 and not ended
    clock.now += 1
    unreached.note({ONE})
    assert [said.strip()] == ended


def test_a_task_that_has_just_died_is_not_behind_a_wall(clock, capsys) -> None:
    """It counts as alive for a heartbeat and a half; then it is not found any more."""
    unreached = heartbeat.Unreached(10, pytest.fail)
    for _ in range(3):
        for seconds in (0, heartbeat.EVERY / 2, heartbeat.EVERY):
            unreached.note({ONE})
            clock.now += seconds / 2
        unreached.note({OTHER})
        clock.now += heartbeat.EVERY
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("jump", [3600, -3600, 30])
def test_a_clock_of_ps_0_that_jumps(jump, monkeypatch) -> None:
    """Nobody counts as silent for it, nor if ps 0 stood still for a while."""
    args, target = launch.defaults_of("HogWild", 3), harness.servers(1)[2][0]
    with contextlib.ExitStack() as stack:
        graph = stack.enter_context(tf.Graph().as_default())
        stack.enter_context(graph.container(f"jump {jump}"))
        session = stack.enter_context(tf.Session(target))
        with tf.device("/job:ps/task:0"):
            now = tf.Variable(1e6, dtype=tf.float64, use_resource=True)
        monkeypatch.setattr(tf, "timestamp", now.read_value)
        one = incarnation.Incarnation(args)
        other = copy.copy(one)
        other.me = 1
        beats, silence = [one.beat(), other.beat()], one.silence()
        session.run([now.initializer, one.close()])
        session.run(one.open("", []))
        for beat in beats:
            session.run(beat)
        session.run(now.assign_add(4.0))
        session.run(beats[1])
        assert session.run(silence).tolist() == [4, 0, 4]  # worker 2 has not joined
        session.run(now.assign_add(jump))
        session.run(beats[1])
        assert session.run(silence)[:2].tolist() == [0, 0]
        session.run(now.assign_add(8.0))
        session.run(beats[1])
        assert session.run(silence)[:2].tolist() == [8, 0]


def test_what_closing_a_lost_session_raises_is_in_the_log(
    monkeypatch, caplog, capsys
) -> None:
    """TensorFlow closes it in a thread; what another thread raises is on the screen."""
    monkeypatch.setattr(threading, "excepthook", run._log_of_closing)
    with caplog.at_level("INFO"):
        for name in ("SessionCloseThread", "another"):
            thread = threading.Thread(target=int, args=["no"], name=name)
            thread.start()
            thread.join()
    screen = capsys.readouterr().err
    assert "SessionCloseThread" not in screen and "thread another" in screen
    assert caplog.text.count("ValueError: ") == 1


def test_connections_to_an_address_that_a_task_has_left_are_closed(monkeypatch) -> None:
    """Those to another task stay; and while the name is unknown nothing happens."""
    found, looks = {}, iter("aabb")

    def getaddrinfo(host: str, *_: object) -> list:
        if host not in found:
            raise OSError
        return [(0, 0, 0, "", ("127.0.0.1", found[host]))]

    def sleep(_: float) -> None:
        look = next(looks, None)
        if look is None:
            raise StopIteration
        found.update(moves=here) if look == "a" else found.update(moves=there)

    with socket.create_server(("127.0.0.1", 0)) as one:
        with socket.create_server(("127.0.0.1", 0)) as other:
            here, there = one.getsockname()[1], other.getsockname()[1]
            lines = [socket.create_connection(("127.0.0.1", p)) for p in (here, there)]
            monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
            monkeypatch.setattr(time, "sleep", sleep)
            files = os.listdir("/dev/fd")
            with pytest.raises(StopIteration):
                ports.Names(["moves:1", "stays:2"], 2).run()
            assert os.listdir("/dev/fd") == files
            for line in lines:
                line.setblocking(False)
            assert lines[0].recv(1) == b""
            with pytest.raises(BlockingIOError):
                lines[1].recv(1)
            for line in lines:
                line.close()


@pytest.mark.parametrize(
    ("graph", "me", "others"),
    [("ring", 0, [1, 2]), ("ring", 1, []), ("ring", 2, [1]), ("complete", 2, [1])],
)
def test_from_whom_a_worker_of_gossip_fetches(graph, me, others) -> None:
    """The chief reads all replicas; an active worker those of its neighbours."""
    args = launch.defaults_of("Gossip-SGD", 3)
    args.graph, args.task_index = graph, me
    assert neighbours.fetched_from(args) == others


class Told:
    """A session that answers with what a test says of some tensors."""

    def __init__(self, values: list[tuple]) -> None:
        self.values = {id(tensor): value for tensor, value in values}

    def run(self, fetch: object) -> object:
        if isinstance(fetch, tuple | list):
            return [*map(self.run, fetch)]
        return fetch if isinstance(fetch, dict) else self.values[id(fetch)]


@contextlib.contextmanager
def first_of_three(folder: str, kind: type) -> Iterator[heartbeat.Heartbeat]:
    """Yields the heartbeat of worker 0, which cannot reach worker 1."""
    with socket.create_server(("localhost", 0)) as one, tf.Graph().as_default():
        here = f"localhost:{one.getsockname()[1]}"
        args = launch.defaults_of(folder, 3)
        args.worker_hosts = [here, f"localhost:{launch.free_ports(1)}", here]
        yield kind(args, None, incarnation.Incarnation(args))


@pytest.mark.parametrize(
    ("silence", "found"), [([0, 1, 1], True), ([0, 2.9, 9], True), ([0, 4, 0], False)]
)
def test_gossip_names_whom_it_cannot_reach_while_that_lives(silence, found) -> None:
    with first_of_three("Gossip-SGD", neighbours.Heartbeat) as one:
        wall = (("worker", 0), ("worker", 1), one.args.worker_hosts[1])
        session = Told([(one.silence, np.array(silence))])
        assert one.cannot_reach(session) == ({wall} if found else set())


@pytest.mark.parametrize(
    ("silence", "lost"), [([0, 1, 1], []), ([0, 4, 1], [1]), ([0, 99, 1], [1])]
)
def test_a_ring_tells_a_lost_worker_from_one_behind_a_wall(
    silence, lost, ends, capsys
) -> None:
    with first_of_three("Ring-All-Reduce", peers.FailureDetector) as one:
        gone, (quiet, owners) = [], one.signs
        one.lost, one.complete = gone.append, True
        names = np.array([b"x", b"y", b"z"])
        values = [(one.reason, b""), (one.chief, 0), (owners, names)]
        session = Told([*values, (quiet, np.array(silence))])
        with pytest.raises(Ended) if silence[1] > 60 else contextlib.nullcontext():
            one.look(session)
        assert gone == lost
        where = f"worker 1 at {one.args.worker_hosts[1]}"
        said = f"no answer in 99 s from {where}\n"
        assert capsys.readouterr().err.endswith(said) == (silence[1] > 60)
        found = one.cannot_reach(session)
        assert found == {(("worker", 0), ("worker", 1), one.args.worker_hosts[1])}
        # Until all have joined, nobody is lost, or behind a wall.
        one.complete, one.lost = False, pytest.fail
        one.look(session)
        assert one.cannot_reach(session) == set()


# --- Waiting ----------------------------------------------------------------------


def flags_of(logdir: pathlib.Path, **more: object) -> argparse.Namespace:
    """Returns the flags of worker 1, whose run takes 100 steps."""
    args = launch.defaults_of("HogWild", 3)
    flags = dict(job_name="worker", task_index=1, patience=60.0, steps=100)
    vars(args).update({**flags, "logdir": str(logdir), "worker_hosts": HOSTS, **more})
    return args


def finish(logdir: pathlib.Path, steps: int, checkpoint: bool = True) -> None:
    """Leaves what a run of so many steps leaves."""
    about = {"global_steps": steps, "flags": {"steps": steps}}
    (logdir / "result.json").write_text(json.dumps(about))
    if checkpoint:
        (logdir / "checkpoint").touch()


def test_whoever_waits_says_so_again_and_how_long_it_will(clock, logdir, capsys):
    with pytest.raises(Ended) as end:
        patience.wait(lambda: False, lambda: "ps 0", 32, args=flags_of(logdir))
    out, err = capsys.readouterr()
    assert end.value.args == (138,) and err.endswith(": no answer in 32 s from ps 0\n")
    said = [f"still waiting for ps 0; {left} s left" for left in (27, 17, 7)]
    assert out.splitlines() == said


def test_who_does_not_wait_for_long_says_nothing(clock, logdir, capsys) -> None:
    until = clock.now + 4.9
    patience.wait(lambda: clock.now > until, lambda: "ps 0", 60, args=flags_of(logdir))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("alive", "failed", "saves"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_a_chief_that_is_told_to_end_saves_a_whole_model(alive, failed, saves) -> None:
    """No model of which a ps has lost its part, and none that has diverged."""
    chief, saved = object.__new__(run.Run), []
    chief.session, chief.saved = "session", (7, 0)
    chief.is_alive = lambda session: alive
    chief.rendezvous = types.SimpleNamespace(has_failed=lambda: failed)
    chief.save = saved.append
    chief._save_before_the_end()
    assert saved == ["session"] * saves


@pytest.mark.parametrize("steps", [100, None])
def test_who_comes_when_the_run_is_over_is_told(steps, clock, logdir, capsys) -> None:
    """`steps` of the task; a program may not know them on a ps."""
    finish(logdir, 100)
    args = flags_of(logdir, steps=steps)
    with pytest.raises(Ended) as end:
        patience.wait(lambda: False, lambda: "ps 0", 60, args=args)
    assert end.value.args == (0,) and clock.now < 106
    said = capsys.readouterr().out
    assert said == f"the run is over: {logdir} is at global step 100\n"


@pytest.mark.parametrize(
    ("steps", "checkpoint", "over"),
    [(100, True, 100), (120, True, 120), (99, True, None), (100, False, None)],
)
def test_which_run_is_over(steps, checkpoint, over, logdir) -> None:
    """One with all updates; not one whose checkpoint somebody has taken away."""
    args = flags_of(logdir)
    assert report.step_if_over(args) is None
    finish(logdir, steps, checkpoint)
    assert report.step_if_over(args) == over
    (logdir / "result.json").write_text("{")
    assert report.step_if_over(args) is None


@pytest.mark.parametrize(
    ("who", "again", "seconds"),
    [
        ({}, False, 600),
        ({}, True, 60),
        ({"task_index": 0}, True, 600),
        ({"job_name": "ps", "task_index": 1}, True, 600),
    ],
)
def test_how_long_the_others_may_take(who, again, seconds, logdir, monkeypatch) -> None:
    """A worker that is started again finds them, or they have left."""
    monkeypatch.setattr(patience, "is_started_again", lambda: again)
    assert patience.starting(flags_of(logdir, **who)) == seconds


@pytest.mark.parametrize(("age", "again"), [(None, False), (60, True), (3600, False)])
def test_who_is_started_again(age, again, tmp_path, monkeypatch) -> None:
    """A task with a young log; an old one is of a run that somebody resumes."""
    monkeypatch.setattr(task, "_started_again", [])
    monkeypatch.setattr(task, "_redirect", lambda log: log.close())
    log = tmp_path / "worker-1.log"
    if age is not None:
        log.touch()
        written = time.time() - age
        os.utime(log, (written, written))
    task._log_to(str(tmp_path), "worker-1")
    assert task.is_started_again() == again and log.exists()


def test_a_ps_says_that_no_chief_comes(clock, logdir, capsys) -> None:
    """Not in a start that takes as long as usual; then every 30 s."""
    watch = heartbeat.ChiefWatch(flags_of(logdir, job_name="ps", task_index=0))

    def silent(seconds: int) -> list[str]:
        for _ in range(seconds):
            clock.now += 1
            watch.note(False)
        return capsys.readouterr().out.splitlines()

    said = f"still waiting for the chief, worker 0 at {HOSTS[0]}; "
    assert silent(30) == []
    assert silent(40) == [f"{said}569 s left", f"{said}538 s left"]
    watch.note(True)
    assert silent(30) == [] and silent(1) == [f"{said}34 s left"]
    with pytest.raises(Ended) as end:
        silent(60)
    out, err = capsys.readouterr()
    assert end.value.args == (138,)
    assert "no answer in 65 s from the chief, worker 0" in err
    assert out == f"{said}3 s left\n"


def test_a_ps_that_comes_when_the_run_is_over_is_told(clock, logdir, capsys) -> None:
    watch = heartbeat.ChiefWatch(flags_of(logdir, job_name="ps", task_index=0))
    finish(logdir, 100)
    clock.now += 31
    with pytest.raises(Ended) as end:
        watch.note(False)
    assert end.value.args == (0,)
    assert "the run is over: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "speaks"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"", False),
        (b"\0\0\6\4\0\0\0\0\0", True),
    ],
)
def test_a_web_server_is_no_ps(answer, speaks) -> None:
    """A task begins with a frame of settings; whoever waits for a ps asks for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert ports.speaks(f"127.0.0.1:{server.getsockname()[1]}") == speaks
        thread.join()
