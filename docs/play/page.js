// The page: runs both sides when something is set, shows what comes of it, and plays it.
// An input has the name that its value has in the state.

(() => {
  const { schemes: SCHEMES, cluster: CLUSTER, side: SIDE, slow: SLOW } = words;
  const { presets: PRESETS, questions: QUESTIONS } = words, { SIDES } = play;
  const { draw, worker_at } = timeline_picture;
  const byId = (id) => document.getElementById(id);
  const write = (id, text) => { byId(id).textContent = text; };
  const few = (x) => (x && x < 10 ? x.toFixed(1) : x.toFixed(0));
  let now, runs, at = Infinity, playing = null, question, timer = null;
  const picked = () => byId("question").elements.answer.value;

  /** Returns a new element with attributes and children. */
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // --- State --------------------------------------------------------------------

  function set(name, value) {
    const changes = { ...now, [name]: value }, [, worker] = name.split("slow.");
    if (worker) changes.slow = now.slow.map((old, k) => (k === Number(worker) ? value : old));
    if (SIDES.includes(name)) for (const key in SIDE) delete changes[`${name}.${key}`];
    now = play.state(changes);
    if (question) at = Infinity;
    question = undefined;
    history.replaceState(null, "", `#${play.to_hash(now)}`);
    clearTimeout(timer);
    timer = setTimeout(refresh, 80);
  }

  function load() {
    question = QUESTIONS.find((one) => `#${one.id}` === location.hash);
    byId("question").reset();
    now = play.from_hash(location.hash);
    at = question ? 0 : Infinity;
    refresh();
  }

  /** Runs both sides, and shows all that depends on it. */
  function refresh() {
    clearTimeout(timer);
    stop();
    runs = Object.fromEntries(SIDES.map((side) => [side, play.run(now, side)]));
    const [kill] = runs.a.setup.kills;
    if (at === Infinity && kill) at = kill[1] + 0.6 * span();
    at = Math.min(at, runs.a.end, runs.b.end);
    show_fields();
    show_case();
    for (const side of SIDES) show_side(side);
    show_curves();
    show_numbers();
    byId("hosts").hidden = !play.on_hosts(now);
    if (/\.github\.io$/.test(location.hostname)) links_of_pages();
    paint();
  }

  /** GitHub Pages has a folder's README.md at the folder, and other pages as HTML. */
  function links_of_pages() {
    for (const link of document.links) {
      link.href = link.href.replace(/README\.md/, "").replace(/\.md/, ".html");
    }
  }

  // --- What is set ----------------------------------------------------------------

  /** Returns a labelled input of the name. */
  function field(name, { label, choices, ...limits }) {
    const title = element("span", {}, label);
    const options = Object.entries(choices || {}).map(([value, text]) =>
      element("option", { value }, text));
    const input = choices ? element("select", { name }, ...options)
      : element("input", { name, type: "range", ...limits });
    if (input.type === "range") title.append(element("output"));
    return element("label", { class: "field" }, title, input);
  }

  function make_fields() {
    for (const key in CLUSTER) byId("cluster").append(field(key, CLUSTER[key]));
    for (let k = 0; k < CLUSTER.workers.max; k++) {
      const label = `worker ${k}, ${SLOW.label}`;
      byId("speeds").append(field(`slow.${k}`, { ...SLOW, label }));
    }
    for (const side of SIDES) {
      for (const name in SCHEMES) byId(`${side}-scheme`).append(element("option", {}, name));
      for (const key in SIDE) byId(`${side}-fields`).append(field(`${side}.${key}`, SIDE[key]));
    }
  }

  function show_fields() {
    const values = { ...now };
    now.slow.forEach((times, k) => { values[`slow.${k}`] = times; });
    for (const input of document.querySelectorAll(".field [name]")) {
      const value = values[input.name], output = input.parentNode.querySelector("output");
      input.parentNode.hidden = value === undefined;
      // What somebody types into stays as it is.
      if (input.type !== "number" || input !== document.activeElement) input.value = value ?? "";
      if (output) output.textContent = value;
    }
  }

  // --- The case: a preset, or a question -----------------------------------------

  function show_case() {
    const hash = play.to_hash(now), order = QUESTIONS.indexOf(question) + 1;
    const same = !question && PRESETS.find((one) => play.to_hash(play.from_hash(one.on)) === hash);
    const shown = question ? "#question-1" : same && `#${same.id}`;
    for (const link of byId("presets").children) {
      link.setAttribute("aria-current", link.getAttribute("href") === shown);
    }
    write("told", question ? `Question ${order} of 8. ${question.told}`
      : same ? same.told : words.own);
    byId("measured").replaceChildren(...(same ? measured_of(same) : []));
    byId("question").hidden = !question;
    byId("play").disabled = question && !picked();
    byId("next").href = `#${QUESTIONS[order % QUESTIONS.length].id}`;
    if (question) show_question();
  }

  function measured_of(preset) {
    const { real, ratio, off } = play.compare(preset);
    const [one, two] = preset.measured.map((value) => value.toLocaleString("en"));
    const told = (x) => (x < 1 ? `1 : ${(1 / x).toPrecision(2)}` : `${x.toPrecision(2)} : 1`);
    const percent = Math.round(100 * Math.abs(off));
    return [element("a", { href: words.links[preset.link] }, "Measured"),
      ` with real processes: ${one} and ${two} ${preset.what}. That is ${told(real)}. `,
      `The simulation has ${told(ratio)}`,
      percent <= 25 ? "." : `, which is ${percent} % off. ${preset.leaves}`];
  }

  function show_question() {
    for (const side of SIDES) write(`answer-${side}`, name_of(side));
    const done = picked() && at >= now.seconds;
    const right = picked() === play.first(runs.a, runs.b) ? "Right" : "Not so";
    const goals = SIDES.map((side) => `${name_of(side)}: ${reached_by(runs[side])}`);
    write("verdict", done ? `${right}. ${goals.join("; ")}. ${question.why}` : "");
    byId("next").hidden = !done;
  }

  function reached_by(run) {
    if (run.reached !== null) return `after ${few(run.reached)} s`;
    return run.diverged ? "diverges" : `not in ${now.seconds} s`;
  }

  // --- Both sides -------------------------------------------------------------------

  function name_of(side) {
    const { scheme, window, bound, backup, quorum } = play.own(now, side);
    if (window) return `${scheme}, T = ${window}${quorum ? `, K = ${quorum}` : ""}`;
    if (bound !== undefined) return `${scheme}, s = ${bound}`;
    return backup ? `${scheme}, ${backup} backup worker${backup > 1 ? "s" : ""}` : scheme;
  }

  function show_side(side) {
    const scheme = now[side], { whole, end } = runs[side];
    for (const place of ["name", "key", "head"]) write(`${place}-${side}`, name_of(side));
    write(`told-${side}`, play.explain(now, side));
    write(`more-${side}`, `More on ${scheme}`);
    byId(`more-${side}`).href = `../../${scheme}/README.md`;
    write(`cut-${side}`, whole ? ""
      : `Only the first ${few(end)} s of so many events are simulated.`);
    write(`command-${side}`, play.command(now, side));
  }

  const ROWS = [
    ["Reaches the goal", reached_by],
    ["Updates a second", ({ total }) => few(total.updates)],
    ["Examples a second, 32 a gradient", ({ total }) => Math.round(total.examples).toLocaleString("en")],
    ["Mean staleness", ({ total }) => few(total.staleness)],
    ["Largest staleness", ({ total }) => total.most],
    ["Workers wait", ({ total }) => `${Math.round(100 * total.waited)} % of the time`],
    ["Busiest cable, how full", ({ total, setup }) =>
      `${few(total.busiest / 1e6)} MB/s, ${Math.round((800 * total.busiest) / setup.bandwidth)} %`],
  ];

  function show_numbers() {
    const hidden = question && at < now.seconds;
    byId("numbers").replaceChildren(...ROWS.map(([title, of]) => element("tr", {},
      element("th", { scope: "row" }, title),
      ...SIDES.map((side) => element("td", {}, hidden ? "–" : of(runs[side]))))));
  }

  // --- Pictures ---------------------------------------------------------------------

  /** Draws the losses on a scale of powers of ten, 10 to 0.001, in a square of 100. */
  function show_curves() {
    const x = (time) => (100 * time) / now.seconds;
    const y = (loss) => 25 * (1 - Math.log10(Math.min(Math.max(loss, 1e-3), 10)));
    for (const side of SIDES) {
      const { curve, reached } = runs[side];
      const points = curve.map(({ time, loss }) => `${x(time)} ${y(loss)}`);
      byId(`curve-${side}`).setAttribute("d", `M${points.join("L")}`);
      const dot = reached === null ? "" : `M${x(reached)} ${y(play.TARGET)}h0`;
      byId(`dot-${side}`).setAttribute("d", dot);
    }
    [...byId("times").children].forEach((one, k) => {
      one.textContent = `${(k * now.seconds) / 5} s`;
    });
    byId("later").style.display = question ? "none" : "";
  }

  /** Returns how many seconds the lanes show: a few rounds of the slowest worker. */
  function span() {
    const gradient = now.gradient / 1000, slowest = Math.max(...now.slow) * gradient;
    const rounds = Object.values(runs).map(({ setup }) => slowest * setup.steps +
      (setup.peers ? 2 * setup.all_reduce(setup.whole)
        : setup.trip + 2 * setup.wire(setup.whole)));
    return Math.min(now.seconds, Math.max(12 * gradient, 2.4 * Math.max(...rounds)));
  }

  function paint() {
    const seen = new Set(), shown = span();
    for (const side of SIDES) {
      for (const kind of draw(byId(`lanes-${side}`), runs[side], at, shown)) seen.add(kind);
    }
    byId("past").setAttribute("width", (100 * at) / now.seconds);
    byId("time").value = at / now.seconds;
    write("clock", `${at.toFixed(2)} s`);
    for (const item of document.querySelectorAll("[data-kind]")) {
      item.hidden = !seen.has(item.dataset.kind);
    }
  }

  // --- Playing: slowly at first, to be followed by eye, then faster -------------------

  function start() {
    if (at >= now.seconds) at = 0;
    playing = { began: performance.now(), last: performance.now(), slow: span() / 4 };
    write("play", "Pause");
    requestAnimationFrame(tick);
  }
  function stop() {
    playing = null;
    write("play", "Play");
  }
  function tick(moment) {
    if (!playing) return;
    const { began, last, slow } = playing, gone = Math.max(0, moment - began) / 1000;
    const pace = Math.min(slow * 2 ** Math.max(0, gone - 4), now.seconds / 4);
    playing.last = moment;
    move(at + (pace * Math.max(0, moment - last)) / 1000);
    if (playing) requestAnimationFrame(tick);
    else if (question) byId("case").scrollIntoView({ block: "nearest" });
  }
  function move(to) {
    at = Math.min(now.seconds, to);
    if (at >= now.seconds) {
      stop();
      show_case();
      show_numbers();
    }
    paint();
  }

  byId("play").onclick = () => (playing ? stop() : start());
  document.oninput = ({ target: { id, name, value } }) => {
    if (name === "answer") byId("play").disabled = false;
    else if (id === "time") {
      stop();
      move(value * now.seconds);
    } else if (value !== "") set(name, value);
  };

  // A worker's row can be dragged to slow the worker.
  for (const side of SIDES) {
    const canvas = byId(`lanes-${side}`);
    let held = null;
    canvas.onpointerdown = (e) => {
      const worker = worker_at(runs[side].setup, e.offsetY);
      held = { worker, x: e.clientX, times: now.slow[worker] };
      canvas.setPointerCapture(e.pointerId);
    };
    canvas.onpointermove = (e) => {
      if (!held) return;
      const times = play.clamp(SLOW, held.times + (e.clientX - held.x) / 30);
      if (times !== now.slow[held.worker]) set(`slow.${held.worker}`, times);
    };
    canvas.onpointerup = canvas.onpointercancel = () => { held = null; };
  }

  window.onhashchange = load;
  window.onresize = paint;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  make_fields();
  load();
})();
