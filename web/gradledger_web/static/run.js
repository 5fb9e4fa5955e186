// The run page: fills the charts, and lets them grow while the run goes on.

import { draw, extend, fill, share } from "./charts.js";
import { renew } from "./page.js";

const LONGEST = 4000; // points per chart before the whole series is fetched anew, thinned by the server
const PAUSE_MS = 500; // between two looks at a run that steps faster than anyone reads

const section = document.getElementById("charts");
const plots = await Promise.all([...section.querySelectorAll(".plot")].map(draw));
const length = () => plots[0].data[0].x.length;
const last = () => plots[0].data[0].x.at(-1) ?? 0;

async function fetchSeries(after) {
  const url = section.dataset.series + (after ? `&after=${after}` : "");
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.json();
}

function showLast(series) {
  for (const output of section.querySelectorAll("[data-last]")) {
    const value = (series[output.dataset.last] ?? []).findLast((each) => each !== null);
    if (value !== undefined) output.textContent = written(output.dataset.last, value);
  }
}

function written(key, value) {
  if (typeof value !== "number") return value;
  return key === "misallocation" ? `${(value * 100).toFixed(1)} %` : Number(value.toPrecision(4)).toString();
}

async function load() {
  const series = await fetchSeries(0);
  await Promise.all(plots.map((plot) => fill(plot, series)));
  showLast(series);
}

async function grow() {
  if (length() > LONGEST) return load();
  const series = await fetchSeries(last());
  if (series.step.length === 0) return;
  await Promise.all(plots.map((plot) => extend(plot, series)));
  showLast(series);
}

// News that arrive while we look are looked at once, afterwards.
let news = false;
let looking = false;

async function look() {
  if (looking) return;
  looking = true;
  while (news) {
    news = false;
    await Promise.all([grow(), renew()]).catch(() => {}); // the service restarts: the next event tries again
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
  looking = false;
}

function heard(event) {
  news = true;
  if (event.type === "open" || !document.hidden) look();
}

function openLedger(event) {
  location.href = section.dataset.ledgers + event.points[0].x;
}

await load();
const reset = document.getElementById("reset-zoom");
share(plots, (zoomed) => (reset.hidden = !zoomed));
reset.addEventListener("click", () => Plotly.relayout(plots[0], { "xaxis.autorange": true }));
for (const plot of plots) plot.on("plotly_click", openLedger);

const events = new EventSource(section.dataset.events);
events.addEventListener("judged", heard);
events.addEventListener("open", heard); // after a lost connection: what was missed
document.addEventListener("visibilitychange", () => document.hidden || look());
section.dataset.ready = "";
