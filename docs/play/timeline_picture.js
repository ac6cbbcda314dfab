// Draws what tools/timeline_picture.py does, on a canvas and for any moment: a row for
// each task, bars on it, arrows for messages. And the loss of both sides against time.

const timeline_picture = (() => {
  // kind: fill, what the legend says, as in the pictures of the folders
  const KINDS = {
    gradient: ["#bfe0f5", "gradient"],
    late: ["", "thrown away, or lost"],
    pull: ["#0072b2", "pull"],
    push: ["#d55e00", "push"],
    sum: ["#7fceb6", "added to the sum"],
    update: ["#009e73", "update"],
    "all-reduce": ["#cc79a7", "all-reduce"],
    average: ["#cc79a7", "average"],
    wait: ["", "wait"],
    call: ["#b7bfc8", "between two calls"],
    killed: ["", "killed"],
  };
  const ON_BAR = "#1f2328", LEAST = 1.5; // pixels of a bar, where bars are not many
  const FONT = "-apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif";

  let known = null; // the colours of the page, until it becomes light or dark
  if (typeof matchMedia !== "undefined") {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { known = null; });
  }
  function look() {
    if (known) return known;
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return known = { ink: of("ink"), faint: of("faint"), line: of("line"), lane: of("lane"),
      page: of("card"), hatch: of("hatch"), a: of("side-a"), b: of("side-b") };
  }

  /** Returns a pattern of slanted lines. */
  function hatch(context, ground, stroke, wide) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const on = tile.getContext("2d");
    on.fillStyle = ground;
    on.fillRect(0, 0, 8, 8);
    on.strokeStyle = stroke;
    on.lineWidth = wide;
    on.beginPath();
    for (const x of [-8, 0, 8]) { on.moveTo(x - 1, 9); on.lineTo(x + 9, -1); }
    on.stroke();
    return context.createPattern(tile, "repeat");
  }

  /** Returns a canvas's context, in CSS pixels, cleared. */
  function cleared(canvas, height) {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    const pixels = [width, height].map((one) => Math.round(one * scale));
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
      canvas.style.height = `${height}px`;
      [canvas.width, canvas.height] = pixels;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `12px ${FONT}`;
    context.textBaseline = "middle";
    return { context, width };
  }

  function write(context, text, x, y, colour, align = "left") {
    context.fillStyle = colour;
    context.textAlign = align;
    context.fillText(text, x, y);
  }

  /** Returns the rows of a run: [name, worker or null], and their sizes. */
  function rows_of(setup) {
    const none = setup.peers || setup.scheme === "Gossip-SGD";
    const rows = none ? [] : [...Array(setup.ps).keys()].map((j) => [`ps ${j}`, null]);
    for (let k = 0; k < setup.workers; k++) rows.push([`worker ${k}`, k]);
    const [row, gap] = rows.length <= 10 ? [24, 8] : rows.length <= 18 ? [15, 5] : [8, 2];
    return { rows, row, gap, first: none ? 0 : setup.ps, left: 64, top: 4, apart: none ? 0 : 6 };
  }

  /** Returns which worker's row is at y, or null. */
  function worker_at(setup, y) {
    const { rows, row, gap, top, apart, first } = rows_of(setup);
    const found = rows[Math.max(first, Math.floor((y - top - apart) / (row + gap)))];
    return found ? found[1] : null;
  }

  /** Draws what all tasks did in the `span` seconds before `now`; returns the kinds seen. */
  function draw(canvas, run, now, span) {
    const { setup, simulation } = run, theme = look();
    const { rows, row, gap, first, left, top, apart } = rows_of(setup);
    const few = (setup.gradient * (canvas.clientWidth - left)) / span > 5; // pixels of one
    const bottom = top + apart + rows.length * (row + gap), seen = new Set();
    const { context, width } = cleared(canvas, bottom + 22);
    const begin = Math.max(0, now - span), right = width - 6;
    const inner = (time) => Math.min(Math.max(time, begin), now) - begin;
    const x = (time) => left + (inner(time) / span) * (right - left);
    const y = (index) => top + index * (row + gap) + (index >= first ? apart : 0);
    const wait = hatch(context, theme.lane, theme.hatch, 1.3);
    const late = hatch(context, "#ffffff", "#7db9dd", 2.4);
    const fills = { wait, late };
    const rect = (from, to, index, kind, more = 0) => {
      context.fillStyle = fills[kind] || KINDS[kind][0];
      const wide = Math.max(few ? LEAST : 0.5, x(to) - x(from));
      context.fillRect(x(from), y(index) + more, wide, row - 2 * more);
      seen.add(kind);
    };

    rows.forEach(([name], index) => {
      context.fillStyle = theme.lane;
      context.fillRect(left, y(index), right - left, row);
      const small = row < 12 && (index - first) % 4 && index >= first;
      if (!small) write(context, name, left - 8, y(index) + row / 2, theme.ink, "right");
    });
    const bars = simulation.bars, lines = { pull: [], push: [] };
    const inside = simulation.lost.filter((one) => one.start < now && one.end > begin);
    for (let k = after(bars, begin, "end"); k < bars.length; k++) {
      if (bars[k].end > now + run.longest) break;
      if (bars[k].start < now) inside.push(bars[k]);
    }
    if (row > 12 && few) {
      for (const { worker, kind, start, end } of inside) {
        if (kind === "pull") lines.pull.push([start, y(first - 1) + row, end, y(first + worker)]);
        if (kind === "push") lines.push.push([start, y(first + worker), end, y(first - 1) + row]);
      }
      for (const one of simulation.averages) {
        if (one.end < begin || one.start > now) continue;
        const [upper, lower] = [y(one.worker), y(one.other)];
        (lines.average = lines.average || []).push(
          [one.start, upper + row / 2, one.middle, lower + row / 2],
          [one.middle, lower + row / 2, one.end, upper + row / 2]);
        seen.add("average");
      }
    }
    const arrows = (kind) => {
      context.strokeStyle = KINDS[kind][0];
      context.lineWidth = 1.1;
      context.beginPath();
      for (const [from, y0, to, y1] of lines[kind] || []) {
        if (to > now || from < begin) continue;
        context.moveTo(x(from), y0);
        context.lineTo(x(to), y1);
      }
      context.stroke();
    };
    arrows("pull");
    arrows("push");
    const thin = { call: row / 2 - 2 };
    inside.sort((a, b) => (b.kind === "gradient") - (a.kind === "gradient"));
    for (const bar of inside) {
      const kind = bar.late && bar.end <= now ? "late" : bar.kind;
      rect(bar.start, bar.end, first + bar.worker, kind, thin[kind] || 0);
    }
    arrows("average");
    context.fillStyle = "#ffffff";
    if (few) simulation.steps.forEach((ends, k) => {
      for (let i = after(ends, begin); i < ends.length && ends[i] < now; i++) {
        context.fillRect(x(ends[i]) - 0.5, y(first + k), 1, row);
      }
    });
    for (const [worker, when, back] of setup.kills) {
      const all = setup.scheme === "Ring-All-Reduce";
      for (let k = 0; k < setup.workers; k++) {
        if ((!all && k !== worker) || when > now || when + back < begin) continue;
        context.strokeStyle = theme.faint;
        context.setLineDash([3, 3]);
        context.strokeRect(x(when), y(first + k) + 0.5, x(when + back) - x(when), row - 1);
        context.setLineDash([]);
        const word = k === worker ? "killed" : "stopped";
        label(context, word, x(when), x(when + back), y(first + k) + row / 2, theme.ink, row);
        seen.add("killed");
      }
    }
    for (let index = 0; index < first; index++) {
      const ticks = (from, time, kind, skip) => {
        for (let k = after(from, begin, time); k < from.length; k++) {
          const at = time ? from[k][time] : from[k];
          if (at > now) break;
          if (!skip || !skip(from[k])) rect(at, at, index, kind);
        }
      };
      const sums = setup.scheme === "Synchronous-SGD" ? simulation.pushes : [];
      ticks(sums, "time", "sum", (push) => push.late);
      ticks(simulation.opened, undefined, "update");
    }
    for (const bar of inside) {
      words(context, bar, x, y(first + bar.worker) + row / 2, row, now, theme);
    }
    axis(context, begin, span, left, right, bottom + 8, theme);
    return seen;
  }

  /** Returns the index of the first that is after a time; all are in order. */
  function after(all, time, key) {
    let low = 0, high = all.length;
    for (; low < high; ) {
      const middle = (low + high) >> 1;
      if ((key ? all[middle][key] : all[middle]) <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function label(context, text, from, to, y, colour, row) {
    if (row < 14 || context.measureText(text).width > to - from - 6) return false;
    write(context, text, (from + to) / 2, y + 0.5, colour, "center");
    return true;
  }

  /** Writes on a bar what has room: its staleness, or its update, or its kind. */
  function words(context, bar, x, y, row, now, theme) {
    const { kind } = bar, from = x(bar.start), to = x(bar.end);
    if (bar.end > now) return;
    let texts = kind === "wait" || kind === "all-reduce" ? [kind] : [];
    if (kind === "gradient") {
      if (bar.late) texts = ["too late", "late"];
      else if (bar.stale !== undefined) texts = [`staleness ${bar.stale}`, `τ ${bar.stale}`];
      else if (bar.update) texts = [`update ${bar.update}`, `${bar.update}`];
    }
    const colour = kind === "wait" ? theme.ink : ON_BAR;
    for (const text of texts) {
      if (kind === "wait" || bar.late) {
        const wide = context.measureText(text).width + 8;
        if (row < 14 || wide > to - from - 2) continue;
        context.fillStyle = kind === "wait" ? theme.lane : "#ffffff";
        context.fillRect((from + to - wide) / 2, y - 8, wide, 16);
      }
      if (label(context, text, from, to, y, colour, row)) return;
    }
  }

  /** Returns about `count` round numbers from a time on. */
  function round_times(begin, span, count) {
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const found = [];
    for (let k = Math.ceil(begin / step - 1e-9); k * step <= begin + span * (1 + 1e-9); k++) {
      found.push(k * step);
    }
    return found;
  }

  function axis(context, begin, span, left, right, y, theme) {
    const times = round_times(begin, span, 4);
    const unit = begin + span < 1.5 ? [1000, " ms"] : [1, " s"];
    times.forEach((time, k) => {
      const at = left + ((time - begin) / span) * (right - left);
      const value = Number((time * unit[0]).toFixed(3)).toLocaleString("en");
      const text = value + (k === 0 ? unit[1] : "");
      const align = at > right - 20 ? "right" : at < left + 20 ? "left" : "center";
      write(context, text, at, y + 4, theme.faint, align);
    });
  }

  /** Draws the loss of both sides on a scale of powers of ten: faint, or `hidden`, after
      `now`. */
  function curves(canvas, runs, now, seconds, target, hidden) {
    const theme = look(), height = canvas.clientWidth < 300 ? 230 : 290;
    const { context, width } = cleared(canvas, height);
    const left = 46, right = width - 12, top = 12, bottom = height - 26;
    const x = (time) => left + (time / seconds) * (right - left);
    const y = (loss) => {
      const power = Math.log10(Math.min(Math.max(loss, 1e-3), 10)); // 1 to −3
      return top + ((1 - power) / 4) * (bottom - top);
    };
    context.lineWidth = 1;
    for (const loss of [10, 1, 0.1, 0.01, 0.001]) {
      context.strokeStyle = theme.line;
      context.beginPath();
      context.moveTo(left, y(loss));
      context.lineTo(right, y(loss));
      context.stroke();
      write(context, String(loss), left - 8, y(loss), theme.faint, "right");
    }
    context.strokeStyle = theme.faint;
    context.setLineDash([2, 4]);
    context.beginPath();
    context.moveTo(left, y(target));
    context.lineTo(right, y(target));
    context.stroke();
    context.setLineDash([]);
    write(context, "goal", left - 8, y(target) + 1, theme.ink, "right");
    ["a", "b"].forEach((side) => {
      const { curve, reached } = runs[side];
      context.strokeStyle = theme[side];
      context.lineWidth = 2.4;
      context.setLineDash(side === "b" ? [7, 4] : []);
      context.lineJoin = "round";
      context.beginPath();
      for (const { time, loss } of curve) if (time <= now) context.lineTo(x(time), y(loss));
      context.stroke();
      if (!hidden) {
        context.globalAlpha = 0.3;
        context.beginPath();
        for (const { time, loss } of curve) if (time >= now) context.lineTo(x(time), y(loss));
        context.stroke();
        context.globalAlpha = 1;
      }
      context.setLineDash([]);
      if (reached !== null && (reached <= now || !hidden)) {
        context.fillStyle = theme[side];
        context.beginPath();
        context.arc(x(reached), y(target), 5, 0, 7);
        context.fill();
      }
    });
    for (const time of round_times(0, seconds, 5)) {
      const align = time === 0 ? "left" : x(time) > right - 16 ? "right" : "center";
      write(context, `${time}${time === 0 ? " s" : ""}`, x(time), bottom + 14, theme.faint, align);
    }
  }

  return { KINDS, draw, curves, worker_at };
})();
if (typeof module !== "undefined") module.exports = timeline_picture;
