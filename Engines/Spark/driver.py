"""Functions for Spark's driver: wait for slots, listen to tasks, end them."""

import threading
import time

import tasks
from pyspark import AccumulatorParam, InheritableThread


def wait_for_slots(context, wanted, seconds):
    """Ends the program if there are too few: Spark would wait, and say nothing."""
    scala = context._jsc.sc()  # Spark's Python has no name for what follows
    profile = scala.resourceProfileManager().defaultResourceProfile()
    until = time.monotonic() + (0 if context.master.startswith("local[") else seconds)
    while (found := scala.maxNumConcurrentTasks(profile)) < wanted:
        if time.monotonic() >= until:
            tasks.fail(
                f"{wanted} tasks at once need {wanted} slots, and Spark has {found}"
            )
        time.sleep(0.2)


def first_line(error):
    """Returns what Java says first about the cause of an error."""
    text = str(getattr(error, "java_exception", None) or error)
    return text.splitlines()[0] if text else type(error).__name__


class Lists(AccumulatorParam):
    """Lists, which add up by one behind the other."""

    def zero(self, value):
        return []

    def addInPlace(self, first, second):
        return first + second


class Job:
    """Runs `action(told)` in a thread; `told.add([item])` in a task reaches the driver.

    It does so when the task ends, and not if the task fails; `error` is what ended the
    job, None if all tasks came to their end.
    """

    def __init__(self, context, action):
        self.context, self.error = context, None
        self.told = context.accumulator([], Lists())
        self.ended = threading.Event()
        self.thread = InheritableThread(target=self._run, args=(action,), daemon=True)
        self.thread.start()

    def _run(self, action):
        try:
            action(self.told)
        except Exception as error:  # Java's, with its whole trace
            self.error = error
        finally:
            self.ended.set()

    def news(self, seconds=0.5):
        """Yields what the tasks have told, as it comes, until the job has ended."""
        seen = 0
        while True:
            over = self.ended.wait(seconds)
            told = self.told.value
            yield from told[seen:]
            seen = len(told)
            if over:
                return

    def cancel(self):
        """Ends all tasks of the job; returns when they have ended."""
        self.context.cancelAllJobs()
        self.ended.wait()
