// The compare page: one figure in each chart, one line for each run, one x-range for all charts.

import { connectTools, csvOfRuns, hasLogAxis, showLogAxis, sized } from "./chart_tools.js";
import { draw, formatNumber, layoutOf, plotly, smoothed, specOf } from "./charts.js";
import { drawCrosshair, nearest, pointedX } from "./crosshair.js";
import { Curves, fetchJson, interpolate } from "./curves.js";
import { HiddenLines, lastText, pointText, stepsText } from "./legend.js";
import { all, keepInPlace, one } from "./page.js";

/** @typedef {import("./curves.js").Unit} Unit */
/** @typedef {import("./curves.js").Range} Range */
/** @typedef {import("./charts.js").Spec} Spec */
/** @typedef {import("./charts.js").Trace} Trace */
/** @typedef {{id: string, series: string}} Source */

/**
 * spec.id: the figure of the chart; its series are the runs.
 * @typedef {{plot: any, box: HTMLElement, spec: Spec}} Chart
 */

/** @type {Source[]} */
const sources = JSON.parse(one("#sources").textContent ?? "");
const section = one("#charts");
const reset = one("#reset-zoom");
/** @type {Chart[]} */
const charts = all(".plot", section).map((plot) => ({ plot, box: /** @type {HTMLElement} */ (plot.closest(".chart")), spec: specOf(plot) }));
const figures = charts.map(({ spec }) => spec.id).join(",");

/** wholes: each run at the resolution of the whole; shown: each run at the resolution of the zoom. */
const state = {
  unit: /** @type {Unit} */ ("step"),
  range: /** @type {Range | null} */ (null),
  wholes: /** @type {Curves[]} */ ([]),
  shown: /** @type {Curves[]} */ ([]),
  pointed: /** @type {number | null} */ (null), // x under the pointer
  smoothing: 0, // in steps
  log: /** @type {Map<string, boolean>} */ (new Map()), // of the charts whose axis was switched, by id
};
await plotly;
const hidden = new HiddenLines(section, (box) => redraw(charts.filter((chart) => chart.box === box)));

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
  return [Math.max(Math.floor(first) - Math.max(margin, state.smoothing), 0), Math.ceil(last) + margin];
}

/** @returns {Range} */
function ends() {
  const xs = state.wholes.flatMap(xOf);
  const least = xs.reduce((least, x) => Math.min(least, x), Infinity);
  const most = xs.reduce((most, x) => Math.max(most, x), -Infinity);
  const margin = (most - least || 1) * 0.005;
  return Number.isFinite(least) ? [least - margin, most + margin] : [0, 1];
}

const shownRange = () => state.range ?? ends();

// ------------------------------------------------------------------ drawing

/**
 * @param {Chart} chart
 * @returns {Trace[]}
 */
function chartTraces({ box, spec }) {
  return spec.series.flatMap((series, index) => {
    if (hidden.has(box, series.key)) return [];
    const curves = state.shown[index];
    const y = curves.column(spec.id) ?? [];
    const x = xOf(curves, index);
    const line = {
      x,
      y,
      type: "scatter",
      mode: x.length > 120 ? "lines" : "lines+markers",
      name: series.label,
      // later runs are thinner and dashed: where curves coincide, the earlier ones show through
      line: { color: series.colour, width: index ? 1.75 : 3, dash: series.dash, shape: series.stepped ? "hv" : "linear" },
      marker: { size: 4, color: series.colour },
      customdata: y.map((value) => formatNumber(value, series.number_format)),
      hovertemplate: "%{customdata}",
    };
    return state.smoothing && !series.stepped && spec.id !== "lr" ? smoothed(line, y, curves.columns.steps, state.smoothing, series.number_format) : [line];
  });
}

/**
 * @param {Chart} chart
 * @param {Trace[]} traces
 */
function chartLayout({ box, spec }, traces) {
  const layout = layoutOf(spec, state.unit === "time" ? "step" : state.unit, shownRange(), [], traces, state.log.get(spec.id));
  if (state.unit === "time") Object.assign(layout.xaxis, { tickformat: "~g", tickprefix: "", ticksuffix: " h", unifiedhovertitle: { text: "%{x:.2f} hours" } });
  return sized(box, layout);
}

async function redraw(some = charts) {
  await Promise.all(
    some.map(async (chart) => {
      const { plot, box } = chart;
      if (box.hidden) return;
      const data = chartTraces(chart);
      await draw(plot, { data, layout: chartLayout(chart, data) });
      showLogAxis(chart);
      addZoomListeners(plot);
    }),
  );
  showPointed();
}

// ------------------------------------------------------------------ values under the pointer

/** @param {PointerEvent} event */
function point(event) {
  if (event.buttons) return; // a drag selects a range
  state.pointed = pointedX(event, shownRange());
  showPointed();
}

function showPointed() {
  const xs = state.shown.map(xOf);
  const indexes = xs.map((each) => (state.pointed === null ? null : nearest(state.pointed, each)));
  const points = indexes.flatMap((index, run) => (index === null ? [] : [{ run, index, x: xs[run][index], distance: Math.abs(xs[run][index] - (state.pointed ?? 0)) }]));
  const closest = points.length ? points.reduce((best, each) => (each.distance < best.distance ? each : best)) : null;
  drawCrosshair(section, closest?.x ?? null, shownRange(), closest ? stepsText(state.shown[closest.run], closest.index) : "");
  // a legend may get another row
  keepInPlace(() => {
    for (const { box, spec } of charts)
      for (const output of all("[data-last]", box)) {
        const run = Number(output.dataset.last);
        output.textContent = closest ? valueText(spec, run, indexes[run], xs[run], closest.x) : lastText(state.wholes[run].column(spec.id) ?? [], state.wholes[run].columns.step, spec.series[run].number_format);
      }
  });
}

/**
 * The value of a run at the crosshair; none where the run has not begun, or has ended.
 * @param {Spec} spec
 * @param {number} run
 * @param {number | null} index of its nearest point
 * @param {number[]} xs of its points
 * @param {number} x of the crosshair
 */
function valueText(spec, run, index, xs, x) {
  if (index === null || x < xs[0] || x > xs[xs.length - 1]) return "–";
  return pointText(state.shown[run], spec.id, index, spec.series[run].number_format);
}

// ------------------------------------------------------------------ zooming

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

// ------------------------------------------------------------------ start

state.wholes = state.shown = await load();
for (const chart of charts) {
  const switchLog = () => redraw([(state.log.set(chart.spec.id, !hasLogAxis(chart)), chart)]);
  const csv = () => csvOfRuns(sources.map(({ id }, index) => ({ id, curves: state.shown[index] })), chart.spec.id);
  connectTools(chart.box, { redraw: () => redraw([chart]), switchLog, csv, traces: () => chartTraces(chart), layout: () => chartLayout(chart, chartTraces(chart)) });
}
for (const input of all("[name=unit]", section))
  input.addEventListener("change", () => {
    state.unit = /** @type {Unit} */ (/** @type {HTMLInputElement} */ (input).value);
    state.pointed = null;
    show(null);
  });
one("#smoothing").addEventListener("change", (event) => {
  state.smoothing = Number(/** @type {HTMLSelectElement} */ (event.target).value);
  show(state.range);
});
section.addEventListener("pointermove", point);
section.addEventListener("pointerleave", point);
reset.addEventListener("click", () => show(null));
await redraw();
section.dataset.ready = "";
