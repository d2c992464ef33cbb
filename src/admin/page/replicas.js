// The fleet, a row each: state with its reason, queue, cache, age of the engine's own figures.

import { byId, cells, el, number, percent, put, seconds, span } from "./dom.js";

function state(replica) {
  const since = typeof replica.since === "number" ? `, for ${span(replica.since)}` : replica.since ? `, since ${replica.since}` : "";
  return `${replica.on_trial ? "ready, on trial" : replica.state}${since}`;
}

function cache(usage) {
  if (usage === undefined || usage === null) return undefined;
  return el("span", {}, el("meter", { min: 0, max: 1, high: 0.9, value: usage, "aria-label": "KV cache in use" }), ` ${percent(usage)}`);
}

let isWhole = false, last = null;

export function start() {
  byId("more-replicas").addEventListener("click", () => { isWhole = true; show(last); });
}

/** Those that are not ready first; a large fleet only on demand. */
export function show(fleet) {
  last = fleet;
  const rank = (replica) => (replica.state === "ready" ? 1 : 0);
  const all = [...fleet.replicas].sort((a, b) => rank(a) - rank(b));
  const some = isWhole ? all : all.slice(0, SHOWN);
  byId("more-replicas").hidden = some.length === all.length;
  byId("more-replicas").textContent = `all ${all.length} replicas`;
  const rows = some.map((replica) => el("tr", { "data-state": replica.state }, ...cells([
    ["replica", el("strong", {}, replica.replica)],
    ["pool", replica.revision === replica.pool ? replica.pool : `${replica.pool} (${replica.revision})`],
    ["state", state(replica)],
    ["why", replica.reason],
    ["in flight", number(replica.inflight)],
    ["running", number(replica.signals?.running)],
    ["queue", number(replica.signals?.waiting)],
    ["KV cache", cache(replica.signals?.kv_cache_usage)],
    ["figures' age", replica.signals ? seconds(replica.signals.age) : "no figures"],
    ["traffic", percent(replica.traffic_share)],
  ])));
  put(byId("replica-rows"), ...rows);
}

const SHOWN = 50;
