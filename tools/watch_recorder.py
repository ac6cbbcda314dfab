"""Stands in for an example's script, and tells watch.py what the task does.

watch.py starts it, as every task of a run, with the folder, the script and a socket in
the environment. The script itself runs as it is. Beside it a thread sends lines of JSON
to the socket, ten times a second:

    task, pid         at the start: this process is that task
    group, b, e       a call began and ended, seconds since 1970
    counts, losses    of its rounds: [step, staleness, what became of it, µs since b]
    first             TensorFlow had to prepare the call: no other was of its size
    operations,       of a call that was traced, see timeline_recorder.trace_of; times
    messages          are µs since b
    open              a call that began then has not come back yet
    step, curve       what the chief adds to the curves, {name: number}

When a round is counted is read from the clock of the task that counts it: an operation
more in each round. A call in hundreds is made with FULL_TRACE: so few that it costs
BUDGET of the time. All workers trace in the same second, for what they do together.
"""

import collections
import json
import os
import runpy
import socket
import statistics
import sys
import threading
import time

import timeline_recorder

FOLDER, SCRIPT, SOCKET = "WATCH_FOLDER", "WATCH_SCRIPT", "WATCH_SOCKET"
EVERY = 0.1  # seconds between two messages
OPEN = 0.3  # seconds after which a call that has not come back is told
CALL = 0.4  # seconds that a call may take: what it did is known at its end
BUDGET = 0.005  # of the time that traced calls may cost
SLOTS = 1, 64  # seconds between two traced calls, at least and at most
KNOWN = 5  # calls of a size before one of them is traced: the first prepares the graph
MOST = 5000  # messages that wait for a watch.py that is slow; older ones are lost


class Recorder:
    """What one task tells; a line to watch.py, and a thread that sends."""

    def __init__(self, task, path):
        self.waiting = collections.deque(maxlen=MOST)
        self.open = {}  # group: when its call began that is not back
        self.slot, self.every = 0, float(SLOTS[0])
        self.usual = {}  # (group, rounds): seconds of the last calls of this size
        self.known = {}  # id of what a call fetches: its group
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(path)
        self.tell(task=task, pid=os.getpid())
        threading.Thread(target=self._send, daemon=True).start()

    def tell(self, **message):
        """Has a message sent soon; costs the caller a few microseconds."""
        self.waiting.append(message)

    def _send(self):
        try:
            while True:
                lines = []
                while self.waiting:
                    lines.append(self._encoded(self.waiting.popleft()))
                now = time.time()
                began = list(self.open.values())
                lines += [json.dumps({"open": b}) for b in began if now - b > OPEN]
                if lines:
                    self.line.sendall("\n".join([*lines, ""]).encode())
                time.sleep(EVERY)
        except OSError:
            pass  # nobody watches any more: the run goes on
        self.waiting = collections.deque(maxlen=0)

    def _encoded(self, message):
        """Returns the line of a message; reads what was traced."""
        if "losses" not in message:
            return json.dumps(message)
        begin, counts = message["b"], message["counts"]
        message["losses"] = [round(float(x), 4) for x in message["losses"]]
        stamps = counts[:, 3] - int(1e6 * begin)
        message["counts"] = [
            [*row, at]
            for row, at in zip(counts[:, :3].tolist(), stamps.tolist(), strict=True)
        ]
        metadata = message.pop("metadata", None)
        size = message["group"], len(counts)
        if size not in self.usual:
            self.usual[size] = collections.deque(maxlen=50)
            message["first"] = True
        elif metadata is None:
            self.usual[size].append(message["e"] - begin)
        else:
            spent = time.thread_time()
            both = timeline_recorder.trace_of(metadata.step_stats, int(1e9 * begin))
            message["operations"], message["messages"] = both
            text = json.dumps(message)
            spent = time.thread_time() - spent
            usual = statistics.median(self.usual[size])
            # watch.py needs about twice as long to make bars of it.
            self._costs(max(0.0, message["e"] - begin - usual) + 3 * spent)
            return text
        return json.dumps(message)

    def _costs(self, seconds):
        """Traces so seldom that calls which cost so much more take BUDGET."""
        least, most = SLOTS
        every = float(least)
        while every < min(seconds / BUDGET, most):
            every *= 2  # so slots of several workers fall together
        self.every = every

    def due(self, now, size):
        """Says whether the call that begins now is to be traced."""
        slot = int(now / self.every)
        if slot == self.slot or len(self.usual.get(size, ())) < KNOWN:
            return False
        self.slot = slot
        return True

    def recorded(self, tf, group, plain):
        """Returns what calls `plain`, a callable with options, and tells of the call.

        Its counts have a column more than those of the script, which is told and cut.
        """
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)

        def call(rounds):
            metadata = None
            begin = self.open[group] = time.time()
            try:
                if self.due(begin, (group, rounds)):
                    metadata = tf.RunMetadata()
                    found = plain(options=options, run_metadata=metadata)
                else:
                    found = plain()
            finally:
                del self.open[group]
            losses, counts, last = found
            about = dict(group=group, b=begin, e=time.time())
            if metadata is not None:
                about["metadata"] = metadata
            self.tell(**about, counts=counts, losses=losses)
            return [losses, counts[:, :3], last]

        return call


def install(recorder):
    """Has the rounds of the script recorded, and the curves that it draws."""
    from cluster import report, rounds
    from cluster import tensorflow_v1 as tf

    rounds.CALL = CALL
    begin, fetch = rounds.Calls.__init__, rounds.Calls._fetch
    add, groups, stamps = report.Curves.add, [], {}

    def begin_group(calls, *args, **kwargs):
        groups.append(calls)
        if len(groups) == 1:
            plain = tf.Session.make_callable

            def make_callable(session, fetches, *args, **kwargs):
                group, size = recorder.known.get(id(fetches), (None, 0))
                if group is None:
                    return plain(session, fetches, *args, **kwargs)
                made = plain(session, fetches, accept_options=True)
                call = recorder.recorded(tf, group, made)
                return lambda: call(size)

            tf.Session.make_callable = make_callable
        begin(calls, *args, **kwargs)

    def stamp(packed):
        """Returns when a round was counted, int64 microseconds, [1]."""
        if packed.name not in stamps:
            with tf.control_dependencies([packed]):
                now = tf.cast(1e6 * tf.timestamp(), tf.int64)
            stamps[packed.name] = tf.reshape(now, [1])
        return stamps[packed.name]

    def fetch_times(built):
        fetched = fetch(built)
        packed = [one.counted.packed for one in built]
        with tf.device(packed[0].device):
            times = tf.stack([stamp(one) for one in packed])
            fetched[1] = tf.concat([fetched[1], times], axis=1)
        recorder.known[id(fetched)] = len(groups) - 1, len(built)
        return fetched

    def add_and_tell(curves, step, values):
        values = {name: float(value) for name, value in values.items()}
        recorder.tell(step=int(step), curve=values)
        return add(curves, step, values)

    rounds.Calls.__init__, rounds.Calls._fetch = begin_group, staticmethod(fetch_times)
    report.Curves.add = add_and_tell


def main():
    """Runs the script, and records it if this is a task of a run."""
    folder = os.environ[FOLDER]
    script = os.path.join(folder, os.environ[SCRIPT])
    sys.path[0], sys.argv[0] = folder, script
    flags = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    job = flags.get("--job_name")
    if job and "--check" not in sys.argv:
        task = f"{job} {flags['--task_index']}"
        recorder = Recorder(task, os.environ[SOCKET])
        if job == "worker":
            install(recorder)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
