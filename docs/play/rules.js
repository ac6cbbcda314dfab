// The update rules of tests/rules.py in JavaScript, driven by the events of cost.js, and
// two small problems to train. A test compares them with the rules there, push by push.
// Weights and gradients are arrays of numbers; a rule makes new ones and changes none.

const rules = (() => {
  const { range } = typeof cost === "undefined" ? require("./cost.js") : cost;
  const add = (a, b, scale = 1) => a.map((x, i) => x + scale * b[i]);
  const zeros = (a) => a.map(() => 0);
  const mean = (all) => all.reduce((a, b) => add(a, b)).map((x) => x / all.length);
  const dot = (a, b) => a.reduce((total, x, i) => total + x * b[i], 0);

  /** What all have: a center variable `w` [P], what each worker has pulled, and what else
      is its own, which is lost when it dies. */
  class Rule {
    constructor(options, workers, w, gradient) {
      Object.assign(this, options, { workers, w, gradient, held: [], own: [], taken: [] });
    }
    center() { return this.w; }
    pull(k) { this.held[k] = this.w; }
    lose(k) { this.own[k] = undefined; }
  }

  /** HogWild and its relatives: T local steps add up gradients; their sum is pushed. */
  class Windowed extends Rule {
    push(k, stale) {
      let x = this.held[k], total = zeros(this.w);
      for (let step = 0; step < this.window; step++) {
        const g = this.gradient(k, x);
        total = add(total, g);
        x = add(x, g, -this.rate);
      }
      this.w = this.move(total, stale, k);
    }
    move(total) { return add(this.w, total, -this.rate); }
  }

  /** w ← w − η / (τ + 1) g. */
  class Dynamic extends Windowed {
    move(total, stale) { return add(this.w, total, -this.rate / (stale + 1)); }
  }

  /** The sum of a window, by Adagrad on the ps. */
  class Downpour extends Windowed {
    move(total) {
      const sums = this.sums || total.map(() => 1e-20);
      this.sums = sums.map((s, i) => s + total[i] * total[i]);
      return this.w.map((x, i) => x - (this.gamma * total[i]) / Math.sqrt(this.sums[i]));
    }
  }

  /** The mean of a window. */
  class Agn extends Windowed {
    move(total) { return add(this.w, total, -this.rate / this.window); }
  }

  /** The k largest of |p|; the others wait for the next push. */
  class Compressed extends Windowed {
    move(g, stale, k) {
      const p = add(this.own[k] || zeros(g), g);
      const few = Math.max(1, Math.round(this.keep * p.length));
      const order = range(p.length).sort((i, j) => Math.abs(p[j]) - Math.abs(p[i]) || i - j);
      const chosen = new Set(order.slice(0, few));
      const s = p.map((x, i) => (chosen.has(i) ? x : 0));
      this.own[k] = add(p, s, -1);
      return add(this.w, s, -this.rate);
    }
  }

  /** Each worker has weights x of its own; an elastic difference moves both. */
  class Elastic extends Rule {
    x = range(this.workers).map(() => this.w);
    push(k) {
      const move = add(this.x[k], this.held[k], -1).map((x) => (x * this.beta) / this.workers);
      this.w = add(this.w, move);
      for (let step = 0; step < this.window; step++) {
        const g = this.gradient(k, this.x[k]);
        this.x[k] = add(step ? this.x[k] : add(this.x[k], move, -1), g, -this.rate);
      }
    }
    lose(k) { this.x[k] = this.center(); }
  }

  /** The mean of the first gradients of a step. */
  class Barrier extends Rule {
    push(k) { this.taken.push(this.gradient(k, this.held[k])); }
    update() {
      this.w = add(this.w, mean(this.taken), -this.rate);
      this.taken = [];
    }
  }

  /** T steps of each worker alone, then the mean of all weights: with one step the same as
      a step along the mean of all gradients, which is that of a ring. */
  class LocalSgd extends Rule {
    apart(k) {
      let x = this.w;
      for (let t = 0; t < this.window; t++) x = add(x, this.gradient(k, x), -this.rate);
      return x;
    }
    round(workers) { this.w = mean(workers.map((k) => this.apart(k))); }
  }

  /** AdamW in the T steps, Nesterov momentum on the mean movement. */
  class DiLoCo extends LocalSgd {
    apart(k, x = this.w) {
      const { rate, decay } = this, [b1, b2] = [0.9, 0.95];
      const own = (this.own[k] ??= { m: zeros(this.w), v: zeros(this.w), t: 0 });
      for (let step = 0; step < this.window; step++) {
        const g = this.gradient(k, x);
        own.t += 1;
        own.m = own.m.map((m, i) => b1 * m + (1 - b1) * g[i]);
        own.v = own.v.map((v, i) => b2 * v + (1 - b2) * g[i] * g[i]);
        const [c1, c2] = [1 - b1 ** own.t, 1 - b2 ** own.t];
        x = x.map((x_i, i) =>
          x_i - rate * (own.m[i] / c1 / (Math.sqrt(own.v[i] / c2) + 1e-8) + decay * x_i));
      }
      return x;
    }
    round(workers) {
      const delta = mean(workers.map((k) => add(this.w, this.apart(k), -1)));
      this.u = add(delta, this.u || zeros(delta), this.momentum);
      this.w = add(this.w, add(delta, this.u, this.momentum), -this.outer);
    }
  }

  /** DiLoCo's steps from what was pulled; the momentum moves at every N-th push. */
  class AsyncDiLoCo extends DiLoCo {
    push(k) {
      const n = this.workers, seen = this.held[k], d = add(seen, this.apart(k, seen), -1);
      this.taken.push(d);
      this.w = add(this.w, d, -this.outer / n);
      if (this.taken.length < n) return;
      this.u = add(mean(this.taken), this.u || zeros(d), this.momentum);
      this.w = add(this.w, this.u, -this.outer * this.momentum);
      this.taken = [];
    }
  }

  /** Copies x of their own; a merge of one fragment takes the answers that are there. */
  class Decoupled extends DiLoCo {
    window = Math.max(1, Math.floor(this.window / this.fragments));
    t = 0; // merges
    learners = range(this.workers).map(() => this.anew());
    u = zeros(this.w);
    answers = new Map();
    anew() { return { x: this.w, seen: this.t, steps: range(this.fragments).map(() => 0) }; }
    lose(k) { super.lose(k); this.learners[k] = this.anew(); }
    of(i) { return Math.floor(i / Math.ceil(this.w.length / this.fragments)); }
    pull(k) {
      const me = this.learners[k], { fragments } = this;
      for (let t = Math.max(me.seen, this.t - fragments); t < this.t; t++) {
        me.x = me.x.map((x, i) => (this.of(i) === t % fragments ? this.w[i] : x));
        me.steps[t % fragments] = 0;
      }
      me.seen = this.t;
      this.held[k] = { x: me.x, a: me.steps[this.t % fragments] };
      me.x = this.apart(k, me.x);
      me.steps = me.steps.map((steps) => steps + this.window);
    }
    push(k) { if (this.held[k].a) this.answers.set(k, this.held[k]); }
    update() {
      const f = this.t++ % this.fragments, length = (v) => Math.sqrt(dot(v, v)) || 1;
      let total = 0, far = 0, delta = zeros(this.w);
      for (const { x, a } of this.answers.values()) {
        const d = this.w.map((w, i) => (this.of(i) === f ? w - x[i] : 0));
        delta = add(delta, d, a / length(d));
        [total, far] = [total + a, far + a * length(d)];
      }
      delta = delta.map((v, _, all) => v * far / (total || 1) / length(all));
      this.answers.clear();
      this.u = this.u.map((u, i) => (this.of(i) === f ? this.momentum * u + delta[i] : u));
      const move = add(delta, this.u, this.momentum);
      this.w = this.w.map((w, i) => (this.of(i) === f ? w - this.outer * move[i] : w));
    }
  }

  /** A replica x of each worker; two of them average. */
  class Gossip extends Elastic {
    center() { return mean(this.x); }
    pull(k) { this.held[k] = this.x[k]; }
    average(k, j) { this.x[k] = this.x[j] = mean([this.x[k], this.x[j]]); }
    push(k) { this.x[k] = add(this.x[k], this.gradient(k, this.held[k]), -this.rate); }
  }

  const CLASSES = {
    HogWild: Windowed, "Dynamic-SGD": Dynamic, "Stale-Synchronous-Parallel": Windowed,
    "DOWNPOUR-Easy": Downpour, AGN: Agn, AEASGD: Elastic, "Gradient-Compression": Compressed,
    "Synchronous-SGD": Barrier, "Ring-All-Reduce": LocalSgd, "Local-SGD": LocalSgd, DiLoCo,
    "Async-DiLoCo": AsyncDiLoCo, "Decoupled-DiLoCo": Decoupled, "Gossip-SGD": Gossip,
  };
  const OPTIONS = { rate: 0.1, window: 1, gamma: 0.05, beta: 0.9, keep: 0.01,
    outer: 0.7, momentum: 0.9, decay: 0.1 };

  /** Returns a scheme's rule; gradient(k, x) is that of worker k at x, of a mini-batch. */
  function rule(scheme, options, workers, w, gradient) {
    return new CLASSES[scheme]({ ...OPTIONS, ...options }, workers, w, gradient);
  }

  // --- Problems: 20 numbers to learn, of curvatures from 1 down to 0.01 ---------

  const CURVATURES = range(20).map((i) => 0.01 ** (i / 19));

  /** ½ ∑ h_i w_i², and noise on each gradient. */
  function quadratic(random) {
    const start = CURVATURES.map((h) => 0.1 / Math.sqrt(h));
    const gradient = (k, x) => x.map((x_i, i) => CURVATURES[i] * x_i + 0.03 * random.normal());
    const loss = (x) => dot(CURVATURES, x.map((x_i) => x_i * x_i)) / 2;
    return { start, gradient, loss, least: 0 };
  }

  /** Logistic regression on 300 drawn rows; worker k draws 32 of rows k, k + N, … */
  function logistic(random, workers) {
    const truth = CURVATURES.map((h) => random.normal() * 0.15 / Math.sqrt(h));
    const sigmoid = (z) => 1 / (1 + Math.exp(-z));
    const rows = range(300).map(() => {
      const x = CURVATURES.map((h) => 2 * Math.sqrt(h) * random.normal());
      return { x, y: random.next() < sigmoid(dot(x, truth)) ? 1 : 0 };
    });
    const of = (some, w) => {
      const total = zeros(w);
      for (const { x, y } of some) {
        const error = (sigmoid(dot(x, w)) - y) / some.length;
        for (let i = 0; i < total.length; i++) total[i] += error * x[i];
      }
      return total;
    };
    const shard = Math.max(1, Math.floor(rows.length / workers));
    const draw = (k) => rows[k + workers * Math.floor(random.uniform(0, shard))];
    const gradient = (k, w) => of(range(32).map(() => draw(k)), w);
    const loss = (w) => rows.reduce((total, { x, y }) => {
      const z = dot(x, w);
      return total + Math.log1p(Math.exp(-Math.abs(z))) + Math.max(z, 0) - y * z;
    }, 0) / rows.length;
    let best = zeros(truth); // nearly: by gradient descent
    for (const _ of range(1500)) best = add(best, of(rows, best), -1);
    return { start: zeros(truth), gradient, loss, least: loss(best) };
  }

  return { rule, quadratic, logistic };
})();
if (typeof module !== "undefined") module.exports = rules;
