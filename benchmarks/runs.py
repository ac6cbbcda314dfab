"""What the measurements of this folder share: runs, progress, tables, the pages.

An example is run as a reader runs it, by `bash run.sh` of its folder, with a LOGDIR
that is thrown away. One run at a time: the machine is what is measured. A run that
gives no result is named at the end, and the others are made all the same.
"""

import argparse
import ast
import collections
import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
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
TIMEOUT = 180  # seconds of a run, unless --timeout says otherwise

sys.path.insert(0, str(REPO / "tools"))
sys.path.insert(0, str(REPO / "tests"))
registry = importlib.import_module("registry")  # which folders there are
forkserver = importlib.import_module("forkserver")
# Whether tasks of examples are forks: with --quick.
STARTS = argparse.Namespace(forks=False)

# A measurement: its key in the JSON, the parts that need it, a guess of its seconds,
# and the function that makes it.
Job = collections.namedtuple("Job", "key parts cost make")


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


def free_ports(count):
    """Returns so many free ports."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in found]


@contextlib.contextmanager
def silence():
    """Sends what this process and its children write on stderr nowhere."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def forked():
    """Returns what starts a process as Popen does, with TensorFlow imported."""
    with silence():  # TensorFlow, when the process that is forked imports it
        forkserver.start_server()
    return forkserver.Forked


def starter(command, env=None, preexec_fn=None, **_):
    """Returns what starts a command: with --quick a fork of an example, if it can."""
    example = command[0] == "bash" and env and not preexec_fn
    if STARTS.forks and example and forkserver.can_fork(command, env):
        return forked()
    return subprocess.Popen


