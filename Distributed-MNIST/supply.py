"""The data of a task: records that exist already, or that it makes now.

The script calls it. `cluster.task` calls it too, to check the data before the start.
"""

import fcntl
import os
import shutil

from cluster.task import fail
import models
import pipeline
import prepare
import records
import sources


class For:
    """The data of a task, as `cluster.task` asks a problem for it."""

    def __init__(self, args):
        self.args = args

    def load(self, name, workers):
        """Returns the Index of --data, its files checked.

        What is not records yet becomes some, in LOGDIR/records; with --check it is only
        looked at, and so is the model. Raises ValueError with what is wrong.
        """
        args, folder = self.args, name
        if os.path.exists(os.path.join(name, prepare.PLAN)):
            raise ValueError("not all is written: prepare.py, called again, goes on")
        if not records.are_there(name):
            folder = os.path.join(args.logdir, "records")
            if args.check and not records.are_there(folder):
                sources.check(name)
                index = prepare.planned(sources.source_of(name))
                models.build(args, index)
                return index
            os.makedirs(args.logdir, exist_ok=True)
            # Of several tasks of a machine one writes; the others wait for it. Where
            # there are no locks each writes its own, and the first one's are taken.
            with open(folder + ".lock", "w") as lock:
                locked = prepare.lock(lock, fcntl.LOCK_EX)
                if not records.are_there(folder):
                    source = sources.source_of(name)
                    task = f"{args.job_name}-{args.task_index}"
                    mine = folder if locked else f"{folder}-{task}"
                    prepare.write(source, mine, say=prepare.seldom(print))
                    if not locked:
                        _take(mine, folder)
                    print(f"prepared {name} as records in {folder}")
        index = records.read_index(folder)
        records.check(index, self._mine(index, workers))
        if args.check:
            models.build(args, index)
        return index

    def _mine(self, index, workers):
        """Returns the files that this task reads: all with --check."""
        args, splits = self.args, index.splits
        if args.check:
            return [entry for files in splits.values() for entry in files]
        if args.job_name == "evaluator":
            return splits["test"]
        own, left, size = pipeline.share(splits["train"], args.task_index, workers)
        if not size:
            images = records.count(splits["train"])
            raise ValueError(f"{images} training images for {workers} workers")
        held = splits["validation"] + splits["test"]
        return own + left + held * (args.task_index == 0)


def _take(mine, folder):
    """Makes records that are written the ones of `folder`, unless others were first."""
    try:
        os.rename(mine, folder)
    except OSError:
        if not records.are_there(folder):
            raise
        shutil.rmtree(mine)


def load(args):
    """Returns the Index of what this task reads.

    Ends the program with status 2 if that cannot be used.
    """
    try:
        return For(args).load(args.data, len(args.worker_hosts))
    except ValueError as error:
        fail(f"--data {args.data}: {error}")
