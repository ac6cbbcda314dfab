"""Open MPI's environment to TF_CONFIG, then the script of an example, unedited.

    mpirun -n 3 --hostfile hosts python adapter.py hosts HogWild/hogwild.py --steps 200

Rank r becomes task r; the first NUM_PS tasks (default 1) are ps. mpirun fills a host's
slots before it goes on to the next host, so the hostfile says where each rank is. Task
r serves on port BASE_PORT + r (default 2222 + r), so several tasks may share a host.
"""

import json
import os
import sys


def tf_config(addresses, num_ps, index):
    """Returns the text of TF_CONFIG for one task; `addresses` has the ps first."""
    cluster = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    job = "ps" if index < num_ps else "worker"
    task = {"type": job, "index": index - (0 if job == "ps" else num_ps)}
    cluster = {name: hosts for name, hosts in cluster.items() if hosts}
    return json.dumps({"cluster": cluster, "task": task})


def slots(path):
    """Returns the host of every slot of a hostfile, in the order of the ranks."""
    found = []
    with open(path) as file:
        for line in file:
            words = line.partition("#")[0].split()
            count = [w for w in words[1:] if w.startswith("slots=")]
            found += words[:1] * int(count[0].removeprefix("slots=") if count else 1)
    return found


def main():
    hostfile, script, *options = sys.argv[1:]
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    hosts = slots(hostfile)[:size]
    if len(hosts) < size:
        sys.exit(f"adapter.py: {size} ranks and {len(hosts)} slots in {hostfile}")
    if hosts[:rank].count(hosts[rank]) != int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]):
        sys.exit("adapter.py: the ranks are not placed slot by slot (--map-by slot)")
    base = int(os.environ.get("BASE_PORT", "2222"))
    addresses = [f"{host}:{base + r}" for r, host in enumerate(hosts)]
    os.environ["TF_CONFIG"] = tf_config(
        addresses, int(os.environ.get("NUM_PS", "1")), rank
    )
    os.execv(sys.executable, [sys.executable, script, *options])


if __name__ == "__main__":
    main()
