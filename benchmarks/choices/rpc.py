"""A parameter server over torch.distributed.rpc: pull, gradient, push; nobody waits.

    ps      holds the model; the threads of its rpc agent change it without a lock
    worker  computes a gradient, pushes it, and gets the parameters after it

A push and the pull after it are one call: with two calls a step took twice as long.
This is HogWild's scheme. The server is an object behind an RRef whose methods the
workers call, as in
https://docs.pytorch.org/tutorials/intermediate/rpc_param_server_tutorial.html
and https://docs.pytorch.org/tutorials/intermediate/rpc_async_execution.html
"""

import itertools
import os

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import work
from torch.nn.functional import cross_entropy


class Server:
    """The model, and how many updates it has had."""

    def __init__(self, args):
        torch.set_num_threads(args.threads)
        data = work.rows(args.data)
        self.args, self.model = args, work.model(args, data)
        self.parameters = list(self.model.parameters())
        self.numbers = itertools.count(1)  # two threads never get the same one
        self.report = work.Report(args, data, self.model)

    def pull(self):
        """Returns the parameters."""
        return [parameter.detach() for parameter in self.parameters]

    @torch.no_grad()
    def push(self, gradients):
        """Makes an update with the gradients; returns its number, and `pull`."""
        number = next(self.numbers)
        if number <= self.args.steps:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=self.args.learning_rate)
        return number, self.pull()

    def end(self):
        """Prints what was learned."""
        self.report.end()


def train(server, args, worker):
    """Trains in a worker until all updates are made; `server` is an RRef."""
    torch.set_num_threads(args.threads)
    data = work.rows(args.data)
    model = work.model(args, data)
    parameters = list(model.parameters())
    batches = work.batches(args, data, worker, args.workers)
    number, values = 0, server.rpc_sync(timeout=0).pull()
    while number < args.steps:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value
        images, labels = next(batches)
        loss = cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, parameters)
        number, values = server.rpc_sync(timeout=0).push(gradients)
        # Not in a thread of the ps: there it would wait for the others.
        if number <= args.steps:
            work.line(args, number)


def run(rank, args, port):
    """Runs a process: rank 0 is the ps, which starts the workers' loops."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    name = f"worker{rank}" if rank else "ps"
    rpc.init_rpc(name, rank=rank, world_size=args.workers + 1)
    if rank == 0:
        server = rpc.RRef(Server(args))
        loops = [
            rpc.rpc_async(f"worker{k + 1}", train, args=(server, args, k), timeout=0)
            for k in range(args.workers)
        ]
        torch.futures.wait_all(loops)
        server.local_value().end()
    rpc.shutdown()


def main():
    args = work.parse_args(__doc__)
    mp.spawn(run, args=(args, work.free_port()), nprocs=args.workers + 1)


if __name__ == "__main__":
    main()
