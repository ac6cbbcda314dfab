"""What ps 0 knows of a run: who is there, who was heard when, who has failed.

It takes messages out of its inbox, notes them in one dict, judges with its own clock,
and publishes that on the board. In a scheme without ps the chief does it, in a thread.

    worker, process, fingerprint   this process lives, and is or wants to be a worker;
                                   the fingerprint is what all must have alike
        loss                       the mean loss of its rounds: it has no more to make
        left                       it has read that the run is over
        failed                     why the whole run has failed
        over                       the chief has saved the result
        chief                      the one process of the chief with which it trains
    wanted                         somebody wants to be a worker, of those who train
    word                           of the chief, to any ps: leave, or begin again
"""

import json
import time

from cluster import addresses, link, task
from cluster import tensorflow_v1 as tf
from cluster.flags import difference
from cluster.link import EVERY


class Board:
    """What is known of the run."""

    def __init__(self, args):
        self.args, self.began = args, time.monotonic()
        # Of each worker, by its number: what the board says of it; when it was heard;
        # the addresses behind its name.
        self.workers, self.heard, self.places = {}, {}, {}
        self.fingerprint = None  # of the first chief: what the run is
        self.refused = {}  # process: why it is not of this run
        # `moved` and `replaced`: a worker has another address, or is another process.
        names = ("over", "moved", "replaced", "wanted")
        self.run = {"failed": "", **dict.fromkeys(names, False)}

    def note(self, message):
        """Notes what a task says."""
        if "wanted" in message:
            self.run["wanted"] = True
            return
        number, process = message["worker"], message["process"]
        chief = self.workers.get(0, {}).get("process")
        if message.get("chief", chief) != chief:  # it trained with one that is gone
            return
        if self.workers.get(number, {}).get("process") != process:
            if not self._joins(number, process, message["fingerprint"]):
                return
        self.heard[number], worker = time.monotonic(), self.workers[number]
        worker.update(loss=message.get("loss"), left=message.get("left", False))
        for name in ("failed", "over"):
            self.run[name] = self.run[name] or message.get(name, self.run[name])

    def _joins(self, number, process, fingerprint):
        """Says whether a process is a worker of this run, and no longer another."""
        if number == 0 and self.fingerprint is None:
            self.fingerprint = fingerprint
        if self.fingerprint is None or process in self.refused:
            return False
        different = difference(fingerprint, self.fingerprint)
        if different:
            text = f"this worker is not of the run that is there: {different}"
            self.refused[process] = text
            return False
        before, now = self.places.get(number), self.args.worker_hosts[number]
        self.places[number] = addresses.resolve(now)
        # gRPC keeps its connection to a worker that has moved, and would wait for ever.
        if before and self.places[number] and not before & self.places[number]:
            self.run["moved"] = True
        self.run["replaced"] = self.run["replaced"] or number in self.workers
        self.workers[number] = {"process": process}
        return True

    def as_dict(self):
        """Returns what is on the board; `silent` are seconds, 0 for who lives."""
        workers, now = {}, time.monotonic()
        for number, worker in sorted(self.workers.items()):
            silent = int(now - self.heard[number])
            workers[str(number)] = {**worker, "silent": silent * (silent > EVERY)}
        return dict(workers=workers, refused={**self.refused}, **self.run)


def serve(server, args):
    """Holds variables, obeys the chief, and keeps the board, if it is this task's.

    Returns when the chief says that the run is over; `server.join()` never does. Ends
    the program as a failure if the run has failed, or has lost its chief.

    A ps that has trained is never restored into: for that it begins again, when the
    chief says so. So a push that comes late, of a session that the new process does not
    know, is refused by TensorFlow, and is in no later model.
    """
    with tf.Graph().as_default(), tf.device(args.device):
        queue, variable = link.inbox(), link.board()
        count, number = queue.size(), tf.placeholder(tf.int32, [])
        messages = queue.dequeue_many(number)
        text = tf.placeholder(tf.string, [])
        publish = variable.assign(text, read_value=False)
        config = tf.ConfigProto(device_filters=[args.device])
        session = tf.Session(server.target, config=config)
    if args.job_name == "ps" or args.task_index:  # not the chief of peers
        place = f"{args.task_index} of {len(getattr(args, f'{args.job_name}_hosts'))}"
        print(f"{args.job_name} {place} serves at {args.address}")
    home = addresses.home(args)
    if args.device != home:
        link.Beat(args, server, {home: addresses.servers(args)[home]}).start()
    known, published, until = Board(args), None, 0.0
    while True:
        waiting = session.run(count)
        for one in session.run(messages, {number: waiting}) if waiting else []:
            message = json.loads(one)
            if message.get("word") == "leave":
                return
            if message.get("word") == "again":
                task.begin_again(args, "the model is lost")
            known.note(message)
        if args.device == home:
            edition, waited = known.as_dict(), time.monotonic() - known.began
            hopeless = link.verdict(edition, args)
            if edition != published:
                session.run(publish, {text: json.dumps(edition)})
                published = edition
            until = until if hopeless else waited + 2 * EVERY  # for others to read it
            if hopeless and waited > until:
                task.end_now(*hopeless)
            if 0 not in known.workers and waited > task.SAY:
                link.end_if_over(args)
                if waited > link.starting(args):
                    task.end_now(f"no answer from {link.chief(args)}")
        time.sleep(0.1)
