"""The papers' synchronous rules in NumPy, on losses 1/2 (w - c)^2, for test_sync.py.

`streams` is one list of mini-batches c per worker; each rule returns w after every
update. Nothing here is shared with the examples.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np

Streams = list[list[float]]


def synchronous_sgd(streams: Streams, updates: int, eta: float) -> list[float]:
    """w ← w − η (1/N) ∑ g_k. Source: Chen et al. 2016, Algorithms 3 and 4."""
    w, trace, batches = 0.0, [], [cycle(s) for s in streams]
    for _ in range(updates):
        w -= eta * np.mean([w - next(c) for c in batches])
        trace.append(w)
    return trace


def rate_per_worker(streams: Streams, updates: int, rates: list[float]) -> list[float]:
    """w ← w − ∑ η_k g_k."""
    w, trace, batches = 0.0, [], [cycle(s) for s in streams]
    for _ in range(updates):
        pushes = [e * (w - next(c)) for e, c in zip(rates, batches, strict=True)]
        w -= sum(pushes)
        trace.append(w)
    return trace


def sagn(streams: Streams, updates: int, T: int, eta: float, eta_s: float):
    """w ← w − η_s (1/N) ∑ of the mean gradient of each worker's T local steps."""
    w, trace, batches = 0.0, [], [cycle(s) for s in streams]
    for _ in range(updates):
        means = []
        for c in batches:
            local, gradients = w, []
            for _ in range(T):
                gradients.append(local - next(c))
                local -= eta * gradients[-1]
            means.append(np.mean(gradients))
        w -= eta_s * np.mean(means)
        trace.append(w)
    return trace


def local_sgd(streams: Streams, updates: int, T: int, eta: float) -> list[float]:
    """w ← the mean of the local copies after T steps. Source: Stich 2019."""
    w, trace, batches = 0.0, [], [cycle(s) for s in streams]
    for _ in range(updates):
        copies = [w] * len(streams)
        for k, c in enumerate(batches):
            for _ in range(T):
                copies[k] -= eta * (copies[k] - next(c))
        w = np.mean(copies)
        trace.append(w)
    return trace
