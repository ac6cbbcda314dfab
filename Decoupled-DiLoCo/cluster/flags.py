"""Flags: their types, the strict parser, what is checked before anything starts.

Scripts call it first. Every mistake ends in one sentence on stderr and status 2.
"""

import argparse
import glob
import json
import math
import os
import time
import zlib

import cluster
from cluster import addresses, task
from cluster import tensorflow_v1 as tf
from cluster.task import fail

# Flags that may differ from task to task: who it is, where it writes, how it waits.
OWN = ("job_name", "task_index", "address", "logdir", "check", "save_seconds")
OWN += ("patience", "slow_workers", "device", "lines")  # see slow.py


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawTextHelpFormatter):
    """Default values behind the flags that have one, and the docstring as it is."""

    def _get_help_string(self, action):
        absent = action.default is None or action.default is False
        return action.help if absent else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    jobs = ()  # that a task may have; none where there is one process

    def error(self, message):
        fail(message)


# The flag that names the data, its default, and what can be named.
DATA = (["--data"], "digits", "the data: digits, mnist, fashion_mnist or FILE.npz")


def strict(doc):
    """Returns an argument parser without flags; a mistake is one sentence."""
    return _Parser(description=doc, formatter_class=_Help, allow_abbrev=False)


def parser(scheme, doc, data=DATA):
    """Returns a strict argument parser with the flags that every script has."""
    new = strict(doc)
    add = new.add_argument
    add(*data[0], dest="data", default=data[1], help=data[2])
    add("--batch_size", type=positive_int, default=32, help="examples in a mini-batch")
    add("--learning_rate", type=positive, default=0.1, help="η, the learning rate")
    add("--steps", type=positive_int, default=4000, help="updates that the run makes")
    add("--seed", type=natural, default=0, help="seed of the weights and the batches")
    add("--logdir", help="folder of the run: logs, checkpoints, result.json")
    add("--save_seconds", type=positive, default=30, help="seconds between checkpoints")
    add("--patience", type=positive, default=60, help="seconds to wait for an answer")
    add("--check", action="store_true", help="check flags and data, and end")
    # A line every tenth of the way. With one client the other workers only serve.
    new.set_defaults(scheme=scheme, lines=10, one_client=False)
    return new


def add_cluster_flags(parser, jobs=("ps", "worker")):
    """Adds the flags that tell a task who it is; without them TF_CONFIG is read.

    In a scheme without ps every task is a worker. A program may have a third job,
    evaluator, which has no address in the cluster.
    """
    add, parser.jobs = parser.add_argument, jobs
    only = jobs[0] if len(jobs) == 1 else None
    add("--job_name", choices=jobs, default=only, help="the job of this task")
    if "ps" in jobs:
        add("--ps_hosts", help="host:port of every ps, separated by commas")
    add("--task_index", type=natural, help="its number, from 0; worker 0 is the chief")
    add("--worker_hosts", help="host:port of every worker, separated by commas")


def _number(kind, test, what):
    def convert(text):
        try:
            value = kind(text)
            if test(value):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return convert


positive_int = _number(int, lambda v: 0 < v < 2**63, "a whole number of at least 1")
natural = _number(int, lambda v: 0 <= v < 2**31, "a whole number of at least 0")
positive = _number(float, lambda v: 0 < v < math.inf, "a number above 0")
not_negative = _number(float, lambda v: 0 <= v < math.inf, "a number of at least 0")
share = _number(float, lambda v: 0 < v <= 1, "a number above 0, at most 1")
fraction = _number(float, lambda v: 0 <= v < 1, "a number from 0 up to, not with, 1")


def parse(parser, argv=None):
    """Returns the checked flags; ends the program with status 2 at the first mistake.

    `args.ps_hosts` and `args.worker_hosts` are lists afterwards, `args.address` is
    where this task serves, and `args.device` its name in the cluster.
    """
    args = parser.parse_args(argv)
    try:
        if parser.jobs:
            _find_cluster(args, parser.jobs)
        else:
            args.job_name, args.task_index, args.address = "worker", 0, None
            args.ps_hosts, args.worker_hosts = [], ["this process"]
        if args.check:  # the chief has all that there is to look at
            args.job_name, args.task_index = "worker", 0
        args.device = addresses.device(args.job_name, args.task_index)
        default = os.path.join("logdir", time.strftime("%Y-%m-%d_%H-%M-%S"))
        logdir = args.logdir or os.environ.get(task.AFTER) or default
        args.logdir = os.path.abspath(os.path.expanduser(logdir))
        if ":/" in args.logdir or set(args.logdir) & set("[*?\\"):
            text = "is not on this machine, or a pattern for TensorFlow: choose another"
            raise ValueError(f"--logdir {args.logdir} {text}")
    except ValueError as error:
        fail(str(error))
    return args


def _find_cluster(args, jobs):
    """Sets who this task is and where all are, from the flags or from TF_CONFIG."""
    names = ("job_name", "task_index", "ps_hosts", "worker_hosts")
    with_ps = "ps" in jobs
    needed = names if with_ps else ("task_index", "worker_hosts")
    missing = [name for name in needed if getattr(args, name) is None]
    if len(missing) == len(needed) and os.environ.get("TF_CONFIG"):
        found = addresses.from_tf_config(os.environ["TF_CONFIG"], with_ps)
        if found[0] not in jobs:
            raise ValueError(f"TF_CONFIG: here is no task of type {found[0]}")
        for name, value in zip(names, found, strict=True):
            setattr(args, name, value)
    elif missing:
        why = f": {', '.join(needed)} are needed together, or TF_CONFIG"
        raise ValueError(f"--{missing[0]} is missing{why}")
    lists = ("ps_hosts", "worker_hosts") if with_ps else ("worker_hosts",)
    found = addresses.host_lists(**{name: getattr(args, name) for name in lists})
    args.ps_hosts, args.worker_hosts = [[], *found][-2:]
    if args.job_name in ("ps", "worker"):
        hosts = args.ps_hosts if args.job_name == "ps" else args.worker_hosts
        if args.task_index >= len(hosts):
            text = f"--{args.job_name}_hosts has {len(hosts)} entries"
            raise ValueError(f"--task_index {args.task_index}: {text}")
        args.address = hosts[args.task_index]


def fingerprint(args, elements):
    """Returns what all workers of a run must agree on, {what it is: value}.

    With another window it would train something else, and nobody would notice.
    `elements` is the size of the model; for the data see task.begin.
    """
    values = {f"--{k}": value for k, value in vars(args).items() if k not in OWN}
    values["--data"] = os.path.basename(args.data)
    values["the checksum of the data"] = values.pop("--data_checksum", None)
    values |= {"TensorFlow": tf.VERSION, "the number of parameters": elements}
    here = cluster.FOLDER
    code = [*glob.glob("*.py", root_dir=here), *glob.glob("*/*.py", root_dir=here)]
    for path in code:
        with open(os.path.join(here, path), "rb") as file:
            values[f"the code of {path}"] = f"{zlib.crc32(file.read()):x}"
    return json.loads(json.dumps(values))


def difference(mine, others):
    """Returns a sentence about the first value in which two fingerprints differ."""
    if mine["--scheme"] != others["--scheme"]:
        return f"this is {mine['--scheme']}, the run is {others['--scheme']}"
    for what in mine:
        if mine[what] != others.get(what, mine[what]):
            return f"{what} is {mine[what]} here, {others[what]} in the run"
    return None
