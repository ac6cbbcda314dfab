"""The measuring scripts: their flags, tables, figures and endings, on made-up results.

No cluster is started here; what they measure takes half an hour of a quiet machine.
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
import time
import warnings
from pathlib import Path

import psutil
import pytest

REPO = Path(__file__).resolve().parents[1]
SCRIPTS = ("overhead", "claims", "coordinator", "local_steps")

sys.path.insert(0, str(REPO / "benchmarks"))
claims, figures, overhead, peers, runs = map(
    importlib.import_module, ("claims", "figures", "overhead", "peers", "runs")
)


def run(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end."""
    command = [sys.executable, REPO / "benchmarks" / f"{script}.py", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


# --- Flags --------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("script", "flags", "sentence"),
    [
        ("claims", ["--only", "rates"], "'rates' is not one of window, rate,"),
        ("claims", ["--stepz", "3"], "unrecognized arguments: --stepz 3"),
        ("claims", ["--timeout", "0"], "--timeout: '0' is not a whole number above 0"),
        ("claims", ["--out", "no/such/folder"], "--out: no/such/folder: No such file"),
        ("overhead", ["--only", "start,"], "'' is not one of start, speed, windows"),
        ("overhead", ["--rounds", "few"], "--rounds: 'few' is not a whole number"),
        ("overhead", ["--out", "LICENSE/x"], "--out: LICENSE/x: "),
        ("coordinator", ["--form", "round"], "invalid choice: 'round'"),
        ("coordinator", ["--steps", "0"], "--steps: '0' is not a whole number above 0"),
        ("local_steps", ["--window", "-1"], "--window: '-1' is not a whole number"),
        ("scaling", ["--only", "ring"], "'ring' is not one of rates, ps, start, more"),
        ("scaling", ["--rounds", "0"], "--rounds: '0' is not a whole number above 0"),
        ("pays", ["--seeds", "five"], "--seeds: 'five' is not a whole number above 0"),
        ("pays", ["--rounds", "3"], "unrecognized arguments: --rounds 3"),
        (
            "clusters",
            ["--only", "slow"],
            "'slow' is not one of fast, straggler, cables, sites",
        ),
        ("clusters", ["--seeds", "0"], "--seeds: '0' is not a whole number above 0"),
        ("clusters", ["--rounds", "2"], "unrecognized arguments: --rounds 2"),
        ("cost_model", ["--scheme", "Ring"], "'Ring' is not one of HogWild,"),
        ("cost_model", ["--workers", "many"], "--workers: invalid int value"),
        ("cost_model", ["--workers", "0"], "workers is at least 1"),
        ("predictions", ["--only", "x"], "unrecognized arguments: --only x"),
        ("star", ["--bits", "1e6", "--seconds", "1"], "a rate or a delay, not both"),
        ("star", ["--bits", "-1"], "are not below 0"),
    ],
)
def test_a_wrong_flag_is_one_sentence(
    script: str, flags: list[str], sentence: str
) -> None:
    done = run(script, *flags)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"{script}.py: ") and sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_run_uses_flags_that_its_example_has() -> None:
    flags = (REPO / "HogWild" / "cluster" / "flags.py").read_text()
    general = set(re.findall(r'"(--\w+)"', flags))
    planned = [run for part in claims.PARTS for run in claims.PLANS[part](1.0)]
    keys = {(run.part, claims.Cache.key(run)) for run in planned}
    assert len(keys) == len(planned)
    for run in planned:
        if run.folder not in runs.examples():
            continue
        used = {f for f in run.flags if isinstance(f, str) and f.startswith("--")}
        assert used <= general | runs.flags_of(run.folder), run.label
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


