"""Multiple-GPUs-Single-Machine on logical CPU devices, which stand in for GPUs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import rules_sync as rules
from launch import REPO, center_variable, free_ports, load

pytestmark = pytest.mark.timeout(120)

FOLDER = "Multiple-GPUs-Single-Machine"
STREAMS = [[1.0, 3.0], [5.0, 7.0]]


@pytest.fixture(scope="module")
def tf():
    """TensorFlow as the examples see it."""
    load(FOLDER)
    from cluster import tf

    return tf


def batches(tf):
    """Returns the mini-batches of problem Q as a function of the tower."""
    data = [tf.data.Dataset.from_tensor_slices(np.float32(s)) for s in STREAMS]
    made = [tf.data.make_one_shot_iterator(d.repeat()) for d in data]
    return lambda k: made[k].get_next()


def loss(w, c):
    return 0.5 * (w - c) ** 2


def placed(tf, session, fetch) -> dict[str, set[str]]:
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


def test_the_gradient_is_computed_on_the_device_and_w_stays_on_the_ps(tf):
    module = load(FOLDER)
    config = tf.ConfigProto(device_count={"CPU": 2})
    base = free_ports(2)
    hosts = [f"localhost:{base}", f"localhost:{base + 1}"]
    spec = tf.train.ClusterSpec({"ps": hosts[:1], "worker": hosts[1:]})
    servers = [tf.train.Server(spec, job, 0, config=config) for job in ("ps", "worker")]
    setter = tf.train.replica_device_setter(
        cluster=spec, worker_device="/job:worker/task:0"
    )
    args = SimpleNamespace(
        device="cpu:1", task_index=0, steps=10, learning_rate=0.1, worker_hosts=[""]
    )
    with tf.Graph().as_default() as graph, tf.device(setter):
        center = center_variable(tf, tf.zeros([2]), 1)
        step = tf.train.get_or_create_global_step()
        batch = batches(tf)
        train, _ = module.graph(
            args, center, step, lambda: batch(0), lambda w, c: tf.norm(w - c)
        )
        first = tf.global_variables_initializer()
    with tf.Session(servers[1].target, graph) as session:
        session.run(first)
        found = placed(tf, session, train)
    computes = found["/job:worker/task:0/cpu:1"]
    assert "Sub" in computes and "Sqrt" in computes
    assert "Sqrt" not in found["/job:worker/task:0/cpu:0"]
    assert "AssignSubVariableOp" in found["/job:ps/task:0/cpu:0"]
    assert not any("VariableOp" in op for op in computes)


def test_a_worker_without_a_gpu_says_so_in_one_sentence(tf, capsys):
    module = load(FOLDER)
    args = SimpleNamespace(device="gpu:0", task_index=1, steps=10, learning_rate=0.1)
    with tf.Graph().as_default(), tf.device("cpu:0"):
        center = center_variable(tf, tf.zeros([2]), 1)
        step = tf.train.get_or_create_global_step()
        batch = batches(tf)
        module.graph(args, center, step, lambda: batch(0), lambda w, c: tf.norm(w - c))
    assert capsys.readouterr().out == ("no GPU for worker 1: it computes on the CPU\n")


@pytest.mark.parametrize("form", ["towers", "mirrored"])
def test_one_process_makes_the_steps_of_synchronous_sgd(tf, form, monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / FOLDER))
    towers, module = importlib.import_module("towers"), importlib.import_module(form)
    args = SimpleNamespace(learning_rate=0.1)
    names = ["cpu:0", "cpu:1"]
    with tf.Graph().as_default() as graph:
        if form == "towers":
            with tf.device("cpu:0"):
                center = tf.get_variable("center", initializer=0.0)
            _, train = module.graph(args, names, center, batches(tf), loss)
        else:
            strategy = tf.distribute.MirroredStrategy(
                names, tf.distribute.ReductionToOneDevice()
            )
            train, center = module.graph(
                args, strategy, lambda: tf.zeros([]), batches(tf), loss
            )
        read, first = center.read_value(), tf.global_variables_initializer()
    with tf.Session(graph=graph, config=towers.session_config(names)) as session:
        session.run(first)
        found = []
        for _ in range(4):
            session.run(train)
            found.append(float(session.run(read)))
        where = placed(tf, session, train)
    np.testing.assert_allclose(found, rules.synchronous_sgd(STREAMS, 4, 0.1), atol=1e-6)
    for k in (0, 1):
        device = f"/job:localhost/task:0/cpu:{k}"
        assert where[device] & {"Sub", "Pow", "Mul"}


def test_too_few_gpus_for_the_towers_is_one_sentence(tf, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / FOLDER))
    towers = importlib.import_module("towers")
    assert towers.devices(3) == ["cpu:0", "cpu:1", "cpu:2"]
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 3)
    assert towers.devices(3) == ["gpu:0", "gpu:1", "gpu:2"]
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("visible", "job", "index", "gets"),
    [
        ("", "ps", 0, ""),
        ("", "worker", 0, "0"),
        ("", "worker", 3, "3"),
        ("4,7", "worker", 0, "4"),
        ("4,7", "worker", 1, "7"),
        ("4,7", "worker", 2, ""),
        ("4,7", "ps", 1, ""),
        ("-1", "worker", 0, "-1"),
    ],
)
def test_run_sh_gives_each_worker_a_gpu_and_the_ps_none(visible, job, index, gets):
    text = (REPO / FOLDER / "run.sh").read_text()
    assert text.count("task_env") == 3  # the function, and the tail that calls it
    head = text.partition("# --- identical")[0]
    done = subprocess.run(
        ["bash", "-euc", f'{head}task_env {job} {index}; echo "$CUDA_VISIBLE_DEVICES"'],
        env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == gets + "\n"


@pytest.mark.parametrize("form", ["towers", "mirrored"])
def test_one_process_learns_the_digits(form, tmp_path):
    script = str(REPO / FOLDER / f"{form}.py")
    words = [sys.executable, script, "--steps", "600", "--devices", "3"]
    done = subprocess.run(
        [*words, "--logdir", str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("test accuracy ")[1].split()[0]) >= 0.94
    assert not done.stderr
