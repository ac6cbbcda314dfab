// What a round of a scheme costs: Basics-Tutorial/cost.py in JavaScript. A test gives both
// the same setups and the same random numbers, and compares every event. Seconds, bytes
// and bits as there. A simulation tells `rule`, if it has one, what happens to the weights.

const cost = (() => {
  const BOUNDED = "Stale-Synchronous-Parallel", BARRIER = "Synchronous-SGD";
  const GOSSIP = "Gossip-SGD", PEERS = ["Ring-All-Reduce", "Local-SGD", "DiLoCo"];
  const WINDOWS = ["AEASGD", "Local-SGD", "DiLoCo", "DOWNPOUR-Easy", "AGN"];
  const SCHEMES = [
    "HogWild", "Dynamic-SGD", BOUNDED, "DOWNPOUR-Easy", "AGN", "AEASGD",
    "Gradient-Compression", BARRIER, ...PEERS, GOSSIP,
  ];
  const CALL = 1.0; // seconds: a call has as many rounds as fit
  const COSTS = {
    worker: 0.4e-3, ps: 0.4e-3, barrier: 0.6e-3, barrier_byte: 1e-9, step: 0.35e-3,
    local: 0.3e-3, worker_byte: 0.5e-9, ps_byte: 0.5e-9, step_byte: 4e-9,
    local_byte: 0.9e-9, adam_byte: 3e-9, top_byte: 10e-9, call: 1.5, look: 3.4,
    turn: 1.0, flight: Infinity, cores: null,
  };
  const DEFAULTS = {
    scheme: "HogWild", workers: 4, ps: 1, parameters: 4810, gradient: 0.05, spread: 0,
    straggler: 1, window: 16, batch: 32, bandwidth: 1e9, latency: 0, replicas: null,
    staleness: 4, keep: 0.01, slow: [], near: 0, kills: [],
  };
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const range = (n) => [...Array(n).keys()];

  /** Random numbers that are the same everywhere: mulberry32 (T. Ettinger, 2017). */
  class Random {
    constructor(seed) { this.state = seed >>> 0; }
    next() {
      this.state = (this.state + 0x6d2b79f5) >>> 0;
      let t = this.state;
      t = Math.imul(t ^ (t >>> 15), t | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
    }
    uniform(low, high) { return low + (high - low) * this.next(); }
    /** Box and Muller 1958. */
    normal() {
      const radius = Math.sqrt(-2 * Math.log(this.next()));
      return radius * Math.cos(2 * Math.PI * this.next());
    }
    /** Marsaglia and Tsang 2000, for a shape of at least 1. */
    gamma(shape, scale) {
      const d = shape - 1 / 3, c = 1 / Math.sqrt(9 * d);
      for (;;) {
        const x = this.normal(), root = 1 + c * x, v = root * root * root;
        const u = this.next();
        if (v > 0 && Math.log(u) < 0.5 * x * x + d - d * v + d * Math.log(v)) {
          return d * v * scale;
        }
      }
    }
  }

  /** A scheme and the cluster it runs on. */
  class Setup {
    constructor(changes) {
      Object.assign(this, DEFAULTS, changes);
      this.costs = { ...COSTS, ...(changes.costs || {}) };
      this.peers = PEERS.includes(this.scheme);
      this.steps = WINDOWS.includes(this.scheme) ? this.window : 1;
      this.whole = 4 * this.parameters;
      const few = 8 * Math.max(1, Math.round(this.keep * this.parameters));
      this.pushed = this.scheme === "Gradient-Compression" ? few : this.whole;
      this.trip = 2 * this.latency;
    }
    away(worker, other = -1) {
      if (!this.near) return this.latency;
      return worker >= this.near !== other >= this.near ? this.latency : 0;
    }
    wire(size) { return (8 * size) / this.bandwidth; }
    pauses(size) { return this.trip * Math.max(0, size / this.costs.flight - 1); }
    sleep(worker) {
      if (this.slow.length) return this.gradient * this.slow[worker];
      return this.gradient * (worker === this.workers - 1 ? this.straggler : 1);
    }
    of_worker() {
      const { costs } = this;
      if (this.peers) {
        return this.of_steps() + 2 * (this.workers - 1) * this.of_step(this.whole);
      }
      if (this.scheme === GOSSIP) return this.of_steps() + this.of_average();
      const moved = this.whole + this.pushed;
      const core = costs.worker + costs.worker_byte * moved + this.of_steps();
      const top = this.scheme === "Gradient-Compression" ? costs.top_byte * this.whole : 0;
      return core + top;
    }
    of_steps() {
      const { local, local_byte, adam_byte } = this.costs;
      const each = local_byte + (this.scheme === "DiLoCo" ? adam_byte : 0);
      return this.steps * (local + each * this.whole);
    }
    of_ps(first = true) {
      const { costs } = this, piece = this.whole / this.ps;
      let core = costs.ps + costs.ps_byte * (piece + this.pushed / this.ps);
      if (first && [BOUNDED, BARRIER].includes(this.scheme)) core += costs.barrier;
      if (this.scheme === BARRIER) core += costs.barrier_byte * piece;
      return core;
    }
    of_step(size) { return this.costs.step + (this.costs.step_byte * size) / this.workers; }
    of_average() { return this.costs.step + this.costs.step_byte * this.whole; }
    all_reduce(size) {
      const n = this.workers, { cores, turn } = this.costs;
      const share = cores ? Math.max(1, n / cores) : 1;
      const far = turn * this.latency * (this.near ? 2 / n : 1); // two cables of n are long
      const sent = this.wire(size / n) + far + this.pauses(size / n);
      return 2 * (n - 1) * (share * this.of_step(size) + sent);
    }
  }

  function rounds_of_a_call(setup, seconds) {
    const sizes = setup.peers ? [10, 1] : [10, 3, 1];
    return sizes.find((n) => n * seconds <= CALL) || 1;
  }

  function calls_of_peers(setup, seconds) {
    const size = rounds_of_a_call(setup, seconds);
    const calls = Math.floor(CALL / (size * Math.max(seconds, 1e-9)));
    return [size, Math.max(1, Math.min(calls, 50))];
  }

  // --- Simulation -------------------------------------------------------------

  /** Workers as processes: each yields the time at which it goes on, or an event. They
      begin within `alone` seconds, those of a ring at one moment. */
  class Simulation {
    constructor(setup, random, rule = null, alone = setup.steps * setup.gradient) {
      Object.assign(this, { setup, random, rule, now: 0, queue: [], count: 0 });
      Object.assign(this, { free: {}, bars: [], pushes: [], opened: [], taken: 0 });
      Object.assign(this, { waiting: [], ready: new Set(), reduced: 0, averages: [] });
      this.together = null; // the workers of an all-reduce that is under way
      this.steps = range(setup.workers).map(() => []); // ends of gradients, to be drawn
      Object.assign(this, { since: [], lost: [] }); // begun gradients, and those of the killed
      this.clocks = range(setup.workers).map(() => 0);
      this.there = new Set(range(setup.workers));
      const kinds = { [BARRIER]: this.barrier, [GOSSIP]: this.gossip };
      for (const scheme of PEERS) kinds[scheme] = this.peer;
      const process = (kinds[setup.scheme] || this.at_own_pace).bind(this);
      this.processes = range(setup.workers).map((worker) => process(worker));
      for (const one of this.processes) {
        this.add(setup.peers ? 0 : random.uniform(0, alone), one);
      }
      for (const kill of setup.kills) this.begin(this.kill(process, ...kill));
    }

    // Events: [time, process], in order of time, and of their coming if that is the same

    add(time, process) {
      const { queue } = this;
      let k = queue.length;
      while (k > 0 && queue[k - 1][0] > time) k--;
      queue.splice(k, 0, [time, process]);
    }
    begin(process) { this.add(this.now, process); }
    wake(event) { for (const process of event.splice(0)) this.begin(process); }

    /** Lets everything happen until then, but at most so many events; returns how many
        more it could have been. */
    run(seconds, most = Infinity) {
      let left = most;
      for (; this.queue.length && this.queue[0][0] <= seconds && left > 0; left--) {
        const [now, process] = this.queue.shift();
        this.now = now;
        const { value } = process.next();
        if (Array.isArray(value)) value.push(process);
        else if (value !== undefined) this.add(Math.max(value, now), process);
      }
      return left;
    }
    *kill(process, worker, when, back) {
      yield when;
      const dead = this.setup.scheme === PEERS[0] ? range(this.setup.workers) : [worker];
      for (const one of dead) {
        this.processes[one].return();
        this.there.delete(one);
        this.ready.delete(one);
        if (this.rule) this.rule.lose(one);
        const start = this.since[one];
        if (start < this.now) this.lost.push({ worker: one, kind: "late", start, end: this.now });
      }
      this.all_reduce();
      yield this.now + back;
      for (const one of dead) {
        this.processes[one] = process(one);
        this.begin(this.processes[one]);
      }
      for (const one of dead) this.there.add(one);
    }
    use(what, seconds, servers = 1, start = 0) {
      const free = this.free[what] || (this.free[what] = Array(servers).fill(0));
      const k = servers > 1 ? free.indexOf(Math.min(...free)) : 0;
      free[k] = Math.max(this.now, start, free[k]) + seconds;
      return free[k];
    }
    compute(host, seconds) {
      const { cores } = this.setup.costs;
      return this.use(cores ? "cores" : host, seconds, cores || 1);
    }
    *send(ways, size, latency) {
      const parts = Math.min(10, Math.ceil(size / 65536));
      const taken = this.setup.wire(size / parts);
      let arrived = 0;
      for (let part = 0; part < parts; part++) {
        const left = ways.map(([host]) => this.use(`from ${host}`, taken));
        const came = ways.map(([, other], k) =>
          this.use(`to ${other}`, taken, 1, left[k] - taken));
        arrived = Math.max(...came);
        yield Math.max(...left);
      }
      yield arrived + latency + this.setup.pauses(size);
    }

    // What a worker does; each is a part of a process

    bar(worker, kind, start) {
      if (this.now <= start) return null;
      const bar = { worker, kind, start, end: this.now };
      this.bars.push(bar);
      return bar;
    }
    at_the_ps() {
      const { setup } = this;
      return range(setup.ps).map((j) => this.compute(`ps ${j}`, setup.of_ps(j === 0) / 2));
    }
    *pull(worker) {
      const { setup } = this, start = this.now, ready = this.at_the_ps();
      yield ready[0];
      const seen = this.count;
      if (this.rule) this.rule.pull(worker);
      yield Math.max(...ready);
      const ways = range(setup.ps).map((j) => [`ps ${j}`, worker]);
      yield* this.send(ways, setup.whole / setup.ps, setup.away(worker));
      this.bar(worker, "pull", start);
      return seen;
    }
    *gradients(worker, core = 0) {
      const { setup } = this, start = this.now, each = setup.of_steps() / setup.steps;
      this.since[worker] = start;
      for (let step = 0; step < setup.steps; step++) {
        yield this.compute(worker, each + (step === 0 ? core : 0));
        let seconds = setup.sleep(worker);
        if (setup.spread && seconds) {
          const shape = 1 / (setup.spread * setup.spread);
          seconds = this.random.gamma(shape, seconds / shape);
        }
        yield this.now + seconds;
        if (setup.steps > 1) this.steps[worker].push(this.now);
      }
      this.since[worker] = Infinity;
      return this.bar(worker, "gradient", start);
    }
    *push(worker, quiet = false) {
      const { setup } = this, start = this.now;
      const ways = range(setup.ps).map((j) => [worker, `ps ${j}`]);
      yield* this.send(ways, setup.pushed / setup.ps, setup.away(worker));
      yield Math.max(...this.at_the_ps());
      if (!quiet) this.bar(worker, "push", start);
    }
    counted(worker, seen, bar) {
      const stale = this.count - seen;
      this.pushes.push({ time: this.now, worker, stale });
      this.opened.push(this.now);
      this.count += 1;
      if (bar) Object.assign(bar, { update: this.count, stale });
      if (this.rule) this.rule.push(worker, stale);
    }
    *wait(worker, event) {
      const start = this.now;
      yield event;
      this.bar(worker, "wait", start);
    }
    *calls(worker, one_round, trip) {
      const { setup } = this;
      let seconds = CALL, looked = this.now;
      for (;;) {
        let start = this.now;
        const size = rounds_of_a_call(setup, seconds);
        yield this.now + setup.costs.call * trip;
        this.bar(worker, "call", start);
        for (let k = 0; k < size; k++) yield* one_round();
        seconds = (this.now - start) / size;
        if (this.now - looked + (size * seconds) / 2 > CALL) {
          start = this.now;
          yield this.now + setup.costs.look * trip;
          this.bar(worker, "call", start);
          looked = this.now;
        }
      }
    }

    // Schemes

    *at_own_pace(worker) {
      const sim = this, { setup } = this, core = setup.of_worker() - setup.of_steps();
      const sent = [];
      function* plain() {
        if (setup.scheme === BOUNDED) {
          while (sim.clocks[worker] - Math.min(...sim.clocks) > setup.staleness) {
            yield* sim.wait(worker, sim.waiting);
          }
        }
        const seen = yield* sim.pull(worker);
        const bar = yield* sim.gradients(worker, core);
        yield* sim.push(worker);
        sim.counted(worker, seen, bar);
        sim.clocks[worker] += 1;
        sim.wake(sim.waiting);
      }
      function* elastic() {
        const start = sim.now;
        yield sim.now + setup.away(worker);
        sim.bar(worker, "pull", start);
        while (sent.length) yield* sim.wait(worker, sent[0]);
        const seen = yield* sim.pull(worker), arrived = [];
        sent.push(arrived);
        sim.begin(aside(seen, arrived));
        yield* sim.gradients(worker, core);
      }
      function* aside(seen, arrived) {
        yield* sim.push(worker, true);
        sim.counted(worker, seen);
        sent.splice(sent.indexOf(arrived), 1);
        sim.wake(arrived);
      }
      const one_round = setup.scheme === "AEASGD" ? elastic : plain;
      yield* this.calls(worker, one_round, 2 * setup.away(worker));
    }
    *barrier(worker) {
      const sim = this, { setup } = this, core = setup.of_worker() - setup.of_steps();
      const needed = setup.replicas || setup.workers;
      let mine = -1;
      function* one_round() {
        while (sim.count === mine) yield* sim.wait(worker, sim.waiting);
        mine = sim.count;
        yield* sim.pull(worker);
        const bar = yield* sim.gradients(worker, core);
        yield* sim.push(worker);
        const used = mine === sim.count && sim.taken < needed;
        sim.pushes.push({ time: sim.now, worker, stale: 0, late: !used });
        if (bar) Object.assign(bar, { update: sim.count + 1, late: !used });
        if (sim.rule && used) sim.rule.push(worker, 0);
        if (used && ++sim.taken === needed) {
          sim.taken = 0;
          sim.count += 1;
          sim.opened.push(sim.now);
          if (sim.rule) sim.rule.update();
          sim.wake(sim.waiting);
        }
      }
      yield* this.calls(worker, one_round, 2 * setup.away(worker));
    }
    *peer(worker) {
      const sim = this, { setup } = this;
      let seconds = CALL;
      function* one_round() {
        const bar = yield* sim.gradients(worker);
        sim.ready.add(worker);
        if (!sim.all_reduce()) yield* sim.wait(worker, sim.waiting);
        const start = sim.now;
        yield sim.reduced;
        if (sim.rule && sim.together) sim.rule.round(sim.together);
        sim.together = null;
        sim.bar(worker, "all-reduce", start);
        sim.pushes.push({ time: sim.now, worker, stale: 0 });
        if (bar) bar.update = sim.count;
        if (worker === Math.min(...sim.there)) sim.opened.push(sim.now);
      }
      for (;;) {
        let start = this.now;
        yield this.now + setup.all_reduce(0);
        this.bar(worker, "call", start);
        const [size, calls] = calls_of_peers(setup, seconds);
        for (let call = 0; call < calls; call++) {
          start = this.now;
          for (let k = 0; k < size; k++) yield* one_round();
          seconds = (this.now - start) / size;
        }
      }
    }
    all_reduce() {
      const { ready, there } = this;
      if (!ready.size || ready.size !== there.size) return false;
      this.together = [...ready].sort((a, b) => a - b);
      this.count += 1;
      ready.clear();
      this.reduced = this.now + this.setup.all_reduce(this.setup.whole);
      this.wake(this.waiting);
      return true;
    }
    *gossip(worker) {
      const sim = this, { setup } = this, n = setup.workers;
      const around = [...new Set([(worker - 1 + n) % n, (worker + 1) % n])];
      const near = worker % 2 ? [] : around.sort((a, b) => a - b)
        .filter((j) => (j - worker) % 2 !== 0);
      const under_way = [], chief = worker > 0 ? 2 * setup.away(worker, 0) : 0;
      function* one_round() {
        const seen = sim.count, averaged = [];
        if (sim.rule) sim.rule.pull(worker);
        if (near.length) {
          const j = near[Math.floor(sim.random.uniform(0, near.length))];
          under_way.push(averaged);
          sim.begin(average(j, averaged));
        }
        const bar = yield* sim.gradients(worker, setup.of_worker() - setup.of_steps());
        while (under_way.length) yield* sim.wait(worker, under_way[0]);
        const start = sim.now;
        yield sim.now + chief / 2;
        yield sim.compute(0, setup.costs.ps);
        sim.counted(worker, seen, bar);
        yield sim.now + chief / 2;
        sim.bar(worker, "call", start);
      }
      function* average(j, averaged) {
        const start = sim.now;
        yield* sim.send([[worker, j]], setup.whole, setup.away(worker, j));
        yield sim.compute(j, setup.of_average());
        if (sim.rule) sim.rule.average(worker, j);
        const middle = sim.now;
        yield* sim.send([[j, worker]], setup.whole, setup.away(j, worker));
        sim.averages.push({ worker, other: j, start, middle, end: sim.now });
        under_way.splice(under_way.indexOf(averaged), 1);
        sim.wake(averaged);
      }
      yield* this.calls(worker, one_round, chief);
    }

    // Result

    /** Returns the answer for the time from `start` to `end`. */
    answer(start, end) {
      const { setup } = this, n = setup.workers, span = end - start;
      const pushes = this.pushes.filter((one) => one.time > start && one.time <= end);
      const inside = this.opened.filter((time) => time > start && time <= end).length;
      const updates = inside / span, rounds = pushes.length / span;
      const each = Array(n).fill(0), waits = Array(n).fill(0);
      for (const one of pushes) each[one.worker] += 1;
      for (const one of this.bars) {
        const waited = Math.min(one.end, end) - Math.max(one.start, start);
        if (one.kind === "wait") waits[one.worker] += Math.max(0, waited);
      }
      const used = setup.scheme === BARRIER ? updates * (setup.replicas || n) : rounds;
      let sent = Math.max(setup.whole, setup.pushed) / setup.ps;
      if (setup.peers) sent = ((2 * (n - 1)) / n ** 2) * setup.whole;
      if (setup.scheme === GOSSIP) {
        const starts = sum(each.filter((_, k) => k % 2 === 0));
        sent = (starts / Math.max(1, rounds * span)) * setup.whole;
        sent *= (n > 1 ? 1 : 0) / Math.max(1, Math.floor(n / 2));
      }
      return {
        updates,
        rounds,
        examples: used * setup.steps * setup.batch,
        busiest: rounds * sent,
        staleness: sum(pushes.map((one) => one.stale)) / Math.max(1, pushes.length),
        most: pushes.reduce((most, one) => Math.max(most, one.stale), 0),
        waits: waits.map((seconds, k) => seconds / Math.max(1, each[k])),
        waited: sum(waits) / span / n, // share of the workers' time
      };
    }
  }

  return { SCHEMES, WINDOWS, PEERS, BOUNDED, BARRIER, GOSSIP, Random, Setup, Simulation,
    range, sum };
})();
if (typeof module !== "undefined") module.exports = cost;
