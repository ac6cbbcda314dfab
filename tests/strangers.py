"""Strangers: what a run does when it meets somebody, or a file, that is not of it.

    python tests/strangers.py                         all of them
    python tests/strangers.py --only scan,HogWild     some
    python tests/strangers.py --write benchmarks/results/strangers.md

Those who come to a port meet HogWild (one ps, two workers) and Ring-All-Reduce (two
workers) in mid-run. The files are met at the start. Each case says what the run must
do; the table says what it did. Cases with another user take root.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

import launch
import numpy as np
from launch import ByHand, WorkersByHand, copy_of, registry

launch.reference()
from cluster.ports import GREETING  # noqa: E402

FOLDERS = {"HogWild": "AGN", "Ring-All-Reduce": "Local-SGD"}  # and another project
TIMEOUT, CONNECTIONS, OTHER = 400, 3000, 65534
STEPS = ["--steps", "1000", "--slow_workers", "0.01", "--save_seconds", "2"]
# What a task says when something is not as it should be.
TROUBLE = re.compile(
    r"lost (a ps|the chief)|cannot (reach|save)|is gone|has not joined|"
    r"no (answer|round|heartbeat)|not written|still waiting|Traceback|: "
)
USUAL = re.compile(
    r"variable +elements|.*/(job|task):|this process|result: |curves: |step +\d|"
    r"still loading|no GPU|.* serves at |test \w+ [\d.]+ after|try it: |exported: |"
    r"run.sh: (checks|no network)|prepared "
)
Found = collections.namedtuple("Found", "statuses said wrong lines")


def said_by(lines: list[str]) -> list[str]:
    """Returns the lines that a run does not print when nothing happens."""
    found = []
    for line in lines:
        text = re.sub(r"^\[\w+ \d+\] ", "", line)
        if TROUBLE.search(text) and not USUAL.match(text) and text not in found:
            found.append(text)
    return found


# --- Who comes to a port ----------------------------------------------------------


class Live:
    """A run whose tasks listen on open ports of this machine, and who meets it."""

    def __init__(self, folder: str, where: pathlib.Path, *flags: str) -> None:
        self.folder, self.where, self.logdir = folder, where, where / "logdir"
        self.stack = contextlib.ExitStack()
        of = ByHand if folder in registry.folders("ps") else WorkersByHand
        flags = (*STEPS, *flags, "--logdir", str(self.logdir))
        self.run = self.stack.enter_context(of(copy_of(folder, where), *flags))
        self.addresses = [*self.run.ps, *self.run.workers]
        self.tasks: dict[str, launch.Launch] = {}
        self.before: dict[str, int] = {}  # lines of a task before somebody comes
        self.files = None  # how many files a task may have open: now, and at most

    def start(self, *names: str) -> None:
        """Starts tasks: `ps 0`, `worker 1`."""
        for name in names:
            job, _, index = name.partition(" ")
            words = [job, int(index)] if self.run.ps else [int(index)]
            self.tasks[name] = task = self.run.start(*words)
            if self.files:  # before it has begun
                limit = resource.RLIMIT_NOFILE
                resource.prlimit(task.process.pid, limit, self.files)

    def all_names(self) -> list[str]:
        """Returns the tasks of the run, the one that serves first."""
        return [*(["ps 0"] if self.run.ps else []), "worker 0", "worker 1"]

    def begin(self) -> None:
        """Starts every task, and returns when both workers train."""
        self.start(*self.all_names())
        for worker in ("worker 0", "worker 1"):
            self.tasks[worker].wait_for("  loss ", 200)
        # What a slow machine made them say while they started says nothing here.
        self.before = {name: len(task.lines) for name, task in self.tasks.items()}

    def connect(self, address: str, timeout: float = 5) -> socket.socket:
        """Returns a connection that stays open until the run is over."""
        host, _, port = address.rpartition(":")
        one = socket.create_connection((host, int(port)), timeout)
        return self.stack.enter_context(one)

    def end(self) -> Found:
        """Waits for the end of all tasks; returns what became of them."""
        statuses, until = {}, time.monotonic() + TIMEOUT
        for name, task in self.tasks.items():
            try:
                statuses[name] = task.wait(max(1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                statuses[name] = None
        lines = [
            f"[{name}] {line}"
            for name, task in self.tasks.items()
            for line in task.lines[self.before.get(name, 0) :]
        ]
        wrong = []
        if statuses["worker 0"] == 0:
            wrong = launch.wrong_stats(launch.result_if_there(self.logdir))
        return Found(statuses, said_by(lines), wrong, lines)


def port_scan(live: Live) -> None:
    """connect and close, each port, a thousand times"""
    for _ in range(1000):
        for address in live.addresses:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 10).close()


def garbage(live: Live) -> None:
    """random bytes, a web request and a TLS greeting, 50 times at each port"""
    draw = random.Random(0)
    for _ in range(50):
        for text in (
            draw.randbytes(20000),
            GREETING + draw.randbytes(20000),
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(506),
        ):
            for address in live.addresses:
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port)), 10) as one:
                    one.settimeout(0.05)
                    with contextlib.suppress(OSError):
                        one.sendall(text)
                        one.recv(100)


def half_open(live: Live) -> None:
    """half of the HTTP/2 preface and then silence, 100 connections to each port"""
    for address in live.addresses * 100:
        live.connect(address).sendall(GREETING[:12])


def idle(live: Live) -> None:
    """3,000 connections that say nothing, to ps 0 or the chief"""
    for _ in range(CONNECTIONS):
        live.connect(live.addresses[0])


def idle_soft(live: Live) -> None:
    """the same to a task that may have 1,024 files open until it asks for more"""
    idle(live)


def idle_hard(live: Live) -> None:
    """the same to a task that may never have more than 1,024 files open"""
    for _ in range(CONNECTIONS):
        try:
            live.connect(live.addresses[0], 0.5)
        except OSError:
            break


def grpc_client(live: Live) -> None:
    """a gRPC client that calls a service that is not there, 100 times at each port"""
    path, kind = b"/somebody.Else/Call", b"application/grpc"
    block = b"\x83\x86\x44" + bytes([len(path)]) + path  # POST, http, path
    block += b"\x41\x01a\x5f" + bytes([len(kind)]) + kind  # authority, content type
    block += b"\x40\x02te\x08trailers"
    frame = struct.pack(">I", len(block))[1:] + b"\x01\x04" + struct.pack(">I", 1)
    body = b"\0\0\5\0\1" + struct.pack(">I", 1) + b"\0\0\0\0\0"
    for address in live.addresses * 100:
        with contextlib.closing(live.connect(address)) as one:
            one.sendall(GREETING + frame + block + body)
            if not one.recv(100):
                raise AssertionError("no answer")


SESSION = """
import sys
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
name, target = sys.argv[1:3]
with tf.device("/task:0"):
    v = tf.get_variable(name, [], tf.int64, tf.zeros_initializer())
    add = v.assign_add(1)
