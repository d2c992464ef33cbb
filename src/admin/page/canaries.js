// Canaries, where the gateway has them: state, step, reason and tests, with promote, rollback and pause.

import { act, load } from "./api.js";
import { byId, cells, el, percent, put, span, terms, words } from "./dom.js";

/** The bounds on shares are so much above the baseline's, the others so many times. */
const bound = ({ test, bound }) => (["errors", "goodput"].includes(test) ? `+${percent(bound, 1)}` : `${bound}×`);

function card(canary, again) {
  const name = encodeURIComponent(canary.route);
  const button = (verb) => el("button", { type: "button", "data-key": `${canary.route} ${verb}`, onclick: () => again(act(`/canaries/${name}/${verb}`)) }, verb);
  const verbs = { running: ["promote", "rollback", "pause"], paused: ["resume", "promote", "rollback"], promoted: ["rollback"] }[canary.state] ?? [];
  const evidence = (of) => Math.max(0, of.evidence);
  const test = (of) => el("tr", {}, ...cells([
    ["test", words(of.test)], ["stops at", bound(of), "figure"],
    ["evidence", el("span", {}, el("meter", { min: 0, max: 1, high: 0.5, value: evidence(of).toFixed(2), "aria-label": "evidence for a breach" }), ` ${percent(evidence(of))} of a breach`)],
  ]));
  return el("article", { class: "card", "data-key": `canary ${canary.route} ${canary.pool}`, "aria-label": `canary of ${canary.route}` },
    el("div", { class: "row" }, el("h3", {}, `${canary.route}: ${canary.revision || canary.pool}`),
      el("span", { class: "pill", "data-status": { promoted: "ok", rolled_back: "bad" }[canary.state] ?? "unknown" }, words(canary.state))),
    canary.reason && el("p", { class: "sentence" }, canary.reason),
    el("dl", {}, ...terms([
      ["step", canary.steps > 0 ? `${canary.step} of ${canary.steps}` : undefined], ["weight", `${canary.weight} %`], ["soaked", span(canary.soaked ?? 0)],
      ["shadow", canary.shadow_weight > 0 ? `${canary.shadow_weight} %, ${canary.requests.shadow} answered` : undefined],
      ["answers, canary · baseline", `${canary.requests.canary} · ${canary.requests.baseline}`],
    ])),
    canary.tests.length > 0 && el("table", {}, el("thead", {}, el("tr", {}, ...["test", "stops at", "evidence"].map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...canary.tests.map(test))),
    verbs.length > 0 && el("div", { class: "row" }, ...verbs.map(button)));
}

export async function show(again) {
  const { canaries } = await load("/canaries");
  for (const id of ["canaries", "to-canaries"]) byId(id).hidden = canaries.length === 0;
  put(byId("canary-cards"), ...canaries.map((canary) => card(canary, again)));
}
