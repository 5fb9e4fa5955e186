// The run page: one x-range for all charts, zoom at full resolution, live while the run is active.

import { connectTools, csvOfCurves, csvOfTraces, hasLogAxis, showLogAxis, sized } from "./chart_tools.js";
import { draw, evaluationTraces, findingMarks, findingShapes, formatNumber, heatTraces, layoutOf, liveTraces, objectiveTraces, plotly, specOf, tracesOf, within } from "./charts.js";
import { drawCrosshair, nearest, pointedX } from "./crosshair.js";
import { Curves, derived, fetchJson } from "./curves.js";
import { HiddenLines, lastText, pointText, stepsText } from "./legend.js";
import { all, keepInPlace, one, refresh } from "./page.js";

/** @typedef {import("./curves.js").Unit} Unit */
/** @typedef {import("./curves.js").Range} Range */
/** @typedef {import("./charts.js").Spec} Spec */
/** @typedef {import("./charts.js").Span} Span */
/** @typedef {import("./charts.js").Trace} Trace */

/**
 * box: the figure element; visible: near the viewport; stale: not drawn since the data changed;
 * live: drawn while the run was live, null: never drawn.
 * @typedef {{plot: any, box: HTMLElement, spec: Spec, visible: boolean, stale: boolean, live: boolean | null, hasListeners: boolean}} Chart
 */

const MOST_POINTS = 3000; // above this, the whole run is fetched again, downsampled by the server
const UPDATE_PAUSE_MS = 500; // between two updates of a run whose steps are shorter
const REFETCH_MS = 5000; // between two fetches of evaluations and collectives, which are replaced, not appended

const section = one("#charts");
const reset = one("#reset-zoom");
const { series: seriesUrl, evaluations: evaluationsUrl, collectives: collectivesUrl, objectives: objectivesUrl, events: eventsUrl, steps: stepsUrl, find: findUrl } = /** @type {Record<string, string>} */ (section.dataset); // objectives: of a run with several
/** @type {string[]} */
const palette = JSON.parse(section.dataset.palette ?? "");
/** @type {Chart[]} */
const charts = all(".plot", section).map((plot) => ({
  plot,
  box: /** @type {HTMLElement} */ (plot.closest(".chart")),
  spec: specOf(plot),
  visible: false,
  stale: true,
  live: null,
  hasListeners: false,
}));
const lineCharts = charts.filter(({ spec }) => spec.series.length > 0);

/** @param {Chart[]} some */
const figuresOf = (some) => [...new Set(some.flatMap(({ spec }) => spec.figures))];
/** @param {Chart} chart */
const isNear = ({ box }) => !box.hidden && box.getBoundingClientRect().top < 2 * innerHeight;

/**
 * The URL of the series endpoint with some parameters.
 * @param {Record<string, string | number>} parameters
 */
function seriesQuery(parameters) {
  const url = new URL(seriesUrl, location.href);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, String(value));
  return url;
}

/** @param {Record<string, string | number>} parameters */
const fetchCurves = async (parameters) => new Curves(await fetchJson(seriesQuery(parameters)));

// ------------------------------------------------------------------ state

// Figures in the viewport are fetched first: of a long run, half of the figures take half of the time.
const nearCharts = lineCharts.filter(isNear);
const firstFigures = figuresOf(nearCharts.length ? nearCharts : lineCharts);

/** whole: the run at the resolution of the whole; zoomed: the range at full resolution, once it is fetched. */
const state = {
  unit: /** @type {Unit} */ ("step"),
  range: /** @type {Range | null} */ (null),
  whole: await fetchCurves({ figures: firstFigures.join() }),
  complete: false, // whether what all charts show is fetched
  zoomed: /** @type {Curves | null} */ (null),
  pointed: /** @type {number | null} */ (null), // x under the pointer
  smoothing: 0, // in steps
  log: /** @type {Map<string, boolean>} */ (new Map()), // of the charts whose axis was switched, by id
  evaluations: /** @type {Record<string, {step: number[], mean: (number | null)[]}>} */ ({}),
  objectives: /** @type {import("./charts.js").Objective[]} */ ([]),
  pattern: /** @type {{step: number[], collectives: (number | null)[][]}} */ ({ step: [], collectives: [] }),
};

