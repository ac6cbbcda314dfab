"""Starts the tasks of an example on this machine, waits for them, and ends them.

run.sh calls it. From the environment: SCRIPT, NUM_PS, NUM_WORKERS, PEERS (yes: the
scheme has no ps), BASE_PORT, OPEN_PORTS, LOGDIR, TIMEOUT (seconds, status 124),
MAX_RESTARTS (of a task that dies), DRY_RUN (not empty: only print the commands).

The first task that fails ends the run with its status, unless MAX_RESTARTS allows
another start; a task that ended with 1, 2 or 132 would fail again. Whatever ends the
run ends every task: also Ctrl-C, and a reader of the screen that is gone.
"""

import os
import shlex
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cluster import flags, ports
from cluster.process import (
    ENDING,
    ILLEGAL,
    NO_AVX,
    Task,
    put,
    run_in_a_copy,
    say,
    screen,
    write,
)
from cluster.task import LAUNCHER

HERE = sys.path[0]  # the folder of the example
OPEN = "no network of its own here: anyone who reaches this machine reaches the run"
STOPPED = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "TERM"}
OURS = ("--job_name", "--task_index", "--ps_hosts", "--worker_hosts")


class End(Exception):
    """The end of a run, by a signal or by a failure: (status, sentence)."""


def number(name, default, least):
    """Returns a whole number from the environment."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or len(text) > 9:
        raise End(2, f"{name}={text} is not a whole number")
    if int(text) < least:
        raise End(2, f"{name}={text} must be at least {least}")
    return int(text)


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
        found, before = os.environ.get("LOGDIR"), ""
        for argument in self.arguments:
            flag, _, value = argument.partition("=")
            if flag in OURS:
                text = "start the tasks by hand to choose (see README.md)"
                raise End(2, f"{argument}: run.sh sets it; {text}")
            if flag == "--logdir" and value:
                found = value
            elif before == "--logdir":
                found = argument
            before = argument
        name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
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

    # --- Before ---------------------------------------------------------------

    def print_commands(self):
        """Prints the commands that start the tasks by hand, on any machines."""
        hosts = [f"localhost:{(self.base or 2222) + i}" for i in range(len(self.tasks))]
        for task in self.tasks:
            line = shlex.join([*self.command(task, hosts), *self.arguments])
            write(f"{line}\n".encode(errors="surrogateescape"))

    def check(self):
        """Checks flags and data, in a process of its own, before anything starts."""
        if not os.path.isfile(self.script):
            raise End(2, f"SCRIPT={os.environ['SCRIPT']}: there is no such script")
        # Without the model, so that nobody waits for TensorFlow, unless a user asks.
        asked = "--check" in self.arguments
        then = "" if asked else f", then starts {self.what()}"
        say(f"checks the flags and the data{then}")
        hosts = [f"localhost:{1 + i}" for i in range(len(self.tasks))]
        _, *command = self.command(self.tasks[self.ps], hosts)
        command += ["--logdir", self.logdir, *self.arguments, "--check"]
        own = {} if asked else {LAUNCHER: f"{os.getpid()}"}
        status = run_in_a_copy(command, own)
        if status or asked:
            raise End(status, NO_AVX if status == ILLEGAL else None)

    # --- The run --------------------------------------------------------------

    def start(self, task):
        """Starts a task, for the first time or again."""
        own = {"PYTHONDONTWRITEBYTECODE": "1", LAUNCHER: str(os.getpid())}
        own["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        command = [*self.command(task, self.hosts), "--logdir", self.logdir]
        environment = {**os.environ, **own, **self.environment(task)}
        task.start([*command, *self.arguments], environment)

    def run(self):
        """Starts all tasks; returns when the run has ended well, else raises End."""
        try:
            count = 0 if self.alone else len(self.tasks)
            found = ports.free_ports(count, self.base)
        except ValueError as error:
            raise End(2, str(error)) from None
        self.hosts = [f"localhost:{port}" for port in found]
        try:
            os.makedirs(self.logdir, exist_ok=True)
        except OSError:
            raise End(2, f"LOGDIR={self.logdir} cannot be made") from None
        if not (self.alone or ports.carries()):
            raise End(3, "localhost carries no connection here: is loopback on?")
        screen.begin(self.logdir)
        for task in self.tasks:
            self.start(task)
        # The chief is the last to leave: what still runs 10 s after it is ended, too.
        running, until, over = list(self.tasks), time.monotonic() + self.timeout, False
        while running and time.monotonic() < until:
            time.sleep(0.05)
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
        for task in self.tasks:
            if task.reader:
                task.reader.join(1)  # its last lines come before the reason


def launch(launcher=Launcher):
    """Runs an example by its launcher; ends this process with the run's status."""
    arguments, this = sys.argv[1:], None
    os.environ.pop("PYTHONSAFEPATH", None)  # a script finds what lies beside it
    if {"-h", "--help"} & set(arguments):
        script = os.path.join(HERE, os.environ["SCRIPT"])
        os.execl(sys.executable, sys.executable, "-B", script, "--help")

    def ignore():
        for name in (*ENDING, signal.SIGPIPE):
            signal.signal(name, signal.SIG_IGN)

    def stop(number, _):
        if Task.starting:  # the process would be left behind: see `Task.start`
            Task.told = number
            return
        ignore()
        raise End(128 + number, STOPPED.get(number))

    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would be the screen
            os.open(os.devnull, os.O_RDONLY)
    # What was ignored when this began stays ignored: nohup.
    for name in ENDING:
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, stop)
    signal.signal(signal.SIGPIPE, stop)
    status, reason = 0, None
    try:
        this = launcher(arguments)
        if os.environ.get("DRY_RUN"):
            this.print_commands()
            status = 1 if screen.missed else 0
        else:
            this.check()
            stays = this.alone or this.base or os.environ.get("OPEN_PORTS")
            if not (stays or ports.leave_the_network()):
                say(OPEN)
            this.run()
    except End as end:
        status, reason = end.args
    ignore()
    if this:
        this.end()
    if reason in STOPPED.values():
        begun = this and any(task.process for task in this.tasks)
        reason += " ended " + (this.what() if begun else "the start")
    for sentence in filter(None, (screen.end(), reason)):
        put(2, f"run.sh: {sentence}\n".encode(errors="surrogateescape"))
    os._exit(status)


if __name__ == "__main__":
    launch()
