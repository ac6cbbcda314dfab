"""A timeline as an SVG: a row for each task, bars on it, arrows for messages.

Colours are those of Okabe and Ito, which colour-blind people can tell apart, and no bar
needs its colour: what waits is hatched, what is long enough has its word, a pull points
from a ps and a push to it.
"""

import collections
from xml.sax.saxutils import escape

from timeline_bars import APPLIED

Panel = collections.namedtuple("Panel", "folder flags told timeline begin")

WIDTH, LEFT, RIGHT = 860, 86, 18  # pixels
AXIS = 26
# Pixels of a row, of the gap below it, of the head of a panel, and between two panels.
Sizes = collections.namedtuple("Sizes", "row gap head between")
ALONE, TOGETHER = Sizes(34, 16, 50, 0), Sizes(17, 7, 26, 10)
FONT = "-apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif"
INK, FAINT, LINE = "#1f2328", "#59636e", "#d1d9e0"

# kind: fill, what the legend says
KINDS = {
    "gradient": ("#bfe0f5", "gradient"),
    "forward": ("#bfe0f5", "forward"),
    "backward": ("#f7d9a0", "backward"),
    "mini-batch": ("#f7e9b0", "mini-batch"),
    "late": ("url(#late)", "thrown away"),
    "pull": ("#0072b2", "pull"),
    "push": ("#d55e00", "push"),
    "sum": ("#7fceb6", "added to the sum"),
    "update": ("#009e73", "update"),
    "all-reduce": ("#cc79a7", "all-reduce"),
    "gather": ("#cc79a7", "gather"),
    "reduce-scatter": ("#e6b422", "reduce-scatter"),
    "average": ("#cc79a7", "average"),
    "wait": ("url(#wait)", "wait"),
    "between": ("#b7bfc8", "between two calls"),
}
ARROWS = {"pull", "push", "all-reduce", "gather", "reduce-scatter", "average"}
# Two that go on at the same time: the upper and the lower half of a row.
HALVES = {"gather": 0, "reduce-scatter": 1}
LEAST = 2.0  # pixels of a bar
DEFINITIONS = """<defs>
<pattern id="wait" width="7" height="7" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><rect width="7" height="7" fill="#f6f8fa"/>\
<rect width="1.4" height="7" fill="#a9b1ba"/></pattern>
<pattern id="late" width="6" height="6" patternUnits="userSpaceOnUse" \
patternTransform="rotate(-45)"><rect width="6" height="6" fill="#fff"/>\
<rect width="2.2" height="6" fill="#bfe0f5"/></pattern>
"""


