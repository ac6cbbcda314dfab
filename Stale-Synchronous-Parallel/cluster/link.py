"""The control plane, as a task sees it: what it tells ps 0, and what it reads there.

Every ps has a queue of strings, its inbox. ps 0, or the chief if there is no ps, also
has one string, the board: what it knows of the run. `board` has that other side.
"""

import contextlib
import json
import os
import threading
import time

from cluster import addresses, report, task
from cluster import tensorflow_v1 as tf

EVERY = 2  # seconds between two heartbeats
GONE = 10  # seconds without a heartbeat after which nobody waits for a worker
ANSWER = 5  # seconds that an answer may take
STARTING = 10  # times --patience: how long the other tasks may take to start


def inbox():
    """Returns the queue of messages to a task, where it is built."""
    return tf.FIFOQueue(-1, tf.string, [[]], shared_name="inbox")


def board():
    """Returns the variable that is the board; it begins with its first text."""
    return tf.Variable("", name="board", use_resource=True, collections=[])


class Link:
    """A line to one task: a session with a small graph, that needs no other task."""

    def __init__(self, args, server, device=None):
        """`device` is the task's; by default it is the one with the board."""
        self.device = device or addresses.home(args)
        self.target, self.graph, self.session = server.target, tf.Graph(), None
        self.config = tf.ConfigProto(
            device_filters=[self.device, args.device],
            operation_timeout_in_ms=1000 * ANSWER,
        )
        self.told = {}  # text: the operation that puts it into the inbox
        with self.graph.as_default(), tf.device(self.device):
            self.inbox, self.board = inbox(), board().value()

    def tell(self, **message):
        """Tells the task a message."""
        text = json.dumps(message)
        if text not in self.told:
            # A constant on the ps travels with the graph. What is fed, whatever device
            # the placeholder is on, the ps has to fetch from here.
            with self.graph.as_default(), tf.device(self.device):
                self.told[text] = self.inbox.enqueue(tf.constant(text))
        self.run(self.told[text])

    def read(self):
        """Returns the board, see `board.Board.as_dict`; raises an OpError if none."""
        return json.loads(self.run(self.board))

    def run(self, fetches, feed=None):
        """Runs what is built in `graph`; raises an OpError after ANSWER seconds."""
        try:
            if self.session is None:
                self.session = tf.Session(self.target, self.graph, self.config)
            return self.session.run(fetches, feed)
        except tf.errors.OpError:
            self.session = None
            raise


def wait(missing, args, patience, every=0.1):
    """Returns once `missing()` returns "", and not what is still waited for.

    The program ends after `patience` seconds, or when LOGDIR says that the run is over.
    """
    began, due = time.monotonic(), ANSWER
    while what := missing():
        waited = time.monotonic() - began
        if waited > patience:
            task.end_now(f"no answer in {patience:.0f} s from {what}")
        if waited > due:
            end_if_over(args)
            print(f"still waiting for {what}; {patience - waited:.0f} s left")
            due += task.SAY
        time.sleep(every)


def silent(servers):
    """Returns which of some tasks, {device: address}, does not answer, "" if all do."""
    for device, address in servers.items():
        why = addresses.silence(address)
        if why:
            return f"{addresses.name(device)}: {why} at {address}"
    return ""


def starting(args):
    """Returns for how many seconds this task waits for others to start, if it does."""
    # By hand the tasks of a run are started over minutes.
    return args.patience * (1 if task.AFTER in os.environ else STARTING)


def end_if_over(args):
    """Ends the program with status 0 if LOGDIR has the result of the whole run."""
    step = report.step_if_over(args)
    if step is not None:
        print(f"nothing to do: {args.logdir} is at global step {step}", flush=True)
        os._exit(0)


def chief(args):
    """Returns the chief and its address, for a sentence."""
    return f"the chief, worker 0 at {args.worker_hosts[0]}"


def verdict(board, args):
    """Returns (sentence, exit status) if the run that is on the board cannot go on."""
    if board["failed"]:
        return board["failed"], 1
    silent = board["workers"].get("0", {}).get("silent", 0)
    if silent > args.patience:
        return f"no answer in {silent} s from {chief(args)}", task.AGAIN
    return None


class Beat(threading.Thread):
    """Says that this task lives, and ends the program when the run cannot go on.

    Also while a call of the main thread waits: one to a ps that is stopped, or behind
    a cut cable, waits for ever.
    """

    def __init__(self, args, server, asked, message=None):
        """`asked` must answer, {device: address}; `message` is a worker's heartbeat."""
        super().__init__(daemon=True)
        self.args, self.asked, self.message = args, asked, message
        self.link, self.in_call = Link(args, server), False  # is the chief in a call?
        # Of the scheme: called with the board at each heartbeat, they return a sentence
        # that ends the program, or None.
        self.looks = []
        self.stopped = threading.Event()  # set: the thread ends nothing any more

    def run(self):
        for who in self.asked.items():
            threading.Thread(target=self._ask, args=who, daemon=True).start()
        while not self.stopped.wait(EVERY):
            with contextlib.suppress(tf.errors.OpError):  # ps 0 is lost, or new
                if self.message:
                    self.link.tell(**self.message)
                board = self.link.read()
                self._end(*(verdict(board, self.args) or [None]))
                for look in self.looks:
                    self._end(look(board))
                if board["moved"] and self.in_call:
                    [act() for act in task.last_acts]  # the chief saves
                    task.begin_again(self.args, "a worker has moved")  # then all ps do

    def _end(self, sentence, status=task.AGAIN):
        if sentence and not self.stopped.is_set():
            task.end_now(sentence, status)

    def _ask(self, device, address):
        """Asks a task again and again whether it answers."""
        heard, limit = time.monotonic(), starting(self.args)
        name, places = addresses.name(device), addresses.resolve(address)
        while not self.stopped.wait(EVERY):
            why, silent = addresses.silence(address), time.monotonic() - heard
            if not why:
                heard, limit = time.monotonic(), self.args.patience
                found = addresses.resolve(address)
                # gRPC would keep its connection to the old address, and wait.
                if places and found and not places & found:
                    task.begin_again(self.args, f"{name} has moved")
                places = found or places
            elif silent > limit:
                text = f"no answer in {silent:.0f} s from {name}"
                self._end(f"{text}: {why} at {address}")
            elif silent > ANSWER:
                end_if_over(self.args)
