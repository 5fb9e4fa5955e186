// Draws curves and heat maps with plotly. charts.py has the figures of each chart; app.css has the colours of text and grid.

import { derived, slidingMean } from "./curves.js";
import { all, one } from "./page.js";

/** @typedef {import("./curves.js").Curves} Curves */
/** @typedef {import("./curves.js").Unit} Unit */
/** @typedef {import("./curves.js").Range} Range */
/** @typedef {"figure" | "percent" | "count"} NumberFormat */

/**
 * A line of a chart, as charts.py writes it.
 * @typedef {{key: string, label: string, colour: string, dash: string, number_format: NumberFormat, right_axis: boolean, stepped: boolean, fill: boolean}} Series
 */

/**
 * A chart, as charts.py writes it.
 * @typedef {{id: string, title: string, series: Series[], figures: string[], fraction: [string, string] | null, markers: [string, string] | null, minimum_range: Range | null, from_zero: boolean, log_if_wide: boolean, objective_metric: "balance" | "misallocation" | null, number_format: NumberFormat, layout: any}} Spec
 */

/**
 * The course of one objective: its values at some steps.
 * @typedef {{name: string, step: number[], balance: (number | null)[], misallocation: (number | null)[]}} Objective
 */

/** @typedef {{id: string, title: string, severity: "error" | "warning" | "info", first: number, last: number, steps: number[], charts: string[]}} Span */

/**
 * A trace or a drawn element of plotly, which has no types for what we use.
 * @typedef {any} Trace
 */

const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: false };
const POINTS_WITH_MARKERS = 120;
const SEVERITIES = { error: "#d0342c", warning: "#c98500", info: "#808896" };
const PREFIXES = ["", "k", "M", "G", "T"];

/**
 * The chart that a plot element shows: the JSON in the script element that it names.
 * @param {HTMLElement} plot
 */
export function specOf(plot) {
  return JSON.parse(one(`#${plot.dataset.figure}`).textContent ?? "");
}

// A sheet of paper is narrower than the window, and a plot keeps its width: set it for printing.
const PAPER_WIDTH = 680;
let printing = false;

/** @param {boolean} paper */
function fit(paper) {
  printing = paper;
  for (const plot of all(".js-plotly-plot")) Plotly.relayout(plot, paper ? { width: PAPER_WIDTH } : { width: null, autosize: true });
}

addEventListener("beforeprint", () => fit(true));
addEventListener("afterprint", () => fit(false));

