"""Changes the update rules line by line, and says which changes no test notices.

    python survey/mutations.py HogWild AEASGD      each line of the schemes' rules
    python survey/mutations.py cluster             some lines of the shared modules
    python survey/mutations.py around              some lines of those around the rounds
    python survey/mutations.py                     everything; takes some hours

Not a part of the tests: one runs it after a change of the rules or of the harness. A
change that is not noticed is printed with its line. It either does not matter, or a
test is missing. The tests of the quick level are asked first. What was found is kept in
benchmarks/results/mutations.json, of which mutations.md is made; the names may be given
to several processes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import datetime
import importlib
import inspect
import io
import json
import pathlib
import shutil
import sys
import time
import types
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import gossip_harness
import harness
import launch
import peer_harness
import pytest

TESTS = launch.REPO / "tests"

FILES = (
    "test_heartbeat.py",
    "test_conformance.py",
    "test_sync.py",
    "test_rounds.py",
    "test_clocks.py",
    "test_compression.py",
)
# The schemes, and the harness that builds the graph of each.
HARNESSES = {
    **dict.fromkeys(harness.SCHEMES, harness),
    **dict.fromkeys(peer_harness.SCHEMES, peer_harness),
    gossip_harness.FOLDER: gossip_harness,
}
MORE = {peer_harness: ("test_peers.py",), gossip_harness: ("test_gossip.py",)}
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
# What a change would only rename or reword.
HARMLESS = ("name_scope", "print")

# Shared modules: module, what stands there, what shall stand there.
NOTHING = "tf.control_dependencies([])"
BY_HAND = [
    # The number waits for what was pulled and pushed, and is taken under the lock.
    ("stats", "[pushed[0], seen]", "[pushed[0]]"),
    ("stats", "= stats, [lock], []", "= stats, [], []"),
    ("stats", "tf.control_dependencies([self.unlocked])", NOTHING),
    ("stats", "number < self.steps", "number <= self.steps"),
    ("stats", "tf.logical_and(joined, number < self.steps)", "number < self.steps"),
    ("stats", "else number - seen", "else number - seen + 1"),
    ("stats", "tf.stack([number + 1, staleness,", "tf.stack([number, staleness,"),
    ("stats", "self.row(pulled=1) * down", "self.row(pulled=1) * 0"),
    ("stats", "examples=examples", "examples=1"),
    ("stats", "held.add(row, applied, applied, staleness)", "pass"),
    (
        "stats",
        "held.add(row, applied, applied, staleness)",
        "held.add(row, joined, applied, staleness)",
    ),
    ("stats", "row * tf.cast(counts, tf.int64)", "row"),
    ("stats", "ResourceScatterMax", "ResourceScatterUpdate"),
    ("stats", "tf.reduce_sum(counters[:, 0])", "self.step.read_value()"),
    ("stats", "tf.maximum(self.workers - ", "tf.maximum(0 * "),
    ("stats", "tf.concat([times, largest[:, 2:]], 1)", "largest"),
    # Who takes part, and who is silent.
    ("incarnation", " & (number > 0)", ""),
    ("incarnation", "tf.equal(tf.gather(self.joined, self.me), number) & ", ""),
    ("incarnation", "*self.on_join]", "]"),
    ("incarnation", "(since < -1) | ", ""),
    ("incarnation", " | (since > STILL)", ""),
    (
        "incarnation",
        "tf.where(beats > 0, beats, tf.fill([self.workers], opened))",
        "beats",
    ),
    (
        "incarnation",
        "tf.where(tf.equal(number, 0), tf.zeros_like(silence), silence)",
        "silence",
    ),
    # The barrier: who counts for which step, how many, and what is forgotten.
    ("sync", "tf.equal(t, step) & place", "place"),
    ("sync", " & tf.equal(taken[stats.me], 0)", ""),
    ("sync", "tf.reduce_sum(taken) < self.size", "tf.constant(True)"),
    ("sync", "tf.equal(others, self.size - 1)", "tf.equal(others, self.size - 2)"),
    ("sync", "tf.equal(others, self.size - 1)", "tf.equal(others, self.size)"),
    (
        "sync",
        "self.taken.assign(tf.zeros(self.taken.shape, tf.int64), read_value=False),",
        "",
    ),
    ("sync", "self.attempt.assign_add(1, read_value=False),", ""),
    ("sums", "mine > last, begin", "mine > mine, begin"),
    ("sums", "mine >= last if begins", "mine > REFUSED if begins"),
    ("sums", "total.assign(rounds.zeros(total), read_value=False)", "tf.no_op()"),
    ("sync", "tf.reduce_max(", "tf.reduce_min("),
    ("sync", "count = tf.maximum(self.mine.size(), 1)", "count = 1"),
    ("sync", "step < self.stats.steps", "step <= self.stats.steps"),
    ("sync", "state.on_open += [", "state.on_open += [][:0] and ["),
    (
        "sync",
        "applied & tf.equal(self.named, held.read(self.attempt))",
        "applied",
    ),
    ("sync", "stuck = tf.reduce_any(dead & half)", "stuck = tf.constant(False)"),
    ("sync", "tf.not_equal(arrived, ARRIVED)", "tf.not_equal(arrived, AWAY)"),
    ("sync", " + tf.cast(last, tf.int64)", ""),
    ("sync", "tf.logical_and(held.joined, step < stats.steps)", "step < stats.steps"),
    ("sync", "stats.row(dropped=1, **made)", "stats.row(**made)"),
    ("sync", "updates=taken + made", "updates=made"),
    ("sync", "updates=taken + made", "updates=taken"),
    ("sync", "state.checks.append(", "(lambda _: 0)("),
    ("sync", "stats.locked(added)", "stats.locked([])"),
    ("sync", "stats.locked(update)", "stats.locked([])"),
    ("sync", "state.heartbeats.read_value() > 0", "state.heartbeats.read_value() >= 0"),
    (
        "sync",
        "waits = stats.step.read_value() < stats.steps",
        "waits = tf.constant(True)",
    ),
    ("quorum", "len(silence) - self.size", "0"),
    ("quorum", "STARTING * self.patience", "self.patience"),
    ("quorum", "            self.due = 0.0\n", ""),
    ("quorum", "            self.due = now + SAY\n", ""),
    # The clocks: how far ahead, who counts, and who is woken.
    (
        "clocks",
        "tf.reduce_min(clocks) <= self.bound",
        "tf.reduce_min(clocks) < self.bound",
    ),
    ("clocks", "<= self.bound) | over", "<= self.bound + 1) | over"),
    ("clocks", "<= self.bound) | over", "<= self.bound)"),
    ("clocks", "incarnation.checks.append(", "incarnation.checks.count("),
    ("clocks", "incarnation.on_open += [", "incarnation.on_open += [][:0] and ["),
    ("clocks", "wake = waiting & self._may(held, clocks)", "wake = waiting & False"),
    ("clocks", "self.stats.locked(update)", "self.stats.locked([])"),
    ("clocks", "self.me & held.joined & applied", "self.me & held.joined"),
    ("clocks", "self.me & held.joined & applied", "self.me & applied"),
    (
        "clocks",
        "tf.where_v2(away, AWAY, self._now(held, back))",
        "self._now(held, back)",
    ),
    (
        "clocks",
        "tf.equal(clocks, AWAY) & back, slowest",
        "tf.equal(clocks, AWAY) & back, 0 * slowest",
    ),
    # A round after the other, on every ps; a push that does not count changes nothing.
    ("rounds", "_wait(after[i : i + 1])", NOTHING),
    ("rounds", "after[i : i + 1]", "after[:1]"),
    ("rounds", "tf.control_dependencies([operation])", NOTHING),
    ("rounds", "tf.control_dependencies([tf.identity(yes)])", NOTHING),
    ("rounds", "n <= left and ", ""),
    ("rounds", " and n * self.seconds <= CALL", ""),
    ("rounds", "last = [*built[-1].update, *built[-1].local]", "last = []"),
]
# Of a shared module, the scheme whose tests are asked first.
FIRST = {
    "sync": "Synchronous-SGD",
    "sums": "Synchronous-SGD",
    "clocks": "Stale-Synchronous-Parallel",
}

# Modules around the rounds: the same, and the tests that are asked, a file and what
# their names have. Those that start processes start them with the changed module.
RUN, FAULTS = "test_run.py", "test_faults.py"
CHECKPOINT = RUN, "checkpoint_that_cannot_be_used"
KILLED = RUN, "killed_resumed and HogWild"
SHELLS = RUN, "three_shells"
DIVERGES = FAULTS, "chief_that_diverges"
MEMBERS = "test_membership.py", "not run_sh and not come_and_go and not told_to_end"
BUSY = "test_peers.py", "dies_while_the_chief_is_busy"
CUT = "test_peers.py", "bucket"
AROUND = [
    # One process's training: what it takes up, saves, and takes for its end.
    ("report", "if became in (APPLIED, LATE):", "if True:", "test_report.py", "round"),
    (
        "rounds",
        "if NOT_JOINED in became:",
        "if False:",
        "test_report.py",
        "not_joined",
    ),
    ("training", "(tf.errors.OpError, ValueError) as", "KeyError as", *CHECKPOINT),
    ("training", "self.saved[1] + self.args.save_seconds", "1e30", *KILLED),
    ("training", "self.saver.restore(session, path)", "session", *KILLED),
    # A run: what is lost and found, why it failed, and who is told of its end.
    (
        "run",
        "        session.run(self.close_state)\n",
        "",
        "test_rounds.py",
        "restore_ends_the_incarnation",
    ),
    (
        "run",
        "if step_context.session is self.session:",
        "if True:",
        FAULTS,
        "ps_that_is_lost_after_the_last",
    ),
    (
        "run",
        "if self.is_alive(session):",
        "if False:",
        FAULTS,
        "goes_on_with_the_model",
    ),
    (
        "run",
        "            if self.reason:\n                alive",
        "            if False:\n                alive",
        "test_rounds.py",
        "waits_for_a_model_that_is_alive",
    ),
    ("run", "self.rendezvous.fail(str(error))", "pass", *DIVERGES),
    ("run", "if self.chief and (failed or self.over):", "if False:", *SHELLS),
    ("rendezvous", "if different:", "if False:", FAULTS, "task_of_another_run"),
    (
        "rendezvous",
        "[check(stats) for check in checks]",
        "[]",
        FAULTS,
        "worker_that_a_step_needs",
    ),
    (
        "rendezvous",
        "if min(silence[worker], waited) > GONE:",
        "if False:",
        "test_heartbeat.py",
        "report_of_a_worker_that_is_gone",
    ),
    (
        "heartbeat",
        "        if reason:\n",
        "        if False:\n",
        "test_sync.py",
        "run_has_failed",
    ),
    (
        "heartbeat",
        "if session is None and self.answer:",
        "if session is None:",
        FAULTS,
        "silent_while_a_session_begins",
    ),
    (
        "heartbeat",
        "elif (quiet := now - self.heard[job, index]) >",
        "elif (quiet := 0 * now) >",
        FAULTS,
        "test_a_ps_that_is_silent and Synchronous-SGD",
    ),
    ("heartbeat", "while not session.run(told):", "while True:", *SHELLS),
    # Peers: who is lost, what all begin with, and who takes part.
    (
        "peers",
        "if gone != 0 and ports.answers(hosts[0]):",
        "if gone != 0:",
        "test_peers.py",
        "chief_that_has_left",
    ),
    ("ring", "reversed(list(zip(", "list(list(zip(", *CUT),
    ("ring", "buckets, size = [[], *buckets], 0", "buckets = [[], *buckets]", *CUT),
    ("ring", "buckets[0].insert(0, ", "buckets[0].append(", *CUT),
    (
        "ring",
        "for bucket in buckets]",
        "for bucket in [buckets[0], *buckets[:-1]]]",
        *CUT,
    ),
    ("ring", "if len(users) == 1 and users[0].type in", "if users[0].type in", *CUT),
    ("ring", "if op in behind]", "]", *CUT),
    ("peers", "(owners == REPLACED.encode())", '(owners == b"")', *BUSY),
    ("peers", ", *late]:", "]:", "test_heartbeat.py", "tells_a_lost_worker"),
    (
        "peers",
        "        session.run(self.broadcast)\n",
        "",
        "test_peers.py",
        "ring_that_breaks and DiLoCo",
    ),
    ("membership", "if 0 < worker < count:", "if worker < count:", *MEMBERS),
    ("membership", "there == count or (late and there", "late and (there", *MEMBERS),
    ("membership", "(late and there >= least)", "there >= least", *MEMBERS),
    ("membership", "if _has_left(line)]", "if False]", *MEMBERS),
    (
        "membership",
        'socket.AF_INET6 if "[" in host else socket.AF_INET',
        "socket.AF_INET",
        *MEMBERS,
    ),
    (
        "membership",
        "            with contextlib.suppress(tf.errors.OpError):\n",
        "            with contextlib.nullcontext():\n",
        *MEMBERS,
    ),
    # The launcher: its limits, and its tasks when it is gone.
    (
        "launch",
        "        if not over:\n",
        "        if False:\n",
        RUN,
        "signals_and_the_time_limit and HogWild",
    ),
    (
        "launch",
        "if status in (1, 2, ILLEGAL) or task.restarts >= self.max_restarts:",
        "if status in (1, 2, ILLEGAL):",
        RUN,
        "worker_that_dies_ends_the_run",
    ),
    (
        "launch",
        "LAUNCHER: str(os.getpid())",
        'LAUNCHER: "0"',
        FAULTS,
        "tasks_end_when_run_sh_is_killed",
    ),
]


# --- Changes of a scheme ------------------------------------------------------


def changes(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """Yields (line, what was done, changed tree) for the functions of the rule."""
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name not in (
            "parse_args",
            "main",
        ):
            stored = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
            names = [n.id for n in stored if isinstance(n.ctx, ast.Store)]
            names = [name for name in dict.fromkeys(names) if name != "_"]
            for position, node in enumerate(ast.walk(function)):
                for number, (what, _) in enumerate(edits(node, names)):
                    changed = copy.deepcopy(tree)
                    twin = changed.body[tree.body.index(function)]
                    twin_node = list(ast.walk(twin))[position]
                    edits(twin_node, names)[number][1]()
                    yield node.lineno, what, ast.fix_missing_locations(changed)


def edits(node: ast.AST, names: list[str]) -> list[tuple[str, object]]:
    """Returns (what, a function that does it) for one node of a rule."""
    found = []

    def put(what, attribute, value):
        found.append((what, lambda: setattr(node, attribute, value)))

    if isinstance(node, ast.BinOp):
        other = OTHER.get(type(node.op))
        if other:
            put(f"{ast.unparse(node)}: {other.__name__}", "op", other())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        put(f"{node.value}: one more", "value", node.value + 1)
    elif isinstance(node, ast.keyword) and node.arg != "read_value":
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            contrary = ast.Constant(not node.value.value)
            put(f"{ast.unparse(node)}: the contrary", "value", contrary)
    elif isinstance(node, ast.Call) and not any(
        word in ast.unparse(node.func) for word in HARMLESS
    ):
        text = ast.unparse(node)
        for i, keyword in enumerate(node.keywords):
            if keyword.arg == "read_value":
                continue  # another form of the same operation is returned
            rest = node.keywords[:i] + node.keywords[i + 1 :]
            put(f"{text}: without {keyword.arg}", "keywords", rest)
        if ast.unparse(node.func) == "tf.control_dependencies":
            put(f"{text}: of nothing", "args", [ast.List([], ast.Load())])
        elif len(node.args) > 1:
            last = ast.unparse(node.args[-1])
            put(f"{text}: without {last}", "args", node.args[:-1])
            for i in range(len(node.args) - 1):
                turned = list(node.args)
                turned[i : i + 2] = turned[i + 1], turned[i]
                put(f"{text}: {ast.unparse(turned[i])} first", "args", turned)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if node.id in names:
            other = names[names.index(node.id) - 1]
            if other != node.id:
                put(f"{node.id}: {other}", "id", other)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        put(f"{ast.unparse(node)}: or equal", "ops", [ast.LtE()])
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        if len(node.elts) > 1:
            elements = [*node.elts[1:], node.elts[0]]
            put(f"{ast.unparse(node)}: turned", "elts", elements)
    return found


# --- The tests of a scheme, in this process -----------------------------------


class First:
    """A plugin of pytest's: counts the tests, and says which one fails first."""

    count, first = 0, ""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.count = len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash else ""
            self.first = f"{report.nodeid.rpartition('::')[2]}: {why[:60]}"


