"""What a coordinator of TensorFlow 2 needs around its loop: begin, lines, state, end.

One program hands out the steps of all workers, and the other tasks only serve. Its
script calls this, eagerly. `shared` are two variables of a strategy, on the ps: the
center variable, and the counters, int64 [2, ROOM]: updates by worker and by staleness.
"""

import contextlib
import os
import socket
import time

import numpy as np

from cluster import addresses, link, report, rounds, task
from cluster import tensorflow_v1 as tf

ROOM = 1000  # workers, and values of staleness, that are told apart


# --- Begin --------------------------------------------------------------------


def begin(args, server):
    """Returns once all other tasks are there; says from then on that this one lives.

    It ends the program when a ps does not answer for --patience seconds. TensorFlow
    notices one that is gone; for one that is stopped it waits for ever.
    """
    link.wait(lambda: link.silent(others(args)), args, link.starting(args))
    process = f"{socket.gethostname()} {os.getpid()} {time.time()}"
    message = {"worker": 0, "process": process, "fingerprint": {"--scheme": ""}}
    link.Beat(args, server, addresses.servers(args), message).start()


def others(args):
    """Returns {device: address} of the tasks that only serve."""
    hosts = {addresses.device("worker", k): h for k, h in enumerate(args.worker_hosts)}
    del hosts[args.device]
    return addresses.servers(args) | hosts


def print_placement(shared):
    """Prints which variable lives on which device."""
    print(f"{'variable':32}{'elements':>10}  device")
    for variable in shared:
        for piece in getattr(variable, "variables", [variable]):
            name, size = piece.name.partition(":")[0], piece.shape.num_elements()
            print(f"{name:32}{size:>10}  {piece.device}")


# --- Lines and result -----------------------------------------------------------


class Log(report.Report):
    """What the coordinator prints, draws and writes, without a session."""

    def __init__(self, args, shared, test):
        """`test(w)` returns (loss, accuracy) of the center variable on the test set."""
        super().__init__(args, "accuracy", test)
        self.shared, self.counts = shared, shared[1].numpy()
        self.begun = self.step = int(self.counts[0].sum())
        self.first, self.times = None, ()  # the step at the first of the times

    def test(self, _):
        """Returns loss and metrics {name: number} of the center variable, test set."""
        loss, accuracy = self.tensors(tf.convert_to_tensor(self.shared[0]))
        return float(loss), {"accuracy": float(accuracy)}

    def joined(self, loss):
        """Notes that all steps that were handed out are made; returns how many ever.

        `loss` is that of the last one. Raises Failure if it is not finite.
        """
        before, self.counts = self.counts, self.shared[1].numpy()
        self.step = int(self.counts[0].sum())
        self.first = self.first or self.step
        new = self.counts[1] - before[1]
        stale = new @ np.arange(ROOM) / new.sum()
        counts = np.array([[self.step, stale, rounds.APPLIED]], object)  # int, float
        rounds.updates_left(np.array([loss]), counts, self.args)
        self.rounds(np.array([loss]), counts)
        self.times = (self.times or (time.time(),))[0], time.time()
        self.draw_line(None)
        return self.step

    def end(self):
        """Writes result.json: counters since step 0, and the rates of this start."""
        made, stale = self.counts
        workers = max(len(self.args.worker_hosts), *(1 + np.flatnonzero(made)))  # ever
        seconds = max(self.times[1] - self.times[0], 1e-6) if self.times else 0.0
        rate = (self.step - self.first) / seconds if seconds else 0.0
        moved = self.step * self.shared[0].shape.num_elements() * 4  # float32
        summary = {
            "global_steps": self.step,
            "resumed_from": self.begun,
            "examples": self.step * self.args.batch_size,
            "seconds": seconds,
            "seconds_to_all_started": 0.0,  # it does not see that
            "examples_per_second": rate * self.args.batch_size,
            "steps_per_second": rate,
            "rounds_per_worker": dict(enumerate(made[:workers].tolist())),
            "gradients_dropped": 0,
            "bytes_pushed": moved,
            "bytes_pulled": moved,
            "mean_staleness": float(stale @ np.arange(ROOM) / max(1, stale.sum())),
            "max_staleness": int(np.flatnonzero(stale).max(initial=0)),
        }
        self.write(None, summary)


# --- Checkpoints ----------------------------------------------------------------


class Checkpoints:
    """What is shared, saved in LOGDIR by the coordinator, and restored.

    It saves copies of its own. If a Checkpoint has the strategy's variables, each ps
    writes its own files, and asks the coordinator for their name at an address that it
    has only if it is a task of its own.
    """

    def __init__(self, args, shared):
        import tensorflow as tf2

        self.args, self.shared, self.saved = args, shared, time.monotonic()
        self.copies = [tf.Variable(tf.convert_to_tensor(v)) for v in shared]
        center, counters = self.copies
        self.all = tf2.train.Checkpoint(center=center, counters=counters)
        self.manager = tf2.train.CheckpointManager(
            self.all, args.logdir, max_to_keep=5, checkpoint_name="model.ckpt"
        )

    def restore(self):
        """Restores the newest checkpoint, if there is one; says at which step it is.

        From then on it is saved when this task is told to end.
        """
        path = self.manager.latest_checkpoint
        if path:
            try:
                self.all.read(path).assert_existing_objects_matched()
            except (AssertionError, ValueError, tf.errors.OpError) as error:
                reason = str(error).strip().splitlines()[0]
                task.fail(f"cannot resume from {path}: {reason}", 1)
            for variable, copy in zip(self.shared, self.copies, strict=True):
                variable.assign(tf.convert_to_tensor(copy))
            print(f"resumes from global step {path.rpartition('-')[2]}")
        task.last_acts.append(self._save_before_the_end)

    def save(self):
        """Saves what is shared; returns the global step."""
        for variable, copy in zip(self.shared, self.copies, strict=True):
            copy.assign(tf.convert_to_tensor(variable))
        step = int(self.copies[1].numpy()[0].sum())
        self.manager.save(step)
        self.saved = time.monotonic()
        return step

    def save_if_due(self):
        """Saves, if that was not done for --save_seconds."""
        if time.monotonic() > self.saved + self.args.save_seconds:
            self.save()

    def _save_before_the_end(self):
        with contextlib.suppress(tf.errors.OpError):  # the ps may be ending, too
            print(f"told to end: saved at global step {self.save()}")


# --- End ----------------------------------------------------------------------


@contextlib.contextmanager
def ends_all(args, server):
    """Sends the other tasks away when what is inside is done, or has failed for good.

    If a ps was lost it ends the program, and another start may help. A lost worker is
    the business of ClusterCoordinator.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # A ps that is a new process has no variables.
        new = isinstance(error, tf.errors.FailedPreconditionError)
        if not (new or task.is_lost(error)):
            raise
        text = "lost a ps: another start goes on from the last checkpoint"
        task.fail(text, task.AGAIN)
    except task.Failure:
        _send_away(args, server)
        raise
    _send_away(args, server)


def _send_away(args, server):
    """Tells the other tasks that the run is over: by themselves they serve for ever."""
    for device, address in others(args).items():
        with contextlib.suppress(tf.errors.OpError):
            if not addresses.silence(address):
                link.Link(args, server, device).tell(word="leave")
