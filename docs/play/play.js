// What is set, as a state that fits into an address; a run of one side; the ratios of the
// presets. Nothing here knows the page: the tests use it under node.

const play = (() => {
  const lib = typeof cost === "undefined"
    ? { ...require("./cost.js"), rules: require("./rules.js"), words: require("./words.js") }
    : { ...cost, rules, words };
  const { Random, Setup, Simulation, PEERS, BARRIER, GOSSIP, range } = lib;
  const { schemes: SCHEMES, cluster: CLUSTER, side: SIDE, slow: SLOW } = lib.words;
  const { presets: PRESETS, questions: QUESTIONS } = lib.words, SIDES = ["a", "b"];
  // Two costs that the runs over slow cables in benchmarks/ found.
  const COSTS = { call: 0.59, turn: 1.19 };
  const TARGET = 0.05, SLICES = 240, MOST = 300000; // events of a run

  // --- The state ----------------------------------------------------------------

  function clamp(field, value) {
    const known = Number(value);
    if (value === "" || !Number.isFinite(known)) return field.value;
    if (field.choices) return known in field.choices ? known : field.value;
    const { min, max, step } = field;
    // As an input does: half a worker is none.
    const near = step > 0 ? min + step * Math.round((known - min) / step) : known;
    return Math.min(max, Math.max(min, near));
  }

  /** Returns {workers, …, slow: […], a: scheme, "a.rate", …, b, …} of some of these. */
  function state(changes = {}) {
    const found = {};
    const take = (key, field) => { found[key] = clamp(field, changes[key] ?? field.value); };
    for (const key in CLUSTER) take(key, CLUSTER[key]);
    const slow = String(changes.slow ?? "").split(",");
    found.slow = range(found.workers).map((k) => clamp(SLOW, slow[k] ?? 1));
    for (const side of SIDES) {
      const usual = side === "a" ? "HogWild" : BARRIER;
      found[side] = Object.hasOwn(SCHEMES, changes[side]) ? changes[side] : usual;
      for (const [key, value] of Object.entries(SCHEMES[found[side]].own)) {
        const { workers } = found, most = { backup: workers - 1, quorum: workers };
        const max = most[key] ?? SIDE[key].max;
        take(`${side}.${key}`, { ...SIDE[key], value, max });
      }
    }
    return found;
  }

  /** Returns what a state has for one side: {scheme, rate, …}. */
  function own(now, side) {
    const found = { scheme: now[side] };
    for (const key in SCHEMES[now[side]].own) found[key] = now[`${side}.${key}`];
    return found;
  }

  /** Returns what of a state is not usual, as what follows # in an address. */
  function to_hash(now) {
    const { workers, a, b } = now;
    const usual = { ...state({ workers, a, b }), workers: CLUSTER.workers.value, a: "", b: "" };
    const changed = Object.entries(now).filter(([key, value]) => `${value}` !== `${usual[key]}`);
    return changed.map(([key, value]) => `${key}=${value}`).join("&");
  }

  /** Returns the state of an address: a scheme's name, a preset's, a question's, or more. */
  function from_hash(hash) {
    const text = hash.replace(/^#/, "") || PRESETS[0].id;
    const known = [...PRESETS, ...QUESTIONS].find((one) => one.id === text);
    const own = Object.hasOwn(SCHEMES, text) ? `a=${text}&${SCHEMES[text].on}` : text;
    return state(Object.fromEntries(new URLSearchParams(known ? known.on : own)));
  }

  // --- A run --------------------------------------------------------------------

  function kills_of(now) {
    const { workers, seconds } = now;
    if (now.kills === 1) return [[workers - 1, 0.3 * seconds, 0.2 * seconds]];
    if (now.kills === 0) return [];
    const each = seconds / (workers + 1);
    return range(workers).map((k) => [k, (k + 0.5) * each, 0.8 * each]);
  }

  /** Runs one side: its simulation, and its loss against time, 1 at the start. */
  function run(now, side, more = {}) {
    const { scheme, ...options } = own(now, side), { workers, seconds } = now;
    const setup = new Setup({
      scheme, workers, ps: now.ps, parameters: now.parameters,
      gradient: now.gradient / 1000, spread: now.spread / 100, slow: now.slow,
      window: options.window || 1, bandwidth: now.bandwidth * 1e6, latency: now.trip / 2000,
      near: now.sites && workers > 1 ? Math.ceil(workers / 2) : 0,
      replicas: options.backup ? workers - options.backup : null,
      staleness: options.bound, keep: options.keep, kills: kills_of(now), ...more,
      quorum: options.quorum, fragments: options.fragments,
      costs: { ...COSTS, ...more.costs },
    });
    const problem = lib.rules[["quadratic", "logistic"][now.problem]](new Random(7), workers);
    const { start, least, gradient } = problem;
    const rule = lib.rules.rule(scheme, options, workers, start, gradient);
    const simulation = new Simulation(setup, new Random(1), rule);
    const curve = [{ time: 0, loss: 1 }];
    let left = MOST, end = seconds;
    for (let slice = 1; slice <= SLICES && left > 0; slice++) {
      end = (seconds * slice) / SLICES;
      left = simulation.run(end, left);
      const loss = (problem.loss(rule.center()) - least) / (problem.loss(start) - least);
      curve.push({ time: end, loss: Number.isFinite(loss) ? loss : Infinity });
    }
    // A little more, so that what is under way at the end can be drawn.
    const whole = left > 0;
    if (whole) simulation.run(end + 10, MOST / 10);
    const low = (k) => curve[k].loss <= TARGET;
    const last = curve.length - 1, diverged = curve[last].loss > 1;
    const found = range(last).find((k) => low(k) && low(k + 1)); // not for a moment only
    const reached = diverged || found === undefined ? null : curve[found].time;
    const total = simulation.answer(end / 5, end);
    return { setup, simulation, curve, end, whole, total, diverged, reached };
  }

  /** Returns which side has the loss first, "a" or "b"; "same" within a tenth. */
  function first(a, b) {
    const [x, y] = [a, b].map((one) => one.reached ?? Infinity);
    if (x === y || Math.abs(x - y) < 0.1 * Math.min(x, y)) return "same";
    return x < y ? "a" : "b";
  }

  /** Returns whether the real one needs cables that are slower than those of one machine. */
  const on_hosts = (now) => now.trip > 0 || now.bandwidth < 1000;

  /** Returns the command that runs one side with real processes. */
  function command(now, side) {
    const { scheme, rate, window, bound, backup, keep, quorum, fragments } = own(now, side);
    const words = on_hosts(now) ? ["sudo"] : [];
    words.push(`NUM_WORKERS=${now.workers}`);
    if (![...PEERS, GOSSIP].includes(scheme)) words.push(`NUM_PS=${now.ps}`);
    if (now.kills) words.push("MAX_RESTARTS=1");
    if (now.trip) words.push(`DELAY=${now.trip / 2}`);
    if (on_hosts(now) && now.bandwidth < 10000) words.push(`RATE=${now.bandwidth}`);
    words.push("bash", on_hosts(now) ? "Engines/Several-Hosts/run.sh" : "run.sh", scheme);
    const times = now.slow.map((one) => Number((one * now.gradient / 1000).toFixed(4)));
    const alike = times.every((one) => one === times[0]);
    words.push(`--learning_rate ${rate}`, `--slow_workers ${alike ? times[0] : times}`);
    if (quorum) {
      const steps = Math.max(1, Math.floor(window / fragments));
      words.push(`--window ${steps * fragments}`, `--fragments ${fragments}`, `--overlap ${steps}`);
      words.push(`--quorum ${quorum}`, "--grace 0");
    } else if (window) words.push(`--window ${window}`);
    if (bound !== undefined) words.push(`--staleness ${bound}`);
    if (backup) words.push(`--replicas_to_aggregate ${now.workers - backup}`);
    if (keep) words.push(`--keep ${keep}`);
    if (now.kills && ["Local-SGD", "DiLoCo"].includes(scheme)) words.push("--min_workers 1");
    return words.join(" ");
  }

  /** Says what happens in a scheme, with what is set. */
  function explain(now, side) {
    const { scheme, keep, backup = 0, ...more } = own(now, side), { workers } = now;
    const known = { ...more, workers, needed: workers - backup, keep: `${100 * keep} %` };
    return SCHEMES[scheme].told.replace(/{(\w+)}/g, (_, name) => known[name]);
  }

  // --- Presets: what benchmarks/ measured, beside what the page computes ---------

  const examples = (now, more) => SIDES.map((side) => run(now, side, more).total.examples);

  /** Returns the largest rate with which HogWild still trains. */
  function largest_rate(workers) {
    const trains = (rate) => !run(state({ "a.rate": rate, workers }), "a").diverged;
    const failed = [0.2, 0.4, 0.8, 1.2, 1.6].findIndex((rate) => !trains(rate));
    return [0.1, 0.2, 0.4, 0.8, 1.2, 1.6].at(failed);
  }

  // Where other runs were measured than the two that a preset shows
  const MEASURED_RUNS = {
    "32-workers": () => {
      const on = "a=HogWild&b=AEASGD&b.window=4&workers=24&parameters=1000000&gradient=50";
      return examples(from_hash(on), { bandwidth: 1e12, costs: { cores: 2 } });
    },
    "come-and-go": () => [[3, 2, 1], []].map((lost) => {
      const kills = lost.map((k, i) => [k, 5 * (i + 1), Infinity]);
      return run(state({ a: "DiLoCo" }), "a", { kills }).simulation.answer(0, 20).examples;
    }),
    "rate-too-high": () => [1, 8].map(largest_rate),
  };

  /** Returns {ratio, real, off} of a preset: computed, measured, how far off. */
  function compare(preset) {
    preset.values ??= (MEASURED_RUNS[preset.id] || (() => examples(from_hash(preset.on))))();
    const [ratio, real] = [preset.values, preset.measured].map(([one, two]) => one / two);
    return { ratio, real, off: ratio / real - 1 };
  }

  return { SIDES, TARGET, state, own, clamp, to_hash, from_hash, run, first, on_hosts,
    command, explain, compare };
})();
if (typeof module !== "undefined") module.exports = play;
