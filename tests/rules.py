"""The update rules as their papers write them, in NumPy: what the scripts must equal.

The gradient at x is x − c, with mini-batches c from one iterator per worker. Nothing
here is shared with the examples.

An asynchronous rule has a schedule (pairs of "pull" or "push" and the number of a
worker), the iterators and the start w, and returns (staleness, center) after each push.
A synchronous one has the iterators, the start and how many updates are to be made, and
returns the center after each.
"""

import numpy as np

# --- Asynchronous -------------------------------------------------------------


def windowed(schedule, batches, w, window, local, push):
    """Pull; T local steps that add up gradients; push the sum. The family's frame."""
    count, held, out = 0, {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, count
            continue
        (x, seen), total = held.pop(k), 0
        for _ in range(window):
            g = x - next(batches[k])
            total, x = total + g, x - local(k, g)
        w = w - push(total, count - seen)
        out.append((count - seen, w))
        count += 1
    return out


def adagrad(rate, accumulator=1e-20):
    """Dean et al. 2012, section 4.1: γ / √(Σ Δ²), by element; 0 / √0 counts as 0."""
    sums = {}

    def move(k, g):
        sums[k] = sums.get(k, accumulator) + g * g
        return rate * g / np.sqrt(sums[k])

    return move


def hogwild(schedule, batches, w, eta):
    """Asynchronous SGD: w ← w − η g, g at the w that was pulled."""
    return windowed(schedule, batches, w, 1, lambda k, g: 0, lambda g, tau: eta * g)


def dynamic_sgd(schedule, batches, w, eta):
    """w ← w − η / (τ + 1) g."""

    def push(g, tau):
        return eta * g / (tau + 1)

    return windowed(schedule, batches, w, 1, lambda k, g: 0, push)


def downpour_easy(schedule, batches, w, window, eta, gamma):
    """DOWNPOUR, n_push = n_fetch = T: the sum, by Adagrad on the ps."""
    server = adagrad(gamma)

    def push(total, tau):
        return server("ps", total)

    return windowed(schedule, batches, w, window, lambda k, g: eta * g, push)


def downpour(schedule, batches, w, window, eta, gamma):
    """Adagrad on the worker too, with TensorFlow's start of its accumulator."""
    server = adagrad(gamma)

    def push(total, tau):
        return server("ps", total)

    return windowed(schedule, batches, w, window, adagrad(eta, 0.1), push)


def agn(schedule, batches, w, window, eta):
    """Hermans et al. 2017: the worker commits the mean of its moves −η g."""

    def push(total, tau):
        return eta / window * total

    return windowed(schedule, batches, w, window, lambda k, g: eta * g, push)


def elastic(schedule, batches, w, window, eta, alpha, delta=0.0):
    """Zhang et al. 2015, Algorithms 1 (δ = 0) and 2: also returns every x."""
    x = [np.array(w) for _ in batches]
    v = [0.0 * w for _ in batches]
    count, held, out = 0, {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, count
            continue
        pulled, seen = held.pop(k)
        move = alpha * (x[k] - pulled)
        w = w + move
        for t in range(window):
            v[k] = delta * v[k] - eta * (x[k] + delta * v[k] - next(batches[k]))
            x[k] = x[k] - (move if t == 0 else 0) + v[k]
        out.append((count - seen, w))
        count += 1
    return out, x


# --- Synchronous --------------------------------------------------------------


def synchronous_sgd(batches, w, updates, eta):
    """w ← w − η (1/N) ∑ g_k. Source: Chen et al. 2016, Algorithms 3 and 4."""
    trace = []
    for _ in range(updates):
        w = w - eta * np.mean([w - next(c) for c in batches], axis=0)
        trace.append(w)
    return trace


def rate_per_worker(batches, w, updates, rates):
    """w ← w − ∑ η_k g_k."""
    trace = []
    for _ in range(updates):
        w = w - sum(e * (w - next(c)) for e, c in zip(rates, batches, strict=True))
        trace.append(w)
    return trace


def sagn(batches, w, updates, window, eta, eta_s):
    """w ← w − η_s (1/N) ∑ of the mean gradient of each worker's T local steps."""
    trace = []
    for _ in range(updates):
        means = []
        for c in batches:
            local, gradients = w, []
            for _ in range(window):
                gradients.append(local - next(c))
                local = local - eta * gradients[-1]
            means.append(np.mean(gradients, axis=0))
        w = w - eta_s * np.mean(means, axis=0)
        trace.append(w)
    return trace


def local_sgd(batches, w, updates, window, eta):
    """w ← the mean of the local copies after T steps. Source: Stich 2019."""
    trace = []
    for _ in range(updates):
        copies = [w] * len(batches)
        for k, c in enumerate(batches):
            for _ in range(window):
                copies[k] = copies[k] - eta * (copies[k] - next(c))
        w = np.mean(copies, axis=0)
        trace.append(w)
    return trace


# --- A model in layers, a table of rows ---------------------------------------


def perceptron_gradient(weights, images, labels):
    """Returns loss and gradients of rectified layers [(W, b)], mean cross-entropy."""
    inputs, x = [], images
    for number, (w, b) in enumerate(weights):
        inputs.append(x)
        x = x @ w + b
        x = x if number == len(weights) - 1 else np.maximum(x, 0)
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    delta, found = p / len(labels), []
    for number in reversed(range(len(weights))):
        found.insert(0, (inputs[number].T @ delta, delta.sum(0)))
        delta = (delta @ weights[number][0].T) * (inputs[number] > 0)
    return loss, found


def matrix_factorization(schedule, batches, w, eta, mean, l2):
    """Hogwild!: pull a copy of w, push ∑ over a batch of (rows, ratings), all dense."""
    held, out = {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w.copy()
            continue
        seen, g = held.pop(k), np.zeros_like(w)
        for (u, i), rating in zip(*next(batches[k]), strict=True):
            error = mean + seen[u] @ seen[i] - rating
            g[u] += error * seen[i] + l2 * seen[u]
            g[i] += error * seen[u] + l2 * seen[i]
        w = w - eta * g
        out.append(w)
    return out
