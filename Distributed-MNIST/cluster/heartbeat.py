"""Who is alive, and who can be reached? `rendezvous` and scripts call it.

A worker tells ps 0 every two seconds that it lives: that is its heartbeat. For how long
ps 0 has not heard of a worker is in `Incarnation.silence`. A worker also asks every ps,
at its port, whether it answers. A ps tries the ports of all other tasks, from which it
may have to fetch something, and says which of them it cannot reach.
"""

import contextlib
import threading
import time

from cluster import addresses, incarnation, ports
from cluster import tensorflow_v1 as tf
from cluster.patience import ANSWER, STARTING, end_if_over
from cluster.task import AGAIN, end_now

EVERY = 2  # seconds between two heartbeats
GONE = 10  # seconds without a heartbeat after which nobody waits for a worker
UNSEEN = 30  # the same of a ps that has not reached the chief
LOOK = 0.5  # seconds between two looks of a ps whether the run is over


def chief(args):
    """Returns the chief and its address, for a sentence."""
    return f"the chief, worker 0 at {args.worker_hosts[0]}"


def lost_chief(seconds, args):
    """Returns why a run does not go on whose chief has been silent for so long."""
    where = chief(args)
    return f"no answer in {seconds:.0f} s from {where}: without it nothing is saved"


class Heartbeat(threading.Thread):
    """worker: says that it lives; ends the program when a ps does not answer any more.

    It does so also while a call of the main thread waits, which behind a cut cable is
    for ever. And it makes the checks of the scheme, see `Rendezvous.make_checks`.
    """

    def __init__(self, args, session, state):
        """`state` is an Incarnation, and `session()` a session for its graph."""
        super().__init__(daemon=True)
        self.args, self.session = args, session
        self.beat, self.reason = state.beat(), state.reason.value()
        self.chief = state.silence()[0]
        self.unreachable = {t: v.value() for t, v in state.unreachable.items()}
        self.checks = []  # (operation, tensors, function of what these say)
        self.serving = addresses.serving(args)
        self.began = time.monotonic()
        self.heard = dict.fromkeys(self.serving, self.began)  # of each, when
        self.answer = False  # do all of them answer?
        self.unreached = Unreached(args.patience, self.end)
        self.stopped = threading.Event()

    def stop(self):
        """Returns when the thread has ended: at most after the call that it is in."""
        self.stopped.set()
        self.join(2 * ANSWER)

    def end(self, sentence, status=AGAIN):
        """Ends the program, unless the heartbeat has been stopped."""
        if not self.stopped.is_set():
            end_now(sentence, status)

    def run(self):
        ports.Names(self.serving.values(), EVERY).start()
        # A session that begins waits for a silent ps for ever. So another thread asks.
        threading.Thread(target=self.ask, daemon=True).start()
        session = None
        while not self.stopped.wait(EVERY):
            try:
                if session is None and self.answer:
                    session = self.session()
                if session is not None:
                    session.run(self.beat)
                    if self.answer:
                        self.look(session)
            except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError):
                pass  # it has stopped answering just now
            except tf.errors.OpError:
                session = None
                self.renewed()
        if session is not None:
            session.close()

    def renewed(self):
        """Is called when ps 0 is a new process, or has no incarnation yet."""

    def ask(self):
        """Asks every ps again and again whether it answers."""
        while not self.stopped.is_set():
            self.answer = self.all_answer()
            self.stopped.wait(EVERY)

    def all_answer(self):
        """Says whether every ps answers; ends the program if one is silent for long."""
        silent = ports.unreachable(self.serving.values(), ports.speaks)
        now = time.monotonic()
        for (job, index), address in self.serving.items():
            if address not in silent:
                self.heard[job, index] = now
            elif (quiet := now - self.heard[job, index]) > self.args.patience:
                self.end(f"no answer in {quiet:.0f} s from {job} {index} at {address}")
        return not silent

    def look(self, session):
        """Ends the program if the run has failed or lost its chief, or a check says so.

        Notes which tasks cannot be reached.
        """
        reason, silence = session.run([self.reason, self.chief])
        if reason:
            self.end(reason.decode(), 1)
        # A worker that is started again waits for the chief anew.
        silence = min(silence, time.monotonic() - self.began)
        if silence > self.args.patience:
            self.end(lost_chief(silence, self.args))
        self.unreached.note(self.cannot_reach(session))
        for operation, tensors, verdict in self.checks:
            session.run(operation)
            said = verdict(*session.run(tensors)) if verdict else ""
            if said:
                self.end(said)

    def cannot_reach(self, session):
        """Returns {(who, task, address)}: who cannot fetch what that task sends."""
        # What this worker does not reach either is lost, and no wall is in between.
        there = {("worker", self.args.task_index), *self.serving}
        everybody = addresses.everybody(self.args).items()
        return {
            (who, task, address)
            for who, flags in session.run(self.unreachable).items()
            for (task, address), flag in zip(everybody, flags, strict=True)
            if flag and task in there - {who}
        }


