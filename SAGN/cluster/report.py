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
from cluster.task import Failure


def print_placement():
    """Chief: prints which variable lives on which device, once per run."""
    print(f"{'variable':32}{'elements':>10}  device")
    for variable in tf.global_variables() + tf.local_variables():
        size = variable.shape.num_elements() or "rows"
        print(f"{variable.op.name:32}{size:>10}  {variable.device or 'this process'}")


class Report:
    """What one worker notes of its rounds and prints; the chief draws and writes.

    `metric` is the name of what the problem measures beside the loss, `test` the
    tensors (loss, metric) on the test set; or (loss, {name: metric}).
    """

    def __init__(self, args, metric, test):
        self.args, self.metric, self.tensors = args, metric, test
        self.feed = dict  # returns what the tensors are fed: nothing, if w is at hand
        self.noted = []  # of each call since the last line: losses and staleness
        self.loss_sum = self.rounds_made = self.lines = 0
        self.line_time = self.line_step = self.due_step = None
        self.point = None  # of the curves: training loss and staleness of the last line
        self.curves = Curves(args.logdir)

    def rounds(self, losses, counts):
        """Notes the rounds of a call, see rounds.Calls; prints a line if one is due."""
        now, made = time.time(), counts[:, 2] != OVER
        if not made.any():
            return
        self.noted.append(np.stack([losses, counts[:, 1]], axis=1)[made])
        self.loss_sum += float(losses[made].sum())
        self.rounds_made += int(made.sum())
        last = int(counts[made][-1, 0])
        # The clock of a rate starts with the first call, also after a loss: see Run.
        if self.due_step is None:
            self._next_line(now, last)
        elif last >= self.due_step or now - self.line_time > 10:
            self._line(now, last)

    def _next_line(self, now, step):
        self.noted = []
        self.line_time, self.line_step = now, step
        every = max(1, self.args.steps // self.args.lines)
        self.due_step = (step // every + 1) * every

    def _line(self, now, step):
        loss, staleness = np.concatenate(self.noted).mean(axis=0)
        rate = (step - self.line_step) / max(now - self.line_time, 1e-6)
        text = f"step {step:>{len(str(self.args.steps))}}/{self.args.steps}"
        text += f"  loss {loss:.4f}  staleness {staleness:.1f}  {rate:.0f} steps/s"
        # Before the first line TensorFlow prepares the calls, so its rate is too low.
        if self.args.task_index == 0 and rate and self.lines:
            text += f"  {(self.args.steps - step) / rate:.0f} s left"
        print(text)
        self.lines += 1
        self.point = step, {"training_loss": loss, "staleness": staleness}
        self._next_line(now, step)

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
        tested = {f"test_{k}".replace(" ", "_"): v for k, v in metrics.items()}
        self.curves.add(step, {**values, "test_loss": loss, **tested})

    def write(self, session, summary):
        """Chief: tests the center variable, writes result.json, prints the last lines.

        `summary` is what Stats.summary returns, and more.
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
        with open(path + ".part", "w") as file:
            json.dump(result, file, indent=2)
        os.replace(path + ".part", path)
        python = min(sys.executable, os.path.relpath(sys.executable), key=len)
        program = f"{shlex.quote(python)} -m tensorboard.main"
        print(f"result: {path}")
        print(f"curves: {program} --logdir {shlex.quote(logdir)}")
        of_them = f", {step - before} of them" if before else ""
        said = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(
            f"test {said} after {step} global steps{of_them} in "
            f"{summary['seconds']:.1f} s ({summary['steps_per_second']:.0f} steps/s, "
            f"{summary['examples_per_second']:.0f} examples/s)"
        )


def step_if_over(args):
    """Returns at which global step the run in LOGDIR has ended, None if it has not."""
    result = _read(os.path.join(args.logdir, "result.json"))
    there = os.path.exists(os.path.join(args.logdir, "checkpoint"))
    step = there * result.get("global_steps", 0)
    # A program may find out in the worker how many steps there are to be.
    return step if step and step >= (args.steps or result["flags"]["steps"]) else None


def _read(path):
    """Returns what a result.json says, {} if it cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return json.load(file)
    return {}


class Curves:
    """TensorBoard's curves: a file of events in LOGDIR, written at once."""

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
        if self.writer is None:
            with tf.get_default_graph().as_default() as graph:  # a FileWriter wants one
                self.writer = tf.summary.FileWriter(self.logdir, graph)
        self.writer.add_summary(summary, step)
        self.writer.flush()
