"""Who is where: the host lists and TF_CONFIG, read and checked. `flags` calls it.

A mistake raises ValueError with the sentence that the user is to see.
"""

import json

from cluster import ports

LOOKS = (
    'TF_CONFIG must look like {"cluster": {"chief": ["host:port"], "worker": '
    '["host:port"], "ps": ["host:port"]}, "task": {"type": "ps", "index": 0}}'
)


def from_tf_config(text, with_ps=True):
    """Returns job, index, ps hosts and worker hosts of one task, from TF_CONFIG's text.

    TF_CONFIG is the variable that Kubeflow, Vertex AI and SageMaker set; its chief
    counts as worker 0. The hosts are separated by commas, as the flags have them.
    `with_ps` says whether the cluster must have a ps or may not have one.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"TF_CONFIG is not JSON: {error}") from None
    try:
        cluster, job = config["cluster"], config["task"]["type"]
        index = int(config["task"]["index"])
        sparse = [name for name in cluster if isinstance(cluster[name], dict)]
        hosts = {name: _texts(cluster[name]) for name in cluster if name not in sparse}
    except (KeyError, TypeError, ValueError):
        raise ValueError(LOOKS) from None
    if sparse:
        raise ValueError(
            f"TF_CONFIG: {sparse[0]} is a dict (Kubeflow's enableDynamicWorker): every "
            "task must know the addresses of all, as a list"
        )
    # An evaluator has no part in the cluster, whether it is listed or not.
    listed = hosts.pop("evaluator", None)
    for name in hosts:
        if name not in ("chief", "master", "worker", "ps"):
            raise ValueError(f"TF_CONFIG: the cluster has an unknown job {name!r}")
    if with_ps and not hosts.get("ps"):
        raise ValueError("TF_CONFIG: the cluster has no ps to hold the parameters")
    if hosts.get("ps") and not with_ps:
        raise ValueError("TF_CONFIG: the cluster has a ps, and this scheme has none")
    if job == "evaluator":
        hosts[job] = listed or [""]
    if job not in hosts:
        raise ValueError(
            f"TF_CONFIG: the task is of job {job!r}, which the cluster does not have"
        )
    chief = hosts.get("chief", []) + hosts.get("master", [])
    if len(chief) > 1:
        raise ValueError(f"TF_CONFIG: {len(chief)} chiefs; there can be one")
    if not 0 <= index < len(hosts[job]):
        raise ValueError(
            f"TF_CONFIG: {job} index {index} is not in 0..{len(hosts[job]) - 1}"
        )
    return (
        job if job in ("ps", "evaluator") else "worker",
        index + (len(chief) if job == "worker" else 0),
        ",".join(hosts.get("ps", [])),
        ",".join(chief + hosts.get("worker", [])),
    )


def _texts(addresses):
    if not isinstance(addresses, list):
        raise TypeError
    return list(map(str, addresses))


def host_lists(**texts):
    """Returns the list of host:port behind the text of each flag."""
    seen, lists = {}, []
    for flag, text in texts.items():
        if not text:
            raise ValueError(f"--{flag} is empty: name at least one host:port")
        lists.append(text.split(","))
        for address in lists[-1]:
            host, _, port = address.rpartition(":")
            if not host or host.strip() != host or not port.isdecimal():
                raise ValueError(f"--{flag}: {address!r} is not host:port")
            if ":" in host and not (host[0] == "[" and host[-1] == "]"):
                raise ValueError(f"--{flag}: IPv6 is written [::1]:2222, not {address}")
            if not 0 < int(port) < 65536:
                raise ValueError(f"--{flag}: {address!r} has a port outside 1..65535")
            if address in seen:
                raise ValueError(
                    f"--{flag}: {address} is listed twice, first in --{seen[address]}; "
                    "tasks on one machine need different ports, as in "
                    "localhost:2222,localhost:2223"
                )
            seen[address] = flag
    return lists


def of_this_task(job, index, hosts):
    """Returns the address at which a task is to serve, out of its job's hosts."""
    if index >= len(hosts):
        raise ValueError(
            f"--task_index {index}: --{job}_hosts has {len(hosts)} entries, "
            f"0..{len(hosts) - 1}"
        )
    return hosts[index]


def serving(args):
    """Returns {task: address} of those who must be there before a run can begin.

    A task is (job, index); the first keeps what all agree on. They are the ps, who
    serve until the chief says that the run is over, and the other workers where one
    client builds the graph of all; in a scheme without ps the chief.
    """
    found = {("ps", i): address for i, address in enumerate(args.ps_hosts)}
    if clients(args) == 1:
        others = list(enumerate(args.worker_hosts))[1:]
        found.update({("worker", k): address for k, address in others})
    return found or {("worker", 0): args.worker_hosts[0]}


def everybody(args):
    """Returns {task: address} of the whole cluster: every ps, then every worker."""
    jobs = ("ps", args.ps_hosts), ("worker", args.worker_hosts)
    return {(job, i): host for job, hosts in jobs for i, host in enumerate(hosts)}


def clients(args):
    """Returns how many workers build a graph and run it: all, or the chief for all."""
    return 1 if getattr(args, "one_client", False) else len(args.worker_hosts)


def device(task):
    """Returns the device of a task (job, index)."""
    return "/job:{}/task:{}".format(*task)


def check_port(job, address):
    """Raises ValueError if another program listens where this task is to serve."""
    if not ports.is_free(int(address.rpartition(":")[2])):
        raise ValueError(f"--{job}_hosts: the port of {address} is in use on this host")
