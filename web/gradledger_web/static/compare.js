// The compare page: one figure a chart, one line a run, one x-range for all of them.

import { draw, layoutOf, specOf, write } from "./charts.js";
import { Curves, between, fetchJson } from "./curves.js";

const sources = JSON.parse(document.getElementById("sources").textContent);
const section = document.getElementById("charts");
const reset = document.getElementById("reset-zoom");
const charts = [...section.querySelectorAll(".plot")].map((plot) => ({ plot, spec: specOf(plot) }));
const figures = charts.map(({ spec }) => spec.id).join(",");
const state = { unit: "step", range: null, wholes: [], shown: [] };

const load = (extra = () => "") => Promise.all(sources.map(async (source, at) => new Curves(await fetchJson(`${source.series}?figures=${figures}${extra(at)}`))));

// Runs that began on different days are laid over each other from their beginnings.
function xOf(curves, at) {
  if (state.unit !== "time") return curves.x(state.unit);
  const began = state.wholes[at].columns.time[0];
  return curves.columns.time.map((time) => (time - began) / 3600);
}

// The steps of a run that lie in a range, and some on either side: lines go on to the edge.
function stepsIn(range, whole, at) {
  if (!whole.length) return [0, 0];
  const [first, last] = range.map((x) => between(x, xOf(whole, at), whole.x("step")));
  const margin = Math.ceil((last - first) / 20) + 1;
  return [Math.max(Math.floor(first) - margin, 0), Math.ceil(last) + margin];
}

function ends() {
  const all = state.wholes.flatMap(xOf);
  const [least, most] = all.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
  const margin = (most - least || 1) * 0.005;
  return Number.isFinite(least) ? [least - margin, most + margin] : [0, 1];
}

function tracesOf({ spec }) {
  return state.shown.map((curves, at) => {
    const y = curves.column(spec.id) ?? [];
    const x = xOf(curves, at);
    const name = `${sources[at].name} (${sources[at].id})`;
    const line = { color: sources[at].colour, width: 1.75 };
    const mode = x.length > 120 ? "lines" : "lines+markers";
    return { x, y, type: "scatter", mode, name, line, marker: { size: 4 }, customdata: y.map((value) => write(value)), hovertemplate: "%{customdata}" };
  });
}

async function redraw() {
  const range = state.range ?? ends();
  for (const chart of charts) {
    const data = tracesOf(chart);
    chart.plot.closest(".chart").hidden = !data.some(({ y }) => y.some((value) => value !== null));
    const layout = layoutOf(chart.spec, state.unit === "time" ? "step" : state.unit, range, []);
    if (state.unit === "time") Object.assign(layout.xaxis, { tickformat: "~g", ticksuffix: " h", unifiedhovertitle: { text: "%{x:.2f} hours" } });
    await draw(chart.plot, { data, layout });
    listen(chart.plot);
  }
}

async function show(range) {
  state.range = range;
  reset.hidden = range === null;
  state.shown = state.wholes;
  await redraw();
  if (!range) return;
  const spans = state.wholes.map((whole, at) => stepsIn(range, whole, at));
  const fine = await load((at) => `&first=${spans[at][0]}&last=${spans[at][1]}`);
  if (state.range !== range) return;
  state.shown = fine;
  await redraw();
}

const heard = new WeakSet();

function listen(plot) {
  if (heard.has(plot)) return;
  heard.add(plot);
  plot.on("plotly_relayout", (event) => event["xaxis.range[0]"] !== undefined && show([event["xaxis.range[0]"], event["xaxis.range[1]"]]));
  plot.on("plotly_doubleclick", () => show(null));
}

state.wholes = state.shown = await load();
for (const input of section.querySelectorAll("[name=unit]"))
  input.addEventListener("change", () => {
    state.unit = input.value;
    show(null);
  });
reset.addEventListener("click", () => show(null));
await redraw();
section.dataset.ready = "";
