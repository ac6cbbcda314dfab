"""What the chief notes of its model: curves, the best weights, an early end.

The script calls it in the place of `report.Report`, which prints and writes the rest.
"""

import contextlib
import json
import os

import evaluate
import optimizers
import pipeline
from cluster import curves, report, watch
from cluster import tensorflow_v1 as tf

BEST = "best"  # in LOGDIR: a checkpoint of the best weights, and best.json


class Notes(report.Report):
    """A worker's notes; with each line the chief evaluates the validation set.

    It pulls the weights once, evaluates this copy, and saves the copy if it is the best
    so far: what is kept is what was measured, though others train on meanwhile.
    """

    def __init__(self, args, kept, model, values, index, device):
        """`values` are those of a Network on the ps, `device` is this worker's."""
        super().__init__(args, "accuracy", (None, None))
        self.kept, self.worse, self.best = kept, 0, None
        self.size = pipeline.share(
            index.splits["train"], args.task_index, len(args.worker_hosts)
        )[2]
        with tf.name_scope("notes"):
            self._build(args, model, values, index, device)
        self.folder = os.path.join(args.logdir, BEST)
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self.folder, "best.json")) as file:
                self.best = json.load(file)  # of the run that is resumed

    def _build(self, args, model, values, index, device):
        self.learning_rate = optimizers.learning_rate(args, self.kept.step)
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
        self.saver = tf.train.Saver(names, max_to_keep=1)

    def hook(self):
        """Returns the hook that says where in its epoch a worker goes on."""
        notes = self

        class Position(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                epoch, done = divmod(int(session.run(notes.kept.position)), notes.size)
                if epoch or done:
                    where = f"{done} of its {notes.size} images done"
                    print(f"goes on in epoch {epoch + 1}, {where}")

        return Position()

    def test(self, session):
        """Returns loss and accuracy of the center variables on the test set."""
        found = []

        def run(step_context):
            step_context.session.run(self.pull)
            found.append(self.splits["test"].run(step_context.session))

        session.run_step_fn(run)
        return [found[0].loss, found[0].accuracy]

    def draw(self, session):
        """Chief: evaluates, adds a point to the curves, keeps the best, may stop."""
        if not (self.chief and self.point):
            return
        (step, values), self.point = self.point, None

        def evaluate(step_context):
            try:
                self._evaluate(step_context.session, step, values)
            except watch.lost() as error:
                self.lost = error

        session.run_step_fn(evaluate)

    def write(self, session, account):
        """Chief: judges the last weights too, then writes the result, as `report` does.

        `account` is what account.account returns; `best` is added to it.
        """
        step = account["global_steps"]
        if step > account["resumed_from"]:
            values = {"training loss": self.mean_loss(), "staleness": 0.0}
            self.point = step, self.point[1] if self.point else values
            self.draw(session)
        super().write(session, {**account, "best": self.best})

    def _evaluate(self, session, step, values):
        session.run(self.pull)
        found = self.splits["validation"].run(session)
        # TensorBoard puts what has the same first word side by side.
        curves.write(
            self.args.logdir,
            step,
            {
                "accuracy/validation": found.accuracy,
                "loss/training": values["training loss"],
                "loss/validation": found.loss,
                "staleness": values["staleness"],
                "learning_rate": float(session.run(self.learning_rate)),
            },
        )
        if self.best is None or found.loss < self.best["validation_loss"]:
            self.worse = 0
            self._keep(session, step, found)
            return
        self.worse += 1
        if self.worse == self.args.early_stopping and step < self.args.steps:
            session.run(self.kept.stop)
            print(f"stops early: no better than at step {self.best['global_step']}")

    def _keep(self, session, step, found):
        path = os.path.join(self.folder, "model.ckpt")
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.saver.save(session, path, step, write_meta_graph=False)
            self.best = {"global_step": step, "validation_loss": found.loss}
            self.best["validation_accuracy"] = found.accuracy
            path = os.path.join(self.folder, "best.json")
            with open(path + ".part", "w") as file:
                json.dump(self.best, file)
            os.replace(path + ".part", path)
        except (tf.errors.OpError, OSError) as error:
            print(f"cannot keep the best weights: {str(error).splitlines()[0]}")
