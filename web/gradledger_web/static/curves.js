// The figures of a run as they came from the series endpoint: columns, one point for one or more steps.

export const UNITS = ["step", "tokens", "time"];

// Times are drawn as this browser's clock shows them; plotly knows no time zones.
const local = (seconds) => (seconds - new Date(seconds * 1000).getTimezoneOffset() * 60) * 1000;

// Values that JSON cannot say arrive as strings or null: a gap in the line.
const drawable = (value) => (typeof value === "number" ? value : null);

// What lies among ``ys`` where a value lies among ``xs``, which only rise.
export function between(value, xs, ys) {
  const after = xs.findIndex((x) => x >= value);
  if (after === -1) return ys.at(-1);
  if (after === 0 || xs[after] === xs[after - 1]) return ys[after];
  const share = (value - xs[after - 1]) / (xs[after] - xs[after - 1]);
  return ys[after - 1] + share * (ys[after] - ys[after - 1]);
}

export class Curves {
  constructor(columns) {
    this.columns = columns;
  }

  get length() {
    return this.columns.step.length;
  }

  get last() {
    return this.columns.step.at(-1) ?? 0;
  }

  // Further figures of the same steps, or nothing when the two do not fit together.
  join(columns) {
    if (columns.step.length !== this.length || columns.step.at(-1) !== this.columns.step.at(-1)) return false;
    Object.assign(this.columns, columns);
    return true;
  }

  // Later steps. A point that stands for one step has itself as its extremes.
  append(columns) {
    const more = columns.step.length;
    for (const [name, values] of Object.entries(this.columns)) {
      const plain = name.replace(/_(low|high)$/, "");
      const fresh = columns[name] ?? columns[plain] ?? new Array(more).fill(null);
      for (const value of fresh) values.push(value);
    }
  }

  column(name) {
    return this.columns[name]?.map(drawable);
  }

  x(unit) {
    if (unit === "time") return this.columns.time.map(local);
    return unit === "tokens" ? this.columns.tokens_total : this.columns.step;
  }

  // From the first step to the last, in a unit.
  ends(unit) {
    const x = this.x(unit);
    if (x.length === 0) return [0, 1];
    const first = unit === "step" ? this.columns.first[0] : x[0];
    const margin = Math.max(x.at(-1) - first, unit === "time" ? 1000 : 1) * 0.005;
    return [first - margin, x.at(-1) + margin];
  }

  // Where a value of one unit lies in another, between the points that are known.
  translate(value, from, to) {
    return between(value, this.x(from), this.x(to));
  }

  mean(name, range, unit) {
    const values = this.columns[name] ?? [];
    const xs = this.x(unit);
    let [sum, count] = [0, 0];
    for (let at = 0; at < values.length; at++) {
      if (typeof values[at] !== "number" || xs[at] < range[0] || xs[at] > range[1]) continue;
      sum += values[at] * this.columns.steps[at];
      count += this.columns.steps[at];
    }
    return count ? sum / count : null;
  }

  // The ratio of two means over the last hundred steps or so: each alone is noise.
  ratio(above, below, over = 100) {
    const [tops, bottoms, steps] = [this.columns[above] ?? [], this.columns[below] ?? [], this.columns.steps];
    const made = [];
    let [from, top, bottom, count] = [0, 0, 0, 0];
    for (let at = 0; at < tops.length; at++) {
      const known = typeof tops[at] === "number";
      top += known ? tops[at] * steps[at] : 0;
      bottom += known ? bottoms[at] * steps[at] : 0;
      count += known ? steps[at] : 0;
      while (count > over && from < at) {
        const gone = typeof tops[from] === "number" ? steps[from] : 0;
        if (count - gone < over) break;
        top -= gone && tops[from] * gone;
        bottom -= gone && bottoms[from] * gone;
        count -= gone;
        from++;
      }
      made.push(count >= over / 5 && top > 0 && bottom > 0 ? top / bottom : null);
    }
    return made;
  }
}

export function derived(curves, key) {
  return key === "noise_scale" ? curves.ratio("noise_trace", "noise_signal") : curves.column(key);
}

export async function fetchJson(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.json();
}
