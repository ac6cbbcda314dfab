"""How the tasks of a run start and end together, by queues on the ps. Scripts call it.

start (on ps 0): a latch. Once all is initialised or restored the chief puts a token
    in; a worker takes it and puts it back before it opens its session.
done (on ps 0): every worker puts its report in after its last push; the chief takes
    one of each, but does not wait for a worker that was killed.
leave (on each ps): the chief is the last to leave, and sends every ps home.
"""

import json
import threading
import time

from cluster import books, checkpoint, ports
from cluster import tensorflow_v1 as tf

ASK = 5  # seconds without a report; then the chief asks whether the worker is there


def queue(name, dtype, ps=0):
    """Returns the queue of this name on a ps: the same one in every task's graph."""
    with tf.device(f"/job:ps/task:{ps}"):
        return tf.FIFOQueue(-1, dtype, [[]], shared_name=name)


def serve(server, args):
    """ps: waits until the chief says that all is done. `server.join()` never ends."""
    me = args.task_index
    token = queue("leave", tf.bool, me).dequeue()
    config = tf.ConfigProto(device_filters=[f"/job:ps/task:{me}"])
    print(f"ps {me} of {len(args.ps_hosts)} serves at {args.address}")
    with tf.Session(server.target, config=config) as session:
        session.run(token)


class Waiting:
    """Prints a sentence if what is waited for takes more than 5 s."""

    def __init__(self, sentence):
        self.timer = threading.Timer(5, print, [sentence], {"flush": True})
        self.timer.daemon = True

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()


class Protocol:
    """worker: start, rejoin after a restore, and end."""

    def __init__(self, args, target, config, kept):
        """`kept` are the Books of the run, `target` and `config` a session's."""
        self.args, self.target, self.config, self.books = args, target, config, kept
        self.chief = args.task_index == 0
        self.said = {}  # chief: what each worker had to say at the end
        self.begun = None  # chief: the books when this incarnation began
        start, done = queue("start", tf.bool), queue("done", tf.string)
        self.pass_latch = start.enqueue(start.dequeue())
        self.open_latch = start.enqueue(True)
        self.close = tf.group(kept.close(), start.dequeue_many(start.size()))
        self.open, self.join = kept.open(), kept.join()
        self.text = tf.placeholder(tf.string, [])
        self.report, self.collect = done.enqueue(self.text), done.dequeue()
        self.dismiss = [
            queue("leave", tf.bool, ps).enqueue(True)
            for ps in range(len(args.ps_hosts))
        ]

    def scaffold(self, initializer, feed):
        """Returns the Scaffold of the session: what is run when it is created.

        `initializer` and `feed` are the input pipeline's. The saver is not sharded: the
        chief writes all, and no directory need be shared.
        """
        # Without the latch a worker that comes early would sleep 30 s before it looks
        # again whether the chief has initialised everything.
        with tf.control_dependencies([] if self.chief else [self.pass_latch]):
            ready = tf.report_uninitialized_variables(tf.global_variables())
        return tf.train.Scaffold(
            init_op=tf.group(tf.global_variables_initializer(), self.close),
            ready_for_local_init_op=ready,
            local_init_op=tf.group(tf.local_variables_initializer(), initializer),
            local_init_feed_dict=feed,
            saver=checkpoint.saver(self.close),
        )

    def hook(self):
        """Returns the hook that opens the start for all (chief), or joins (others)."""
        protocol = self
        chief = self.args.worker_hosts[0]
        waiting = Waiting(f"still waiting for the chief, worker 0 at {chief}")
        if not self.chief:
            waiting.__enter__()

        class Start(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                waiting.__exit__()
                if protocol.chief:
                    session.run(protocol.open)
                    protocol.begun = session.run(protocol.books.all)
                    if protocol.begun[-1]:
                        print(f"resumes from global step {protocol.begun[-1]}")
                session.run(protocol.join)
                if protocol.chief:
                    session.run(protocol.open_latch)

        return Start()

    def __enter__(self):
        """Returns when every ps accepts connections; says after 5 s which does not."""
        for index, address in enumerate(self.args.ps_hosts):
            sentence = f"still waiting for ps {index}: nothing answers at {address}"
            with Waiting(sentence):
                while not ports.answers(address):
                    time.sleep(0.1)  # the ps may be a minute away from its start
        return self

    def finished(self, session, report):
        """Says whether all updates are made and the chief knows that all are here.

        Every worker then hands in its report, and the chief waits for all of them; if
        a ps is lost meanwhile, and updates with it, training goes on. The `run` of this
        method is the one with hooks: where checkpoints are due, and a lost ps is
        waited for.
        """
        if report.look(session.run(self.books.step)) < self.args.steps:
            if report.stranger:  # the chief has restored the model meanwhile
                session.run(self.pass_latch)
                session.run(self.join)
                report.stranger = False
            return False
        session.run(
            self.report,
            {self.text: json.dumps([self.args.task_index, report.mean_loss()])},
        )
        if not self.chief:
            return True
        limit = tf.RunOptions(timeout_in_ms=1000 * ASK)
        missing = set(range(len(self.args.worker_hosts))) - set(self.said) | {0}
        while missing:
            try:
                text = session.run(self.collect, options=limit)
                worker, said = json.loads(text)
                self.said[worker] = said
                missing.discard(worker)
            except tf.errors.DeadlineExceededError:
                for worker in sorted(missing):
                    if not ports.answers(self.args.worker_hosts[worker]):
                        print(f"worker {worker} is gone: the run ends without it")
                        missing.discard(worker)
        return session.run(self.books.step) >= self.args.steps

    def account(self, session):
        """Chief: returns the books since step 0 as a dict, with what all have said."""
        account = books.account(session.run(self.books.all), self.begun)
        return {**account, "loss_per_worker": self.said}

    def __exit__(self, kind, *_):
        """Chief: when all is done, or training diverged, sends every ps home."""
        if self.chief and kind in (None, FloatingPointError):
            with tf.Session(self.target, config=self.config) as session:
                session.run(self.dismiss)
