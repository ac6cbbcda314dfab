"""The engines: what can be checked without them, and a run with each that is here.

Engines/matrix.py runs every example under every engine; here is a selection.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import launch
import matrix
import pytest
import registry
import test_set_up
import tree

ENGINES = launch.REPO / "Engines"
NAMES = [engine.name for engine in registry.ENGINES]
# Why an engine cannot be had here, "" if it can; conftest.py says it at the end.
MISSING = {name: matrix.version(name)[1] for name in NAMES}
# A package of Python that run.sh installs itself, see test_engines_python.py.
PACKAGED = ["Ray"]
# What every run.sh may count on. An engine's own commands are not among them.
BASE = """awk bash basename cat chmod cp cut date dirname env flock grep head hostname
id ln ls mkdir mktemp mount mv rm sed seq sh sleep sort tail tee tr uname unshare"""


def need(engine):
    """Skips a test if an engine cannot be had here, and says why."""
    if MISSING[engine]:
        pytest.skip(MISSING[engine])


def here(engine):
    """Marks a test of one engine."""
    return pytest.mark.skipif(bool(MISSING[engine]), reason=MISSING[engine] or "-")


def run_sh(engine, *arguments, **env):
    """Returns the finished process of an engine's run.sh."""
    command = ["bash", ENGINES / engine / "run.sh", *arguments]
    limit = 120 * launch.PATIENT
    return tree.run(*command, env=launch.environment(**env), timeout=limit)


@contextlib.contextmanager
def temporary():
    """Gives a TMPDIR, short enough for sockets; asserts that it is empty again."""
    with tempfile.TemporaryDirectory(prefix="e-", dir="/tmp") as folder:
        yield folder
        assert os.listdir(folder) == []


def one_sentence(done, status, *words):
    """Asserts a status and one line that says why, be it after a first environment."""
    assert done.returncode == status, done.stdout + done.stderr
    said = re.sub("^run.sh: makes an environment .*\n", "", done.stderr)
    assert said.count("\n") == 1 and "Traceback" not in said, done.stderr
    assert all(word in said for word in words), done.stderr


# --- Without any engine -------------------------------------------------------


