"""The repository's own files, for the tests that need no TensorFlow."""

import os
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
LEFT_BEHIND = {"logdir", "__pycache__", "node_modules", ".venv"}


def files(*suffixes: str) -> list[Path]:
    """Returns the repository's own files with these suffixes."""
    found = []
    for folder, folders, names in os.walk(REPO):
        folders[:] = [
            d for d in folders if d not in LEFT_BEHIND and (d[0] != "." or d == ".ci")
        ]
        found += [Path(folder, name) for name in names if name.endswith(suffixes)]
    return sorted(found)


def short(path: Path) -> str:
    """Returns a path as a test's name shows it."""
    return str(path.relative_to(REPO))


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, at the root of the repository."""
    options = {"cwd": REPO, "timeout": 120, "text": True, **options}
    return subprocess.run([*map(str, command)], capture_output=True, **options)


def edit(path: Path, old: str, new: str) -> None:
    """Replaces the first occurrence of a text that is there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
