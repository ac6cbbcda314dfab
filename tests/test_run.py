"""Every example on real processes, in a copy outside the repository."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time

import launch
import pytest
from launch import DISTRIBUTED, EXAMPLES, LINE, copy_of, result, run_sh, run_task

WITHIN = 5  # seconds from the cause to the end, by the contract


@pytest.mark.parametrize("folder", EXAMPLES)
def test_killed_resumed_and_nothing_to_do(folder, tmp_path):
    """A ps is killed on the way, the rest is made on 2 ps, then nothing is left to do.

    Without a ps it is the one process that is killed.
    """
    copy = copy_of(folder, tmp_path)
    logdir = tmp_path / "a logdir"
    before = launch.tree(copy)
    distributed = folder in DISTRIBUTED
    args = defaults_of(folder)
    steps = min(1000, args.steps)
    command = ["--steps", str(steps), "--logdir", str(logdir)]
    window = getattr(args, "window", 1)
    slow = ["--slow_workers", str(0.01 / window)] if distributed else []
    num = {"NUM_PS": "1"} if distributed else {}
    with run_sh(copy, *command, *slow, **num) as run:
        wait_until(lambda: saved_step(logdir) > 0, 90)
        cause = time.monotonic()
        run.task("ps", 0).kill()
        assert run.wait(30) == 137, run.output
        assert time.monotonic() - cause < WITHIN
        run.nothing_left()
    job = "ps" if distributed else "worker"
    assert f"run.sh: {job} 0 ended with status 137; see {job}-0.log" in run.lines[-1]
    assert not (logdir / "result.json").exists()

    num = {"NUM_PS": "2"} if distributed else {}
    ports = launch.free_ports(4)
    with run_sh(copy, *command, BASE_PORT=str(ports), **num) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert all(launch.is_free(port) for port in range(ports, ports + 4))
    strange = [line for line in run.lines if not LINE.fullmatch(line)]
    assert not strange, run.output
    resumed = int(run.wait_for("resumes from global step").split()[-1])
    assert 0 < resumed < steps
    if distributed:
        assert run.output.count("center/part_0 ") == 1
        assert "center/part_1" in run.output
    second = result(logdir)
    assert second["scheme"] == folder
    assert second["global_steps"] == steps
    assert second["ps"] == (2 if distributed else 0)
    # Every worker takes part; the examples are those of this run's rounds.
    rounds = list(second["rounds_per_worker"].values())
    assert min(rounds) * 4 >= (steps - resumed) / max(1, len(rounds) - 1) / 2, second
    assert second["examples"] == sum(rounds) * args.batch_size * window
    if hasattr(args, "replicas_to_aggregate"):
        assert sum(rounds) == len(rounds) * (steps - resumed), second
    assert second["seconds"] > 0 and second["steps_per_second"] > 0
    assert second["mean_staleness"] <= second["max_staleness"]
    assert (second["bytes_pushed"] > 0) == distributed
    assert second["test_accuracy"] >= 0.95, second
    assert f"test accuracy {second['test_accuracy']:.4f} after" in run.lines[-1]
    for log in logdir.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name

    weights = checkpoint(logdir)
    with run_sh(copy, *command, NUM_WORKERS="1") as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "nothing to do" in run.output
    assert result(logdir) == second
    assert checkpoint(logdir) == weights
    assert launch.tree(copy) == before
    assert not [path for path in logdir.iterdir() if path.name.startswith(".")]


def test_the_run_of_the_readme(tmp_path):
    """HogWild as it comes: 0.95 at least, and both workers do a quarter or more."""
    copy = copy_of("HogWild", tmp_path)
    with run_sh(copy, LOGDIR=str(tmp_path / "logdir")) as run:
        assert run.wait() == 0, run.output
    done = result(tmp_path / "logdir")
    assert done["global_steps"] == 4000 and done["test_accuracy"] >= 0.95
    assert min(done["rounds_per_worker"].values()) >= 1000


@pytest.mark.parametrize("folder", DISTRIBUTED)
def test_a_worker_that_dies_ends_the_run(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    with run_sh(copy, "--steps", "10000000") as run:
        run.wait_for("  loss ")
        cause = time.monotonic()
        run.task("worker", 0).kill()
        assert run.wait(30) == 137, run.output
        assert time.monotonic() - cause < WITHIN
        run.nothing_left()
    assert "run.sh: worker 0 ended with status 137; see " in run.lines[-1]


@pytest.mark.parametrize("folder", EXAMPLES)
def test_ctrl_c_in_a_terminal(folder, tmp_path):
    """The whole terminal: the signal comes from the line discipline, echo stays on."""
    copy = copy_of(folder, tmp_path)
    primary, secondary = pty.openpty()
    before = subprocess.run(
        ["stty", "-g"], stdin=secondary, capture_output=True, text=True, check=True
    )
    process = subprocess.Popen(
        ["bash", str(copy / "run.sh"), "--steps", "10000000"],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env=launch.environment(),
        preexec_fn=take_terminal,
    )
    text = []
    done = threading.Event()

    def read():
        while not done.is_set():
            try:
                text.append(os.read(primary, 4096).decode(errors="replace"))
            except OSError:
                return

    threading.Thread(target=read, daemon=True).start()
    try:
        wait_until(lambda: "  loss " in "".join(text), 90)
        cause = time.monotonic()
        os.write(primary, b"\x03")
        assert process.wait(30) == 130, "".join(text)
        assert time.monotonic() - cause < WITHIN
    finally:
        process.kill()
        process.wait()
        done.set()
    after = subprocess.run(
        ["stty", "-g"], stdin=secondary, capture_output=True, text=True, check=True
    )
    assert after.stdout == before.stdout
    assert "Traceback" not in "".join(text)
    assert not tasks_of(copy)
    os.close(secondary)
    os.close(primary)


@pytest.mark.parametrize("folder", EXAMPLES)
def test_signals_and_the_time_limit_while_it_starts(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with run_sh(copy, "--steps", "10000000") as run:
            run.wait_for("logdir")
            cause = time.monotonic()
            run.process.send_signal(number)
            assert run.wait(30) == status, run.output
            assert time.monotonic() - cause < WITHIN
            run.nothing_left()
    started = time.monotonic()
    with run_sh(copy, "--steps", "10000000", TIMEOUT="1") as run:
        assert run.wait(30) == 124, run.output
        assert time.monotonic() - started < 1 + WITHIN
        run.nothing_left()
    assert run.lines[-1] == "run.sh: no end after TIMEOUT=1 s"


def test_a_signal_between_two_tasks(tmp_path):
    """Whatever has been started by then is ended, also a task not yet noted."""
    copy = copy_of("HogWild", tmp_path)
    for milliseconds in (0, 0, 1, 2, 3, 5, 8, 13, 21, 34):
        with run_sh(copy, "--steps", "10000000") as run:
            run.wait_for("logdir")
            time.sleep(milliseconds / 1000)
            run.process.send_signal(signal.SIGTERM)
            assert run.wait(30) == 143, run.output
            assert not run.tasks()


@pytest.mark.parametrize("folder", EXAMPLES)
def test_training_that_diverges_says_so(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    with run_sh(copy, "--learning_rate", "1e30", "--steps", "1000") as run:
        assert run.wait() == 1, run.output
        run.nothing_left()
    assert "training diverged" in run.output
    assert "Traceback" not in run.output
    assert not list(copy.glob("logdir/*/result.json"))


@pytest.mark.parametrize("config", ["flags", "TF_CONFIG", "TF_CONFIG with a chief"])
def test_three_shells_in_three_directories(config, tmp_path):
    """The commands of "from localhost to N machines", typed by hand."""
    copies = [copy_of("HogWild", tmp_path / str(i)) for i in range(3)]
    base = launch.free_ports(3)
    ps, *workers = (f"localhost:{base + i}" for i in range(3))
    runs = []
    for i, copy in enumerate(copies):
        job, index = [("ps", 0), ("worker", 0), ("worker", 1)][i]
        arguments, env = ["--steps", "400"], {}
        if config == "flags":
            arguments += ["--job_name", job, "--task_index", str(index)]
            arguments += ["--ps_hosts", ps, "--worker_hosts", ",".join(workers)]
        else:
            env["TF_CONFIG"] = tf_config(ps, workers, job, index, "chief" in config)
        # Three directories, and the default logdir below each.
        runs.append(run_task(copy, *arguments, **env))
    try:
        for run in runs:
            assert run.wait() == 0, run.output
            run.nothing_left()
    finally:
        for run in runs:
            run.__exit__()
    assert "test accuracy" in runs[1].lines[-1]
    assert "400 global steps" in runs[1].lines[-1]
    (path,) = (copies[1].parent / "logdir").glob("*/result.json")
    assert result(path.parent)["workers"] == 2
    for run in runs:
        strange = [x for x in run.lines if not LINE.fullmatch(f"[ps 0] {x}")]
        assert not strange, run.output


@pytest.mark.parametrize("folder", ["HogWild", "Synchronous-SGD", "AEASGD"])
def test_tasks_that_die_and_come_back(folder, tmp_path):
    """With MAX_RESTARTS the run goes on, if need be from a checkpoint; it ends well."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    command = ["--steps", "800", "--slow_workers", "0.03", "--logdir", str(logdir)]
    command += [] if folder != "AEASGD" else ["--window", "1"]
    with run_sh(copy, *command, MAX_RESTARTS="1") as run:
        for job, index, step in (("worker", 1, 80), ("ps", 0, 240), ("worker", 0, 400)):
            wait_until(lambda step=step: saved_step(logdir) >= step, 120)
            run.task(job, index).kill()
            run.wait_for(f"{job} {index} ended with status 137; restart 1 of 1")
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert result(logdir)["global_steps"] == 800
    assert result(logdir)["test_accuracy"] >= 0.95
    assert all(result(logdir)["rounds_per_worker"].values())