@pytest.mark.parametrize(("trap", "number"), [("trap '' TERM; ", 9), ("", 15)])
def test_nothing_of_a_process_is_left(trap: str, number: int) -> None:
    """Neither if it ignores TERM, nor if it obeys and leaves a child behind."""
    script = f"{trap}sleep 98 & echo $!; wait"
    with pytest.raises(KeyboardInterrupt):
        with runs.process(["bash", "-c", script], stdout=subprocess.PIPE) as child:
            grandchild = int(child.stdout.readline())
            wait = child.wait
            child.wait = lambda timeout=None: wait(timeout and 0.2)
            raise KeyboardInterrupt
    assert child.returncode == -number
    end = time.monotonic() + 5
    while psutil.pid_exists(grandchild) and time.monotonic() < end:
        if psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.02)
    assert time.monotonic() < end


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


@pytest.fixture
def found() -> dict:
    """Returns made-up results of every part, as the claims would have them."""
    window = {}
    for label, *_ in claims.window_lines():
        window[label] = {w: result(0.96, bytes_pushed=64 / w) for w in claims.WINDOWS}
    window["DOWNPOUR, fixed rate"][16] = result(0.2)
    window["DOWNPOUR, fixed rate"][64] = {"diverged": True}
    window["AGN"][64] = result(0.82)
    rate = {
        n: {
            r: result(0.97) if r <= claims.SIMULATED_RATE[n] else {"diverged": True}
            for r in claims.RATES
        }
        for n in claims.COUNTS
    }
    straggler = {run.label: {500: result(0.9)} for run in claims.straggler_runs(1.0)}
    straggler["Synchronous-SGD"] = {500: result(0.9, seconds=21.0)}
    made = {"window": window, "rate": rate, "straggler": straggler}
    for part in ("delay", "bound", "bytes"):
        made[part] = {}
        for run in claims.PLANS[part](1.0):
            made[part].setdefault(run.label, {})[run.x] = result(0.97)
    for label, row in made["delay"].items():
        for rate in row:
            if rate > (0.3 if "adaptive" in label else 0.2):
                row[rate] = {"diverged": True}
    for label, row in made["bound"].items():
        for s in row:
            least, stalls = claims.bound_of(s)[0] or 99, label.startswith("each")
            seconds = 20.0 - (s if stalls and s < 9 else 0)
            more = {"staleness": [[0, 3], [least, 1]], "seconds_to_loss": seconds - 5}
            row[s] = result(0.97, seconds=seconds, **more)
    made["bound"]["one is always slow"][4]["seconds_to_loss"] = 12.0
    for label, method, keep in claims.METHODS:
        pushed = 500 * (
            8 * 4810 * keep if keep else {"sign": 606, "int8": 4814}[method]
        )
        for feedback in made["bytes"][label]:
            accuracy = 0.968 if feedback == "on" else 0.9
            made["bytes"][label][feedback] = result(accuracy, bytes_pushed=pushed)
    made["bytes"][claims.WHOLE]["on"]["bytes_pushed"] = 500 * 4 * 4810
    return made


