"""Changes the syntax trees of the update rules, and says what no test notices.

    python survey/mutations.py HogWild AEASGD      each place of the schemes' rules
    python survey/mutations.py cluster             ten places of each shared module
    python survey/mutations.py around --of 5       five of each around the rounds
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
import random
import shutil
import sys
import time
import types
from collections.abc import Iterable, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import gossip_harness
import harness
import launch
import peer_harness
import pytest

TESTS = launch.REPO / "tests"

FILES = (
    "test_board.py",
    "test_report.py",
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

# Shared modules, and the scheme whose tests are asked first.
SHARED = {
    **dict.fromkeys(("stats", "rounds"), "HogWild"),
    "sync": "Synchronous-SGD",
    "clocks": "Stale-Synchronous-Parallel",
    "gossip": "Gossip-SGD",
}
# Modules around the rounds, and the tests that are asked: a file, and what their names
# have. Those that start processes start them with the changed module.
AROUND = {
    "report": {"test_report.py": ""},
    "training": {"test_run.py": "killed_resumed and Setup"},
    "checkpoint": {"test_run.py": "checkpoint_that_cannot_be_used or five_checkpoints"},
    "run": {
        "test_run.py": "three_shells or ends_early",
        "test_faults.py": "ps_that_is_lost or after_a_loss or goes_on_with_the_model"
        " or chief_that_diverges",
    },
    "board": {
        "test_board.py": "",
        "test_faults.py": "task_of_another_run or gone_for_good",
    },
    "link": {
        "test_board.py": "",
        "test_run.py": "three_shells",
        "test_faults.py": "ps_that_is_silent or nobody_answers",
    },
    "ps": {"test_faults.py": "after_a_loss"},
    "peers": {"test_peers.py": "chief or (ring_that_breaks and DiLoCo)"},
    "ring": {"test_peers.py": "trace or bucket"},
    "membership": {"test_membership.py": "not run_sh and not told_to_end"},
    "launch": {
        "test_run.py": "(signals_and_the_time_limit and HogWild)"
        " or worker_that_dies_ends_the_run",
        "test_faults.py": "tasks_end_when_run_sh_is_killed",
    },
}


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


# --- Changes of a shared module -----------------------------------------------

LIMITS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
LIMITS |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
NOTHING = ast.List([], ast.Load())


def anywhere(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yields (line, what was done, changed text) for each place of a module.

    A statement is left out, a condition is always or never true, or something else
    stands for an expression, see `instead_of`.
    """
    whole = ast.unparse(tree)
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            for line, what, new in fields(node, field, value):
                setattr(node, field, new)
                text = ast.unparse(tree)
                setattr(node, field, value)
                if text != whole:
                    yield line, what, text


def fields(node: ast.AST, field: str, value: object) -> Iterator[tuple]:
    """Yields (line, what, new value) for a field of a node."""
    several = value if isinstance(value, list) else [value]
    for i, one in enumerate(several):
        if isinstance(one, ast.Expr | ast.Assign | ast.AugAssign | ast.Raise):
            is_text = isinstance(getattr(one, "value", None), ast.Constant)
            if not isinstance(node, ast.Module | ast.ClassDef) and not is_text:
                rest = several[:i] + several[i + 1 :]
                yield one.lineno, f"{ast.unparse(one)}: left out", rest or [ast.Pass()]
        elif isinstance(one, ast.expr):
            for new in instead_of(one, field):
                what = f"{ast.unparse(one)}: {ast.unparse(new)}"
                changed = several[:i] + [new] + several[i + 1 :]
                yield one.lineno, what, changed if several is value else new


