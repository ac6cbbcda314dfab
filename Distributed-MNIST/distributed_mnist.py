"""Distributed-MNIST: a complete program, from image files to a model that is served.

    ps         holds the variables w and what the optimizer remembers; updates both
    worker     pulls w, computes a gradient on its own records, pushes it
    chief      worker 0: evaluates, keeps the best w, saves, exports a SavedModel
    evaluator  follows the checkpoints: test accuracy, confusion matrix, mistakes

        g := ∇ loss(w; mini-batch), ‖g‖ at most --clip_norm     (worker)
        g := (1/N) ∑ g_k of the first N of step t, if --issync 1  (ps)
        η_t := η d^(t / --decay_steps)                            (ps 0)
        m ← μ m + g,  w ← w − η_t m, or Adam                      (ps: each variable)

The model is a convolutional network. The flags are those of published programs.
Papers: LeCun et al. 1998; for --issync 1 Chen et al. 2016, arXiv 1604.00981.
Run: bash run.sh
"""

# --- Imports -----------------------------------------------------------------

import argparse

from cluster import board, flags, rounds, run, sync, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
from cluster.stats import Stats
import ending
import evaluate
import export
import models
import optimizers
import pipeline
import placement
import progress
import slow
import supply

# --- Flags [algorithm] -------------------------------------------------------


def parse_args(argv=None):
    parser = flags.parser("Distributed-MNIST", __doc__)
    flags.add_cluster_flags(parser, jobs=("ps", "worker", "evaluator"))
    slow.add_flag(parser)
    parser.set_defaults(steps=None, learning_rate=0.02, save_seconds=5.0)
    parser.set_defaults(address=None)  # of the evaluator
    add, on = parser.add_argument, dict(type=int, choices=(0, 1), default=0)
    add("--issync", **on, help="1: wait for N gradients; 0: wait for nobody")
    add("--replicas_to_aggregate", type=flags.positive_int, help="N, all if not given")
    add("--epochs", type=flags.positive, default=20, help="passes, if no --steps given")
    add("--early_stopping", type=flags.natural, default=0, help="bad lines; 0: never")
    add("--placement", choices=placement.KINDS, default="partitioned", help="on the ps")
    add("--sharded", **on, help="1: every ps saves its part, into one shared LOGDIR")
    add("--export", help="where the model's numbered folder goes, else LOGDIR")
    for module in (optimizers, models, pipeline):
        module.add_flags(parser)
    hidden = dict(default=argparse.SUPPRESS, help="as published programs call it")
    add("--train_steps", type=flags.positive_int, dest="steps", **hidden)
    add("--data_dir", dest="data", **hidden)
    return ending.check(flags.parse(parser, argv))


# --- Graph [algorithm] -------------------------------------------------------


def graph(args, center, stats, step, move, batch, loss, last):
    """Builds one round, from pull to update, that begins after the `last` one.

    `center` are the variables in pieces, `stats` the counters on ps 0, `step` the
    barrier with --issync 1, `move` the optimizer, `batch()` a fresh mini-batch,
    `loss(pieces, batch)` its scalar loss.
    """
    # w   (ps → worker); with --issync 1 not before step t is open
    with tf.name_scope("pull"):
        seen = step.wait(last.update) if step else stats.read_step(last.update[:1])
        after = [seen] * len(center) if step else last.update
        pulled = rounds.read(center, after)

    # g := ∇ loss(w; mini-batch)   (worker)
    with tf.name_scope("gradient"):
        value = loss(pulled, batch())
        gradients = tf.gradients(value, pulled)
        if args.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, args.clip_norm)

    # g   (worker → ps, where ps 0 gives the update its number, or takes it for step t)
    with tf.name_scope("push"):
        pushed = rounds.send(gradients, center)
        about = pushed, args.batch_size, pulled
        counted = step.offer(seen, *about) if step else stats.count(*about, seen)

    # w moves by g, or by the mean of N   (ps: these operations run where w is)
    with tf.name_scope("update"):
        rate = optimizers.learning_rate(args, counted.number)
        which = {piece.name: i for i, piece in enumerate(center)}

        def rule(w, g):
            return move(which[w.name], w, g, counted.number + 1, rate)

        if step:
            update = step.update(center, pushed, rule)
        else:
            update = rounds.update(center, pushed, counted.applied, rule)
    return rounds.Round(value, counted, update)


# --- Worker, ps and evaluator [algorithm] ------------------------------------


def main():
    args = parse_args()
    me, workers = args.task_index, len(args.worker_hosts)
    index = task.begin(args, supply.For(args))

    if args.job_name != "ps":
        index = index or supply.load(args)  # of the evaluator
        args.data_checksum = index.checksum
        args.steps = args.steps or ending.steps_of(args, index)
        model = models.build(args, index)
    if args.job_name == "evaluator":
        return evaluate.follow(args, index, model)

    # Cluster and server: every task knows every address, and serves its own part.
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(spec, job_name=args.job_name, task_index=me)
    if args.job_name == "ps":
        return board.serve(server, args)  # until the chief says that the run is over

    # Placement: `place` says which ps has a variable; all the rest is this worker's.
    place = placement.Placement(args.placement, len(args.ps_hosts))
    chosen = dict(cluster=spec, worker_device=args.device, ps_strategy=place)
    with tf.device(tf.train.replica_device_setter(**chosen)):
        center, join = place.variables(model)
        move = optimizers.of(args, place)
        stats = Stats(args)
        step = sync.Barrier(args, center, stats) if args.issync else None
        position = pipeline.position(stats)
        next_batch = pipeline.batches(index, args, me, workers, position)

        def loss_of(pieces, batch):
            return model.loss(join(pieces), *batch[:2])

        loss, batch = slow.slowed(loss_of, args), rounds.in_turn(next_batch)
        built = args, center, stats, step, move, batch, loss
        calls = rounds.Calls(lambda last: graph(*built, last))
        values = join(rounds.read(center))
        weights = progress.Weights(args, stats, model, values, index)
        saver = tf.train.Saver(sharded=bool(args.sharded), save_relative_paths=True)
    learning = progress.learning(center)
    training = run.Run(args, server, learning, stats, calls, None, saver)
    training.report = progress.Report(args, weights)
    if training.chief:
        place.print_bytes(center)

    # Begin: the chief initialises w, or restores it; the others wait for that.
    with training:
        pipeline.say_position(training.session.run(position), index, me, workers)
        # Loop: a call is up to ten rounds. If a ps is lost in here, all go on from the
        # last checkpoint.
        while training.left > 0:
            with training.recovering():
                losses, counts = calls.make(training.session, training.left)
                training.log(losses, counts)  # a line, a checkpoint, when they are due
        # End: all workers report; the chief tests w and writes result.json.
        training.end()
    if training.chief:
        export.at_the_end(args, index)


if __name__ == "__main__":
    task.run(main)
