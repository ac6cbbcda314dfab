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

from cluster import flags, ports
from cluster.task import LAUNCHER, no_link

HERE = os.path.dirname(os.path.abspath(__file__))  # the folder of the example
OPEN = "no network of its own here: anyone who reaches this machine reaches the run"
STOPPED = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "TERM"}
OURS = ("--job_name", "--task_index", "--ps_hosts", "--worker_hosts")
PATIENCE = 5  # seconds in which a screen takes something, if it ever does
LAST = 10  # seconds that a slow one may take for the last lines
ILLEGAL = 132  # the status of a process that signal 4 killed
WHY = {
    ILLEGAL: "killed by signal 4: this processor lacks an instruction, perhaps AVX, "
    "that TensorFlow was built with",
    137: "killed by signal 9, perhaps for want of memory",
}
# Below the range from which the system picks ports for connections.
DRAWN = range(15000, 32000)
NEWUSER, NEWNET = 0x10000000, 0x40000000  # linux/sched.h: namespaces of one's own


class End(Exception):
    """The end of a run, by a signal or by a failure: (status, sentence)."""


def number(name, default, least):
    """Returns a whole number from the environment."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not least <= int(text) < 10**9:
        raise End(2, f"{name}={text} is not a whole number of at least {least}")
    return int(text)


# --- The screen -------------------------------------------------------------------


def put(number, data, wait=PATIENCE):
    """Writes to a descriptor; returns what it did not take of the data.

    It may be a pipe that nobody reads, a disk that is full, or closed.
    """
    try:
        # Where there is room for anything, so few bytes do not wait.
        while data and select.select([], [number], [], wait)[1]:
            data = data[os.write(number, data[:512]) :]
    except BrokenPipeError:
        return b""  # nobody is to see it: SIGPIPE has come with this error
    except OSError:
        pass
    return data


def complain(sentence):
    """Says on stderr, in the name of run.sh, what is wrong."""
    put(2, f"run.sh: {sentence}\n".encode(errors="surrogateescape"))


class Screen:
    """Standard output: no run waits long for it, or ends with its errors.

    What cannot be shown goes to LOGDIR/screen.log.
    """

    def __init__(self):
        self.lock, self.log, self.missed, self.kept = threading.Lock(), None, 0, []
        self.patience = self.wait = PATIENCE

    def write(self, line):
        """Shows a line, bytes: in one piece, whichever thread has it."""
        with self.lock:
            left = put(1, line, self.wait)
            # Only the first line waits for a screen that takes nothing.
            self.wait = 0 if left else self.patience
            if left:
                self.missed += 1
                self.kept.append(line)
            if self.log and self.kept:
                with contextlib.suppress(OSError):
                    with open(self.log, "ab", 0, opener=no_link) as file:
                        file.write(b"".join(self.kept))
                    self.kept.clear()

    def lost(self):
        """Returns a sentence if not all could be shown."""
        where = "" if self.kept else f", see {self.log}"
        return self.missed and f"{self.missed} lines could not be shown here{where}"


screen = Screen()
write = screen.write


def say(sentence):
    """Says something in the name of run.sh, by which people have started this."""
    write(f"run.sh: {sentence}\n".encode(errors="surrogateescape"))


# --- A task and the signals -------------------------------------------------------


class Signals:
    """The first signal that has told this process to end: `pause` raises, then.

    A handler that raised would leave a process behind that is just being started.
    """

    told = None

    @classmethod
    def note(cls, number, _):
        """Is the handler."""
        cls.told = cls.told or number


def pause(seconds=0):
    """Sleeps; raises End if a signal has told this process to end."""
    time.sleep(seconds)
    if Signals.told:
        raise End(128 + Signals.told, STOPPED.get(Signals.told))


class Task:
    """One task: its process, and the thread that labels its lines."""

    def __init__(self, job, index=0, label="[{}] "):
        self.job, self.index, self.restarts = job, index, 0
        self.label = label.format(self).encode()
        self.process = self.reader = None
        self.log = f"{job}-{index}.log"  # its name in LOGDIR

    def __str__(self):
        return f"{self.job} {self.index}"

    def start(self, command, environment, **how):
        """Starts the process; `how` is for Popen."""
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            **{"stderr": subprocess.STDOUT, **how},
        )
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
        pause()
        return self.status()

    def runs(self):
        """Says whether the task's process is there."""
        return self.process is not None and self.process.poll() is None

    def status(self):
        """Returns the exit status as a shell has it: 128 + n for signal n."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def why(self, logdir):
        """Returns what is known of the task's failure, for the screen."""
        found = WHY.get(self.status(), "")
        if self.status() in (134, 139):
            with contextlib.suppress(OSError, IndexError):
                path = os.path.join(logdir, self.log)
                with open(path, errors="replace") as file:
                    found = file.read().splitlines()[-1][:200]
        return found and f"{found}; "


# --- The run ----------------------------------------------------------------------


