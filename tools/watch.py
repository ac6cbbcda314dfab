"""A page on which one watches a run: who computes, sends, waits, and what if one dies.

    bash run.sh [EXAMPLE] --watch [OPTION ...]    watch a run, see run.sh
    python tools/watch.py FILE                    play a recording, without TensorFlow

Options of both: `--port PORT`. Of a run: `--record FILE` keeps what the page shows. The
example runs by its own launcher and script; watch_recorder.py stands in between. This
program serves the page on 127.0.0.1, to whoever has the token of its address, until
Ctrl-C. Its exit status is that of the run.
"""

import argparse
import bisect
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import registry
import watch_numbers

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("watch.html")
RECORDER = Path(__file__).with_name("watch_recorder.py")
FAMILIES = "ps", "table", "peers", "gossip", "client"  # whose rounds it can read
ASSIGNMENT = re.compile(r"^(NUM_PS|NUM_WORKERS|PEERS|LAUNCH)=(\S+)", re.M)
STEPS = 100_000  # of a run without --steps: there is to be time to look, and to try
RESTARTS = 1000  # of a task that is killed
EVERY = 0.5  # seconds between two measurements
KEPT = 120  # seconds of rounds that a page which is opened late still gets
ROOM = 32  # connections that are served at a time; others are told to come again
BEAT = 0.05  # seconds in which a slow task runs once, and is stopped once
ACTS = ("kill", "freeze", "thaw", "slow")
TRY = {
    "one worker": "Kill worker 0: no update is made until it has started again.",
    "async": "Freeze worker 1: nobody waits. Its first push after the thaw has the "
    "staleness of all updates in between.",
    "async within a bound": "Slow worker 1 by 4: the others run ahead for s rounds, "
    "and then wait.",
    "sync": "Freeze worker 1: the others wait. With --replicas_to_aggregate 2 of three "
    "workers they go on.",
    "peers": "Kill worker 1: all others begin again with it, from the last checkpoint.",
    "gossip": "Freeze worker 1: whoever has asked it for an average waits for it.",
    "client": "Slow worker 1 by 4: an update waits for all workers.",
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"watch.py: {sentence}", file=sys.stderr)
    raise SystemExit(status)


# --- Events: what the page shows ---------------------------------------------------


class Events:
    """The events of a run, each with a number, as texts of JSON."""

    def __init__(self, record=None):
        """`record` is an open file that gets every event, a line each."""
        self.lock, self.record = threading.Lock(), record
        self.kept = []  # (number, text, what it is, when it was)
        self.next = 0

    def add(self, found):
        """Adds events, dicts."""
        with self.lock:
            for event in found:
                text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
                self.kept.append((self.next, text, event["k"], event.get("t", 0)))
                self.next += 1
                self._keep(text)

    def _keep(self, text):
        try:
            if self.record:
                self.record.write(text + "\n")
        except OSError as error:
            self.record = None
            print(f"watch.py: --record: {error.strerror}", file=sys.stderr)

    def forget(self, now):
        """Forgets rounds that are long past, and most numbers of ten minutes ago."""

        def is_past(number, _, kind, t):
            if kind == "now":
                return now - t > 5 * KEPT and number % 10
            return now - t > KEPT and kind in ("rounds", "shape")

        with self.lock:
            self.kept = [one for one in self.kept if not is_past(*one)]

    def since(self, number):
        """Returns (number of the next event, texts of those from `number` on)."""
        with self.lock:
            place = bisect.bisect_left(self.kept, (number,))
            return self.next, [text for _, text, *_ in self.kept[place:]]


def recording(path):
    """Returns the Events of a recording; ends the program if it is none."""
    found = Events()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except UnicodeDecodeError:
        fail(f"{path} is not a recording of --record")
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            good = (event["k"] == "run") == (number == 1)
            good = good and (number > 1 or event["watch"] == 1)
        except (KeyError, TypeError, ValueError):
            good = False
        if not good and number == 1:
            fail(f"{path} is not a recording of --record")
        if not good:
            fail(f"{path}: line {number} is damaged")
        found.add([event])
    if not lines:
        fail(f"{path} is empty")
    return found


# --- The machine -------------------------------------------------------------------


def stat(pid):
    """Returns what the system says of a process, from its state on; [] if nothing."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def cpu_seconds(pid):
    """Returns how long a process has computed, None if the system does not say."""
    ticks = stat(pid)[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") if ticks else None


def is_alive(pid):
    """Says whether there is a process that has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return stat(pid)[:1] != ["Z"]
    return False


