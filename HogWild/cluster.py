"""What every distributed script needs around its scheme: flags, start, end, report.

The same file in every folder. Five parts: TensorFlow without its start-up noise,
the flags and their checks, how the tasks of a run start and end together, what a
run prints, and what it leaves in LOGDIR.
"""

import argparse
import contextlib
import gc
import importlib
import json
import math
import os
import random
import signal
import socket
import sys
import threading
import time

# --- TensorFlow, quietly ------------------------------------------------------


class _TensorFlow:
    """`tensorflow.compat.v1`, imported when it is first used.

    The import takes seconds, so that flags and data are checked before it. compat.v1
    in graph mode is the TensorFlow API in which every worker is a client of its own;
    resource variables stay on.
    """

    def __getattr__(self, name):
        if "module" not in self.__dict__:
            # A third of the import is Keras, which TensorFlow can do without. It is
            # hidden meanwhile; `tf.keras` loads it when somebody uses it. A fifth of
            # the rest is a search for garbage among modules, which all stay.
            hidden = "keras" not in sys.modules
            if hidden:
                sys.modules["keras"] = None
            gc.disable()
            try:
                module = importlib.import_module("tensorflow.compat.v1")
            finally:
                gc.freeze()
                gc.enable()
                if hidden:
                    del sys.modules["keras"]
            module.disable_eager_execution()
            self.__dict__["module"] = module
        return getattr(self.module, name)


tf = _TensorFlow()


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr; status 2 is a usage error."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(status)


# --- Flags --------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def parser(doc):
    """Returns a strict argument parser with the flags that every script has."""
    new = _Parser(
        description=doc,
        formatter_class=type(
            "Formatter",
            (argparse.ArgumentDefaultsHelpFormatter, argparse.RawTextHelpFormatter),
            {},
        ),
        allow_abbrev=False,
    )
    add = new.add_argument
    add("--data", default="digits", help="digits, mnist, fashion_mnist or FILE.npz")
    add("--batch_size", type=positive_int, default=32, help="examples per worker")
    add("--learning_rate", type=positive, default=0.1, help="η")
    add(
        "--steps",
        type=positive_int,
        default=4000,
        help="global steps: updates applied to the center variable",
    )
    add("--seed", type=natural, default=0, help="of the weights and the batches")
    add("--logdir", help="log files, checkpoints, result.json; an existing one resumes")
    add("--check", action="store_true", help="check the flags and the data, and end")
    new.set_defaults(scheme=doc.partition(":")[0])
    return new


def add_cluster_flags(parser):
    """Adds the four flags that tell a task who it is; see `parse` for TF_CONFIG."""
    add = parser.add_argument
    add("--job_name", choices=("ps", "worker"), help="what this task is")
    add("--task_index", type=natural, help="which one it is, from 0; worker 0 is chief")
    add("--ps_hosts", help="host:port of every ps, separated by commas")
    add("--worker_hosts", help="host:port of every worker, separated by commas")
    add(
        "--slow_workers",
        type=seconds_list,
        default=[0.0],
        help="seconds that a gradient takes longer: of every worker, or 0,0.05,..",
    )


def _number(kind, test, what):
    def convert(text):
        try:
            value = kind(text)
            if test(value):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return convert


def seconds_list(text):
    """Flag type: numbers of at least 0, separated by commas."""
    return [
        _number(float, lambda v: 0 <= v < 3600, "seconds")(t) for t in text.split(",")
    ]


positive_int = _number(int, lambda v: 0 < v < 2**63, "a whole number of at least 1")
natural = _number(int, lambda v: 0 <= v < 2**31, "a whole number of at least 0")
positive = _number(float, lambda v: 0 < v < math.inf, "a number above 0")
fraction = _number(float, lambda v: 0 <= v < 1, "a number from 0 up to, not with, 1")


