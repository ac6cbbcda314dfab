"""The process of a task on this machine, and its lines on the screen: for `launch`."""

import contextlib
import io
import os
import queue
import runpy
import select
import signal
import subprocess
import sys
import threading
import time

import cluster
from cluster.task import no_link

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
PATIENCE = 5  # seconds in which a screen takes something, if it ever does
LAST = 30  # seconds that a slow one may take for the last lines
ILLEGAL = 132  # the status of a process that signal 4 killed
NO_AVX = "killed by signal 4: this processor lacks an instruction, perhaps AVX, that "
NO_AVX += "TensorFlow was built with"


class Task:
    """One task: its process, and the thread that labels its lines."""

    starting, told = False, None  # is a process being started; a signal meanwhile

    def __init__(self, job, index):
        self.job, self.index, self.restarts = job, index, 0
        self.process = self.reader = None
        self.log = f"{job}-{index}.log"  # its name in LOGDIR

    def __str__(self):
        return f"{self.job} {self.index}"

    def start(self, command, environment):
        """Starts the task's process."""
        Task.starting = True
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        has_started()

    def _read(self):
        for line in self.process.stdout:
            # One write a line: lines of tasks do not mix.
            write(f"[{self}] ".encode() + line.rstrip(b"\n") + b"\n")

    def runs(self):
        """Says whether the task's process is there."""
        return self.process is not None and self.process.poll() is None

    def status(self):
        """Returns the exit status as a shell has it: 128 + n for signal n."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def why(self, logdir):
        """Returns what is known of the task's failure, for the screen."""
        if self.status() == ILLEGAL:
            return f"{NO_AVX}; "
        if self.status() == 137:
            return "killed by signal 9, perhaps for want of memory; "
        if self.status() in (134, 139):
            with contextlib.suppress(OSError, IndexError):
                path = os.path.join(logdir, self.log)
                with open(path, errors="replace") as file:
                    return f"{file.read().splitlines()[-1][:200]}; "
        return ""


def has_started():
    """Ends the start of a process: a signal that came meanwhile is handled now."""
    Task.starting = False
    if Task.told:
        signal.raise_signal(Task.told)


def run_in_a_copy(arguments, environment=None):
    """Runs a script, the first argument, in a copy of this process.

    So no Python has to start. Returns the exit status as a shell has it.
    """
    Task.starting = True
    pid = os.fork()
    if not pid:
        for name in (*ENDING, signal.SIGPIPE):
            signal.signal(name, signal.SIG_DFL)
        os.environ.update(environment or {})
        sys.stdout, sys.stderr = _Raw(1).text(sys.stdout), _Raw(2).text(sys.stderr)
        sys.argv, status = arguments, 1
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = cluster.end(error)
        sys.stdout.flush()
        os._exit(status or 0)
    try:
        has_started()
        done = 0
        # A signal just before a single long wait would be handled only after it.
        while not done:
            time.sleep(0.01)
            done, code = os.waitpid(pid, os.WNOHANG)
    except BaseException:  # a signal
        with contextlib.suppress(ProcessLookupError):  # the copy has just ended
            os.kill(pid, signal.SIGKILL)
        raise
    code = os.waitstatus_to_exitcode(code)
    return 128 - code if code < 0 else code


# --- The screen -------------------------------------------------------------------


def put(number, data, wait=PATIENCE):
    """Writes to a descriptor; returns what it did not take of the data.

    It may be a pipe that nobody reads, a disk that is full, or closed.
    """
    try:
        # Where there is room for anything, so few bytes do not wait.
        while data and select.select([], [number], [], wait)[1]:
            data = data[os.write(number, data[:512]) :]
    except BrokenPipeError:  # who reads no longer ends the run
        os.kill(os.getpid(), signal.SIGPIPE)
        return b""
    except OSError:
        pass
    return data


class _Raw(io.RawIOBase):
    """A file for Python's print that raises nothing."""

    def __init__(self, number):
        self.number = number

    def text(self, like):
        """Returns it as a text file in the encoding of another one, if there is one."""
        encoding = like and like.encoding
        return io.TextIOWrapper(self, encoding, "backslashreplace", write_through=True)

    def fileno(self):
        return self.number

    def isatty(self):
        return os.isatty(self.number)

    def writable(self):
        return True

    def write(self, data):
        put(self.number, bytes(data))
        return len(data)


class Screen:
    """Standard output of the launcher: no run waits for it, or ends with its errors.

    From `begin` on a thread writes. What cannot be shown goes to LOGDIR/screen.log.
    """

    def __init__(self):
        self.lines, self.thread, self.wait = queue.SimpleQueue(), None, PATIENCE
        self.log, self.kept, self.missed, self.cut = None, [], 0, b""

    def begin(self, logdir):
        """Starts the thread: there may be none before a fork, nor before `unshare`."""
        self.log = os.path.join(logdir, "screen.log")
        self.thread = threading.Thread(target=self._show, daemon=True)
        self.thread.start()

    def write(self, line):
        """Shows a line, bytes."""
        self.lines.put(line)
        if not self.thread:
            self.lines.put(None)
            self._show()

    def _show(self):
        while (line := self.lines.get()) is not None:
            left = put(1, self.cut + line, self.wait)
            # Only the first line waits for a screen that takes nothing.
            self.wait = 0 if left else PATIENCE
            if left:
                self._keep(line)
            if len(left) <= len(line):  # it is no longer in the middle of an older line
                self.cut = b"\n" if 0 < len(left) < len(line) else b""

    def _keep(self, line):
        self.missed += 1
        self.kept.append(line)
        if self.log:
            with contextlib.suppress(OSError):
                with open(self.log, "ab", opener=no_link) as file:
                    file.write(b"".join(self.kept))
                self.kept.clear()

    def end(self):
        """Shows what is left, for a while; returns a sentence if that was not all."""
        self.lines.put(None)
        if self.thread:
            self.thread.join(LAST)
            with contextlib.suppress(queue.Empty):
                while line := self.lines.get_nowait():
                    self._keep(line)
        if not self.missed:
            return None
        where = "" if self.kept else f", see {self.log}"
        return f"{self.missed} lines could not be shown here{where}"


screen = Screen()
write = screen.write


def say(sentence):
    """Says something in the name of run.sh, by which people have started this."""
    write(f"run.sh: {sentence}\n".encode(errors="surrogateescape"))
