"""Logistic regression, to put at the end of an example's problem.py."""


def shapes_of(data):
    """Returns the shapes of the parameters, in the order `model` takes them."""
    features, classes = data.x_train.shape[1], int(data.y_train.max()) + 1
    return [(features, classes), (classes,)]


def model(parameters, images, training=False):
    """Returns the logits [n, classes], float32, of images float32 [n, features]."""
    w, b = parameters
    return images @ w + b