def parse(parser, argv=None):
    """Returns the checked flags; ends the program with status 2 at the first mistake.

    In a script with cluster flags `args.ps_hosts` and `args.worker_hosts` are lists
    afterwards. Without any of the four the cluster is read from TF_CONFIG, the
    variable that Kubeflow, Vertex AI and SageMaker set; its chief counts as worker 0.
    """
    args = parser.parse_args(argv)
    if hasattr(args, "job_name"):
        names = ("job_name", "task_index", "ps_hosts", "worker_hosts")
        missing = [name for name in names if getattr(args, name) is None]
        if len(missing) == len(names) and os.environ.get("TF_CONFIG"):
            _read_tf_config(args)
        elif missing:
            instead = "" if len(missing) < len(names) else ", and TF_CONFIG is not set"
            fail(f"--{missing[0]} is missing{instead}")
        _check_cluster(args)
    else:
        args.job_name, args.task_index = "worker", 0
        args.ps_hosts, args.worker_hosts = [], [""]
    if args.logdir is None:
        args.logdir = os.path.join("logdir", time.strftime("%Y-%m-%d_%H-%M-%S"))
    args.logdir = os.path.abspath(args.logdir)
    nearest = args.logdir
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK):
        fail(f"--logdir {args.logdir}: {nearest} is not a directory to write in")
    return args


def _read_tf_config(args):
    """Fills the four cluster flags from TF_CONFIG."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
    except ValueError as error:
        fail(f"TF_CONFIG is not JSON: {error}")
    try:
        cluster, job = config["cluster"], config["task"]["type"]
        index = int(config["task"]["index"])
        hosts = {name: list(map(str, cluster[name])) for name in cluster}
    except (KeyError, TypeError, ValueError):
        fail(
            'TF_CONFIG must look like {"cluster": {"chief": ["host:port"], "worker": '
            '["host:port"], "ps": ["host:port"]}, "task": {"type": "ps", "index": 0}}'
        )
    for name in hosts:
        if name not in ("chief", "master", "worker", "ps"):
            fail(f"TF_CONFIG: the cluster has an unknown job {name!r}")
    if job not in hosts:
        fail(f"TF_CONFIG: the task is of job {job!r}, which the cluster does not have")
    chief = hosts.get("chief", []) + hosts.get("master", [])
    if len(chief) > 1:
        fail(f"TF_CONFIG: {len(chief)} chiefs; there can be one")
    if not 0 <= index < len(hosts[job]):
        fail(f"TF_CONFIG: {job} index {index} is not in 0..{len(hosts[job]) - 1}")
    args.job_name = "ps" if job == "ps" else "worker"
    args.task_index = index + (len(chief) if job == "worker" else 0)
    args.ps_hosts = ",".join(hosts.get("ps", []))
    args.worker_hosts = ",".join(chief + hosts.get("worker", []))


def _check_cluster(args):
    """Turns the host flags into lists and ends the program if they cannot work."""
    seen = {}
    for flag in ("ps_hosts", "worker_hosts"):
        text = getattr(args, flag)
        if not text:
            fail(f"--{flag} is empty: name at least one host:port")
        hosts = text.split(",")
        for address in hosts:
            host, _, port = address.rpartition(":")
            if not host or host.strip() != host or not port.isdecimal():
                fail(f"--{flag}: {address!r} is not host:port")
            if not 0 < int(port) < 65536:
                fail(f"--{flag}: {address!r} has a port outside 1..65535")
            if address in seen:
                fail(f"--{flag}: {address} is listed twice, first in --{seen[address]}")
            seen[address] = flag
        setattr(args, flag, hosts)
    hosts = getattr(args, f"{args.job_name}_hosts")
    if args.task_index >= len(hosts):
        fail(
            f"--task_index {args.task_index}: --{args.job_name}_hosts has "
            f"{len(hosts)} entries, 0..{len(hosts) - 1}"
        )
    slow, workers = len(args.slow_workers), len(args.worker_hosts)
    if slow not in (1, workers):
        fail(f"--slow_workers has {slow} entries for {workers} workers")
    address = hosts[args.task_index]
    if not _free(int(address.rpartition(":")[2])):
        fail(f"--{args.job_name}_hosts: the port of {address} is in use on this host")


def _free(port):
    """Says whether a server could listen on the port."""
    with socket.socket() as probe:
        # As gRPC binds: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


HOOKS_EVERY = 20  # rounds between two looks of the hooks; a look is a round trip


# --- Start and end ------------------------------------------------------------


def begin(args, check_data):
    """First call of every task: signals, LOGDIR, and TensorFlow's noise into it."""
    if args.check:
        check_data(args.data)
        raise SystemExit(0)
    # Ctrl-C must also end a task that waits inside TensorFlow, where Python's own
    # handler would have to wait too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # gRPC obeys http_proxy, also for the hosts of the cluster.
    hosts = [a.rpartition(":")[0] for a in args.ps_hosts + args.worker_hosts if a]
    os.environ["no_grpc_proxy"] = ",".join(sorted(set(hosts)))
    try:
        os.makedirs(args.logdir, exist_ok=True)
        log = open(
            os.path.join(args.logdir, f"{args.job_name}-{args.task_index}.log"), "a"
        )
    except OSError as error:
        fail(f"--logdir {args.logdir}: {error.strerror}")
    # TensorFlow's C++ writes to descriptor 2, whatever sys.stderr is: the log gets
    # the descriptor, the screen stays behind sys.stderr. Python's logging goes the
    # way of the C++.
    screen = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(log.fileno(), 2)
    sys.stderr = log
    tf.logging.info("start")
    sys.stderr = screen
    sys.stdout.reconfigure(line_buffering=True)