class Launcher:
    """All tasks of one run. A folder with a launcher of its own overrides methods."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.script = _script()
        self.ps, self.workers = number("NUM_PS", 1, 0), number("NUM_WORKERS", 2, 1)
        self.timeout = number("TIMEOUT", 3600, 1)
        self.max_restarts = number("MAX_RESTARTS", 0, 0)
        self.base = number("BASE_PORT", 0, 1) if os.environ.get("BASE_PORT") else None
        peers = os.environ.get("PEERS") == "yes"  # not another program's
        if self.ps and peers:
            text = "there is no ps in this scheme, the workers are peers"
            raise End(2, f"NUM_PS={self.ps}: {text}")
        self.alone = not self.ps and not peers  # one process, no cluster
        if self.alone and self.workers > 1:
            text = f"NUM_PS=0 with NUM_WORKERS={self.workers}: workers meet at a ps"
            raise End(2, text)
        self.logdir = self._logdir()
        each = [("ps", self.ps), ("worker", self.workers)]
        self.tasks = [Task(job, i) for job, count in each for i in range(count)]

    def what(self):
        """Returns what is started and where it writes, in words."""
        ps = f"{self.ps} ps and " if self.ps else ""
        found = f"{ps}{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{'one process' if self.alone else found}, logdir {self.logdir}"

    def _logdir(self):
        name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
        found, following = os.environ.get("LOGDIR"), [*self.arguments[1:], ""]
        for argument, after in zip(self.arguments, following, strict=False):
            flag, given, value = argument.partition("=")
            if flag in OURS:
                text = "start the tasks by hand to choose (see README.md)"
                raise End(2, f"{argument}: run.sh sets it; {text}")
            if flag == "--logdir":
                found = value if given else after
        try:
            return flags.directory(found or os.path.join(HERE, "logdir", name))
        except ValueError as error:
            raise End(2, str(error)) from None

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
        """Is called ten times a second while the tasks run."""

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
        own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        command = [*self.command(task, self.hosts), "--logdir", self.logdir]
        own |= {LAUNCHER: str(os.getpid()), **self.environment(task)}
        task.start([*command, *self.arguments], own)

    def run(self):
        """Starts all tasks; returns when the run has ended well, else raises End."""
        found = free_ports(0 if self.alone else len(self.tasks), self.base)
        self.hosts = [f"localhost:{port}" for port in found]
        try:
            os.makedirs(self.logdir, exist_ok=True)
        except OSError:
            raise End(2, f"LOGDIR={self.logdir} cannot be made") from None
        if not (self.alone or carries()):
            raise End(3, "localhost carries no connection here: is loopback on?")
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
        if status in (1, 2, ILLEGAL) or task.restarts >= self.max_restarts:
            text += f"{task.why(self.logdir)}see {task.log} in {self.logdir}"
            raise End(status, text)
        task.restarts += 1
        say(f"{text}restart {task.restarts} of {self.max_restarts}")
        self.start(task)

    def end(self):
        """Ends every task that still runs, the workers first: the chief saves."""
        for job, seconds in (("worker", 4), ("ps", 2)):
            mine = [t for t in self.tasks if (t.job == "ps") == (job == "ps")]
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


def _script():
    """Returns the path of the script, which run.sh names."""
    found = os.path.join(HERE, os.environ["SCRIPT"])
    if not os.path.isfile(found):
        raise End(2, f"SCRIPT={os.environ['SCRIPT']}: there is no such script")
    return found


# --- Its network ------------------------------------------------------------------


def free_ports(count, base=None):
    """Returns `count` free ports: from `base` on, or any.

    Raises End when one of those that were asked for is taken.
    """
    if base is None:
        drawn = random.sample(DRAWN, len(DRAWN))
        found = (port for port in drawn if ports.is_free(port))
        return [next(found) for _ in range(count)]
    if not 0 < base <= 65536 - count:
        raise End(2, f"BASE_PORT={base} is not a port with {count - 1} more above it")
    for port in range(base, base + count):
        if not ports.is_free(port):
            raise End(2, f"BASE_PORT={base}: port {port} is in use")
    return range(base, base + count)


def carries():
    """Says whether localhost carries a connection, as the tasks of one machine need."""
    with contextlib.suppress(OSError):
        with socket.create_server(("localhost", 0)) as server:
            return ports.answers(f"localhost:{server.getsockname()[1]}")
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
        try:
            _leave()
            os._exit(0 if carries() else 1)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        return False
    try:
        _leave()
    except OSError:  # the child's counts still, and this user may have no more
        return False
    return True


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
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would be the screen
            os.open(os.devnull, os.O_RDONLY)
    signal.signal(signal.SIGPIPE, Signals.note)  # who reads no longer ends the run
    for number in (*STOPPED, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, Signals.note)
    try:
        if {"-h", "--help"} & set(arguments):
            os.execl(sys.executable, sys.executable, "-B", _script(), "--help")
        this = launcher(arguments)
        if os.environ.get("DRY_RUN"):
            this.print_commands()
            status = 1 if screen.missed else 0
            pause()
        else:
            this.check()
            stays = this.alone or this.base or os.environ.get("OPEN_PORTS")
            if not (stays or leave_the_network()):
                say(OPEN)
            this.run()
    except End as end:
        status, reason = end.args
    if this:
        this.end()
    if reason in STOPPED.values():
        begun = this and any(task.process for task in this.tasks)
        reason += " ended " + (this.what() if begun else "the start")
    for sentence in filter(None, (screen.lost(), reason)):
        complain(sentence)
    os._exit(status)


if __name__ == "__main__":
    launch()
