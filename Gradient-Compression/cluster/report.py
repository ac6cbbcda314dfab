"""What a run prints, draws and writes; it decides nothing. `run` calls it."""

import contextlib
import json
import os
import shlex
import sys
import time

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.rounds import OVER
from cluster.task import AGAIN, Failure, fail


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
    tensors (loss, metric) on the test set. In place of one metric there may be a dict
    {name: metric}.
    """

    def __init__(self, args, metric, test):
        self.args, self.metric, self.tensors = args, metric, test
        self.feed = dict  # returns what the tensors are fed: nothing, if w is at hand
        self.chief = args.task_index == 0
        self.noted = []  # of each call since the last line: losses and staleness
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
        now, made = time.time(), counts[:, 2] != OVER
        self.times = (self.times or (now, now))[0], now
        if not made.any():
            return
        self.noted.append(np.stack([losses, counts[:, 1]], axis=1)[made])
        self.loss_sum += float(losses[made].sum())
        self.rounds_made += int(made.sum())
        last = int(counts[made][-1, 0])
        # The clock of a rate starts with the first call, or the first after a restore
        # of older weights.
        if self.due is None or last < self.line_step:
            self._next_line(now, last)
            self.patience = 1
        elif last >= self.due or now - self.line_time > self.patience:
            self._line(now, last)

    def _next_line(self, now, step):
        self.noted = []
        self.line_time, self.line_step = now, step
        every = max(1, self.args.steps // self.args.lines)
        self.due = (step // every + 1) * every

    def _line(self, now, step):
        loss, staleness = np.concatenate(self.noted).mean(axis=0)
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
        loss, found = session.run(self.tensors, self.feed())
        found = found if isinstance(found, dict) else {self.metric: found}
        return float(loss), {name: float(value) for name, value in found.items()}

    def draw_line(self, session):
        """Chief: adds a point to TensorBoard's curves whenever a line was printed."""
        if self.point:
            (step, values), self.point = self.point, None
            self._draw(step, values, *self.test(session))

    def _draw(self, step, values, loss, metrics):
        tested = {f"test {name}": value for name, value in metrics.items()}
        values = {**values, "test loss": loss, **tested}
        self.curves.add(step, {name.replace(" ", "_"): v for name, v in values.items()})

    def write(self, session, summary):
        """Chief: tests the center variable, writes result.json, prints the last lines.

        `summary` is what Stats.summary returns, and more. Raises Failure if the test
        loss is not finite. If the result cannot be written it ends the program, as one
        that another start may help.
        """
        step, before = summary["global_steps"], summary["resumed_from"]
        logdir, path = self.args.logdir, os.path.join(self.args.logdir, "result.json")
        if step == before == _read(path).get("global_steps"):
            print(f"nothing to do: {logdir} is at global step {step}")
            return
        loss, metrics = self.test(session)
        if not np.isfinite(loss):
            raise Failure(f"the test loss is {loss}: training diverged")
        result = {
            "scheme": self.args.scheme,
            **{f"test_{name}": value for name, value in metrics.items()},
            "test_loss": loss,
            **summary,
            "workers": len(self.args.worker_hosts),
            "ps": len(self.args.ps_hosts),
            "seed": self.args.seed,
            "data": self.args.data,
            "flags": vars(self.args),
        }
        self._draw(step, {}, loss, metrics)
        lost = ""
        try:
            with open(path + ".part", "w") as file:
                json.dump(result, file, indent=2)
            os.replace(path + ".part", path)
            print(f"result: {path}")
        except OSError as error:
            lost = f"the result is not written: {path}: {error.strerror}"
            with contextlib.suppress(OSError):
                os.remove(path + ".part")
        program = f"{shlex.quote(short(sys.executable))} -m tensorboard.main"
        print(f"curves: {program} --logdir {shlex.quote(logdir)}")
        of_them = f", {step - before} of them" if before else ""
        said = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(
            f"test {said} after {step} global steps{of_them} in "
            f"{summary['seconds']:.1f} s ({summary['steps_per_second']:.0f} steps/s, "
            f"{summary['examples_per_second']:.0f} examples/s)"
        )
        if lost:
            fail(lost, AGAIN)


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


def _read(path):
    """Returns what a result.json says, {} if it cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return json.load(file)
    return {}


def short(path):
    """Returns a path, relative to the current directory if that is shorter."""
    return min(path, os.path.relpath(path), key=len)


class Curves:
    """TensorBoard's curves: a file of events in LOGDIR, written at once.

    If the disk is full they end, and training goes on.
    """

    def __init__(self, logdir):
        self.logdir, self.writer = logdir, None

    def add(self, step, values):
        """Adds a point to each curve, at a global step; `values` are {name: number}."""
        summary = tf.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        self.write(step, summary)

    def write(self, step, summary):
        """Writes a Summary, which may have pictures too."""
        with contextlib.suppress(tf.errors.OpError, OSError):
            if self.writer is None:
                # A FileWriter's thread would end in a traceback, and this run with it.
                name = f"events.out.tfevents.{time.time():.0f}.{os.urandom(4).hex()}"
                path = os.path.join(self.logdir, name)
                self.writer = tf.python_io.TFRecordWriter(path)
                self._write(file_version="brain.Event:2")
                graph = tf.get_default_graph().as_graph_def()
                self._write(graph_def=graph.SerializeToString())
            self._write(step=step, summary=summary)

    def _write(self, **content):
        event = tf.Event(wall_time=time.time(), **content)
        self.writer.write(event.SerializeToString())
        self.writer.flush()
