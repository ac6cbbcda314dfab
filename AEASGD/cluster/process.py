"""The process of a task on this machine, and its lines on the screen: for `launch`."""

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time

import cluster

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


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
        if self.status() == 137:
            return "killed by signal 9, perhaps for want of memory; "
        if self.status() in (134, 139):
            with contextlib.suppress(OSError, IndexError):
                with open(os.path.join(logdir, self.log)) as file:
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
        for name in ENDING:
            signal.signal(name, signal.SIG_DFL)
        os.environ.update(environment or {})
        sys.argv, status = arguments, 1
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = cluster.end(error)
        with contextlib.suppress(OSError):
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


def write(line):
    """Writes to the screen; who reads no longer ends the run."""
    try:
        while line:
            line = line[os.write(1, line) :]
    except BrokenPipeError:
        os.kill(os.getpid(), signal.SIGPIPE)


def say(sentence):
    """Says something in the name of run.sh, by which people have started this."""
    write(f"run.sh: {sentence}\n".encode())
