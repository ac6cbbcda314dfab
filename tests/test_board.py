"""The board of ps 0 and a task's link to it: who is there, who is missed, who waits."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time

import launch
import pytest
from harness import tf

from cluster import addresses, board, link, report, task

pytestmark = pytest.mark.quick
RUN = {"--scheme": "HogWild", "--window": 1}  # a fingerprint


class Ended(Exception):
    """The program would have ended, with this status."""


@pytest.fixture
def ends(monkeypatch):
    """Whoever ends the program raises Ended here."""

    def end(status):
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 100.0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def flags_of(tmp_path, **more):
    """Returns the flags of worker 1 of 3, whose run takes 100 steps."""
    args = launch.defaults_of("HogWild", 3)
    hosts = [f"127.0.0.1:{port}" for port in (1, 2, 3)]
    flags = dict(job_name="worker", task_index=1, patience=60.0, steps=100)
    flags |= dict(device="/job:worker/task:1", worker_hosts=hosts)
    vars(args).update(flags, logdir=str(tmp_path), **more)
    return args


def says(known, number, process="a", **more):
    """Has the board note a heartbeat of a worker."""
    known.note(dict(worker=number, process=process, fingerprint=RUN) | more)


# --- What is noted ----------------------------------------------------------------


def test_who_is_not_heard_is_silent(clock, tmp_path):
    known = board.Board(flags_of(tmp_path))
    says(known, 0)
    clock.now += link.EVERY
    assert known.as_dict()["workers"]["0"]["silent"] == 0
    clock.now += 6
    assert known.as_dict()["workers"]["0"]["silent"] == 8


def test_a_process_takes_the_place_of_one_before(tmp_path):
    """What the one before has reported is gone; it reads who is the worker now."""
    known = board.Board(flags_of(tmp_path))
    says(known, 0)
    says(known, 1, "old", loss=0.5)
    says(known, 1, "new")
    about = known.as_dict()["workers"]["1"]
    assert (about["process"], about["loss"]) == ("new", None)
    assert not known.as_dict()["moved"]


def test_a_refusal_is_another_edition(tmp_path):
    """Also if nothing else has happened: what is not new is not published."""
    known = board.Board(flags_of(tmp_path))
    says(known, 0)
    before = known.as_dict()
    says(known, 1, fingerprint={**RUN, "--window": 7})
    assert known.as_dict() != before


def test_a_worker_at_another_address_has_moved(tmp_path):
    args = flags_of(tmp_path)
    known = board.Board(args)
    says(known, 0)
    says(known, 1, "old")
    args.worker_hosts[1] = "127.0.0.2:2"
    says(known, 1, "new")
    assert known.as_dict()["moved"]


def test_what_ends_a_run(clock, tmp_path):
    args = flags_of(tmp_path)
    known = board.Board(args)
    says(known, 0)
    says(known, 1)
    clock.now += 61
    says(known, 1)
    sentence, status = link.verdict(known.as_dict(), args)
    assert "no answer in 61 s from the chief, worker 0 at 127.0.0.1:1" in sentence
    assert status == task.AGAIN
    says(known, 0, failed="training diverged")
    assert link.verdict(known.as_dict(), args) == ("training diverged", 1)


# --- Between servers --------------------------------------------------------------


def test_a_run_as_ps_0_notes_it(tmp_path, monkeypatch, capsys):
    """A worker waits for the chief, is taken, refused, replaced; then the ps leaves."""
    base = launch.free_ports(2)
    ps, worker = (f"localhost:{port}" for port in (base, base + 1))
    spec = tf.train.ClusterSpec({"ps": [ps], "worker": [worker]})
    both = [
        tf.train.Server(spec, job_name=job, task_index=0) for job in ("ps", "worker")
    ]
    hosts = dict(ps_hosts=[ps], worker_hosts=[worker, worker])
    args = flags_of(tmp_path, task_index=0, device="/job:worker/task:0", **hosts)
    its = flags_of(tmp_path, job_name="ps", task_index=0, device="/job:ps/task:0")
    vars(its).update(hosts)
    serving = threading.Thread(target=board.serve, args=(both[0], its), daemon=True)
    serving.start()
    line = link.Link(args, both[1])

    def shows(test):
        """Returns once what is on the board passes a test."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(tf.errors.OpError, KeyError):
                if test(line.read()):
                    return
            time.sleep(0.1)
        raise AssertionError(line.read())

    shows(lambda now: now["workers"] == {} and not now["over"])
    beats = dict(worker=1, process="b", fingerprint=RUN)
    line.tell(**beats)
    line.tell(worker=0, process="a", fingerprint=RUN)
    shows(lambda now: now["workers"].keys() == {"0"})
    line.tell(**beats)
    shows(lambda now: now["workers"]["1"]["process"] == "b")
    line.tell(worker=1, process="c", fingerprint={**RUN, "--window": 7})
    shows(lambda now: "--window is 7 here, 1 in the run" in now["refused"].get("c", ""))
    line.tell(worker=1, process="d", fingerprint=RUN, loss=0.5)
    shows(lambda now: now["workers"]["1"]["process"] == "d")
    shows(lambda now: now["workers"]["1"]["loss"] == 0.5)
    line.tell(worker=0, process="a", fingerprint=RUN, over=True)
    shows(lambda now: now["over"])
    line.tell(word="leave")
    serving.join(10)
    assert not serving.is_alive()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers is not a task"),
        (b"", "what answers is not a task"),
        (b"\0\0\6\4\0\0\0\0\0", ""),
    ],
)
def test_a_web_server_is_no_ps(answer, why):
    """A task begins with a frame of settings; whoever waits for a ps asks for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert addresses.silence(f"127.0.0.1:{server.getsockname()[1]}") == why
        thread.join()


# --- Waiting ----------------------------------------------------------------------


def finish(logdir, steps, checkpoint=True):
    """Leaves what a run of so many steps leaves."""
    about = {"global_steps": steps, "flags": {"steps": steps}}
    (logdir / "result.json").write_text(json.dumps(about))
    if checkpoint:
        (logdir / "checkpoint").touch()


def test_whoever_waits_says_so_again_and_how_long_it_will(
    clock, ends, tmp_path, capsys
):
    with pytest.raises(Ended) as end:
        link.wait(lambda: "ps 0", flags_of(tmp_path), 32)
    out, err = capsys.readouterr()
    assert end.value.args == (138,) and err.endswith(": no answer in 32 s from ps 0\n")
    said = [f"still waiting for ps 0; {left} s left" for left in (27, 17, 7)]
    assert out.splitlines() == said


def test_who_does_not_wait_for_long_says_nothing(clock, tmp_path, capsys):
    until = clock.now + 4.9
    link.wait(lambda: "ps 0" * (clock.now < until), flags_of(tmp_path), 60)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("steps", [100, None])
def test_who_comes_when_the_run_is_over_is_told(steps, clock, ends, tmp_path, capsys):
    """`steps` of the task; a program may not know them on a ps."""
    finish(tmp_path, 100)
    with pytest.raises(Ended) as end:
        link.wait(lambda: "ps 0", flags_of(tmp_path, steps=steps), 60)
    assert end.value.args == (0,) and clock.now < 106
    said = capsys.readouterr().out
    assert said == f"nothing to do: {tmp_path} is at global step 100\n"


@pytest.mark.parametrize(
    ("steps", "checkpoint", "over"),
    [(100, True, 100), (120, True, 120), (99, True, None), (100, False, None)],
)
def test_which_run_is_over(steps, checkpoint, over, tmp_path):
    """One with all updates; not one whose checkpoint somebody has taken away."""
    args = flags_of(tmp_path)
    assert report.step_if_over(args) is None
    finish(tmp_path, steps, checkpoint)
    assert report.step_if_over(args) == over
    (tmp_path / "result.json").write_text("{")
    assert report.step_if_over(args) is None


@pytest.mark.parametrize(("again", "seconds"), [(False, 600), (True, 60)])
def test_how_long_the_others_may_take(again, seconds, tmp_path, monkeypatch):
    """A task that has begun again finds them there."""
    monkeypatch.delenv(task.AFTER, raising=False)
    if again:
        monkeypatch.setenv(task.AFTER, str(tmp_path))
    assert link.starting(flags_of(tmp_path)) == seconds
