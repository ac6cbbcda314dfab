"""Every mistake a person can make: one sentence, status 2, no server, no traceback."""

from __future__ import annotations

import importlib.util
import io
import json
import pickle
import socket
import subprocess
import sys
import zipfile

import launch
import numpy as np
import pytest
import registry
from launch import REPO
from sklearn import datasets

SCHEMES = registry.folders("ps")
FAMILIES = ["Non-Distributed-Setup", "HogWild"]

GOOD = {
    "--job_name": "worker",
    "--task_index": "0",
    "--ps_hosts": "localhost:21001",
    "--worker_hosts": "localhost:21002,localhost:21003",
}
TASK = {"type": "worker", "index": 0}
CLUSTER = {"ps": ["a:1"], "worker": ["b:1"]}

# what differs from GOOD (None: left out), and words of the sentence: flag and value
MISTAKES = [
    ({"--job_name": "wroker"}, ["--job_name", "'wroker'"]),
    (
        {"--job_name": None},
        ["--job_name is missing: job_name, task_index, ps_hosts, worker_hosts"],
    ),
    ({"--task_index": None}, ["--task_index is missing"]),
    ({"--task_index": "2"}, ["--task_index 2", "2 entries"]),
    ({"--task_index": "one"}, ["--task_index", "'one'"]),
    ({"--ps_hosts": None}, ["--ps_hosts is missing"]),
    ({"--ps_hosts": ""}, ["--ps_hosts: '' is not host:port"]),
    ({"--worker_hosts": ""}, ["--worker_hosts: '' is not host:port"]),
    ({"--ps_hosts": "localhost"}, ["--ps_hosts", "'localhost' is not host:port"]),
    ({"--ps_hosts": "a:x"}, ["--ps_hosts", "'a:x' is not host:port"]),
    ({"--ps_hosts": "a:70000"}, ["--ps_hosts", "'a:70000' is not host:port"]),
    ({"--worker_hosts": "a:1,b:1,"}, ["--worker_hosts", "'' is not host:port"]),
    ({"--ps_hosts": "2222"}, ["--ps_hosts", "'2222' is not host:port"]),
    ({"--ps_hosts": "::1:2222"}, ["--ps_hosts", "'::1:2222' is not host:port"]),
    ({"--ps_hosts": "[::1]"}, ["--ps_hosts", "'[::1]' is not host:port"]),
    ({"--patience": "0"}, ["--patience", "'0'"]),
    ({"--worker_hosts": "a:1, b:1"}, ["--worker_hosts", "' b:1' is not host:port"]),
    (
        {"--worker_hosts": "a:1,a:1"},
        ["--worker_hosts", "a:1 is listed twice", "ports must differ"],
    ),
    (
        {"--worker_hosts": "localhost:21001"},
        ["--worker_hosts", "localhost:21001 is listed twice", "--ps_hosts"],
    ),
    ({"--steps": "0"}, ["--steps", "'0'"]),
    ({"--steps": "1.5"}, ["--steps", "'1.5'"]),
    ({"--batch_size": "0"}, ["--batch_size", "'0'"]),
    ({"--learning_rate": "0"}, ["--learning_rate", "'0'"]),
    ({"--learning_rate": "nan"}, ["--learning_rate", "'nan'"]),
    ({"--learning_rate": "fast"}, ["--learning_rate", "'fast'"]),
    ({"--seed": "-1"}, ["--seed", "'-1'"]),
    ({"--save_seconds": "0"}, ["--save_seconds", "'0'"]),
    ({"--slow_workers": "0,-1"}, ["--slow_workers", "'-1'"]),
    ({"--logdir": "gs://b/x"}, ["--logdir", "is not on this machine"]),
    ({"--stepz": "3"}, ["unrecognized", "--stepz=3"]),
    ({"--learning": "0.1"}, ["unrecognized arguments: --learning=0.1\n"]),
]
# the same of the flags that one scheme has
OWN_MISTAKES = [
    ("DC-ASGD", {"--variance": "none"}, ["--variance", "'none'"]),
    ("DC-ASGD", {"--strength": "-1"}, ["--strength", "'-1'"]),
    ("DC-ASGD", {"--decay": "1"}, ["--decay", "'1'"]),
    ("Stale-Synchronous-Parallel", {"--staleness": "-1"}, ["--staleness", "'-1'"]),
    ("Gradient-Compression", {"--method": "zip"}, ["--method", "'zip'"]),
    ("Gradient-Compression", {"--keep": "0"}, ["--keep", "'0'"]),
    ("Gradient-Compression", {"--keep": "1.1"}, ["--keep", "'1.1'"]),
    (
        "Gradient-Compression",
        {"--method": "sign", "--momentum": "0.9"},
        ["--momentum needs topk or random_k"],
    ),
    (
        "Gradient-Compression",
        {"--error_feedback": "off", "--momentum": "0.9"},
        ["--error_feedback on"],
    ),
    (
        "Gradient-Compression",
        {"--method": "int8", "--warmup": "5"},
        ["--warmup 5", "--method int8 sends all elements"],
    ),
    ("DOWNPOUR-Easy", {"--window": "0"}, ["--window", "'0'"]),
    ("DOWNPOUR-Easy", {"--server_learning_rate": "0"}, ["--server_learning_rate"]),
    ("Async-DiLoCo", {"--outer": "adam"}, ["--outer", "'adam'"]),
    ("Async-DiLoCo", {"--momentum": "1"}, ["--momentum", "'1'"]),
    ("Async-DiLoCo", {"--spread": "0.6"}, ["--spread 0.6", "--delay, which is 2"]),
    (
        "Async-DiLoCo",
        {"--outer": "sgd", "--delay": "2"},
        ["--outer sgd", "no --delay"],
    ),
    ("AEASGD", {"--beta": "1"}, ["--beta", "'1'"]),
    ("AEAMSGD", {"--momentum": "-0.1"}, ["--momentum", "'-0.1'"]),
    ("Decoupled-DiLoCo", {"--quorum": "3"}, ["--quorum 3", "2 workers"]),
    ("Decoupled-DiLoCo", {"--overlap": "5"}, ["--window 24", "--overlap"]),
    ("Decoupled-DiLoCo", {"--grace": "1.1"}, ["--grace 1.1", "at most 1"]),
    ("FedBuff", {"--buffer": "0"}, ["--buffer", "'0'"]),
    ("FedBuff", {"--staleness": "none"}, ["--staleness", "'none'"]),
    ("FedBuff", {"--alpha": "1.1"}, ["--alpha", "'1.1'"]),
    ("FedBuff", {"--skew": "0"}, ["--skew", "'0'"]),
    ("Synchronous-SGD", {"--replicas_to_aggregate": "0"}, ["'0'"]),
    ("SAGN", {"--replicas_to_aggregate": "3"}, ["_aggregate 3", "2 workers"]),
    (
        "Synchronous-SGD-different-learning-rates",
        {"--learning_rates": "0.1,0"},
        ["--learning_rates", "'0'"],
    ),
    ("Multiple-GPUs-Single-Machine", {"--device": "tpu"}, ["--device", "'tpu'"]),
]
TF_CONFIGS = [
    ("{", ["TF_CONFIG must look like"]),
    ("[]", ["TF_CONFIG must look like"]),
    (json.dumps({"cluster": CLUSTER}), ["TF_CONFIG must look like"]),
    (
        json.dumps({"cluster": {**CLUSTER, "wrkr": ["c:1"]}, "task": TASK}),
        ["TF_CONFIG must look like"],
    ),
    (
        json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}),
        ["TF_CONFIG: here is no task of type evaluator"],
    ),
    (
        json.dumps({"cluster": CLUSTER, "task": {"type": "wrkr", "index": 0}}),
        ["TF_CONFIG: here is no task of type wrkr"],
    ),
    (
        json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": "x"}}),
        ["TF_CONFIG must look like"],
    ),
    (
        json.dumps({"cluster": {**CLUSTER, "worker": {"0": "b:1"}}, "task": TASK}),
        ["'0' is not host:port"],
    ),
    (
        json.dumps({"cluster": {**CLUSTER, "ps": "a:1"}, "task": TASK}),
        ["'a' is not host:port"],
    ),
    (
        json.dumps({"cluster": {**CLUSTER, "ps": [2222]}, "task": TASK}),
        ["'2222' is not host:port"],
    ),
    (
        json.dumps({"cluster": {**CLUSTER, "ps": []}, "task": TASK}),
        ["TF_CONFIG must look like"],
    ),
    (json.dumps({"cluster": ["a:1"], "task": TASK}), ["TF_CONFIG must look like"]),
    (
        json.dumps(
            {
                "cluster": {**CLUSTER, "chief": ["c:1"], "master": ["d:1"]},
                "task": {"type": "chief", "index": 0},
            }
        ),
        ["TF_CONFIG must look like"],
    ),
    (
        json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}),
        ["--task_index 1", "--worker_hosts has 1 entries"],
    ),
    (
        json.dumps({"cluster": {"worker": ["b:1"]}, "task": TASK}),
        ["TF_CONFIG must look like"],
    ),
]