class Chosen(First):
    """The same for the tests that concern a folder: the quick ones, or the rest.

    Those with a directory of their own are left out: most of them start tasks, and a
    task has the script as it is.
    """

    def __init__(self, folder: str | None, quick: bool) -> None:
        self.folder, self.quick = folder, quick

    @pytest.hookimpl(trylast=True)  # after conftest.py, which says what is quick
    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if self.wants(item)]

    def wants(self, item: pytest.Item) -> bool:
        quick = item.get_closest_marker("quick") is not None
        if quick != self.quick or "tmp_path" in item.fixturenames:
            return False
        if self.folder is None:
            return True
        parameters = getattr(item, "callspec", types.SimpleNamespace(params={})).params
        if "folder" in parameters:
            return parameters["folder"] == self.folder
        constants = [x for x in vars(item.module).values() if isinstance(x, str)]
        if self.folder in constants:
            return True
        return f'"{self.folder}"' in inspect.getsource(item.function)


QUICK = "quick: "  # what the answer begins with if a test of the quick level fails


def noticed(folder: str | None) -> str:
    """Returns the first test that fails, or nothing."""
    names = *FILES, *MORE.get(HARNESSES.get(folder), ())
    files = [str(TESTS / name) for name in names]
    count = 0
    for quick in (True, False):
        chosen = Chosen(folder, quick)
        said = asked(chosen, files, seconds=120)
        count += chosen.count
        if said:
            return QUICK * quick + said
    return "" if count else "no tests"


