"""From what TensorFlow has traced to bars and messages, and whether they are right.

A recording is what timeline_recorder.py writes. A bar is what a task does from when to
when, in the field's words. The name scopes of a script's `graph` say which operation
belongs to which: a round is `round_3/`, its gradient `round_3/gradient/`. Times are in
milliseconds.
"""

import collections
import re

Bar = collections.namedtuple("Bar", "task kind start end text round")
# `kind` is pull, push, average, or that of a collective operation.
Message = collections.namedtuple("Message", "kind sender to start end bytes")
Operation = collections.namedtuple("Operation", "task name kind inputs start end")
Timeline = collections.namedtuple(
    "Timeline", "tasks bars messages rounds begin end stale"
)

# What has become of a push, as cluster/rounds.py has it.
APPLIED, LATE = 1, 0
ROUND = re.compile(r"(?:group_(\d+)/)?round_(\d+)/(.*)")
EDGE = re.compile(r"(?:^|_)((?:group_\d+/)?round_\d+/.*)")
UNIT = re.compile(r"(forward|backward)_(\d+)_(\d+)/")
PUSHED = re.compile(r"push/split|tower_\d+/gradients")
DONE = re.compile(r"Assign|ResourceScatter|ResourceApply|ConsumeMutexLock|QueueEnqueue")
# Operations that all workers make together, and how many messages each worker gets in
# one, in units of N − 1.
COLLECTIVES = {
    "CollectiveReduce": "all-reduce",
    "CollectiveGather": "gather",
    "CollectiveAllToAllV2": "reduce-scatter",
}
MESSAGES = {"all-reduce": 2, "gather": 1, "reduce-scatter": 1}
# TensorFlow's names of the messages of CollectiveAllToAllV2; a ring's have more colons.
EXCHANGED = re.compile(r"\d+:\d+:\d+:\d+$")
COUNT, NUMBER = "global_step", "number"  # on ps 0 or the chief; of each peer
FEW = 100  # bytes: a message that is shorter has counts in it
LEAST = 0.3  # milliseconds: a wait that is shorter is not drawn


class WrongError(Exception):
    """The picture would not be that of the run."""


class Round:
    """One round of one worker, or of a group of workers that one client leads."""

    def __init__(self, worker, call, group, place, counts):
        self.worker, self.call, self.group, self.place = worker, call, group, place
        self.step, self.staleness, self.became = counts
        self.operations, self.messages = [], []
        self.number = None  # of the worker's rounds, where it says who is ahead
        self.lost = False  # TensorFlow has not noted all of its messages
        self.beside = False  # it computes while it exchanges
        self.quiet = False  # it has no update of its own to be named after

    @property
    def task(self):
        return f"worker {self.worker}"

    def of(self, scopes, kinds="", task=None):
        """Returns the operations in a scope, of a kind, on a task, by their starts."""
        scope, kind = re.compile(rf"(?:{scopes})(?:/|$)"), re.compile(kinds)
        return [
            one
            for one in self.operations
            if scope.match(one.name)
            and kind.match(one.kind)
            and task in (None, one.task)
        ]

    def first(self, scopes, kinds="", inputs="", task=None):
        """Returns the first of them that has such inputs, or None."""
        found = self.of(scopes, kinds, task)
        return next((one for one in found if one.inputs.startswith(inputs)), None)


def rounds_of(recording):
    """Returns the Rounds of a recording, and its messages that are of no round."""
    found, others = [], []
    for worker in recording:
        for number, call in enumerate(worker["calls"]):
            mine = {}
            ms = [[*o[:4], o[4] / 1000, o[5] / 1000] for o in call["operations"]]
            for one in sorted((Operation(*o) for o in ms), key=lambda o: o.start):
                match = ROUND.match(one.name)
                if match:
                    key = int(match[1] or 0), int(match[2])
                    if key not in mine:
                        counts = call["counts"][key[1]]
                        mine[key] = Round(worker["worker"], number, *key, counts)
                    mine[key].operations.append(one._replace(name=match[3]))
            for sender, to, name, size, start, end in call["messages"]:
                message = Message(name, sender, to, start / 1000, end / 1000, size)
                match = EDGE.search(name)
                key = ROUND.match(match[1]) if match else None
                if key and size:
                    name = Message(key[3], *message[1:])
                    mine[int(key[1] or 0), int(key[2])].messages.append(name)
                elif not match:
                    others.append(message)
            found += [mine[key] for key in sorted(mine)]
    return found, others


