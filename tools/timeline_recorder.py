"""Stands in for an example's script, and has TensorFlow trace some of its calls.

timeline.py starts it, as every task of a run, with the folder, the script and the
directory of the recording in the environment. The script itself runs as it is: only
`make_callable` of its sessions is replaced, so that a call which begins within the
window is made with FULL_TRACE. The window is a file that timeline.py writes when every
worker has said that it is ready; before and after it a call costs one look for a file
more. What was traced is written when the window is over, as JSON.
"""

import json
import os
import re
import runpy
import sys
import threading
import time

FOLDER, SCRIPT, RECORDING = "TIMELINE_FOLDER", "TIMELINE_SCRIPT", "TIMELINE_RECORDING"
# Seconds of training, and calls of one size in a row, after which rounds are as they
# stay: TensorFlow prepares a graph when it is called first.
READY = 3.0, 3
DEVICE = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
OPERATION = re.compile(r" = (\w+)\((.*)")
MESSAGE = re.compile(r"\[([\d.]+)(M?)B\] (?:\[.*?\] )?(\S+) from (\S+) to (\S+)")


def task_of(device):
    """Returns the task of a device's name, as in `worker 0`."""
    return " ".join(DEVICE.search(device).groups())


def trace_of(step_stats, origin):
    """Returns (operations, messages) of a trace, lists of lists.

    An operation is [task, name, kind, inputs, start, end], a message [from, to, name,
    bytes, start, end]; times in microseconds since `origin`, nanoseconds since 1970.
    """
    operations, messages = [], []
    for device in step_stats.dev_stats:
        task = task_of(device.device)
        for node in device.node_stats:
            # TensorFlow has no nanoseconds for messages.
            start = (node.all_start_nanos or 1000 * node.all_start_micros) - origin
            length = node.all_end_rel_nanos or 1000 * node.all_end_rel_micros
            times = [round(start / 1000, 1), round((start + length) / 1000, 1)]
            if node.node_name in ("RecvTensor", "RecvBuf"):
                found = MESSAGE.match(node.timeline_label)
                size, mega, name, sender, to = found.groups()
                size = int(float(size) * (1e6 if mega else 1))  # 0.1 MB is rounded
                ends = [task_of(sender), task_of(to)]
                messages.append([*ends, name, size, *times])
            else:
                found = OPERATION.search(node.timeline_label)
                kind, inputs = found.groups() if found else ("", "")
                operations.append([task, node.node_name, kind, inputs[:99], *times])
    return operations, messages


class Recorder:
    """The traced calls of one worker."""

    def __init__(self, worker, directory):
        self.worker, self.directory = worker, directory
        self.traced, self.ready, self.over = [], False, False
        self.beside = []  # what the other half of a call has traced: Hybrid-Embedding
        self.before, self.same = None, 0  # calls in a row that fetch the same
        self.first = self.begin = self.end = None  # times of the first call, the window
        self.alternate = False  # trace every other call only, to find what that costs

    def file(self, name):
        """Returns the path of a file of the recording."""
        return os.path.join(self.directory, name)

    def look(self, now, fetches):
        """Says that this worker is ready; reads the window, once it is there."""
        self.first = self.first or now
        self.same = self.same + 1 if self.before is fetches else 0
        self.before = fetches
        seconds, calls = READY
        if not self.ready and now > self.first + seconds and self.same >= calls:
            open(self.file(f"ready-{self.worker}"), "w").close()
            self.ready = True
        if os.path.exists(self.file("window")):
            with open(self.file("window")) as window:
                self.begin, self.end, self.alternate = json.load(window)

    def recorded(self, tf, session, fetches, plain):
        """Returns what calls `plain`, or has it traced while the window is open."""
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)

        def call(*args):
            now = time.time()
            if self.over:
                return plain(*args)
            if self.begin is None:
                self.look(now, fetches)
            if self.begin is None or now < self.begin:
                return plain(*args)
            if now > self.end:
                self.write()
                return plain(*args)
            metadata = tf.RunMetadata()
            if self.alternate and len(self.traced) % 2:
                found, metadata = plain(*args), None
            else:
                found = session.run(fetches, options=options, run_metadata=metadata)
            self.traced.append((now, time.time(), metadata, found[1]))
            return found

        return call

    def half(self, tf, run, session, fetches):
        """Makes the half of a call that is about rows, traced if the window is open."""
        if self.over or self.begin is None or not self.begin < time.time() < self.end:
            return run(session, fetches)
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        metadata = tf.RunMetadata()
        began = time.time()
        found = run(session, fetches, options=options, run_metadata=metadata)
        self.beside.append((began, metadata))
        return found

    def write(self):
        """Writes the calls, each with the counts that it has fetched."""
        self.over, calls = True, []
        last = 0
        for began, ended, metadata, counts in self.traced:
            operations, messages = [], []
            mine, last = [m for at, m in self.beside if last < at < ended], ended
            for one in [metadata, *mine] if metadata else []:
                found = trace_of(one.step_stats, int(1e9 * self.begin))
                operations, messages = operations + found[0], messages + found[1]
            call = dict(began=began, ended=ended)
            call = {k: round(1e6 * (t - self.begin), 1) for k, t in call.items()}
            call |= dict(
                counts=counts.tolist(), operations=operations, messages=messages
            )
            calls.append(call)
        path = self.file(f"worker-{self.worker}.json")
        with open(path + ".new", "w") as file:
            json.dump({"worker": self.worker, "calls": calls}, file)
        os.rename(path + ".new", path)


def install(recorder):
    """Has the calls of the script's rounds recorded, from its first `Calls` on."""
    from cluster import rounds
    from cluster import tensorflow_v1 as tf

    begin = rounds.Calls.__init__

    def begin_and_install(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        rounds.Calls.__init__, plain = begin, tf.Session.make_callable
        run = tf.Session.run

        def make_callable(session, fetches, *args, **kwargs):
            call = plain(session, fetches, *args, **kwargs)
            return recorder.recorded(tf, session, fetches, call)

        def in_halves(session, fetches, *args, **kwargs):
            if threading.current_thread().name.endswith("(rows)"):
                return recorder.half(tf, run, session, fetches)
            return run(session, fetches, *args, **kwargs)

        tf.Session.make_callable, tf.Session.run = make_callable, in_halves

    rounds.Calls.__init__ = begin_and_install


def main():
    """Runs the script, with its calls recorded if this is a worker that trains."""
    folder, recording = os.environ[FOLDER], os.environ[RECORDING]
    script = os.path.join(folder, os.environ[SCRIPT])
    sys.path[0], sys.argv[0] = folder, script
    flags = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    if flags.get("--job_name") == "worker" and "--check" not in sys.argv:
        install(Recorder(int(flags["--task_index"]), recording))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
