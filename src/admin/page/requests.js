// The list of kept requests; one opens below its row. Filters and the open request are in the page's address.

import { load } from "./api.js";
import { byId, cells, clock, el, put, seconds, show as address, shown, words } from "./dom.js";
import { detail } from "./waterfall.js";

const KINDS = { "": "&missed=true", failed: "&outcome=failed", refused: "&outcome=refused", all: "" };
const FILTERS = ["tenant", "revision", "replica", "stage"];
let opened = null, pages = 1, turn = 0;

async function list() {
  const parts = ["of", ...FILTERS].filter((name) => shown(name)).map((name) => `&${name === "of" ? "route" : name}=${encodeURIComponent(shown(name))}`);
  const filter = parts.join("") + (KINDS[shown("kind")] ?? "");
  let [found, next] = [[], ""];
  for (let page = 0; page < pages && next !== null; page += 1) {
    const answer = await load(`/requests?limit=20${filter}${next ? `&after=${next}` : ""}`);
    found = found.concat(answer.requests);
    next = answer.next;
  }
  byId("more-requests").hidden = next === null;
  return found;
}

const outcome = ({ error, outcome: how }) => (how === "refused" && error ? `refused: ${words(error)}` : words(error ?? how));

function row(request) {
  // Retries of a client share the id of the request.
  const isOpen = shown("request") === request.span_id;
  const button = el("button", { type: "button", class: "link id", title: request.request_id, "aria-expanded": String(isOpen), onclick: () => toggle(request.span_id) }, request.request_id);
  return el("tr", { "data-key": `request ${request.span_id}`, "data-request": request.span_id }, ...cells([
    ["request", button], ["at", clock(request.time, true), "figure"], ["route", request.route], ["tenant", request.tenant === "none" ? "–" : request.tenant],
    ["replica", request.replica], ["outcome", outcome(request)], ["TTFT", seconds(request.ttft), "figure"], ["whole", seconds(request.duration), "figure"],
    ["missed", words(request.slo_missed ?? "nothing")], ["in", words(request.slo_missed_in ?? "–")],
  ]));
}

async function toggle(id) {
  address({ request: shown("request") === id ? "" : id });
  opened = null;
  await show(true);
  document.querySelector(`[data-request="${CSS.escape(id)}"] button`)?.focus();
}

/** The open request, asked for once: it has ended. */
async function explained(id) {
  if (!id || opened?.id === id) return;
  const found = load(`/requests/${encodeURIComponent(id)}`).then(detail, (error) => el("p", { role: "alert" }, error.message));
  opened = { id, shown: await found };
}

/** Draws the list; while one is open only on demand, so that nobody's reading place moves. */
export async function show(isAsked = false) {
  const id = shown("request");
  if (id && opened?.id === id && !isAsked) return;
  const mine = (turn += 1);
  const [found] = await Promise.all([list(), explained(id)]);
  // A later call draws what is wanted by now.
  if (mine !== turn) return;
  const below = () => el("tr", { "data-key": `detail ${id}` }, el("td", { class: "detail", colspan: 10 }, opened?.shown));
  const rows = found.flatMap((request) => (id === request.span_id ? [row(request), below()] : [row(request)]));
  // A link to one that the filter does not list.
  if (id && !found.some((request) => request.span_id === id)) rows.unshift(below());
  put(byId("request-rows"), ...(rows.length > 0 ? rows : [el("tr", {}, el("td", { class: "detail", colspan: 10 }, "none in the last hour"))]));
  const set = FILTERS.filter((name) => shown(name));
  put(byId("request-filters"), ...set.map((name) => el("button", { type: "button", "data-key": name, onclick: () => find({ [name]: "" }) }, `${name} ${shown(name)} ✕`)));
  byId("request-route").value = shown("of");
  byId("request-kind").value = shown("kind");
}

let again = () => {};
/** Lists the requests of a route, replica, tenant, revision or stage. */
export function find({ route, ...more }) {
  const isNew = route !== undefined;
  address({ ...(isNew ? Object.fromEntries(FILTERS.map((name) => [name, ""])) : {}), ...(isNew ? { of: route } : {}), ...more, request: "" });
  pages = 1;
  again();
  if (FILTERS.some((name) => more[name])) byId("requests").scrollIntoView();
}

export function routes(names) {
  const chosen = shown("of");
  const all = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  put(byId("request-route"), el("option", { value: "", "data-key": "all" }, "all"), ...all.map((name) => el("option", { value: name, "data-key": `of ${name}` }, name)));
}

export function start(failed) {
  again = () => show(true).catch(failed);
  for (const [id, name] of [["request-route", "of"], ["request-kind", "kind"]]) byId(id).onchange = (event) => find({ [name]: event.target.value });
  byId("more-requests").addEventListener("click", () => { pages += 1; again(); });
}
