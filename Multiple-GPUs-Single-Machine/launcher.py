"""Starts the tasks as launch.py does, and gives each worker a GPU of its own.

Worker k sees the k-th GPU, of CUDA_VISIBLE_DEVICES if that names some; a ps sees none.
run.sh calls it.
"""

import os

import launch


class Launcher(launch.Launcher):
    """A run whose workers do not share a GPU."""

    def __init__(self, arguments):
        super().__init__(arguments)
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = (
            "true"  # not all of its memory at once
        )
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = named.split(",") if named else [str(k) for k in range(self.workers)]
        for task in self.tasks:
            mine = gpus[task.index : task.index + 1] if task.job == "worker" else []
            task.environment = {"CUDA_VISIBLE_DEVICES": "".join(mine)}


if __name__ == "__main__":
    launch.launch(Launcher)
