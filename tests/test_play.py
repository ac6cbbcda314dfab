"""docs/play: its engine and rules against the guide's own, its words, and the page.

What needs no browser runs under node, once for each test, with JSON in and out. The
rest opens the page from its file in Chromium.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import launch
import numpy as np
import pytest
import registry
import render
import rules
import timeline_picture
from browser import if_browser, lead
from test_pages import anchors
from tree import REPO, run

sys.path.insert(0, str(REPO / "Basics-Tutorial"))
cost = importlib.import_module("cost")

PLAY = REPO / "docs" / "play"
NODE = shutil.which("node")
if_node = pytest.mark.skipif(
    not NODE and not launch.THOROUGH, reason="node is missing: install Node.js 18"
)


def node(script: str, given: object = None) -> object:
    """Returns what a script makes of `given`; it finds cost, rules, words and play."""
    names = ("cost", "rules", "words", "play")
    head = "".join(f"const {n} = require('{PLAY}/{n}.js');" for n in names)
    head += "const given = JSON.parse(require('fs').readFileSync(0));"
    tail = f"process.stdout.write(JSON.stringify((() => {{ {script} }})()));"
    done = subprocess.run(
        [NODE, "-e", head + tail],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- The engine equals cost.py --------------------------------------------------------


class Random:
    """Those of cost.js: mulberry32, Box and Muller 1958, Marsaglia and Tsang 2000."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> float:
        self.state = (self.state + 0x6D2B79F5) % 2**32
        t = self.state
        t = (t ^ t >> 15) * (t | 1) % 2**32
        t ^= (t + (t ^ t >> 7) * (t | 61)) % 2**32
        return ((t ^ t >> 14) + 0.5) / 2**32

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.next()

    def normal(self) -> float:
        radius = math.sqrt(-2 * math.log(self.next()))
        return radius * math.cos(2 * math.pi * self.next())

    def gamma(self, shape: float, scale: float) -> float:
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self.normal()
            v = (1 + c * x) * (1 + c * x) * (1 + c * x)
            u = self.next()
            if v > 0 and math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v * scale


def drawn(number: int) -> cost.Setup:
    """Returns a Setup: every scheme in turn, all drawn that the page has."""
    schemes = cost.SCHEMES + cost.MORE
    draw = random.Random(number)
    n = draw.randint(1, 7)
    costs = dict(cores=draw.choice((None, None, 2)), turn=draw.choice((1.0, 1.2)))
    return cost.Setup(
        schemes[number % len(schemes)],
        workers=n,
        ps=draw.randint(1, 3),
        parameters=draw.choice((1000, 4810, 100_000, 400_000)),
        gradient=draw.choice((0.0, 0.01, 0.05)),
        spread=draw.choice((0.0, 0.5, 1.0)),
        window=draw.randint(1, 6),
        bandwidth=draw.choice((1e8, 1e9)),
        latency=draw.choice((0.0, 0.005, 0.05)),
        replicas=draw.choice((None, draw.randint(1, n))),
        staleness=draw.randint(0, 3),
        keep=draw.choice((0.01, 0.3)),
        quorum=draw.randint(1, n),
        fragments=draw.choice((1, 2, 4)),
        costs=cost.Costs(**costs),
        slow=tuple(draw.choice((1.0, 1.0, 2.5)) for _ in range(n)),
        near=draw.randint(0, n - 1),
        kills=draw.choice(((), ((draw.randrange(n), 0.4, draw.choice((0.2, 0.7))),))),
    )


ENGINE = """
return given.map(({setup, seed, alone, seconds}) => {
  const own = new cost.Setup(setup);
  const one = new cost.Simulation(own, new cost.Random(seed), null, alone);
  one.run(seconds);
  return {
    bars: one.bars.map((bar) => [bar.worker, bar.kind, bar.start, bar.end]),
    pushes: one.pushes.map((push) => [push.time, push.worker, push.stale]),
    opened: one.opened,
    answer: one.answer(seconds / 5, seconds),
  };
});
"""


def plain(setup: cost.Setup) -> dict:
    """Returns a Setup as JSON can have it, without what is infinite."""
    found = dataclasses.asdict(setup)
    found["costs"] = {k: v for k, v in found["costs"].items() if v != math.inf}
    return found


