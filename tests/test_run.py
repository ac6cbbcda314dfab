"""Every example on real processes, in a copy outside the repository.

What is the same bytes in every folder is tried on one folder of each family, and where
gradients wait for each other on Synchronous-SGD too; what a scheme adds, on each.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import launch
import pytest
import registry
from launch import (
    REPO,
    Launch,
    copy_of,
    result,
    run_sh,
    run_task,
    saved_step,
    wait_until,
)

WITHIN = 5  # seconds from the cause to the end, by the contract
ENDLESS = ["--steps", "10000000"]
PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10  # of the perceptron, on 8x8 digits
WAITS = "Synchronous-SGD"
BOUNDED = "Stale-Synchronous-Parallel"
FAMILIES = ["Non-Distributed-Setup", "HogWild"]
SCHEMES = registry.folders("ps")
# Schemes of which another test here makes a run, and checks it by `check_run`.
# THOROUGH=1 makes one of each all the same.
ELSEWHERE = {"Distributed-Setup", "AGN", "DOWNPOUR", "Dynamic-SGD", "DC-ASGD"}
ELSEWHERE |= {"DOWNPOUR-Easy", "Gradient-Compression"}
# What every result.json has; the name of the metric is the problem's.
KEYS = {
    *("scheme", "test_accuracy", "test_loss", "global_steps", "resumed_from"),
    *("examples", "seconds", "seconds_to_all_started", "examples_per_second"),
    *("steps_per_second", "rounds_per_worker", "gradients_dropped", "bytes_pushed"),
    *("bytes_pulled", "mean_staleness", "max_staleness", "loss_per_worker"),
    *("workers", "ps", "seed", "data", "flags"),
}


def check_stats(folder, done, workers, resumed=0, parameters=PARAMETERS):
    """Asserts that result.json accounts for the whole run, from global step 0 on.

    `workers` is how many there have been at most, `resumed` where it was taken up last,
    `parameters` the size of the model.
    """
    args = launch.defaults_of(folder)
    distributed = folder in SCHEMES
    rounds = [done["rounds_per_worker"][str(worker)] for worker in range(workers)]
    assert len(done["rounds_per_worker"]) == workers, done
    steps, made, dropped = done["global_steps"], sum(rounds), done["gradients_dropped"]
    if hasattr(args, "replicas_to_aggregate"):
        assert made == workers * steps + dropped, done
        assert done["max_staleness"] == 0
    elif hasattr(args, "quorum"):  # a merge takes some rounds; not each sends something
        assert made - dropped >= steps, done
        args.window, each = args.overlap, parameters / done["ps"] / args.fragments
        fragment = 4 * done["ps"] * math.ceil(each)
        for sent, least in (("bytes_pushed", steps + dropped), ("bytes_pulled", steps)):
            assert done[sent] % fragment == 0, done
            assert least <= done[sent] // fragment <= args.fragments * made, done
    else:
        assert (made, dropped) == (steps, 0), done
    examples = args.batch_size * getattr(args, "window", 1)
    assert done["examples"] == examples * made, done
    # Of the k largest elements of P: the value, and where it stands.
    sent = 8 * round(args.keep * parameters) * made if hasattr(args, "keep") else None
    if not hasattr(args, "quorum"):
        pulled = 4 * parameters * made if distributed else 0
        assert done["bytes_pulled"] == pulled, done
        assert done["bytes_pushed"] == (pulled if sent is None else sent)
    assert 0 <= done["mean_staleness"] <= done["max_staleness"]
    assert done["resumed_from"] == resumed
    here = steps - resumed  # rates are of what was done since then
    assert done["steps_per_second"] * done["seconds"] == pytest.approx(here)
    assert (done["examples_per_second"] > 0) == (here > 0)


def check_run(folder, lines, done, workers=2, resumed=0, parameters=PARAMETERS):
    """Asserts what holds for the end of every run: its lines, counters and names.

    `lines` are those of run.sh, or those of the chief, when each was started by hand;
    the rest is as in `check_stats`.
    """
    labelled = [
        x if x.startswith(("[", "run.sh:")) else f"[worker 0] {x}" for x in lines
    ]
    assert not launch.strange(labelled), lines
    assert any("center/part_0 " in line for line in lines), lines
    assert done["scheme"] == folder
    assert len(done["loss_per_worker"]) == workers
    check_stats(folder, done, workers, resumed, parameters)
    metric = next(name for name in done if name.startswith("test_"))
    last = f"{done[metric]:.4f} after {done['global_steps']} global steps"
    assert last in lines[-1], lines


def resumed_at(run):
    """Returns the global step that the run was last taken up at."""
    return [int(x.split()[-1]) for x in run.lines if "resumes from" in x][-1]


# --- Each scheme --------------------------------------------------------------


# Task and least saved step of 800, one after the other.
ALL = [("worker", 1, 40), ("ps", 0, 160), ("ps", 1, 280), ("worker", 0, 400)]
KILLED = {"HogWild": ALL, WAITS: ALL[:2] + ALL[3:]}
if launch.THOROUGH:
    KILLED["AEASGD"] = KILLED[BOUNDED] = [("worker", 1, 1), ("ps", 1, 100)]


@pytest.mark.parametrize(
    "folder", [f for f in SCHEMES if launch.THOROUGH or f not in ELSEWHERE]
)
def test_a_run_of_each_scheme(folder, tmp_path):
    """In two schemes a worker, the ps and the chief die and come back, in turn.

    With THOROUGH=1 a ps of 2 dies in every folder. A run is then taken up from its last
    checkpoint. All updates are made in the end, the counters account for each, and the
    weights are good.
    """
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "a logdir"
    before = launch.tree(copy)
    args = launch.defaults_of(folder)
    # More where more tasks are killed.
    steps, workers = min(800 if len(KILLED.get(folder, [])) > 1 else 400, args.steps), 2
    # A synchronous round takes as long as the slowest, so let all be faster there.
    seconds = 0.01 if hasattr(args, "replicas_to_aggregate") else 0.02
    slow = str(seconds / getattr(args, "window", 1))
    killed = KILLED.get(folder, [("ps", 1, 1)] if launch.THOROUGH else [])
    command = ["--steps", str(steps), "--save_seconds", "1"]
    command += ["--slow_workers", slow] if killed else []
    # The rule of each is on 2 ps in test_conformance.py and test_sync.py.
    num_ps = 2 if killed else 1
    env = {"NUM_PS": f"{num_ps}", "NUM_WORKERS": "2", "MAX_RESTARTS": "1"}
    with run_sh(copy, *command, LOGDIR=str(logdir), **env) as run:
        for job, index, step in killed:
            wait_until(lambda step=step: saved_step(logdir) >= step, 120, run)
            run.task(job, index).kill()
            run.wait_for(f"{job} {index} ended with status 137; restart 1 of 1")
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert not launch.strange(run.lines), run.output
    assert all(f"center/part_{k} " in run.output for k in range(num_ps)), run.output
    done = result(logdir)
    assert (done["scheme"], done["global_steps"]) == (folder, steps)
    assert (done["ps"], done["workers"]) == (num_ps, 2)
    resumed = resumed_at(run) if killed else 0
    assert 0 < resumed < steps or not killed
    check_stats(folder, done, workers, resumed)
    assert min(done["rounds_per_worker"].values()) >= (len(killed) > 1), done
    assert sorted(done["loss_per_worker"]) == ["0", "1"]
    assert done["test_accuracy"] >= (0.95 if steps > 400 else 0.9), done
    accuracy = f"test accuracy {done['test_accuracy']:.4f} after {steps} global steps"
    assert accuracy in run.lines[-1]
    assert launch.tree(copy) == before


# --- One folder of each family ------------------------------------------------


@pytest.mark.parametrize(
    "folder, job, index",
    [
        ("Non-Distributed-Setup", "worker", 0),
        ("HogWild", "ps", 0),
        pytest.param(WAITS, "worker", 1, marks=launch.if_thorough),
    ],
)
def test_killed_resumed_and_nothing_to_do(folder, job, index, tmp_path):
    """A task is killed; on 2 ps and with 1 worker the rest is made; then nothing is."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "a logdir"
    before = launch.tree(copy)
    distributed = folder in SCHEMES
    command = ["--steps", "1000", "--logdir", str(logdir), "--save_seconds", "0.5"]
    begin = ["--slow_workers", "0.01"] if distributed else ["--batch_size", "4000"]
    with run_sh(copy, *command, *begin) as run:
        wait_until(lambda: saved_step(logdir) > 100, 90, run)
        cause = time.monotonic()
        run.task(job, index).kill()
        assert run.wait(30) == 137, run.output
        assert time.monotonic() - cause < WITHIN
        run.nothing_left()
    ended = f"run.sh: {job} {index} ended with status 137; "
    assert run.lines[-1].startswith(ended), run.output
    assert run.lines[-1].endswith(f"see {job}-{index}.log in {logdir}"), run.output
    assert not (logdir / "result.json").exists()

    more = {"NUM_PS": "2", "NUM_WORKERS": "1"} if distributed else {}
    base = launch.free_ports(3)
    with run_sh(copy, *command, BASE_PORT=str(base), **more) as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert not launch.strange(run.lines), run.output
    resumed = resumed_at(run) if distributed else result(logdir)["resumed_from"]
    done = result(logdir)
    assert 0 < resumed < 1000 == done["global_steps"]
    assert done["resumed_from"] == resumed
    if distributed:
        assert "center/part_0 " in run.output and "center/part_1 " in run.output
        assert (done["ps"], done["workers"]) == (2, 1)
        # The counters are those of both runs: first 2 workers, then 1.
        assert sorted(done["rounds_per_worker"]) == ["0", "1"]
        rounds = done["rounds_per_worker"]
        if folder == "HogWild":
            check_stats(folder, done, 2, resumed)
        else:
            made = 2 * resumed + (1000 - resumed) + done["gradients_dropped"]
            assert sum(rounds.values()) == made, done
            assert rounds["1"] <= resumed + done["gradients_dropped"]
    assert done["test_accuracy"] >= 0.95, done
    for log in logdir.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name

    weights = checkpoint(logdir)
    with run_sh(copy, *command, NUM_WORKERS="1") as run:
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert f"nothing to do: {logdir} is at global step 1000" in run.output
    assert result(logdir) == done
    assert checkpoint(logdir) == weights
    assert launch.tree(copy) == before
    assert not [path for path in logdir.iterdir() if path.name.startswith(".")]