await plotly;
const hidden = new HiddenLines(section, (box) => redraw(charts.filter((chart) => chart.box === box)));
const shownCurves = () => state.zoomed ?? state.whole;
/** @returns {Range} */
const shownRange = () => state.range ?? state.whole.ends(state.unit);

/**
 * The zoomed range in steps.
 * @returns {Range | null}
 */
function zoomedSteps() {
  if (!state.range) return null;
  const [first, last] = state.range.map((x) => Math.round(state.whole.translate(x, state.unit, "step")));
  return [first, last];
}

/** @param {number} step */
const xOfStep = (step) => (state.unit === "step" ? step : state.whole.translate(step, "step", state.unit));

// ------------------------------------------------------------------ fetching

async function loadRemainingFigures() {
  const remaining = figuresOf(lineCharts).filter((figure) => !firstFigures.includes(figure));
  if (!remaining.length) return;
  const columns = await fetchJson(seriesQuery({ figures: remaining.join(), last: state.whole.last }));
  if (!state.whole.join(columns)) await loadWhole(); // the server downsampled differently meanwhile
}

async function loadWhole() {
  state.whole = await fetchCurves({ figures: figuresOf(lineCharts).join() });
}

async function loadZoomed() {
  const steps = zoomedSteps();
  if (!steps) return (state.zoomed = null);
  const margin = Math.ceil((steps[1] - steps[0]) / 20) + 1;
  const first = Math.max(steps[0] - Math.max(margin, state.smoothing), 0);
  const zoomed = await fetchCurves({ figures: figuresOf(lineCharts).join(), first, last: steps[1] + margin });
  if (String(zoomedSteps()) === String(steps)) state.zoomed = zoomed.length ? zoomed : null; // unless the zoom has changed
}

let refetched = 0;

async function loadReplaced() {
  refetched = Date.now();
  const steps = zoomedSteps();
  const query = steps ? `?first=${Math.max(steps[0], 0)}&last=${steps[1]}` : "";
  [state.evaluations, state.pattern, state.objectives] = await Promise.all([
    fetchJson(evaluationsUrl),
    fetchJson(collectivesUrl + query),
    objectivesUrl ? fetchJson(objectivesUrl + query) : [],
  ]);
}

// ------------------------------------------------------------------ drawing

/** @returns {Span[]} */
const findings = () => JSON.parse(one("#spans").textContent ?? "");

/**
 * @param {Chart} chart
 * @returns {Trace[]}
 */
function chartTraces({ box, spec }) {
  const isShown = (/** @type {string} */ line) => !hidden.has(box, line);
  if (spec.id === "evaluations") return evaluationTraces(state.evaluations, palette, state.whole, state.unit).filter(({ name }) => isShown(name)).map(inRange);
  if (spec.id === "collectives") return heatTraces(state.pattern, state.whole, state.unit);
  if (spec.objective_metric) return objectiveTraces(spec, state.objectives, palette, state.whole, state.unit).filter(({ name }) => isShown(name)).map(inRange);
  const shown = { ...spec, series: spec.series.filter(({ key }) => isShown(key)) };
  return [...(isLive() && !state.range ? liveTraces(shown, state.whole, state.unit) : []), ...tracesOf(shown, shownCurves(), state.unit, state.smoothing)];
}

/** @param {Trace} trace */
const inRange = (trace) => (state.range ? within(trace, state.range) : trace);

const isLive = () => document.querySelector("#verdict .seen.is-live") !== null;

/** @param {Chart} chart */
const shownFindings = ({ spec }) => findings().filter(({ charts }) => charts.includes(spec.id));

/**
 * @param {Chart} chart
 * @param {Trace[]} traces
 */
function chartLayout(chart, traces) {
  const shown = shownFindings(chart);
  const layout = layoutOf(chart.spec, state.unit, shownRange(), findingShapes(shown, xOfStep), traces, state.log.get(chart.spec.id));
  const marks = findingMarks(shown, xOfStep).filter(({ x }) => x >= shownRange()[0]);
  return sized(chart.box, { ...layout, annotations: marks, margin: { ...layout.margin, t: marks.length ? 18 : layout.margin.t } });
}

/** @param {Chart} chart */
const csvOf = (chart) => (chart.spec.series.length ? csvOfCurves(shownCurves(), chart.spec.figures) : csvOfTraces(chartTraces(chart)));

