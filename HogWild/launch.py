"""A cluster manager does this for you: starts the tasks of a run, and ends them.

run.sh calls it, on one machine; nobody takes either to a cluster. From the environment:
SCRIPT, NUM_PS, NUM_WORKERS, PEERS (yes: the scheme has no ps), BASE_PORT, OPEN_PORTS,
LOGDIR, TIMEOUT (seconds, status 124), MAX_RESTARTS (of a task that dies), DRY_RUN (not
empty: only print the commands).

The first task that fails ends the run with its status, unless MAX_RESTARTS allows
another start; a task that ended with 1, 2 or 132 would fail again. Whatever ends the
run ends every task: also Ctrl-C, and a reader of the screen that is gone.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import random
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from cluster import addresses, flags
from cluster.task import LAUNCHER

HERE = os.path.dirname(os.path.abspath(__file__))  # the folder of the example
OPEN = "no network of its own here: anyone who reaches this machine reaches the run"
NEEDED = ("tensorflow", "numpy", "sklearn")
INSTALL = 'pip install "tensorflow==2.21.*" numpy scikit-learn'
STOPPED = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "TERM"}
OURS = ("--job_name", "--task_index", "--ps_hosts", "--worker_hosts")
PATIENCE = 5  # seconds in which a screen takes something, if it ever does
LAST = 10  # seconds that a slow one may take for the last lines
WHY = {
    132: "killed by signal 4: this processor lacks an instruction, perhaps AVX, that "
    "TensorFlow was built with; ",
    137: "killed by signal 9, perhaps for want of memory; ",
}
# glibc keeps freed memory: the next message of 100 MB finds its pages again.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
DRAWN = range(15000, 32000)  # ports below those that the system picks for connections
NEWUSER, NEWNET = 0x10000000, 0x40000000  # linux/sched.h: namespaces of one's own


class End(Exception):
    """The end of a run, by a signal or by a failure: (status, sentence)."""


def number(name, default, least):
    """Returns a whole number from the environment."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not least <= int(text) < 10**9:
        raise End(2, f"{name}={text} is not a whole number of at least {least}")
    return int(text)


# --- The screen and the signals ---------------------------------------------------


class Screen:
    """Standard output: no run waits long for it, or ends with its errors.

    It may be a pipe that nobody reads, a disk that is full, or closed. What cannot be
    shown goes to `log`, LOGDIR/screen.log.
    """

    def __init__(self):
        self.lock, self.log, self.missed, self.kept = threading.Lock(), None, 0, []
        self.patience = self.wait = PATIENCE

    def write(self, line):
        """Shows a line, bytes: in one piece, whichever thread has it."""
        with self.lock:
            left = self.put(1, line, self.wait)
            # Only the first line waits for a screen that takes nothing.
            self.wait = 0 if left else self.patience
            if left:
                self.missed += 1
                self.kept.append(line)
            if self.log and self.kept:
                with contextlib.suppress(OSError):
                    with open(self.log, "ab", 0) as file:
                        file.write(b"".join(self.kept))
                    self.kept.clear()

    @staticmethod
    def put(descriptor, data, wait=PATIENCE):
        """Writes to a descriptor; returns what it did not take of the data."""
        try:
            # Where there is room for anything, so few bytes do not wait.
            while data and select.select([], [descriptor], [], wait)[1]:
                data = data[os.write(descriptor, data[:512]) :]
        except BrokenPipeError:
            return b""  # nobody is to see it: SIGPIPE has come with this error
        except OSError:
            pass
        return data


screen = Screen()
write = screen.write


def say(sentence):
    """Says something in the name of run.sh, by which people have started this."""
    write(f"run.sh: {sentence}\n".encode(errors="surrogateescape"))


def complain(sentence):
    """Says on stderr, in the name of run.sh, what is wrong."""
    screen.put(2, f"run.sh: {sentence}\n".encode(errors="surrogateescape"))


told = []  # the signals that have told this process to end


def pause(seconds=0):
    """Sleeps; raises End if a signal has told this process to end.

    A handler that raised would leave a process behind that is just being started.
    """
    time.sleep(seconds)
    if told:
        raise End(128 + told[0], STOPPED.get(told[0]))


# --- The run ----------------------------------------------------------------------


class Task:
    """One task: its process, and the thread that labels its lines."""

    def __init__(self, job, index=0, label="[{}] "):
        self.job, self.index, self.restarts = job, index, 0
        self.label = label.format(self).encode()
        self.process = self.reader = None

    def __str__(self):
        return f"{self.job} {self.index}"

    def start(self, command, environment, **how):
        """Starts the process; `how` is for Popen."""
        how = {"stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **how}
        own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        self.process = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, **how)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            write(self.label + line.rstrip(b"\n") + b"\n")

    def run(self, command, environment):
        """Runs a program to its end, with stderr as it is; returns its status."""
        # Of Ctrl-C in a terminal it hears nothing: it is killed.
        self.start(command, environment, stderr=None, start_new_session=True)
        try:
            while self.runs():
                pause(0.01)
        finally:
            self.process.kill()
            self.reader.join(LAST)
        return self.status()

    def runs(self):
        """Says whether the task's process is there."""
        return self.process is not None and self.process.poll() is None

    def status(self):
        """Returns the exit status as a shell has it: 128 + n for signal n."""
        code = self.process.returncode
        return 128 - code if code < 0 else code


