// One request: its stages one after the other, its attempts, and why that replica.

import { cells, el, number, seconds, svg, terms } from "./dom.js";

const WIDTH = Math.min(900, Math.max(300, document.documentElement.clientWidth - 66));
const ROW = 22, LEFT = 88;

function bars(request) {
  const whole = request.duration || 1e-6;
  const at = (time) => LEFT + ((WIDTH - LEFT - 4) * time) / whole;
  const shown = request.stages.filter((stage) => stage.duration > 0);
  const rows = shown.flatMap((stage, i) => {
    const [start, end, top] = [at(stage.start), at(stage.start + stage.duration), i * ROW];
    const notes = [stage.source === "estimated" ? "estimated" : "", stage.over_budget ? `over ${seconds(stage.budget)}` : ""].filter(Boolean);
    return [
      svg("text", { x: 0, y: top + 15 }, stage.stage),
      svg("rect", { class: `f-${stage.stage}${stage.source === "estimated" ? " estimated" : ""}`, x: start, y: top + 3, width: Math.max(1.5, end - start), height: ROW - 6 }),
      label([seconds(stage.duration), ...notes].join(", "), start, end, top + 15),
    ];
  });
  const spoken = shown.map((stage) => `${stage.stage} ${seconds(stage.duration)}${stage.source === "estimated" ? " estimated" : ""}`).join(", ");
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${Math.max(1, shown.length) * ROW}`, role: "img", "aria-label": `stages: ${spoken}` }, ...rows);
}

/** Right of the bar, else left of it, else in it. */
function label(text, start, end, y) {
  const wide = 6.2 * text.length;
  if (end + 5 + wide <= WIDTH) return svg("text", { x: end + 5, y }, text);
  if (start - 5 - wide >= LEFT) return svg("text", { x: start - 5, y, "text-anchor": "end" }, text);
  return svg("text", { class: "inside", x: start + 6, y }, text);
}

function table(caption, heads, rows) {
  return el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...rows));
}

function attempts(request) {
  const heads = ["replica", "why", "from", "connected after", "head after", "to", "result"];
  return table("Attempts", heads, request.attempts_made.map((attempt) => el("tr", {}, ...cells([
    ["replica", attempt.replica],
    ["why", attempt.cause],
    ["from", seconds(attempt.start)],
    ["connected after", attempt.connected === null ? "never" : seconds(attempt.connected - attempt.start)],
    ["head after", attempt.head === null ? "never" : seconds(attempt.head - attempt.start)],
    ["to", seconds(attempt.end)],
    ["result", attempt.canceled ? "gave up: the other spoke first" : (attempt.error ?? `${attempt.status ?? "answered"}`)],
  ]))));
}

function decision(request) {
  const made = request.decision;
  if (!made) return el("p", { class: "quiet" }, "No replica was chosen.");
  const predicted = made.predicted_ttft === null ? "TTFT" : `Predicted TTFT ${seconds(made.predicted_ttft)}, it`;
  const outcome = `${predicted} was ${seconds(request.ttft)}; expected ${made.predicted_hit_tokens} cached tokens, the engine reports ${request.cached_tokens ?? "none"}.`;
  const said = el("p", {}, `${made.policy} chose ${made.replica ?? "–"} of ${made.candidates} for ${made.reason}. ${outcome}`);
  if (made.weighed.length === 0) return el("div", {}, said, el("p", { class: "quiet" }, made.predicted_ttft === null
    ? "This policy predicts nothing, so its candidates have no cost."
    : "Under load only some decisions list their candidates."));
  const addends = ["wait", "prefill", "base", "adapter", "others", "decoding", "harm", "late", "failure"];
  const heads = ["candidate", "predicted TTFT", "cached tokens", "streams harmed", "chance to be late", ...addends.map((name) => `${name}, s`), "cost, s"];
  const rows = made.weighed.map((candidate) => el("tr", { class: candidate.chosen ? "chosen" : undefined }, ...cells([
    ["candidate", candidate.chosen ? `${candidate.replica} (chosen)` : candidate.replica],
    ["predicted TTFT", seconds(candidate.predicted_ttft)],
    ["cached tokens", number(candidate.predicted_hit_tokens)],
    ["streams harmed", number(candidate.harm, 2)],
    ["chance to be late", number(candidate.late, 2)],
    ...addends.map((name) => [`${name}, s`, number(candidate.cost_seconds[name], 3)]),
    ["cost, s", number(candidate.cost, 3)],
  ])));
  const why = made.why ? [el("p", {}, `${made.why}.`)] : [];
  return el("div", {}, said, ...why, table("Candidates, cheapest first: the seconds add up to the cost", heads, rows));
}

export function detail(request) {
  return el("div", {}, bars(request),
    el("dl", {}, ...terms([
      ["TTFT", `${seconds(request.ttft)}${request.bounds.ttft === null ? "" : ` of ${seconds(request.bounds.ttft)}`}`],
      ["per token", seconds(request.tpot)],
      ["longest gap", seconds(request.longest_gap)],
      ["prompt · output tokens", `${request.prompt_tokens ?? `~${request.estimated_prompt_tokens}`} · ${request.output_tokens ?? "–"}`],
      ["waited in the gateway", seconds(request.held)],
      ["status", `${request.status}${request.error ? ` ${request.error}` : ""}`],
      ["trace", el("code", {}, request.trace_id)],
    ])),
    request.attempts_made.length > 0 ? attempts(request) : undefined, decision(request));
}
