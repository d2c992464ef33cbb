// Charts as SVG: lines with a bound, stacked columns, a heat map. Every chart says in words what it shows.

import { el, svg } from "./dom.js";

// As wide as the screen lets it be, so that text keeps its size on a phone.
const WIDTH = Math.min(480, Math.max(280, document.documentElement.clientWidth - 66));
const HEIGHT = 150, LEFT = 46, BOTTOM = 18, TOP = 6;
const x = (i, n) => LEFT + ((WIDTH - LEFT - 2) * i) / Math.max(1, n - 1);
const y = (value, max) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(value, max) / max);

function nice(max) {
  if (!(max > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(max));
  return [1, 1.5, 2, 3, 5, 8, 10].find((step) => step * power >= max) * power;
}

const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function frame(times, max, text) {
  const ticks = [0, max / 2, max].flatMap((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(value, max), y2: y(value, max) }),
    svg("text", { x: LEFT - 5, y: y(value, max) + 4, "text-anchor": "end" }, text(value)),
  ]);
  const n = times.length;
  const labels = [0, Math.floor((n - 1) / 2), n - 1].map((i, at) =>
    svg("text", { x: x(i, n), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][at] }, clock(times[i])));
  return [...ticks, ...labels];
}

/** A figure with its caption, a key of (class, name) and what a screen reader says. */
function figure(title, keys, spoken, ...drawn) {
  const key = keys.map(([kind, name]) => el("span", { class: `key ${kind}` }, el("i"), name));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${spoken}` }, ...drawn);
  return el("figure", {}, el("figcaption", {}, title, ...key), picture);
}

const last = (values) => values.findLast((value) => value !== null && value !== undefined);

/** Points of a line; a gap where nothing was measured, a dot where a value stands alone. */
function path(values, max) {
  let drawn = "";
  values.forEach((value, i) => {
    if (value === null || value === undefined) return;
    const goes = i > 0 && values[i - 1] !== null && values[i - 1] !== undefined;
    const at = `${x(i, values.length).toFixed(1)} ${y(value, max).toFixed(1)}`;
    drawn += goes ? `L${at}` : `M${at}h.01`;
  });
  return drawn;
}

export function lines(title, times, series, bound, text) {
  const all = [...series.flatMap(([, values]) => values), ...(bound ?? [])].filter((value) => value !== null);
  const max = nice(Math.max(0, ...all) * 1.05);
  const drawn = series.map(([, values], i) => svg("path", { class: `line k${i + 1}`, "stroke-linecap": "round", d: path(values, max) }));
  const keys = series.map(([name], i) => [`t${i + 1}`, name]);
  let spoken = series.map(([name, values]) => `${name} ${text(last(values))}`).join(", ");
  const limit = bound && last(bound);
  if (limit !== undefined && limit !== null && limit !== false) {
    drawn.push(svg("path", { class: "bound", d: `M${LEFT} ${y(limit, max)}H${WIDTH}` }));
    drawn.push(svg("text", { x: WIDTH - 4, y: y(limit, max) - 4, "text-anchor": "end" }, `bound ${text(limit)}`));
    spoken += `, bound ${text(limit)}`;
  }
  return figure(title, keys, spoken, ...frame(times, max, text), ...drawn);
}

/** A line for each stage in its colour; `parts` are (class, name, values). */
export function byStage(title, times, parts, text) {
  const max = nice(Math.max(0, ...parts.flatMap(([, , values]) => values).filter((value) => value !== null)) * 1.05);
  const drawn = parts.map(([kind, , values]) => svg("path", { class: `line s-${kind}`, "stroke-linecap": "round", d: path(values, max) }));
  const spoken = parts.map(([, name, values]) => `${name} ${text(last(values))}`).join(", ");
  return figure(title, parts.map(([kind, name]) => [`t-${kind}`, name]), spoken || "nothing above 1 ms", ...frame(times, max, text), ...drawn);
}

/** Columns with parts on top of each other; `parts` are (class, name, values). */
export function stacked(title, times, parts, text) {
  const n = times.length;
  const sums = times.map((_, i) => parts.reduce((sum, [, , values]) => sum + (values[i] ?? 0), 0));
  const max = nice(Math.max(0, ...sums));
  const width = Math.max(1, (WIDTH - LEFT) / n - 1);
  const drawn = [];
  times.forEach((_, i) => {
    let below = 0;
    for (const [kind, , values] of parts) {
      const value = values[i] ?? 0;
      if (value <= 0) continue;
      const [top, bottom] = [y(below + value, max), y(below, max)];
      drawn.push(svg("rect", { class: `f-${kind}`, x: LEFT + ((WIDTH - LEFT) * i) / n, y: top, width, height: Math.max(0.5, bottom - top) }));
      below += value;
    }
  });
  const spoken = parts.map(([, name, values]) => `${name} ${text(values.reduce((sum, value) => sum + (value ?? 0), 0))}`).join(", ");
  return figure(title, parts.map(([kind, name]) => [`t-${kind}`, name]), spoken || "none", ...frame(times, max, text), ...drawn);
}

/** Counts by time and by size; a row of `edges` is half an octave. */
export function heat(title, times, edges, counts, bound, text) {
  const used = edges.map((_, row) => counts.some((slot) => (slot[row] ?? 0) > 0));
  const from = Math.max(0, used.indexOf(true) - 1), to = Math.min(edges.length - 1, used.lastIndexOf(true) + 1);
  if (!used.includes(true)) return figure(title, [], "no first token", svg("text", { x: LEFT, y: HEIGHT / 2 }, "no first token"));
  const rows = to - from + 1, n = times.length;
  const most = Math.max(...counts.flat(), 1);
  const top = (row) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (row - from + 1) / rows);
  const tall = (HEIGHT - TOP - BOTTOM) / rows;
  const drawn = [];
  counts.forEach((slot, i) => slot.forEach((count, row) => {
    if (count > 0) {
      const place = { x: LEFT + ((WIDTH - LEFT) * i) / n, y: top(row), width: (WIDTH - LEFT) / n, height: tall };
      drawn.push(svg("rect", { class: "heat", "fill-opacity": (0.18 + 0.82 * Math.sqrt(count / most)).toFixed(2), ...place }));
    }
  }));
  const step = Math.max(1, Math.ceil(rows / 5));
  for (let row = from; row <= to; row += step) {
    drawn.push(svg("text", { x: LEFT - 5, y: top(row) + tall, "text-anchor": "end" }, text(edges[row])));
  }
  if (bound) {
    const at = from + Math.log2(bound / edges[from]) * 2;
    const place = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (at - from) / rows);
    if (place > TOP && place < HEIGHT - BOTTOM) drawn.push(svg("path", { class: "bound", d: `M${LEFT} ${place}H${WIDTH}` }));
  }
  const labels = [0, n - 1].map((i) => svg("text", { x: x(i, n), y: HEIGHT - 4, "text-anchor": i === 0 ? "start" : "end" }, clock(times[i])));
  const highest = edges[used.lastIndexOf(true)];
  return figure(title, [], `first tokens by their time, the slowest from ${text(highest)} on`, ...labels, ...drawn);
}

/** Two bars, one under the other: before and after. */
export function beforeAfter(before, after, text) {
  const max = Math.max(before, after) || 1;
  const bar = (name, value, at, kind) => [
    svg("text", { x: 0, y: at + 14 }, name),
    svg("rect", { class: kind, x: 60, y: at, width: Math.max(1, (280 * value) / max), height: 18 }),
    svg("text", { x: 66 + (280 * value) / max, y: at + 14 }, text(value)),
  ];
  const spoken = `before ${text(before)}, after ${text(after)}`;
  return svg("svg", { class: "bars", viewBox: "0 0 440 46", role: "img", "aria-label": spoken }, ...bar("before", before, 2, "f-good"), ...bar("after", after, 26, "f-bad"));
}
