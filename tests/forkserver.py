"""Tasks that begin with TensorFlow imported: forks of one process that has done that.

The import takes seconds, and a test run starts hundreds of tasks. After the import, and
before its first call, TensorFlow has no threads: a fork is as good as a new process.
A test sees the same of both: a child of its own with this command line, environment,
output and exit status. test_forkserver.py compares the two.

A task that waits IMPORT_SECONDS first is as late as one that imports, and needs no CPU.

As a program it is the server; `Forked` is what a test uses in place of Popen.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import json
import os
import pathlib
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable

REPO = pathlib.Path(__file__).resolve().parents[1]
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
SHOWN = 4096  # bytes that `ps` can show of a fork's command line
HEADER = re.compile(r"^(?:export )?(\w+)=(\$\{\1:-(.*?)\}|(.*))$", re.MULTILINE)
SAME = "# --- identical in every example below this line ---"  # in run.sh
LAUNCHERS = "launch.py", "launcher.py"
POPEN = subprocess.Popen


def can_fork(command: list[str], env: dict[str, str]) -> bool:
    """Says whether a command is that of an example, by this Python, on Linux."""
    # Python reads them when it starts; a fork does not start.
    names = {name for name in {**env, **os.environ} if name.startswith("PYTHON")}
    changed = any(env.get(name) != os.environ.get(name) for name in names - {"PYTHON"})
    if sys.platform != "linux" or changed or env["PYTHON"] != sys.executable:
        return False
    if command[0] == "bash" and os.path.basename(command[1]) == "run.sh":
        chosen = command[2:] and command[2].endswith(".py")  # what no HEADER has
        return not chosen and SAME in pathlib.Path(command[1]).read_text()
    return command[0] == sys.executable and command[1].endswith(".py")


class _Forked(POPEN):
    """A Popen whose process is made by `fork(command, cwd, env, session, three)`.

    `three` are the descriptors that become its standard input, output and error.
    """

    def _execute_child(self, *given: object) -> None:
        # subprocess has no public way to start a process in another way than by exec.
        mine = inspect.signature(POPEN._execute_child).bind(self, *given)
        of = mine.arguments
        pipes = of["p2cread"], of["c2pwrite"], of["errwrite"]
        three = [i if fd == -1 else fd for i, fd in enumerate(pipes)]
        env = dict(os.environ if of["env"] is None else of["env"])
        cwd = str(of["cwd"] or os.getcwd())
        session = of["start_new_session"]
        self.pid = self.fork([*map(str, of["args"])], cwd, env, session, three)
        self._child_created = True
        self._close_pipe_fds(
            *(of[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite")),
            *(of[name] for name in ("errread", "errwrite")),
        )

    @staticmethod
    def fork(command, cwd, env, session, three) -> int:
        """Makes the process; returns its number."""
        raise NotImplementedError


# --- In the test's process --------------------------------------------------------

_lock = threading.Lock()


class Forked(_Forked):
    """A process that runs `bash run.sh` or a script of an example, made by the server.

    It becomes a child of this process: the server's child in between ends at once, and
    Linux gives an orphan to the nearest ancestor that has asked for orphans.
    """

    @staticmethod
    def fork(command, cwd, env, session, three) -> int:
        with _lock:
            server = start_server()
            text = json.dumps([command, cwd, env, session]).encode()
            socket.send_fds(server, [len(text).to_bytes(4, "big")], three)
            server.sendall(text)
            return int.from_bytes(server.recv(4), "big")


@functools.cache
def start_server() -> socket.socket:
    """Starts this process's server; returns the connection, whose end ends it.

    The first Forked calls it; whoever calls it before decides about its stderr, on
    which TensorFlow says what it finds when it is imported.
    """
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    ours, theirs = socket.socketpair()
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.Popen(
        [sys.executable, "-B", __file__, str(theirs.fileno()), "." * SHOWN],
        pass_fds=[theirs.fileno()],
        env=env,
        start_new_session=True,
    )
    theirs.close()
    return ours


# --- In the server ----------------------------------------------------------------


def become(command: list[str], cwd: str, env: dict[str, str], three: list[int]):
    """Makes this process what a new one that runs `command` would be, to its end.

    It is the command of a script, or `bash run.sh` and its arguments.
    """
    status = 1
    try:
        for i, fd in enumerate([os.dup(fd) for fd in three]):
            os.dup2(fd, i)
        os.closerange(3, 1024)
        os.chdir(cwd)
        if command[0] == "bash":
            command = _of_run_sh(command[1:], env)
        os.environ.clear()
        os.environ.update(env)
        # As Python begins, whatever the server has inherited.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        _show(command)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        sys.stdout.reconfigure(write_through=bool(env.get("PYTHONUNBUFFERED")))
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        _, script, *arguments = command
        sys.orig_argv, sys.argv = command, [script, *arguments]
        sys.path[0] = os.path.dirname(script)
        if script.endswith(LAUNCHERS):
            subprocess.Popen = _Task
        else:
            time.sleep(float(env.get("IMPORT_SECONDS", 0)))
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _of_run_sh(command: list[str], env: dict[str, str]) -> list[str]:
    """Returns the command that a run.sh executes, and sets what it exports."""
    script, *arguments = command
    folder = pathlib.Path(script).resolve().parent
    head = pathlib.Path(script).read_text().partition(SAME)[0]
    for name, _, default, value in HEADER.findall(head):
        env[name] = value.partition(" #")[0] or env.get(name) or default
    launcher = folder / env.pop("LAUNCH", "launch.py")
    return [sys.executable, str(launcher), *arguments]


def _show(command: list[str]) -> None:
    """Has `ps` show this command line for this process."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    text = b"\0".join(word.encode() for word in command)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


