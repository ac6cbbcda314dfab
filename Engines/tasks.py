"""What adapters in Python share: ports, TF_CONFIG, running a script from start to end.

Spark, TensorFlowOnSpark and Ray send this file to their machines, with their adapter.
It needs only Python.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys

FINAL = (1, 2, 3)  # statuses after which another start would end the same way
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
DRAWN = range(15000, 32000)  # below the ports that the system picks for connections


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    name = os.path.basename(sys.argv[0])
    print(f"{name}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(status)


# --- Addresses ----------------------------------------------------------------


@contextlib.contextmanager
def held_port():
    """Yields a free port, which nobody else can take until the context ends."""
    with contextlib.closing(socket.socket()) as holder:
        for port in random.sample(DRAWN, len(DRAWN)):
            with contextlib.suppress(OSError):
                holder.bind(("", port))
                break
        yield port


def tf_config(addresses, num_ps, index):
    """Returns the text of TF_CONFIG for one task; `addresses` has the ps first."""
    cluster = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    job = "ps" if index < num_ps else "worker"
    task = {"type": job, "index": index - (0 if job == "ps" else num_ps)}
    cluster = {name: hosts for name, hosts in cluster.items() if hosts}
    return json.dumps({"cluster": cluster, "task": task})


def name_of(index, num_ps):
    """Returns what a task is called: ps 0, worker 1."""
    return f"ps {index}" if index < num_ps else f"worker {index - num_ps}"


# --- A script -----------------------------------------------------------------


class Ended(Exception):
    """A script has ended with a status other than 0, and would again."""

    def __init__(self, sentence, status):
        super().__init__(sentence, status)
        self.sentence, self.status = sentence, status


class Again(Ended):
    """A script has ended with a status after which another start may help."""


def end_with_parent():
    """Has the system (Linux) send TERM to this process when its parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def run(command, environment, tell):
    """Runs a command, calls `tell` with its lines; returns its status and last line.

    It ends with the caller, also if the caller's process is killed.
    """
    line = ""
    pipe = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pipe.update(env={**os.environ, **environment}, preexec_fn=end_with_parent)
    with subprocess.Popen(command, **pipe) as process:
        try:
            for line in process.stdout:
                tell(line)
        except BaseException:
            process.terminate()
            raise
    status = process.returncode
    return (128 - status if status < 0 else status), line.strip()


def run_task(name, command, config=None):
    """Runs a task's script, its lines labelled; raises Ended or Again if it fails.

    `config` is the text of TF_CONFIG, None where it is in the environment.
    """
    status, last = run(
        command,
        {"TF_CONFIG": config} if config else {},
        lambda line: print(f"[{name}] {line}", end="", flush=True),
    )
    if status:
        kind = Ended if status in FINAL else Again
        why = f": {last}" if last else ""
        raise kind(f"{name} ended with status {status}{why}", status)


def check(python, script, options, num_ps, num_workers):
    """Returns status and sentence of the script's own check of its flags and data.

    Done once where the job is submitted, it saves the user a traceback of every task.
    """
    count = num_ps + num_workers
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(held_port()) for _ in range(count)]
    addresses = [f"localhost:{port}" for port in ports]
    environment = {"TF_CONFIG": tf_config(addresses, num_ps, num_ps)}  # of worker 0
    environment["LAUNCHED_BY"] = str(os.getpid())  # a check without the model
    said = []
    command = [python, script, *options, "--check"]
    status, _ = run(command, environment, said.append)
    return status, "".join(said).strip()
