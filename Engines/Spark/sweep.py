"""Runs an example many times with different flags, one whole run per Spark task.

    spark-submit --master spark://host:7077 \\
        --py-files ../tasks.py,driver.py,experiments.py sweep.py \\
        --grid "learning_rate=0.05,0.1 batch_size=16,32" --logdir sweep HogWild

A run is the example's own run.sh with NUM_PS and NUM_WORKERS, so all its tasks are on
the machine of the Spark task. Writes the DataFrame to result.json, a plot to runs.png.
"""

import argparse
import json
import os
import sys

import experiments
import plot
import tasks
from pyspark.sql import SparkSession


def parse_args(argv=None):
    """Returns the flags; `options` are the example's own, the same in all runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--grid", required=True, help="flag=value,value ... of the example")
    add("--random", type=int, default=0, help="draws; 0 tries every combination")
    add("--seed", type=int, default=0, help="of the draws")
    add("--logdir", required=True, help="a folder for each run, and the results")
    add("--python", default=sys.executable, help="the example's, with TensorFlow")
    add("folder", help="of an example; a path on the executors")
    add("options", nargs=argparse.REMAINDER, help="the example's own")
    args = parser.parse_args(argv)
    try:
        args.grid = dict(map(values_of, args.grid.split()))
    except ValueError as error:
        tasks.fail(f"--grid: {error}")
    if args.random < 0 or not args.grid:
        tasks.fail("--random counts draws, and --grid names at least one flag")
    return args


def values_of(word):
    """Returns the name and the values of flag=value,value: numbers where they are."""
    name, equals, values = word.partition("=")
    if not name or not equals or "" in values.split(","):
        raise ValueError(f"{word!r} is not flag=value,value")

    def value(text):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return text

    return name, [value(text) for text in values.split(",")]


def example(folder, options, logdir, python):
    """Returns a function that runs the example with flags, and returns its result."""

    def run(**flags):
        there = os.path.join(logdir, ",".join(f"{k}={v}" for k, v in flags.items()))
        os.makedirs(there, exist_ok=True)
        given = [f"--{name}={value}" for name, value in flags.items()]
        command = ["bash", os.path.join(folder, "run.sh"), *options, *given]
        # Every run finds ports of its own.
        environment = {"PYTHON": python, "LOGDIR": there, "BASE_PORT": ""}
        with open(os.path.join(there, "run.log"), "w", buffering=1) as log:
            status, last = tasks.run(command, environment, log.write)
        if status:
            raise RuntimeError(last or f"ended with status {status}")
        with open(os.path.join(there, "result.json")) as file:
            result = json.load(file)
        kept = [k for k in result if k.startswith("test_")] + ["examples_per_second"]
        return {name: float(result[name]) for name in kept}

    return run


def check(args):
    """Ends the program if no run can go well: a flag is misspelt, the data missing.

    Tried on the first and the last combination; one bad value is a run that fails.
    """
    name = os.path.basename(os.path.normpath(args.folder))
    script = os.path.join(args.folder, name.lower().replace("-", "_") + ".py")
    combinations = experiments.grid(args.grid)
    for flags in (combinations[0], combinations[-1]):
        given = [f"--{name}={value}" for name, value in flags.items()]
        status, sentence = tasks.check(
            args.python, script, [*args.options, *given], 1, 1
        )
        if not status:
            return
    tasks.fail(sentence, status)


def main():
    args = parse_args()
    check(args)
    spark = SparkSession.builder.getOrCreate()
    logdir = os.path.abspath(args.logdir)
    map_fun = example(os.path.abspath(args.folder), args.options, logdir, args.python)
    frame = experiments.launch(
        spark, map_fun, args.grid, args.random or None, args.seed
    )
    frame.show(100, truncate=False)
    rows = [row.asDict() for row in frame.collect()]
    with open(os.path.join(logdir, "result.json"), "w") as file:
        json.dump({"best": rows[0], "runs": rows}, file, indent=2)
    plot.runs(rows, list(args.grid), experiments.BEST, f"{logdir}/runs.png")
    failed = sum(bool(row["failed"]) for row in rows)
    best = " ".join(f"--{name} {rows[0][name]}" for name in args.grid)
    spark.stop()
    if failed == len(rows):
        tasks.fail(f"all {failed} runs failed, the first: {rows[0]['failed']}", 1)
    print(f"results: {logdir}/result.json")
    print(f"plot: {logdir}/runs.png")
    print(f"best of {len(rows)} runs ({failed} failed): {best}")


if __name__ == "__main__":
    main()