def number(value):
    """Returns a number as short as a tenth of a pixel allows."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def width_of(text, size=13):
    """Returns about how many pixels a text takes, rather more."""
    return sum(0.34 if c in " .,:;il|()t" else 0.57 for c in text) * size


class Drawing:
    """What has been drawn, as lines of SVG."""

    def __init__(self):
        self.lines = []

    def rect(self, x, y, width, height, fill, more=""):
        place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}"'
        self.lines.append(
            f'<rect {place} height="{number(height)}" fill="{fill}"{more}/>'
        )

    def text(self, x, y, text, more="", halo=""):
        if not text:
            return
        more += f' class="{halo}"' if halo else ""
        place = f'x="{number(x)}" y="{number(y)}"'
        self.lines.append(f"<text {place}{more}>{escape(text)}</text>")

    def path(self, d, more):
        self.lines.append(f'<path d="{d}" {more}/>')


class Rows:
    """Where tasks and times are in a panel."""

    def __init__(self, panel, top, shown, sizes):
        self.panel, self.top, self.shown, self.sizes = panel, top, shown, sizes
        self.tasks = panel.timeline.tasks
        self.scale = (WIDTH - LEFT - RIGHT) / shown
        self.enlarged = self.scale > 20

    def x(self, time):
        time = min(max(time - self.panel.begin, 0), self.shown)
        return LEFT + time * self.scale

    def y(self, task):
        each = self.sizes.row + self.sizes.gap
        return self.top + self.sizes.head + self.tasks.index(task) * each

    @property
    def bottom(self):
        return self.y(self.tasks[-1]) + self.sizes.row

    def middle(self, task):
        """Returns where the middle of a row is."""
        return self.y(task) + self.sizes.row / 2

    def inside(self, one):
        end = self.panel.begin + self.shown
        return one.start < end and one.end > self.panel.begin

    def times(self):
        """Returns the milliseconds of the axis."""
        return [int(self.shown) * n // 5 for n in range(6)]

    def shows(self, bar):
        """Says whether a bar is drawn: all are, but a wait that nobody would see."""
        seen = bar.kind != "wait" or self.x(bar.end) - self.x(bar.start) > LEAST
        return self.inside(bar) and seen


def draw(panels, shown):
    """Returns the SVG of panels, one below the other, of `shown` milliseconds each."""
    drawing, top, kinds, stale = Drawing(), 10, set(), False
    sizes = ALONE if len(panels) == 1 else TOGETHER
    for panel in panels:
        rows = Rows(panel, top, shown, sizes)
        draw_panel(drawing, rows)
        kinds |= {b.kind for b in panel.timeline.bars if rows.shows(b)}
        stale |= panel.timeline.stale and sizes is ALONE
        top = rows.bottom + sizes.between
    last = draw_axis(drawing, rows, rows.bottom)
    last = draw_legend(drawing, kinds, stale, last)
    style = f"text{{font:13px {FONT};fill:{INK}}}.b,.t{{font-weight:600}}"
    style += ".t{font-size:15px}"
    style += f".f{{fill:{FAINT}}}.halo,.on{{paint-order:stroke;stroke:#fff;"
    style += f"stroke-width:4px}}.on{{stroke:{KINDS['gradient'][0]}}}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {number(last)}" '
        f'width="{WIDTH}" height="{number(last)}" role="img">'
    )
    names = ", ".join(panel.folder for panel in panels)
    heads = "".join(
        f'<marker id="{kind}" viewBox="0 0 6 6" refX="5.4" refY="3" markerWidth="6" '
        f'markerHeight="6" orient="auto" markerUnits="userSpaceOnUse">'
        f'<path d="M0 0L6 3L0 6z" fill="{KINDS[kind][0]}"/></marker>'
        for kind in sorted(ARROWS)
    )
    frame = (
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{number(last - 1)}" rx="8" '
        f'fill="#fff" stroke="{LINE}"/>'
    )
    title = f"<title>Timeline of {escape(names)}</title>"
    parts = [head, title, f"<style>{style}</style>", DEFINITIONS + heads + "</defs>"]
    return "\n".join([*parts, frame, *drawing.lines, "</svg>"]) + "\n"


def draw_panel(drawing, rows):
    """Draws the head and the rows of a panel."""
    panel, timeline = rows.panel, rows.panel.timeline
    name = " ".join([panel.folder, *panel.flags])
    facts, right = facts_of(rows), ' class="f" text-anchor="end"'
    y, bold = rows.top + 20, ' class="t"'
    if rows.sizes is ALONE:
        drawing.text(LEFT, y, name, bold)
        drawing.text(LEFT, y + 18, panel.told, ' class="f"')
        if not rows.enlarged:
            drawing.text(WIDTH - RIGHT, y + 18, " · ".join(facts), right)
    else:
        told = f'<tspan dx="10" class="f">{escape(panel.told)}</tspan>'
        line = f'<text x="{LEFT}" y="{number(y)}"><tspan{bold}>{escape(panel.folder)}'
        drawing.lines.append(f"{line}</tspan>{told}</text>")
        drawing.text(WIDTH - RIGHT, y, facts[0], right)
    for time in rows.times():
        x = rows.x(panel.begin + time)
        top, bottom = rows.y(rows.tasks[0]) - 4, rows.bottom + 4
        d = f"M{number(x)} {number(top)}V{number(bottom)}"
        drawing.path(d, f'stroke="{LINE}" stroke-width=".8"')
    for task in timeline.tasks:
        y, height = rows.y(task), rows.sizes.row
        drawing.rect(LEFT, y, WIDTH - LEFT - RIGHT, height, "#f6f8fa")
        more = ' text-anchor="end" class="b"'
        drawing.text(LEFT - 10, rows.middle(task) + 4, task, more)
    if rows.enlarged:  # there is room for messages on the bars
        draw_bars(drawing, rows)
        draw_messages(drawing, rows)
    else:
        draw_messages(drawing, rows)
        draw_bars(drawing, rows)
    write_words(drawing, rows)


def facts_of(rows):
    """Returns what is counted in the shown time, as texts."""
    begin, end = rows.panel.begin, rows.panel.begin + rows.shown
    timeline = rows.panel.timeline
    made = [b for b in timeline.bars if b.kind == "update" and begin <= b.start < end]
    steps = {b.round.step: b.round for b in made}
    facts = [f"{len(steps)} update" + "s" * (len(steps) != 1)]
    if timeline.stale:
        mean = sum(one.staleness for one in steps.values()) / max(1, len(steps))
        facts.append(f"staleness {mean:.1f} on average")
    sent = [m for m in timeline.messages if begin <= m.start < end]
    facts.append(f"{len(sent)} messages")
    total = sum(m.bytes for m in sent)
    if total:
        big = total >= 1e6
        facts[-1] += f", {total / 1e6:.1f} MB" if big else f", {total / 1e3:.0f} kB"
    return facts


def draw_messages(drawing, rows):
    """Draws an arrow for each message, from row to row, behind the bars."""
    lines = collections.defaultdict(list)
    for m in rows.panel.timeline.messages:
        if not rows.inside(m) or m.end > rows.panel.begin + rows.shown:
            continue
        down = rows.tasks.index(m.to) > rows.tasks.index(m.sender)
        y0 = rows.y(m.sender) + rows.sizes.row * down
        y1 = rows.y(m.to) + rows.sizes.row * (not down)
        x0, y0, x1, y1 = map(number, (rows.x(m.start), y0, rows.x(m.end), y1))
        lines[m.kind].append(f"M{x0} {y0}L{x1} {y1}")
    for kind, found in lines.items():
        colour = "#6b2f53" if rows.enlarged else KINDS[kind][0]
        more = f'stroke="{colour}" stroke-width="1.1" marker-end="url(#{kind})"'
        drawing.lines.append(f"<g {more}>")
        for d in found:
            drawing.path(d, "")
        drawing.lines.append("</g>")


def draw_bars(drawing, rows):
    """Draws the bars, the long ones first, and what is written on them."""
    bars = [bar for bar in rows.panel.timeline.bars if rows.shows(bar)]
    order = ["gradient", "forward", "backward", "mini-batch", "wait", "all-reduce"]
    bars.sort(key=lambda bar: order.index(bar.kind) if bar.kind in order else 9)
    for bar in bars:
        x, end, y = rows.x(bar.start), rows.x(bar.end), rows.y(bar.task)
        width, height = max(LEAST, end - x), rows.sizes.row
        fill, more = KINDS[bar.kind][0], ""
        if bar.kind == "gradient" and bar.round.became != APPLIED:
            fill = KINDS["late"][0]
        if bar.kind in ("gradient", "forward", "backward", "mini-batch"):
            more = ' stroke="#fff" stroke-width="1"'
        if bar.kind == "average":
            y, height = y + height - 9, 9
        if half(bar) is not None:
            y, height = y + height / 2 * half(bar), height / 2
        if bar.kind == "between":
            y, height = rows.middle(bar.task) - 2, 4
        drawing.rect(x, y, width, height, fill, more)


def half(bar):
    """Returns which half of its row a bar takes, None if it has all of it."""
    return 1 if bar.kind == "all-reduce" and bar.round.beside else HALVES.get(bar.kind)


def write_words(drawing, rows):
    """Writes on bars, and beside them, what has room."""
    bars = [bar for bar in rows.panel.timeline.bars if rows.shows(bar)]
    write_gradients(drawing, rows, bars)
    write_kinds(drawing, rows, bars)
    write_numbers(drawing, rows, bars)


def write_gradients(drawing, rows, bars):
    """Writes the number of its update, and its staleness, on each gradient."""
    work = collections.defaultdict(list)
    for bar in bars:
        if bar.kind in ("gradient", "forward", "backward"):
            work[bar.task, bar.round if bar.kind == "gradient" else bar].append(bar)
    stale = rows.panel.timeline.stale
    for (task, one), group in work.items():
        pairs = zip(group, group[1:], strict=False)
        parted = any(b.start > a.end for a, b in pairs)  # by gathers
        if parted:
            group = [max(group, key=lambda bar: bar.end - bar.start)]
        x, end = rows.x(group[0].start), rows.x(group[-1].end)
        texts = [[group[0].text]]
        if group[0].kind == "gradient" and one.became != APPLIED:
            texts = [["too late"], ["late"]]
        elif group[0].kind == "gradient" and not one.quiet:
            long, short = f"update {one.step}", str(one.step)
            if one.number is not None:
                long, short = f"round {one.number}", f"r {one.number}"
            texts = [[long]] if parted else [[long], [short]]
            if stale:
                texts = [
                    [long, f"staleness {one.staleness}"],
                    [long, f"τ {one.staleness}"],
                    [short, f"τ {one.staleness}"],
                ]
        if rows.sizes is TOGETHER:
            texts = [lines[:1] for lines in texts]
        room = [t for t in texts if max(map(width_of, t)) < end - x - 4]
        if room:
            halo = "on" if len(group) > 1 and one.became == APPLIED else ""
            write(drawing, (x + end) / 2, rows.middle(task), room[0], halo)


def write(drawing, x, y, lines, halo=""):
    """Writes one or two lines into a row, around its middle y."""
    first = y + (4 if len(lines) == 1 else -3)
    for n, line in enumerate(lines):
        drawing.text(x, first + 14 * n, line, ' text-anchor="middle"', halo)


def write_kinds(drawing, rows, bars):
    """Writes its word on every other bar that is long enough."""
    for bar in bars:
        x, end = rows.x(bar.start), rows.x(bar.end)
        if bar.kind in ("wait", "all-reduce", "mini-batch", "late", *HALVES):
            word, y = bar.text or KINDS[bar.kind][1], rows.middle(bar.task)
            if half(bar) is not None:
                y += rows.sizes.row * (half(bar) / 2 - 0.25)
            if width_of(word) < end - x - 4:
                halo = "halo" if bar.kind == "wait" else ""
                write(drawing, (x + end) / 2, y, [word], halo)


def write_numbers(drawing, rows, bars):
    """Writes the numbers of updates beside them on a ps, those that have room."""
    for task in rows.tasks:
        made = [b for b in bars if b.kind == "update" and b.task == task]
        made.sort(key=lambda bar: bar.start)
        xs = [rows.x(bar.end) for bar in made] + [WIDTH - RIGHT + 4]
        gaps = [b - a for a, b in zip(xs, xs[1:], strict=False)]
        wide = [width_of(str(bar.round.step)) + 8 for bar in made]
        fit = [g > w for g, w in zip(gaps, wide, strict=True)]
        if task[:2] == "ps" and sum(fit) > len(fit) / 2:
            for bar, x, fits in zip(made, xs, fit, strict=False):
                text = str(bar.round.step) if fits else ""
                drawing.text(x + 4, rows.middle(task) + 4, text)


def draw_axis(drawing, rows, y):
    """Draws the milliseconds; returns where it ends."""
    for time in rows.times():
        x = rows.x(rows.panel.begin + time)
        last = time == rows.times()[-1]
        anchor = ' text-anchor="end"' if last else ' text-anchor="middle"'
        text = f"{time} ms" if last else str(time)
        drawing.text(x, y + 20, text, anchor + ' class="f"')
    return y + AXIS


def draw_legend(drawing, kinds, stale, y):
    """Draws what colours and hatches mean; returns where it ends."""
    x, y = LEFT, y + 8
    for kind, (fill, word) in KINDS.items():
        if kind not in kinds:
            continue
        # Some fonts, such as DejaVu Sans, are nearly a fifth wider than others.
        room = 1.18 * width_of(word)
        if x + 19 + room > WIDTH - RIGHT:
            x, y = LEFT, y + 20
        drawing.rect(x, y, 14, 12, fill, f' stroke="{LINE}" stroke-width=".6"')
        drawing.text(x + 19, y + 10.5, word, ' class="f"')
        x += 19 + room + 8
    if stale:
        text = "τ: staleness"
        drawing.text(x, y + 10.5, text, ' class="f"')
    return y + 26
