"""Flags: their types, the strict parser, what is checked before anything starts.

Scripts call it first. Every mistake ends in one sentence on stderr and status 2.
"""

import argparse
import contextlib
import json
import math
import os
import re
import sys
import time
import zlib

import cluster
from cluster import addresses, task
from cluster import tensorflow_v1 as tf
from cluster.task import fail

# Flags that may differ from task to task: who it is, where it writes, how it waits.
OWN = ("job_name", "task_index", "address", "logdir", "check", "save_seconds")
OWN += ("patience", "slow_workers", "device", "lines")


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
    for screen in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # it is closed, or of another kind
            screen.reconfigure(errors="backslashreplace")  # where η is no character
    return _Parser(description=doc, formatter_class=_Help, allow_abbrev=False)


def parser(scheme, doc, data=DATA):
    """Returns a strict argument parser with the flags that every script has."""
    new = strict(doc)
    add = new.add_argument
    add(*data[0], dest="data", default=data[1], help=data[2])
    add("--batch_size", type=positive_int, default=32, help="examples in a mini-batch")
    add("--learning_rate", type=positive, default=0.1, help="η, the learning rate")
    add(
        "--steps",
        type=positive_int,
        default=4000,
        help="global steps: how many updates of the center variable the run makes",
    )
    add("--seed", type=natural, default=0, help="seed of the weights and the batches")
    add(
        "--logdir",
        help="where logs, checkpoints and result.json go; a run that has a checkpoint "
        "there\ngoes on from it (if not given: a new directory in logdir/)",
    )
    add("--save_seconds", type=positive, default=30, help="seconds between checkpoints")
    add("--patience", type=positive, default=60, help="seconds to wait for an answer")
    add("--check", action="store_true", help="check flags, data and model, and end")
    # A line every tenth of the way, and when 1, 2, 4, 8, 10 s had none.
    new.set_defaults(scheme=scheme, lines=10)
    return new


def add_cluster_flags(parser, jobs=("ps", "worker")):
    """Adds the flags that tell a task who it is; see `parse` for TF_CONFIG.

    In a scheme without ps every task is a worker, and there is no --ps_hosts. A program
    may have a third job, evaluator, which has no address in the cluster.
    """
    add, parser.jobs = parser.add_argument, jobs
    only = jobs[0] if len(jobs) == 1 else None
    add("--job_name", choices=jobs, default=only, help="the job of this task")
    if "ps" in jobs:
        add("--ps_hosts", help="host:port of every ps, separated by commas")
    add("--task_index", type=natural, help="its number, from 0; worker 0 is the chief")
    add("--worker_hosts", help="host:port of every worker, separated by commas")
    add(
        "--slow_workers",
        type=seconds_list,
        default=[0.0],
        help="extra seconds for each gradient, to simulate a slow machine:\none number "
        "for all workers, or one for each, as in 0,0.05",
    )


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
seconds = _number(float, lambda v: 0 <= v < 3600, "seconds")


def seconds_list(text):
    """Flag type: seconds, separated by commas."""
    return [seconds(item) for item in text.split(",")]


def parse(parser, argv=None):
    """Returns the checked flags; ends the program with status 2 at the first mistake.

    In a script with cluster flags `args.ps_hosts` and `args.worker_hosts` are lists
    afterwards, `args.address` is where this task serves, and `args.device` its name in
    the cluster. Without any of the flags that say this TF_CONFIG is read.
    """
    args = parser.parse_args(argv)
    try:
        if parser.jobs:
            _find_cluster(args, parser.jobs)
        else:
            args.job_name, args.task_index, args.address = "worker", 0, None
            args.ps_hosts, args.worker_hosts = [], ["this process"]
        if args.check and args.job_name != "worker":  # it has no graph: the chief has
            args.job_name, args.task_index = "worker", 0
        args.device = addresses.device(args.job_name, args.task_index)
        default = os.path.join("logdir", time.strftime("%Y-%m-%d_%H-%M-%S"))
        args.logdir = directory(args.logdir or os.environ.get(task.AFTER) or default)
    except ValueError as error:
        fail(str(error))
    return args


def directory(name, flag="--logdir"):
    """Returns an absolute path to save models at; raises ValueError if it is none."""
    path = os.path.expanduser(name)
    if re.match(r"[\w+.-]+://|~", path):
        raise ValueError(f"{flag} {name} is no directory of this machine")
    nearest = path = os.path.abspath(path)
    if not path.isprintable() or set(path) & set("[*?\\"):
        text = (
            "a character that is a pattern for TensorFlow ([ * ? \\), or not printable"
        )
        raise ValueError(f"{flag} {path!r} has {text}: choose another directory")
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK):
        raise ValueError(f"{flag} {path}: {nearest} is not a directory to write in")
    return path


def _find_cluster(args, jobs):
    """Sets who this task is and where all are, from the flags or from TF_CONFIG."""
    names = ("job_name", "task_index", "ps_hosts", "worker_hosts")
    with_ps = "ps" in jobs
    needed = names if with_ps else ("task_index", "worker_hosts")
    missing = [name for name in needed if getattr(args, name) is None]
    if len(missing) == len(needed) and os.environ.get("TF_CONFIG"):
        found = addresses.from_tf_config(os.environ["TF_CONFIG"], with_ps)
        if found[0] not in jobs:
            raise ValueError("TF_CONFIG: no evaluator is needed, the chief evaluates")
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
            raise ValueError(
                f"--task_index {args.task_index}: --{args.job_name}_hosts has "
                f"{len(hosts)} entries, 0..{len(hosts) - 1}"
            )
        args.address = hosts[args.task_index]
    slow, workers = len(args.slow_workers), len(args.worker_hosts)
    if slow not in (1, workers):
        raise ValueError(f"--slow_workers has {slow} entries for {workers} workers")


# --- Fingerprint --------------------------------------------------------------------


def fingerprint(args, elements):
    """Returns what all workers of a run must agree on, {what it is: value}.

    A worker with another window, rule, or list of hosts would train something else or
    wait for ever, and nobody would notice. `elements` is the size of the model; the
    checksum of the data is among the flags, see task.begin.
    """
    values = {f"--{k}": value for k, value in vars(args).items() if k not in OWN}
    values["--data"] = os.path.basename(args.data)
    values["the checksum of the data"] = values.pop("--data_checksum", None)
    values |= {"TensorFlow": tf.VERSION, "the number of parameters": elements}
    # Of the folder what is loaded, as it was at the start of all: a few small files.
    for module in [*sys.modules.values()]:
        path = getattr(module, "__file__", None) or ""
        if (
            path.startswith(os.path.join(cluster.FOLDER, ""))
            and "site-packages" not in path
        ):
            with open(path, "rb") as file:
                name = f"the code of {os.path.relpath(path, cluster.FOLDER)}"
                values[name] = f"{zlib.crc32(file.read()):x}"
    return json.loads(json.dumps(values))


def difference(mine, others):
    """Returns a sentence about the first value in which two fingerprints differ."""
    if mine["--scheme"] != others["--scheme"]:
        return f"this is {mine['--scheme']}, the run is {others['--scheme']}"
    for what in mine:
        if mine[what] != others.get(what, mine[what]):
            return f"{what} is {mine[what]} here, {others[what]} in the run"
    return None
