"""What ps 0 knows of a run: who is there, who was heard when, who has failed.

It takes messages out of its inbox, notes them in one dict, judges with its own clock,
and publishes that on the board. In a scheme without ps the chief does it, in a thread.

    worker, process, fingerprint   this process lives, and is or wants to be a worker;
                                   the fingerprint is what all must have alike
        loss                       the mean loss of its rounds: it has no more to make
        left                       it has read that the run is over
        failed                     why the whole run has failed
        over                       the chief has saved the result
        chief                      the process of the chief with which it trains, if
                                   it cannot go on with another: without a ps
    server, unreached              this ps lives; whom it tries in vain to reach
    wanted                         somebody wants to be a worker, of those who train
    word                           of the chief, to any ps: leave, or begin again
"""

import dataclasses
import json
import threading
import time

from cluster import addresses, link, task
from cluster import tensorflow_v1 as tf
from cluster.flags import difference
from cluster.link import EVERY

LOOK = 0.1  # seconds between two looks into the inbox
PUBLISH = 0.25  # seconds between two editions of the board


@dataclasses.dataclass
class Worker:
    """What is known of a worker."""

    process: str  # its name among all that ever were this worker: host and pid
    heard: float  # when, by time.monotonic()
    joined: float
    places: set  # the addresses behind its name
    loss: float = None
    left: bool = False


class Board:
    """What is known of the run."""

    def __init__(self, args):
        self.args, self.began = args, time.monotonic()
        self.workers = {}  # number: Worker
        self.fingerprint = None  # of the first chief: what the run is
        self.refused = {}  # process: why it is not of this run
        self.unreached = {}  # server: for how many seconds it tries in vain, by worker
        self.failed, self.over, self.moved = "", False, False
        self.replaced = self.wanted = False
        self.hopeless = None  # since when the run cannot go on

    def note(self, message):
        """Notes what a task says."""
        if "server" in message:
            self.unreached[message["server"]] = message["unreached"]
            return
        if "wanted" in message:
            self.wanted = True
            return
        number, process = message["worker"], message["process"]
        chief = self.workers[0].process if 0 in self.workers else None
        if message.get("chief", chief) != chief:  # it trained with one that is gone
            return
        worker = self.workers.get(number)
        if not worker or worker.process != process:
            worker = self._join(number, process, message["fingerprint"])
        if worker:
            worker.heard = time.monotonic()
            worker.loss = message.get("loss")
            worker.left = message.get("left", worker.left)
            self.failed = self.failed or message.get("failed", "")
            self.over = self.over or message.get("over", False)

    def _join(self, number, process, fingerprint):
        """Returns the new Worker, None if it has to wait, or is not one of this run.

        Another process of a worker takes its place: the one before ends if it lives.
        """
        now, before = time.monotonic(), self.workers.get(number)
        if number == 0 and self.fingerprint is None:
            self.fingerprint = fingerprint
        if self.fingerprint is None or process in self.refused:
            return None
        different = difference(fingerprint, self.fingerprint)
        if different:
            text = f"this worker is not of the run that is there: {different}"
            self.refused[process] = text
            return None
        places = addresses.resolve(self.args.worker_hosts[number])
        # gRPC keeps its connection to a worker that has moved, and would wait for ever.
        if before and before.places and places and not before.places & places:
            self.moved = True
        self.replaced = self.replaced or before is not None
        self.workers[number] = Worker(process, now, now, places)
        return self.workers[number]

    def stood_still(self, seconds):
        """Notes that this process was stopped, and could not hear anybody."""
        self.began += seconds
        for worker in self.workers.values():
            worker.heard += seconds

    def as_dict(self):
        """Returns what is on the board, for JSON.

        `silent` are seconds, 0 for a worker that lives; `unreached` are sentences, each
        with the seconds for which it has been so.
        """
        now, workers, unreached = time.monotonic(), {}, []
        for number, worker in sorted(self.workers.items()):
            silent = int(now - worker.heard)
            workers[str(number)] = {
                "process": worker.process,
                "silent": silent if silent > EVERY else 0,
                "loss": worker.loss,
                "left": worker.left,
            }
            for server, found in self.unreached.items():
                seconds = min(found.get(str(number), 0), now - worker.joined)
                if seconds > EVERY and silent <= EVERY:
                    where = f"worker {number} at {self.args.worker_hosts[number]}"
                    text = f"{server} cannot reach {where}: it fetches what that task"
                    unreached.append([f"{text} sends; open this port to it", seconds])
        names = ("failed", "over", "moved", "replaced", "wanted")
        run = {name: getattr(self, name) for name in names}
        run["refused"] = {**self.refused}
        return dict(workers=workers, unreached=unreached, **run)


def _dial(args, since):
    """Tries all the time to reach the workers: a ps fetches what they push.

    `since` gets the numbers of those that it tries in vain, and since when.
    """
    while True:
        for number, address in enumerate(args.worker_hosts):
            if addresses.answers(address):
                since.pop(number, None)
            else:
                since.setdefault(number, time.monotonic())
        time.sleep(EVERY)


def serve(server, args):
    """Keeps the board, if it is this task's, and obeys the chief's words.

    Returns when the chief says that the run is over. Ends the program as a failure if
    the run has failed, or has lost its chief.
    """
    with tf.Graph().as_default(), tf.device(args.device):
        queue, variable = link.inbox(), link.board()
        count, number = queue.size(), tf.placeholder(tf.int32, [])
        messages = queue.dequeue_many(number)
        text = tf.placeholder(tf.string, [])
        publish = variable.assign(text, read_value=False)
        config = tf.ConfigProto(device_filters=[args.device])
        session = tf.Session(server.target, config=config)
    has_board = args.device == addresses.home(args)
    known, published, due = Board(args), None, 0.0
    looked, since = time.monotonic(), {}
    threading.Thread(target=_dial, args=(args, since), daemon=True).start()

    def heartbeat():
        unreached = {str(k): int(time.monotonic() - at) for k, at in [*since.items()]}
        who = f"{args.job_name} {args.task_index}"
        return {"server": who, "unreached": unreached}

    if not has_board:
        link.Beat(args, server, heartbeat).start()
    while True:
        waiting = session.run(count)
        for one in session.run(messages, {number: waiting}) if waiting else []:
            message = json.loads(one)
            if message.get("word") == "leave":
                return
            if message.get("word") == "again":
                task.begin_again(args, "the model is lost")
            known.note(message)
        now = time.monotonic()
        if now - looked > 1:
            known.stood_still(now - looked)
        looked = now
        if has_board:
            known.note(heartbeat())
            edition = known.as_dict()
            if edition != published and now > due:
                session.run(publish, {text: json.dumps(edition)})
                published, due = edition, now + PUBLISH
            _end_if_hopeless(known, edition, args)
        time.sleep(LOOK)


def _end_if_hopeless(known, edition, args):
    """Ends the program if the run cannot go on, once the others can know it."""
    now, found = time.monotonic(), link.verdict(edition, args)
    known.hopeless = known.hopeless or now if found else None
    if found and now - known.hopeless > 2 * EVERY:
        task.end_now(*found)
    if 0 not in known.workers and now - known.began > task.SAY:
        link.end_if_over(args)
        limit = link.STARTING * args.patience
        if now - known.began > limit:
            task.end_now(f"no answer in {limit:.0f} s from {link.chief(args)}")