class _Waiting:
    """A sentence on the screen if what is waited for takes more than 5 s."""

    def __init__(self, sentence):
        self.timer = threading.Timer(5, print, [sentence], {"flush": True})
        self.timer.daemon = True

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *_):
        self.timer.cancel()


def _answers(address):
    """Says whether a task listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _queue(name, dtype, ps=0):
    """Returns the queue of this name on a ps: the same one in every task's graph."""
    with tf.device(f"/job:ps/task:{ps}"):
        return tf.FIFOQueue(-1, dtype, [[]], shared_name=name)


def serve(server, args):
    """ps: waits until the chief says that all is done. `server.join()` never ends."""
    me = args.task_index
    token = _queue("leave", tf.bool, me).dequeue()
    config = tf.ConfigProto(device_filters=[f"/job:ps/task:{me}"])
    print(f"ps {me} of {len(args.ps_hosts)} serves at {args.ps_hosts[me]}")
    with tf.Session(server.target, config=config) as session:
        session.run(token)


class Protocol:
    """worker: how the tasks of one run start and end together, by queues on the ps.

    start (on ps 0): once variables are initialised the chief puts a token in; a worker
        takes it and puts it back before it opens its session. So it also works
        for a worker, a chief or a ps that died and was started again.
    done (on ps 0): every worker puts its report in after its last push; the chief
        takes one of each, but does not wait for a worker that was killed.
    leave (on each ps): the chief, who leaves last, dismisses every ps.
    """

    REPORT_SECONDS = 5  # then the chief looks whether the worker still answers

    def __init__(self, args, target, config):
        self.args, self.target, self.config = args, target, config
        self.chief = args.task_index == 0
        self.reports = {}  # chief: what each worker did
        start, done = _queue("start", tf.bool), _queue("done", tf.string)
        self._open = start.enqueue(True)
        self._pass = start.enqueue(start.dequeue())
        self._text = tf.placeholder(tf.string, [])
        self._report, self._collect = done.enqueue(self._text), done.dequeue()
        self._dismiss = [
            _queue("leave", tf.bool, ps).enqueue(True)
            for ps in range(len(args.ps_hosts))
        ]

    def ready(self):
        """Returns what `Scaffold(ready_for_local_init_op=...)` wants.

        It is empty once every global variable is initialised. Without the queue a
        worker that comes too early would sleep 30 s before it looks again.
        """
        with tf.control_dependencies([] if self.chief else [self._pass]):
            return tf.report_uninitialized_variables(tf.global_variables())

    def hook(self):
        """Returns the hook that opens the start for the others, or says who is late."""
        protocol = self
        chief = self.args.worker_hosts[0]
        waiting = _Waiting(f"still waiting for the chief, worker 0 at {chief}")
        if not self.chief:
            waiting.__enter__()

        class Start(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                waiting.__exit__()
                if protocol.chief:
                    session.run(protocol._open)

        return Start()

    def __enter__(self):
        """Returns when every ps accepts connections; says after 5 s which does not."""
        if self.chief:
            print_placement()
        for index, address in enumerate(self.args.ps_hosts):
            sentence = f"still waiting for ps {index}: nothing answers at {address}"
            with _Waiting(sentence):
                while not _answers(address):
                    time.sleep(0.1)  # the ps may be a minute away from its start

    def finished(self, session, log):
        """Says whether all steps are done and the chief knows what everybody did.

        Every worker then hands its report in, and the chief waits for all of them;
        if a ps is lost meanwhile, and steps with it, training goes on. The `run`
        with hooks is also where checkpoints are due.
        """
        if session.run(tf.train.get_global_step()) < self.args.steps:
            return False
        session.run(self._report, {self._text: json.dumps(log.report())})
        if not self.chief:
            return True
        patience = tf.RunOptions(timeout_in_ms=1000 * self.REPORT_SECONDS)
        missing = set(range(len(self.args.worker_hosts))) - set(self.reports) | {0}
        while missing:
            try:
                report = session.run(self._collect, options=patience)
                report = json.loads(report)
                self.reports[report["worker"]] = report
                missing.discard(report["worker"])
            except tf.errors.DeadlineExceededError:
                for worker in sorted(missing):
                    if not _answers(self.args.worker_hosts[worker]):
                        print(f"worker {worker} is gone: the run ends without it")
                        missing.discard(worker)
        return session.run(tf.train.get_global_step()) >= self.args.steps

    def __exit__(self, kind, *_):
        """Chief: when all is done, or training diverged, dismisses every ps."""
        if self.chief and kind in (None, FloatingPointError):
            with tf.Session(self.target, config=self.config) as session:
                session.run(self._dismiss)


def send(vector, center):
    """Returns the pieces of a vector [P], each on the ps that has its part of `center`.

    They are pushed in one message per ps; what is done with them there is the scheme's.
    """
    pieces = tf.split(vector, [piece.shape.num_elements() for piece in center])
    for i, variable in enumerate(center):
        with tf.device(variable.device):
            pieces[i] = tf.identity(pieces[i])
    return pieces


def next_update(global_step, steps, after):
    """Returns the number of this update, 0 to steps - 1, int64, once `after` is there.

    ps 0 counts: an atomic read-and-increment, so that no two updates share a number
    and exactly `steps` of them are applied. Later ones raise OutOfRangeError.
    """
    with tf.device(global_step.device), tf.control_dependencies(after):
        return tf.raw_ops.ResourceCountUpTo(
            resource=global_step.handle, limit=steps, T=tf.int64
        )


def slowed(loss, args):
    """Returns `loss`, made slower by --slow_workers: a straggler is one number.

    The sleep is between pull and push, where a slow machine would spend its time.
    """
    seconds = args.slow_workers[args.task_index % len(args.slow_workers)]
    if not seconds:
        return loss

    def slow_loss(vector, batch):
        sleep = tf.py_func(lambda _: time.sleep(seconds), [vector[0]], [])
        with tf.control_dependencies([sleep]):
            return loss(tf.identity(vector), batch)

    return slow_loss


@contextlib.contextmanager
def bare_calls():
    """The end of bare calls: all updates are done, or a ps is gone.

    In the second case the next call with hooks waits until the ps is back, and goes
    on from the last checkpoint.
    """
    try:
        yield
    except tf.errors.OutOfRangeError:
        pass
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        print("lost a ps: waiting for it, to go on from the last checkpoint")


def check_checkpoint(args):
    """Chief: returns the global step that LOGDIR resumes at, 0 for a fresh one.

    Reads the whole checkpoint, so that a corrupt or foreign one is one sentence and
    status 1 here, not a stack of errors in the middle of the start.
    """
    latest = tf.train.latest_checkpoint(args.logdir)
    if latest is None:
        if os.path.exists(os.path.join(args.logdir, "checkpoint")):
            fail(f"--logdir {args.logdir}: its checkpoint file cannot be used", 1)
        return 0
    wanted = {}
    for variable in tf.global_variables():
        # center/part_0, center/part_1: one entry `center`, whatever the number of ps
        name = "/".join(p for p in variable.op.name.split("/") if p[:5] != "part_")
        size = wanted.get(name, 0) + variable.shape.num_elements()
        wanted[name] = size
    try:
        reader = tf.train.load_checkpoint(latest)
        found = {name: reader.get_tensor(name).size for name in wanted}
        step = int(reader.get_tensor("global_step"))
    except Exception as error:
        reason = str(error).splitlines()[0]
        fail(f"--logdir {args.logdir}: cannot resume from {latest}: {reason}", 1)
    for name, size in wanted.items():
        if found[name] != size:
            fail(
                f"--logdir {args.logdir}: cannot resume from {latest}: its {name} has "
                f"{found[name]} elements, this run's has {size}",
                1,
            )
    print(f"resumes from global step {step}")
    return step


# --- Log and report -----------------------------------------------------------


def print_placement():
    """Chief: prints which variable lives on which device, once per run."""
    print(f"{'variable':32}{'elements':>10}  device")
    for variable in tf.global_variables() + tf.local_variables():
        size = variable.shape.num_elements()
        print(f"{variable.op.name:32}{size:>10}  {variable.device or 'this process'}")


class Log:
    """What one worker counts, prints and reports; the chief also draws and writes.

    `elements` is the size P of the center variable, `evaluation` the tensors (loss,
    accuracy) and the feed that puts the test set into them.
    """

    LINES = 10  # a line every tenth of the way, and after 1, 2, 4, 8 s, then every 10 s

    def __init__(self, args, elements, evaluation):
        self.args = args
        self.chief = args.task_index == 0
        self.bytes = 4 * elements if args.ps_hosts else 0
        self.evaluation, self.feed = evaluation
        self.start_step = check_checkpoint(args) if self.chief else 0
        self.rounds = self.staleness_sum = self.staleness_max = 0
        self.first = self.last = None
        self.patience = 1
        self.drawn = True

    def _next_line(self, now):
        self.line_time, self.line_step, self.line_rounds = now, self.step, self.rounds
        self.line_loss = self.line_staleness = 0.0
        every = max(1, self.args.steps // self.LINES)
        self.due = (self.step // every + 1) * every

    def round(self, fetched):
        """Counts one round, a dict of loss and counts ([step, staleness]).

        Returns the step. Raises FloatingPointError if the loss is not finite.
        """
        now = self.last = time.time()
        step, *rest = fetched["counts"]
        self.step, staleness = int(step), int(rest[0]) if rest else 0
        self.first = self.first or now
        # First round, or the first one after a lost ps came back with older weights.
        if self.rounds == 0 or self.step < self.line_step:
            self._next_line(now)
        self.rounds += 1
        loss = float(fetched["loss"])
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at global step {self.step}: training diverged; "
                f"a smaller --learning_rate than {self.args.learning_rate} may hold"
            )
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)
        self.line_loss += loss
        self.line_staleness += staleness
        if self.step >= self.due or now - self.line_time > self.patience:
            self._print_line(now)
        return self.step

    def _print_line(self, now):
        rounds = self.rounds - self.line_rounds
        self.loss, self.staleness = (
            self.line_loss / rounds,
            self.line_staleness / rounds,
        )
        rate = (self.step - self.line_step) / max(now - self.line_time, 1e-6)
        text = f"step {self.step:>{len(str(self.args.steps))}}/{self.args.steps}"
        text += f"  loss {self.loss:.4f}"
        if self.args.ps_hosts:
            text += f"  staleness {self.staleness:.1f}"
        text += f"  {rate:.0f} steps/s"
        if self.chief and rate:
            text += f"  {(self.args.steps - self.step) / rate:.0f} s left"
        print(text)
        self.patience = min(10, 2 * self.patience)
        self._next_line(now)
        self.drawn = False

    def draw(self, session):
        """Chief: the values of the last line, and the accuracy, for TensorBoard."""
        if not self.chief or self.drawn:
            return
        self.drawn = True
        _, accuracy = session.run(self.evaluation, self.feed)
        values = {"loss": self.loss, "staleness": self.staleness, "accuracy": accuracy}
        summary = tf.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        tf.summary.FileWriterCache.get(self.args.logdir).add_summary(summary, self.step)

    def report(self):
        """Returns what this worker did, for the chief's sum."""
        return {
            "worker": self.args.task_index,
            "rounds": self.rounds,
            "examples": self.rounds
            * self.args.batch_size
            * getattr(self.args, "window", 1),
            "bytes": self.rounds * self.bytes,
            "staleness_sum": self.staleness_sum,
            "staleness_max": self.staleness_max,
            "first": self.first,
            "last": self.last,
        }

    def write_result(self, session, reports):
        """Chief: evaluates the center variable, writes result.json, prints the end.

        `reports` has the `report()` of every worker, by worker.
        """
        if not self.chief:
            return
        reports = [reports[worker] for worker in sorted(reports)]
        step = int(session.run(tf.train.get_global_step()))
        rounds = sum(report["rounds"] for report in reports)
        if not rounds:
            print(f"nothing to do: {self.args.logdir} is at global step {step}")
            return
        loss, accuracy = map(float, session.run(self.evaluation, self.feed))
        if not math.isfinite(loss):
            raise FloatingPointError(f"the test loss is {loss}: training diverged")
        starts = [report["first"] for report in reports if report["rounds"]]
        first = min(starts)
        last = max(report["last"] for report in reports if report["rounds"])
        seconds = max(last - first, 1e-6)
        examples = sum(report["examples"] for report in reports)
        steps_per_second = (step - self.start_step) / seconds
        moved = sum(report["bytes"] for report in reports)
        result = {
            "scheme": self.args.scheme,
            "test_accuracy": accuracy,
            "test_loss": loss,
            "global_steps": step,
            "examples": examples,
            "seconds": seconds,
            "examples_per_second": examples / seconds,
            "steps_per_second": steps_per_second,
            "seconds_to_all_started": max(starts) - first,
            "workers": len(self.args.worker_hosts),
            "ps": len(self.args.ps_hosts),
            "rounds_per_worker": {r["worker"]: r["rounds"] for r in reports},
            "gradients_dropped": rounds
            - (step - self.start_step) * getattr(self.args, "replicas_to_aggregate", 1),
            "bytes_pushed": moved,
            "bytes_pulled": moved,
            "mean_staleness": sum(r["staleness_sum"] for r in reports) / rounds,
            "max_staleness": max(r["staleness_max"] for r in reports),
            "seed": self.args.seed,
            "data": self.args.data,
        }
        path = os.path.join(self.args.logdir, "result.json")
        with open(path + ".part", "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")
        os.replace(path + ".part", path)
        print(
            f"test accuracy {accuracy:.4f} after {step} global steps in "
            f"{seconds:.1f} s ({steps_per_second:.0f} steps/s, "
            f"{examples / seconds:.0f} examples/s)"
        )


def run(main):
    """Runs a script; training that diverges is one sentence and status 1."""
    try:
        main()
    except FloatingPointError as error:
        fail(str(error), 1)


# --- Ports, for run.sh --------------------------------------------------------


def _print_ports(count, base=None):
    """Prints `count` free ports of this host: from `base` on, or any."""
    if base is not None:
        ports = range(base, base + count)
        if not 0 < base <= 65536 - count:
            fail(f"BASE_PORT={base} is not a port with {count - 1} more above it")
        busy = [port for port in ports if not _free(port)]
        if busy:
            fail(f"BASE_PORT={base}: port {busy[0]} is in use")
    else:
        # Below the range from which the system picks ports for connections.
        ports = []
        while len(ports) < count:
            port = random.randrange(15000, 32000)
            if port not in ports and _free(port):
                ports.append(port)
    print(*ports)


if __name__ == "__main__":
    _print_ports(*map(int, sys.argv[1:]))
