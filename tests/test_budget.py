"""Budgets: how many lines a reader meets. Docstrings and comments count.

Whoever adds lines takes others away in the same commit, or says why a budget grows.
"""

import ast
from pathlib import Path

import pytest
import registry
from tree import REPO

pytestmark = pytest.mark.quick
ORIGINALS = REPO / "originals"


def lines(*paths: Path) -> int:
    """Returns how many lines some files have together."""
    return sum(len(path.read_text().splitlines()) for path in paths)


@pytest.mark.parametrize(
    ("folder", "most"),
    [
        ("AGN", 2050),
        ("HogWild", 2050),
        ("Synchronous-SGD", 2250),
        ("Ring-All-Reduce", 2600),
    ],
)
def test_what_is_around_a_scheme(folder: str, most: int) -> None:
    """The modules of cluster/, and the launcher."""
    here = REPO / folder
    found = lines(*here.glob("cluster/*.py"), here / "launch.py")
    assert found <= most, f"{folder}: {found} lines, at most {most}"


def test_all_modules_and_launchers() -> None:
    """Those that folders share, and those that a folder has for itself."""
    shared = [*ORIGINALS.glob("cluster/*.py"), ORIGINALS / "launch.py"]
    names = {path.name for path in shared}
    own = [REPO.glob(f"*/{name}") for name in ("cluster/*.py", "launcher.py")]
    own = [path for paths in own for path in paths if path.name not in names]
    found = lines(*shared, *own)
    assert found <= 5700, f"{found} lines, of them {lines(*own)} in {own}"


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("originals/problem.py", 165),
        ("originals/datasets.py", 95),
        ("tools/copies.py", 400),
    ],
)
def test_one_file(path: str, most: int) -> None:
    assert lines(REPO / path) <= most


@pytest.mark.parametrize("folder", registry.folders("ps"))
def test_the_main_function_of_a_script(folder: str) -> None:
    """Its lines of code, without blank ones and comments."""
    text = (REPO / folder / registry.script_of(folder)).read_text()
    (main,) = [n for n in ast.parse(text).body if getattr(n, "name", "") == "main"]
    code = [
        line.strip() for line in text.splitlines()[main.lineno - 1 : main.end_lineno]
    ]
    found = sum(bool(line) and line[0] != "#" for line in code)
    assert found <= 30, f"{folder}: main has {found} lines of code, at most 30"
