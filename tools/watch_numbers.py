"""From what the tasks tell to what the page shows: events, numbers, one sentence.

An event is a dict that becomes JSON. `k` says what it is, `t` when, in seconds of the
run; other times in it are milliseconds.

    task    state of a task: starts, runs, frozen, gone, again (it starts), ended
    rounds  of a call of a worker: from `t`, `e` ms long; `n` has of each round when it
            was counted (ms since t), its global step, its staleness, what became of it;
            `x`: it was traced, `f`: TensorFlow had to prepare it
    shape   of a call that was traced: its bars, and `p`, those of one of its rounds,
            [task, kind, start, end], which stand for rounds that were not traced
    now     numbers and the sentence, see `numbers`
    curve   a point of the curves that the chief draws
    line    what the run has printed

A round begins where the round before it was counted, or with its call. So a round's
length is measured, and what it was made of is that of the last traced one. In some
schemes a round is counted first, and then computes: it begins `lead` ms before that.
"""

import collections
import math
import re
import statistics

import timeline_bars
from timeline_bars import APPLIED, WrongError

OVER = -1  # became of a push after the last update, as cluster/rounds.py has it
WINDOW = 3.0  # seconds over which a rate or a share of "now" is measured
LONG = 3, 100.0  # a round of so many times its shape and ms more: it was held up
BINS = 12  # of the histogram of staleness; the last has all above
COMPUTES = ("gradient", "forward", "backward", "mini-batch", "update")
SENDS = ("pull", "push", "all-reduce", "gather", "reduce-scatter", "average")
SHARE = 0.1  # of its time that a task waits before the sentence is about it
LATE = 1.0  # seconds after which a call, or its end, is late beside its usual length
BUSY = 0.9  # of a core's time, or of all cores', that limits what runs there
OWN = 0.3  # of all cores' time: a run that takes less is not limited by them
SLOWER = 1.2  # times the gradient of others: that worker is slow
STATES = {
    "frozen": "is frozen",
    "gone": "is gone",
    "again": "starts again",
    "starts": "has not begun",
}

Shape = collections.namedtuple("Shape", "parts length bars bytes lead", defaults=[None])
# A call of a worker, from when to when; `lanes` has what its rounds did, see `spent`:
# {} if none of it is known, None if TensorFlow had to prepare the call.
Call = collections.namedtuple("Call", "begin end rounds lanes stale")


# --- What a traced call looks like ------------------------------------------------


def owner_of(worker, group, asynchronous):
    """Returns the task in whose lane a round lies, as in `worker 0`."""
    return f"worker {group if asynchronous else worker}"


