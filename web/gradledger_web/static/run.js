// The run page: one x-range for all charts, zoomed at full resolution, growing while the run goes on.

import { draw, evaluationTraces, framed, heatTraces, layoutOf, shapesOf, specOf, tracesOf, write } from "./charts.js";
import { Curves, derived, fetchJson } from "./curves.js";
import { renew } from "./page.js";

const LONGEST = 3000; // points before the whole run is fetched anew, thinned by the server
const PAUSE_MS = 500; // between two looks at a run that steps faster than anyone reads
const PICTURES_MS = 5000; // between two looks at what is not appended to but drawn anew

const section = document.getElementById("charts");
const reset = document.getElementById("reset-zoom");
const palette = JSON.parse(section.dataset.palette);
const charts = [...section.querySelectorAll(".plot")].map((plot) => ({ plot, box: plot.closest(".chart"), spec: specOf(plot), seen: false, stale: true }));
const lined = charts.filter(({ spec }) => spec.series.length > 0);

const state = { unit: "step", range: null, whole: null, part: null, evaluations: {}, pattern: { step: [], collectives: [] } };
const shown = () => state.part ?? state.whole;
const rangeShown = () => state.range ?? state.whole.ends(state.unit);
const stepsShown = () => state.range?.map((x) => Math.round(state.whole.translate(x, state.unit, "step")));

// ------------------------------------------------------------------ fetching

function address(parameters) {
  const url = new URL(section.dataset.series, location.href);
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined) url.searchParams.set(name, value);
  return url;
}

const figuresOf = (some) => [...new Set(some.flatMap(({ spec }) => spec.figures))];
const near = ({ box }) => !box.hidden && box.getBoundingClientRect().top < 2 * innerHeight;

// What is in sight comes first: of a long run, half of the figures take half of the time.
async function loadWhole() {
  const sighted = lined.filter(near);
  const first = figuresOf(sighted.length ? sighted : lined);
  const whole = new Curves(await fetchJson(address({ figures: first.join() })));
  if (!state.whole) {
    state.whole = whole;
    redraw(sighted);
  }
  const others = figuresOf(lined).filter((figure) => !first.includes(figure));
  const joined = !others.length || whole.join(await fetchJson(address({ figures: others.join(), last: whole.last })));
  state.whole = joined ? whole : new Curves(await fetchJson(address({ figures: figuresOf(lined).join() })));
}

async function loadPart() {
  const steps = stepsShown();
  if (!steps) return (state.part = null);
  const margin = Math.ceil((steps[1] - steps[0]) / 20) + 1;
  const first = Math.max(steps[0] - margin, 0);
  const part = new Curves(await fetchJson(address({ figures: figuresOf(lined).join(), first, last: steps[1] + margin })));
  if (String(stepsShown()) === String(steps)) state.part = part.length ? part : null; // unless the zoom has moved on
}

let pictured = 0;

async function loadPictures() {
  pictured = Date.now();
  const steps = stepsShown();
  const query = steps ? `?first=${Math.max(steps[0], 0)}&last=${steps[1]}` : "";
  [state.evaluations, state.pattern] = await Promise.all([fetchJson(section.dataset.evaluations), fetchJson(section.dataset.collectives + query)]);
}

// ------------------------------------------------------------------ drawing

const findings = () => JSON.parse(document.getElementById("spans").textContent);

function tracesFor({ spec }) {
  if (spec.id === "evaluations") return evaluationTraces(state.evaluations, palette, state.whole, state.unit);
  if (spec.id === "collectives") return heatTraces(state.pattern, state.whole, state.unit);
  return tracesOf(spec, shown(), state.unit);
}

const isMeasured = (traces) => traces.some((trace) => (trace.z ?? trace.y)?.flat().some((value) => value !== null));

async function drawOne(chart) {
  const traces = tracesFor(chart);
  const measured = isMeasured(traces);
  chart.box.toggleAttribute("data-empty", !measured);
  if (measured) chart.box.hidden = false;
  const place = (step) => (state.unit === "step" ? step : state.whole.translate(step, "step", state.unit));
  const shapes = shapesOf(findings().filter(({ charts: named }) => named.includes(chart.spec.id)), place);
  chart.stale = false;
  const data = framed(chart.spec, traces, shown(), state.unit);
  await draw(chart.plot, { data, layout: layoutOf(chart.spec, state.unit, rangeShown(), shapes) });
  listen(chart);
}

// Charts out of sight are drawn when they come into it: a live run redraws only what is looked at.
function redraw(some = charts) {
  for (const chart of some) chart.stale = true;
  showLast();
  return drawSeen();
}

function drawSeen() {
  return Promise.all(charts.filter(({ stale, seen }) => stale && seen).map(drawOne));
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) charts.find(({ box }) => box === entry.target).seen = entry.isIntersecting;
    if (state.whole) drawSeen();
  },
  { rootMargin: "300px" },
);
for (const { box } of charts) watcher.observe(box);

function showLast() {
  section.dataset.points = state.whole.length;
  const series = new Map(lined.flatMap(({ spec }) => spec.series.map((each) => [each.key, each])));
  for (const output of section.querySelectorAll("[data-last]")) {
    const values = derived(state.whole, output.dataset.last) ?? [];
    output.textContent = write(values.findLast((each) => each !== null), series.get(output.dataset.last)?.written);
  }
  for (const output of section.querySelectorAll("[data-share]")) {
    const mean = shown().mean(output.dataset.share, rangeShown(), state.unit);
    output.textContent = write(mean, "percent");
    output.parentElement.hidden = mean === null;
  }
  for (const list of section.querySelectorAll("[data-names]")) nameEvaluations(list);
}

