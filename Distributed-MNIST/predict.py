"""Classifies images with an exported model. Needs TensorFlow, nothing of this folder.

    python predict.py logdir/NAME/export image.jpg ...  .png, .jpg, .bmp, .gif
    python predict.py logdir/NAME/export images.npz     keys: x_test or images; y_test

The folder is one that has numbered folders, of which predict.py takes the highest
number, or it is one of these numbered folders. The model knows how prepare.py read its
images: an image file is decoded, scaled and converted in the same way.
"""

import argparse
import os
import sys


def fail(sentence):
    """Ends the program with one sentence on stderr and status 2."""
    print(f"predict.py: {sentence}", file=sys.stderr)
    sys.exit(2)


def newest(folder):
    """Returns the folder of the SavedModel, the highest number if there are several."""
    if os.path.isfile(os.path.join(folder, "saved_model.pb")):
        return folder
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = [int(name) for name in names if name.isdecimal()]
    if not numbers:
        fail(f"{folder} has no exported model")
    return os.path.join(folder, str(max(numbers)))


def read_image(tf, path, decode, shape):
    """Returns an image file as uint8 [1, height, width, channels]."""
    try:
        image = decode(file=tf.io.read_file(path))["image"]
    except tf.errors.OpError:
        fail(f"{path} is not an image that can be read")
    if image.shape != shape:
        here, there = ("x".join(map(str, s)) for s in (image.shape, shape))
        fail(f"{path} is {here}, the model takes {there}")
    return image[None]


def read_npz(path, shape):
    """Returns images uint8 [n, height, width, channels], and labels or None."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:
        fail(f"{path} is not a .npz file that can be read")
    images = arrays.get("x_test", arrays.get("images"))
    if images is None:
        fail(f"{path} has neither x_test nor images")
    if images.dtype != np.uint8 or images.size != len(images) * np.prod(shape):
        there = "x".join(map(str, shape))
        here = f"{images.dtype} {images.shape}"
        fail(f"{path}: {here}, the model takes uint8 n x {there}")
    return images.reshape(-1, *shape), arrays.get("y_test")


def main():
    doc = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=doc)
    parser.add_argument("folder", help="folder of the exported model")
    parser.add_argument("files", nargs="+", metavar="FILE", help="image or .npz")
    args = parser.parse_args()
    path = newest(args.folder)
    for file in args.files:
        if not os.path.isfile(file):
            fail(f"{file}: no such file")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what TensorFlow's C++ has to say
    import tensorflow as tf

    try:
        signatures = tf.saved_model.load(path).signatures
        model, decode = signatures["serving_default"], signatures["decode"]
    except (OSError, KeyError, ValueError) as error:
        fail(f"{path} is no model of export.py: {str(error).splitlines()[0]}")
    shape = tuple(model.structured_input_signature[1]["images"].shape[1:])
    for file in args.files:
        if not file.endswith(".npz"):
            out = model(images=read_image(tf, file, decode, shape))
            print(f"{file}: {_text(out, 0)}")
            continue
        images, labels = read_npz(file, shape)
        right = 0
        for start in range(0, len(images), 500):
            out = model(images=tf.constant(images[start : start + 500]))
            classes = out["classes"].numpy()
            if labels is None:
                for row in range(len(classes)):
                    print(f"{file}[{start + row}]: {_text(out, row)}")
            else:
                right += int((classes == labels[start : start + 500]).sum())
        if labels is not None:
            print(f"{file}: accuracy {right / len(images):.4f} of {len(images)} images")


def _text(out, row):
    label = out["labels"].numpy()[row].decode()
    return f"{label} ({out['probabilities'].numpy()[row].max():.4f})"


if __name__ == "__main__":
    main()