def flags(changes):
    """Returns GOOD with the changes as a command line."""
    words = []
    for flag, value in {**GOOD, **changes}.items():
        words += [] if value is None else [f"{flag}={value}"]
    return words


def check(status, text, words):
    """Asserts that a mistake is one sentence, after what run.sh is about to do."""
    before = "run.sh: checks the ", "still "
    lines = [x for x in text.splitlines() if not x.startswith(before)]
    assert status == 2, text
    assert len(lines) == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


def hand(folder, words, **env):
    """Runs a task by hand; returns its status and everything it printed."""
    script = REPO / folder / registry.script_of(folder)
    done = subprocess.run(
        [sys.executable, str(script), *words],
        env=launch.environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.quick
@pytest.mark.parametrize("folder", SCHEMES)
def test_every_script_refuses_them(folder, capsys, monkeypatch):
    """The same table, in process: nothing but the parser runs."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    script = launch.load(folder)
    for changes, words in MISTAKES:
        with pytest.raises(SystemExit) as end:
            script.parse_args(flags(changes))
        check(end.value.code, capsys.readouterr().err, words)
    for text, words in TF_CONFIGS:
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(SystemExit) as end:
            script.parse_args([])
        check(end.value.code, capsys.readouterr().err, words)


@pytest.mark.quick
@pytest.mark.parametrize("folder, changes, words", OWN_MISTAKES)
def test_a_wrong_flag_of_a_scheme(folder, changes, words, capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(SystemExit) as end:
        launch.load(folder).parse_args(flags(changes))
    check(end.value.code, capsys.readouterr().err, words)


def test_a_wrong_tf_config():
    """By a real command one of them; `test_every_script_refuses_them` has all."""
    text, words = TF_CONFIGS[0]
    check(*hand("HogWild", [], TF_CONFIG=text), words)


@pytest.mark.quick
def test_an_evaluator_in_the_cluster_is_not_mine(monkeypatch):
    """Estimators had one; ours is another program's then."""
    cluster = {**CLUSTER, "chief": ["c:1"], "evaluator": ["e:1"]}
    for task, index in [({"type": "chief", "index": 0}, 0), (TASK, 1)]:
        text = json.dumps({"cluster": cluster, "task": task})
        monkeypatch.setenv("TF_CONFIG", text)
        args = launch.load("HogWild").parse_args([])
        assert (args.ps_hosts, args.worker_hosts) == (["a:1"], ["c:1", "b:1"])
        assert (args.job_name, args.task_index) == ("worker", index)


def test_a_lone_flag_beside_tf_config(monkeypatch, capsys):
    text = json.dumps({"cluster": CLUSTER, "task": TASK})
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(SystemExit) as end:
        launch.load("HogWild").parse_args(["--task_index", "0"])
    words = ["--job_name is missing: job_name, task_index, ps_hosts, worker_hosts"]
    check(end.value.code, capsys.readouterr().err, words)


def test_neither_flags_nor_tf_config():
    check(
        *hand("HogWild", []),
        ["--job_name is missing: job_name, task_index, ps_hosts, worker_hosts"],
    )


def test_a_wrong_flag_ends_before_tensorflow_is_imported():
    """So no server can have been started, and the answer takes no seconds."""
    code = (
        "import sys; sys.path.insert(0, '.'); sys.argv[0] = 'x'\n"
        "import hogwild\n"
        "try: hogwild.parse_args(['--job_name', 'ps'])\n"
        "finally: assert not any(m.startswith('tensorflow') for m in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPO / "HogWild",
        env=launch.environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
    )
    check(done.returncode, done.stderr, ["--task_index is missing"])


def test_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        status, text = hand("HogWild", flags({"--worker_hosts": f"localhost:{port}"}))
        check(status, text, ["--worker_hosts", f"localhost:{port} is in use"])


@pytest.mark.starts
@pytest.mark.parametrize("folder", FAMILIES)
def test_run_sh_says_a_mistake_once(folder, tmp_path):
    copy = launch.copy_of(folder, tmp_path)
    cases = [
        (["--stepz", "3"], {}, ["--stepz 3"]),
        (["--data", "none.npz"], {}, ["--data none.npz", "no such file"]),
        (["--data=cifar"], {}, ["--data cifar", "digits, mnist"]),
        ([], {"TIMEOUT": "soon"}, ["TIMEOUT=soon"]),
        ([], {"MAX_RESTARTS": "-1"}, ["MAX_RESTARTS=-1"]),
        ([], {"PYTHON": "no-python"}, ["PYTHON=no-python"]),
    ]
    if folder in SCHEMES:
        cases += [
            ([], {"NUM_WORKERS": "0"}, ["NUM_WORKERS=0"]),
            ([], {"NUM_PS": "x"}, ["NUM_PS=x"]),
            ([], {"BASE_PORT": "65535"}, ["BASE_PORT=65535"]),
        ]
    for arguments, env, words in cases:
        with launch.run_sh(copy, *arguments, **env) as run:
            check(run.wait(60), run.output, words)
            run.nothing_left()
    assert not list(copy.glob("logdir/*/*.log"))


def test_run_sh_refuses_a_busy_base_port(tmp_path):
    copy = launch.copy_of("HogWild", tmp_path)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1] - 1
        with launch.run_sh(copy, BASE_PORT=str(port)) as run:
            check(run.wait(60), run.output, [f"BASE_PORT={port}", f"{port + 1} is in"])


