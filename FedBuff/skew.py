"""--skew: workers whose data are not alike. An experiment: delete it.

In place of contract.py a script imports this file, which deals out the rows first.
"""

import numpy as np

from cluster import flags
import contract


def add_flag(parser):
    """Adds --skew."""
    parser.add_argument(
        "--skew",
        type=flags.positive,
        help="α of a Dirichlet distribution, by which each worker gets the classes:\n"
        "the smaller, the less alike are the workers; all alike if not given",
    )


def build(problem, data, args, worker=0, workers=1):
    """Returns what contract.build does, with the rows dealt out by their labels."""
    if args.skew:
        order = dealt(data.y_train, workers, args.skew, args.seed)
        data = data._replace(x_train=data.x_train[order], y_train=data.y_train[order])
    return contract.build(problem, data, args, worker, workers)


def dealt(labels, workers, concentration, seed):
    """Returns an order of the rows, of which worker k of N takes k, k + N, k + 2N ..

    Each worker draws its shares of the classes, and then each row's class by them, of
    the classes that have rows left. So all get equally many rows, and no row twice.
    Source: Hsu, Qi, Brown, 2019, arXiv 1909.06335.
    """
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)
    rows = [rng.permutation(np.flatnonzero(labels == c)).tolist() for c in classes]
    shares = rng.dirichlet([concentration] * len(rows), size=workers)
    left, order = np.array([len(some) for some in rows]), []
    for number in range(len(labels)):
        p = shares[number % workers] * (left > 0)
        p = p if p.sum() > 0 else left
        chosen = rng.choice(len(rows), p=p / p.sum())
        left[chosen] -= 1
        order.append(rows[chosen].pop())
    return order
