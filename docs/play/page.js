// The page: builds its fields, runs both sides when something changes, and plays them.

(() => {
  const { PRESETS, QUESTIONS, SCHEMES, CLUSTER, SIDE, MEASURED, ms, few } = play;
  const { KINDS, draw, curves, worker_at } = timeline_picture;
  const SIDES = ["a", "b"], byId = (id) => document.getElementById(id);
  let now, runs, at = 0, playing = null, question = null, picked = null;

  /** Returns a new element with attributes, or `on…` functions, and children. */
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made[key] = value;
      else if (value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  // --- State --------------------------------------------------------------------

  /** Returns a state as the changes that make it. */
  function flat(state) {
    const found = { ...state, a: state.a.scheme, b: state.b.scheme };
    for (const side of SIDES) {
      for (const [key, value] of Object.entries(state[side])) found[`${side}.${key}`] = value;
    }
    return found;
  }

  function set(changes, without = "") {
    const kept = Object.entries(flat(now)).filter(([key]) => !without || !key.startsWith(without));
    now = play.state({ ...Object.fromEntries(kept), ...changes });
    leave_question();
    address(play.to_hash(now));
    later();
  }

  function address(hash) {
    history.replaceState(null, "", `#${hash}`);
  }

  function leave_question() {
    if (question === null) return;
    question = null;
    at = Infinity;
  }

  function load() {
    const asked = /^#question-([1-8])$/.exec(location.hash);
    question = asked ? Number(asked[1]) - 1 : null;
    picked = null;
    now = asked ? play.state(QUESTIONS[question].on) : play.from_hash(location.hash);
    at = asked ? 0 : Infinity;
    refresh();
  }

  function open(hash) {
    address(hash);
    load();
  }

  let timer = null;
  function later() {
    clearTimeout(timer);
    timer = setTimeout(refresh, 80);
  }

  /** Runs both sides, and shows all that depends on it. */
  function refresh() {
    clearTimeout(timer);
    stop();
    runs = Object.fromEntries(SIDES.map((side) => [side, play.run(now, side)]));
    for (const run of Object.values(runs)) {
      const lengths = run.simulation.bars.map((bar) => bar.end - bar.start);
      run.longest = lengths.reduce((a, b) => Math.max(a, b), 0);
      run.total = run.answer();
    }
    const [kill] = runs.a.setup.kills;
    if (at === Infinity && kill) at = kill[1] + 0.6 * span();
    at = Math.min(at, runs.a.end, runs.b.end);
    show_case();
    byId("play").disabled = question !== null && picked === null;
    show_fields();
    show_sides();
    byId("worth").textContent = play.window_worth(now);
    const both = (of) =>
      SIDES.map((side) => `${of(runs[side].total)} in ${name_of(side)}`).join(", and ");
    byId("stale").textContent = `Here it is ${both((total) => few(total.staleness))}.`;
    byId("waited").textContent = `Of their time, the workers here wait ${both(waited)}.`;
    show_commands();
    if (/\.github\.io$/.test(location.hostname)) links_of_pages();
    paint();
  }

  /** GitHub Pages has a folder's README.md at the folder, and other pages as HTML. */
  function links_of_pages() {
    for (const link of document.querySelectorAll("a[href*='.md']")) {
      link.href = link.href.replace(/README\.md/, "").replace(/\.md/, ".html");
    }
  }

  const waited = (total) => `${Math.round(100 * total.waited)} %`;

  function name_of(side) {
    const own = now[side], more = [];
    if (own.window) more.push(`T = ${own.window}`);
    if ("bound" in own) more.push(`s = ${own.bound}`);
    if (own.backup) more.push(`${own.backup} backup worker${own.backup > 1 ? "s" : ""}`);
    return [own.scheme, ...more].join(", ");
  }

  // --- The case: a preset, or a question -----------------------------------------

  const OWN = " Change the cluster, and see which scheme gains. The address of this page " +
    "holds all that is set, so that you can send it to somebody.";

  function show_case() {
    const hash = play.to_hash(now), list = byId("presets");
    const same = question === null &&
      PRESETS.find((one) => play.to_hash(play.state(one.on)) === hash);
    const button = (title, pressed, onclick) =>
      element("button", { type: "button", "aria-pressed": String(pressed), onclick }, title);
    const focused = [...list.children].indexOf(document.activeElement);
    list.replaceChildren(
      ...PRESETS.map((one) => button(one.title, one === same, () => open(one.id))),
      button("Eight questions", question !== null, () => open("question-1")));
    if (focused >= 0) list.children[focused].focus();
    const place = byId("case");
    if (question !== null) place.replaceChildren(...question_of());
    else if (same) place.replaceChildren(element("p", {}, same.told), measured_of(same));
    else place.replaceChildren(element("p", {}, play.describe(now), OWN));
  }

  function measured_of(preset) {
    const found = play.compare(preset), [one, two] = preset.measured;
    const off = Math.round(100 * Math.abs(found.off));
    const ratio = (x) => (x < 1 ? `1 : ${(1 / x).toPrecision(2)}` : `${x.toPrecision(2)} : 1`);
    const link = element("a", { href: MEASURED[preset.link] }, "Measured");
    const numbers = `${one.toLocaleString("en")} and ${two.toLocaleString("en")} ${preset.what}`;
    return element("p", { class: "measured" }, link, ` with real processes: ${numbers}. `,
      `That is ${ratio(found.real)}. The simulation has ${ratio(found.ratio)}`,
      off <= 25 ? "." : `, which is ${off} % off. ${preset.leaves}`);
  }

  function question_of() {
    const asked = QUESTIONS[question], done = at >= now.seconds;
    const options = [["a", name_of("a")], ["b", name_of("b")], ["same", "about the same"]];
    const choose = (value) => () => { picked = value; byId("play").disabled = false; };
    const fields = options.map(([value, text]) => element("label", {},
      element("input", { type: "radio", name: "answer", value, onchange: choose(value),
        checked: picked === value }), text));
    const title = element("strong", {}, `Question ${question + 1} of 8. `);
    const legend = "Which one reaches the goal first? Choose, then press Play.";
    const found = [element("p", {}, title, asked.told),
      element("fieldset", { class: "choices" }, element("legend", {}, legend), ...fields)];
    const verdict = element("div", { id: "verdict", role: "status" });
    if (done && picked !== null) verdict.append(...verdict_of(asked));
    return [...found, verdict];
  }

  function verdict_of(asked) {
    const right = picked === play.first(runs.a, runs.b);
    const next = (question + 1) % QUESTIONS.length;
    const said = element("strong", {}, right ? "Right. " : "Not so. ");
    const onclick = () => open(`question-${next + 1}`);
    const word = next ? "Next question" : "Begin again";
    return [element("p", {}, said, `${goals()}. ${asked.why}`),
      element("button", { type: "button", class: "go", onclick }, word)];
  }

  function goals() {
    return SIDES.map((side) => `${name_of(side)}: ${reached_by(runs[side])}`).join("; ");
  }

  function reached_by(run) {
    if (run.reached !== null) return `after ${few(run.reached)} s`;
    return run.diverged ? "diverges" : `not in ${now.seconds} s`;
  }

  // --- Fields ---------------------------------------------------------------------

  /** Returns a labelled field; `change(value)` is called with what it becomes. */
  function field(id, known, value, change, slider) {
    if (known.choices) {
      const sorted = Object.entries(known.choices).sort(([a], [b]) => a - b);
      const options = sorted.map(([key, text]) =>
        element("option", { value: key, selected: Number(key) === value }, text));
      const onchange = (e) => change(Number(e.target.value));
      return element("label", { class: "field" }, element("span", {}, known.label),
        element("select", { id, onchange }, ...options));
    }
    const { min, max, step } = known, shown = element("output", {}, String(value));
    const input = element("input", { id, type: slider ? "range" : "number", min, max,
      step: slider ? step : "any", value });
    input.oninput = () => {
      shown.textContent = input.value;
      if (input.value !== "") change(Number(input.value));
    };
    const name = element("span", {}, known.label, ...(slider ? [" ", shown] : []));
    return element("label", { class: "field" }, name, input);
  }

  /** Puts fields into a place. The one that is being used stays, or at least its focus. */
  function put(place, fields) {
    const used = document.activeElement, held = place.contains(used);
    if (held && place.children.length === fields.length) {
      [...place.children].forEach((old, k) => old.contains(used) || old.replaceWith(fields[k]));
      return;
    }
    place.replaceChildren(...fields);
    if (held && byId(used.id)) byId(used.id).focus();
  }

  function show_fields() {
    const of = (key) => field(key, CLUSTER[key], now[key], (value) => set({ [key]: value }), true);
    put(byId("cluster"), Object.keys(CLUSTER).map(of));
    put(byId("speeds"), now.slow.map((times, k) => {
      const known = { label: `worker ${k}, times`, min: 1, max: 8, step: 0.5 };
      return field(`slow-${k}`, known, times, (value) => slow_down(k, value), true);
    }));
  }

  function slow_down(worker, times) {
    set({ slow: now.slow.map((old, k) => (k === worker ? times : old)) });
  }

  function show_sides() {
    for (const side of SIDES) {
      const own = now[side];
      const options = Object.keys(SCHEMES).map((one) =>
        element("option", { selected: one === own.scheme }, one));
      const select = element("select", { id: `${side}-scheme`, "aria-labelledby": `name-${side}`,
        onchange: (e) => set({ [side]: e.target.value }, `${side}.`) }, ...options);
      const change = (key) => (value) => set({ [`${side}.${key}`]: value });
      const fields = Object.keys(SIDE).filter((key) => key in own).map((key) =>
        field(`${side}-${key}`, SIDE[key], own[key], change(key)));
      put(byId(`${side}-fields`), [element("div", { class: "field scheme" }, select), ...fields]);
      byId(`${side}-told`).replaceChildren(play.explain(now, side, runs[side].total), " ",
        element("a", { href: `../../${own.scheme}/README.md` }, `More on ${own.scheme}`));
      byId(`${side}-cut`).textContent = runs[side].whole ? ""
        : `Only the first ${few(runs[side].end)} s of so many events are simulated.`;
    }
    for (const side of SIDES) {
      const order = side === "a" ? "First scheme" : "Second scheme";
      byId(`name-${side}`).textContent = `${order}: ${name_of(side)}`; // for a screen reader
      for (const place of ["key", "head"]) byId(`${place}-${side}`).textContent = name_of(side);
    }
  }

  function show_commands() {
    for (const side of SIDES) byId(`command-${side}`).textContent = play.command(now, side);
    const hosts = now.trip > 0 || now.bandwidth < 1000;
    byId("hosts").hidden = !hosts;
  }

  // --- Pictures and numbers ---------------------------------------------------------

  /** Returns how many seconds the lanes show: a few rounds of the slowest worker. */
  function span() {
    const slowest = Math.max(...now.slow) * now.gradient / 1000;
    const rounds = SIDES.map((side) => {
      const { setup } = runs[side];
      const moved = setup.peers ? 2 * setup.all_reduce(setup.whole)
        : setup.trip + 2 * setup.wire(setup.whole);
      return slowest * setup.steps + moved;
    });
    return Math.min(now.seconds, Math.max((12 * now.gradient) / 1000, 2.4 * Math.max(...rounds)));
  }

  const ROWS = [
    ["Reaches the goal", reached_by],
    ["Updates a second", (run) => few(run.total.updates)],
    ["Examples a second", (run) => Math.round(run.total.examples).toLocaleString("en")],
    ["Mean staleness", (run) => few(run.total.staleness)],
    ["Largest staleness", (run) => run.total.most],
    ["Workers wait", (run) => `${waited(run.total)} of the time`],
    ["Busiest cable, how full", ({ total, setup }) =>
      `${few(total.busiest / 1e6)} MB/s, ${Math.round((800 * total.busiest) / setup.bandwidth)} %`],
  ];

  function show_numbers() {
    const hidden = question !== null && at < now.seconds;
    byId("numbers").replaceChildren(...ROWS.map(([title, of]) => element("tr", {},
      element("th", { scope: "row" }, title),
      ...SIDES.map((side) => element("td", {}, hidden ? "–" : String(of(runs[side])))))));
  }

  let told = 0;
  function paint(quick = false) {
    const seen = new Set(), shown = span();
    for (const side of SIDES) {
      const canvas = byId(`lanes-${side}`);
      for (const kind of draw(canvas, runs[side], at, shown)) seen.add(kind);
    }
    curves(byId("curves"), runs, at, now.seconds, play.TARGET, question !== null);
    byId("time").value = at / now.seconds;
    byId("clock").textContent = `${at.toFixed(2)} s`;
    if (quick && performance.now() - told < 250) return;
    told = performance.now();
    show_numbers();
    const kinds = Object.entries(KINDS).filter(([kind]) => seen.has(kind));
    const swatch = (kind, fill) =>
      element("span", { class: `swatch ${kind}`, style: fill && `background:${fill}` });
    byId("legend").replaceChildren(
      ...kinds.map(([kind, [fill, word]]) => element("li", {}, swatch(kind, fill), word)),
      element("li", {}, "τ: staleness"));
    for (const side of SIDES) {
      byId(`lanes-${side}`).setAttribute("aria-label", `What each task of ${name_of(side)} does ` +
        `in ${ms(shown)}, up to second ${at.toFixed(1)}. The numbers are in the table below.`);
    }
    byId("curves").setAttribute("aria-label", `Loss against time. The goal: ${goals()}.`);
  }

  // --- Playing: slowly at first, to be followed by eye, then faster -------------------

  function start(from) {
    at = from;
    playing = { began: performance.now(), last: performance.now(), slow: span() / 4 };
    byId("play").textContent = "Pause";
    requestAnimationFrame(tick);
  }
  function stop() {
    playing = null;
    byId("play").textContent = "Play";
  }
  function tick(moment) {
    if (!playing) return;
    const gone = Math.max(0, (moment - playing.began) / 1000);
    const pace = Math.min(playing.slow * 2 ** Math.max(0, gone - 4), now.seconds / 4);
    at = Math.min(now.seconds, at + pace * Math.max(0, (moment - playing.last) / 1000));
    playing.last = moment;
    if (at >= now.seconds) {
      stop();
      if (question !== null) {
        show_case();
        byId("case").scrollIntoView({ block: "nearest" });
      }
    }
    paint(playing !== null);
    if (playing) requestAnimationFrame(tick);
  }

  byId("play").onclick = () => {
    if (playing) stop();
    else start(at >= now.seconds ? 0 : at);
  };
  byId("time").oninput = (e) => {
    stop();
    at = Number(e.target.value) * now.seconds;
    if (question !== null && at >= now.seconds) show_case();
    paint();
  };
  for (const side of SIDES) {
    // A worker's row can be dragged to slow the worker.
    const canvas = byId(`lanes-${side}`);
    let held = null;
    canvas.onpointerdown = (e) => {
      const worker = worker_at(runs[side].setup, e.offsetY);
      if (worker === null) return;
      held = { worker, x: e.clientX, times: now.slow[worker] };
      canvas.setPointerCapture(e.pointerId);
    };
    canvas.onpointermove = (e) => {
      if (!held) return;
      const times = Math.round(2 * (held.times + (e.clientX - held.x) / 30)) / 2;
      const kept = Math.min(8, Math.max(1, times));
      if (kept !== now.slow[held.worker]) slow_down(held.worker, kept);
    };
    canvas.onpointerup = canvas.onpointercancel = () => { held = null; };
  }
  byId("predictions").href = MEASURED.predictions;
  window.onhashchange = load;
  window.onresize = () => paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint());
  load();
})();
