"""What a round of a scheme costs: closed formulas, and a simulation of events.

Every task is a host with a cable of its own to one switch. N workers train, S ps hold
the center variable of P numbers, M = 4 P bytes. `formula` and `simulate` take a Setup,
and have the same answers, as far as there is a formula:

    formula(setup)     rates, waits and staleness of gradients that all take the mean
    simulate(setup)    the same with random gradients and queues, and what each worker
                       does when

The formulas are of the scripts of this guide: a call of `session.run` has up to ten
rounds, a worker pulls, computes a gradient, pushes, and pulls again without asking.
The minimum over bounds is that of Denning and Buzen, The operational analysis of
queueing network models, ACM Computing Surveys 10(3), 1978. Only Python and NumPy.

docs/play/cost.js simulates the same in JavaScript; a test compares their events.
"""

import collections
import dataclasses
import heapq
import itertools
import math

import numpy as np

NOBODY_WAITS = ("HogWild", "Gradient-Compression", "AEASGD")
GOSSIP, DECOUPLED = "Gossip-SGD", "Decoupled-DiLoCo"
# Not compared with real runs
MORE = ("Dynamic-SGD", "DOWNPOUR-Easy", "AGN", "Async-DiLoCo", DECOUPLED, GOSSIP)
BOUNDED, BARRIER = "Stale-Synchronous-Parallel", "Synchronous-SGD"
PEERS = ("Ring-All-Reduce", "Local-SGD", "DiLoCo")
ADAM = ("DiLoCo", "Async-DiLoCo", DECOUPLED)  # whose local steps are AdamW's
# T local steps in a round
WINDOWS = ("AEASGD", "Local-SGD", "DOWNPOUR-Easy", "AGN", *ADAM)
ASIDE = ("AEASGD", DECOUPLED)  # whose push goes up while the worker computes
SCHEMES = (*NOBODY_WAITS, BOUNDED, BARRIER, *PEERS)
CALL = 1.0  # seconds: a call has as many rounds as fit, and so often there is a look


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a round costs beside its gradient's sleep and the bytes on the cables.

    Seconds are those of one core, `_byte` seconds for each byte. Round trips are there
    and back. The values are what the benchmarks had on 2 cores: 884 steps/s of
    HogWild with one worker, 0.32 ms of a local step, 565 steps/s of Synchronous-SGD,
    801 of a ring of two; 100 MB in 186 ms, 470 ms in a ring.
    """

    worker: float = 0.4e-3  # a worker, a round at a ps
    ps: float = 0.4e-3  # each ps, a pull and a push
    barrier: float = 0.6e-3  # ps 0, more where workers wait for tokens
    barrier_byte: float = 1e-9  # of a gradient, to add it to the sum
    step: float = 0.35e-3  # a worker, one step of an all-reduce
    local: float = 0.3e-3  # a worker, a gradient of the digits' perceptron
    worker_byte: float = 0.5e-9  # of what a worker pulls and pushes
    ps_byte: float = 0.5e-9  # of what a ps sends and gets
    step_byte: float = 4e-9  # of what a worker sends in an all-reduce
    local_byte: float = 0.9e-9  # of the M bytes of the weights, a gradient
    adam_byte: float = 3e-9  # of M, more for a step of AdamW
    top_byte: float = 10e-9  # of M, to find what Gradient-Compression pushes
    call: float = 1.5  # round trips of a call, beside those of its rounds
    look: float = 3.4  # round trips between calls, about once a second
    turn: float = 1.0  # latencies of one step of an all-reduce
    flight: float = math.inf  # bytes that a connection has on their way at most
    cores: int | None = None  # that all tasks share; None: each has one of its own


@dataclasses.dataclass(frozen=True)
class Setup:
    """A scheme and the cluster it runs on. Raises ValueError for what cannot be."""

    scheme: str = "HogWild"
    workers: int = 4  # N
    ps: int = 1  # S, of schemes that have any
    parameters: int = 4810  # P, float32
    gradient: float = 0.05  # seconds that a gradient takes on average
    spread: float = 0.0  # its standard deviation over its mean
    straggler: float = 1.0  # how many times as long the last worker's take
    window: int = 16  # T, of schemes that have one
    batch: int = 32  # examples of a gradient
    bandwidth: float = 1e9  # bits/s of a cable, each way
    latency: float = 0.0  # seconds from host to host, one way
    replicas: int | None = None  # gradients of an update of Synchronous-SGD; None: N
    staleness: int = 4  # s of Stale-Synchronous-Parallel
    keep: float = 0.01  # share of the elements that Gradient-Compression pushes
    quorum: int = 1  # K of Decoupled-DiLoCo, answers that a merge needs
    fragments: int = 4  # F: it sends one of them every T / F steps
    costs: Costs = Costs()
    slow: tuple = ()  # how many times as long each worker's take; (): straggler says
    near: int = 0  # workers at the place of the ps: only the others have the latency
    kills: tuple = ()  # (worker, when it dies, seconds until it begins again)

    def __post_init__(self):
        if self.scheme not in SCHEMES + MORE:
            raise ValueError(
                f"{self.scheme!r} is not one of {', '.join(SCHEMES + MORE)}"
            )
        whole = "workers", "ps", "parameters", "window", "batch", "quorum", "fragments"
        for name in whole:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1")
        for name in ("gradient", "spread", "latency", "staleness"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is at least 0")
        if self.bandwidth <= 0 or self.straggler <= 0 or not 0 < self.keep <= 1:
            raise ValueError("bandwidth, straggler and keep are above 0, keep up to 1")
        if self.replicas is not None and not 1 <= self.replicas <= self.workers:
            raise ValueError("replicas is from 1 to the number of workers")
        if self.slow and len(self.slow) != self.workers:
            raise ValueError("slow has a number for each worker")
        if not 0 <= self.near < self.workers:
            raise ValueError("near is below the number of workers")

    @property
    def steps(self):
        """Gradients of a round."""
        if self.scheme == DECOUPLED:
            return max(1, self.window // self.fragments)
        return self.window if self.scheme in WINDOWS else 1

    @property
    def whole(self):
        """M, bytes of the center variable."""
        return 4 * self.parameters

    @property
    def pulled(self):
        """Bytes of a pull: all of it, or one fragment."""
        return self.whole / (self.fragments if self.scheme == DECOUPLED else 1)

    @property
    def pushed(self):
        """Bytes of a push: a place and a number for each element, if compressed."""
        if self.scheme == "Gradient-Compression":
            return 8 * max(1, round(self.keep * self.parameters))
        return self.pulled

    @property
    def trip(self):
        """Seconds of a round trip."""
        return 2 * self.latency

    def away(self, worker, other=None):
        """Returns the seconds from a worker to another, or to the ps, one way."""
        if not self.near:
            return self.latency
        there = other is not None and other >= self.near
        return self.latency if (worker >= self.near) != there else 0.0

    def wire(self, size):
        """Returns the seconds that `size` bytes occupy a cable."""
        return 8 * size / self.bandwidth

    def pauses(self, size):
        """Returns the seconds in which a sender waits for the word to send on."""
        return self.trip * max(0.0, size / self.costs.flight - 1)

    def sleep(self, worker):
        """Returns the mean seconds of a worker's gradient."""
        if self.slow:
            return self.gradient * self.slow[worker]
        last = worker == self.workers - 1
        return self.gradient * (self.straggler if last else 1.0)

    def of_worker(self):
        """Returns the core seconds of a worker for one round, gradients too."""
        if self.scheme in PEERS:
            return self.of_steps() + 2 * (self.workers - 1) * self.of_step(self.whole)
        if self.scheme == GOSSIP:
            return self.of_steps() + self.of_average()
        moved = self.pulled + self.pushed
        core = self.costs.worker + self.costs.worker_byte * moved + self.of_steps()
        if self.scheme == "Gradient-Compression":
            core += self.costs.top_byte * self.whole
        return core

    def of_steps(self):
        """Returns the core seconds of the gradients of a round."""
        each = self.costs.local_byte
        if self.scheme in ADAM:
            each += self.costs.adam_byte
        return self.steps * (self.costs.local + each * self.whole)

    def of_ps(self, first=True):
        """Returns the core seconds of a ps for one round; the `first` one has more."""
        costs, piece = self.costs, self.whole / self.ps
        core = costs.ps + costs.ps_byte * (self.pulled + self.pushed) / self.ps
        if first and self.scheme in (BOUNDED, BARRIER):
            core += costs.barrier
        if self.scheme == BARRIER:
            core += costs.barrier_byte * piece
        return core

    def of_step(self, size):
        """Returns the core seconds of a worker for a step of an all-reduce."""
        return self.costs.step + self.costs.step_byte * size / self.workers

    def of_average(self):
        """Returns the core seconds of one of two workers that average."""
        return self.costs.step + self.costs.step_byte * self.whole

    def all_reduce(self, size):
        """Returns the seconds of an all-reduce of `size` bytes.

        2 (N − 1) steps, in each of which every worker sends size / N bytes. If tasks
        share the cores, all workers' steps have to be computed there.
        """
        n, costs = self.workers, self.costs
        share = max(1.0, n / costs.cores) if costs.cores else 1.0
        far = costs.turn * self.latency * (2 / n if self.near else 1)  # two are long
        sent = self.wire(size / n) + far + self.pauses(size / n)
        return 2 * (n - 1) * (share * self.of_step(size) + sent)