@pytest.mark.parametrize("engine", [name for name in NAMES if name not in PACKAGED])
def test_an_engine_that_is_not_installed(engine, tmp_path):
    """A sentence that says how to install it and status 3, for a run too."""
    for name in BASE.split():
        if shutil.which(name):
            (tmp_path / name).symlink_to(shutil.which(name))
    env = {"PATH": str(tmp_path), "JAVA_HOME": "", "LOGDIR": str(tmp_path / "logdir")}
    for arguments in (["--version"], ["HogWild", "--steps", "20"]):
        done = run_sh(engine, *arguments, **env)
        one_sentence(done, 3, engine, "install")
    assert not (tmp_path / "logdir").exists()


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["Hogwild"], {}, ['there is no example "Hogwild"; did you mean HogWild?']),
        (["HogWild", "--stepz", "3"], {}, ["unrecognized arguments: --stepz 3"]),
        (["HogWild", "--job_name", "ps"], {}, ["--job_name"]),
        (["HogWild"], {"NUM_WORKERS": "x"}, ["NUM_WORKERS=x is not a whole number"]),
        (["HogWild"], {"TIMEOUT": "0"}, ["TIMEOUT=0"]),
        (["HogWild", "--data", "no.npz"], {}, ["--data no.npz"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_use(arguments, env, words, tmp_path):
    """common.sh reads it, for every engine; Kubernetes' files take no cluster."""
    env = {"LOGDIR": str(tmp_path / "logdir"), "DRY_RUN": "1", **env}
    one_sentence(run_sh("Kubernetes", *arguments, **env), 2, *words)
    assert not (tmp_path / "logdir").exists()


def test_a_set_up_says_nothing_where_an_engine_writes(tmp_path):
    """`bash run.sh Engines/Kubernetes ... >file`, in a clone without an environment."""
    fresh = test_set_up.Fresh(tmp_path)
    (fresh.root / "Engines" / "Toy").mkdir(parents=True)
    (fresh.root / "Engines" / "Toy" / "run.sh").write_text("echo 'kind: Toy'\n")
    done = fresh.run("Engines/Toy")
    assert (done.returncode, done.stdout) == (0, "kind: Toy\n")
    assert done.stderr.startswith("setup: making ")


@pytest.mark.parametrize(
    ("writes", "said"),
    [
        (":", "status 0 and no result.json"),
        ("exit 7", "status 7"),
    ],
)
def test_what_the_matrix_calls_wrong(writes, said, tmp_path, monkeypatch):
    """Of an engine that ends with status 0, whatever it has done."""
    (tmp_path / "Toy").mkdir()
    (tmp_path / "Toy" / "run.sh").write_text(f'mkdir -p "$LOGDIR"\n{writes}\n')
    monkeypatch.setattr(matrix, "ENGINES", tmp_path)
    assert matrix.cell("Toy", "HogWild")["wrong"] == said


def adapted(engine, env, arguments=(), path=None):
    """Returns what an adapter hands to a script: TF_CONFIG and arguments."""
    code = "import os, sys; print(os.environ['TF_CONFIG']); print(sys.argv[1:])"
    script = path / "script.py"
    script.write_text(code)
    command = [sys.executable, str(ENGINES / engine / "adapter.py"), *arguments]
    command += [str(script), "--steps", "3"]
    full = {"PATH": f"{path}:{os.environ['PATH']}", **env}
    done = subprocess.run(command, env=full, capture_output=True, text=True)
    if done.returncode:
        return done.stderr
    config, rest = done.stdout.splitlines()
    assert rest == "['--steps', '3']"
    return json.loads(config)


def mpi(
    rank, size, local, tmp_path, hosts="a slots=2\n# no\nb # one slot\nc slots=9", **env
):
    hostfile = tmp_path / "hosts"
    hostfile.write_text(hosts)
    names = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local}
    env |= {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
    return adapted("MPI", env, [str(hostfile)], tmp_path)


def test_the_adapter_of_mpi(tmp_path):
    assert mpi(2, 4, 0, tmp_path) == {
        "cluster": {"ps": ["a:2222"], "worker": ["a:2223", "b:2224", "c:2225"]},
        "task": {"type": "worker", "index": 1},
    }
    got = mpi(1, 3, 1, tmp_path, NUM_PS="2", BASE_PORT="3000")
    assert got["cluster"] == {"ps": ["a:3000", "a:3001"], "worker": ["b:3002"]}
    assert got["task"] == {"type": "ps", "index": 1}
    got = mpi(0, 1, 0, tmp_path, NUM_PS="0")
    assert got["cluster"] == {"worker": ["a:2222"]}
    assert "13 ranks and 12 slots" in mpi(0, 13, 0, tmp_path)
    assert "slot by slot" in mpi(1, 3, 0, tmp_path)


def slurm(rank, node, tmp_path, job=7, tasks="2,1", **env):
    fake = tmp_path / "scontrol"
    fake.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 && echo n2\n'
    )
    fake.chmod(0o755)
    env |= {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node)}
    env |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": tasks}
    return adapted("Slurm", {**env, "SLURM_JOB_ID": str(job)}, path=tmp_path)


def test_the_adapter_of_slurm(tmp_path):
    assert slurm(2, 1, tmp_path) == {
        "cluster": {"ps": ["n1:15448"], "worker": ["n1:15449", "n2:15450"]},
        "task": {"type": "worker", "index": 1},
    }
    got = slurm(3, 1, tmp_path, tasks="2(x2)", NUM_PS="2", BASE_PORT="3000")
    assert got["cluster"]["worker"] == ["n2:3002", "n2:3003"]
    assert "in blocks" in slurm(1, 1, tmp_path)


def test_jobs_on_one_node_have_ports_of_their_own(tmp_path):
    """Of any 250 jobs in a row no two have a port in common."""
    first = [
        int(slurm(0, 0, tmp_path, job)["cluster"]["ps"][0].rpartition(":")[2])
        for job in (1, 2, 100, 250, 251)
    ]
    assert first[1] - first[0] == 64 and first[4] == first[0]
    assert all(15000 <= port <= 31000 - 64 for port in first)


# --- With the engines that are here -------------------------------------------


@pytest.mark.long
@launch.if_engines
@pytest.mark.parametrize("engine", NAMES)
def test_a_run(engine):
    """Status 0, the right result, nothing left. The matrix has every example."""
    need(engine)
    done = matrix.cell(engine, "HogWild")
    assert not done["wrong"], done["output"]


