// Draws the figures that the server built. Colours of text and grid come from app.css.

const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: "reset" };

function figureOf(plot) {
  return JSON.parse(document.getElementById(plot.dataset.figure).textContent);
}

export async function draw(plot) {
  const { data, layout } = figureOf(plot);
  await Plotly.newPlot(plot, data, layout, CONFIG);
  return plot;
}

// Values that JSON cannot say arrive as strings ("NaN", "Infinity"): a gap in the line.
function drawable(values) {
  return values.map((value) => (typeof value === "number" ? value : null));
}

function columns(plot, series) {
  const y = plot.data.map((trace) => drawable(series[trace.meta] ?? []));
  return { x: plot.data.map(() => series.step), y };
}

const POINTS_WITH_MARKERS = 120;

function finish(plot) {
  const measured = plot.data.some((trace) => trace.y.some((value) => value !== null));
  plot.parentElement.toggleAttribute("data-empty", !measured);
  const mode = plot.data[0].x.length > POINTS_WITH_MARKERS ? "lines" : "lines+markers";
  return plot.data[0].mode === mode ? plot : Plotly.restyle(plot, { mode });
}

// All points anew: at first, and when the live line has grown too long to draw.
export async function fill(plot, series) {
  await Plotly.restyle(plot, columns(plot, series));
  return finish(plot);
}

export async function extend(plot, series) {
  await Plotly.extendTraces(plot, columns(plot, series), plot.data.map((_, index) => index));
  return finish(plot);
}

function rangeOf(plot) {
  const { autorange, range } = plot.layout.xaxis;
  return autorange ? { "xaxis.autorange": true } : { "xaxis.range": [...range] };
}

// One x-range for all: what the user does to one chart happens to the others.
export function share(plots, told) {
  let busy = false;
  const follow = async (plot, range) => {
    busy = true;
    await Promise.all(plots.filter((other) => other !== plot).map((other) => Plotly.relayout(other, { ...range })));
    busy = false;
    told(!range["xaxis.autorange"]);
  };
  for (const plot of plots)
    plot.on("plotly_relayout", (event) => {
      if (!busy && Object.keys(event).some((key) => key.startsWith("xaxis."))) follow(plot, rangeOf(plot));
    });
}