# What `formula` and `simulate` return. Rates are a second; `busiest` bytes a second on
# the cable that has most to carry in one direction; `waits` the seconds of a round that
# each worker waits for others; `staleness` the mean, `most` the largest.
Answer = collections.namedtuple(
    "Answer", "updates rounds examples busiest staleness most waits limit full"
)
Bar = collections.namedtuple("Bar", "worker kind start end")


def rounds_of_a_call(setup, seconds):
    """Returns how many rounds of so many seconds are in one call."""
    sizes = (10, 1) if setup.scheme in PEERS else (10, 3, 1)
    return next((n for n in sizes if n * seconds <= CALL), 1)


def calls_of_peers(setup, seconds):
    """Returns (rounds of a call, calls between two agreements about that)."""
    size = rounds_of_a_call(setup, seconds)
    seconds = max(seconds, 1e-9)
    return size, max(1, min(int(CALL / (size * seconds)), 50))


# --- Formulas -------------------------------------------------------------------


def formula(setup):
    """Returns the Answer for gradients that all take their mean; spread is not in it.

    `limit` says what sets the rate: the pace of the workers, that of the slowest one
    for whom the others wait, the cables of the ps, the core of ps 0, the ring, or the
    cores that all share. `full` is at how many workers like these the ps are full, None
    in a scheme where nobody goes on alone.
    """
    if setup.scheme in PEERS:
        return _peers(setup)
    if setup.scheme == BARRIER:
        return _barrier(setup)
    if setup.scheme == GOSSIP:
        return _gossip(setup)
    return _at_own_pace(setup)


