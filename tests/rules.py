"""The update rules as their papers write them, in NumPy: what the scripts must equal.

The gradient at x is x − c, with mini-batches c from one iterator per worker. Nothing
here is shared with the examples.

An asynchronous rule has a schedule (pairs of "pull" or "push" and the number of a
worker), the iterators and the start w, and returns (staleness, center) after each push.
A synchronous one has the iterators, the start and how many updates are to be made, and
returns the center after each.
"""

import itertools

import numpy as np


def streams(*of):
    """Returns endless mini-batches, one iterator per worker."""
    return [itertools.cycle(np.asarray(s, float)) for s in of]


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


def dc_asgd(schedule, batches, w, eta, strength, decay=None):
    """Zheng et al. 2017: g + λ g² (w − w_seen); with a decay m, λ = λ₀ / √(MS + ε)."""
    count, held, squares, out = 0, {}, [0.0] * len(batches), []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, count
            continue
        seen, before = held.pop(k)
        g, at = seen - next(batches[k]), strength
        if decay is not None:
            squares[k] = decay * squares[k] + (1 - decay) * g * g
            at = strength / np.sqrt(squares[k] + 1e-7)
        w = w - eta * (g + at * g * g * (w - seen))
        out.append((count - before, w))
        count += 1
    return out


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