# --- What a round is made of ------------------------------------------------------


def gradients(one, scope="gradient"):
    """Returns the bars of a round's gradient: one, or one for each local step."""
    work = one.of(scope, "(?!Const|Iterator)", one.task)
    begins = [o.start for o in one.of(scope, "PyFunc", one.task)]
    end = max(o.end for o in work)
    if not begins:
        arrived = [m.end for m in one.messages if m.to == one.task]
        begins = [max([work[0].start, *arrived])]
    ends = [*begins[1:], end]
    return [
        Bar(one.task, "gradient", start, end, "", one)
        for start, end in zip(begins, ends, strict=True)
    ]


def waits(one):
    """Returns the bars of waiting for a token, on a queue, and for a lock, on a ps."""
    found = []
    for kinds, scopes in (("QueueDequeue", "pull|wait"), ("MutexLock", "push|update")):
        for o in one.of(scopes, kinds):
            if o.end - o.start > LEAST and not o.inputs.startswith("Const"):
                text = "wait" if kinds == "QueueDequeue" else "lock"
                found.append(Bar(one.task, "wait", o.start, o.end, text, one))
    return found


def at_a_ps(one):
    """Returns (bars, messages) of a round whose parameters are on a ps."""
    bars, messages = gradients(one), []
    begin, end = bars[0].start, bars[-1].end
    for m in one.messages:
        if m.bytes < FEW:
            continue
        if m.to == one.task and m.kind.startswith("pull"):
            messages.append(m._replace(kind="pull"))
        elif m.sender == one.task:
            # The numbers of the rows that are to be pulled, if not all are.
            kind = "pull" if m.kind.startswith("pull") else "push"
            messages.append(m._replace(kind=kind))
    pulls = [m for m in messages if m.kind == "pull" and m.to == one.task]
    pushes = [m for m in messages if m.kind == "push"]
    if not pulls or not pushes:
        one.lost = True
        return bars, messages
    start, arrived = min(m.start for m in pulls), max(m.end for m in pulls)
    bars.append(Bar(one.task, "pull", start, max(start, min(arrived, begin)), "", one))
    # After the gradient, or while it is computed: an elastic difference.
    first, last = min(m.start for m in pushes), max(m.end for m in pushes)
    bars.append(Bar(one.task, "push", end if last > end else first, last, "", one))
    bars += waits(one)
    lock = one.first("push", "MutexLock")
    for ps in sorted({m.to for m in pushes}):
        done = one.of("push|update|clock", DONE.pattern, ps)
        came = [m.end for m in pushes if m.to == ps]
        start = lock.start if lock.task == ps else max(came)
        done = [o.end for o in done if o.start >= start]
        kind = "update" if updates(one) else "sum" if one.became == APPLIED else "late"
        bars.append(Bar(ps, kind, start, max([start, *done]), "", one))
    return bars, messages


def at_a_syncer(one):
    """Returns (bars, messages) of a learner's round, few of which send a fragment."""
    bars, one.quiet = gradients(one), not updates(one)
    messages = [
        m._replace(kind="pull" if m.kind.startswith("pull") else "push")
        for m in one.messages
        if m.bytes >= FEW and one.task in (m.sender, m.to)
    ]
    for kind in ("pull", "push"):
        mine = [m for m in messages if m.kind == kind]
        if mine:
            start, end = min(m.start for m in mine), max(m.end for m in mine)
            bars.append(Bar(one.task, kind, start, end, "", one))
    if updates(one):
        for ps in sorted({o.task for o in one.of("update") if o.task != one.task}):
            start = one.first("update", "MutexLock", task=ps).end
            end = max(o.end for o in one.of("update", DONE.pattern, ps))
            bars.append(Bar(ps, "update", start, end, "", one))
    return bars, messages