class Unreached:
    """Whom a task could not reach, and since when: said once, and not for ever."""

    def __init__(self, patience, end):
        """`end(sentence)` ends the program, after `patience` seconds."""
        self.patience, self.end, self.since, self.said = patience, end, {}, set()

    def note(self, found):
        """Notes those that `found` has now: {(who, task, address)}."""
        now = time.monotonic()
        self.since = {one: self.since.get(one, now) for one in found}
        for one, since in self.since.items():
            (job, index), (other, number), address = one
            text = (
                f"{job} {index} cannot reach {other} {number} at {address}: it fetches "
                "what that task sends; open this port to it"
            )
            # A task that has just died counts as alive for so long.
            if now - since > 1.5 * EVERY and one not in self.said:
                print(text, flush=True)
                self.said.add(one)
            if now - since > self.patience:
                self.end(text)


# --- ps ---------------------------------------------------------------------------


def over(task):
    """Returns the queue on a task into which the chief puts a token at the end."""
    with tf.device(addresses.device(task)):
        return tf.FIFOQueue(-1, tf.bool, [[]], shared_name="over")


class ChiefWatch:
    """ps: says when it has long not reached the chief, and does not wait for ever."""

    def __init__(self, args):
        self.args, self.limit = args, STARTING * args.patience
        self.reached = self.said = time.monotonic()

    def note(self, there):
        """Notes whether the chief's port answers now."""
        now = time.monotonic()
        if there:
            # The workers end first: else they would say a ps is gone.
            self.limit = self.args.patience + ANSWER
            self.reached = self.said = now
        elif now - self.reached > self.limit:
            end_now(lost_chief(self.limit, self.args))
        elif now - self.said > UNSEEN:
            end_if_over(self.args)
            said, left = f"still waiting for {chief(self.args)}", self.limit - now
            print(f"{said}; {left + self.reached:.0f} s left", flush=True)
            self.said = now


def serve(server, args):
    """ps: returns when the chief says that the run is over; `server.join()` never does.

    A ps that has long not reached the chief ends as a failure.
    """
    me = args.job_name, args.task_index
    everybody = addresses.everybody(args)
    told = over(me).size()
    found = tf.placeholder(tf.bool, [len(everybody)])
    unreachable = incarnation.unreachable(me, len(everybody))
    note = unreachable.assign(found, read_value=False)
    config = tf.ConfigProto(device_filters=[addresses.device(me)])
    of = len(getattr(args, f"{args.job_name}_hosts"))
    print(f"{args.job_name} {args.task_index} of {of} serves at {args.address}")
    with tf.Session(server.target, config=config) as session:
        session.run(unreachable.initializer)

        def try_ports():
            watch, pause = ChiefWatch(args), 0.2
            # Until the session is closed.
            with contextlib.suppress(RuntimeError, tf.errors.OpError):
                while True:
                    time.sleep(pause)
                    missed = ports.unreachable(everybody.values())
                    flags = [address in missed for address in everybody.values()]
                    session.run(note, {found: flags})
                    there = args.worker_hosts[0] not in missed
                    pause = EVERY if there else pause
                    watch.note(there)

        threading.Thread(target=try_ports, daemon=True).start()
        ports.Names(everybody.values(), EVERY).start()
        while not session.run(told):
            time.sleep(LOOK)
