"""Changes the syntax trees of the update rules, and says what no test notices.

    python survey/mutations.py HogWild AEASGD      each place of the schemes' rules
    python survey/mutations.py --of 10 HogWild     ten of them, drawn at random
    python survey/mutations.py                     every scheme; takes some hours

One runs it after a change of the rules or of the harness. A change that is not noticed
either does not matter, or a test is missing. The tests of the quick level are asked
first, then the others that build the scheme's graph in this process.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import inspect
import io
import pathlib
import random
import sys
import types
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import gossip_harness
import harness
import launch
import peer_harness
import pytest

FILES = ["conformance", "sync", "rounds", "clocks", "compression", "outer", "buffer"]
FILES += ["decoupled"]
# The schemes: the harness that builds the graph of each, and the files that ask for it.
SCHEMES = {
    **dict.fromkeys(harness.SCHEMES, (harness, FILES)),
    **dict.fromkeys(peer_harness.SCHEMES, (peer_harness, ["peers"])),
    gossip_harness.FOLDER: (gossip_harness, ["gossip"]),
}
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
OTHER |= {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
NAMES = {"reduce_mean": "reduce_sum", "reduce_sum": "reduce_mean", "mean": "sum"}
NAMES |= {"assign_add": "assign_sub", "assign_sub": "assign_add"}
HARMLESS = ("name_scope", "print")  # a change of these only renames or rewords


def instead_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yields what may stand for an expression: one small mistake each."""
    if isinstance(node, ast.BinOp):
        if other := OTHER.get(type(node.op)):
            yield ast.BinOp(node.left, other(), node.right)
        yield from (node.left, node.right)  # without one term or factor
    elif isinstance(node, ast.Compare):
        if other := OTHER.get(type(node.ops[0])):
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.ListComp):  # the first for all of them
        yield ast.Subscript(node, ast.Slice(upper=ast.Constant(1)), ast.Load())
    elif isinstance(node, ast.Call):
        yield from instead_of_a_call(node)


def instead_of_a_call(node: ast.Call) -> Iterator[ast.expr]:
    """Yields a call of something else, or with less, or in another order."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in HARMLESS:
        return
    if name == "control_dependencies":
        yield ast.Call(node.func, [ast.List([], ast.Load())], [])
        return
    if name in NAMES and isinstance(node.func, ast.Attribute):
        func = ast.Attribute(node.func.value, NAMES[name], ast.Load())
        yield ast.Call(func, node.args, node.keywords)
    for i in range(len(node.args) - 1):
        turned = list(node.args)
        turned[i : i + 2] = turned[i + 1], turned[i]
        yield ast.Call(node.func, turned, node.keywords)
    for keyword in node.keywords:
        if keyword.arg == "read_value":
            continue  # only another form of the same operation
        rest = [one for one in node.keywords if one is not keyword]
        yield ast.Call(node.func, node.args, rest)


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yields (line, what was done, text) for the functions of a scheme's rule."""
    tree = ast.parse(source)
    for function in tree.body:
        named = getattr(function, "name", "main")
        if isinstance(function, ast.FunctionDef) and named not in (
            "main",
            "parse_args",
        ):
            for node in list(ast.walk(function)):
                for new in instead_of(copy.copy(node)):
                    what = f"{ast.unparse(node)}: {ast.unparse(new)}"
                    yield node.lineno, what, replaced(tree, node, new)


def replaced(tree: ast.Module, old: ast.expr, new: ast.expr) -> str:
    """Returns the text of a tree with one expression changed, and leaves the tree."""
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if value is old:
                setattr(node, field, new)
                text = ast.unparse(tree)
                setattr(node, field, old)
                return text
            if isinstance(value, list) and any(one is old for one in value):
                place = next(i for i, one in enumerate(value) if one is old)
                value[place] = new
                text = ast.unparse(tree)
                value[place] = old
                return text
    raise AssertionError(ast.unparse(old))


class Chosen:
    """A plugin of pytest's: the tests of a folder, quick ones or the rest; who fails.

    Of the rest those with a directory of their own are left out: most of them start
    tasks, and a task has the script as it is.
    """

    def __init__(self, folder: str, quick: bool) -> None:
        self.folder, self.quick, self.count, self.first = folder, quick, 0, ""

    @pytest.hookimpl(trylast=True)  # after conftest.py, which says what is quick
    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if self.wants(item)]
        self.count = len(items)

    def wants(self, item: pytest.Item) -> bool:
        quick = item.get_closest_marker("quick") is not None
        if quick != self.quick or (not quick and "tmp_path" in item.fixturenames):
            return False
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if "folder" in parameters:
            return parameters["folder"] == self.folder
        if self.folder in (x for x in vars(item.module).values() if isinstance(x, str)):
            return True
        return f'"{self.folder}"' in inspect.getsource(item.function)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid.rpartition("::")[2]


def noticed(folder: str) -> str:
    """Returns the first test that fails, or nothing."""
    files = [str(launch.REPO / f"tests/test_{name}.py") for name in SCHEMES[folder][1]]
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=120", *files]
    count = 0
    for quick in (True, False):
        chosen, out = Chosen(folder, quick), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            pytest.main(options, plugins=[chosen])
        count += chosen.count
        if chosen.first:
            return chosen.first
    assert count, f"no tests of {folder}"
    return ""


def tried(folder: str, most: int) -> tuple[int, int]:
    """Tries the changes of a script; returns how many, and how many were noticed."""
    path = launch.REPO / folder / launch.registry.script_of(folder)
    instead = SCHEMES[folder][0].instead
    assert not (fails := noticed(folder)), f"{folder} fails as it is: {fails}"
    every = list(mutants(path.read_text()))
    chosen = random.Random(folder).sample(every, min(most, len(every)))
    found = 0
    for line, what, text in sorted(chosen):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)
        instead[folder] = module
        by = noticed(folder)
        found += bool(by)
        print(f"{folder}:{line}  {what}  {by or 'NOT NOTICED'}", flush=True)
    instead.pop(folder, None)
    return len(chosen), found


def main() -> int:
    """Tries the changes; status 1 if one is not noticed."""
    harness.LIMIT = peer_harness.LIMIT = gossip_harness.LIMIT = 15
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scheme", nargs="*", help=f"one of {', '.join(SCHEMES)}")
    parser.add_argument("--of", type=int, default=10**6, help="changes of a scheme")
    args = parser.parse_args()
    if unknown := sorted({*args.scheme} - {*SCHEMES}):
        parser.error(f"{unknown[0]} is not one of {', '.join(SCHEMES)}")
    left = 0
    for folder in args.scheme or SCHEMES:
        count, found = tried(folder, args.of)
        left += count - found
        print(f"{folder}: {found} of {count} noticed", flush=True)
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
