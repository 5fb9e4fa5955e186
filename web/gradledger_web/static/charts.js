// Draws curves and pictures. What is drawn together is said by charts.py; colours of text and grid by app.css.

import { derived } from "./curves.js";

const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: false };
const POINTS_WITH_MARKERS = 120;
const SEVERITIES = { error: "#d0342c", warning: "#c98500", info: "#808896" };
const SIZES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function specOf(plot) {
  return JSON.parse(document.getElementById(plot.dataset.figure).textContent);
}

// A sheet is narrower than the window, and a drawing keeps the width that it was made with.
const PAPER = 680;
let onPaper = false;

function fit(paper) {
  onPaper = paper;
  for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, paper ? { width: PAPER } : { width: null, autosize: true });
}

addEventListener("beforeprint", () => fit(true));
addEventListener("afterprint", () => fit(false));

export async function draw(plot, figure = specOf(plot)) {
  await Plotly.react(plot, figure.data, figure.layout, CONFIG);
  if (onPaper) await Plotly.relayout(plot, { width: PAPER });
  quieten(plot);
  return plot;
}

// A drawing of plotly's is one picture to a screen reader: its label says what it shows.
function quieten(plot) {
  for (const svg of plot.querySelectorAll("svg:not([aria-hidden])")) svg.setAttribute("aria-hidden", "true");
}

// ------------------------------------------------------------------ numbers

export function write(value, how = "figure") {
  if (typeof value !== "number") return "–";
  if (how === "percent") return `${(value * 100).toFixed(Math.abs(value) >= 0.9995 || value === 0 ? 0 : Math.abs(value) >= 0.01 ? 1 : 2)} %`;
  if (how === "count" && Math.abs(value) < 1e5) return Math.round(value).toLocaleString("en");
  const [size, prefix] = (how === "count" && SIZES.find(([least]) => Math.abs(value) >= least)) || [1, ""];
  const short = Number((value / size).toPrecision(size > 1 ? 3 : 4));
  const text = short !== 0 && (Math.abs(short) < 1e-4 || Math.abs(short) >= 1e6) ? short.toExponential() : short.toLocaleString("en", { maximumFractionDigits: 8 });
  return prefix ? `${text} ${prefix}` : text;
}

// ------------------------------------------------------------------ lines

function texts(series, curves, means, lows, highs, unit) {
  const { first, step, steps } = curves.columns;
  return means.map((mean, at) => {
    if (mean === null) return "";
    const where = unit === "step" ? "" : ` · step ${step[at].toLocaleString("en")}`;
    if (!lows || steps[at] === 1) return write(mean, series.written) + where;
    const extremes = `${write(lows[at], series.written)} to ${write(highs[at], series.written)}`;
    return `${write(mean, series.written)} (${extremes} in steps ${first[at].toLocaleString("en")}–${step[at].toLocaleString("en")})`;
  });
}

function band(x, y, colour, rest) {
  return { x, y, type: "scatter", mode: "lines", hoverinfo: "skip", line: { color: `${colour}80`, width: 0.8 }, ...rest };
}

function lines(series, curves, unit) {
  const x = curves.x(unit);
  const means = derived(curves, series.key) ?? [];
  const [lows, highs] = [curves.column(`${series.key}_low`), curves.column(`${series.key}_high`)];
  const yaxis = series.right ? "y2" : "y";
  const line = {
    x,
    y: means,
    type: "scatter",
    mode: x.length > POINTS_WITH_MARKERS ? "lines" : "lines+markers",
    name: series.label,
    yaxis,
    line: { color: series.colour, width: 1.75, dash: series.dash, shape: series.stairs ? "hv" : "linear" },
    marker: { size: 4, color: series.colour },
    customdata: texts(series, curves, means, lows, highs, unit),
    hovertemplate: "%{customdata}",
    ...(series.fill && { fill: "tonexty", fillcolor: `${series.colour}26` }),
  };
  if (!lows || series.fill || series.stairs) return [line];
  return [band(x, lows, series.colour, { yaxis }), band(x, highs, series.colour, { yaxis, fill: "tonexty", fillcolor: `${series.colour}2e` }), line];
}