session = tf.Session(target)
session.run(v.initializer)
for _ in range(int(sys.argv[3])):
    session.run(add)
print("done")
"""


def _session(live: Live, name: str, times: int) -> None:
    target = f"grpc://{live.addresses[0]}"
    done = subprocess.run(
        [sys.executable, "-c", SESSION, name, target, str(times)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    if done.stdout.strip() != "done":
        raise AssertionError(done.stderr[-500:])


def session(live: Live) -> None:
    """a TensorFlow session of another program, with variables of its own, at ps 0 or
    the chief"""
    _session(live, "somebody", 200)


def session_same_name(live: Live) -> None:
    """the same, with a variable that is called `global_step`, which it sets to 0"""
    _session(live, "global_step", 0)


def long_enough(act) -> list[str]:
    """Returns flags of a run that lasts as long as who comes to it."""
    return ["--steps", "6000"] if act in (session, session_same_name) else []


def other_task(folder: str, where: pathlib.Path) -> Found:
    """a worker of another scheme in the place of worker 1, before that comes"""
    live = Live(folder, where)
    with live.stack:
        live.start(*live.all_names()[:-1])
        live.run.copy, ours = copy_of(FOLDERS[folder], where), live.run.copy
        live.start("worker 1")
        foreign = live.tasks.pop("worker 1")
        status = foreign.wait(200)
        live.run.copy = ours
        live.start("worker 1")
        found = live.end()
    wrong = found.wrong if status == 2 else [*found.wrong, f"it ended with {status}"]
    said = [f"to it: {line}" for line in foreign.lines[-1:]]
    left = [line for line in found.said if "still waiting" not in line]
    lines = found.lines + foreign.lines
    return Found(found.statuses, [*said, *left], wrong, lines)


def other_program(folder: str, where: pathlib.Path) -> Found:
    """a web server at the port of ps 0 or the chief, and the workers of a run"""
    live = Live(folder, where, "--patience", "3")
    with live.stack:
        port = live.addresses[0].rpartition(":")[2]
        server = subprocess.Popen(
            [sys.executable, "-m", "http.server", port],
            cwd=where,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        live.stack.callback(server.wait)
        live.stack.callback(server.kill)
        time.sleep(5)
        live.start(*live.all_names())
        return live.end()


def at_a_port(act, folder: str, where: pathlib.Path) -> Found:
    """Makes a run that somebody comes to when it trains."""
    live = Live(folder, where, *long_enough(act))
    if act in (idle_soft, idle_hard):
        live.files = 1024, (1024 if act is idle_hard else 2 * CONNECTIONS)
    with live.stack:
        live.begin()
        act(live)
        if all(task.process.poll() is not None for task in live.tasks.values()):
            raise AssertionError("the run was over before: nothing is shown")
        found = live.end()
    if ROWS[act] == ANYTHING:  # it is said in the table what became of it
        found = found._replace(said=found.said + found.wrong, wrong=[])
    return found


# --- Files ------------------------------------------------------------------------


def started(
    folder: str,
    where: pathlib.Path,
    *flags: str,
    ordinary: bool = False,
    steps: int = 40,
    logdir: pathlib.Path | None = None,
) -> Found:
    """Makes a run with run.sh; `ordinary` is without what root may do to any file."""
    logdir = logdir or where / "logdir"
    copy = where / "a copy" / folder
    if not copy.exists():
        copy_of(folder, where)
    command = ["bash", str(copy / "run.sh"), "--steps", str(steps), *flags]
    if ordinary:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    settings = dict(LOGDIR=str(logdir), TIMEOUT="200")
    with launch.Launch(command, copy, where=where, **settings) as run:
        status = run.wait(TIMEOUT)
        lines = list(run.lines)
    wrong = launch.wrong_stats(launch.result_if_there(logdir)) if not status else []
    return Found({"run.sh": status}, said_by(lines), wrong, lines)


def trained(folder: str, where: pathlib.Path, *names: str) -> pathlib.Path:
    """Returns the LOGDIR of a run that has ended; `names` in it are another user's."""
    found = started(folder, where)
    if found.statuses["run.sh"]:
        raise AssertionError("\n".join(found.lines))
    logdir = where / "logdir"
    logdir.chmod(0o777)
    for name in names:
        for path in [logdir] if name == "." else logdir.glob(name):
            os.chown(path, OTHER, OTHER)
    return logdir


