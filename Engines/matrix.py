"""Runs every example under every engine, and writes the table of Engines/README.md.

    python Engines/matrix.py                                       all that can be had
    python Engines/matrix.py --engines MPI --examples HogWild AGN
    python Engines/matrix.py --missing                             what has not passed
    python Engines/matrix.py --table                               only write the table

A cell is `bash Engines/ENGINE/run.sh EXAMPLE --steps 200`. It has passed if the command
ended with status 0, result.json has this scheme's name and all steps, and nothing is
left: no process (so no port), no temporary file, nothing new in the repository. If a
cell fails, the table says so, the other cells still run, and the exit status is 1. Each
cell is saved in matrix.json of the engine's folder as soon as it is done, so you can
run a part again at any time. Use the Python of `bash test.sh`.
"""

import argparse
import datetime
import importlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ENGINES = Path(__file__).resolve().parent
REPO = ENGINES.parent
sys.path.insert(0, str(REPO / "tools"))
registry = importlib.import_module("registry")

BLOCK = re.compile(r"(?<=<!-- matrix:begin -->\n).*?(?=<!-- matrix:end -->)", re.S)
GONE = 5  # seconds in which what a run has started must be gone


def version(engine):
    """Returns (the engine's version, "") or (None, why it cannot be had here)."""
    command = ["bash", str(ENGINES / engine / "run.sh"), "--version"]
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().removeprefix("run.sh: ")
    return done.stdout.strip(), ""


def processes(word):
    """Returns the processes whose command or environment holds the word."""
    found = []
    # psutil remembers processes by their numbers. If a new process has the number of
    # one that has ended, psutil would refuse to kill the new process.
    psutil.process_iter.cache_clear()
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(word in text for text in words):
                found.append(process)
        except psutil.Error:  # it has gone, or is a zombie
            continue
    return found


