// Findings of drift detection: what changed, why, and what else it may be; each once, with a way to its requests.

import { act } from "./api.js";
import { byId, clock, el, put, seconds, span, terms, words } from "./dom.js";

const UNITS = [
  [/(ratio|times|burn|factor)/, (value) => `${value.toFixed(2)}×`], [/(share|coverage|usage|failure)/, (value) => `${(value * 100).toFixed(1)} %`],
  [/window_seconds/, span], [/(^|_)(ttft|itl|tpot|icl|p50|p95|p99|delay|duration|seconds|bound)(_|$)/, seconds],
];

/** A figure with its unit; nothing of what says nothing. */
function fact(name, value) {
  if (Array.isArray(value)) return value.filter((of) => of !== "none").join(", ");
  if (["number", "string"].every((type) => typeof value !== type) || value === "none") return "";
  if (typeof value === "string") return words(value);
  const unit = UNITS.find(([names]) => names.test(name))?.[1];
  return unit?.(value) ?? (Number.isInteger(value) ? String(value) : value.toPrecision(3));
}

const isName = (name) => name && name !== "none";
const facts = (evidence) => el("dl", {}, ...terms(Object.entries(evidence ?? {}).map(([name, value]) => [words(name), fact(name, value) || undefined])));

function card(finding, isActive, again, find) {
  const { route, revision, replica } = finding.series;
  const button = (text, path, body) => el("button", { type: "button", "data-key": `${finding.id} ${text}`, onclick: () => again(act(path, body)) }, text);
  const marks = [finding.acknowledged && "acknowledged", finding.muted && "muted", !isActive && "over"].filter(Boolean).join(", ");
  const of = { route, ...(isName(replica) ? { replica } : isName(revision) ? { revision } : {}) };
  const since = finding.time ? `since ${clock(finding.time)} UTC, ${span(Math.max(0, (Date.now() - Date.parse(finding.time)) / 1000))} ago` : "";
  const place = `${route}${isName(replica) ? `, replica ${replica}` : ""}${isName(revision) && revision !== route ? ` (${revision})` : ""}`;
  return el("article", { class: "card", "data-key": `finding ${finding.id} ${isActive}`, "aria-label": `${words(finding.kind)} on ${route}` },
    el("div", { class: "row" }, el("h3", {}, words(finding.kind)),
      el("span", { class: "pill", "data-status": isActive && !marks ? "bad" : "unknown" }, marks || "holds"), el("span", { class: "quiet" }, since)),
    el("p", { class: "sentence" }, `${place}: most likely ${words(finding.diagnosis)}${isName(finding.runner_up?.diagnosis) ? `, else ${words(finding.runner_up.diagnosis)}` : ""}`),
    facts(finding.evidence),
    finding.runner_up && el("details", {}, el("summary", {}, "what speaks for the other cause"), facts(finding.runner_up.evidence)),
    el("div", { class: "row" },
      el("button", { type: "button", "data-key": `${finding.id} requests`, onclick: () => find({ ...of, kind: "" }) }, "its requests"),
      isActive && finding.id && [
        !finding.acknowledged && button("acknowledge", `/drift/${encodeURIComponent(finding.id)}/acknowledge`),
        button("reset", `/drift/${encodeURIComponent(finding.id)}/reset`),
        !finding.muted && button(`mute ${words(finding.kind)} of ${route} for a day`, "/drift/mute", { route, kind: finding.kind, for: "1d" }),
      ]));
}

export function show(found, again, find) {
  const active = new Set(found.active.map((finding) => finding.id));
  const over = found.recent.filter((finding) => !active.has(finding.id)).slice(0, 10);
  const cards = [...found.active.map((finding) => card(finding, true, again, find)), ...over.map((finding) => card(finding, false, again, find))];
  const none = el("p", { class: "quiet" }, `No finding. ${found.series} series ${found.series === 1 ? "is" : "are"} compared with their own past.`);
  put(byId("drift-cards"), ...(cards.length > 0 ? cards : [none]));
}
