// Charts as SVG: lines with a bound, stacked columns, a heat map. Every chart says in words what it shows, and what stands under the
// pointer; that stays while figures are refreshed.

import { byId, clock, el, isKnown, svg } from "./dom.js";

const HEIGHT = 150, LEFT = 50, BOTTOM = 18, TOP = 6, LEAST = 352, GAP = 22;
const TALL = HEIGHT - TOP - BOTTOM;

/** Drawn as wide as their columns, so that text keeps its size; as `.charts` lays them out. */
let WIDTH = 480;
export function fit() {
  const all = byId("content").clientWidth - 34;
  const columns = Math.max(1, Math.floor((all + GAP) / (LEAST + GAP)));
  WIDTH = Math.max(260, Math.floor((all - GAP * (columns - 1)) / columns));
}

const x = (i, n) => LEFT + ((WIDTH - LEFT - 2) * i) / Math.max(1, n - 1);

/** Latencies have decades: a linear axis to 80 s hides the 10 ms before. */
function decades(values) {
  const [least, most] = [Math.max(1e-4, Math.min(...values) * 0.8), Math.max(...values) * 1.25];
  if (!(most > least)) return { y: () => HEIGHT - BOTTOM, ticks: [] };
  const y = (value) => TOP + TALL * (1 - Math.min(1, Math.max(0, Math.log(value / least) / Math.log(most / least))));
  const power = 10 ** Math.floor(Math.log10(least));
  const steps = most / least > 30 ? [1] : most / least > 5 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  const all = [0, 1, 2, 3, 4, 5, 6].flatMap((exponent) => steps.map((step) => step * power * 10 ** exponent));
  return { y, ticks: all.filter((value) => value >= least && value <= most) };
}

/** From 0 up to whole numbers. */
function counts(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  const max = Math.max(2, [2, 4, 6, 8, 10].find((step) => step * power >= most) * power);
  return { y: (value) => TOP + TALL * (1 - Math.min(value, max) / max), ticks: [0, max / 2, max] };
}

function frame(times, { y, ticks }, text) {
  const n = times.length;
  const grid = ticks.flatMap((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, text(value)),
  ]);
  const labels = [0, Math.floor((n - 1) / 2), n - 1].map((i, at) =>
    svg("text", { x: x(i, n), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][at] }, clock(times[i] * 1000)));
  return [...grid, ...labels];
}

/** What stands under the pointer: chart and time; and what each chart says of one of its slots. */
let pointed = { title: "", time: 0 };
const known = new Map();

function point(title, event) {
  const { times } = known.get(title);
  const place = event.currentTarget.getBoundingClientRect();
  const at = ((event.clientX - place.left) / place.width) * WIDTH;
  const i = Math.round(((at - LEFT) / (WIDTH - LEFT - 2)) * (times.length - 1));
  pointed = { title, time: times[Math.min(times.length - 1, Math.max(0, i))] };
  mark(event.currentTarget.closest("figure"), title);
}

function mark(figure, title) {
  const { times, say } = known.get(title);
  // Times of a slot differ by less than a slot from one answer to the next.
  const i = pointed.title === title ? times.findIndex((time) => Math.abs(time - pointed.time) * 2 < times[1] - times[0]) : -1;
  figure.querySelector(".at").textContent = i < 0 ? "" : `${clock(times[i] * 1000, true)} UTC · ${say(i) || "nothing"}`;
  const line = figure.querySelector(".cross");
  line.setAttribute("visibility", i < 0 ? "hidden" : "visible");
  for (const end of ["x1", "x2"]) line.setAttribute(end, i < 0 ? 0 : x(i, times.length));
}

