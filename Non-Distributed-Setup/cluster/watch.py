"""Waiting, aloud and not for ever; a sign of life for the ps. `protocol` calls it."""

import contextlib
import threading
import time

from cluster import ports
from cluster import tensorflow_v1 as tf
from cluster.exits import AGAIN, leave_now

SAY = 5  # seconds after which a task says what it waits for
BEAT = 2  # seconds between two signs of life
STARTING = 10  # times --patience: how long the other tasks may take to start

# What a lost connection raises, a call that was cut short, or a ps that came back: it
# does not know the session any more, or its variables are empty.
LOST = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
LOST += ("FailedPreconditionError",)


def lost():
    """Returns the errors of TensorFlow that mean: not now, but perhaps later."""
    return tuple(getattr(tf.errors, name) for name in LOST)


def silent():
    """Returns the errors of TensorFlow that mean: no answer."""
    return tf.errors.UnavailableError, tf.errors.DeadlineExceededError


def in_time(config):
    """Returns a session's configuration with a limit of 5 s for each of its calls.

    Not for the first one if a ps is silent meanwhile: see `Heart._until`.
    """
    limited = tf.ConfigProto(operation_timeout_in_ms=1000 * SAY)
    limited.MergeFrom(config)
    return limited


def bare(session, work):
    """Returns what `work` does with a session that has no hooks; raises `lost` errors.

    With hooks the session would begin anew at once, find a ps that the chief has not
    filled yet, and look again only after 30 s.
    """
    found = []

    def step(step_context):
        try:
            found.append((work(step_context.session), None))
        except lost() as error:
            found.append((None, error))

    session.run_step_fn(step)
    result, error = found[0]
    if error is not None:
        raise error
    return result


def loss(session, fetch):
    """Returns the error if a ps is not what it was, None if it is: by a bare look."""
    try:
        bare(session, lambda bare: bare.run(fetch))
    except lost() as error:
        return error
    return None


def wait(test, what, patience, every=0.1):
    """Returns once `test()` holds; after 5 s says `what` it waits for.

    After `patience` seconds it ends the program: another start may help.
    """
    began, said = time.monotonic(), False
    while not test():
        waited = time.monotonic() - began
        if waited > SAY and not said:
            print(f"still waiting for {what()}", flush=True)
            said = True
        if waited > patience:
            leave_now(f"no answer in {patience:.0f} s from {what()}", AGAIN)
        time.sleep(every)


class Heart(threading.Thread):
    """worker: tells every ps every 2 s that it lives, and finds out whether they do.

    `operations` has one for each ps. When one of these has not answered for `patience`
    seconds the program ends, whatever it is doing: behind a cut cable a call waits for
    ever.
    """

    # Of a scheme: (graph, operations that are run with every beat, its judges).
    also = (None, (), ())

    def __init__(self, graph, target, config, operations, reason, addresses, patience):
        """`addresses` are {task: address} of those who serve, in the same order.

        `reason` is a tensor: why the run has failed, empty if it has not.
        """
        super().__init__(daemon=True)
        self.graph, self.operations, self.reason = graph, operations, reason
        self.target, self.config = target, in_time(config)
        self.addresses, self.patience = list(addresses.items()), patience
        self.stopped = threading.Event()

    def stop(self):
        """Returns when the thread has ended: at most after the call that it is in."""
        self.stopped.set()
        self.join(2 * SAY)

    def _be_patient(self, ps, quiet):
        if quiet > self.patience and not self.stopped.is_set():
            (job, index), where = self.addresses[ps]
            said = f"no answer in {quiet:.0f} s from {job} {index} at {where}"
            leave_now(said, AGAIN)

    def _until(self, begun):
        """Ends the program if a ps is silent before `begun` is set.

        A session that begins waits for its ps for ever: no time limit of a call holds.
        """
        began = time.monotonic()
        while not begun.wait(self.patience):
            for ps, (_, where) in enumerate(self.addresses):
                if not ports.speaks(where):
                    self._be_patient(ps, time.monotonic() - began)

    def _ask(self, scheme):
        _, operations, judges = self.also
        scheme.run(operations)
        for tensors, judge in judges:
            said = judge(*scheme.run(tensors))
            if said and not self.stopped.is_set():
                leave_now(said, AGAIN)

    def run(self):
        heard = [time.monotonic()] * len(self.operations)
        session = scheme = None
        while not self.stopped.wait(BEAT):
            begun = threading.Event()
            if session is None:
                threading.Thread(target=self._until, args=[begun], daemon=True).start()
                session = tf.Session(self.target, self.graph, self.config)
                if self.also[1]:
                    scheme = tf.Session(self.target, self.also[0], self.config)
            try:
                beaten = time.monotonic()
                for ps, operation in enumerate(self.operations):
                    try:
                        session.run(operation)
                        heard[ps] = time.monotonic()
                    except silent():
                        self._be_patient(ps, time.monotonic() - heard[ps])
                if min(heard) >= beaten:  # every ps has answered
                    with contextlib.suppress(*silent()):
                        # The main thread may be in a call that lasts for minutes.
                        reason = session.run(self.reason)
                        if reason and not self.stopped.is_set():
                            leave_now(reason.decode(), 1)
                        if scheme:
                            self._ask(scheme)
            except tf.errors.OpError:
                # It answers, but is not the ps of this session, or is empty.
                heard[ps], session = time.monotonic(), None
            finally:
                begun.set()
        for used in (session, scheme):
            if used is not None:
                used.close()


def silent_ps(addresses):
    """Returns the index of the first ps at whose address nothing answers, or None."""
    for index, address in enumerate(addresses):
        if not ports.answers(address):
            return index
    return None


def gone(addresses):
    """Returns the index of a task that does not answer any more, None if all do.

    For a moment also the port of a process that was killed does.
    """
    for _ in range(20):
        index = silent_ps(addresses)
        if index is not None:
            return index
        time.sleep(0.05)
    return None
