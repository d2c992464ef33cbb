// Canaries, where the gateway has them: state, step and reason, with promote, rollback and pause.

import { act, load } from "./api.js";
import { byId, el, put, terms } from "./dom.js";

const shown = ["route", "pool", "revision", "state", "reason", "id"];

function card(canary, again) {
  const name = encodeURIComponent(canary.route);
  const button = (verb) => el("button", { type: "button", onclick: () => again(act(`/canaries/${name}/${verb}`)) }, verb);
  const more = Object.entries(canary).filter(([key, value]) => !shown.includes(key) && value !== null && typeof value !== "object");
  const verbs = { running: ["promote", "rollback", "pause"], paused: ["resume", "promote", "rollback"] }[canary.state] ?? [];
  return el("article", { class: "card", "aria-label": `canary of ${canary.route}` },
    el("div", { class: "row" }, el("h3", {}, `${canary.route}: ${canary.revision ?? canary.pool}`),
      el("span", { class: "pill", "data-status": { promoted: "ok", rolled_back: "bad" }[canary.state] ?? "unknown" }, canary.state.replaceAll("_", " "))),
    canary.reason ? el("p", { class: "sentence" }, canary.reason) : undefined,
    el("dl", {}, ...terms(more.map(([key, value]) => [key.replaceAll("_", " "), String(value)]))),
    verbs.length > 0 ? el("div", { class: "row" }, ...verbs.map(button)) : undefined);
}

let isServed = null;

export async function show(again) {
  // Asked of the index first: a 404 would be an error in the console.
  isServed ??= (await load("/")).endpoints.some((endpoint) => endpoint.path.endsWith("/canaries"));
  if (!isServed) return;
  const { canaries } = await load("/canaries");
  for (const id of ["canaries", "to-canaries"]) byId(id).hidden = canaries.length === 0;
  put(byId("canary-cards"), ...canaries.map((canary) => card(canary, again)));
}
