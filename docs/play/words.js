// What the page says, what can be set in it, and the numbers of benchmarks/ that it compares
// with. No code. `on` is a state, written as in an address; {window} and the like become
// what is set.

const words = {
  // Where the measurements are
  links: {
    clusters: "../../benchmarks/clusters.md#gradients-until-then-of-all-workers",
    claims: "../../benchmarks/claims.md#accuracy-against-learning-rate-and-workers",
    scaling: "../../benchmarks/many-workers.md#1000000-parameters",
    members: "../../benchmarks/without-a-ps.md#diloco-workers-that-come-and-go-between-rounds",
  },

  // What a scheme does, its settings, and what a link to it shows: beside what, and where.
  // A new one also has a name in cost.py, and a rule in rules.js. If its timing is new, it
  // has a process in cost.py and in cost.js.
  schemes: {
    HogWild: {
      own: { rate: 0.1 }, on: "b=Synchronous-SGD&slow=1,1,1,4",
      told: "Nobody waits. While a worker computes, the others change the weights, and so its gradient is old when it arrives.",
    },
    "Dynamic-SGD": {
      own: { rate: 0.4 }, on: "b=HogWild&b.rate=0.4&workers=8",
      told: "Nobody waits. A gradient that is τ updates old makes only 1 / (τ + 1) of a step.",
    },
    "Stale-Synchronous-Parallel": {
      own: { rate: 0.1, bound: 4 }, on: "b=Synchronous-SGD&spread=100",
      told: "A worker that is more than {bound} rounds ahead of the slowest waits (hatched).",
    },
    "DOWNPOUR-Easy": {
      own: { rate: 0.1, window: 16 }, on: "b=HogWild&bandwidth=100",
      told: "Nobody waits. Each worker makes {window} steps alone, then pushes the sum of its gradients.",
    },
    AGN: {
      own: { rate: 0.1, window: 5 }, on: "b=DOWNPOUR-Easy&bandwidth=100",
      told: "Nobody waits. Each worker makes {window} steps alone, then pushes the mean of its gradients.",
    },
    "Async-DiLoCo": {
      own: { rate: 0.003, window: 25 }, on: "b=DiLoCo&slow=1,1,1,4&seconds=60",
      told: "Nobody waits. Each worker makes {window} steps alone, then pushes how far it moved. The ps adds momentum once in N pushes (N = {workers}).",
    },
    "Decoupled-DiLoCo": {
      own: { rate: 0.003, window: 24, quorum: 3, fragments: 4 }, on: "b=DiLoCo&slow=1,1,1,4&seconds=60",
      told: "Nobody waits. A worker sends one of {fragments} pieces of its weights, and computes meanwhile. The ps merges the first {quorum} that come, and all workers get the result. Left out here is the grace window, in which later ones count too.",
    },
    AEASGD: {
      own: { rate: 0.3, window: 16 }, on: "b=HogWild&bandwidth=100",
      told: "Nobody waits. Each worker makes {window} steps alone, then pushes a part of the difference between its weights and the shared ones, while it computes.",
    },
    "Gradient-Compression": {
      own: { rate: 0.1, keep: 0.01 }, on: "b=HogWild&bandwidth=100",
      told: "Nobody waits. Only the largest {keep} of a gradient is pushed, and the rest waits for the next push. What is pulled is whole.",
    },
    "Synchronous-SGD": {
      own: { rate: 0.3, backup: 0 }, on: "b=HogWild&slow=1,1,1,4",
      told: "An update needs {needed} gradients of {workers} workers, and all wait for it at this barrier (hatched). No gradient is stale. With backup workers, those that come last are thrown away (striped).",
    },
    "Ring-All-Reduce": {
      own: { rate: 0.3 }, on: "b=Synchronous-SGD&workers=8&parameters=1000000",
      told: "No ps: the workers add up their gradients in a ring. All wait for the slowest (hatched). When one is killed, all stop until it is back.",
    },
    "Local-SGD": {
      own: { rate: 0.3, window: 8 }, on: "b=Ring-All-Reduce&bandwidth=100",
      told: "No ps. Each worker makes {window} steps alone, then all average their weights, and wait for the slowest (hatched). When one is killed, the others go on.",
    },
    DiLoCo: {
      own: { rate: 0.003, window: 25 }, on: "b=Local-SGD&trip=100&sites=1&bandwidth=10000",
      told: "No ps. Each worker makes {window} steps alone, then all average how far they moved, and momentum carries it on. They wait for the slowest (hatched). When one is killed, the others go on.",
    },
    "Gossip-SGD": {
      own: { rate: 0.3 }, on: "b=Ring-All-Reduce&slow=1,1,1,4",
      told: "No ps. Two workers at a time average their weights, and compute meanwhile.",
    },
  },

  // What can be set: of the cluster, of a worker, and of a scheme
  cluster: {
    workers: { label: "Workers", value: 4, min: 1, max: 32, step: 1 },
    gradient: { label: "A gradient takes, ms", value: 40, min: 5, max: 200, step: 5 },
    spread: { label: "and varies by, %", value: 0, min: 0, max: 100, step: 10 },
    ps: { label: "Parameter servers", value: 1, min: 1, max: 4, step: 1 },
    parameters: {
      label: "Parameters", value: 100000,
      choices: { 4810: "4,810", 100000: "100,000", 1000000: "1 million", 10000000: "10 million" },
    },
    bandwidth: {
      label: "A cable carries", value: 1000,
      choices: { 10: "10 Mbit/s", 100: "100 Mbit/s", 1000: "1 Gbit/s", 10000: "10 Gbit/s" },
    },
    trip: { label: "Round trip, ms", value: 0, min: 0, max: 200, step: 10 },
    sites: { label: "Far apart are", value: 0, choices: { 0: "all machines", 1: "two sites" } },
    kills: {
      label: "Killed are", value: 0,
      choices: { 0: "no workers", 1: "one worker", 2: "all workers, in turn" },
    },
    problem: {
      label: "The problem", value: 0, choices: { 0: "a quadratic", 1: "logistic regression" },
    },
    seconds: {
      label: "The run lasts", value: 20, choices: { 5: "5 s", 20: "20 s", 60: "60 s", 120: "120 s" },
    },
  },
  slow: { label: "times as slow", value: 1, min: 1, max: 8, step: 0.5 },
  side: {
    rate: { label: "Learning rate", type: "number", step: "any", min: 0.001, max: 2 },
    window: { label: "Window T", type: "number", step: 1, min: 1, max: 128 },
    bound: { label: "Bound s", type: "number", step: 1, min: 0, max: 32 },
    backup: { label: "Backup workers", type: "number", step: 1, min: 0, max: 31 },
    quorum: { label: "Quorum K", type: "number", step: 1, min: 1, max: 32 },
    fragments: { label: "Fragments F", choices: { 1: "1", 2: "2", 4: "4" } },
    keep: { label: "Pushed", choices: { 0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %" } },
  },

  presets: [
    {
      id: "one-slow-worker",
      on: "a=HogWild&b=Synchronous-SGD&slow=1,1,1,4&seconds=60",
      told: "Worker 3 needs four times as long for a gradient. Synchronous-SGD waits for it in every step, HogWild never.",
      what: "gradients a second", link: "clusters", measured: [68, 22],
    },
    {
      id: "two-sites",
      on: "a=HogWild&b=Ring-All-Reduce&trip=100&sites=1&bandwidth=10000&seconds=60",
      told: "Two workers and the ps are at one site, two workers at another, 100 ms away there and back. In each step of the ring the sums cross that distance three times.",
      what: "gradients a second", link: "clusters", measured: [55, 12],
    },
    {
      id: "100-mbit", on: "a=HogWild&b=DOWNPOUR-Easy&bandwidth=100",
      told: "Sending the weights takes 32 ms, a gradient 40 ms. DOWNPOUR-Easy sends once in 16 steps.",
      what: "gradients a second", link: "clusters", measured: [23, 84],
      leaves: "Real workers pull together and then push together, so that the cable is often used in one direction only. The simulation uses both at once.",
    },
    {
      id: "32-workers",
      on: "a=HogWild&b=AEASGD&a.rate=0.03&b.window=32&b.rate=0.4&workers=32&parameters=1000000&gradient=50&seconds=60",
      told: "The cable of one ps carries 31 gradients of a million numbers a second. That is full with four such workers, and 32 push.",
      what: "examples a second, with 24 workers on two shared cores (those below have a core each)", link: "scaling", measured: [5790, 8621],
      leaves: "A core of the simulation does one thing after the other, and loses no time when it changes from one of 25 processes to the next.",
    },
    {
      id: "come-and-go", on: "a=DiLoCo&b=Ring-All-Reduce&kills=2",
      told: "Each worker is killed once and comes back. DiLoCo goes on with those who are there, a ring stops until all are.",
      what: "examples of DiLoCo, when workers are lost, and when none is", link: "members", measured: [40000, 64000],
    },
    {
      id: "rate-too-high", on: "a=HogWild&b=Dynamic-SGD&a.rate=0.4&b.rate=0.4&workers=8",
      told: "With eight workers a gradient is seven updates old. HogWild's steps of 0.4 then go past the goal further each time. Dynamic-SGD divides each step by the staleness plus one.",
      what: "as the largest rate with which HogWild trains, with one worker and with eight", link: "claims", measured: [1.2, 0.2],
      leaves: "The curvature of this quadratic is always 1 at most, so one worker trains up to a rate of 2. That of a network changes while it trains.",
    },
  ],

  // In the order of the reading list
  questions: [
    {
      id: "question-1", on: "a=HogWild&b=Synchronous-SGD&slow=1,1,1,4&seconds=60", answer: "a",
      told: "Worker 3 is four times as slow as the others.",
      why: "In Synchronous-SGD every step waits for worker 3. In HogWild only worker 3 is slow.",
    },
    {
      id: "question-2", on: "a=HogWild&b=Dynamic-SGD&a.rate=0.4&b.rate=0.4&workers=8", answer: "b",
      told: "Eight equal workers, and a learning rate of 0.4 for both.",
      why: "A gradient is seven updates old, and so a step of 0.4 is too long: HogWild diverges. Dynamic-SGD makes steps of 0.4 / 8.",
    },
    {
      id: "question-3", on: "a=Stale-Synchronous-Parallel&b=HogWild&slow=1,1,1,4&seconds=60", answer: "b",
      told: "Worker 3 is always slow. Stale-Synchronous-Parallel lets nobody be more than four rounds ahead.",
      why: "A bound helps against short pauses. Here the fast workers soon are four rounds ahead, and then wait in every round.",
    },
    {
      id: "question-4", on: "a=HogWild&b=DOWNPOUR-Easy&bandwidth=100", answer: "b",
      told: "Cables of 100 Mbit/s: a message takes nearly as long as a gradient.",
      why: "HogWild sends after each gradient, and the cable of the ps is full. DOWNPOUR-Easy sends once in 16 gradients, so its workers compute nearly all the time.",
    },
    {
      id: "question-5", on: "a=HogWild&b=AGN&b.window=16&bandwidth=10000", answer: "a",
      told: "Fast cables: a message takes less than a millisecond. AGN has a window of 16.",
      why: "There is no time to save, because messages cost nearly nothing. And AGN's push, a mean of 16 gradients, moves the weights no further than one gradient does.",
    },
    {
      id: "question-6", on: "a=Synchronous-SGD&b=Synchronous-SGD&b.backup=1&slow=1,1,1,4&seconds=60", answer: "b",
      told: "Worker 3 is slow. The second Synchronous-SGD has one backup worker: it takes the first three gradients of a step.",
      why: "The first three gradients come from the fast workers, so nobody waits for worker 3. Its gradients are thrown away, which costs a quarter of the work, and not three quarters of the time.",
    },
    {
      id: "question-7", on: "a=Synchronous-SGD&b=Ring-All-Reduce&workers=8&parameters=1000000&seconds=60", answer: "b",
      told: "Eight equal workers, a million parameters, cables of 1 Gbit/s.",
      why: "All eight workers send 4 MB through the one cable of the ps, and get 4 MB from it. In the ring each worker only sends to the next one, so all cables carry at the same time.",
    },
    {
      id: "question-8", on: "a=Ring-All-Reduce&b=DiLoCo&trip=100&sites=1&bandwidth=10000&seconds=60", answer: "b",
      told: "Two sites, 100 ms apart, there and back.",
      why: "In each step of the ring the sums cross the distance three times, one after the other. DiLoCo does this once in 25 steps.",
    },
  ],

  own: "Change the cluster, and see which scheme gains. The address of this page holds all that is set, so that you can send it to somebody.",
};
if (typeof module !== "undefined") module.exports = words;
