// What can be set, as a state that fits into an address; a run of one side; presets and
// questions. Nothing here knows the page: the tests use it under node.

const play = (() => {
  const lib = typeof cost === "undefined"
    ? { ...require("./cost.js"), rules: require("./rules.js") } : { ...cost, rules };
  const { Random, Setup, Simulation, WINDOWS, PEERS, BOUNDED, BARRIER, GOSSIP, range } = lib;

  // Where the measurements are. All links of the page to them are here.
  const MEASURED = {
    clusters: "../../benchmarks/clusters.md#gradients-until-then-of-all-workers",
    claims: "../../benchmarks/claims.md#accuracy-against-learning-rate-and-workers",
    scaling: "../../benchmarks/many-workers.md#1000000-parameters",
    predictions: "../../benchmarks/cost-model.md#what-a-run-will-cost",
    members: "../../benchmarks/without-a-ps.md#diloco-workers-that-come-and-go-between-rounds",
  };

  // Each scheme: its learning rate, and what a link to it shows: beside what, and where. A
  // new one also has a name in cost.py and cost.js, with a process if its timing is new, a
  // rule in rules.js, and a sentence in `explain`.
  const SLOW = { slow: [1, 1, 1, 4] }, THIN = { bandwidth: 100 };
  const LARGE = { workers: 8, parameters: 1e6 }, SITES = { trip: 100, sites: 1, bandwidth: 10000 };
  const SCHEMES = {
    HogWild: { rate: 0.1, beside: BARRIER, on: SLOW },
    "Dynamic-SGD": { rate: 0.4, beside: "HogWild", on: { workers: 8, "b.rate": 0.4 } },
    [BOUNDED]: { rate: 0.1, bound: 4, beside: BARRIER, on: { spread: 100 } },
    "DOWNPOUR-Easy": { rate: 0.1, window: 16, beside: "HogWild", on: THIN },
    AGN: { rate: 0.1, window: 5, beside: "DOWNPOUR-Easy", on: THIN },
    AEASGD: { rate: 0.3, window: 16, beside: "HogWild", on: THIN },
    "Gradient-Compression": { rate: 0.1, keep: 0.01, beside: "HogWild", on: THIN },
    [BARRIER]: { rate: 0.3, backup: 0, beside: "HogWild", on: SLOW },
    "Ring-All-Reduce": { rate: 0.3, beside: BARRIER, on: LARGE },
    "Local-SGD": { rate: 0.3, window: 8, beside: "Ring-All-Reduce", on: THIN },
    DiLoCo: { rate: 0.003, window: 25, beside: "Local-SGD", on: SITES },
    [GOSSIP]: { rate: 0.3, beside: "Ring-All-Reduce", on: SLOW },
  };

  // What can be set: of the cluster, and of a scheme.
  const number = (label, value, min, max, step = 1) => ({ label, value, min, max, step });
  const choice = (label, value, choices) => ({ label, value, choices });
  const CLUSTER = {
    workers: number("Workers", 4, 1, 32),
    gradient: number("A gradient takes, ms", 40, 5, 200, 5),
    spread: number("and varies by, %", 0, 0, 100, 10),
    ps: number("Parameter servers", 1, 1, 4),
    parameters: choice("Parameters", 1e5, { 4810: "4,810", 1e5: "100,000",
      1e6: "1 million", 1e7: "10 million" }),
    bandwidth: choice("A cable carries", 1000, { 10: "10 Mbit/s", 100: "100 Mbit/s",
      1000: "1 Gbit/s", 10000: "10 Gbit/s" }),
    trip: number("Round trip, ms", 0, 0, 200, 10),
    sites: choice("Far apart are", 0, { 0: "all machines", 1: "two sites" }),
    kills: choice("Killed are", 0, { 0: "no workers", 1: "one worker",
      2: "all workers, in turn" }),
    problem: choice("The problem", 0, { 0: "a quadratic", 1: "logistic regression" }),
    seconds: choice("The run lasts", 20, { 5: "5 s", 20: "20 s", 60: "60 s", 120: "120 s" }),
  };
  const SIDE = {
    rate: number("Learning rate", 0.1, 0.001, 2, 0.001),
    window: number("Window T", 16, 1, 128),
    bound: number("Bound s", 4, 0, 32),
    backup: number("Backup workers", 0, 0, 31),
    keep: choice("Pushed", 0.01, { 0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %" }),
  };
  // Two costs that the runs over slow cables in benchmarks/ found.
  const COSTS = { call: 0.59, turn: 1.19 };
  const TARGET = 0.05, SLICES = 240, MOST = 300000; // events of a run

  // --- The state ----------------------------------------------------------------

  function clamp(field, value) {
    const known = Number(value);
    if (value === "" || !Number.isFinite(known)) return field.value;
    if (field.choices) return String(known) in field.choices ? known : field.value;
    return Math.min(field.max, Math.max(field.min, known));
  }

  /** Returns {cluster…, slow, a: {scheme, rate, …}, b: …} of changes like those of a link. */
  function state(changes = {}) {
    const found = {};
    for (const [key, field] of Object.entries(CLUSTER)) {
      found[key] = clamp(field, changes[key] ?? field.value);
    }
    const slow = [].concat(changes.slow ?? []);
    found.slow = range(found.workers).map((k) =>
      clamp({ value: 1, min: 1, max: 8 }, slow[k] ?? 1));
    for (const side of ["a", "b"]) {
      const scheme = changes[side] in SCHEMES ? changes[side] : side === "a" ? "HogWild" : BARRIER;
      found[side] = { scheme };
      for (const [key, field] of Object.entries(SIDE)) {
        if (!(key in SCHEMES[scheme])) continue;
        const value = SCHEMES[scheme][key];
        found[side][key] = clamp({ ...field, value }, changes[`${side}.${key}`] ?? value);
      }
      if ("backup" in found[side]) {
        found[side].backup = Math.min(found[side].backup, found.workers - 1);
      }
    }
    return found;
  }

  /** Returns the changes that make a state from the default, as what follows #. */
  function to_hash(now) {
    const parts = [`a=${now.a.scheme}`, `b=${now.b.scheme}`], usual = state();
    for (const key of Object.keys(CLUSTER)) {
      if (now[key] !== usual[key]) parts.push(`${key}=${now[key]}`);
    }
    if (now.slow.some((one) => one !== 1)) parts.push(`slow=${now.slow.join(",")}`);
    for (const side of ["a", "b"]) {
      for (const [key, value] of Object.entries(now[side])) {
        if (key === "scheme" || value === SCHEMES[now[side].scheme][key]) continue;
        parts.push(`${side}.${key}=${value}`);
      }
    }
    return parts.join("&");
  }

  /** Returns the state of an address: a scheme's name, a preset's, or changes. */
  function from_hash(hash) {
    let text = hash.replace(/^#/, "");
    try { text = decodeURIComponent(text); } catch { /* as it is */ }
    if (text in SCHEMES) return state({ a: text, b: SCHEMES[text].beside, ...SCHEMES[text].on });
    const preset = PRESETS.find((one) => one.id === text) || (text ? null : PRESETS[0]);
    if (preset) return state(preset.on);
    const changes = {};
    for (const [key, value] of text.split("&").map((part) => part.split("="))) {
      changes[key] = key === "slow" ? (value || "").split(",") : value;
    }
    return state(changes);
  }

  // --- A run --------------------------------------------------------------------

  function kills_of(now) {
    const { workers, seconds } = now;
    if (now.kills === 1) return [[workers - 1, 0.3 * seconds, 0.2 * seconds]];
    if (now.kills === 0) return [];
    const each = seconds / (workers + 1);
    return range(workers).map((k) => [k, (k + 0.5) * each, 0.8 * each]);
  }

  /** Returns the Setup of one side of a state. */
  function setup_of(now, side, more = {}) {
    const own = now[side], { workers } = now;
    return new Setup({
      scheme: own.scheme, workers, ps: now.ps, parameters: now.parameters,
      gradient: now.gradient / 1000, spread: now.spread / 100, slow: now.slow,
      window: own.window || 1, bandwidth: now.bandwidth * 1e6, latency: now.trip / 2000,
      near: now.sites && workers > 1 ? Math.ceil(workers / 2) : 0,
      replicas: own.backup ? workers - own.backup : null,
      staleness: own.bound, keep: own.keep, kills: kills_of(now), ...more,
      costs: { ...COSTS, ...more.costs },
    });
  }

  /** Runs one side: its simulation, and its loss against time, 1 at the start. */
  function run(now, side, more = {}) {
    const setup = setup_of(now, side, more), { seconds } = now;
    const problem = lib.rules[["quadratic", "logistic"][now.problem]](new Random(7), now.workers);
    const own = { ...now[side], window: setup.steps };
    const rule = lib.rules.rule(setup.scheme, own, now.workers, problem.start, problem.gradient);
    const simulation = new Simulation(setup, new Random(1), rule);
    const { least } = problem;
    const from = problem.loss(problem.start) - least;
    const curve = [{ time: 0, loss: 1 }];
    let left = MOST, end = seconds;
    for (let slice = 1; slice <= SLICES && left > 0; slice++) {
      end = (seconds * slice) / SLICES;
      left = simulation.run(end, left);
      const loss = (problem.loss(rule.center()) - least) / from;
      curve.push({ time: end, loss: Number.isFinite(loss) ? loss : Infinity });
    }
    // A little more, so that what is under way at the end can be drawn.
    const whole = left > 0;
    if (whole) simulation.run(end + 4 * Math.max(...range(now.workers).map((k) =>
      setup.steps * setup.sleep(k) + setup.trip + 2 * setup.wire(setup.whole))), MOST / 10);
    const low = (k) => curve[k].loss <= TARGET;
    const last = curve.length - 1, diverged = curve[last].loss > 1;
    const reached = range(last).find((k) => low(k) && low(k + 1)); // not for a moment only
    return { setup, simulation, curve, end, whole, diverged,
      reached: diverged || reached === undefined ? null : curve[reached].time,
      answer: (at = end) => simulation.answer(at / 5, at) };
  }

  /** Returns which side has the loss first, "a" or "b"; "same" within a tenth. */
  function first(a, b) {
    const [x, y] = [a, b].map((one) => one.reached ?? Infinity);
    if (x === y || Math.abs(x - y) < 0.1 * Math.min(x, y)) return "same";
    return x < y ? "a" : "b";
  }

  /** Returns the command that runs one side with real processes, and what it leaves out. */
  function command(now, side) {
    const own = now[side], hosts = now.trip > 0 || now.bandwidth < 1000;
    const settings = [`NUM_WORKERS=${now.workers}`];
    if (!PEERS.includes(own.scheme) && own.scheme !== GOSSIP) settings.push(`NUM_PS=${now.ps}`);
    if (now.kills) settings.push("MAX_RESTARTS=1");
    if (hosts && now.trip) settings.push(`DELAY=${now.trip / 2}`);
    if (hosts && now.bandwidth < 10000) settings.push(`RATE=${now.bandwidth}`);
    const times = now.slow.map((one) => Number((one * now.gradient / 1000).toFixed(4)));
    const alike = times.every((one) => one === times[0]);
    const flags = [`--learning_rate ${own.rate}`,
      `--slow_workers ${alike ? times[0] : times.join(",")}`];
    if (own.window) flags.push(`--window ${own.window}`);
    if ("bound" in own) flags.push(`--staleness ${own.bound}`);
    if (own.backup) flags.push(`--replicas_to_aggregate ${now.workers - own.backup}`);
    if (own.keep) flags.push(`--keep ${own.keep}`);
    if (now.kills && ["Local-SGD", "DiLoCo"].includes(own.scheme)) flags.push("--min_workers 1");
    const start = hosts ? "bash Engines/Several-Hosts/run.sh" : "bash run.sh";
    const before = hosts ? ["sudo", ...settings] : settings;
    return [...before, start, own.scheme, ...flags].join(" ");
  }

  // --- Words --------------------------------------------------------------------

  const ms = (seconds) => (seconds < 0.995 ? `${Number((1000 * seconds).toPrecision(2))} ms`
    : `${Number(seconds.toPrecision(2))} s`);
  const few = (x) => (x && x < 10 ? x.toFixed(1) : x.toFixed(0));

  /** Says what happens in a scheme, with the numbers of a run. */
  function explain(now, side, answer) {
    const own = now[side], steps = `Each worker makes ${own.window} steps alone`;
    const wait = Math.max(...answer.waits);
    const waits = wait > 0.005 ? ` Here a worker waits up to ${ms(wait)} in a round (hatched).` : "";
    const old = now.workers > 1 ? ` Its staleness τ is ${few(answer.staleness)} on average.` : "";
    const dies = (what) => (now.kills ? ` When one is killed, ${what}.` : "");
    const pushes = (what) => `Nobody waits. ${steps}, then pushes ${what}.`;
    const said = {
      HogWild: `Nobody waits. While a worker computes, the others change the weights, and so its gradient is old when it arrives.${old}`,
      "Dynamic-SGD": `Nobody waits. A gradient that is τ updates old makes only 1 / (τ + 1) of a step.${old}`,
      [BOUNDED]: `A worker that is more than ${own.bound} rounds ahead of the slowest waits.${waits}`,
      "DOWNPOUR-Easy": pushes("the sum of its gradients"),
      AGN: pushes("the mean of its gradients"),
      AEASGD: pushes("a part of the difference between its weights and the shared ones"),
      "Gradient-Compression": `Nobody waits. Only the largest ${SIDE.keep.choices[own.keep]} of a gradient is pushed, and the rest waits for the next push. What is pulled is whole.`,
      [BARRIER]: own.backup
        ? `The ps takes the first ${now.workers - own.backup} gradients of a step. Later ones are thrown away (striped).${waits}`
        : `An update needs a gradient of every worker, so all wait for the slowest.${waits} No gradient is stale.`,
      "Ring-All-Reduce": `No ps: the workers add up their gradients in a ring. All wait for the slowest.${waits}${dies("all stop until it is back")}`,
      "Local-SGD": `No ps. ${steps}, then all average their weights.${waits}${dies("the others go on")}`,
      DiLoCo: `No ps. ${steps}, then all average how far they moved, and momentum carries it on.${waits}${dies("the others go on")}`,
      [GOSSIP]: `No ps. Two workers at a time average their weights, and compute meanwhile.${old}`,
    };
    return said[own.scheme];
  }

  /** Says what a cluster is like. */
  function describe(now) {
    const slow = range(now.workers).filter((k) => now.slow[k] > 1);
    const parts = [
      `${now.workers} worker${now.workers > 1 ? "s" : ""}`,
      slow.length ? `of which ${slow.map((k) => `worker ${k} is ${now.slow[k]} times as slow`).join(", ")}` : "",
      now.spread ? "gradients that vary in time" : "",
      `${CLUSTER.parameters.choices[now.parameters]} parameters`,
      `cables of ${CLUSTER.bandwidth.choices[now.bandwidth]}`,
      now.trip ? `${now.trip} ms there and back between ${CLUSTER.sites.choices[now.sites]}` : "",
      now.kills ? `and ${CLUSTER.kills.choices[now.kills]} killed` : "",
    ];
    return `${parts.filter(Boolean).join(", ")}.`;
  }

  /** Says whether a window is worth it in a cluster. */
  function window_worth(now) {
    const setup = setup_of(now, "a", { scheme: "HogWild", replicas: null });
    const crowd = Math.max(1, (now.workers * setup.wire(setup.whole)) / now.ps /
      (setup.gradient + 2 * setup.wire(setup.whole) + setup.trip));
    const sending = setup.trip + 2 * setup.wire(setup.whole) * crowd;
    const share = sending / (sending + setup.gradient);
    const verdict = share > 0.4 ? "so it is worth it" : share > 0.15 ? "so it helps a little"
      : "so there is little to gain";
    return `Here a gradient takes ${ms(setup.gradient)}, and getting weights and sending a gradient ${ms(sending)}${crowd > 1 ? ", with the queue at the ps" : ""}: ${verdict}.`;
  }

  // --- Presets: what benchmarks/ measured, beside what the page computes ---------

  const pair = (on) => {
    const now = state(on);
    return ["a", "b"].map((side) => run(now, side).answer().examples);
  };
  /** Returns the largest rate with which HogWild still trains. */
  function largest_rate(workers) {
    const rates = [0.1, 0.2, 0.4, 0.8, 1.2, 1.6];
    const trains = (rate) => !run(state({ a: "HogWild", "a.rate": rate, workers }), "a").diverged;
    const failed = rates.findIndex((rate) => !trains(rate));
    return failed < 0 ? rates[rates.length - 1] : rates[failed - 1];
  }
  const PRESETS = [
    { id: "one-slow-worker", title: "One slow worker",
      told: "Worker 3 needs four times as long for a gradient. Synchronous-SGD waits for it in every step, HogWild never.",
      on: { a: "HogWild", b: BARRIER, ...SLOW, seconds: 60 },
      what: "gradients a second", link: "clusters", measured: [68, 22] },
    { id: "two-sites", title: "Two sites, 100 ms",
      told: "Two workers and the ps are at one site, two workers at another, 100 ms away there and back. In each step of the ring the sums cross that distance three times.",
      on: { a: "HogWild", b: "Ring-All-Reduce", ...SITES, seconds: 60 },
      what: "gradients a second", link: "clusters", measured: [55, 12] },
    { id: "100-mbit", title: "100 Mbit/s",
      told: "Sending the weights takes 32 ms, a gradient 40 ms. DOWNPOUR-Easy sends once in 16 steps.",
      on: { a: "HogWild", b: "DOWNPOUR-Easy", ...THIN },
      what: "gradients a second", link: "clusters", measured: [23, 84],
      leaves: "Real workers pull together and then push together, so that the cable is often used in one direction only. The simulation uses both at once." },
    { id: "32-workers", title: "32 workers, one ps",
      told: "The cable of one ps carries 31 gradients of a million numbers a second. That is full with four such workers, and 32 push.",
      on: { a: "HogWild", b: "AEASGD", "a.rate": 0.03, "b.window": 32, "b.rate": 0.4,
        workers: 32, parameters: 1e6, gradient: 50, seconds: 60 },
      what: "examples a second, with 24 workers on two shared cores",
      link: "scaling", measured: [6504, 13513],
      leaves: "A core of the simulation does one thing after the other, and loses no time when it changes from one of 25 processes to the next.",
      values: () => {
        const now = state({ a: "HogWild", b: "AEASGD", "b.window": 4, workers: 24,
          parameters: 1e6, gradient: 50 });
        const more = { bandwidth: 1e12, costs: { cores: 2 } };
        return ["a", "b"].map((side) => run(now, side, more).answer().examples);
      } },
    { id: "come-and-go", title: "Workers come and go",
      told: "Each worker is killed once and comes back. DiLoCo goes on with those who are there, a ring stops until all are.",
      on: { a: "DiLoCo", b: "Ring-All-Reduce", kills: 2 },
      what: "examples, DiLoCo with fewer and fewer workers, and with all four",
      link: "members", measured: [40000, 64000],
      values: () => [[3, 2, 1], []].map((lost) => {
        const kills = lost.map((k, i) => [k, 5 * (i + 1), Infinity]);
        return run(state({ a: "DiLoCo" }), "a", { kills }).simulation.answer(0, 20).examples;
      }) },
    { id: "rate-too-high", title: "Rate too high",
      told: "With eight workers a gradient is seven updates old. HogWild's steps of 0.4 then go past the goal further each time. Dynamic-SGD divides each step by the staleness plus one.",
      on: { a: "HogWild", b: "Dynamic-SGD", "a.rate": 0.4, "b.rate": 0.4, workers: 8 },
      what: "as the largest rate with which HogWild trains, with one worker and with eight",
      link: "claims", measured: [1.2, 0.2],
      leaves: "The curvature of this quadratic is always 1 at most, so one worker trains up to a rate of 2. That of a network changes while it trains.",
      values: () => [1, 8].map(largest_rate) },
  ];

  /** Returns {values, ratio, real, off} of a preset: computed, measured, how far off. */
  function compare(preset) {
    if (preset.found) return preset.found;
    const values = preset.values ? preset.values() : pair(preset.on);
    const ratio = values[0] / values[1], real = preset.measured[0] / preset.measured[1];
    return (preset.found = { values, ratio, real, off: ratio / real - 1 });
  }

  // --- Questions, in the order of the reading list --------------------------------

  const QUESTIONS = [
    { on: { a: "HogWild", b: BARRIER, ...SLOW, seconds: 60 }, answer: "a",
      told: "Worker 3 is four times as slow as the others.",
      why: "In Synchronous-SGD every step waits for worker 3. In HogWild only worker 3 is slow." },
    { on: { a: "HogWild", b: "Dynamic-SGD", "a.rate": 0.4, "b.rate": 0.4, workers: 8 }, answer: "b",
      told: "Eight equal workers, and a learning rate of 0.4 for both.",
      why: "A gradient is seven updates old, and so a step of 0.4 is too long: HogWild diverges. Dynamic-SGD makes steps of 0.4 / 8." },
    { on: { a: BOUNDED, b: "HogWild", ...SLOW, seconds: 60 }, answer: "b",
      told: "Worker 3 is always slow. Stale-Synchronous-Parallel lets nobody be more than four rounds ahead.",
      why: "A bound helps against short pauses. Here the fast workers soon are four rounds ahead, and then wait in every round." },
    { on: { a: "HogWild", b: "DOWNPOUR-Easy", ...THIN }, answer: "b",
      told: "Cables of 100 Mbit/s: a message takes nearly as long as a gradient.",
      why: "HogWild sends after each gradient, and the cable of the ps is full. DOWNPOUR-Easy sends once in 16 gradients, so its workers compute nearly all the time." },
    { on: { a: "HogWild", b: "AGN", "b.window": 16, bandwidth: 10000 }, answer: "a",
      told: "Fast cables: a message takes less than a millisecond. AGN has a window of 16.",
      why: "There is no time to save, because messages cost nearly nothing. And AGN's push, a mean of 16 gradients, moves the weights no further than one gradient does." },
    { on: { a: BARRIER, b: BARRIER, "b.backup": 1, ...SLOW, seconds: 60 }, answer: "b",
      told: "Worker 3 is slow. The second Synchronous-SGD has one backup worker: it takes the first three gradients of a step.",
      why: "The first three gradients come from the fast workers, so nobody waits for worker 3. Its gradients are thrown away, which costs a quarter of the work, and not three quarters of the time." },
    { on: { a: BARRIER, b: "Ring-All-Reduce", ...LARGE, seconds: 60 }, answer: "b",
      told: "Eight equal workers, a million parameters, cables of 1 Gbit/s.",
      why: "All eight workers send 4 MB through the one cable of the ps, and get 4 MB from it. In the ring each worker only sends to the next one, so all cables carry at the same time." },
    { on: { a: "Ring-All-Reduce", b: "DiLoCo", ...SITES, seconds: 60 }, answer: "b",
      told: "Two sites, 100 ms apart, there and back.",
      why: "In each step of the ring the sums cross the distance three times, one after the other. DiLoCo does this once in 25 steps." },
  ];

  return { MEASURED, SCHEMES, CLUSTER, SIDE, TARGET, WINDOWS, PRESETS, QUESTIONS,
    state, clamp, to_hash, from_hash, setup_of, run, first, command, compare,
    explain, describe, window_worth, ms, few };
})();
if (typeof module !== "undefined") module.exports = play;
