"""The measuring scripts: their flags, tables, figures and endings, on made-up results.

Every script also makes a short run of each part, with --quick.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hosts
import launch
import psutil
import pytest
import tree

REPO = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(REPO / "benchmarks"))
choices, claims, clusters, figures, hard, large, overhead, overlap, peers = map(
    importlib.import_module,
    "choices claims clusters figures hard large overhead overlap peers".split(),
)
predictions, runs, scaling, star, chaos, exchange, low = map(
    importlib.import_module,
    "predictions runs scaling star chaos exchange low_communication".split(),
)


# --- Flags --------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("script", "flags", "sentence"),
    [
        ("choices", ["--only", "keras"], "'keras' is not one of hogwild, coordinator,"),
        ("choices", ["--environments", "no/such"], "--environments: no/such: No such"),
        ("choices", ["--seconds", "0"], "--seconds: '0' is not a whole number above 0"),
        ("claims", ["--only", "rates"], "'rates' is not one of window, rate,"),
        ("claims", ["--timeout", "0"], "--timeout: '0' is not a whole number above 0"),
        ("claims", ["--out", "no/such/folder"], "--out: no/such/folder: No such file"),
        ("overhead", ["--only", "start,"], "'' is not one of start, speed, windows"),
        ("overhead", ["--out", "LICENSE/x"], "--out: LICENSE/x: "),
        ("coordinator", ["--form", "round"], "invalid choice: 'round'"),
        ("scaling", ["--only", "ring"], "'ring' is not one of rates, ps, start"),
        ("pays", ["--seeds", "five"], "--seeds: 'five' is not a whole number above 0"),
        ("clusters", ["--rounds", "2"], "unrecognized arguments: --rounds 2"),
        ("cost_model", ["--scheme", "Ring"], "'Ring' is not one of HogWild,"),
        ("cost_model", ["--workers", "0"], "workers is at least 1"),
        (
            "embeddings",
            ["--only", "ids"],
            "'ids' is not one of days, rates, size, lost",
        ),
        ("large_table", ["hashed"], "invalid choice: 'hashed'"),
        ("predictions", ["--only", "x"], "unrecognized arguments: --only x"),
        ("star", ["--bits", "1e6", "--seconds", "1"], "a rate or a delay, not both"),
    ],
)
def test_a_wrong_flag_is_one_sentence(
    script: str, flags: list[str], sentence: str
) -> None:
    done = tree.run(sys.executable, f"benchmarks/{script}.py", *flags)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"{script}.py: ") and sentence in done.stderr
    assert done.stderr.count("\n") == 1


def planned() -> list[tuple[str, int, list]]:
    """Returns folder, workers and flags of every run that a script would make."""
    some = [*claims.plan(claims.PARTS), *peers.plan(peers.CLAIMS), *hard.plan()]
    some += low.plan()
    found = [(run.folder, max(claims.numbers(run)), run.flags) for run in some]
    for scheme in clusters.SCHEMES.values():
        found.append((scheme.folder, 4, clusters.flags_of(scheme, 1)))
    found += [(scheme.folder, 4, scheme.flags) for scheme in scaling.SCHEMES.values()]
    for label, workers in chaos.cells():
        scheme = chaos.scheme_of(label, workers)
        found.append((scheme.folder, workers, scheme.flags))
    for cell in predictions.cells():
        flags = predictions.flags_of(predictions.setup_of(cell), 10)
        found.append((cell.scheme, cell.workers, flags))
    return found


FOLDERS = sorted({folder for folder, *_ in planned()})


@pytest.mark.quick
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_run_has_flags_that_its_example_takes(folder: str) -> None:
    script, family = launch.load(folder), runs.registry.of(folder).family
    for name, workers, flags in planned():
        if name == folder:
            hosts = ",".join(f"a:{k}" for k in range(1, workers + 1))
            task = ["--task_index=0", f"--worker_hosts={hosts}"]
            task += ["--job_name=worker", "--ps_hosts=b:1"] * (family == "ps")
            task *= family != "single"
            script.parse_args([*task, *map(str, flags)])


def test_every_change_of_a_script_fits() -> None:
    for run in [*claims.plan(claims.PARTS), *peers.plan(peers.CLAIMS)]:
        with runs.variant(REPO / run.folder, run.change) as folder:
            assert (folder / "run.sh").is_file()


def test_a_variant_that_does_not_fit_is_refused() -> None:
    with pytest.raises(runs.Unfinished, match="is not once in hogwild.py"):
        with runs.variant(REPO / "HogWild", ("no such text", "")):
            pass


# --- Processes ----------------------------------------------------------------


def test_clock() -> None:
    lines = [(1.0, "run.sh: 1 ps"), (9.0, "[worker 0] step 10/20  loss 0.5")]
    lines += [(11.0, "[worker 1] step 20/20  loss 0.1  3 steps/s"), (12.0, "test")]
    measured = runs.clock(lines, {"seconds": 4.0, "global_steps": 20}, 2.0, 13.5)
    assert measured == {"first_step": 5.0, "end": 2.5}
    measured = runs.clock(lines, {"seconds": 4.0, "global_steps": 30}, 2.0, 13.5)
    assert measured == {"first_step": None, "end": None}


def test_nothing_of_a_process_is_left() -> None:
    """Neither of one that obeys TERM and leaves a child behind."""
    with pytest.raises(KeyboardInterrupt):
        command = ["bash", "-c", "sleep 98 & echo $!; wait"]
        with runs.process(command, stdout=subprocess.PIPE) as child:
            grandchild = int(child.stdout.readline())
            raise KeyboardInterrupt
    assert child.returncode == -signal.SIGTERM
    launch.wait_until(lambda: launch.is_gone(grandchild), 5)


def test_an_interrupt_ends_with_130(tmp_path: Path) -> None:
    """Also if started with SIGINT ignored, as `&` in a script does it."""
    text = (
        "import runs, time\n"
        "def main():\n"
        "    with runs.process(['sleep', '97']) as child:\n"
        "        print(child.pid, flush=True)\n"
        "        time.sleep(60)\n"
        "runs.ends_cleanly(main)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO / "benchmarks")}
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        old = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            program = subprocess.Popen(
                [sys.executable, "-c", text], env=env, stdout=subprocess.PIPE
            )
        finally:
            signal.signal(signal.SIGINT, old)
        try:
            sleeper = int(program.stdout.readline())
            program.send_signal(number)
            assert program.wait(10) == status
            assert not psutil.pid_exists(sleeper)
        finally:
            program.kill()


# --- Results ------------------------------------------------------------------


def result(accuracy: float, **more: object) -> dict:
    """Returns a result.json with this accuracy."""
    made_up = {"test_accuracy": accuracy, "mean_staleness": 2.9, "seconds": 5.0}
    made_up |= {"bytes_pushed": 78_000_000, "gradients_dropped": 0}
    made_up |= {"global_steps": 500, "rounds_per_worker": {"0": 3, "1": 4}}
    return {**made_up, **more}


def test_tables_and_figures_of_claims(tmp_path: Path) -> None:
    """Of made-up results that are all alike, but for a few."""
    more = {"staleness": [[0, 3], [7, 1]], "seconds_to_loss": 12.0}
    found = {part: {} for part in claims.PARTS}
    for run in claims.plan(claims.PARTS):
        found[run.part].setdefault(run.label, {})[run.x] = result(0.97, **more)
    found["window"]["DOWNPOUR, fixed rate"][16] = result(0.2)
    found["window"]["DOWNPOUR, fixed rate"][64] = {"diverged": True}
    del found["window"]["AGN"][64]
    found["rate"][1][max(claims.RATES)] = {"diverged": True}
    found["straggler"]["Synchronous-SGD"] = {500: result(0.9, seconds=21.0)}
    text = claims.write_results(tmp_path, found)
    for part in claims.PARTS:
        assert f"](claims-{part}.svg)" in text
        assert "<text" in (tmp_path / f"claims-{part}.svg").read_text()
    assert "| DOWNPOUR, fixed rate | 97.0 % | 97.0 % | 20.0 % | diverged |" in text
    assert "| AGN | 97.0 % | 97.0 % | 97.0 % | - |" in text
    assert "5.0 s against 21.0 s | yes |" in text
    assert "| **no** |" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_the_middle_of_seeds() -> None:
    cell = claims.together([result(0.9), {"diverged": True}, result(0.95)])
    assert cell["test_accuracy"] == 0.9 and len(cell["each"]) == 3
    assert figures.errors(cell) == pytest.approx((5, 10, 90))
    timed = [result(a, seconds=t) for a, t in ((0.9, 7.0), (0.8, 9.0), (0.7, 8.0))]
    row = claims.together(timed)
    assert row["test_accuracy"] == 0.8 and row["seconds"] == 8.0
    text = claims.straggler_text({"HogWild": {500: row}}, "x")
    assert "| HogWild | 8.0 (7.0 to 9.0) |" in text and "of 3 seeds" in text


def test_the_cache_keeps_the_results_of_this_code(tmp_path: Path) -> None:
    run, *_ = claims.window_runs(1.0)
    path = tmp_path / "runs.json"
    claims.Cache(path).put(run, result(0.9))
    assert claims.Cache(path).get(run) == result(0.9)
    assert claims.Cache(path, again=True).get(run) is None
    changed = run._replace(change=("x", "y"))
    assert claims.Cache(path).get(changed) is None
    assert claims.Cache(path).kept(changed) == result(0.9)
    assert claims.Cache(path).kept(run._replace(workers=3)) is None


def test_the_theory_s_limit() -> None:
    ratios = [figures.limit(n, 1.0) for n in (1, 2, 4, 8)]
    assert ratios == pytest.approx([1, 0.5, 0.2225, 0.1045], abs=1e-3)


def test_what_the_rounds_leave(tmp_path: Path) -> None:
    """Time, number, staleness and loss of each update, a file a worker."""
    lines = [[], []]
    for step in range(1, 301):
        loss = 1.0 if step <= 120 else 0.1
        lines[step % 2].append(f"{100 + step / 10} {step} {step % 3} {loss}\n")
    for number, text in enumerate(lines):
        (tmp_path / f"rounds-{number}.txt").write_text("".join(text))
    seen = claims.rounds_of(tmp_path)
    assert seen["staleness"] == [(0, 100), (1, 100), (2, 100)]
    # The mean of 100 is 0.2 or less from step 209 on: 12 at 1.0, 88 at 0.1.
    assert seen["seconds_to_loss"] == pytest.approx((209 - 1) / 10)


def test_a_fingerprint_is_of_what_is_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(runs, "REPO", tmp_path)
    folder = shutil.copytree(REPO / "AGN", tmp_path / "AGN")
    script = folder / "agn.py"
    before, text = runs.fingerprint("AGN"), script.read_text()
    script.write_text(text.replace('"""AGN', '"""One more word: AGN') + "# Comment\n")
    assert runs.fingerprint("AGN") == before
    script.write_text(text + "x = 1\n")
    assert runs.fingerprint("AGN") != before


def made_up_round(factor: float) -> dict:
    """Returns a round of overhead.py, everything `factor` slower."""
    measured = {}
    for job in overhead.jobs_of(overhead.PARTS):
        measured[job.key] = result(
            0.97,
            seconds=10.0 * factor,
            steps_per_second=900 / factor,
            examples_per_second=32_000 / factor,
            seconds_per_step=0.0002 * factor,
            first_step=12.0 * factor,
            end=1.5,
        )
    measured["ClusterCoordinator variables"]["steps_per_second"] = 400 / factor
    measured["ClusterCoordinator flat"]["steps_per_second"] = 600 / factor
    return measured


def test_overhead_tables() -> None:
    rounds = [made_up_round(factor) for factor in (1.0, 3.0, 2.0)]
    text = overhead.markdown(rounds, overhead.PARTS)
    start = "| 1 ps, 2 workers | 24.0 (12.0 to 36.0) | 20.0 (10.0 to 30.0) | 1.20 |"
    assert start in text
    assert "| ClusterCoordinator | 2.25 |" in text
    assert "| the same, one flat vector | 1.50 |" in text
    for name in overhead.windowed():
        assert f"| {name} | 16,000 (10,667 to 32,000) | 1.00 |" in text
    # Parts of a round that were not measured are dashes.
    assert "| - |" in overhead.markdown([{}], overhead.PARTS)


def test_kept_rounds_are_of_this_code(tmp_path: Path) -> None:
    path = tmp_path / "overhead.json"
    now = overhead.code()
    assert runs.kept(path, now) == []
    path.write_text(json.dumps({"code": now, "rounds": [{"x": 1}]}))
    assert runs.kept(path, now) == [{"x": 1}]
    assert runs.kept(path, {**now, "HogWild": "other"}) == []


def test_all_commits_of_a_table_are_named(tmp_path: Path, monkeypatch) -> None:
    path, rounds = tmp_path / "x.json", [{}]
    for number, stamp in enumerate(["b0, commit f", "b0, commit 1", "b0, commit 1"]):
        monkeypatch.setattr(runs, "now", lambda stamp=stamp: stamp)
        rounds[0][number] = [1.5, 2e-7]
        runs.keep(path, {}, rounds)
    assert runs.measured_on(path) == "b0, commits f, 1"
    assert "[1.5, 2e-07]" in path.read_text()
    runs.keep(path, {}, [{"new": 1}])  # with --again, or of other code
    assert runs.measured_on(path) == "b0, commit 1"
    old = {"a": {"measured": "b0, commit 2"}, "b": {"measured": "b1"}}
    path.write_text(json.dumps(old))
    assert runs.measured_on(path) == "b0, commit 2; b1"


# --- Pages --------------------------------------------------------------------

PAGES = sorted((REPO / "benchmarks").glob("*.md"))
README = REPO / "benchmarks" / "README.md"
PLACE = re.compile(
    r"^<!-- begin (\S+): (.*) -->\n(.*?)^<!-- end \1: \2 -->$", re.M | re.S
)


def places() -> list[tuple[str, str, str]]:
    """Returns the script's name, the title and the text of each table of the pages."""
    return [found for page in PAGES for found in PLACE.findall(page.read_text())]