@launch.if_thorough
@pytest.mark.parametrize(
    ("engine", "example", "env"),
    [
        ("Slurm", "Synchronous-SGD", {"NUM_PS": "2", "NUM_WORKERS": "3"}),
        ("MPI", "Non-Distributed-Setup", {}),
        # No socket of Ray fits behind it.
        ("Ray", "Distributed-Setup", {"TMPDIR": "/tmp" + "/." * 20}),
    ],
)
def test_more_runs(engine, example, env):
    need(engine)
    done = matrix.cell(engine, example, **env)
    assert not done["wrong"], done["output"]


@launch.if_engines
@pytest.mark.parametrize(
    "engine",
    launch.some(["MPI"], ["MPI", "Slurm", "Several-Hosts", "Ray", "Spark"]),
)
def test_a_coordinator(engine):
    """What the adapters know of HogWild they know of ParameterServerStrategy."""
    need(engine)
    done = matrix.cell(engine, "TensorFlow-2", scheme="parameter_server_strategy")
    assert not done["wrong"], done["output"]


class Rehearsal(launch.Launch):
    """An engine's run.sh that is under way."""

    def __init__(self, engine, logdir, *options, **env):
        script = ENGINES / engine / "run.sh"
        options = ["--logdir", str(logdir), *options]
        command = ["bash", str(script), "HogWild", *options]
        super().__init__(command, script.parent, LOGDIR="", **env)
        self.logdir = logdir

    def tasks(self):
        """Returns every process that was started for this run."""
        return matrix.processes(str(self.logdir))

    def worker(self, index):
        """Returns the process of one worker; worker 0 is the chief, of whatever job."""
        for process in self.tasks():
            config = json.loads(process.environ().get("TF_CONFIG", "{}"))
            task, cluster = config.get("task", {}), config.get("cluster", {})
            others = index - len(cluster.get("chief", []))
            if task == {"type": "worker", "index": others}:
                return process
        raise AssertionError(f"no worker {index} in:\n{self.output}")


LONG = ["--steps", "100000", "--slow_workers", "0.01", "--save_seconds", "1"]


# Daemons of its own, and tasks that are not run.sh's children: the one that is hardest
# to end. The others take as long, and are ended by the same lines.
ALWAYS = ("Slurm", signal.SIGTERM)


@launch.if_engines
@pytest.mark.parametrize(
    ("engine", "number"),
    [
        pytest.param(*pair, marks=[] if pair == ALWAYS else launch.if_thorough)
        for pair in itertools.product(NAMES, [signal.SIGINT, signal.SIGTERM])
    ],
)
def test_interrupted(engine, number, tmp_path):
    need(engine)
    with (
        temporary() as folder,
        Rehearsal(engine, tmp_path / "run", *LONG, TMPDIR=folder) as run,
    ):
        run.wait_for("  loss ")
        run.process.send_signal(number)
        assert run.wait(30) == 128 + number, run.output
        launch.wait_until(lambda: not run.tasks(), 5)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@here("MPI")