def arrays(**changes):
    """Returns a small data set in Keras' MNIST format, with changes."""
    rng = np.random.default_rng(0)
    made = {
        "x_train": rng.integers(0, 256, (50, 28, 28), np.uint8),
        "y_train": np.arange(50, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (20, 28, 28), np.uint8),
        "y_test": np.arange(20, dtype=np.uint8) % 10,
    }
    made.update(changes)
    return {key: value for key, value in made.items() if value is not None}


def only(value, key, row):
    """Returns images of zeros, with this value in one row of one array."""
    changes = {"x_train": np.zeros((50, 28, 28)), "x_test": np.zeros((20, 28, 28))}
    changes[key][row, 5, 5] = value
    return changes


BAD_DATA = [
    ({"y_test": None}, ["has no y_test"]),
    ({"x_train": np.zeros((0, 28, 28), np.uint8)}, ["x_train", "empty"]),
    ({"y_train": np.zeros(0, np.uint8)}, ["y_train", "empty"]),
    ({"y_train": np.zeros(49, np.uint8)}, ["y_train (49,)", "50 images"]),
    ({"y_train": np.zeros((50, 10), np.uint8)}, ["y_train (50, 10)"]),
    ({"y_train": np.zeros(50)}, ["y_train", "integers, not float64"]),
    ({"y_train": np.arange(50) % 10 - 1}, ["y_train has label -1", "0 to 9"]),
    ({"y_train": np.arange(50) % 10 + 1}, ["y_train has label 10", "0 to 9"]),
    ({"x_test": np.zeros((20, 8, 8))}, ["x_test", "(8, 8)"]),
    ({"x_test": np.zeros((20, 28, 28))}, ["x_train is uint8, x_test float64"]),
    (only(np.nan, "x_train", 7), ["x_train", "finite numbers: row 7 has nan"]),
    (only(-np.inf, "x_test", 19), ["x_test", "finite numbers: row 19 has -inf"]),
    (only(1e39, "x_train", 3), ["x_train", "finite numbers: row 3 has 1e+39"]),
    ({"x_train": np.zeros((50, 28, 28), complex)}, ["x_train", "complex128"]),
    ({"x_train": np.zeros((50, 28, 28), object)}, ["not a readable", "Object arrays"]),
    ({"y_train": np.full(50, None)}, ["not a readable", "Object arrays"]),
    ({"y_train": np.zeros(50, int), "y_test": np.zeros(20, int)}, ["has one class"]),
    ({"x_train": np.float32(3)}, ["x_train ()", "empty"]),
    ({"y_train": np.array(["a"] * 50)}, ["y_train", "integers"]),
    ({"x_train": np.full((50, 2), "a")}, ["x_train", "numbers, not <U1"]),
]


