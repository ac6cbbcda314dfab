"""A run on a cluster, as one worker sees it: begin, loss, end. Scripts call it.

begin  the chief initialises the model or restores it, and opens an incarnation; the
       others wait for that; all join
loss   a ps that died has lost its part of the model. TensorFlow begins a new session
       for every worker, and the chief restores the last checkpoint on every ps
end    all report to the chief, which saves, writes the result, dismisses the others,
       is the last worker to leave, and sends the ps away
"""

import contextlib
import logging
import threading
import time

from cluster import errors, heartbeat, task
from cluster import tensorflow_v1 as tf
from cluster.patience import starting, wait
from cluster.rendezvous import Rendezvous
from cluster.task import end_now
from cluster.training import Training

PAUSE = 1  # seconds between two sessions when none of them makes a round


def _log_of_closing(raised):
    """Handles an error in a thread; one in TensorFlow's own goes to the log.

    TensorFlow closes a lost session in that thread, which fails if the ps is silent.
    The user has read already that a ps is lost.
    """
    if raised.thread.name == "SessionCloseThread":
        kind = raised.exc_type.__name__
        logging.info("a lost session is not closed: %s: %s", kind, raised.exc_value)
    else:
        threading.__excepthook__(raised)


class Run(Training):
    """A worker's part in a run; the chief, worker 0, does more."""

    heartbeat = heartbeat.Heartbeat

    def __init__(self, args, target, config, stats, learning, calls, test, saver=None):
        """`target` and `config` are a session's, `stats` those on ps 0."""
        super().__init__(args, learning, calls, test, saver)
        self.target, self.config, self.stats = target, config, stats
        self.reason = None  # why the last session ended, if there was one
        self.opened = None  # the newest session, and the incarnation that it began in
        self.made, self.since = None, None  # rounds made before a loss, and its time
        elements = self.elements(learning)
        self.rendezvous = Rendezvous(args, target, config, elements, self.heartbeat)
        state = stats.incarnation
        self.close_state = state.close()
        self.open_state = state.open(self.rendezvous.fingerprint, stats.prepare())
        self.on_open = state.on_open
        self.join = state.join(self.rendezvous.name())
        self.uninitialised = tf.report_uninitialized_variables(tf.global_variables())
        self.rendezvous.make_checks(state.checks)

    def elements(self, learning):
        """Returns how many numbers the model has."""
        return learning.start.shape.num_elements()

    # --- Begin ----------------------------------------------------------------

    def __enter__(self):
        super().__enter__()
        threading.excepthook = _log_of_closing
        self._wait(starting(self.args))
        self.rendezvous.compare()
        self.rendezvous.heartbeat.start()
        return self

    def _wait(self, patience):
        # A chief that has lost a ps does not end here if the run is over, as LOGDIR
        # says it: it still has to dismiss the others.
        stays = self.chief and self.session is not None
        self.rendezvous.wait_for_ps(patience, None if stays else self.args)
        if not self.chief:
            self.rendezvous.wait_for_chief(patience)

    def create_session(self):
        """Returns a session that has joined the run, also after a loss."""
        with self.recovering():
            if self.reason:
                self._wait_after_loss()
            return super().create_session()

    def open_session(self):
        """Returns a session that has joined the run. Chief: it has opened it, too."""
        session = tf.Session(self.target, config=self.config)
        self.opened = session, None
        self.prepare(session)
        self.opened = session, session.run(self.stats.incarnation.number)
        self.begin_input(session)
        session.run(self.join)
        return session

    def prepare(self, session):
        """Chief: restores or initialises the model, unless it is alive on the ps.

        After a loss the others wait for that: who joins the incarnation that the chief
        is about to end would have to join again.
        """
        if not self.chief:
            if self.reason:
                alive, chief = self.is_alive, heartbeat.chief(self.args)
                patience = self.args.patience
                wait(lambda: alive(session), lambda: chief, patience, args=self.args)
            return
        if self.is_alive(session):
            if self.session is None:
                step = session.run(self.global_step)
                print(f"goes on with the model on the ps, at global step {step}")
            return
        session.run(self.close_state)
        step = self.restore(session)
        session.run(self.open_state)
        session.run(self.on_open)
        if step:
            print(f"resumes from global step {session.run(self.global_step)}")

    def is_alive(self, session):
        """Says whether the whole model, and an open incarnation, are on the ps."""
        try:
            number = session.run(self.stats.incarnation.number)
            return number > 0 and not len(session.run(self.uninitialised))
        except tf.errors.FailedPreconditionError:
            return False

    # --- Loss -----------------------------------------------------------------

    def step(self, step_context):
        """Makes about a second of rounds, and what is due after them.

        After a loss TensorFlow calls it again with the session that it has closed.
        """
        if step_context.session is self.session:
            with self.recovering():
                self.train(step_context.session)

    @contextlib.contextmanager
    def recovering(self):
        """Makes every loss one after which TensorFlow begins a new session."""
        try:
            yield
        except tf.errors.OpError as error:
            if not self.is_lost(error):
                raise
            self.reason = errors.reason(error).splitlines()[0]
            raise tf.errors.AbortedError(None, None, self.reason) from error

    def is_lost(self, error):
        """Says whether an error means that a task was lost, and may come back.

        A variable without a value may be the user's own, or one of a ps that is a new
        process. So every ps is asked whether it has the model with which the session
        has begun. If they have, the error would come again.
        """
        if errors.is_of_others(error) or self.opened is None:
            return True
        session, number = self.opened
        try:
            empty = session.run(self.uninitialised)
            if number is None:  # it is still being prepared
                return False
            now = session.run(self.stats.incarnation.number)
            return len(empty) > 0 or not now == number > 0
        except (tf.errors.OpError, RuntimeError):  # a ps is gone, or the session closed
            return True

    def _wait_after_loss(self):
        """Waits until the ps are there again, and what the chief has restored.

        Ends the program when all answer and yet no round succeeds for `patience`.
        """
        first = self.report.rounds_made != self.made
        if first:
            lost = "lost a ps" if self.args.ps_hosts else "lost the chief"
            print(f"{lost}: waiting for it, to go on from the last checkpoint")
        self._wait(self.args.patience)
        if first:
            self.made, self.since = self.report.rounds_made, time.monotonic()
        elif time.monotonic() > self.since + self.args.patience:
            end_now(f"no round in {self.args.patience:.0f} s: {self.reason}")
        else:
            time.sleep(PAUSE)

    def stop(self):
        """Ends the run early, for all workers: after at most one update more."""
        with self.session.graph.as_default():
            self.session.run(self.stats.stop())

    def may_save(self, session):
        """Says whether the model is alive, and the run has not failed."""
        return self.is_alive(session) and not self.rendezvous.has_failed()

    # --- End ------------------------------------------------------------------

    def end(self, session):
        """Reports. Chief: collects the reports, saves, writes the result, dismisses.

        Raises AbortedError if the chief has restored an older model meanwhile.
        """
        with self.rendezvous.session() as told:
            self.rendezvous.report(told, self.report.mean_loss())
            if self.chief:
                # A worker that has lost a ps waits until the chief has noticed it.
                look = self.is_alive
                self.losses = self.rendezvous.collect(told, lambda: look(session))
                self.save_and_write(session)
                there = [loss is not None for loss in self.losses.values()]
                self.rendezvous.dismiss(told, there)
            elif not self.rendezvous.is_dismissed(told):
                raise tf.errors.AbortedError(None, None, "the model was restored")
        self.over = True

    def summary(self, session):
        """Chief: returns the counters since step 0, and what all have reported."""
        return {**self.stats.summary(session), "loss_per_worker": self.losses}

    def __exit__(self, kind, error, traceback):
        """Tells the others why the run failed. Chief: sends the ps away at the end.

        Not if another start may help, be it only to write the result.
        """
        self.rendezvous.heartbeat.stop()
        failed = isinstance(error, Exception) and not errors.is_of_others(error)
        if failed:
            # At once: the others end when they know, and with them run.sh.
            sentence, status = task.said(error)
        with contextlib.suppress(tf.errors.OpError):
            if failed:
                self.rendezvous.fail(sentence)
                time.sleep(3 if self.chief else 0)  # for the others to read it
            if self.chief and (failed or self.over):
                self.rendezvous.send_ps_away()
        if failed:
            raise SystemExit(status)
        super().__exit__(kind, error, traceback)
