// Findings of drift detection: what changed, before and after, why, and what else it may be.

import { act } from "./api.js";
import { beforeAfter } from "./chart.js";
import { ago, byId, el, put, seconds } from "./dom.js";

// Evidence that is a value before, and the one after it.
const PAIRS = [["baseline_ttft", "ttft_p50"], ["baseline_ttft", "ttft"], ["peers_p50", "p50"], ["baseline", "now"]];

function fact(value) {
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : value.toPrecision(3);
  return Array.isArray(value) ? value.join(", ") : String(value);
}

const facts = (evidence) => el("dl", {}, ...Object.entries(evidence ?? {}).map(([name, value]) =>
  el("div", {}, el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, fact(value)))));

function picture(evidence) {
  const pair = PAIRS.find(([before, after]) => typeof evidence[before] === "number" && typeof evidence[after] === "number");
  if (pair) return beforeAfter(evidence[pair[0]], evidence[pair[1]], seconds);
  return typeof evidence.ratio === "number" ? beforeAfter(1, evidence.ratio, (value) => `${value.toFixed(2)}×`) : undefined;
}

function card(finding, isActive, again) {
  const { route, revision, replica } = finding.series;
  const button = (text, path, body) => el("button", { type: "button", onclick: () => again(act(path, body)) }, text);
  const can = isActive && finding.id !== undefined;
  const marks = [finding.acknowledged && "acknowledged", finding.muted && "muted", !isActive && "over"].filter(Boolean).join(", ");
  return el("article", { class: "card", "aria-label": `${finding.kind} on ${route}` },
    el("div", { class: "row" }, el("h3", {}, finding.kind.replaceAll("_", " ")),
      el("span", { class: "pill", "data-status": isActive && !marks ? "bad" : "unknown" }, marks || "active"), el("span", { class: "quiet" }, ago(finding.time))),
    el("p", { class: "sentence" }, `${route}${replica ? `, replica ${replica}` : ""} (${revision}): most likely ${finding.diagnosis.replaceAll("_", " ")}`,
      finding.runner_up ? `, else ${finding.runner_up.diagnosis.replaceAll("_", " ")}` : ""),
    picture(finding.evidence), facts(finding.evidence),
    finding.runner_up && el("details", {}, el("summary", {}, "what speaks for the other cause"), facts(finding.runner_up.evidence)),
    can && el("div", { class: "row" },
      finding.acknowledged ? undefined : button("acknowledge", `/drift/${encodeURIComponent(finding.id)}/acknowledge`),
      button("reset", `/drift/${encodeURIComponent(finding.id)}/reset`),
      finding.muted ? undefined : button(`mute ${finding.kind.replaceAll("_", " ")} of ${route} for a day`, "/drift/mute", { route, kind: finding.kind, for: "1d" })));
}

export function show(found, again) {
  const cards = [...found.active.map((finding) => card(finding, true, again)), ...found.recent.slice(0, 10).map((finding) => card(finding, false, again))];
  const none = el("p", { class: "quiet" }, `No finding. ${found.series} series are compared with their own past.`);
  put(byId("drift-cards"), ...(cards.length > 0 ? cards : [none]));
}