def updates(one):
    """Returns the operation that counts this round's update; None if it made none."""
    if one.became != APPLIED:
        return None
    scopes = "push|number|update|all_reduce|all_gather"
    counted = one.first(scopes, "Assign(Add)?Variable", COUNT)
    return counted or one.first(scopes, "AssignAdd", NUMBER)


def seen_by(one):
    """Returns the operation that counts updates at a pull; None if synchronous."""
    if one.first("pull", "QueueDequeueMany"):
        return None  # synchronous: nothing is stale
    return one.first("pull|read", "ReadVariableOp", COUNT)


def in_a_ring(rounds, others):
    """Returns (bars, messages) of rounds of peers, all of which all-reduce."""
    bars, messages, steps = [], [], collections.defaultdict(list)
    for one in rounds:
        steps[one.step].append(one)
    workers = {one.task for one in rounds}
    for step, together in sorted(steps.items()):
        calls = {o.task: o.first("all_reduce", "CollectiveReduce") for o in together}
        if {*calls} != workers:
            continue  # at the edge of the recording
        entered = max(call.start for call in calls.values())
        for one in together:
            call, work = calls[one.task], gradients(one)
            one.beside = bool(one.of("overlap", task=one.task))
            work += gradients(one, "overlap") if one.beside else []
            if call.end < entered:
                raise WrongError(
                    f"step {step}: {one.task} has the mean before all came"
                )
            mine = [m for m in others if m.to == one.task and _within(m, call)]
            expected = 2 * (len(workers) - 1)
            one.lost = len(mine) != expected
            messages += [m._replace(kind="all-reduce") for m in mine]
            bars += work
            begin = max(call.start, work[-1].end if one.beside else 0)
            if entered - begin > LEAST:
                bars.append(Bar(one.task, "wait", begin, entered, "wait", one))
            start = max(call.start, entered)
            bars.append(Bar(one.task, "all-reduce", start, call.end, "", one))
            done = one.of("update", DONE.pattern, one.task)
            ends = [o.end for o in done]
            start = max(begin, call.end)
            bars.append(Bar(one.task, "update", start, max(ends), "", one))
    return bars, messages


def collectives(one):
    """Returns {name: operation} of what a worker makes together with all others."""
    found = one.of("gradient|all_gather", "|".join(COLLECTIVES), one.task)
    return {o.name: o for o in found}


def in_parts(rounds, others):
    """Returns (bars, messages) of rounds of peers that hold parts, one of each step.

    A round has many collective operations. None of them ends before all workers have
    begun it. A gather may go on while a gradient is reduced and scattered.
    """
    bars, messages, steps = [], [], collections.defaultdict(list)
    for one in rounds:
        steps[one.step].append(one)
    workers = {one.task for one in rounds}
    for step, together in sorted(steps.items()):
        made = {one.task: collectives(one) for one in together}
        if {*made} != workers or len({frozenset(names) for names in made.values()}) > 1:
            continue  # at the edge of the recording
        for one in together:
            mine, spent, waited = [], [], []
            for name, call in made[one.task].items():
                kind = COLLECTIVES[call.kind]
                entered = max(calls[name].start for calls in made.values())
                if call.end < entered:
                    raise WrongError(f"step {step}: {one.task} ends {name} before all")
                if entered - call.start > LEAST:
                    waited.append((call.start, entered))
                bars.append(Bar(one.task, kind, entered, call.end, "", one))
                mine.append((kind, call))
                if kind == "gather":
                    spent.append((call.start, call.end))
            over = 0  # a gather and a reduce-scatter may wait at the same time
            for start, end in sorted(waited):
                if end > over:
                    wait = max(start, over), end, "wait", one
                    bars.append(Bar(one.task, "wait", *wait))
                over = max(over, end)
            got = [
                m._replace(kind=kind)
                for m in others
                for kind in [_collective(m, mine)]
                if m.to == one.task and kind
            ]
            messages += got
            expected = sum(MESSAGES[kind] for kind, _ in mine) * (len(workers) - 1)
            one.lost = len(got) != expected
            # The gradient is what is computed before, between and after the gathers.
            last = max(call.start for kind, call in mine if kind != "gather")
            begin = min(o.start for o in one.of("gradient", "(?!Const|Iter)", one.task))
            for start, end in [*sorted(spent), (last, last)]:
                if begin < min(start, last):
                    bar = Bar(one.task, "gradient", begin, min(start, last), "", one)
                    bars.append(bar)
                begin = max(begin, end)
            done = one.of("update", "ResourceApply", one.task)
            bars += [Bar(one.task, "update", o.start, o.end, "", one) for o in done]
    return bars, messages


