"""Who is alive, and who can be reached: with a clock and ports that a test sets."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pathlib
import socket
import threading
import types

import launch
import numpy as np
import pytest

launch.reference()
from cluster import (  # noqa: E402  # noqa: E402
    heartbeat,
    incarnation,
    neighbours,
    patience,
    peers,
    ports,
    rendezvous,
    report,
    run,
    task,
)

pytestmark = pytest.mark.quick
ONE = (("worker", 0), ("worker", 1), "b:2222")
OTHER = (("ps", 0), ("worker", 1), "b:2222")
HOSTS = ["a:2222", "b:2222", "c:2222"]


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    for module in (heartbeat, patience, rendezvous):
        monkeypatch.setattr(module, "time", clock)
    return clock


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


class Session:
    """Answers a fetch, which is a string here, with the value of that name."""

    def __init__(self, **values: object) -> None:
        self.values = values

    def run(self, fetch: object) -> object:
        if isinstance(fetch, str):
            return self.values[fetch]
        return fetch if isinstance(fetch, dict) else [*map(self.run, fetch)]


def thread_of(kind: type, me: int, **more: object) -> heartbeat.Heartbeat:
    """Returns a heartbeat of worker `me` of three that has not been started."""
    args = types.SimpleNamespace(task_index=me, worker_hosts=HOSTS, ps_hosts=[])
    args.patience = 60
    one = kind.__new__(kind)
    one.args, one.serving, one.unreachable = args, {("worker", 0): HOSTS[0]}, {}
    one.reason, one.chief, one.checks, one.me = "reason", "chief", [], me
    for name, value in more.items():
        setattr(one, name, value)
    return one


def test_a_ps_that_falls_silent_while_a_session_begins(monkeypatch) -> None:
    """The session waits for ever; the worker ends after `patience` all the same."""
    silent, hangs, ended = set(), threading.Event(), []

    def session() -> None:
        silent.add(HOSTS[0])
        assert hangs.wait(60)
        raise heartbeat.tf.errors.AbortedError(None, None, "")

    monkeypatch.setattr(heartbeat, "EVERY", 0.01)
    monkeypatch.setattr(heartbeat.ports, "unreachable", lambda *_: silent)
    monkeypatch.setattr(heartbeat.ports, "Names", lambda *_: threading.Thread())
    stopped = threading.Event()
    one = thread_of(heartbeat.Heartbeat, 1, session=session, stopped=stopped)
    one.args.patience, one.heard, one.answer = 0.1, {("worker", 0): 0.0}, False

    def end(sentence: str) -> None:
        ended.append(sentence)
        stopped.set()
        hangs.set()

    one.end = end
    one.run()
    assert len(ended) == 1 and f"from worker 0 at {HOSTS[0]}" in ended[0]


@pytest.mark.parametrize("jump", [3600, -3600, 30])
def test_a_clock_of_ps_0_that_jumps(jump, monkeypatch) -> None:
    """Nobody counts as silent for it, nor if ps 0 stood still for a while."""
    tf = heartbeat.tf
    args = types.SimpleNamespace(task_index=0, worker_hosts=HOSTS, ps_hosts=["d:2222"])
    monkeypatch.setattr(incarnation.addresses, "device", lambda _: "/cpu:0")
    with tf.Graph().as_default(), tf.Session() as session:
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


@pytest.mark.parametrize(("silence", "ends"), [(60, False), (61, True)])
def test_a_run_without_a_chief_is_a_failure(silence, ends, clock) -> None:
    """A worker ends after `--patience`: nobody would save what it computes."""
    ended = []
    one = thread_of(heartbeat.Heartbeat, 1, end=ended.append)
    one.unreached = types.SimpleNamespace(note=lambda _: None)
    one.began = clock.now - 100
    one.look(Session(reason=b"", chief=silence))
    where = f"the chief, worker 0 at {HOSTS[0]}"
    said = f"no answer in 61 s from {where}: without it nothing is saved"
    assert ended == [said] * ends


def test_a_worker_that_is_started_again_waits_for_the_chief_anew(clock) -> None:
    """Else all its starts would be used up at once."""
    ended = []
    one = thread_of(heartbeat.Heartbeat, 1, end=ended.append)
    one.unreached = types.SimpleNamespace(note=lambda _: None)
    one.began = clock.now
    for seconds in (0, 60):
        clock.now += seconds
        one.look(Session(reason=b"", chief=500))
    assert not ended
    clock.now += 1
    one.look(Session(reason=b"", chief=500))
    assert [words[:19] for words in ended] == ["no answer in 61 s f"]


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


@pytest.mark.parametrize("error", ["UnavailableError", "DeadlineExceededError"])
def test_a_worker_that_is_cut_off_as_it_joins_asks_again(error, monkeypatch) -> None:
    """It is no error of its own that ps 0, which has just answered, does not now."""
    one = rendezvous.Rendezvous.__new__(rendezvous.Rendezvous)
    one.args, one.me, one.host = types.SimpleNamespace(task_index=1), 1, "here"
    one.fingerprint, one.others = "{}", "others"
    told, asked = (b"{}", [b"", b""], [0.0, 0.0]), []

    def ask(_: object) -> tuple:
        asked.append(1)
        if len(asked) < 3:
            raise getattr(rendezvous.tf.errors, error)(None, None, "no answer in 5 s")
        return told

    one.is_open = lambda: True
    one.session = lambda: contextlib.nullcontext(types.SimpleNamespace(run=ask))
    one.compare()
    assert len(asked) == 3


def test_nobody_waits_for_the_report_of_a_worker_that_is_gone(clock, capsys) -> None:
    """Worker 1 has died; worker 2 was never there; both get 10 s to report."""
    one = rendezvous.Rendezvous.__new__(rendezvous.Rendezvous)
    one.reports = "reports"
    losses, owners = np.array([0.5, np.nan, np.nan]), [b"x", b"y", b""]
    began, checks = clock.now, []
    session = Session(reports=(losses, np.array([0.0, 99.0, 99.0]), owners))
    found = one.collect(session, lambda: checks.append(clock.now))
    assert found == {0: 0.5, 1: None, 2: None}
    assert heartbeat.GONE < clock.now - began < heartbeat.GONE + 1 and len(checks) > 9
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "worker 1 is gone: the run ends without it",
        "worker 2 has not joined: the run ends without it",
    ]


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
            monkeypatch.setattr(ports.socket, "getaddrinfo", getaddrinfo)
            monkeypatch.setattr(ports.time, "sleep", sleep)
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
    ("silence", "found"), [([0, 1, 1], True), ([0, 2.9, 9], True), ([0, 4, 0], False)]
)
def test_gossip_names_whom_it_cannot_reach_while_that_lives(
    silence, found, monkeypatch
) -> None:
    monkeypatch.setattr(neighbours.ports, "unreachable", lambda _: {HOSTS[1]})
    dialled = dict(enumerate(HOSTS))
    one = thread_of(neighbours.Heartbeat, 0, dialled=dialled, silence="silence")
    assert one.cannot_reach(Session(silence=silence)) == ({ONE} if found else set())


@pytest.mark.parametrize(
    ("graph", "me", "others"),
    [("ring", 0, [1, 2]), ("ring", 1, []), ("ring", 2, [1]), ("complete", 2, [1])],
)
def test_from_whom_a_worker_of_gossip_fetches(graph, me, others) -> None:
    """The chief reads all replicas; an active worker those of its neighbours."""
    args = types.SimpleNamespace(graph=graph, worker_hosts=HOSTS, task_index=me)
    assert neighbours.fetched_from(args) == others


@pytest.mark.parametrize(
    ("silence", "noted", "lost"),
    [([0, 1, 1], {ONE}, []), ([0, 4, 1], {ONE}, [1]), ([0, 99, 1], {ONE}, [1])],
)
def test_a_ring_tells_a_lost_worker_from_one_behind_a_wall(
    silence, noted, lost, monkeypatch
) -> None:
    monkeypatch.setattr(peers.ports, "unreachable", lambda _: {HOSTS[1]})
    dialled, found, gone, ended = dict(enumerate(HOSTS[1:], 1)), [], [], []
    one = thread_of(peers.FailureDetector, 0, dialled=dialled, complete=True)
    one.signs = "silence", "owners"
    one.unreached = types.SimpleNamespace(note=found.append)
    one.lost, one.end, one.began = gone.append, ended.append, 0
    owners = np.array([b"x", b"y", b"z"])
    one.look(Session(reason=b"", chief=0, silence=np.array(silence), owners=owners))
    assert (found, gone) == ([noted], lost)
    assert ended == ["no answer in 99 s from worker 1 at b:2222"] * (silence[1] > 60)
    # Until all have joined, nobody is lost, or behind a wall.
    one.complete, one.lost = False, pytest.fail
    one.look(Session(reason=b"", chief=0, silence=np.array(silence), owners=owners))
    assert found[1:] == [set()]


# --- Waiting ----------------------------------------------------------------------


class Ended(Exception):
    """The program would have ended."""


def end_now(sentence: str, status: int = 138) -> None:
    raise Ended(sentence, status)


@pytest.fixture
def logdir(monkeypatch, tmp_path) -> pathlib.Path:
    """A LOGDIR; whoever ends the program raises Ended here."""

    def end(status: int) -> None:
        raise Ended(status)

    for module in (heartbeat, patience):
        monkeypatch.setattr(module, "end_now", end_now)
    monkeypatch.setattr(patience.os, "_exit", end)
    return tmp_path


def flags_of(logdir: pathlib.Path, **more: object) -> types.SimpleNamespace:
    """Returns the flags of worker 1, whose run takes 100 steps."""
    flags = dict(job_name="worker", task_index=1, patience=60.0, steps=100)
    flags.update(worker_hosts=HOSTS, ps_hosts=["p:1"], logdir=str(logdir))
    return types.SimpleNamespace(**{**flags, **more})


def finish(logdir: pathlib.Path, steps: int, checkpoint: bool = True) -> None:
    """Leaves what a run of so many steps leaves."""
    about = {"global_steps": steps, "flags": {"steps": steps}}
    (logdir / "result.json").write_text(json.dumps(about))
    if checkpoint:
        (logdir / "checkpoint").touch()


def test_whoever_waits_says_so_again_and_how_long_it_will(clock, logdir, capsys):
    with pytest.raises(Ended) as end:
        patience.wait(lambda: False, lambda: "ps 0", 32, args=flags_of(logdir))
    assert end.value.args == ("no answer in 32 s from ps 0", 138)
    said = [f"still waiting for ps 0; {left} s left" for left in (27, 17, 7)]
    assert capsys.readouterr().out.splitlines() == said


def test_who_does_not_wait_for_long_says_nothing(clock, logdir, capsys) -> None:
    until = clock.now + 4.9
    patience.wait(lambda: clock.now > until, lambda: "ps 0", 60, args=flags_of(logdir))
    assert capsys.readouterr().out == ""


def test_a_ring_compares_its_weights_before_it_ends(monkeypatch) -> None:
    """All workers have the same bits, or the run is a failure: see test_peers.py."""
    worker, done = object.__new__(peers.Run), []
    worker.check = types.SimpleNamespace(make=lambda _: done.append("compares"))
    worker.detector = types.SimpleNamespace(complete=True)
    monkeypatch.setattr(peers.run.Run, "end", lambda *_: done.append("ends"))
    worker.end("session")
    assert done == ["compares", "ends"] and not worker.detector.complete


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
        written = task.time.time() - age
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
    assert end.value.args[0].startswith("no answer in 65 s from the chief, worker 0")
    assert capsys.readouterr().out == f"{said}3 s left\n"


def test_a_ps_that_comes_when_the_run_is_over_is_told(clock, logdir, capsys) -> None:
    watch = heartbeat.ChiefWatch(flags_of(logdir, job_name="ps", task_index=0))
    finish(logdir, 100)
    clock.now += 31
    with pytest.raises(Ended) as end:
        watch.note(False)
    assert end.value.args == (0,)
    assert "the run is over: " in capsys.readouterr().out


def test_a_worker_that_never_joined_is_not_called_gone(clock, capsys) -> None:
    """It was refused, or not started: the chief does not say that it has lost it."""
    chief = rendezvous.Rendezvous.__new__(rendezvous.Rendezvous)
    chief.reports = "losses", "silence", "owners"
    session = Session(
        losses=np.array([0.5, np.nan, np.nan]),
        silence=np.array([0.0, 99.0, 99.0]),
        owners=np.array([b"a 1", b"", b"c 3"]),
    )
    assert chief.collect(session) == {0: 0.5, 1: None, 2: None}
    assert capsys.readouterr().out.splitlines() == [
        "worker 1 has not joined: the run ends without it",
        "worker 2 is gone: the run ends without it",
    ]


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
