"""Several devices of one machine: logical CPU devices, which stand in for GPUs."""

from __future__ import annotations

import argparse
import importlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
from harness import STREAMS, Run, tf
from launch import REPO, copy_of, load, run_sh

pytestmark = pytest.mark.timeout(120)

FOLDER = "Multiple-GPUs-Single-Machine"
ONE_PROCESS = REPO / "TensorFlow-2"  # towers.py, mirrored.py


def batches():
    """Returns the mini-batches of problem Q as a function of the tower."""
    data = [tf.data.Dataset.from_tensor_slices(np.float32(s)) for s in STREAMS]
    made = [tf.data.make_one_shot_iterator(d.repeat()) for d in data]
    return lambda k: made[k].get_next()


def loss(w, c):
    return 0.5 * (w - c) ** 2


def placed(session, fetch) -> dict[str, set[str]]:
    """Returns the kinds of operations that ran on each device."""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    session.run(fetch, options=options, run_metadata=metadata)
    found: dict[str, set[str]] = {}
    for graph in metadata.partition_graphs:
        for node in graph.node:
            name = node.device.replace("/replica:0", "").replace("/device:", "/")
            found.setdefault(name.lower(), set()).add(node.op)
    return found


def test_the_gradient_is_computed_on_the_device_and_w_stays_on_the_ps():
    """With a second CPU device for the GPU: what `state` returns is where it goes."""
    module = load(FOLDER)
    module.state = lambda args, center, stats: "cpu:1"

    def norm(index, usual):
        return lambda w, c: tf.norm(w - c)

    with Run(FOLDER, module=module, start=[0.0, 0.0], loss=norm, rounds=2) as run:
        where: dict[str, set[str]] = {}
        for node in itertools.chain(*run.chief.partitions(2)):
            where.setdefault(node.device.replace("/replica:0", ""), set()).add(node.op)
    computes = where["/job:worker/task:0/device:CPU:1"]
    assert "Sub" in computes and "Sqrt" in computes
    assert "Sqrt" not in where["/job:worker/task:0/device:CPU:0"]
    assert "AssignSubVariableOp" in where["/job:ps/task:0/device:CPU:0"]
    assert not any("VariableOp" in op or "Iterator" in op for op in computes)


def test_a_worker_without_a_gpu_says_so_in_one_sentence(capsys):
    args = argparse.Namespace(device="gpu:0", task_index=1)
    assert load(FOLDER).state(args, None, None) == "cpu:0"
    assert capsys.readouterr().out == "no GPU for worker 1: it computes on the CPU\n"


def test_a_worker_with_a_gpu_takes_it_and_one_that_was_told_not_to_does_not(
    capsys, monkeypatch
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    for device in ("gpu:0", "cpu:0"):
        args = argparse.Namespace(device=device, task_index=0)
        assert load(FOLDER).state(args, None, None) == device
    assert not capsys.readouterr().out


@pytest.mark.parametrize("form", ["towers", "mirrored"])
def test_one_process_makes_the_steps_of_synchronous_sgd(form, monkeypatch):
    monkeypatch.syspath_prepend(str(ONE_PROCESS))
    towers, module = importlib.import_module("towers"), importlib.import_module(form)
    args = argparse.Namespace(learning_rate=0.1)
    names = ["cpu:0", "cpu:1"]
    with tf.Graph().as_default() as graph:
        if form == "towers":
            with tf.device("cpu:0"):
                center = tf.get_variable("center", initializer=0.0)
            _, train = module.graph(args, names, center, batches(), loss)
        else:
            strategy = tf.distribute.MirroredStrategy(
                names, tf.distribute.ReductionToOneDevice()
            )
            train, center = module.graph(
                args, strategy, lambda: tf.zeros([]), batches(), loss
            )
        read, first = center.read_value(), tf.global_variables_initializer()
    with tf.Session(graph=graph, config=towers.session_config(names)) as session:
        session.run(first)
        found = []
        for _ in range(4):
            session.run(train)
            found.append(float(session.run(read)))
        where = placed(session, train)
    expected = [0.3, 0.77, 0.993, 1.3937]  # Synchronous-SGD's, by hand
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for k in (0, 1):
        device = f"/job:localhost/task:0/cpu:{k}"
        assert where[device] & {"Sub", "Pow", "Mul"}


def test_too_few_gpus_for_the_towers_is_one_sentence(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ONE_PROCESS))
    towers = importlib.import_module("towers")
    assert towers.devices(3) == ["cpu:0", "cpu:1", "cpu:2"]
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 3)
    assert towers.devices(3) == ["gpu:0", "gpu:1", "gpu:2"]
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("visible", "gets"),
    [
        ("", ["", "", "0", "1", "2", "3"]),
        ("4,7", ["", "", "4", "7", "", ""]),
        ("-1", ["", "", "-1", "", "", ""]),
    ],
)
def test_run_sh_gives_each_worker_a_gpu_and_the_ps_none(visible, gets, tmp_path):
    copy = copy_of(FOLDER, tmp_path)
    script = "import os\n\nprint(f\"gpu <{os.environ['CUDA_VISIBLE_DEVICES']}>\")\n"
    (copy / "multiple_gpus_single_machine.py").write_text(script)
    known = dict(NUM_PS="2", NUM_WORKERS="4", CUDA_VISIBLE_DEVICES=visible)
    with run_sh(copy, LOGDIR=str(tmp_path / "logdir"), **known) as run:
        assert run.wait(40) == 0, run.output
    tasks = [f"ps {k}" for k in range(2)] + [f"worker {k}" for k in range(4)]
    said = [f"[{task}] gpu <{gpu}>" for task, gpu in zip(tasks, gets, strict=True)]
    assert sorted(x for x in run.lines if x.startswith("[")) == said


@pytest.mark.parametrize("form", ["towers", "mirrored"])
def test_one_process_learns_the_digits(form, tmp_path):
    script = str(ONE_PROCESS / f"{form}.py")
    words = [sys.executable, script, "--steps", "600", "--devices", "3"]
    done = subprocess.run(
        [*words, "--logdir", str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("test accuracy ")[1].split()[0]) >= 0.94
    assert not done.stderr