def _collective(message, calls):
    """Returns of which kind of `calls`, [(kind, operation)], a message is; or None."""
    exchanged = bool(EXCHANGED.match(message.kind))
    for kind, call in calls:
        if exchanged == (kind == "reduce-scatter") and _within(message, call):
            return kind
    return None


def _within(message, operation):
    # A message is asked for before what it brings is there.
    return operation.start - 1 <= message.end <= operation.end + 1


def in_pairs(one, partner):
    """Returns (bars, messages) of a round of gossip; `partner` is who is asked."""
    bars, messages = gradients(one), []
    for call in one.of("average", "RemoteCall"):
        bars.append(Bar(one.task, "average", call.start, call.end, "", one))
        # When the partner averages is not in the trace: between the two.
        middle, size = (call.start + call.end) / 2, 0
        out, back = (one.task, partner), (partner, one.task)
        messages.append(Message("average", *out, call.start, middle, size))
        messages.append(Message("average", *back, middle, call.end, size))
    lock = one.first("number", "MutexLock")
    done = one.of("update", DONE.pattern, one.task)
    start, end = done[0].start, done[-1].end
    bars.append(Bar(one.task, "update", start, end, "", one))
    if lock.end - lock.start > LEAST:
        bars.append(Bar(one.task, "wait", lock.start, lock.end, "lock", one))
    return bars, messages


def led_by_a_client(one, workers):
    """Returns (bars, messages) of a round that one client makes for its workers.

    The client makes a worker's mini-batch late, not its gradient (--slow_workers).
    """
    bars, messages = [], []
    done = one.of("update", DONE.pattern)
    end = max(o.end for o in done)
    for number, k in enumerate(workers):
        task, scope = f"worker {k}", f"tower_{k}"
        work = one.of(scope, r"\w*MatMul", task)
        if not work:
            raise WrongError(f"a round without the gradient of {task} in the trace")
        tail = f"_{number}" * (number > 0)
        name = "PyFunc" + tail
        begin, last = work[0].start, max(o.end for o in one.of(scope, task=task))
        slow = one.of(name, "PyFunc")
        bars += [Bar(task, "mini-batch", o.start, o.end, "", one) for o in slow]
        bars.append(Bar(task, "gradient", begin, last, "", one))
        for m in one.messages:
            if m.to == task and m.kind.startswith(scope) and m.sender[:2] == "ps":
                messages.append(m._replace(kind="pull"))
                bars.append(Bar(task, "pull", m.start, m.end, "", one))
            if m.bytes < FEW or not PUSHED.match(m.kind) or m.sender != task:
                continue
            # It may go by the client, which cuts it into its pieces.
            messages.append(m._replace(kind="push"))
            if m.kind.startswith(scope) or m.kind == f"push/split{tail}":
                bars.append(Bar(task, "push", last, max(m.end, last), "", one))
                last = max(m.end, last)
        mine = {m.kind for m in messages if task in (m.sender, m.to)}
        one.lost |= mine != {"pull", "push"}
        begin = one.first("push", "MutexLock").start
        if begin - last > LEAST:
            bars.append(Bar(task, "wait", last, begin, "wait", one))
    lock = one.first("push", "MutexLock")
    for ps in sorted({o.task for o in done}):
        bars.append(Bar(ps, "update", lock.start, end, "", one))
    return bars, messages