@pytest.fixture
def problem():
    launch.load("HogWild")
    return sys.modules["problem"]


def check_data(problem, name, words, workers=1):
    """Asserts that `load` raises a sentence."""
    with pytest.raises(ValueError) as error:
        problem.load(name, workers)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("changes, words", BAD_DATA, ids=lambda v: str(v)[:30])
def test_bad_data(changes, words, tmp_path, problem):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays(**changes))
    check_data(problem, str(path), words)


def test_truncated_data(tmp_path, problem):
    path = tmp_path / "cut.npz"
    np.savez(path, **arrays())
    path.write_bytes(path.read_bytes()[:3000])
    check_data(problem, str(path), ["not a readable"])


def npz(path, **members):
    """Writes a .npz whose members are these bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def test_a_pickle_is_not_read(tmp_path, problem):
    """Reading it would run whatever code is in it."""

    class Dangerous:
        def __reduce__(self):
            return (tmp_path.joinpath("was here").touch, ())

    path = tmp_path / "pickle.npz"
    good = arrays()
    good["x_test"] = np.array([Dangerous()], object)
    np.savez(path, **good)
    (tmp_path / "was here").unlink(missing_ok=True)
    path_alone = tmp_path / "alone.npz"
    path_alone.write_bytes(pickle.dumps(Dangerous()))
    for bad in (path, path_alone):
        check_data(problem, str(bad), ["not a readable"])
    assert not (tmp_path / "was here").exists()


def test_a_few_bytes_that_claim_terabytes(tmp_path, problem):
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (2**45, 2)}
    np.lib.format.write_array_header_1_0(header, shape)
    npz(path, x_train=header.getvalue() + bytes(1000))
    check_data(problem, str(path), ["not a readable"])


def test_a_directory_and_a_file_that_is_not_a_zip(tmp_path, problem):
    folder, text = tmp_path / "folder.npz", tmp_path / "text.npz"
    folder.mkdir()
    text.write_text("hello")
    (tmp_path / "empty.npz").touch()
    check_data(problem, str(folder), ["no such file"])
    check_data(problem, str(text), ["not a readable"])
    check_data(problem, str(tmp_path / "empty.npz"), ["not a readable"])


def test_more_workers_than_rows(problem):
    assert len(problem.load("digits", 1437).y_train) == 1437
    words = ["1437 training rows for 1438 workers"]
    check_data(problem, "digits", words, workers=1438)


def test_without_scikit_learn(tmp_path, problem, monkeypatch):
    """The check before anything starts says it; nothing else of a run is tried."""
    words = ["scikit-learn", "pip install scikit-learn"]
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        check_data(problem, "digits", words)
    # Read by every Python that starts: no folder has a package sklearn.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = lambda name, *rest: (\n"
        "    None if name.startswith('sklearn') else find(name, *rest))\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    logdir = f"--logdir={tmp_path / 'logdir'}"
    for more in ([], ["--check"]):
        status, text = hand("Non-Distributed-Setup", [logdir, *more], **env)
        check(status, text, ["--data digits: ", *words])
    assert hand("HogWild", [*flags({}), logdir, "--check"])[0] == 0
    copy = launch.copy_of("HogWild", tmp_path)
    with launch.run_sh(copy, logdir, **env) as run:
        assert run.wait(60) == 2, run.output
    assert all(word in run.lines[-1] for word in words)


def test_mnist_without_network_says_what_to_do(tmp_path):
    """The cache is empty, and the proxy leads nowhere."""
    status, text = hand(
        "Non-Distributed-Setup",
        ["--data", "mnist", "--check", f"--logdir={tmp_path}"],
        KERAS_HOME=str(tmp_path),
        HOME=str(tmp_path),
        https_proxy="http://127.0.0.1:9",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert status == 2, text
    last = text.strip().splitlines()[-1]
    assert "--data mnist: the download failed" in last
    assert "use --data digits, or --data FILE.npz" in last
    assert "Traceback" not in text


def test_keras_format_trains_28x28_images(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays())
    copy = launch.copy_of("Non-Distributed-Setup", tmp_path)
    logdir = tmp_path / "logdir"
    arguments = ["--data", "mine.npz", "--steps", "50"]
    with launch.Launch(
        ["bash", str(copy / "run.sh"), *arguments], copy, LOGDIR=str(logdir)
    ) as run:
        status = run.wait()
    # The path is the user's: relative to where the command was typed.
    assert status == 2 and "mine.npz: no such file" in run.output
    arguments[1] = str(path)
    with launch.run_sh(copy, *arguments, LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    assert launch.result(logdir)["data"] == str(path)


def test_what_is_wrong_with_a_file_is_said_once(tmp_path):
    """By the launcher, before anything starts: types that differ, and which row."""
    copy = launch.copy_of("HogWild", tmp_path)
    for changes, words in [
        ({"x_test": np.zeros((20, 28, 28))}, ["x_train is uint8, x_test float64"]),
        (only(np.nan, "x_test", 13), ["x_test must hold finite", "row 13 has nan"]),
    ]:
        path = tmp_path / "bad.npz"
        np.savez(path, **arrays(**changes))
        with launch.run_sh(copy, "--data", str(path)) as run:
            check(run.wait(60), run.output, [f"--data {path}: ", *words])


def alternating():
    """Returns the digits as a file's arrays; in even rows of x_train are even ones."""
    images, labels = datasets.load_digits(return_X_y=True)
    images, train = images.astype(np.uint8), np.arange(1400)
    even, odd = (train[labels[:1400] % 2 == rest] for rest in (0, 1))
    size = min(len(even), len(odd))
    rows = np.stack([even[:size], odd[:size]], axis=1).ravel()
    made = {"x_train": images[rows], "y_train": labels[rows]}
    return {**made, "x_test": images[1400:], "y_test": labels[1400:]}


