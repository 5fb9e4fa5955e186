// The compare page: one figure in each chart, one line for each run, one x-range for all charts.

import { draw, formatNumber, layoutOf, specOf } from "./charts.js";
import { Curves, fetchJson, interpolate } from "./curves.js";
import { all, one } from "./page.js";

/** @typedef {import("./curves.js").Unit} Unit */
/** @typedef {import("./curves.js").Range} Range */
/** @typedef {{id: string, name: string, colour: string, series: string}} Source */
/** @typedef {{plot: any, spec: {id: string, layout: any, minimum_range: Range | null, from_zero: boolean, log_if_wide: boolean}}} Chart */

/** @type {Source[]} */
const sources = JSON.parse(one("#sources").textContent ?? "");
const section = one("#charts");
const reset = one("#reset-zoom");
/** @type {Chart[]} */
const charts = all(".plot", section).map((plot) => ({ plot, spec: specOf(plot) }));
const figures = charts.map(({ spec }) => spec.id).join(",");

/** wholes: each run at the resolution of the whole; shown: each run at the resolution of the zoom. */
const state = {
  unit: /** @type {Unit} */ ("step"),
  range: /** @type {Range | null} */ (null),
  wholes: /** @type {Curves[]} */ ([]),
  shown: /** @type {Curves[]} */ ([]),
};

/** @param {(index: number) => string} extraQuery */
function load(extraQuery = () => "") {
  return Promise.all(sources.map(async (source, index) => new Curves(await fetchJson(`${source.series}?figures=${figures}${extraQuery(index)}`))));
}

// In time, runs are aligned at their first step: x is in hours.
/**
 * @param {Curves} curves
 * @param {number} index
 */
function xOf(curves, index) {
  if (state.unit !== "time") return curves.x(state.unit);
  const start = state.wholes[index].columns.time[0];
  return curves.columns.time.map((time) => (time - start) / 3600);
}

// The steps of a run in a range, with a margin on both sides so that lines reach the edge.
/**
 * @param {Range} range
 * @param {Curves} whole
 * @param {number} index
 * @returns {Range}
 */
function stepsIn(range, whole, index) {
  if (!whole.length) return [0, 0];
  const [first, last] = range.map((x) => interpolate(x, xOf(whole, index), whole.x("step")));
  const margin = Math.ceil((last - first) / 20) + 1;
  return [Math.max(Math.floor(first) - margin, 0), Math.ceil(last) + margin];
}

/** @returns {Range} */
function ends() {
  const xs = state.wholes.flatMap(xOf);
  const least = xs.reduce((least, x) => Math.min(least, x), Infinity);
  const most = xs.reduce((most, x) => Math.max(most, x), -Infinity);
  const margin = (most - least || 1) * 0.005;
  return Number.isFinite(least) ? [least - margin, most + margin] : [0, 1];
}

/** @param {Chart} chart */
function tracesOf({ spec }) {
  return state.shown.map((curves, index) => {
    const y = curves.column(spec.id) ?? [];
    const x = xOf(curves, index);
    const name = `${sources[index].name} (${sources[index].id})`;
    // later runs are thinner and dashed: where curves coincide, the earlier ones show through
    const line = { color: sources[index].colour, width: index ? 1.75 : 3, dash: ["solid", "dash", "dot", "dashdot"][index % 4] };
    const mode = x.length > 120 ? "lines" : "lines+markers";
    return { x, y, type: "scatter", mode, name, line, marker: { size: 4 }, customdata: y.map((value) => formatNumber(value)), hovertemplate: "%{customdata}" };
  });
}

async function redraw() {
  const range = state.range ?? ends();
  for (const chart of charts) {
    const data = tracesOf(chart);
    chart.plot.closest(".chart").hidden = !data.some(({ y }) => y.some((value) => value !== null));
    const layout = layoutOf(chart.spec, state.unit === "time" ? "step" : state.unit, range, [], data);
    if (state.unit === "time") Object.assign(layout.xaxis, { tickformat: "~g", tickprefix: "", ticksuffix: " h", unifiedhovertitle: { text: "%{x:.2f} hours" } });
    await draw(chart.plot, { data, layout });
    addZoomListeners(chart.plot);
  }
}

/** @param {Range | null} range */
async function show(range) {
  state.range = range;
  reset.hidden = range === null;
  state.shown = state.wholes;
  await redraw();
  if (!range) return;
  const spans = state.wholes.map((whole, index) => stepsIn(range, whole, index));
  const fine = await load((index) => `&first=${spans[index][0]}&last=${spans[index][1]}`);
  if (state.range !== range) return; // the zoom has changed meanwhile
  state.shown = fine;
  await redraw();
}

const withListeners = new WeakSet();

/** @param {any} plot an element with the event methods of plotly */
function addZoomListeners(plot) {
  if (withListeners.has(plot)) return;
  withListeners.add(plot);
  plot.on("plotly_relayout", (/** @type {Record<string, number>} */ event) => {
    if (event["xaxis.range[0]"] !== undefined) show([event["xaxis.range[0]"], event["xaxis.range[1]"]]);
  });
  plot.on("plotly_doubleclick", () => show(null));
}

state.wholes = state.shown = await load();
for (const input of all("[name=unit]", section))
  input.addEventListener("change", () => {
    state.unit = /** @type {Unit} */ (/** @type {HTMLInputElement} */ (input).value);
    show(null);
  });
reset.addEventListener("click", () => show(null));
await redraw();
section.dataset.ready = "";