def in_a_pipeline(one):
    """Returns (bars, messages) of a mini-batch that goes through all stages."""
    bars, units, arrived = [], collections.defaultdict(list), {}
    for o in one.operations:
        match = UNIT.match(o.name)
        if match and o.kind != "Const":
            units[o.task, match[1], int(match[3])].append(o)
            if re.search(r"/arrived(_\d+)?$", o.name):
                arrived[o.task, match[1], int(match[3])] = o.end
    tasks = {int(task.split()[1]) for task, *_ in units}
    over = collections.defaultdict(float)
    for key in sorted(units, key=lambda key: max(o.end for o in units[key])):
        task, kind, m = key
        start, end = units[key][0].start, max(o.end for o in units[key])
        start = max(arrived.get(key, start), over[task])
        bars.append(Bar(task, kind, start, end, str(m), one))
        over[task] = end
    for o in one.of("update", "AssignSub"):
        bars.append(Bar(o.task, "update", o.start, o.end, "", one))
    messages = [
        m._replace(kind="pull" if m.kind.startswith("forward") else "push")
        for m in one.messages
        if UNIT.match(m.kind) and m.bytes > FEW
    ]
    # Every unit sends once, but the last forwards and the last backwards.
    ends = sum(task == f"worker {max(tasks)}" for task, *_ in units)
    one.lost = len(messages) != len(units) - ends
    return bars, messages


def number_rounds(rounds, bound):
    """Numbers every worker's rounds so that they tell who is ahead of whom.

    A worker that waits may go on when the slowest has completed a round, and is then
    `bound` rounds ahead of it. So every wait says which rounds of the two are abreast.
    """
    mine = collections.defaultdict(list)
    for one in rounds:
        mine[one.task].append(one)
    ticks = [
        (max(o.end for o in one.of("clock")), task, place)
        for task, all_ in mine.items()
        for place, one in enumerate(all_)
        if one.of("clock")
    ]
    ahead = {}
    for task, all_ in mine.items():
        for place, one in enumerate(all_):
            for o in one.of("wait", "QueueDequeue"):
                others = [t for t in ticks if t[1] != task and abs(t[0] - o.end) < 1]
                if o.end - o.start > LEAST and others:
                    _, slowest, last = max(others)
                    ahead.setdefault((task, slowest), []).append(
                        bound + last + 1 - place
                    )
    slowest = collections.Counter(slow for _, slow in ahead).most_common(1)
    first = {slowest[0][0]: 1} if slowest else {}
    for (task, slow), differences in ahead.items():
        if slow in first and len(set(differences)) > 1:
            raise WrongError(f"{task} is not always {bound} rounds ahead after a wait")
        if slow in first:
            first[task] = first[slow] + differences[0]
    least = min(first.values(), default=0)
    for task, all_ in mine.items():
        for place, one in enumerate(all_):
            one.number = first[task] + place - least + 1 if task in first else None


def lost(rounds):
    """Returns (begin, end) of the rounds of which TensorFlow has lost messages."""
    return [
        (one.operations[0].start, max(o.end for o in one.operations))
        for one in rounds
        if one.lost
    ]


# --- The whole ----------------------------------------------------------------------


def between_calls(recording, rounds):
    """Returns the bars of what a worker does between two calls: log, and start."""
    bars, last = [], {}
    for one in rounds:
        key = one.worker, one.group
        before = last.get(key)
        if before and before.call != one.call:
            start = max(o.end for o in before.operations)
            end = one.operations[0].start
            bars.append(Bar(one.task, "between", start, end, "", one))
        last[key] = one
    return bars


def bars_of(rounds, others, family, workers, asynchronous=False):
    """Returns (bars, messages, rounds) of Rounds of an example of a family.

    Of peers only those rounds are returned that all workers have traced.
    """
    bars, messages = [], []
    if family == "peers":
        whole = any(one.first("all_reduce", "CollectiveReduce") for one in rounds)
        bars, messages = (in_a_ring if whole else in_parts)(rounds, others)
        there = {bar.round for bar in bars}
        return bars, messages, [one for one in rounds if one in there]
    for one in rounds:
        if family == "gossip":
            new = in_pairs(one, "worker 1")
        elif family == "client" and any(UNIT.match(o.name) for o in one.operations):
            new = in_a_pipeline(one)
        elif one.of("ask"):
            new = at_a_syncer(one)
        elif family == "client":
            group = [one.group] if asynchronous else range(workers)
            new = led_by_a_client(one, group)
        else:
            new = at_a_ps(one)
        bars, messages = bars + new[0], messages + new[1]
    return bars, messages, rounds


