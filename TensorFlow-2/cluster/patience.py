"""How long a task waits for others, and what it says. `rendezvous` calls it."""

import os
import time

from cluster import report
from cluster.task import end_now, is_started_again

ANSWER = 5  # seconds that an answer may take
SAY = 10  # seconds between two lines of a task that waits
STARTING = 10  # times --patience: how long the other tasks may take to start


def wait(test, what, patience, every=0.1, args=None):
    """Returns once `test()` holds; says `what()` it waits for, after 5 s, every 10 s.

    After `patience` seconds it ends the program with status 138. With `args` it ends it
    with status 0 if LOGDIR says that the run is over.
    """
    began, due = time.monotonic(), ANSWER
    while not test():
        waited = time.monotonic() - began
        if waited > due:
            if args:
                end_if_over(args)
            said, left = f"still waiting for {what()}", max(0, patience - waited)
            print(f"{said}; {left:.0f} s left", flush=True)
            due += SAY
        if waited > patience:
            end_now(f"no answer in {patience:.0f} s from {what()}")
        time.sleep(every)


def starting(args):
    """Returns for how many seconds this task waits for those who start with it.

    By hand the tasks of a run are started over minutes. But the others of a worker that
    is started again are there, or the run is over. The chief, and whoever waits for it,
    wait for long also then: so they meet, whatever starts them again, and when.
    """
    again = is_started_again() and args.job_name == "worker" and args.task_index
    return args.patience * (1 if again else STARTING)


def end_if_over(args):
    """Ends the program with status 0 if LOGDIR has the result of the whole run."""
    step = report.step_if_over(args)
    if step is not None:
        print(f"the run is over: {args.logdir} is at global step {step}", flush=True)
        os._exit(0)
