"""What a run prints, draws and writes: it is told all of it. Scripts call it."""

import contextlib
import json
import os
import time

import numpy as np

from cluster import curves
from cluster import tensorflow_v1 as tf
from cluster.exits import AGAIN, Failure, fail
from cluster.rows import APPLIED, LATE, OVER, STRANGER

LINES = 10  # a line every tenth of the way, and when 1, 2, 4, 8, 10 s had none


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
    tensors (loss, metric) on the test set and the feed that puts the set into them.
    """

    def __init__(self, args, metric, test):
        self.args, self.metric, (self.tensors, self.feed) = args, metric, test
        self.chief = getattr(args, "task_index", 0) == 0
        self.left = args.steps
        self.stranger = False  # whether a push was refused after a restore
        self.unwritten = False  # whether result.json could not be written
        self.lost = None  # the error, if a ps was lost
        self.notes = []  # of the rounds since the last line: loss and staleness
        self.loss_sum = self.rounds_made = 0
        self.line_time = self.line_step = self.due = None
        self.times = ()  # of the first and the last call
        self.patience = 1
        self.point = None  # of the curves: training loss and staleness of the last line
        if self.chief:
            curves.writer(args.logdir)  # before the session's hooks take theirs

    # --- Lines ----------------------------------------------------------------

    def look(self, step):
        """Notes the global step, as the session has it, and returns it."""
        self.left = self.args.steps - int(step)
        return int(step)

    def rounds(self, losses, entries):
        """Notes the rounds of a call; returns how many updates are left to make.

        `losses` [n], `entries` [n, 3] as rows.Entry.packed. Raises Failure
        if a loss is not finite.
        """
        now, last = time.time(), None
        self.times = (self.times or (now, now))[0], now
        for loss, (step, staleness, what) in zip(
            losses.tolist(), entries.tolist(), strict=True
        ):
            if what == OVER:
                self.left = 0
            self.stranger |= what == STRANGER
            if what not in (APPLIED, LATE):
                continue
            if not np.isfinite(loss):
                raise Failure(
                    f"the loss is {loss} at global step {step}: training diverged; a "
                    f"smaller --learning_rate than {self.args.learning_rate} may hold"
                )
            self.notes.append((loss, staleness))
            self.loss_sum += loss
            self.rounds_made += 1
            self.left, last = self.args.steps - step, step
        if last is not None:
            # The clock of a rate starts with the first call, or the first after a
            # restore of older weights.
            if self.due is None or last < self.line_step:
                self._next_line(now, last)
                self.patience = min(self.patience, 1)
            elif last >= self.due or now - self.line_time > self.patience:
                self._line(now, last)
        return 0 if self.stranger else self.left

    def _next_line(self, now, step):
        self.notes = []
        self.line_time, self.line_step = now, step
        every = max(1, self.args.steps // LINES)
        self.due = (step // every + 1) * every

    def _line(self, now, step):
        loss, staleness = np.mean(self.notes, axis=0)
        rate = (step - self.line_step) / max(now - self.line_time, 1e-6)
        text = f"step {step:>{len(str(self.args.steps))}}/{self.args.steps}"
        text += f"  loss {loss:.4f}  staleness {staleness:.1f}  {rate:.0f} steps/s"
        if self.chief and rate:
            text += f"  {(self.args.steps - step) / rate:.0f} s left"
        print(text)
        self.patience = min(10, 2 * self.patience)
        self.point = step, {"training loss": loss, "staleness": staleness}
        self._next_line(now, step)

    # --- Chief: curves and result ---------------------------------------------

    def test(self, session):
        """Returns loss and metric of the center variable on the test set."""
        return [float(v) for v in session.run(self.tensors, self.feed)]

    def draw(self, session):
        """Chief: adds a point to TensorBoard's curves whenever a line was printed."""
        if self.chief and self.point:
            (step, values), self.point = self.point, None
            self._add(step, values, *self.test(session))

    def _add(self, step, values, loss, metric):
        values = {**values, "test loss": loss, f"test {self.metric}": metric}
        named = {name.replace(" ", "_"): value for name, value in values.items()}
        curves.write(self.args.logdir, step, named)

    def mean_loss(self):
        """Returns the mean training loss of this worker's rounds, 0 without any."""
        return self.loss_sum / max(1, self.rounds_made)

    def write(self, session, account):
        """Chief: tests the center variable, writes result.json, prints the last lines.

        `account` is what account.account returns. Raises Failure if the test
        loss is not finite.
        """
        step, logdir = account["global_steps"], self.args.logdir
        path = os.path.join(logdir, "result.json")
        if step == account["resumed_from"] == _step_of(path):
            print(f"nothing to do: {logdir} is at global step {step}")
            return
        loss, metric = self.test(session)
        if not np.isfinite(loss):
            raise Failure(f"the test loss is {loss}: training diverged")
        name = self.metric
        hosts = (getattr(self.args, f"{job}_hosts", []) for job in ("worker", "ps"))
        workers, ps = map(len, hosts)
        result = {
            "scheme": self.args.scheme,
            f"test_{name}": metric,
            "test_loss": loss,
            **account,
            "workers": max(1, workers),
            "ps": ps,
            "seed": self.args.seed,
            "data": self.args.data,
            "flags": vars(self.args),
        }
        self._add(step, {}, loss, metric)
        try:
            with open(path + ".part", "w") as file:
                json.dump(result, file, indent=2)
                file.write("\n")
            os.replace(path + ".part", path)
            print(f"result: {path}")
        except OSError as error:
            print(f"the result is not written: {path}: {error.strerror}")
            self.unwritten = True
            with contextlib.suppress(OSError):
                os.remove(path + ".part")
        print(f"curves: tensorboard --logdir {logdir}")
        seconds, rate = account["seconds"], account["steps_per_second"]
        print(
            f"test {name} {metric:.4f} after {step} global steps in {seconds:.1f} s "
            f"({rate:.0f} steps/s, {account['examples_per_second']:.0f} examples/s)"
        )
        if self.unwritten:
            fail(f"--logdir {logdir}: result.json could not be written", AGAIN)


def _step_of(path):
    """Returns the global step of a result.json, None if it cannot be read.

    After the last update a ps may die before the chief has written it.
    """
    with contextlib.suppress(OSError, ValueError, KeyError), open(path) as file:
        return json.load(file)["global_steps"]
