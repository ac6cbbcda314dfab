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
    """Draws the same: two bars a scheme, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.4), layout="constrained")
    names = [" ".join([folder, *flags[-1:]]) for folder, (flags, *_) in SCHEMES.items()]
    labels = {"fast": "no delay", "slow": f"{DELAY} ms, {RATE} Mbit/s"}
    for shift, (kind, color) in enumerate((("fast", "#9aa5b1"), ("slow", "#d1495b"))):
        rates = [
            statistics.median(r["examples_per_second"] for r in kept[f"{f} {kind}"])
            for f in SCHEMES
        ]
        places = [i + 0.4 * shift for i in range(len(rates))]
        bars = axes.bar(places, rates, 0.38, color=color, label=labels[kind])
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], fontsize=8, padding=2)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set_xticks([i + 0.2 for i in range(len(names))], names)
    axes.set_ylabel("examples/s, both workers")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=8)
    figure.savefig(path, dpi=140)


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
    plot(kept, args.out / "slow_link.png")
    text = (
        f"\n![Examples per second](slow_link.png)\n\n{table(kept)}\n\n"
        f"Median of {rounds} rounds, smallest and largest in brackets; 1 ps, 2 "
        f"workers, 2 cores, no accelerator, {datetime.date.today()}.\n\n"
    )
    print(text)
    if args.out == HERE:
        page = HERE / "README.md"
        page.write_text(BLOCK.sub(lambda _: text, page.read_text()))


if __name__ == "__main__":
    main()
