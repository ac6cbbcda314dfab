// The simulation of Basics-Tutorial/cost.py in JavaScript. A test gives both the same setups
// and random numbers, and compares every event. Seconds, bytes and bits as there.
// A simulation tells `rule`, if it has one, what happens to the weights.

const cost = (() => {
  const BOUNDED = "Stale-Synchronous-Parallel", BARRIER = "Synchronous-SGD";
  const GOSSIP = "Gossip-SGD", DECOUPLED = "Decoupled-DiLoCo";
  const PEERS = ["Ring-All-Reduce", "Local-SGD", "DiLoCo"];
  const ADAM = ["DiLoCo", "Async-DiLoCo", DECOUPLED], ASIDE = ["AEASGD", DECOUPLED];
  const WINDOWS = ["AEASGD", "Local-SGD", "DOWNPOUR-Easy", "AGN", ...ADAM];
  const CALL = 1.0; // seconds: a call has as many rounds as fit
  const COSTS = {
    worker: 0.4e-3, ps: 0.4e-3, barrier: 0.6e-3, barrier_byte: 1e-9, step: 0.35e-3,
    local: 0.3e-3, worker_byte: 0.5e-9, ps_byte: 0.5e-9, step_byte: 4e-9,
    local_byte: 0.9e-9, adam_byte: 3e-9, top_byte: 10e-9, call: 1.5, look: 3.4,
    turn: 1.0, cores: null,
  };
  const BATCH = 32; // examples of a gradient
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

  /** A scheme and the cluster it runs on: fields as in cost.py, but costs only where they
      differ, `slow` for each worker; no `straggler`, `batch` (it is 32) and `flight`. */
  class Setup {
    constructor(fields) {
      Object.assign(this, fields);
      this.costs = { ...COSTS, ...fields.costs };
      this.peers = PEERS.includes(this.scheme);
      this.steps = WINDOWS.includes(this.scheme) ? this.window : 1;
      this.whole = this.pulled = 4 * this.parameters;
      if (this.scheme === DECOUPLED) {
        this.steps = Math.max(1, Math.floor(this.window / this.fragments));
        this.pulled = this.whole / this.fragments;
      }
      const few = 8 * Math.max(1, Math.round(this.keep * this.parameters));
      this.pushed = this.scheme === "Gradient-Compression" ? few : this.pulled;
      this.trip = 2 * this.latency;
    }
    away(worker, other = -1) { // −1: the ps
      if (!this.near) return this.latency;
      return worker >= this.near !== other >= this.near ? this.latency : 0;
    }
    wire(size) { return (8 * size) / this.bandwidth; }
    /** What a worker has to compute beside its gradients, in a round at a ps. */
    of_worker() {
      const { costs } = this;
      const top = this.scheme === "Gradient-Compression" ? costs.top_byte * this.whole : 0;
      return costs.worker + costs.worker_byte * (this.pulled + this.pushed) + top;
    }
    of_steps() {
      const { local, local_byte, adam_byte } = this.costs;
      const each = local_byte + (ADAM.includes(this.scheme) ? adam_byte : 0);
      return this.steps * (local + each * this.whole);
    }
    of_ps(first = true) {
      const { costs } = this, piece = this.whole / this.ps;
      let core = costs.ps + (costs.ps_byte * (this.pulled + this.pushed)) / this.ps;
      if (first && [BOUNDED, BARRIER].includes(this.scheme)) core += costs.barrier;
      if (this.scheme === BARRIER) core += costs.barrier_byte * piece;
      return core;
    }
    /** What a worker has to compute to send so many bytes to another. */
    of_step(size) { return this.costs.step + this.costs.step_byte * size; }
    all_reduce(size) {
      const n = this.workers, { cores, turn } = this.costs;
      const share = cores ? Math.max(1, n / cores) : 1;
      const far = turn * this.latency * (this.near ? 2 / n : 1); // two cables of n are long
      return 2 * (n - 1) * (share * this.of_step(size / n) + this.wire(size / n) + far);
    }
    /** How many rounds of so many seconds are in one call. */
    rounds_of_a_call(seconds) {
      const sizes = this.peers ? [10, 1] : [10, 3, 1];
      return sizes.find((n) => n * seconds <= CALL) || 1;
    }
  }

  // --- Simulation -------------------------------------------------------------

  /** Workers as processes: each yields the time at which it goes on, or an event. They
      begin within `alone` seconds, those of a ring at one moment. */
  class Simulation {
    constructor(setup, random, rule = null, alone = setup.steps * setup.gradient) {
      Object.assign(this, { setup, random, rule, now: 0, queue: [], count: 0 });
      Object.assign(this, { free: {}, bars: [], pushes: [], opened: [], taken: 0 });
      Object.assign(this, { waiting: [], ready: new Set(), reduced: 0, averages: [] });
      this.answered = new Set(); // of the open merge
      this.together = null; // the workers of an all-reduce that is under way
      // To be drawn: begun gradients, those of the killed, who is gone when, what is summed
      Object.assign(this, { since: [], lost: [], gone: [], added: [] });
      this.clocks = range(setup.workers).map(() => 0);
      this.there = new Set(range(setup.workers));
      const kinds = { [BARRIER]: this.barrier, [GOSSIP]: this.gossip };
      for (const scheme of PEERS) kinds[scheme] = this.peer;
      const process = (kinds[setup.scheme] || this.at_own_pace).bind(this);
      this.processes = range(setup.workers).map((worker) => process(worker));
      const begin = () => (setup.peers ? 0 : random.uniform(0, alone));
      for (const one of this.processes) this.add(begin(), one);
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
        this.rule?.lose(one);
        const start = this.since[one];
        if (start < this.now) this.lost.push({ worker: one, kind: "late", start, end: this.now });
        const killed = one === worker, end = this.now + back;
        this.gone.push({ worker: one, start: this.now, end, killed });
      }
      this.all_reduce();
      yield this.now + back;
      for (const one of dead) {
        this.processes[one] = process(one);
        this.begin(this.processes[one]);
        this.there.add(one);
      }
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
      yield arrived + latency;
    }

    // What a worker does; each is a part of a process

    bar(worker, kind, start) {
      const bar = { worker, kind, start, end: this.now };
      if (this.now > start) this.bars.push(bar);
      return bar;
    }
    at_the_ps() {
      const { setup } = this;
      return range(setup.ps).map((j) => this.compute(`ps ${j}`, setup.of_ps(j === 0) / 2));
    }
    /** How many fragments were merged since a learner had them. */
    fresh(seen, had) { return Math.min(this.setup.fragments, seen - had); }
    *pull(worker, had = null) {
      const { setup } = this, start = this.now, ready = this.at_the_ps();
      yield ready[0];
      const seen = this.count;
      this.rule?.pull(worker);
      yield Math.max(...ready);
      const ways = range(setup.ps).map((j) => [`ps ${j}`, worker]);
      const size = had === null ? setup.whole : Math.max(1, setup.pulled * this.fresh(seen, had));
      yield* this.send(ways, size / setup.ps, setup.away(worker));
      this.bar(worker, "pull", start);
      return seen;
    }
    *gradients(worker, core = 0) {
      const { setup } = this, start = this.now, each = setup.of_steps() / setup.steps;
      this.since[worker] = start;
      for (let step = 0; step < setup.steps; step++) {
        yield this.compute(worker, each + (step === 0 ? core : 0));
        let seconds = setup.gradient * setup.slow[worker];
        if (setup.spread && seconds) {
          const shape = 1 / (setup.spread * setup.spread);
          seconds = this.random.gamma(shape, seconds / shape);
        }
        yield this.now + seconds;
      }
      this.since[worker] = Infinity;
      return this.bar(worker, "gradient", start);
    }
    *push(worker, quiet = false, size = this.setup.pushed) {
      const { setup } = this, start = this.now;
      const ways = range(setup.ps).map((j) => [worker, `ps ${j}`]);
      yield* this.send(ways, size / setup.ps, setup.away(worker));
      yield Math.max(...this.at_the_ps());
      if (!quiet) this.bar(worker, "push", start);
    }
    counted(worker, seen, bar, answers = true) {
      const stale = this.count - seen, merges = this.setup.scheme === DECOUPLED;
      const taken = answers && !(merges && stale); // stale: its merge is closed
      this.pushes.push({ time: this.now, worker, stale });
      if (taken) this.rule?.push(worker, stale);
      if (merges) {
        if (taken) this.answered.add(worker);
        if (this.answered.size < (Math.min(this.setup.quorum, this.there.size) || 1)) return;
        this.answered.clear();
        this.rule?.update();
      }
      this.opened.push(this.now);
      this.count += 1;
      if (bar) Object.assign(bar, { update: this.count, stale });
    }
    /** Lets a worker be busy with something until a time, or an event. */
    *spend(worker, kind, until) {
      const start = this.now;
      yield until;
      this.bar(worker, kind, start);
    }
    *calls(worker, one_round, trip) {
      const { setup } = this;
      let seconds = CALL, looked = this.now;
      for (;;) {
        const start = this.now, size = setup.rounds_of_a_call(seconds);
        yield* this.spend(worker, "call", this.now + setup.costs.call * trip);
        for (let k = 0; k < size; k++) yield* one_round();
        seconds = (this.now - start) / size;
        if (this.now - looked + (size * seconds) / 2 > CALL) {
          yield* this.spend(worker, "call", this.now + setup.costs.look * trip);
          looked = this.now;
        }
      }
    }

    // Schemes

    *at_own_pace(worker) {
      const sim = this, { setup } = this, core = setup.of_worker(), sent = [];
      const decoupled = setup.scheme === DECOUPLED;
      let had = -setup.fragments, last = -1; // merges seen, and the last one answered
      function* plain() {
        if (setup.scheme === BOUNDED) {
          while (sim.clocks[worker] - Math.min(...sim.clocks) > setup.staleness) {
            yield* sim.spend(worker, "wait", sim.waiting);
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
        yield* sim.spend(worker, "pull", sim.now + setup.away(worker));
        while (sent.length) yield* sim.spend(worker, "wait", sent[0]);
        const seen = yield* sim.pull(worker, decoupled ? had : null), arrived = [];
        // Steps are lost with the fragment; who was not in a merge begins anew.
        const fresh = sim.fresh(seen, had);
        const answers = !decoupled || !fresh || (last === seen - 1 && fresh < setup.fragments);
        had = seen;
        if (answers) last = seen;
        sent.push(arrived);
        sim.begin(aside(seen, arrived, answers));
        yield* sim.gradients(worker, core);
      }
      function* aside(seen, arrived, answers) {
        yield* sim.push(worker, true, answers ? setup.pushed : 1);
        sim.counted(worker, seen, null, answers);
        sent.splice(sent.indexOf(arrived), 1);
        sim.wake(arrived);
      }
      const one_round = ASIDE.includes(setup.scheme) ? elastic : plain;
      yield* this.calls(worker, one_round, 2 * setup.away(worker));
    }
    *barrier(worker) {
      const sim = this, { setup } = this, core = setup.of_worker();
      const needed = setup.replicas || setup.workers;
      let mine = -1;
      function* one_round() {
        while (sim.count === mine) yield* sim.spend(worker, "wait", sim.waiting);
        mine = sim.count;
        yield* sim.pull(worker);
        const bar = yield* sim.gradients(worker, core);
        yield* sim.push(worker);
        const used = mine === sim.count && sim.taken < needed;
        sim.pushes.push({ time: sim.now, worker, stale: 0 });
        Object.assign(bar, { update: sim.count + 1, late: !used });
        if (!used) return;
        sim.added.push(sim.now);
        sim.rule?.push(worker, 0);
        sim.taken += 1;
        if (sim.taken < needed) return;
        sim.taken = 0;
        sim.count += 1;
        sim.opened.push(sim.now);
        sim.rule?.update();
        sim.wake(sim.waiting);
      }
      yield* this.calls(worker, one_round, 2 * setup.away(worker));
    }
    *peer(worker) {
      const sim = this, { setup } = this;
      let seconds = CALL;
      function* one_round() {
        const bar = yield* sim.gradients(worker);
        sim.ready.add(worker);
        if (!sim.all_reduce()) yield* sim.spend(worker, "wait", sim.waiting);
        yield* sim.spend(worker, "all-reduce", sim.reduced);
        if (sim.together) sim.rule?.round(sim.together);
        sim.together = null;
        sim.pushes.push({ time: sim.now, worker, stale: 0 });
        bar.update = sim.count;
        if (worker === Math.min(...sim.there)) sim.opened.push(sim.now);
      }
      for (;;) {
        yield* this.spend(worker, "call", this.now + setup.all_reduce(0));
        const size = setup.rounds_of_a_call(seconds);
        const calls = Math.floor(CALL / (size * Math.max(seconds, 1e-9)));
        for (let call = 0; call < Math.max(1, Math.min(calls, 50)); call++) {
          const start = this.now;
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
        sim.rule?.pull(worker);
        if (near.length) {
          const j = near[Math.floor(sim.random.uniform(0, near.length))];
          under_way.push(averaged);
          sim.begin(average(j, averaged));
        }
        const bar = yield* sim.gradients(worker, setup.of_step(setup.whole));
        while (under_way.length) yield* sim.spend(worker, "wait", under_way[0]);
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
        yield sim.compute(j, setup.of_step(setup.whole));
        sim.rule?.average(worker, j);
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
      const updates = this.opened.filter((time) => time > start && time <= end).length;
      const used = setup.scheme === BARRIER ? updates * (setup.replicas || n) : pushes.length;
      const waits = this.bars.filter((bar) => bar.kind === "wait").map((bar) =>
        Math.max(0, Math.min(bar.end, end) - Math.max(bar.start, start)));
      // What one cable carries: that of a ps, or of a worker between two others.
      let sent = (pushes.length * setup.pulled) / setup.ps;
      if (setup.peers) sent = pushes.length * ((2 * (n - 1)) / n ** 2) * setup.whole;
      if (setup.scheme === GOSSIP) {
        const starts = n > 1 ? pushes.filter((one) => one.worker % 2 === 0).length : 0;
        sent = (starts * setup.whole) / Math.max(1, Math.floor(n / 2));
      }
      return {
        updates: updates / span,
        examples: (used / span) * setup.steps * BATCH,
        busiest: sent / span,
        staleness: sum(pushes.map((one) => one.stale)) / Math.max(1, pushes.length),
        most: pushes.reduce((most, one) => Math.max(most, one.stale), 0),
        waited: sum(waits) / span / n, // share of the workers' time
      };
    }
  }

  return { PEERS, BARRIER, GOSSIP, Random, Setup, Simulation, range };
})();
if (typeof module !== "undefined") module.exports = cost;
