"""A host's name to TF_CONFIG, then the script of an example, unedited.

    HOSTS="ps0 worker0 worker1" python adapter.py HogWild/hogwild.py --steps 200

HOSTS has the names of all hosts, with one task on each. The first NUM_PS (default 1)
are ps. The place of this host in HOSTS says which task it is. Every host has an address
of its own, so all tasks serve on the same port, PORT (default 2222). The adapter needs
nothing else, so it also works on real hosts where you start it by ssh.
"""

import json
import os
import socket
import sys


def tf_config(addresses, num_ps, index):
    """Returns the text of TF_CONFIG for one task; `addresses` has the ps first."""
    cluster = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    job = "ps" if index < num_ps else "worker"
    task = {"type": job, "index": index - (0 if job == "ps" else num_ps)}
    cluster = {name: hosts for name, hosts in cluster.items() if hosts}
    return json.dumps({"cluster": cluster, "task": task})


def main():
    hosts, me = os.environ["HOSTS"].split(), socket.gethostname()
    if me not in hosts:
        sys.exit(f"adapter.py: this host, {me}, is not in HOSTS={' '.join(hosts)}")
    port = os.environ.get("PORT", "2222")
    os.environ["TF_CONFIG"] = tf_config(
        [f"{host}:{port}" for host in hosts],
        int(os.environ.get("NUM_PS", "1")),
        hosts.index(me),
    )
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
