"""tools/render.py: pages as a hosting site shows them; what does not fit is named."""

import os
import re
import sys
from pathlib import Path

import launch
import matplotlib.image
import pytest
import render
from browser import if_browser
from tree import REPO, run

SVG = (
    '<?xml version="1.0"?>\n'
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} 40">'
    '<text x="0" y="20" style="font: {1}px sans-serif">a <tspan>{2}</tspan></text>'
    "</svg>\n"
)
GOOD = """# Good

A formula $w_{t-\\tau}$ with $a_i*b_i*c_i$, `$PATH` and `$HOME` in code.

```math
w \\leftarrow w - \\eta\\, g_k(w_{t-\\tau})
```

| symbol | meaning |
|---|---|
| $|w|$ | a norm |

```mermaid
flowchart TD
  a[one] --> b[two]
```

```mermaid
sequenceDiagram
  participant a
  participant b
  a->>b: pull
  Note over a,b: both
```

![a picture](good.svg)
"""
BAD = f"""# Bad

| {" | ".join(["x" * 30] * 8)} |
|{"---|" * 8}
| {" | ".join(["y" * 30] * 8)} |

```bash
echo {"z" * 120}
```

A formula $\\frac{{a$ and one that is too long, $\\overline{{{"y + " * 60} y}}$.

```math
{"a + b + " * 60} c
```

```mermaid
flowchart LR
  {" --> ".join(f"step{i}[step number {i}]" for i in range(16))}
```

```mermaid
flowchart sideways
  a --> --> b
```

```mermaid
sequenceDiagram
  participant a
  participant b
  participant c
  a->>c: over the line of b
  Note over a,b: a long line that is wider than its box, which has two ends
```

![small](small.svg) ![cut](cut.svg) ![none](none.svg) ![rough](rough.png)
"""


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    """Without a browser: status 3 and no traceback; a page that is not there is 2."""
    env = {**os.environ, "PATH": str(tmp_path), "CHROMIUM": ""}
    if any(Path(browser).exists() for browser in render.BROWSERS):
        pytest.skip("a browser lies outside PATH")
    tool = REPO / "tools" / "render.py"
    done = run(sys.executable, tool, tmp_path / "out", env=env)
    assert done.returncode == 3
    assert re.fullmatch(r"render\.py: Chromium is missing: .*\n", done.stderr)
    assert not (tmp_path / "out").exists()
    done = run(sys.executable, tool, tmp_path / "out", "NONE.md", env=env)
    assert done.returncode == 2
    assert "there is no page NONE.md" in done.stderr


@if_browser
def test_what_does_not_fit_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text(GOOD)
    (tmp_path / "bad.md").write_text(BAD)
    (tmp_path / "good.svg").write_text(
        SVG.format(400, 8, "text as large as it is shown")
    )
    (tmp_path / "small.svg").write_text(SVG.format(2000, 16, "too small"))
    (tmp_path / "cut.svg").write_text(SVG.format(100, 16, "text that is cut off"))
    matplotlib.image.imsave(tmp_path / "rough.png", [[0.0] * 600] * 20)
    found = render.render(tmp_path, [tmp_path / "good.md"], tmp_path / "out", (860,))
    assert found == []
    pictures = [path.name for path in (tmp_path / "out").iterdir()]
    assert pictures == ["good.md-860-1.png"]

    found = render.render(tmp_path, [tmp_path / "bad.md"], tmp_path / "out", (860,))
    left = list(found)
    for what in (
        r"bad\.md: the formula \"\\frac\{a\" is wrong: .*",
        r"bad\.md: diagram 2 is wrong: .*",
        r"bad\.md at 860 px: a table is \d+ px too wide: \"x.*",
        r"bad\.md at 860 px: a code block is \d+ px too wide: \"echo z.*",
        r"bad\.md at 860 px: a formula is \d+ px too wide: \"a \+ b.*",
        r"bad\.md at 860 px: p sticks out by \d+ px: \"A formula.*",
        r"bad\.md at 860 px: diagram 1: the smallest text is \d\.\d px: \"step .*",
        r"bad\.md at 860 px: diagram 2: a line crosses a text: \"over the line of b\"",
        r"bad\.md at 860 px: small\.svg: the smallest text is 6\.\d px: \"a too .*",
        r"bad\.md at 860 px: cut\.svg: a text is cut off by \d+ px: \"a text that.*",
        r"bad\.md at 860 px: diagram 2: a note is wider than its box: .*",
        r"bad\.md at 860 px: rough\.png has 600 px and is shown 600 px wide: .*",
        r"bad\.md at 860 px: none\.svg cannot be shown",
        r"bad\.md at 860 px: the page scrolls sideways: it is \d+ px wide",
    ):
        (line,) = (line for line in found if re.fullmatch(what, line))
        left.remove(line)
    assert left == []


@launch.if_thorough
@pytest.mark.timeout(1800)
def test_every_page_fits(tmp_path: Path) -> None:
    assert render.render(REPO, render.pages(REPO), tmp_path) == []
