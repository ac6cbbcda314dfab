"""What a ps does, or a worker without a client: it serves. Scripts call it."""

import time

from cluster import addresses
from cluster import tensorflow_v1 as tf
from cluster.exits import AGAIN, leave_now
from cluster.incarnation import beats, silence
from cluster.watch import BEAT, STARTING

LOOK = 0.5  # seconds between two looks whether the end has come: rounds wait meanwhile


def home(task):
    """Returns the queue on a task into which the chief puts a token at the end."""
    with tf.device(addresses.device(task)):
        return tf.FIFOQueue(-1, tf.bool, [[]], shared_name="home")


def serve(server, args):
    """ps: returns when the chief says that all is done. `server.join()` never returns.

    A ps of which every worker has long been silent ends as a failure.
    """
    me = args.job_name, args.task_index
    told = home(me).size()
    quiet = tf.reduce_min(silence(beats(me, addresses.clients(args))))
    config = tf.ConfigProto(device_filters=[addresses.device(me)])
    of = len(getattr(args, f"{args.job_name}_hosts"))
    print(f"{args.job_name} {args.task_index} of {of} serves at {args.address}")
    limit = STARTING * args.patience
    began = looked = time.monotonic()
    with tf.Session(server.target, config=config) as session:
        while not session.run(told):
            time.sleep(LOOK)
            if time.monotonic() < looked + BEAT:
                continue
            looked = time.monotonic()
            try:
                silent = session.run(quiet)
            except tf.errors.FailedPreconditionError:  # the chief was not here yet
                silent = looked - began
            # What has no sign of life yet is as old as the clock.
            if min(silent, looked - began) > limit:
                leave_now(f"no worker was heard of for {limit:.0f} s", AGAIN)