function nameEvaluations(list) {
  const names = Object.entries(state.evaluations);
  list.replaceChildren(
    ...names.map(([name, { mean }], index) => {
      const item = document.createElement("li");
      item.innerHTML = `<svg width="18" height="8" viewBox="0 0 18 8" aria-hidden="true"><path d="M0 4h18" stroke="${palette[index % palette.length]}" stroke-width="2.5"/></svg>`;
      const last = document.createElement("output");
      last.textContent = write(mean.findLast((each) => each !== null));
      item.append(` ${name} `, last);
      return item;
    }),
  );
}

// ------------------------------------------------------------------ zooming

async function show(range) {
  state.range = range;
  reset.hidden = range === null;
  remember();
  redraw();
  await Promise.all([loadPart(), loadPictures()]).catch(() => {}); // what is there already is shown meanwhile
  redraw();
}

// The range is part of the address, so that what one sees can be sent to somebody.
function remember() {
  const steps = stepsShown();
  history.replaceState(null, "", steps ? `#steps=${steps.join("-")}` : location.pathname + location.search);
}

function recall() {
  const found = /^#steps=(\d+)-(\d+)$/.exec(location.hash);
  if (!found) return null;
  const ends = found.slice(1).map(Number);
  if (ends[0] === ends[1]) [ends[0], ends[1]] = [Math.max(ends[0] - 1, 0), ends[1] + 1];
  return ends.map((step) => (state.unit === "step" ? step : state.whole.translate(step, "step", state.unit)));
}

function move(towards) {
  const [left, right] = rangeShown();
  const [least, most] = state.whole.ends(state.unit);
  const width = right - left;
  const moved = { in: [left + width / 4, right - width / 4], out: [left - width / 2, right + width / 2], back: [left - width / 2, right - width / 2], on: [left + width / 2, right + width / 2] }[towards];
  const range = [Math.max(moved[0], least), Math.min(moved[1], most)];
  if (range[0] >= range[1]) return;
  show(range[0] <= least && range[1] >= most ? null : range);
}

function listen(chart) {
  if (chart.listens) return;
  chart.listens = true;
  chart.plot.on("plotly_relayout", (event) => {
    const range = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    if (range[0] !== undefined) show(range.map((x) => (typeof x === "string" ? Date.parse(`${x.replace(" ", "T")}Z`) : x)));
  });
  chart.plot.on("plotly_doubleclick", () => show(null));
  chart.plot.on("plotly_click", (event) => open(chart, event.points.find((point) => point.data.customdata?.length) ?? event.points[0]));
}

// A point may stand for many steps: then the server knows at which of them its figure is largest.
function open({ spec }, point) {
  const columns = spec.series.length ? shown().columns : null;
  const at = columns ? shown().x(state.unit).indexOf(point.data.x[point.pointIndex]) : -1;
  if (!columns || at === -1) return void (location.href = section.dataset.ledgers + Math.round(state.whole.translate(+point.x, state.unit, "step")));
  if (columns.steps[at] === 1) return void (location.href = section.dataset.ledgers + columns.step[at]);
  const figure = spec.figures[0];
  location.href = `${section.dataset.find}&first=${columns.first[at]}&last=${columns.step[at]}&figure=${figure}`;
}

// ------------------------------------------------------------------ living

async function grow() {
  if (state.whole.length > LONGEST) await loadWhole();
  else {
    const fresh = await fetchJson(address({ figures: figuresOf(lined).join(), after: state.whole.last }));
    if (fresh.step.length) {
      if (state.part && state.part.last === state.whole.last) state.part.append(fresh);
      state.whole.append(fresh);
    }
  }
  if (Date.now() - pictured > PICTURES_MS) await loadPictures();
  await renew();
  redraw();
}

// News that arrive while we look are looked at once, afterwards.
let news = false;
let looking = false;

async function look() {
  if (looking) return;
  looking = true;
  while (news) {
    news = false;
    await grow().catch(() => {}); // the service restarts: the next event tries again
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
  looking = false;
}

function heard(event) {
  news = true;
  if (event.type === "open" || !document.hidden) look();
}

await loadWhole();
await loadPictures();
for (const input of section.querySelectorAll("[name=unit]")) {
  input.addEventListener("change", () => {
    const steps = stepsShown();
    state.unit = input.value;
    state.range = steps ? steps.map((step) => state.whole.translate(step, "step", state.unit)) : null;
    redraw();
  });
}
for (const button of section.querySelectorAll("[data-move]")) button.addEventListener("click", () => move(button.dataset.move));
reset.addEventListener("click", () => show(null));
addEventListener("hashchange", () => recall() && show(recall()));
addEventListener("beforeprint", () => Promise.all(charts.filter(({ box }) => !box.hidden).map(drawOne)));

await (recall() ? show(recall()) : redraw());

const events = new EventSource(section.dataset.events);
events.addEventListener("evaluated", heard);
events.addEventListener("open", heard); // after a lost connection: what was missed
document.addEventListener("visibilitychange", () => document.hidden || look());
section.dataset.ready = "";
