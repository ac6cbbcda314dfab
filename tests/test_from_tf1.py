"""docs/from-tf1.md: a script of TensorFlow 1 runs again, and its model moves here."""

from __future__ import annotations

import pathlib
import re
import shutil
import sys

import launch
import pytest
from launch import REPO, Launch, copy_of, free_ports, result, run_sh

PAGE = (REPO / "docs" / "from-tf1.md").read_text()
(DIFF,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.S | re.M)
(MODEL,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


def moved(folder: pathlib.Path) -> str:
    """Writes the script with the page's change into a folder; returns its path."""
    text = (REPO / "tests" / "replica.py").read_text()
    old, new = (
        "".join(line[1:] + "\n" for line in DIFF.splitlines() if line[0] == sign)
        for sign in "-+"
    )
    assert text.count(old) == 1
    (folder / "replica.py").write_text(text.replace(old, new))
    shutil.copy(REPO / "tests" / "input_data.py", folder)
    return str(folder / "replica.py")


@launch.if_thorough
@pytest.mark.parametrize("flags", [[], ["--sync_replicas"]])
def test_the_script_runs_again(flags: list[str], tmp_path: pathlib.Path) -> None:
    """Both workers end; the ps waits for ever, as the page says."""
    script, base = moved(tmp_path), free_ports(3)
    hosts = [f"localhost:{base + i}" for i in range(3)]
    flags = [f"--ps_hosts={hosts[0]}", f"--worker_hosts={','.join(hosts[1:])}", *flags]

    def start(job: str, index: int) -> Launch:
        who = [f"--job_name={job}", f"--task_index={index}"]
        return Launch([sys.executable, script, *who, *flags], tmp_path)

    with start("ps", 0) as ps, start("worker", 1) as other, start("worker", 0) as chief:
        assert chief.wait() == 0, chief.output
        assert float(chief.lines[-1].rpartition(" ")[2]) > 0.8, chief.output
        assert other.wait() == 0, other.output
        assert ps.process.poll() is None


@launch.if_thorough
def test_what_is_wrong_without_the_last_line(tmp_path: pathlib.Path) -> None:
    script = pathlib.Path(moved(tmp_path))
    text = script.read_text()
    script.write_text(text.replace("tf.disable_eager_execution()\n", ""))
    base = free_ports(3)
    hosts = [f"--ps_hosts=localhost:{base}", f"--worker_hosts=localhost:{base + 1}"]
    who = ["--job_name=worker", "--task_index=0"]
    with Launch([sys.executable, str(script), *who, *hosts], tmp_path) as run:
        assert run.wait() == 1
    said = "tf.device does not support functions when eager execution is enabled"
    assert said in run.lines[-1] and said in " ".join(PAGE.split())


@pytest.mark.parametrize(
    "folder", launch.some(["HogWild"], ["HogWild", "Synchronous-SGD", "DOWNPOUR"])
)
def test_its_model_moves(folder: str, tmp_path: pathlib.Path) -> None:
    """About 15 lines, and the page's command."""
    assert len([line for line in MODEL.splitlines() if line.strip()]) <= 15
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    with (copy / "problem.py").open("a") as file:
        file.write(MODEL)
    (flags,) = re.findall(r"`bash run\.sh (.*?)`", PAGE)
    with run_sh(copy, *flags.split(), LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    assert result(logdir)["test_accuracy"] > 0.85
