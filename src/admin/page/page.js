// Start, token, and the rhythm: the verdict comes live, charts and lists every few seconds.

import { Unauthorized, dropToken, follow, hasToken, load, setToken } from "./page/api.js";
import * as canaries from "./page/canaries.js";
import { byId, isKnown, number, percent, put, rate, show as address, shown, span, terms } from "./page/dom.js";
import * as drift from "./page/drift.js";
import * as replicas from "./page/replicas.js";
import * as requests from "./page/requests.js";
import * as routes from "./page/routes.js";
import * as theme from "./page/theme.js";

let slo = null, history = null, running = null, heard = 0;
const due = { history: 0, fleet: 0, requests: 0, drift: 0, canaries: 0 };
const EVERY = { history: 5, fleet: 2, requests: 5, drift: 10, canaries: 5 };
/** Seconds after the last look, when requests have missed their SLO since. */
const EVERY_WITH_MISSES = { history: 2, requests: 1 };
/** Seconds without a word, after which what stands here is old. */
const OLD = 6;
let misses = "";

function banner(text) {
  byId("banner").textContent = text ?? "";
  byId("banner").hidden = !text;
}

/** Why an action had no effect: stands until it is dismissed, or the next action. */
function refusal(text) {
  byId("refused").textContent = text ?? "";
  byId("refusal").hidden = !text;
}

/** How old the verdict is; one that is old says nothing of now. */
function age() {
  if (slo === null) return;
  const seconds = (performance.now() - heard) / 1000;
  byId("age").textContent = seconds < OLD ? `as of ${slo.time.slice(11, 19)} UTC` : `${span(seconds)} old`;
  if (seconds < OLD) return;
  byId("verdict").dataset.status = "unknown";
  byId("word").textContent = "? No word from the gateway";
  document.title = "? Tokenway";
}

function verdict() {
  byId("verdict").dataset.status = slo.status;
  const bad = slo.routes.filter((route) => route.status === "bad");
  const since = Math.max(0, ...bad.map((route) => route.since ?? 0));
  const word = { ok: "✓ Within SLO", bad: `✕ SLO missed${slo.routes.length === 1 ? "" : ` on ${bad.length} of ${slo.routes.length} routes`}`, unknown: "? Too little to judge" }[slo.status];
  byId("word").textContent = bad.length === 0 || since === 0 ? word : `${word} for ${span(since)}`;
  if (byId("sentence").textContent !== slo.sentence) byId("sentence").textContent = slo.sentence;
  const sum = (of) => slo.routes.reduce((total, route) => total + of(route), 0);
  const judged = sum((route) => route.goodput.judged);
  const burns = slo.routes.map((route) => route.burn["5m"]).filter(isKnown);
  put(byId("figures"), ...terms([
    ["requests", rate(sum((route) => route.goodput.requests_per_second))],
    ["goodput", rate(sum((route) => route.goodput.per_second))],
    [`within SLO, ${span(Math.max(...slo.routes.map((route) => route.window), 0))}`, judged > 0 ? percent(sum((route) => route.goodput.good) / judged, 1) : "–"],
    ["failed · refused", `${sum((route) => route.missed.error ?? 0)} · ${sum((route) => route.missed.refused ?? 0)}`],
    ["worst burn, 5 m", burns.length > 0 ? `${number(Math.max(...burns), 1)}×` : "–"],
    ["replicas ready", `${slo.replicas.ready} of ${slo.replicas.all}`],
  ]));
  document.title = `${{ ok: "✓", bad: "✕", unknown: "?" }[slo.status]} Tokenway`;
  byId("version").textContent = `version ${slo.version}`;
}

/** The charts of the open route only. */
async function past() {
  const open = routes.opened(slo);
  history = open ? await load(`/history?step=${shown("range") === "1h" ? "1m" : "10s"}&route=${encodeURIComponent(open.route)}`) : null;
  draw();
}

const PARTS = {
  history: past,
  // Hundreds of replicas are asked for less often.
  fleet: async () => { if (slo.replicas.all > 64) due.fleet += 8; replicas.show(await load("/fleet"), slo, requests.find); },
  requests: async () => { requests.routes(slo.routes.map((route) => route.route)); await requests.show(); },
  drift: async () => drift.show(await load("/drift"), acted("drift"), requests.find),
  canaries: async () => canaries.show(acted("canaries")),
};

/** Waits for an action, then draws its part again. */
const acted = (part) => (action) => { refusal(); action.catch(refused).then(PARTS[part]).catch(failed); };

const failed = (error) => (error instanceof Unauthorized ? login(error) : banner(error.message));
/** What was refused for its state is drawn as well: another one acted before. */
function refused(error) {
  if (error instanceof Unauthorized) throw error;
  refusal(error.message);
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

const choose = (route) => { address({ route }); past().catch(failed); };
const draw = () => routes.show(slo, history, { choose, find: requests.find });

function came(next) {
  [slo, heard] = [next, performance.now()];
  verdict();
  age();
  const own = document.documentElement.dataset.page;
  banner(own === slo.page ? undefined : `This page came from another build than the gateway that answers now (version ${slo.version}): reload it.`);
  draw();
  hurry();
  refresh().catch(failed);
}

function login(error) {
  running?.abort();
  running = null;
  banner();
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
      await follow(came, { signal, onMode: (mode) => { byId("live").textContent = mode; } });
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Unauthorized) return login(error);
      byId("live").textContent = "no connection";
      banner(`No answer from the gateway (${error.message}); what stands here is old.`);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

function start() {
  theme.start();
  byId("dismiss").onclick = () => refusal();
  requests.start(failed);
  replicas.start(requests.find);
  const pressed = () => { for (const range of ["10m", "1h"]) byId(`range-${range}`).setAttribute("aria-pressed", String((shown("range") || "10m") === range)); };
  for (const range of ["10m", "1h"]) byId(`range-${range}`).onclick = () => { address({ range: range === "10m" ? "" : range }); pressed(); past().catch(failed); };
  pressed();
  setInterval(age, 1000);
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(byId("token").value);
    [byId("token").value, byId("login").hidden, byId("content").hidden] = ["", true, false];
    for (const part of Object.keys(due)) due[part] = 0;
    run();
  });
  run();
}

start();
