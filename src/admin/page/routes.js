// All routes as a table, and the card of one: verdict, figures, charts.

import { byStage, heat, lines, stacked } from "./chart.js";
import { byId, cells, el, keepFocus, number, percent, put, seconds, terms } from "./dom.js";
import { go, place } from "./place.js";

const STAGES = ["read", "admit", "route", "connect", "engine_queue", "prefill", "decode", "engine_other", "relay"];

function figures(route) {
  const { goodput, burn, ttft, itl, bound } = route;
  return terms([
    ["within SLO", percent(goodput.share, 1)],
    ["goodput", `${number(goodput.per_second, 1)}/s`],
    ["burn 1 m · 5 m · 1 h", ["1m", "5m", "1h"].map((window) => (burn[window] === null ? "–" : `${number(burn[window], 1)}×`)).join(" · ")],
    ["TTFT p50 · p99", `${seconds(ttft.p50)} · ${seconds(ttft.p99)}`],
    ["TTFT bound", seconds(bound.ttft)],
    ["ITL p50 · p99", `${seconds(itl.p50)} · ${seconds(itl.p99)}`],
  ]);
}

/** Stages whose p95 is over their budget somewhere, and by how much lately. */
function budgets(history) {
  const rows = Object.entries(history.budget).map(([stage, share]) => {
    const p95 = history.stages[stage]?.p95.findLast((value) => value !== null);
    return [stage, el("span", { class: p95 > share ? "over" : "" }, `p95 ${seconds(p95)} of ${seconds(share)}`)];
  });
  return rows.length === 0 ? undefined : el("dl", { "aria-label": "Stages and their budgets" }, ...terms(rows));
}

function charts(history, times) {
  const of = (values) => STAGES.filter((stage) => values[stage]).map((stage) => [stage, stage, values[stage]]);
  // Never sums of percentiles: a p99 of each stage is a line, they need not be of the same request.
  const stages = (quantile) => of(Object.fromEntries(Object.entries(history.stages).map(([stage, figures]) => [stage, figures[quantile]])))
    .filter(([stage, , values]) => stage !== "decode" && stage !== "relay" && values.some((value) => value >= SHOWN_FROM));
  const missed = of(history.missed_in);
  return el("div", { class: "charts" },
    lines("Time to first token", times, [["p50", history.ttft.p50], ["p95", history.ttft.p95], ["p99", history.ttft.p99]], history.ttft_bound, seconds),
    heat("First tokens by time", times, history.heat.edges, history.heat.counts, history.ttft_bound.findLast((value) => value !== null), seconds),
    stacked("Misses by stage", times, missed, (value) => number(value)),
    byStage("p50 of each stage before the first token", times, stages("p50"), seconds),
    byStage("p95 of each stage before the first token", times, stages("p95"), seconds),
    byStage("p99 of each stage before the first token", times, stages("p99"), seconds),
    lines("Inter-token latency", times, [["p50", history.itl.p50], ["p99", history.itl.p99]], undefined, seconds),
    decoding("decode", "Decoding", times, history), decoding("relay", "Slow clients (relay)", times, history));
}

/** Percentiles of a stage that lasts as long as the answer. */
function decoding(stage, title, times, history) {
  const figures = history.stages[stage];
  if (!figures) return undefined;
  return lines(title, times, [["p50", figures.p50], ["p95", figures.p95], ["p99", figures.p99]], undefined, seconds);
}

/** Seconds: a stage that never took longer is no line. */
const SHOWN_FROM = 0.001;

function reasons(history) {
  const sums = Object.entries(history.missed).map(([reason, counts]) => [reason, counts.reduce((sum, count) => sum + count, 0)]);
  const missed = sums.filter(([, count]) => count > 0).map(([reason, count]) => `${count} ${reason}`);
  return el("p", { class: "quiet" }, `Misses in this range: ${missed.length === 0 ? "none" : missed.join(", ")}.`);
}

/** Charts by route, of the history that is shown: drawn again only with a new one. */
let drawn = new Map(), drawnOf = null;

function past(route, history) {
  if (drawnOf !== history) [drawn, drawnOf] = [new Map(), history];
  const known = history?.routes.find((of) => of.route === route);
  if (!known) return [];
  if (!drawn.has(route)) drawn.set(route, [budgets(known), charts(known, history.times), reasons(known)]);
  return drawn.get(route);
}

/** The route whose card is shown: the chosen one, else the first that misses its SLO, else the first. */
function shown(slo) {
  const named = (name) => slo.routes.find((route) => route.route === name);
  return named(place("route")) ?? slo.routes.find((route) => route.status === "bad") ?? slo.routes[0];
}

function row(route, isShown, choose) {
  const { goodput, burn, ttft, itl, bound } = route;
  const button = el("button", { type: "button", class: "link", "aria-current": isShown && "true", onclick: choose }, route.route);
  return el("tr", { class: isShown && "chosen" }, ...cells([
    ["route", button],
    ["SLO", el("span", { class: "pill", "data-status": route.status }, WORDS[route.status])],
    ["within", percent(goodput.share, 1)],
    ["requests", number(goodput.requests)],
    ["goodput", `${number(goodput.per_second, 1)}/s`],
    ["TTFT p50", seconds(ttft.p50)],
    ["p99", seconds(ttft.p99)],
    ["bound", seconds(bound.ttft)],
    ["ITL p99", seconds(itl.p99)],
    ["burn 5 m", burn["5m"] === null ? undefined : `${number(burn["5m"], 1)}×`],
  ]));
}

function card(route, slo, history) {
  return el("article", { class: "card", "aria-label": `route ${route.route}` },
    el("div", { class: "row" }, el("h3", {}, route.route), el("span", { class: "pill", "data-status": route.status }, WORDS[route.status])),
    route.sentence === slo.sentence ? undefined : el("p", { class: "sentence" }, route.sentence),
    el("dl", {}, ...figures(route)), ...past(route.route, history));
}

/** All routes as rows, worst first; one of them with its charts. */
export function show(slo, history) {
  const one = shown(slo);
  const order = { bad: 0, ok: 1, unknown: 2 };
  const routes = [...slo.routes].sort((a, b) => order[a.status] - order[b.status]);
  const choose = (route) => () => { go({ route: route.route }); show(slo, history); };
  byId("all-routes").hidden = routes.length < 2;
  keepFocus(byId("route-rows"), () => put(byId("route-rows"), ...routes.map((route) => row(route, route === one, choose(route)))));
  put(byId("route-cards"), ...(one ? [card(one, slo, history)] : [el("p", { class: "quiet" }, "no requests yet")]));
}

export const WORDS = { ok: "✓ within SLO", bad: "✕ SLO missed", unknown: "? too little to judge" };
