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
def test_run_resume_and_nothing_to_do(folder, tmp_path):
    """Half the steps on 2 ps, the rest on 1 ps, and a third run that has none left."""
    copy = copy_of(folder, tmp_path)
    logdir = tmp_path / "a logdir"
    before = launch.tree(copy)
    distributed = folder in DISTRIBUTED
    half = min(500, defaults_of(folder).steps // 2)
    ports = launch.free_ports(4)
    num = {"NUM_PS": "2", "NUM_WORKERS": "2"} if distributed else {}
    if folder == "Distributed-Setup":
        num["NUM_WORKERS"] = "1"
    with run_sh(
        copy,
        f"--steps={half}",
        f"--logdir={logdir}",
        BASE_PORT=str(ports),
        **num,
    ) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    strange = [line for line in run.lines if not LINE.fullmatch(line)]
    assert not strange, run.output
    assert all(launch.is_free(port) for port in range(ports, ports + 4))
    first = result(logdir)
    assert first["global_steps"] == half
    assert first["ps"] == (2 if distributed else 0)
    if distributed:
        assert run.output.count("center/part_0 ") == 1
        assert "center/part_1" in run.output

    num.pop("NUM_PS", None)
    again = ["--logdir", str(logdir), "--steps", str(2 * half)]
    with run_sh(copy, *again, **num) as run:
        assert run.wait() == 0, run.output
    assert f"resumes from global step {half}" in run.output
    second = result(logdir)
    assert second["global_steps"] == 2 * half
    assert second["test_accuracy"] >= 0.95, second
    assert second["scheme"] == folder
    # Every worker takes part; the examples are those of this run's rounds.
    rounds = list(second["rounds_per_worker"].values())
    assert min(rounds) * 4 >= half / max(1, len(rounds) - 1) / 2, second
    args = defaults_of(folder)
    window = getattr(args, "window", 1)
    assert second["examples"] == sum(rounds) * args.batch_size * window
    assert second["seconds"] > 0 and second["steps_per_second"] > 0
    assert second["mean_staleness"] <= second["max_staleness"]
    assert (second["bytes_pushed"] > 0) == distributed
    assert f"test accuracy {second['test_accuracy']:.4f} after" in run.lines[-1]

    weights = checkpoint(logdir)
    with run_sh(copy, *again, **num) as run:
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
def test_a_task_that_dies_ends_the_run(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    for job, index in (("worker", 0), ("ps", 0)):
        with run_sh(copy, "--steps", "10000000") as run:
            run.wait_for("  loss ")
            cause = time.monotonic()
            run.task(job, index).kill()
            assert run.wait(30) == 137, run.output
            assert time.monotonic() - cause < WITHIN
            run.nothing_left()
        assert f"run.sh: {job} {index} ended with status 137; see " in run.lines[-1]


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


def test_a_ps_that_dies_and_comes_back(tmp_path):
    """With MAX_RESTARTS the run goes on from the last checkpoint and ends well."""
    copy = copy_of("HogWild", tmp_path)
    logdir = tmp_path / "logdir"
    arguments = ["--steps", "3000", "--slow_workers", "0.002"]
    with run_sh(copy, *arguments, MAX_RESTARTS="1", LOGDIR=str(logdir)) as run:
        run.wait_for("step 1200")
        run.task("ps", 0).kill()
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "ps 0 ended with status 137; restart 1 of 1" in run.output
    assert result(logdir)["global_steps"] == 3000
    assert result(logdir)["test_accuracy"] >= 0.95


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


def test_a_worker_that_dies_and_comes_back(tmp_path):
    copy = copy_of("HogWild", tmp_path)
    logdir = tmp_path / "logdir"
    arguments = ["--steps", "3000", "--slow_workers", "0.002"]
    with run_sh(copy, *arguments, MAX_RESTARTS="1", LOGDIR=str(logdir)) as run:
        run.wait_for("step  600")
        run.task("worker", 1).kill()
        assert run.wait() == 0, run.output
    assert result(logdir)["global_steps"] == 3000
    assert all(result(logdir)["rounds_per_worker"].values())


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
        weights.append(checkpoint(logdir)["center"])
    assert weights[0] == weights[1]


def test_twenty_runs_in_a_row(tmp_path):
    """One hang in twenty would be found; the steps are few, the protocol is whole."""
    copy = copy_of("HogWild", tmp_path)
    for i in range(20 if os.environ.get("THOROUGH") else 3):
        with run_sh(copy, "--steps", str(5 + 7 * i), TIMEOUT="60") as run:
            assert run.wait() == 0, run.output


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


def checkpoint(logdir):
    """Returns the variables of the last checkpoint as bytes, by name."""
    code = (
        "import sys, cluster; tf = cluster.tf; "
        "reader = tf.train.load_checkpoint(sys.argv[1]); "
        "[print(n, reader.get_tensor(n).tobytes().hex())"
        " for n in reader.get_variable_to_shape_map()]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(logdir)],
        cwd=launch.REPO / "Distributed-Setup",
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split() for line in done.stdout.splitlines())


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
