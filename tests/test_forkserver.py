"""A fork of a process that has imported TensorFlow is as good as a new process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import forkserver
import launch
import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
KINDS = [subprocess.Popen, forkserver.Forked]
SCRIPT = """
import json, os, signal, sys, threading
if "wait" in sys.argv:
    print("ready", flush=True)
    signal.pause()
if "raise" in sys.argv:
    raise ValueError("a reason")
import numpy
said = dict(
    argv=sys.argv, typed=sys.orig_argv, path=sys.path[0], cwd=os.getcwd(),
    env=dict(os.environ),
    name=__name__, session=os.getsid(0) == os.getpid(),
    threads=threading.active_count(),
    input=sys.stdin.read(), descriptors=sorted(map(int, os.listdir("/dev/fd")))[:3],
    handled=[str(signal.getsignal(n)) for n in (1, 2, 13, 15, 17)],
)
print(json.dumps(said))
sys.exit(json.loads(sys.argv[1]))
"""


def start(kind, tmp_path, *arguments):
    """Starts SCRIPT in a folder of its own."""
    script = tmp_path / "a script.py"
    script.write_text(SCRIPT)
    return kind(
        [sys.executable, str(script), *arguments],
        cwd=tmp_path,
        env=launch.environment(WORD="a b"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def runs(pid):
    """Says whether a process is there, and not only its exit status."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("status", ["0", "7", "null", '"a sentence"'])
def test_a_script_finds_the_same(status, tmp_path):
    """Arguments, directory, environment, signals, descriptors; and its parent."""
    found = []
    for kind in KINDS:
        with start(kind, tmp_path, status) as process:
            parent = psutil.Process(process.pid).ppid()
            lines = sorted(process.communicate(timeout=60)[0].splitlines())
        found.append((process.returncode, parent, lines))
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_it(number, tmp_path):
    for kind in KINDS:
        with start(kind, tmp_path, "wait") as process:
            assert process.stdout.readline() == "ready\n"
            words = psutil.Process(process.pid).cmdline()
            assert [word for word in words if word] == process.args
            process.send_signal(number)
            assert process.wait(10) == -number


def test_forks_have_random_numbers_of_their_own(tmp_path):
    """Also those with which TensorFlow names a server's incarnation."""
    script = tmp_path / "numbers.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(launch.REFERENCE)!r});"
        "import random; from cluster import tensorflow_v1 as tf;"
        "d = tf.Session().list_devices(); print(random.random(), d[0].incarnation)"
    )
    run = [
        forkserver.Forked(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=launch.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0].split() for process in run]
    assert len({word for words in said for word in words}) == 4


def test_the_server_ends_with_the_tests_process():
    code = (
        "import psutil, forkserver\n"
        "forkserver.start_server()\n"
        "print(psutil.Process().children()[0].pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=launch.REPO / "tests",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    end = time.monotonic() + 60
    while runs(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not runs(int(done.stdout))
