"""The programs of TensorFlow-2 on real processes: ParameterServerStrategy and the rest.

What each of the others computes is in test_devices.py and, beside the ring, in
test_peers.py.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import launch
import numpy as np
import pytest
import tree
from harness import tf
from launch import REPO, copy_of, result, run_sh, saved_step, wait_until

SCRIPT = "parameter_server_strategy.py"
FOLDER = "TensorFlow-2"
OTHERS = ["multi_worker_mirrored.py", "mirrored.py", "towers.py"]
PAGE = REPO / "docs" / "tensorflow-2.md"
LATE = 3  # updates that were made again, at most, when a worker was killed
# A worker that is killed is back before the other one has made them.
STEPS = launch.thorough(1500, 4000)


class ByHand(launch.ByHand):
    """The tasks of one run of this script, each started by hand."""

    def start(self, job: str, index: int, *flags: str, **env: str) -> launch.Launch:
        if "TF_CONFIG" not in env:
            flags = ("--job_name", job, "--task_index", str(index), *flags)
            flags += ("--ps_hosts", ",".join(self.ps))
            flags += ("--worker_hosts", ",".join(self.workers))
        command = [sys.executable, str(self.copy / SCRIPT), *self.flags, *flags]
        self.started.append(launch.Launch(command, self.copy, **env))
        return self.started[-1]


def trained(steps: int) -> float:
    """Returns the test loss after these steps of plain SGD on `problem.batches`."""
    import problem

    data = problem.load("digits")
    with tf.Graph().as_default(), tf.Session() as session:
        learning = problem.build(data, 32, 0)
        w = tf.get_variable("w", initializer=learning.start)
        gradient = tf.gradients(learning.loss(w, learning.batch()), w)[0]
        step = w.assign_sub(0.1 * gradient)
        test = learning.test(w.read_value())
        session.run(tf.global_variables_initializer())
        session.run(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS))
        for _ in range(steps):
            session.run(step)
        return float(session.run(test)[0])


def test_a_run_and_its_end(tmp_path) -> None:
    """On 2 ps, steps not a multiple of those in a call; then nothing is to be done."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "a logdir"
    before = launch.tree(copy)
    command = ["--steps", "407", "--steps_per_call", "10"]
    env = dict(LOGDIR=str(logdir), NUM_PS="2")
    with run_sh(copy, *command, **env) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "Traceback" not in run.output
    assert "center/part_1 " in run.output and "/job:ps/replica:0/task:1" in run.output
    done = result(logdir)
    assert (done["global_steps"], done["ps"], done["workers"]) == (407, 2, 2)
    assert done["bytes_pushed"] == done["bytes_pulled"] == 407 * 4 * 4810
    assert done["examples"] == 407 * 32 and done["test_accuracy"] > 0.9
    assert sum(done["rounds_per_worker"].values()) == 407
    assert min(done["rounds_per_worker"].values()) > 0
    assert 0 <= done["mean_staleness"] <= done["max_staleness"] < 407
    with run_sh(copy, *command, **env) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert f"nothing to do: {logdir} is at global step 407" in run.output
    assert result(logdir) == done and launch.tree(copy) == before