def test_a_busy_port(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_sh("MPI", "HogWild", LOGDIR=str(tmp_path / "run"), BASE_PORT=port)
    one_sentence(done, 2, f"port {port} is in use")


@pytest.mark.parametrize(
    ("engine", "env", "words"),
    [
        ("MPI", {"NUM_WORKERS": "16"}, ["16 slots", "17 tasks"]),
        ("Slurm", {"NUM_WORKERS": "8", "NODES": "1"}, ["8 tasks each", "for 9"]),
        ("Slurm", {"RATES": "0.1 no"}, ["--learning_rate: 'no' is not a number"]),
    ],
)
def test_too_few_slots(engine, env, words, tmp_path):
    need(engine)
    done = run_sh(engine, "HogWild", LOGDIR=str(tmp_path / "run"), **env)
    one_sentence(done, 2, *words)


def killed(engine, tmp_path, **env):
    """Kills worker 1 once there is a checkpoint; returns the run, which has ended."""
    options = ["--steps", "1000", "--slow_workers", "0.004", "--save_seconds", "1"]
    logdir = tmp_path / "run"
    with Rehearsal(engine, logdir, *options, **env) as run:
        launch.wait_until(lambda: launch.saved_step(logdir), 240, run)
        run.worker(1).kill()
        run.status = run.wait(180)
        assert not run.tasks()
    return run


def to_slurm(run, *command):
    """Runs a command of Slurm's where the rehearsal's daemons are."""
    task = run.worker(0)
    where = ["nsenter", "--net", "--mount", f"--target={task.pid}"]
    conf = task.environ()["SLURM_CONF"]
    done = subprocess.run(
        [*where, *command], env={**os.environ, "SLURM_CONF": conf}, capture_output=True
    )
    assert done.returncode == 0, done


@launch.if_thorough
@here("Slurm")
def test_scancel(tmp_path):
    with Rehearsal("Slurm", tmp_path / "run", *LONG) as run:
        run.wait_for("  loss ")
        to_slurm(run, "scancel", "1")
        assert run.wait(60) == 128 + signal.SIGTERM, run.output
        assert not run.tasks()
    assert "JobState=CANCELLED" in run.output and "Traceback" not in run.output
    assert list(run.logdir.glob("model.ckpt-*.index"))


@launch.if_thorough
@here("Slurm")
def test_a_node_of_slurm_that_fails(tmp_path):
    """Slurm starts the job again on others, without a word of job.sbatch's."""
    options = ["--steps", "1000", "--slow_workers", "0.01", "--save_seconds", "1"]
    with Rehearsal("Slurm", tmp_path / "run", *options, NODES="4") as run:
        launch.wait_until(lambda: launch.saved_step(run.logdir), 120, run)
        to_slurm(run, "scontrol", "update", "nodename=node3", "state=down", "reason=x")
        assert run.wait(180) == 0, run.output
        assert not run.tasks()
    assert re.search(r"resumes from global step [1-9]", run.output), run.output
    assert "Restarts=1" in run.output and "Traceback" not in run.output
    assert launch.result(run.logdir)["global_steps"] == 1000


@launch.if_thorough
@here("Slurm")
def test_a_sweep_of_slurm(tmp_path):
    options = ["--steps", "100", "--logdir", str(tmp_path / "run")]
    done = run_sh("Slurm", "HogWild", *options, RATES="0.01 0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    best, other = done.stdout.splitlines()[-2:]
    assert best.endswith("learning rate 0.3") and other.endswith("learning rate 0.01")
    for rate in ("0.01", "0.3"):
        assert launch.result(tmp_path / "run" / rate)["flags"][
            "learning_rate"
        ] == float(rate)


# --- Several-Hosts ------------------------------------------------------------


def test_the_adapter_of_several_hosts(tmp_path):
    me = socket.gethostname()
    got = adapted("Several-Hosts", {"HOSTS": f"p {me} b"}, path=tmp_path)
    assert got == {
        "cluster": {"ps": ["p:2222"], "worker": [f"{me}:2222", "b:2222"]},
        "task": {"type": "worker", "index": 0},
    }
    env = {"HOSTS": f"p {me} b", "NUM_PS": "2", "PORT": "99"}
    got = adapted("Several-Hosts", env, path=tmp_path)
    assert got["cluster"]["worker"] == ["b:99"]
    assert got["task"] == {"type": "ps", "index": 1}
    assert "is not in HOSTS=p b" in adapted(
        "Several-Hosts", {"HOSTS": "p b"}, path=tmp_path
    )


@launch.if_thorough
@here("Several-Hosts")
def test_hosts_behind_a_slow_link():
    """A round trip takes twice the delay: so many rounds cannot be faster."""
    env = {"DELAY": "20", "RATE": "100", "NUM_WORKERS": "1"}
    done = matrix.cell("Several-Hosts", "HogWild", steps=100, **env)
    assert not done["wrong"], done["output"]
    (rate,) = re.findall(r"global steps in .* \((\d+) steps/s", done["output"])
    assert int(rate) < 1 / 0.040


# --- Kubernetes ---------------------------------------------------------------

KUBERNETES = ENGINES / "Kubernetes"
FILES = {"hogwild-tfjob": "tfjob", "hogwild-jobs": "jobs", "pytorchjob": "pytorchjob"}


@pytest.fixture(scope="module")
def kubernetes():
    """Returns a Python that has what Kubernetes/requirements.txt names."""
    if not launch.ENGINES:
        pytest.skip("ENGINES=1 tries it")
    done = run_sh("Kubernetes", "HogWild", "--steps", "100", DRY_RUN="1")
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    # What is said of a first environment is not in what `>file` writes.
    assert done.stdout.startswith("# Written by `python generate.py HogWild ")
    return str(KUBERNETES / ".venv" / "bin" / "python")


def program(python, name, *arguments, **options):
    """Returns a finished program of the folder Kubernetes."""
    return tree.run(python, KUBERNETES / name, *arguments, **options)


@pytest.mark.parametrize("name", FILES)
def test_kubernetes_files_are_those_of_the_generator(name, kubernetes):
    kind = ["--kind", FILES[name]]
    text = program(kubernetes, "generate.py", "HogWild", *kind).stdout
    kept = (KUBERNETES / f"{name}.yaml").read_text()
    assert text.partition("\n")[2] == kept.partition("\n")[2]


@pytest.mark.parametrize("kind", ["tfjob", "jobs"])
def test_kubernetes_files_of_every_example(kind, kubernetes):
    """Checked offline: against the operator's models and Kubernetes' schemas."""
    texts = []
    for example in registry.folders():
        usual = matrix.defaults(example)
        sizes = [(str(usual["ps"]), str(usual["workers"]))]
        if example == "HogWild":
            sizes += [("2", "4"), ("1", "1")]
        for ps, workers in sizes:
            tasks = ["--ps", ps, "--workers", workers]
            done = program(kubernetes, "generate.py", example, "--kind", kind, *tasks)
            assert done.returncode == 0, done.stderr
            texts.append(done.stdout)
    done = program(kubernetes, "validate.py", "-", input="---\n".join(texts))
    assert done.returncode == 0, done.stderr


WRONG = {
    "cleanPodPolicy: Running": ("cleanPodPolicy: Some", "'Some' is not one of"),
    "  runPolicy:": ("  runPolcy:", "unknown field runPolcy"),
    "    Chief:\n      replicas: 1": ("    Chief:\n      replicas: 2", "can be one"),
    "- name: tensorflow": ("- name: main", "no container is named tensorflow"),
    "containerPort: 2222": ("containerPort: tf", "'tf' is not"),
    "TFJob\nmetadata:\n  name: h": ("TFJob\nmetadata:\n  name: 1h", "of a host's name"),
    "kind: NetworkPolicy": ("kind: NetworkPolice", "NetworkPolice"),
    "kind: TFJob": ("kind TFJob", "no apiVersion and kind"),
}


@pytest.mark.parametrize("old", WRONG)
def test_wrong_kubernetes_files_are_refused(old, kubernetes, tmp_path):
    new, said = WRONG[old]
    text = (KUBERNETES / "hogwild-tfjob.yaml").read_text()
    assert old in text
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace(old, new, 1))
    done = program(kubernetes, "validate.py", str(path))
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_get_a_tf_config_that_the_script_takes(kubernetes, monkeypatch):
    """Each pod's, with the index put in as the kubelet does."""
    flags = ["--kind", "jobs", "--ps", "2", "--workers", "3"]
    text = program(kubernetes, "generate.py", "HogWild", *flags).stdout
    configs = re.findall(r"value: '(\{.*\})'", text)
    assert len(configs) == 3
    roles = []
    for config in configs:
        job = re.search(r'"type": "(\w+)"', config)[1]
        hosts = json.loads(config.replace("$(INDEX)", "0"))["cluster"][job]
        for index, host in enumerate(hosts):
            assert host == f"hogwild-{job}-{index}.hogwild:2222"
            script, text = (
                launch.load("HogWild"),
                config.replace("$(INDEX)", str(index)),
            )
            monkeypatch.setenv("TF_CONFIG", text)
            args = script.parse_args([])
            roles.append((args.job_name, args.task_index))
            assert len(args.ps_hosts) == 2
    assert roles == [("worker", 0), ("ps", 0), ("ps", 1), ("worker", 1), ("worker", 2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "A_b"], "--name 'A_b'"),
        (["--ps", "-1"], "--ps -1 --workers 2: too few"),
        (["--workers", "0"], "--workers 0"),
        (["--kind", "pytorchjob", "--workers", "1"], "a master and at least one"),
        (["--", "--logdir", "x"], "--logdir"),
    ],
)
def test_wrong_use_of_the_generator(arguments, said, kubernetes):
    done = program(kubernetes, "generate.py", "HogWild", *arguments)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1]


