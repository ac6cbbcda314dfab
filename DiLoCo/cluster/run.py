"""A run on a cluster, as one worker sees it: begin, log, loss, end. Scripts call it.

begin  the chief initialises the model or restores it; the others wait for that
loss   a worker whose call fails opens another session. If the model is alive it goes on
       with that. A ps that died has lost its part: then the chief has the other ps
       begin again, too, and restores the last checkpoint. So it is only ever restored
       into ps that have never trained, and no late push can get into it: a ps refuses
       calls of a session that it does not know. A worker that dies, the chief too,
       concerns nobody else
end    all report to the chief, which saves, writes the result, waits until the others
       have left, and sends the ps away
"""

import contextlib
import os
import socket
import time

from cluster import addresses, contract, flags, link, report, task
from cluster import tensorflow_v1 as tf
from cluster.checkpoint import Checkpoints
from cluster.rounds import updates_left
from cluster.task import fail

PAUSE = 1  # seconds between two sessions when none of them makes a round
LEAVING = 5  # seconds that the chief waits at the very end for the others to leave


class Run:
    """A worker's part in a run; the chief, worker 0, does more.

    A context for the whole training. `left` is how many updates are left to make, of
    all workers together, and `session` is where to make them.
    """

    def __init__(self, args, server, learning, stats, calls, test, saver=None):
        """`learning` is what problem.build made, `test` what its `test` returned.

        `saver` is as in Checkpoints.
        """
        self.args, self.server, self.stats, self.calls = args, server, stats, calls
        self.chief = args.task_index == 0
        self.report = report.Report(args, learning.metric, test)
        self.checkpoints = Checkpoints(args, saver)
        self.left, self.over, self.session = args.steps, False, None
        self.lost_at, self.lost = None, []  # when, and sessions: until a round is made
        there = [addresses.device(*who) for who in addresses.servers(args)]
        self.config = tf.ConfigProto(device_filters=[*there, args.device])
        # What the ps hold of a run, without which training cannot begin. Without a ps
        # a worker has its own model, and the chief holds the rest.
        every = [*tf.global_variables(), *stats.variables]
        held = [variable for variable in every if variable.device in there]
        own = [variable for variable in every if variable.device not in there]
        self.names = {variable.op.name: variable for variable in held}
        self.initializer = tf.global_variables_initializer()
        self.uninitialised = tf.report_uninitialized_variables(held)
        begin = tf.variables_initializer(own), *contract.begin()
        self.begin_operations = [*begin, stats.on_begin]
        self.open_stats, self.stop_stats = stats.open(), stats.stop()
        self.before_the_end = self._save_before_the_end  # if TERM says so
        # What is to be added to result.json; called before the last model is saved.
        self.extra = lambda session: {}
        self.message = {
            "worker": args.task_index,
            "process": f"{socket.gethostname()} {os.getpid()} {os.urandom(4).hex()}",
            "fingerprint": flags.fingerprint(args, learning.start.shape.num_elements()),
        }
        self.link = link.Link(args, server)
        self.beat = link.Beat(args, server, lambda: self.message)
        self.beat.looks = [make(self.beat.link) for make in stats.looks]

    # --- Begin ----------------------------------------------------------------

    def __enter__(self):
        if self.chief:
            report.print_placement()
        self._begin(link.starting(self.args))
        if self.chief:
            task.before_the_end(self.before_the_end)
        return self

    def _begin(self, patience):
        """Returns when this worker can train, at first or after a loss."""
        for who, address in addresses.servers(self.args).items():
            link.wait_for(who, address, self.args, patience)
        if not self.beat.is_alive():
            self.beat.start()
        chief = link.chief(self.args)
        link.wait(self._has_joined, lambda: chief, self.args, patience)
        link.wait(self._opens, lambda: chief, self.args, patience)

    def _has_joined(self):
        """Says whether ps 0 has taken this process for the worker that it is."""
        with contextlib.suppress(tf.errors.OpError):
            self.link.tell(**self.message)
            board, process = self.link.read(), self.message["process"]
            if process in board["refused"]:
                fail(board["refused"][process])
            mine = board["workers"].get(str(self.args.task_index))
            return mine and mine["process"] == process
        return False

    def _opens(self):
        """Opens a session in which this worker can train; says whether it has one."""
        try:
            session = self.session or tf.Session(self.server.target, config=self.config)
            self.session = session
            missing = {name.decode() for name in session.run(self.uninitialised)}
            ready = self._prepare(session, missing) if self.chief else not missing
            if not ready:
                return False
            for operations in self.begin_operations:
                session.run(operations)
            tf.train.start_queue_runners(session, tf.train.Coordinator())
            self.left = self.args.steps - int(session.run(self.stats.step))
            return True
        except tf.errors.OpError as error:
            if not self.is_lost(error):
                raise
            self.session = None
            return False

    def _prepare(self, session, missing):
        """Chief: initialises or restores the model, unless it is alive on the ps.

        `missing` are the variables that are not initialised. If some are, a ps has lost
        its part, and the others begin again: then the model is not ready.
        """
        moved = self.link.read()["moved"]
        if not missing and not moved:
            step = int(session.run(self.stats.step))
            print(f"goes on with the model on the ps, at global step {step}")
            return True
        if missing == self.names.keys():
            step = self.checkpoints.restore(session, self.initializer)
            session.run(self.open_stats)
            if step:
                print(f"resumes from global step {session.run(self.stats.step)}")
            return True
        if not missing:  # a worker has moved: a new process of the ps will find it
            self.checkpoints.save(session)
        there = {v.device for name, v in self.names.items() if name not in missing}
        self.tell_servers("again", there)
        if self.args.device in there:  # the only client may hold a part, too
            task.begin_again(self.args, "the model is lost")
        self.session = None
        return False

    def tell_servers(self, word, devices=None):
        """Chief: tells every ps, or those with these devices, a word."""
        for device in [addresses.device(*who) for who in addresses.servers(self.args)]:
            if devices is None or device in devices:
                with contextlib.suppress(tf.errors.OpError):
                    link.Link(self.args, self.server, device).tell(word=word)

    # --- Training -------------------------------------------------------------

    def log(self, losses, counts):
        """Notes the rounds of a call; prints, draws and saves what is due."""
        self.lost_at, self.lost = None, []
        self.report.rounds(losses, counts)
        self.left = updates_left(losses, counts, self.args)
        if self.chief and self.left > 0:
            self.report.draw_line(self.session)
            if self.checkpoints.are_due():
                self.checkpoints.save(self.session)
            if self.beat.board.get("moved"):
                self.checkpoints.save(self.session)
                task.begin_again(self.args, "a worker has moved")  # see _prepare

    def draw(self, name, value):
        """Adds a point to TensorBoard's curve `name`, at the global step of now."""
        self.report.curves.add(self.args.steps - self.left, {name: value})

    def stop(self):
        """Ends the run early, for all workers, as if its last update were made.

        A script calls it between two calls; who waits for whom does not matter. The
        result is written, and the status is 0. Started again, the run goes on.
        """
        self.session.run(self.stop_stats)
        self.left = min(self.left, 1)  # a step that is open may need this worker, too

    def _save_before_the_end(self):
        """Saves when this task is told to end, if the model is alive on every ps."""
        session = self.session  # None after a loss
        # The ps may be ending, too.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            alive = session and not len(session.run(self.uninitialised))
            if alive and not self.link.read()["failed"]:
                self.checkpoints.save(session)
                print(f"told to end: saved at global step {self.checkpoints.step}")

    # --- Loss -----------------------------------------------------------------

    @contextlib.contextmanager
    def recovering(self):
        """Begins again, with another session, if a ps is lost inside.

        Ends the program if there are sessions for `patience`, and none makes a round.
        """
        try:
            yield
        except tf.errors.OpError as error:
            if not self.is_lost(error):
                raise
            if not (self.args.ps_hosts or self.chief) and self.report.rounds_made:
                task.begin_again(self.args, "lost the chief")
            if self.lost_at is None:
                self.lost_at = time.monotonic()
                lost = "lost a ps" if self.args.ps_hosts else "lost the chief"
                print(f"{lost}: waiting for it, to go on from the last checkpoint")
            elif time.monotonic() - self.lost_at > self.args.patience:
                text = f"no round in {self.args.patience:.0f} s"
                task.end_now(f"{text}: {task.first_line(error)}")
            else:
                time.sleep(PAUSE)
            self.lost.append(self.session)  # to close it might wait for a ps
            self.session = None
            self.message.pop("loss", None)
            there = addresses.servers(self.args).items()
            why = {addresses.device(*who): addresses.silence(at) for who, at in there}
            if self.chief and addresses.CLOSED in why.values():  # that process is gone
                self.tell_servers(
                    "again", {device for device in why if not why[device]}
                )
            self._begin(self.args.patience)

    def is_lost(self, error):
        """Says whether an error means that a task was lost, and may come back.

        A variable without a value may be the user's own, or one of a ps that is a new
        process. So every ps is asked whether it has its variables. If they have, the
        error would come again.
        """
        if task.is_lost(error):
            return True
        try:
            return len(self.session.run(self.uninitialised)) > 0
        except (tf.errors.OpError, RuntimeError):
            return True

    # --- End ------------------------------------------------------------------

    def end(self):
        """Reports. Chief: collects the reports, saves, writes the result."""
        while not self.over:
            with self.recovering():
                while self.left > 0:  # a ps was lost, and older weights are restored
                    self.log(*self.calls.make(self.session, self.left))
                self.message["loss"] = self.report.mean_loss()
                self.link.tell(**self.message)
                if self.chief:
                    found = {"loss_per_worker": self._collect()}
                    found |= self.extra(self.session)
                    self.checkpoints.save(self.session)
                    summary = self.stats.summary(self.session) | found
                    self.report.write(self.session, summary)
                    self.link.tell(**self.message, over=True)
                    self._wait_for_the_others()
                else:
                    while not self.link.read()["over"]:
                        time.sleep(0.1)
                    self.beat.stop()
                    self.message["left"] = True
                    self.link.tell(**self.message)
                self.over = True

    def _collect(self):
        """Chief: returns {worker: mean loss}, None for a worker that is not there."""
        began, losses = time.monotonic(), {}
        count = 1 if addresses.one_client(self.args) else len(self.args.worker_hosts)
        while len(losses) < count:
            board, waited = self.link.read(), time.monotonic() - began
            # A worker that has lost a ps waits until the chief has noticed it.
            if len(self.session.run(self.uninitialised)):
                raise tf.errors.AbortedError(None, None, "a ps has lost its part")
            for number in range(count):
                # One that was refused, or not started, has never been there.
                worker = board["workers"].get(str(number), {"silent": waited})
                gone = min(worker["silent"], waited) > link.GONE
                loss = worker.get("loss")
                if number not in losses and (loss is not None or gone):
                    losses[number] = loss
                    if loss is None:
                        print(f"worker {number} is not there: the run ends without it")
            time.sleep(0.05)
        return losses

    def _wait_for_the_others(self):
        until = time.monotonic() + LEAVING
        while time.monotonic() < until:
            others = self.link.read()["workers"]
            del others[str(self.args.task_index)]
            if all(other["left"] or other["silent"] for other in others.values()):
                break
            time.sleep(0.1)

    def __exit__(self, kind, error, _):
        """Tells the others why the run failed. Chief: sends the ps away at the end.

        Not if another start may help, be it only to write the result.
        """
        self.beat.stop()
        failed = isinstance(error, Exception) and not task.is_lost(error)
        if failed:
            # At once: the others end when they know, and with them run.sh.
            sentence, status = task.said(error)
        with contextlib.suppress(tf.errors.OpError):
            if failed:
                self.link.tell(**self.message, failed=sentence)
                time.sleep(1.5 * link.EVERY)  # for the others to read it
            if self.chief and (failed or self.over):
                self.tell_servers("leave")
        if failed:
            raise SystemExit(status)
        if kind is None and not self.over:
            fail("the run ended before its last update", task.AGAIN)