def foreign_directory(folder: str, where: pathlib.Path) -> Found:
    """LOGDIR is another user's, and not writable"""
    trained(folder, where, ".").chmod(0o755)
    return started(folder, where, ordinary=True, steps=80)


def foreign_log(folder: str, where: pathlib.Path) -> Found:
    """the log of a worker is another user's, and not writable"""
    trained(folder, where, "worker-1.log")
    return started(folder, where, ordinary=True, steps=80)


def foreign_list(folder: str, where: pathlib.Path) -> Found:
    """the file `checkpoint` is another user's, and not readable"""
    (trained(folder, where, "checkpoint") / "checkpoint").chmod(0o600)
    return started(folder, where, ordinary=True, steps=80)


def foreign_checkpoint(folder: str, where: pathlib.Path) -> Found:
    """the files of the last checkpoint are another user's, and not readable"""
    for path in trained(folder, where, "model.ckpt*").glob("model.ckpt*"):
        path.chmod(0o600)
    return started(folder, where, ordinary=True, steps=80)


def sticky_directory(folder: str, where: pathlib.Path) -> Found:
    """what a run left is another user's, and cannot be replaced (as in /tmp)"""
    logdir = trained(folder, where, ".", "model.ckpt*", "checkpoint", "*.json")
    logdir.chmod(0o1777)
    return started(folder, where, ordinary=True, steps=80)


def linked_log(folder: str, where: pathlib.Path) -> Found:
    """the log of a worker is a symbolic link to a file outside LOGDIR"""
    (where / "logdir").mkdir()
    return _linked(folder, where, where / "logdir" / "worker-1.log")


def linked_result(folder: str, where: pathlib.Path) -> Found:
    """result.json.part, which becomes the result, is such a link"""
    (where / "logdir").mkdir()
    return _linked(folder, where, where / "logdir" / "result.json.part")