function marks(spec, curves, unit) {
  if (!spec.marks) return [];
  const [figure, name] = spec.marks;
  const hit = curves.column(`${figure}_high`) ?? curves.column(figure) ?? [];
  const heights = derived(curves, spec.series[0].key) ?? [];
  const known = heights.find((height) => height !== null) ?? 1;
  const at = hit.flatMap((value, index) => (value > 0 ? [index] : []));
  const x = curves.x(unit);
  return [
    {
      x: at.map((index) => x[index]),
      y: at.map((index) => heights[index] ?? known),
      type: "scatter",
      mode: "markers",
      name,
      marker: { symbol: "x-thin", size: 9, line: { width: 2, color: SEVERITIES.error } },
      customdata: at.map((index) => (curves.columns.steps[index] > 1 ? `in steps ${curves.columns.first[index]}–${curves.columns.step[index]}` : "")),
      hovertemplate: "%{customdata}",
    },
  ];
}

// An unseen point or two, so that an axis does not magnify what is nothing.
function least({ least: values }, curves, unit) {
  if (!values) return [];
  return [{ x: values.map(() => curves.x(unit)[0]), y: values, type: "scatter", mode: "markers", marker: { opacity: 0 }, hoverinfo: "skip" }];
}

export const tracesOf = (spec, curves, unit) => [...spec.series.flatMap((series) => lines(series, curves, unit)), ...marks(spec, curves, unit)];

export const framed = (spec, traces, curves, unit) => [...traces, ...least(spec, curves, unit)];

// ------------------------------------------------------------------ the frame

const TITLES = { step: "step %{x:,d}", tokens: "%{x:,d} tokens", time: "%{x|%a %H:%M:%S}" };

export function layoutOf(spec, unit, range, shapes) {
  const xaxis = { ...spec.layout.xaxis, range, autorange: false, unifiedhovertitle: { text: TITLES[unit] } };
  if (unit === "time") xaxis.type = "date";
  else Object.assign(xaxis, { type: "linear", tickformat: unit === "step" ? ",~d" : "~s" });
  return { ...spec.layout, xaxis, shapes: [...(spec.layout.shapes ?? []), ...shapes] };
}

export function shapesOf(findings, place) {
  return findings.flatMap((finding) => {
    const [x0, x1] = [place(finding.first - 0.5), place(finding.last + 0.5)];
    const fillcolor = SEVERITIES[finding.severity];
    const common = { type: "rect", xref: "x", yref: "paper", x0, x1, fillcolor, line: { width: 0 } };
    return [
      { ...common, y0: 0, y1: 1, opacity: 0.09, layer: "below" },
      { ...common, y0: 0, y1: 0.02, opacity: 0.9, layer: "above" },
    ];
  });
}

// ------------------------------------------------------------------ other pictures

export function evaluationTraces(found, palette, curves, unit) {
  return Object.entries(found).map(([name, { step, mean }], index) => ({
    x: step.map((each) => (unit === "step" ? each : curves.translate(each, "step", unit))),
    y: mean,
    type: "scatter",
    mode: "lines+markers",
    name,
    connectgaps: true,
    line: { color: palette[index % palette.length], width: 1.75 },
    marker: { size: 5 },
    customdata: mean.map((value) => write(value)),
    hovertemplate: "%{customdata}",
  }));
}

export function heatTraces({ step, collectives }, curves, unit) {
  const most = Math.max(0, ...collectives.map((each) => each.length));
  const rows = Array.from({ length: most }, (_, row) => collectives.map((each) => each[row] ?? null));
  const highest = Math.max(1, ...collectives.flat().filter((count) => count !== null));
  return [
    {
      type: "heatmap",
      x: step.map((each) => (unit === "step" ? each : curves.translate(each, "step", unit))),
      y: rows.map((_, row) => row + 1),
      z: rows,
      zmin: 0,
      zmax: highest,
      colorscale: [[0, "#8088962e"], [0.001, "#56a3d6"], [1, "#0b4f85"]],
      showscale: false,
      xgap: step.length > 80 ? 0 : 1,
      ygap: 1,
      hoverongaps: false,
      hovertemplate: "step %{x:,d}, micro-batch %{y}: %{z} collectives<extra></extra>",
    },
  ];
}
