"""What a test run inherits, and what it says last: what could not be had here."""

import signal

import pytest
import registry

# A run that nohup or a shell's background job began inherits HUP or INT as ignored. So
# would every task of its tests, and bash cannot trap what was ignored when it started.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    yield  # all that others have to say
    reports = [r for part in terminalreporter.stats.values() for r in part]
    if any("test_horovod.py::" in getattr(r, "nodeid", "") for r in reports):
        import test_horovod

        if test_horovod.MISSING:
            line = f"not tried here: Horovod: {test_horovod.MISSING}"
            terminalreporter.write_line(line)
    if not any("test_engines.py::" in getattr(r, "nodeid", "") for r in reports):
        return
    import test_engines

    for engine in registry.ENGINES:
        if test_engines.MISSING[engine.name]:
            why = test_engines.MISSING[engine.name]
            terminalreporter.write_line(f"not tried here: Engines/{engine.name}: {why}")
