"""Runs whose gradients are timed, or emulated by a sleep, and what their tasks need.

An example is copied, gradients.py is put beside its problem.py, and run.sh is run. A
task is a fork of a process that has imported TensorFlow, as in the tests (see
tests/forkserver.py): so 24 workers start in seconds. Where the start or the memory of a
task is measured, tasks are processes as ever: `forks=False`.
"""

import contextlib
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import numpy as np
import psutil
import runs

HOOK = "\n\nimport gradients\n\nbuild = gradients.noted(build)\n"
OPTIONS = dict(warm=12, seconds=0.0, elements=None, every=0, cores=0)
LOOK = 0.25  # seconds between two looks at the tasks
KINDS = "Rss", "Pss"  # of memory, in smaps_rollup
SETTLED = 1.0  # seconds after the common start of all workers that are not counted


@contextlib.contextmanager
def prepared(folder, more=""):
    """Gives a copy of an example with noted gradients; `more` goes into problem.py."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        copy = pathlib.Path(parent, folder)
        ignored = shutil.ignore_patterns("logdir", "__py*", ".venv*")
        shutil.copytree(runs.REPO / folder, copy, ignore=ignored)
        shutil.copy(runs.HERE / "gradients.py", copy)
        with open(copy / "problem.py", "a") as file:
            file.write(more + HOOK)
        yield copy


# --- What a task needs ------------------------------------------------------------


def tasks(copy):
    """Returns {(job, index): psutil.Process} of the tasks of a run."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "--task_index" in words and any(str(copy) in word for word in words):
            job = words[words.index("--job_name") + 1]
            found[job, int(words[words.index("--task_index") + 1])] = process
    return found


def used(processes):
    """Returns the seconds of CPU that the processes of each job have had so far."""
    seconds = dict.fromkeys(("ps", "worker"), 0.0)
    for (job, _), process in processes.items():
        times = process.cpu_times()
        seconds[job] += times.user + times.system
    return seconds


def memory(processes):
    """Returns {job: [RSS, PSS]} in bytes, the mean over the processes of a job.

    PSS counts a page that n processes share as 1/n in each.
    """
    found = {}
    for (job, _), process in processes.items():
        text = pathlib.Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        kinds = [re.search(rf"^{kind}: +(\d+) kB", text, re.M) for kind in KINDS]
        found.setdefault(job, []).append([1024 * int(kind[1]) for kind in kinds])
    return {job: np.mean(rows, axis=0).tolist() for job, rows in found.items()}


def busy():
    """Returns the seconds that all cores have been busy so far, whoever it was for."""
    times = psutil.cpu_times()  # what other virtual machines took is in it: steal
    names = "user", "nice", "system", "irq", "softirq", "steal"
    return sum(getattr(times, name) for name in names)


class Watch:
    """Looks at the tasks of a run, from the moment at which all workers are ready."""

    def __init__(self, copy, notes, workers):
        self.copy, self.notes, self.workers = copy, notes, workers
        self.processes, self.samples, self.memory = None, [], None

    def look(self):
        """Takes a sample: (time, {job: its seconds of CPU}, those of all programs)."""
        if len(list(self.notes.glob("ready-*"))) < self.workers:
            return
        with contextlib.suppress(psutil.Error, OSError):  # a task has just ended
            if not self.processes:
                self.processes = tasks(self.copy)
                self.memory = memory(self.processes)
            self.samples.append((time.monotonic(), used(self.processes), busy()))


# --- Runs -------------------------------------------------------------------------


def run(folder, flags, ps, workers, timeout, options, more="", forks=True, watch=False):
    """Runs an example whose gradients are noted; returns result.json, and more.

    `options` are those of gradients.py, `more` is Python for the end of problem.py.
    Added to the result: `times`, {worker: array of the times of gradients.py}, `began`,
    when run.sh did, `end`, seconds from the last update to its exit, `weights`, a list
    of (time, vector); and with `watch` a Watch. Raises runs.Unfinished if there is no
    result.
    """
    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(prepared(folder, more))
        notes, logdir = copy.parent / "notes", copy.parent / "logdir"
        notes.mkdir()
        options = json.dumps({**OPTIONS, **options, "folder": str(notes)})
        knobs = {"NUM_PS": ps, "NUM_WORKERS": workers}
        knobs = {name: count for name, count in knobs.items() if count is not None}
        env = runs.environment(
            LOGDIR=logdir, TIMEOUT=timeout, EMULATED=options, **knobs
        )
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        command = ["bash", copy / "run.sh", *flags, "--save_seconds", 3600]
        start = runs.forked() if forks else subprocess.Popen
        began = time.monotonic()
        child = stack.enter_context(
            runs.process(command, start=start, env=env, cwd=str(copy), **pipes)
        )
        reader, seen = runs.Lines(child.stdout), Watch(copy, notes, workers or 1)
        while child.poll() is None:
            if time.monotonic() > began + timeout + 30:  # run.sh ends itself before
                raise runs.too_slow(folder, timeout)
            if watch:
                seen.look()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK)
        exited = time.monotonic()
        reader.join(5)
        text = "\n".join(line for _, line in reader.lines)
        if child.returncode == 124:
            raise runs.too_slow(folder, timeout)
        if child.returncode:
            raise runs.Unfinished(
                f"{folder}: status {child.returncode}\n{text[-2000:]}"
            )
        result = json.loads((logdir / "result.json").read_text())
        times = {
            int(path.name.removeprefix("times-")): np.fromfile(path)
            for path in notes.glob("times-*")
        }
        weights = [
            (float(path.stem.removeprefix("weights-")), np.load(path))
            for path in notes.glob("weights-*.npy")
        ]
        weights.sort(key=lambda pair: pair[0])
    clock = runs.clock(reader.lines, result, began, exited)
    found = {"times": times, "weights": weights, "began": began, "watch": seen}
    return {**result, **found, "end": clock["end"]}


def window(samples, times):
    """Returns the first and the last sample between which all workers made rounds.

    `times` is {worker: its times}. Raises runs.Unfinished if it is under a second.
    """
    begin = max(each[1] for each in times.values()) + SETTLED
    end = min(each[-1] for each in times.values())
    inside = [sample for sample in samples if begin <= sample[0] <= end]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < SETTLED:
        raise runs.Unfinished(
            "too few rounds to measure a rate; more --steps are needed"
        )
    return inside[0], inside[-1]


def code(folders):
    """Returns what results depend on: the code of the examples, and gradients.py."""
    text = runs.bare((runs.HERE / "gradients.py").read_text())
    here = hashlib.sha256(text.encode()).hexdigest()[:12]
    return {"gradients": here, **{f: runs.fingerprint(f) for f in sorted(folders)}}
