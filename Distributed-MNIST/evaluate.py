"""Loss, accuracy, confusion matrix and mistakes of a model; the evaluator's task.

The evaluator is a process of its own. It has no address and is not in the cluster. It
follows the checkpoints in LOGDIR, which it must see. Training does not wait for it.
"""

import collections
import json
import os
import threading
import time

import numpy as np

from cluster import link
from cluster import tensorflow_v1 as tf
from cluster.report import Curves
from cluster.task import AGAIN, fail
import models
import pictures
import pipeline
import records

# What was found: `confusion` [true class, guess] counts images, `mistakes` has (true
# class, guess, probability of the guess, image), the surest first.
Found = collections.namedtuple("Found", "loss accuracy confusion mistakes")


class Evaluation:
    """A split of the data, and what a model makes of it, in the graph being built."""

    def __init__(self, index, split, logits):
        """`logits(images)` are the model's, [n, classes]."""
        self.examples = records.count(index.splits[split])
        self.classes = len(index.classes)
        iterator = pipeline.held_out(index, split)
        images, labels, _ = iterator.get_next()
        outputs = logits(tf.cast(images, tf.float32))
        probabilities = tf.nn.softmax(outputs)
        total = models.loss(outputs, labels) * tf.cast(tf.size(labels), tf.float32)
        self.begin = iterator.initializer
        self.batch = total, labels, probabilities, images

    def run(self, session):
        """Returns what was Found in one pass over the split."""
        session.run(self.begin)
        loss, confusion = 0.0, np.zeros([self.classes, self.classes], np.int64)
        mistakes = []
        for _ in range(-(-self.examples // pipeline.AT_ONCE)):
            total, labels, probabilities, images = session.run(self.batch)
            loss += float(total)
            guesses = probabilities.argmax(axis=1)
            np.add.at(confusion, (labels, guesses), 1)
            for row in np.flatnonzero(guesses != labels):
                sure = float(probabilities[row, guesses[row]])
                mistakes.append((labels[row], guesses[row], sure, images[row]))
        mistakes.sort(key=lambda mistake: -mistake[2])
        accuracy = float(np.trace(confusion)) / self.examples
        return Found(loss / self.examples, accuracy, confusion, mistakes)


def variables_of(model):
    """Returns the variables of a Network, in this process: as a checkpoint has them."""
    return [
        tf.get_variable(name, initializer=model.start(i))
        for i, name in enumerate(model.names)
    ]


def follow(args, index, model):
    """evaluator: evaluates checkpoint after checkpoint, on the test set, to the last.

    Ends the program with status 138 if none comes for ten times --patience.
    """
    began, limit = time.time(), link.STARTING * args.patience
    variables = variables_of(model)
    step = tf.train.get_or_create_global_step()
    test = Evaluation(index, "test", lambda images: model.logits(variables, images))
    saver = tf.train.Saver([*variables, step])
    folder = os.path.join(args.logdir, "evaluator")
    os.makedirs(folder, exist_ok=True)
    curves = Curves(folder)
    print(f"evaluator follows {args.logdir}")
    last, heard, pause = None, time.time(), threading.Event()
    with tf.Session() as session:
        while True:
            state = tf.train.get_checkpoint_state(args.logdir)
            path = state.model_checkpoint_path if state else last
            if path != last and os.path.exists(f"{path}.index"):
                try:
                    saver.restore(session, path)
                except (tf.errors.NotFoundError, ValueError):
                    continue  # the chief has removed it meanwhile; there is a newer one
                last, heard = path, time.time()
                number, found = int(session.run(step)), test.run(session)
                write(folder, curves, index, number, found)
            elif time.time() - heard > limit:
                fail(f"no checkpoint in {limit:.0f} s in {args.logdir}", AGAIN)
            if last and number >= _end(args, began):
                break
            pause.wait(0.2)
    print(f"evaluator: {os.path.join(folder, pictures.CONFUSION)}")


def _end(args, began):
    """Returns the global step after which no checkpoint comes."""
    path = os.path.join(args.logdir, "result.json")
    try:
        if os.path.getmtime(path) >= began:
            with open(path) as file:
                return json.load(file)["global_steps"]
    except (OSError, ValueError):
        pass
    return args.steps


def write(folder, curves, index, step, found):
    """Prints what was found, and writes it: numbers, pictures, TensorBoard's curves."""
    print(f"evaluator: test accuracy {found.accuracy:.4f} at global step {step}")
    values = {"test_loss": found.loss, "test_accuracy": found.accuracy}
    summary = tf.Summary()
    summary.value.add(tag="accuracy/test", simple_value=found.accuracy)
    summary.value.add(tag="loss/test", simple_value=found.loss)
    images = {
        pictures.CONFUSION: pictures.confusion(found.confusion),
        pictures.MISTAKES: pictures.mistakes(found, index.shape),
    }
    for name, image in images.items():
        png = pictures.png(image)
        with open(os.path.join(folder, name + ".part"), "wb") as file:
            file.write(png)
        os.replace(file.name, os.path.join(folder, name))
        height, width, channels = image.shape
        summary.value.add(
            tag=name.removesuffix(".png"),
            image=tf.Summary.Image(
                height=height,
                width=width,
                colorspace=channels,
                encoded_image_string=png,
            ),
        )
    curves.write(step, summary)
    about = {"global_step": step, **values, "classes": index.classes}
    about["confusion"] = found.confusion.tolist()
    path = os.path.join(folder, "evaluation.json")
    with open(path + ".part", "w") as file:
        json.dump(about, file, indent=1)
    os.replace(file.name, path)
