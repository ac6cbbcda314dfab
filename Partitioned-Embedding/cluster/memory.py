"""Memory: does a table fit, and how much did a process have? Scripts call it."""

import os
import resource
import sys


def available():
    """Returns the bytes of memory that this machine can still give, or None."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":") for line in file)
        return 1024 * int(found["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def fit(args, rows, each):
    """Raises ValueError if rows of `each` bytes, of all ps, do not fit on this host."""
    host = args.address.rpartition(":")[0]
    here = sum(one.rpartition(":")[0] == host for one in args.ps_hosts)
    count, free = len(args.ps_hosts), available()
    needed = here * each * -(-rows // count)
    if free is not None and needed > free:
        raise ValueError(
            f"a table of {rows} x {args.rank} on {count} ps, {here} of them on {host}, "
            f"needs {needed / 1e9:.1f} GB there; {free / 1e9:.1f} GB are free"
        )


def say():
    """Prints the most memory that this process had."""
    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(f"memory of process {os.getpid()}: at most {most / 1e6:.0f} MB")
