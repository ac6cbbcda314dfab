"""Many runs of one function with different arguments, each a Spark task.

    frame = launch(spark, map_fun, {"learning_rate": [0.05, 0.1], "batch": [16, 32]})

sweep.py does this with an example. README.md shows it with a function of your own.
"""

import inspect
import itertools
import multiprocessing
import random
import time

import driver
import tasks
from pyspark.sql import functions as F
from pyspark.sql import types as T

BEST = "test_accuracy"  # by which the runs are ordered

# --- Which runs ---------------------------------------------------------------


def grid(args_dict):
    """Returns every combination of the dict's lists, as a list of dicts."""
    values = itertools.product(*args_dict.values())
    return [dict(zip(args_dict, combination, strict=True)) for combination in values]


def random_search(args_dict, runs, seed=0):
    """Returns at most `runs` different draws, as a list of dicts.

    A list of two numbers is a range: of positive ones it is drawn from evenly by
    magnitude, between whole numbers a whole one. Of any other list an item is drawn.
    Source: Bergstra and Bengio 2012, JMLR 13, section 2: of the few flags that matter
    more values are tried than in a grid.
    """
    dice = random.Random(seed)

    def draw(values):
        low, high = values[0], values[-1]
        if len(values) != 2 or not all(isinstance(v, (int, float)) for v in values):
            return dice.choice(values)
        if low > 0:
            value = low * (high / low) ** dice.random()
        else:
            value = dice.uniform(low, high)
        return round(value) if isinstance(low + high, int) else float(f"{value:.4g}")

    found = []
    for _ in range(100 * runs):
        drawn = {name: draw(values) for name, values in args_dict.items()}
        if len(found) < runs and drawn not in found:
            found.append(drawn)
    return found


# --- The runs -----------------------------------------------------------------


def in_a_process(map_fun, arguments):
    """Returns what `map_fun(**arguments)` returns, called in a process of its own.

    TensorFlow's state is its process's: a second run there would find the first one's.
    Raises RuntimeError with one sentence if the function raises, or its process dies.
    """
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)

    def call():
        tasks.end_with_parent()
        try:
            theirs.send((map_fun(**arguments), ""))
        except Exception as error:
            theirs.send((None, str(error) or type(error).__name__))

    process = fork.Process(target=call)
    process.start()
    theirs.close()
    try:
        value, sentence = mine.recv()
    except EOFError:
        process.join()
        value, sentence = None, f"its process ended with status {process.exitcode}"
    finally:
        process.terminate()
        process.join()
    if sentence:
        raise RuntimeError(sentence)
    return value


def launch(spark, map_fun, args_dict, runs=None, seed=0, best=BEST):
    """Calls `map_fun` for each combination of the dict's lists, in parallel.

    spark      a SparkSession; a run is a task, which has a slot to itself
    map_fun    its parameters are names of `args_dict`; it returns a number, or a dict
               of numbers one of which is `best`
    args_dict  name -> list of values
    runs       None for the whole grid, else a number of random draws

    Returns a DataFrame with a row per run, the largest `best` on top: `run`, the
    arguments, what the function returned, `seconds`, and `failed`: why there is no
    result, else empty. Raises ValueError if the names do not fit the function's.
    """
    parameters = inspect.signature(map_fun).parameters.values()
    names = {p.name for p in parameters}
    if not args_dict or not all(args_dict.values()):
        raise ValueError("no runs: name at least one argument and one value of it")
    if not any(p.kind is p.VAR_KEYWORD for p in parameters) and set(args_dict) - names:
        raise ValueError(f"{map_fun.__name__} has no {min(set(args_dict) - names)}")
    tried = grid(args_dict) if runs is None else random_search(args_dict, runs, seed)
    count, began = len(tried), time.monotonic()

    def action(told):
        def task(item):
            number, arguments = item
            begun, value, failed = time.monotonic(), {}, ""
            try:
                value = in_a_process(map_fun, arguments)
                value = value if isinstance(value, dict) else {best: float(value)}
            except Exception as error:
                failed = str(error)
            told.add([(number, value, time.monotonic() - begun, failed)])

        items = spark.sparkContext.parallelize(list(enumerate(tried)), count)
        items.foreach(task)

    rows, job = [], driver.Job(spark.sparkContext, action)
    for number, value, seconds, failed in job.news():
        rows.append((number, tried[number], value, seconds, failed))
        flags = " ".join(f"{k}={v}" for k, v in tried[number].items())
        result = failed or f"{best} {value[best]:.4f}"
        left = (time.monotonic() - began) / len(rows) * (count - len(rows))
        print(f"run {len(rows)}/{count}  {flags}  {result}  {left:.0f} s left")
    lost = f"Spark gave it up: {driver.first_line(job.error)}" if job.error else ""
    for number in set(range(count)) - {row[0] for row in rows}:
        rows.append((number, tried[number], {}, None, lost))
    return _frame(spark, rows, list(args_dict), best)


def _frame(spark, rows, names, best):
    """Returns the runs as a DataFrame, ordered; `rows` as `launch` collects them."""
    results = sorted({name for row in rows for name in row[2]} | {best})
    results = [best, *(name for name in results if name != best)]

    def kind(values):
        if all(isinstance(value, int) for value in values):
            return T.LongType()
        numbers = all(isinstance(value, (int, float)) for value in values)
        return T.DoubleType() if numbers else T.StringType()

    kinds = {name: kind([row[1][name] for row in rows]) for name in names}
    as_ = {T.LongType(): int, T.DoubleType(): float, T.StringType(): str}
    schema = [T.StructField("run", T.LongType())]
    schema += [T.StructField(name, kinds[name]) for name in names]
    schema += [T.StructField(name, T.DoubleType()) for name in [*results, "seconds"]]
    schema.append(T.StructField("failed", T.StringType()))
    data = [
        (
            number,
            *(as_[kinds[name]](arguments[name]) for name in names),
            *(float(value[r]) if r in value else None for r in results),
            seconds,
            failed,
        )
        for number, arguments, value, seconds, failed in rows
    ]
    frame = spark.createDataFrame(data, T.StructType(schema))
    return frame.orderBy(F.desc_nulls_last(best), "run")
