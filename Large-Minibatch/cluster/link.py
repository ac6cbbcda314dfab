"""The control plane, as a task sees it: what it tells ps 0, and what it reads there.

Every ps has a queue of strings, its inbox. ps 0 also has one string, the board: what it
knows of the run. A worker tells ps 0 a message, and reads the board; both are JSON.
`board` has the other side. In a scheme without ps the chief has inbox and board.
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
    """A line to one task. Its session has a small graph, and needs no other task."""

    def __init__(self, args, server, device=None):
        """`device` is the task's; by default that of the one with the board."""
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


# --- Waiting ----------------------------------------------------------------------


def wait(test, what, args, patience, every=0.1):
    """Returns once `test()` holds; says `what()` it waits for, after 5 s, every 10 s.

    After `patience` seconds it ends the program with status 138, and with status 0 as
    soon as LOGDIR says that the run is over.
    """
    began, due = time.monotonic(), ANSWER
    while not test():
        waited = time.monotonic() - began
        if waited > due:
            end_if_over(args)
            said, left = f"still waiting for {what()}", max(0, patience - waited)
            print(f"{said}; {left:.0f} s left", flush=True)
            due += task.SAY
        if waited > patience:
            task.end_now(f"no answer in {patience:.0f} s from {what()}")
        time.sleep(every)


def wait_for(who, address, args, patience):
    """Returns once the task `who`, (job, index), answers at its address."""

    def what():
        return "{} {}: {} at {}".format(*who, addresses.silence(address), address)

    wait(lambda: not addresses.silence(address), what, args, patience)


def starting(args):
    """Returns for how many seconds this task waits for those who start with it.

    By hand the tasks of a run are started over minutes. But after a loss the others are
    there already.
    """
    return args.patience * (1 if task.AFTER in os.environ else STARTING)


def end_if_over(args):
    """Ends the program with status 0 if LOGDIR has the result of the whole run."""
    step = report.step_if_over(args)
    if step is not None:
        print(f"the run is over: {args.logdir} is at global step {step}", flush=True)
        os._exit(0)


def chief(args):
    """Returns the chief and its address, for a sentence."""
    return f"the chief, worker 0 at {args.worker_hosts[0]}"


def verdict(board, args):
    """Returns (sentence, exit status) if the run that is on the board cannot go on."""
    if board["failed"]:
        return board["failed"], 1
    for sentence, seconds in board["unreached"]:
        if seconds > args.patience:
            return sentence, task.AGAIN
    silent = board["workers"].get("0", {}).get("silent", 0)
    if silent > args.patience:
        where = f"{chief(args)}: without it nothing is saved"
        return f"no answer in {silent} s from {where}", task.AGAIN
    return None


class Beat(threading.Thread):
    """Says that this task lives, and ends the program when the run cannot go on.

    It does so also while a call of the main thread waits: one to a ps that is stopped,
    or behind a cut cable, waits for ever.
    """

    def __init__(self, args, server, message):
        """`message()` returns the heartbeat."""
        super().__init__(daemon=True)
        self.args, self.message, self.link = args, message, Link(args, server)
        # Of the scheme: each is called with the board at each heartbeat, and returns a
        # sentence that ends the program, or None.
        self.board, self.said, self.looks = {}, set(), []
        self.stopped = threading.Event()

    def stop(self):
        """Has the thread end nothing any more."""
        self.stopped.set()

    def end(self, sentence, status=task.AGAIN):
        """Ends the program, unless the thread was stopped."""
        if not self.stopped.is_set():
            task.end_now(sentence, status)

    def run(self):
        for who in addresses.servers(self.args).items():
            threading.Thread(target=self._ask, args=who, daemon=True).start()
        while not self.stopped.wait(EVERY):
            with contextlib.suppress(tf.errors.OpError):  # ps 0 is lost, or new
                self.link.tell(**self.message())
                self.board = self.link.read()
                self._judge(self.board)

    def _ask(self, who, address):
        """Asks a task again and again whether it answers."""
        heard, limit = time.monotonic(), self.args.patience
        if self.args.address in addresses.servers(self.args).values():
            limit = starting(self.args)  # it serves, and the others may come later
        name, places = "{} {}".format(*who), addresses.resolve(address)
        while not self.stopped.wait(EVERY):
            why, now = addresses.silence(address), time.monotonic()
            if not why:
                heard, limit = now, self.args.patience
                found = addresses.resolve(address)
                # gRPC would keep its connection to the old address, and wait.
                if places and found and not places & found:
                    task.begin_again(self.args, f"{name} has moved")
                places = found or places
            elif now - heard > limit:
                text = f"no answer in {now - heard:.0f} s from {name}"
                self.end(f"{text}: {why} at {address}")
            elif now - heard > ANSWER:
                end_if_over(self.args)

    def _judge(self, board):
        found, me = verdict(board, self.args), self.message()
        if found:
            self.end(*found)
        mine = board["workers"].get(str(me.get("worker")))  # None for who only serves
        if mine and mine["process"] != me["process"]:
            self.end(f"another process is this worker now: {mine['process']}")
        for sentence, seconds in board["unreached"]:
            if seconds > EVERY and sentence not in self.said:
                print(sentence, flush=True)
                self.said.add(sentence)
        for look in self.looks:
            sentence = look(board)
            if sentence:
                self.end(sentence)
