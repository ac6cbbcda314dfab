"""How workers without a ps start, fail and end together. Scripts of peers call it.

start   the chief restores or initialises and opens an incarnation; when all workers
        have joined it, all take over its weights by an all-reduce to which only the
        chief adds something
lost    a ring cannot go on without one of its workers, so that all end; when they are
        started again, they go on from the last checkpoint
end     all compare their weights bit by bit and hand their reports in; the chief
        saves, and is the last to leave
"""

import contextlib
import threading
import time

from cluster import alike, checkpoint, fingerprint, lobby, model, parting, watch
from cluster import tensorflow_v1 as tf
from cluster.account import account
from cluster.exits import AGAIN, Failure, leave_now
from cluster.lookout import Lookout


class Meeting:
    """A worker among its peers; a context for the whole run."""

    def __init__(self, args, target, config, kept, peers, elements):
        """`target` and `config` are a session's, `elements` is P, of w."""
        self.args, self.target, self.config, self.books = args, target, config, kept
        self.chief, self.ended = kept.chief, threading.Event()
        run, said = kept.incarnation, fingerprint.of(args, elements)
        shared = alike.shared(kept.of_chief())
        self.take = alike.take_over(peers, shared, self.chief)
        self.own = tf.local_variables_initializer()  # which may begin from the weights
        self.check = alike.Check(peers, shared)
        self.parting = parting.Parting(args, run)
        self.lobby = lobby.Lobby(args, target, config, said)
        self.model = model.Model(args, kept, checkpoint.saver)
        self.join = run.join(self.lobby.name())
        if self.chief:
            self.open = run.open(said, kept.prepare())
        with tf.device(kept.device):
            missing = tf.not_equal(run.joined.value(), run.number.value())
            self.missing = tf.where(missing)[:, 0]
            self.lookout = Lookout(run, kept.me, args.worker_hosts)
            self.look = run.reason.value()
            self.text = tf.placeholder(tf.string, [])
            self.fail = run.reason.assign(self.text, read_value=False)
        self.graph = tf.get_default_graph()

    # --- Start ----------------------------------------------------------------

    def scaffold(self, initializer, feed):
        """Returns the Scaffold of the session: what is run when it is created.

        `initializer` and `feed` are the input pipeline's. The chief alone restores and
        saves; the others begin with start weights, and take over what it has.
        """
        return tf.train.Scaffold(
            init_op=tf.no_op() if self.chief else self.model.initializer,
            init_fn=(lambda _, s: self.model.initialise(s)) if self.chief else None,
            local_init_op=tf.group(tf.local_variables_initializer(), initializer),
            local_init_feed_dict=feed,
            saver=self.model.saver,
        )

    def hook(self):
        """Returns the hook that opens an incarnation (chief) and joins it (all)."""
        meeting = self

        class Start(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                meeting.begin(session)

        return Start()

    def begin(self, session):
        """Joins the incarnation, waits for all, takes over the chief's weights."""
        try:
            if self.chief:
                session.run(self.open)
            session.run(self.join)
            watch.wait(
                lambda: not len(session.run(self.missing)),
                lambda: self._where([*session.run(self.missing), 0][0]),
                watch.STARTING * self.args.patience,
            )
            threading.Thread(target=self._listen, daemon=True).start()
            session.run(self.take)
            session.run(self.own)
        except watch.lost():
            self._leave()
        if self.chief:
            if step := session.run(self.books.step):
                print(f"resumes from global step {step}")

    def __enter__(self):
        """Returns when the run can be joined; says after 5 s what it waits for."""
        patience = watch.STARTING * self.args.patience
        self.lobby.wait_for_ps(patience)
        if not self.chief:
            self.lobby.wait_for_chief(patience)
            again = f"{self._where(0)} to begin again, with this worker"
            watch.wait(self._is_free, lambda: again, patience)
        self.lobby.heart.start()
        if self.chief:
            self.model.save_before_the_end(self.target, self.config)
        return self

    def _where(self, worker):
        return f"worker {worker} at {self.args.worker_hosts[worker]}"

    def _short(self):
        """Returns a session in which no call takes longer than 5 s."""
        return tf.Session(self.target, self.graph, watch.in_time(self.config))

    def _is_free(self):
        """Says whether no other process has been this worker in this incarnation."""
        with contextlib.suppress(tf.errors.OpError), self._short() as session:
            self.lobby.compare()  # so that the other one is gone
            return not self.lookout.is_replaced(session) and self.lobby.is_open()
        return False

    # --- Loss -----------------------------------------------------------------

    def _listen(self):
        """Ends the program when a worker is lost, also while a call waits for it."""
        with contextlib.suppress(tf.errors.OpError), self._short() as session:
            while not self.ended.wait(watch.BEAT):
                lost, silent, seconds = self.lookout.look(session)
                if lost is not None and not self.ended.is_set():
                    self._leave(lost)
                if seconds > self.args.patience and not self.ended.is_set():
                    where = self._where(silent)
                    self._give_up(f"no answer in {seconds:.0f} s from {where}")

    def _leave(self, gone=None):
        """Ends the program, and says why: `gone` is the lost worker, if it is known."""
        gone = watch.gone(self.args.worker_hosts) if gone is None else gone
        # A session would wait for a chief that has just left for the same reason.
        if gone != 0 and watch.silent_ps(self.args.worker_hosts[:1]) is None:
            with contextlib.suppress(tf.errors.OpError), self._short() as session:
                reason = session.run(self.look)
                if reason:
                    leave_now(reason.decode(), 1)
        who = "a worker" if gone is None else self._where(gone)
        self._give_up(
            f"lost {who}, and a ring cannot go on without it: started again, all go on "
            "from the last checkpoint"
        )

    def _give_up(self, sentence):
        leave_now(sentence, AGAIN)

    def finished(self, session, report):
        """Says whether all updates are made and all know that all have made them.

        The `run` in it is the one with hooks: it saves when a checkpoint is due. It
        must not meet a lost worker, or it would begin a session anew, alone.
        """
        if report.lost or watch.loss(session, self.look):
            self._leave()
        if report.look(session.run(self.books.step)) < self.args.steps:
            return False

        def end(bare):
            self.check.make(bare)
            self.parting.hand_in(bare, report.mean_loss())
            self.ended.set()
            if self.chief:
                self.parting.collect(bare)

        try:
            watch.bare(session, end)
            return True
        except watch.lost():
            self._leave()

    def account(self, session):
        """Chief: returns the books since step 0 as a dict, with what all have said."""
        whole = account(*session.run(self.books.all))
        return {**whole, "loss_per_worker": self.parting.losses}

    def __exit__(self, kind, error, _):
        """Tells the others why the run failed, or, at the end, that all is saved."""
        if kind is not None and issubclass(kind, Failure):
            self.ended.set()
            with contextlib.suppress(tf.errors.OpError), self._short() as session:
                session.run(self.fail, {self.text: str(error)})
            time.sleep(3 if self.chief else 0)  # for the others to read it
        elif kind is None:
            try:
                part = self.parting.see_off if self.chief else self.parting.leave
                with tf.Session(self.target, self.graph, self.config) as session:
                    part(session)
            except tf.errors.OpError:
                self._leave()
        self.lobby.heart.stop()
