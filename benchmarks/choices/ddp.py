"""PyTorch's DistributedDataParallel over gloo: each process has a copy of the model.

All processes wait for each other in every step, in which their gradients are averaged.
Written as in https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, and
started by torchrun: torchrun --standalone --nproc-per-node 2 ddp.py --data FILE.npz
"""

import torch
import torch.distributed as dist
import work
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main():
    args = work.parse_args(__doc__)
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    data = work.rows(args.data)
    model = work.model(args, data)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=args.learning_rate)
    batches = work.batches(args, data, rank, workers)
    report = work.Report(args, data, model) if rank == 0 else None
    dist.barrier()
    for step in range(1, args.steps + 1):
        images, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(replica(images), labels).backward()
        optimizer.step()
        if report:
            work.line(args, step)
    dist.barrier()
    if report:
        report.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