/** @param {Trace[]} traces */
const hasData = (traces) => traces.some((trace) => (trace.z ?? trace.y)?.flat().some((/** @type {unknown} */ value) => value !== null));

/**
 * Why a chart has no data.
 * @param {Chart} chart
 */
function reasonOf({ spec }) {
  if (!state.whole.length) return "No evaluated steps";
  const reason = JSON.parse(one("#reasons").textContent ?? "")[spec.id];
  return reason ? `Not measured: ${reason}` : "Not measured";
}

/** @param {Chart} chart */
async function drawChart(chart) {
  const traces = chartTraces(chart);
  const measured = hasData(traces) || chart.box.querySelector("[aria-pressed=false][data-line]") !== null;
  if (!measured) chart.plot.dataset.reason = reasonOf(chart);
  keepInPlace(() => {
    chart.box.toggleAttribute("data-empty", !measured); // an empty chart is lower
    if (measured) chart.box.hidden = false;
  });
  chart.stale = false;
  chart.live = isLive();
  const drawn = draw(chart.plot, { data: traces, layout: chartLayout(chart, traces) });
  addListeners(chart); // at once: a drag may follow before plotly has finished
  await drawn;
  showLogAxis(chart);
  if (state.pointed !== null) showPointed();
}

// Before its figures are fetched, a chart would be drawn as one without data.
/** @param {Chart} chart */
const isFetched = (chart) => state.complete || nearCharts.includes(chart);

// Only visible charts are drawn; the others are drawn when they scroll into view.
function redraw(some = charts) {
  for (const chart of some) chart.stale = true;
  showPointed();
  return drawVisible();
}

async function drawVisible() {
  if (dragging) return; // a new range would move the axis under the selection
  await Promise.all(charts.filter((chart) => chart.stale && chart.visible && isFetched(chart)).map(drawChart));
}

let dragging = false;
section.addEventListener("pointerdown", (event) => (dragging = event.target instanceof Element && event.target.closest(".plot") !== null));
for (const end of ["pointerup", "pointercancel"])
  addEventListener(end, () => {
    dragging = false;
    setTimeout(drawVisible); // after plotly has set the range
  });

// ------------------------------------------------------------------ values under the pointer

/** @param {PointerEvent} event */
function point(event) {
  if (dragging) return;
  state.pointed = pointedX(event, shownRange());
  showPointed();
}

function showPointed() {
  const curves = shownCurves();
  const xs = curves.x(state.unit);
  const index = nearest(state.pointed, xs);
  drawCrosshair(section, index === null ? null : xs[index], shownRange(), index === null ? "" : stepsText(curves, index));
  keepInPlace(() => showLegendValues(index)); // a legend may get another row
}

/** @param {number | null} index of the point under the pointer; null: the last values */
function showLegendValues(index) {
  section.dataset.points = String(state.whole.length);
  const series = new Map(lineCharts.flatMap(({ spec }) => spec.series.map((line) => [line.key, line])));
  for (const output of all("[data-last]", section)) {
    const key = output.dataset.last ?? "";
    const values = derived(state.whole, key) ?? [];
    const format = series.get(key)?.number_format;
    output.textContent = index === null ? lastText(values, state.whole.columns.step, format) : pointText(shownCurves(), key, index, format);
    // a line without data has no entry; before it is fetched, hiding it would take the focus away
    output.parentElement?.toggleAttribute("hidden", state.complete && values.every((value) => value === null));
  }
  for (const output of all("[data-fraction]", section)) {
    const mean = shownCurves().mean(output.dataset.fraction ?? "", shownRange(), state.unit);
    output.textContent = formatNumber(mean, "percent");
    output.parentElement?.toggleAttribute("hidden", mean === null);
  }
  const pointedStep = index === null ? null : shownCurves().columns.step[index];
  for (const list of all("[data-names]", section)) showNames(list, namedValues(list.dataset.names, pointedStep));
}

/**
 * The value at a step, or the last one up to it; without a step, the last value of all.
 * @param {number[]} steps
 * @param {(number | null)[]} values
 * @param {number | null} step
 */
const valueAt = (steps, values, step) => values.findLast((value, index) => value !== null && (step === null || steps[index] <= step)) ?? null;

