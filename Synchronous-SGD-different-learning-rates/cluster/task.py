"""A task of a run: how its process begins, ends, and begins again. Everybody calls it.

  0  all updates are made; the chief has written the result
  1  it failed, said why, and would fail again
  2  a usage error: flags, data, addresses
  3  something that it needs is not on this machine (launch.py says it)
138  it failed, and another start may help (Kubernetes' policy ExitCode agrees)
"""

import errno
import fcntl
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import zlib

from cluster import addresses
from cluster import tensorflow_v1 as tf

AGAIN = 138
# In the environment: the process of launch.py; the LOGDIR of a task that began again.
LAUNCHER, AFTER = "LAUNCHED_BY", "BEGAN_AGAIN"
LAST = 5  # seconds that a task which is told to end may take for what is left to do
SAY = 10  # seconds between two lines about something that takes long
# What a file system answers that has no locks: Lustre, NFS, some of FUSE.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)

# Operations that wait for another worker, and a server at whose port another one is.
OTHERS = re.compile("Collective|RemoteCall|Horovod[A-Z]|not start gRPC server")

_last_acts = []


class Failure(Exception):
    """The whole run has failed, for the reason that is its text."""


# --- End --------------------------------------------------------------------------


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(status)


def end_now(sentence, status=AGAIN):
    """Ends the process with one sentence from any thread, whatever the others do."""
    try:
        fail(sentence, status)
    finally:
        sys.stdout.flush()
        os._exit(status)


def begin_again(args, reason):
    """Begins this program again as the same process: same pid, log and launcher.

    Whatever it held is gone: its port, its sessions, the addresses that it resolved.
    """
    print(f"{reason}: begins again", flush=True)
    os.environ[AFTER] = args.logdir
    os.dup2(sys.stderr.fileno(), 2)  # the screen, see _redirect
    try:
        os.execv(sys.executable, sys.orig_argv)
    except OSError as error:
        end_now(f"cannot begin again: {error.strerror}")


def run(main):
    """Runs a script's `main`, says what has ended it, see `said`, and ends the process.

    Not as Python does: it would abort a thread that is in a call of TensorFlow.
    """
    status = 0
    try:
        main()
    except SystemExit as end:
        status = (
            said(Failure(end.code))[1] if isinstance(end.code, str) else end.code or 0
        )
    except Exception as error:
        status = said(error)[1]
    sys.stdout.flush()
    os._exit(status)


def said(error):
    """Says on stderr what ends a task; returns it in a line, and the exit status.

    What another task has caused is a sentence; a bug is Python's traceback.
    """
    if isinstance(error, Failure):
        sentence, status = str(error), 1
    elif is_lost(error):
        sentence, status = f"{type(error).__name__}: {first_line(error)}", AGAIN
        logging.exception("a task was lost")
    else:
        traceback.print_exception(error)
        return f"{type(error).__name__}: {first_line(error)}", 1
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    return sentence, status


def first_line(error):
    """Returns the first line of an error's message that says something."""
    lines = [line for line in str(error).splitlines() if line.strip(" =")]
    return lines[0] if lines else "no reason given"


def is_lost(error):
    """Says whether an error means that a task was lost, and may come back.

    A connection was lost, a call was cut short, a ps does not know the session.
    """
    if "tensorflow" not in sys.modules or not isinstance(error, tf.errors.OpError):
        return isinstance(error, (ConnectionError, TimeoutError))
    kinds = (
        tf.errors.UnavailableError,
        tf.errors.DeadlineExceededError,
        tf.errors.CancelledError,
        tf.errors.AbortedError,
    )
    # All get that one, and each time, if their vectors differ in shape.
    shape = isinstance(error, tf.errors.InvalidArgumentError)
    own = str(error.message).partition("Recent warning and error")[0]
    return isinstance(error, kinds) or bool(OTHERS.search(own)) and not shape


# --- Begin ------------------------------------------------------------------------