@pytest.mark.quick
def test_tables_go_to_their_places() -> None:
    place = "<!-- begin x: A b -->\nold\n<!-- end x: A b -->\n"
    page = f"# Page\n{place}{place.replace('x:', 'y:')}end\n"
    text = "Of\none round.\n\n### Not here\n\n1\n\n### A b\n\n![c](d.svg)\n\n2\n"
    new = runs.filled(page, "x", text, "Today.")
    told = "Today. Of one round.\n\n![c](results/d.svg)\n\n2\n"
    assert new == page.replace("old\n", told, 1)
    assert runs.filled(new, "x", text, "Today.") == new


@pytest.mark.quick
def test_each_table_has_its_date_commit_and_command() -> None:
    caption = re.compile(
        r"\d{4}-\d\d-\d\d, commits?(?: [0-9a-f]{7,},)+ "
        r"`(?:sudo )?\.venv/bin/python benchmarks/(\w+)\.py`\."
    )
    assert len(places()) > 30
    for name, title, text in places():
        match = caption.match(text)
        assert match, (name, title)
        assert (REPO / "benchmarks" / f"{match[1]}.py").is_file()
    marks = sum(page.read_text().count("<!-- begin ") for page in PAGES)
    assert marks == len(places())
    now = runs.now()
    assert re.fullmatch(r"[\d-]{10}(, commit [0-9a-f]{7,}( and changes)?)?", now)


