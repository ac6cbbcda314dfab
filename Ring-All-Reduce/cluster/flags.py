"""Flags: their types, the strict parser, what is checked before anything starts.

Scripts call it first. Every mistake ends in one sentence on stderr and status 2.
"""

import argparse
import difflib
import glob
import hashlib
import math
import os
import re
import sys
import time

from cluster import addresses
from cluster.task import fail

SAME_RUN = 600  # seconds: by hand, a run's tasks are started within
# What run.sh takes from the environment: see launch.py.
KNOBS = ("NUM_PS", "NUM_WORKERS", "BASE_PORT", "OPEN_PORTS", "LOGDIR", "TIMEOUT")
KNOBS += ("MAX_RESTARTS", "DRY_RUN", "PYTHON")
# A flag with several values has a plural name. Here a space stands beside a comma.
SPACED = re.compile(r"(--\w+s)[ =](\S+(?:(?:, +| +,) *[^-\s,]\S*)+)")


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawTextHelpFormatter):
    """Default values behind the flags that have one, and the docstring as it is."""

    def _get_help_string(self, action):
        absent = action.default is None or action.default is False
        return action.help if absent else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    jobs = ()  # that a task may have; none where there is one process

    def parse_args(self, args=None, namespace=None):
        cut = SPACED.search(" ".join(sys.argv[1:] if args is None else args))
        if cut:
            flag, value = cut.groups()
            whole = value.replace(" ", "")
            fail(f"{flag} {value}: leave out the spaces, as in {flag} {whole}")
        return super().parse_args(args, namespace)

    def error(self, message):
        unknown = re.match(r"unrecognized arguments: -*([\w-]+)", message)
        fail(message + (self._meant(unknown[1]) if unknown else ""))

    def _meant(self, name):
        """Returns half a sentence: what somebody may have meant by an unknown flag."""
        name = name.lower().replace("-", "_")
        flags = [a.option_strings[-1] for a in self._actions if a.option_strings]
        known = {**{k.lower(): k for k in KNOBS}, **{f[2:]: f for f in flags}}
        longer = [k for k in known if k.startswith(name) and known[k] in flags]
        near = difflib.get_close_matches(name, known, 1, 0.75)
        found = known[longer[0]] if len(longer) == 1 else near and known[near[0]]
        if not found or found in flags:
            return f"; did you mean {found}?" if found else ""
        return f"; {found} is set before the command: {found}=... bash run.sh"


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
    add(
        "--save_seconds",
        type=positive,
        default=30,
        help="seconds between checkpoints",
    )
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
    afterwards, and `args.address` is where this task serves. Without any of the flags
    that say this the cluster is read from TF_CONFIG.
    """
    args = parser.parse_args(argv)
    try:
        if parser.jobs:
            _find_cluster(args, parser.jobs)
        else:
            args.job_name, args.task_index, args.address = "worker", 0, None
            args.ps_hosts, args.worker_hosts = [], ["this process"]
    except ValueError as error:
        fail(str(error))
    builds = args.job_name == "worker" and addresses.clients(args) > 1
    if args.check and not builds:  # a task that has no graph looks at the chief's
        args.job_name, args.task_index = "worker", 0
    try:
        args.logdir = directory(args.logdir or _default_logdir(args, parser.jobs))
    except ValueError as error:
        fail(str(error))
    nearest = args.logdir
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK):
        fail(f"--logdir {args.logdir}: {nearest} is not a directory to write in")
    return args


def directory(name, flag="--logdir"):
    """Returns an absolute path to save models at; raises ValueError if it is none."""
    path = os.path.expanduser(name)
    if re.match(r"[\w+.-]+://|~", path):
        raise ValueError(f"{flag} {name} is no directory of this machine")
    path = os.path.abspath(path)
    if not path.isprintable():
        raise ValueError(f"{flag} {path!r} has a character that cannot be printed")
    if set(path) & set("[*?\\"):
        text = "TensorFlow takes [ * ? and \\ in a path for a pattern"
        raise ValueError(f"{flag} {path}: {text}, choose another directory")
    return path


def _default_logdir(args, jobs):
    """Returns logdir/<time>, in a cluster the one that the run's other tasks have.

    Tasks that are started by hand do not start in the same second. A directory is of
    this run if its name ends as the host lists say, and this task has no log in it yet.
    """
    name = os.path.join("logdir", time.strftime("%Y-%m-%d_%H-%M-%S"))
    if not jobs:
        return name
    hosts = " ".join(args.ps_hosts + args.worker_hosts).encode()
    run = hashlib.sha256(hosts).hexdigest()[:6]
    for newest in sorted(glob.glob(f"logdir/*-{run}"))[-1:]:
        log = os.path.join(newest, f"{args.job_name}-{args.task_index}.log")
        recent = time.time() - os.path.getmtime(newest) < SAME_RUN
        if recent and not os.path.exists(log):
            return newest
    return f"{name}-{run}"


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
        given = [name for name in needed if name not in missing]
        count = "all four" if with_ps else "both"
        why = f": with --{given[0]}, {count} are needed" if given else ""
        why = why or ", and TF_CONFIG is not set"
        raise ValueError(f"--{missing[0]} is missing{why}")
    if with_ps:
        args.ps_hosts, args.worker_hosts = addresses.host_lists(
            ps_hosts=args.ps_hosts, worker_hosts=args.worker_hosts
        )
    else:
        (args.worker_hosts,) = addresses.host_lists(worker_hosts=args.worker_hosts)
        args.ps_hosts = []
    if args.job_name in ("ps", "worker"):
        hosts = args.ps_hosts if args.job_name == "ps" else args.worker_hosts
        args.address = addresses.of_this_task(args.job_name, args.task_index, hosts)
    slow, workers = len(args.slow_workers), len(args.worker_hosts)
    if slow not in (1, workers):
        raise ValueError(f"--slow_workers has {slow} entries for {workers} workers")
