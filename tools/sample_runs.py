"""Runs the examples and writes what they print into their READMEs.

    python tools/sample_runs.py                  every example
    python tools/sample_runs.py HogWild AGN      these

Each runs twice with its defaults, seeds 0 and 1; the lines of the first and the
range of all go between `<!-- run:begin -->` and `<!-- run:end -->` under "What you
should see". To be run on a quiet machine, and again when a version or a default
changes.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import registry

SEEDS = range(2)
BLOCK = re.compile(r"(?<=<!-- run:begin -->\n).*?(?=<!-- run:end -->)", re.S)
MOST = 12  # lines shown
WIDE = 92  # letters of a line that a page shows without a scroll bar


def run(folder: Path, seed: int) -> tuple[list[str], dict]:
    """Returns what `bash run.sh` prints and its result.json; raises if it fails.

    The run's directory, which is thrown away, is LOGDIR in the lines.
    """
    with tempfile.TemporaryDirectory() as logdir:
        done = subprocess.run(
            ["bash", str(folder / "run.sh"), "--seed", str(seed)],
            env={**os.environ, "LOGDIR": logdir, "PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=True,
        )
        text = done.stdout.replace(logdir, "LOGDIR")
        result = json.loads((Path(logdir) / "result.json").read_text())
    # As somebody sees it who is in the folder, after the set-up of the root.
    text = re.sub(
        r"curves: .* --log",
        "curves: ../.venv/bin/python -m tensorboard.main --log",
        text,
    )
    text = re.sub(r"try it: \S+", "try it: ../.venv/bin/python", text)
    text = re.sub(r"(try it: \S+) \S*predict", r"\1 predict", text)
    lines = text.splitlines()
    return [line for line in lines if "run.sh: " not in line], result


def shorten(lines: list[str]) -> list[str]:
    """Returns at most MOST lines: the first, the last, and a mark between."""
    if len(lines) <= MOST:
        return lines
    # Four of the chief's: the last step, two paths, the test; and what comes after.
    tests = [i for i, line in enumerate(lines) if line.startswith("[worker 0] test ")]
    end = lines[tests[-1] - 3 :]
    return [*lines[: MOST - 1 - len(end)], "...", *end]


def narrow(line: str) -> str:
    """Returns a line of a run, broken before its last bracket if it is too wide."""
    start, bracket, rest = line.rpartition(" (")
    if len(line) <= WIDE or not bracket:
        return line
    return f"{start}\n{' ' * len('[worker 0] ')}({rest}"


def block(lines: list[str], results: list[dict]) -> str:
    """Returns the text that goes into the README."""
    keys = [key for key in results[0] if key.startswith("test_")]
    metric = next(key for key in keys if key != "test_loss")
    values = [result[metric] for result in results]
    seconds = [result["seconds"] for result in results]
    shown = "\n".join(["$ bash run.sh", *map(narrow, shorten(lines))])
    return (
        f"```text\n{shown}\n```\n\n"
        f"Two runs, `for s in 0 1; do bash run.sh --seed $s; done`: "
        f"{metric.replace('_', ' ')} {min(values):.4f} to {max(values):.4f},\n"
        f"{min(seconds):.1f} to "
        f"{max(seconds):.1f} s from first to last update, mean staleness "
        f"{min(r['mean_staleness'] for r in results):.2f} to "
        f"{max(r['mean_staleness'] for r in results):.2f}\n"
        f"(2 cores, no accelerator, {datetime.date.today()}).\n"
    )


def main() -> None:
    """Runs, and rewrites one README after the other."""
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    known = [
        e.folder for e in registry.EXAMPLES if (root / e.folder / "run.sh").exists()
    ]
    folders = parser.parse_args().folders or known
    unknown = [name for name in folders if name not in known]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(known)}")
    started = time.monotonic()
    for number, name in enumerate(folders):
        readme = root / name / "README.md"
        if not BLOCK.search(readme.read_text()):
            parser.error(f"{name}/README.md has no run:begin and run:end marks")
        runs = [run(root / name, seed) for seed in SEEDS]
        new = block(runs[0][0], [result for _, result in runs])
        # Read again: runs take minutes, in which somebody may have edited it.
        text = BLOCK.sub(lambda _, new=new: new, readme.read_text())
        readme.write_text(text)
        each = (time.monotonic() - started) / (number + 1)
        left = each * (len(folders) - number - 1)
        print(f"{name}: {number + 1}/{len(folders)}, {left:.0f} s left", flush=True)


if __name__ == "__main__":
    main()