/**
 * The names and values of the lines of a chart that has one for each evaluation metric, or objective.
 * @param {string | undefined} metric of the objectives
 * @param {number | null} at the step under the pointer
 * @returns {[string, number | null, "figure" | "percent"][]}
 */
function namedValues(metric, at) {
  if (metric === "balance" || metric === "misallocation")
    return state.objectives.map((objective) => [objective.name, valueAt(objective.step, objective[metric], at), metric === "misallocation" ? "percent" : "figure"]);
  return Object.entries(state.evaluations).map(([name, { step, mean }]) => [name, valueAt(step, mean, at), "figure"]);
}

/**
 * @param {HTMLElement} list
 * @param {[string, number | null, "figure" | "percent"][]} lines
 */
function showNames(list, lines) {
  const shown = all("[data-line]", list).map((button) => button.dataset.line);
  if (String(shown) !== String(lines.map(([name]) => name))) list.replaceChildren(...lines.map(([name], index) => legendEntry(name, index)));
  all("output", list).forEach((output, index) => (output.textContent = formatNumber(lines[index][1], lines[index][2])));
}

/**
 * @param {string} name
 * @param {number} index
 */
function legendEntry(name, index) {
  const item = document.createElement("li");
  item.innerHTML = `<button type="button" class="toggle" aria-pressed="true"><svg width="18" height="8" viewBox="0 0 18 8" aria-hidden="true"><path d="M0 4h18" stroke="${palette[index % palette.length]}" stroke-width="2.5"/></svg></button>`;
  const button = one("button", item);
  button.dataset.line = name;
  button.setAttribute("aria-label", `Show ${name}`);
  item.append(` ${name} `, document.createElement("output"));
  return item;
}

const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries)
      for (const chart of charts) if (chart.box === entry.target) chart.visible = entry.isIntersecting;
    drawVisible();
  },
  { rootMargin: "300px" },
);

// ------------------------------------------------------------------ zooming

/** @param {Range | null} range */
async function show(range) {
  state.range = range;
  reset.hidden = range === null;
  saveToUrl();
  redraw();
  await Promise.all([loadZoomed(), loadReplaced()]).catch(() => {}); // the charts keep what they have
  redraw();
}

// The range is part of the URL, so that a link shows the same range.
function saveToUrl() {
  const steps = zoomedSteps();
  history.replaceState(null, "", steps ? `#steps=${steps.join("-")}` : location.pathname + location.search);
}

/** @returns {Range | null} */
function rangeFromUrl() {
  const match = /^#steps=(\d+)-(\d+)$/.exec(location.hash);
  if (!match) return null;
  const [first, last] = [Number(match[1]), Number(match[2])];
  return first === last ? [xOfStep(Math.max(first - 1, 0)), xOfStep(last + 1)] : [xOfStep(first), xOfStep(last)];
}

/** @param {string | undefined} direction in, out, back or forward */
function move(direction) {
  const [left, right] = shownRange();
  const [least, most] = state.whole.ends(state.unit);
  const quarter = (right - left) / 4;
  const [leftBy, rightBy] = { in: [1, -1], out: [-2, 2], back: [-2, -2], forward: [2, 2] }[direction ?? ""] ?? [0, 0];
  /** @type {Range} */
  const range = [Math.max(left + leftBy * quarter, least), Math.min(right + rightBy * quarter, most)];
  if (range[0] >= range[1]) return;
  show(range[0] <= least && range[1] >= most ? null : range);
}

/** @param {Chart} chart */
function addListeners(chart) {
  if (chart.hasListeners) return;
  chart.hasListeners = true;
  chart.plot.on("plotly_relayout", (/** @type {Record<string, string | number>} */ event) => {
    if (event["xaxis.range[0]"] !== undefined) show([xFromPlotly(event["xaxis.range[0]"]), xFromPlotly(event["xaxis.range[1]"])]);
  });
  chart.plot.on("plotly_doubleclick", () => show(null));
  chart.plot.on("plotly_clickannotation", (/** @type {{annotation: {name: string}}} */ event) => document.getElementById(event.annotation.name)?.scrollIntoView({ block: "center" }));
  chart.plot.on("plotly_click", (/** @type {{points: any[]}} */ event) => openStep(chart, event.points.find((point) => point.data.customdata?.length) ?? event.points[0]));
}