def _with_calls(setup, seconds, trip):
    """Returns the seconds of a round with calls and looks.

    R + 2ℓ c / n  in calls of n rounds, and a look after about a second of them.
    """
    n = 1
    for _ in range(3):  # a call of one round comes first, and is the longest for each
        called = seconds + setup.costs.call * trip / n
        n = rounds_of_a_call(setup, called)
    called = max(seconds + setup.costs.call * trip / n, 1e-9)
    every = n * called * max(1, int(CALL / (n * called) + 0.5))
    return called * (1 + setup.costs.look * trip / every)


def _answer(setup, rounds, busiest, **more):
    updates = rounds / setup.workers if setup.scheme in PEERS else rounds
    empty = dict(updates=updates, staleness=0.0, most=0, full=None)
    examples = rounds * setup.steps * setup.batch
    known = dict(rounds=rounds, examples=examples, busiest=busiest)
    return Answer(**{**empty, **known, **more})


def _peers(setup):
    n, costs = setup.workers, setup.costs
    share = max(1.0, n / costs.cores) if costs.cores else 1.0
    sleeps = [setup.steps * setup.sleep(k) for k in range(n)]
    core = setup.of_steps()
    slowest = max(max(sleeps) + core, share * core)
    # R = T max g + 2 (N − 1) (ℓ + 8 M / (N b)),  and about once a second an agreement
    seconds = slowest + setup.all_reduce(setup.whole)
    size, calls = calls_of_peers(setup, seconds)
    seconds += setup.all_reduce(0) / (size * calls)
    sent = 2 * (n - 1) / n * setup.whole
    waits = [max(sleeps) - one for one in sleeps]
    limit = "slowest" if slowest > seconds / 2 else "ring"
    return _answer(setup, n / seconds, sent / seconds, waits=waits, limit=limit)


