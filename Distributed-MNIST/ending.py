"""When a run ends: after so many updates or epochs, or early. The script calls it."""

import os

from cluster.task import fail
from records import count


def check(args):
    """Returns args, --replicas_to_aggregate set; ends the program if that is wrong."""
    workers = len(args.worker_hosts)
    args.replicas_to_aggregate = n = args.replicas_to_aggregate or workers
    if n > workers:
        fail(f"--replicas_to_aggregate {n}: there are {workers} workers")
    try:
        args.export = args.export and directory(args.export, "--export")
    except ValueError as error:
        fail(str(error))
    return args


def directory(name, flag):
    """Returns an absolute path to write models at; raises ValueError if it is none."""
    if "://" in name or set(os.path.abspath(name)) & set("[*?\\"):
        text = "is not on this machine, or a pattern for TensorFlow: choose another"
        raise ValueError(f"{flag} {name} {text}")
    return os.path.abspath(os.path.expanduser(name))


def steps_of(args, index):
    """Returns the updates that --epochs over the training images take."""
    examples = count(index.splits["train"])
    each = args.replicas_to_aggregate if args.issync else 1
    return max(1, round(args.epochs * examples / (args.batch_size * each)))