// Plotly reports times as text.
/** @param {string | number} x */
const xFromPlotly = (x) => (typeof x === "string" ? Date.parse(`${x.replace(" ", "T")}Z`) : x);

// A point may stand for many steps: the server finds the one at which its figure is largest.
/**
 * @param {Chart} chart
 * @param {any} point
 */
function openStep({ spec }, point) {
  const columns = spec.series.length ? shownCurves().columns : null;
  const index = columns ? shownCurves().x(state.unit).indexOf(point.data.x[point.pointIndex]) : -1;
  if (!columns || index === -1) location.href = stepsUrl + Math.round(state.whole.translate(+point.x, state.unit, "step"));
  else if (columns.steps[index] === 1) location.href = stepsUrl + columns.step[index];
  else location.href = `${findUrl}&first=${columns.first[index]}&last=${columns.step[index]}&figure=${spec.figures[0]}`;
}

// ------------------------------------------------------------------ live updates

async function update() {
  if (state.whole.length > MOST_POINTS) await loadWhole();
  else {
    const fresh = await fetchJson(seriesQuery({ figures: figuresOf(lineCharts).join(), after: state.whole.last }));
    if (fresh.step.length) {
      if (state.zoomed?.last === state.whole.last) state.zoomed.append(fresh);
      state.whole.append(fresh);
    }
  }
  if (Date.now() - refetched > REFETCH_MS) await loadReplaced();
  if (dragging) pending = true; // refresh when it has ended
  else await refresh();
  redraw();
}

// Events that arrive during an update cause one more update.
let pending = false;
let updating = false;

async function updatePending() {
  if (updating) return;
  updating = true;
  while (pending) {
    pending = false;
    await update().catch(() => {}); // the service restarts: the next event retries
    await new Promise((resolve) => setTimeout(resolve, UPDATE_PAUSE_MS));
  }
  updating = false;
}

/** @param {Event} event */
function onEvent(event) {
  pending = true;
  if (event.type === "open" || !document.hidden) updatePending();
}

// ------------------------------------------------------------------ start

for (const chart of charts) {
  observer.observe(chart.box);
  const switchLog = () => redraw([(state.log.set(chart.spec.id, !hasLogAxis(chart)), chart)]);
  connectTools(chart.box, { redraw: () => redraw([chart]), switchLog, csv: () => csvOf(chart), traces: () => chartTraces(chart), layout: () => chartLayout(chart, chartTraces(chart)) });
}
section.addEventListener("pointermove", point);
section.addEventListener("pointerleave", point);
redraw(nearCharts);
await Promise.all([loadRemainingFigures(), loadReplaced()]);
state.complete = true;
for (const input of all("[name=unit]", section)) {
  input.addEventListener("change", () => {
    const steps = zoomedSteps();
    state.unit = /** @type {Unit} */ (/** @type {HTMLInputElement} */ (input).value);
    state.range = steps && [xOfStep(steps[0]), xOfStep(steps[1])];
    redraw();
  });
}
for (const button of all("[data-move]", section)) button.addEventListener("click", () => move(button.dataset.move));
reset.addEventListener("click", () => show(null));
one("#smoothing").addEventListener("change", (event) => {
  state.smoothing = Number(/** @type {HTMLSelectElement} */ (event.target).value);
  show(state.range);
});
addEventListener("hashchange", () => {
  const range = rangeFromUrl();
  if (range) show(range);
});
addEventListener("beforeprint", () => Promise.all(charts.filter(({ box }) => !box.hidden).map(drawChart)));

const linkedRange = rangeFromUrl();
await (linkedRange ? show(linkedRange) : redraw());

const events = new EventSource(eventsUrl);
events.addEventListener("evaluated", onEvent);
events.addEventListener("open", onEvent); // after a lost connection: fetch what was missed
document.addEventListener("visibilitychange", () => document.hidden || updatePending());
section.dataset.ready = "";

setInterval(() => {
  one("#live").hidden = !isLive();
  if (dragging) return;
  // also out of sight, where a finding that appears above may have pushed a chart with a live dot
  for (const chart of lineCharts) if (chart.live !== null && chart.live !== isLive()) drawChart(chart);
}, 1000);
