"""Who is where: the host lists and TF_CONFIG, read and checked. Is somebody there?

A mistake raises ValueError with the sentence that the user is to see.
"""

import json
import socket

LOOKS = (
    'TF_CONFIG must look like {"cluster": {"chief": ["host:port"], "worker": '
    '["host:port"], "ps": ["host:port"]}, "task": {"type": "ps", "index": 0}}'
)
JOBS = {"chief", "master", "worker", "ps", "evaluator"}
CLOSED = "nothing is at the port"  # the host is there, and the process is not
# What a client of HTTP/2 says first: its preface, and settings that change nothing.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4"  # the kind of a frame, its fourth byte


# --- Host lists -------------------------------------------------------------------


def from_tf_config(text, with_ps=True):
    """Returns job, index, ps hosts and worker hosts of one task, from TF_CONFIG's text.

    TF_CONFIG is the variable that Kubeflow, Vertex AI and SageMaker set; its chief
    counts as worker 0. The hosts are separated by commas, as the flags have them.
    `with_ps` says whether the cluster must have a ps or may not have one.
    """
    try:
        config = json.loads(text)
        job, index = config["task"]["type"], int(config["task"]["index"])
        jobs = {name: [*map(str, hosts)] for name, hosts in config["cluster"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(LOOKS) from None
    known = set(jobs) <= JOBS and (job in jobs or job == "evaluator")
    if not known or bool(jobs.get("ps")) != with_ps:
        text = "one" if with_ps else "none"
        raise ValueError(
            f"TF_CONFIG: a job is unknown, or missing, or a ps: here is {text}. {LOOKS}"
        )
    chief = jobs.get("chief", []) + jobs.get("master", [])
    if len(chief) > 1:
        raise ValueError(f"TF_CONFIG: {len(chief)} chiefs; there can be one")
    if index < 0:
        raise ValueError(f"TF_CONFIG: {job} index {index} is negative")
    return (
        job if job in ("ps", "evaluator") else "worker",
        index + (len(chief) if job == "worker" else 0),
        ",".join(jobs.get("ps", [])),
        ",".join(chief + jobs.get("worker", [])),
    )


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
                    "tasks on one machine need different ports"
                )
            seen[address] = flag
    return lists


# --- Tasks ------------------------------------------------------------------------


def device(job, index):
    """Returns the device of a task."""
    return f"/job:{job}/task:{index}"


def one_client(args):
    """Says whether the chief builds the graph of all, and other workers only serve."""
    return getattr(args, "one_client", False)


def servers(args):
    """Returns {(job, index): address} of the tasks that serve until the run is over.

    They are the ps, and with one client the other workers; without a ps the chief. The
    first has the board, and counts the updates.
    """
    found = {("ps", k): address for k, address in enumerate(args.ps_hosts)}
    if one_client(args):
        others = [*enumerate(args.worker_hosts)][1:]
        found |= {("worker", k): address for k, address in others}
    return found or {("worker", 0): args.worker_hosts[0]}


def home(args):
    """Returns the device of the first of the `servers`."""
    return device(*next(iter(servers(args))))


# --- Is somebody there? -----------------------------------------------------------


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
        except OSError:
            return False
    return True


def resolve(address):
    """Returns the numeric addresses behind the name in host:port, none if unknown."""
    try:
        return {item[4][0] for item in socket.getaddrinfo(*split(address))}
    except OSError:
        return set()


def answers(address, seconds=2):
    """Says whether anything accepts a connection at host:port."""
    try:
        socket.create_connection(split(address), seconds).close()
        return True
    except OSError:
        return False


def silence(address):
    """Returns why gRPC does not answer at host:port, "" if it does.

    It does not in a task that is stopped, though the system accepts connections for it.
    A server of HTTP/2 begins with a frame of its settings.
    """
    try:
        with socket.create_connection(split(address), 5) as connection:
            connection.sendall(GREETING)
            ours = connection.recv(9)[3:4] == SETTINGS
            return "" if ours else "what answers is not a task"
    except socket.gaierror:
        return "nobody knows the name"
    except ConnectionError:
        return CLOSED
    except OSError:
        return "nothing answers"
