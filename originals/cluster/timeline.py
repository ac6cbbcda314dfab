"""What a pipeline's stages did when, by TensorFlow's own trace. Scripts call it.

A unit is a forward or a backward of one micro-batch on one stage: the operations under
a name scope `forward_s_m` or `backward_s_m`. Some of them, shapes and constants, need
not wait for what the unit works on; so it begins when that has `arrived`, and not
before the stage's unit before it has ended.
"""

import collections
import json
import re

from cluster import tensorflow_v1 as tf

UNIT = re.compile(r"(forward|backward)_(\d+)_(\d+)/")
ARRIVED = re.compile(r"/arrived(?:_\d+)?$")

# Times in seconds from the first unit's start, by the clock of the stage's machine.
Unit = collections.namedtuple("Unit", "kind stage micro_batch start end")


def trace(session, fetch, times=5):
    """Returns the Units of a `session.run`, the fastest of several.

    `fetch` are tensors; what they come to is not sent to the client.
    """
    fetch = tf.nest.map_structure(lambda tensor: tensor.op, fetch)
    best = None
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    for _ in range(times):
        metadata = tf.RunMetadata()
        session.run(fetch, options=options, run_metadata=metadata)
        units = units_of(metadata.step_stats)
        if best is None or span(units) < span(best):
            best = units
    return best


def units_of(step_stats):
    """Returns the Units of a trace, in the order of their starts."""
    starts, arrived, ends = {}, {}, {}
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            match = UNIT.search(node.node_name)
            if not match:
                continue
            key, start = match.groups(), node.all_start_micros
            end = start + node.op_end_rel_micros
            ends[key] = max(ends.get(key, end), end)
            if ARRIVED.search(node.node_name):
                arrived[key] = end
            starts[key] = min(starts.get(key, start), start)
    found, over = [], {}
    for kind, stage, m in sorted(ends, key=ends.get):
        end = ends[kind, stage, m]
        start = arrived.get((kind, stage, m), starts[kind, stage, m])
        start = max(start, over.get(stage, 0))
        found.append(Unit(kind, int(stage), int(m), start, end))
        over[stage] = end
    first = min((unit.start for unit in found), default=0)
    return [
        unit._replace(start=(unit.start - first) / 1e6, end=(unit.end - first) / 1e6)
        for unit in sorted(found, key=lambda unit: unit.start)
    ]


def span(units):
    """Returns the seconds from the first unit's start to the last one's end."""
    return max((unit.end for unit in units), default=0.0)


def bubble(units):
    """Returns the share of the stages' time with nothing to do; None without units."""
    if not units:  # another TensorFlow may call its operations otherwise
        return None
    stages = {unit.stage for unit in units}
    busy = sum(unit.end - unit.start for unit in units)
    return 1 - busy / (len(stages) * span(units))


def write(units, path):
    """Writes the units as JSON, a list of dicts, for whoever draws them."""
    with open(path, "w") as file:
        json.dump([unit._asdict() for unit in units], file, indent=1)
        file.write("\n")