/** A figure with its caption, a key of (class, name) and what a screen reader says. */
function figure(title, keys, spoken, times, say, ...drawn) {
  known.set(title, { times, say });
  const key = keys.map(([kind, name]) => el("span", { class: `key ${kind}` }, el("i"), name));
  const cross = svg("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const moves = { onpointermove: (event) => point(title, event), onpointerleave: (event) => { pointed.title = ""; mark(event.currentTarget.closest("figure"), title); } };
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${spoken}`, ...moves }, ...drawn, cross);
  const made = el("figure", { "data-key": title }, el("figcaption", {}, title, ...key), picture, el("p", { class: "at quiet" }));
  mark(made, title);
  return made;
}

const last = (values) => values.findLast(isKnown);

/** Points of a line; a gap where nothing was measured, a dot where a value stands alone. */
function path(values, y) {
  let drawn = "";
  values.forEach((value, i) => {
    if (!isKnown(value)) return;
    const at = `${x(i, values.length).toFixed(1)} ${y(value).toFixed(1)}`;
    drawn += i > 0 && isKnown(values[i - 1]) ? `L${at}` : `M${at}h.01`;
  });
  return drawn;
}

/** A line for each of `series`: (class, name, values); and a bound. */
export function lines(title, times, series, bound, text) {
  const limit = bound && last(bound);
  const values = [...series.flatMap(([, , of]) => of), limit].filter((value) => isKnown(value) && value > 0);
  const scale = decades(values);
  const drawn = series.map(([kind, , of]) => svg("path", { class: `line s-${kind}`, "stroke-linecap": "round", d: path(of, scale.y) }));
  let spoken = series.map(([, name, of]) => `${name} ${text(last(of))}`).join(", ") || "nothing above 1 ms";
  if (isKnown(limit)) {
    drawn.push(svg("path", { class: "bound", d: `M${LEFT} ${scale.y(limit)}H${WIDTH}` }));
    // Below the line where nothing fits above it.
    const place = scale.y(limit) < 16 ? scale.y(limit) + 13 : scale.y(limit) - 4;
    drawn.push(svg("text", { x: WIDTH - 4, y: place, "text-anchor": "end" }, `bound ${text(limit)}`));
    spoken += `, bound ${text(limit)}`;
  }
  const say = (i) => series.filter(([, , of]) => isKnown(of[i])).map(([, name, of]) => `${name} ${text(of[i])}`).join(" · ");
  return figure(title, series.map(([kind, name]) => [`t-${kind}`, name]), spoken, times, say, ...frame(times, scale, text), ...drawn);
}

/** Columns with parts on top of each other; `parts` are (class, name, values). */
export function stacked(title, times, parts, text) {
  const n = times.length;
  const { y, ticks } = counts(Math.max(0, ...times.map((_, i) => parts.reduce((sum, [, , values]) => sum + (values[i] ?? 0), 0))));
  const place = (i) => ({ x: LEFT + ((WIDTH - LEFT) * i) / n, width: Math.max(1, (WIDTH - LEFT) / n - 1) });
  const drawn = times.flatMap((_, i) => {
    let below = 0;
    return parts.filter(([, , values]) => values[i] > 0).map(([kind, , values]) => {
      const bottom = y(below), top = y(below += values[i]);
      return svg("rect", { class: `f-${kind}`, ...place(i), y: top, height: Math.max(0.5, bottom - top) });
    });
  });
  const spoken = parts.map(([, name, values]) => `${name} ${text(values.reduce((sum, value) => sum + (value ?? 0), 0))}`).join(", ");
  const say = (i) => parts.filter(([, , values]) => values[i] > 0).map(([, name, values]) => `${name} ${text(values[i])}`).join(" · ");
  return figure(title, parts.map(([kind, name]) => [`t-${kind}`, name]), spoken || "none", times, say, ...frame(times, { y, ticks }, text), ...drawn);
}

/** Counts by time and by size; a row of `edges` is half an octave. */
export function heat(title, times, edges, slots, bound, text) {
  const used = edges.map((_, row) => slots.some((slot) => (slot[row] ?? 0) > 0));
  if (!used.includes(true)) return figure(title, [], "no first token", times, () => "", svg("text", { x: LEFT, y: HEIGHT / 2 }, "no first token"));
  const from = Math.max(0, used.indexOf(true) - 1), to = Math.min(edges.length - 1, used.lastIndexOf(true) + 1);
  const rows = to - from + 1, n = times.length, tall = TALL / rows;
  const most = Math.max(...slots.flat(), 1);
  const top = (row) => TOP + TALL * (1 - (row - from + 1) / rows);
  const place = (i, row) => ({ x: LEFT + ((WIDTH - LEFT) * i) / n, y: top(row), width: (WIDTH - LEFT) / n, height: tall });
  const drawn = slots.flatMap((slot, i) => slot.flatMap((count, row) =>
    (count > 0 ? [svg("rect", { class: "heat", "fill-opacity": (0.18 + 0.82 * Math.sqrt(count / most)).toFixed(2), ...place(i, row) })] : [])));
  for (let row = from; row <= to; row += Math.max(1, Math.ceil(rows / 5))) {
    drawn.push(svg("text", { x: LEFT - 5, y: top(row) + tall, "text-anchor": "end" }, text(edges[row])));
  }
  if (bound) {
    const place = TOP + TALL * (1 - (Math.log2(bound / edges[from]) * 2) / rows);
    if (place > TOP && place < HEIGHT - BOTTOM) drawn.push(svg("path", { class: "bound", d: `M${LEFT} ${place}H${WIDTH}` }));
  }
  const labels = [0, n - 1].map((i) => svg("text", { x: x(i, n), y: HEIGHT - 4, "text-anchor": i === 0 ? "start" : "end" }, clock(times[i] * 1000)));
  const say = (i) => slots[i].flatMap((count, row) => (count > 0 ? [`${count} from ${text(edges[row])}`] : [])).slice(-4).join(" · ");
  return figure(title, [], `first tokens by their time, the slowest from ${text(edges[used.lastIndexOf(true)])} on`, times, say, ...labels, ...drawn);
}