// Compiling its 4 MB before the first paint would delay the verdict.
const painted = () => new Promise((resolve) => (document.hidden ? resolve(null) : requestAnimationFrame(() => setTimeout(resolve))));
/** Resolved when plotly is loaded, which ``draw`` needs. */
export const plotly = painted().then(
  () =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${script.src} was not loaded`));
      script.src = /** @type {HTMLMetaElement} */ (one("meta[name=plotly]")).content;
      document.head.append(script);
    }),
);

/**
 * @param {HTMLElement} plot
 * @param {{data: Trace[], layout: object}} figure
 */
export async function draw(plot, figure) {
  await Plotly.react(plot, figure.data, figure.layout, CONFIG);
  if (printing) await Plotly.relayout(plot, { width: PAPER_WIDTH });
  hideFromScreenReaders(plot);
}

// A plot is one image to a screen reader, with the label of its element.
/** @param {HTMLElement} plot */
function hideFromScreenReaders(plot) {
  for (const svg of all("svg:not([aria-hidden])", plot)) svg.setAttribute("aria-hidden", "true");
}

// ------------------------------------------------------------------ numbers

// The same formats as formatting.py.
/**
 * @param {unknown} value
 * @param {NumberFormat} format
 */
export function formatNumber(value, format = "figure") {
  if (typeof value !== "number") return "–";
  if (format === "percent") return formatPercent(value);
  if (format === "count") return formatCount(value);
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e9) return Math.round(value).toLocaleString("en");
  const rounded = Number(value.toPrecision(4));
  if (rounded !== 0 && (size < 1e-4 || size >= 1e9)) return rounded.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
  return rounded.toLocaleString("en", { maximumFractionDigits: 8 });
}

/** @param {number} value */
function formatPercent(value) {
  const size = Math.abs(value);
  if (size < 5e-5) return "0%";
  return `${(value * 100).toFixed(size >= 0.9995 ? 0 : size >= 0.01 ? 1 : size >= 0.001 ? 2 : 3)}%`;
}

/** @param {number} value */
function formatCount(value) {
  if (Math.abs(value) < 1e5) return Math.round(value).toLocaleString("en");
  const rounded = Number(value.toPrecision(3));
  const order = Math.min(Math.floor(Math.log10(Math.abs(rounded)) / 3), PREFIXES.length - 1);
  return `${Number((rounded / 1000 ** order).toPrecision(6))}${PREFIXES[order]}`;
}

// ------------------------------------------------------------------ lines

/**
 * The hover text of each point.
 * @param {Series} series
 * @param {Curves} curves
 * @param {(number | null)[]} means
 * @param {(number | null)[] | undefined} lows
 * @param {(number | null)[] | undefined} highs
 * @param {Unit} unit
 */
function hoverTexts(series, curves, means, lows, highs, unit) {
  const { first, step, steps } = curves.columns;
  return means.map((mean, index) => {
    if (mean === null) return "";
    const text = formatNumber(mean, series.number_format);
    if (!lows || !highs || steps[index] === 1) return unit === "step" ? text : `${text} · step ${step[index].toLocaleString("en")}`;
    const extremes = `${formatNumber(lows[index], series.number_format)} to ${formatNumber(highs[index], series.number_format)}`;
    return `${text} (${extremes} in steps ${first[index].toLocaleString("en")}–${step[index].toLocaleString("en")})`;
  });
}

/**
 * One edge of the area between the extremes of a line.
 * @param {number[]} x
 * @param {(number | null)[]} y
 * @param {string} colour
 * @param {object} options
 * @returns {Trace}
 */
function edge(x, y, colour, options) {
  return { x, y, type: "scatter", mode: "lines", hoverinfo: "skip", line: { color: `${colour}80`, width: 0.8 }, ...options };
}

/**
 * @param {Series} series
 * @param {Curves} curves
 * @param {Unit} unit
 * @param {number} window of the smoothing in steps, or 0
 * @returns {Trace[]}
 */
function lineTraces(series, curves, unit, window) {
  const x = curves.x(unit);
  const means = derived(curves, series.key) ?? [];
  const lows = curves.column(`${series.key}_low`);
  const highs = curves.column(`${series.key}_high`);
  const yaxis = series.right_axis ? "y2" : "y";
  const line = {
    x,
    y: means,
    type: "scatter",
    mode: x.length > POINTS_WITH_MARKERS ? "lines" : "lines+markers",
    name: series.label,
    yaxis,
    line: { color: series.colour, width: 1.75, dash: series.dash, shape: series.stepped ? "hv" : "linear" },
    marker: { size: 4, color: series.colour },
    customdata: hoverTexts(series, curves, means, lows, highs, unit),
    hovertemplate: "%{customdata}",
    ...(series.fill && { fill: "tonexty", fillcolor: `${series.colour}26` }),
  };
  if (series.fill || series.stepped) return [line];
  if (window && series.key !== "lr") return smoothed(line, means, curves.columns.steps, window, series.number_format);
  if (!lows || !highs) return [line];
  return [edge(x, lows, series.colour, { yaxis }), edge(x, highs, series.colour, { yaxis, fill: "tonexty", fillcolor: `${series.colour}2e` }), line];
}

/**
 * The measured values, pale, and their mean over the last steps.
 * @param {Trace} line
 * @param {(number | null)[]} values
 * @param {number[]} steps
 * @param {number} window
 * @param {NumberFormat} format
 * @returns {Trace[]}
 */
export function smoothed(line, values, steps, window, format) {
  const y = slidingMean(values, steps, window);
  const raw = { ...line, mode: "lines", opacity: 0.3, line: { ...line.line, width: 1 } };
  return [raw, { ...line, y, mode: "lines", name: `${line.name}, mean of ${window} steps`, customdata: y.map((value) => formatNumber(value, format)), line: { ...line.line, width: 2 } }];
}

/**
 * A cross at each point where a figure of 0s and 1s is 1.
 * @param {Spec} spec
 * @param {Curves} curves
 * @param {Unit} unit
 * @returns {Trace[]}
 */
function markerTraces(spec, curves, unit) {
  if (!spec.markers) return [];
  const [figure, name] = spec.markers;
  const values = curves.column(`${figure}_high`) ?? curves.column(figure) ?? [];
  const heights = derived(curves, spec.series[0].key) ?? [];
  const anyHeight = heights.find((height) => height !== null) ?? 1;
  const marked = values.flatMap((value, index) => (value !== null && value > 0 ? [index] : []));
  const x = curves.x(unit);
  const { first, step, steps } = curves.columns;
  return [
    {
      x: marked.map((index) => x[index]),
      y: marked.map((index) => heights[index] ?? anyHeight),
      type: "scatter",
      mode: "markers",
      name,
      marker: { symbol: "x-thin", size: 9, line: { width: 2, color: SEVERITIES.error } },
      customdata: marked.map((index) => (steps[index] > 1 ? `in steps ${first[index]}–${step[index]}` : "")),
      hovertemplate: "%{customdata}",
    },
  ];
}

/**
 * The traces of the data of a chart.
 * @param {Spec} spec
 * @param {Curves} curves
 * @param {Unit} unit
 * @param {number} window of the smoothing in steps, or 0
 */
export const tracesOf = (spec, curves, unit, window = 0) => [...spec.series.flatMap((series) => lineTraces(series, curves, unit, window)), ...markerTraces(spec, curves, unit)];

/**
 * A dot at the last point of each line, for a run that is sending.
 * @param {Spec} spec
 * @param {Curves} curves
 * @param {Unit} unit
 * @returns {Trace[]}
 */
export function liveTraces(spec, curves, unit) {
  const x = curves.x(unit);
  return spec.series.flatMap((series) => {
    const values = derived(curves, series.key) ?? [];
    const last = values.findLastIndex((value) => value !== null);
    if (last === -1) return [];
    return [{ x: [x[last]], y: [values[last]], type: "scatter", mode: "markers", cliponaxis: false, yaxis: series.right_axis ? "y2" : "y", hoverinfo: "skip", marker: { size: 8, color: series.colour, line: { width: 3, color: `${series.colour}59` } } }];
  });
}

/**
 * The points of a trace in a range, and the next one on each side: the vertical axis fits them.
 * @param {Trace} trace
 * @param {Range} range
 * @returns {Trace}
 */
export function within(trace, [from, to]) {
  const inside = trace.x.map((/** @type {number} */ x) => x >= from && x <= to);
  const first = inside.indexOf(true);
  if (first === -1) return trace;
  const [begin, end] = [Math.max(first - 1, 0), inside.lastIndexOf(true) + 2];
  return { ...trace, x: trace.x.slice(begin, end), y: trace.y.slice(begin, end), customdata: trace.customdata?.slice(begin, end) };
}

// ------------------------------------------------------------------ layout

const TITLES = { step: "step %{x:,d}", tokens: "%{x:,d} tokens", time: "%{x|%a %H:%M:%S}" };

/**
 * @param {{layout: any, log_if_wide?: boolean, from_zero?: boolean, minimum_range?: Range | null}} spec
 * @param {Unit} unit
 * @param {Range} range
 * @param {object[]} shapes
 * @param {Trace[]} traces of the data
 * @param {boolean | undefined} log whether the vertical axis is logarithmic; undefined: as it suits the data
 */
export function layoutOf(spec, unit, range, shapes, traces = [], log = undefined) {
  const xaxis = { ...spec.layout.xaxis, range, autorange: false, unifiedhovertitle: { text: TITLES[unit] } };
  if (unit === "time") xaxis.type = "date";
  else {
    const first = { tickprefix: unit === "step" ? "step " : "tokens ", showtickprefix: "first" };
    Object.assign(xaxis, first, { type: "linear", tickformat: unit === "step" ? ",~d" : "~s" });
  }
  const layout = { ...spec.layout, xaxis, shapes: [...(spec.layout.shapes ?? []), ...shapes] };
  const isLog = log ?? (layout.yaxis.type === "log" || spansDecades(spec, traces));
  layout.yaxis = { ...layout.yaxis, ...(isLog ? LOG_AXIS : { type: "linear", nticks: 5 }), ...axisRange(spec, traces, isLog) };
  if (layout.yaxis2) {
    const right = axisRange({ from_zero: true }, traces, false, "y2");
    layout.yaxis2 = { ...layout.yaxis2, ...right, visible: "range" in right };
  }
  return layout;
}

const LOG_AXIS = { type: "log", title: { text: "log scale", font: { size: 11 }, standoff: 4 } };
/**
 * Powers of ten; between two of them 1, 2 and 5 times one; between two of those round numbers.
 * @param {number} low
 * @param {number} high
 */
function logTicks(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first + 1) / 5));
  if (last - first >= 2) return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, index) => 10 ** (first + index * every));
  const ticks = [first - 1, first, last].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)).filter((tick) => tick >= low && tick <= high);
  if (new Set(ticks).size >= 2) return [...new Set(ticks)];
  const size = 10 ** Math.floor(Math.log10((high - low) / 3));
  const step = [1, 2, 5, 10].map((digit) => digit * size).find((each) => each >= (high - low) / 4) ?? size;
  return Array.from({ length: 5 }, (_, index) => Number(((Math.ceil(low / step) + index) * step).toPrecision(12))).filter((tick) => tick <= high);
}

// Beside the axis there is no room for 2,000,000 nor 1e+14: they are 2M and 1e14 there.
/** @param {number} tick */
const tickText = (tick) => (tick < 1e5 || tick >= 1e9 ? formatNumber(tick).replace(/e\+?(-?)0*/, "e$1") : tick < 1e6 ? `${tick / 1e3}k` : `${tick / 1e6}M`);

const LEAST_SPAN = 0.01; // of the values: a narrower axis would magnify noise
const PADDING = 0.06; // of the span, above and below the values

/**
 * The range of a vertical axis; plotly's own would magnify the noise of values that hardly differ.
 * @param {{minimum_range?: Range | null, from_zero?: boolean}} spec
 * @param {Trace[]} traces
 * @param {boolean} log
 * @param {string} axis
 */
function axisRange({ minimum_range: least, from_zero: fromZero }, traces, log, axis = "y") {
  const drawn = traces.filter((trace) => trace.y && !trace.z && (trace.yaxis ?? "y") === axis);
  const values = drawn.flatMap((trace) => trace.y).filter((y) => typeof y === "number" && (!log || y > 0));
  if (!values.length) return {};
  const [low, high] = values.reduce(([low, high], y) => [Math.min(low, y), Math.max(high, y)], [Infinity, -Infinity]);
  if (log) {
    const margin = high > low * (1 + LEAST_SPAN) ? Math.max(Math.log10(high / low) * PADDING, 0.02) : Math.log10(2);
    const ends = [Math.log10(low) - margin, Math.log10(high) + margin];
    const ticks = logTicks(10 ** ends[0], 10 ** ends[1]);
    return { range: ends, autorange: false, tickmode: "array", tickvals: ticks, ticktext: ticks.map(tickText) };
  }
  const missing = Math.max(LEAST_SPAN * Math.max(Math.abs(low), Math.abs(high)) - (high - low), 0) / 2;
  let [bottom, top] = [low - missing, high + missing];
  if (least) [bottom, top] = [Math.min(least[0], bottom), Math.max(least[1], top)];
  if (fromZero) bottom = Math.min(0, low);
  const margin = (top - bottom || 1) * PADDING;
  return { range: [fromZero && bottom === 0 ? 0 : bottom - margin, top + margin], autorange: false };
}
const DECADES = 100; // the largest value divided by the smallest, from which a linear axis hides the small ones

/**
 * Whether the values are positive and so far apart that they need a logarithmic axis.
 * @param {{log_if_wide?: boolean}} spec
 * @param {Trace[]} traces of the left axis
 */
export function spansDecades(spec, traces) {
  if (!spec.log_if_wide) return false;
  const values = traces.filter((trace) => trace.yaxis !== "y2").flatMap((trace) => trace.y ?? []).filter((value) => value !== null);
  const [least, most] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, 0]);
  return least > 0 && most / least >= DECADES;
}

/**
 * A shaded area and a bar at the bottom for each finding.
 * @param {Span[]} findings
 * @param {(step: number) => number} xOf
 */
export function findingShapes(findings, xOf) {
  return findings.flatMap((finding) => {
    const [x0, x1] = [xOf(finding.first - 0.5), xOf(finding.last + 0.5)];
    const fillcolor = SEVERITIES[finding.severity];
    const common = { type: "rect", xref: "x", yref: "paper", x0, x1, fillcolor, line: { width: 0 } };
    return [
      { ...common, y0: 0, y1: 1, opacity: 0.09, layer: "below" },
      { ...common, y0: 0, y1: 0.02, opacity: 0.9, layer: "above" },
    ];
  });
}

/**
 * A mark above each step that a finding names; a click on it leads to the finding.
 * @param {Span[]} findings
 * @param {(step: number) => number} xOf
 */
export function findingMarks(findings, xOf) {
  return findings.flatMap((finding, index) =>
    finding.steps.map((step) => ({
      x: xOf(step),
      xshift: 15 * findings.slice(0, index).filter(({ steps }) => steps.includes(step)).length,
      yref: "paper",
      y: 1,
      xanchor: "left",
      yanchor: "bottom",
      text: " ! ",
      showarrow: false,
      font: { size: 9 },
      bgcolor: SEVERITIES[finding.severity],
      borderpad: 1,
      hovertext: `${finding.title} (step ${step.toLocaleString("en")})`,
      captureevents: true,
      name: finding.id,
    })),
  );
}

// ------------------------------------------------------------------ other charts

/**
 * @param {number[]} steps
 * @param {Curves} curves
 * @param {Unit} unit
 */
const xOfSteps = (steps, curves, unit) => steps.map((step) => (unit === "step" ? step : curves.translate(step, "step", unit)));

/**
 * @param {Record<string, {step: number[], mean: (number | null)[]}>} evaluations by name of the metric
 * @param {string[]} palette
 * @param {Curves} curves
 * @param {Unit} unit
 * @returns {Trace[]}
 */
export function evaluationTraces(evaluations, palette, curves, unit) {
  return Object.entries(evaluations).map(([name, { step, mean }], index) => ({
    x: xOfSteps(step, curves, unit),
    y: mean,
    type: "scatter",
    mode: "lines+markers",
    name,
    connectgaps: true,
    line: { color: palette[index % palette.length], width: 1.75 },
    marker: { size: 5 },
    customdata: mean.map((value) => formatNumber(value)),
    hovertemplate: "%{customdata}",
  }));
}

/**
 * One line for each objective.
 * @param {Spec} spec
 * @param {Objective[]} objectives
 * @param {string[]} palette
 * @param {Curves} curves
 * @param {Unit} unit
 * @returns {Trace[]}
 */
export function objectiveTraces({ objective_metric: metric, number_format: format }, objectives, palette, curves, unit) {
  if (!metric) return [];
  return objectives.map((objective, index) => ({
    x: xOfSteps(objective.step, curves, unit),
    y: objective[metric],
    type: "scatter",
    mode: objective.step.length > POINTS_WITH_MARKERS ? "lines" : "lines+markers",
    name: objective.name,
    line: { color: palette[index % palette.length], width: 1.75, dash: index ? "dash" : "solid" },
    marker: { size: 4 },
    customdata: objective[metric].map((value) => `${objective.name} ${formatNumber(value, format)}`),
    hovertemplate: "%{customdata}<extra></extra>",
  }));
}

/**
 * @param {{step: number[], collectives: (number | null)[][]}} pattern the collectives of each micro-batch, by step
 * @param {Curves} curves
 * @param {Unit} unit
 * @returns {Trace[]}
 */
export function heatTraces({ step, collectives }, curves, unit) {
  const height = Math.max(0, ...collectives.map((counts) => counts.length));
  const rows = Array.from({ length: height }, (_, row) => collectives.map((counts) => counts[row] ?? null));
  const most = collectives.flat().reduce((/** @type {number} */ most, count) => Math.max(most, count ?? 0), 1);
  return [
    {
      type: "heatmap",
      x: xOfSteps(step, curves, unit),
      y: rows.map((_, row) => row + 1),
      z: rows,
      zmin: 0,
      zmax: most,
      colorscale: [[0, "#8088962e"], [0.001, "#56a3d6"], [1, "#0b4f85"]],
      showscale: false,
      xgap: step.length > 80 ? 0 : 1,
      ygap: 1,
      hoverongaps: false,
      customdata: rows.map((row) => row.map((count) => (count === 1 ? "1 collective" : `${count} collectives`))),
      hovertemplate: "step %{x:,d}, micro-batch %{y}: %{customdata}<extra></extra>",
    },
  ];
}
