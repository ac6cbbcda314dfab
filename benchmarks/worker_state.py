"""What is lost with a worker that has state of its own: DOWNPOUR's slots, AEASGD's x.

Worker 1 of two is killed three times in a run and started again each time, and the test
accuracy and loss at the end are compared with those of an undisturbed run. HogWild,
whose workers have no state, shows what the kills cost beside the state.

    .venv/bin/python benchmarks/worker_state.py
"""

import contextlib
import pathlib
import shutil
import tempfile

import runs

KILLS = "worker:1:3 worker:1:13 worker:1:23"  # seconds after the first checkpoint
SECONDS = 0.025  # that a round takes longer, so that there is time to die in
UPDATES = 3000  # of each run
SCHEMES = {"HogWild": [], "DOWNPOUR": ["--window", 5], "AEASGD": ["--window", 4]}


@contextlib.contextmanager
def killable(folder):
    """Gives a copy of an example with Fault-Tolerance's launcher: it obeys KILL."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        copy = pathlib.Path(parent, folder)
        ignored = shutil.ignore_patterns("logdir", "__py*")
        shutil.copytree(runs.REPO / folder, copy, ignore=ignored)
        source = runs.REPO / "Fault-Tolerance"
        shutil.copy(source / "launcher.py", copy)
        own, other = map(runs.registry.script_of, (folder, "Fault-Tolerance"))
        text = (source / "run.sh").read_text()
        (copy / "run.sh").write_text(text.replace(other, own, 1))
        yield copy


def train(folder, flags, kills, updates, timeout):
    """Returns result.json of a run of two workers, and how often one was `killed`."""
    slow = SECONDS / (flags[1] if flags else 1)
    flags = [*flags, "--steps", updates, "--slow_workers", slow]
    variables = {"KILL": kills, "MAX_RESTARTS": len(kills.split())}

    def killed(logdir):
        path = logdir / "killed"
        return {"killed": len(path.read_text().split("\n")) - 1 if path.exists() else 0}

    with killable(folder) as copy:
        return runs.run_example(
            folder,
            [*flags, "--save_seconds", 1],
            ps=1,
            workers=2,
            timeout=timeout,
            root=copy.parent,
            variables=variables,
            logs=killed,
        )


def jobs_of(args):
    """Returns the measurements of a round: each scheme, killed and undisturbed."""
    updates = 200 if args.quick else UPDATES
    return [
        runs.Job(
            f"{folder}, {name}",
            {"state"},
            updates * SECONDS / 2 + 15,
            lambda f=folder, g=flags, k=kills: train(f, g, k, updates, args.timeout),
        )
        for folder, flags in SCHEMES.items()
        for name, kills in (("undisturbed", ""), ("killed", KILLS))
        if not args.quick or (folder, name) == ("AEASGD", "killed")
    ]


def markdown(rounds):
    """Returns accuracy and loss with and without the kills."""
    rows = []
    for folder, flags in SCHEMES.items():
        row = [" ".join(map(str, [folder, *flags]))]
        for name in ("undisturbed", "killed"):
            key = f"{folder}, {name}"
            row.append(runs.spread(runs.series(rounds, key, "test_accuracy"), 4))
            row.append(runs.spread(runs.series(rounds, key, "test_loss"), 4))
        killed = runs.series(rounds, f"{folder}, killed", "killed")
        rows.append([*row, runs.spread(killed)])
    header = ["", "accuracy", "test loss", "accuracy, killed", "test loss, killed"]
    return (
        runs.count_of(rounds)
        + f"\n### {UPDATES:,} updates, worker 1 of 2 killed and started again\n\n"
        + runs.table([*header, "times"], rows)
    )


def main():
    with runs.finished(runs.measuring_parser(__doc__).parse_args()) as args:
        names = ["Fault-Tolerance", *SCHEMES]
        code = {name: runs.fingerprint(name) for name in names}
        rounds, progress = runs.in_rounds(jobs_of(args), args, "worker_state", code)
        text = markdown(rounds)
        runs.publish(args, "worker_state", text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