def linked_checkpoint(folder: str, where: pathlib.Path) -> Found:
    """result.json and `checkpoint` are such links"""
    (where / "logdir").mkdir()
    (where / "logdir" / "checkpoint").symlink_to(where / "absent")
    found = _linked(folder, where, where / "logdir" / "result.json")
    made = ["a file was made outside"] if (where / "absent").exists() else []
    return found._replace(wrong=found.wrong + made)


def _linked(folder: str, where: pathlib.Path, link: pathlib.Path) -> Found:
    precious = where / "precious"
    precious.write_text("")
    link.symlink_to(precious)
    found = started(folder, where)
    changed = ["the file outside was written"] if precious.read_text() else []
    return found._replace(wrong=found.wrong + changed)


def linked_directory(folder: str, where: pathlib.Path) -> Found:
    """LOGDIR itself is a symbolic link to a directory"""
    (where / "elsewhere").mkdir()
    (where / "logdir").symlink_to(where / "elsewhere")
    return started(folder, where)


def pickled(folder: str, where: pathlib.Path) -> Found:
    """`--data` is a .npz whose arrays are pickled objects, which run code when read"""
    ran = where / "ran"

    class Code:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    bad = np.empty(50, object)
    bad[:] = [Code() for _ in range(50)]
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(where / "bad.npz", **dict.fromkeys(names, bad))
    found = started(folder, where, "--data", str(where / "bad.npz"))
    return found._replace(
        wrong=found.wrong + (["its code ran"] if ran.exists() else [])
    )


