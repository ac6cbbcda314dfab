"""Who is where: the host lists and TF_CONFIG, read and checked. Is somebody there?

A mistake raises ValueError with the sentence that the user is to see.
"""

import json
import re
import socket

LOOKS = 'TF_CONFIG must look like {"cluster": {"ps": [], ..}, "task": {"type": ..}}'
CLOSED = "nothing is at the port"  # the host is there, and the process is not
# What a client of HTTP/2 says first: its preface, and settings that change nothing.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4"  # the kind of a frame, its fourth byte


def from_tf_config(text, with_ps=True):
    """Returns job, index, ps hosts and worker hosts of a task, as the flags have them.

    TF_CONFIG is what Kubeflow, Vertex AI and SageMaker set; its chief is worker 0.
    """
    try:
        config = json.loads(text)
        job, index = config["task"]["type"], int(config["task"]["index"])
        jobs = {name: [*map(str, hosts)] for name, hosts in config["cluster"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(LOOKS) from None
    ps, workers = jobs.pop("ps", []), jobs.pop("worker", [])
    chief = jobs.pop("chief", []) + jobs.pop("master", [])
    wrong = jobs.keys() - {"evaluator"} or len(chief) > 1 or index < 0
    if wrong or bool(ps) != with_ps:
        raise ValueError(LOOKS)
    index += len(chief) if job == "worker" else 0
    job = "worker" if job in ("chief", "master") else job
    return job, index, ",".join(ps), ",".join(chief + workers)


def host_lists(**texts):
    """Returns the list of host:port behind the text of each flag."""
    seen, lists = {}, []
    for flag, text in texts.items():
        lists.append(text.split(","))
        for address in lists[-1]:
            host, _, port = address.rpartition(":")
            port = int(port) if port.isdecimal() else 0
            if not re.fullmatch(r"[^\s:]+|\[\S+\]", host) or not 0 < port < 65536:
                raise ValueError(f"--{flag}: {address!r} is not host:port")
            if address in seen:
                text = f"listed twice, first in --{seen[address]}: ports must differ"
                raise ValueError(f"--{flag}: {address} is {text}")
            seen[address] = flag
    return lists


def device(job, index):
    """Returns the device of a task."""
    return f"/job:{job}/task:{index}"


def name(device):
    """Returns what people call a device: "ps 0" for /job:ps/task:0."""
    return device.replace("/job:", "").replace("/task:", " ")


def servers(args):
    """Returns {device: address} of the tasks that serve until the run is over.

    They are the ps, and with one client the other workers; without a ps the chief.
    """
    found = {device("ps", k): address for k, address in enumerate(args.ps_hosts)}
    if args.one_client:
        others = [*enumerate(args.worker_hosts)][1:]
        found |= {device("worker", k): address for k, address in others}
    return found or {device("worker", 0): args.worker_hosts[0]}


def home(args):
    """Returns the device of the first of the servers: it has board and counters."""
    return next(iter(servers(args)))


def split(address):
    """Returns the (host, port) of host:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_free(port):
    """Says whether a server could listen on the port."""
    with socket.socket() as probe:
        # As gRPC binds: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            return True
        except OSError:
            return False


def resolve(address):
    """Returns the numeric addresses behind the name in host:port, none if unknown."""
    try:
        return {item[4][0] for item in socket.getaddrinfo(*split(address))}
    except OSError:
        return set()


def silence(address):
    """Returns why gRPC does not answer at host:port, "" if it does.

    For a task that is stopped the system goes on to accept connections.
    """
    try:
        with socket.create_connection(split(address), 5) as connection:
            connection.sendall(GREETING)
            ours = connection.recv(9)[3:4] == SETTINGS
            return "" if ours else "what answers is not a task"
    except ConnectionError:
        return CLOSED
    except OSError as error:
        return f"{error.strerror or error}"
