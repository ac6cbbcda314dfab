"""Examples per second over a network of 100 Mbit/s, and on one machine.

The ps is on one side of a link of 5 ms each way and 100 Mbit/s, two workers are on the
other (see link.py). Beside it the same run by run.sh, without a link. Needs Linux and
root.

    sudo .venv/bin/python benchmarks/network.py
"""

import os
import sys

import link
import runs

DELAY, BITS = 0.005, 100e6
WORKERS = 2
SCHEMES = {  # folder: flags, updates over the link and without it
    "HogWild": ([], 400, 4000),
    "AGN": (["--window", 16], 300, 1500),
    "AEASGD": (["--window", 16], 300, 1500),
}


def over_the_link(folder, flags, steps, timeout):
    """Returns result.json of a run whose ps is behind the link."""
    with link.Link(DELAY, BITS) as wire:
        path = runs.REPO / folder
        return link.train(wire, path, None, steps, timeout, WORKERS, flags)


def here(folder, flags, steps, timeout):
    """Returns result.json of a run without a link."""
    flags = [*flags, "--steps", steps]
    return runs.run_example(folder, flags, ps=1, workers=WORKERS, timeout=timeout)


def jobs_of(args):
    """Returns the measurements of a round."""
    found = []
    for folder, (flags, *steps) in SCHEMES.items():
        for name, run, count in zip(
            ("link", "here"), (over_the_link, here), steps, strict=True
        ):
            number = max(20, count // 10) if args.quick else count
            found.append(
                runs.Job(
                    f"{folder}, {name}",
                    {"network"},
                    25,
                    lambda f=folder, g=flags, n=number, r=run: r(f, g, n, args.timeout),
                )
            )
    return found


def markdown(rounds):
    """Returns network.md: the examples per second."""
    rows = []
    for folder, (flags, *_) in SCHEMES.items():
        over, alone = (
            runs.series(rounds, f"{folder}, {name}", "examples_per_second")
            for name in ("link", "here")
        )
        name = " ".join(map(str, [folder, *flags]))
        ratio = runs.spread(runs.ratios(over, alone), 2)
        rows.append([name, runs.spread(over), runs.spread(alone), ratio])
    return (
        runs.count_of(rounds)
        + "\n### Examples per second, 1 ps and 2 workers\n\n"
        + runs.table(["", "over the link", "on one machine", "ratio"], rows)
    )


def main():
    with runs.finished(runs.measuring_parser(__doc__).parse_args()) as args:
        if args.write_readme:
            return runs.write_readme(args.out)
        if not sys.platform.startswith("linux") or os.geteuid():
            runs.fail("it makes network namespaces, which takes Linux and root", 3)
        code = {name: runs.fingerprint(name) for name in SCHEMES}
        rounds, progress = runs.in_rounds(jobs_of(args), args, "network", code)
        text = markdown(rounds)
        runs.write(args.out / "network.md", text)
        print(text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