def asked(plugin: First, options: list[str], seconds: int) -> str:
    """Returns the first of some tests that fails, or nothing."""
    out = io.StringIO()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *options]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = pytest.main([f"--timeout={seconds}", *options], plugins=[plugin])
    return plugin.first or (out.getvalue()[-500:] if status not in (0, 5) else "")


def scheme(folder: str) -> tuple[list[str], list[str]]:
    """Tries every change of a script; returns what was said, and those not noticed."""
    path = launch.REPO / folder / launch.registry.script_of(folder)
    source, left, said = path.read_text(), [], []
    instead = HARNESSES[folder].instead
    fails = noticed(folder)
    assert not fails, f"{folder} fails as it is: {fails}"
    for line, what, tree in changes(ast.parse(source)):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        exec(compile(ast.unparse(tree), str(path), "exec"), module.__dict__)
        instead[folder] = module
        by = noticed(folder)
        said.append(by)
        print(f"{folder}:{line}  {what}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{folder}:{line}  {what}")
    del instead[folder]
    return said, left


def taken_over(
    module: types.ModuleType, before: dict
) -> list[tuple[types.ModuleType, str, object]]:
    """Gives what a module now has to those who imported the old one by name.

    Returns (module, name there, what it was).
    """
    mine = {id(v): n for n, v in before.items() if hasattr(v, "__module__")}
    found = [
        (other, own, value)
        for name, other in list(sys.modules.items())
        if name.startswith("cluster.") and other is not module
        for own, value in vars(other).items()
        if id(value) in mine and value.__module__ == module.__name__
    ]
    for other, own, value in found:
        setattr(other, own, vars(module)[mine[id(value)]])
    return found