def test_tables_and_figures(found: dict, tmp_path: Path) -> None:
    text = claims.write_results(tmp_path, found)
    assert (tmp_path / "claims.md").read_text() == text
    for part in claims.PARTS:
        assert f"](claims-{part}.svg)" in text
        assert "<text" in (tmp_path / f"claims-{part}.svg").read_text()
    assert "| DOWNPOUR, fixed rate | 96.0 % | 96.0 % | 20.0 % | diverged |" in text
    assert "with 1/64 of the bytes" in text
    assert "| N = 8 | 97.0 % (2.9) | 97.0 % (2.9) | diverged |" in text
    assert "| 8 | 0.2 | 0.2 |" in text
    assert "5.0 s against 21.0 s | yes |" in text
    assert (
        "| HogWild | 97.0 % | 97.0 % | diverged | diverged | diverged | 0.2 |" in text
    )
    assert (
        "| each stalls now and then | 8 | 7.0 | 12.0 | 97.0 % | 0 | 51 | 51 | 51 |"
        in text
    )
    assert "| top 1 % | 385 | 2 % | 96.8 % | 90.0 % |" in text
    assert "12.0 s for all updates, 20.0 s at s = 0 | yes |" in text
    assert "3 of 3, 9 of 9, 15 of 15" in text
    # All holds but the claim that is about time.
    assert text.count("**no**") == 1 and "T = 64 | Hermans et al. 2017, of" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_seeds(found: dict) -> None:
    planned = claims.plan(["window", "straggler"], seeds=3)
    keys = [claims.Cache.key(run) for run in planned]
    once = claims.plan(["window", "straggler"])
    assert len({*keys}) == len(keys)
    assert {claims.Cache.key(run) for run in once} < {*keys}  # seed 0 has no flag
    assert len(keys) == 3 * len(once)
    many = [run.part for run in claims.plan(["window", "straggler"], seeds=9)]
    counts = {part: many.count(part) for part in ("window", "straggler")}
    one = {part: [run.part for run in once].count(part) for part in counts}
    assert counts == {"window": 5 * one["window"], "straggler": 3 * one["straggler"]}
    cell = claims.together([result(0.9), {"diverged": True}, result(0.95)])
    assert cell["test_accuracy"] == 0.9 and len(cell["each"]) == 3
    timed = [result(a, seconds=t) for a, t in ((0.9, 7.0), (0.8, 9.0), (0.7, 8.0))]
    row = claims.together(timed)
    assert row["test_accuracy"] == 0.8 and row["seconds"] == 8.0
    text = claims.straggler_text({"HogWild": {500: row}}, "x")
    assert "| HogWild | 8.0 (7.0 to 9.0) |" in text and "of 3 seeds" in text
    assert figures.errors(cell) == pytest.approx((5, 10, 90))
    found["window"]["AGN"][1] = cell
    assert "middle of 1 to 3 seeds" in claims.window_text(found["window"], "x")


def test_results_of_older_code_can_be_drawn(tmp_path: Path) -> None:
    cache = claims.Cache(tmp_path / "runs.json")
    run, *_ = claims.window_runs(1.0)
    old = claims.Cache.key(run._replace(change=("x", "y")))
    cache.runs[old] = {"code": "old", "result": result(0.9)}
    assert cache.get(run) is None and cache.kept(run) == result(0.9)
    assert cache.kept(run._replace(workers=3)) is None


def test_one_palette() -> None:
    """The notebooks' folder and this one stand alone, so each has it."""
    text = (REPO / "Basics-Tutorial" / "drawing.py").read_text()
    ours = (REPO / "benchmarks" / "figures.py").read_text()
    colors = re.findall(r'^[A-Z, ]+ = "#.*$', text, re.M)
    assert len(colors) == 2 and colors == re.findall(r'^[A-Z, ]+ = "#.*$', ours, re.M)


def test_the_theory_s_limit() -> None:
    ratios = [figures.limit(n, 1.0) for n in (1, 2, 4, 8)]
    assert ratios == pytest.approx([1, 0.5, 0.2225, 0.1045], abs=1e-3)


def test_a_claim_can_fail(found: dict) -> None:
    found["window"]["AEASGD"][64] = result(0.5)
    found["window"]["DOWNPOUR, fixed rate"][16] = result(0.95)
    found["rate"][8][0.8] = found["rate"][8][0.4] = result(0.95)
    found["straggler"]["HogWild"] = {500: result(0.9, seconds=20.0)}
    text = claims.claims_text(found)
    assert text.count("**no**") == 5  # the mean is no longer better than the sum, too
    found["delay"]["HogWild"][0.3] = result(0.97)
    stalls = found["bound"]["each stalls now and then"]
    stalls[0].update(seconds=5.0, seconds_to_loss=1.0)
    stalls[1]["staleness"] = [[10, 1]]
    found["bytes"]["top 1 %"]["off"] = result(0.97)
    found["bytes"]["signs"]["on"] = result(0.9)
    text = claims.claims_text(found)
    # No larger rate, nothing between, stalls not hidden, a staleness, two of bytes.
    assert text.count("**no**") == 5 + 6
    assert "AEASGD at T = 64: 50.0 % here" in claims.window_text(found["window"], "x")


