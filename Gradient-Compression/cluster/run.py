"""A run on a cluster, as one worker sees it: begin, log, loss, end. Scripts call it.

begin  the chief initialises the model or restores it; the others wait for that
loss   a worker whose call fails opens another session. If the model is alive it goes on
       with that. A ps that died has lost its part: then the chief has the other ps
       begin again, too, see board.serve, and restores the last checkpoint. A worker
       that dies concerns nobody else, nor does the chief for --patience seconds
end    all report to the chief, which saves, writes the result, waits until the others
       have left, and sends the ps away
"""

import contextlib
import os
import socket
import time

from cluster import addresses, checkpoint, flags, link, report, task
from cluster import tensorflow_v1 as tf
from cluster.rounds import updates_left
from cluster.task import fail


class Run:
    """A worker's part in a run; the chief, worker 0, does more. A context.

    `left` is how many updates all workers have left to make, `session` where to.
    """

    def __init__(self, args, server, learning, stats, calls, test, saver=None):
        """`learning` is what problem.build made, `test` what its `test` returned."""
        self.args, self.server, self.stats, self.calls = args, server, stats, calls
        self.chief = args.task_index == 0
        self.report = report.Report(args, learning.metric, test)
        self.checkpoints = checkpoint.Checkpoints(args, saver)
        self.left, self.over, self.session = args.steps, False, None
        self.lost_at, self.lost = None, []  # when, and sessions: until a round is made
        self.servers = addresses.servers(args)
        self.config = tf.ConfigProto(device_filters=[*self.servers, args.device])
        # What the ps hold, without which training cannot begin; what is this worker's.
        every = [*tf.global_variables(), *stats.unsaved, stats.begun]
        own = [variable for variable in every if variable.device not in self.servers]
        held = [variable for variable in every if variable.device in self.servers]
        self.places = {variable.op.name: variable.device for variable in held}
        self.uninitialised = tf.report_uninitialized_variables(held)
        self.initializer = tf.global_variables_initializer()
        begin = [tf.variables_initializer(own), *checkpoint.begin_operations()]
        self.begin_operations = [*begin, stats.on_begin]
        self.open_stats, self.stop_stats = stats.open(), stats.stop()
        self.extra = lambda session: {}  # what else result.json has, before saving
        self.message = {
            "worker": args.task_index,
            "process": f"{socket.gethostname()} {os.getpid()} {os.urandom(4).hex()}",
            "fingerprint": flags.fingerprint(args, learning.start.shape.num_elements()),
        }
        self.link = link.Link(args, server)
        self.beat = link.Beat(args, server, self.servers, self.message)
        self.beat.looks = [make(self.beat.link) for make in stats.looks]
        if self.chief:
            task.last_acts.append(self._save)

    def __enter__(self):
        if self.chief:
            report.print_placement()
        self._begin(link.starting(self.args))
        return self

    def _begin(self, patience):
        """Returns when this worker can train, at first or after a loss."""
        link.wait(lambda: link.silent(self.servers), self.args, patience)
        if not self.beat.is_alive():
            self.beat.start()
        link.wait(self._joins, self.args, patience)
        link.wait(self._opens, self.args, patience)

    def _joins(self):
        """Returns who has not yet taken this process for the worker that it is."""
        with contextlib.suppress(tf.errors.OpError):
            self.link.tell(**self.message)
            board, process = self.link.read(), self.message["process"]
            if process in board["refused"]:
                fail(board["refused"][process])
            mine = board["workers"].get(str(self.args.task_index))
            if mine and mine["process"] == process:
                return ""
        return addresses.name(self.link.device)

    def _opens(self):
        """Opens a session in which this worker can train; returns who prevents it."""
        try:
            session = self.session or tf.Session(self.server.target, config=self.config)
            self.session = session
            missing = {name.decode() for name in session.run(self.uninitialised)}
            ready = self._prepare(session, missing) if self.chief else not missing
            if ready:
                checkpoint.begin(session, self.begin_operations)
                self.left = self.args.steps - int(session.run(self.stats.step))
                self.beat.in_call = self.chief
                return ""
        except tf.errors.OpError as error:
            if not self._is_lost(error):
                raise
            self.session = None
            return f"every ps: {task.first_line(error)}"
        return "every ps" if self.chief else link.chief(self.args)

    def _prepare(self, session, missing):
        """Chief: has a model on the ps; says whether it is ready.

        `missing` are the variables that are not initialised.

            none                       the model is alive: training goes on with it
            none, a worker has moved   saves; all ps begin again, and will find it
            all                        restores the last checkpoint, or initialises
            some                       a ps has lost its part: the others begin again
        """
        moved = self.link.read()["moved"]
        if not missing and not moved:
            step = self.checkpoints.step_of(session)
            print(f"goes on with the model on the ps, at global step {step}")
            return True
        if missing == self.places.keys():
            step = self.checkpoints.restore(session, self.initializer)
            session.run(self.open_stats)
            if step:
                print(f"resumes from global step {session.run(self.stats.step)}")
            return True
        if not missing:
            self.checkpoints.save(session)
        there = {at for name, at in self.places.items() if name not in missing}
        self.tell_servers("again", there)
        if self.args.device in there:  # the only client may hold a part, too
            task.begin_again(self.args, "the model is lost")
        self.session = None
        return False

    def tell_servers(self, word, devices=None):
        """Chief: tells every ps, or those with these devices, a word."""
        for device in self.servers if devices is None else devices:
            with contextlib.suppress(tf.errors.OpError):
                link.Link(self.args, self.server, device).tell(word=word)

    def log(self, losses, counts):
        """Notes the rounds of a call; prints, draws and saves what is due."""
        self.beat.in_call, self.lost_at, self.lost = False, None, []
        self.report.rounds(losses, counts)
        self.left = updates_left(losses, counts, self.args)
        if self.chief and self.left > 0:
            self.report.draw_line(self.session)
            if time.monotonic() > self.checkpoints.due:
                self.checkpoints.save(self.session)
            self.beat.in_call = True  # the next one may wait for a worker that moves

    def draw(self, name, value):
        """Adds a point to TensorBoard's curve `name`, at the global step of now."""
        self.report.curves.add(self.args.steps - self.left, {name: value})

    def stop(self):
        """Ends the run early, for all workers, as if its last update were made."""
        self.session.run(self.stop_stats)
        self.left = min(self.left, 1)  # a step that is open may need this worker, too

    def _save(self):
        """Chief, in another thread: saves, if the model is alive on every ps."""
        session = self.session  # None after a loss
        # The ps may be ending, too.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            if session and not len(session.run(self.uninitialised)):
                self.checkpoints.save(session)
                print(f"saved at global step {self.checkpoints.step}")

    @contextlib.contextmanager
    def recovering(self):
        """Begins again, with another session, if a ps is lost inside."""
        try:
            yield
        except tf.errors.OpError as error:
            if not self._is_lost(error):
                raise
            if not (self.args.ps_hosts or self.chief) and self.report.rounds_made:
                task.begin_again(self.args, "lost the chief")
            if self.lost_at is None:
                self.lost_at = time.monotonic()
                lost = "a ps" if self.args.ps_hosts else "the chief"
                print(f"lost {lost}: waiting for it, to go on from the last checkpoint")
            elif time.monotonic() - self.lost_at > self.args.patience:
                text = f"no round in {self.args.patience:.0f} s"
                task.end_now(f"{text}: {task.first_line(error)}")
            else:
                time.sleep(1)  # between two sessions of which none makes a round
            self.lost.append(self.session)  # to close it might wait for a ps
            self.session, self.beat.in_call = None, False
            self.message.pop("loss", None)
            self.report.due_step = None
            why = {k: addresses.silence(at) for k, at in self.servers.items()}
            if self.chief and addresses.CLOSED in why.values():  # that process is gone
                self.tell_servers("again", [k for k in why if not why[k]])
            self._begin(self.args.patience)

    def _is_lost(self, error):
        """Says whether an error means that a task was lost, and may come back."""
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            # A ps that is a new process has not all variables. Else it is a bug.
            return task.is_lost(error) or len(self.session.run(self.uninitialised)) > 0
        return True

    def end(self):
        """Reports. Chief: collects the reports, saves, writes the result."""
        while not self.over:
            with self.recovering():
                while self.left > 0:  # a ps was lost, and older weights are restored
                    self.log(*self.calls.make(self.session, self.left))
                rounds_made = max(1, self.report.rounds_made)
                self.message["loss"] = self.report.loss_sum / rounds_made
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
                    self.beat.stopped.set()
                    self.link.tell(**self.message, left=True)
                self.over = True

    def _collect(self):
        """Chief: returns {worker: mean loss}, None for a worker that is not there."""
        began, losses = time.monotonic(), {}
        count = 1 if self.args.one_client else len(self.args.worker_hosts)
        while len(losses) < count:
            time.sleep(0.05)
            there, waited = self.link.read()["workers"], time.monotonic() - began
            # A worker that has lost a ps waits until the chief has noticed it.
            if len(self.session.run(self.uninitialised)):
                raise tf.errors.AbortedError(None, None, "a ps has lost its part")
            for number in set(range(count)) - losses.keys():
                worker = there.get(str(number), {"silent": waited, "loss": None})
                if worker["loss"] is not None:
                    losses[number] = worker["loss"]
                elif min(worker["silent"], waited) > link.GONE:
                    print(f"worker {number} is not there: the run ends without it")
                    losses[number] = None
        return losses

    def _wait_for_the_others(self):
        for _ in range(50):  # 5 s, at the very end
            others = [*self.link.read()["workers"].values()][1:]  # all but the chief
            if all(other["left"] or other["silent"] for other in others):
                break
            time.sleep(0.1)

    def __exit__(self, kind, error, _):
        """Tells the others why the run failed. Chief: sends the ps away at the end."""
        self.beat.stopped.set()
        failed = isinstance(error, Exception) and not task.is_lost(error)
        with contextlib.suppress(tf.errors.OpError):
            if failed:
                # Said first: the others end when they know, and with them run.sh.
                sentence, status = task.said(error)
                self.link.tell(**self.message, failed=sentence)
                time.sleep(1.5 * link.EVERY)  # for the others to read it
            if self.chief and (failed or self.over):
                self.tell_servers("leave")
        if failed:
            raise SystemExit(status)
        if kind is None and not self.over:
            fail("the run ended before its last update", task.AGAIN)
