"""Slurm's environment to TF_CONFIG, then the script of an example, unedited.

    srun --distribution=block python adapter.py HogWild/hogwild.py --steps 200

Task r of the step becomes task r of the run; the first NUM_PS (default 1) are ps. With
--distribution=block, tasks fill a node before the next one, so the list of nodes and
the tasks per node say where each task is. Task r serves on port BASE_PORT + r. Without
BASE_PORT the ports come from the job's id, so jobs that share a node do not collide.
"""

import json
import os
import re
import subprocess
import sys

PORTS, EACH = range(15000, 31000), 64  # ports of all jobs, and of one


def tf_config(addresses, num_ps, index):
    """Returns the text of TF_CONFIG for one task; `addresses` has the ps first."""
    cluster = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    job = "ps" if index < num_ps else "worker"
    task = {"type": job, "index": index - (0 if job == "ps" else num_ps)}
    cluster = {name: hosts for name, hosts in cluster.items() if hosts}
    return json.dumps({"cluster": cluster, "task": task})


def counts(text):
    """Returns the tasks of each node, of a text such as 2(x3),1."""
    found = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(count)] * int(times or 1)
    return found


def main():
    env = os.environ
    rank, node = int(env["SLURM_PROCID"]), int(env["SLURM_NODEID"])
    command = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
    hosts = subprocess.check_output(command, text=True).split()
    tasks = counts(env["SLURM_STEP_TASKS_PER_NODE"])
    nodes = [k for k, count in enumerate(tasks) for _ in range(count)]
    if nodes[rank] != node:
        sys.exit("adapter.py: tasks are not placed in blocks (--distribution=block)")
    drawn = PORTS[int(env["SLURM_JOB_ID"]) * EACH % len(PORTS)]
    base = int(env.get("BASE_PORT") or drawn)
    addresses = [f"{hosts[k]}:{base + r}" for r, k in enumerate(nodes)]
    env["TF_CONFIG"] = tf_config(addresses, int(env.get("NUM_PS", "1")), rank)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