def test_parts_that_are_missing(tmp_path: Path, found: dict) -> None:
    some = {part: {} for part in claims.PARTS}
    some["window"] = {"AGN": {4: result(0.9)}}
    text = claims.write_results(tmp_path, some)
    assert "| AGN | - | 90.0 % | - | - |" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "claims-window.svg",
        "claims.md",
    ]


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


def test_the_cache_keeps_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def once(*arguments: object) -> dict:
        made.append(arguments)
        return result(0.9)

    monkeypatch.setattr(runs, "run_example", once)
    planned = claims.plan(["rate"])[:3]
    path = tmp_path / "runs.json"
    for count in (3, 3):
        claims.measure(planned, claims.Cache(path), 9)
        assert len(made) == count
    assert claims.grid(planned, claims.Cache(path)) == {
        1: {run.x: result(0.9) for run in planned}
    }
    # A result is of the code that gave it.
    monkeypatch.setattr(runs, "fingerprint", lambda folder: "changed")
    claims.measure(planned, claims.Cache(path), 9)
    assert len(made) == 6
    claims.measure(planned, claims.Cache(path, again=True), 9)
    assert len(made) == 9


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


def test_paste(tmp_path: Path) -> None:
    (tmp_path / "claims.md").write_text("![a](claims-rate.svg) [b](other.md)\n")
    page = "a\n<!-- begin claims.md -->\nold\n<!-- end claims.md -->\nb\n"
    pasted = runs.paste(page, tmp_path)
    assert "\n![a](results/claims-rate.svg) [b](other.md)\n<!-- end" in pasted
    assert "old" not in pasted and pasted.endswith("\nb\n")
    assert runs.paste(pasted, tmp_path) == pasted


UPDATE = """
import bandwidth
script, tf = bandwidth.hogwild()
args = bandwidth.arguments(script, ["a:1", "b:1", "c:1"])
spec = tf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]})
parts, _, _ = bandwidth.graphs(tf, script, args, spec, 100)
found, left = set(), [bandwidth.as_op(one).op for one in parts["update"]]
while left:
    found.add(one := left.pop())
    left += {x.op for x in one.inputs} | set(one.control_inputs) - found
assert len(found) > 8
print({one.device for one in found})
"""


def test_an_update_alone_stays_on_the_ps() -> None:
    """What is timed as an update alone sends nothing to the worker and back."""
    command = [sys.executable, "-c", UPDATE]
    folder = REPO / "benchmarks"
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert "/job:worker" not in done.stdout
    assert "/job:ps/task:0" in done.stdout and "/job:ps/task:1" in done.stdout


def test_the_readme_shows_the_results() -> None:
    page = (REPO / "benchmarks" / "README.md").read_text()
    for name in ("overhead.md", "clusters.md", "claims.md"):
        assert page.count(f"<!-- begin {name} -->") == 1
    assert runs.paste(page, runs.RESULTS) == page, "run overhead.py --write-readme"


def test_the_page_begins_with_its_findings() -> None:
    page = (REPO / "benchmarks" / "README.md").read_text()
    head, _, rest = page.partition("\n| section | date |")
    findings = re.findall(r"^(\d+)\. (.*)$", head, re.M)
    assert [int(number) for number, _ in findings] == list(range(1, 11))
    for number, text in findings:
        assert re.search(r"\[[^\]]*\d[^\]]*\]\(#|\d.*\]\(#", text), number
    table = rest.partition("\n\n")[0]
    sections = re.findall(r"^\| \[([^\]]+)\]\(#[^)]*\) \| ([\d-]+)", table, re.M)
    # Headings within a block are the script's.
    own = re.sub(r"(<!-- begin .*\n)(?:.*\n)*?(?=<!-- end)", r"\1", page)
    measured = re.findall(r"^##+ (.*)\n(?:(?!^##).*\n)*?<!-- begin", own, re.M)
    assert [name for name, _ in sections] == measured
    assert "1 workers" not in page