def test_a_ps_that_dies_when_the_others_have_left(tmp_path):
    """It takes their reports and the last steps with it; the chief does them again."""
    copy = copy_of("HogWild", tmp_path)
    logdir = tmp_path / "logdir"
    arguments = ["--steps", "6", "--slow_workers", "1,0"]
    with run_sh(copy, *arguments, MAX_RESTARTS="1", LOGDIR=str(logdir)) as run:
        run.wait_for("[worker 1] step 6/6")
        run.task("ps", 0).kill()
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "lost a ps: waiting for it" in run.output
    assert result(logdir)["global_steps"] == 6


def test_by_hand_a_killed_worker_does_not_keep_the_others(tmp_path):
    """Asynchronous: the others finish, the chief leaves last, the ps goes home."""
    copy = copy_of("HogWild", tmp_path)
    base = launch.free_ports(3)
    hosts = [
        f"--ps_hosts=localhost:{base}",
        f"--worker_hosts=localhost:{base + 1},localhost:{base + 2}",
        f"--logdir={tmp_path / 'logdir'}",
    ]
    more = ["--steps", "2000", "--slow_workers", "0.002"]
    runs = [
        run_task(copy, "--job_name", job, "--task_index", str(i), *hosts, *more)
        for job, i in (("ps", 0), ("worker", 0), ("worker", 1))
    ]
    try:
        runs[2].wait_for("  loss ")
        runs[2].process.kill()
        assert runs[1].wait() == 0, runs[1].output
        assert runs[0].wait(20) == 0, runs[0].output
    finally:
        for run in runs:
            run.__exit__()
    assert "worker 1 is gone: the run ends without it" in runs[1].output
    assert result(tmp_path / "logdir")["global_steps"] == 2000


