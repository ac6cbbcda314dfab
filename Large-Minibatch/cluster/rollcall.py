"""Who is there? What workers and their chief say to each other. `members` calls it.

Before there is a ring there is no server of TensorFlow either. So the chief listens at
its own address until all are there who are to be expected, and tells them who they are.
"""

import contextlib
import json
import socket
import time

from cluster import tensorflow_v1 as tf
from cluster import watch
from cluster.incarnation import temporary

HELLO = b"who is there?\n"  # says a chief that listens; a server says something else
LATER = 5  # seconds after the last one came that the chief waits for one more
CHIEF = "/job:worker/task:0"


def receive(args):
    """Chief: returns the numbers of those who come, once no more are to be expected.

    That is when all are there, or --min_workers and none has come for 5 s.
    """
    seats, here, last = len(args.worker_hosts), {}, time.monotonic()
    least = min(args.min_workers, seats)
    host, _, port = args.address.rpartition(":")
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        door = socket.create_server(("", int(port)), family=family)
        stack.enter_context(door).settimeout(0.1)

        def complete():
            nonlocal last
            with contextlib.suppress(OSError, ValueError):
                guest = stack.enter_context(door.accept()[0])
                guest.settimeout(watch.SAY)
                guest.sendall(HELLO)
                number = int(guest.makefile().readline(20))
                if 0 < number < seats:
                    here[number], last = guest, time.monotonic()
            for number in [n for n, guest in here.items() if _has_left(guest)]:
                del here[number]
            count, late = 1 + len(here), time.monotonic() > last + LATER
            return count == seats or (late and count >= least)

        def who():
            return f"{max(1, least - 1 - len(here))} more of {seats} workers"

        watch.wait(complete, who, watch.STARTING * args.patience, every=0)
        there = [0, *sorted(here)]
        for guest in here.values():
            with contextlib.suppress(OSError):
                guest.sendall(json.dumps(there).encode() + b"\n")
    return there


def _has_left(guest):
    guest.setblocking(False)
    try:
        return guest.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def report(args):
    """Worker: returns the numbers of those who are there, itself among them.

    If they are training without it already, it knocks, and comes again.
    """
    chief, found = args.worker_hosts[0], []
    host, _, port = chief.rpartition(":")

    def told():
        with contextlib.suppress(OSError, ValueError):
            address = host.strip("[]"), int(port)
            with socket.create_connection(address, watch.SAY) as line:
                text = line.makefile("rb")
                if text.readline(len(HELLO)) == HELLO:
                    line.sendall(b"%d\n" % args.task_index)
                    line.settimeout(None)
                    found[:] = json.loads(text.readline())
                    return args.task_index in found
            _knock(chief)
        return False

    where = f"the chief, worker 0 at {chief}"
    watch.wait(told, lambda: where, watch.STARTING * args.patience, every=1)
    return found


def wanted():
    """Returns the variable on the chief: does one more worker want to join?"""
    with tf.device(CHIEF):
        return temporary("wanted", tf.constant(0.0))


def _knock(chief):
    """Tells the chief, which is training, that one more worker is there."""
    config = watch.in_time(tf.ConfigProto(device_filters=[CHIEF]))
    with contextlib.suppress(tf.errors.OpError), tf.Graph().as_default():
        knock = wanted().assign(1.0).op
        with tf.Session(f"grpc://{chief}", config=config) as session:
            # Else a session closes in a thread, whose error, if the chief is gone, is
            # a traceback.
            with contextlib.suppress(tf.errors.OpError):
                session.run(knock)