def test_the_findings_are_those_of_the_tables() -> None:
    """The numbers of the ten lines that stand in a table as they are."""
    text = "".join(path.read_text() for path in runs.RESULTS.glob("*.md"))
    page = (REPO / "benchmarks" / "README.md").read_text()
    head = page.partition("\n| section | date |")[0]
    numbers = re.findall(r"(\d[\d,.]*\d) (?:steps/s|s\b|%)", head)
    assert len(numbers) > 8
    assert [x for x in numbers if not re.search(rf"\b{re.escape(x)}\b", text)] == []
    yes, no = (text.count(f"| {word} |\n") for word in ("yes", "**no**"))
    assert f"{yes} were seen here and {no} were not" in head


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


def test_runs_without_a_ps_have_flags_that_their_examples_have() -> None:
    flags = (REPO / peers.RING / "cluster" / "flags.py").read_text()
    general = set(re.findall(r'"(--\w+)"', flags))
    planned = peers.plan(peers.CLAIMS)
    assert len({claims.Cache.key(run) for run in planned}) == len(planned)
    for run in planned:
        used = {f for f in run.flags if isinstance(f, str) and f.startswith("--")}
        assert used <= general | runs.flags_of(run.folder), run.label
        with runs.variant(REPO / run.folder, run.change) as folder:
            assert (folder / "run.sh").is_file()


def made_up(loss: float = 0.1, accuracy: float = 0.96, **more) -> dict:
    """Returns a result of a run, as much of it as is looked at."""
    sent = dict(more, bytes_pushed=4000, global_steps=10, workers=2)
    sent["examples_per_second"] = 1000 * accuracy
    return dict(test_loss=loss, test_accuracy=accuracy, **sent)


def test_a_run_in_turn(monkeypatch, tmp_path: Path) -> None:
    """Each number of workers has its share of the steps, and the same log directory."""
    made = []

    def run_example(folder, flags, ps, workers, timeout, change, logdir):
        assert (folder, ps, timeout, change) == ("DiLoCo", None, 60, None)
        made.append((flags, workers, logdir, os.path.isdir(logdir)))
        return {"test_accuracy": len(made)}

    monkeypatch.setattr(runs, "run_example", run_example)
    flags = ["--window", 25, "--steps", 20]
    run = claims.Run("pool", "", 0, "DiLoCo", flags, (1, 2, 4, 2), 60)
    assert claims.in_turn(run, 60) == {"test_accuracy": 4}
    alone = run._replace(workers=(3,))
    kept = claims.Cache(tmp_path / "runs.json")
    claims.measure([alone], kept, 60, ps=None, logs={})
    assert made.pop()[:2] == (flags, 3) and kept.get(alone) == {"test_accuracy": 5}
    assert [flags[3] for flags, *_ in made] == [5, 10, 15, 20]
    assert [workers for _, workers, *_ in made] == [1, 2, 4, 2]
    (logdir,) = {where for _, _, where, _ in made}
    assert all(there for *_, there in made) and not os.path.exists(logdir)
    assert claims.Cache.key(run).startswith("NUM_WORKERS=1,2,4,2 bash DiLoCo/run.sh")


