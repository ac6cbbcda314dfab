"""The first command on machines that people have: `bash test.sh -m machine`.

CONTRIBUTING.md lists them. Where TensorFlow is not the point a stand-in takes the place
of HogWild's script: its workers connect to its ps.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import pytest
import registry
import test_set_up
import tree
from launch import REPO, Launch, copy_of, environment, result, run_sh, without

# In the ordinary way: these are about how a process starts.
pytestmark = [pytest.mark.machine, pytest.mark.starts]

OPEN = "run.sh: the ports are open to anyone who reaches this machine"

STAND_IN = """
import os, socket, sys, time

import problem

if "--check" in sys.argv:
    sys.exit()
after = dict(zip(sys.argv, sys.argv[1:]))
host, port = after["--ps_hosts"].split(":")
if after["--job_name"] == "ps":
    with socket.create_server(("", int(port))) as server:
        for _ in range(2):
            server.accept()[0].close()
else:
    for _ in range(100):
        try:
            socket.create_connection((host, port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("the ps cannot be reached")
for number in range(int(os.environ.get("LINES", 1))):
    print(number, "connected " * 5)
"""


def stand_in(where: pathlib.Path) -> pathlib.Path:
    """Returns a copy of HogWild that needs no TensorFlow."""
    copy = copy_of("HogWild", where)
    (copy / "hogwild.py").write_text(STAND_IN)
    (copy / "problem.py").write_text("")
    return copy


# --- Networks -----------------------------------------------------------------

# An ordinary user in a user namespace, who may change that and then gives up rights.
USER = ["unshare", "--user", "--map-user=12345", "--map-group=12345", "--keep-caps"]
GIVES_UP = 'exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
ROOT = [] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user"]
# Has a filter of seccomp kill who calls `unshare`.
FILTER = """
import ctypes, os, platform, struct, sys

number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number)]
code += [(6, 0, 0, 0x80000000), (6, 0, 0, 0x7FFF0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *x) for x in code))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(text))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
NO_NET_ADMIN = [*ROOT, "setpriv", "--bounding-set=-net_admin"]
REFUSED = {
    # As AppArmor on Ubuntu 24.04: a network, and no right to switch anything on in it.
    "no rights in it": NO_NET_ADMIN,
    "no user namespaces": [
        *(*USER, "sh", "-ec"),
        f"echo 0 >/proc/sys/user/max_user_namespaces; {GIVES_UP}",
        "sh",
    ],
    "seccomp kills": [sys.executable, "-c", FILTER],
}


def only_if(tool: list[str]) -> None:
    """Skips the test where this machine cannot be made like another one."""
    if why := without(tool):
        pytest.skip(f"such a machine cannot be had here: {why.splitlines()[-1]}")


@pytest.mark.parametrize("how", REFUSED)
def test_no_network_of_its_own(how: str, tmp_path: pathlib.Path) -> None:
    """It runs all the same, in the network that there is, and says so."""
    only_if(REFUSED[how])
    copy = stand_in(tmp_path)
    command = [*REFUSED[how], "bash", str(copy / "run.sh")]
    with Launch(command, copy, LOGDIR=str(tmp_path / "l"), TIMEOUT="40") as run:
        assert run.wait(60) == 0, run.output
        run.nothing_left()
    assert run.lines.count(OPEN) == 1 and run.output.count("] 0 connected") == 3


# --- Screens ------------------------------------------------------------------

LINES = 1000  # of each task: together they are more than a pipe holds


def on_a_screen(where: pathlib.Path, screen: str, *arguments: str, **env: str):
    """Returns a run of the stand-in with a redirection of bash, when it has ended."""
    copy, logdir = stand_in(where), where / "l"
    run = shlex.join(["bash", str(copy / "run.sh"), *arguments])
    known = {"TIMEOUT": "60", "LOGDIR": str(logdir), **env}
    return tree.run("bash", "-c", f"{run} {screen}", env=environment(**known))


def lines_of(*texts: str) -> list[str]:
    """Returns the tasks' lines in these texts, in order."""
    return sorted(x for text in texts for x in text.splitlines() if " connected" in x)


def everything(lines: int) -> list[str]:
    """Returns the lines that the tasks print."""
    tasks, words = ("ps 0", "worker 0", "worker 1"), "connected " * 5
    return sorted(f"[{task}] {n} {words}" for task in tasks for n in range(lines))


