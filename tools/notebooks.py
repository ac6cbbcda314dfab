"""Run the notebooks of Basics-Tutorial again and store their outputs.

    python tools/notebooks.py              all of them
    python tools/notebooks.py Placement    those whose path contains the word

A notebook that fails leaves its file as it was. What a run adds besides the outputs
(times, widths, versions) is stripped, so that a diff shows what a reader would see.
"""

import argparse
import asyncio
import hashlib
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "Basics-Tutorial"
CELL_SECONDS = 300
# These three are one exercise in three kernels: they run at once.
TOGETHER = (
    "Multiple-Workers/4a-Local-then-Global-Variables-Worker0.ipynb",
    "Multiple-Workers/4c-Parameter-Server.ipynb",
    "Multiple-Workers/4b-Local-then-Global-Variables-Worker1.ipynb",
)
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def find(folder: Path = FOLDER) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    )


def groups(paths: list[Path]) -> list[list[Path]]:
    """The notebooks in the order of a run; what stands in one list runs at once."""
    together = [p for p in paths if p.as_posix().endswith(TOGETHER)]
    together.sort(key=lambda p: "Worker0" not in p.name)
    singles = [[p] for p in paths if p not in together]
    return singles + ([together] if together else [])


async def run_one(path: Path, seconds: int) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=seconds,
        startup_timeout=seconds,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    return await client.async_execute()


def run(paths: list[Path], seconds: int = CELL_SECONDS) -> list[nbformat.NotebookNode]:
    """Run the notebooks at once, a kernel each; raise the first one's failure."""

    # A notebook imports modules that lie beside it: no cache of them is left there.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    async def run_all() -> list:
        # Let all of them end before reporting: a kernel must not be left behind.
        runs = (run_one(path, seconds) for path in paths)
        return await asyncio.gather(*runs, return_exceptions=True)

    results = asyncio.run(run_all())
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def digest(notebook: nbformat.NotebookNode) -> str:
    """What the outputs depend on: the code, what it imports, the versions.

    TensorBoard, which is last in requirements.txt, changes none of them.
    """
    found = hashlib.sha256()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found.update(f"{cell.source}\n".encode())
    found.update((FOLDER / "beginning.py").read_bytes())
    if any("import cost" in cell.source for cell in notebook.cells):
        found.update((FOLDER / "cost.py").read_bytes())
    versions = (FOLDER.parent / "requirements.txt").read_text()
    found.update(versions.partition("# TensorBoard")[0].encode())
    return found.hexdigest()[:16]


def is_stream(output: nbformat.NotebookNode, last: nbformat.NotebookNode) -> bool:
    return (
        output.output_type == last.output_type == "stream" and output.name == last.name
    )


def strip(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Keep code, text and outputs; join what was printed in several messages."""
    made = {**METADATA, "made_from": digest(notebook)}
    notebook.metadata = nbformat.from_dict(made)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        joined: list = []
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            output.get("data", {}).pop(WIDGET, None)  # a number that no reader has
            if joined and is_stream(output, joined[-1]):
                joined[-1].text += output.text
            else:
                joined.append(output)
        if cell.cell_type == "code":
            cell.outputs = joined
    return notebook


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="parts of paths; default: all")
    args = parser.parse_args()
    failed = 0
    for group in groups(find()):
        names = [path.relative_to(FOLDER).as_posix() for path in group]
        if args.words and not any(w in name for w in args.words for name in names):
            continue
        start = time.monotonic()
        try:
            notebooks = run(group)
        except Exception as error:
            failed += 1
            print(f"FAILED  {', '.join(names)}\n{error}", file=sys.stderr)
            continue
        for path, notebook in zip(group, notebooks, strict=True):
            nbformat.write(strip(notebook), path)
        seconds = time.monotonic() - start
        print(f"{seconds:5.1f} s  {', '.join(names)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