def test_results_without_a_ps(tmp_path: Path) -> None:
    """Claims that hold, and the same with the numbers the other way round."""
    ring = {f"rate: {label}": {"steps_per_second": 100.0} for label in peers.LABELS}
    ring[f"rate: {peers.RING}"]["steps_per_second"] = 150.0
    for good, other in ((0.96, 0.8), (0.8, 0.96)):
        local = {
            "shards alike": {1: made_up(), 128: made_up(accuracy=good)},
            "shards by label": {128: made_up(accuracy=other)},
        }
        plain, nesterov = list(peers.OUTER)[:2]
        outer = {plain: {25: made_up(1 - other)}, nesterov: {25: made_up(1 - good)}}
        pool = {label: {0: made_up(examples=1000)} for label in peers.POOLS}
        pool["one"][0]["test_loss"] = 0.2 if good > other else 0.1
        bytes_ = {f"{peers.RING}, every step": {1: made_up()}}
        bytes_["DiLoCo, T = 500"] = {500: made_up(accuracy=good)}
        slow = {
            peers.RING: {0.01: made_up(), peers.SLOW: made_up(accuracy=0.4)},
            "Gossip-SGD, ring": {0.01: made_up(), peers.SLOW: made_up(accuracy=good)},
        }
        curve = [[10, 2.0], [40, 1 - good]]
        warmed = {1: made_up(), 8: made_up(accuracy=good), 32: made_up(accuracy=0.1)}
        warmed = {k: {**run, "curve": curve} for k, run in warmed.items()}
        if good < other:
            warmed[32] = made_up()
        batch = {peers.FIXED: {8: made_up(accuracy=other)}, peers.WARMED: warmed}
        found = {"local": local, "outer": outer, "pool": pool, "bytes": bytes_}
        found.update({"batch": batch, "slow": slow})
        text = peers.write_results(tmp_path, [ring], found)
        assert text.count(": yes\n") == 7 * (good > other)
        assert text.count(": **no**\n") == 7 * (good < other)
    assert "| Ring-All-Reduce | 150 | 1.00 |" in text
    assert "| Synchronous-SGD | 100 | 1.50 |" in text
    assert "| more and more | 1, 2, 3, 4 | 1,000 | 0.100 | 96.0 % |" in text
    assert "| Ring-All-Reduce, every step | 0.00 | 0.2 | 96.0 % |" in text
    for name in peers.CLAIMS:
        assert "<text" in (tmp_path / f"peers-{name}.svg").read_text()
    assert (tmp_path / "peers.md").read_text() == text


# --- While a worker computes -----------------------------------------------------


@pytest.mark.quick
def test_memory_is_above_the_usual_model_and_in_multiples_of_the_model() -> None:
    large = importlib.import_module("large")
    usual, size = 600e6, 4 * large.elements("100 MB")
    peaks = {"ps 0": usual + 5 * size}
    one = {
        "usual: HogWild": dict(peaks={"ps 0": usual}),
        "100 MB: HogWild": dict(steps_per_second=12.0, peaks=peaks),
        "100 MB: HogWild, before": dict(steps_per_second=8.0, peaks={}),
        f"100 MB: {large.COORDINATOR}": dict(steps_per_second=6.0),
    }
    text = large.markdown([one])
    assert "| HogWild: ps 0 | - | 5.0 | - | - |" in text
    assert "| HogWild | 8.00 | 12.00 | 1.50 | - |" in text
    assert "HogWild makes 2.00 times the steps/s of ClusterCoordinator." in text
    assert "| Ring-All-Reduce | - | - | - |" in text


def test_the_tasks_of_a_run_are_found_by_their_logdir(tmp_path) -> None:
    logdir = str(tmp_path / "logdir")
    role = ["--job_name", "ps", "--task_index", "1", "--logdir"]
    for where, found in ((logdir, {"ps 1"}), (f"{logdir}2", set())):
        command = [sys.executable, "-c", "import time; time.sleep(60)", *role, where]
        with runs.process(command):
            deadline = time.monotonic() + 10
            while runs.tasks(logdir).keys() != found and time.monotonic() < deadline:
                time.sleep(0.05)
            assert runs.tasks(logdir).keys() == found


def test_bars_that_overlap_have_lanes_of_their_own(tmp_path) -> None:
    """And the picture and the tables of made-up rounds are made."""
    overlap = importlib.import_module("overlap")
    bars = [(0, 4, "a"), (1, 2, "b"), (2, 5, "b"), (4, 6, "a")]
    assert [lane for *_, lane in overlap.lanes(bars)] == [0, 1, 1, 0]
    kinds = ("forward", "backward", "all-reduce")
    one = [
        (f"worker {k}", kind, i, i + 2) for k in (0, 1) for i, kind in enumerate(kinds)
    ]
    overlap.draw({overlap.WHOLE: one, overlap.BUCKETS: one}, tmp_path)
    assert "in buckets: 4 ms" in (tmp_path / "overlap.svg").read_text()
    plan = overlap.plan(overlap.PARTS)
    text = overlap.markdown([{key: dict(round=0.5, staleness=1.0) for key in plan}])
    assert len(plan) == 10 and text.count("| 500 | 500 | 1.00 |") == 5