@contextlib.contextmanager
def process(command, start=None, **options):
    """Starts a command in a group of its own, and leaves nothing of it behind."""
    start = start or starter([*map(str, command)], **options)
    child = start(
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


def tasks(logdir):
    """Returns {task: its folder in /proc} of a run, as {"ps 0": .., "worker 1": ..}."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().decode().split("\0")
            if "--task_index" in words and str(logdir) in words:
                job = "worker"
                if "--job_name" in words:
                    job = words[words.index("--job_name") + 1]
                found[f"{job} {words[words.index('--task_index') + 1]}"] = path
    return found


def peak(path):
    """Returns the most bytes that a process has had resident; its folder in /proc.

    Raises OSError or TypeError if it has ended.
    """
    text = (path / "status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", text)[1])


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
def variant(source, change, more=None):
    """Gives the folder to run: `source` itself, or a changed copy.

    `change` is (old, new) and `old` stands exactly once in the script. `more` is {name
    of a file in the copy: a path}: the bytes of the path are put at the file's end.
    """
    if not change and not more:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as parent:
        copy = pathlib.Path(parent, source.name)
        ignore = shutil.ignore_patterns("logdir", "__py*", ".venv*")
        shutil.copytree(source, copy, ignore=ignore)
        for name, path in (more or {}).items():
            with open(copy / name, "ab") as file:
                file.write(path.read_bytes())
        if change:
            old, new = change
            script = copy / registry.script_of(source.name)
            text = script.read_text()
            if text.count(old) != 1:
                raise Unfinished(f"{source.name}: {old!r} is not once in {script.name}")
            script.write_text(text.replace(old, new))
        yield copy


def too_slow(what, timeout):
    """Returns what is said of a run that was ended because it took too long."""
    return Unfinished(
        f"{what}: no end after {timeout} s; a slow machine needs more: "
        f"--timeout {2 * timeout}"
    )


def run_example(
    folder,
    flags=(),
    ps=None,
    workers=None,
    timeout=TIMEOUT,
    change=None,
    root=REPO,
    variables=(),
    logs=None,
    logdir=None,
    more=None,
):
    """Runs an example by its run.sh; returns result.json and what the clock said.

    `change` and `more` are as `variant` has them, `root` where the folder is,
    `variables` a dict for the environment; `logs(logdir)` returns a dict, of what is in
    the tasks' log files, that is added to the result. With a `logdir` the run is in it,
    and leaves it there.

    Added to result.json: `first_step`, seconds from `bash run.sh` to the first
    update; `end`, seconds from the last update to the exit of run.sh. Training that
    diverged (status 1, and the script says so) gives {"diverged": True}; any other
    failure raises `Unfinished`.
    """
    knobs = {} if ps is None else {"NUM_PS": ps}
    knobs |= {} if workers is None else {"NUM_WORKERS": workers}
    kept, logdir = logdir, logdir or tempfile.mkdtemp(prefix="benchmark-")
    env = environment(LOGDIR=logdir, TIMEOUT=timeout, **knobs, **dict(variables))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with contextlib.ExitStack() as stack:
        if not kept:
            stack.callback(shutil.rmtree, logdir, ignore_errors=True)
        source = stack.enter_context(variant(root / folder, change, more))
        command = ["bash", source / "run.sh"]
        command += flags
        began = time.monotonic()
        # The added files are found by their names.
        where = source if more else None
        with process(command, env=env, cwd=where, **pipes) as child:
            reader = Lines(child.stdout)
            try:
                child.wait(timeout + 30)  # run.sh ends itself before
            except subprocess.TimeoutExpired:
                raise too_slow(folder, timeout) from None
            exited = time.monotonic()
        reader.join(5)
        text = "\n".join(line for _, line in reader.lines)
        if child.returncode:
            if "training diverged" in text:
                return {"diverged": True}
            shown = " ".join(map(str, [folder, *flags]))
            if child.returncode == 124:
                raise too_slow(shown, timeout)
            raise Unfinished(f"{shown}: status {child.returncode}\n{text[-2000:]}")
        result = json.loads(pathlib.Path(logdir, "result.json").read_text())
        seen = logs(pathlib.Path(logdir)) if logs else {}
    return {**result, **seen, **clock(reader.lines, result, began, exited)}


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


def run_script(script, *flags, timeout=TIMEOUT):
    """Runs a script of this folder that prints one JSON object; returns it."""
    command = [PYTHON, HERE / script, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with process(command, env=environment(), **pipes) as child:
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise too_slow(script, timeout) from None
    if child.returncode:
        raise Unfinished(f"{script}: status {child.returncode}\n{err[-2000:]}")
    return json.loads(out.splitlines()[-1])


def fingerprint(folder, more=None):
    """Returns a short hash of an example's code: a result is of this code only.

    Comments and docstrings, which no run can feel, are not in it. `more` is as
    `variant` has it.
    """
    digest = hashlib.sha256()
    source = REPO / folder
    paths = [
        path
        for pattern in ("*.py", "cluster/*.py", "run.sh")
        for path in sorted(source.glob(pattern))
    ]
    for path in [*paths, *(more or {}).values()]:
        python = path.suffix == ".py"
        digest.update(bare(path.read_text()).encode() if python else path.read_bytes())
    return digest.hexdigest()[:12]


def bare(source):
    """Returns Python source without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def flags_of(folder):
    """Returns the flags that the script of an example defines itself."""
    script = REPO / folder / registry.script_of(folder)
    if not script.exists():
        return set()
    return set(re.findall(r'"(--\w+)"', script.read_text()))


def examples():
    """Returns the names of the example folders that are there."""
    return [name for name in registry.folders() if (REPO / name / "run.sh").exists()]


# --- Progress -----------------------------------------------------------------


class Progress:
    """A line on stderr for each job done, with the rate and the time left.

    `costs` are guesses of the seconds of each job, 0 where its result is there
    already; they are corrected by what the finished ones took. What they come to is
    said before the first job begins.
    """

    def __init__(self, costs):
        self.costs, self.done = list(costs), 0
        self.made, self.spent, self.guessed = 0, 0.0, 0.0
        self.failed = []
        count = sum(cost > 0 for cost in self.costs)
        minutes = max(1, round(sum(self.costs) / 60))
        self._say(f"{count} to make, about {minutes} min on 2 cores")

    @staticmethod
    def _say(text):
        print(text, file=sys.stderr, flush=True)

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
        self._say(
            f"[{self.done}/{len(self.costs)}] {text}  {took}, {left / 60:.1f} min left"
        )

    def make(self, text, job):
        """Returns what `job()` returns, None if it gave no result; says which it was.

        `text(result)` is what is said of a result.
        """
        began = time.monotonic()
        try:
            result = job()
        except Unfinished as error:
            result, said = None, f"no result: {error}"
            self.failed.append(str(error).splitlines()[0])
        else:
            said = text(result)
        self.add(said, time.monotonic() - began)
        return result

    def end(self):
        """Ends the program with status 1 if a job gave no result."""
        if self.failed:
            for sentence in self.failed:
                self._say(f"no result: {sentence}")
            fail(
                f"without a result: {len(self.failed)}; the same command tries again",
                1,
            )


# --- Rounds of measurements ---------------------------------------------------


def in_rounds(jobs, args, name, code):
    """Makes the jobs in turn, `args.rounds` times; returns the rounds and the progress.

    A round is {key: result}; one that was not begun is left out. What is finished is
    kept in NAME.json in `args.out`, beside `code`: the next start goes on with it, if
    the code is the same, and begins anew with `args.again`.
    """
    path = args.out / f"{name}.json"
    rounds = [] if args.again else kept(path, code)
    rounds += [{} for _ in range(args.rounds - len(rounds))]
    progress = Progress(
        0 if job.key in measured else job.cost
        for measured in rounds[: args.rounds]
        for job in jobs
    )
    for number, measured in enumerate(rounds[: args.rounds], 1):
        for job in jobs:
            text = f"round {number}: {job.key}"
            if job.key in measured:
                progress.add(text)
                continue
            result = progress.make(lambda _, text=text: text, job.make)
            if result is not None:
                measured[job.key] = result
                keep(path, code, rounds)
    return [measured for measured in rounds if measured], progress


def keep(path, code, rounds):
    """Writes rounds to a JSON file after each result, with the commits of all."""
    first = sum(map(len, rounds)) == 1
    before = [] if first else json.loads(path.read_text())["measured"].split("; ")
    measured = "; ".join(dict.fromkeys([*before, now()]))
    write_json(path, {"code": code, "measured": measured, "rounds": rounds})


def kept(path, code):
    """Returns the rounds in a JSON file, none if they are of other code."""
    if not path.exists():
        return []
    old = json.loads(path.read_text())
    if old["code"] != code:
        print("the code changed: measured afresh", file=sys.stderr)
        return []
    return old["rounds"]


def one_of_each(items, kind):
    """Returns the first item of each kind: what --quick makes."""
    return [*{kind(item): item for item in reversed(items)}.values()][::-1]


def measuring_parser(doc, parts=None, rounds=3):
    """Returns a parser with the flags of a script that measures.

    `parts` are the names for --only, `rounds` the usual number of rounds. None: the
    script has no such flag, and makes one round.
    """
    parser = Parser(doc)
    add = parser.add_argument
    if parts:
        add("--only", type=parts_of(parts), default=parts, help=",".join(parts))
    if rounds:
        text = f"of all measurements ({rounds}; --quick: 1)"
        add("--rounds", type=positive_int, default=rounds, help=text)
    else:
        parser.set_defaults(rounds=1)
    add("--out", type=output_folder, help="folder (results/; --quick: none)")
    add("--timeout", type=positive_int, default=TIMEOUT, help="seconds of a run")
    add("--again", action="store_true", help="forget the rounds that are in --out")
    add(
        "--quick",
        action="store_true",
        help="a short run of each part: a test of the script",
    )
    return parser


@contextlib.contextmanager
def finished(args):
    """Gives the flags with those filled in that depend on others.

    With --quick and without --out the results go into a folder that is thrown away.
    """
    STARTS.forks = args.quick
    if args.quick:
        args.rounds = 1
    with contextlib.ExitStack() as stack:
        if args.out is None:
            args.out = RESULTS
            if args.quick:
                folder = tempfile.TemporaryDirectory(prefix="benchmark-")
                args.out = pathlib.Path(stack.enter_context(folder))
        yield args


# --- Numbers ------------------------------------------------------------------


def series(rounds, key, field):
    """Returns the values of a field of a measurement, None in rounds without it."""
    return [measured.get(key, {}).get(field) for measured in rounds]


def middle(values):
    """Returns the median of the values that are there, or None."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def ratios(top, bottom):
    """Returns the ratios taken round by round, None where one of the two is missing."""
    pairs = zip(top, bottom, strict=True)
    return [a / b if a is not None and b else None for a, b in pairs]


def spread(values, digits=0):
    """Returns `median (smallest to largest)` as text, `-` if nothing is there.

    Only the median, if all are the same number as it is written.
    """
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    low, text, high = (
        f"{value:,.{digits}f}" for value in (min(there), middle(there), max(there))
    )
    return text if low == high else f"{text} ({low} to {high})"


def workers(count):
    """Returns "1 worker", or "4 workers"."""
    return f"{count} worker{'s' * (count != 1)}"


def count_of(rounds):
    """Returns the sentence that says how many rounds the numbers are of."""
    if len(rounds) == 1:
        return "Of one round.\n"
    return f"Median of {len(rounds)} rounds, smallest and largest in brackets.\n"


# --- Files --------------------------------------------------------------------


def write(path, text):
    """Writes a file whole or not at all, also if interrupted."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path, value):
    """Writes a value as JSON, a list of numbers in a line; not-a-number is null."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    text = re.sub(r"(?<=\[)[-\d.e,\s]+(?=\])", lambda m: " ".join(m[0].split()), text)
    write(path, text + "\n")


def table(header, rows, left=1):
    """Returns a markdown table; the first `left` columns are text, not numbers."""
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


# --- Pages --------------------------------------------------------------------


def now():
    """Returns the date and the commit, as "2026-11-27, commit 15df780"."""
    date = time.strftime("%Y-%m-%d")
    git = ["git", "-C", str(REPO)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], **CAPTURED).stdout
    if not head:  # a copy without its history
        return date
    # What the measurements themselves write is no change of the code.
    own = [":!benchmarks/results", ":!benchmarks/*.md"]
    changed = [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", *own]
    more = " and changes" if subprocess.run(changed, **CAPTURED).stdout else ""
    return f"{date}, commit {head.strip()}{more}"


CAPTURED = {"capture_output": True, "text": True}


def measured_on(path):
    """Returns `now()` of the results in a file of raw numbers, with all their commits.

    "2026-11-27, commits 15df780, c7906b2" if they are of two of that day.
    """
    kept, days = json.loads(path.read_text()) if path.exists() else {}, {}
    entries = [kept] if "rounds" in kept else kept.values()
    measured = "; ".join(entry["measured"] for entry in entries) or now()
    for stamp in measured.split("; "):
        day, _, commit = stamp.partition(", commit ")
        days.setdefault(day, {})[commit] = None
    said = [
        f"{day}, commit{'s' * (len(some) > 1)} {', '.join(some)}"
        for day, some in sorted(days.items())
    ]
    return "; ".join(said).removesuffix(", commit ")


def filled(page, name, text, caption):
    """Returns a page with the tables of `text` in their places.

    A table of `text` has a heading, `### TITLE`. Its place on the page is between
    `<!-- begin NAME: TITLE -->` and `<!-- end NAME: TITLE -->`; the page has a heading
    of its own. A table without a place is left out. Each gets the caption, and behind
    it what `text` says before its first heading.
    """
    head, *parts = re.split(r"^### (.*)\n+", text, flags=re.M)
    caption = " ".join([caption, *head.split()])
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        # A picture lies in results/, as seen from the page.
        body = re.sub(r"\]\((?=[\w-]+\.svg\))", "](results/", body.strip())
        begin, end = (f"<!-- {word} {name}: {title} -->" for word in ("begin", "end"))
        before, opened, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if opened and closed:
            page = f"{before}{begin}\n{caption}\n\n{body}\n{end}{after}"
    return page


def publish(args, name, text, source=None, root=False):
    """Prints tables, and puts them on the pages of this folder; see `filled`.

    With another `args.out` than results/ they are written to NAME.md there instead.
    `source` is the name of the file of raw numbers, if it is not NAME; `root` says that
    the measurement takes sudo.
    """
    print(text)
    if args.out != RESULTS:
        return write(args.out / f"{name}.md", text)
    script = os.path.basename(sys.argv[0])
    command = f"{'sudo ' * root}.venv/bin/python benchmarks/{script}"
    when = measured_on(args.out / f"{source or name}.json")
    for path in sorted(HERE.glob("*.md")):
        page = path.read_text()
        changed = filled(page, name, text, f"{when}, `{command}`.")
        if changed != page:
            write(path, changed)
