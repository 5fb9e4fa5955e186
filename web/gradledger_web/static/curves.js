// The figures of a run as columns from the series endpoint. A point stands for one or more steps.

/** @typedef {"step" | "tokens" | "time"} Unit */
/** @typedef {[number, number]} Range */

/**
 * A value as JSON has it: a string or null stands for a number that JSON cannot represent.
 * @typedef {number | string | null} Value
 */

/**
 * step: the last step of each point; first: its first step; steps: the number of its steps.
 * Figures are further columns; NAME_low and NAME_high are their extremes.
 * @typedef {{step: number[], first: number[], steps: number[], time: number[], tokens_total: number[], [figure: string]: Value[]}} Columns
 */

// Plotly knows no time zones: times are shifted so that it shows the local time of the browser.
/** @param {number} seconds */
const local = (seconds) => (seconds - new Date(seconds * 1000).getTimezoneOffset() * 60) * 1000;

// A value that is not a number is a gap in the line.
/** @param {Value} value */
const drawable = (value) => (typeof value === "number" ? value : null);

/**
 * Interpolates ``ys`` at a value among ``xs``, which are sorted.
 * @param {number} value
 * @param {number[]} xs
 * @param {number[]} ys
 * @returns {number}
 */
export function interpolate(value, xs, ys) {
  const after = xs.findIndex((x) => x >= value);
  if (after === -1) return ys[ys.length - 1];
  if (after === 0 || xs[after] === xs[after - 1]) return ys[after];
  const fraction = (value - xs[after - 1]) / (xs[after] - xs[after - 1]);
  return ys[after - 1] + fraction * (ys[after] - ys[after - 1]);
}

export class Curves {
  /** @param {Columns} columns */
  constructor(columns) {
    this.columns = columns;
  }

  get length() {
    return this.columns.step.length;
  }

  get last() {
    return this.columns.step.at(-1) ?? 0;
  }

  /**
   * Adds figures of the same steps; false if the steps differ.
   * @param {Columns} columns
   */
  join(columns) {
    if (columns.step.length !== this.length || columns.step.at(-1) !== this.columns.step.at(-1)) return false;
    Object.assign(this.columns, columns);
    return true;
  }

  /**
   * Appends later steps. A point of one step is its own minimum and maximum.
   * @param {Columns} columns
   */
  append(columns) {
    const added = columns.step.length;
    for (const [name, values] of Object.entries(this.columns)) {
      const figure = name.replace(/_(low|high)$/, "");
      const fresh = columns[name] ?? columns[figure] ?? new Array(added).fill(null);
      for (const value of fresh) values.push(value);
    }
  }

  /** @param {string} name */
  column(name) {
    return this.columns[name]?.map(drawable);
  }

  /**
   * @param {Unit} unit
   * @returns {number[]}
   */
  x(unit) {
    if (unit === "time") return this.columns.time.map(local);
    return unit === "tokens" ? this.columns.tokens_total : this.columns.step;
  }

  /**
   * The x-range from the first step to the last.
   * @param {Unit} unit
   * @returns {Range}
   */
  ends(unit) {
    const x = this.x(unit);
    if (x.length === 0) return [0, 1];
    const first = unit === "step" ? this.columns.first[0] : x[0];
    const last = x[x.length - 1];
    const margin = Math.max(last - first, unit === "time" ? 1000 : 1) * 0.005;
    return [first - margin, last + margin];
  }

  /**
   * Converts an x-value from one unit to another, interpolated between points.
   * @param {number} value
   * @param {Unit} from
   * @param {Unit} to
   */
  translate(value, from, to) {
    return interpolate(value, this.x(from), this.x(to));
  }

  /**
   * The mean of a figure over the steps in a range.
   * @param {string} name
   * @param {Range} range
   * @param {Unit} unit
   */
  mean(name, range, unit) {
    const values = this.columns[name] ?? [];
    const xs = this.x(unit);
    let [sum, count] = [0, 0];
    values.forEach((value, index) => {
      if (typeof value !== "number" || xs[index] < range[0] || xs[index] > range[1]) return;
      sum += value * this.columns.steps[index];
      count += this.columns.steps[index];
    });
    return count ? sum / count : null;
  }

  /**
   * The ratio of two sliding means over about 100 steps: each figure alone is too noisy.
   * @param {string} numerator
   * @param {string} denominator
   */
  ratio(numerator, denominator, window = 100) {
    const top = new SlidingSum(this.columns[numerator] ?? [], this.columns.steps);
    const bottom = new SlidingSum(this.columns[denominator] ?? [], this.columns.steps);
    return top.values.map((_, index) => {
      top.slide(index, window);
      bottom.slide(index, window);
      return top.count >= window / 5 && top.sum > 0 && bottom.sum > 0 ? top.sum / bottom.sum : null;
    });
  }
}

/**
 * A figure as its mean over at most the last ``window`` steps.
 * @param {Value[]} values
 * @param {number[]} steps
 * @param {number} window
 */
export function slidingMean(values, steps, window) {
  const sliding = new SlidingSum(values, steps);
  return values.map((value, index) => {
    sliding.slide(index, window);
    return typeof value === "number" && sliding.count ? sliding.sum / sliding.count : null;
  });
}

/** The sum of a figure over the last points that together stand for at least ``window`` steps. */
class SlidingSum {
  /**
   * @param {Value[]} values
   * @param {number[]} steps
   */
  constructor(values, steps) {
    this.values = values;
    this.steps = steps;
    this.sum = 0;
    this.count = 0; // of steps
    this.first = 0; // index of the first point in the window
  }

  /**
   * @param {number} index
   * @param {number} window
   */
  slide(index, window) {
    this.#add(index, 1);
    while (this.first < index && this.count - this.#weight(this.first) >= window) this.#add(this.first++, -1);
  }

  /** @param {number} index */
  #weight(index) {
    return typeof this.values[index] === "number" ? this.steps[index] : 0;
  }

  /**
   * @param {number} index
   * @param {1 | -1} sign
   */
  #add(index, sign) {
    const value = this.values[index];
    if (typeof value !== "number") return;
    this.sum += sign * value * this.steps[index];
    this.count += sign * this.steps[index];
  }
}

/**
 * A column of the endpoint, or one that is computed from two others.
 * @param {Curves} curves
 * @param {string} key
 */
export function derived(curves, key) {
  return key === "noise_scale" ? curves.ratio("noise_trace", "noise_signal") : curves.column(key);
}

/**
 * @param {string | URL} url
 * @returns {Promise<any>}
 */
export async function fetchJson(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.json();
}