@pytest.mark.starts
def test_the_run_of_the_readme(tmp_path):
    """HogWild as it comes: good weights, exact counters, and where to look at them."""
    copy, logdir = copy_of("HogWild", tmp_path), tmp_path / "logdir"
    before = launch.tree(copy)
    with run_sh(copy, LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    assert launch.tree(copy) == before
    done = result(logdir)
    assert done["global_steps"] == 4000 and done["test_accuracy"] >= 0.95
    check_run("HogWild", run.lines, done)
    assert min(done["rounds_per_worker"].values()) >= 1000
    assert run.lines[-3] == f"[worker 0] result: {logdir / 'result.json'}"
    assert run.lines[-2].startswith("[worker 0] curves: ")
    assert run.lines[-2].endswith(f" --logdir {logdir}")
    assert "test accuracy" in run.lines[-1]
    assert list(logdir.glob("events.out.tfevents.*"))
    assert {*done} == KEYS
    assert done["flags"]["batch_size"] == 32 and done["flags"]["steps"] == 4000
    # The last line of each worker but the chief comes with its last update, or near.
    for worker in "01":
        steps = re.findall(rf"\[worker {worker}\] step +(\d+)/4000", run.output)
        assert 5 <= len(steps) <= 40, run.output


def test_a_line_is_one_write(tmp_path):
    """Also with PYTHONUNBUFFERED=1, as in images: else lines of tasks are mixed up."""
    copy = copy_of("Non-Distributed-Setup", tmp_path)
    script = str(copy / registry.script_of(copy.name))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.settimeout(60)
    command = [sys.executable, script, "--steps", "20", "--logdir", str(tmp_path / "l")]
    env = launch.environment(PYTHONUNBUFFERED="1")
    with subprocess.Popen(command, stdout=theirs, env=env) as process:
        writes = []
        while not (writes and b"test accuracy" in writes[-1]):
            writes.append(ours.recv(65536))
        assert process.wait(30) == 0
    assert len(writes) > 4
    assert all(one.endswith(b"\n") for one in writes), writes


# That the launcher ends all, whoever dies, is in test_launcher.py.
@pytest.mark.parametrize("index", launch.some([0], [0, 1]))
def test_a_worker_that_dies_ends_the_run(index, tmp_path):
    copy = copy_of("HogWild", tmp_path)
    with run_sh(copy, *ENDLESS) as run:
        run.wait_for("  loss ")
        cause = time.monotonic()
        run.task("worker", index).kill()
        assert run.wait(30) == 137, run.output
        assert time.monotonic() - cause < WITHIN
        run.nothing_left()
    assert f"run.sh: worker {index} ended with status 137; " in run.lines[-1]


@pytest.mark.parametrize(
    "folder, slow",
    [
        ("Non-Distributed-Setup", ["--batch_size", "100000"]),
        ("HogWild", ["--slow_workers", "0,60"]),
        (WAITS, ["--slow_workers", "0,1"]),
    ],
)
def test_ctrl_c_in_a_terminal(folder, slow, tmp_path):
    """In mid-call: of a minute, or one that waits for another worker's gradient.

    The whole terminal: the signal comes from the line discipline, echo stays on.
    """
    copy = copy_of(folder, tmp_path)
    primary, secondary = pty.openpty()
    before = subprocess.run(
        ["stty", "-g"], stdin=secondary, capture_output=True, text=True, check=True
    )
    process = subprocess.Popen(
        ["bash", str(copy / "run.sh"), *ENDLESS, *slow],
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
        assert time.monotonic() - cause < 2 * WITHIN
        wait_until(lambda: "run.sh: Ctrl-C ended " in "".join(text), 5)
    finally:
        process.kill()
        process.wait()
        done.set()
    after = subprocess.run(
        ["stty", "-g"], stdin=secondary, capture_output=True, text=True, check=True
    )
    assert after.stdout == before.stdout
    assert "Traceback" not in "".join(text)
    logdir = re.search(r"run.sh: checks .*, logdir (\S.*\S)", "".join(text))[1]
    assert list(pathlib.Path(logdir).glob("worker-0.log"))
    assert not tasks_of(copy)
    os.close(secondary)
    os.close(primary)


@pytest.mark.starts
@pytest.mark.parametrize("folder", FAMILIES)
def test_signals_and_the_time_limit_while_it_starts(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    for number, status in (
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        (signal.SIGHUP, 129),
    ):
        with run_sh(copy, *ENDLESS) as run:
            wait_until(lambda run=run: run.tasks(), 60)
            cause = time.monotonic()
            run.process.send_signal(number)
            assert run.wait(30) == status, run.output
            assert time.monotonic() - cause < WITHIN
            run.nothing_left()
        name = {143: "SIGTERM", 130: "Ctrl-C", 129: "SIGHUP"}[status]
        assert run.lines[-1] == f"run.sh: {name} ended the run", run.output
    started = time.monotonic()
    with run_sh(copy, *ENDLESS, TIMEOUT="1") as run:
        assert run.wait(30) == 124, run.output
        assert time.monotonic() - started < 1 + WITHIN
        run.nothing_left()
    assert run.lines[-1] == "run.sh: no end after TIMEOUT=1 s"


SLOW_CHECK = """import os, sys, time
if "--check" in sys.argv:
    open(os.environ["BEGUN"], "w").close()
    time.sleep(60)
"""


def test_what_is_started_is_said_before_the_data_is_read(tmp_path):
    """A check that takes long: the first line is there, and Ctrl-C ends it."""
    for folder, what, env in (
        ("Non-Distributed-Setup", "1 worker", {}),
        ("HogWild", "1 ps and 2 workers", {}),
        ("Ring-All-Reduce", "1 worker", {"NUM_WORKERS": "1"}),
    ):
        copy, begun = copy_of(folder, tmp_path), tmp_path / folder
        (copy / registry.script_of(folder)).write_text(SLOW_CHECK)
        with run_sh(copy, BEGUN=str(begun), LOGDIR=str(tmp_path / "l"), **env) as run:
            wait_until(begun.exists, 60)
            line = run.wait_for("run.sh: ", 1)
            wanted = f"checks the flags and the data, then starts {what}, logdir "
            assert line == f"run.sh: {wanted}{tmp_path / 'l'}"
            cause = time.monotonic()
            run.process.send_signal(signal.SIGINT)
            assert run.wait(30) == 130, run.output
            assert time.monotonic() - cause < WITHIN
        assert run.lines[1:] == ["run.sh: Ctrl-C ended the run"]
    assert not (tmp_path / "l").exists()


@pytest.mark.starts
def test_a_signal_between_two_tasks(tmp_path):
    """Whatever has been started by then is ended, also a task not yet noted."""
    copy = copy_of("HogWild", tmp_path)
    for milliseconds in (0, 0, 1, 2, 3, 5, 8, 13, 21, 34):
        logdir = tmp_path / f"logdir-{time.monotonic()}"
        with run_sh(copy, *ENDLESS, LOGDIR=str(logdir)) as run:
            while not logdir.exists():  # it is made just before they start
                time.sleep(0.001)
            time.sleep(milliseconds / 1000)
            run.process.send_signal(signal.SIGTERM)
            assert run.wait(30) == 143, run.output
            assert not run.tasks()


@pytest.mark.parametrize("folder", FAMILIES)
def test_training_that_diverges_says_so(folder, tmp_path):
    """That each scheme notices it is in test_report.py."""
    copy = copy_of(folder, tmp_path)
    with run_sh(copy, "--learning_rate", "1e30", "--steps", "1000") as run:
        assert run.wait() == 1, run.output
        run.nothing_left()
    assert "training diverged" in run.output
    assert "Traceback" not in run.output
    assert not list(copy.glob("logdir/*/result.json"))


def test_three_shells_in_three_directories(tmp_path):
    """The commands of "from localhost to N machines", typed by hand, three times.

    By flags, then by TF_CONFIG, then by one with a chief; the later ones resume.
    """
    copies = [copy_of("AGN", tmp_path / str(i)) for i in range(3)]
    base = launch.free_ports(3)
    ps, *workers = (f"localhost:{base + i}" for i in range(3))
    logdir = None
    for count, config in enumerate(["flags", "TF_CONFIG", "TF_CONFIG with a chief"]):
        steps, runs = 200 * (count + 1), []
        for i, copy in enumerate(copies):
            job, index = [("ps", 0), ("worker", 0), ("worker", 1)][i]
            arguments, env = ["--steps", str(steps)], {}
            if config == "flags":
                arguments += ["--job_name", job, "--task_index", str(index)]
                arguments += ["--ps_hosts", ps, "--worker_hosts", ",".join(workers)]
            else:
                env["TF_CONFIG"] = tf_config(ps, workers, job, index, "chief" in config)
            # Three directories and the default logdir below each; then the chief's.
            if logdir and i == 1:
                arguments += ["--logdir", str(logdir)]
            runs.append(run_task(copy, *arguments, **env))
        try:
            for run in runs:
                assert run.wait() == 0, run.output
                run.nothing_left()
        finally:
            for run in runs:
                run.__exit__()
        (path,) = (copies[1].parent / "logdir").glob("*/result.json")
        logdir = path.parent
        assert result(logdir)["workers"] == 2
        check_run("AGN", runs[1].lines, result(logdir), 2, steps - 200)
        for run in runs:
            assert not launch.strange([f"[ps 0] {x}" for x in run.lines]), run.output
    assert result(logdir)["test_accuracy"] >= 0.9


@pytest.mark.parametrize("folder", ["DOWNPOUR", "Ring-All-Reduce"])
def test_the_commands_of_a_dry_run(folder, tmp_path):
    """One a line, and nothing starts; typed in shells of their own they are the run."""
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    base = launch.free_ports(3)
    flags = ["--steps", "400", "--logdir", str(logdir)]
    with run_sh(copy, *flags, DRY_RUN="1", BASE_PORT=str(base)) as dry:
        assert dry.wait(30) == 0, dry.output
        assert not dry.tasks()
    assert not logdir.exists()
    ps = folder == "DOWNPOUR"
    assert len(dry.lines) == 2 + ps, dry.output
    assert ("--job_name ps --task_index 0" in dry.lines[0]) == ps
    assert "--job_name worker --task_index 1" in dry.lines[-1]
    tasks = [Launch(["bash", "-c", line], copy) for line in dry.lines]
    try:
        for task in tasks:
            assert task.wait(90) == 0, task.output
    finally:
        for task in tasks:
            task.__exit__()
    done = result(logdir)
    assert done["global_steps"] == 400 and done["test_accuracy"] >= 0.9
    if ps:
        check_run("DOWNPOUR", tasks[1].lines, done)


def test_a_ps_that_dies_when_the_others_are_done(tmp_path):
    """It takes their reports and the last steps with it; nobody has left: all go on."""
    folder = "Gradient-Compression"
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    arguments = ["--steps", "3", "--slow_workers", "3,0"]
    with run_sh(copy, *arguments, MAX_RESTARTS="1", LOGDIR=str(logdir)) as run:
        run.wait_for("[worker 1] step 3/3")  # while the chief is in its first round
        run.task("ps", 0).kill()
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert "ps 0 ended with status 137; restart 1 of 1" in run.output
    assert "is not there" not in run.output
    # The chief may have saved after its round of 3 s.
    assert result(logdir)["global_steps"] == 3
    resumed = result(logdir)["resumed_from"]
    assert resumed in (0, 3)
    check_run(folder, run.lines, result(logdir), resumed=resumed)


@pytest.mark.parametrize(
    "folder", ["Dynamic-SGD", pytest.param(BOUNDED, marks=launch.if_thorough)]
)
def test_by_hand_a_killed_worker_does_not_keep_the_others(folder, tmp_path):
    """The others finish, the chief ends last of them, and then the ps.

    Nor does worker 2 keep them, which nobody starts. Under a bound they wait for both
    first, until these have long been silent.
    """
    copy = copy_of(folder, tmp_path)
    base = launch.free_ports(4)
    workers = ",".join(f"localhost:{base + 1 + k}" for k in range(3))
    hosts = [
        f"--ps_hosts=localhost:{base}",
        f"--worker_hosts={workers}",
        f"--logdir={tmp_path / 'logdir'}",
    ]
    more = ["--steps", "1000", "--slow_workers", "0.002"]
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
    assert "worker 1 is not there: the run ends without it" in runs[1].output
    assert "worker 2 is not there: the run ends without it" in runs[1].output
    done = result(tmp_path / "logdir")
    assert done["global_steps"] == 1000 and done["test_accuracy"] >= 0.9
    # The counters have the worker that was killed in mid-call, too.
    check_run(folder, runs[1].lines, done, workers=3)


@launch.if_thorough
def test_four_workers_start_together(tmp_path):
    """Every one has made an update within 2 s of the first one's."""
    copy, logdir = copy_of("HogWild", tmp_path), tmp_path / "logdir"
    with run_sh(copy, "--steps", "2000", NUM_WORKERS="4", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    done = result(logdir)
    check_stats("HogWild", done, 4)
    assert min(done["rounds_per_worker"].values()) > 0
    assert done["seconds_to_all_started"] < 2
    assert sorted(done["loss_per_worker"]) == list("0123")


def test_a_straggler_and_a_checkpoint_every_second(tmp_path):
    """`--slow_workers 0,0.1`: as stale as the other makes updates meanwhile."""
    copy, logdir = copy_of("HogWild", tmp_path), tmp_path / "logdir"
    command = ["--steps", "4000", "--slow_workers", "0,0.1", "--save_seconds", "1"]
    saved = {}
    with run_sh(copy, *command, LOGDIR=str(logdir)) as run:
        while run.process.poll() is None:
            saved.setdefault(saved_step(logdir), time.monotonic())
            time.sleep(0.02)
        assert run.wait() == 0, run.output
    done = result(logdir)
    check_stats("HogWild", done, 2)
    fast, slow = done["rounds_per_worker"].values()
    # A sleep of 0.1 s, and what it takes to be sent.
    assert slow <= done["seconds"] / 0.1 + 1 and slow >= done["seconds"] / 0.2 - 1
    # Each update of the straggler's falls into at most one round of the other.
    total = done["mean_staleness"] * 4000
    assert 0.75 * fast <= total - slow and total <= fast + slow, done
    assert done["max_staleness"] >= fast / slow
    # One at the start, one at the end, and between them one a second.
    times = [saved[step] for step in sorted(saved) if 0 < step < 4000]
    assert len(times) >= 2, saved
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert all(0.9 < gap < 5 for gap in gaps), gaps


def test_the_same_seed_gives_the_same_weights(tmp_path):
    copy, weights = copy_of("Distributed-Setup", tmp_path), []
    for logdir in (tmp_path / "one", tmp_path / "two"):
        with run_sh(copy, "--steps", "200", "--seed", "7", LOGDIR=str(logdir)) as run:
            assert run.wait() == 0, run.output
        check_run("Distributed-Setup", run.lines, result(logdir), workers=1)
        weights.append(center_of(logdir))
    assert weights[0] == weights[1]


@pytest.mark.parametrize("count", [launch.thorough(2, 20)])
def test_run_after_run_goes_on_for_a_few_steps(count, tmp_path):
    """From the first with one worker on, each of the others adds 7 steps with two."""
    folder = "DOWNPOUR-Easy"
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    for i in range(count):
        steps, workers = 5 + 7 * i, min(1 + i, 2)
        command = ["--steps", str(steps), "--logdir", str(logdir)]
        with run_sh(copy, *command, TIMEOUT="60", NUM_WORKERS=str(workers)) as run:
            assert run.wait() == 0, run.output
        assert result(logdir)["global_steps"] == steps
        resumed = max(0, steps - 7) if i else 0
        check_run(folder, run.lines, result(logdir), workers, resumed)
        assert (f"resumes from global step {steps - 7}" in run.output) == (i > 0)


@pytest.fixture(scope="module")
def twenty_steps(tmp_path_factory):
    """A finished run of 20 steps in one process."""
    where = tmp_path_factory.mktemp("twenty")
    copy, logdir = copy_of("Non-Distributed-Setup", where), where / "logdir"
    with run_sh(copy, "--steps", "20", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    return copy, logdir


@pytest.mark.parametrize("damage", ["corrupt", "foreign", "missing", "unlisted"])
def test_a_checkpoint_that_cannot_be_used(damage, twenty_steps, tmp_path):
    copy, finished = twenty_steps
    logdir = tmp_path / "logdir"
    logdir.mkdir()
    for path in finished.iterdir():
        # The paths inside are absolute.
        text = path.read_bytes()
        if path.name == "checkpoint":
            text = text.replace(str(finished).encode(), str(logdir).encode())
        (logdir / path.name).write_bytes(text)
    data = sorted(logdir.glob("model.ckpt-20.data-00000-of-00001"))[-1]
    if damage == "corrupt":
        content = bytearray(data.read_bytes())
        content[100:200] = bytes(100)
        data.write_bytes(content)
    elif damage == "foreign":
        write_foreign_checkpoint(logdir)
    elif damage == "unlisted":
        (logdir / "checkpoint").write_text("nothing that TensorFlow can read")
    else:
        for path in logdir.glob("model.ckpt-*"):
            path.unlink()
    with run_sh(copy, "--steps", "40", LOGDIR=str(logdir)) as run:
        assert run.wait() == 1, run.output
    assert not (logdir / "result.json").exists() or result(logdir)["global_steps"] == 20
    assert data.exists() or damage == "missing"
    if damage == "foreign":  # of another size: TensorFlow says so, in the first round
        return
    said = [line for line in run.lines if "cannot resume from " in line]
    named = "checkpoint cannot be read" if damage == "unlisted" else "model.ckpt-"
    assert len(said) == 1 and str(logdir / named) in said[0], run.output
    assert "Traceback" not in run.output and "File" not in said[0], run.output


def test_five_checkpoints_are_kept_of_a_run_however_often_it_is_started(
    twenty_steps, tmp_path
):
    """Those that other processes have written are deleted, too."""
    copy, finished = twenty_steps
    logdir = shutil.copytree(finished, tmp_path / "logdir")
    for path in logdir.glob("model.ckpt-1.*"):
        path.unlink()
    for path in logdir.glob("model.ckpt-20.*"):
        for step in range(11, 15):
            shutil.copy(path, logdir / path.name.replace("-20.", f"-{step}."))
    listed = "".join(
        f'all_model_checkpoint_paths: "model.ckpt-{step}"\n'
        for step in (*range(11, 15), 20)
    )
    last = 'model_checkpoint_path: "model.ckpt-20"\n'
    (logdir / "checkpoint").write_text(last + listed)
    with run_sh(copy, "--steps", "40", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    kept = {int(p.stem.split("-")[1]) for p in logdir.glob("model.ckpt-*.index")}
    assert len(kept) == 5 and 40 in kept and 11 not in kept, kept


# --- What a script can ask for ---


LOG = "                training.log(losses, counts)"
ASKS = """
                training.draw("left", training.left)
                if training.chief and training.left < 100:
                    training.stop()
"""


# --- Another problem ----------------------------------------------------------


def convolution(text):
    """Returns problem.py with a small convolutional network: two functions change."""
    shapes = "return [(features, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]"
    layers = "return tf.nn.relu(images @ w1 + b1) @ w2 + b2"
    assert text.count(shapes) == text.count(layers) == 1
    text = text.replace(
        shapes, "return [(3, 3, 1, 8), (8,), (6 * 6 * 8, classes), (classes,)]"
    )
    return text.replace(
        layers,
        "images = tf.reshape(images, [-1, 8, 8, 1])\n"
        '    maps = tf.nn.relu(tf.nn.conv2d(images, w1, 1, "VALID") + b1)\n'
        "    return tf.reshape(maps, [-1, 6 * 6 * 8]) @ w2 + b2",
    )


def regression(_):
    """Returns a problem.py of one's own, after the template of the first."""
    return (REPO / "tests" / "line.py").read_text()


CONVOLUTION = convolution, [], "accuracy", 0.8, 80 + 288 * 10 + 10
REGRESSION = regression, ["--data", "line"], "r_squared", 0.9, 4


@pytest.mark.parametrize(
    "make, flags, metric, least, parameters, folder",
    [
        pytest.param(*CONVOLUTION, WAITS, id="convolution"),
        pytest.param(*REGRESSION, "DC-ASGD", id="regression"),
    ],
)
def test_a_problem_of_ones_own(
    make, flags, metric, least, parameters, folder, tmp_path
):
    copy, logdir = copy_of(folder, tmp_path), tmp_path / "logdir"
    problem = copy / "problem.py"
    problem.write_text(make(problem.read_text()))
    command = ["--steps", "300", *flags]
    with run_sh(copy, *command, LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    done = result(logdir)
    assert done[f"test_{metric}"] >= least, done
    check_run(folder, run.lines, done, parameters=parameters)
    assert metric == "accuracy" or "test_accuracy" not in done


# --- Helpers ------------------------------------------------------------------


def checkpoint(logdir):
    """Returns the last checkpoint's variables, as TensorFlow writes them: bytes."""
    (data,) = logdir.glob(f"model.ckpt-{saved_step(logdir)}.data-*")
    return data.read_bytes()


def center_of(logdir):
    """Returns the center variable of the last checkpoint, as bytes."""
    launch.reference()
    from cluster import tensorflow_v1 as tf

    path = logdir / f"model.ckpt-{saved_step(logdir)}"
    return tf.train.load_checkpoint(str(path)).get_tensor("center").tobytes()


def write_foreign_checkpoint(logdir):
    """Replaces the checkpoint by one of another model."""
    code = (
        "import sys; from cluster import tensorflow_v1 as tf; "
        "v = tf.get_variable('center', initializer=tf.zeros([7])); "
        "tf.train.get_or_create_global_step(); "
        "s = tf.Session(); s.run(tf.global_variables_initializer()); "
        "tf.train.Saver().save(s, sys.argv[1] + '/model.ckpt', 9)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(logdir)],
        cwd=launch.REFERENCE,
        env=launch.environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        check=True,
    )


def tf_config(ps, workers, job, index, chief):
    """Returns TF_CONFIG for one task; with a chief, worker 0 is called so."""
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


def tasks_of(copy: pathlib.Path):
    """Returns the processes that still run a script of this copy, after a moment."""
    time.sleep(0.3)
    text = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in text.splitlines() if str(copy) in line]