def busy_seconds():
    """Returns (seconds all cores were busy, seconds in all), None if unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    every = [int(field) for field in fields]
    return sum(every) - every[3] - every[4], sum(every)


class Slow(threading.Thread):
    """Lets a process run only a part of the time."""

    def __init__(self, pid, times):
        super().__init__(daemon=True)
        self.pid, self.times, self.over = pid, times, threading.Event()

    def run(self):
        with contextlib.suppress(ProcessLookupError):
            while not self.over.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                self.over.wait(BEAT * (1 - 1 / self.times))
                os.kill(self.pid, signal.SIGCONT)
                self.over.wait(BEAT / self.times)

    def stop(self):
        """Returns when the process runs all the time."""
        self.over.set()
        self.join()


# --- A run -------------------------------------------------------------------------


class Run:
    """A run that is watched: what its tasks tell, and what is done to them."""

    def __init__(self, folder, flags, record=None):
        """Raises SystemExit with a sentence if this example cannot be watched."""
        example = registry.of(folder)
        header = (ROOT / folder / "run.sh").read_text()
        header = dict(ASSIGNMENT.findall(header))
        self.folder, self.flags, self.began = folder, flags, time.time()
        count = {}
        for name, default in (("NUM_PS", "0"), ("NUM_WORKERS", "1")):
            text = os.environ.get(name) or re.sub(r"\D", "", header.get(name, default))
            if not text.isdecimal() or int(text) > 99:
                fail(f"{name}={text} is not a whole number that can be watched")
            count[name] = int(text)
        names = [f"ps {k}" for k in range(count["NUM_PS"])]
        names += [f"worker {k}" for k in range(count["NUM_WORKERS"])]
        parted = "--asynchronous" in flags
        stale = example.family in ("ps", "table", "client") and (
            example.mode.startswith("async") or parted
        )
        self.known = watch_numbers.Known(example.family, names, parted, stale)
        self.lines = {}  # name: the connection of its recorder
        self.slow, self.lock = {}, threading.RLock()
        self.events = Events(record)
        head = {"k": "run", "watch": 1}
        self.events.add([{**head, **about(example, flags, names, stale)}])
        self.directory = tempfile.TemporaryDirectory(prefix="watch-")
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(os.path.join(self.directory.name, "s"))
        except OSError:
            fail(f"TMPDIR={tempfile.gettempdir()} is too long for the name of a socket")
        self.socket.listen(64)
        self.process, self.status = None, None
        self.logdir = logdir_of(folder, flags)
        self.environment = {
            "WATCH_FOLDER": str(ROOT / folder),
            "WATCH_SCRIPT": registry.script_of(folder),
            "WATCH_SOCKET": self.socket.getsockname(),
            "SCRIPT": str(RECORDER),
            "PEERS": header.get("PEERS", ""),
            "LOGDIR": str(self.logdir),
            **{name: str(number) for name, number in count.items()},
        }
        if not os.environ.get("MAX_RESTARTS"):
            self.environment["MAX_RESTARTS"] = str(RESTARTS)
        launcher = ROOT / folder / header.get("LAUNCH", "launch.py")
        self.command = [sys.executable, "-B", str(launcher), *flags]
        self.over = threading.Event()

    def start(self, signals):
        """Starts the launcher, and the threads that follow the run.

        The program ends, by `signals`, with a run in which no task has begun.
        """
        self.began, self.signals = time.time(), signals
        # Of Ctrl-C in a terminal the launcher hears by `end`, once.
        self.process = subprocess.Popen(
            self.command,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        screens = (self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr)
        for source, screen in screens:
            self._begin(self._print, source, screen)
        for work in (self._accept, self._measure, self._wait):
            self._begin(work)

    @staticmethod
    def _begin(work, *args):
        threading.Thread(target=work, args=args, daemon=True).start()

    def now(self):
        """Returns the seconds of the run."""
        return time.time() - self.began

    def _print(self, source, screen):
        """Shows what the launcher says, and notes it for the page."""
        for line in source:
            text = line.decode(errors="replace").rstrip("\n")
            try:
                print(text, file=screen, flush=True)
            except OSError:  # the screen is gone: so is the run, as without a page
                self.process.stdout.close()
                self.signals.tell(signal.SIGTERM)
                return
            self.events.add([{"k": "line", "t": round(self.now(), 2), "x": text[:300]}])

    # --- What the tasks tell ------------------------------------------------------

    def _accept(self):
        with contextlib.suppress(OSError):  # it is closed at the end
            while True:
                self._begin(self._follow, self.socket.accept()[0])

    def _follow(self, line):
        """Takes what one process tells, until it has ended."""
        name = pid = None
        with line, contextlib.suppress(ConnectionError):
            for text in line.makefile("rb"):
                if not text.endswith(b"\n"):
                    break  # it was killed in the middle
                message = {**json.loads(text), "t": self.now()}
                with self.lock:
                    if name is None:
                        name, pid = message["task"], message["pid"]
                        self.lines[name] = line
                    self.events.add(self.known.told(name, message, self.began))
        time.sleep(0.3)  # a process that has been killed is there for a moment
        with self.lock:
            if name and self.lines.get(name) is line:
                self._let_run(name)
                self.lines.pop(name)
                state = "ended" if self.result() else "gone"
                if state == "gone" and is_alive(pid):
                    state = "again"  # it begins again as the same process
                self.events.add(self.known.state(name, state, self.now()))

    def result(self):
        """Returns what this run's result.json says, {} if there is none."""
        path = self.logdir / "result.json"
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_mtime >= self.began - 1:
                return json.loads(path.read_text())
        return {}

    def _measure(self):
        """Measures twice a second, as long as the run lasts."""
        before, all_before, then = {}, busy_seconds(), time.monotonic()
        due = then + KEPT
        while not self.over.wait(EVERY):
            now = time.monotonic()
            with self.lock:
                for name in self.lines:
                    task = self.known.tasks[name]
                    spent = cpu_seconds(task.pid)
                    old, before[name] = before.get(name), (task.pid, spent)
                    task.cpu = None
                    if spent is not None and old and old[0] == task.pid:
                        task.cpu = (spent - old[1]) / (now - then)
                every = busy_seconds()
                if every and all_before and every[1] > all_before[1]:
                    busy, total = (
                        a - b for a, b in zip(every, all_before, strict=True)
                    )
                    self.known.cores = busy / total, os.cpu_count()
                self.events.add([self.known.numbers(self.now())])
            then, all_before = now, every
            if now > due:
                self.events.forget(self.now())
                due = now + KEPT / 10

    def _wait(self):
        """Notes how the run has ended."""
        self.process.wait()
        code = self.process.returncode
        self.status = 128 - code if code < 0 else code
        time.sleep(0.5)  # the tasks' last messages
        with self.lock:
            found = self.result() if not self.status else {}
            text = f"The run ended with status {self.status}."
            if found:
                test = f"test accuracy {found['test_accuracy']:.4f}"
                if "test_accuracy" not in found:
                    test = f"test loss {found['test_loss']:.4f}"
                count, seconds = found["global_steps"], found["seconds"]
                text = f"The run is over: {count:,} updates in {seconds:.1f} s, {test}."
            self.known.over = text
            for name, task in self.known.tasks.items():
                if task.state != "ended":
                    self.events.add(self.known.state(name, "ended", self.now()))
            kept = {k: v for k, v in found.items() if k != "flags"}
            end = {"k": "end", "status": self.status, "result": kept}
            self.events.add([{**end, "t": round(self.now(), 2)}])
            self.events.add([self.known.numbers(self.now())])
            self.over.set()
            if not any(task.pid for task in self.known.tasks.values()):
                self.signals.tell(signal.SIGTERM)  # flags, or data, are wrong

    # --- What is done to the tasks ------------------------------------------------

    def act(self, name, what, times=1):
        """Kills, freezes, thaws or slows a task; raises ValueError with a sentence."""
        with self.lock:
            if name not in self.known.tasks or what not in ACTS:
                raise ValueError("there is no such task, or nothing of this name to do")
            if name not in self.lines:
                raise ValueError(f"{name} does not run")
            pid, state = self.known.tasks[name].pid, self.known.tasks[name].state
            if what == "slow" and times not in (1, 2, 4):
                raise ValueError(
                    "a task can be slowed by 2 or 4, or by 1: not any more"
                )
            self._let_run(name)
            running = state if state != "frozen" else "runs"
            with contextlib.suppress(ProcessLookupError):
                if what == "kill":
                    os.kill(pid, signal.SIGKILL)
                elif what == "freeze":
                    os.kill(pid, signal.SIGSTOP)
                    running = "frozen"
                elif what == "slow" and times > 1:
                    self.slow[name] = Slow(pid, times)
                    self.slow[name].start()
            more = {"slow": times if what == "slow" else 1}
            if what != "kill":
                self.events.add(self.known.state(name, running, self.now(), **more))

    def _let_run(self, name):
        """Ends what is done to a task."""
        if name in self.slow:
            self.slow.pop(name).stop()
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self.known.tasks[name].pid, signal.SIGCONT)

    def end(self, number):
        """Ends the run as a signal ends it; returns its status."""
        if self.process.poll() is None:
            with self.lock:
                self.known.over = "The run is told to end."
                for name in list(self.lines):
                    self._let_run(name)
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
        self.over.wait(20)  # the launcher ends within 10
        self.socket.close()
        self.directory.cleanup()
        return self.status if self.over.is_set() else 128 + number


