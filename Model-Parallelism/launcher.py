"""Starts the tasks as launch.py does, and gives every stage one core.

So a stage computes as on a device of its own. TF_NUM_INTRAOP_THREADS in the environment
says otherwise. run.sh calls it.
"""

import os

import launch


class Launcher(launch.Launcher):
    """A run whose tasks compute on one core each."""

    def __init__(self, arguments):
        super().__init__(arguments)
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


if __name__ == "__main__":
    launch.launch(Launcher)