@if_node
@pytest.mark.quick
def test_the_engine_has_the_events_of_cost_py() -> None:
    setups = [drawn(number) for number in range(100)]
    assert {one.scheme for one in setups} == {*cost.SCHEMES, *cost.MORE}
    given = []
    for seed, setup in enumerate(setups):
        alone = setup.workers / cost.formula(setup).rounds
        seconds = max(1.0, 5 * alone)
        one = dict(setup=plain(setup), seed=seed, alone=alone, seconds=seconds)
        given.append(one)
    events = 0
    for one, setup, found in zip(given, setups, node(ENGINE, given), strict=True):
        ours = cost.Simulation(setup, Random(one["seed"]))
        ours.run(one["seconds"])
        answer = ours.answer(one["seconds"] / 5, one["seconds"])
        for name in ("bars", "pushes", "opened"):
            mine, theirs = getattr(ours, name), found[name]
            assert len(mine) == len(theirs), (setup, name)
            if name == "bars":
                assert [one[:2] for one in mine] == [tuple(one[:2]) for one in theirs]
                mine, theirs = ([one[2:] for one in two] for two in (mine, theirs))
            assert np.allclose(mine, theirs, rtol=1e-9, atol=1e-9), (setup, name)
            events += len(mine)
        for name in ("updates", "examples", "busiest", "staleness", "most"):
            theirs = found["answer"][name]
            assert getattr(answer, name) == pytest.approx(theirs), (setup, name)
    assert events > 10_000


@pytest.mark.quick
@pytest.mark.parametrize("scheme", ["HogWild", "Synchronous-SGD", "Local-SGD"])
def test_a_killed_worker_pushes_nothing_until_it_is_back(scheme: str) -> None:
    some = cost.Setup(scheme, kills=((1, 3.0, 4.0),), window=2)
    simulation = cost.Simulation(some, 0)
    simulation.run(12.0)
    mine = [when for when, worker, _ in simulation.pushes if worker == 1]
    others = [when for when, worker, _ in simulation.pushes if worker != 1]
    away = [when for when in others if 3.3 < when < 7.0]
    assert not [when for when in mine if 3.0 < when < 7.0]
    assert [when for when in mine if when > 7.0]
    # Those who need its gradient wait for it, the others go on.
    assert bool(away) == (scheme != "Synchronous-SGD")


@pytest.mark.quick
def test_two_sites_and_gossip() -> None:
    """Workers near the ps do not wait for the distance; averages hide behind work."""
    free = cost.Costs(
        **{k: 0.0 for k in ("worker", "ps", "local", "step", "call", "look")}
    )
    some = cost.Setup("HogWild", latency=0.05, near=2, costs=free, parameters=100)
    run, _ = cost.simulate(some, 20.0)
    assert run.updates == pytest.approx(2 / 0.05 + 2 / 0.15, rel=0.03)
    some = cost.Setup("Gossip-SGD", bandwidth=1e8, parameters=50_000, costs=free)
    run, _ = cost.simulate(some, 20.0)  # an average takes 32 ms, a gradient 50
    assert run.updates == pytest.approx(4 / 0.05, rel=0.05)


# --- The rules equal tests/rules.py ---------------------------------------------------


RULES = """
return given.map(({scheme, options, w, streams, schedule, n}) => {
  const at = streams.map(() => 0);
  const gradient = (k, x) => {
    const c = streams[k][at[k]++ % streams[k].length];
    return x.map((value, i) => value - c[i]);
  };
  const rule = rules.rule(scheme, options, n, w, gradient), trace = [];
  const seen = [], everybody = cost.range(n);
  let count = 0;
  for (const [verb, k, j] of schedule) {
    if (verb === "pull") { rule.pull(k); seen[k] = count; continue; }
    if (verb === "turn") {
      rule.pull(k);
      if (j[0]) rule.push(k, 0);
      if (j[1]) rule.update();
    }
    if (verb === "round") rule.round(everybody);
    if (verb === "push" && j !== null && j !== undefined) rule.average(k, j);
    if (verb === "push") rule.push(k, count++ - seen[k]);
    if (verb === "update") {
      everybody.forEach((k) => rule.pull(k));
      everybody.forEach((k) => rule.push(k, 0));
      rule.update();
    }
    trace.push(scheme === "Gossip-SGD" ? [].concat(...rule.x) : rule.center());
  }
  return trace;
});
"""


