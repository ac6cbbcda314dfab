// Draws what tools/timeline_picture.py does, on a canvas and for any moment: a row for
// each task, bars on it, arrows for messages. The colours are those of index.html.

const timeline_picture = (() => {
  const LEFT = 64, TOP = 4; // pixels, before the bars of a row, and above the first row
  const KINDS = ["gradient", "pull", "push", "sum", "update", "all-reduce", "average", "call"];
  const PAPER = "#ffffff", ON_BAR = "#1f2328";

  /** Returns what is filled with what, as the page is light or dark now. */
  function theme() {
    const style = getComputedStyle(document.body), found = {};
    for (const name of ["ink", "faint", "lane", "hatch", "late", ...KINDS]) {
      found[name] = style.getPropertyValue(`--${name}`);
    }
    found.wait = hatch(found.lane, found.hatch, 1.3);
    found.late = hatch(PAPER, found.late, 2.4);
    return found;
  }

  /** Returns a pattern of slanted lines. */
  function hatch(ground, stroke, wide) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const on = tile.getContext("2d");
    on.fillStyle = ground;
    on.fillRect(0, 0, 8, 8);
    on.strokeStyle = stroke;
    on.lineWidth = wide;
    for (const x of [-8, 0, 8]) line(on, x - 1, 9, x + 9, -1);
    return on.createPattern(tile, "repeat");
  }

  function line(context, x0, y0, x1, y1) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  function write(context, text, x, y, colour, align) {
    context.fillStyle = colour;
    context.textAlign = align;
    context.fillText(text, x, y);
  }

  /** Returns a canvas's context, in CSS pixels, cleared. */
  function cleared(canvas, height) {
    const context = canvas.getContext("2d"), scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * scale; // which clears it, too
    canvas.height = height * scale;
    context.scale(scale, scale);
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    return context;
  }

  /** Returns the sizes of a run's rows: of `first` ps, and then of the workers. */
  function rows_of(setup) {
    const first = setup.peers || setup.scheme === "Gossip-SGD" ? 0 : setup.ps;
    const count = first + setup.workers;
    const [row, gap] = count <= 10 ? [24, 8] : count <= 18 ? [15, 5] : [8, 2];
    const y = (index) => TOP + index * (row + gap) + (first && index >= first ? 6 : 0);
    return { first, count, row, gap, y };
  }

  /** Returns the worker whose row is nearest to y. */
  function worker_at(setup, y) {
    const { first, row, gap, y: top } = rows_of(setup);
    const worker = Math.floor((y - top(first)) / (row + gap));
    return Math.min(setup.workers - 1, Math.max(0, worker));
  }

  /** Draws what all tasks did in the `span` seconds before `now`; returns the kinds seen. */
  function draw(canvas, { setup, simulation }, now, span) {
    const colours = theme(), seen = new Set(), { first, count, row, y } = rows_of(setup);
    const right = canvas.clientWidth - 6, bottom = y(count);
    const few = (setup.gradient * (right - LEFT)) / span > 5; // pixels of a gradient
    const context = cleared(canvas, bottom + 22);
    const begin = Math.max(0, now - span);
    const inside = (time) => Math.min(Math.max(time, begin), now) - begin;
    const x = (time) => LEFT + (inside(time) / span) * (right - LEFT);
    const rect = (from, to, index, kind, high = row) => {
      context.fillStyle = colours[kind];
      const wide = Math.max(few ? 1.5 : 0.5, x(to) - x(from));
      context.fillRect(x(from), y(index) + (row - high) / 2, wide, high);
      seen.add(kind);
    };
    const arrow = (kind, from, y0, to, y1) => {
      if (row < 15 || !few || to > now || from < begin) return;
      context.strokeStyle = colours[kind];
      line(context, x(from), y0, x(to), y1);
      seen.add(kind);
    };
    const label = (texts, from, to, index, colour, ground) => {
      const middle = (x(from) + x(to)) / 2, at = y(index) + row / 2;
      const wide = (text) => context.measureText(text).width + 8;
      const text = texts.find((one) => row > 13 && wide(one) < x(to) - x(from));
      if (!text) return;
      context.fillStyle = ground || "transparent";
      context.fillRect(middle - wide(text) / 2, at - 8, wide(text), 16);
      write(context, text, middle, at + 0.5, colour, "center");
    };

    for (let index = 0; index < count; index++) {
      context.fillStyle = colours.lane;
      context.fillRect(LEFT, y(index), right - LEFT, row);
      const name = index < first ? `ps ${index}` : `worker ${index - first}`;
      if (row < 12 && index > first && (index - first) % 4) continue;
      write(context, name, LEFT - 8, y(index) + row / 2, colours.ink, "right");
    }
    const shown = (all) => all.filter((one) => one.start < now && one.end > begin);
    const bars = [...shown(simulation.bars), ...shown(simulation.lost)];
    // Gradients first: what AEASGD and Gossip-SGD do meanwhile is drawn over them.
    bars.sort((a, b) => (b.kind === "gradient") - (a.kind === "gradient"));
    const foot = y(first - 1) + row; // of the last ps
    for (const { worker, kind, start, end } of bars) {
      if (kind === "pull") arrow(kind, start, foot, end, y(first + worker));
      if (kind === "push") arrow(kind, start, y(first + worker), end, foot);
    }
    for (const bar of bars) {
      const kind = bar.late && bar.end <= now ? "late" : bar.kind;
      rect(bar.start, bar.end, first + bar.worker, kind, kind === "call" ? 4 : row);
    }
    for (const { worker, other, start, middle, end } of shown(simulation.averages)) {
      const [from, to] = [y(worker) + row / 2, y(other) + row / 2];
      arrow("average", start, from, middle, to);
      arrow("average", middle, to, end, from);
    }
    const ticks = (times, index, kind) => {
      for (const time of times) if (time > begin && time <= now) rect(time, time, index, kind);
    };
    for (let index = 0; index < first; index++) {
      ticks(simulation.added, index, "sum");
      ticks(simulation.opened, index, "update");
    }
    for (const { worker, start, end, killed } of shown(simulation.gone)) {
      context.strokeStyle = colours.faint;
      context.setLineDash([3, 3]);
      context.strokeRect(x(start), y(first + worker) + 0.5, x(end) - x(start), row - 1);
      context.setLineDash([]);
      label([killed ? "killed" : "stopped"], start, end, first + worker, colours.ink);
      seen.add("killed");
    }
    for (const bar of bars) {
      const { worker, kind, start, end, late, stale, update } = bar;
      if (end > now) continue;
      if (kind === "wait") label([kind], start, end, first + worker, colours.ink, colours.lane);
      if (kind === "all-reduce") label([kind], start, end, first + worker, ON_BAR);
      if (kind !== "gradient") continue;
      const texts = late ? ["too late", "late"] : stale !== undefined
        ? [`staleness ${stale}`, `τ ${stale}`] : update ? [`update ${update}`, `${update}`] : [];
      label(texts, start, end, first + worker, ON_BAR, late && PAPER);
    }
    write(context, `${begin.toFixed(2)} s`, LEFT, bottom + 12, colours.faint, "left");
    write(context, `${(begin + span).toFixed(2)} s`, right, bottom + 12, colours.faint, "right");
    return seen;
  }

  return { draw, worker_at };
})();
