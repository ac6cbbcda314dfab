"""Kinds of models, each a small program of tests/models: which train, and how far.

docs/problem.md has a table of them. Each test runs a real command, in a copy of a
folder whose problem.py is such a program.
"""

from __future__ import annotations

import functools
import pathlib
import shutil
import tempfile

import pytest
from launch import copy_of, if_thorough, result, run_sh, tried
from tree import REPO

MODELS = REPO / "tests" / "models"
ONE = "Non-Distributed-Setup"
# Those that do not fit, and what is said of them.
UNFIT = {
    "batch_norm": "problem.py: loss() makes or changes ",
    "rnn_state": "problem.py: loss() makes or changes ",
    "optimizer_in_loss": "NotImplementedError: ('Trying to update a Tensor ', ",
    "placeholder_in_loss": "You must feed a value for placeholder tensor 'scale'",
}
NO_MODELS = {"parts", *UNFIT}
FIT = sorted({path.stem for path in MODELS.glob("*.py")} - NO_MODELS)
# What a call of many rounds, another order or a while_loop would break first.
RISKY = [
    *((model, "HogWild") for model in ("cifar10", "gan", "gru", "reinforce")),
    ("queues", "Gossip-SGD"),  # whose rounds have a session of their own
    ("annealing", "Ring-All-Reduce"),  # whose workers cannot read the chief's step
]
# As many steps as bring all models about as far, with two workers.
SCHEMES = {
    "HogWild": ["--steps=300"],
    "Synchronous-SGD": ["--steps=300"],
    "DOWNPOUR": ["--steps=150"],
    "Ring-All-Reduce": ["--steps=300"],
    "DiLoCo": ["--steps=10", "--learning_rate=0.01"],
    "Local-SGD": ["--steps=50"],
    "Gossip-SGD": ["--steps=600"],  # half of them of each replica
    "Sharded-Data-Parallel": ["--steps=300", "--learning_rate=0.01"],
}
# At this learning rate the outer momentum of 0.9 makes the GAN diverge.
MORE = {("gan", "DiLoCo"): ["--momentum=0"]}


def copy_with(model: str, folder: str, where: pathlib.Path) -> pathlib.Path:
    """Returns a copy of a folder with a model in the place of its problem.py."""
    copy = copy_of(folder, where)
    shutil.copy(MODELS / f"{model}.py", copy / "problem.py")
    shutil.copy(MODELS / "parts.py", copy)
    (copy / "datasets.py").unlink()
    return copy


def trained(model: str, folder: str, *flags: str) -> float:
    """Returns the loss of the test after a run, in which nothing was said of it."""
    with tempfile.TemporaryDirectory() as where:
        copy, logdir = copy_with(model, folder, pathlib.Path(where)), f"{where}/logdir"
        with run_sh(copy, *flags, LOGDIR=logdir) as run:
            assert run.wait() == 0, run.output
        assert "problem.py" not in run.output
        return result(pathlib.Path(logdir))["test_loss"]


@functools.cache
def alone(model: str, steps: int) -> float:
    """Returns the loss of the test after some steps of one process."""
    return trained(model, ONE, f"--steps={steps}")


@pytest.mark.parametrize("model", FIT)
def test_it_is_taken(model: str, tmp_path: pathlib.Path) -> None:
    done = tried(copy_with(model, ONE, tmp_path))
    assert done.returncode == 0 and "problem.py is good" in done.stdout, done.stderr


@pytest.mark.parametrize("model", UNFIT)
def test_what_does_not_fit_is_said(model: str, tmp_path: pathlib.Path) -> None:
    done = tried(copy_with(model, ONE, tmp_path))
    assert done.returncode == 1 and UNFIT[model] in done.stderr, done.stderr


@pytest.mark.parametrize(("model", "folder"), RISKY)
def test_two_workers_train(model: str, folder: str) -> None:
    assert trained(model, folder, "--steps=100") < 0.9 * alone(model, 1)


@if_thorough
@pytest.mark.parametrize("folder", SCHEMES)
@pytest.mark.parametrize("model", FIT)
def test_it_trains_as_in_one_process(model: str, folder: str) -> None:
    begin, end = alone(model, 1), alone(model, 300)
    assert end < 0.9 * begin
    flags = [*SCHEMES[folder], *MORE.get((model, folder), [])]
    assert trained(model, folder, *flags) < begin - 0.6 * (begin - end)


def test_the_page_has_each_kind() -> None:
    page = (REPO / "docs" / "problem.md").read_text()
    for path in MODELS.glob("*.py"):
        assert f"](../tests/models/{path.name})" in page
