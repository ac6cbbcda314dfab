"""Starts the tasks as launch.py does, and kills the tasks that KILL names.

KILL is a variable of the environment. It has words of the form job:index:second, where
the seconds count from the first checkpoint. run.sh calls this program.
"""

import os
import time

import launch
from launch import End, say

KILL = "worker:1:5 ps:0:15 worker:0:25"


class Launcher(launch.Launcher):
    """A run that loses tasks: each may be started again once."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.max_restarts = launch.number("MAX_RESTARTS", 1, 0)
        text = os.environ.get("KILL", KILL)
        self.kill = []  # (task, second)
        named = {(task.job, str(task.index)): task for task in self.tasks}
        for entry in text.split():
            job, _, rest = entry.partition(":")
            index, _, second = rest.partition(":")
            if (job, index) not in named or not second.isdecimal():
                reason = f"{entry} is not job:index:second of a task"
                raise End(2, f"KILL={text}: {reason}")
            self.kill.append((named[job, index], int(second)))
        self.saved = None  # when the first checkpoint was there

    def look(self):
        """Kills the tasks whose time has come."""
        if self.saved is None and os.path.exists(f"{self.logdir}/checkpoint"):
            self.saved = time.monotonic()
        if self.saved is None:
            return
        for entry in list(self.kill):
            task, second = entry
            if task.runs() and time.monotonic() >= self.saved + second:
                task.process.kill()
                say(f"kill -9 of {task}")
                with open(f"{self.logdir}/killed", "a") as file:
                    file.write(f"{time.time():.0f} {task.job} {task.index}\n")
                self.kill.remove(entry)


if __name__ == "__main__":
    launch.launch(Launcher)