CLASSES = """

_batches = batches


def batches(*given):
    data, *_, worker, workers = given
    print("classes", *sorted({int(k) for k in data.y_train[worker::workers]}))
    return _batches(*given)
"""


def test_labels_that_alternate(tmp_path):
    """Each of two workers has all classes, and the model is that of one process."""
    path, accuracies = tmp_path / "alternating.npz", []
    np.savez(path, **alternating())
    for folder, workers in ("Non-Distributed-Setup", 1), ("HogWild", 2):
        copy, logdir = launch.copy_of(folder, tmp_path), tmp_path / folder
        with open(copy / "problem.py", "a") as file:
            file.write(CLASSES)
        words = ["--data", str(path), "--steps", "2000", "--logdir", str(logdir)]
        with launch.run_sh(copy, *words) as run:
            assert run.wait() == 0, run.output
        assert run.output.count("classes 0 1 2 3 4 5 6 7 8 9") == workers, run.output
        assert "is of class" not in run.output
        accuracies.append(launch.result(logdir)["test_accuracy"])
    assert min(accuracies) > 0.9 and abs(accuracies[1] - accuracies[0]) < 0.03


def test_what_is_seldom_meant_is_said_by_one_worker(tmp_path):
    """Float images up to 255, and a class of which there is one row."""
    path = tmp_path / "odd.npz"
    good = arrays(y_train=np.arange(50) % 9)
    good.update({key: good[key].astype(float) for key in ("x_train", "x_test")})
    good["y_train"][0], good["y_test"] = 9, good["y_test"] % 9
    np.savez(path, **good)
    copy = launch.copy_of("HogWild", tmp_path)
    with launch.run_sh(copy, "--data", str(path), "--steps", "20") as run:
        assert run.wait(60) == 0, run.output
    assert run.output.count(": none of its 25 rows is of class 9") == 1, run.output
    assert run.output.count("x_train reaches 255: divide pixels by 255") == 1


