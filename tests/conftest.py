"""What a test run inherits, and what it says last: which tests it has left out."""

import collections
import gc
import os
import re
import signal
import sys

import hypothesis
import launch
import pytest
import registry
from hypothesis import Phase

# A run that nohup or a shell's background job began inherits HUP or INT as ignored. So
# would every task of its tests, and bash cannot trap what was ignored when it started.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


# The smallest example that breaks a rule takes minutes to find; the first says enough.
PHASES = [*Phase] if launch.THOROUGH else [Phase.explicit, Phase.generate]
hypothesis.settings.register_profile(
    "guide", deadline=None, derandomize=True, phases=PHASES
)
hypothesis.settings.load_profile("guide")

# A graph lives as long as its test, so Python looks for garbage less often.
gc.set_threshold(50_000, 20, 20)
if not launch.THOROUGH:  # see launch.without_optimizer
    os.environ[launch.ONE_DNN] = "0"


def pytest_collection_finish():
    """What a test starts runs as a user's does; TensorFlow here has read it by now."""
    os.environ.pop(launch.ONE_DNN, None)


@pytest.fixture(autouse=True)
def forks(request, monkeypatch):
    """Tasks begin with TensorFlow imported, but in a test that is about the start."""
    real = launch.THOROUGH or request.node.get_closest_marker("starts")
    monkeypatch.setattr(launch, "FORKS", not real)


# The tests of the schemes' rules. They are made before the other tests of a level, so
# that a rule that is broken is found soon.
RULES = {
    "test_clocks",
    "test_compression",
    "test_conformance",
    "test_gossip",
    "test_peers",
    "test_rounds",
    "test_sync",
}


def pytest_collection_modifyitems(config, items):
    """Traces by hand are quick: they are made in this process. Long tests are first."""
    for item in items:
        if item.originalname.startswith("test_trace"):
            item.add_marker(pytest.mark.quick)
        if launch.THOROUGH:  # many more examples, and tasks that start more slowly
            marker = item.get_closest_marker("timeout")
            seconds = marker.args[0] if marker else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(5 * seconds), append=False)
    items.sort(
        key=lambda item: (
            item.get_closest_marker("long") is None,
            item.path.stem not in RULES,
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test of a rule that fails shows the formulas of the schemes that it built."""
    report = yield
    if built := getattr(sys.modules.get("harness"), "built", set()):
        if report.failed and item.path.stem in RULES:
            for folder in sorted(built):
                path = f"{folder}/{registry.script_of(folder)}"
                lines = (launch.REPO / path).read_text().splitlines()
                rule = [
                    f"{number:4}  {line.strip()}"
                    for number, line in enumerate(lines, 1)
                    if re.match(r" *# .*( ← | := )", line)
                ]
                report.sections.append((f"The rule in {path}", "\n".join(rule)))
        if call.when == "teardown":
            built.clear()
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    yield  # all that others have to say
    reports = [r for part in terminalreporter.stats.values() for r in part]
    if any("test_horovod.py::" in getattr(r, "nodeid", "") for r in reports):
        import test_horovod

        if test_horovod.MISSING:
            line = f"not tried here: Horovod: {test_horovod.MISSING}"
            terminalreporter.write_line(line)
    left_out = collections.defaultdict(collections.Counter)
    for report in terminalreporter.stats.get("skipped", []):
        *_, reason = report.longrepr
        test = report.nodeid.partition("[")[0].removeprefix("tests/")
        left_out[reason.removeprefix("Skipped: ")][test] += 1
    for reason, tests in sorted(left_out.items()):
        names = [f"{test} ({n})" if n > 1 else test for test, n in tests.items()]
        line = f"left out, {reason}: {tests.total()} tests: {', '.join(sorted(names))}"
        terminalreporter.write_line(line)
    if not any("test_engines.py::" in getattr(r, "nodeid", "") for r in reports):
        return
    import test_engines

    for engine in registry.ENGINES:
        if test_engines.MISSING[engine.name]:
            why = test_engines.MISSING[engine.name]
            terminalreporter.write_line(f"not tried here: Engines/{engine.name}: {why}")