@contextlib.contextmanager
def changed(name: str, old: str, new: str) -> Iterator[str]:
    """Has a module of cluster/ changed in this process; yields its changed text.

    What is started here is no part of this process: then only copies have it.
    """
    if name == "launch":
        source = (launch.REFERENCE / "launch.py").read_text()
        assert source.count(old) == 1, f"launch.py has not one {old!r}"
        yield source.replace(old, new)
        return
    module = importlib.import_module(f"cluster.{name}")
    source = pathlib.Path(module.__file__).read_text()
    assert source.count(old) == 1, f"cluster/{name}.py has not one {old!r}"
    text, before = source.replace(old, new), dict(vars(module))
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    instead = taken_over(module, before)
    try:
        yield text
    finally:
        vars(module).clear()
        vars(module).update(before)
        for other, own, value in instead:
            setattr(other, own, value)


def shared() -> tuple[list[str], list[str]]:
    """Tries every change of BY_HAND; returns what was said, and those not noticed."""
    left, said = [], []
    for name, old, new in BY_HAND:
        with changed(name, old, new):
            # A scheme that has it notices sooner than all tests one after the other.
            first = FIRST.get(name, "HogWild")
            by = noticed(first) or noticed("Synchronous-SGD") or noticed(None)
        said.append(by)
        print(f"{name}  {old!r} -> {new!r}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{name}  {old!r} -> {new!r}")
    return said, left