def shapes(calls, family, workers, asynchronous=False):
    """Returns {owner: Shape} of calls that were traced at the same time.

    `calls` are {worker: message of the recorder}. Raises WrongError if something is
    missing in the trace.
    """
    origin = min(call["b"] for call in calls.values())
    recording = []
    for worker, call in calls.items():
        shift = 1e6 * (call["b"] - origin)
        moved = {
            name: [[*o[:-2], o[-2] + shift, o[-1] + shift] for o in call[name]]
            for name in ("operations", "messages")
        }
        counts = [row[:3] for row in call["counts"]]
        recording.append({"worker": worker, "calls": [{**moved, "counts": counts}]})
    try:
        rounds, others = timeline_bars.rounds_of(recording)
        bars, messages, rounds = timeline_bars.bars_of(
            rounds, others, family, workers, asynchronous
        )
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise WrongError(f"the trace is not whole: {error!r}") from error
    found = {}
    for worker, call in calls.items():
        group = call["group"]
        mine = [r for r in rounds if r.worker == worker and not r.lost]
        if not mine:
            continue
        shift = 1000 * (call["b"] - origin)
        own = collections.defaultdict(list)
        for bar in bars:
            if bar.round in mine:
                kind = bar.text if bar.text == "lock" else bar.kind
                own[bar.round.place].append(bar._replace(kind=kind))
        if not own:
            continue
        who = owner_of(worker, group, asynchronous)
        ends = [row[3] / 1000 for row in call["counts"]]
        lead = lead_of(
            [b for b in own[max(own)] if b.task == who], ends[max(own)], shift
        )
        edges = edges_of(ends, 1000 * (call["e"] - call["b"]), lead)
        # The first round of a call has the start of the call in it.
        places = sorted(own)[1:] or sorted(own)
        places.sort(key=lambda place: edges[place + 1] - edges[place])
        middle = places[len(places) // 2]
        begin, length = edges[middle], edges[middle + 1] - edges[middle]
        parts = [
            [b.task, b.kind, b.start - shift - begin, b.end - shift - begin]
            for b in own[middle]
        ]
        drawn = [
            [b.task, b.kind, b.start - shift, b.end - shift, place]
            for place in sorted(own)
            for b in own[place]
        ]
        # Bytes of a round; TensorFlow may not have noted all messages of the call.
        sent = collections.Counter()
        for m in messages if not any(r.lost for r in rounds) else []:
            ends = (m.to,) if family == "peers" else (m.sender, m.to)
            if family == "client" or mine[0].task in ends:
                sent[m.sender, "out"] += m.bytes / len(mine)
                sent[m.to, "in"] += m.bytes / len(mine)
        found[who] = Shape(parts, length, drawn, dict(sent), lead)
    if not found:
        raise WrongError("no round is whole in the trace")
    return found


def lead_of(bars, counted, shift):
    """Returns how long before its count a round begins, ms; None if it ends with it.

    `bars` are those of its owner, `counted` is in ms of the call.
    """
    if not bars:
        return None
    begin, end = min(b.start for b in bars) - shift, max(b.end for b in bars) - shift
    return max(0.0, counted - begin) if end - counted > counted - begin else None


def edges_of(counted, length, lead):
    """Returns where the rounds of a call begin, and the last ends, in ms of the call.

    `counted` is when each was, `length` the call's. watch.html has the same function.
    """
    if lead is None:
        return [0.0, *counted]
    return [*(max(0.0, at - lead) for at in counted), length]


def stretched(shape, length, owner):
    """Returns a function from a time of a shape to one of a round of another length.

    What waits takes what is left; all else keeps its length, unless there is less room.
    A round that is far longer was held up, and that at its begin. watch.html has the
    same function.
    """
    own = [p for p in shape.parts if p[0] == owner and p[1] == "wait"]
    waits, over = [], 0.0
    for start, end in sorted((max(0.0, p[2]), min(p[3], shape.length)) for p in own):
        if end > max(start, over):
            waits.append((max(start, over), end))
        over = max(over, end)
    waited = sum(end - start for start, end in waits)
    rest = shape.length - waited
    held, wide = 0.0, 1.0
    if waited and rest <= length:
        wide = (length - rest) / waited
    elif not waited and length > LONG[0] * shape.length + LONG[1]:
        held = length - shape.length
    else:
        waits, scale = [], length / max(shape.length, 1e-6)
        return lambda x: x * scale if x < shape.length else x - shape.length + length

    def place(x):
        more = sum(min(max(x - a, 0), b - a) for a, b in waits) * (wide - 1)
        return x + more + held

    return place


def spent(shape, length, rounds, owner):
    """Returns {task: {kind: ms}} of a call of this length, made of so many rounds."""
    place = stretched(shape, length / rounds, owner)
    found = collections.defaultdict(collections.Counter)
    for task, kind, start, end in shape.parts:
        found[task][kind] += rounds * max(0.0, place(end) - place(start))
    held = place(0.0)
    if held:
        found[owner]["wait"] += rounds * held
    return found


# --- What is known of a run -------------------------------------------------------


class Task:
    """What one task has told."""

    def __init__(self, name):
        self.name, self.state, self.since = name, "starts", 0.0
        self.slow, self.open, self.step, self.pid = 1, None, None, None
        self.rounds = self.dropped = 0
        self.heard, self.usual = None, 0.0  # end and length of its last call, seconds
        self.calls = collections.deque()  # of the last seconds
        self.cpu = None  # the share of a core that its process takes


class Known:
    """What is known of a run; what the tasks tell goes in, and events come out."""

    def __init__(self, family, tasks, asynchronous=False, stale=False):
        """`tasks` are names, `stale` says whether an update can be stale."""
        self.family, self.asynchronous, self.stale = family, asynchronous, stale
        self.tasks = {name: Task(name) for name in tasks}
        self.workers = sum(name.startswith("worker") for name in tasks)
        self.shapes, self.traced = {}, {}
        # Of each lane, the ms that a round computed when it was traced last.
        self.gradients = collections.defaultdict(lambda: collections.deque(maxlen=3))
        self.traces = self.wrong = 0
        self.updates = self.staleness = self.stalest = 0
        self.steps, self.step = collections.deque(), None  # (time, global step); last
        self.loss = math.nan
        self.cores = None  # (share of their time that all are busy, how many there are)
        self.over = None  # the sentence about a run that has ended

    def state(self, name, state, t, **more):
        """Notes a state of a task; returns the events."""
        task = self.tasks[name]
        if "slow" in more:
            task.slow = more["slow"]
        if state in ("starts", "again", "gone", "ended"):
            task.open, task.slow, task.heard = None, 1, None
            task.calls.clear()
        if state != task.state:
            task.since = t
        task.state = state
        return [{"k": "task", "t": round(t, 3), "w": name, "s": state, **more}]

    def told(self, name, message, begin):
        """Takes a message of a task's recorder; returns the events.

        `begin` is when the run began, seconds since 1970.
        """
        if "pid" in message:
            mine = self.tasks[name]
            first = mine.state == "starts" and mine.pid is None
            mine.pid = message["pid"]
            return self.state(name, "starts" if first else "again", message["t"])
        if "counts" in message:
            return self._rounds(int(name.split()[1]), message, begin)
        if "open" in message:
            self.tasks[name].open = message["open"] - begin
        elif "curve" in message:
            found = message["curve"].items()
            values = {k: round(v, 5) for k, v in found if math.isfinite(v)}
            point = {"t": round(message["t"], 2), "step": message["step"], "v": values}
            return [{"k": "curve", **point}]
        return []

    def _makes_rounds(self, name):
        """Says whether a task makes calls: a ps does not, nor who serves a client."""
        alone = self.family == "client" and not self.asynchronous
        return name == "worker 0" if alone else name.startswith("worker")

    def _rounds(self, worker, call, begin):
        """Takes a call: its rounds are events, and so is its shape if it was traced."""
        t, length = call["b"] - begin, 1000 * (call["e"] - call["b"])
        owner = owner_of(worker, call["group"], self.asynchronous)
        task, caller = self.tasks[owner], self.tasks[f"worker {worker}"]
        caller.open, events = None, []
        made = [row for row in call["counts"] if row[2] != OVER]
        if not made:
            return []
        if task.state != "runs" and task.state != "frozen" or task.step is None:
            step = made[0][0] - 1
            events += self.state(owner, "runs", t, step=step)
        for other in self.tasks.values():
            # They make no rounds, and this one needed them.
            waits = other.state in ("starts", "again") and t >= other.since
            if waits and other.pid and not self._makes_rounds(other.name):
                events += self.state(other.name, "runs", t)
        task.step = made[-1][0]
        # Calls of others at the same time may have come first, and count more.
        same = [o for o in self.tasks.values() if o.heard is not None and o.heard > t]
        self.step = max(task.step, *(o.step for o in same if o.step is not None), 0)
        task.rounds += len(made)
        stale = collections.Counter(row[1] for row in made if row[2] == APPLIED)
        total = sum(k * n for k, n in stale.items())
        self.updates += sum(stale.values())
        self.staleness += total
        self.stalest = max(self.stalest, *stale, 0)
        task.dropped += len(made) - sum(stale.values())
        self.loss = sum(call["losses"][: len(made)]) / len(made)
        self.steps.append((call["e"] - begin, task.step))
        short = [[round(row[3] / 1000, 1), *row[:3]] for row in made]
        one = {"k": "rounds", "t": round(t, 4), "w": owner, "e": round(length, 1)}
        if "operations" in call:
            one["x"] = 1
            events += self._trace(worker, call, begin)
        shape = self.shapes.get(owner)
        lanes = spent(shape, length, len(made), owner) if shape else {}
        if call.get("first"):
            one["f"], lanes = 1, None  # how long a round of it took is not known
        events.append({**one, "n": short})
        task.heard, task.usual = t + length / 1000, length / 1000
        task.calls.append(Call(t, task.heard, len(made), lanes, stale))
        return events

    def _trace(self, worker, call, begin):
        self.traced[worker] = call
        calls = {worker: call}
        if self.family == "peers":
            steps = {row[0] for row in call["counts"]}
            calls = {
                k: c
                for k, c in self.traced.items()
                if steps & {row[0] for row in c["counts"]}
            }
            if len(calls) < self.workers:
                return []
            self.traced = {}
        self.traces += 1
        try:
            found = shapes(calls, self.family, self.workers, self.asynchronous)
        except WrongError:
            self.wrong += 1
            return []
        events = []
        for owner, shape in found.items():
            self.shapes[owner] = shape
            work = collections.Counter()
            for lane, kind, start, end in shape.parts:
                work[lane] += (end - start) * (kind in COMPUTES[:-1])
            for lane, ms in work.items():
                self.gradients[lane].append(ms)
            mine = calls[0 if self.family == "client" else int(owner.split()[1])]
            events.append(
                {
                    "k": "shape",
                    "t": round(mine["b"] - begin, 4),
                    "w": owner,
                    "len": round(shape.length, 2),
                    "lead": shape.lead and round(shape.lead, 2),
                    "p": [_short(part) for part in shape.parts],
                    "bars": [_short(bar) for bar in shape.bars],
                }
            )
        return events

    # --- Numbers ----------------------------------------------------------------

    def numbers(self, t):
        """Returns the event `now`: what is measured over the last seconds.

        They are WINDOW, or more if a call takes longer.
        """
        usual = max(task.usual for task in self.tasks.values())
        since = t - max(WINDOW, LATE + 2 * usual)
        while self.steps and self.steps[0][0] < since:
            self.steps.popleft()
        rate = 0.0
        if self.steps:
            first, most = self.steps[0], max(step for _, step in self.steps)
            seconds = max(*(x for x, _ in self.steps), t - LATE) - first[0]
            if seconds > 0 and self.step >= first[1]:
                rate = (most - first[1]) / seconds
        stale, lanes = collections.Counter(), collections.defaultdict(dict)
        for task in self.tasks.values():
            while task.calls and task.calls[0].end < since:
                task.calls.popleft()
            for call in task.calls:
                stale += call.stale
        self._shares(lanes)
        tasks = {}
        for name, task in self.tasks.items():
            silent = 0.0
            if task.state == "runs" and task.heard is not None:
                silent = t - (task.heard if task.open is None else task.open)
                silent *= silent > LATE + 1.5 * task.usual
            one = {"s": task.state, "since": round(task.since, 1), **lanes[name]}
            if name.startswith("worker"):
                one |= {"rounds": task.rounds, "silent": round(silent, 1)}
            if task.slow > 1:
                one["slow"] = task.slow
            if task.cpu is not None:
                one["cpu"] = round(task.cpu, 3)
            tasks[name] = one
        made, bins = sum(stale.values()), [0] * BINS
        for value, count in stale.items():
            bins[min(value, BINS - 1)] += count
        now = {
            "k": "now",
            "t": round(t, 2),
            "step": self.step,
            "rate": round(rate, 1),
            "updates": self.updates,
            "dropped": sum(task.dropped for task in self.tasks.values()),
            # JSON has no word for the loss of a training that diverges.
            "loss": round(self.loss, 4) if math.isfinite(self.loss) else None,
            "traces": [self.traces, self.wrong],
            "tasks": tasks,
        }
        if self.stale:
            mean = sum(k * n for k, n in stale.items()) / made if made else None
            now["stale"] = {
                "now": mean and round(mean, 2),
                "mean": round(self.staleness / max(1, self.updates), 3),
                "max": self.stalest,
                "bins": bins,
            }
        if self.cores:
            now["cores"] = [round(self.cores[0], 3), self.cores[1]]
        now["say"] = self.over or sentence(now)
        return now

    def _shares(self, lanes):
        """Adds to each lane what was measured in the window: rates, shares, bytes."""
        for owner, task in self.tasks.items():
            if not task.calls:
                continue
            end = max(task.calls[-1].end, task.open or 0.0)
            seconds = max(end - task.calls[0].begin, 1e-3)
            count = sum(call.rounds for call in task.calls)
            mine = lanes[owner]
            mine["rate"] = round(count / seconds, 1)
            made = [call for call in task.calls if call.lanes is not None]
            if made:
                busy = sum(call.end - call.begin for call in made)
                rounds = sum(call.rounds for call in made)
                mine["round"] = round(1000 * busy / rounds, 2)
            shape = self.shapes.get(owner)
            if not shape:
                continue
            sums = collections.defaultdict(collections.Counter)
            known = seconds  # of which it is known what was done
            for call in task.calls:
                if not call.lanes:
                    known -= call.end - call.begin
                for lane, kinds in (call.lanes or {}).items():
                    sums[lane].update(kinds)
            for lane, kinds in sums.items():
                here = lanes[lane]
                shares = {
                    "compute": sum(kinds[kind] for kind in COMPUTES),
                    "send": sum(kinds[kind] for kind in SENDS),
                    "wait": kinds["wait"] + kinds["lock"],
                    "lock": kinds["lock"],
                }
                for name, ms in shares.items():
                    if lane.startswith("worker"):
                        share = min(1.0, ms / 1000 / max(known, 1e-3))
                        here[name] = round(here.get(name, 0) + share, 3)
                if lane.startswith("worker"):
                    work = statistics.median_high(self.gradients[lane])
                    here["gradient"] = round(work, 2)
                    here.setdefault("round", mine["round"])
            for (lane, way), size in shape.bytes.items():
                here = lanes[lane]
                here[way] = round(here.get(way, 0) + size * count / seconds)


def _short(bar):
    task, kind, start, end, *more = bar
    return [task, kind, round(start, 2), round(end, 2), *more]


# --- The sentence -----------------------------------------------------------------


def ms(value):
    """Returns milliseconds as a person reads them."""
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def percent(share):
    """Returns a share as per cent."""
    return f"{100 * share:.0f} %"


def listed(names):
    """Returns names as a list in a sentence."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def sentence(now):
    """Returns what limits the run now, of the numbers in an event `now` alone."""
    tasks = now["tasks"]
    workers = {k: v for k, v in tasks.items() if k.startswith("worker")}
    if now["step"] is None and not any(v["rounds"] for v in workers.values()):
        return "No round has been made yet: the tasks start, and load TensorFlow."
    waits = {k: v["silent"] for k, v in workers.items() if v["silent"]}
    waits = {k: v for k, v in waits.items() if tasks[k]["s"] == "runs"}
    held = ""
    if waits:
        verb = "have" if len(waits) > 1 else "has"
        held = (
            f"{listed(waits)} {verb} reported no round for {max(waits.values()):.0f} s."
        )
    stopped = [k for k, v in tasks.items() if v["s"] in STATES]
    if stopped:
        first = tasks[stopped[0]]["s"]
        same = [k for k in stopped if tasks[k]["s"] == first]
        text = f"{listed(same)} {STATES[first]}"
        if len(same) > 1:
            plural = {"is": "are", "has": "have", "starts": "start"}
            text = " ".join(plural.get(word, word) for word in text.split())
        if held:
            return f"{text}: {held}"
        # Before that nobody can know: a round that waits is not back yet.
        long = now["t"] - max(tasks[k]["since"] for k in same) > WINDOW
        if long and now["rate"] and len(stopped) < len(tasks):
            it = "them" if len(same) > 1 else "it"
            rate = f"the others make {number(now['rate'])} updates a second"
            return f"{text}, and nobody waits for {it}: {rate}."
        return f"{text}."
    if held:
        return held
    known = {k: v for k, v in workers.items() if "gradient" in v}
    unknown = [k for k, v in workers.items() if v["s"] == "runs" and k not in known]
    if not known or any(workers[k]["rounds"] for k in unknown):
        return f"{number(now['rate'])} updates a second; who waits is not known yet."
    return _of_waits(known) or _of_machines(now, tasks) or _of_rounds(now, known)


def number(value):
    """Returns a number with three digits that count."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _share(worker):
    """Returns the share of its time that a worker waits for others, not for a lock."""
    return worker["wait"] - worker["lock"]


def _waited(worker):
    return _share(worker) * worker["round"]


def _of_waits(workers):
    """Returns the sentence about who waits for whom, "" if that is no tenth of it."""
    most = max(workers.values(), key=_share)
    if _share(most) < SHARE:
        who = max(workers, key=lambda k: workers[k]["lock"])
        one = workers[who]
        if one["lock"] < SHARE:
            return ""
        waited, length = ms(one["lock"] * one["round"]), ms(one["round"])
        return f"{who} waits {waited} of each round of {length} for a lock."
    slow = max(workers, key=lambda k: workers[k]["gradient"])
    others = [v for k, v in workers.items() if k != slow]
    if others:
        usual = sorted(v["gradient"] for v in others)[len(others) // 2]
        waited = sum(map(_waited, others)) / len(others)
        slower = workers[slow]["gradient"] > SLOWER * usual
        if slower and _share(workers[slow]) < min(map(_share, others)):
            theirs, they = "the others'", "the others wait"
            if len(others) == 1:
                theirs, they = "the other's", "the other waits"
            return (
                f"{slow}'s gradients take {ms(workers[slow]['gradient'])}, {theirs} "
                f"{ms(usual)}: {they} {ms(waited)} of each round."
            )
    share = percent(_share(most))
    who = next(k for k, v in workers.items() if v is most)
    length = ms(most["round"])
    return f"{who} waits {ms(_waited(most))} of each round of {length}, {share}."


def _of_machines(now, tasks):
    """Returns the sentence about a ps, or this machine, that has no time left."""
    for name, task in tasks.items():
        if name.startswith("ps") and task.get("cpu", 0) >= BUSY:
            return f"{name} is busy {percent(min(1, task['cpu']))} of the time."
    share, count = now.get("cores") or (0, 1)
    mine = sum(task.get("cpu", 0) for task in tasks.values()) / count
    if share >= BUSY and mine >= OWN:
        cores = f"The {count} cores of this machine are" if count > 1 else "The core is"
        return (
            f"{cores} busy {percent(share)} of the time, {percent(mine)} for this run."
        )
    return ""


def _of_rounds(now, workers):
    """Returns the sentence about a run in which nobody waits."""
    shares = {
        name: sum(v[name] for v in workers.values()) / len(workers)
        for name in ("compute", "send", "wait")
    }
    length = ms(sorted(v["round"] for v in workers.values())[len(workers) // 2])
    works, sends = percent(shares["compute"]), percent(shares["send"])
    text = f"Nobody waits: gradients take {works} of a round of {length}."
    if shares["send"] > shares["compute"]:
        text = f"Nobody waits: messages take {sends} of a round of {length}, "
        text += f"gradients {works}."
    stale = now.get("stale")
    if stale and stale["now"] is not None:
        others = sum(name.startswith("worker") for name in now["tasks"]) - 1
        text += f" Staleness {stale['now']:.1f} is N − 1."
        if abs(stale["now"] - others) >= 0.05:  # as it is written
            text = text.replace(" is N − 1.", f"; N − 1 is {others}.")
    return text


def said(text):
    """Returns up to three sentences of a page's first paragraphs: who waits.

    From when to use the scheme on, only those that say it.
    """
    intro = text.split("\n## ")[0].split("\n", 1)[-1]
    intro = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", intro)
    path = "<!-- path:begin.*path:end -->"  # the pages before and after
    intro = re.sub(rf"{path}|<!--.*?-->|\*|`|\$", "", intro, flags=re.S)
    found = re.split(r"(?<=[.!?])\s+", " ".join(intro.split()))
    found = [one for one in found if "glossary" not in one and "\\" not in one]
    use = [*found, "When to use it."].index("When to use it.")
    waits = [one for one in found if re.search(r"\bwait", one)]
    about = [
        one
        for n, one in enumerate(found)
        if one in waits or n < use and "worker" in one
    ]
    chosen = about[:3]
    if waits and not set(waits) & set(chosen):
        chosen[2:] = waits[:1]
    return chosen