KUBECTL = """#!/usr/bin/env bash
# What the cluster has lies in the folder lists: the file N is what the pods are when
# they are asked for the Nth time, N.job the job's verdict then; the last one stays. A
# line is: second of creation, uid, name, phase, exit status.
cd "$(dirname "$0")" && echo "$*" >>said
now=$(cat now 2>/dev/null || echo 0)
pod=${4#pod/} # behind: --namespace default logs
case $* in
  *" get pods "*--watch*) exec sleep 300 ;;
  *" get pods "*)
    [ ! -e "lists/$((now + 1))" ] || echo "$((now += 1))" >now
    ! grep refused "lists/$now" >&2 || exit 1
    by=3 # kubectl lists by name
    case $* in *"--sort-by .metadata.creationTimestamp"*) by=1 ;; esac
    while read -r _ uid name phase status; do
      case $* in
        *"--output name"*) echo "pod/$name" ;;
        *) echo "$uid $name $phase $status" ;;
      esac
      sleep "${SLOW:-0}"
    done <<<"$(sort -k "$by,$by" "lists/$now")"
    ;;
  *" get pod/"*)
    found=$(grep " $pod " "lists/$now") || { echo "no pod $pod" >&2; exit 1; }
    read -r _ _ _ phase status <<<"$found"
    case $* in *phase*) echo "$phase" ;; *) echo "$status" ;; esac
    ;;
  *" get job/"* | *" get tfjob/"*) cat "lists/$now.job" 2>/dev/null || echo " " ;;
  *" logs "*)
    found=$(grep " $pod " "lists/$now") || { echo "no pod $pod" >&2; exit 1; }
    read -r _ uid _ <<<"$found"
    echo "log of $uid"
    ;;
esac
"""


