"""Who is alive, and who can be reached: with a clock and ports that a test sets."""

from __future__ import annotations

import socket
import threading
import types

import launch
import numpy as np
import pytest

launch.reference()
from cluster import heartbeat, neighbours, peers, ports  # noqa: E402

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


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
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


@pytest.mark.parametrize(("silence", "ends"), [(60, False), (61, True)])
def test_a_run_without_a_chief_is_a_failure(silence, ends) -> None:
    """A worker ends after `--patience`: nobody would save what it computes."""
    ended = []
    one = thread_of(heartbeat.Heartbeat, 1, end=ended.append)
    one.unreached = types.SimpleNamespace(note=lambda _: None)
    one.look(Session(reason=b"", chief=silence))
    where = f"the chief, worker 0 at {HOSTS[0]}"
    said = f"no answer in 61 s from {where}: without it nothing is saved"
    assert ended == [said] * ends


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
            with pytest.raises(StopIteration):
                ports.Names(["moves:1", "stays:2"], 2).run()
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
    one.lost, one.end = gone.append, ended.append
    owners = np.array([b"x", b"y", b"z"])
    one.look(Session(reason=b"", chief=0, silence=np.array(silence), owners=owners))
    assert (found, gone) == ([noted], lost)
    assert ended == ["no answer in 99 s from worker 1 at b:2222"] * (silence[1] > 60)
    # Until all have joined, nobody is lost, or behind a wall.
    one.complete, one.lost = False, pytest.fail
    one.look(Session(reason=b"", chief=0, silence=np.array(silence), owners=owners))
    assert found[1:] == [set()]
