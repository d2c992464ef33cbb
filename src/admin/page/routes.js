// All routes in one table, the worst first, and one of them open: charts, revisions, tenants and classes.

import { fit, heat, lines, stacked } from "./chart.js";
import { byId, cells, clock, el, isKnown, number, percent, put, rate, seconds, shown, span, terms, words } from "./dom.js";

const STAGES = ["read", "admit", "route", "connect", "engine_queue", "prefill", "kv_transfer", "decode", "engine_other", "relay"];
/** Seconds under which a stage is no line; share of misses from which a figure is red, as the verdict is. */
const SHOWN_FROM = 0.001, BUDGET = 0.01;

export const WORDS = { ok: "✓ within SLO", bad: "✕ missed", unknown: "? little traffic" };

const errors = (route) => (route.missed.error ?? 0) + (route.missed.refused ?? 0);

export const opened = (slo) => slo.routes.find((route) => route.route === shown("route")) ?? slo.routes[0];

const over = (value, bound) => (isKnown(value) && isKnown(bound) && value > bound ? "over" : undefined);

/** Where misses are, and who stands out. */
function where(route) {
  const stages = Object.entries(route.missed_in).sort(([, a], [, b]) => b - a).slice(0, 2);
  const who = route.standing_out.slice(0, 2).map((part) => `${part.dimension} ${part.name}`);
  return [...stages.map(([stage, count]) => `${words(stage)} ${count}`), ...who].join(", ");
}

function row(route, isOpen, choose) {
  const { goodput, burn, ttft, itl, tpot, bound } = route;
  const pick = el("button", { type: "button", class: "link", "aria-pressed": String(isOpen), onclick: () => choose(route.route) }, route.route);
  return el("tr", { "data-key": `route ${route.route}`, class: isOpen ? "chosen" : undefined }, ...cells([
    ["route", pick],
    ["SLO", el("span", { class: "pill", "data-status": route.status }, WORDS[route.status], isKnown(route.since) ? ` for ${span(route.since)}` : "")],
    ["requests", rate(goodput.requests_per_second), "figure"],
    ["within SLO", percent(goodput.share, goodput.share > 0.99 && goodput.share < 1 ? 2 : 0), "figure"],
    ["errors", goodput.requests > 0 ? percent(errors(route) / goodput.requests, errors(route) > 0 ? 1 : 0) : "–", errors(route) > goodput.requests * BUDGET ? "figure over" : "figure"],
    ["TTFT p50", seconds(ttft.p50), "figure"], ["p99", el("span", { class: over(ttft.p99, bound.ttft) }, seconds(ttft.p99)), "figure"], ["bound", seconds(bound.ttft), "figure quiet"],
    ["ITL p50", seconds(itl.p50), "figure"], ["p99", seconds(itl.p99), "figure"],
    ["per token p95", el("span", { class: over(tpot.p95, bound.tpot) }, seconds(tpot.p95)), "figure"],
    ["burn 5 m", isKnown(burn["5m"]) ? `${number(burn["5m"], 1)}×` : "–", "figure"],
    ["misses in", where(route)],
  ]));
}

/** Slots since the first request: a range that fits what there is. */
function lived(history, route) {
  const first = route.requests.findIndex((n) => n > 0);
  const from = Math.max(0, Math.min(first < 0 ? Infinity : first - 1, history.times.length - 6));
  const cut = (values) => (Array.isArray(values) && values.length === history.times.length ? values.slice(from)
    : values && typeof values === "object" && !Array.isArray(values) ? Object.fromEntries(Object.entries(values).map(([name, of]) => [name, cut(of)])) : values);
  return { times: history.times.slice(from), route: cut(route) };
}