def begin(args, problem):
    """Begins a task: its log in LOGDIR, its signals. Returns the data of a worker.

    None for a task that only serves. With --check it looks at the data, and unless
    launch.py asks, which does that before each run, at the problem; then it ends.
    """
    launched = LAUNCHER in os.environ
    if args.check:
        _redirect(open(os.devnull, "a"))
        data = _load(args, problem)
        if not launched:
            found = "flags and data"
            if hasattr(problem, "build"):
                from cluster import contract  # which imports this module

                contract.check(problem, data, args)
                found = "flags, data and model"
            print(f"--check: {found} are good", flush=True)
        raise SystemExit(0)
    if args.address:
        if not addresses.is_free(addresses.split(args.address)[1]):
            where = f"--{args.job_name}_hosts: the port of {args.address}"
            fail(f"{where} is in use on this host")
        # gRPC obeys http_proxy, also for the hosts of the cluster.
        hosts = {addresses.split(a)[0] for a in args.ps_hosts + args.worker_hosts}
        os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))
    _obey_signals()
    if launched:
        threading.Thread(target=_follow_launcher, daemon=True).start()
    _log_to(args.logdir, f"{args.job_name}-{args.task_index}")
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # TensorFlow needs a place for files
        tempfile.tempdir = args.logdir
    several = not addresses.one_client(args)
    if args.job_name != "worker" or args.task_index and not several:
        return None
    data = _load(args, problem)
    if several:  # for them to compare
        args.data_checksum = checksum(data)
    return data


def _load(args, problem):
    try:
        return problem.load(args.data, len(args.worker_hosts))
    except ValueError as error:
        fail(f"{getattr(problem, 'FLAG', '--data')} {args.data}: {error}")


def checksum(data):
    """Returns a checksum of the arrays in nested tuples, lists and dicts.

    The rest does not count: a text may say where this machine has its part. Nor does
    np.memmap, which may be larger than memory. 1 GB takes 0.3 s.
    """
    import numpy as np  # the launcher, which imports this file, has no need of it

    value = 0
    for array in tf.nest.flatten(data):
        read = isinstance(array, np.ndarray) and not isinstance(array, np.memmap)
        if read and not array.dtype.hasobject:
            value = zlib.crc32(f"{array.dtype.str}{array.shape}".encode(), value)
            value = zlib.crc32(np.ascontiguousarray(array).reshape(-1), value)
    return value


def before_the_end(act):
    """Has `act()` called when this task is told to end, by TERM."""
    _last_acts.append(act)


def _obey_signals():
    """Ends this process at once when it gets INT or TERM, whatever it is doing.

    A handler in Python would have to wait for the call of TensorFlow that the main
    thread is in, and process 1 of a container has no default action to rely on. So
    a thread reads the signal's number from the pipe into which Python's C code puts it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    def end():
        (number,) = os.read(reader, 1)
        if number == signal.SIGTERM and _last_acts:
            act = threading.Thread(
                target=lambda: [a() for a in _last_acts], daemon=True
            )
            act.start()
            act.join(LAST)
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
    path = os.path.join(logdir, f"{name}.log")
    try:
        os.makedirs(logdir, exist_ok=True)
        log = open(path, "a", errors="backslashreplace")
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"--logdir {logdir}: another run's {name} is writing there")
    except OSError as error:
        if error.errno not in NO_LOCKS:
            fail(f"--logdir {logdir}: {error.strerror}")
        if name == "worker-0":
            text = "files cannot be locked there: a second run in it is not noticed"
            print(f"--logdir {logdir}: {text}", flush=True)
    _redirect(log)


def _redirect(log):
    """Sends what TensorFlow and Python's logging say to a file.

    TensorFlow's C++ writes to descriptor 2, whatever sys.stderr is. So descriptor 2
    becomes the log, and sys.stderr a copy of what it was, the screen.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", 1, errors="backslashreplace")
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    os.dup2(log.fileno(), 2)
    logging.basicConfig(stream=log, level=logging.INFO)
    logging.raiseExceptions = False  # a disk that is full takes no log either