def in_pairs(draw: random.Random, n: int, pushes: int) -> list:
    """Returns a schedule of pulls and pushes, in any order that can be."""
    schedule, pulled = [], set()
    while sum(verb == "push" for verb, *_ in schedule) < pushes:
        k = draw.randrange(n)
        schedule.append(("push" if k in pulled else "pull", k))
        pulled ^= {k}
    return schedule


def in_turns(draw: random.Random, n: int, rounds: int, quorum: int, pieces: int):
    """Returns rounds of Decoupled-DiLoCo: who pulls, whether it answers, and merges."""
    schedule, merges, answered, had, last = [], 0, set(), [-pieces] * n, [-1] * n
    for _ in range(rounds):
        k = draw.randrange(n)
        new, had[k] = merges - had[k], merges
        answers = new == 0 or (new < pieces and last[k] == merges - 1)
        if answers:
            last[k], answered = merges, answered | {k}
        due = len(answered) >= quorum
        schedule.append(("turn", k, (answers, due)))
        if due:
            merges, answered = merges + 1, set()
    assert 10 < merges < rounds / quorum
    return schedule


def references() -> dict:
    """Returns, by scheme, options for JavaScript, a kind of schedule, and the rule."""
    eta, T = 0.1, 3
    last = functools.partial(map, lambda pair: pair[1])

    def of(rule, *more):
        return lambda s, b, w: list(last(rule(s, b, w, *more)))

    def all_of(rule, *more):
        return lambda s, b, w: rule(b, w, len(s), *more)

    def elastic(s, b, w):
        return list(last(rules.elastic(s, b, w, T, 0.3, 0.9 / len(b))[0]))

    def compressed(s, b, w):
        return list(
            last(rules.compressed(s, b, w, eta, lambda k, p: rules.top(p, 2))[0])
        )

    def diloco(s, b, w):
        inner = [rules.adamw(0.01, 0.1) for _ in b]
        return rules.diloco(b, w, len(s), T, inner, 0.7, 0.9)

    def async_diloco(s, b, w):
        n, inner = len(b), [rules.adamw(0.01, 0.1) for _ in b]
        return list(last(rules.async_diloco(s, b, w, [T] * n, inner, 0.7, 0.9, n)))

    def decoupled(s, b, w):
        n, inner = len(b), [rules.adamw(0.01, 0.1) for _ in b]
        more = 2, 2, T, 0.0, rules.radial_directional  # K, F, o, α
        turns = [k for _, k, _ in s]
        return list(
            rules.decoupled(turns, b, w, [T] * n, [1] * n, inner, 0.7, 0.9, *more)
        )

    def gossip(s, b, w):
        return [np.concatenate(x) for _, x in rules.gossip(s, b, [w] * len(b), eta)]

    window = dict(rate=eta, window=T)
    return {
        "HogWild": (dict(rate=eta), "pairs", of(rules.hogwild, eta)),
        "Stale-Synchronous-Parallel": (dict(rate=eta), "pairs", of(rules.hogwild, eta)),
        "Dynamic-SGD": (dict(rate=eta), "pairs", of(rules.dynamic_sgd, eta)),
        "DOWNPOUR-Easy": (window, "pairs", of(rules.downpour_easy, T, eta, 0.05)),
        "AGN": (window, "pairs", of(rules.agn, T, eta)),
        "AEASGD": (dict(rate=0.3, window=T), "pairs", elastic),
        "Gradient-Compression": (dict(rate=eta, keep=0.4), "pairs", compressed),
        "Synchronous-SGD": (
            dict(rate=eta),
            "update",
            all_of(rules.synchronous_sgd, eta),
        ),
        "Ring-All-Reduce": (
            dict(rate=eta),
            "round",
            all_of(rules.synchronous_sgd, eta),
        ),
        "Local-SGD": (window, "round", all_of(rules.local_sgd, T, eta)),
        "DiLoCo": (dict(rate=0.01, window=T), "round", diloco),
        "Async-DiLoCo": (dict(rate=0.01, window=T), "pairs", async_diloco),
        "Decoupled-DiLoCo": (
            dict(rate=0.01, window=2 * T, fragments=2),
            "turns",
            decoupled,
        ),
        "Gossip-SGD": (dict(rate=eta), "gossip", gossip),
    }