def _crc(data: bytes) -> int:
    """Returns the masked CRC-32C of TFRecord's format."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


MNIST = "Distributed-MNIST"


def _records(where: pathlib.Path, length: int, index: bool) -> pathlib.Path:
    """Returns records one of which claims another length, its own checksum right."""
    folder = where / "records"
    prepare = copy_of(MNIST, where) / "prepare.py"
    subprocess.run(
        [sys.executable, str(prepare), "digits", str(folder)],
        check=True,
        capture_output=True,
        timeout=200,
    )
    said = json.loads((folder / "index.json").read_text())
    for entry in said["splits"]["train"]:
        path = folder / entry["file"]
        raw = bytearray(path.read_bytes())
        raw[:8] = struct.pack("<Q", length)
        raw[8:12] = struct.pack("<I", _crc(bytes(raw[:8])))
        path.write_bytes(raw)
        if index:
            entry["sha256"] = hashlib.sha256(raw).hexdigest()
    (folder / "index.json").write_text(json.dumps(said))
    return folder


def long_record(folder: str, where: pathlib.Path) -> Found:
    """the first TFRecord of a file claims a terabyte"""
    return started(folder, where, "--data", str(_records(where, 1 << 40, False)))


def long_record_index(folder: str, where: pathlib.Path) -> Found:
    """the same, and index.json has the checksum of the changed file"""
    return started(folder, where, "--data", str(_records(where, 1 << 40, True)))


def short_record_index(folder: str, where: pathlib.Path) -> Found:
    """the first TFRecord claims 10 bytes, and index.json has that checksum"""
    return started(folder, where, "--data", str(_records(where, 10, True)))


def export_exists(folder: str, where: pathlib.Path) -> Found:
    """the folder to which `--export` would write a SavedModel exists"""
    for step in range(0, 41):
        (where / "served" / str(step)).mkdir(parents=True)
    return started(folder, where, "--export", str(where / "served"))


# --- The table --------------------------------------------------------------------

# What a run must do: its statuses, and words of what it must say.
UNAFFECTED, ANYTHING = (0, ""), (None, "")
ROWS = {
    port_scan: UNAFFECTED,
    garbage: UNAFFECTED,
    half_open: UNAFFECTED,
    idle: UNAFFECTED,
    idle_soft: UNAFFECTED,
    idle_hard: ANYTHING,
    grpc_client: UNAFFECTED,
    session: UNAFFECTED,
    session_same_name: ANYTHING,
    other_task: (0, "this task is not of the run that"),
    other_program: (None, "nothing answers at"),
    foreign_directory: (2, "is not a directory to write in"),
    foreign_log: (2, "Permission denied"),
    foreign_list: (1, "cannot resume from"),
    foreign_checkpoint: (1, "cannot resume from"),
    sticky_directory: (138, "cannot save: "),
    linked_log: (2, "worker-1.log"),
    linked_result: (138, "the result is not written"),
    linked_checkpoint: UNAFFECTED,
    linked_directory: UNAFFECTED,
    pickled: (2, "not a readable .npz file"),
    long_record: (2, "another checksum than in index.json"),
    long_record_index: (2, "ends outside the file"),
    short_record_index: (2, "ends outside the file"),
    export_exists: (2, "exists; it stays as it is"),
}
AT_A_PORT = {port_scan, garbage, half_open, idle, idle_soft, idle_hard, grpc_client}
AT_A_PORT |= {session, session_same_name}
IN_MNIST = {long_record, long_record_index, short_record_index, export_exists}


def cases() -> list[tuple]:
    """Returns (what happens, folder) for each run."""
    return [
        (row, folder)
        for row in ROWS
        for folder in ([MNIST] if row in IN_MNIST else FOLDERS)
    ]


def verdict(row, found: Found) -> list[str]:
    """Returns what is wrong with what became of a run."""
    status, words = ROWS[row]
    wrong, statuses = list(found.wrong), found.statuses
    if any("Traceback" in line for line in found.lines):
        wrong.append("a traceback")
    if None in statuses.values():
        wrong.append(f"no end in {TIMEOUT} s")
    if status is not None and set(statuses.values()) != {status}:
        wrong.append(f"statuses {statuses}")
    if words and not any(words in line for line in found.lines):
        wrong.append(f"nobody said {words!r}")
    if (status, words) == UNAFFECTED and found.said:
        wrong.append("it said something")
    return wrong


def tried(case: tuple) -> tuple[tuple, Found, list[str]]:
    """Makes a run; returns it with what is wrong in it."""
    row, folder = case
    with tempfile.TemporaryDirectory(prefix="met-") as name:
        where = pathlib.Path(name)
        where.chmod(0o755)
        try:
            if row in AT_A_PORT:
                found = at_a_port(row, folder, where)
            else:
                found = row(folder, where)
            said = [line.replace(name, "DIR") for line in found.said]
            found = found._replace(said=said)
            return case, found, verdict(row, found)
        except Exception as error:
            found = Found({}, [], [], str(error).splitlines())
            return case, found, [f"{type(error).__name__}: {error}"[:300]]


def got(found: Found, wrong: list[str]) -> str:
    """Returns a cell of the table: what became of a run."""
    statuses = set(found.statuses.values())
    text = "unaffected" if statuses == {0} and not found.said else ""
    if not text:
        each = ", ".join(f"{n}: {s}" for n, s in found.statuses.items())
        same = f"status {next(iter(statuses), '?')}"
        text = same if len(statuses) < 2 else f"statuses {each}"
        text += "".join(f"; `{line[:240]}`" for line in found.said[:3])
    text += f" **{'; '.join(wrong)}**" if wrong else ""
    return text.replace("|", "\\|").replace("\n", " ")


def commit() -> str:
    """Returns the commit of this tree, with a word if files were changed since."""
    command = ["git", "-C", str(launch.REPO), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def table(done: dict) -> str:
    """Returns the runs as Markdown, a row a case."""
    rows = ["| what the run meets | scheme | what becomes of it |", "|---|---|---|"]
    for (row, folder), (found, wrong) in done.items():
        what = " ".join(row.__doc__.split())
        rows.append(f"| {what} | {folder} | {got(found, wrong)} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Makes the runs, prints the table; status 1 if one did not as it must."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="words of cases, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--write", type=pathlib.Path, help="where the table goes")
    args = parser.parse_args()
    if os.geteuid() or not shutil.which("setpriv"):
        parser.error("runs of another user take root and setpriv")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        parser.error(f"{CONNECTIONS} connections take ulimit -n {2 * CONNECTIONS}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    words = [word for word in args.only.split(",") if word]
    chosen = [c for c in cases() if all(w in (c[0].__name__, c[1]) for w in words)]
    head = (
        f"`.venv/bin/python tests/strangers.py`, 2 cores, {datetime.date.today()}, "
        f"commit {commit()}.\n\n"
    )
    done = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case, found, wrong in pool.map(tried, chosen):
            done[case] = found, wrong
            print(
                f"{len(done)}/{len(chosen)} {case[0].__name__} {case[1]}: "
                f"{'; '.join(wrong) or 'holds'}, {found.statuses} {found.said[:3]}",
                flush=True,
            )
            if wrong:
                print("  " + "\n  ".join(found.lines[-25:]), flush=True)
            if args.write:  # also if somebody ends this before its end
                args.write.write_text(head + table(done))
    print(table(done))
    return int(any(wrong for _, wrong in done.values()))


if __name__ == "__main__":
    sys.exit(main())
