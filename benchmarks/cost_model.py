"""What a run will cost: rates, bytes, staleness and waiting, by formula and simulated.

The model is Basics-Tutorial/cost.py, which a notebook there explains. A delay is that
from host to host, one way. A value that is not given is that of the first line.

    python benchmarks/cost_model.py --scheme HogWild --workers 4 --ps 1
    python benchmarks/cost_model.py --scheme all --workers 8 --latency 0.05
    python benchmarks/cost_model.py --parameters 25000000 --bandwidth 1e10 --straggler 2
    python benchmarks/cost_model.py --scheme DiLoCo --window 100 --gradient 0.02

Costs of a processor are those of cost.py; with --calibrated they are those that
predictions.py has found on its machine.
"""

import importlib
import json
import sys

import runs

sys.path.insert(0, str(runs.REPO / "Basics-Tutorial"))
cost = importlib.import_module("cost")

HELP = {
    "workers": "N",
    "ps": "S, of schemes that have any",
    "parameters": "P, each of 4 bytes",
    "gradient": "seconds of a gradient, on average",
    "spread": "standard deviation of these seconds, over their mean",
    "straggler": "how many times as long the gradients of the last worker take",
    "window": "T, of schemes that have one",
    "batch": "examples of a gradient",
    "bandwidth": "bits a second of a host's cable, each way",
    "latency": "seconds from host to host, one way",
    "replicas": "gradients of an update of Synchronous-SGD",
    "staleness": "s of Stale-Synchronous-Parallel",
    "keep": "share of the elements that Gradient-Compression pushes",
}


def parse_args(argv=None):
    """Returns (the Setups to compare, the flags)."""
    parser = runs.Parser(__doc__)
    known = {field.name: field for field in cost.dataclasses.fields(cost.Setup)}
    default = known["scheme"].default
    parser.add_argument("--scheme", default=default, help="a folder's name, or all")
    for name, text in HELP.items():
        value = known[name].default
        kind = int if value is None else type(value)
        shown = "" if value is None else f" ({value:g})"
        parser.add_argument(f"--{name}", type=kind, default=value, help=text + shown)
    parser.add_argument("--calibrated", action="store_true", help="see above")
    args = parser.parse_args(argv)
    schemes = cost.SCHEMES if args.scheme == "all" else args.scheme.split(",")
    numbers = {name: getattr(args, name) for name in HELP}
    costs = calibrated() if args.calibrated else cost.Costs()
    try:
        return [cost.Setup(scheme, **numbers, costs=costs) for scheme in schemes], args
    except ValueError as error:
        runs.fail(str(error))


def calibrated():
    """Returns the costs that predictions.py has found, for hosts of their own."""
    path = runs.RESULTS / "predictions-calibration.json"
    if not path.exists():
        runs.fail("--calibrated: predictions.py has measured nothing here yet")
    predictions = importlib.import_module("predictions")
    rounds = json.loads(path.read_text())["rounds"]
    costs = predictions.costs_of(predictions.middles(rounds))
    return cost.dataclasses.replace(costs, cores=None)


HEADER = {  # of the table, and what a column has
    "scheme": "",
    "formula": "updates a second, by formula",
    "simulated": "updates a second; the next five columns are of the simulation, too",
    "examples": "a second",
    "MB/s": "on the busiest cable, one way",
    "stale": "mean staleness",
    "most": "largest staleness",
    "waits": "ms of a round that a worker waits for others, the one that waits longest",
    "limit": "what sets the rate by formula",
    "full": "how many workers like these the ps can serve",
}


def row_of(setup):
    """Returns a row of the table: what the formula and what the simulation say."""
    known, (run, _) = cost.formula(setup), cost.simulate(setup)
    return [
        setup.scheme,
        f"{known.updates:.1f}",
        f"{run.updates:.1f}",
        f"{run.examples:,.0f}",
        f"{run.busiest / 1e6:.2f}",
        f"{run.staleness:.1f}",
        f"{run.most}",
        f"{1000 * max(run.waits):.0f}",
        known.limit,
        f"{known.full:.0f}" if known.full else "-",
    ]


def table(rows):
    """Returns a table as text, and below it a line for each column."""
    columns = list(zip(HEADER, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in zip(*columns, strict=True)
    ]
    meaning = [f"{name + ':':11}{text}" for name, text in HEADER.items() if text]
    return "\n".join([*lines, "", *meaning])


def main():
    setups, _ = parse_args()
    print(table([row_of(setup) for setup in setups]))


if __name__ == "__main__":
    runs.ends_cleanly(main)
