"""Who dials whom: what becomes of a run in which one task may not dial another.

    python survey/walls.py                   every pair of tasks of every family
    python survey/walls.py --only Gossip-SGD,worker-0

Every task is on a host of its own. One of them drops what begins a connection from one
other; all else is open, also the other direction. A run holds if it ends well, as one
in which nobody wants to dial there, or if it ends with 138 and a task has named both
ends within 20 seconds. A task that only serves cannot say that it dials in vain. Then
it is enough if another task names the address. The last lines say who dials whom.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import hosts
import launch
import moved
from launch import registry

PORT, PATIENCE, SOON, TIMEOUT = 2222, 10, 20, 150
# For each family an example, and how many ps and workers are needed to see every pair.
SHAPES = {
    "HogWild": (2, 2),
    "Synchronous-SGD": (2, 2),
    "Ring-All-Reduce": (0, 3),
    "Gossip-SGD": (0, 4),
    "In-Graph-Replication": (1, 3),
    "Model-Parallelism": (1, 3),
}


def names_of(folder: str) -> list[str]:
    """Returns the tasks of a run: ps-0, .., worker-0, .."""
    ps, workers = SHAPES[folder]
    return [f"ps-{i}" for i in range(ps)] + [f"worker-{k}" for k in range(workers)]


def cases() -> list[tuple[str, str, str]]:
    """Returns (folder, who may not dial, whom) for each pair.

    Not for a ps that may not dial a worker: nobody says so, see Fault-Tolerance.
    """
    return [
        (folder, one, other)
        for folder in SHAPES
        for one, other in itertools.permutations(names_of(folder), 2)
        if not (one.startswith("ps") and other.startswith("worker"))
    ]


def has_one_client(folder: str) -> bool:
    """Says whether worker 0 has the only session, and the other workers serve it."""
    return registry.of(folder).family == "client"


def run(case: tuple[str, str, str], where: pathlib.Path) -> dict:
    """Makes a run; returns dict(statuses, result, said, limit, lines).

    `said` is (seconds after the first line of the chief, the sentence), or None. Lines
    that say that the chief still loads TensorFlow do not count. `limit` is for seconds.
    """
    folder, dials, dialled = case
    copy, logdir = launch.copy_of(folder, where), where / "logdir"
    names = names_of(folder)
    # Ten seconds for one worker. A short run may end before the other tasks have begun,
    # and then nobody meets the wall.
    flags = ["--steps", "200", "--slow_workers", "0.05", "--patience", str(PATIENCE)]
    flags += ["--logdir", str(logdir)]
    other = dialled.replace("-", " ")
    text, limit = rf"{dials}: still waiting for .*{other}\b.* at {dialled}", SOON
    with hosts.Hosts(*names) as net:
        if dials.startswith("ps") or has_one_client(folder) and dials != "worker-0":
            # TensorFlow's reason, in a sentence of another task.
            text, limit = rf": .*{net.address[dialled]}:{PORT}", TIMEOUT
        net.wall(dialled, PORT, dials)
        began, ready, said, tasks = time.monotonic(), None, None, {}
        for name in names:
            tasks[name] = moved.start(net, copy, flags, names, name)()
        while time.monotonic() < began + TIMEOUT:
            time.sleep(0.1)
            lines = [f"{n}: {x}" for n, t in tasks.items() for x in list(t.lines)]
            found = [line for line in lines if re.search(text, line)]
            chief = [x for x in tasks["worker-0"].lines if "still loading" not in x]
            if ready is None and chief:
                ready = time.monotonic()
            if said is None and found:
                said = time.monotonic() - (ready or began), found[0]
            if all(t.process.poll() is not None for n, t in tasks.items()):
                break
            if tasks["worker-0"].process.poll() is not None and SHAPES[folder][0]:
                # A ps waits for workers that are started again.
                # A worker, too, waits for a ps: ten times --patience.
                late = time.monotonic() > began + 10 * PATIENCE + 30
                if tasks["worker-0"].process.poll() or late:
                    break
        statuses = {name: task.process.poll() for name, task in tasks.items()}
        lines = [f"{n}: {x}" for n, task in tasks.items() for x in task.lines]
    result = launch.result_if_there(logdir)
    return dict(statuses=statuses, result=result, said=said, limit=limit, lines=lines)


def verdict(found: dict) -> list[str]:
    """Returns what is wrong with what became of a run."""
    statuses, result, said = found["statuses"], found["result"], found["said"]
    if any("Traceback" in line for line in found["lines"]):
        return ["a traceback"]
    if not any(statuses.values()) and None not in statuses.values():
        return launch.wrong_stats(result)
    wrong = []
    if 138 not in statuses.values() or set(statuses.values()) - {0, 138, None}:
        wrong.append(f"statuses {statuses}")
    if said is None:
        wrong.append("nobody named who cannot be reached")
    elif said[0] > found["limit"]:
        wrong.append(f"named after {said[0]:.0f} s")
    if statuses["worker-0"] == 0:
        wrong += launch.wrong_stats(result)
    return wrong


def tried(case: tuple[str, str, str]) -> tuple[tuple, dict, list[str]]:
    """Makes a run; returns it with what is wrong in it."""
    with tempfile.TemporaryDirectory() as where:
        try:
            found = run(case, pathlib.Path(where))
            return case, found, verdict(found)
        except Exception as error:
            found = dict(statuses={}, said=None, lines=str(error).splitlines())
            return case, found, [f"{type(error).__name__}: {error}"]


def main() -> int:
    """Makes the runs; prints who dials whom; status 1 if a run does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="folder and tasks, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    args = parser.parse_args()
    if hosts.missing():
        parser.error(hosts.missing())
    words = [word for word in args.only.split(",") if word]
    chosen = [case for case in cases() if all(word in case for word in words)]
    failed, dials = 0, {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(tried, case) for case in chosen]
        for number, future in enumerate(concurrent.futures.as_completed(runs), 1):
            case, found, wrong = future.result()
            failed += bool(wrong)
            said = found["said"]
            when = f", named after {said[0]:.0f} s" if said else ""
            print(
                f"{number}/{len(chosen)} {case[0]}: {case[1]} may not dial {case[2]}: "
                f"{'; '.join(wrong) or 'holds'}, {list(found['statuses'].values())}"
                f"{when}",
                flush=True,
            )
            if wrong:
                print("  " + "\n  ".join(found["lines"][-40:]), flush=True)
            if any(found["statuses"].values()) or None in found["statuses"].values():
                dials.setdefault(case[0], []).append(f"{case[1]} → {case[2]}")
    for folder, pairs in dials.items():
        print(f"{folder} needs: {', '.join(sorted(pairs))}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