class _Task(_Forked):
    """In a launcher: a task's process. What is no task is a Popen as ever."""

    def _execute_child(self, *given: object) -> None:
        command = given[0]
        if command[0] == sys.executable and "--logdir" in command:
            super()._execute_child(*given)
        else:
            POPEN._execute_child(self, *given)

    @staticmethod
    def fork(command, cwd, env, session, three) -> int:
        pid = os.fork()
        if not pid:
            if session:
                os.setsid()
            become(command, cwd, env, three)
        return pid


def _orphan(act: Callable[[], None]) -> int:
    """Calls `act()` in a process whose parent is the subreaper; returns its number."""
    reader, writer = os.pipe()
    between = os.fork()
    if not between:
        me = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(reader)
            while os.getppid() == me:
                time.sleep(0.001)
            os.write(writer, b".")
            act()
        os.write(writer, pid.to_bytes(4, "big"))
        os._exit(0)
    os.waitpid(between, 0)
    os.close(writer)
    found = b""
    while len(found) < 5:
        found += os.read(reader, 5)
    os.close(reader)
    return int.from_bytes(found[:4], "big")


def serve(connection: socket.socket) -> None:
    """Imports TensorFlow; then makes a process for each request that comes."""
    sys.path.insert(0, str(REPO / "Distributed-Setup"))
    from cluster import tensorflow_v1 as tf

    assert tf.Session  # this imports TensorFlow
    import sklearn.datasets  # noqa: F401

    # Each example brings its own.
    for name in [n for n in sys.modules if n.partition(".")[0] == "cluster"]:
        del sys.modules[name]
    while True:
        head, three, *_ = socket.recv_fds(connection, 4, 3)
        if not head:
            return
        size, text = int.from_bytes(head, "big"), b""
        while len(text) < size:
            text += connection.recv(size - len(text))
        command, cwd, env, session = json.loads(text)

        def act(command=command, cwd=cwd, env=env, session=session, three=three):
            if session:
                os.setsid()
            become(command, cwd, env, three)

        pid = _orphan(act)
        for fd in three:
            os.close(fd)
        connection.sendall(pid.to_bytes(4, "big"))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
