"""A cluster manager does this for you: starts the tasks of a run, and ends them.

run.sh calls it, on one machine; nobody takes either to a cluster. From the environment:
SCRIPT, NUM_PS, NUM_WORKERS, PEERS (yes: the scheme has no ps), BASE_PORT, OPEN_PORTS,
LOGDIR, TIMEOUT (seconds, status 124), MAX_RESTARTS (of a task that dies), DRY_RUN (not
empty: only print the commands). The first task that fails ends the run with its status;
whatever ends the run ends every task: also Ctrl-C, and a screen that is gone.
"""

import argparse
import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time

from cluster import addresses

HERE = os.path.dirname(os.path.abspath(__file__))  # the folder of the example
# glibc keeps freed memory: the next message of 100 MB finds its pages again.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
LAUNCHER = "LAUNCHED_BY"  # in the environment of a task: the process of this program
INSIDE = "LAUNCH_INSIDE"  # in the environment of a launcher in a network of its own


class End(Exception):
    """The end of a run, by a signal or by a failure: (status, sentence)."""


def number(name, default, least):
    """Returns a whole number from the environment."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not least <= int(text) < 10**9:
        raise End(2, f"{name}={text} is not a whole number of at least {least}")
    return int(text)


def write(line, screen=1):
    """Shows a line, bytes, in one piece."""
    with contextlib.suppress(OSError):
        os.write(screen, line)


def say(sentence, screen=1):
    """Says something in the name of run.sh, by which people have started this."""
    write(os.fsencode(f"run.sh: {sentence}\n"), screen)


told = []  # the signals that have told this process to end


def pause(seconds=0):
    """Sleeps; raises End if a signal has told this process to end."""
    # A handler that raised could leave a process behind that is just being started.
    time.sleep(seconds)
    if told:
        name = "Ctrl-C" if told[0] == signal.SIGINT else signal.Signals(told[0]).name
        raise End(128 + told[0], f"{name} ended the run")


def status_of(process):
    """Returns the exit status as a shell has it: 128 + n for signal n."""
    code = process.returncode
    return 128 - code if code < 0 else code


def finish(command, environment):
    """Runs a program to its end; returns its exit status."""
    # Of Ctrl-C in a terminal it hears nothing: it is killed.
    own = {**os.environ, **environment}
    process = subprocess.Popen(command, env=own, start_new_session=True)
    try:
        while process.poll() is None:
            pause(0.01)
    finally:
        process.kill()
    return status_of(process)


class Task:
    """One task: its process, and the thread that labels its lines."""

    def __init__(self, job, index):
        self.job, self.index, self.restarts = job, index, 0
        self.process = self.reader = None
        self.environment = {}  # what it has beside all that this program has

    def __str__(self):
        return f"{self.job} {self.index}"

    def start(self, command, environment):
        """Starts the process."""
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            write(f"[{self}] ".encode() + line.rstrip(b"\n") + b"\n")

    def runs(self):
        """Says whether the task's process is there."""
        return self.process is not None and self.process.poll() is None


