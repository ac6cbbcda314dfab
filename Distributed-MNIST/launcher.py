"""Starts the tasks as launch.py does, an evaluator, and at the end predict.py.

run.sh calls it.
"""

import glob
import os
import shlex
import sys
import time

import launch
from launch import Task, finish, pause, say, write

WAIT = 60  # seconds that the evaluator may take for the last checkpoint


class Launcher(launch.Launcher):
    """A run beside which an evaluator follows the checkpoints."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.evaluator = Task("evaluator", 0)

    def print_commands(self):
        super().print_commands()
        base = self.base or 2222
        hosts = [f"localhost:{base + i}" for i in range(len(self.tasks))]
        command = self.command(self.evaluator, hosts)
        write(os.fsencode(f"{shlex.join(command)}\n"))

    def look(self):
        """Starts the evaluator, which the run does not depend on; says if it failed."""
        if self.evaluator not in self.tasks:  # of those that are ended with the run
            self.tasks.append(self.evaluator)
            self.start(self.evaluator)
        elif self.evaluator.reader and not self.evaluator.runs():
            status = launch.status_of(self.evaluator.process)
            self.evaluator.reader.join(1)
            self.evaluator.reader = None
            if status:
                say(f"the evaluator ended with status {status}; training goes on")

    def after(self):
        """Lets the evaluator see the last checkpoint; then makes a first prediction."""
        until = time.monotonic() + WAIT
        while self.evaluator.runs() and time.monotonic() < until:
            pause(0.05)
        self.look()
        model = os.path.join(self.logdir, "export")
        images = sorted(glob.glob(glob.escape(self.logdir) + "/example-*.png"))
        for image in images if os.path.exists(model) else []:
            predict = os.path.join(launch.HERE, "predict.py")
            own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
            command = [sys.executable, predict, model, image]
            status = finish(command, own)
            if status:
                raise launch.End(status, None)


if __name__ == "__main__":
    launch.launch(Launcher)
