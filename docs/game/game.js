// The game of clamkit.theory in plain JavaScript: pure functions of numbers, nothing of the page.
//
// Names and formulas are those of clamkit/theory and notebooks/helpers/players.py, for the set {w ≥ u_min, Σw = 1};
// tests/browser holds both to the same numbers within 1e-9.
"use strict";

const Game = (() => {
  const PROJECTIONS = ["euclidean", "kl", "clip", "released", "best_response"];
  const SUM_TOLERANCE = 1e-12; // a sum this close to 1 is 1 up to rounding
  const SMALLEST = 2.2250738585072014e-308; // dividing by a smaller number overflows: it counts as zero
  const RELEASED_CLIP = [0.5, 2]; // bounds of the released code, for weights with mean 1
  const LEARNING_STEP = 0.05; // of "network learns", as in notebook 30

  const sum = (x) => x.reduce((total, value) => total + value, 0);
  const dot = (w, v) => sum(w.map((value, i) => value * v[i]));
  const clip = (value, low, high) => Math.min(Math.max(value, low), high);
  const uniform = (n) => Array(n).fill(1 / n);
  const descending = (x) => [...x].sort((a, b) => b - a);
  const normalise = (x, total = sum(x)) => x.map((value) => value / total);
  const lastKept = (sorted, keep) => Math.max(sorted.filter(keep).length, 1) - 1; // keep holds up to an index, not after

  /** max(x − θ, 0) + u_min, θ from Σw = 1. */
  function euclidean(x, uMin) {
    const free = 1 - x.length * uMin, largest = Math.max(...x);
    const shifted = x.map((value) => value - largest), sorted = descending(shifted);
    let total = 0;
    const thresholds = sorted.map((value, i) => ((total += value) - free) / (i + 1));
    const theta = thresholds[lastKept(sorted, (value, i) => value >= thresholds[i])];
    return shifted.map((value) => Math.max(value - theta, 0) + uMin);
  }

  /** max(c·x, u_min), c from Σw = 1. */
  function kl(x, uMin) {
    const positive = x.map((value) => (value < SMALLEST ? 0 : value)), sorted = descending(positive);
    let total = 0;
    const scales = sorted.map((value, i) => (1 - (x.length - 1 - i) * uMin) / (total += value));
    const scale = scales[lastKept(sorted, (value, i) => scales[i] * value >= uMin)];
    return positive.map((value) => Math.max(scale * value, uMin));
  }

  /** The point of the set nearest to x, by Σ(w − x)² or by KL(w‖x). A point of the set comes back unchanged. */
  function project(x, uMin, projection) {
    const given = projection === "kl" ? normalise(x) : x;
    if (Math.abs(sum(given) - 1) <= SUM_TOLERANCE && Math.min(...given) >= uMin) return [...given];
    return normalise(projection === "kl" ? kl(given, uMin) : euclidean(given, uMin));
  }

  /** x = w·exp(−τv) / Z; v is shifted by the smallest v that carries weight, so that not every entry can vanish. */
  function multiplicativeStep(w, v, tau) {
    const smallest = Math.min(...v.filter((_, i) => w[i] > 0));
    return normalise(w.map((value, i) => value * Math.exp(-tau * Math.max(v[i] - smallest, 0))));
  }

  /** The w of the set with the smallest w·v: all that is free on the worst class, the first of several. */
  function argmin(v, uMin) {
    const worst = v.indexOf(Math.min(...v));
    return v.map((_, i) => (i === worst ? uMin + (1 - v.length * uMin) : uMin));
  }

  /** π(x): the way back towards the set after a step. */
  function intoSet(x, uMin, projection) {
    const [low, high] = RELEASED_CLIP.map((value) => value / x.length);
    if (projection === "clip") return normalise(x.map((value) => Math.max(value, uMin)));
    if (projection === "released") return normalise(x.map((value) => clip(value, low, high)));
    return project(x, uMin, projection);
  }

  /** One round of the min player: w ← π(w·exp(−τv)/Z), or argmin of w·v for "best_response". */
  function update(w, v, uMin, tau, projection) {
    if (projection === "best_response") return argmin(v, uMin);
    return intoSet(multiplicativeStep(w, v, tau), uMin, projection);
  }

  /** D = max over the set of KL(w‖start), reached at a corner. */
  function klDiameter(uMin, start) {
    const corners = start.map((_, i) => argmin(start.map((_, j) => Number(i !== j)), uMin));
    return Math.max(...corners.map((w) => sum(w.map((p, i) => (p > 0 ? p * Math.log(p / start[i]) : 0)))));
  }

  /** Whether regret ≤ D/(τt) + τ/8 is proven: KL, clip, and maps that are the same as one of them on this set. */
  function boundHolds(n, uMin, projection) {
    if (projection === "kl" || projection === "clip") return true;
    if (projection === "euclidean") return uMin === 0; // nothing to project
    const [low, high] = RELEASED_CLIP.map((value) => value / n), inside = SUM_TOLERANCE;
    return projection === "released" && uMin >= low - inside && 1 - (n - 1) * uMin <= high + inside;
  }

  /** Theorem 1 of the paper with its largest α, 1: the τ it asks for and the regret it promises after T rounds. */
  function theorem1(n, T) {
    const s = Math.sqrt(Math.log(n) / T);
    return { tau: Math.log1p(s / 2), bound: s * s + 2 * s };
  }

  // -------------------------------------------------------------------------------------------- the max player

  /** The k for which 1 − exp(−k θ) is v when every class gets the same effort θ = 1/n. */
  const rates = (v) => v.map((value) => -v.length * Math.log1p(-clip(value, 0.01, 0.99)));
  const reached = (k, theta) => k.map((rate, i) => 1 - Math.exp(-rate * theta[i]));

  /** The θ with the largest w·v, v_i = 1 − exp(−k_i θ_i), Σθ = 1: θ_i = (ln(w_i k_i) − μ)₊ / k_i. */
  function bestEffort(w, k) {
    const theta = k.map(() => 0), gain = w.map((value, i) => value * k[i]);
    const order = [...k.keys()].filter((i) => gain[i] > 0).sort((i, j) => gain[j] - gain[i]);
    let weighted = 0, total = 0;
    const mus = order.map((i) => ((weighted += Math.log(gain[i]) / k[i]) - 1) / (total += 1 / k[i]));
    const mu = mus[lastKept(order, (i, place) => Math.log(gain[i]) >= mus[place])];
    for (const i of order) theta[i] = Math.max(Math.log(gain[i]) - mu, 0) / k[i];
    return theta;
  }

  /** What answers w in round t (from 0) of T; each call returns a fresh player. */
  const NETWORKS = {
    "accuracies stay": (v) => () => v,
    "network answers at once": (v, T, k = rates(v)) => (w) => reached(k, bestEffort(w, k)),
    "network learns": (v, T, k = rates(v), theta = uniform(v.length)) => (w) => {
      const moved = theta.map((value, i) => value + LEARNING_STEP * (w[i] * k[i] * Math.exp(-k[i] * value)));
      theta = project(moved, 0, "euclidean");
      return reached(k, theta);
    },
    trap: (v, T) => (w, t) => {
      const n = v.length, early = t < Math.floor(T / 10), a = (0.99 * (n - 2)) / (n + 1);
      return v.map((_, i) => (i === 0 ? Number(early) : i === 1 ? (early ? 0 : a) : 1));
    },
  };

  /** All rounds of a game: w and v of each, mean loss, best fixed loss, average regret and D/(τt) + τ/8 so far. */
  function play({ accuracies, network, tau, share, projection, rounds, start }) {
    const n = accuracies.length, uMin = share / n;
    const possible = accuracies.every((v) => v >= 0 && v <= 1) && tau > 0 && share >= 0 && share < 1 && rounds >= 1;
    if (!possible) throw new Error("give accuracies in [0, 1], tau above 0, share (n·u_min) in [0, 1), at least 1 round.");
    const respond = NETWORKS[network](accuracies, rounds), first = start || uniform(n);
    const diameter = klDiameter(uMin, first), total = Array(n).fill(0);
    const played = [];
    let w = [...first], lost = 0;
    for (let t = 1; t <= rounds; t++) {
      const v = respond(w, t - 1), loss = dot(w, v);
      lost += loss;
      v.forEach((value, i) => (total[i] += value));
      const average = total.map((value) => value / t), target = argmin(average, uMin), best = dot(target, average);
      const bound = diameter / (tau * t) + tau / 8;
      played.push({ w, v, loss, mean: lost / t, target, best, regret: lost / t - best, bound });
      w = update(w, v, uMin, tau, projection);
    }
    return { played, last: w, uMin, diameter, boundHolds: boundHolds(n, uMin, projection) };
  }

  return { PROJECTIONS, NETWORKS, play, project, intoSet, update, klDiameter, boundHolds, theorem1 };
})();

if (typeof module !== "undefined") module.exports = Game;
