"""A task of a run: how its process begins, and how it ends. Everybody calls it.

  0  all updates are made; the chief has written the result
  1  it failed, said why, and would fail again
  2  a usage error: flags, data, addresses
  3  something that it needs is not on this machine
138  it failed, and another start may help (Kubernetes' policy ExitCode agrees)
"""

import contextlib
import errno
import fcntl
import importlib.util
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import zlib

import cluster
from cluster import addresses, errors
from cluster import tensorflow_v1 as tf

AGAIN = 138
LAUNCHER = "LAUNCHER"  # the process of launch.py, in the environment
LAST = 5  # seconds that a task which is told to end may take for what is left to do
SAY = 10  # seconds between two lines about something that takes long
RECENT = 600  # seconds: a task with a younger log is started again, in the same run
# What a file system answers that has no locks: Lustre, NFS, some of FUSE.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)

_last_acts, _started_again, _late = [], [], []


class Failure(Exception):
    """The whole run has failed, for the reason that is its text."""


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
        tf.remove_generated_files()
        os._exit(status)


def run(main):
    """Runs a script's `main`, and says what has ended it, see `said`."""
    try:
        main()
    except Exception as error:
        # run.sh ends all when the first has failed, so that what all meet is said once.
        time.sleep(len(_late))
        raise SystemExit(said(error)[1]) from None


def said(error):
    """Says on stderr what ends a task; returns it in a line, and the exit status.

    A bug is Python's traceback, an error in a call TensorFlow's reason.
    """
    name = type(error).__name__
    status = AGAIN if errors.is_of_others(error) else 1
    if isinstance(error, Failure):
        sentence = str(error)
    elif "tensorflow" in sys.modules and isinstance(error, tf.errors.OpError):
        sentence = errors.reason(error)
        logging.error("%s", "".join(traceback.format_exception(error)))
    else:
        return f"{name}: {error}", max(status, cluster.end(error))
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    return sentence.splitlines()[0], status


# --- Begin ------------------------------------------------------------------------


def begin(args, problem):
    """Begins a task: its log in LOGDIR, its signals, the import of TensorFlow.

    With --check it begins nothing: the script builds its graph, and `Training` ends the
    program. The launcher's own --check is over here, when the data is found good.
    """
    launched = _launched()
    if args.check and launched:
        if importlib.util.find_spec("tensorflow") is None:
            importlib.import_module("tensorflow")  # fails
        _load(problem, args)
        raise SystemExit(0)
    if args.check:
        with open(os.devnull, "a") as log:
            _redirect(log)
    else:
        _begin(args, launched)
        doing("loading TensorFlow")
        threading.Thread(target=_Doing.say, daemon=True).start()
    tf.logging.set_verbosity(tf.logging.INFO)
    doing(None)
    if args.check:  # the graph needs no server
        tf.train.Server = lambda *_, **__: types.SimpleNamespace(target="")


def _begin(args, launched):
    if args.address:
        try:
            addresses.check_port(args.job_name, args.address)
        except ValueError as error:
            fail(str(error))
        # gRPC obeys http_proxy, also for the hosts of the cluster.
        hosts = {a.rpartition(":")[0] for a in args.ps_hosts + args.worker_hosts}
        os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))
    _allow_connections()
    _obey_signals()
    if launched:
        threading.Thread(target=_follow_launcher, daemon=True).start()
        _late.extend([True] * bool(args.task_index))
    _log_to(args.logdir, name(args))
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # TensorFlow's AutoGraph needs a place for its files
        tempfile.tempdir = args.logdir


