"""What all tasks of a run must agree on. `protocol` calls it.

A worker with another window or another list of hosts would train something else, or
wait for ever, and nobody would notice.
"""

import glob
import hashlib
import json
import os

# What may differ from task to task: who one is, where one writes, how long one waits.
OWN = ("job_name", "task_index", "address", "logdir", "check", "save_seconds")
OWN += ("patience", "slow_workers", "device")


def of(args, elements):
    """Returns the fingerprint of a run as this task sees it, a text in JSON.

    `elements` is the size P of the center variable.
    """
    flags = {name: value for name, value in vars(args).items() if name not in OWN}
    flags["data"] = os.path.basename(args.data)
    code = hashlib.sha256()
    for path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))):
        with open(path, "rb") as file:
            code.update(file.read())
    return json.dumps(
        {**flags, "model": elements, "cluster": code.hexdigest()[:8]}, sort_keys=True
    )


def difference(mine, others):
    """Returns a sentence about the first value in which two fingerprints differ."""
    mine, others = json.loads(mine), json.loads(others)
    for name in sorted({*mine, *others}, key=lambda name: (name != "scheme", name)):
        here, there = mine.get(name), others.get(name)
        if here != there:
            what = {
                "model": f"the model has {here} parameters here, {there} in the run",
                "cluster": "cluster/ is not the same code here as in the run",
                "scheme": f"this is {here}, the run is {there}",
            }
            return what.get(name, f"--{name} is {here} here, {there} in the run")
    return None