def test_one_worker_makes_the_steps_of_plain_sgd(tmp_path) -> None:
    """By hand, by TF_CONFIG; the result has what hogwild.py's has, but for a loss."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    with ByHand(copy, "--steps=45", "--logdir", str(logdir), workers=1) as hand:
        cluster = {"ps": hand.ps, "chief": hand.workers}
        for job in ("ps", "chief"):
            task = {"type": job, "index": 0}
            config = json.dumps({"cluster": cluster, "task": task})
            hand.start(job, 0, TF_CONFIG=config)
        for task in hand.started:
            assert task.wait() == 0, task.output
    done = result(logdir)
    np.testing.assert_allclose(done["test_loss"], trained(45), rtol=1e-4)
    assert (done["mean_staleness"], done["max_staleness"]) == (0, 0)
    hogwild = copy_of("HogWild", tmp_path)
    with run_sh(hogwild, "--steps=20", LOGDIR=str(tmp_path / "hogwild")) as run:
        assert run.wait() == 0, run.output
    assert {*result(tmp_path / "hogwild")} - {*done} == {"loss_per_worker"}


def test_a_worker_that_is_killed_comes_back(tmp_path) -> None:
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    env = dict(LOGDIR=str(logdir), MAX_RESTARTS="1")
    with run_sh(copy, f"--steps={STEPS}", "--batch_size=64", **env) as run:
        run.wait_for("[worker 0] step ")
        run.task("worker", 1).kill()
        run.wait_for("worker 1 ended with status 137; restart 1 of 1")
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "Traceback" not in run.output
    done = result(logdir)
    assert STEPS <= done["global_steps"] <= STEPS + LATE
    assert done["resumed_from"] == 0  # the coordinator has not lost anything
    assert min(done["rounds_per_worker"].values()) > 100, done


def test_the_others_go_on_without_a_worker(tmp_path) -> None:
    """By hand a killed worker does not come back; the rest ends, and by itself."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    with ByHand(copy, f"--steps={STEPS}", "--logdir", str(logdir)) as hand:
        ps, chief, other = hand.start_all()
        chief.wait_for("step ")
        other.process.kill()
        assert chief.wait() == 0, chief.output
        assert ps.wait(15) == 0, ps.output
    assert STEPS <= result(logdir)["global_steps"] <= STEPS + LATE


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("ps", "lost a ps: another start goes on from the last checkpoint"),
        pytest.param("worker", "", marks=launch.if_thorough),
    ],
)
def test_a_ps_or_the_coordinator_is_killed(job: str, said: str, tmp_path) -> None:
    """The run goes on from the last checkpoint; afterwards on another number of ps."""
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    flags = ["--save_seconds=0.5", "--batch_size=64"]
    # On a busy machine the ps that is back was lost once more: another start.
    env = dict(LOGDIR=str(logdir), MAX_RESTARTS="3")
    with run_sh(copy, *flags, f"--steps={STEPS}", **env) as run:
        wait_until(lambda: saved_step(logdir) > 0, 90, run)
        run.task(job, 0).kill()
        run.wait_for(f"{job} 0 ended with status 137; restart 1 of 3")
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert said in run.output
    resumed = int(re.findall(r"resumes from global step (\d+)", run.output)[-1])
    done = result(logdir)
    assert 0 < resumed == done["resumed_from"] < STEPS <= done["global_steps"]
    with run_sh(
        copy, *flags, f"--steps={STEPS + 100}", **{**env, "NUM_PS": "2"}
    ) as run:
        assert run.wait() == 0, run.output
    assert result(logdir)["resumed_from"] == done["global_steps"]
    assert result(logdir)["global_steps"] == STEPS + 100
    assert sum(result(logdir)["rounds_per_worker"].values()) == STEPS + 100


@pytest.mark.starts
def test_told_to_end_it_saves_and_leaves_no_file_elsewhere(tmp_path) -> None:
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "logdir"
    elsewhere = tmp_path / "tmp"  # there AutoGraph writes the code that it generates
    elsewhere.mkdir()
    env = dict(LOGDIR=str(logdir), TMPDIR=str(elsewhere))
    with run_sh(copy, "--steps=1000000", **env) as run:
        run.wait_for("[worker 0] step ")
        began = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(20) == 143, run.output
        assert time.monotonic() - began < 10
        run.nothing_left()
    assert not any(elsewhere.iterdir())
    saved = int(run.wait_for("told to end: saved").split()[-1])
    assert saved > 0 and (logdir / f"model.ckpt-{saved}.index").exists()


def test_training_that_diverges_says_so(tmp_path) -> None:
    copy = copy_of(FOLDER, tmp_path)
    with run_sh(copy, "--learning_rate=1e30") as run:
        assert run.wait() == 1, run.output
        run.nothing_left()
    assert "training diverged" in run.output and "Traceback" not in run.output


