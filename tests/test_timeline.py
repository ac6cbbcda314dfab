"""Timelines: bars, counters and pictures, on traces made by hand; and one real run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest
import timeline
import timeline_bars
import timeline_picture

REPO = Path(__file__).resolve().parents[1]
ROUND = 40_000  # microseconds, of a worker that is not slow
EDGE = "edge_7_round_0/{}/x"


def async_call(worker: int, start: float, length: float, counts: list) -> dict:
    """Returns a traced call of one round of HogWild: 3/4 of it are the gradient."""
    me, ps, g, end = f"worker {worker}", "ps 0", "round_0/gradient", start + length
    computed = start + 3 * length / 4
    names = [
        (ps, "round_0/pull/Read_1", "ReadVariableOp", "global_step)", start, 1),
        (ps, "round_0/pull/Read", "ReadVariableOp", "center)", start, 1),
        (me, f"{g}/PyFunc", "PyFunc", "x", start + 1000, computed - start - 2000),
        (me, f"{g}/concat", "ConcatV2", "x", computed - 1000, 1000),
        (ps, "round_0/push/MutexLock", "MutexLock", "MutexV2)", end - 2000, 5),
        (ps, "round_0/push/Add", "AssignAddVariableOp", "global_step", end - 1900, 1),
        (ps, "round_0/update/Sub", "AssignSubVariableOp", "center", end - 1000, 5),
    ]
    sent = [ps, me, EDGE.format("pull"), 19240, start + 1, start + 900]
    back = [me, ps, EDGE.format("gradient"), 19240, computed, end - 2100]
    return {
        "began": start - 100,
        "ended": end + 100,
        "counts": [counts],
        "operations": [[*o[:5], o[4] + o[5]] for o in names],
        "messages": [sent, back],
    }


def hogwild() -> list[dict]:
    """Returns a recording of two workers, of which the second is half as fast."""
    recording, count = [{"worker": k, "calls": []} for k in range(2)], 0
    ends = [(r + 1) * ROUND for r in range(40)]
    rounds = sorted(
        [(end, 0, ROUND) for end in ends]
        + [(end + 7000, 1, 2 * ROUND) for end in ends[1::2]]
    )
    for end, worker, length in rounds:
        count += 1
        begin = end - length
        # Its own update is the last before `end`; others are between.
        stale = sum(begin < e - 1900 < end - 1900 for e, k, _ in rounds if k != worker)
        call = async_call(worker, begin, length, [count, stale, 1])
        recording[worker]["calls"].append(call)
    return recording


def ring_call(worker: int, start: float, length: float, counts: list) -> dict:
    """Returns a traced call of one round of a ring of two, an all-reduce of 1 ms."""
    me, g = f"worker {worker}", "round_0/gradient"
    came, end = start + length, start + 2 * ROUND
    names = [
        (me, f"{g}/PyFunc", "PyFunc", "x", start + 100, length - 200),
        (me, f"{g}/concat", "ConcatV2", "x", came - 100, 90),
        (me, "round_0/all_reduce/C", "CollectiveReduce", "x", came, end - came + 1000),
        (
            me,
            "round_0/all_reduce/A",
            "AssignAddVariableOp",
            "global_step",
            end + 1001,
            1,
        ),
        (me, "round_0/update/A", "AssignSubVariableOp", "center", end + 1010, 5),
    ]
    ends = [f"worker {1 - worker}", me, "1:1:0:0:0", 9620]
    return {
        "began": start - 10,
        "ended": end + 1500,
        "counts": [counts],
        "operations": [[*o[:5], o[4] + o[5]] for o in names],
        "messages": [[*ends, end + 100 * n, end + 100 * n + 50] for n in (1, 2)],
    }


def ring() -> list[dict]:
    """Returns a recording of a ring of two workers, the second half as fast."""
    starts = [n * (2 * ROUND + 2000) for n in range(12)]
    return [
        {
            "worker": worker,
            "calls": [
                ring_call(worker, start, (worker + 1) * ROUND, [n + 5, 0, 1])
                for n, start in enumerate(starts)
            ],
        }
        for worker in range(2)
    ]


def parts_call(worker: int, start: float, counts: list) -> dict:
    """Returns a traced call of one round of two workers that hold parts, of 50 ms.

    All gather, compute for 30 ms (worker 1) or 10 ms, gather again, scatter, update.
    """
    me, g, begin = f"worker {worker}", "round_0/gradient", start + 2000
    computed = begin + (10_000, 30_000)[worker]
    names = [
        (f"{g}/CollectiveGather", "CollectiveGather", "w", start, 2000),
        (f"{g}/matmul", "MatMul", "x", begin, computed - begin),
        (f"{g}/CollectiveGather_1", "CollectiveGather", "w", computed, 0),
        (f"{g}/CollectiveAllToAllV2", "CollectiveAllToAllV2", "g", start + 33_000, 0),
        (f"{g}/concat", "ConcatV2", "x", start + 36_001, 1),
        ("round_0/update/Adam", "ResourceApplyAdam", "center", start + 36_010, 20),
        ("round_0/all_gather/A", "AssignAddVariableOp", "global_step", start + 36_040),
    ]
    operations = [[me, *o[:4], o[3] + (*o, 1)[4]] for o in names]
    operations[2][5], operations[3][5] = start + 34_000, start + 36_000
    ends = [f"worker {1 - worker}", me]
    sent = [("1:1:0:0:0:0:1", 1000), ("1:2:0:0:0:0:1", 33_500), ("1:3:0:001", 35_000)]
    return {
        "began": start - 10,
        "ended": start + 50_000,
        "counts": [counts],
        "operations": operations,
        "messages": [
            [*ends, name, 99, start + at, start + at + 50] for name, at in sent
        ],
    }


def in_parts() -> list[dict]:
    """Returns a recording of two workers of Sharded-Data-Parallel."""
    calls = [
        [parts_call(k, n * 60_000, [n + 5, 0, 1]) for n in range(12)] for k in (0, 1)
    ]
    return [{"worker": k, "calls": calls[k]} for k in (0, 1)]


def drawn(found: timeline_bars.Timeline) -> str:
    """Returns the picture of a timeline."""
    panel = timeline_picture.Panel("HogWild", [], "nobody waits", found, 100.0)
    return timeline_picture.draw([panel], timeline.SHOWN)


@pytest.mark.quick
def test_bars_are_what_the_operations_of_a_round_say() -> None:
    found = timeline_bars.timeline(hogwild(), "ps", 2)
    assert found.tasks == ["ps 0", "worker 0", "worker 1"]
    one = next(r for r in found.rounds if r.task == "worker 1")
    mine = {b.kind: b for b in found.bars if b.round is one}
    assert {kind: bar.task for kind, bar in mine.items()} == {
        "gradient": "worker 1",
        "pull": "worker 1",
        "push": "worker 1",
        "update": "ps 0",
    }
    begin = mine["pull"].start - 0.001
    times = {
        k: (round(b.start - begin, 1), round(b.end - begin, 1)) for k, b in mine.items()
    }
    assert times["gradient"] == (1, 60) and times["push"] == (60, 77.9)
    assert times["pull"] == (0, 0.9) and times["update"] == (78, 79)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (1, 9, "has staleness 9, and"),
        (0, 1000, "updates 1 to"),
        (2, 0, "are 58 in the trace"),
    ],
)
def test_a_counter_that_is_not_what_was_traced_is_refused(
    place: int, value: int, sentence: str
) -> None:
    recording = hogwild()
    recording[0]["calls"][20]["counts"][0][place] = value
    with pytest.raises(timeline_bars.WrongError, match=sentence):
        timeline_bars.timeline(recording, "ps", 2)


@pytest.mark.quick
def test_a_ring_waits_until_the_last_has_come() -> None:
    found = timeline_bars.timeline(ring(), "peers", 2)
    waits = [b for b in found.bars if b.kind == "wait"]
    assert {b.task for b in waits} == {"worker 0"}
    assert {round(b.end - b.start) for b in waits} == {ROUND / 1000}
    reduced = [b for b in found.bars if b.kind == "all-reduce"]
    assert {round(b.end - b.start, 1) for b in reduced} == {1.0}
    assert len(found.messages) == 2 * len(found.rounds)


@pytest.mark.quick
def test_who_computes_beside_an_all_reduce_waits_only_afterwards() -> None:
    """Worker 0 computes for 10 ms more, of the 40 in which worker 1 has not come."""
    recording = ring()
    for call in recording[0]["calls"]:
        came = call["operations"][2][4]
        for kind, start, length in (("PyFunc", 0, 9_000), ("concat", 9_000, 1_000)):
            name, at = f"round_0/overlap/{kind}", came + start
            more = ["worker 0", name, kind, "x", at, at + length]
            call["operations"].append(more)
    found = timeline_bars.timeline(recording, "peers", 2)
    waits = [b for b in found.bars if b.kind == "wait"]
    assert {round(b.end - b.start) for b in waits} == {ROUND / 1000 - 10}
    one = waits[3].round
    mine = [b for b in found.bars if b.round is one and b.kind == "gradient"]
    assert [round(b.end - b.start) for b in mine] == [40, 10]
    assert mine[-1].end == waits[3].start
    text = drawn(found)
    halves = re.findall(r'height="17" fill="#cc79a7"', text)
    whole = re.findall(r'height="34" fill="#cc79a7"', text)
    assert len(halves) == len(whole) > 3  # worker 1 has nothing to compute meanwhile


@pytest.mark.quick
def test_with_a_buffer_staleness_counts_full_ones() -> None:
    recording = hogwild()
    for call in (call for worker in recording for call in worker["calls"]):
        step, stale, _ = call["counts"][0]
        call["counts"][0][1] = (step - 1) // 2 - (step - 1 - stale) // 2
    timeline_bars.timeline(recording, "ps", 2, buffer=2)
    with pytest.raises(timeline_bars.WrongError, match="has staleness"):
        timeline_bars.timeline(recording, "ps", 2)


@pytest.mark.quick
def test_rows_go_to_a_ps_beside_a_ring() -> None:
    """Worker 1 pushes when worker 0 has: its rows are one push old."""
    recording = ring()
    for k, call in [(w["worker"], call) for w in recording for call in w["calls"]]:
        start, came = (call["operations"][n][4] for n in (0, 2))
        call["counts"][0][1] = k
        names = [
            ("pull/Read", "ReadVariableOp", "arrived)", start),
            ("push/MutexLock", "MutexLock", "MutexV2)", came + 900),
            ("push/Add", "AssignAddVariableOp", "arrived", came + 1900),
        ]
        for name, kind, inputs, at in names:
            one = ["ps 0", f"round_0/{name}", kind, inputs, at, at + 5]
            call["operations"].append(one)
        ends = {"pull": ["ps 0", f"worker {k}"], "push": [f"worker {k}", "ps 0"]}
        for kind, at in (("pull", start), ("push", came)):
            one = [*ends[kind], EDGE.format(kind), 3000, at, at + 500]
            call["messages"].append(one)
    found = timeline_bars.timeline(recording, "hybrid", 2)
    assert len(found.messages) == 4 * len(found.rounds)
    made = [b for b in found.bars if b.task == "ps 0"]
    assert {round(b.end - b.start) for b in made} == {1}
    assert 'height="6" fill="#0072b2"' in drawn(found)
    recording[1]["calls"][4]["counts"][0][1] = 0
    with pytest.raises(timeline_bars.WrongError, match="has staleness 0, and 1"):
        timeline_bars.timeline(recording, "hybrid", 2)


@pytest.mark.quick
def test_a_ring_that_is_not_one_is_refused() -> None:
    early, few = ring(), ring()
    early[0]["calls"][3]["operations"][2][5] -= 2 * ROUND / 2
    with pytest.raises(timeline_bars.WrongError, match="before all came"):
        timeline_bars.timeline(early, "peers", 2)
    for n in (3, 8):  # one in every half second
        del few[1]["calls"][n]["messages"][0]
    found = timeline_bars.timeline(few, "peers", 2)
    assert len(timeline_bars.lost(found.rounds)) == 2
    with pytest.raises(timeline_bars.WrongError, match="has lost messages"):
        timeline.window(found, timeline.SHOWN)


@pytest.mark.quick
def test_parts_are_gathered_before_they_are_used_and_then_scattered() -> None:
    found = timeline_bars.timeline(in_parts(), "peers", 2)
    one = next(r for r in found.rounds if r.task == "worker 0")
    begin = one.operations[0].start
    mine = sorted(
        (bar.kind, round(bar.start - begin), round(bar.end - begin))
        for bar in found.bars
        if bar.round is one and bar.kind != "between"
    )
    assert mine == [
        ("gather", 0, 2),
        ("gather", 32, 34),
        ("gradient", 2, 12),
        ("reduce-scatter", 33, 36),
        ("update", 36, 36),
        ("wait", 12, 32),
    ]
    kinds = [message.kind for message in found.messages]
    assert kinds.count("gather") == 2 * len(found.rounds)
    assert kinds.count("reduce-scatter") == len(found.rounds)
    assert not timeline_bars.lost(found.rounds)
    text = timeline_picture.draw(
        [timeline_picture.Panel("S", [], "", found, timeline.window(found, 10.0))], 10.0
    )
    assert ">gather</text>" in text and ">reduce-scatter</text>" in text


@pytest.mark.quick
def test_parts_that_come_too_early_or_not_at_all_are_noticed() -> None:
    early, few = in_parts(), in_parts()
    early[0]["calls"][3]["operations"][2][5] -= 10_000
    with pytest.raises(timeline_bars.WrongError, match="before all"):
        timeline_bars.timeline(early, "peers", 2)
    del few[1]["calls"][3]["messages"][2]
    found = timeline_bars.timeline(few, "peers", 2)
    assert len(timeline_bars.lost(found.rounds)) == 1


@pytest.mark.quick
def test_the_picture_can_be_read_and_is_small() -> None:
    text = drawn(timeline_bars.timeline(hogwild(), "ps", 2))
    assert len(text) < 150_000
    root = tree.fromstring(text)
    assert root.get("width") == "860"
    sizes = [int(n) for n in re.findall(r'(?:font-size="|font:)(\d+)', text)]
    assert min(sizes) >= 12
    words = {
        "".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"ps 0", "worker 1", "gradient", "pull", "push", "update", "500 ms"} <= words
    assert any("staleness" in word for word in words)
    colours = [fill for fill, _ in timeline_picture.KINDS.values()]
    assert 'fill="#fff"' in text and len(colours) > 8


@pytest.mark.quick
def test_perfetto_gets_every_bar_and_both_ends_of_every_message() -> None:
    found = timeline_bars.timeline(hogwild(), "ps", 2)
    events = timeline.events(found)["traceEvents"]
    phases = [event["ph"] for event in events]
    assert phases.count("X") == len(found.bars)
    assert phases.count("s") == phases.count("f") == len(found.messages)
    assert phases.count("M") == 2 * len(found.tasks)
    json.dumps(events)


@pytest.mark.quick
def test_every_picture_of_a_page_is_what_the_page_says() -> None:
    found = timeline.pictures()
    assert len(found) >= 20
    for folder, file, flags, told, shown in found:
        text = (REPO / folder / file).read_text()
        assert " ".join([folder, *flags.split()]) in text, folder
        assert told in text and f"{shown:.0f} ms" in text, folder
        assert len(text) < 150_000 and text.startswith("<svg")
    drawn = {f"{folder}/{file}" for folder, file, *_ in found}
    there = {f"{p.parent.name}/{p.name}" for p in REPO.glob("*/timeline*.svg")}
    there.remove("docs/timelines.svg")
    assert drawn == there


@pytest.mark.quick
def test_a_scheme_that_is_not_known_is_one_sentence() -> None:
    command = [sys.executable, REPO / "tools" / "timeline.py", "Horovod"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (
        done.returncode == 2 and "Horovod: not one of Distributed-Setup" in done.stderr
    )


@pytest.mark.long
def test_a_real_run_is_recorded_and_drawn(tmp_path: Path) -> None:
    picture, trace = tmp_path / "a.svg", tmp_path / "a.json"
    command = [sys.executable, REPO / "tools" / "timeline.py", "Gradient-Compression"]
    command += ["--out", picture, "--trace", trace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{picture}\n{trace}\n"
    events = json.loads(trace.read_text())["traceEvents"]
    tasks = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert tasks == {"ps 0", "worker 0", "worker 1", "worker 2"}
    lengths = [e["dur"] for e in events if e["name"] == "gradient"]
    assert min(lengths) > 29_000
    # Nobody holds the lock of the counters while a gradient is computed.
    waits = [e for e in events if e["name"] == "wait" and e["dur"] > 10_000]
    assert len(waits) < len(lengths) / 4, waits[:3]
    assert {e["args"]["staleness"] for e in events if e["ph"] == "X"} >= {1, 2}
    assert tree.fromstring(picture.read_text()).get("width") == "860"
