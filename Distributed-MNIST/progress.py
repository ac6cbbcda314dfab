"""How a run goes on: curves, the best weights, an early end. The script calls it.

`Report` and `Run` extend the classes of `cluster` by what only this program does.
"""

import collections
import contextlib
import json
import os

from cluster import report, run, training
from cluster import tensorflow_v1 as tf
import evaluate
import optimizers
import pipeline

BEST = "best"  # in LOGDIR: a checkpoint of the best weights, and best.json

# What a run asks of a learning problem, as `problem.Problem` has it, and the examples
# that this worker has in an epoch.
Learning = collections.namedtuple("Learning", "start metric initializer feed examples")


def learning(args, index, center, iterator):
    """Returns this worker's Learning, of all pieces of the variables and its input."""
    elements = sum(piece.shape.num_elements() for piece in center)
    share = pipeline.share(
        index.splits["train"], args.task_index, len(args.worker_hosts)
    )
    return Learning(
        start=tf.TensorSpec([elements]),
        metric="accuracy",
        initializer=iterator.initializer,
        feed={},
        examples=share[2],
    )


class Weights:
    """The weights as the chief has pulled them at one moment, to evaluate and to keep.

    What is kept is what was measured, though others train on meanwhile.
    """

    def __init__(self, args, stats, model, values, index, device):
        """`values` are those of a Network on the ps, `device` is this worker's."""
        self.stop = stats.stop()
        with tf.name_scope("weights"):
            self.learning_rate = optimizers.learning_rate(args, stats.step)
            with tf.device(device):
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
            self.saver = tf.train.Saver(names)

    def evaluate(self, session, split):
        """Pulls the weights; returns what was Found of them on a split of the data."""
        session.run(self.pull)
        return self.splits[split].run(session)


class Report(report.Report):
    """A worker's report; with each line the chief evaluates the validation set.

    It keeps the weights if they are the best so far, and may end the run early.
    """

    def __init__(self, args, metric, weights):
        super().__init__(args, metric, (None, None))
        self.weights, self.worse, self.best = weights, 0, None
        self.folder = os.path.join(args.logdir, BEST)
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self.folder, "best.json")) as file:
                self.best = json.load(file)  # of the run that is resumed

    def test(self, session):
        """Returns loss and {"accuracy": number} of the variables on the test set."""
        found = self.weights.evaluate(session, "test")
        return found.loss, {"accuracy": found.accuracy}

    def draw(self, session):
        """Chief: evaluates, adds a point to the curves, keeps the best, may stop."""
        if self.point:
            (step, values), self.point = self.point, None
            self._evaluate(session, step, values)

    def write(self, session, summary):
        """Chief: evaluates the last weights, too, and writes the result.

        `best` is added to the summary.
        """
        step = summary["global_steps"]
        if step > summary["resumed_from"]:
            values = {"training loss": self.mean_loss(), "staleness": 0.0}
            self._evaluate(session, step, self.point[1] if self.point else values)
        super().write(session, {**summary, "best": self.best})

    def _evaluate(self, session, step, values):
        found = self.weights.evaluate(session, "validation")
        # TensorBoard puts what has the same first word side by side.
        self.curves.add(
            step,
            {
                "accuracy/validation": found.accuracy,
                "loss/training": values["training loss"],
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
        path = os.path.join(self.folder, f"{training.NAME}-{step}")
        options = dict(write_meta_graph=False, write_state=False)
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.weights.saver.save(session, path, **options)
            training.keep(path, 1)
            self.best = {"global_step": step, "validation_loss": found.loss}
            self.best["validation_accuracy"] = found.accuracy
            path = os.path.join(self.folder, "best.json")
            with open(path + ".part", "w") as file:
                json.dump(self.best, file)
            os.replace(path + ".part", path)
        except (tf.errors.OpError, OSError) as error:
            print(f"cannot keep the best weights: {str(error).splitlines()[0]}")


class Run(run.Run):
    """A run whose limit of steps may be lowered, and whose input goes on in mid-epoch.

    `test` are the Weights.
    """

    Report = Report

    def __init__(self, args, target, config, stats, learning, calls, test, saver):
        super().__init__(args, target, config, stats, learning, calls, test, saver)
        self.examples = learning.examples

    def open_session(self):
        session = super().open_session()
        self.report.point = None  # it would be of weights that are lost
        self._take_limit(session)
        epoch, done = divmod(int(session.run(self.stats.position)), self.examples)
        if epoch or done:
            where = f"{done} of its {self.examples} images done"
            print(f"goes on in epoch {epoch + 1}, {where}")
        return session

    def train(self, session):
        self._take_limit(session)
        super().train(session)

    def _take_limit(self, session):
        """Takes over the limit of steps, which the chief may have lowered."""
        self.args.steps = int(session.run(self.stats.now))