class Launcher:
    """All tasks of one run. A folder with a launcher of its own overrides methods."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.script = os.path.join(HERE, os.environ["SCRIPT"])
        self.ps, self.workers = number("NUM_PS", 1, 0), number("NUM_WORKERS", 2, 1)
        self.timeout = number("TIMEOUT", 3600, 1)
        self.max_restarts = number("MAX_RESTARTS", 0, 0)
        self.base = number("BASE_PORT", 0, 1) if os.environ.get("BASE_PORT") else None
        peers = os.environ.get("PEERS") == "yes"  # not another program's
        self.alone = not self.ps and not peers  # one process, no cluster
        if self.ps and peers:
            raise End(2, f"NUM_PS={self.ps}: in this scheme the workers have no ps")
        if self.alone and self.workers > 1:
            raise End(2, f"NUM_PS=0: {self.workers} workers have no ps to meet at")
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            how = f"{sys.executable} -m {INSTALL}; or name another Python: PYTHON=..."
            raise End(3, f"{sys.executable} has no {', '.join(missing)}: {how}")
        name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
        logdir = os.environ.get("LOGDIR") or os.path.join(HERE, "logdir", name)
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
            flag, given, value = argument.partition("=")
            if flag in OURS:
                text = "start the tasks by hand to choose (see README.md)"
                raise End(2, f"{argument}: run.sh sets it; {text}")
            if flag == "--logdir":
                logdir = value if given else following
        try:
            self.logdir = flags.directory(logdir)
        except ValueError as error:
            raise End(2, str(error)) from None
        each = [("ps", self.ps), ("worker", self.workers)]
        self.tasks = [Task(job, i) for job, count in each for i in range(count)]

    def what(self):
        """Returns what is started and where it writes, in words."""
        ps = f"{self.ps} ps and " if self.ps else ""
        found = f"{ps}{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{'one process' if self.alone else found}, logdir {self.logdir}"

    def command(self, task, hosts):
        """Returns the command that starts a task; `hosts` are the addresses of all."""
        role = []
        if not self.alone:
            role = ["--job_name", task.job, "--task_index", str(task.index)]
            for job, here in (("ps", hosts[: self.ps]), ("worker", hosts[self.ps :])):
                role += [f"--{job}_hosts", ",".join(here)] if here else []
        return [sys.executable, self.script, *role]

    def environment(self, task):
        """Returns what a task has in its environment beside all that this one has."""
        return {}

    def look(self):
        """Is called twenty times a second while the tasks run."""

    def after(self):
        """Is called when the run has ended well."""

    def print_commands(self):
        """Prints the commands that start the tasks by hand, on any machines."""
        hosts = [f"localhost:{(self.base or 2222) + i}" for i in range(len(self.tasks))]
        for task in self.tasks:
            line = shlex.join([*self.command(task, hosts), *self.arguments])
            write(f"{line}\n".encode(errors="surrogateescape"))

    def check(self):
        """Checks flags and data, in a process of its own, before anything starts."""
        # Without the model, so that nobody waits for TensorFlow, unless a user asks.
        asked = "--check" in self.arguments
        then = "" if asked else f", then starts {self.what()}"
        say(f"checks the flags and the data{then}")
        hosts = [f"localhost:{1 + i}" for i in range(len(self.tasks))]
        command = self.command(self.tasks[self.ps], hosts)
        command += ["--logdir", self.logdir, *self.arguments, "--check"]
        own = {} if asked else {LAUNCHER: f"{os.getpid()}"}
        status = Task("check", label="").run(command, own)
        if status or asked:
            raise End(status, WHY.get(status))

    def start(self, task):
        """Starts a task, for the first time or again."""
        own = {**MALLOC, "CUDA_VISIBLE_DEVICES": "", **os.environ}
        own |= {LAUNCHER: str(os.getpid()), **self.environment(task)}
        command = [*self.command(task, self.hosts), "--logdir", self.logdir]
        task.start([*command, *self.arguments], own)

    def run(self):
        """Starts all tasks; returns when the run has ended well, else raises End."""
        found = free_ports(0 if self.alone else len(self.tasks), self.base)
        self.hosts = [f"localhost:{port}" for port in found]
        if not self.alone and not carries():
            raise End(3, "localhost carries no connection here: is loopback on?")
        os.makedirs(self.logdir, exist_ok=True)
        screen.log = os.path.join(self.logdir, "screen.log")
        for task in self.tasks:
            self.start(task)
        # The chief is the last to leave: what still runs 10 s after it is ended, too.
        running, until, over = list(self.tasks), time.monotonic() + self.timeout, False
        while running and time.monotonic() < until:
            pause(0.05)
            self.look()
            for task in [task for task in running if not task.runs()]:
                if task.status() == 0:
                    running.remove(task)
                    if str(task) == "worker 0":
                        over, until = True, time.monotonic() + 10
                else:
                    self.restart(task)
        if not over:
            raise End(124, f"no end after TIMEOUT={self.timeout} s")
        self.after()

    def restart(self, task):
        """Starts a task that has failed again, or ends the run."""
        status = task.status()
        text = f"{task} ended with status {status}; "
        if status in (1, 2, 132) or task.restarts >= self.max_restarts:
            log = f"{task.job}-{task.index}.log in {self.logdir}"
            raise End(status, f"{text}{WHY.get(status, '')}see {log}")
        task.restarts += 1
        say(f"{text}restart {task.restarts} of {self.max_restarts}")
        self.start(task)

    def end(self):
        """Ends every task that still runs, the workers first: the chief saves."""
        for ps, seconds in ((False, 4), (True, 2)):
            mine = [task for task in self.tasks if (task.job == "ps") == ps]
            running = [task for task in mine if task.runs()]
            for task in running:
                task.process.terminate()
            until = time.monotonic() + seconds
            while time.monotonic() < until and any(task.runs() for task in running):
                time.sleep(0.02)
            for task in running:
                task.process.kill()
        # The last lines come before the reason; a slow screen's go to the log.
        readers = [task.reader for task in self.tasks if task.reader]
        for seconds in (LAST, PATIENCE + 1):
            until = time.monotonic() + seconds
            for reader in readers:
                reader.join(max(0, until - time.monotonic()))
            screen.patience = screen.wait = 0


# --- Its network ------------------------------------------------------------------


def free_ports(count, base=None):
    """Returns `count` free ports: from `base` on, or any.

    Raises End when one of those that were asked for is taken.
    """
    if base is None:
        drawn = random.sample(DRAWN, len(DRAWN))
        found = (port for port in drawn if addresses.is_free(port))
        return [next(found) for _ in range(count)]
    if not 0 < base <= 65536 - count:
        raise End(2, f"BASE_PORT={base} is not a port with {count - 1} more above it")
    for port in range(base, base + count):
        if not addresses.is_free(port):
            raise End(2, f"BASE_PORT={base}: port {port} is in use")
    return range(base, base + count)


def carries():
    """Says whether localhost carries a connection, as the tasks of one machine need."""
    with contextlib.suppress(OSError):
        with socket.create_server(("localhost", 0)) as server:
            return addresses.answers(f"localhost:{server.getsockname()[1]}")
    return False


def loopback_up():
    """Linux: switches the loopback interface on. Raises OSError if it cannot."""
    set_flags, up_and_running = 0x8914, 0x1 | 0x40  # linux/sockios.h, linux/if.h
    request = struct.pack("16sh14x", b"lo", up_and_running)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, request)


def leave_the_network():
    """Linux: moves this process, and all that it starts, to a network of its own.

    Anyone who can connect to a port of TensorFlow can run code as this user. Returns
    whether the system gives such a network to this user. Some give one in which nothing
    may be switched on, and there is no way back: a child, which goes, tries it first.
    """
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            _leave()
            os._exit(0 if carries() else 1)
        os._exit(1)
    with contextlib.suppress(OSError):  # the child's counts, and there may be no more
        if os.waitpid(child, 0)[1] == 0:
            _leave()
            return True
    return False


def _leave():
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(NEWNET | (NEWUSER if user else 0)):
        raise OSError("no network of its own")
    if user:  # it stays the user that it is
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    loopback_up()


# --- Start and end ----------------------------------------------------------------


def launch(launcher=Launcher):
    """Runs an example by its launcher; ends this process with the run's status."""
    arguments, this, status, reason = sys.argv[1:], None, 0, None
    for descriptor in range(3):
        with contextlib.suppress(OSError):  # it is closed: the next file would be it
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDONLY)
    # Who reads no longer ends the run. What was ignored stays so: nohup.
    for one in (*STOPPED, signal.SIGHUP, signal.SIGPIPE):
        if one == signal.SIGPIPE or signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, lambda number, _: told.append(number))
    try:
        this = launcher(arguments)
        if {"-h", "--help"} & set(arguments):
            os.execl(sys.executable, sys.executable, "-B", this.script, "--help")
        if os.environ.get("DRY_RUN"):
            this.print_commands()
            status = 1 if screen.missed else 0
        else:
            this.check()
            stays = this.alone or this.base or os.environ.get("OPEN_PORTS")
            if not (stays or leave_the_network()):
                say(OPEN)
            this.run()
        pause()
    except End as end:
        status, reason = end.args
    if this:
        this.end()
    if reason in STOPPED.values():
        begun = this and any(task.process for task in this.tasks)
        reason += " ended " + (this.what() if begun else "the start")
    if screen.missed:
        where = "" if screen.kept else f", see {screen.log}"
        complain(f"{screen.missed} lines could not be shown here{where}")
    if reason:
        complain(reason)
    os._exit(status)


if __name__ == "__main__":
    launch()
