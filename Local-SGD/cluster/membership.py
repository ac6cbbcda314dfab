"""Who is in the ring, with --min_workers; before there is one. Scripts call it.

TensorFlow's ring has the members with which it began. So when one comes or goes all
begin again, as the same processes, in a ring of the workers that are there.

begin  before there is a ring there is no server of TensorFlow: the chief listens at its
       own address, and tells the workers that come who the members are
come   a worker that finds the others training tells the chief that it wants to join
go     a worker that gets TERM leaves after a round; one that is killed is lost, and
       with it what came after the last checkpoint
"""

import contextlib
import json
import socket
import time
import types

from cluster import addresses, flags, link
from cluster import tensorflow_v1 as tf
from cluster.link import ANSWER, STARTING

HELLO = b"who is there?\n"  # says a chief that listens; a server says something else
LATER = 5  # seconds after the last one came that the chief waits for one more


def add_flag(parser):
    """Adds --min_workers."""
    parser.add_argument(
        "--min_workers",
        type=flags.natural,
        default=0,
        help="go on while so many workers are there; 0: a lost worker is waited for",
    )


def gather(args):
    """Makes args.worker_hosts the members, and args.task_index this worker's rank."""
    if not args.min_workers:
        return
    members = (announce if args.task_index else welcome)(args)
    if len(members) < len(args.worker_hosts):
        print(f"goes on with workers {', '.join(map(str, members))}", flush=True)
    args.worker_hosts = [args.worker_hosts[k] for k in members]
    args.task_index = members.index(args.task_index)
    args.device = addresses.device("worker", args.task_index)


def welcome(args):
    """Chief: returns who comes: all, or --min_workers and nobody else for 5 s."""
    count, lines, last = len(args.worker_hosts), {}, time.monotonic()
    least = min(args.min_workers, count)
    port = addresses.split(args.address)[1]
    family = socket.AF_INET6 if "[" in args.address else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listening = socket.create_server(("", port), family=family)
        stack.enter_context(listening).settimeout(0.1)

        def missing():
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
            enough = there == count or (late and there >= least)
            return "" if enough else f"{max(1, least - there)} more of {count} workers"

        link.wait(missing, args, STARTING * args.patience, every=0)
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
    """Worker: returns the members, when it is one of them; asks again if they train."""
    chief, members = args.worker_hosts[0], []
    master = types.SimpleNamespace(target=f"grpc://{chief}")  # as a server has it
    asks = link.Link(args, master, "/job:worker/task:0")

    def missing():
        with contextlib.suppress(OSError, ValueError):
            with socket.create_connection(addresses.split(chief), ANSWER) as line:
                text = line.makefile("rb")
                if text.readline(len(HELLO)) == HELLO:
                    line.sendall(b"%d\n" % args.task_index)
                    line.settimeout(None)
                    members[:] = json.loads(text.readline())
                    return "" if args.task_index in members else link.chief(args)
            with contextlib.suppress(tf.errors.OpError):
                asks.tell(wanted=True)
        return link.chief(args)

    link.wait(missing, args, link.starting(args), every=1)
    return members
