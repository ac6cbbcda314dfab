"""Workers that come and go between rounds, with --min_workers. Scripts call it.

TensorFlow's ring has the members with which it began. So a change of the membership
ends it, as a run ends: all finish the same round and the chief saves. Then every
process begins anew, as the same process, in a ring of the workers that are there.

begin  before there is a ring there is no server of TensorFlow: the chief listens at its
       own address, and tells the workers that come who the members are
come   a worker that finds the others training sends the chief a join request
go     a worker that gets TERM leaves after the round; one that is killed is lost, and
       with it what came after the last checkpoint
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time

from cluster import flags, heartbeat, peers, task
from cluster import tensorflow_v1 as tf
from cluster.incarnation import temporary
from cluster.patience import ANSWER, STARTING, starting, wait
from cluster.task import end_now

HELLO = b"who is there?\n"  # says a chief that listens; a server says something else
LATER = 5  # seconds after the last one came that the chief waits for one more
CHIEF = "/job:worker/task:0"

# --- Begin ------------------------------------------------------------------------


def add_flag(parser):
    """Adds --min_workers."""
    parser.add_argument(
        "--min_workers",
        type=flags.natural,
        default=0,
        help="go on while so many workers are there; 0: a lost worker ends the run",
    )


def gather(args):
    """Makes args.worker_hosts the members, and args.task_index this worker's rank.

    Does nothing without --min_workers, or with --check. Ends the program if too few
    come in ten times --patience.
    """
    if not args.min_workers or args.check:
        return
    members = (announce if args.task_index else welcome)(args)
    if len(members) < len(args.worker_hosts):
        print(f"goes on with workers {', '.join(map(str, members))}", flush=True)
    args.worker_hosts = [args.worker_hosts[k] for k in members]
    if len(args.slow_workers) > 1:
        args.slow_workers = [args.slow_workers[k] for k in members]
    args.task_index = members.index(args.task_index)


def welcome(args):
    """Chief: returns the numbers of the workers that come, once no more are expected.

    That is when all are there, or --min_workers and none has come for 5 s.
    """
    count, lines, last = len(args.worker_hosts), {}, time.monotonic()
    least = min(args.min_workers, count)
    host, _, port = args.address.rpartition(":")
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listening = socket.create_server(("", int(port)), family=family)
        stack.enter_context(listening).settimeout(0.1)

        def complete():
            nonlocal last
            with contextlib.suppress(OSError, ValueError):
                line = stack.enter_context(listening.accept()[0])
                line.settimeout(ANSWER)
                line.sendall(HELLO)
                worker = int(line.makefile().readline(20))
                if 0 < worker < count:
                    lines[worker], last = line, time.monotonic()
            for worker in [k for k, line in lines.items() if _has_left(line)]:
                del lines[worker]
            there, late = 1 + len(lines), time.monotonic() > last + LATER
            return there == count or (late and there >= least)

        def who():
            return f"{max(1, least - 1 - len(lines))} more of {count} workers"

        wait(complete, who, STARTING * args.patience, every=0)
        members = [0, *sorted(lines)]
        for line in lines.values():
            with contextlib.suppress(OSError):
                line.sendall(json.dumps(members).encode() + b"\n")
    return members


def _has_left(line):
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def announce(args):
    """Worker: returns the numbers of the members, when it is one of them.

    If they are training without it already, it sends a join request, and comes again.
    """
    chief, members = args.worker_hosts[0], []
    host, _, port = chief.rpartition(":")

    def told():
        with contextlib.suppress(OSError, ValueError):
            address = host.strip("[]"), int(port)
            with socket.create_connection(address, ANSWER) as line:
                text = line.makefile("rb")
                if text.readline(len(HELLO)) == HELLO:
                    line.sendall(b"%d\n" % args.task_index)
                    line.settimeout(None)
                    members[:] = json.loads(text.readline())
                    return args.task_index in members
            _request(chief)
        return False

    where = heartbeat.chief(args)
    wait(told, lambda: where, starting(args), every=1, args=args)
    return members


def requested():
    """Returns the variable on the chief: does one more worker want to join?"""
    with tf.device(CHIEF):
        return temporary("requested", tf.constant(0.0))


def _request(chief):
    """Tells the chief, which is training, that one more worker wants to join."""
    config = tf.ConfigProto(
        operation_timeout_in_ms=1000 * ANSWER, device_filters=[CHIEF]
    )
    with contextlib.suppress(tf.errors.OpError), tf.Graph().as_default():
        request = requested().assign(1.0).op
        with tf.Session(f"grpc://{chief}", config=config) as session:
            # Else a session closes in a thread, whose error, if the chief is gone, is
            # a traceback.
            with contextlib.suppress(tf.errors.OpError):
                session.run(request)


# --- End of a round, and of a ring --------------------------------------------------


class Run(peers.Run):
    """A worker among peers of whom some may come or go."""

    def __init__(self, args, target, config, stats, ring, learning, calls, test):
        self.requested, self.goes = requested(), False  # one more; this worker
        self.gone = threading.Event()
        super().__init__(args, target, config, stats, ring, learning, calls, test)
        self.mine = tf.placeholder(tf.float32, [])
        self.change = ring.largest(self.mine)
        if args.min_workers and not self.chief:
            task.before_the_end(self._go)

    def _go(self):
        self.goes = True
        self.gone.wait()

    def train(self, session):
        """Makes rounds, as before; after them all may begin anew."""
        super().train(session)
        if not self.over and self.args.min_workers:
            wish = session.run(self.requested) if self.chief else float(self.goes)
            if session.run(self.change, {self.mine: wish}):
                self._change(session)

    def _change(self, session):
        self.check.make(session)
        self.detector.complete = False  # a worker that is silent now has left
        with self.rendezvous.session() as told:
            self.rendezvous.report(told, self.report.mean_loss())
            if self.chief:
                losses = self.rendezvous.collect(told)
                self.save(session)
                print(f"workers come or go at global step {self.saved[0]}")
                there = [loss is not None for loss in losses.values()]
                self.rendezvous.dismiss(told, there)
            else:
                self.rendezvous.is_dismissed(told)
        self._anew()

    def give_up(self, sentence):
        """Begins anew with the workers that are there, if --min_workers allows it."""
        if not self.args.min_workers:
            super().give_up(sentence)
        if not self.goes:
            print(sentence)
        self._anew()

    def _anew(self):
        """Begins this program again, as the same process; or ends it, if it goes."""
        if self.goes:
            self.gone.set()  # the end itself is the signal's
            threading.Event().wait()
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), 2)
        try:
            os.execv(sys.executable, sys.orig_argv)
        except OSError as error:
            end_now(f"cannot begin anew: {error.strerror}")
