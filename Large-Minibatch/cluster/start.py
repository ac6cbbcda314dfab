"""First call of every task: LOGDIR, TensorFlow's noise into a log, signals."""

import fcntl
import logging
import os
import signal
import sys
import threading
import time

from cluster import addresses, flags
from cluster import tensorflow_v1 as tf
from cluster.exits import fail

LAUNCHER = "LAUNCHER"  # run.sh's process, in the environment
LAST = 5  # seconds that a task which is told to end may take for what is left to do

_last_acts = []


def before_the_end(act):
    """Has `act()` called when this task is told to end, by TERM."""
    _last_acts.append(act)


def _obey_signals():
    """Ends this process at once when it gets INT or TERM, whatever it is doing.

    A handler of Python's would have to wait for the call of TensorFlow that the main
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
    """Ends this process when run.sh, which started it, was killed."""
    while os.getppid() == int(os.environ[LAUNCHER]):
        time.sleep(1)
    os._exit(128 + signal.SIGTERM)


def begin(args, problem, name="worker-0"):
    """Makes LOGDIR, sends TensorFlow's messages to LOGDIR/`name`.log, imports it.

    With --check it ends the program instead, once flags and data are found good.
    """
    if hasattr(args, "address"):
        try:
            addresses.check_port(args.job_name, args.address)
        except ValueError as error:
            fail(str(error))
        # gRPC obeys http_proxy, also for the hosts of the cluster.
        hosts = {a.rpartition(":")[0] for a in args.ps_hosts + args.worker_hosts}
        os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))
    if args.check:
        flags.data(problem, args, len(getattr(args, "worker_hosts", "1")))
        raise SystemExit(0)
    _obey_signals()
    if os.environ.get(LAUNCHER) == str(os.getppid()):
        threading.Thread(target=_follow_launcher, daemon=True).start()
    try:
        os.makedirs(args.logdir, exist_ok=True)
        log = open(os.path.join(args.logdir, f"{name}.log"), "a")
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"--logdir {args.logdir}: another run's {name} is writing there")
    except OSError as error:
        fail(f"--logdir {args.logdir}: {error.strerror}")
    # TensorFlow's C++ writes to descriptor 2, whatever sys.stderr is. So descriptor 2
    # becomes the log, and sys.stderr a copy of what it was, the screen. Python's own
    # logging goes to the log too.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    os.dup2(log.fileno(), 2)
    logging.basicConfig(stream=log, level=logging.INFO)
    logging.raiseExceptions = False  # a disk that is full takes no log either
    try:
        tf.logging.set_verbosity(tf.logging.INFO)
    except ImportError as error:
        fail(
            f"{sys.executable} has no TensorFlow that can be imported ({error}): "
            'pip install "tensorflow==2.21.*" numpy scikit-learn, or name another '
            "interpreter",
            3,
        )
