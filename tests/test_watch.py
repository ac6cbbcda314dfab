"""tools/watch.py: what it says of a run, whom it lets in, a page in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import launch
import psutil
import pytest
import test_timeline
import watch
import watch_numbers
import watch_recorder
from browser import if_browser, lead
from timeline_bars import WrongError
from tree import REPO, run

TOOL = REPO / "tools" / "watch.py"
RECORDINGS = sorted((REPO / "docs").glob("watch-*.jsonl"))
BEGIN = 1000.0  # when the runs here begin, seconds since 1970

# --- What it says of a run -----------------------------------------------------------


def told(call: dict) -> dict:
    """Returns a call of test_timeline as the recorder of a task tells it."""
    began, counts = call["began"], "AssignAddVariableOp"
    (stamp,) = [o[5] for o in call["operations"] if o[2] == counts]
    both = {
        name: [[*o[:-2], o[-2] - began, o[-1] - began] for o in call[name]]
        for name in ("operations", "messages")
    }
    counts = [[*call["counts"][0], stamp - began]]
    edges = {"b": BEGIN + began / 1e6, "e": BEGIN + call["ended"] / 1e6}
    return {"group": 0, **edges, "counts": counts, "losses": [0.5], **both}


def watched(family: str, recording: list[dict], **more: bool) -> watch_numbers.Known:
    """Returns what is known of a run of two workers, all calls of which were traced."""
    names = ["worker 0", "worker 1"] if family == "peers" else ["ps 0"]
    names += ["worker 0", "worker 1"] if family != "peers" else []
    known = watch_numbers.Known(family, names, **more)
    every = [(c["ended"], w["worker"], c) for w in recording for c in w["calls"]]
    for name in names:
        known.told(name, {"task": name, "pid": 1, "t": 0.0}, BEGIN)
    for _, worker, call in sorted(every, key=lambda one: one[:2]):
        known.told(f"worker {worker}", told(call), BEGIN)
    return known


def hogwild() -> watch_numbers.Known:
    return watched("ps", test_timeline.hogwild(), stale=True)


def ring() -> watch_numbers.Known:
    return watched("peers", test_timeline.ring())


def said(known: watch_numbers.Known, t: float) -> str:
    return known.numbers(t)["say"]


@pytest.mark.quick
def test_nothing_is_said_of_rounds_before_there_are_some() -> None:
    known = watch_numbers.Known("ps", ["ps 0", "worker 0"])
    assert said(known, 1.0).startswith("No round has been made yet")


@pytest.mark.quick
def test_nobody_waits() -> None:
    now = hogwild().numbers(1.6)
    takes = r"gradients take \d\d % of a round of \d\d ms\."
    pattern = rf"Nobody waits: {takes} Staleness 1\.\d(; N − 1 is 1| is N − 1)\."
    assert re.fullmatch(pattern, now["say"]), now["say"]
    fast, slow = now["tasks"]["worker 0"], now["tasks"]["worker 1"]
    assert fast["gradient"] == pytest.approx(29, abs=1)
    assert slow["gradient"] == pytest.approx(59, abs=1)
    assert 0.6 < fast["compute"] < 0.8 and fast["wait"] == 0 < fast["send"]
    # A round has 19,240 bytes for the ps; 25 and 12.5 rounds a second.
    assert now["tasks"]["ps 0"]["in"] == pytest.approx(19240 * 37.5, rel=0.05)
    assert now["rate"] == pytest.approx(37.5, rel=0.05)


@pytest.mark.quick
def test_counters_are_those_of_the_calls() -> None:
    recording, known = test_timeline.hogwild(), hogwild()
    counts = [c["counts"][0] for worker in recording for c in worker["calls"]]
    now = known.numbers(1.6)
    assert now["updates"] == now["step"] == len(counts) == 60
    assert now["stale"]["mean"] == pytest.approx(
        sum(c[1] for c in counts) / 60, abs=1e-3
    )
    assert now["stale"]["max"] == max(c[1] for c in counts)
    assert [now["tasks"][f"worker {k}"]["rounds"] for k in (0, 1)] == [40, 20]


@pytest.mark.quick
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_diverges_is_left_out(loss: float) -> None:
    """A browser reads no JSON with NaN in it."""
    known = hogwild()
    call = {**told(test_timeline.async_call(0, 2e6, 4e4, [77, 0, 1])), "losses": [loss]}
    curve = {"step": 77, "curve": {"test_loss": loss, "test_accuracy": 0.1}, "t": 2.1}
    events = known.told("worker 0", call, BEGIN) + known.told("worker 0", curve, BEGIN)
    events.append(known.numbers(2.2))
    json.dumps(events, allow_nan=False)
    assert events[-1]["loss"] is None and events[-2]["v"] == {"test_accuracy": 0.1}


@pytest.mark.quick
def test_calls_of_which_nothing_is_known_take_no_share() -> None:
    """A call that TensorFlow prepared, and those before the first that was traced."""
    recording = test_timeline.ring()
    known = watch_numbers.Known("peers", ["worker 0", "worker 1"])
    for n in range(4):
        for worker in recording:
            name, call = f"worker {worker['worker']}", told(worker["calls"][n])
            if n == 0:  # of a second and more, and not traced
                call = {**call, "b": call["b"] - 1, "first": True}
                call = {k: v for k, v in call.items() if k != "operations"}
            known.told(name, call, BEGIN)
        if n == 0:
            assert said(known, 0.1).endswith("; who waits is not known yet.")
    text = r"worker 1's gradients take \d\d ms, the other's \d\d ms: the other waits "
    assert re.match(text, said(known, 0.5)), said(known, 0.5)
    fast, slow = known.numbers(0.5)["tasks"].values()
    assert fast["wait"] > 0.3 and slow["compute"] > 0.7
    known.shapes.pop("worker 1")
    known.tasks["worker 1"].calls[-1] = (
        known.tasks["worker 1"].calls[-1]._replace(lanes={})
    )
    assert said(known, 0.5).endswith("; who waits is not known yet.")


@pytest.mark.quick
def test_a_straggler_is_waited_for() -> None:
    known = ring()
    text = "worker 1's gradients take 80 ms, the other's 40 ms: "
    pattern = rf"{text}the other waits (3[5-9]|40) ms of each round\."
    assert re.fullmatch(pattern, said(known, 1.0))


@pytest.mark.quick
def test_workers_that_wait_without_a_straggler() -> None:
    now = ring().numbers(1.0)
    for worker in now["tasks"].values():
        worker |= {"gradient": 40, "wait": 0.25, "lock": 0, "round": 80}
    text = "worker 0 waits 20 ms of each round of 80 ms, 25 %."
    assert watch_numbers.sentence(now) == text


@pytest.mark.quick
def test_a_machine_without_time_left() -> None:
    known = hogwild()
    known.cores = 0.97, 2
    assert said(known, 1.6).startswith("Nobody waits")  # others keep them busy
    for task in known.tasks.values():
        task.cpu = 0.5
    text = "The 2 cores of this machine are busy 97 % of the time, 75 % for this run."
    assert said(known, 1.6) == text
    known.tasks["ps 0"].cpu = 0.94
    assert said(known, 1.6) == "ps 0 is busy 94 % of the time."


@pytest.mark.quick
def test_who_waits_for_a_lock() -> None:
    now = hogwild().numbers(1.6)
    now["tasks"]["worker 1"] |= {"wait": 0.3, "lock": 0.28, "round": 80}
    text = "worker 1 waits 22 ms of each round of 80 ms for a lock."
    assert watch_numbers.sentence(now) == text


@pytest.mark.quick
def test_messages_that_take_longer_than_gradients() -> None:
    now = hogwild().numbers(1.6)
    short = {"compute": 0.2, "send": 0.71, "round": 2.5}
    for name in ("worker 0", "worker 1"):
        now["tasks"][name] |= short
    now["stale"]["now"] = 0.4
    text = "messages take 71 % of a round of 2.5 ms, gradients 20 %."
    text = f"Nobody waits: {text} Staleness 0.4; N − 1 is 1."
    assert watch_numbers.sentence(now) == text


@pytest.mark.quick
def test_who_is_frozen_and_who_waits_for_it() -> None:
    known = hogwild()
    known.state("worker 1", "frozen", -1.0)
    assert said(known, 1.6) == "worker 1 is frozen."  # rounds of before may be in it
    known.tasks["worker 1"].since = -2.0
    text = "worker 1 is frozen, and nobody waits for it: the others make "
    assert said(known, 1.6).startswith(text)
    known.told("worker 0", {"open": BEGIN + 1.6}, BEGIN)
    assert (
        said(known, 3.6)
        == "worker 1 is frozen: worker 0 has reported no round for 2 s."
    )
    known.state("worker 1", "runs", 3.7)
    both = "worker 0 and worker 1 have reported no round for 2 s."
    assert said(known, 3.8) == both


@pytest.mark.quick
def test_who_is_gone_and_starts_again() -> None:
    known = hogwild()
    known.state("worker 1", "gone", 1.5)
    assert said(known, 1.6) == "worker 1 is gone."
    known.tasks["worker 1"].since = -2.0
    assert said(known, 1.6).startswith("worker 1 is gone, and nobody waits for it")
    known.told("worker 1", {"task": "worker 1", "pid": 2, "t": 1.7}, BEGIN)
    assert said(known, 1.8).startswith("worker 1 starts again")
    call = told(test_timeline.async_call(1, 2e6, 4e4, [77, 0, 1]))
    back, *_ = known.told("worker 1", call, BEGIN)
    assert (back["s"], back["step"]) == ("runs", 76)


@pytest.mark.quick
def test_nobody_makes_rounds_without_a_ps() -> None:
    known = hogwild()
    assert known.tasks["ps 0"].state == "runs"
    known.state("ps 0", "gone", 1.6)
    both = "worker 0 and worker 1 have reported no round for 2 s."
    assert said(known, 3.6) == f"ps 0 is gone: {both}"
    known.told("ps 0", {"task": "ps 0", "pid": 2, "t": 3.7}, BEGIN)
    assert said(known, 3.8).startswith("ps 0 starts again: worker 0 and worker 1 have")
    call = told(test_timeline.async_call(1, 5e6, 4e4, [50, 0, 1]))
    assert known.told("worker 1", call, BEGIN)[0]["w"] == "ps 0"
    assert known.numbers(5.1)["step"] == 50  # of the checkpoint


@pytest.mark.quick
def test_what_a_run_has_ended_with_is_said_last() -> None:
    known = hogwild()
    known.over = "The run ended with status 1."
    assert said(known, 9.0) == known.over


@pytest.mark.quick
def test_a_trace_with_something_missing_is_counted_and_not_drawn() -> None:
    call = told(test_timeline.async_call(0, 0, 4e4, [1, 0, 1]))
    call["operations"] = [o for o in call["operations"] if o[2] != "MutexLock"]
    with pytest.raises(WrongError):
        watch_numbers.shapes({0: call}, "ps", 1)
    known = watch_numbers.Known("ps", ["ps 0", "worker 0"])
    events = known.told("worker 0", call, BEGIN)
    assert [e["k"] for e in events] == ["task", "rounds"]
    assert known.numbers(1.0)["traces"] == [1, 1]


@pytest.mark.quick
def test_a_trace_that_costs_more_is_made_more_seldom(tmp_path: Path) -> None:
    """After three, however much the cost changes, there is one trace in a slot."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(path)
        line.listen()
        recorder = watch_recorder.Recorder("worker 0", path)
        hello = json.loads(line.accept()[0].makefile().readline())
    assert hello == {"task": "worker 0", "pid": os.getpid()}
    traced = []
    for tenth in range(1000, 11000):
        if recorder.due(tenth / 10):
            cost = 0.9 if len(traced) % 2 else 1.1  # times what 16 s allow
            recorder._costs(tenth / 10, cost * 16 * watch_recorder.BUDGET)
            traced.append(tenth / 10)
    assert traced[:3] == [100, 101, 102]
    assert 1000 / 32 <= len(traced[3:]) <= 1000 / 16
    assert all(time % 16 == 0 for time in traced[3:])


