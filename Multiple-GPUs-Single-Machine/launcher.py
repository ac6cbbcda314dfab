"""Starts the tasks as launch.py does, and gives each worker a GPU of its own.

Worker k sees the k-th GPU, of CUDA_VISIBLE_DEVICES if that names some; a ps sees none.
run.sh calls it.
"""

import os

import launch


class Launcher(launch.Launcher):
    """A run whose workers do not share a GPU."""

    def environment(self, task):
        """Returns which GPU a task sees, and that it takes memory as it needs it."""
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = named.split(",") if named else [str(k) for k in range(self.workers)]
        mine = gpus[task.index : task.index + 1] if task.job == "worker" else []
        return {
            "CUDA_VISIBLE_DEVICES": "".join(mine),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # not all of its memory at once
        }


if __name__ == "__main__":
    launch.launch(Launcher)
