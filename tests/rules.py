"""The update rules as their papers write them, in NumPy: what the scripts must equal.

Every rule has the same arguments: a schedule (worker numbers; the odd entries of a
worker are its pulls, the even ones its rounds), one iterator of mini-batches c per
worker, and the start w. The gradient at x is x − c. A rule returns (staleness, center)
after each round.
"""

import numpy as np


def windowed(schedule, batches, w, window, local, push):
    """Pull; T local steps that add up gradients; push the sum. The family's frame."""
    count, held, out = 0, {}, []
    for k in schedule:
        if k not in held:
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


def downpour_sum(schedule, batches, w, window, eta):
    """DOWNPOUR at a fixed rate, n_push = n_fetch = T: the sum, times η."""

    def sgd(_, g):
        return eta * g

    return windowed(
        schedule, batches, w, window, sgd, lambda total, tau: sgd("ps", total)
    )


def downpour_easy(schedule, batches, w, window, eta, gamma):
    """The same with Adagrad on the ps."""
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


def dean_client(batches, w, n_fetch, n_push, eta, steps):
    """The client of Dean et al.'s appendix to the letter; workers step in turn."""
    local, accrued, out = {}, dict.fromkeys(range(len(batches)), 0.0), []
    for step in range(steps):
        for k, stream in enumerate(batches):
            if step % n_fetch == 0:
                local[k] = w
            g = local[k] - next(stream)
            accrued[k], local[k] = accrued[k] + g, local[k] - eta * g
            if step % n_push == 0:
                w = w - eta * accrued[k]
                out.append((accrued[k], w))
                accrued[k] = 0.0
    return out


def elastic(schedule, batches, w, window, eta, alpha, delta=0.0):
    """Zhang et al. 2015, Algorithms 1 (δ = 0) and 2: also returns every x."""
    x = [np.array(w) for _ in batches]
    v = [0.0 * w for _ in batches]
    count, held, out = 0, {}, []
    for k in schedule:
        if k not in held:
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
