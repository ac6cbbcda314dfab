"""How the tasks of a run start, go on after a loss, and end together. Scripts call it.

start   the chief initialises or restores, and opens an incarnation on ps 0; the
        others wait for that, and compare what they think the run is
lost    a ps that died has lost its part of the model: the chief restores the last
        checkpoint on every ps and opens the next incarnation, which all join
end     every worker hands its report in, on ps 0; the chief takes them all, but
        does not wait for a worker of which ps 0 has not heard for a while; it saves,
        is the last to leave, and sends every ps home
"""

import time

from cluster import addresses, checkpoint, fingerprint, model, parting, serve, watch
from cluster import tensorflow_v1 as tf
from cluster.account import account
from cluster.exits import Failure
from cluster.lobby import Lobby


class Protocol:
    """worker: start, what follows a loss, and end; a context for the whole run."""

    def __init__(self, args, target, config, kept, elements, saver=checkpoint.saver):
        """`kept` are the Books of the run, `target` and `config` a session's.

        `elements` is the size P of the center variable; `saver(close, alive)` makes
        what saves and restores it.
        """
        self.args, self.target, self.config, self.books = args, target, config, kept
        self.chief = args.task_index == 0
        said = fingerprint.of(args, elements)
        self.lobby = Lobby(args, target, config, said)
        self.done = False
        with tf.name_scope("protocol"):
            self._build(said, saver)

    def _build(self, said, saver):
        kept = self.books
        run = kept.incarnation
        self.parting = parting.Parting(self.args, run)  # before what initialises it
        self.model = model.Model(self.args, kept, saver)
        self.join, self.returned = run.join(self.lobby.name()), run.returned()
        self.open, self.wake = run.open(said, kept.prepare()), run.on_open
        # A look at the run touches every ps, or it would not notice the loss of one.
        self.look = [kept.step, run.reason, *[beats.value() for beats in run.beats]]
        with tf.device(kept.device):
            self.text = tf.placeholder(tf.string, [])
            self.fail = run.reason.assign(self.text, read_value=False)
        tasks = addresses.serving(self.args)
        self.home = [serve.home(task).enqueue(True) for task in tasks]

    # --- Start ----------------------------------------------------------------

    def scaffold(self, initializer, feed):
        """Returns the Scaffold of the session: what is run when it is created.

        `initializer` and `feed` are the input pipeline's. The usual saver is not
        sharded: the chief writes all, and no directory need be shared.
        """
        return tf.train.Scaffold(
            init_op=tf.no_op(),
            init_fn=lambda _, session: self.model.initialise(session),
            local_init_op=tf.group(tf.local_variables_initializer(), initializer),
            local_init_feed_dict=feed,
            saver=self.model.saver,
        )

    def hook(self):
        """Returns the hook that opens an incarnation (chief) and joins it (all)."""
        protocol = self

        class Start(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                protocol.begin(session)

        return Start()

    def begin(self, session):
        """Opens an incarnation if the chief has to, and joins it."""
        if self.chief:
            if self.model.alive(session):
                for there, make in self.returned:
                    if not session.run(there):
                        session.run(make)
                step = session.run(self.books.step)
                print(f"goes on with the model on the ps, at global step {step}")
            else:
                session.run(self.open)
                session.run(self.wake)
                step = session.run(self.books.step)
                if step:
                    print(f"resumes from global step {step}")
        session.run(self.join)

    def __enter__(self):
        """Returns when the run can be joined; says after 5 s what it waits for."""
        patience = watch.STARTING * self.args.patience
        self.lobby.wait_for_ps(patience)
        if not self.chief:
            self.lobby.wait_for_chief(patience)
        self.lobby.compare()
        run = self.books.incarnation
        self.lobby.also(run.on_beat, run.judges)
        self.lobby.heart.start()
        if self.chief:
            self.model.save_before_the_end(self.target, self.config)
        return self

    def finished(self, session, report):
        """Says whether all updates are made and the chief knows that all are here.

        The `run` in it is the one with hooks: it saves when a checkpoint is due, and
        begins a new session when a ps was lost.
        """
        if report.lost:
            self._go_on(report)
        else:
            report.lost = watch.loss(session, self.look)
            if report.lost:
                return False
        try:
            step, reason, *_ = session.run(self.look)
        except watch.lost() as error:
            report.lost = error
            return False
        if reason:
            raise Failure(reason.decode())
        report.look(step)
        if report.stranger:  # the chief has restored the model meanwhile
            self.lobby.wait_for_chief(self.args.patience)
            session.run(self.join)
            report.stranger = False
        if step < self.args.steps:
            return False
        try:
            self.done = watch.bare(session, lambda bare: self._end(bare, report))
        except watch.lost() as error:
            report.lost = error
        return self.done

    def _go_on(self, report):
        """Waits until the ps are there again, and what the chief has restored."""
        lost = "lost a ps" if self.args.ps_hosts else "lost the chief"
        print(f"{lost}: waiting for it, to go on from the last checkpoint")
        self.lobby.wait_for_ps(self.args.patience)
        if not self.chief:
            self.lobby.wait_for_chief(self.args.patience)
        report.lost = report.point = None  # a point of the curve would come too late

    # --- End ------------------------------------------------------------------

    def _end(self, session, report):
        """Hands the report in; chief: waits for all, and saves. Says if it is the end.

        It is not if a ps was lost meanwhile, and updates with it.
        """
        self.parting.hand_in(session, report.mean_loss())
        if not self.chief:
            report.stranger = not self.parting.leave(session)
            return not report.stranger
        self.parting.collect(session)
        step = session.run(self.books.step)
        if step < self.args.steps:
            return False
        self.collected(session)
        self.model.save(session, step)
        self.parting.see_off(session)
        return True

    def collected(self, session):
        """Chief: what a scheme still does when all have reported; most have nothing."""

    def account(self, session):
        """Chief: returns the books since step 0 as a dict, with what all have said."""
        whole = account(*session.run(self.books.all))
        return {**whole, "loss_per_worker": self.parting.losses}

    def __exit__(self, kind, error, _):
        """Tells the others why the run failed; chief: sends every ps home.

        Not if another start may help, be it only to write the result.
        """
        self.lobby.heart.stop()
        failed = kind is not None and issubclass(kind, Failure)
        if not failed and (kind is not None or not self.done):
            return
        with tf.Session(self.target, config=self.config) as session:
            if failed:
                session.run(self.fail, {self.text: str(error)})
                time.sleep(3 if self.chief else 0)  # for the others to read it
            if self.chief:
                session.run(self.home)
