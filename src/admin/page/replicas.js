// The fleet, a row each, those that need a look first: state with its reason, latencies, share, queue and cache.

import { byId, cells, el, isKnown, number, percent, put, rate, seconds, show as address, shown, span, terms } from "./dom.js";

const LEAST = 40;
/** Characters of a long name's end. */
const TAIL = 14;
let isAll = false, fleet = null, out = new Set();

const state = (replica) => `${replica.on_trial ? "ready, on trial" : replica.state}${isKnown(replica.since) ? ` for ${span(replica.since)}` : ""}`;
const cache = (usage) => isKnown(usage)
  && el("span", {}, el("meter", { min: 0, max: 1, high: 0.9, value: usage.toFixed(2), "aria-label": "KV cache in use" }), ` ${percent(usage)}`);
const failing = (replica) => replica.recent.failed / Math.max(1, replica.recent.requests + replica.recent.failed);
/** What needs a look: not ready, standing out, failing, given less, then by load. */
const order = (replica) => [replica.state === "ready" && !replica.on_trial ? 1 : 0, out.has(replica.replica) ? 0 : 1, -failing(replica), replica.traffic_share, -(replica.signals?.waiting ?? 0)];

function compare(a, b) {
  const [left, right] = [order(a), order(b)];
  const at = left.findIndex((value, i) => value !== right[i]);
  return at < 0 ? a.replica.localeCompare(b.replica, undefined, { numeric: true }) : left[at] - right[at];
}

/** A name whose end is always seen, which is where pods of one deployment differ; its middle gives way. */
const ending = (name) => (name.length > 2 * TAIL ? [el("span", {}, name.slice(0, -TAIL)), el("span", {}, name.slice(-TAIL))] : [name]);

function row(replica, find) {
  const { recent, signals } = replica;
  const name = el("button", { type: "button", class: "link name", title: replica.replica, onclick: () => find({ replica: replica.replica }) }, ...ending(replica.replica));
  const pool = replica.revision === replica.pool ? replica.pool : `${replica.pool} (${replica.revision})`;
  return el("tr", { "data-key": `replica ${replica.pool} ${replica.replica}`, "data-state": replica.state, class: out.has(replica.replica) ? "out" : undefined }, ...cells([
    ["replica", name],
    ["pool", el("span", { class: "name", title: pool }, ...ending(pool))],
    ["state", out.has(replica.replica) ? `${state(replica)}, stands out` : state(replica)],
    ["why", replica.reason, "why"],
    ["requests", rate(recent.per_second), "figure"], ["share", percent(recent.share), "figure"],
    ["allowed", replica.traffic_share < 0.995 ? percent(replica.traffic_share) : "all", replica.traffic_share < 0.5 ? "figure over" : "figure"],
    ["TTFT p50", seconds(recent.ttft), "figure"], ["p99", seconds(recent.ttft_p99), "figure"],
    ["per token p50", seconds(recent.tpot?.[0]), "figure"], ["p99", seconds(recent.tpot?.[1]), "figure"],
    ["failed", recent.failed > 0 ? percent(failing(replica), 1) : "0", recent.failed > 0 ? "figure over" : "figure"],
    ["in flight", number(replica.inflight), "figure"], ["running", number(signals?.running), "figure"], ["queue", number(signals?.waiting), "figure"],
    ["KV cache", cache(signals?.kv_cache_usage) || "–", "figure"],
    ["figures' age", signals ? seconds(signals.age) : "no figures", "figure"],
  ]));
}

function draw(find) {
  const wanted = shown("replicas").toLowerCase();
  const found = fleet.replicas.filter((replica) => `${replica.replica} ${replica.pool} ${replica.state}`.toLowerCase().includes(wanted)).sort(compare);
  const listed = isAll ? found : found.slice(0, LEAST);
  put(byId("replica-rows"), ...listed.map((replica) => row(replica, find)));
  byId("all-replicas").hidden = listed.length === found.length && !isAll;
  byId("all-replicas").textContent = isAll ? "fewer" : `all ${found.length}`;
  const failed = fleet.sources.filter((source) => source.error || source.kept > 0);
  put(byId("sources"), ...terms(failed.map((source) => [`${source.source} of ${source.pool}`,
    [source.error && `fails for ${span(source.failing_for ?? 0)}: ${source.error}`, source.kept > 0 && `${source.kept} kept that it does not name any more`].filter(Boolean).join("; ")])));
}

export function show(next, slo, find) {
  fleet = next;
  out = new Set(slo.routes.flatMap((route) => route.standing_out).filter((who) => who.dimension === "replica").map((who) => who.name));
  draw(find);
}

export function start(find) {
  byId("replica-filter").value = shown("replicas");
  byId("replica-filter").addEventListener("input", (event) => { address({ replicas: event.target.value }); if (fleet) draw(find); });
  byId("all-replicas").addEventListener("click", () => { isAll = !isAll; draw(find); });
}
