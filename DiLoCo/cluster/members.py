"""Workers that come and go between rounds, with --min_workers. Scripts of peers.

TensorFlow's ring has the members with which it began. So a change ends it, as a run
ends: all finish the same round and the chief saves. Then every process begins anew, as
the same process, in a ring of those who are there.

start   who is there tells the chief, and the chief tells them who is
come    a worker that finds the others training knocks at the chief's
go      a worker that gets TERM leaves after the round; one that is killed is lost, and
        with it what came after the last checkpoint
"""

import os
import sys
import threading

from cluster import flags, meeting, rollcall, start, watch
from cluster import tensorflow_v1 as tf
from cluster.exits import AGAIN, leave_now

# --- Start ------------------------------------------------------------------------


def add_flag(parser):
    """Adds --min_workers."""
    parser.add_argument(
        "--min_workers",
        type=flags.natural,
        default=0,
        help="with so many a run goes on, others may come and go; 0: with all or none",
    )


def gather(args):
    """Makes args.worker_hosts those who are there, and args.task_index one of them.

    Does nothing without --min_workers. Ends the program if too few come in ten times
    --patience.
    """
    if not args.min_workers:
        return
    there = rollcall.receive(args) if args.task_index == 0 else rollcall.report(args)
    if len(there) < len(args.worker_hosts):
        print(f"goes on with workers {', '.join(map(str, there))}", flush=True)
    args.worker_hosts = [args.worker_hosts[seat] for seat in there]
    if len(args.slow_workers) > 1:
        args.slow_workers = [args.slow_workers[seat] for seat in there]
    args.task_index = there.index(args.task_index)


# --- End of a round, and of a ring --------------------------------------------------


class Meeting(meeting.Meeting):
    """A worker among peers of whom some may come or go."""

    def __init__(self, args, target, config, kept, peers, elements):
        self.wanted, self.goes = rollcall.wanted(), False  # one more; this worker
        super().__init__(args, target, config, kept, peers, elements)
        self.mine = tf.placeholder(tf.float32, [])
        self.change = peers.largest(self.mine)
        if args.min_workers and not self.chief:
            start.before_the_end(self._go)

    def _go(self):
        self.goes = True
        self.ended.wait()

    def finished(self, session, report):
        """Says whether all updates are made, as before; if not, all may begin anew."""
        over = super().finished(session, report)
        if over or not self.args.min_workers:
            return over
        wish = session.run(self.wanted) if self.chief else float(self.goes)
        try:
            watch.bare(session, lambda bare: self._agree(bare, wish, report))
        except watch.lost():
            self._leave()
        return False

    def _agree(self, bare, wish, report):
        if not bare.run(self.change, {self.mine: wish}):
            return
        self.check.make(bare)
        self.parting.hand_in(bare, report.mean_loss())
        if self.chief:
            self.ended.set()  # who is silent from now on has left
            self.parting.collect(bare)
            step = bare.run(self.books.step)
            self.model.save(bare, step)
            print(f"workers come or go at global step {step}")
            self.parting.see_off(bare)
        else:
            self.parting.leave(bare)
        self._anew()

    def _give_up(self, sentence):
        if not self.args.min_workers:
            super()._give_up(sentence)
        if not self.goes:
            print(sentence)
        self._anew()

    def _anew(self):
        """Begins this program again, as the same process; or ends it, if it goes."""
        if self.goes:
            self.ended.set()  # the end itself is the signal's
            threading.Event().wait()
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), 2)
        try:
            os.execv(sys.executable, sys.orig_argv)
        except OSError as error:
            leave_now(f"cannot begin anew: {error.strerror}", AGAIN)
