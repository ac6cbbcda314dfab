"""What the measurements of this folder share: runs, progress, tables, the README.

An example is run as a reader runs it, by `bash run.sh` of its folder, with a LOGDIR
that is thrown away. One run at a time: the machine is what is measured.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parent
RESULTS = HERE / "results"
PYTHON = sys.executable
FINAL = re.compile(r"step +(\d+)/(\d+) ")


class Unfinished(Exception):
    """A run that gave no result for another reason than training that diverged."""


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr; status 2 is a usage error."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(status)


class Parser(argparse.ArgumentParser):
    """A strict parser whose errors are one sentence."""

    def __init__(self, doc):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=doc, formatter_class=formatter, allow_abbrev=False)

    def error(self, message):
        fail(message)


def positive_int(text):
    """Flag type: a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def parts_of(names):
    """Returns a flag type: some of these names, separated by commas."""

    def convert(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in names:
                choices = ", ".join(names)
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {choices}")
        return chosen

    return convert


def output_folder(text):
    """Flag type: a folder to write in, made if its parent is there."""
    path = pathlib.Path(text).absolute()
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: not a folder to write in")
    return path


# --- Processes ----------------------------------------------------------------


def ends_cleanly(main):
    """Runs `main`; Ctrl-C and TERM end it with 130 and 143, no process left."""

    def terminated(*_):
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, terminated)
    # Started in the background of a script, a process ignores it from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; what was finished is kept", 130)
    except Unfinished as error:
        fail(str(error), 1)


@contextlib.contextmanager
def process(command, **options):
    """Starts a command in a group of its own, and leaves nothing of it behind."""
    child = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()  # run.sh ends its tasks; SIGINT it may ignore
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            with contextlib.suppress(ProcessLookupError):  # nobody is left
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