def test_a_pipe_that_is_read_slowly(tmp_path: pathlib.Path) -> None:
    """A slow reader gets every line."""
    copy, logdir = stand_in(tmp_path), tmp_path / "l"
    with subprocess.Popen(
        ["bash", str(copy / "run.sh")],
        env=environment(LINES=f"{LINES}", TIMEOUT="60", LOGDIR=str(logdir)),
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        time.sleep(2)  # until the pipe is full
        shown = "".join(time.sleep(0.001) or line for line in run.stdout)
        assert run.wait(60) == 0
    assert lines_of(shown) == everything(LINES)


def test_nothing_can_be_said_at_all(tmp_path: pathlib.Path) -> None:
    """The status is what it would have been."""
    assert on_a_screen(tmp_path / "a", ">/dev/full 2>&1").returncode == 0
    wrong = on_a_screen(tmp_path / "b", ">/dev/full 2>&1", NUM_WORKERS="x")
    assert wrong.returncode == 2


def test_a_reader_that_goes_away_ends_the_run(tmp_path: pathlib.Path) -> None:
    tail = '| head -1 >/dev/null; exit "${PIPESTATUS[0]}"'
    done = on_a_screen(tmp_path, tail, LINES=f"{LINES}")
    assert done.returncode == 141


# --- Shells and interpreters --------------------------------------------------


@pytest.mark.parametrize("shell", ["dash", "bash, called sh"])
def test_another_shell(shell: str, tmp_path: pathlib.Path) -> None:
    """Every command with sh in place of bash, an example's once for each family."""
    if shell == "dash" and not shutil.which("dash"):
        pytest.skip("dash is not installed")
    sh = tmp_path / "sh"
    sh.symlink_to(shutil.which(shell.partition(",")[0]))
    commands = [["run.sh", "--help"], ["Horovod/run.sh", "--help"]]
    commands += [[f"Engines/{one.name}/run.sh", "--help"] for one in registry.ENGINES]
    families = {registry.of(folder).family: folder for folder in registry.folders()}
    commands += [[f"{folder}/run.sh"] for folder in families.values()]
    env = environment(DRY_RUN="1")
    for script, *rest in commands:
        done = tree.run(sh, REPO / script, *rest, env=env)
        assert (done.returncode, done.stderr) == (0, ""), script
        assert "usage" in done.stdout or ".py" in done.stdout or rest, script
    fresh = test_set_up.Fresh(tmp_path)  # where test.sh makes an environment first
    command = fresh.command(path="test.sh")
    command["args"][0] = str(sh)
    fresh.set("3.12.1", "exit 7")
    done = subprocess.run(**command, capture_output=True, text=True)
    assert "setup: making" in done.stdout and "pip failed" in done.stderr, done.stderr


FOREIGN = [
    {"OPEN_PORT": "8080", "NUM_WORKER": "4", "PEERS": "3", "LAUNCH": "daemon"},
    {"PYTHONSAFEPATH": "1"},
]


@pytest.mark.parametrize("env", FOREIGN, ids=lambda env: next(iter(env)))
def test_variables_of_other_programs(env, tmp_path: pathlib.Path) -> None:
    with run_sh(stand_in(tmp_path), LOGDIR=str(tmp_path / "l"), **env) as run:
        assert run.wait(40) == 0, run.output
    assert run.output.count("] 0 connected") == 3


@pytest.mark.parametrize("folder", ["HogWild", "TensorFlow-2"])
def test_a_script_of_another_program(folder: str) -> None:
    """script(1) exports SCRIPT, the name of the file that it writes."""
    for script in (f"{folder}/run.sh", f"Engines/Kubernetes/run.sh {folder}"):
        env = environment(SCRIPT="typescript", CHECK="1")
        done = tree.run("bash", *script.split(), "--check", env=env)
        assert done.returncode == 0, done.stderr


# --- Users and processors -----------------------------------------------------

# Makes everything read-only but one folder, and what is in a folder of root's readable.
READ_ONLY = """
writable=$1; shift
keep=$(mktemp -d "$writable/XXXXXX")
for folder; do
  shift
  [ "$folder" != -- ] || break
  home=$(echo "$folder" | cut -d/ -f1-2)
  if [ "$(stat -c %a "$home")" = 700 ]; then
    mount --bind "$folder" "$keep"
    mount -t tmpfs none "$home"
    mkdir -p "$folder"
    mount --move "$keep" "$folder"
  fi
done
rmdir "$keep"
mount --bind "$writable" "$writable"
for point in $(cut -d' ' -f2 /proc/self/mounts); do
  case $point in
    /dev* | /proc* | /sys* | "$writable") ;;
    *) mount -o remount,bind,ro "$point" ;;
  esac
done
exec setpriv --reuid 12345 --regid 0 --clear-groups env -u HOME -u USER -u LOGNAME "$@"
"""


def test_an_unknown_user_without_a_home_on_a_read_only_root() -> None:
    """As OpenShift starts a container. Training needs a LOGDIR and a TMPDIR."""
    if os.getuid():
        pytest.skip("another user and a root that is read-only take root")
    only_if(["unshare", "--mount", "--propagation=private"])
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        copy = copy_of("HogWild", pathlib.Path(folder))
        writable = pathlib.Path(folder, "writable")
        writable.mkdir()
        os.chown(writable, 12345, 0)
        command = ["unshare", "--mount", "bash", "-ec", READ_ONLY, "bash"]
        command += [str(writable), sys.base_prefix, sys.prefix, "--"]
        command += ["bash", str(copy / "run.sh"), "--steps", "200"]
        env = {"LOGDIR": str(writable / "l"), "TIMEOUT": "120", "TMPDIR": str(writable)}
        with Launch(command, copy, **env) as run:
            assert run.wait(150) == 0, run.output
        assert result(writable / "l")["global_steps"] == 200
        (log,) = (writable / "l").glob("ps-0.log")
        assert log.stat().st_uid == 12345
        del env["LOGDIR"]
        with Launch(command, copy, **env) as run:
            assert run.wait(60) == 2, run.output
        assert "Read-only file system" in run.output