def _barrier(setup):
    n, needed = setup.workers, setup.replicas or setup.workers
    down, up = (
        setup.wire(size) + setup.pauses(size / setup.ps)
        for size in (setup.whole, setup.pushed)
    )
    # All pull at once: N pieces of M / S bytes go through the cable of a ps.
    pulled = max(down, n * setup.wire(setup.whole) / setup.ps)
    own = sorted(setup.sleep(k) for k in range(n))
    # Their pushes come one after the other, each not before its gradient is there.
    pushed = 0.0
    for gradient in own[:needed]:
        after = pushed + setup.wire(setup.pushed) / setup.ps
        pushed = max(after, gradient + up)
    tasks = setup.of_worker() + setup.of_ps()
    core = max(tasks, n * setup.of_ps() - pulled)
    if setup.costs.cores:
        core = max(core, n * tasks / setup.costs.cores - pulled)
    # R = 8 N M / (S b) + g of the last that counts + 8 N M / (S b) + 2ℓ, all at once
    trip = setup.trip
    seconds = _with_calls(setup, pulled + pushed + trip + core, trip)
    busy = [pulled + g + up + setup.trip + core for g in own]
    # A worker that comes too late begins again with the newest step.
    rounds = sum(1 / max(seconds, one) for one in busy)
    busiest = rounds * max(setup.whole, setup.pushed) / setup.ps
    crowded = pulled + pushed - own[needed - 1] > seconds / 2
    answer = _answer(
        setup,
        rounds,
        busiest,
        waits=[max(0.0, own[needed - 1] - setup.sleep(k)) for k in range(n)],
        limit="ps cables" if crowded else "slowest",
    )
    examples = needed * setup.batch / seconds
    return answer._replace(updates=1 / seconds, examples=examples)