def _allow_connections():
    """Lets this process have as many files and connections open as it may.

    gRPC ends a process that has no more; 1,024 is the usual limit until one asks.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS does not take its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Doing:
    """What this task is doing, and since when; None: nothing to speak of."""

    what, since = None, 0.0

    @classmethod
    def say(cls):
        """Says every SAY seconds what this task is still doing."""
        said = 0
        while True:
            time.sleep(1)
            waited = time.monotonic() - cls.since
            times = int(waited / SAY)
            if cls.what and times > said:
                print(f"still {cls.what}, for {waited:.0f} s now", flush=True)
            said = times


def doing(what):
    """Notes what this task does until its first update, if that may take long.

    It is said on the screen every ten seconds, until `doing` is called again.
    """
    _Doing.what, _Doing.since = what, time.monotonic()


def end_check():
    """Ends the program: with --check all that there was to look at is good."""
    print("--check: flags, data and model are good", flush=True)
    raise SystemExit(0)


def data(problem, args):
    """Returns the data of this task's problem; None for a task that only serves.

    Where several workers load it, args.data_checksum is for them to compare.
    """
    several = addresses.clients(args) > 1
    if args.job_name != "worker" or not several and args.task_index:
        return None
    found = _load(problem, args)
    if several:
        args.data_checksum = checksum(found)
    return found


def checksum(data, value=0):
    """Returns a checksum of the arrays in `data`, also in tuples, lists and dicts.

    The rest does not count: a text may say where this machine has its part. Nor does
    np.memmap, which may be larger than memory. 1 GB takes 0.3 s.
    """
    import numpy as np  # the launcher, which imports this file, has no need of it

    if isinstance(data, dict):
        data = list(data.values())
    elif isinstance(data, np.ndarray) and data.dtype.hasobject:
        data = data.tolist()
    if isinstance(data, tuple | list):
        for part in data:
            value = checksum(part, value)
    elif isinstance(data, np.ndarray) and not isinstance(data, np.memmap):
        value = zlib.crc32(f"{data.dtype.str}{data.shape}".encode(), value)
        octets = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        value = zlib.crc32(octets, value)
    return value


def _load(problem, args):
    try:
        return problem.load(args.data, len(args.worker_hosts))
    except ValueError as error:
        flag = getattr(problem, "FLAG", "--data")
        given = any(word.split("=", 1)[-1] == args.data for word in sys.argv)
        fail(f"{flag} {args.data}{'' if given else ' (the default)'}: {error}")


def name(args):
    """Returns the name of a task's log."""
    return f"{args.job_name}-{args.task_index}"


def is_started_again():
    """Says whether this task was in this LOGDIR a short while ago."""
    return bool(_started_again)


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
        tf.remove_generated_files()
        os._exit(128 + number)

    threading.Thread(target=end, daemon=True).start()


def _launched():
    """Says whether launch.py has started this process; ends it if that is gone."""
    launcher = os.environ.get(LAUNCHER, "")
    try:
        os.kill(int(launcher), 0)
    except ProcessLookupError:
        end_now(f"{LAUNCHER}={launcher}: no such process", 128 + signal.SIGTERM)
    except (ValueError, OverflowError, OSError):
        pass  # another program's variable
    return launcher == str(os.getppid())


def _follow_launcher():
    """Ends this process when launch.py, which started it, was killed."""
    while os.getppid() == int(os.environ[LAUNCHER]):
        time.sleep(1)
    tf.remove_generated_files()
    os._exit(128 + signal.SIGTERM)


def _log_to(logdir, name):
    """Sends what TensorFlow and Python's logging say to LOGDIR/`name`.log."""
    try:
        os.makedirs(logdir, exist_ok=True)
        path = os.path.join(logdir, f"{name}.log")
        if os.path.exists(path) and time.time() - os.path.getmtime(path) < RECENT:
            _started_again.append(path)
        log = open(path, "a", errors="backslashreplace", opener=no_link)
        if not lock(log) and name == "worker-0":
            print(
                f"--logdir {logdir}: files cannot be locked there, so that a second "
                "run in it would not be noticed",
                flush=True,
            )
    except BlockingIOError:
        fail(f"--logdir {logdir}: another run's {name} is writing there")
    except OSError as error:
        link = f"{path} is a link: a task writes nothing outside"
        fail(f"--logdir {logdir}: {link if os.path.islink(path) else error.strerror}")
    _redirect(log)


def lock(file, how=fcntl.LOCK_EX | fcntl.LOCK_NB):
    """Locks an open file; returns False where the file system has no locks.

    Raises BlockingIOError if another process has locked it.
    """
    try:
        fcntl.flock(file, how)
        return True
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise


def no_link(path, flags):
    """Opens a file in LOGDIR, for `open`; raises OSError if it is a symbolic link.

    Where others may write they could have placed one to a file of this user.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _redirect(log):
    # TensorFlow's C++ writes to descriptor 2, whatever sys.stderr is. So descriptor 2
    # becomes the log, and sys.stderr a copy of what it was, the screen.
    sys.stderr = os.fdopen(os.dup(2), "w", 1, errors="backslashreplace")
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    os.dup2(log.fileno(), 2)
    logging.basicConfig(stream=log, level=logging.INFO)
    logging.raiseExceptions = False  # a disk that is full takes no log either
