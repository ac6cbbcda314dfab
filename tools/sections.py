"""How a script is divided: by lines of dashes, each of which begins a section.

A section whose line says `[algorithm]` is the scheme's own, and so is what stands above
the first one: a docstring, or the variables of a run.sh. Nothing here needs to be
installed.
"""

import functools
import re
from pathlib import Path
from typing import NamedTuple

BANNER = re.compile(r"# --- (\S.*?) (\[algorithm\] )?-{3,}\n")


class Part(NamedTuple):
    """A piece of a file: its title, whether it is the scheme's own, and its place."""

    title: str
    own: bool
    line: int
    text: str


def read(path: Path) -> str:
    """Returns a file's exact text, or nothing if there is no such file."""
    return path.read_bytes().decode(errors="replace") if path.is_file() else ""


@functools.cache
def split(text: str) -> list[Part]:
    """Divides a text into its parts; the first one is what precedes all sections."""
    parts = [Part("", True, 1, "")]
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if banner := BANNER.fullmatch(line):
            parts.append(Part(banner[1], bool(banner[2]), number, line))
        else:
            parts[-1] = parts[-1]._replace(text=parts[-1].text + line)
    return parts
