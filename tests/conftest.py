"""What a test run says last: which engines could not be had here."""

import pytest
import registry


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    yield  # all that others have to say
    reports = [r for part in terminalreporter.stats.values() for r in part]
    if not any("test_engines.py::" in getattr(r, "nodeid", "") for r in reports):
        return
    import test_engines

    for engine in registry.ENGINES:
        if test_engines.MISSING[engine.name]:
            why = test_engines.MISSING[engine.name]
            terminalreporter.write_line(f"not tried here: Engines/{engine.name}: {why}")
