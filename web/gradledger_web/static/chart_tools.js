// What the buttons of a chart do: a logarithmic axis, a larger chart, its picture and its numbers.

/** @typedef {import("./charts.js").Trace} Trace */
/** @typedef {import("./curves.js").Curves} Curves */

const LARGE_HEIGHT = 480;

/**
 * The layout of a chart, as large as its box.
 * @param {HTMLElement} box
 * @param {any} layout
 */
export const sized = (box, layout) => (box.classList.contains("is-large") ? { ...layout, height: LARGE_HEIGHT } : layout);

/** @param {{plot: any}} chart */
export const hasLogAxis = ({ plot }) => plot.layout?.yaxis?.type === "log";

/**
 * Shows at the button of a drawn chart whether its axis is logarithmic.
 * @param {{box: HTMLElement, plot: any}} chart
 */
export const showLogAxis = (chart) => chart.box.querySelector("[data-tool=log]")?.setAttribute("aria-pressed", String(hasLogAxis(chart)));

/**
 * Connects the buttons of a chart.
 * @param {HTMLElement} box the figure element
 * @param {{redraw: () => Promise<unknown>, switchLog?: () => void, csv: () => string, traces: () => Trace[], layout: () => any}} chart
 */
export function connectTools(box, { redraw, switchLog, csv, traces, layout }) {
  const name = box.id;
  /** @type {Record<string, (button: HTMLElement) => unknown>} */
  const actions = {
    log: () => switchLog?.(),
    async enlarge(button) {
      button.setAttribute("aria-pressed", String(box.classList.toggle("is-large")));
      await redraw();
      await Plotly.relayout(/** @type {HTMLElement} */ (box.querySelector(".plot")), { width: null, autosize: true });
    },
    png: () => savePicture(box, traces(), layout()),
    csv: () => save(new Blob([csv()], { type: "text/csv" }), `${name}.csv`),
  };
  box.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement | null} */ (event.target instanceof Element && event.target.closest("[data-tool]"));
    if (button) actions[button.dataset.tool ?? ""]?.(button);
  });
}

/**
 * @param {Blob} blob
 * @param {string} name of the file
 */
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// plotly.js would draw its picture from a blob: URL, which the Content-Security-Policy forbids.
/**
 * @param {HTMLElement} box
 * @param {Trace[]} traces
 * @param {any} layout
 */
async function savePicture(box, traces, layout) {
  const [width, height, scale] = [900, 420, 2];
  const { backgroundColor, color } = getComputedStyle(box);
  const title = { text: box.querySelector("h3")?.textContent ?? "", font: { size: 16 } };
  const legend = { orientation: "h", y: -0.12 };
  const style = { paper_bgcolor: backgroundColor, plot_bgcolor: backgroundColor, font: { size: 12, color }, showlegend: true };
  const margin = { ...layout.margin, t: 48, b: 64 };
  const data = traces.map((trace) => ({ ...trace, showlegend: Boolean(trace.name) }));
  const picture = new Image();
  picture.src = await Plotly.toImage({ data, layout: { ...layout, ...style, title, legend, margin } }, { format: "svg", width, height });
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: width * scale, height: height * scale });
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && save(blob, `${box.id}.png`));
}

// ------------------------------------------------------------------ numbers

/** @param {unknown} value */
function cell(value) {
  const text = String(value ?? "");
  const harmless = typeof value === "string" && /^[=+\-@]/.test(text) ? `'${text}` : text; // no formula
  return /[",\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

/** @param {unknown[][]} rows */
const csvText = (rows) => rows.map((row) => `${row.map(cell).join(",")}\n`).join("");

/**
 * The figures of a chart in columns: a point stands for the steps from ``first`` to ``step``.
 * @param {Curves} curves
 * @param {string[]} figures
 */
export function csvOfCurves({ columns }, figures) {
  const names = ["first", "step", "tokens_total", "time", ...figures.flatMap((each) => [each, `${each}_low`, `${each}_high`])].filter((each) => each in columns);
  return csvText([names, ...columns.step.map((_, index) => names.map((name) => columns[name][index]))]);
}

/**
 * One figure of several runs in rows.
 * @param {{id: string, curves: Curves}[]} runs
 * @param {string} figure
 */
export function csvOfRuns(runs, figure) {
  const names = ["first", "step", "tokens_total", "time", figure];
  const rows = runs.flatMap(({ id, curves: { columns } }) => columns.step.map((_, index) => [id, ...names.map((name) => columns[name]?.[index])]));
  return csvText([["run", ...names], ...rows]);
}

/**
 * The points of traces in rows.
 * @param {Trace[]} traces
 */
export function csvOfTraces(traces) {
  const rows = traces.flatMap(({ name, x, y, z }) =>
    z ? z.flatMap((/** @type {unknown[]} */ row, /** @type {number} */ at) => row.map((value, index) => [y[at], x[index], value])) : x.map((/** @type {unknown} */ at, /** @type {number} */ index) => [name, at, y[index]]),
  );
  return csvText([[traces[0]?.z ? "row" : "series", "x", "value"], ...rows]);
}
