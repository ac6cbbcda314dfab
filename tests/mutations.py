"""Changes the update rules line by line, and says which changes no test notices.

    python tests/mutations.py HogWild AEASGD      each line of `state` and `graph`
    python tests/mutations.py cluster             some lines of the shared modules
    python tests/mutations.py                     everything; takes an hour or two

Not a part of the tests: one runs it after a change of the rules or of the harness. A
change that is not noticed is printed with its line. It either does not matter, or a
test is missing.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import inspect
import io
import pathlib
import sys
import types
from collections.abc import Iterator

import harness
import launch
import pytest

HERE = pathlib.Path(__file__).parent

FILES = (
    "test_conformance.py",
    "test_sync.py",
    "test_rounds.py",
    "test_bounded.py",
    "test_compression.py",
)
SLOW = ("any_run", "books_of_any", "placement", "real_processes", "way_of_one_process")
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
# What a change would only rename or reword.
HARMLESS = ("name_scope", "print")

# Shared modules: module, what stands there, what shall stand there.
NOTHING = "tf.control_dependencies([])"
BY_HAND = [
    # The number waits for what was pulled and pushed, and is taken under the lock.
    ("books", "[pushed[0], seen]", "[pushed[0]]"),
    ("books", "tf.control_dependencies([lock])", NOTHING),
    ("books", "tf.control_dependencies([self.unlocked])", NOTHING),
    ("books", "number < self.steps", "number <= self.steps"),
    ("books", "tf.logical_and(joined, number < self.steps)", "number < self.steps"),
    ("books", "else number - seen", "else number - seen + 1"),
    ("books", "tf.stack([number + 1, staleness,", "tf.stack([number, staleness,"),
    ("books", "self.row(pulled=1) * down", "self.row(pulled=1) * 0"),
    ("books", "examples=examples", "examples=1"),
    ("books", "done += self.write(row, applied, applied, staleness)", "pass"),
    (
        "books",
        "done += self.write(row, applied, applied, staleness)",
        "done += self.write(row, joined, applied, staleness)",
    ),
    ("books", "row * tf.cast(mark, tf.int64)", "row"),
    ("books", "ResourceScatterMax", "ResourceScatterUpdate"),
    ("books", "tf.reduce_sum(table[:, 0])", "self.step.read_value()"),
    ("books", "tf.maximum(self.workers - ", "tf.maximum(0 * "),
    ("books", "tf.concat([times, most[:, 2:]], 1)", "most"),
    # Who takes part.
    ("incarnation", " & (number > 0)", ""),
    ("incarnation", "tf.equal(tf.gather(self.joined, self.me), number) & ", ""),
    ("incarnation", "*self.on_join]", "]"),
    # The barrier: who counts for which step, how many, and what is forgotten.
    ("barrier", "tf.equal(t, step) & place", "place"),
    ("barrier", " & tf.equal(taken[kept.me], 0)", ""),
    ("barrier", "tf.reduce_sum(taken) < self.size", "tf.constant(True)"),
    ("barrier", "tf.equal(others, self.size - 1)", "tf.equal(others, self.size - 2)"),
    ("barrier", "tf.equal(others, self.size - 1)", "tf.equal(others, self.size)"),
    ("barrier", "self.taken.assign(zeros, read_value=False),", ""),
    ("barrier", "tf.reduce_max(", "tf.reduce_min("),
    ("barrier", "count = tf.maximum(self.mine.size(), 1)", "count = 1"),
    ("barrier", "step < self.kept.steps", "step <= self.kept.steps"),
    ("barrier", "run.on_open += [", "run.on_open += [][:0] and ["),
    (
        "barrier",
        "applied & (tf.gather_nd(self.taken, [kept.me, ROUNDS]) > 0)",
        "applied",
    ),
    ("barrier", "stuck = tf.reduce_any(dead & half)", "stuck = tf.constant(False)"),
    (
        "barrier",
        "self.arrived.read_value(), ARRIVED)",
        "self.arrived.read_value(), AWAY)",
    ),
    ("barrier", " + tf.cast(last, tf.int64)", ""),
    ("barrier", "tf.logical_and(joined, step < kept.steps)", "step < kept.steps"),
    ("barrier", "kept.row(dropped=1, **made)", "kept.row(**made)"),
    ("barrier", "updates=taken + made", "updates=made"),
    ("barrier", "updates=taken + made", "updates=taken"),
    ("barrier", "run.judges.append(", "(lambda _: 0)("),
    ("barrier", "kept.locked(added)", "kept.locked([])"),
    ("barrier", "kept.locked(update)", "kept.locked([])"),
    ("quorum", "tf.maximum(heard, opened)", "heard"),
    ("quorum", "came = heard > 0", "came = heard >= 0"),
    ("quorum", "(number > 0) & ", ""),
    ("quorum", " & (kept.step.read_value() < kept.steps)", ""),
    ("quorum", "len(silence) - self.size", "0"),
    ("quorum", "STARTING * self.patience", "self.patience"),
    ("quorum", "            self.said = False\n", ""),
    ("quorum", "        self.said = True\n", ""),
    # The clocks: how far ahead, who counts, and who is woken.
    (
        "clocks",
        "tf.reduce_min(clocks) <= self.bound",
        "tf.reduce_min(clocks) < self.bound",
    ),
    ("clocks", "<= self.bound) | over", "<= self.bound + 1) | over"),
    ("clocks", "<= self.bound) | over", "<= self.bound)"),
    ("clocks", "run.on_beat.append(", "(lambda _: 0)("),
    ("clocks", "run.on_open += [", "run.on_open += [][:0] and ["),
    ("clocks", "wake = waiting & self._may(clocks)", "wake = waiting & False"),
    ("clocks", "self.kept.locked(update)", "self.kept.locked([])"),
    ("clocks", "self.me & joined & applied", "self.me & joined"),
    ("clocks", "self.me & joined & applied", "self.me & applied"),
    ("clocks", "tf.where_v2(away, AWAY, self._now(back))", "self._now(back)"),
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
    "barrier": "Synchronous-SGD",
    "quorum": "Synchronous-SGD",
    "clocks": "Stale-Synchronous-Parallel",
}


# --- Changes of a scheme ------------------------------------------------------


def changes(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """Yields (line, what was done, changed tree) for `state` and `graph`."""
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in (
            "state",
            "graph",
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


class Chosen:
    """A plugin of pytest's: the tests that concern a folder, fast ones or the rest."""

    def __init__(self, folder: str | None, slow: bool) -> None:
        self.folder, self.slow, self.count, self.first = folder, slow, 0, ""

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if self.wants(item)]
        self.count = len(items)

    def wants(self, item: pytest.Item) -> bool:
        if "real_processes" in item.name:
            return False
        if any(word in item.name for word in SLOW) != self.slow:
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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash else ""
            self.first = f"{report.nodeid.rpartition('::')[2]}: {why[:60]}"


