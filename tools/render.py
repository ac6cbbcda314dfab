"""Show every page as a hosting site does, take pictures, and say what does not fit.

    python tools/render.py /tmp/pages                    every page
    python tools/render.py /tmp/pages README.md HogWild/README.md

/tmp/pages/README.md-860-1.png and so on are to be looked at: each page in a window of
860 and of 1,280 px, in pieces of 1,600 px. A line is printed for each finding: what is
wider than its column, a formula or a diagram that cannot be drawn, a text of a diagram
or of an SVG picture that is smaller than 12 px or crossed by a line. Exit status: 0
nothing found, 1 findings, 2 usage, 3 something is missing, named in one sentence.

Needs cmarkgfm (requirements-dev.txt), Chromium, Node.js and npm. KaTeX, Mermaid and the
style sheet are npm packages, installed once below $XDG_CACHE_HOME (~/.cache).
"""

import argparse
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
WIDTHS = (860, 1280)  # px
PAGES = ("*.md", "docs/*.md", "benchmarks/*.md", "*/README.md", "*/*/README.md")
PACKAGES = {
    "axe-core": "4.14.1",  # for tests/test_play.py
    "github-markdown-css": "5.9.0",
    "katex": "0.19.1",
    "mermaid": "11.17.2",
    "puppeteer-core": "24.43.1",
}
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
# A formula in a line: $…$, as the hosting site takes it.
FORMULA = re.compile(r"(?<![\w\\$])\$(?!\s)([^$]+?)(?<!\s)\$(?!\w)")
# What is no prose: a fenced block, or a span of code.
CODE = re.compile(
    r"(^ *(`{3,}|~{3,}).*?^ *\2 *$|(`+)(?!`).*?(?<!`)\3(?!`))", re.M | re.S
)

PAGE = """<!doctype html>
<meta charset="utf-8">
<base href="{folder}/">
<link rel="stylesheet" href="{packages}/github-markdown-css/github-markdown-light.css">
<link rel="stylesheet" href="{packages}/katex/dist/katex.min.css">
<style>
  body {{ margin: 0; background: white }}
  article {{ padding: 32px }}
  .math, .mermaid {{ overflow-x: auto; text-align: center; margin-bottom: 16px }}
</style>
<article class="markdown-body">{body}</article>
<script src="{packages}/katex/dist/katex.min.js"></script>
<script src="{packages}/mermaid/dist/mermaid.min.js"></script>
"""


class Missing(Exception):
    """Something that is needed is not there; the text is a sentence."""


def pages(root: Path) -> list[Path]:
    """Returns the pages of a repository."""
    found = {path for pattern in PAGES for path in root.glob(pattern)}
    return sorted(p for p in found if p.relative_to(root).parts[0][0] != ".")


def to_html(text: str) -> str:
    """Returns the HTML of a page in Markdown.

    A formula becomes <span data-tex>, so that Markdown does not read its underscores.
    """
    import cmarkgfm
    from cmarkgfm.cmark import Options

    def span(match: re.Match) -> str:
        tex = html.escape(match[1].replace("\n", " ")).replace("|", "&#124;")
        return f'<span data-tex="{tex}"></span>'

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [FORMULA.sub(span, text[end : code.start()]), code[0]]
        end = code.end()
    parts.append(FORMULA.sub(span, text[end:]))
    options = Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_GITHUB_PRE_LANG
    return cmarkgfm.github_flavored_markdown_to_html("".join(parts), options)


def browser() -> str:
    """Returns the path of a browser; raises Missing."""
    for name in filter(None, (os.environ.get("CHROMIUM"), *BROWSERS)):
        if found := shutil.which(name):
            return found
    raise Missing(
        "Chromium is missing: install it (Debian and Ubuntu: sudo apt install chromium)"
        ", or let CHROMIUM name another browser of its kind"
    )


def check() -> None:
    """Raises Missing unless everything is there that the cache cannot bring."""
    browser()
    for name in ("node", "npm"):
        if not shutil.which(name):
            raise Missing(
                f"{name} is missing: install Node.js 18 or newer "
                "(Debian and Ubuntu: sudo apt install nodejs npm)"
            )
    try:
        import cmarkgfm  # noqa: F401
    except ImportError:
        raise Missing(
            "the Python package cmarkgfm is missing: "
            "use the Python of `bash test.sh`, .venv/bin/python"
        ) from None


def packages() -> Path:
    """Returns node_modules with the npm packages, installed now if this is needed."""
    wanted = json.dumps({"dependencies": PACKAGES}, sort_keys=True)
    name = "render-pages-" + hashlib.sha256(wanted.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / name
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Made beside it and moved there when it is whole.
        with tempfile.TemporaryDirectory(dir=cache, prefix=name) as made:
            Path(made, "package.json").write_text(wanted)
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True)
            if done.returncode:
                why = (done.stderr or done.stdout).strip().split("\n")[0]
                raise Missing(f"npm cannot install {', '.join(PACKAGES)}: {why}")
            shutil.copytree(made, folder, symlinks=True, dirs_exist_ok=True)
    return folder / "node_modules"


def render(root: Path, found: list[Path], out: Path, widths=WIDTHS) -> list[str]:
    """Takes pictures of pages into `out`; returns a line for each finding."""
    check()
    modules = packages()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        jobs = []
        for number, path in enumerate(found):
            page = Path(scratch, f"{number}.html")
            page.write_text(
                PAGE.format(
                    folder=path.parent.resolve().as_uri(),
                    packages=modules.as_uri(),
                    body=to_html(path.read_text()),
                )
            )
            name = path.resolve().relative_to(root.resolve()).as_posix()
            jobs.append({"url": page.as_uri(), "name": name})
        plan = {"browser": browser(), "out": str(out), "widths": widths, "pages": jobs}
        plan["root"] = os.geteuid() == 0
        script = Path(__file__).with_suffix(".js")
        done = subprocess.run(
            ["node", str(script)],
            input=json.dumps(plan),
            env={**os.environ, "NODE_PATH": str(modules)},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        why = (done.stderr.strip() or "?").split("\n")[-1]
        raise Missing(f"the browser cannot show the pages: {why}")
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("pages", type=Path, nargs="*", help="Markdown (all of them)")
    args = parser.parse_args()
    for path in args.pages:
        if not path.is_file():
            parser.error(f"there is no page {path}")
        if REPO not in path.resolve().parents:
            parser.error(f"{path} is not a page of {REPO}")
    try:
        lines = render(REPO, args.pages or pages(REPO), args.out)
    except Missing as missing:
        print(f"render.py: {missing}", file=sys.stderr)
        return 3
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
