// One request: its stages one after the other, its attempts, and why that replica.

import { cells, el, isKnown, number, seconds, svg, terms, words } from "./dom.js";

const WIDTH = Math.min(1540, Math.max(300, document.documentElement.clientWidth - 66));
const ROW = 22, LEFT = 88;

function bars(request) {
  const whole = request.duration || 1e-6;
  const at = (time) => LEFT + ((WIDTH - LEFT - 4) * time) / whole;
  const shown = request.stages.filter((stage) => stage.duration > 0);
  const rows = shown.flatMap((stage, i) => {
    const [start, end, top] = [at(stage.start), at(stage.start + stage.duration), i * ROW];
    const notes = [stage.source === "estimated" ? "estimated" : "", stage.over_budget ? `over ${seconds(stage.budget)}` : ""].filter(Boolean);
    return [
      svg("text", { x: 0, y: top + 15 }, words(stage.stage)),
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
  const body = rows.map((row) => el("tr", {}, ...cells(row.map((value, i) => [heads[i], value, value.length < 12 && "figure"]))));
  return el("table", { class: "dense" }, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...body));
}

function outcome(attempt) {
  if (attempt.canceled && !attempt.empty) return attempt.cause === "prefill" ? "gave up: not computed in time" : "gave up: the other spoke first";
  const said = attempt.engine_error ? `: ${attempt.engine_error}` : "";
  return `${words(attempt.error ?? `${attempt.status ?? "answered"}`)}${attempt.empty ? ", no text" : ""}${said}`;
}

function attempts(request) {
  const after = (attempt, at) => (attempt[at] === null ? "never" : seconds(attempt[at] - attempt.start));
  const heads = ["replica", "why", "from", "connected after", "head after", "to", "result"];
  return table("Attempts", heads, request.attempts_made.map((attempt) => [
    attempt.replica, attempt.cause, seconds(attempt.start), after(attempt, "connected"), after(attempt, "head"), seconds(attempt.end),
    outcome(attempt)]));
}

function way(made) {
  const of = made.way;
  if (!of) return null;
  const cost = (value) => (isKnown(value) ? `${number(value, 3)} s` : "not priced");
  const place = of.way === "apart" ? `by ${of.replica ?? "–"}` : "where it was decoded";
  const parts = isKnown(of.apart) ? ` (prefill ${number(of.apart_prefill, 3)}, transfer ${number(of.apart_transfer, 3)}, decode ${number(of.apart_decode, 3)})` : "";
  const took = isKnown(of.transfer) ? ` The transfer took ${seconds(of.transfer)}.` : "";
  return el("p", {}, `The prompt was computed ${place} (${words(of.reason)}): there it would cost ${cost(of.together)}, apart ${cost(of.apart)}${parts}.${took}`);
}

function decision(request) {
  const made = request.decision;
  if (!made) return el("p", { class: "quiet" }, "No replica was chosen.");
  const came = request.ttft === null ? "no first token came" : `the first token came after ${seconds(request.ttft)}`;
  const predicted = made.predicted_ttft === null ? "" : `, TTFT ${seconds(made.predicted_ttft)} predicted`;
  const cached = request.cached_tokens === null ? "the engine does not say" : `the engine reports ${request.cached_tokens}`;
  const said = el("p", {}, `${made.policy} chose ${made.replica ?? "–"} of ${made.candidates} for ${words(made.reason)}${predicted}; ${came}. Expected ${made.predicted_hit_tokens} cached tokens, ${cached}.`);
  if (made.weighed.length === 0) return el("div", {}, said, way(made), el("p", { class: "quiet" }, made.predicted_ttft === null
    ? "This policy predicts nothing, so its candidates have no cost." : "Under load only some decisions list their candidates."));
  const addends = ["wait", "prefill", "base", "adapter", "transfer", "others", "decoding", "harm", "late", "failure"];
  const heads = ["candidate", "predicted TTFT", "cached tokens", "streams harmed", "chance to be late", ...addends.map((name) => `${name}, s`), "cost, s"];
  const rows = made.weighed.map((of) => [
    of.chosen ? `${of.replica} (chosen)` : of.replica, seconds(of.predicted_ttft), number(of.predicted_hit_tokens), number(of.harm, 2), number(of.late, 2),
    ...addends.map((name) => number(of.cost_seconds[name], 3)), number(of.cost, 3)]);
  return el("div", {}, said, way(made), made.why && el("p", {}, `${made.why}.`), table("Candidates, cheapest first: the seconds add up to the cost", heads, rows));
}

export function detail(request) {
  const bound = isKnown(request.bounds.ttft) ? ` of ${seconds(request.bounds.ttft)}` : "";
  return el("div", {}, bars(request),
    el("dl", {}, ...terms([
      ["request", el("code", {}, request.request_id)], ["trace", el("code", {}, request.trace_id)],
      ["TTFT", `${seconds(request.ttft)}${bound}`], ["per token", seconds(request.tpot)], ["longest gap", seconds(request.longest_gap)],
      ["prompt · output tokens", `${request.prompt_tokens ?? `~${request.estimated_prompt_tokens}`} · ${request.output_tokens ?? "–"}`],
      ["waited in the gateway", seconds(request.held)], ["status", `${request.status}${request.error ? ` ${words(request.error)}` : ""}`],
    ])),
    request.attempts_made.length > 0 && attempts(request), decision(request));
}