Shape = watch_numbers.Shape
WAITS = Shape([["a", "wait", 0, 10], ["a", "gradient", 10, 40]], 40, [], {})
PLAIN = Shape([["a", "gradient", 2, 30]], 40, [], {})
LENGTHS = [
    (WAITS, 40, [0, 10, 40]),
    (WAITS, 90, [0, 60, 90]),  # what waits takes what is left
    (WAITS, 20, [0, 5, 20]),  # there is no room
    (PLAIN, 60, [0, 15, 60]),
    (PLAIN, 1000, [960, 970, 1000]),  # it was held up
]


@pytest.mark.quick
@pytest.mark.parametrize(("shape", "length", "places"), LENGTHS)
def test_a_round_is_as_long_as_it_was_and_made_of_the_last_trace(
    shape: watch_numbers.Shape, length: float, places: list[float]
) -> None:
    place = watch_numbers.stretched(shape, length, "a")
    assert [place(x) for x in (0, 10, 40)] == pytest.approx(places)
    assert place(41) - place(40) == pytest.approx(1)  # an update after its count


@pytest.mark.quick
@pytest.mark.parametrize("folder", watch.registry.folders("ps"))
def test_three_lines_say_who_waits(folder: str) -> None:
    words = watch_numbers.said((REPO / folder / "README.md").read_text())
    assert 1 <= len(words) <= 3, words
    for one in words:
        assert one[-1] in ".!" and not set("[]*`$|·") & set(one), one