@if_node
@pytest.mark.quick
def test_the_rules_are_those_of_the_papers_push_by_push() -> None:
    known, given, wanted = references(), [], []
    assert {*known} == {*cost.SCHEMES, *cost.MORE}
    for number, (scheme, (options, kind, rule)) in enumerate(known.items()):
        draw, numbers = random.Random(number), np.random.default_rng(number)
        n = 4
        w, streams = numbers.normal(size=5), numbers.normal(size=(n, 7, 5))
        if kind in ("update", "round"):
            schedule = [(kind, 0)] * 12
        elif kind == "turns":
            schedule = in_turns(draw, n, 100, 2, 2)
        else:
            schedule = in_pairs(draw, n, 40)
        if kind == "gossip":
            schedule = [
                (verb, k, draw.choice((None, (k + 1) % n)) if verb == "push" else None)
                for verb, k in schedule
            ]
        wanted.append(rule(schedule, rules.streams(*streams), w))
        one = dict(scheme=scheme, options=options, schedule=schedule, n=n)
        given.append(one | dict(w=w.tolist(), streams=streams.tolist()))
    for one, mine, theirs in zip(given, wanted, node(RULES, given), strict=True):
        assert len(mine) == len(theirs) >= 12
        np.testing.assert_allclose(theirs, mine, rtol=1e-9, err_msg=one["scheme"])


# --- What the page says ---------------------------------------------------------------


# The rows of the tables of benchmarks/, where they are not the names of two schemes.
ROWS = {"come-and-go": ("fewer and fewer", "four"), "rate-too-high": ("1", "8")}


def section(page: str, anchor: str) -> str:
    """Returns a page's text from a heading to the next one of its level, or above."""
    parts = re.split(r"^(?=#+ )", page, flags=re.M)
    (first,) = (k for k, part in enumerate(parts) if anchor in anchors(part[:200]))
    level = parts[first].index(" ")
    rest = parts[first + 1 :]
    last = next((k for k, part in enumerate(rest) if part.index(" ") <= level), None)
    return "".join([parts[first], *rest[:last]])


@if_node
@pytest.mark.quick
def test_every_preset_is_what_was_measured_or_says_why_not() -> None:
    found = node(
        "return words.presets.map((p) => ({...p, ...play.compare(p), "
        "now: play.from_hash(p.on), link: words.links[p.link]}));"
    )
    assert len(found) == 6
    for one in found:
        assert abs(one["off"]) <= 0.25 or one.get("leaves"), one
        assert abs(one["off"]) < 0.5, one
        file, _, anchor = one["link"].partition("#")
        page = (PLAY / file).resolve().read_text()
        page = section(page, anchor)
        rows = ROWS.get(one["id"]) or (one["now"]["a"], one["now"]["b"])
        for row, number in zip(rows, one["measured"], strict=True):
            cell = rf"(?<![\d.,]){re.escape(f'{number:,}')}(?![\d.,])"
            assert re.search(rf"^\| {row}\b.*\|.*{cell}", page, re.M), (row, number)


@if_node
@pytest.mark.quick
def test_every_question_has_the_answer_that_its_words_explain() -> None:
    script = """return words.questions.map((q) => {
      const now = play.from_hash(q.on);
      const runs = ["a", "b"].map((side) => play.run(now, side));
      if (!runs.every((run) => run.whole)) throw Error("too many events");
      return [q.answer, play.first(...runs)];
    });"""
    found = node(script)
    assert len(found) == 8
    assert all(told == simulated for told, simulated in found), found