function charts(route, times) {
  const three = (of) => ["p50", "p95", "p99"].filter((name) => of?.[name]).map((name) => [name, name, of[name]]);
  const missed = STAGES.filter((stage) => route.missed_in[stage]).map((stage) => [stage, words(stage), route.missed_in[stage]]);
  // Never sums of percentiles: a p99 of each stage is a line, they need not be of the same request.
  const stages = (quantile) => STAGES.filter((stage) => !["decode", "relay"].includes(stage) && route.stages[stage]?.[quantile].some((value) => value >= SHOWN_FROM))
    .map((stage) => [stage, words(stage), route.stages[stage][quantile]]);
  const bad = route.requests.map((n, i) => (route.missed.error?.[i] ?? 0) + (route.missed.refused?.[i] ?? 0));
  const rest = route.requests.map((n, i) => Math.max(0, n - bad[i]));
  return el("div", { class: "charts" },
    heat("First tokens by time", times, route.heat.edges, route.heat.counts, route.ttft_bound.findLast(isKnown), seconds),
    lines("Time to first token", times, three(route.ttft), route.ttft_bound, seconds),
    stacked("Misses by stage", times, missed, (value) => number(value)),
    lines("p50 of each stage before the first token", times, stages("p50"), undefined, seconds),
    lines("p99 of each stage before the first token", times, stages("p99"), undefined, seconds),
    lines("Inter-token latency", times, three(route.itl), undefined, seconds),
    stacked("Requests", times, [["plain", "answered", rest], ["bad", "failed or refused", bad]], (value) => number(value)),
    route.stages.relay?.p99.some((value) => value >= SHOWN_FROM) && lines("Slow clients (relay)", times, three(route.stages.relay), undefined, seconds));
}

/** Revisions side by side, then who asks and what for: the answer to "which" and "who". */
function parts(route, find) {
  const all = route.requests.reduce((sum, n) => sum + n, 0) || 1;
  const both = (of) => of?.map(seconds).join(" · ") ?? "–";
  const one = (part) => el("tr", { "data-key": `${route.route} ${part.dimension} ${part.name}` }, ...cells([
    [part.dimension, part.dimension === "class" ? part.name : el("button", { type: "button", class: "link", onclick: () => find({ route: route.route, [part.dimension]: part.name }) }, part.name === "none" ? "without a key" : part.name)],
    ["requests", String(part.requests), "figure"], ["share", percent(part.requests / all), "figure"],
    ["missed", part.judged > 0 ? percent(part.missed / part.judged, 1) : "–", part.missed > part.judged * BUDGET ? "figure over" : "figure"],
    ["TTFT", part.ttft.length > 0 ? both(part.ttft) : "–", "figure"],
    ["per token", both(part.tpot), "figure"],
    ...(part.dimension === "revision" ? [["ITL", both(part.itl), "figure"]] : []),
  ]));
  return ["revision", "tenant", "class"].map((dimension) => {
    const own = route.parts.filter((part) => part.dimension === dimension);
    const figures = dimension === "revision" ? ["TTFT p50 · p99", "per token p50 · p99", "ITL p50 · p99"] : ["TTFT p50 · p99", "per token p50 · p99"];
    const heads = [dimension, "requests", "share", "missed", ...figures].map((head) => el("th", { scope: "col" }, head));
    return own.length > 0 && el("table", { class: `dense of-${dimension}`, "data-key": `by ${dimension}` }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...own.map(one)));
  });
}

/** Stages with a budget, and their p95 lately. */
const budgets = (route) => el("dl", {}, ...terms(Object.entries(route.budget).map(([stage, share]) => {
  const p95 = route.stages[stage]?.p95.findLast(isKnown);
  return [`budget of ${words(stage)}`, el("span", { class: over(p95, share) }, `p95 ${seconds(p95)} of ${seconds(share)}`)];
})));

let drawnOf;

/** Draws the table with each verdict, the charts with each history. */
export function show(slo, history, { choose, find }) {
  const open = opened(slo);
  put(byId("route-rows"), ...slo.routes.map((route) => row(route, route === open, choose)));
  byId("routes-title").textContent = slo.routes.length > 1 ? `Routes (${slo.routes.length})` : "Route";
  const known = history?.routes.find((of) => of.route === open?.route);
  if (drawnOf !== history) {
    drawnOf = history;
    fit();
    const { times, route } = known ? lived(history, known) : {};
    byId("spans").textContent = known ? `${clock(times[0] * 1000)} to ${clock(times.at(-1) * 1000)} UTC` : "";
    put(byId("open-charts"), ...(known ? [budgets(route), charts(route, times), el("div", { class: "parts" }, ...parts(route, find))] : [el("p", { class: "quiet" }, "No request yet.")]));
  }
  byId("open-route").textContent = open?.route ?? "";
  byId("open-sentence").textContent = open && open.sentence !== slo.sentence ? open.sentence : "";
  const out = (open?.standing_out ?? []).map((who) => el("li", {}, `${who.dimension} ${who.name}: ${who.evidence} `,
    el("button", { type: "button", class: "link", "data-key": `${open.route} ${who.dimension} ${who.name}`, onclick: () => find({ route: open.route, [who.dimension]: who.name }) }, "its requests")));
  put(byId("open-out"), ...out);
}