class Launcher:
    """All tasks of one run. A folder with a launcher of its own overrides methods."""

    def __init__(self, arguments):
        self.script = os.path.join(HERE, os.environ["SCRIPT"])
        self.ps, self.workers = number("NUM_PS", 1, 0), number("NUM_WORKERS", 2, 1)
        self.timeout = number("TIMEOUT", 3600, 1)
        self.max_restarts = number("MAX_RESTARTS", 0, 0)
        self.base = number("BASE_PORT", 0, 1) if os.environ.get("BASE_PORT") else None
        peers = os.environ.get("PEERS") == "yes"  # not another program's
        self.alone = not self.ps and not peers  # one process, no cluster
        name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
        logdir = os.environ.get("LOGDIR") or os.path.join(HERE, "logdir", name)
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--logdir", default=logdir)
        given, self.arguments = parser.parse_known_args(arguments)
        self.logdir = os.path.abspath(os.path.expanduser(given.logdir))
        each = [("ps", self.ps), ("worker", self.workers)]
        self.tasks = [Task(job, i) for job, count in each for i in range(count)]

    def command(self, task, hosts):
        """Returns the command that starts a task; `hosts` are the addresses of all."""
        command = [sys.executable, self.script, *self.arguments]
        command += ["--logdir", self.logdir]
        if not self.alone:
            command += ["--job_name", task.job, "--task_index", str(task.index)]
            for job, here in (("ps", hosts[: self.ps]), ("worker", hosts[self.ps :])):
                command += [f"--{job}_hosts", ",".join(here)] if here else []
        return command

    def look(self):
        """Is called twenty times a second while the tasks run."""

    def after(self):
        """Is called when the run has ended well."""

    def print_commands(self):
        """Prints the commands that start the tasks by hand, on any machines."""
        hosts = [f"localhost:{(self.base or 2222) + i}" for i in range(len(self.tasks))]
        for task in self.tasks:
            write(os.fsencode(f"{shlex.join(self.command(task, hosts))}\n"))

    def check(self):
        """Checks flags and data, in a process of its own, before anything starts."""
        asked = "--check" in self.arguments
        ps = f"{self.ps} ps and " if self.ps else ""
        what = f"{ps}{self.workers} worker{'s' * (self.workers > 1)}"
        then = "" if asked else f", then starts {what}, logdir {self.logdir}"
        say(f"checks the flags and the data{then}")
        hosts = [f"localhost:{1 + i}" for i in range(len(self.tasks))]
        command = self.command(self.tasks[self.ps], hosts)
        status = finish([*command, "--check"], {})
        if status or asked:
            raise End(status, None)

    def start(self, task):
        """Starts a task, for the first time or again."""
        own = {**MALLOC, "CUDA_VISIBLE_DEVICES": "", **os.environ, **task.environment}
        task.start(self.command(task, self.hosts), own | {LAUNCHER: str(os.getpid())})

    def run(self):
        """Starts all tasks; returns when the run has ended well, else raises End."""
        ports = free_ports(len(self.tasks), self.base)
        self.hosts = [f"localhost:{port}" for port in ports]
        for task in self.tasks:
            self.start(task)
        # When the chief has ended the others have 10 s; then they are ended.
        running, until, over = list(self.tasks), time.monotonic() + self.timeout, False
        while running and time.monotonic() < until:
            pause(0.05)
            self.look()
            for task in [task for task in running if not task.runs()]:
                if task.process.returncode == 0:
                    running.remove(task)
                    if str(task) == "worker 0":
                        over, until = True, time.monotonic() + 10
                else:
                    self.restart(task)
        if not over:
            raise End(124, f"no end after TIMEOUT={self.timeout} s")
        self.after()

    def restart(self, task):
        """Starts again a task that has failed, or ends the run."""
        status = status_of(task.process)
        text = f"{task} ended with status {status}; "
        if status in (1, 2) or task.restarts >= self.max_restarts:
            raise End(status, f"{text}see {task.job}-{task.index}.log in {self.logdir}")
        task.restarts += 1
        say(f"{text}restart {task.restarts} of {self.max_restarts}")
        self.start(task)

    def end(self):
        """Ends every task that still runs, the workers first: the chief saves."""
        for ps, seconds in ((False, 6), (True, 2)):  # a worker may take task.LAST
            mine = [task for task in self.tasks if (task.job == "ps") == ps]
            running = [task for task in mine if task.runs()]
            for task in running:
                task.process.terminate()
            until = time.monotonic() + seconds
            while time.monotonic() < until and any(task.runs() for task in running):
                time.sleep(0.02)
            for task in running:
                task.process.kill()
        for task in self.tasks:
            if task.reader:
                task.reader.join(5)  # the last lines come before the reason


def free_ports(count, base=None):
    """Returns `count` free ports: from `base` on, or any."""
    for port in range(base or 0, base + count if base else 0):
        if port > 65535 or not addresses.is_free(port):
            raise End(2, f"BASE_PORT={base}: port {port} is in use, or is none")
    if base:
        return range(base, base + count)
    # Below those that the system picks for connections.
    drawn = random.sample(range(15000, 32000), 100 + 10 * count)
    return [port for port in drawn if addresses.is_free(port)][:count]


def leave_the_network(logdir):
    """Linux: begins this program again in a network of its own; returns if it cannot.

    Anyone who can connect to a port of TensorFlow can run code as this user.
    """
    user = ["--map-current-user", "--keep-caps"] if os.getuid() else []
    up = 'ip link set lo up && exec "$0" "$@"'
    inside = ["unshare", "--net", *user, "sh", "-c", up]
    with contextlib.suppress(OSError):  # there is no such program
        if not subprocess.run([*inside, "true"], capture_output=True).returncode:
            pause()
            os.environ |= {INSIDE: "yes", "LOGDIR": logdir}
            os.execvp(inside[0], [*inside, sys.executable, *sys.argv])


def launch(launcher=Launcher):
    """Runs an example by its launcher; ends this process with the run's status."""
    this, status, reason = None, 0, None
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # A screen that is closed ends the run: SIGPIPE. What was ignored stays so: nohup.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        if one == signal.SIGPIPE or signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, lambda number, _: told.append(number))
    try:
        this = launcher(sys.argv[1:])
        if {"-h", "--help"} & set(this.arguments):
            os.execl(sys.executable, sys.executable, this.script, "--help")
        inside = os.environ.pop(INSIDE, "")
        if os.environ.get("DRY_RUN"):
            this.print_commands()
        else:
            stays = this.alone or this.base or os.environ.get("OPEN_PORTS")
            if not inside:
                this.check()
                if not stays:
                    leave_the_network(this.logdir)
                    say("the ports are open to anyone who reaches this machine")
            this.run()
        pause()
    except End as end:
        status, reason = end.args
    if this:
        this.end()
    if reason:
        say(reason, screen=2)
    os._exit(status)


if __name__ == "__main__":
    launch()
