"""What every notebook of this folder does first: before it imports TensorFlow.

The notebooks show single numbers, and want three things of their kernel:

- no accelerator, which these numbers do not need;
- no proxy between processes of this machine: gRPC obeys http_proxy, and would wait;
- a quiet start: TensorFlow's C++ part writes a page of messages to file descriptor 2.
  Python's own errors take another way in a notebook, and stay visible.
"""

import os
import socket


def quietly():
    """Sets all that for this process; TensorFlow must not have been imported yet."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["no_grpc_proxy"] = "localhost"
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def free_ports(count):
    """Returns `count` ports on which nobody listens, from the operating system."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