# --- Whom it lets do what ------------------------------------------------------------

# A task that does nothing, as the server sees it.
TASK = """import json, os, socket, sys, time
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["WATCH_SOCKET"])
hello = {"task": sys.argv[1], "pid": os.getpid()}
line.sendall((json.dumps(hello) + "\\n").encode())
time.sleep(60)
"""
# A launcher of such tasks, which starts each again.
LAUNCHER = """import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
names = ["ps 0", "worker 0", "worker 1"]
start = lambda name: subprocess.Popen([sys.executable, "-c", sys.argv[1], name])
tasks = {name: start(name) for name in names}
print("all are started", flush=True)
try:
    while True:
        time.sleep(0.05)
        tasks |= {name: start(name) for name in names if tasks[name].poll() is not None}
finally:
    for task in tasks.values():
        task.kill()
"""


class Nobody:
    """Is told what ends the program."""

    def tell(self, number: int) -> None:
        pass


@pytest.fixture
def served() -> Iterator[watch.Server]:
    """Returns the server of a run whose tasks do nothing."""
    one = watch.Run("HogWild", ["--steps", "10"])
    one.command = [sys.executable, "-c", LAUNCHER, TASK]
    server = watch.Server(0, one.events, one)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    one.start(Nobody())
    until(lambda: len(one.lines) == 3)
    yield server
    assert one.end(signal.SIGTERM) == 143
    server.shutdown()
    server.server_close()
    assert not Path(one.environment["WATCH_SOCKET"]).exists()


