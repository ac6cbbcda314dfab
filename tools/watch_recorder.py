"""Stands in for an example's script, and tells watch.py what the task does.

watch.py starts it, as every task of a run, with the folder, the script and a socket in
the environment. The script itself runs as it is. Beside it a thread sends lines of JSON
to the socket, ten times a second:

    task, pid         at the start: this process is that task
    group, b, e       a call began and ended, seconds since 1970
    counts, losses    of its rounds: [step, staleness, what became of it, µs since b]
    first             TensorFlow had to prepare the call: the first of its size in this
                      session
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
KNOWN = 5  # calls of a size before one of them is traced, and the first beside
FIRST = 2  # traces that cost most, and may not be whole: the next comes a second later
MOST = 5000  # messages that wait for a watch.py that is slow; older ones are lost


class Recorder:
    """What one task tells; a line to watch.py, and a thread that sends."""

    def __init__(self, task, path):
        self.waiting = collections.deque(maxlen=MOST)
        self.open = {}  # group: when its call began that is not back
        self.next = 0.0  # when a call is to be traced again, seconds since 1970
        self.traced = 0  # calls so far
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
        message["counts"] = (counts - [0, 0, 0, int(1e6 * begin)]).tolist()
        if "metadata" not in message:
            return json.dumps(message)
        metadata, longer = message.pop("metadata"), message.pop("longer")
        spent = time.thread_time()
        both = timeline_recorder.trace_of(metadata.step_stats, int(1e9 * begin))
        message["operations"], message["messages"] = both
        text = json.dumps(message)
        # watch.py needs about twice as long to make bars of it.
        self._costs(begin, longer + 3 * (time.thread_time() - spent))
        return text

    def _costs(self, begin, seconds):
        """Traces so seldom, after the FIRST, that what they cost more is BUDGET."""
        self.traced += 1
        every, most = SLOTS
        while self.traced > FIRST and every < min(seconds / BUDGET, most):
            every *= 2
        self.next = (begin // every + 1) * every  # so those of several workers meet

    def due(self, now):
        """Says whether the call that begins now is to be traced."""
        if now < self.next:
            return False
        self.next = now + SLOTS[1]  # until it is known what this one has cost
        return True

    def recorded(self, tf, group, plain):
        """Returns what calls `plain`, a callable with options, and tells of the call.

        Its counts have a column more than those of the script, which is told and cut.
        """
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        lengths = collections.deque(maxlen=50)  # seconds of calls that were not traced
        first = True

        def call():
            nonlocal first
            begin = self.open[group] = time.time()
            traced = {}
            if len(lengths) >= KNOWN and self.due(begin):
                traced = dict(options=options, run_metadata=tf.RunMetadata())
            try:
                losses, counts, last = plain(**traced)
            finally:
                del self.open[group]
            end = time.time()
            about = dict(group=group, b=begin, e=end)
            if first:
                about["first"], first = True, False
            elif traced:
                longer = max(0.0, end - begin - statistics.median(lengths))
                about |= dict(metadata=traced["run_metadata"], longer=longer)
            else:
                lengths.append(end - begin)
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
                group = recorder.known.get(id(fetches))
                if group is None:
                    return plain(session, fetches, *args, **kwargs)
                made = plain(session, fetches, accept_options=True)
                return recorder.recorded(tf, group, made)

            tf.Session.make_callable = make_callable
        begin(calls, *args, **kwargs)

    def stamp(packed):
        """Returns when a round was counted, float64 seconds."""
        if packed.name not in stamps:
            with tf.control_dependencies([packed]):
                stamps[packed.name] = tf.timestamp()
        return stamps[packed.name]

    def fetch_times(built):
        fetched = fetch(built)
        packed = [one.counted.packed for one in built]
        with tf.device(packed[0].device):
            # Microseconds: once for all rounds of a call, which costs them less.
            times = 1e6 * tf.stack([stamp(one) for one in packed])
            times = tf.cast(times, tf.int64)[:, tf.newaxis]
            fetched[1] = tf.concat([fetched[1], times], axis=1)
        recorder.known[id(fetched)] = len(groups) - 1
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