def async_diloco(schedule, batches, w, windows, inner, epsilon, beta, n, c=0.0):
    """Liu et al. 2024, Algorithm 3, delayed Nesterov; n = 1 is Nesterov at each push.

    Worker k takes `windows[k]` steps of `inner[k]`, a function of x and g.
    """
    total, m, held, out = 0 * w, 0 * w, {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, len(out)
            continue
        w_seen, seen = held.pop(k)
        x = w_seen
        for _ in range(windows[k]):
            x = inner[k](x, x - next(batches[k]))
        staleness, d = len(out) - seen, w_seen - x
        total = total + d
        if (len(out) + 1) % n == 0:
            m, total = beta * m + total / n, 0 * total
            w = w - epsilon * ((1 - c * n + c) * beta * m + d / n)
        else:
            w = w - epsilon * (c * beta * m + d / n)
        out.append((staleness, w))
    return out


def radial_directional(d, a):
    """Douillard et al. 2026: the mean length, in the mean direction; the weighted mean
    if the directions cancel."""
    a, length = np.array(a) / np.sum(a), [np.linalg.norm(one) for one in d]
    direction = sum(
        k * one / size for k, one, size in zip(a, d, length, strict=True) if size
    )
    norm = np.linalg.norm(direction)
    if norm <= 1e-6:
        return sum(k * one for k, one in zip(a, d, strict=True))
    return np.dot(a, length) * direction / norm


def decoupled(turns, batches, w, windows, sizes, inner, eta_o, mu, k_of_n, *pieces):
    """Douillard et al. 2026, of learners that make rounds in turn, and no grace.

    `windows[k]` are T / F of learner k, `sizes[k]` its examples of a step; `pieces` are
    the number of fragments, o, α, and how answers are averaged. Yields w after each
    round, of max(1, o) inner steps.
    """
    (fragments, o, alpha, average), u, t = pieces, 0 * w, 0
    piece = np.arange(len(w)) // -(-len(w) // fragments)
    learners = [
        dict(x=w, seen=0, since=0, answered=-1, steps=np.zeros(fragments, int))
        for _ in batches
    ]
    answers = {}
    for k in turns:
        me = learners[k]
        for j in range(me["seen"], t):  # what was merged meanwhile arrives
            f = j % fragments
            mixed = alpha * me["x"] + (1 - alpha) * w
            if j >= t - fragments:
                me["x"], me["steps"][f] = np.where(piece == f, mixed, me["x"]), 0
        if me["seen"] < t and me["answered"] < t - 1:
            me["since"] = 0
        me["seen"], f = t, t % fragments
        for step in range(max(1, o) + 1):
            if step == (0 if o else 1):
                late = len(answers) >= k_of_n and k not in answers
                if (me["since"] >= windows[k] or late) and me["steps"][f]:
                    me["since"], me["answered"], steps = 0, t, me["steps"][f]
                    answers[k] = me["x"], (steps * sizes[k]) ** 2 / steps
            if step < max(1, o):
                me["x"] = inner[k](me["x"], me["x"] - next(batches[k]))
                me["since"], me["steps"] = me["since"] + 1, me["steps"] + 1
        if len(answers) >= k_of_n:
            x, a = zip(*answers.values(), strict=True)
            delta = average([np.where(piece == f, w - one, 0) for one in x], a)
            u = np.where(piece == f, mu * u + delta, u)
            w = np.where(piece == f, w - eta_o * (delta + mu * u), w)
            t, answers = t + 1, {}
        yield w


def s_of(form, a=0.0, b=0):
    """Xie et al. 2019: s(τ), what a push counts that is τ versions old."""
    if form == "hinge":
        return lambda tau: 1 if tau <= b else 1 / (a * (tau - b) + 1)
    return lambda tau: (1 + tau) ** -(a if form == "polynomial" else 0.0)


def fedbuff(schedule, batches, w, window, eta, eta_s, k_of_n, s):
    """Nguyen et al. 2022, Algorithm 1, its pushes weighed by s(τ).

    K = `k_of_n` pushes make a version of w; the staleness τ counts versions.
    """
    total, version, pushes, held, out = 0 * w, 0, 0, {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, version
            continue
        start, seen = held.pop(k)
        x, tau = start, version - seen
        for _ in range(window):
            x = x - eta * (x - next(batches[k]))
        total, pushes = total + s(tau) * (start - x), pushes + 1
        if pushes == k_of_n:
            w = w - eta_s * total / k_of_n
            total, pushes, version = 0 * w, 0, version + 1
        out.append((tau, w))
    return out


def fedasync(schedule, batches, w, window, eta, alpha, s):
    """Xie et al. 2019, Algorithm 1, without its proximal term: w ← (1 − a) w + a x."""
    version, held, out = 0, {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, version
            continue
        x, seen = held.pop(k)
        for _ in range(window):
            x = x - eta * (x - next(batches[k]))
        a = alpha * s(version - seen)
        out.append((version - seen, (1 - a) * w + a * x))
        w, version = out[-1][1], version + 1
    return out


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


def compressed(schedule, batches, w, eta, compress, feedback=True, m=0.0):
    """Karimireddy et al. 2019; with m, Lin et al. 2018: also e. s := compress(k, p)."""
    e, u = [0.0 * w for _ in batches], [0.0 * w for _ in batches]
    count, held, out = 0, {}, []
    for verb, k in schedule:
        if verb == "pull":
            held[k] = w, count
            continue
        seen, before = held.pop(k)
        u[k] = m * u[k] + seen - next(batches[k])
        p = e[k] + u[k]
        s = compress(k, p)
        e[k], u[k] = (p - s) * feedback, u[k] * (s == 0)
        w = w - eta * s
        out.append((count - before, w))
        count += 1
    return out, e


def top(p, k):
    """The k largest of |p|, the others 0."""
    chosen = np.argsort(-np.abs(p), kind="stable")[:k]
    return np.where(np.isin(np.arange(len(p)), chosen), p, 0)


def signs(p):
    """(‖p‖₁ / P) sign p; 0 counts as positive."""
    return np.where(p >= 0, 1, -1) * np.abs(p).mean()


def in_bytes(p):
    """The nearest of 255 levels from −max |p| to max |p|."""
    level = max(np.abs(p).max(), 1e-30) / 127
    return level * np.round(p / level)


def bounded_starts(durations, s, until):
    """Ho et al. 2013: when each worker begins a round: if c_k − min c ≤ s."""
    clocks, ends = [0] * len(durations), [None] * len(durations)
    began = [[] for _ in durations]
    for now in range(until):
        for k, end in enumerate(ends):
            if end == now:
                clocks[k], ends[k] = clocks[k] + 1, None
        for k, duration in enumerate(durations):
            if ends[k] is None and clocks[k] - min(clocks) <= s:
                ends[k] = now + duration
                began[k].append(now)
    return began


def gossip(schedule, batches, x, eta):
    """Lian et al. 2018, Algorithm 1: k pulls, or pushes, averaging with j if not None.

    Returns (staleness, all x) after each push: updates of all since k's pull.
    """
    x, held, out = [np.array(a, float) for a in x], {}, []
    for verb, k, j in schedule:
        if verb == "pull":
            held[k] = x[k], len(out)
            continue
        seen, before = held.pop(k)
        g = seen - next(batches[k])
        if j is not None:
            x[k] = x[j] = (x[k] + x[j]) / 2
        x[k] = x[k] - eta * g
        out.append((len(out) - before, list(x)))
    return out


# --- Synchronous --------------------------------------------------------------


def synchronous_sgd(batches, w, updates, eta):
    """w ← w − η (1/N) ∑ g_k. Source: Chen et al. 2016, Algorithms 3 and 4."""
    trace = []
    for _ in range(updates):
        w = w - eta * np.mean([w - next(c) for c in batches], axis=0)
        trace.append(w)
    return trace


def large_minibatch(batches, w, updates, eta, warmup, k):
    """Goyal et al. 2017: from η to k η, by as much in each of `warmup` updates."""
    trace, rate = [], eta
    for t in range(updates):
        rate = rate + (k - 1) * eta / warmup if t < warmup else k * eta
        w = w - rate * np.mean([w - next(c) for c in batches], axis=0)
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


# --- Without a ps -------------------------------------------------------------


def local_sgd(batches, w, updates, window, eta, after=0):
    """w ← the mean of T local steps of each; before step `after` of one. Stich 2019."""
    trace = []
    for update in range(updates):
        x = [w] * len(batches)
        for _ in range(window if update >= after else 1):
            x = [a - eta * (a - next(c)) for a, c in zip(x, batches, strict=True)]
        w = np.mean(x, axis=0)
        trace.append(w)
    return trace


def adamw(eta, decay, b1=0.9, b2=0.95, epsilon=1e-8):
    """One worker's AdamW, as a function of x and g. Loshchilov & Hutter 2019."""
    m = v = t = 0

    def step(x, g):
        nonlocal m, v, t
        m, v, t = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g, t + 1
        adam = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + epsilon)
        return x - eta * (adam + decay * x)

    return step


def diloco(batches, w, updates, window, inner, eta_o, mu, fragments=1, o=0, alpha=0):
    """Douillard et al. 2023, Algorithm 1; `inner` is one a worker. Pieces, o, α: 2025.

    What is sent after step t arrives o steps later, and x is then α x + (1 − α) w.
    """
    x, u, trace, step = [w for _ in batches], 0 * w, [], 0
    piece = np.arange(len(w)) // -(-len(w) // fragments)
    while len(trace) < updates:
        x = [f(a, a - next(c)) for f, a, c in zip(inner, x, batches, strict=True)]
        step += 1
        sent, when = divmod(step, window // fragments)
        if when == 0:
            delta = np.mean([w - a for a in x], axis=0)
        if when == o and sent:
            turn = piece == (sent - 1) % fragments
            u = np.where(turn, mu * u + delta, u)
            w = np.where(turn, w - eta_o * (delta + mu * u), w)
            x = [np.where(turn, alpha * a + (1 - alpha) * w, a) for a in x]
            trace.append(w)
    return trace


def adam(w, gradients, eta, b1=0.9, b2=0.999, epsilon=1e-8):
    """Kingma & Ba 2015, the order of section 2, for one worker; `gradients(w)` is ∇."""
    m = v = t = 0
    while True:
        g, t = gradients(w), t + 1
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w - eta * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(v) + epsilon)
        yield w


def sharded(batches, w, updates, eta):
    """Rajbhandari et al. 2020: Adam with the mean gradient, as if all were on one."""
    steps = adam(w, lambda w: np.mean([w - next(c) for c in batches], axis=0), eta)
    return [next(steps) for _ in range(updates)]


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


def dynamic_rows(batches, admit, expire, sweep, eta, draw, first_sum=None):
    """Liu et al. 2022: yields ({id: row}, {id: count}, {id: seen}) after each batch.

    A batch is [(id, c)] with the gradient row − c; `draw(id)` is a new row; Adagrad
    begins with `first_sum`, and there is none if that is None.
    """
    rows, count, seen, sums = {}, {}, {}, {}
    for t, batch in enumerate(batches):
        for i, _ in batch:
            seen[i] = t
            if i not in rows:
                count[i] = count.get(i, 0) + 1
                if count[i] >= admit:
                    rows[i], sums[i] = draw(i), first_sum
        g = {}
        for i, c in batch:
            if i in rows:
                g[i] = g.get(i, 0) + rows[i] - c
        for i in g:
            scale = 1
            if first_sum is not None:
                sums[i] = sums[i] + g[i] ** 2
                scale = 1 / np.sqrt(sums[i])
            rows[i] = rows[i] - eta * scale * g[i]
        if expire and (t + 1) % sweep == 0:
            for i in [i for i in seen if t - seen[i] >= expire]:
                for table in (rows, count, seen, sums):
                    table.pop(i, None)
        yield {**rows}, {**count}, {**seen}


def hybrid(batches, updates, eta, eta_rows, staleness):
    """Lian et al. 2022: yields (w, {id: row}) after each update; all look up at once.

    `batches[k]` has worker k's (id, c), whose gradient is row + w − c for both. A row
    is looked up `staleness` rounds before the last pushes.
    """
    w, rows = 0.0, [{}]
    for t in range(updates):
        seen, now = rows[max(0, t - staleness)], {**rows[-1]}
        drawn = [next(batch) for batch in batches]
        g = [seen.get(i, 0.0) + w - c for i, c in drawn]
        for (i, _), one in zip(drawn, g, strict=True):
            now[i] = now.get(i, 0.0) - eta_rows * one
        w -= eta * np.mean(g)
        rows.append(now)
        yield w, now