def status_of_git():
    """Returns what git says of the repository, ignored files included.

    What another process may make meanwhile is left out.
    """
    command = ["git", "-C", str(REPO), "status", "--porcelain", "--ignored"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    others = ("__pycache__/", ".venv/", "_cache/", "logdir/", "benchmarks/data/")
    others += (".venv.lock",)
    return {line for line in text.splitlines() if not line.endswith(others)}


def wrong(path, example, flags):
    """Returns what is wrong with a result.json, "" if nothing."""
    try:
        result = json.loads(path.read_text())
    except FileNotFoundError:
        return "status 0 and no result.json"
    except ValueError:
        return "result.json is not JSON"
    if result["scheme"] != example:
        return f"result.json is of {result['scheme']}"
    if result["global_steps"] != flags["steps"]:
        return f"{result['global_steps']} global steps"
    if any(result[name] != count for name, count in flags["tasks"].items()):
        return f"{result['ps']} ps and {result['workers']} workers"
    return ""


def defaults(example):
    """Returns the ps and workers that the example's own run.sh starts."""
    text = (REPO / example / "run.sh").read_text()
    found = dict(re.findall(r"^NUM_(\w+)=\D*(\d+)\}?$", text, re.M))
    return {name.lower(): int(count) for name, count in found.items()}


def cell(engine, example, steps=200, timeout=300, options=(), scheme=None, **env):
    """Runs an example under an engine; returns {"seconds", "wrong", "output"}.

    `wrong` is what is not as it should be, "" if nothing; `env` is added to the
    environment, `options` to those of the script. `scheme` is the name in its result,
    if that is not the example's.
    """
    command = ["bash", str(ENGINES / engine / "run.sh"), example]
    command += ["--steps", str(steps), *options]
    before = status_of_git()
    with tempfile.TemporaryDirectory(prefix="cell-") as place:
        logdir, scratch = Path(place, "run"), Path(place, "tmp")
        scratch.mkdir()
        names = ("NUM_PS", "NUM_WORKERS", "BASE_PORT", "TF_CONFIG", "ALONE", "KILL")
        environment = {k: v for k, v in os.environ.items() if k not in names}
        environment |= {"LOGDIR": str(logdir), "TMPDIR": str(scratch)}
        environment |= {"PYTHON": sys.executable, "TIMEOUT": str(timeout), **env}
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            try:
                status = subprocess.run(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=timeout + 60,  # for the first environment of an engine
                ).returncode
            except subprocess.TimeoutExpired:
                status = 124
            seconds = time.monotonic() - began
            output.seek(0)
            text = output.read()
        found = f"status {status}" if status else ""
        end = time.monotonic() + GONE
        while (there := processes(place)) and time.monotonic() < end:
            time.sleep(0.1)
        if there:
            found = found or f"left a process: {' '.join(there[0].cmdline())[:80]}"
            for process in there:
                process.kill()
        if not found and any(scratch.iterdir()):
            found = f"left {sorted(path.name for path in scratch.iterdir())[0]}"
        if not found and status_of_git() - before:
            found = f"left {sorted(status_of_git() - before)[0]}"
        if not found:
            tasks = {
                name: int(env.get(f"NUM_{name.upper()}", count))
                for name, count in defaults(example).items()
            }
            flags = {"steps": steps, "tasks": tasks}
            found = wrong(logdir / "result.json", scheme or example, flags)
    return {"seconds": round(seconds, 1), "wrong": found, "output": text}


def table(cells, engines, examples):
    """Returns the table: a row an engine; its cells are in its matrix.json."""
    heads = [
        "engine",
        "version",
        "date",
        "passed",
        "seconds of a run",
        "not run, or wrong",
    ]
    rows = []
    for engine in engines:
        mine = {name: cells.get(f"{engine} {name}") for name in examples}
        known = [one for one in mine.values() if one]
        # Without the engine's own name, which the first column has already.
        names = {one["version"].removeprefix(f"{engine.lower()} ") for one in known}
        dates = [one["date"] for one in known]
        seconds = [one["seconds"] for one in known]
        least, middle, most = min(seconds), statistics.median(seconds), max(seconds)
        left = [name for name, one in mine.items() if one is None]
        left += [
            f"**{name}: {one['wrong']}**"
            for name, one in mine.items()
            if one and one["wrong"]
        ]
        rows.append(
            [
                f"[{engine}]({engine}/)",
                ", ".join(sorted(names)),
                " to ".join(sorted({min(dates), max(dates)})),
                f"{sum(not one['wrong'] for one in known)} of {len(known)}",
                f"{middle:.0f} ({least:.0f} to {most:.0f})",
                ", ".join(left),
            ]
        )
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def kept():
    """Returns all cells that were ever run, by engine and example."""
    found = {}
    for engine in registry.ENGINES:
        path = ENGINES / engine.name / "matrix.json"
        cells = json.loads(path.read_text()) if path.exists() else {}
        found |= {f"{engine.name} {example}": one for example, one in cells.items()}
    return found


def keep(engine, cells):
    """Writes an engine's cells into its folder."""
    mine = {
        k.partition(" ")[2]: v for k, v in cells.items() if k.startswith(f"{engine} ")
    }
    text = json.dumps(mine, indent=1, sort_keys=True) + "\n"
    (ENGINES / engine / "matrix.json").write_text(text)


def write_table(cells):
    """Writes the table into README.md; an engine that was not run has no row."""
    names = [engine.name for engine in registry.ENGINES]
    engines = [name for name in names if any(k.startswith(f"{name} ") for k in cells)]
    page = ENGINES / "README.md"
    new = table(cells, engines, registry.folders())
    passed = sum(not one["wrong"] for one in cells.values())
    text = (
        f"\n{passed} of {len(cells)} runs have passed. The seconds are from the "
        "command to the prompt, the engine's start included: the median of all "
        "examples, the least and the most (2 cores, no accelerator, other work on "
        "them). Those of each example are in `matrix.json` of the engine's folder.\n\n"
        f"{new}\n\n"
        if cells
        else "\nNot run yet.\n\n"
    )
    page.write_text(BLOCK.sub(lambda _: text, page.read_text()))


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    names = [e.name for e in registry.ENGINES]
    add("--engines", nargs="+", choices=names, default=names, metavar="ENGINE")
    folders = registry.folders()
    add("--examples", nargs="+", choices=folders, default=folders, metavar="EXAMPLE")
    add("--missing", action="store_true", help="only what has not passed")
    add("--table", action="store_true", help="run nothing, write the table")
    add("--timeout", type=int, default=300, help="seconds for a cell (300)")
    return parser.parse_args(argv)


def main():
    args = parse_args()
    cells = kept()
    if args.table:
        write_table(cells)
        return 0
    wanted = []
    for engine in args.engines:
        found, why = version(engine)
        if found is None:
            print(f"{engine}: not here: {why}")
            continue
        for example in args.examples:
            known = cells.get(f"{engine} {example}")
            if not (args.missing and known and not known["wrong"]):
                wanted.append((engine, found, example))
    failed, spent = [], 0.0
    for count, (engine, found, example) in enumerate(wanted):
        name = f"{engine} {example}"
        each = spent / count if count else 20
        rest = each * (len(wanted) - count) / 60
        print(f"{count + 1}/{len(wanted)}  {name}  {rest:.0f} min left", flush=True)
        one = cell(engine, example, timeout=args.timeout)
        spent += one["seconds"]
        output = one.pop("output")
        if one["wrong"]:
            failed.append(name)
            print(f"{name}: {one['wrong']}\n{output[-3000:]}", flush=True)
        date = datetime.date.today().isoformat()
        cells[name] = {**one, "version": found, "date": date}
        keep(engine, cells)
        write_table(cells)
    shutil.rmtree(ENGINES / "__pycache__", ignore_errors=True)
    print(f"{len(wanted) - len(failed)} passed, {len(failed)} failed: {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
