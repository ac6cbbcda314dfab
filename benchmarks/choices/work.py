"""What the programs of this folder share: flags, data, model, mini-batches and lines.

The model, its start, the mini-batches and the rate are those of problem.py: a
perceptron with He's normal weights, and shuffled rows k, k + N, k + 2N ... for worker
k of N. The lines are those of the examples, so that one clock times all: `step 10/200`.
"""

import argparse
import collections
import socket
import time

import numpy as np
import torch
from torch import nn

Rows = collections.namedtuple("Rows", "x_train y_train x_test y_test")
LINES = 20  # of a run


def parse_args(doc):
    """Returns the flags."""
    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False)
    add = parser.add_argument
    add("--data", required=True, help="a .npz file with x_train, y_train, x_test, ..")
    add("--hidden", type=int, default=64, help="units of the hidden layer")
    add("--batch_size", type=int, default=32)
    add("--learning_rate", type=float, default=0.1)
    add("--steps", type=int, default=4000, help="updates that the run makes")
    add("--workers", type=int, default=2, help="torchrun has a flag of its own")
    add("--threads", type=int, default=1, help="of a process, inside an operation")
    add("--seed", type=int, default=0)
    return parser.parse_args()


def rows(path):
    """Returns the data of a .npz file as tensors: x float32 [n, features], y int64."""
    with np.load(path) as file:
        x = {name: torch.from_numpy(file[name]) for name in file}
    return Rows(*(x[k].long() if k[0] == "y" else x[k] for k in Rows._fields))


def model(args, data):
    """Returns the perceptron with its start weights, the same for a seed."""
    torch.manual_seed(args.seed)
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    layers = nn.Linear(features, args.hidden), nn.Linear(args.hidden, classes)
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def batches(args, data, worker, workers):
    """Gives the mini-batches of a worker, one after the other.

    A DataLoader would collect each of them row by row, which is slower.
    """
    x, y = data.x_train[worker::workers], data.y_train[worker::workers]
    generator = torch.Generator().manual_seed(args.seed + worker)
    order = torch.randperm(len(y), generator=generator)
    while True:
        while len(order) < args.batch_size:
            more = torch.randperm(len(y), generator=generator)
            order = torch.cat([order, more])
        now, order = order[: args.batch_size], order[args.batch_size :]
        yield x[now], y[now]


def free_port():
    """Returns a port that is free."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def line(args, number):
    """Prints a line if one is due at this update, the first being 1."""
    if number in (1, args.steps) or number % max(1, args.steps // LINES) == 0:
        print(f"step {number}/{args.steps}  at {time.monotonic():.3f} s", flush=True)


class Report:
    """Prints that the model of a run has learned."""

    def __init__(self, args, data, model):
        self.args, self.data, self.model = args, data, model
        self.before = self._loss()

    @torch.no_grad()
    def _loss(self):
        logits = self.model(self.data.x_train)
        return nn.functional.cross_entropy(logits, self.data.y_train).item()

    @torch.no_grad()
    def end(self):
        """Prints the losses and the accuracy; status 1 if nothing was learned."""
        after = self._loss()
        print(f"training loss {self.before:.4f} before, {after:.4f} after")
        guess = self.model(self.data.x_test).argmax(1)
        accuracy = (guess == self.data.y_test).float().mean().item()
        print(f"test accuracy {accuracy:.4f} after {self.args.steps} steps", flush=True)
        if not after < self.before:
            raise SystemExit("the loss has not fallen")
