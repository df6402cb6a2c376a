// The page around game.js: controls, triangle, charts and numbers. Every picture is SVG; nothing is fetched.
"use strict";

const Page = (() => {
  const $ = (id) => document.getElementById(id);
  const CORNERS = [[30, 282], [330, 282], [180, 282 - 150 * Math.sqrt(3)]]; // of the triangle, in its own units
  const LABELS = [[4, 303, "start"], [356, 303, "end"], [180, 15, "middle"]]; // beside the corners
  const CHART = { left: 38, right: 392, top: 6, bottom: 148 };
  const SECONDS = 10, SLOWEST = 6; // a whole game plays in about so long, with at least so many rounds a second
  const DOTS = 400; // at most so many rounds get a dot of their own on the path
  const LEAST_START = 0.001; // of each weight: KL(w‖start) is infinite where the start is zero
  const EQUAL = [1 / 3, 1 / 3, 1 / 3];
  const BASE = { names: ["class 1", "class 2", "class 3"], accuracies: [0.3, 0.6, 0.9], network: "network answers at once",
    tau: 1, share: 0.5, projection: "euclidean", rounds: 60, start: EQUAL }; // share: n·u_min
  const FASHION = { names: ["Shirt", "T-shirt/top", "Trouser"], accuracies: [0.49, 0.82, 0.97] };
  const PRESETS = {
    convergence: BASE,
    oscillation: { ...BASE, tau: 10 ** 0.85 },
    trap: { ...BASE, network: "trap", rounds: 2000, tau: Game.theorem1(3, 2000).tau },
    fashion_mnist: { ...BASE, ...FASHION, network: "network learns", rounds: 200 },
  };

  let settings = BASE, preset = "convergence", now = 1, playing = false, last = 0, game, points, lines;

  // --------------------------------------------------------------------------------------------------- drawing

  const place = (w) => [0, 1].map((axis) => CORNERS.reduce((total, corner, i) => total + w[i] * corner[axis], 0));
  const text = (pair) => pair.map((value) => value.toFixed(2)).join(" ");
  const signed = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
  const listed = (values) => values.map((value) => value.toFixed(3)).join(", ");
  const height = (y, low, high) => CHART.bottom - ((CHART.bottom - CHART.top) * (y - low)) / (high - low);
  const set = (id, attributes) => Object.entries(attributes).forEach(([name, value]) => $(id).setAttribute(name, value));

  function line(values, low, high) { // every round as a point of a chart, as text
    const width = (CHART.right - CHART.left) / (values.length - 1);
    return values.map((y, t) => text([CHART.left + width * t, height(y, low, high)]));
  }

  function ticks(low, high) { // about five round numbers
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  }

  function axes(svg, low, high, level, names) { // ticks, a dashed line at a level, and an empty line for each name
    const { left, right, top, bottom } = CHART, digits = high - low < 0.1 ? 3 : 2;
    const grid = ticks(low, high).map((value) => [height(value, low, high), signed(value, digits)]).map(([y, label]) =>
      `<path class="frame" d="M${left} ${y}H${right}"/><text x="${left - 5}" y="${y + 4}" text-anchor="end">${label}</text>`);
    const rounds = [[left, "start", "round 1"], [(left + right) / 2, "middle", Math.round(settings.rounds / 2)],
      [right, "end", settings.rounds]].map(([x, anchor, label]) =>
      `<text x="${x}" y="${bottom + 15}" text-anchor="${anchor}">${label}</text>`);
    const inside = `<rect x="${left}" y="${top - 2}" width="${right - left}" height="${bottom - top + 4}"/>`;
    svg.innerHTML = `<clipPath id="${svg.id}-inside">${inside}</clipPath>${grid.join("")}${rounds.join("")}` +
      `<path class="floor" d="M${left} ${height(level, low, high)}H${right}"/>` +
      `<g clip-path="url(#${svg.id}-inside)">${names.map((name) => `<path class="line ${name}"/>`).join("")}</g>`;
  }

  function legend(id, entries) {
    const key = (look) => `<svg viewBox="0 0 24 8" aria-hidden="true"><path class="line ${look}" d="M0 4H24"/></svg>`;
    $(id).innerHTML = entries.map(([look, label]) => `<span>${key(look)}${label}</span>`).join("");
  }

  function statedBound() { // what Theorem 1 promises, where τ is the one it asks for
    const { tau, bound } = Game.theorem1(3, settings.rounds);
    return Math.abs(settings.tau / tau - 1) < 1e-9 ? bound : null;
  }

  function regretLines() { // of the chart: [look, label, values]
    const found = [["regret", "average regret", game.played.map((at) => at.regret)]], stated = statedBound();
    const [look, label] = game.boundHolds ? ["bound", "its bound D/(τt) + τ/8"]
      : ["unproven", `D/(τt) + τ/8, not proven for ${settings.projection}`];
    if (settings.projection !== "best_response") found.push([look, label, game.played.map((at) => at.bound)]);
    if (stated) found.push(["stated", `Theorem 1 for ${settings.rounds} rounds`, game.played.map(() => stated)]);
    return found;
  }

  function prepare() { // what changes with the game, and not with the round
    game = Game.play(settings);
    points = game.played.map((at) => text(place(at.w)));
    const corner = (i) => EQUAL.map((_, j) => game.uMin + (i === j ? 1 - 3 * game.uMin : 0));
    set("simplex", { points: CORNERS.map(text).join(" ") });
    set("allowed", { points: [0, 1, 2].map((i) => text(place(corner(i)))).join(" ") });
    const [cx, cy] = place(settings.start);
    for (const id of ["start", "grip"]) set(id, { cx, cy });
    const shown = regretLines(), regrets = shown[0][2], ends = shown.map(([, , values]) => values.at(-1));
    const high = 1.15 * Math.max(...regrets.slice(Math.floor(settings.rounds / 20)), ...ends, 0.002);
    const low = 1.05 * Math.min(...regrets, -high / 6), classes = ["class0", "class1", "class2"];
    axes($("weights"), 0, 1, game.uMin, classes);
    axes($("regret"), low, high, 0, shown.map(([look]) => look));
    legend("weights-legend", [...classes.map((look, i) => [look, settings.names[i]]), ["floor", "floor u_min"]]);
    legend("regret-legend", shown);
    const weights = classes.map((_, i) => line(game.played.map((at) => at.w[i]), 0, 1));
    lines = { weights, regret: shown.map(([, , values]) => line(values, low, high)) };
    showSettings();
    draw();
  }

  function draw() { // what changes with the round
    const at = game.played[now - 1], [cx, cy] = place(at.w), [x, y] = place(at.target);
    set("path", { d: `M${points.slice(0, now).join("L")}` });
    set("steps", { d: points.slice(Math.max(now - DOTS, 0), now).map((point) => `M${point}h0`).join("") });
    set("now", { cx, cy });
    set("best", { d: `M${x} ${y - 10}l8 10l-8 10l-8 -10z` });
    $("corners").innerHTML = LABELS.map(([left, top, anchor], i) =>
      `<text x="${left}" y="${top}" text-anchor="${anchor}">${settings.names[i]} ${at.w[i].toFixed(2)}</text>`).join("");
    for (const id of ["weights", "regret"]) {
      $(id).querySelectorAll("g > path").forEach((path, i) => path.setAttribute("d", `M${lines[id][i].slice(0, now).join("L")}`));
    }
    $("round").value = now;
    $("round-value").textContent = `${now} of ${settings.rounds}`;
    $("play").textContent = playing ? "Pause" : "Play";
    set("numbers", { "aria-live": playing ? "off" : "polite" }); // a screen reader waits until it stands still
    $("numbers").textContent = numbers(at);
  }

  function numbers(at) {
    const side = at.regret <= at.bound ? "below" : "above", stated = statedBound();
    const bound = settings.projection === "best_response" ? "no bound"
      : `${side} ${game.boundHolds ? "its bound" : "the bound of kl and clip"}, ${at.bound.toFixed(4)}`;
    return [
      `Round ${now} of ${settings.rounds}: ${settings.names.join(", ")}`,
      `weights w: ${listed(at.w)}`, `accuracies v: ${listed(at.v)}`,
      `loss w·v: ${at.loss.toFixed(4)}, on average ${at.mean.toFixed(4)}`, `best fixed weights: ${at.best.toFixed(4)}`,
      `average regret: ${signed(at.regret, 4)}, ${bound}`,
      ...(stated ? [`Theorem 1: at most ${stated.toFixed(4)} after ${settings.rounds} rounds`] : []),
    ].join("\n");
  }

  function showSettings() {
    const show = (id, value, shown) => {
      [$(id).value, $(`${id}-value`).textContent] = [value, shown];
      set(id, { "aria-valuetext": shown });
    };
    const trap = settings.network === "trap";
    for (const id of ["network", "projection"]) $(id).value = settings[id];
    settings.accuracies.forEach((value, i) => {
      show(`v${i}`, value, trap ? "–" : value.toFixed(2));
      $(`v${i}-name`).textContent = settings.names[i];
      $(`v${i}`).disabled = trap;
    });
    show("tau", Math.log10(settings.tau), settings.tau.toFixed(settings.tau < 0.1 ? 4 : 2));
    show("share", settings.share, game.uMin.toFixed(3));
    show("rounds", settings.rounds, settings.rounds);
    $("tau").disabled = settings.projection === "best_response";
    $("round").max = settings.rounds;
    for (const button of $("presets").children) button.setAttribute("aria-pressed", button.dataset.preset === preset);
  }

  // --------------------------------------------------------------------------------------------------- playing

  function change(part) { // a control was moved: the game with another setting, seen as far as before
    const ended = now === settings.rounds;
    settings = { ...settings, ...part };
    settings.start = Game.project(settings.start, Math.max(settings.share / 3, LEAST_START), "euclidean");
    now = ended ? settings.rounds : Math.min(now, settings.rounds);
    if (!("start" in part || "projection" in part)) preset = null;
    if ("network" in part) $("note").textContent = "";
    prepare();
  }

  function choose(name, run) {
    [preset, settings] = [name, PRESETS[name]];
    $("note").textContent = $(`choose-${name}`).dataset.note;
    now = settings.rounds;
    prepare();
    setPlaying(run);
  }

  function setPlaying(on) { // from the last round it begins again
    if (on && now === settings.rounds) now = 1;
    if (on && !playing) requestAnimationFrame(tick);
    [playing, last] = [on, 0];
    draw();
  }

  function tick(time) {
    if (!playing) return;
    const pace = 1000 / Math.max(SLOWEST, settings.rounds / SECONDS); // milliseconds a round
    last ||= time;
    const steps = Math.floor((time - last) / pace);
    last += steps * pace;
    now = Math.min(now + steps, settings.rounds);
    playing = now < settings.rounds;
    if (steps) draw();
    requestAnimationFrame(tick);
  }

  function seek(round) {
    [playing, now] = [false, round];
    draw();
  }

  function weightsAt(event) { // of the point of the triangle under the pointer
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform($("triangle").getScreenCTM().inverse());
    const top = (CORNERS[0][1] - y) / (CORNERS[0][1] - CORNERS[2][1]);
    const right = (x - CORNERS[0][0]) / (CORNERS[1][0] - CORNERS[0][0]) - top / 2;
    return [1 - top - right, right, top];
  }

  function pressed(event) {
    const triangle = event.target === $("triangle"), { tagName } = event.target, size = event.shiftKey ? 0.05 : 0.01;
    const moves = { ArrowLeft: [1, -1, 0], ArrowRight: [-1, 1, 0], ArrowUp: [-0.5, -0.5, 1], ArrowDown: [0.5, 0.5, -1] };
    const move = triangle && moves[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || tagName === "SELECT") return;
    if (move) change({ start: settings.start.map((value, i) => value + size * move[i]) });
    else if (event.key === "r") $("reset").click();
    else if (event.key === " " && tagName !== "BUTTON") setPlaying(!playing); // space presses a button anyway
    else return;
    event.preventDefault();
  }

  function listen() {
    const on = (id, kind, act) => $(id).addEventListener(kind, act), triangle = $("triangle");
    const drag = (event) => change({ start: weightsAt(event) });
    for (const id of ["network", "projection"]) on(id, "input", () => change({ [id]: $(id).value }));
    for (const id of ["share", "rounds"]) on(id, "input", () => change({ [id]: Number($(id).value) }));
    on("tau", "input", () => change({ tau: 10 ** Number($("tau").value) }));
    [0, 1, 2].forEach((i) => on(`v${i}`, "input", (event) =>
      change({ accuracies: settings.accuracies.with(i, Number(event.target.value)) })));
    on("round", "input", () => seek(Number($("round").value)));
    on("play", "click", () => setPlaying(!playing));
    on("step", "click", () => seek(now === settings.rounds ? 1 : now + 1));
    on("reset", "click", () => { change({ start: EQUAL }); seek(1); });
    on("triangle", "click", drag); // a finger elsewhere than on the ring may be scrolling: only a tap counts
    on("triangle", "pointerdown", (event) => {
      if (event.pointerType === "touch" && event.target.id !== "grip") return;
      triangle.setPointerCapture(event.pointerId);
      drag(event);
    });
    on("triangle", "pointermove", (event) => triangle.hasPointerCapture(event.pointerId) && drag(event));
    document.addEventListener("keydown", pressed);
    const moving = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    for (const { dataset } of $("presets").children) on(`choose-${dataset.preset}`, "click", () => choose(dataset.preset, moving));
  }

  const options = (names) => names.map((name) => `<option>${name}</option>`).join("");
  $("network").innerHTML = options(Object.keys(Game.NETWORKS));
  $("projection").innerHTML = options(Game.PROJECTIONS);
  listen();
  choose(Object.hasOwn(PRESETS, location.hash.slice(1)) ? location.hash.slice(1) : "convergence", false);
  if (window.frameElement) { // inside a page of the same site: as high as what it shows, light or dark as the page is
    const root = document.documentElement, site = parent.document.documentElement;
    const follow = () => (root.style.colorScheme = site.dataset.theme || "light dark");
    new MutationObserver(follow).observe(site, { attributeFilter: ["data-theme"] });
    new ResizeObserver(() => (window.frameElement.style.height = `${root.offsetHeight}px`)).observe(document.body);
    follow();
  }
  return { PRESETS, change, choose, settings: () => settings, game: () => game };
})();
