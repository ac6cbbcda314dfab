"""What the evaluator draws, pixel by pixel: the confusion matrix, and the mistakes.

Both are squares. The true class is from top to bottom, the guess from left to right.
Classes have the order of index.json.
"""

import numpy as np

from cluster import tensorflow_v1 as tf

CONFUSION, MISTAKES = "confusion.png", "mistakes.png"
CELL = 32  # pixels of a cell of the confusion matrix
PAPER, RIGHT, WRONG = np.array([[255, 255, 255], [31, 119, 180], [214, 39, 40]])
# The ten digits, 3x5 pixels: a row is an octal number.
GLYPHS = "75557 26227 71747 71717 55711 74717 74757 71122 75757 75717".split()


def confusion(counts):
    """Returns the picture of counts [classes, classes]: uint8 [height, width, 3].

    The darker the more of the true class; right guesses blue, wrong ones red, and the
    number in each cell that has any. The classes' numbers stand above and on the left.
    """
    n = len(counts)
    picture = np.full([(n + 1) * CELL, (n + 1) * CELL, 3], 200, np.uint8)
    share = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    for row, column in np.ndindex(n + 1, n + 1):
        cell = picture[row * CELL :, column * CELL :][: CELL - 1, : CELL - 1]
        true, guess = row - 1, column - 1
        if min(true, guess) < 0:
            if true != guess:
                _put(cell, max(true, guess), 0)
            continue
        ink = RIGHT if true == guess else WRONG
        # By the square root, or a single mistake among a thousand could not be seen.
        dark = share[true, guess] ** 0.5
        cell[:] = (1 - dark) * PAPER + dark * ink
        if counts[true, guess]:
            _put(cell, counts[true, guess], 255 if dark > 0.6 else 0)
    return picture


def _put(cell, value, color):
    """Writes a number into the middle of a cell, as much of it as fits."""
    mark = _number(value)[:, : cell.shape[1]]
    top, left = ((c - m) // 2 for c, m in zip(cell.shape, mark.shape, strict=False))
    cell[top : top + mark.shape[0], left : left + mark.shape[1]][mark] = color


def _number(value):
    """Returns the pixels of a whole number, bool [10, width]."""
    glyphs = [[int(octal, 8) for octal in GLYPHS[int(digit)]] for digit in str(value)]
    bits = [[[row >> bit & 1 for bit in (2, 1, 0, 3)] for row in g] for g in glyphs]
    return np.kron(np.hstack(bits), np.ones([2, 2])).astype(bool)


def mistakes(found, shape):
    """Returns the surest mistake of each kind: uint8 [height, width, 1 or 3].

    An image stands at its true class's row and its guess's column.
    """
    height, width, channels = shape
    n = len(found.confusion)
    picture = np.full([n * (height + 1) + 1, n * (width + 1) + 1, channels], 96)
    for true, guess, _, image in reversed(found.mistakes):  # the surest comes last
        y, x = true * (height + 1) + 1, guess * (width + 1) + 1
        picture[y : y + height, x : x + width] = image
    return picture.astype(np.uint8)


def png(image):
    """Returns uint8 [height, width, 1 or 3] as the bytes of a PNG file."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.io.encode_png(image))
