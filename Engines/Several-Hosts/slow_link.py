"""What a slow link costs each scheme: the table and the plot of this folder's README.

    python Engines/Several-Hosts/slow_link.py                   3 rounds, 15 minutes
    python Engines/Several-Hosts/slow_link.py --quick --out /tmp/tried

Every scheme runs on hosts of its own, in turn over cables of DELAY and RATE and over
fast cables, round after round. The table shows the median. Needs Linux, root and the
Python of `bash test.sh`. Started again, it goes on where it was (--again: it does not).
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DELAY, RATE = 5, 100  # ms one way from host to host, Mbit/s of each host's cable
SCHEMES = {  # folder: flags, and global steps over the slow link and over the fast one
    "HogWild": ([], 400, 3000),
    "AGN": (["--window", "16"], 300, 1500),
    "AEASGD": (["--window", "16"], 300, 1500),
    "DOWNPOUR": (["--window", "16"], 300, 1500),
}
BLOCK = re.compile(r"(?<=<!-- slow:begin -->\n).*?(?=<!-- slow:end -->)", re.S)


def run(folder, flags, steps, slow):
    """Returns result.json of a run; raises if it failed."""
    with tempfile.TemporaryDirectory() as logdir:
        command = ["bash", str(HERE / "run.sh"), folder, *flags, "--steps", str(steps)]
        link = {"DELAY": str(DELAY), "RATE": str(RATE)} if slow else {}
        env = {**os.environ, "LOGDIR": logdir, "PYTHON": sys.executable, **link}
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
        return json.loads(Path(logdir, "result.json").read_text())


def table(kept):
    """Returns the table; `kept` has the results of each scheme and link, in rounds."""
    head = ["", "no delay, examples/s", "slow, examples/s", "slow over no delay"]
    rows = [[*head, "bytes per example"], ["---", *["---:"] * 4]]
    for folder, (flags, *_) in SCHEMES.items():
        rates = {
            slow: [r["examples_per_second"] for r in kept[f"{folder} {slow}"]]
            for slow in ("fast", "slow")
        }
        shown = {
            slow: f"{statistics.median(x):,.0f} ({min(x):,.0f} to {max(x):,.0f})"
            for slow, x in rates.items()
        }
        one = kept[f"{folder} slow"][0]
        moved = (one["bytes_pushed"] + one["bytes_pulled"]) / one["examples"]
        ratio = statistics.median(rates["slow"]) / statistics.median(rates["fast"])
        name = " ".join([folder, *flags])
        row = [name, shown["fast"], shown["slow"], f"{ratio:.2f}", f"{moved:,.0f}"]
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def plot(kept, path):
    """Draws a mark at each median, a line from the smallest to the largest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Texts stay texts, of 12 px or more on a page; the same numbers, the same file.
    look = {"font.size": 10.5, "svg.fonttype": "none", "svg.hashsalt": "slow_link"}
    pyplot.rcParams.update(look)
    figure, axes = pyplot.subplots(figsize=(8, 3.4), layout="constrained")
    labels = {"slow": f"{DELAY} ms, {RATE} Mbit/s", "fast": "no delay"}
    looks = {"slow": ("s", "#D55E00"), "fast": ("o", "#0072B2")}
    for kind, (mark, color) in looks.items():
        for row, folder in enumerate(SCHEMES):
            rates = [r["examples_per_second"] for r in kept[f"{folder} {kind}"]]
            middle = statistics.median(rates)
            axes.plot([min(rates), max(rates)], [row, row], color=color, lw=2)
            label = labels[kind] if row == 0 else None
            axes.plot(middle, row, mark, color=color, ms=8, label=label)
            axes.annotate(
                f"{middle:,.0f}",
                (middle, row),
                (0, 9),
                "data",
                "offset points",
                ha="center",
            )
    axes.set_xscale("log")
    ticks = (2000, 5000, 10_000, 20_000, 50_000, 100_000)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    names = [" ".join([folder, *flags[-1:]]) for folder, (flags, *_) in SCHEMES.items()]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.6, -0.7)
    axes.set_xlabel(
        "examples/s, both workers; a line: from the smallest to the largest"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.92")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of a few steps")
    parser.add_argument("--again", action="store_true", help="forget what was measured")
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    args = parser.parse_args()
    if args.quick and args.out == HERE:
        parser.error("--quick measures nothing to be shown: give it a folder, --out")
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "slow_link.json"
    kept = json.loads(store.read_text()) if store.exists() and not args.again else {}
    rounds = 1 if args.quick else args.rounds
    for number in range(rounds):
        for folder, (flags, *steps) in SCHEMES.items():
            for kind, count in zip(("slow", "fast"), steps, strict=True):
                key = f"{folder} {kind}"
                if len(kept.setdefault(key, [])) > number:
                    continue
                print(f"round {number + 1}/{rounds}: {key}", flush=True)
                count = count // 5 if args.quick else count
                kept[key].append(run(folder, flags, count, kind == "slow"))
                store.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    plot(kept, args.out / "slow_link.svg")
    text = (
        f"\n![Examples per second](slow_link.svg)\n\n{table(kept)}\n\n"
        f"Median of {rounds} rounds, smallest and largest in brackets; 1 ps, 2 "
        f"workers, 2 cores, no accelerator, {datetime.date.today()}.\n\n"
    )
    print(text)
    if args.out == HERE:
        page = HERE / "README.md"
        page.write_text(BLOCK.sub(lambda _: text, page.read_text()))


if __name__ == "__main__":
    main()
