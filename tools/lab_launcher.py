"""Starts a run as its folder's launch.py does, and says which process each task is.

lab.py starts this program, and freezes and kills tasks by what it says. LAB_FOLDER,
from the environment, is the folder of the example; the rest is that of launch.py.
"""

import os
import sys

sys.path.insert(0, os.environ["LAB_FOLDER"])

import launch  # noqa: E402


class Launcher(launch.Launcher):
    """A run whose tasks are named."""

    def start(self, task):
        super().start(task)
        launch.say(f"{task} is process {task.process.pid}")


if __name__ == "__main__":
    launch.launch(Launcher)
