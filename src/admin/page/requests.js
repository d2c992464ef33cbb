// The list of kept requests; one opens below its row.

import { load } from "./api.js";
import { ago, byId, cells, el, put, seconds } from "./dom.js";
import { go, place } from "./place.js";
import { detail } from "./waterfall.js";

const KINDS = { missed: "&missed=true", failed: "&outcome=failed", refused: "&outcome=refused", "": "" };
let open = null, opened = null, pages = 1, wanted = place("of");

async function list() {
  const route = byId("request-route").value;
  const filter = (route ? `&route=${encodeURIComponent(route)}` : "") + KINDS[byId("request-kind").value];
  let [found, next] = [[], ""];
  for (let page = 0; page < pages && next !== null; page += 1) {
    const answer = await load(`/requests?limit=20${filter}${next ? `&after=${next}` : ""}`);
    found = found.concat(answer.requests);
    next = answer.next;
  }
  byId("more-requests").hidden = next === null;
  return found;
}

function row(request) {
  const isOpen = open === request.request_id;
  const button = el("button", { type: "button", class: "link", "aria-expanded": String(isOpen), onclick: () => toggle(request.request_id) }, request.request_id);
  return el("tr", { "data-request": request.request_id }, ...cells([
    ["request", button],
    ["when", ago(request.time)],
    ["route", request.route],
    ["tenant", request.tenant],
    ["replica", request.replica],
    ["outcome", request.error ?? request.outcome],
    ["TTFT", seconds(request.ttft)],
    ["whole", seconds(request.duration)],
    ["missed", request.slo_missed ?? "no"],
    ["in", request.slo_missed_in],
  ]));
}

async function toggle(id) {
  open = open === id ? null : id;
  opened = null;
  go({ request: open });
  if (open !== null) {
    try {
      const request = await load(`/requests/${encodeURIComponent(id)}`);
      opened = detail(request);
      opened.of = request;
    } catch (error) {
      opened = el("p", { role: "alert" }, error.message);
      opened.of = { request_id: id };
    }
  }
  await show(true);
  document.querySelector(`[data-request="${CSS.escape(id)}"] button`)?.focus();
}

/** Draws the list; while one is open only on demand, so that nobody's reading place moves. */
export async function show(isAsked = false) {
  if (open !== null && !isAsked) return;
  const found = await list();
  // One of a link need not be in the list.
  if (open !== null && opened !== null && !found.some((request) => request.request_id === open)) found.unshift(opened.of);
  const rows = found.flatMap((request) => {
    const below = open === request.request_id && opened ? [el("tr", {}, el("td", { class: "detail", colspan: 10 }, opened))] : [];
    return [row(request), ...below];
  });
  put(byId("request-rows"), ...(rows.length > 0 ? rows : [el("tr", {}, el("td", { class: "detail", colspan: 10 }, "none in the last hour"))]));
}

export function routes(names) {
  const select = byId("request-route");
  const known = [...select.options].slice(1).map((option) => option.value);
  if (known.join("\n") === names.join("\n")) return;
  const chosen = select.value;
  put(select, el("option", { value: "" }, "all"), ...names.map((name) => el("option", { value: name }, name)));
  const next = wanted || chosen;
  select.value = names.includes(next) ? next : "";
  wanted = "";
}

export function start(failed) {
  const again = () => {
    go({ of: byId("request-route").value, show: byId("request-kind").value === "missed" ? "" : byId("request-kind").value || "all", request: open });
    show(true).catch(failed);
  };
  const kind = place("show");
  byId("request-kind").value = kind === "all" ? "" : ["failed", "refused"].includes(kind) ? kind : "missed";
  for (const id of ["request-route", "request-kind"]) byId(id).addEventListener("change", () => { pages = 1; open = null; again(); });
  byId("more-requests").addEventListener("click", () => { pages += 1; again(); });
  if (place("request")) toggle(place("request")).catch(failed);
}