# --- Of which code a table is ---------------------------------------------------


def git(*words: str) -> str:
    """Returns what git says; skips the test outside a clone."""
    done = subprocess.run(
        ["git", "-C", REPO, *words], capture_output=True, text=True, check=False
    )
    if done.returncode and not (REPO / ".git").exists():
        pytest.skip("no clone: nobody knows the commits")
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_behind(script: str) -> list[str]:
    """Returns what a script of benchmarks/ depends on, as git names it.

    That is the script, those that it imports, and the examples that they name.
    """
    folder, found, waiting = REPO / "benchmarks", {}, [script]
    while waiting:
        name = waiting.pop()
        if name not in found and (folder / name).exists():
            found[name] = text = (folder / name).read_text()
            modules = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
            waiting += [f"{module}.py" for module in modules]
    text = "".join(found.values())
    named = [f for f in [*runs.registry.folders(), "Horovod"] if f'"{f}"' in text]
    examples = runs.registry.folders() if "runs.examples()" in found[script] else named
    paths = [f":(glob){f}/{files}" for f in examples for files in ("*.py", "cluster/*")]
    return [*(f"benchmarks/{name}" for name in found), *paths]


def of_which_code() -> dict[str, tuple[list[str], list[str]]]:
    """Returns {section: (commits of its tables, files that they depend on)}.

    Where a row says "the code of X", that is the commit.
    """
    page = (REPO / "benchmarks" / "README.md").read_text()
    found = {}
    for row in re.findall(r"^\| \[.*\]\(#.*\) \| 20.* \|$", page, re.MULTILINE):
        section, _, stored = (cell.strip() for cell in row.strip("|").split("|"))
        stored = stored.partition("; *before*")[0]
        commits = re.findall(r"code of (\w{7})", stored)
        commits = commits or re.findall(r"\b[0-9a-f]{7}\b", stored)
        name = section[1 : section.index("]")]
        text = re.split(rf"^##+ {re.escape(name)}$", page, flags=re.MULTILINE)[1]
        scripts = re.findall(r"benchmarks/(\w+\.py)", re.split(r"^## ", text)[0])
        found[name] = commits, files_behind(scripts[0])
    return found


def has_changed(commit: str, path: str) -> bool:
    """Says whether a file's code has changed since then: not only its comments."""
    if not path.endswith(".py") or not (REPO / path).exists():
        return True
    names = git("ls-tree", "--name-only", commit, "--", path)
    if not names:
        return True
    return runs.bare(git("show", f"{commit}:{path}")) != runs.bare(
        (REPO / path).read_text()
    )


def test_tables_whose_code_has_changed_are_named() -> None:
    """A warning, no failure: to measure again takes hours of a quiet machine."""
    sections, old = of_which_code(), {}
    assert len(sections) > 10
    for name, (commits, files) in sections.items():
        assert commits, f"{name}: of which commit is it?"
        for commit in commits:
            changed = set()  # names of files, which have copies in many folders
            differ = git("diff", "--name-only", commit, "HEAD", "--", *files)
            for path in map(Path, differ.splitlines()):
                if path.name not in changed and has_changed(commit, str(path)):
                    changed.add(path.name)
            if changed:
                first, rest = sorted(changed)[:5], len(changed) - 5
                old[name] = f"{commit}: {', '.join(first)}" + f" + {rest}" * (rest > 0)
    if old:
        said = "; ".join(f"{name} (since {what})" for name, what in old.items())
        warnings.warn(
            f"benchmarks/README.md, tables of older code: {said}", stacklevel=1
        )