class Cluster:
    """A stand-in for kubectl, and what it says of the cluster at each question."""

    def __init__(self, folder, *lists, **jobs):
        self.folder, self.bin = folder, folder / "bin"
        (self.bin / "lists").mkdir(parents=True)
        for number, lines in enumerate(lists, 1):
            (self.bin / "lists" / str(number)).write_text("".join(lines))
        for number, text in jobs.items():
            (self.bin / "lists" / f"{number[1:]}.job").write_text(text)
        (self.bin / "kubectl").write_text(KUBECTL)
        (self.bin / "kubectl").chmod(0o755)

    def run(self, **env):
        """Returns the finished run.sh, which has deleted the run and left nothing."""
        path = f"{self.bin}:{os.environ['PATH']}"
        logdir = str(self.folder / "run")
        env = {"PATH": path, "TIMEOUT": "20", **env}
        with temporary() as folder:
            done = run_sh("Kubernetes", "HogWild", LOGDIR=logdir, TMPDIR=folder, **env)
        self.said = (self.bin / "said").read_text().splitlines()
        kind = env.get("KIND", "tfjob")
        # The watch begins at any time.
        said = [line for line in self.said if not line.endswith(" --watch")]
        assert " apply --filename " in said[1]
        wanted = f"delete --ignore-not-found {kind},networkpolicies,services"
        assert wanted in said[-1]
        assert matrix.processes(str(self.folder)) == []
        assert {path.name for path in self.folder.iterdir()} == {"bin", "run"}
        return done


CHIEF, PS = "1 one hogwild-chief-0 {}\n", "1 two hogwild-ps-0 Running\n"


@pytest.mark.parametrize(
    ("phase", "status"), [("Succeeded 0", 0), ("Failed 2", 2), ("Pending", 124)]
)
def test_the_commands_of_kubernetes(phase, status, kubernetes, tmp_path):
    """With a stand-in for kubectl: applied, followed to its end, deleted."""
    cluster = Cluster(tmp_path, [PS, CHIEF.format(phase)])
    # It has not written all of its list when the chief's line is there.
    done = cluster.run(TIMEOUT="3", SLOW="0.2" if phase == "Succeeded 0" else "0")
    assert done.returncode == status, done.stdout + done.stderr
    log = "" if status == 124 else "log of one\n"
    assert done.stdout.endswith(log) and done.stdout.count("log of") == len(log[:1])
    assert (tmp_path / "run" / "chief.log").read_text() == log


RUNS, GONE, ENDS = "Running", "Failed 137", "Succeeded 0"