def test_a_ps_that_is_stopped_ends_the_run(tmp_path) -> None:
    """Of that no connection tells, and TensorFlow's own calls wait for ever."""
    copy = copy_of(FOLDER, tmp_path)
    with run_sh(copy, "--steps=1000000", "--patience=5") as run:
        run.wait_for("[worker 0] step ")
        run.task("ps", 0).suspend()
        assert run.wait(40) == 138, run.output
        run.nothing_left()
    assert " s from ps 0: " in run.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slow_workers=0,1"], "unrecognized arguments: --slow_workers=0,1"),
        (["--steps_per_call=0"], "is not a whole number of at least 1"),
        ([SCRIPT, "--steps_per_call=0"], "is not a whole number of at least 1"),
        (["towrs.py"], "unrecognized arguments: towrs.py"),
        (["towers.py", "--devices=0"], "is not a whole number of at least 1"),
    ],
)
def test_wrong_use_is_one_sentence(words, said, tmp_path) -> None:
    with run_sh(copy_of(FOLDER, tmp_path), *words) as run:
        assert run.wait(60) == 2, run.output
    lines = [x for x in run.lines if "checks the flags" not in x]
    assert len(lines) == 1 and said in lines[0], run.output


def test_a_checkpoint_of_the_other_script_is_refused(tmp_path) -> None:
    logdir = tmp_path / "logdir"
    for folder, status in (("HogWild", 0), (FOLDER, 1)):
        env = dict(LOGDIR=str(logdir), NUM_WORKERS="1")
        with run_sh(copy_of(folder, tmp_path), "--steps=30", **env) as run:
            assert run.wait() == status, run.output
    assert f"cannot resume from {logdir}/model.ckpt-30: " in run.output
    assert "Traceback" not in run.output


@pytest.mark.parametrize("script", OTHERS)
def test_run_sh_starts_the_others(script: str, tmp_path) -> None:
    copy = copy_of(FOLDER, tmp_path)
    with run_sh(copy, script, "--steps=30") as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    for k in range(2 if script.startswith("multi") else 1):
        assert f"[worker {k}] step 30/30 " in run.output, run.output


@pytest.mark.quick
@pytest.mark.parametrize(
    ("script", "tasks"), [(SCRIPT, 3), *zip(OTHERS, (2, 1, 1), strict=True)]
)
def test_run_sh_starts_the_program_that_is_named(script: str, tasks: int) -> None:
    """Also by `sh run.sh`, where that is another shell, and with options behind it."""
    command = ["sh", str(REPO / FOLDER / "run.sh"), script, "--seed=1"]
    env = launch.environment(DRY_RUN="1")
    said = subprocess.check_output(command, env=env, text=True).splitlines()
    assert len(said) == tasks
    assert all(f"/{script} " in line and " --seed=1" in line for line in said)


# --- Keras -----------------------------------------------------------------------

KERAS = """
import os, socket, sys
import numpy as np, tensorflow as tf, keras
def port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]
hosts = {"ps": [f"localhost:{port()}"], "worker": [f"localhost:{port()}"]}
spec = tf.train.ClusterSpec(hosts)
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
servers = [
    tf.distribute.Server(spec, job_name=job, task_index=0, config=config)
    for job in hosts
]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
x, y = np.ones([32, 4], np.float32), np.zeros([32], np.int32)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
try:
    if sys.argv[1] == "fit":
        model.compile(optimizer, cross_entropy)
        model.fit(x, y, verbose=0)
    else:
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        def batches():
            return tf.data.Dataset.from_tensors((x, y)).repeat()
        iterator = iter(coordinator.create_per_worker_dataset(batches))
        def one(images, labels):
            with tf.GradientTape() as tape:
                loss = cross_entropy(labels, model(images))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss
        @tf.function
        def step(iterator):
            if sys.argv[1] == "run":
                return strategy.run(one, args=next(iterator))
            return one(*next(iterator))
        values = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
        coordinator.join()
        first, last = values[0].fetch(), values[-1].fetch()
        print("learns" if last < first else "does not learn")
except Exception as error:
    name, last = type(error).__name__, str(error).strip().splitlines()[-1].strip()
    print(last if last.startswith(name) else f"{name}: {last}")
sys.stdout.flush()
os._exit(0)
"""


@launch.if_thorough
@pytest.mark.parametrize("way", ["fit", "run", "without run"])
def test_what_keras_can_do_there(way: str, tmp_path) -> None:
    """What the page says of Keras, word for word."""
    command = [sys.executable, "-c", KERAS, way]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    env = launch.environment(**quiet)
    done = tree.run(*command, env=env, cwd=tmp_path, timeout=800)
    last = done.stdout.splitlines()[-1]
    if way == "run":
        assert last == "learns"
    else:
        assert re.sub(r"\s+", " ", last) in re.sub(r"\s+", " ", PAGE.read_text())
