"""TensorBoard's curves, of which training does not die. `report` calls it.

TensorFlow's writer has a thread, which a full disk ends with a traceback; whoever
writes next, a point or the note of a checkpoint, gets its error and would end too.
"""

import contextlib
import shutil
import threading

from cluster import tensorflow_v1 as tf

ROOM = 2**20  # bytes that must be free before another file of events is begun


class _Patient:
    """What a FileWriter puts its events into: those that do not fit are left out."""

    def __init__(self, events):
        self.events, self.failed = events, False

    def __getattr__(self, name):
        return getattr(self.events, name)

    def add_event(self, event):
        self._try(lambda: self.events.add_event(event))

    def flush(self):
        self._try(self.events.flush)

    def close(self):
        self._try(self.events.close)

    def _try(self, act):
        try:
            if self.failed:
                if shutil.disk_usage(self.events.get_logdir()).free < ROOM:
                    return
                self.events.reopen()
            self.failed = False
            act()
        except (tf.errors.OpError, OSError, RuntimeError):
            self.failed = True
            with contextlib.suppress(tf.errors.OpError, OSError, RuntimeError):
                self.events.close()  # only what is closed can be opened again


def writer(logdir):
    """Returns the FileWriter of a directory, which a session's hooks use as well."""
    one = tf.summary.FileWriterCache.get(logdir)
    if not isinstance(one.event_writer, _Patient):
        one.event_writer = _Patient(one.event_writer)
    threading.excepthook = _hook
    return one


def _hook(args, usual=threading.excepthook):
    if args.thread is None or args.thread.name != "EventLoggerThread":
        usual(args)  # of that thread TensorFlow has told the log already


def write(logdir, step, values):
    """Adds a point to each curve, at a global step; `values` are {name: number}."""
    summary = tf.Summary()
    for name, value in values.items():
        summary.value.add(tag=name, simple_value=value)
    one = writer(logdir)
    one.add_summary(summary, step)
    one.flush()  # or who is killed takes the last points along
