// The legends of charts: an entry switches its line, and has the value under the pointer or the last one.

import { formatNumber } from "./charts.js";
import { derived } from "./curves.js";

/** @typedef {import("./charts.js").NumberFormat} NumberFormat */
/** @typedef {import("./curves.js").Curves} Curves */

/** The lines that are switched off. */
export class HiddenLines {
  /** @type {Set<string>} */
  #keys = new Set();

  /**
   * @param {HTMLElement} section with all charts
   * @param {(box: HTMLElement) => unknown} redraw called with the figure element of a chart
   */
  constructor(section, redraw) {
    section.addEventListener("click", (event) => {
      const button = /** @type {HTMLElement | null} */ (event.target instanceof Element && event.target.closest("[data-line]"));
      const box = /** @type {HTMLElement | null} */ (button && button.closest(".chart"));
      if (!button || !box) return;
      const key = HiddenLines.#key(box, button.dataset.line ?? "");
      if (!this.#keys.delete(key)) this.#keys.add(key);
      button.setAttribute("aria-pressed", String(!this.#keys.has(key)));
      redraw(box);
    });
  }

  /**
   * @param {HTMLElement} box
   * @param {string} line
   */
  static #key = (box, line) => `${box.id} ${line}`;

  /**
   * @param {HTMLElement} box
   * @param {string} line
   */
  has(box, line) {
    return this.#keys.has(HiddenLines.#key(box, line));
  }
}

/**
 * The last value of a figure, with its step if later ones did not measure it.
 * @param {(number | null)[]} values
 * @param {number[]} steps
 * @param {NumberFormat | undefined} format
 */
export function lastText(values, steps, format) {
  const index = values.findLastIndex((value) => value !== null);
  const text = formatNumber(values[index], format);
  return index < 0 || index === values.length - 1 ? text : `${text} (step ${steps[index].toLocaleString("en")})`;
}

/**
 * The value of a figure at a point, with its extremes if the point stands for several steps.
 * @param {Curves} curves
 * @param {string} key
 * @param {number} index
 * @param {NumberFormat | undefined} format
 */
export function pointText(curves, key, index, format) {
  const text = formatNumber((derived(curves, key) ?? [])[index], format);
  const [low, high] = ["low", "high"].map((edge) => curves.column(`${key}_${edge}`)?.[index] ?? null);
  return low === null || low === high ? text : `${text} (${formatNumber(low, format)} to ${formatNumber(high, format)})`;
}

/**
 * The steps that a point stands for.
 * @param {Curves} curves
 * @param {number} index
 */
export function stepsText({ columns: { first, step, steps } }, index) {
  return steps[index] > 1 ? `steps ${first[index].toLocaleString("en")}–${step[index].toLocaleString("en")}` : `step ${step[index].toLocaleString("en")}`;
}
