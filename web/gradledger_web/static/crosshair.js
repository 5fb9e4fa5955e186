// One crosshair over all charts: a line at the same step in each of them.

import { all } from "./page.js";

/** @typedef {import("./curves.js").Range} Range */

/** @param {Element} plot */
const areaOf = (plot) => plot.querySelector(".nsewdrag")?.getBoundingClientRect();

/**
 * The x-value under a pointer; null outside of the charts.
 * @param {PointerEvent} event
 * @param {Range} range that the charts show
 */
export function pointedX(event, [from, to]) {
  const plot = event.target instanceof Element ? event.target.closest(".plot") : null;
  const area = plot && areaOf(plot);
  if (!area || event.clientX < area.left || event.clientX > area.right) return null;
  return from + ((event.clientX - area.left) / area.width) * (to - from);
}

/**
 * The index of the value that is nearest to ``x``; null if there are none.
 * @param {number | null} x
 * @param {number[]} xs sorted
 */
export function nearest(x, xs) {
  if (x === null || !xs.length) return null;
  const after = xs.findIndex((each) => each >= x);
  if (after <= 0) return after === 0 ? 0 : xs.length - 1;
  return x - xs[after - 1] < xs[after] - x ? after - 1 : after;
}

/**
 * Moves the line of each drawn chart; removes it if ``x`` is null or not in sight.
 * @param {ParentNode} section
 * @param {number | null} x
 * @param {Range} range that the charts show
 * @param {string} label of the line
 */
export function drawCrosshair(section, x, [from, to], label) {
  for (const plot of all(".js-plotly-plot", section)) {
    const old = /** @type {HTMLElement | null} */ (plot.querySelector(":scope > .crosshair"));
    const area = x === null || x < from || x > to ? null : areaOf(plot);
    if (!area?.width || x === null) {
      old?.remove();
      continue;
    }
    const line = old ?? plot.appendChild(document.createElement("div"));
    const box = plot.getBoundingClientRect();
    line.className = "crosshair";
    line.setAttribute("aria-hidden", "true");
    line.dataset.label = label;
    line.style.left = `${area.left - box.left + ((x - from) / (to - from)) * area.width}px`;
    line.style.top = `${area.top - box.top}px`;
    line.style.height = `${area.height}px`;
  }
}
