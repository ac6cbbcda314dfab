"""How a run goes on: curves, the best weights, an early end. The script calls it."""

import collections
import contextlib
import json
import os

from cluster import report
from cluster import tensorflow_v1 as tf
from cluster.checkpoint import NAME
import evaluate
import optimizers

BEST = "best"  # in LOGDIR: a checkpoint of the best weights, and best.json

# What a run asks of a learning problem, as `problem.Problem` has it.
Learning = collections.namedtuple("Learning", "start metric")


def learning(center):
    """Returns the Learning of all pieces of the variables."""
    elements = sum(piece.shape.num_elements() for piece in center)
    return Learning(tf.TensorSpec([elements]), "accuracy")


class Weights:
    """The weights as the chief has pulled them at one moment, to evaluate and to keep.

    What is kept is what was measured, though others train on meanwhile.
    """

    def __init__(self, args, stats, model, values, index):
        """`values` are those of a Network on the ps."""
        self.stop = stats.stop()
        with tf.name_scope("weights"):
            self.learning_rate = optimizers.learning_rate(args, stats.step)
            with tf.device(args.device):
                copy = [
                    tf.Variable(
                        tf.zeros(value.shape),
                        trainable=False,
                        collections=[tf.GraphKeys.LOCAL_VARIABLES],
                        name=f"copy/{name}",
                        use_resource=True,
                    )
                    for name, value in zip(model.names, values, strict=True)
                ]
            pairs = zip(copy, values, strict=True)
            self.pull = [v.assign(value, read_value=False) for v, value in pairs]
            self.splits = {
                split: evaluate.Evaluation(
                    index, split, lambda images: model.logits(copy, images)
                )
                for split in ("validation", "test")
            }
            names = dict(zip(model.names, copy, strict=True))
            self.saver = tf.train.Saver(names, max_to_keep=1, save_relative_paths=True)

    def evaluate(self, session, split):
        """Pulls the weights; returns what was Found of them on a split of the data."""
        session.run(self.pull)
        return self.splits[split].run(session)


class Report(report.Report):
    """A worker's report; with each line the chief evaluates the validation set.

    It keeps the weights if they are the best so far, and may end the run early.
    """

    def __init__(self, args, weights):
        super().__init__(args, "accuracy", None)
        self.weights, self.worse, self.best = weights, 0, None
        self.folder = os.path.join(args.logdir, BEST)
        kept = tf.train.get_checkpoint_state(self.folder)
        if kept:
            weights.saver.recover_last_checkpoints(kept.all_model_checkpoint_paths)
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self.folder, "best.json")) as file:
                self.best = json.load(file)  # of the run that is resumed

    def test(self, session):
        """Returns loss and {"accuracy": number} of the variables on the test set."""
        found = self.weights.evaluate(session, "test")
        return found.loss, {"accuracy": found.accuracy}

    def draw_line(self, session):
        """Chief: evaluates, adds a point to the curves, keeps the best, may stop."""
        if self.point:
            (step, values), self.point = self.point, None
            self._evaluate(session, step, values)

    def write(self, session, summary):
        """Chief: evaluates the last weights, too, and writes the result.

        `best` is added to the summary. After an early end the run is over.
        """
        step = summary["global_steps"]
        self.args.steps = min(self.args.steps, step)
        if step > summary["resumed_from"]:
            loss = self.loss_sum / max(1, self.rounds_made)
            values = {"training_loss": loss, "staleness": 0.0}
            self._evaluate(session, step, self.point[1] if self.point else values)
        super().write(session, {**summary, "best": self.best})

    def _evaluate(self, session, step, values):
        found = self.weights.evaluate(session, "validation")
        # TensorBoard puts what has the same first word side by side.
        self.curves.add(
            step,
            {
                "accuracy/validation": found.accuracy,
                "loss/training": values["training_loss"],
                "loss/validation": found.loss,
                "staleness": values["staleness"],
                "learning_rate": float(session.run(self.weights.learning_rate)),
            },
        )
        if self.best is None or found.loss < self.best["validation_loss"]:
            self.worse = 0
            self._keep(session, step, found)
            return
        self.worse += 1
        if self.worse == self.args.early_stopping and step < self.args.steps:
            session.run(self.weights.stop)
            print(f"stops early: no better than at step {self.best['global_step']}")

    def _keep(self, session, step, found):
        path = os.path.join(self.folder, NAME)
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.weights.saver.save(session, path, step, write_meta_graph=False)
            self.best = {"global_step": step, "validation_loss": found.loss}
            self.best["validation_accuracy"] = found.accuracy
            path = os.path.join(self.folder, "best.json")
            with open(path + ".part", "w") as file:
                json.dump(self.best, file)
            os.replace(path + ".part", path)
        except (tf.errors.OpError, OSError) as error:
            print(f"cannot keep the best weights: {str(error).splitlines()[0]}")