@if_node
@pytest.mark.quick
def test_an_address_holds_the_state_and_a_wrong_one_does_no_harm() -> None:
    wrong = (
        "#%E0%A4%A #a=None&workers=x #workers=99&slow=9,,z #seconds=7&b.rate=-1 #&&= "
        "#toString #a=toString #workers=2.4&slow=1.3&a=AGN&a.window=2.5"
    )
    given = dict(wrong=wrong.split(" "))
    script = """
      const names = Object.keys(words.schemes);
      const presets = words.presets.map((p) => p.id);
      const same = [...names, ...presets, ""].map((hash) => {
        const once = play.to_hash(play.from_hash(hash));
        return [once, play.to_hash(play.from_hash("#" + once))];
      });
      return {same, wrong: given.wrong.map((hash) => play.from_hash(hash)),
        schemes: names.map((name) => [name, play.from_hash(name).a])};
    """
    found = node(script, given)
    assert all(before == after for before, after in found["same"])
    assert len({before for before, _ in found["same"]}) > 14
    assert all(name == shown for name, shown in found["schemes"])
    for state in found["wrong"]:
        assert state["workers"] in range(1, 33) and state["seconds"] in (5, 20, 60, 120)
        assert len(state["slow"]) == state["workers"]
        assert all(2 * times in range(2, 17) for times in state["slow"])
        assert state.get("a.window", 1) in range(1, 129)
        assert state["b.rate"] > 0


@if_node
@pytest.mark.quick
def test_the_commands_have_flags_that_exist() -> None:
    script = """return Object.keys(words.schemes).map((name) => {
      const now = play.state({a: name, workers: 3, kills: 1, "a.backup": 1});
      return [name, play.command(now, "a")];
    });"""
    for name, command in node(script):
        *settings, bash, start, scheme = command.partition(" --")[0].split()
        assert (bash, start, scheme) == ("bash", "run.sh", name)
        flags = " --" + command.partition(" --")[2]
        known = run(sys.executable, REPO / name / registry.script_of(name), "--help")
        given = {word for word in shlex.split(flags) if word.startswith("--")}
        assert given and given <= {*re.findall(r"--\w+", known.stdout)}, command
        text = (REPO / "docs" / "flags.md").read_text()
        assert all(f"`{one.partition('=')[0]}`" in text for one in settings), command


@pytest.mark.quick
def test_colours_and_words_are_those_of_the_pictures() -> None:
    page = (PLAY / "index.html").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", page.partition("@media")[0]))
    legend = re.findall(r'data-kind="([\w-]+)"><span.*?></span>(.*?)</li>', page)
    pictures = {"call": timeline_picture.KINDS["between"], **timeline_picture.KINDS}
    assert len(legend) > 10
    for kind, words in legend:
        if kind != "killed":
            fill, told = pictures[kind]
            assert fill.startswith("url(") or colours[kind] == fill
            assert words.startswith(told)


@if_node
@pytest.mark.quick
def test_the_page_is_linked_and_its_own_links_lead_somewhere() -> None:
    page = (PLAY / "index.html").read_text()
    for link in re.findall(r'href="([^"]+)"', page):
        file, _, anchor = link.partition("#")
        if not file or file.startswith("data:"):
            continue
        target = (PLAY / file).resolve()
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)  # nothing is fetched
    for link in node("return Object.values(words.links);"):
        file, _, anchor = link.partition("#")
        assert anchor in anchors((PLAY / file).resolve().read_text()), link
    for name in node("return Object.keys(words.schemes);"):
        text = (REPO / name / "README.md").read_text()
        assert f"../docs/play/index.html#{name})" in text, name
    notebook = REPO / "Basics-Tutorial" / "9-What-a-Run-Costs.ipynb"
    for path in ("README.md", "docs/which-example.md", notebook):
        assert "play/index.html" in (REPO / path).read_text(), path


# --- The page in a browser ------------------------------------------------------------


@if_browser
@pytest.mark.long
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Every scheme, preset and question, by file; see play_page.js for what is tried.

    PLAY_PICTURES names a folder for pictures of the page, light and dark.
    """
    plan = {
        "url": (PLAY / "index.html").as_uri(),
        "pictures": os.environ.get("PLAY_PICTURES"),  # made if it is not there
        "axe": str(render.packages() / "axe-core" / "axe.min.js"),
    }
    found = lead("play_page.js", plan)
    assert found["faults"] == []
    assert found["shown"] >= 14 + 6 + 8
    # Other tests may have the cores, so what counts is the time of a frame's own work.
    assert found["frame"] < 16  # ms, of the 16.7 that 60 frames a second leave
    assert found["frames"] > 10