def noticed(folder: str | None) -> str:
    """Returns the first test that fails, or nothing."""
    for slow in (False, True):
        chosen, out = Chosen(folder, slow), io.StringIO()
        options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=60", "--no-header"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            files = [str(HERE / file) for file in FILES]
            status = pytest.main([*options, *files], plugins=[chosen])
        if chosen.first:
            return chosen.first
        if status not in (0, 5) or not (chosen.count or slow):
            return out.getvalue()[-500:]
    return ""


def scheme(folder: str) -> list[str]:
    """Tries every change of a script; returns the ones that nobody notices."""
    path = launch.REPO / folder / launch.registry.script_of(folder)
    source, left, tried = path.read_text(), [], 0
    fails = noticed(folder)
    assert not fails, f"{folder} fails as it is: {fails}"
    for line, what, tree in changes(ast.parse(source)):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        exec(compile(ast.unparse(tree), str(path), "exec"), module.__dict__)
        harness.instead[folder] = module
        tried += 1
        by = noticed(folder)
        print(f"{folder}:{line}  {what}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{folder}:{line}  {what}")
    del harness.instead[folder]
    print(f"{folder}: {tried} changes, {len(left)} not noticed", flush=True)
    return left


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


def shared() -> list[str]:
    """Tries every change of BY_HAND; returns the ones that nobody notices."""
    left = []
    for name, old, new in BY_HAND:
        module = importlib.import_module(f"cluster.{name}")
        source = pathlib.Path(module.__file__).read_text()
        assert source.count(old) >= 1, f"cluster/{name}.py has no {old!r}"
        changed = source.replace(old, new, 1)
        before = dict(vars(module))
        exec(compile(changed, module.__file__, "exec"), module.__dict__)
        instead = taken_over(module, before)
        try:
            # A scheme that has it notices sooner than all tests one after the other.
            first = FIRST.get(name, "HogWild")
            by = noticed(first) or noticed("Synchronous-SGD") or noticed(None)
        finally:
            vars(module).clear()
            vars(module).update(before)
            for other, own, value in instead:
                setattr(other, own, value)
        print(f"{name}  {old!r} -> {new!r}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{name}  {old!r} -> {new!r}")
    print(f"cluster: {len(BY_HAND)} changes, {len(left)} not noticed", flush=True)
    return left


def main() -> None:
    harness.LIMIT = 15
    left = []
    for name in sys.argv[1:] or [*harness.SCHEMES, "cluster"]:
        left += shared() if name == "cluster" else scheme(name)
    print("\nnot noticed:" if left else "\nall noticed", *left, sep="\n")


if __name__ == "__main__":
    main()