class Lines(threading.Thread):
    """The lines of a stream, each with the time at which it came."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.lines = stream, []
        self.start()

    def run(self):
        for line in self.stream:
            self.lines.append((time.monotonic(), line.rstrip("\n")))


def environment(**changes):
    """Returns the environment of a fresh shell, with this Python and the changes."""
    unset = ("TF_CONFIG", "LOGDIR", "BASE_PORT", "NUM_PS", "NUM_WORKERS")
    env = {key: value for key, value in os.environ.items() if key not in unset}
    return {**env, "PYTHON": PYTHON, **{k: str(v) for k, v in changes.items()}}


@contextlib.contextmanager
def variant(folder, change):
    """Gives the folder to run: the example's own, or a copy with one text replaced.

    `change` is (old, new) and `old` stands exactly once in the script.
    """
    source = REPO / folder
    if not change:
        yield source
        return
    old, new = change
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        copy = pathlib.Path(parent, folder)
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("logdir", "__py*"))
        script = copy / script_of(folder)
        text = script.read_text()
        if text.count(old) != 1:
            raise Unfinished(f"{folder}: {old!r} is not once in {script.name}")
        script.write_text(text.replace(old, new))
        yield copy


def run_example(folder, flags=(), ps=None, workers=None, timeout=180, change=None):
    """Runs an example by its run.sh; returns result.json and what the clock said.

    Added to result.json: `first_step`, seconds from `bash run.sh` to the first
    update; `end`, seconds from the last update to the exit of run.sh. Training that
    diverged (status 1, and the script says so) gives {"diverged": True}; any other
    failure raises `Unfinished`.
    """
    knobs = {} if ps is None else {"NUM_PS": ps}
    knobs |= {} if workers is None else {"NUM_WORKERS": workers}
    logdir = tempfile.mkdtemp(prefix="benchmark-")
    env = environment(LOGDIR=logdir, TIMEOUT=timeout, **knobs)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, logdir, ignore_errors=True)
        command = ["bash", stack.enter_context(variant(folder, change)) / "run.sh"]
        command += flags
        began = time.monotonic()
        with process(command, env=env, **pipes) as child:
            reader = Lines(child.stdout)
            try:
                child.wait(timeout + 30)  # run.sh ends itself before
            except subprocess.TimeoutExpired:
                raise Unfinished(f"{folder}: no end after {timeout} s") from None
            exited = time.monotonic()
        reader.join(5)
        text = "\n".join(line for _, line in reader.lines)
        if child.returncode:
            if "training diverged" in text:
                return {"diverged": True}
            shown = " ".join(map(str, flags))
            raise Unfinished(
                f"{folder} {shown}: status {child.returncode}\n{text[-2000:]}"
            )
        result = json.loads(pathlib.Path(logdir, "result.json").read_text())
    return {**result, **clock(reader.lines, result, began, exited)}


def clock(lines, result, began, exited):
    """Returns first_step and end, in seconds, from the lines of a run.

    The worker that makes the last update prints it at once: `step N/N`. The first
    update was result.json's `seconds` earlier; no line is printed at it.
    """
    for when, line in reversed(lines):
        match = FINAL.search(line)
        if match and int(match[1]) == int(match[2]) == result["global_steps"]:
            first = when - result["seconds"] - began
            return {"first_step": first, "end": exited - when}
    return {"first_step": None, "end": None}


def run_script(script, *flags, timeout=180):
    """Runs a script of this folder that prints one JSON object; returns it."""
    command = [PYTHON, HERE / script, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with process(command, env=environment(), **pipes) as child:
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Unfinished(f"{script}: no end after {timeout} s") from None
    if child.returncode:
        raise Unfinished(f"{script}: status {child.returncode}\n{err[-2000:]}")
    return json.loads(out.splitlines()[-1])


def fingerprint(folder):
    """Returns a short hash of an example's code: a result is of this code only."""
    digest = hashlib.sha256()
    for path in sorted((REPO / folder).glob("*.py")) + [REPO / folder / "run.sh"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def script_of(folder):
    """Returns the name of an example's script: the folder's in snake case."""
    return folder.lower().replace("-", "_") + ".py"


def flags_of(folder):
    """Returns the flags that the script of an example defines itself."""
    script = REPO / folder / script_of(folder)
    if not script.exists():
        return set()
    return set(re.findall(r'"(--\w+)"', script.read_text()))


def examples():
    """Returns the names of the example folders that are there."""
    return sorted(path.parent.name for path in REPO.glob("*/cluster.py"))


# --- Progress -----------------------------------------------------------------


class Progress:
    """A line on stderr for each job done, with the rate and the time left.

    `costs` are guesses of the seconds of each job, 0 where its result is there
    already; they are corrected by what the finished ones took.
    """

    def __init__(self, costs):
        self.costs, self.done = list(costs), 0
        self.made, self.spent, self.guessed = 0, 0.0, 0.0

    def add(self, text, seconds=None):
        """Says that the next job is done; `seconds` None: it was done before."""
        cost = self.costs[self.done]
        self.done += 1
        took = "kept"
        if seconds is not None:
            self.made += 1
            self.spent += seconds
            self.guessed += cost
            rate = 60 * self.made / self.spent
            took = f"{seconds:.0f} s, {rate:.1f} a minute"
        ratio = self.spent / self.guessed if self.guessed else 1.0
        left = ratio * sum(self.costs[self.done :])
        print(
            f"[{self.done}/{len(self.costs)}] {text}  {took}, {left / 60:.1f} min left",
            file=sys.stderr,
            flush=True,
        )


# --- Files --------------------------------------------------------------------


def write(path, text):
    """Writes a file whole or not at all, also if interrupted."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def write_json(path, value):
    """Writes a value as JSON; not-a-number becomes null."""
    write(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def table(header, rows, left=1):
    """Returns a markdown table; the first `left` columns are text, not numbers."""
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def paste(page, results):
    """Returns the page with each results/NAME.md between its markers.

    The markers are `<!-- begin NAME.md -->` and `<!-- end NAME.md -->`.
    """

    def block(match):
        path = results / match[1]
        body = path.read_text() if path.exists() else "Not measured yet.\n"
        body = re.sub(r"\]\((?=[\w-]+\.png\))", "](results/", body)  # as seen from here
        return f"<!-- begin {match[1]} -->\n{body}<!-- end {match[1]} -->"

    pattern = r"<!-- begin ([\w-]+\.md) -->\n.*?<!-- end \1 -->"
    return re.sub(pattern, block, page, flags=re.S)


def write_readme(results=RESULTS):
    """Pastes the tables of results/ into the README beside this file."""
    page = HERE / "README.md"
    write(page, paste(page.read_text(), results))
