"""The bundles of a placement group to TF_CONFIG, then the script of an example.

job.py calls it. Its tasks run on Ray's workers, to which Ray also sends ../tasks.py.
"""

import ray
import tasks
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def address():
    """Returns where a task can serve, on the machine of its bundle."""
    with tasks.held_port() as port:
        return f"{ray.util.get_node_ip_address()}:{port}"


@ray.remote
def task(name, command, config):
    """Runs the script; raises tasks.Ended or tasks.Again if its status is not 0."""
    tasks.run_task(name, command, config)


def start_tasks(group, num_ps, cpus, command, max_restarts):
    """Starts a task in each bundle, the ps first; returns their names by reference.

    A task that ends with tasks.Again, or whose worker dies, is started again in its
    bundle `max_restarts` times, at the same address.
    """
    count = group.bundle_count

    def options(index, **more):
        bundle = PlacementGroupSchedulingStrategy(group, index)
        return dict(num_cpus=cpus, scheduling_strategy=bundle, **more)

    addresses = []
    while len(set(addresses)) < count:  # two on one machine may draw the same port
        asked = [address.options(**options(k)).remote() for k in range(count)]
        addresses = ray.get(asked)
    started = {}
    for index in range(count):
        name = tasks.name_of(index, num_ps)
        again = dict(max_retries=max_restarts, retry_exceptions=[tasks.Again])
        here = task.options(name=name, **options(index, **again))
        config = tasks.tf_config(addresses, num_ps, index)
        started[here.remote(name, command, config)] = name
    return started