def test_all_workers_start_together(tmp_path):
    """4 workers: every one has made a step within 2 s of the first one's."""
    copy = copy_of("HogWild", tmp_path)
    logdir = tmp_path / "logdir"
    with run_sh(copy, "--steps", "3000", NUM_WORKERS="4", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    assert result(logdir)["seconds_to_all_started"] < 2


def test_the_same_seed_gives_the_same_weights(tmp_path):
    copy = copy_of("Distributed-Setup", tmp_path)
    weights = []
    for logdir in (tmp_path / "one", tmp_path / "two"):
        with run_sh(copy, "--steps", "200", "--seed", "7", LOGDIR=str(logdir)) as run:
            assert run.wait() == 0, run.output
        weights.append(checkpoint(logdir))
    assert weights[0] == weights[1]


def test_twenty_runs_in_a_row(tmp_path):
    """One hang in twenty would be found; each goes on for a few steps from the last."""
    copy, logdir = copy_of("HogWild", tmp_path), tmp_path / "logdir"
    for i in range(20 if os.environ.get("THOROUGH") else 3):
        steps = 5 + 7 * i
        command = ["--steps", str(steps), "--logdir", str(logdir)]
        with run_sh(copy, *command, TIMEOUT="60") as run:
            assert run.wait() == 0, run.output
        assert result(logdir)["global_steps"] == steps
        assert sum(result(logdir)["rounds_per_worker"].values()) == (7 if i else 5)
        assert (f"resumes from global step {steps - 7}" in run.output) == (i > 0)


@pytest.mark.parametrize("damage", ["corrupt", "foreign", "missing"])
def test_a_checkpoint_that_cannot_be_used(damage, tmp_path):
    folder = "Non-Distributed-Setup"
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    with run_sh(copy, "--steps", "20", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    data = sorted(logdir.glob("model.ckpt-*.data-00000-of-00001"))[-1]
    if damage == "corrupt":
        content = bytearray(data.read_bytes())
        content[100:200] = bytes(100)
        data.write_bytes(content)
    elif damage == "foreign":
        write_foreign_checkpoint(logdir)
    else:
        for path in logdir.glob("model.ckpt-*"):
            path.unlink()
    with run_sh(copy, "--steps", "40", LOGDIR=str(logdir)) as run:
        assert run.wait() == 1, run.output
    said = [line for line in run.lines if "--logdir" in line]
    assert len(said) == 1 and "Traceback" not in run.output, run.output


def defaults_of(folder):
    """Returns the flags of an example that is given nothing but its cluster."""
    cluster = []
    if folder in DISTRIBUTED:
        cluster = ["--job_name", "ps", "--task_index", "0", "--ps_hosts"]
        cluster += [f"localhost:{launch.free_ports(1)}", "--worker_hosts"]
        cluster += ["a:1,a:2"]
    return launch.load(folder).parse_args(cluster)


def saved_step(logdir):
    """Returns the global step that a new run would resume at; 0 if there is none."""
    try:
        first, _ = (logdir / "checkpoint").read_text().split("\n", 1)
    except (FileNotFoundError, ValueError):
        return 0
    return int(first.rpartition("-")[2].strip('"'))


def checkpoint(logdir):
    """Returns the last checkpoint's variables, as TensorFlow writes them: bytes."""
    (data,) = logdir.glob(f"model.ckpt-{saved_step(logdir)}.data-*")
    return data.read_bytes()


def write_foreign_checkpoint(logdir):
    """Replaces the checkpoint by one of another model."""
    code = (
        "import sys, cluster; tf = cluster.tf; "
        "v = tf.get_variable('center', initializer=tf.zeros([7])); "
        "tf.train.get_or_create_global_step(); "
        "s = tf.Session(); s.run(tf.global_variables_initializer()); "
        "tf.train.Saver().save(s, sys.argv[1] + '/model.ckpt', 9)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(logdir)],
        cwd=launch.REPO / "Distributed-Setup",
        capture_output=True,
        check=True,
    )


def tf_config(ps, workers, job, index, chief):
    """Returns TF_CONFIG for one task; with a chief, worker 0 is called so."""
    import json

    cluster = {"ps": [ps], "worker": workers}
    if chief:
        cluster = {"ps": [ps], "chief": workers[:1], "worker": workers[1:]}
        if job == "worker":
            job, index = ("chief", 0) if index == 0 else ("worker", index - 1)
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def take_terminal():
    """Child: a session of its own whose terminal is standard input."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def tasks_of(copy):
    """Returns the processes that still run a script of this copy, after a moment."""
    time.sleep(0.3)
    text = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in text.splitlines() if str(copy) in line]


def wait_until(test, seconds):
    """Returns once `test()` holds; raises after `seconds`."""
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end, "too late"
        time.sleep(0.05)