def instead_of(node: ast.expr, field: str) -> Iterator[ast.expr]:
    """Yields what may stand for an expression."""
    if field == "test":
        yield from map(ast.Constant, (True, False))
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        if other := OTHER.get(type(node.op)):
            yield ast.BinOp(node.left, other(), node.right)
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load):
        for i in range(len(node.elts)):
            yield type(node)(node.elts[:i] + node.elts[i + 1 :], ast.Load())
    elif isinstance(node, ast.ListComp):
        yield NOTHING
        every = [ast.comprehension(g.target, g.iter, [], 0) for g in node.generators]
        yield ast.ListComp(node.elt, every)
    elif isinstance(node, ast.Compare):
        if len(node.ops) > 1:
            yield ast.Compare(node.comparators[0], node.ops[1:], node.comparators[1:])
        elif other := LIMITS.get(type(node.ops[0])):
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in HARMLESS:
            return
        if name.startswith(("reduce_", "not_", "equal", "logical_")):
            for yes in "True", "False":
                yield ast.parse(f"tf.constant({yes})", mode="eval").body
        if name in ("control_dependencies", "locked"):
            yield ast.Call(node.func, [NOTHING], node.keywords)
        else:  # one of what it was given, or all but one
            yield from (one for one in node.args if not isinstance(one, ast.Starred))
            for i in range(len(node.args)):
                rest = node.args[:i] + node.args[i + 1 :]
                yield ast.Call(node.func, rest, node.keywords)
        for keyword in node.keywords:
            rest = [one for one in node.keywords if one is not keyword]
            yield ast.Call(node.func, node.args, rest)


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

    Of the rest those with a directory of their own are left out: most of them start
    tasks, and a task has the script as it is.
    """

    def __init__(self, folder: str | None, quick: bool) -> None:
        self.folder, self.quick = folder, quick

    @pytest.hookimpl(trylast=True)  # after conftest.py, which says what is quick
    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if self.wants(item)]

    def wants(self, item: pytest.Item) -> bool:
        quick = item.get_closest_marker("quick") is not None
        if quick != self.quick or (not quick and "tmp_path" in item.fixturenames):
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
def changed(name: str, text: str) -> Iterator[None]:
    """Has a module of cluster/ with another text in this process.

    The launcher is no part of this process: only copies have it.
    """
    if name == "launch":
        yield
        return
    module = importlib.import_module(f"cluster.{name}")
    before = dict(vars(module))
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    instead = taken_over(module, before)
    try:
        yield
    finally:
        vars(module).clear()
        vars(module).update(before)
        for other, own, value in instead:
            setattr(other, own, value)


def drawn(names: Iterable[str], count: int) -> list[tuple[str, int, str, str]]:
    """Returns (module, line, what was done, text) of `count` changes of each module.

    They are drawn at random, and are the same as long as the module is.
    """
    found = []
    for name in names:
        source = launch.REPO / "originals" / "launch.py"
        if name != "launch":
            source = pathlib.Path(importlib.import_module(f"cluster.{name}").__file__)
        every = list(anywhere(ast.parse(source.read_text())))
        some = random.Random(name).sample(every, min(count, len(every)))
        found += [(name, *one) for one in sorted(some)]
    return found


def shared(count: int) -> tuple[list[str], list[str]]:
    """Tries changes of SHARED; returns what was said, and those not noticed."""
    left, said = [], []
    for name, line, what, text in drawn(SHARED, count):
        with changed(name, text):
            # A scheme that has it notices sooner than all tests one after the other.
            by = noticed(SHARED[name]) or noticed("Synchronous-SGD") or noticed(None)
        said.append(by)
        print(f"{name}:{line}  {what}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{name}:{line}  {what}")
    return said, left


@contextlib.contextmanager
def in_copies(name: str, text: str) -> Iterator[None]:
    """Has a changed module of cluster/ in every copy that a test makes of a folder."""
    copytree = shutil.copytree

    def changing(source, target, *rest, **more):
        made = copytree(source, target, *rest, **more)
        path = pathlib.Path(target, "" if name == "launch" else "cluster", f"{name}.py")
        if path.exists():
            path.write_text(text)
        return made

    shutil.copytree = changing
    try:
        yield
    finally:
        shutil.copytree = copytree


def around(count: int) -> tuple[list[str], list[str]]:
    """Tries changes of AROUND; returns what was said, and those not noticed."""

    def fails(name: str) -> str:
        for file, words in AROUND[name].items():
            plugin = First()
            if by := asked(plugin, [str(TESTS / file), "-k", words], seconds=300):
                return by
            assert plugin.count, f"{file} has no test {words}"
        return ""

    left, said = [], []
    for name in AROUND:
        assert not (by := fails(name)), f"{name} as it is: {by}"
    for name, line, what, text in drawn(AROUND, count):
        with changed(name, text), in_copies(name, text):
            by = fails(name)
        said.append(by)
        print(f"{name}:{line}  {what}  {by or 'NOT NOTICED'}", flush=True)
        if not by:
            left.append(f"{name}:{line}  {what}")
    return said, left


def main() -> None:
    harness.LIMIT = peer_harness.LIMIT = gossip_harness.LIMIT = 15
    of = {"cluster": shared, "around": around}
    parts = [*HARNESSES, *of]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(parts)}")
    parser.add_argument("--of", type=int, default=10, help="changes of a shared module")
    args = parser.parse_args()
    chosen = args.part or parts
    if unknown := sorted({*chosen} - {*parts}):
        parser.error(f"{unknown[0]} is not one of {', '.join(parts)}")
    for name in chosen:
        began = time.monotonic()
        said, left = of[name](args.of) if name in of else scheme(name)
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
