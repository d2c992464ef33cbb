// Start, token, and the rhythm: the verdict comes live, charts and lists every few seconds.

import { Unauthorized, dropToken, follow, hasToken, load, setToken } from "./page/api.js";
import * as canaries from "./page/canaries.js";
import { byId, number, percent, put, terms } from "./page/dom.js";
import * as drift from "./page/drift.js";
import { go, place } from "./page/place.js";
import * as replicas from "./page/replicas.js";
import * as requests from "./page/requests.js";
import * as routes from "./page/routes.js";
import * as theme from "./page/theme.js";

let step = place("range") === "1m" ? "1m" : "10s", heardAt = null, mode = "", slo = null, history = null, running = null;
const due = { history: 0, fleet: 0, requests: 0, drift: 0, canaries: 0 };
const EVERY = { history: 5, fleet: 2, requests: 5, drift: 10, canaries: 5 };
/** Seconds after the last look, when requests have missed their SLO since. */
const EVERY_WITH_MISSES = { history: 2, requests: 1 };
let misses = "";
const RANGES = ["10s", "1m"];
const LEAST_SLOTS = 12;

function banner(text) {
  byId("banner").textContent = text ?? "";
  byId("banner").hidden = !text;
}

function verdict() {
  byId("verdict").dataset.status = slo.status;
  const word = { ok: "✓ Within SLO", bad: "✕ SLO missed", unknown: "? Too little to judge" }[slo.status];
  if (byId("word").textContent !== word) byId("word").textContent = word;
  if (byId("sentence").textContent !== slo.sentence) byId("sentence").textContent = slo.sentence;
  const sum = (of) => slo.routes.reduce((total, route) => total + of(route), 0);
  const judged = sum((route) => route.goodput.judged);
  const burns = slo.routes.map((route) => route.burn["5m"]).filter((burn) => burn !== null);
  put(byId("figures"), ...terms([
    ["goodput", `${number(sum((route) => route.goodput.per_second), 1)}/s`],
    ["within SLO", judged > 0 ? percent(sum((route) => route.goodput.good) / judged, 1) : "–"],
    ["worst burn, 5 m", burns.length > 0 ? `${number(Math.max(...burns), 1)}×` : "–"],
    ["replicas ready", `${slo.replicas.ready} of ${slo.replicas.all}`],
  ]));
  document.title = `${{ ok: "✓", bad: "✕", unknown: "?" }[slo.status]} Tokenway`;
  byId("version").textContent = `version ${slo.version}`;
}

const PARTS = {
  history: async () => { history = cropped(await load(`/history?step=${step}`)); routes.show(slo, history); },
  fleet: async () => replicas.show(await load("/fleet")),
  requests: async () => { requests.routes(slo.routes.map((route) => route.route)); await requests.show(); },
  drift: async () => drift.show(await load("/drift"), acted("drift")),
  canaries: async () => canaries.show(acted("canaries")),
};

/** Without the time before the first request: a gateway that is a minute old shows a minute, not nine of nothing. */
function cropped(history) {
  const all = history.times.length;
  const isSeen = (at) => history.routes.some((route) => route.requests[at] > 0);
  const first = history.times.findIndex((_, at) => isSeen(at));
  const from = first < 0 ? 0 : Math.max(0, Math.min(first - 1, all - LEAST_SLOTS));
  const cut = (value) => {
    if (Array.isArray(value)) return value.length === all ? value.slice(from) : value.map(cut);
    return value !== null && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, part]) => [name, cut(part)])) : value;
  };
  return cut(history);
}

/** Waits for an action, then draws its part again. */
const acted = (part) => async (action) => {
  try {
    await action;
    await PARTS[part]();
  } catch (error) {
    failed(error);
  }
};

function failed(error) {
  if (error instanceof Unauthorized) login(error);
  else banner(error.message);
}

/** What lists and counts misses must not lag behind the verdict that speaks of them. */
function hurry() {
  const counted = slo.routes.map((route) => `${route.route} ${route.status} ${route.goodput.missed}`).join("\n");
  if (counted === misses) return;
  misses = counted;
  for (const [part, seconds] of Object.entries(EVERY_WITH_MISSES)) due[part] -= EVERY[part] - seconds;
}

async function refresh() {
  const now = performance.now() / 1000;
  const parts = Object.keys(due).filter((part) => due[part] <= now && !document.hidden);
  for (const part of parts) due[part] = now + EVERY[part];
  await Promise.all(parts.map((part) => PARTS[part]()));
}

/** How old what stands here is. */
function age() {
  const passed = heardAt === null ? null : (performance.now() - heardAt) / 1000;
  byId("live").textContent = passed === null ? mode : `${mode}, ${passed < 3 ? "now" : `${Math.round(passed)} s old`}`;
  byId("verdict").classList.toggle("old", passed !== null && passed > 10);
}

function shown(next) {
  slo = next;
  heardAt = performance.now();
  age();
  verdict();
  const own = document.documentElement.dataset.page;
  banner(own === slo.page ? undefined : `This page came from another build than the gateway that answers now (version ${slo.version}): reload it.`);
  routes.show(slo, history);
  hurry();
  refresh().catch(failed);
}

function login(error) {
  running?.abort();
  running = null;
  byId("content").hidden = true;
  byId("login").hidden = false;
  byId("login-error").textContent = hasToken() ? error.message : "";
  dropToken();
  byId("token").focus();
}

async function run() {
  running = new AbortController();
  const { signal } = running;
  while (!signal.aborted) {
    try {
      await follow(shown, { signal, onMode: (next) => { mode = next; age(); } });
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Unauthorized) return login(error);
      mode = "no connection";
      age();
      banner(`No answer from the gateway (${error.message}); what stands here is old.`);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

function start() {
  theme.start();
  requests.start(failed);
  replicas.start();
  const press = () => { for (const range of RANGES) byId(`range-${range}`).setAttribute("aria-pressed", String(range === step)); };
  for (const range of RANGES) {
    byId(`range-${range}`).addEventListener("click", () => {
      step = range;
      go({ range: range === RANGES[0] ? "" : range });
      press();
      PARTS.history().catch(failed);
    });
  }
  press();
  setInterval(age, 1000);
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(byId("token").value);
    byId("token").value = "";
    byId("login").hidden = true;
    byId("content").hidden = false;
    for (const part of Object.keys(due)) due[part] = 0;
    run();
  });
  run();
}

start();