TOKENS = """


def shapes_of(data):
    return [(20, 2)]


def model(parameters, images, training=False):
    return tf.one_hot(tf.cast(images[:, 0], tf.int32), 20) @ parameters[0]
"""


def test_token_ids_stay_what_they_are(tmp_path):
    """A row of the table for each; the label follows from the id."""
    path, logdir = tmp_path / "tokens.npz", tmp_path / "logdir"
    x = np.arange(400).reshape(-1, 1) % 20
    y = x[:, 0] // 3 % 2
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    copy = launch.copy_of("Non-Distributed-Setup", tmp_path)
    with open(copy / "problem.py", "a") as file:
        file.write(TOKENS)
    words = ["--data", str(path), "--steps", "500", "--logdir", str(logdir)]
    with launch.run_sh(copy, *words) as run:
        assert run.wait() == 0, run.output
    assert launch.result(logdir)["test_accuracy"] == 1


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shards_are_disjoint_and_complete(workers, problem):
    """Two epochs of every worker's batches hold each of its rows exactly twice."""
    from cluster import tensorflow_v1 as tf

    rows = 42
    data = problem.Data(
        np.arange(rows, dtype=np.float32).reshape(rows, 1),
        np.zeros(rows, np.int32),
        None,
        None,
    )
    seen = []
    for worker in range(workers):
        with tf.Graph().as_default(), tf.Session() as session:
            image, _ = problem.batches(data, 1, 3, worker, workers)()
            session.run(tf.tables_initializer())
            size = len(range(worker, rows, workers))
            values = [int(session.run(image)[0, 0]) for _ in range(2 * size)]
        epochs = values[:size], values[size:]
        assert (
            sorted(epochs[0]) == sorted(epochs[1]) == list(range(rows))[worker::workers]
        )
        assert size < 3 or epochs[0] != epochs[1]
        seen += epochs[0]
    assert sorted(seen) == list(range(rows))