def until(holds, seconds: float = 20) -> None:
    """Returns when something holds; fails after some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def ask(server: watch.Server, path: str, data: object = None, **headers: str):
    """Returns (status, text) of a request with the token, unless the path has one."""
    token = "" if "token=" in path else f"token={server.token}"
    path += ("&" if "?" in path else "?") + token
    url = f"http://127.0.0.1:{server.server_port}{path}"
    body = None if data is None else json.dumps(data).encode()
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


FREEZE = {"task": "worker 1", "do": "freeze"}


@pytest.mark.quick
def test_only_the_page_with_the_token_gets_in(served: watch.Server) -> None:
    assert ask(served, "/")[0] == ask(served, "/events")[0] == 200
    port = served.server_port
    for path, headers in (
        ("/?token=", {}),
        ("/events?token=x", {}),
        ("/events?after=0&token=%00", {}),
        ("/", {"Host": f"evil.example:{port}"}),
        ("/", {"Host": "localhost"}),
        ("/events", {"Origin": "http://evil.example"}),
        ("/events", {"Origin": "null"}),
        ("/", {"Sec-Fetch-Site": "cross-site"}),
        ("/../tools/watch.py?token=", {}),
    ):
        status, text = ask(served, path, **headers)
        assert status == 403 and served.token not in text, path
    pid = served.run_.known.tasks["worker 1"].pid
    for path, headers in (
        ("/act?token=", {}),
        ("/act", {"Origin": "http://evil.example"}),
        ("/act", {"Content-Type": "text/plain"}),  # what a form elsewhere can send
    ):
        assert ask(served, path, FREEZE, **headers)[0] == 403
    assert psutil.Process(pid).status() != psutil.STATUS_STOPPED
    for path in ("/tools/watch.py", "/../../etc/passwd", "//etc/passwd", "/page/../x"):
        assert ask(served, path)[0] == 404
    assert ask(served, "/events?after=-1")[0] == 400
    assert "HogWild" in ask(served, "/page")[1]
    listening = psutil.Process().net_connections(kind="inet")
    (mine,) = [c for c in listening if c.laddr.port == port and c.status == "LISTEN"]
    assert mine.laddr.ip == "127.0.0.1"


@pytest.mark.quick
def test_a_task_is_frozen_thawed_slowed_and_killed(served: watch.Server) -> None:
    known = served.run_.known
    pid = known.tasks["worker 1"].pid
    process = psutil.Process(pid)

    def stopped() -> bool:
        return process.status() == psutil.STATUS_STOPPED

    assert ask(served, "/act", FREEZE)[0] == 200
    until(stopped)
    assert known.tasks["worker 1"].state == "frozen"
    assert ask(served, "/act", {"task": "worker 1", "do": "thaw"})[0] == 200
    until(lambda: not stopped())
    assert ask(served, "/act", {"task": "worker 1", "do": "slow", "times": 4})[0] == 200
    found = []
    for _ in range(300):
        found.append(stopped())
        time.sleep(0.003)
    assert 0.55 < sum(found) / len(found) < 0.92
    assert ask(served, "/act", {"task": "worker 1", "do": "slow", "times": 1})[0] == 200
    until(lambda: not stopped())
    assert ask(served, "/act", {"task": "worker 1", "do": "kill"})[0] == 200
    until(lambda: known.tasks["worker 1"].pid != pid)
    events = [json.loads(text) for text in served.source.since(0)[1]]
    states = [e["s"] for e in events if e["k"] == "task" and e["w"] == "worker 1"]
    assert states[-1] == "again"
    for wrong in (
        {"task": "worker 9", "do": "kill"},
        {"task": "worker 1", "do": "reboot"},
        {"task": "worker 1", "do": "slow", "times": 1e9},
        {"task": ["worker 1"], "do": "kill"},
        ["kill"],
        {},
    ):
        assert ask(served, "/act", wrong)[0] == 400, wrong


@pytest.mark.quick
def test_a_thousand_requests_and_browsers_that_go_away(served: watch.Server) -> None:
    lines = []
    for n in range(1000):
        line = socket.socket()
        line.settimeout(10)
        with contextlib.suppress(OSError):
            line.connect(("127.0.0.1", served.server_port))
            line.sendall(b"GET /events?token=" + b"x" * (n % 50))  # and no end
        lines.append(line)
    assert threading.active_count() < watch.ROOM + 30
    for line in lines:
        line.close()
    until(lambda: ask(served, "/events")[0] == 200)


# --- Recordings, and mistakes --------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], r"name a recording; `bash run\.sh --watch` watches a run"),
        (["NONE"], r"NONE: No such file or directory"),
        (["README.md"], r"README\.md is not a recording of --record"),
        (["tools"], r"tools: Is a directory"),
        (["DAMAGED"], r".*DAMAGED: line 2 is damaged"),
        (["EMPTY"], r".*EMPTY is empty"),
        (["README.md", "--record", "x"], r"--record: a recording is there already"),
        (["README.md", "--port", "70000"], r"--port 70000 is no port"),
        (
            ["--run", "Hogwild"],
            r"Hogwild cannot be watched, only Distributed-Setup, .*",
        ),
        (["--run", "Horovod"], r"Horovod cannot be watched, only .*"),
        (["--run", "Engines/MPI"], r"Engines/MPI cannot be watched, only .*"),
        (
            ["--run", "AGN", "--record", "no/x"],
            r"--record no/x: there is no such folder",
        ),
        (
            ["--run", "AGN", "--record", "run.sh"],
            r"--record run\.sh: there is such a .*",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    (tmp_path / "DAMAGED").write_text('{"k": "run", "watch": 1}\n{"k": "now", "t"')
    (tmp_path / "EMPTY").write_text("")
    words = [tmp_path / w if w in ("DAMAGED", "EMPTY") else w for w in words]
    done = run(sys.executable, TOOL, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"watch\.py: {sentence}\n", done.stderr), done.stderr


@pytest.mark.quick
def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        recording = RECORDINGS[0]
        done = run(sys.executable, TOOL, recording, "--port", str(port))
    assert done.returncode == 2
    assert done.stderr == f"watch.py: --port {port}: Address already in use\n"


@pytest.mark.quick
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_recording_is_played_without_tensorflow(path: Path) -> None:
    assert path.stat().st_size < 512 * 1024
    # -S: no package is there that is not Python's own.
    command = [sys.executable, "-S", str(TOOL), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().removeprefix("watch: ").strip()
        assert re.fullmatch(r"http://localhost:\d+/\?token=\S{20,}", address)
        address = address.replace("localhost", "127.0.0.1")
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"<!doctype html>" in answer.read()
        events = address.replace("/?", "/events?after=0&")
        with urllib.request.urlopen(events, timeout=20) as answer:
            found = json.loads(answer.read())
        act = urllib.request.Request(
            address.replace("/?", "/act?"),
            json.dumps(FREEZE).encode(),
            {"Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(act, timeout=20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert not found["live"]
    kinds = {event["k"] for event in found["events"]}
    assert kinds >= {"run", "rounds", "shape", "now", "task"}
    # Every sentence follows from the numbers beside it.
    nows = [event for event in found["events"] if event["k"] == "now"]
    for now in nows:
        if not now["say"].startswith("The run "):
            assert watch_numbers.sentence(now) == now["say"]


@pytest.mark.quick
def test_the_recordings_are_of_what_the_root_page_says() -> None:
    assert len(RECORDINGS) >= 3
    page = (REPO / "README.md").read_text()
    for path in RECORDINGS:
        assert path.name in page


# --- Real runs -----------------------------------------------------------------------


@contextlib.contextmanager
def watching(*words: str, **env: str) -> Iterator[tuple[subprocess.Popen, str, list]]:
    """Watches a run by the root's run.sh: its process, the address, what it prints."""
    process = subprocess.Popen(
        ["bash", "run.sh", *words, "--watch"],
        cwd=REPO,
        env=launch.environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []

    def read() -> None:
        lines.extend(iter(process.stdout.readline, ""))

    try:
        for line in process.stdout:  # the set-up may say something before
            if line.startswith("watch: http"):
                break
        threading.Thread(target=read, daemon=True).start()
        yield process, line.removeprefix("watch: ").strip(), lines
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()


def browse(*steps: dict) -> dict:
    """Leads a browser; returns what it found; asserts that its console has no error."""
    said = lead("watch_page.js", {"steps": steps})
    assert said["errors"] == []
    return said["found"]


# How much of a colour is in a lane, of its last seconds on the screen.
COLOURED = """((lane, seconds, colour) => {{
  const wide = Math.round((width * ratio * seconds) / shown), tall = BAR * ratio;
  const top = (lane * HEIGHT + TOP) * ratio;
  const {{ data }} = screen.getImageData(view.width - wide, top, wide, tall);
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = colours[colour];
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
  let same = 0;
  for (let i = 0; i < data.length; i += 4)
    same += [r, g, b].every((value, n) => Math.abs(data[i + n] - value) < 9);
  return same / (data.length / 4);
}})({lane}, {seconds}, "{colour}")"""


def coloured(lane: int, seconds: float, colour: str = "gradient") -> str:
    return COLOURED.format(lane=lane, seconds=seconds, colour=colour)


@if_browser
@pytest.mark.long
def test_a_page_shows_a_kill_and_a_restart(tmp_path: Path) -> None:
    """HogWild: the lane of a killed worker is empty, and then full again."""
    logdir = str(tmp_path / "logdir")
    flags = ["--steps", "400", "--slow_workers", "0.1", "--logdir", logdir]
    with watching("HogWild", *flags) as (process, address, _):
        found = browse(
            {"open": address},
            {
                "wait": f"{coloured(1, 1)} > 0.3 && {coloured(2, 1)} > 0.3",
                "seconds": 180,  # the tasks start
            },
            {"name": "one", "evaluate": "view.toDataURL()"},
            {"sleep": 0.3, "name": "two", "evaluate": "view.toDataURL()"},
            {"click": "#acts-2 [data-do=kill]"},
            {"wait": f"{coloured(2, 1)} < 0.01 && {coloured(1, 1)} > 0.3"},
            {"wait": "$('say').textContent.startsWith('Worker 1 ')"},
            {"wait": f"{coloured(2, 1)} > 0.3"},
            {"wait": "end !== null", "seconds": 120},
            {"sleep": 1.5},
            {"name": "accuracy", "evaluate": "$('accuracy').textContent"},
            {"name": "now", "evaluate": "nows[nows.length - 1]"},
            {"name": "state", "evaluate": "$('state').textContent"},
            {
                "name": "back",
                "evaluate": "states.get('worker 1').map((one) => one.step)",
            },
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    result = json.loads((Path(logdir) / "result.json").read_text())
    assert found["one"] != found["two"]
    assert found["accuracy"] == f"{result['test_accuracy']:.4f}"
    assert found["state"] == "ended with status 0"
    assert any(step and step > 5 for step in found["back"])
    assert found["now"]["step"] == result["global_steps"] == 400


@if_browser
@pytest.mark.long
def test_a_page_shows_who_waits_for_a_frozen_worker(tmp_path: Path) -> None:
    """Synchronous-SGD; the numbers of the page are the run's own; shots are taken."""
    logdir = str(tmp_path / "logdir")
    flags = ["--steps", "200", "--slow_workers", "0.1", "--logdir", logdir]
    frozen = r"Worker 1 is frozen: worker 0 has reported no round for \d+ s\."
    with watching("Synchronous-SGD", *flags) as (process, address, _):
        found = browse(
            {"open": address},
            {
                "wait": f"{coloured(1, 1)} > 0.2 && {coloured(1, 1, 'hatch')} < 0.08",
                "seconds": 180,  # the tasks start
            },
            {"click": "#acts-2 [data-do=freeze]"},
            {"wait": f"{coloured(1, 1)} < 0.01 && {coloured(1, 1, 'hatch')} > 0.08"},
            {"wait": f"/^{frozen}$/.test($('say').textContent)"},
            {"click": "#acts-2 [data-do=freeze]"},
            {"wait": f"{coloured(1, 1)} > 0.2"},
            {"wait": "end !== null", "seconds": 120},
            {"sleep": 1},
            {"name": "now", "evaluate": "nows[nows.length - 1]"},
            {"name": "accuracy", "evaluate": "$('accuracy').textContent"},
            {"name": "stretched", "evaluate": STRETCHED},
        )
    result = json.loads((Path(logdir) / "result.json").read_text())
    assert found["accuracy"] == f"{result['test_accuracy']:.4f}"
    now = found["now"]
    assert now["step"] == result["global_steps"] == 200
    rounds = {str(k): now["tasks"][f"worker {k}"]["rounds"] for k in (0, 1)}
    assert rounds == result["rounds_per_worker"]
    assert now["dropped"] == result["gradients_dropped"]
    # The page has the same function as the numbers.
    assert found["stretched"] == [pytest.approx(places) for *_, places in LENGTHS]


STRETCHED = json.dumps([[s.parts, s.length, n] for s, n, _ in LENGTHS]) + (
    ".map(([p, len, n]) => [0, 10, 40].map(stretched({p, len}, n, 'a')))"
)


@pytest.mark.long
def test_the_numbers_of_a_page_are_the_counters_of_the_run(tmp_path: Path) -> None:
    """HogWild without a browser: updates, rounds, staleness; a recording of it."""
    kept, logdir = tmp_path / "kept.jsonl", tmp_path / "logdir"
    flags = ["--steps", "900", "--logdir", str(logdir), "--record", str(kept)]
    with watching("HogWild", *flags) as (process, _, lines):
        until(lambda: any("test accuracy" in line for line in lines), 100)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    result = json.loads((logdir / "result.json").read_text())
    events = [json.loads(line) for line in kept.read_text().splitlines()]
    now = [event for event in events if event["k"] == "now"][-1]
    assert now["updates"] == now["step"] == result["global_steps"]
    assert now["stale"]["mean"] == pytest.approx(result["mean_staleness"], abs=1e-3)
    assert now["stale"]["max"] == result["max_staleness"]
    rounds = {str(k): now["tasks"][f"worker {k}"]["rounds"] for k in (0, 1)}
    assert rounds == result["rounds_per_worker"]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.long
def test_a_mistake_of_the_example_ends_the_watch(tmp_path: Path) -> None:
    with watching("AGN", "--window", "0") as (process, _, lines):
        assert process.wait(60) == 2
    assert any("--window" in line for line in lines)
