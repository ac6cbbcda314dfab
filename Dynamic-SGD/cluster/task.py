"""A task of a run: how its process begins, ends, and begins again. Everybody calls it.

  0  all updates are made; the chief has written the result
  1  it failed, said why, and would fail again
  2  a usage error: flags, data, addresses
138  it failed, and another start may help (Kubernetes' policy ExitCode agrees)
"""

import fcntl
import logging
import os
import signal
import sys
import threading
import time
import traceback
import zlib

import numpy as np

from cluster import addresses
from cluster import tensorflow_v1 as tf

AGAIN = 138
# In the environment: the process of launch.py; the LOGDIR of a task that began again.
LAUNCHER, AFTER = "LAUNCHED_BY", "BEGAN_AGAIN"
LAST = 5  # seconds that a task which is told to end may take for what is left to do
SAY = 10  # seconds between two lines about something that takes long

last_acts = []  # functions to call before TERM ends this task, or Beat begins it again


class Failure(Exception):
    """The whole run has failed, for the reason that is its text."""


def complain(sentence):
    """Says one sentence on stderr, in the name of the script."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    complain(sentence)
    raise SystemExit(status)


def end_now(sentence, status=AGAIN):
    """Ends the process with one sentence from any thread, whatever the others do."""
    complain(sentence)
    sys.stdout.flush()
    os._exit(status)


def begin_again(args, reason):
    """Begins this program again as the same process: same pid, log and launcher."""
    print(f"{reason}: begins again", flush=True)
    os.environ[AFTER] = args.logdir
    os.dup2(sys.stderr.fileno(), 2)  # the screen, see redirect
    os.execv(sys.executable, sys.orig_argv)


def run(main):
    """Runs a script's `main`, says what has ended it, see `said`, and ends the process.

    Not as Python does: it would abort a thread that is in a call of TensorFlow.
    """
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    except Exception as error:
        _, status = said(error)
    sys.stdout.flush()
    os._exit(status)


def said(error):
    """Says on stderr what ends a task; returns it in a line, and the exit status.

    What another task has caused is a sentence; a bug is Python's traceback.
    """
    sentence = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, Failure):
        sentence = str(error)
    elif not is_lost(error):
        traceback.print_exception(error)
        return sentence, 1
    complain(sentence)
    return sentence, 1 if isinstance(error, Failure) else AGAIN


def first_line(error):
    """Returns the first line of an error's message that does not announce another."""
    lines = [line for line in str(error).splitlines() if line.strip(" =")]
    return next((line for line in lines if not line.endswith(":")), "no reason given")


def is_lost(error):
    """Says whether an error of TensorFlow's means that a task was lost."""
    kinds = tf.errors
    lost = (kinds.UnavailableError, kinds.DeadlineExceededError, kinds.CancelledError)
    return isinstance(error, (*lost, kinds.AbortedError))


def begin(args, problem):
    """Begins a task: its log in LOGDIR, its signals. Returns the data of a worker.

    None for a task that only serves. With --check it looks at the data, and ends.
    """
    if args.check:
        redirect(open(os.devnull, "a"))
    else:
        _begin(args)
    if args.job_name != "worker" or args.task_index and args.one_client:
        return None
    try:
        data = problem.load(args.data, len(args.worker_hosts))
    except ValueError as error:
        fail(f"{getattr(problem, 'FLAG', '--data')} {args.data}: {error}")
    if args.check:
        raise SystemExit(0)
    args.data_checksum = None if args.one_client else checksum(data)  # to compare
    return data


def _begin(args):
    if args.address:
        if not addresses.is_free(addresses.split(args.address)[1]):
            fail(f"--{args.job_name}_hosts: the port of {args.address} is in use here")
        # gRPC obeys http_proxy, also for the hosts of the cluster.
        hosts = {addresses.split(a)[0] for a in args.ps_hosts + args.worker_hosts}
        os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))
    _obey_signals()
    if LAUNCHER in os.environ:
        threading.Thread(target=_follow_launcher, daemon=True).start()
    _log_to(args.logdir, f"{args.job_name}-{args.task_index}")


def checksum(data):
    """Returns a checksum of the arrays in nested tuples, lists and dicts."""
    value = 0
    for array in tf.nest.flatten(data):
        # Not of np.memmap, which may be larger than memory.
        if type(array) is np.ndarray and not array.dtype.hasobject:
            value = zlib.crc32(np.ascontiguousarray(array).reshape(-1), value)
    return value


def _obey_signals():
    """Ends this process when it gets INT or TERM, even in a call of TensorFlow.

    A handler in Python would wait for the call, and process 1 of a container has no
    default action. So a thread reads the number from Python's own pipe of signals.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    def end():
        (number,) = os.read(reader, 1)
        acts = last_acts if number == signal.SIGTERM else []
        last = threading.Thread(target=lambda: [act() for act in acts], daemon=True)
        last.start()
        last.join(LAST)
        sys.stdout.flush()
        os._exit(128 + number)

    threading.Thread(target=end, daemon=True).start()


def _follow_launcher():
    """Ends this process when launch.py, which started it, was killed."""
    while os.getppid() == int(os.environ[LAUNCHER]):
        time.sleep(1)
    os._exit(128 + signal.SIGTERM)


def _log_to(logdir, name):
    """Opens LOGDIR/`name`.log; another process of this task must not write there."""
    try:
        os.makedirs(logdir, exist_ok=True)
        log = open(os.path.join(logdir, f"{name}.log"), "a", errors="backslashreplace")
    except OSError as error:
        fail(f"--logdir {logdir}: {error.strerror}")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"--logdir {logdir}: another run's {name} is writing there")
    except OSError:
        pass  # a file system without locks: Lustre, some NFS
    os.environ["TMPDIR"] = logdir  # AutoGraph leaves files there
    redirect(log)


def redirect(log):
    """Sends what TensorFlow and Python's logging say to a file.

    TensorFlow's C++ writes to descriptor 2, whatever sys.stderr is. So descriptor 2
    becomes the log, and sys.stderr a copy of what it was, the screen.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", 1, errors="backslashreplace")
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    os.dup2(log.fileno(), 2)
    logging.basicConfig(stream=log, level=logging.INFO)
    logging.raiseExceptions = False  # a disk that is full takes no log either
