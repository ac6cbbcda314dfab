"""A browser for tests of pages: whether there is one, and what leads it."""

from __future__ import annotations

import json
import os
import subprocess

import launch
import pytest
import render
from tree import REPO


def missing() -> str:
    """Returns why there is no browser here, "" if there is one."""
    try:
        render.check()
    except render.Missing as reason:
        return str(reason)
    return ""


MISSING = missing()
# THOROUGH=1 does not do without it.
if_browser = pytest.mark.skipif(bool(MISSING) and not launch.THOROUGH, reason=MISSING)


def lead(script: str, plan: dict) -> dict:
    """Runs a script of tests/ that uses a browser by a plan; returns what it prints."""
    render.check()
    plan = {**plan, "browser": render.browser(), "root": os.geteuid() == 0}
    done = subprocess.run(
        ["node", str(REPO / "tests" / script)],
        input=json.dumps(plan),
        env={**os.environ, "NODE_PATH": str(render.packages())},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