@pytest.mark.quick
def test_the_findings_are_those_of_the_tables() -> None:
    """The numbers of the findings that are in a table as they are."""
    text = "".join(table for *_, table in places())
    head = README.read_text().partition("\n## How the machine looked")[0]
    head = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head)
    numbers = re.findall(r"(\d[\d,.]*\d) (?:steps/s|s\b|%|times)", head)
    assert len(numbers) > 8
    assert [x for x in numbers if not re.search(rf"\b{re.escape(x)}", text)] == []
    yes, no = (text.count(f"| {word} |\n") for word in ("yes", "**no**"))
    assert f"{yes} were seen here and {no} were not" in head


@pytest.mark.quick
def test_the_first_page_is_one_page() -> None:
    assert len(README.read_text().split()) <= 1200


HOSTS = "clusters exchange link overlap predictions".split()
SCRIPTS = {
    path.stem
    for path in README.parent.glob("*.py")
    if "runs.measuring_parser(" in path.read_text()
} - {"choices"}  # which makes environments: see below


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_script_runs(script: str, tmp_path: Path) -> None:
    """With --quick: it ends well, and makes the tables that pages have of it."""
    if script in HOSTS and hosts.missing():
        pytest.skip(hosts.missing())
    path = f"benchmarks/{script}.py"
    command = sys.executable, path, "--quick", "--out", tmp_path
    command += "--timeout", runs.TIMEOUT * launch.PATIENT
    done = tree.run(*command, timeout=800 * launch.PATIENT)
    assert done.returncode == 0, done.stderr
    made = {
        (file.stem, title)
        for file in tmp_path.glob("*.md")
        for title in re.findall("^### (.*)", file.read_text(), re.M)
    }
    wanted = {(name, title) for name, title, text in places() if f"{path}`" in text}
    assert wanted - made <= {("predictions", "Cells that are off by more than 40 %")}
    assert wanted


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = runs.Progress([0, 10, 20])
    progress.add("first")
    progress.add("second", 30.0)
    progress.add("third", 60.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines.pop(0) == "2 to make, about 1 min on 2 cores"
    assert lines[0] == "[1/3] first  kept, 0.5 min left"
    assert lines[1] == "[2/3] second  30 s, 2.0 a minute, 1.0 min left"
    assert lines[2] == "[3/3] third  60 s, 1.3 a minute, 0.0 min left"


# --- Without a ps -------------------------------------------------------------


def made_up(loss: float = 0.1, accuracy: float = 0.96, **more) -> dict:
    """Returns a result of a run, as much of it as is looked at."""
    sent = dict(more, bytes_pushed=4000, global_steps=10, workers=2)
    sent.update(examples_per_second=1000 * accuracy, examples=1000)
    return dict(test_loss=loss, test_accuracy=accuracy, **sent)


def test_results_without_a_ps(tmp_path: Path) -> None:
    ring = {f"rate: {label}": {"steps_per_second": 100.0} for label in peers.LABELS}
    ring[f"rate: {peers.RING}"]["steps_per_second"] = 150.0
    found = {name: {} for name in peers.CLAIMS}
    for run in peers.plan(peers.CLAIMS):
        curve = made_up(curve=[[10, 2.0], [40, 0.04]])
        found[run.part].setdefault(run.label, {})[run.x] = curve
    text = "".join(peers.write_results(tmp_path, [ring], found))
    assert "| Ring-All-Reduce | 150 | 1.00 |" in text
    assert "| Synchronous-SGD | 100 | 1.50 |" in text
    assert "| more and more | 1, 2, 3, 4 | 1,000 | 0.100 | 96.0 % |" in text
    assert "| Ring-All-Reduce, every step | 0.00 | 0.2 | 96.0 % |" in text
    for name in peers.CLAIMS:
        assert "<text" in (tmp_path / f"peers-{name}.svg").read_text()


# --- Low communication --------------------------------------------------------------


def test_who_dies_when() -> None:
    """The same at each call; a worker is away for a while before it dies again."""
    found = chaos.deaths(4, seed=1, seconds=1000.0)
    assert found == sorted(chaos.deaths(4, seed=1, seconds=1000.0))
    assert found != chaos.deaths(4, seed=2, seconds=1000.0)
    assert all(0 <= when < 1000 for when, _ in found)
    for worker in range(4):
        mine = [when for when, who in found if who == worker]
        gaps = [b - a for a, b in zip(mine, mine[1:], strict=False)]
        assert min(gaps) >= chaos.DOWN
        mean = chaos.LIFE + chaos.DOWN
        assert 0.6 * mean < sum(gaps) / len(gaps) < 1.6 * mean


def test_results_of_low_communication(tmp_path: Path, monkeypatch) -> None:
    """Of made-up results that are alike, but for Nesterov at each push."""
    found = {part: {} for part in low.PARTS}
    for run in low.plan():
        more = dict(test_loss=0.1, curve=[[1, 2], [0.5, 0.1]], seconds_to_loss=2.0)
        found[run.part].setdefault(run.label, {})[run.x] = result(0.97, **more)
    bad = result(0.4, test_loss=3.0, seconds_to_loss=None)
    found["outer"][low.NESTEROV][0] = bad
    ends = {label: 0.8 if label.endswith("K = 1") else 0.1 for label in chaos.SCHEMES}
    dying = {
        chaos.key_of(label, n, 0): {"goodput": ends[label], "test_accuracy": 0.9}
        for label, n in chaos.cells()
    }
    dying[chaos.key_of("DiLoCo", 2, 1)] = dying[chaos.key_of("DiLoCo", 2, 0)]
    rounds = [
        {
            job: {"round": 1.0}
            for sleep in exchange.SLEEPS
            for job in [
                exchange.key_of(sleep, 0, exchange.FREE),
                *(exchange.key_of(sleep, o) for o in exchange.SLEEPS[sleep]),
            ]
        }
    ]
    monkeypatch.setattr(chaos, "kept", lambda: dying)
    monkeypatch.setattr(exchange, "kept", lambda: rounds)
    text = low.write_results(tmp_path, found) + exchange.markdown(rounds)
    assert "| Nesterov at each push | 40.0 % | 3.000 | never | 5.0 |" in text
    assert "40.0 % against 97.0 % | yes |" in text
    assert "test loss | Liu et al. 2024 | 0.100 against 0.100 | **no** |" in text
    assert "0.10 with 2 workers, 0.10 with 8 | **no** |" in text
    assert "0.80 against 0.10 | yes |" in text
    assert "| 1.00 | 0 | 1.00 | 1.32 |" in text
    chaos.draw(dying, tmp_path)
    exchange.draw(rounds, tmp_path)
    cells = "| DiLoCo | 0.10 / 90.0 % | 0.10 / 90.0 % (seeds: 1) |"
    assert cells in chaos.markdown(dying)


# --- What people would choose instead ------------------------------------------------


def test_a_rate_is_counted_after_the_warm_up() -> None:
    """From the first line a second after all had begun; the last line is the end."""
    lines = [(10.0, "step 1/100 "), (10.9, "[worker 1] step 10/100  loss 0.5")]
    lines += [(11.1, "step 20/100 "), (14.0, "step 60/100 "), (15.1, "step 100/100 ")]
    late = [*lines, (15.2, "[worker 0] step  98/100  loss 0.1")]
    assert choices.rate_of(late, 1.0, 2.0) == pytest.approx(80 / 4)
    # The last worker of an example began two seconds after the first update, at 9.
    result = {"seconds": 6.1, "seconds_to_all_started": 2.0}
    assert choices.rate_of(late, 1.0, 1.0, result) == pytest.approx(40 / 1.1)
    with pytest.raises(runs.Unfinished, match="timed for 1.1 s only"):
        choices.rate_of(late, 1.0, 2.0, result)
    with pytest.raises(runs.Unfinished, match="timed for 0.0 s only"):
        choices.rate_of([lines[0], (10.2, "step 100/100 ")], 1.0, 2.0)
    # A program's own clock counts, not when its lines came.
    own = [(9.0, f"step {n}/100  at {when} s") for n, when in ((1, 3.1), (20, 4.2))]
    own.append((9.0, "step 100/100  at 8.2 s"))
    assert choices.rate_of(own, 1.0, 2.0) == pytest.approx(80 / 4)
    with pytest.raises(runs.Unfinished, match="no line of the last step"):
        choices.rate_of(lines[:-1], 1.0, 2.0)


def test_the_table_of_choices() -> None:
    rates = {"HogWild": 900.0, "Ring-All-Reduce": 300.0}
    measured = {}
    for kind in choices.WORKS:
        for name, choice in choices.CHOICES.items():
            rate = rates.get(choice.label, 600.0)
            made = {"steps_per_second": rate, "test_accuracy": 0.97}
            measured[choices.key(kind, name, 2)] = made
    text = choices.markdown([measured], "Python 3")
    assert "| HogWild, 2 workers | 900 | 1.00 | 900.00 | 1.00 |" in text
    assert "| torch.distributed.rpc, 2 workers | 600 | 1.50 | 600.00 | 1.50 |" in text
    assert "| PyTorch DDP, gloo, 2 workers | 600 | 0.50 | 600.00 | 0.50 |" in text
    assert "| Ray, 4 workers | - | - | - | - |" in text
    assert "Test accuracy on the digits was 0.970 to 0.970." in text


def test_nothing_of_a_choice_is_left() -> None:
    """Neither what has a session of its own and whose parent has ended, as Ray has."""
    text = (
        "import choices, subprocess\n"
        "with choices.nothing_left():\n"
        "    command = ['bash', '-c', 'setsid sleep 96 >/dev/null & echo $!']\n"
        "    made = subprocess.run(command, stdout=subprocess.PIPE, text=True)\n"
        "print(made.stdout)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO / "benchmarks")}
    done = tree.run(sys.executable, "-c", text, env=env)
    assert done.returncode == 0, done.stderr
    assert launch.is_gone(int(done.stdout))


@pytest.mark.long
def test_choices_that_need_no_environment(tmp_path: Path) -> None:
    """An example, one that writes no result, and one that prints no lines."""
    command = [sys.executable, "benchmarks/choices.py", "--quick", "--out", tmp_path]
    command += ["--only", "hogwild,mirrored,coordinator", "--logs", tmp_path / "logs"]
    done = tree.run(*command, timeout=800)
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads((tmp_path / "choices.json").read_text())["rounds"]
    assert len(measured) == 6
    assert all(0 < made["steps_per_second"] < 1e5 for made in measured.values())
    assert (tmp_path / "choices.md").read_text() in done.stdout
    assert len(list((tmp_path / "logs").glob("*.log"))) == 6


# --- While a worker computes -----------------------------------------------------


def test_the_tasks_of_a_run_are_found_by_their_logdir(tmp_path) -> None:
    logdir = str(tmp_path / "logdir")
    role = ["--job_name", "ps", "--task_index", "1", "--logdir"]
    for where, found in ((logdir, {"ps 1"}), (f"{logdir}2", set())):
        command = [sys.executable, "-c", "import time; time.sleep(60)", *role, where]
        with runs.process(command):
            launch.wait_until(lambda f=found: runs.tasks(logdir).keys() == f, 10)


def test_bars_that_overlap_have_lanes_of_their_own(tmp_path) -> None:
    bars = [(0, 4, "a"), (1, 2, "b"), (2, 5, "b"), (4, 6, "a")]
    assert [lane for *_, lane in overlap.lanes(bars)] == [0, 1, 1, 0]
    kinds = ("forward", "backward", "all-reduce")
    one = [
        (f"worker {k}", kind, i, i + 2) for k in (0, 1) for i, kind in enumerate(kinds)
    ]
    overlap.draw({overlap.WHOLE: one, overlap.BUCKETS: one}, tmp_path)
    assert "in buckets: 4 ms" in (tmp_path / "overlap.svg").read_text()


# --- Hosts ----------------------------------------------------------------------------


@pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing() or "there are hosts")
@pytest.mark.parametrize(("bits", "seconds"), [(1e7, 0.0), (None, 0.02)])
def test_a_cable_has_its_rate_or_its_delay(bits: float | None, seconds: float) -> None:
    trip, rate = star.measure(bits, seconds, 1_000_000)
    assert 2 * seconds <= trip < 2 * seconds + 1
    assert rate < 1.1 * (bits or 1e9)
    mine = f"star-{os.getpid()}-"
    assert not [name for name in os.listdir("/run/netns") if name.startswith(mine)]