@contextlib.contextmanager
def in_copies(name: str, text: str) -> Iterator[None]:
    """Has a changed module of cluster/ in every copy that a test makes of a folder."""
    copytree = shutil.copytree

    def changing(source, target, *rest, **more):
        made = copytree(source, target, *rest, **more)
        path = pathlib.Path(target, *["cluster"] * (name != "launch"), f"{name}.py")
        if path.exists():
            path.write_text(text)
        return made

    shutil.copytree = changing
    try:
        yield
    finally:
        shutil.copytree = copytree


def around() -> tuple[list[str], list[str]]:
    """Tries every change of AROUND; returns what was said, and those not noticed."""
    left, said, good = [], [], set()
    for name, old, new, file, words in AROUND:
        options = [str(TESTS / file), "-k", words]
        if (file, words) not in good:
            plugin = First()
            fails = asked(plugin, options, seconds=300)
            assert plugin.count and not fails, f"{words} as it is: {fails or 'no test'}"
            good.add((file, words))
        with changed(name, old, new) as text, in_copies(name, text):
            by = asked(First(), options, seconds=300)
        said.append(by)
        print(f"{name}  {old!r} -> {new!r}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{name}  {old!r} -> {new!r}")
    return said, left


def main() -> None:
    harness.LIMIT = peer_harness.LIMIT = gossip_harness.LIMIT = 15
    of = {"cluster": shared, "around": around}
    parts = [*HARNESSES, *of]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(parts)}")
    chosen = parser.parse_args().part or parts
    if unknown := sorted({*chosen} - {*parts}):
        parser.error(f"{unknown[0]} is not one of {', '.join(parts)}")
    for name in chosen:
        began = time.monotonic()
        said, left = of[name]() if name in of else scheme(name)
        minutes = round((time.monotonic() - began) / 60)
        one = {"changes": len(said), "not noticed": left, "minutes": minutes}
        if name != "around":  # which asks certain tests, of any level
            one["quick"] = sum(by.startswith(QUICK) for by in said)
        print(name, one, flush=True)
        keep(name, one)


def keep(name: str, one: dict) -> None:
    """Adds what became of some changes to what is kept, and writes the table."""
    results = launch.REPO / "benchmarks" / "results"
    path = results / "mutations.json"
    one |= {"date": str(datetime.date.today()), "commit": launch.commit()}
    with launch.locked(results):
        kept = json.loads(path.read_text()) if path.exists() else {}
        kept[name] = one
        rows = [
            f"| {what} | {one['changes']} | {one.get('quick', '–')} | "
            f"{len(one['not noticed'])} | {one['minutes']} | "
            f"{one['date']}, {one['commit']} |\n"
            for what, one in sorted(kept.items())
        ]
        left = [f"- `{text}`\n" for one in kept.values() for text in one["not noticed"]]
        table = [
            "Changes of one place each, and how many of them no test notices: "
            "`.venv/bin/python survey/mutations.py`. For each change of `around` "
            "certain tests are asked, of any level.\n\n"
            "| of | changes | noticed by a quick test | not noticed | minutes "
            "| date, commit |\n|---|---|---|---|---|---|\n",
            *rows,
            "\nNot noticed:\n\n" * bool(left),
            *left,
        ]
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        path.with_suffix(".md").write_text("".join(table))


if __name__ == "__main__":
    main()
