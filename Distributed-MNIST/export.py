"""Writes the best weights of a run as a SavedModel, for predict.py or a server.

    python export.py logdir/NAME served/digits       as served/digits/STEP

TensorFlow Serving expects numbered folders, and serves the one with the highest number.
The script calls `write` at its end.
"""

import argparse
import json
import os
import shlex
import shutil
import sys

from cluster import flags
from cluster import tensorflow_v1 as tf
from cluster.task import fail
import ending
import evaluate
import models
import pictures
import progress
import records
import sources
import supply


def write(args, index, folder):
    """Writes the best weights in --logdir below `folder`; returns (path, step).

    The signature `serving_default` takes `images`, uint8 [n, h, w, c], as they are in a
    record, and returns `classes` int64 [n], their names `labels` string [n] and
    `probabilities` float32 [n, classes]. The signature `decode` takes the bytes `file`
    of an image file, and returns `image`, uint8 [h, w, c], as prepare.py has made it.
    Raises ValueError if there are no weights, FileExistsError if that folder is there.
    """
    found = tf.train.get_checkpoint_state(os.path.join(args.logdir, progress.BEST))
    if not found:
        raise ValueError(f"{args.logdir} has no {progress.BEST} weights")
    best = found.model_checkpoint_path
    step = int(best.rpartition("-")[2])
    path = os.path.join(folder, str(step))
    if os.path.exists(path):
        raise FileExistsError(f"{path} exists; it stays as it is")
    with tf.Graph().as_default(), tf.Session() as session:
        model = models.build(args, index)
        variables = evaluate.variables_of(model)
        images = tf.placeholder(tf.uint8, [None, *index.shape], name="images")
        logits = model.logits(variables, tf.cast(images, tf.float32))
        guess = tf.argmax(logits, axis=1)
        outputs = {
            "classes": guess,
            "labels": tf.gather(tf.constant(index.classes), guess),
            "probabilities": tf.nn.softmax(logits),
        }
        file = tf.placeholder(tf.string, [], name="file")
        image = sources.decode(file, index.size, index.channels)
        sign = tf.saved_model.predict_signature_def
        signatures = {
            "serving_default": sign({"images": images}, outputs),
            "decode": sign({"file": file}, {"image": image}),
        }
        tf.train.Saver(variables).restore(session, best)
        part = f"{path}.part-{os.getpid()}"
        try:
            builder = tf.saved_model.Builder(part)
            tags = [tf.saved_model.tag_constants.SERVING]
            builder.add_meta_graph_and_variables(session, tags, signatures)
            builder.save()
            os.rename(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return path, step


def write_example(index, folder):
    """Writes the first test image as a PNG file named after its class; returns it."""
    entry = index.splits["test"][0]
    first = next(tf.io.tf_record_iterator(os.path.join(index.folder, entry["file"])))
    with tf.Graph().as_default(), tf.Session() as session:
        images, labels, _ = session.run(records.parse(index, tf.constant([first])))
    path = os.path.join(folder, f"example-{index.classes[labels[0]]}.png")
    with open(path, "wb") as file:
        file.write(pictures.png(images[0]))
    return path


def at_the_end(args, index):
    """Chief: exports the best weights, once, and says how to try them."""
    folder = args.export or os.path.join(args.logdir, "export")
    try:
        path, step = write(args, index, folder)
    except FileExistsError as error:
        if not args.export:  # nothing was to do: it is of the run before
            return
        fail(f"--export {args.export}: {error}")
    print(f"exported: {path}, the best weights, of global step {step}")
    predict = os.path.join(os.path.dirname(os.path.abspath(__file__)), "predict.py")
    command = [sys.executable, predict, folder, write_example(index, args.logdir)]
    shorter = [min(path, os.path.relpath(path), key=len) for path in command]
    print(f"try it: {shlex.join(shorter)}")


def main():
    parser = flags.strict(__doc__)
    parser.add_argument("logdir", help="directory of a run that has ended")
    parser.add_argument("folder", help="where the numbered folder goes")
    given = parser.parse_args()
    records.quiet()
    try:
        with open(os.path.join(given.logdir, "result.json")) as file:
            args = argparse.Namespace(**json.load(file)["flags"])
    except (OSError, ValueError, KeyError):
        fail(f"{given.logdir} has no result.json of a run that has ended")
    args.logdir = given.logdir
    try:
        given.folder = ending.directory(given.folder, "folder")
        index = supply.For(args).load(args.data, args.task_index + 1)
        path, step = write(args, index, given.folder)
    except (ValueError, FileExistsError) as error:
        fail(str(error))
    except (OSError, tf.errors.OpError) as error:
        fail(f"{given.folder}: {str(error).splitlines()[0]}", 1)
    print(f"{path}: the weights of global step {step}")


if __name__ == "__main__":
    main()