def timeline(recording, family, workers, asynchronous=False, bound=None, buffer=1):
    """Returns the Timeline of a recording of an example of a family.

    `bound` is that of Stale-Synchronous-Parallel, `buffer` the K of FedBuff. It begins
    when every worker that makes calls is traced, and ends before the first is no more.
    Raises WrongError if the bars are not what the counters say.
    """
    if not all(worker["calls"] for worker in recording):
        raise WrongError("a worker made no call in the time that was traced")
    rounds, others = rounds_of(recording)
    bars, messages, rounds = bars_of(rounds, others, family, workers, asynchronous)
    if bound is not None:
        number_rounds(rounds, bound)
    bars += between_calls(recording, rounds)
    calls = [worker["calls"] for worker in recording]
    begin = max(call[0]["began"] for call in calls) / 1000
    end = min(call[-1]["ended"] for call in calls) / 1000
    tasks = {bar.task for bar in bars}
    tasks = sorted(tasks, key=lambda t: (t[:2] != "ps", int(t.split()[1])))
    stale = any(seen_by(one) for one in rounds) and family != "peers"
    found = Timeline(tasks, bars, messages, rounds, begin, end, stale)
    check(found, buffer)
    return found


def check(timeline, buffer=1):
    """Raises WrongError if updates, staleness or waits are not those of the counters.

    The counters are what the calls have fetched; the rest is from timestamps alone.
    """
    made = [(one, updates(one)) for one in timeline.rounds]
    made = [(one, o) for one, o in made if o]
    if timeline.rounds and not made:
        raise WrongError("no update in the trace")
    inside = [
        (one, o) for one, o in made if timeline.begin < o.start and o.end < timeline.end
    ]
    numbers = sorted(one.step for one, _ in inside)
    workers = len({one.worker for one in timeline.rounds})
    each = workers if any(b.kind in MESSAGES for b in timeline.bars) else 1
    wanted = [n for n in range(numbers[0], numbers[-1] + 1) for _ in range(each)]
    if each == 1 and numbers != wanted:
        text = f"updates {numbers[0]} to {numbers[-1]} are {len(numbers)} in the trace"
        raise WrongError(text)
    if each > 1 and {numbers.count(n) for n in set(numbers[each:-each])} - {each}:
        raise WrongError("an update that not every worker made")
    if each == 1:
        _check_staleness(timeline, made, buffer)
        _check_steps(timeline, dict((one.step, o) for one, o in made))


def _check_staleness(timeline, made, buffer):
    """The updates between a pull and its push are as many as its staleness.

    With a buffer w moves once for so many of them.
    """
    for one, own in made:
        seen = seen_by(one)
        if not seen or seen.start < timeline.begin or own.end > timeline.end:
            continue  # there is no staleness, or not all was traced
        others = [o for other, o in made if other is not one]
        least = sum(seen.end < o.start and o.end < own.start for o in others)
        most = sum(seen.start < o.end and o.start < own.end for o in others)
        if not least // buffer <= one.staleness <= -(-most // buffer):
            raise WrongError(
                f"update {one.step} of {one.task} has staleness {one.staleness}, and "
                f"{least} updates are between its pull and its push in the trace"
            )


def _check_steps(timeline, made):
    """Synchronous: nobody has a step's token before the update before it is made."""
    for one in timeline.rounds:
        token = one.first("pull", "QueueDequeueMany")
        before = made.get(one.step - 1)
        if token and before and token.end < before.start:
            raise WrongError(
                f"{one.task} begins step {one.step} before update {one.step - 1}"
            )
    steps = collections.Counter(
        one.step
        for one in timeline.rounds
        if one.became == APPLIED and one.first("pull", "QueueDequeueMany")
    )
    # Of a step that was begun and made while all were traced, all gradients are there.
    inside = [
        step
        for step in steps
        if step in made
        and made[step].end < timeline.end
        and step - 1 in made
        and made[step - 1].start > timeline.begin
    ]
    if len({steps[step] for step in inside}) > 1:
        raise WrongError("updates of unequally many gradients")