def about(example, flags, names, stale):
    """Returns what a page says of an example whatever its run does."""
    page = (ROOT / example.folder / "README.md").read_text()
    kind = "async"
    if "--asynchronous" not in flags:
        kind = example.family if example.family in TRY else example.mode.split(",")[0]
    return {
        "folder": example.folder,
        "flags": " ".join(flags),
        "tasks": names,
        "stale": stale,
        "words": watch_numbers.said(page),
        "try": TRY[kind],
        "date": time.strftime("%Y-%m-%d"),
    }


def logdir_of(folder, flags):
    """Returns the LOGDIR of a run, as its launcher finds it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--logdir")
    given = parser.parse_known_args(flags)[0].logdir or os.environ.get("LOGDIR")
    name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    path = given or str(ROOT / folder / "logdir" / name)
    return Path(os.path.abspath(os.path.expanduser(path)))


# --- The server --------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves the page and its events on this machine, to whoever has the token."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port, source, run=None):
        """`source` are the Events, `run` the Run that can be acted on, or None."""
        super().__init__(("127.0.0.1", port), Handler)
        self.source, self.run_ = source, run
        self.token = secrets.token_urlsafe(16)
        self.room = threading.BoundedSemaphore(ROOM)
        port = self.server_port
        self.hosts = {f"localhost:{port}", f"127.0.0.1:{port}"}
        self.address = f"http://localhost:{port}/?token={self.token}"

    def process_request(self, request, client_address):
        if not self.room.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Busy\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request, client_address):
        """A browser that goes away is no error."""


class Handler(BaseHTTPRequestHandler):
    """One request. All that is not of this page itself gets a 403."""

    timeout = 5
    server_version, sys_version = "watch", ""

    def log_message(self, *_):
        pass

    def _allowed(self):
        """Says whether a request has the token, and comes from no other page."""
        given = self._query().get("token", [""])[0].encode()
        if not secrets.compare_digest(given, self.server.token.encode()):
            return False
        # A name of another site that leads here, or a page of one.
        origins = {None, *(f"http://{host}" for host in self.server.hosts)}
        return (
            self.headers.get("Host") in self.server.hosts
            and self.headers.get("Origin") in origins
            and self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        )

    def _query(self):
        return urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)

    def _answer(self, status, text, kind="text/plain"):
        data = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        if not self._allowed():
            self._answer(403, "Open the address that watch.py has printed.\n")
        elif path == "/":
            self._answer(200, PAGE.read_text(), "text/html")
        elif path == "/events":
            self._events()
        elif path == "/page":
            folder = json.loads(self.server.source.since(0)[1][0]).get("folder")
            known = folder in registry.folders()
            page = ROOT / folder / "README.md"
            self._answer(200, page.read_text() if known else "There is no such page.\n")
        else:
            self._answer(404, "There is nothing here.\n")

    def _events(self):
        after = self._query().get("after", ["0"])[0]
        if not after.isdecimal() or len(after) > 12:
            self._answer(400, "after must be a number\n")
            return
        number, texts = self.server.source.since(int(after))
        run = self.server.run_
        live = run is not None and not run.over.is_set()
        now = f"{run.now():.3f}" if run else "null"
        head = f'"next":{number},"now":{now},"live":{json.dumps(live)}'
        text = f'{{{head},"events":[{",".join(texts)}]}}'
        self._answer(200, text, "application/json")

    def do_POST(self):
        size = self.headers.get("Content-Length", "")
        json_ = self.headers.get("Content-Type") == "application/json"
        if not self._allowed() or not json_:
            self._answer(403, "Only the page itself may do this.\n")
            return
        if urllib.parse.urlsplit(self.path).path != "/act" or self.server.run_ is None:
            self._answer(404, "There is nothing here.\n")
            return
        try:
            if not size.isdecimal() or int(size) > 1000:
                raise ValueError("that is too long")
            asked = json.loads(self.rfile.read(int(size)))
            task, what, times = asked["task"], asked["do"], asked.get("times", 1)
            if not isinstance(task, str) or not isinstance(what, str):
                raise ValueError("task and do are texts")
            self.server.run_.act(task, what, times)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._answer(400, f"{error}\n")
            return
        self._answer(200, "done\n")


# --- The command -------------------------------------------------------------------


def serve(port, source, run=None):
    """Returns a Server that serves in a thread, and says where."""
    try:
        server = Server(port, source, run)
    except OSError as error:
        fail(f"--port {port}: {error.strerror}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"watch: {server.address}", flush=True)
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if screen or sys.platform == "darwin":
        threading.Thread(
            target=webbrowser.open, args=[server.address], daemon=True
        ).start()
    return server


class Signals:
    """The first signal, or the run itself, that ends this program."""

    def __init__(self):
        self.told, self.woken = [], threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if (
                signal.getsignal(number) is not signal.SIG_IGN
                or number != signal.SIGHUP
            ):
                signal.signal(number, lambda number, _: self.tell(number))

    def tell(self, number):
        """Notes what ends this program."""
        self.told.append(number)
        self.woken.set()

    def wait(self):
        """Returns the number of the signal."""
        self.woken.wait()
        return self.told[0]


def read_args(argv):
    """Returns (own arguments, those of the example)."""
    runs = argv[:1] == ["--run"]
    parser = argparse.ArgumentParser(
        prog="watch.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=not runs,  # the example has a --help of its own
    )
    if not runs:  # a text among the options of the example is not a recording
        parser.add_argument("file", nargs="?", metavar="FILE", help="to be played")
    parser.add_argument("--run", metavar="EXAMPLE", help="watch a run; see run.sh")
    parser.add_argument("--record", metavar="FILE", help="keep what the page shows")
    parser.add_argument("--port", type=int, default=0, help="of the page; any")
    return parser.parse_known_args(argv) if runs else (parser.parse_args(argv), [])


def check(args):
    """Ends the program if what is asked for cannot be done."""
    if not 0 <= args.port < 65536:
        fail(f"--port {args.port} is no port")
    if args.run is None:
        if args.file is None:
            fail("name a recording; `bash run.sh --watch` watches a run")
        if args.record:
            fail("--record: a recording is there already")
        return
    known = [e.folder for e in registry.of_family() if e.family in FAMILIES]
    if args.run not in known:
        fail(f"{args.run} cannot be watched, only {', '.join(known)}")
    if args.record is not None:
        path = Path(args.record)
        if path.exists():
            fail(f"--record {path}: there is such a file already")
        if not path.absolute().parent.is_dir():
            fail(f"--record {path}: there is no such folder")


def main(argv=None):
    """Watches a run, or plays a recording; ends with the status of the run."""
    args, flags = read_args(sys.argv[1:] if argv is None else argv)
    check(args)
    signals = Signals()
    if args.run is None:
        serve(args.port, recording(args.file))
        signals.wait()
        return 0
    long = not any(flag.partition("=")[0] == "--steps" for flag in flags)
    flags = ["--steps", str(STEPS), *flags] if long else flags
    with contextlib.ExitStack() as stack:
        record = part = None
        if args.record:
            part = Path(f"{args.record}.part")
            stack.callback(part.unlink, missing_ok=True)
            try:
                record = stack.enter_context(open(part, "w", encoding="utf-8"))
            except OSError as error:
                fail(f"--record {args.record}: {error.strerror}")
        run = Run(args.run, flags, record)
        server = serve(args.port, run.events, run)
        if long:
            print(f"watch: --steps {STEPS}, so that there is time to look", flush=True)
        run.start(signals)
        status = run.end(signals.wait())
        server.shutdown()
        if part:
            with run.events.lock:
                run.events.record = None
                record.close()
            part.replace(args.record)
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # whatever a browser still asks for
