"""What a run prints, draws and writes; it decides nothing. `training` calls it."""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.rounds import APPLIED, LATE
from cluster.task import AGAIN, Failure, fail, no_link


def print_placement():
    """Chief: prints which variable lives on which device, once per run."""
    print(f"{'variable':32}{'elements':>10}  device")
    for variable in tf.global_variables() + tf.local_variables():
        size = variable.shape.num_elements()
        device = variable.device or "this process"
        print(f"{variable.op.name:32}{size or 'rows':>10}  {device}")


class Report:
    """What one worker notes of its rounds and prints; the chief draws and writes.

    `metric` is the name of what the problem measures beside the loss, `test` the
    tensors (loss, metric) on the test set and the feed that puts the set into them. In
    place of one metric there may be a dict {name: metric}.
    """

    def __init__(self, args, metric, test):
        self.args, self.metric, (self.tensors, self.feed) = args, metric, test
        self.chief = args.task_index == 0
        self.noted = []  # of the rounds since the last line: loss and staleness
        self.loss_sum = self.rounds_made = 0
        self.line_time = self.line_step = self.due = None
        self.times = ()  # of the first and the last call
        self.patience = 1
        self.point = None  # of the curves: training loss and staleness of the last line
        self.curves = Curves(args.logdir)

    # --- Lines ----------------------------------------------------------------

    def rounds(self, losses, counts):
        """Notes the rounds of a call, and prints a line if one is due.

        `losses` [n] and `counts` [n, 3] are what rounds.Calls fetches.
        """
        now, last = time.time(), None
        self.times = (self.times or (now, now))[0], now
        for loss, (step, staleness, became) in zip(
            losses.tolist(), counts.tolist(), strict=True
        ):
            if became in (APPLIED, LATE):
                self.noted.append((loss, staleness))
                self.loss_sum += loss
                self.rounds_made += 1
                last = step
        if last is not None:
            # The clock of a rate starts with the first call, or the first after a
            # restore of older weights.
            if self.due is None or last < self.line_step:
                self._next_line(now, last)
                self.patience = min(self.patience, 1)
            elif last >= self.due or now - self.line_time > self.patience:
                self._line(now, last)

    def _next_line(self, now, step):
        self.noted = []
        self.line_time, self.line_step = now, step
        every = max(1, self.args.steps // self.args.lines)
        self.due = (step // every + 1) * every

    def _line(self, now, step):
        loss, staleness = np.mean(self.noted, axis=0)
        rate = (step - self.line_step) / max(now - self.line_time, 1e-6)
        text = f"step {step:>{len(str(self.args.steps))}}/{self.args.steps}"
        text += f"  loss {loss:.4f}  staleness {staleness:.1f}  {rate:.0f} steps/s"
        # Before the first line TensorFlow prepares the calls, so its rate is too low.
        if self.chief and rate and self.patience > 1:
            text += f"  {(self.args.steps - step) / rate:.0f} s left"
        print(text)
        self.patience = min(10, 2 * self.patience)
        self.point = step, {"training loss": loss, "staleness": staleness}
        self._next_line(now, step)

    def mean_loss(self):
        """Returns the mean training loss of this worker's rounds, 0 without any."""
        return self.loss_sum / max(1, self.rounds_made)

    # --- Chief: curves and result ---------------------------------------------

    def test(self, session):
        """Returns loss and metrics {name: number} of the center variable, test set."""
        loss, found = session.run(self.tensors, self.feed)
        found = found if isinstance(found, dict) else {self.metric: found}
        return float(loss), {name: float(value) for name, value in found.items()}

    def draw(self, session):
        """Chief: adds a point to TensorBoard's curves whenever a line was printed."""
        if self.point:
            (step, values), self.point = self.point, None
            self._add(step, values, *self.test(session))

    def _add(self, step, values, loss, metrics):
        tested = {f"test {name}": value for name, value in metrics.items()}
        values = {**values, "test loss": loss, **tested}
        named = {name.replace(" ", "_"): value for name, value in values.items()}
        self.curves.add(step, named)

    def write(self, session, summary):
        """Chief: tests the center variable, writes result.json, prints the last lines.

        `summary` is what training.summary returns. Raises Failure if the test loss is
        not finite.
        """
        step, logdir = summary["global_steps"], self.args.logdir
        path = os.path.join(logdir, "result.json")
        if step == summary["resumed_from"] == _step_of(path):
            print(f"nothing to do: {logdir} is at global step {step}")
            return
        loss, metrics = self.test(session)
        if not np.isfinite(loss):
            raise Failure(f"the test loss is {loss}: training diverged")
        tested = {f"test_{name}": value for name, value in metrics.items()}
        result = {
            "scheme": self.args.scheme,
            **tested,
            "test_loss": loss,
            **summary,
            "workers": len(self.args.worker_hosts),
            "ps": len(self.args.ps_hosts),
            "seed": self.args.seed,
            "data": self.args.data,
            "flags": vars(self.args),
        }
        self._add(step, {}, loss, metrics)
        written = self._write(path, result)
        print(f"curves: {show_curves(logdir)}")
        before, seconds = summary["resumed_from"], summary["seconds"]
        of_them = f", {step - before} of them" if before else ""
        said = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(
            f"test {said} after {step} global steps{of_them} in {seconds:.1f} s "
            f"({summary['steps_per_second']:.0f} steps/s, "
            f"{summary['examples_per_second']:.0f} examples/s)"
        )
        if not written:
            fail(f"--logdir {logdir}: result.json could not be written", AGAIN)

    @staticmethod
    def _write(path, result):
        try:
            with open(path + ".part", "w", opener=no_link) as file:
                json.dump(result, file, indent=2)
                file.write("\n")
            os.replace(path + ".part", path)
            print(f"result: {path}")
            return True
        except OSError as error:
            print(f"the result is not written: {path}: {error.strerror}")
            with contextlib.suppress(OSError):
                os.remove(path + ".part")
            return False


def step_if_over(args):
    """Returns the global step at which the run in LOGDIR has ended, None if it has not.

    It has if its result has all updates, and the checkpoint is there that they are in.
    """
    result = _read(os.path.join(args.logdir, "result.json"))
    if not (result and os.path.exists(os.path.join(args.logdir, "checkpoint"))):
        return None
    # A program may find out in the worker how many steps there are to be.
    steps = args.steps or result["flags"]["steps"]
    return result["global_steps"] if result["global_steps"] >= steps else None


def _step_of(path):
    """Returns the global step of a result.json, None if it cannot be read."""
    return (_read(path) or {}).get("global_steps")


def _read(path):
    """Returns what a result.json says, None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return json.load(file)


def short(path):
    """Returns a path, relative to the current directory if that is shorter."""
    return min(path, os.path.relpath(path), key=len)


def show_curves(logdir):
    """Returns the command that shows the curves; it installs TensorBoard if need be."""
    beside = os.path.dirname(sys.executable)
    program = shutil.which("tensorboard", path=beside) or shutil.which("tensorboard")
    name = shlex.quote(short(program or sys.executable))
    if not program:
        name = f"{name} -m pip install tensorboard && {name} -m tensorboard.main"
    return f"{name} --logdir {shlex.quote(logdir)}"


class Curves:
    """TensorBoard's curves: a file of events in LOGDIR, written at once.

    A point that a full disk has no room for is left out, and training goes on.
    """

    def __init__(self, logdir):
        self.logdir, self.writer, self.opened = logdir, None, 0
        self.graph = tf.get_default_graph()

    def add(self, step, values):
        """Adds a point to each curve, at a global step; `values` are {name: number}."""
        summary = tf.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        self.write(step, summary)

    def write(self, step, summary):
        """Writes a Summary, which may have pictures too."""
        try:
            if self.writer is None:
                self._open()
            self._write(step=step, summary=summary)
        except (tf.errors.OpError, OSError):
            self.writer = None

    def _open(self):
        # As TensorFlow names them, and no two of them alike, whoever else writes here.
        # TensorBoard reads them in the order of their names.
        self.opened += 1
        unique = f"{os.getpid()}.{self.opened:04}.{secrets.token_hex(4)}"
        names = f"{time.time():.0f}.{socket.gethostname()}.{unique}"
        path = os.path.join(self.logdir, f"events.out.tfevents.{names}")
        self.writer = tf.python_io.TFRecordWriter(path)
        self._write(file_version="brain.Event:2")
        self._write(graph_def=self.graph.as_graph_def().SerializeToString())

    def _write(self, **content):
        event = tf.Event(wall_time=time.time(), **content)
        self.writer.write(event.SerializeToString())
        self.writer.flush()