def _gossip(setup):
    n, costs = setup.workers, setup.costs
    taken = []
    for k in range(n):
        # R_k = max(g_k, 2ℓ + 16 M / b) of an even worker, which starts the averages,
        # and a number from the chief
        busy, trip = setup.sleep(k) + setup.of_worker(), 2 * setup.away(k, 0) * (k > 0)
        if k % 2 == 0 and n > 1:
            average = setup.trip + 2 * setup.wire(setup.whole) + setup.of_average()
            busy = max(busy, average)
        taken.append(_with_calls(setup, busy + trip + costs.ps, trip))
    rounds = sum(1 / one for one in taken)
    stale = sum((rounds - 1 / one) * one for one in taken) / n
    starts = sum(1 / one for one in taken[::2]) * (n > 1)
    return _answer(
        setup,
        rounds,
        starts * setup.whole / max(1, n // 2),
        staleness=stale,
        most=math.ceil(stale),
        waits=[0.0] * n,
        limit="workers",
    )


def _at_own_pace(setup):
    n, costs, elastic = setup.workers, setup.costs, setup.scheme in ASIDE
    down, up = (
        setup.wire(size) + setup.pauses(size / setup.ps)
        for size in (setup.pulled, setup.pushed)
    )
    core = setup.of_worker() + setup.of_ps()
    trips = [2 * setup.away(k) for k in range(n)]
    steps = [setup.steps * setup.sleep(k) for k in range(n)]
    # R_k = T g_k + 2ℓ + 8 (M + M') / b, alone on the cables. An elastic difference goes
    # up while its worker makes its local steps.
    alone = [
        g + core + trip + down + up * (not elastic)
        for g, trip in zip(steps, trips, strict=True)
    ]
    # D_k, from the moment in which a pull reads w to that in which its push counts
    seen = alone
    if elastic:
        seen = [trip + down + up + core - setup.of_steps() for trip in trips]
    taken = [_with_calls(setup, *one) for one in zip(alone, trips, strict=True)]
    waits = [0.0] * n
    if setup.scheme == BOUNDED:
        # In the long run nobody is faster than the slowest.
        waits = [max(taken) - one for one in taken]
        taken = [max(taken)] * n
    bounds = {
        # ∑ 1 / R_k
        "workers": sum(1 / one for one in taken),
        # S b / (8 M)
        "ps cables": setup.ps / setup.wire(max(setup.pulled, setup.pushed)),
        "ps 0": 1 / max(setup.of_ps(), 1e-30),
    }
    if costs.cores:
        others = (setup.ps - 1) * setup.of_ps(first=False)
        bounds["cores"] = costs.cores / max(core + others, 1e-30)
    limit, rounds = min(bounds.items(), key=lambda item: item[1])
    queue = n / rounds - n / bounds["workers"]  # more seconds of a round, in queues
    paces = [rounds / bounds["workers"] / one for one in taken]
    # τ_k = (X − x_k) D_k: what the others push while one push of k is under way
    stale = [(rounds - x) * (d + queue) for x, d in zip(paces, seen, strict=True)]
    mean = sum(x * s for x, s in zip(paces, stale, strict=True)) / rounds
    slow = int(np.argmax(seen))
    # While the slowest makes one round, another worker makes so many.
    most = [math.ceil(seen[slow] / one - 1e-9) for one in taken]
    most = sum(most) - most[slow]
    if setup.scheme == BOUNDED:
        most = (2 * setup.staleness + 1) * (n - 1)
    of_ps = bounds["ps cables"], bounds["ps 0"]
    updates = rounds
    if setup.scheme == DECOUPLED:  # the K fastest make each merge, without a queue
        updates = 1 / sorted(taken)[min(setup.quorum, n) - 1]
    return _answer(
        setup,
        rounds,
        rounds * max(setup.pulled, setup.pushed) / setup.ps,
        updates=updates,
        staleness=mean,
        most=most,
        waits=waits,
        limit=limit,
        full=min(of_ps) * taken[0],
    )


# --- Simulation -------------------------------------------------------------------


def simulate(setup, seconds=None, seed=0):
    """Returns (Answer, bars): a run of so many seconds, and what each worker does when.

    `seconds` None: 20 rounds and 10 s. The first fifth of it is not counted. A bar is
    (worker, kind, start, end), of the whole run; kinds are wait, pull, gradient, push,
    all-reduce, and call for what comes between the rounds. `seed` may also be what has
    `uniform` and `gamma`, like a generator of NumPy.
    """
    if seconds is None:
        known = formula(setup)
        seconds = max(10.0, 20 * setup.workers / known.rounds)
    simulation = Simulation(setup, seed)
    simulation.run(seconds)
    return simulation.answer(seconds / 5, seconds), simulation.bars


class Simulation:
    """Workers as processes: each yields the time at which it goes on, or an event.

    An event is a list, of those who wait for it. Cables and cores are queues, first
    come, first served.
    """

    def __init__(self, setup, seed):
        own = hasattr(seed, "gamma")
        self.setup, self.random = setup, seed if own else np.random.default_rng(seed)
        self.now, self.heap, self.number = 0.0, [], itertools.count()
        self.free = {}  # when the servers of a cable or of cores are free
        self.bars = []
        self.pushes = []  # time, worker, staleness
        self.opened = []  # times of updates
        self.count = 0  # updates of the center variable
        self.clocks = [0] * setup.workers  # rounds completed, of BOUNDED
        self.taken, self.waiting = 0, []  # gradients of the open step; who waits
        self.answered = set()  # of the open merge
        self.there = set(range(setup.workers))
        self.ready, self.reduced = set(), 0.0  # who has come to an all-reduce; its end
        kinds = {BARRIER: self.barrier, GOSSIP: self.gossip}
        kinds.update(dict.fromkeys(PEERS, self.peer))
        process = kinds.get(setup.scheme, self.at_own_pace)
        alone = setup.workers / formula(setup).rounds
        self.processes = [process(worker) for worker in range(setup.workers)]
        for one in self.processes:
            # Workers do not begin at one moment, apart from those of a ring.
            begin = 0.0 if setup.scheme in PEERS else self.random.uniform(0, alone)
            heapq.heappush(self.heap, (begin, next(self.number), one))
        for kill in setup.kills:
            self.begin(self.kill(process, *kill))

    # Events

    def begin(self, process):
        """Lets a process go on now, after those that already go on now."""
        heapq.heappush(self.heap, (self.now, next(self.number), process))

    def wake(self, event):
        """Lets all go on who wait for an event."""
        for process in event:
            self.begin(process)
        event.clear()

    def run(self, seconds):
        """Lets everything happen until then."""
        while self.heap and self.heap[0][0] <= seconds:
            self.now, _, process = heapq.heappop(self.heap)
            wanted = next(process, None)
            if isinstance(wanted, list):
                wanted.append(process)
            elif wanted is not None:
                when = max(wanted, self.now)
                heapq.heappush(self.heap, (when, next(self.number), process))

    def kill(self, process, worker, when, back):
        """A worker dies; another begins in its place, `back` seconds later."""
        yield when
        # A ring is lost as a whole. Local-SGD and DiLoCo go on with those who are left.
        ring = self.setup.scheme == PEERS[0]
        dead = range(self.setup.workers) if ring else [worker]
        for one in dead:
            self.processes[one].close()
        self.there.difference_update(dead)
        self.ready.difference_update(dead)
        self.all_reduce()
        yield self.now + back
        for one in dead:
            self.processes[one] = process(one)
            self.begin(self.processes[one])
        self.there.update(dead)

    def use(self, what, seconds, servers=1, start=0.0):
        """Returns when something is done that takes a server of `what` so long."""
        free = self.free.setdefault(what, [0.0] * servers)
        end = max(self.now, start, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        return end

    def compute(self, host, seconds):
        """Returns when a host has computed what takes so many core seconds."""
        cores = self.setup.costs.cores
        return self.use("cores" if cores else host, seconds, cores or 1)

    def send(self, ways, size, latency):
        """Sends `size` bytes on each of the ways (host, other); a part of a process.

        Who shares a cable gets an equal part of it: a message is sent in parts.
        """
        parts = min(10, math.ceil(size / 65536))
        taken, arrived = self.setup.wire(size / parts), []
        for _ in range(parts):
            left = [self.use(("from", host), taken) for host, _ in ways]
            arrived = [
                self.use(("to", other), taken, start=end - taken)
                for (_, other), end in zip(ways, left, strict=True)
            ]
            yield max(left)
        yield max(arrived) + latency + self.setup.pauses(size)

    # What a worker does; each is a part of a process

    def bar(self, worker, kind, start):
        if self.now > start:
            self.bars.append(Bar(worker, kind, start, self.now))

    def pull(self, worker, had=None):
        """Returns the count of updates that the pull finds on ps 0.

        It gets all, or the fragments that are new to who `had` so many updates.
        """
        setup, start = self.setup, self.now
        ready = [
            self.compute(("ps", j), setup.of_ps(j == 0) / 2) for j in range(setup.ps)
        ]
        yield ready[0]
        seen = self.count
        yield max(ready)
        ways = [(("ps", j), worker) for j in range(setup.ps)]
        size = setup.whole
        if had is not None:
            size = max(1, setup.pulled * self.new(seen, had))
        yield from self.send(ways, size / setup.ps, setup.away(worker))
        self.bar(worker, "pull", start)
        return seen

    def new(self, seen, had):
        """Returns how many fragments were merged since a learner had them."""
        return min(self.setup.fragments, seen - had)

    def gradients(self, worker, core=0.0):
        """The gradients of a round, and what else takes the worker core seconds."""
        setup, start = self.setup, self.now
        for step in range(setup.steps):
            more = setup.of_steps() / setup.steps + core * (step == 0)
            yield self.compute(worker, more)
            mean = setup.sleep(worker)
            if setup.spread and mean:
                # A gamma distribution has any mean and spread, and is never negative.
                shape = setup.spread**-2
                mean = self.random.gamma(shape, mean / shape)
            yield self.now + mean
        self.bar(worker, "gradient", start)

    def push(self, worker, quiet=False, size=None):
        """A push, until it is on the ps; of `size` bytes, if not as usual."""
        setup, start = self.setup, self.now
        ways = [(worker, ("ps", j)) for j in range(setup.ps)]
        size = (size or setup.pushed) / setup.ps
        yield from self.send(ways, size, setup.away(worker))
        yield max(
            self.compute(("ps", j), setup.of_ps(j == 0) / 2) for j in range(setup.ps)
        )
        if not quiet:
            self.bar(worker, "push", start)

    def counted(self, worker, seen, answers=True):
        """Counts a push, and its update: as it comes, or if it completes a merge."""
        self.pushes.append((self.now, worker, self.count - seen))
        if self.setup.scheme == DECOUPLED:
            if answers and seen == self.count:  # else the merge is closed
                self.answered.add(worker)
            if len(self.answered) < (min(self.setup.quorum, len(self.there)) or 1):
                return
            self.answered.clear()
        self.opened.append(self.now)
        self.count += 1

    def wait(self, worker, event):
        """Waits for an event."""
        start = self.now
        yield event
        self.bar(worker, "wait", start)

    def calls(self, worker, one_round, trip):
        """Makes rounds for ever, some to a call, with a look now and then."""
        setup, seconds, looked = self.setup, CALL, self.now
        while True:
            start = self.now
            size = rounds_of_a_call(setup, seconds)
            # No look is due after a call that would end half too late.
            yield self.now + setup.costs.call * trip
            self.bar(worker, "call", start)
            for _ in range(size):
                yield from one_round()
            seconds = (self.now - start) / size
            if self.now - looked + size * seconds / 2 > CALL:
                start = self.now
                yield self.now + setup.costs.look * trip
                self.bar(worker, "call", start)
                looked = self.now

    # Schemes

    def at_own_pace(self, worker):
        """HogWild and its relatives; BOUNDED waits on ps 0 before it pulls."""
        setup, core = self.setup, self.setup.of_worker() - self.setup.of_steps()
        decoupled = setup.scheme == DECOUPLED
        sent = []  # of ASIDE: whether the push before has arrived
        had, last = -setup.fragments, -1  # merges seen, and the last one answered

        def plain():
            if setup.scheme == BOUNDED:
                while self.clocks[worker] - min(self.clocks) > setup.staleness:
                    yield from self.wait(worker, self.waiting)
            seen = yield from self.pull(worker)
            yield from self.gradients(worker, core)
            yield from self.push(worker)
            self.counted(worker, seen)
            self.clocks[worker] += 1
            self.wake(self.waiting)

        def elastic():
            nonlocal had, last
            start = self.now
            # It says to ps 0 that its steps are done.
            yield self.now + setup.away(worker)
            self.bar(worker, "pull", start)
            while sent:
                yield from self.wait(worker, sent[0])
            seen = yield from self.pull(worker, had if decoupled else None)
            # Steps are lost with the fragment; who was not in a merge begins anew.
            new, had = self.new(seen, had), seen
            in_last = last == seen - 1 and new < setup.fragments
            answers = not decoupled or new == 0 or in_last
            last = seen if answers else last
            arrived = []
            sent.append(arrived)
            self.begin(aside(seen, arrived, answers))
            yield from self.gradients(worker, core)

        def aside(seen, arrived, answers):
            yield from self.push(worker, quiet=True, size=None if answers else 1)
            self.counted(worker, seen, answers)
            sent.remove(arrived)
            self.wake(arrived)

        one_round = elastic if setup.scheme in ASIDE else plain
        yield from self.calls(worker, one_round, 2 * setup.away(worker))

    def barrier(self, worker):
        """Synchronous-SGD: a token for each step, which takes its first gradients."""
        setup, core = self.setup, self.setup.of_worker() - self.setup.of_steps()
        needed, mine = setup.replicas or setup.workers, -1

        def one_round():
            nonlocal mine
            while self.count == mine:
                yield from self.wait(worker, self.waiting)
            mine = self.count
            yield from self.pull(worker)
            yield from self.gradients(worker, core)
            yield from self.push(worker)
            self.pushes.append((self.now, worker, 0))
            if mine == self.count and self.taken < needed:
                self.taken += 1
                if self.taken == needed:
                    self.taken = 0
                    self.count += 1
                    self.opened.append(self.now)
                    self.wake(self.waiting)

        yield from self.calls(worker, one_round, 2 * setup.away(worker))

    def peer(self, worker):
        """A ring, in which all wait for the last before the all-reduce."""
        setup, seconds = self.setup, CALL

        def one_round():
            yield from self.gradients(worker)
            self.ready.add(worker)
            if not self.all_reduce():
                yield from self.wait(worker, self.waiting)
            start = self.now
            yield self.reduced
            self.bar(worker, "all-reduce", start)
            self.pushes.append((self.now, worker, 0))
            if worker == min(self.there):
                self.opened.append(self.now)

        while True:
            start = self.now
            yield self.now + setup.all_reduce(0)  # about the rounds of a call
            self.bar(worker, "call", start)
            size, calls = calls_of_peers(setup, seconds)
            for _ in range(calls):
                start = self.now
                for _ in range(size):
                    yield from one_round()
                seconds = (self.now - start) / size

    def all_reduce(self):
        """Begins an all-reduce if all have come; says whether they have."""
        if not self.ready or self.ready != self.there:
            return False
        self.ready.clear()
        self.reduced = self.now + self.setup.all_reduce(self.setup.whole)
        self.wake(self.waiting)
        return True

    def gossip(self, worker):
        """Gossip-SGD on a ring: an even worker averages while it computes."""
        setup, n = self.setup, self.setup.workers
        near = sorted({(worker - 1) % n, (worker + 1) % n})
        near = [j for j in near if (j - worker) % 2] * (worker % 2 == 0)
        under_way, chief = [], 2 * setup.away(worker, 0) * (worker > 0)

        def one_round():
            seen, averaged = self.count, []
            if near:
                j = near[int(self.random.uniform(0, len(near)))]
                under_way.append(averaged)
                self.begin(average(j, averaged))
            yield from self.gradients(worker, setup.of_worker() - setup.of_steps())
            while under_way:
                yield from self.wait(worker, under_way[0])
            start = self.now
            yield self.now + chief / 2  # the chief gives the update its number
            yield self.compute(0, setup.costs.ps)
            self.counted(worker, seen)
            yield self.now + chief / 2
            self.bar(worker, "call", start)

        def average(j, averaged):
            for ways in ((worker, j), (j, worker)):
                yield from self.send([ways], setup.whole, setup.away(*ways))
                if ways[0] == worker:
                    yield self.compute(j, setup.of_average())
            under_way.remove(averaged)
            self.wake(averaged)

        yield from self.calls(worker, one_round, chief)

    # Result

    def answer(self, start, end):
        """Returns the Answer for the time from `start` to `end`."""
        setup, span = self.setup, end - start
        pushes = [(k, stale) for when, k, stale in self.pushes if when > start]
        updates = sum(when > start for when in self.opened) / span
        rounds = len(pushes) / span
        each = np.bincount([k for k, _ in pushes], minlength=setup.workers)
        waits = np.zeros(setup.workers)
        for one in self.bars:
            if one.kind == "wait":
                waits[one.worker] += max(0.0, one.end - max(one.start, start))
        stale = [one for _, one in pushes] or [0]
        used = rounds
        if setup.scheme == BARRIER:
            used = updates * (setup.replicas or setup.workers)
        sent = max(setup.pulled, setup.pushed) / setup.ps
        if setup.scheme in PEERS:
            sent = 2 * (setup.workers - 1) / setup.workers**2 * setup.whole
        if setup.scheme == GOSSIP:
            sent = sum(each[::2]) / max(1, rounds * span) * setup.whole
            sent *= (setup.workers > 1) / max(1, setup.workers // 2)
        return Answer(
            updates=updates,
            rounds=rounds,
            examples=used * setup.steps * setup.batch,
            busiest=rounds * sent,
            staleness=float(np.mean(stale)),
            most=max(stale),
            waits=(waits / np.maximum(1, each)).tolist(),
            limit=None,
            full=None,
        )
