"""Starts the script of an example as Ray tasks, in the bundles of a placement group.

    PYTHONPATH=Engines python Engines/Ray/job.py \\
        --num_ps 1 --num_workers 2 HogWild/hogwild.py --steps 200 --logdir /shared/run

Ray decides which machine has which bundle, and reserves all bundles or none. This
program joins the cluster that RAY_ADDRESS names, or that of this machine (`ray start`).
Arguments after the script's name go to the script.
"""

import argparse
import sys
import time

import adapter
import ray
import tasks
from ray.util.placement_group import placement_group, remove_placement_group


def parse_args(argv=None):
    """Returns the flags; `options` are the script's own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num_ps", type=int, default=1, help="tasks that hold the parameters")
    add("--num_workers", type=int, default=2, help="tasks that compute")
    add("--cpus", type=float, default=1, help="of each task")
    add("--strategy", default="PACK", help="PACK, SPREAD, STRICT_PACK, STRICT_SPREAD")
    add("--max_restarts", type=int, default=0, help="of each task that dies")
    add("--python", default=sys.executable, help="the script's, with TensorFlow")
    add("--wait", type=float, default=60, help="seconds for the cluster to have room")
    add("--local", type=int, help="a cluster here, of so many CPUs, for this run")
    add("--temp", help="where that cluster keeps its files")
    add("script", help="of an example; a path on the machines")
    add("options", nargs=argparse.REMAINDER, help="the script's own")
    args = parser.parse_args(argv)
    if args.num_ps < 0 or args.num_workers < 1 or args.max_restarts < 0:
        parser.error("--num_workers must be 1 or more, the other counts 0 or more")
    return args


def reserve(args):
    """Returns a placement group with a bundle per task, once Ray has reserved it."""
    count = args.num_ps + args.num_workers
    alone = args.strategy == "STRICT_SPREAD"
    until = time.monotonic() + (0 if args.local else args.wait)
    while True:
        cpus = ray.cluster_resources().get("CPU", 0)
        nodes = sum(node["Alive"] for node in ray.nodes())
        if cpus >= count * args.cpus and (nodes >= count or not alone):
            break
        if time.monotonic() >= until:
            what = f"{count * args.cpus:g} CPUs" + f" on {count} machines" * alone
            tasks.fail(f"{count} tasks need {what}; Ray has {cpus:g} CPUs on {nodes}")
        time.sleep(0.5)
    group = placement_group([{"CPU": args.cpus}] * count, strategy=args.strategy)
    if not group.wait(args.wait):
        remove_placement_group(group)
        tasks.fail(f"Ray has not found room for {count} tasks in {args.wait:g} s", 138)
    return group


def main():
    args = parse_args()
    status, sentence = tasks.check(
        args.python, args.script, args.options, args.num_ps, args.num_workers
    )
    if status:
        tasks.fail(sentence, status)
    for module in (adapter, tasks):  # goes to Ray's workers with what is called there
        ray.cloudpickle.register_pickle_by_value(module)
    here = dict(num_cpus=args.local, include_dashboard=False, _temp_dir=args.temp)
    here["object_store_memory"] = 100 * 2**20  # bytes; nothing goes through it
    here["_node_ip_address"] = "127.0.0.1"
    ray.init(logging_level="WARNING", **(here if args.local else {}))
    command = [args.python, args.script, *args.options]
    started = adapter.start_tasks(
        reserve(args), args.num_ps, args.cpus, command, args.max_restarts
    )
    waiting = list(started)
    try:
        while waiting:
            (done,), waiting = ray.wait(waiting)
            ray.get(done)
    except ray.exceptions.RayTaskError as error:
        tasks.fail(error.cause.sentence, error.cause.status)
    except ray.exceptions.RayError as error:
        tasks.fail(f"{started[done]}: {str(error).splitlines()[0]}", 138)
    finally:
        for reference in waiting:  # the first failure ends the run
            ray.cancel(reference, force=True)
        ray.shutdown()


if __name__ == "__main__":
    main()