@pytest.mark.parametrize(
    ("kind", "lists", "logs"),
    [
        # The dead pods of a Job stay, and the end of a pod's name is drawn.
        ("jobs", [[("-z", 1, GONE), ("-a", 2, ENDS)]], ["2"]),
        (
            "jobs",
            [
                [("-a", 1, GONE)],
                [("-a", 1, GONE), ("-z", 2, RUNS)],
                [("-a", 1, GONE), ("-z", 2, GONE)],
                [("-a", 1, GONE), ("-z", 2, GONE), ("-m", 3, ENDS)],
            ],
            ["1", "2", "3"],
        ),
        # A machine is lost: there is no exit status.
        ("jobs", [[("-a", 1, "Failed")], [("-a", 1, "Failed"), ("-z", 2, ENDS)]], "12"),
        # The operator deletes the pod and makes one of the same name.
        ("tfjob", [[("", 1, RUNS)], [("", 1, GONE)], [], [("", 2, ENDS)]], "12"),
    ],
)
def test_a_replaced_chief(kind, lists, logs, kubernetes, tmp_path):
    """The newest is followed, and the log of each that has ended is printed once."""
    chief = "{1} {1} hogwild-chief-0{0} {2}\n"
    named = [[chief.format(*pod) for pod in pods] for pods in lists]
    done = Cluster(tmp_path, *named).run(KIND=kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall("log of (.*)", done.stdout) == list(logs)


@pytest.mark.parametrize(
    ("kind", "lists", "status"),
    [
        # A worker's pod was deleted: all others are deleted with the TFJob.
        ("tfjob", [[CHIEF.format("Running")], []], 1),
        ("jobs", [[CHIEF.format("Running")], [CHIEF.format("Failed 137")]], 137),
    ],
)
def test_a_job_that_has_failed(kind, lists, status, kubernetes, tmp_path):
    """Nobody starts a pod again, so there is nothing to wait for."""
    why = "TFJob default/hogwild has failed because 1 Worker replica(s) failed."
    done = Cluster(tmp_path, *lists, _2=f"True {why}").run(KIND=kind)
    assert done.returncode == status, done.stdout + done.stderr
    job = "tfjob/hogwild" if kind == "tfjob" else "job/hogwild-chief"
    assert done.stderr.endswith(f"run.sh: {job} has failed: {why}\n")


REFUSED = "The connection to the server was refused\n"


def test_a_cluster_that_does_not_answer(kubernetes, tmp_path):
    """For a moment, and any more."""
    ends = [CHIEF.format("Succeeded 0")]
    done = Cluster(tmp_path / "a", [PS], [REFUSED], [REFUSED], ends).run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("log of one") == 1
    done = Cluster(tmp_path / "b", [PS], [REFUSED]).run(RETRIES="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.endswith("run.sh: kubectl has failed 2 times in a row\n")


def notebook(python, path):
    """Returns what the notebook's cells print, with the programs that path has."""
    cells = json.loads((KUBERNETES / "Kubernetes.ipynb").read_text())["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    assert all("error" != o["output_type"] for c in cells for o in c.get("outputs", []))
    done = tree.run(python, "-c", "\n".join(code), cwd=KUBERNETES, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook_of_kubernetes_runs_without_a_cluster(kubernetes, tmp_path):
    said = notebook(kubernetes, str(tmp_path))  # no kubectl
    for command in ("apply", "get tfjobs", "get pods", "describe", "logs", "delete"):
        assert f"$ kubectl {command}" in said


# A chief's log ends when somebody has deleted the job, or after 20 s.
FOLLOWED = """#!/usr/bin/env bash
cd "$(dirname "$0")" && echo "$*" >>said
case $* in
  *--follow*)
    echo "step 100"
    for ((k = 0; k < 200; k++)); do
      ! grep -q '^delete tfjob' said || exit 0
      sleep 0.1
    done
    echo "the end of the log" >>said
    ;;
esac
"""


def test_the_notebook_of_kubernetes_on_a_cluster(kubernetes, tmp_path):
    """With a stand-in for kubectl: a task dies while the chief's log is followed."""
    (tmp_path / "kubectl").write_text(FOLLOWED)
    (tmp_path / "kubectl").chmod(0o755)
    printed = notebook(kubernetes, f"{tmp_path}:{os.environ['PATH']}")
    said = (tmp_path / "said").read_text().splitlines()
    assert "the end of the log" not in said and "step 100" in printed
    assert int(re.search(r"--steps (\d+) --slow_workers 0\.01 ", printed)[1]) > 20000
    # Nobody asks a pod that may not be there yet, and none is deleted.
    asked = next(k for k, line in enumerate(said) if line.startswith("exec "))
    assert any(line.startswith("wait --for=condition=Ready") for line in said[:asked])
    assert not any(line.startswith("delete pod") for line in said)
    assert "exec hogwild-worker-0 -- sh -c kill 1" in said
