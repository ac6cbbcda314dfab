"""Ray's asynchronous parameter server: an actor holds the model, nobody waits.

The program that starts the actors gives every gradient to the server as soon as it is
there, and the new parameters to the worker that computed it. Written as in
https://docs.ray.io/en/latest/ray-core/examples/plot_parameter_server.html
"""

import ray
import torch
import work
from torch.nn.functional import cross_entropy


class Actor:
    """What both kinds of actors have: flags, data and a model."""

    def __init__(self, args):
        torch.set_num_threads(args.threads)
        self.args, self.data = args, work.rows(args.data)
        self.model = work.model(args, self.data)
        self.parameters = list(self.model.parameters())


@ray.remote
class ParameterServer(Actor):
    """Holds the model, and counts its updates."""

    def __init__(self, args):
        super().__init__(args)
        self.optimizer = torch.optim.SGD(self.parameters, lr=args.learning_rate)

    def weights(self):
        """Returns the parameters as arrays."""
        return [parameter.detach().numpy() for parameter in self.parameters]

    def apply(self, gradients):
        """Makes an update; returns the parameters after it."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self.optimizer.step()
        return self.weights()


@ray.remote
class Worker(Actor):
    """Computes gradients on its mini-batches."""

    def __init__(self, args, index):
        super().__init__(args)
        self.batches = work.batches(args, self.data, index, args.workers)

    def ready(self):
        """Returns when the worker is there."""

    def gradients(self, weights):
        """Returns the gradients at these parameters, as arrays."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.data = torch.from_numpy(value)
        images, labels = next(self.batches)
        loss = cross_entropy(self.model(images), labels)
        found = torch.autograd.grad(loss, self.parameters)
        return [gradient.numpy() for gradient in found]


def main():
    args = work.parse_args(__doc__)
    # A CPU for each actor: by default there are as many as the machine has.
    ray.init(num_cpus=args.workers + 1, include_dashboard=False, log_to_driver=False)
    server = ParameterServer.remote(args)
    workers = [Worker.remote(args, index) for index in range(args.workers)]
    ray.get([worker.ready.remote() for worker in workers])
    data = work.rows(args.data)
    model = work.model(args, data)
    report = work.Report(args, data, model)

    weights = server.weights.remote()
    under_way = {worker.gradients.remote(weights): worker for worker in workers}
    for step in range(1, args.steps + 1):
        (first, *_), _ = ray.wait(list(under_way))
        worker = under_way.pop(first)
        weights = server.apply.remote(first)
        under_way[worker.gradients.remote(weights)] = worker
        work.line(args, step)

    last = ray.get(weights)
    for parameter, value in zip(model.parameters(), last, strict=True):
        parameter.data = torch.from_numpy(value)
    report.end()
    ray.shutdown()


if __name__ == "__main__":
    main()
